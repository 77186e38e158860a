"""Products of bytes in words: which instructions they become, and that every way gives the exact sums."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from gradlet.codegen import pipeline
from gradlet.device.common.llvm import emit_assembly
from gradlet.graph.program import LinearProgram
from gradlet.ops.op import Op
from gradlet.render.llvmdot import possible_bits
from gradlet.render.llvmir import render
from gradlet.target.target import AVX2, AVX512, NEON, SSE, WASM, Target
from tests.codegen import kernels
from tests.codegen.check import assert_expected, check_linear
from tests.render.build import execute

VNNI512 = replace(AVX512, features=AVX512.features + ",+avx512vnni", dot8=True)
VNNI256 = replace(AVX2, features="+avxvnni", dot8=True)
MASKS = (0x0F0F0F0F, 0x7F7F7F7F, -1)


def program(target: Target, mask: int, size: int = 32) -> LinearProgram:
    return pipeline.lower(kernels.byte_dots(size, mask).sink, target)


@pytest.mark.parametrize("mask", MASKS)
@pytest.mark.parametrize("target", [VNNI512, VNNI256, AVX512, AVX2, SSE, NEON], ids=lambda t: f"{t.name}{t.dot8}")
@pytest.mark.parametrize("size", [5, 24])
def test_the_program_is_right(target: Target, mask: int, size: int) -> None:
    check_linear(kernels.byte_dots(size, mask), target)


@pytest.mark.parametrize("target", [VNNI512, VNNI256], ids=lambda t: t.name)
def test_one_instruction_where_the_machine_has_it(target: Target) -> None:
    text = emit_assembly(render(program(target, -1), target), target)
    assert text.count("vpdpbusd") >= 2 and "pmadd" not in text


@pytest.mark.parametrize(
    ("target", "register"), [(AVX512, "zmm"), (AVX2, "ymm"), (SSE, "xmm")], ids=["512", "256", "128"]
)
def test_small_bytes_are_summed_as_shorts(target: Target, register: str) -> None:
    """Two products of a code below 16 and a signed byte: eight such pairs fit in a short."""
    text = emit_assembly(render(program(target, 0x0F0F0F0F), target), target)
    assert "pmaddubsw" in text and "pmaddwd" in text and register in text
    assert text.count("pmaddubsw") == 2 * text.count("pmaddwd")


@pytest.mark.parametrize("target", [AVX512, AVX2, SSE], ids=lambda t: t.name)
def test_any_bytes_are_multiplied_as_shorts(target: Target) -> None:
    """Products of bytes up to 255 would saturate."""
    text = emit_assembly(render(program(target, -1), target), target)
    assert "pmaddubsw" not in text and "pmaddwd" in text


@pytest.mark.parametrize("mask", MASKS)
@pytest.mark.parametrize("size", [3, 24, 40])
@pytest.mark.parametrize("features", ["avx2", "sse"])
def test_machine_code_is_exact(mask: int, size: int, features: str) -> None:
    kernel = kernels.byte_dots(size, mask)
    target = AVX2 if features == "avx2" else SSE
    arrays = [a.copy() for a in kernel.arrays]
    execute(pipeline.lower(kernel.sink, target), target, arrays)
    assert_expected(kernel, arrays)
    assert kernel.expected[0].dtype == np.int32


SDOT = replace(NEON, features="+neon,+dotprod", dot8=True)
USDOT = replace(NEON, features="+neon,+dotprod,+i8mm", dot8=True)


@pytest.mark.parametrize(("target", "name"), [(SDOT, "sdot"), (USDOT, "usdot")], ids=["sdot", "usdot"])
@pytest.mark.parametrize("size", [5, 24])
def test_bytes_on_arm(target: Target, name: str, size: int) -> None:
    check_linear(kernels.byte_dots(size, -1), target)
    text = emit_assembly(render(program(target, -1), target), target)
    assert f"\t{name}\t" in text and "\tmul\t" not in text


@pytest.mark.parametrize("size", [3, 24, 40])
@pytest.mark.parametrize("target", [AVX2, SSE], ids=lambda t: t.name)
def test_halves_are_exact(target: Target, size: int) -> None:
    kernel = kernels.half_dots(size)
    arrays = [a.copy() for a in kernel.arrays]
    execute(pipeline.lower(kernel.sink, target), target, arrays)
    assert_expected(kernel, arrays)


@pytest.mark.parametrize("target", [AVX512, AVX2, SSE, NEON, WASM], ids=lambda t: t.name)
def test_halves_are_one_instruction_on_x86(target: Target) -> None:
    kernel = kernels.half_dots(32)
    check_linear(kernel, target)
    text = emit_assembly(render(pipeline.lower(kernel.sink, target), target), target)
    assert ("pmaddwd" in text or "i32x4.dot_i16x8_s" in text) is (target is not NEON)
    assert ("pmull" in text) is False


def test_possible_bits() -> None:
    word = next(n for n in kernels.byte_dots().sink.toposort() if n.op is Op.LOAD)
    assert possible_bits(word) == 0xFFFFFFFF
    assert possible_bits(word & 0x0F0F0F0F) == 0x0F0F0F0F
    assert possible_bits((word & 0x01010101) << 4 | word & 0x0F0F0F0F) == 0x1F1F1F1F
    assert possible_bits((word & -1) << 28) == 0xF0000000
