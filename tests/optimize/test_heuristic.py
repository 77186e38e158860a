"""What the default schedule chooses; that it is right is tested by tests/codegen/test_pipeline.py."""

from __future__ import annotations

from dataclasses import replace

import pytest

from gradlet.base.dtype import dtypes
from gradlet.base.settings import scope
from gradlet.graph.node import UOp
from gradlet.ops.op import Op
from gradlet.ops.opt import Opt, OptKind, Tail
from gradlet.optimize import heuristic
from gradlet.optimize.actions import language as actions
from gradlet.optimize.cost import Cost, estimate
from gradlet.target.target import AVX2, AVX512, NVPTX
from tests.codegen import kernels


def kinds(opts: tuple[Opt, ...]) -> list[OptKind]:
    return [o.kind for o in opts]


def amounts(opts: tuple[Opt, ...], kind: OptKind) -> list[int]:
    return [o.amount for o in opts if o.kind is kind]


@pytest.mark.parametrize("target", [AVX512, AVX2, NVPTX], ids=lambda t: t.name)
@pytest.mark.parametrize("number", range(len(kernels.ALL)), ids=kernels.names())
def test_choices_are_legal_and_the_same_every_time(number: int, target: object) -> None:
    sink = kernels.ALL[number]().sink
    opts = heuristic.choose(sink, target)  # type: ignore[arg-type]
    assert opts == heuristic.choose(sink, target)  # type: ignore[arg-type]
    actions.apply(sink, opts, target)  # type: ignore[arg-type]


def test_elementwise_is_vectorised_and_parallel_when_big() -> None:
    big = heuristic.choose(kernels.elementwise(1 << 20).sink, AVX512)
    assert kinds(big) == [OptKind.SPLIT, OptKind.VECTORIZE, OptKind.UNROLL, OptKind.PARALLEL]
    assert amounts(big, OptKind.VECTORIZE) == [16]
    small = heuristic.choose(kernels.elementwise(256).sink, AVX512)
    assert OptKind.PARALLEL not in kinds(small)
    assert amounts(heuristic.choose(kernels.elementwise(1 << 20).sink, AVX2), OptKind.VECTORIZE) == [8]


def test_uneven_sizes_overlap_unless_the_kernel_works_in_place() -> None:
    assert {o.tail for o in heuristic.choose(kernels.elementwise(1003).sink, AVX512)} == {Tail.EXACT, Tail.SHIFT}
    assert Tail.SHIFT not in {o.tail for o in heuristic.choose(kernels.in_place(1003).sink, AVX512)}


def test_a_product_added_in_place_guards_nothing() -> None:
    """Rows that its tile does not divide get code of their own: masks in the innermost loop halve the speed."""
    for target in (AVX2, AVX512, replace(AVX2, cores=2), replace(AVX512, cores=16)):
        for m, n, k in ((128, 384, 1536), (200, 384, 256), (48, 96, 256), (2047, 70, 64), (31, 49, 16)):
            sink = kernels.matmul_onto(m, n, k).sink
            opts = heuristic.choose(sink, target)
            if n % 8 == 0:
                assert Tail.MASK not in {o.tail for o in opts if o.kind is OptKind.UNROLL}
            actions.apply(sink, opts, target)  # threads share no range that became two


def test_windows_over_images_with_channels_last_take_lanes_along_channels() -> None:
    """Also where the result has its channels first: nine loads of lanes side by side outweigh one store apart."""
    b = kernels.Builder()
    out, x, w = b.param(0, 16 * 20 * 320), b.param(1, 22 * 322 * 16), b.param(2, 16 * 9)
    c, row, column, down, across = b.range(16), b.range(20), b.range(320), b.reduce_range(3), b.reduce_range(3)
    product = b.load(x, ((row + down) * 322 + column + across) * 16 + c) * b.load(w, c * 9 + down * 3 + across)
    b.store(out, (c * 20 + row) * 320 + column, b.reduce(Op.ADD, product, down, across))
    for target in (AVX2, AVX512):
        opts = heuristic.choose(b.sink("windows"), target)
        assert [o.axis for o in opts if o.kind is OptKind.VECTORIZE][:1] == [0]


def test_lanes_a_few_elements_apart_are_better_than_few_lanes() -> None:
    """A transposed convolution: weights of one channel lie four apart, two results side by side."""
    b = kernels.Builder()
    out, x, w = b.param(0, 24 * 2 * 2 * 160 * 2), b.param(1, 2 * 160 * 24), b.param(2, 24 * 96)
    c, row, down, column, across = b.range(24), b.range(2), b.range(2), b.range(160), b.range(2)
    k = b.reduce_range(24)
    product = b.load(x, (row * 160 + column) * 24 + k) * b.load(w, ((k * 24 + c) * 2 + down) * 2 + across)
    place = (((c * 2 + row) * 2 + down) * 160 + column) * 2 + across
    b.store(out, place, b.reduce(Op.ADD, product, k))
    opts = heuristic.choose(b.sink("transposed"), AVX2)
    assert amounts(opts, OptKind.VECTORIZE) == [8]


def test_matmul_gets_a_register_tile() -> None:
    opts = heuristic.choose(kernels.matmul(512, 512, 512).sink, AVX512)
    assert amounts(opts, OptKind.SPLIT) == [128, 64]
    assert amounts(opts, OptKind.UNROLL)[:2] == [4, 6]
    assert OptKind.PARALLEL in kinds(opts)


def test_matmul_of_a_transposed_matrix_takes_lanes_along_the_sum() -> None:
    sink = kernels.matmul(48, 512, 512, trans_b=True).sink
    opts = heuristic.choose(sink, AVX512)
    assert [o.axis for o in opts if o.kind is OptKind.VECTORIZE] == [2]
    with scope(STRICT_FLOAT=1):  # that would add in another order
        assert all(o.axis != 2 for o in heuristic.choose(sink, AVX512) if o.kind is OptKind.VECTORIZE)


def test_row_sum_takes_lanes_along_the_row_and_column_sum_across() -> None:
    row = heuristic.choose(kernels.row_reduce(64, 1024).sink, AVX512)
    assert (row[0].kind, row[0].axis) == (OptKind.VECTORIZE, 1)
    assert OptKind.GROUP in kinds(row)
    column = heuristic.choose(kernels.column_sum(1024, 1024).sink, AVX512)
    assert column[0].axis == 0 and OptKind.VECTORIZE in kinds(column)
    assert OptKind.GROUP not in kinds(column)


def test_a_transposition_goes_by_blocks_unless_it_computes_much() -> None:
    """Blocks use every cache line while it is near; 64 copies of a long body are only long to compile."""

    def blocks(exponentials: int, inside: int = 512) -> list[int]:
        b = kernels.Builder()
        kind = dtypes.bool if exponentials < 0 else dtypes.float32  # no tiles of bool
        out, x = b.param(0, 512 * 512, kind), b.param(1, 512 * 512, kind)
        i, j = b.range(512), b.range(512)
        value = b.load(x, j * 512 + i, j < inside if inside < 512 else None)  # lanes along j have guards of their own
        for _ in range(exponentials):
            value = value.exp()
        b.store(out, i * 512 + j, value)
        return amounts(heuristic.choose(b.sink("transposed"), AVX512), OptKind.UNROLL)

    assert blocks(0) == blocks(4) == [8]
    assert blocks(-1) == [8, 8]
    assert blocks(0, 500) == [8, 8]
    assert blocks(4, 500) == [4, 4]
    assert blocks(40) == []


def test_channels_that_go_last_are_read_in_long_streams() -> None:
    """Each plane is read from its beginning to its end; small ones, that stay near, as the result is written."""

    def order(size: int, channels: int = 64) -> list[tuple[int, int]]:
        b = kernels.Builder()
        out, x = b.param(0, 4 * size * size * channels), b.param(1, 4 * size * size * channels)
        n, i, j, c = b.range(4), b.range(size), b.range(size), b.range(channels)
        value = b.load(x, ((n * channels + c) * size + i) * size + j)
        b.store(out, ((n * size + i) * size + j) * channels + c, value)
        opts = heuristic.choose(b.sink("channels last"), AVX512)
        return [(o.axis, o.amount) for o in opts if o.kind is OptKind.REORDER]

    columns_inside, channels_outside = (2, 3), (2, 1)
    assert order(56) == [columns_inside, channels_outside]
    assert order(16) == [columns_inside]
    assert order(56, 63) == [columns_inside]  # channels do not fill lines


def test_planes_are_copied_in_wide_pieces_unless_lanes_are_loaded_one_by_one() -> None:
    """A mask of bools has no tiles: its lanes are loads of their own, twice as many for twice the pieces."""

    def pieces(masked: bool) -> list[int]:
        b = kernels.Builder()
        out, x, m = b.param(0, 64**3), b.param(1, 64**3), b.param(2, 64**3, dtypes.bool)
        i, j, c = b.range(64), b.range(64), b.range(64)
        element = (c * 64 + i) * 64 + j
        value = b.load(x, element)
        b.store(out, (i * 64 + j) * 64 + c, b.load(m, element).where(value, 0.0) if masked else value)
        return amounts(heuristic.choose(b.sink("planes"), AVX512), OptKind.UNROLL)

    assert pieces(False) == [8]
    assert pieces(True) == [4]


def test_a_block_has_two_sides_whatever_else_is_read() -> None:
    """Channels last, added to something along a third loop: a third side would be 512 copies of the body."""
    b = kernels.Builder()
    out, x, w = b.param(0, 64**3, dtypes.bool), b.param(1, 64**3, dtypes.bool), b.param(2, 64, dtypes.bool)
    c, i, j = b.range(64), b.range(64), b.range(64)
    b.store(out, c * 4096 + i * 64 + j, b.load(x, j * 4096 + c * 64 + i) ^ b.load(w, c))
    assert amounts(heuristic.choose(b.sink("channels"), AVX512), OptKind.UNROLL) == [8, 8]


def test_stores_that_share_a_range_agree_on_its_lanes() -> None:
    """Every other row and column of an image, channels last, beside the whole image: copies of copies are long code."""
    b = kernels.Builder()
    small, whole, x = b.param(0, 14 * 14 * 64), b.param(1, 28 * 28 * 64), b.param(2, 28 * 28 * 64)
    c, i, j, p = b.range(64), b.range(14), b.range(14), b.range(784)
    b.store(small, (i * 14 + j) * 64 + c, b.load(x, c * 784 + i * 56 + j * 2))
    b.store(whole, p * 64 + c, b.load(x, c * 784 + p))
    opts = heuristic.choose(b.sink("images"), AVX512)
    assert [o.axis for o in opts if o.kind is OptKind.VECTORIZE] == [0]
    assert amounts(opts, OptKind.UNROLL)[0] != 8 or opts[0].kind is not OptKind.UNROLL
    assert all(o.tail is not Tail.MASK for o in opts)


def test_columns_of_a_long_body_are_not_copied_many_times() -> None:
    """Copies keep the memory busy; a body of hundreds of operations is busy itself, and long to compile."""

    def copies(operations: int) -> int:
        b = kernels.Builder()
        out, x = b.param(0, 1024), b.param(1, 1024 * 1024)
        j, k = b.range(1024), b.reduce_range(1024)
        value = b.load(x, k * 1024 + j)
        for _ in range(operations):
            value = value * value + 1.0
        b.store(out, j, b.reduce(Op.ADD, value, k))
        return max([1, *amounts(heuristic.choose(b.sink("columns"), AVX512), OptKind.UNROLL)])

    assert copies(1) == 16
    assert copies(300) == 1


def test_columns_that_are_picked_out_of_vectors_are_not_copied_many_times() -> None:
    """Every fourth element of a row, of four rows: whole vectors are loaded and shuffled for each of them."""

    def copies(apart: int) -> int:
        b = kernels.Builder()
        out = b.param(0, 256)
        j, k, m = b.range(256), b.reduce_range(1024), b.reduce_range(4)
        element = ((k * 4 + m) * 256 + j) * apart
        first, *others = [b.load(b.param(slot, 1024 * 4 * 256 * apart), element) for slot in (1, 2, 3, 4)]
        for other in others:
            first = first * other
        b.store(out, j, b.reduce(Op.ADD, b.reduce(Op.ADD, first, m), k))
        opts = heuristic.choose(b.sink("columns"), AVX2)
        number = next(o.axis for o in opts if o.kind is OptKind.VECTORIZE)
        return max([1, *[o.amount for o in opts if o.kind is OptKind.UNROLL and o.axis == number]])

    assert copies(1) == 4
    assert copies(4) == 2


def test_softmax_takes_lanes_in_every_loop() -> None:
    opts = heuristic.choose(kernels.softmax(64, 256).sink, AVX512)
    assert kinds(opts).count(OptKind.VECTORIZE) == 3


def test_ordered_ranges_are_left_alone() -> None:
    opts = heuristic.choose(kernels.scatter_add(6, 64, 15).sink, AVX512)
    assert all(o.axis != 0 for o in opts)


def test_gpu_uses_workgroups_and_their_lanes() -> None:
    opts = heuristic.choose(kernels.elementwise(1 << 20).sink, NVPTX)
    assert opts == (Opt(OptKind.THREAD, 0, 256, Tail.EXACT), Opt(OptKind.PARALLEL, 0, 0))


@pytest.mark.parametrize(
    ("sink", "cost"),
    [
        (kernels.elementwise(100).sink, Cost(200, 1200)),
        (kernels.matmul(2, 3, 4).sink, Cost(48, 4 * (6 + 8 + 12))),
        (kernels.full_sum(100).sink, Cost(100, 404)),
        (kernels.gather(11, 24, 9).sink, Cost(0, 4 * 2 * 216 + 8 * 9)),
        (kernels.symbolic(37, 64).sink, Cost(64, 512)),
    ],
)
def test_cost_counts_unique_bytes(sink: UOp, cost: Cost) -> None:
    assert estimate(sink) == cost


def test_cost_of_a_product_counts_the_sum_once() -> None:
    sink = kernels.row_reduce(5, 7, Op.MUL).sink
    assert estimate(sink).flops == 35
