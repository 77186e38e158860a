"""Bounds against brute force; factors; what wraps; what floats get."""

from __future__ import annotations

import math
from itertools import product

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gradlet.base.dtype import dtypes
from gradlet.graph.bounds import bounds, const_factor
from gradlet.graph.fold import fold
from gradlet.graph.node import UOp, mk
from gradlet.ops.op import AxisKind, BufferArg, LaneArg, Op, RangeArg, ReduceArg, VariableArg

INF = math.inf
X = dtypes.index


def variable(name: str, low: int, high: int, dtype=X) -> UOp:
    return mk(Op.VARIABLE, dtype, (), VariableArg(name, low, high))


def index(value: int) -> UOp:
    return UOp.const(X, value)


def loop(size: UOp | int, number: int = 0, kind: AxisKind = AxisKind.LOOP) -> UOp:
    return mk(Op.RANGE, X, (index(size) if isinstance(size, int) else size,), RangeArg(number, kind))


a, b = variable("a", -3, 5), variable("b", 2, 4)
n = variable("n", 1, 10)


@pytest.mark.parametrize(
    ("node", "expected"),
    [
        (index(7), (7, 7)),
        (a, (-3, 5)),
        (a + b, (-1, 9)),
        (a - b, (-7, 3)),
        (a * b, (-12, 20)),
        (a * a, (-15, 25)),
        (a // b, (-2, 2)),
        (a % b, (0, 3)),
        (b % 5, (2, 4)),
        (variable("t", 21, 23) % 10, (1, 3)),
        (variable("t", 18, 23) % 10, (0, 9)),
        (b % variable("m", 7, 9), (2, 4)),
        (a % -4, (-3, 0)),
        (b // index(0), (0, 0)),
        (b // variable("z", -1, 1), (-4, 4)),
        (a.maximum(b), (2, 5)),
        (a.minimum(b), (-3, 4)),
        (loop(8), (0, 7)),
        (loop(n), (0, 9)),
        (loop(0), (0, 0)),
        (loop(4) * 8 + loop(8, 1), (0, 31)),
        ((loop(32) % 8), (0, 7)),
        ((loop(32) // 8), (0, 3)),
        (a < 6, (True, True)),
        (a < -3, (False, False)),
        (a < 0, (False, True)),
        (b.eq(1), (False, False)),
        (b.ne(1), (True, True)),
        (index(3).eq(3), (True, True)),
        (index(3).ne(3), (False, False)),
        ((a < 6).where(a, 100), (-3, 5)),
        ((a < -3).where(a, 100), (100, 100)),
        ((a < 0).where(a, 100), (-3, 100)),
        ((a < 6) & (b < 9), (True, True)),
        ((a < 0) | (b < 9), (True, True)),
        ((a < 6) ^ (b < 9), (False, False)),
        ((a < 6).logical_not(), (False, False)),
        (b & 6, (0, 4)),
        (a & 6, (0, 6)),
        (b | 8, (8, 15)),
        (b ^ 8, (0, 15)),
        (b << 3, (16, 32)),
        (a >> 1, (-2, 2)),
        (a.cast(dtypes.int32), (-3, 5)),
        (a.cast(dtypes.uint8), (0, 255)),
        (b.cast(dtypes.uint8), (2, 4)),
        (b.cast(dtypes.bool), (True, True)),
        (a.cast(dtypes.bool), (False, True)),
        (index(0).cast(dtypes.bool), (False, False)),
        (b.cast(dtypes.float32), (2.0, 4.0)),
        (b.cast(dtypes.float32) + 1, (-INF, INF)),
        (b.cast(dtypes.float8_e4m3fn), (2.0, 4.0)),
        (b.cast(dtypes.uint8).bitcast(dtypes.int8).cast(dtypes.float8_e4m3fn), (-128.0, 128.0)),
        # Too large for a type without infinities: it may be NaN, which only an unbounded interval says.
        ((b * 1000).cast(dtypes.float8_e4m3fn), (-INF, INF)),
        ((b * 1000).cast(dtypes.float8_e4m3fn).cast(dtypes.float32), (-INF, INF)),
        ((b * 100000).cast(dtypes.float8_e5m2), (INF, INF)),
        (mk(Op.BUFFER, dtypes.float8_e4m3fn, (), BufferArg(10**9, 4, "CPU")).cast(dtypes.float32), (-INF, INF)),
        (UOp.const(dtypes.float32, 1.5), (1.5, 1.5)),
        (UOp.const(dtypes.float32, math.nan), (-INF, INF)),
        (UOp.const(dtypes.float32, 2.7).cast(dtypes.int32), (2, 2)),
        (UOp.const(dtypes.float32, math.nan).cast(dtypes.int32), (-(2**31), 2**31 - 1)),
        (a.bitcast(dtypes.int64), (-(2**63), 2**63 - 1)),
        (mk(Op.BUFFER, dtypes.int8, (), BufferArg(10**9, 4, "CPU")), (-128, 127)),
        (mk(Op.BUFFER, dtypes.bool, (), BufferArg(10**9, 4, "CPU")), (False, True)),
        (mk(Op.BIND, X, (n, index(3))), (1, 10)),
        (mk(Op.VECTORIZE, X.vec(2), (a, b)), (-3, 5)),
        (mk(Op.EXTRACT, X, (mk(Op.VECTORIZE, X.vec(2), (b, b)),), LaneArg(0)), (2, 4)),
        (mk(Op.REDUCE_LANES, X, (mk(Op.VECTORIZE, X.vec(2), (a, b)),), ReduceArg(Op.ADD)), (-6, 10)),
        (mk(Op.MULADD, X, (a, b, index(1))), (-11, 21)),
    ],
    ids=repr,
)
def test_bounds(node, expected):
    assert bounds(node) == expected
    assert type(bounds(node)[0]) is type(expected[0])


def test_overflow_gives_the_whole_type():
    small = variable("s", 0, 100, dtypes.uint8)
    assert bounds(small + 100) == (100, 200)
    assert bounds(small + 200) == (0, 255)
    assert bounds(small * 3) == (0, 255)
    assert bounds(small - 1) == (0, 255)
    assert bounds(variable("t", 0, 100, dtypes.int8) << 1) == (-128, 127)
    # An index never overflows.
    assert bounds(variable("u", 0, 2**40) * 2**40) == (0, 2**80)


def test_comparison_of_floats_allows_for_nan():
    unknown = mk(Op.BUFFER, dtypes.float32, (), BufferArg(10**9, 4, "CPU"))
    assert bounds(unknown < INF) == (False, True)
    assert bounds(unknown.eq(unknown)) == (False, True)
    assert bounds(UOp.const(dtypes.float32, math.nan).eq(math.nan)) == (False, True)
    assert bounds(a.cast(dtypes.float32) < 6) == (True, True)


def test_reduce_bounds():
    k = loop(4, 3, AxisKind.REDUCE)
    assert bounds(mk(Op.REDUCE, X, (b, k), ReduceArg(Op.ADD))) == (8, 16)
    assert bounds(mk(Op.REDUCE, X, (k, k), ReduceArg(Op.MAX))) == (0, 3)
    varying = loop(n, 3, AxisKind.REDUCE)
    assert bounds(mk(Op.REDUCE, X, (a, varying), ReduceArg(Op.ADD))) == (-30, 50)
    empty = loop(variable("e", 0, 3), 3, AxisKind.REDUCE)
    assert bounds(mk(Op.REDUCE, dtypes.int8, (b.cast(dtypes.int8), empty), ReduceArg(Op.MAX))) == (-128, 127)


def test_deep_chain():
    node = a
    for _ in range(50_000):
        node = node + 1
    assert bounds(node) == (49_997, 50_005)
    assert const_factor((node * 6) + 4) == 2
    doubled = a * 6
    for _ in range(100):
        doubled = doubled + doubled
    assert const_factor(doubled) == 6


NARROW = dtypes.int8
LEAVES = [variable("p", -3, 4, NARROW), variable("q", 0, 3, NARROW), variable("r", 5, 7, NARROW)]
OPS = [Op.ADD, Op.MUL, Op.IDIV, Op.MOD, Op.MAX, Op.MIN, Op.AND, Op.OR, Op.XOR]


def expressions(dtype) -> st.SearchStrategy[UOp]:
    leaves = [mk(Op.VARIABLE, dtype, (), v.arg) for v in LEAVES]
    base = st.one_of(
        st.sampled_from(leaves), st.sampled_from([-3, -1, 0, 1, 2, 5, 9]).map(lambda v: UOp.const(dtype, v))
    )

    def grow(inner):
        binary = st.tuples(st.sampled_from(OPS), inner, inner).map(lambda t: mk(t[0], dtype, (t[1], t[2])))
        shifts = st.tuples(st.sampled_from([Op.SHL, Op.SHR]), inner, st.integers(0, 3)).map(
            lambda t: mk(t[0], dtype, (t[1], UOp.const(dtype, t[2])))
        )
        choice = st.tuples(st.sampled_from([Op.CMPLT, Op.CMPEQ, Op.CMPNE]), inner, inner, inner, inner).map(
            lambda t: mk(t[0], dtypes.bool, (t[1], t[2])).where(t[3], t[4])
        )
        casts = inner.map(lambda v: v.cast(dtypes.bool if dtype is X else dtypes.uint8).cast(dtype))
        return st.one_of(binary, binary, shifts, choice, casts)

    return st.recursive(base, grow, max_leaves=8)


def values(node: UOp) -> list[int]:
    """Every value the node has, by trying all values of the variables."""
    order = node.toposort()
    variables = [v for v in order if v.op is Op.VARIABLE]
    found = []
    for choice in product(*(range(v.arg.low, v.arg.high + 1) for v in variables)):
        known = dict(zip(variables, choice))
        for v in order:
            if v.op is Op.CONST:
                known[v] = v.arg
            elif v.op is not Op.VARIABLE:
                known[v] = fold(v.op, v.dtype, [known[s] for s in v.src], v.src[0].dtype)
        found.append(known[node])
    return found


@settings(max_examples=150, deadline=None)
@given(st.one_of(expressions(NARROW), expressions(X)))
def test_bounds_and_factor_hold_for_every_value(node):
    found = values(node)
    low, high = bounds(node)
    assert low <= min(found) and max(found) <= high
    factor = const_factor(node)
    assert all(v == 0 if factor == 0 else v % factor == 0 for v in found)


@pytest.mark.parametrize(
    ("node", "factor"),
    [
        (index(12), 12),
        (index(-12), 12),
        (index(0), 0),
        (a, 1),
        (a * 6, 6),
        (a * 6 + b * 4, 2),
        (a * 6 + 9, 3),
        (a * 6 + index(0), 6),
        ((a * 6) * 5, 30),
        ((a * 4).maximum(b * 8), 4),
        ((a < b).where(a * 4, 6), 2),
        ((a * 3) << 2, 12),
        ((a * 3).cast(dtypes.int32), 3),
        (variable("s", 0, 40, dtypes.uint8) * 6, 6),
        (variable("s", 0, 100, dtypes.uint8) * 6, 2),
        (a // 2, 1),
        ((a < b).cast(X), 1),
    ],
    ids=repr,
)
def test_const_factor(node, factor):
    assert const_factor(node) == factor


def test_bounds_and_factor_of_shared_and_deep_index_sums():
    # Every step uses the one before twice: a walk that followed paths would never end.
    node = variable("deep", 0, 3)
    for _ in range(200):
        node = node + node * 2
    assert bounds(node) == (0, 3 * 3**200)
    assert const_factor(node * 4) == 4
    long = variable("long", 0, 1) * 6
    for number in range(20_000):
        long = long + variable("long", 0, 1) * (4 + 6 * (number % 2))
    assert const_factor(long) == 2
    assert bounds(long)[0] == 0
