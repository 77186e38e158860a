"""Regions: which kernels may run block by block, along which loops, and what stays in scratch memory."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from math import prod

import pytest

from gradlet.base.dtype import dtypes
from gradlet.base.settings import Context
from gradlet.graph.node import UOp, mk
from gradlet.ops.op import Op
from gradlet.schedule import regions
from gradlet.schedule.create import create_schedule
from gradlet.schedule.fuse import Kernel, Search
from gradlet.schedule.launches import LaunchSearch, partition
from gradlet.schedule.partition import Cut, Region
from gradlet.schedule.regions import Planner, Value, candidates, divisors, peak
from gradlet.target.target import AVX2, Target
from tests.schedule.helpers import (
    check,
    contents,
    contiguous,
    flip,
    matmul,
    permute,
    reduce,
    row,
    run,
    scatter,
    shrink,
    target_of,
    tensor,
    total,
    write,
)
from tests.schedule.test_repeats import steps_of


def unmerged(roots: Sequence[UOp], target: Target = AVX2) -> LaunchSearch:
    """A kernel a cell."""
    return LaunchSearch(Search(steps_of(list(roots)), lambda device: target))


def kernels_of(search: LaunchSearch) -> list[Kernel]:
    return search.ordered([draft.main[0] for draft in search.drafts.values()])


def shared_sizes(*roots: UOp) -> list[int]:
    """The sizes of the loops along which all kernels of a graph, one a cell, may be cut."""
    search = unmerged(roots)
    kernels = kernels_of(search)
    sizes = {a: s for k in kernels for c in k.cells for a, s in c.loops.items()}
    return sorted(sizes[a] for a in search.planner(kernels[0]).shared(kernels))


def made(*shape: int) -> UOp:
    return contiguous(tensor(*shape) * 2)


# which loops
def test_all_loops_of_element_wise_work() -> None:
    assert shared_sizes(made(6, 10).exp()) == [6, 10]


def test_rows_of_a_product() -> None:
    assert shared_sizes(matmul(made(6, 10), tensor(10, 4))) == [6]


def test_rows_of_a_softmax_over_a_product() -> None:
    x = matmul(tensor(6, 10), tensor(10, 4))
    powers = (x - row(reduce(x, Op.MAX, 1, keep=True), 4)).exp()
    assert shared_sizes(powers.fdiv(row(total(powers, 1, keep=True), 4))) == [6]


def test_a_product_with_both_factors_made_has_none() -> None:
    x = made(6, 6)
    assert shared_sizes(matmul(x, x)) == []


def test_positions_that_pick_two_axes_are_a_loop_for_each() -> None:
    x, places = tensor(3, 4, 4), tensor(6, dtype=dtypes.int32)
    rows = mk(Op.GATHER, x.dtype, (permute(x, 1, 0, 2), places), None)
    both = mk(Op.GATHER, x.dtype, (permute(contiguous(rows * 2), 2, 0, 1), places), None)
    assert shared_sizes(contiguous(both * 3)) == [3, 6]


def test_only_the_axis_that_a_view_leaves_alone() -> None:
    assert shared_sizes(contiguous(flip(made(6, 10), 1))) == [6]
    assert shared_sizes(contiguous(shrink(made(6, 10), (1, 5), (0, 10)))) == [10]
    assert shared_sizes(contiguous(permute(made(6, 10), 1, 0))) == [6, 10]


def test_two_views_of_one_value_have_to_agree() -> None:
    x = made(6, 6)
    assert shared_sizes(contiguous(x + permute(x, 1, 0))) == []
    y = made(6, 10)
    assert shared_sizes(contiguous(y + flip(y, 0))) == [10]


def test_no_block_writes_over_what_another_one_reads() -> None:
    x = tensor(6, 10)
    old = contiguous(flip(x, 0) * 2)
    assert shared_sizes(old, write(x, x, tensor(6, 10) + 1)) == []


def test_writes_over_each_other_stay_in_order_inside_a_block() -> None:
    base = tensor(8, 6)
    first = contiguous(tensor(7, 6) * 2)
    second = contiguous(first.sin())
    once = write(base, shrink(base, (1, 8), (0, 6)), first)
    assert shared_sizes(write(once, shrink(once, (0, 7), (0, 6)), second)) == [6]
    first, value = made(8, 6), tensor(8, 3)
    straight = write(first, shrink(first, (0, 8), (0, 3)), contiguous(value.exp()))
    assert shared_sizes(straight) == [8]
    turned = write(first, flip(shrink(first, (0, 8), (0, 3)), 0), contiguous(value.exp()))
    assert shared_sizes(turned) == []


# what stays in scratch memory
def plan_of(search: LaunchSearch) -> tuple[Planner, list[Kernel], dict[UOp, Value]]:
    kernels = kernels_of(search)
    return search.planner(kernels[0]), kernels, search.values(kernels)


def test_what_nobody_else_needs_is_scratch() -> None:
    h = matmul(tensor(512, 64), tensor(64, 64)).maximum(0)
    y = matmul(h, tensor(64, 64))
    search = unmerged([y])
    planner, kernels, values = plan_of(search)
    plan = planner.plan(kernels, values)
    assert plan is not None and plan.blocks is not None
    assert list(plan.scratch) == [c.root for c in kernels[0].stored]
    asked = unmerged([y, h])
    planner, kernels, values = plan_of(asked)
    plan = planner.plan(kernels, values)
    assert plan is not None and plan.scratch == {}


def test_blocks_are_made_small_enough_for_scratch_memory() -> None:
    h = matmul(tensor(512, 64), tensor(64, 64)).maximum(0)
    bytes_of_row = 64 * 4
    for rows in (4, 32):
        search = unmerged([matmul(h, tensor(64, 64))], replace(AVX2, scratch_bytes=rows * bytes_of_row))
        planner, kernels, values = plan_of(search)
        plan = planner.plan(kernels, values)
        assert plan is not None and plan.blocks is not None
        (cut,) = plan.blocks.cuts
        assert cut.inner <= rows and cut.outer * cut.inner == 512
    search = unmerged([matmul(h, tensor(64, 64))], replace(AVX2, scratch_bytes=bytes_of_row - 1))
    assert planner_of(search) is None


def planner_of(search: LaunchSearch) -> object:
    planner, kernels, values = plan_of(search)
    return planner.plan(kernels, values)


def test_vectors_keep_their_loop() -> None:
    # Of what lies in one piece a block keeps a page: rows of 4096 are not cut in more than 4, 6 rows are.
    search = unmerged([made(6, 4096).exp()])
    planner, kernels, values = plan_of(search)
    plan = planner.plan(kernels, values)
    assert plan is not None and plan.blocks is not None
    assert all(c.inner >= 1024 for c in plan.blocks.cuts if c.outer * c.inner == 4096)
    assert plan.blocks.count % 2 == 0 and any(c.outer * c.inner == 6 for c in plan.blocks.cuts)
    assert planner_of(unmerged([made(17 * 1021).exp()])) is None
    assert planner_of(unmerged([made(16 * 1024).exp()])) is not None
    assert planner_of(unmerged([made(17 * 7).exp()])) is not None  # small


def test_ways_to_cut() -> None:
    assert divisors(12) == (2, 3, 4, 6, 12)
    assert divisors(7) == (7,) and divisors(1) == ()
    assert divisors(1 << 13)[-1] == 1 << 13
    found = candidates([(0, 4), (1, 6)], 4 * regions.ENOUGH_BLOCKS)
    assert found[0] == (Cut(0, 2, 2),) and (Cut(0, 4, 1), Cut(1, 3, 2)) in found
    assert all(prod(c.outer for c in cuts) >= 2 for cuts in found)
    assert all(prod(c.outer for c in cuts) <= 4 * regions.ENOUGH_BLOCKS for cuts in found)
    assert candidates([], 4) == []


def test_values_that_live_together_add_up() -> None:
    def value(size: int, first: int, last: int) -> Value:
        return Value(tensor(size), size, first, last, 1, False)

    assert peak([value(5, 0, 1), value(7, 1, 2), value(1, 2, 3)], 4) == 12
    assert peak([], 4) == 0


# as a whole
def regions_of(roots: Sequence[UOp], target: Callable[[str], Target] = target_of) -> list[Region]:
    found = partition(steps_of(list(roots)), target)
    return [r for launch in found for stage in launch.stages for r in stage if r.blocks is not None]


def test_two_products_and_what_is_between_are_one_region_of_three_bodies() -> None:
    q, k, v = tensor(512, 64), tensor(512, 64), tensor(512, 64)
    scores = matmul(q, permute(k, 1, 0)) * 0.125
    powers = (scores - row(reduce(scores, Op.MAX, 1, keep=True), 512)).exp2()  # with `exp` all is one kernel
    out = matmul(powers.fdiv(row(total(powers, 1, keep=True), 512)), v)
    (found,) = regions_of([out])
    assert found.blocks is not None and [c.outer * c.inner for c in found.blocks.cuts] == [512]
    assert len(found.bodies) == 3


@pytest.mark.parametrize("kind", ["versions", "scatter"])
def test_regions_over_writes_are_right(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever is merged as a region, by force: the values are those of the graph."""
    ways = LaunchSearch.ways
    monkeypatch.setattr(regions, "MIN_LANES", 1)
    monkeypatch.setattr(Search, "merge_all", lambda self: self.heap.clear())
    monkeypatch.setattr(LaunchSearch, "pays", lambda self, gain: True)
    monkeypatch.setattr(LaunchSearch, "ways", lambda self, a, b: {"region": ways(self, a, b)["region"]})
    with Context(SCHEDULE_CACHE=0):
        if kind == "versions":
            base = tensor(8, 6)
            first = contiguous(tensor(7, 6) * 2)
            once = write(base, shrink(base, (1, 8), (0, 6)), first)
            check([write(once, shrink(once, (0, 7), (0, 6)), contiguous(first.sin()))])
        else:
            x = tensor(8, 6)
            index = tensor(8, dtype=dtypes.int32)
            check([scatter(contiguous(x * 2), index, contiguous(flip(x, 1).sin()), Op.ADD) + 1])


def test_scratch_values_have_no_memory() -> None:
    h = matmul(tensor(512, 64), tensor(64, 64)).maximum(0)
    root = matmul(h, tensor(64, 64))
    schedule = create_schedule([root], target_of)
    (call,) = schedule.calls
    assert call.ast.arg.scratch and len(call.buffers) == 4
    run(schedule, contents([root]))
