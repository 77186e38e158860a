"""The NULL device: code for every target, no memory, no results."""

from __future__ import annotations

import pytest

from gradlet.base.dtype import dtypes
from gradlet.base.errors import DeviceError
from gradlet.graph.program import LinearProgram
from gradlet.runtime.buffer import Buffer
from gradlet.runtime.device import Device
from gradlet.target.target import TARGETS
from tests.render.build import Build


def double() -> LinearProgram:
    build = Build("double")
    x = build.param(dtypes.float32, 64)
    i = build.loop(64)
    build.store(x, i, build.load(x, i) * 2.0)
    build.end(i)
    return build.program()


@pytest.mark.parametrize("name", TARGETS)
def test_it_compiles_for_every_target(name: str) -> None:
    backend = Device[f"NULL:{name}"]
    assert backend.target is TARGETS[name]
    code = backend.compile(double())
    assert b"double" in code
    assert code.strip()


def test_without_a_target_it_is_a_cpu() -> None:
    assert Device["NULL"].target.kind == "cpu"


def test_a_launch_does_nothing() -> None:
    program = double()
    backend = Device["NULL:nvptx"]
    loaded = backend.load("double", backend.compile(program), program)
    buffer = Buffer("NULL:nvptx", dtypes.float32, 64)
    assert loaded([buffer], []) is None
    assert loaded([buffer], [], wait=True) == 0.0
    with pytest.raises(DeviceError, match="NULL computes nothing"):
        buffer.copyout(bytearray(256))


def test_an_unknown_target_is_refused_with_the_good_ones() -> None:
    with pytest.raises(DeviceError, match="unknown target 'z80'; use one of: avx512"):
        _ = Device["NULL:z80"]
