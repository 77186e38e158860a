"""Element-wise operators: one-operand functions, arithmetic, comparisons, bits, selection, casts."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from tests.operators.case import FLOATS, SIGNED, TORCH_INTS, Case, In

F = torch.nn.functional
CASES: list[Case] = []

SPECIAL = [float("nan"), float("inf"), -float("inf"), 0.0, -0.0, 1e-30, -1e30, 1e30, 100.0, -100.0, 0.5, -1.0, 1.0]
LAYOUTS = ("plain", "transposed", "sliced", "strided", "flipped", "expanded")


def shapes(low: float, high: float, step: float = 0.0) -> list[list[In]]:
    """Empty, one element, no axes, odd sizes, every layout."""
    plain = [[In(s, low, high, step=step)] for s in ((0, 3), (), (1,), (67,), (3, 5, 7))]
    return plain + [[In((3, 5), low, high, layout=layout, step=step)] for layout in LAYOUTS[1:]]


def unary(
    name: str,
    theirs: Callable[..., Any],
    ours: Callable[..., Any] | None = None,
    low: float = -3.0,
    high: float = 3.0,
    dtypes: tuple[str, ...] = ("float32", "float16", "float64"),
    grad: bool = True,
    scale: float = 1.0,
) -> None:
    function = ours or (lambda x: getattr(x, name)())
    CASES.append(Case(name, function, theirs, shapes(low, high), dtypes, grad, scale))


def special(name: str, theirs: Callable[..., Any], ours: Callable[..., Any] | None = None, values: Any = None) -> None:
    """NaN, infinities, signed zeros, huge and tiny numbers; values only."""
    function = ours or (lambda x: getattr(x, name)())
    CASES.append(Case(f"{name}-special", function, theirs, [[In(values=values or SPECIAL)]], grad=False))


unary("exp", torch.exp)
unary("exp2", torch.exp2)
unary("log", torch.log, low=0.05)
unary("log2", torch.log2, low=0.05)
unary("log10", torch.log10, low=0.05)
unary("log1p", torch.log1p, low=-0.9)
unary("expm1", torch.expm1)
unary("sqrt", torch.sqrt, low=0.05)
unary("rsqrt", torch.rsqrt, low=0.05)
unary("sin", torch.sin)
unary("cos", torch.cos)
unary("tan", torch.tan, low=-1.2, high=1.2, scale=3)
unary("asin", torch.asin, low=-0.95, high=0.95)
unary("acos", torch.acos, low=-0.95, high=0.95)
unary("atan", torch.atan, low=-9.0, high=9.0)
unary("sinh", torch.sinh)
unary("cosh", torch.cosh)
unary("tanh", torch.tanh)
unary("asinh", torch.asinh)
unary("acosh", torch.acosh, low=1.1, high=5.0)
unary("atanh", torch.atanh, low=-0.9, high=0.9)
unary("sigmoid", torch.sigmoid)
unary("erf", torch.erf)
unary("reciprocal", torch.reciprocal, low=0.2)
unary("square", torch.square)
unary("trunc", torch.trunc)
unary("floor", torch.floor)
unary("ceil", torch.ceil)
unary("neg", torch.neg, dtypes=("float32", "bfloat16", *SIGNED))
unary("abs", torch.abs, dtypes=("float32", "bfloat16", *SIGNED))
unary("sign", torch.sign, dtypes=("float32", *SIGNED))
CASES.append(Case("round", lambda x: x.round(), torch.round, shapes(-5, 5, 0.5), ("float32", "float16", "float64")))

for _name in (
    "exp",
    "exp2",
    "log",
    "log2",
    "sqrt",
    "rsqrt",
    "tanh",
    "sigmoid",
    "erf",
    "reciprocal",
    "abs",
    "atan",
    "asinh",
    "floor",
    "ceil",
    "round",
    "trunc",
    "isnan",
    "isinf",
    "isfinite",
    "log1p",
    "expm1",
    "asin",
    "acos",
):
    special(_name, getattr(torch, _name))
special("sign", lambda x: torch.where(x.isnan(), x, torch.sign(x)))
special("sin", torch.sin, values=[0.0, -0.0, float("nan"), float("inf"), 100.0, 1e4, -1e4, 3.14159274])
special("cos", torch.cos, values=[0.0, -0.0, float("nan"), float("inf"), 100.0, 1e4, -1e4, 1.57079637])
special("relu", torch.relu)
special("gelu-erf", lambda x: F.gelu(x), lambda x: x.gelu("none"), values=[-100.0, -9.0, -1.0, 0.0, 1.0, 9.0, 100.0])

# activations
unary("relu", torch.relu, dtypes=("float32", "bfloat16", "int32"))
unary("relu6", F.relu6, low=-9.0, high=9.0)
unary("hardtanh", F.hardtanh)
unary("hardsigmoid", F.hardsigmoid, low=-5.0, high=5.0)
unary("hardswish", F.hardswish, low=-5.0, high=5.0, dtypes=("float32", "float64"))
unary("logsigmoid", F.logsigmoid)
unary("softplus", F.softplus)
unary("silu", F.silu)
unary("swish", F.silu)
unary("gelu", lambda x: F.gelu(x, approximate="tanh"))
unary("gelu-erf", lambda x: F.gelu(x), lambda x: x.gelu(approximate="none"))
unary("quick_gelu", lambda x: x * torch.sigmoid(1.702 * x))
unary("leaky_relu", lambda x: F.leaky_relu(x, 0.1), lambda x: x.leaky_relu(0.1))
unary("elu", lambda x: F.elu(x, 1.3), lambda x: x.elu(1.3))
unary("celu", lambda x: F.celu(x, 1.3), lambda x: x.celu(1.3))
unary("selu", F.selu)
unary("mish", F.mish)
unary("softsign", F.softsign)
# Ties: sub-gradients where functions bend.
CASES += [
    Case(f"{_n}-at-the-bend", _ours, _theirs, [[In(values=_v)]])
    for _n, _ours, _theirs, _v in [
        ("relu", lambda x: x.relu(), torch.relu, [-1.0, 0.0, 1.0]),
        ("abs", lambda x: x.abs(), torch.abs, [-1.0, 0.0, 1.0]),
        ("relu6", lambda x: x.relu6(), F.relu6, [0.0, 6.0]),
        ("hardtanh", lambda x: x.hardtanh(), F.hardtanh, [-1.0, 1.0]),
        ("hardswish", lambda x: x.hardswish(), F.hardswish, [-3.0, 3.0, 0.0]),
        ("hardsigmoid", lambda x: x.hardsigmoid(), F.hardsigmoid, [-3.0, 3.0, 0.0]),
        ("leaky_relu", lambda x: x.leaky_relu(), F.leaky_relu, [0.0]),
        ("elu", lambda x: x.elu(), F.elu, [0.0]),
        ("softplus", lambda x: x.softplus(), F.softplus, [0.0, 30.0, -30.0]),
        ("clamp", lambda x: x.clamp(-1, 1), lambda x: x.clamp(-1, 1), [-1.0, 0.0, 1.0, 2.0]),
        ("sigmoid", lambda x: x.sigmoid(), torch.sigmoid, [0.0, 100.0, -100.0]),
        ("tanh", lambda x: x.tanh(), torch.tanh, [0.0, 100.0, -100.0]),
        ("gelu", lambda x: x.gelu(), lambda x: F.gelu(x, approximate="tanh"), [0.0, 100.0, -100.0]),
        ("silu", lambda x: x.silu(), F.silu, [0.0, 100.0, -100.0]),
        ("mish", lambda x: x.mish(), F.mish, [0.0, 50.0, -50.0]),
        ("logsigmoid", lambda x: x.logsigmoid(), F.logsigmoid, [0.0, 100.0, -100.0]),
    ]
]

# two operands
PAIRS = [
    ((3, 5), (3, 5)),
    ((3, 5), (5,)),
    ((3, 1), (1, 5)),
    ((), (4,)),
    ((2, 1, 3), (7, 1)),
    ((1,), (1,)),
    ((0, 3), (1, 3)),
    ((67,), (67,)),
]


def pairs(low: float = -3.0, high: float = 3.0, step: float = 0.0, low2: float | None = None) -> list[list[In]]:
    second = low if low2 is None else low2
    found = [[In(a, low, high, step=step), In(b, second, high, step=step)] for a, b in PAIRS]
    mixed = zip(LAYOUTS, LAYOUTS[::-1], strict=True)
    return found + [[In((4, 6), low, high, layout=a), In((4, 6), second, high, layout=b)] for a, b in mixed]


def binary(
    name: str,
    theirs: Callable[..., Any],
    ours: Callable[..., Any] | None = None,
    dtypes: tuple[str, ...] = ("float32", "float16", "int32"),
    low: float = -3.0,
    high: float = 3.0,
    step: float = 0.0,
    low2: float | None = None,
    grad: bool = True,
    heavy: bool = False,
) -> None:
    function = ours or (lambda x, y: getattr(x, name)(y))
    CASES.append(Case(name, function, theirs, pairs(low, high, step, low2), dtypes, grad, heavy=heavy))


binary("add", torch.add, dtypes=(*FLOATS, *TORCH_INTS, "bool"))
binary("sub", torch.sub, dtypes=(*FLOATS, *TORCH_INTS))
binary("mul", torch.mul, dtypes=(*FLOATS, *TORCH_INTS, "bool"))
binary("div", torch.div, dtypes=(*FLOATS, "int32", "uint8"), low2=0.5)
binary("maximum", torch.maximum, dtypes=("float32", "int32", "uint8"), step=1.0)
binary("minimum", torch.minimum, dtypes=("float32", "int32", "uint8"), step=1.0)
binary("pow", torch.pow, dtypes=("float32", "float64"), low=0.2)
binary(
    "pow-int",
    lambda x, y: torch.pow(x, y),
    lambda x, y: x.pow(y),
    dtypes=("int32", "int64"),
    low=-5,
    high=6,
    low2=0,
    heavy=True,  # a squaring for each bit of the exponent
)
binary("copysign", torch.copysign, dtypes=("float32",))
binary("logaddexp", torch.logaddexp, dtypes=("float32", "float64"))
binary("mod", torch.remainder, dtypes=("float32", "int32", "int64", "uint8"), low=-20, high=20, low2=3)
binary("fmod", torch.fmod, dtypes=("float32", "int32"), low=-20, high=20, low2=3, grad=False)
binary(
    "floordiv",
    torch.floor_divide,
    lambda x, y: x // y,
    dtypes=("float32", "int32", "int8"),
    low=-20,
    high=20,
    low2=3,
    grad=False,
)
binary("idiv", lambda x, y: torch.div(x, y, rounding_mode="trunc"), dtypes=("int32", "int64"), low=-20, high=20, low2=3)
binary("isclose", torch.isclose, dtypes=("float32",), step=1.0, grad=False)
for _op in ("lt", "eq", "ne", "gt"):
    binary(_op, getattr(torch, _op), dtypes=("float32", "int32", "uint8", "bool"), step=1.0, grad=False)
binary("le", torch.le, lambda x, y: x <= y, dtypes=("float32", "int32", "bfloat16"), step=1.0, grad=False)
binary("ge", torch.ge, lambda x, y: x >= y, dtypes=("float32", "int32", "bfloat16"), step=1.0, grad=False)
for _op in ("bitwise_and", "bitwise_or", "bitwise_xor"):
    binary(_op, getattr(torch, _op), dtypes=("bool", "int8", "uint8", "int32", "int64"), low=-100, high=100, grad=False)
for _op, _torch in (("lshift", torch.bitwise_left_shift), ("rshift", torch.bitwise_right_shift)):
    binary(_op, _torch, dtypes=("int32", "int64"), low=-100, high=6, low2=0, grad=False)
unary("bitwise_not", torch.bitwise_not, dtypes=("bool", "int8", "uint8", "int32", "int64"), grad=False, high=100)
unary("logical_not", torch.logical_not, dtypes=("bool", "float32", "int32"), grad=False, low=0, high=1)

_X = [float("nan"), 1.0, float("inf"), 0.0, -1.0, float("nan")]
_Y = [1.0, float("nan"), 2.0, -0.0, -1.0, float("nan")]
for _op in ("maximum", "minimum", "lt", "eq", "ne", "gt"):
    CASES.append(
        Case(
            f"{_op}-special",
            lambda x, y, n=_op: getattr(x, n)(y),
            getattr(torch, _op),
            [[In(values=_X), In(values=_Y)]],
            grad=False,
        )
    )
CASES.append(Case("le-special", lambda x, y: x <= y, torch.le, [[In(values=_X), In(values=_Y)]], grad=False))
CASES.append(
    Case(
        "logaddexp-special",
        lambda x, y: x.logaddexp(y),
        torch.logaddexp,
        [
            [
                In(values=[-float("inf"), float("inf"), -float("inf"), 100.0]),
                In(values=[-float("inf"), 1.0, 1.0, -100.0]),
            ]
        ],
        grad=False,
    )
)

# numbers on one side; powers
for _label, _function in {
    "add-number": lambda x: x + 2,
    "radd-number": lambda x: 2.5 + x,
    "sub-number": lambda x: x - 1.5,
    "rsub-number": lambda x: 1 - x,
    "mul-number": lambda x: x * -3,
    "div-number": lambda x: x / 4,
    "rdiv-number": lambda x: 2 / x,
    "pow-0": lambda x: x**0,
    "pow-1": lambda x: x**1,
    "pow-2": lambda x: x**2,
    "pow-3": lambda x: x**3,
    "pow-minus-1": lambda x: x**-1,
    "pow-half": lambda x: x**0.5,
    "pow-17": lambda x: x**17,
    "pow-1.7": lambda x: x**1.7,
    "rpow": lambda x: 2.0**x,
    "mod-number": lambda x: x % 1.5,
}.items():
    CASES.append(
        Case(
            _label, _function, _function, [[In((3, 7), 0.4, 1.9)], [In((), 0.4, 1.9)]], ("float32", "float64"), scale=4
        )
    )
for _label, _function in {
    "int-add-number": lambda x: x + 2,
    "int-add-fraction": lambda x: x + 0.5,
    "int-div-number": lambda x: x / 2,
    "int-floordiv-number": lambda x: x // 3,
    "int-mod-number": lambda x: x % 3,
    "int-rsub-number": lambda x: 5 - x,
    "int-pow-number": lambda x: x**3,
    "int-rfloordiv": lambda x: 100 // (x * x + 1),
    "int-less-fraction": lambda x: x < 0.5,
}.items():
    CASES.append(Case(_label, _function, _function, [[In((3, 7), -20, 20)]], ("int32", "int8", "int64"), grad=False))
CASES.append(
    Case("clamp", lambda x: x.clamp(-1.0, 2.0), lambda x: x.clamp(-1.0, 2.0), shapes(-3, 3), ("float32", "float16"))
)
CASES.append(
    Case("clamp-min", lambda x: x.clamp(min_=0), lambda x: x.clamp(min=0), [[In((7,), -5, 5)]], ("float32", "int32"))
)
CASES.append(
    Case("clip-max", lambda x: x.clip(None, 1), lambda x: x.clip(None, 1), [[In((7,), -5, 5)]], ("float32", "int32"))
)
CASES.append(Case("lerp", lambda x, y: x.lerp(y, 0.3), lambda x, y: torch.lerp(x, y, 0.3), pairs()))

# selection
CASES.append(
    Case(
        "where",
        lambda c, x, y: c.where(x, y),
        torch.where,
        [
            [In((3, 5), dtype="bool"), In((3, 5)), In((3, 5))],
            [In((3, 1), dtype="bool"), In((5,)), In(())],
            [In((), dtype="bool"), In((4,), layout="strided"), In((4,))],
            [In((0, 2), dtype="bool"), In((0, 2)), In((2,))],
        ],
        ("float32", "float16", "int32", "bool"),
    )
)
CASES.append(
    Case(
        "where-number",
        lambda c, x: c.where(x, 0.5),
        lambda c, x: torch.where(c, x, 0.5),
        [[In((3, 5), dtype="bool"), In((3, 5))]],
    )
)
CASES.append(
    Case(
        "masked_fill",
        lambda x, c: x.masked_fill(c, -1.0),
        lambda x, c: x.masked_fill(c, -1.0),
        [[In((3, 5)), In((3, 5), dtype="bool")], [In((3, 5)), In((5,), dtype="bool")]],
    )
)

# casts
for _to in ("bool", "uint8", "int8", "int16", "int32", "int64", *FLOATS):
    CASES.append(
        Case(
            f"cast-{_to}",
            lambda x, to=_to: x.cast(to),
            lambda x, to=_to: x.to(getattr(torch, to)),
            [[In((3, 7), -100, 100)], [In((), 0, 9)], [In((0,))]]
            if not _to.startswith("u")
            else [[In((3, 7), 0, 100)]],
            ("float32", "float16", "bfloat16", "float64", "int32", "int8", "uint8", "bool", "int64"),
        )
    )
for _from, _to in (
    ("float32", "int32"),
    ("int32", "float32"),
    ("int16", "float16"),
    ("float64", "int64"),
    ("float32", "uint8"),
    ("int64", "int16"),
    ("uint8", "float32"),
    ("int8", "int64"),
):
    CASES.append(
        Case(
            f"bitcast-{_from}-{_to}",
            lambda x, to=_to: x.bitcast(to),
            lambda x, to=_to: x.contiguous().view(getattr(torch, to)),
            [[In((3, 8), 0, 100)], [In((8,), 0, 100, layout="strided")]],
            (_from,),
            grad=False,
        )
    )
# Mixed types meet in one that holds both.
for _a in ("bool", "uint8", "int8", "int16", "int32", "int64", "float16", "bfloat16", "float32"):
    for _b in ("uint8", "int8", "int64", "float16", "bfloat16", "float32"):
        CASES.append(
            Case(
                f"promote-{_a}-{_b}",
                lambda x, y: x * y,
                lambda x, y: x * y,
                [[In((5,), 0, 9, dtype=_a, grad=False), In((5,), 0, 9, dtype=_b, grad=False)]],
                (_a,),
                grad=False,
                scale=100,
            )
        )
