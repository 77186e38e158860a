"""Along which loops a read, or a write in place, stays where the same iteration was."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from gradlet.base.dtype import dtypes
from gradlet.graph.node import UOp, mk, toposort
from gradlet.ops.op import GatherArg, Op, ScatterArg
from gradlet.schedule.alignment import aligned_atoms, overwritten_atoms
from gradlet.schedule.axes import Axes
from gradlet.schedule.moves import root_of
from tests.schedule.helpers import (
    contiguous,
    expand,
    flip,
    gather,
    pad,
    permute,
    reshape,
    scatter,
    shrink,
    stride,
    tensor,
    total,
    window,
    write,
)


def aligned_sizes(step: UOp, operand: int = 0, others: Sequence[UOp] = ()) -> list[int]:
    """The sizes of the aligned loops between a step and one of its operands."""
    axes = Axes(toposort((step, *others)))
    node = step.src[operand]
    source = root_of(node)
    sizes = dict(axes.loops(source))
    return sorted(sizes[a] for a in aligned_atoms(node, source, step, axes))


def made(*shape: int) -> UOp:
    return contiguous(tensor(*shape) * 2)


def test_element_by_element_all_loops_are_aligned() -> None:
    assert aligned_sizes(made(6, 10) + 1) == [6, 10]


def test_a_transposed_read_keeps_both_loops() -> None:
    assert aligned_sizes(permute(made(6, 10), 1, 0) + 1) == [6, 10]


def test_a_square_read_in_both_orders_is_not_aligned_where_they_differ() -> None:
    x = made(6, 6)
    both = x + permute(x, 1, 0)
    axes = Axes(toposort((both,)))
    straight, turned = (aligned_atoms(operand, x, both, axes) for operand in both.src)
    assert len(straight) == 2 and turned == frozenset()


@pytest.mark.parametrize(
    "view",
    [
        lambda x: flip(x, 1),
        lambda x: shrink(x, (0, 6), (1, 9)),
        lambda x: pad(x, (0, 0), (1, 1)),
        lambda x: stride(x, 1, 2),
        lambda x: window(expand(reshape(x, 6, 10, 1), 6, 10, 3), 1, 2, 1, 1, 8),
    ],
)
def test_an_axis_that_is_moved_over_is_not_aligned_but_the_others_are(view: object) -> None:
    assert callable(view)
    assert aligned_sizes(view(made(6, 10)) + 1) == [6]


def test_a_flip_is_not_aligned_even_where_another_read_makes_its_loop_the_same() -> None:
    x = made(6, 10)
    both = x + flip(x, 0)
    axes = Axes(toposort((both,)))
    assert [len(aligned_atoms(o, x, both, axes)) for o in both.src] == [2, 1]


def test_a_repeated_read_has_only_the_loops_of_its_operand() -> None:
    assert aligned_sizes(expand(made(6, 1), 6, 10) + 1) == [6]


def test_a_reshape_deals_out_the_loops() -> None:
    assert aligned_sizes(reshape(made(6, 10), 60) + 1) == [6, 10]
    # The source is known by the parts of its loops then.
    assert aligned_sizes(reshape(made(6, 10), 2, 30) + 1) == [2, 3, 10]
    # Sizes that do not divide have loops of their own.
    assert aligned_sizes(reshape(made(6, 10), 4, 15) + 1) == []


def test_a_reshape_above_a_flip_keeps_the_other_axis() -> None:
    assert aligned_sizes(reshape(flip(made(6, 10), 1), 60) + 1) == [6]
    assert aligned_sizes(flip(reshape(made(6, 10), 60), 0) + 1) == []


def test_a_reduced_loop_is_aligned_only_inside() -> None:
    sums = total(made(6, 10), 1)
    assert aligned_sizes(sums) == [6, 10]  # whoever asks keeps the loops of the result only


def test_a_gather_is_aligned_along_the_columns_of_its_table() -> None:
    index = tensor(5, dtype=dtypes.int32)
    assert aligned_sizes(gather(made(6, 10), index)) == [10]
    rows = mk(Op.GATHER, dtypes.float32, (made(6, 10), tensor(6, 3, dtype=dtypes.int32)), GatherArg(1))
    assert aligned_sizes(rows) == [6]


def test_a_flipped_write_is_read_out_of_step() -> None:
    base, value = tensor(8, 6), made(8, 6)
    together = base + value  # makes the loops of both the same
    view = flip(shrink(base, (0, 8), (0, 3)), 0)
    written = write(base, view, shrink(value, (0, 8), (0, 3)))
    assert aligned_sizes(written + 1, others=[together]) == []


def test_a_straight_write_is_read_in_step_along_the_axes_that_it_covers() -> None:
    base, value = tensor(8, 6), made(8, 6)
    written = write(base, shrink(base, (0, 8), (0, 3)), shrink(value, (0, 8), (0, 3)))
    assert aligned_sizes(written + 1, others=[base + value]) == [8]


def test_overwriting_is_in_step_along_the_axes_that_are_covered() -> None:
    first = made(8, 6)
    value = tensor(8, 3)
    straight = write(first, shrink(first, (0, 8), (0, 3)), value)
    axes = Axes(toposort((straight,)))
    sizes = dict(axes.loops(first))
    assert [sizes[a] for a in overwritten_atoms(straight.src[1], first, straight, axes)] == [8]
    shifted = write(first, shrink(first, (1, 8), (0, 6)), tensor(7, 6))
    axes = Axes(toposort((shifted,)))
    sizes = dict(axes.loops(first))
    assert [sizes[a] for a in overwritten_atoms(shifted.src[1], first, shifted, axes)] == [6]


def test_a_scatter_overwrites_any_row() -> None:
    first = made(8, 6)
    step = scatter(first, tensor(5, dtype=dtypes.int32), tensor(5, 6), Op.ADD)
    axes = Axes(toposort((step,)))
    sizes = dict(axes.loops(first))
    assert [sizes[a] for a in overwritten_atoms(step.src[0], first, step, axes)] == [6]


def test_positions_of_a_scatter_are_loops_of_its_own() -> None:
    index = contiguous(tensor(6, dtype=dtypes.int32) * 2)
    step = mk(
        Op.SCATTER, dtypes.float32,
        (made(6, 6), expand(reshape(index, 1, 6), 6, 6), permute(made(6, 6), 1, 0)), ScatterArg(Op.ADD, 1),
    )  # fmt: skip
    assert aligned_sizes(step, 1) == []
