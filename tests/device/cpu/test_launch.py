"""Launches of several kernels on the CPU, against numpy: one thread and several, alone and at once."""

from __future__ import annotations

import numpy as np
import pytest

from gradlet.base.dtype import DType, dtypes
from gradlet.base.settings import scope
from gradlet.engine.compile import build_kernel
from gradlet.runtime.buffer import Buffer
from tests.codegen import launches
from tests.codegen.launches import Launch

DTYPES: dict[str, DType] = {"float32": dtypes.float32, "int32": dtypes.int32}


def memory(case: Launch) -> list[Buffer]:
    buffers = []
    for array in case.arrays:
        buffer = Buffer("CPU", DTYPES[array.dtype.name], array.size)
        buffer.copyin(array)
        buffers.append(buffer)
    return buffers


def contents(case: Launch, buffers: list[Buffer]) -> list[np.ndarray]:
    return [
        np.frombuffer(b.memory(), a.dtype)[: a.size].copy().reshape(a.shape)
        for a, b in zip(case.arrays, buffers, strict=True)
    ]


@pytest.mark.parametrize("eager", [False, True], ids=["inline", "pool"])
@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("make", launches.ALL, ids=launches.names())
def test_launches(make, threads, eager, monkeypatch) -> None:
    from gradlet.device.cpu import runtime

    if eager:  # every stage of more than one block goes to the pool
        monkeypatch.setattr(runtime, "INLINE_SECONDS", 1e-12)
    case = make()
    with scope(NUM_THREADS=threads):
        kernel = build_kernel(case.sink, "CPU")
        buffers = memory(case)
        kernel.run(buffers, case.variables, False)
        launches.compare(case, contents(case, buffers))
