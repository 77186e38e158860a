"""Column sums become sums over chunks of rows and a sum of those, so that a chunk can ride with other work on its rows.

A norm's backward pass goes over every row anyway; what it owes to weight and bias are sums along the columns. With one
partial sum for each chunk of rows, all of it is one pass (`regions`), and a small tail adds the partial sums up. Alone,
the chunks give every core a part of the sum. The order of the additions is fixed by the shapes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from math import prod
from typing import Final

from gradlet.base.dtype import accumulator
from gradlet.graph.extents import masked
from gradlet.graph.node import UOp, mk, toposort
from gradlet.ops.op import Op, ReduceAxesArg
from gradlet.schedule.clean import HAS_REDUCES, REDUCES, find_devices, rebuild
from gradlet.schedule.moves import reshape, root_of
from gradlet.target.target import Target

# Fewer rows are one chunk.
MIN_ROWS: Final = 256
# Chunks that a sum is cut in, at least, where rows are enough.
CHUNKS: Final = 16
# Narrower results are no column sums worth a pass of their own.
MIN_COLUMNS: Final = 32
# Rows of a chunk on a GPU, at least, and columns of its workgroups: a warp of lanes with 16 bytes of 16 bits each.
GPU_ROWS: Final = 32
GPU_COLUMNS: Final = 256
# Workgroups for a multiprocessor.
GPU_SHARE: Final = 2


def cut_column_sums(root: UOp, target_of: Callable[[str], Target], default_device: str) -> UOp:
    """The graph with every long column sum in two steps, on devices where regions can use it."""
    if not root.mask & HAS_REDUCES:
        return root
    order = toposort((root,))
    if not any(_is_column_sum(n) for n in order if n.op in REDUCES):
        return root
    devices = find_devices(order)

    def change(node: UOp, src: tuple[UOp, ...]) -> UOp | None:
        same = mk(node.op, node.dtype, src, node.arg)
        target = target_of(devices.get(node, default_device))
        if not _is_column_sum(same) or not _pays(same, target):
            return None
        return cut(same) if target.warp <= 1 else cut_for_lanes(same, target)

    return rebuild(root, change, REDUCES, order)


def is_for_lanes(node: UOp, target: Target) -> bool:
    """Whether a sum along columns will be cut in chunks for the workgroups of a GPU."""
    return target.warp > 1 and not node.arg.limited and _is_column_sum(node) and _pays(node, target)


def _pays(node: UOp, target: Target) -> bool:
    """Whether regions can use chunks, or a GPU has more multiprocessors than warps of columns."""
    return target.scratch_bytes > 0 or (target.warp > 1 and prod(node.shape) < target.warp * target.cores)


def _is_column_sum(node: UOp) -> bool:
    """Whether it adds up all leading axes of something that is no product of repeated factors."""
    if node.op is not Op.REDUCE_AXES or node.arg.op is not Op.ADD:
        return False
    source, axes = node.src[0], node.arg.axes
    if axes != tuple(range(len(axes))) or len(axes) == len(source.shape) or 0 in source.shape:
        return False
    if prod(source.shape[: len(axes)]) < MIN_ROWS or prod(node.shape) < MIN_COLUMNS:
        return False
    return source.op is not Op.MUL or all(prod(root_of(f).shape) * 2 > prod(source.shape) for f in source.src)


def cut_for_lanes(node: UOp, target: Target) -> UOp:
    """One column sum as partial sums and their sum, so many that all multiprocessors have some."""
    source, axes = node.src[0], node.arg.axes
    rows = prod(source.shape[: len(axes)])
    wanted = max(CHUNKS, GPU_SHARE * target.cores // -(-prod(node.shape) // GPU_COLUMNS))
    wanted = min(wanted, rows // GPU_ROWS)
    chunks = max((n for n in _whole_parts(source.shape[: len(axes)]) if n <= wanted), default=1)
    if node.arg.limited or chunks <= CHUNKS // 2:
        return cut(node)
    parts = reshape(source, (chunks, rows // chunks, *source.shape[len(axes) :]))
    return _in_two_steps(node, parts, (1,), (0,))


def _whole_parts(sizes: Sequence[int]) -> Iterator[int]:
    """How many parts axes have where a part is whole axes and a part of one: such sums share their loops."""
    outer = 1
    for size in sizes:
        yield from (outer * n for n in range(1, size + 1) if size % n == 0)
        outer *= size


def cut(node: UOp) -> UOp:
    """One column sum as partial sums and their sum; itself where its axes do not divide."""
    if node.arg.limited:
        # Chunks are the same for all sizes; what lies past the size adds zeros.
        whole = masked(node)
        parts = cut(whole)
        return node if parts is whole else parts
    source, axes = node.src[0], node.arg.axes
    chunks: list[int] = []
    rest: list[int] = []
    for axis in axes:
        size = source.shape[axis]
        wanted = -(-CHUNKS // prod(chunks))
        outer = size if wanted >= size else next((d for d in range(wanted, size) if size % d == 0), size)
        if wanted <= 1:
            outer = 1
        chunks.append(outer)
        rest.append(size // outer)
    if prod(chunks) > 4 * CHUNKS or prod(rest) < CHUNKS:
        return node
    columns = source.shape[len(axes) :]
    cut_shape = tuple([size for pair in zip(chunks, rest, strict=True) for size in pair])
    cut_source = reshape(source, (*cut_shape, *columns))
    inner = tuple(range(1, 2 * len(axes), 2))
    return _in_two_steps(node, cut_source, inner, tuple(range(len(axes))))


def _in_two_steps(node: UOp, parts: UOp, inner: tuple[int, ...], outer: tuple[int, ...]) -> UOp:
    """A sum of what lies in parts: over the inner axes, then over the outer ones."""
    total = accumulator(node.dtype)  # what is rounded once stays so
    if total is not node.dtype:
        parts = mk(Op.CAST, total, (parts,))
    partial = mk(Op.REDUCE_AXES, total, (parts,), ReduceAxesArg(Op.ADD, inner))
    result = mk(Op.REDUCE_AXES, total, (partial,), ReduceAxesArg(Op.ADD, outer))
    return result if total is node.dtype else mk(Op.CAST, node.dtype, (result,))
