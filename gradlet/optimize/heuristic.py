"""The default schedule of a kernel, chosen from its shapes and the target's facts alone: cheap and deterministic."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Final

from gradlet.graph.node import UOp
from gradlet.ops.op import AxisKind, Op, adds_in_order
from gradlet.ops.opt import Opt, OptKind, Tail
from gradlet.optimize import contraction, feeding, lanes, rotation, streams, tiles, words
from gradlet.optimize.actions import language as actions
from gradlet.optimize.analysis import (
    HEAVY,
    HEAVY_NODES,
    MOST_APART,
    SHORT_ROW,
    Access,
    KernelFacts,
    affine,
    coefficient,
    is_fixed,
    range_size,
    size_bound,
)
from gradlet.optimize.cost import estimate_facts
from gradlet.optimize.plan import Plan
from gradlet.optimize.tables import lookups
from gradlet.target.target import Target

# Members of an enum are slow to reach through their class.
_CARRY: Final = Op.CARRY
_LOAD: Final = Op.LOAD
_LOOKUP: Final = Op.LOOKUP
_REDUCE: Final = Op.REDUCE
_SINK: Final = Op.SINK

SHORT = 16  # iterations of a reduce that are written out
MAX_BODY = 600  # nodes in the copies of a loop body
MAX_WIDE = 1200  # nodes in the copies of a body that reduces columns
PICKED = 6  # nodes for each vector that lanes are picked out of, with its address and its shuffle
CHAINS = 4  # carried values of rows that run side by side
BLOCK_SIDES = (8, 4)  # of the blocks that a transposition goes by
MAX_BLOCK = 2048  # nodes in the copies of the body of such a block, a heavy one counted as many
PARALLEL_LAUNCHES = 4  # a kernel is worth several threads when it takes this many launches' time on one


def choose(sink: UOp, target: Target, parallel: bool = True) -> tuple[Opt, ...]:
    """The opts for a kernel; always ones that `actions.apply` accepts.

    Args:
        sink: the kernel.
        target: the machine.
        parallel: whether threads may share a range of it.
    """
    if sink.mask & 1 << Op.AFTER:
        return _with_own_arrays(KernelFacts(sink), target, parallel)
    facts = KernelFacts(sink)
    tables = lookups(facts, target)
    if tables:
        scheduled = KernelFacts(actions.apply(sink, tables, target))
        plan = _plan(scheduled, target, parallel)
        looked_up = [n for n in scheduled.order if n.op is _LOOKUP]
        if all(not plan.lanes.isdisjoint(scheduled.ranges[n]) for n in looked_up):
            return (*tables, *plan.opts)
    return tuple(_plan(facts, target, parallel).opts)


def least(facts: KernelFacts, target: Target) -> tuple[Opt, ...]:
    """What a kernel cannot do without, however little it is to be optimised: else its work would be multiplied."""
    return rotation.least(facts, target) or feeding.least(facts, target)


def _with_own_arrays(facts: KernelFacts, target: Target, parallel: bool) -> tuple[Opt, ...]:
    """For a kernel that says itself what lies near the core: parts for the cores, the rest stays as it is written."""
    shared = [r for r in facts.loops if r.arg.kind is AxisKind.LOOP and r not in facts.closed()]
    shared = [r for r in shared if all(r in facts.ranges[store] for store in facts.stores)]
    if not shared or not (parallel or target.kind == "gpu"):
        return ()
    return (Opt(OptKind.PARALLEL, min(r.arg.number for r in shared), 0),)


def _plan(facts: KernelFacts, target: Target, parallel: bool) -> Plan:
    """What is chosen once it is settled which tables are in registers."""
    plan = Plan(facts, target, facts.next_number())
    if target.kind == "gpu":
        if target.warp > 1:
            lanes.share(facts, plan)
        else:
            _gpu(facts, plan)
        return plan
    taken = any(r.arg.kind is AxisKind.PARALLEL for r in facts.loops)
    parallel = parallel and not taken and _worth_threads(facts, plan)
    if rotation.plan_rotation(facts, plan, parallel) or feeding.plan_feeding(facts, plan, parallel):
        return plan
    tiled = words.block_products(facts, plan) or contraction.tile(facts, plan, parallel)
    busy = tiled | _vectorize_reduces(facts, plan, tiled)
    _vectorize_outputs(facts, plan, busy)
    streams.scan_lines(facts, plan)
    _interleave(facts, plan)
    streams.walk_rows(facts, plan)
    streams.ask_for_rows(facts, plan)
    streams.ask_for_next_row(facts, plan)
    streams.stream_stores(facts, plan)
    if parallel and not plan.parallel_settled:
        _parallelize(facts, plan)
    return plan


def _vectorize_reduces(facts: KernelFacts, plan: Plan, tiled: set[UOp]) -> set[UOp]:
    """Lanes along the reduce range where memory is contiguous along it. Returns the ranges that must get no lanes."""
    busy: set[UOp] = set()
    done: set[UOp] = set()
    # Outer REDUCEs first: lanes along a long range are worth more than lanes along the short ones inside.
    for reduce in reversed(facts.reduces):
        if any(r in tiled for r in facts.ranges[reduce.src[0]]):
            continue
        inside = [a for a in facts.accesses if not a.is_store and facts.ranges[a.node] & frozenset(reduce.src[1:])]
        inside = [a for a in inside if a.node in plan.below(reduce)]
        loop = _row_range(facts, plan, reduce, inside)
        if loop is None or (loop not in done and plan.clashes(loop)):
            _write_out_short(facts, plan, reduce, done)
            continue
        busy |= facts.ranges[reduce.src[0]]
        if loop not in done:
            done.add(loop)
            _row_reduce(facts, plan, reduce, loop, len(inside))
    return busy


def _write_out_short(facts: KernelFacts, plan: Plan, reduce: UOp, done: set[UOp]) -> None:
    """Short ranges of a REDUCE (a pooling window) become straight code."""
    body = plan.copies(reduce) * sum(_weight(facts, plan, n) for n in plan.below(reduce) if facts.ranges[n])
    copies = 1
    for loop in sorted(reduce.src[1:], key=lambda r: (range_size(r) or SHORT, -r.arg.number)):
        size = range_size(loop)
        if size is None or size < 2 or copies * size > SHORT or body * copies * size > MAX_BODY:
            return
        copies *= size
        if loop not in done and loop.arg.kind is AxisKind.REDUCE:
            done.add(loop)
            plan.unroll(loop, size)


def _weight(facts: KernelFacts, plan: Plan, node: UOp) -> int:
    """Instructions a node becomes: a load that lanes gather is one a lane."""
    if node.op is not _LOAD or plan.lanes.isdisjoint(facts.ranges[node]):
        return 1
    access = next(a for a in facts.accesses if a.node is node)
    along = plan.lanes & facts.ranges[node]
    return 1 if any(facts.stride(access, r) == 1 or facts.is_near(access, r) for r in along) else 32


def _row_range(facts: KernelFacts, plan: Plan, reduce: UOp, inside: Sequence[Access]) -> UOp | None:
    """The reduce range along which this REDUCE's loads are mostly contiguous, if lanes pay there."""
    if adds_in_order(reduce.arg.op, reduce.dtype):
        return None
    best, best_score = None, 0
    for loop in reduce.src[1:]:
        size = size_bound(loop)
        if size < 8 or loop.arg.kind is not AxisKind.REDUCE:
            continue
        score = sum(_score(facts, a, loop) for a in inside)
        if not inside and not facts.ranges[reduce]:
            score = 1
        if score > best_score or (score == best_score and best is not None and score > 0 and size > plan.size(best)):
            best, best_score = loop, score
    if best is None:
        return None
    # A column sum has more to gain from lanes along its output.
    outputs = [r for r in facts.ranges[reduce] if r.arg.kind is AxisKind.LOOP and size_bound(r) >= 8]
    if any(sum(_score(facts, a, r) for a in inside) > best_score for r in outputs):
        return None
    return best


def _score(facts: KernelFacts, access: Access, loop: UOp) -> int:
    """How well an access vectorises along `loop`: contiguous is good, far apart bad, not moving neutral."""
    if loop not in access.ranges:
        return 0
    stride = facts.stride(access, loop)
    if stride == 0 and loop not in facts.ranges[access.address]:
        return 0
    if access.is_store:
        return 2 if stride == 1 else -3
    if stride is not None and (2 <= stride <= MOST_APART or stride == -1):
        return 0
    if stride is None and facts.is_near(access, loop):
        return 0
    return 1 if stride == 1 else -1


def _row_reduce(facts: KernelFacts, plan: Plan, reduce: UOp, loop: UOp, loads: int) -> None:
    size = plan.size(loop)
    lanes = plan.fitting_lanes(plan.lanes_for(loop), size)
    plan.vectorize(loop, lanes)
    blocks = -(-size // lanes)
    if blocks == 1:
        return
    single = not any(other is not reduce and loop in other.src[1:] for other in facts.reduces)
    if single and not plan.masked & {loop} and streams.far_segments(plan, loop, loads):
        blocks = plan.blocks(loop)
        if blocks % 2 == 0:
            plan.group(loop, 2, Tail.EXACT)
        return
    body = sum(HEAVY_NODES if n.op in HEAVY else 1 for n in plan.below(reduce) if loop in facts.ranges[n])
    if blocks <= SHORT_ROW and is_fixed(loop) and body * blocks <= MAX_BODY // 2:
        plan.unroll(loop, blocks)  # guards at the end become constants
        return
    groups = 4 if loads <= 2 else 2
    if streams.rows_to_walk(facts) is not None and not streams.walks_one_by_one(facts, plan):
        groups = 2 if streams.together(facts) < 2 else 1  # rows side by side are chains enough, and need registers
    if not facts.ranges[reduce]:
        groups = 8 if loads <= 1 else 4
    if groups < 2:
        return
    exact = [g for g in range(groups, 1, -1) if blocks % g == 0 and is_fixed(loop)]
    if exact:
        plan.group(loop, exact[0], Tail.EXACT)
    elif blocks > 4 * groups:
        plan.group(loop, groups, Tail.MASK)


def _vectorize_outputs(facts: KernelFacts, plan: Plan, busy: set[UOp]) -> None:
    """Lanes and copies along the output range that is contiguous in most accesses."""
    done: set[frozenset[UOp]] = set()
    # The one that runs most often first: the others have its lanes where they share the range.
    for store in sorted(facts.stores, key=lambda s: -math.prod(size_bound(r) for r in facts.ranges[s])):
        ranges = frozenset(r for r in facts.ranges[store] if r.arg.kind is AxisKind.LOOP)
        if ranges in done or any(r in plan.lanes for r in ranges):
            continue
        done.add(ranges)
        accesses = [a for a in facts.accesses if a.ranges & ranges]
        candidates = [r for r in sorted(ranges, key=lambda r: -r.arg.number) if r not in busy and size_bound(r)]
        candidates = [r for r in candidates if not plan.clashes(r)]
        candidates = [r for r in candidates if not _meets_lanes(facts, plan, r)]
        if not candidates:
            continue
        if tiles.transposing_tile(facts, plan, accesses, candidates):
            continue
        best = max(candidates, key=lambda r: (_total(facts, accesses, r), r.arg.number))
        if _total(facts, accesses, best) <= _gathers(facts, accesses, best):
            best = max(candidates, key=lambda r: _total_inside(facts, plan, store, accesses, r))
            if not facts.reduces or _total_inside(facts, plan, store, accesses, best) <= 0:
                _block(facts, plan, accesses, candidates)
                continue
        size = plan.size(best)
        if size < 4:
            continue
        lanes = plan.fitting_lanes(plan.lanes_for(best), size)
        plan.vector_block(best, lanes, _copies(facts, plan, best, lanes, accesses))


def _meets_lanes(facts: KernelFacts, plan: Plan, loop: UOp) -> bool:
    """Whether another store's values depend on this range together with one that has lanes already."""
    nodes = (n for n in facts.order if n.op is not _SINK)
    return any(loop in facts.ranges[n] and not plan.lanes.isdisjoint(facts.ranges[n]) for n in nodes)


def _block(facts: KernelFacts, plan: Plan, accesses: Sequence[Access], candidates: Sequence[UOp]) -> None:
    """A transposition: square blocks of single elements, so that every cache line is used while it is near."""
    body = sum(HEAVY_NODES if n.op in HEAVY else 1 for n in facts.order if not facts.ranges[n].isdisjoint(candidates))
    side = next((side for side in BLOCK_SIDES if body * side * side <= MAX_BLOCK), None)
    if side is None:
        return  # computing, not moving: copies would only be long to compile
    if any(facts.ranges[n] & set(candidates) for n in facts.order if n.op is _CARRY):
        return  # rows of a scan, which are far from one another
    for stores in (True, False):
        for loop in candidates:
            along = any(a.is_store is stores and loop in a.ranges and _is_along(facts, a, loop) for a in accesses)
            if along and plan.size(loop) >= side and plan.blocks(loop) == plan.size(loop):
                plan.unroll(loop, side)
                break  # a block has two sides, also where operands along further loops are read


def _is_along(facts: KernelFacts, access: Access, loop: UOp) -> bool:
    """Whether an access goes from one element to the next along a loop; a load may stay at each for a few steps."""
    if facts.stride(access, loop) is not None or access.is_store:
        return facts.stride(access, loop) == 1
    inside = [(atom, factor) for atom, factor in access.form.terms.items() if loop in facts.ranges[atom]]
    return bool(inside) and all(
        factor == 1
        and atom.op is Op.IDIV
        and atom.src[1].op is Op.CONST
        and coefficient(affine(atom.src[0]), loop, facts.ranges) == 1
        for atom, factor in inside
    )


def _total(facts: KernelFacts, accesses: Sequence[Access], loop: UOp) -> int:
    return sum(_score(facts, a, loop) for a in accesses)


def _total_inside(facts: KernelFacts, plan: Plan, store: UOp, accesses: Sequence[Access], loop: UOp) -> float:
    """The same where every access counts as often as it runs for an element of the result: a store of lanes apart does
    no harm after a sum over lanes side by side, nor do weights that stay while the pixels move.
    """
    if plan.size(loop) < plan.lanes_for(loop):
        return 0.0
    outside = math.prod(size_bound(r) for r in facts.ranges[store])
    return sum(_score(facts, a, loop) * math.prod(size_bound(r) for r in a.ranges) / outside for a in accesses)


def _gathers(facts: KernelFacts, accesses: Sequence[Access], loop: UOp) -> int:
    return sum(1 for a in accesses if _score(facts, a, loop) < 0)


def _copies(facts: KernelFacts, plan: Plan, loop: UOp, lanes: int, accesses: Sequence[Access]) -> int:
    """How many vectors of the output range to keep in flight."""
    inside = [n for n in facts.order if loop in facts.ranges[n]]
    reduces = sum(1 for n in inside if n.op is _REDUCE)
    most = max(1, -(-plan.size(loop) // lanes))
    if reduces:
        # A column reduction: wide rows are kind to the prefetcher; each REDUCE keeps an accumulator a copy.
        kept = max(1, plan.target.vector_registers // 2 // reduces)
        body = sum(_weight_of_lanes(facts, plan, loop, n) for n in inside)
        copies = max(1, MAX_WIDE // body)
        if copies >= min(most, kept):
            return min(most, kept)
        whole = next(c for c in range(copies, 0, -1) if most % c == 0)
        return whole if 2 * whole >= copies else copies
    if most <= SHORT_ROW and most * len(inside) <= MAX_BODY and any(facts.is_near(a, loop) for a in accesses):
        return most  # which elements of a short load lanes want is known then
    heavy = sum(1 for n in inside if n.op in HEAVY)
    if heavy:
        return min(most, 2 if heavy == 1 else 1)
    many = min(most, 4 if len(accesses) <= 6 and len(inside) <= 60 else 2 if len(inside) <= 150 else 1)
    if not is_fixed(loop) or plan.size(loop) > 8 * lanes:
        return many
    # A short range: blocks that fit it, so that the last one overlaps instead of being masked.
    return min(range(1, many + 1), key=lambda c: _block_cost(plan.size(loop), lanes, c))


def _weight_of_lanes(facts: KernelFacts, plan: Plan, loop: UOp, node: UOp) -> int:
    """How much code a node is that has lanes along a range: those a few elements apart are picked out of vectors."""
    if node.op is not _LOAD:
        return 1
    stride = facts.stride(next(a for a in facts.accesses if a.node is node), loop)
    return PICKED * stride * plan.copies(node) if stride is not None and 2 <= stride <= MOST_APART else 1


def _block_cost(size: int, lanes: int, copies: int) -> float:
    """Vectors that blocks of so many side by side take, and a little for each block; masks double that."""
    blocks = -(-size // (lanes * copies))
    return blocks * (copies + 0.5) * (1 if lanes * copies <= size else 2)


def _interleave(facts: KernelFacts, plan: Plan) -> None:
    """Rows side by side where each iteration waits for a carried value: several chains of dependences at once."""
    carries = [n for n in facts.order if n.op is _CARRY]
    rows = [r for r in facts.loops if r.arg.kind is AxisKind.LOOP and any(r in facts.ranges[n] for n in carries)]
    if not rows or any(r in plan.lanes for r in rows) or plan.copies(carries[0]) > 1:
        return
    loop = max(rows, key=lambda r: r.arg.number)
    size = range_size(loop)
    body = sum(1 for n in facts.order if facts.ranges[n])
    amount = next((c for c in (CHAINS, 3, 2) if size is not None and size % c == 0), CHAINS)
    if size is not None and size >= amount and body * amount <= MAX_BODY:
        plan.unroll(loop, amount)


def _worth_threads(facts: KernelFacts, plan: Plan) -> bool:
    """Whether a kernel is so much work that several threads should share it."""
    work = estimate_facts(facts)
    target = plan.target
    seconds = max(
        work.flops * target.cores / target.flops_per_second, 2 * work.bytes / target.bytes_per_second
    )  # fmt: skip
    return seconds * 1e12 >= PARALLEL_LAUNCHES * target.launch_ps


def _parallelize(facts: KernelFacts, plan: Plan) -> None:
    """Threads over the outermost big range that all stores share."""
    shared = [r for r in facts.loops if r.arg.kind is AxisKind.LOOP]
    shared = [r for r in shared if all(r in facts.ranges[s] for s in facts.stores) and plan.shared_blocks(r) > 1]
    if not shared:
        return
    shared.sort(key=plan.outermost)
    enough = 4 * plan.target.cores
    loop = next((r for r in shared if plan.shared_blocks(r) >= enough), max(shared, key=plan.shared_blocks))
    first = plan.share_first
    if (
        first in shared
        and shared.index(first) < shared.index(loop)
        and not plan.shared_blocks(first) % plan.target.cores
    ):
        loop = first
    plan.parallel(loop)


def _gpu(facts: KernelFacts, plan: Plan) -> None:
    """A workgroup along the innermost output range, one of the others (or its rest) over workgroups."""
    shared = [r for r in facts.loops if r.arg.kind is AxisKind.LOOP and range_size(r) is not None]
    shared = [r for r in shared if all(r in facts.ranges[s] for s in facts.stores)]
    if not shared:
        return
    accesses = list(facts.accesses)
    inner = max(shared, key=lambda r: (_total(facts, accesses, r), r.arg.number))
    size = plan.size(inner)
    threads = min(256, plan.target.max_threads, 1 << max(0, math.ceil(math.log2(max(size, 1)))))
    if threads > 1:
        plan.thread(inner, threads)
    outer = [r for r in shared if plan.blocks(r) > 1]
    if outer:
        plan.parallel(max(outer, key=plan.blocks))
