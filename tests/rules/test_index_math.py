"""Index arithmetic: what it becomes, and random expressions against Python's integers."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gradlet.base.dtype import dtypes
from gradlet.graph.fold import fold
from gradlet.graph.node import UOp, mk, toposort
from gradlet.graph.rewrite import rewrite
from gradlet.ops.op import AxisKind, Op, RangeArg, ReduceArg, VariableArg
from gradlet.rules.sets import INDEX_MATH, SIMPLIFY, simplify

INDEX = dtypes.index


def variable(name, low, high):
    return mk(Op.VARIABLE, INDEX, (), VariableArg(name, low, high))


def loop(number, size):
    return mk(Op.RANGE, INDEX, (UOp.const(INDEX, size),), RangeArg(number, AxisKind.LOOP))


def const(value):
    return UOp.const(INDEX, value)


i, j, k = loop(0, 10), loop(1, 4), loop(2, 3)
v, w = variable("v", -20, 20), variable("w", -20, 20)
TRUE, FALSE = UOp.const(dtypes.bool, True), UOp.const(dtypes.bool, False)


@pytest.mark.parametrize(
    "before, after",
    [
        ((i * 4 + j) // 4, i),
        ((i * 4 + j) % 4, j),
        ((i * 4 + j) // 8, i // 2),
        ((i * 4 + j) % 8, (i % 2) * 4 + j),
        ((i * 4 + j) // 16 * 16 + (i * 4 + j) % 16, i * 4 + j),
        ((i * 12 + j * 3 + k) // 3 % 4, j),
        ((i * 12 + j * 3 + k) % 3, k),
        ((v + 5) // 4, (v + 1) // 4 + 1),
        ((v * 6) // 4, (v * 3) // 2),
        ((v * 6) % 4, (v % 2) * 2),
        ((v // 3) // 4, v // 12),
        (((v // 3) + 5) // 4, (v + 3) // 12 + 1),
        ((v % 12) // 3, (v // 3) % 4),
        ((v % 12) % 3, v % 3),
        (v // 4 * 4 + v % 4, v),
        ((v // 4) % 3 * 4 + v % 4, v % 12),
        ((v * 5 + w) % 4, (v + w) % 4),
        ((v - 1) % 4, (v + 3) % 4),
        (k % 3, k),
        (k // 3, const(0)),
        ((k - 3) // 3, const(-1)),
        ((k - 3) % 3, k),
        (v.maximum(30), const(30)),
        (v.maximum(-20), v),
        (v.minimum(20), v),
        (loop(7, 1) + i, i),
        (v * 0 + w, w),
        (w + v + 1 + w * 2 - 1, v + w * 3),
        (v - v, const(0)),
        ((v + w + 1) * 3, v * 3 + w * 3 + 3),
    ],
)  # fmt: skip
def test_normal_forms(before, after):
    assert simplify(before) is after


@pytest.mark.parametrize(
    "before, after",
    [
        (j < 4, TRUE),
        (j < 0, FALSE),
        ((v + 3) < 2, v < -1),
        ((v * 3) < 10, v < 4),
        ((v // 4) < 3, v < 12),
        (const(3) < v // 4, const(15) < v),
        ((i * 4 + j) < 16, i < 4),
        ((i * 4 + j) < (i * 4 + 2), j < 2),
        ((i * 4 + j) >= 0, TRUE),
        (v >= 3, const(2) < v),
        (v <= 3, v < 4),
        ((v < 3).logical_not(), const(2) < v),
        ((v * 2).eq(7), FALSE),
        ((v * 2 + 1).eq(7), v.eq(3)),
        ((v * 2 + 1).ne(7), v.ne(3)),
        ((v < 5) & (v < 3), v < 3),
        ((v < 3) & (const(2) < v), FALSE),
        ((i < 4) & (j < 4), i < 4),
        (((v - 2) >= 0) & ((v - 2) < 6), (const(1) < v) & (v < 8)),
        ((v < w) & TRUE, v < w),
        (v - w < 0, v < w),
    ],
)  # fmt: skip
def test_conditions(before, after):
    assert simplify(before) is after


def test_terms_stand_in_the_order_of_their_loops():
    assert simplify(k + j * 3 + i * 12 + 5) is i * 12 + j * 3 + k + 5
    # Whatever was made first.
    late, early = loop(41, 5), loop(40, 5)
    assert simplify(late + early) is early + late


def test_casts_of_index_go_away():
    number = i.cast(dtypes.int32)
    assert simplify(number.cast(INDEX)) is i
    assert simplify((number * 4 + 3).cast(INDEX)) is i * 4 + 3
    # 300 does not fit int8: the cast back is not the same number.
    wide = loop(5, 300)
    assert simplify(wide.cast(dtypes.int8).cast(INDEX)) is not wide
    # Sums of loaded integers may overflow: they stay as they are.
    loaded = variable("n", -(2**31), 2**31 - 1).cast(dtypes.int32)
    assert simplify((loaded + loaded).cast(INDEX)).op is Op.CAST


def test_a_long_sum_is_left_alone_in_linear_time():
    total = variable("t0", 0, 3)
    for n in range(1, 3000):
        total = total + variable(f"t{n}", 0, 3)
    assert len(toposort([simplify(total)])) == 5999
    deep = v
    for _ in range(20_000):
        deep = deep + 1
    assert simplify(deep) is v + 20_000


EXPRESSION_LEAVES = st.sampled_from([i, j, k, v, w]) | st.integers(-20, 20).map(const)


def binary(children):
    small = st.integers(-8, 12).filter(bool).map(const)
    return (
        st.builds(lambda a, b: a + b, children, children)
        | st.builds(lambda a, b: a * b, children, small)
        | st.builds(lambda a, b: a // b, children, small)
        | st.builds(lambda a, b: a % b, children, small)
        | st.builds(lambda a, b: a.maximum(b), children, children)
        | st.builds(lambda a, b: a.minimum(b), children, children)
        | st.builds(lambda a, b, c, d: (a < b).where(c, d), children, children, children, children)
        | st.builds(lambda a, b, c: a.eq(b).where(c, a), children, children, children)
        | st.builds(lambda a, b, c: ((a < 3) & (b >= -2) & (a < b)).where(c, 1), children, children, children)
        | st.builds(lambda a, b, c: (a.ne(b) | (a <= 3)).where(c, 1), children, children, children)
    )


EXPRESSIONS = st.recursive(EXPRESSION_LEAVES, binary, max_leaves=12)


def value_of(node, values):
    """By Python's own integers, exactly."""
    known = dict(values)
    for part in toposort([node]):
        if part not in known:
            known[part] = part.arg if part.op is Op.CONST else fold(part.op, part.dtype, [known[s] for s in part.src])
    return known[node]


@settings(max_examples=400, deadline=None)
@given(EXPRESSIONS, st.lists(st.tuples(*[st.integers(-20, 20)] * 2, *[st.integers(0, 60)] * 3), min_size=8, max_size=8))
def test_random_expressions_keep_their_value(expression, points):
    for rules in (INDEX_MATH, SIMPLIFY):
        simple = rewrite(expression, rules)
        assert rewrite(simple, rules) is simple
        for a, b, x, y, z in points:
            values = {v: a, w: b, i: x % 10, j: y % 4, k: z % 3}
            assert value_of(simple, values) == value_of(expression, values)


def test_division_rounds_down():
    for x, y, quotient, rest in ((-7, 2, -4, 1), (7, -2, -4, -1), (-7, 3, -3, 2), (-1, 8, -1, 7), (5, 0, 0, 0)):
        assert simplify(const(x) // const(y)) is const(quotient)
        assert simplify(const(x) % const(y)) is const(rest)


def test_a_sum_over_a_range_that_its_value_does_not_use_is_a_product():
    def loop(number, size):
        return mk(Op.RANGE, dtypes.index, (UOp.const(dtypes.index, size),), RangeArg(number, AxisKind.REDUCE))

    def total(value, *ranges):
        return mk(Op.REDUCE, value.dtype, (value, *ranges), ReduceArg(Op.ADD))

    i, j = loop(0, 4), loop(1, 5)
    number = total(i.cast(dtypes.int32), i)  # closes i
    assert simplify(total(number, i)) is simplify(number * 4)
    assert simplify(total(number, j)) is simplify(number * 5)
    used = total(number * i.cast(dtypes.int32), i)
    assert [r for n in simplify(used).toposort() if n.op is Op.REDUCE for r in n.src[1:]] == [i, i]


@pytest.mark.parametrize("terms", [10, 500])
def test_a_sum_finds_its_range_below_many_nodes(terms):
    i = mk(Op.RANGE, dtypes.index, (UOp.const(dtypes.index, 4),), RangeArg(0, AxisKind.REDUCE))
    j = mk(Op.RANGE, dtypes.index, (UOp.const(dtypes.index, 3),), RangeArg(1, AxisKind.REDUCE))
    for first, last in ((i, j), (j, i)):
        value = first.cast(dtypes.int32)
        for k in range(terms):
            value = value ^ (last.cast(dtypes.int32) + k)
        result = simplify(mk(Op.REDUCE, value.dtype, (value, i), ReduceArg(Op.ADD)))
        assert result.op is Op.REDUCE and result.src[1:] == (i,)
