"""Reductions of a constant are constants where that is exact."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from gradlet import Tensor, Variable
from gradlet.base.dtype import DType, dtypes
from gradlet.graph.evaluate import evaluate
from gradlet.graph.node import UOp, mk, toposort
from gradlet.graph.rewrite import rewrite
from gradlet.ops.op import Op, ReduceAxesArg
from gradlet.rules.sets import SIMPLIFY
from tests.schedule.helpers import expand, reshape

VALUES: list[tuple[DType, Any]] = [
    (dtypes.float32, 1.0),
    (dtypes.float32, 0.0),
    (dtypes.float32, -3.0),
    (dtypes.float32, 0.1),
    (dtypes.float32, math.inf),
    (dtypes.float32, -math.inf),
    (dtypes.float32, math.nan),
    (dtypes.float32, 1e30),
    (dtypes.float64, 7.0),
    (dtypes.float16, 100.0),
    (dtypes.float16, 1.0),
    (dtypes.bfloat16, 3.0),
    (dtypes.int32, 2**30),
    (dtypes.int32, -5),
    (dtypes.int64, 3),
    (dtypes.uint8, 200),
    (dtypes.int8, -100),
    (dtypes.bool, True),
    (dtypes.bool, False),
]


def constant(dtype: DType, value: Any, *shape: int) -> UOp:
    return expand(reshape(UOp.const(dtype, value), *(1,) * len(shape)), *shape)


def reduced(x: UOp, op: Op, *axes: int) -> tuple[UOp, UOp]:
    """A reduction, and what the rules make of it."""
    node = mk(Op.REDUCE_AXES, x.dtype, (x,), ReduceAxesArg(op, axes))
    new = rewrite(node, SIMPLIFY)
    assert isinstance(new, UOp)
    assert new.shape == node.shape and new.dtype is node.dtype
    return node, new


@pytest.mark.parametrize(("dtype", "value"), VALUES, ids=str)
@pytest.mark.parametrize("op", [Op.ADD, Op.MUL, Op.MAX, Op.MIN], ids=lambda op: op.name)
@pytest.mark.parametrize(("shape", "axes"), [((3, 4), (0,)), ((3, 4), (0, 1)), ((70, 2), (0,)), ((1, 5), (0,))])
def test_the_value_stays(dtype: DType, value: Any, op: Op, shape: tuple[int, ...], axes: tuple[int, ...]) -> None:
    node, new = reduced(constant(dtype, value, *shape), op, *axes)
    with np.errstate(all="ignore"):
        (want,), (have,) = evaluate([node], {}), evaluate([new], {})
    np.testing.assert_array_equal(have, want)


def is_constant(node: UOp) -> bool:
    return all(n.op is not Op.REDUCE_AXES for n in toposort((node,)))


def test_what_becomes_a_constant() -> None:
    def becomes(dtype: DType, value: Any, op: Op, rows: int) -> bool:
        return is_constant(reduced(constant(dtype, value, rows, 2), op, 0)[1])

    assert becomes(dtypes.float32, 1.0, Op.ADD, 1 << 20) and becomes(dtypes.int32, 3, Op.ADD, 1 << 20)
    assert becomes(dtypes.float32, 0.1, Op.MAX, 10) and becomes(dtypes.bool, True, Op.MIN, 10)
    # Sums that rounding would change, and those of nothing.
    assert not becomes(dtypes.float32, 0.1, Op.ADD, 10)
    assert not becomes(dtypes.float32, math.inf, Op.ADD, 10)
    assert becomes(dtypes.float16, 1.0, Op.ADD, 2048) and not becomes(dtypes.float16, 1.0, Op.ADD, 2050)
    assert becomes(dtypes.bfloat16, 1.0, Op.ADD, 256) and not becomes(dtypes.bfloat16, 1.0, Op.ADD, 258)
    assert not becomes(dtypes.float32, 1.0, Op.MUL, 10)


def test_a_sum_over_nothing_is_zero() -> None:
    for dtype in (dtypes.float32, dtypes.int32):
        node, new = reduced(constant(dtype, 5, 0, 3), Op.ADD, 0)
        np.testing.assert_array_equal(evaluate([new], {})[0], evaluate([node], {})[0])


def test_a_sum_that_ends_at_a_size_known_at_launch_is_not_a_multiple() -> None:
    for value in (0, 2, 3):
        size = Variable("size", 0, 3).bind(value)
        total = Tensor.ones(4, 2)[:size].sum(0)
        assert total.numpy().tolist() == [value, value]
        assert Tensor.ones(4, 2).contiguous()[:size].sum(0).numpy().tolist() == [value, value]
