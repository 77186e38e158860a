"""Composed mixin: counting: histograms, bins, totals of segments, hashes."""

from __future__ import annotations

import math
from collections.abc import Sequence
from math import prod
from typing import Any, Final, Self

from gradlet.base.dtype import accumulator, dtypes
from gradlet.base.errors import ArgumentError, DTypeError, ShapeError
from gradlet.ops.arguments import axis_number, axis_numbers, integer, number
from gradlet.ops.movement import operand
from gradlet.ops.op import Op, identity_element
from gradlet.ops.reduce import Axis
from gradlet.ops.selection import SelectionMixin

SEGMENT_OPS: Final = {"sum": Op.ADD, "mean": Op.ADD, "prod": Op.MUL, "max": Op.MAX, "min": Op.MIN}
# So many parts of a row meet in one pass over it.
FOLDED_AT_ONCE: Final = 16


class CountingMixin(SelectionMixin):
    """Counting, by adding into bins one element after another."""

    __slots__ = ()

    def bincount(self, weights: Self | None = None, minlength: int = 0, size: int | None = None) -> Self:
        """How often each number 0, 1, ... occurs: `result[n] = sum of weights where self == n`.

        Args:
            weights: what each element counts, else 1 (and the result is int64). Integer weights count as float64.
            minlength: the least number of bins.
            size: exactly so many bins; numbers outside are left out. Without it the largest number is computed now.

        Raises:
            DTypeError: not integers.
            ShapeError: not one axis, or weights of another shape.
            ArgumentError: a negative number, where `size` is not given.
            JitError: inside a jitted function, without `size`.

        >>> Tensor([0, 2, 2]).bincount(minlength=4).tolist()
        [1, 0, 2, 0]
        """
        if not self.dtype.is_int:
            raise DTypeError(f"bincount: needs integers, got {self.dtype}; cast it, or use histc")
        if self.ndim != 1:
            raise ShapeError(f"bincount: shape {self.shape} must have one axis; flatten it")
        minlength = integer(minlength, "bincount", "minlength", 0)
        numbers: Self = self
        if size is not None:
            bins = integer(size, "bincount", "size", 0)
        elif 0 in self.shape:
            bins = minlength
        else:
            numbers = self.computed_now("bincount", "give the number of bins: size=...")
            low, high = [int(v) for v in numbers.min().stack(numbers.max()).tolist()]
            if low < 0:
                raise ArgumentError(f"bincount: the number {low} is negative; there is no bin for it")
            bins = max(high + 1, minlength)
        if weights is None:
            counted = numbers.constant_like(1, dtype=dtypes.int64)
        else:
            if operand(weights, "bincount", "weights").shape != self.shape:
                raise ShapeError(f"bincount: weights of shape {weights.shape} must have the shape {self.shape} of this")
            counted = weights if weights.dtype.is_float else weights.cast(dtypes.float64)
        return counted._added_into(numbers, bins)

    def tolist(self) -> Any:
        """The values as nested lists, or one number for a tensor without axes."""
        raise NotImplementedError

    def _added_into(self, numbers: Self, bins: int) -> Self:
        """Sums of these values by bin number; numbers outside are left out."""
        wide = accumulator(self.dtype)
        empty = self.constant_like(0, (bins,), wide)
        if bins == 0 or 0 in self.shape:
            return empty.cast(self.dtype)
        return empty.scatter_rows(numbers, self.cast(wide), Op.ADD).cast(self.dtype)

    def histc(self, bins: int = 100, min: float = 0, max: float = 0) -> Self:
        """How many elements lie in each of `bins` equal intervals of [min, max], as floats.

        An element is in bin `floor((x - min) / (max - min) * bins)`, the last bin has its end too. Elements outside
        and NaN are left out.

        Args:
            min, max: where both are equal, the least and the largest element; are these equal, one less and one more.

        Raises:
            ArgumentError: no bins, or ends in the wrong order.

        >>> Tensor([1.0, 2.0, 1.0]).histc(4, 0, 3).tolist()
        [0.0, 2.0, 1.0, 0.0]
        """
        bins = integer(bins, "histc", "bins", 1)
        low_end, high_end = number(min, "histc", "min"), number(max, "histc", "max")
        if low_end > high_end or not math.isfinite(low_end) or not math.isfinite(high_end):
            raise ArgumentError(f"histc: min {low_end} and max {high_end} must be finite, and in this order")
        x = self.same_float("histc").flatten()
        own, x = x.dtype, x.cast(accumulator(x.dtype))
        if 0 in x.shape:
            return x.constant_like(0, (bins,), own)
        if low_end == high_end and low_end != 0:
            low, high = x.constant_like(low_end - 1, ()), x.constant_like(low_end + 1, ())
        elif low_end == high_end:
            low, high = x.min(), x.max()
            single = low.eq(high)
            low, high = single.where(low.add(-1.0), low), single.where(high.add(1.0), high)
        else:
            low, high = x.constant_like(low_end, ()), x.constant_like(high_end, ())
        place = x.sub(low).mul(bins).fdiv(high.sub(low)).floor().minimum(bins - 1)
        inside = x.lt(low).bitwise_or(high.lt(x)).bitwise_or(x.isnan()).logical_not()
        place = inside.where(place, -1.0).cast(dtypes.int32)
        return x.constant_like(1.0)._added_into(place, bins).cast(own)

    def histogram(
        self, bins: Any, range: Sequence[float] | None = None, weight: Self | None = None, density: bool = False
    ) -> tuple[Self, Self]:
        """Totals of bins and their edges. A bin has its left edge, the last one its right edge too.

        Args:
            bins: how many equal bins, or a tensor of their edges in ascending order.
            range: the outer edges of equal bins, else the least and the largest element (are these equal, half less
                and half more).
            weight: what each element counts, else 1.
            density: divide by the total and by the width of the bin, so that the integral is 1.

        Raises:
            ArgumentError: no bins, or a range that is none.
            ShapeError: edges without or with several axes, or a weight of another shape.

        >>> [t.tolist() for t in Tensor([1.0, 2.0, 4.0]).histogram(3, range=(0.0, 6.0))]
        [[1.0, 1.0, 1.0], [0.0, 2.0, 4.0, 6.0]]
        """
        if weight is not None and operand(weight, "histogram", "weight").shape != self.shape:
            raise ShapeError(f"histogram: weight of shape {weight.shape} must have the shape {self.shape} of this")
        points = self.same_float("histogram").flatten().unsqueeze(1)
        weights = None if weight is None else weight.flatten()
        total, edges = points._histogram([bins], range, weights, density, "histogram")
        return total, edges[0]

    def histogramdd(
        self, bins: Any, range: Sequence[float] | None = None, weight: Self | None = None, density: bool = False
    ) -> tuple[Self, tuple[Self, ...]]:
        """Totals of boxes in several dimensions, and the edges in each: see `histogram`.

        Args:
            bins: how many, for every dimension or each; or a tensor of edges each. The last axis of this has the
                coordinates of a point.
            range: the outer edges of equal bins, two numbers a dimension.
            weight: what each point counts, shaped like this without its last axis.

        Raises:
            ArgumentError: bins or a range that do not fit the number of dimensions.
            ShapeError: a tensor without axes, or a weight of another shape.

        >>> Tensor([[0.0, 1.0], [1.0, 0.0], [1.0, 1.0]]).histogramdd(2)[0].tolist()
        [[0.0, 1.0], [1.0, 1.0]]
        """
        if self.ndim == 0:
            raise ShapeError("histogramdd: a tensor without axes has no points; its last axis has their coordinates")
        dimensions = self.shape[-1]
        if weight is not None and operand(weight, "histogramdd", "weight").shape != self.shape[:-1]:
            raise ShapeError(f"histogramdd: weight of shape {weight.shape} must have shape {self.shape[:-1]}")
        listed = list(bins) if isinstance(bins, (tuple, list)) else [bins] * dimensions
        if len(listed) != dimensions:
            raise ArgumentError(f"histogramdd: {len(listed)} bins for points of {dimensions} dimensions")
        points = self.same_float("histogramdd").reshape(prod(self.shape[:-1]), dimensions)
        weights = None if weight is None else weight.flatten()
        total, edges = points._histogram(listed, range, weights, density, "histogramdd")
        return total, tuple(edges)

    def _histogram(
        self, bins: list[Any], ends: Sequence[float] | None, weight: Self | None, density: bool, what: str
    ) -> tuple[Self, list[Self]]:
        """Totals and edges for points [count, dimensions]."""
        if ends is not None and (not isinstance(ends, (tuple, list)) or len(ends) != 2 * len(bins)):
            raise ArgumentError(f"{what}: range needs {2 * len(bins)} numbers, got {ends!r}")
        edges: list[Self] = []
        place: Self | None = None
        inside: Self | None = None
        for dimension, asked in enumerate(bins):
            x = self._box(1, dimension, dimension + 1).squeeze(1)
            pair = None if ends is None else ends[2 * dimension : 2 * dimension + 2]
            edge = x._bin_edges(asked, pair, what)
            edges.append(edge)
            count = edge.shape[0] - 1
            first, last = edge._box(0, 0, 1), edge._box(0, count, count + 1)
            found = edge._bisect(x, True).add(-1) if isinstance(asked, CountingMixin) else edge._equal_bin(x)
            found = x.eq(last).where(count - 1, found)
            within = (first <= x).bitwise_and(x <= last)
            inside = within if inside is None else inside.bitwise_and(within)
            place = found if place is None else place.mul(count).add(found)
        assert place is not None and inside is not None
        shape = tuple([edge.shape[0] - 1 for edge in edges])
        counted = self.constant_like(1.0, place.shape) if weight is None else weight.cast(self.dtype)
        total = counted._added_into(inside.where(place, -1), prod(shape)).reshape(shape)
        if density:
            total = total.fdiv(total.sum())
            for dimension, edge in enumerate(edges):
                width = edge.diff().reshape([-1 if a == dimension else 1 for a, _ in enumerate(shape)])
                total = total.fdiv(width)
        return total, edges

    def _equal_bin(self, values: Self) -> Self:
        """The bins of values between these equally distant edges: a division, and a look at the edges beside."""
        count = self.shape[0] - 1
        first, last = self._box(0, 0, 1), self._box(0, count, count + 1)
        guess = values.sub(first).mul(count).fdiv(last.sub(first)).clamp(0, count - 1).cast(dtypes.int32)
        below = values.lt(self.gather_rows(guess)).cast(dtypes.int32)
        reached = values.lt(self.gather_rows(guess.add(1))).logical_not().cast(dtypes.int32)
        return guess.sub(below).add(reached)

    def _bin_edges(self, bins: Any, ends: Sequence[float] | None, what: str) -> Self:
        """Edges that are given, or those of equal bins between two numbers or the extremes of these values."""
        if isinstance(bins, CountingMixin):
            given: Any = bins
            if given.ndim != 1 or given.shape[0] < 2:
                raise ShapeError(f"{what}: edges of shape {given.shape} must have one axis of at least 2")
            edges: Self = given.cast(self.dtype)
            return edges
        count = integer(bins, what, "bins", 1)
        if ends is not None:
            first, last = [number(end, what, "range") for end in ends]
            if not (math.isfinite(first) and math.isfinite(last) and first <= last):
                raise ArgumentError(f"{what}: range {tuple(ends)} must be two finite numbers in order")
            if first == last:
                first, last = first - 0.5, last + 0.5
            low, high = self.constant_like(first, ()), self.constant_like(last, ())
        elif 0 in self.shape:
            low, high = self.constant_like(0.0, ()), self.constant_like(1.0, ())
        else:
            low, high = self.min(), self.max()
            single = low.eq(high)
            low, high = single.where(low.sub(0.5), low), single.where(high.add(0.5), high)
        step = high.sub(low).fdiv(count)
        place = self.positions(count + 1, self.place)
        upward = low.add(place.cast(self.dtype).mul(step))
        downward = high.sub(place.mul(-1).add(count).cast(self.dtype).mul(step))
        return place.lt((count + 1) // 2).where(upward, downward)

    def segment_reduce(
        self, reduce: str, lengths: Self | None = None, offsets: Self | None = None, axis: int = 0,
        initial: float | None = None,
    ) -> Self:  # fmt: skip
        """Totals of consecutive segments along an axis.

        Args:
            reduce: "sum", "mean", "prod", "max" or "min".
            lengths: how long each segment is, along the last axis; the axes before are those of this before `axis`.
            offsets: where each segment begins, and in the end where the last one ends, instead of the lengths.
            initial: what every total begins with; else nothing: a segment without elements has 0, NaN, 1, -inf or inf.

        Raises:
            ArgumentError: another `reduce`, or not one of lengths and offsets.
            ShapeError: lengths or offsets that do not fit.

        >>> Tensor([1.0, 2.0, 3.0]).segment_reduce("sum", lengths=Tensor([2, 1])).tolist()
        [3.0, 3.0]
        """
        what = "segment_reduce"
        if not isinstance(reduce, str) or reduce not in SEGMENT_OPS:
            raise ArgumentError(f"{what}: reduce {reduce!r} is none of {', '.join(SEGMENT_OPS)}")
        if (lengths is None) == (offsets is None):
            raise ArgumentError(f"{what}: give lengths or offsets, one of them")
        x = self.same_float(what)
        along = axis_number(axis, x.ndim, what)
        if lengths is not None:
            ends = operand(lengths, what, "lengths").cumsum(-1)
            begins = ends.sub(lengths)
        else:
            assert offsets is not None
            places = operand(offsets, what, "offsets")
            ends, begins = places._box(along, 1, places.shape[-1]), places._box(along, 0, places.shape[-1] - 1)
        if ends.ndim != along + 1 or ends.shape[:-1] != x.shape[:along]:
            raise ShapeError(
                f"{what}: segments of shape {ends.shape} must have the axes of shape {x.shape} before {along}"
            )
        segments = ends.shape[-1]
        op, wide = SEGMENT_OPS[reduce], accumulator(x.dtype)
        neutral = identity_element(op, wide) if op is not Op.MAX and op is not Op.MIN else _worst(op)
        start = neutral if initial is None else number(initial, what, "initial")
        shape = (*x.shape[:along], segments, *x.shape[along + 1 :])
        total = x.constant_like(start, shape, wide)
        count = ends.sub(begins)
        if 0 not in x.shape and segments:
            place = x.positions(x.shape[along], x.place).cast(ends.dtype).expand(*x.shape[: along + 1])
            inside = place.lt(begins._box(along, 0, 1)).logical_not()
            number_of = inside.where(ends._bisect(place, True), -1)
            total = total.scatter_rows(number_of, x.cast(wide), op, along)
        if reduce == "mean":
            divisor = count.reshape(*count.shape, *(1,) * (x.ndim - along - 1)).cast(wide)
            # Nothing at all is NaN; what a total begins with is no element, and stands alone where there is none.
            total = total.fdiv(divisor if initial is None else divisor.maximum(1.0))
        return total.cast(x.dtype)

    def hash_tensor(self, dim: Axis = None, keepdim: bool = False) -> Self:
        """A hash of the elements over `dim` (uint64): the exclusive or of their bits as float64 or int64.

        The order of the elements does not matter, and what occurs twice cancels out.

        Raises:
            IndexingError: no such axis.

        >>> Tensor([1, 2, 4]).hash_tensor().item()
        7
        """
        axes = axis_numbers(dim, self.ndim, "hash_tensor")
        wide = self.cast(dtypes.float64 if self.dtype.is_float else dtypes.int64)
        words = wide.bitcast(dtypes.uint64) if wide.dtype is not dtypes.uint64 else wide
        kept = [1 if a in axes else size for a, size in enumerate(self.shape)]
        rest = [size for a, size in enumerate(self.shape) if a not in axes]
        if 0 in self.shape:
            return words.constant_like(0, tuple(kept if keepdim else rest))
        folded = words.permute([*[a for a in range(self.ndim) if a not in axes], *axes]).reshape(*rest, -1)
        last = len(rest)
        while folded.shape[last] > 1:
            size = folded.shape[last]
            parts = min(FOLDED_AT_ONCE, size)
            length = -(-size // parts)
            folded = folded._with_zeros(parts * length - size)
            total = folded._box(last, 0, length)
            for part in range(1, parts):
                total = total.bitwise_xor(folded._box(last, part * length, (part + 1) * length))
            # In memory: a fold of folds as one expression would be as long as the row.
            folded = total.contiguous() if length > 1 else total
        return folded.reshape(kept if keepdim else rest)


def _worst(op: Op) -> float:
    """The largest of nothing, and the least."""
    return -math.inf if op is Op.MAX else math.inf
