"""Where views read: movement ops as functions from an element's index to the index of its source."""

from __future__ import annotations

from collections.abc import Sequence

from gradlet.base.dtype import dtypes
from gradlet.base.errors import CompilerError
from gradlet.graph.node import UOp, mk
from gradlet.ops.op import Op
from gradlet.schedule.indexing import FALSE, ZERO, Gate, Index, IndexMath, join


def source_index(node: UOp, idx: Index, math: IndexMath) -> tuple[Index, Gate]:
    """Where a movement op reads its source for its own element `idx`, and when that element exists."""
    op, arg = node.op, node.arg
    shape = node.src[0].shape
    if op is Op.RESHAPE:
        return math.reshape(idx, arg.shape, shape), ()
    if op is Op.EXPAND:
        return tuple([ZERO if size == 1 else one for one, size in zip(idx, shape, strict=True)]), ()
    if op is Op.PERMUTE:
        result = list(idx)
        for one, axis in zip(idx, arg.axes, strict=True):
            result[axis] = one
        return tuple(result), ()
    if op is Op.SHRINK:
        return tuple([_shifted(one, low, math) for one, (low, _) in zip(idx, arg.bounds, strict=True)]), ()
    if op is Op.FLIP:
        return tuple(
            [math.combine([(one, -1)], shape[a] - 1) if a in arg.axes else one for a, one in enumerate(idx)]
        ), ()
    if op is Op.STRIDE:
        return tuple(
            [one if step == 1 else math.combine([(one, step)]) for one, step in zip(idx, arg.steps, strict=True)]
        ), ()
    if op is Op.PAD:
        return _unpad(idx, arg.pads, shape, math)
    if op is Op.WINDOW or op is Op.UNWINDOW:
        return _window_index(node, idx, math)
    raise CompilerError(f"{op.name} is not a movement op")


def _shifted(one: UOp, offset: int, math: IndexMath) -> UOp:
    return one if offset == 0 else math.combine([(one, 1)], offset)


def _unpad(idx: Index, pads: Sequence[tuple[int, int]], shape: Sequence[int], math: IndexMath) -> tuple[Index, Gate]:
    result: list[UOp] = []
    gate: Gate = ()
    for one, (before, after), size in zip(idx, pads, shape, strict=True):
        moved = _shifted(one, -before, math)
        if before or after:
            gate = join(gate, math.within(moved, size))
        result.append(moved)
    return tuple(result), gate


def _window_index(node: UOp, idx: Index, math: IndexMath) -> tuple[Index, Gate]:
    axis, window_axis, stride, dilation, _ = node.arg
    size = node.src[0].shape[axis]
    result = list(idx)
    gate: Gate = ()
    if node.op is Op.WINDOW:
        result[axis] = math.combine([(idx[axis], stride), (idx[window_axis], dilation)])
    else:
        offset = math.combine([(idx[axis], 1), (idx[window_axis], -dilation)])
        result[axis], remainder = math.divmod(offset, stride)
        if remainder.op is not Op.CONST:
            gate = (mk(Op.CMPEQ, dtypes.bool, (remainder, ZERO), None),)
        elif remainder.arg:
            gate = (FALSE,)
    return tuple(result), join(gate, math.within(result[axis], size))


def place_of_view(write: UOp, place: UOp) -> UOp:
    """The view of a WRITE over `place` instead of over its base."""
    chain: list[UOp] = []
    view = write.src[1]
    while view is not write.src[0]:
        chain.append(view)
        view = view.src[0]
    for moved in reversed(chain):
        place = mk(moved.op, place.dtype, (place,), moved.arg)
    return place
