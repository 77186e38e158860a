"""Rules that make an expression larger, for targets without an op. Each names its inverse; no fixpoint set has them."""

from __future__ import annotations

from typing import Final

from gradlet.graph.pattern import INTEGERS, const, op, var
from gradlet.graph.rewrite import Rule, RuleSet
from gradlet.ops.op import Op

i, c = var("i", INTEGERS), const("c")
x, y = var("x"), var("y")

# Inverse: linear.recombine.
MODULO_BY_DIVISION: Final = RuleSet("modulo as a difference", "grows", [
    Rule(i % c, i + (i // c) * (c * -1), when=lambda c: c.arg != 0),
])  # fmt: skip

# Inverse: reorders.LOGIC (the comparison of a comparison with False).
NOT_EQUAL_BY_EQUAL: Final = RuleSet("inequality as negated equality", "grows", [
    Rule(op(Op.CMPNE, x, y), op(Op.CMPEQ, op(Op.CMPEQ, x, y), 0)),
])  # fmt: skip
