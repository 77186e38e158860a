"""Values of float32 that only reach results of 8 and 16 bits: what is computed there may be a little less exact.

A result of bfloat16 or float16 keeps 8 or 11 bits of the 24 that a float32 has. Where a value reaches nothing else, and
only through operations that keep its relative error, an error of a few units in the last place of float32 is lost in
that rounding. On the way to a result of 8 bits there may be sums, too: where they cancel, they magnify such an error
as they magnify the rounding errors of float32, which are a quarter of it, or a part of its exponent for a power.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from gradlet.base.dtype import dtypes
from gradlet.graph.node import UOp
from gradlet.ops.op import MOVEMENT, Op

# Relative errors stay what they are, or add up.
_KEEPS: Final = MOVEMENT | {
    Op.MUL, Op.FDIV, Op.MAX, Op.MIN, Op.VECTORIZE, Op.EXTRACT, Op.SHUFFLE, Op.PICK, Op.CONTIGUOUS,
}  # fmt: skip
_POSITIVE: Final = frozenset({Op.EXP, Op.EXP2, Op.SQRT})
_COMBINES: Final = frozenset({Op.REDUCE, Op.REDUCE_LANES, Op.REDUCE_AXES})
# How much less exact a value may be: not at all, where relative errors stay, where sums may follow.
_STRICT, _KEPT, _SUMMED = 0, 1, 2


def loose_values(order: Sequence[UOp]) -> frozenset[UOp]:
    """The float32 nodes all of whose uses end in a conversion to fewer bits, with nothing that cancels in between, or
    to 8 bits and less.

    Args:
        order: all nodes of tensors or of a kernel, sources first.
    """
    float32 = dtypes.float32
    levels: dict[UOp, int] = {}
    positive = Positive()
    for node in reversed(order):
        own = levels.get(node, _STRICT) if node.dtype.scalar is float32 else _STRICT
        for position, source in enumerate(node.src):
            if source.dtype.scalar is float32 and not (node.op is Op.DERIVATIVE and position):
                level = _level(node, position, own, positive)
                levels[source] = min(level, levels.get(source, level))
    return frozenset([n for n, level in levels.items() if level])


def _level(node: UOp, position: int, own: int, positive: Positive) -> int:
    """How exact a source has to be for one of its uses; `own` is the level of what uses it."""
    if node.op is Op.CAST:
        scalar = node.dtype.scalar
        if not scalar.is_float or scalar.itemsize > 2:
            return _STRICT
        return _KEPT if scalar is dtypes.float16 else _SUMMED
    if not own or node.op in _KEEPS:
        return own
    if node.op is Op.WHERE:
        return own if position else _STRICT
    if node.op is Op.DERIVATIVE:
        return own
    if node.op in (Op.ADD, Op.MULADD):
        return own if own == _SUMMED or all(positive.holds(s) for s in node.src) else _STRICT
    if node.op in _COMBINES:
        return own if own == _SUMMED or node.arg.op is not Op.ADD or positive.holds(node.src[0]) else _STRICT
    return _STRICT


def swallowed_powers(uops: Sequence[UOp]) -> set[UOp]:
    """Powers of a program to which nothing is done but adding a number that is not small: tiny ones might be zero."""
    found = {n for n in uops if n.op is Op.EXP2}
    for node in uops if found else ():
        if node.op is not Op.ADD or not any(s.op is Op.CONST and abs(s.arg) >= 2.0**-64 for s in node.src):
            found.difference_update(node.src)
    return found


class Positive:
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
        if node.op in _COMBINES or node.op in (Op.EXTRACT, Op.PICK) or node.op in MOVEMENT:
            return self.holds(node.src[0])
        if node.op is Op.CAST:
            return node.src[0].dtype.kind in "bu" or (node.src[0].dtype.is_float and self.holds(node.src[0]))
        return False
