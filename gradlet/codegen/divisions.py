"""Cuts a loop in two where its index is divided, so that addresses become sums of loop indices.

A tensor kept in strips, or reshaped, is indexed by `i // c` and `i % c`. With `i = outer * c + inner` these are `outer`
and `inner`: the access along `inner` is contiguous again and can have lanes. Where `c` does not divide the size, the
last block is whole as well if memory reaches that far: strips are padded. Only what it must not touch is guarded.
"""

from __future__ import annotations

from typing import Final

from gradlet.base.dtype import dtypes
from gradlet.graph.bounds import bounds
from gradlet.graph.node import UOp, mk
from gradlet.graph.rewrite import rewrite
from gradlet.ops.op import AxisKind, Op, RangeArg
from gradlet.optimize.analysis import kernel_order, open_ranges
from gradlet.rules.sets import INDEX_MATH

# A shorter inner loop would not fill the lanes of a vector.
MIN_INNER: Final = 16
_DIGITS: Final = frozenset({Op.IDIV, Op.MOD})
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
    order = kernel_order(sink)
    for node in order:
        if node.op in _DIGITS and node.src[0].op is Op.RANGE and node.src[1].op is Op.CONST:
            divisors.setdefault(node.src[0], set()).add(int(node.src[1].arg))
    cuts: dict[UOp, int] = {}
    for loop, found in divisors.items():
        inner = min(found)
        if loop.arg.kind not in (AxisKind.LOOP, AxisKind.REDUCE) or loop.src[0].op is not Op.CONST:
            continue
        size = int(loop.src[0].arg)
        if MIN_INNER <= inner < size and all(d % inner == 0 for d in found):
            if size % inner == 0 or _may_round_up(order, loop, inner):
                cuts[loop] = inner
    return cuts


def _may_round_up(order: list[UOp], loop: UOp, inner: int) -> bool:
    """Whether a loop may run to the end of its last block: its sums load nothing from outside of memory there.

    What is computed past the end is thrown away, so it must be nothing that can fail, which integers divide by zero.
    """
    ranges = open_ranges(order)
    if loop.arg.kind is not AxisKind.LOOP or any(n.op in (Op.CARRY, Op.NEXT) for n in order):
        return False
    if not any(n.op is Op.REDUCE and loop in ranges[n] for n in order):
        return False
    longer = _range(-(-int(loop.src[0].arg) // inner) * inner, loop.arg.number, loop.arg.kind)
    for node in order:
        if loop not in ranges[node]:
            continue
        if node.op in (Op.IDIV, Op.MOD) and node.dtype is not dtypes.index:
            return False
        if node.op is Op.LOAD and len(ranges[node]) > 1:
            low, high = bounds(node.src[0].src[1].substitute({loop: longer}))
            if len(node.src[0].src) > 2 or low < 0 or high >= node.src[0].src[0].arg.size:
                return False
    return True


def _cut(sink: UOp, cuts: dict[UOp, int]) -> UOp:
    new: dict[UOp, UOp] = {}
    parts: dict[UOp, tuple[UOp, ...]] = {}
    inside: dict[UOp, UOp] = {}  # of a loop that was rounded up, whether an iteration is one of its own
    order = kernel_order(sink)
    ranges_of = open_ranges(order)
    for node in order:
        if node.op is Op.RANGE:
            inner = cuts.get(node)
            number = node.arg.number * _SPREAD
            if inner is None:
                parts[node] = (_range(new[node.src[0]], number, node.arg.kind),)
                new[node] = parts[node][0]
                continue
            size = int(node.src[0].arg)
            outer = _range(-(-size // inner), number, node.arg.kind)
            rest = _range(inner, number + 1, node.arg.kind)
            parts[node] = (outer, rest)
            scaled = mk(Op.MUL, dtypes.index, (outer, UOp.const(dtypes.index, inner)), None)
            new[node] = mk(Op.ADD, dtypes.index, (scaled, rest), None)
            if size % inner:
                inside[node] = new[node] < size
        elif node.op is Op.REDUCE:
            ranges = [part for loop in node.src[1:] for part in parts[loop]]
            new[node] = mk(node.op, node.dtype, (new[node.src[0]], *ranges), node.arg)
        elif node.op in (Op.LOAD, Op.STORE) and not ranges_of[node].isdisjoint(inside):
            new[node] = _guarded(node, new, [inside[r] for r in inside if r in ranges_of[node]])
        elif node.src:
            new[node] = mk(node.op, node.dtype, tuple([new[s] for s in node.src]), node.arg)
        else:
            new[node] = node
    return new[sink]


def _guarded(node: UOp, new: dict[UOp, UOp], conditions: list[UOp]) -> UOp:
    """A load or store with the conditions it needs: a load that stays in memory needs none."""
    index = new[node.src[0]]
    src = tuple([new[s] for s in node.src[1:]])
    if node.op is Op.LOAD and len(index.src) == 2:
        low, high = bounds(index.src[1])
        if low >= 0 and high < index.src[0].arg.size:
            return mk(node.op, node.dtype, (index, *src), node.arg)
    for condition in conditions:
        gate = index.src[2] & condition if len(index.src) > 2 else condition
        index = mk(Op.INDEX, index.dtype, (*index.src[:2], gate))
    if node.op is Op.LOAD and not src:
        src = (UOp.const(node.dtype, 0),)
    return mk(node.op, node.dtype, (index, *src), node.arg)


def _range(size: UOp | int, number: int, kind: AxisKind) -> UOp:
    node = UOp.const(dtypes.index, size) if isinstance(size, int) else size
    return mk(Op.RANGE, dtypes.index, (node,), RangeArg(number, kind))


def _renumber(sink: UOp) -> UOp:
    """Ranges numbered without gaps."""
    ranges = sorted((n for n in kernel_order(sink) if n.op is Op.RANGE), key=lambda n: int(n.arg.number))
    new = {
        loop: mk(Op.RANGE, dtypes.index, loop.src, RangeArg(number, loop.arg.kind))
        for number, loop in enumerate(ranges)
        if loop.arg.number != number
    }
    return sink.substitute(new) if new else sink
