"""Reference evaluator of the TENSOR stage: every node becomes one numpy array, sources first."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import numpy as np

from gradlet.base.errors import CompilerError
from gradlet.graph import numeric
from gradlet.graph.evaluate_kernel import run_kernel
from gradlet.graph.extents import write_out
from gradlet.graph.node import UOp, toposort
from gradlet.graph.numeric import Array
from gradlet.ops.op import ELEMENTWISE, MOVEMENT, Op, batch_axes


def evaluate(
    roots: Sequence[UOp], buffers: Mapping[UOp, Array], variables: Mapping[UOp, int] | None = None
) -> list[Array]:
    """Compute the roots.

    Args:
        roots: TENSOR-stage nodes.
        buffers: contents of every BUFFER node; bfloat16 as uint16 bit patterns. They are not changed.
        variables: values of VARIABLE nodes that no BIND carries.

    Returns:
        One array a root with the root's shape; bfloat16 as uint16 bit patterns.
    """
    roots, _ = write_out(roots)
    values: dict[UOp, Array] = {}
    order = toposort(roots)
    last_use: dict[UOp, int] = {}
    for position, node in enumerate(order):
        for source in node.src:
            last_use[source] = position
    last_use.update(dict.fromkeys(roots, len(order)))
    with np.errstate(all="ignore"):
        for position, node in enumerate(order):
            values[node] = _value(node, values, buffers, variables or {})
            for source in node.src:
                if last_use[source] == position:
                    values.pop(source, None)
        return [np.array(numeric.store(values[root], root.dtype)) for root in roots]


def _value(node: UOp, values: Mapping[UOp, Array], buffers: Mapping[UOp, Array], variables: Mapping[UOp, int]) -> Array:
    op = node.op
    if op in ELEMENTWISE:
        operands = [values[s] for s in node.src]
        shapes = {x.shape for x in operands if x.shape != ()}
        if len(shapes) > 1:
            raise CompilerError(f"{op.name}: operands have shapes {sorted(shapes)}; expand them first")
        return numeric.apply(op, node.dtype, operands, node.src[0].dtype)
    if op is Op.LIMIT:
        return limit(node, values[node.src[0]], int(values[node.src[1]]))
    if op in MOVEMENT:
        return move(node, values[node.src[0]], 0)
    if op is Op.CONST:
        return numeric.constant(node.arg, node.dtype)
    if op is Op.BUFFER:
        if node not in buffers:
            raise CompilerError(f"no contents given for buffer {node.arg.number}")
        return numeric.load(np.asarray(buffers[node]), node.dtype).reshape(node.arg.size)
    if op is Op.VARIABLE:
        # Under a BIND the variable's own value is not needed.
        return numeric.constant(variables.get(node, node.arg.low), node.dtype)
    if op is Op.BIND:
        return values[node.src[1]]
    if op is Op.REDUCE_AXES:
        source = values[node.src[0]]
        for axis, size in zip(node.arg.limited, node.src[1:], strict=True):
            source = source[(slice(None),) * axis + (slice(0, int(values[size])),)]
        return numeric.reduce(node.arg.op, node.dtype, source, node.arg.axes)
    if op is Op.GATHER:
        return gather(values[node.src[0]], values[node.src[1]], batch_axes(node.arg))
    if op is Op.SCATTER:
        return scatter(node, *[values[s] for s in node.src], batch=node.arg.batch)
    if op is Op.SCAN:
        return scan(node, *[values[s] for s in node.src])
    if op is Op.MERGE or op is Op.LARGEST:
        return in_order(node, values[node.src[0]])
    if op is Op.WRITE:
        return write(node, values[node.src[0]], values[node.src[2]])
    if op is Op.CUSTOM:
        return custom(node, [values[s] for s in node.src])
    if op in (Op.CONTIGUOUS, Op.COPY, Op.DETACH, Op.DERIVATIVE):
        return values[node.src[0]]
    raise CompilerError(f"{op.name} does not occur at the TENSOR stage")


def _pad(array: Array, arg: Any, fill: int) -> Array:
    return np.pad(array, arg.pads, constant_values=fill) if array.ndim else array


def _shrink(array: Array, arg: Any, fill: int) -> Array:
    return array[tuple(slice(low, high) for low, high in arg.bounds)]


def _stride(array: Array, arg: Any, fill: int) -> Array:
    return array[tuple(slice(None, None, step) for step in arg.steps)]


def _window(array: Array, arg: Any, fill: int) -> Array:
    source = np.moveaxis(array, (arg.axis, arg.window_axis), (0, 1))
    window = np.arange(source.shape[1])
    position = np.arange(arg.size)[:, None] * arg.stride + window[None, :] * arg.dilation
    if position.size and int(position.max()) >= source.shape[0]:
        raise CompilerError(f"WINDOW {arg} reads element {int(position.max())} of an axis of size {source.shape[0]}")
    return np.moveaxis(source[position, window[None, :]], (0, 1), (arg.axis, arg.window_axis))


def _unwindow(array: Array, arg: Any, fill: int) -> Array:
    source = np.moveaxis(array, (arg.axis, arg.window_axis), (0, 1))
    window = np.arange(source.shape[1])
    offset = np.arange(arg.size)[:, None] - window[None, :] * arg.dilation
    position = offset // arg.stride
    inside = (offset % arg.stride == 0) & (position >= 0) & (position < source.shape[0])
    result = np.full((arg.size, *source.shape[1:]), fill, array.dtype)
    rows, columns = np.nonzero(inside)
    result[rows, columns] = source[position[rows, columns], columns]
    return np.moveaxis(result, (0, 1), (arg.axis, arg.window_axis))


_MOVES: Final[dict[Op, Callable[[Array, Any, int], Array]]] = {
    Op.RESHAPE: lambda array, arg, fill: array.reshape(arg.shape),
    Op.EXPAND: lambda array, arg, fill: np.broadcast_to(array, arg.shape),
    Op.PERMUTE: lambda array, arg, fill: array.transpose(arg.axes),
    Op.FLIP: lambda array, arg, fill: np.flip(array, arg.axes),
    Op.PAD: _pad,
    Op.SHRINK: _shrink,
    Op.STRIDE: _stride,
    Op.WINDOW: _window,
    Op.UNWINDOW: _unwindow,
}


def move(node: UOp, array: Array, fill: int) -> Array:
    """One movement op; elements that come from outside the source are `fill`."""
    return _MOVES[node.op](array, node.arg, fill)


def limit(node: UOp, array: Array, size: int) -> Array:
    """LIMIT: what lies past the size is 0, or whatever it is."""
    if node.arg.filled:
        array = np.array(array)
        array[(slice(None),) * node.arg.axis + (slice(size, None),)] = 0
    return array


def gather(table: Array, index: Array, batch: int = 0) -> Array:
    """Rows of `table` by number; 0 where the number is outside the table. Leading `batch` axes are shared."""
    if batch:
        result = np.zeros((*index.shape, *table.shape[batch + 1 :]), table.dtype)
        for point in np.ndindex(*table.shape[:batch]):
            result[point] = gather(table[point], index[point])
        return result
    outside = (index < 0) | (index >= table.shape[0])
    if table.shape[0] == 0:
        return np.zeros((*index.shape, *table.shape[1:]), table.dtype)
    result = np.array(table[np.where(outside, 0, index).astype(np.int64)])
    result[outside] = 0
    return result


def scatter(node: UOp, target: Array, index: Array, rows: Array, *, batch: int) -> Array:
    """Update rows of `target` one by one in index order; row numbers outside the target are skipped."""
    result = np.array(target)
    rows = np.broadcast_to(rows, (*index.shape, *target.shape[batch + 1 :]))
    if batch:
        for point in np.ndindex(*target.shape[:batch]):
            result[point] = scatter(node, target[point], index[point], rows[point], batch=0)
        return result
    rows = rows.reshape(index.size, *target.shape[1:])
    index = index.reshape(-1)
    inside = (index >= 0) & (index < target.shape[0])
    index, rows = index[inside].astype(np.int64), rows[inside]
    # Rows that meet the same target are applied in rounds: the first of each, then the second of each, ...
    order = np.argsort(index, kind="stable")
    first = np.searchsorted(index[order], index[order], side="left")
    round_of = np.empty(len(index), np.int64)
    round_of[order] = np.arange(len(index)) - first
    for number in range(int(round_of.max()) + 1 if len(index) else 0):
        chosen = np.nonzero(round_of == number)[0]
        at = index[chosen]
        new = rows[chosen]
        if node.arg.op is not None:
            new = numeric.apply(node.arg.op, node.dtype, (result[at], new), node.dtype)
        result[at] = new
    return result


def scan(node: UOp, source: Array, start: Array, factor: Array | None = None) -> Array:
    """Running combination along an axis, one element after another."""
    op, axis, exclusive = node.arg
    moved = np.moveaxis(source, axis, 0)
    result = np.empty_like(moved)
    total = np.broadcast_to(start, moved.shape[1:])
    factors = np.moveaxis(np.broadcast_to(factor, source.shape), axis, 0) if factor is not None else None
    for i, value in enumerate(moved):
        before = total
        if factors is None:
            total = numeric.apply(op, node.dtype, (before, value), node.dtype)
        else:
            product = numeric.apply(Op.MUL, node.dtype, (before, factors[i]), node.dtype)
            total = numeric.apply(Op.ADD, node.dtype, (product, value), node.dtype)
        result[i] = before if exclusive else total
    return np.moveaxis(result, 0, axis)


def in_order(node: UOp, source: Array) -> Array:
    """MERGE and LARGEST: values in descending order."""
    if node.op is Op.MERGE:
        merged = np.sort(source.reshape(*source.shape[:-2], -1), axis=-1)[..., ::-1]
        return merged[..., : node.shape[-1]]
    least, greatest = node.dtype.min, node.dtype.max
    rows = source.reshape(math.prod(source.shape[:-1]), source.shape[-1])
    result = np.full((rows.shape[0], node.arg.taken), least, source.dtype)
    for row, values in zip(result, rows, strict=True):
        found = np.unique(values[values != greatest])[::-1][: node.arg.taken]
        row[: len(found)] = found
    return result.reshape(node.shape)


def write(node: UOp, base: Array, value: Array) -> Array:
    """The base with the elements that the view shows replaced by the value."""
    chain: list[UOp] = []
    view = node.src[1]
    while view is not node.src[0]:
        if view.op not in MOVEMENT:
            raise CompilerError(f"WRITE: {view.op.name} is not a movement op over the base")
        chain.append(view)
        view = view.src[0]
    # Move the element numbers of the base the way the view moves its elements; -1 is outside.
    position = np.arange(base.size).reshape(base.shape)
    for moved in reversed(chain):
        position = move(moved, position, -1)
    value = np.broadcast_to(value, position.shape).reshape(-1)
    flat = position.reshape(-1)
    inside = flat >= 0
    result = np.array(base)
    result.reshape(-1)[flat[inside]] = value[inside]
    return result


def custom(node: UOp, sources: Sequence[Array]) -> Array:
    """One result of a kernel that the caller wrote; what it does not store is 0."""
    arg = node.arg
    arrays = [
        np.zeros(math.prod(shape), numeric.storage_type(dtype))
        for shape, dtype in zip(arg.shapes, arg.types, strict=True)
    ]
    for source, value in zip(node.src, sources, strict=True):
        arrays.append(np.array(numeric.store(value, source.dtype)).reshape(-1))
    run_kernel(arg.kernel, [arrays[number] for number in arg.slots])
    return numeric.load(arrays[arg.output], node.dtype).reshape(node.shape)
