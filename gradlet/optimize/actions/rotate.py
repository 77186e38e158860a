"""ROTATE: a mean of rows weighted by a softmax (attention), in one pass over the keys.

A kernel that takes the maximum of a row of scores, then the sum of exponentials below it, then weighs values by those
would compute every score three times, or store all of them. `ROTATE(range 4, 64, row=2)` goes by blocks of 64 keys: the
scores of a block lie in an array near the core; when a row's maximum grows, its sum and its weighted values so far are
scaled down to the new one. What is kept for a row are the maximum, the sum, and as many values as the result has.
(Milakov and Gimelshein 2018, Online normalizer calculation for softmax; Dao et al. 2022, FlashAttention.)

The row range (of a block of queries) becomes loops of its own in five places: the copy of the queries, the scores of a
block, the maxima, the exponentials with their sums, the weighted values. `Numbers` says which number each loop gets.
Where the scores say that whole blocks of keys are hidden from a block of rows (a causal mask, a window), the loop over
blocks leaves them out. With `SHIFT` the last block overlaps the one before, and does not see again what that has seen.

Sums are relative to finite numbers: a row of nothing but minus infinity adds 0, infinity and NaN stay.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from gradlet.graph.node import UOp, mk
from gradlet.ops.op import AxisKind, Op
from gradlet.ops.opt import Opt, RotateDetail, Tail
from gradlet.optimize.actions.fragments import rotate_fragments
from gradlet.optimize.actions.onepass import INDEX, OnePass
from gradlet.optimize.actions.refusal import refusal
from gradlet.optimize.actions.stage import check_room
from gradlet.optimize.analysis import KernelFacts, make_range, range_size
from gradlet.optimize.mixtures import MINUS_INFINITY, Mixture, find_mixture
from gradlet.target.target import Target


class Numbers(NamedTuple):
    """The numbers of the loops that ROTATE makes, counted from the next free one.

    Attributes:
        block: over blocks of keys.
        copy_depth, copy_row: the copy of the queries.
        score_key, score_row, score_depth: the scores of a block.
        top_row, top_key: the maxima.
        power_row, power_key: the exponentials.
        total_row, total_key: their sums.
        mix_row, mix_column, mix_key: the weighted values.
        near_key, near_depth: the copy of a block of keys, where their elements do not lie side by side.
        near_value, near_column: that of a block of values, likewise.
    """

    block: int
    copy_depth: int
    copy_row: int
    score_key: int
    score_row: int
    score_depth: int
    top_row: int
    top_key: int
    power_row: int
    power_key: int
    total_row: int
    total_key: int
    mix_row: int
    mix_column: int
    mix_key: int
    near_key: int
    near_depth: int
    near_value: int
    near_column: int


def numbers_from(first: int) -> Numbers:
    """The numbers when `first` is the next free one."""
    return Numbers(*range(first, first + len(Numbers._fields)))


def rotate(facts: KernelFacts, loop: UOp, opt: Opt, target: Target) -> UOp:
    """The kernel going over blocks of `opt.amount` keys, the rows of range `row` of the detail together."""
    if not isinstance(opt.detail, RotateDetail):
        raise refusal(opt, "it does not say which range of rows goes together: row=...")
    mixture = find_mixture(facts, loop)
    if mixture is None:
        raise refusal(opt, "it is for the range of a sum weighted by a softmax along it")
    if opt.detail.buffers:
        return rotate_fragments(facts, mixture, loop, opt, target)
    if target.kind != "cpu":
        raise refusal(opt, "only a CPU's cores have arrays of their own; a GPU's matrix units take buffers=2 or more")
    row = facts.by_number(opt.detail.row)
    score = mixture.score
    if score is None:
        raise refusal(opt, "the scores are no sum of products")
    columns = [r for r in facts.ranges[mixture.values] if r not in facts.ranges[mixture.total]]
    columns = [r for r in columns if r is not loop]
    if sum(loop in facts.ranges[f] for f in score.src[0].src) != 1:
        raise refusal(opt, "both factors of the scores depend on the keys")
    if row is None or row not in facts.ranges[mixture.total] or row in facts.ranges[mixture.values]:
        raise refusal(opt, f"range {opt.detail.row} is none of rows that share keys and values")
    if len(columns) != 1:
        raise refusal(opt, "the values have more than one range of columns")
    for r in (row, columns[0]):
        if r.arg.kind is not AxisKind.LOOP or range_size(r) is None:
            raise refusal(opt, f"range {r.arg.number} is no loop of one known size")
    size, amount = range_size(loop), opt.amount
    if size is None or not 2 <= amount <= size or opt.tail not in (Tail.EXACT, Tail.SHIFT):
        raise refusal(opt, f"the size, {size}, is none that is cut in blocks of the amount")
    if size % amount and opt.tail is Tail.EXACT:
        raise refusal(opt, f"the size, {size}, is not a multiple of the amount")
    return _Rotation(facts, mixture, loop, row, columns[0], opt, target).run()


def copies_keys(facts: KernelFacts, mixture: Mixture) -> bool:
    """Whether the elements of a key do not lie side by side: blocks are copied so that they do."""
    assert mixture.score is not None
    (factor,) = [f for f in mixture.score.src[0].src if mixture.along in facts.ranges[f]]
    return _is_apart(facts, factor, mixture.score.src[1])


def copies_values(facts: KernelFacts, mixture: Mixture) -> bool:
    """The same for what is weighted."""
    columns = facts.ranges[mixture.values] - facts.ranges[mixture.total] - {mixture.along}
    return any(_is_apart(facts, mixture.values, column) for column in columns)


def _is_apart(facts: KernelFacts, factor: UOp, loop: UOp) -> bool:
    access = next((a for a in facts.accesses if a.node is factor), None)
    return access is None or facts.stride(access, loop) != 1


class _Rotation(OnePass):
    """Builds the rotated kernel."""

    def __init__(
        self, facts: KernelFacts, mixture: Mixture, keys: UOp, row: UOp, column: UOp, opt: Opt, target: Target
    ) -> None:
        super().__init__(facts, mixture, keys, (row,), opt)
        self.row, self.column = row, column
        self.rows, self.columns = range_size(row) or 0, range_size(column) or 0
        self.numbers = numbers_from(facts.next_number())
        depth = range_size(self.depth) or 0
        if not depth:
            raise refusal(opt, "how long the products of the scores are is only known at launch")
        assert isinstance(opt.detail, RotateDetail)
        self.pitch = self.rows + opt.detail.pad
        elements = self.rows * (self.columns + 5) + self.pitch * (depth + 2 * self.amount)
        elements += self.amount * depth if copies_keys(facts, mixture) else 0
        elements += self.amount * self.columns if copies_values(facts, mixture) else 0
        check_room(facts, opt, target, elements * self.dtype.itemsize)
        self.depth_size = depth

    def run(self) -> UOp:
        rows, amount, numbers = self.rows, self.amount, self.numbers
        pitch = self.pitch
        first, count = self._blocks()
        single = self.size == amount
        block = UOp.const(INDEX, 0) if single else make_range(count, numbers.block, AxisKind.ORDERED)
        self.block, self.first = block, first
        begin = (block + first) * amount
        if self.size % amount or count.op is not Op.CONST:
            begin = begin.minimum(UOp.const(INDEX, self.size - amount))
        self.begin = begin
        later = UOp.const(INDEX, 0) < block

        state = self._local(rows * (self.columns + 2))  # weighted values row by row, then the maxima, then the sums
        tops, totals = rows * self.columns, rows * (self.columns + 1)

        def before(place: UOp, neutral: float) -> UOp:
            start = UOp.const(self.dtype, neutral)
            return start if single else later.where(self._load(state, place), start)

        queries = self._queries()
        scores = self._scores(queries)
        # The new maximum of every row, and by how much what there is already has to be scaled.
        row = self._loop(rows, numbers.top_row)
        key = self._loop(amount, numbers.top_key, AxisKind.REDUCE)
        old = before(row + tops, MINUS_INFINITY)
        highest = old.maximum(self._reduce(Op.MAX, self._load(scores, key * pitch + row), key))
        scale = (self._finite(old) - self._finite(highest)).exp()
        maxima = self._local(2 * rows)
        changes = self._filled(maxima, ((row, highest), (row + rows, scale)), row)
        # Exponentials relative to the new maximum.
        key, row = self._loop(amount, numbers.power_key), self._loop(rows, numbers.power_row)
        power = (self._load(scores, key * pitch + row) - self._finite(self._load(changes, row))).exp()
        powers = self._filled(self._local(pitch * amount), ((key * pitch + row, power),), key, row)
        # Their sums.
        row = self._loop(rows, numbers.total_row)
        key = self._loop(amount, numbers.total_key, AxisKind.REDUCE)
        part = self._reduce(Op.ADD, self._load(powers, key * pitch + row), key)
        total = before(row + totals, 0.0) * self._load(changes, row + rows) + part
        sums = self._filled(self._local(rows), ((row, total),), row)
        # The weighted values.
        row, column = self._loop(rows, numbers.mix_row), self._loop(self.columns, numbers.mix_column)
        key = self._loop(amount, numbers.mix_key, AxisKind.REDUCE)
        there = {self.keys: begin + key, self.row: row, self.column: column}
        weight = self._load(powers, key * pitch + row)
        for function in self.mixture.inner:
            weight = function(weight).substitute(there)
        values = self._value(key, column)
        mixed = self._reduce(Op.ADD, weight * values, key)
        place = row * self.columns + column
        kept = before(place, 0.0) * self._load(changes, row + rows) + mixed
        stores = ((place, kept), (row + tops, self._load(changes, row)), (row + totals, self._load(sums, row)))
        final = self._filled(state, stores, *(() if single else (block,)), row, column)
        return self._finish(final, tops, totals)

    def _finish(self, final: UOp, tops: int, totals: int) -> UOp:
        """The kernel that stores what has been added up."""
        row = self.row
        top, total = self._load(final, row + tops), self._load(final, row + totals)
        return self._stored(top, total, self._load(final, row * self.columns + self.column))

    def _queries(self) -> UOp:
        """The factor of the scores that belongs to the rows, the rows side by side."""
        depth = self._loop(self.depth_size, self.numbers.copy_depth)
        row = self._loop(self.rows, self.numbers.copy_row)
        there = {self.depth: depth, self.row: row}
        for factor in self.score.src[0].src:
            if self.keys not in self.facts.ranges[factor] and self.row in self.facts.ranges[factor]:
                self.query = factor
                value = factor.substitute(there)
                return self._filled(self._local(self.depth_size * self.pitch, factor.dtype),
                                    ((depth * self.pitch + row, value),), depth, row)  # fmt: skip
        raise refusal(self.opt, "no factor of the scores belongs to the rows alone")

    def _scores(self, queries: UOp) -> UOp:
        """The scores of a block, the rows side by side."""
        key, row = self._loop(self.amount, self.numbers.score_key), self._loop(self.rows, self.numbers.score_row)
        depth = self._loop(self.depth_size, self.numbers.score_depth, AxisKind.REDUCE)
        there = {self.keys: self.begin + key, self.row: row}
        near = self._load(queries, depth * self.pitch + row)
        first, second = [near if f is self.query else self._key(f, key, depth, there) for f in self.score.src[0].src]
        score = self._reduce(Op.ADD, mk(Op.MUL, self.score.dtype, (first, second)), depth)
        x = self.mixture.x.substitute({self.score: score, **there})
        if self.size % self.amount:
            x = self._unseen(key).where(x, UOp.const(self.dtype, MINUS_INFINITY))
        return self._filled(self._local(self.pitch * self.amount), ((key * self.pitch + row, x),), key, row)

    def _key(self, factor: UOp, key: UOp, depth: UOp, there: Mapping[UOp, UOp]) -> UOp:
        """An element of a key, from a copy of the block where a key is not read in one piece."""
        if not copies_keys(self.facts, self.mixture):
            return factor.substitute({**there, self.depth: depth})
        row, column = (
            self._loop(self.amount, self.numbers.near_key),
            self._loop(self.depth_size, self.numbers.near_depth),
        )
        value = factor.substitute({self.keys: self.begin + row, self.depth: column})
        local = self._local(self.amount * self.depth_size, factor.dtype)
        copy = self._filled(local, ((row * self.depth_size + column, value),), row, column)
        return self._load(copy, key * self.depth_size + depth)

    def _value(self, key: UOp, column: UOp) -> UOp:
        """What is weighted, from a copy of the block where columns do not lie side by side."""
        copied = copies_values(self.facts, self.mixture)
        row, at = key, column
        if copied:
            row = self._loop(self.amount, self.numbers.near_value)
            at = self._loop(self.columns, self.numbers.near_column)
        value = self.mixture.values.substitute({self.keys: self.begin + row, self.column: at})
        if self.size % self.amount:  # what the block before has seen counts as 0, whatever it is
            value = self._unseen(row).where(value, UOp.const(value.dtype, 0.0))
        if not copied:
            return value
        local = self._local(self.amount * self.columns, value.dtype)
        copy = self._filled(local, ((row * self.columns + at, value),), row, at)
        return self._load(copy, key * self.columns + column)

    def _unseen(self, key: UOp) -> UOp:
        """Whether the block before has not seen a key: the last block begins earlier than it would."""
        return (self.block + self.first) * self.amount < self.begin + key + 1
