"""Control flow: If, Loop, Scan and maps over sequences run their graphs where Python decides.

A condition that is known costs nothing; one that a device computes is read. Source: the pages of these operators in the
ONNX specification, "Operators" of domain ai.onnx.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from gradlet.onnx.graph import Graph
from gradlet.onnx.registry import operator
from gradlet.onnx.runner import Call
from gradlet.onnx.values import Number, Value

# After so many steps what a loop carries is computed: graphs stay small, and equal ones are scheduled once.
STEPS_TOGETHER = 16


@operator("If")
def branch(call: Call, condition: Number, *, then_branch: Graph, else_branch: Graph) -> Any:
    """One of two graphs."""
    return tuple(call.subgraph(then_branch if condition else else_branch, ()))


@operator("Loop")
def loop(call: Call, count: Value | None = None, condition: Value | None = None, *state: Value, body: Graph) -> Any:
    """A graph run again and again on what it returned, so many times, or as long as a condition holds."""
    most = None if count is None else int(count.array().reshape(-1)[0])
    going = True if condition is None else bool(condition.array().reshape(-1)[0])
    carried = list(state)
    rows: list[list[Any]] = [[] for _ in body.outputs[1 + len(state) :]]
    step = 0
    while going and (most is None or step < most):
        flag = Value.of_array(np.array(True))
        found = call.subgraph(body, [Value.of_array(np.array(step, np.int64)), flag, *carried])
        going = bool(found[0].array().reshape(-1)[0])
        carried = found[1 : 1 + len(state)]
        for row, one in zip(rows, found[1 + len(state) :]):
            row.append(one)
        step += 1
        if step % STEPS_TOGETHER == 0:
            compute(call, [*carried, *(v for row in rows for v in row[-STEPS_TOGETHER:])])
    return (*carried, *(_stacked(call, row, info) for row, info in zip(rows, body.outputs[1 + len(state) :])))


def compute(call: Call, values: list[Any]) -> None:
    """Compute values that a device has, together."""
    call.compute(*[call.tensor(v) for v in values if isinstance(v, Value) and not v.known and not v.is_text])


def _stacked(call: Call, row: list[Any], info: Any, axis: int = 0) -> Any:
    if not row:
        sizes = [0, *(s if isinstance(s, int) else 0 for s in info.shape or ())]
        from gradlet.onnx.elements import numpy_type

        return np.zeros(sizes, numpy_type(info.elem or 1))
    if all(v.known for v in row):
        return np.stack([v.array() for v in row], axis)
    parts = [call.tensor(v) for v in row]
    return Value.of_tensor(parts[0].stack(*parts[1:], dim=axis), row[0].elem)


@operator("Scan", until=8)
def scan_batches(
    call: Call, lengths: Value | None = None, *data: Value, body: Graph, num_scan_inputs: int,
    directions: list[int] | None = None,
) -> Any:  # fmt: skip
    """A graph along axis 1, for every row of a batch by itself (version 8)."""
    states = len(data) - num_scan_inputs
    batch = int(data[0].shape[0])
    backward = directions or [0] * num_scan_inputs
    results = []
    for b in range(batch):
        parts = [Value.of_tensor(call.tensor(v)[b], v.elem) for v in data]
        steps = int(parts[states].shape[0])
        if lengths is not None:
            steps = int(lengths.array().reshape(-1)[b])
        zeros = [0] * num_scan_inputs
        results.append(_scan(call, body, parts[:states], parts[states:], steps, zeros, backward, None, None))
    return tuple(_stacked(call, list(column), None) for column in zip(*results))


@operator("Scan", since=9)
def scan(
    call: Call, *data: Value, body: Graph, num_scan_inputs: int, scan_input_axes: list[int] | None = None,
    scan_input_directions: list[int] | None = None, scan_output_axes: list[int] | None = None,
    scan_output_directions: list[int] | None = None,
) -> Any:  # fmt: skip
    """A graph run for every slice of some inputs, with a state that it hands on."""
    states = len(data) - num_scan_inputs
    axes = scan_input_axes or [0] * num_scan_inputs
    inputs = list(data[states:])
    steps = int(inputs[0].shape[axes[0]])
    backward = scan_input_directions or [0] * num_scan_inputs
    return tuple(
        _scan(call, body, list(data[:states]), inputs, steps, axes, backward, scan_output_axes, scan_output_directions)
    )


def _scan(
    call: Call, body: Graph, states: list[Any], inputs: list[Any], steps: int, axes: list[int], backward: list[int],
    output_axes: list[int] | None, output_directions: list[int] | None,
) -> list[Any]:  # fmt: skip
    sources = [call.tensor(v) for v in inputs]
    infos = body.outputs[len(states) :]
    rows: list[list[Any]] = [[] for _ in infos]
    count = len(states)
    for step in range(steps):
        slices = []
        for source, axis, back, value in zip(sources, axes, backward, inputs):
            at = source.shape[axis] - 1 - step if back else step
            slices.append(Value.of_tensor(source.select(axis, at), value.elem))
        found = call.subgraph(body, [*states, *slices])
        states = found[:count]
        for row, one in zip(rows, found[count:]):
            row.append(one)
        if (step + 1) % STEPS_TOGETHER == 0:
            compute(call, [*states, *(v for row in rows for v in row[-STEPS_TOGETHER:])])
    made = []
    for i, (row, info) in enumerate(zip(rows, infos)):
        if output_directions and output_directions[i]:
            row.reverse()
        made.append(_stacked(call, row, info, output_axes[i] if output_axes else 0))
    return [*states, *made]


@operator("SequenceMap")
def sequence_map(call: Call, sequence: Value, *others: Value, body: Graph) -> Any:
    """A graph for every element of a sequence, and the elements of others that stand beside it."""
    if not isinstance(sequence, list):
        raise call.error("the first input must be a sequence")
    rows: list[list[Any]] = [[] for _ in body.outputs]
    for i, one in enumerate(sequence):
        found = call.subgraph(body, [one, *(o[i] if isinstance(o, list) else o for o in others)])
        for row, value in zip(rows, found):
            row.append(value)
    # A tuple of lists: every output is a sequence.
    return tuple(rows)
