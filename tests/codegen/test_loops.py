"""Merging ranges, and one place in the loop nest for every range."""

from __future__ import annotations

import numpy as np
import pytest

from gradlet.base.errors import CompilerError
from gradlet.codegen import loops
from gradlet.codegen.expand import unroll
from gradlet.codegen.loops import Nest, merge_adjacent, nest_of, separate
from gradlet.codegen.pipeline import lower
from gradlet.graph.node import UOp
from gradlet.ops.op import AxisKind, Op
from gradlet.ops.opt import Opt, OptKind
from gradlet.optimize.actions.language import apply
from gradlet.optimize.analysis import kernel_ranges
from gradlet.target.target import AVX512
from tests.codegen import kernels
from tests.codegen.check import check_kernel


def sizes(sink: UOp) -> list[int]:
    return [r.src[0].arg for r in kernel_ranges(sink)]


def test_ranges_walked_as_one_become_one() -> None:
    kernel = kernels.contiguous_3d((3, 5, 16))
    merged = merge_adjacent(kernel.sink)
    assert sizes(merged) == [240]
    check_kernel(kernel, merged)


def test_ranges_that_another_access_walks_apart_stay() -> None:
    kernel = kernels.two_dimensional(13, 40)
    assert merge_adjacent(kernel.sink) is kernel.sink


def test_a_range_used_as_data_stays() -> None:
    b = kernels.Builder()
    out = b.param(0, 12)
    i, j = b.range(3), b.range(4)
    b.store(out, i * 4 + j, i.cast(kernels.F32))
    sink = b.sink("rows")
    assert merge_adjacent(sink) is sink


def test_pixels_of_a_convolution_that_keeps_its_size_merge() -> None:
    kernel = kernels.conv2d(1, 2, 1, 5)
    merged = merge_adjacent(kernel.sink)
    assert sizes(merged) == [1, 1, 25, 2, 3, 3]
    check_kernel(kernel, merged)


def test_pixels_of_other_convolutions_stay_apart() -> None:
    for kernel in (kernels.conv2d(1, 2, 1, 5, pad=0), kernels.conv2d(1, 2, 2, 16)):
        assert sizes(merge_adjacent(kernel.sink))[-5:] == sizes(kernel.sink)[-5:]


def test_ranges_that_guards_too_walk_as_one_merge() -> None:
    b = kernels.Builder()
    out, x = b.param(0, 24), b.param(1, 20)
    i, j = b.range(6), b.range(4)
    at = i * 4 + j
    inside = (at < 2).logical_not() & (at < 22)
    b.store(out, at, b.load(x, at - 2, inside) + (at % 5).cast(kernels.F32))
    a = kernels.random(20)
    kernel = kernels.Kernel(
        b.sink("guarded"), [kernels.empty(24), a], {0: kernels.np.pad(a, (2, 2)) + kernels.np.arange(24) % 5}
    )
    merged = merge_adjacent(kernel.sink)
    assert sizes(merged) == [24]
    check_kernel(kernel, merged)


def test_batch_and_rows_of_a_product_merge() -> None:
    b = kernels.Builder()
    out, x, w = b.param(0, 2 * 3 * 4), b.param(1, 2 * 3 * 5), b.param(2, 5 * 4)
    g, i, j, k = b.range(2), b.range(3), b.range(4), b.reduce_range(5)
    row = g * 3 + i
    b.store(out, row * 4 + j, b.reduce(Op.ADD, b.load(x, row * 5 + k) * b.load(w, k * 4 + j), k))
    assert sizes(merge_adjacent(b.sink("linear"))) == [6, 4, 5]


def test_reduce_ranges_merge() -> None:
    b = kernels.Builder()
    out, x = b.param(0, 1), b.param(1, 30)
    j, k = b.reduce_range(5), b.reduce_range(6)
    b.store(out, 0, b.reduce(Op.ADD, b.load(x, j * 6 + k), j, k))
    a = kernels.random(30)
    kernel = kernels.Kernel(b.sink("sum"), [kernels.empty(1), a], {0: a.sum(keepdims=True)})
    merged = merge_adjacent(kernel.sink)
    assert sizes(merged) == [30]
    check_kernel(kernel, merged)


def test_a_range_closed_twice_in_a_row_becomes_two() -> None:
    kernel = kernels.softmax(3, 4, same_range=True)
    with pytest.raises(CompilerError, match="two loops"):
        nest_of(kernel.sink)
    apart = separate(kernel.sink)
    assert sizes(apart) == [3, 4, 4, 4]
    check_kernel(kernel, apart)


def test_independent_reduces_over_one_range_share_their_loop() -> None:
    b = kernels.Builder()
    out, x = b.param(0, 2), b.param(1, 9)
    k = b.reduce_range(9)
    b.store(out, 0, b.reduce(Op.ADD, b.load(x, k), k))
    b.store(out, 1, b.reduce(Op.MAX, b.load(x, k), k))
    sink = b.sink("sum_and_max")
    assert separate(sink) is sink


def test_stores_with_different_ranges_share_the_outer_loop() -> None:
    sink = kernels.layer_norm(2, 3).sink
    nest = nest_of(sink)
    rows = [r for r in nest.places if r.arg.number == 0]
    assert all(nest.places[r].parent is rows[0] for r in nest.places if r is not rows[0])


def test_the_same_range_under_two_parents_becomes_two() -> None:
    """After a reorder one store runs j inside i, the other j alone."""
    kernel = kernels.layer_norm(2, 3)
    swapped = apply(kernel.sink, [Opt(OptKind.REORDER, 0, 1)], AVX512)
    check_kernel(kernel, separate(swapped))
    nest_of(separate(swapped))


def test_columns_and_total_of_one_matrix() -> None:
    """Two REDUCEs over one range in different places: inside an output loop and outside."""
    b = kernels.Builder()
    out, total, x, y = b.param(0, 4), b.param(1, 1), b.param(2, 12), b.param(3, 3)
    j, k = b.range(4), b.reduce_range(3)
    b.store(out, j, b.reduce(Op.ADD, b.load(x, k * 4 + j) * b.load(y, k), k))
    b.store(total, 0, b.reduce(Op.ADD, b.load(y, k), k))
    a, c = kernels.random(3, 4), kernels.random(3, seed=4)
    kernel = kernels.Kernel(
        b.sink("both"), [kernels.empty(4), kernels.empty(1), a, c], {0: c @ a, 1: c.sum(keepdims=True)}
    )
    apart = separate(kernel.sink)
    assert sizes(apart) == [4, 3, 3]
    check_kernel(kernel, apart)


@pytest.mark.parametrize("copies", [1, 3])
def test_a_range_that_is_closed_below_as_well_is_renamed_where_it_is_open(copies: int) -> None:
    """What runs over j and k again needs loops of its own; inside of it a sum over k alone keeps k."""
    b = kernels.Builder()
    out, x, y = b.param(0, copies), b.param(1, 15), b.param(2, 5)
    j, k = b.reduce_range(3), b.reduce_range(5)
    inner = b.reduce(Op.ADD, b.load(y, k), k)
    for number in range(copies):
        middle = b.reduce(Op.ADD, b.load(x, j * 5 + k) * (inner + float(number)), j, k)
        b.store(out, number, b.reduce(Op.ADD, b.load(x, j * 5 + k) * middle, j, k))
    a, c = kernels.random(3, 5), kernels.random(5, seed=4)
    expected = np.array([a.sum() * a.sum() * (c.sum() + number) for number in range(copies)], np.float32)
    kernel = kernels.Kernel(b.sink("again"), [kernels.empty(copies), a, c], {0: expected})
    apart = separate(kernel.sink)
    assert sorted(sizes(apart)) == [3, 3, 5, 5, 5]
    nest_of(apart)
    check_kernel(kernel, apart)


def test_what_a_block_stores_to_scratch_memory_shares_the_loops_of_its_other_stores() -> None:
    b = kernels.Builder()
    out, scratch, x, w = b.param(0, 3 * 4096), b.param(1, 4096), b.param(2, 4096), b.param(3, 4096)
    block, i, j, k = b.range(3, AxisKind.PARALLEL), b.range(64), b.range(64), b.reduce_range(64)
    total = b.reduce(Op.ADD, b.load(x, i * 64 + k) * b.load(w, k * 64 + j), k)
    b.store(out, block * 4096 + i * 64 + j, total * 2.0)
    b.store(scratch, i * 64 + j, total)
    program = lower(b.sink("block"), AVX512, parallel=False)
    sums = [n for n in program.uops if n.op is Op.RANGE and n.arg.kind is AxisKind.REDUCE]
    assert len(sums) == 1  # the product is computed once, not once for each store


def test_all_that_wants_a_loop_at_one_place_gets_it_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    counts = []
    for rows in (2, 7):
        kernel = kernels.softmax(rows, 50, same_range=True)
        copies = unroll(apply(kernel.sink, (Opt(OptKind.UNROLL, 0, rows),), AVX512))
        looked: list[UOp] = []

        class Counted(Nest):
            def __init__(self, sink: UOp, like: Nest | None = None, seen: list[UOp] = looked) -> None:
                seen.append(sink)
                super().__init__(sink, like)

        monkeypatch.setattr(loops, "Nest", Counted)
        check_kernel(kernel, separate(copies))
        counts.append(len(looked))
    assert counts[0] == counts[1] > 1
