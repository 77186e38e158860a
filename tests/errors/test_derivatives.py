"""Mistakes in gradients of one's own and in what is computed again for a gradient."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from gradlet import Tensor
from gradlet.base.errors import ArgumentError, DTypeError, GradientError, ShapeError
from gradlet.tensor.derivative import checkpoint, custom_gradient
from tests.errors.table import Row, check

X = Tensor([1.0, 2.0])


def with_rule(rule: Callable[..., Any]) -> Any:
    """The gradient of a function with this rule."""

    @custom_gradient
    def twice(x: Tensor) -> Any:
        return x * 2, rule

    return twice(X).sum().gradient(X)


def returning(result: Any) -> Any:
    """The value of a function with a custom gradient that returns this."""

    @custom_gradient
    def twice(x: Tensor) -> Any:
        return result

    return twice(X)


def constant(x: Any = None) -> int:
    return 3


MISTAKES: list[Row] = [
    (lambda: returning(X), GradientError, r"twice: a function with a custom gradient returns \(value, rule\), not Ten"),
    (lambda: returning((1.0, lambda g: g)), GradientError, "twice: value 0 is float, not a Tensor"),
    (lambda: with_rule(lambda g: [g, g]), GradientError, "twice: the rule gave 2 gradients for 1 tensor arguments; gi"),
    (lambda: with_rule(lambda g: 2.0), GradientError, "twice: gradient 0 is float, not a Tensor or None"),
    (
        lambda: with_rule(lambda g: g.sum()),
        ShapeError,
        r"twice: gradient 0 has shape \(\), its argument \(2,\); sum over the axes along which it was broadcast",
    ),
    (lambda: checkpoint(constant), GradientError, "checkpoint: constant has no tensor among its arguments, from which"),
    (lambda: checkpoint(constant, X), GradientError, "checkpoint: constant returned int, not a Tensor or a tuple of t"),
    (lambda: X.with_derivative("mine", X, len), ArgumentError, "with_derivative: inputs must be a list of tensors, go"),
    (lambda: X.with_derivative("mine", [1.0], len), DTypeError, "with_derivative: input 0 must be a Tensor, got float"),
]  # fmt: skip


@pytest.mark.parametrize("row", MISTAKES, ids=range(len(MISTAKES)))
def test_mistake(row: Row) -> None:
    check(row)
