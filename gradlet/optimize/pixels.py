"""Register tiles of convolutions with channels as lanes: their rows are pixels, in blocks of two sizes.

The pixels of an image lie along several ranges: images, rows, columns. The tile takes its rows from the one that fills
it best; the panel of weights that belongs to the lanes stays near while the pixels inside of its loop go by. Nothing is
computed twice at the end of a row: blocks differ by one pixel (`BALANCE`).
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from gradlet.graph.node import UOp
from gradlet.ops.op import AxisKind
from gradlet.ops.opt import Opt, OptKind, PrefetchDetail
from gradlet.optimize.analysis import Access, KernelFacts, range_size, size_bound
from gradlet.optimize.plan import Plan

MANY_BLOCKS = 32  # of which the last may overlap with the one before: that is little
NEAR = 16  # elements of the image that all rows of a tile read, when they are taps
LONG_RUN = 64  # iterations of a sum's innermost range that are worth a loop of their own
MEMORY_SHARE = 4  # weights of more than one part in so many of the last cache come from memory
AHEAD_BYTES = 6144  # how far before their use those are asked for: a tile meets new ones faster than memory gives them


def plan_pixels(
    facts: KernelFacts, plan: Plan, reduce: UOp, vector: UOp, rows: Sequence[UOp], strips: UOp | None, parallel: bool
) -> bool:
    """Plan a tile of pixels and vectors of channels; whether it suits.

    Args:
        facts: about the kernel.
        plan: gets the opts.
        reduce: the sum of products.
        vector: the channels of a strip, contiguous in the weights.
        rows: the ranges of pixels.
        strips: the range over strips of channels.
        parallel: whether threads share the kernel.
    """
    lanes = plan.lanes_for(vector)
    size = plan.size(vector)
    runs = [r for r in reduce.src[1:] if range_size(r) is not None]
    if len(rows) < 2 or size % lanes or len(runs) != len(reduce.src) - 1:
        return False
    if any(range_size(r) is None for r in rows):
        return False
    vectors = size // lanes
    near = _taps(facts, plan, reduce, rows)
    if near is not None and _fits(plan, plan.size(near), vectors):
        _plan_taps(facts, plan, vector, vectors, near, [r for r in rows if r is not near])
        return True
    depth = math.prod(plan.size(r) for r in runs)
    tile = _choose(plan, rows, vectors, depth * lanes * reduce.dtype.itemsize)
    if tile is None:
        return False
    loop, amount, wide = tile
    outputs = [r for r in facts.loops if r.arg.kind is AxisKind.LOOP]
    if outputs[-1] is not loop and len(outputs) > 1:
        plan.innermost(loop, outputs)
    others = [r for r in outputs if r in rows and r is not loop]
    if strips is not None and range_size(strips) is not None:
        _place_strips(facts, plan, reduce, strips, others, vectors // wide, parallel)
    if wide < vectors and others:
        plan.outside(vector, others)
    plan.vector_block(vector, lanes, wide)
    # In one loop, which threads can share; of two blocks that differ, whose sums would all be in registers at once.
    if plan.size(loop) > MANY_BLOCKS * amount or _overlaps(plan.size(loop), amount):
        plan.unroll(loop, amount)
    else:
        plan.balance(loop, amount)
    inner = max(runs, key=lambda r: r.arg.number)
    taps = [r for r in runs if r is not inner]
    _ask_ahead(facts, plan, vector, inner, wide * lanes * reduce.dtype.itemsize)
    return plan.size(inner) >= LONG_RUN or not taps or _write_out(plan, taps, amount * wide)


def _choose(plan: Plan, rows: Sequence[UOp], vectors: int, panel: int) -> tuple[UOp, int, int] | None:
    """The range of pixels that a tile takes, how many, and how many vectors: all of a strip, or a part.

    Args:
        plan: says what can be cut.
        rows: the ranges of pixels.
        vectors: of a strip.
        panel: bytes of the weights of one vector.
    """
    best, best_cost = None, math.inf
    far = vectors * panel > 2 * plan.target.l1_bytes
    for wide in [vectors // parts for parts in (1, 2, 4) if vectors % parts == 0]:
        for loop in sorted(rows, key=lambda r: -r.arg.number):
            for amount in range(1, min(plan.size(loop), plan.target.vector_registers) + 1):
                if not _fits(plan, amount, wide):
                    break
                cost = _cost(plan, plan.size(loop), amount, wide, far)
                if cost < best_cost - 1e-9 and plan.divides_evenly(loop, amount):
                    best, best_cost = (loop, amount, wide), cost
    return best


def _overlaps(size: int, amount: int) -> bool:
    """Whether there are two blocks of pixels, which overlap."""
    return amount < size < 2 * amount


def _ask_ahead(facts: KernelFacts, plan: Plan, vector: UOp, inner: UOp, step: int) -> None:
    """Weights that come from memory, so many bytes an iteration of a sum's innermost range, are asked for ahead."""
    for access in facts.accesses:
        held = access.param.arg.size * access.param.dtype.itemsize
        if access.is_store or not {vector, inner} <= access.ranges or held * MEMORY_SHARE <= plan.target.llc_bytes:
            continue
        ahead = AHEAD_BYTES // step
        if plan.size(inner) > ahead:
            detail = PrefetchDetail(access.param.arg.slot)
            plan.opts.append(Opt(OptKind.PREFETCH, plan.number(inner), ahead, detail=detail))
        return


def _taps(facts: KernelFacts, plan: Plan, reduce: UOp, rows: Sequence[UOp]) -> UOp | None:
    """The range of rows whose iterations read neighbours: taps of a window, where pixels are summed."""
    loads = [a for a in facts.accesses if not a.is_store and a.node in plan.below(reduce)]
    for loop in sorted(rows, key=lambda r: -r.arg.number):
        steps = [facts.stride(a, loop) for a in loads if loop in a.ranges]
        near = all(step is not None and 0 < step * plan.size(loop) <= NEAR for step in steps)
        if steps and near and plan.size(loop) > 1:
            return loop
    return None


def _plan_taps(facts: KernelFacts, plan: Plan, vector: UOp, vectors: int, taps: UOp, others: Sequence[UOp]) -> None:
    """A tile of all taps of a row: they read the same lines. The image's channels go by inside, a few at once."""
    size = plan.size(taps)
    inner = max(others, key=lambda r: (plan.size(r), r.arg.number))
    outputs = [r for r in facts.loops if r.arg.kind is AxisKind.LOOP]
    if outputs[-1] is not inner:
        plan.innermost(inner, outputs)
    plan.vector_block(vector, plan.lanes_for(vector), vectors)
    plan.unroll(taps, size)
    count = plan.size(inner)
    most = max(n for n in range(1, count + 1) if n == 1 or _fits(plan, n * size, vectors))
    plan.unroll(inner, max(n for n in range(1, most + 1) if count % n == 0 or n == 1))


def _place_strips(
    facts: KernelFacts, plan: Plan, reduce: UOp, strips: UOp, pixels: Sequence[UOp], parts: int, parallel: bool
) -> None:
    """The loop over strips of channels goes where the factors are read least often from beyond the second cache.

    Inside of the pixels' loops all weights are read again for each of their iterations, unless they stay in the cache;
    outside of them the image is, for each strip, or each of its parts, unless what is read in between stays there.
    Cores that share the pixels read all weights each, and all of the image where they share the strips.
    """
    loads = [a for a in facts.accesses if not a.is_store and a.node in plan.below(reduce)]
    weights = [a for a in loads if strips in a.ranges]
    image = [a for a in loads if strips not in a.ranges]
    item, l2, count = reduce.dtype.itemsize, plan.target.l2_bytes, plan.size(strips) * parts
    every = sum(_span(facts, a, frozenset()) for a in weights) * item
    whole = sum(_span(facts, a, frozenset()) for a in image) * item
    if parallel and pixels and every > whole and not plan.size(strips) % plan.target.cores:
        plan.outside(strips, pixels)
        plan.share_first = strips
        return
    best, best_cost = len(pixels), math.inf
    for outside in range(len(pixels), -1, -1):
        again = 1 if every <= l2 * 3 // 5 else math.prod(plan.size(r) for r in pixels[:outside])
        between = sum(_span(facts, a, frozenset(pixels[:outside])) for a in image) * item
        cost = every * again + whole * (1 if between + every // count <= l2 * 4 // 5 else count)
        if cost < best_cost:
            best, best_cost = outside, cost
    if best < len(pixels):
        plan.outside(strips, pixels[best:])
    elif pixels:
        plan.inside(strips, pixels)


def _span(facts: KernelFacts, access: Access, still: frozenset[UOp]) -> int:
    """Elements from the first to the last that an access touches while some ranges stand still."""
    moving = [(r, step) for r, step in access.form.terms.items() if r not in still]
    return 1 + sum(abs(step) * (size_bound(r) - 1) for r, step in moving)


def _fits(plan: Plan, amount: int, vectors: int) -> bool:
    """Whether the sums, the vectors of weights and a pixel are in registers."""
    registers = plan.target.vector_registers
    return amount * vectors + vectors + 1 <= registers - (3 if registers >= 32 else 1)


def _cost(plan: Plan, size: int, amount: int, vectors: int, far: bool) -> float:
    """Loads of a multiply-add, those of weights twice where they come from `far`, beyond the nearest cache, and what
    waiting for sums costs where there are few of them, of the mean block; pixels of two blocks are computed twice.
    """
    overlaps = _overlaps(size, amount)
    mean = amount if overlaps else size / -(-size // amount)
    latency = 8 if plan.target.vector_registers >= 32 else 6
    sums = mean * vectors
    cost = (mean + vectors * (1 + far)) / sums + 0.25 * max(1.0, latency / sums)
    return cost * 2 * amount / size if overlaps else cost


def _write_out(plan: Plan, taps: Sequence[UOp], body: int) -> bool:
    """Short ranges of taps become straight code where the loop inside is short."""
    for loop in sorted(taps, key=lambda r: (plan.size(r), -r.arg.number)):
        size = plan.size(loop)
        if size > 5 or body * size > 256:
            break
        plan.unroll(loop, size)
        body *= size
    return True
