"""Arguments of lanes of a GPU and what they do together: numbers, barriers, copies that run ahead, matrix units."""

from __future__ import annotations

from typing import NamedTuple


class SpecialArg(NamedTuple):
    """SPECIAL: `workgroup` or `thread` index on a GPU, below `size`."""

    name: str
    size: int


class BarrierArg(NamedTuple):
    """BARRIER: its number inside the kernel."""

    number: int


class CopyArg(NamedTuple):
    """COPY_ASYNC: how many elements."""

    elements: int


class WaitArg(NamedTuple):
    """WAIT: its number inside the kernel, and how many groups of copies may be on their way; -1: for matrix units."""

    number: int
    pending: int


class WgmmaArg(NamedTuple):
    """WGMMA: size of the tile, and how the factors lie in shared memory.

    `rows` and `columns` of the product, `depth` of the sum; `first_across` and `second_across`: whether the sum runs
    across the rows of a factor's array, not along them. `pending`: how many steps may be on their way after one.
    """

    rows: int
    columns: int
    depth: int
    first_across: bool = False
    second_across: bool = False
    pending: int = 0


class TensorizeDetail(NamedTuple):
    """TENSORIZE: which ranges of the tile, by number, are what in the registers of a lane.

    Attributes:
        warps: lanes in whole warps, each with 16 rows.
        halves: the two rows of a lane, eight apart.
        groups: of eight columns.
        pair: the two columns of a lane in each.
        pending: steps of the sum that may still be on their way when the next one begins.
    """

    warps: int
    halves: int
    groups: int
    pair: int
    pending: int = 0
