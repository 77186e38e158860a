"""One kernel of the partition, lowered: its loops are opened, then each output is stored."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Final

from gradlet.base.dtype import dtypes
from gradlet.graph.extents import Extents
from gradlet.graph.node import UOp, mk
from gradlet.graph.rewrite import rewrite
from gradlet.ops.op import MOVEMENT, KernelArg, Op
from gradlet.rules.sets import INDEX_MATH
from gradlet.schedule.blocks import Frame, cut_nest
from gradlet.schedule.lowered import Lowered, finish
from gradlet.schedule.ranges import Loop, Lowering, RegionError

_BUFFER: Final = Op.BUFFER
ROTATED: Final = 4  # reductions inside one another in a kernel of two products with a softmax between them


def reduce_levels(outputs: Sequence[UOp], stops: Callable[[UOp], bool]) -> dict[UOp, int]:
    """For every REDUCE_AXES inside a kernel, how many reduces lie below it inside that kernel."""
    order: list[UOp] = []
    seen = set(outputs)
    stack = list(outputs)
    while stack:
        node = stack.pop()
        order.append(node)
        for source in node.src:
            if source not in seen and not stops(source):
                seen.add(source)
                stack.append(source)
    order.sort(key=lambda n: n.uid)
    levels: dict[UOp, int] = {}
    for node in order:
        level = max([levels[s] for s in node.src if s in levels], default=0)
        levels[node] = level + 1 if node.op is Op.REDUCE_AXES else level
    return levels


def _feeds(levels: Mapping[UOp, int]) -> bool:
    """Whether the kernel has a product of two factors inside another one: what is hidden decides what is run there."""
    products = [
        level
        for node, level in levels.items()
        if node.op is Op.REDUCE_AXES
        and node.arg.op is Op.ADD
        and node.src[0].op is Op.MUL
        and all(s.op in MOVEMENT for s in node.src[0].src)
    ]
    return len(set(products)) > 1


def lower_kernel(
    outputs: Sequence[UOp],
    places: Mapping[UOp, UOp],
    axis_loops: Callable[[UOp, int], tuple[Loop, ...]],
    nest: Sequence[Loop] = (),
    frame: Frame | None = None,
    sizes: Mapping[UOp, Extents] = MappingProxyType({}),
    counts: bool = False,
) -> Lowered:
    """The kernel that computes `outputs` into their places.

    Args:
        outputs: nodes of the tensor graph; each is in `places`.
        places: where every node that lives in memory is.
        axis_loops: see `Lowering`.
        nest: output loops in nesting order, outermost first; loops not listed come after these.
        frame: the region that it is a body of.
        sizes: how far outputs are needed that are not needed in full.
        counts: whether positions are counted, not read, whatever the kernel is.

    Raises:
        RegionError: a block needs what another block makes.
    """
    own = frozenset(outputs)
    lowering = Lowering(places, axis_loops, own, frame)
    lowering.levels = reduce_levels(outputs, lambda n: n in places and n not in own)
    # Scores, their maximum, the sum of exponentials, the weighted sum: what is hidden from whom decides what is run.
    lowering.counts = counts or max(lowering.levels.values(), default=0) >= ROTATED or _feeds(lowering.levels)
    for node in lowering.levels:
        if node.op is Op.SCAN:
            along = [loop for loop in lowering.axis_loops(node, node.arg.axis) if loop[1] != 1]
            if any(loop in lowering.loops for loop in along):
                raise RegionError("a running combination goes through all blocks")
            lowering.ordered.update(along)
    for node in outputs:
        lowering.param(buffer_below(places[node]))
    lowering.limit_loops(sizes)
    lowering.open_loops(nest if frame is None else cut_nest(nest, frame.blocks))
    stores = [store for node in outputs for store in lowering.store(node)]
    sink = mk(Op.SINK, dtypes.void, tuple(stores), KernelArg(""))
    simple = rewrite(sink, INDEX_MATH)
    assert isinstance(simple, UOp)
    return finish(simple, list(lowering.params), list(lowering.variables), lowering.last)


def buffer_below(place: UOp) -> UOp:
    """The BUFFER under movement ops."""
    while place.op is not _BUFFER:
        place = place.src[0]
    return place
