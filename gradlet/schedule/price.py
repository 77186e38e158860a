"""What a kernel costs, in integer picoseconds, from facts about its cells and its target. Sets prices, never values."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from math import prod
from typing import Final, NamedTuple

from gradlet.graph.node import UOp
from gradlet.ops.op import MOVEMENT, SCALAR_LEAVES, Op
from gradlet.schedule.alignment import aligned_atoms
from gradlet.schedule.cells import MAX_EVALUATIONS, MAX_OPERANDS, MAX_STEPS, NOTHING, Atoms, Cell, ViewNames, view_of
from gradlet.schedule.moves import root_of
from gradlet.schedule.reasons import Reason
from gradlet.schedule.steps import Steps
from gradlet.target.target import Target

# For every cell, by its number, who reads it, and whether inside a reduce.
Users = dict[int, list[tuple[Cell, bool]]]
IMPOSSIBLE: Final = 1 << 80
_SCAN: Final = Op.SCAN
PICO: Final = 10**12
# A prologue of a contraction is computed once per register tile and row of tiles, not per multiply.
TILE: Final = 4
GPU_TILE: Final = 512  # blocks of outputs for which lanes copy, and compute on the way
# Element-wise code reaches this part of the peak; contractions more. (Peak counts a multiply-add as two.)
PLAIN_FRACTION: Final = 4
CONTRACTION_FRACTION: Final = 2
ALONE: Final = 2
# Rows beside a sum across them are read and stored by lanes of many workgroups, a few bytes each.
SCATTERED: Final = 2
# Windows of a pooling have at most so many places along a row.
PLACES: Final = 4
SPREAD: Final = 4  # times that a copy has each element, from which on lanes had better read what they copy
# Bytes of a result that may be written in any order.
SMALL_RESULT: Final = 1 << 14


class Place(NamedTuple):
    """Where in the loop nest a value is computed: the loops around it and how often they run.

    Attributes:
        reuses: whether a register tile there computes it once for several of its uses.
        user: number of the cell whose reduce it is, -1 at an output.
        summed: the loops of that reduce.
    """

    key: tuple[int, Atoms]  # depth of the reduce (0: at an output) and its loops
    atoms: Atoms
    points: int
    contraction: bool
    reuses: bool = False
    user: int = -1
    summed: Atoms = NOTHING


@dataclass
class Verdict:
    """A priced kernel.

    Attributes:
        price: picoseconds, or IMPOSSIBLE.
        outer: loops that can run in parallel, shared by everything in the kernel.
        chain: sets of loops that have to be outside all others, smallest first.
        compute: picoseconds of arithmetic with every core busy.
        traffic: bytes between memory and the cores.
        reads: operands from outside, with the bytes that are read of each and the loops they depend on.
        contraction: whether it is a matrix product or convolution.
        width: iterations that can run at the same time.
        reason: why it is impossible.
    """

    price: int
    outer: Atoms = NOTHING
    chain: Sequence[Atoms] = ()
    compute: int = 0
    traffic: int = 0
    reads: Mapping[object, tuple[int, Atoms]] = field(default_factory=dict)
    contraction: bool = False
    width: int = 1
    reason: Reason | None = None


NO: Final = {reason: Verdict(IMPOSSIBLE, reason=reason) for reason in Reason}


class Pricer:
    """Prices kernels of one graph."""

    def __init__(self, steps: Steps, target: Target) -> None:
        self.steps = steps
        self.target = target
        self.launch = target.launch_ps
        self._turned: dict[UOp, bool] = {}
        self._lanes: dict[UOp, int | None] = {}
        self._askew: dict[tuple[int, int], tuple[frozenset[UOp], bool]] = {}
        self.readers: dict[object, frozenset[object]] = {w: frozenset(r) for w, r in steps.before.items()}

    def price(self, cells: Sequence[Cell], stored: Sequence[Cell]) -> Verdict:
        """The price of one kernel.

        Args:
            cells: its cells, sources first.
            stored: those whose root is written to memory.
        """
        self.steps.work.prices += 1
        if len(cells) == 1:
            return self._single(cells[0])
        makers = {c.root: c for c in cells}
        forbidden = self._forbidden(cells, stored, makers)
        if forbidden is not None:
            return NO[forbidden]
        users, depth = links(cells, makers)
        places, broadcasts = self._places(cells, stored, users, depth)
        if isinstance(places, Reason):
            return NO[places]
        chain = sorted(broadcasts, key=len)
        reduces = [c for c in cells if c.reduce is not None]
        for smaller, larger in zip(chain, chain[1:]):
            if not smaller <= larger:
                return NO[Reason.CROSSED_LOOPS]
        # Loops of a broadcast result stay outside; a reduce that cuts across would compute it again and again.
        for cell in reduces:
            if any(not (b <= cell.kept or cell.kept <= b) for b in chain):
                return NO[Reason.CROSSED_REDUCTION]
        outer = frozenset(stored[0].kept)
        for cell in stored[1:]:
            outer &= cell.kept
        for atoms in chain:
            outer &= atoms
        scans = [c for c in cells if c.root.op is _SCAN]
        if scans:
            if not scans_fit(scans, cells, chain, self.steps):
                return NO[Reason.SCANS]
            outer -= scans[0].sequential
        return self._add_up(cells, stored, makers, places, depth, outer, chain)

    def _single(self, cell: Cell) -> Verdict:
        work = cell.inner_work * cell.points + cell.outer_work * cell.out_points
        if cell.reduce is None:
            work = (cell.inner_work + cell.outer_work) * cell.points
        sources: dict[object, tuple[int, Atoms]] = {}
        for read in cell.reads:
            if read.bytes > sources.get(read.memory, (-1, NOTHING))[0]:
                sources[read.memory] = (read.bytes, read.atoms)
        width = prod([cell.loops[a] for a in cell.kept - cell.sequential])
        traffic = sum(count for count, _ in sources.values()) + cell.out_bytes
        reduces = cell.reduce is not None
        return self._verdict(work, traffic, width, cell.contraction, cell.kept, (), sources, reduces, cell.contraction)

    def rotated(self, cells: Sequence[Cell], stored: Sequence[Cell]) -> Verdict:
        """The price of two products with a softmax between them that go by blocks of keys."""
        inside = {c.root for c in cells}
        work = sum([c.inner_work * c.points + c.outer_work * c.out_points for c in cells])
        sources: dict[object, tuple[int, Atoms]] = {}
        for read in [r for c in cells for r in c.reads if r.source not in inside]:
            if read.bytes > sources.get(read.source, (-1, NOTHING))[0]:
                sources[read.source] = (read.bytes, read.atoms)
        outer = frozenset(stored[0].kept)
        for cell in cells:
            if cell.reduce is not None:
                outer &= cell.kept
        width = prod([stored[0].loops[a] for a in outer])
        traffic = sum(count for count, _ in sources.values()) + sum(c.out_bytes for c in stored)
        chain = (outer,) if len(stored) > 1 else ()
        return self._verdict(work, traffic, width, True, outer, chain, sources, reduces=True, tiled=True)

    def _is_read_in_order(self, cells: Sequence[Cell], inside: Collection[UOp], lane: int | None) -> bool:
        """Whether all that is read of some size lies in memory along the innermost loop of a result: nothing turns."""
        for cell in cells:
            for read in cell.reads:
                if read.bytes >= SMALL_RESULT and read.source not in inside:
                    last = self.lane_of(read.source)
                    if last is None or last != lane:
                        return False
        return True

    def lane_of(self, source: UOp) -> int | None:
        """The loop along which a value lies in memory."""
        found = self._lanes.get(source, -1)
        if found == -1:
            last = self.steps.axes.dims(source)[-1:]
            found = self._lanes[source] = last[0][-1][0] if last and last[0] else None
        return found

    def _forbidden(self, cells: Sequence[Cell], stored: Sequence[Cell], makers: Mapping[UOp, Cell]) -> Reason | None:
        """What no price can buy: too large, special steps, two contractions, hazards. `makers`: the cells by root."""
        steps = self.steps
        size, operands = 0, len(stored)
        alone = cut = reduces = long = False
        for cell in cells:
            size += len(cell.members)
            operands += len(cell.reads)
            alone |= cell.is_alone
            if cell.reduce is not None:
                reduces = True
                long |= cell.is_long
                cut |= cell.partial in makers
        if size > MAX_STEPS:
            return Reason.STEPS
        limit = min(MAX_OPERANDS, self.target.max_args)
        if operands > limit:
            sources = {r.source for c in cells for r in c.reads if r.source not in makers}
            if len(sources) + len(stored) > limit:
                return Reason.OPERANDS
        if alone:
            return Reason.ALONE
        if _is_long_code(cells, makers):
            return Reason.CODE
        if cut:  # it gave cores work
            return Reason.CUT_REDUCTION
        large = [c for c in stored if c.out_bytes >= SMALL_RESULT]
        if len(large) > 1 and are_transposed(large):
            return Reason.TRANSPOSED
        if reduces:
            copies = [c for c in large if self.is_turned(c)]
            if copies and not all(self._is_read_in_order(cells, makers, c.lane) for c in copies):
                return Reason.TURNED
        if self.target.warp > 1 and any(_is_spread(c, makers) for c in large):
            return Reason.SPREAD
        if long and len(large) > 1 and _are_pooled(large):  # lanes along an image's rows
            return Reason.TRANSPOSED
        contractions = [c for c in cells if c.contraction]
        if contractions:
            if len(contractions) > 1:
                return Reason.TWO_CONTRACTIONS
            if any(c.reduce is not None and not c.contraction for c in cells):
                return Reason.CONTRACTION_AND_REDUCTION
            if any(c.kept != contractions[0].kept for c in stored):
                return Reason.CONTRACTION_LOOPS
        for cell in cells if steps.versions else ():
            writer = cell.root
            version = steps.versions.get(writer)
            if version is None:
                continue
            if version in makers:
                return Reason.OVERWRITES_OWN_VERSION
            if writer.op is Op.WRITE and any(r.source is writer for c in cells for r in c.reads):
                return Reason.READS_OWN_WRITE
            if not self._reads_in_step(cell, cells):
                return Reason.OUT_OF_STEP
        return None

    def is_turned(self, cell: Cell) -> bool:
        """Whether a large result is a copy in another order of memory."""
        found = self._turned.get(cell.root)
        if found is None:
            found = self._turned[cell.root] = turned(cell) is not None
        return found

    def _reads_in_step(self, writer: Cell, cells: Sequence[Cell]) -> bool:
        """Whether every reader of what `writer` overwrites reads exactly the element that is written then."""
        version = self.steps.versions[writer.root]
        if any(r.source is version for r in writer.reads):  # who computes the writer again reads the old version again
            users = [c for c in cells if any(r.source is writer.root for r in c.reads)]
            if any(c.reduce is not None or c.kept != writer.kept for c in users):
                return False
        readers = self.readers.get(writer.root)
        if not readers:
            return True
        place = self.steps.effects.places.get(writer.root)
        for cell in cells:
            for step in cell.members:
                if step not in readers:
                    continue
                if place is None or cell.reduce is not None or cell.kept != writer.kept:
                    return False
                if any(source is version and operand is not place for operand, source in self.steps.reads[step]):
                    return False
        if readers.isdisjoint([m for c in cells for m in c.members]):
            return True
        return all(c.reduce is None and c.kept == writer.kept for c in cells)

    def _places(
        self, cells: Sequence[Cell], stored: Sequence[Cell], users: Users, depth: dict[int, int]
    ) -> tuple[dict[int, dict[tuple[int, Atoms], Place]] | Reason, set[Atoms]]:
        """Where each cell is computed, and the kept loops of reduces whose result is used along further loops."""
        stored_numbers = {c.number for c in stored}
        places: dict[int, dict[tuple[int, Atoms], Place]] = {}
        broadcasts: set[Atoms] = set()
        for cell in reversed(cells):
            mine: dict[tuple[int, Atoms], Place] = {}
            if cell.number in stored_numbers:
                key = (0, cell.kept)
                mine[key] = Place(key, cell.kept, cell.out_points, False)
            for user, inside in users[cell.number]:
                if inside:
                    loops = user.running
                    key = (depth[user.number], loops)
                    summed = loops - user.kept
                    mine[key] = Place(key, loops, user.points, user.contraction, user.reuses, user.number, summed)
                else:
                    mine.update(places[user.number])
            if cell.picks:
                mine = {key: _picked(cell, place) for key, place in mine.items()}
            misfit = Reason.UNUSED if not mine else None
            if cell.reduce is not None and mine:
                misfit = self._reduce_misfit(cell, mine, broadcasts)
                if misfit is None and self._is_read_askew(cell, cell.number in stored_numbers, users[cell.number]):
                    misfit = Reason.CONTRACTION_AGAIN if cell.contraction else Reason.REDUCTION_AGAIN
            if misfit is not None:
                return misfit, broadcasts
            places[cell.number] = mine
        return places, broadcasts

    def _is_read_askew(self, cell: Cell, is_stored: bool, users: Sequence[tuple[Cell, bool]]) -> bool:
        """Whether one iteration needs several elements of a reduce, which would each be computed there (p + p.T)."""
        askew: set[UOp] = set()
        straight = is_stored
        for user, _ in users:
            views, in_step = self._views(user, cell)
            askew |= views
            straight |= in_step
        return len(askew) + straight > 1

    def _views(self, user: Cell, cell: Cell) -> tuple[frozenset[UOp], bool]:
        """The views of a cell's root that are not in step with their reader, and whether there are others."""
        key = (user.number, cell.number)
        found = self._askew.get(key)
        if found is None:
            root = cell.root
            every = {
                operand: cell.kept <= aligned_atoms(operand, root, step, self.steps.axes)
                for step in user.members
                for operand, source in self.steps.reads[step]
                if source is root
            }
            found = frozenset([o for o, in_step in every.items() if not in_step]), any(every.values())
            self._askew[key] = found
        return found

    def _reduce_misfit(self, cell: Cell, mine: dict[tuple[int, Atoms], Place], broadcasts: set[Atoms]) -> Reason | None:
        """Why a reduce is not computed once per element at every place that needs it, or None."""
        for place in mine.values():
            if place.contraction:
                return Reason.REDUCTION_IN_CONTRACTION
            if not cell.kept <= place.atoms:
                return Reason.REDUCTION_AGAIN
            if place.atoms != cell.kept:
                if cell.contraction:
                    return Reason.CONTRACTION_AGAIN
                broadcasts.add(cell.kept)
        if cell.contraction and (len(mine) > 1 or next(iter(mine.values())).key[0]):
            return Reason.CONTRACTION_AGAIN
        return None

    def _add_up(
        self,
        cells: Sequence[Cell],
        stored: Sequence[Cell],
        inside: Collection[UOp],
        places: dict[int, dict[tuple[int, Atoms], Place]],
        depth: dict[int, int],
        outer: Atoms,
        chain: Sequence[Atoms],
    ) -> Verdict:
        sizes = stored[0].loops
        nest = list(sizes)
        runs = count_runs(cells, places, outer)
        work = 0
        largest: dict[object, tuple[int, Atoms]] = {}
        contraction = reduces = False
        for cell in cells:
            if cell.reduce is not None:
                reduces = True
                contraction |= cell.contraction
                once = cell.inner_work * cell.points + cell.outer_work * cell.out_points
                work += once * runs[cell.number]
            else:
                times = 0
                kept = cell.kept
                for place in places[cell.number].values():
                    once = cell.points if kept == place.atoms else self._evaluations(cell, place, chain, nest)
                    times += once * runs[place.user]
                work += (cell.inner_work + cell.outer_work) * times
            for read in cell.reads:
                if read.source not in inside:
                    memory = read.memory
                    known = largest.get(memory)
                    if known is None or read.bytes > known[0]:
                        largest[memory] = (read.bytes, read.atoms)
        traffic = sum([c.out_bytes for c in stored])
        near = self.target.l2_bytes // 2
        for operand, (count, atoms) in largest.items():
            if count > near and count // max(1, prod([sizes[a] for a in outer & atoms])) > near:
                count *= _passes(operand, cells, places, depth, runs)
            traffic += count
        width = prod([sizes[a] for a in self._cut_by_cores(cells, outer, largest)])
        tiled = contraction and not (any(c.picks for c in cells) and _gathers_lanes(places))
        scattered = reduces and any(c.reduce is None and c.lane in outer and not c.kept <= outer for c in stored)
        return self._verdict(work, traffic, width, contraction, outer, chain, largest, reduces, tiled, scattered)

    def _cut_by_cores(self, cells: Sequence[Cell], outer: Atoms, reads: Mapping[object, tuple[int, Atoms]]) -> Atoms:
        """The outer loops that cores share: vectors that meet the same blocks of codes do so in one's registers."""
        if self.target.kind != "cpu" or not any(c.reuses and not c.contraction for c in cells):
            return outer
        count, atoms = max(reads.values(), key=lambda read: read[0], default=(0, outer))
        return outer & atoms if count > self.target.l2_bytes else outer

    def _evaluations(self, cell: Cell, place: Place, chain: Sequence[Atoms], nest: Sequence[int]) -> int:
        """How often an element-wise cell is computed in loops that are not its own; it moves out of the inner ones."""
        kept = cell.kept
        if kept <= place.atoms and (any(kept <= atoms for atoms in chain) or kept == frozenset(nest[: len(kept)])):
            return cell.points
        times = max(cell.points, place.points)
        if not place.reuses:
            return times
        # Vectors that meet blocks of codes fill a quarter of the registers with their sums.
        rows = TILE if place.contraction else max(TILE, self.target.vector_registers // 4)
        return max(cell.points, times // (GPU_TILE if self.target.warp > 1 else rows))

    def _verdict(
        self,
        work: int,
        traffic: int,
        width: int,
        contraction: bool,
        outer: Atoms,
        chain: Sequence[Atoms],
        reads: Mapping[object, tuple[int, Atoms]],
        reduces: bool,
        tiled: bool,
        scattered: bool = False,
    ) -> Verdict:
        fraction = CONTRACTION_FRACTION if tiled else PLAIN_FRACTION
        compute = work * fraction * PICO // self.target.flops_per_second
        moved = traffic * SCATTERED if scattered and self.target.warp > 1 else traffic
        price = self.launch + self.time(compute, moved, self._busy(width, outer, reads, reduces, chain))
        return Verdict(price, outer, chain, compute, traffic, reads, contraction, width)

    def _busy(
        self, width: int, outer: Atoms, reads: Mapping[object, tuple[int, Atoms]], reduces: bool, chain: Sequence[Atoms]
    ) -> int:
        """How many cores such a kernel keeps busy, if there were enough of them.

        Lanes of a GPU share a reduction along memory. Of one across it every lane of a warp has a result of its own,
        which groups of warps share unless it is used again for all that was reduced, and anything else is computed by
        as many lanes as there are results.
        """
        target = self.target
        if target.warp <= 1:
            return width
        if not reduces:
            return -(-width // target.max_threads)
        largest = max(reads, key=lambda source: reads[source][0], default=None)
        across = isinstance(largest, UOp) and self.lane_of(largest) in outer
        if not across:
            return width
        return -(-width // (target.max_threads if chain else target.warp))

    def time(self, compute: int, traffic: int, width: int) -> int:
        """Picoseconds of a kernel without its launch.

        Args:
            compute: arithmetic, in picoseconds with every core busy.
            traffic: bytes between memory and the cores.
            width: iterations that can run at the same time.
        """
        target = self.target
        used = min(target.cores, max(1, width))
        memory = traffic * PICO // target.bytes_per_second
        # One core alone gets a large part of the memory bandwidth.
        memory = memory * target.cores // min(target.cores, used * ALONE)
        compute = compute * target.cores // used
        # Arithmetic hides behind memory traffic only in part.
        return max(compute, memory) + min(compute, memory) // 2


def _picked(cell: Cell, place: Place) -> Place:
    """The place of a cell that reads where an index says: lanes that find their elements one by one fill no tile."""
    return place if cell.picks <= place.atoms - place.summed else place._replace(reuses=False)


def _gathers_lanes(places: Mapping[int, Mapping[tuple[int, Atoms], Place]]) -> bool:
    """Whether something of a contraction is read where an index says, lane by lane."""
    return any(place.contraction and not place.reuses for mine in places.values() for place in mine.values())


def _passes(
    source: object, cells: Sequence[Cell], places: Mapping[int, Mapping[tuple[int, Atoms], Place]],
    depth: Mapping[int, int], runs: Mapping[int, int],
) -> int:  # fmt: skip
    """How often a kernel goes over an operand that no near cache holds: once in every loop nest that reads it."""
    nests: dict[tuple[int, Atoms], int] = {}
    for cell in cells:
        for read in cell.reads:
            if read.memory != source:
                continue
            if read.inside:
                key = (depth[cell.number], cell.running)
                nests[key] = max(nests.get(key, 0), runs[cell.number])
            else:
                for key, place in places[cell.number].items():
                    nests[key] = max(nests.get(key, 0), runs[place.user])
    return sum(nests.values())


def are_transposed(large: Sequence[Cell]) -> bool:
    """Whether two large results share their loops and are contiguous along different ones."""
    kinds = list({(c.lane, c.kept) for c in large})
    return any(
        a != b and a in other and b in one for i, (a, one) in enumerate(kinds) for b, other in kinds[i + 1 :]
    )  # fmt: skip


def _is_spread(cell: Cell, makers: Mapping[UOp, Cell]) -> bool:
    """Whether a result is a copy that has each element of a value of the same kernel several times."""
    if cell.root.op is not Op.CONTIGUOUS or len(cell.members) > 1:
        return False
    maker = makers.get(root_of(cell.root.src[0]))
    return maker is not None and cell.out_points >= SPREAD * maker.out_points


def _are_pooled(large: Sequence[Cell]) -> bool:
    """Whether two large results are an image, with the few places in windows as its last loop, and its pooling."""
    for image in large:
        lane = image.lane
        if lane is not None and 2 <= image.loops.get(lane, 0) <= PLACES:
            if any(w is not image and w.lane in image.kept and lane not in w.kept for w in large):
                return True
    return False


def turned(cell: Cell) -> UOp | None:
    """What a large result is a copy of in another order of memory, if it is one."""
    node = cell.root
    if node.op is not Op.CONTIGUOUS or cell.out_bytes < SMALL_RESULT:
        return None
    node, is_turned = node.src[0], False
    while node.op in MOVEMENT:
        node, is_turned = node.src[0], is_turned or node.op is Op.PERMUTE
    return node if is_turned and node.op not in SCALAR_LEAVES else None


def count_runs(
    cells: Sequence[Cell], places: dict[int, dict[tuple[int, Atoms], Place]], outer: Atoms
) -> dict[int, int]:
    """How many times a kernel computes each whole reduce: once where its results belong to the outer loops that all
    share, else once in each of the loop nests that need it; under -1 the outputs."""
    runs: dict[int, int] = {-1: 1}
    for cell in reversed(cells):
        if cell.reduce is None:
            continue  # nobody asks
        if cell.kept <= outer:
            runs[cell.number] = 1
        else:
            runs[cell.number] = sum([runs[p.user] for p in places[cell.number].values()])
    return runs


def scans_fit(scans: Sequence[Cell], cells: Sequence[Cell], chain: Sequence[Atoms], steps: Steps) -> bool:
    """Whether running combinations can share a kernel: all along one axis, whose loops can be inside all others, and
    whatever uses their results does so element by element, as they come."""
    along = scans[0].sequential
    if any(scan.sequential != along for scan in scans):
        return False
    if any(atoms & along and not all(scan.kept <= atoms for scan in scans) for atoms in chain):
        return False
    axes = steps.axes
    dims = {scan.root: axes.dims(scan.root) for scan in scans}
    for cell in cells:
        elsewhere: set[UOp] | None = None
        for read in cell.reads:
            wanted = dims.get(read.source)
            if wanted is None:
                continue
            elsewhere = read_by_index(cell, steps) if elsewhere is None else elsewhere
            if read.source in elsewhere:
                return False
            shown = cell.root.src[1] if cell.root.op is Op.WRITE else cell.root
            if read.inside or read.views != {0} or cell.reduce is not None or axes.dims(shown) != wanted:
                return False
            dims[cell.root] = wanted
    return True


def read_by_index(cell: Cell, steps: Steps) -> set[UOp]:
    """The steps that a cell reads at places which an index says, whatever its loops are."""
    found: set[UOp] = set()
    for step in reversed(cell.members):
        for operand, source in steps.reads[step]:
            if step in found or (step.op is Op.GATHER and operand is step.src[0]):
                found.add(source)
    return found


def _is_long_code(cells: Sequence[Cell], makers: Mapping[UOp, Cell]) -> bool:
    """Whether the code of one kernel has too many steps. Names of views are compared only where counting them is not
    enough to tell."""
    most: dict[int, int] = {}
    total = 0
    for cell in reversed(cells):
        own = most.get(cell.number, 1)
        total += own * cell.evaluations
        if total > MAX_EVALUATIONS:
            return evaluations(cells) > MAX_EVALUATIONS
        for read in cell.reads:
            producer = makers.get(read.source)
            if producer is not None:
                most[producer.number] = most.get(producer.number, 0) + own * len(read.views)
    return False


def evaluations(cells: Sequence[Cell]) -> int:
    """How many steps the code of one kernel has: a value read through several views is computed for each of them.

    Views of views multiply (every level of a product tree reads the one below twice), so little work can be long code.
    """
    by_root = {c.root: c for c in cells}
    views: dict[int, set[int]] = {}
    names: ViewNames = {}
    total = 0
    for cell in reversed(cells):
        own = views.get(cell.number) or {0}
        total += len(own) * cell.evaluations
        if total > MAX_EVALUATIONS:
            break
        for read in cell.reads:
            producer = by_root.get(read.source)
            if producer is not None:
                there = views.setdefault(producer.number, set())
                for view in read.views:
                    there |= view_of(own, view, names)
    return total


def links(cells: Sequence[Cell], makers: Mapping[UOp, Cell]) -> tuple[Users, dict[int, int]]:
    """Inside a kernel: who reads each cell, and how many reduces are on the longest way to it, its own included."""
    users: Users = {c.number: [] for c in cells}
    depth: dict[int, int] = {}
    for cell in cells:
        below = 0
        for read in cell.reads:
            producer = makers.get(read.source)
            if producer is not None:
                users[producer.number].append((cell, read.inside))
                below = max(below, depth[producer.number])
        depth[cell.number] = below + 1 if cell.reduce is not None else below
    return users, depth
