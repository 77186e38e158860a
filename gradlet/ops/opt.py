"""The words of the schedule language: `OptKind`, what some say beyond a range and an amount, and `Opt`, one action."""

from __future__ import annotations

from enum import IntEnum
from typing import Any, Final, NamedTuple, TypeAlias

from gradlet.ops.lanearguments import TensorizeDetail as TensorizeDetail
from gradlet.ops.lanearguments import TileOrderDetail as TileOrderDetail


class OptKind(IntEnum):
    """Vocabulary of the schedule language: how one range of a kernel is run."""

    UNROLL = 0  # split off `amount` inner iterations and write them out
    VECTORIZE = 1  # split off `amount` inner iterations as vector lanes
    PARALLEL = 2  # run the (outer) range over threads or workgroups, `amount` is unused (0)
    THREAD = 3  # split off `amount` iterations as lanes of a workgroup; lanes of a reduce range combine their parts
    SPLIT = 4  # split off `amount` inner iterations as a loop of their own
    REORDER = 5  # move the range to nesting position `amount`
    GROUP = 6  # keep `amount` partial accumulators side by side (a reduce range)
    ACCUMULATE = 7  # sum blocks of `amount` iterations, one after another, onto what is in memory (a reduce range)
    STAGE = 8  # copy a value into an array near the core, inside this range and ahead of what uses it there
    PREFETCH = 20  # bring near what loads of a slot will read `amount` iterations later
    STREAM = 21  # stores to slot `amount` that run over the range go past the caches
    SCAN = 25  # lanes along a range through which values are carried: combined in registers first
    ONLINE = 24  # a maximum and the sum of exponentials below it go by blocks of `amount`, in one pass
    ROTATE = 26  # a mean weighted by a softmax along the (reduce) range goes by blocks of `amount`, in one pass
    FEED = 28  # sums whose weights are made of products go by blocks of `amount` along their (reduce) range
    LOOKUP = 23  # keep a table of few elements in registers: loads from it that run over the range shuffle lanes
    TENSORIZE = 30  # a matrix unit sums products along the range (a reduce range of staged factors)
    SPECIALIZE = 31  # a warp of its own begins the copies that iterations of the range need
    PERSISTENT = 32  # `amount` workgroups walk the blocks of the (parallel) range and of all others
    TILE_ORDER = 33  # `amount` steps of the (parallel) range run beside each other before the next of another one
    EPILOGUE = 34  # what is stored to slot `amount` is gathered near, and stored as whole boxes
    DEAL = 27  # `amount` parts run through the (ordered) range, each for the rows that are its own
    FAR = 22  # cut into `amount` far segments that are walked together


class Tail(IntEnum):
    """What to do with iterations left over when `amount` does not divide the size."""

    EXACT = 0  # refuse unless it divides
    MASK = 1  # guard memory accesses
    SHIFT = 2  # the last block begins earlier and overlaps the one before (only where computing twice does no harm)
    BALANCE = 3  # blocks of two sizes that differ by one, each with code of its own
    PAD = 5  # loads read copies that end with zeros, so that only stores are guarded
    PEEL = 4  # the rest is one last block, with code of its own


# What a kind of opt says beyond a range, an amount and a tail: a named tuple of ints, enums and tuples of those, a
# class a kind. Texts leave out a field that has its default.
OptDetail: TypeAlias = tuple[Any, ...]


class StageDetail(NamedTuple):
    """STAGE: which value is copied, and how the copy lies in memory.

    Attributes:
        slot: the PARAM that the value is loaded from.
        which: of the loads from it, in the kernel's order.
        order: the ranges of the copy by number, the slowest first; without it, in nesting order.
        pad: by how many elements a row of the copy (its last range) is longer than it has to be.
        converted: whether the load's conversion to another type happens on the way into the copy.
        transpose: side of the blocks that the copy turns in registers, where its rows lie across those in memory.
        swizzle: rows of 128 bytes whose pieces of 16 are exchanged by row, as matrix units of a GPU read them.
        buffers: arrays that iterations use in turn, so that lanes of a GPU copy some iterations ahead.
        engine: the GPU's copy engine fetches the tile as boxes, and puts zeros where the operand has ended.
    """

    slot: int
    which: int = 0
    order: tuple[int, ...] = ()
    pad: int = 0
    converted: bool = False
    transpose: int = 0
    swizzle: bool = False
    buffers: int = 1
    engine: bool = False


class AccumulateDetail(NamedTuple):
    """ACCUMULATE: where the sums wait, and what a block takes.

    Attributes:
        order: the ranges of an array of the core, the slowest first; without it, the sums wait in the output.
        far: a block takes one element of each of as many long segments, which are walked side by side.
    """

    order: tuple[int, ...] = ()
    far: bool = False


class PrefetchDetail(NamedTuple):
    """PREFETCH: the slot of the memory that is read, and the nearest cache to bring lines to, 1 to 3.

    `along`: only loads that also run over the range of this number ask ahead (one pass of several over a row); -1: all.
    """

    slot: int
    level: int = 1
    along: int = -1


class LookupDetail(NamedTuple):
    """LOOKUP: the slot of the table."""

    slot: int


class RotateDetail(NamedTuple):
    """ROTATE: the rows that share a block of keys.

    Attributes:
        row: the number of their range.
        pad: by how many elements the rows side by side in an array are longer than they have to be.
        buffers: of the keys and values that a GPU's copy engine brings while its matrix units multiply; 0 on a CPU.
        workgroups: of a GPU, that take blocks of rows one after another; 0: each has one.
        queries: buffers of the rows' factors, for a block and the next ones.
        boxes: 1 if results go through shared memory, from where the copy engine stores them.
    """

    row: int
    pad: int = 0
    buffers: int = 0
    workgroups: int = 0
    queries: int = 1
    boxes: int = 0


class FeedDetail(NamedTuple):
    """FEED: the rows that share a block.

    Attributes:
        row: the number of their range.
        pad: by how many elements the rows side by side in an array are longer than they have to be.
        buffers: of the factors that a GPU's copy engine brings while its matrix units multiply; 0 on a CPU.
        workgroups: of a GPU, that take blocks of rows one after another; 0: each has one.
    """

    row: int
    pad: int = 0
    buffers: int = 0
    workgroups: int = 0


DETAILS: Final[dict[OptKind, type[OptDetail]]] = {
    OptKind.ACCUMULATE: AccumulateDetail,
    OptKind.STAGE: StageDetail,
    OptKind.PREFETCH: PrefetchDetail,
    OptKind.LOOKUP: LookupDetail,
    OptKind.ROTATE: RotateDetail,
    OptKind.FEED: FeedDetail,
    OptKind.TENSORIZE: TensorizeDetail,
    OptKind.TILE_ORDER: TileOrderDetail,
}


class Opt(NamedTuple):
    """One schedule action on range number `axis` of a kernel."""

    kind: OptKind
    axis: int
    amount: int
    tail: Tail = Tail.EXACT
    detail: OptDetail | None = None
