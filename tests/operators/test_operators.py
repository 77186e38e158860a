"""Every operator against torch, on every device: a new backend passes when this passes.

A device takes part by its name in `DEVICES`; its cases come from `cases`, one table a kind of operator.
"""

from __future__ import annotations

import os
from itertools import chain
from typing import Any

import pytest

pytest.importorskip("torch")

from tests.device.cuda import emulate
from tests.operators.case import Case, check
from tests.operators.cases import (
    arithmetic,
    elementwise,
    indexing,
    layers,
    linalg,
    movement,
    neural,
    products,
    reductions,
    shapes,
    special,
    statistics,
    windows,
)

# Others by name, as on a machine with a GPU: OPERATOR_DEVICES=CUDA pytest tests/operators
DEVICES = tuple(os.environ.get("OPERATOR_DEVICES", "CPU,PYTHON").split(","))
if "EMULATED" in DEVICES:  # kernels of a GPU, compiled for the CPU
    emulate.register()
TABLES = (
    elementwise, arithmetic, special, reductions, movement, shapes, indexing, products, windows, neural, layers, linalg,
    statistics,
)  # fmt: skip
CASES = list(chain.from_iterable(table.CASES for table in TABLES))


def _run(number: int, case: Case, dtype: str, device: str) -> Any:
    marks = [] if _is_quick(number, case, dtype, device) else [pytest.mark.slow]
    return pytest.param(case, dtype, device, id=f"{case.name}-{dtype}-{device}", marks=marks)


def _is_quick(number: int, case: Case, dtype: str, device: str) -> bool:
    """The quick run takes two types of every second case, each on one device, in turn; of others one type once."""
    first, others = case.dtypes[0], case.dtypes[1:]
    if case.heavy or not others:
        return dtype == first and (device == DEVICES[0] or not case.heavy)
    if number % 2:
        return dtype == first and device == DEVICES[0]
    other = others[number // 2 % len(others)]
    place = number // 2 + DEVICES.index(device)
    return dtype == (first, other)[place % 2]


RUNS = [
    _run(number, case, dtype, device)
    for number, case in enumerate(CASES)
    for dtype in case.dtypes
    for device in DEVICES
]


def test_names_are_unique() -> None:
    names = [case.name for case in CASES]
    assert len(set(names)) == len(names)


@pytest.mark.parametrize(("case", "dtype", "device"), RUNS)
def test_operator(case: Case, dtype: str, device: str) -> None:
    check(case, dtype, device)
