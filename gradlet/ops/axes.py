"""Composed mixin: turning, moving, naming and stretching axes, and parts of a tensor along one axis."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Self

from gradlet.base.errors import ArgumentError, IndexingError, ShapeError
from gradlet.ops.arguments import Shape, axis_number, broadcast_shapes, integer, integers, sizes
from gradlet.ops.coordinates import CoordinatesMixin
from gradlet.ops.movement import operand
from gradlet.ops.rearrange import members


class AxesMixin(CoordinatesMixin):
    """Axes. What only renames, reorders or cuts is a view: writing into it writes into this tensor."""

    __slots__ = ()

    # order of axes
    def movedim(self, source: int | Sequence[int], destination: int | Sequence[int]) -> Self:
        """Axes `source` moved to the places `destination`; the others keep their order.

        Raises:
            IndexingError: no such axis.
            ArgumentError: different numbers of axes, or an axis twice.

        >>> Tensor.zeros(2, 3, 4).movedim(0, -1).shape
        (3, 4, 2)
        """
        origins = _distinct_axes(source, self.ndim, "movedim", "source")
        places = _distinct_axes(destination, self.ndim, "movedim", "destination")
        if len(origins) != len(places):
            raise ArgumentError(f"movedim: {len(origins)} axes in source, {len(places)} in destination")
        if not self.ndim:
            return self
        rest = iter([a for a in range(self.ndim) if a not in origins])
        moved = dict(zip(places, origins))
        return self.permute([moved[place] if place in moved else next(rest) for place in range(self.ndim)])

    def moveaxis(self, source: int | Sequence[int], destination: int | Sequence[int]) -> Self:
        """Same as `movedim`.

        >>> Tensor.zeros(2, 3, 4).moveaxis(0, -1).shape
        (3, 4, 2)
        """
        return self.movedim(source, destination)

    def swapaxes(self, axis0: int, axis1: int) -> Self:
        """Swap two axes, as `transpose` does.

        >>> Tensor.zeros(2, 3, 4).swapaxes(0, 2).shape
        (4, 3, 2)
        """
        return self.transpose(axis0, axis1)

    def swapdims(self, dim0: int, dim1: int) -> Self:
        """Swap two axes, as `transpose` does.

        >>> Tensor.zeros(2, 3, 4).swapdims(0, 2).shape
        (4, 3, 2)
        """
        return self.transpose(dim0, dim1)

    def t(self) -> Self:
        """The two axes of a matrix swapped; a vector or number is itself.

        Raises:
            ShapeError: more than two axes.

        >>> Tensor.zeros(2, 3).t().shape
        (3, 2)
        """
        if self.ndim > 2:
            raise ShapeError(f"t: needs at most 2 axes, got shape {self.shape}; use mT or transpose(dim0, dim1)")
        return self.T

    @property
    def H(self) -> Self:
        """A matrix transposed and conjugated; values are real, so the same as `t`.

        >>> Tensor.zeros(2, 3).H.shape
        (3, 2)
        """
        if self.ndim not in (0, 2):
            raise ShapeError(f"H: needs a matrix, got shape {self.shape}; use mH for a batch of matrices")
        return self.T

    @property
    def mT(self) -> Self:
        """The last two axes swapped.

        Raises:
            ShapeError: fewer than two axes.

        >>> Tensor.zeros(5, 2, 3).mT.shape
        (5, 3, 2)
        """
        if self.ndim < 2:
            raise ShapeError(f"mT: needs at least 2 axes, got shape {self.shape}")
        return self.transpose(-2, -1)

    @property
    def mH(self) -> Self:
        """The last two axes swapped and conjugated; values are real, so the same as `mT`.

        >>> Tensor.zeros(5, 2, 3).mH.shape
        (5, 3, 2)
        """
        return self.mT

    def adjoint(self) -> Self:
        """Same as `mH`.

        >>> Tensor.zeros(5, 2, 3).adjoint().shape
        (5, 3, 2)
        """
        return self.mT

    # turning
    def fliplr(self) -> Self:
        """Columns in reverse order: `flip(1)`.

        >>> Tensor([[1, 2], [3, 4]]).fliplr().tolist()
        [[2, 1], [4, 3]]
        """
        if self.ndim < 2:
            raise ShapeError(f"fliplr: needs at least 2 axes, got shape {self.shape}; use flip(0)")
        return self.flip(1)

    def flipud(self) -> Self:
        """Rows in reverse order: `flip(0)`.

        >>> Tensor([[1, 2], [3, 4]]).flipud().tolist()
        [[3, 4], [1, 2]]
        """
        if self.ndim < 1:
            raise ShapeError("flipud: needs at least 1 axis, got shape ()")
        return self.flip(0)

    def rot90(self, k: int = 1, dims: Sequence[int] = (0, 1)) -> Self:
        """Turned by 90 degrees `k` times, from the first of `dims` towards the second.

        Raises:
            ArgumentError: not two different axes.
            IndexingError: no such axis.

        >>> Tensor([[1, 2], [3, 4]]).rot90().tolist()
        [[2, 4], [1, 3]]
        """
        turns = integer(k, "rot90", "k") % 4
        axes = _distinct_axes(dims, self.ndim, "rot90", "dims")
        if len(axes) != 2 or self.ndim < 2:
            raise ArgumentError(f"rot90: dims must be two different axes of shape {self.shape}, got {dims!r}")
        first, second = axes
        if turns == 0:
            return self.as_value()
        if turns == 2:
            return self.flip(first, second)
        return self.transpose(first, second).flip(first if turns == 1 else second)

    def fftshift(self, dim: int | Sequence[int] | None = None) -> Self:
        """Rolled by half of each axis, so that the zero frequency stands in the middle.

        Args:
            dim: the axes; all by default.

        >>> Tensor([0, 1, 2, -2, -1]).fftshift().tolist()
        [-2, -1, 0, 1, 2]
        """
        axes = _axes_or_all(dim, self.ndim, "fftshift")
        return self.roll([self.shape[a] // 2 for a in axes], axes)

    def ifftshift(self, dim: int | Sequence[int] | None = None) -> Self:
        """The inverse of `fftshift`.

        >>> Tensor([-2, -1, 0, 1, 2]).ifftshift().tolist()
        [0, 1, 2, -2, -1]
        """
        axes = _axes_or_all(dim, self.ndim, "ifftshift")
        return self.roll([-(self.shape[a] // 2) for a in axes], axes)

    # parts along one axis
    def narrow(self, dim: int, start: Any, length: int) -> Self:
        """`length` elements along `dim` from `start` on.

        Args:
            start: an integer, negative from the end; or an integer tensor without axes, read when the kernel runs:
                elements outside the axis are 0 then, and the result is no view.

        Raises:
            IndexingError: no such axis, or a part that leaves it.

        >>> Tensor([1, 2, 3, 4]).narrow(0, 1, 2).tolist()
        [2, 3]
        """
        axis = axis_number(dim, self.ndim, "narrow")
        if not self.ndim:
            raise ShapeError("narrow: a tensor without axes has no part")
        size = self.shape[axis]
        length = integer(length, "narrow", "length", 0)
        if self.is_index_tensor(start):
            return self._narrow_at(axis, operand(start, "narrow", "start"), length)
        first = integer(start, "narrow", "start")
        low = first + size if first < 0 else first
        if not 0 <= low <= low + length <= size:
            raise IndexingError(f"narrow: {length} elements from {first} on are not inside axis {axis} of size {size}")
        return self._box(axis, low, low + length)

    def _narrow_at(self, axis: int, start: Self, length: int) -> Self:
        if start.ndim or not start.dtype.is_int:
            raise IndexingError(
                f"narrow: start must be an integer or an integer tensor without axes, got {start.dtype} of shape "
                f"{start.shape}"
            )
        size = self.shape[axis]
        first = start if start.dtype.is_unsigned else start.lt(0).where(start.add(size), start)
        return self.gather_axes({axis: self.positions(length, self.place).add(first)})

    def select(self, dim: int, index: int) -> Self:
        """One position of an axis, which goes away: `x.select(1, 3)` is `x[:, 3]`.

        Raises:
            IndexingError: no such axis or position.

        >>> Tensor([[1, 2], [3, 4]]).select(1, 0).tolist()
        [1, 3]
        """
        axis = axis_number(dim, self.ndim, "select")
        if not self.ndim:
            raise ShapeError("select: a tensor without axes has no position to select")
        return self[(slice(None),) * axis + (index,)]

    def unbind(self, dim: int = 0) -> tuple[Self, ...]:
        """All positions of an axis, each without it.

        Raises:
            IndexingError: no such axis.

        >>> [t.tolist() for t in Tensor([[1, 2], [3, 4]]).unbind(1)]
        [[1, 3], [2, 4]]
        """
        axis = axis_number(dim, self.ndim, "unbind")
        if not self.ndim:
            raise ShapeError("unbind: a tensor without axes has no positions")
        return tuple([self.select(axis, position) for position in range(self.shape[axis])])

    # shapes of others
    def ravel(self) -> Self:
        """All axes joined into one: `flatten()`.

        >>> Tensor.zeros(2, 3).ravel().shape
        (6,)
        """
        return self.flatten()

    def tile(self, *dims: Any) -> Self:
        """`repeat`, where missing numbers at the left are 1.

        >>> Tensor([[1, 2]]).tile(2).tolist()
        [[1, 2, 1, 2]]
        """
        times = sizes(dims, "tile")
        return self.repeat((1,) * (self.ndim - len(times)) + times)

    def reshape_as(self, other: Self) -> Self:
        """`reshape` to the shape of another tensor.

        >>> Tensor.arange(6).reshape_as(Tensor.zeros(2, 3)).shape
        (2, 3)
        """
        return self.reshape(operand(other, "reshape_as", "other").shape)

    def view_as(self, other: Self) -> Self:
        """`view` in the shape of another tensor.

        >>> Tensor.arange(6).view_as(Tensor.zeros(2, 3)).shape
        (2, 3)
        """
        return self.reshape(operand(other, "view_as", "other").shape)

    def expand_as(self, other: Self) -> Self:
        """`expand` to the shape of another tensor.

        >>> Tensor([[1], [2]]).expand_as(Tensor.zeros(2, 3)).tolist()
        [[1, 1, 1], [2, 2, 2]]
        """
        return self.expand(operand(other, "expand_as", "other").shape)

    def broadcast_to(self, *shape: Any) -> Self:
        """Stretched to a shape: axes are added at the left, axes of size 1 repeat.

        Raises:
            ShapeError: it does not broadcast to that shape.

        >>> Tensor([1, 2]).broadcast_to(2, 2).tolist()
        [[1, 2], [1, 2]]
        """
        return self.expand(*shape)

    @staticmethod
    def broadcast_shapes(*shapes: Any) -> Shape:
        """The shape that tensors of these shapes have together.

        Raises:
            ShapeError: two sizes differ and neither is 1.

        >>> Tensor.broadcast_shapes((3, 1), (4,))
        (3, 4)
        """
        listed = [sizes(s if isinstance(s, (tuple, list)) else (s,), "broadcast_shapes") for s in shapes]
        return broadcast_shapes(listed, "broadcast_shapes")

    def broadcast_tensors(self, *others: Self) -> tuple[Self, ...]:
        """This and others, each stretched to their common shape.

        Raises:
            ShapeError: the shapes do not broadcast.

        >>> [t.shape for t in Tensor.broadcast_tensors(Tensor.zeros(3, 1), Tensor.zeros(4))]
        [(3, 4), (3, 4)]
        """
        parts = members(self, others, "broadcast_tensors")
        shape = broadcast_shapes([part.shape for part in parts], "broadcast_tensors")
        return tuple([part.expand(shape) for part in parts])

    def sum_to_size(self, *size: Any) -> Self:
        """Summed over the axes that broadcasting a tensor of this size to this shape would repeat.

        Raises:
            ShapeError: that size does not broadcast to this shape.

        >>> Tensor([[1.0, 2.0], [3.0, 4.0]]).sum_to_size(2, 1).tolist()
        [[3.0], [7.0]]
        """
        wanted = sizes(size, "sum_to_size")
        extra = self.ndim - len(wanted)
        aligned = (1,) * extra + wanted
        if extra < 0 or any(want not in (1, have) for want, have in zip(aligned, self.shape)):
            raise ShapeError(f"sum_to_size: size {wanted} does not broadcast to shape {self.shape}")
        summed = [axis for axis, (want, have) in enumerate(zip(aligned, self.shape)) if want != have]
        result = self.sum(summed, keepdim=True, dtype=self.dtype) if summed else self
        return result.reshape(wanted) if summed else result.reshape(wanted).as_value()

    def atleast_1d(self, *others: Self) -> Any:
        """With at least one axis: a number becomes a vector. Several tensors give a tuple.

        >>> Tensor(3).atleast_1d().shape
        (1,)
        """
        return _each(self, others, "atleast_1d", lambda x: x if x.ndim else x.reshape(1))

    def atleast_2d(self, *others: Self) -> Any:
        """With at least two axes: a vector becomes a row. Several tensors give a tuple.

        >>> Tensor([1, 2]).atleast_2d().shape
        (1, 2)
        """
        return _each(self, others, "atleast_2d", lambda x: x if x.ndim > 1 else x.reshape(1, x.numel()))

    def atleast_3d(self, *others: Self) -> Any:
        """With at least three axes: a vector of n has shape (1, n, 1) then, a matrix an axis more at the end.

        Several tensors give a tuple.

        >>> Tensor([1, 2]).atleast_3d().shape, Tensor.zeros(2, 3).atleast_3d().shape
        ((1, 2, 1), (2, 3, 1))
        """
        return _each(self, others, "atleast_3d", _three_axes)


def _each(first: Any, others: Sequence[Any], what: str, change: Callable[[Any], Any]) -> Any:
    """The changed tensor; a tuple of them where there are several, or a list of them."""
    parts = tuple([change(part) for part in members(first, others, what)])
    return parts if others or isinstance(first, (tuple, list)) else parts[0]


def _three_axes(x: Any) -> Any:
    if x.ndim > 2:
        return x
    return x.unsqueeze(-1) if x.ndim == 2 else x.reshape(1, x.numel(), 1)


def _distinct_axes(axes: Any, ndim: int, what: str, name: str) -> Shape:
    """Axes in the order given.

    Raises:
        IndexingError: no such axis.
        ArgumentError: an axis twice.
    """
    listed = integers((axes,), what)
    found = tuple([axis_number(a, ndim, what) for a in listed])
    if len(set(found)) != len(found):
        raise ArgumentError(f"{what}: {name} {listed} names an axis twice")
    return found


def _axes_or_all(dim: Any, ndim: int, what: str) -> list[int]:
    return list(range(ndim)) if dim is None else list(_distinct_axes(dim, ndim, what, "dim"))
