"""Constants in place of shaped nodes: at the TENSOR stage a result must keep the shape of what it replaces.

A constant of shape `s` is EXPAND(RESHAPE(CONST)); inside kernels everything has shape () and it is the CONST alone.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from gradlet.graph.node import UOp, mk
from gradlet.ops.op import SCALAR_LEAVES, Op, ShapeArg

_REPEATS: Final = frozenset({Op.EXPAND, Op.RESHAPE})


def with_shape(value: UOp, shape: tuple[int, ...]) -> UOp:
    """A scalar leaf (or anything of shape ()) repeated to a shape; other nodes have it already."""
    if not shape or value.shape == shape:
        return value
    ones = mk(Op.RESHAPE, value.dtype, (value,), ShapeArg((1,) * len(shape)))
    return mk(Op.EXPAND, value.dtype, (ones,), ShapeArg(shape)) if shape != (1,) * len(shape) else ones


def like(value: UOp, root: UOp) -> UOp:
    """`value` with the shape of `root`, which it is to replace."""
    return with_shape(value, root.shape) if value.op in SCALAR_LEAVES else value


def constant_like(root: UOp, value: Any) -> UOp:
    """A constant in place of `root`."""
    return with_shape(UOp.const(root.dtype, value), root.shape)


def becomes(value: Any) -> Callable[[UOp], UOp]:
    """Result of a rule: this constant with the type and shape of the matched node."""
    return lambda root: constant_like(root, value)


def scalar_of(node: UOp) -> UOp | None:
    """The scalar leaf that a node repeats to its shape; None for any other node."""
    while node.op in _REPEATS:
        node = node.src[0]
    return node if node.op in SCALAR_LEAVES else None
