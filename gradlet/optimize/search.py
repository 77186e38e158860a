"""Beam search for the schedule of one kernel: it proposes opts, and who calls it says what they cost and measures them.

Every round takes the best schedules so far, changes each in every way that `moves` knows, drops what is refused or was
seen before, asks for estimates, and has the most promising ones measured. It begins with the plain loops and with the
heuristic's choice. In the end the best ones are measured again side by side with the heuristic's, so that noise picks
no winner and the result is never slower.

>>> search(kernel, target, 4, tools).opts  # doctest: +SKIP
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple, Protocol

from gradlet.graph.node import UOp
from gradlet.ops.op import KernelArg
from gradlet.optimize import heuristic, lanemoves, moves
from gradlet.optimize.actions.language import KEPT
from gradlet.optimize.analysis import KernelFacts
from gradlet.optimize.moves import Opts, Site
from gradlet.target.target import Target

# Raise when what the search tries, or how it decides, changes: what was found before is then searched anew.
VERSION: Final = 3
MAX_ROUNDS: Final = 12
# Plain loops that are estimated to take this many times as long as the heuristic's choice are not run, only changed.
START_FACTOR: Final = 8.0
# A candidate whose estimate is this many times that of the best one measured is not compiled.
PRUNE_FACTOR: Final = 2.0
MEASURED_A_ROUND: Final = 12  # for each schedule that is kept
# Longer bodies take long to lower and to compile, and are rarely faster; ones like the heuristic's are always tried.
MAX_INSTRUCTIONS: Final = 800
MORE_INSTRUCTIONS: Final = 1.5
FINALISTS: Final = 4
# A schedule wins by at least this much, else the heuristic's stays: closer ones cannot be told apart.
MARGIN: Final = 0.02
# A round that improves the best time by less than this is the last but one.
PROGRESS: Final = 0.01


class Outcome(NamedTuple):
    """What measuring a candidate gave: seconds, infinite where it did not run, and then the reason in words."""

    seconds: float
    problem: str = ""


@dataclass
class Counts:
    """What became of all that was proposed.

    Attributes:
        proposed: tuples of opts.
        refused: not possible for this kernel.
        repeated: give a kernel that another tuple gave already.
        large: too many instructions.
        pruned: the estimate was too bad.
        later: not among the best estimates of their round.
        measured: run and timed.
        failed: did not compile, crashed, took too long or gave other values.
    """

    proposed: int = 0
    refused: int = 0
    repeated: int = 0
    large: int = 0
    pruned: int = 0
    later: int = 0
    measured: int = 0
    failed: int = 0


@dataclass
class State:
    """A search, as far as it got: enough to go on with it.

    Attributes:
        measured: every candidate that was measured.
        expanded: the candidates whose neighbours were measured.
        rounds: finished rounds.
        idle: how many of the last rounds improved little.
        done: nothing is left to do but to use `best`.
        best: the choice of the last comparison.
        seconds: of `best` and of the heuristic's choice, when they were compared.
    """

    measured: dict[Opts, Outcome] = field(default_factory=dict)
    expanded: set[Opts] = field(default_factory=set)
    rounds: int = 0
    idle: int = 0
    done: bool = False
    best: Opts | None = None
    seconds: tuple[float, float] = (math.inf, math.inf)
    counts: Counts = field(default_factory=Counts)


class Tools(Protocol):
    """What a search asks of its caller, who has a machine."""

    def estimate(self, candidates: Sequence[Opts]) -> list[float]:
        """The expected seconds of each, infinite where it cannot be lowered."""

    def measure(self, candidates: Sequence[Opts]) -> list[Outcome]:
        """The seconds of each."""

    def compare(self, candidates: Sequence[Opts]) -> list[float]:
        """The seconds of each, measured in turns."""

    def keep(self, state: State) -> None:
        """A round has ended: what can be stored so that another search goes on from there."""

    def enough(self) -> bool:
        """Whether to stop before the next round."""


class Found(NamedTuple):
    """The result of a search and its seconds; `usual` is the heuristic's choice and `usual_seconds` what it takes."""

    opts: Opts
    seconds: float
    usual: Opts
    usual_seconds: float
    state: State


def search(
    kernel: UOp, target: Target, width: int, tools: Tools, parallel: bool = True, state: State | None = None
) -> Found:
    """Search the schedule of a kernel.

    Args:
        kernel: a SINK of STOREs, as it is when its opts are applied.
        target: the machine.
        width: schedules kept from round to round.
        tools: estimates and measures.
        parallel: whether threads may share a range of it.
        state: a search that was interrupted.
    """
    return _Search(kernel, target, width, tools, parallel, state or State()).run()


class _Search:
    """One search."""

    def __init__(self, kernel: UOp, target: Target, width: int, tools: Tools, parallel: bool, state: State) -> None:
        self.kernel = kernel.replace(arg=KernelArg(kernel.arg.name, None))
        self.target, self.width, self.tools, self.parallel, self.state = target, width, tools, parallel, state
        self.usual: Opts = heuristic.choose(self.kernel, target, parallel)
        usual = moves.apply(self.kernel, self.usual, target)
        written = 0 if usual is None else moves.written_out(usual, target)
        self.most_instructions = max(MAX_INSTRUCTIONS, int(MORE_INSTRUCTIONS * written))
        self.has_lanes = lanemoves.has_lanes(target) and bool(self.usual)
        # Which tuple came first to a scheduled kernel: equal kernels are the same node.
        self.seen: dict[UOp, Opts] = {}

    def run(self) -> Found:
        state = self.state
        if not state.done:
            self._begin()
            while not self.tools.enough():
                if state.rounds >= MAX_ROUNDS or state.idle >= 2 or not self._round():
                    state.done = True
                    break
            self._decide()
        best = self.usual if state.best is None else state.best
        return Found(best, state.seconds[0], self.usual, state.seconds[1], state)

    def _begin(self) -> None:
        """Measure the heuristic's choice first: others are given up where it is far ahead. Then the plain loops.

        On a GPU schedules for other blocks in place of these: plain loops are one lane, and so is what is near them.
        """
        for opts in self.state.measured:
            self._scheduled(opts)
        for opts in (self.usual,) if self.has_lanes else (self.usual, ()):
            if opts in self.state.measured:
                continue
            if opts == () and self.usual:
                plain, usual = self.tools.estimate([(), self.usual])
                if plain > START_FACTOR * usual:
                    self.state.measured[opts] = Outcome(math.inf, "the estimate is too bad")
                    self._scheduled(opts)
                    continue
            self._measure([opts])
        others = lanemoves.alternatives(KernelFacts(self.kernel), self.target)
        fresh = [o for o in others if o not in self.state.measured and self._is_new(o, self.kernel, o)]
        self._measure(self._promising(fresh) if fresh else [])

    # rounds
    def _round(self) -> bool:
        """Measure the neighbours of the best schedules; False when there is nothing left to try."""
        state = self.state
        fresh = [o for o in self._best(self.width) if o not in state.expanded]
        if not state.rounds and not self.has_lanes and () not in (*fresh, *state.expanded):
            fresh.append(())
        if not fresh:
            return False
        before = self._time(self._best(1))
        candidates = list(dict.fromkeys(c for opts in fresh for c in self._neighbours(opts)))
        self._measure(self._promising(candidates))
        state.expanded.update(fresh)
        state.rounds += 1
        state.idle = 0 if self._time(self._best(1)) < before * (1 - PROGRESS) else state.idle + 1
        self.tools.keep(state)
        return True

    def _best(self, count: int) -> list[Opts]:
        ran = [o for o, outcome in self.state.measured.items() if outcome.seconds < math.inf]
        return sorted(ran, key=lambda o: self.state.measured[o].seconds)[:count]

    def _time(self, candidates: Iterable[Opts]) -> float:
        return min((self.state.measured[o].seconds for o in candidates), default=math.inf)

    def _neighbours(self, opts: Opts) -> Iterator[Opts]:
        """The tuples one move away that give new kernels of sensible size."""
        scheduled = self._apply(opts)
        if scheduled is None:
            return
        site = Site(KernelFacts(scheduled), self.target, self.parallel)
        for added in moves.additions(site):
            if self._is_new((*opts, *added), scheduled, added):
                yield (*opts, *added)
        for candidate in moves.changes(self.kernel, opts, self.target):
            if self._is_new(candidate, self.kernel, candidate):
                yield candidate

    def _is_new(self, opts: Opts, before: UOp, added: Opts) -> bool:
        """Whether opts, which are `added` behind those of the kernel `before`, give a new kernel of sensible size."""
        counts = self.state.counts
        counts.proposed += 1
        if opts in self.state.measured:
            counts.repeated += 1
            return False
        scheduled = self._apply(added, before)
        if scheduled is None:
            counts.refused += 1
        elif self.seen.setdefault(scheduled, opts) is not opts:
            counts.repeated += 1
        elif moves.written_out(scheduled, self.target) > self.most_instructions:
            counts.large += 1
        else:
            return True
        return False

    def _apply(self, opts: Opts, before: UOp | None = None) -> UOp | None:
        """The scheduled kernel without the opts that its loops say already: equal ones are the same node."""
        before = self.kernel if before is None else before
        scheduled = moves.apply(before, opts, self.target)
        if scheduled is None:
            return None
        kept = tuple(sorted([*(before.arg.opts or ()), *[o for o in opts if o.kind in KEPT]], key=repr))
        return scheduled.replace(arg=KernelArg(self.kernel.arg.name, kept or None))

    def _scheduled(self, opts: Opts) -> None:
        scheduled = self._apply(opts)
        if scheduled is not None:
            self.seen.setdefault(scheduled, opts)

    def _promising(self, candidates: Sequence[Opts]) -> list[Opts]:
        """The candidates with the best estimates, best first."""
        counts = self.state.counts
        leader = self._best(1)
        estimates = self.tools.estimate([*leader, *candidates])
        limit = PRUNE_FACTOR * estimates[0] if leader and estimates[0] < math.inf else math.inf
        ranked = sorted(zip(estimates[len(leader) :], range(len(candidates)), strict=True))
        good = [candidates[i] for seconds, i in ranked if seconds <= limit and seconds < math.inf]
        counts.failed += sum(seconds == math.inf for seconds, _ in ranked)
        counts.pruned += sum(limit < seconds < math.inf for seconds, _ in ranked)
        most = MEASURED_A_ROUND * self.width
        counts.later += max(0, len(good) - most)
        return good[:most]

    def _measure(self, candidates: Sequence[Opts]) -> None:
        outcomes = self.tools.measure(candidates)
        counts = self.state.counts
        for opts, outcome in zip(candidates, outcomes, strict=True):
            self.state.measured[opts] = outcome
            self._scheduled(opts)
            if outcome.seconds < math.inf:
                counts.measured += 1
            else:
                counts.failed += 1

    # the choice
    def _decide(self) -> None:
        """Measure the best ones side by side with the heuristic's choice, which stays unless one is clearly faster."""
        state = self.state
        finalists = [o for o in self._best(FINALISTS) if o != self.usual]
        if state.best is not None and state.best not in (*finalists, self.usual):
            finalists.append(state.best)
        seconds = self.tools.compare([self.usual, *finalists])
        usual = seconds[0]
        winner = min(range(len(seconds)), key=lambda i: seconds[i])
        if winner and not seconds[winner] < usual * (1 - MARGIN):
            winner = 0
        state.best = (self.usual, *finalists)[winner]
        state.seconds = (seconds[winner], usual)
        self.tools.keep(state)
