"""FEED on a GPU: products of a block, weights and sums lie in the registers of matrix units, factors come as boxes.

Rows are cut as for ROTATE (`fragments`): whole warps have 16 rows each, a lane two of them, eight apart, and of every
eight columns of a product two. Products of a block are where weights are made of them, and these, rounded as the values
are, where the units take the first factor of a sum. What a block adds stays in the registers that units add to. The
factors of the rows come once; those that go by come block by block, each once also where it is both a factor of a
product and the values of a sum.
"""

from __future__ import annotations

from gradlet.base.dtype import dtypes
from gradlet.graph.node import UOp, mk
from gradlet.graph.rewrite import rewrite
from gradlet.ops.op import AxisKind, Op
from gradlet.ops.opt import FeedDetail, Opt, Tail
from gradlet.optimize.actions.fragmenttiles import INDEX, Fragment, FragmentTiles, fragment_of, narrow_load, with_guard
from gradlet.optimize.actions.refusal import refusal
from gradlet.optimize.analysis import KernelFacts, affine, range_size
from gradlet.optimize.feeds import Fed, Feeds, find_feeds, seen_bounds
from gradlet.optimize.mixtures import Hidden, is_zero, peeled, seen_blocks
from gradlet.rules.sets import INDEX_MATH
from gradlet.target.rotation import FED_COLUMNS, RING_WORDS, TILE, WARP_ROWS, has_register_factors
from gradlet.target.target import Target


def feed_fragments(facts: KernelFacts, loop: UOp, opt: Opt, target: Target) -> UOp:
    """The kernel going over blocks of `opt.amount`, products by matrix units."""
    if not has_register_factors(target):
        raise refusal(opt, f"{target.name} has no matrix units that take a factor from registers")
    return _Feeding(facts, loop, opt, target).run()


def simplified(weight: UOp, feeds: Feeds) -> tuple[UOp, float]:
    """A weight as what a lane computes for an element, and a constant that the whole sum is multiplied by.

    Constants that multiply an exponent before others are added to it are one; what a mask hides is 0 once.
    """
    factor = 1.0
    while weight.op is Op.MUL and weight.src[1].op is Op.CONST:
        factor *= weight.src[1].arg
        weight = weight.src[0]
    new: dict[UOp, UOp] = {}
    hidden: dict[UOp, set[tuple[UOp, bool]]] = {}  # conditions without which a value is 0
    for node in weight.toposort():
        made = node if new.keys().isdisjoint(node.src) else mk(
            node.op, node.dtype, tuple([new.get(s, s) for s in node.src]), node.arg
        )  # fmt: skip
        zeros: set[tuple[UOp, bool]] = set()
        if node.op is Op.EXP2 and node.src[0].op is Op.ADD:
            found = _masked_power(node, feeds)
            if found is not None:
                made, masks = found
                zeros = {(m.condition, m.holds) for m in masks}
        elif node.op is Op.MUL:
            zeros = hidden.get(node.src[0], zeros) | hidden.get(node.src[1], zeros)
        elif node.op is Op.WHERE:
            for value, other, holds in ((node.src[1], node.src[2], True), (node.src[2], node.src[1], False)):
                if is_zero(other) and (node.src[0], holds) in hidden.get(value, zeros):
                    made, zeros = new.get(value, value), hidden[value]
        if made is not node:
            new[node] = made
        if zeros:
            hidden[node] = zeros
    return new.get(weight, weight), factor


def _masked_power(power: UOp, feeds: Feeds) -> tuple[UOp, list[Hidden]] | None:
    """A power of two of a product, some constants and masks: of one multiply-add, and 0 where it is hidden."""
    products = {inner.node for inner in feeds.inner}
    for x, shift in (power.src[0].src, power.src[0].src[::-1]):
        found = peeled(x, feeds.along)
        if found.inner in products and products.isdisjoint(shift.toposort()):
            value = mk(Op.EXP2, power.dtype, (found.inner * found.factor + shift,))
            for mask in found.masks:
                nothing = UOp.const(power.dtype, 0.0)
                value = mask.condition.where(value, nothing) if mask.holds else mask.condition.where(nothing, value)
            return value, found.masks
    return None


class _Feeding(FragmentTiles):
    """Builds the kernel."""

    def __init__(self, facts: KernelFacts, loop: UOp, opt: Opt, target: Target) -> None:
        detail, self.opt = opt.detail, opt
        assert isinstance(detail, FeedDetail)
        feeds = find_feeds(facts, loop, cut=True)
        half = facts.by_number(detail.row)
        if feeds is None or not feeds.inner:
            raise refusal(opt, "it is for the range of sums whose weights are made of products")
        common = frozenset.intersection(*[frozenset(s.weight.ranges) for s in feeds.sums])
        columns = {r for s in feeds.sums for r in s.columns}
        threads = [r for r in common - columns if r.arg.kind is AxisKind.THREAD]
        if half is None or half.arg.kind is not AxisKind.UNROLL or range_size(half) != 2 or len(threads) != 2:
            raise refusal(opt, f"range {detail.row} is not two rows of lanes of whole warps")
        super().__init__(facts, dtypes.float32)
        self.feeds, self.half, self.keys = feeds, half, feeds.along
        self.warps, self.eight = sorted(threads, key=lambda r: r.arg.number)
        self.rows, self.size = WARP_ROWS * (range_size(self.warps) or 0), range_size(feeds.along) or 0
        self.amount, self.buffers, self.number = opt.amount, detail.buffers, facts.next_number()
        self.columns = [self._columns_of(fed) for fed in feeds.sums]
        self.weights = [simplified(fed.weight, feeds) for fed in feeds.sums]
        self.tiles: list[tuple[UOp, UOp, UOp]] = []
        self._check(target)
        first, count = (rewrite(n, INDEX_MATH) for n in self._blocks())
        single = count.op is Op.CONST and count.arg == 1
        self.block = UOp.const(INDEX, 0) if single else self.range_of(count, AxisKind.ORDERED)
        # A sum of its own, so that later steps find where a block begins.
        at = self.block if first.op is Op.CONST and not first.arg else self.block + first
        self.begin = at * self.amount

    def _columns_of(self, fed: Fed) -> Fragment:
        found = {r.arg.kind: r for r in fed.columns}
        parts = [found[kind] for kind in (AxisKind.UNROLL, AxisKind.THREAD, AxisKind.VECTOR) if kind in found]
        if range_size(self.eight) != 8 or len(fed.columns) != 3 or [range_size(r) for r in parts[1:]] != [4, 2]:
            raise refusal(self.opt, "rows and columns are not cut as the registers of a matrix unit")
        return fragment_of(*parts)

    def _check(self, target: Target) -> None:
        opt, feeds, amount = self.opt, self.feeds, self.amount
        inside = {self.warps, self.half, self.eight}
        beside = [p.beside for p in feeds.inner] + [s.values for s in feeds.sums]
        loads = [narrow_load(f) for f in (*beside, *[p.own for p in feeds.inner])]
        if any(load is None for load in loads) or len({load.dtype for load in loads if load is not None}) != 1:
            raise refusal(opt, "factors are not loaded as bfloat16 or float16")
        nodes = [p.node for p in feeds.inner] + [s.node for s in feeds.sums]
        if any(node.dtype is not dtypes.float32 for node in nodes):
            raise refusal(opt, "matrix units sum in float32")
        if any(not inside.isdisjoint(self.facts.ranges.get(f, f.ranges)) for f in beside):
            raise refusal(opt, "what goes by differs from row to row")
        if opt.tail not in (Tail.EXACT, Tail.MASK) or amount % TILE or amount > 256:
            raise refusal(opt, f"matrix units take blocks in multiples of {TILE}, 256 at most, and a MASK at the end")
        if self.size % amount and opt.tail is Tail.EXACT:
            raise refusal(opt, f"the size, {self.size}, is not a multiple of the amount")
        depths = [range_size(p.depth) or 0 for p in feeds.inner]
        if self.rows % TILE or not {*depths, *[self._length(c) for c in self.columns]} <= set(FED_COLUMNS):
            raise refusal(opt, f"rows, {self.rows}, columns or depths, {depths}, do not fit the registers of the units")
        elements = self.rows * sum(depths) + self.buffers * amount * sum(self._lengths_that_go_by())
        if 2 * elements + RING_WORDS > target.shared_bytes:
            raise refusal(opt, f"lanes share {target.shared_bytes} bytes; choose fewer buffers or shorter blocks")

    def _lengths_that_go_by(self) -> list[int]:
        """Elements of a row of every factor that goes by."""
        found: list[tuple[UOp, int]] = []
        for load, columns in self._going_by():
            if not any(self._is_same(load, columns, other, size) for other, size in found):
                found.append((self._plain(load, columns), self._length(columns)))
        return [size for _, size in found]

    def _going_by(self) -> list[tuple[UOp, UOp | Fragment]]:
        found: list[tuple[UOp, UOp | Fragment]] = [(p.beside, p.depth) for p in self.feeds.inner]
        return found + [(s.values, c) for s, c in zip(self.feeds.sums, self.columns, strict=True)]

    def _plain(self, factor: UOp, columns: UOp | Fragment) -> UOp:
        """The load of a factor at its first column."""
        load = narrow_load(factor)
        assert load is not None
        loops = columns.loops if isinstance(columns, Fragment) else (columns,)
        return load.substitute({r: UOp.const(INDEX, 0) for r in loops})

    def _is_same(self, factor: UOp, columns: UOp | Fragment, plain: UOp, size: int) -> bool:
        """Whether two factors that go by are the same part of memory: columns lie side by side in both."""
        mine = self._plain(factor, columns)
        if size != self._length(columns) or mine.src[0].src[0] is not plain.src[0].src[0] or len(mine.src[0].src) > 2:
            return False
        one, other = affine(mine.src[0].src[1]), affine(plain.src[0].src[1])
        return one.terms == other.terms and one.constant == other.constant and len(plain.src[0].src) == 2

    def _tile_of(self, factor: UOp, columns: UOp | Fragment) -> UOp:
        """The array of a factor that goes by."""
        load, size = narrow_load(factor), self._length(columns)
        assert load is not None
        for plain, tile, other in self.tiles:
            if self._is_same(factor, columns, plain, int(other.arg)):
                return tile
        tile = self.tile_that_goes_by(load, columns)
        self.tiles.append((self._plain(factor, columns), tile, UOp.const(INDEX, size)))
        return tile

    def run(self) -> UOp:
        """The kernel."""
        weights = self._weights()
        columns = [self._length(c) for c in self.columns]
        state = self._local(sum(2 * n for n in columns), private=True)
        stores: list[tuple[UOp, UOp]] = []
        four = self.range_of(4, AxisKind.THREAD)  # all sums have the same lanes
        closed = [self.block, four] if self.block.op is Op.RANGE else [four]
        offset = 0
        offsets: list[int] = []
        for fed, own, array, count in zip(self.feeds.sums, self.columns, weights, columns, strict=True):
            row, column = self.both_rows(), self.fragment(count, four)
            place = self.range_of(self.amount, AxisKind.TENSOR)
            value = self.of_tile_that_goes_by(self._tile_of(fed.values, own), place, column.at, count)
            weight = self._load(array, row * self.amount + place)
            added = self._reduce(Op.ADD, weight.cast(self.dtype) * value.cast(self.dtype), place)
            at = row * count + column.at + offset
            stores.append((at, self._before(state, at) + added))
            closed += [row, column.group, column.pair]
            offsets.append(offset)
            offset += 2 * count
        final = self._filled(state, stores, *closed)
        results = {
            fed.node: self._load(final, self.half * count + own.at + offset) * factor
            for fed, own, count, offset, (_, factor) in zip(
                self.feeds.sums, self.columns, columns, offsets, self.weights, strict=True
            )
        }
        lanes = {own.four: self.columns[0].four for own in self.columns}
        return self.facts.sink.substitute(results).substitute(lanes)

    def _before(self, state: UOp, place: UOp) -> UOp:
        """What there is already; nothing in the first block."""
        nothing = UOp.const(self.dtype, 0.0)
        if self.block.op is not Op.RANGE:
            return nothing
        return (UOp.const(INDEX, 0) < self.block).where(self._load(state, place), nothing)

    def _weights(self) -> list[UOp]:
        """The weights of each sum for a block, from the products of it."""
        row, key = self.both_rows(), self.fragment(self.amount)
        instead = {self.keys: self.begin + key.at, self.half: row}
        own: dict[UOp, UOp] = {}
        for inner in self.feeds.inner:
            depth = self.range_of(range_size(inner.depth) or 0, AxisKind.TENSOR)
            load = narrow_load(inner.own)
            assert load is not None
            stays = own.get(load) or self.tile_that_stays(load, inner.depth)
            own[load] = stays
            near = self.of_tile_that_stays(stays, inner.depth, row, depth)
            tile = self._tile_of(inner.beside, inner.depth)
            beside = self.of_tile_that_goes_by(tile, key.at, depth, range_size(inner.depth) or 0)
            terms = (near.cast(self.dtype), beside.cast(self.dtype))
            instead[inner.node] = self._reduce(Op.ADD, mk(Op.MUL, self.dtype, terms), depth)
        arrays: list[UOp] = []
        for fed, (value, _) in zip(self.feeds.sums, self.weights, strict=True):
            load = narrow_load(fed.values)
            assert load is not None
            weight = self._guarded(value).substitute(instead)
            if self.size % self.amount:
                weight = self.is_seen(key.at).where(weight, UOp.const(weight.dtype, 0.0))
            local = self._local(2 * self.amount, load.dtype, private=True)
            stored = ((row * self.amount + key.at, weight.cast(load.dtype)),)
            arrays.append(self._filled(local, stored, row, *key.loops))
        return arrays

    def _guarded(self, weight: UOp) -> UOp:
        """A weight that reads nothing behind the last place."""
        if self.size % self.amount == 0:
            return weight
        below = {n for inner in self.feeds.inner for n in inner.node.toposort()}
        guard = self.keys < UOp.const(INDEX, self.size)
        loads = [n for n in weight.toposort() if n.op is Op.LOAD and n not in below and self.keys in n.ranges]
        return weight.substitute({n: with_guard(n, guard) for n in loads if n.src[0].src[0].op is Op.PARAM})

    def _blocks(self) -> tuple[UOp, UOp]:
        """The first block of which the rows see anything, and how many blocks follow."""
        inner = (self.warps, self.half, self.eight)
        return seen_blocks(seen_bounds(self.feeds), self.size, self.amount, inner)
