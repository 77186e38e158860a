"""Both products of attention by blocks of keys (`ROTATE`) become instructions of matrix units.

The first one multiplies queries and keys that lie in shared memory. The second one has its first factor, the weights,
in the registers where the scores were. What the copy engine has to bring is read off the loops that fill the arrays.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

from gradlet.base.dtype import dtypes
from gradlet.base.errors import CompilerError
from gradlet.codegen.tensorcores import box_of, result_box, twin
from gradlet.graph.bounds import bounds
from gradlet.graph.node import UOp, mk
from gradlet.ops.op import AxisKind, Op, WgmmaArg
from gradlet.ops.opt import FeedDetail, OptKind, RotateDetail, TensorizeDetail
from gradlet.optimize.analysis import affine, closed_by, kernel_order, make_range, next_number, range_size
from gradlet.optimize.boxes import axes_of, stored_guards


def use_mixture_units(sink: UOp) -> UOp:
    """The kernel with WGMMA in place of both sums along TENSOR ranges."""
    outputs = _outputs(sink)
    while (node := next((n for n in kernel_order(sink) if _is_tensor(n)), None)) is not None:
        sink = sink.substitute({node: _product(node, sink, outputs)})  # the second product is made of the first one
    return sink


def _blocks_of(sink: UOp) -> RotateDetail | FeedDetail:
    detail = next(o.detail for o in sink.arg.opts if o.kind in (OptKind.ROTATE, OptKind.FEED))
    assert isinstance(detail, (RotateDetail, FeedDetail))
    return detail


def _outputs(sink: UOp) -> list[UOp]:
    """Where a warp stores its rows of the one result, 128 bytes of each at a time; nothing where these are no box."""
    detail = _blocks_of(sink)
    if isinstance(detail, FeedDetail) or not detail.boxes or len(sink.src) != 1:
        return []
    index = sink.src[0].src[0]
    steps = affine(index.src[1]).terms
    kinds = {kind: [r for r in steps if r.op is Op.RANGE and r.arg.kind is kind] for kind in AxisKind}
    half = next((r for r in kinds[AxisKind.UNROLL] if r.arg.number == detail.row), None)
    threads = {steps[r]: r for r in kinds[AxisKind.THREAD]}
    if half is None or len(kinds[AxisKind.VECTOR]) != 1 or len(threads) != 3:
        return []
    (pair,), row = kinds[AxisKind.VECTOR], steps[half] // 8
    warps, groups = threads.get(16 * row), [r for r in kinds[AxisKind.UNROLL] if r is not half]
    if warps is None or threads.get(row) is None or len(groups) != 1:
        return []
    whole = 16 * row * (range_size(warps) or 0)
    rows = {half, *[r for at, r in threads.items() if at >= row], *[r for r in steps if steps[r] == whole]}
    columns = {pair, *groups, *[r for at, r in threads.items() if at < row]}
    numbers = (int(r.arg.number) for r in (warps, half, groups[0], pair))
    return result_box(index, [rows, columns], TensorizeDetail(*numbers))


def _is_tensor(node: UOp) -> bool:
    return node.op is Op.REDUCE and node.src[1].arg.kind is AxisKind.TENSOR


def _loaded(side: UOp) -> UOp:
    """The load that a factor is, whatever it has been converted to."""
    while side.op is Op.CAST:
        side = side.src[0]
    return side


def _ranges_of(load: UOp, kind: AxisKind) -> list[UOp]:
    return [n for n in load.src[0].src[1].toposort() if n.op is Op.RANGE and n.arg.kind is kind]


def _product(node: UOp, sink: UOp, outputs: Sequence[UOp]) -> UOp:
    """A lane's element of a product: which of its registers it is depends on the ranges of the tile."""
    first, second = (_loaded(side) for side in node.src[0].src)
    (depth,) = node.src[1:]
    (half,), (group,), (pair,) = (
        _ranges_of(first, AxisKind.UNROLL), _ranges_of(second, AxisKind.UNROLL), _ranges_of(second, AxisKind.VECTOR)
    )  # fmt: skip
    weights = first.src[0].src[0]
    registers = weights.src[0].arg.private
    columns = 8 * (range_size(group) or 0)
    rows, lanes = 64, UOp.const(dtypes.index, 0)
    boxes = [_box(second, sink)]
    if not registers:
        rows = weights.src[0].arg.size // (range_size(depth) or 1)
        warps, eight = sorted(_ranges_of(first, AxisKind.THREAD), key=lambda r: r.arg.number)
        lanes = warps * 8 + eight  # what a lane has depends on both
        boxes.insert(0, _box(first, sink, half))
    else:
        boxes += outputs
    arg = WgmmaArg(rows, columns, range_size(depth) or 0, False, registers, alone=True, registers=registers)
    dtype = dtypes.float32.vec(columns // 2)
    arrays = (weights if registers else weights.src[0], second.src[0].src[0].src[0])
    zero, start = UOp.const(dtypes.index, 0), UOp.const(dtype, 0.0)
    unit = mk(Op.WGMMA, dtype, (*arrays, lanes, zero, start, *boxes), arg)
    return mk(Op.PICK, dtypes.float32, (unit, group * 4 + half * 2 + pair))


def _box(use: UOp, sink: UOp, half: UOp | None = None) -> UOp:
    """What the copy engine brings into the array that a factor is loaded from; `half` is for that of the queries."""
    filled = use.src[0].src[0]
    store, own = filled.src[1], closed_by(filled)
    index, place = store.src[1].src[0], use.src[0].src[1]
    ordered = [n for n in index.toposort() if n.op is Op.RANGE and n.arg.kind is AxisKind.ORDERED]
    known: list[UOp] = []
    steady: dict[UOp, UOp] = {}
    if ordered:
        # How many blocks there are may differ from row to row: boxes are those of a loop over all of them.
        (block,) = ordered
        sums = (n for n in index.toposort() if n.op is Op.ADD and block in n.src)
        at = next(sums, block)
        steady[at] = make_range(
            UOp.const(dtypes.index, max(2, int(bounds(at)[1]) + 1)), next_number(sink), AxisKind.LOOP
        )
    if half is not None:
        twins = {r: twin(store.src[0].src[1], own, place, r) for r in place.toposort() if r.op is Op.RANGE}
        number = _blocks_of(sink).row
        rows = next(n for n in kernel_order(sink) if n.op is Op.RANGE and n.arg.number == number)
        known = [guard.substitute({**twins, rows: twins[half]}) for guard in stored_guards(sink)]
    index = index.substitute(steady)
    axes = axes_of(index, own, lambda r: _group(r, own, half is None, steady.values()), known)
    if isinstance(axes, str):
        raise CompilerError(f"what ROTATE has the copy engine bring is no box any more: {axes}")
    box = box_of(index, axes, own)
    return box.substitute({loop: before for before, loop in steady.items()})


def _group(loop: UOp, own: Sequence[UOp], keys: bool, blocks: Collection[UOp]) -> int:
    """Elements side by side (0) are no rows (1). Rows of keys end where the keys do: nothing else (2) goes on there."""
    if not keys:
        return 0 if loop is own[-1] else 1
    if loop in own:
        return 1 if loop is own[0] else 0
    return 1 if loop in blocks else 2
