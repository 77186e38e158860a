"""Small tables are read by shuffles of a register: which instructions they become, and that they are right."""

from __future__ import annotations

import re

import numpy as np
import pytest

from gradlet import Tensor
from gradlet.codegen import pipeline
from gradlet.device.common.llvm import emit_assembly
from gradlet.ops.opt import OptKind
from gradlet.optimize import heuristic
from gradlet.render.llvmir import render
from gradlet.target.target import AVX2, AVX512, NEON, SSE, WASM, Target
from tests.codegen import kernels
from tests.codegen.check import assert_expected, check_linear
from tests.render.build import execute

EACH = pytest.mark.parametrize("target", [AVX512, AVX2, SSE, NEON, WASM], ids=lambda t: t.name)
PICKS = {
    "int8": {"avx512": r"pshufb", "avx2": r"pshufb", "sse": r"pshufb", "neon": r"\ttbl\t", "wasm": r"i8x16.swizzle"},
    "float32": {"avx512": r"vperm[dpi2t]*[sd]\b", "avx2": r"vperm[pd]s?", "sse": r"pshufb", "neon": r"\ttbl\t",
                "wasm": r"i8x16.swizzle"},
}  # fmt: skip


@EACH
@pytest.mark.parametrize("dtype", PICKS)
@pytest.mark.parametrize("entries", [16, 6, 3])
def test_lanes_are_shuffled(target: Target, dtype: str, entries: int) -> None:
    """Nothing is put together lane by lane."""
    kernel = kernels.table_of_few(128, entries, dtype)
    opts = heuristic.choose(kernel.sink, target)
    assert opts[0].kind is OptKind.LOOKUP and opts[0].detail == (1,)
    program = check_linear(kernel, target)
    source = render(program, target)
    assert "insertelement" not in re.sub(r"insertelement <\d+ x \w+> poison, .*, i64 0", "", source)
    assert re.search(PICKS[dtype][target.name], emit_assembly(source, target))


@pytest.mark.parametrize("target", [AVX2, SSE], ids=lambda t: t.name)
@pytest.mark.parametrize("dtype", ["float32", "int32", "int8", "uint8"])
def test_machine_code_is_right(target: Target, dtype: str) -> None:
    for size, entries, codes in ((3, 2, "uint8"), (16, 16, "int32"), (37, 13, "uint8"), (64, 9, "uint16")):
        kernel = kernels.table_of_few(size, entries, dtype, codes)
        arrays = [a.copy() for a in kernel.arrays]
        execute(pipeline.lower(kernel.sink, target), target, arrays)
        assert_expected(kernel, arrays)


def test_negative_numbers_count_from_the_end() -> None:
    table, chance = np.array([1.5, -2.0, 3.25], np.float32), np.random.default_rng(3)
    for dtype in ("int8", "int64"):
        numbers = chance.integers(-3, 3, (5, 7)).astype(dtype)
        np.testing.assert_array_equal(Tensor(table)[Tensor(numbers)].numpy(), table[numbers])


def test_large_tables_and_plain_loops_stay() -> None:
    for kernel in (kernels.table_of_few(64, 17), kernels.table_of_few(64, 8, "float64"), kernels.elementwise(16)):
        assert not any(o.kind is OptKind.LOOKUP for o in heuristic.choose(kernel.sink, AVX2))
