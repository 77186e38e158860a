"""The schedule of attention on a GPU: queries by whole warps, keys and values brought by the copy engine.

A block of queries is a workgroup's; rows and columns are cut as matrix units have them in registers
(`actions/fragments` says how), and `ROTATE` does the rest.
"""

from __future__ import annotations

from collections.abc import Iterable

from gradlet.base.errors import ArgumentError
from gradlet.graph.node import UOp
from gradlet.ops.op import AxisKind
from gradlet.ops.opt import Opt, OptKind, RotateDetail, Tail
from gradlet.optimize.actions import language as actions
from gradlet.optimize.actions.fragments import narrow_load
from gradlet.optimize.analysis import KernelFacts, range_size
from gradlet.optimize.blocks import Opts, columns_of
from gradlet.optimize.mixtures import find_mixture
from gradlet.optimize.rotation import row_and_column
from gradlet.target.rotation import WARP_ROWS, Blocks, unit_blocks, unit_buffers
from gradlet.target.target import Target

RESULTS_AS_BOXES: int = 0  # 1 has not been measured yet


def by_units(opts: Iterable[Opt]) -> bool:
    """Whether a schedule has matrix units go over the keys."""
    return any(isinstance(o.detail, RotateDetail) and o.detail.buffers for o in opts)


def mixture_tile(facts: KernelFacts, target: Target, cut: Blocks | None = None) -> list[Opt] | None:
    """The opts for such a kernel; None where it is another, or where sizes or memory do not fit.

    Args:
        facts: about the kernel.
        target: the machine.
        cut: these blocks of queries and keys in place of the usual ones.
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
    number = int(row.arg.number)
    warps = opts.split(OptKind.SPLIT, number, cut.rows, rows)
    if warps != number:
        opts.add(OptKind.PARALLEL, number)
    halves = opts.split(OptKind.SPLIT, warps, WARP_ROWS, cut.rows)
    opts.split(OptKind.THREAD, warps, cut.rows // WARP_ROWS, cut.rows // WARP_ROWS)
    opts.split(OptKind.THREAD, halves, 8, WARP_ROWS)
    opts.split(OptKind.UNROLL, halves, 2, 2)
    columns_of(opts, column, columns, columns)
    for r in _rest(facts, mixture.product, (row, column)):
        opts.add(OptKind.PARALLEL, int(r.arg.number))
    tail = Tail.MASK if keys % cut.keys else Tail.EXACT
    buffers = unit_buffers(target, cut, keys, columns, depth, RESULTS_AS_BOXES)
    detail = RotateDetail(halves, 0, buffers.keys, target.cores, buffers.queries, RESULTS_AS_BOXES)
    opts.opts.append(Opt(OptKind.ROTATE, int(mixture.along.arg.number), cut.keys, tail, detail))
    try:
        actions.apply(facts.sink, opts.opts, target)
    except ArgumentError:
        return None
    return opts.opts


def _rest(facts: KernelFacts, product: UOp, own: tuple[UOp, UOp]) -> list[UOp]:
    """The ranges that the result has beside its rows and columns."""
    loops = [r for r in facts.loops if r not in own and r in facts.ranges[product] and r.arg.kind is AxisKind.LOOP]
    return [r for r in loops if all(r in facts.ranges[s] for s in facts.stores)]
