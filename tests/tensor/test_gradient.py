"""Asking for gradients: who gets one, accumulation, seeds, and when none exists."""

from __future__ import annotations

import pytest

from gradlet import Tensor
from gradlet.base.errors import ArgumentError, GradientError, ShapeError


def test_backward_fills_and_accumulates() -> None:
    x = Tensor([1.0, 2.0, 3.0])
    for factor in (1, 2):
        (x * x).sum().backward()
        assert x.grad is not None
        assert x.grad.tolist() == [2.0 * factor, 4.0 * factor, 6.0 * factor]
    x.grad = None
    (x * 5).sum().backward()
    assert x.grad is not None
    assert x.grad.tolist() == [5, 5, 5]


def test_readme_example() -> None:
    x, y = Tensor.eye(3), Tensor([[2.0, 0, -2.0]])
    z = y.matmul(x).sum()
    z.backward()
    assert x.grad is not None and y.grad is not None
    assert x.grad.tolist() == [[2, 2, 2], [0, 0, 0], [-2, -2, -2]]
    assert y.grad.tolist() == [[1, 1, 1]]


def test_only_parameters_when_there_are_some() -> None:
    data, weight = Tensor([1.0, 2.0]), Tensor([3.0, 4.0])
    weight.is_param = True
    (data * weight).sum().backward()
    assert data.grad is None
    assert weight.grad is not None
    assert weight.grad.tolist() == [1, 2]


def test_gradient_returns_and_leaves_grad_alone() -> None:
    x, y = Tensor([1.0, 2.0]), Tensor([3.0, 4.0])
    gx, gy = (x * y).sum().gradient(x, y)
    assert gx.tolist() == [3, 4]
    assert gy.tolist() == [1, 2]
    assert x.grad is None


def test_seed() -> None:
    x = Tensor([1.0, 2.0])
    assert (x * x).gradient(x, gradient=Tensor([1.0, 10.0]))[0].tolist() == [2, 40]
    y = x * 3
    y.backward(Tensor([1.0, 2.0]))
    assert x.grad is not None
    assert x.grad.tolist() == [3, 6]
    with pytest.raises(ShapeError):
        (x * x).gradient(x, gradient=Tensor([1.0]))


def test_detach_stops() -> None:
    x = Tensor([2.0])
    assert (x.detach() * x).sum().gradient(x)[0].tolist() == [2]


def test_second_derivative() -> None:
    x = Tensor([3.0])
    (first,) = (x**3).sum().gradient(x)
    assert first.sum().gradient(x)[0].tolist() == [18]


def test_a_realised_loss_has_no_past() -> None:
    x = Tensor([2.0])
    loss = (x * x).sum()
    loss.realize()
    with pytest.raises(GradientError, match="before"):
        loss.backward()


def test_gradient_of_the_value_before_a_write() -> None:
    x = Tensor([1.0, 2.0])
    y = (x * x).sum()
    x[0] = 10.0
    with pytest.raises(GradientError, match="written"):
        y.gradient(x)
    assert (x * x).sum().gradient(x)[0].tolist() == [20, 4]


def test_views_and_casts_pass_gradients() -> None:
    x = Tensor([[1.0, 2.0], [3.0, 4.0]])
    (gradient,) = (x.T[1].half() * 2).sum().gradient(x)
    assert gradient.dtype.name == "float32"
    assert gradient.tolist() == [[0, 2], [0, 2]]


def test_a_training_step_by_hand() -> None:
    w = Tensor([1.0, -2.0]).realize()
    for _ in range(3):
        loss = ((w - Tensor([3.0, 1.0])) ** 2).sum()
        (g,) = loss.gradient(w)
        w.assign(w - 0.25 * g)
        w.realize()
    assert w.tolist() == [2.75, 0.625]


def test_what_a_value_does_not_depend_on() -> None:
    x, y = Tensor([1.0, 2.0]), Tensor([[3.0]])
    value = (x * x).sum()
    with pytest.raises(GradientError, match="does not depend on target 1"):
        value.gradient(x, y)
    with pytest.raises(ArgumentError, match="unused 'nothing' is not one of error, none, zero"):
        value.gradient(x, unused="nothing")
    found, missing = value.gradient(x, y, unused="none")
    assert found.tolist() == [2.0, 4.0] and missing is None
    _, zero = value.gradient(x, y, unused="zero")
    assert zero.shape == (1, 1) and zero.tolist() == [[0.0]]
