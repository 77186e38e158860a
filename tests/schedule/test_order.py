"""Order of kernels."""

from __future__ import annotations

import pytest

from gradlet.base.errors import CompilerError
from gradlet.graph.node import UOp
from gradlet.schedule.order import dependences, execution_order
from gradlet.schedule.partition import Group
from tests.schedule.helpers import tensor, total, write
from tests.schedule.test_fuse import search_of


def test_readers_of_old_values_come_before_the_write() -> None:
    t = tensor(64, 64)
    reader = total(t, 0, 1)
    writer = write(t, t, t * 2.0)
    search = search_of([writer, reader])
    groups = [Group([n], [n]) for n in search.steps.order]
    ops = {g.outputs[0]: i for i, g in enumerate(groups)}
    (overwriting,) = search.steps.versions
    assert ops[reader] in dependences(groups, search.steps)[ops[overwriting]]
    ordered = [g.outputs[0] for g in execution_order(groups, search.steps)]
    assert ordered.index(reader) < ordered.index(overwriting)


def test_small_results_first_then_what_frees_memory() -> None:
    x = tensor(256, 256)
    large = x.exp()
    small = total(tensor(256, 256), 1)
    roots = [total(large, 1), small]
    search = search_of(roots)
    groups = [Group([n], [n]) for n in search.steps.order]
    ordered: list[UOp] = [g.outputs[0] for g in execution_order(groups, search.steps)]
    assert ordered == [small, large, roots[0]]


def test_kernels_that_wait_for_each_other_are_an_error() -> None:
    a = tensor(4) + 1
    b = total(a, 0)
    search = search_of([b])
    search.steps.reads[a].append((b, b))
    with pytest.raises(CompilerError, match="wait for each other"):
        execution_order([Group([a], [a]), Group([b], [b])], search.steps)
