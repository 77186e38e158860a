"""Launches put together from lowered bodies: slots, variables, stages, scratch arrays that are used again."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from gradlet.base.dtype import dtypes
from gradlet.graph.launch import broken_launch_rule
from gradlet.graph.node import UOp, mk
from gradlet.ops.op import AxisKind, KernelArg, LaunchArg, Op, ParamArg, RangeArg, VariableArg
from gradlet.schedule.builder import LaunchBuilder
from gradlet.schedule.lowered import Lowered
from tests.schedule.helpers import buffer

INDEX = dtypes.index


def body(buffers: Sequence[UOp], kind: AxisKind = AxisKind.LOOP, variables: Sequence[UOp] = ()) -> Lowered:
    """Stores to the first buffer the sum of the others, and of the variables, at each of 4 places."""
    loop = mk(Op.RANGE, INDEX, (UOp.const(INDEX, 4),), RangeArg(0, kind))
    value = UOp.const(dtypes.float32, 1.0)
    places = []
    for slot, memory in enumerate(buffers):
        param = mk(Op.PARAM, memory.dtype, (), ParamArg(slot, memory.arg.size))
        places.append(mk(Op.INDEX, memory.dtype, (param, loop), None))
    for place in places[1:]:
        value = value + mk(Op.LOAD, dtypes.float32, (place,), None)
    for number, variable in enumerate(variables):
        own = mk(Op.VARIABLE, variable.dtype, (), VariableArg(f"v{number}", variable.arg.low, variable.arg.high))
        value = value + mk(Op.CAST, dtypes.float32, (own,), None)
    store = mk(Op.STORE, dtypes.void, (places[0], value), None)
    return Lowered(mk(Op.SINK, dtypes.void, (store,), KernelArg("b")), tuple(buffers), (0,), tuple(variables))


def test_one_body_alone_is_a_plain_kernel() -> None:
    x, y = buffer(4), buffer(4)
    builder = LaunchBuilder()
    builder.add_region([body([x, y])], {})
    call = builder.call("CPU")
    assert call is not None
    assert type(call.ast.arg) is KernelArg and call.buffers == (x, y) and call.written == (0,)


def test_nothing_is_no_launch() -> None:
    builder = LaunchBuilder()
    builder.end_stage()
    assert builder.call("CPU") is None


def test_bodies_share_slots_and_equal_bodies_are_one() -> None:
    x, y, z = buffer(4), buffer(4), buffer(4)
    builder = LaunchBuilder()
    builder.add_region([body([x, y])], {})
    builder.add_region([body([z, y])], {})
    builder.end_stage()
    builder.add_region([body([y, x, z])], {})
    call = builder.call("CPU")
    assert call is not None
    arg: LaunchArg = call.ast.arg
    assert broken_launch_rule(call.ast) is None
    assert call.buffers == (x, y, z) and call.written == (0, 1, 2) and arg.scratch == ()
    assert [[[use.slots for use in segment] for segment in stage] for stage in arg.stages] == [
        [[(0, 1)], [(2, 1)]],
        [[(1, 0, 2)]],
    ]
    assert len(call.ast.src) == 2 and arg.stages[0][0][0].body == arg.stages[0][1][0].body == 0


def test_variables_are_those_of_the_launch() -> None:
    n, m = (mk(Op.VARIABLE, INDEX, (), VariableArg(name, 0, 5)) for name in "nm")
    builder = LaunchBuilder()
    builder.add_region([body([buffer(4)], variables=[n])], {})
    builder.add_region([body([buffer(4)], variables=[m, n])], {})
    call = builder.call("CPU")
    assert call is not None and call.variables == (n, m)
    assert [segment[0].variables for segment in call.ast.arg.stages[0]] == [(0,), (1, 0)]


def region(count: int, sizes: Sequence[int]) -> tuple[list[Lowered], dict[UOp, int]]:
    """A chain: every body reads the scratch value of the one before; the last one stores to memory."""
    values = [buffer(size) for size in sizes]
    chain = [*values, buffer(4 * count)]
    uses = [body([chain[0], buffer(4)], AxisKind.PARALLEL)]
    uses += [body([after, before], AxisKind.PARALLEL) for before, after in zip(chain, chain[1:])]
    return uses, {value: value.arg.size for value in values}


def test_a_scratch_array_is_used_again_when_its_value_is_dead() -> None:
    uses, scratch = region(4, [8, 16, 12, 4])
    builder = LaunchBuilder()
    builder.add_region(uses, scratch)
    call = builder.call("CPU")
    assert call is not None
    arg: LaunchArg = call.ast.arg
    slots = [use.slots for use in arg.stages[0][0]]
    # A body's own value is never where the value is that it reads.
    assert all(len(set(mine)) == len(mine) for mine in slots)
    assert [mine[0] for mine in slots[:-1]] == [-1, -2, -1, -2]
    assert arg.scratch == (4 * 12, 4 * 16)


def test_regions_of_one_stage_and_of_the_next_share_arrays() -> None:
    builder = LaunchBuilder()
    builder.add_region(*region(2, [8]))
    builder.add_region(*region(2, [20]))
    builder.end_stage()
    builder.add_region(*region(2, [4, 6]))
    call = builder.call("CPU")
    assert call is not None and call.ast.arg.scratch == (4 * 20, 4 * 6)


@pytest.mark.parametrize("wanted", [1, 3])
def test_the_array_that_grows_least_is_taken(wanted: int) -> None:
    builder = LaunchBuilder()
    builder.scratch = [100, 40, 400]
    assert builder.take([0, 1, 2], {1: 30, 3: 90}[wanted]) == {1: 1, 3: 0}[wanted]
    assert builder.scratch == [100, 40, 400]
    assert builder.take([0, 1], 120) == 0 and builder.scratch == [120, 40, 400]
    assert builder.take([], 8) == 3 and builder.scratch == [120, 40, 400, 8]
