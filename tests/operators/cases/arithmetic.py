"""Element-wise methods under torch's names: remainders, limits, parts of numbers, integers, logic, more activations."""

from __future__ import annotations

import math

import torch

from tests.operators.case import TORCH_INTS, Case, In
from tests.operators.cases.elementwise import pairs, shapes

F = torch.nn.functional


def some(low: float = -3.0, high: float = 3.0, step: float = 0.0, low2: float | None = None) -> list[list[In]]:
    """Some of the pairs of shapes and layouts: broadcasting is the same for all."""
    return [specs for i, specs in enumerate(pairs(low, high, step, low2)) if i in (1, 4, 6, 9)]


def few(low: float, high: float, step: float = 0.0) -> list[list[In]]:
    """Some shapes and layouts of one operand."""
    return [specs for i, specs in enumerate(shapes(low, high, step)) if i in (0, 1, 4, 7)]


CASES: list[Case] = []
NAN, INF = math.nan, math.inf
FLOATS = ("float32", "bfloat16", "float64")

# one operand
for _name, _low, _high, _types in (
    ("frac", -5, 5, ("float32", "float16", "float64")),
    ("sgn", -3, 3, ("float32", "int32")),
    ("deg2rad", -400, 400, FLOATS),
    ("rad2deg", -7, 7, FLOATS),
    ("sinc", -4, 4, FLOATS),
    ("logit", 0.05, 0.95, ("float32", "float64")),
    ("angle", -3, 3, ("float32", "int32")),
    ("positive", -3, 3, ("float32", "int8")),
    ("signbit", -3, 3, ("float32", "bfloat16", "int32", "uint8")),
):
    CASES.append(
        Case(
            _name,
            lambda x, name=_name: getattr(x, name)(),
            getattr(torch, _name),
            few(_low, _high),
            _types,
            _name not in ("sgn", "angle", "signbit"),
        )
    )
CASES += [
    Case("logit-limited", lambda x: x.logit(0.2), lambda x: torch.logit(x, 0.2), few(-0.5, 1.5), FLOATS[:1]),
    Case("round-3", lambda x: x.round(decimals=3), lambda x: torch.round(x, decimals=3), few(-9, 9), FLOATS[:1]),
    Case("round-tens", lambda x: x.round(-1), lambda x: torch.round(x, decimals=-1), few(-99, 99, 0.5), FLOATS[:1]),
    Case("frexp", lambda x: x.frexp(), torch.frexp, few(-99, 99), ("float32", "float64", "float16")),
    Case("nan_to_num", lambda x: x.nan_to_num(), torch.nan_to_num, [[In(values=[NAN, INF, -INF, 1.0])]], FLOATS),
    Case(
        "nan_to_num-chosen",
        lambda x: x.nan_to_num(2.0, 3.0, -4.0),
        lambda x: torch.nan_to_num(x, 2.0, 3.0, -4.0),
        [[In(values=[NAN, INF, -INF, 1.0])]],
    ),
    Case("fill", lambda x: x.fill(2.5), lambda x: torch.fill(x, 2.5), few(-3, 3), ("float32", "int32"), False),
]

# two operands
for _name, _types, _low, _low2, _grad in (
    ("atan2", FLOATS, -3, -3, True),
    ("hypot", FLOATS, -3, -3, True),
    ("logaddexp2", ("float32", "float64"), -3, -3, True),
    ("fmax", ("float32", "int32"), -3, -3, True),
    ("fmin", ("float32", "int32"), -3, -3, True),
    ("remainder", ("float32", "int32", "uint8"), 0, 1, True),
    ("floor_divide", ("float32", "int32"), -20, 1, False),
    ("true_divide", ("float32", "int32"), -3, 0.5, True),
    ("float_power", ("float32", "int32"), 1, -3, True),
    ("xlogy", ("float32", "float64"), 0.1, 0.1, True),
    ("heaviside", ("float32", "int32"), -3, -3, False),
    ("gcd", ("int8", "int64", "uint8"), -90, -90, False),
    ("lcm", ("int32",), -90, -90, False),
    ("nextafter", ("float32", "float64"), -3, -3, False),
    ("ldexp", ("float32",), -3, -3, True),
    ("logical_and", ("bool", "float32", "int32"), 0, 0, False),
    ("logical_or", ("bool", "float32", "int32"), 0, 0, False),
    ("logical_xor", ("bool", "float32", "int32"), 0, 0, False),
    ("bitwise_left_shift", ("int32", "int64"), -3, 0, False),
    ("bitwise_right_shift", ("int32", "int64"), -90, 0, False),
    ("le", ("float32", "int32"), -3, -3, False),
    ("ge", ("float32", "int32"), -3, -3, False),
):
    _high = 90.0 if _name in ("gcd", "lcm", "floor_divide") else 3.0
    CASES.append(
        Case(
            f"{_name}-method" if _name in ("le", "ge") else _name,
            lambda x, y, name=_name: getattr(x, name)(y),
            getattr(torch, _name),
            some(_low, _high, 1.0 if _name == "heaviside" else 0.0, _low2),
            _types,
            _grad,
        )
    )
_SIGNED_ZEROS = [0.0, -0.0, 1.0, -1.0, INF, -INF, NAN]
_FIRST = [a for a in _SIGNED_ZEROS for _ in _SIGNED_ZEROS]
_SECOND = _SIGNED_ZEROS * len(_SIGNED_ZEROS)
CASES += [
    Case(
        f"{_name}-edges",
        lambda x, y, name=_name: getattr(x, name)(y),
        getattr(torch, _name),
        [[In(values=_FIRST), In(values=_SECOND)]],
        grad=False,
    )
    for _name in ("atan2", "hypot", "fmax", "fmin", "xlogy", "copysign", "nextafter", "logaddexp", "logaddexp2")
]
CASES += [
    Case("rsub-alpha", lambda x, y: x.rsub(y, alpha=3), lambda x, y: torch.rsub(x, y, alpha=3), some()),
    Case("add-alpha", lambda x, y: x.add(y, alpha=3), lambda x, y: torch.add(x, y, alpha=3), some(), TORCH_INTS),
    Case("sub-alpha", lambda x, y: x.sub(y, alpha=0.5), lambda x, y: torch.sub(x, y, alpha=0.5), some()),
    Case("clamp-tensors", lambda x, y: x.clamp(y, y + 1), lambda x, y: torch.clamp(x, y, y + 1), some()),
    Case(
        "lerp-tensor", lambda x, y: x.lerp(y, y * 0.4), lambda x, y: torch.lerp(x, y, y * 0.4), [[In((7,)), In((7,))]]
    ),
    Case("lerp-far", lambda x, y: x.lerp(y, 0.9), lambda x, y: torch.lerp(x, y, 0.9), some()),
]
_THREE = [[In((3, 5)), In((5,)), In((3, 1), 0.5)], [In(()), In((4,)), In((4,), 0.5)]]
CASES += [
    Case(
        "addcmul",
        lambda x, y, z: x.addcmul(y, z, value=0.5),
        lambda x, y, z: torch.addcmul(x, y, z, value=0.5),
        _THREE,
        ("float32", "float64"),
    ),
    Case(
        "addcdiv",
        lambda x, y, z: x.addcdiv(y, z, value=2),
        lambda x, y, z: torch.addcdiv(x, y, z, value=2),
        _THREE,
        ("float32", "float64"),
    ),
]

# activations
CASES += [
    Case("tanhshrink", lambda x: x.tanhshrink(), F.tanhshrink, few(-3, 3), FLOATS),
    Case("threshold", lambda x: x.threshold(0.5, 9), lambda x: F.threshold(x, 0.5, 9), few(-3, 3), FLOATS),
    Case("softshrink", lambda x: x.softshrink(0.7), lambda x: F.softshrink(x, 0.7), few(-3, 3), FLOATS),
    Case("hardshrink", lambda x: x.hardshrink(0.7), lambda x: F.hardshrink(x, 0.7), few(-3, 3), FLOATS),
    Case(
        "glu", lambda x: x.glu(1), lambda x: F.glu(x, 1), [[In((3, 6))], [In((2, 4, 3), layout="transposed")]], FLOATS
    ),
    Case("rrelu", lambda x: x.rrelu(), lambda x: F.rrelu(x), few(-3, 3), ("float32",)),
    Case("softplus-sharp", lambda x: x.softplus(3, 2), lambda x: F.softplus(x, 3, 2), few(-3, 3), ("float32",)),
    Case(
        "prelu",
        lambda x, w: x.prelu(w),
        F.prelu,
        [[In((2, 3)), In((1,))], [In((2, 3, 4)), In((3,))], [In((5,)), In((1,))]],
        ("float32", "float64"),
    ),
]
CASES += [
    Case(f"{_n}-at-the-bend", _ours, _theirs, [[In(values=_v)]])
    for _n, _ours, _theirs, _v in [
        ("softshrink", lambda x: x.softshrink(), F.softshrink, [-0.5, 0.5, 0.0, NAN]),
        ("hardshrink", lambda x: x.hardshrink(), F.hardshrink, [-0.5, 0.5, 0.0, NAN]),
        ("threshold", lambda x: x.threshold(0.0, 1.0), lambda x: F.threshold(x, 0.0, 1.0), [0.0, -1.0, 1.0]),
        ("prelu", lambda x: x.prelu(0.25), lambda x: F.prelu(x, torch.tensor([0.25])), [0.0, -1.0, 1.0]),
        ("rrelu", lambda x: x.rrelu(), lambda x: F.rrelu(x), [0.0, -1.0, 1.0]),
        ("logsigmoid-far", lambda x: x.logsigmoid(), F.logsigmoid, [0.0, 1000.0, -1000.0]),
        ("sinc", lambda x: x.sinc(), torch.sinc, [0.0, 0.5, 3.0]),
        ("frac", lambda x: x.frac(), torch.frac, [0.0, 1.0, -1.5]),
        ("erf", lambda x: x.erf(), torch.erf, [0.0, 100.0, -100.0]),
        ("asinh", lambda x: x.asinh(), torch.asinh, [0.0, 1e10, -1e30]),
        ("atan", lambda x: x.atan(), torch.atan, [0.0, 1e10, -1e30, INF]),
    ]
]
CASES.append(
    Case(
        "atan2-at-zero",
        lambda y, x: y.atan2(x),
        torch.atan2,
        [[In(values=[0.0, 0.0, 1.0]), In(values=[0.0, 1.0, 0.0])]],
    )
)
