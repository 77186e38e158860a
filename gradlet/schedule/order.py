"""Order of the kernels: dependences, and a topological order that frees memory early."""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from math import prod

from gradlet.base.errors import CompilerError
from gradlet.graph.node import UOp
from gradlet.schedule.partition import Group
from gradlet.schedule.steps import Steps


def dependences(groups: Sequence[Group], steps: Steps) -> list[list[int]]:
    """For every kernel those that have to run before it: makers of what it reads, readers of what it overwrites."""
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


def execution_order(groups: Sequence[Group], steps: Steps) -> list[Group]:
    """A topological order; of the kernels that could run, the one that frees most bytes comes first.

    Raises:
        CompilerError: the kernels wait for each other.
    """
    needs = dependences(groups, steps)
    users: list[list[int]] = [[] for _ in groups]
    waiting = [len(before) for before in needs]
    for number, before in enumerate(needs):
        for other in before:
            users[other].append(number)
    bytes_of = [sum(prod(o.shape) * o.dtype.itemsize for o in group.outputs) for group in groups]
    readers_left = [len(u) for u in users]

    def priority(number: int) -> int:
        """Bytes allocated less bytes freed if this kernel ran now."""
        freed = sum(bytes_of[m] for m in needs[number] if readers_left[m] == 1)
        return bytes_of[number] - freed

    ready = [(priority(n), n) for n in range(len(groups)) if not waiting[n]]
    heapq.heapify(ready)
    result: list[Group] = []
    while ready:
        known, number = heapq.heappop(ready)
        now = priority(number)
        if now < known:  # more would be freed than when it became ready: look again
            heapq.heappush(ready, (now, number))
            continue
        result.append(groups[number])
        for maker in needs[number]:
            readers_left[maker] -= 1
        for user in users[number]:
            waiting[user] -= 1
            if not waiting[user]:
                heapq.heappush(ready, (priority(user), user))
    if len(result) != len(groups):
        raise CompilerError("schedule: kernels wait for each other; please report this")
    return result
