"""Composed mixin: joining tensors along rows, columns and depth, choices of their elements, and cutting them apart."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Self

from gradlet.base.dtype import dtypes
from gradlet.base.errors import ArgumentError, ShapeError
from gradlet.ops.arguments import axis_number, integer, integers
from gradlet.ops.axes import AxesMixin
from gradlet.ops.movement import operand
from gradlet.ops.op import Op
from gradlet.ops.rearrange import members


class JoiningMixin(AxesMixin):
    """Joining and cutting. The functions of several tensors take them as `f(a, b)`, `a.f(b)` or `f([a, b])`."""

    __slots__ = ()

    def running(self, op: Op, axis: int, exclusive: bool = False, factor: Self | None = None) -> Self:
        """Running combination along an axis."""
        raise NotImplementedError

    # joining
    def hstack(self, *others: Any) -> Self:
        """Joined along columns: vectors end to end, other tensors along axis 1.

        Raises:
            ShapeError: other axes differ in size.

        >>> Tensor([1, 2]).hstack(Tensor([3])).tolist()
        [1, 2, 3]
        """
        parts: list[Self] = [part.atleast_1d() for part in members(self, others, "hstack")]
        return parts[0].cat(*parts[1:], dim=0 if parts[0].ndim == 1 else 1)

    def vstack(self, *others: Any) -> Self:
        """Joined along rows: vectors are rows, other tensors are joined along axis 0.

        Raises:
            ShapeError: other axes differ in size.

        >>> Tensor([1, 2]).vstack(Tensor([3, 4])).tolist()
        [[1, 2], [3, 4]]
        """
        parts: list[Self] = [part.atleast_2d() for part in members(self, others, "vstack")]
        return parts[0].cat(*parts[1:])

    def dstack(self, *others: Any) -> Self:
        """Joined along axis 2, after `atleast_3d`.

        Raises:
            ShapeError: other axes differ in size.

        >>> Tensor([1, 2]).dstack(Tensor([3, 4])).tolist()
        [[[1, 3], [2, 4]]]
        """
        parts: list[Self] = [part.atleast_3d() for part in members(self, others, "dstack")]
        return parts[0].cat(*parts[1:], dim=2)

    def column_stack(self, *others: Any) -> Self:
        """Joined along axis 1, where numbers and vectors are columns.

        Raises:
            ShapeError: other axes differ in size.

        >>> Tensor([1, 2]).column_stack(Tensor([3, 4])).tolist()
        [[1, 3], [2, 4]]
        """
        parts: list[Self] = [
            part if part.ndim > 1 else part.reshape(-1, 1) for part in members(self, others, "column_stack")
        ]
        return parts[0].cat(*parts[1:], dim=1)

    def block_diag(self, *others: Any) -> Self:
        """A matrix with these matrices along its diagonal and zeros elsewhere; vectors and numbers are rows.

        Raises:
            ShapeError: more than two axes.

        >>> Tensor([[1, 2]]).block_diag(Tensor([[3], [4]])).tolist()
        [[1, 2, 0], [0, 0, 3], [0, 0, 4]]
        """
        parts: list[Self] = [part.atleast_2d() for part in members(self, others, "block_diag")]
        wide = sum(part.shape[1] for part in parts if part.ndim == 2)
        rows, start = [], 0
        for part in parts:
            if part.ndim != 2:
                raise ShapeError(f"block_diag: each part has at most 2 axes, got shape {part.shape}")
            rows.append(part.pad_zeros([(0, 0), (start, wide - start - part.shape[1])]))
            start += part.shape[1]
        return rows[0].cat(*rows[1:])

    # all choices of elements
    def cartesian_prod(self, *others: Any) -> Self:
        """All choices of one element of each vector, a row each; the last vector's element changes fastest.

        A single vector is itself.

        Raises:
            ShapeError: something else than vectors.

        >>> Tensor([1, 2]).cartesian_prod(Tensor([3, 4])).tolist()
        [[1, 3], [1, 4], [2, 3], [2, 4]]
        """
        parts: list[Self] = list(members(self, others, "cartesian_prod"))
        for part in parts:
            if part.ndim != 1:
                raise ShapeError(f"cartesian_prod: needs vectors, got shape {part.shape}")
        if len(parts) == 1:
            return parts[0].as_value()
        grids = [grid.flatten() for grid in parts[0].meshgrid(*parts[1:])]
        return grids[0].stack(*grids[1:], dim=1)

    def combinations(self, r: int = 2, with_replacement: bool = False) -> Self:
        """All choices of `r` elements of a vector in their order, a row each, in the order of the vector.

        There are n! / (r! (n - r)!) of them; with replacement, where an element may repeat,
        (n + r - 1)! / (r! (n - 1)!).

        Raises:
            ShapeError: not a vector.
            ArgumentError: a negative `r`.

        >>> Tensor([1, 2, 3]).combinations().tolist()
        [[1, 2], [1, 3], [2, 3]]
        """
        if self.ndim != 1:
            raise ShapeError(f"combinations: needs a vector, got shape {self.shape}")
        r = integer(r, "combinations", "r", 0)
        n = self.shape[0]
        if r == 0:
            return self._box(0, 0, 0)
        # Choices of one more element: each is followed by the choices of what may come after its last one.
        gap = 0 if with_replacement else 1
        columns = [self.positions(n, self.place)]
        for chosen in range(2, r + 1):
            count = math.comb(n + chosen - 1, chosen) if with_replacement else math.comb(n, chosen)
            if count == 0:
                return self.constant_like(0, (0, r))
            after = columns[-1].mul(-1).add(n - gap)
            row, place = after.numbered_runs(count)
            columns = [column.gather_rows(row) for column in columns]
            columns.append(columns[-1].add(place).add(gap))
        if n == 0:
            return self.constant_like(0, (0, r))
        return self.gather_rows(columns[0].stack(*columns[1:], dim=1))

    def numbered_runs(self, total: int) -> tuple[Self, Self]:
        """For a vector of lengths that add up to `total`: the number of its run for each of `total` places, and where
        in the run it is. Cost is linear in both.
        """
        wide = dtypes.int64 if max(total, self.shape[0]) > dtypes.int32.max else dtypes.int32
        starts = self.cast(wide).running(Op.ADD, 0, True)
        # A one where each run begins, so that running sums count the runs; empty runs add theirs to the next one's.
        begins = self.constant_like(0, (total,), wide).scatter_rows(starts, starts.constant_like(1), Op.ADD)
        row = begins.running(Op.ADD, 0).sub(1)
        return row, self.positions(total, self.place).sub(starts.gather_rows(row))

    def repeated_each(self, repeats: Any, axis: int, output_size: int | None) -> Self:
        """Each position of an axis repeated as often as its number in `repeats` says."""
        size = self.shape[axis] if self.shape else 1
        if isinstance(repeats, (list, tuple)):
            listed = integers((tuple(repeats),), "repeat_interleave")
            if min(listed, default=0) < 0:
                raise ArgumentError(f"repeat_interleave: repeats must be at least 0, got {listed}")
            output_size = sum(listed) if output_size is None else output_size
            output_size *= size if len(listed) == 1 else 1
            repeats = self.as_index(list(listed), 2**31, 0)
        counts = operand(repeats, "repeat_interleave", "repeats")
        if counts.ndim > 1 or not counts.dtype.is_int:
            raise ArgumentError(
                f"repeat_interleave: repeats must be a vector of integers, got {counts.dtype} of shape {counts.shape}"
            )
        if counts.numel() not in (1, size):
            raise ArgumentError(
                f"repeat_interleave: {counts.numel()} repeats for axis {axis} of size {size}; give one a position"
            )
        counts = counts.reshape(-1).expand(size)
        if output_size is None:
            least, output_size = (counts.min().item(), counts.sum().item()) if size else (0, 0)
            if least < 0:
                raise ArgumentError(f"repeat_interleave: repeats must be at least 0, got {least}")
        total = integer(output_size, "repeat_interleave", "output_size", 0)
        source = self if self.ndim else self.reshape(1)
        if not size or not total:
            return source._box(axis, 0, 0)
        row, _ = counts.numbered_runs(total)
        return source.gather_axes({axis: row})

    # cutting
    def tensor_split(self, indices_or_sections: Any, dim: int = 0) -> tuple[Self, ...]:
        """Cut along `dim` into so many parts of nearly equal size (the first are larger), or at these positions.

        Args:
            indices_or_sections: a number of parts; or positions, where the cuts are as in `x[a:b]`.

        Raises:
            IndexingError: no such axis.
            ArgumentError: less than one part.

        >>> [t.tolist() for t in Tensor([1, 2, 3, 4, 5]).tensor_split(2)]
        [[1, 2, 3], [4, 5]]
        >>> [t.tolist() for t in Tensor([1, 2, 3, 4, 5]).tensor_split((1, 4))]
        [[1], [2, 3, 4], [5]]
        """
        if not self.ndim:
            raise ShapeError("tensor_split: a tensor without axes has no parts; use reshape(1)")
        axis = axis_number(dim, self.ndim, "tensor_split")
        size = self.shape[axis]
        wanted = _integers_of(indices_or_sections)
        if isinstance(wanted, (tuple, list)):
            cuts = [slice(None, c).indices(size)[1] for c in integers((wanted,), "tensor_split")]
        else:
            parts = integer(wanted, "tensor_split", "the number of parts", 1)
            cuts = [size // parts * i + min(i, size % parts) for i in range(1, parts)]
        starts, ends = [0, *cuts], [*cuts, size]
        return tuple([self._box(axis, low, max(low, high)) for low, high in zip(starts, ends)])

    def hsplit(self, indices_or_sections: Any) -> tuple[Self, ...]:
        """Cut along columns: axis 1, or axis 0 of a vector; see `tensor_split`, but a number of parts must divide it.

        Raises:
            ShapeError: no axes, or parts that do not divide the axis.

        >>> [t.tolist() for t in Tensor([[1, 2], [3, 4]]).hsplit(2)]
        [[[1], [3]], [[2], [4]]]
        """
        return self._equal_parts(indices_or_sections, 0 if self.ndim == 1 else 1, 1, "hsplit")

    def vsplit(self, indices_or_sections: Any) -> tuple[Self, ...]:
        """Cut along rows, axis 0; see `hsplit`.

        >>> [t.tolist() for t in Tensor([[1, 2], [3, 4]]).vsplit(2)]
        [[[1, 2]], [[3, 4]]]
        """
        return self._equal_parts(indices_or_sections, 0, 2, "vsplit")

    def dsplit(self, indices_or_sections: Any) -> tuple[Self, ...]:
        """Cut along depth, axis 2; see `hsplit`.

        >>> [t.shape for t in Tensor.zeros(1, 2, 4).dsplit(2)]
        [(1, 2, 2), (1, 2, 2)]
        """
        return self._equal_parts(indices_or_sections, 2, 3, "dsplit")

    def _equal_parts(self, wanted: Any, axis: int, least: int, what: str) -> tuple[Self, ...]:
        if self.ndim < least:
            raise ShapeError(f"{what}: needs at least {least} axes, got shape {self.shape}")
        wanted = _integers_of(wanted)
        if not isinstance(wanted, (tuple, list)):
            parts = integer(wanted, what, "the number of parts", 1)
            if self.shape[axis] % parts:
                raise ShapeError(
                    f"{what}: {parts} parts do not divide axis {axis} of size {self.shape[axis]}; use tensor_split"
                )
        return self.tensor_split(wanted, axis)

    def split_with_sizes(self, split_sizes: Sequence[int], dim: int = 0) -> tuple[Self, ...]:
        """Cut along `dim` into pieces of these sizes: `split` with a list.

        Raises:
            ShapeError: the sizes do not add up.

        >>> [t.tolist() for t in Tensor([1, 2, 3]).split_with_sizes([1, 2])]
        [[1], [2, 3]]
        """
        if not isinstance(split_sizes, (tuple, list)):
            raise ArgumentError(f"split_with_sizes: expected a list of sizes, got {split_sizes!r}; use split")
        return self.split(split_sizes, dim)


def _integers_of(value: Any) -> Any:
    """Positions in a tensor or array as Python integers, which are read now; other values as they are."""
    return value.tolist() if hasattr(value, "tolist") else value
