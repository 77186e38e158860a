"""Products with few rows: the other factor is read once, as a few of its rows in memory side by side.

`x @ W` with a handful of rows in `x` does little with each element of `W`, so what counts is how `W` is read. A block
of columns, walked down, touches a new page with every row; a few whole rows next to each other are streams that the
machine prefetches. Sums then wait in the output, which stays in a near cache, and the loop over blocks of the
contracted axis is the outermost one (`ACCUMULATE`).

With several rows the sums of one block of columns lie in as many rows of the output, often a power of two apart, where
they throw one another out of the first cache. So they wait in an array of the core, panel by panel: all rows of a few
vectors of columns side by side, which a register tile then adds to.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Final

from gradlet.graph.node import UOp
from gradlet.ops.op import AxisKind
from gradlet.ops.opt import AccumulateDetail, Opt, OptKind, PrefetchDetail, Tail
from gradlet.optimize.actions.accumulate import obstacle
from gradlet.optimize.analysis import KernelFacts, range_size
from gradlet.optimize.plan import Plan
from gradlet.target.target import Target

if TYPE_CHECKING:
    from gradlet.optimize.contraction import Contraction

# Rows of the wide factor that are read side by side: more fall into the same few sets of the first cache, whose ways
# are eight or more, where they lie a power of two apart.
STREAMS: Final = 8
MIN_STREAMS: Final = 4
# Rows of the narrow factor in one tile: their outputs are streams as well.
TILE_ROWS: Final = 8
# With more rows a copy of the wide factor in strips pays (`schedule/layout`).
MAX_ROWS: Final = 63
# Rows a multiple of this many bytes apart meet in the same sets of the first cache.
PAGE: Final = 4096
# A wide factor of up to so many times the second cache is as well walked down in blocks of columns.
FAR: Final = 8
# Columns of a thread's part: shorter rows are over before prefetching them pays.
MIN_WIDTH: Final = 1024
# How far before its use a row of the wide factor is asked for: so many rows are more than all prefetchers follow.
AHEAD_BYTES: Final = 256
# Sums of a tile: with fewer, multiply-adds wait for one another.
LEAST_SUMS: Final = 6


def plan_thin(facts: KernelFacts, plan: Plan, found: Contraction, parallel: bool) -> bool:
    """Plan a product with few rows, if it is one whose wide factor lies in memory row by row and is large."""
    streams = _streams(facts, plan, found)
    if not streams:
        return False
    along, columns, rows = found.reduce.src[1], found.vector, found.rows
    outputs = [r for r in (rows, columns) if r is not None]
    lanes = plan.fitting_lanes(plan.lanes_for(columns), plan.size(columns))
    height = plan.size(rows) if rows is not None else 1
    if rows is not None and _plan_panels(facts, plan, along, columns, rows, streams, parallel):
        return True
    tile_rows = -(-height // -(-height // TILE_ROWS))
    shared = parallel and plan.target.cores > 1
    # A vector goes with whole rows: far ones are streams that go on from row to row.
    plan.accumulate(along, streams, outputs, far=rows is None and not shared)
    plan.parallel_settled = True
    if shared:
        _share_columns(plan, columns)
    plan.vectorize(columns, lanes)
    plan.unroll(columns, max(1, min(2, TILE_ROWS // 2 // tile_rows, plan.blocks(columns))))
    plan.unroll(along, streams)
    if rows is not None:
        plan.unroll(rows, tile_rows)
    return True


def _plan_panels(
    facts: KernelFacts, plan: Plan, along: UOp, columns: UOp, rows: UOp, streams: int, parallel: bool
) -> bool:
    """Let the sums wait in panels, if a register tile and an array of the core fit the shape."""
    height, width, lanes = plan.size(rows), plan.size(columns), plan.lanes_for(columns)
    tile_rows, vectors = _tile(plan.target, height)
    panel = lanes * vectors
    item = plan.target.vector_bits // (8 * lanes)
    threads = plan.target.cores if parallel else 1
    part = _part(width, panel, plan.target.scratch_bytes // (height * item), threads)
    if tile_rows * vectors < LEAST_SUMS or not part or streams % 2 or plan.is_ordered(along):
        return False
    if any(facts.stride(a, columns) != 1 for a in facts.accesses if a.is_store):
        return False
    opts: list[Opt] = []
    number = {loop: int(loop.arg.number) for loop in (along, columns, rows)}
    fresh = facts.next_number()
    if part < width:
        tail = plan.tail(columns, part)
        if tail not in (Tail.EXACT, Tail.SHIFT):
            return False
        opts.append(Opt(OptKind.SPLIT, number[columns], part, tail))
        if threads > 1:
            opts.append(Opt(OptKind.PARALLEL, number[columns], 0))
        else:  # the loop over parts stands outside of the rows
            opts.append(Opt(OptKind.REORDER, number[columns], 0))
            numbers = sorted(number.values())
            order = [columns, *sorted({along, rows}, key=lambda r: number[r])]
            number = dict(zip(order, numbers, strict=True))
        number[columns], fresh = fresh, fresh + 1
    inside, fresh = fresh, fresh + 1
    opts.append(Opt(OptKind.SPLIT, number[columns], panel))
    detail = AccumulateDetail((number[columns], number[rows], inside))
    opts.append(Opt(OptKind.ACCUMULATE, number[along], streams, detail=detail))
    _, panels, tile, sums, rest = range(fresh, fresh + 5)  # the blocks, the panels, and what is in one
    for loop in (sums, inside):
        opts.append(Opt(OptKind.VECTORIZE, loop, lanes))
        if vectors > 1:
            opts.append(Opt(OptKind.UNROLL, loop, vectors))
    opts.append(Opt(OptKind.UNROLL, rest, 2))
    if tile_rows > 1:
        opts.append(Opt(OptKind.UNROLL, tile, tile_rows))
    wide = next(a for a in facts.accesses if not a.is_store and columns in a.ranges and along in a.ranges)
    opts.append(
        Opt(OptKind.PREFETCH, panels, max(1, AHEAD_BYTES // (panel * item)), detail=PrefetchDetail(wide.param.arg.slot))
    )
    plan.opts += opts
    plan.parallel_settled = True
    return True


def _tile(target: Target, height: int) -> tuple[int, int]:
    """Rows and vectors of a tile: rows that divide all of them, and the fewest loads a multiply-add."""
    best, best_cost = (1, 1), math.inf
    for vectors in (1, 2, 4):
        for rows in (r for r in range(1, height + 1) if height % r == 0):
            sums = rows * vectors
            if sums + vectors + 1 > target.vector_registers:
                break
            cost = (rows + vectors) / sums + 0.25 * max(1.0, LEAST_SUMS / sums)
            if cost < best_cost:
                best, best_cost = (rows, vectors), cost
    return best


def _part(width: int, panel: int, room: int, threads: int) -> int:
    """Columns of a part, whole panels that fit the array: equal ones for the threads; 0 where there are none."""
    least = -(-width // max(room // panel * panel, 1))
    if least == 1 and width % panel:
        least = 2  # the second overlaps the first
    # Long runs of a row are worth more than parts to even out unequal speed.
    counts = [n for n in (threads, 2 * threads) if threads > 1 and least <= n <= width // MIN_WIDTH]
    counts = (
        counts
        or [n for n in range(threads, 1, -1) if least <= n <= width // MIN_WIDTH]
        or [-(-least // threads) * threads]
    )
    count = next((n for n in counts if width % (n * panel) == 0), counts[0])
    part = -(-width // count // panel) * panel
    return part if 2 * panel <= part <= min(width, room) else 0


def _streams(facts: KernelFacts, plan: Plan, found: Contraction) -> int:
    """How many rows of the wide factor to read side by side; 0 where the product is of another class."""
    along = found.reduce.src[1]
    depth = range_size(along)
    ranges = facts.ranges[found.reduce.src[0]]
    if len(found.reduce.src) != 2 or found.together > 1 or found.vector is along or depth is None:
        return 0
    if any(r.arg.kind is not AxisKind.LOOP or range_size(r) is None for r in ranges if r is not along):
        return 0
    if found.rows is not None and plan.size(found.rows) > MAX_ROWS:
        return 0
    others = ranges - {along, found.vector, found.rows}
    width = plan.size(found.vector)
    wide = [
        a for a in facts.accesses
        if not a.is_store and found.vector in a.ranges and along in a.ranges and a.node in plan.below(found.reduce)
    ]  # fmt: skip
    if len(wide) != 1 or found.rows in wide[0].ranges or wide[0].node.dtype is not found.reduce.dtype:
        return 0
    step = facts.stride(wide[0], along)
    if facts.stride(wide[0], found.vector) != 1 or step is None or step < width or width < 4 * plan.lanes_for(along):
        return 0
    item = found.reduce.dtype.itemsize
    near = plan.target.l2_bytes * (1 if step * item % PAGE == 0 else FAR)
    if others or depth * width * item <= near or obstacle(facts, along) is not None:
        return 0
    return next((s for s in range(STREAMS, MIN_STREAMS - 1, -1) if depth % s == 0 and depth > s), 0)


def _share_columns(plan: Plan, columns: UOp) -> None:
    """Equal wide parts for the cores: one each, two where that makes them equal."""
    size, cores = plan.size(columns), plan.target.cores
    most = size // MIN_WIDTH
    counts = [n for n in (cores, 2 * cores) if n <= most] or list(range(min(cores, most), 1, -1))
    if counts:
        parts = next((n for n in counts if size % n == 0), counts[0])
        plan.share(columns, -(-size // parts))
