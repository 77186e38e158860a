"""Patterns: algebra over named holes, spelled like expressions on nodes. They match graphs and build results.

    x, c = var("x"), const("c")
    (x * c) + 0            matches ADD(MUL(x, CONST), CONST 0)

Constants stand on the right in nodes and in patterns, so `2 + x` and `x + 2` are the same pattern. A commutative op
whose operands are both no constants matches in both orders.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import product
from typing import Any, Final

from gradlet.base.dtype import DType, Scalar
from gradlet.base.errors import RewriteError
from gradlet.ops.elementwise import ElementwiseMixin
from gradlet.ops.op import COMMUTATIVE, OP_INFO, Op


class _Anything:
    """The arg of a pattern that accepts every arg."""

    def __repr__(self) -> str:
        return "ANYTHING"


ANYTHING: Final = _Anything()
CONST_ONLY: Final = frozenset({Op.CONST})

# What a pattern may demand of a dtype: one type, one of several, or a text of `DType.kind` letters such as "uix".
DTypeTest = DType | frozenset[DType] | str | None
INTEGERS: Final = "uix"
FLOATS: Final = "f"
BOOLS: Final = "b"


class Pat(ElementwiseMixin):
    """A pattern. Used on the left of a rule it matches nodes; on the right it is the template of the result.

    Attributes:
        ops: the ops it accepts; None accepts any.
        src: patterns of the sources; None accepts any sources.
        name: what the matched node is called; equal names must match the same node.
        arg: the arg demanded, or ANYTHING. For CONST compared by value: 0 accepts 0.0, -0.0 and False.
        dtype: what is demanded of the dtype.
        more: accept further sources after those in `src`.
        ordered: match the sources as they stand, although the op is commutative.
        choices: for `any_of` only: the alternatives.
    """

    __slots__ = ("ops", "src", "name", "arg", "dtype", "more", "ordered", "choices")

    def __init__(
        self,
        ops: frozenset[Op] | None = None,
        src: tuple[Pat, ...] | None = None,
        name: str | None = None,
        arg: Any = ANYTHING,
        dtype: DTypeTest = None,
        more: bool = False,
        ordered: bool = False,
        choices: tuple[Pat, ...] = (),
    ) -> None:
        self.ops = ops
        self.src = src
        self.name = name
        self.arg = arg
        self.dtype = dtype
        self.more = more
        self.ordered = ordered
        self.choices = choices

    @property
    def is_const(self) -> bool:
        """Matches nothing but CONST nodes."""
        return self.ops == CONST_ONLY

    @property
    def is_literal(self) -> bool:
        """A constant with a fixed value and no name."""
        return self.ops == CONST_ONLY and self.arg is not ANYTHING and self.name is None

    def coerce(self, value: Any) -> Pat:
        """A Python scalar as a constant pattern; patterns pass unchanged."""
        return value if isinstance(value, Pat) else const(value=value)

    def alu(self, op: Op, *others: Pat) -> Pat:
        """The pattern of `op` over this and `others`."""
        src = (self, *others)
        if op in COMMUTATIVE and self.is_const and not others[0].is_const:
            src = (others[0], self)
        return Pat(frozenset({op}), src)

    def neg(self) -> Pat:
        """`-self`; a literal is negated at once."""
        return const(value=-self.arg) if self.is_literal else self.alu(Op.MUL, const(value=-1))

    def where(self, if_true: Any, if_false: Any) -> Pat:
        """WHERE with this as the condition."""
        return self.alu(Op.WHERE, self.coerce(if_true), self.coerce(if_false))

    def cast(self, dtype: DType) -> Pat:
        """CAST to `dtype`."""
        return Pat(frozenset({Op.CAST}), (self,), dtype=dtype)

    def bitcast(self, dtype: DType) -> Pat:
        """BITCAST to `dtype`."""
        return Pat(frozenset({Op.BITCAST}), (self,), dtype=dtype)

    def named(self, name: str) -> Pat:
        """The same pattern; the node it matches is called `name`."""
        return Pat(self.ops, self.src, name, self.arg, self.dtype, self.more, self.ordered, self.choices)

    def walk(self) -> Iterator[Pat]:
        """This and every pattern inside."""
        stack = [self]
        while stack:
            top = stack.pop()
            yield top
            stack.extend(top.src or ())
            stack.extend(top.choices)

    def __repr__(self) -> str:
        if self.choices:
            return f"any_of({', '.join(map(repr, self.choices))})"
        if self.is_const:
            return repr(self.arg) if self.is_literal else f"const({self.name or ''})"
        if self.ops is None and self.src is None:
            return self.name or "_"
        ops = "|".join(sorted(o.name for o in self.ops)) if self.ops else "ANY"
        inner = "..." if self.src is None else ", ".join(map(repr, self.src)) + (", ..." if self.more else "")
        return f"{ops}({inner})" + (f" as {self.name}" if self.name else "")


def _dtype_test(dtype: DType | Iterable[DType] | str | None) -> DTypeTest:
    return dtype if dtype is None or isinstance(dtype, (DType, str)) else frozenset(dtype)


def var(name: str | None = None, dtype: DType | Iterable[DType] | str | None = None) -> Pat:
    """Matches any node; `dtype` is a type, several types, or a text of kinds ("uix": all integers)."""
    return Pat(name=name, dtype=_dtype_test(dtype))


def const(
    name: str | None = None, value: Scalar | _Anything = ANYTHING, dtype: DType | Iterable[DType] | str | None = None
) -> Pat:
    """Matches a CONST node, of any value or of the given one."""
    return Pat(CONST_ONLY, None, name, value, _dtype_test(dtype))


def op(
    ops: Op | Iterable[Op],
    *src: Pat | Scalar,
    name: str | None = None,
    arg: Any = ANYTHING,
    dtype: DType | Iterable[DType] | str | None = None,
    more: bool = False,
    ordered: bool = False,
) -> Pat:
    """Matches nodes of one op, or of several; without sources whatever their sources are.

    `more` accepts further sources at the end, `ordered` keeps a commutative op from matching in both orders.
    """
    accepted = frozenset({ops}) if isinstance(ops, Op) else frozenset(ops)
    sources = tuple(s if isinstance(s, Pat) else const(value=s) for s in src)
    if len(sources) == 2 and accepted <= COMMUTATIVE and sources[0].is_const and not sources[1].is_const:
        sources = (sources[1], sources[0])
    return Pat(accepted, sources or None, name, arg, _dtype_test(dtype), more, ordered)


def any_of(*choices: Pat, name: str | None = None) -> Pat:
    """Matches what any of the patterns matches, tried in order."""
    if not choices:
        raise RewriteError("any_of needs at least one pattern")
    return Pat(choices=tuple(c if name is None else c.named(name) for c in choices), name=name)


_MOST_VARIANTS: Final = 96


def variants(pattern: Pat) -> list[Pat]:
    """The pattern written out: alternatives one by one, commutative ops in both orders.

    Raises:
        RewriteError: there are so many that the rule should be a function.
    """
    found = _variants(pattern)
    if len(found) > _MOST_VARIANTS:
        raise RewriteError(f"pattern {pattern!r} has {len(found)} variants; match less of it and test the rest in code")
    return found


def _variants(pattern: Pat) -> list[Pat]:
    if pattern.choices:
        return [v for choice in pattern.choices for v in _variants(choice)]
    if not pattern.src:
        return [pattern]
    out: list[Pat] = []
    for sources in product(*(_variants(s) for s in pattern.src)):
        out.append(Pat(pattern.ops, sources, pattern.name, pattern.arg, pattern.dtype, pattern.more))
        if len(sources) == 2 and pattern.ops and not pattern.ordered and not _same(*sources):
            swapped = pattern.ops & COMMUTATIVE
            if swapped and not sources[0].is_const and not sources[1].is_const:
                turned = (sources[1], sources[0])
                out.append(Pat(swapped, turned, pattern.name, pattern.arg, pattern.dtype, pattern.more))
    return out


def _same(first: Pat, second: Pat) -> bool:
    return first is second or (first.name is not None and first.name == second.name)


def fixed_arity(ops: frozenset[Op] | None) -> int | None:
    """The number of sources of all these ops, None when it varies."""
    arities = {OP_INFO[o].arity for o in ops} if ops else {None}
    return arities.pop() if len(arities) == 1 else None
