"""Composed mixin: diagonals of matrices, as views, and matrices with given diagonals."""

from __future__ import annotations

from typing import Self

from gradlet.base.errors import ArgumentError, ShapeError
from gradlet.ops.arguments import axis_number, integer
from gradlet.ops.rearrange import RearrangeMixin


class DiagonalsMixin(RearrangeMixin):
    """Diagonals."""

    __slots__ = ()

    def diagonal(self, offset: int = 0, dim1: int = 0, dim2: int = 1) -> Self:
        """The diagonal of two axes, as a new last axis.

        Raises:
            ShapeError: fewer than two axes.
            ArgumentError: the same axis twice.

        >>> Tensor([[1, 2], [3, 4]]).diagonal().tolist()
        [1, 4]
        """
        ndim = self.ndim
        if ndim < 2:
            raise ShapeError(f"diagonal: needs at least 2 axes, got shape {self.shape}")
        first, second = axis_number(dim1, ndim, "diagonal"), axis_number(dim2, ndim, "diagonal")
        if first == second:
            raise ArgumentError(f"diagonal: dim1={dim1} and dim2={dim2} name the same axis")
        offset = integer(offset, "diagonal", "offset")
        rest = [a for a in range(ndim) if a not in (first, second)]
        source = self.permute(rest + [first, second])
        rows, columns = source.shape[-2:]
        first_place = offset if offset >= 0 else -offset * columns
        count = max(0, min(rows, columns - offset) if offset >= 0 else min(rows + offset, columns))
        # In the order of memory the diagonal is every (columns + 1)-th element.
        flat = source.flatten(-2)
        reach = (count - 1) * (columns + 1) + 1 if count else 0
        first_place = first_place if count else 0
        return flat._box(ndim - 2, first_place, first_place + reach).take_every([1] * (ndim - 2) + [columns + 1])

    def diag(self, diagonal: int = 0) -> Self:
        """A vector as a diagonal of a square matrix, zeros elsewhere; or that diagonal of a matrix, as a vector.

        Args:
            diagonal: which one: above the main diagonal for positive numbers, below for negative ones.

        Raises:
            ShapeError: neither a vector nor a matrix.

        >>> Tensor([1, 2]).diag().tolist(), Tensor([[1, 2], [3, 4]]).diag(1).tolist()
        ([[1, 0], [0, 2]], [2])
        """
        if self.ndim not in (1, 2):
            raise ShapeError(f"diag: needs a vector or a matrix, got shape {self.shape}; use diag_embed or diagonal")
        return self.diagonal(diagonal) if self.ndim == 2 else self.diag_embed(diagonal)

    def diag_embed(self, offset: int = 0, dim1: int = -2, dim2: int = -1) -> Self:
        """The last axis as a diagonal of a matrix on two new axes of the result, zeros elsewhere.

        Args:
            offset: which diagonal: above the main one for positive numbers, below for negative ones.
            dim1, dim2: where the rows and columns stand in the result.

        Raises:
            ShapeError: no axes.
            ArgumentError: the same axis twice.

        >>> Tensor([1, 2]).diag_embed(1).tolist()
        [[0, 1, 0], [0, 0, 2], [0, 0, 0]]
        """
        if not self.ndim:
            raise ShapeError("diag_embed: a tensor without axes has no diagonal; use diagflat")
        ndim = self.ndim + 1
        first, second = axis_number(dim1, ndim, "diag_embed"), axis_number(dim2, ndim, "diag_embed")
        if first == second:
            raise ArgumentError(f"diag_embed: dim1={dim1} and dim2={dim2} name the same axis")
        offset = integer(offset, "diag_embed", "offset")
        lead, count = self.shape[:-1], self.shape[-1]
        size = count + abs(offset)
        # In rows of size + 1 elements the diagonal is a column; what runs over the matrix is cut off.
        column = self.unsqueeze(-1).pad_zeros([(0, 0)] * self.ndim + [(0, size)])
        flat = column.reshape(*lead, count * (size + 1))
        before = offset if offset > 0 else -offset * size
        flat = flat.pad_zeros([(0, 0)] * len(lead) + [(before, size)])._box(len(lead), 0, size * size)
        matrix = flat.reshape(*lead, size, size)
        rest = iter(range(len(lead)))
        places = {first: ndim - 2, second: ndim - 1}
        return matrix.permute([places[a] if a in places else next(rest) for a in range(ndim)])

    def diagflat(self, offset: int = 0) -> Self:
        """All elements as a diagonal of a square matrix, zeros elsewhere: `flatten().diag(offset)`.

        >>> Tensor([[1, 2]]).diagflat().tolist()
        [[1, 0], [0, 2]]
        """
        return self.flatten().diag_embed(offset)
