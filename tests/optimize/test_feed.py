"""FEED: sums whose weights are made of products give the plain result block by block, whatever is hidden from whom."""

from __future__ import annotations

import pytest

from gradlet import Tensor
from gradlet.base.errors import ArgumentError
from gradlet.base.settings import scope
from gradlet.codegen.pipeline import schedulable
from gradlet.graph.bounds import bounds
from gradlet.graph.node import UOp
from gradlet.ops.op import AxisKind, Op
from gradlet.ops.opt import FeedDetail, Opt, OptKind, Tail
from gradlet.optimize import heuristic
from gradlet.optimize.actions.feed import numbers_from
from gradlet.optimize.actions.language import apply
from gradlet.optimize.analysis import KernelFacts, kernel_ranges
from gradlet.optimize.feeds import find_feeds, seen_bounds
from gradlet.target.rotation import feeding_blocks
from gradlet.target.target import AVX2, AVX512, NVPTX, SM_90, SSE, Target
from tests.codegen import kernels
from tests.codegen.check import check_kernel, check_linear


def by_blocks(sink: UOp, rows: int, amount: int, pad: int = 0) -> UOp:
    """The kernel by blocks of so many rows and places along the loop."""
    feeds = find_feeds(KernelFacts(sink))
    assert feeds is not None
    row, along = feeds.rows[0].arg.number, feeds.along
    length = int(feeds.rows[0].src[0].arg)
    opts: list[Opt] = []
    if rows < length:
        opts = [Opt(OptKind.SPLIT, row, rows, Tail.SHIFT if length % rows else Tail.EXACT)]
        row = KernelFacts(sink).next_number()
    tail = Tail.SHIFT if int(along.src[0].arg) % amount else Tail.EXACT
    return apply(sink, [*opts, Opt(OptKind.FEED, along.arg.number, amount, tail, FeedDetail(row, pad))], AVX2)


@pytest.mark.parametrize("rows, length", [(12, 10), (16, 16), (5, 17), (17, 9)])
@pytest.mark.parametrize("causal", [False, True])
def test_blocks_of_any_size_give_the_plain_result(rows: int, length: int, causal: bool) -> None:
    for columns in ((6,), (6, 3)):
        kernel = kernels.fed(2, rows, length, 4, columns, causal)
        for some, amount in ((rows, length), (max(2, rows // 2), max(2, length // 2)), (3, 3), (4, 2)):
            check_kernel(kernel, by_blocks(kernel.sink, min(some, rows), min(amount, length), pad=amount % 2))


def test_products_that_weights_have_in_common_are_computed_once() -> None:
    feeds = find_feeds(KernelFacts(kernels.fed().sink))
    assert feeds is not None and len(feeds.sums) == 2 and len(feeds.inner) == 2
    numbers = numbers_from(10, feeds)
    flat = [numbers.block, numbers.weigh_key, numbers.weigh_row]
    flat += [n for loops in (*numbers.inner, *numbers.sums) for n in loops]
    assert flat == list(range(10, 10 + numbers.loops))


def test_blocks_of_zeros_are_left_out() -> None:
    sink = kernels.fed(1, 16, 16, 4, (6, 3), causal=True).sink
    feeds = find_feeds(KernelFacts(sink))
    assert feeds is not None and [b.end for b in seen_bounds(feeds)] == [None]
    (loop,) = [r for r in kernel_ranges(by_blocks(sink, 4, 4)) if r.arg.kind is AxisKind.ORDERED]
    block = next(r for r in loop.src[0].toposort() if r.op is Op.RANGE)
    counts = [bounds(loop.src[0].substitute({block: UOp.const(block.dtype, n)})) for n in range(4)]
    assert counts == [(4, 4), (3, 3), (2, 2), (1, 1)]


CHOSEN = [(33, 50, 16, (32,), False), (48, 35, 3, (16, 16), True), (100, 70, 24, (48, 16), True)]


@pytest.mark.parametrize("target, rows, length, depth, columns, causal", [
    (AVX2, 32, 32, 8, (16, 8), True),
    *[pytest.param(t, *shape, marks=pytest.mark.slow) for t in (SSE, AVX2, AVX512) for shape in CHOSEN],
])  # fmt: skip
def test_chosen_schedules_go_by_blocks(
    target: Target, rows: int, length: int, depth: int, columns: tuple[int, ...], causal: bool
) -> None:
    kernel = kernels.fed(1, rows, length, depth, columns, causal)
    if any(c * 32 % target.vector_bits for c in columns):
        return
    assert sum(opt.kind is OptKind.FEED for opt in heuristic.choose(kernel.sink, target)) == 1
    check_linear(kernel, target)


def test_kernels_of_other_forms_are_not_taken_apart() -> None:
    for kernel in (kernels.attention(), kernels.matmul(4, 5, 6), kernels.softmax()):
        assert find_feeds(KernelFacts(kernel.sink)) is None


def test_refusals() -> None:
    sink = kernels.fed(columns=(6,)).sink
    feeds = find_feeds(KernelFacts(sink))
    assert feeds is not None
    number = feeds.along.arg.number
    word = Opt(OptKind.FEED, number, 5, detail=FeedDetail(1))
    for opt, reason, target in (
        (word._replace(detail=None), "which range of rows", AVX2), (word, "arrays of their own", NVPTX),
        (word._replace(axis=number + 1), "made of products", AVX2),
        (word._replace(detail=FeedDetail(2)), "none of rows", AVX2),
        (word._replace(detail=FeedDetail(0)), "none of rows", AVX2),
        (word._replace(amount=4), "not a multiple", AVX2), (word._replace(amount=11), "none that is cut", AVX2),
        (word._replace(tail=Tail.MASK), "none that is cut", AVX2),
    ):  # fmt: skip
        with pytest.raises(ArgumentError, match=reason):
            apply(sink, [opt], target)
    with scope(STRICT_FLOAT=1), pytest.raises(ArgumentError, match="order of the elements"):
        apply(sink, [word], AVX2)
    large = kernels.fed(1, 4096, 64, 64, (8,)).sink
    with pytest.raises(ArgumentError, match="has room for"):
        apply(large, [Opt(OptKind.FEED, number, 64, detail=FeedDetail(1))], AVX2)


def test_blocks_fit_near_the_core() -> None:
    for rows, length, width in ((16, 16, 16), (1000, 997, 64), (4096, 4096, 256)):
        for target in (SSE, AVX2, AVX512):
            cut = feeding_blocks(target, rows, length, (width, width), (width, width))
            if cut is not None:
                assert cut.rows <= rows and cut.keys <= length and 4 * cut.rows * cut.keys * 4 <= target.l1_bytes
    assert feeding_blocks(AVX2, 1, 1024, (64,), (64,)) is None  # a single row has no lanes
    assert feeding_blocks(AVX2, 64, 64, (20,), (64,)) is None and feeding_blocks(NVPTX, 64, 64, (64,), (64,)) is None


def slopes_of(length: int = 320, rows: int = 256) -> UOp:
    """The kernel of the gradient of queries, in 16 bits, as its schedule finds it."""
    q, g = (Tensor.empty(2, rows, 64, dtype="bfloat16", device="NULL:sm_90") for _ in range(2))
    k, v = (Tensor.empty(2, length, 64, dtype="bfloat16", device="NULL:sm_90") for _ in range(2))
    out = q.scaled_dot_product_attention(k, v)
    return schedulable(out.schedule(*out.gradient(q, gradient=g)).calls[-1].ast, SM_90)


def test_on_matrix_units() -> None:
    sink = slopes_of()
    *opts, last = heuristic.choose(sink, SM_90)
    assert last.kind is OptKind.FEED and last.amount == 64 and isinstance(last.detail, FeedDetail)
    assert last.detail.buffers == 4 and apply(sink, [*opts, last], SM_90) is not sink
    detail = last.detail
    for opt, reason in (
        (last._replace(amount=32), "multiples of 64"), (last._replace(tail=Tail.SHIFT), "a MASK at the end"),
        (last._replace(amount=128), "not a multiple"),
        (last._replace(detail=detail._replace(row=0)), "two rows of lanes"),
        (last._replace(detail=detail._replace(buffers=16)), "choose fewer buffers"),
    ):  # fmt: skip
        with pytest.raises(ArgumentError, match=reason):
            apply(sink, [*opts, opt], SM_90)
    with pytest.raises(ArgumentError, match="two rows of lanes"):
        apply(sink, [last], SM_90)  # nothing is cut
    with pytest.raises(ArgumentError, match="take a factor from registers"):
        apply(sink, [last], AVX2)
    fed = kernels.fed(columns=(6,)).sink
    feeds = find_feeds(KernelFacts(fed))
    assert feeds is not None
    with pytest.raises(ArgumentError, match="two rows of lanes"):
        apply(fed, [last._replace(axis=feeds.along.arg.number)], SM_90)
    with pytest.raises(ArgumentError, match="made of products"):
        apply(kernels.matmul(4, 5, 6).sink, [last._replace(axis=2)], SM_90)
