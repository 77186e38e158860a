"""Blocks of products on matrix units that a copy engine feeds: what scheduler and optimiser agree on.

A block of rows and columns is what the registers of a workgroup hold: every 64 rows are a warpgroup. A step of the sum
takes a warpgroup `columns / 2` clocks for every 16 elements, unless shared memory is slower: the units read the columns
once for each warpgroup, and the copies write both factors. As many blocks as there are multiprocessors run at a time.
Where there are fewer the sum is cut in parts, whose results are added up by another kernel.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final, NamedTuple

from gradlet.target.target import Target

ROW: Final = 128  # bytes of a step of the sum
WARPGROUP: Final = 64  # rows of one
FEWEST: Final = 16  # columns that are worth a matrix unit
ROWS: Final = (128, 64, 192)
COLUMNS: Final = (256, 192, 128, 64, 32, 16)
LARGEST: Final = 192 * 192  # elements of a block: what registers hold
SHARED_CLOCK: Final = 128  # bytes that shared memory moves a clock
# What the copy engine writes is less in the way of the units than what they read; searches on an H200 say how much.
WRITES: Final = 0.63
LINE_CLOCKS: Final = 1.6  # of the copy engine for a line of memory
# Three warpgroups hand buffers on later than two.
THREE_GROUPS: Final = 1.03
# Smaller blocks read the factors more often, which costs power, and so clocks.
SMALLER: Final = 1.02
BLOCK_CLOCKS: Final = 1500  # until the first products of a workgroup begin, and its last results are stored
MOST_BUFFERS: Final = 12
RING_WORDS: Final = 512  # bytes for the words of a ring
CLOCK: Final = 1_750_000_000  # a second
MOST_PARTS: Final = 64
# What parts have to save, so that a model of clocks that is a little off does no harm.
WORTH: Final = 0.95


class Block(NamedTuple):
    """Rows and columns of a block, how many buffers its steps use in turn."""

    rows: int
    columns: int
    buffers: int


class Sizes(NamedTuple):
    """A product: its rows and columns, the length of the sum, how many products there are, bytes of an element.

    `across`: whether the sum runs across the rows of a factor's memory; `lines`: of memory that a part of a row is.
    """

    rows: int
    columns: int
    depth: int
    others: int
    itemsize: int
    across: tuple[bool, bool] = (False, False)
    lines: tuple[int, int] = (1, 1)

    @property
    def step(self) -> int:
        """Elements of a step of the sum."""
        return ROW // self.itemsize


def blocks(target: Target, stores: int = 1) -> Iterator[Block]:
    """What fits, with room for so many results on their way to memory."""
    for rows in ROWS:
        for columns in COLUMNS:
            if rows * columns > LARGEST:
                continue
            results = max(1, stores) * rows // 16 * 2 * 16 * ROW
            room = target.shared_bytes - RING_WORDS - results
            buffers = min(MOST_BUFFERS, room // ((rows + columns) * ROW))
            if buffers >= 3:
                yield Block(rows, columns, buffers)


def best_block(target: Target, sizes: Sizes, stores: int = 1) -> tuple[float, Block] | None:
    """The block that takes the fewest clocks, and how many; None where the product is not for matrix units."""
    if sizes.rows < WARPGROUP or sizes.columns < FEWEST or sizes.depth <= sizes.step:
        return None
    best: tuple[float, Block] | None = None
    for block in blocks(target, stores):
        # What lies along rows or columns is copied in parts of 128 bytes.
        if (sizes.across[0] and block.rows % sizes.step) or (sizes.across[1] and block.columns % sizes.step):
            continue
        # Narrow blocks are for products of few columns: results of others are stored in rows of 128 bytes.
        if block.columns < WARPGROUP and block.columns * 2 <= sizes.columns:
            continue
        if block.columns > FEWEST and block.columns // 2 >= sizes.columns:
            continue
        found = clocks(block, sizes, target)
        if best is None or found < best[0]:
            best = found, block
    return best


def clocks(block: Block, sizes: Sizes, target: Target) -> float:
    """About how long all blocks take."""
    groups = block.rows // WARPGROUP
    units = groups * block.columns / 2  # for 32 bytes of the sum
    reads = groups * (WARPGROUP * 32 + 32 * block.columns)
    writes = (block.rows + block.columns) * 32
    a_step = max(
        4 * units * (THREE_GROUPS if groups == 3 else 1), 4 * (reads + WRITES * writes) / SHARED_CLOCK,
        (block.rows * sizes.lines[0] + block.columns * sizes.lines[1]) * LINE_CLOCKS,
    ) * (SMALLER if block.rows * block.columns < 128 * 256 else 1)  # fmt: skip
    count = sizes.others * -(-sizes.rows // block.rows) * -(-sizes.columns // block.columns)
    turns = -(-count // target.cores)
    # One warpgroup alone does not multiply while it hands a buffer on.
    alone = 1.03 if groups == 1 else 1.0
    return turns * (-(-sizes.depth // sizes.step) * a_step * alone + BLOCK_CLOCKS / 4) + BLOCK_CLOCKS


def parts(target: Target, sizes: Sizes, lengths: int) -> int:
    """In how many parts a sum is best cut; `lengths` is what they have to divide.

    Parts are written and read once more, four bytes a result, by another kernel.
    """
    whole = best_block(target, sizes)
    if whole is None:
        return 1
    best, fewest = 1, whole[0] * WORTH
    results = 4 * sizes.rows * sizes.columns * sizes.others
    for count in range(2, min(MOST_PARTS, lengths) + 1):
        if lengths % count:
            continue
        cut = best_block(target, sizes._replace(depth=sizes.depth // count, others=sizes.others * count))
        moved = 2 * count * results * CLOCK / target.bytes_per_second
        started = target.launch_ps * CLOCK / 10**12
        if cut is not None and cut[0] + moved + started < fewest:
            best, fewest = count, cut[0] + moved + started
    return best
