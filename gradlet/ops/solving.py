"""Composed mixin: determinants, inverses, linear systems and the exponential of matrices."""

# Batches of matrices are Any to the type checker, see `matrices`.
# mypy: disable-error-code="no-any-return"

from __future__ import annotations

from collections.abc import Sequence
from math import factorial, prod
from typing import Any, Self

from gradlet.base.dtype import dtypes
from gradlet.base.errors import ArgumentError, ShapeError
from gradlet.ops import elimination
from gradlet.ops.arguments import axis_number, integer, number
from gradlet.ops.factorizations import first_zero_pivot
from gradlet.ops.matrices import (
    common_batch,
    eye_like,
    float_matrices,
    in_batches,
    one_hot_rows,
    position_dtype,
    solution,
    transposed,
    with_inverse_rule,
)
from gradlet.ops.movement import operand
from gradlet.ops.norms import NormsMixin

# exp(A / 2 ** s) is a Taylor polynomial of this degree, exact to rounding up to these norms of A / 2 ** s for float64
# and float32; then it is squared s times, which doubles the error s times.
TAYLOR_DEGREE = 16
TAYLOR_NORMS = (0.75, 2.0)
MOST_SQUARINGS = 20


class SolvingMixin(NormsMixin):
    """Systems."""

    __slots__ = ()

    def det(self) -> Self:
        """Determinants of square matrices, by LU. The gradient is the adjugate, also for singular matrices.

        Raises:
            ShapeError: not square.
            DTypeError: no floats.

        >>> Tensor([[2.0, 1.0], [0.0, 3.0]]).det().item()
        6.0
        """
        matrix = float_matrices(self, "det", square=True)
        if 0 in matrix.shape:
            return self.constant_like(1, matrix.shape[:-2])
        return _det(matrix, _eliminated(matrix)).cast(self.dtype)

    def slogdet(self) -> tuple[Self, Self]:
        """Sign and logarithm of the absolute value of determinants; 0 and -inf for singular matrices.

        Raises:
            ShapeError: not square.
            DTypeError: no floats.

        >>> [t.item() for t in Tensor([[-1.0]]).slogdet()]
        [-1.0, 0.0]
        """
        matrix = float_matrices(self, "slogdet", square=True)
        if 0 in matrix.shape:
            return self.constant_like(1, matrix.shape[:-2]), self.constant_like(0, matrix.shape[:-2])
        packed, swaps, order = _eliminated(matrix)
        pivots = packed.diagonal(0, -2, -1)
        sign = _exchange_sign(swaps, packed).mul(pivots.sign().prod(-1))
        value = pivots.abs().log().sum(-1).contiguous()

        def rule(gradient: Any) -> Sequence[Any]:
            return [transposed(_inverse(matrix, (packed, swaps, order))).mul(gradient.unsqueeze(-1).unsqueeze(-1))]

        return sign.cast(self.dtype), value.with_derivative("slogdet", [matrix], rule).cast(self.dtype)

    def logdet(self) -> Self:
        """Logarithm of determinants: NaN for negative ones, -inf for 0.

        >>> Tensor([[1.0]]).logdet().item()
        0.0
        """
        sign, value = self.slogdet()
        return sign.lt(0).where(float("nan"), value)

    def inv(self) -> Self:
        """Inverses of square matrices, by LU, refined once. Singular ones give infinities or NaN.

        Raises:
            ShapeError: not square.
            DTypeError: no floats.

        >>> Tensor([[2.0, 0.0], [0.0, 4.0]]).inv().tolist()
        [[0.5, 0.0], [0.0, 0.25]]
        """
        matrix = float_matrices(self, "inv", square=True)
        if 0 in matrix.shape:
            return self.mul(1)
        return _inverse(matrix, _eliminated(matrix)).cast(self.dtype)

    def inverse(self) -> Self:
        """Same as `inv`.

        >>> Tensor([[2.0]]).inverse().tolist()
        [[0.5]]
        """
        return self.inv()

    def inv_ex(self, check_errors: bool = False) -> tuple[Self, Self]:
        """`inv`, and an int32 a matrix: 0, or the number, from 1, of the first pivot that is 0.

        Args:
            check_errors: nothing is raised; look at the second result.

        >>> Tensor([[0.0]]).inv_ex()[1].item()
        1
        """
        return self.inv(), self.lu_factor_ex()[2]

    def solve(self, B: Self, left: bool = True) -> Self:
        """X with `self @ X = B`, or `X @ self = B` where not `left`; leading axes broadcast.

        B holds matrices; or vectors, where it has one axis, or the shape of this without the last axis. By LU, the
        result refined once; singular matrices give infinities or NaN.

        Raises:
            ShapeError: not square, or shapes that do not fit.
            DTypeError: no floats.

        >>> Tensor([[2.0, 0.0], [0.0, 4.0]]).solve(Tensor([2.0, 2.0])).tolist()
        [1.0, 0.5]
        """
        return self._solved(B, left)[0]

    def solve_ex(self, B: Self, left: bool = True, check_errors: bool = False) -> tuple[Self, Self]:
        """`solve`, and an int32 a matrix: 0, or the number, from 1, of the first pivot that is 0.

        >>> Tensor([[2.0]]).solve_ex(Tensor([4.0]))[1].item()
        0
        """
        return self._solved(B, left)

    def _solved(self, B: Self, left: bool) -> tuple[Self, Self]:
        matrix = float_matrices(self, "solve", square=True)
        vector = operand(B, "solve", "B").ndim == 1 or (B.ndim == matrix.ndim - 1 and B.shape == matrix.shape[:-1])
        right = float_matrices(B.unsqueeze(-1) if vector else B, "solve", name="B")
        info_shape = matrix.shape[:-2]
        if not left:
            matrix = transposed(matrix)
            right = right if vector else transposed(right)
        if right.shape[-2] != matrix.shape[-1]:
            raise ShapeError(f"solve: matrices of shape {self.shape} and right sides of shape {B.shape} do not fit")
        if 0 in matrix.shape:
            info = self.constant_like(0, info_shape, dtypes.int32)
            matrix, right = common_batch(matrix, right, "solve")
            result = right.mul(1)
        else:
            eliminated = _eliminated(matrix)
            info = first_zero_pivot(eliminated[0])
            inverse = _inverse_value(eliminated)
            matrix, right = common_batch(matrix, right, "solve")
            inverse = inverse.expand(matrix.shape)
            result = solution(matrix, right, inverse)
        result = result.squeeze(-1) if vector else result if left else transposed(result)
        return result.cast(self.same_dtype([B])[0].dtype), info

    def lstsq(
        self, B: Self, rcond: float | None = None, *, driver: str | None = None
    ) -> tuple[Self, Self, Self, Self]:  # fmt: skip
        """X of the smallest norm that minimises `norm(self @ X - B)`; the residuals, the rank, the singular values.

        Args:
            B: right sides, [..., m, k] or [..., m].
            rcond: singular values up to `rcond` times the largest count as 0; None: max(m, n) times epsilon.
            driver: "gels", "gelsy", "gelsd", "gelss" or None: as in LAPACK, it says what else is returned: the rank for
                all but "gels", the singular values for the last two. How the solution is found does not depend on it.

        Returns:
            Solution; squared residuals a column, empty where m <= n; rank; singular values. What is not returned is
            empty.

        Raises:
            ArgumentError: another driver.
            ShapeError: shapes that do not fit.

        >>> Tensor([[1.0], [1.0]]).lstsq(Tensor([[1.0], [3.0]]))[0].allclose(Tensor([[2.0]]))
        True
        """
        if driver not in (None, "gels", "gelsy", "gelsd", "gelss"):
            raise ArgumentError(f"lstsq: driver {driver!r} is not one of None, 'gels', 'gelsy', 'gelsd', 'gelss'")
        if rcond is not None:
            number(rcond, "lstsq", "rcond")
        matrix = float_matrices(self, "lstsq")
        vector = matrix.ndim - 1 == operand(B, "lstsq", "B").ndim and B.shape == matrix.shape[:-1]
        right = float_matrices(B.unsqueeze(-1) if vector else B, "lstsq", name="B")
        rows, columns = matrix.shape[-2:]
        if right.shape[-2] != rows:
            raise ShapeError(f"lstsq: matrices of shape {self.shape} and right sides of shape {B.shape} do not fit")
        matrix, right = common_batch(matrix, right, "lstsq")
        lead = matrix.shape[:-2]
        inverse = matrix.pinv(rtol=rcond)
        result = (
            inverse.dot(right) if 0 not in matrix.shape else matrix.constant_like(0, (*lead, columns, right.shape[-1]))
        )
        residuals = matrix.constant_like(0, (0,))
        if rows > columns and driver != "gelsy":
            residuals = matrix.dot(result).sub(right).square().sum(-2)
        rank = matrix.constant_like(0, (0,), position_dtype())
        if driver != "gels":
            rank = matrix.matrix_rank(rtol=rcond)
        values = matrix.svdvals() if driver in ("gelsd", "gelss") else matrix.constant_like(0, (0,))
        result = result.squeeze(-1) if vector else result
        return result.cast(self.dtype), residuals.cast(self.dtype), rank, values.cast(self.dtype)

    def tensorinv(self, ind: int = 2) -> Self:
        """The inverse for `tensordot` over `ind` axes: axes up to `ind` against the rest as a square matrix.

        Raises:
            ShapeError: the two parts do not have as many elements.

        >>> Tensor.eye(4).reshape(2, 2, 2, 2).tensorinv().shape
        (2, 2, 2, 2)
        """
        ind = integer(ind, "tensorinv", "ind", 1)
        first, second = self.shape[:ind], self.shape[ind:]
        if prod(first) != prod(second):
            raise ShapeError(
                f"tensorinv: the first {ind} axes of shape {self.shape} have {prod(first)} elements, the others "
                f"{prod(second)}; they must be equal"
            )
        return self.reshape(prod(first), prod(second)).inv().reshape(*second, *first)

    def tensorsolve(self, other: Self, dims: Sequence[int] | None = None) -> Self:
        """X with `self.tensordot(X, X.ndim) = other`.

        Args:
            dims: axes of this that are moved to the end first.

        Raises:
            ShapeError: the axes do not make a square matrix.

        >>> Tensor.eye(4).reshape(2, 2, 2, 2).tensorsolve(Tensor([[1.0, 2.0], [3.0, 4.0]])).tolist()
        [[1.0, 2.0], [3.0, 4.0]]
        """
        operand(other, "tensorsolve", "other")
        moved = self
        if dims is not None:
            listed = dims if isinstance(dims, (tuple, list)) else (dims,)
            last = [axis_number(d, self.ndim, "tensorsolve") for d in listed]
            moved = self.permute([a for a in range(self.ndim) if a not in last] + last)
        wanted = moved.shape[other.ndim :]
        if prod(moved.shape[: other.ndim]) != prod(wanted) or prod(wanted) != other.numel():
            raise ShapeError(f"tensorsolve: shapes {self.shape} and {other.shape} do not make a square system")
        matrix = moved.reshape(prod(wanted), prod(wanted))
        return matrix.solve(other.flatten()).reshape(wanted)

    def matrix_exp(self) -> Self:
        """`1 + A + A @ A / 2 + ...` of square matrices: a Taylor polynomial of A divided by a power of two, squared.

        Sources: Higham 2005, "The scaling and squaring method for the matrix exponential revisited"; Paterson and
        Stockmeyer 1973 for the polynomial.

        Raises:
            ShapeError: not square.
            DTypeError: no floats.

        >>> Tensor([[0.0, 1.0], [0.0, 0.0]]).matrix_exp().tolist()
        [[1.0, 1.0], [0.0, 1.0]]
        """
        matrix = float_matrices(self, "matrix_exp", square=True)
        if 0 in matrix.shape:
            return self.mul(1)
        norm = matrix.detach().abs().sum(-2, keepdim=True).max(-1, keepdim=True)
        largest = TAYLOR_NORMS[matrix.dtype.itemsize < 8]
        squarings = norm.div(largest).maximum(1.0).log2().ceil().clip(0, MOST_SQUARINGS)
        small = matrix.mul(squarings.neg().exp2())
        one = eye_like(matrix, *matrix.shape[-2:])
        powers = [one, small, small.dot(small).contiguous()]
        powers.append(powers[2].dot(small).contiguous())
        fourth = powers[2].dot(powers[2]).contiguous()
        result = one.mul(1 / factorial(TAYLOR_DEGREE))
        for start in range(TAYLOR_DEGREE - 4, -1, -4):
            block = powers[0].mul(1 / factorial(start))
            for offset in (1, 2, 3):
                block = block.add(powers[offset].mul(1 / factorial(start + offset)))
            result = fourth.dot(result).add(block).contiguous()
        for halving in range(MOST_SQUARINGS):
            result = squarings.gt(halving).where(result.dot(result), result).contiguous()
        return result.cast(self.dtype)


# elimination, shared by determinants, inverses and solutions
def _eliminated(matrix: Any) -> tuple[Any, Any, Any]:
    """Packed factors, exchanges and order of rows, without gradient."""
    lead, size = matrix.shape[:-2], matrix.shape[-1]
    packed, swaps, order = elimination.lu(in_batches(matrix.detach()))
    return packed.reshape(matrix.shape), swaps.reshape(*lead, size), order.reshape(*lead, size)


def _exchange_sign(swaps: Any, packed: Any) -> Any:
    """1 or -1: the determinant of the exchanges."""
    moved = swaps.ne(swaps.positions(swaps.shape[-1], swaps.place))
    return moved.where(-1.0, 1.0).cast(packed.dtype).prod(-1)


def _inverse_value(eliminated: tuple[Any, Any, Any]) -> Any:
    """inverse(U) @ inverse(L) @ P^T."""
    packed, _, order = eliminated
    size = packed.shape[-1]
    flat = in_batches(packed)
    lower = elimination.triangular_inverse(flat.tril(-1).add(eye_like(flat, size, size)))
    upper = transposed(elimination.triangular_inverse(transposed(flat.triu())))
    product = upper.dot(lower).reshape(packed.shape)
    return product.dot(one_hot_rows(order, packed.dtype)).contiguous()


def _inverse(matrix: Any, eliminated: tuple[Any, Any, Any]) -> Any:
    """The inverse, after one step of Newton's iteration X + X (1 - A X), with its gradient."""
    first = _inverse_value(eliminated)
    rest = first.dot(eye_like(matrix, *matrix.shape[-2:]).sub(matrix.detach().dot(first)))
    value = rest.isfinite().where(first.add(rest), first).contiguous()
    return with_inverse_rule(value, matrix)


def _det(matrix: Any, eliminated: tuple[Any, Any, Any]) -> Any:
    """The determinant; d(det) = trace(adjugate d(A)) (Jacobi's formula)."""
    packed, swaps, _ = eliminated
    value = packed.diagonal(0, -2, -1).prod(-1).mul(_exchange_sign(swaps, packed)).contiguous()

    def rule(gradient: Any) -> Sequence[Any]:
        return [transposed(_adjugate(matrix, eliminated)).mul(gradient.unsqueeze(-1).unsqueeze(-1))]

    return value.with_derivative("det", [matrix], rule)


def _adjugate(matrix: Any, eliminated: tuple[Any, Any, Any]) -> Any:
    """adj(A) = adj(U) inverse(L) P^T det(P), which needs no division by a pivot.

    Its own gradient is that of det(A) inverse(A), so it needs a matrix that is not singular.
    """
    packed, swaps, order = eliminated
    size = packed.shape[-1]
    flat = in_batches(packed)
    lower = elimination.triangular_inverse(flat.tril(-1).add(eye_like(flat, size, size)))
    upper = transposed(elimination.triangular_inverse(transposed(flat.triu()), adjugate=True))
    product = upper.dot(lower).reshape(packed.shape).dot(one_hot_rows(order, packed.dtype))
    value = product.mul(_exchange_sign(swaps, packed).unsqueeze(-1).unsqueeze(-1)).contiguous()

    def rule(gradient: Any) -> Sequence[Any]:
        inverse = _inverse(matrix, eliminated)
        determinant = _det(matrix, eliminated).unsqueeze(-1).unsqueeze(-1)
        back = transposed(inverse)
        along = gradient.mul(inverse).sum((-2, -1), keepdim=True)
        return [back.mul(along).sub(back.dot(gradient).dot(back)).mul(determinant)]

    return value.with_derivative("adjugate", [matrix], rule)
