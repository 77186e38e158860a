"""Regions: kernels that run one after another on one core, block by block, with what they hand over kept near it.

The loops that all of them share are cut in blocks. A value made and used inside the region stays in scratch memory of
the core (its second cache); a value that others need too is stored once and read again while it is near. A matrix
product, what follows it, and the product after that need no pairwise merge of loops: each keeps its own best loops
inside the block. This is the resident shape of reduce -> broadcast -> reduce, whatever the kernels are.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from math import prod
from typing import TYPE_CHECKING, Final, NamedTuple

from gradlet.graph.node import UOp
from gradlet.ops.op import SCALAR_LEAVES, Op
from gradlet.schedule.alignment import aligned_atoms, overwritten_atoms
from gradlet.schedule.cells import NOTHING, Atoms, Cell
from gradlet.schedule.moves import root_of
from gradlet.schedule.partition import Blocks, Cut
from gradlet.schedule.price import PICO, Pricer, turned
from gradlet.schedule.ties import TieFinder

if TYPE_CHECKING:
    from gradlet.schedule.fuse import Kernel

_LEAVES: Final = SCALAR_LEAVES | {Op.BUFFER}
# Calling one body for one block.
CALL_PS: Final = 60_000
# The last cache is this many times faster than memory.
LAST_CACHE: Final = 6
# A matrix product of fewer results in a block does not fill its register tiles.
SMALL_PRODUCT: Final = 4096
# Nor does one of fewer rows, or columns.
TILE_SIDE: Final = 8
# Blocks for each core that even out their differences; more only cost calls.
ENOUGH_BLOCKS: Final = 64
MAX_BLOCKS: Final = 1 << 16
# Memory is read and written along the innermost loop: a block keeps so much of it in one piece (a page).
MIN_LANES: Final = 1024
# Results of fewer bytes are written in any pieces.
SMALL_RESULT: Final = 1 << 16
# Cores wait for the last block for this part of a block's time.
UNEVEN: Final = 32


@dataclass
class Plan:
    """A region, priced.

    Attributes:
        time: picoseconds without the launch.
        blocks: None for a single kernel.
        scratch: stored steps that stay in scratch memory.
    """

    time: int
    blocks: Blocks | None
    scratch: dict[UOp, None]


@dataclass
class Value:
    """What one kernel of a region hands to another."""

    root: UOp
    bytes: int
    first: int  # position of its maker
    last: int  # position of its last reader
    reads: int
    stored: bool  # others need it too


class _Work(NamedTuple):
    """What the price of a region is made of, however it is cut.

    Attributes:
        kernels: how many there are.
        compute: picoseconds of the arithmetic of those that are no matrix products.
        products: the others.
        reads: of every operand from outside the bytes that are read, and the loops they depend on.
        traffic: bytes between memory and the cores, each once.
        again: bytes of values that others need too, where they are read again.
        inside: bytes between the cores and what is near them.
        scratch: values that stay in scratch memory.
        peak: the most bytes of all values.
    """

    kernels: int
    compute: int
    products: list[Kernel]
    reads: list[tuple[int, Atoms]]
    traffic: int
    again: int
    inside: int
    scratch: list[Value]
    peak: int


class Planner:
    """Prices regions of one device."""

    def __init__(self, pricer: Pricer, ties: TieFinder) -> None:
        self.pricer = pricer
        self.steps = pricer.steps
        self.target = pricer.target
        self.ties = ties
        self._sides: dict[int, list[tuple[Atoms, int]]] = {}
        self._aligned: dict[int, tuple[Kernel, dict[UOp, Atoms]]] = {}  # by id of kernels, which are kept so
        self._parallel: dict[int, tuple[Kernel, Atoms]] = {}  # likewise
        self._lanes: dict[int, frozenset[int]] = {}  # by number of the cell

    def plan(self, kernels: Sequence[Kernel], values: dict[UOp, Value], shared: Atoms | None = None) -> Plan | None:
        """The cheapest way to run these kernels (makers first) as one region, or None. `shared`: what that one says."""
        shared = self.shared(kernels) if shared is None else shared
        if not shared:
            return None
        loops = [(a, size) for a, size in self.nesting(kernels).items() if a in shared and size > 1]
        lanes = self.lanes(kernels)
        handed_on = peak([v for v in values.values() if not v.stored], len(kernels))
        ways: list[tuple[tuple[Cut, ...], int]] = []
        for cuts in candidates(loops, self.enough_blocks(handed_on)):
            count = prod([cut.outer for cut in cuts])
            if handed_on // count > self.target.scratch_bytes:
                continue
            if any(cut.atom in lanes and cut.inner < MIN_LANES for cut in cuts):
                continue
            ways.append((cuts, count))
        if not ways:
            return None
        self.steps.work.prices += 1
        best: Plan | None = None
        least = 0
        work = self._work(kernels, list(values.values()))
        for cuts, count in ways:
            made = self._priced(work, cuts, count)
            waiting = self.with_waiting(made.time, count)
            if best is None or waiting < least:
                best, least = made, waiting
        return best

    def with_waiting(self, time: int, count: int) -> int:
        """The time of a plan where cores wait for the last of few blocks; plain kernels are priced without."""
        return time + time * self.target.cores // (UNEVEN * count)

    def enough_blocks(self, handed_on: int) -> int:
        """How many blocks to try at most: some for every core, and as many as let what is handed on fit the scratch."""
        fitting = 2 * -(-handed_on // max(1, self.target.scratch_bytes))
        return max(fitting, self.target.cores * ENOUGH_BLOCKS)

    # legality
    def shared(self, kernels: Sequence[Kernel]) -> Atoms:
        """The loops that can be cut: parallel in every kernel, every value read, or changed, where it was made."""
        loops = self.parallel(kernels)
        return self.in_step(kernels, loops) if loops and not self.overwrites_unread(kernels) else NOTHING

    def in_step(self, kernels: Sequence[Kernel], loops: Atoms) -> Atoms:
        """Of some loops those along which every value is read, or changed, where it was made."""
        all_ties = [self.ties.of(kernel) for kernel in kernels]
        made = frozenset().union(*[ties.made for ties in all_ties])
        for kernel, ties in zip(kernels, all_ties, strict=True):
            if not made.isdisjoint(ties.needs):
                aligned = self.aligned(kernel)
                for source in made & ties.needs:
                    loops = loops & aligned.get(source, loops)
        return loops

    def parallel(self, kernels: Sequence[Kernel]) -> Atoms:
        """The loops that run in parallel in every kernel."""
        first, *others = kernels
        shared = self._parallel_in(first)
        for kernel in others:
            shared = shared & self._parallel_in(kernel)
        return shared

    def _parallel_in(self, kernel: Kernel) -> Atoms:
        found = self._parallel.get(id(kernel))
        if found is None:
            loops = kernel.verdict.outer - self.ties.of(kernel).one_by_one - self.steps.limited
            found = self._parallel[id(kernel)] = kernel, loops
        return found[1]

    def overwrites_unread(self, kernels: Sequence[Kernel]) -> bool:
        """Whether one kernel writes over what another one reads: only inside one kernel are the two in step."""
        all_ties = [self.ties.of(kernel) for kernel in kernels]
        for ties in all_ties:
            if ties.before:
                first = ties.before - ties.members
                if any(not first.isdisjoint(other.members) for other in all_ties):
                    return True
        return False

    def aligned(self, kernel: Kernel) -> dict[UOp, Atoms]:
        """For every step a kernel reads, the loops along which a block of it reads only the block of the same loop.

        A step is evaluated where its users need it: it is in step with an output along a loop if every hop between is.
        """
        found = self._aligned.get(id(kernel))
        if found is not None:
            return found[1]
        axes, reads = self.steps.axes, self.steps.reads
        in_step: dict[UOp, Atoms] = {}
        for cell in kernel.stored:
            in_step[cell.root] = cell.kept - cell.sequential
        for cell in kernel.stored:
            version = self.steps.versions.get(cell.root)
            if version is not None:
                place = self.steps.effects.overwritten(cell.root)
                there: Atoms = frozenset()
                if root_of(place) is version:  # else versions that nobody reads lie between
                    there = in_step[cell.root] & overwritten_atoms(place, version, cell.root, axes)
                in_step[version] = in_step.get(version, there) & there
        for cell in reversed(kernel.cells):
            for step in reversed(cell.members):
                here = in_step.get(step)
                if here is None:
                    continue
                for operand, source in reads[step]:
                    if source.op in _LEAVES:
                        continue
                    here_too = here & in_step.get(source, here)
                    in_step[source] = here_too and here_too & aligned_atoms(operand, source, step, axes)
        self._aligned[id(kernel)] = kernel, in_step
        return in_step

    def values(self, kernels: Sequence[Kernel]) -> dict[UOp, Value]:
        """What the kernels hand to one another."""
        found: dict[UOp, Value] = {}
        maker: dict[UOp, tuple[int, Cell]] = {}
        for position, kernel in enumerate(kernels):
            for source in self.ties.of(kernel).outside:
                if source not in maker:
                    continue
                first, cell = maker[source]
                value = found.setdefault(source, Value(source, cell.out_bytes, first, position, 0, False))
                value.last = position
                value.reads += 1
            for cell in kernel.stored:
                maker[cell.root] = (position, cell)
        return found

    def lanes(self, kernels: Sequence[Kernel]) -> set[int]:
        """The innermost loops of the large outputs, and those of what is copied to another order."""
        outputs = [c for k in kernels for c in k.stored]
        most = max(c.out_bytes for c in outputs)
        large = [c for c in outputs if c.out_bytes >= max(SMALL_RESULT, most // 4)]
        return set().union(*[self._lanes_of(cell) for cell in large])

    def _lanes_of(self, cell: Cell) -> frozenset[int]:
        found = self._lanes.get(cell.number)
        if found is None:
            lanes = set() if cell.lane is None else {cell.lane}
            source = turned(cell)
            if source is not None:
                lanes.update([atom for atom, _ in self.steps.axes.dims(source)[-1]])
            found = self._lanes[cell.number] = frozenset(lanes)
        return found

    def nesting(self, kernels: Sequence[Kernel]) -> dict[int, int]:
        """All output loops with their sizes, in the order of the largest output first."""
        outputs = sorted([c for k in kernels for c in k.stored], key=lambda c: -c.out_bytes)
        return {a: size for c in outputs for a, size in c.loops.items() if a in c.kept}

    # price
    def _work(self, kernels: Sequence[Kernel], values: Sequence[Value]) -> _Work:
        scratch = [v for v in values if not v.stored]
        made = {v.root for v in values}
        hidden = {v.root for v in scratch}
        reads: dict[object, tuple[int, Atoms]] = {}
        for kernel in kernels:
            for source, (bytes_read, atoms) in kernel.verdict.reads.items():
                if source in made:
                    continue
                if bytes_read > reads.get(source, (-1, NOTHING))[0]:
                    reads[source] = (bytes_read, atoms)
        again = sum([v.bytes * v.reads for v in values if v.stored])
        return _Work(
            kernels=len(kernels),
            compute=sum([k.verdict.compute for k in kernels if not k.verdict.contraction]),
            products=[k for k in kernels if k.verdict.contraction],
            reads=list(reads.values()),
            traffic=sum([count for count, _ in reads.values()])
            + sum([c.out_bytes for k in kernels for c in k.stored if c.root not in hidden]),
            again=again,
            inside=sum([v.bytes * (1 + v.reads) for v in scratch]) + again,
            scratch=scratch,
            peak=peak(values, len(kernels)),
        )

    def _priced(self, work: _Work, cuts: tuple[Cut, ...], count: int) -> Plan:
        """A way to cut the loops into `count` blocks, whose scratch memory fits."""
        target = self.target
        near = work.peak // count <= target.l2_bytes * 3 // 4
        used = max(1, count // -(-count // target.cores)) if count < 4 * target.cores else target.cores
        compute = (work.compute + sum([self._compute(k, cuts) for k in work.products])) * target.cores // used
        traffic = work.traffic if near else work.traffic + work.again
        again = 0
        for bytes_read, atoms in work.reads:
            if bytes_read <= target.l2_bytes // 4:
                continue
            visits = slab = 1
            for cut in cuts:
                if cut.atom in atoms:
                    slab *= cut.outer
                else:
                    visits *= cut.outer
            if visits > 1 and bytes_read // slab > target.l2_bytes // 4:
                again += bytes_read * (visits - 1)
        memory = traffic * PICO // target.bytes_per_second
        memory += again * PICO // (LAST_CACHE * target.bytes_per_second)
        memory = memory * target.cores // min(target.cores, 2 * used)
        compute += work.inside * PICO // target.l2_bytes_per_second * target.cores // used
        calls = count * work.kernels * CALL_PS // used
        time = max(compute, memory) + min(compute, memory) // 2 + calls
        return Plan(time, Blocks(cuts), dict.fromkeys([v.root for v in work.scratch]))

    def _compute(self, kernel: Kernel, cuts: Sequence[Cut]) -> int:
        """Picoseconds of a kernel's arithmetic in blocks: a product that does not fill its tiles takes longer."""
        verdict = kernel.verdict
        if not verdict.contraction:
            return verdict.compute
        results = max([c.out_points for c in kernel.stored]) // prod([c.outer for c in cuts])
        if results < SMALL_PRODUCT:
            return verdict.compute * 2
        for cell in kernel.cells:
            if cell.contraction:
                sides = self._sides.get(cell.number)
                if sides is None:
                    sides = self._sides[cell.number] = sides_of(cell)
                for side, whole in sides:
                    block = whole // prod([c.outer for c in cuts if c.atom in side])
                    if block < TILE_SIDE and block < whole:
                        return verdict.compute * 2
        return verdict.compute


def sides_of(cell: Cell) -> list[tuple[Atoms, int]]:
    """The rows and the columns of a product, and how many: the loops that one factor has and the other has not."""
    reduced = frozenset(cell.loops) - cell.kept
    factors = [r.atoms & cell.kept for r in cell.reads if r.inside and r.atoms & reduced]
    found: dict[Atoms, int] = {}
    for position, one in enumerate(factors):
        for other in factors[position + 1 :]:
            for side in (one - other, other - one):
                found[side] = prod([cell.loops[a] for a in side])
    return list(found.items())


def peak(values: Sequence[Value], count: int) -> int:
    """The most bytes of values that are alive at one of `count` positions, for all blocks together."""
    return max((sum(v.bytes for v in values if v.first <= p <= v.last) for p in range(count)), default=0)


def candidates(loops: Sequence[tuple[int, int]], enough: int) -> list[tuple[Cut, ...]]:
    """Ways to cut into up to `enough` blocks: some outer loops fully, and perhaps the next one in parts."""
    found: list[tuple[Cut, ...]] = []
    prefix: tuple[Cut, ...] = ()
    count = 1
    for atom, size in loops:
        for outer in divisors(size):
            if count * outer >= 2 and (count * outer <= enough or not found):
                found.append((*prefix, Cut(atom, outer, size // outer)))
        prefix = (*prefix, Cut(atom, size, 1))
        count *= size
        if count > enough:
            break
    return [cuts for cuts in found if prod(c.outer for c in cuts) <= MAX_BLOCKS]


@lru_cache(1024)
def divisors(size: int) -> Sequence[int]:
    """The divisors above 1, in order; the powers of two among them when there are many."""
    found = [d for d in range(2, min(size, 4096) + 1) if size % d == 0]
    if size > 4096:
        found.append(size)
    if len(found) > 12:
        found = [d for d in found if d & (d - 1) == 0 or d == size]
    return tuple(found)
