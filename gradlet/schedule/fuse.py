"""Where to cut: start with every cell a kernel of its own and make the merges that lower the price, best first.

A merge is accepted only if it lowers the total price, so the result never costs more than not fusing. Later moves
(macro moves, packing, rematerialisation) are more entries for the same heap.
"""

from __future__ import annotations

import heapq
from bisect import bisect_left
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final
from weakref import WeakMethod

from gradlet.base.errors import CompilerError
from gradlet.graph.node import UOp
from gradlet.schedule.acyclic import Acyclic
from gradlet.schedule.cells import Cell, make_cells
from gradlet.schedule.chains import Views
from gradlet.schedule.gains import Sums, inside, is_impossible, least_price, sums_of, sums_of_both
from gradlet.schedule.partition import Group
from gradlet.schedule.price import IMPOSSIBLE, Pricer, Verdict
from gradlet.schedule.recompute import recompute
from gradlet.schedule.repeats import Pair, Repeats
from gradlet.schedule.rotation import rotations
from gradlet.schedule.steps import Steps
from gradlet.target.target import Target

if TYPE_CHECKING:
    from gradlet.schedule.ties import Ties

# A merge has to gain this much, so that rounding cannot make the search go on for ever.
MIN_GAIN: Final = 1000
# Of the kernels that read the same operand, how many neighbours each is tried with.
SIBLINGS: Final = 3
# Candidates tried for one kernel at a time.
NEIGHBOURS: Final = 16
# A kernel that is computed again by each of its users has at most this many.
COPIES: Final = 8


class Kernel:
    """A kernel in the making.

    Attributes:
        cells: its cells in order.
        stored: those whose value is written to memory.
        price: picoseconds.
        shape: kernels of one shape are the same, each around its own layer.
        layer: the layer of its first cell.
        alive: whether it is still part of the partition.
        ties: what it has to do with others, once somebody has asked.
    """

    def __init__(self, cells: list[Cell], ask: Callable[[Sequence[Cell], Sequence[Cell]], Verdict]) -> None:
        self.cells = cells
        self.stored: list[Cell] = []
        self.price = IMPOSSIBLE
        self.shape = -1
        self.layer = 0
        self.alive = True
        self.ties: Ties | None = None
        # The search holds its kernels: held in turn it would stay alive, and all nodes with it, until Python looks for
        # cycles.
        self._ask = WeakMethod(ask)
        self._verdict: Verdict | None = None

    @property
    def verdict(self) -> Verdict:
        """All that is known of its price; asked for only where the price alone does not do."""
        if self._verdict is None:
            ask = self._ask()
            assert ask is not None
            self._verdict = ask(self.cells, self.stored)
        return self._verdict

    def become(self, cells: list[Cell], plan: Made, verdict: Verdict | None) -> None:
        """Take over what a merge gives."""
        self.cells = cells
        self.stored = [cells[position] for position in plan.stored]
        self.price = plan.price
        self.ties = None
        self._verdict = verdict


# The gain of a merge, negative, and whether it is priced: else it is the most that it could be. Then the two kernels.
Entry = tuple[int, bool, int, int, Pair]
# Kernels between two others are small when a merge of those gains this many times what they take.
SMALL_BETWEEN: Final = 4
MAX_BETWEEN: Final = 2


@dataclass
class Made:
    """What a merge gives, for all pairs alike.

    Attributes:
        price: picoseconds.
        stored: positions among its cells of those that are written to memory.
        verdict: of the two kernels `of` for which it was asked.
        of: numbers of these kernels.
        shape: of the result; -1 before the first merge of this kind.
    """

    price: int
    stored: list[int]
    verdict: Verdict
    of: tuple[int, int]
    shape: int = -1


class Search:
    """Greedy search over partitions.

    A move is priced once for all layers in which it occurs (`repeats`): in the others it is taken over.
    """

    def __init__(self, steps: Steps, target_of: Callable[[str], Target], replay: bool = True) -> None:
        """Start with a kernel a cell.

        Args:
            steps: the graph.
            target_of: facts about a device by its name.
            replay: whether equal layers share prices; without, the result is the same.
        """
        self.steps = steps
        self.pricers: dict[str, Pricer] = {}
        self.target_of = target_of
        views = Views()
        try:
            self.graph = self.connect(make_cells(steps, target_of, views=views))
        except CompilerError:
            self.graph = self.connect(make_cells(steps, target_of, careful=True, views=views))
        count = len(self.cells)
        repeats = Repeats(self.cells, steps, self.home, views) if replay else None
        self.classes = repeats.classes if repeats is not None else list(range(count))
        self.layers = repeats.layers if repeats is not None else [0] * count
        self.copied: set[int] = set()  # cells that every kernel which needs them computes itself
        self.readers = {r for first in steps.before.values() for r in first}
        self.shapes: dict[object, int] = {}
        self.kernel_at: dict[tuple[int, int], Kernel] = {}  # by shape and layer
        self.gains: dict[Pair, int] = {}
        self.most: dict[Pair, int] = {}  # what a merge gains at most
        self.sums: list[Sums | None] = []
        self.made: dict[Pair, Made] = {}
        self.copies: dict[object, list[Made] | None] = {}
        self.dropped: dict[object, bool] = {}  # what `recompute` has tried, and whether it was cheaper
        self.nests: dict[int, list[int]] = {}
        self.heap: list[Entry] = []
        self.owner = list(range(count))
        self.cells_beside: dict[int, list[int]] = {}
        self.kernels = [Kernel([cell], self.price) for cell in self.cells]
        self.sums = [None] * count
        self.siblings = self.find_siblings()
        known: dict[int, Made] = {}
        for number, kernel in enumerate(self.kernels):
            shape = self.shape_of(kernel.cells)
            made = known.get(shape)
            if made is None:
                stored = self.stored_cells(kernel.cells)
                verdict = self.price(kernel.cells, stored)
                made = known[shape] = Made(verdict.price, [0] if stored else [], verdict, (number, number), shape)
            kernel.become(kernel.cells, made, made.verdict if made.of[0] == number else None)
            self.register(number, shape)

    def connect(self, cells: list[Cell]) -> Acyclic:
        """Take these cells, and say which has to run before which.

        Raises:
            CompilerError: they wait for each other.
        """
        steps = self.steps
        self.cells = cells
        self.home = {step: cell.number for cell in cells for step in cell.members}
        self.users: list[list[int]] = [[] for _ in cells]
        edges: list[tuple[int, int]] = []
        for cell in cells:
            for source in dict.fromkeys([r.source for r in cell.reads]):
                maker = self.home.get(source)
                if maker is not None:
                    self.users[maker].append(cell.number)
                    edges.append((maker, cell.number))
            version = steps.versions.get(cell.root)
            if version is not None and version in self.home:
                edges.append((self.home[version], cell.number))
            for reader in steps.before.get(cell.root, ()):
                edges.append((self.home[reader], cell.number))
        return Acyclic(len(cells), edges)

    def run(self) -> None:
        """Merge until nothing gains."""
        self.rotate()
        for cell in self.cells:
            for user in self.users[cell.number]:
                self.propose(cell.number, user)
        for readers in self.siblings.values():
            for position, first in enumerate(readers):
                for second in readers[position + 1 : position + 1 + SIBLINGS]:
                    self.propose(first, second)
        self.merge_all()
        while self.copy_into_users():
            self.merge_all()
        while recompute(self):
            self.merge_all()

    def merge_all(self) -> None:
        """Make the merges on the heap, best first.

        One is priced when it is first by what it gains at most, unless so many kernels lie between the two that no
        price matters.
        """
        heap = self.heap
        while heap:
            entry = heapq.heappop(heap)
            while not entry[1]:
                _, _, first, second, pair = entry
                gain = 0
                if self.is_still(first, second, pair) and self.graph.between(first, second, MAX_BETWEEN) is not None:
                    gain = self.gain(first, second, pair)
                if gain >= MIN_GAIN:
                    entry = heapq.heappushpop(heap, (-gain, True, first, second, pair))
                elif heap:
                    entry = heapq.heappop(heap)
                else:
                    return
            _, _, first, second, pair = entry
            if self.merge(first, second, pair):
                for other in self.neighbours(first):
                    self.propose(first, other)

    # repeated layers
    def shape_of(self, cells: Sequence[Cell]) -> int:
        """The number of a shape: classes of the cells, and how far their layers are apart."""
        classes, layers, copied = self.classes, self.layers, self.copied
        base = layers[cells[0].number]
        key = tuple([(classes[c.number], layers[c.number] - base, c.number in copied) for c in cells])
        return self.shapes.setdefault(key, len(self.shapes))

    def register(self, number: int, shape: int) -> None:
        """Note the shape of a kernel, as it is now."""
        kernel = self.kernels[number]
        kernel.shape = shape
        kernel.layer = self.layers[kernel.cells[0].number]
        self.kernel_at[shape, kernel.layer] = kernel

    # prices
    def price(self, cells: Sequence[Cell], stored: Sequence[Cell]) -> Verdict:
        """Price on the device where the cells run."""
        return self.pricer(self.steps.devices[cells[0].root]).price(cells, stored)

    def pricer(self, device: str) -> Pricer:
        """The pricer of a device."""
        found = self.pricers.get(device)
        if found is None:
            found = self.pricers[device] = Pricer(self.steps, self.target_of(device))
        return found

    def stored_cells(self, cells: Sequence[Cell], chosen: Sequence[Cell] | None = None) -> list[Cell]:
        """Cells whose value somebody outside needs. `chosen`: the only ones of them where that can be."""
        numbers = {c.number for c in cells}
        forced, copied, users = self.steps.forced, self.copied, self.users
        stored: list[Cell] = []
        for cell in cells if chosen is None else chosen:
            if cell.root in forced:
                stored.append(cell)
            elif cell.number not in copied:
                for user in users[cell.number]:
                    if user not in numbers or user in copied:
                        stored.append(cell)
                        break
        return stored

    def joined(self, parts: Sequence[Cell]) -> tuple[list[Cell], list[Cell], Verdict]:
        """These cells as one kernel."""
        cells = in_order(parts)
        stored = self.stored_cells(cells)
        return cells, stored, self.price(cells, stored)

    def make(self, first: int, second: int) -> Made:
        """What merging two kernels would give."""
        a, b = self.kernels[first], self.kernels[second]
        cells = in_order([*a.cells, *b.cells])
        stored = self.stored_cells(cells, in_order([*a.stored, *b.stored]))
        verdict = self.price(cells, stored)
        return Made(verdict.price, positions(stored, cells), verdict, (first, second))

    def take(self, number: int, cells: list[Cell], stored: Sequence[Cell], verdict: Verdict) -> None:
        """Make a kernel of these cells."""
        made = Made(verdict.price, positions(stored, cells), verdict, (number, number))
        self.kernels[number].become(cells, made, verdict)
        self.register(number, self.shape_of(cells))

    # moves
    def rotate(self) -> None:
        """Make a kernel of every two products with a softmax between them that can go by blocks of keys, and of every
        products that those scores feed."""
        found = rotations(self)
        again = {c.number for rotation in found for c in rotation.again}
        self.copied |= again
        for number in sorted(again, reverse=True):
            self.kernels[number].alive = False
            self.graph.hand_down(number)
        for rotation in found:
            first, *others = [c.number for c in rotation.cells if c.number not in again]
            for number in others:
                if not self.graph.merge(first, number):
                    raise CompilerError("schedule: two products and their softmax cannot join; please report this")
                self.kernels[number].alive = False
                self.owner[number] = first
                self.steps.work.merges += 1
            stored = self.stored_cells(rotation.cells)
            verdict = self.pricer(self.steps.devices[rotation.cells[-1].root]).rotated(rotation.cells, stored)
            self.take(first, rotation.cells, stored, verdict)

    def propose(self, first: int, second: int) -> None:
        """Put a merge on the heap if it gains."""
        if first == second:
            return
        if first > second:
            first, second = second, first
        a, b = self.kernels[first], self.kernels[second]
        if not (a.alive and b.alive):
            return
        pair = (a.shape, b.shape, b.layer - a.layer)
        gain = self.most.get(pair)
        if gain is None:
            gain = 0
            if self.steps.devices[a.cells[0].root] == self.steps.devices[b.cells[0].root] and not self.apart(a, b):
                gain = self.most_gain(first, second)
            self.most[pair] = gain
        if gain >= MIN_GAIN and self.gains.get(pair, gain) >= MIN_GAIN:
            heapq.heappush(self.heap, (-gain, False, first, second, pair))

    def most_gain(self, first: int, second: int) -> int:
        """What merging two kernels gains at most."""
        owner, copied, users, forced = self.owner, self.copied, self.users, self.steps.forced

        def stays(cell: Cell) -> bool:
            if cell.root in forced:
                return True
            return any(u in copied or (owner[u] != first and owner[u] != second) for u in users[cell.number])

        a, b = self.kernels[first], self.kernels[second]
        pricer = self.pricer(self.steps.devices[a.cells[0].root])
        one, other = self.sums_at(first), self.sums_at(second)
        handed = inside(one, other)
        if is_impossible(one, other, handed, stays, pricer):
            return 0
        return a.price + b.price - least_price(one, other, handed, stays, pricer)

    def sums_at(self, number: int) -> Sums:
        """The sums of a kernel as it is now."""
        kernel, found = self.kernels[number], self.sums[number]
        if found is None or found.cells is not kernel.cells:
            pricer = self.pricer(self.steps.devices[kernel.cells[0].root])
            found = self.sums[number] = sums_of(kernel.cells, kernel.stored, self.copied, pricer)
        return found

    def gain(self, first: int, second: int, pair: Pair) -> int:
        """What merging two kernels gains, by the price of what it gives."""
        gain = self.gains.get(pair)
        if gain is None:
            made = self.make(first, second)
            gain = self.gains[pair] = self.kernels[first].price + self.kernels[second].price - made.price
            if gain >= MIN_GAIN:
                self.made[pair] = made
        return gain

    def is_still(self, first: int, second: int, pair: Pair) -> bool:
        """Whether two kernels are what they were when their merge was proposed."""
        a, b = self.kernels[first], self.kernels[second]
        return a.alive and b.alive and a.shape == pair[0] and b.shape == pair[1]

    def apart(self, a: Kernel, b: Kernel) -> bool:
        """Whether one of two kernels runs once, and the other one at every call."""
        return bool(self.steps.once) and self.steps.apart([c.root for c in a.cells], [c.root for c in b.cells])

    def merge(self, first: int, second: int, pair: Pair) -> bool:
        """Merge `second` into `first`, unless they have changed or a cycle forbids it."""
        a, b = self.kernels[first], self.kernels[second]
        if not self.is_still(first, second, pair):
            return False
        if not self.graph.merge(first, second):
            self.merge_around(first, second, self.gains[pair])
            return False
        b.alive = False
        for cell in b.cells:
            self.owner[cell.number] = first
        made = self.made[pair]
        work = self.steps.work
        work.merges += 1
        work.replayed += made.of != (first, second)
        one, other = self.sums_at(first), self.sums_at(second)
        cells = in_order([*a.cells, *b.cells])
        a.become(cells, made, made.verdict if made.of == (first, second) else None)
        if len(cells) == len(one.cells) + len(other.cells):
            pricer = self.pricer(self.steps.devices[cells[0].root])
            self.sums[first] = sums_of_both(one, other, cells, a.stored, pricer)
        if made.shape < 0:
            made.shape = self.shape_of(a.cells)
        self.register(first, made.shape)
        return True

    def merge_around(self, first: int, second: int, gain: int) -> None:
        """Merge two kernels with the few small ones between them: a reduce, the root of it, what uses the root."""
        launch = self.pricer(self.steps.devices[self.kernels[first].cells[0].root]).launch
        between = self.graph.between(first, second, MAX_BETWEEN) if gain >= SMALL_BETWEEN * launch else None
        if not between:
            return
        if sum(self.kernels[n].price for n in between) * SMALL_BETWEEN > gain:
            return
        low, high = sorted((first, second), key=self.graph.position.__getitem__)
        parts = [self.kernels[n] for n in (low, *between, high)]
        if any(self.apart(a, b) for a in parts for b in parts):
            return
        cells, stored, verdict = self.joined([c for kernel in parts for c in kernel.cells])
        if sum(kernel.price for kernel in parts) - verdict.price < gain:
            return
        # Each of them is next to what is merged already, so nothing is in the way.
        if not all(self.graph.merge(low, number) for number in (*between, high)):
            raise CompilerError("schedule: kernels between two others cannot join them; please report this")
        for number in (*between, high):
            self.kernels[number].alive = False
            self.steps.work.merges += 1
            for cell in self.kernels[number].cells:
                self.owner[cell.number] = low
        self.take(low, cells, stored, verdict)
        for other in self.neighbours(low):
            self.propose(low, other)

    def copy_into_users(self) -> bool:
        """Let the users of an element-wise kernel compute it themselves, where that is cheaper than storing it."""
        changed = False
        for number, kernel in reversed(list(enumerate(self.kernels))):
            users = list(self.graph.after[number])
            if not kernel.alive or not 2 <= len(users) <= COPIES or not self.is_copyable(kernel):
                continue
            key = (kernel.shape, *[(self.kernels[u].shape, self.kernels[u].layer - kernel.layer) for u in users])
            if key not in self.copies:
                self.copies[key] = self.make_copies(number, users)
            made = self.copies[key]
            if made is None:
                continue
            self.copied.update(c.number for c in kernel.cells)
            for user, one in zip(users, made, strict=True):
                target = self.kernels[user]
                target.become(
                    in_order([*kernel.cells, *target.cells]), one, one.verdict if one.of == (number, user) else None
                )
                self.register(user, self.shape_of(target.cells))
            kernel.alive = False
            self.graph.hand_down(number)
            for user in users:
                for other in self.neighbours(user):
                    self.propose(user, other)
            changed = True
        return changed

    def make_copies(self, number: int, users: Sequence[int]) -> list[Made] | None:
        """What each user would be if it computed a kernel itself; None when that is not cheaper."""
        kernel = self.kernels[number]
        before = kernel.price + sum(self.kernels[u].price for u in users)
        self.copied.update(c.number for c in kernel.cells)
        made: list[Made] = []
        for user in users:
            cells, stored, verdict = self.joined([*kernel.cells, *self.kernels[user].cells])
            made.append(Made(verdict.price, positions(stored, cells), verdict, (number, user)))
        self.copied.difference_update(c.number for c in kernel.cells)
        return made if before - sum(one.price for one in made) >= MIN_GAIN else None

    def is_copyable(self, kernel: Kernel) -> bool:
        """Whether a kernel is element-wise, nobody asked for its values, and only data ties it to its readers."""
        for cell in kernel.cells:
            if (
                cell.reduce is not None
                or cell.sequential
                or cell.root in self.steps.forced
                or cell.number in self.copied
            ):
                return False
            if not self.readers.isdisjoint(cell.members):
                return False
        return True

    def neighbours(self, number: int) -> list[int]:
        """Kernels next to one: its makers and users, and those that read the same operands."""
        found: dict[int, None] = {}
        for others in (self.graph.before[number], self.graph.after[number]):
            found.update(dict.fromkeys(list(others)[:NEIGHBOURS]))
        owner = self.owner
        for cell in self.kernels[number].cells:
            for near in self.beside(cell):
                found[owner[near]] = None
            for near in self.near(cell.number, None):
                found[owner[near]] = None
        found.pop(number, None)
        return list(found)

    def beside(self, cell: Cell) -> list[int]:
        """The cells next to one among the siblings of all that it reads."""
        found = self.cells_beside.get(cell.number)
        if found is None:
            sources = dict.fromkeys([r.source for r in cell.reads])
            numbers = dict.fromkeys([n for source in sources for n in self.near(cell.number, source)])
            found = self.cells_beside[cell.number] = list(numbers)
        return found

    def near(self, cell: int, source: UOp | None) -> list[int]:
        """The cells next to one among the siblings that read `source`, itself included."""
        around = self.siblings.get(source)
        if around is None:
            return []
        position = bisect_left(around, cell)
        if position == len(around) or around[position] != cell:
            return []
        return around[max(0, position - SIBLINGS) : position + SIBLINGS + 1]

    def find_siblings(self) -> dict[UOp | None, list[int]]:
        """For every operand the cells for which it is a large part of what they read; under None all scalars."""
        found: dict[UOp | None, list[int]] = {}
        found[None] = [c.number for c in self.cells if c.points == c.out_points == 1]
        for cell in self.cells:
            most = max([r.bytes for r in cell.reads], default=0)
            for read in cell.reads:
                if read.bytes * 8 >= most:
                    around = found.setdefault(read.source, [])
                    if not around or around[-1] != cell.number:
                        around.append(cell.number)
        return {source: around for source, around in found.items() if len(around) > 1}

    # results
    def group(self, kernel: Kernel) -> Group:
        """A kernel as lowering wants it: loops that others depend on come first."""
        members: dict[UOp, None] = {}
        for cell in kernel.cells:
            members.update(dict.fromkeys(cell.members))
        outputs = [c.root for c in kernel.stored]
        if not outputs:
            outputs = [kernel.cells[-1].root]
        return Group(list(members), outputs, self.nest(kernel))

    def nest(self, kernel: Kernel) -> list[tuple[int, int]]:
        """Output loops, outermost first: those in the smallest sets of the chain, else as the outputs have them."""
        loops: dict[int, int] = {}
        for cell in sorted(kernel.stored, key=lambda c: -len(c.kept)):
            for atom, size in cell.loops.items():
                if atom in cell.kept:
                    loops.setdefault(atom, size)
        found = list(loops.items())
        order = self.nests.get(kernel.shape)
        if order is None:
            order = self.nests[kernel.shape] = self.nesting_order(kernel, list(loops))
        return [found[position] for position in order]

    def nesting_order(self, kernel: Kernel, loops: Sequence[int]) -> list[int]:
        """The positions of a kernel's output loops in nesting order."""
        if len(kernel.stored) <= 1 and kernel.verdict.chain == ():
            return []
        levels = [*kernel.verdict.chain, kernel.verdict.outer]

        def level(position: int) -> int:
            return next((i for i, atoms in enumerate(levels) if loops[position] in atoms), len(levels))

        return sorted(range(len(loops)), key=level)


def in_order(cells: Sequence[Cell]) -> list[Cell]:
    """The cells by number, each once."""
    return [c for _, c in sorted({c.number: c for c in cells}.items())]


def positions(chosen: Sequence[Cell], cells: Sequence[Cell]) -> list[int]:
    """Where some of the cells are among all."""
    numbers = {c.number for c in chosen}
    return [position for position, cell in enumerate(cells) if cell.number in numbers]
