"""The KERNEL-stage evaluator against numpy."""

import numpy as np
import pytest

from gradlet.base.dtype import dtypes
from gradlet.base.errors import CompilerError
from gradlet.graph import evaluate_kernel
from gradlet.graph.evaluate import run_kernel
from gradlet.graph.node import UOp, mk
from gradlet.ops.op import AxisKind, KernelArg, LaneArg, Op, ParamArg, RangeArg, ReduceArg, VariableArg

F32 = dtypes.float32


def param(slot, size, dtype=F32):
    return mk(Op.PARAM, dtype, (), ParamArg(slot, size))


def loop(number, size, kind=AxisKind.LOOP):
    bound = size if isinstance(size, UOp) else UOp.const(dtypes.index, size)
    return mk(Op.RANGE, dtypes.index, (bound,), RangeArg(number, kind))


def load(p, element, gate=None, otherwise=0.0, count=1):
    source = (p, element) if gate is None else (p, element, gate)
    index = mk(Op.INDEX, p.dtype, source)
    dtype = p.dtype.vec(count)
    return mk(Op.LOAD, dtype, (index,) if gate is None else (index, UOp.const(dtype, otherwise)))


def store(p, element, value, gate=None):
    index = mk(Op.INDEX, p.dtype, (p, element) if gate is None else (p, element, gate))
    return mk(Op.STORE, dtypes.void, (index, value))


def reduce(op, value, *ranges):
    return mk(Op.REDUCE, value.dtype, (value, *ranges), ReduceArg(op))


def sink(*stores):
    return mk(Op.SINK, dtypes.void, stores, KernelArg("test"))


@pytest.fixture(params=[1 << 20, 64, 5])
def block(request, monkeypatch):
    """Every test runs whole and cut into small blocks."""
    monkeypatch.setattr(evaluate_kernel, "BLOCK", request.param)


def test_matmul(block):
    m, n, k = 7, 5, 6
    i, j, r = loop(0, m), loop(1, n), loop(2, k, AxisKind.REDUCE)
    product = load(param(1, m * k), i * k + r) * load(param(2, k * n), r * n + j)
    kernel = sink(store(param(0, m * n), i * n + j, reduce(Op.ADD, product, r)))
    rng = np.random.default_rng(0)
    a, b = rng.integers(-4, 5, (m, k)).astype(np.float32), rng.integers(-4, 5, (k, n)).astype(np.float32)
    out = np.full(m * n, -1, np.float32)
    run_kernel(kernel, [out, a, b], {})
    np.testing.assert_array_equal(out.reshape(m, n), a @ b)


def test_reduce_of_a_value_without_the_range_counts_it(block):
    r = loop(0, 12, AxisKind.REDUCE)
    zero = UOp.const(dtypes.index, 0)
    kernel = sink(store(param(0, 1), zero, reduce(Op.ADD, UOp.const(F32, 1.5), r)))
    out = np.zeros(1, np.float32)
    run_kernel(kernel, [out], {})
    assert out[0] == 18


def test_softmax_with_two_reduces_over_one_range(block):
    rows, columns = 4, 9
    i, j, r = loop(0, rows), loop(1, columns), loop(2, columns, AxisKind.REDUCE)
    source = param(1, rows * columns)
    top = reduce(Op.MAX, load(source, i * columns + r), r)
    total = reduce(Op.ADD, (load(source, i * columns + r) - top).exp(), r)
    value = (load(source, i * columns + j) - top).exp().fdiv(total)
    x = np.random.default_rng(1).standard_normal((rows, columns)).astype(np.float32)
    out = np.zeros(rows * columns, np.float32)
    run_kernel(sink(store(param(0, rows * columns), i * columns + j, value)), [out, x], {})
    e = np.exp(x - x.max(1, keepdims=True))
    np.testing.assert_allclose(out.reshape(rows, columns), e / e.sum(1, keepdims=True), rtol=1e-6)


def test_in_place_loads_come_before_stores(block):
    size = 30
    i, r = loop(0, size), loop(1, size, AxisKind.REDUCE)
    p = param(0, size)
    total = reduce(Op.ADD, load(p, r), r)
    x = np.arange(size, dtype=np.float32)
    expected = x * x.sum()
    run_kernel(sink(store(p, i, load(p, i) * total)), [x], {})
    np.testing.assert_array_equal(x, expected)


def test_several_stores_with_different_ranges(block):
    i, j, r = loop(0, 3), loop(1, 4), loop(2, 4, AxisKind.REDUCE)
    source = param(2, 12)
    kernel = sink(
        store(param(0, 12), i * 4 + j, load(source, i * 4 + j) + 1),
        store(param(1, 3), i, reduce(Op.MAX, load(source, i * 4 + r), r)),
    )
    x = np.random.default_rng(2).standard_normal((3, 4)).astype(np.float32)
    first, second = np.zeros(12, np.float32), np.zeros(3, np.float32)
    run_kernel(kernel, [first, second, x], {})
    np.testing.assert_array_equal(first.reshape(3, 4), x + 1)
    np.testing.assert_array_equal(second, x.max(1))


def test_guards(block):
    i = loop(0, 10)
    inside = (i - 2).lt(6) & (i - 2).ge(0) if hasattr(i, "ge") else (i - 2).lt(6) & ((i - 2) >= 0)
    value = load(param(1, 6), i - 2, inside, otherwise=-1.0)
    kernel = sink(store(param(0, 10), i, value, gate=i.lt(9)))
    out = np.zeros(10, np.float32)
    run_kernel(kernel, [out, np.arange(6, dtype=np.float32)], {})
    assert out.tolist() == [-1, -1, 0, 1, 2, 3, 4, 5, -1, 0]


def test_access_outside_is_reported():
    i = loop(0, 10)
    with pytest.raises(CompilerError, match="element 6 of parameter 1"):
        run_kernel(sink(store(param(0, 10), i, load(param(1, 6), i))), [np.zeros(10, np.float32)] * 2, {})


def test_ordered_range_sees_earlier_stores(block):
    rows, columns, count = 3, 2, 5
    n, j = loop(0, count, AxisKind.ORDERED), loop(1, columns)
    target, index, values = param(0, rows * columns), param(1, count, dtypes.int32), param(2, count * columns)
    row = load(
        index,
        n,
    ).cast(dtypes.index)
    inside = row.lt(rows) & (row >= 0)
    old = load(target, row * columns + j, inside)
    kernel = sink(store(target, row * columns + j, old + load(values, n * columns + j), inside))
    out = np.zeros((rows, columns), np.float32)
    where = np.array([2, 0, 2, 7, 2], np.int32)
    x = np.arange(count * columns, dtype=np.float32).reshape(count, columns)
    run_kernel(kernel, [out, where, x], {})
    expected = np.zeros_like(out)
    np.add.at(expected, where[[0, 1, 2, 4]], x[[0, 1, 2, 4]])
    np.testing.assert_array_equal(out, expected)


def test_ordered_prefix_sum():
    n = loop(0, 7, AxisKind.ORDERED)
    out, source = param(0, 8), param(1, 7)
    kernel = sink(store(out, n + 1, load(out, n) + load(source, n)))
    x, result = np.arange(1, 8, dtype=np.float32), np.zeros(8, np.float32)
    run_kernel(kernel, [result, x], {})
    assert result.tolist() == [0, *np.cumsum(x).tolist()]


def test_symbolic_size(block):
    n = mk(Op.VARIABLE, dtypes.index, (), VariableArg("n", 1, 20))
    i = loop(0, n)
    out = np.zeros(20, np.float32)
    run_kernel(sink(store(param(0, 20), i, (i + n).cast(F32))), [out], {n: 5})
    assert out.tolist() == [5, 6, 7, 8, 9] + [0] * 15


def test_vectors(block):
    i = loop(0, 3)
    source = param(1, 12)
    v = load(source, i * 4, count=4)
    total = mk(Op.REDUCE_LANES, F32, (v,), ReduceArg(Op.ADD))
    last = mk(Op.EXTRACT, F32, (v,), LaneArg(3))
    w = v * mk(Op.VECTORIZE, F32.vec(4), (total,)) + mk(Op.VECTORIZE, F32.vec(4), (last, total, last, last))
    x = np.arange(12, dtype=np.float32).reshape(3, 4)
    out = np.zeros(12, np.float32)
    run_kernel(sink(store(param(0, 12), i * 4, w)), [out, x], {})
    s, e = x.sum(1, keepdims=True), x[:, 3:]
    np.testing.assert_array_equal(out.reshape(3, 4), x * s + np.concatenate([e, s, e, e], 1))


def test_bfloat16_memory():
    i = loop(0, 2)
    p, q = param(0, 2, dtypes.bfloat16), param(1, 2, dtypes.bfloat16)
    out = np.zeros(2, np.uint16)
    run_kernel(sink(store(p, i, load(q, i) * 2)), [out, np.array([0x3F80, 0x4040], np.uint16)], {})
    assert out.tolist() == [0x4000, 0x40C0]


def test_deep_kernel_does_not_recurse():
    i = loop(0, 2)
    value = load(param(1, 2), i)
    for _ in range(20_000):
        value = value + 1
    out = np.zeros(2, np.float32)
    run_kernel(sink(store(param(0, 2), i, value)), [out, np.zeros(2, np.float32)], {})
    assert out.tolist() == [20_000, 20_000]


def test_memory_larger_than_the_parameter_and_of_another_type() -> None:
    """A scheduler lets buffers share memory: the array may have more bytes, and not a whole number of elements."""
    number = mk(Op.RANGE, dtypes.index, (UOp.const(dtypes.index, 6),), RangeArg(0, AxisKind.LOOP))
    address = mk(Op.INDEX, dtypes.float32, (mk(Op.PARAM, dtypes.float32, (), ParamArg(0, 6)), number), None)
    value = mk(Op.CAST, dtypes.float32, (number,), None)
    store = mk(Op.STORE, dtypes.void, (address, value), None)
    memory = np.zeros(27, np.bool_)
    run_kernel(mk(Op.SINK, dtypes.void, (store,), KernelArg("e_6")), [memory], {})
    np.testing.assert_array_equal(memory.view(np.uint8)[:24].view(np.float32), np.arange(6))
