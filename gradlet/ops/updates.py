"""Composed mixin: tensors with some elements replaced or combined with others: by index, by mask, by part."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final, Self

from gradlet.base.dtype import accumulator, dtypes
from gradlet.base.errors import ArgumentError, IndexingError, ShapeError
from gradlet.ops.arguments import axis_number, broadcast_shapes, number
from gradlet.ops.movement import operand
from gradlet.ops.op import Op
from gradlet.ops.taking import TakingMixin

INDEX_REDUCTIONS: Final = ("prod", "mean", "amax", "amin")


class UpdatesMixin(TakingMixin):
    """Updates. Every one is a new value: this tensor does not change.

    Index tensors may hold negative numbers, which count from the end; numbers outside the axis are skipped. Of several
    values for one element the last stays; sums are carried in float32 for 16-bit floats.
    """

    __slots__ = ()

    def with_part(self, view: Callable[[Self], Self], value: Self) -> Self:
        """A copy of this with `value` written into a view of it."""
        raise NotImplementedError

    # along one axis
    def scatter_add(self, dim: int, index: Self, src: Any) -> Self:
        """`self[index[i][j]][j] += src[i][j]` for dim 0, and so on; see `scatter`.

        Raises:
            ShapeError: shapes do not fit.

        >>> Tensor([0, 0, 0]).scatter_add(0, Tensor([2, 0, 2]), Tensor([5, 6, 7])).tolist()
        [6, 0, 12]
        """
        wide = accumulator(self.dtype)
        return self.cast(wide)._scatter(dim, index, src, Op.ADD, "scatter_add").cast(self.dtype)

    def index_add(self, dim: int, index: Any, source: Self, alpha: float = 1) -> Self:
        """`self[index[i]] += alpha * source[i]` along `dim`.

        Args:
            index: a vector of integers.
            source: as many positions along `dim` as `index` has, and this one's shape elsewhere.

        Raises:
            ShapeError: shapes do not fit.

        >>> Tensor([0, 0, 0]).index_add(0, Tensor([2, 0, 2]), Tensor([5, 6, 7])).tolist()
        [6, 0, 12]
        """
        factor = number(alpha, "index_add", "alpha")
        wide = accumulator(self.dtype)
        values = operand(source, "index_add", "source").cast(wide)
        values = values if factor == 1 else values.mul(factor)
        return self.cast(wide)._indexed(dim, index, values, Op.ADD, "index_add").cast(self.dtype)

    def index_copy(self, dim: int, index: Any, source: Self) -> Self:
        """`self[index[i]] = source[i]` along `dim`; see `index_add`.

        Raises:
            ShapeError: shapes do not fit.

        >>> Tensor([0, 0, 0]).index_copy(0, Tensor([2, 0]), Tensor([5, 6])).tolist()
        [6, 0, 5]
        """
        return self._indexed(dim, index, operand(source, "index_copy", "source"), None, "index_copy")

    def index_fill(self, dim: int, index: Any, value: Any) -> Self:
        """`self[index[i]] = value` along `dim`, for a number or a tensor without axes.

        >>> Tensor([1, 2, 3]).index_fill(0, Tensor([0, 2]), -1).tolist()
        [-1, 2, -1]
        """
        filling = self.coerce(value)
        if filling.ndim:
            raise ShapeError(f"index_fill: value must be a number or have no axes, got shape {filling.shape}")
        return self._indexed(dim, index, filling, None, "index_fill")

    def index_reduce(self, dim: int, index: Any, source: Self, reduce: str, include_self: bool = True) -> Self:
        """`self[index[i]]` combined with `source[i]` along `dim`; see `index_add`.

        Args:
            reduce: "prod", "mean", "amax" or "amin".
            include_self: whether what is there takes part.

        Raises:
            ArgumentError: another `reduce`.
            ShapeError: shapes do not fit.

        >>> Tensor([1, 2, 3]).index_reduce(0, Tensor([0, 0]), Tensor([5, 6]), "prod").tolist()
        [30, 2, 3]
        """
        if reduce not in INDEX_REDUCTIONS:
            raise ArgumentError(f"index_reduce: reduce {reduce!r} is not one of {', '.join(INDEX_REDUCTIONS)}")
        operand(source, "index_reduce", "source")
        return self.reduced_into(
            lambda start, values, op: start._indexed(dim, index, values, op, "index_reduce"),
            source,
            reduce,
            include_self,
        )

    def _indexed(self, dim: int, index: Any, values: Self, op: Op | None, what: str) -> Self:
        """Values along `dim` put at the positions of a vector of integers; a value without axes at all of them."""
        if not self.ndim:
            single = self.reshape(1)._indexed(dim, index, values.reshape(1), op, what)
            return single.reshape(())
        axis = axis_number(dim, self.ndim, what)
        places = self.as_index(index, self.shape[axis], axis)
        if places.ndim > 1:
            raise ShapeError(f"{what}: index must be a vector, got shape {places.shape}")
        places = places.reshape(-1)
        fitting = self.shape[:axis] + places.shape + self.shape[axis + 1 :]
        if values.ndim and values.shape != fitting:
            raise ShapeError(f"{what}: a source of shape {values.shape} does not fit; it must have shape {fitting}")
        return self.scatter_axes({axis: places}, values, op)

    # by coordinates
    def index_put(self, indices: Sequence[Any], values: Any, accumulate: bool = False) -> Self:
        """`self[indices] = values`, or `+=` where `accumulate`: then every one of several values for an element counts.

        Args:
            indices: integer tensors, or bool masks, for the first axes; None stands for a whole axis.
            values: broadcast to the shape that `self[indices]` has.

        Raises:
            ShapeError: values that do not fit.
            IndexingError: something that is no index.

        >>> Tensor([0, 0, 0]).index_put((Tensor([1, 1]),), Tensor([5, 6]), accumulate=True).tolist()
        [0, 11, 0]
        """
        if not isinstance(indices, (tuple, list)):
            raise IndexingError(f"index_put: indices must be a tuple of tensors, got {type(indices).__name__}")
        tensors = self.index_plan(tuple([slice(None) if part is None else part for part in indices])).tensors
        if len(tensors) < sum(part is not None for part in indices):
            raise IndexingError("index_put: indices must be integer tensors, bool masks or None")
        new = self.coerce(values)
        if not tensors:
            new = new.broadcast_into(self.shape, "index_put").cast(self.dtype)
            return self.add(new) if accumulate else new
        if not accumulate:
            return self.scatter_axes(tensors, new)
        wide = accumulator(self.dtype)
        return self.cast(wide).scatter_axes(tensors, new, Op.ADD).cast(self.dtype)

    def put(self, index: Any, source: Self, accumulate: bool = False) -> Self:
        """The elements with these numbers in row-major order replaced by those of `source`, or added to.

        Raises:
            ShapeError: `source` has not as many elements as `index`.

        >>> Tensor([[1, 2], [3, 4]]).put(Tensor([0, -1]), Tensor([8, 9])).tolist()
        [[8, 2], [3, 9]]
        """
        places = self.as_index(index, self.numel(), 0)
        if operand(source, "put", "source").numel() != places.numel():
            raise ShapeError(
                f"put: a source of shape {source.shape} does not have one element for each of {places.shape}"
            )
        return self.flatten().index_put((places.flatten(),), source.flatten(), accumulate).reshape(self.shape)

    def put_along_axis(self, indices: Self, values: Any, axis: int) -> Self:
        """`scatter` where sizes of 1 of `indices` and `values` repeat, as numpy has it.

        Raises:
            ShapeError: shapes do not fit.

        >>> Tensor([[1, 2], [3, 4]]).put_along_axis(Tensor([[0], [1]]), 9, 1).tolist()
        [[9, 2], [3, 9]]
        """
        operand(indices, "put_along_axis", "indices")
        along = axis_number(axis, self.ndim, "put_along_axis")
        if indices.ndim != self.ndim or not self.ndim:
            raise ShapeError(
                f"put_along_axis: indices of shape {indices.shape} must have as many axes as shape {self.shape}, at "
                "least one"
            )
        shape = self.shape[:along] + indices.shape[along : along + 1] + self.shape[along + 1 :]
        index = self.from_the_end(indices.broadcast_into(shape, "put_along_axis"), along)
        return self.scatter(along, index, self.coerce(values).broadcast_into(shape, "put_along_axis"))

    # by mask
    def masked_scatter(self, mask: Self, source: Self) -> Self:
        """The first elements of `source`, in row-major order, where the mask is True.

        This and the mask broadcast. Where `source` has no more elements, the old values stay.

        Raises:
            ShapeError: shapes that do not broadcast.
            ArgumentError: a mask that is not bool.

        >>> Tensor([1, 2, 3]).masked_scatter(Tensor([True, False, True]), Tensor([8, 9])).tolist()
        [8, 2, 9]
        """
        if operand(mask, "masked_scatter", "mask").dtype is not dtypes.bool:
            raise ArgumentError(f"masked_scatter: the mask must be bool, got {mask.dtype}")
        shape = broadcast_shapes([self.shape, mask.shape], "masked_scatter")
        chosen = mask.expand(shape).flatten()
        old = self.expand(shape).as_value()
        if not chosen.numel() or not operand(source, "masked_scatter", "source").numel():
            return old
        count = chosen.cast(dtypes.int64 if chosen.numel() > dtypes.int32.max else dtypes.int32).running(Op.ADD, 0)
        place = count.sub(1)
        if source.numel() < chosen.numel():
            chosen = chosen.bitwise_and(place.lt(source.numel()))
        new = source.flatten().cast(self.dtype).gather_rows(place)
        return chosen.reshape(shape).where(new.reshape(shape), old)

    # by part
    def select_scatter(self, src: Self, dim: int, index: int) -> Self:
        """A copy with `src` at one position of an axis: the inverse of `select`.

        Raises:
            ShapeError: `src` does not have the shape of `select(dim, index)`.

        >>> Tensor([[1, 2], [3, 4]]).select_scatter(Tensor([8, 9]), 0, 1).tolist()
        [[1, 2], [8, 9]]
        """
        return self._part_replaced(lambda x: x.select(dim, index), src, "select_scatter")

    def slice_scatter(
        self, src: Self, dim: int = 0, start: int | None = None, end: int | None = None, step: int = 1
    ) -> Self:
        """A copy with `src` at positions `start:end:step` of an axis.

        Raises:
            ShapeError: `src` does not have the shape of that part.

        >>> Tensor([1, 2, 3, 4]).slice_scatter(Tensor([8, 9]), start=1, step=2).tolist()
        [1, 8, 3, 9]
        """
        axis = axis_number(dim, self.ndim, "slice_scatter")
        part = (slice(None),) * axis + (slice(start, end, step),)
        return self._part_replaced(lambda x: x[part], src, "slice_scatter")

    def diagonal_scatter(self, src: Self, offset: int = 0, dim1: int = 0, dim2: int = 1) -> Self:
        """A copy with `src` on the diagonal of two axes: the inverse of `diagonal`.

        Raises:
            ShapeError: `src` does not have the shape of that diagonal.

        >>> Tensor([[1, 2], [3, 4]]).diagonal_scatter(Tensor([8, 9])).tolist()
        [[8, 2], [3, 9]]
        """
        return self._part_replaced(lambda x: x.diagonal(offset, dim1, dim2), src, "diagonal_scatter")

    def _part_replaced(self, view: Callable[[Self], Self], src: Self, what: str) -> Self:
        shape = view(self).shape
        if operand(src, what, "src").shape != shape:
            raise ShapeError(f"{what}: src of shape {src.shape} does not fit that part, which has shape {shape}")
        return self.with_part(view, src.cast(self.dtype))

    def as_strided_scatter(
        self, src: Self, size: Sequence[int], stride: Sequence[int], storage_offset: int = 0
    ) -> Self:
        """A copy with `src` at the elements that `as_strided` shows.

        Raises:
            ShapeError: `src` does not have that size, or elements outside of what there is.

        >>> Tensor([1, 2, 3, 4]).as_strided_scatter(Tensor([8, 9]), (2,), (2,)).tolist()
        [8, 2, 9, 4]
        """
        places = self.strided_places(size, stride, storage_offset, "as_strided_scatter")
        if operand(src, "as_strided_scatter", "src").shape != places.shape:
            raise ShapeError(f"as_strided_scatter: src of shape {src.shape} does not have size {places.shape}")
        return self.put(places, src)
