"""Outputs in the memory of dying inputs."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from gradlet import Context, Tensor
from gradlet.base.dtype import dtypes
from gradlet.engine import execute
from gradlet.graph.node import UOp, mk
from gradlet.ops.op import AxisKind, KernelArg, Op, ParamArg, RangeArg, ReduceArg
from gradlet.schedule.calls import KernelCall, Schedule
from gradlet.schedule.inplace import is_in_place, merged, reuse_inputs
from gradlet.schedule.memory import Lifetimes, plan_memory, size_of
from gradlet.schedule.pipeline import make_schedule
from tests.schedule.helpers import (
    buffer,
    contiguous,
    expand,
    matmul,
    pad,
    permute,
    reshape,
    shrink,
    target_of,
    tensor,
    total,
)
from tests.schedule.test_memory import compare, random_graph


def kernel(*roots: UOp) -> KernelCall:
    (only,) = make_schedule(roots, target_of).calls
    assert isinstance(only, KernelCall)
    return only


def slots(call: KernelCall, source: UOp) -> tuple[int, int]:
    """The only written slot, and the slot of a tensor that is read."""
    (written,) = call.written
    (memory,) = [n for n in source.toposort() if n.op is Op.BUFFER]
    return written, call.buffers.index(memory)


X = tensor(8, 8)
W = tensor(8, 8)


@pytest.mark.parametrize(
    "root",
    [
        X * 2.0,
        X + X.exp(),
        X * expand(total(W, 0, 1, keep=True), 8, 8),
        X + matmul(W, W),
        X + expand(reshape(tensor(8), 8, 1), 8, 8),
    ],
    ids=["scale", "one load", "beside a sum", "beside a product", "row"],
)
def test_the_element_that_is_stored_is_the_only_one_read(root: UOp) -> None:
    call = kernel(contiguous(root))
    assert is_in_place(call.ast, *slots(call, X))


@pytest.mark.parametrize(
    "root",
    [
        permute(X, 1, 0) * 2.0,
        X + permute(X, 1, 0),
        matmul(X, W),
        X + matmul(X, W),
        X - expand(total(X, 1, keep=True), 8, 8),
        X * expand(total(X, 0, keep=True), 8, 8),
        shrink(X, (0, 4), (0, 8)) * 2.0,
        pad(shrink(X, (1, 8), (0, 8)), (1, 0), (0, 0)) * 2.0,
        total(X, 1),
    ],
)
def test_other_elements_are_read_too(root: UOp) -> None:
    for call in make_schedule([contiguous(root)], target_of).calls:
        assert isinstance(call, KernelCall)
        (memory,) = [n for n in X.toposort() if n.op is Op.BUFFER]
        if memory in call.buffers:
            assert not is_in_place(call.ast, *slots(call, X))


def test_a_sum_of_the_same_loop_reads_what_others_store() -> None:
    size = UOp.const(dtypes.index, 8)
    one = mk(Op.RANGE, dtypes.index, (size,), RangeArg(0, AxisKind.LOOP))
    target, source = [mk(Op.PARAM, dtypes.float32, (), ParamArg(slot, 8)) for slot in (0, 1)]
    load = mk(Op.LOAD, dtypes.float32, (mk(Op.INDEX, dtypes.float32, (source, one), None),), None)
    address = mk(Op.INDEX, dtypes.float32, (target, one), None)

    def kernel_of(value: UOp) -> UOp:
        return mk(Op.SINK, dtypes.void, (mk(Op.STORE, dtypes.void, (address, value), None),), KernelArg("by_hand"))

    whole = mk(Op.REDUCE, dtypes.float32, (load, one), ReduceArg(Op.ADD))
    assert is_in_place(kernel_of(load * 2.0), 0, 1)
    assert not is_in_place(kernel_of(load * whole), 0, 1)


def test_another_output_may_read_later() -> None:
    call = kernel(contiguous(X * 2.0), contiguous(X + 1.0))
    (memory,) = [n for n in X.toposort() if n.op is Op.BUFFER]
    assert len(call.written) == 2
    assert not any(is_in_place(call.ast, slot, call.buffers.index(memory)) for slot in call.written)


def test_types_of_another_size_do_not_share() -> None:
    call = kernel(contiguous(mk(Op.CAST, dtypes.float16, (X,), None)))
    assert not is_in_place(call.ast, *slots(call, X))


def test_merging_gives_both_one_slot() -> None:
    call = kernel(contiguous(X * 2.0 + tensor(8, 8)))
    output, source = (call.buffers[s] for s in slots(call, X))
    other = next(b for b in call.buffers if b not in (output, source))
    new = merged(call, output, source)
    assert set(new.buffers) == {source, other} and len(new.buffers) == 2
    assert [new.buffers[slot] for slot in new.written] == [source]
    params = {n.arg.slot for n in new.ast.toposort() if n.op is Op.PARAM}
    assert params == {0, 1}


def test_only_dying_inputs_and_new_outputs_count() -> None:
    call = kernel(contiguous(X * 2.0))
    output, source = (call.buffers[s] for s in slots(call, X))
    assert reuse_inputs(call, {source}, {output}) == (output, source)
    assert reuse_inputs(call, {buffer(64)}, {output}) is None
    assert reuse_inputs(call, {source}, set()) is None


def in_place_calls(schedule: Schedule) -> int:
    """Kernels that store over a temporary buffer that they read."""
    count = 0
    for call in schedule.calls:
        assert isinstance(call, KernelCall)
        read = {n.src[0].src[0].arg.slot for n in call.ast.toposort() if n.op is Op.LOAD}
        count += any(slot in read and call.buffers[slot] in schedule.memory.places for slot in call.written)
    return count


def test_outputs_go_over_inputs_at_the_worst_moment_only() -> None:
    first = kernel(contiguous(X * 2.0 + W))
    output, source = (first.buffers[s] for s in slots(first, X))

    def call(out: UOp, x: UOp, w: UOp) -> KernelCall:
        names = {output: out, source: x}
        return replace(first, buffers=tuple([names.get(b, w) for b in first.buffers]))

    x, w, a, b, c, d, out = [buffer(64) for _ in range(7)]
    calls = [call(a, x, w), call(b, a, w), call(c, a, b), call(d, c, w), call(out, d, w)]
    new, memory = plan_memory(calls, {a, b, c, d, out}, [out], target_of)
    assert memory.bound == memory.peak == 2 * 256 and memory.unshared == 4 * 256
    assert c not in memory.places and [c in k.buffers for k in new] == [False] * 5
    assert new[:2] == calls[:2] and new[4] == calls[4]
    merged_call = new[2]
    assert isinstance(merged_call, KernelCall) and merged_call.buffers[merged_call.written[0]] is a
    assert set(merged_call.buffers) == {a, b}
    assert isinstance(new[3], KernelCall) and a in new[3].buffers


def test_a_small_saving_is_not_worth_another_kernel() -> None:
    def other(*buffers: UOp) -> KernelCall:
        return KernelCall(UOp.const(dtypes.int32, 0), buffers, (0,), (), "CPU")

    for size, changes in ((8 * 64, True), (16 * 64, False)):
        x, a, b, out, large = [*[buffer(64) for _ in range(4)], buffer(size)]
        calls = [
            other(large, x),
            other(a, x),
            replace(kernel(contiguous(X * 2.0)), buffers=(b, a)),
            other(out, large, b),
        ]
        new, memory = plan_memory(calls, {a, b, large, out}, [out], target_of)
        assert (new != calls) is changes
        assert memory.peak == memory.bound == size * 4 + (256 if changes else 512)


def test_outputs_over_inputs_at_all_moments_compute_the_same() -> None:
    shared = 0
    for seed in range(40):
        roots = random_graph(seed)
        with Context(FUSE=0):
            schedule = make_schedule(roots, target_of)
        lifetimes = Lifetimes(schedule.calls, schedule.memory.places, size_of)
        for moment in range(len(schedule.calls)):
            while lifetimes.share_at(moment, "CPU"):
                shared += 1
        lifetimes.place()
        places = {block.buffer: block.offset for block in lifetimes.blocks}
        compare(replace(schedule, calls=tuple(lifetimes.calls), memory=replace(schedule.memory, places=places)), roots)
    assert shared > 40


def test_machine_code_knows_that_it_overwrites_what_it_reads() -> None:
    values = np.random.default_rng(0).standard_normal((2, 50, 37)).astype(np.float32)
    with Context(FUSE=0, SCHEDULE_CACHE=0):
        x, w = [Tensor(v).realize() for v in values]
        y = (x * 0.5 + w).exp().log() - x.sum(0) * 0.1
        plan = execute.schedule([y.uop])
        assert in_place_calls(plan) > 0
        result = y.numpy()
    expected = values[0] * 0.5 + values[1] - values[0].sum(0) * 0.1
    np.testing.assert_allclose(result, expected, rtol=1e-4, atol=1e-4)
