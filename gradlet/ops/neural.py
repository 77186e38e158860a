"""Composed mixin: what layers need that have no parameters: calling them in a row, dropout."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, ClassVar, Self

from gradlet.base.dtype import dtypes
from gradlet.ops.activation import ActivationMixin
from gradlet.ops.arguments import fraction
from gradlet.ops.linalg import LinalgMixin
from gradlet.ops.random import RandomMixin


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

    def dropout(self, p: float = 0.5) -> Self:
        """While training, zero each element with probability `p` and scale the rest by `1 / (1 - p)`.

        Raises:
            ArgumentError: p is not in [0, 1].

        >>> Tensor([1.0]).dropout(0.5).item()
        1.0
        """
        p = fraction(p, "dropout", "p")
        if not self.training or p == 0:
            return self
        if p == 1:
            return self.mul(0)
        keep = self.rand(*self.shape, dtype=dtypes.float32, device=self.place).lt(1.0 - p)
        return keep.where(self.mul(1.0 / (1.0 - p)), 0)
