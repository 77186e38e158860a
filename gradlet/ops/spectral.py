"""Composed mixin: eigenvalues of symmetric matrices, singular values, and what follows from them."""

# Batches of matrices are Any to the type checker, see `matrices`.
# mypy: disable-error-code="no-any-return"

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Self

from gradlet.base.dtype import dtypes
from gradlet.base.errors import ArgumentError
from gradlet.ops import jacobi
from gradlet.ops.arguments import integer, number
from gradlet.ops.factorizations import FactorizationsMixin
from gradlet.ops.matrices import (
    box,
    eye_like,
    float_matrices,
    in_batches,
    position_dtype,
    symmetric,
    transposed,
)
from gradlet.ops.movement import MovementMixin


class SpectralMixin(FactorizationsMixin):
    """Spectra."""

    __slots__ = ()

    def eigh(self, UPLO: str = "L") -> tuple[Self, Self]:
        """Eigenvalues of symmetric matrices, ascending, and orthonormal eigenvectors, the columns of the second.

        `self @ V = V @ diag(w)`. Only one triangle is read. The signs of eigenvectors, and those of equal eigenvalues
        altogether, are arbitrary, and so are their gradients. Jacobi rotations; a matrix with NaN gives NaN. Gradient:
        Giles 2008, "An extended collection of matrix derivative results".

        Args:
            UPLO: "L" or "U": the triangle that is read.

        Raises:
            ArgumentError: another `UPLO`.
            ShapeError: not square.
            DTypeError: no floats.

        >>> Tensor([[2.0, 0.0], [0.0, 1.0]]).eigh()[0].tolist()
        [1.0, 2.0]
        """
        matrix = _triangle(self, UPLO, "eigh")
        if 0 in matrix.shape:
            return self.constant_like(0, matrix.shape[:-1]), self.mul(1)
        values, vectors = _eigen_value(matrix)
        found = [_eigen(values, vectors, matrix, part) for part in (0, 1)]
        return found[0].cast(self.dtype), found[1].cast(self.dtype)

    def eigvalsh(self, UPLO: str = "L") -> Self:
        """Eigenvalues of symmetric matrices, ascending; see `eigh`. Their gradient is right for equal ones too.

        Raises:
            ArgumentError: another `UPLO`.
            ShapeError: not square.

        >>> Tensor([[2.0, 0.0], [0.0, 1.0]]).eigvalsh().tolist()
        [1.0, 2.0]
        """
        return self.eigh(UPLO)[0]

    def svd(self, full_matrices: bool = True) -> tuple[Self, Self, Self]:
        """U, S, Vh with `U @ diag(S) @ Vh = self`: orthonormal columns, singular values descending, orthonormal rows.

        The third result is V transposed, as in `torch.linalg.svd` and numpy. U and Vh are orthonormal for every rank.
        Signs, and vectors of equal singular values, are arbitrary, and so are their gradients. One-sided Jacobi; a
        matrix with NaN gives NaN. Gradient: Ionescu et al. 2015, "Matrix backpropagation for deep networks with
        structured layers"; Townsend 2016, "Differentiating the singular value decomposition".

        Args:
            full_matrices: U is m x m and Vh n x n, else m x k and k x n, k = min(m, n). The vectors past k carry no
                gradient.

        Raises:
            ShapeError: fewer than two axes.
            DTypeError: no floats.

        >>> u, s, vh = Tensor([[0.0, 2.0], [1.0, 0.0]]).svd()
        >>> s.tolist()
        [2.0, 1.0]
        """
        matrix = float_matrices(self, "svd")
        lead, (rows, columns) = matrix.shape[:-2], matrix.shape[-2:]
        least = min(rows, columns)
        if 0 in matrix.shape:
            widths = (rows, columns) if full_matrices else (least, least)
            left, right = _some_identity(self, rows, widths[0]), _some_identity(self, widths[1], columns)
            return left, self.constant_like(0, (*lead, least)), right
        flat = in_batches(matrix.detach())
        wide = rows < columns
        left, values, right = jacobi.singular(transposed(flat) if wide else flat, True, full_matrices)
        if wide:
            left, right = transposed(right), transposed(left)
        parts = [p.reshape(*lead, *p.shape[1:]).contiguous() for p in (left, values, right)]
        found = [_singular(parts, matrix, part).cast(self.dtype) for part in (0, 1, 2)]
        return found[0], found[1], found[2]

    def svdvals(self) -> Self:
        """Singular values, descending; see `svd`. Their gradient is right for equal ones too.

        Raises:
            ShapeError: fewer than two axes.
            DTypeError: no floats.

        >>> Tensor([[0.0, 2.0], [1.0, 0.0]]).svdvals().tolist()
        [2.0, 1.0]
        """
        matrix = float_matrices(self, "svdvals")
        lead, least = matrix.shape[:-2], min(matrix.shape[-2:])
        if 0 in matrix.shape:
            return self.constant_like(0, (*lead, least))
        flat = in_batches(matrix.detach())
        flat = transposed(flat) if matrix.shape[-2] < matrix.shape[-1] else flat
        # Of large matrices the vectors correct the values.
        values = jacobi.singular(flat, least > jacobi.REFINED, False)[1].reshape(*lead, least)

        def rule(gradient: Any) -> Sequence[Any]:
            left, _, right = matrix.svd(full_matrices=False)
            return [left.mul(gradient.unsqueeze(-2)).dot(right)]

        return values.with_derivative("svdvals", [matrix], rule).cast(self.dtype)

    def pinv(self, atol: Any = None, rtol: Any = None, hermitian: bool = False) -> Self:
        """Pseudo-inverse (Moore and Penrose): `V @ diag(1 / S) @ U.T` over the singular values above a limit.

        Gradient: Golub and Pereyra 1973, "The differentiation of pseudo-inverses"; it takes the rank as constant.

        Args:
            atol, rtol: the limit is the larger of `atol` and `rtol` times the largest singular value; by default atol
                is 0 and rtol max(m, n) times the type's epsilon, or 0 where atol is given. Numbers, or a tensor with a
                value a matrix.
            hermitian: the matrices are symmetric; only the lower triangle is read.

        Raises:
            ShapeError: fewer than two axes, or not square with `hermitian`.
            DTypeError: no floats.

        >>> Tensor([[2.0, 0.0]]).pinv().tolist()
        [[0.5], [0.0]]
        """
        matrix = float_matrices(self, "pinv", square=hermitian)
        if 0 in matrix.shape:
            return transposed(self).mul(1)
        source = _mirrored(matrix.detach()) if hermitian else matrix.detach()
        left, values, right = source.svd(full_matrices=False)
        kept = values.gt(rank_limit(values, matrix.shape[-2:], atol, rtol, self.dtype, "pinv"))
        inverse = kept.where(kept.where(values, 1.0).reciprocal(), 0.0).unsqueeze(-2)
        value = transposed(right).mul(inverse).dot(transposed(left)).contiguous()
        return _pinv(value, matrix).cast(self.dtype)

    def pinverse(self, rcond: float = 1e-15) -> Self:
        """`pinv` with `rtol=rcond`.

        >>> Tensor([[2.0]]).pinverse().tolist()
        [[0.5]]
        """
        return self.pinv(rtol=number(rcond, "pinverse", "rcond"))

    def matrix_rank(self, atol: Any = None, rtol: Any = None, hermitian: bool = False) -> Self:
        """How many singular values are above a limit; see `pinv` for the limit.

        Raises:
            ShapeError: fewer than two axes, or not square with `hermitian`.
            DTypeError: no floats.

        >>> Tensor([[1.0, 1.0], [1.0, 1.0]]).matrix_rank().item()
        1
        """
        matrix = float_matrices(self, "matrix_rank", square=hermitian).detach()
        if 0 in matrix.shape:
            return self.constant_like(0, matrix.shape[:-2], dtypes.int64).cast(position_dtype())
        values = (_mirrored(matrix) if hermitian else matrix).svdvals()
        limit = rank_limit(values, matrix.shape[-2:], atol, rtol, self.dtype, "matrix_rank")
        return values.gt(limit).where(1, 0).sum(-1).cast(position_dtype())

    def svd_lowrank(self, q: int = 6, niter: int = 2, M: Self | None = None) -> tuple[Self, Self, Self]:
        """The q largest singular values with their vectors: U, S and V (not transposed) of `self - M`.

        They are those of the whole decomposition: nothing here is random, and `niter` changes nothing.

        Raises:
            ArgumentError: q is larger than the smaller side.

        >>> Tensor([[0.0, 2.0], [1.0, 0.0]]).svd_lowrank(1)[1].tolist()
        [2.0]
        """
        source = self if M is None else self.sub(M)
        q = integer(q, "svd_lowrank", "q", 0)
        if self.ndim < 2 or q > min(self.shape[-2:]):
            raise ArgumentError(f"svd_lowrank: q is {q}, more than the smaller side of shape {self.shape}")
        left, values, right = source.svd(full_matrices=False)
        kept: list[tuple[int, int] | None] = [None] * (values.ndim - 1) + [(0, q)]
        return box(left, None, q), values.shrink(kept), transposed(box(right, q, None))

    def pca_lowrank(self, q: int | None = None, center: bool = True, niter: int = 2) -> tuple[Self, Self, Self]:
        """Principal components of the rows: `svd_lowrank` of this, centred by the mean of each column.

        Args:
            q: how many; None takes 6, or the smaller side.

        Raises:
            ArgumentError: q is larger than the smaller side.

        >>> Tensor([[1.0, 0.0], [3.0, 0.0]]).pca_lowrank(1)[1].allclose(Tensor([2.0**0.5]))
        True
        """
        matrix = float_matrices(self, "pca_lowrank")
        count = min(6, *matrix.shape[-2:]) if q is None else q
        return self.svd_lowrank(count, niter, self.mean(-2, keepdim=True) if center else None)


def rank_limit(values: Any, sides: Sequence[int], atol: Any, rtol: Any, dtype: Any, what: str) -> Any:
    """Below which singular values count as 0, shaped to compare with them."""
    absolute, relative = _limit(atol, values, what, "atol"), _limit(rtol, values, what, "rtol")
    if relative is None:
        default = max(sides) * {8: 2.0**-52, 4: 2.0**-23}.get(dtype.itemsize, 2.0**-10)
        if absolute is None:
            relative = default
        elif isinstance(absolute, float):
            relative = 0.0 if absolute > 0 else default
        else:
            relative = absolute.gt(0).where(0.0, default)
    limit = values.max(-1, keepdim=True).mul(relative)
    return limit if absolute is None else limit.maximum(absolute)


def _limit(value: Any, values: Any, what: str, name: str) -> Any:
    """One limit: a number, or a tensor shaped like singular values; None where it is not given."""
    if isinstance(value, MovementMixin):
        return value.cast(values.dtype).unsqueeze(-1)  # type: ignore[attr-defined]
    return None if value is None else float(number(value, what, name))


def _some_identity(source: Any, rows: int, columns: int) -> Any:
    """Ones on the diagonal, for a batch or a size that may be 0."""
    if rows and columns and 0 not in source.shape[:-2]:
        return eye_like(source, rows, columns)
    return source.constant_like(0, (*source.shape[:-2], rows, columns))


def _mirrored(matrix: Any) -> Any:
    """Symmetric from the lower triangle."""
    return matrix.tril().add(transposed(matrix.tril(-1)))


def _triangle(source: Any, uplo: str, what: str) -> Any:
    """The matrices with the triangle that is read below the diagonal."""
    if not isinstance(uplo, str) or uplo.upper() not in ("L", "U"):
        raise ArgumentError(f"{what}: UPLO must be 'L' or 'U', got {uplo!r}")
    matrix = float_matrices(source, what, square=True)
    return transposed(matrix) if uplo.upper() == "U" else matrix


# eigenvalues
def _eigen_value(matrix: Any) -> tuple[Any, Any]:
    values, vectors = jacobi.eigen(in_batches(matrix.detach()))
    return values.reshape(matrix.shape[:-1]).contiguous(), vectors.reshape(matrix.shape).contiguous()


def _eigen(values: Any, vectors: Any, matrix: Any, which: int) -> Any:
    """Eigenvalues (which = 0) or eigenvectors (1) with their gradient.

    d(w) = diag(V^T d(A) V), d(V) = V (E * V^T d(A) V), E_ij = 1 / (w_j - w_i) off the diagonal.
    """

    def rule(gradient: Any) -> Sequence[Any]:
        own = _eigen(values, vectors, matrix, 1)
        if which == 0:
            return [own.mul(gradient.unsqueeze(-2)).dot(transposed(own))]
        eigenvalues = _eigen(values, vectors, matrix, 0)
        gaps = eigenvalues.unsqueeze(-2).sub(eigenvalues.unsqueeze(-1))
        diagonal = eye_like(matrix, *matrix.shape[-2:]).ne(0)
        inner = diagonal.where(0.0, transposed(own).dot(gradient).fdiv(diagonal.where(1.0, gaps)))
        return [symmetric(own.dot(inner).dot(transposed(own)))]

    return (vectors if which else values).with_derivative("eigh", [matrix], rule)


# singular values
def _singular(parts: Sequence[Any], matrix: Any, which: int) -> Any:
    """U (which = 0), S (1) or Vh (2) with its gradient."""
    rows, columns = matrix.shape[-2:]
    least = min(rows, columns)

    def rule(gradient: Any) -> Sequence[Any]:
        left = box(_singular(parts, matrix, 0), None, least)
        right = box(_singular(parts, matrix, 2), least, None)
        if which == 1:
            return [left.mul(gradient.unsqueeze(-2)).dot(right)]
        values = _singular(parts, matrix, 1)
        row, column = values.unsqueeze(-2), values.unsqueeze(-1)
        diagonal = eye_like(matrix, least, least).ne(0)
        gaps = diagonal.where(1.0, row.sub(column).mul(row.add(column)))
        if which == 0:
            return [_left_gradient(left, values, right, box(gradient, None, least), gaps, rows > least)]
        # The right vectors are the left ones of the transposed matrix.
        turned = transposed(box(gradient, least, None))
        found = _left_gradient(transposed(right), values, transposed(left), turned, gaps, columns > least)
        return [transposed(found)]

    return parts[which].with_derivative("svd", [matrix], rule)


def _left_gradient(left: Any, values: Any, right: Any, gradient: Any, gaps: Any, rest: bool) -> Any:
    """U (skew(U^T dU) / gaps) S Vh, and for what lies outside the span of U: (1 - U U^T) dU S^-1 Vh."""
    inside = transposed(left).dot(gradient)
    turned = inside.sub(transposed(inside)).fdiv(gaps).mul(values.unsqueeze(-2))
    result = left.dot(turned).dot(right)
    if not rest:
        return result
    outside = gradient.sub(left.dot(inside)).fdiv(values.unsqueeze(-2))
    return result.add(outside.dot(right))


def _pinv(value: Any, matrix: Any) -> Any:
    """d(P) = -P dA P + P P^T dA^T (1 - A P) + (1 - P A) dA^T P^T P."""

    def rule(gradient: Any) -> Sequence[Any]:
        inverse = _pinv(value, matrix)
        back = transposed(inverse)
        turned = transposed(gradient)
        result = back.dot(gradient).dot(back).neg()
        outer = turned.dot(inverse).dot(back)
        result = result.add(outer.sub(matrix.dot(inverse).dot(outer)))
        inner = back.dot(inverse).dot(turned)
        result = result.add(inner.sub(inner.dot(inverse).dot(matrix)))
        return [result]

    return value.with_derivative("pinv", [matrix], rule)
