"""Permuted copies: which loads become columns of loaded rows, that they are right, and the instructions."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from gradlet import Tensor
from gradlet.base.dtype import DType, dtypes
from gradlet.codegen import pipeline
from gradlet.device.common.llvm import emit_assembly
from gradlet.graph.node import UOp
from gradlet.graph.program import LinearProgram
from gradlet.ops.op import KernelArg, Op
from gradlet.ops.opt import Opt, OptKind
from gradlet.optimize import heuristic
from gradlet.render.llvmir import render
from gradlet.target.target import AVX2, AVX512, NEON, SSE, Target
from tests.codegen import kernels
from tests.codegen.check import check_linear

TARGETS = pytest.mark.parametrize("target", [AVX512, AVX2, SSE, NEON], ids=lambda t: t.name)


def transposition(rows: int, columns: int, dtype: DType = dtypes.float32) -> kernels.Kernel:
    b = kernels.Builder()
    out, x = b.param(0, rows * columns, dtype), b.param(1, rows * columns, dtype)
    i, j = b.range(columns), b.range(rows)
    b.store(out, i * rows + j, b.load(x, j * columns + i))
    a = np.arange(rows * columns).reshape(rows, columns).astype(dtype.name)
    return kernels.Kernel(b.sink("transposition"), [np.zeros((columns, rows), dtype.name), a], {0: a.T})


def scalar_loads(program: LinearProgram) -> int:
    return sum(n.op is Op.LOAD and n.dtype.count == 1 for n in program.uops)


@TARGETS
@pytest.mark.parametrize("dtype", [dtypes.float32, dtypes.int8, dtypes.float16, dtypes.float64], ids=lambda d: d.name)
@pytest.mark.parametrize(("rows", "columns"), [(32, 48), (37, 53), (300, 20)])
def test_tiles_are_transposed_in_registers(rows: int, columns: int, dtype: DType, target: Target) -> None:
    program = check_linear(transposition(rows, columns, dtype), target)
    assert any(n.op is Op.SHUFFLE for n in program.uops)
    assert scalar_loads(program) == 0


@TARGETS
def test_a_border_of_zeros_is_masked_in_the_rows(target: Target) -> None:
    """An image with its channels last gets its zeros on the way: masked loads of rows, no loads of single elements."""
    channels, size = 24, 21
    b = kernels.Builder()
    out, x = b.param(0, channels * (size + 2)), b.param(1, channels * size)
    i, j = b.range(size + 2), b.range(channels)
    inside = (UOp.const(dtypes.index, 0) < i) & (i < size + 1)
    b.store(out, i * channels + j, b.load(x, j * size + i - 1, inside))
    a = kernels.random(channels, size)
    kernel = kernels.Kernel(
        b.sink("border"), [kernels.empty(size + 2, channels), a], {0: np.pad(a, ((0, 0), (1, 1))).T.copy()}
    )
    program = check_linear(kernel, target)
    assert any(n.op is Op.SHUFFLE for n in program.uops)
    assert scalar_loads(program) == 0


@TARGETS
def test_elements_under_several_guards_are_no_columns(target: Target) -> None:
    """Zeros between the elements: several copies load the same ones, each under a guard of its own."""
    channels, size = 16, 12
    b = kernels.Builder()
    out, x = b.param(0, channels * size * 2), b.param(1, channels * size)
    i, j = b.range(size * 2), b.range(channels)
    b.store(out, i * channels + j, b.load(x, j * size + i // 2, (i % 2).eq(0)))
    a = kernels.random(channels, size)
    wanted = np.zeros((size * 2, channels), np.float32)
    wanted[::2] = a.T
    opts = (Opt(OptKind.VECTORIZE, 1, 8), Opt(OptKind.UNROLL, 0, 8))
    kernel = kernels.Kernel(b.sink("apart"), [kernels.empty(size * 2, channels), a], {0: wanted})
    check_linear(kernel, target, kernel.sink.replace(arg=KernelArg("apart", opts)))
    check_linear(kernel, target)


@TARGETS
def test_neighbours_that_are_broadcast_are_no_rows(target: Target) -> None:
    """The weights of a filter's taps: each is broadcast from memory, which is one instruction."""
    opts = (Opt(OptKind.VECTORIZE, 1, 16), Opt(OptKind.UNROLL, 2, 8))
    kernel = kernels.matmul(6, 32, 8)
    program = check_linear(kernel, target, kernel.sink.replace(arg=KernelArg("product", opts)))
    assert not any(n.op is Op.SHUFFLE for n in program.uops)


def test_what_has_no_tile_stays_right() -> None:
    for rows, columns in ((3, 50), (50, 3), (1, 9), (9, 1), (2, 2)):
        check_linear(transposition(rows, columns), AVX2)
    program = check_linear(transposition(40, 40, dtypes.bool), AVX2)
    assert not any(n.op is Op.SHUFFLE for n in program.uops)


@TARGETS
def test_arithmetic_on_a_transposed_operand(target: Target) -> None:
    assert scalar_loads(check_linear(kernels.strided(40, 24), target)) == 0


@pytest.mark.parametrize(("target", "exchange"), [(AVX512, "vunpcklps"), (AVX2, "vunpcklps"), (SSE, "unpcklps")])
def test_exchanges_stay_inside_pieces_of_registers(target: Target, exchange: str) -> None:
    text = emit_assembly(render(pipeline.lower(transposition(64, 64).sink, target), target), target)
    assert exchange in text
    for slow in ("vpermps", "vpermt2ps", "insertps", "gather"):
        assert slow not in text


def test_blocks_touch_few_pages_and_fill_lines() -> None:
    opts = heuristic.choose(transposition(4096, 4096).sink, AVX2)
    assert [(o.kind, o.amount) for o in opts[:5]] == [
        (OptKind.SPLIT, 16), (OptKind.VECTORIZE, 8), (OptKind.UNROLL, 2), (OptKind.SPLIT, 64), (OptKind.UNROLL, 8),
    ]  # fmt: skip
    # Blocks are nearly equal: 270 rows are no four blocks of 64 and one that overlaps the fourth nearly whole.
    assert [o.amount for o in heuristic.choose(transposition(64, 270).sink, AVX2)][3] == 56


@pytest.mark.parametrize("dtype", ["float32", "uint8"])
def test_permuted_copies_of_any_rank(dtype: str) -> None:
    x = np.random.default_rng(0).integers(0, 200, (5, 4, 17, 8)).astype(dtype)
    for axes in list(itertools.permutations(range(4)))[1::3]:
        np.testing.assert_array_equal(Tensor(x).permute(axes).contiguous().numpy(), x.transpose(axes))
    np.testing.assert_array_equal(
        Tensor(x)[1:, :, ::2].permute(3, 2, 0, 1).contiguous(), x[1:, :, ::2].transpose(3, 2, 0, 1)
    )


@TARGETS
def test_lanes_that_go_back_are_loaded_forwards(target: Target) -> None:
    b = kernels.Builder()
    out, x = b.param(0, 67), b.param(1, 67)
    i = b.range(67)
    b.store(out, i, b.load(x, i * -1 + 66))
    a = kernels.random(67)
    kernel = kernels.Kernel(b.sink("backwards"), [kernels.empty(67), a], {0: a[::-1]})
    assert scalar_loads(check_linear(kernel, target)) == 0


@pytest.mark.parametrize("columns", [2, 5, 40])
def test_a_guard_that_is_the_same_for_all_lanes_is_no_mask(columns: int) -> None:
    """A masked vector outside of the memory is slow to leave out on some processors."""
    a, c = (np.random.default_rng(n).random((3, columns), dtype=np.float32) for n in (0, 1))
    np.testing.assert_array_equal(Tensor(a).cat(Tensor(c), dim=0).numpy(), np.concatenate([a, c]))
    np.testing.assert_array_equal(Tensor(a).flip(1).numpy(), a[:, ::-1])
    b = kernels.Builder()
    out, x = b.param(0, 8 * 64), b.param(1, 4 * 64)
    i, j = b.range(8), b.range(64)
    b.store(out, i * 64 + j, b.load(x, i * 64 + j, i < 4))
    text = emit_assembly(render(pipeline.lower(b.sink("half"), AVX2), AVX2), AVX2)
    assert "vmaskmov" not in text


def test_no_lane_of_a_tile_becomes_a_load_of_its_own_on_the_way() -> None:
    """Sixty-four scalar loads and their addresses would be made only to be thrown away."""
    opts = (Opt(OptKind.VECTORIZE, 1, 8), Opt(OptKind.UNROLL, 0, 8))
    sink = transposition(8, 8).sink.replace(arg=KernelArg("tile", opts))
    made: list[int] = []
    pipeline.lower(sink, AVX2, [lambda row, before, after, seconds: made.append(len(after.toposort()))])
    assert max(made) < 150


def test_a_gather_that_is_also_stored_lane_by_lane_is_right() -> None:
    """Lanes that go to places far apart are loaded one by one; the same vectors elsewhere are columns."""
    rows, columns = 16, 12
    b = kernels.Builder()
    out, far, x = (b.param(i, rows * columns) for i in range(3))
    i, j = b.range(columns), b.range(rows)
    value = b.load(x, j * columns + i)
    b.store(out, i * rows + j, value)
    b.store(far, j * columns + (columns - 1) - i, value)
    a = kernels.random(rows, columns)
    kernel = kernels.Kernel(
        b.sink("twice"), [kernels.empty(columns, rows), kernels.empty(rows, columns), a], {0: a.T, 1: a[:, ::-1]}
    )
    for amount in (2, 4, 8):
        opts = (Opt(OptKind.VECTORIZE, 1, amount), Opt(OptKind.UNROLL, 0, 4))
        check_linear(kernels.Kernel(kernel.sink.replace(arg=KernelArg("twice", opts)), *kernel[1:]), AVX2)
