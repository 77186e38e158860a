"""Every operator along axes whose size is a variable: the values that it has for a fixed size, or a clear refusal."""

from __future__ import annotations

import zlib
from typing import Any

import numpy as np
import pytest

pytest.importorskip("torch")

from gradlet import Tensor
from gradlet.base.errors import UserError
from gradlet.tensor.tensor import Variable
from tests.operators.case import TOLERANCE, Case, numpy_input
from tests.operators.test_operators import CASES

PAST = 3  # positions behind the size


def with_unknown(array: np.ndarray, axis: int, variable: Any) -> Tensor:
    """The array with an axis whose size is known only at launch, and behind it what nobody must see."""
    pads = [(0, PAST if a == axis else 0) for a in range(array.ndim)]
    fill: Any = np.nan if array.dtype.kind == "f" else True if array.dtype.kind == "b" else 77
    memory = Tensor(np.pad(array, pads, constant_values=fill))
    return memory[(*[slice(None)] * axis, slice(0, variable.bind(array.shape[axis])))]


def results(value: Any) -> list[np.ndarray]:
    """All result tensors as arrays."""
    if isinstance(value, Tensor):
        return [value.numpy()]
    if isinstance(value, (tuple, list)):
        return [array for part in value for array in results(part)]
    return [np.array(value)]


def assignments(arrays: list[np.ndarray]) -> list[tuple[int | None, ...]]:
    """Which axis of every input is unknown: one of the first, and then also those of its size at the same place."""
    found: dict[tuple[int | None, ...], None] = {}
    first = arrays[0]
    for axis in range(first.ndim):
        size = first.shape[axis]
        if size < 2:
            continue
        found[(axis, *[None] * (len(arrays) - 1))] = None
        for from_left in (False, True):
            places = [axis if from_left else a.ndim - first.ndim + axis for a in arrays]
            found[tuple([p if 0 <= p < a.ndim and a.shape[p] == size else None
                         for p, a in zip(places, arrays, strict=True)])] = None  # fmt: skip
    return list(found)


def check_symbolic(case: Case) -> tuple[int, int]:
    """How many runs gave the same values, and how many were refused."""
    right = refused = 0
    dtype = case.dtypes[0]
    for number, specs in enumerate(case.inputs):
        seed = zlib.crc32(f"{case.name} {number}".encode())
        arrays = [numpy_input(spec, dtype, seed + i) for i, spec in enumerate(specs)]
        if not arrays:
            continue
        Tensor.manual_seed(0)
        wanted = results(case.ours(*[Tensor(a) for a in arrays]))
        for axes in assignments(arrays):
            size = next(arrays[i].shape[a] for i, a in enumerate(axes) if a is not None)
            variable = Variable("n", 0, size + PAST)
            try:
                given = [Tensor(x) if a is None else with_unknown(x, a, variable)
                         for x, a in zip(arrays, axes, strict=True)]  # fmt: skip
                got = results(case.ours(*given))
            except UserError as error:
                assert len(str(error)) > 20
                refused += 1
                continue
            for one, other in zip(got, wanted, strict=True):
                assert one.shape == other.shape, (axes, one.shape, other.shape)
                rtol, atol = TOLERANCE.get(dtype, (0, 0))
                rtol, atol = rtol * case.scale, atol * case.scale
                np.testing.assert_allclose(one, other, rtol=rtol, atol=atol, err_msg=str(axes))
            right += 1
    return right, refused


# The quick run takes every fourth case of those that compile soon.
RUNS = [
    pytest.param(case, id=case.name, marks=[pytest.mark.slow] if number % 4 or case.heavy else [])
    for number, case in enumerate(CASES)
]


@pytest.mark.parametrize("case", RUNS)
def test_operator_along_axes_of_unknown_size(case: Case) -> None:
    check_symbolic(case)
