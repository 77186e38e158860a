"""ROTATE on a GPU: scores, weights and results lie in the registers of matrix units, keys and values come as boxes.

A block of queries belongs to whole warps, 16 rows each; of every eight columns of a product a lane has two beside each
other, in two rows that are eight apart. So a lane has a part of two rows of scores, the maximum and the sum of a row
are combined by four lanes, and the weights are where the second product wants its first factor: nothing but queries,
keys and values ever lies in memory. Arrays that only the lane itself reads (`LocalArg.private`) are registers once all
loops over them are written out.

The rows and columns of the kernel are cut before, as a product's are: `THREAD` over the warps of rows and eight rows,
`UNROLL` over the two halves; `VECTORIZE` of two columns, `THREAD` of four pairs, `UNROLL` of the groups.
"""

from __future__ import annotations

from gradlet.base.dtype import dtypes
from gradlet.graph.node import UOp, mk
from gradlet.graph.rewrite import rewrite
from gradlet.ops.op import AxisKind, Op
from gradlet.ops.opt import Opt, RotateDetail, Tail
from gradlet.optimize.actions.fragmenttiles import Fragment, FragmentTiles, fragment_of, narrow_load, with_guard
from gradlet.optimize.actions.onepass import INDEX, OnePass
from gradlet.optimize.actions.refusal import refusal
from gradlet.optimize.analysis import KernelFacts, make_after, range_size
from gradlet.optimize.mixtures import MINUS_INFINITY, Bound, Mixture, is_plain, peeled
from gradlet.rules.sets import INDEX_MATH
from gradlet.target.rotation import TILE, WARP_ROWS, has_register_factors
from gradlet.target.target import Target

LOG2_E = 1.4426950408889634
KEPT = 5  # numbers of a row beside its values: the maximum, and a part of the sum in each of four lanes


def rotate_fragments(facts: KernelFacts, mixture: Mixture, keys: UOp, opt: Opt, target: Target) -> UOp:
    """The kernel going over blocks of `opt.amount` keys, products by matrix units."""
    if not has_register_factors(target):
        raise refusal(opt, f"{target.name} has no matrix units that take a factor from registers")
    return _Fragments(facts, mixture, keys, opt, target).run()


class _Fragments(FragmentTiles, OnePass):
    """Builds the kernel."""

    def __init__(self, facts: KernelFacts, mixture: Mixture, keys: UOp, opt: Opt, target: Target) -> None:
        if mixture.score is None:
            raise refusal(opt, "the scores are no sum of products")
        detail = opt.detail
        assert isinstance(detail, RotateDetail)
        ranges = facts.ranges
        half = facts.by_number(detail.row)
        threads = [r for r in ranges[mixture.total] if r.arg.kind is AxisKind.THREAD]
        if half is None or half.arg.kind is not AxisKind.UNROLL or range_size(half) != 2 or len(threads) != 2:
            raise refusal(opt, f"range {detail.row} is not two rows of lanes of whole warps")
        self.half, (self.warps, self.eight) = half, sorted(threads, key=lambda r: r.arg.number)
        super().__init__(facts, mixture, keys, (self.warps, half, self.eight), opt)
        found = {r.arg.kind: r for r in ranges[mixture.values] - ranges[mixture.total] - {keys}}
        parts = [found[kind] for kind in (AxisKind.UNROLL, AxisKind.THREAD, AxisKind.VECTOR) if kind in found]
        if range_size(self.eight) != 8 or len(found) != 3 or [range_size(r) for r in parts[1:]] != [4, 2]:
            raise refusal(opt, "rows and columns are not cut as the registers of a matrix unit")
        self.rows = WARP_ROWS * (range_size(self.warps) or 0)
        self.column = fragment_of(*parts)
        self.columns = 8 * (range_size(parts[0]) or 0)
        self.depth_size = range_size(self.depth) or 0
        sides = [narrow_load(f) for f in self.score.src[0].src] + [narrow_load(mixture.values)]
        if any(side is None for side in sides) or len({side.dtype for side in sides if side is not None}) != 1:
            raise refusal(opt, "queries, keys and values are not loaded as bfloat16 or float16")
        if self.score.dtype is not dtypes.float32 or self.dtype is not dtypes.float32:
            raise refusal(opt, "matrix units sum in float32")
        if sum(keys in ranges[f] for f in self.score.src[0].src) != 1:
            raise refusal(opt, "both factors of the scores depend on the keys")
        shared = ranges[mixture.values].union(*[ranges[f] for f in self.score.src[0].src if keys in ranges[f]])
        if not shared.isdisjoint(self.inner):
            raise refusal(opt, "keys or values differ from row to row")
        self._check_sizes(target)
        self.buffers, self.number = detail.buffers, facts.next_number()
        self.peeled = peeled(mixture.x, keys)
        # Scores as they come become powers of two by one multiply-add; others may be too large for it.
        self.steep = self.peeled.factor * LOG2_E
        self.plain = is_plain(mixture.x)

    def _check_sizes(self, target: Target) -> None:
        opt, amount = self.opt, self.amount
        if self.size < 1 or opt.tail not in (Tail.EXACT, Tail.MASK) or amount % TILE or amount > 256:
            raise refusal(opt, f"matrix units take keys in multiples of {TILE}, 256 at most, and a MASK at the end")
        if self.size % amount and opt.tail is Tail.EXACT:
            raise refusal(opt, f"the size, {self.size}, is not a multiple of the amount")
        if self.rows % TILE or self.columns % TILE or self.depth_size % TILE or self.columns > 256:
            raise refusal(opt, f"rows, columns and depth, {self.rows}, {self.columns} and {self.depth_size}, are no "
                               f"multiples of {TILE}")  # fmt: skip
        assert isinstance(opt.detail, RotateDetail)
        elements = opt.detail.queries * self.rows * self.depth_size + opt.detail.buffers * amount * (
            self.depth_size + self.columns
        )
        elements += opt.detail.boxes * 2 * TILE * self.rows  # what warps gather
        if 2 * elements + TILE * 8 > target.shared_bytes:
            raise refusal(opt, f"lanes share {target.shared_bytes} bytes; choose fewer buffers or shorter blocks")

    def run(self) -> UOp:
        half, amount, columns = self.half, self.amount, self.columns
        self.first, count = (rewrite(n, INDEX_MATH) for n in self._blocks())
        single = count.op is Op.CONST and count.arg == 1
        self.block = UOp.const(INDEX, 0) if single else self.range_of(count, AxisKind.ORDERED)
        # A sum of its own, so that later steps find where a block begins.
        at = self.block if self.first.op is Op.CONST and not self.first.arg else self.block + self.first
        self.begin = at * amount
        later = UOp.const(INDEX, 0) < self.block
        # Of both rows: weighted values, the maximum, parts of the sum; these again, for what comes after all blocks.
        width = columns + 2 * KEPT
        state = self._local(2 * width, private=True)

        def before(place: UOp, neutral: float) -> UOp:
            start = UOp.const(self.dtype, neutral)
            return start if single else later.where(self._load(state, place), start)

        scores = self._scores()
        # The new maximum of every row, and by how much what there is already has to be scaled.
        row, key = self.both_rows(), self.fragment(amount)
        old = before(row * width + columns, MINUS_INFINITY)
        own = self._reduce(Op.MAX, self._load(scores, row * amount + key.at), key.group, key.pair)
        highest = old.maximum(self._reduce(Op.MAX, own, key.four))
        scale = self._power((self._limited(old) - self._limited(highest)) * self.steep)
        shift = self._limited(highest) * (-self.steep if self.plain else -1.0)
        parts = ((row * 3, highest), (row * 3 + 1, scale), (row * 3 + 2, shift))
        changes = self._filled(self._local(6, private=True), parts, row)
        # Exponentials relative to the new maximum.
        row, key = self.both_rows(), self.fragment(amount)
        score, shift = self._load(scores, row * amount + key.at), self._load(changes, row * 3 + 2)
        power = score * self.steep + shift if self.plain else (score + shift) * self.steep
        stored = ((row * amount + key.at, self._power(power)),)
        powers = self._filled(self._local(2 * amount, private=True), stored, row, *key.loops)
        # Their sums, of each lane for itself.
        row, key = self.both_rows(), self.fragment(amount)
        part = self._reduce(Op.ADD, self._load(powers, row * amount + key.at), key.group, key.pair)
        total = before(row * width + (columns + 1) + key.four, 0.0) * self._load(changes, row * 3 + 1) + part
        sums = self._filled(self._local(8, private=True), ((row * 4 + key.four, total),), row, key.four)
        # The weighted values: what there is is scaled, then the block is added.
        row, column = self.both_rows(), self.fragment(columns)
        place = row * width + column.at
        less = before(place, 0.0) * self._load(changes, row * 3 + 1)
        scaled = self._filled(self._local(2 * columns, private=True), ((row * columns + column.at, less),), row,
                              *column.loops)  # fmt: skip
        weights = self._weights(powers)
        row, column = self.both_rows(), self.fragment(columns)
        place, rest = row * width + column.at, row * width + columns
        kept = self._load(scaled, row * columns + column.at) + self._mixed(weights, row, column)
        highest, total = self._load(changes, row * 3), self._load(sums, row * 4 + column.four)
        results = [(rest + KEPT * n, highest) for n in range(2)]
        results += [(rest + (KEPT * n + 1) + column.four, total) for n in range(2)]
        blocks = () if single else (self.block,)
        final = self._filled(state, ((place, kept), *results), *blocks, row, *column.loops)
        place, four = half * width, self.range_of(4, AxisKind.THREAD)
        total = self._reduce(Op.ADD, self._load(final, place + (columns + KEPT + 1) + four), four)
        top = self._load(final, place + (columns + KEPT)) * self.peeled.factor
        return self._stored(top, total, self._load(final, place + self.column.at))

    def _power(self, x: UOp) -> UOp:
        return mk(Op.EXP2, x.dtype, (x,))

    def _limited(self, value: UOp) -> UOp:
        """The nearest number whose product with the factor of the exponents, if it is taken, is finite; NaN stays."""
        most = -self.lowest if self.steep <= 1 or not self.plain else -self.lowest / self.steep * 0.999
        return value.maximum(UOp.const(self.dtype, -most)).minimum(UOp.const(self.dtype, most))

    def _scores(self) -> UOp:
        """The scores of a block, in registers."""
        row, key, depth = self.both_rows(), self.fragment(self.amount), self.range_of(self.depth_size, AxisKind.TENSOR)
        factors: list[UOp] = []
        for factor in self.score.src[0].src:
            load = narrow_load(factor)
            assert load is not None
            of_keys = self.keys in self.facts.ranges[load]
            if of_keys:
                array = self.tile_that_goes_by(load, self.depth)
                tile = self.of_tile_that_goes_by(array, key.at, depth, self.depth_size)
            else:
                array = self.tile_that_stays(load, self.depth)
                tile = self.of_tile_that_stays(array, self.depth, row, depth)
            factors.insert(0 if not of_keys else len(factors), tile.cast(self.dtype))
        score = self._reduce(Op.ADD, mk(Op.MUL, self.dtype, tuple(factors)), depth)
        x = self._guarded(self.peeled.inner, key.at).substitute({self.score: score, **self._place(row, key.at)})
        local, at = self._local(2 * self.amount, private=True), row * self.amount + key.at
        edge = self._edge(self.begin, self._hiding())
        edge = rewrite(edge, INDEX_MATH) if edge is not None else UOp.const(dtypes.bool, False)
        seen = self._seen(x, row, key)
        if edge.op is Op.CONST:
            return self._filled(local, ((at, seen if edge.arg else x),), row, *key.loops)
        places = [mk(Op.INDEX, local.dtype, (local, at, *guard)) for guard in ((), (edge,))]
        stores = [mk(Op.STORE, dtypes.void, pair) for pair in zip(places, (x, seen), strict=True)]
        return make_after(local.dtype, (local, *stores, row, *key.loops))

    def _hiding(self) -> list[Bound]:
        """Behind what keys are hidden: of masks, and of the last block."""
        ends = [Bound(None, UOp.const(INDEX, self.size))] if self.size % self.amount else []
        return [*ends, *[b for mask in self.peeled.masks for b in mask.bounds]]

    def _seen(self, x: UOp, row: UOp, key: Fragment) -> UOp:
        """A score, minus infinity where the key is hidden: that is stored again, and only of blocks with such keys."""
        nothing = UOp.const(self.dtype, MINUS_INFINITY)
        for mask in self.peeled.masks:
            seen = mask.condition.substitute(self._place(row, key.at))
            x = seen.where(x, nothing) if mask.holds else seen.where(nothing, x)
        return self.is_seen(key.at).where(x, nothing) if self.size % self.amount else x

    def _weights(self, powers: UOp) -> UOp:
        """What the values are multiplied by, rounded as they are: the exponentials, and what is done to them."""
        load = narrow_load(self.mixture.values)
        assert load is not None
        row, key = self.both_rows(), self.fragment(self.amount)
        place = row * self.amount + key.at
        weight = self._load(powers, place)
        for function in self.mixture.inner:
            weight = self._guarded(function(weight), key.at).substitute(self._place(row, key.at))
        local = self._local(2 * self.amount, load.dtype, private=True)
        return self._filled(local, ((place, weight.cast(load.dtype)),), row, *key.loops)

    def _mixed(self, weights: UOp, row: UOp, column: Fragment) -> UOp:
        """The weighted sum of the values of a block: weights are rounded as the values are."""
        load = narrow_load(self.mixture.values)
        assert load is not None
        key = self.range_of(self.amount, AxisKind.TENSOR)
        tile = self.tile_that_goes_by(load, self.column)
        value = self.of_tile_that_goes_by(tile, key, column.at, self.columns)
        weight = self._load(weights, row * self.amount + key).cast(self.dtype)
        return self._reduce(Op.ADD, weight * value.cast(self.dtype), key)

    def _guarded(self, value: UOp, key: UOp) -> UOp:
        """An expression over keys that reads nothing behind the last one."""
        if self.size % self.amount == 0:
            return value
        below = set(self.score.toposort())
        guard = self.keys < UOp.const(INDEX, self.size)
        loads = [n for n in value.toposort() if n.op is Op.LOAD and n not in below and self.keys in n.ranges]
        return value.substitute({n: with_guard(n, guard) for n in loads if n.src[0].src[0].op is Op.PARAM})

    def _place(self, row: UOp, key: UOp) -> dict[UOp, UOp]:
        return {self.keys: self.begin + key, self.half: row}
