"""Our rules for workload (a) of `graph_core.py`: index arithmetic by normal forms, bounds and divisibility."""

from __future__ import annotations

from gradlet.graph.bounds import bounds, const_factor
from gradlet.graph.node import UOp
from gradlet.graph.pattern import const, op, var
from gradlet.graph.rewrite import Rule, RuleSet
from gradlet.ops.op import Op

x, y = var("x"), var("y")
c, d, e = const("c"), const("d"), const("e")


def multiple(c: UOp, d: UOp) -> bool:
    """c is a multiple of d."""
    return d.arg > 0 and c.arg % d.arg == 0


def divides(c: UOp, d: UOp) -> bool:
    """c divides d."""
    return 0 < c.arg and d.arg % c.arg == 0


def below(y: UOp, c: UOp) -> bool:
    """0 <= y < c."""
    low, high = bounds(y)
    return bool(0 <= low and high < c.arg)


def by_bounds(root: UOp) -> UOp | None:
    """A node that can have one value only."""
    low, high = bounds(root)
    return UOp.const(root.dtype, low) if low == high else None


def terms_of(x: UOp) -> list[UOp]:
    """The operands of a nest of additions."""
    out, stack = [], [x]
    while stack:
        top = stack.pop()
        if top.op is Op.ADD:
            stack.extend(reversed(top.src))
        else:
            out.append(top)
    return out


def total(terms: list[UOp], like: UOp) -> UOp:
    """The sum of terms."""
    if not terms:
        return UOp.const(like.dtype, 0)
    result = terms[0]
    for term in terms[1:]:
        result = result + term
    return result


def split_sum(x: UOp, c: UOp) -> tuple[list[UOp], list[UOp]] | None:
    """The terms that are multiples of c, and the others; None when there is nothing to split."""
    if c.arg <= 1:
        return None
    exact, rest = [], []
    for term in terms_of(x):
        (exact if const_factor(term) % c.arg == 0 else rest).append(term)
    return (exact, rest) if exact else None


def divide_sum(x: UOp, c: UOp) -> UOp | None:
    """(multiples of c + rest) // c."""
    parts = split_sum(x, c)
    if parts is None:
        return None
    quotients = [quotient for term in parts[0] if (quotient := divided(term, c.arg)) is not None]
    if len(quotients) < len(parts[0]):
        return None
    if parts[1]:
        quotients.append(total(parts[1], x) // c)
    return total(quotients, x)


def divided(term: UOp, by: int) -> UOp | None:
    """A term over a constant that divides it, where that shows."""
    if term.op is Op.CONST:
        return UOp.const(term.dtype, term.arg // by)
    if term.op is Op.MUL and term.src[1].op is Op.CONST and term.src[1].arg % by == 0:
        return term.src[0] * (term.src[1].arg // by)
    return None


def modulo_sum(x: UOp, c: UOp) -> UOp | None:
    """(multiples of c + rest) % c."""
    parts = split_sum(x, c)
    return None if parts is None else total(parts[1], x) % c


def common_factor(x: UOp, c: UOp) -> UOp | None:
    """(k * a + r) // (k * b) with 0 <= r < k is a // b."""
    for term in terms_of(x):
        if term.op is not Op.MUL or term.src[1].op is not Op.CONST:
            continue
        factor = term.src[1].arg
        if not 1 < factor < c.arg or c.arg % factor:
            continue
        parts = split_sum(x, term.src[1])
        if parts is None or not below(total(parts[1], x), term.src[1]):
            continue
        quotients = [divided(t, factor) for t in parts[0]]
        if all(q is not None for q in quotients):
            return total([q for q in quotients if q is not None], x) // (c.arg // factor)
    return None


def common_factor_modulo(x: UOp, c: UOp) -> UOp | None:
    """(k * a + r) % (k * b) with 0 <= r < k is (a % b) * k + r."""
    for term in terms_of(x):
        if term.op is not Op.MUL or term.src[1].op is not Op.CONST:
            continue
        factor = term.src[1].arg
        if not 1 < factor < c.arg or c.arg % factor:
            continue
        parts = split_sum(x, term.src[1])
        if parts is None or not below(total(parts[1], x), term.src[1]):
            continue
        quotients = [divided(t, factor) for t in parts[0]]
        if all(q is not None for q in quotients):
            high = (total([q for q in quotients if q is not None], x) % (c.arg // factor)) * factor
            return total([high, *parts[1]], x)
    return None


INDEX = RuleSet(
    "index math",
    "reorders",
    [
        Rule(x + 0, x),
        Rule(x * 1, x),
        Rule(x * 0, 0),
        Rule(x // 1, x),
        Rule(x % 1, 0),
        Rule(c + d, c + d),
        Rule(c * d, c * d),
        Rule(c // d, c // d),
        Rule(c % d, c % d),
        Rule(c < d, c < d),
        Rule((x + c) + d, x + (c + d)),
        Rule((x * c) * d, x * (c * d)),
        Rule((x + c) * d, x * d + c * d),
        Rule((x + y) * c, x * c + y * c),
        Rule(x + x, x * 2),
        Rule(x * c + x * d, x * (c + d)),
        Rule((x * c) + x, x * (c + 1)),
        Rule(((x // c) * c) + (x % c), x),
        Rule(((x // c) * d) + ((x % c) * e), x * e, when=lambda c, d, e: d.arg == c.arg * e.arg),
        Rule((y + (x // c) * d) + ((x % c) * e), y + x * e, when=lambda c, d, e: d.arg == c.arg * e.arg),
        Rule((y + (x // c) * c) + (x % c), y + x),
        Rule((((x // c) % d) * c) + (x % c), x % (c * d)),
        Rule((x // c) // d, x // (c * d)),
        Rule((x % c) % d, x % d, when=multiple),
        Rule((x // c) % d, (x % (c * d)) // c, when=lambda x, c, d: below(x, UOp.const(c.dtype, c.arg * d.arg))),
        Rule((x % c) // d, by_bounds),
        Rule(x // c, by_bounds),
        Rule(x % c, lambda x, c: x if below(x, c) else None),
        Rule(x // c, divide_sum),
        Rule(x % c, modulo_sum),
        Rule(x // c, common_factor),
        Rule(x % c, common_factor_modulo),
        Rule((x + c) + y, (x + y) + c),
        Rule(x < c, by_bounds),
        Rule((x + c) < d, x < (d + c * -1)),
        Rule((x * -1) < c, lambda x, c: (x < 1 - c.arg).eq(UOp.const((x < x).dtype, False)) if c.arg != 1 else None),
        Rule(op(Op.WHERE, const("c"), x, y), lambda c, x, y: x if c.arg else y),
        Rule(op(Op.AND, x, const("c")), lambda x, c: x if c.arg else c),
    ],
)
