"""Values of float32 that only reach results of 8 and 16 bits: what is computed there may be a little less exact.

A result of bfloat16 or float16 keeps 8 or 11 bits of the 24 that a float32 has. Where a value reaches nothing else, and
only through operations that keep its relative error, an error of a few units in the last place of float32 is lost in
that rounding. So powers of two may come from an instruction that is off by 2**-22, and a quotient by the same divisor,
again and again, may be a product with its reciprocal.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from gradlet.base.dtype import dtypes
from gradlet.graph.node import UOp, mk
from gradlet.ops.op import Op

# Relative errors stay what they are, or add up.
_KEEPS: Final = frozenset({Op.MUL, Op.FDIV, Op.MAX, Op.MIN, Op.VECTORIZE, Op.EXTRACT, Op.SHUFFLE, Op.PICK})
_POSITIVE: Final = frozenset({Op.EXP, Op.EXP2, Op.SQRT})
_COMBINES: Final = frozenset({Op.REDUCE, Op.REDUCE_LANES})
# Divisors below this are scaled up by as much before their reciprocal is taken, which would be infinite.
SMALL: Final = 2.0**-64


def loose_values(order: Sequence[UOp]) -> frozenset[UOp]:
    """The float32 nodes of a kernel all of whose uses end in a conversion to fewer bits, with nothing that cancels.

    Args:
        order: the kernel's nodes, sources first.
    """
    strict: set[UOp] = set()
    used: set[UOp] = set()
    positive = _Positive()
    for node in reversed(order):
        loose = node in used and node not in strict and node.dtype.scalar is dtypes.float32
        for position, source in enumerate(node.src):
            used.add(source)
            if source.dtype.scalar is dtypes.float32 and not (
                _rounds(node) or (loose and _keeps(node, position, positive))
            ):
                strict.add(source)
    return frozenset(n for n in order if n in used and n not in strict and n.dtype.scalar is dtypes.float32)


def loose_powers(order: Sequence[UOp]) -> frozenset[UOp]:
    """The exponentials of a kernel whose matrix units multiply by weights that it has computed.

    Weights are rounded to 16 bits on the way into the unit; all that such a kernel computes follows from them.
    """
    if not any(n.op is Op.WGMMA and n.arg.registers for n in order):
        return frozenset()
    return frozenset(n for n in order if n.op in (Op.EXP, Op.EXP2) and n.dtype.scalar is dtypes.float32)


def _rounds(node: UOp) -> bool:
    return node.op is Op.CAST and node.dtype.is_float and node.dtype.scalar.itemsize <= 2


def _keeps(node: UOp, position: int, positive: _Positive) -> bool:
    """Whether an operation passes a relative error of one of its sources on as it is."""
    if node.op in _KEEPS:
        return True
    if node.op is Op.WHERE:
        return position > 0
    if node.op is Op.ADD:
        return all(positive.holds(s) for s in node.src)
    if node.op in _COMBINES:
        return node.arg.op is not Op.ADD or positive.holds(node.src[0])
    return False


class _Positive:
    """Which values are never below zero."""

    def __init__(self) -> None:
        self._known: dict[UOp, bool] = {}

    def holds(self, node: UOp) -> bool:
        """Whether a value is known not to be below zero."""
        found = self._known.get(node)
        if found is None:
            found = self._known[node] = self._find(node)
        return found

    def _find(self, node: UOp) -> bool:
        if node.op is Op.CONST:
            return bool(node.arg >= 0)
        if node.op in _POSITIVE:
            return True
        if node.op is Op.MUL and node.src[0] is node.src[1]:
            return True
        if node.op in (Op.MUL, Op.ADD, Op.FDIV, Op.MIN, Op.VECTORIZE):
            return all(self.holds(s) for s in dict.fromkeys(node.src))
        if node.op is Op.MAX:
            return any(self.holds(s) for s in node.src)
        if node.op is Op.WHERE:
            return all(self.holds(s) for s in node.src[1:])
        if node.op in _COMBINES or node.op in (Op.EXTRACT, Op.PICK):
            return self.holds(node.src[0])
        if node.op is Op.CAST:
            return node.src[0].dtype.kind in "bu" or (node.src[0].dtype.is_float and self.holds(node.src[0]))
        return False


def power_of_e(x: UOp, log2_e: float) -> UOp:
    """e**x by the instruction for powers of two."""
    return mk(Op.EXP2, x.dtype, (x * log2_e,))


def quotient(x: UOp, divisor: UOp) -> UOp:
    """x / divisor as a product: the reciprocal is computed where the divisor is, outside of the loops that x is in.

    Very small divisors are made larger first, and x by as much: if that overflows, so does the quotient.
    """
    tiny = divisor.lt(SMALL) & divisor.coerce(-SMALL).lt(divisor)
    scale = tiny.where(UOp.const(divisor.dtype, 1 / SMALL), UOp.const(divisor.dtype, 1.0))
    reciprocal = UOp.const(divisor.dtype, 1.0).fdiv(divisor * scale)
    return x * scale * reciprocal
