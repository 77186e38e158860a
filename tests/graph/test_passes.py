"""Pipelines: order of stages, observers, checks between passes, errors that name pass and node."""

from __future__ import annotations

import gc

import pytest

from gradlet.base import events
from gradlet.base.dtype import dtypes
from gradlet.base.errors import CompilerError, RewriteError, ShapeError, SpecError
from gradlet.base.settings import scope
from gradlet.graph.node import UOp, mk
from gradlet.graph.passes import Pass, Pipeline
from gradlet.graph.pattern import const, op, var
from gradlet.graph.rewrite import Rule, RuleSet, observe_rules
from gradlet.ops.op import Op, Stage, VariableArg

x, c = var("x"), const("c")
T, K, L = Stage.TENSOR, Stage.KERNEL, Stage.LINEAR
DROP_ZERO = RuleSet("drop zero", "removes", [Rule(x + 0, x)])
DROP_ONE = RuleSet("drop one", "removes", [Rule(x * 1, x)])


def variable(name: str) -> UOp:
    return mk(Op.VARIABLE, dtypes.index, (), VariableArg(name, 0, 9))


a, b = variable("a"), variable("b")


def test_passes_run_in_order_and_observers_see_each():
    seen = []

    def observe(row, before, after, seconds):
        seen.append((row.name, before, after))
        assert seconds >= 0

    def double(node, context):
        return node * context

    pipeline = Pipeline("three", [
        Pass("zeros", DROP_ZERO, T, T), Pass("double", double, T, K), Pass("ones", DROP_ONE, K, K),
    ])  # fmt: skip
    result = pipeline.run((a + 0) + b, 1, [observe])
    assert result is a + b
    assert seen == [
        ("zeros", (a + 0) + b, a + b),
        ("double", a + b, (a + b) * 1),
        ("ones", (a + b) * 1, a + b),
    ]


def test_observers_of_rules_see_each_application_once():
    seen = []
    with observe_rules(lambda rule, before, after: seen.append((before, after))):
        assert Pipeline("main", [Pass("zeros", DROP_ZERO, T, T)]).run((a + 0) * b) is a * b
    assert seen == [(a + 0, a)]


def test_stages_must_fit():
    with pytest.raises(CompilerError, match=r"'second' requires stage LINEAR, but 'first' before it leaves KERNEL"):
        Pipeline("bad", [Pass("first", DROP_ZERO, T, K), Pass("second", DROP_ZERO, L, L)])


def test_rules_with_context_are_called_once_a_node():
    calls = []

    def count(x, c, context):
        calls.append(context)

    rules = RuleSet("counting", "lowers", [Rule(x + c, count)])
    Pipeline("count", [Pass("count", rules, T, T), Pass("again", rules, T, T)]).run((a + 1) + 2, "ctx")
    assert calls == ["ctx"] * 4


def test_failure_names_pipeline_pass_and_node():
    def fail(x):
        raise ZeroDivisionError("oops")

    rules = RuleSet("failing", "lowers", [Rule(x + c, fail)])
    with pytest.raises(CompilerError) as caught:
        Pipeline("main", [Pass("break things", rules, T, T)]).run((a + 3) * 2)
    text = str(caught.value)
    assert "'main'" in text and "'break things'" in text and "ZeroDivisionError: oops" in text
    assert "'failing' rewrote ADD" in text and "MUL" in text
    assert isinstance(caught.value.__cause__, ZeroDivisionError)


def test_compiler_errors_keep_their_type():
    loop = RuleSet("loop", "reorders", [Rule(x * 2, x + x), Rule(x + x, x * 2)])
    with pytest.raises(RewriteError, match="pass 'loops'.*circle"):
        Pipeline("main", [Pass("loops", loop, T, T)]).run(a * 2)


def test_user_errors_pass_unchanged():
    error = ShapeError("yours")

    def fail(node, context):
        raise error

    with pytest.raises(ShapeError) as caught:
        Pipeline("main", [Pass("user", fail, T, T)]).run(a)
    assert caught.value is error


def test_spec_is_checked_between_passes_and_names_the_pass():
    def spoil(node, context):
        return mk(Op.ADD, dtypes.float32, (a, b))

    pipeline = Pipeline("main", [Pass("spoil", spoil, T, T)])
    with scope(SPEC=1), pytest.raises(SpecError, match="pass 'spoil': left a bad graph"):
        pipeline.run(a)
    with scope(SPEC=0):
        assert pipeline.run(a).dtype is dtypes.float32


def test_gone_ops_stay_gone():
    lower = RuleSet("lower", "lowers", [Rule(op(Op.MUL, x, const(value=2)), lambda x: x + x)])

    def bring_back(node, context):
        return node * 2

    rows = [
        Pass("lower", lower, T, T, gone=frozenset({Op.MUL})),
        Pass("keep", DROP_ZERO, T, T),
        Pass("bring back", bring_back, T, T),
    ]
    with scope(SPEC=1), pytest.raises(SpecError, match=r"pass 'bring back'.*MUL"):
        Pipeline("main", rows).run(a * 2)
    with scope(SPEC=1), pytest.raises(SpecError, match=r"pass 'lower'.*MUL"):
        Pipeline("main", rows[:1]).run(a * 3)
    with scope(SPEC=1):
        assert Pipeline("main", rows[:2]).run(a * 2) is a + a
        # Each run begins anew.
        assert Pipeline("main", rows[1:]).run(a) is a * 2


def test_events_are_emitted_when_somebody_listens():
    pipeline = Pipeline("main", [Pass("zeros", DROP_ZERO, T, T)])
    with events.record() as seen:
        pipeline.run((a + 0) * b)
    assert [(e.pipeline, e.name, e.nodes) for e in seen] == [("main", "zeros", (5, 3))]


@pytest.mark.parametrize("enabled", [True, False])
def test_collector_is_off_inside_and_restored(enabled):
    seen = []

    def look(node, context):
        seen.append(gc.isenabled())
        raise ShapeError("stop")

    was = gc.isenabled()
    try:
        (gc.enable if enabled else gc.disable)()
        with pytest.raises(ShapeError):
            Pipeline("main", [Pass("look", look, T, T)]).run(a)
        assert gc.isenabled() is enabled
    finally:
        (gc.enable if was else gc.disable)()
    assert seen == [False]
