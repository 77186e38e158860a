"""Long reductions in two steps."""

from __future__ import annotations

import numpy as np
import pytest

from gradlet.graph.evaluate import evaluate
from gradlet.graph.node import UOp, toposort
from gradlet.ops.op import Op
from gradlet.schedule.context import sink
from gradlet.schedule.split import split_reductions
from tests.schedule.helpers import contents, reduce, target_of, tensor


def split(node: UOp) -> UOp:
    return split_reductions(sink([node]), target_of, "CPU").src[0]


@pytest.mark.parametrize(
    ("shape", "axes", "op"),
    [
        ((1 << 17,), (0,), Op.ADD), ((1 << 17,), (0,), Op.MAX), ((256, 512), (0, 1), Op.ADD),
        ((2, 1 << 17), (1,), Op.ADD), ((1 << 16, 3), (0,), Op.MIN), ((131071,), (0,), Op.ADD),
        ((2,) * 17, tuple(range(17)), Op.ADD),
    ],
)  # fmt: skip
def test_same_result_in_parts(shape: tuple[int, ...], axes: tuple[int, ...], op: Op) -> None:
    node = reduce(tensor(*shape), op, *axes)
    cut = split(node)
    assert cut.shape == node.shape
    partial = next(n for n in toposort((cut,)) if n.op is Op.REDUCE_AXES)
    assert partial is not cut and np.prod(partial.shape) >= target_of("CPU").cores
    got, wanted = evaluate([cut, node], contents([node]))
    np.testing.assert_allclose(got, wanted, rtol=1e-3, atol=1e-2)


@pytest.mark.parametrize(
    ("shape", "axes", "op"),
    [((1000,), (0,), Op.ADD), ((64, 1 << 16), (1,), Op.ADD), ((131071,), (0,), Op.MAX), ((0, 4), (0,), Op.ADD)],
)
def test_short_or_many_reductions_stay(shape: tuple[int, ...], axes: tuple[int, ...], op: Op) -> None:
    node = reduce(tensor(*shape), op, *axes)
    assert split(node) is node
