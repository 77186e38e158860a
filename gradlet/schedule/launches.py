"""Which kernels start together: regions, tails, staged operands and packs, by price.

Moves, each accepted only if it lowers the total price:
* region: kernels tied by data or by a common operand run block by block on one core (`regions`);
* tail: a kernel that is little work runs on one core when what it needs is finished, in the launch that finishes it
  (on a GPU: by the workgroup that arrives last);
* staging: a pure copy of an operand into another order, or a small table, runs as a stage before the kernel that reads
  it (on a GPU: on the way into shared memory);
* pack: independent kernels of one formula, or small ones, are segments of one launch.
Packs come last: they hide neighbours from each other.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from math import prod
from typing import Final

from gradlet.base import settings
from gradlet.graph.node import UOp
from gradlet.ops.op import Op
from gradlet.schedule.fuse import MIN_GAIN, NEIGHBOURS, SIBLINGS, Kernel, Search
from gradlet.schedule.partition import Group, Launch, Region, single
from gradlet.schedule.regions import Plan, Planner
from gradlet.schedule.steps import Steps
from gradlet.target.target import Target

# Kernels of one region, and bodies of one launch before packing.
MAX_BODIES: Final = 16
# A kernel is small, and worth packing with any other, when it takes at most this many launches.
SMALL_LAUNCHES: Final = 3


@dataclass
class Draft:
    """A launch in the making.

    Attributes:
        staged: copies of operands that run before.
        main: the kernels of the one region, makers first.
        plan: how the region is cut; None for a single kernel.
        tails: kernels that run on one core after the region, in order.
        price: picoseconds.
    """

    main: list[Kernel]
    price: int
    staged: list[Kernel] = field(default_factory=list)
    plan: Plan | None = None
    tails: list[Kernel] = field(default_factory=list)
    stamp: int = 0
    alive: bool = True

    @property
    def kernels(self) -> list[Kernel]:
        """All kernels."""
        return [*self.staged, *self.main, *self.tails]


def partition(steps: Steps, target_of: Callable[[str], Target]) -> list[Launch]:
    """Every step in a launch."""
    level = settings.FUSE.value
    if level == 0:
        return [single(group) for group in unfused(steps)]
    search = Search(steps, target_of)
    search.run()
    if level == 1:
        return [single(search.group(k)) for k in search.kernels if k.alive]
    return LaunchSearch(search).run()


def unfused(steps: Steps) -> list[Group]:
    """A kernel an operation. A sum of products with repeated factors is one operation: nobody stores the products."""
    products: dict[UOp, UOp] = {}
    for step in steps.order:
        if step.op is Op.REDUCE_AXES:
            below = step.src[0]
            if below.op is Op.MUL and steps.users.get(below) == [step] and below not in steps.forced:
                if any(prod(s.shape) < prod(below.shape) for _, s in steps.reads[below]):
                    products[step] = below
    joined = set(products.values())
    return [Group([products[n], n] if n in products else [n], [n]) for n in steps.order if n not in joined]


class LaunchSearch:
    """Greedy search over launches, after the search over kernels."""

    def __init__(self, search: Search) -> None:
        self.search = search
        self.steps = search.steps
        self.graph = search.graph
        self.drafts = {n: Draft([k], k.verdict.price) for n, k in enumerate(search.kernels) if k.alive}
        self.owner: dict[int, list[int]] = {}  # cell -> drafts that compute it
        self.kernels_of: dict[int, list[Kernel]] = {}
        for number, draft in self.drafts.items():
            for cell in draft.main[0].cells:
                self.owner.setdefault(cell.number, []).append(number)
                self.kernels_of.setdefault(cell.number, []).append(draft.main[0])
        self.planners: dict[str, Planner] = {}
        self.heap: list[tuple[int, int, int, int, int]] = []

    def run(self) -> list[Launch]:
        """All moves until none gains."""
        for number in self.drafts:
            for other in self.neighbours(number):
                if number < other:
                    self.propose(number, other)
        while self.heap:
            _, first, second, stamp_first, stamp_second = heapq.heappop(self.heap)
            a, b = self.drafts[first], self.drafts[second]
            if a.alive and b.alive and a.stamp == stamp_first and b.stamp == stamp_second:
                self.merge(first, second)
        return self.pack()

    # prices
    def planner(self, kernel: Kernel) -> Planner:
        """The planner of the device where a kernel runs."""
        device = self.device(kernel)
        found = self.planners.get(device)
        if found is None:
            found = self.planners[device] = Planner(self.search.pricer(device))
        return found

    def device(self, kernel: Kernel) -> str:
        """Where a kernel runs."""
        return self.steps.devices[kernel.cells[0].root]

    def region(self, kernels: Sequence[Kernel]) -> Plan | None:
        """These kernels as a region: ordered, with what others need marked."""
        ordered = self.ordered(kernels)
        planner = self.planner(ordered[0])
        values = planner.values(ordered)
        inside = {id(k) for k in ordered}
        for value in values.values():
            users = self.search.users[self.search.home[value.root]]
            others = any(id(k) not in inside for u in users for k in self.kernels_of[u])
            value.stored = others or self.steps.outlives(value.root)
        return planner.plan(ordered, values)

    def ordered(self, kernels: Sequence[Kernel]) -> list[Kernel]:
        """Makers before users."""
        makers: dict[object, int] = {}
        for position, kernel in enumerate(kernels):
            for cell in kernel.stored:
                makers[cell.root] = position
        needs: list[set[int]] = []
        for position, kernel in enumerate(kernels):
            own = {c.root for c in kernel.cells}
            mine: set[int] = set()
            for cell in kernel.cells:
                sources = {r.source for r in cell.reads} | {self.steps.versions.get(cell.root)}
                mine |= {makers[s] for s in sources if s in makers and s not in own}
            needs.append(mine - {position})
        result: list[Kernel] = []
        done: set[int] = set()
        while len(result) < len(kernels):
            ready = [p for p in range(len(kernels)) if p not in done and needs[p] <= done]
            for position in ready:
                done.add(position)
                result.append(kernels[position])
        return result

    # moves
    def propose(self, first: int, second: int) -> None:
        """Put a merge of two launches on the heap if it gains."""
        if self.device(self.drafts[first].main[0]) != self.device(self.drafts[second].main[0]):
            return
        made = self.joined(first, second)
        if made is None:
            return
        a, b = self.drafts[first], self.drafts[second]
        gain = a.price + b.price - made.price
        if gain >= MIN_GAIN:
            heapq.heappush(self.heap, (-gain, first, second, a.stamp, b.stamp))

    def joined(self, first: int, second: int) -> Draft | None:
        """The cheapest legal way to start two launches together."""
        if self.graph.position[first] > self.graph.position[second]:
            first, second = second, first
        a, b = self.drafts[first], self.drafts[second]
        target = self.planner(a.main[0]).target
        if target.scratch_bytes == 0 or len(a.kernels) + len(b.kernels) > MAX_BODIES or self.is_copy(a, b):
            return None
        if self.arguments(a, b) > target.max_args:
            return None
        ways = [self._region(a, b), self._tail(a, b), self._staging(a, b)]
        found = [way for way in ways if way is not None]
        return min(found, key=lambda draft: draft.price, default=None)

    def is_copy(self, *drafts: Draft) -> bool:
        """Whether one of them is a copy between devices, which no kernel does."""
        return any(d.main[0].cells[0].root.op is Op.COPY for d in drafts)

    def _region(self, a: Draft, b: Draft) -> Draft | None:
        tails = [*a.tails, *b.tails]
        if (a.tails and self.depends(b.main, a.tails)) or (b.staged and self.depends(b.staged, [*a.main, *a.tails])):
            return None
        plan = self.region([*a.main, *b.main])
        if plan is None:
            return None
        price = a.price + b.price - self.main_price(a) - self.main_price(b) - self.launch(b) + plan.time
        return Draft(self.ordered([*a.main, *b.main]), price, [*a.staged, *b.staged], plan, tails)

    def _tail(self, a: Draft, b: Draft) -> Draft | None:
        if b.staged or b.plan is not None:
            return None
        kernel = b.main[0]
        pricer = self.planner(kernel).pricer
        alone = pricer.time(kernel.verdict.compute, kernel.verdict.traffic, 1)
        price = a.price + b.price - self.launch(b) - self.main_price(b) + alone
        return Draft(a.main, price, a.staged, a.plan, [*a.tails, kernel, *b.tails])

    def _staging(self, a: Draft, b: Draft) -> Draft | None:
        if a.plan is not None or a.staged or a.tails or not self.depends(b.main, a.main):
            return None
        kernel = a.main[0]
        planner = self.planner(kernel)
        alone = planner.pricer.time(kernel.verdict.compute, kernel.verdict.traffic, 1)
        if self.is_staging(kernel):
            time = self.main_price(a) + (0 if b.staged else planner.target.barrier_ps)
        elif alone <= planner.target.launch_ps:  # a small table
            time = alone
        else:
            return None
        return Draft(b.main, b.price + time, [kernel, *b.staged], b.plan, b.tails)

    def is_staging(self, kernel: Kernel) -> bool:
        """Whether a kernel only copies an operand into another order, for this schedule alone."""
        cell = kernel.cells[0]
        return len(kernel.cells) == 1 and cell.members == [cell.root] and cell.root.op is Op.CONTIGUOUS and (
            not self.steps.outlives(cell.root)
        )  # fmt: skip

    def depends(self, kernels: Iterable[Kernel], makers: Iterable[Kernel]) -> bool:
        """Whether one of the kernels reads what one of the others stores, or has to wait for it otherwise."""
        made = {c.root for k in makers for c in k.stored}
        members = {m for k in makers for c in k.cells for m in c.members}
        for kernel in kernels:
            for cell in kernel.cells:
                if any(r.source in made for r in cell.reads) or self.steps.versions.get(cell.root) in made:
                    return True
                if any(r in members for r in self.steps.before.get(cell.root, ())):
                    return True
        return False

    def launch(self, draft: Draft) -> int:
        """The price of starting a launch."""
        return self.planner(draft.main[0]).target.launch_ps

    def main_price(self, draft: Draft) -> int:
        """The price of the region alone, without the launch."""
        return draft.plan.time if draft.plan is not None else draft.main[0].verdict.price - self.launch(draft)

    def merge(self, first: int, second: int) -> None:
        """Start two launches together unless a cycle forbids it, and try the neighbours of the result."""
        made = self.joined(first, second)
        if made is None or not self.graph.merge(first, second):
            return
        made.stamp = self.drafts[first].stamp + 1
        self.drafts[first] = made
        self.drafts[second].alive = False
        for kernel in made.kernels:
            for cell in kernel.cells:
                owners = self.owner[cell.number]
                self.owner[cell.number] = list(dict.fromkeys([first if o == second else o for o in owners]))
        for other in self.neighbours(first):
            self.propose(first, other)

    def neighbours(self, number: int) -> list[int]:
        """Launches next to one: makers and users, and those that read the same operands."""
        found: dict[int, None] = {}
        for others in (self.graph.before[number], self.graph.after[number]):
            found.update(dict.fromkeys(list(others)[:NEIGHBOURS]))
        for kernel in self.drafts[number].main:
            for cell in kernel.cells:
                for source in [r.source for r in cell.reads]:
                    around = self.search.siblings.get(source)
                    if around is not None and cell.number in around:
                        place = around.index(cell.number)
                        for near in around[max(0, place - SIBLINGS) : place + SIBLINGS + 1]:
                            found.update(dict.fromkeys(self.owner.get(near, ())))
        found.pop(number, None)
        return list(found)

    # packs
    def pack(self) -> list[Launch]:
        """The launches, independent ones packed."""
        alive = {n: d for n, d in self.drafts.items() if d.alive}
        levels: dict[int, list[int]] = {}
        for number, level in self.levels(alive).items():
            levels.setdefault(level, []).append(number)
        return [
            self.result([alive[n] for n in bin_]) for level in levels.values() for bin_ in self.bins(level, alive)
        ]  # fmt: skip

    def levels(self, alive: dict[int, Draft]) -> dict[int, int]:
        """For every launch how many have to follow one another after it: independent of all others of its level."""
        level: dict[int, int] = {}
        for number in sorted(alive, key=lambda n: -self.graph.position[n]):
            level[number] = max([level[u] + 1 for u in self.graph.after[number]], default=0)
        return level

    def bins(self, numbers: Sequence[int], alive: dict[int, Draft]) -> list[list[int]]:
        """Independent launches that start together: those of one formula, and the small ones with any others."""
        alone: list[list[int]] = []
        formulas: dict[object, list[int]] = {}
        small: dict[str, list[int]] = {}
        for number in numbers:
            draft = alive[number]
            target = self.planner(draft.main[0]).target
            device = self.device(draft.main[0])
            if target.scratch_bytes == 0 or self.is_copy(draft):
                alone.append([number])
                continue
            formulas.setdefault((device, *[formula(k) for k in draft.kernels]), []).append(number)
            if draft.price - target.launch_ps < SMALL_LAUNCHES * target.launch_ps:
                small.setdefault(device, []).append(number)
        result = alone
        for devices_small in small.values():
            mine = set(devices_small)
            # A formula with a large member takes its small ones along; the rest go together.
            for key in [k for k, found in formulas.items() if mine.issuperset(found)]:
                del formulas[key]
            taken = {n for found in formulas.values() for n in found}
            formulas[len(formulas)] = [n for n in devices_small if n not in taken]
        for found in formulas.values():
            result.extend(self.within_limits(found, alive))
        return result

    def within_limits(self, numbers: Sequence[int], alive: dict[int, Draft]) -> list[list[int]]:
        """As few launches as the number of arguments allows."""
        result: list[list[int]] = []
        count = 0
        for number in numbers:
            draft = alive[number]
            arguments = self.arguments(draft)
            limit = self.planner(draft.main[0]).target.max_args
            if not result or count + arguments > limit:
                result.append([])
                count = 0
            result[-1].append(number)
            count += arguments
        return result

    def arguments(self, *drafts: Draft) -> int:
        """The buffers that a launch takes, at most."""
        kernels = [k for d in drafts for k in d.kernels]
        return len({s for k in kernels for s in k.verdict.reads} | {c.root for k in kernels for c in k.stored})

    def result(self, drafts: Sequence[Draft]) -> Launch:
        """Some launches as one."""
        stages: list[list[Region]] = []
        scratch: dict[UOp, None] = {}
        stages += self.staged(drafts)
        main: list[Region] = []
        for draft in drafts:
            main.append(Region([self.search.group(k) for k in draft.main], draft.plan and draft.plan.blocks))
            if draft.plan is not None:
                scratch.update(draft.plan.scratch)
        stages.append(main)
        for position in range(max(len(d.tails) for d in drafts)):
            tails = [d.tails[position] for d in drafts if position < len(d.tails)]
            stages.append([Region([self.search.group(k)]) for k in tails])
        return Launch(stages, scratch)

    def staged(self, drafts: Sequence[Draft]) -> list[list[Region]]:
        """The stages before: each kernel as early as what it needs allows."""
        level: dict[object, int] = {}
        stages: list[list[Region]] = []
        for kernel in [k for d in drafts for k in d.staged]:
            mine = max([level[r.source] + 1 for c in kernel.cells for r in c.reads if r.source in level], default=0)
            level.update({c.root: mine for c in kernel.stored})
            while len(stages) <= mine:
                stages.append([])
            stages[mine].append(Region([self.search.group(kernel)]))
        return stages


def formula(kernel: Kernel) -> tuple[object, ...]:
    """The ops of a kernel, whatever its sizes."""
    return tuple([(m.op, m.dtype, len(m.src)) for c in kernel.cells for m in c.members])
