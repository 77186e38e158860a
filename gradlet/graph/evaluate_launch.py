"""Reference evaluator of launches: stages in order, and inside a stage as far from that order as a launch allows.

Segments and blocks are independent, so they run from last to first: a launch that needs another order gives wrong
values here. Scratch arrays hold NaN (integers: -1) when a block begins.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from gradlet.base.errors import CompilerError
from gradlet.graph.evaluate_kernel import Kernel, prepare, run_prepared
from gradlet.graph.launch import BodyFacts, body_facts, region_blocks
from gradlet.graph.node import UOp
from gradlet.graph.numeric import Array
from gradlet.ops.op import BodyUse, LaunchArg, LaunchSegment

POISON = 0xFF  # every byte of it: NaN for floats, -1 for integers


def run_launch(sink: UOp, arrays: Sequence[Array], variables: Sequence[int] = ()) -> None:
    """Run a launch; arrays are changed in place.

    Args:
        sink: a SINK with a LaunchArg.
        arrays: memory by slot of the launch, contiguous; bfloat16 as uint16 bit patterns.
        variables: values of the launch's variables by number.

    Raises:
        CompilerError: a kernel reads or writes outside its memory, or an array or a value is missing.
    """
    arg: LaunchArg = sink.arg
    facts = [body_facts(body) for body in sink.src]
    scratch = [np.zeros(size, np.uint8) for size in arg.scratch]
    for stage in arg.stages:
        for segment in reversed(stage):
            kernels = [_prepare(sink, use, facts[use.body], arrays, scratch, variables) for use in segment]
            if len(segment) == 1:
                run_prepared(sink.src[segment[0].body], kernels[0])
            else:
                _run_region(sink, segment, facts, kernels, scratch)


def _prepare(
    sink: UOp, use: BodyUse, facts: BodyFacts, arrays: Sequence[Array], scratch: Sequence[Array],
    variables: Sequence[int],
) -> Kernel:  # fmt: skip
    if max(use.slots, default=-1) >= len(arrays):
        raise CompilerError(f"launch {sink.arg.name}: no array given for slot {max(use.slots)}")
    if max(use.variables, default=-1) >= len(variables):
        raise CompilerError(f"launch {sink.arg.name}: no value given for variable {max(use.variables)}")
    memory = [arrays[slot] if slot >= 0 else scratch[-1 - slot] for slot in use.slots]
    values = {node: variables[number] for node, number in zip(facts.variables, use.variables, strict=True)}
    return prepare(sink.src[use.body], memory, values)


def _run_region(
    sink: UOp, segment: LaunchSegment, facts: Sequence[BodyFacts], kernels: Sequence[Kernel], scratch: Sequence[Array]
) -> None:
    for number in reversed(range(region_blocks(segment, facts))):
        for array in scratch:
            array.fill(POISON)
        for use, kernel in zip(segment, kernels, strict=True):
            for block in facts[use.body].blocks:
                kernel.extents[block] = (number, number + 1)
            run_prepared(sink.src[use.body], kernel)
