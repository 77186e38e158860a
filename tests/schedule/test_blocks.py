"""Blocks of a region: how loops are cut, and where the elements of a block lie in scratch memory."""

from __future__ import annotations

import random
from math import prod

import numpy as np
import pytest

from gradlet.base.dtype import dtypes
from gradlet.graph.evaluate import evaluate
from gradlet.graph.node import UOp
from gradlet.schedule.axes import Axes
from gradlet.schedule.blocks import Frame, block_elements, cut_loops, cut_nest, scratch_view
from gradlet.schedule.partition import Blocks, Cut
from tests.schedule.helpers import buffer, tensor


def dims_of(node: UOp) -> tuple[Axes, list[tuple[int, int]]]:
    axes = Axes(node.toposort())
    return axes, list(axes.loops(node))


def test_a_cut_loop_is_two_loops() -> None:
    blocks = Blocks((Cut(1, 4, 2), Cut(2, 3, 1), Cut(3, 1, 5)))
    assert blocks.count == 12
    nest = cut_nest([(0, 7), (1, 8), (2, 3), (3, 5)], blocks)
    assert nest == [(0, 7), ((1, "block"), 4), ((1, "rest"), 2), ((2, "block"), 3), ((3, "rest"), 5)]
    assert Frame(blocks).loops() == [((1, "block"), 4), ((2, "block"), 3), ((3, "block"), 1)]


def test_an_axis_is_cut_where_its_loops_are() -> None:
    x = tensor(8, 6)
    axes, ((rows, _), (columns, _)) = dims_of(x)
    loops = cut_loops(axes.axis, Blocks((Cut(columns, 3, 2),)))
    assert loops(x, 0) == ((rows, 8),)
    assert loops(x, 1) == (((columns, "block"), 3), ((columns, "rest"), 2))


@pytest.mark.parametrize("seed", range(40))
def test_every_block_has_its_elements_together(seed: int) -> None:
    chance = random.Random(seed)
    node = tensor(*[chance.choice((1, 2, 3, 4, 6)) for _ in range(chance.randint(1, 4))])
    axes, loops = dims_of(node)
    cuts = []
    for atom, size in chance.sample(loops, chance.randint(0, len(loops))):
        outer = chance.choice([d for d in range(1, size + 1) if size % d == 0])
        cuts.append(Cut(atom, outer, size // outer))
    blocks = Blocks(tuple(cuts))
    memory = buffer(prod(node.shape), dtypes.int32)
    view = scratch_view(node, memory, axes.axis, blocks)
    (places,) = evaluate([view], {memory: np.arange(prod(node.shape), dtype=np.int32)})
    assert places.shape == node.shape and sorted(places.ravel()) == list(range(prod(node.shape)))
    # The number of an element's block, from its place in the node.
    found = {cut.atom: cut for cut in cuts}
    number = np.zeros(node.shape, np.int64)
    for cut in cuts:
        axis = next(k for k in range(len(node.shape)) if any(a == cut.atom for a, _ in axes.axis(node, k)))
        where = np.arange(node.shape[axis]) // found[cut.atom].inner
        number = number * cut.outer + where.reshape([-1 if k == axis else 1 for k in range(len(node.shape))])
    size = block_elements(node, blocks)
    assert size * blocks.count == prod(node.shape)
    assert (places // size == number).all()
