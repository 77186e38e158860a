"""Kernels compiled for AArch64 and WebAssembly, run under qemu and node, give what the evaluator gives."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from gradlet import Tensor, dtypes
from gradlet.codegen import pipeline
from gradlet.codegen.launch import lower_launch
from gradlet.device.common.llvm import emit_object
from gradlet.ops.opt import OptKind
from gradlet.optimize import heuristic
from gradlet.render.llvmlaunch import render
from gradlet.target.target import AVX2, AVX512, NEON, SSE, WASM, Target
from tests.codegen import kernels, launches
from tests.target import foreign
from tests.target.foreign import Case

FOREIGN = pytest.mark.parametrize("target", [NEON, WASM], ids=lambda t: t.name)


def values(*shape: int, seed: int = 0, scale: float = 1.0) -> Tensor:
    """Realised random numbers."""
    return Tensor(np.random.default_rng(seed).standard_normal(shape).astype(np.float32) * scale).realize()


def integers(*shape: int, low: int, high: int, dtype: str, seed: int = 0) -> Tensor:
    return Tensor(np.random.default_rng(seed).integers(low, high, shape).astype(dtype)).realize()


def every_float() -> Tensor:
    """Ordinary values, the limits, ties, subnormal numbers, and what is no number."""
    special = [0.0, -0.0, np.inf, -np.inf, np.nan, 1e-45, -3e-39, 6e-8, 3.1e-5, 65504.0, 65519.9, 65520.0, 3.4e38,
               1.00390625, 1.01171875, 2049.0, 2051.0, 88.7, -104.0, 128.0, -126.5, 0.5, 1.5, 2.5, -7.99]  # fmt: skip
    spread = np.ldexp(np.random.default_rng(5).standard_normal(231), np.arange(231) % 60 - 30)
    return Tensor(np.concatenate([special, spread]).astype(np.float32)).realize()


TENSORS: dict[str, Callable[[], Tensor]] = {
    "matmul": lambda: values(13, 37) @ values(37, 21, seed=1),
    "matmul, transposed": lambda: values(24, 40) @ values(16, 40, seed=1).T,
    "product with a vector": lambda: values(33, 65) @ values(65, seed=1),
    "convolution": lambda: values(2, 3, 9, 9).conv2d(values(8, 3, 3, 3, seed=1), padding=1).relu(),
    "strided convolution": lambda: values(1, 4, 11, 11).conv2d(values(5, 4, 3, 3, seed=1), stride=2),
    "softmax": lambda: values(9, 50, scale=3).softmax(-1),
    "layer norm": lambda: values(6, 72).layernorm(),
    "sums and extremes": lambda: values(7, 45).sum(0) + values(7, 45).max(0) - values(45, 30, seed=2).min(1),
    "argmax": lambda: values(11, 83).argmax(1),
    "running sum": lambda: values(5, 100).cumsum(1),
    "gather": lambda: values(40, 12)[integers(17, low=0, high=40, dtype="int64")],
    "transposition": lambda: values(19, 34).T.contiguous() * 2,
    "sort": lambda: values(3, 32).sort()[0],
    "exponential and tangent": lambda: every_float().exp() + every_float().tanh(),
    "logarithm and sine": lambda: every_float().abs().log2() * every_float().sin(),
    "error function": lambda: every_float().erf(),
    "to bfloat16 and back": lambda: every_float().cast(dtypes.bfloat16).cast(dtypes.float32),
    "to bfloat16": lambda: every_float().cast(dtypes.bfloat16),
    "to float16 and back": lambda: every_float().cast(dtypes.float16).cast(dtypes.float32),
    "to 8 bits and back": lambda: every_float().cast(dtypes.float8_e4m3fn).cast(dtypes.float32),
    "float16 sums": lambda: (values(8, 33).cast(dtypes.float16) * 2).sum(1),
    "to integers": lambda: every_float().cast(dtypes.int32) + every_float().cast(dtypes.int8),
    "8-bit products": lambda: (
        integers(9, 40, low=-128, high=128, dtype="int8").cast(dtypes.int32)
        @ integers(40, 8, low=-128, high=128, dtype="int8", seed=1).cast(dtypes.int32)
    ),
    "64-bit divisions": lambda: (
        integers(64, low=-(2**62), high=2**62, dtype="int64") // integers(64, low=-9, high=9, dtype="int64", seed=3)
    ),
    "random numbers": lambda: integers(50, low=0, high=2**31, dtype="uint32") * 2654435761 ^ 12345,
}


def by_hand(name: str, make: Callable[[], kernels.Kernel], target: Target) -> Case:
    kernel = make()
    program = pipeline.lower(kernel.sink, target)
    before = [np.ascontiguousarray(a).reshape(-1) for a in kernel.arrays]
    after = [kernel.expected.get(slot, a).reshape(-1).astype(a.dtype) for slot, a in enumerate(before)]
    return Case(name, program, before, after, tuple(kernel.variables[v] for v in program.variables))


SDOT = replace(NEON, features="+neon,+dotprod", dot8=True)
USDOT = replace(NEON, features="+neon,+dotprod,+i8mm", dot8=True)


@pytest.mark.parametrize("target", [NEON, SDOT, USDOT, WASM], ids=["neon", "sdot", "usdot", "wasm"])
def test_dots_of_words(target: Target, tmp_path: Path) -> None:
    foreign.need_tools(target)
    cases = [by_hand("bytes", lambda: kernels.byte_dots(27, -1), target)]
    cases.append(by_hand("small bytes", lambda: kernels.byte_dots(32), target))
    cases.append(by_hand("halves", lambda: kernels.half_dots(27), target))
    foreign.check(cases, target, tmp_path)


@FOREIGN
@pytest.mark.parametrize("part", [0, *(pytest.param(n, marks=pytest.mark.slow) for n in (1, 2, 3))])
def test_kernels_by_hand(target: Target, part: int, tmp_path: Path) -> None:
    foreign.need_tools(target)
    chosen = list(zip(kernels.names(), kernels.ALL, strict=True))[part::4]
    foreign.check([by_hand(name, make, target) for name, make in chosen], target, tmp_path, tolerance=1e-4)


@FOREIGN
@pytest.mark.parametrize("part", [0, *(pytest.param(n, marks=pytest.mark.slow) for n in (1, 2, 3))])
def test_launches_by_hand(target: Target, part: int, tmp_path: Path) -> None:
    foreign.need_tools(target)
    made = [make() for make in [launches.ping_pong, launches.with_variables, *launches.ALL][part::4]]
    cases = [
        Case(one.sink.arg.name, lower_launch(one.sink, target), one.arrays, one.arrays, one.variables) for one in made
    ]
    for one, arrays in zip(made, foreign.run(cases, target, tmp_path), strict=True):
        launches.compare(one, arrays)


@FOREIGN
def test_tables_in_registers(target: Target, tmp_path: Path) -> None:
    foreign.need_tools(target)
    sizes = [(64, 16, "float32"), (37, 5, "float32"), (64, 16, "int8"), (23, 7, "uint8"), (16, 3, "int32")]
    cases = []
    for size, entries, dtype in sizes:
        kernel = kernels.table_of_few(size, entries, dtype)
        assert any(o.kind is OptKind.LOOKUP for o in heuristic.choose(kernel.sink, target))
        cases.append(by_hand(f"{dtype} {entries}", lambda kernel=kernel: kernel, target))
    foreign.check(cases, target, tmp_path)


@FOREIGN
@pytest.mark.parametrize("part", [0, *(pytest.param(n, marks=pytest.mark.slow) for n in (1, 2))])
def test_programs_of_tensors(target: Target, part: int, tmp_path: Path) -> None:
    foreign.need_tools(target)
    chosen = list(TENSORS.items())[part::3]
    cases = [case for name, compute in chosen for case in foreign.cases_of(name, compute, target)]
    assert len(cases) >= len(chosen)
    foreign.check(cases, target, tmp_path)


@FOREIGN
def test_a_wrong_result_and_a_write_beside_the_memory_are_found(target: Target, tmp_path: Path) -> None:
    foreign.need_tools(target)
    good = by_hand("elementwise", kernels.elementwise, target)
    foreign.check([good], target, tmp_path)
    wrong = good._replace(expected=[a + np.float32(0.01) for a in good.expected])
    with pytest.raises(AssertionError, match=f"elementwise on {target.name}, slot 0"):
        foreign.check([wrong], target, tmp_path)
    short = good._replace(arrays=[good.arrays[0][:-20], *good.arrays[1:]], expected=[good.expected[0][:-20]])
    with pytest.raises(AssertionError, match="wrote beside its memory"):
        foreign.check([short._replace(expected=[*short.expected, *good.expected[1:]])], target, tmp_path)


@pytest.mark.parametrize("target", [AVX512, AVX2, SSE, NEON, WASM], ids=lambda t: t.name)
@pytest.mark.parametrize("part", [0, *(pytest.param(n, marks=pytest.mark.slow) for n in range(1, 8))])
def test_kernels_by_hand_compile(target: Target, part: int) -> None:
    for make in kernels.ALL[part::8]:
        program = pipeline.lower(make().sink, target)
        source = render(program, target)
        assert target.name in ("avx512", "avx2", "sse") or "llvm.x86" not in source
        if {param.dtype for param in program.params} == {dtypes.float32}:  # narrow types take more lanes
            vectors = re.findall(r"<(\d+) x float>", source)
            most = 2 * target.vector_bits  # rows that are read far apart are added two vectors at a time
            assert all(32 * int(lanes) <= most for lanes in vectors)
        assert emit_object(source, target)
