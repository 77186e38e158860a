"""Cuts a loop in two where its index is divided, so that addresses become sums of loop indices.

A tensor kept in strips, or reshaped, is indexed by `i // c` and `i % c`. With `i = outer * c + inner` these are `outer`
and `inner`: the access along `inner` is contiguous again and can have lanes.
"""

from __future__ import annotations

from typing import Final

from gradlet.base.dtype import dtypes
from gradlet.graph.node import UOp, mk, toposort
from gradlet.graph.rewrite import rewrite
from gradlet.ops.op import AxisKind, Op, RangeArg
from gradlet.rules.sets import INDEX_MATH

# A shorter inner loop would not fill the lanes of a vector.
MIN_INNER: Final = 16
# Room between the numbers of neighbouring loops for the ones that are cut off.
_SPREAD: Final = 64


def cut_at_divisions(sink: UOp) -> UOp:
    """The kernel with every loop cut that is only used whole or divided by one constant (or its multiples)."""
    while cuts := _find(sink):
        sink = _renumber(rewrite(_cut(sink, cuts), INDEX_MATH))
    return sink


def _find(sink: UOp) -> dict[UOp, int]:
    """The ranges to cut, with the size of the inner part."""
    divisors: dict[UOp, set[int]] = {}
    for node in toposort((sink,)):
        if node.op in (Op.IDIV, Op.MOD) and node.src[0].op is Op.RANGE and node.src[1].op is Op.CONST:
            divisors.setdefault(node.src[0], set()).add(int(node.src[1].arg))
    cuts: dict[UOp, int] = {}
    for loop, found in divisors.items():
        inner = min(found)
        if loop.arg.kind not in (AxisKind.LOOP, AxisKind.REDUCE) or loop.src[0].op is not Op.CONST:
            continue
        size = int(loop.src[0].arg)
        if MIN_INNER <= inner < size and size % inner == 0 and all(d % inner == 0 for d in found):
            cuts[loop] = inner
    return cuts


def _cut(sink: UOp, cuts: dict[UOp, int]) -> UOp:
    new: dict[UOp, UOp] = {}
    parts: dict[UOp, tuple[UOp, ...]] = {}
    for node in toposort((sink,)):
        if node.op is Op.RANGE:
            inner = cuts.get(node)
            number = node.arg.number * _SPREAD
            if inner is None:
                parts[node] = (_range(new[node.src[0]], number, node.arg.kind),)
                new[node] = parts[node][0]
                continue
            size = int(node.src[0].arg)
            outer = _range(size // inner, number, node.arg.kind)
            rest = _range(inner, number + 1, node.arg.kind)
            parts[node] = (outer, rest)
            scaled = mk(Op.MUL, dtypes.index, (outer, UOp.const(dtypes.index, inner)), None)
            new[node] = mk(Op.ADD, dtypes.index, (scaled, rest), None)
        elif node.op is Op.REDUCE:
            ranges = [part for loop in node.src[1:] for part in parts[loop]]
            new[node] = mk(node.op, node.dtype, (new[node.src[0]], *ranges), node.arg)
        elif node.src:
            new[node] = mk(node.op, node.dtype, tuple([new[s] for s in node.src]), node.arg)
        else:
            new[node] = node
    return new[sink]


def _range(size: UOp | int, number: int, kind: AxisKind) -> UOp:
    node = UOp.const(dtypes.index, size) if isinstance(size, int) else size
    return mk(Op.RANGE, dtypes.index, (node,), RangeArg(number, kind))


def _renumber(sink: UOp) -> UOp:
    """Ranges numbered without gaps."""
    ranges = sorted((n for n in toposort((sink,)) if n.op is Op.RANGE), key=lambda n: int(n.arg.number))
    new = {
        loop: mk(Op.RANGE, dtypes.index, loop.src, RangeArg(number, loop.arg.kind))
        for number, loop in enumerate(ranges)
        if loop.arg.number != number
    }
    return sink.substitute(new) if new else sink
