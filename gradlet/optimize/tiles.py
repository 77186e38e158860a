"""Blocks of copies that permute axes: vectors along the axis the result is contiguous in, copies along the operand's.

A tile of so many copies and vectors is transposed in registers (`codegen/transpose`) and fills whole lines of the
result. Blocks of tiles touch few pages of either side; the rows of an image whose channels
go last are read as long streams.
"""

from __future__ import annotations

from collections.abc import Sequence

from gradlet.graph.node import UOp
from gradlet.ops.op import AxisKind, Op
from gradlet.ops.opt import OptKind
from gradlet.optimize.actions.stream import LINE_BYTES
from gradlet.optimize.analysis import HEAVY, HEAVY_NODES, Access, KernelFacts, is_fixed
from gradlet.optimize.plan import Plan

PIECE_BYTES = 16  # exchanges of elements stay inside so many bytes of a vector
MOST_COLUMNS = 256  # of the operand that go by in one loop
BLOCK_COLUMNS = 64  # of a block where there are more: rows of the result, each a page
NEAR_SHARE = 4  # an operand of up to one part in so many of the second cache is read in any order
MAX_TILE = 1000  # nodes in the copies of a tile


def transposing_tile(facts: KernelFacts, plan: Plan, accesses: Sequence[Access], candidates: Sequence[UOp]) -> bool:
    """Plan such a tile for the stores of these accesses; whether there is one."""
    found = _axes(facts, plan, accesses, candidates)
    if found is None:
        return False
    rows, columns, operand = found
    itemsize = operand.param.dtype.itemsize
    width = PIECE_BYTES // itemsize
    lanes = plan.fitting_lanes(min(max(width, plan.lanes_for(rows)), LINE_BYTES // itemsize), plan.size(rows))
    if width < 2 or lanes % width or plan.size(columns) < width:
        return False
    vectors = max(1, min(LINE_BYTES // (lanes * itemsize), plan.size(rows) // lanes))
    body = [n for n in facts.order if not facts.ranges[n].isdisjoint((rows, columns))]
    work = sum(HEAVY_NODES if n.op in HEAVY else 1 for n in body)
    if any(n.op in (Op.REDUCE, Op.CARRY) for n in body) or work * width * vectors > MAX_TILE:
        return False
    # Two pieces of each row of the operand at once where that comes from far away, unless the last ones would mostly do
    # the same again.
    count, size = min(2 * width, lanes), plan.size(columns)
    single = any(a.param.dtype.is_bool and rows in a.ranges and facts.stride(a, rows) != 1 for a in accesses)
    fits = size >= count and work * count * vectors <= MAX_TILE and not single  # those are loaded one by one
    if count % width or not fits or _whole(size, count) > _whole(size, width) * 9 // 8:
        count = width
    outputs = [r for r in facts.loops if r.arg.kind is AxisKind.LOOP]
    early = not plan.opts and len(outputs) > 1
    if plan.size(columns) <= MOST_COLUMNS:
        if early and outputs[-1] is not columns:
            plan.innermost(columns, outputs)
        lines = all(opt.kind is OptKind.REORDER for opt in plan.opts) and plan.size(rows) * itemsize % LINE_BYTES == 0
        others = [r for r in outputs if r not in (rows, columns)]
        follows = lines and _follow_rows(facts, plan, operand, rows, others)
        plan.vector_block(rows, lanes, vectors)
        plan.unroll(columns, count if follows else width)
    else:
        lone = all(facts.ranges[store].issuperset(outputs) for store in facts.stores)
        if early and lone and outputs[-2:] != [columns, rows]:
            plan.innermost(columns, outputs)
            plan.innermost(rows, outputs)
        plan.vector_block(rows, lanes, vectors)
        plan.split_and_unroll(columns, _even(plan.size(columns), count), count)
    return True


def _whole(size: int, amount: int) -> int:
    """Iterations of whole blocks that cover a range."""
    return -(-size // amount) * amount


def _even(size: int, width: int) -> int:
    """The length of blocks that are nearly equal, none longer than BLOCK_COLUMNS."""
    count = -(-size // BLOCK_COLUMNS)
    return -(-size // (count * width)) * width


def _follow_rows(facts: KernelFacts, plan: Plan, operand: Access, rows: UOp, others: Sequence[UOp]) -> bool:
    """Blocks of rows go outside of the loops in which the operand's rows go on: each is one long stream then.

    So many rows side by side fill whole lines of the result, wherever those lie. Where all rows stay in the second
    cache, the result is better written in order.
    """
    apart = facts.stride(operand, rows) or 0
    if plan.size(rows) * apart * operand.param.dtype.itemsize <= plan.target.l2_bytes // NEAR_SHARE:
        return False
    inside: list[UOp] = []
    for loop in reversed(others):
        if not 0 < (facts.stride(operand, loop) or 0) < apart:
            break
        inside.append(loop)
    if inside:
        plan.outside(rows, inside)
        plan.share_first = rows
    return bool(inside)


def _axes(
    facts: KernelFacts, plan: Plan, accesses: Sequence[Access], candidates: Sequence[UOp]
) -> tuple[UOp, UOp, Access] | None:
    """The axis that the result is contiguous in, the one that an operand is, and that operand."""
    stores = [a for a in accesses if a.is_store]
    rows = [r for r in candidates if all(facts.stride(a, r) == 1 for a in stores)]
    if not rows or not is_fixed(rows[0]):
        return None
    for access in accesses:
        if access.is_store or access.param.dtype.is_bool or not _same_guard(facts, access, rows[0]):
            continue
        stride = facts.stride(access, rows[0])
        columns = [r for r in candidates if r is not rows[0] and facts.stride(access, r) == 1 and is_fixed(r)]
        if stride and stride > 1 and columns:
            return rows[0], columns[0], access
    return None


def _same_guard(facts: KernelFacts, access: Access, rows: UOp) -> bool:
    """Whether a guard of the access, if there is one, is the same for all lanes along the rows."""
    return all(rows not in facts.ranges[gate] for gate in access.address.src[2:])
