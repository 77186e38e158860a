"""The `linalg` extension of the standard: decompositions, solutions and norms of matrices in the last two axes."""

from __future__ import annotations

from typing import Any, NamedTuple

from gradlet.array_api.arguments import array, needs, pair
from gradlet.array_api.linear import matmul as matmul
from gradlet.array_api.linear import matrix_transpose as matrix_transpose
from gradlet.array_api.linear import tensordot as tensordot
from gradlet.array_api.linear import vecdot as vecdot
from gradlet.array_api.reductions import sum as _sum
from gradlet.base.dtype import dtypes
from gradlet.base.errors import ArgumentError, ShapeError
from gradlet.ops.arguments import axis_number, broadcast_shapes, integer
from gradlet.tensor.tensor import Tensor

__all__ = [
    "cholesky", "cross", "det", "diagonal", "eigh", "eigvalsh", "inv", "matmul", "matrix_norm", "matrix_power",
    "matrix_rank", "matrix_transpose", "outer", "pinv", "qr", "slogdet", "solve", "svd", "svdvals", "tensordot",
    "trace", "vecdot", "vector_norm",
]  # fmt: skip


class EighResult(NamedTuple):
    """What `eigh` gives."""

    eigenvalues: Tensor
    eigenvectors: Tensor


class QRResult(NamedTuple):
    """What `qr` gives."""

    Q: Tensor
    R: Tensor


class SlogdetResult(NamedTuple):
    """What `slogdet` gives."""

    sign: Tensor
    logabsdet: Tensor


class SVDResult(NamedTuple):
    """What `svd` gives."""

    U: Tensor
    S: Tensor
    Vh: Tensor


def _matrix(x: Any, what: str) -> Any:
    """An array of float matrices."""
    needs(array(x, what), what, "real floating")
    if x.ndim < 2:
        raise ShapeError(f"{what}: shape {x.shape} is no matrix")
    return x


def cholesky(x: Tensor, /, *, upper: bool = False) -> Tensor:
    """The triangular matrix L with L L^T = x (or U with U^T U = x) of positive definite matrices."""
    lower: Tensor = _matrix(x, "cholesky").cholesky()
    return lower.transpose(-1, -2) if upper else lower


def cross(x1: Tensor, x2: Tensor, /, *, axis: int = -1) -> Tensor:
    """The cross product of vectors with three elements along an axis; the other axes broadcast.

    Raises:
        ShapeError: another number of elements.
    """
    left, right = pair(array(x1, "cross", "x1"), array(x2, "cross", "x2"), "cross")
    needs(left, "cross", "numeric")
    shape = broadcast_shapes([left.shape, right.shape], "cross")
    number = axis_number(axis, min(left.ndim, right.ndim), "cross") - min(left.ndim, right.ndim)
    if left.shape[number] != 3 or right.shape[number] != 3:
        raise ShapeError(f"cross: shapes {left.shape} and {right.shape} must have 3 elements on axis {axis}")
    left, right = left.expand(shape), right.expand(shape)
    # Element i is x1[i + 1] x2[i + 2] - x1[i + 2] x2[i + 1], indices modulo 3.
    return left.roll(-1, number).mul(right.roll(-2, number)).sub(left.roll(-2, number).mul(right.roll(-1, number)))


def det(x: Tensor, /) -> Tensor:
    """The determinant."""
    result: Tensor = _matrix(x, "det").det()
    return result


def diagonal(x: Tensor, /, *, offset: int = 0) -> Tensor:
    """The diagonal of matrices that starts at column `offset`."""
    if array(x, "diagonal").ndim < 2:
        raise ShapeError(f"diagonal: shape {x.shape} is no matrix")
    return x.diagonal(offset, -2, -1)


def eigh(x: Tensor, /) -> EighResult:
    """Eigenvalues, ascending, and orthonormal eigenvectors, as columns, of symmetric matrices."""
    values, vectors = _matrix(x, "eigh").eigh()
    return EighResult(values, vectors)


def eigvalsh(x: Tensor, /) -> Tensor:
    """Eigenvalues, ascending, of symmetric matrices."""
    result: Tensor = _matrix(x, "eigvalsh").eigvalsh()
    return result


def inv(x: Tensor, /) -> Tensor:
    """The inverse."""
    result: Tensor = _matrix(x, "inv").inv()
    return result


def matrix_norm(x: Tensor, /, *, keepdims: bool = False, ord: Any = "fro") -> Tensor:
    """A norm of matrices: fro (root of the sum of squares), nuc (sum of the singular values), 1 or inf (the largest
    sum of a column or row), 2 (the largest singular value); -1, -2, -inf the smallest.

    Raises:
        ArgumentError: another norm.
    """
    _matrix(x, "matrix_norm")
    if ord == "fro":
        result = x.square().sum((-2, -1)).sqrt()
    elif ord in (1, -1, float("inf"), float("-inf")):
        sums = x.abs().sum(-2 if ord in (1, -1) else -1)
        result = sums.max(-1) if ord > 0 else sums.min(-1)
    elif ord in (2, -2, "nuc"):
        values = svdvals(x)
        result = values.sum(-1) if ord == "nuc" else values.max(-1) if ord == 2 else values.min(-1)
    else:
        raise ArgumentError(f"matrix_norm: ord {ord!r} is no norm; use 'fro', 'nuc', 1, 2, inf or their negatives")
    return result.unsqueeze(-1).unsqueeze(-1) if keepdims else result


def matrix_power(x: Tensor, n: int, /) -> Tensor:
    """The product of n equal matrices; of their inverses for negative n."""
    base, n = _matrix(x, "matrix_power"), integer(n, "matrix_power", "n")
    if n < 0:
        base, n = inv(base), -n
    size = base.shape[-1]
    result: Tensor = Tensor.eye(size, dtype=base.dtype, device=base.device).expand(*base.shape[:-2], size, size)
    while n:
        if n & 1:
            result = matmul(result, base)
        n >>= 1
        if n:
            base = matmul(base, base)
    return result


def matrix_rank(x: Tensor, /, *, rtol: Any = None) -> Tensor:
    """How many singular values are larger than `rtol` (the larger size times the type's eps) times the largest."""
    values = svdvals(_matrix(x, "matrix_rank"))
    bound = values.max(-1, True).mul(_tolerance(x, rtol))
    return values.gt(bound).cast(dtypes.default_int).sum(-1, dtype=dtypes.default_int)


def _tolerance(x: Any, rtol: Any) -> Any:
    if rtol is None:
        return max(x.shape[-2:]) * 2.0**-x.dtype.format.fraction
    return rtol.unsqueeze(-1) if isinstance(rtol, Tensor) else rtol


def outer(x1: Tensor, x2: Tensor, /) -> Tensor:
    """All products of an element of one vector with one of another.

    Raises:
        ShapeError: no vectors.
    """
    left, right = pair(array(x1, "outer", "x1"), array(x2, "outer", "x2"), "outer")
    if left.ndim != 1 or right.ndim != 1:
        raise ShapeError(f"outer: shapes {left.shape} and {right.shape} are no vectors")
    return left.unsqueeze(1).mul(right)


def pinv(x: Tensor, /, *, rtol: Any = None) -> Tensor:
    """The pseudo-inverse: singular values not larger than `rtol` times the largest count as zero."""
    parts = svd(_matrix(x, "pinv"), full_matrices=False)
    bound = parts.S.max(-1, True).mul(_tolerance(x, rtol))
    kept = parts.S.gt(bound)
    inverse = kept.where(kept.where(parts.S, 1).reciprocal(), 0)
    return matmul(matrix_transpose(parts.Vh).mul(inverse.unsqueeze(-2)), matrix_transpose(parts.U))


def qr(x: Tensor, /, *, mode: str = "reduced") -> QRResult:
    """Matrices with orthonormal columns and triangular ones, whose product is x.

    Raises:
        ArgumentError: another mode than reduced or complete.
    """
    if mode not in ("reduced", "complete"):
        raise ArgumentError(f"qr: mode {mode!r} must be 'reduced' or 'complete'")
    columns, triangle = _matrix(x, "qr").qr(mode)
    return QRResult(columns, triangle)


def slogdet(x: Tensor, /) -> SlogdetResult:
    """The sign of the determinant, and the logarithm of its absolute value."""
    sign, logarithm = _matrix(x, "slogdet").slogdet()
    return SlogdetResult(sign, logarithm)


def solve(x1: Tensor, x2: Tensor, /) -> Tensor:
    """The x with x1 x = x2: for matrices x2, or one vector."""
    left, right = pair(_matrix(x1, "solve"), array(x2, "solve", "x2"), "solve")
    if right.ndim == 1:
        result: Tensor = left.solve(right.unsqueeze(-1)).squeeze(-1)
        return result
    result = left.solve(right)
    return result


def svd(x: Tensor, /, *, full_matrices: bool = True) -> SVDResult:
    """Orthonormal columns U, singular values S, descending, and orthonormal rows Vh, with U diag(S) Vh = x."""
    left, values, right = _matrix(x, "svd").svd(full_matrices)
    return SVDResult(left, values, right)


def svdvals(x: Tensor, /) -> Tensor:
    """The singular values, descending."""
    result: Tensor = _matrix(x, "svdvals").svdvals()
    return result


def trace(x: Tensor, /, *, offset: int = 0, dtype: Any = None) -> Tensor:
    """The sum of the diagonal that starts at column `offset`."""
    return _sum(diagonal(x, offset=offset), axis=-1, dtype=dtype)


def vector_norm(x: Tensor, /, *, axis: Any = None, keepdims: bool = False, ord: float = 2) -> Tensor:
    """A norm of vectors along axes (of all elements if None): the `ord`-th root of the sum of absolute values to that
    power; inf and -inf the largest and smallest absolute value, 0 the number of elements that are not zero.
    """
    size = needs(array(x, "vector_norm"), "vector_norm", "real floating").abs()
    if ord == float("inf"):
        return size.max(axis, keepdims)
    if ord == float("-inf"):
        return size.min(axis, keepdims)
    if ord == 0:
        return size.ne(0).cast(x.dtype).sum(axis, keepdims)
    if ord == 1:
        return size.sum(axis, keepdims)
    if ord == 2:
        return size.square().sum(axis, keepdims).sqrt()
    return size.pow(ord).sum(axis, keepdims).pow(1 / ord)
