"""What takes the place of exponentials and quotients whose errors nobody sees: see `graph/loose`.

Powers of two come from an instruction that is off by 2**-22. A quotient by the same divisor, again and again, is a
product with its reciprocal; one of a number by something that is not small comes from an instruction, too.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from gradlet.base.dtype import dtypes
from gradlet.graph.loose import Positive
from gradlet.graph.node import UOp, mk
from gradlet.ops.op import Op

# Divisors below this are scaled up by as much before their reciprocal is taken, which would be infinite.
SMALL: Final = 2.0**-64
MOST_NEAR: Final = 4.0  # a numerator: a quotient of a larger one is no small number where the reciprocal is 0


def loose_powers(order: Sequence[UOp]) -> frozenset[UOp]:
    """The exponentials of a kernel whose matrix units multiply by weights that it has computed.

    Weights are rounded to 16 bits on the way into the unit; all that such a kernel computes follows from them.
    """
    if not any(n.op is Op.WGMMA and n.arg.registers for n in order):
        return frozenset()
    return frozenset(n for n in order if n.op in (Op.EXP, Op.EXP2) and n.dtype.scalar is dtypes.float32)


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


def is_near_reciprocal(node: UOp, positive: Positive) -> bool:
    """Whether a quotient is a number by the sum of a number and what is not negative: 1 / (1 + e**x), say."""
    x, divisor = node.src
    if x.op is not Op.CONST or abs(x.arg) > MOST_NEAR or divisor.op is not Op.ADD:
        return False
    return any(s.op is Op.CONST and s.arg >= SMALL for s in divisor.src) and all(positive.holds(s) for s in divisor.src)


def near_quotient(x: UOp, divisor: UOp) -> UOp:
    """x / divisor by the instruction, which is off by a unit in the last place; a reciprocal below 2**-126 is 0.

    It is a power, of which code generation leaves no other.
    """
    reciprocal = mk(Op.POW, divisor.dtype, (divisor, UOp.const(divisor.dtype, -1.0)))
    return reciprocal if x.arg == 1 else x * reciprocal
