"""Core mixin: combining elements over axes. Whoever mixes this in provides its hooks."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Self

from gradlet.base.dtype import DType, accumulator, dtypes, to_dtype
from gradlet.base.errors import DTypeError, ShapeError
from gradlet.base.symint import Size
from gradlet.ops.arguments import axis_numbers
from gradlet.ops.elementwise import ElementwiseMixin
from gradlet.ops.movement import MovementMixin
from gradlet.ops.op import Op, identity_element

Axis = int | Sequence[int] | None


def total_type(own: DType, asked: DType | str | None = None) -> DType:
    """Type of sums and products of `own`: what was asked for, else int64 for integers and bools that it holds."""
    if asked is not None:
        return to_dtype(asked)
    return own if own.is_float or own is dtypes.uint64 else dtypes.int64


def position_type(size: Any) -> DType:
    """Type of positions on an axis: the default integer, int64 where that does not hold them."""
    last = size.high if isinstance(size, Size) else size
    return dtypes.default_int if last <= dtypes.default_int.max else dtypes.int64


class ReduceMixin(ElementwiseMixin, MovementMixin):
    """Reductions. `reduce_axes(op, axes)` combines over axes, which the result lacks."""

    __slots__ = ()

    if TYPE_CHECKING:

        @property
        def dtype(self) -> DType:
            """Data type of the elements."""

    def reduce_axes(self, op: Op, axes: tuple[int, ...]) -> Self:
        """Combine with ADD, MUL, MAX or MIN over `axes`, which are sorted."""
        raise NotImplementedError

    def cast(self, dtype: DType | str) -> Self:
        """Convert the values to another type."""
        raise NotImplementedError

    def constant_like(self, value: Any, shape: tuple[int, ...] | None = None, dtype: DType | None = None) -> Self:
        """The same value everywhere, in this one's shape and dtype unless others are given."""
        raise NotImplementedError

    def with_derivative(self, name: str, inputs: Sequence[Self], rule: Callable[[Self], Sequence[Self | None]]) -> Self:
        """The same values, with a gradient of its own."""
        raise NotImplementedError

    def reduce_over(self, op: Op, axis: Axis, keepdim: bool, what: str) -> Self:
        """Combine over `axis` (None: all), keeping the axes with size 1 when `keepdim`."""
        shape = self.shape
        axes = axis_numbers(axis, len(shape), what)
        kept = tuple([1 if a in axes else s for a, s in enumerate(shape)])
        rest = tuple([s for a, s in enumerate(shape) if a not in axes])
        if 0 in shape:
            # Nothing to combine: the identity everywhere. There is no largest of nothing.
            if op in (Op.MAX, Op.MIN) and any(shape[a] == 0 for a in axes):
                raise ShapeError(
                    f"{what}: shape {shape} has no elements on axis {axis}; there is no result for nothing"
                )
            nothing = self.constant_like(identity_element(op, self.dtype), kept if keepdim else rest)
            # It depends on this all the same: what this was computed from has a gradient, zero.
            return nothing.with_derivative("of nothing", [self], lambda gradient: [self.constant_like(0)])
        result = self.reduce_axes(op, axes) if axes else self.as_value()
        return result.reshape(kept) if keepdim else result

    def sum(self, axis: Axis = None, keepdim: bool = False, dtype: DType | str | None = None) -> Self:
        """Sum over `axis`, all axes by default. Sums of integers and bools are int64; 16-bit floats add in float32.

        Args:
            axis: one axis or several; None for all.
            keepdim: keep the summed axes with size 1.
            dtype: type of the result, in which the sum is also carried.

        Raises:
            IndexingError: no such axis.

        >>> Tensor([[1, 2], [3, 4]]).sum(axis=0).tolist()
        [4, 6]
        """
        result = total_type(self.dtype, dtype)
        return self.cast(accumulator(result)).reduce_over(Op.ADD, axis, keepdim, "sum").cast(result)

    def prod(self, axis: Axis = None, keepdim: bool = False, dtype: DType | str | None = None) -> Self:
        """Product over `axis`, all axes by default. Products of integers and bools are int64.

        >>> Tensor([2, 3, 4]).prod().item()
        24
        """
        result = total_type(self.dtype, dtype)
        return self.cast(accumulator(result)).reduce_over(Op.MUL, axis, keepdim, "prod").cast(result)

    def max(self, axis: Axis = None, keepdim: bool = False) -> Self:
        """Largest element over `axis`, all axes by default; NaN if any is NaN. Ties share the gradient.

        Raises:
            ShapeError: there are no elements.

        >>> Tensor([[1, 9], [3, 4]]).max(axis=1).tolist()
        [9, 4]
        """
        return self.reduce_over(Op.MAX, axis, keepdim, "max")

    def min(self, axis: Axis = None, keepdim: bool = False) -> Self:
        """Smallest element over `axis`, all axes by default; NaN if any is NaN. Ties share the gradient.

        Raises:
            ShapeError: there are no elements.

        >>> Tensor([[1, 9], [3, 4]]).min(axis=0).tolist()
        [1, 4]
        """
        return self.reduce_over(Op.MIN, axis, keepdim, "min")

    def amax(self, dim: Axis = None, keepdim: bool = False) -> Self:
        """Same as `max`: the largest elements over `dim`; ties share the gradient.

        >>> Tensor([[1, 9], [3, 4]]).amax((0, 1)).item()
        9
        """
        return self.reduce_over(Op.MAX, dim, keepdim, "amax")

    def amin(self, dim: Axis = None, keepdim: bool = False) -> Self:
        """Same as `min`: the smallest elements over `dim`; ties share the gradient.

        >>> Tensor([[1, 9], [3, 4]]).amin((0, 1)).item()
        1
        """
        return self.reduce_over(Op.MIN, dim, keepdim, "amin")

    def any(self, axis: Axis = None, keepdim: bool = False) -> Self:
        """Whether any element is not zero.

        >>> Tensor([0, 0, 2]).any().item()
        True
        """
        return self.cast(dtypes.bool).reduce_over(Op.MAX if self.numel() else Op.ADD, axis, keepdim, "any")

    def all(self, axis: Axis = None, keepdim: bool = False) -> Self:
        """Whether no element is zero.

        >>> Tensor([1, 0, 2]).all().item()
        False
        """
        return self.cast(dtypes.bool).reduce_over(Op.MIN if self.numel() else Op.MUL, axis, keepdim, "all")

    def mean(self, axis: Axis = None, keepdim: bool = False, dtype: DType | str | None = None) -> Self:
        """Average over `axis`, all axes by default. The mean of integers is a float; of nothing NaN.

        Args:
            dtype: float type of the result, in which the sum is also carried.

        Raises:
            IndexingError: no such axis.
            DTypeError: `dtype` is no float type.

        >>> Tensor([1.0, 2.0, 6.0]).mean().item()
        3.0
        """
        own = self.dtype if dtype is None else to_dtype(dtype)
        if dtype is not None and not own.is_float:
            raise DTypeError(f"mean: the mean of {self.dtype} does not fit {own}; use a float type")
        result = own if own.is_float else dtypes.default_float
        carrier = accumulator(result)
        shape = self.shape
        count: Any = 1
        more: list[Any] = []  # sizes that are known only at launch, whose product is no size
        for a in axis_numbers(axis, len(shape), "mean"):
            if isinstance(count, Size) and isinstance(shape[a], Size):
                more.append(shape[a])
            else:
                count *= shape[a]
        total = self.cast(carrier).reduce_over(Op.ADD, axis, keepdim, "mean")
        for size in more:
            total = total.fdiv(size)
        return total.fdiv(count).cast(result)

    def same_float(self, what: str) -> Self:
        """This as a float: integers become the default float.

        Raises:
            DTypeError: the type has no float of its own.
        """
        if self.dtype.is_float:
            return self
        if self.dtype.kind not in "buix":
            raise DTypeError(f"{what}: {self.dtype} has no float form")
        return self.cast(dtypes.default_float)
