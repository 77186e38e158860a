"""Functions with derivatives of their own: slopes of both orders against differences, and what stays connected."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from gradlet import Tensor
from gradlet.base.dtype import dtypes
from gradlet.grad.functions import FUNCTIONS, function
from gradlet.graph.node import UOp, mk, toposort
from gradlet.ops.op import BufferArg, Op

Array = np.ndarray[Any, Any]
STEP = 1e-5
POINTS = {
    "acosh": [1.2, 2.5, 40.0],
    "log1p": [-0.5, 0.25, 30.0],
    "log10": [0.25, 3.0, 50.0],
    "asin": [-0.9, -0.25, 0.7],
    "acos": [-0.9, -0.25, 0.7],
    "atanh": [-0.9, -0.25, 0.7],
}
PAIRS = {"logaddexp", "logaddexp2", "atan2", "hypot"}
USUAL = [-2.5, -0.75, 0.3, 1.75]


def arguments(name: str) -> list[Array]:
    """Points to differentiate at, an array an input."""
    first = np.array(POINTS.get(name, USUAL))
    return [first, np.roll(first, 1) * 1.25] if name in PAIRS else [first]


def buffer(number: int) -> UOp:
    return mk(Op.BUFFER, dtypes.float64, (), BufferArg(-1 - number, 4, "TEST"))


def value(name: str, inputs: list[Tensor]) -> Tensor:
    return inputs[0].elementary(name, *inputs[1:])


def differences(function_of: Any, inputs: list[Array], position: int) -> Array:
    """Central differences with respect to one input."""
    moved = []
    for sign in (1, -1):
        points = [p + sign * STEP if i == position else p for i, p in enumerate(inputs)]
        moved.append(function_of([Tensor(p) for p in points]).numpy())
    return (moved[0] - moved[1]) / (2 * STEP)


@pytest.mark.parametrize("name", FUNCTIONS)
def test_slopes_of_both_orders(name: str) -> None:
    inputs = arguments(name)

    def slope(position: int) -> Any:
        return lambda tensors: value(name, tensors).sum().gradient(tensors[position])[0]

    for position in range(len(inputs)):
        tensors = [Tensor(p) for p in inputs]
        first = slope(position)(tensors).numpy()
        expected = differences(lambda t: value(name, t), inputs, position)
        np.testing.assert_allclose(first, expected, rtol=1e-6, atol=1e-8)
        for other in range(len(inputs)):
            tensors = [Tensor(p) for p in inputs]
            second = slope(position)(tensors).sum().gradient(tensors[other])[0].numpy()
            expected = differences(slope(position), inputs, other)
            np.testing.assert_allclose(second, expected, rtol=1e-6, atol=1e-8)


def test_a_function_of_equal_inputs_is_one_node() -> None:
    x = buffer(0)
    assert function("tanh", x) is function("tanh", x)


def test_a_constant_needs_no_derivative() -> None:
    assert function("sigmoid", UOp.const(dtypes.float32, 0.0)).op is not Op.DERIVATIVE


def test_gradients_do_not_pass_through_the_approximation() -> None:
    x = Tensor([0.5, -1.5])
    (gradient,) = x.erf().sum().gradient(x)
    ops = [n.op for n in toposort((gradient.uop,))]
    assert ops.count(Op.EXP) == 1 and Op.BITCAST not in ops
