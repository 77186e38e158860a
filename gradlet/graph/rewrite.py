"""Rules, rule sets with their guarantee, and the two drivers: `rewrite` to a fixpoint, `walk` once through.

Neither driver recurses on the depth of the graph. A rule set whose rules look at nothing but the subtree they match
leaves a `stable` bit on every node it has finished, so that work is never done twice.
"""

from __future__ import annotations

import inspect
import os.path
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Final, overload

from gradlet.base.errors import RewriteError
from gradlet.base.settings import STRICT_FLOAT
from gradlet.graph.matcher import Case, Matcher, SignatureTest, SourceWriter
from gradlet.graph.node import UOp, by_uid, mk, next_stamp, stamp_lock
from gradlet.graph.pattern import Pat, const, variants
from gradlet.ops.op import Op

# What a rule set promises about its results.
Guarantee = str
GUARANTEES: Final = frozenset({"removes", "folds", "reorders", "bounded", "grows", "lowers"})


class Rule:
    """One rewrite, left -> right.

    Args:
        pattern: what to match.
        result: a pattern used as template, a scalar, or a function of the bound nodes by parameter name (also `root`,
            the matched node, and `context`) that returns the result, or None for no match.
        when: a further condition, a function of the bound nodes like `result`.
        exact: False when results may differ in the last bits of a float; such rules are off under STRICT_FLOAT.
        name: what to call it; the default is where it stands in the source.
    """

    __slots__ = ("pattern", "template", "function", "function_names", "when", "when_names", "exact", "name", "location")

    def __init__(
        self,
        pattern: Pat,
        result: Pat | Callable[..., UOp | None] | bool | int | float,
        when: Callable[..., bool] | None = None,
        exact: bool = True,
        name: str | None = None,
    ) -> None:
        self.location = _caller()
        self.name = name if name is not None else self.location
        self.pattern = pattern
        self.exact = exact
        self.template: Pat | None = None
        self.function: Callable[..., UOp | None] | None = None
        self.function_names: tuple[str, ...] = ()
        if isinstance(result, Pat):
            self.template = result
        elif callable(result):
            self.function = result
            self.function_names = _parameters(result)
        elif isinstance(result, (bool, int, float)):
            self.template = const(value=result)
        else:
            raise RewriteError(f"rule {self}: its result must be a pattern, a scalar or a function, not {result!r}")
        self.when = when
        self.when_names = _parameters(when) if when is not None else ()
        self._check_names()

    def _check_names(self) -> None:
        bound = {p.name for p in self.pattern.walk()} | {"root", "context"}
        wanted = [*self.function_names, *self.when_names]
        if self.template is not None:
            stack = [self.template]
            while stack:
                top = stack.pop()
                if top.name is not None and top.name in bound:
                    continue
                if top.src is None and not top.is_literal:
                    raise RewriteError(f"rule {self}: its result holds {top!r}, which its pattern does not bind")
                stack.extend(top.src or ())
        for name in wanted:
            if name not in bound:
                raise RewriteError(f"rule {self}: parameter {name!r} is not bound by {self.pattern!r}")

    @property
    def uses_context(self) -> bool:
        """Looks at more than the subtree it matches."""
        return "context" in self.function_names or "context" in self.when_names

    def cases(self) -> list[Case]:
        """The rule for each variant of its pattern."""
        return [
            Case(self, v, self.template, self.function, self.function_names, self.when, self.when_names)
            for v in variants(self.pattern)
        ]

    def __repr__(self) -> str:
        return self.name if self.name == self.location else f"{self.name} ({self.location})"


def _caller() -> str:
    """file:line of the first frame outside this module."""
    frame = sys._getframe(0)  # compiled functions have no frame, so count none
    while frame.f_back is not None and frame.f_globals.get("__name__") == __name__:
        frame = frame.f_back
    path = frame.f_code.co_filename
    return f"{os.path.basename(os.path.dirname(path))}/{os.path.basename(path)}:{frame.f_lineno}"


def _parameters(function: Callable[..., Any]) -> tuple[str, ...]:
    code = getattr(function, "__code__", None)
    if code is not None and not inspect.ismethod(function):
        return tuple(code.co_varnames[: code.co_argcount])
    return tuple(inspect.signature(function).parameters)


MOST_BITS: Final = 60
NO_BIT: Final = 0
_next_bit = 0


def _new_bit() -> int:
    """A bit of the `stable` slot of nodes; NO_BIT once all are given away."""
    global _next_bit
    if _next_bit >= MOST_BITS:
        return NO_BIT
    _next_bit += 1
    return 1 << (_next_bit - 1)


class Matchers(dict[int, Matcher | None]):
    """Signature -> function that tries the rules which can match it, None when there is no such rule.

    Functions are made when a signature is first met.
    """

    def __init__(self, cases: Sequence[Case], context_free: bool, trace: Callable[..., None] | None = None) -> None:
        super().__init__()
        self._cases = cases
        self._tests: dict[int, list[tuple[int, SignatureTest]]] = {}  # of the cases that can start at an op
        for number, case in enumerate(cases):
            test = SignatureTest(case.pattern)
            for op in Op if case.pattern.ops is None else case.pattern.ops:
                self._tests.setdefault(op, []).append((number, test))
        self._writer = SourceWriter()
        self._traced = trace is not None
        if trace is not None:
            self._writer.names["trace"] = trace
        self._functions: dict[tuple[int, ...], Matcher] = {}
        self.bit = NO_BIT
        self._wants_bit = context_free
        # Subgraphs without any op that a pattern can start at need not be entered.
        self.mask = 0
        for case in cases:
            for op in case.pattern.ops or ():
                self.mask |= 1 << op
            if case.pattern.ops is None:
                self.mask = -1

    def __missing__(self, sig: int) -> Matcher | None:
        numbers = tuple([i for i, test in self._tests.get(sig & 255, ()) if test(sig)])
        function = self._functions.get(numbers) if numbers else None
        if numbers and function is None:
            function = self._writer.compile([self._cases[i] for i in numbers], self._traced)
            self._functions[numbers] = function
        self[sig] = function
        return function

    def stable_bit(self) -> int:
        """The bit that marks nodes these rules do not change, or NO_BIT; taken on first use, for there are few."""
        if self._wants_bit:
            self._wants_bit = False
            self.bit = _new_bit()
        return self.bit

    @property
    def source(self) -> str:
        """The Python source of the functions made so far."""
        return "\n\n".join(self._writer.sources)


class RuleSet:
    """Rules applied together, in order of priority, and what they guarantee about their results.

    `guarantee` is one of GUARANTEES, or several joined by "+". Rules may look at the nodes they match and at what lies
    below. One that needs anything else (users of a node, a setting, a target) must take it from `context`: rule sets
    without `context` mark the nodes they have finished and never look at them again.
    """

    def __init__(self, name: str, guarantee: Guarantee, rules: Iterable[Rule]) -> None:
        self.name = name
        self.guarantee = guarantee
        self.rules = tuple(rules)
        for part in guarantee.split("+"):
            if part not in GUARANTEES:
                raise RewriteError(f"rule set {name}: guarantee {part!r} is not one of {', '.join(sorted(GUARANTEES))}")
        self.context_free = not any(rule.uses_context for rule in self.rules)
        self._matchers: dict[int, Matchers] = {}
        self._traced: dict[int, Matchers] = {}
        self._sums: dict[RuleSet, RuleSet] = {}

    def __add__(self, other: RuleSet) -> RuleSet:
        """The rules of both; adding the same two again gives the same set, with its compiled functions."""
        found = self._sums.get(other)
        if found is None:
            parts = dict.fromkeys([*self.guarantee.split("+"), *other.guarantee.split("+")])
            found = RuleSet(f"{self.name} + {other.name}", "+".join(parts), (*self.rules, *other.rules))
            self._sums[other] = found
        return found

    def matchers(self) -> Matchers:
        """The compiled rules, for the current setting of STRICT_FLOAT and with observers if there are any."""
        strict = STRICT_FLOAT.value
        if _observers:
            traced = self._traced.get(strict)
            if traced is None:
                traced = self._traced[strict] = self._traced_matchers(_report)
            return traced
        found = self._matchers.get(strict)
        if found is None:
            found = Matchers(self._cases(strict), self.context_free)
            self._matchers[strict] = found
        return found

    def _cases(self, strict: int) -> list[Case]:
        return [case for rule in self.rules if rule.exact or not strict for case in rule.cases()]

    def _traced_matchers(self, trace: Callable[[Rule, UOp, UOp], None]) -> Matchers:
        return Matchers(self._cases(STRICT_FLOAT.value), False, trace)

    def which(self, node: UOp, context: Any = None) -> Rule | None:
        """The rule that matches `node` first."""
        hits: list[Rule] = []
        matcher = self._traced_matchers(lambda rule, before, after: hits.append(rule))[node.sig]
        if matcher is not None:
            matcher(node, context)
        return hits[0] if hits else None

    def __repr__(self) -> str:
        return f"RuleSet({self.name!r}, {self.guarantee!r}, {len(self.rules)} rules)"


# Observers of applied rules. Matchers report only while there are some.
_observers: Final[list[Callable[[Rule, UOp, UOp], None]]] = []


def observed() -> bool:
    """Whether somebody is told of every rule that matches."""
    return bool(_observers)


def _report(rule: Rule, before: UOp, after: UOp) -> None:
    for observer in _observers:
        observer(rule, before, after)


@contextmanager
def observe_rules(observer: Callable[[Rule, UOp, UOp], None]) -> Iterator[None]:
    """Call `observer(rule, before, after)` for every rule applied inside the block."""
    _observers.append(observer)
    try:
        yield
    finally:
        _observers.remove(observer)


@overload
def rewrite(nodes: UOp, rules: RuleSet, context: Any = None) -> UOp: ...
@overload
def rewrite(nodes: Iterable[UOp], rules: RuleSet, context: Any = None) -> list[UOp]: ...
def rewrite(nodes: UOp | Iterable[UOp], rules: RuleSet, context: Any = None) -> UOp | list[UOp]:
    """Apply the rules, sources before users, until none matches anywhere.

    Raises:
        RewriteError: the rules run in a circle, or take more steps than any terminating set could.
    """
    roots = [nodes] if isinstance(nodes, UOp) else list(nodes)
    results = _Fixpoint(rules, context).run(roots)
    return results[0] if isinstance(nodes, UOp) else results


_MOST_DIRECT: Final = 32


def normalizer(rules: RuleSet) -> Callable[[UOp], UOp]:
    """`rewrite` by a context-free set as a function for nodes whose sources are final: rules applied while building.

    It keeps the settings and observers of the moment it is made.
    """
    matchers = rules.matchers()
    bit, mask = matchers.stable_bit(), matchers.mask

    def normal(node: UOp) -> UOp:
        if node.stable & bit:
            return node
        for source in node.src:
            if not source.stable & bit and source.mask & mask:
                return rewrite(node, rules)
        matcher = matchers[node.sig]
        if matcher is not None:
            result = matcher(node, None)
            if result is not None:
                return settled(result)
        node.stable |= bit
        return node

    def settled(node: UOp) -> UOp:
        """The final form of what a rule made, mostly one node over final ones."""
        for _ in range(_MOST_DIRECT):
            if node.stable & bit:
                return node
            for source in node.src:
                if not source.stable & bit and source.mask & mask:
                    return rewrite(node, rules)
            matcher = matchers[node.sig]
            result = matcher(node, None) if matcher is not None else None
            if result is None:
                node.stable |= bit
                return node
            node = result
        return rewrite(node, rules)  # which tells rules that run in a circle

    return normal


@overload
def walk(nodes: UOp, rules: RuleSet, context: Any = None) -> UOp: ...
@overload
def walk(nodes: Iterable[UOp], rules: RuleSet, context: Any = None) -> list[UOp]: ...
def walk(nodes: UOp | Iterable[UOp], rules: RuleSet, context: Any = None) -> UOp | list[UOp]:
    """Apply the rules once to every node, sources before users; results are not matched again."""
    roots = [nodes] if isinstance(nodes, UOp) else list(nodes)
    matchers = rules.matchers()
    new: dict[UOp, UOp] = {}
    current = None
    try:
        for node in _collect(roots, 0, matchers.mask):
            current = node
            if new:
                for source in node.src:
                    if source in new:
                        current = mk(node.op, node.dtype, tuple([new.get(s, s) for s in node.src]), node.arg)
                        break
            matcher = matchers[current.sig]
            if matcher is not None:
                result = matcher(current, context)
                if result is not None:
                    current = result
            if current is not node:
                new[node] = current
    except Exception as error:
        error.add_note(f"while rule set {rules.name!r} rewrote {current!r}")
        raise
    results = [new.get(r, r) for r in roots]
    return results[0] if isinstance(nodes, UOp) else results


def _collect(roots: Iterable[UOp], stable: int, mask: int) -> list[UOp]:
    """Nodes that rules may change, sources first: not those with a `stable` bit, nor without an op of `mask` below."""
    out: list[UOp] = []
    keep = out.append
    with stamp_lock:
        stamp = next_stamp()
        stack: list[UOp] = []
        push, pop = stack.append, stack.pop
        for node in roots:
            if node.stamp != stamp and not node.stable & stable and node.mask & mask:
                node.stamp = stamp
                push(node)
        while stack:
            following: UOp | None = pop()
            while following is not None:  # in the order that `toposort` takes
                keep(following)
                src = following.src
                following = None
                for source in src:
                    if source.stamp != stamp and not source.stable & stable and source.mask & mask:
                        source.stamp = stamp
                        if following is None:
                            following = source
                        else:
                            push(source)
    out.reverse()
    out.sort(key=by_uid)
    return out


class _Fixpoint:
    """One call of `rewrite`.

    A node is final when it has the stable bit, or is in `done` (for rule sets without a bit), or holds no op that any
    pattern starts at; a changed node is final when `new` has its final form. The hot loops write these tests out.
    """

    def __init__(self, rules: RuleSet, context: Any) -> None:
        self.rules = rules
        self.context = context
        self.matchers = rules.matchers()
        self.bit = self.matchers.stable_bit()
        self.mask = self.matchers.mask
        self.done: set[UOp] = set()
        self.new: dict[UOp, UOp] = {}
        self.steps = 0
        self.limit = 0

    def run(self, roots: list[UOp]) -> list[UOp]:
        bit, mask, new, done, matchers, context = self.bit, self.mask, self.new, self.done, self.matchers, self.context
        order = _collect(roots, bit, mask)
        self.limit = 100_000 + 200 * len(order)
        get = new.get
        current = roots[0] if roots else None
        try:
            for node in order:
                current = node
                if new:
                    if node in new:
                        continue
                    src = node.src
                    if len(src) == 2:
                        first, second = src
                        if first in new or second in new:
                            current = mk(node.op, node.dtype, (get(first, first), get(second, second)), node.arg)
                    else:
                        for source in src:
                            if source in new:
                                current = mk(node.op, node.dtype, tuple([get(s, s) for s in src]), node.arg)
                                break
                    if current is not node and (current.stable & bit or current in new or current in done):
                        new[node] = get(current, current)
                        continue
                matcher = matchers[current.sig]
                if matcher is not None:
                    result = matcher(current, context)
                    if result is not None:
                        if result.stable & bit or not result.mask & mask or result in new or result in done:
                            result = get(result, result)
                        else:
                            result = self.settle(current, result)
                        if current is not node:
                            new[current] = result
                        new[node] = result
                        continue
                if bit:
                    current.stable |= bit
                else:
                    done.add(current)
                if current is not node:
                    new[node] = current
        except Exception as error:
            error.add_note(f"while rule set {self.rules.name!r} rewrote {current!r}")
            raise
        return [get(r, r) for r in roots]

    def settle(self, start: UOp, result: UOp) -> UOp:
        """The final form of `result`, which a rule made of `start` and whose subtree may be new."""
        bit, mask, new, done, matchers = self.bit, self.mask, self.new, self.done, self.matchers
        get = new.get
        pending = {start: result}  # node -> what it became, while that is not final
        became = pending.get
        stack = [result]
        push, pop = stack.append, stack.pop
        while stack:
            node = stack[-1]
            target = became(node)
            if target is not None:
                # Back from settling what the node became.
                if target.stable & bit or target in done:
                    new[node] = target
                elif target in new:
                    new[node] = new[target]
                else:
                    raise self.loop(node, pending)
                pop()
                continue
            if node.stable & bit or node in new or node in done:
                pop()
                continue
            waits = changed = False
            src = node.src
            for source in src:
                if source.stable & bit or not source.mask & mask:
                    continue
                if source in new:
                    changed = True
                elif source not in done:
                    if source in pending:
                        raise self.loop(source, pending)
                    waits = True
                    push(source)
            if waits:
                continue
            current = node
            if changed:
                if len(src) == 2:
                    first, second = src
                    current = mk(node.op, node.dtype, (get(first, first), get(second, second)), node.arg)
                else:
                    current = mk(node.op, node.dtype, tuple([get(s, s) for s in src]), node.arg)
                if current is not node:
                    if current.stable & bit or current in new or current in done:
                        new[node] = get(current, current)
                        pop()
                        continue
                    if current in pending:
                        pending[node] = current
                        raise self.loop(current, pending)
            matcher = matchers[current.sig]
            target = matcher(current, self.context) if matcher is not None else None
            if target is None:
                if bit:
                    current.stable |= bit
                else:
                    done.add(current)
                if current is not node:
                    new[node] = current
                pop()
                continue
            self.steps += 1
            if self.steps > self.limit:
                raise RewriteError(
                    f"rule set {self.rules.name!r} does not end: after {self.limit} rewrites rule "
                    f"{self.rules.which(current, self.context)} is still changing {current!r}"
                )
            if target.stable & bit or not target.mask & mask or target in new or target in done:
                target = get(target, target)
                new[node] = target
                if current is not node:
                    new[current] = target
                pop()
                continue
            if current is not node:
                pending[node] = current
                push(current)
            if target in pending:
                pending[current] = target
                raise self.loop(target, pending)
            pending[current] = target
            push(target)
        if not result.stable & bit and result not in new and result not in done:
            raise self.loop(start, pending)
        return get(result, result)

    def loop(self, node: UOp, pending: dict[UOp, UOp]) -> RewriteError:
        """The error for rules that come back to a node they have already changed."""
        chain: list[str] = []
        seen: set[UOp] = set()
        current: UOp | None = node
        while current is not None and current not in seen and len(chain) < 8:
            seen.add(current)
            rule = self.rules.which(current, self.context)
            chain.append(f"{current!r}" + (f"\n  by rule {rule}" if rule is not None else ""))
            current = pending.get(current)
        return RewriteError(f"rule set {self.rules.name!r} runs in a circle:\n  " + "\n  -> ".join(chain))


__all__ = [
    "GUARANTEES", "Matchers", "Rule", "RuleSet", "normalizer", "observe_rules", "observed",
    "rewrite", "walk",
]  # fmt: skip
