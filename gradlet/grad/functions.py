"""Functions that have a derivative of their own: how each is computed, and its slope along each input.

The graph of one is a DERIVATIVE node, so that gradients never pass through an approximation: they are exact where the
polynomial is only close, finite where a branch that is not taken is not, and short. Slopes are expressions of the
inputs, which have derivatives of every order.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, Final, NamedTuple

from gradlet.graph.node import UOp, mk
from gradlet.ops import approximate
from gradlet.ops.op import DerivativeArg, Op


class Function(NamedTuple):
    """One function.

    Attributes:
        formula: inputs -> value; all of one float type, float32 or float64, and of one shape.
        slopes: value and inputs -> the derivative along each input.
        rough: inputs -> the value, off by several units in the last place where `formula` is not.
    """

    formula: Callable[..., UOp]
    slopes: Callable[..., Sequence[UOp]]
    rough: Callable[..., UOp] | None = None


def function(name: str, *inputs: UOp) -> UOp:
    """A named function of its inputs."""
    value = FUNCTIONS[name].formula(*inputs)
    if all(i.op is Op.CONST for i in inputs):
        return value
    node = mk(Op.DERIVATIVE, value.dtype, (value, *inputs), _ARGUMENTS[name])
    node._shape = inputs[0].shape  # known here; inferring it would walk through the formula
    return node


def rough_formula(node: UOp) -> Callable[..., UOp] | None:
    """How a DERIVATIVE node may be computed from its inputs where its result need not be exact; None: as it is."""
    found = FUNCTIONS.get(node.arg.name)
    return found.rough if found is not None and node.arg is _ARGUMENTS[node.arg.name] else None


def _one(x: UOp) -> UOp:
    return x.coerce(1.0)


def _sigmoid(x: UOp) -> UOp:
    return function("sigmoid", x)


def _rough_sigmoid(x: UOp) -> UOp:
    """`1 / (1 + 2**(-x log2 e))`; far below zero the power is infinite and the quotient zero."""
    return _one(x).fdiv((x * (-1 / math.log(2.0))).exp2() + 1.0)


# `gelu` by a hyperbolic tangent is x sigmoid(BEND (x + CUBE x**3)), which is 0 or x long before the cube overflows.
GELU_BEND: Final = 2 * math.sqrt(2 / math.pi)
GELU_CUBE: Final = 0.044715
GELU_FAR: Final = 100.0


def _gelu_argument(x: UOp) -> tuple[UOp, UOp]:
    """The argument of the sigmoid, and the number it is of: x where that is not far from zero."""
    near = (x < -GELU_FAR).where(-GELU_FAR, x)
    near = (near > GELU_FAR).where(GELU_FAR, near)
    return near * GELU_BEND * (near * near * GELU_CUBE + 1.0), near


def _gelu_slopes(value: UOp, x: UOp) -> Sequence[UOp]:
    argument, near = _gelu_argument(x)
    sigmoid = _sigmoid(argument)
    rise = near * near * (3 * GELU_CUBE * GELU_BEND) + GELU_BEND
    return (sigmoid + near * rise * (sigmoid * (1.0 - sigmoid)),)


def _silu_slopes(value: UOp, sigmoid: UOp) -> Sequence[UOp]:
    return (sigmoid + value * (1.0 - sigmoid),)


def _circle(x: UOp) -> UOp:
    """sqrt(1 - x**2), whose two factors keep what the square would round off."""
    return ((1.0 - x) * (x + 1.0)).sqrt()


def _atan2_slopes(value: UOp, y: UOp, x: UOp) -> Sequence[UOp]:
    square = x * x + y * y
    nowhere = square.eq(0.0)
    safe = nowhere.where(1.0, square)
    return nowhere.where(0.0, x.fdiv(safe)), nowhere.where(0.0, -y.fdiv(safe))


FUNCTIONS: Final[dict[str, Function]] = {
    "expm1": Function(approximate.expm1, lambda value, x: (value + 1.0,)),
    "log1p": Function(approximate.log1p, lambda value, x: (_one(x).fdiv(x + 1.0),)),
    "log10": Function(approximate.log10, lambda value, x: (_one(x).fdiv(x * math.log(10.0)),)),
    "logaddexp": Function(approximate.logaddexp, lambda value, x, y: (_before(x, y, 1.0), _before(y, x, 1.0))),
    "logaddexp2": Function(
        approximate.logaddexp2, lambda value, x, y: (_before(x, y, math.log(2.0)), _before(y, x, math.log(2.0)))
    ),
    "sigmoid": Function(approximate.sigmoid, lambda value, x: (value * (1.0 - value),), _rough_sigmoid),
    "silu": Function(
        approximate.silu, lambda value, x: _silu_slopes(value, _sigmoid(x)), lambda x: x * _rough_sigmoid(x)
    ),
    "gelu": Function(
        lambda x: x * _sigmoid(_gelu_argument(x)[0]), _gelu_slopes, lambda x: x * _rough_sigmoid(_gelu_argument(x)[0])
    ),
    "softplus": Function(approximate.softplus, lambda value, x: (_sigmoid(x),)),
    "tanh_softplus": Function(approximate.tanh_softplus, lambda value, x: ((1.0 - value * value) * _sigmoid(x),)),
    "tan": Function(approximate.tan, lambda value, x: (value * value + 1.0,)),
    "asin": Function(approximate.asin, lambda value, x: (_one(x).fdiv(_circle(x)),)),
    "acos": Function(approximate.acos, lambda value, x: (x.coerce(-1.0).fdiv(_circle(x)),)),
    "atan": Function(approximate.atan, lambda value, x: (_one(x).fdiv(x * x + 1.0),)),
    "atan2": Function(approximate.atan2, _atan2_slopes),
    "sinh": Function(approximate.sinh, lambda value, x: (function("cosh", x),)),
    "cosh": Function(approximate.cosh, lambda value, x: (function("sinh", x),)),
    "tanh": Function(approximate.tanh, lambda value, x: (1.0 - value * value,)),
    "asinh": Function(approximate.asinh, lambda value, x: (_one(x).fdiv((x * x + 1.0).sqrt()),)),
    "acosh": Function(approximate.acosh, lambda value, x: (_one(x).fdiv(((x - 1.0) * (x + 1.0)).sqrt()),)),
    "atanh": Function(approximate.atanh, lambda value, x: (_one(x).fdiv((1.0 - x) * (x + 1.0)),)),
    "erf": Function(approximate.erf, lambda value, x: ((-(x * x)).exp() * (2 / math.sqrt(math.pi)),)),
    "hypot": Function(approximate.hypot, lambda value, x, y: (x.fdiv(value), y.fdiv(value))),
}


def _before(x: UOp, y: UOp, scale: float) -> UOp:
    """The share of x in a sum of powers; half of it for equal infinities."""
    gap = x.eq(y).where(0.0, x - y)
    return _sigmoid(gap * scale if scale != 1.0 else gap)


def _rule(name: str) -> Callable[..., Sequence[UOp]]:
    def gradients(gradient: UOp, *inputs: UOp) -> list[UOp]:
        return [gradient * slope for slope in FUNCTIONS[name].slopes(function(name, *inputs), *inputs)]

    return gradients


_ARGUMENTS: Final[dict[str, Any]] = {name: DerivativeArg(name, _rule(name), True) for name in FUNCTIONS}
