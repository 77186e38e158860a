"""Every rule, one by one: instances of its left side have the same value before and after, and its guarantee holds."""

import numpy as np
import pytest

from gradlet.base.dtype import dtypes
from gradlet.base.settings import scope
from gradlet.graph import numeric
from gradlet.graph.evaluate import evaluate
from gradlet.graph.node import UOp, mk, toposort
from gradlet.graph.rewrite import Matchers, rewrite
from gradlet.ops.op import ELEMENTWISE, SCALAR_LEAVES, BufferArg, Op
from gradlet.rules import bounded, folds, grows, removes, reorders
from gradlet.rules.scalars import scalar_of
from gradlet.rules.sets import INDEX_MATH, SIMPLIFY
from tests.rules.instances import CannotBuildError, Instances
from tests.rules.measure import measure

GROUPS = {
    "removes": removes.RULES, "folds": folds.RULES, "reorders": reorders.RULES, "bounded": bounded.RULES,
    "grows": grows.MODULO_BY_DIVISION + grows.NOT_EQUAL_BY_EQUAL,
}  # fmt: skip
HITS = 25
DRAWS = 6000
# Pattern ops whose instances need shapes, memory or lanes: test_movement.py, test_kernels.py and test_vectors.py.
STRUCTURAL = frozenset(Op) - ELEMENTWISE - {Op.CONST}


def is_elementwise(rule):
    return not any(p.ops and p.ops & STRUCTURAL for p in rule.pattern.walk())


def cases():
    for group, rules in GROUPS.items():
        for number, rule in enumerate(rules.rules):
            if is_elementwise(rule):
                yield pytest.param(group, rule, number, id=f"{group}-{number}-{rule.name}")


@pytest.mark.parametrize("group, rule, number", list(cases()))
def test_rule(group, rule, number):
    matchers = Matchers(rule.cases(), context_free=False)
    instances = Instances(number)
    hits = 0
    for _ in range(DRAWS):
        try:
            node = instances.build(rule.pattern)
        except CannotBuildError:
            continue
        matcher = matchers[node.sig]
        result = matcher(node, None) if matcher is not None else None
        if result is None:
            continue
        hits += 1
        assert result.dtype is node.dtype
        check_equal(instances, node, result, rule.exact)
        check_guarantee(group, node, result)
        if hits == HITS:
            break
    assert hits >= 3, f"only {hits} instances of {rule.pattern!r}"


def check_equal(instances, node, result, exact):
    before, after = evaluate([node, bare(result)], instances.buffers(), instances.variables())
    before, after = np.broadcast_arrays(before, after)
    if node.dtype.is_float:
        before, after = (numeric.load(values, node.dtype) for values in (before, after))
        np.testing.assert_array_equal(before, after)  # NaN equals NaN
        if exact and not any(n.op in (Op.MAX, Op.MIN) for n in toposort((node,))):
            keep = ~np.isnan(before)
            np.testing.assert_array_equal(np.signbit(before)[keep], np.signbit(after)[keep])
    else:
        np.testing.assert_array_equal(before, after)


def bare(node):
    """The node with bare scalars: a variable here has many values, which a RESHAPE to one element cannot hold."""
    repeated = [n for n in toposort((node,)) if n.op in (Op.EXPAND, Op.RESHAPE)]
    return node.substitute({n: scalar_of(n) for n in repeated if scalar_of(n) is not None})


def check_guarantee(group, node, result):
    below = set(toposort(node.src))
    if group == "removes":
        assert result in below or scalar_of(result) in below
    elif group == "folds":
        scalar = scalar_of(result)
        assert scalar is not None and scalar.op is Op.CONST
    elif group == "reorders":
        assert measure(result) < measure(node), f"{node!r} -> {result!r}: {measure(node)} -> {measure(result)}"
    elif group == "grows" and (node.dtype.kind == "x" or node.dtype.is_bool):
        assert rewrite(result, INDEX_MATH) is rewrite(node, INDEX_MATH)


def test_every_rule_of_the_sets_belongs_to_a_group():
    grouped = {rule for name in ("removes", "folds", "reorders", "bounded") for rule in GROUPS[name].rules}
    assert set(SIMPLIFY.rules) <= grouped and set(INDEX_MATH.rules) <= grouped
    growing = set(GROUPS["grows"].rules)
    assert not growing & set(INDEX_MATH.rules)


def test_rules_that_change_float_bits_are_off_when_strict():
    x = mk(Op.BUFFER, dtypes.float32, (), BufferArg(-1, 4, "TEST"))
    assert rewrite(x + 0.0, SIMPLIFY) is x
    with scope(STRICT_FLOAT=1):
        assert rewrite(x + 0.0, SIMPLIFY) is not x
        assert rewrite(x + -0.0, SIMPLIFY) is x


def test_results_keep_scalars_out_of_shaped_places():
    x = mk(Op.BUFFER, dtypes.int32, (), BufferArg(-1, 4, "TEST"))
    zero = rewrite(x * 0, SIMPLIFY)
    assert zero.shape == (4,) and scalar_of(zero) is UOp.const(dtypes.int32, 0)
    assert scalar_of(zero).op in SCALAR_LEAVES
