"""The schedule of attention on a CPU: blocks of queries for the cores, of keys inside, tiles in both products.

Queries lie side by side in vectors, where scores, maxima and sums are concerned: a vector holds one key's score for so
many rows, so the softmax exchanges no lanes and keys are read as they are. In the second product lanes are the columns
of the values. Both products have the tile of any product (`tileshape`).
"""

from __future__ import annotations

from gradlet.graph.node import UOp
from gradlet.ops.op import AxisKind
from gradlet.ops.opt import Opt, OptKind, RotateDetail, Tail
from gradlet.optimize.actions.rotate import copies_keys, copies_values, numbers_from
from gradlet.optimize.analysis import KernelFacts, range_size, size_bound
from gradlet.optimize.mixtures import Mixture, find_mixture
from gradlet.optimize.plan import Plan
from gradlet.optimize.tileshape import Need, choose_tile
from gradlet.target.rotation import blocks
from gradlet.target.target import Target

# Terms of a sum that are written out.
COPIES = 4
# A transposition of the queries goes by blocks of so many columns.
SIDE = 8


def plan_rotation(facts: KernelFacts, plan: Plan, parallel: bool) -> bool:
    """Plan such a kernel, if it is one."""
    if len(facts.reduces) < 4 or plan.opts:
        return False
    mixture = find_mixture(facts)
    if mixture is None or mixture.score is None or plan.is_ordered(mixture.along):
        return False
    row, column = _row_and_column(facts, mixture)
    keys, depth = range_size(mixture.along), range_size(mixture.score.src[1])
    if row is None or column is None or keys is None or depth is None:
        return False
    columns = range_size(column)
    cut = blocks(plan.target, size_bound(row), keys, columns, depth) if columns else None
    if cut is None or columns is None:
        return False
    _Planned(facts, plan, mixture, row, column).choose(cut.rows, cut.keys, columns, depth, parallel)
    return True


def least(facts: KernelFacts, target: Target) -> tuple[Opt, ...]:
    """What such a kernel needs at least, so that it does not compute every score for every column of the values."""
    plan = Plan(facts, target, facts.next_number())
    found = target.kind == "cpu" and plan_rotation(facts, plan, False)
    return tuple(plan.opts[: 1 + [opt.kind for opt in plan.opts].index(OptKind.ROTATE)]) if found else ()


def _row_and_column(facts: KernelFacts, mixture: Mixture) -> tuple[UOp | None, UOp | None]:
    """The longest range of rows that share keys and values, and the one of the values' columns."""
    ranges, along = facts.ranges, mixture.along
    assert mixture.score is not None
    keys = [f for f in mixture.score.src[0].src if along in ranges[f]]
    shared = ranges[mixture.values] | (ranges[keys[0]] if len(keys) == 1 else frozenset())
    rows = [r for r in ranges[mixture.total] if r not in shared and r.arg.kind is AxisKind.LOOP]
    columns = [r for r in ranges[mixture.values] if r not in ranges[mixture.total] and r is not along]
    row = max(rows, key=lambda r: (size_bound(r), r.arg.number), default=None)
    return row, columns[0] if len(columns) == 1 and len(keys) == 1 else None


class _Planned:
    """Collects the opts."""

    def __init__(self, facts: KernelFacts, plan: Plan, mixture: Mixture, row: UOp, column: UOp) -> None:
        self.facts, self.plan, self.mixture, self.row, self.column = facts, plan, mixture, row, column

    def choose(self, rows: int, keys: int, columns: int, depth: int, parallel: bool) -> None:
        """Blocks, the loop that cores share, then lanes and copies."""
        plan, row = self.plan, self.row
        size, opts = range_size(row), plan.opts
        number = row.arg.number
        inner = number
        if size != rows:
            tail = Tail.MASK if size is None else Tail.SHIFT if size % rows else Tail.EXACT
            opts.append(Opt(OptKind.SPLIT, number, rows, tail))
            inner = plan.fresh()
        if parallel and (shared := self._shared(size != rows)) is not None:
            opts.append(Opt(OptKind.PARALLEL, shared, 0))
        plan.parallel_settled = True
        length = size_bound(self.mixture.along)
        tail = Tail.SHIFT if length % keys else Tail.EXACT
        opts.append(Opt(OptKind.ROTATE, self.mixture.along.arg.number, keys, tail, RotateDetail(inner)))
        loops = numbers_from(plan.fresh())
        for _ in loops[1:]:
            plan.fresh()
        lanes = plan.target.lanes(self.mixture.total.dtype)
        self._copy(loops.copy_row, loops.copy_depth, rows, depth, lanes)
        if copies_keys(self.facts, self.mixture):
            self._copy(loops.near_depth, loops.near_key, depth, keys, lanes)
        if copies_values(self.facts, self.mixture):
            self._copy(loops.near_column, loops.near_value, columns, keys, lanes)
        tile = choose_tile(plan.target, Need(keys, lanes, 2, length=rows))
        self._lanes(loops.score_row, rows, lanes, tile.vectors)
        self._unroll(loops.score_key, keys, tile.rows)
        self._unroll(loops.score_depth, depth, self._copies(depth))
        for along in (loops.top_row, loops.power_row, loops.total_row):
            self._lanes(along, rows, lanes, 2)
        for along in (loops.top_key, loops.total_key):
            self._unroll(along, keys, self._copies(keys))
        tile = choose_tile(plan.target, Need(rows, lanes, columns // lanes, length=columns))
        self._lanes(loops.mix_column, columns, lanes, self._divisor(columns // lanes, tile.vectors))
        self._unroll(loops.mix_row, rows, self._divisor(rows, tile.rows))
        self._unroll(loops.mix_key, keys, self._copies(keys))
        # What a row is divided by is computed once for all of its columns.
        self._lanes(self.column.arg.number, columns, lanes, columns // lanes)

    def _shared(self, cut: bool) -> int | None:
        """The number of the loop that cores share: heads if they go round, else the one with most iterations."""
        facts, cores = self.facts, self.plan.target.cores
        kept = facts.ranges[self.mixture.total]
        loops = [r for r in facts.loops if r in kept and r.arg.kind is AxisKind.LOOP and (r is not self.row or cut)]
        loops = [r for r in loops if all(r in facts.ranges[s] for s in facts.stores)]
        even = [r for r in loops if r is not self.row and size_bound(r) % cores == 0]
        best = max(even or loops, key=lambda r: (size_bound(r), -r.arg.number), default=None)
        return int(best.arg.number) if best is not None else None

    def _copy(self, row: int, depth: int, rows: int, columns: int, lanes: int) -> None:
        """What is turned on the way into its copy, blocks in registers."""
        if rows < lanes:
            return
        self._lanes(row, rows, lanes, 1)
        if columns % SIDE == 0:
            self._unroll(depth, columns, SIDE)

    @staticmethod
    def _copies(size: int) -> int:
        return next((n for n in range(COPIES, 1, -1) if size % n == 0), 1)

    @staticmethod
    def _divisor(size: int, most: int) -> int:
        return next((n for n in range(most, 1, -1) if size % n == 0), 1)

    def _lanes(self, number: int, size: int, lanes: int, vectors: int) -> None:
        self._split(OptKind.VECTORIZE, number, size, lanes)
        if size > lanes:
            self._unroll(number, size // lanes, vectors)

    def _unroll(self, number: int, size: int, amount: int) -> None:
        if amount > 1:
            self._split(OptKind.UNROLL, number, size, min(amount, size))

    def _split(self, kind: OptKind, number: int, size: int, amount: int) -> None:
        self.plan.opts.append(Opt(kind, number, amount, Tail.SHIFT if size % amount else Tail.EXACT))
        if size > amount:
            self.plan.fresh()
