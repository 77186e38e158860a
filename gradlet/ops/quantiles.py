"""Composed mixin: order statistics: medians, quantiles, the k-th value and the most frequent one."""

from __future__ import annotations

import math
from typing import Any, Final, Self

from gradlet.base.dtype import accumulator, dtypes
from gradlet.base.errors import ArgumentError, ShapeError
from gradlet.ops.arguments import axis_number, integer, number
from gradlet.ops.op import Op
from gradlet.ops.stats import StatsMixin

INTERPOLATIONS: Final = ("linear", "lower", "higher", "midpoint", "nearest")


class QuantilesMixin(StatsMixin):
    """Order statistics. The gradient goes to the elements that were chosen."""

    __slots__ = ()

    def kthvalue(self, k: int, dim: int = -1, keepdim: bool = False) -> tuple[Self, Self]:
        """The `k`-th smallest values along `dim`, counted from 1, and where they are (the stable order of `sort`).

        Raises:
            ArgumentError: k is not in [1, size].
            IndexingError: no such axis.

        >>> [t.item() for t in Tensor([5, 1, 3]).kthvalue(2)]
        [3, 2]
        """
        axis = axis_number(dim, self.ndim, "kthvalue")
        size = self.shape[axis] if self.ndim else 1
        k = integer(k, "kthvalue", "k")
        if not 1 <= k <= size:
            raise ArgumentError(f"kthvalue: k is {k}, but axis {axis} has {size} elements; count from 1")
        if self.ndim == 0:
            return self.sort()
        values, places = self._picked(axis, self._places(axis, False, k)._box(axis, k - 1, k))
        return _kept(values, places, axis, keepdim)

    def median(self, dim: int | None = None, keepdim: bool = False) -> Any:
        """The middle value in order, the lower one of two; NaN if there is any.

        Args:
            dim: an axis, for the medians along it and where they are; None for the median of all elements alone,
                whose gradient is shared between all that are equal to it.

        Raises:
            ShapeError: there are no elements along `dim`.
            IndexingError: no such axis.

        >>> Tensor([4, 1, 3, 2]).median().item(), [t.item() for t in Tensor([4, 1, 3, 2]).median(0)]
        (2, [2, 3])
        """
        return self._median(dim, keepdim, False, "median")

    def nanmedian(self, dim: int | None = None, keepdim: bool = False) -> Any:
        """The median of what is not NaN; NaN where nothing else is there. See `median`.

        >>> Tensor([float("nan"), 1.0, 3.0, 2.0]).nanmedian().item()
        2.0
        """
        return self._median(dim, keepdim, True, "nanmedian")

    def _median(self, dim: int | None, keepdim: bool, skip_nan: bool, what: str) -> Any:
        if dim is None:
            if 0 in self.shape:
                return self.constant_like(math.nan if self.dtype.is_float else self.dtype.min, ())
            flat = self.flatten()
            middle = flat.detach()._median(0, True, skip_nan, what)[0]
            return flat._shared_among_equals(middle) if self.dtype.is_float else middle.reshape(())
        axis = axis_number(dim, self.ndim, what)
        if self.ndim == 0:
            return self.sort()
        size = self.shape[axis]
        if size == 0:
            raise ShapeError(
                f"{what}: shape {self.shape} has no elements on axis {axis}; there is no median of nothing"
            )
        half = (size - 1) // 2
        if not self.dtype.is_float:
            return self.kthvalue(half + 1, axis, keepdim)
        # NaN comes last. Where it counts, the first one is the median.
        valid = self.eq(self).cast(dtypes.int32).sum(axis, True, dtypes.int32)
        if skip_nan:
            rank = valid.add(-1).maximum(0).floordiv(2)
        else:
            rank = valid.lt(size).where(valid, half)
        order = self._places(axis, False, None)
        places = order.gather(axis, rank) if size > 1 else order
        values, places = self._picked(axis, places)
        return _kept(values, places, axis, keepdim)

    def _shared_among_equals(self, value: Self) -> Self:
        """A value without axes that occurs in this one; its gradient is shared between its occurrences."""
        equal = self.eq(value).bitwise_or(value.isnan().bitwise_and(self.isnan()))
        # They are the largest of themselves, and a maximum shares its gradient.
        return equal.where(self, self.dtype.min).max()

    def quantile(self, q: Any, dim: int | None = None, keepdim: bool = False, interpolation: str = "linear") -> Self:
        """The values at the fractions `q` of the order along `dim`; NaN where there is any.

        The place is `q * (n - 1)`; between two elements `lower` and `higher` take one of them, `nearest` the nearer
        one, `midpoint` their mean, `linear` what lies proportionally between them.

        Args:
            q: a number in [0, 1], or a tensor of them with one axis, which comes first in the result.
            dim: None for all elements.

        Raises:
            ArgumentError: a number outside [0, 1], or another interpolation.
            ShapeError: `q` has more than one axis, or there are no elements.

        >>> Tensor([1.0, 2.0, 3.0, 5.0]).quantile(0.5).item()
        2.5
        """
        return self._quantile(q, dim, keepdim, interpolation, False, "quantile")

    def nanquantile(self, q: Any, dim: int | None = None, keepdim: bool = False, interpolation: str = "linear") -> Self:
        """The quantiles of what is not NaN; NaN where nothing else is there. See `quantile`.

        >>> Tensor([1.0, float("nan"), 3.0]).nanquantile(0.5).item()
        2.0
        """
        return self._quantile(q, dim, keepdim, interpolation, True, "nanquantile")

    def _quantile(self, q: Any, dim: int | None, keepdim: bool, interpolation: str, skip_nan: bool, what: str) -> Self:
        if interpolation not in INTERPOLATIONS:
            raise ArgumentError(f"{what}: interpolation {interpolation!r} is none of {', '.join(INTERPOLATIONS)}")
        x = self.same_float(what)
        axis = 0 if dim is None else axis_number(dim, x.ndim, what)
        rows = x.flatten() if dim is None or x.ndim == 0 else x.transpose(axis, -1)
        size = rows.shape[-1]
        if size == 0:
            raise ShapeError(f"{what}: shape {x.shape} has no elements on axis {dim}; there is no quantile of nothing")
        fractions = rows._fractions(q, what)
        several = fractions.ndim == 1
        ordered = rows.sort(-1)[0]
        valid = rows.eq(rows).cast(dtypes.int32).sum(-1, True, dtypes.int32)
        last = valid.add(-1).maximum(0) if skip_nan else valid.constant_like(size - 1)
        rank = last.cast(fractions.dtype).mul(fractions)
        if not skip_nan:
            rank = valid.lt(size).where(float(size - 1), rank)
        found = ordered._between(rank, interpolation).cast(x.dtype)
        # The axis of the fractions is the last one now; it becomes the first, and the reduced axis has size 1.
        end = x.ndim - 1
        if dim is None or x.ndim == 0:
            kept = found.reshape((-1, *(1,) * x.ndim)) if keepdim else found.reshape(-1)
        else:
            order = [end + 1 if a == axis else axis if a == end else a for a in range(x.ndim)]
            kept = found.unsqueeze(-1).permute([end, *order])
            kept = kept if keepdim else kept.squeeze(axis + 1)
        return kept if several else kept.squeeze(0)

    def _fractions(self, q: Any, what: str) -> Self:
        """The numbers in [0, 1] of a quantile, in the type that places are computed in."""
        wide = accumulator(self.dtype)
        if not isinstance(q, QuantilesMixin):
            value = number(q, what, "q")
            if not 0 <= value <= 1:
                raise ArgumentError(f"{what}: q must lie in [0, 1], got {value}")
            return self.constant_like(value, (), wide)
        if q.ndim > 1:
            raise ShapeError(f"{what}: q of shape {q.shape} must be a number or have one axis")
        given: Any = q
        fractions: Self = given.cast(wide)
        # What is not known now cannot be refused: outside [0, 1] there is no quantile.
        return fractions.lt(0.0).bitwise_or(fractions.gt(1.0)).where(math.nan, fractions)

    def _between(self, rank: Self, interpolation: str) -> Self:
        """What lies at fractional places of the last axis."""
        wide = self.cast(rank.dtype)
        last = self.ndim - 1
        nowhere = rank.isnan()
        rank = nowhere.where(0.0, rank)
        rank = rank.expand(*self.shape[:-1], rank.shape[-1])
        if interpolation == "lower":
            rank = rank.floor()
        elif interpolation == "higher":
            rank = rank.ceil()
        elif interpolation == "nearest":
            rank = rank.round()
        floor = rank.floor()
        kind = dtypes.int32 if self.shape[last] <= dtypes.int32.max else dtypes.int64
        low = wide.gather(last, floor.cast(kind))
        if interpolation in ("linear", "midpoint"):
            high = wide.gather(last, rank.ceil().cast(kind))
            weight = rank.sub(floor) if interpolation == "linear" else rank.constant_like(0.5)
            low = low.lerp(high, weight)
        return nowhere.where(math.nan, low)

    def mode(self, dim: int = -1, keepdim: bool = False) -> tuple[Self, Self]:
        """The most frequent values along `dim`, the smallest of several, and the last place of each.

        Raises:
            IndexingError: no such axis.
            ShapeError: there are no elements along `dim`.

        >>> [t.item() for t in Tensor([3, 1, 1, 3, 2]).mode()]
        [1, 2]
        """
        axis = axis_number(dim, self.ndim, "mode")
        if self.ndim == 0:
            return self.sort()
        size = self.shape[axis]
        if size == 0:
            raise ShapeError(f"mode: shape {self.shape} has no elements on axis {axis}; nothing is most frequent")
        ordered, order = self.detach().sort(axis)
        begins = ordered._differs_from_before(axis)
        place = ordered.positions_along(axis).expand(ordered.shape)
        length = place.sub(begins.where(place, 0).running(Op.MAX, axis))
        # The end of the first longest run of equal values.
        places = order.gather(axis, length.argmax(axis, True))
        values, places = self._picked(axis, places)
        return _kept(values, places, axis, keepdim)

    def _differs_from_before(self, axis: int) -> Self:
        """Along an axis in order, where a value differs from the one before; so does the first."""
        size = self.shape[axis]
        first = self._box(axis, 0, 1).constant_like(True, dtype=dtypes.bool)
        return first.cat(self._box(axis, 1, size).ne(self._box(axis, 0, size - 1)), dim=axis) if size > 1 else first


def _kept(values: Any, places: Any, axis: int, keepdim: bool) -> tuple[Any, Any]:
    """Both without their axis of size 1 unless it is kept."""
    return (values, places) if keepdim else (values.squeeze(axis), places.squeeze(axis))
