"""Which neighbours were not merged in the end, and why: what the search over partitions tells when somebody asks.

Nothing is recorded while the search runs. When it is done, every pair that it would try is tried once more.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod
from typing import Final, NamedTuple

from gradlet.base.report import human_bytes, human_seconds
from gradlet.graph.node import UOp
from gradlet.ops.op import Op
from gradlet.schedule.cells import MAX_EVALUATIONS, MAX_OPERANDS, MAX_STEPS, Atoms, Cell
from gradlet.schedule.fuse import MIN_GAIN, Kernel, Search
from gradlet.schedule.launches import MAX_BODIES, Draft, LaunchSearch
from gradlet.schedule.partition import Launch
from gradlet.schedule.price import PICO, Verdict, evaluations
from gradlet.schedule.reasons import Reason
from gradlet.schedule.regions import MIN_LANES, Planner, Value, candidates, peak

# A merged kernel that computes so much more than its parts is said to compute again.
AGAIN: Final = 1.5


class Refusal(NamedTuple):
    """One way in which two neighbours could have run together and do not.

    Attributes:
        way: `kernel`, or of a launch `region`, `tail`, `staging`, `launch` (none of these).
        reason: the rule.
        detail: its figures, in words.
        cost: picoseconds that it would cost more; None where it is illegal.
    """

    way: str
    reason: Reason
    detail: str = ""
    cost: int | None = None

    @property
    def words(self) -> str:
        """The whole reason."""
        if self.reason.value == self.reason.kind:
            return f"{self.reason.kind}: {self.detail}"
        return f"{self.reason.value} ({self.detail})" if self.detail else self.reason.value


class Refused(NamedTuple):
    """Two neighbours.

    Attributes:
        first: a step that the first one stores.
        second: a step that the second one stores.
        related: `data` where the second needs the first, `operand` where both read the same.
        refusals: every way that was tried, with its reason.
    """

    first: UOp
    second: UOp
    related: str
    refusals: tuple[Refusal, ...]


class Decisions:
    """What was decided for one schedule. `launches.partition` calls the two methods when it is done.

    Attributes:
        kernels: pairs of kernels that are not one kernel.
        launches: pairs of launches that are not one launch.
        prices: picoseconds of every launch, by each step that it stores.
        alone: picoseconds of every kernel as a launch of its own, by each step that it stores.
        contractions: the reduces that are matrix products or convolutions.
        priced: kernels and regions that were priced until the end of the search.
    """

    def __init__(self) -> None:
        self.kernels: list[Refused] = []
        self.launches: list[Refused] = []
        self.prices: dict[UOp, int] = {}
        self.alone: dict[UOp, int] = {}
        self.contractions: set[UOp] = set()
        self.priced = 0
        self.merges = 0

    def kernels_decided(self, search: Search) -> None:
        """The search over kernels has ended."""
        self._count(search)
        self.contractions = {c.reduce for c in search.cells if c.contraction and c.reduce is not None}
        for kernel in search.kernels:
            if kernel.alive:
                self.alone[name_of(kernel)] = self.prices[name_of(kernel)] = kernel.price
        numbers = [n for n, kernel in enumerate(search.kernels) if kernel.alive]
        self.kernels = pairs(
            numbers, search.neighbours, lambda n: search.kernels[n].alive, search.graph.after,
            lambda n: name_of(search.kernels[n]), lambda a, b: (why_two_kernels(search, a, b),),
        )  # fmt: skip

    def launches_decided(self, search: LaunchSearch, launches: Sequence[Launch]) -> None:
        """The search over launches has ended, and some of them were packed together."""
        self._count(search.search)
        home = {output: n for n, launch in enumerate(launches) for body in launch.bodies for output in body.outputs}
        drafts = {n: draft for n, draft in search.drafts.items() if draft.alive}
        bins: dict[int, list[Draft]] = {}
        for draft in drafts.values():
            bins.setdefault(home[name_of(draft.main[0])], []).append(draft)
        self.prices = {}
        for packed in bins.values():
            price = sum(d.price for d in packed) - sum(search.launch(d) for d in packed[1:])
            self.prices.update({name_of(k): price for d in packed for k in d.kernels})

        def ways(first: int, second: int) -> tuple[Refusal, ...]:
            names = [name_of(drafts[n].main[0]) for n in (first, second)]
            return why_two_launches(search, first, second) if home[names[0]] != home[names[1]] else ()

        self.launches = pairs(
            list(drafts), search.neighbours, drafts.__contains__, search.graph.after,
            lambda n: name_of(drafts[n].main[0]), ways,
        )  # fmt: skip

    def _count(self, search: Search) -> None:
        self.priced, self.merges = search.steps.work.prices, search.steps.work.merges


def name_of(kernel: Kernel) -> UOp:
    """The first step that a kernel stores: no other kernel stores it."""
    return kernel.stored[0].root if kernel.stored else kernel.cells[-1].root


def pairs(
    numbers: Sequence[int], neighbours: Callable[[int], Sequence[int]], alive: Callable[[int], bool],
    after: Sequence[dict[int, None]], name: Callable[[int], UOp], why: Callable[[int, int], tuple[Refusal, ...]],
) -> list[Refused]:  # fmt: skip
    """Every pair of neighbours once, makers first, with the reasons that keep them apart."""
    found: list[Refused] = []
    seen: set[tuple[int, int]] = set()
    for number in numbers:
        for other in neighbours(number):
            first, second = (other, number) if number in after[other] else (number, other)
            if other == number or not alive(other) or (first, second) in seen or (second, first) in seen:
                continue
            seen.add((first, second))
            refusals = why(first, second)
            if refusals:
                related = "data" if second in after[first] else "operand"
                found.append(Refused(name(first), name(second), related, refusals))
    return found


# kernels
def why_two_kernels(search: Search, first: int, second: int) -> Refusal:
    """Why two kernels are not one."""
    a, b = search.kernels[first], search.kernels[second]
    devices = [search.steps.devices[k.cells[0].root] for k in (a, b)]
    if devices[0] != devices[1]:
        return Refusal("kernel", Reason.DEVICES, " and ".join(devices))
    if search.apart(a, b):
        return Refusal("kernel", Reason.ONCE)
    cells, stored, verdict = search.joined([*a.cells, *b.cells])
    if verdict.reason is not None:
        return Refusal("kernel", verdict.reason, kernel_figures(search, verdict.reason, cells, stored))
    cost = verdict.price - a.price - b.price
    if cost <= -MIN_GAIN:
        return Refusal("kernel", late_or_cycle(search.graph.can_merge(first, second)), gain_words(cost), cost)
    cause = price_cause(verdict, a.verdict, b.verdict, cells, search.pricer(devices[0]).target.cores)
    return Refusal("kernel", Reason.PRICE, ", ".join([cost_words(cost), *cause]), cost)


def late_or_cycle(can_merge: bool) -> Reason:
    """Why a merge that pays was not made."""
    return Reason.LATE if can_merge else Reason.CYCLE


def cost_words(cost: int) -> str:
    """What a merge would cost more, in words."""
    return "gains nothing" if abs(cost) < MIN_GAIN else f"+{human_seconds(cost / PICO)}"


def gain_words(cost: int) -> str:
    """What a merge would gain, in words."""
    return f"would gain {human_seconds(-cost / PICO)}" if cost < 0 else f"would cost only {human_seconds(cost / PICO)}"


def kernel_figures(search: Search, reason: Reason, cells: Sequence[Cell], stored: Sequence[Cell]) -> str:
    """The figures of a limit that one kernel would exceed."""
    if reason is Reason.STEPS:
        return f"{sum(len(c.members) for c in cells)} of {MAX_STEPS}"
    if reason is Reason.OPERANDS:
        inside = {c.root for c in cells}
        count = len(dict.fromkeys([r.source for c in cells for r in c.reads if r.source not in inside])) + len(stored)
        limit = min(MAX_OPERANDS, search.target_of(search.steps.devices[cells[0].root]).max_args)
        return f"{count} of {limit}"
    if reason is Reason.CODE:
        return f"{evaluations(cells)} steps or more, {MAX_EVALUATIONS} at most"
    return ""


def price_cause(made: Verdict, a: Verdict, b: Verdict, cells: Sequence[Cell], cores: int) -> list[str]:
    """What makes a merged kernel dearer than its parts: work done again, bytes read again, cores without work."""
    causes: list[str] = []
    before = max(1, a.compute + b.compute)
    if made.compute >= AGAIN * before:
        causes.append(f"computes {made.compute / before:.3g} times as much")
    if made.traffic > a.traffic + b.traffic:
        causes.append(f"reads {human_bytes(made.traffic - a.traffic - b.traffic)} again")
    sizes: dict[int, int] = {}
    for cell in cells:
        sizes.update(cell.loops)
    used, had = (min(cores, width(v.outer, sizes)) for v in (made, max(a, b, key=lambda v: width(v.outer, sizes))))
    if used < had:
        causes.append(f"keeps {used} of {had} cores busy")
    return causes


def width(atoms: Atoms, sizes: dict[int, int]) -> int:
    """Iterations of some loops."""
    return prod([sizes[a] for a in atoms])


# launches
def why_two_launches(search: LaunchSearch, first: int, second: int) -> tuple[Refusal, ...]:
    """Why two launches are not one, for every way in which they could be."""
    if search.graph.position[first] > search.graph.position[second]:
        first, second = second, first
    a, b = search.drafts[first], search.drafts[second]
    whole = why_no_launch(search, a, b)
    if whole is not None:
        return (whole,)
    illegal = {"region": why_no_region, "tail": why_no_tail, "staging": why_no_staging}
    found: list[Refusal] = []
    for way, made in search.ways(a, b).items():
        if made is None:
            found.append(illegal[way](search, a, b))
            continue
        cost = made.price - a.price - b.price
        if search.pays(-cost):
            reason = late_or_cycle(search.graph.can_merge(first, second))
            found.append(Refusal(way, reason, gain_words(cost), cost))
        else:
            found.append(Refusal(way, Reason.PRICE, ", ".join([cost_words(cost), *launch_cause(way, made)]), cost))
    return tuple(found)


def launch_cause(way: str, made: Draft) -> list[str]:
    """How a merged launch would run."""
    if way == "tail":
        return ["on one core"]
    if way == "region" and made.plan is not None and made.plan.blocks is not None:
        return [f"in {made.plan.blocks.count} blocks"]
    return []


def why_no_launch(search: LaunchSearch, a: Draft, b: Draft) -> Refusal | None:
    """Why two launches could not be one in any way, or None."""
    devices = [search.device(d.main[0]) for d in (a, b)]
    if devices[0] != devices[1]:
        return Refusal("launch", Reason.DEVICES, " and ".join(devices))
    if search.apart(a, b):
        return Refusal("launch", Reason.ONCE)
    target = search.planner(a.main[0]).target
    if target.scratch_bytes == 0:
        return Refusal("launch", Reason.ONE_KERNEL)
    if search.is_copy(a, b):
        return Refusal("launch", Reason.COPY)
    bodies = len(a.kernels) + len(b.kernels)
    if bodies > MAX_BODIES:
        return Refusal("launch", Reason.BODIES, f"{bodies} of {MAX_BODIES}")
    arguments = search.arguments(a, b)
    if arguments > target.max_args:
        return Refusal("launch", Reason.ARGUMENTS, f"{arguments} of {target.max_args}")
    return None


def why_no_tail(search: LaunchSearch, a: Draft, b: Draft) -> Refusal:
    """Why the second launch cannot be a tail of the first."""
    long = not b.staged and b.plan is None
    return Refusal("tail", Reason.LONG_TAIL if long else Reason.TAIL_OF_MANY)


def why_no_staging(search: LaunchSearch, a: Draft, b: Draft) -> Refusal:
    """Why the first launch cannot be a stage before the second."""
    if len(a.kernels) > 1:
        return Refusal("staging", Reason.NOT_FIRST)
    if not search.ties.depends(b.main, a.main):
        return Refusal("staging", Reason.NOT_READ)
    return Refusal("staging", Reason.NO_COPY)


def why_no_region(search: LaunchSearch, a: Draft, b: Draft) -> Refusal:
    """Why the kernels of two launches cannot be one region."""
    if a.tails and search.ties.depends(b.main, a.tails):
        return Refusal("region", Reason.AFTER_TAIL)
    if b.staged and search.ties.depends(b.staged, [*a.main, *a.tails]):
        return Refusal("region", Reason.STAGED_AFTER)
    kernels = search.ordered([*a.main, *b.main])
    return why_no_blocks(search.planner(kernels[0]), kernels, search.values(kernels))


def why_no_blocks(planner: Planner, kernels: Sequence[Kernel], values: dict[UOp, Value]) -> Refusal:
    """Why kernels, makers first, cannot run block by block."""
    shared = planner.shared(kernels)
    if shared:
        loops = [(a, size) for a, size in planner.nesting(kernels).items() if a in shared and size > 1]
        lanes = planner.lanes(kernels)
        scratch = peak([v for v in values.values() if not v.stored], len(kernels))
        cuts = [
            cuts
            for cuts in candidates(loops, planner.enough_blocks(scratch))
            if not any(cut.atom in lanes and cut.inner < MIN_LANES for cut in cuts)
        ]
        short = Refusal("region", Reason.NO_CUT, axes_words(axis_sizes(planner, kernels, shared)))
        if not cuts:
            return short
        least = min(scratch // prod(cut.outer for cut in way) for way in cuts)
        if least <= planner.target.scratch_bytes:
            return short
        limit = human_bytes(planner.target.scratch_bytes)
        return Refusal("region", Reason.SCRATCH, f"{human_bytes(least)} of {limit}")
    common = planner.parallel(kernels)
    if not common:
        return Refusal("region", Reason.NO_COMMON_LOOP)
    if planner.overwrites_unread(kernels):
        return Refusal("region", Reason.OLD_VALUES)
    lost = common - planner.in_step(kernels, common)
    return Refusal("region", Reason.OTHER_BLOCK, axes_words(axis_sizes(planner, kernels, lost)))


def axis_sizes(planner: Planner, kernels: Sequence[Kernel], loops: Atoms) -> list[int]:
    """Some loops as the axes of the largest output that has all of them; each on its own where none has."""
    outputs = sorted([c for k in kernels for c in k.stored], key=lambda c: -c.out_bytes)
    for cell in outputs:
        dims = planner.steps.axes.dims(cell.root.src[1] if cell.root.op is Op.WRITE else cell.root)
        parts = [[size for atom, size in axis if atom in loops] for axis in dims]
        if sum(len(part) for part in parts) == len(loops):
            return [prod(part) for part in parts if part]
    sizes = {atom: size for cell in outputs for atom, size in cell.loops.items()}
    return [sizes[atom] for atom in planner.nesting(kernels) if atom in loops]


def axes_words(sizes: Sequence[int]) -> str:
    """Some axes by their sizes."""
    *most, last = [str(size) for size in sizes]
    return f"axes of {', '.join(most)} and {last}" if most else f"axis of {last}"
