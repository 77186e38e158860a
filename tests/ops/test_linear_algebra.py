"""Factorizations, systems and spectra where they are hard: singular, equal, empty, large, captured."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from gradlet import Tensor, dtypes, jit
from gradlet.ops import elimination, jacobi

RANDOM = np.random.default_rng(11)


def _random(*shape: int) -> np.ndarray:
    return RANDOM.standard_normal(shape).astype(np.float32)


def _symmetric(x: np.ndarray) -> np.ndarray:
    return x + np.swapaxes(x, -1, -2)


def test_the_gradient_of_a_determinant_is_the_adjugate_where_there_is_no_inverse() -> None:
    x = Tensor([[1.0, 2.0], [2.0, 4.0]])
    (gradient,) = x.det().gradient(x)
    np.testing.assert_allclose(gradient.numpy(), [[4, -2], [-2, 1]], atol=1e-6)


def test_rows_are_exchanged_for_the_largest_pivot_the_first_of_equals() -> None:
    packed, pivots = Tensor([[0.0, 1.0], [-2.0, 0.0], [2.0, 3.0]]).lu_factor()
    assert pivots.tolist() == [2, 3]
    np.testing.assert_allclose(packed.numpy(), [[-2, 0], [-1, 3], [0, 1 / 3]], atol=1e-6)


def test_singular_systems_say_so() -> None:
    singular = Tensor([[1.0, 2.0], [2.0, 4.0]])
    assert singular.inv_ex()[1].item() == 2
    assert not np.isfinite(singular.inv().numpy()).any()
    assert singular.slogdet()[1].item() == -math.inf
    assert math.isnan(Tensor([[-1.0]]).logdet().item())
    assert np.isnan(Tensor([[-1.0]]).cholesky().item())


@pytest.mark.parametrize("values", [[3.0, 3.0, 3.0], [0.0, 0.0, 0.0], [-2.0, 2.0, -2.0], [1e-30, 1e30, -1e30]])
def test_eigenvalues_that_are_equal_opposite_or_far_apart(values: list[float]) -> None:
    basis = np.linalg.qr(_random(3, 3))[0].astype(np.float64)
    matrix = (basis * np.array(values) @ basis.T).astype(np.float32)
    found, vectors = [t.numpy() for t in Tensor(matrix).eigh()]
    scale = max(map(abs, values)) or 1
    np.testing.assert_allclose(found, sorted(values), atol=4e-7 * scale)
    np.testing.assert_allclose(vectors.T @ vectors, np.eye(3), atol=1e-6)
    np.testing.assert_allclose(matrix / scale @ vectors, vectors * (found / scale), atol=2e-6)


def test_what_is_not_finite_stays_visible() -> None:
    bad = Tensor([[math.nan, 1.0], [1.0, 2.0]])
    assert np.isnan(bad.eigvalsh().numpy()).all()
    assert np.isnan(bad.svdvals().numpy()).all()


@pytest.mark.parametrize("shape", [(0, 0), (0, 3), (3, 0), (0, 3, 3), (2, 0, 3)])
def test_nothing_is_factored_into_nothing(shape: tuple[int, ...]) -> None:
    x = Tensor.zeros(*shape)
    lead, (rows, columns) = shape[:-2], shape[-2:]
    least = min(rows, columns)
    assert [t.shape for t in x.svd()] == [(*lead, rows, rows), (*lead, least), (*lead, columns, columns)]
    assert [t.shape for t in x.qr()] == [(*lead, rows, least), (*lead, least, columns)]
    assert x.lu_factor()[0].shape == shape
    assert x.pinv().numpy().shape == (*lead, columns, rows)
    assert x.matrix_rank().numpy().shape == lead
    if rows == columns:
        np.testing.assert_array_equal(x.det().numpy(), np.ones(lead))


def test_rank_and_the_smallest_least_squares_solution() -> None:
    x = Tensor([[1.0, 1.0], [1.0, 1.0], [1.0, 1.0]])
    solution, residuals, rank, values = x.lstsq(Tensor([[1.0], [2.0], [3.0]]), driver="gelsd")
    np.testing.assert_allclose(solution.numpy(), [[1.0], [1.0]], atol=1e-6)
    assert rank.item() == x.matrix_rank().item() == 1
    np.testing.assert_allclose(values.numpy(), [math.sqrt(6), 0], atol=1e-6)
    np.testing.assert_allclose(residuals.numpy(), [2], atol=1e-5)


def test_short_floats_are_computed_in_float32() -> None:
    half = Tensor([[4.0, 1.0], [1.0, 3.0]], dtype=dtypes.float16)
    assert half.inv().dtype is dtypes.float16
    np.testing.assert_allclose(half.inv().numpy(), np.linalg.inv([[4, 1], [1, 3]]), rtol=1e-3)


def test_a_captured_factorization_is_replayed_with_other_values() -> None:
    @jit
    def solved(matrix: Tensor, right: Tensor) -> Tensor:
        return matrix.solve(right).realize()

    for _ in range(3):
        a, b = _random(3, 3) + 3 * np.eye(3, dtype=np.float32), _random(3)
        np.testing.assert_allclose(solved(Tensor(a), Tensor(b)).numpy(), np.linalg.solve(a, b), rtol=1e-4, atol=1e-5)


def test_nothing_is_computed_before_it_is_asked_for() -> None:
    x = Tensor(_random(3, 3)) * 2
    assert not any(t.is_realized for t in (x.svd()[0], x.eigh()[1], x.inv(), x.qr()[0]))
    assert not x.is_realized


def test_exchanges_one_after_another_are_one_order() -> None:
    swaps = [[2, 3, 2, 4], [0, 1, 2, 3]]
    expected = []
    for row in swaps:
        order = list(range(6))
        for step, other in enumerate(row):
            order[step], order[other] = order[other], order[step]
        expected.append(order)
    assert elimination.exchanged_rows(Tensor(swaps, dtype=dtypes.int32), 6).tolist() == expected


def test_vectors_of_norms_at_zero_have_no_slope() -> None:
    x = Tensor([0.0, 0.0])
    for order in (1, 2, 3, math.inf, 0.5):
        (gradient,) = x.vector_norm(order).gradient(x)
        assert not gradient.numpy().any(), order


def test_the_cheapest_order_of_a_chain() -> None:
    sizes = [(10, 100), (100, 5), (5, 50)]
    factors = [_random(*size) for size in sizes]
    product = Tensor.multi_dot([Tensor(f) for f in factors])
    np.testing.assert_allclose(product.numpy(), factors[0] @ factors[1] @ factors[2], rtol=1e-3, atol=1e-3)


def test_newton_schulz_tends_to_the_orthogonal_factor() -> None:
    matrix = _random(2, 3, 2)
    u, _, vh = np.linalg.svd(matrix, full_matrices=False)
    found = Tensor(matrix).newton_schulz(30, (1.5, -0.5)).numpy()
    np.testing.assert_allclose(found, u @ vh, atol=1e-4)


@pytest.mark.slow
@pytest.mark.parametrize("size", [16, 33, 100])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_sizes_beyond_small(size: int, dtype: str) -> None:
    tolerance = {"float32": 2e-6, "float64": 4e-15}[dtype] * size
    matrix = RANDOM.standard_normal((size, size)).astype(dtype)
    x = Tensor(matrix)

    def near(found: Any, wanted: Any) -> None:
        assert np.abs(found - wanted).max() <= tolerance * max(1.0, np.abs(wanted).max())

    q, r = [t.numpy() for t in x.qr()]
    near(q @ r, matrix), near(q.T @ q, np.eye(size))
    p, lower, upper = [t.numpy() for t in x.lu()]
    near(p @ lower @ upper, matrix)
    u, s, vh = [t.numpy() for t in x.svd()]
    near(u * s @ vh, matrix), near(u.T @ u, np.eye(size)), near(vh @ vh.T, np.eye(size))
    values, vectors = [t.numpy() for t in Tensor(_symmetric(matrix)).eigh()]
    near(vectors * values @ vectors.T, _symmetric(matrix)), near(vectors.T @ vectors, np.eye(size))
    positive = matrix @ matrix.T + np.eye(size)
    factor = Tensor(positive.astype(dtype)).cholesky().numpy()
    near(factor @ factor.T, positive)
    right = matrix[:, :3]
    near(matrix @ x.solve(Tensor(right)).numpy(), right)


@pytest.mark.slow
def test_sweeps_are_enough_for_all_sizes() -> None:
    for size in (2, 3, 5, 8, 13, 24, 40):
        matrix = RANDOM.standard_normal((20 if size < 20 else 4, size, size)).astype(np.float32)
        rows = jacobi.orthogonal_rows(Tensor(matrix), size, jacobi.sweeps_for(size, 4)).numpy()
        lengths = np.linalg.norm(rows, axis=-1)
        cosines = rows @ np.swapaxes(rows, -1, -2) / lengths[..., None] / lengths[..., None, :]
        assert np.abs(cosines - np.eye(size)).max() < 1e-6, size
