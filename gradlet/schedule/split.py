"""Large reductions with few results are cut in two, so that all cores have a part of the sum to do."""

from __future__ import annotations

from collections.abc import Callable
from math import prod

from gradlet.graph.node import UOp, mk, toposort
from gradlet.ops.op import Op, PadArg, ReduceAxesArg, ShapeArg
from gradlet.schedule.clean import HAS_REDUCES, REDUCES, find_devices, rebuild
from gradlet.schedule.columns import is_for_lanes
from gradlet.schedule.moves import reshape
from gradlet.target.target import Target

# A result that combines fewer elements is not worth a second kernel.
MIN_REDUCED = 1 << 16
# Parts for each core: enough to even out unequal speed.
PARTS_PER_CORE = 4


def split_reductions(root: UOp, target_of: Callable[[str], Target], default_device: str) -> UOp:
    """The graph with every long reduction that gives few results as partial results and their combination."""
    if not root.mask & HAS_REDUCES:
        return root
    order = toposort((root,))
    large = {n for n in order if n.op in REDUCES and _is_large(n)}
    if not large:
        return root
    devices = find_devices(order)

    def change(node: UOp, src: tuple[UOp, ...]) -> UOp | None:
        if node not in large:
            return None
        same = mk(node.op, node.dtype, src, node.arg)
        target = target_of(devices.get(node, default_device))
        return None if is_for_lanes(same, target) else split(same, target.cores)

    return rebuild(root, change, REDUCES, order)


def _is_large(node: UOp) -> bool:
    results = prod(node.shape)
    return results > 0 and not node.arg.limited and prod(node.src[0].shape) // results >= MIN_REDUCED


def split(node: UOp, cores: int) -> UOp:
    """One reduction in two steps, when there are fewer results than cores."""
    results = prod(node.shape)
    if results >= cores:
        return node
    wanted = -(-cores * PARTS_PER_CORE // results)
    source = node.src[0]
    axes = node.arg.axes
    if len(axes) == len(source.shape) and max(source.shape) < cores:
        source = reshape(source, (prod(source.shape),))
        axes = (0,)
    axis = max(axes, key=lambda a: (min(source.shape[a], wanted), -a))
    size = source.shape[axis]
    parts = next((p for p in range(min(wanted, size), 1, -1) if size % p == 0), 1)
    if parts < cores and size > wanted:
        if node.arg.op is not Op.ADD:
            return node
        # Zeros make the size a multiple.
        parts = wanted
        pads = tuple([(0, -size % parts) if a == axis else (0, 0) for a in range(len(source.shape))])
        source = mk(Op.PAD, source.dtype, (source,), PadArg(pads))
        size = source.shape[axis]
    if parts < 2:
        return node
    shape = (*source.shape[:axis], parts, size // parts, *source.shape[axis + 1 :])
    cut = mk(Op.RESHAPE, source.dtype, (source,), ShapeArg(shape))
    inner = tuple(sorted([axis + 1, *[a if a < axis else a + 1 for a in axes if a != axis]]))
    partial = mk(Op.REDUCE_AXES, node.dtype, (cut,), ReduceAxesArg(node.arg.op, inner))
    left = axis - sum(a < axis for a in axes)
    return mk(Op.REDUCE_AXES, node.dtype, (partial,), ReduceAxesArg(node.arg.op, (left,)))
