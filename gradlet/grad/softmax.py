"""The gradient of a softmax as a whole: `p * (g - sum(g * p))`, which needs nothing of the forward pass but `p`.

Op by op, the quotient and the exponential would each keep a value of the size of `p` for the backward pass.

Rows that are hidden altogether may have 1 in place of their sum (`safe_softmax`): `p` is 0 there, and so is what the
formula gives.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence

from gradlet.graph.node import UOp, mk
from gradlet.ops.op import Op, ReduceAxesArg, ShapeArg


def softmax_inputs(order: Sequence[UOp], wanted: Collection[UOp]) -> Mapping[UOp, tuple[UOp, ReduceAxesArg]]:
    """The nodes that are `exp(z) / sum(exp(z))`, with `z` and what is summed how.

    Args:
        order: the nodes of a graph.
        wanted: nodes whose own gradient is asked for: a softmax that hides one of them is left out.
    """
    found: dict[UOp, tuple[UOp, ReduceAxesArg]] = {}
    for node in order:
        if node.op is not Op.FDIV or node.src[0].op is not Op.EXP:
            continue
        power, below = node.src
        inside = {power}
        while below.op in (Op.EXPAND, Op.RESHAPE) or _is_guarded(below, power):
            inside.add(below)
            below = below.src[2 if below.op is Op.WHERE else 0]
        inside.add(below)
        if below.op is not Op.REDUCE_AXES or below.arg.op is not Op.ADD or below.src[0] is not power:
            continue
        if inside.isdisjoint(wanted) and _is_spread_back(node.src[1], below):
            found[node] = power.src[0], below.arg
    return found


def _is_spread_back(denominator: UOp, total: UOp) -> bool:
    """Whether each element of the denominator is the sum over its own row."""
    axes = total.arg.axes
    kept = tuple([1 if a in axes else size for a, size in enumerate(total.src[0].shape)])
    source = _without_spread(denominator)
    if source.shape != kept:
        return False
    source = source.src[2] if source.op is Op.WHERE else source
    return source is total or (source.op is Op.RESHAPE and source.src[0] is total)


def _is_guarded(node: UOp, power: UOp) -> bool:
    """Whether a denominator is 1 for rows whose maximum is minus infinity, so that their exponentials are all 0."""
    if node.op is not Op.WHERE or not _is_constant(node.src[1], 1.0) or power.src[0].op is not Op.ADD:
        return False
    hidden, exponent, sums = node.src[0], power.src[0], _spread_from(node.src[2])
    if hidden.op is not Op.CMPEQ or not _is_constant(hidden.src[1], -math.inf) or sums.op is not Op.REDUCE_AXES:
        return False
    top = _spread_from(hidden.src[0])
    if top.op is not Op.REDUCE_AXES or top.arg != sums.arg._replace(op=Op.MAX):
        return False
    return any(
        _without_mark(top.src[0]) is _without_mark(values) and _is_finite_shift(shift, hidden)
        for values, shift in (exponent.src, exponent.src[::-1])
    )


def _is_finite_shift(shift: UOp, hidden: UOp) -> bool:
    """Whether what is added is less the maximum, or nothing for rows that are hidden."""
    node = _without_spread(shift)
    if node.op is not Op.MUL or not any(_is_constant(s, -1.0) for s in node.src):
        return False
    top = next(s for s in node.src if not _is_constant(s, -1.0))
    return top.op is Op.WHERE and top.src[0] is hidden and _is_constant(top.src[1], 0.0) and top.src[2] is hidden.src[0]


def _without_mark(node: UOp) -> UOp:
    while node.op is Op.DETACH:
        node = node.src[0]
    return node


def _without_spread(node: UOp) -> UOp:
    return node.src[0] if node.op is Op.EXPAND else node


def _spread_from(node: UOp) -> UOp:
    """What a row's value with an axis of size 1 in place of the row is made of."""
    node = _without_spread(node)
    return _without_mark(node.src[0] if node.op is Op.RESHAPE else node)


def _is_constant(node: UOp, value: float) -> bool:
    node = _without_spread(node)
    return node.op is Op.CONST and bool(node.arg == value)


def softmax_gradient(node: UOp, sum_arg: ReduceAxesArg, gradient: UOp) -> UOp:
    """The gradient of `z`, given that of the softmax `node`."""
    product = gradient * node
    total = mk(Op.REDUCE_AXES, node.dtype, (product,), sum_arg)
    kept = tuple([1 if a in sum_arg.axes else size for a, size in enumerate(node.shape)])
    total = mk(Op.RESHAPE, node.dtype, (total,), ShapeArg(kept))
    if kept != node.shape:
        total = mk(Op.EXPAND, node.dtype, (total,), ShapeArg(node.shape))
    return node * (gradient + total * -1.0)
