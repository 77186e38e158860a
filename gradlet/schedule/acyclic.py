"""A dynamic topological order: merging two kernels looks only at what lies between them."""

from __future__ import annotations

from collections.abc import Iterable

from gradlet.base.errors import CompilerError

# A merge that would have to look at more kernels than this is refused.
LIMIT = 1024


class Acyclic:
    """A directed graph of numbered kernels that stays acyclic while they merge."""

    def __init__(self, count: int, edges: Iterable[tuple[int, int]]) -> None:
        """Kernels 0 .. count-1; edges (before, after).

        Raises:
            CompilerError: they form a cycle.
        """
        self.after: list[dict[int, None]] = [{} for _ in range(count)]
        self.before: list[dict[int, None]] = [{} for _ in range(count)]
        for first, second in edges:
            if first != second:
                self.after[first][second] = None
                self.before[second][first] = None
        self.position = [0] * count
        waiting = [len(before) for before in self.before]
        ready = [n for n in range(count) if not waiting[n]]
        for place, node in enumerate(ready):
            self.position[node] = place
            for following in self.after[node]:
                waiting[following] -= 1
                if not waiting[following]:
                    ready.append(following)
        if len(ready) != count:
            raise CompilerError("schedule: an in-place write and its readers wait for each other; please report this")

    def merge(self, first: int, second: int) -> bool:
        """Merge kernel `second` into `first`, unless that would close a cycle (or is too much work to find out)."""
        low, high = self._in_order(first, second)
        between = self._between(low, high)
        if between is None:
            return False
        self._reorder(low, high, *between, first)
        self._join(first, second)
        return True

    def can_merge(self, first: int, second: int) -> bool:
        """Whether `merge` would merge them."""
        return self._between(*self._in_order(first, second)) is not None

    def between(self, first: int, second: int, most: int) -> list[int] | None:
        """Kernels that need one of the two and that the other one needs, in order; None if there are more than `most`.

        What the upper one needs and what needs the lower one is looked at in turn, until one of the two is complete.
        """
        low, high = self._in_order(first, second)
        position, after, before = self.position, self.after, self.before
        bottom, top = position[low], position[high]
        upward = [n for n in after[low] if position[n] < top]
        downward = [n for n in before[high] if position[n] > bottom]
        above, below = set(upward), set(downward)
        both = len(above & below)
        done = 0
        while done < len(upward) and done < len(downward):
            if both > most or done > LIMIT // 2:
                return None
            for following in after[upward[done]]:
                if following not in above and position[following] < top:
                    above.add(following)
                    upward.append(following)
                    both += following in below
            for needed in before[downward[done]]:
                if needed not in below and position[needed] > bottom:
                    below.add(needed)
                    downward.append(needed)
                    both += needed in above
            done += 1
        found: dict[int, None] = {}
        whole = done == len(upward)
        edges, end = (after, high) if whole else (before, low)
        for node in sorted(upward if whole else downward, key=position.__getitem__, reverse=whole):
            if end in edges[node] or not found.keys().isdisjoint(edges[node]):
                found[node] = None
                if len(found) > most:
                    return None
        return sorted(found, key=position.__getitem__)

    def _in_order(self, first: int, second: int) -> tuple[int, int]:
        return (first, second) if self.position[first] < self.position[second] else (second, first)

    def _between(self, low: int, high: int) -> tuple[list[int], list[int]] | None:
        """What lies between and needs the lower one, and what the upper one needs; None for a cycle."""
        forward = self._reach(low, high, self.after, self.position[high], True)
        if forward is None:
            return None
        backward = self._reach(high, low, self.before, self.position[low], False)
        return None if backward is None else (forward, backward)

    def hand_down(self, node: int) -> None:
        """Remove a kernel whose users do its work themselves: what it waited for, they wait for."""
        for user in self.after[node]:
            del self.before[user][node]
            for maker in self.before[node]:
                self.after[maker][user] = None
                self.before[user][maker] = None
        for maker in self.before[node]:
            del self.after[maker][node]
        self.after[node] = {}
        self.before[node] = {}

    def _reach(self, start: int, goal: int, edges: list[dict[int, None]], limit: int, upward: bool) -> list[int] | None:
        """Kernels strictly between that `start` reaches; None when it reaches `goal` through one of them."""
        position = self.position
        found = [n for n in edges[start] if n != goal and (position[n] < limit if upward else position[n] > limit)]
        seen = set(found)
        for node in found:
            for following in edges[node]:
                if following == goal:
                    return None
                if following not in seen and (position[following] < limit if upward else position[following] > limit):
                    seen.add(following)
                    found.append(following)
            if len(found) > LIMIT:
                return None
        return found

    def _reorder(self, low: int, high: int, forward: list[int], backward: list[int], merged: int) -> None:
        """What the upper one needs, then the merged kernel, then what needs the lower one, in the places they had."""
        position = self.position
        slots = sorted([position[n] for n in (low, high, *forward, *backward)])
        forward.sort(key=position.__getitem__)
        backward.sort(key=position.__getitem__)
        for node, slot in zip([*backward, merged, *forward], slots):
            position[node] = slot

    def _join(self, first: int, second: int) -> None:
        for edges, back in ((self.after, self.before), (self.before, self.after)):
            for other in edges[second]:
                del back[other][second]
                if other != first:
                    edges[first][other] = None
                    back[other][first] = None
            edges[second] = {}
        self.after[first].pop(first, None)
        self.before[first].pop(first, None)
        self.after[first].pop(second, None)
        self.before[first].pop(second, None)
