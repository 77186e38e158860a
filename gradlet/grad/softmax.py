"""The gradient of a softmax as a whole: `p * (g - sum(g * p))`, which needs nothing of the forward pass but `p`.

Op by op, the quotient and the exponential would each keep a value of the size of `p` for the backward pass.
"""

from __future__ import annotations

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
        while below.op in (Op.EXPAND, Op.RESHAPE):
            inside.add(below)
            below = below.src[0]
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
    if denominator.op is not Op.EXPAND:
        return denominator.op is Op.RESHAPE and denominator.shape == kept and denominator.src[0] is total
    source = denominator.src[0]
    return source.shape == kept and (source is total or (source.op is Op.RESHAPE and source.src[0] is total))


def softmax_gradient(node: UOp, sum_arg: ReduceAxesArg, gradient: UOp) -> UOp:
    """The gradient of `z`, given that of the softmax `node`."""
    product = gradient * node
    total = mk(Op.REDUCE_AXES, node.dtype, (product,), sum_arg)
    kept = tuple([1 if a in sum_arg.axes else size for a, size in enumerate(node.shape)])
    total = mk(Op.RESHAPE, node.dtype, (total,), ShapeArg(kept))
    if kept != node.shape:
        total = mk(Op.EXPAND, node.dtype, (total,), ShapeArg(node.shape))
    return node * (gradient + total * -1.0)
