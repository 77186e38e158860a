"""Rules whose result is a node that the pattern has bound: an operation that changes nothing goes away."""

from __future__ import annotations

import math
from functools import cache
from typing import Final

from gradlet.base.dtype import DType
from gradlet.base.floatformat import FloatFormat
from gradlet.graph.node import UOp
from gradlet.graph.pattern import BOOLS, FLOATS, INTEGERS, const, op, var
from gradlet.graph.rewrite import Rule, RuleSet
from gradlet.ops.op import Op
from gradlet.rules.scalars import like

x, y, z = var("x"), var("y"), var("z")
i = var("i", INTEGERS)
f = var("f", FLOATS)
b = var("b", BOOLS)
c = const("c")
NOT_FLOAT: Final = INTEGERS + BOOLS


def is_negative_zero(c: UOp) -> bool:
    """The float constant -0.0, the only one that changes no number when added."""
    return not c.arg and math.copysign(1.0, c.arg) < 0


def has_all_bits(c: UOp) -> bool:
    """The constant with every bit set: True, -1, or the largest unsigned number."""
    return bool(c.arg == (c.dtype.max if c.dtype.kind in "bu" else -1))


def holds(wide: DType, narrow: DType) -> bool:
    """Every value of `narrow` exists in `wide`, so that a cast from one to the other changes no value."""
    kinds = narrow.kind + wide.kind
    if narrow.scalar is wide.scalar or kinds in ("bu", "bi", "bx", "bf", "ux", "ix"):
        return True
    if kinds in ("uu", "ii"):
        return wide.bits >= narrow.bits
    if kinds == "ui":
        return wide.bits > narrow.bits
    if kinds == "ff":
        return _holds_floats(wide.format, narrow.format)
    if kinds in ("uf", "if"):
        # float16 has enough digits for 8 bits only, and a range that holds them.
        return wide.format.digits >= narrow.bits - (narrow.kind == "i")
    return False


@cache
def _holds_floats(wide: FloatFormat, narrow: FloatFormat) -> bool:
    """Every number, infinity and zero of a format exists in another one. What is NaN stays NaN."""
    numbers = wide.digits >= narrow.digits and wide.smallest <= narrow.smallest and wide.largest >= narrow.largest
    zeros = wide.special != "fnuz" or narrow.special == "fnuz"
    return numbers and zeros and wide.has_infinity >= narrow.has_infinity


def same_type(x: UOp, root: UOp) -> bool:
    """The result has the type of x again."""
    return root.dtype is x.dtype


def _lossless_round_trip(x: UOp, y: UOp, root: UOp) -> bool:
    return root.dtype is x.dtype and holds(y.dtype, x.dtype)


ARITHMETIC: Final = RuleSet("operations that change no value", "removes", [
    Rule(var("x", NOT_FLOAT) + 0, x),
    Rule(f + c, f, when=is_negative_zero),
    Rule(f + 0, f, exact=False),  # turns -0.0 + 0.0 into -0.0
    Rule(x * 1, x),
    Rule(i // 1, i),
    Rule(f.fdiv(1), f),
    Rule((f * -1) * -1, f),
    Rule(op(Op.POW, f, 1), f),
    Rule(var("x", NOT_FLOAT) | 0, x),
    Rule(var("x", NOT_FLOAT) ^ 0, x),
    Rule(var("x", NOT_FLOAT) & c, x, when=has_all_bits),
    Rule(i << 0, i),
    Rule(i >> 0, i),
    Rule(x | x, x),
    Rule(x & x, x),
    Rule(x.maximum(x), x),
    Rule(x.minimum(x), x),
    Rule(op(Op.MAX, op(Op.MAX, x, y, name="z"), y), z),
    Rule(op(Op.MIN, op(Op.MIN, x, y, name="z"), y), z),
    Rule(op(Op.TRUNC, op(Op.TRUNC, name="x")), x),
])  # fmt: skip


def _where_chosen(x: UOp, root: UOp) -> UOp:
    # A scalar branch stands for all elements of the result.
    return like(x, root)


LOGIC: Final = RuleSet("conditions that are known", "removes", [
    Rule(op(Op.WHERE, const(value=True), x, y), _where_chosen),
    Rule(op(Op.WHERE, const(value=False), y, x), _where_chosen),
    Rule(op(Op.WHERE, b, x, x), _where_chosen),
    Rule(op(Op.WHERE, b, const(value=True, dtype=BOOLS), const(value=False, dtype=BOOLS)), b),
    Rule(op(Op.CMPEQ, b, 1), b),
    Rule(op(Op.CMPNE, b, 0), b),
    Rule(op(Op.CMPEQ, op(Op.CMPEQ, b, 0), 0), b),
    Rule(op(Op.CMPNE, op(Op.CAST, b), 0), b),
])  # fmt: skip

CASTS: Final = RuleSet("conversions there and back", "removes", [
    Rule(op(Op.CAST, x), x, when=same_type),
    Rule(op(Op.BITCAST, x), x, when=same_type),
    Rule(op(Op.BITCAST, op(Op.BITCAST, x)), x, when=same_type),
    Rule(op(Op.CAST, op(Op.CAST, x, name="y")), x, when=_lossless_round_trip),
])  # fmt: skip


def _same_shape(x: UOp, root: UOp) -> bool:
    return bool(root.arg.shape == x.shape)


def _identity_permutation(root: UOp) -> bool:
    return all(axis == position for position, axis in enumerate(root.arg.axes))


def _no_padding(root: UOp) -> bool:
    return not any(before or after for before, after in root.arg.pads)


def _whole_box(x: UOp, root: UOp) -> bool:
    return all(low == 0 and high == size for (low, high), size in zip(root.arg.bounds, x.shape, strict=True))


def _no_axes(root: UOp) -> bool:
    return not root.arg.axes


def _unit_steps(root: UOp) -> bool:
    return all(step == 1 for step in root.arg.steps)


def _box_is_the_unpadded(x: UOp, y: UOp, root: UOp) -> bool:
    """SHRINK(PAD(x)) takes away just what PAD has added."""
    pairs = zip(root.arg.bounds, y.arg.pads, x.shape, strict=True)
    return all(low == before and high == before + size for (low, high), (before, _), size in pairs)


MOVEMENT: Final = RuleSet("movements that move nothing", "removes", [
    Rule(op(Op.RESHAPE, x), x, when=_same_shape),
    Rule(op(Op.EXPAND, x), x, when=_same_shape),
    Rule(op(Op.PERMUTE, x), x, when=_identity_permutation),
    Rule(op(Op.PAD, x), x, when=_no_padding),
    Rule(op(Op.SHRINK, x), x, when=_whole_box),
    Rule(op(Op.SHRINK, op(Op.PAD, x, name="y")), x, when=_box_is_the_unpadded),
    Rule(op(Op.FLIP, x), x, when=_no_axes),
    Rule(op(Op.STRIDE, x), x, when=_unit_steps),
    Rule(op(Op.REDUCE_AXES, x), x, when=_no_axes),
    Rule(op(Op.CONTIGUOUS, op(Op.CONTIGUOUS, name="x")), x),
    Rule(op(Op.DETACH, op(Op.DETACH, name="x")), x),
])  # fmt: skip


def _lane(y: UOp, root: UOp) -> UOp:
    return y.src[0] if len(y.src) == 1 else y.src[root.arg.lane]


def _taken_apart(root: UOp) -> UOp | None:
    """VECTORIZE of all lanes of one vector, in order."""
    vector = root.src[0].src[0]
    if vector.dtype is not root.dtype or len(root.src) != root.dtype.count:
        return None
    for lane, source in enumerate(root.src):
        if source.op is not Op.EXTRACT or source.src[0] is not vector or source.arg.lane != lane:
            return None
    return vector


VECTORS: Final = RuleSet("vectors taken apart and put together", "removes", [
    Rule(op(Op.EXTRACT, op(Op.VECTORIZE, name="y")), _lane),
    Rule(op(Op.VECTORIZE, op(Op.EXTRACT), more=True), _taken_apart),
])  # fmt: skip

GUARDS: Final = RuleSet("loads that never happen", "removes", [
    Rule(op(Op.LOAD, op(Op.INDEX, x, y, const(value=False)), z), z),
])  # fmt: skip

RULES: Final = ARITHMETIC + LOGIC + CASTS + MOVEMENT + VECTORS + GUARDS
