"""Register tiles of sums of products: of one product, of several in one sum, of several sums side by side."""

from __future__ import annotations

import random
from dataclasses import replace

import numpy as np
import pytest

from gradlet.base.dtype import dtypes
from gradlet.graph.node import UOp, mk
from gradlet.ops.op import Op
from gradlet.ops.opt import OptKind
from gradlet.optimize import heuristic
from gradlet.optimize.analysis import KernelFacts
from gradlet.optimize.contraction import tile
from gradlet.optimize.plan import Plan
from gradlet.target.target import AVX2, AVX512, SSE, Target
from tests.codegen import kernels
from tests.codegen.check import check_kernel, check_linear
from tests.codegen.kernels import Array, Builder, Kernel

M, N, K = 48, 64, 40


def operand(b: Builder, slot: int, rows: UOp, along: UOp, size: tuple[int, int], turned: bool) -> UOp:
    """An element of a factor, `[rows, k]` in memory or turned."""
    count, depth = size
    param = b.param(slot, count * depth)
    return b.load(param, along * count + rows if turned else rows * depth + along)


def sum_of_products(m: int, n: int, k: int, count: int, sums: int = 1, swapped: bool = False) -> Kernel:
    """`sums` outputs, each `sum over k of A0 B0 + A1 B1 + ...`; every other product with its factors swapped."""
    b = Builder()
    i, j, along = b.range(m), b.range(n), b.reduce_range(k)
    arrays: list[Array] = [np.zeros((m, n), np.float32) for _ in range(sums)]
    expected: dict[int, Array] = {}
    for out in range(sums):
        total: UOp | None = None
        want = np.zeros((m, n))
        for term in range(count):
            slot = len(arrays)
            left = kernels.random(m, k, seed=slot)
            right = kernels.random(k, n, seed=slot + 1)
            arrays += [left, right]
            want += left.astype(np.float64) @ right
            factors = [
                operand(b, slot, i, along, (m, k), turned=False),
                operand(b, slot + 1, j, along, (n, k), turned=True),
            ]
            if swapped and term % 2:
                factors.reverse()
            product = factors[0] * factors[1]
            total = product if total is None else total + product
        assert total is not None
        b.store(b.param(out, m * n), i * n + j, b.reduce(Op.ADD, total, along))
        expected[out] = want.astype(np.float32)
    return Kernel(b.sink("products"), arrays, expected)


def planned(kernel: Kernel, target: Target) -> tuple[Plan, set[UOp]]:
    facts = KernelFacts(kernel.sink)
    plan = Plan(facts, target, facts.next_number())
    return plan, tile(facts, plan)


@pytest.mark.parametrize("target", [AVX512, AVX2, SSE], ids=lambda t: t.name)
@pytest.mark.parametrize("count", [1, 2, 3])
@pytest.mark.parametrize("swapped", [False, True])
def test_every_sum_of_products_is_tiled_and_right(target: Target, count: int, swapped: bool) -> None:
    kernel = sum_of_products(M, N, K, count, swapped=swapped)
    _, used = planned(kernel, target)
    assert len(used) == 3
    kinds = [o.kind for o in heuristic.choose(kernel.sink, target)]
    assert OptKind.VECTORIZE in kinds and OptKind.UNROLL in kinds
    check_kernel(kernel)
    check_linear(kernel, target)


@pytest.mark.parametrize("target", [AVX512, AVX2], ids=lambda t: t.name)
@pytest.mark.parametrize("sums", [2, 3])
def test_sums_side_by_side_share_the_registers(target: Target, sums: int) -> None:
    one, several = sum_of_products(M, N, K, 1), sum_of_products(M, N, K, 1, sums)
    assert planned(several, target)[1] == set(KernelFacts(several.sink).loops)
    alone = _tile_size(one, target)
    together = _tile_size(several, target)
    assert 1 < together < alone
    assert together * sums < target.vector_registers
    check_linear(several, target)


def _tile_size(kernel: Kernel, target: Target) -> int:
    """Vectors of sums in one loop body, for each sum."""
    plan, _ = planned(kernel, target)
    facts = plan.facts
    outputs = [r for r in facts.loops if r not in facts.closed()]
    body = 1
    for loop in outputs:
        body *= -(-plan.size(loop) // plan.blocks(loop))
    return body // target.lanes(dtypes.float32)


def test_a_sum_with_something_else_in_it_is_no_contraction() -> None:
    b = Builder()
    i, j, along = b.range(M), b.range(N), b.reduce_range(K)
    left = operand(b, 1, i, along, (M, K), turned=False)
    right = operand(b, 2, j, along, (N, K), turned=True)
    value = b.reduce(Op.ADD, left * right + left, along)
    b.store(b.param(0, M * N), i * N + j, value)
    a, c = kernels.random(M, K), kernels.random(K, N, seed=1)
    want = a @ c + a.sum(1, keepdims=True)
    kernel = Kernel(b.sink("other"), [np.zeros((M, N), np.float32), a, c], {0: want})
    assert planned(kernel, AVX2)[1] == set()
    check_linear(kernel, AVX2)


def test_products_along_different_loops_are_no_contraction() -> None:
    b = Builder()
    i, j, along = b.range(M), b.range(N), b.reduce_range(K)
    left = operand(b, 1, i, along, (M, K), turned=False)
    right = operand(b, 2, j, along, (N, K), turned=True)
    value = b.reduce(Op.ADD, left * right + left * left, along)
    b.store(b.param(0, M * N), i * N + j, value)
    a, c = kernels.random(M, K), kernels.random(K, N, seed=1)
    want = a @ c + (a * a).sum(1, keepdims=True)
    kernel = Kernel(b.sink("other"), [np.zeros((M, N), np.float32), a, c], {0: want})
    assert planned(kernel, AVX2)[1] == set()
    check_linear(kernel, AVX2)


def test_a_maximum_of_products_is_no_contraction() -> None:
    b = Builder()
    i, j, along = b.range(8), b.range(16), b.reduce_range(4)
    left = operand(b, 1, i, along, (8, 4), turned=False)
    right = operand(b, 2, j, along, (16, 4), turned=True)
    value = mk(Op.CAST, dtypes.float32, (b.reduce(Op.MAX, left * right, along),))
    b.store(b.param(0, 128), i * 16 + j, value)
    a, c = kernels.random(8, 4), kernels.random(4, 16, seed=1)
    want = (a[:, :, None] * c[None]).max(1)
    kernel = Kernel(b.sink("other"), [np.zeros((8, 16), np.float32), a, c], {0: want})
    assert planned(kernel, AVX2)[1] == set()
    check_linear(kernel, AVX2)


@pytest.mark.parametrize("part", range(3))
def test_odd_sizes(part: int) -> None:
    chance = random.Random(part)
    for _ in range(8):
        m, n, k = (chance.choice((1, 2, 3, 7, 16, 17, 31, 33)) for _ in range(3))
        kernel = sum_of_products(m, n, k, chance.randint(1, 3), chance.randint(1, 3), chance.random() < 0.5)
        check_linear(kernel, chance.choice((AVX512, AVX2, SSE)))


def matrix_times_vector(m: int, k: int, narrow: bool) -> Kernel:
    b = Builder()
    i, along = b.range(m), b.reduce_range(k)
    dtype = dtypes.int8 if narrow else dtypes.float32
    row = b.load(b.param(1, m * k, dtype), i * k + along)
    value = b.reduce(Op.ADD, row.cast(dtypes.float32) * b.load(b.param(2, k), along), along)
    b.store(b.param(0, m), i, value)
    a = np.random.default_rng(m).integers(-128, 128, (m, k)).astype(np.int8) if narrow else kernels.random(m, k)
    x = kernels.random(k, seed=1)
    want = (a.astype(np.float64) @ x).astype(np.float32)
    return Kernel(b.sink("gemv"), [np.zeros(m, np.float32), a, x], {0: want})


@pytest.mark.parametrize("narrow", [False, True])
@pytest.mark.parametrize(("m", "k"), [(64, 80), (18, 67), (17, 64), (15, 64), (33, 40), (64, 9)])
def test_rows_that_meet_a_vector_are_far_apart(m: int, k: int, narrow: bool) -> None:
    kernel = matrix_times_vector(m, k, narrow)
    opts = heuristic.choose(kernel.sink, AVX2)
    far = [o for o in opts if o.kind is OptKind.SPLIT and o.axis == 0]
    assert [o.amount for o in far] == ([-(-m // 4)] if m >= 16 and k >= 32 else [])
    ahead = [o.amount for o in opts if o.kind is OptKind.PREFETCH]
    assert ahead == ([2048 // 16] if far and narrow else []), "bytes of narrow rows are converted, and asked for before"
    check_linear(kernel, AVX2)


def test_rows_of_a_transposed_factor_are_far_apart_where_they_are_long() -> None:
    def cut(k: int, llc: int) -> list[int]:
        opts = heuristic.choose(kernels.matmul(8, 96, k, trans_b=True).sink, replace(AVX2, llc_bytes=llc), False)
        return [o.amount for o in opts if o.kind is OptKind.SPLIT]

    assert cut(1024, 1024) == [32]
    assert cut(1024, 1 << 20) == cut(512, 1024) == [], "all is near, or rows are short"


def test_far_rows_of_a_transposed_factor_are_right() -> None:
    target = replace(AVX2, llc_bytes=1024, l2_bytes=512)
    for m, n in ((8, 48), (5, 50)):
        check_linear(kernels.matmul(m, n, 1024, trans_b=True), target)


@pytest.mark.parametrize(("target", "depth", "amount"), [(AVX2, 40, 2), (SSE, 40, 2), (AVX2, 41, 1), (AVX512, 40, 1)])
def test_a_tile_is_written_out_for_two_dozen_products(target: Target, depth: int, amount: int) -> None:
    """More copies of a step are more code to compile, and no faster."""
    kernel = kernels.matmul(96, 64, depth)
    plan, _ = planned(kernel, target)
    (reduce,) = KernelFacts(kernel.sink).reduces
    along = reduce.src[1].arg.number
    assert [o.amount for o in plan.opts if o.kind is OptKind.UNROLL and o.axis == along] == [amount] * (amount > 1)
