"""The shape of a register tile: how many sums of a product one loop body keeps in registers, as rows by vectors."""

from __future__ import annotations

import math
from typing import Final, NamedTuple

from gradlet.target.target import Target


class Tile(NamedTuple):
    """Rows, vectors along the lanes' range, and copies of `columns` that one loop body accumulates."""

    rows: int
    vectors: int
    columns: int


class Need(NamedTuple):
    """What there is to cut into tiles.

    Attributes:
        rows: of the result that a vector serves.
        lanes: of a vector.
        vectors: the most side by side.
        columns: further columns of the lanes' factor.
        length: of the lanes' range; 0 where lanes go along the sum.
        together: sums that share the tile's registers.
        depth: how long the sums are, where nothing but the multiply-adds takes time; 0 if that is not known.
    """

    rows: int
    lanes: int
    vectors: int
    columns: int = 1
    length: int = 0
    together: int = 1
    depth: int = 0


# Steps of a sum that the end of a tile takes which fills the registers: all its sums are written before others begin.
END: Final = 12


def choose_tile(target: Target, need: Need) -> Tile:
    """The tile with the fewest loads a multiply-add, counting what an uneven cut wastes."""
    registers = target.vector_registers
    # Lanes along the sum leave nothing but loads of both factors: all registers are in use.
    budget = registers - (3 if registers >= 32 else 1 if need.length else 0)
    rows, columns, vectors = need.rows, need.columns, need.vectors
    latency = 8 if registers >= 32 else 6
    best, best_cost = Tile(1, 1, 1), math.inf
    for v in range(1, min(vectors, 8 if rows > 1 else 16) + 1):
        for c in range(1, min(columns, 8) + 1):
            if columns > 1 and need.length and c > 1 and v < min(vectors, 4):
                continue
            for r in range(1, min(rows, registers) + 1):
                wide = v * c
                if (r * wide + wide) * need.together + 1 > budget:
                    break
                sums = r * wide * need.together
                cost = (r + wide * need.together) / sums + 0.25 * max(1.0, latency / sums)
                cost *= waste(rows, r) * waste(columns, c)
                cost *= waste(need.length, v * need.lanes) if need.length else 1.0
                if need.depth:
                    cost *= 1 + END / need.depth * (sums / budget) ** 2
                if cost < best_cost - 1e-9:
                    best, best_cost = Tile(r, v, c), cost
    return best


def waste(size: int, amount: int) -> float:
    """How much more is computed than needed when a range is cut into blocks; an uneven cut costs a little by itself."""
    blocks = -(-size // amount)
    return blocks * amount / size * (1.0 if size % amount == 0 else 1.02)
