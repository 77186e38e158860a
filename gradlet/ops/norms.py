"""Composed mixin: norms of vectors and matrices, and condition numbers."""

# Batches of matrices are Any to the type checker, see `matrices`.
# mypy: disable-error-code="no-any-return"

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Self

from gradlet.base.dtype import DType, accumulator, to_dtype
from gradlet.base.errors import ArgumentError, DTypeError, ShapeError
from gradlet.ops.arguments import axis_number, axis_numbers
from gradlet.ops.matrices import float_matrices
from gradlet.ops.spectral import SpectralMixin

Order = float | int | str | None
_MATRIX_ORDERS = ("fro", "nuc", math.inf, -math.inf, 1, -1, 2, -2)


class NormsMixin(SpectralMixin):
    """Norms."""

    __slots__ = ()

    def vector_norm(
        self, ord: float = 2, dim: int | Sequence[int] | None = None, keepdim: bool = False,
        dtype: DType | str | None = None,
    ) -> Self:  # fmt: skip
        """`sum(abs(x) ** ord) ** (1 / ord)` over `dim`; inf: the largest, -inf: the smallest, 0: how many are not 0.

        Of an axis without elements all but those with a power below 0 are 0. The gradient at 0 is 0.

        Args:
            dim: axes that hold the vectors; None: all.
            dtype: float type to compute in and of the result.

        Raises:
            DTypeError: no floats.
            ShapeError: the smallest or largest of no elements.

        >>> Tensor([3.0, -4.0]).vector_norm().item()
        5.0
        """
        if isinstance(ord, bool) or not isinstance(ord, (int, float)):
            raise ArgumentError(f"vector_norm: ord must be a number, got {ord!r}")
        source = _of_type(self, dtype, "vector_norm")
        axes = axis_numbers(
            tuple(dim) if isinstance(dim, (tuple, list)) and len(dim) else _none(dim), self.ndim, "norm"
        )
        return _vector_norm(source, float(ord), axes, keepdim)

    def matrix_norm(
        self, ord: Order = "fro", dim: Sequence[int] = (-2, -1), keepdim: bool = False,
        dtype: DType | str | None = None,
    ) -> Self:  # fmt: skip
        """Norms of matrices on two axes.

        Args:
            ord: "fro": root of the sum of squares; "nuc": sum of the singular values; inf, -inf: largest, smallest sum
                of absolute values of a row; 1, -1: of a column; 2, -2: largest, smallest singular value.
            dim: the axes of rows and of columns.
            dtype: float type to compute in and of the result.

        Raises:
            ArgumentError: another `ord`, or not two axes.
            DTypeError: no floats.

        >>> Tensor([[3.0, -4.0]]).matrix_norm().item()
        5.0
        """
        if self.ndim < 2:
            raise ShapeError(f"matrix_norm: needs at least 2 axes, got shape {self.shape}")
        if not isinstance(dim, (tuple, list)) or len(dim) != 2:
            raise ArgumentError(f"matrix_norm: dim must be two axes, got {dim!r}")
        if ord not in _MATRIX_ORDERS or isinstance(ord, bool):
            raise ArgumentError(f"matrix_norm: ord {ord!r} is not one of {_MATRIX_ORDERS}")
        source = _of_type(self, dtype, "matrix_norm")
        row, column = [axis_number(d, self.ndim, "matrix_norm") for d in dim]
        if row == column:
            raise ArgumentError(f"matrix_norm: dim {tuple(dim)} names the same axis twice")
        if ord == "fro":
            return _vector_norm(source, 2.0, tuple(sorted((row, column))), keepdim)
        if ord in ("nuc", 2, -2):
            return _spectral_norm(source, ord, row, column, keepdim)
        assert isinstance(ord, (int, float))
        inner, outer = (column, row) if math.isinf(ord) else (row, column)
        sums = source.abs().sum(inner, keepdim=True)
        if ord > 0 and source.shape[outer] == 0:
            found = sums.sum(outer, keepdim=True)
        else:
            found = sums.max(outer, keepdim=True) if ord > 0 else sums.min(outer, keepdim=True)
        return found if keepdim else found.squeeze((row, column))

    def linalg_norm(
        self, ord: Order = None, dim: int | Sequence[int] | None = None, keepdim: bool = False,
        dtype: DType | str | None = None,
    ) -> Self:  # fmt: skip
        """Norm of vectors (one axis) or of matrices (two axes), as in `torch.linalg.norm`.

        Args:
            ord: None: the 2-norm of all elements, whatever the number of axes; else see `vector_norm`, `matrix_norm`.
            dim: one axis or two; None takes all, which must be one or two where `ord` is given.

        Raises:
            ArgumentError: orders and axes that do not fit.

        >>> Tensor([[3.0, -4.0]]).linalg_norm(1).item()
        4.0
        """
        axes = None if dim is None else tuple(dim) if isinstance(dim, (tuple, list)) else (dim,)
        if ord is None:
            return self.vector_norm(2, axes, keepdim, dtype)
        count = self.ndim if axes is None else len(axes)
        if count not in (1, 2):
            raise ArgumentError(f"norm: with ord {ord!r} there must be 1 or 2 axes, not {count}; give dim")
        if count == 2:
            return self.matrix_norm(ord, (-2, -1) if axes is None else axes, keepdim, dtype)
        if isinstance(ord, str):
            raise ArgumentError(f"norm: ord {ord!r} is for matrices; give two axes")
        return self.vector_norm(ord, axes, keepdim, dtype)

    def norm(
        self, p: Order = "fro", dim: int | Sequence[int] | None = None, keepdim: bool = False,
        dtype: DType | str | None = None,
    ) -> Self:  # fmt: skip
        """`vector_norm` of order `p` over `dim`, all axes by default; "fro" is 2, "nuc" the nuclear norm of matrices.

        Raises:
            ArgumentError: another text, or "nuc" without two axes.

        >>> Tensor([[3.0, -4.0]]).norm().item()
        5.0
        """
        if p == "nuc":
            if self.ndim != 2 and (not isinstance(dim, (tuple, list)) or len(dim) != 2):
                raise ArgumentError(f"norm: 'nuc' needs two axes, got dim {dim!r} of shape {self.shape}; give dim")
            return self.matrix_norm("nuc", (0, 1) if dim is None else tuple(_none(dim)), keepdim, dtype)
        if isinstance(p, str) and p != "fro":
            raise ArgumentError(f"norm: p {p!r} is not a number, 'fro' or 'nuc'")
        return self.vector_norm(2 if p is None or isinstance(p, str) else p, dim, keepdim, dtype)

    def cond(self, p: Order = None) -> Self:
        """Condition number: the norm of a matrix times that of its inverse; None and 2: the ratio of the extreme
        singular values, -2 its reciprocal.

        Raises:
            ArgumentError: another `p`.
            ShapeError: not square, for orders other than None, 2 and -2.

        >>> Tensor([[2.0, 0.0], [0.0, 1.0]]).cond().item()
        2.0
        """
        matrix = float_matrices(self, "cond", square=p not in (None, 2, -2))
        if p in (None, 2, -2):
            values = matrix.svdvals()
            if 0 in values.shape:
                return values.constant_like(0, values.shape[:-1]).cast(self.dtype)
            last: list[tuple[int, int] | None] = [None] * (values.ndim - 1)
            count = values.shape[-1]
            large, small = (
                values.shrink([*last, (0, 1)]).squeeze(-1),
                values.shrink([*last, (count - 1, count)]).squeeze(-1),
            )
            return (small.fdiv(large) if p == -2 else large.fdiv(small)).cast(self.dtype)
        return matrix.matrix_norm(p).mul(matrix.inv().matrix_norm(p)).cast(self.dtype)


def _none(dim: Any) -> Any:
    """No axes named mean all."""
    return None if isinstance(dim, (tuple, list)) and not dim else dim


def _of_type(source: Any, dtype: DType | str | None, what: str) -> Any:
    chosen = source.dtype if dtype is None else to_dtype(dtype)
    if not chosen.is_float or not (source.dtype.is_float or dtype is None):
        raise DTypeError(
            f"{what}: needs floats, got {source.dtype}{'' if dtype is None else f' and dtype {chosen}'}; cast it"
        )
    return source.cast(chosen)


def _vector_norm(source: Any, order: float, axes: tuple[int, ...], keepdim: bool) -> Any:
    size = source.cast(accumulator(source.dtype)).abs()
    empty = any(source.shape[a] == 0 for a in axes)
    if empty and (order < 0 or math.isinf(order)):
        raise ShapeError(f"vector_norm: ord {order} over axes without elements, shape {source.shape}")
    if order == 0:
        total = size.ne(0).cast(size.dtype).sum(axes, keepdim)
    elif math.isinf(order):
        total = size.max(axes, keepdim) if order > 0 else size.min(axes, keepdim)
    elif order == 1:
        total = size.sum(axes, keepdim)
    elif len(axes) == 0 or all(source.shape[a] == 1 for a in axes):
        total = size if keepdim else size.reshape([s for a, s in enumerate(source.shape) if a not in axes])
    elif order == 2:
        total = _root(size.mul(size).sum(axes, keepdim))
    else:
        total = _power_norm(size, order, axes, keepdim)
    return total.cast(source.dtype)


def _root(squares: Any) -> Any:
    """Square root whose gradient at 0 is 0."""
    zero = squares.eq(0)
    return zero.where(0.0, zero.where(1.0, squares).sqrt())


def _power_norm(size: Any, order: float, axes: tuple[int, ...], keepdim: bool) -> Any:
    """The sum of powers to the power 1 / order. Elements that are 0 get no gradient, nor does a sum of 0."""
    zero = size.eq(0)
    powers = zero.where(0.0 if order > 0 else math.inf, zero.where(1.0, size).pow(order))
    total = powers.sum(axes, keepdim)
    edge = total.eq(0).bitwise_or(total.eq(math.inf))
    root = edge.where(1.0, total).pow(1.0 / order)
    return edge.where(total.detach().pow(1.0 / order), root)


def _spectral_norm(source: Any, order: Any, row: int, column: int, keepdim: bool) -> Any:
    rest = [a for a in range(source.ndim) if a not in (row, column)]
    values = source.permute([*rest, row, column]).svdvals()
    if order == "nuc":
        found = values.sum(-1)
    elif values.shape[-1] == 0 and order == 2:
        found = values.sum(-1)
    elif values.shape[-1] == 0:
        raise ShapeError(f"matrix_norm: ord {order} of matrices without elements, shape {source.shape}")
    else:
        found = values.max(-1) if order == 2 else values.min(-1)
    if not keepdim:
        return found
    shape = [1 if a in (row, column) else size for a, size in enumerate(source.shape)]
    return found.reshape(shape)
