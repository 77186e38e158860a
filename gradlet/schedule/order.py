"""Order of the launches: dependences, and a topological order that holds little memory at once."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Collection, Iterable, Sequence
from math import prod
from typing import Final, NamedTuple, Protocol, TypeVar

from gradlet.base.errors import CompilerError
from gradlet.graph.node import UOp
from gradlet.ops.op import Op
from gradlet.schedule.steps import Steps

# Beyond so many launches only one order is made: each takes about as long as sorting them.
MOST_COMPARED: Final = 5000


class Runnable(Protocol):
    """What runs at once: a launch, or one of its bodies."""

    @property
    def members(self) -> Sequence[UOp]:
        """The steps computed here."""

    @property
    def outputs(self) -> Sequence[UOp]:
        """The steps that are stored in memory."""


RunnableT = TypeVar("RunnableT", bound=Runnable)


class Job(NamedTuple):
    """A launch, as far as its place in the order goes.

    Attributes:
        needs: the jobs that have to run before it.
        touches: numbers of the pieces of memory it reads or writes.
        is_copy: whether it moves values between devices.
    """

    needs: Sequence[int]
    touches: Sequence[int]
    is_copy: bool = False


class Jobs(NamedTuple):
    """All launches of a schedule.

    Attributes:
        jobs: in structural order.
        sizes: bytes of every piece of memory that comes into being here.
        kept: the pieces that are still needed when all is done.
    """

    jobs: Sequence[Job]
    sizes: Sequence[int]
    kept: Collection[int]


def dependences(groups: Sequence[Runnable], steps: Steps) -> list[list[int]]:
    """For every launch those that have to run before it: makers of what it reads, readers of what it overwrites."""
    maker = {output: number for number, group in enumerate(groups) for output in group.outputs}
    holders: dict[UOp, list[int]] = {}
    for number, group in enumerate(groups):
        for member in group.members:
            holders.setdefault(member, []).append(number)
    result: list[list[int]] = []
    for number, group in enumerate(groups):
        needs: dict[int, None] = {}
        for member in group.members:
            for _, source in steps.reads[member]:
                made = maker.get(source)
                if made is not None:
                    needs[made] = None
            version = steps.versions.get(member)
            if version is not None and version in maker:
                needs[maker[version]] = None
            for reader in steps.before.get(member, ()):
                needs.update(dict.fromkeys(holders.get(reader, ())))
        needs.pop(number, None)
        result.append(list(needs))
    return result


def execution_order(groups: Sequence[RunnableT], steps: Steps, results: Iterable[UOp] = ()) -> list[RunnableT]:
    """A topological order that holds few bytes at once.

    Args:
        groups: the launches.
        steps: what they are made of.
        results: stored steps whose memory outlives the schedule.

    Raises:
        CompilerError: the launches wait for each other.
    """
    return [groups[number] for number in best_order(jobs_of(groups, steps, results))]


def jobs_of(groups: Sequence[Runnable], steps: Steps, results: Iterable[UOp]) -> Jobs:
    """The launches with what each waits for and the memory it touches; memory from before them costs nothing."""
    pieces: dict[UOp, int] = {}
    sizes: list[int] = []
    for group in groups:
        for output in group.outputs:
            bottom = _memory_of(output, steps)
            if bottom.op is not Op.BUFFER and bottom not in pieces:
                pieces[bottom] = len(sizes)
                sizes.append(prod(bottom.shape) * bottom.dtype.itemsize)
    jobs: list[Job] = []
    for group, needs in zip(groups, dependences(groups, steps), strict=True):
        stored = [_memory_of(o, steps) for o in group.outputs]
        read = [_memory_of(source, steps) for member in group.members for _, source in steps.reads[member]]
        touched = dict.fromkeys([pieces[m] for m in (*stored, *read) if m in pieces])
        jobs.append(Job(needs, list(touched), any(o.op is Op.COPY for o in group.outputs)))
    kept = {pieces[m] for m in (_memory_of(r, steps) for r in results) if m in pieces}
    return Jobs(jobs, sizes, kept)


def _memory_of(step: UOp, steps: Steps) -> UOp:
    """The step, or BUFFER, whose memory holds this step: in-place steps have that of what they overwrite."""
    while (version := steps.effects.versions.get(step)) is not None:
        step = version
    return step


def best_order(all_jobs: Jobs) -> list[int]:
    """Of several orders the one that holds fewest bytes at its worst moment, then on average.

    Raises:
        CompilerError: the jobs wait for each other.
    """
    count = len(all_jobs.jobs)
    best = free_first(all_jobs)
    if count <= 2 or count > MOST_COMPARED:
        return best
    least = held_bytes(all_jobs, best)
    others: tuple[Callable[[Jobs], list[int]], ...] = (depth_first, free_first_backwards)
    for make in others:
        order = make(all_jobs)
        held = held_bytes(all_jobs, order)
        if held < least:
            best, least = order, held
    return best


def held_bytes(all_jobs: Jobs, order: Sequence[int]) -> tuple[int, int]:
    """Most bytes that live at once in this order, and the sum over all its moments."""
    jobs, sizes, kept = all_jobs
    first: dict[int, int] = {}
    last: dict[int, int] = {}
    for position, number in enumerate(order):
        for piece in jobs[number].touches:
            first.setdefault(piece, position)
            last[piece] = position
    change = [0] * (len(order) + 1)
    for piece, position in first.items():
        change[position] += sizes[piece]
        if piece not in kept:
            change[last[piece] + 1] -= sizes[piece]
    live = most = total = 0
    for amount in change[:-1]:
        live += amount
        most = max(most, live)
        total += live
    return most, total


def free_first(all_jobs: Jobs) -> list[int]:
    """List scheduling: of the jobs that could run, copies first, then the one that frees most bytes.

    Ties go to the job that most others wait for, one after another, then to the first in structural order.

    Raises:
        CompilerError: the jobs wait for each other.
    """
    jobs, sizes, kept = all_jobs
    return _list_schedule([job.needs for job in jobs], jobs, sizes, started=(), endless=kept)


def free_first_backwards(all_jobs: Jobs) -> list[int]:
    """The same from the end: what runs last is chosen first. Backwards, memory begins at its last use.

    Raises:
        CompilerError: the jobs wait for each other.
    """
    jobs, sizes, kept = all_jobs
    return _list_schedule(_users([job.needs for job in jobs]), jobs, sizes, started=kept, endless=())[::-1]


def _list_schedule(
    needs: Sequence[Sequence[int]], jobs: Sequence[Job], sizes: Sequence[int], started: Collection[int],
    endless: Collection[int],
) -> list[int]:  # fmt: skip
    """List scheduling over `needs`; pieces of memory in `started` live already, those in `endless` are never freed."""
    users = _users(needs)
    waiting = [len(before) for before in needs]
    depth = _depths(needs, users)
    live = [piece in started for piece in range(len(sizes))]
    touching: list[list[int]] = [[] for _ in sizes]
    for number, job in enumerate(jobs):
        for piece in job.touches:
            touching[piece].append(number)
    left = [len(numbers) for numbers in touching]

    def rank(number: int) -> tuple[bool, int, int, int]:
        """Least first: bytes taken less bytes freed if this job ran now."""
        job = jobs[number]
        net = 0
        for piece in job.touches:
            if not live[piece]:
                net += sizes[piece]
            if left[piece] == 1 and piece not in endless:
                net -= sizes[piece]
        return not job.is_copy, net, -depth[number], number

    done = [False] * len(jobs)
    ready = [rank(number) for number in range(len(jobs)) if not waiting[number]]
    heapq.heapify(ready)
    result: list[int] = []
    while ready:
        number = heapq.heappop(ready)[-1]
        if done[number]:
            continue
        done[number] = True
        result.append(number)
        # A rank only falls: whoever shares memory with this job is looked at again.
        better: dict[int, None] = {}
        for piece in jobs[number].touches:
            left[piece] -= 1
            if left[piece] == 1 or not live[piece]:
                better.update(dict.fromkeys(touching[piece]))
            live[piece] = True
        for user in users[number]:
            waiting[user] -= 1
            if not waiting[user]:
                better[user] = None
        for other in better:
            if not waiting[other] and not done[other]:
                heapq.heappush(ready, rank(other))
    if len(result) != len(jobs):
        raise CompilerError("schedule: kernels wait for each other; please report this")
    return result


def _users(needs: Sequence[Sequence[int]]) -> list[list[int]]:
    users: list[list[int]] = [[] for _ in needs]
    for number, before in enumerate(needs):
        for other in before:
            users[other].append(number)
    return users


def _topological(needs: Sequence[Sequence[int]], users: Sequence[Sequence[int]]) -> list[int]:
    """A topological order; what waits in a circle is left out."""
    waiting = [len(before) for before in needs]
    order = [number for number, count in enumerate(waiting) if not count]
    for number in order:  # grows while it is walked
        for user in users[number]:
            waiting[user] -= 1
            if not waiting[user]:
                order.append(user)
    return order


def _depths(needs: Sequence[Sequence[int]], users: Sequence[Sequence[int]]) -> list[int]:
    """Jobs on the longest chain that begins with each job."""
    depth = [1] * len(needs)
    for number in reversed(_topological(needs, users)):
        for before in needs[number]:
            depth[before] = max(depth[before], depth[number] + 1)
    return depth


def depth_first(all_jobs: Jobs) -> list[int]:
    """Every job right after what it needs; of these, the one that needs most room beyond what it leaves goes first.

    For trees this is the order with the lowest peak. `all_jobs` must have no circles.
    """
    jobs, sizes, _ = all_jobs
    needs = [job.needs for job in jobs]
    users = _users(needs)
    maker: dict[int, int] = {}
    made = [0] * len(jobs)
    room = [0] * len(jobs)
    inner: list[list[int]] = [[] for _ in jobs]
    for number in _topological(needs, users):
        for piece in jobs[number].touches:
            if maker.setdefault(piece, number) == number:
                made[number] += sizes[piece]
        inner[number] = sorted(needs[number], key=lambda n: (made[n] - room[n], n))
        held = most = 0
        for other in inner[number]:
            most = max(most, held + room[other])
            held += made[other]
        room[number] = max(most, held + made[number])
    result: list[int] = []
    seen = [False] * len(jobs)
    for last in (number for number in range(len(jobs)) if not users[number]):
        pending = [(last, False)]
        while pending:
            number, is_ready = pending.pop()
            if is_ready:
                result.append(number)
            elif not seen[number]:
                seen[number] = True
                pending.append((number, True))
                pending.extend([(other, False) for other in reversed(inner[number]) if not seen[other]])
    return result
