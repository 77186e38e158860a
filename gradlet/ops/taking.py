"""Composed mixin: elements by their number in row-major order or along an axis, and by strides."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any, Self

from gradlet.base.dtype import dtypes
from gradlet.base.errors import ShapeError
from gradlet.ops.arguments import Shape, axis_number, broadcast_shapes, integer, integers, sizes
from gradlet.ops.joining import JoiningMixin
from gradlet.ops.movement import operand


class TakingMixin(JoiningMixin):
    """Taking elements. Numbers in index tensors may be negative and count from the end then."""

    __slots__ = ()

    def take(self, index: Any) -> Self:
        """The elements with these numbers in row-major order, in the shape of `index`; 0 where there is none.

        Raises:
            IndexingError: an index that is not integer.

        >>> Tensor([[1, 2], [3, 4]]).take(Tensor([0, 3, -1])).tolist()
        [1, 4, 4]
        """
        flat = self.flatten()
        return flat.gather_rows(flat._linear_index({0: self.as_index(index, self.numel(), 0)}))

    def take_along_dim(self, indices: Self, dim: int | None = None) -> Self:
        """`gather` where sizes of 1 of this and of `indices` repeat to what the other has; negative numbers count from
        the end.

        Args:
            indices: integers, such as `argsort` gives.
            dim: the axis that they select on; with None both are flattened.

        Raises:
            ShapeError: shapes do not fit.
            IndexingError: no such axis, or an index that is not integer.

        >>> x = Tensor([[3, 1], [2, 4]])
        >>> x.take_along_dim(x.argsort(dim=1), dim=1).tolist()
        [[1, 3], [2, 4]]
        """
        operand(indices, "take_along_dim", "indices")
        if dim is None:
            return self.flatten().take_along_dim(indices.flatten(), 0)
        axis = axis_number(dim, self.ndim, "take_along_dim")
        if indices.ndim != self.ndim:
            raise ShapeError(
                f"take_along_dim: indices of shape {indices.shape} must have as many axes as shape {self.shape}"
            )
        around = _around(axis, self.shape, indices.shape, "take_along_dim")
        source = self.expand(around[:axis] + self.shape[axis : axis + 1] + around[axis + 1 :])
        index = indices.expand(around[:axis] + indices.shape[axis : axis + 1] + around[axis + 1 :])
        return source.gather(axis, source.from_the_end(index, axis))

    def from_the_end(self, index: Self, axis: int) -> Self:
        """An index on an axis of this with negative numbers replaced by those that count from 0."""
        size = self.shape[axis] if self.shape else 1
        return (
            index.lt(0).where(index.add(size), index) if index.dtype.is_int and not index.dtype.is_unsigned else index
        )

    # by strides
    def as_strided(self, size: Sequence[int], stride: Sequence[int], storage_offset: int = 0) -> Self:
        """`result[i, j, ...] = flat[storage_offset + i * stride[0] + j * stride[1] + ...]`.

        `flat` are the elements in row-major order, whatever memory they lie in; the result is no view.

        Raises:
            ShapeError: not one stride an axis, or elements outside of what there is.

        >>> Tensor([1, 2, 3, 4]).as_strided((3, 2), (1, 1)).tolist()
        [[1, 2], [2, 3], [3, 4]]
        """
        return self.flatten().gather_rows(self.strided_places(size, stride, storage_offset, "as_strided"))

    def strided_places(self, size: Any, stride: Any, storage_offset: Any, what: str) -> Self:
        """The numbers in row-major order of the elements that strides name.

        Raises:
            ShapeError: not one stride an axis, or elements outside of what there is.
        """
        shape, strides = sizes((size,), what), integers((stride,), what)
        offset = integer(storage_offset or 0, what, "storage_offset", 0)
        if len(strides) != len(shape) or min(strides, default=0) < 0:
            raise ShapeError(f"{what}: strides {strides} for size {shape}; give one for every axis, none negative")
        last = offset + sum((extent - 1) * step for extent, step in zip(shape, strides))
        if prod(shape) and last >= self.numel():
            raise ShapeError(
                f"{what}: size {shape} with strides {strides} from {offset} on reaches element {last}, but shape "
                f"{self.shape} has {self.numel()}"
            )
        dtype = dtypes.int64 if last > dtypes.int32.max else dtypes.int32
        places = self.constant_like(offset, (1,) * len(shape), dtype)
        for axis, (extent, step) in enumerate(zip(shape, strides)):
            along = self.positions(extent, self.place).cast(dtype).mul(step)
            places = places.add(along.reshape([extent if a == axis else 1 for a in range(len(shape))]))
        return places.expand(shape)


def _around(axis: int, shape: Shape, other: Shape, what: str) -> Shape:
    """The common shape of two, whatever they have on one axis."""
    try:
        return broadcast_shapes([s[:axis] + (1,) + s[axis + 1 :] for s in (shape, other)], what)
    except ShapeError:
        raise ShapeError(
            f"{what}: shape {shape} and indices of shape {other} must broadcast on all axes but axis {axis}"
        ) from None
