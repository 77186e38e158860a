"""Register tiles for sums of products: matrix multiplication, convolution, matrix times vector."""

from __future__ import annotations

import math
from typing import Final, NamedTuple

from gradlet.base.settings import STRICT_FLOAT
from gradlet.graph.node import UOp
from gradlet.ops.op import DOTS, AxisKind, Op
from gradlet.ops.opt import Opt, OptKind, PrefetchDetail
from gradlet.optimize.analysis import MOST_APART, Access, KernelFacts, range_size, size_bound
from gradlet.optimize.deep import plan_deep
from gradlet.optimize.panels import plan_panels
from gradlet.optimize.pixels import plan_pixels
from gradlet.optimize.plan import Plan
from gradlet.optimize.thin import plan_thin
from gradlet.optimize.tileshape import Need, Tile, choose_tile

# Members of an enum are slow to reach through their class.
_ADD: Final = Op.ADD
_CAST: Final = Op.CAST
_CONST: Final = Op.CONST
_MUL: Final = Op.MUL

MAX_COPIES = 256  # multiply-adds written out in one loop body
MIN_STRIPS = 4  # of a block: a tile's rows are read once for all of them
FAR_ROWS = 4  # rows of a matrix that meet a vector at once, each a quarter of the matrix from the next
AHEAD_BYTES = 2048  # how far before its use a row of narrow elements is asked for
LONG_ROW = 4096  # bytes
SMALL_RANGE = 5  # reduce ranges up to this size (filter taps) are written out
SCATTER = 24  # multiply-adds of a lane that storing it by itself costs
REUSE = 4  # rows of a tile, at least, where there are many


class Contraction(NamedTuple):
    """A REDUCE(ADD) of a product whose factors depend on different output ranges.

    Attributes:
        reduce: the node.
        vector: the range to take as lanes: an output range, or a reduce range that both factors walk contiguously.
        rows: output range that the lanes' factor does not depend on, if there is one.
        columns: a second output range of the lanes' factor, to fill the tile where `vector` is short.
        together: REDUCEs over the same loops, which share the tile's registers.
        pixels: all output ranges that the lanes' factor does not depend on.
    """

    reduce: UOp
    vector: UOp
    rows: UOp | None
    columns: UOp | None
    together: int = 1
    pixels: tuple[UOp, ...] = ()


def tile(facts: KernelFacts, plan: Plan, parallel: bool = False) -> set[UOp]:
    """Plan a register tile for the kernel's main contraction; returns the ranges it uses (empty when there is none)."""
    best: UOp | None = None
    for reduce in facts.reduces:
        if _factors(reduce) is not None and (best is None or _work(facts, reduce) > _work(facts, best)):
            best = reduce
    if best is None:
        return set()
    factors = _factors(best)
    if factors is not None and len(_products(best)) == 1 and plan_panels(facts, plan, best, factors, parallel):
        return set(facts.ranges[best.src[0]])
    found = _analyse(facts, plan, best)
    if found is None:
        return set()
    if not plan_thin(facts, plan, found, parallel) and not plan_deep(facts, plan, found):
        _plan_tile(facts, plan, found, parallel)
    return set(facts.ranges[best.src[0]])


def _work(facts: KernelFacts, reduce: UOp) -> int:
    return math.prod(size_bound(r) for r in facts.ranges[reduce.src[0]])


def _factors(reduce: UOp) -> tuple[UOp, UOp] | None:
    """The two factors of a sum of products; of the first product where it sums several over the same loops."""
    products = _products(reduce)
    return (products[0].src[0], products[0].src[1]) if products else None


def _products(reduce: UOp) -> list[UOp]:
    """The products that a REDUCE sums; empty when it sums something else too."""
    if reduce.arg.op is not _ADD:
        return []
    pending = [reduce.src[0]]
    found: list[UOp] = []
    while pending:
        value = pending.pop()
        while value.op is _CAST:
            value = value.src[0]
        if value.op is _ADD:
            pending.extend((value.src[1], value.src[0]))
        elif value.op in DOTS:
            found.append(value)
            pending.append(value.src[2])
        elif value.op is _MUL and value.src[1].op is not _CONST:
            found.append(value)
        elif value.op is _CONST and found and not value.arg:
            continue  # what DOTs begin with
        else:
            return []
    return found


def _analyse(facts: KernelFacts, plan: Plan, reduce: UOp) -> Contraction | None:
    factors = _factors(reduce)
    assert factors is not None
    outputs = {r for r in facts.ranges[reduce] if r.arg.kind is AxisKind.LOOP and size_bound(r)}
    sides = [outputs & facts.ranges[f] for f in factors]
    if sides[0] == sides[1] or not (sides[0] or sides[1]):
        return None
    for product in _products(reduce)[1:]:
        if [outputs & facts.ranges[f] for f in product.src] not in (sides, sides[::-1]):
            return None
    loads = [a for a in facts.accesses if not a.is_store and a.node in plan.below(reduce)]
    stores = [a for a in facts.accesses if a.is_store and reduce in plan.below(a.node)]
    candidates: list[tuple[float, int, UOp]] = []
    depth = math.prod(size_bound(r) for r in reduce.src[1:])
    for loop in sorted(outputs, key=lambda r: r.arg.number):
        cost = _lane_cost(facts, plan, loop, loads, stores, depth, outputs)
        candidates.append((cost, -loop.arg.number, loop))
    if not (STRICT_FLOAT.value and reduce.dtype.is_float):
        for loop in reduce.src[1:]:
            if size_bound(loop) >= 8:
                candidates.append(
                    (1.3 * _lane_cost(facts, plan, loop, loads, [], depth, outputs), -loop.arg.number, loop)
                )
    if not candidates:
        return None
    cost, _, vector = min(candidates, key=lambda c: c[:2])
    if cost > 8:  # lanes would mostly gather
        return None
    if vector not in outputs:
        return _along_reduce(plan, reduce, vector, sides)
    with_lanes = {r for side, f in zip(sides, factors, strict=True) for r in side if vector in facts.ranges[f]}
    rows = list(outputs - with_lanes)
    columns = [r for r in with_lanes if r is not vector]
    together = sum(facts.ranges[r.src[0]] == facts.ranges[reduce.src[0]] for r in facts.reduces)
    return Contraction(reduce, vector, _largest(plan, rows), _largest(plan, columns), together, tuple(rows))


def _along_reduce(plan: Plan, reduce: UOp, vector: UOp, sides: list[set[UOp]]) -> Contraction:
    rows = _largest(plan, list(sides[0] - sides[1]))
    columns = _largest(plan, list(sides[1] - sides[0]))
    return (
        Contraction(reduce, vector, rows, columns) if rows is not None else Contraction(reduce, vector, columns, None)
    )


def _largest(plan: Plan, loops: list[UOp]) -> UOp | None:
    return max(loops, key=lambda r: (plan.size(r), r.arg.number), default=None)


def _lane_cost(
    facts: KernelFacts, plan: Plan, loop: UOp, loads: list[Access], stores: list[Access], depth: int, outputs: set[UOp]
) -> float:
    """Relative cost of taking `loop` as lanes: 1 when everything is contiguous and registers are full."""
    size = plan.size(loop)
    lanes = plan.fitting_lanes(plan.lanes_for(loop), size)
    full = plan.lanes_for(loop)
    filled = size / (-(-size // lanes) * lanes) * lanes / full
    cost = 1.0
    for access in loads:
        if loop not in facts.ranges[access.address]:
            continue
        stride = facts.stride(access, loop)
        if stride is not None and 2 <= stride <= MOST_APART:
            cost += stride / _reuse(facts, plan, access, outputs)
        elif stride != 1:
            cost += lanes
    for access in stores:
        if facts.stride(access, loop) not in (0, 1):
            cost += min(0.5, SCATTER / depth)
    return cost / filled


def _reuse(facts: KernelFacts, plan: Plan, access: Access, outputs: set[UOp]) -> int:
    """How many rows of a tile share what is picked out of vectors."""
    others = [plan.size(r) for r in outputs if r not in facts.ranges[access.address]]
    return min(REUSE, max(others, default=1))


def _plan_tile(facts: KernelFacts, plan: Plan, found: Contraction, parallel: bool) -> None:
    along_reduce = found.vector in found.reduce.src[1:]
    if along_reduce and found.columns is None and found.rows is not None and _walk_far_rows(plan, found, found.rows):
        _ask_ahead(facts, plan, found, found.rows)
        return
    alone = found.together == 1 and not along_reduce
    if alone and plan_pixels(facts, plan, found.reduce, found.vector, found.pixels, found.columns, parallel):
        return
    shape = _shape(plan, found, along_reduce)
    _keep_streams_short(facts, plan, found, along_reduce)
    lanes = plan.fitting_lanes(plan.lanes_for(found.vector), plan.size(found.vector))
    if along_reduce:
        plan.vectorize(found.vector, lanes)
    else:
        plan.vector_block(found.vector, lanes, shape.vectors)
    if found.columns is not None:
        if along_reduce and _are_long(facts, plan, found, found.columns):
            plan.unroll_far(found.columns, shape.columns)
        else:
            plan.unroll(found.columns, shape.columns)
    rows = shape.rows
    if found.rows is not None:
        near = None if along_reduce else _near_rows(facts, plan, found, shape.rows)
        if near is not None:
            plan.unroll(near, plan.size(near))
            rows //= plan.size(near)
        plan.unroll(found.rows, rows)
    _write_out_taps(plan, found, shape)


def _walk_far_rows(plan: Plan, found: Contraction, rows: UOp) -> bool:
    """A matrix times a vector waits for memory: few rows at once, two vectors of each, and every row follows another.

    Rows next to one another are as far apart as a row is long, often a power of two: more of them than the near cache
    has places for such addresses throw each other out, and each begins with memory that nothing has asked for yet.
    """
    lanes = plan.lanes_for(found.vector)
    if plan.size(rows) < 4 * FAR_ROWS or range_size(rows) is None or plan.size(found.vector) < 4 * lanes:
        return False
    plan.vectorize(found.vector, 2 * lanes)
    plan.unroll_far(rows, FAR_ROWS)
    return True


def _are_long(facts: KernelFacts, plan: Plan, found: Contraction, rows: UOp) -> bool:
    """Whether a tile's rows come from far away and each is worth a run through memory that goes on with the next."""
    reads = [a for a in facts.accesses if not a.is_store and {rows, found.vector} <= a.ranges]
    sizes = [abs(facts.stride(a, rows) or 0) * a.param.dtype.itemsize for a in reads]
    return (
        len(sizes) == 1 and sizes[0] >= LONG_ROW and sizes[0] * plan.size(rows) > plan.target.llc_bytes
        and range_size(rows) is not None
    )  # fmt: skip


def _ask_ahead(facts: KernelFacts, plan: Plan, found: Contraction, rows: UOp) -> None:
    """Narrow elements are converted, which takes as long as reading them: ask for them before they are due."""
    for access in facts.accesses:
        item = access.param.dtype.itemsize
        if access.is_store or not {rows, found.vector} <= access.ranges or item >= found.reduce.dtype.itemsize:
            continue
        ahead = AHEAD_BYTES // (plan.widths[found.vector] * item)
        detail = PrefetchDetail(access.param.arg.slot)
        plan.opts.append(Opt(OptKind.PREFETCH, plan.number(found.vector), ahead, detail=detail))
        return


def _shape(plan: Plan, found: Contraction, along_reduce: bool) -> Tile:
    rows = plan.size(found.rows) if found.rows is not None else 1
    columns = plan.size(found.columns) if found.columns is not None else 1
    length = plan.size(found.vector)
    lanes = plan.fitting_lanes(plan.lanes_for(found.vector), length)
    vectors = 1 if along_reduce else -(-length // lanes)
    need = Need(rows, lanes, vectors, columns, length=0 if along_reduce else length, together=found.together)
    return choose_tile(plan.target, need)


def _near_rows(facts: KernelFacts, plan: Plan, found: Contraction, rows: int) -> UOp | None:
    """A short range of rows that read the same cache lines (taps of a window): the tile's rows are all of its, and some
    of the long range: fewer lines are read."""
    outputs = [r for r in facts.ranges[found.reduce] if r.arg.kind is AxisKind.LOOP]
    lanes = plan.lanes_for(found.vector)
    for loop in sorted(outputs, key=lambda r: r.arg.number):
        size = plan.size(loop)
        if loop in (found.rows, found.columns, found.vector) or size < 2 or rows % size or range_size(loop) is None:
            continue
        loads = [
            a for a in facts.accesses if not a.is_store and loop in a.ranges and a.node in plan.below(found.reduce)
        ]
        steps = [facts.stride(a, loop) for a in loads]
        if steps and all(step is not None and 0 < step * size <= lanes for step in steps):
            return loop
    return None


def _write_out_taps(plan: Plan, found: Contraction, shape: Tile) -> None:
    """Short reduce ranges become straight code, innermost first, as long as the body stays small."""
    body = shape.rows * shape.vectors * shape.columns
    loops = [r for r in found.reduce.src[1:] if r is not found.vector and range_size(r)]
    for loop in sorted(loops, key=lambda r: (plan.size(r), -r.arg.number)):
        size = plan.size(loop)
        if size > SMALL_RANGE or body * size > MAX_COPIES or size < 2:
            break
        plan.unroll(loop, size)
        body *= size
    if any(p.op in DOTS for p in _products(found.reduce)):
        body *= 2  # a sum waits in a register while its product is made: more of them at once do not fit
    if body < 16:
        longest = max(loops, key=plan.blocks, default=None)
        # Two dozen products hide what a loop costs; more of them are more code for LLVM and no faster.
        if longest is not None and plan.blocks(longest) >= 8:
            plan.unroll(longest, next((u for u in (4, 2) if plan.blocks(longest) % u == 0 and body * u <= 32), 1))


def _keep_streams_short(facts: KernelFacts, plan: Plan, found: Contraction, along_reduce: bool) -> None:
    """Walk the rows innermost: the panel of the lanes' factor then stays in a near cache."""
    if found.rows is None or along_reduce:
        return
    outputs = [r for r in facts.loops if r.arg.kind is AxisKind.LOOP]
    if _walk_blocks(facts, plan, found):
        return
    if len(outputs) > 1 and outputs[-1] is not found.rows:
        plan.innermost(found.rows, outputs)


def _walk_blocks(facts: KernelFacts, plan: Plan, found: Contraction) -> bool:
    """Walk blocks of strips outermost, so that the other factor comes from far away once a block and not once a strip.

    The strips of a block stay in the second cache while all rows go by; a tile's rows stay in the first one meanwhile.
    """
    strips, rows, reduce = found.columns, found.rows, found.reduce
    outputs = [r for r in facts.loops if r.arg.kind is AxisKind.LOOP]
    if strips is None or rows is None or len(reduce.src) != 2 or set(outputs) != {strips, rows, found.vector}:
        return False
    if any(range_size(r) is None for r in (*outputs, reduce.src[1])):
        return False
    depth, item, l2 = plan.size(reduce.src[1]), reduce.dtype.itemsize, plan.target.l2_bytes
    panel = plan.size(found.vector) * depth * item
    count = plan.size(strips)
    if plan.size(rows) * depth * item <= l2 or panel > l2 or plan.size(rows) < 64:
        return False
    inside = max(1, l2 * 3 // 5 // panel, min(MIN_STRIPS, l2 // panel))
    blocks = -(-count // inside)
    # As many for every core, and no block thin.
    cores = plan.target.cores
    blocks = -(-blocks // cores) * cores if blocks > cores else blocks
    inside = -(-count // blocks)
    if inside < 2 or count % inside:
        inside = next((n for n in range(inside, 1, -1) if count % n == 0), 0)
    if not inside or inside == count:
        return False
    plan.block(strips, inside, rows)
    return True
