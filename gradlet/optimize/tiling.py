"""Opts for the loops of a kernel that goes by blocks: lanes, tiles and copies in each of its parts."""

from __future__ import annotations

from collections.abc import Collection
from typing import Final

from gradlet.graph.node import UOp
from gradlet.ops.op import AxisKind
from gradlet.ops.opt import Opt, OptKind, Tail
from gradlet.optimize.analysis import KernelFacts, size_bound
from gradlet.optimize.plan import Plan

# Terms of a sum that are written out.
COPIES: Final = 4
# A transposition goes by blocks of so many columns.
SIDE: Final = 8


def shared_loop(facts: KernelFacts, plan: Plan, kept: Collection[UOp], row: UOp, cut: bool) -> int | None:
    """The number of the loop that cores share: heads if they go round, else the one with most iterations.

    Args:
        facts: the kernel.
        plan: what is planned for it.
        kept: loops that all of the kernel has.
        row: the loop over rows.
        cut: whether it is cut in blocks.
    """
    cores = plan.target.cores
    loops = [r for r in facts.loops if r in kept and r.arg.kind is AxisKind.LOOP and (r is not row or cut)]
    loops = [r for r in loops if all(r in facts.ranges[s] for s in facts.stores)]
    even = [r for r in loops if r is not row and size_bound(r) % cores == 0]
    best = max(even or loops, key=lambda r: (size_bound(r), -r.arg.number), default=None)
    return int(best.arg.number) if best is not None else None


class Tiling:
    """Adds opts to a plan."""

    def __init__(self, plan: Plan) -> None:
        self.plan = plan

    def copy(self, row: int, depth: int, rows: int, columns: int, lanes: int) -> None:
        """What is turned on the way into its copy, blocks in registers."""
        if rows < lanes:
            return
        self.lanes(row, rows, lanes, 1)
        if columns % SIDE == 0:
            self.unroll(depth, columns, SIDE)

    @staticmethod
    def copies(size: int) -> int:
        """How many terms of a sum of so many are written out."""
        return next((n for n in range(COPIES, 1, -1) if size % n == 0), 1)

    @staticmethod
    def divisor(size: int, most: int) -> int:
        """The largest divisor up to a bound."""
        return next((n for n in range(most, 1, -1) if size % n == 0), 1)

    def lanes(self, number: int, size: int, lanes: int, vectors: int) -> None:
        """Lanes along a loop, so many vectors at a time."""
        self._split(OptKind.VECTORIZE, number, size, lanes)
        if size > lanes:
            self.unroll(number, size // lanes, vectors)

    def unroll(self, number: int, size: int, amount: int) -> None:
        """So many iterations written out."""
        if amount > 1:
            self._split(OptKind.UNROLL, number, size, min(amount, size))

    def _split(self, kind: OptKind, number: int, size: int, amount: int) -> None:
        self.plan.opts.append(Opt(kind, number, amount, Tail.SHIFT if size % amount else Tail.EXACT))
        if size > amount:
            self.plan.fresh()
