"""Composed mixin: triangular systems and the Cholesky factorization."""

# Batches of matrices are Any to the type checker, see `matrices`.
# mypy: disable-error-code="no-any-return"

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Self

from gradlet.base.dtype import dtypes
from gradlet.base.errors import ShapeError
from gradlet.ops import elimination
from gradlet.ops.matrices import (
    common_batch,
    eye_like,
    float_matrices,
    in_batches,
    lower_inverse,
    solution,
    symmetric,
    transposed,
    with_inverse_rule,
)
from gradlet.ops.products import ProductsMixin


class TriangularMixin(ProductsMixin):
    """Triangles."""

    __slots__ = ()

    def solve_triangular(self, B: Self, *, upper: bool, left: bool = True, unitriangular: bool = False) -> Self:
        """X with `self @ X = B`, or `X @ self = B` where not `left`, for triangular matrices; leading axes broadcast.

        Only the triangle is read. A zero on the diagonal gives infinities and NaN. The triangle is inverted by blocks,
        the result refined once.

        Args:
            B: right sides, [..., n, k] (left) or [..., k, n].
            upper: whether this is an upper triangle.
            left: side of the unknown's factor.
            unitriangular: take the diagonal as 1, whatever it is.

        Raises:
            ShapeError: not square, or shapes that do not fit.
            DTypeError: no floats.

        >>> Tensor([[2.0, 0.0], [1.0, 1.0]]).solve_triangular(Tensor([[2.0], [3.0]]), upper=False).tolist()
        [[1.0], [2.0]]
        """
        what = "solve_triangular"
        matrix, right = float_matrices(self, what, square=True), float_matrices(B, what, name="B")
        if not left:
            matrix, right, upper = transposed(matrix), transposed(right), not upper
        if right.shape[-2] != matrix.shape[-1]:
            raise ShapeError(
                f"{what}: matrices of shape {self.shape} and right sides of shape {B.shape} do not fit "
                f"{'left' if left else 'right'}"
            )
        matrix, right = common_batch(matrix, right, what)
        result_dtype = self.same_dtype([B])[0].dtype
        if 0 in matrix.shape or 0 in right.shape:
            result = right.mul(1)
        else:
            lower = transposed(matrix) if upper else matrix
            if unitriangular:
                lower = lower.tril(-1).add(eye_like(lower, lower.shape[-1], lower.shape[-1]))
            else:
                lower = lower.tril()
            inverse = lower_inverse(lower.detach())
            if upper:
                lower, inverse = transposed(lower), transposed(inverse)
            result = solution(lower, right, inverse)
        return (result if left else transposed(result)).cast(result_dtype)

    def triangular_solve(
        self, A: Self, upper: bool = True, transpose: bool = False, unitriangular: bool = False
    ) -> tuple[Self, Self]:  # fmt: skip
        """X with `A @ X = self` for a triangular A, and A; see `solve_triangular`.

        Args:
            transpose: solve `A.T @ X = self`.

        Raises:
            ShapeError: not square, or shapes that do not fit.

        >>> Tensor([[2.0]]).triangular_solve(Tensor([[4.0]]))[0].tolist()
        [[0.5]]
        """
        checked = float_matrices(A, "triangular_solve", name="A")
        matrix = transposed(checked) if transpose else A
        solved = matrix.solve_triangular(self, upper=upper != transpose, unitriangular=unitriangular)
        lead = solved.shape[:-2]
        return solved, A.expand((*lead, *A.shape[-2:]))

    def cholesky(self, upper: bool = False) -> Self:
        """L with `L @ L.T = self` for symmetric positive definite matrices; with `upper` its transpose.

        Only the triangle of the result is read. From the first pivot on that is not positive the result is NaN.
        Gradient: Giles 2008, "An extended collection of matrix derivative results", made symmetric.

        Raises:
            ShapeError: not square.
            DTypeError: no floats.

        >>> Tensor([[4.0, 2.0], [2.0, 5.0]]).cholesky().tolist()
        [[2.0, 0.0], [1.0, 2.0]]
        """
        matrix = float_matrices(self, "cholesky", square=True)
        if 0 in matrix.shape:
            return self.mul(1)
        source = transposed(matrix) if upper else matrix
        value = elimination.cholesky(in_batches(source.detach())).reshape(matrix.shape)
        lower = _cholesky(value, source)
        return (transposed(lower) if upper else lower).cast(self.dtype)

    def cholesky_ex(self, upper: bool = False, check_errors: bool = False) -> tuple[Self, Self]:
        """`cholesky`, and an int32 a matrix: 0, or the size of the first leading block that is not positive definite.

        Args:
            check_errors: nothing is raised; look at the second result.

        >>> Tensor([[-1.0]]).cholesky_ex()[1].item()
        1
        """
        factor = self.cholesky(upper)
        size = factor.shape[-1]
        if 0 in factor.shape:
            return factor, factor.constant_like(0, factor.shape[:-2], dtypes.int32)
        diagonal = factor.detach().diagonal(0, -2, -1)
        place = factor.positions(size, factor.place)
        first = diagonal.gt(0).where(size, place).min(-1)
        info = first.eq(size).where(0, first.add(1)).cast(dtypes.int32)
        return factor, info

    def cholesky_inverse(self, upper: bool = False) -> Self:
        """The inverse of `L @ L.T`, where this is the factor L, or its transpose with `upper`.

        Raises:
            ShapeError: not square.
            DTypeError: no floats.

        >>> Tensor([[2.0]]).cholesky_inverse().tolist()
        [[0.25]]
        """
        factor = float_matrices(self, "cholesky_inverse", square=True)
        if 0 in factor.shape:
            return self.mul(1)
        lower = _dense_lower(transposed(factor) if upper else factor)
        inverse = lower_inverse(lower.detach())
        value = transposed(inverse).dot(inverse).contiguous()
        return with_inverse_rule(value, lower.dot(transposed(lower))).cast(self.dtype)

    def cholesky_solve(self, L: Self, upper: bool = False) -> Self:
        """X with `L @ L.T @ X = self`; with `upper`, L is the transposed factor.

        Raises:
            ShapeError: shapes that do not fit.
            DTypeError: no floats.

        >>> Tensor([[8.0]]).cholesky_solve(Tensor([[2.0]])).tolist()
        [[2.0]]
        """
        factor = float_matrices(L, "cholesky_solve", square=True, name="L")
        right = float_matrices(self, "cholesky_solve")
        if right.shape[-2] != factor.shape[-1]:
            raise ShapeError(f"cholesky_solve: factors of shape {L.shape} do not fit right sides of shape {self.shape}")
        factor, right = common_batch(factor, right, "cholesky_solve")
        if 0 in factor.shape or 0 in right.shape:
            return right.mul(1).cast(self.dtype)
        lower = _dense_lower(transposed(factor) if upper else factor)
        inverse = lower_inverse(lower.detach())
        matrix = lower.dot(transposed(lower))
        return solution(matrix, right, transposed(inverse).dot(inverse).contiguous()).cast(self.dtype)


def _dense_lower(factor: Any) -> Any:
    """The lower triangle of a factor; its gradient is that of a dense matrix, as in torch."""
    return factor.detach().tril().with_derivative("triangle", [factor], lambda gradient: [gradient])


def _cholesky(value: Any, matrix: Any) -> Any:
    """The factor with its gradient."""

    def rule(gradient: Any) -> Sequence[Any]:
        lower = _cholesky(value, matrix)
        inverse = lower_inverse(lower)
        product = transposed(lower).dot(gradient)
        half = product.tril().sub(
            product.diagonal(0, -2, -1).mul(0.5).unsqueeze(-1).mul(eye_like(lower, *lower.shape[-2:]))
        )
        return [symmetric(transposed(inverse).dot(half).dot(inverse))]

    return value.with_derivative("cholesky", [matrix], rule)
