"""Blocks of copies that permute axes: vectors along the axis the result is contiguous in, copies along the operand's.

A tile of so many copies and vectors is transposed in registers (`codegen/transpose`) and fills whole lines of the
result. Blocks of tiles touch few pages of either side.
"""

from __future__ import annotations

from collections.abc import Sequence

from gradlet.graph.node import UOp
from gradlet.ops.op import AxisKind, Op
from gradlet.optimize.actions.stream import LINE_BYTES
from gradlet.optimize.analysis import HEAVY, HEAVY_NODES, Access, KernelFacts, is_fixed
from gradlet.optimize.plan import Plan

PIECE_BYTES = 16  # exchanges of elements stay inside so many bytes of a vector
BLOCK_COLUMNS = 256  # of the operand: rows of the result, each a page
MAX_TILE = 1000  # nodes in the copies of a tile


def transposing_tile(facts: KernelFacts, plan: Plan, accesses: Sequence[Access], candidates: Sequence[UOp]) -> bool:
    """Plan such a tile for the stores of these accesses; whether there is one."""
    found = _axes(facts, plan, accesses, candidates)
    if found is None:
        return False
    rows, columns, itemsize = found
    width = PIECE_BYTES // itemsize
    lanes = plan.fitting_lanes(min(max(width, plan.lanes_for(rows)), LINE_BYTES // itemsize), plan.size(rows))
    if width < 2 or lanes % width or plan.size(columns) < width:
        return False
    vectors = max(1, min(LINE_BYTES // (lanes * itemsize), plan.size(rows) // lanes))
    body = [n for n in facts.order if not facts.ranges[n].isdisjoint((rows, columns))]
    work = sum(HEAVY_NODES if n.op in HEAVY else 1 for n in body)
    if any(n.op in (Op.REDUCE, Op.CARRY) for n in body) or work * width * vectors > MAX_TILE:
        return False
    if plan.size(columns) <= BLOCK_COLUMNS:
        outputs = [r for r in facts.loops if r.arg.kind is AxisKind.LOOP]
        if not plan.opts and len(outputs) > 1 and outputs[-1] is not columns:
            plan.innermost(columns, outputs)
        plan.vector_block(rows, lanes, vectors)
        plan.unroll(columns, width)
    else:
        plan.vector_block(rows, lanes, vectors)
        plan.split_and_unroll(columns, _even(plan.size(columns), width), width)
    return True


def _even(size: int, width: int) -> int:
    """The length of blocks that are nearly equal, none longer than BLOCK_COLUMNS."""
    count = -(-size // BLOCK_COLUMNS)
    return -(-size // (count * width)) * width


def _axes(
    facts: KernelFacts, plan: Plan, accesses: Sequence[Access], candidates: Sequence[UOp]
) -> tuple[UOp, UOp, int] | None:
    """The axis that the result is contiguous in, the one that an operand is, and the bytes of its elements."""
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
            return rows[0], columns[0], access.param.dtype.itemsize
    return None


def _same_guard(facts: KernelFacts, access: Access, rows: UOp) -> bool:
    """Whether a guard of the access, if there is one, is the same for all lanes along the rows."""
    return all(rows not in facts.ranges[gate] for gate in access.address.src[2:])
