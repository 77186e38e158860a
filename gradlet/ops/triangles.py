"""Composed mixin: the coordinates of the elements of triangles."""

from __future__ import annotations

from typing import Self

from gradlet.base.dtype import DType, dtypes, to_dtype
from gradlet.ops.arguments import integer, sizes
from gradlet.ops.joining import JoiningMixin


class TrianglesMixin(JoiningMixin):
    """Triangles."""

    __slots__ = ()

    @classmethod
    def tril_indices(
        cls, row: int, col: int, offset: int = 0, dtype: DType | str | None = None, device: str | None = None
    ) -> Self:
        """Row and column numbers, as two rows, of the lower triangle of a row x col matrix, in row-major order.

        Args:
            offset: the diagonal up to which the triangle goes; see `tril`.
            dtype: the default integer when None.

        Raises:
            ShapeError: a negative size.

        >>> Tensor.tril_indices(2, 2).tolist()
        [[0, 1, 1], [0, 0, 1]]
        """
        rows, columns = sizes((row, col), "tril_indices")
        last = integer(offset, "tril_indices", "offset")
        count = _lower_count(rows, columns, last)
        if not count:
            return cls._coordinates_of(None, None, dtype, device)
        lengths = cls.positions(rows, device).add(last + 1).clamp(0, columns)
        line, place = lengths.numbered_runs(count)
        return cls._coordinates_of(line, place, dtype, device)

    @classmethod
    def triu_indices(
        cls, row: int, col: int, offset: int = 0, dtype: DType | str | None = None, device: str | None = None
    ) -> Self:
        """Row and column numbers, as two rows, of the upper triangle of a row x col matrix, in row-major order.

        Args:
            offset: the diagonal from which the triangle goes; see `triu`.
            dtype: the default integer when None.

        Raises:
            ShapeError: a negative size.

        >>> Tensor.triu_indices(2, 2).tolist()
        [[0, 0, 1], [0, 1, 1]]
        """
        rows, columns = sizes((row, col), "triu_indices")
        first = integer(offset, "triu_indices", "offset")
        count = rows * columns - _lower_count(rows, columns, first - 1)
        if not count:
            return cls._coordinates_of(None, None, dtype, device)
        starts = cls.positions(rows, device).add(first).clamp(0, columns)
        line, place = starts.mul(-1).add(columns).numbered_runs(count)
        return cls._coordinates_of(line, place.add(starts.gather_rows(line)), dtype, device)

    @classmethod
    def _coordinates_of(
        cls, line: Self | None, place: Self | None, dtype: DType | str | None, device: str | None
    ) -> Self:
        chosen = dtypes.default_int if dtype is None else to_dtype(dtype)
        if line is None or place is None:
            return cls.constant(0, (2, 0), chosen, device, False)
        return line.stack(place).cast(chosen)


def _lower_count(rows: int, columns: int, offset: int) -> int:
    """How many elements of a matrix lie on or below a diagonal: row r has r + offset + 1 of them, at most `columns`."""
    first = min(max(-offset, 0), rows)  # rows before have none
    full = min(max(columns - offset - 1, first), rows)  # rows from here on have all
    growing = full - first
    return growing * (first + offset + 1) + growing * (growing - 1) // 2 + (rows - full) * columns
