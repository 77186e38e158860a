"""Products of the standard, and its `linalg` extension."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import gradlet.array_api as xp
from gradlet import Tensor, dtypes
from gradlet.base.errors import ArgumentError, DTypeError, ShapeError

RNG = np.random.default_rng(5)


def some(*shape: int, dtype: str = "float64") -> np.ndarray:
    return RNG.standard_normal(shape).astype(dtype)


def close(ours: Tensor, theirs: Any, rtol: float = 1e-10) -> None:
    theirs = np.asarray(theirs)
    assert ours.shape == theirs.shape
    np.testing.assert_allclose(ours.numpy(), theirs, rtol=rtol, atol=1e-10)


SHAPES = [((3, 4), (4, 2)), ((4,), (4, 2)), ((3, 4), (4,)), ((4,), (4,)), ((2, 1, 3, 4), (5, 4, 2)), ((0, 3), (3, 2))]


@pytest.mark.parametrize(("first", "second"), SHAPES)
def test_matmul(first: tuple[int, ...], second: tuple[int, ...]) -> None:
    a, b = some(*first), some(*second)
    close(xp.matmul(Tensor(a), Tensor(b)), a @ b)
    close(Tensor(a) @ Tensor(b), a @ b)


def test_matmul_of_integers_keeps_the_type() -> None:
    a = np.arange(6, dtype=np.int8).reshape(2, 3)
    result = xp.matmul(Tensor(a), Tensor(a.T.copy()))
    assert result.dtype is dtypes.int8
    np.testing.assert_array_equal(result.numpy(), a @ a.T)


def test_products_that_do_not_fit() -> None:
    for call in (
        lambda: xp.matmul(Tensor([[1.0]]), Tensor([1.0, 2.0])),
        lambda: xp.matmul(Tensor(1.0), Tensor([1.0])),
        lambda: xp.tensordot(Tensor([[1.0]]), Tensor([[1.0, 2.0]])),
        lambda: xp.tensordot(Tensor([1.0]), Tensor([1.0]), axes=3),
        lambda: xp.vecdot(Tensor([1.0]), Tensor([1.0, 2.0])),
        lambda: xp.matrix_transpose(Tensor([1.0])),
        lambda: xp.linalg.cross(Tensor([1.0, 2.0]), Tensor([1.0, 2.0])),
        lambda: xp.linalg.outer(Tensor([[1.0]]), Tensor([1.0])),
        lambda: xp.linalg.diagonal(Tensor([1.0])),
        lambda: xp.linalg.det(Tensor([1.0])),
    ):
        with pytest.raises(ShapeError):
            call()


def test_matrix_transpose() -> None:
    a = some(2, 3, 4)
    close(xp.matrix_transpose(Tensor(a)), a.swapaxes(1, 2))
    close(Tensor(a).mT, a.swapaxes(1, 2))


@pytest.mark.parametrize("axes", [0, 1, 2, ((0, 1), (1, 0)), ((2,), (0,)), ((), ())])
def test_tensordot(axes: Any) -> None:
    a = some(2, 3, 4)
    b = some(4, 3, 2) if axes == 1 or axes == ((2,), (0,)) else some(3, 4, 2) if axes == 2 else some(3, 2, 5)
    close(xp.tensordot(Tensor(a), Tensor(b), axes=axes), np.tensordot(a, b, axes))


@pytest.mark.parametrize("axis", [-1, -2])
def test_vecdot(axis: int) -> None:
    a, b = some(2, 3, 4), some(3, 4)
    close(xp.vecdot(Tensor(a), Tensor(b), axis=axis), (a * b).sum(axis))
    assert xp.vecdot(Tensor([1, 2], dtype="int8"), Tensor([3, 4], dtype="int8")).dtype is dtypes.int8


# the extension
@pytest.mark.parametrize("axis", [-1, 0, 1])
def test_cross(axis: int) -> None:
    shape = [2, 4]
    shape.insert(axis if axis >= 0 else 2, 3)
    a, b = some(*shape), some(*shape)
    close(xp.linalg.cross(Tensor(a), Tensor(b), axis=axis), np.cross(a, b, axis=axis))
    assert xp.linalg.cross(Tensor([1, 0, 0]), Tensor([0, 1, 0])).tolist() == [0, 0, 1]


@pytest.mark.parametrize("offset", [-2, 0, 1, 9])
def test_diagonal_and_trace(offset: int) -> None:
    a = some(2, 3, 4)
    close(xp.linalg.diagonal(Tensor(a), offset=offset), np.diagonal(a, offset, 1, 2))
    close(xp.linalg.trace(Tensor(a), offset=offset), np.trace(a, offset, 1, 2))
    assert xp.linalg.trace(Tensor(np.ones((2, 2), np.int8))).dtype is dtypes.int32


def test_outer() -> None:
    a, b = some(3), some(4)
    close(xp.linalg.outer(Tensor(a), Tensor(b)), np.outer(a, b))


@pytest.mark.parametrize("keepdims", [False, True])
@pytest.mark.parametrize("ord", [0, 1, 2, 3, 2.5, -1, -2, float("inf"), float("-inf")])
def test_vector_norm(ord: float, keepdims: bool) -> None:
    a = some(2, 3, 4)
    for axis in (None, 0, -1, (0, 2)):
        ours = xp.linalg.vector_norm(Tensor(a), axis=axis, keepdims=keepdims, ord=ord)
        close(ours, np.linalg.vector_norm(a, axis=axis, keepdims=keepdims, ord=ord))


@pytest.mark.parametrize("ord", ["fro", 1, -1, float("inf"), float("-inf"), 2, -2, "nuc"])
def test_matrix_norm(ord: Any) -> None:
    a = some(3, 2) if ord in (2, -2, "nuc") else some(2, 3, 2)
    for keepdims in (False, True):
        ours = xp.linalg.matrix_norm(Tensor(a), ord=ord, keepdims=keepdims)
        close(ours, np.linalg.matrix_norm(a, ord=ord, keepdims=keepdims), 1e-8)


def test_a_norm_that_is_none() -> None:
    with pytest.raises(ArgumentError, match="matrix_norm: ord 'x' is no norm"):
        xp.linalg.matrix_norm(Tensor([[1.0]]), ord="x")


def test_matrix_power() -> None:
    a = some(2, 2, 2)
    for power in (-1, 0, 3):
        close(xp.linalg.matrix_power(Tensor(a), power), np.linalg.matrix_power(a, power), 1e-7)


def positive(n: int) -> np.ndarray:
    a = some(2, n, n)
    return a @ a.swapaxes(1, 2) + n * np.eye(n)


LARGER = [1, pytest.param(4, marks=pytest.mark.slow)]


@pytest.mark.parametrize("n", LARGER)
def test_square_matrices(n: int) -> None:
    a = positive(n) + np.triu(some(2, n, n), 1)
    close(xp.linalg.det(Tensor(a)), np.linalg.det(a), 1e-9)
    close(xp.linalg.inv(Tensor(a)), np.linalg.inv(a), 1e-8)
    ours, theirs = xp.linalg.slogdet(Tensor(-a)), np.linalg.slogdet(-a)
    close(ours.sign, theirs.sign)
    close(ours.logabsdet, theirs.logabsdet, 1e-9)
    b = some(2, n, 3)
    close(xp.linalg.solve(Tensor(a), Tensor(b)), np.linalg.solve(a, b), 1e-8)
    close(xp.linalg.solve(Tensor(a[0]), Tensor(b[0, :, 0].copy())), np.linalg.solve(a[0], b[0, :, 0]), 1e-8)


@pytest.mark.parametrize("n", LARGER)
def test_symmetric_matrices(n: int) -> None:
    a = positive(n)
    lower = np.linalg.cholesky(a)
    close(xp.linalg.cholesky(Tensor(a)), lower, 1e-9)
    close(xp.linalg.cholesky(Tensor(a), upper=True), lower.swapaxes(1, 2), 1e-9)
    found = xp.linalg.eigh(Tensor(a))
    close(found.eigenvalues, np.linalg.eigvalsh(a), 1e-8)
    close(xp.linalg.eigvalsh(Tensor(a)), np.linalg.eigvalsh(a), 1e-8)
    vectors, values = found.eigenvectors.numpy(), found.eigenvalues.numpy()
    np.testing.assert_allclose(a @ vectors, vectors * values[:, None], rtol=1e-7, atol=1e-7)


@pytest.mark.slow
@pytest.mark.parametrize("shape", [(2, 1), (3, 3), (3, 2), (2, 4), (2, 3, 2)])
def test_factors(shape: tuple[int, ...]) -> None:
    a = some(*shape)
    for mode in ("reduced", "complete"):
        q, r = xp.linalg.qr(Tensor(a), mode=mode)
        theirs = np.linalg.qr(a, mode)
        assert (q.shape, r.shape) == (theirs.Q.shape, theirs.R.shape)
        np.testing.assert_allclose(q.numpy() @ r.numpy(), a, atol=1e-9)
        np.testing.assert_allclose(np.tril(r.numpy(), -1), 0, atol=1e-9)
    with pytest.raises(ArgumentError, match="qr: mode 'r'"):
        xp.linalg.qr(Tensor(a), mode="r")
    values = np.linalg.svd(a, compute_uv=False)
    close(xp.linalg.svdvals(Tensor(a)), values, 1e-8)
    for full in (False, True):
        u, s, vh = [part.numpy() for part in xp.linalg.svd(Tensor(a), full_matrices=full)]
        expected = np.linalg.svd(a, full_matrices=full)
        assert (u.shape, s.shape, vh.shape) == tuple(part.shape for part in expected)
        k = s.shape[-1]
        np.testing.assert_allclose((u[..., :k] * s[..., None, :]) @ vh[..., :k, :], a, atol=1e-8)
        np.testing.assert_allclose(u.swapaxes(-1, -2) @ u - np.eye(u.shape[-1]), 0, atol=1e-8)
    close(xp.linalg.pinv(Tensor(a)), np.linalg.pinv(a), 1e-7)
    rank = xp.linalg.matrix_rank(Tensor(a))
    assert rank.dtype is dtypes.int32
    np.testing.assert_array_equal(rank.numpy(), np.linalg.matrix_rank(a))


def test_rank_and_inverse_of_a_matrix_without_full_rank() -> None:
    a = np.outer([1.0, 2.0], [1.0, -1.0])
    assert xp.linalg.matrix_rank(Tensor(a)).item() == 1
    assert xp.linalg.matrix_rank(Tensor(np.diag([1.0, 0.01])), rtol=0.1).item() == 1
    close(xp.linalg.pinv(Tensor(a)), np.linalg.pinv(a), 1e-7)


def test_float_matrices_only() -> None:
    with pytest.raises(DTypeError, match="det: real floating arrays only"):
        xp.linalg.det(Tensor([[1]]))
