"""Composed mixin: what layers need that have no parameters: calling them in a row, dropout in its forms."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, ClassVar, Final, Self

from gradlet.base.dtype import dtypes
from gradlet.base.errors import ShapeError
from gradlet.ops.activation import ActivationMixin
from gradlet.ops.arguments import fraction
from gradlet.ops.linalg import LinalgMixin
from gradlet.ops.movement import operand
from gradlet.ops.random import RandomMixin

# What selu tends to for very negative numbers.
SELU_FLOOR: Final = -1.0507009873554805 * 1.6732632423543772


class NeuralMixin(LinalgMixin, RandomMixin, ActivationMixin):
    """Neural network functions."""

    __slots__ = ()
    # Whether dropout drops and batch norm uses the batch; `with Tensor.train():` switches it.
    training: ClassVar[bool] = False

    def sequential(self, ll: Sequence[Callable[[Any], Any]]) -> Any:
        """Apply functions one after another.

        >>> Tensor([1.0, -1.0]).sequential([lambda x: x * 2, Tensor.relu]).tolist()
        [2.0, 0.0]
        """
        result: Any = self
        for layer in ll:
            result = layer(result)
        return result

    # dropout
    def dropout(self, p: float = 0.5, training: bool | None = None) -> Self:
        """While training, zero each element with probability `p` and scale the rest by `1 / (1 - p)`.

        Args:
            p: the probability of a zero.
            training: whether to drop; `Tensor.training` when None.

        Raises:
            ArgumentError: p is not in [0, 1].

        >>> Tensor([1.0]).dropout(0.5).item()
        1.0
        """
        return self._dropped("dropout", p, training, self.shape)

    def dropout1d(self, p: float = 0.5, training: bool | None = None) -> Self:
        """Dropout of whole channels of shape (N, C, L) or (C, L): an axis of positions is dropped or kept as a whole.

        Args:
            p: the probability of a zero.
            training: whether to drop; `Tensor.training` when None.

        Raises:
            ArgumentError: p is not in [0, 1].
            ShapeError: not 2 or 3 axes.

        >>> Tensor.ones(1, 2, 3).dropout1d(1.0, training=True).sum().item()
        0.0
        """
        return self._channels_dropped("dropout1d", p, training, (2, 3), self.ndim - 1)

    def dropout2d(self, p: float = 0.5, training: bool | None = None) -> Self:
        """Dropout of whole channels of shape (N, C, H, W); three axes are (N, C, L), as in torch.

        Args:
            p: the probability of a zero.
            training: whether to drop; `Tensor.training` when None.

        Raises:
            ArgumentError: p is not in [0, 1].
            ShapeError: not 3 or 4 axes.

        >>> Tensor.ones(1, 2, 2, 2).dropout2d(1.0, training=True).sum().item()
        0.0
        """
        return self._channels_dropped("dropout2d", p, training, (3, 4), 2)

    def dropout3d(self, p: float = 0.5, training: bool | None = None) -> Self:
        """Dropout of whole channels of shape (N, C, D, H, W) or (C, D, H, W).

        Args:
            p: the probability of a zero.
            training: whether to drop; `Tensor.training` when None.

        Raises:
            ArgumentError: p is not in [0, 1].
            ShapeError: not 4 or 5 axes.

        >>> Tensor.ones(1, 2, 2, 2, 2).dropout3d(1.0, training=True).sum().item()
        0.0
        """
        return self._channels_dropped("dropout3d", p, training, (4, 5), self.ndim - 3)

    def alpha_dropout(self, p: float = 0.5, training: bool | None = None) -> Self:
        """While training, set each element with probability `p` to the floor of selu, and scale and shift everything
        so that mean 0 and variance 1 stay what they are.

        Source: Klambauer et al. 2017, "Self-normalizing neural networks".

        Args:
            p: the probability of being dropped.
            training: whether to drop; `Tensor.training` when None.

        Raises:
            ArgumentError: p is not in [0, 1].

        >>> Tensor([1.0]).alpha_dropout(0.5).item()
        1.0
        """
        return self._dropped("alpha_dropout", p, training, self.shape, SELU_FLOOR)

    def feature_alpha_dropout(self, p: float = 0.5, training: bool | None = None) -> Self:
        """`alpha_dropout` of whole channels; the first two axes are batch and channel.

        Args:
            p: the probability of being dropped.
            training: whether to drop; `Tensor.training` when None.

        Raises:
            ArgumentError: p is not in [0, 1].
            ShapeError: fewer than 2 axes while training.

        >>> Tensor([[1.0]]).feature_alpha_dropout(0.5).item()
        1.0
        """
        if self.ndim < 2 and (self.training if training is None else training):
            raise ShapeError(f"feature_alpha_dropout: needs axes of batch and channels, got shape {self.shape}")
        mask = self.shape[:2] + (1,) * (self.ndim - 2)
        return self._dropped("feature_alpha_dropout", p, training, mask, SELU_FLOOR)

    def native_dropout_backward(self, mask: Self, scale: float) -> Self:
        """The gradient of dropout from that of its result: `self * mask * scale`.

        Args:
            mask: True where an element was kept.
            scale: what kept elements were multiplied by.

        >>> Tensor([1.0, 1.0]).native_dropout_backward(Tensor([True, False]), 2.0).tolist()
        [2.0, 0.0]
        """
        return self.mul(operand(mask, "native_dropout_backward", "mask").cast(self.dtype)).mul(scale)

    def _channels_dropped(
        self, name: str, p: float, training: bool | None, ranks: tuple[int, int], leading: int
    ) -> Self:
        """Dropout that decides once for all positions behind the leading axes."""
        if self.ndim not in ranks:
            raise ShapeError(f"{name}: needs {ranks[0]} or {ranks[1]} axes, got shape {self.shape}")
        return self._dropped(name, p, training, self.shape[:leading] + (1,) * (self.ndim - leading))

    def _dropped(self, name: str, p: float, training: bool | None, mask: Any, floor: float = 0.0) -> Self:
        """Dropout to `floor`, with one decision for each element of the shape `mask`."""
        p = fraction(p, name, "p")
        if not (self.training if training is None else training) or p == 0:
            return self
        x = self.same_float(name)
        if p == 1:
            return x.mul(0.0)
        keep = self.rand(*mask, dtype=dtypes.float32, device=self.place).lt(1.0 - p)
        if floor == 0.0:
            return keep.where(x.mul(1.0 / (1.0 - p)), 0.0)
        scale = 1 / math.sqrt((1 - p) * (1 + p * floor**2))
        return keep.where(x.mul(scale), floor * scale).add(-scale * p * floor)
