"""Loops of kernels that multiply bytes in words: codes of weights that are laid out with rows as lanes."""

from __future__ import annotations

from gradlet.graph.node import UOp
from gradlet.ops.op import AxisKind, Op
from gradlet.optimize.analysis import KernelFacts, range_size, size_bound
from gradlet.optimize.plan import Plan

SHORT_SUM = 8  # words of a block at most: its sum is straight code
FAR_TILES = 4  # runs through memory side by side
MAX_NODES = 2000  # in the copies of a loop body


def block_products(facts: KernelFacts, plan: Plan) -> set[UOp]:
    """Plan a kernel whose DOTs are summed over short blocks; returns its ranges (empty when it is no such kernel).

    Lanes are the rows that lie side by side. The codes are read once, so memory sets the pace: several far tiles of
    rows are walked at once, or where several vectors are multiplied, those.
    """
    dots = [n for n in facts.order if n.op is Op.DOT]
    over = [r for r in facts.reduces if any(d in plan.below(r) for d in dots)]
    sums = [r for r in over if not any(other is not r and other in plan.below(r) for other in over)]
    if not sums or not all(map(_is_short, sums)):
        return set()
    codes = [a for a in facts.accesses if not a.is_store and any(a.node in plan.below(d.src[0]) for d in dots)]
    outputs = [r for r in facts.loops if r.arg.kind is AxisKind.LOOP and r in facts.ranges[dots[0]]]
    lanes = [r for r in outputs if all(facts.stride(a, r) == 1 for a in codes)]
    if not codes or len(lanes) != 1:
        return set()
    body = sum(1 for n in facts.order if lanes[0] in facts.ranges[n])
    for loop in dict.fromkeys(r for s in sums for r in s.src[1:]):
        plan.unroll(loop, plan.size(loop))
        body *= plan.size(loop)
    plan.vectorize(lanes[0], plan.fitting_lanes(plan.lanes_for(lanes[0]), plan.size(lanes[0])))
    vectors = [r for r in outputs if not any(r in a.ranges for a in codes)]
    rest = [r for r in outputs if r is not lanes[0] and r not in vectors]
    if vectors and plan.size(vectors[0]) > 1:
        plan.unroll(vectors[0], min(plan.size(vectors[0]), FAR_TILES))
    elif rest and range_size(rest[0]) is not None and plan.size(rest[0]) >= 4 * FAR_TILES:
        if body * FAR_TILES <= MAX_NODES:
            plan.unroll_far(rest[0], FAR_TILES)
    return set(facts.ranges[dots[0]])


def _is_short(reduce: UOp) -> bool:
    return all(r.arg.kind is AxisKind.REDUCE and 2 <= size_bound(r) <= SHORT_SUM for r in reduce.src[1:])
