"""The evaluator of launches against numpy, and that it finds launches which depend on an order they must not have."""

from __future__ import annotations

import numpy as np
import pytest

from gradlet.base.errors import CompilerError
from gradlet.graph.evaluate import run_launch
from gradlet.graph.spec import check
from gradlet.ops.op import AxisKind, BodyUse, Op, Stage
from tests.codegen import launches
from tests.codegen.kernels import Builder, empty, random


@pytest.mark.parametrize("make", launches.ALL, ids=launches.names())
def test_launches(make) -> None:
    case = make()
    check(case.sink, Stage.KERNEL)
    arrays = launches.copies(case)
    run_launch(case.sink, arrays, case.variables)
    launches.compare(case, arrays)


def test_memory_may_be_larger_and_of_another_type() -> None:
    case = launches.chain(1, 8)
    memory = [np.zeros(64, np.uint8), np.zeros(64, np.uint8)]
    memory[0][:32] = case.arrays[0].view(np.uint8)
    run_launch(case.sink, memory)
    np.testing.assert_array_equal(memory[1][:32].view(np.float32), case.expected[1])
    assert not memory[1][32:].any()


def test_segments_of_a_stage_do_not_see_each_other() -> None:
    """What should be two stages is put into one."""
    body = launches.scale_body(4)
    sink = launches.launch("wrong", [body], [[[BodyUse(0, (1, 0))], [BodyUse(0, (2, 1))]]])
    arrays = [np.ones(4, np.float32), np.zeros(4, np.float32), np.zeros(4, np.float32)]
    run_launch(sink, arrays)
    assert (arrays[1] == 2).all() and (arrays[2] == 0).all()


def test_scratch_is_garbage_when_a_block_begins() -> None:
    """The second body reads an element that the first does not write in the same block."""
    blocks, width = 3, 4
    b = Builder()
    g = b.range(blocks, AxisKind.PARALLEL)
    t, x = b.param(0, blocks), b.param(1, blocks)
    b.store(t, g, b.load(x, g))
    first = b.sink("first")
    b = Builder()
    g, k = b.range(blocks, AxisKind.PARALLEL), b.reduce_range(blocks)
    out, t = b.param(0, blocks), b.param(1, blocks)
    b.store(out, g, b.reduce(Op.ADD, b.load(t, k), k))
    sink = launches.launch(
        "wrong", [first, b.sink("second")], [[[BodyUse(0, (-1, 1)), BodyUse(1, (0, -1))]]], [4 * width]
    )
    arrays = [empty(blocks), random(blocks)]
    run_launch(sink, arrays)
    assert np.isnan(arrays[0]).all()


def test_missing_arrays_and_values_are_errors() -> None:
    case = launches.with_variables()
    with pytest.raises(CompilerError, match="no array given for slot 2"):
        run_launch(case.sink, launches.copies(case)[:2], case.variables)
    with pytest.raises(CompilerError, match="no value given for variable 1"):
        run_launch(case.sink, launches.copies(case), case.variables[:1])
