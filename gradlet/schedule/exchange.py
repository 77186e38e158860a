"""Sums in another order: the mean that the gradient of a softmax needs is taken from the result of attention.

The gradient of a softmax subtracts `sum over keys of p * g` from each of its elements. In attention `g` is a product of
its own, `sum over columns of dO * V`, and `sum over keys of p * V` is the result `O`. So the same number is `sum over
columns of dO * O`, which asks for no element of `p` or `g`: with it, everything that is as large as all pairs of
queries and keys can be computed again where it is needed (`feeding`).
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Final

from gradlet.base.dtype import dtypes
from gradlet.graph.node import UOp, mk, toposort
from gradlet.ops.op import Op, ReduceAxesArg
from gradlet.schedule.clean import rebuild
from gradlet.schedule.moves import expand_to, reshape

# Pairs of queries and keys are worth no memory where they are so many times as many as elements of the queries.
LARGE: Final = 4
_ASKED: Final = frozenset({Op.REDUCE_AXES})


def exchange_sums(root: UOp) -> UOp:
    """The graph with every such mean as a sum over columns."""
    if not root.mask & 1 << Op.EXP:
        return root
    order = toposort((root,))
    there = set(order)

    def change(node: UOp, src: tuple[UOp, ...]) -> UOp | None:
        if node.arg.op is not Op.ADD or src[0].op is not Op.MUL:
            return None
        if node.arg.limited or len(node.arg.axes) != 1 or node.dtype is not dtypes.float32:
            return None
        for weights, other in (src[0].src, src[0].src[::-1]):
            if weights.op is Op.FDIV and weights.src[0].op is Op.EXP and other.op is Op.REDUCE_AXES:
                return _exchanged(weights, other, node.arg.axes[0], there)
        return None

    return rebuild(root, change, _ASKED, order)


def _exchanged(weights: UOp, product: UOp, keys: int, there: Collection[UOp]) -> UOp | None:
    """`sum over keys of weights * product` by the sum of weighted values; `there`: nodes that are computed anyway."""
    arg = product.arg
    if arg.op is not Op.ADD or arg.limited or len(arg.axes) != 1 or product.src[0].op is not Op.MUL:
        return None
    (columns,) = arg.axes
    terms = product.src[0]
    along = keys + (columns <= keys)
    if terms.shape[along] < LARGE * terms.shape[columns]:
        return None
    for gradient, values in (terms.src, terms.src[::-1]):
        if gradient.op is not Op.EXPAND or gradient.src[0].shape[along] != 1:
            continue
        kept = (*terms.shape[:along], *terms.shape[along + 1 :])
        spread = reshape(weights, (*weights.shape[:columns], 1, *weights.shape[columns:]))
        spread = expand_to(spread, terms.shape)
        result = _result(spread, values, along, there)
        before = gradient.src[0]
        own = expand_to(reshape(before, (*before.shape[:along], *before.shape[along + 1 :])), kept)
        both = mk(Op.MUL, product.dtype, (own, result))
        return mk(Op.REDUCE_AXES, product.dtype, (both,), ReduceAxesArg(Op.ADD, (columns - (along < columns),)))
    return None


def _result(weights: UOp, values: UOp, along: int, there: Collection[UOp]) -> UOp:
    """The weighted values, as the graph has them already if it does."""
    made = [
        mk(Op.REDUCE_AXES, values.dtype, (mk(Op.MUL, values.dtype, factors),), ReduceAxesArg(Op.ADD, (along,)))
        for factors in ((weights, values), (values, weights))
    ]
    return next((node for node in made if node in there), made[0])
