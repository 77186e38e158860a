"""Special functions that torch differentiates; their accuracy and edges stand in tests/ops/test_special.py."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from tests.operators.case import Case, In

CASES: list[Case] = []


def unary(
    name: str, low: float, high: float, *args: int, theirs: Callable[..., Any] | None = None, label: str = ""
) -> None:
    function = theirs or getattr(torch.special, name)
    CASES.append(
        Case(label or name, lambda x: getattr(x, name)(*args), function, [[In((7,), low, high)]], ("float32",), scale=2)
    )


unary("erfc", -3.0, 3.0)
unary("erfcx", -2.0, 4.0)
unary("erfinv", -0.95, 0.95)
unary("ndtr", -3.0, 3.0)
unary("log_ndtr", -6.0, 3.0)
unary("ndtri", 0.02, 0.98)
unary("entr", 0.05, 3.0)
unary("i0", -4.0, 4.0)
unary("i0e", -9.0, 9.0)
unary("i1", -4.0, 4.0)
unary("i1e", -9.0, 9.0)
unary("lgamma", -3.5, 6.0, theirs=torch.lgamma)
unary("digamma", 0.3, 6.0)
unary("polygamma", 0.3, 6.0, 2, theirs=lambda x: torch.polygamma(2, x))
unary("mvlgamma", 1.2, 6.0, 3, theirs=lambda x: torch.mvlgamma(x, 3))
CASES.append(
    Case("xlog1py", lambda x, y: x.xlog1py(y), torch.special.xlog1py, [[In((4, 1)), In((3,), -0.9, 3.0)]], scale=2)
)
