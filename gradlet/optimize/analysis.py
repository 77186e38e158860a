"""Facts about a kernel that choosing and rewriting its loops needs: open ranges, affine indices, memory accesses."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import cached_property
from itertools import chain
from threading import local
from typing import Final, NamedTuple

from gradlet.base.dtype import DType
from gradlet.graph.node import UOp, mk, toposort
from gradlet.ops.op import AxisKind, Op, RangeArg

# Lanes so many elements apart are picked out of whole vectors; farther ones are loaded each by itself.
MOST_APART: Final = 4
# Vectors of a row that are written out.
SHORT_ROW: Final = 8
# Element-wise ops that become many instructions, about so many.
HEAVY: Final = frozenset({Op.EXP, Op.EXP2, Op.LOG, Op.LOG2, Op.SIN, Op.COS, Op.POW})
HEAVY_NODES: Final = 16

EMPTY: Final[frozenset[UOp]] = frozenset()
_RANGE: Final = Op.RANGE
# Members of an enum are slow to reach through their class.
_STORE: Final = Op.STORE
_CONST: Final = Op.CONST
_ADD: Final = Op.ADD
_MUL: Final = Op.MUL
_LOAD: Final = Op.LOAD
_REDUCE: Final = Op.REDUCE
_CARRY: Final = Op.CARRY
_AFTER: Final = Op.AFTER
_IDIV: Final = Op.IDIV
_MAX: Final = Op.MAX
_MIN: Final = Op.MIN
_MOD: Final = Op.MOD
_PARAM: Final = Op.PARAM
_SINK: Final = Op.SINK
_RANGE_BIT: Final = 1 << Op.RANGE
CLOSING: Final = frozenset({Op.REDUCE, Op.AFTER})  # what runs over ranges of its own and closes them


def open_ranges(order: Iterable[UOp]) -> dict[UOp, frozenset[UOp]]:
    """The ranges each node depends on, for nodes given sources first. A REDUCE or AFTER closes its own.

    Nodes keep the answer, so a pass pays for the nodes it has made; only a RANGE cannot keep a set that it is in.
    """
    # None at first for nodes that are new, which come after their sources.
    found: dict[UOp, frozenset[UOp]] = {node: node._open for node in order}  # type: ignore[misc]
    for node in [node for node in found if node._open is None]:
        if node.op is _RANGE:
            below = found[node.src[0]]
            found[node] = frozenset((node, *below)) if below else frozenset((node,))
            continue
        ranges = EMPTY
        if node.mask & _RANGE_BIT:
            for source in node.src:
                more = found[source]
                if more and more is not ranges:
                    ranges = more if not ranges else (ranges if more <= ranges else ranges | more)
            if ranges and node.op in CLOSING:
                ranges = ranges.difference(node.src[1:])
        node._open = found[node] = ranges
    return found


class _Remembered(local):
    """The kernel that this thread looked at last, with what a walk over it has found out."""

    depth = 0
    sink: UOp | None = None
    order: list[UOp] = []
    ranges: dict[UOp, frozenset[UOp]] | None = None


_remembered: Final = _Remembered()


@contextmanager
def remembered_order() -> Iterator[None]:
    """Inside the block a kernel is walked once for all passes that leave it as it is, and is kept alive for that."""
    _remembered.depth += 1
    try:
        yield
    finally:
        _remembered.depth -= 1
        if not _remembered.depth:
            _remembered.sink, _remembered.order, _remembered.ranges = None, [], None


def kernel_order(sink: UOp) -> list[UOp]:
    """All nodes of a kernel, sources first. Others may hold the list too: do not change it."""
    kept = _remembered
    if kept.sink is sink:
        return kept.order
    order = toposort((sink,))
    if kept.depth:
        kept.sink, kept.order, kept.ranges = sink, order, None
    return order


def ranges_in(sink: UOp) -> dict[UOp, frozenset[UOp]]:
    """The `open_ranges` of all nodes of a kernel. Others may hold them too: do not change them."""
    order = kernel_order(sink)
    kept = _remembered
    if kept.sink is not sink:
        return open_ranges(order)
    if kept.ranges is None:
        kept.ranges = open_ranges(order)
    return kept.ranges


def closed_by(node: UOp) -> tuple[UOp, ...]:
    """The ranges that a REDUCE or an AFTER closes."""
    return tuple([s for s in node.src[1:] if s.op is _RANGE])


def nesting_depths(order: Sequence[UOp], ranges: dict[UOp, frozenset[UOp]]) -> dict[UOp, int]:
    """0 for the ranges of stores; a range that a REDUCE or AFTER closes lies deeper than those that it depends on."""
    # What is carried belongs to one row: its loop is inside those of the rows.
    depths = {r: 1 for node in order if node.op is _CARRY for r in node.src[2:]}
    for node in reversed(order):
        if node.op is _STORE:
            for r in ranges[node]:
                depths.setdefault(r, 0)
        elif node.op in CLOSING:
            depth = 1 + max([depths.get(r, 0) for r in ranges[node]], default=-1)
            for r in closed_by(node):
                depths[r] = max(depths.get(r, 0), depth)
    return depths


def kernel_ranges(sink: UOp) -> list[UOp]:
    """All RANGE nodes of a kernel, in nesting order."""
    return sorted((n for n in kernel_order(sink) if n.op is _RANGE), key=nesting_order)


def use_counts(order: Iterable[UOp]) -> Counter[UOp]:
    """How many sources of the given nodes each node is."""
    return Counter(chain.from_iterable([n.src for n in order]))


def nesting_order(node: UOp) -> tuple[int, int]:
    """Sort key of ranges, outermost first: parallel ones, lanes, then by number.

    A lane runs through loops: results of different loops are computed by the same lanes.
    """
    return (_OUTSIDE.get(node.arg.kind, 2), node.arg.number)


_OUTSIDE: Final = {AxisKind.PARALLEL: 0, AxisKind.THREAD: 1}


def next_number(sink: UOp) -> int:
    """A range number that the kernel does not use yet, above all others."""
    return 1 + max((n.arg.number for n in kernel_order(sink) if n.op is _RANGE), default=-1)


def range_size(node: UOp) -> int | None:
    """Trip count of a RANGE, None when it is only known at launch."""
    size = node.src[0]
    return int(size.arg) if size.op is _CONST else None


def is_fixed(node: UOp) -> bool:
    """Whether the trip count of a RANGE is known before launch."""
    return node.src[0].op is _CONST


def size_bound(node: UOp) -> int:
    """Trip count of a RANGE, or the largest it may have."""
    size = node.src[0]
    if size.op is _CONST:
        return int(size.arg)
    from gradlet.graph.bounds import bounds

    return int(bounds(size)[1])


def _bounds(node: UOp) -> tuple[int, int]:
    from gradlet.graph.bounds import bounds

    least, most = bounds(node)
    return int(least), int(most)


def make_after(dtype: DType, sources: Iterable[UOp]) -> UOp:
    """An AFTER; a STORE that became several, or none, is a SINK of them."""
    flat: list[UOp] = []
    for source in sources:
        flat.extend(source.src if source.op is _SINK else (source,))
    return mk(_AFTER, dtype, tuple(dict.fromkeys(flat)))


def make_range(size: UOp, number: int, kind: AxisKind) -> UOp:
    """A RANGE node."""
    return mk(_RANGE, size.dtype, (size,), RangeArg(number, kind))


class Affine(NamedTuple):
    """`sum(coefficient * atom) + constant`; an atom is whatever is not a sum or a product with a constant."""

    terms: dict[UOp, int]
    constant: int


def affine(node: UOp) -> Affine:
    """The affine form of an index expression."""
    terms: dict[UOp, int] = {}
    constant = 0
    stack = [(node, 1)]
    while stack:
        part, factor = stack.pop()
        if part.op is _CONST:
            constant += factor * int(part.arg)
        elif part.op is _ADD:
            stack.append((part.src[1], factor))
            stack.append((part.src[0], factor))
        elif part.op is _MUL and part.src[1].op is _CONST:
            stack.append((part.src[0], factor * int(part.src[1].arg)))
        else:
            terms[part] = terms.get(part, 0) + factor
    return Affine({atom: factor for atom, factor in terms.items() if factor}, constant)


def coefficient(form: Affine, loop: UOp, ranges: dict[UOp, frozenset[UOp]]) -> int | None:
    """By how much the value grows a step of `loop`; None when that is not a constant."""
    result = 0
    for atom, factor in form.terms.items():
        if atom is loop:
            result = factor
        elif loop in ranges[atom]:
            return None
    return result


Digits = tuple[tuple[int, int], tuple[int, int]] | None  # intervals of quotient and remainder by a stride


def never_meet(
    one: Affine, other: Affine, lanes: int = 1, digits: Callable[[Affine, int, int], Digits] | None = None
) -> bool:
    """Whether two index expressions have no value in common, for any values of their ranges.

    For a stride that divides the larger coefficients of both, every value is `high * stride + low` in one way; then it
    is enough that the lows, or the highs, lie in intervals apart. The first `lanes` values after each count as well.
    `digits` is for who asks often.
    """
    digits = digits or _digits
    strides = {abs(factor) for form in (one, other) for factor in form.terms.values()} | {1 << 62}
    for stride in strides:
        first, second = digits(one, stride, lanes), digits(other, stride, lanes)
        if first is not None and second is not None and _are_apart(first, second):
            return True
    return False


def _are_apart(one: tuple[tuple[int, int], ...], other: tuple[tuple[int, int], ...]) -> bool:
    """Whether some interval of one is apart from the same of the other."""
    return any(a[1] < b[0] or b[1] < a[0] for a, b in zip(one, other, strict=True))


def _lanes(node: UOp) -> int:
    """How many elements a LOAD or STORE touches."""
    return node.src[1].dtype.count if node.op is _STORE else node.dtype.count


def _digits(form: Affine, stride: int, lanes: int) -> Digits:
    """The intervals of quotient and remainder of an index by a stride, where no sum carries over."""
    high, rest = divmod(form.constant, stride)
    highs, lows = [high, high], [rest, rest + lanes - 1]
    for atom, factor in form.terms.items():
        least, most = (0, size_bound(atom) - 1) if atom.op is _RANGE else _bounds(atom)
        target, step = (highs, factor // stride) if factor % stride == 0 else (lows, factor)
        target[0] += step * (least if step > 0 else most)
        target[1] += step * (most if step > 0 else least)
    if lows[0] < 0 or lows[1] >= stride:
        return None
    return (highs[0], highs[1]), (lows[0], lows[1])


class Accesses:
    """Which LOADs and STOREs of one buffer may touch the same element; what is found out about each is kept."""

    def __init__(self) -> None:
        self._forms: dict[UOp, Affine] = {}
        self._digits: dict[tuple[int, int, int], Digits] = {}

    def may_meet(self, one: UOp, other: UOp) -> bool:
        """Whether two accesses may touch the same element."""
        lanes = max(_lanes(one), _lanes(other))
        return not never_meet(self._form(one), self._form(other), lanes, self._digits_of)

    def may_any_meet(self, ones: Sequence[UOp], others: Sequence[UOp]) -> bool:
        """Whether some of one group may touch an element that some of another do; False is certain.

        Intervals that hold a whole group are compared, so it costs as much as the groups have members, not pairs.
        """
        lanes = max([_lanes(n) for n in (*ones, *others)])
        forms = [[self._form(n) for n in group] for group in (ones, others)]
        strides = {abs(factor) for group in forms for form in group for factor in form.terms.values()} | {1 << 62}
        for stride in strides:
            first, second = [self._hull(group, stride, lanes) for group in forms]
            if first is not None and second is not None and _are_apart(first, second):
                return False
        return True

    def _hull(self, forms: Sequence[Affine], stride: int, lanes: int) -> Digits:
        """The intervals that hold those of all forms."""
        found: list[tuple[tuple[int, int], tuple[int, int]]] = []
        for form in forms:
            digits = self._digits_of(form, stride, lanes)
            if digits is None:
                return None
            found.append(digits)
        highs, lows = [high for high, _ in found], [low for _, low in found]
        return (min(highs)[0], max([most for _, most in highs])), (min(lows)[0], max([most for _, most in lows]))

    def _form(self, node: UOp) -> Affine:
        found = self._forms.get(node)
        if found is None:
            found = self._forms[node] = affine(node.src[0].src[1])
        return found

    def _digits_of(self, form: Affine, stride: int, lanes: int) -> Digits:
        key = (id(form), stride, lanes)  # the forms live as long as this
        if key not in self._digits:
            self._digits[key] = _digits(form, stride, lanes)
        return self._digits[key]


def divisor(node: UOp) -> int:
    """A number that certainly divides an index expression; 0 for the constant 0."""
    if node.op is _CONST:
        return abs(int(node.arg))
    if node.op is _MUL:
        return divisor(node.src[0]) * divisor(node.src[1])
    if node.op in (_ADD, _MIN, _MAX):
        return math.gcd(divisor(node.src[0]), divisor(node.src[1]))
    return 1


def fills_vectors(address: UOp, count: int) -> bool:
    """Whether `count` elements from an address on are one aligned vector of 16 to 64 bytes.

    Memory of a kernel's parameters that it writes begins at a multiple of 64 bytes.
    """
    size = count * address.dtype.itemsize
    return size in (16, 32, 64) and len(address.src) == 2 and divisor(address.src[1]) % count == 0


class Access:
    """One LOAD or STORE: its node, its INDEX, the ranges it depends on."""

    __slots__ = ("node", "address", "ranges", "_form")

    def __init__(self, node: UOp, ranges: frozenset[UOp]) -> None:
        self.node, self.address, self.ranges = node, node.src[0], ranges
        self._form: Affine | None = None

    @property
    def form(self) -> Affine:
        """The affine form of the element number, which not everybody asks for."""
        if self._form is None:
            self._form = affine(self.address.src[1])
        return self._form

    @property
    def is_store(self) -> bool:
        return self.node.op is _STORE

    @property
    def param(self) -> UOp:
        return self.address.src[0]

    @property
    def slot(self) -> int | None:
        """Which PARAM it is; None for an array of the core."""
        return int(self.param.arg.slot) if self.param.op is _PARAM else None


def _is_digit(node: UOp, loop: UOp) -> bool:
    """Whether an expression is a quotient or remainder of a range by constants."""
    depth = 0
    while node.op in (_IDIV, _MOD) and node.src[1].op is _CONST:
        node, depth = node.src[0], depth + 1
    return node is loop and depth > 0


class KernelFacts:
    """What the heuristic and the actions look up about one kernel.

    Attributes:
        sink: the kernel.
        order: its nodes, sources first.
        loops: all RANGE nodes in nesting order.
        stores: all STORE nodes in the kernel's order.
    """

    def __init__(self, sink: UOp) -> None:
        self.sink = sink
        self.order = kernel_order(sink)
        self.loops = sorted([n for n in self.order if n.op is _RANGE], key=nesting_order)
        self.stores: Sequence[UOp] = sink.src

    @cached_property
    def ranges(self) -> dict[UOp, frozenset[UOp]]:
        """Open ranges of every node."""
        return ranges_in(self.sink) if _remembered.sink is self.sink else open_ranges(self.order)

    @cached_property
    def reduces(self) -> list[UOp]:
        """All REDUCE nodes."""
        return [n for n in self.order if n.op is _REDUCE]

    @cached_property
    def accesses(self) -> list[Access]:
        """Every LOAD and STORE."""
        return [Access(n, self.ranges[n]) for n in self.order if n.op is _LOAD or n.op is _STORE]

    @cached_property
    def depths(self) -> dict[UOp, int]:
        """How deep each range lies: see `nesting_depths`."""
        return nesting_depths(self.order, self.ranges)

    def nesting(self, loop: UOp) -> tuple[int, int, int]:
        """Sort key of ranges that occur together, outermost first."""
        return (self.depths.get(loop, 0), *nesting_order(loop))

    def next_number(self) -> int:
        """A range number that the kernel does not use yet, above all others."""
        return 1 + max((r.arg.number for r in self.loops), default=-1)

    def closed(self) -> set[UOp]:
        """The ranges that some REDUCE or AFTER closes."""
        return {r for node in self.order if node.op in CLOSING for r in closed_by(node)}

    def stride(self, access: Access, loop: UOp) -> int | None:
        """Elements an access moves a step of `loop`; None when not constant."""
        return coefficient(access.form, loop, self.ranges)

    def is_near(self, access: Access, loop: UOp) -> bool:
        """Whether an access repeats or skips elements along `loop` in a pattern, by quotients and remainders of it."""
        inside = [atom for atom in access.form.terms if loop in self.ranges[atom]]
        return bool(inside) and all(_is_digit(atom, loop) for atom in inside)

    def by_number(self, number: int) -> UOp | None:
        """The range with this number."""
        return next((r for r in self.loops if r.arg.number == number), None)
