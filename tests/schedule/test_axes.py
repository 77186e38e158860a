"""Which loops of different nodes are the same."""

from __future__ import annotations

from gradlet.base.dtype import dtypes
from gradlet.graph.node import UOp, mk, toposort
from gradlet.ops.op import Op
from gradlet.schedule.axes import Axes
from tests.schedule.helpers import expand, matmul, permute, reshape, row, tensor, total


def axes_of(*roots: UOp) -> Axes:
    return Axes(toposort(roots))


def test_elementwise_operands_share_loops() -> None:
    a, b = tensor(4, 6), tensor(4, 6)
    axes = axes_of(a + b)
    assert axes.loops(a) == axes.loops(b) == axes.loops(a + b)
    assert [size for _, size in axes.loops(a)] == [4, 6]


def test_a_row_sum_read_along_the_row_has_the_same_rows() -> None:
    a = tensor(4, 6)
    s = total(a, 1, keep=True)
    axes = axes_of(a + row(s, 6))
    assert axes.loops(s.src[0]) == axes.axis(a, 0)


def test_reshape_splits_and_joins() -> None:
    a = tensor(4, 6) * 2.0
    split, joined = reshape(a, 4, 2, 3), reshape(a, 24)
    axes = axes_of(split, joined)
    assert [size for _, size in axes.axis(joined, 0)] == [4, 2, 3]
    assert axes.loops(split) == axes.axis(joined, 0) == axes.loops(a)


def test_sizes_that_do_not_divide_stay_apart() -> None:
    a = tensor(4, 6) * 2.0
    other = reshape(a, 3, 8)
    axes = axes_of(other)
    assert set(axes.loops(other)).isdisjoint(axes.loops(a))


def test_two_axes_of_a_node_are_never_one_loop() -> None:
    a = tensor(5, 5)
    node = a + permute(a, 1, 0)
    axes = axes_of(node)
    assert len({atom for atom, _ in axes.loops(node)}) == 2


def test_positions_that_pick_two_axes_are_a_loop_for_each() -> None:
    x, places = tensor(3, 4, 4), tensor(6, dtype=dtypes.int32)
    once = mk(Op.GATHER, x.dtype, (permute(x, 1, 0, 2), places), None)
    twice = mk(Op.GATHER, x.dtype, (permute(once, 2, 0, 1), places), None)
    axes = axes_of(twice)
    assert axes.axis(once, 0) == axes.axis(places, 0) == axes.axis(twice, 1)
    assert axes.axis(twice, 0) != axes.axis(twice, 1)


def test_summed_and_kept_loop_of_a_residual_matmul_differ() -> None:
    x = tensor(8, 8) * 2.0
    y = matmul(x, tensor(8, 8))
    node = x + y
    axes = axes_of(node)
    product = y.src[0]
    assert len({atom for atom, _ in axes.loops(product)}) == 3
    assert axes.loops(x) == axes.loops(y)


def test_expanded_axis_is_new() -> None:
    a = tensor(4, 1)
    wide = expand(a, 4, 3)
    axes = axes_of(wide)
    assert axes.axis(wide, 0) == axes.axis(a, 0) and axes.axis(a, 1) == ()
    assert [size for _, size in axes.axis(wide, 1)] == [3]
