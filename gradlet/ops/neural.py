"""Composed mixin: layers without parameters of their own: norms, dropout, attention, interpolation, losses."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, ClassVar, Self

from gradlet.base.dtype import accumulator, dtypes
from gradlet.base.errors import ArgumentError, DTypeError, ShapeError
from gradlet.ops.activation import ActivationMixin
from gradlet.ops.arguments import axis_numbers, fraction, integers
from gradlet.ops.create import on_or_below
from gradlet.ops.linalg import LinalgMixin
from gradlet.ops.movement import operand
from gradlet.ops.random import RandomMixin
from gradlet.ops.reduce import Axis
from gradlet.ops.window import WindowMixin

REDUCTIONS = ("mean", "sum", "none")


class NeuralMixin(LinalgMixin, WindowMixin, RandomMixin, ActivationMixin):
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

    # norms
    def layernorm(self, axis: Axis = -1, eps: float = 1e-5) -> Self:
        """Subtract the mean over `axis` and divide by the standard deviation.

        Args:
            axis: one axis or several.
            eps: added to the variance.

        >>> [round(v, 3) for v in Tensor([1.0, 3.0]).layernorm().tolist()]
        [-1.0, 1.0]
        """
        source = self.same_float("layernorm")
        wide = source.cast(accumulator(source.dtype))
        gap = wide.sub(wide.mean(axis, True))
        return gap.mul(gap.mul(gap).mean(axis, True).add(eps).rsqrt()).cast(source.dtype)

    def rmsnorm(self, axis: Axis = -1, eps: float = 1e-6) -> Self:
        """Divide by the root of the mean square over `axis`.

        >>> [round(v, 3) for v in Tensor([3.0, 3.0]).rmsnorm().tolist()]
        [1.0, 1.0]
        """
        source = self.same_float("rmsnorm")
        wide = source.cast(accumulator(source.dtype))
        return wide.mul(wide.mul(wide).mean(axis, True).add(eps).rsqrt()).cast(source.dtype)

    def batchnorm(
        self, weight: Self | None, bias: Self | None, mean: Self, invstd: Self, axis: int | tuple[int, ...] = 1
    ) -> Self:
        """`(self - mean) * invstd * weight + bias`, with statistics of the size of `axis`.

        Raises:
            ShapeError: statistics that do not fit `axis`.

        >>> one = Tensor([1.0])
        >>> Tensor([[3.0]]).batchnorm(None, None, one, one).item()
        2.0
        """
        axes = axis_numbers(axis, self.ndim, "batchnorm")
        shape = tuple([s if a in axes else 1 for a, s in enumerate(self.shape)])
        optional = [(name, value) for name, value in (("weight", weight), ("bias", bias)) if value is not None]
        for name, value in (("mean", mean), *optional):
            count = operand(value, "batchnorm", name).numel()
            if count != math.prod(shape):
                raise ShapeError(f"batchnorm: {name} has {count} entries, axis {axis} has {math.prod(shape)}")
        invstd = operand(invstd, "batchnorm", "invstd")
        result = self.sub(mean.reshape(shape))
        if weight is not None:
            result = result.mul(weight.reshape(shape))
        # invstd may have more axes than the statistics, or as many.
        result = result.mul(invstd.reshape(shape) if invstd.numel() == math.prod(shape) else invstd)
        return result if bias is None else result.add(bias.reshape(shape))

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

    def scaled_dot_product_attention(
        self, key: Self, value: Self, attn_mask: Self | None = None, dropout_p: float = 0.0, is_causal: bool = False,
        enable_gqa: bool = False, scale: float | None = None,
    ) -> Self:  # fmt: skip
        """Attention of queries (this) `[..., L, E]` over keys `[..., S, E]` and values `[..., S, D]`.

        Args:
            attn_mask: bool (False hides) or a float that is added, broadcast against `[..., L, S]`.
            dropout_p: dropped share of the weights while training.
            is_causal: hide keys after the query's own place.
            scale: factor of the scores; `1 / sqrt(E)` when None.
            enable_gqa: repeat the heads of keys and values (third last axis) to those of the queries.

        Raises:
            ArgumentError: both `attn_mask` and `is_causal`.
            ShapeError: shapes that do not fit.

        >>> q = Tensor.ones(1, 2, 4)
        >>> q.scaled_dot_product_attention(q, q).shape
        (1, 2, 4)
        """
        key, value = operand(key, "attention", "key"), operand(value, "attention", "value")
        if self.ndim < 2 or key.ndim < 2 or value.ndim < 2 or key.shape[-2] != value.shape[-2]:
            raise ShapeError(
                f"attention: queries {self.shape}, keys {key.shape} and values {value.shape} need the shapes "
                "[..., L, E], [..., S, E] and [..., S, D]"
            )
        if enable_gqa:
            if min(self.ndim, key.ndim, value.ndim) < 3:
                raise ShapeError(
                    f"attention: enable_gqa needs an axis of heads before the last two, got shapes {self.shape}, "
                    f"{key.shape} and {value.shape}"
                )
            if self.shape[-3] % key.shape[-3] or self.shape[-3] % value.shape[-3]:
                raise ShapeError(f"attention: {self.shape[-3]} query heads do not divide by {key.shape[-3]} key heads")
            key = key.repeat_interleave(self.shape[-3] // key.shape[-3], -3)
            value = value.repeat_interleave(self.shape[-3] // value.shape[-3], -3)
        factor = 1 / math.sqrt(self.shape[-1]) if scale is None else scale
        scores = self.dot(key.transpose(-2, -1), dtype=accumulator(self.dtype)).mul(factor)
        if is_causal:
            if attn_mask is not None:
                raise ArgumentError("attention: give attn_mask or is_causal, not both")
            attn_mask = on_or_below(scores, 0)
        if attn_mask is not None:
            if attn_mask.dtype is dtypes.bool:
                scores = attn_mask.where(scores, -math.inf)
            else:
                scores = scores.add(attn_mask)
        return scores.softmax(-1).cast(self.dtype).dropout(dropout_p).dot(value)

    def interpolate(self, size: Sequence[int], mode: str = "linear", align_corners: bool = False) -> Self:
        """Resize the last axes (as many as `size` has).

        Args:
            mode: "linear" (bilinear over two axes, and so on), "nearest" or "nearest-exact".
            align_corners: map the first and last elements onto each other (linear only).

        Raises:
            ArgumentError: another mode.

        >>> Tensor([[1.0, 3.0]]).interpolate((4,)).tolist()
        [[1.0, 1.5, 2.5, 3.0]]
        """
        if mode not in ("linear", "nearest", "nearest-exact"):
            raise ArgumentError(f"interpolate: mode {mode!r} is not 'linear', 'nearest' or 'nearest-exact'")
        size = integers((size,), "interpolate: size")
        if min((*size, *self.shape[self.ndim - len(size) :]), default=1) < 1:
            raise ShapeError(f"interpolate: shape {self.shape} cannot be resized to {size}; sizes must be positive")
        if len(size) > self.ndim:
            raise ShapeError(f"interpolate: {len(size)} sizes for shape {self.shape}")
        result = self
        for axis, target in zip(range(self.ndim - len(size), self.ndim), size):
            result = result._resize(axis, target, mode, align_corners)
        return result

    def _resize(self, axis: int, target: int, mode: str, align_corners: bool) -> Self:
        source = self.shape[axis]
        number = self.positions(target, self.place)
        if mode == "nearest":
            return self.gather_axes({axis: number.mul(source).floordiv(target)})
        if mode == "nearest-exact":
            return self.gather_axes({axis: number.mul(2 * source).add(source).floordiv(2 * target)})
        position = number.cast(dtypes.float32)
        if align_corners:
            position = position.mul((source - 1) / (target - 1) if target > 1 else 0.0)
        else:
            position = position.add(0.5).mul(source / target).add(-0.5).clamp(0.0, source - 1.0)
        low = position.cast(dtypes.int32)
        high = low.add(1).clamp(max_=source - 1)
        weight = position.sub(low.cast(dtypes.float32)).cast(self.same_float("interpolate").dtype)
        weight = weight.reshape([target if a == axis else 1 for a in range(self.ndim)])
        first, second = self.gather_axes({axis: low}), self.gather_axes({axis: high})
        return first.add(second.sub(first).mul(weight))

    # losses
    def _reduced(self, reduction: str, what: str) -> Self:
        if reduction not in REDUCTIONS:
            raise ArgumentError(f"{what}: reduction {reduction!r} is not one of {', '.join(REDUCTIONS)}")
        return self if reduction == "none" else self.mean() if reduction == "mean" else self.sum()

    def binary_crossentropy(self, Y: Any, reduction: str = "mean") -> Self:
        """`-(Y log(self) + (1 - Y) log(1 - self))` of probabilities; logarithms are cut at -100 as torch does.

        >>> round(Tensor([0.5]).binary_crossentropy(Tensor([1.0])).item(), 4)
        0.6931
        """
        x = self.same_float("binary_crossentropy")
        target = x.coerce(Y).cast(x.dtype)
        hit, miss = x.log().clamp(min_=-100.0), x.neg().add(1.0).log().clamp(min_=-100.0)
        loss = target.mul(hit).add(target.neg().add(1.0).mul(miss)).neg()
        return loss._reduced(reduction, "binary_crossentropy")

    def binary_crossentropy_logits(self, Y: Any, reduction: str = "mean", pos_weight: Any = None) -> Self:
        """Binary cross-entropy of logits, without overflow.

        >>> round(Tensor([0.0]).binary_crossentropy_logits(Tensor([1.0])).item(), 4)
        0.6931
        """
        x = self.same_float("binary_crossentropy_logits")
        target = x.coerce(Y).cast(x.dtype)
        weight = target if pos_weight is None else target.mul(pos_weight)
        loss = target.neg().add(1.0).mul(x.softplus()).add(weight.mul(x.neg().softplus()))
        return loss._reduced(reduction, "binary_crossentropy_logits")

    def sparse_categorical_crossentropy(
        self, Y: Self, ignore_index: int = -1, label_smoothing: float = 0.0, reduction: str = "mean"
    ) -> Self:
        """Cross-entropy of logits, classes on the last axis, with class numbers.

        Args:
            Y: integers shaped like this without its last axis; the loss of one that is no class is NaN.
            ignore_index: rows with this class do not count, in the mean neither.
            label_smoothing: share of the target that is spread over all classes.
            reduction: "mean", "sum" or "none".

        Raises:
            ShapeError: Y does not fit.

        >>> round(Tensor([[0.0, 0.0]]).sparse_categorical_crossentropy(Tensor([1])).item(), 4)
        0.6931
        """
        if not self.ndim:
            raise ShapeError("sparse_categorical_crossentropy: needs an axis of classes, got a tensor without axes")
        if operand(Y, "sparse_categorical_crossentropy", "Y").shape != self.shape[:-1]:
            raise ShapeError(f"sparse_categorical_crossentropy: Y of shape {Y.shape} must have shape {self.shape[:-1]}")
        logs = self.log_softmax(-1)
        return logs._class_loss(Y, ignore_index, label_smoothing, reduction, None, "sparse_categorical_crossentropy")

    def _class_loss(
        self, target: Self, ignore_index: int | None, smoothing: float, reduction: str, weight: Self | None, what: str
    ) -> Self:
        """Loss of log probabilities (classes last) and class numbers; NaN for a number that is no class.

        What a tensor holds is known only when the kernel runs, too late for an error: NaN is seen, a small loss is not.
        """
        if not target.dtype.is_int:
            raise DTypeError(f"{what}: class numbers must be integers, got {target.dtype}; cast them")
        smoothing = fraction(smoothing, what, "label_smoothing")
        if reduction not in REDUCTIONS:
            raise ArgumentError(f"{what}: reduction {reduction!r} is not one of {', '.join(REDUCTIONS)}")
        classes = self.positions(self.shape[-1], self.place)
        chosen = target.unsqueeze(-1).eq(classes)
        picked = self if weight is None else self.mul(weight)
        # Select, not multiply: other classes may be -inf.
        loss = chosen.where(picked, 0.0).sum(-1).neg()
        counted = self.const_like(1.0, target.shape) if weight is None else chosen.where(weight, 0.0).sum(-1)
        known = target.lt(self.shape[-1])
        loss = (known if target.dtype.is_unsigned else known.bitwise_and(target.gt(-1))).where(loss, math.nan)
        if smoothing:
            loss = loss.mul(1.0 - smoothing).add(picked.sum(-1).mul(-smoothing / self.shape[-1]))
        if ignore_index is not None:
            kept = target.ne(ignore_index)
            loss, counted = kept.where(loss, 0.0), kept.where(counted, 0.0)
        if reduction == "mean":
            return loss.sum().fdiv(counted.sum())
        return loss.sum() if reduction == "sum" else loss

    def cross_entropy(
        self, Y: Self, reduction: str = "mean", label_smoothing: float = 0.0, ignore_index: int | None = None
    ) -> Self:
        """Cross-entropy of logits with classes on axis 1 (axis 0 of a vector).

        Args:
            Y: class numbers, shaped like this without axis 1 (the loss of one that is no class is NaN); or
                probabilities, shaped like this.
            reduction: "mean", "sum" or "none".
            label_smoothing: share of the target that is spread over all classes.
            ignore_index: class number of targets that do not count.

        Raises:
            ShapeError: Y does not fit.

        >>> round(Tensor([[0.0, 0.0]]).cross_entropy(Tensor([1])).item(), 4)
        0.6931
        """
        axis = 1 if self.ndim > 1 else 0
        if self.ndim == 0:
            raise ShapeError("cross_entropy: needs an axis of classes, got a tensor without axes")
        Y = operand(Y, "cross_entropy", "Y")
        rest = self.shape[:axis] + self.shape[axis + 1 :]
        logs = (self if self.ndim < 3 else self._classes_last()).log_softmax(-1)
        if Y.shape == rest and Y.dtype.is_int:
            return logs._class_loss(Y, ignore_index, label_smoothing, reduction, None, "cross_entropy")
        if Y.shape != self.shape or not Y.dtype.is_float:
            raise ShapeError(
                f"cross_entropy: Y of shape {Y.shape} and type {Y.dtype} must be class numbers of shape {rest} or "
                f"probabilities of shape {self.shape}"
            )
        if ignore_index is not None:
            raise ArgumentError("cross_entropy: ignore_index needs class numbers, not probabilities")
        label_smoothing = fraction(label_smoothing, "cross_entropy", "label_smoothing")
        target = Y if self.ndim < 3 else Y._classes_last()
        if label_smoothing:
            target = target.mul(1 - label_smoothing).add(label_smoothing / self.shape[axis])
        return target.mul(logs).sum(-1).neg()._reduced(reduction, "cross_entropy")

    def _classes_last(self) -> Self:
        """Axis 1 moved to the end."""
        return self.permute([0, *range(2, self.ndim), 1])

    def nll_loss(
        self, Y: Self, weight: Self | None = None, ignore_index: int | None = None, reduction: str = "mean"
    ) -> Self:
        """Negative log likelihood of log probabilities with classes on axis 1 (axis 0 of a vector).

        Args:
            Y: class numbers, shaped like this without axis 1; the loss of one that is no class is NaN.
            weight: weight of each class; the mean is divided by the weights that count.
            ignore_index: class number of targets that do not count.
            reduction: "mean", "sum" or "none".

        Raises:
            ShapeError: Y does not fit.

        >>> Tensor([[-1.0, -2.0]]).nll_loss(Tensor([1])).item()
        2.0
        """
        if not self.ndim:
            raise ShapeError("nll_loss: needs an axis of classes, got a tensor without axes")
        axis = 1 if self.ndim > 1 else 0
        rest = self.shape[:axis] + self.shape[axis + 1 :]
        if operand(Y, "nll_loss", "Y").shape != rest:
            raise ShapeError(f"nll_loss: Y of shape {Y.shape} must have shape {rest}")
        if weight is not None and operand(weight, "nll_loss", "weight").shape != (self.shape[axis],):
            raise ShapeError(f"nll_loss: weight of shape {weight.shape} must have shape {(self.shape[axis],)}")
        logs = self._classes_last() if self.ndim > 1 else self
        return logs._class_loss(Y, ignore_index, 0.0, reduction, weight, "nll_loss")
