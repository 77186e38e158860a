"""FEED: sums whose weights are made of products (the gradients of attention), block by block along their loop.

A kernel whose weights have an element for every pair of a row and a place along the loop would compute each of them
for every column of what they weigh, or read all of them from memory. `FEED(range 4, 64, row=2)` goes by blocks of 64:
the products of a block, then the weights, lie in arrays near the core, and all sums take what they need from there.
A row keeps one value for each column of each sum. Products that several weights have in common are computed once.

The row range becomes loops of its own: in the copies of the factors of the rows, the products of a block, the weights,
the sums. `Numbers` says which number each loop gets. Blocks for which all weights are 0 (of a causal mask, say) are
left out. With `SHIFT` the last block overlaps the one before, and does not see again what that has seen.
"""

from __future__ import annotations

from typing import NamedTuple

from gradlet.base.dtype import dtypes
from gradlet.graph.node import UOp, mk
from gradlet.ops.op import AxisKind, Op
from gradlet.ops.opt import FeedDetail, Opt, Tail
from gradlet.optimize.actions.feedfragments import feed_fragments
from gradlet.optimize.actions.near import NearArrays
from gradlet.optimize.actions.refusal import refusal
from gradlet.optimize.actions.stage import check_room
from gradlet.optimize.analysis import KernelFacts, make_range, range_size
from gradlet.optimize.feeds import Fed, Feeds, Inner, find_feeds, is_apart, seen_bounds
from gradlet.optimize.mixtures import seen_blocks
from gradlet.target.target import Target

INDEX = dtypes.index


class InnerLoops(NamedTuple):
    """The numbers of the loops of a product.

    Attributes:
        copy_depth, copy_row: the copy of the factor of the rows.
        tile_key, tile_row, tile_depth: the products of a block.
        near_key, near_depth: the copy of a block of the other factor, where its elements do not lie side by side.
    """

    copy_depth: int
    copy_row: int
    tile_key: int
    tile_row: int
    tile_depth: int
    near_key: int
    near_depth: int


class SumLoops(NamedTuple):
    """The numbers of the loops of a sum.

    Attributes:
        mix_row, mix_column, mix_key: what a block adds.
        near_key, near_column: the copy of a block of values, where they do not lie side by side.
    """

    mix_row: int
    mix_column: int
    mix_key: int
    near_key: int
    near_column: int


class Numbers(NamedTuple):
    """The numbers of the loops that FEED makes, counted from the next free one.

    Attributes:
        block: over blocks.
        weigh_key, weigh_row: the weights.
        inner: of each product.
        sums: of each sum.
    """

    block: int
    weigh_key: int
    weigh_row: int
    inner: tuple[InnerLoops, ...]
    sums: tuple[SumLoops, ...]

    @property
    def loops(self) -> int:
        """How many there are."""
        return 3 + len(self.inner) * len(InnerLoops._fields) + len(self.sums) * len(SumLoops._fields)


def numbers_from(first: int, feeds: Feeds) -> Numbers:
    """The numbers when `first` is the next free one."""
    at, size = first + 3, len(InnerLoops._fields)
    inner = tuple([InnerLoops(*range(at + i * size, at + (i + 1) * size)) for i in range(len(feeds.inner))])
    at, size = at + len(inner) * size, len(SumLoops._fields)
    sums = tuple([SumLoops(*range(at + i * size, at + (i + 1) * size)) for i in range(len(feeds.sums))])
    return Numbers(first, first + 1, first + 2, inner, sums)


def feed(facts: KernelFacts, loop: UOp, opt: Opt, target: Target) -> UOp:
    """The kernel going over blocks of `opt.amount`, the rows of range `row` of the detail together."""
    if not isinstance(opt.detail, FeedDetail):
        raise refusal(opt, "it does not say which range of rows goes together: row=...")
    if opt.detail.buffers:
        return feed_fragments(facts, loop, opt, target)
    feeds = find_feeds(facts, loop)
    if feeds is None:
        raise refusal(opt, "it is for the range of sums whose weights are made of products")
    if target.kind != "cpu":
        raise refusal(opt, "only a CPU's cores have arrays of their own; a GPU's matrix units take buffers=2 or more")
    row = facts.by_number(opt.detail.row)
    if row is None or row not in feeds.rows:
        raise refusal(opt, f"range {opt.detail.row} is none of rows that share what goes by")
    size, amount = range_size(loop), opt.amount
    if size is None or not 2 <= amount <= size or opt.tail not in (Tail.EXACT, Tail.SHIFT):
        raise refusal(opt, f"the size, {size}, is none that is cut in blocks of the amount")
    if size % amount and opt.tail is Tail.EXACT:
        raise refusal(opt, f"the size, {size}, is not a multiple of the amount")
    return _Feeding(facts, feeds, row, opt, target).run()


class _Feeding(NearArrays):
    """Builds the kernel."""

    def __init__(self, facts: KernelFacts, feeds: Feeds, row: UOp, opt: Opt, target: Target) -> None:
        assert isinstance(opt.detail, FeedDetail)
        super().__init__(facts, feeds.sums[0].node.dtype)
        self.feeds, self.row, self.amount = feeds, row, opt.amount
        self.rows, self.size = range_size(row) or 0, range_size(feeds.along) or 0
        self.pitch = self.rows + opt.detail.pad
        self.numbers = numbers_from(facts.next_number(), feeds)
        check_room(facts, opt, target, self._elements() * self.dtype.itemsize)
        self.first, count = self._blocks()
        self.block = UOp.const(INDEX, 0)
        if self.size > self.amount:
            self.block = make_range(count, self.numbers.block, AxisKind.ORDERED)
        begin = (self.block + self.first) * self.amount
        # A number of blocks that depends on the row is bounded, which no later pass can see.
        if self.size % self.amount or count.op is not Op.CONST:
            begin = begin.minimum(UOp.const(INDEX, self.size - self.amount))
        self.begin = begin

    def _elements(self) -> int:
        """Elements of all arrays."""
        total = self.pitch * self.amount * (len(self.feeds.inner) + len(self.feeds.sums))
        for inner in self.feeds.inner:
            depth = range_size(inner.depth) or 0
            total += depth * (self.pitch + (self.amount if is_apart(inner.beside, inner.depth) else 0))
        for fed in self.feeds.sums:
            columns = range_size(fed.column) or 0
            total += columns * (self.rows + (self.amount if is_apart(fed.values, fed.column) else 0))
        return total

    def run(self) -> UOp:
        """The kernel."""
        places = self._weights([self._tile(i, loops) for i, loops in zip(self.feeds.inner, self.numbers.inner)])
        offsets = [0]
        for fed in self.feeds.sums:
            offsets.append(offsets[-1] + self.rows * (range_size(fed.column) or 0))
        state = self._local(offsets[-1])
        stores: list[tuple[UOp, UOp]] = []
        closed = [self.block] if self.block.op is Op.RANGE else []
        for number, (fed, loops) in enumerate(zip(self.feeds.sums, self.numbers.sums, strict=True)):
            columns = range_size(fed.column) or 0
            row, column = self._loop(self.rows, loops.mix_row), self._loop(columns, loops.mix_column)
            key = self._loop(self.amount, loops.mix_key, AxisKind.REDUCE)
            weight = self._load(places, self._weight_place(number, key, row))
            values = self._values(fed, loops, key, column)
            terms = (values, weight) if fed.reverse else (weight, values)
            added = self._reduce(Op.ADD, mk(Op.MUL, self.dtype, terms), key)
            place = row * columns + column + offsets[number]
            stores.append((place, self._before(state, place) + added))
            closed += [row, column]
        final = self._filled(state, stores, *closed)
        results = {
            fed.node: self._load(final, self.row * (range_size(fed.column) or 0) + fed.column + offset)
            for fed, offset in zip(self.feeds.sums, offsets)
        }
        return self.facts.sink.substitute(results)

    def _before(self, state: UOp, place: UOp) -> UOp:
        """What there is already; nothing in the first block."""
        nothing = UOp.const(self.dtype, 0.0)
        if self.block.op is not Op.RANGE:
            return nothing
        return (UOp.const(INDEX, 0) < self.block).where(self._load(state, place), nothing)

    def _blocks(self) -> tuple[UOp, UOp]:
        """The first block of which the rows see anything, and how many blocks follow."""
        return seen_blocks(seen_bounds(self.feeds), self.size, self.amount, (self.row,))

    def _tile(self, inner: Inner, loops: InnerLoops) -> UOp:
        """The products of a block, the rows side by side."""
        size = range_size(inner.depth) or 0
        depth, row = self._loop(size, loops.copy_depth), self._loop(self.rows, loops.copy_row)
        own = inner.own.substitute({inner.depth: depth, self.row: row})
        copied = self._filled(self._local(size * self.pitch, own.dtype), ((depth * self.pitch + row, own),), depth, row)
        key, row = self._loop(self.amount, loops.tile_key), self._loop(self.rows, loops.tile_row)
        depth = self._loop(size, loops.tile_depth, AxisKind.REDUCE)
        near = self._load(copied, depth * self.pitch + row)
        beside = self._beside(inner, loops, key, depth)
        terms = (beside, near) if inner.node.src[0].src[0] is inner.beside else (near, beside)
        product = self._reduce(Op.ADD, mk(Op.MUL, inner.node.dtype, terms), depth)
        local = self._local(self.pitch * self.amount, product.dtype)
        return self._filled(local, ((key * self.pitch + row, product),), key, row)

    def _beside(self, inner: Inner, loops: InnerLoops, key: UOp, depth: UOp) -> UOp:
        """An element of the factor that goes by, from a copy where its elements do not lie side by side."""
        along = self.feeds.along
        if not is_apart(inner.beside, inner.depth):
            return inner.beside.substitute({along: self.begin + key, inner.depth: depth})
        size = range_size(inner.depth) or 0
        row, column = self._loop(self.amount, loops.near_key), self._loop(size, loops.near_depth)
        value = inner.beside.substitute({along: self.begin + row, inner.depth: column})
        copy = self._filled(self._local(self.amount * size, value.dtype), ((row * size + column, value),), row, column)
        return self._load(copy, key * size + depth)

    def _weights(self, tiles: list[UOp]) -> UOp:
        """The weights of all sums, one after another, from the products of the block."""
        key, row = self._loop(self.amount, self.numbers.weigh_key), self._loop(self.rows, self.numbers.weigh_row)
        instead = {self.feeds.along: self.begin + key, self.row: row}
        for inner, tile in zip(self.feeds.inner, tiles, strict=True):
            instead[inner.node] = self._load(tile, key * self.pitch + row)
        stores: list[tuple[UOp, UOp]] = []
        for number, fed in enumerate(self.feeds.sums):
            weight = fed.weight.substitute(instead)
            if self.size % self.amount:
                weight = self._unseen(key).where(weight, UOp.const(weight.dtype, 0.0))
            stores.append((self._weight_place(number, key, row), weight))
        local = self._local(self.pitch * self.amount * len(stores))
        return self._filled(local, stores, key, row)

    def _weight_place(self, number: int, key: UOp, row: UOp) -> UOp:
        return (key + number * self.amount) * self.pitch + row

    def _values(self, fed: Fed, loops: SumLoops, key: UOp, column: UOp) -> UOp:
        """What is weighted, from a copy of the block where columns do not lie side by side."""
        copied = is_apart(fed.values, fed.column)
        row, at, size = key, column, range_size(fed.column) or 0
        if copied:
            row, at = self._loop(self.amount, loops.near_key), self._loop(size, loops.near_column)
        value = fed.values.substitute({self.feeds.along: self.begin + row, fed.column: at})
        if self.size % self.amount:  # what the block before has seen counts as 0, whatever it is
            value = self._unseen(row).where(value, UOp.const(value.dtype, 0.0))
        if not copied:
            return value
        copy = self._filled(self._local(self.amount * size, value.dtype), ((row * size + at, value),), row, at)
        return self._load(copy, key * size + column)

    def _unseen(self, key: UOp) -> UOp:
        """Whether the block before has not seen a place: the last block begins earlier than it would."""
        return (self.block + self.first) * self.amount < self.begin + key + 1
