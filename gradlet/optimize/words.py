"""Loops of kernels that multiply bytes in words: codes of weights that are laid out with rows as lanes."""

from __future__ import annotations

from gradlet.graph.node import UOp
from gradlet.ops.op import DOTS, AxisKind, Op
from gradlet.ops.opt import Opt, OptKind, PrefetchDetail
from gradlet.optimize.analysis import Access, KernelFacts, range_size, size_bound
from gradlet.optimize.plan import Plan
from gradlet.schedule.dots import SHORT_SUM

FAR_TILES = 4  # runs through memory side by side
MAX_NODES = 4000  # in the copies of a loop body
AHEAD_BYTES = 4096  # how far before its use memory is asked for


def block_products(facts: KernelFacts, plan: Plan) -> set[UOp]:
    """Plan a kernel whose DOTs are summed over short blocks; returns its ranges (empty when it is no such kernel).

    Lanes are the rows that lie side by side. The codes are read once, so memory sets the pace if what is done with a
    word is little: what several rows or vectors do with it is done at once, as far as their sums fit the registers. If
    few do, several far tiles of rows are walked at once. Codes are asked for well ahead: few runs are no work for the
    hardware that does so.
    """
    dots = [n for n in facts.order if n.op in DOTS]
    over = [r for r in facts.reduces if any(d in plan.below(r) for d in dots)]
    sums = [r for r in over if not any(other is not r and other in plan.below(r) for other in over)]
    if not sums or not all(map(_is_short, sums)):
        return set()
    codes = [a for a in facts.accesses if not a.is_store and any(a.node in plan.below(d.src[0]) for d in dots)]
    outputs = [r for r in facts.loops if r.arg.kind is AxisKind.LOOP and r in facts.ranges[dots[0]]]
    lanes = [r for r in outputs if all(facts.stride(a, r) == 1 for a in codes)]
    if not codes or len(lanes) != 1:
        return set()
    sharing = [r for r in outputs if r is not lanes[0] and any(facts.stride(a, r) == 0 for a in codes)]
    rest = [r for r in outputs if r is not lanes[0] and r not in sharing]
    if rest and len(sharing) == 1 and all(d.op is Op.DOT16 for d in dots):
        plan.inside(sharing[0], rest)  # codes stay near while all vectors pass by
    body = sum(1 for n in facts.order if lanes[0] in facts.ranges[n])
    for loop in dict.fromkeys(r for s in sums for r in s.src[1:]):
        plan.unroll(loop, plan.size(loop))
        body *= plan.size(loop)
    # Where codes are read as they are multiplied, a word of a vector has to meet two of them: loads set the pace else.
    width = plan.fitting_lanes(plan.lanes_for(lanes[0]), plan.size(lanes[0]))
    two = len(sharing) == 1 and all(d.op is Op.DOT16 for d in dots)
    beside = _beside(plan, rest) if two and plan.size(lanes[0]) < 2 * width else None
    two = beside is not None or (two and plan.size(lanes[0]) % (2 * width) == 0)
    plan.vector_block(lanes[0], width, 2 if two and beside is None else 1)
    registers, together = plan.target.vector_registers, len(sums)
    for loop in sorted(sharing, key=lambda r: -r.arg.number):
        copies = min(plan.size(loop), registers // 2 // together // (2 if two else 1), MAX_NODES // body)
        copies = -(-plan.size(loop) // -(-plan.size(loop) // max(copies, 1)))  # as many each time
        if copies > 1:
            plan.unroll(loop, copies)
            together, body = together * copies, body * copies
    if two:
        together, body = 2 * together, 2 * body
    if beside is not None:
        plan.unroll(beside, 2)
    rest = [r for r in rest if r is not beside]
    far = min(FAR_TILES, registers // 4 // together, MAX_NODES // body)
    if far > 1 and rest and range_size(rest[0]) is not None and plan.size(rest[0]) >= 4 * FAR_TILES:
        plan.unroll_far(rest[0], far)
    longest = max(codes, key=lambda a: a.param.arg.size * a.param.dtype.itemsize)
    if not two or longest.param.arg.size * longest.param.dtype.itemsize > plan.target.l2_bytes:
        _ask_ahead(facts, plan, longest)
    return set(facts.ranges[dots[0]])


def _beside(plan: Plan, loops: list[UOp]) -> UOp | None:
    """The innermost of some loops whose steps can be done two at once."""
    even = [r for r in loops if range_size(r) is not None and plan.size(r) % 2 == 0]
    return max(even, key=lambda r: r.arg.number, default=None)


def _ask_ahead(facts: KernelFacts, plan: Plan, longest: Access) -> None:
    """Ask for the codes of later blocks: behind the last one of a tile lies the first one of the next."""
    for loop in sorted(longest.ranges, key=lambda r: -r.arg.number):
        step = facts.stride(longest, loop)
        if loop.arg.kind is AxisKind.REDUCE and plan.blocks(loop) > 1 and step:
            ahead = max(1, AHEAD_BYTES // (step * longest.param.dtype.itemsize))
            detail = PrefetchDetail(longest.param.arg.slot)
            plan.opts.append(Opt(OptKind.PREFETCH, plan.number(loop), ahead, detail=detail))
            return


def _is_short(reduce: UOp) -> bool:
    return all(r.arg.kind is AxisKind.REDUCE and 2 <= size_bound(r) <= SHORT_SUM for r in reduce.src[1:])
