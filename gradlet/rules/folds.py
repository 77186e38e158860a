"""Rules whose result is a constant."""

from __future__ import annotations

from math import isfinite, prod
from typing import Final

from gradlet.base.dtype import DType
from gradlet.graph.fold import fold
from gradlet.graph.node import UOp
from gradlet.graph.pattern import BOOLS, FLOATS, INTEGERS, const, op, var
from gradlet.graph.rewrite import Rule, RuleSet
from gradlet.ops.op import BINARY, UNARY, Op
from gradlet.rules.removes import has_all_bits
from gradlet.rules.scalars import becomes, constant_like, like, scalar_of

x, y = var("x"), var("y")
i = var("i", INTEGERS)
f = var("f", FLOATS)
b = var("b", BOOLS)
c = const("c")
NOT_FLOAT: Final = INTEGERS + BOOLS


def fold_node(root: UOp) -> UOp | None:
    """The constant that an element-wise op over constants is; None where its value is undefined."""
    value = fold(root.op, root.dtype, [s.arg for s in root.src], root.src[0].dtype)
    return None if value is None else UOp.const(root.dtype, value)


def _constant_vector(root: UOp) -> UOp | None:
    """VECTORIZE of equal constants is one constant of the vector's type."""
    first = root.src[0]
    return UOp.const(root.dtype, first.arg) if all(s is first for s in root.src) else None


def _size_is_one(root: UOp) -> UOp:
    return UOp.const(root.dtype, 0)


CONSTANTS: Final = RuleSet("arithmetic on constants", "folds", [
    Rule(op(UNARY, const()), fold_node, name="fold unary"),
    Rule(op(BINARY, const(), const()), fold_node, name="fold binary"),
    Rule(op(Op.WHERE, const(), const(), const()), fold_node, name="fold where"),
    Rule(op(Op.VECTORIZE, const(), more=True), _constant_vector),
    Rule(op(Op.EXTRACT, c), lambda c, root: UOp.const(root.dtype, c.arg)),
])  # fmt: skip

ABSORBING: Final = RuleSet("operands that decide the result alone", "folds", [
    Rule(var("x", NOT_FLOAT) * 0, becomes(0)),
    Rule(var("x", NOT_FLOAT) & 0, becomes(0)),
    Rule(var("x", NOT_FLOAT) | c, lambda c, root: like(c, root), when=has_all_bits),
    Rule(op(Op.IDIV, 0, i), becomes(0)),
    Rule(op(Op.MOD, 0, i), becomes(0)),
    Rule(i // 0, becomes(0)),
    Rule(i % 0, becomes(0)),
    Rule(i % 1, becomes(0)),
    Rule(i % i, becomes(0)),
    Rule(op(Op.SHL, 0, i), becomes(0)),
    Rule(op(Op.SHR, 0, i), becomes(0)),
    Rule(op(Op.POW, f, 0), becomes(1)),
    Rule(op(Op.POW, const(value=1), f), becomes(1)),
    Rule(op(Op.XOR, var("x", NOT_FLOAT), x), becomes(0)),
    Rule(op(Op.CMPLT, x, x), becomes(False)),
    Rule(op(Op.CMPEQ, var("x", NOT_FLOAT), x), becomes(True)),
    Rule(op(Op.CMPNE, var("x", NOT_FLOAT), x), becomes(False)),
])  # fmt: skip

RANGES: Final = RuleSet("loops of one iteration", "folds", [
    Rule(op(Op.RANGE, 1), _size_is_one),
])  # fmt: skip


def _largest_count(dtype: DType) -> int:
    """Up to this all whole numbers are exact in a float type."""
    return 1 << dtype.format.digits


def _reduced_constant(x: UOp, root: UOp) -> UOp | None:
    """A constant summed is a multiple of it, where that is exact; its largest is itself."""
    value = scalar_of(x)
    if value is None or value.op is not Op.CONST or 0 in x.shape:
        return None
    if root.arg.op in (Op.MAX, Op.MIN):
        return constant_like(root, value.arg)
    if root.arg.op is not Op.ADD or root.dtype.is_bool:
        return None
    count = prod(x.shape[axis] for axis in root.arg.axes)
    if root.dtype.is_float:
        whole = isfinite(value.arg) and float(value.arg).is_integer()
        if not whole or abs(value.arg) * count > _largest_count(root.dtype):
            return None
        return constant_like(root, float(value.arg) * count)
    total = fold(Op.MUL, root.dtype, [value.arg, count], root.dtype)
    return None if total is None else constant_like(root, total)


REDUCTIONS: Final = RuleSet("reductions of a constant", "folds", [
    Rule(op(Op.REDUCE_AXES, x), _reduced_constant),
])  # fmt: skip

RULES: Final = CONSTANTS + ABSORBING + REDUCTIONS
