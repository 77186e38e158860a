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
    """WAIT: its number inside the kernel, and how many groups of copies may be on their way.

    -1: for matrix units; -4: for all that they do but the last product.
    """

    number: int
    pending: int


class BoxArg(NamedTuple):
    """BOX: how memory lies, the fastest axis first, and the part that is moved.

    Attributes:
        sizes: of the axes; outside of them are zeros.
        strides: elements that a step along each axis is; the first is 1.
        box: elements of the part along each axis.
        apart: how far these are from one another; () means 1 along all axes.
        rounded: float32 elements become TF32 on the way, rounded to nearest.
    """

    sizes: tuple[int, ...]
    strides: tuple[int, ...]
    box: tuple[int, ...]
    apart: tuple[int, ...] = ()
    rounded: bool = False


class RingArg(NamedTuple):
    """RING: how many buffers, the bytes that fill one, how many warps use it, and its number inside the kernel."""

    buffers: int
    bytes: int
    warps: int
    number: int = 0


class TurnArg(NamedTuple):
    """TURN: whether the buffer is to be used (else filled), and how many steps of units may be on their way then."""

    full: bool
    pending: int = 0


class WgmmaArg(NamedTuple):
    """WGMMA: size of the tile, and how the factors lie in shared memory.

    `rows` and `columns` of the product, `depth` of the sum; `first_across` and `second_across`: whether the sum runs
    across the rows of a factor's array, not along them. `pending`: how many steps may be on their way after one.
    `alone`: the product is not added to anything, or, with a private array as start, to what that has; `registers`: the
    first factor is a private array of each lane.
    """

    rows: int
    columns: int
    depth: int
    first_across: bool = False
    second_across: bool = False
    pending: int = 0
    alone: bool = False
    registers: bool = False


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


class TileOrderDetail(NamedTuple):
    """TILE_ORDER: the number of the other parallel range, whose steps come between those groups."""

    along: int
