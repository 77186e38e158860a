"""Every word of the language takes part in the search or says why not; changed tuples go on meaning the same ranges."""

from __future__ import annotations

import pytest

from gradlet.base.errors import ArgumentError
from gradlet.graph.node import UOp
from gradlet.ops.op import AxisKind
from gradlet.ops.opt import Opt, OptKind, Tail
from gradlet.optimize import heuristic, moves
from gradlet.optimize.actions import language as actions
from gradlet.optimize.analysis import KernelFacts, kernel_ranges, range_size
from gradlet.target.target import AVX2, NVPTX, SSE
from tests.codegen import kernels
from tests.codegen.check import check_kernel

K = OptKind


def site(sink: UOp, parallel: bool = True) -> moves.Site:
    return moves.Site(KernelFacts(sink), AVX2, parallel)


def test_every_word_is_tried_or_has_a_reason() -> None:
    assert set(moves.MOVES) | set(moves.NOT_TRIED) == set(OptKind)
    assert not set(moves.MOVES) & set(moves.NOT_TRIED)
    assert all(reason.strip() for reason in moves.NOT_TRIED.values())


@pytest.mark.parametrize("kind", sorted(moves.MOVES), ids=lambda k: k.name)
def test_each_row_proposes_its_own_word_and_something_legal(kind: OptKind) -> None:
    legal = 0
    if kind in (K.THREAD, K.SPECIALIZE, K.PERSISTENT, K.TILE_ORDER, K.EPILOGUE):
        pytest.skip("words of GPUs: tests/device/cuda/test_search.py")
    lanes = moves.apply(kernels.elementwise(1 << 22).sink, (Opt(K.SPLIT, 0, 32), Opt(K.VECTORIZE, 1, 8)), AVX2)
    assert lanes is not None
    plain = (
        lambda: kernels.matmul(11, 35, 128),
        kernels.softmax,
        kernels.elementwise,
        kernels.row_reduce,
        kernels.table_of_few,
        lambda: kernels.softmax(2, 256),
        kernels.running_sum,
    )
    for sink in (*[make().sink for make in plain], lanes):
        for opts in moves.MOVES[kind](site(sink)):
            assert opts[0].kind is kind
            legal += moves.apply(sink, opts, AVX2) is not None
    assert legal > 0


def test_additions_keep_the_result() -> None:
    kernel = kernels.matmul(6, 10, 7)
    checked = 0
    for opts in moves.additions(site(kernel.sink)):
        scheduled = moves.apply(kernel.sink, opts, AVX2)
        if scheduled is not None:
            check_kernel(kernel, scheduled)
            checked += 1
    assert checked > 30


def test_tails_of_all_policies_are_proposed() -> None:
    def tails(size: int) -> set[Tail]:
        return {opts[0].tail for opts in moves.MOVES[K.VECTORIZE](site(kernels.elementwise(size).sink))}

    assert tails(1001) == {t for t in Tail if t is not Tail.EXACT}
    assert tails(1024) == {Tail.EXACT}


def test_a_size_known_at_launch_is_masked() -> None:
    proposed = [opts[0] for opts in moves.additions(site(kernels.symbolic().sink))]
    assert any(o.kind is K.VECTORIZE and o.tail is Tail.MASK for o in proposed)


def test_lanes_follow_the_target() -> None:
    sink = kernels.elementwise(1024).sink
    lanes = {
        t.name: {o[0].amount for o in moves.MOVES[K.VECTORIZE](moves.Site(KernelFacts(sink), t, True))}
        for t in (AVX2, SSE)
    }
    assert lanes == {"avx2": {4, 8, 16}, "sse": {2, 4, 8}}
    assert not list(moves.MOVES[K.VECTORIZE](moves.Site(KernelFacts(sink), NVPTX, True)))


def test_no_thread_shares_a_body_of_a_region() -> None:
    sink = kernels.matmul().sink
    assert [o for o in moves.additions(site(sink, parallel=True)) if o[0].kind is K.PARALLEL]
    assert not [o for o in moves.additions(site(sink, parallel=False)) if o[0].kind is K.PARALLEL]


def test_the_blocks_of_a_region_stay() -> None:
    sink = kernels.matmul(32, 48, 8).sink
    body = moves.apply(sink, (Opt(K.PARALLEL, 0, 0),), AVX2)
    assert body is not None
    assert any(opts[0].axis == 0 for opts in moves.additions(site(body)))
    kept = [opts for opts in moves.additions(site(body, parallel=False)) if opts[0].kind is not K.ACCUMULATE]
    assert kept and not any(opt.axis == 0 for opts in kept for opt in opts)


def loops(sink: UOp) -> list[tuple[int | None, AxisKind]]:
    return [(range_size(r), r.arg.kind) for r in kernel_ranges(sink)]


def test_leaving_out_a_split_renames_what_follows() -> None:
    sink = kernels.matmul(32, 48, 8).sink
    opts = (Opt(K.SPLIT, 0, 8), Opt(K.SPLIT, 1, 16), Opt(K.VECTORIZE, 4, 8), Opt(K.UNROLL, 4, 2), Opt(K.UNROLL, 2, 4))
    assert moves.apply(sink, opts, AVX2) is not None
    found = set(moves.changes(sink, opts, AVX2))
    # Without the first split the inner range of the second one is number 3.
    assert (Opt(K.SPLIT, 1, 16), Opt(K.VECTORIZE, 3, 8), Opt(K.UNROLL, 3, 2), Opt(K.UNROLL, 2, 4)) in found
    # Without the second split its range is vectorised as a whole, or not at all.
    assert (Opt(K.SPLIT, 0, 8), Opt(K.VECTORIZE, 1, 8), Opt(K.UNROLL, 1, 2), Opt(K.UNROLL, 2, 4)) in found
    assert (Opt(K.SPLIT, 0, 8), Opt(K.UNROLL, 2, 4)) in found
    # More vectors side by side: the split and what writes its blocks out change together.
    assert (opts[0], Opt(K.SPLIT, 1, 24), opts[2], Opt(K.UNROLL, 4, 3), opts[4]) in found
    # Other amounts and tails.
    assert (*opts[:4], Opt(K.UNROLL, 2, 8)) in found
    assert (*opts[:4], Opt(K.UNROLL, 2, 3, Tail.MASK)) in found


def test_a_cut_that_becomes_whole_gives_its_number_back() -> None:
    sink = kernels.matmul(8, 48, 8).sink
    opts = (Opt(K.UNROLL, 0, 4), Opt(K.SPLIT, 1, 16), Opt(K.VECTORIZE, 4, 8))
    whole = (Opt(K.UNROLL, 0, 8), Opt(K.SPLIT, 1, 16), Opt(K.VECTORIZE, 3, 8))
    assert whole in set(moves.changes(sink, opts, AVX2))
    assert opts in set(moves.changes(sink, whole, AVX2))
    scheduled = moves.apply(sink, whole, AVX2)
    assert scheduled is not None and (8, AxisKind.VECTOR) in loops(scheduled)


EACH = pytest.mark.parametrize("number", range(len(kernels.ALL)), ids=kernels.names())


@EACH
def test_changes_of_the_heuristics_choice_are_legal_or_refused(number: int) -> None:
    sink = kernels.ALL[number]().sink
    usual = heuristic.choose(sink, AVX2)
    for opts in moves.changes(sink, usual, AVX2):
        assert opts != usual
        try:
            actions.apply(sink, opts, AVX2)
        except ArgumentError as error:
            assert "is not possible here: " in str(error)


def test_written_out_counts_copies() -> None:
    sink = kernels.elementwise(1024).sink
    plain = moves.written_out(sink, AVX2)
    four = moves.apply(sink, (Opt(K.UNROLL, 0, 4),), AVX2)
    vector = moves.apply(sink, (Opt(K.VECTORIZE, 0, 8),), AVX2)
    assert four is not None and vector is not None
    assert moves.written_out(four, AVX2) > 2 * plain
    assert moves.written_out(vector, AVX2) < 2 * plain
