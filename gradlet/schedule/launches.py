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
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from math import prod
from typing import Final, Protocol

from gradlet.base import settings
from gradlet.graph.node import UOp
from gradlet.ops.op import Op
from gradlet.schedule.fuse import MIN_GAIN, NEIGHBOURS, Kernel, Search
from gradlet.schedule.partition import Blocks, Group, Launch, Region, single
from gradlet.schedule.regions import Plan, Planner, Value
from gradlet.schedule.repeats import Pair
from gradlet.schedule.steps import NO_KERNEL, Steps
from gradlet.schedule.ties import TieFinder
from gradlet.target.target import Target

# Kernels of one region, and bodies of one launch before packing.
MAX_BODIES: Final = 16
# A kernel is small, and worth packing with any other, when it takes at most this many launches.
SMALL_LAUNCHES: Final = 3
# A table is small where making it on one core takes at most one part in so many of the launch that reads it.
SMALL_PART: Final = 100
# A tail that could run on all cores takes at most this many launches on one.
TAIL_LAUNCHES: Final = 5


@dataclass
class Draft:
    """A launch in the making.

    Attributes:
        staged: copies of operands that run before.
        main: the kernels of the one region, makers first.
        plan: how the region is cut; None for a single kernel.
        tails: kernels that run on one core after the region, in order.
        price: picoseconds.
        shape: launches of one shape are the same, each around its own layer.
        layer: that of its first kernel.
    """

    main: list[Kernel]
    price: int
    staged: list[Kernel] = field(default_factory=list)
    plan: Plan | None = None
    tails: list[Kernel] = field(default_factory=list)
    shape: int = -1
    layer: int = 0
    alive: bool = True

    @property
    def kernels(self) -> list[Kernel]:
        """All kernels."""
        return [*self.staged, *self.main, *self.tails]


class Listener(Protocol):
    """Wants to know how a partition was decided."""

    def kernels_decided(self, search: Search) -> None:
        """The search over kernels has ended."""

    def launches_decided(self, search: LaunchSearch, launches: Sequence[Launch]) -> None:
        """The search over launches has ended."""


def partition(steps: Steps, target_of: Callable[[str], Target], listener: Listener | None = None) -> list[Launch]:
    """Every step in a launch."""
    level = settings.FUSE.value
    if level == 0:
        return [single(group) for group in unfused(steps)]
    search = Search(steps, target_of)
    search.run()
    if listener is not None:
        listener.kernels_decided(search)
    if level == 1:
        return [single(search.group(k)) for k in search.kernels if k.alive]
    launch_search = LaunchSearch(search)
    launches = launch_search.run()
    if listener is not None:
        listener.launches_decided(launch_search, launches)
    return launches


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
        self.drafts = {n: Draft([k], k.price) for n, k in enumerate(search.kernels) if k.alive}
        self.owner: dict[int, list[int]] = {}  # cell -> drafts that compute it
        self.kernels_of: dict[int, list[Kernel]] = {}
        for number, draft in self.drafts.items():
            for cell in draft.main[0].cells:
                self.owner.setdefault(cell.number, []).append(number)
                self.kernels_of.setdefault(cell.number, []).append(draft.main[0])
        self.ties = TieFinder(self.steps)
        self.planners: dict[str, Planner] = {}
        self.shapes: dict[object, int] = {}
        self.made: dict[Pair, tuple[int, int, Draft | None]] = {}  # gain, layer of the first, what a merge gives
        self.heap: list[tuple[int, int, int, Pair]] = []
        self.beside: dict[int, list[int]] = {}  # by id of the kernel; kernels live as long as the search
        self.formulas: dict[int, tuple[object, ...]] = {}
        for number, draft in self.drafts.items():
            self.register(number, draft)

    def run(self) -> list[Launch]:
        """All moves until none gains."""
        for number in self.drafts:
            for other in self.neighbours(number):
                if number < other:
                    self.propose(number, other)
        while self.heap:
            _, first, second, pair = heapq.heappop(self.heap)
            if self.merge(first, second, pair):
                for other in self.neighbours(first):
                    self.propose(first, other)
        return self.pack()

    # repeated layers
    def register(self, number: int, draft: Draft) -> None:
        """Note what a launch is now, and its shape."""
        base = draft.main[0].layer
        parts = (draft.staged, draft.main, draft.tails)
        key = tuple([tuple([(k.shape, k.layer - base) for k in part]) for part in parts])
        draft.shape, draft.layer = self.shapes.setdefault(key, len(self.shapes)), base
        self.drafts[number] = draft

    def moved(self, draft: Draft, away: int) -> Draft:
        """The same launch some layers on."""
        if away == 0:
            return replace(draft)
        kernel_at = self.search.kernel_at

        def there(kernels: Sequence[Kernel]) -> list[Kernel]:
            return [kernel_at[k.shape, k.layer + away] for k in kernels]

        main = there(draft.main)
        plan = moved_plan(draft.plan, draft.main, main) if draft.plan is not None else None
        return replace(draft, main=main, plan=plan, staged=there(draft.staged), tails=there(draft.tails))

    # prices
    def planner(self, kernel: Kernel) -> Planner:
        """The planner of the device where a kernel runs."""
        device = self.device(kernel)
        found = self.planners.get(device)
        if found is None:
            found = self.planners[device] = Planner(self.search.pricer(device), self.ties)
        return found

    def device(self, kernel: Kernel) -> str:
        """Where a kernel runs."""
        return self.steps.devices[kernel.cells[0].root]

    def region(self, kernels: Sequence[Kernel]) -> Plan | None:
        """These kernels, makers first, as a region, with what others need marked."""
        planner = self.planner(kernels[0])
        shared = planner.shared(kernels)
        return planner.plan(kernels, self.values(kernels), shared) if shared else None

    def values(self, kernels: Sequence[Kernel]) -> dict[UOp, Value]:
        """What some kernels, makers first, hand to one another."""
        values = self.planner(kernels[0]).values(kernels)
        inside = {id(k) for k in kernels}
        for value in values.values():
            users = self.search.users[self.search.home[value.root]]
            others = any(id(k) not in inside for u in users for k in self.kernels_of[u])
            value.stored = others or self.steps.outlives(value.root)
        return values

    def ordered(self, kernels: Sequence[Kernel]) -> list[Kernel]:
        """Makers before users."""
        if len(kernels) == 2:
            first, second = kernels
            turned = not self.ties.of(second).made.isdisjoint(self.ties.of(first).needs)
            return [second, first] if turned else [first, second]
        all_ties = [self.ties.of(kernel) for kernel in kernels]
        makers = {root: position for position, ties in enumerate(all_ties) for root in ties.made}
        made = makers.keys()
        needs = [
            {makers[source] for source in ties.needs & made} - {position} for position, ties in enumerate(all_ties)
        ]
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
        if self.graph.position[first] > self.graph.position[second]:
            first, second = second, first
        a, b = self.drafts[first], self.drafts[second]
        pair = (a.shape, b.shape, b.layer - a.layer)
        found = self.made.get(pair)
        if found is None:
            same = self.device(a.main[0]) == self.device(b.main[0]) and not self.apart(a, b)
            made = self.joined(a, b) if same else None
            found = self.made[pair] = a.price + b.price - made.price if made is not None else 0, a.layer, made
        if self.pays(found[0]):
            heapq.heappush(self.heap, (-found[0], first, second, pair))

    def pays(self, gain: int) -> bool:
        """Whether a merge that gains so many picoseconds is made."""
        return gain >= MIN_GAIN

    def joined(self, a: Draft, b: Draft) -> Draft | None:
        """The cheapest legal way to start two launches, the earlier one first, together."""
        target = self.planner(a.main[0]).target
        if target.scratch_bytes == 0 or len(a.kernels) + len(b.kernels) > MAX_BODIES or self.is_copy(a, b):
            return None
        if self.has_too_many_arguments(a, b) or self.keeps_copy_from_reader(a, b):
            return None
        found = [way for way in self.ways(a, b).values() if way is not None]
        return min(found, key=lambda draft: draft.price, default=None)

    def ways(self, a: Draft, b: Draft) -> dict[str, Draft | None]:
        """Each way to start two launches, the earlier one first, together; None where it is illegal."""
        return {"region": self._region(a, b), "tail": self._tail(a, b), "staging": self._staging(a, b)}

    def keeps_copy_from_reader(self, a: Draft, b: Draft) -> bool:
        """Whether one is a copy of an operand that the other does not read: with its reader it may need no memory."""
        for draft, other in ((a, b), (b, a)):
            alone = len(draft.kernels) == 1 and self.is_staging(draft.main[0])
            if alone and not self.ties.depends(other.kernels, draft.main):
                return True
        return False

    def apart(self, a: Draft, b: Draft) -> bool:
        """Whether one of two launches runs once, and the other one at every call."""
        return bool(self.steps.once) and self.steps.apart(roots(a), roots(b))

    def is_copy(self, *drafts: Draft) -> bool:
        """Whether one of them is a copy between devices, which no kernel does, or a kernel that the caller wrote."""
        return any(d.main[0].cells[0].root.op in NO_KERNEL for d in drafts)

    def _region(self, a: Draft, b: Draft) -> Draft | None:
        """Both mains as one region; if their copies of operands are in the way, with those as a stage before."""
        if a.tails and self.ties.depends(b.main, a.tails):
            return None
        if b.staged and self.ties.depends(b.staged, [*a.main, *a.tails]):
            return None
        if any(self.ties.of(k).products > 1 for k in (*a.main, *b.main)):
            return None  # its rows have blocks of their own
        main, staged = [*a.main, *b.main], [*a.staged, *b.staged]
        ways = [(main, staged)]
        copies = [k for k in main if self.is_staging(k)]
        if copies and len(copies) < len(main) and not self.ties.depends(copies, [k for k in main if k not in copies]):
            ways.append(([k for k in main if k not in copies], [*staged, *copies]))
        made = [self._planned(kernels, before, [*a.tails, *b.tails]) for kernels, before in ways]
        return min([draft for draft in made if draft is not None], key=lambda draft: draft.price, default=None)

    def _planned(self, main: Sequence[Kernel], staged: list[Kernel], tails: list[Kernel]) -> Draft | None:
        """A launch of these kernels, priced."""
        planner = self.planner(main[0])
        target = planner.target
        ordered = self.ordered(main)
        if len(ordered) == 1:
            plan, time = None, ordered[0].price - target.launch_ps
        else:
            plan = self.region(ordered)
            if plan is None:
                return None
            time = plan.time
        price = target.launch_ps + time + sum(self.alone(k) for k in tails)
        price += sum(self.stage_time(k) for k in staged) + (target.barrier_ps if staged else 0)
        return Draft(ordered, price, staged, plan, tails)

    def alone(self, kernel: Kernel) -> int:
        """Picoseconds of a kernel on one core, without a launch."""
        verdict = kernel.verdict
        return self.planner(kernel).pricer.time(verdict.compute, verdict.traffic, 1)

    def stage_time(self, kernel: Kernel) -> int:
        """Picoseconds of a kernel as a stage before: on all cores if it is a copy, on one if it is a small table."""
        if self.is_staging(kernel):
            return kernel.price - self.planner(kernel).target.launch_ps
        return self.alone(kernel)

    def _tail(self, a: Draft, b: Draft) -> Draft | None:
        if b.staged or b.plan is not None or any(self.is_long(k) for k in b.kernels):
            return None
        price = a.price + sum(self.alone(k) for k in b.kernels)
        return Draft(a.main, price, a.staged, a.plan, [*a.tails, *b.kernels])

    def is_long(self, kernel: Kernel) -> bool:
        """Whether other cores would wait for a kernel on one core although they could help."""
        launch = self.planner(kernel).target.launch_ps
        return kernel.verdict.width > 1 and self.alone(kernel) > TAIL_LAUNCHES * launch

    def _staging(self, a: Draft, b: Draft) -> Draft | None:
        if a.plan is not None or a.staged or a.tails or not self.ties.depends(b.main, a.main):
            return None
        kernel = a.main[0]
        target = self.planner(kernel).target
        if not self.is_staging(kernel) and self.alone(kernel) > max(target.launch_ps, b.price // SMALL_PART):
            return None
        price = b.price + self.stage_time(kernel) + (0 if b.staged else target.barrier_ps)
        return Draft(b.main, price, [kernel, *b.staged], b.plan, b.tails)

    def is_staging(self, kernel: Kernel) -> bool:
        """Whether a kernel only copies an operand into another order, or fills memory that is then changed."""
        cell = kernel.cells[0]
        return len(kernel.cells) == 1 and cell.members == [cell.root] and cell.root.op is Op.CONTIGUOUS

    def launch(self, draft: Draft) -> int:
        """The price of starting a launch."""
        return self.planner(draft.main[0]).target.launch_ps

    def merge(self, first: int, second: int, pair: Pair) -> bool:
        """Start two launches together, unless they have changed or a cycle forbids it."""
        a, b = self.drafts[first], self.drafts[second]
        if not (a.alive and b.alive) or (a.shape, b.shape) != pair[:2]:
            return False
        _, layer, made = self.made[pair]
        if made is None or not self.graph.merge(first, second):
            return False
        work = self.steps.work
        work.merges += 1
        work.replayed += a.layer != layer
        b.alive = False
        self.register(first, self.moved(made, a.layer - layer))
        for kernel in b.kernels:
            for cell in kernel.cells:
                owners = self.owner[cell.number]
                self.owner[cell.number] = list(dict.fromkeys([first if o == second else o for o in owners]))
        return True

    def neighbours(self, number: int) -> list[int]:
        """Launches next to one: makers and users, and those that read the same operands."""
        found: dict[int, None] = {}
        for others in (self.graph.before[number], self.graph.after[number]):
            found.update(dict.fromkeys(list(others)[:NEIGHBOURS]))
        for kernel in self.drafts[number].main:
            for near in self.cells_beside(kernel):
                for owner in self.owner.get(near, ()):
                    found[owner] = None
        found.pop(number, None)
        return list(found)

    def cells_beside(self, kernel: Kernel) -> list[int]:
        """The cells next to those of a kernel among the siblings of all that they read."""
        found = self.beside.get(id(kernel))
        if found is None:
            numbers = dict.fromkeys([near for cell in kernel.cells for near in self.search.beside(cell)])
            found = self.beside[id(kernel)] = list(numbers)
        return found

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
        """For every launch how many have to follow one another after it: independent of all others of its level.

        Launches that run once come before all others, as early as what they need allows.
        """
        level: dict[int, int] = {}
        for number in sorted(alive, key=lambda n: -self.graph.position[n]):
            level[number] = max([level[u] + 1 for u in self.graph.after[number]], default=0)
        if self.steps.once:
            first = len(alive)
            for number in sorted(alive, key=lambda n: self.graph.position[n]):
                if self.steps.is_once(roots(alive[number])):
                    before = [level[maker] for maker in self.graph.before[number]]
                    level[number] = min(before, default=3 * first) - 1
        return level

    def bins(self, numbers: Sequence[int], alive: dict[int, Draft]) -> list[list[int]]:
        """Independent launches that start together: those of one formula, and the small ones with any others."""
        alone: list[list[int]] = []
        formulas: dict[object, list[int]] = {}
        small: dict[tuple[str, bool], list[int]] = {}
        for number in numbers:
            draft = alive[number]
            target = self.planner(draft.main[0]).target
            device = (self.device(draft.main[0]), self.steps.is_once(roots(draft)))
            if target.scratch_bytes == 0 or self.is_copy(draft):
                alone.append([number])
                continue
            formulas.setdefault((*device, *[self.formula(k) for k in draft.kernels]), []).append(number)
            if draft.price - target.launch_ps < SMALL_LAUNCHES * target.launch_ps:
                small.setdefault(device, []).append(number)
        result = alone
        for device, devices_small in small.items():
            mine = set(devices_small)
            # A formula with a large member takes its small ones along; the rest go together.
            for key in [k for k, found in formulas.items() if mine.issuperset(found)]:
                del formulas[key]
            taken = {n for found in formulas.values() for n in found}
            formulas[*device] = [n for n in devices_small if n not in taken]
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

    def has_too_many_arguments(self, a: Draft, b: Draft) -> bool:
        """Whether two launches together would take more buffers than their device allows."""
        limit = self.planner(a.main[0]).target.max_args
        all_ties = [self.ties.of(k) for draft in (a, b) for k in draft.kernels]
        most = sum([len(ties.outside) + len(ties.made) for ties in all_ties])  # what they share counted for each
        return most > limit and self.arguments(a, b) > limit

    def arguments(self, *drafts: Draft) -> int:
        """The buffers that a launch takes, at most."""
        found: set[UOp] = set()
        for ties in [self.ties.of(k) for d in drafts for k in d.kernels]:
            found.update(ties.outside)
            found |= ties.made
        return len(found)

    def result(self, drafts: Sequence[Draft]) -> Launch:
        """Some launches as one."""
        stages: list[list[Region]] = []
        scratch: dict[UOp, None] = {}
        stages += self.staged(drafts)
        main: list[Region] = []
        for draft in drafts:
            main.append(
                Region([self.search.group(k) for k in draft.main], None if draft.plan is None else draft.plan.blocks)
            )
            if draft.plan is not None:
                scratch.update(draft.plan.scratch)
        stages.append(main)
        for position in range(max(len(d.tails) for d in drafts)):
            tails = [d.tails[position] for d in drafts if position < len(d.tails)]
            stages.append([Region([self.search.group(k)]) for k in tails])
        return Launch(stages, scratch)

    def staged(self, drafts: Sequence[Draft]) -> list[list[Region]]:
        """The stages before: each kernel as early as what it needs allows."""
        levels: list[tuple[Kernel, int]] = []
        stages: list[list[Region]] = []
        for kernel in [k for d in drafts for k in d.staged]:
            mine = max([level + 1 for other, level in levels if self.ties.depends([kernel], [other])], default=0)
            levels.append((kernel, mine))
            while len(stages) <= mine:
                stages.append([])
            stages[mine].append(Region([self.search.group(kernel)]))
        return stages

    def formula(self, kernel: Kernel) -> tuple[object, ...]:
        """The ops of a kernel, whatever its sizes."""
        found = self.formulas.get(kernel.shape)
        if found is None:
            found = tuple([(m.op, m.dtype, len(m.src)) for c in kernel.cells for m in c.members])
            self.formulas[kernel.shape] = found
        return found


def roots(draft: Draft) -> list[UOp]:
    """The last steps of all cells of a launch."""
    return [cell.root for kernel in draft.kernels for cell in kernel.cells]


def moved_plan(plan: Plan, old: Sequence[Kernel], new: Sequence[Kernel]) -> Plan:
    """A plan for kernels of the same shapes: the loops and steps of the old ones become those of the new ones."""
    atoms: dict[int, int] = {}
    steps: dict[UOp, UOp] = {}
    for before, after in zip(old, new, strict=True):
        for one, other in zip(before.cells, after.cells, strict=True):
            atoms.update(zip(one.loops, other.loops, strict=True))
            steps[one.root] = other.root
    blocks = plan.blocks
    if blocks is not None:
        blocks = Blocks(tuple([cut._replace(atom=atoms[cut.atom]) for cut in blocks.cuts]))
    return replace(plan, blocks=blocks, scratch={steps[step]: None for step in plan.scratch})
