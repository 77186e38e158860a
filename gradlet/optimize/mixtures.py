"""Weighted means of rows by a softmax along the summed range: recognised in a kernel, and taken apart.

`out[i, d] = sum over j of w(i, j) * v(j, d)`, where the weights `w` are exponentials of `x(i, j)` less the maximum of
a row, divided by their sum, whatever spelled them. A kernel of that form computes `x` for the maximum, for the sum and
for the weights; `ROTATE` goes over `j` once. What the form leaves open is kept: how `x` comes about (a product of
queries and keys, scaled and masked), what else the weights are multiplied by, what is done to the result.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from typing import Final, NamedTuple

from gradlet.base.dtype import dtypes
from gradlet.graph.node import UOp, mk
from gradlet.ops.op import AxisKind, Op
from gradlet.optimize.analysis import KernelFacts, affine, range_size

MINUS_INFINITY: Final = float("-inf")
_INDEX: Final = dtypes.index


class Mixture(NamedTuple):
    """The parts of such a kernel.

    Attributes:
        product: the sum over `along` of weights times values.
        along: its range, the keys.
        top: the maximum of `x` over a range of its own.
        total: the sum of exponentials over a range of its own.
        x: the exponent before the maximum is subtracted, over `along`.
        shift: what is added to `x`; it follows from the maximum.
        values: the factor that the weights multiply.
        inner: what else is inside the sum: functions of the exponential, innermost last.
        outer: what applies to the sum, innermost last.
        score: the product of two factors inside of `x`; None where `x` is in memory.
    """

    product: UOp
    along: UOp
    top: UOp
    total: UOp
    x: UOp
    shift: UOp
    values: UOp
    inner: tuple[Callable[[UOp], UOp], ...]
    outer: tuple[Callable[[UOp], UOp], ...]
    score: UOp | None


def find_mixture(facts: KernelFacts, loop: UOp | None = None) -> Mixture | None:
    """The mixture of a kernel, if it is one; `loop` is the range that its sum must go over."""
    tops = [n for n in facts.reduces if n.arg.op is Op.MAX]
    totals = [n for n in facts.reduces if n.arg.op is Op.ADD and n.src[0].op is Op.EXP]
    if len(tops) != 1 or len(totals) != 1 or len(tops[0].src) != 2 or len(totals[0].src) != 2:
        return None
    (top,), (total,) = tops, totals
    sums = [n for n in facts.reduces if n.arg.op is Op.ADD and len(n.src) == 2 and _below(n, total) and n is not total]
    sums = [n for n in sums if n.src[0].op is Op.MUL and (loop is None or n.src[1] is loop)]
    if len(sums) != 1 or top.dtype is not total.dtype or sums[0].dtype is not top.dtype:
        return None
    product, along = sums[0], sums[0].src[1]
    if along.arg.kind is not AxisKind.REDUCE or any(r.src[0] is not along.src[0] for r in (top.src[1], total.src[1])):
        return None
    exponent = total.src[0].src[0]
    if exponent.op is not Op.ADD:
        return None
    for x, shift in (exponent.src, exponent.src[::-1]):
        if total.src[1] in facts.ranges[shift] or total.src[1] not in facts.ranges[x] or not _below(shift, top):
            continue
        if not alike(x, top.src[0], {total.src[1]: top.src[1]}):
            continue
        found = _weights(facts, product, total)
        if found is None:
            return None
        values, inner, outer, power = found
        if not alike(power, total.src[0], {along: total.src[1]}):
            return None
        mine = power.src[0].src[exponent.src.index(x)]
        scores = [n for n in facts.reduces if along in facts.ranges[n] and _below(mine, n)]
        if len(scores) > 1 or not facts.ranges[total] <= facts.ranges[product]:
            return None
        score = scores[0] if scores else None
        if score is not None and (score.arg.op is not Op.ADD or score.src[0].op is not Op.MUL or len(score.src) != 2):
            return None
        return Mixture(product, along, top, total, mine, shift, values, inner, outer, score)
    return None


def _below(node: UOp, part: UOp) -> bool:
    return part in node.toposort()


def _weights(
    facts: KernelFacts, product: UOp, total: UOp
) -> tuple[UOp, tuple[Callable[[UOp], UOp], ...], tuple[Callable[[UOp], UOp], ...], UOp] | None:  # fmt: skip
    """The values, what is done to the exponential inside and outside of the sum, and the exponential itself."""
    along = product.src[1]
    first, second = product.src[0].src
    for weight, values in ((first, second), (second, first)):
        if not _below(weight, total) or _below(values, total):
            continue
        inner: list[Callable[[UOp], UOp]] = []
        outer: list[Callable[[UOp], UOp]] = []
        node = weight
        while node.op is not Op.EXP:
            step = _step(facts, node, along, total)
            if step is None:
                return None
            node, function, inside = step
            if function is not None:
                (inner if inside else outer).append(function)
        # What is done to a row's weights does not depend on the columns of the values, and the other way round.
        columns = facts.ranges[values] - facts.ranges[weight]
        return (values, tuple(inner), tuple(outer), node) if columns else None
    return None


def _step(
    facts: KernelFacts, node: UOp, along: UOp, total: UOp
) -> tuple[UOp, Callable[[UOp], UOp] | None, bool] | None:  # fmt: skip
    """One operation further into a weight: what it is of, what it does (None: nothing), and whether inside the sum."""

    def fixed(part: UOp) -> bool:
        return along not in facts.ranges[part]

    op, src = node.op, node.src
    if op is Op.CAST and node.dtype.is_float and src[0].dtype.is_float:
        return src[0], None, False  # sums are in the wide type; the weight is not rounded on the way
    if op is Op.FDIV and fixed(src[1]):
        return src[0], lambda value, by=src[1]: mk(Op.FDIV, value.dtype, (value, _as(by, value))), False
    if op is Op.MUL:
        for part, factor in (src, src[::-1]):
            if any(n.op is Op.EXP and along in facts.ranges[n] for n in part.toposort()):
                return part, lambda value, by=factor: value * _as(by, value), not fixed(factor)
    if op is Op.WHERE:
        condition, yes, no = src
        if is_zero(yes):
            return no, lambda value, c=condition: c.where(UOp.const(value.dtype, 0.0), value), not fixed(condition)
        if is_zero(no):
            return yes, lambda value, c=condition: c.where(value, UOp.const(value.dtype, 0.0)), not fixed(condition)
    return None


def _as(node: UOp, like: UOp) -> UOp:
    return node if node.dtype is like.dtype else node.cast(like.dtype)


def is_zero(node: UOp) -> bool:
    """Whether a node is the constant 0."""
    return node.op is Op.CONST and node.arg == 0


def alike(one: UOp, other: UOp, same: dict[UOp, UOp]) -> bool:
    """Whether two expressions are the same, ranges of the first standing for those of the second as `same` says.

    What REDUCEs inside close is paired on the way.
    """
    pairs = dict(same)
    known: set[tuple[UOp, UOp]] = set()
    stack = [(one, other)]
    while stack:
        a, b = stack.pop()
        if (a, b) in known:
            continue
        known.add((a, b))
        if a.op is Op.RANGE and b.op is Op.RANGE:
            if pairs.get(a, a) is not b:
                return False
            continue
        if a is b and not any(r in pairs for r in a.ranges):
            continue
        if a.op is not b.op or a.dtype is not b.dtype or a.arg != b.arg or len(a.src) != len(b.src):
            return False
        if a.op is Op.REDUCE:
            for r, s in zip(a.src[1:], b.src[1:], strict=True):
                if r.src[0] is not s.src[0] or pairs.setdefault(r, s) is not s:
                    return False
        stack.extend(zip(a.src, b.src, strict=True))
    return True


class Bound(NamedTuple):
    """Where a row sees anything: at keys below `end`, or from `start` on; the other one is None."""

    start: UOp | None
    end: UOp | None


def bounds_of(x: UOp, along: UOp) -> list[Bound]:
    """Bounds outside of which `x` is minus infinity, in terms of the other ranges."""
    found: list[Bound] = []
    stack = [x]
    while stack:
        node = stack.pop()
        if node.op is Op.WHERE:
            condition, yes, no = node.src
            if _is_hidden(no):
                found += conditions_of(condition, along, True)
                stack.append(yes)
            elif _is_hidden(yes):
                found += conditions_of(condition, along, False)
                stack.append(no)
        elif node.op is Op.ADD:
            stack += node.src
        elif node.op is Op.MUL and node.src[1].op is Op.CONST and node.src[1].arg > 0:
            stack.append(node.src[0])
    return found


def seen_blocks(
    bounds: Iterable[Bound],
    size: int,
    amount: int,
    inner: Collection[UOp],
    ranges_of: Callable[[UOp], Collection[UOp]] = lambda atom: atom.ranges,
) -> tuple[UOp, UOp]:
    """The first block that rows see anything of, and how many blocks follow; one at least.

    Args:
        bounds: where a row sees anything.
        size: how many positions there are.
        amount: how many of them a block has.
        inner: the ranges of the rows that share a block.
        ranges_of: which ranges a term of a bound depends on; bounds with other terms of `inner` are left out.
    """
    count = -(-size // amount)
    first, end = UOp.const(_INDEX, 0), UOp.const(_INDEX, count)
    for bound in bounds:
        edge = bound.end if bound.end is not None else bound.start
        assert edge is not None
        terms = affine(edge).terms
        if any(not frozenset(inner).isdisjoint(ranges_of(atom)) for atom in terms if atom not in inner):
            continue
        last = bound.end is not None
        # The row that sees most: the last one of those that see more as they go on, else the first.
        far = {r: UOp.const(_INDEX, (range_size(r) or 1) - 1 if (terms.get(r, 0) > 0) is last else 0) for r in inner}
        edge = edge.substitute(far)
        if last:
            end = end.minimum((edge + (amount - 1)) // amount)
        else:
            first = first.maximum(edge // amount)
    # One block at least: rows that see nothing have a maximum, too, and zeros for sums.
    first = first.minimum(UOp.const(_INDEX, count - 1))
    return first, (end + first * -1).maximum(UOp.const(_INDEX, 1))


class Hidden(NamedTuple):
    """What hides keys: where `condition` is not `holds`; that is at keys outside of all `bounds`."""

    condition: UOp
    holds: bool
    bounds: list[Bound]


class Peeled(NamedTuple):
    """`x` as a positive constant times `inner`, which is minus infinity where one of `masks` says so."""

    factor: float
    masks: list[Hidden]
    inner: UOp


def peeled(x: UOp, along: UOp) -> Peeled:
    """An exponent without its constant factors and without masks that bounds of the range say all about."""
    factor, masks = 1.0, list[Hidden]()
    while True:
        if x.op is Op.MUL and x.src[1].op is Op.CONST and 0 < x.src[1].arg < -MINUS_INFINITY:
            factor *= x.src[1].arg
            x = x.src[0]
            continue
        if x.op is not Op.WHERE or not (_is_hidden(x.src[1]) or _is_hidden(x.src[2])):
            return Peeled(factor, masks, x)
        holds = _is_hidden(x.src[2])
        bounds = _all_conditions(x.src[0], along, holds)
        if bounds is None:
            return Peeled(factor, masks, x)
        masks.append(Hidden(x.src[0], holds, bounds))
        x = x.src[1 if holds else 2]


def is_plain(x: UOp) -> bool:
    """Whether an exponent is a product of two factors, scaled and masked by minus infinity: no number is added to it.

    Numbers that hide, like -1e9, are so large that what follows must not be lost beside them.
    """
    while x.op is not Op.REDUCE:
        if x.op is Op.MUL and x.src[1].op is Op.CONST:
            x = x.src[0]
        elif x.op is Op.WHERE and (_is_hidden(x.src[1]) or _is_hidden(x.src[2])):
            x = x.src[1 if _is_hidden(x.src[2]) else 2]
        else:
            return False
    return True


def _all_conditions(condition: UOp, along: UOp, holds: bool) -> list[Bound] | None:
    """The same as `conditions_of`; None where that is not all that the condition says."""
    if condition.op is (Op.AND if holds else Op.OR):
        parts = [_all_conditions(part, along, holds) for part in condition.src]
        return None if None in parts else [b for part in parts if part is not None for b in part]
    return conditions_of(condition, along, holds) or None


def _is_hidden(node: UOp) -> bool:
    return node.op is Op.CONST and node.arg == MINUS_INFINITY


def conditions_of(condition: UOp, along: UOp, holds: bool) -> list[Bound]:
    """What follows for the range where a condition holds (or does not)."""
    if condition.op is (Op.AND if holds else Op.OR):
        return [b for part in condition.src for b in conditions_of(part, along, holds)]
    if condition.op is not Op.CMPLT:
        return []
    left, right = _as_index(condition.src[0]), _as_index(condition.src[1])
    if left is None or right is None:
        return []
    if not holds:
        left, right = right, left + 1
    form = affine(right + left * -1)
    step = form.terms.pop(along, 0)
    if step not in (1, -1) or any(along in atom.ranges for atom in form.terms):
        return []
    rest = UOp.const(_INDEX, form.constant)
    for atom, factor in form.terms.items():
        rest = rest + atom * factor
    return [Bound(None, rest)] if step < 0 else [Bound(rest * -1 + 1, None)]


def _as_index(node: UOp) -> UOp | None:
    """An integer value made of positions as an index expression."""
    if node.dtype is _INDEX:
        return node
    if node.op is Op.CAST:
        return _as_index(node.src[0]) if node.src[0].dtype.is_int else None
    if node.op is Op.CONST:
        return UOp.const(_INDEX, int(node.arg))
    if node.op in (Op.ADD, Op.MUL):
        parts = [_as_index(s) for s in node.src]
        if parts[0] is not None and parts[1] is not None:
            return mk(node.op, _INDEX, (parts[0], parts[1]))
    return None
