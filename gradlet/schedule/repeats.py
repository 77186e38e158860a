"""Repeated layers: which cells do the same as others, one or more layers further on. Saves work, decides nothing.

A model is mostly a few sequences of cells that occur again and again, once a layer, forwards and later backwards. Every
cell gets a class and a layer, such that two cells of one class see the same around them, each from its own layer: what
they compute, what they read (which buffer is erased, "the one that the layer before met first" is kept), who reads
them, and with whom they share loops. What prices say of some cells then holds for cells of the same classes any number
of layers on. A cell that is like no other has a class of its own.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple

from gradlet.graph.node import UOp
from gradlet.ops.op import MOVEMENT, SCALAR_LEAVES, Op
from gradlet.schedule.cells import Cell
from gradlet.schedule.chains import Views
from gradlet.schedule.steps import Steps

# Cells in a row that have to be equal for the distance between two places to count.
GRAM: Final = 10
# Distances at which repetition is looked for, the most frequent first.
DISTANCES: Final = 12
# What is at most so many layers away is near; anything else is one definite cell.
NEAR: Final = 2

# What a cell has to do with another one. Numbers from FIRST_MET on: it uses a thing that the other met before.
VALUE: Final = 0
VERSION: Final = 1
BEFORE: Final = 2
FIRST_MET: Final = 3

# Two kernels or launches, by their shapes and how many layers the second is further on: all such pairs are alike.
Pair = tuple[int, int, int]
Reference = tuple[int, int]  # the number of another cell, and what there is between the two; -1 - that seen from there


class Run(NamedTuple):
    """Cells `begin .. end - 1` repeat every `period` cells."""

    begin: int
    end: int
    period: int


class Repeats:
    """Classes and layers of cells.

    Attributes:
        classes: for every cell the number of its class.
        layers: for every cell its layer; no two cells of a class have the same.
    """

    def __init__(
        self, cells: Sequence[Cell], steps: Steps, home: Mapping[UOp, int], views: Views | None = None
    ) -> None:
        """Compare all cells.

        Args:
            cells: in topological order.
            steps: what they are made of.
            home: the number of the cell of every step.
            views: what is known of the graph's views already.
        """
        self._steps = steps
        self._home = home
        self._names: dict[object, int] = {}
        self._seen = views if views is not None else Views()
        self._things: dict[object, Reference] = {}
        self._met: list[int] = [FIRST_MET] * len(cells)
        bodies: list[int] = []
        references: list[list[Reference]] = []
        for cell in cells:
            atoms = self._atoms(cell)
            bodies.append(self._describe(cell, atoms))
            references.append(self._references(cell, atoms))
        runs = find_runs(bodies)
        # The place of a cell in its run.
        stations = [-1] * len(cells)
        taken = 0
        for run in runs:
            for cell_number in range(run.begin, run.end):
                stations[cell_number] = taken + (cell_number - run.begin) % run.period
            taken += run.period
        self.layers = number_layers(runs, references, stations)
        add_users(references)
        adopt(stations, self.layers, references, bodies)
        self.classes = [
            self._class(number, body, references[number], stations) for number, body in enumerate(bodies)
        ]  # fmt: skip

    def _class(self, number: int, body: int, references: Sequence[Reference], stations: Sequence[int]) -> int:
        station = stations[number]
        if station < 0:
            return self._name(number)
        layers = self.layers
        layer = layers[number]
        around: list[object] = [station, body]
        for cell, kind in references:
            away = layers[cell] - layer
            if stations[cell] >= 0 and -NEAR <= away <= NEAR:
                around.append((stations[cell], away, kind))
            else:
                around.append((cell, kind))
        return self._name(tuple(around))

    def _name(self, key: object) -> int:
        """A number for a key: the same for equal keys."""
        return self._names.setdefault(key, len(self._names))

    # one cell
    def _describe(self, cell: Cell, atoms: Sequence[int]) -> int:
        """A number for what a cell computes: equal for equal cells, whatever they read."""
        steps, of = self._steps, self._seen.of
        root = cell.root
        places = {member: number for number, member in enumerate(cell.members)}
        outside: dict[UOp, int] = {}
        parts: list[object] = []
        for member in cell.members:
            reads = [
                (places[s] if s in places else -1 - outside.setdefault(s, len(outside)), of(operand, s).name)
                for operand, s in steps.reads[member]
            ]
            parts.append((member.op, member.dtype, member.arg, member.shape, tuple(reads)))
        number_of = {atom: number for number, atom in enumerate(atoms)}
        for read in cell.reads:
            parts.append((read.bytes, read.inside, len(read.views), tuple(sorted([number_of[a] for a in read.atoms]))))
        parts.append(tuple([(cell.loops.get(a, 0), a in cell.kept, a in cell.sequential) for a in atoms]))
        parts.append((root in steps.forced, steps.outlives(root), steps.devices[root], root in steps.versions))
        if root in steps.once:
            parts.append(steps.once[root])
        if root in steps.versions:
            place = root.src[1] if root.op is Op.WRITE else steps.effects.places.get(root, root.src[0])
            bottom = place
            while bottom.op in MOVEMENT:
                bottom = bottom.src[0]
            parts.append(of(place, bottom).name)
        return self._name(tuple(parts))

    def _atoms(self, cell: Cell) -> list[int]:
        """The loops of a cell, then others of its steps and those that its operands depend on."""
        found = dict.fromkeys(cell.loops)
        for member in cell.members:
            found.update(dict.fromkeys([a for a, _ in self._steps.axes.loops(member)]))
        for read in cell.reads:
            if not read.atoms <= found.keys():
                found.update(dict.fromkeys(sorted(read.atoms - found.keys())))
        return list(found)

    # neighbours
    def _references(self, cell: Cell, atoms: Sequence[int]) -> list[Reference]:
        """Whatever a cell shares with cells before it: values and buffers it reads, views, loops, what it waits for."""
        steps, number, own = self._steps, cell.number, cell.sections
        found: list[Reference] = []
        for member in cell.members:
            for operand, source in steps.reads[member]:
                if source in own or source.op in SCALAR_LEAVES:
                    continue
                found.append(self._reference(source, number, VALUE))
                if operand is not source:
                    found.append(self._first_met(operand, number))
        version = steps.versions.get(cell.root)
        if version is not None:
            found.append(self._reference(version, number, VERSION))
        for reader in steps.before.get(cell.root, ()):
            found.append((self._home[reader], BEFORE))
        for atom in atoms:
            found.append(self._first_met(atom, number))
        return found

    def _reference(self, source: UOp, number: int, kind: int) -> Reference:
        maker = self._home.get(source)
        return self._first_met(source, number) if maker is None else (maker, kind)

    def _first_met(self, thing: object, number: int) -> Reference:
        """The cell that met a thing first, and which of all that it met first."""
        found = self._things.get(thing)
        if found is None:
            found = self._things[thing] = (number, self._met[number])
            self._met[number] += 1
        return found


def add_users(references: Sequence[list[Reference]]) -> None:
    """Also note at every cell who reads its value and who waits for it."""
    for number, seen in enumerate([list(r) for r in references]):
        for cell, kind in dict.fromkeys(seen):
            if kind < FIRST_MET and cell != number:
                references[cell].append((number, -1 - kind))


def adopt(
    stations: list[int], layers: list[int], references: Sequence[Sequence[Reference]], bodies: Sequence[int]
) -> None:
    """Give cells outside all runs a place in the layer that alone has to do with them.

    Copies of weights, say, stand together before all layers, and sums of their gradients after them. What is at one
    reference of a cell in one layer is at the same reference of that cell in the others, so equal ones share a place.
    """
    places: dict[object, int] = {}
    free = max(stations, default=-1) + 1
    taken = {(station, layers[cell]) for cell, station in enumerate(stations) if station >= 0}
    at: dict[int, int | None] = {}  # of cells without a place: the layer that has to do with them, None for several
    wave = [cell for cell, station in enumerate(stations) if station >= 0]
    while wave:
        met: dict[int, tuple[int, int]] = {}
        for cell in wave:
            layer = layers[cell]
            for position, (other, _) in enumerate(references[cell]):
                if stations[other] < 0:
                    if at.setdefault(other, layer) != layer:
                        at[other] = None
                    met.setdefault(other, (stations[cell], position))
        wave = []
        for other, seen in sorted(met.items()):
            layer_of = at[other]
            if layer_of is None:
                continue
            place = places.setdefault((*seen, bodies[other]), free)
            free += place == free
            if (place, layer_of) not in taken:
                taken.add((place, layer_of))
                stations[other], layers[other] = place, layer_of
                wave.append(other)


def find_runs(names: Sequence[int]) -> list[Run]:
    """The stretches that repeat themselves at least once, in order; no two overlap."""
    counts: Counter[int] = Counter()
    last: dict[tuple[int, ...], tuple[int, int]] = {}
    for position in range(len(names) - GRAM + 1):
        gram = tuple(names[position : position + GRAM])
        before, earlier = last.get(gram, (-1, -1))
        if before >= 0:
            counts[position - before] += 1
        if earlier >= 0:
            counts[position - earlier] += 1
        last[gram] = (position, before)
    found: list[Run] = []
    free = [True] * len(names)
    for period, _ in sorted(counts.items(), key=lambda item: (-item[1], item[0]))[:DISTANCES]:
        begin = 0
        for position in range(len(names) - period + 1):
            there = position + period
            if there < len(names) and names[position] == names[there] and free[position] and free[there]:
                continue
            if position - begin >= period:
                found.append(Run(begin, there, shortest_period(names, begin, there, period)))
                free[begin:there] = [False] * (there - begin)
            begin = position + 1
    return sorted(found)


def shortest_period(names: Sequence[int], begin: int, end: int, period: int) -> int:
    """The smallest part of a period after which a stretch repeats itself already."""
    for part in range(1, period // 2 + 1):
        if period % part == 0 and all(names[p] == names[p + part] for p in range(begin, end - part)):
            return part
    return period


def number_layers(runs: Sequence[Run], references: Sequence[Sequence[Reference]], stations: Sequence[int]) -> list[int]:
    """The layer of every cell: counted along its run, in such steps as what it refers to in earlier runs goes."""
    layers = [0] * len(stations)
    for run in runs:
        seen: dict[tuple[int, int, int], tuple[int, int]] = {}
        directions: Counter[int] = Counter()
        others: list[tuple[int, int]] = []
        for cell in range(run.begin, run.end):
            turn = (cell - run.begin) // run.period
            for other, kind in references[cell]:
                if stations[other] < 0 or other >= run.begin:
                    continue
                layer = layers[other]
                others.append((turn, layer))
                key = (stations[cell], stations[other], kind)
                before = seen.get(key)
                if before is not None and turn == before[0] + 1 and layer != before[1]:
                    directions[layer - before[1]] += 1
                seen[key] = (turn, layer)
        direction = max(directions.items(), key=lambda item: (item[1], item[0]))[0] if directions else 1
        offsets = Counter([layer - direction * turn for turn, layer in others])
        offset = max(offsets.items(), key=lambda item: (item[1], -item[0]))[0] if offsets else 0
        for cell in range(run.begin, run.end):
            layers[cell] = offset + direction * ((cell - run.begin) // run.period)
    return layers
