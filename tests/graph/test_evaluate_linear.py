"""The LINEAR-stage interpreter against numpy."""

import numpy as np
import pytest

from gradlet.base.dtype import dtypes
from gradlet.base.errors import CompilerError
from gradlet.graph.evaluate import run_linear
from gradlet.graph.node import UOp, mk
from gradlet.graph.program import LinearProgram
from gradlet.ops.op import AccArg, AxisKind, LaneArg, Op, ParamArg, RangeArg, ReduceArg, SpecialArg, VariableArg

F32, INDEX = dtypes.float32, dtypes.index


def param(slot, size, dtype=F32):
    return mk(Op.PARAM, dtype, (), ParamArg(slot, size))


def loop(number, bound, kind=AxisKind.LOOP):
    return mk(Op.RANGE, INDEX, (bound,), RangeArg(number, kind))


def end(r):
    return mk(Op.END, dtypes.void, (r,))


def const(value, dtype=INDEX):
    return UOp.const(dtype, value)


def index(p, *rest):
    return mk(Op.INDEX, p.dtype, (p, *rest))


def program(uops, grid=1, threads=1):
    params = tuple(u for u in uops if u.op is Op.PARAM)
    variables = tuple(u for u in uops if u.op is Op.VARIABLE)
    return LinearProgram("test", tuple(uops), params, (0,), variables, grid, threads, 0, 0)


def row_sums(rows, columns):
    out, source, zero, m, n = param(0, rows), param(1, rows * columns), const(0.0, F32), const(rows), const(columns)
    i, r = loop(0, m, AxisKind.PARALLEL), loop(1, n, AxisKind.REDUCE)
    acc = mk(Op.ACC, F32, (zero, r), AccArg(0))
    row, at = i * n, i * n + r
    address = index(source, at)
    value = mk(Op.LOAD, F32, (address,))
    total = acc + value
    update = mk(Op.UPDATE, F32, (acc, total))
    place = index(out, i)
    store = mk(Op.STORE, dtypes.void, (place, acc))
    uops = [out, source, zero, m, n, i, row, acc, r, at, address, value, total, update, end(r), place, store, end(i)]
    return program(uops, rows)


def test_nested_loops_with_an_accumulator():
    x = np.arange(12, dtype=np.float32).reshape(3, 4)
    out = np.zeros(3, np.float32)
    run_linear(row_sums(3, 4), [out, x])
    np.testing.assert_array_equal(out, x.sum(1))


def test_part_of_the_parallel_range():
    x = np.arange(12, dtype=np.float32).reshape(3, 4)
    out = np.full(3, -1, np.float32)
    run_linear(row_sums(3, 4), [out, x], {}, 1, 2)
    assert out.tolist() == [-1, 22, -1]


def test_empty_loop_runs_nothing():
    n = mk(Op.VARIABLE, INDEX, (), VariableArg("n", 0, 4))
    out, zero = param(0, 4), const(7.0, F32)
    i = loop(0, n)
    place = index(out, i)
    uops = [out, n, zero, i, place, mk(Op.STORE, dtypes.void, (place, zero)), end(i)]
    result = np.zeros(4, np.float32)
    run_linear(program(uops), [result], {n: 0})
    assert result.tolist() == [0] * 4
    run_linear(program(uops), [result], {n: 3})
    assert result.tolist() == [7, 7, 7, 0]
    with pytest.raises(CompilerError, match="variable n"):
        run_linear(program(uops), [result], {})


def test_vectors_and_masks():
    vector = F32.vec(4)
    out, source, zero, six = param(0, 6), param(1, 6), const(0.0, vector), const(6)
    step, two = const(4), const(2)
    i = loop(0, two)
    at = i * step
    lane = mk(Op.VECTORIZE, INDEX.vec(4), tuple(const(k) for k in range(4)))
    many = mk(Op.VECTORIZE, INDEX.vec(4), (at,)) + lane
    gate = many.lt(UOp.const(INDEX.vec(4), 6))
    address = index(source, at, gate)
    value = mk(Op.LOAD, vector, (address, zero))
    total = mk(Op.REDUCE_LANES, F32, (value,), ReduceArg(Op.ADD))
    first = mk(Op.EXTRACT, F32, (value,), LaneArg(0))
    scaled = value + mk(Op.VECTORIZE, vector, (total * first,))
    place = index(out, at, gate)
    store = mk(Op.STORE, dtypes.void, (place, scaled))
    order = [n for n in store.toposort() if n.op is not Op.RANGE]
    before = [n for n in order if i not in n.toposort()]
    uops = [*before, six, two, i, *[n for n in order if n not in before], end(i)]
    x = np.arange(1, 7, dtype=np.float32)
    result = np.zeros(6, np.float32)
    run_linear(program(list(dict.fromkeys(uops))), [result, x])
    assert result.tolist() == [1 + 10, 2 + 10, 3 + 10, 4 + 10, 5 + 55, 6 + 55]


def test_special_registers():
    block, thread = (mk(Op.SPECIAL, INDEX, (), SpecialArg(*a)) for a in (("workgroup", 3), ("thread", 4)))
    out, four = param(0, 12, dtypes.int32), const(4)
    at = block * four + thread
    place, value = index(out, at), at.cast(dtypes.int32)
    scaled = block * four
    uops = [out, four, block, thread, scaled, at, place, value, mk(Op.STORE, dtypes.void, (place, value))]
    result = np.zeros(12, np.int32)
    run_linear(program(uops, 3, 4), [result])
    assert result.tolist() == list(range(12))


def test_loops_must_nest():
    i, j = loop(0, const(2)), loop(1, const(2))
    with pytest.raises(CompilerError, match="innermost"):
        run_linear(program([const(2), i, j, end(i), end(j)]), [])
