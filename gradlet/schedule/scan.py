"""Long running combinations of few rows are cut in blocks that run side by side, each from what came before it."""

from __future__ import annotations

from collections.abc import Callable
from math import prod
from typing import Final

from gradlet.graph.node import UOp, mk, toposort
from gradlet.ops.op import Op, PadArg, ReduceAxesArg, ScanArg, ShapeArg, ShrinkArg
from gradlet.schedule.clean import find_devices, rebuild
from gradlet.target.target import Target

# A shorter axis is done before two more kernels have started.
MIN_SIZE: Final = 1 << 14
# Blocks for each core: some of them side by side on one core hide each other's latency.
BLOCKS_PER_CORE: Final = 8
_SCAN: Final = 1 << Op.SCAN
_SCANS: Final = frozenset({Op.SCAN})


def split_scans(root: UOp, target_of: Callable[[str], Target], default_device: str) -> UOp:
    """The graph with every long SCAN of few rows as block totals, a SCAN of these, and a SCAN of each block."""
    if not root.mask & _SCAN:
        return root
    order = toposort((root,))
    if not any(_is_long(n) for n in order):
        return root
    devices = find_devices(order)

    def change(node: UOp, src: tuple[UOp, ...]) -> UOp | None:
        if not _is_long(node):
            return None
        same = mk(node.op, node.dtype, src, node.arg)
        return split(same, target_of(devices.get(node, default_device)).cores)

    return rebuild(root, change, _SCANS, order)


def _is_long(node: UOp) -> bool:
    # What a linear recurrence makes of a block is a pair, which would be read and computed twice.
    return node.op is Op.SCAN and node.arg.op is not Op.MULADD and node.shape[node.arg.axis] >= MIN_SIZE


def split(node: UOp, cores: int) -> UOp:
    """One SCAN in three steps, when there are too few rows to keep every core busy."""
    op, axis, exclusive = node.arg
    shape = node.shape
    size = shape[axis]
    rows = prod(shape) // size
    blocks = -(-cores * BLOCKS_PER_CORE // max(1, rows))
    if not rows or blocks < 2:
        return node
    source, start = node.src
    length = -(-size // blocks)
    # What is added at the end only reaches the total of the last block, which nobody needs.
    if blocks * length != size:
        pads = tuple([(0, blocks * length - size) if a == axis else (0, 0) for a in range(len(shape))])
        source = mk(Op.PAD, node.dtype, (source,), PadArg(pads))
    whole = source.shape
    cut = mk(Op.RESHAPE, node.dtype, (source,), ShapeArg((*shape[:axis], blocks, length, *shape[axis + 1 :])))
    totals = mk(Op.REDUCE_AXES, node.dtype, (cut,), ReduceAxesArg(op, (axis + 1,)))
    before = mk(Op.SCAN, node.dtype, (totals, start), ScanArg(op, axis, True))
    result = mk(Op.SCAN, node.dtype, (cut, before), ScanArg(op, axis + 1, exclusive))
    result = mk(Op.RESHAPE, node.dtype, (result,), ShapeArg(whole))
    every = tuple([(0, s) for s in shape])
    return result if whole == shape else mk(Op.SHRINK, node.dtype, (result,), ShrinkArg(every))
