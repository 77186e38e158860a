"""Composed mixin: sorting and selecting along an axis, by merging rows and by maxima of unique integer keys."""

from __future__ import annotations

from typing import Any, Final, Self

from gradlet.base.dtype import dtypes
from gradlet.base.errors import ArgumentError
from gradlet.ops import varying
from gradlet.ops.arguments import axis_number, has_size, integer
from gradlet.ops.coordinates import CoordinatesMixin
from gradlet.ops.reduce import position_type

# Up to so many values are found one after another, each as a maximum; more by merging.
MOST_BY_MAXIMA: Final = 32
# A shorter row is searched as a whole, a longer one by groups of elements.
GROUPED: Final = 256
# Groups pay when they leave one element in so many to put in order.
LEFT_OVER: Final = 2
# So many elements are put in order at once, then rows are merged in pairs.
AT_ONCE: Final = 16
# Rows to merge are made a multiple of a power of two at once until about so many are left.
FEW_ROWS: Final = 16


class OrderMixin(CoordinatesMixin):
    """Order. The hooks `merge_pairs` and `largest` come from the user of this.

    A key is a 64-bit integer: an element's rank among all values of its type, and below that its distance from the end
    of the row. So keys are unique, equal values keep their order, and the key alone says where its element is.
    """

    __slots__ = ()

    def merge_pairs(self, half: bool = False) -> Self:
        """Pairs of rows in descending order, axes [..., 2, n], as one row each; `half` keeps the n largest.

        Up to 16 rows of one element are put in order at once.
        """
        raise NotImplementedError

    def largest(self, count: int) -> Self:
        """The largest distinct integers along the last axis, descending; the type's largest is not among them."""
        raise NotImplementedError

    def bitcast(self, dtype: Any) -> Self:
        """The same bits read as another type of the same size."""
        raise NotImplementedError

    def detach(self) -> Self:
        """The same values without gradient."""
        raise NotImplementedError

    def sort(self, dim: int = -1, descending: bool = False, stable: bool = True) -> tuple[Self, Self]:
        """Values in order along `dim` and their places. Equal values keep their order; NaN counts as largest.

        Args:
            stable: every sort is; accepted so that it can be said.

        Raises:
            IndexingError: no such axis.

        >>> [t.tolist() for t in Tensor([3, 1, 2]).sort()]
        [[1, 2, 3], [1, 2, 0]]
        """
        axis = axis_number(dim, self.ndim, "sort")
        if self.ndim == 0:
            return self.as_value(), self.constant_like(0, dtype=position_type(1))
        size = self.shape[axis]
        if has_size([size]):
            values, places = varying.filled(self, axis, not descending).sort(axis, descending)
            return varying.limited(values, axis, size), varying.limited(places, axis, size)
        return self._picked(axis, self._places(axis, descending, None))

    def argsort(self, dim: int = -1, descending: bool = False, stable: bool = True) -> Self:
        """Places that put `dim` in order; see `sort`.

        Raises:
            IndexingError: no such axis.

        >>> Tensor([3, 1, 2]).argsort().tolist()
        [1, 2, 0]
        """
        return self.sort(dim, descending, stable)[1]

    def msort(self) -> Self:
        """Values in order along the first axis; see `sort`.

        >>> Tensor([[3, 1], [2, 4]]).msort().tolist()
        [[2, 1], [3, 4]]
        """
        return self.sort(0)[0]

    def topk(self, k: int, dim: int = -1, largest: bool = True, sorted_: bool = True) -> tuple[Self, Self]:
        """The `k` largest (or smallest) values along `dim` in order, and their places.

        Raises:
            ArgumentError: fewer than `k` elements.

        >>> [t.tolist() for t in Tensor([3, 1, 2]).topk(2)]
        [[3, 2], [0, 2]]
        """
        axis = axis_number(dim, self.ndim, "topk")
        size = self.shape[axis] if self.ndim else 1
        k = integer(k, "topk", "k")
        if not 0 <= k <= size:
            raise ArgumentError(f"topk: k is {k}, but axis {axis} has {size} elements")
        if not self.ndim:
            return self.sort()
        if has_size([size]):
            return varying.filled(self, axis, not largest).topk(k, axis, largest)  # type: ignore[no-any-return]
        return self._picked(axis, self._places(axis, largest, k))

    def _picked(self, axis: int, places: Self) -> tuple[Self, Self]:
        kind = position_type(self.shape[axis])
        if 0 in places.shape:
            return self._box(axis, 0, places.shape[axis]), places.cast(kind)
        return self.gather(axis, places), places.cast(kind)

    def _places(self, axis: int, descending: bool, count: int | None) -> Self:
        """Where the first `count` (or all) elements in order are."""
        size = self.shape[axis]
        if size <= 1 or count == 0 or 0 in self.shape:
            return self._box(axis, 0, size if count is None else count).constant_like(0, dtype=dtypes.int32)
        values = self.detach().transpose(axis, -1)
        last = values.ndim - 1
        few = count is not None and (count <= MOST_BY_MAXIMA or group_width(size, count) > 1) and 4 * count <= size
        if self.dtype.itemsize < 8 and few:
            assert count is not None
            return values._by_groups(descending, count)._place_of(size).transpose(axis, -1)
        ranks = values._ranks(descending)
        if ranks.dtype is dtypes.uint32:
            return ranks._keys()._merged(count or size)._place_of(size).transpose(axis, -1)
        # The low words first; then the high words, equal ones in the order so far.
        low = ranks.cast(dtypes.uint32)._keys()._merged(size)._place_of(size)
        high = ranks.rshift(32).cast(dtypes.uint32).gather(last, low)
        return low.gather(last, high._keys()._merged(count or size)._place_of(size)).transpose(axis, -1)

    def _ranks(self, descending: bool) -> Self:
        """Unsigned integers, larger for what comes earlier; of 32 bits where these tell all values apart."""
        dtype = self.dtype
        wide = dtype.itemsize == 8
        bits, signed, unsigned = (64, dtypes.int64, dtypes.uint64) if wide else (32, dtypes.int32, dtypes.uint32)
        lowest = -1 << (bits - 1)
        if dtype.is_float:
            number = self if wide else self.cast(dtypes.float32)
            raw = number.eq(0.0).where(0, number.bitcast(signed))
            # Negative numbers have all bits flipped, others the sign: then unsigned order is that of the values.
            ranks = raw.rshift(bits - 1).bitwise_or(lowest).bitwise_xor(raw).bitcast(unsigned)
            ranks = number.isnan().where((1 << bits) - 1, ranks)
        elif dtype.is_unsigned or dtype.is_bool:
            ranks = self.cast(unsigned)
        else:
            ranks = self.cast(signed).bitwise_xor(lowest).bitcast(unsigned)
        return ranks if descending else ranks.bitwise_xor((1 << bits) - 1)

    def _keys(self, distance: Self | None = None) -> Self:
        """32-bit ranks with their distance from the end of the row below them."""
        if distance is None:
            last = self.ndim - 1
            distance = self.positions_along(last).flip(last).expand(self.shape)
        return self.cast(dtypes.uint64).lshift(32).bitwise_or(distance.cast(dtypes.uint64))

    def _place_of(self, size: int) -> Self:
        """Where in a row of `size` the elements with these keys are."""
        kind = dtypes.int32 if size <= dtypes.int32.max else dtypes.int64
        return self.bitwise_and((1 << 32) - 1).cast(kind).mul(-1).add(size - 1)

    def _merged(self, count: int) -> Self:
        """The `count` largest keys in order: short rows, merged in pairs until one row is left."""
        lead, size = self.shape[:-1], self.shape[-1]
        at_once = min(AT_ONCE, 1 << (size - 1).bit_length())
        multiple = at_once
        while multiple * FEW_ROWS < size:
            multiple *= 2
        padded = self._with_zeros(-size % multiple)
        rows = padded.reshape(*lead, padded.shape[-1] // at_once, at_once, 1).merge_pairs()
        while rows.shape[-2] > 1:
            rows = rows.transpose(-1, -2)._with_zeros(rows.shape[-2] % 2).transpose(-1, -2)
            length = rows.shape[-1]
            rows = rows.reshape(*lead, rows.shape[-2] // 2, 2, length).merge_pairs(half=length >= count)
        return rows.reshape(*lead, rows.shape[-1])._box(self.ndim - 1, 0, count)

    def _with_zeros(self, more: int) -> Self:
        """`more` zeros, which come after all keys, at the end of the last axis."""
        return self.pad_zeros([(0, 0)] * (self.ndim - 1) + [(0, more)]) if more else self

    def _by_groups(self, descending: bool, count: int) -> Self:
        """The first keys of these values in order.

        In a long row they are in the groups with the largest maxima, so only these groups are searched: of two equal
        maxima the one of the earlier group counts, as its elements come earlier too.
        """
        lead, size = self.shape[:-1], self.shape[-1]
        ranks = self._ranks(descending)
        width = group_width(size, count)
        if width == 1:
            return ranks._keys()._first(count)
        maxima = ranks._with_zeros(-size % width)
        maxima = maxima.reshape(*lead, maxima.shape[-1] // width, width).max(-1)
        groups = maxima._keys()._first(count)._place_of(maxima.shape[-1]).unsqueeze(-1)
        places = groups.mul(width).add(self.positions(width, self.place)).reshape(*lead, count * width)
        found = self.gather_rows(places, self.ndim - 1)._ranks(descending)._keys(places.mul(-1).add(size - 1))
        if size % width:
            found = places.lt(size).where(found, 0)
        return found._first(count)

    def _first(self, count: int) -> Self:
        """The `count` largest of these keys in order."""
        return self.largest(count) if count <= MOST_BY_MAXIMA else self._merged(count)


def group_width(size: int, count: int) -> int:
    """Elements of a group, so that about as many groups as elements of chosen groups are left to search; 1: no groups.

    They must be few beside the elements of the row, for looking for maxima costs a pass of its own.
    """
    width = 1 << (max(1, size // count).bit_length() // 2)
    left = -(-size // width) + count * width
    return width if size >= GROUPED and LEFT_OVER * left <= size else 1
