"""Along which loops a step reads exactly the part of an operand that the same iteration of its producer made."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from gradlet.graph.node import UOp
from gradlet.ops.op import ELEMENTWISE, Op, batch_axes
from gradlet.schedule.axes import Axes, Loop
from gradlet.schedule.cells import Atoms

# The loops that make up the index of an axis, outermost first.
AxisLoops = tuple[Loop, ...]
# Stands for the loop of a part of an index that is no loop alone, but something else of as many values.
UNKNOWN: Final = -1


def aligned_atoms(operand: UOp, source: UOp, step: UOp, axes: Axes) -> Atoms:
    """The atoms of `source` that its reader `step` indexes with the loop of the very same atom, and with nothing else.

    Args:
        operand: the source of `step` that lies over `source` by movement ops.
    """
    found = _same_loops(_loops_of_operand(operand, step, axes), operand, source, axes)
    if source.op is Op.WRITE:  # its loops are those of the view, which need not be those of what it changes
        base, view, _ = source.src
        found &= _same_loops(axes.dims(view), view, base, axes)
    return found


def overwritten_atoms(place: UOp, version: UOp, step: UOp, axes: Axes) -> Atoms:
    """The atoms along which an iteration of an in-place step changes only what the same iteration of `version` made.

    Args:
        place: the view of `version` that `step` goes over.
    """
    loops: list[AxisLoops] = list(axes.dims(place if step.op is Op.WRITE else step))
    if step.op is Op.SCATTER:
        loops[step.arg.batch] = _unknown(step.shape[step.arg.batch])
    return _same_loops(loops, place, version, axes)


def _same_loops(needs: Sequence[AxisLoops], operand: UOp, source: UOp, axes: Axes) -> Atoms:
    """The atoms that index an axis of `source` and are its own, given the loops that index `operand`."""
    node = operand
    while node is not source:
        needs = _through(node, needs)
        node = node.src[0]
    found: set[int] = set()
    for mine, own in zip(needs, axes.dims(source), strict=True):
        if mine == own:  # mostly
            found.update([atom for atom, size in own if size > 1])
            continue
        for part, loop in zip(_regroup(mine, [size for _, size in own]), own, strict=True):
            if part == (loop,):
                found.add(loop[0])
    return frozenset(found)


def _unknown(size: int) -> AxisLoops:
    return ((UNKNOWN, size),) if size != 1 else ()


def _loops_of_operand(operand: UOp, step: UOp, axes: Axes) -> list[AxisLoops]:
    """The loops that index each axis of the operand."""
    if step.op in ELEMENTWISE:
        return list(axes.dims(step))
    if step.op is Op.GATHER and operand is step.src[0]:
        dims, batch = axes.dims(step), batch_axes(step.arg)
        return [*dims[:batch], _unknown(operand.shape[batch]), *dims[len(step.src[1].shape) :]]
    if step.op is Op.SCATTER:  # its positions are loops of its own
        dims, batch = axes.dims(step), step.arg.batch
        positions = [_unknown(size) for size in step.src[1].shape[batch:]]
        return [*dims[:batch], *positions, *dims[batch + 1 :]][: len(operand.shape)]
    if step.op is Op.WRITE and len(operand.shape) == len(step.src[1].shape):
        return list(axes.dims(step.src[1]))
    loops: list[AxisLoops] = list(axes.dims(operand))
    if step.op is Op.SCAN and operand is not step.src[1]:
        loops[step.arg.axis] = _unknown(operand.shape[step.arg.axis])
    elif step.op is Op.LARGEST:
        loops[-1] = _unknown(operand.shape[-1])  # any place along the row may be read
    elif step.op is Op.MERGE:
        loops[-2:] = [_unknown(size) for size in operand.shape[-2:]]
    return loops


def _through(node: UOp, needs: Sequence[AxisLoops]) -> list[AxisLoops]:
    """The same for the source of a movement op."""
    op, arg = node.op, node.arg
    below = node.src[0].shape
    if op is Op.RESHAPE:
        return _through_reshape(needs, node.shape, below)
    if op is Op.PERMUTE:
        moved = list(needs)
        for need, axis in zip(needs, arg.axes, strict=True):
            moved[axis] = need
        return moved
    if op is Op.EXPAND:
        return [need if size == have else () for need, size, have in zip(needs, below, node.shape, strict=True)]
    if op is Op.FLIP:
        return [_unknown(below[axis]) if axis in arg.axes else need for axis, need in enumerate(needs)]
    if op in (Op.WINDOW, Op.UNWINDOW):
        return [_unknown(below[axis]) if axis == arg.axis else need for axis, need in enumerate(needs)]
    return [need if size == have else _unknown(size) for need, size, have in zip(needs, below, node.shape, strict=True)]


def _through_reshape(needs: Sequence[AxisLoops], new: Sequence[int], old: Sequence[int]) -> list[AxisLoops]:
    if 0 in old:
        return [_unknown(size) for size in old]
    result: list[AxisLoops] = []
    position = axis = 0
    while axis < len(old):
        first_old, first_new = axis, position
        size_old, size_new = old[axis], 1
        axis += 1
        while size_old != size_new:
            if size_new < size_old:
                size_new *= new[position]
                position += 1
            else:
                size_old *= old[axis]
                axis += 1
        group = [loop for need in needs[first_new:position] for loop in need]
        result.extend(_regroup(group, old[first_old:axis]))
    return result


def _regroup(loops: Sequence[Loop], sizes: Sequence[int]) -> list[AxisLoops]:
    """The loops of one index, dealt out to the axes of these sizes that it is made of."""
    pending = list(reversed(loops))
    result: list[AxisLoops] = []
    for position, size in enumerate(sizes):
        taken: list[Loop] = []
        left = size
        while left != 1:
            atom, have = pending.pop() if pending else (UNKNOWN, 0)
            if have and left % have == 0:
                taken.append((atom, have))
                left //= have
            elif have and atom == UNKNOWN and have % left == 0:
                taken.append((atom, left))
                pending.append((atom, have // left))
                left = 1
            else:
                return [*result, *[_unknown(rest) for rest in sizes[position:]]]
        result.append(tuple(taken))
    return result
