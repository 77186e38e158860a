"""Loops whose index is divided become two, and the kernel computes the same."""

from __future__ import annotations

import random

import numpy as np
import pytest

from gradlet.base.dtype import dtypes
from gradlet.codegen.divisions import MIN_INNER, cut_at_divisions
from gradlet.graph.evaluate import run_kernel
from gradlet.graph.node import UOp, mk, toposort
from gradlet.graph.spec import check
from gradlet.ops.op import AxisKind, Op, ReduceArg, Stage, VariableArg
from gradlet.target.target import AVX2
from tests.codegen.check import check_linear
from tests.codegen.kernels import Builder, Kernel

INDEX = dtypes.index


def ranges(sink: UOp) -> list[tuple[int, int, AxisKind]]:
    """Number, size and kind of every loop with a constant size, in order."""
    found = [n for n in toposort((sink,)) if n.op is Op.RANGE and n.src[0].op is Op.CONST]
    return sorted([(n.arg.number, int(n.src[0].arg), n.arg.kind) for n in found])


def divisions(sink: UOp) -> int:
    return sum(n.op in (Op.IDIV, Op.MOD) for n in toposort((sink,)))


def divided(i: UOp, by: int) -> UOp:
    return mk(Op.IDIV, INDEX, (i, UOp.const(INDEX, by)), None)


def modulo(i: UOp, by: int) -> UOp:
    return mk(Op.MOD, INDEX, (i, UOp.const(INDEX, by)), None)


def in_strips(size: int, strip: int, rows: int = 3) -> Kernel:
    """A matrix whose columns are kept in strips, copied back."""
    b = Builder()
    row, column = b.range(rows), b.range(size)
    element = divided(column, strip) * (rows * strip) + row * strip + modulo(column, strip)
    b.store(b.param(0, rows * size), row * size + column, b.load(b.param(1, rows * size), element))
    data = np.random.default_rng(size).standard_normal((size // strip, rows, strip)).astype(np.float32)
    want = data.transpose(1, 0, 2).reshape(rows, size)
    return Kernel(b.sink("k"), [np.zeros(rows * size, np.float32), data.reshape(-1)], {0: want})


def test_a_loop_over_strips_is_cut() -> None:
    kernel = in_strips(96, 16)
    cut = cut_at_divisions(kernel.sink)
    check([cut], Stage.KERNEL)
    assert ranges(kernel.sink) == [(0, 3, AxisKind.LOOP), (1, 96, AxisKind.LOOP)]
    assert ranges(cut) == [(0, 3, AxisKind.LOOP), (1, 6, AxisKind.LOOP), (2, 16, AxisKind.LOOP)]
    assert divisions(kernel.sink) == 2 and divisions(cut) == 0
    check_linear(kernel, AVX2, cut)


@pytest.mark.parametrize(("size", "strip"), [(96, 8), (96, 96), (100, 16)])
def test_short_whole_and_uneven_strips_stay(size: int, strip: int) -> None:
    assert strip < MIN_INNER or size % strip or size == strip
    b = Builder()
    column = b.range(size)
    b.store(b.param(0, size), column, b.load(b.param(1, 1000), divided(column, strip) * 20 + modulo(column, strip)))
    sink = b.sink("k")
    assert cut_at_divisions(sink) is sink


def product_of_strips(rows: int, columns: int, depth: int, strip: int, padded: bool) -> Kernel:
    """`a @ w` plus a row, with the columns of `w` in strips, the last of which memory holds in full or not."""
    b = Builder()
    i, j, k = b.range(rows), b.range(columns), b.reduce_range(depth)
    whole = -(-columns // strip) * strip * depth
    size = whole if padded else (columns // strip * strip) * depth + (depth - 1) * strip + columns % strip
    element = divided(j, strip) * (strip * depth) + k * strip + modulo(j, strip)
    product = b.load(b.param(1, rows * depth), i * depth + k) * b.load(b.param(2, size), element)
    total = mk(Op.REDUCE, dtypes.float32, (product, k), ReduceArg(Op.ADD))
    b.store(b.param(0, rows * columns), i * columns + j, total + b.load(b.param(3, columns), j))
    random = np.random.default_rng(columns)
    a, w = random.standard_normal((rows, depth)), random.standard_normal((whole // strip // depth, depth, strip))
    bias = random.standard_normal(columns)
    want = a @ w.transpose(1, 0, 2).reshape(depth, -1)[:, :columns] + bias
    arrays = [np.zeros(rows * columns), a, w.reshape(-1)[:size], bias]
    return Kernel(b.sink("k"), [x.astype(np.float32).reshape(-1) for x in arrays], {0: want.astype(np.float32)})


def test_the_last_strip_is_whole_where_memory_holds_it() -> None:
    kernel = product_of_strips(7, 37, 5, 16, padded=True)
    cut = cut_at_divisions(kernel.sink)
    check([cut], Stage.KERNEL)
    assert [size for _, size, _ in ranges(cut)] == [7, 3, 16, 5] and divisions(cut) == 0
    guarded = [n for n in toposort((cut,)) if n.op is Op.INDEX and len(n.src) > 2]
    assert {n.src[0].arg.slot for n in guarded} == {0, 3}
    check_linear(kernel, AVX2)
    short = product_of_strips(7, 37, 5, 16, padded=False)
    assert cut_at_divisions(short.sink) is short.sink
    check_linear(short, AVX2)


def test_loops_that_are_no_plain_loops_stay() -> None:
    for kind in (AxisKind.PARALLEL, AxisKind.ORDERED):
        b = Builder()
        column = b.range(96, kind)
        b.store(b.param(0, 96), column, b.load(b.param(1, 96), divided(column, 16)))
        sink = b.sink("k")
        assert cut_at_divisions(sink) is sink
    b = Builder()
    count = mk(Op.VARIABLE, INDEX, (), VariableArg("v0", 1, 96))
    column = b.range(count)
    b.store(b.param(0, 96), column, b.load(b.param(1, 96), divided(column, 16)))
    sink = b.sink("k")
    assert cut_at_divisions(sink) is sink


def test_a_loop_divided_by_multiples_is_cut_again_and_again() -> None:
    b = Builder()
    i = b.range(256)
    element = divided(i, 64) * 64 + modulo(divided(i, 16), 4) * 16 + modulo(i, 16)
    b.store(b.param(0, 256), i, b.load(b.param(1, 256), element))
    data = np.arange(256, dtype=np.float32)
    kernel = Kernel(b.sink("k"), [np.zeros(256, np.float32), data], {0: data})
    cut = cut_at_divisions(kernel.sink)
    assert divisions(cut) == 0 and all(size < 256 for _, size, _ in ranges(cut))
    check_linear(kernel, AVX2, cut)


def test_divisors_that_are_no_multiples_of_one_another_stay() -> None:
    b = Builder()
    i = b.range(16 * 24 * 5)
    b.store(b.param(0, 1920), i, b.load(b.param(1, 1920), divided(i, 16) + modulo(i, 24)))
    sink = b.sink("k")
    assert cut_at_divisions(sink) is sink


def test_a_reduced_loop_is_cut_in_both_parts() -> None:
    b = Builder()
    row, along = b.range(4), b.reduce_range(64)
    element = divided(along, 32) * (4 * 32) + row * 32 + modulo(along, 32)
    value = mk(Op.REDUCE, dtypes.float32, (b.load(b.param(1, 256), element), along), ReduceArg(Op.ADD))
    b.store(b.param(0, 4), row, value)
    data = np.random.default_rng(0).standard_normal((2, 4, 32)).astype(np.float32)
    kernel = Kernel(b.sink("k"), [np.zeros(4, np.float32), data.reshape(-1)], {0: data.sum((0, 2))})
    cut = cut_at_divisions(kernel.sink)
    (reduce,) = [n for n in toposort((cut,)) if n.op is Op.REDUCE]
    assert sorted(int(r.src[0].arg) for r in reduce.src[1:]) == [2, 32]
    check_linear(kernel, AVX2, cut)


def random_kernel(seed: int) -> tuple[UOp, int]:
    """Sums of loop indices, divided and not, as addresses, under guards, and with a reduce inside; stored elements."""
    chance = random.Random(seed)
    b = Builder()
    loops = [b.range(chance.choice((3, 32, 48, 64, 96))) for _ in range(chance.randint(1, 2))]
    along = b.reduce_range(chance.choice((16, 32, 64)))

    def index() -> UOp:
        total = UOp.const(INDEX, chance.randrange(3))
        for loop in [*loops, along]:
            by = chance.choice((2, 16, 16, 32))
            part = chance.choice([loop, divided(loop, by), modulo(loop, by), divided(loop, 16) * 5 + modulo(loop, 16)])
            total = total + part * chance.randint(0, 3)
        return total

    size = 4000
    inside = mk(Op.CMPLT, dtypes.bool, (modulo(loops[0], 32), UOp.const(INDEX, 20)), None)
    gate = inside if chance.random() < 0.5 else None
    value = b.load(b.param(1, size), index(), gate) * b.load(b.param(1, size), index())
    if chance.random() < 0.7:
        value = mk(Op.REDUCE, dtypes.float32, (value, along), ReduceArg(Op.ADD))
        outer = loops
    else:
        b.count -= 1
        value = b.load(b.param(1, size), sum((modulo(r, 16) * 2 + divided(r, 16) for r in loops), UOp.const(INDEX, 0)))
        outer = loops
    place = UOp.const(INDEX, 0)
    count = 1
    for loop in outer:
        place = place * int(loop.src[0].arg) + loop
        count *= int(loop.src[0].arg)
    b.store(b.param(0, count), place, value)
    return b.sink("k"), count


def test_random_kernels_compute_the_same() -> None:
    changed = 0
    for seed in range(60):
        sink, count = random_kernel(seed)
        cut = cut_at_divisions(sink)
        changed += cut is not sink
        check([cut], Stage.KERNEL)
        data = np.random.default_rng(seed).integers(-4, 5, 4000).astype(np.float32)
        results = []
        for one in (sink, cut):
            arrays = [np.zeros(count, np.float32), data.copy()]
            run_kernel(one, arrays)
            results.append(arrays[0])
        np.testing.assert_array_equal(results[0], results[1])
    assert changed >= 20
