"""Rules that keep the same operations in a normal form, strictly smaller in one order (see tests/rules/measure.py).

Sums of `index` have constants and like terms combined and terms ordered; products over sums are multiplied out.
Integers that wrap only have their constants moved to the right. Floats change only where the result is bit-exact.
"""

from __future__ import annotations

import math
from typing import Final

from gradlet.graph.node import UOp, mk
from gradlet.graph.pattern import BOOLS, FLOATS, INTEGERS, const, op, var
from gradlet.graph.rewrite import Rule, RuleSet
from gradlet.ops.op import (
    BINARY,
    TERNARY,
    AxesArg,
    Op,
    PadArg,
    ShrinkArg,
    StrideArg,
)
from gradlet.rules.linear import MOST_TERMS, put_together, recombine, take_apart
from gradlet.rules.order import compare, sort_key
from gradlet.rules.removes import holds
from gradlet.rules.scalars import like, scalar_of, with_shape

x, y, z = var("x"), var("y"), var("z")
i, j = var("i", INTEGERS), var("j", INTEGERS)
n, m = var("n", "x"), var("m", "x")
w = var("w", "ui")  # wraps
f = var("f", FLOATS)
b, a = var("b", BOOLS), var("a", BOOLS)
c, d = const("c"), const("d")


# sums of index
def normal_sum(root: UOp) -> UOp | None:
    """The sum in normal form."""
    first, last = root.src
    if last.op is not _CONST:
        if _continues(first, last):
            return None
    elif first.op is not _CONST and (first.op is not _ADD or first.src[1].op is not _CONST):
        return None if last.arg else first
    value = take_apart(root)
    return None if value is None else put_together(recombine(value), root.dtype)


def _continues(total: UOp, term: UOp) -> bool:
    """`total` is in normal form and `term` simply stands after its last term."""
    before = total.src[1] if total.op is _ADD else total
    before, after = _base(before), _base(term)
    if before.op in _SUM_PARTS or after.op in _SUM_PARTS:
        return False
    # A quotient or remainder may have its counterpart among the terms.
    if after.op in _PARTS and total.mask & (_MOD if after.op is Op.IDIV else _MOD | _IDIV):
        return False
    return compare(before, after) < 0


def _base(term: UOp) -> UOp:
    return term.src[0] if term.op is _MUL and term.src[1].op is _CONST else term


# Members of an enum are slow to reach through their class.
_ADD: Final = Op.ADD
_MUL: Final = Op.MUL
_CONST: Final = Op.CONST
_PARTS: Final = frozenset({Op.IDIV, Op.MOD})
_MOD: Final = 1 << Op.MOD
_IDIV: Final = 1 << Op.IDIV
_SUM_PARTS: Final = frozenset({Op.ADD, Op.CONST})


def multiplied_out(root: UOp) -> UOp | None:
    """(x + y) * c as x * c + y * c."""
    value = take_apart(root)
    return None if value is None else put_together(value, root.dtype)


SUMS: Final = RuleSet("sums in normal form", "reorders", [
    Rule((n + c) + d, n + (c + d)),
    Rule(op(Op.ADD, n, m), normal_sum, name="normal form of a sum"),
    Rule((n * c) * d, n * (c * d)),
    Rule(op(Op.MUL, op(Op.ADD, dtype="x"), const()), multiplied_out, name="multiply out"),
])  # fmt: skip

# What wraps: constants move to the right and meet, like terms next to each other meet.
INTEGERS_THAT_WRAP: Final = RuleSet("constants of integer arithmetic", "reorders", [
    Rule((w + c) + d, w + (c + d)),
    Rule((w * c) * d, w * (c * d)),
    Rule((w + c) + j, (w + j) + c, when=lambda j: j.op is not Op.CONST),
    Rule((w * c) + (w * d), w * (c + d)),
    Rule((w * c) + w, w * (c + 1)),
    Rule(w + w, w * 2),
])  # fmt: skip

LATTICE: Final = RuleSet("constants of and, or, xor, max, min", "reorders", [
    Rule((x & c) & d, x & (c & d)),
    Rule((x | c) | d, x | (c | d)),
    Rule((x ^ c) ^ d, x ^ (c ^ d)),
    Rule(op(Op.MAX, op(Op.MAX, x, c), d), op(Op.MAX, x, op(Op.MAX, c, d))),
    Rule(op(Op.MIN, op(Op.MIN, x, c), d), op(Op.MIN, x, op(Op.MIN, c, d))),
])  # fmt: skip


# conditions
def _above_lowest(c: UOp) -> bool:
    return bool(c.arg > c.dtype.min)


def _below_highest(c: UOp) -> bool:
    return bool(c.arg < c.dtype.max)


def conjunction(root: UOp) -> UOp | None:
    """Conditions joined by AND: each once, in order, bounds of one value combined."""
    conditions = _conditions(root)
    if conditions is None:
        return None
    above: dict[UOp, int] = {}
    below: dict[UOp, int] = {}
    others: dict[UOp, None] = {}
    for condition in conditions:
        left, right = condition.src if condition.op is Op.CMPLT else (condition, condition)
        if condition.op is Op.CMPLT and right.op is Op.CONST and left.dtype.is_int:
            below[left] = min(below.get(left, right.arg), right.arg)
        elif condition.op is Op.CMPLT and left.op is Op.CONST and right.dtype.is_int:
            above[right] = max(above.get(right, left.arg), left.arg)
        else:
            others[condition] = None
    if any(value in above and above[value] + 1 >= limit for value, limit in below.items()):
        return like(UOp.const(root.dtype, False), root)
    parts = [UOp.const(v.dtype, limit).lt(v) for v, limit in above.items()]
    parts += [v.lt(limit) for v, limit in below.items()]
    parts = sorted({*parts, *others}, key=sort_key)
    result = parts[0]
    for part in parts[1:]:
        result = result & part
    return result


def _conditions(root: UOp) -> list[UOp] | None:
    found: list[UOp] = []
    stack = [root]
    while stack:
        top = stack.pop()
        if top.op is Op.AND:
            stack.extend(reversed(top.src))
        else:
            found.append(top)
        if len(found) > MOST_TERMS or len(stack) > MOST_TERMS:
            return None
    return found


LOGIC: Final = RuleSet("conditions in normal form", "reorders", [
    Rule(op(Op.AND, b, a), conjunction, when=lambda a: a.op is not Op.CONST, name="normal form of a conjunction"),
    Rule(op(Op.XOR, b, 1), op(Op.CMPEQ, b, 0)),
    Rule(op(Op.CMPNE, b, 1), op(Op.CMPEQ, b, 0)),
    Rule(op(Op.CMPEQ, op(Op.CMPEQ, x, y), 0), op(Op.CMPNE, x, y)),
    Rule(op(Op.CMPEQ, op(Op.CMPNE, x, y), 0), op(Op.CMPEQ, x, y)),
    Rule(op(Op.CMPEQ, op(Op.CMPLT, i, c), 0), op(Op.CMPLT, c + -1, i), when=_above_lowest),
    Rule(op(Op.CMPEQ, op(Op.CMPLT, c, i), 0), op(Op.CMPLT, i, c + 1), when=_below_highest),
    Rule(op(Op.OR, op(Op.CMPLT, c, i), op(Op.CMPEQ, i, c)), op(Op.CMPLT, c + -1, i), when=_above_lowest),
    Rule(op(Op.OR, op(Op.CMPLT, i, c), op(Op.CMPEQ, i, c)), op(Op.CMPLT, i, c + 1), when=_below_highest),
    Rule(op(Op.OR, op(Op.CMPLT, i, j), op(Op.CMPEQ, i, j)), op(Op.CMPEQ, op(Op.CMPLT, j, i), 0)),
    Rule(op(Op.OR, op(Op.CMPLT, i, j), op(Op.CMPEQ, j, i)), op(Op.CMPEQ, op(Op.CMPLT, j, i), 0)),
    Rule(op(Op.WHERE, op(Op.CMPEQ, b, 0), x, y), op(Op.WHERE, b, y, x)),
    Rule(op(Op.WHERE, b, const(value=False, dtype=BOOLS), const(value=True, dtype=BOOLS)), op(Op.CMPEQ, b, 0)),
    Rule(op(Op.WHERE, b, a, const(value=False)), b & a),
    Rule(op(Op.WHERE, b, const(value=True), a), b | a),
    Rule(op(Op.WHERE, b, op(Op.WHERE, b, x, y), z), op(Op.WHERE, b, x, z)),
    Rule(op(Op.WHERE, b, x, op(Op.WHERE, b, y, z)), op(Op.WHERE, b, x, z)),
    Rule(op(Op.WHERE, b, op(Op.WHERE, a, x, y), y), op(Op.WHERE, b & a, x, y)),
])  # fmt: skip


# conversions
def shorter_cast(x: UOp, y: UOp, root: UOp) -> UOp | None:
    """CAST(CAST(x)) as one CAST where the one in the middle loses nothing that the outer one keeps."""
    first, middle, last = x.dtype, y.dtype, root.dtype
    whole = middle.kind in "uix"
    if whole and last.kind in "ui" and first.kind in "uix" and (middle.kind == "x" or last.bits <= middle.bits):
        return x.cast(last.scalar)
    if not holds(middle, first):
        return None
    # From an integer, a float type saturates where an integer type wraps.
    if first.kind in "uix" and middle.kind == "f" and last.kind in "uix" and not holds(last, first):
        return None
    return x.cast(last.scalar)


def _power_of_two(f: UOp, c: UOp) -> UOp | None:
    """x / c as x * (1 / c), exact when c is a power of two and neither is subnormal."""
    number = c.arg
    if not number or not math.isfinite(number) or abs(math.frexp(number)[0]) != 0.5:
        return None
    reciprocal = UOp.const(c.dtype, 1.0 / number)
    smallest = c.dtype.format.smallest_normal
    if reciprocal.arg * number != 1.0 or abs(reciprocal.arg) < smallest or abs(number) < smallest:
        return None
    return f * reciprocal


CASTS: Final = RuleSet("conversions", "reorders", [
    Rule(op(Op.CAST, op(Op.CAST, x, name="y")), shorter_cast),
    Rule(op(Op.BITCAST, op(Op.BITCAST, x)), lambda x, root: x.bitcast(root.dtype.scalar)),
    Rule(f.fdiv(c), _power_of_two),
    Rule(op(Op.POW, f, 2), f * f, exact=False),
])  # fmt: skip


# movement
def _composed_permute(x: UOp, y: UOp, root: UOp) -> UOp:
    return mk(Op.PERMUTE, root.dtype, (x,), AxesArg(tuple(y.arg.axes[axis] for axis in root.arg.axes)))


def _composed_shrink(x: UOp, y: UOp, root: UOp) -> UOp:
    pairs = zip(y.arg.bounds, root.arg.bounds, strict=True)
    return mk(Op.SHRINK, root.dtype, (x,), ShrinkArg(tuple((a[0] + b[0], a[0] + b[1]) for a, b in pairs)))


def _composed_pad(x: UOp, y: UOp, root: UOp) -> UOp:
    pairs = zip(y.arg.pads, root.arg.pads, strict=True)
    return mk(Op.PAD, root.dtype, (x,), PadArg(tuple((a[0] + b[0], a[1] + b[1]) for a, b in pairs)))


def _composed_flip(x: UOp, y: UOp, root: UOp) -> UOp:
    axes = tuple(sorted(set(y.arg.axes) ^ set(root.arg.axes)))
    return mk(Op.FLIP, root.dtype, (x,), AxesArg(axes)) if axes else x


def _composed_stride(x: UOp, y: UOp, root: UOp) -> UOp:
    pairs = zip(y.arg.steps, root.arg.steps, strict=True)
    return mk(Op.STRIDE, root.dtype, (x,), StrideArg(tuple(a * b for a, b in pairs)))


def _shrink_inside_pad(x: UOp, y: UOp, root: UOp) -> UOp | None:
    """SHRINK(PAD(x)) as SHRINK(x) when no padding is left."""
    bounds = []
    for (low, high), (before, _), size in zip(root.arg.bounds, y.arg.pads, x.shape, strict=True):
        if low < before or high > before + size:
            return None
        bounds.append((low - before, high - before))
    return mk(Op.SHRINK, root.dtype, (x,), ShrinkArg(tuple(bounds)))


def moved_scalar(root: UOp) -> UOp | None:
    """A movement of a repeated scalar is the scalar repeated to another shape."""
    scalar = scalar_of(root.src[0])
    if scalar is None or (root.op is Op.PAD and not (scalar.op is Op.CONST and not scalar.arg)):
        return None
    return with_shape(scalar, root.shape)


def _plain_scalars(root: UOp) -> UOp | None:
    """Repeated scalars below an element-wise op: as bare scalars beside other operands, or outside when all are."""
    scalars = [scalar_of(s) for s in root.src]
    if all(s is not None for s in scalars):
        if not root.shape:
            return None
        return with_shape(mk(root.op, root.dtype, tuple(s for s in scalars if s is not None), root.arg), root.shape)
    if all(s is None or s is source for s, source in zip(scalars, root.src, strict=True)):
        return None
    src = tuple(source if s is None else s for s, source in zip(scalars, root.src, strict=True))
    return mk(root.op, root.dtype, src, root.arg)


MOVES_OF_SCALARS: Final = (Op.RESHAPE, Op.EXPAND, Op.PERMUTE, Op.FLIP, Op.SHRINK, Op.STRIDE, Op.PAD, Op.WINDOW)
REPEATED: Final = op((Op.EXPAND, Op.RESHAPE))

MOVEMENT: Final = RuleSet("movements after movements", "reorders", [
    Rule(op(Op.RESHAPE, op(Op.RESHAPE, x)), lambda x, root: mk(Op.RESHAPE, root.dtype, (x,), root.arg)),
    Rule(op(Op.EXPAND, op(Op.EXPAND, x)), lambda x, root: mk(Op.EXPAND, root.dtype, (x,), root.arg)),
    Rule(op(Op.PERMUTE, op(Op.PERMUTE, x, name="y")), _composed_permute),
    Rule(op(Op.SHRINK, op(Op.SHRINK, x, name="y")), _composed_shrink),
    Rule(op(Op.SHRINK, op(Op.PAD, x, name="y")), _shrink_inside_pad),
    Rule(op(Op.PAD, op(Op.PAD, x, name="y")), _composed_pad),
    Rule(op(Op.FLIP, op(Op.FLIP, x, name="y")), _composed_flip),
    Rule(op(Op.STRIDE, op(Op.STRIDE, x, name="y")), _composed_stride),
    Rule(op(MOVES_OF_SCALARS, REPEATED), moved_scalar, name="movement of a scalar"),
    Rule(op(BINARY, x, REPEATED), _plain_scalars, name="repeated scalar on the right"),
    Rule(op(BINARY, REPEATED, x), _plain_scalars, name="repeated scalar on the left"),
    Rule(op(TERNARY, REPEATED, more=True), _plain_scalars, name="repeated scalar as condition"),
    Rule(op(TERNARY, x, REPEATED, more=True), _plain_scalars, name="repeated scalar as second operand"),
    Rule(op(TERNARY, x, y, REPEATED), _plain_scalars, name="repeated scalar as third operand"),
])  # fmt: skip


# guards
def _sure_store(x: UOp, y: UOp, root: UOp) -> UOp:
    index = mk(Op.INDEX, root.src[0].dtype, (x, y))
    return mk(Op.STORE, root.dtype, (index, root.src[1]), root.arg)


def _live_stores(root: UOp) -> UOp | None:
    live = tuple(s for s in root.src if not _never(s))
    return None if len(live) == len(root.src) else mk(Op.SINK, root.dtype, live, root.arg)


def _never(store: UOp) -> bool:
    guard = store.src[0].src[2:] if store.op is Op.STORE and store.src[0].op is Op.INDEX else ()
    return bool(guard) and guard[0].op is Op.CONST and not guard[0].arg


def _unguarded_load(x: UOp, y: UOp, root: UOp) -> UOp:
    return mk(Op.LOAD, root.dtype, (mk(Op.INDEX, root.src[0].dtype, (x, y)),))


SURE: Final = op(Op.INDEX, x, y, const(value=True))

GUARDS: Final = RuleSet("guards that are always true or always false", "reorders", [
    Rule(op(Op.LOAD, SURE, z), _unguarded_load),
    Rule(op(Op.STORE, SURE, z), _sure_store),
    Rule(op(Op.SINK, op(Op.STORE), more=True), _live_stores),
])  # fmt: skip

RULES: Final = SUMS + INTEGERS_THAT_WRAP + LATTICE + LOGIC + CASTS + MOVEMENT + GUARDS
