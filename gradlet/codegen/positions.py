"""Arithmetic on positions as values becomes arithmetic on positions as indices: a causal mask compares two numbers.

A long `arange` is made of high and low digits, `int32(i) * 4096 + int32(j)`. As one index, `int32(i * 4096 + j)`, both
ranges are seen to be one loop, and later steps see where the mask ends.
"""

from __future__ import annotations

from typing import Final

from gradlet.base.dtype import dtypes
from gradlet.graph.bounds import bounds
from gradlet.graph.node import UOp, mk
from gradlet.graph.rewrite import rewrite
from gradlet.ops.op import Op
from gradlet.optimize.analysis import kernel_order
from gradlet.rules.sets import INDEX_MATH

_INT32: Final = (-(2**31), 2**31 - 1)


def count_in_indices(sink: UOp) -> UOp:
    """The kernel with sums and multiples of converted indices as converted sums and multiples, where these fit."""
    if not sink.mask & 1 << Op.CAST:
        return sink
    new: dict[UOp, UOp] = {}
    changed = new.keys()
    for node in kernel_order(sink):
        if not node.src:
            continue
        src = tuple([new.get(s, s) for s in node.src])
        if node.op in (Op.ADD, Op.MUL) and node.dtype is dtypes.int32 and any(s.op is Op.CAST for s in src):
            made = _as_index(node.op, src)
            if made is not None:
                new[node] = made
                continue
        if not changed.isdisjoint(node.src):
            new[node] = mk(node.op, node.dtype, src, node.arg)
    return new.get(sink, sink)


def _as_index(op: Op, src: tuple[UOp, ...]) -> UOp | None:
    parts: list[UOp] = []
    for source in src:
        if source.op is Op.CONST:
            parts.append(UOp.const(dtypes.index, int(source.arg)))
        elif source.op is Op.CAST and source.src[0].dtype is dtypes.index:
            parts.append(source.src[0])
        else:
            return None
    made = parts[0] + parts[1] if op is Op.ADD else parts[0] * parts[1]
    values = [bounds(n) for n in (made, *parts)]
    # Digits of one range are that range.
    return (
        rewrite(made, INDEX_MATH).cast(dtypes.int32)
        if all(_INT32[0] <= a and b <= _INT32[1] for a, b in values)
        else None
    )
