"""The schedule of products that feed products on a CPU: blocks of rows for the cores, of the loop along inside, tiles.

Rows lie side by side in vectors where the products of a block and the weights are concerned, so that weights exchange
no lanes; in the sums, lanes are the columns of the values. All products have the tile of any product (`tileshape`).
"""

from __future__ import annotations

from gradlet.graph.node import UOp
from gradlet.ops.opt import FeedDetail, Opt, OptKind, Tail
from gradlet.optimize.actions.feed import numbers_from
from gradlet.optimize.analysis import KernelFacts, range_size
from gradlet.optimize.feeds import Feeds, find_feeds, is_apart
from gradlet.optimize.plan import Plan
from gradlet.optimize.tileshape import Need, choose_tile
from gradlet.optimize.tiling import Tiling, shared_loop
from gradlet.target.rotation import feeding_blocks
from gradlet.target.target import Target


def plan_feeding(facts: KernelFacts, plan: Plan, parallel: bool) -> bool:
    """Plan such a kernel, if it is one."""
    if len(facts.reduces) < 2 or plan.opts:
        return False
    feeds = find_feeds(facts)
    if feeds is None or any(plan.is_ordered(s.node.src[1]) for s in feeds.sums):
        return False
    row, along = feeds.rows[0], range_size(feeds.along) or 0
    columns, depths = _sizes(feeds)
    cut = feeding_blocks(plan.target, range_size(row) or 0, along, columns, depths)
    if cut is None:
        return False
    _Planned(facts, plan, feeds, row).choose(cut.rows, cut.keys, columns, depths, parallel)
    return True


def least(facts: KernelFacts, target: Target) -> tuple[Opt, ...]:
    """What such a kernel needs at least, so that it does not compute every weight for every column of the values."""
    plan = Plan(facts, target, facts.next_number())
    found = target.kind == "cpu" and plan_feeding(facts, plan, False)
    return tuple(plan.opts[: 1 + [opt.kind for opt in plan.opts].index(OptKind.FEED)]) if found else ()


def _sizes(feeds: Feeds) -> tuple[list[int], list[int]]:
    """Columns of all sums and depths of all products."""
    return [range_size(s.column) or 0 for s in feeds.sums], [range_size(i.depth) or 0 for i in feeds.inner]


class _Planned(Tiling):
    """Collects the opts."""

    def __init__(self, facts: KernelFacts, plan: Plan, feeds: Feeds, row: UOp) -> None:
        super().__init__(plan)
        self.facts, self.feeds, self.row = facts, feeds, row

    def choose(self, rows: int, keys: int, columns: list[int], depths: list[int], parallel: bool) -> None:
        """Blocks, the loop that cores share, then lanes and copies."""
        plan, row, feeds = self.plan, self.row, self.feeds
        size, opts = range_size(row) or 0, plan.opts
        inner = row.arg.number
        if size != rows:
            opts.append(Opt(OptKind.SPLIT, inner, rows, Tail.SHIFT if size % rows else Tail.EXACT))
            inner = plan.fresh()
        kept = frozenset.intersection(*[frozenset(s.weight.ranges) for s in feeds.sums])
        if parallel and (shared := shared_loop(self.facts, plan, kept, row, size != rows)) is not None:
            opts.append(Opt(OptKind.PARALLEL, shared, 0))
        plan.parallel_settled = True
        tail = Tail.SHIFT if (range_size(feeds.along) or 0) % keys else Tail.EXACT
        opts.append(Opt(OptKind.FEED, feeds.along.arg.number, keys, tail, FeedDetail(inner)))
        first = plan.fresh()
        loops = numbers_from(first, feeds)
        for _ in range(loops.loops - 1):
            plan.fresh()
        lanes = plan.target.lanes(feeds.sums[0].node.dtype)
        tile = choose_tile(plan.target, Need(keys, lanes, 2, length=rows))
        for part, own, depth in zip(feeds.inner, loops.inner, depths, strict=True):
            self.copy(own.copy_row, own.copy_depth, rows, depth, lanes)
            if is_apart(part.beside, part.depth):
                self.copy(own.near_depth, own.near_key, depth, keys, lanes)
            self.lanes(own.tile_row, rows, lanes, tile.vectors)
            self.unroll(own.tile_key, keys, tile.rows)
            self.unroll(own.tile_depth, depth, self.copies(depth))
        self.lanes(loops.weigh_row, rows, lanes, 2)
        for fed, mine, count in zip(feeds.sums, loops.sums, columns, strict=True):
            if is_apart(fed.values, fed.column):
                self.copy(mine.near_column, mine.near_key, count, keys, lanes)
            tile = choose_tile(plan.target, Need(rows, lanes, count // lanes, length=count))
            self.lanes(mine.mix_column, count, lanes, self.divisor(count // lanes, tile.vectors))
            self.unroll(mine.mix_row, rows, self.divisor(rows, tile.rows))
            self.unroll(mine.mix_key, keys, self.copies(keys))
