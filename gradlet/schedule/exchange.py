"""Sums in another order: the mean that the gradient of a softmax needs is taken from the result of attention.

The gradient of a softmax subtracts `sum over keys of p * g` from each of its elements. In attention `g` is a product of
its own, `sum over columns of dO * V`, and `sum over keys of p * V` is the result `O`. So the same number is `sum over
columns of dO * O`, which asks for no element of `p` or `g`: with it, everything that is as large as all pairs of
queries and keys can be computed again where it is needed (`feeding`).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import Final

from gradlet.base.dtype import dtypes
from gradlet.graph.node import UOp, mk, toposort
from gradlet.ops.op import ELEMENTWISE, Op, ReduceAxesArg
from gradlet.schedule.clean import find_devices, rebuild
from gradlet.schedule.moves import expand_to, reshape
from gradlet.target.target import Target

# Pairs of queries and keys are worth no memory where they are so many times as many as elements of the queries.
LARGE: Final = 4
_WHOLE: Final = frozenset({Op.RESHAPE, Op.PERMUTE, Op.EXPAND})
_ASKED: Final = frozenset({Op.REDUCE_AXES})


def exchange_sums(root: UOp, target_of: Callable[[str], Target], default_device: str) -> UOp:
    """The graph with every such mean as a sum over columns, where pairs may go by blocks near a core."""
    if not root.mask & 1 << Op.EXP:
        return root
    order = toposort((root,))
    there = set(order)
    means = [found for n in order if n.op is Op.REDUCE_AXES and (found := _mean(n)) is not None]
    means = [mean for mean in means if _has_pairs(mean[1], mean[2])]
    devices = find_devices(order) if means else {}
    means = [mean for mean in means if target_of(devices.get(mean[0], default_device)).kind == "cpu"]
    if not means:
        return root
    weighing = {weights for weights, _, _ in means}
    fed = _fed([product for _, product, _ in means], order)
    shared = [node for node in _fed(weighing, order) if len(node.arg.axes) > 1]
    fed.update(shared)

    def change(node: UOp, src: tuple[UOp, ...]) -> UOp | None:
        changed = node if src is node.src else mk(node.op, node.dtype, src, node.arg)
        mean = _mean(changed)
        if mean is not None and mean[0] in weighing:
            return _exchanged(*mean, there)
        return _stored(changed) if node in fed else None

    return rebuild(root, change, _ASKED, order)


def _stored(product: UOp) -> UOp:
    """A product that is stored as it is: summed along its longest axis; then along others (heads that share keys)."""
    axes, terms = product.arg.axes, product.src[0]
    along = max(axes, key=lambda axis: terms.shape[axis])
    if len(axes) == 1 or product.arg.limited:
        return mk(Op.CONTIGUOUS, product.dtype, (product,))
    inner = mk(Op.REDUCE_AXES, product.dtype, (terms,), ReduceAxesArg(Op.ADD, (along,)))
    rest = tuple([axis - (axis > along) for axis in axes if axis != along])
    stored = mk(Op.CONTIGUOUS, product.dtype, (inner,))
    return mk(Op.REDUCE_AXES, product.dtype, (stored,), ReduceAxesArg(Op.ADD, rest))


def _mean(node: UOp) -> tuple[UOp, UOp, int] | None:
    """The weights of a softmax and the product that a sum takes the mean of, and its axis; None if it is none."""
    if node.arg.op is not Op.ADD or node.src[0].op is not Op.MUL:
        return None
    if node.arg.limited or len(node.arg.axes) != 1 or node.dtype is not dtypes.float32:
        return None
    for weights, other in (node.src[0].src, node.src[0].src[::-1]):
        if weights.op is Op.FDIV and weights.src[0].op is Op.EXP and other.op is Op.REDUCE_AXES:
            return weights, other, node.arg.axes[0]
    return None


def _has_pairs(product: UOp, keys: int) -> bool:
    """Whether a product of two factors has so many elements along the keys that they are worth no memory."""
    arg = product.arg
    if arg.op is not Op.ADD or arg.limited or len(arg.axes) != 1 or product.src[0].op is not Op.MUL:
        return False
    terms, (columns,) = product.src[0], arg.axes
    return bool(terms.shape[keys + (columns <= keys)] >= LARGE * terms.shape[columns])


def _fed(products: Collection[UOp], order: Sequence[UOp]) -> set[UOp]:
    """The products that have a factor which is made of one of these element by element.

    They are stored as they are: what else is done to a result (turning the halves of each head back, say) would have
    the sum run for several elements of its own, which no blocks could share.
    """
    inside, found = set(products), set[UOp]()
    for node in order:
        if inside.isdisjoint(node.src):
            continue
        if node.op in ELEMENTWISE or node.op in _WHOLE:
            inside.add(node)
        elif node.op is Op.REDUCE_AXES and node.src[0].op is Op.MUL and any(s.op is Op.EXPAND for s in node.src[0].src):
            found.add(node)
    return found


def _exchanged(weights: UOp, product: UOp, keys: int, there: Collection[UOp]) -> UOp | None:
    """`sum over keys of weights * product` by the sum of weighted values; `there`: nodes that are computed anyway."""
    if not _has_pairs(product, keys):
        return None
    (columns,) = product.arg.axes
    terms = product.src[0]
    along = keys + (columns <= keys)
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
