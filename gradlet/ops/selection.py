"""Composed mixin: searching in order, selecting by a mask, and sets: distinct values, membership."""

from __future__ import annotations

from math import prod
from typing import Any, Final, Self

from gradlet.base.dtype import dtypes
from gradlet.base.errors import ArgumentError, ShapeError
from gradlet.ops.arguments import axis_number, broadcast_shapes, integer, integers
from gradlet.ops.movement import operand
from gradlet.ops.op import Op
from gradlet.ops.quantiles import QuantilesMixin
from gradlet.ops.reduce import position_type

# Membership in so few values is tested one by one; in more by binary search.
FEW_VALUES: Final = 16
COMPUTE_OUTSIDE: Final = "its size depends on data: compute it outside and pass it in"
GIVE_SIZE: Final = "give the number of elements: size=..."


class SelectionMixin(QuantilesMixin):
    """Selection. Results whose size depends on data compute what they need now, unless `size` is given.

    The hook `computed_now` comes from the user of this.
    """

    __slots__ = ()

    def contiguous(self) -> Self:
        """The value in memory of its own, in row-major order, once it is computed."""
        raise NotImplementedError

    def computed_now(self, what: str, remedy: str, *others: Self) -> Self:
        """This, and others with it, in memory, computed now.

        Raises:
            JitError: inside a jitted function, with the remedy.
        """
        raise NotImplementedError

    # order
    def searchsorted(
        self, values: Any, out_int32: bool = False, right: bool = False, side: str | None = None,
        sorter: Self | None = None,
    ) -> Self:  # fmt: skip
        """Where `values` would go into this, which is in ascending order along its last axis.

        `result` is the number of elements less than the value (with `right`: not greater).

        Args:
            values: a tensor of any shape for one axis; else it has the leading axes of this. A number is one value.
            out_int32: int32 instead of the default integer.
            right: behind equal elements instead of before them.
            side: "left" or "right", the same said in words.
            sorter: places that put this in order, if it is not.

        Raises:
            ShapeError: shapes that do not fit.
            ArgumentError: another side, or one that contradicts `right`.

        >>> Tensor([1, 3, 5]).searchsorted(Tensor([0, 3, 9])).tolist()
        [0, 1, 3]
        """
        what = "searchsorted"
        if side not in (None, "left", "right"):
            raise ArgumentError(f"{what}: side {side!r} is not 'left' or 'right'")
        if side == "left" and right:
            raise ArgumentError(f"{what}: side 'left' contradicts right=True; give one of them")
        if self.ndim == 0:
            raise ShapeError(f"{what}: a tensor without axes is no sequence to search; give it one axis")
        ordered = self
        if sorter is not None:
            if operand(sorter, what, "sorter").shape != self.shape:
                raise ShapeError(f"{what}: sorter of shape {sorter.shape} must have the shape {self.shape} of this")
            ordered = self.gather(self.ndim - 1, sorter) if 0 not in self.shape else self
        wanted = self.coerce(values)
        if self.ndim > 1 and wanted.shape[:-1] != self.shape[:-1]:
            raise ShapeError(
                f"{what}: values of shape {wanted.shape} must have the leading axes {self.shape[:-1]} of the sequences"
            )
        found = ordered._bisect(wanted, right or side == "right")
        return found.cast(dtypes.int32 if out_int32 else position_type(self.shape[-1]))

    def _bisect(self, values: Self, right: bool) -> Self:
        """How many elements of the last axis, in order, come before each value: one binary search for all."""
        batch = self.ndim - 1
        size = self.shape[-1]
        kind = dtypes.int32 if size <= dtypes.int32.max else dtypes.int64
        low = values.constant_like(0, dtype=kind)
        if 0 in values.shape or size == 0:
            return low
        # The result lies between low and high, which halves come together.
        high = values.constant_like(size, dtype=kind)
        for _ in range(size.bit_length()):
            middle = low.add(high).rshift(1)
            element = self.gather_rows(middle, batch)
            # Written so that the search for NaN, with which comparisons are false, ends behind everything.
            ends = values.lt(element) if right else element.lt(values).logical_not()
            if not right and values.dtype.is_float:
                ends = ends.bitwise_and(values.eq(values))
            later = low.lt(high).bitwise_and(ends.logical_not())
            low, high = later.where(middle.add(1), low), later.where(high, middle)
        return low

    def bucketize(self, boundaries: Self, out_int32: bool = False, right: bool = False) -> Self:
        """The number of the interval that each element lies in: `boundaries[i - 1] < x <= boundaries[i]`.

        With `right` it is `boundaries[i - 1] <= x < boundaries[i]`.

        Args:
            boundaries: one axis, in ascending order.
            out_int32: int32 instead of the default integer.

        Raises:
            ShapeError: boundaries without or with several axes.

        >>> Tensor([0, 3, 9]).bucketize(Tensor([1, 3, 5])).tolist()
        [0, 1, 3]
        """
        if operand(boundaries, "bucketize", "boundaries").ndim != 1:
            raise ShapeError(f"bucketize: boundaries of shape {boundaries.shape} must have one axis")
        return boundaries.searchsorted(self, out_int32, right)

    def isin(self, test_elements: Any, assume_unique: bool = False, invert: bool = False) -> Self:
        """Whether each element equals some element of `test_elements`. NaN equals nothing.

        Args:
            test_elements: a number or a tensor of any shape.
            assume_unique: accepted; nothing is saved by it.
            invert: whether it does not.

        >>> Tensor([1, 2, 3]).isin(Tensor([3, 1])).tolist()
        [True, False, True]
        """
        x, values = self.same_dtype((self.coerce(test_elements),))
        values = values.flatten()
        count = values.shape[0]
        if count == 0 or 0 in x.shape:
            found = x.constant_like(False, dtype=dtypes.bool)
        elif count <= FEW_VALUES:
            found = x.unsqueeze(-1).eq(values).any(-1)
        else:
            ordered = values.sort()[0]
            place = ordered._bisect(x, False)
            found = place.lt(count).bitwise_and(ordered.gather_rows(place).eq(x))
        return found.logical_not() if invert else found

    # by a mask
    def masked_select(self, mask: Any, size: int | None = None, fill_value: Any = 0) -> Self:
        """The elements where the mask is True, in row-major order, as one axis; the two broadcast.

        Args:
            mask: bool (or what is not zero).
            size: how many elements the result has: what is more is left out, what is missing is `fill_value`. Without
                it the mask is computed now.

        Raises:
            ShapeError: shapes that do not broadcast.
            JitError: inside a jitted function, without `size`.

        >>> x, mask = Tensor([1, 2, 3]), Tensor([True, False, True])
        >>> x.masked_select(mask).tolist(), x.masked_select(mask, size=3).tolist()
        ([1, 3], [1, 3, 0])
        """
        chosen = self.from_data(mask) if isinstance(mask, list) else self.coerce(mask)
        shape = broadcast_shapes((self.shape, chosen.shape), "masked_select")
        places, found = chosen.ne(0).expand(shape)._places_of_true(size, "masked_select")
        picked = self.expand(shape).flatten()._rows_at(places)
        if found is None:
            return picked
        fill = self.coerce(fill_value).cast(self.dtype)
        return picked.positions_along(0).lt(found).where(picked, fill) if 0 not in picked.shape else picked

    def nonzero(self, size: int | None = None, fill_value: int = 0, as_tuple: bool = False) -> Any:
        """The indices of the elements that are not zero, in row-major order: a row each, [count, ndim].

        Args:
            size: how many rows the result has: what is more is left out, what is missing is `fill_value`. Without it
                this is computed now.
            as_tuple: a tensor of [count] an axis instead, which can be used as an index (one axis for none).

        Raises:
            JitError: inside a jitted function, without `size`.

        >>> Tensor([[0, 1], [2, 0]]).nonzero().tolist()
        [[0, 1], [1, 0]]
        >>> Tensor([0, 3, 4]).nonzero(size=3, fill_value=-1).tolist()
        [[1], [2], [-1]]
        """
        if as_tuple and self.ndim == 0:
            return self.reshape(1).nonzero(size, fill_value, True)
        places, found = self.ne(0)._places_of_true(size, "nonzero")
        kind = position_type(max(self.shape, default=1))
        columns = []
        for axis in range(self.ndim):
            stride = prod(self.shape[axis + 1 :])
            column = places.floordiv(max(stride, 1)).mod(max(self.shape[axis], 1)).cast(kind)
            if found is not None and 0 not in column.shape:
                missing = column.constant_like(integer(fill_value, "nonzero", "fill_value"))
                column = column.positions_along(0).lt(found).where(column, missing)
            columns.append(column)
        if as_tuple:
            return tuple(columns)
        if not columns:
            return places.constant_like(0, (places.shape[0], 0), kind)
        return columns[0].stack(*columns[1:], dim=1)

    def argwhere(self) -> Self:
        """Same as `nonzero()`; of a tensor without axes as many empty rows.

        >>> Tensor([0, 7, 0, 7]).argwhere().tolist()
        [[1], [3]]
        """
        result: Self = self.nonzero()
        return result

    def _places_of_true(self, size: int | None, what: str) -> tuple[Self, Self | None]:
        """Where in the flattened mask the True elements are, and, where `size` is given, how many there are.

        Without `size` the mask is computed now, and the result has as many elements as it has.
        """
        mask = self.flatten()
        if size is not None:
            size = integer(size, what, "size", 0)
        elif 0 not in mask.shape:
            mask = mask.computed_now(what, GIVE_SIZE)
        count = mask.shape[0]
        kind = dtypes.int32 if count <= dtypes.int32.max else dtypes.int64
        if 0 in mask.shape:
            empty = mask.constant_like(0, (size or 0,), kind)
            return empty, None if size is None else mask.constant_like(0, (), kind)
        if size is None:
            found = None
            size = int(mask.cast(kind).sum(dtype=kind).item())
            if size == 0:
                return mask.constant_like(0, (0,), kind), None
            number = mask.cast(kind).running(Op.ADD, 0)
        else:
            number = mask.cast(kind).running(Op.ADD, 0)
            found = number._box(0, count - 1, count).reshape(())
            if size == 0:
                return mask.constant_like(0, (0,), kind), found
        target = mask.where(number.add(-1), size)
        return mask.constant_like(0, (size,), kind).scatter_rows(
            target, mask.positions_along(0).cast(kind), None
        ), found

    def _rows_at(self, places: Self) -> Self:
        """Rows of this by number, none where there are no numbers."""
        return self.constant_like(0, places.shape + self.shape[1:]) if 0 in places.shape else self.gather_rows(places)

    # sets
    def unique(
        self, sorted: bool = True, return_inverse: bool = False, return_counts: bool = False, dim: int | None = None
    ) -> Any:
        """The distinct elements in ascending order, or with `dim` the distinct slices along it. Computes now.

        Args:
            sorted: the result always is; accepted.
            return_inverse: also where in the result each element is.
            return_counts: also how often each occurs (int64).
            dim: None flattens.

        Returns:
            The elements, or a tuple of them and what else was asked for, in this order.

        Raises:
            JitError: inside a jitted function: the size of the result depends on data.
            ShapeError: `dim` where another axis is empty.

        >>> [t.tolist() for t in Tensor([3, 1, 3]).unique(return_inverse=True, return_counts=True)]
        [[1, 3], [1, 0, 1], [1, 2]]
        """
        if dim is not None and self.ndim:
            axis, keys = self._slice_keys(dim, "unique")
        else:
            axis, keys = None, self.flatten()
        ordered, places = keys.sort()
        if places.numel():
            ordered, places = ordered.contiguous(), places.contiguous()
            ordered.computed_now("unique", COMPUTE_OUTSIDE, places)
        groups = _Groups(ordered)
        result = self._chosen_slices(axis, places._rows_at(groups.begins))
        inverse = None
        if return_inverse:
            inverse = groups.number if 0 in places.shape else places.scatter_rows(places, groups.number, None)
            inverse = inverse.reshape(self.shape) if axis is None else inverse
        return groups.with_extras(result, inverse, return_counts)

    def unique_consecutive(
        self, return_inverse: bool = False, return_counts: bool = False, dim: int | None = None
    ) -> Any:
        """The elements (slices along `dim`) without those that equal the one before. Computes now.

        Args and results as for `unique`, in the order of the elements.

        Raises:
            JitError: inside a jitted function: the size of the result depends on data.

        >>> [t.tolist() for t in Tensor([1, 1, 2, 1]).unique_consecutive(return_counts=True)]
        [[1, 2, 1], [2, 1, 1]]
        """
        if dim is not None and self.ndim:
            axis, keys = self._slice_keys(dim, "unique_consecutive")
        else:
            axis, keys = None, self.flatten()
        if keys.numel():
            keys = keys.contiguous().computed_now("unique_consecutive", COMPUTE_OUTSIDE)
        groups = _Groups(keys)
        result = self._chosen_slices(axis, groups.begins)
        inverse = groups.number.reshape(self.shape) if axis is None else groups.number
        return groups.with_extras(result, inverse if return_inverse else None, return_counts)

    def _chosen_slices(self, axis: int | None, places: Self) -> Self:
        if axis is None:
            return self.flatten()._rows_at(places)
        rest = [a for a in range(self.ndim) if a != axis]
        moved = self.permute([axis, *rest])._rows_at(places)
        return moved.permute([([axis, *rest]).index(a) for a in range(self.ndim)])

    def _slice_keys(self, dim: int, what: str) -> tuple[int, Self]:
        """An axis, and a key for each slice along it; they are in the lexicographic order of the slices.

        Columns are ranked for themselves and make one key in pairs, so it takes a sort of all columns that are left
        for every halving of their number.
        """
        axis = axis_number(dim, self.ndim, what)
        count = self.shape[axis]
        if 0 in self.shape:
            if count:
                raise ShapeError(f"{what}: shape {self.shape} has no elements in its slices along axis {axis}")
            return axis, self.constant_like(0, (0,), dtypes.int32)
        rest = [a for a in range(self.ndim) if a != axis]
        keys = self.permute([axis, *rest]).reshape(count, -1)
        kind = dtypes.int32 if count * count <= dtypes.int32.max else dtypes.int64
        while keys.shape[1] > 1:
            ranks = keys._dense_ranks().cast(kind)
            even = ranks.pad_zeros([(0, 0), (0, 1)]) if ranks.shape[1] % 2 else ranks
            pairs = even.reshape(count, even.shape[1] // 2, 2)
            keys = pairs._box(2, 0, 1).mul(count).add(pairs._box(2, 1, 2)).squeeze(2)
        return axis, keys.squeeze(1)

    def _dense_ranks(self) -> Self:
        """For every element how many different smaller ones its column has."""
        ordered, places = self.sort(0)
        number = ordered._differs_from_before(0).cast(dtypes.int32).running(Op.ADD, 0).add(-1)
        return number.scatter(0, places, number)

    def unravel_index(self, shape: Any) -> tuple[Self, ...]:
        """The index on every axis of a tensor of this shape of elements numbered in row-major order.

        Raises:
            ShapeError: a negative size.
            ArgumentError: this does not hold integers.

        >>> [t.tolist() for t in Tensor([0, 5]).unravel_index((2, 3))]
        [[0, 1], [0, 2]]
        """
        if not self.dtype.is_int:
            raise ArgumentError(f"unravel_index: needs integers, got {self.dtype}; cast it")
        wanted = integers((shape,), "unravel_index")
        if min(wanted, default=0) < 0:
            raise ShapeError(f"unravel_index: a size may not be negative, got shape {wanted}")
        number = self.cast(dtypes.int64)
        kind = position_type(prod(wanted))
        result = []
        for axis, size in enumerate(wanted):
            stride = max(1, prod(wanted[axis + 1 :]))
            result.append(number.floordiv(stride).mod(max(size, 1)).cast(kind))
        return tuple(result)


class _Groups:
    """Runs of equal neighbours in one axis of keys.

    Attributes:
        begins: where each run begins.
        number: the run that each key is in.
    """

    def __init__(self, keys: Any) -> None:
        self.size = keys.shape[0]
        self.begins: Any = keys.constant_like(0, (0,), dtypes.int32)
        self.number: Any = keys.constant_like(0, (0,), position_type(1))
        if self.size:
            differs = keys._differs_from_before(0).contiguous()
            self.begins, _ = differs._places_of_true(None, "unique")
            kind = position_type(self.size)
            self.number = differs.cast(kind).running(Op.ADD, 0).add(-1)

    def with_extras(self, result: Any, inverse: Any, counted: bool) -> Any:
        """The result, or a tuple with what was asked for."""
        extras = [] if inverse is None else [inverse]
        if counted:
            begins = self.begins
            runs = begins.shape[0]
            ends = begins._box(0, 1, runs).cat(begins.constant_like(self.size, (1,))) if runs else begins
            extras.append(ends.sub(begins).cast(dtypes.int64))
        return (result, *extras) if extras else result
