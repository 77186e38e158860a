"""What merging two kernels gains at most, from sums that cost little: most merges are never priced.

The merged kernel moves at least what both read and write less what they share, each operand once, and computes each of
its cells at least once. So a merge that stands below others in the heap by this bound needs no price yet, and by the
time it is first one of the two kernels has often changed. What is plainly impossible is found here already.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import cast

from gradlet.graph.node import UOp
from gradlet.schedule.cells import Cell
from gradlet.schedule.price import (
    CONTRACTION_FRACTION,
    PICO,
    PLAIN_FRACTION,
    SMALL_RESULT,
    Pricer,
    are_transposed,
)


@dataclass(slots=True)
class Sums:
    """What a kernel does at least, and what decides whether it can join others.

    Attributes:
        cells: of which these are the sums.
        reads: the operands from outside, and the most bytes that one of its cells reads of each.
        roots: of its cells.
        written: what it stores, and the cells that are.
        large: those of some size.
        turned: those of them that are copies of something in another order of memory.
        bytes: all that it reads and writes.
        work: that of each cell once; cells that other kernels compute too are left out.
        contraction: its matrix product or convolution.
        reduces: whether it has reduces that are none.
        is_alone: whether one of its cells takes nothing else into its kernel.
    """

    cells: Sequence[Cell]
    reads: dict[object, int]
    roots: set[UOp]
    written: dict[UOp, Cell]
    large: list[Cell]
    turned: list[Cell]
    bytes: int
    work: int
    contraction: Cell | None
    reduces: bool
    is_alone: bool


def sums_of(cells: Sequence[Cell], stored: Sequence[Cell], copied: set[int], pricer: Pricer) -> Sums:
    """The sums of a kernel."""
    roots = {c.root for c in cells}
    reads: dict[object, int] = {}
    work = 0
    contraction = None
    reduces = is_alone = False
    for cell in cells:
        points = cell.points
        if cell.reduce is not None:
            points = cell.out_points
            if cell.contraction:
                contraction = cell
            else:
                reduces = True
        is_alone |= cell.is_alone
        if cell.number not in copied:
            work += cell.inner_work * cell.points + cell.outer_work * points
        for read in cell.reads:
            if read.source not in roots and read.bytes > reads.get(read.memory, -1):
                reads[read.memory] = read.bytes
    return completed(Sums(cells, reads, roots, {}, [], [], 0, work, contraction, reduces, is_alone), stored, pricer)


def completed(sums: Sums, stored: Sequence[Cell], pricer: Pricer) -> Sums:
    """With what depends on the stored cells."""
    sums.written = {c.root: c for c in stored}
    sums.large = [c for c in stored if c.out_bytes >= SMALL_RESULT]
    sums.turned = [c for c in sums.large if pricer.is_turned(c)]
    sums.bytes = sum(sums.reads.values()) + sum([c.out_bytes for c in stored])
    return sums


def sums_of_both(a: Sums, b: Sums, cells: Sequence[Cell], stored: Sequence[Cell], pricer: Pricer) -> Sums:
    """The sums of what two kernels became that have no cell in common."""
    few, many = (a, b) if len(a.reads) < len(b.reads) else (b, a)
    reads = dict(many.reads)
    for source, count in few.reads.items():
        if count > reads.get(source, -1):
            reads[source] = count
    for source in inside(a, b):
        del reads[source]
    contraction = a.contraction or b.contraction
    made = Sums(
        cells, reads, a.roots | b.roots, {}, [], [], 0, a.work + b.work, contraction, a.reduces or b.reduces, False
    )  # fmt: skip
    return completed(made, stored, pricer)


def least_price(a: Sums, b: Sums, handed: set[UOp], stays: Callable[[Cell], bool], pricer: Pricer) -> int:
    """What two kernels cost at least as one.

    Args:
        a: one kernel.
        b: the other one.
        handed: see `inside`.
        stays: whether a cell that one stores and the other reads is stored all the same.
        pricer: of their device.
    """
    few, many = (a, b) if len(a.reads) < len(b.reads) else (b, a)
    moved = a.bytes + b.bytes
    others = many.reads
    for source, count in few.reads.items():
        there = others.get(source)
        if there is not None:
            moved -= min(there, count)
    for source in handed:
        for reader, maker in ((a, b), (b, a)):
            moved -= reader.reads.get(source, 0)
            cell = maker.written.get(source)
            if cell is not None and not stays(cell):
                moved -= cell.out_bytes
    target = pricer.target
    fraction = PLAIN_FRACTION if a.contraction is None and b.contraction is None else CONTRACTION_FRACTION
    compute = (a.work + b.work) * fraction * PICO // target.flops_per_second
    return pricer.launch + pricer.time(compute, moved, target.cores)


def inside(a: Sums, b: Sums) -> set[UOp]:
    """What one of two kernels makes and the other one reads."""
    return cast("set[UOp]", (a.reads.keys() & b.roots) | (b.reads.keys() & a.roots))


def is_impossible(a: Sums, b: Sums, handed: set[UOp], stays: Callable[[Cell], bool], pricer: Pricer) -> bool:
    """Whether two kernels can certainly not be one: part of what `Pricer` finds impossible. See `least_price`."""
    if a.is_alone or b.is_alone:
        return True
    contraction = a.contraction or b.contraction
    if contraction is not None:
        if (a.contraction is not None and b.contraction is not None) or a.reduces or b.reduces:
            return True

    def stored(cells: Sequence[Cell]) -> Sequence[Cell]:
        return [c for c in cells if c.root not in handed or stays(c)] if handed else cells

    if contraction is not None:
        kept = contraction.kept
        for part in (a, b):
            if any(c.kept != kept for c in stored(list(part.written.values()))):
                return True
    if a.large and b.large and are_transposed([*stored(a.large), *stored(b.large)]):
        return True
    if (a.turned or b.turned) and (contraction is not None or a.reduces or b.reduces):
        for cell in stored([*a.turned, *b.turned]):
            for part in (a, b):
                for source, count in part.reads.items():
                    if (
                        count >= SMALL_RESULT
                        and isinstance(source, UOp)
                        and source not in handed
                        and pricer.lane_of(source) != cell.lane
                    ):
                        return True
    return False
