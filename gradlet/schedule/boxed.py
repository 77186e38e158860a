"""Whether a GPU's copy engine can bring a factor of a product: 16-bit floats in memory, rows at multiples of 16 bytes.

Attention on matrix units computes nothing on the way to queries, keys and values. This is asked of the tensor graph,
before two products become one kernel, because nothing takes that back later.
"""

from __future__ import annotations

from collections.abc import Collection
from math import prod
from typing import TYPE_CHECKING, Final

from gradlet.base.dtype import dtypes
from gradlet.graph.node import UOp, mk
from gradlet.ops.op import MOVEMENT, Op
from gradlet.schedule.affineviews import affine_view
from gradlet.schedule.moves import chain_to, replay, root_of

if TYPE_CHECKING:
    from gradlet.schedule.fuse import Search

GRAIN: Final = 8  # elements of 16 bits in 16 bytes
MOST_TERMS: Final = 8  # axes of a view along one axis of memory
NARROW: Final = (dtypes.bfloat16, dtypes.float16)


def come_as_boxes(search: Search, factors: Collection[tuple[UOp, int]], inside: Collection[int]) -> bool:
    """Whether all of these can be brought, and are of one type.

    Args:
        search: knows what is stored.
        factors: each with its axis along which elements have to lie side by side.
        inside: the numbers of cells that become one kernel.
    """
    if any(n.op in (Op.VARIABLE, Op.BIND) for n in search.steps.order):
        return False  # how much there is may only be known at launch
    narrow = [(_converted(side), axis) for side, axis in factors]
    kinds = {side.dtype for side, _ in narrow if side is not None}
    if len(kinds) != 1 or not kinds <= set(NARROW):
        return False
    return all(side is not None and _is_box(search, side, axis, inside) for side, axis in narrow)


def _converted(side: UOp) -> UOp | None:
    """What a factor in float32 is a conversion of, under the movement ops above it."""
    bottom = root_of(side)
    if bottom.op is not Op.CAST or bottom.dtype is not dtypes.float32:
        return None
    return replay(chain_to(side, bottom), bottom.src[0])


def _is_box(search: Search, node: UOp, along: int, inside: Collection[int]) -> bool:
    while True:
        below = node
        while below.op in MOVEMENT:
            below = below.src[0]
        if below.op is Op.CAST:  # it is stored as it is, converted
            node = node.substitute({below: mk(Op.CONTIGUOUS, below.dtype, (below,))})
        view = affine_view(node, MOST_TERMS)
        base = view.base.src[0] if below.op is Op.CAST and view.base.op is Op.CONTIGUOUS else view.base
        steps = [0] * len(view.shape)
        for number, place in enumerate(view.places):
            beyond = prod(base.shape[number + 1 :])
            if place.inside is not None:
                return False
            for axis, step in place.terms:
                steps[axis] += step * beyond
        others = [step for axis, step in enumerate(steps) if axis != along]
        if steps[along] != 1 or any(step < 0 or step % GRAIN for step in others):
            return False
        if base.op is Op.BUFFER:
            return True
        if base.op is not Op.RESHAPE:
            home = search.home.get(base)
            return home is not None and home not in inside and search.cells[home].root is base
        # Heads that repeat: what lies below is another view, of which rows are the same.
        node, along = base.src[0], len(base.src[0].shape) - 1
        if not node.shape or not base.shape or node.shape[-1] != base.shape[-1]:
            return False
