"""The schedule of attention and of its gradient on a GPU: rows by whole warps, the rest brought by the copy engine.

A block of queries is a workgroup's; rows and columns are cut as matrix units have them in registers
(`actions/fragments` says how), and `ROTATE` does the rest.
"""

from __future__ import annotations

from collections.abc import Iterable

from gradlet.base.errors import ArgumentError
from gradlet.graph.node import UOp
from gradlet.ops.op import AxisKind
from gradlet.ops.opt import FeedDetail, Opt, OptKind, RotateDetail, Tail
from gradlet.optimize.actions import language as actions
from gradlet.optimize.actions.fragmenttiles import narrow_load
from gradlet.optimize.analysis import KernelFacts, range_size
from gradlet.optimize.blocks import Opts, columns_of
from gradlet.optimize.feeds import find_feeds
from gradlet.optimize.mixtures import find_mixture
from gradlet.optimize.rotation import row_and_column
from gradlet.target.rotation import (
    MOST_BUFFERS,
    RING_WORDS,
    WARP_ROWS,
    Blocks,
    feeding_unit_blocks,
    unit_blocks,
    unit_buffers,
)
from gradlet.target.target import Target


def by_units(opts: Iterable[Opt]) -> bool:
    """Whether a schedule has matrix units go over the keys."""
    return any(isinstance(o.detail, (RotateDetail, FeedDetail)) and o.detail.buffers for o in opts)


def mixture_tile(
    facts: KernelFacts, target: Target, cut: Blocks | None = None, boxes: int = 0
) -> list[Opt] | None:  # fmt: skip
    """The opts for such a kernel; None where it is another, or where sizes or memory do not fit.

    Args:
        facts: about the kernel.
        target: the machine.
        cut: these blocks of queries and keys in place of the usual ones.
        boxes: 1 if the copy engine stores results, which no schedule asks for by itself.
    """
    if not target.matrix_units or len(facts.reduces) < 4:
        return None
    mixture = find_mixture(facts)
    if mixture is None or mixture.score is None:
        return None
    row, column = row_and_column(facts, mixture)
    keys, depth = range_size(mixture.along), range_size(mixture.score.src[1])
    if row is None or column is None or keys is None or depth is None:
        return None
    rows, columns = range_size(row), range_size(column)
    if rows is None or columns is None or any(narrow_load(f) is None for f in mixture.score.src[0].src):
        return None
    usual = unit_blocks(target, rows, keys, columns, depth)
    cut = usual and (cut or usual)
    if cut is None:
        return None
    opts = Opts(facts.next_number())
    halves = _rows_of_warps(opts, row, rows, cut.rows)
    columns_of(opts, column, columns, columns)
    for r in _rest(facts, mixture.product, (row, column)):
        opts.add(OptKind.PARALLEL, int(r.arg.number))
    tail = Tail.MASK if keys % cut.keys else Tail.EXACT
    buffers = unit_buffers(target, cut, keys, columns, depth, boxes)
    detail = RotateDetail(halves, 0, buffers.keys, target.cores, buffers.queries, boxes)
    opts.opts.append(Opt(OptKind.ROTATE, int(mixture.along.arg.number), cut.keys, tail, detail))
    try:
        actions.apply(facts.sink, opts.opts, target)
    except ArgumentError:
        return None
    return opts.opts


def feeding_tile(facts: KernelFacts, target: Target) -> list[Opt] | None:
    """The opts for sums whose weights are made of products; None where it is none, or where it does not fit."""
    if not target.matrix_units or len(facts.reduces) < 2:
        return None
    feeds = find_feeds(facts)
    if feeds is None:
        return None
    row, size = feeds.rows[0], range_size(feeds.along) or 0
    rows, depths = range_size(row) or 0, [range_size(i.depth) or 0 for i in feeds.inner]
    columns = [range_size(s.column) or 0 for s in feeds.sums]
    cut = feeding_unit_blocks(target, rows, size, columns, depths)
    if cut is None:
        return None
    opts = Opts(facts.next_number())
    halves = _rows_of_warps(opts, row, rows, cut.rows)
    loops = dict.fromkeys(s.column for s in feeds.sums)
    for loop in loops:
        columns_of(opts, loop, range_size(loop) or 0, range_size(loop) or 0)
    for r in _rest(facts, feeds.sums[0].node, (row, *loops)):
        opts.add(OptKind.PARALLEL, int(r.arg.number))
    tail = Tail.MASK if size % cut.keys else Tail.EXACT
    stays = 2 * cut.rows * sum(depths)
    room = target.shared_bytes - RING_WORDS - stays
    # What stays for one block leaves no room for that of the next: then new workgroups begin as fast.
    workgroups = target.cores if 4 * stays <= target.shared_bytes else 0
    for buffers in range(MOST_BUFFERS, 1, -1):
        if 2 * cut.keys * buffers * sum(depths) > room:
            continue
        last = Opt(
            OptKind.FEED,
            int(feeds.along.arg.number),
            cut.keys,
            tail,
            FeedDetail(halves, buffers=buffers, workgroups=workgroups),
        )
        try:
            actions.apply(facts.sink, [*opts.opts, last], target)
        except ArgumentError:
            continue
        return [*opts.opts, last]
    return None


def _rows_of_warps(opts: Opts, row: UOp, rows: int, block: int) -> int:
    """Cut the rows as lanes of whole warps have them; the number of the range of a lane's two rows."""
    number = int(row.arg.number)
    warps = opts.split(OptKind.SPLIT, number, block, rows)
    if warps != number:
        opts.add(OptKind.PARALLEL, number)
    halves = opts.split(OptKind.SPLIT, warps, WARP_ROWS, block)
    opts.split(OptKind.THREAD, warps, block // WARP_ROWS, block // WARP_ROWS)
    opts.split(OptKind.THREAD, halves, 8, WARP_ROWS)
    opts.split(OptKind.UNROLL, halves, 2, 2)
    return halves


def _rest(facts: KernelFacts, product: UOp, own: tuple[UOp, ...]) -> list[UOp]:
    """The ranges that the result has beside its rows and columns."""
    loops = [r for r in facts.loops if r not in own and r in facts.ranges[product] and r.arg.kind is AxisKind.LOOP]
    return [r for r in loops if all(r in facts.ranges[s] for s in facts.stores)]
