"""Reductions, softmax, running sums, order."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from tests.operators.case import FLOATS, TORCH_INTS, Case, In

CASES: list[Case] = []
SHAPES: list[list[In]] = [
    [In((3, 5, 7))],
    [In((1, 1, 1))],
    [In((4, 1, 130))],
    [In((3, 5, 4), layout="transposed")],
    [In((3, 5, 4), layout="sliced")],
    [In((3, 5, 4), layout="strided")],
    [In((3, 5, 4), layout="flipped")],
    [In((3, 5, 4), layout="expanded")],
]
# The gradient of a product is a tree of its own for every element; small is enough to see it right.
PRODUCTS: list[list[In]] = [[In((2, 3, 2))], [In((1, 1, 1))], [In((3, 1, 2), layout="transposed")]]
AXES: dict[str, Any] = {"all": None, "0": 0, "last": -1, "pair": (0, 2), "middle": 1}


def torch_axes(function: Callable[..., Any], axis: Any, ndim: int, keepdim: bool) -> Callable[..., Any]:
    """torch functions that take one axis, over several."""

    def run(x: Any) -> Any:
        axes = range(x.ndim) if axis is None else axis if isinstance(axis, tuple) else (axis,)
        for a in sorted((a % max(x.ndim, 1) for a in axes), reverse=True):
            x = function(x, a, keepdim)
        return x

    return run


def with_places(result: Any) -> tuple[Any, Any]:
    """torch's values and places; ours are of the default integer type."""
    return result[0], result[1].int()


def reduce_case(name: str, theirs: Callable[..., Any], dtypes: tuple[str, ...], **rest: Any) -> None:
    for label, axis in AXES.items():
        for keepdim in (False, True) if label in ("all", "pair") else (False,):
            CASES.append(
                Case(
                    f"{name}-{label}{'-keepdim' if keepdim else ''}",
                    lambda x, n=name, a=axis, k=keepdim: getattr(x, n)(axis=a, keepdim=k),
                    torch_axes(theirs, axis, 3, keepdim),
                    PRODUCTS if name == "prod" else SHAPES,
                    dtypes if label == "pair" else dtypes[:1],
                    **rest,
                )
            )


reduce_case("sum", lambda x, a, k: torch.sum(x, a, k), (*FLOATS, *TORCH_INTS, "bool"), scale=3)
reduce_case("mean", lambda x, a, k: torch.mean(x, a, k), FLOATS)
reduce_case("prod", lambda x, a, k: torch.prod(x, a, k), ("float32", "float64", "int32", "bool"), scale=3)
reduce_case("max", lambda x, a, k: torch.amax(x, a, k), ("float32", "float16", "int32", "uint8", "bool"))
reduce_case("min", lambda x, a, k: torch.amin(x, a, k), ("float32", "float16", "int32", "uint8", "bool"))
reduce_case("any", lambda x, a, k: torch.any(x, a, k), ("bool", "float32", "int32"), grad=False)
reduce_case("all", lambda x, a, k: torch.all(x, a, k), ("bool", "float32", "int32"), grad=False)

for _name, _torch in (("sum", torch.sum), ("prod", torch.prod), ("mean", torch.mean)):
    CASES.append(
        Case(
            f"{_name}-empty",
            lambda x, n=_name: getattr(x, n)(0),
            lambda x, f=_torch: f(x, 0),
            [[In((0, 3))]],
            grad=False,
        )
    )
    CASES.append(
        Case(
            f"{_name}-none-left",
            lambda x, n=_name: getattr(x, n)(1),
            lambda x, f=_torch: f(x, 1),
            [[In((0, 3))]],
            grad=False,
        )
    )
    CASES.append(Case(f"{_name}-no-axes", lambda x, n=_name: getattr(x, n)(), lambda x, f=_torch: f(x), [[In(())]]))
CASES.append(Case("any-empty", lambda x: x.any(0), lambda x: x.any(0), [[In((0, 3))]], ("bool",), grad=False))
CASES.append(Case("all-empty", lambda x: x.all(0), lambda x: x.all(0), [[In((0, 3))]], ("bool",), grad=False))
CASES.append(
    Case(
        "sum-dtype",
        lambda x: x.sum(0, dtype="float64"),
        lambda x: x.sum(0, dtype=torch.float64),
        [[In((9, 3))]],
        ("float32", "int32"),
    )
)
# Ties share the gradient of max and min.
for _name, _torch in (("max", torch.amax), ("min", torch.amin)):
    CASES.append(
        Case(
            f"{_name}-ties", lambda x, n=_name: getattr(x, n)(1), lambda x, f=_torch: f(x, 1), [[In((5, 9), step=1.0)]]
        )
    )
    CASES.append(
        Case(
            f"{_name}-nan",
            lambda x, n=_name: getattr(x, n)(),
            lambda x, f=_torch: f(x),
            [[In(values=[1.0, float("nan"), 3.0])]],
            grad=False,
        )
    )
for _name in ("argmax", "argmin"):
    for _axis in (None, 0, 1, -1):
        CASES.append(
            Case(
                f"{_name}-{_axis}",
                lambda x, n=_name, a=_axis: getattr(x, n)(a),
                lambda x, n=_name, a=_axis: getattr(torch, n)(x, a).int(),
                [[In((5, 7))], [In((1, 1))], [In((3, 40), layout="transposed")]],
                ("float32", "int32", "uint8"),
                grad=False,
            )
        )
    CASES.append(
        Case(
            f"{_name}-keepdim",
            lambda x, n=_name: getattr(x, n)(0, keepdim=True),
            lambda x, n=_name: getattr(torch, n)(x, 0, keepdim=True).int(),
            [[In((5, 7))]],
            grad=False,
        )
    )

for _name in ("var", "std"):
    for _correction in (0, 1):
        CASES.append(
            Case(
                f"{_name}-{_correction}",
                lambda x, n=_name, c=_correction: getattr(x, n)(axis=(0, 2), correction=c),
                lambda x, n=_name, c=_correction: getattr(torch, n)(x, (0, 2), correction=c),
                [[In((3, 5, 7))], [In((3, 5, 4), layout="transposed")]],
                ("float32", "float64"),
                scale=4,
            )
        )
    CASES.append(
        Case(
            f"{_name}_mean",
            lambda x, n=_name: getattr(x, f"{n}_mean")(1),
            lambda x, n=_name: getattr(torch, f"{n}_mean")(x, 1),
            [[In((3, 8))]],
            scale=4,
        )
    )
CASES.append(Case("var-keepdim", lambda x: x.var(1, keepdim=True), lambda x: x.var(1, keepdim=True), [[In((3, 8))]]))
CASES.append(Case("normalize", lambda x: x.normalize(), torch.nn.functional.normalize, [[In((3, 8))]], scale=4))

for _name in ("softmax", "log_softmax"):
    for _axis in (0, -1):
        CASES.append(
            Case(
                f"{_name}-{_axis}",
                lambda x, n=_name, a=_axis: getattr(x, n)(a),
                lambda x, n=_name, a=_axis: getattr(torch, n)(x, a),
                [[In((3, 5))], [In((1, 1))], [In((4, 130), -50, 50)], [In((6, 5), layout="transposed")]],
                ("float32", "float16", "float64"),
                scale=4,
            )
        )
for _axis in (0, 1, (0, 1)):
    CASES.append(
        Case(
            f"logsumexp-{_axis}",
            lambda x, a=_axis: x.logsumexp(a),
            lambda x, a=_axis: torch.logsumexp(x, a),
            [[In((3, 5), -80, 80)], [In((1, 1))]],
        )
    )
_NEG = -float("inf")
CASES.append(
    Case(
        "logsumexp-infinite",
        lambda x: x.logsumexp(1),
        lambda x: torch.logsumexp(x, 1),
        [[In(values=[[_NEG, _NEG], [1.0, _NEG], [float("inf"), 0.0], [200.0, 200.0]])]],
        grad=False,
    )
)
CASES.append(
    Case(
        "logcumsumexp",
        lambda x: x.logcumsumexp(0),
        lambda x: torch.logcumsumexp(x, 0),
        [[In((7, 3), -20, 20)], [In((1, 1))]],
        scale=4,
    )
)
CASES.append(
    Case(
        "logcumsumexp-infinite",
        lambda x: x.logcumsumexp(0),
        lambda x: torch.logcumsumexp(x, 0),
        [[In(values=[_NEG, _NEG, 0.0, 0.0])]],
        grad=False,
    )
)

for _axis in (0, 1, -1):
    CASES.append(
        Case(
            f"cumsum-{_axis}",
            lambda x, a=_axis: x.cumsum(a),
            lambda x, a=_axis: torch.cumsum(x, a),
            [[In((5, 7))], [In((1, 1))], [In((3, 70))], [In((70, 3), layout="transposed")], [In((0, 3))]],
            ("float32", "int32", "bool"),
            scale=5,
        )
    )
CASES.append(Case("cumsum-long", lambda x: x.cumsum(0), lambda x: torch.cumsum(x, 0), [[In((3000,))]], scale=20))
CASES.append(
    Case(
        "cumprod",
        lambda x: x.cumprod(1),
        lambda x: torch.cumprod(x, 1),
        [[In((2, 9), 0.5, 1.5)], [In((2, 40), 0.8, 1.2)]],
        ("float32", "int64"),
        scale=5,
    )
)
CASES.append(
    Case(
        "cummax",
        lambda x: x.cummax(0),
        lambda x: with_places(torch.cummax(x, 0)),
        [[In((50, 2))], [In((20, 3), step=1.0)]],
        ("float32", "int32"),
    )
)
CASES.append(
    Case(
        "cummin",
        lambda x: x.cummin(0),
        lambda x: with_places(torch.cummin(x, 0)),
        [[In((50, 2))], [In((20, 3), step=1.0)]],
        ("float32", "int32"),
    )
)
for _descending in (False, True):
    CASES.append(
        Case(
            f"sort-{_descending}",
            lambda x, d=_descending: x.sort(1, d),
            lambda x, d=_descending: with_places(torch.sort(x, dim=1, descending=d, stable=True)),
            [[In((3, 7))], [In((2, 8), step=1.0)], [In((1, 1))], [In((2, 33), -99, 99)]],
            ("float32", "int32"),
            grad=True,
        )
    )
CASES.append(
    Case(
        "sort-nan",
        lambda x: x.sort(0)[0],
        lambda x: torch.sort(x, 0).values,
        [[In(values=[3.0, float("nan"), -1.0, float("inf"), float("nan")])]],
        grad=False,
    )
)
CASES.append(
    Case(
        "argsort",
        lambda x: x.argsort(0),
        lambda x: torch.argsort(x, dim=0, stable=True).int(),
        [[In((9, 2))]],
        ("float32", "int32"),
        grad=False,
    )
)
CASES.append(Case("topk", lambda x: x.topk(3, 1), lambda x: with_places(torch.topk(x, 3, 1)), [[In((3, 10))]]))
CASES.append(
    Case(
        "topk-smallest",
        lambda x: x.topk(2, 0, largest=False),
        lambda x: with_places(torch.topk(x, 2, 0, largest=False)),
        [[In((9, 2))]],
    )
)
