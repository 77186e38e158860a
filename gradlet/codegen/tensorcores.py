"""Sums along TENSOR ranges become instructions of a matrix unit, where the target has one; else they are loops.

The unit of a warpgroup (four warps) multiplies tiles that lie in shared memory. Its registers belong to lanes in a
fixed way, which TENSORIZE has made ranges of: a lane has, of every eight columns, two beside each other, in two rows.
"""

from __future__ import annotations

from collections.abc import Collection
from math import prod
from typing import Final

from gradlet.base.dtype import dtypes
from gradlet.base.errors import CompilerError
from gradlet.graph.node import UOp, mk
from gradlet.graph.rewrite import rewrite
from gradlet.ops.op import AxisKind, BoxArg, Op, ReduceArg, WgmmaArg
from gradlet.ops.opt import OptKind, TensorizeDetail
from gradlet.optimize.actions.roles import staged_by_engine
from gradlet.optimize.actions.tensorize import Tiles, tiles_of
from gradlet.optimize.analysis import closed_by, kernel_order, make_range
from gradlet.optimize.boxes import Axis, axes_of, stored_guards
from gradlet.rules.sets import INDEX_MATH
from gradlet.target.target import Target

ROW: Final = 128  # bytes of a row in shared memory
WARP_ROWS: Final = 16


def use_matrix_units(sink: UOp, target: Target) -> UOp:
    """The kernel with WGMMA in place of sums along TENSOR ranges."""
    opts = [o for o in sink.arg.opts or () if o.kind is OptKind.TENSORIZE]
    if not opts:
        return sink
    order = kernel_order(sink)
    if not target.matrix_units:
        tensor = [n for n in order if n.op is Op.RANGE and n.arg.kind is AxisKind.TENSOR]
        return sink.substitute({r: make_range(r.src[0], r.arg.number, AxisKind.REDUCE) for r in tensor})
    new: dict[UOp, UOp] = {}
    for node in order:
        if node.op is Op.REDUCE and any(r.arg.kind is AxisKind.TENSOR for r in node.src[1:]):
            detail = opts[0].detail
            assert isinstance(detail, TensorizeDetail)
            new[node] = _product(node, sink, detail, {r.arg.number: r for r in order if r.op is Op.RANGE})
    return sink.substitute(new)


def _product(node: UOp, sink: UOp, detail: TensorizeDetail, by_number: dict[int, UOp]) -> UOp:
    """A lane's element of the product: which of its registers it is depends on the ranges of the tile."""
    tiles = tiles_of(node)
    warps, halves, groups, pair = (by_number[n] for n in detail[:4])
    columns = 8 * int(groups.src[0].arg)
    dtype = node.dtype.vec(columns // 2)
    arg = WgmmaArg(16 * int(warps.src[0].arg), columns, tiles.depth, tiles.first_across, tiles.second_across)
    if tiles.first.src[0].arg.size > arg.rows * arg.depth:  # buffers in turn
        arg = arg._replace(pending=detail.pending)
    start = UOp.const(dtype, 0)
    rest = [r for r in node.src[1:] if r.arg.kind is not AxisKind.TENSOR]
    buffers = int(tiles.first.src[0].arg.size) // (arg.rows * arg.depth)
    if staged_by_engine(sink.arg.opts):
        first, second, boxes = _boxes(node, tiles, sink, rest, detail)
        value = mk(Op.WGMMA, dtype, (first, second, warps, UOp.const(dtypes.index, 0), start, *boxes), arg)
    else:
        buffer = rest[0] % buffers if buffers > 1 else UOp.const(dtypes.index, 0)
        value = mk(Op.WGMMA, dtype, (tiles.first, tiles.second, warps, buffer, start), arg)
    total = mk(Op.REDUCE, dtype, (value, *rest), ReduceArg(Op.ADD))
    return mk(Op.PICK, node.dtype, (total, groups * 4 + halves * 2 + pair))


def _boxes(
    node: UOp, tiles: Tiles, sink: UOp, rest: list[UOp], detail: TensorizeDetail
) -> tuple[UOp, UOp, list[UOp]]:  # fmt: skip
    """The arrays of both factors, what the copy engine brings into each, and where it stores results.

    Raises:
        CompilerError: a schedule that names only a part of what the copy engine needs.
    """
    if not any(o.kind is OptKind.SPECIALIZE for o in sink.arg.opts):
        raise CompilerError("STAGE with engine=1 needs SPECIALIZE: a warp of its own begins the copies")
    tensor = next(r for r in node.src[1:] if r.arg.kind is AxisKind.TENSOR)
    boxes: list[UOp] = []
    sides: list[set[UOp]] = []
    for filled, side in zip((tiles.first, tiles.second), node.src[0].src, strict=True):
        store, used = filled.src[1], (side if side.op is Op.LOAD else side.src[0]).src[0].src[1]
        own = closed_by(filled)
        twins = {r: twin(store.src[0].src[1], own, used, r) for r in used.toposort() if r.op is Op.RANGE}
        summed = {twins[tensor], *rest}
        load = store.src[1].src[0]
        known = [guard.substitute(twins) for guard in stored_guards(sink)]
        axes = axes_of(load, own, summed.__contains__, known)
        if isinstance(axes, str):
            raise CompilerError(f"what STAGE with engine=1 copies is no box any more: {axes}")
        boxes.append(box_of(load, axes, own))
        reached = {n for part in (used, *boxes[-1].src) for n in part.toposort() if n.op is Op.RANGE}
        sides.append(reached - {tensor, *rest})
    slots = [o.amount for o in sink.arg.opts if o.kind is OptKind.EPILOGUE]
    for root in sink.src:
        if root.src[0].src[0].arg.slot in slots:
            boxes.extend(result_box(root.src[0], sides, detail))
    return tiles.first.src[0], tiles.second.src[0], boxes


def twin(place: UOp, own: Collection[UOp], used: UOp, loop: UOp) -> UOp:
    """Of the ranges of a copy, the one that runs over what `loop` does where the copy is used."""
    wanted = _step(used, loop)
    return next((r for r in own if _step(place, r) == wanted), loop)


def _step(element: UOp, loop: UOp) -> int:
    """The element of an array at 1 along a range, 0 along all others."""
    ranges = [n for n in element.toposort() if n.op is Op.RANGE]
    found = rewrite(element.substitute({r: UOp.const(dtypes.index, int(r is loop)) for r in ranges}), INDEX_MATH)
    return int(found.arg)


def box_of(index: UOp, axes: list[Axis], inside: Collection[UOp]) -> UOp:
    """The part of memory that a copy brings; along rows of memory, as many elements as 128 bytes."""
    parts = [axis.length(inside) for axis in axes]
    parts[0] = ROW // index.dtype.itemsize
    apart = tuple([axis.apart(inside) for axis in axes])
    arg = BoxArg(
        tuple([a.size for a in axes]), tuple([a.stride for a in axes]), tuple(parts), apart if max(apart) > 1 else (),
        rounded=index.dtype is dtypes.float32,
    )  # fmt: skip
    return mk(Op.BOX, index.dtype, (index.src[0], *[a.begin(inside) for a in axes]), arg)


def result_box(index: UOp, sides: list[set[UOp]], detail: TensorizeDetail) -> list[UOp]:
    """Where a warp stores its rows, 128 bytes of each at a time; nothing where these are no box."""
    kinds = (AxisKind.THREAD, AxisKind.UNROLL, AxisKind.VECTOR)
    inside = {r for r in sides[0] | sides[1] if r.arg.kind in kinds and r.arg.number != detail.warps}
    axes = axes_of(index, inside, lambda r: (r in sides[0], r in sides[1]))
    if isinstance(axes, str):
        return []
    parts = [axis.length(inside) for axis in axes]
    row = ROW // index.dtype.itemsize
    by_number = {r.arg.number: number for number, axis in enumerate(axes) for r in axis.steps}
    columns, halves = by_number.get(detail.pair), by_number.get(detail.halves)
    if columns != 0 or halves is None or parts[0] % row or prod(parts[1:]) != WARP_ROWS:
        return []
    if max(a.apart(inside) for a in axes) > 1 or any(part > 1 for part in parts[halves + 1 :]):
        return []
    parts[0] = row
    arg = BoxArg(tuple([a.size for a in axes]), tuple([a.stride for a in axes]), tuple(parts))
    return [mk(Op.BOX, index.dtype, (index.src[0], *[a.begin(inside) for a in axes]), arg)]
