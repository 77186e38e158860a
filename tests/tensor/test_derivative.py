"""Gradients of a user's own, checkpoints, gradients put in memory."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from gradlet import Tensor, checkpoint, custom_gradient, jit
from gradlet.base.errors import GradientError, ShapeError
from gradlet.graph.key import structural_key
from gradlet.ops.op import Op


@custom_gradient
def straight_through_round(x: Tensor) -> Any:
    return x.round(), lambda gradient: gradient


@custom_gradient
def own_product(x: Tensor, y: Tensor, scale: float = 1.0) -> Any:
    return x * y * scale, lambda gradient: (gradient * y * scale, gradient * x * scale)


@custom_gradient
def sine_and_cosine(x: Tensor) -> Any:
    sine, cosine = x.sin(), x.cos()
    return (sine, cosine), lambda for_sine, for_cosine: for_sine * cosine - for_cosine * sine


@pytest.fixture
def numbers() -> np.random.Generator:
    return np.random.default_rng(3)


def test_the_rule_replaces_the_derivative(numbers: np.random.Generator) -> None:
    values = numbers.normal(size=(3, 4)).astype("float32")
    x = Tensor(values)
    result = straight_through_round(x)
    assert np.array_equal(result.numpy(), values.round())
    assert np.array_equal((straight_through_round(x) * 3).sum().gradient(x)[0].numpy(), np.full((3, 4), 3, "float32"))


def test_two_arguments_and_an_option(numbers: np.random.Generator) -> None:
    a, b = numbers.normal(size=(2, 5)).astype("float32")
    x, y = Tensor(a), Tensor(b)
    for_x, for_y = own_product(x, y, scale=2.0).sum().gradient(x, y)
    np.testing.assert_allclose(for_x.numpy(), 2 * b, rtol=1e-6)
    np.testing.assert_allclose(for_y.numpy(), 2 * a, rtol=1e-6)


def test_the_same_tensor_twice(numbers: np.random.Generator) -> None:
    a = numbers.normal(size=5).astype("float32")
    x = Tensor(a)
    np.testing.assert_allclose(own_product(x, x).sum().gradient(x)[0].numpy(), 2 * a, rtol=1e-6)


def test_several_values_share_one_rule(numbers: np.random.Generator) -> None:
    a = numbers.normal(size=6).astype("float32")
    x = Tensor(a)
    sine, cosine = sine_and_cosine(x)
    np.testing.assert_allclose((sine * 2 + cosine).sum().gradient(x)[0].numpy(), 2 * np.cos(a) - np.sin(a), rtol=1e-5)
    np.testing.assert_allclose(cosine.sum().gradient(x)[0].numpy(), -np.sin(a), rtol=1e-5, atol=1e-6)


def test_second_derivative_of_a_rule(numbers: np.random.Generator) -> None:
    a, b = numbers.normal(size=(2, 5)).astype("float32")
    x, y = Tensor(a), Tensor(b)
    first = (own_product(x, y) * own_product(x, y)).sum().gradient(x)[0]
    np.testing.assert_allclose(first.numpy(), 2 * a * b * b, rtol=1e-5)
    x, y = Tensor(a), Tensor(b)
    first = (own_product(x, y) * own_product(x, y)).sum().gradient(x)[0]
    np.testing.assert_allclose(first.sum().gradient(y)[0].numpy(), 4 * a * b, rtol=1e-5)


def test_backward_fills_grad_through_a_rule() -> None:
    x = Tensor([1.4, -0.6])
    straight_through_round(x).sum().backward()
    assert x.grad.tolist() == [1.0, 1.0]


def test_inside_jit(numbers: np.random.Generator) -> None:
    @jit
    def step(x: Tensor, y: Tensor) -> Tensor:
        return own_product(x, y).sum().gradient(x)[0]

    for _ in range(4):
        a, b = numbers.normal(size=(2, 5)).astype("float32")
        np.testing.assert_allclose(step(Tensor(a), Tensor(b)).numpy(), b, rtol=1e-6)


def test_a_rule_is_no_part_of_the_structure() -> None:
    """A rule is a new function in every call; the schedule is found again all the same."""
    keys = [structural_key([own_product(Tensor([1.0]), Tensor([3.0])).uop])[0] for _ in range(2)]
    assert keys[0] == keys[1]


@pytest.mark.parametrize(
    ("function", "kind", "message"),
    [
        (lambda x: x, GradientError, r"returns \(value, rule\)"),
        (lambda x: (3, lambda g: g), GradientError, "value 0 is int, not a Tensor"),
        (lambda x: (x * 2, lambda g: (g, g)), GradientError, "2 gradients for 1 tensor arguments"),
        (lambda x: (x * 2, lambda g: 3.0), GradientError, "gradient 0 is float, not a Tensor"),
        (lambda x: (x * 2, lambda g: g.sum()), ShapeError, r"gradient 0 has shape \(\), its argument \(2,\)"),
    ],
)
def test_refused(function: Any, kind: type[Exception], message: str) -> None:
    x = Tensor([1.0, 2.0])
    with pytest.raises(kind, match=message):
        custom_gradient(function)(x).sum().gradient(x)


# checkpoints
def deep(x: Tensor, weights: list[Tensor], marked: bool, layers: int = 2) -> Tensor:
    for start in range(0, len(weights), layers):

        def block(t: Tensor, own: list[Tensor] = weights[start : start + layers]) -> Tensor:
            for weight in own:
                t = (t @ weight).tanh()
            return t

        x = checkpoint(block, x) if marked else block(x)
    return x


def weights_and_input(numbers: np.random.Generator, layers: int, width: int, rows: int) -> tuple[Tensor, list[Tensor]]:
    weights = [
        Tensor((numbers.normal(size=(width, width)) / width**0.5).astype("float32")).realize() for _ in range(layers)
    ]
    return Tensor(numbers.normal(size=(rows, width)).astype("float32")).realize(), weights


def test_a_checkpoint_changes_no_value_and_no_gradient(numbers: np.random.Generator) -> None:
    x, weights = weights_and_input(numbers, 6, 16, 8)
    plain = deep(x, weights, False)
    marked = deep(x, weights, True)
    expected = (plain * plain).sum().gradient(x, *weights)
    found = (marked * marked).sum().gradient(x, *weights)
    np.testing.assert_array_equal(marked.numpy(), plain.numpy())
    for own, other in zip(found, expected):
        np.testing.assert_allclose(own.numpy(), other.numpy(), rtol=1e-4, atol=1e-5)


def test_weights_used_inside_and_before(numbers: np.random.Generator) -> None:
    """A gradient that arrives both through the checkpoint and around it is counted once each way."""
    a = numbers.normal(size=5).astype("float32")
    w = Tensor(a)
    y = checkpoint(lambda t: t * w, w * w)
    np.testing.assert_allclose(y.sum().gradient(w)[0].numpy(), 3 * a * a, rtol=1e-5)


def test_second_derivative_through_a_checkpoint(numbers: np.random.Generator) -> None:
    a = numbers.normal(size=5).astype("float32")
    x = Tensor(a)
    first = checkpoint(lambda t: t.sin(), x).sum().gradient(x)[0]
    np.testing.assert_allclose(first.sum().gradient(x)[0].numpy(), -np.sin(a), rtol=1e-5, atol=1e-6)


def test_checkpoints_inside_checkpoints(numbers: np.random.Generator) -> None:
    a = numbers.normal(size=5).astype("float32")
    x = Tensor(a)
    y = checkpoint(lambda t: checkpoint(lambda u: u.sin(), t * t).exp(), x)
    expected = np.exp(np.sin(a * a)) * np.cos(a * a) * 2 * a
    np.testing.assert_allclose(y.sum().gradient(x)[0].numpy(), expected, rtol=1e-5)


def test_random_draws_inside_are_drawn_once(numbers: np.random.Generator) -> None:
    x = Tensor(np.ones(1000, "float32"))
    with Tensor.train():
        y = checkpoint(lambda t: t.dropout(0.5), x)
    gradient = y.sum().gradient(x)[0]
    Tensor.realize(y, gradient)
    np.testing.assert_array_equal(gradient.numpy(), y.numpy())


def test_a_checkpoint_saves_memory(numbers: np.random.Generator) -> None:
    """24 layers in blocks of 4: what is kept is 6 values between blocks and the 4 of one block."""
    x, weights = weights_and_input(numbers, 24, 64, 2048)

    def peak(marked: bool) -> int:
        result = deep(x, weights, marked, 4)
        return int((result * result).sum().gradient(x, *weights)[0].schedule().memory.peak)

    assert peak(True) <= 0.6 * peak(False)


def test_a_checkpoint_without_tensors_is_refused() -> None:
    with pytest.raises(GradientError, match="no tensor among its arguments"):
        checkpoint(lambda: Tensor([1.0]))
    with pytest.raises(GradientError, match="returned int"):
        checkpoint(lambda x: 3, Tensor([1.0]))


# gradients put in memory
def test_contiguous_backward_is_a_value_of_its_own_in_the_gradient() -> None:
    x = Tensor([1.0, 2.0])
    gradient = (x.contiguous_backward() * 3).sum().gradient(x)[0]
    assert any(node.op is Op.CONTIGUOUS for node in gradient.uop.toposort())
    assert gradient.tolist() == [3.0, 3.0]
    assert x.contiguous_backward().tolist() == [1.0, 2.0]
