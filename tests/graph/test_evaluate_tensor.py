"""The TENSOR-stage evaluator against numpy and torch."""

import numpy as np
import pytest

from gradlet.base.dtype import dtypes
from gradlet.base.errors import CompilerError
from gradlet.graph.evaluate import evaluate
from gradlet.graph.node import UOp, mk
from gradlet.ops.op import (
    AxesArg,
    BufferArg,
    GatherArg,
    LargestArg,
    MergeArg,
    Op,
    PadArg,
    ReduceAxesArg,
    ScanArg,
    ScatterArg,
    ShapeArg,
    ShrinkArg,
    StrideArg,
    VariableArg,
    WindowArg,
)


def tensor(number, array, dtype):
    """A BUFFER of the array's size seen under the array's shape, and the buffer."""
    buffer = mk(Op.BUFFER, dtype, (), BufferArg(number, array.size, "CPU"))
    return mk(Op.RESHAPE, dtype, (buffer,), ShapeArg(array.shape)), {buffer: array.reshape(-1)}


def run(node, *parts):
    buffers = {}
    for part in parts:
        buffers.update(part)
    return evaluate([node], buffers)[0]


def move(op, node, arg):
    return mk(op, node.dtype, (node,), arg)


def test_movement_ops():
    a = np.arange(24, dtype=np.int32).reshape(2, 3, 4)
    x, buffers = tensor(0, a, dtypes.int32)
    cases = [
        (Op.PERMUTE, AxesArg((2, 0, 1)), a.transpose(2, 0, 1)),
        (Op.FLIP, AxesArg((0, 2)), a[::-1, :, ::-1]),
        (Op.PAD, PadArg(((1, 0), (0, 2), (0, 0))), np.pad(a, ((1, 0), (0, 2), (0, 0)))),
        (Op.SHRINK, ShrinkArg(((0, 1), (1, 3), (2, 4))), a[0:1, 1:3, 2:4]),
        (Op.STRIDE, StrideArg((1, 2, 3)), a[:, ::2, ::3]),
        (Op.RESHAPE, ShapeArg((6, 4)), a.reshape(6, 4)),
    ]
    for op, arg, expected in cases:
        np.testing.assert_array_equal(run(move(op, x, arg), buffers), expected)


def test_expand_and_scalar_broadcast():
    a = np.array([[1.0], [2.0]], np.float32)
    x, buffers = tensor(0, a, dtypes.float32)
    y = move(Op.EXPAND, x, ShapeArg((2, 3))) + 1
    np.testing.assert_array_equal(run(y, buffers), np.broadcast_to(a, (2, 3)) + 1)


def test_window_reads_and_unwindow_is_its_adjoint():
    rng = np.random.default_rng(0)
    for stride, dilation in ((1, 1), (2, 1), (1, 2), (3, 2)):
        size, window = 11, 3
        count = (size - dilation * (window - 1) - 1) // stride + 1
        a = rng.integers(-5, 5, (2, size, window)).astype(np.float64)
        g = rng.integers(-5, 5, (2, count, window)).astype(np.float64)
        x, first = tensor(0, a, dtypes.float64)
        y, second = tensor(1, g, dtypes.float64)
        forward = run(move(Op.WINDOW, x, WindowArg(1, 2, stride, dilation, count)), first)
        for o in range(count):
            for k in range(window):
                np.testing.assert_array_equal(forward[:, o, k], a[:, o * stride + k * dilation, k])
        backward = run(move(Op.UNWINDOW, y, WindowArg(1, 2, stride, dilation, size)), second)
        assert (forward * g).sum() == (a * backward).sum()


def test_window_outside_its_source_is_refused():
    x, buffers = tensor(0, np.zeros((5, 3), np.float32), dtypes.float32)
    with pytest.raises(CompilerError, match="WINDOW"):
        run(move(Op.WINDOW, x, WindowArg(0, 1, 1, 1, 4)), buffers)


def test_reduce():
    a = np.arange(1, 25, dtype=np.int32).reshape(2, 3, 4)
    x, buffers = tensor(0, a, dtypes.int32)
    for op, function in ((Op.ADD, np.sum), (Op.MUL, np.prod), (Op.MAX, np.max), (Op.MIN, np.min)):
        node = mk(Op.REDUCE_AXES, dtypes.int32, (x,), ReduceAxesArg(op, (0, 2)))
        np.testing.assert_array_equal(run(node, buffers), function(a, axis=(0, 2)).astype(np.int32))


def test_reduce_of_nothing_gives_the_identity():
    x, buffers = tensor(0, np.zeros((3, 0), np.int8), dtypes.int8)
    for op, expected in ((Op.ADD, 0), (Op.MUL, 1), (Op.MAX, -128), (Op.MIN, 127)):
        node = mk(Op.REDUCE_AXES, dtypes.int8, (x,), ReduceAxesArg(op, (1,)))
        assert run(node, buffers).tolist() == [expected] * 3


def test_float16_sum_is_carried_in_float32():
    a = np.ones(4096, np.float16)
    x, buffers = tensor(0, a, dtypes.float16)
    node = mk(Op.REDUCE_AXES, dtypes.float16, (x,), ReduceAxesArg(Op.ADD, (0,)))
    assert run(node, buffers) == 4096


def test_max_keeps_nan():
    x, buffers = tensor(0, np.array([1.0, np.nan, 3.0], np.float32), dtypes.float32)
    assert np.isnan(run(mk(Op.REDUCE_AXES, dtypes.float32, (x,), ReduceAxesArg(Op.MAX, (0,))), buffers))
    assert np.isnan(run(x.maximum(0), buffers)[1]) and np.isnan(run(x.minimum(0), buffers)[1])


def test_gather_of_one_number_by_one_position():
    table, buffers = tensor(0, np.array([3, 4], np.int32), dtypes.int32)
    for position, want in ((1, 4), (2, 0)):
        index = UOp.const(dtypes.int32, position)
        assert run(mk(Op.GATHER, dtypes.int32, (table, index), GatherArg(0)), buffers) == want


def test_gather_gives_zero_outside():
    table, first = tensor(0, np.arange(8, dtype=np.float32).reshape(4, 2) + 1, dtypes.float32)
    index, second = tensor(1, np.array([[3, -1], [4, 0]], np.int32), dtypes.int32)
    result = run(mk(Op.GATHER, dtypes.float32, (table, index)), first, second)
    assert result.tolist() == [[[7, 8], [0, 0]], [[0, 0], [1, 2]]]


def test_scatter_in_index_order():
    target, first = tensor(0, np.zeros((3, 1), np.float32), dtypes.float32)
    index, second = tensor(1, np.array([2, 0, 2, 5, -1, 2], np.int32), dtypes.int32)
    rows, third = tensor(2, np.array([[1], [2], [3], [4], [5], [-6]], np.float32), dtypes.float32)
    expected = {None: [2, 0, -6], Op.ADD: [2, 0, -2], Op.MUL: [0, 0, 0], Op.MAX: [2, 0, 3], Op.MIN: [0, 0, -6]}
    for op, values in expected.items():
        node = mk(Op.SCATTER, dtypes.float32, (target, index, rows), ScatterArg(op))
        assert run(node, first, second, third).reshape(-1).tolist() == values, op


def test_rows_of_shared_axes():
    table, first = tensor(0, np.arange(12, dtype=np.float32).reshape(2, 3, 2), dtypes.float32)
    index, second = tensor(1, np.array([[2, 0], [1, 7]], np.int32), dtypes.int32)
    result = run(mk(Op.GATHER, dtypes.float32, (table, index), GatherArg(1)), first, second)
    assert result.tolist() == [[[4, 5], [0, 1]], [[8, 9], [0, 0]]]
    rows, third = tensor(2, np.ones((2, 2, 2), np.float32), dtypes.float32)
    node = mk(Op.SCATTER, dtypes.float32, (table, index, rows), ScatterArg(Op.ADD, 1))
    assert run(node, first, second, third).reshape(-1).tolist() == [1, 2, 2, 3, 5, 6, 6, 7, 9, 10, 10, 11]


def test_running_combinations():
    x, buffers = tensor(0, np.array([[1, -2, 3], [4, 0, 5]], np.int32), dtypes.int32)
    start, second = tensor(1, np.array([10, 20], np.int32), dtypes.int32)
    cases = [
        (Op.ADD, 1, False, [[11, 9, 12], [24, 24, 29]]), (Op.ADD, 1, True, [[10, 11, 9], [20, 24, 24]]),
        (Op.MAX, 1, False, [[10, 10, 10], [20, 20, 20]]), (Op.MUL, 1, False, [[10, -20, -60], [80, 0, 0]]),
    ]  # fmt: skip
    for op, axis, exclusive, expected in cases:
        node = mk(Op.SCAN, dtypes.int32, (x, start), ScanArg(op, axis, exclusive))
        assert run(node, buffers, second).tolist() == expected
    node = mk(Op.SCAN, dtypes.int32, (x, UOp.const(dtypes.int32, 1), x), ScanArg(Op.MULADD, 0, False))
    assert run(node, buffers).tolist() == [[2, -4, 6], [12, 0, 35]]


def test_values_in_descending_order():
    x, buffers = tensor(0, np.array([[9, 4, 1], [7, 5, 0]], np.uint8), dtypes.uint8)
    assert run(mk(Op.MERGE, dtypes.uint8, (x,), MergeArg()), buffers).tolist() == [9, 7, 5, 4, 1, 0]
    assert run(mk(Op.MERGE, dtypes.uint8, (x,), MergeArg(True)), buffers).tolist() == [9, 7, 5]
    y, buffers = tensor(1, np.array([3, 255, 3, 8], np.uint8), dtypes.uint8)
    assert run(mk(Op.LARGEST, dtypes.uint8, (y,), LargestArg(3)), buffers).tolist() == [8, 3, 0]


def test_write_through_a_view():
    a = np.arange(12, dtype=np.int32).reshape(3, 4)
    x, buffers = tensor(0, a, dtypes.int32)
    view = move(Op.FLIP, move(Op.SHRINK, x, ShrinkArg(((1, 3), (0, 2)))), AxesArg((0,)))
    value, second = tensor(1, np.array([[100, 101], [102, 103]], np.int32), dtypes.int32)
    result = run(mk(Op.WRITE, dtypes.int32, (x, view, value)), buffers, second)
    expected = a.copy()
    expected[1:3, 0:2][::-1] = [[100, 101], [102, 103]]
    np.testing.assert_array_equal(result, expected)
    assert a[1, 0] == 4  # the buffer given keeps its contents


def test_bfloat16_rounds_after_every_op():
    torch = pytest.importorskip("torch")
    rng = np.random.default_rng(1)
    a = torch.from_numpy(rng.standard_normal(4096).astype(np.float32)).bfloat16()
    b = torch.from_numpy(rng.standard_normal(4096).astype(np.float32)).bfloat16()
    x, first = tensor(0, a.view(torch.int16).numpy().view(np.uint16), dtypes.bfloat16)
    y, second = tensor(1, b.view(torch.int16).numpy().view(np.uint16), dtypes.bfloat16)
    for ours, theirs in ((x * y + x, a * b + a), (x.fdiv(y), a / b), ((x * x).sqrt(), (a * a).sqrt())):
        expected = theirs.view(torch.int16).numpy().view(np.uint16)
        np.testing.assert_array_equal(run(ours, first, second), expected)


def test_casts_saturate_truncate_and_wrap():
    x, buffers = tensor(0, np.array([np.nan, np.inf, -np.inf, -1.9, 1.9, 300.0, 3e10, 1e30]), dtypes.float64)
    assert run(x.cast(dtypes.uint8), buffers).tolist() == [0, 255, 0, 0, 1, 255, 255, 255]
    assert run(x.cast(dtypes.int32), buffers).tolist() == [0, 2**31 - 1, -(2**31), -1, 1, 300, 2**31 - 1, 2**31 - 1]
    assert run(x.cast(dtypes.int64), buffers).tolist()[-2:] == [30_000_000_000, 2**63 - 1]
    assert run(x.cast(dtypes.bool), buffers).tolist() == [True] * 8
    y, more = tensor(1, np.array([300, -1], np.int32), dtypes.int32)
    assert run(y.cast(dtypes.uint8), more).tolist() == [44, 255]


def test_long_chain_does_not_recurse():
    x, buffers = tensor(0, np.zeros(1, np.int32), dtypes.int32)
    node = x
    for _ in range(50_000):
        node = node + 1
    assert run(node, buffers).tolist() == [50_000]


def test_mismatched_shapes_are_refused():
    x, first = tensor(0, np.zeros((2, 3), np.int32), dtypes.int32)
    y, second = tensor(1, np.zeros((1, 3), np.int32), dtypes.int32)
    with pytest.raises(CompilerError, match="ADD"):
        run(x + y, first, second)


def test_variables():
    n = mk(Op.VARIABLE, dtypes.int32, (), VariableArg("n", 1, 9))
    assert evaluate([mk(Op.BIND, dtypes.int32, (n, UOp.const(dtypes.int32, 5))) + 1], {})[0] == 6
    assert evaluate([n * 2], {}, {n: 4})[0] == 8
