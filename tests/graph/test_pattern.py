"""Patterns: what they match, how they are written out, what templates build."""

from __future__ import annotations

import math

import pytest

from gradlet.base.dtype import dtypes
from gradlet.base.errors import RewriteError
from gradlet.graph.fold import fold
from gradlet.graph.node import UOp, mk
from gradlet.graph.pattern import FLOATS, INTEGERS, Pat, any_of, const, op, var, variants
from gradlet.graph.rewrite import Rule, RuleSet, walk
from gradlet.ops.op import LaneArg, Op, ParamArg, ReduceArg, VariableArg

x, y, z = var("x"), var("y"), var("z")
c, d = const("c"), const("d")


def variable(name: str, dtype=dtypes.index) -> UOp:
    return mk(Op.VARIABLE, dtype, (), VariableArg(name, 0, 9))


a, b = variable("a"), variable("b")
f, g = variable("f", dtypes.float32), variable("g", dtypes.float32)
MARK = UOp.const(dtypes.index, 12345)


def matches(pattern: Pat, node: UOp, when=None) -> bool:
    """Whether the pattern matches exactly at the root."""
    rules = RuleSet("probe", "lowers", [Rule(pattern, lambda root: MARK if root is node else None, when=when)])
    return walk(node, rules) is MARK


def bindings(pattern: Pat, node: UOp, *names: str):
    """What the pattern calls the nodes it matches."""
    seen = []

    def catch(x, y):
        seen.append((x, y))

    walk(node, RuleSet("probe", "lowers", [Rule(pattern, catch)]))
    return seen


def apply(rule: Rule, node: UOp) -> UOp:
    """The rule applied at the root only."""
    return RuleSet("probe", "lowers", [rule]).matchers()[node.sig](node, None)


# what matches
@pytest.mark.parametrize(
    ("pattern", "node", "expected"),
    [
        (x + y, a + b, True),
        (x + y, a * b, False),
        (x + x, a + a, True),
        (x + x, a + b, False),
        ((x * y) // (x * y), (a * b) // (a * b), True),
        ((x * y) // (x * y), (a * b) // (b * a), True),
        ((x + 1) // (x + 1), (a + 1) // (a + 1), True),
        (x.cast(dtypes.int32) + x.cast(dtypes.int32), a.cast(dtypes.int32) + a.cast(dtypes.int32), True),
        ((x < y).where(x, x), (a < b).where(a, a), True),
        (x * c, a * 3, True),
        (x * c, a * b, False),
        (2 * x, a * 2, True),
        (x * 2, a * 3, False),
        (x + 0, a + 0, True),
        (x + 0, f + -0.0, True),
        (x + 0, f + 1.0, False),
        (x * 1, f * 1.0, True),
        (x - 3, a - 3, True),
        (-x, -a, True),
        ((x + y) * z, (a + b) * a, True),
        ((x + y) * z, a * (a + b), True),
        ((x * c) + (x * d), (a * 2) + (a * 3), True),
        ((x * c) + (x * d), (a * 2) + (b * 3), False),
        ((x * c) + x, a + (a * 2), True),
        (x // y, a // b, True),
        (x % 4, a % 4, True),
        (x < c, a < 3, True),
        (c < x, a < 3, False),
        (x.eq(y), a.eq(b), True),
        ((x < y).where(z, 0), (a < b).where(a, 0), True),
        ((x < y).where(z, 0), (a < b).where(a, 1), False),
        (op(Op.VARIABLE), a, True),
        (op(Op.VARIABLE, arg=VariableArg("a", 0, 9)), b, False),
        (op((Op.MAX, Op.MIN), x, y), a.minimum(b), True),
        (op((Op.MAX, Op.MIN), x, y), a + b, False),
        (any_of(x * 2, x + 5), a + 5, True),
        (any_of(x * 2, x + 5), a + 6, False),
        (any_of(x * 2, x + 5) + y, b + (a * 2), True),
        (x.cast(dtypes.int32), a.cast(dtypes.int32), True),
        (x.cast(dtypes.int32), a.cast(dtypes.int64), False),
        (var("x", dtypes.float32) + y, f + g, True),
        (var("x", dtypes.float32) + y, a + b, False),
        (var("x", INTEGERS) + y, a + b, True),
        (var("x", INTEGERS) + y, f + g, False),
        (var("x", FLOATS) + y, f + g, True),
        (var("x", {dtypes.float32, dtypes.float64}) + y, f + g, True),
        (const("c", dtype=FLOATS), UOp.const(dtypes.int32, 4), False),
        (const("c", dtype=FLOATS), UOp.const(dtypes.float32, 4), True),
        (const(value=7), UOp.const(dtypes.int32, 7), True),
        (const(value=7), UOp.const(dtypes.int32, 8), False),
        (c + d, UOp.const(dtypes.index, 4) + UOp.const(dtypes.index, 5), True),
        (x, a, True),
    ],
    ids=repr,
)
def test_matches(pattern, node, expected):
    assert matches(pattern, node) is expected


def test_number_of_sources_counts():
    param = mk(Op.PARAM, dtypes.float32, (), ParamArg(0, 4))
    plain = mk(Op.INDEX, dtypes.float32, (param, a))
    gated = mk(Op.INDEX, dtypes.float32, (param, a, a < b))
    assert matches(op(Op.INDEX, x, y), plain)
    assert not matches(op(Op.INDEX, x, y), gated)
    assert not matches(op(Op.INDEX, x, y, z), plain)
    assert matches(op(Op.INDEX, x, y, z), gated)
    assert matches(op(Op.INDEX, x, y, more=True), plain) and matches(op(Op.INDEX, x, y, more=True), gated)
    assert not matches(op(Op.INDEX, x, y, z, more=True), plain)
    assert matches(op(Op.INDEX), plain) and matches(op(Op.INDEX), gated)
    # The same, where the signature does not tell.
    assert not matches(op(Op.LOAD, op(Op.INDEX, x, y)), mk(Op.LOAD, dtypes.float32, (gated,)))
    assert matches(op(Op.LOAD, op(Op.INDEX, x, y)), mk(Op.LOAD, dtypes.float32, (plain,)))
    three = mk(Op.VECTORIZE, dtypes.float32.vec(3), (f, g, f))
    assert matches(op(Op.VECTORIZE, x, y, x), three)
    assert not matches(op(Op.VECTORIZE, x, y), three)
    assert not matches(op(Op.VECTORIZE, x, y, y), three)


def test_patterns_of_any_op_with_sources():
    pattern = Pat(None, (x, y), "root")
    assert matches(pattern, a + b) and matches(pattern, a // b)
    assert not matches(pattern, a.cast(dtypes.int32)) and not matches(pattern, (a < b).where(a, b))


def test_arg_is_compared():
    lanes = mk(Op.VECTORIZE, dtypes.float32.vec(2), (f, g))
    assert matches(op(Op.EXTRACT, x, arg=LaneArg(1)), mk(Op.EXTRACT, dtypes.float32, (lanes,), LaneArg(1)))
    assert not matches(op(Op.EXTRACT, x, arg=LaneArg(1)), mk(Op.EXTRACT, dtypes.float32, (lanes,), LaneArg(0)))


def test_constants_that_are_no_numbers():
    nan, infinity = UOp.const(dtypes.float32, math.nan), UOp.const(dtypes.float32, math.inf)
    assert matches(c, nan)
    assert matches(const(value=math.inf), infinity)
    assert not matches(const(value=-math.inf), infinity)
    assert not matches(const(value=0), nan)
    assert matches(const(value=0), UOp.const(dtypes.float32, -0.0))
    assert not matches(const(value=1), UOp.const(dtypes.float32, 0.0))


def test_deep_constants_are_tested_too():
    """Below the first level nothing is known from the signature."""
    assert matches((x + 0) * y, (a + 0) * b)
    assert not matches((x + 0) * y, (a + 1) * b)
    assert matches((x + 1) * y, b * (a + 1))
    assert not matches((x + 2) * y, (a + 3) * b)
    assert matches((x + c) * y, (a + 1) * b)
    assert not matches((x + c) * y, (a + a) * b)


def test_commutative_ops_bind_in_both_orders():
    pattern = op(Op.VARIABLE, name="x") + op(Op.MUL, name="y")
    node = (a * 2) + b
    assert bindings(pattern, node) == [(b, a * 2)]
    assert bindings(pattern, b + (a * 2)) == [(b, a * 2)]
    assert bindings(x // y, a // b) == [(a, b)]
    assert bindings(op(Op.ADD, x, y, ordered=True), a + b) == [(a, b)]
    assert bindings(x + y, a + b) == [(a, b), (b, a)]  # the function said no to the first


def test_when_is_asked_with_bound_nodes():
    big = Rule(x + c, x, when=lambda c: c.arg > 5)
    rules = RuleSet("big", "removes", [big])
    assert walk(a + 7, rules) is a
    assert walk(a + 3, rules) is a + 3


# how patterns are written out
def test_variants():
    assert len(variants(x + y)) == 2
    assert len(variants(x + x)) == 1
    assert len(variants(op(Op.ADD, x, y, ordered=True))) == 1
    assert len(variants(x * c)) == 1
    assert len(variants(x // y)) == 1
    assert len(variants((x + y) * (x + z))) == 8
    assert len(variants(any_of(x + c, x * c) + 1)) == 2
    with pytest.raises(RewriteError, match="variants"):
        variants(((x + y) * (x + z)) + ((y + z) * (x + y)) + (x * y))


def test_patterns_print_as_they_read():
    assert repr((x * c) + 0) == "ADD(MUL(x, const(c)), 0)"
    assert repr(op(Op.LOAD, name="l")) == "LOAD(...) as l"
    assert repr(any_of(x, c)) == "any_of(x, const(c))"


# what templates build
def test_template_builds_with_constants_folded():
    assert apply(Rule((x * c) * d, x * (c * d)), (a * 2) * 3) is a * 6
    assert apply(Rule((x * c) + (x * d), x * (c + d)), (a * 2) + (a * 3)) is a * 5
    assert apply(Rule((x * c) + x, x * (c + 1)), (a * 2) + a) is a * 3
    assert apply(Rule(x + c, x + (c * -1)), a + 3) is a - 3
    assert apply(Rule(c < d, c < d), UOp.const(dtypes.index, 2) < 3) is UOp.const(dtypes.bool, True)
    assert apply(Rule((x // c) // d, x // (c * d)), (a // 2) // 5) is a // 10


def test_template_folding_wraps_and_rounds_like_the_type():
    i = variable("i", dtypes.int8)
    assert apply(Rule((x * c) * d, x * (c * d)), (i * 16) * 9) is i * -112
    tenth = UOp.const(dtypes.float32, 0.1)
    assert apply(Rule(c + d, c + d), tenth + UOp.const(dtypes.float32, 0.2)) is UOp.const(dtypes.float32, 0.1 + 0.2)


@pytest.mark.parametrize("dtype", [dtypes.index, dtypes.int32, dtypes.uint8])
@pytest.mark.parametrize(("left", "right"), [(7, 3), (7, 0), (0, 0), (200, 7), (-7, 3), (7, -3)])
def test_template_arithmetic_on_integers_is_that_of_fold(dtype, left, right):
    first, second = UOp.const(dtype, left), UOp.const(dtype, right)
    for code in (Op.ADD, Op.MUL, Op.IDIV, Op.MOD):
        # The second pattern's result nests one constant operation in another and in a literal.
        for result, expected in (
            (op(code, c, d), fold(code, dtype, (first.arg, second.arg))),
            (
                op(code, c * 2, d + 1),
                fold(
                    code,
                    dtype,
                    (fold(Op.MUL, dtype, (first.arg, 2)), fold(Op.ADD, dtype, (second.arg, 1))),
                ),
            ),
        ):
            got = apply(Rule(op(Op.XOR, c, d), result), mk(Op.XOR, dtype, (first, second)))
            assert got is UOp.const(dtype, expected), (code, result)


def test_template_that_cannot_be_folded_stays_an_op():
    one, two = UOp.const(dtypes.float32, 1.0), UOp.const(dtypes.float32, 2.0)
    contracted = mk(Op.MULADD, dtypes.float32, (one, two, two))
    assert apply(Rule(op(Op.MULADD, c, d, d), op(Op.MULADD, c, d, d)), contracted) is None


def test_template_literals_take_the_type_beside_them():
    assert apply(Rule(x + x, x * 2), f + f) is f * 2.0
    assert (f * 2.0).src[1].dtype is dtypes.float32
    assert apply(Rule(x * 0, 0), f * 0) is UOp.const(dtypes.float32, 0)
    assert apply(Rule(x < x, False), a < a) is UOp.const(dtypes.bool, False)
    assert apply(Rule((x < y).where(c, d), (y < x).where(d, c)), (a < b).where(1, UOp.const(dtypes.index, 0))) is (
        (b < a).where(0, UOp.const(dtypes.index, 1))
    )
    built = apply(Rule((x < y).where(z, z), (x < y).where(z + 1, 2)), (f < g).where(a, a))
    assert built is (f < g).where(a + 1, UOp.const(dtypes.index, 2))
    assert apply(Rule(x.eq(y), (x < y).eq(False)), a.eq(b)) is (a < b).eq(UOp.const(dtypes.bool, False))
    lanes = mk(Op.VECTORIZE, dtypes.float32.vec(2), (f, g))
    assert apply(Rule(x + x, x * 2), lanes + lanes).src[1].dtype is dtypes.float32.vec(2)
    assert apply(Rule(x < y, (y < x).eq(False)), lanes < lanes * 2).dtype is dtypes.bool.vec(2)


def test_template_casts():
    half = dtypes.float16
    assert apply(Rule(x.cast(dtypes.float32), x.cast(half)), a.cast(dtypes.float32)) is a.cast(half)
    lanes = mk(Op.VECTORIZE, dtypes.index.vec(2), (a, b))
    assert apply(Rule(x + y, x.cast(half)), lanes + lanes) is lanes.cast(half)


def test_template_of_any_op_keeps_the_root_type():
    rule = Rule(op(Op.REDUCE_LANES, x, arg=ReduceArg(Op.ADD)), op(Op.REDUCE_LANES, x, arg=ReduceArg(Op.MAX)))
    lanes = mk(Op.VECTORIZE, dtypes.float32.vec(2), (f, g))
    built = apply(rule, mk(Op.REDUCE_LANES, dtypes.float32, (lanes,), ReduceArg(Op.ADD)))
    assert built is mk(Op.REDUCE_LANES, dtypes.float32, (lanes,), ReduceArg(Op.MAX))


def test_template_uses_named_parts_as_they_are():
    part = (x * y).named("part")
    assert apply(Rule(part + z, z - part), (a * b) + a) is a - (a * b)


def test_same_node_is_no_result():
    assert apply(Rule(x + y, x + y), a + b) is b + a  # the second order
    assert apply(Rule(x // y, x // y), a // b) is None
