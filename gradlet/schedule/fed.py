"""Products that are made block by block where they are used keep the conversions of their factors to themselves.

The gradient of attention has products (scores, and the gradient of the weights) whose every element is needed only
where a block of them feeds a sum. For that the loops of all of these products have to be the same loops, which they are
as long as the products share the nodes of their factors (`axes`): so nobody converts factors for one of them alone.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from math import prod
from typing import Final, NamedTuple

from gradlet.base.dtype import dtypes
from gradlet.graph.node import UOp
from gradlet.ops.op import ELEMENTWISE, MOVEMENT, Op
from gradlet.schedule.moves import root_of

_ABOVE: Final = frozenset({Op.CAST, Op.PERMUTE, Op.RESHAPE})


class Fed(NamedTuple):
    """Sums of products that feed one another.

    Attributes:
        products: all of them.
        inner: those that feed others: they, and what is made of them element by element, need no memory.
        between: what is made of them element by element.
    """

    products: set[UOp]
    inner: set[UOp]
    between: set[UOp]


def fed_products(order: Sequence[UOp]) -> Fed:
    """Sums that are stored as they are with a factor in float32 which is made of sums, these, and what else they feed.

    Args:
        order: the nodes of a graph.
    """
    found: set[UOp] = set()
    inner: set[UOp] = set()
    pending: list[UOp] = []
    for node in order:
        if node.op is not Op.CONTIGUOUS:
            continue
        product = node.src[0]
        while product.op in _ABOVE:
            product = product.src[0]
        if is_product(product) and (computed := list(_computed(product))):
            found.add(product)
            pending += computed
    seen = set(pending)
    while pending:
        node = pending.pop()
        if node.op is Op.REDUCE_AXES:
            if is_product(node):
                found.add(node)
                inner.add(node)
            continue
        if node.op in ELEMENTWISE or node.op in MOVEMENT:
            more = [s for s in node.src if s not in seen]
            seen.update(more)
            pending += more
    # What else they feed: the sum of values by the weights that scores become.
    made = set(found)
    for node in order if found else ():
        if node in made or made.isdisjoint(node.src):
            continue
        if is_product(node) and node.src[0] in made and node not in found:
            found.add(node)
        elif node.op in ELEMENTWISE or node.op in MOVEMENT:
            made.add(node)
    return Fed(found, inner, made - found)


def is_product(node: UOp) -> bool:
    """Whether a node is a sum of products of two factors in float32 that both repeat."""
    if node.op is not Op.REDUCE_AXES or node.arg.op is not Op.ADD or node.dtype is not dtypes.float32:
        return False
    terms = node.src[0]
    if terms.op is not Op.MUL or len(node.arg.axes) != 1 or node.arg.limited:
        return False
    return all(prod(root_of(side).shape) < prod(terms.shape) for side in terms.src)


def _computed(product: UOp) -> Iterator[UOp]:
    """The factor of a product that is computed, beside one that is converted."""
    bottoms = list(product.src[0].src)
    for number, side in enumerate(bottoms):
        while side.op in MOVEMENT:
            side = side.src[0]
        bottoms[number] = side
    for one, other in (bottoms, bottoms[::-1]):
        converted = other.op is Op.CAST and other.src[0].dtype.is_narrow_float
        if converted and one.op in ELEMENTWISE and one.op is not Op.CAST:
            yield one
