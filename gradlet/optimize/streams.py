"""Choices about memory that streams by: far segments, rows asked for ahead, stores past the caches."""

from __future__ import annotations

import math
from typing import NamedTuple

from gradlet.base.settings import STRICT_FLOAT
from gradlet.graph.node import UOp
from gradlet.ops.op import AxisKind, Op
from gradlet.ops.opt import Opt, OptKind, PrefetchDetail, Tail
from gradlet.optimize.actions.scan import find_carried, reorders
from gradlet.optimize.actions.stream import LEAST_BYTES, LINE_BYTES
from gradlet.optimize.analysis import HEAVY, HEAVY_NODES, Access, KernelFacts, divisor, is_fixed, range_size, size_bound
from gradlet.optimize.plan import Plan
from gradlet.target.target import MAX_SCRATCH

LEAST_LINES = 4  # of a row that is scanned by lines
STREAMS = 8  # far segments that the hardware follows at once
SEGMENT_BYTES = 64 * 1024  # shorter segments are not far: a prefetcher begins anew in every page
RESULT_SHARE = 4  # a result of more than one part in so many of the last cache goes past it
DEEP = 512  # terms of the sums of a product whose results are so few that going past the caches costs no time
MOST_ROWS_AHEAD = 16
ROWS_AT_ONCE = 4  # that are reduced
MAX_ROW_BODY = 600  # nodes in the copies of their body
LONG_ROW = 2048  # bytes of rows that are taken far apart
LEAST_ROW = 4096  # bytes of a row that is asked for as a whole


def far_segments(plan: Plan, loop: UOp, loads: int) -> bool:
    """Cut the rest of a long reduce range into segments that are walked side by side; whether it was.

    One pass over much memory is bound by how many lines are under way, and every segment has a prefetcher of its own.
    """
    blocks = plan.blocks(loop)
    if not is_fixed(loop) or not loads:
        return False
    for count in range(max(1, STREAMS // loads), 1, -1):
        if blocks % count == 0:
            step = plan.size(loop) // count
            if step * 4 < SEGMENT_BYTES:
                return False
            plan.far(loop, count)
            return True
    return False


def rows_to_walk(facts: KernelFacts) -> UOp | None:
    """The innermost output loop of a kernel that does nothing but reduce rows, of which there are many."""
    outputs = [r for r in facts.loops if r.arg.kind in (AxisKind.LOOP, AxisKind.PARALLEL)]
    rows = max((r for r in outputs if r.arg.kind is AxisKind.LOOP), key=lambda r: r.arg.number, default=None)
    if rows is None or not facts.reduces or not is_fixed(rows) or size_bound(rows) < 4 * ROWS_AT_ONCE:
        return None
    if any(r.arg.kind not in (AxisKind.LOOP, AxisKind.PARALLEL, AxisKind.REDUCE) for r in facts.loops):
        return None
    closed = facts.closed()
    whole = all(facts.ranges[reduce].issuperset(outputs) for reduce in facts.reduces)
    return rows if whole and closed.isdisjoint(outputs) else None


def together(facts: KernelFacts) -> int:
    """The most REDUCEs that one pass over a row serves: each has sums of its own."""
    over = [r for reduce in facts.reduces for r in reduce.src[1:]]
    return max([over.count(r) for r in over], default=0)


def walk_rows(facts: KernelFacts, plan: Plan) -> None:
    """Reduce a few rows at once: several streams of memory, and several chains of dependences at the end of a row.

    Long rows are taken far apart, so that one follows another in each stream; short ones side by side. Rows that are
    walked twice go one by one: a few of them are more than the nearest cache holds, and memory brings the next.
    """
    rows = rows_to_walk(facts)
    if rows is None or any(opt.kind is OptKind.FAR for opt in plan.opts):
        return
    if rows in plan.lanes or plan.blocks(rows) != plan.size(rows) or rows in plan.masked:
        return
    if walks_one_by_one(facts, plan):
        return
    loads = [a for a in facts.accesses if not a.is_store and a.ranges & facts.closed()]
    inner = {r for a in loads for r in a.ranges & facts.closed()}
    if not loads or any(plan.lanes.isdisjoint(a.ranges) for a in loads) or not all(is_fixed(r) for r in inner):
        return
    row = max(abs(facts.stride(a, rows) or 0) * a.param.dtype.itemsize for a in loads)
    body = sum(plan.copies(n) * (HEAVY_NODES if n.op in HEAVY else 1) for n in facts.order if facts.ranges[n])
    if body * ROWS_AT_ONCE > MAX_ROW_BODY or plan.tail(rows, ROWS_AT_ONCE) not in (Tail.EXACT, Tail.SHIFT):
        return
    if row >= LONG_ROW:
        plan.unroll_far(rows, ROWS_AT_ONCE)
    else:
        plan.unroll(rows, ROWS_AT_ONCE)


def scan_lines(facts: KernelFacts, plan: Plan) -> None:
    """Running sums along rows go by cache lines: lanes are combined in registers, and whole lines are written."""
    carries = [n for n in facts.order if n.op is Op.CARRY]
    if not carries or any(not plan.lanes.isdisjoint(facts.ranges[c]) for c in carries):
        return
    loop = carries[0].src[-1]
    size, found = range_size(loop), find_carried(facts, loop)
    along = [a for a in facts.accesses if loop in a.ranges]
    if size is None or isinstance(found, str) or (STRICT_FLOAT.value and reorders(facts, loop)):
        return
    widest = max(a.param.dtype.itemsize for a in along)
    count = max(plan.lanes_for(loop), LINE_BYTES // max(widest, 4))
    contiguous = all(facts.stride(a, loop) == 1 for a in along)
    heavy = any(n.op in HEAVY for n in facts.order if loop in facts.ranges[n])
    if contiguous and not heavy and size % count == 0 and size >= LEAST_LINES * count:
        plan.scan(loop, count)


def ask_for_rows(facts: KernelFacts, plan: Plan) -> None:
    """Rows that an index names begin anywhere: ask for those of later iterations."""
    for access in facts.accesses:
        if access.is_store or access.param.arg.size * access.param.dtype.itemsize <= plan.target.l2_bytes:
            continue
        along = [r for r in access.ranges if r in plan.lanes and facts.stride(access, r) == 1]
        named = _named_by(facts, access)
        if not along or not named:
            continue
        loop = max(named, key=lambda r: r.arg.number)
        row = plan.size(along[0]) * access.param.dtype.itemsize
        ahead = min(MOST_ROWS_AHEAD, -(-plan.target.l1_bytes // (3 * row)))
        if loop not in plan.lanes and plan.blocks(loop) == plan.size(loop) > 2 * ahead:
            detail = PrefetchDetail(access.param.arg.slot)
            plan.opts.append(Opt(OptKind.PREFETCH, plan.number(loop), ahead, detail=detail))
            return


class TwoPasses(NamedTuple):
    """Rows of memory that two reductions walk, one after the other.

    Attributes:
        rows: the loop over them.
        param: the memory.
        asking: the range of the reduction during which the row after may be asked for.
    """

    rows: UOp
    param: UOp
    asking: UOp


def two_passes(facts: KernelFacts, plan: Plan) -> TwoPasses | None:
    """Such rows, which stay in the nearest cache but come from memory; None where there are none.

    Memory is idle from the second pass on. The pass before the last one asks: so the row is there when that has ended.
    """
    passes: dict[tuple[UOp, frozenset[UOp]], list[Access]] = {}
    for access in facts.accesses:
        closed = [r for r in access.ranges if r.arg.kind is AxisKind.REDUCE]
        if not access.is_store and len(closed) == 1 and facts.stride(access, closed[0]) == 1:
            passes.setdefault((access.param, access.ranges - {closed[0]}), []).append(access)
    for (param, outer), accesses in passes.items():
        if len(accesses) != 2 or len(outer) != 1:
            continue
        (loop,) = outer
        row = max(facts.stride(a, loop) or 0 for a in accesses) * param.dtype.itemsize
        if not LEAST_ROW <= row <= plan.target.l1_bytes or row * size_bound(loop) <= plan.target.llc_bytes:
            continue
        one, other = (r for a in accesses for r in a.ranges - outer)
        sums, others = ([n for n in facts.reduces if r in n.src[1:]] for r in (one, other))
        if any(n in plan.below(late) for n in others for late in sums):
            one, other = other, one
        has_third = any(a.param is param and a not in accesses for a in facts.accesses)
        return TwoPasses(loop, param, other if has_third else one)
    return None


def walks_one_by_one(facts: KernelFacts, plan: Plan) -> bool:
    """Whether rows are better reduced one after the other."""
    found = two_passes(facts, plan)
    return found is not None and found.rows is rows_to_walk(facts)


def ask_for_next_row(facts: KernelFacts, plan: Plan) -> None:
    """Rows that are walked several times: memory is idle from the second time on, so ask for the row after."""
    found = two_passes(facts, plan)
    if found is not None and plan.blocks(found.rows) == plan.size(found.rows):
        detail = PrefetchDetail(found.param.arg.slot, along=plan.number(found.asking))
        plan.opts.append(Opt(OptKind.PREFETCH, plan.number(found.rows), 1, detail=detail))


def _named_by(facts: KernelFacts, access: Access) -> list[UOp]:
    """The output loops of an index that names what is accessed, if the kernel does not write that index."""
    stored = {a.param for a in facts.accesses if a.is_store}
    found: set[UOp] = set()
    seen: set[UOp] = set()  # an index may be computed, and share its parts many times over
    stack = list(access.form.terms)
    while stack:
        node = stack.pop()
        if node in seen:
            continue
        seen.add(node)
        if node.op is Op.LOAD:
            if node.src[0].src[0] in stored:
                return []
            found |= facts.ranges[node]
        stack.extend(node.src)
    return [r for r in found if r.arg.kind in (AxisKind.LOOP, AxisKind.PARALLEL)]


def stream_stores(facts: KernelFacts, plan: Plan) -> None:
    """Large results go past the caches, where whole aligned vectors are stored."""
    if any(opt.kind in (OptKind.ACCUMULATE, OptKind.SCAN) for opt in plan.opts):
        return  # results are read again, or several rows write their lines in turn
    deepest = max((math.prod(size_bound(r) for r in reduce.src[1:]) for reduce in facts.reduces), default=0)
    if deepest < DEEP and any(opt.kind is OptKind.STAGE for opt in plan.opts):
        return  # tiles of a product are written so soon after one another that they would wait for memory
    most = max(plan.target.llc_bytes // RESULT_SHARE, MAX_SCRATCH)
    loaded = {a.param for a in facts.accesses if not a.is_store}
    by_slot: dict[int, list[Access]] = {}
    for access in facts.accesses:
        if access.is_store and access.param not in loaded:
            by_slot.setdefault(access.param.arg.slot, []).append(access)
    for slot, stores in by_slot.items():
        # Scratch of a region has the same place for every block.
        elements = sum(math.prod(size_bound(r) for r in facts.ranges[a.address]) for a in stores)
        written = min(elements, stores[0].param.arg.size) * stores[0].param.dtype.itemsize
        shared = frozenset.intersection(*[a.ranges for a in stores])
        if written > most and shared and all(_fills_vectors(facts, plan, a) for a in stores):
            loop = min(shared, key=lambda r: r.arg.number)
            plan.opts.append(Opt(OptKind.STREAM, plan.number(loop), slot))


def _fills_vectors(facts: KernelFacts, plan: Plan, access: Access) -> bool:
    lanes = next((r for r in access.ranges if r in plan.lanes), None)
    if lanes is None or facts.stride(access, lanes) != 1 or len(access.address.src) > 2:
        return False
    if not is_fixed(lanes) or not plan.masked.isdisjoint(access.ranges):
        return False
    count = plan.widths[lanes]
    if plan.size(lanes) % count or not LEAST_BYTES <= count * access.param.dtype.itemsize <= LINE_BYTES:
        return False
    rest = [f * divisor(a) for a, f in access.form.terms.items() if a is not lanes]
    return all(step % count == 0 for step in (access.form.constant, *rest))
