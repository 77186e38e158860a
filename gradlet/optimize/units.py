"""Products by matrix units: the size of a block, lanes and registers, copies, how workgroups run.

`target/unitblocks` says what blocks take where a copy engine feeds them.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from gradlet.base.dtype import dtypes
from gradlet.base.errors import ArgumentError
from gradlet.graph.node import UOp
from gradlet.ops.op import Op
from gradlet.ops.opt import Opt, OptKind, StageDetail, TensorizeDetail, TileOrderDetail
from gradlet.optimize.actions import language as actions
from gradlet.optimize.analysis import KernelFacts, range_size
from gradlet.optimize.blocks import Opts, Product, columns_of, copied_loads, parallel_rest, product_of
from gradlet.optimize.images import image_of, padded_pixels, place_image
from gradlet.target.matrixcore import MatrixUnits
from gradlet.target.target import Target
from gradlet.target.unitblocks import (
    RING_WORDS,
    ROW,
    WARPGROUP,
    Block,
    Sizes,
    best_block,
    blocks,
    clocks,
)

LANES_BLOCK: Final = 128  # rows and columns of a block whose lanes copy for themselves
LANES_AHEAD: Final = 3  # buffers of every factor
LONG: Final = 1024  # sums from which on wide blocks pay there
TOGETHER: Final = 8  # rows of blocks that run at the same time
WARP_BLOCKS: Final = ((128, 128), (128, 64), (64, 64))  # where every warp multiplies 16 rows


def tensor_tile(
    facts: KernelFacts, target: Target, block: Block | None = None, engine: bool = True
) -> list[Opt] | None:  # fmt: skip
    """The opts for a product by matrix units; None where there are none, or what they need is not given.

    Args:
        facts: about the kernel.
        target: the machine.
        block: this one in place of the one that takes the fewest clocks, if it suits the product or not.
        engine: whether a copy engine, where there is one, brings the factors.
    """
    units = target.matrix_units
    if units is None:
        return None
    found = product_of(facts, (dtypes.float32, dtypes.int32))
    if found is None:
        return _image_tile(facts, target, units, block) if engine else None
    factor = units.pair(found.first.dtype, found.second.dtype)
    if factor is None or found.reduce.dtype is not factor.total:
        return None
    if any((side.op is Op.CAST) != factor.converted for side in found.reduce.src[0].src):
        return None
    if not factor.turns and not all(_fast_is_depth(facts, found, load) for load in (found.first, found.second)):
        return None
    if (range_size(found.rows) or 0) < WARPGROUP <= (range_size(found.columns) or 0):
        found = Product(found.reduce, found.depth, found.second, found.columns, found.first, found.rows)
    for load, own in ((found.first, found.rows), (found.second, found.columns)):
        access = next(a for a in facts.accesses if a.node is load)
        steps = {facts.stride(access, own), facts.stride(access, found.depth)}
        piece = 16 // load.dtype.itemsize
        if 1 not in steps or None in steps or any(s is not None and (s <= 0 or (s > 1 and s % piece)) for s in steps):
            return None
    engine = engine and target.copy_engine and not any(range_size(r) is None for r in facts.loops)
    if units.run_on and not engine and factor.name == "tf32":
        return None  # lanes do not round what they copy
    if block is None and engine:
        block = engine_block(facts, found, target)
    elif block is None:
        block = _lanes_block(facts, found, target) if units.run_on else _warps_block(facts, found, target)
    return None if block is None else _opts(facts, found, block, target, engine)


def lane_blocks(target: Target) -> Iterator[Block]:
    """The blocks whose lanes copy for themselves."""
    if target.matrix_units is not None and target.matrix_units.run_on:
        yield from (Block(LANES_BLOCK, 256, 4), Block(LANES_BLOCK, LANES_BLOCK, LANES_AHEAD))
    elif target.matrix_units is not None:
        yield from (Block(*sides, LANES_AHEAD) for sides in WARP_BLOCKS)


def _image_tile(
    facts: KernelFacts, target: Target, units: MatrixUnits, block: Block | None = None
) -> list[Opt] | None:  # fmt: skip
    """The opts for a convolution whose image the copy engine can fetch as it lies."""
    found = image_of(facts) if target.copy_engine else None
    if found is None:
        return None
    factor = units.pair(found.image.dtype, found.weights.dtype)
    if factor is None or not factor.converted or found.reduce.dtype is not factor.total:
        return None
    columns = range_size(found.columns) or 0
    pixels = 1
    for r in found.pixels:
        pixels *= range_size(r) or 1
    depth = 1
    for r in found.reduce.src[1:]:
        depth *= range_size(r) or 1
    sizes = Sizes(pixels, columns, depth, 1, found.image.dtype.itemsize)
    fitting = [b for b in blocks(target) if b.rows in (128, 64) and not (b.columns > 64 and b.columns // 2 >= columns)]
    fitting = [b for b in fitting if b.columns >= WARPGROUP]
    best = block or min(fitting, key=lambda b: clocks(b, sizes._replace(rows=padded_pixels(found, b.rows)), target))
    placed = place_image(facts, found, target, best.rows, best.columns)
    tiles = placed.tiles[:1]
    end(facts, placed.found, placed.opts, best, placed.outer, placed.inner, placed.detail, tiles, target, engine=True)
    try:
        actions.apply(facts.sink, placed.opts.opts, target)
    except ArgumentError:
        return None
    return placed.opts.opts


def _sizes(facts: KernelFacts, found: Product) -> tuple[int, int, int, int]:
    """Rows, columns, length of the sum, and how many products there are."""
    others = 1
    for r in facts.ranges[found.reduce]:
        if r not in (found.rows, found.columns):
            others *= range_size(r) or 1
    return range_size(found.rows) or 0, range_size(found.columns) or 0, range_size(found.depth) or 0, others


def _lanes_block(facts: KernelFacts, found: Product, target: Target) -> Block | None:
    """A block whose lanes copy for themselves."""
    rows, columns, depth, others = _sizes(facts, found)
    if min(rows, columns) < LANES_BLOCK // 2 or depth <= WARPGROUP:
        return None
    tall = -(-rows // LANES_BLOCK)
    many = others * tall * -(-columns // 256) >= 2 * target.cores
    # A wide block fills a multiprocessor alone: its steps overlap one another. Of others two do, and their ends too.
    wide = many and columns >= 256 and depth >= LONG
    return Block(LANES_BLOCK, 256, 4) if wide else Block(LANES_BLOCK, LANES_BLOCK, LANES_AHEAD)


def _warps_block(facts: KernelFacts, found: Product, target: Target) -> Block | None:
    """A block whose warps multiply on their own: the largest of which there are enough to fill the GPU."""
    rows, columns, depth, others = _sizes(facts, found)
    if min(rows, columns) < WARPGROUP // 2 or depth <= ROW // found.first.dtype.itemsize:
        return None
    turns = [_fast_is_depth(facts, found, load) for load in (found.first, found.second)]
    step = ROW // found.first.dtype.itemsize
    fitting: list[Block] = []
    for block in WARP_BLOCKS:
        buffers = min(LANES_AHEAD, target.shared_bytes // ((block[0] + block[1]) * ROW))
        across = (not turns[0] and block[0] % step) or (not turns[1] and block[1] % step)
        if buffers >= 2 and not across and rows > block[0] // 2 and columns > block[1] // 2:
            fitting.append(Block(*block, buffers))
    full = (b for b in fitting if others * -(-rows // b.rows) * -(-columns // b.columns) >= target.cores)
    return next(full, fitting[-1] if fitting else None)


def engine_block(facts: KernelFacts, found: Product, target: Target) -> Block | None:
    """The block that takes the fewest clocks."""
    loads = found.first, found.second
    first, second = (not _fast_is_depth(facts, found, load) for load in loads)
    sizes = Sizes(
        *_sizes(facts, found), found.first.dtype.itemsize, (first, second),
        (_lines(facts, found, found.first), _lines(facts, found, found.second)),
    )  # fmt: skip
    best = best_block(target, sizes, len(_boxed(facts, found)))
    return None if best is None else best[1]


def _fast_is_depth(facts: KernelFacts, found: Product, load: UOp) -> bool:
    access = next(a for a in facts.accesses if a.node is load)
    return facts.stride(access, found.depth) == 1


def _lines(facts: KernelFacts, found: Product, load: UOp) -> int:
    """How many lines of memory a part of a row of a factor is: two where rows begin in the middle of lines."""
    access = next(a for a in facts.accesses if a.node is load)
    steps = [facts.stride(access, r) for r in (found.rows, found.columns, found.depth) if r in access.ranges]
    pitch = max([step for step in steps if step is not None], default=0)
    return 2 if pitch * load.dtype.itemsize % ROW else 1


def _opts(facts: KernelFacts, found: Product, block: Block, target: Target, engine: bool) -> list[Opt]:
    """The schedule for a block."""
    opts = Opts(facts.next_number())
    rows, columns, depth, _ = _sizes(facts, found)
    step = ROW // found.first.dtype.itemsize
    number = int(found.rows.arg.number)
    tall = -(-rows // block.rows)
    warps = opts.split(OptKind.SPLIT, number, block.rows, rows)
    if warps != number:
        # Blocks that run at the same time are a few rows of blocks high, so that both factors are read near.
        together = next((g for g in (8, 4, 2) if tall % g == 0 and tall > g and columns > block.columns), 1)
        if together > 1 and not engine:
            opts.add(OptKind.PARALLEL, opts.split(OptKind.SPLIT, number, together, tall))
        opts.add(OptKind.PARALLEL, number)
    halves = opts.split(OptKind.SPLIT, warps, 16, block.rows)
    opts.split(OptKind.THREAD, warps, block.rows // 16, block.rows // 16)
    opts.split(OptKind.THREAD, halves, 8, 16)
    opts.split(OptKind.UNROLL, halves, 2, 2)
    groups, pair, wide = columns_of(opts, found.columns, columns, block.columns)
    outer = int(found.depth.arg.number)
    inner = opts.split(OptKind.SPLIT, outer, step, depth)
    parallel_rest(facts, found, opts)
    tiles = [int(found.rows.arg.number)] * (warps != number) + [int(found.columns.arg.number)] * wide
    end(facts, found, opts, block, outer, inner, TensorizeDetail(warps, halves, groups, pair, 1), tiles, target, engine)
    return opts.opts


def end(
    facts: KernelFacts, found: Product, opts: Opts, block: Block, outer: int, inner: int, detail: TensorizeDetail,
    tiles: list[int], target: Target, engine: bool,
) -> None:  # fmt: skip
    """Both copies, the unit, and how workgroups run."""
    for slot, which in copied_loads(facts, found):
        stage = StageDetail(slot, which, swizzle=True, buffers=block.buffers, engine=engine)
        opts.opts.append(Opt(OptKind.STAGE, outer, 0, detail=stage))
    if not engine and block.buffers <= LANES_AHEAD:
        detail = detail._replace(pending=0)
    opts.opts.append(Opt(OptKind.TENSORIZE, inner, 0, detail=detail))
    if not engine:
        return
    opts.add(OptKind.SPECIALIZE, outer)
    if tiles:
        opts.opts.append(Opt(OptKind.PERSISTENT, tiles[0], target.cores))
    if len(tiles) == 2:
        opts.opts.append(Opt(OptKind.TILE_ORDER, tiles[0], TOGETHER, detail=TileOrderDetail(tiles[1])))
    room = target.shared_bytes - RING_WORDS - block.buffers * (block.rows + block.columns) * ROW
    for slot in _boxed(facts, found):
        room -= block.rows // 16 * 2 * 16 * ROW
        if room >= 0:
            opts.opts.append(Opt(OptKind.EPILOGUE, detail.warps, slot))


def _boxed(facts: KernelFacts, found: Product) -> list[int]:
    """The slots whose results can be stored as boxes."""
    stores = [a for a in facts.accesses if a.is_store and found.rows in a.ranges]
    return [a.slot for a in stores if a.slot is not None and _stored_only(facts, a.slot)]


def _stored_only(facts: KernelFacts, slot: int) -> bool:
    """Whether a slot is stored once and never loaded from."""
    return sum(a.slot == slot for a in facts.accesses) == 1
