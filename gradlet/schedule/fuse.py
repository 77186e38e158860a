"""Where to cut: start with every cell a kernel of its own and make the merges that lower the price, best first.

A merge is accepted only if it lowers the total price, so the result never costs more than not fusing. Later moves
(macro moves, packing, rematerialisation) are more entries for the same heap.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Final

from gradlet.base.errors import CompilerError
from gradlet.graph.node import UOp
from gradlet.schedule.acyclic import Acyclic
from gradlet.schedule.cells import Cell, make_cells
from gradlet.schedule.partition import Group
from gradlet.schedule.price import IMPOSSIBLE, Pricer, Verdict
from gradlet.schedule.steps import Steps
from gradlet.target.target import Target

# A merge has to gain this much, so that rounding cannot make the search go on for ever.
MIN_GAIN: Final = 1000
# Of the kernels that read the same operand, how many neighbours each is tried with.
SIBLINGS: Final = 3
# Candidates tried for one kernel at a time.
NEIGHBOURS: Final = 16
# A kernel that is computed again by each of its users has at most this many.
COPIES: Final = 8


@dataclass
class Kernel:
    """A kernel in the making."""

    cells: list[Cell]
    stored: list[Cell] = field(default_factory=list)
    verdict: Verdict = field(default_factory=lambda: Verdict(IMPOSSIBLE))
    stamp: int = 0
    alive: bool = True


class Search:
    """Greedy search over partitions."""

    def __init__(self, steps: Steps, target_of: Callable[[str], Target]) -> None:
        self.steps = steps
        self.pricers: dict[str, Pricer] = {}
        self.target_of = target_of
        try:
            self.graph = self.connect(make_cells(steps, target_of))
        except CompilerError:
            self.graph = self.connect(make_cells(steps, target_of, careful=True))
        self.owner = list(range(len(self.cells)))
        self.kernels = [Kernel([cell]) for cell in self.cells]
        self.siblings = self.find_siblings()
        self.copied: set[int] = set()  # cells that every kernel which needs them computes itself
        self.readers = {r for first in steps.before.values() for r in first}
        self.heap: list[tuple[int, int, int, int, int]] = []
        for kernel in self.kernels:
            kernel.stored = self.stored_cells(kernel.cells)
            kernel.verdict = self.price(kernel.cells, kernel.stored)

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

    def merge_all(self) -> None:
        """Make the merges on the heap, best first."""
        while self.heap:
            _, first, second, stamp_first, stamp_second = heapq.heappop(self.heap)
            a, b = self.kernels[first], self.kernels[second]
            if a.alive and b.alive and a.stamp == stamp_first and b.stamp == stamp_second:
                self.merge(first, second)

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

    def stored_cells(self, cells: Sequence[Cell]) -> list[Cell]:
        """Cells whose value somebody outside needs."""
        numbers = {c.number for c in cells}
        return [
            c
            for c in cells
            if c.root in self.steps.forced
            or (c.number not in self.copied and any(u not in numbers for u in self.users[c.number]))
        ]

    def merged(self, first: int, second: int) -> tuple[list[Cell], list[Cell], Verdict]:
        """What merging two kernels would give."""
        return self.joined([*self.kernels[first].cells, *self.kernels[second].cells])

    def joined(self, parts: Sequence[Cell]) -> tuple[list[Cell], list[Cell], Verdict]:
        """These cells as one kernel."""
        cells = [c for _, c in sorted({c.number: c for c in parts}.items())]
        stored = self.stored_cells(cells)
        return cells, stored, self.price(cells, stored)

    # moves
    def propose(self, first: int, second: int) -> None:
        """Put a merge on the heap if it gains."""
        if first == second:
            return
        if first > second:
            first, second = second, first
        a, b = self.kernels[first], self.kernels[second]
        if self.steps.devices[a.cells[0].root] != self.steps.devices[b.cells[0].root]:
            return
        gain = a.verdict.price + b.verdict.price - self.merged(first, second)[2].price
        if gain >= MIN_GAIN:
            heapq.heappush(self.heap, (-gain, first, second, a.stamp, b.stamp))

    def merge(self, first: int, second: int) -> None:
        """Merge `second` into `first` unless a cycle forbids it, and try the neighbours of the result."""
        if not self.graph.merge(first, second):
            return
        a, b = self.kernels[first], self.kernels[second]
        a.cells, a.stored, a.verdict = self.merged(first, second)
        a.stamp += 1
        b.alive = False
        for cell in b.cells:
            self.owner[cell.number] = first
        for other in self.neighbours(first):
            self.propose(first, other)

    def copy_into_users(self) -> bool:
        """Let the users of an element-wise kernel compute it themselves, where that is cheaper than storing it."""
        changed = False
        for number, kernel in reversed(list(enumerate(self.kernels))):
            users = list(self.graph.after[number])
            if not kernel.alive or not 2 <= len(users) <= COPIES or not self.is_copyable(kernel):
                continue
            before = kernel.verdict.price + sum(self.kernels[u].verdict.price for u in users)
            self.copied.update(c.number for c in kernel.cells)
            made = [self.joined([*kernel.cells, *self.kernels[u].cells]) for u in users]
            if before - sum(verdict.price for _, _, verdict in made) < MIN_GAIN:
                self.copied.difference_update(c.number for c in kernel.cells)
                continue
            for user, (cells, stored, verdict) in zip(users, made, strict=True):
                target = self.kernels[user]
                target.cells, target.stored, target.verdict = cells, stored, verdict
                target.stamp += 1
            kernel.alive = False
            self.graph.hand_down(number)
            for user in users:
                for other in self.neighbours(user):
                    self.propose(user, other)
            changed = True
        return changed

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
        for cell in self.kernels[number].cells:
            for source in (*[r.source for r in cell.reads], None):
                around = self.siblings.get(source)
                if around is not None and len(around) > 1 and cell.number in around:
                    position = around.index(cell.number)
                    near = around[max(0, position - SIBLINGS) : position + SIBLINGS + 1]
                    found.update(dict.fromkeys([self.owner[n] for n in near]))
        found.pop(number, None)
        return list(found)

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
        if kernel.verdict.chain == () and len(kernel.stored) <= 1:
            return []
        loops: dict[int, int] = {}
        for cell in sorted(kernel.stored, key=lambda c: -len(c.kept)):
            for atom, size in cell.loops.items():
                if atom in cell.kept:
                    loops.setdefault(atom, size)
        levels = [*kernel.verdict.chain, kernel.verdict.outer]

        def level(atom: int) -> int:
            return next((i for i, atoms in enumerate(levels) if atom in atoms), len(levels))

        return sorted(loops.items(), key=lambda loop: level(loop[0]))
