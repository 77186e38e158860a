"""Gradients that users of other frameworks found wrong, each with its answer by hand or from NumPy."""

from __future__ import annotations

import math

import numpy as np
import pytest

from gradlet import Tensor, dtypes

INF = math.inf


@pytest.mark.parametrize("length", [5, 6])
def test_backward_through_a_strided_write(length: int) -> None:
    base, value = Tensor(np.zeros(length, np.float32)), Tensor([1.0, 2.0, 3.0])
    weights = np.arange(1, length + 1, dtype=np.float32)
    written = base + 0
    written[::2] = value
    by_value, by_base = (written * Tensor(weights)).sum().gradient(value, base)
    assert by_value.tolist() == weights[::2].tolist()
    assert by_base.tolist() == [0 if i % 2 == 0 else weights[i] for i in range(length)]


def test_the_largest_of_many_equal_half_values() -> None:
    x = Tensor(np.full(70_000, 2, np.float16))
    (found,) = x.max().gradient(x)
    assert found.dtype is dtypes.float16
    np.testing.assert_array_equal(found.numpy(), np.full(70_000, np.float16(1 / 70_000)))


def test_strided_slices_that_select_one_element() -> None:
    z = Tensor([[0.0, 0.0], [0.0, 0.0]])
    loss = (z[0::2] * Tensor([1.0, 4.0])).sum() + (z[1::2] * Tensor([30.0, 60.0])).sum()
    assert loss.gradient(z)[0].tolist() == [[1, 4], [30, 60]]
    row = Tensor([0.0, 0.0])
    assert (row[::-2] * Tensor([7.0])).sum().gradient(row)[0].tolist() == [0, 7]


@pytest.mark.parametrize("name", ["sigmoid", "tanh", "gelu", "silu", "softplus", "logsigmoid", "mish", "elu"])
def test_saturated_activations_have_finite_gradients(name: str) -> None:
    x = Tensor([-1e4, -100.0, 100.0, 1e4])
    (found,) = getattr(x, name)().sum().gradient(x)
    assert np.isfinite(found.numpy()).all() and np.isfinite(getattr(x, name)().numpy()).all()


def test_a_branch_that_is_not_selected() -> None:
    # Where a formula is infinite, its gradient is 0 * inf = NaN also behind a `where`, as in torch; the safe way is to
    # select the input of the formula, not its result.
    x = Tensor([0.0, 2.0])
    safe = (x != 0).where(x, 1.0)
    (found,) = (x != 0).where(1 / safe, 0.0).sum().gradient(x)
    assert found.tolist() == [0, -0.25]
    (naive,) = (x != 0).where(1 / x, 0.0).sum().gradient(x)
    assert math.isnan(naive.tolist()[0]) and naive.tolist()[1] == -0.25


def test_logarithms_of_sums_of_nothing() -> None:
    assert Tensor([-INF]).logaddexp(Tensor([-INF])).tolist() == [-INF]
    assert Tensor([-INF, -INF]).logsumexp(0).item() == -INF
    found = Tensor([-INF, -INF, 0.0, 0.0]).logcumsumexp(0).tolist()
    assert found[:3] == [-INF, -INF, 0] and abs(found[3] - math.log(2)) < 1e-6


@pytest.mark.parametrize("reduce", ["sum", "prod", "amax", "amin"])
def test_scatter_with_fewer_indices_than_values(reduce: str) -> None:
    torch = pytest.importorskip("torch")
    target = np.array([[1.0, 2.0, 3.0], [4.0, 5.0, 6.0]], np.float32)
    source = np.array([[1.5, 7.0, 0.5], [2.5, 0.25, 9.0]], np.float32)
    index = np.array([[1, 0]], np.int64)
    weights = np.array([[1.0, 2.0, 3.0], [4.0, 5.0, 6.0]], np.float32)
    theirs = [torch.tensor(target, requires_grad=True), torch.tensor(source, requires_grad=True)]
    # torch's own gradient fails without the slice.
    expected = theirs[0].scatter_reduce(0, torch.tensor(index), theirs[1][:1, :2], reduce)
    (expected * torch.tensor(weights)).sum().backward()
    ours = [Tensor(target), Tensor(source)]
    result = ours[0].scatter_reduce(0, Tensor(index), ours[1], reduce)
    found = (result * Tensor(weights)).sum().gradient(*ours)
    np.testing.assert_allclose(result.numpy(), expected.detach().numpy())
    for mine, their in zip(found, theirs, strict=True):
        np.testing.assert_allclose(mine.numpy(), their.grad.numpy(), rtol=1e-6)


def test_cross_entropy_with_ignored_rows_and_smoothing() -> None:
    logits = Tensor([[2.0, 0.0, 1.0], [0.0, 3.0, 0.0], [1.0, 1.0, 1.0]])
    loss = logits.sparse_categorical_crossentropy(Tensor([0, -1, 2]), ignore_index=-1, label_smoothing=0.1)
    (found,) = loss.gradient(logits)
    assert abs(loss.item() - 0.803109) < 1e-5
    assert found.tolist()[1] == [0, 0, 0]
