"""Chains of movement ops: walk down, replay over another source, run backwards."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from gradlet.base.dtype import dtypes
from gradlet.base.errors import CompilerError
from gradlet.graph.node import UOp, mk
from gradlet.ops.op import MOVEMENT, SCALAR_LEAVES, AxesArg, Op, PadArg, ShapeArg, ShrinkArg

BIJECTIVE: Final = frozenset({Op.RESHAPE, Op.PERMUTE, Op.FLIP})


def root_of(node: UOp) -> UOp:
    """The node below movement ops."""
    while node.op in MOVEMENT:
        node = node.src[0]
    return node


def whole_root_of(node: UOp) -> UOp:
    """The node below movement ops that keep every element."""
    while node.op in BIJECTIVE:
        node = node.src[0]
    return node


def chain_to(node: UOp, bottom: UOp) -> list[UOp]:
    """The movement ops from `node` down to `bottom`, topmost first.

    Raises:
        CompilerError: something else lies between.
    """
    chain: list[UOp] = []
    while node is not bottom:
        if node.op not in MOVEMENT:
            raise CompilerError(f"{node.op.name} is not a movement op over the base of a write")
        chain.append(node)
        node = node.src[0]
    return chain


def replay(chain: Sequence[UOp], source: UOp) -> UOp:
    """The chain (topmost first) over another source of the same shape."""
    for moved in reversed(chain):
        source = mk(moved.op, source.dtype, (source,), moved.arg)
    return source


def reshape(node: UOp, shape: tuple[int, ...]) -> UOp:
    """RESHAPE unless the shape is right already."""
    return node if node.shape == shape else mk(Op.RESHAPE, node.dtype, (node,), ShapeArg(shape))


def shortest(node: UOp) -> UOp:
    """The same view with one RESHAPE where there were several: views of results must not grow with each use."""
    if node.op is Op.BUFFER or (node.op is Op.RESHAPE and node.src[0].op is Op.BUFFER):
        return node
    chain = chain_to(node, root_of(node))
    result = root_of(node)
    for step in reversed(chain):
        if step.op is Op.RESHAPE:
            result = reshape(result.src[0] if result.op is Op.RESHAPE else result, step.shape)
        else:
            result = mk(step.op, step.dtype, (result, *step.src[1:]), step.arg)
    return result


def expand_to(node: UOp, shape: tuple[int, ...]) -> UOp:
    """EXPAND unless the shape is right already."""
    return node if node.shape == shape else mk(Op.EXPAND, node.dtype, (node,), ShapeArg(shape))


def expand_scalar(node: UOp, shape: tuple[int, ...]) -> UOp:
    """A scalar repeated to a shape."""
    if not shape:
        return node
    ones = (1,) * len(shape)
    node = mk(Op.RESHAPE, node.dtype, (node,), ShapeArg(ones))
    return node if shape == ones else mk(Op.EXPAND, node.dtype, (node,), ShapeArg(shape))


def materialised_shape(node: UOp, shape: tuple[int, ...]) -> UOp:
    """A node that may be a broadcasting scalar, in its full shape."""
    return expand_scalar(node, shape) if node.op in SCALAR_LEAVES else node


def unmove(chain: Sequence[UOp], value: UOp) -> UOp:
    """Put `value`, shaped like the top of the chain, back where the chain took it from; zeros elsewhere.

    Raises:
        CompilerError: the chain shows an element twice, so writing through it has no meaning.
    """
    for moved in chain:
        value = _unmove_one(moved, value)
    return value


def _unmove_one(moved: UOp, value: UOp) -> UOp:
    op, arg, shape = moved.op, moved.arg, moved.src[0].shape
    if op is Op.RESHAPE:
        return mk(op, value.dtype, (value,), ShapeArg(shape))
    if op is Op.PERMUTE:
        return mk(op, value.dtype, (value,), AxesArg(tuple([arg.axes.index(a) for a in range(len(shape))])))
    if op is Op.FLIP:
        return mk(op, value.dtype, (value,), arg)
    if op is Op.SHRINK:
        pads = tuple([(low, size - high) for (low, high), size in zip(arg.bounds, shape, strict=True)])
        return mk(Op.PAD, value.dtype, (value,), PadArg(pads))
    if op is Op.PAD:
        bounds = tuple([(before, before + size) for (before, _), size in zip(arg.pads, shape, strict=True)])
        return mk(Op.SHRINK, value.dtype, (value,), ShrinkArg(bounds))
    if op is Op.STRIDE:
        return _unstride(arg.steps, shape, value)
    if op is Op.EXPAND and moved.shape == shape:
        return value
    raise CompilerError(f"cannot write through {op.name}: it may show an element of the base twice")


def _unstride(steps: Sequence[int], shape: tuple[int, ...], value: UOp) -> UOp:
    """Every element becomes the first of `step`, the others zero; what reaches past the end is cut off."""
    apart = tuple([n for size in value.shape for n in (size, 1)])
    value = mk(Op.RESHAPE, value.dtype, (value,), ShapeArg(apart))
    pads = tuple([pad for step in steps for pad in ((0, 0), (0, step - 1))])
    value = mk(Op.PAD, value.dtype, (value,), PadArg(pads))
    joined = tuple([value.shape[2 * a] * value.shape[2 * a + 1] for a in range(len(steps))])
    value = mk(Op.RESHAPE, value.dtype, (value,), ShapeArg(joined))
    bounds = tuple([(0, size) for size in shape])
    return value if joined == shape else mk(Op.SHRINK, value.dtype, (value,), ShrinkArg(bounds))


def select(base: UOp, chain: Sequence[UOp], value: UOp) -> UOp:
    """The base with the elements shown by the chain replaced, as a pure expression."""
    shape = chain[0].shape if chain else base.shape
    value = materialised_shape(value, shape)
    mask = unmove(chain, expand_scalar(UOp.const(dtypes.bool, True), shape))
    return mk(Op.WHERE, base.dtype, (mask, unmove(chain, value), materialised_shape(base, mask.shape)), None)
