"""Matrices that other frameworks got wrong: zero, identity, orthogonal and of lower rank; products over nothing."""

from __future__ import annotations

import numpy as np
import pytest

from gradlet import Tensor

RANDOM = np.random.default_rng(7)
ROTATION = np.array([[0.6, -0.8, 0.0], [0.8, 0.6, 0.0], [0.0, 0.0, 1.0]], np.float32)
MATRICES = {
    "1x1": RANDOM.standard_normal((1, 1)).astype(np.float32),
    "3x2": RANDOM.standard_normal((3, 2)).astype(np.float32),
    "2x3": RANDOM.standard_normal((2, 3)).astype(np.float32),
    "batch": RANDOM.standard_normal((2, 3, 3)).astype(np.float32),
    "zeros": np.zeros((3, 3), np.float32),
    "identity": np.eye(3, dtype=np.float32),
    "orthogonal": ROTATION,
    "rank 1": np.outer([1.0, 2.0, 3.0], [1.0, -1.0, 2.0]).astype(np.float32),
    "zero column": np.array([[1.0, 0.0, 2.0], [3.0, 0.0, 4.0], [5.0, 0.0, 6.0]], np.float32),
}


def _transposed(x: np.ndarray) -> np.ndarray:
    return np.swapaxes(x, -1, -2)


@pytest.mark.parametrize("name", MATRICES)
def test_qr_of_every_rank_is_orthogonal_and_gives_the_matrix_back(name: str) -> None:
    matrix = MATRICES[name]
    q, r = Tensor(matrix).qr()
    q, r = q.numpy(), r.numpy()
    np.testing.assert_allclose(q @ r, matrix, atol=1e-5)
    np.testing.assert_allclose(
        _transposed(q) @ q, np.broadcast_to(np.eye(q.shape[-1]), (*q.shape[:-2], q.shape[-1], q.shape[-1])), atol=1e-5
    )
    np.testing.assert_array_equal(np.tril(r, -1), 0)


@pytest.mark.parametrize(
    "name", [n if i % 2 else pytest.param(n, marks=pytest.mark.slow) for i, n in enumerate(MATRICES)]
)
def test_svd_of_every_rank_is_orthogonal_and_gives_the_matrix_back(name: str) -> None:
    matrix = MATRICES[name]
    u, s, vh = [part.numpy() for part in Tensor(matrix).svd()]
    least = s.shape[-1]
    np.testing.assert_allclose(u[..., :least] * s[..., None, :] @ vh[..., :least, :], matrix, atol=1e-5)
    for basis in (u, vh):
        whole = np.broadcast_to(np.eye(basis.shape[-1]), basis.shape)
        np.testing.assert_allclose(_transposed(basis) @ basis, whole, atol=1e-5)
    np.testing.assert_allclose(s, np.linalg.svd(matrix, compute_uv=False), atol=1e-5)


def test_the_identity_has_singular_values_of_exactly_one() -> None:
    assert Tensor.eye(3).svd()[1].tolist() == [1, 1, 1]


@pytest.mark.parametrize("shapes", [((3, 0), (0, 2)), ((2, 3, 0), (0, 4))])
def test_gradients_of_a_product_over_an_axis_of_no_elements(shapes: tuple[tuple[int, ...], tuple[int, ...]]) -> None:
    x, y = [Tensor.zeros(*shape) for shape in shapes]
    product = x @ y
    assert not product.numpy().any()
    for source, gradient in zip((x, y), (x @ y).sum().gradient(x, y)):
        assert gradient.shape == source.shape
        assert not gradient.numpy().any()


@pytest.mark.parametrize("shapes", [((0, 3), (3, 2)), ((2, 0), (0, 3)), ((2, 3), (3, 0))])
def test_a_product_without_elements_has_zero_gradients(shapes: tuple[tuple[int, int], tuple[int, int]]) -> None:
    left, right = Tensor.zeros(*shapes[0]) + 0, Tensor.zeros(*shapes[1]) + 0
    for loss in ((left @ right).sum(), ((left @ right) * 2 + 1).sum(), (left @ right).mean(0).sum()):
        for gradient, source in zip(loss.gradient(left, right), (left, right)):
            assert gradient.shape == source.shape
            assert not gradient.numpy().any()
