"""ROTATE: attention in one pass over the keys gives what three passes give, whatever is hidden from whom."""

from __future__ import annotations

import math

import numpy as np
import pytest

from gradlet.base.errors import ArgumentError
from gradlet.base.settings import scope
from gradlet.graph.bounds import bounds
from gradlet.graph.node import UOp
from gradlet.ops.op import AxisKind, Op
from gradlet.ops.opt import Opt, OptKind, RotateDetail, Tail
from gradlet.optimize import heuristic
from gradlet.optimize.actions.language import apply
from gradlet.optimize.analysis import KernelFacts, kernel_ranges
from gradlet.optimize.mixtures import Bound, bounds_of, find_mixture
from gradlet.target.rotation import blocks
from gradlet.target.target import AVX2, AVX512, NVPTX, SM_90, SSE, Target
from tests.codegen import kernels
from tests.codegen.check import check_kernel, check_linear

SHAPES = [(12, 10), (16, 16), (5, 17), (9, 4), (17, 33)]


def rotated(sink: UOp, rows: int, keys: int, pad: int = 0) -> UOp:
    """The kernel by blocks of so many rows and keys."""
    loops = kernel_ranges(sink)
    length, along = int(loops[1].src[0].arg), next(r for r in loops if r.arg.kind is AxisKind.REDUCE)
    opts, row = [], 1
    if rows < length:
        opts, row = [Opt(OptKind.SPLIT, 1, rows, Tail.SHIFT if length % rows else Tail.EXACT)], 9
    tail = Tail.SHIFT if int(along.src[0].arg) % keys else Tail.EXACT
    return apply(sink, [*opts, Opt(OptKind.ROTATE, along.arg.number, keys, tail, RotateDetail(row, pad))], AVX2)


@pytest.mark.parametrize("rows, keys", SHAPES)
@pytest.mark.parametrize("causal, window", [(False, 0), (True, 0), (False, 3), (True, 4)])
def test_blocks_of_any_size_give_the_plain_result(rows: int, keys: int, causal: bool, window: int) -> None:
    kernel = kernels.attention(2, rows, keys, 4, 3, causal, window)
    for block, length in ((rows, keys), (max(2, rows // 2), max(2, keys // 2)), (3, 3), (4, 2)):
        check_kernel(kernel, rotated(kernel.sink, min(block, rows), min(length, keys), pad=length % 2))


def test_blocks_that_a_block_of_rows_sees_nothing_of_are_left_out() -> None:
    kernel = kernels.attention(1, 16, 16, 4, 3, causal=True, window=5)
    (loop,) = [r for r in kernel_ranges(rotated(kernel.sink, 4, 4)) if r.arg.kind is AxisKind.ORDERED]
    block = next(r for r in loop.src[0].toposort() if r.op is Op.RANGE)
    counts = []
    for number in range(4):
        size = loop.src[0].substitute({block: UOp.const(block.dtype, number)})
        lowest, highest = bounds(size)
        assert lowest == highest
        counts.append(int(lowest))
    assert counts == [1, 2, 2, 2]  # of four blocks of keys


def test_bounds_are_read_off_conditions() -> None:
    sink = kernels.attention(1, 16, 16, 4, 3, causal=True, window=5).sink
    mixture = find_mixture(KernelFacts(sink))
    assert mixture is not None
    found = bounds_of(mixture.x, mixture.along)
    assert len(found) == 2 and sum(isinstance(b, Bound) and b.end is None for b in found) == 1


CHOSEN = [(33, 50, 16, 32, False), (48, 35, 3, 16, True), (100, 70, 24, 48, True), (64, 128, 64, 64, False)]


@pytest.mark.parametrize("target, rows, keys, depth, columns, causal", [
    (AVX2, 32, 32, 8, 16, True),
    *[pytest.param(t, *shape, marks=pytest.mark.slow) for t in (SSE, AVX2, AVX512) for shape in CHOSEN],
])  # fmt: skip
def test_chosen_schedules_rotate(
    target: Target, rows: int, keys: int, depth: int, columns: int, causal: bool
) -> None:  # fmt: skip
    kernel = kernels.attention(1, rows, keys, depth, columns, causal)
    opts = heuristic.choose(kernel.sink, target)
    assert sum(opt.kind is OptKind.ROTATE for opt in opts) == 1
    program = check_linear(kernel, target)
    # Nothing near the core is as large as all scores.
    assert all(n.arg.size < max(rows * keys, 4096) for n in program.uops if n.op is Op.LOCAL)


@pytest.mark.parametrize("value", [math.inf, -math.inf, math.nan])
def test_extremes_come_out_as_in_three_passes(value: float) -> None:
    kernel = kernels.attention(1, 8, 8, 4, 3)
    kernel.arrays[1][0, 3, 1] = value
    a, c, w = (kernel.arrays[n].astype(np.float64) for n in (1, 2, 3))
    with np.errstate(invalid="ignore"):
        scores = a @ c.transpose(0, 2, 1) * 0.5
        power = np.exp(scores - scores.max(-1, keepdims=True))
        expected = (power / power.sum(-1, keepdims=True)) @ w
    check_kernel(kernel._replace(expected={0: expected.astype(np.float32)}), rotated(kernel.sink, 4, 4))


def test_refusals() -> None:
    sink = kernels.attention().sink
    word = Opt(OptKind.ROTATE, 3, 5, detail=RotateDetail(1))
    units = word._replace(detail=RotateDetail(1, buffers=2))
    for opt, reason, target in (
        (word._replace(detail=None), "which range of rows", AVX2),
        (word._replace(axis=4), "weighted by a softmax", AVX2),
        (word, "arrays of their own", NVPTX), (units, "no matrix units", AVX2),
        (units, "not two rows of lanes", SM_90), (word._replace(detail=RotateDetail(2)), "none of rows", AVX2),
        (word._replace(detail=RotateDetail(0)), "none of rows", AVX2),
        (word._replace(amount=4), "not a multiple", AVX2),
        (word._replace(amount=11), "none that is cut", AVX2), (word._replace(tail=Tail.MASK), "none that is cut", AVX2),
    ):  # fmt: skip
        with pytest.raises(ArgumentError, match=reason):
            apply(sink, [opt], target)
    with pytest.raises(ArgumentError, match="weighted by a softmax"):
        apply(kernels.softmax().sink, [Opt(OptKind.ROTATE, 2, 5, detail=RotateDetail(0))], AVX2)
    with scope(STRICT_FLOAT=1), pytest.raises(ArgumentError, match="order of the elements"):
        apply(sink, [word], AVX2)
    large = kernels.attention(1, 4096, 64, 64, 8).sink
    with pytest.raises(ArgumentError, match="has room for"):
        apply(large, [Opt(OptKind.ROTATE, 3, 64, detail=RotateDetail(1))], AVX2)


def test_blocks_fit_near_the_core() -> None:
    for rows, keys, columns, depth in ((16, 16, 16, 16), (1000, 997, 64, 64), (4096, 4096, 256, 256)):
        for target in (SSE, AVX2, AVX512):
            cut = blocks(target, rows, keys, columns, depth)
            if cut is not None:
                assert cut.rows <= rows and cut.keys <= keys and cut.rows * cut.keys * 4 <= target.l1_bytes
    assert blocks(AVX2, 1, 1024, 64, 64) is None  # a single row has no lanes
    assert blocks(AVX2, 64, 64, 20, 64) is None and blocks(NVPTX, 64, 64, 64, 64) is None
