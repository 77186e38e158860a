"""Composed mixin: statistics over axes, the places of extremes, exponentials shared out along an axis."""

from __future__ import annotations

import math
from typing import Any, Self

from gradlet.base.dtype import DType, accumulator, dtypes, to_dtype
from gradlet.base.errors import DTypeError
from gradlet.base.symint import Size
from gradlet.ops.arguments import axis_number, axis_numbers, number
from gradlet.ops.op import Op
from gradlet.ops.reduce import Axis, position_type
from gradlet.ops.running import RunningMixin


class StatsMixin(RunningMixin):
    """Statistics."""

    __slots__ = ()

    # searching
    def argmax(self, axis: int | None = None, keepdim: bool = False) -> Self:
        """Where the largest element is: the first of ties, the first NaN if there is any.

        Args:
            axis: None searches the flattened tensor.

        Raises:
            ShapeError: there are no elements.

        >>> Tensor([1, 9, 9]).argmax().item()
        1
        """
        return self._position_of(Op.MAX, axis, keepdim, "argmax")

    def argmin(self, axis: int | None = None, keepdim: bool = False) -> Self:
        """Where the smallest element is: the first of ties, the first NaN if there is any.

        >>> Tensor([4, 1, 1]).argmin().item()
        1
        """
        return self._position_of(Op.MIN, axis, keepdim, "argmin")

    def _position_of(self, op: Op, axis: int | None, keepdim: bool, what: str) -> Self:
        if axis is None:
            found = self.flatten()._position_of(op, 0, False, what)
            return found.reshape((1,) * self.ndim) if keepdim else found
        source = self.reshape(1) if self.ndim == 0 else self
        along = axis_number(axis, self.ndim, what)
        best = source.reduce_over(op, along, True, what)
        size, keep = source.shape[along], keepdim and self.ndim > 0
        places = source.positions_along(along)
        # Nothing is beyond the best element, and no comparison with NaN is true: one comparison an element is enough.
        worse = source.lt(best) if op is Op.MAX else best.lt(source)
        found = worse.where(size, places).reduce_over(Op.MIN, along, keep, what)
        if self.dtype.is_float:
            nan = source.isnan().where(places, size).reduce_over(Op.MIN, along, keep, what)
            found = nan.lt(size).where(nan, found)
        return found.cast(position_type(size))

    def max_with_indices(self, dim: int, keepdim: bool = False) -> tuple[Self, Self]:
        """The largest elements along `dim` and where they are: torch's `max(dim)`.

        They are the first of ties, the first NaN if there is any, and the gradient goes to them alone.

        Raises:
            IndexingError: no such axis.
            ShapeError: there are no elements.

        >>> [t.tolist() for t in Tensor([[1, 9, 9], [4, 3, 2]]).max_with_indices(1)]
        [[9, 4], [1, 0]]
        """
        return self._extreme_with_indices(Op.MAX, dim, keepdim, "max_with_indices")

    def min_with_indices(self, dim: int, keepdim: bool = False) -> tuple[Self, Self]:
        """The smallest elements along `dim` and where they are: torch's `min(dim)`; see `max_with_indices`.

        Raises:
            IndexingError: no such axis.
            ShapeError: there are no elements.

        >>> [t.tolist() for t in Tensor([[1, 9, 9], [4, 3, 2]]).min_with_indices(1)]
        [[1, 2], [0, 2]]
        """
        return self._extreme_with_indices(Op.MIN, dim, keepdim, "min_with_indices")

    def _extreme_with_indices(self, op: Op, dim: int, keepdim: bool, what: str) -> tuple[Self, Self]:
        axis = axis_number(dim, self.ndim, what)
        places = self._position_of(op, axis, True, what)
        if self.ndim == 0:
            return self.as_value(), places
        values = self.constant_like(0, places.shape) if 0 in places.shape else self.gather(axis, places)
        return (values, places) if keepdim else (values.squeeze(axis), places.squeeze(axis))

    def aminmax(self, dim: int | None = None, keepdim: bool = False) -> tuple[Self, Self]:
        """The smallest and the largest elements over `dim`, all axes by default; ties share the gradient.

        Raises:
            IndexingError: no such axis.
            ShapeError: there are no elements.

        >>> [t.item() for t in Tensor([3, 1, 2]).aminmax()]
        [1, 3]
        """
        low = self.reduce_over(Op.MIN, dim, keepdim, "aminmax")
        return low, self.reduce_over(Op.MAX, dim, keepdim, "aminmax")

    # without NaN
    def nansum(self, dim: Axis = None, keepdim: bool = False, dtype: DType | str | None = None) -> Self:
        """Sum over `dim` of what is not NaN; see `sum`.

        >>> Tensor([1.0, float("nan"), 2.0]).nansum().item()
        3.0
        """
        return self._without_nan().sum(dim, keepdim, dtype)

    def nanmean(self, dim: Axis = None, keepdim: bool = False, dtype: DType | str | None = None) -> Self:
        """Average over `dim` of what is not NaN; NaN where nothing else is there.

        Raises:
            DTypeError: `dtype` is no float type.

        >>> Tensor([1.0, float("nan"), 3.0]).nanmean().item()
        2.0
        """
        if not self.dtype.is_float:
            return self.mean(dim, keepdim, dtype)
        result = self.dtype if dtype is None else to_dtype(dtype)
        if not result.is_float:
            raise DTypeError(f"nanmean: the mean of {self.dtype} does not fit {result}; use a float type")
        wide = accumulator(result)
        total = self._without_nan().cast(wide).reduce_over(Op.ADD, dim, keepdim, "nanmean")
        count = self.eq(self).cast(wide).reduce_over(Op.ADD, dim, keepdim, "nanmean")
        return total.fdiv(count).cast(result)

    def _without_nan(self) -> Self:
        """This with 0 in place of NaN."""
        return self.isnan().where(0.0, self) if self.dtype.is_float else self.as_value()

    def count_nonzero(self, dim: Axis = None, keepdim: bool = False) -> Self:
        """How many elements over `dim` are not zero (NaN is not); int64.

        >>> Tensor([[0, 1], [2, 3]]).count_nonzero(1).tolist()
        [1, 2]
        """
        return self.ne(0).cast(dtypes.int64).reduce_over(Op.ADD, dim, keepdim, "count_nonzero")

    # spread
    def var(self, axis: Axis = None, keepdim: bool = False, correction: float | None = 1) -> Self:
        """Variance over `axis`: `sum((self - mean)**2) / (n - correction)`; the divisor is at least 0.

        Args:
            correction: 1 for the unbiased variance of a sample (None too), 0 for that of the values themselves.

        Raises:
            IndexingError: no such axis.
            ArgumentError: a correction that is no number.

        >>> Tensor([1.0, 2.0, 3.0]).var().item()
        1.0
        """
        source = self.same_float("var")
        return source._variance(axis, keepdim, correction, "var").cast(source.dtype)

    def _variance(self, axis: Axis, keepdim: bool, correction: float | None, what: str) -> Self:
        """The variance of floats, in the type that sums are carried in."""
        wide = self.cast(accumulator(self.dtype))
        count = math.prod(self.shape[a] for a in axis_numbers(axis, self.ndim, what))
        gap = wide.sub(wide.mean(axis, True))
        total = gap.mul(gap).reduce_over(Op.ADD, axis, keepdim, what)
        divisor = count - (1 if correction is None else number(correction, what, "correction"))
        return total.fdiv(divisor if isinstance(divisor, Size) else float(max(0, divisor)))

    def var_mean(self, axis: Axis = None, keepdim: bool = False, correction: float | None = 1) -> tuple[Self, Self]:
        """Variance and mean.

        >>> [t.item() for t in Tensor([1.0, 2.0, 3.0]).var_mean()]
        [1.0, 2.0]
        """
        return self.var(axis, keepdim, correction), self.mean(axis, keepdim)

    def std(self, axis: Axis = None, keepdim: bool = False, correction: float | None = 1) -> Self:
        """Standard deviation over `axis`: the root of `var`. Its gradient is 0 where it is 0.

        Raises:
            IndexingError: no such axis.
            ArgumentError: a correction that is no number.

        >>> Tensor([1.0, 2.0, 3.0]).std().item()
        1.0
        """
        source = self.same_float("std")
        return source._variance(axis, keepdim, correction, "std")._flat_root().cast(source.dtype)

    def _flat_root(self) -> Self:
        """The square root, whose gradient at 0 is 0 and not infinite."""
        zero = self.detach().eq(0.0)
        return zero.where(0.0, zero.where(1.0, self).sqrt())

    def std_mean(self, axis: Axis = None, keepdim: bool = False, correction: float | None = 1) -> tuple[Self, Self]:
        """Standard deviation and mean.

        >>> [t.item() for t in Tensor([1.0, 2.0, 3.0]).std_mean()]
        [1.0, 2.0]
        """
        return self.std(axis, keepdim, correction), self.mean(axis, keepdim)

    def allclose(self, other: Any, rtol: float = 1e-05, atol: float = 1e-08, equal_nan: bool = False) -> bool:
        """Whether all elements are close (see `isclose`). Computes now.

        >>> Tensor([1.0]).allclose(Tensor([1.0]))
        True
        """
        return bool(self.isclose(other, rtol, atol, equal_nan).all().item())

    def item(self) -> Any:
        """The only element as a Python number."""
        raise NotImplementedError

    # exponentials
    def logsumexp(self, axis: Axis = None, keepdim: bool = False) -> Self:
        """`log(sum(exp(self)))` over `axis` without overflow; -inf where all are -inf.

        Raises:
            IndexingError: no such axis.

        >>> Tensor([0.0, 0.0]).logsumexp().exp().item()
        2.0
        """
        x = self.same_float("logsumexp")
        own, x = x.dtype, x.cast(accumulator(x.dtype))
        if 0 in x.shape:
            return x.sum(axis, keepdim).log().cast(own)
        top = x._safe_max(axis)
        result = x.sub(top).exp().sum(axis, True).log().add(top).cast(own)
        if keepdim:
            return result
        axes = axis_numbers(axis, self.ndim, "logsumexp")
        return result.reshape([s for a, s in enumerate(self.shape) if a not in axes])

    def _safe_max(self, axis: Axis) -> Self:
        """The maximum over `axis`, kept, without gradient; 0 where it is infinite or NaN."""
        top = self.detach().max(axis, True)
        return top.isfinite().where(top, 0.0)

    def softmax(self, axis: int = -1, dtype: DType | str | None = None) -> Self:
        """Exponentials divided by their sum along `axis`: `exp(self) / sum(exp(self))`; NaN where all are -inf.

        Args:
            dtype: the type to compute in, and of the result.

        Raises:
            IndexingError: no such axis.

        >>> Tensor([0.0, 0.0]).softmax().tolist()
        [0.5, 0.5]
        """
        x = self.same_float("softmax") if dtype is None else self.cast(dtype)
        along = axis_number(axis, x.ndim, "softmax")
        if 0 in x.shape:
            return x
        wide = x.cast(accumulator(x.dtype))
        power = wide.sub(wide.detach().max(along, True)).exp()
        return power.fdiv(power.sum(along, True)).cast(x.dtype)

    def softmin(self, axis: int = -1, dtype: DType | str | None = None) -> Self:
        """Softmax of the negated values: `exp(-self) / sum(exp(-self))`.

        Raises:
            IndexingError: no such axis.

        >>> Tensor([0.0, 0.0]).softmin().tolist()
        [0.5, 0.5]
        """
        axis_number(axis, self.ndim, "softmin")
        return self.same_float("softmin").neg().softmax(axis, dtype)

    def log_softmax(self, axis: int = -1, dtype: DType | str | None = None) -> Self:
        """Logarithm of softmax: `self - log(sum(exp(self)))`.

        Args:
            dtype: the type to compute in, and of the result.

        Raises:
            IndexingError: no such axis.

        >>> Tensor([0.0]).log_softmax().item()
        0.0
        """
        x = self.same_float("log_softmax") if dtype is None else self.cast(dtype)
        along = axis_number(axis, x.ndim, "log_softmax")
        if 0 in x.shape:
            return x
        wide = x.cast(accumulator(x.dtype))
        shifted = wide.sub(wide.detach().max(along, True))
        return shifted.sub(shifted.exp().sum(along, True).log()).cast(x.dtype)
