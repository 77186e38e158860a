"""Boxes against sets of addresses that are written out."""

from __future__ import annotations

import random
from itertools import product

import numpy as np
import pytest

from gradlet.base.dtype import dtypes
from gradlet.graph.evaluate import evaluate
from gradlet.graph.node import UOp, mk
from gradlet.ops.op import AxisKind, Op, RangeArg
from gradlet.schedule.boxes import (
    EMPTY,
    Box,
    box_of,
    box_of_address,
    covers,
    disjoint,
    layout_of,
    make_box,
    row_box,
    same,
    scalar_index,
    whole,
)  # fmt: skip
from tests.schedule.helpers import buffer, expand, flip, pad, permute, reshape, shrink, stride, tensor, window


def addresses(box: Box) -> set[int]:
    """Every address, of a box without variables."""
    sets = [range(0, step * size, step) for step, size in box.terms]
    return {box.start + sum(parts) for parts in product(*sets)}


def shown(view: UOp, memory: UOp) -> np.ndarray:
    return evaluate([view], {memory: np.arange(memory.arg.size, dtype=np.int32)})[0]


def random_view(rng: random.Random, node: UOp) -> UOp:
    for _ in range(rng.randint(0, 4)):
        kind = rng.choice(["shrink", "permute", "flip", "stride", "reshape", "expand", "window"])
        shape = node.shape
        if kind == "shrink":
            lows = [rng.randrange(s) for s in shape]
            node = shrink(node, *[(low, rng.randint(low + 1, s)) for low, s in zip(lows, shape)])
        elif kind == "permute":
            node = permute(node, *rng.sample(range(len(shape)), len(shape)))
        elif kind == "flip":
            node = flip(node, rng.randrange(len(shape)))
        elif kind == "stride":
            node = stride(node, *[rng.randint(1, 2) for _ in shape])
        elif kind == "reshape":
            count = int(np.prod(shape))
            first = rng.choice([d for d in range(1, count + 1) if count % d == 0])
            rest = count // first
            second = rng.choice([d for d in range(1, rest + 1) if rest % d == 0])
            node = reshape(node, first, second, rest // second)
        elif kind == "expand":
            node = expand(reshape(node, 1, *shape), 2, *shape)
            node = reshape(node, 2 * shape[0], *shape[1:])
        elif kind == "window" and shape[0] > 1 and shape[0] < 9:
            node = window(expand(reshape(node, *shape, 1), *shape, 2), 0, len(shape), 1, 1, shape[0] - 1)
            node = reshape(node, *node.shape[:-2], node.shape[-2] * 2)
    return node


def test_random_views_show_what_their_box_says() -> None:
    rng = random.Random(0)
    affine = 0
    for _ in range(300):
        start = rng.choice([(24,), (4, 6), (2, 3, 4), (8, 2)])
        base = tensor(*start)
        memory = base if base.op is Op.BUFFER else base.src[0]
        view = random_view(rng, base)
        box = box_of(view, memory)
        want = set(shown(view, memory).reshape(-1).tolist())
        if box.exact:
            affine += 1
            layout = layout_of(view, memory)
            assert layout is not None and layout.shape == view.shape
            assert addresses(box) == want
        else:
            assert addresses(box) >= want
    assert affine > 150


def random_box(rng: random.Random) -> Box:
    terms = [(rng.choice([1, 1, 2, 3, 4, 6, 8, 12, 24, -1, -6]), rng.randint(1, 4)) for _ in range(rng.randint(0, 3))]
    return make_box(rng.randint(0, 40), terms)


def test_relations_of_random_boxes_are_never_wrong() -> None:
    rng = random.Random(1)
    proved = {"disjoint": 0, "covers": 0}
    possible = {"disjoint": 0, "covers": 0}
    for _ in range(6000):
        a, b = random_box(rng), random_box(rng)
        first, second = addresses(a), addresses(b)
        possible["disjoint"] += first.isdisjoint(second)
        possible["covers"] += first >= second
        if disjoint(a, b):
            proved["disjoint"] += 1
            assert first.isdisjoint(second), (a, b)
        if covers(a, b):
            proved["covers"] += 1
            assert first >= second, (a, b)
    assert proved["disjoint"] > 0.9 * possible["disjoint"] and proved["covers"] > 0.5 * possible["covers"]


def test_boxes_of_one_tensor_are_told_apart_on_every_axis() -> None:
    """Rectangles that views of one array show: exactly those that share no element are disjoint."""
    rng = random.Random(2)
    base = tensor(4, 5, 6)
    memory = base.src[0]
    views = []
    for _ in range(60):
        lows = [rng.randrange(s) for s in base.shape]
        views.append(shrink(base, *[(low, rng.randint(low + 1, s)) for low, s in zip(lows, base.shape)]))
    boxes = [box_of(v, memory) for v in views]
    sets = [set(shown(v, memory).reshape(-1).tolist()) for v in views]
    for a, first in zip(boxes, sets):
        for b, second in zip(boxes, sets):
            assert disjoint(a, b) == first.isdisjoint(second)
            assert covers(a, b) == (first >= second)


@pytest.mark.parametrize("axis", [0, 1])
def test_even_and_odd(axis: int) -> None:
    base = tensor(6, 6)
    memory = base.src[0]
    steps = [2 if a == axis else 1 for a in range(2)]
    odd = [(1, 6) if a == axis else (0, 6) for a in range(2)]
    even = box_of(stride(base, *steps), memory)
    assert disjoint(even, box_of(stride(shrink(base, *odd), *steps), memory))
    assert not disjoint(even, box_of(shrink(base, (2, 3), (2, 3)), memory))


def test_the_same_elements_in_another_order() -> None:
    base = tensor(4, 6)
    memory = base.src[0]
    assert same(box_of(permute(flip(base, 0), 1, 0), memory), whole(memory))


def test_nothing_meets_nothing_and_padding_adds_no_memory() -> None:
    base = tensor(4, 6)
    memory = base.src[0]
    empty = box_of(shrink(base, (2, 2), (0, 6)), memory)
    assert empty == EMPTY and disjoint(empty, whole(memory)) and covers(empty, empty)
    padded = box_of(pad(shrink(base, (0, 2), (0, 6)), (0, 2), (0, 0)), memory)
    assert not padded.exact and disjoint(padded, box_of(shrink(base, (2, 4), (0, 6)), memory))


# variables
def test_rows_at_a_variable_position() -> None:
    position = UOp.variable("position", 4, 9)
    base = tensor(3, 10, 2)
    memory = base.src[0]
    table = permute(base, 1, 0, 2)
    index = reshape(position.cast(dtypes.int32), 1)
    row = row_box(table, index, memory)
    assert row.variables == ((position, 2),) and row.exact
    assert disjoint(row, box_of(shrink(base, (0, 3), (0, 4), (0, 2)), memory))
    assert not disjoint(row, box_of(shrink(base, (0, 3), (0, 5), (0, 2)), memory))
    after = row_box(table, reshape((position + (-1)).cast(dtypes.int32), 1), memory)
    assert disjoint(row, after) and not disjoint(row, row) and covers(row, row)
    other = UOp.variable("other", 4, 9)
    assert not disjoint(row, row_box(table, reshape(other.cast(dtypes.int32), 1), memory))


def test_a_row_number_that_may_leave_the_table_is_no_box() -> None:
    base = tensor(10, 2)
    memory = base.src[0]
    far = UOp.variable("far", 4, 10)
    assert not row_box(base, reshape(far.cast(dtypes.int32), 1), memory).exact
    assert not row_box(base, buffer(1, dtypes.int32), memory).exact


def test_numbers_that_may_wrap_are_not_taken_apart() -> None:
    position = UOp.variable("position", 0, 300)
    assert scalar_index(reshape(position.cast(dtypes.uint8), 1)) is None
    small = UOp.variable("small", 0, 200).cast(dtypes.uint8)
    assert scalar_index(small + UOp.const(dtypes.uint8, 100)) is None
    assert scalar_index(small + UOp.const(dtypes.uint8, 10)) is not None


# kernels
def test_addresses_of_a_kernel() -> None:
    def loop(number: int, size: int) -> UOp:
        return mk(Op.RANGE, dtypes.index, (UOp.const(dtypes.index, size),), RangeArg(number, AxisKind.LOOP))

    i, j = loop(0, 4), loop(1, 3)
    left, right = box_of_address(i * 6 + j), box_of_address(i * 6 + j + 3)
    assert disjoint(left, right) and not disjoint(left, box_of_address(i * 6 + j + 2))
    assert covers(whole(buffer(24)), left)
    assert disjoint(box_of_address((i // 2) * 2), box_of_address(i * 2 + 1))
