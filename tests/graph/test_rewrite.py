"""Rule sets and drivers: fixpoints, single walks, loops, stable bits, exactness, observers, the signature index."""

from __future__ import annotations

import threading

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gradlet.base.dtype import dtypes
from gradlet.base.errors import RewriteError
from gradlet.base.settings import scope
from gradlet.graph import rewrite as rewrite_module
from gradlet.graph.fold import fold
from gradlet.graph.node import UOp, mk
from gradlet.graph.pattern import any_of, const, op, var
from gradlet.graph.rewrite import Rule, RuleSet, normalizer, observe_rules, rewrite, walk
from gradlet.graph.signatures import SignatureIndex
from gradlet.ops.op import Op, VariableArg

x, y = var("x"), var("y")
c, d = const("c"), const("d")
DEPTH = 50_000


def variable(name: str) -> UOp:
    return mk(Op.VARIABLE, dtypes.index, (), VariableArg(name, 0, 9))


a, b = variable("a"), variable("b")

ALGEBRA = RuleSet(
    "algebra",
    "reorders",
    [
        Rule(x + 0, x),
        Rule(x * 1, x),
        Rule(x * 0, 0),
        Rule(c + d, c + d),
        Rule(c * d, c * d),
        Rule((x + c) + d, x + (c + d)),
        Rule((x * c) * d, x * (c * d)),
        Rule((x + c) * d, (x * d) + (c * d)),
        Rule((x + c) + y, (x + y) + c),
        Rule((x * c) + (x * d), x * (c + d)),
        Rule((x * c) + x, x * (c + 1)),
        Rule(x + x, x * 2),
    ],
)


@pytest.fixture
def bits(monkeypatch):
    """Stable bits are left, however many rule sets other tests have used; no node of theirs may occur in the test."""
    monkeypatch.setattr(rewrite_module, "_next_bit", min(rewrite_module._next_bit, rewrite_module.MOST_BITS - 1))


def test_rewrite_reaches_the_fixpoint():
    assert rewrite(((a * 2) * 3 + 0) + a * 4 + 1 + 2 + b * 1 + b * 0, ALGEBRA) is a * 10 + b + 3
    assert rewrite(a, ALGEBRA) is a
    assert rewrite(UOp.const(dtypes.index, 0), ALGEBRA).arg == 0


def test_rewrite_takes_lists_and_shares_work():
    first, second = rewrite([a + 0, (a + 0) * 1], ALGEBRA)
    assert first is a and second is a
    assert rewrite([], ALGEBRA) == []
    assert rewrite((a + 0, a + 0), ALGEBRA) == [a, a]


def test_earlier_rules_win():
    rules = RuleSet("order", "lowers", [Rule(x + 0, lambda: b), Rule(x + c, x)])
    assert rewrite(a + 0, rules) is b
    assert rewrite(a + 1, rules) is a


def test_results_are_rewritten_further_inside_and_out():
    """A result whose subtree is new is brought to its own fixpoint before its users see it."""
    grow = RuleSet("steps", "lowers", [Rule(op(Op.SQRT, x), ((x + 0) * 1) * op(Op.EXP2, x)), *ALGEBRA.rules])
    node = mk(Op.SQRT, dtypes.index, (a + 0,))
    assert rewrite(node, grow) is a * mk(Op.EXP2, dtypes.index, (a,))


def test_function_rules_get_nodes_by_name():
    seen = []

    def record(root, c, x, context):
        seen.append((root, c.arg, x, context))

    node = a + 5
    rules = RuleSet(
        "functions", "lowers", [Rule(x + c, record), Rule((x + c).named("whole"), lambda whole: whole.src[0])]
    )
    assert rewrite(node, rules, context="here") is a
    assert seen == [(node, 5, a, "here")]


def test_function_that_returns_the_node_itself_changes_nothing():
    assert rewrite(a + 5, RuleSet("same", "lowers", [Rule(x + c, lambda root: root)])) is a + 5


def test_bad_rules_are_refused_where_they_are_written():
    with pytest.raises(RewriteError, match="'wrong' is not bound"):
        Rule(x + c, lambda wrong: wrong)
    with pytest.raises(RewriteError, match=r"test_rewrite\.py.*does not bind"):
        Rule(x + c, x + y)
    with pytest.raises(RewriteError, match="'d' is not bound"):
        Rule(x + c, x, when=lambda d: True)
    with pytest.raises(RewriteError, match="guarantee 'magic'"):
        RuleSet("bad", "magic", [])
    with pytest.raises(RewriteError, match="at least one"):
        any_of()
    with pytest.raises(RewriteError, match="result"):
        Rule(x + c, a)


def test_rules_remember_where_they_stand():
    first, second = Rule(x + 0, x), Rule(x + 0, x, name="drop zero")
    line = test_rules_remember_where_they_stand.__code__.co_firstlineno + 1
    assert first.location == f"graph/test_rewrite.py:{line}"
    assert repr(first) == first.location
    assert repr(second) == f"drop zero ({first.location})"


# ends and loops
def test_loop_is_found_and_named():
    rules = RuleSet("circle", "reorders", [Rule(x * 2, x + x, name="double"), Rule(x + x, x * 2, name="undouble")])
    with pytest.raises(RewriteError) as caught:
        rewrite((a * 2) + 7, rules)
    text = str(caught.value)
    assert (
        "'circle'" in text and "double" in text and "undouble" in text and "MUL" in text and "test_rewrite.py" in text
    )


def test_loop_through_a_subtree_is_found():
    wrap = RuleSet("wrap", "grows", [Rule(op(Op.VARIABLE, name="v"), lambda v: v * 3, name="wrap it")])
    with pytest.raises(RewriteError, match="wrap it"):
        rewrite(a + 1, wrap)


def test_loop_of_three_is_found():
    rules = RuleSet("three", "reorders", [Rule(x + c, x * c), Rule(x * c, x // c), Rule(x // c, x + c)])
    with pytest.raises(RewriteError, match="circle"):
        rewrite(a + 7, rules)


def test_swap_is_a_loop():
    with pytest.raises(RewriteError, match="circle"):
        rewrite(a + b, RuleSet("swap", "reorders", [Rule(op(Op.ADD, x, y), y + x)]))


def test_endless_growth_is_stopped():
    rules = RuleSet("grow", "grows", [Rule(x + c, lambda x, c: x + (c.arg + 1), name="one more")])
    with pytest.raises(RewriteError, match="does not end.*one more"):
        rewrite(a + 7, rules)


def test_error_in_a_rule_tells_the_node():
    def fail(x):
        raise KeyError("lost")

    with pytest.raises(KeyError) as caught:
        rewrite((a + 7) * 2, RuleSet("failing", "lowers", [Rule(x + c, fail)]))
    assert "'failing'" in caught.value.__notes__[0] and "ADD" in caught.value.__notes__[0]
    with pytest.raises(KeyError) as caught:
        walk((a + 7) * 2, RuleSet("failing", "lowers", [Rule(x + c, fail)]))
    assert "ADD" in caught.value.__notes__[0]


# depth
def test_deep_chain_is_rewritten_without_recursion():
    node = a
    for i in range(DEPTH):
        node = (node + b) if i % 2 else (node * 1)
    assert len(rewrite(node, ALGEBRA).toposort()) == DEPTH // 2 + 2
    total = a
    for _ in range(DEPTH):
        total = total + 1
    assert rewrite(total, ALGEBRA) is a + DEPTH


def test_deep_result_is_settled_without_recursion():
    def deep(root):
        node = a
        for _ in range(DEPTH):
            node = mk(Op.SQRT, dtypes.index, (node * 1,))
        return node

    result = rewrite(b + 3, RuleSet("deep", "lowers", [Rule(op(Op.ADD, x, c), deep), *ALGEBRA.rules]))
    assert len(result.toposort()) == DEPTH + 1


# walking once
def test_walk_visits_each_node_once_and_results_never():
    seen = []

    def once(v, context):
        seen.append(v)
        return v + 1

    rules = RuleSet("once", "grows", [Rule(op((Op.VARIABLE, Op.ADD), name="v"), once)])
    node = (a + b) * a
    assert walk(node, rules) is ((a + 1) + (b + 1) + 1) * (a + 1)
    assert seen == [a, b, (a + 1) + (b + 1)]
    assert walk([a, a * 2], rules) == [a + 1, (a + 1) * 2]
    assert walk([], rules) == []


def test_normalizer_is_rewrite_and_marks_what_is_final(bits):
    a, b = variable("normal a"), variable("normal b")
    rules = RuleSet("building", "reorders", ALGEBRA.rules)
    normal = normalizer(rules)
    assert normal(a) is a
    assert normal(a + 0) is a
    assert normal((a * 2) * 3) is a * 6  # whose sources are not known to be final
    total = a
    for _ in range(50):
        total = normal(total + (b * 1))
    assert total is rewrite(total, rules)
    assert b * 1 not in total.toposort()
    counter = Counting()
    counted = RuleSet("counted", "removes", [Rule(x + c, counter)])
    count = normalizer(counted)
    node = count(count(a + 5) * b)
    assert count(node) is node is rewrite(node, counted)
    assert counter.calls == 1


def test_normalizer_follows_many_steps_and_reports_circles(bits):
    a = variable("normal steps")
    down = Rule(x + c, lambda x, c: x + (c.arg - 1) if c.arg > 0 else x * 5)
    assert normalizer(RuleSet("steps", "removes", [down]))(a + 100) is a * 5
    turn = RuleSet("circle", "reorders", [Rule(x + 1, x + 2), Rule(x + 2, x + 1)])
    with pytest.raises(RewriteError, match="circle"):
        normalizer(turn)(a + 1)


# stable bits
class Counting:
    """A rule that counts how often it is asked and never matches."""

    def __init__(self) -> None:
        self.calls = 0

    def __call__(self, x, c):
        self.calls += 1


def test_finished_graphs_are_not_entered_again(bits):
    a, b = variable("bits a"), variable("bits b")
    counter = Counting()
    rules = RuleSet("counted", "removes", [Rule(x + c, counter)])
    node = (a + 1) * (b + 2)
    for _ in range(3):
        assert rewrite(node, rules) is node
    assert counter.calls == 2
    rewrite(node + 3, rules)  # only the new node
    assert counter.calls == 3


def test_rules_that_use_the_context_are_asked_every_time():
    calls = []
    rules = RuleSet("context", "removes", [Rule(x + c, lambda x, c, context: calls.append(context))])
    assert not rules.context_free
    node = (a + 1) * (b + 2)
    rewrite(node, rules, 1)
    rewrite(node, rules, 2)
    assert calls == [1, 1, 2, 2]


def test_stable_bits_belong_to_one_rule_set():
    first = RuleSet("first", "removes", [Rule(x + 0, x)])
    second = RuleSet("second", "removes", [Rule(x * 1, x)])
    node = (a * 1) + b
    assert rewrite(node, first) is node
    assert rewrite(node, second) is a + b
    assert rewrite(node + 0, first + second) is a + b


def test_rule_sets_beyond_the_number_of_bits_work_too(monkeypatch):
    monkeypatch.setattr(rewrite_module, "_next_bit", rewrite_module.MOST_BITS)
    counter = Counting()
    rules = RuleSet("no bit", "removes", [Rule(x + 0, x), Rule(x + c, counter)])
    for _ in range(2):
        assert rewrite((a + 0) * (b + 1), rules) is a * (b + 1)
    assert counter.calls == 2


def test_sum_of_rule_sets_is_kept():
    first = RuleSet("first", "removes", [Rule(x + 0, x)])
    second = RuleSet("second", "folds", [Rule(x * 0, 0)])
    both = first + second
    assert both is first + second
    assert both.guarantee == "removes+folds"
    assert rewrite((a * 0) + b, both) is b


# exactness
def test_inexact_rules_are_off_under_strict_floats():
    rules = RuleSet("floats", "removes", [Rule(x + 0, x, exact=False), Rule(x * 1, x)])
    with scope(STRICT_FLOAT=1):
        assert rewrite((a * 1) + 0, rules) is a + 0
    assert rewrite((a * 1) + 0, rules) is a
    with scope(STRICT_FLOAT=1):
        assert rewrite((b * 1) + 0, rules) is b + 0


# observers
def test_observers_see_each_rule_with_before_and_after():
    seen = []
    with observe_rules(lambda rule, before, after: seen.append((rule.name, before, after))):
        rules = RuleSet("watched", "removes", [Rule(x + 0, x, name="zero"), Rule(x * 1, lambda x: x, name="one")])
        assert rewrite((a + 0) * 1, rules) is a
    assert seen == [("zero", a + 0, a), ("one", a * 1, a)]
    rewrite((b + 0) * 1, rules)
    assert len(seen) == 2
    assert rules.which(a + 0).name == "zero"
    assert rules.which(a + 1) is None


# the index
def test_index_knows_whether_a_rule_set_has_work():
    node = (a + 1) * (b + 2)
    index = SignatureIndex(node)
    assert sum(len(nodes) for nodes in index.groups.values()) == len(node.toposort())
    assert not index.has_work(RuleSet("none", "removes", [Rule(x + 0, x)]))
    assert index.has_work(RuleSet("some", "removes", [Rule(x + 2, x)]))
    assert not index.has_work(RuleSet("other op", "removes", [Rule(x // 2, x)]))
    assert not index.has_work(RuleSet("when", "removes", [Rule(x + c, x, when=lambda c: c.arg > 2)]))


def test_index_leaves_the_graph_marked_as_finished(bits):
    a, b = variable("index a"), variable("index b")
    counter = Counting()
    rules = RuleSet("counted", "removes", [Rule(x + c, counter)])
    node = (a + 1) * (b + 2)
    assert not SignatureIndex(node).has_work(rules)
    assert not SignatureIndex(node).has_work(rules)
    assert rewrite(node, rules) is node
    assert counter.calls == 2
    again = (a + 1) * (node + 3)  # parts of what is new are finished, too
    assert not SignatureIndex(again).has_work(rules)
    assert rewrite((b + 2) * 7, rules) is (b + 2) * 7
    assert counter.calls == 3


def test_index_never_calls_rules_with_context():
    calls = []
    rules = RuleSet("context", "removes", [Rule(x + c, lambda x, c, context: calls.append(x))])
    assert SignatureIndex((a + 1) * 2).has_work(rules)
    assert calls == []
    assert not SignatureIndex(a * 2).has_work(rules)


# values
def evaluate(node: UOp, values: dict[UOp, int]) -> int:
    known: dict[UOp, int] = dict(values)
    for n in node.toposort():
        if n not in known:
            known[n] = n.arg if n.op is Op.CONST else fold(n.op, n.dtype, [known[s] for s in n.src])
    return known[node]


EXPRESSIONS = st.recursive(
    st.one_of(st.sampled_from([a, b]), st.integers(-3, 3).map(lambda v: UOp.const(dtypes.index, v))),
    lambda inner: st.tuples(st.sampled_from([Op.ADD, Op.MUL]), inner, inner).map(
        lambda t: mk(t[0], dtypes.index, (t[1], t[2]))
    ),
    max_leaves=12,
)


@settings(max_examples=150, deadline=None)
@given(EXPRESSIONS, st.integers(-5, 5), st.integers(-5, 5))
def test_rewriting_keeps_values_and_is_idempotent(node, first, second):
    result = rewrite(node, ALGEBRA)
    values = {a: first, b: second}
    assert evaluate(result, values) == evaluate(node, values)
    assert rewrite(result, ALGEBRA) is result
    assert all(ALGEBRA.which(n) is None for n in result.toposort())


def test_threads_may_rewrite_at_the_same_time():
    rules = RuleSet("threads", "reorders", ALGEBRA.rules)
    results: list[UOp] = []
    barrier = threading.Barrier(4)

    def work() -> None:
        node = variable("shared by threads")
        for i in range(400):
            node = (node * 1 + 0) * (i % 3 + 1) + b * 1
        barrier.wait()
        results.append(rewrite(node, rules))

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(results) == 4
    assert all(result is results[0] for result in results)
    assert rewrite(results[0], rules) is results[0]
