"""What follows from a node's sources: shape, result dtype, open ranges. Works on anything with the fields of a node."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final

from gradlet.base.dtype import DType, dtypes
from gradlet.ops.op import COMPARE, ELEMENTWISE, Op, batch_axes

Shape = tuple[int, ...]
_RANGE: Final = Op.RANGE


def shape(node: Any) -> Shape:
    """Shape of a node; inferred from the sources, without recursion, and kept in the node."""
    try:
        return node._shape  # type: ignore[no-any-return]
    except AttributeError:
        return infer_shape(node)


def infer_shape(node: Any) -> Shape:
    """Shape of a node that has none yet."""
    function = _SHAPE.get(node.op)
    if function is None:
        node._shape = ()
        return ()
    try:
        node._shape = found = function(node)  # mostly the sources have theirs
        return found
    except AttributeError:
        pass
    stack = [node]
    while stack:
        top = stack[-1]
        function = _SHAPE.get(top.op)
        if function is None:
            top._shape = ()
            stack.pop()
            continue
        waiting = [s for s in top.src if not _has_shape(s)]
        if waiting:
            stack.extend(waiting)
            continue
        top._shape = function(top)
        stack.pop()
    return node._shape  # type: ignore[no-any-return]


def _has_shape(node: Any) -> bool:
    return hasattr(node, "_shape")


def _elementwise(node: Any) -> Shape:
    # The shapes are equal, except for scalars, which broadcast.
    for source in node.src:
        if source._shape:
            return source._shape  # type: ignore[no-any-return]
    return ()


def _first(node: Any) -> Shape:
    return node.src[0]._shape  # type: ignore[no-any-return]


def _window(node: Any) -> Shape:
    sizes = list(node.src[0]._shape)
    sizes[node.arg.axis] = node.arg.size
    return tuple(sizes)


def _pad(node: Any) -> Shape:
    return tuple([size + before + after for size, (before, after) in zip(node.src[0]._shape, node.arg.pads)])


def _permute(node: Any) -> Shape:
    source = node.src[0]._shape
    return tuple([source[axis] for axis in node.arg.axes])


def _stride(node: Any) -> Shape:
    return tuple([-(-size // step) for size, step in zip(node.src[0]._shape, node.arg.steps)])


def _reduce(node: Any) -> Shape:
    axes = node.arg.axes
    return tuple([size for axis, size in enumerate(node.src[0]._shape) if axis not in axes])


def _gather(node: Any) -> Shape:
    table, index = node.src
    return index._shape + table._shape[1 + batch_axes(node.arg) :]  # type: ignore[no-any-return]


def _merge(source: Shape, half: bool) -> Shape:
    return (*source[:-2], source[-1] if half else source[-2] * source[-1])


# Ops that are not listed have shape ().
_SHAPE: Final[dict[Op, Callable[[Any], Shape]]] = {
    Op.BUFFER: lambda node: (node.arg.size,),
    Op.RESHAPE: lambda node: node.arg.shape,
    Op.EXPAND: lambda node: node.arg.shape,
    Op.PERMUTE: _permute,
    Op.PAD: _pad,
    Op.SHRINK: lambda node: tuple([high - low for low, high in node.arg.bounds]),
    Op.FLIP: _first,
    Op.STRIDE: _stride,
    Op.WINDOW: _window,
    Op.UNWINDOW: _window,
    Op.REDUCE_AXES: _reduce,
    Op.GATHER: _gather,
    Op.SCATTER: _first,
    Op.SCAN: _first,
    Op.MERGE: lambda node: _merge(node.src[0]._shape, node.arg.half),
    Op.LARGEST: lambda node: (*node.src[0]._shape[:-1], node.arg.taken),
    Op.CONTIGUOUS: _first,
    Op.COPY: _first,
    Op.CUSTOM: lambda node: node.arg.shapes[node.arg.output],
    Op.DETACH: _first,
    Op.DERIVATIVE: _first,
    Op.WRITE: _first,
    Op.LIMIT: _first,
    **dict.fromkeys(ELEMENTWISE, _elementwise),
}


def ranges(node: Any) -> tuple[Any, ...]:
    """The RANGE nodes a value depends on and no REDUCE or AFTER has closed, ordered by number; kept in the node."""
    stack = [node]
    while stack:
        top = stack[-1]
        height = len(stack)
        known: list[tuple[Any, ...]] = []
        for source in top.src:
            found = _known_ranges(source) if source.op is _RANGE else source._ranges
            if found is None:
                stack.append(source)
            elif found:
                known.append(found)
        if len(stack) > height:
            continue
        if top.op is not _RANGE:
            top._ranges = _open_ranges(top, known) if known else ()
        stack.pop()
    return _known_ranges(node) or ()


def _known_ranges(node: Any) -> tuple[Any, ...] | None:
    """The ranges if they are known. Those of a RANGE contain itself: kept in the node they would be a cycle."""
    if node.op is _RANGE:
        outer: tuple[Any, ...] | None = _known_ranges(node.src[0])
        if not outer:
            return outer if outer is None else (node,)
        return tuple(sorted({node, *outer}, key=_range_order))
    return node._ranges  # type: ignore[no-any-return]


def _range_order(node: Any) -> tuple[int, int, int]:
    return (node.arg.number, node.arg.kind, node.uid)


def _open_ranges(node: Any, known: Sequence[tuple[Any, ...]]) -> tuple[Any, ...]:
    """The ranges of a node from those of its sources."""
    # Mostly all sources agree, or one source has all: share its tuple.
    result = known[0]
    for other in known:
        if other is result or other == result:
            continue
        union = {*result, *other}
        if len(union) == len(other):
            result = other
        elif len(union) != len(result):
            result = tuple(sorted(union, key=_range_order))
    if node.op is Op.REDUCE or node.op is Op.AFTER:
        closed = node.src[1:]
        return tuple([r for r in result if r not in closed])
    return result


def dtype(op: Op, src: Sequence[Any]) -> DType | None:
    """The dtype that follows from the sources; None where it is free (CAST, LOAD and the like)."""
    if op in COMPARE:
        return dtypes.bool.vec(src[0].dtype.count)
    if op is Op.WHERE:
        return src[1].dtype  # type: ignore[no-any-return]
    if op in _DTYPE_OF_FIRST:
        return src[0].dtype  # type: ignore[no-any-return]
    if op in (Op.STORE, Op.SINK):
        return dtypes.void
    return None


_DTYPE_OF_FIRST: Final = (ELEMENTWISE - COMPARE - {Op.CAST, Op.BITCAST, Op.WHERE}) | {
    Op.RESHAPE, Op.EXPAND, Op.PERMUTE, Op.PAD, Op.SHRINK, Op.FLIP, Op.STRIDE, Op.WINDOW, Op.UNWINDOW, Op.REDUCE_AXES,
    Op.GATHER, Op.SCATTER, Op.CONTIGUOUS, Op.COPY, Op.DETACH, Op.WRITE, Op.BIND, Op.REDUCE,
    Op.SCAN, Op.MERGE, Op.LARGEST, Op.CARRY, Op.LIMIT, Op.DERIVATIVE, Op.PREFETCH, Op.AFTER,
}  # fmt: skip
