"""Ordered loops whose guards many lanes look at together: which are cut, and that every row is added in its order."""

from __future__ import annotations

import numpy as np
import pytest

from gradlet import Tensor
from gradlet.codegen.pipeline import lower
from gradlet.graph.evaluate_lanes import run_lanes
from gradlet.graph.program import LinearProgram
from gradlet.ops.op import Op
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
