"""Rules that need to know which values an integer can have: division, comparison, guards, ranges, casts of `index`.

Division and modulo round down, so `x // c` with `x = c * q + r` and `0 <= r < c` is `q` also for negative x.
A kernel's stores never have an empty range (the scheduler launches no kernel without elements), so a value that is
known for every iteration may lose the range it depended on.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import gcd
from typing import Final

from gradlet.base.dtype import DType, dtypes
from gradlet.graph.bounds import bounds
from gradlet.graph.node import UOp, mk
from gradlet.graph.pattern import FLOATS, INTEGERS, const, op, var
from gradlet.graph.rewrite import Rule, RuleSet
from gradlet.ops.op import COMPARE, Op, ReduceArg
from gradlet.rules import folds
from gradlet.rules.linear import Sum, common_factors, divisible, interval, put_together, split, take_apart
from gradlet.rules.order import sort_key
from gradlet.rules.scalars import constant_like, like

# Members of an enum are slow to reach through their class.
_ADD: Final = Op.ADD
_AND: Final = Op.AND
_CAST: Final = Op.CAST
_CMPEQ: Final = Op.CMPEQ
_CMPLT: Final = Op.CMPLT
_CMPNE: Final = Op.CMPNE
_CONST: Final = Op.CONST
_IDIV: Final = Op.IDIV
_MAX: Final = Op.MAX
_MIN: Final = Op.MIN
_MOD: Final = Op.MOD
_MUL: Final = Op.MUL
_OR: Final = Op.OR
_REDUCE: Final = Op.REDUCE
_SHL: Final = Op.SHL
_SHR: Final = Op.SHR
_WHERE: Final = Op.WHERE
_XOR: Final = Op.XOR

x, y = var("x"), var("y")
i, j = var("i", INTEGERS), var("j", INTEGERS)
n, m = var("n", "x"), var("m", "x")
c = const("c")


def one_value(root: UOp) -> UOp | None:
    """A node whose bounds meet is a constant."""
    low, high = bounds(root)
    return constant_like(root, low) if low == high else None


# Float results other than casts and constants have no bounds.
BOUNDED_OPS: Final = (
    _ADD, _MUL, _IDIV, _MOD, _MAX, _MIN, _AND, _OR, _XOR, _SHL, _SHR, _WHERE, _CAST,
)  # fmt: skip

VALUES: Final = RuleSet("values that the bounds decide", "bounded", [
    Rule(op(BOUNDED_OPS, dtype="uixb"), one_value, name="bounds meet"),
    Rule(op(COMPARE), one_value, name="comparison decided by bounds"),
    Rule(op(_MAX, x, y), lambda x, y, root: _larger(x, y, root)),
    Rule(op(_MIN, x, y), lambda x, y, root: _smaller(x, y, root)),
    Rule(i % c, i, when=lambda i, c: 0 <= bounds(i)[0] and bounds(i)[1] < c.arg),
])  # fmt: skip


def _larger(x: UOp, y: UOp, root: UOp) -> UOp | None:
    if bounds(x)[0] >= bounds(y)[1]:
        return like(x, root)
    return like(y, root) if bounds(y)[0] >= bounds(x)[1] else None


def _smaller(x: UOp, y: UOp, root: UOp) -> UOp | None:
    if bounds(x)[1] <= bounds(y)[0]:
        return like(x, root)
    return like(y, root) if bounds(y)[1] <= bounds(x)[0] else None


# division
def divide(n: UOp, c: UOp) -> UOp | None:
    """n // c for a positive constant."""
    divisor = int(c.arg)
    value = take_apart(n) if divisor > 1 else None
    if value is None:
        return None
    whole = split(value, divisor)
    if whole is not None:
        return put_together(whole.quotient, n.dtype)
    nested = _divide_single(value, divisor)
    if nested is not None:
        return nested
    for factor in common_factors(value, divisor):
        part = split(value, factor) if factor < divisor else None
        if part is not None:
            return put_together(part.quotient, n.dtype) // (divisor // factor)
    quotient, rest = divisible(value, divisor)
    if quotient.terms or quotient.constant:
        return put_together(quotient, n.dtype) + put_together(rest, n.dtype) // divisor
    return None


def _divide_single(value: Sum, divisor: int) -> UOp | None:
    """(x // d + k) // c as (x + k * d) // (d * c), and x % d // c as x // c % (d / c)."""
    if len(value.terms) != 1:
        return None
    ((term, coefficient),) = value.terms.items()
    if coefficient != 1 or len(term.src) != 2 or term.src[1].op is not _CONST or term.src[1].arg <= 0:
        return None
    inner, d = term.src[0], int(term.src[1].arg)
    if term.op is _IDIV:
        return (inner + value.constant * d) // (d * divisor) if value.constant else inner // (d * divisor)
    if term.op is _MOD and not value.constant and d % divisor == 0:
        return (inner // divisor) % (d // divisor)
    return None


def modulo(n: UOp, c: UOp) -> UOp | None:
    """n % c for a positive constant."""
    divisor = int(c.arg)
    value = take_apart(n) if divisor > 1 else None
    if value is None:
        return None
    whole = split(value, divisor)
    if whole is not None:
        return put_together(whole.rest, n.dtype)
    reduced = _reduce_terms(value, divisor)
    if reduced is None:
        return None
    if reduced != value:
        return put_together(reduced, n.dtype) % divisor
    for factor in common_factors(value, divisor):
        part = split(value, factor) if factor < divisor else None
        if part is not None:
            outer = (put_together(part.quotient, n.dtype) % (divisor // factor)) * factor
            return outer + put_together(part.rest, n.dtype)
    return None


def _reduce_terms(value: Sum, divisor: int) -> Sum | None:
    """The same sum modulo the divisor: multiples dropped, coefficients below it, inner modulos taken away."""
    terms: dict[UOp, int] = {}
    constant = value.constant
    for term, coefficient in value.terms.items():
        part = Sum({term: 1}, 0)
        if term.op is _MOD and term.src[1].op is _CONST and coefficient * int(term.src[1].arg) % divisor == 0:
            inner = take_apart(term.src[0]) if term.src[1].arg else None
            part = part if inner is None else inner
        for node, factor in part.terms.items():
            terms[node] = terms.get(node, 0) + coefficient * factor
        constant += coefficient * part.constant
    if len(terms) > 2 * len(value.terms) + 8:
        return None
    small = {t: k if -divisor < k < divisor else k % divisor for t, k in terms.items()}
    return Sum({t: k for t, k in small.items() if k}, constant % divisor)


DIVISION: Final = RuleSet("division and modulo of index", "bounded", [
    Rule(op(_IDIV, n, c), divide, name="divide a sum"),
    Rule(op(_MOD, n, c), modulo, name="modulo of a sum"),
])  # fmt: skip


# comparison
def less(n: UOp, m: UOp, root: UOp) -> UOp | None:
    """n < m with everything common removed: terms with positive coefficients left, the others right."""
    value = _difference(n, m)
    if value is None:
        return None
    while True:
        low, high = interval(value)
        if high < 0 or low >= 0:
            return constant_like(root, high < 0)
        smaller = _less_step(value)
        if smaller is None:
            break
        value = smaller
    left, right = _sides(value, n.dtype)
    return left.lt(right)


def _difference(n: UOp, m: UOp) -> Sum | None:
    first, second = take_apart(n), take_apart(m)
    if first is None or second is None:
        return None
    terms = dict(first.terms)
    for term, coefficient in second.terms.items():
        total = terms.get(term, 0) - coefficient
        if total:
            terms[term] = total
        else:
            terms.pop(term, None)
    return Sum(terms, first.constant - second.constant)


def _less_step(value: Sum) -> Sum | None:
    """A simpler sum that is negative for the same values, or None."""
    common = gcd(*value.terms.values())
    if common > 1:
        # common * s + k < 0 exactly when s + floor(k / common) < 0.
        return Sum({t: k // common for t, k in value.terms.items()}, value.constant // common)
    for factor in sorted({abs(k) for k in value.terms.values()} - {1}, reverse=True):
        part = split(value, factor)
        if part is not None and part.quotient.terms:
            return part.quotient
    if len(value.terms) == 1:
        ((term, coefficient),) = value.terms.items()
        if term.op is _IDIV and term.src[1].op is _CONST and term.src[1].arg > 0:
            return _less_quotient(term.src[0], int(term.src[1].arg), coefficient, value.constant)
    return None


def _less_quotient(x: UOp, d: int, sign: int, k: int) -> Sum | None:
    """x // d + k < 0 as x + k * d < 0, and k - x // d < 0 as (k + 1) * d - 1 - x < 0."""
    inner = take_apart(x)
    if inner is None:
        return None
    if sign == 1:
        return inner._replace(constant=inner.constant + k * d)
    return Sum({t: -c for t, c in inner.terms.items()}, (k + 1) * d - 1 - inner.constant)


def _sides(value: Sum, dtype: DType) -> tuple[UOp, UOp]:
    """Two sides whose difference is the sum; the constant stands alone if it can, else on the right."""
    left = {t: k for t, k in value.terms.items() if k > 0}
    right = {t: -k for t, k in value.terms.items() if k < 0}
    if left:
        return put_together(Sum(left, 0), dtype), put_together(Sum(right, -value.constant), dtype)
    return put_together(Sum({}, value.constant), dtype), put_together(Sum(right, 0), dtype)


def equal(n: UOp, m: UOp, root: UOp) -> UOp | None:
    """n == m (or !=) with everything common removed; the first term has a positive coefficient."""
    value = _difference(n, m)
    if value is None:
        return None
    differs = root.op is _CMPNE
    common = gcd(*value.terms.values())
    low, high = interval(value)
    if low > 0 or high < 0 or (common and value.constant % common):
        return constant_like(root, differs)
    if not value.terms:
        return constant_like(root, (value.constant != 0) == differs)
    if value.terms[min(value.terms, key=sort_key)] < 0:
        common = -common
    value = Sum({t: k // common for t, k in value.terms.items()}, value.constant // common)
    left, right = _sides(value, n.dtype)
    return left.ne(right) if differs else left.eq(right)


COMPARISON: Final = RuleSet("comparison of index", "bounded", [
    Rule(op(_CMPLT, n, m), less, name="compare sums"),
    Rule(op((_CMPEQ, _CMPNE), n, m), equal, name="equate sums"),
])  # fmt: skip


# casts to and from index
def _fits(n: UOp, dtype: DType) -> bool:
    low, high = bounds(n)
    return bool(dtype.min <= low and high <= dtype.max)


def _index_again(n: UOp, y: UOp) -> UOp | None:
    return n if _fits(n, y.dtype) else None


def _cannot_overflow(x: UOp) -> bool:
    return bounds(x) != (x.dtype.min, x.dtype.max)


def _cast_operands(x: UOp, root: UOp) -> UOp | None:
    """Index arithmetic in place of a cast of integer arithmetic, where that cannot overflow."""
    if x.op in (_ADD, _MUL, _IDIV) and not _cannot_overflow(x):
        return None
    return mk(x.op, root.dtype, tuple(s.cast(root.dtype.scalar) for s in x.src))


def _cast_branches(x: UOp, root: UOp) -> UOp:
    condition, if_true, if_false = x.src
    index = root.dtype.scalar
    return mk(_WHERE, root.dtype, (condition, if_true.cast(index), if_false.cast(index)))


EXACT_ON_INTEGERS: Final = (Op.ADD, Op.MUL, Op.IDIV, Op.MOD, Op.MAX, Op.MIN)

# All integers but uint64, whose largest values are no index.
INSIDE_INDEX: Final = frozenset(d for d in dtypes.all() if d.is_int and d is not dtypes.uint64)

CASTS: Final = RuleSet("index arithmetic without detours", "bounded", [
    Rule(op(_CAST, op(_CAST, n, name="y", dtype="ui"), dtype="x"), _index_again),
    Rule(op(_CAST, op(EXACT_ON_INTEGERS, name="x", dtype=INSIDE_INDEX), dtype="x"), _cast_operands),
    Rule(op(_CAST, op(_WHERE, name="x", dtype=INSIDE_INDEX), dtype="x"), _cast_branches),
])  # fmt: skip


# ranges
_RANGE: Final = 1 << Op.RANGE
MOST_STEPS: Final = 64
_CLOSING: Final = frozenset({Op.REDUCE, Op.AFTER})


def _without_constant_ranges(root: UOp) -> UOp | None:
    """A REDUCE whose range had one iteration, and is a constant now, does not close it."""
    ranges = tuple(r for r in root.src[1:] if r.op is not _CONST)
    if len(ranges) == len(root.src) - 1:
        return None
    return mk(_REDUCE, root.dtype, (root.src[0], *ranges), root.arg) if ranges else root.src[0]


def _apart_from(value: UOp, loops: Sequence[UOp]) -> list[UOp]:
    """The ranges that a value does not depend on. Mostly some path leads to all, without asking all nodes there."""
    open_ranges = value._open  # known where a pass has looked at the kernel
    if open_ranges is None:
        missing = set(loops)
        stack = [value]
        for _ in range(MOST_STEPS):
            if not stack:
                break
            node = stack.pop()
            if node in missing:
                missing.discard(node)
                if not missing:
                    return []
            if node.mask & _RANGE and (node.op not in _CLOSING or missing.isdisjoint(node.src[1:])):
                stack.extend(node.src)
        open_ranges = frozenset(value.ranges)
    return [r for r in loops if r not in open_ranges]


def _without_unused_ranges(root: UOp) -> UOp | None:
    """MAX and MIN of equal values are that value; a sum of equal integers is a product."""
    value, closed = root.src[0], root.src[1:]
    unused = [r for r in _apart_from(value, closed) if bounds(r.src[0])[0] >= 1]
    if not unused or root.arg.op not in (_MAX, _MIN, _ADD):
        return None
    if root.arg.op is _ADD:
        for r in unused:
            value = value * r.src[0].cast(value.dtype.scalar)
    kept = tuple(r for r in closed if r not in unused)
    return mk(_REDUCE, root.dtype, (value, *kept), root.arg) if kept else value


RANGES: Final = folds.RANGES + RuleSet("reduces over ranges that do nothing", "bounded", [
    Rule(op(_REDUCE, x, more=True), _without_constant_ranges),
    Rule(op(_REDUCE, i, more=True), _without_unused_ranges, name="sum of equal integers"),
    Rule(op(_REDUCE, var("x", FLOATS), more=True, arg=ReduceArg(_MAX)), _without_unused_ranges),
    Rule(op(_REDUCE, var("x", FLOATS), more=True, arg=ReduceArg(_MIN)), _without_unused_ranges),
    Rule(op(_REDUCE, var("x", FLOATS), more=True, arg=ReduceArg(_ADD)), _without_unused_ranges, exact=False),
])  # fmt: skip

RULES: Final = VALUES + DIVISION + COMPARISON + CASTS + RANGES
