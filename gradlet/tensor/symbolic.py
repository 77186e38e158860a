"""Shapes with sizes that are known only at launch: between the sizes that users see and the extents of graph nodes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from gradlet.base.errors import ShapeError
from gradlet.base.symint import Size, Unknown
from gradlet.graph.extents import HAS_LIMIT, Extents, SizeForm, extents, limit, size_form
from gradlet.graph.node import UOp, mk
from gradlet.ops.arguments import broadcast_shapes
from gradlet.ops.op import LimitArg, Op


def is_symbolic(node: UOp) -> bool:
    """Whether some axis of a node has a size that is known only at launch."""
    return bool(node.mask & HAS_LIMIT and extents(node))


def shape_of(node: UOp) -> tuple[Any, ...]:
    """The shape as users see it: integers, and a `Size` for every axis whose size is known only at launch."""
    found = extents(node)
    if not found:
        return node.shape
    return tuple([size if extent is None else as_size(extent) for size, extent in zip(node.shape, found, strict=True)])


def as_size(node: UOp) -> Size:
    """A size expression of bound variables as what users see."""
    form = size_form(node)
    assert form is not None
    return Size({_unknown(term): factor for term, factor in form.terms.items()}, form.constant)


def _unknown(node: UOp) -> Unknown:
    arg = node.src[0].arg
    return Unknown(node, arg.name, arg.low, arg.high, int(node.src[1].arg))


def size_node(size: Size) -> UOp:
    """A size as a number of a graph."""
    return SizeForm({unknown.node: factor for unknown, factor in size.terms.items()}, size.constant).node()


def sizes_of(shape: Sequence[Any]) -> Extents:
    """The extents that a shape asks for."""
    return tuple([size_node(size) if isinstance(size, Size) else None for size in shape])


def with_shape(node: UOp, shape: Sequence[Any]) -> UOp:
    """A node of the plain shape with the extents that `shape` asks for."""
    node = limit(node, sizes_of(shape))
    if shape_of(node) != tuple(shape):
        raise ShapeError(
            f"a value of shape {shape_of(node)} does not become one of shape {tuple(shape)}: sizes that are known only "
            "at launch stay in their order; use permute to exchange axes"
        )
    return node


def first_positions(node: UOp, axis: int, size: UOp) -> UOp:
    """The first positions of an axis, as many as the size says.

    Raises:
        ShapeError: the axis has such a size already.
    """
    form = size_form(size)
    assert form is not None  # limited_box found that it is a sum of variables times integers
    node = mk(Op.LIMIT, node.dtype, (node, form.node()), LimitArg(axis))
    extents(node)
    return node


def cut(array: Any, node: UOp) -> Any:
    """The part of an array of the node's plain shape that means something."""
    found = extents(node)
    if not found:
        return array
    return array[tuple([slice(None) if e is None else slice(0, as_size(e).value) for e in found])].copy()


def refuse(node: UOp, what: str) -> None:
    """Refuse a value with sizes that are known only at launch.

    Raises:
        ShapeError: it has one.
    """
    if is_symbolic(node):
        raise ShapeError(
            f"{what}: shape {shape_of(node)} has a size that is known only at launch; use a tensor of fixed shape, as "
            "in where(Tensor.arange(64) < n, x, 0)"
        )


def checked(node: UOp) -> UOp:
    """A node that goes along no axis whose size is known only at launch where it cannot.

    Raises:
        ShapeError: it would.
    """
    extents(node)
    return node


def check_sizes(nodes: Sequence[UOp], op: Op) -> None:
    """Refuse operands whose sizes agree only where variables have certain values.

    Raises:
        ShapeError: shapes that do not broadcast.
    """
    if any(n.mask & HAS_LIMIT for n in nodes):
        broadcast_shapes([shape_of(n) for n in nodes], op.name.lower())


def bound_sizes(node: UOp) -> list[UOp]:
    """The bound variables in the extents of a node."""
    found: dict[UOp, None] = {}
    for size in extents(node):
        if size is not None:
            found.update(dict.fromkeys([n for n in size.toposort() if n.op is Op.BIND]))
    return list(found)


def unbound(size: UOp) -> UOp:
    """A size for any value of its variables."""
    return size.substitute({n: n.src[0] for n in size.toposort() if n.op is Op.BIND})


def rebound(node: UOp, values: Mapping[str, int]) -> UOp:
    """A graph whose variables have other values, by name."""
    if not node.mask & HAS_LIMIT:
        return node
    old = [n for n in node.toposort() if n.op is Op.BIND and n.src[0].arg.name in values]
    return node.substitute({n: n.src[0].bind(values[n.src[0].arg.name]) for n in old})
