"""Reductions before the loops are scheduled: merge nested ones, widen accumulators."""

from __future__ import annotations

from typing import Final

from gradlet.base.dtype import accumulator, dtypes
from gradlet.graph.node import UOp, mk
from gradlet.ops.op import Op
from gradlet.optimize.analysis import kernel_order, use_counts

# Members of an enum are slow to reach through their class.
_ADD: Final = Op.ADD
_CONST: Final = Op.CONST
_MAX: Final = Op.MAX
_MIN: Final = Op.MIN
_REDUCE: Final = Op.REDUCE
_WHERE: Final = Op.WHERE


def merge_nested(sink: UOp) -> UOp:
    """`sum_j(sum_k(x))` becomes one REDUCE over j and k, also where a guard zeroes the inner sum."""
    order = kernel_order(sink)
    if not any(n.op is _REDUCE and (n.src[0].op is _REDUCE or n.src[0].op is _WHERE) for n in order):
        return sink
    uses = use_counts(order)
    new: dict[UOp, UOp] = {}
    changed = new.keys()
    for node in order:
        made = node
        if not changed.isdisjoint(node.src):
            made = mk(node.op, node.dtype, tuple([new.get(s, s) for s in node.src]), node.arg)
        if node.op is _REDUCE:
            made = _merged(node, made, uses)
        if made is not node:
            new[node] = made
    return new.get(sink, sink)


def _merged(old: UOp, node: UOp, uses: dict[UOp, int]) -> UOp:
    value = node.src[0]
    before = old.src[0]
    if before.op is _REDUCE and value.op is _REDUCE and value.arg == node.arg and uses[before] == 1:
        return mk(_REDUCE, node.dtype, (value.src[0], *value.src[1:], *node.src[1:]), node.arg)
    if node.arg.op is _ADD and before.op is _WHERE and uses[before] == 1 and is_zero(value.src[2]):
        condition, inner, zero = value.src
        single = before.src[1].op is _REDUCE and uses[before.src[1]] == 1
        if single and inner.op is _REDUCE and inner.arg == node.arg:
            guarded = condition.where(inner.src[0], zero)
            return mk(_REDUCE, node.dtype, (guarded, *inner.src[1:], *node.src[1:]), node.arg)
    return node


def is_zero(node: UOp) -> bool:
    """Whether a node is the constant 0."""
    return node.op is _CONST and node.arg == 0


def widen_accumulators(sink: UOp) -> UOp:
    """narrow floats are accumulated in float32, bools as bytes."""
    new: dict[UOp, UOp] = {}
    for node in kernel_order(sink):
        if not node.src:
            continue
        src = tuple([new.get(s, s) for s in node.src])
        if node.op is _REDUCE and node.dtype.is_bool:
            op = _MAX if node.arg.op in (_ADD, _MAX) else _MIN
            wide = mk(_REDUCE, dtypes.uint8, (src[0].cast(dtypes.uint8), *src[1:]), node.arg._replace(op=op))
            new[node] = wide.ne(0)
        elif node.op is _REDUCE and (wider := accumulator(node.dtype)) is not node.dtype:
            new[node] = mk(_REDUCE, wider, (src[0].cast(wider), *src[1:]), node.arg).cast(node.dtype)
        elif src != node.src:
            new[node] = mk(node.op, node.dtype, src, node.arg)
    return new.get(sink, sink)
