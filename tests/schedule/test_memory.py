"""Reuse of temporary buffers."""

from __future__ import annotations

from gradlet.graph.node import UOp
from gradlet.schedule.calls import KernelCall
from gradlet.schedule.memory import reuse, size_of
from gradlet.schedule.moves import root_of
from tests.schedule.helpers import buffer, check, contiguous, create_schedule, matmul, target_of, tensor


def call(*buffers: UOp) -> KernelCall:
    return KernelCall(UOp.const(buffers[0].dtype, 0), buffers, (0,), (), "CPU")


def test_a_buffer_is_taken_again_after_its_last_reader() -> None:
    x, a, b, c, out = [buffer(8) for _ in range(5)]
    calls = [call(a, x), call(b, a), call(c, b), call(out, c)]
    result = reuse(calls, {a, b, c, out}, [out])
    assert [k.buffers for k in result] == [(a, x), (b, a), (a, b), (out, a)]


def test_two_live_buffers_are_never_one() -> None:
    x, a, b, c, out = [buffer(8) for _ in range(5)]
    calls = [call(a, x), call(b, a), call(c, b), call(out, a, c)]
    assert [k.buffers for k in reuse(calls, {a, b, c, out}, [out])] == [k.buffers for k in calls]


def test_results_and_foreign_buffers_are_kept() -> None:
    x, a, b = [buffer(8) for _ in range(3)]
    calls = [call(a, x), call(b, a)]
    assert reuse(calls, {a, b}, [a, b]) == calls


def test_much_larger_buffers_are_not_wasted() -> None:
    x, a, b, c = buffer(8), buffer(100), buffer(8), buffer(8)
    calls = [call(a, x), call(b, a), call(c, b), call(b, c)]
    assert a not in [k.buffers[0] for k in reuse(calls, {a, b, c}, [])[1:]]


def test_a_long_chain_needs_few_buffers() -> None:
    x = tensor(8, 8)
    for _ in range(12):
        x = matmul(x, tensor(8, 8))
    schedule = check([x])
    written = {b for k in schedule.calls for b in (k.buffers[s] for s in k.written)}
    assert len(written) == 3 and len(schedule.calls) == 12


def test_kept_result_is_not_overwritten() -> None:
    x = tensor(8, 8)
    first = contiguous(matmul(x, tensor(8, 8)))
    y = first
    for _ in range(5):
        y = matmul(y, tensor(8, 8))
    schedule = check([first, y])
    memory = root_of(schedule.results[first])
    assert sum(memory in [k.buffers[s] for s in k.written] for k in schedule.calls) == 1
    assert size_of(memory) == 256
    assert create_schedule([first], target_of).results[first] is not schedule.results[first]
