"""Rules become Python source: one function for every set of rules that can match nodes of one signature.

Tests are straight code on local names, results are written in line, and rules that follow each other share the tests
they begin with. Ops of the node and of its first two sources are known from the signature and not tested again.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import groupby
from typing import Any, Final, NamedTuple

from gradlet.base.dtype import DType, dtypes
from gradlet.base.errors import RewriteError
from gradlet.graph.fold import fold
from gradlet.graph.node import KIND_CONST_RIGHT, KIND_ONE, KIND_ZERO, SIG_SAME, UOp, mk
from gradlet.graph.pattern import ANYTHING, Pat, fixed_arity
from gradlet.ops.op import COMPARE, ELEMENTWISE, Op

Matcher = Callable[[UOp, Any], UOp | None]
CONST_KINDS: Final = frozenset({int(Op.CONST), KIND_ZERO, KIND_ONE})


class Case(NamedTuple):
    """One variant of a rule: a pattern without alternatives, and what to do when it matches."""

    rule: Any  # the Rule, for observers and errors
    pattern: Pat
    template: Pat | None
    function: Callable[..., UOp | None] | None
    function_names: tuple[str, ...]
    when: Callable[..., bool] | None
    when_names: tuple[str, ...]


def kinds(pattern: Pat) -> frozenset[int] | None:
    """The node kinds a pattern can match, None for all."""
    if pattern.ops is None:
        return None
    if pattern.is_const:
        if pattern.arg is ANYTHING:
            return CONST_KINDS
        if not pattern.arg:
            return frozenset({KIND_ZERO})
        return frozenset({KIND_ONE if pattern.arg == 1 else int(Op.CONST)})
    plain = {int(o) for o in pattern.ops}
    with_constant = {n | KIND_CONST_RIGHT for n in plain}
    if Op.CONST in pattern.ops:
        plain |= CONST_KINDS
    if pattern.src is None or len(pattern.src) != 2 or pattern.more:
        return frozenset(plain | with_constant)
    second = pattern.src[1]
    if second.is_const:
        return frozenset(with_constant)
    if second.ops is not None and Op.CONST not in second.ops:
        return frozenset(plain)
    return frozenset(plain | with_constant)


# Their arg and dtype follow from their sources, so equal sources make equal nodes.
_FUNCTIONS: Final = ELEMENTWISE - {Op.CAST, Op.BITCAST}


def surely_same(first: Pat, second: Pat) -> bool:
    """Whether two patterns of one rule can only match the same node."""
    if first.name is not None or second.name is not None:
        return first.name == second.name
    if first.is_literal and second.is_literal:
        return False  # one value exists in many dtypes
    if first.ops is None or len(first.ops) != 1 or first.ops != second.ops or not first.ops <= _FUNCTIONS:
        return False
    one, two = first.src or (), second.src or ()
    return bool(one) and len(one) == len(two) and all(map(surely_same, one, two))


class SignatureTest:
    """Decides from the signature of a node with an op of a pattern whether the pattern can match it at all."""

    __slots__ = ("first", "second", "count", "more", "same")

    def __init__(self, pattern: Pat) -> None:
        src = pattern.src or ()
        self.count = -1 if pattern.src is None else len(src)
        self.more = pattern.more
        self.first = kinds(src[0]) if len(src) > 0 else None
        self.second = kinds(src[1]) if len(src) > 1 else None
        self.same = len(src) > 1 and surely_same(src[0], src[1])

    def __call__(self, sig: int) -> bool:
        if self.count < 0:
            return True
        first, second = sig >> 8 & 255, sig >> 16 & 255
        known = 0 if not first else 1 if not second else 2  # two stands for two or more
        if known < min(self.count, 2) or (known > self.count and not self.more):
            return False
        if self.same and not sig & SIG_SAME:
            return False
        if self.count > 0 and self.first is not None and first not in self.first:
            return False
        return not (self.count > 1 and self.second is not None and second not in self.second)


def index_constant(value: int) -> UOp:
    """A constant of type index, which holds every integer."""
    return mk(Op.CONST, dtypes.index, (), value)


def folded(op: Op, dtype: DType, *nodes: UOp) -> UOp:
    """The op over constants as one constant; the op itself where its value is undefined."""
    value = fold(op, dtype, [n.arg for n in nodes], nodes[0].dtype)
    return mk(op, dtype, nodes, None) if value is None else UOp.const(dtype, value)


def bool_like(dtype: DType) -> DType:
    """bool with as many lanes."""
    return dtypes.bool if dtype.count == 1 else dtypes.bool.vec(dtype.count)


# What `fold` does, as source.
_INDEX_FORMS: Final = {
    Op.ADD: "({0} + {1})", Op.MUL: "({0} * {1})",
    Op.IDIV: "({0} // {1} if {1} else 0)", Op.MOD: "({0} % {1} if {1} else 0)",
}  # fmt: skip


class _Step(NamedTuple):
    text: str
    is_test: bool


class SourceWriter:
    """Writes matcher functions; holds the objects their source refers to by name."""

    def __init__(self) -> None:
        self.names: dict[str, Any] = {
            "mk": mk, "constant": UOp.const, "folded": folded, "index_constant": index_constant, "bool_like": bool_like,
            "BOOL": dtypes.bool, "INDEX": dtypes.index,
        }  # fmt: skip
        self._known: dict[tuple[str, int], str] = {}
        self.sources: list[str] = []

    def compile(self, cases: Sequence[Case], traced: bool = False) -> Matcher:
        """The function that tries the cases in order; with `traced` it reports each hit to `names["trace"]`."""
        name = f"match_{len(self.sources)}"
        lines = [f"def {name}(n, context):"]
        plans = [_Plan(self, case, traced) for case in cases]
        _emit([(plan.steps, plan.result) for plan in plans], 0, 1, lines)
        lines.append("    return None")
        source = "\n".join(lines)
        self.sources.append(source)
        exec(compile(source, f"<rules {name}>", "exec"), self.names)
        return self.names[name]  # type: ignore[no-any-return]

    def name_of(self, prefix: str, value: Any) -> str:
        """A name under which generated source finds `value`."""
        if isinstance(value, Op):
            self.names[value.name] = value
            return value.name
        known = self._known.get((prefix, id(value)))
        if known is None:
            known = f"{prefix}{len(self._known)}"
            self._known[prefix, id(value)] = known
            self.names[known] = value  # keeps `value` alive, so its id stays its own
        return known


def _emit(plans: list[tuple[list[_Step], list[str]]], depth: int, indent: int, lines: list[str]) -> None:
    """Write the plans from step `depth` on; neighbours with the same step share it."""
    pad = "    " * indent
    for step, group in groupby(plans, key=lambda plan: plan[0][depth] if depth < len(plan[0]) else None):
        members = list(group)
        if step is None:
            for _, result in members:
                lines.extend(pad + line for line in result)
                if result[0].startswith("return"):
                    return  # nothing after it can be reached
        elif step.is_test:
            lines.append(f"{pad}if {step.text}:")
            _emit(members, depth + 1, indent + 1, lines)
        else:
            lines.append(pad + step.text)
            _emit(members, depth + 1, indent, lines)


class _Plan:
    """One case as steps (tests and assignments) and the lines that make its result."""

    def __init__(self, writer: SourceWriter, case: Case, traced: bool) -> None:
        self.writer = writer
        self.case = case
        self.steps: list[_Step] = []
        self.bound: dict[str, str] = {}  # name in the pattern -> local name in the source
        self.constants: set[str] = set()  # names bound to CONST nodes
        self._match(case.pattern)
        if case.when is not None:
            arguments = ", ".join(self._argument(name) for name in case.when_names)
            self._test(f"{writer.name_of('when', case.when)}({arguments})")
        self.result = self._result(traced)

    def _test(self, text: str) -> None:
        self.steps.append(_Step(text, True))

    def _match(self, pattern: Pat) -> None:
        queue: list[tuple[Pat, str, bool]] = [(pattern, "n", True)]
        for pat, local, kind_known in queue:  # grows while it is walked: level by level
            if pat.name is not None and pat.name in self.bound:
                self._test(f"{local} is {self.bound[pat.name]}")
                continue
            if pat.name is not None:
                self.bound[pat.name] = local
                if pat.is_const:
                    self.constants.add(pat.name)
            self._match_node(pat, local, kind_known)
            if pat.src:
                children = [f"{local}_{i}" for i in range(len(pat.src))]
                if pat.more or (pat.ops is None):
                    sign = ">=" if pat.more else "=="
                    self._test(f"len({local}.src) {sign} {len(children)}")
                    values = ", ".join(f"{local}.src[{i}]" for i in range(len(children)))
                    self.steps.append(_Step(f"{', '.join(children)} = {values}", False))
                else:
                    if fixed_arity(pat.ops) != len(children):
                        self._test(f"len({local}.src) == {len(children)}")
                    self.steps.append(_Step(f"{', '.join(children)}, = {local}.src", False))
                at_root = local == "n"
                for i, (child, child_local) in enumerate(zip(pat.src, children)):
                    queue.append((child, child_local, at_root and i < 2))

    def _match_node(self, pat: Pat, local: str, kind_known: bool) -> None:
        if pat.ops is not None:
            if pat.is_const and pat.arg is not ANYTHING and (not pat.arg or pat.arg == 1):
                if not kind_known or local == "n":  # of the node itself the signature has the op only
                    self._test(f"{local}.kind == {KIND_ONE if pat.arg else KIND_ZERO}")
            elif not kind_known:
                if len(pat.ops) == 1:
                    self._test(f"{local}.op is {self.writer.name_of('op', next(iter(pat.ops)))}")
                else:
                    names = [self.writer.name_of("op", o) for o in sorted(pat.ops)]
                    self._test(f"{local}.op in ({', '.join(names)})")
        if pat.arg is not ANYTHING and not (pat.is_const and (not pat.arg or pat.arg == 1)):
            self._test(f"{local}.arg == {self.writer.name_of('arg', pat.arg)}")
        if isinstance(pat.dtype, DType):
            self._test(f"{local}.dtype is {self.writer.name_of('dtype', pat.dtype)}")
        elif isinstance(pat.dtype, str):
            if len(pat.dtype) == 1:
                self._test(f"{local}.dtype.kind == {pat.dtype!r}")
            else:
                self._test(f"{local}.dtype.kind in {pat.dtype!r}")
        elif pat.dtype is not None:
            self._test(f"{local}.dtype in {self.writer.name_of('dtypes', pat.dtype)}")

    def _argument(self, name: str) -> str:
        if name == "context":
            return "context"
        if name == "root" and "root" not in self.bound:
            return "n"
        if name not in self.bound:
            raise RewriteError(f"{self.case.rule}: {name!r} is not bound by {self.case.pattern!r}")
        return self.bound[name]

    def _result(self, traced: bool) -> list[str]:
        report = [f"    trace({self.writer.name_of('rule', self.case.rule)}, n, r)"] if traced else []
        if self.case.function is not None:
            arguments = ", ".join(self._argument(name) for name in self.case.function_names)
            call = f"{self.writer.name_of('function', self.case.function)}({arguments})"
            return [f"r = {call}", "if r is not None and r is not n:", *report, "    return r"]
        assert self.case.template is not None
        expression = self._build(self.case.template, "n.dtype")
        if expression.isidentifier() and not traced:
            return [f"return {expression}"]
        return [f"r = {expression}", "if r is not n:", *report, "    return r"]

    # templates
    def _build(self, template: Pat, dtype: str) -> str:
        """Source that builds a template; `dtype` is source for the type a bare literal takes."""
        if template.name is not None and template.name in self.bound:
            return self.bound[template.name]
        if template.is_literal:
            if isinstance(template.dtype, DType):
                dtype = self.writer.name_of("dtype", template.dtype)
            return f"constant({dtype}, {self.writer.name_of('value', template.arg)})"
        if not template.ops or len(template.ops) != 1 or template.src is None:
            raise RewriteError(f"{self.case.rule}: the result holds {template!r}, which the pattern does not bind")
        op = next(iter(template.ops))
        own = self._dtype_of(template) or dtype
        if op in (Op.CAST, Op.BITCAST):
            own = f"{own}.vec({self._dtype_of(template.src[0]) or dtype}.count)"
        wanted = self._dtypes_of_sources(op, template.src, own)
        parts = [self._build(s, w) for s, w in zip(template.src, wanted)]
        name = self.writer.name_of("op", op)
        if op in ELEMENTWISE and all(self._is_constant(s) for s in template.src):
            general = f"folded({name}, {own}, {', '.join(parts)})"
            value = self._index_value(template)
            return general if value is None else f"(index_constant({value}) if {own} is INDEX else {general})"
        arg = "None" if template.arg is ANYTHING else self.writer.name_of("arg", template.arg)
        return f"mk({name}, {own}, ({', '.join(parts)},), {arg})"

    def _index_value(self, template: Pat) -> str | None:
        """Source for the value of arithmetic on constants, right where all of them have type index."""
        if template.name is not None and template.name in self.bound:
            return f"{self.bound[template.name]}.arg"
        if template.is_literal and template.dtype is None:
            return f"({template.arg!r})" if type(template.arg) is int else None
        form = _INDEX_FORMS.get(next(iter(template.ops))) if template.ops else None
        if form is None or template.src is None:
            return None
        parts = [self._index_value(s) for s in template.src]
        return None if None in parts else form.format(*parts)

    def _is_constant(self, template: Pat) -> bool:
        if template.name is not None and template.name in self.bound:
            return template.name in self.constants
        if template.src:
            return (
                template.ops is not None and template.ops <= ELEMENTWISE and all(map(self._is_constant, template.src))
            )
        return template.is_literal

    def _dtype_of(self, template: Pat) -> str | None:
        """Source for the dtype a template's result has; None when only its surroundings decide."""
        if template.name is not None and template.name in self.bound:
            return f"{self.bound[template.name]}.dtype"
        if isinstance(template.dtype, DType):
            return self.writer.name_of("dtype", template.dtype)
        if not template.ops or not template.src:
            return None
        op = next(iter(template.ops))
        if op not in ELEMENTWISE:
            return "n.dtype"
        value_sources = template.src[1:] if op is Op.WHERE else template.src
        for source in value_sources:
            found = self._dtype_of(source)
            if found is not None:
                return f"bool_like({found})" if op in COMPARE else found
        return None

    def _dtypes_of_sources(self, op: Op, src: tuple[Pat, ...], own: str) -> list[str]:
        """The type a literal takes in each source position: that of the operand beside it."""
        if op is Op.WHERE:
            return ["BOOL", own, own]
        for source in src:
            found = self._dtype_of(source)
            if found is not None:
                return [found] * len(src)
        return [own] * len(src)
