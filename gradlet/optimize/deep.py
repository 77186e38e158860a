"""Long sums into a small result: the sums wait in the near cache while a slice of both factors goes by.

A register tile alone would walk the whole of the wide factor for its few rows, and come back for the next ones when
none of it is near any more. In slices, what all tiles need of it stays in the near caches until each has used it
(`ACCUMULATE`); the result is small enough to be read and written once a slice.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from gradlet.ops.op import AxisKind
from gradlet.optimize.actions.accumulate import obstacle
from gradlet.optimize.analysis import KernelFacts, range_size
from gradlet.optimize.plan import Plan
from gradlet.optimize.tileshape import Need, choose_tile
from gradlet.schedule.deep import UNROLLED, slice_depth, stays_near

if TYPE_CHECKING:
    from gradlet.optimize.contraction import Contraction

ANY_ROWS: Final = 5040  # a multiple of all heights of tiles: uneven cuts waste nothing where tiles differ by a row


def plan_deep(facts: KernelFacts, plan: Plan, found: Contraction) -> bool:
    """Plan a product whose result, for every iteration of the ranges outside, fits the near cache."""
    rows, columns, along = found.rows, found.vector, found.reduce.src[1]
    size, item = range_size(along), found.reduce.dtype.itemsize
    if rows is None or size is None or len(found.reduce.src) != 2 or found.together > 1:
        return False
    others = facts.ranges[found.reduce.src[0]] - {rows, columns, along}
    loads = [a for a in facts.accesses if not a.is_store]
    if len(others) > 1 or any(r not in a.ranges for r in others for a in loads):
        return False  # outside is at most one range, which both factors have
    if facts.reduces != [found.reduce] or columns is along or range_size(rows) is None or range_size(columns) is None:
        return False
    height, width = plan.size(rows), plan.size(columns)
    lanes = plan.lanes_for(columns)
    if not stays_near(height, width, item, plan.target):
        return False
    if size * width * item <= plan.target.l2_bytes or plan.is_ordered(along) or obstacle(facts, along) is not None:
        return False
    if any(facts.stride(a, columns) != 1 for a in facts.accesses if columns in a.ranges):
        return False
    outputs = [r for r in facts.loops if r in facts.ranges[found.reduce] and r.arg.kind is AxisKind.LOOP]
    depth = slice_depth(size, width, item, plan.target)
    if not depth:
        return False
    even = plan.divides_evenly(rows, height)
    shape = choose_tile(plan.target, Need(ANY_ROWS if even else height, lanes, width // lanes, length=width))
    plan.accumulate(along, depth, [rows, columns])
    plan.innermost(rows, outputs)
    plan.vector_block(columns, lanes, shape.vectors)
    if even and height % shape.rows and plan.divides_evenly(rows, shape.rows):
        plan.balance(rows, shape.rows)
    else:
        plan.unroll(rows, shape.rows)
    plan.unroll(along, UNROLLED)
    return True
