"""Gradients of a user's own: `custom_gradient`; and `checkpoint`, which computes a part again instead of keeping it."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

from gradlet.base.errors import GradientError, ShapeError
from gradlet.graph.node import mk
from gradlet.ops.op import DerivativeArg, Op
from gradlet.tensor.core import LazyTensor, wrap
from gradlet.tensor.nodes import no_leaf


def custom_gradient(function: Callable[..., Any]) -> Callable[..., Any]:
    """Give a function a gradient of its own; a decorator.

    The function returns its value (a tensor, or a tuple of them) and a rule. The rule takes the gradient of each value
    and returns the gradient of each tensor argument, positional ones first, in the argument's shape: a tensor, None
    where there is none, or a tuple of them. The rule may use whatever the function computed; it is written in Tensor
    operations and so has derivatives itself.

    Raises:
        GradientError: what the function or its rule returns is not of this form.
        ShapeError: the rule gives a gradient that does not have its argument's shape.

    >>> @custom_gradient
    ... def clipped_gradient(x):
    ...     return x * 2, lambda gradient: (gradient * 2).clamp(-1, 1)
    >>> x = Tensor([3.0])
    >>> clipped_gradient(x).sum().gradient(x)[0].tolist()
    [1.0]
    """

    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        result = function(*args, **kwargs)
        name = getattr(function, "__name__", repr(function))
        if not isinstance(result, tuple) or len(result) != 2 or not callable(result[1]):
            raise GradientError(
                f"{name}: a function with a custom gradient returns (value, rule), not {type(result).__name__}"
            )
        value, rule = result
        values = list(value) if isinstance(value, (tuple, list)) else [value]
        for position, part in enumerate(values):
            if not isinstance(part, LazyTensor):
                raise GradientError(f"{name}: value {position} is {type(part).__name__}, not a Tensor")
        inputs = [a for a in (*args, *kwargs.values()) if isinstance(a, LazyTensor)]
        parts = [with_rule(name, values, position, inputs, rule) for position in range(len(values))]
        return type(value)(parts) if isinstance(value, (tuple, list)) else parts[0]

    return call


def with_rule(name: str, values: Sequence[Any], position: int, inputs: Sequence[Any], rule: Callable[..., Any]) -> Any:
    """One value of a function with its gradient."""
    value = values[position]
    if not value.dtype.is_float or not inputs:
        return value
    shapes = [v.shape for v in inputs]

    def for_inputs(gradient: Any) -> Sequence[Any]:
        found = rule(*[gradient if i == position else v.zeros_like() for i, v in enumerate(values)])
        found = list(found) if isinstance(found, (tuple, list)) else [found]
        if len(found) != len(inputs):
            raise GradientError(
                f"{name}: the rule gave {len(found)} gradients for {len(inputs)} tensor arguments; give one each, None "
                "where there is none"
            )
        for number, part in enumerate(found):
            if part is not None and not isinstance(part, LazyTensor):
                raise GradientError(f"{name}: gradient {number} is {type(part).__name__}, not a Tensor or None")
            if part is not None and part.shape != shapes[number]:
                raise ShapeError(
                    f"{name}: gradient {number} has shape {part.shape}, its argument {shapes[number]}; sum over the "
                    "axes along which it was broadcast"
                )
        return found

    return value.with_derivative(name, inputs, for_inputs)


def checkpoint(function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """`function(*args, **kwargs)`, of which the gradient keeps the tensor arguments only.

    What the function computes in between is computed again when its gradient is there, so it takes no memory from the
    forward to the backward pass. Values and gradients are those of the plain call, also for tensors that the function
    closes over, and random draws inside are drawn once. Source: Chen et al. 2016, "Training deep nets with sublinear
    memory cost".

    Raises:
        GradientError: no tensor among the arguments, or a result that holds something else than tensors.

    >>> x = Tensor([0.5])
    >>> y = checkpoint(lambda t: t.exp().sin(), x)
    >>> y.sum().gradient(x)[0].allclose(x.exp().sin().sum().gradient(x)[0])
    True
    """
    result = function(*args, **kwargs)
    name = getattr(function, "__name__", repr(function))
    inputs = [a for a in (*args, *kwargs.values()) if isinstance(a, LazyTensor)]
    if not inputs:
        raise GradientError(f"checkpoint: {name} has no tensor among its arguments, from which it could be recomputed")
    arg = DerivativeArg(name, None)

    def mark(value: Any) -> Any:
        if not isinstance(value, LazyTensor):
            raise GradientError(f"checkpoint: {name} returned {type(value).__name__}, not a Tensor or a tuple of them")
        if not value.dtype.is_float:
            return value
        return wrap(mk(Op.DERIVATIVE, value.dtype, (no_leaf(value.uop), *[v.uop for v in inputs]), arg), value.place)

    return type(result)(map(mark, result)) if isinstance(result, (tuple, list)) else mark(result)
