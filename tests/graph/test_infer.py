"""Shapes, dtypes and open ranges that follow from the sources."""

from __future__ import annotations

import pytest

from gradlet.base.dtype import dtypes
from gradlet.graph import infer
from gradlet.graph.node import UOp, mk
from gradlet.ops.op import (
    AxesArg,
    AxisKind,
    BufferArg,
    DeviceArg,
    GatherArg,
    LargestArg,
    MergeArg,
    Op,
    PadArg,
    ParamArg,
    RangeArg,
    ReduceArg,
    ReduceAxesArg,
    ScanArg,
    ScatterArg,
    ShapeArg,
    ShrinkArg,
    StrideArg,
    VariableArg,
    WindowArg,
)  # fmt: skip

F = dtypes.float32


def tensor(*shape: int, number: int = 1) -> UOp:
    size = 1
    for n in shape:
        size *= n
    buffer = mk(Op.BUFFER, F, (), BufferArg(10**9 + number, size, "CPU"))
    return mk(Op.RESHAPE, F, (buffer,), ShapeArg(shape))


def index(value: int) -> UOp:
    return UOp.const(dtypes.index, value)


MOVES = [
    (Op.RESHAPE, ShapeArg((6, 4)), (6, 4)),
    (Op.PERMUTE, AxesArg((2, 0, 1)), (4, 2, 3)),
    (Op.PAD, PadArg(((0, 1), (2, 0), (0, 0))), (3, 5, 4)),
    (Op.SHRINK, ShrinkArg(((1, 2), (0, 3), (1, 4))), (1, 3, 3)),
    (Op.FLIP, AxesArg((0, 2)), (2, 3, 4)),
    (Op.STRIDE, StrideArg((1, 2, 3)), (2, 2, 2)),
    (Op.REDUCE_AXES, ReduceAxesArg(Op.ADD, (0, 2)), (3,)),
    (Op.CONTIGUOUS, None, (2, 3, 4)),
    (Op.COPY, DeviceArg("CPU"), (2, 3, 4)),
    (Op.DETACH, None, (2, 3, 4)),
    (Op.SQRT, None, (2, 3, 4)),
    (Op.COS, None, (2, 3, 4)),
]


@pytest.mark.parametrize(("op", "arg", "shape"), MOVES, ids=lambda v: v.name if isinstance(v, Op) else "")
def test_shape_of_one_source(op, arg, shape):
    assert mk(op, F, (tensor(2, 3, 4),), arg).shape == shape


def test_shape_of_expand_and_windows():
    assert mk(Op.EXPAND, F, (tensor(2, 1),), ShapeArg((2, 5))).shape == (2, 5)
    image = mk(Op.EXPAND, F, (tensor(8, 1),), ShapeArg((8, 3)))
    assert mk(Op.WINDOW, F, (image,), WindowArg(0, 1, 1, 1, 6)).shape == (6, 3)
    assert mk(Op.UNWINDOW, F, (image,), WindowArg(0, 1, 1, 1, 10)).shape == (10, 3)


def test_shape_of_scalars_broadcasts():
    variable = mk(Op.VARIABLE, F, (), VariableArg("v", 0, 9))
    assert variable.shape == ()
    assert (variable + tensor(3)).shape == (3,)
    assert (tensor(3) + 1).shape == (3,)
    assert (UOp.const(F, 1) + 1).shape == ()
    condition = variable < tensor(2, 2)
    assert condition.where(UOp.const(F, 1), tensor(2, 2)).shape == (2, 2)
    assert (variable < 3).where(UOp.const(F, 1), variable).shape == ()


def test_shape_of_gather_and_scatter():
    table, rows = tensor(5, 7), mk(Op.CAST, dtypes.int32, (tensor(2, 3, number=2),))
    assert mk(Op.GATHER, F, (table, rows)).shape == (2, 3, 7)
    assert mk(Op.SCATTER, F, (table, rows, tensor(2, 3, 7, number=3)), ScatterArg(None)).shape == (5, 7)


def test_shape_with_shared_axes():
    table, rows = tensor(4, 5, 7), mk(Op.CAST, dtypes.int32, (tensor(4, 3, number=2),))
    assert mk(Op.GATHER, F, (table, rows), GatherArg(1)).shape == (4, 3, 7)
    assert mk(Op.SCATTER, F, (table, rows, tensor(4, 3, 7, number=3)), ScatterArg(None, 1)).shape == (4, 5, 7)


def test_shape_of_ordered_work():
    x = tensor(4, 2, 8)
    assert mk(Op.SCAN, F, (x, UOp.const(F, 0.0)), ScanArg(Op.ADD, 1)).shape == (4, 2, 8)
    keys = mk(Op.CAST, dtypes.uint64, (x,))
    assert mk(Op.MERGE, dtypes.uint64, (keys,), MergeArg()).shape == (4, 16)
    assert mk(Op.MERGE, dtypes.uint64, (keys,), MergeArg(True)).shape == (4, 8)
    assert mk(Op.LARGEST, dtypes.uint64, (keys,), LargestArg(3)).shape == (4, 2, 3)


def test_everything_in_a_kernel_has_shape_empty():
    loop = mk(Op.RANGE, dtypes.index, (index(4),), RangeArg(0, AxisKind.LOOP))
    param = mk(Op.PARAM, F, (), ParamArg(0, 4))
    load = mk(Op.LOAD, F, (mk(Op.INDEX, F, (param, loop)),))
    assert load.shape == (load + 1).shape == loop.shape == ()


def test_shape_of_deep_chain():
    node = tensor(4)
    for _ in range(50_000):
        node = node + node
    assert node.shape == (4,)


def test_ranges_are_those_reached_and_not_closed():
    i, j = (mk(Op.RANGE, dtypes.index, (index(4),), RangeArg(n, AxisKind.LOOP)) for n in (1, 0))
    k = mk(Op.RANGE, dtypes.index, (index(8),), RangeArg(2, AxisKind.REDUCE))
    value = (i * 8 + k).cast(F)
    assert (i + j).ranges == (j, i)
    assert value.ranges == (i, k)
    total = mk(Op.REDUCE, F, (value, k), ReduceArg(Op.ADD))
    assert total.ranges == (i,)
    assert (total + value).ranges == (i, k)
    assert (total * j.cast(F)).ranges == (j, i)
    assert index(3).ranges == ()


def test_ranges_of_a_range_whose_size_varies():
    outer = mk(Op.RANGE, dtypes.index, (index(4),), RangeArg(0, AxisKind.LOOP))
    inner = mk(Op.RANGE, dtypes.index, (outer + 1,), RangeArg(1, AxisKind.REDUCE))
    assert inner.ranges == (outer, inner)
    total = mk(Op.REDUCE, dtypes.index, (inner, inner), ReduceArg(Op.ADD))
    assert total.ranges == (outer,)


def test_ranges_of_deep_chain():
    i, j = (mk(Op.RANGE, dtypes.index, (index(4),), RangeArg(n, AxisKind.LOOP)) for n in (0, 1))
    node = i
    for step in range(50_000):
        node = node * 3 + (i if step % 2 else j)
    assert node.ranges == (i, j)


def test_dtype_follows_from_sources():
    x, p = tensor(3), tensor(3) < tensor(3, number=5)
    assert infer.dtype(Op.ADD, (x, x)) is F
    assert infer.dtype(Op.CMPLT, (x, x)) is dtypes.bool
    assert infer.dtype(Op.WHERE, (p, x, x)) is F
    assert infer.dtype(Op.SINK, ()) is dtypes.void
    assert infer.dtype(Op.CAST, (x,)) is None
    wide = mk(Op.VECTORIZE, F.vec(2), (UOp.const(F, 1), UOp.const(F, 2)))
    assert infer.dtype(Op.CMPEQ, (wide, wide)) is dtypes.bool.vec(2)
