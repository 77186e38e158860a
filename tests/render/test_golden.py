"""One small kernel as LLVM IR and as machine code text for every kind of target."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from gradlet.base.dtype import dtypes
from gradlet.device.common.llvm import emit_assembly
from gradlet.graph.program import LinearProgram
from gradlet.ops.op import AxisKind, Op
from gradlet.render.llvmir import render
from gradlet.target.target import AMDGPU, AVX2, AVX512, NEON, NVPTX, Target
from tests.render.build import Build

F32 = dtypes.float32


def row_sums(lanes: int) -> LinearProgram:
    """Sum of `max(x, 0) * scale` over the rows of a matrix, one row a part; rows have a tail."""
    build = Build("row_sums")
    x, scale, out = build.param(F32, 64 * 100), build.param(F32, 100), build.param(F32, 64)
    row = build.loop(64, AxisKind.PARALLEL)
    steps = (100 + lanes - 1) // lanes
    k = build.range(steps, AxisKind.REDUCE)
    total = build.acc(build.const(0, F32.vec(lanes)), k)
    build.open(k)
    at = k * lanes
    gate = None
    if lanes > 1:
        numbers = build.broadcast(at, lanes) + build.vector(*(build.const(lane) for lane in range(lanes)))
        gate = numbers.lt(build.const(100, dtypes.index.vec(lanes)))
    a = build.load(x, row * 100 + at, lanes, gate)
    b = build.load(scale, at, lanes, gate)
    build.update(total, build.emit(a.maximum(0.0).alu(Op.MULADD, b, total)))
    build.end(k)
    build.store(out, row, build.reduce_lanes(Op.ADD, total) if lanes > 1 else total)
    build.end(row)
    return build.program()


@pytest.mark.parametrize("target", [AVX512, AVX2, NEON, NVPTX, AMDGPU], ids=lambda t: t.name)
def test_llvm_ir(target: Target, golden: Callable[..., None]) -> None:
    golden(render(row_sums(target.lanes(F32)), target), "ll")


@pytest.mark.parametrize("target", [AVX512, NVPTX, AMDGPU], ids=lambda t: t.name)
def test_assembly(target: Target, golden: Callable[..., None]) -> None:
    golden(emit_assembly(render(row_sums(target.lanes(F32)), target), target), "s")


def float8_scaled(lanes: int) -> LinearProgram:
    """8-bit floats of one kind doubled and stored as the other: integers all the way, but for the product."""
    build = Build("float8_scaled")
    x, out = build.param(dtypes.float8_e4m3fn, 64), build.param(dtypes.float8_e5m2, 64)
    i = build.loop(64 // lanes)
    wide = build.load(x, i * lanes, lanes).cast(F32)
    build.store(out, i * lanes, (wide * 2.0).cast(dtypes.float8_e5m2))
    build.end(i)
    return build.program()


@pytest.mark.parametrize("target", [AVX512, NVPTX, AMDGPU], ids=lambda t: t.name)
def test_llvm_ir_of_8_bit_floats(target: Target, golden: Callable[..., None]) -> None:
    golden(render(float8_scaled(target.lanes(F32)), target), "ll")


@pytest.mark.parametrize("target", [NVPTX, AMDGPU], ids=lambda t: t.name)
def test_assembly_of_8_bit_floats(target: Target, golden: Callable[..., None]) -> None:
    golden(emit_assembly(render(float8_scaled(target.lanes(F32)), target), target), "s")
