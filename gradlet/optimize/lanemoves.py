"""What search tries on kernels of a GPU: lanes, copies that lanes share, how workgroups run; and whole schedules.

A block of a matrix product, a convolution or attention hangs together: rows, columns, lanes, copies and buffers change
at once, so no single opt leads from one block to another. `alternatives` gives the schedules that the formulas of
`units`, `images`, `mixturetiles` and `blocks` make for every block they know, not only for the one they would choose;
the search begins with all of them, and changes the best ones opt by opt.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from math import prod
from typing import Final

from gradlet.graph.node import UOp
from gradlet.ops.op import AxisKind
from gradlet.ops.opt import FeedDetail, Opt, OptKind, RotateDetail, StageDetail, Tail, TensorizeDetail, TileOrderDetail
from gradlet.optimize import blocks, mixturetiles, units
from gradlet.optimize.analysis import KernelFacts, range_size, size_bound
from gradlet.target import rotation, unitblocks
from gradlet.target.target import Target

Opts = tuple[Opt, ...]

LANES: Final = (4, 8, 16, 32, 64, 128, 256, 512)
ORDERS: Final = (2, 4, 8, 16, 32)  # steps of a range of workgroups that run beside each other
AGAIN: Final = (1, 2, 3)  # workgroups for every multiprocessor
_OPTIONAL: Final = (OptKind.PERSISTENT, OptKind.TILE_ORDER, OptKind.EPILOGUE)
MOST_BUFFERS: Final = unitblocks.MOST_BUFFERS


def has_lanes(target: Target) -> bool:
    """Whether a machine's kernels are shared by lanes."""
    return target.warp > 1


# rows of `moves.MOVES`
def widths(facts: KernelFacts, target: Target, loop: UOp) -> list[int]:
    """Elements side by side that a lane may take: an access at most."""
    inside = [a for a in facts.accesses if loop in a.ranges and facts.stride(a, loop) == 1]
    sizes = {a.address.dtype.itemsize for a in inside}
    most = target.access_bytes // min(sizes) if sizes else 0
    return [a for a in (2, 4, 8, 16) if a <= min(most, size_bound(loop))]


def thread(facts: KernelFacts, target: Target) -> Iterator[Opts]:
    """Lanes along a loop, as many as there is room for beside those that there are."""
    if not has_lanes(target):
        return
    taken = prod(range_size(r) or 1 for r in facts.loops if r.arg.kind is AxisKind.THREAD)
    for loop in facts.loops:
        if loop.arg.kind not in (AxisKind.LOOP, AxisKind.REDUCE):
            continue
        size = size_bound(loop)
        for amount in LANES:
            if amount <= size and taken * amount <= target.max_threads:
                tail = Tail.EXACT if size % amount == 0 and range_size(loop) is not None else Tail.MASK
                yield (Opt(OptKind.THREAD, loop.arg.number, amount, tail),)


def _kept(facts: KernelFacts, kind: OptKind) -> list[Opt]:
    """The opts of a kind that are kept with the kernel."""
    return [o for o in facts.sink.arg.opts or () if o.kind is kind]


def _walked(facts: KernelFacts, target: Target) -> list[int]:
    """The numbers of the ranges of workgroups, where the copy engine feeds them."""
    if not target.copy_engine or not _kept(facts, OptKind.SPECIALIZE):
        return []
    return [int(r.arg.number) for r in facts.loops if r.arg.kind is AxisKind.PARALLEL and range_size(r) is not None]


def specialize(facts: KernelFacts, target: Target) -> Iterator[Opts]:
    """A warp of its own for the copies of the loop around the matrix unit."""
    if target.copy_engine and not _kept(facts, OptKind.SPECIALIZE):
        for reduce in facts.reduces:
            if any(r.arg.kind is AxisKind.TENSOR for r in reduce.src[1:]):
                for r in reduce.src[1:]:
                    if r.arg.kind is AxisKind.REDUCE:
                        yield (Opt(OptKind.SPECIALIZE, r.arg.number, 0),)


def persistent(facts: KernelFacts, target: Target) -> Iterator[Opts]:
    """Workgroups that walk blocks."""
    numbers = _walked(facts, target)
    if numbers and not _kept(facts, OptKind.PERSISTENT):
        for times in AGAIN:
            yield (Opt(OptKind.PERSISTENT, numbers[0], times * target.cores),)


def tile_order(facts: KernelFacts, target: Target) -> Iterator[Opts]:
    """Another order of blocks."""
    numbers = _walked(facts, target)
    if not _kept(facts, OptKind.TILE_ORDER):
        for number in numbers:
            for along in numbers:
                if along != number:
                    for steps in ORDERS:
                        yield (Opt(OptKind.TILE_ORDER, number, steps, detail=TileOrderDetail(along)),)


def epilogue(facts: KernelFacts, target: Target) -> Iterator[Opts]:
    """Results as boxes."""
    tensorized = _kept(facts, OptKind.TENSORIZE)
    if not _walked(facts, target) or not tensorized or not isinstance(tensorized[0].detail, TensorizeDetail):
        return
    done = {o.amount for o in _kept(facts, OptKind.EPILOGUE)}
    for access in facts.accesses:
        if access.is_store and access.slot is not None and access.slot not in done:
            yield (Opt(OptKind.EPILOGUE, tensorized[0].detail.warps, access.slot),)


# changes
def variants(opt: Opt, target: Target) -> Iterator[Opt]:
    """The same word with something else that it says; none of them makes another number of ranges."""
    detail = opt.detail
    if opt.kind is OptKind.PERSISTENT:
        yield from (opt._replace(amount=n * target.cores) for n in AGAIN if n * target.cores != opt.amount)
    elif opt.kind is OptKind.TILE_ORDER and isinstance(detail, TileOrderDetail):
        for steps in ORDERS:
            if steps != opt.amount:
                yield opt._replace(amount=steps)
            yield Opt(opt.kind, detail.along, steps, detail=TileOrderDetail(opt.axis))
    elif opt.kind is OptKind.TENSORIZE and isinstance(detail, TensorizeDetail):
        yield opt._replace(detail=detail._replace(pending=1 - min(1, detail.pending)))
    elif opt.kind is OptKind.ROTATE and isinstance(detail, RotateDetail) and detail.buffers:
        for buffers in range(2, rotation.MOST_BUFFERS + 1):
            if buffers != detail.buffers:
                yield opt._replace(detail=detail._replace(buffers=buffers))
    elif opt.kind is OptKind.FEED and isinstance(detail, FeedDetail) and detail.buffers:
        for buffers in range(2, rotation.MOST_BUFFERS + 1):
            if buffers != detail.buffers:
                yield opt._replace(detail=detail._replace(buffers=buffers))
        yield opt._replace(detail=detail._replace(workgroups=0 if detail.workgroups else target.cores))
    elif opt.kind is OptKind.DEAL:
        yield from (opt._replace(amount=n) for n in (opt.amount // 2, opt.amount * 2) if n > 1)


def by_units(opts: Sequence[Opt]) -> bool:
    """Whether matrix units run a schedule: splits and lanes are theirs, so that only what they leave open changes."""
    return any(o.kind is OptKind.TENSORIZE for o in opts) or mixturetiles.by_units(opts)


def changes_of_units(opts: Opts, target: Target) -> Iterator[Opts]:
    """Schedules of matrix units that differ in one thing: how many buffers, in which order, without some word."""
    for place, opt in enumerate(opts):
        before, after = opts[:place], opts[place + 1 :]
        yield from ((*before, changed, *after) for changed in variants(opt, target))
        if opt.kind in _OPTIONAL:
            yield (*before, *after)
    yield from _with_other_buffers(opts)


def _with_other_buffers(opts: Sequence[Opt]) -> Iterator[Opts]:
    """Those of one ring are as many for both factors."""
    staged = [o.detail for o in opts if isinstance(o.detail, StageDetail) and o.detail.buffers > 1]
    if not staged:
        return
    for buffers in range(2, MOST_BUFFERS + 1):
        if buffers not in {d.buffers for d in staged} and abs(buffers - staged[0].buffers) <= 2:
            yield tuple(
                [
                    o._replace(detail=o.detail._replace(buffers=buffers))
                    if isinstance(o.detail, StageDetail) and o.detail.buffers > 1
                    else o
                    for o in opts
                ]
            )


# whole schedules
def alternatives(facts: KernelFacts, target: Target) -> Iterator[Opts]:
    """Schedules for every block that some formula knows; others may be refused, or equal to one another."""
    if not has_lanes(target):
        return
    for rotated in rotation.all_unit_blocks(target):
        found = mixturetiles.mixture_tile(facts, target, rotated)
        if found is not None:
            yield tuple(found)
    if target.copy_engine:
        for block in unitblocks.blocks(target):
            found = units.tensor_tile(facts, target, block)
            if found is not None:
                yield tuple(found)
    for block in units.lane_blocks(target):
        found = units.tensor_tile(facts, target, block, engine=False)
        if found is not None:
            yield tuple(found)
    for sides in blocks.BLOCKS:
        found = blocks.tile(facts, target, sides)
        if found is not None:
            yield tuple(found)
