"""Our rules for workload (a) of `graph_core.py`: index arithmetic by normal forms, bounds and divisibility."""

from __future__ import annotations

from math import gcd

from gradlet.graph.bounds import bounds, const_factor
from gradlet.graph.node import UOp
from gradlet.graph.pattern import const, op, var
from gradlet.graph.rewrite import Rule, RuleSet
from gradlet.ops.op import Op

x, y = var("x"), var("y")
c, d, e = const("c"), const("d"), const("e")
SUM = op(Op.ADD, name="x")


def multiple(c: UOp, d: UOp) -> bool:
    """c is a multiple of d."""
    return d.arg > 0 and c.arg % d.arg == 0


def in_digit(c: UOp, d: UOp, y: UOp) -> bool:
    """c divides d, and 0 <= y < c: y is the last digit of x * c + y in a number system that has c."""
    if not 0 < c.arg <= d.arg or d.arg % c.arg:
        return False
    low, high = bounds(y)
    return bool(0 <= low and high < c.arg)


def divides(c: UOp, d: UOp) -> bool:
    """c divides d."""
    return 0 < c.arg and d.arg % c.arg == 0


def digits(c: UOp, d: UOp, e: UOp) -> bool:
    """d is c times e: quotient and remainder by c meet again."""
    return bool(d.arg == c.arg * e.arg)


def sum_multiple(x: UOp, d: UOp) -> bool:
    """Every term of the sum is a multiple of d."""
    return d.arg > 1 and const_factor(x) % d.arg == 0


def by_bounds(root: UOp) -> UOp | None:
    """A node that can have one value only."""
    low, high = bounds(root)
    return UOp.const(root.dtype, low) if low == high else None


def modulo_by_bounds(x: UOp, c: UOp) -> UOp | None:
    """x % c where 0 <= x < c."""
    low, high = bounds(x)
    return x if 0 <= low and high < c.arg else None


def common(x: UOp, y: UOp, d: UOp) -> int:
    """A g > 1 that divides x and d, where 0 <= y < g; else 0."""
    factor = gcd(const_factor(x), d.arg)
    if factor <= 1:
        return 0
    low, high = bounds(y)
    return factor if low >= 0 and high < factor else 0


def divide_sum(x: UOp, y: UOp, d: UOp) -> UOp | None:
    """(x + y) // d where y is less than what x and d have in common."""
    factor = common(x, y, d)
    return (x // factor) // (d.arg // factor) if factor else None


def modulo_factor(root: UOp, x: UOp, y: UOp, d: UOp) -> UOp | None:
    """(x + y) % d where both are multiples of some g that divides d."""
    factor = gcd(const_factor(root.src[0]), d.arg)
    return ((root.src[0] // factor) % (d.arg // factor)) * factor if factor > 1 else None


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
        Rule((x + y) * c, x * c + y * c),
        Rule(x * c + x * d, x * (c + d)),
        Rule((x // c) * c + x % c, x),
        Rule((x // c) * d + (x % c) * e, x * e, when=digits),
        Rule((y + (x // c) * d) + (x % c) * e, y + x * e, when=digits),
        Rule((y + (x // c) * c) + x % c, y + x),
        Rule((y + (x % c) * e) + (x // c) * d, y + x * e, when=digits),
        Rule((y + x % c) + (x // c) * c, y + x),
        Rule((x // c) // d, x // (c * d)),
        Rule((x % c) % d, x % d, when=multiple),
        Rule((x * c) // d, x * (c // d), when=multiple),
        Rule((x * c) // d, x // (d // c), when=divides),
        Rule((x * c) % d, 0, when=multiple),
        Rule((x * c) % d, (x % (d // c)) * c, when=divides),
        Rule((x * c + y) // d, x * (c // d) + y // d, when=multiple),
        Rule((x * c + y) // d, x // (d // c), when=in_digit),
        Rule((x * c + y) % d, y % d, when=multiple),
        Rule((x * c + y) % d, (x % (d // c)) * c + y, when=in_digit),
        Rule((SUM + y) // d, x // d + y // d, when=sum_multiple),
        Rule((SUM + y) % d, y % d, when=sum_multiple),
        Rule((SUM + y) // d, divide_sum),
        Rule((SUM + y) % d, x % d + y, when=common),
        Rule((SUM + y) % d, modulo_factor),
        Rule(x // c, by_bounds),
        Rule(x % c, modulo_by_bounds),
        Rule((x + c) + y, (x + y) + c),
        Rule(x < c, by_bounds),
        Rule((x + c) < d, x < (d + c * -1)),
        Rule((x * -1) < c, lambda x, c: (x < 1 - c.arg).logical_not()),
        Rule(op(Op.WHERE, const("c"), x, y), lambda c, x, y: x if c.arg else y),
        Rule(op(Op.AND, x, const("c")), lambda x, c: x if c.arg else c),
    ],
)
