"""Integer sums as coefficients of terms: taken apart, put together in normal form, divided with remainder.

All of it is for expressions that cannot overflow, that is, of dtype `index`.
"""

from __future__ import annotations

from math import gcd
from typing import Final, NamedTuple

from gradlet.base.dtype import DType
from gradlet.graph.bounds import bounds
from gradlet.graph.node import UOp
from gradlet.ops.op import Op
from gradlet.rules.order import sort_key

# Longer sums are left as they are: they do not come from index arithmetic.
MOST_TERMS: Final = 32
# Members of an enum are slow to reach through their class.
_ADD: Final = Op.ADD
_CONST: Final = Op.CONST
_MUL: Final = Op.MUL
_MOD: Final = Op.MOD
_IDIV: Final = Op.IDIV

Terms = dict[UOp, int]


class Sum(NamedTuple):
    """constant + sum of coefficient * node; no coefficient is 0 and no node is a sum or a multiple itself."""

    terms: Terms
    constant: int


class Split(NamedTuple):
    """A sum as divisor * quotient + rest, with 0 <= rest < divisor."""

    quotient: Sum
    rest: Sum


def take_apart(node: UOp) -> Sum | None:
    """The node as a sum; None when it has too many terms."""
    terms: Terms = {}
    constant = 0
    stack = [(node, 1)]
    steps = 0
    while stack:
        steps += 1
        if steps > 8 * MOST_TERMS:
            return None
        top, scale = stack.pop()
        if top.op is _ADD:
            stack.append((top.src[1], scale))
            stack.append((top.src[0], scale))
        elif top.op is _CONST:
            constant += scale * int(top.arg)
        elif top.op is _MUL and top.src[1].op is _CONST:
            stack.append((top.src[0], scale * int(top.src[1].arg)))
        else:
            total = terms.get(top, 0) + scale
            if total:
                terms[top] = total
            else:
                terms.pop(top, None)
            if len(terms) > MOST_TERMS:
                return None
    return Sum(terms, constant)


def put_together(value: Sum, dtype: DType) -> UOp:
    """The sum in normal form: terms in order, multiples as `node * constant`, the constant last."""
    result: UOp | None = None
    for node in sorted(value.terms, key=sort_key):
        term = node if value.terms[node] == 1 else node * value.terms[node]
        result = term if result is None else result + term
    if result is None:
        return UOp.const(dtype, value.constant)
    return result + value.constant if value.constant else result


def recombine(value: Sum) -> Sum:
    """x // c * c + x % c is x, and x // c % d * c + x % c is x % (c * d), also as multiples."""
    terms = value.terms
    changed = True
    while changed:
        changed = False
        for remainder in [n for n in terms if n.op is _MOD and n.src[1].op is _CONST and n.src[1].arg > 0]:
            found = _partner(remainder, terms)
            if found is None:
                continue
            quotient, whole = found
            scale = terms[remainder]
            terms = {n: k for n, k in terms.items() if n is not remainder and n is not quotient}
            value = _add(Sum(terms, value.constant), whole, scale)
            terms = value.terms
            changed = True
            break
    return value


def _partner(remainder: UOp, terms: Terms) -> tuple[UOp, UOp] | None:
    """The term that makes x % c whole, and what both are together."""
    x, divisor = remainder.src
    c, scale = int(divisor.arg), terms[remainder]
    quotients = {_floor_divide(x, c)}
    if x.op is _IDIV and x.src[1].op is _CONST and x.src[1].arg > 0:
        quotients.add(_floor_divide(x.src[0], c * int(x.src[1].arg)))
    for node, coefficient in terms.items():
        if coefficient != scale * c:
            continue
        if node in quotients:
            return node, x
        if node.op is _MOD and node.src[0] in quotients and node.src[1].op is _CONST and node.src[1].arg > 0:
            return node, x % (c * int(node.src[1].arg))
    return None


def _floor_divide(x: UOp, c: int) -> UOp:
    return x // c


def _add(value: Sum, node: UOp, scale: int) -> Sum:
    """value + scale * node."""
    part = take_apart(node)
    if part is None:
        part = Sum({node: 1}, 0)
    terms = dict(value.terms)
    for term, coefficient in part.terms.items():
        total = terms.get(term, 0) + scale * coefficient
        if total:
            terms[term] = total
        else:
            terms.pop(term, None)
    return Sum(terms, value.constant + scale * part.constant)


def interval(value: Sum) -> tuple[int, int]:
    """Smallest and largest value the sum can have."""
    low = high = value.constant
    for node, coefficient in value.terms.items():
        first, second = (coefficient * b for b in bounds(node))
        low, high = low + min(first, second), high + max(first, second)
    return low, high


def divisible(value: Sum, divisor: int) -> tuple[Sum, Sum]:
    """The sum as divisor * first + second, where second holds the terms that the divisor does not divide."""
    quotient = {n: k // divisor for n, k in value.terms.items() if k % divisor == 0}
    rest = {n: k for n, k in value.terms.items() if k % divisor}
    return Sum(quotient, value.constant // divisor), Sum(rest, value.constant % divisor)


def split(value: Sum, divisor: int) -> Split | None:
    """The sum as divisor * quotient + rest if the bounds prove 0 <= rest < divisor."""
    quotient, rest = divisible(value, divisor)
    low, high = interval(rest)
    # The rest may lie one or more whole divisors away: move them to the quotient.
    shift = low // divisor
    if high // divisor != shift:
        return None
    quotient = quotient._replace(constant=quotient.constant + shift)
    return Split(quotient, rest._replace(constant=rest.constant - shift * divisor))


def common_factors(value: Sum, limit: int) -> list[int]:
    """Factors that some terms share with `limit`, largest first, without 1."""
    found = {gcd(k, limit) for k in value.terms.values()}
    return sorted((g for g in found if g > 1), reverse=True)
