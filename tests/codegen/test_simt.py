"""Programs of lanes: digits of the lane's number, combined parts, barriers."""

from __future__ import annotations

import re

import pytest

from gradlet import Tensor
from gradlet.codegen.pipeline import lower
from gradlet.graph.node import UOp
from gradlet.graph.program import LinearProgram
from gradlet.ops.op import AcrossArg, AxisKind, KernelArg, Op
from gradlet.ops.opt import Opt, OptKind, Tail
from gradlet.optimize.actions import language as actions
from gradlet.target.target import SM_90

D = "NULL:sm_90"


def kernel(value: Tensor) -> UOp:
    return value.schedule().calls[0].ast  # type: ignore[no-any-return]


def program(value: Tensor, *opts: Opt) -> LinearProgram:
    ast = kernel(value)
    return lower(ast.replace(arg=KernelArg(ast.arg.name, opts)) if opts else ast, SM_90)


def across(found: LinearProgram) -> list[AcrossArg]:
    return [n.arg for n in found.uops if n.op is Op.ACROSS]


def test_lanes_of_a_row_have_the_last_digits_and_rows_the_first() -> None:
    found = program(
        Tensor.empty(64, 512, device=D).sum(1),
        Opt(OptKind.THREAD, 1, 16), Opt(OptKind.THREAD, 0, 8), Opt(OptKind.PARALLEL, 0, 0),
    )  # fmt: skip
    assert across(found) == [AcrossArg(Op.ADD, 16, 1)]
    assert (found.grid, found.threads, found.lanes) == (8, 128, ((16, 8),))
    assert not [n for n in found.uops if n.op is Op.RANGE and n.arg.kind is AxisKind.THREAD]


def test_columns_stay_neighbours_where_memory_lies_along_them() -> None:
    found = program(
        Tensor.empty(64, 512, device=D).sum(0),
        Opt(OptKind.THREAD, 0, 32), Opt(OptKind.THREAD, 1, 8), Opt(OptKind.PARALLEL, 0, 0),
    )  # fmt: skip
    assert across(found) == [AcrossArg(Op.ADD, 8, 32)]
    assert (found.threads, found.lanes) == (256, ((1, 32),))


def test_whole_warps_take_part() -> None:
    found = program(Tensor.empty(3, 8, device=D).sum(1), Opt(OptKind.THREAD, 1, 8))
    assert found.threads == 32 and across(found) == [AcrossArg(Op.ADD, 8, 1)]


def test_a_row_that_is_read_three_times_is_loaded_once() -> None:
    found = program(Tensor.empty(16384, 1024, device=D).softmax(-1))
    assert len([n for n in found.uops if n.op is Op.LOAD]) == len([n for n in found.uops if n.op is Op.STORE])


def test_registers_are_combined_before_lanes() -> None:
    found = program(Tensor.empty(16384, 8192, device=D).sum(1))
    assert [a.lanes for a in across(found)] == [256]


@pytest.mark.parametrize(
    ("opt", "reason"),
    [
        (Opt(OptKind.THREAD, 1, 24, Tail.MASK), "a power of two"),
        (Opt(OptKind.THREAD, 1, 2048, Tail.MASK), "at most 1024"),
    ],
)
def test_lanes_that_cannot_be_combined_are_refused(opt: Opt, reason: str) -> None:
    with pytest.raises(Exception, match=re.escape(reason)):
        actions.apply(kernel(Tensor.empty(64, 480, device=D).sum(1)), [opt], SM_90)


def test_lanes_inside_of_lanes_are_refused() -> None:
    opts = [Opt(OptKind.THREAD, 1, 8), Opt(OptKind.THREAD, 1, 8)]
    with pytest.raises(Exception, match="inside of one whose lanes are combined"):
        actions.apply(kernel(Tensor.empty(64, 512, device=D).sum(1)), opts, SM_90)
