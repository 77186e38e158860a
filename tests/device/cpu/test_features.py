"""Every kernel and launch by hand, as scheduled for the vector instructions that this machine could do without."""

from __future__ import annotations

import ctypes
import struct

import numpy as np
import pytest

from gradlet.base.settings import scope
from gradlet.codegen import pipeline
from gradlet.codegen.launch import lower_launch
from gradlet.device.cpu.plan import launch_plan
from gradlet.device.cpu.runtime import CpuBackend, link
from gradlet.device.cpu.target import host_target, runnable
from gradlet.graph.program import AnyProgram
from tests.codegen import kernels, launches
from tests.codegen.check import assert_expected
from tests.codegen.kernels import Array

PARTS = 8
FEATURES = pytest.mark.parametrize("features", runnable()[1:])
PART = pytest.mark.parametrize("part", [0, *(pytest.param(n, marks=pytest.mark.slow) for n in range(1, PARTS))])
FUNCTION = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_int64, ctypes.c_int64)


def run(program: AnyProgram, arrays: list[Array], values: list[int]) -> None:
    """Compile, link, and run all of it on this thread."""
    plan = launch_plan(program)
    loaded = link(CpuBackend("CPU").compile(program), plan)
    words = struct.pack(f"<{len(arrays) + len(values)}q", *[a.ctypes.data for a in arrays], *values)
    table = ctypes.create_string_buffer(words)
    for stage, segments in zip(plan.stages, plan.segments, strict=True):
        FUNCTION(loaded.addresses[stage])(ctypes.addressof(table), 0, sum(segment.blocks for segment in segments))


@FEATURES
@PART
def test_kernels(features: str, part: int) -> None:
    with scope(CPU_FEATURES=features):
        assert host_target().name == features
        for make in kernels.ALL[part::PARTS]:
            kernel = make()
            program = pipeline.lower(kernel.sink, host_target())
            arrays = [np.ascontiguousarray(a).copy() for a in kernel.arrays]
            run(program, arrays, [kernel.variables[v] for v in program.variables])
            assert_expected(kernel, arrays)


@FEATURES
@PART
def test_launches(features: str, part: int) -> None:
    with scope(CPU_FEATURES=features):
        for make in launches.ALL[part::PARTS]:
            one = make()
            arrays = launches.copies(one)
            run(lower_launch(one.sink, host_target()), arrays, list(one.variables))
            launches.compare(one, arrays)
