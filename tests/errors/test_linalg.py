"""Mistakes in linear algebra."""

from __future__ import annotations

import string

import pytest

from gradlet import Tensor
from gradlet.base.errors import ArgumentError, DTypeError, GradientError, IndexingError, ShapeError
from tests.errors.table import Row, check

V = Tensor([1.0, 2.0])
M = Tensor([[1.0, 2.0], [3.0, 4.0]])
WIDE = Tensor.zeros(2, 3)
BATCH = Tensor.zeros(4, 2, 3)
INTEGERS = Tensor([[1, 2], [3, 4]])
SCALAR = Tensor(1.0)
ALPHABET = string.ascii_letters
MANY = Tensor.zeros((1,) * (len(ALPHABET) + 1))

MISTAKES: list[Row] = [
    (lambda: V.mm(M), ShapeError, r"mm: this must be a matrix \(2 axes\), got shape \(2,\)"),
    (lambda: M.mv(M), ShapeError, r"mv: vec must be a vector \(1 axes\), got shape \(2, 2\)"),
    (
        lambda: BATCH.bmm(Tensor.zeros(3, 3, 2)),
        ShapeError,
        r"bmm: shapes .* have batches of different size; use matmul",
    ),
    (lambda: V.vdot(Tensor.zeros(3)), ShapeError, "vdot: vectors of different size 2 and 3"),
    (lambda: V.inner(WIDE), ShapeError, r"inner: the last axes of shapes \(2,\) and \(2, 3\) differ"),
    (lambda: M.tensordot(WIDE, 1.5), ArgumentError, "tensordot: dims must be an integer"),
    (lambda: M.tensordot(WIDE, ([0, 1], [0])), ArgumentError, "tensordot: 2 axes of the first meet 1 of the second"),
    (lambda: M.tensordot(WIDE, ([1], [1])), ShapeError, r"tensordot: axes \[1\] of shape \(2, 2\) do not fit"),
    (lambda: M.addmm(M, WIDE), ShapeError, r"addmm: shapes \(2, 2\) and \(2, 3\) do not broadcast"),
    (lambda: INTEGERS.addmm(INTEGERS, INTEGERS, beta=0.5), DTypeError, "addmm: beta is 0.5, but the product is"),
    (lambda: Tensor.multi_dot([M]), ArgumentError, "multi_dot: needs at least 2 factors, got 1"),
    (lambda: Tensor.multi_dot([WIDE, WIDE]), ShapeError, "multi_dot: neighbours of shapes"),
    (lambda: V.cross(V), ShapeError, r"cross: no axis of shape \(2,\) has size 3"),
    (lambda: WIDE.cross(WIDE, 5), IndexingError, "cross: axis 5 is out of range"),
    (lambda: WIDE.matrix_power(2), ShapeError, r"matrix_power: needs square matrices, got shape \(2, 3\)"),
    (lambda: V.inv(), ShapeError, r"inv: this must hold matrices \(at least 2 axes\), got shape \(2,\)"),
    (lambda: WIDE.inv(), ShapeError, r"inv: this must hold square matrices, got shape \(2, 3\)"),
    (lambda: INTEGERS.inv(), DTypeError, "inv: this must be a float, got dtypes.int32; cast it"),
    (lambda: WIDE.det(), ShapeError, "det: this must hold square matrices"),
    (
        lambda: M.solve(Tensor.zeros(3, 1)),
        ShapeError,
        r"solve: matrices of shape \(2, 2\) and right sides of shape \(3, 1\)",
    ),
    (lambda: M.solve_triangular(WIDE, upper=True, left=False), ShapeError, "solve_triangular: matrices of shape"),
    (lambda: WIDE.cholesky(), ShapeError, "cholesky: this must hold square matrices"),
    (lambda: M.cholesky_solve(Tensor.eye(3)), ShapeError, "cholesky_solve: factors of shape"),
    (lambda: M.lu(pivot=False), ArgumentError, "lu: pivot=False is not supported"),
    (lambda: M.lu_unpack(Tensor([1])), ShapeError, "lu_unpack: pivots of shape"),
    (lambda: M.lu_solve(Tensor.eye(3), Tensor([1, 2, 3])), ShapeError, "lu_solve: factors of shape"),
    (lambda: M.qr("full"), ArgumentError, "qr: mode 'full' is not one of"),
    (lambda: WIDE.householder_product(V), ShapeError, "householder_product: shape .* more columns than rows"),
    (lambda: M.householder_product(Tensor.zeros(3)), ShapeError, "householder_product: tau of shape"),
    (lambda: M.ormqr(V, Tensor.zeros(3, 3)), ShapeError, "ormqr: reflectors of shape"),
    (lambda: M.eigh("X"), ArgumentError, "eigh: UPLO must be 'L' or 'U', got 'X'"),
    (lambda: WIDE.eigvalsh(), ShapeError, "eigh: this must hold square matrices"),
    (lambda: V.svd(), ShapeError, "svd: this must hold matrices"),
    (lambda: M.svd_lowrank(3), ArgumentError, "svd_lowrank: q is 3, more than the smaller side"),
    (lambda: M.lstsq(V, driver="qr"), ArgumentError, "lstsq: driver 'qr'"),
    (lambda: M.lstsq(Tensor.zeros(3, 1)), ShapeError, "lstsq: matrices of shape"),
    (lambda: M.matrix_norm("max"), ArgumentError, "matrix_norm: ord 'max' is not one of"),
    (lambda: M.matrix_norm(dim=(0, 0)), ArgumentError, "matrix_norm: dim .* names the same axis twice"),
    (lambda: V.matrix_norm(), ShapeError, "matrix_norm: needs at least 2 axes"),
    (lambda: BATCH.linalg_norm("fro"), ArgumentError, "norm: with ord 'fro' there must be 1 or 2 axes, not 3"),
    (lambda: M.norm("abc"), ArgumentError, "norm: p 'abc' is not a number, 'fro' or 'nuc'"),
    (lambda: INTEGERS.vector_norm(), DTypeError, "vector_norm: needs floats, got dtypes.int32"),
    (lambda: WIDE.cond(1), ShapeError, "cond: this must hold square matrices"),
    (lambda: M.tensorinv(1).tensorinv(2), ShapeError, "tensorinv: the first 2 axes"),
    (lambda: M.tensorsolve(V.reshape(1, 2)), ShapeError, "tensorsolve: shapes"),
    (lambda: V.newton_schulz(2, (1.5, -0.5)), ShapeError, "newton_schulz: needs matrices"),
    (lambda: Tensor.zeros(3, 3, 3).trace(), ShapeError, r"trace: needs a matrix, got shape \(3, 3, 3\)"),
    (lambda: V.bilinear(V, M), ShapeError, "bilinear: weight must be a batch of matrices"),
    (lambda: M.outer(V), ShapeError, r"outer: needs two vectors, got shapes \(2, 2\) and \(2,\)"),
    (lambda: Tensor.einsum("ij"), ArgumentError, "einsum: 'ij' has no tensors; give one for each group of letters"),
    (lambda: Tensor.einsum("ii->i", WIDE), ShapeError, "einsum: letter .i. of .ii->i. has sizes 2 and 3"),
    (lambda: Tensor.einsum("ii->i", WIDE[:1]), ShapeError, r"letter .i. has sizes 1 and 3 in shape \(1, 3\); one le"),
    (lambda: Tensor.einsum("i1->i", M), ArgumentError, "einsum: 'i1->i' may contain letters, ',', '...' and '->' only"),
    (lambda: Tensor.einsum(f"{ALPHABET}...", MANY), ArgumentError, "einsum: .* leaves 0 letters for the 1 axes of"),
    (lambda: SCALAR.vecdot(SCALAR), ShapeError, "vecdot: both need at least one axis; use .* for scalars"),
    (lambda: WIDE.vecdot(Tensor.zeros(2, 1)), ShapeError, r"vecdot: shapes \(2, 3\) and \(2, 1\) differ along axis -1"),
    (lambda: M.tensordot(M, [0]), ArgumentError, r"tensordot: dims must be a number or two lists of axes, got \[0\]"),
    (lambda: M.tensordot(V, 2), ArgumentError, "tensordot: dims 2 for tensors of 2 and 1 axes; sum over at most 1"),
    (lambda: M.addbmm(BATCH, BATCH), ShapeError, r"addbmm: shapes \(4, 2, 3\) and \(4, 2, 3\) do not fit: they are"),
    (lambda: Tensor.zeros(3, 2, 2).addmm(M, M), ShapeError, r"addmm: shape \(3, 2, 2\) does not broadcast to that of"),
    (lambda: Tensor.multi_dot([M, M.cast("float64")]), DTypeError, "multi_dot: .* dtypes.float32 and dtypes.float64"),
    (lambda: V.bilinear(V, BATCH), ShapeError, r"bilinear: inputs of shapes \(2,\) and \(2,\) do not fit a weight of"),
    (
        lambda: V.bilinear(Tensor.zeros(3), BATCH, Tensor.zeros(3)),
        ShapeError,
        r"bilinear: bias has shape \(3,\), the weight needs \(4,\)",
    ),
    (lambda: Tensor.zeros(3).cross(WIDE), ShapeError, r"cross: shapes \(3,\) and \(2, 3\) must have as many axes"),
    (lambda: WIDE.cross(WIDE, 0), ShapeError, "cross: axis 0 of shapes .* must have size 3"),
    (lambda: SCALAR.vander(), ArgumentError, "vander: a tensor without axes does not say how many powers .*; give N"),
    (lambda: V.diagonal(), ShapeError, r"diagonal: needs at least 2 axes, got shape \(2,\)"),
    (lambda: V.vector_norm("fro"), ArgumentError, "vector_norm: ord must be a number, got 'fro'"),
    (lambda: Tensor.zeros(2, 0).vector_norm(-1, 1), ShapeError, r"vector_norm: ord -1.0 over axes without elements"),
    (lambda: M.matrix_norm(dim=0), ArgumentError, "matrix_norm: dim must be two axes, got 0"),
    (lambda: Tensor.zeros(0, 3).matrix_norm(-2), ShapeError, "matrix_norm: ord -2 of matrices without elements, shape"),
    (lambda: V.linalg_norm("fro", 0), ArgumentError, "norm: ord 'fro' is for matrices; give two axes"),
    (lambda: V.norm("nuc"), ArgumentError, r"norm: 'nuc' needs two axes, got dim None of shape \(2,\); give dim"),
    (lambda: Tensor.multi_dot(M), ArgumentError, "multi_dot: tensors must be a list of factors, got Tensor"),
    (lambda: M.newton_schulz(2, 1.5), ArgumentError, "newton_schulz: params must be a list of factors, got 1.5"),
    (lambda: M.newton_schulz(2, ["a"]), ArgumentError, "newton_schulz: params must be a number, got 'a'"),
    (lambda: M.householder_product(None), DTypeError, "householder_product: tau must be a Tensor, got NoneType"),
    (lambda: M.lu_solve(M, None), DTypeError, "lu_solve: pivots must be a Tensor, got NoneType"),
    (lambda: M.solve([1.0, 2.0]), DTypeError, "solve: B must be a Tensor, got list; make it one with Tensor"),
    (lambda: M.pinv(atol="a"), ArgumentError, "pinv: atol must be a number, got 'a'"),
    (lambda: M.matrix_rank(rtol="a"), ArgumentError, "matrix_rank: rtol must be a number, got 'a'"),
    (lambda: M.lstsq(V, rcond="a"), ArgumentError, "lstsq: rcond must be a number, got 'a'"),
]

T = Tensor.ones(3, 2)


@pytest.mark.parametrize("row", MISTAKES, ids=[str(n) for n in range(len(MISTAKES))])
def test_mistake(row: Row) -> None:
    check(row)


def test_a_complete_factorization_of_tall_matrices_has_no_gradient() -> None:
    with pytest.raises(GradientError, match="mode 'complete' has no gradient for more rows than columns: use"):
        T.qr("complete")[1].sum().gradient(T)
