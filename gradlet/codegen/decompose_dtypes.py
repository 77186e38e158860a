"""Arithmetic on types the target cannot compute with: floats of 8 and 16 bits go through float32."""

from __future__ import annotations

from gradlet.base.dtype import dtypes
from gradlet.graph.node import UOp, mk
from gradlet.ops.op import COMPARE, ELEMENTWISE, Op
from gradlet.optimize.analysis import kernel_order
from gradlet.target.target import Target

_MOVES_ONLY = frozenset({Op.CAST, Op.BITCAST, Op.WHERE})


def compute_in_float32(sink: UOp, target: Target) -> UOp:
    """Every arithmetic op on narrow floats widens its operands, computes in float32 and rounds its result.

    float32 has more than twice their digits and two more, so that sums, products, quotients and roots are rounded as if
    at once.
    """
    order = kernel_order(sink)
    if not any(dtype.is_narrow_float for dtype in {n.dtype for n in order}):
        return sink
    new: dict[UOp, UOp] = {}
    for node in order:
        if not node.src:
            continue
        src = tuple([new.get(s, s) for s in node.src])
        if node.op in ELEMENTWISE and node.op not in _MOVES_ONLY and _needs_float32(node, target):
            wide = tuple([s.cast(dtypes.float32) for s in src])
            dtype = node.dtype if node.op in COMPARE else dtypes.float32.vec(node.dtype.count)
            new[node] = mk(node.op, dtype, wide, node.arg).cast(node.dtype)
        elif src != node.src:
            new[node] = mk(node.op, node.dtype, src, node.arg)
    return new.get(sink, sink)


def _needs_float32(node: UOp, target: Target) -> bool:
    return any(s.dtype.is_narrow_float and not target.supports(node.op, s.dtype) for s in node.src)
