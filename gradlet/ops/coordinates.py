"""Composed mixin: reading and updating elements one by one, by their places along one axis."""

from __future__ import annotations

from collections.abc import Callable
from math import prod
from typing import Any, Final, Self

from gradlet.base.dtype import accumulator, dtypes
from gradlet.base.errors import ArgumentError, IndexingError, ShapeError
from gradlet.ops.arguments import axis_number
from gradlet.ops.index import IndexMixin
from gradlet.ops.movement import operand
from gradlet.ops.op import Op, identity_element

SCATTER_OPS: Final = {
    "sum": Op.ADD, "add": Op.ADD, "prod": Op.MUL, "multiply": Op.MUL, "amax": Op.MAX, "amin": Op.MIN, "mean": Op.ADD,
}  # fmt: skip


class CoordinatesMixin(IndexMixin):
    """Gathering and scattering. Numbers in an index count from 0; others, also negative ones, are out of range."""

    __slots__ = ()

    def _index_axis(self, dim: int, index: Self, what: str) -> int:
        """The axis that an index of the same rank selects on.

        Raises:
            ShapeError: shapes do not fit.
            IndexingError: no such axis, or an index that is not integer.
        """
        if operand(index, what, "index").ndim != self.ndim:
            raise ShapeError(f"{what}: index of shape {index.shape} must have as many axes as shape {self.shape}")
        if not index.dtype.is_int:
            raise IndexingError(f"{what}: index must hold integers, got {index.dtype}; cast it")
        axis = axis_number(dim, self.ndim, what)
        for a, (small, large) in enumerate(zip(index.shape, self.shape)):
            if a != axis and small > large:
                raise ShapeError(f"{what}: index of shape {index.shape} is larger than shape {self.shape} on axis {a}")
        return axis

    def _as_vector(self, what: str) -> Self:
        """A tensor without axes as a vector of one element; vectors as they are.

        Raises:
            ShapeError: more than one axis.
        """
        if self.ndim > 1:
            raise ShapeError(f"{what}: shape {self.shape} with a tensor without axes; both need as many axes")
        return self.reshape(-1)

    def _coordinates(self, axis: int, index: Self) -> Self:
        """The place in the flattened tensor that every element of `index` selects on an axis; -1 out of range."""
        size = self.shape[axis] if self.shape else 1
        wide = dtypes.int64 if self.numel() > dtypes.int32.max else dtypes.int32
        number = index.cast(wide) if index.dtype.itemsize < 4 or wide is dtypes.int64 else index
        place: Self | None = None
        for a in range(self.ndim):
            part = number if a == axis else index.positions_along(a).cast(number.dtype)
            stride = prod(self.shape[a + 1 :])
            part = part.mul(stride) if stride != 1 else part
            place = part if place is None else place.add(part)
        if place is None:
            return number
        inside = number.lt(size) if number.dtype.is_unsigned else number.lt(size).bitwise_and(number.gt(-1))
        return inside.where(place, place.constant_like(-1))

    def gather(self, dim: int, index: Self) -> Self:
        """`result[i][j] = self[i][index[i][j]]` for dim 1, and so on; 0 where the index is out of range.

        Args:
            dim: the axis that `index` selects on.
            index: integers, as many axes as this, no larger than this on the other axes.

        Raises:
            ShapeError: shapes do not fit.
            IndexingError: no such axis, or an index that is not integer.

        >>> Tensor([[1, 2], [3, 4]]).gather(1, Tensor([[1], [0]])).tolist()
        [[2], [3]]
        """
        if not self.ndim or not operand(index, "gather", "index").ndim:
            return self._as_vector("gather").gather(dim, index._as_vector("gather")).reshape(index.shape)
        if 0 in index.shape:
            return self.constant_like(0, index.shape)
        axis = self._index_axis(dim, index, "gather")
        if self.ndim > 1 and axis == self.ndim - 1:
            rows = self.shrink([(0, size) for size in index.shape[:-1]] + [None])
            return rows.gather_rows(index, axis)
        return self.flatten().gather_rows(self._coordinates(axis, index))

    def scatter(self, dim: int, index: Self, src: Any, reduce: str | None = None) -> Self:
        """`self[i][index[i][j]] = src[i][j]` for dim 1, and so on; the last value for a place stays.

        Args:
            dim: the axis that `index` selects on.
            index: integers; out of range is skipped.
            src: a number, or a tensor at least as large as `index`.
            reduce: None to replace, "add" or "multiply".

        Raises:
            ShapeError: shapes do not fit.
            ArgumentError: another `reduce`.

        >>> Tensor([0, 0, 0]).scatter(0, Tensor([2, 0]), Tensor([5, 6])).tolist()
        [6, 0, 5]
        """
        if reduce not in (None, "add", "multiply"):
            raise ArgumentError(f"scatter: reduce {reduce!r} is not None, 'add' or 'multiply'")
        if reduce is None:
            return self._scatter(dim, index, src, None, "scatter")
        return (
            self.cast(accumulator(self.dtype))
            ._scatter(dim, index, src, SCATTER_OPS[reduce], "scatter")
            .cast(self.dtype)
        )

    def _scatter(self, dim: int, index: Self, src: Any, op: Op | None, what: str) -> Self:
        values = self.coerce(src).cast(self.dtype)
        if not self.ndim or not operand(index, what, "index").ndim:
            flat = values.flatten() if values.ndim < 2 else values
            return self._as_vector(what)._scatter(dim, index._as_vector(what), flat, op, what).reshape(self.shape)
        if 0 in index.shape:
            return self.as_value()
        axis = self._index_axis(dim, index, what)
        if values.ndim == index.ndim and index.ndim:
            if any(s < i for s, i in zip(values.shape, index.shape)):
                raise ShapeError(f"{what}: src of shape {values.shape} is smaller than index of shape {index.shape}")
            values = values.shrink([(0, i) for i in index.shape])
        values = values.broadcast_into(index.shape, what)
        if self.ndim > 1 and axis == self.ndim - 1 and index.shape[:-1] == self.shape[:-1]:
            return self.scatter_rows(index, values, op, axis)
        place = self._coordinates(axis, index)
        return self.flatten().scatter_rows(place.flatten(), values.flatten(), op).reshape(self.shape)

    def scatter_reduce(self, dim: int, index: Self, src: Self, reduce: str, include_self: bool = True) -> Self:
        """Combine `src` into the places that `index` names.

        Args:
            reduce: "sum", "prod", "mean", "amax" or "amin".
            include_self: whether what is there takes part.

        Raises:
            ArgumentError: another `reduce`.

        >>> Tensor([1, 1]).scatter_reduce(0, Tensor([0, 0]), Tensor([5, 6]), "sum").tolist()
        [12, 1]
        """
        if reduce not in ("sum", "prod", "mean", "amax", "amin"):
            raise ArgumentError(f"scatter_reduce: reduce {reduce!r} is not sum, prod, mean, amax or amin")
        return self.reduced_into(
            lambda start, values, op: start._scatter(dim, index, values, op, "scatter_reduce"),
            src,
            reduce,
            include_self,
        )

    def reduced_into(
        self, update: Callable[[Self, Any, Op | None], Self], src: Any, reduce: str, include_self: bool
    ) -> Self:
        """`src` combined into some elements of this, where `update(start, values, op)` puts values there."""
        op = SCATTER_OPS[reduce]
        start = self if include_self else update(self, self.coerce(identity_element(op, self.dtype)), None)
        wide = accumulator(self.dtype) if op in (Op.ADD, Op.MUL) else self.dtype
        total = update(start.cast(wide), src, op)
        if reduce != "mean":
            return total.cast(self.dtype)
        have = self.constant_like(1 if include_self else 0, dtype=dtypes.int32)
        count = update(have, have.coerce(1), Op.ADD)
        count = count.lt(1).where(1, count)
        return (total.fdiv(count) if self.dtype.is_float else total.floordiv(count)).cast(self.dtype)
