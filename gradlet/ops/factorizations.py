"""Composed mixin: LU and QR factorizations, and what is solved with them."""

# Batches of matrices are Any to the type checker, see `matrices`.
# mypy: disable-error-code="no-any-return"

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Self

from gradlet.base.dtype import dtypes
from gradlet.base.errors import ArgumentError, GradientError, ShapeError
from gradlet.ops import elimination
from gradlet.ops.matrices import (
    box,
    eye_like,
    float_matrices,
    in_batches,
    lower_inverse,
    one_hot_rows,
    transposed,
)
from gradlet.ops.movement import operand
from gradlet.ops.triangular import TriangularMixin

QR_MODES = ("reduced", "complete", "r")


class FactorizationsMixin(TriangularMixin):
    """Factorizations."""

    __slots__ = ()

    # LU
    def lu_factor(self, pivot: bool = True) -> tuple[Self, Self]:
        """Gaussian elimination with row exchanges: L (its diagonal of ones left out) and U in one matrix, and the
        exchanges: row i was swapped with row `pivots[i]`, counted from 1, as LAPACK has it (int32).

        Raises:
            ShapeError: fewer than two axes.
            DTypeError: no floats.

        >>> [t.tolist() for t in Tensor([[1.0, 2.0], [2.0, 2.0]]).lu_factor()]
        [[[2.0, 2.0], [0.5, 1.0]], [2, 2]]
        """
        packed, swaps, _ = _lu(self, pivot, "lu_factor")
        return packed.cast(self.dtype), swaps.add(1)

    def lu_factor_ex(self, pivot: bool = True, check_errors: bool = False) -> tuple[Self, Self, Self]:
        """`lu_factor`, and an int32 a matrix: 0, or the number, from 1, of the first pivot that is 0.

        Args:
            check_errors: nothing is raised; look at the third result.

        >>> Tensor([[0.0]]).lu_factor_ex()[2].item()
        1
        """
        packed, pivots = self.lu_factor(pivot)
        return packed, pivots, first_zero_pivot(packed)

    def lu(self, pivot: bool = True) -> tuple[Self, Self, Self]:
        """P, L and U with `P @ L @ U = self`: a permutation, a lower triangle with ones, an upper triangle.

        Raises:
            ShapeError: fewer than two axes.
            DTypeError: no floats.

        >>> [t.tolist() for t in Tensor([[1.0, 2.0], [2.0, 2.0]]).lu()]
        [[[0.0, 1.0], [1.0, 0.0]], [[1.0, 0.0], [0.5, 1.0]], [[2.0, 2.0], [0.0, 1.0]]]
        """
        packed, _, order = _lu(self, pivot, "lu")
        lower, upper = _unpacked(packed)
        permutation = transposed(one_hot_rows(order, self.dtype))
        return permutation, lower.cast(self.dtype), upper.cast(self.dtype)

    def lu_unpack(
        self, LU_pivots: Self, unpack_data: bool = True, unpack_pivots: bool = True
    ) -> tuple[Self, Self, Self]:  # fmt: skip
        """P, L and U of what `lu_factor` gave; a part that is not asked for is empty.

        Args:
            LU_pivots: the exchanges, from 1.

        Raises:
            ShapeError: pivots that do not fit.

        >>> packed, pivots = Tensor([[1.0, 2.0], [2.0, 2.0]]).lu_factor()
        >>> packed.lu_unpack(pivots)[0].tolist()
        [[0.0, 1.0], [1.0, 0.0]]
        """
        packed = float_matrices(self, "lu_unpack")
        empty = packed.constant_like(0, (0,), self.dtype)
        lower, upper = _unpacked(packed) if unpack_data else (empty, empty)
        permutation = empty
        if unpack_pivots:
            order = _order_of(LU_pivots, packed, "lu_unpack")
            permutation = transposed(one_hot_rows(order, self.dtype))
        return permutation, lower.cast(self.dtype), upper.cast(self.dtype)

    def lu_solve(self, LU_data: Self, LU_pivots: Self, left: bool = True, adjoint: bool = False) -> Self:
        """X with `A @ X = self` (`X @ A = self` where not `left`; A transposed with `adjoint`), from A's `lu_factor`.

        Raises:
            ShapeError: shapes that do not fit.

        >>> Tensor([[2.0], [4.0]]).lu_solve(*Tensor([[1.0, 0.0], [0.0, 2.0]]).lu_factor()).tolist()
        [[2.0], [2.0]]
        """
        what = "lu_solve"
        packed, right = float_matrices(LU_data, what, True, "LU_data"), float_matrices(self, what)
        if not left:
            right, adjoint = transposed(right), not adjoint
        if right.shape[-2] != packed.shape[-1]:
            raise ShapeError(f"{what}: factors of shape {LU_data.shape} do not fit right sides of shape {self.shape}")
        order = _order_of(LU_pivots, packed, what)
        exchange = one_hot_rows(order, packed.dtype)
        if adjoint:
            half = transposed(packed).solve_triangular(right, upper=False)
            half = transposed(packed).solve_triangular(half, upper=True, unitriangular=True)
            result = transposed(exchange).dot(half)
        else:
            half = packed.solve_triangular(exchange.dot(right), upper=False, unitriangular=True)
            result = packed.solve_triangular(half, upper=True)
        return (result if left else transposed(result)).cast(self.dtype)

    # QR
    def qr(self, mode: str = "reduced") -> tuple[Self, Self]:
        """Q with orthonormal columns and an upper triangle R with `Q @ R = self`, by Householder reflections.

        Right for any rank: where columns depend on each other, Q is orthonormal all the same. Signs are LAPACK's.
        Gradient: Walter and Lehmann 2012, "On evaluating higher-order derivatives of the QR decomposition"; Roberts
        and Roberts 2020 for wide matrices.

        Args:
            mode: "reduced": Q is m x k and R k x n with k = min(m, n); "complete": Q is m x m, R m x n; "r": only R of
                the first, Q is empty.

        Raises:
            ArgumentError: another mode.
            ShapeError: fewer than two axes.
            GradientError: the gradient of a complete factorization of tall matrices, or of mode "r".

        >>> q, r = Tensor([[3.0, 1.0], [4.0, 2.0]]).qr()
        >>> (q @ r).sub(Tensor([[3.0, 1.0], [4.0, 2.0]])).abs().max().item() < 1e-6
        True
        """
        if mode not in QR_MODES:
            raise ArgumentError(f"qr: mode {mode!r} is not one of {QR_MODES}")
        matrix = float_matrices(self, "qr")
        rows, columns = matrix.shape[-2:]
        lead, least = matrix.shape[:-2], min(matrix.shape[-2:])
        width = rows if mode == "complete" else least
        if 0 in matrix.shape:
            left = (
                eye_like(matrix, rows, width)
                if rows and 0 not in lead
                else matrix.constant_like(0, (*lead, rows, width))
            )
            right = matrix.constant_like(0, (*lead, width, columns))
        else:
            packed, factors = elimination.householder(in_batches(matrix.detach()))
            upper = packed.triu().shrink((None, (0, width), None)).reshape(*lead, width, columns)
            orthogonal = upper
            if mode != "r":
                orthogonal = elimination.orthogonal_factor(packed, factors, width).reshape(*lead, rows, width)
            left = _qr(orthogonal, upper, matrix, mode, 0)
            right = _qr(orthogonal, upper, matrix, mode, 1)
        if mode == "r":
            left = matrix.constant_like(0, (0,))
        return left.cast(self.dtype), right.cast(self.dtype)

    def geqrf(self) -> tuple[Self, Self]:
        """The QR factorization as reflectors: R on and above the diagonal, reflectors below it, and their factors.

        It has no gradient; `qr` does.

        >>> Tensor([[3.0], [4.0]]).geqrf()[0].tolist()
        [[-5.0], [0.5]]
        """
        matrix = float_matrices(self, "geqrf")
        if 0 in matrix.shape:
            return self.mul(1), self.constant_like(0, (*matrix.shape[:-2], min(matrix.shape[-2:])))
        packed, factors = elimination.householder(in_batches(matrix.detach()))
        lead = matrix.shape[:-2]
        return packed.reshape(matrix.shape).cast(self.dtype), factors.reshape(*lead, factors.shape[-1]).cast(self.dtype)

    def householder_product(self, tau: Self) -> Self:
        """The first columns of `H_0 @ H_1 @ ...`, `H_i = I - tau[i] * v_i @ v_i.T`, v_i the column below the diagonal
        with a 1 on it: LAPACK's `orgqr`. As many columns as this has.

        Raises:
            ShapeError: more columns than rows, or more factors than columns.

        >>> packed, tau = Tensor([[3.0], [4.0]]).geqrf()
        >>> [[round(v, 4) for v in row] for row in packed.householder_product(tau).tolist()]
        [[-0.6], [-0.8]]
        """
        what = "householder_product"
        packed = float_matrices(self, what)
        factors = operand(tau, what, "tau").cast(packed.dtype)
        _check_reflectors(packed, factors, what)
        if packed.shape[-1] > packed.shape[-2]:
            raise ShapeError(f"{what}: shape {self.shape} has more columns than rows")
        if 0 in packed.shape:
            return self.mul(1)
        return _reflected(packed, factors, packed.shape[-1]).cast(self.dtype)

    def ormqr(self, tau: Self, other: Self, left: bool = True, transpose: bool = False) -> Self:
        """`Q @ other` (`other @ Q` where not `left`; Q transposed with `transpose`), Q the whole product of the
        reflectors of `geqrf`.

        Raises:
            ShapeError: shapes that do not fit.

        >>> packed, tau = Tensor([[3.0], [4.0]]).geqrf()
        >>> [[round(v, 4) for v in row] for row in packed.ormqr(tau, Tensor([[1.0], [0.0]])).tolist()]
        [[-0.6], [-0.8]]
        """
        what = "ormqr"
        packed, right = float_matrices(self, what), float_matrices(other, what, name="other")
        factors = operand(tau, what, "tau").cast(packed.dtype)
        _check_reflectors(packed, factors, what)
        if right.shape[:-2] != packed.shape[:-2] or right.shape[-2 if left else -1] != packed.shape[-2]:
            raise ShapeError(f"{what}: reflectors of shape {self.shape} do not fit other of shape {other.shape}")
        if 0 in right.shape or 0 in packed.shape:
            return other.mul(1)
        whole = _reflected(packed, factors, packed.shape[-2])
        whole = transposed(whole) if transpose else whole
        return (whole.dot(right) if left else right.dot(whole)).cast(other.dtype)


def _check_reflectors(packed: Any, factors: Any, what: str) -> None:
    count = factors.shape[-1] if factors.ndim else -1
    if factors.shape[:-1] != packed.shape[:-2] or not 0 <= count <= min(packed.shape[-2:]):
        raise ShapeError(f"{what}: tau of shape {factors.shape} does not fit reflectors of shape {packed.shape}")


def _reflected(packed: Any, factors: Any, columns: int) -> Any:
    """The first columns of the product of reflectors, with gradients."""
    lead, rows = packed.shape[:-2], packed.shape[-2]
    if factors.shape[-1] == 0:
        return eye_like(packed, rows, columns)
    flat = factors.reshape(-1, factors.shape[-1])
    product = elimination.orthogonal_factor(in_batches(packed), flat, columns, lower_inverse)
    return product.reshape(*lead, rows, columns)


def first_zero_pivot(packed: Any) -> Any:
    """0, or the number from 1 of the first pivot that is 0, as int32 a matrix."""
    least = min(packed.shape[-2:])
    if least == 0 or 0 in packed.shape:
        return packed.constant_like(0, packed.shape[:-2], dtypes.int32)
    pivots = packed.detach().diagonal(0, -2, -1)
    first = pivots.eq(0).where(packed.positions(least, packed.place), least).min(-1)
    return first.eq(least).where(0, first.add(1)).cast(dtypes.int32)


# LU
def _lu(source: Any, pivot: bool, what: str) -> tuple[Any, Any, Any]:
    """The packed factors with their gradient, the exchanges from 0, and where each row came from."""
    if not pivot:
        raise ArgumentError(f"{what}: pivot=False is not supported: elimination without exchanges is not stable")
    matrix = float_matrices(source, what)
    lead, (rows, columns) = matrix.shape[:-2], matrix.shape[-2:]
    least = min(rows, columns)
    if 0 in matrix.shape:
        order = matrix.positions(rows, matrix.place).expand((*lead, rows)).cast(dtypes.int32)
        return matrix, matrix.constant_like(0, (*lead, least), dtypes.int32), order
    packed, swaps, order = elimination.lu(in_batches(matrix.detach()))
    order = order.reshape(*lead, rows)
    return _lu_packed(packed.reshape(matrix.shape), matrix, order), swaps.reshape(*lead, least), order


def _unpacked(packed: Any) -> tuple[Any, Any]:
    rows, columns = packed.shape[-2:]
    least = min(rows, columns)
    lower = box(packed, None, least).tril(-1).add(eye_like(packed, rows, least))
    return lower, box(packed, least, None).triu()


def _order_of(pivots: Any, packed: Any, what: str) -> Any:
    """For pivots [..., k] from 1 where each row came from, [..., rows]."""
    rows, least = packed.shape[-2], min(packed.shape[-2:])
    if operand(pivots, what, "pivots").ndim < 1 or pivots.shape[-1] != least or not pivots.dtype.is_int:
        raise ShapeError(
            f"{what}: pivots of shape {pivots.shape} and type {pivots.dtype} do not fit factors of shape "
            f"{packed.shape}: {least} integers a matrix are needed"
        )
    lead = pivots.shape[:-1]
    if least == 0 or 0 in lead:
        return packed.positions(rows, packed.place).expand((*lead, rows))
    flat = pivots.reshape(-1, least).cast(dtypes.int32).sub(1)
    return elimination.exchanged_rows(flat, rows).reshape(*lead, rows)


def _lu_packed(value: Any, matrix: Any, order: Any) -> Any:
    """The packed factors with their gradient; order: where each row of them came from."""
    rows, columns = matrix.shape[-2:]
    least = min(rows, columns)

    def rule(gradient: Any) -> Sequence[Any]:
        lower, upper = _unpacked(_lu_packed(value, matrix, order))
        lower_gradient = box(gradient, None, least).tril(-1)
        upper_gradient = box(gradient, least, None).triu()
        square_lower, square_upper = box(lower, least, least), box(upper, least, least)
        lower_back = transposed(lower_inverse(square_lower))
        upper_back = lower_inverse(transposed(square_upper))
        pieces_right = pieces_below = None
        if columns > least:
            # The columns to the right of the square part: U2 = L' A2.
            lead: list[tuple[int, int] | None] = [None] * (upper.ndim - 2)
            beside = [*lead, None, (least, columns)]
            pieces_right = lower_back.dot(upper_gradient.shrink(beside))
            lower_gradient = lower_gradient.sub(pieces_right.dot(transposed(upper.shrink(beside))))
            upper_gradient = box(upper_gradient, None, least)
        if rows > least:
            # The rows below the square part: L2 = A2 U'.
            lead = [None] * (lower.ndim - 2)
            under = [*lead, (least, rows), None]
            pieces_below = lower_gradient.shrink(under).dot(upper_back)
            upper_gradient = upper_gradient.sub(transposed(lower.shrink(under)).dot(pieces_below))
            lower_gradient = box(lower_gradient, least, None)
        inner = transposed(square_lower).dot(lower_gradient).tril(-1)
        inner = inner.add(upper_gradient.dot(transposed(square_upper)).triu())
        result = lower_back.dot(inner).dot(upper_back)
        result = result if pieces_right is None else result.cat(pieces_right, dim=-1)
        result = result if pieces_below is None else result.cat(pieces_below, dim=-2)
        return [transposed(one_hot_rows(order, result.dtype)).dot(result)]

    return value.with_derivative("lu", [matrix], rule)


# QR
def _qr(orthogonal: Any, upper: Any, matrix: Any, mode: str, which: int) -> Any:
    """Q (which = 0) or R (1) with its gradient."""
    rows, columns = matrix.shape[-2:]

    def rule(gradient: Any) -> Sequence[Any]:
        if mode == "r" or (mode == "complete" and rows > columns):
            raise GradientError(
                f"qr: mode {mode!r} has no gradient"
                + (" for more rows than columns" if mode == "complete" else "")
                + ": use mode='reduced'"
            )
        left, right = [_qr(orthogonal, upper, matrix, mode, part) for part in (0, 1)]
        zero = orthogonal.constant_like(0.0)
        left_gradient = gradient if which == 0 else zero
        right_gradient = gradient if which == 1 else upper.constant_like(0.0)
        if rows >= columns:
            return [_qr_square(left, right, left_gradient, right_gradient)]
        # Wide: the columns to the right of the square part are A2 = Q R2.
        beside: list[tuple[int, int] | None] = [None] * (matrix.ndim - 1) + [(rows, columns)]
        rest, rest_gradient = matrix.shrink(beside), right_gradient.shrink(beside)
        left_gradient = left_gradient.add(rest.dot(transposed(rest_gradient)))
        first = _qr_square(left, box(right, None, rows), left_gradient, box(right_gradient, None, rows))
        return [first.cat(left.dot(rest_gradient), dim=-1)]

    value = upper if which else orthogonal
    return value.with_derivative("qr", [matrix], rule)


def _qr_square(left: Any, right: Any, left_gradient: Any, right_gradient: Any) -> Any:
    """Gradient of the matrix where R is square: (dQ + Q sym(M)) R^-T, M = R dR^T - dQ^T Q, sym from M's lower part."""
    mixed = right.dot(transposed(right_gradient)).sub(transposed(left_gradient).dot(left))
    sym = mixed.tril().add(transposed(mixed.tril(-1)))
    return left_gradient.add(left.dot(sym)).dot(lower_inverse(transposed(right)))
