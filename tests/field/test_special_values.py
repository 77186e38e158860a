"""Gradients and special values that other frameworks got wrong."""

from __future__ import annotations

import math

import numpy as np
import pytest

from gradlet import Tensor

DEVICES = ("CPU", "PYTHON")


@pytest.fixture(params=DEVICES)
def device(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def test_a_tie_of_many_halves_shares_the_gradient(device: str) -> None:
    x = Tensor(np.ones(70000, np.float16), device=device)
    (gradient,) = x.max().gradient(x)
    np.testing.assert_array_equal(gradient.numpy(), np.full(70000, np.float16(1 / 70000)))


def test_a_strided_slice_of_one_element(device: str) -> None:
    z = Tensor([[1.0, 2.0], [3.0, 4.0]], device=device)
    even, odd = Tensor([1.0, 4.0], device=device), Tensor([30.0, 60.0], device=device)
    loss = (z[0::2] * even).sum() + (z[1::2] * odd).sum()
    assert loss.gradient(z)[0].tolist() == [[1, 4], [30, 60]]
    line = Tensor([1.0, 2.0], device=device)
    assert (line[::-2] * 3).sum().gradient(line)[0].tolist() == [0, 3]


@pytest.mark.parametrize("name", ["sigmoid", "tanh", "gelu", "silu", "mish", "softplus", "logsigmoid", "elu", "selu"])
def test_gradients_far_out_are_finite(device: str, name: str) -> None:
    x = Tensor([-100.0, 100.0, 0.0], device=device)
    (gradient,) = getattr(x, name)().sum().gradient(x)
    assert np.isfinite(gradient.numpy()).all()


def test_the_gradient_of_a_branch_not_taken_is_not_seen(device: str) -> None:
    # Documented: the other branch's gradient is selected away, not multiplied by zero.
    x = Tensor([0.0, 2.0], device=device)
    (gradient,) = (x > 0).where((x > 0).where(x, 1.0).reciprocal(), 0.0).sum().gradient(x)
    assert gradient.tolist() == [0.0, -0.25]


def test_infinities_in_log_sum_exp(device: str) -> None:
    low = -math.inf
    x = Tensor([low, low], device=device)
    assert x.logaddexp(Tensor([low, 0.0], device=device)).tolist() == [low, 0.0]
    assert Tensor([[low, low], [low, 0.0]], device=device).logsumexp(1).tolist() == [low, 0.0]
    running = Tensor([low, low, 0.0, 0.0], device=device).logcumsumexp(0).numpy()
    np.testing.assert_allclose(running, [low, low, 0.0, 0.693147], rtol=1e-6)


def test_gradient_of_a_source_larger_than_the_index(device: str) -> None:
    target = Tensor.zeros(3, device=device)
    source = Tensor([1.0, 2.0, 3.0, 4.0], device=device)
    index = Tensor([2, 0], device=device)
    (gradient,) = (target.scatter(0, index, source) * Tensor([10.0, 20.0, 30.0], device=device)).sum().gradient(source)
    assert gradient.tolist() == [30, 10, 0, 0]
    for reduce in ("sum", "prod", "amax", "amin"):
        result = Tensor.ones(3, device=device).scatter_reduce(0, index, source, reduce)
        (gradient,) = result.sum().gradient(source)
        assert gradient.shape == source.shape
        assert gradient.tolist()[2:] == [0, 0]


def test_label_smoothing_with_an_ignored_class(device: str) -> None:
    logits = Tensor([[2.0, 0.0, 1.0], [0.0, 3.0, 0.0], [1.0, 1.0, 1.0]], device=device)
    target = Tensor([0, -1, 2], device=device)
    loss = logits.sparse_categorical_crossentropy(target, ignore_index=-1, label_smoothing=0.1)
    assert loss.item() == pytest.approx(0.803109, abs=1e-6)
    same = logits.cross_entropy(target, label_smoothing=0.1, ignore_index=-1)
    assert same.item() == pytest.approx(0.803109, abs=1e-6)


def test_equal_constants_have_gradients_of_their_own(device: str) -> None:
    a, b = Tensor.ones(2, device=device), Tensor.ones(2, device=device)
    loss = (a * 3 + b * 5).sum()
    da, db = loss.gradient(a, b)
    assert da.tolist() == [3, 3]
    assert db.tolist() == [5, 5]
    two = Tensor(2.0, device=device)
    assert (two * 2.0 * two).gradient(two)[0].item() == 8.0


def test_matmul_over_an_empty_axis(device: str) -> None:
    x, y = Tensor.zeros(2, 0, device=device), Tensor.zeros(0, 3, device=device)
    product = x @ y
    assert product.tolist() == [[0, 0, 0]] * 2
    assert [g.shape for g in product.sum().gradient(x, y)] == [(2, 0), (0, 3)]
