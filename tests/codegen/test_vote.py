"""Ordered loops whose guards many lanes look at together: which are cut, and that every row is added in its order."""

from __future__ import annotations

import numpy as np
import pytest

from gradlet import Tensor
from gradlet.codegen import vote
from gradlet.codegen.pipeline import lower
from gradlet.graph.evaluate_lanes import run_lanes
from gradlet.graph.node import UOp
from gradlet.graph.program import LinearProgram
from gradlet.ops.op import AxisKind, Op
from gradlet.render.cuda import render
from gradlet.schedule.calls import KernelCall
from gradlet.target.target import SM_90

D = "NULL:sm_90"


def rows_added(table: int, width: int, *counts: int) -> LinearProgram:
    """The kernel that adds rows up for each entry of a table."""
    weights = Tensor.empty(table, width, device=D)
    taken = weights[Tensor.empty(*counts, device=D, dtype="int32")]
    (gradient,) = (taken * Tensor.empty(*taken.shape, device=D)).sum().gradient(weights)
    calls = [c for c in gradient.schedule().calls if isinstance(c, KernelCall) and c.ast.arg.name.startswith("s_")]
    return lower(calls[-1].ast, SM_90)


def guards(program: LinearProgram) -> list[int]:
    return [len(n.src) - 1 for n in program.uops if n.op is Op.RANGE and len(n.src) > 1]


@pytest.mark.parametrize(
    ("table", "width", "counts"),
    [(8, 64, (640,)), (5, 32, (300,)), (8, 96, (2, 257)), (3, 64, (3, 2, 256)), (16, 128, (1000,))],
)
def test_rows_are_added_in_their_order(table: int, width: int, counts: tuple[int, ...]) -> None:
    program = rows_added(table, width, *counts)
    assert guards(program) == [8]
    rng = np.random.default_rng(1)
    numbers = rng.integers(-table - 2, table + 2, counts).astype(np.int32)  # some are no rows
    values = rng.standard_normal((*counts, width)).astype(np.float32)
    arrays: list[np.ndarray] = []
    for param in program.params:
        fitting = {table * width: np.zeros((table, width), np.float32), numbers.size: numbers, values.size: values}
        arrays.append(fitting[param.arg.size])
    run_lanes(program, arrays)
    expected = np.zeros((table, width), np.float32)
    for number, row in zip(numbers.reshape(-1), values.reshape(-1, width), strict=True):
        if -table <= number < table:
            expected[number] += row
    np.testing.assert_array_equal(arrays[program.written[0]], expected)


@pytest.mark.parametrize(
    ("table", "width", "count"),
    [(50304, 768, 128), (100000, 3, 4096)],  # too few positions; lanes that have rows of their own
)
def test_other_loops_stay(table: int, width: int, count: int) -> None:
    assert guards(rows_added(table, width, count)) == []


def test_code_votes_before_it_adds() -> None:
    code = render(rows_added(50304, 768, 16384), SM_90).split("__global__")[-1]
    assert code.count("lanes_where(") == 8 and code.count("lowest(") == 1
    assert code.index("lanes_where(") < code.index("lowest(") < code.index("p0[")


def test_a_second_loop_computes_what_the_first_one_had(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a loop computes is gone when it ends: every node finds its sources before it, in a loop that is open."""
    given: list[tuple[list[UOp], int]] = []
    monkeypatch.setattr(vote, "find_by_vote", lambda uops, threads: given.append((list(uops), threads)) or tuple(uops))
    rows_added(8, 64, 640)
    uops, threads = given[-1]
    begin = next(i for i, n in enumerate(uops) if n.op is Op.RANGE and n.arg.kind is AxisKind.ORDERED)
    end = next(i for i, n in enumerate(uops) if n.op is Op.END and n.src[0] is uops[begin])
    again = uops[begin].replace(arg=uops[begin].arg._replace(number=50))
    new, second = {uops[begin]: again}, [again]
    for node in uops[begin + 1 : end + 1]:
        new[node] = node.replace(src=tuple([new.get(s, s) for s in node.src]))
        second.append(new[node])
    monkeypatch.undo()
    result = vote.find_by_vote([*uops[: end + 1], *second, *uops[end + 1 :]], threads)
    assert sum(n.op is Op.RANGE and len(n.src) > 1 for n in result) == 2
    scopes: list[set[UOp]] = [set()]
    for node in result:
        missing = [s for s in node.src if not any(s in scope for scope in scopes)]
        assert not missing, (node.op, missing)
        if node.op is Op.END:
            scopes.pop()
            continue
        if node.op is Op.RANGE:
            scopes.append(set())
        scopes[-1].add(node)
