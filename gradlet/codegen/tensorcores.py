"""Sums along TENSOR ranges become instructions of a matrix unit, where the target has one; else they are loops.

The unit of a warpgroup (four warps) multiplies tiles that lie in shared memory. Its registers belong to lanes in a
fixed way, which TENSORIZE has made ranges of: a lane has, of every eight columns, two beside each other, in two rows.
"""

from __future__ import annotations

from gradlet.base.dtype import dtypes
from gradlet.graph.node import UOp, mk
from gradlet.ops.op import AxisKind, Op, OptKind, ReduceArg, TensorizeDetail, WgmmaArg
from gradlet.optimize.actions.tensorize import Tiles, tiles_of
from gradlet.optimize.analysis import kernel_order, make_range
from gradlet.target.target import Target


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
            new[node] = _product(node, tiles_of(node), detail, {r.arg.number: r for r in order if r.op is Op.RANGE})
    return sink.substitute(new)


def _product(node: UOp, tiles: Tiles, detail: TensorizeDetail, by_number: dict[int, UOp]) -> UOp:
    """A lane's element of the product: which of its registers it is depends on the ranges of the tile."""
    warps, halves, groups, pair = (by_number[n] for n in detail[:4])
    columns = 8 * int(groups.src[0].arg)
    dtype = dtypes.float32.vec(columns // 2)
    arg = WgmmaArg(16 * int(warps.src[0].arg), columns, tiles.depth, tiles.first_across, tiles.second_across)
    if tiles.first.src[0].arg.size > arg.rows * arg.depth:  # buffers in turn
        arg = arg._replace(pending=detail.pending)
    start = UOp.const(dtype, 0.0)
    rest = [r for r in node.src[1:] if r.arg.kind is not AxisKind.TENSOR]
    buffers = int(tiles.first.src[0].arg.size) // (arg.rows * arg.depth)
    buffer = rest[0] % buffers if buffers > 1 else UOp.const(dtypes.index, 0)
    value = mk(Op.WGMMA, dtype, (tiles.first, tiles.second, warps, buffer, start), arg)
    total = mk(Op.REDUCE, dtype, (value, *rest), ReduceArg(Op.ADD))
    return mk(Op.PICK, dtypes.float32, (total, groups * 4 + halves * 2 + pair))
