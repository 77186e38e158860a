"""Memory of stored steps, and kernels that read what they write."""

from __future__ import annotations

from gradlet.base.dtype import dtypes
from gradlet.graph.node import UOp, mk
from gradlet.ops.op import AxisKind, KernelArg, Op, ParamArg, RangeArg
from gradlet.schedule.emit import unsafe_slots
from gradlet.schedule.lowered import Lowered
from tests.schedule.helpers import check, expand, permute, reshape, shrink, tensor, write

F32 = dtypes.float32


def kernel(other_element: int, depends: bool = True) -> Lowered:
    """x[i] <- x[i + other_element] + 1, or a constant beside a load that nothing uses."""
    x = mk(Op.PARAM, F32, (), ParamArg(0, 8))
    y = mk(Op.PARAM, F32, (), ParamArg(1, 8))
    i = mk(Op.RANGE, dtypes.index, (UOp.const(dtypes.index, 4),), RangeArg(0, AxisKind.LOOP))
    here = mk(Op.INDEX, F32, (x, i))
    there = here if other_element == 0 else mk(Op.INDEX, F32, (x, i + other_element))
    value = mk(Op.LOAD, F32, (there,)) + 1
    stores = [mk(Op.STORE, dtypes.void, (here, value if depends else UOp.const(F32, 0)))]
    stores.append(mk(Op.STORE, dtypes.void, (mk(Op.INDEX, F32, (y, i)), value)))
    return Lowered(mk(Op.SINK, dtypes.void, tuple(stores), KernelArg("k")), (x, y), (0, 1), ())


def test_reading_the_stored_element_is_safe() -> None:
    assert unsafe_slots(kernel(0)) == []


def test_reading_another_element_is_not() -> None:
    assert unsafe_slots(kernel(1)) == [0]


def test_a_load_that_the_store_does_not_wait_for_is_not_safe() -> None:
    assert unsafe_slots(kernel(0, depends=False)) == [0]


def test_unsafe_kernels_become_two() -> None:
    t = tensor(4, 4)
    low, high = shrink(t, (0, 2), (0, 4)), shrink(t, (1, 3), (0, 4))
    schedule = check([write(t, high, low * 2.0)])
    assert len(schedule.calls) == 2
    check([write(t, permute(t, 1, 0), t * 2.0)])


def test_in_place_steps_share_the_memory_of_their_version() -> None:
    t = tensor(4, 4)
    first = write(t, shrink(t, (0, 1), (0, 4)), UOp.const(F32, 1))
    second = write(first, shrink(first, (1, 2), (0, 4)), UOp.const(F32, 2))
    schedule = check([second])
    assert {c.buffers[s] for c in schedule.calls for s in c.written} == {t.src[0]}


def test_a_load_that_a_store_with_other_loops_needs_is_not_safe() -> None:
    x, y = (mk(Op.PARAM, F32, (), ParamArg(slot, 8 if slot == 0 else 32)) for slot in (0, 1))
    i, j = (
        mk(Op.RANGE, dtypes.index, (UOp.const(dtypes.index, size),), RangeArg(number, AxisKind.LOOP))
        for number, size in ((0, 8), (1, 4))
    )
    here = mk(Op.INDEX, F32, (x, i))
    value = mk(Op.LOAD, F32, (here,)) + 1
    there = mk(Op.INDEX, F32, (y, i * 4 + j))
    stores = (mk(Op.STORE, dtypes.void, (here, value)), mk(Op.STORE, dtypes.void, (there, value * 2)))
    assert unsafe_slots(Lowered(mk(Op.SINK, dtypes.void, stores, KernelArg("k")), (x, y), (0, 1), ())) == [0]


def test_an_outer_product_of_what_is_overwritten() -> None:
    x, a = tensor(1, 8), tensor(1, 8)
    new = write(x, x, a + x)
    check([new, expand(reshape(new, 8, 1), 8, 8) * expand(a, 8, 8)])


def test_unsafe_kernels_stay_in_their_launch() -> None:
    roots = []
    for rows in (4, 5, 6):
        t = tensor(rows, 4)
        low, high = shrink(t, (0, rows - 1), (0, 4)), shrink(t, (1, rows), (0, 4))
        roots += [write(t, high, low * 2.0), tensor(rows) + 1.0]
    schedule = check(roots)
    (call,) = schedule.calls
    assert [len(stage) for stage in call.ast.arg.stages] == [6, 3]
