"""Batches of matrices as arguments: checks, one leading axis, and results whose gradients have a closed form."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any

from gradlet.base.dtype import accumulator, dtypes
from gradlet.base.errors import DTypeError, ShapeError
from gradlet.ops import elimination
from gradlet.ops.arguments import broadcast_shapes
from gradlet.ops.movement import operand

# These functions work on whatever has the methods of a tensor.
Matrices = Any


def float_matrices(value: Any, what: str, square: bool = False, name: str = "this") -> Matrices:
    """The argument in the type that it is computed in: 16-bit floats in float32.

    Raises:
        DTypeError: it is no float tensor.
        ShapeError: it has fewer than two axes, or `square` and its last two axes differ.
    """
    if operand(value, what, name).ndim < 2:
        raise ShapeError(f"{what}: {name} must hold matrices (at least 2 axes), got shape {value.shape}")
    if not value.dtype.is_float:
        raise DTypeError(f"{what}: {name} must be a float, got {value.dtype}; cast it")
    if square and value.shape[-1] != value.shape[-2]:
        raise ShapeError(f"{what}: {name} must hold square matrices, got shape {value.shape}")
    return value.cast(accumulator(value.dtype))


def in_batches(matrix: Matrices) -> Matrices:
    """All leading axes as one."""
    return matrix.reshape(prod(matrix.shape[:-2]), *matrix.shape[-2:])


def transposed(matrix: Matrices) -> Matrices:
    """The last two axes swapped."""
    return matrix.transpose(-1, -2)


def box(matrix: Matrices, rows: int | None, columns: int | None) -> Matrices:
    """The first rows and columns; None keeps all."""
    lead: list[tuple[int, int] | None] = [None] * (matrix.ndim - 2)
    return matrix.shrink([*lead, None if rows is None else (0, rows), None if columns is None else (0, columns)])


def eye_like(matrix: Matrices, rows: int, columns: int) -> Matrices:
    """The identity of this type for every matrix of the batch."""
    one = matrix.eye(rows, columns, dtype=matrix.dtype, device=matrix.place)
    return one.expand((*matrix.shape[:-2], rows, columns))


def symmetric(matrix: Matrices) -> Matrices:
    """The mean of a matrix and its transpose."""
    return matrix.add(transposed(matrix)).mul(0.5)


def common_batch(first: Matrices, second: Matrices, what: str) -> tuple[Matrices, Matrices]:
    """Both with the leading axes that they have in common after broadcasting.

    Raises:
        ShapeError: these do not broadcast.
    """
    first, second = first.same_dtype([second])
    lead = broadcast_shapes([first.shape[:-2], second.shape[:-2]], what)
    return first.expand((*lead, *first.shape[-2:])), second.expand((*lead, *second.shape[-2:]))


def one_hot_rows(order: Matrices, dtype: Any) -> Matrices:
    """The matrix that takes row `order[i]` to row i, for integers [..., n]."""
    count = order.shape[-1]
    numbers = order.positions(count, order.place)
    return order.unsqueeze(-1).eq(numbers).cast(dtype)


# inverses of triangles
def lower_inverse(lower: Matrices) -> Matrices:
    """The inverse of lower triangular matrices, of which nothing above the diagonal may be other than 0."""
    if 0 in lower.shape:
        return lower
    value = elimination.triangular_inverse(in_batches(lower.detach())).reshape(lower.shape)
    return _lower_inverse(value, lower)


def _lower_inverse(value: Matrices, lower: Matrices) -> Matrices:
    """d(X) = -X d(L) X."""

    def rule(gradient: Matrices) -> Sequence[Matrices]:
        back = transposed(_lower_inverse(value, lower))
        return [back.dot(gradient).dot(back).neg().tril()]

    return value.with_derivative("triangular inverse", [lower], rule)


# inverses and solutions
def with_inverse_rule(value: Matrices, matrix: Matrices) -> Matrices:
    """An inverse with its gradient: d(X) = -X d(A) X."""

    def rule(gradient: Matrices) -> Sequence[Matrices]:
        back = transposed(with_inverse_rule(value, matrix))
        return [back.dot(gradient).dot(back).neg()]

    return value.with_derivative("inv", [matrix], rule)


def solution(matrix: Matrices, right: Matrices, inverse: Matrices) -> Matrices:
    """X with matrix @ X = right, from an approximate inverse that carries no gradient, refined once.

    Both have the same leading axes. d(X) = inverse (d(right) - d(matrix) X).
    """
    if 0 in right.shape or 0 in matrix.shape:
        return matrix.dot(right).mul(0)
    a, b = matrix.detach(), right.detach()
    first = inverse.dot(b).contiguous()
    rest = inverse.dot(b.sub(a.dot(first)))
    # Where the first solution is not finite the correction has no meaning.
    value = rest.isfinite().where(first.add(rest), first).contiguous()
    return _solution(value, matrix, right, inverse)


def _solution(value: Matrices, matrix: Matrices, right: Matrices, inverse: Matrices) -> Matrices:
    def rule(gradient: Matrices) -> Sequence[Matrices]:
        back = solution(transposed(matrix), gradient, transposed(inverse))
        found = _solution(value, matrix, right, inverse)
        return [back.dot(transposed(found)).neg(), back]

    return value.with_derivative("solve", [matrix, right], rule)


def position_dtype() -> Any:
    """The type of positions that a user sees."""
    return dtypes.default_int
