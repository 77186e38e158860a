"""Chains of writes made shorter before they are placed: reads go past writes that do not reach them, and writes that
are written over before anybody reads them are left out."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Final

from gradlet.base.dtype import dtypes
from gradlet.graph.node import UOp, mk, toposort
from gradlet.ops.op import MOVEMENT, Op, PadArg, ShrinkArg, batch_axes
from gradlet.schedule.boxes import Box, box_of, covers, disjoint, layout_of, row_box
from gradlet.schedule.moves import BIJECTIVE, chain_to, expand_scalar, materialised_shape, replay, root_of, unmove

_WRITE_BIT: Final = 1 << Op.WRITE
# A read is compared with at most this many writes before and after it; with the next one it is taken to have to do.
MOST_VERSIONS: Final = 64


def scatter_of(write: UOp) -> UOp | None:
    """The SCATTER whose result a WRITE stores exactly where that SCATTER's target is: only its rows change."""
    base, view, value = write.src
    scatter = root_of(value)
    if scatter.op is not Op.SCATTER or root_of(scatter.src[0]) is not root_of(base) or root_of(base) is not base:
        return None
    unchanged = layout_of(replay(chain_to(value, scatter), scatter.src[0]), base)
    return scatter if unchanged is not None and unchanged == layout_of(view, base) else None


def written_box(write: UOp) -> Box:
    """The elements of its base that a WRITE changes."""
    scatter = scatter_of(write)
    if scatter is not None and not scatter.arg.batch:
        return row_box(scatter.src[0], scatter.src[1], write.src[0])
    return box_of(write.src[1], write.src[0])


def read_box(node: UOp, operand: UOp, bottom: UOp) -> Box:
    """The elements of `bottom` that a node reads through one of its operands."""
    if (
        node.op is Op.GATHER
        and root_of(node.src[0]) is bottom
        and operand is not node.src[1]
        and not batch_axes(node.arg)
    ):
        return row_box(operand, node.src[1], bottom)
    return box_of(operand, bottom)


def shorten(roots: Sequence[UOp], readers: Collection[UOp]) -> list[UOp]:
    """The same values from shorter chains of writes.

    Args:
        roots: all graphs that know each other's nodes.
        readers: those of them whose values somebody sees.

    Returns:
        A node for each root.
    """
    if not any(r.mask & _WRITE_BIT for r in roots):
        return list(roots)
    passed = dict(zip(roots, _pass_by(roots), strict=True))
    shorter = _drop_covered(list(passed.values()), {passed[r] for r in readers})
    return [shorter[passed[r]] for r in roots]


def _pass_by(roots: Sequence[UOp]) -> list[UOp]:
    """Every read of elements that a write does not change, as a read of what was there before."""
    new: dict[UOp, UOp] = {}
    boxes: dict[UOp, Box] = {}
    for node in toposort(roots):
        src = tuple([new[s] for s in node.src])
        if node.op is Op.WRITE:
            view = replay(chain_to(node.src[1], node.src[0]), src[0])
            src = (src[0], view, _oldest(node, src[2], boxes))
        elif node.op not in MOVEMENT and node.mask & _WRITE_BIT:
            src = tuple([_oldest(node, s, boxes, number) for number, s in enumerate(src)])
        new[node] = node if src == node.src else mk(node.op, node.dtype, src, node.arg)
    return [_oldest(r, new[r], boxes) if r.op in MOVEMENT else new[r] for r in roots]


def _oldest(node: UOp, operand: UOp, boxes: dict[UOp, Box], number: int = -1) -> UOp:
    """An operand (by its number) of a node over the oldest version that still has what the node reads."""
    if operand.op not in MOVEMENT and not (node.op is Op.GATHER and number == 0):
        return operand
    bottom = root_of(operand)
    if bottom.op is not Op.WRITE:
        return operand
    by_row = node.op is Op.GATHER and number == 0 and not batch_axes(node.arg)
    box = row_box(operand, node.src[1], bottom) if by_row else box_of(operand, bottom)
    chain = chain_to(operand, bottom)
    oldest = bottom
    for _ in range(MOST_VERSIONS):
        if oldest.op is not Op.WRITE or root_of(oldest.src[0]).op not in (Op.BUFFER, Op.WRITE):
            break
        if oldest not in boxes:
            boxes[oldest] = written_box(oldest)
        if not disjoint(box, boxes[oldest]):
            break
        oldest = oldest.src[0]
    return operand if oldest is bottom else replay(chain, oldest)


def _drop_covered(roots: Sequence[UOp], readers: Collection[UOp]) -> dict[UOp, UOp]:
    """Writes over which another write goes that is their only user are gone."""
    order = toposort(roots)
    read: set[UOp] = {root_of(r) for r in readers}
    bases: dict[UOp, int] = {}
    for node in order:
        if node.op is Op.WRITE:
            read.add(root_of(node.src[2]))
            bases[node.src[0]] = bases.get(node.src[0], 0) + 1
        elif node.op not in MOVEMENT:
            read.update([root_of(s) for s in node.src])
    droppable = {b for b, count in bases.items() if b.op is Op.WRITE and count == 1 and b not in read}
    new: dict[UOp, UOp] = {}
    for node in order:
        src = tuple([new[s] for s in node.src])
        if node.op is Op.WRITE:
            base = src[0]
            chain = chain_to(node.src[1], node.src[0])
            if node.src[0] in droppable:
                box = box_of(replay(chain, base), base)
                while base in droppable and base.op is Op.WRITE and covers(box, written_box(base)):
                    base = base.src[0]
            src = (base, replay(chain, base), src[2])
        changed = node if src == node.src else mk(node.op, node.dtype, src, node.arg)
        if node in droppable:
            droppable.add(changed)
        new[node] = changed
    return {r: new[r] for r in roots}


def read_around(operand: UOp) -> UOp | None:
    """A view of what a WRITE leaves, from what is written and from what was there before outside of the written box.

    No element that the write changes is read from memory, so whoever takes this instead of the view may run before the
    write, after it, or at the same time. That is worth it where the box is small: each element is chosen, and what is
    written is computed once more or read from memory of its own.

    Args:
        operand: movement ops over a WRITE.

    Returns:
        An expression of the same value, or None where the box is no interval of one axis.
    """
    write = root_of(operand)
    if write.op is not Op.WRITE or scatter_of(write) is not None:
        return None
    base, view, value = write.src
    chain = chain_to(view, base)
    cuts = [i for i, moved in enumerate(chain) if moved.op not in BIJECTIVE]
    value = materialised_shape(value, view.shape)
    if not cuts:
        return replay(chain_to(operand, write), unmove(chain, value))
    if len(cuts) > 1 or chain[cuts[0]].op is not Op.SHRINK:
        return None
    box, below = chain[cuts[0]], chain[cuts[0] + 1 :]
    shape = box.src[0].shape
    axes = [a for a, (bounds, size) in enumerate(zip(box.arg.bounds, shape, strict=True)) if bounds != (0, size)]
    if not axes:
        return replay(chain_to(operand, write), unmove(chain, value))
    if len(axes) > 1:
        return None
    low, high = box.arg.bounds[axes[0]]
    # Parts of the axis with their values: what is written, and what lies on either side of it.
    parts = [(low, high, unmove(chain[: cuts[0]], value))]
    parts += [
        (first, last, _interval(replay(below, base), axes[0], first, last))
        for first, last in ((0, low), (high, shape[axes[0]]))
        if first < last
    ]
    result: UOp | None = None
    for first, last, part in reversed(parts):
        pads = tuple([(first, shape[a] - last) if a == axes[0] else (0, 0) for a in range(len(shape))])
        there = mk(Op.PAD, part.dtype, (part,), PadArg(pads))
        if result is None:
            result = there
            continue
        inside = expand_scalar(UOp.const(dtypes.bool, True), part.shape)
        result = mk(Op.WHERE, part.dtype, (mk(Op.PAD, dtypes.bool, (inside,), PadArg(pads)), there, result), None)
    assert result is not None
    return replay(chain_to(operand, write), unmove(below, result))


def _interval(node: UOp, axis: int, low: int, high: int) -> UOp:
    """A part of one axis."""
    bounds = tuple([(low, high) if a == axis else (0, size) for a, size in enumerate(node.shape)])
    return mk(Op.SHRINK, node.dtype, (node,), ShrinkArg(bounds))
