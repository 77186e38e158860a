"""How attention goes by blocks of queries and keys inside one kernel: what scheduler and optimiser agree on.

A block of queries stays with its weighted values near the core while blocks of keys go by, whose scores lie there too.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Final, NamedTuple

from gradlet.target.target import Target

MOST_ROWS: Final = 64  # of a block of queries
MOST_KEYS: Final = 128  # of a block of keys
FEWEST: Final = 16  # rows or keys for which blocks are worth their ends
FLOAT: Final = 4  # bytes; sums are in float32
OVERLAP: Final = 0.2  # of its time that a kernel takes longer where the last block of keys overlaps
END: Final = 12  # keys that take as long as the end of a block: maxima, scaling what is there

# On a GPU products are by matrix units: whole warps of 16 rows, tiles of 64, results that registers hold.
TILE: Final = 64
WARP_ROWS: Final = 16
UNIT_ROWS: Final = 128
WIDEST: Final = 256  # registers hold so many results of a row beside scores
UNIT_COLUMNS: Final = tuple(range(TILE, WIDEST + 1, TILE))
MOST_BUFFERS: Final = 4
ENOUGH_BUFFERS: Final = 3
MANY_BLOCKS: Final = 32  # of keys
FED_COLUMNS: Final = (64, 128)  # of sums whose weights are made of products, and depths of these
MOST_UNIT_SUMS: Final = 2  # of rows that registers hold, beside
MOST_UNIT_PRODUCTS: Final = 2  # of a block
RING_WORDS: Final = 512  # bytes for the words of a ring


class Blocks(NamedTuple):
    """How many queries and keys go together."""

    rows: int
    keys: int


def blocks(target: Target, rows: int, keys: int, columns: int, depth: int) -> Blocks | None:
    """The blocks for so many queries and keys, values of `columns` and products of `depth`; None: not this way.

    Rows of a block lie side by side in vectors, two at a time; blocks overlap where they do not divide the rows.
    """
    lanes = target.vector_bits // (8 * FLOAT)
    if target.kind != "cpu" or lanes < 2 or min(rows, keys) < max(FEWEST, 2 * lanes) or columns % lanes:
        return None

    def fits(r: int, k: int) -> bool:
        nbytes = FLOAT * (r * (depth + columns + 2 * k + 5) + k * (depth + columns))
        return nbytes <= target.scratch_bytes and (FLOAT * r * k <= target.l1_bytes // 2 or k <= FEWEST)

    return _cheapest(rows, keys, 2 * lanes, fits)


def _cheapest(rows: int, keys: int, step: int, fits: Callable[[int, int], bool]) -> Blocks | None:
    """Of the blocks that fit, those that compute least twice and end least often."""
    best: Blocks | None = None
    lowest = 0.0
    for r in range(step, min(MOST_ROWS, rows) + 1, step):
        for k in _lengths(keys):
            if not fits(r, k):
                continue
            computed = -(-rows // r) * r / rows * -(-keys // k) * k / keys
            cost = computed * (1 + END / k) * (1 + END / r) * (1 if keys % k == 0 else 1 + OVERLAP)
            if best is None or cost < lowest - 1e-9:
                best, lowest = Blocks(r, k), cost
    return best


def _lengths(keys: int) -> list[int]:
    """Lengths of blocks of keys: those that divide them, and some that do not."""
    exact = [k for k in range(FEWEST, min(MOST_KEYS, keys) + 1) if keys % k == 0]
    return exact + [k for k in (64, 96, 128) if k <= keys and keys % k]


def feeding_blocks(
    target: Target, rows: int, keys: int, columns: Sequence[int], depths: Sequence[int]
) -> Blocks | None:
    """The blocks for products whose factors are made of products; None: not this way.

    Args:
        target: the machine.
        rows: rows of the results.
        keys: the loop that is summed along.
        columns: of each result.
        depths: of each product that a factor is made of.
    """
    lanes = target.vector_bits // (8 * FLOAT)
    if target.kind != "cpu" or lanes < 2 or min(rows, keys) < max(FEWEST, 2 * lanes):
        return None
    if any(c % lanes for c in columns):
        return None
    tiles, widths = len(columns) + len(depths), sum(depths) + sum(columns)

    def fits(r: int, k: int) -> bool:
        nbytes = FLOAT * (r * (widths + tiles * k) + k * widths)
        return nbytes <= target.scratch_bytes and (tiles * FLOAT * r * k <= target.l1_bytes or k <= FEWEST)

    return _cheapest(rows, keys, 2 * lanes, fits)


def feeding_unit_blocks(
    target: Target, rows: int, keys: int, columns: Sequence[int], depths: Sequence[int]
) -> Blocks | None:
    """`feeding_blocks` of a GPU with matrix units for factors of 16 bits; None: not this way."""
    if not has_register_factors(target) or not {*columns, *depths} <= set(FED_COLUMNS):
        return None
    if min(rows, keys) < FEWEST or len(columns) > MOST_UNIT_SUMS or len(depths) > MOST_UNIT_PRODUCTS:
        return None
    return Blocks(TILE if rows <= TILE else UNIT_ROWS, TILE)


def has_register_factors(target: Target) -> bool:
    """Whether matrix units take a factor from registers and a copy engine brings the others: `wgmma`."""
    return target.matrix_units is not None and target.matrix_units.run_on and target.copy_engine


def unit_blocks(target: Target, rows: int, keys: int, columns: int, depth: int) -> Blocks | None:
    """The blocks of a GPU with matrix units for 16-bit queries, keys and values; None: not this way."""
    if not has_register_factors(target) or not {columns, depth} <= set(UNIT_COLUMNS):
        return None
    if min(rows, keys) < FEWEST:
        return None
    many = keys > TILE and columns <= UNIT_ROWS and columns + depth <= WIDEST + TILE
    return Blocks(TILE if rows <= TILE else UNIT_ROWS, UNIT_ROWS if many else TILE)


def all_unit_blocks(target: Target) -> Iterator[Blocks]:
    """All blocks that such a GPU may take."""
    if has_register_factors(target):
        for rows in (UNIT_ROWS, TILE):
            for keys in (UNIT_ROWS, TILE):
                yield Blocks(rows, keys)


class Buffers(NamedTuple):
    """Of how many blocks of keys, of values and of queries there is room for."""

    keys: int
    queries: int


def unit_buffers(target: Target, cut: Blocks, keys: int, columns: int, depth: int, boxes: int) -> Buffers:
    """As many as there is room for: a second block of queries pays where few of keys follow, more of keys else.

    With `boxes`, warps have two buffers of 128 bytes a row for results.
    """
    room = target.shared_bytes - RING_WORDS - boxes * 2 * 128 * cut.rows
    rows, pair = 2 * cut.rows * depth, 2 * cut.keys * (depth + columns)
    most = [min(MOST_BUFFERS, (room - n * rows) // pair) for n in (1, 2)]
    second = most[1] >= min(most[0], ENOUGH_BUFFERS) or (most[1] > 1 and keys < MANY_BLOCKS * cut.keys)
    return Buffers(most[1], 2) if second else Buffers(most[0], 1)
