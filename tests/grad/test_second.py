"""Second derivatives that are more than a composition of first ones."""

from __future__ import annotations

import numpy as np
import pytest

from gradlet import Tensor
from gradlet.graph.node import toposort


def second_of_product(values: np.ndarray) -> tuple[Tensor, np.ndarray]:
    """The gradient of a weighted sum of the gradient of a product, and what it is."""
    x = Tensor(values.astype("float32"))
    weights = np.arange(1, len(values) + 1, dtype="float64")
    first = x.prod().gradient(x)[0]
    result = (first * Tensor(weights.astype("float32"))).sum().gradient(x)[0]
    expected = np.zeros(len(values))
    for i in range(len(values)):
        for j in range(len(values)):
            if i != j:
                expected[j] += weights[i] * np.prod(np.delete(values, [i, j]))
    return result, expected


@pytest.mark.parametrize("count", [2, 3, 8, 19])
@pytest.mark.parametrize("zeros", [0, 1, 2, 3])
def test_second_derivative_of_a_product(count: int, zeros: int) -> None:
    values = np.random.default_rng(count).uniform(0.5, 1.5, count)
    values[:zeros] = 0
    result, expected = second_of_product(values)
    np.testing.assert_allclose(result.numpy(), expected, rtol=1e-4, atol=1e-4)


def test_work_of_a_second_derivative_of_a_product_is_linear() -> None:
    def operations(count: int) -> int:
        result, _ = second_of_product(np.ones(count))
        return sum(len(list(toposort((call.ast,)))) for call in result.schedule().calls)

    # Three more levels of the tree: not eight times as many operations, which evaluating each level anew would give.
    assert operations(128) < 5 * operations(16)


@pytest.mark.parametrize("zeros", [(), (0,), (2,), (0, 2), (0, 1, 2)])
def test_second_derivative_of_products_by_index(zeros: tuple[int, ...]) -> None:
    """Four factors meet in one element, the first is what was there."""
    values = np.array([1.5, 0.5, 2.0, 3.0])
    values[list(zeros)] = 0
    x = Tensor(values.astype("float32"))
    weights = np.arange(1.0, 5.0)
    product = x[:1].scatter_reduce(0, Tensor([0, 0, 0]), x[1:], "prod")
    first = product.gradient(x)[0]
    second = (first * Tensor(weights.astype("float32"))).sum().gradient(x)[0]
    expected = [sum(weights[i] * np.prod(np.delete(values, [i, j])) for i in range(4) if i != j) for j in range(4)]
    np.testing.assert_allclose(second.numpy(), expected, rtol=1e-5)
