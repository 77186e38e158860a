"""Schedules for a GPU whose lanes exchange registers: who computes what, in which order memory is read.

Neighbouring lanes read neighbouring memory, as many bytes each as one access takes. A reduction along memory is shared
by the lanes of a row, which combine their parts; one across it by groups of lanes that each read whole lines. Rows that
are read more than once stay in registers, where they fit.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Final

from gradlet.graph.node import UOp
from gradlet.ops.op import AxisKind, Op, adds_in_order
from gradlet.ops.opt import Opt, OptKind
from gradlet.optimize import blocks, units
from gradlet.optimize.actions.deal import find_rows
from gradlet.optimize.analysis import Access, KernelFacts, is_fixed, size_bound
from gradlet.optimize.mixturetiles import feeding_tile, mixture_tile
from gradlet.optimize.plan import Plan

BLOCK: Final = 256  # lanes of a workgroup, where nothing asks for another number
SMALL_BLOCK: Final = 128  # rows of fewer lanes share a workgroup up to this
ROW: Final = 32  # a reduce range from which on lanes share it
VECTORS: Final = 4  # accesses of a lane in a row, about
BUSY: Final = 1024  # lanes that keep a multiprocessor busy
IDLE: Final = 4  # one lane of so many may be idle past the end of a short range
KEPT: Final = 64  # elements of a row that a lane keeps in registers
COPIES: Final = 4  # accesses that are written out, so that they are under way together
FEWEST_STEPS: Final = 64  # of an ordered loop that parts are worth
PARTS: Final = 2  # of such a loop, for a multiprocessor
MOST_NODES: Final = 1500  # in all copies of a body
GROUPS: Final = 32  # of lanes that share a reduction across memory, at most


def share(facts: KernelFacts, plan: Plan) -> None:
    """Choose lanes, accesses and workgroups for a kernel."""
    product = mixture_tile(facts, plan.target) or feeding_tile(facts, plan.target)
    product = product or units.tensor_tile(facts, plan.target)
    product = product or blocks.tile(facts, plan.target)
    if product is not None:
        plan.opts.extend(product)
        return
    shared = [r for r in facts.loops if r.arg.kind is AxisKind.LOOP]
    shared = [r for r in shared if all(r in facts.ranges[s] for s in facts.stores)]
    if _dealt(facts, plan, shared):
        return
    rows = _row_ranges(facts, shared)
    if rows:
        _rows(facts, plan, shared, rows)
    elif shared:
        _columns(facts, plan, shared)


def _dealt(facts: KernelFacts, plan: Plan, shared: Sequence[UOp]) -> bool:
    """Parts for an ordered loop that adds to rows of a table (the gradient of an embedding): whether there are any.

    Every part reads all numbers of rows, so that there are as many parts as keep the GPU busy and no more: lanes along
    rows where these are long, lanes with parts of their own where they are not.
    """
    ordered = [r for r in facts.loops if r.arg.kind is AxisKind.ORDERED]
    if prod(size_bound(r) for r in ordered) < FEWEST_STEPS or not ordered:
        return False
    loop = ordered[-1]
    rows = find_rows(facts, loop)
    if isinstance(rows, str):
        return False
    inner = max(shared, key=lambda r: (_strides_of_one(facts, facts.accesses, r), r.arg.number), default=None)
    if inner is not None and plan.size(inner) >= plan.target.warp:
        lanes = _dividing(plan.size(inner), plan.target.max_threads, plan.target.warp)
        blocks = prod(plan.size(r) for r in shared) // plan.size(inner) * -(-plan.size(inner) // lanes)
        parts = _power(min(rows.many, PARTS * plan.target.cores // blocks))
        if parts < 2:
            return False
        number = plan.deal(loop, parts)
        plan.thread(inner, lanes)
    else:
        parts = min(_power(rows.many), BLOCK * _up(plan.target.cores))
        if parts < plan.target.warp:
            return False
        number = plan.deal(loop, parts)
        lanes = min(BLOCK, parts)
        plan.opts.append(Opt(OptKind.THREAD, number, lanes))
        if parts == lanes:
            number = -1
    if number >= 0:
        plan.opts.append(Opt(OptKind.PARALLEL, number, 0))
    for r in shared:
        if plan.blocks(r) > 1 or not is_fixed(r):
            plan.parallel(r)
    return True


def _dividing(size: int, most: int, warp: int) -> int:
    """The most lanes in whole warps that divide a size; where none do, as many as a block usually has."""
    fitting = [n for n in range(warp, min(most, size) + 1, warp) if size % n == 0]
    return max(fitting, default=min(BLOCK, _up(size)))


def _strides_of_one(facts: KernelFacts, accesses: Sequence[Access], loop: UOp) -> int:
    return sum(1 for a in accesses if loop in a.ranges and facts.stride(a, loop) == 1)


def _row_ranges(facts: KernelFacts, shared: Sequence[UOp]) -> list[UOp]:
    """The reduce ranges along which memory lies, one a REDUCE, where lanes of a row are better than rows of lanes."""
    found: dict[UOp, None] = {}
    for reduce in facts.reduces:
        if adds_in_order(reduce.arg.op, reduce.dtype):
            continue
        below = set(reduce.toposort())
        inside = [a for a in facts.accesses if not a.is_store and a.node in below]
        candidates = [r for r in reduce.src[1:] if r.arg.kind is AxisKind.REDUCE and size_bound(r) >= ROW]
        candidates = [
            r for r in candidates if _strides_of_one(facts, inside, r) or not any(r in a.ranges for a in inside)
        ]
        if not candidates:
            continue
        best = max(candidates, key=lambda r: (_strides_of_one(facts, inside, r), size_bound(r)))
        along = _strides_of_one(facts, inside, best)
        outputs = [r for r in shared if r in facts.ranges[reduce]]
        many = [a for a in inside if best in a.ranges]  # what a row has one of is no reason to go across rows
        if any(_strides_of_one(facts, many, r) >= max(1, along) and size_bound(r) >= ROW for r in outputs):
            continue
        if any(best in other.src[1:] and reduce in other.toposort() and other is not reduce for other in facts.reduces):
            continue
        found[best] = None
    if any(n.op in (Op.CARRY, Op.AFTER) for n in facts.order):
        return []
    # Lanes are combined once on the way to a result, not inside of other lanes.
    inner = [n for n in facts.reduces if not found.keys().isdisjoint(n.src[1:])]
    for reduce in inner:
        parts = set(reduce.src[0].toposort())
        own = [r for r in reduce.src[1:] if r in found]
        if any(n in parts and r in facts.ranges[n] for n in inner for r in own):
            return []
    return list(found)


def _width(facts: KernelFacts, plan: Plan, loop: UOp) -> int:
    """Elements of one access along a range: what the widest of its accesses takes at once."""
    along = [a for a in facts.accesses if loop in a.ranges and facts.stride(a, loop) == 1]
    if not along or not is_fixed(loop) or any(n.op in (Op.CARRY, Op.AFTER) for n in facts.order):
        return 1
    if any(r.arg.kind is AxisKind.ORDERED for r in facts.loops):
        return 1
    width = plan.target.access_bytes // max(a.address.dtype.itemsize for a in along)
    while width > 1 and plan.size(loop) % width:
        width //= 2
    return max(1, width)


def _power(value: int) -> int:
    """The largest power of two that is not larger."""
    return 1 << (max(1, value).bit_length() - 1)


def _rows(facts: KernelFacts, plan: Plan, shared: Sequence[UOp], rows: Sequence[UOp]) -> None:
    """Lanes along the reduced rows, and along what is stored of them."""
    closing = [n for n in facts.reduces if not set(rows).isdisjoint(n.src[1:])]
    outer = [r for r in shared if all(r in facts.ranges[n] for n in closing)]
    stored = [r for r in _stored(facts) if r not in outer and not any(r in facts.ranges[n] for n in closing)]
    count = 1
    for r in outer:
        count *= plan.size(r)
    longest = max(plan.size(r) for r in rows)
    width = max(1, min(_width(facts, plan, r) for r in rows))
    along = max(stored, key=lambda r: _strides_of_one(facts, facts.accesses, r), default=None)
    if along is not None and plan.size(along) >= ROW:
        width = min(width, _width(facts, plan, along))
    accesses = -(-longest // width)
    lanes = min(BLOCK, max(_power(accesses // VECTORS), min(32, _power(accesses))))
    while lanes < plan.target.max_threads and lanes * 2 <= accesses and count * lanes < plan.target.cores * BUSY // 2:
        lanes *= 2
    passes = len(rows) + (along is not None)
    loops = [*rows, *([along] if along is not None and plan.size(along) >= ROW else [])]
    # Rows first: then all element numbers are sums in one order, and those of different passes the same.
    for r in reversed(outer):
        side = min(SMALL_BLOCK // lanes, _power(plan.size(r)))
        if side > 1 and count // side >= plan.target.cores:
            plan.thread(r, side)
            break
    for loop in loops:
        _lanes_along(facts, plan, loop, width, lanes, passes)
    for r in outer:
        if plan.blocks(r) > 1:
            plan.parallel(r)


def _stored(facts: KernelFacts) -> list[UOp]:
    """The ranges of stores over which lanes may be, also of those that other stores do not depend on."""
    loaded = {a.slot for a in facts.accesses if not a.is_store}
    apart = [a for a in facts.accesses if a.is_store and a.slot in loaded]
    loops = [r for r in facts.loops if r.arg.kind is AxisKind.LOOP and any(r in facts.ranges[s] for s in facts.stores)]
    return [r for r in loops if all(r in a.ranges for a in apart)]


def _lanes_along(facts: KernelFacts, plan: Plan, loop: UOp, width: int, lanes: int, passes: int) -> None:
    if width > 1:
        plan.vectorize(loop, width)
    plan.thread(loop, lanes)
    left = plan.blocks(loop)
    body = sum(1 for n in facts.order if loop in facts.ranges[n]) * width
    if left < 2 or not is_fixed(loop) or loop in plan.masked:
        return
    if passes > 1 and left * width <= KEPT and body * left <= MOST_NODES:
        plan.unroll(loop, left)
        return
    copies = next((c for c in (COPIES, 3, 2) if left % c == 0), 1)
    if copies > 1 and body * copies <= MOST_NODES:
        plan.unroll(loop, copies)


def _columns(facts: KernelFacts, plan: Plan, shared: Sequence[UOp]) -> None:
    """Lanes along the outputs; groups of them share a reduction where there are too few."""
    candidates = _stored(facts) if not facts.reduces else shared
    inner = max(
        candidates, key=lambda r: (_strides_of_one(facts, facts.accesses, r), size_bound(r) >= ROW, r.arg.number)
    )
    count = 1
    for r in dict.fromkeys([*shared, inner]):
        count *= plan.size(r)
    width = _width(facts, plan, inner)
    body = sum(1 for n in facts.order if inner in facts.ranges[n])
    heavy = any(n.op is Op.REDUCE and inner in facts.ranges[n] for n in facts.order)
    fewest = plan.target.cores * BUSY * (4 if heavy else 1)
    widest = width
    while width > 1 and (count // width < fewest or body * width > MOST_NODES):
        width //= 2
    if _may_group(facts, inner):
        width = max(width, _shared_width(plan, inner, count, min(widest, MOST_NODES // body)))
    if width > 1:
        plan.vectorize(inner, width)
    groups, reduced = _groups(facts, plan, inner, count // width)
    lanes = max(plan.target.warp, BLOCK // groups) if groups > 1 else BLOCK
    used = min(lanes, _up(plan.blocks(inner)))
    if groups > 1:
        used = lanes
    nearest = plan.thread(inner, used) if used > 1 else None
    beside = False
    for r in reversed(shared):
        if groups > 1 or used * 2 > BLOCK:
            break
        if r is inner or not is_fixed(r):
            continue
        side = min(BLOCK // used, _power(plan.size(r)))
        while side > 1 and (-plan.size(r) % side) * IDLE > plan.size(r):
            side //= 2
        if side > 1:
            plan.thread(r, side)
            used *= side
            beside = True
    for r in reduced:
        plan.thread(r, groups)
        copies = min(COPIES, _power(plan.blocks(r)))
        if copies > 1 and body * copies <= MOST_NODES:  # loads that are under way together
            plan.unroll(r, copies)
    if groups > 1:
        for r in _beside(facts, plan, shared, inner):  # what is stored row by row has the same groups
            plan.thread(r, groups)
    for r in shared:
        if plan.blocks(r) > 1 or not is_fixed(r):
            plan.parallel(r)
    if nearest is not None and beside:
        # Lanes are numbered in the order of ranges: neighbours are those along memory.
        outside = sum(opt.kind in (OptKind.PARALLEL, OptKind.THREAD) for opt in plan.opts)
        plan.opts.append(Opt(OptKind.REORDER, nearest, outside - 1))


def _beside(facts: KernelFacts, plan: Plan, shared: Sequence[UOp], inner: UOp) -> list[UOp]:
    """The longest range of every store that runs over more than all stores do."""
    allowed = set(_stored(facts)).difference([*shared, inner])
    found: dict[UOp, None] = {}
    for store in facts.stores:
        own = [r for r in facts.ranges[store] if r in allowed and is_fixed(r)]
        if own:
            found[max(own, key=plan.size)] = None
    return list(found) if len(found) == 1 else []


def _up(value: int) -> int:
    """The smallest power of two that is not smaller."""
    return 1 << max(0, value - 1).bit_length()


def _shared_width(plan: Plan, inner: UOp, count: int, width: int) -> int:
    """Elements of an access where groups of lanes share a reduction: as many as leave a warp and work for all."""
    width = _power(width)
    most = min(GROUPS, plan.target.max_threads // plan.target.warp)
    while width > 1:
        fills = plan.size(inner) >= width * plan.target.warp and plan.size(inner) % width == 0
        if fills and count // width * most >= plan.target.cores * BUSY // 2:
            break
        width //= 2
    return width


def _may_group(facts: KernelFacts, inner: UOp) -> bool:
    """Whether groups of lanes may share the reductions of a kernel."""
    if any(n.op in (Op.CARRY, Op.AFTER) for n in facts.order) or _strides_of_one(facts, facts.accesses, inner) == 0:
        return False
    for reduce in facts.reduces:
        longest = max(reduce.src[1:], key=size_bound)
        inside = any(n.op is Op.REDUCE for n in reduce.src[0].toposort())
        if inner not in facts.ranges[reduce] or inside or longest.arg.kind is not AxisKind.REDUCE:
            return False
        if adds_in_order(reduce.arg.op, reduce.dtype):
            return False
    return bool(facts.reduces)


def _groups(facts: KernelFacts, plan: Plan, inner: UOp, count: int) -> tuple[int, list[UOp]]:
    """How many groups of lanes share a reduction, and its ranges; one group where there are outputs enough."""
    if not _may_group(facts, inner) or plan.blocks(inner) < 32:
        return 1, []
    ranges = dict.fromkeys([max(reduce.src[1:], key=size_bound) for reduce in facts.reduces])
    shortest = min(size_bound(r) for r in ranges)
    groups = 1
    most = min(GROUPS, plan.target.max_threads // plan.target.warp)
    while groups < most and count * groups < plan.target.cores * BUSY and groups * 8 <= shortest:
        groups *= 2
    return groups, list(ranges) if groups > 1 else []
