"""Words and choices about memory that streams by: PREFETCH, STREAM, FAR, and the instructions they become."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from gradlet.base.errors import ArgumentError
from gradlet.codegen import pipeline
from gradlet.device.common.llvm import emit_assembly
from gradlet.graph.node import UOp
from gradlet.ops.op import AxisKind, KernelArg, Op
from gradlet.ops.opt import Opt, OptKind, PrefetchDetail, Tail
from gradlet.optimize import heuristic
from gradlet.optimize.actions.language import apply
from gradlet.render.llvmir import render
from gradlet.target.target import AVX2, AVX512, NEON, NVPTX, SSE, Target
from gradlet.tensor.tensor import Tensor
from tests.codegen import kernels
from tests.codegen.check import check_linear
from tests.codegen.kernels import Kernel

VECTOR = Opt(OptKind.VECTORIZE, 0, 8)
STREAM = Opt(OptKind.STREAM, 0, 0)


def assembly(sink: UOp, target: Target, *opts: Opt) -> str:
    program = pipeline.lower(sink.replace(arg=KernelArg(sink.arg.name, opts or None)), target)
    return emit_assembly(render(program, target), target)


def refused(sink: UOp, opts: list[Opt], reason: str, target: Target = AVX2) -> None:
    with pytest.raises(ArgumentError, match=reason):
        apply(sink, opts, target)


def test_stream_needs_whole_aligned_vectors() -> None:
    refused(kernels.elementwise(64).sink, [STREAM], "no lanes that are neighbours")
    refused(kernels.elementwise(64).sink, [VECTOR, Opt(OptKind.STREAM, 0, 1)], "no store to slot 1 runs over it")
    refused(kernels.elementwise(64).sink, [STREAM], "A GPU|a GPU decides", NVPTX)
    refused(kernels.in_place(64).sink, [VECTOR, STREAM], "reads what it writes")
    refused(kernels.elementwise(67).sink, [VECTOR._replace(tail=Tail.MASK), STREAM], "a store is guarded")
    refused(kernels.elementwise(67).sink, [VECTOR._replace(tail=Tail.SHIFT), STREAM], "a multiple of its vector")
    refused(kernels.elementwise(66).sink, [Opt(OptKind.VECTORIZE, 0, 2), STREAM], "vectors of 16 to 64 bytes")


@pytest.mark.parametrize(("size", "tail"), [(64, Tail.EXACT), (72, Tail.SHIFT)])
def test_streamed_stores(size: int, tail: Tail) -> None:
    kernel = kernels.elementwise(size)
    opts = [Opt(OptKind.SPLIT, 0, 16, tail), Opt(OptKind.VECTORIZE, 1, 8), Opt(OptKind.UNROLL, 1, 2), STREAM]
    program = check_linear(kernel, AVX2, kernel.sink.replace(arg=KernelArg("k", tuple(opts))))
    assert [n.arg.stream for n in program.uops if n.op is Op.STORE] == [True, True]


@pytest.mark.parametrize(
    ("target", "store", "fence"),
    [(AVX512, "vmovntps %zmm", True), (AVX2, "vmovntps", True), (SSE, "movntps", True), (NEON, "stnp", False)],
    ids=lambda t: getattr(t, "name", ""),
)  # fmt: skip
def test_streamed_stores_in_assembly(target: Target, store: str, fence: bool) -> None:
    lanes = target.vector_bits // 32
    width = 4 * lanes
    opts = [Opt(OptKind.SPLIT, 0, width), Opt(OptKind.VECTORIZE, 1, lanes), Opt(OptKind.UNROLL, 1, 4), STREAM]
    text = assembly(kernels.elementwise(64 * lanes).sink, target, *opts)
    assert text.count(store.partition(" ")[0]) >= (4 if fence else 2)
    assert ("sfence" in text) == fence


def test_prefetch_refusals() -> None:
    rows = kernels.gather(20, 16, 64).sink
    refused(rows, [Opt(OptKind.PREFETCH, 0, 2)], "needs a slot")
    refused(rows, [Opt(OptKind.PREFETCH, 0, 2, detail=PrefetchDetail(1, 4))], "a level from 1 to 3")
    refused(rows, [Opt(OptKind.PREFETCH, 0, 0, detail=PrefetchDetail(1))], "at least one iteration")
    refused(rows, [Opt(OptKind.PREFETCH, 0, 2, detail=PrefetchDetail(0))], "no load of slot 0")
    refused(rows, [Opt(OptKind.PREFETCH, 0, 2, detail=PrefetchDetail(1))], "other threads", NVPTX)
    opts = [Opt(OptKind.VECTORIZE, 1, 16), Opt(OptKind.PREFETCH, 1, 2, detail=PrefetchDetail(1))]
    refused(rows, opts, "of kind VECTOR")


@pytest.mark.parametrize("target", [AVX512, AVX2, SSE, NEON], ids=lambda t: t.name)
def test_rows_of_an_index_are_asked_for_ahead(target: Target) -> None:
    kernel = kernels.gather(50, 512)
    small = replace(target, l1_bytes=24 * 1024, l2_bytes=1024)
    opts = heuristic.choose(kernel.sink, small)
    assert OptKind.PREFETCH in [o.kind for o in opts]
    program = check_linear(kernel, small)
    assert any(n.op is Op.PREFETCH for n in program.uops)
    assert ("prfm" if target is NEON else "prefetcht0") in emit_assembly(render(program, small), small)
    # A table that stays in the second cache anyway
    assert OptKind.PREFETCH not in [o.kind for o in heuristic.choose(kernel.sink, target)]


def test_far_segments() -> None:
    refused(kernels.elementwise(66).sink, [Opt(OptKind.FAR, 0, 4)], "of one known size")
    refused(kernels.symbolic().sink, [Opt(OptKind.FAR, 0, 4)], "of one known size")
    far = apply(kernels.full_sum(4096).sink, [Opt(OptKind.FAR, 0, 4)], AVX2)
    by_words = apply(kernels.full_sum(4096).sink, [Opt(OptKind.SPLIT, 0, 1024), Opt(OptKind.GROUP, 0, 4)], AVX2)
    steps = [[n for n in s.toposort() if n.op is Op.MUL and n.src[1].arg == 1024] for s in (far, by_words)]
    assert [len(s) for s in steps] == [1, 1]


def test_one_pass_over_much_memory_walks_far_segments() -> None:
    assert Opt(OptKind.FAR, 0, 8) in heuristic.choose(kernels.full_sum(1 << 20).sink, AVX512)
    assert OptKind.FAR not in [o.kind for o in heuristic.choose(kernels.full_sum(1 << 14).sink, AVX512)]
    assert Opt(OptKind.FAR, 0, 6) in heuristic.choose(kernels.full_sum(6 * 16 * 100003).sink, AVX512)


def test_large_results_go_past_the_caches() -> None:
    def streams(sink: UOp, target: Target = AVX2) -> bool:
        return OptKind.STREAM in [o.kind for o in heuristic.choose(sink, target)]

    tiny = replace(AVX2, llc_bytes=1 << 20)
    assert streams(kernels.elementwise(1 << 20).sink, tiny)
    assert not streams(kernels.elementwise(1 << 20).sink, replace(AVX2, llc_bytes=64 << 20))
    assert not streams(kernels.elementwise(1 << 17).sink, tiny)
    assert not streams(kernels.in_place(1 << 20).sink, tiny)
    assert not streams(kernels.elementwise((1 << 20) + 3).sink, tiny)
    assert not streams(kernels.elementwise(1 << 20).sink, replace(NVPTX, llc_bytes=1 << 20))


def test_scratch_of_a_region_stays_near() -> None:
    """Every block writes the same place, many times as much as there is."""
    b = kernels.Builder()
    scratch, x = b.param(0, 1 << 16), b.param(1, 1 << 22)
    block, i = b.range(64, AxisKind.PARALLEL), b.range(1 << 16)
    b.store(scratch, i, b.load(x, block * (1 << 16) + i))
    tiny = replace(AVX2, llc_bytes=1 << 20)
    assert OptKind.STREAM not in [o.kind for o in heuristic.choose(b.sink("region"), tiny)]


def test_rows_are_reduced_a_few_at_once() -> None:
    def chosen(rows: int, size: int) -> list[tuple[OptKind, int]]:
        return [(o.kind, o.amount) for o in heuristic.choose(kernels.row_reduce(rows, size).sink, AVX2, parallel=False)]

    lanes = (OptKind.VECTORIZE, 8)
    far = [(OptKind.SPLIT, 256), (OptKind.UNROLL, 4)]
    assert chosen(1024, 4096) == [lanes, (OptKind.GROUP, 2), *far]
    assert chosen(1024, 128) == [lanes, (OptKind.GROUP, 2), (OptKind.UNROLL, 4)]  # short rows are neighbours
    assert chosen(1024, 33) == [lanes, (OptKind.UNROLL, 5), (OptKind.UNROLL, 4)]  # and shorter ones written out
    assert chosen(8, 4096) == [lanes, (OptKind.GROUP, 4)]


@pytest.mark.parametrize(("rows", "size"), [(17, 33), (16, 128), (19, 600), (32, 8), (18, 70)])
@pytest.mark.parametrize("op", [Op.ADD, Op.MAX])
def test_rows_side_by_side_are_right(rows: int, size: int, op: Op) -> None:
    check_linear(kernels.row_reduce(rows, size, op), AVX2)


def test_a_prefetch_along_one_pass_asks_once_a_line() -> None:
    opts = [Opt(OptKind.VECTORIZE, 1, 8), Opt(OptKind.GROUP, 1, 4)]
    ahead = Opt(OptKind.PREFETCH, 0, 1, detail=PrefetchDetail(1, along=1))
    text = assembly(kernels.row_reduce(40, 512).sink, AVX2, *opts, ahead)
    assert text.count("prefetcht0") == 2  # for 128 bytes
    refused(kernels.row_reduce(40, 512).sink, [ahead._replace(detail=PrefetchDetail(1, along=7))], "no load of slot 1")


def several_of_a_row(rows: int, size: int) -> Kernel:
    """The sum and the largest element of each row, in one pass."""
    b = kernels.Builder()
    i, j = b.range(rows), b.reduce_range(size)
    x = b.load(b.param(1, rows * size), i * size + j)
    b.store(b.param(0, rows), i, b.reduce(Op.ADD, x, j) + b.reduce(Op.MAX, x, j))
    x0 = kernels.random(rows, size, seed=1)
    return Kernel(b.sink("several"), [kernels.empty(rows), x0], {0: x0.sum(1) + x0.max(1)})


def test_rows_reduced_in_several_ways_have_no_other_chains() -> None:
    """Each way has sums of its own, and registers are few: the rows side by side are chains enough."""
    for size in (4096, 512):
        opts = heuristic.choose(several_of_a_row(4096, size).sink, AVX2, parallel=False)
        assert OptKind.GROUP not in [o.kind for o in opts]
        assert [o.amount for o in opts if o.kind is OptKind.UNROLL] == [4]
    check_linear(several_of_a_row(70, 24), AVX2)


def test_rows_at_random_numbers_are_chosen_in_no_time() -> None:
    """The numbers are computed in the kernel, whose index then has far more paths than nodes."""
    Tensor.manual_seed(0)
    table = Tensor.arange(6000).reshape(6000, 1).expand(6000, 784).cast("float32").contiguous().realize()
    rows = table[Tensor.randint(8, low=0, high=6000)].realize()
    found = rows.numpy()
    assert rows.shape == (8, 784) and (found == found[:, :1]).all() and len(set(found[:, 0].tolist())) > 4


@pytest.mark.parametrize(("kernel", "asking"), [(kernels.argmax, 1), (kernels.softmax, 3)])
def test_rows_walked_twice_go_one_by_one_and_the_pass_before_the_last_asks(
    kernel: Callable[[int, int], Kernel], asking: int
) -> None:
    far = replace(AVX2, llc_bytes=1 << 17)

    def asked(rows: int, size: int) -> list[Opt]:
        return [o for o in heuristic.choose(kernel(rows, size).sink, far, parallel=False) if o.axis == 0]

    assert asked(64, 1024) == [Opt(OptKind.PREFETCH, 0, 1, detail=PrefetchDetail(1, along=asking))]
    for rows, size in ((32, 1024), (1024, 64), (64, 16384)):  # no more than the last cache, short rows, long ones
        assert OptKind.PREFETCH not in [o.kind for o in asked(rows, size)]
    check_linear(kernel(35, 1031), replace(far, llc_bytes=1 << 14))
