"""Shared by the schedule tests: build graphs, run schedules with the reference evaluator, compare."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from gradlet.base.dtype import DType, dtypes
from gradlet.graph import numeric
from gradlet.graph.allocation import new_buffer_node
from gradlet.graph.evaluate import evaluate, run_kernel, run_launch
from gradlet.graph.launch import is_launch, uses, variables_in_order
from gradlet.graph.node import UOp, mk
from gradlet.ops.op import (
    AxesArg,
    DeviceArg,
    Op,
    PadArg,
    ReduceAxesArg,
    ScatterArg,
    ShapeArg,
    ShrinkArg,
    StrideArg,
    WindowArg,
)  # fmt: skip
from gradlet.schedule.create import create_schedule as create_schedule
from gradlet.schedule.pipeline import KernelCall, Schedule
from gradlet.target.target import AVX2, Target

Arrays = dict[UOp, Any]


def target_of(device: str) -> Target:
    return AVX2


def buffer(size: int, dtype: DType = dtypes.float32, device: str = "CPU") -> UOp:
    return new_buffer_node(device, dtype, size)


def reshape(x: UOp, *shape: int) -> UOp:
    return x if x.shape == shape else mk(Op.RESHAPE, x.dtype, (x,), ShapeArg(shape))


def tensor(*shape: int, dtype: DType = dtypes.float32, device: str = "CPU") -> UOp:
    return reshape(buffer(int(np.prod(shape)), dtype, device), *shape)


def expand(x: UOp, *shape: int) -> UOp:
    return x if x.shape == shape else mk(Op.EXPAND, x.dtype, (x,), ShapeArg(shape))


def permute(x: UOp, *axes: int) -> UOp:
    return mk(Op.PERMUTE, x.dtype, (x,), AxesArg(axes))


def flip(x: UOp, *axes: int) -> UOp:
    return mk(Op.FLIP, x.dtype, (x,), AxesArg(axes))


def pad(x: UOp, *pads: tuple[int, int]) -> UOp:
    return mk(Op.PAD, x.dtype, (x,), PadArg(pads))


def shrink(x: UOp, *bounds: tuple[int, int]) -> UOp:
    return mk(Op.SHRINK, x.dtype, (x,), ShrinkArg(bounds))


def stride(x: UOp, *steps: int) -> UOp:
    return mk(Op.STRIDE, x.dtype, (x,), StrideArg(steps))


def window(x: UOp, axis: int, window_axis: int, step: int, dilation: int, size: int) -> UOp:
    return mk(Op.WINDOW, x.dtype, (x,), WindowArg(axis, window_axis, step, dilation, size))


def unwindow(x: UOp, axis: int, window_axis: int, step: int, dilation: int, size: int) -> UOp:
    return mk(Op.UNWINDOW, x.dtype, (x,), WindowArg(axis, window_axis, step, dilation, size))


def reduce(x: UOp, op: Op, *axes: int, keep: bool = False) -> UOp:
    result = mk(Op.REDUCE_AXES, x.dtype, (x,), ReduceAxesArg(op, axes))
    if keep:
        return reshape(result, *[1 if a in axes else s for a, s in enumerate(x.shape)])
    return result


def total(x: UOp, *axes: int, keep: bool = False) -> UOp:
    return reduce(x, Op.ADD, *axes, keep=keep)


def contiguous(x: UOp) -> UOp:
    return mk(Op.CONTIGUOUS, x.dtype, (x,), None)


def copy(x: UOp, device: str) -> UOp:
    return mk(Op.COPY, x.dtype, (x,), DeviceArg(device))


def gather(table: UOp, index: UOp) -> UOp:
    return mk(Op.GATHER, table.dtype, (table, index), None)


def scatter(target: UOp, index: UOp, rows: UOp, op: Op | None = None) -> UOp:
    return mk(Op.SCATTER, target.dtype, (target, index, rows), ScatterArg(op))


def write(base: UOp, view: UOp, value: UOp) -> UOp:
    return mk(Op.WRITE, base.dtype, (base, view, value), None)


def matmul(a: UOp, b: UOp) -> UOp:
    m, k = a.shape
    n = b.shape[1]
    left = expand(reshape(a, m, 1, k), m, n, k)
    right = expand(reshape(permute(b, 1, 0), 1, n, k), m, n, k)
    return total(left * right, 2)


def row(x: UOp, size: int) -> UOp:
    """Rows of size 1 repeated to `size` columns."""
    return expand(x, x.shape[0], size)


def fill(node: UOp, seed: int = 0) -> Any:
    rng = np.random.default_rng(seed + node.arg.size)
    dtype = numeric.storage_type(node.dtype)
    if node.dtype.is_float:
        return rng.standard_normal(node.arg.size).astype(dtype)
    return rng.integers(0, 7, node.arg.size).astype(dtype)


def contents(roots: Sequence[UOp], seed: int = 0) -> Arrays:
    """Random values for every buffer of some graphs; the table that counts (buffer number 0) counts."""
    found = [n for r in roots for n in r.toposort() if n.op is Op.BUFFER]
    ordered = sorted(dict.fromkeys(found), key=lambda n: n.arg.number)
    return {
        n: fill(n, seed + i) if n.arg.number else np.arange(n.arg.size, dtype=numeric.storage_type(n.dtype))
        for i, n in enumerate(ordered)
    }


def run_call(call: KernelCall, arrays: Sequence[Any], values: Mapping[UOp, int]) -> None:
    """Run one kernel, or one launch of several, on memory by slot."""
    given = [values[v] for v in call.variables]
    if is_launch(call.ast.arg):
        run_launch(call.ast, arrays, given)
    else:
        run_kernel(call.ast, arrays, dict(zip(variables_in_order(call.ast.toposort()), given, strict=True)))


def run(schedule: Schedule, buffers: Mapping[UOp, Any]) -> Arrays:
    """Memory after the schedule ran; new buffers start as garbage."""
    memory: Arrays = {b: np.array(a) for b, a in buffers.items()}

    def array(node: UOp) -> Any:
        if node not in memory:
            memory[node] = np.full(node.arg.size, 77, numeric.storage_type(node.dtype))
        return memory[node]

    for call in schedule.calls:
        if isinstance(call, KernelCall):
            arrays = [array(b) for b in call.buffers]
            run_call(call, arrays, schedule.values)
        else:
            array(call.destination)[:] = array(call.source)
    for result in schedule.results.values():
        bottom = [n for n in result.toposort() if n.op is Op.BUFFER][0]
        array(bottom)
    return memory


def check(
    roots: Sequence[UOp], live: Sequence[UOp] = (), seed: int = 0, settled: frozenset[UOp] = frozenset()
) -> Schedule:
    """Schedule, run, and compare every root (and every live graph) with the evaluator of the tensor graph."""
    buffers = contents([*roots, *live], seed)
    expected = evaluate(roots, buffers)
    schedule = create_schedule(roots, target_of, live, settled=settled)
    memory = run(schedule, buffers)
    for root, want in zip(roots, expected, strict=True):
        got = evaluate([schedule.results[root]], memory)[0]
        assert got.shape == want.shape
        np.testing.assert_allclose(got, want, rtol=2e-4, atol=2e-4)
    if live:
        still = evaluate(live, buffers)
        after = evaluate([n.substitute(schedule.results) for n in live], memory)
        for got, want in zip(after, still, strict=True):
            np.testing.assert_allclose(got, want, rtol=2e-4, atol=2e-4)
    return schedule


def launches(schedule: Schedule) -> int:
    """What is started, copies not counted."""
    return sum(isinstance(c, KernelCall) for c in schedule.calls)


def body_names(schedule: Schedule) -> list[str]:
    """The name of every kernel, also of those that share a launch, in order."""
    names: list[str] = []
    for call in schedule.calls:
        if isinstance(call, KernelCall):
            arg = call.ast.arg
            if is_launch(arg):
                names.extend([call.ast.src[use.body].arg.name for use in uses(arg)])
            else:
                names.append(arg.name)
    return names


def kernels(schedule: Schedule) -> int:
    """Kernels, also those that share a launch."""
    return len(body_names(schedule))
