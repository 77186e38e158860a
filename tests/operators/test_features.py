"""The operator suite with fewer vector instructions than this machine has: the heuristic's other choices, run."""

from __future__ import annotations

from typing import Any

import pytest

pytest.importorskip("torch")

from gradlet.base.settings import scope
from gradlet.device.cpu.target import runnable
from tests.operators.case import Case, check
from tests.operators.test_operators import CASES

STEP = 240  # of so many cases one runs always, the others in the slow run


def _runs() -> list[Any]:
    found = []
    for number, case in enumerate(CASES):
        for features in runnable()[1:]:
            quick = number % STEP == 0 and not case.heavy
            marks = [] if quick else [pytest.mark.slow]
            found.append(pytest.param(case, features, id=f"{case.name}-{features}", marks=marks))
    return found


@pytest.mark.parametrize(("case", "features"), _runs())
def test_operator(case: Case, features: str) -> None:
    with scope(CPU_FEATURES=features):
        check(case, case.dtypes[0], "CPU")
