"""Jitted functions over axes whose size is a bound variable: one capture, any value."""

from __future__ import annotations

import numpy as np
import pytest

from gradlet import Tensor, jit
from gradlet.base.errors import JitError
from gradlet.tensor.tensor import Variable

N = Variable("n", 0, 12)
X = np.random.default_rng(5).standard_normal((12, 5)).astype(np.float32)
SIZES = (3, 5, 12, 1, 0)


def test_a_variable_as_argument() -> None:
    x = Tensor(X)

    @jit
    def column_sums(x: Tensor, n: object) -> Tensor:
        return (x[:n] * 2).sum(0)

    for size in SIZES:
        np.testing.assert_allclose(column_sums(x, N.bind(size)).numpy(), 2 * X[:size].sum(0), rtol=1e-5)
    assert len(column_sums.captures) == 1


def test_arguments_and_results_have_their_own_sizes() -> None:
    x = Tensor(X)

    @jit
    def products(a: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
        return a @ b.T, a.sum()

    kept = []
    for size in SIZES:
        part = x[: N.bind(size)]
        gram, total = products(part, part)
        assert gram.shape == (part.shape[0], part.shape[0])
        kept.append((size, gram))
        np.testing.assert_allclose(total.item(), X[:size].sum(), rtol=1e-4, atol=1e-5)
    for size, gram in kept:
        np.testing.assert_allclose(gram.numpy(), X[:size] @ X[:size].T, rtol=1e-4, atol=1e-5)
    assert len(products.captures) == 1


def test_sizes_of_what_is_closed_over_are_part_of_the_capture() -> None:
    part = Tensor(X)[: N.bind(4)]

    @jit
    def shifted(y: Tensor) -> Tensor:
        return y + part.sum(0)

    x = Tensor(X)
    np.testing.assert_allclose(shifted(x).numpy(), X + X[:4].sum(0), rtol=1e-5)
    part = Tensor(X)[: N.bind(7)]
    np.testing.assert_allclose(shifted(x).numpy(), X + X[:7].sum(0), rtol=1e-5)


def test_one_variable_with_two_values_is_refused() -> None:
    x = Tensor(X)
    both = jit(lambda a, b: a.sum() + b.sum())
    with pytest.raises(JitError, match="'n' is bound to 3 and to 4"):
        both(x[: N.bind(3)], x[: N.bind(4)])


def test_a_cache_joined_with_a_new_row() -> None:
    """Attention over the rows so far and the new one: one capture for all lengths."""
    cache = Tensor.zeros(12, 5).contiguous()

    @jit
    def attend(row: Tensor, n: object) -> Tensor:
        keys = cache[:n].cat(row.reshape(1, 5))
        weights = (keys @ row).softmax(0)
        cache[n] = row
        return (weights.reshape(-1, 1) * keys).sum(0)

    for n in range(8):
        scores = X[: n + 1] @ X[n]
        weights = np.exp(scores - scores.max())
        wanted = (weights / weights.sum()) @ X[: n + 1]
        found = attend(Tensor(X[n]), Variable("p", 0, 11).bind(n))
        np.testing.assert_allclose(found.numpy(), wanted, rtol=1e-4, atol=1e-5)
    assert len(attend.captures) == 1


def test_results_of_joined_and_padded_sizes() -> None:
    x = Tensor(X)

    @jit
    def both(x: Tensor, n: object) -> tuple[Tensor, Tensor]:
        part = x[:n]
        return part.flip(0).cat(x[:2]), part.pad_to(12, 5)

    kept = [(size, both(x, N.bind(size))) for size in SIZES]
    for size, (joined, padded) in kept:
        np.testing.assert_array_equal(joined.numpy(), np.concatenate([X[:size][::-1], X[:2]]))
        np.testing.assert_array_equal(padded.numpy(), np.pad(X[:size], ((0, 12 - size), (0, 0))))
    assert len(both.captures) == 1
