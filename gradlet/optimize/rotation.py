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
from gradlet.optimize.tiling import Tiling, shared_loop
from gradlet.target.rotation import blocks
from gradlet.target.target import Target


def plan_rotation(facts: KernelFacts, plan: Plan, parallel: bool) -> bool:
    """Plan such a kernel, if it is one."""
    if len(facts.reduces) < 4 or plan.opts:
        return False
    mixture = find_mixture(facts)
    if mixture is None or mixture.score is None or plan.is_ordered(mixture.along):
        return False
    row, column = row_and_column(facts, mixture)
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


def row_and_column(facts: KernelFacts, mixture: Mixture) -> tuple[UOp | None, UOp | None]:
    """The longest range of rows that share keys and values, and the one of the values' columns."""
    ranges, along = facts.ranges, mixture.along
    assert mixture.score is not None
    keys = [f for f in mixture.score.src[0].src if along in ranges[f]]
    shared = ranges[mixture.values] | (ranges[keys[0]] if len(keys) == 1 else frozenset())
    rows = [r for r in ranges[mixture.total] if r not in shared and r.arg.kind is AxisKind.LOOP]
    columns = [r for r in ranges[mixture.values] if r not in ranges[mixture.total] and r is not along]
    row = max(rows, key=lambda r: (size_bound(r), r.arg.number), default=None)
    return row, columns[0] if len(columns) == 1 and len(keys) == 1 else None


class _Planned(Tiling):
    """Collects the opts."""

    def __init__(self, facts: KernelFacts, plan: Plan, mixture: Mixture, row: UOp, column: UOp) -> None:
        super().__init__(plan)
        self.facts, self.mixture, self.row, self.column = facts, mixture, row, column

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
        if (
            parallel
            and (shared := shared_loop(self.facts, plan, self.facts.ranges[self.mixture.total], row, size != rows))
            is not None
        ):
            opts.append(Opt(OptKind.PARALLEL, shared, 0))
        plan.parallel_settled = True
        length = size_bound(self.mixture.along)
        tail = Tail.SHIFT if length % keys else Tail.EXACT
        opts.append(Opt(OptKind.ROTATE, self.mixture.along.arg.number, keys, tail, RotateDetail(inner)))
        loops = numbers_from(plan.fresh())
        for _ in loops[1:]:
            plan.fresh()
        lanes = plan.target.lanes(self.mixture.total.dtype)
        self.copy(loops.copy_row, loops.copy_depth, rows, depth, lanes)
        if copies_keys(self.facts, self.mixture):
            self.copy(loops.near_depth, loops.near_key, depth, keys, lanes)
        if copies_values(self.facts, self.mixture):
            self.copy(loops.near_column, loops.near_value, columns, keys, lanes)
        tile = choose_tile(plan.target, Need(keys, lanes, 2, length=rows))
        self.lanes(loops.score_row, rows, lanes, tile.vectors)
        self.unroll(loops.score_key, keys, tile.rows)
        self.unroll(loops.score_depth, depth, self.copies(depth))
        for along in (loops.top_row, loops.power_row, loops.total_row):
            self.lanes(along, rows, lanes, 2)
        for along in (loops.top_key, loops.total_key):
            self.unroll(along, keys, self.copies(keys))
        tile = choose_tile(plan.target, Need(rows, lanes, columns // lanes, length=columns))
        self.lanes(loops.mix_column, columns, lanes, self.divisor(columns // lanes, tile.vectors))
        self.unroll(loops.mix_row, rows, self.divisor(rows, tile.rows))
        self.unroll(loops.mix_key, keys, self.copies(keys))
        # What a row is divided by is computed once for all of its columns.
        self.lanes(self.column.arg.number, columns, lanes, columns // lanes)
