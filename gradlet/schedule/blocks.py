"""Lowering block by block: how a block's number indexes tensors, and where a region's scratch values lie."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from math import prod

from gradlet.graph.node import UOp, mk
from gradlet.ops.op import AxesArg, Op
from gradlet.schedule.moves import reshape
from gradlet.schedule.partition import Blocks, Cut

Loop = tuple[object, int]
AxisLoops = Callable[[UOp, int], tuple[Loop, ...]]


@dataclass(frozen=True)
class Frame:
    """What the bodies of one region share.

    Attributes:
        blocks: how their common loops are cut.
        scratch: BUFFER nodes that stand for scratch arrays, with the elements of one block.
    """

    blocks: Blocks
    scratch: Mapping[UOp, int] = field(default_factory=dict)

    def loops(self) -> list[Loop]:
        """The loops that a block's number decides, outermost first."""
        return [((cut.atom, "block"), cut.outer) for cut in self.blocks.cuts]


def cut_loops(axis_loops: AxisLoops, blocks: Blocks) -> AxisLoops:
    """Loops of an axis, those that are cut as a loop over blocks and a loop inside."""

    cuts: dict[object, Cut] = {cut.atom: cut for cut in blocks.cuts}

    def loops(node: UOp, axis: int) -> tuple[Loop, ...]:
        return tuple(_cut_nest(axis_loops(node, axis), cuts))

    return loops


def cut_nest(nest: Sequence[Loop], blocks: Blocks) -> list[Loop]:
    """The same loops, those that are cut as two."""
    return _cut_nest(nest, {cut.atom: cut for cut in blocks.cuts})


def _cut_nest(nest: Sequence[Loop], cuts: Mapping[object, Cut]) -> list[Loop]:
    result: list[Loop] = []
    for atom, size in nest:
        cut = cuts.get(atom)
        if cut is None:
            result.append((atom, size))
            continue
        if cut.outer > 1:
            result.append(((atom, "block"), cut.outer))
        if cut.inner > 1:
            result.append(((atom, "rest"), cut.inner))
    return result


def scratch_view(node: UOp, buffer: UOp, axis_loops: AxisLoops, blocks: Blocks) -> UOp:
    """The view, shaped like `node`, of a buffer that has the node's blocks one after another."""
    outer = Frame(blocks).loops()
    per_axis = [cut_loops(axis_loops, blocks)(node, axis) for axis in range(len(node.shape))]
    present = [loop for loops in per_axis for loop in loops]
    order = [*[loop for loop in outer if loop in present], *[loop for loop in present if loop not in outer]]
    view = reshape(buffer, tuple([size for _, size in order]))
    back = tuple([order.index(loop) for loop in present])
    if back != tuple(range(len(back))):
        view = mk(Op.PERMUTE, view.dtype, (view,), AxesArg(back))
    return reshape(view, node.shape)


def block_elements(node: UOp, blocks: Blocks) -> int:
    """Elements of a node in one block."""
    return prod(node.shape) // blocks.count
