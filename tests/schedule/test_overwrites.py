"""Chains of writes made shorter, and reads that go around a write: the same values, and less that has to wait."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from gradlet.base.dtype import dtypes
from gradlet.graph.evaluate import evaluate
from gradlet.graph.node import UOp, toposort
from gradlet.ops.op import Op
from gradlet.schedule import overwrites
from gradlet.schedule.boxes import Box, box_of, disjoint, whole
from gradlet.schedule.hazards import place_writes
from gradlet.schedule.moves import root_of
from gradlet.schedule.overwrites import read_around, scatter_of, shorten, written_box
from tests.schedule.helpers import (
    buffer,
    contents,
    expand,
    flip,
    gather,
    permute,
    reshape,
    scatter,
    shrink,
    stride,
    tensor,
    total,
    write,
)  # fmt: skip

NINE = UOp.const(dtypes.float32, 9)


def same_values(old: UOp, new: UOp) -> None:
    memory = contents([old, new])
    want, got = evaluate([old, new], memory)
    np.testing.assert_array_equal(got, want)


def writes_in(node: UOp) -> int:
    return sum(n.op is Op.WRITE for n in toposort((node,)))


# shorter chains
def test_reads_go_to_the_oldest_version_that_still_has_the_elements() -> None:
    t = tensor(6, 4)
    first = write(t, shrink(t, (4, 6), (0, 4)), NINE)
    second = write(first, shrink(first, (2, 4), (0, 4)), NINE)
    for low, high, count in ((0, 2, 0), (2, 4, 2), (4, 6, 1), (3, 5, 2)):
        old = shrink(second, (low, high), (0, 4)) * 2.0
        (new,) = shorten([old], [old])
        assert writes_in(new) == count
        same_values(old, new)


def test_rows_that_are_gathered_by_number_pass_by_too() -> None:
    position = UOp.variable("position", 0, 2)
    t = tensor(6, 4)
    later = write(t, shrink(t, (3, 6), (0, 4)), NINE)
    row = gather(later, reshape(position, 1))
    assert writes_in(shorten([row], [row])[0]) == 0
    anywhere = gather(later, buffer(1, dtypes.int32))
    assert shorten([anywhere], [anywhere]) == [anywhere]


def test_what_somebody_reads_is_not_left_out() -> None:
    t = tensor(6, 4)
    first = write(t, shrink(t, (2, 4), (0, 4)), NINE)
    second = write(first, shrink(first, (2, 5), (0, 4)), NINE)
    assert writes_in(shorten([second], [second])[0]) == 1
    assert [writes_in(n) for n in shorten([second, first], [second, first])] == [2, 1]
    seen = first * 2.0
    assert [writes_in(n) for n in shorten([second, seen], [second, seen])] == [2, 1]
    itself = write(first, shrink(first, (2, 4), (0, 4)), shrink(first, (2, 4), (0, 4)) + 1.0)
    assert writes_in(shorten([itself], [itself])[0]) == 2


def test_only_the_rows_of_a_scatter_are_written() -> None:
    position = UOp.variable("position", 0, 5)
    t = tensor(6, 4)
    turned = permute(t, 1, 0)
    columns = scatter(turned, reshape(UOp.variable("column", 0, 3), 1), tensor(1, 6))
    rows = scatter(t, reshape(position, 1), tensor(1, 4))
    memory = t.src[0]
    view = reshape(memory, 6, 4)
    assert scatter_of(write(memory, view, rows)) is rows
    assert written_box(write(memory, view, rows)).variables == ((position, 4),)
    assert scatter_of(write(memory, view, permute(columns, 1, 0))) is columns
    assert scatter_of(write(memory, view, flip(rows, 0))) is None
    assert written_box(write(memory, view, flip(rows, 0))) == whole(memory)


# reading around
@pytest.mark.parametrize(("low", "high"), [(0, 2), (2, 3), (4, 6), (0, 6)])
def test_reading_around_a_write(low: int, high: int) -> None:
    t = tensor(3, 6, 2)
    new = tensor(3, high - low, 2) if high - low < 6 else tensor(3, 6, 2)
    written = write(t, shrink(t, (0, 3), (low, high), (0, 2)), new)
    for operand in (written, shrink(written, (0, 3), (0, 3), (0, 2)), permute(written, 1, 0, 2)):
        around = read_around(operand)
        assert around is not None and writes_in(around) == 0
        same_values(operand, around)
        box = box_of(written.src[1], t)
        views = [s for n in toposort((around,)) if n.op is Op.WHERE for s in n.src if root_of(s) is t.src[0]]
        assert all(disjoint(box_of(v, t), box) for v in views)


def test_reading_around_other_boxes() -> None:
    t = tensor(4, 6)
    flat = t.src[0]
    for base, view in (
        (flat, shrink(reshape(flat, 4, 6), (0, 4), (2, 3))),
        (t, flip(shrink(t, (1, 2), (0, 6)), 1)),
        (t, shrink(permute(t, 1, 0), (2, 4), (0, 4))),
    ):
        written = write(base, view, expand(tensor(1, 1), *view.shape))
        around = read_around(reshape(written, 4, 6))
        assert around is not None
        same_values(reshape(written, 4, 6), around)
    assert read_around(write(t, shrink(t, (1, 2), (2, 3)), NINE)) is None
    assert read_around(write(t, stride(t, 2, 1), NINE)) is None
    assert read_around(t) is None


def test_who_reads_around_a_write_does_not_wait_for_it() -> None:
    cache, row, query = tensor(8, 4), tensor(1, 4), tensor(8, 4)
    appended = write(cache, shrink(cache, (5, 6), (0, 4)), row)
    around = read_around(shrink(appended, (0, 6), (0, 4)))
    assert around is not None

    def scores(keys: UOp) -> Any:
        return total(shrink(query, (0, 6), (0, 4)) * keys, 1)

    effects = place_writes([scores(around), appended])
    assert list(effects.before.values()) == [[]]
    waiting = place_writes([scores(shrink(appended, (0, 6), (0, 4))), appended])
    assert writes_in(waiting.roots[0]) == 1 and writes_in(effects.roots[0]) == 0


def test_long_chains_of_writes_are_compared_with_few(monkeypatch: pytest.MonkeyPatch) -> None:
    """The work of placing writes grows with their number, not with its square."""
    calls = 0

    def counting(first: Box, second: Box) -> bool:
        nonlocal calls
        calls += 1
        return disjoint(first, second)

    monkeypatch.setattr(overwrites, "disjoint", counting)
    asked: list[int] = []
    for count in (200, 400):
        calls = 0
        t = tensor(count, 4)
        reads = []
        for i in range(count):
            row = i * 7 % count
            reads.append(shrink(t, (row, row + 1), (0, 4)) * 2.0)
            t = write(t, shrink(t, (i, i + 1), (0, 4)), NINE)
        shorten([t, *reads], [t, *reads])
        asked.append(calls)
    assert asked[1] <= 2.5 * asked[0]
