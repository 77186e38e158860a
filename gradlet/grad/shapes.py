"""Building blocks of derivatives: movement nodes that vanish when they would change nothing, sums, filled tensors."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from gradlet.base.dtype import DType, dtypes
from gradlet.graph.node import UOp, mk
from gradlet.ops.op import AxesArg, Op, PadArg, ReduceAxesArg, ShapeArg, ShrinkArg, StrideArg, WindowArg

Shape = tuple[int, ...]


def reshape(node: UOp, shape: Shape) -> UOp:
    """The same elements under another shape."""
    return node if node.shape == shape else mk(Op.RESHAPE, node.dtype, (node,), ShapeArg(shape))


def expand(node: UOp, shape: Shape) -> UOp:
    """Axes of size 1 repeated up to `shape`, of equal rank."""
    return node if node.shape == shape else mk(Op.EXPAND, node.dtype, (node,), ShapeArg(shape))


def permute(node: UOp, axes: Shape) -> UOp:
    """Axes reordered."""
    return node if axes == tuple(range(len(axes))) else mk(Op.PERMUTE, node.dtype, (node,), AxesArg(axes))


def pad(node: UOp, pads: Sequence[tuple[int, int]]) -> UOp:
    """Zeros before and after each axis."""
    return mk(Op.PAD, node.dtype, (node,), PadArg(tuple(pads))) if any(b or a for b, a in pads) else node


def shrink(node: UOp, bounds: Sequence[tuple[int, int]]) -> UOp:
    """The box `bounds` of the node."""
    if all(bound == (0, size) for bound, size in zip(bounds, node.shape, strict=True)):
        return node
    return mk(Op.SHRINK, node.dtype, (node,), ShrinkArg(tuple(bounds)))


def flip_axes(node: UOp, axes: Shape) -> UOp:
    """Axes run backwards."""
    return mk(Op.FLIP, node.dtype, (node,), AxesArg(axes)) if axes else node


def stride(node: UOp, steps: Shape) -> UOp:
    """Every step-th element of each axis."""
    return node if all(step == 1 for step in steps) else mk(Op.STRIDE, node.dtype, (node,), StrideArg(steps))


def window(op: Op, node: UOp, arg: WindowArg, size: int) -> UOp:
    """WINDOW or UNWINDOW with `arg`'s axes, giving `size` elements on its axis."""
    return mk(op, node.dtype, (node,), arg._replace(size=size))


def filled(value: Any, dtype: DType, shape: Shape) -> UOp:
    """A tensor of `shape` with `value` everywhere."""
    return spread(UOp.const(dtype, value), shape)


def spread(node: UOp, shape: Shape) -> UOp:
    """Give a scalar (a constant has shape ()) the full `shape`; anything else already has it."""
    if node.shape == shape:
        return node
    return expand(reshape(node, (1,) * len(shape)), shape)


def reduce_axes(op: Op, node: UOp, axes: Sequence[int]) -> UOp:
    """Combine over `axes`, which the result lacks."""
    kept = tuple(sorted(axes))
    return mk(Op.REDUCE_AXES, node.dtype, (node,), ReduceAxesArg(op, kept)) if kept else node


def restore_axes(node: UOp, axes: Sequence[int], shape: Shape) -> UOp:
    """The inverse of a reduction's change of shape: reduced `axes` come back and repeat the value."""
    kept = tuple(1 if axis in axes else size for axis, size in enumerate(shape))
    return expand(reshape(node, kept), shape)


def positions(count: int) -> UOp:
    """0, 1, ..., count - 1 as int32, out of padded ones: an axis of size 2 for each binary digit, then flat."""
    digits = max(1, (count - 1).bit_length())
    shape = (2,) * digits
    total = filled(0, dtypes.int32, shape)
    for digit in range(digits):
        weight = filled(1 << (digits - 1 - digit), dtypes.int32, (1,) * digits)
        total = total + expand(pad(weight, [(1, 0) if axis == digit else (0, 0) for axis in range(digits)]), shape)
    return shrink(reshape(total, (1 << digits,)), [(0, count)])


def device_of(node: UOp) -> str | None:
    """The device `node` lives on, or None for an expression of constants."""
    stack, seen = [node], {node}
    while stack:
        current = stack.pop()
        if current.op in (Op.BUFFER, Op.COPY, Op.CUSTOM):
            return str(current.arg.device)
        for source in reversed(current.src):
            if source not in seen:
                seen.add(source)
                stack.append(source)
    return None
