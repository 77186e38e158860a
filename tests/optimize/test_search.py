"""The beam: with times that are made up, so that what it should find is known."""

from __future__ import annotations

import math
from collections.abc import Sequence

import pytest

from gradlet.base.settings import scope
from gradlet.codegen import pipeline
from gradlet.graph.node import UOp
from gradlet.ops.op import AxisKind, KernelArg, Op
from gradlet.ops.opt import Opt, OptKind
from gradlet.optimize import heuristic, moves, programcost, search
from gradlet.optimize.analysis import KernelFacts, size_bound
from gradlet.optimize.search import Outcome, State
from gradlet.target.target import AVX2, Target
from tests.codegen import kernels

Opts = tuple[Opt, ...]


class Made:
    """Times by a formula of the scheduled kernel; remembers what it was asked."""

    def __init__(self, sink: UOp, target: Target = AVX2, rounds: int | None = None) -> None:
        self.sink, self.target, self.rounds = sink, target, rounds
        self.estimated: list[Opts] = []
        self.measured: list[Opts] = []
        self.compared: list[Opts] = []
        self.states: list[tuple[int, int]] = []

    def time(self, opts: Opts) -> float:
        """Iterations of the loops: copies and lanes make fewer, but more than 16 copies make as many."""
        scheduled = moves.apply(self.sink, opts, self.target)
        assert scheduled is not None
        loops = KernelFacts(scheduled).loops
        counts = dict.fromkeys(AxisKind, 1.0)
        for loop in loops:
            counts[loop.arg.kind] *= size_bound(loop)
        copies = counts[AxisKind.UNROLL]
        iterations = counts[AxisKind.LOOP] * counts[AxisKind.REDUCE] * counts[AxisKind.PARALLEL] / 2
        if counts[AxisKind.PARALLEL] == 1:
            iterations *= 2
        return iterations * (1 + copies / 32 if copies <= 16 else copies) * (1 + counts[AxisKind.VECTOR] / 32)

    def estimate(self, candidates: Sequence[Opts]) -> list[float]:
        self.estimated += candidates
        return [self.time(c) for c in candidates]

    def measure(self, candidates: Sequence[Opts]) -> list[Outcome]:
        self.measured += candidates
        return [Outcome(self.time(c)) for c in candidates]

    def compare(self, candidates: Sequence[Opts]) -> list[float]:
        self.compared += candidates
        return [self.time(c) for c in candidates]

    def keep(self, state: State) -> None:
        self.states.append((state.rounds, len(state.measured)))

    def enough(self) -> bool:
        return self.rounds is not None and len(self.states) >= self.rounds


ROWS = {
    "elementwise": lambda: kernels.elementwise(999), "matmul": lambda: kernels.matmul(17, 30, 23),
    "rows": lambda: kernels.row_reduce(7, 100), "columns": lambda: kernels.column_sum(50, 70),
    "strided": lambda: kernels.strided(37, 29), "in place": lambda: kernels.in_place(100),
    "symbolic": lambda: kernels.symbolic(9, 12),
}  # fmt: skip


QUICK = ("matmul", "symbolic")


@pytest.mark.parametrize("name", [n if n in QUICK else pytest.param(n, marks=pytest.mark.slow) for n in ROWS])
def test_it_is_never_worse_than_the_heuristic_and_deterministic(name: str) -> None:
    sink = ROWS[name]().sink
    tools = Made(sink)
    found = search.search(sink, AVX2, 1, tools)
    usual = heuristic.choose(sink, AVX2)
    assert found.usual == usual
    assert tools.time(found.opts) <= tools.time(usual)
    assert found.state.done
    assert found.seconds <= found.usual_seconds == tools.time(usual)
    assert search.search(sink, AVX2, 1, Made(sink)).opts == found.opts
    assert len(set(tools.measured)) == len(tools.measured)
    counts = found.state.counts
    assert counts.measured == len(tools.measured)


def test_it_finds_what_the_heuristic_has_not() -> None:
    sink = kernels.strided(37, 29).sink
    tools = Made(sink)
    found = search.search(sink, AVX2, 2, tools)
    assert found.seconds < 0.7 * found.usual_seconds
    assert found.opts != found.usual


def test_equal_kernels_are_looked_at_once() -> None:
    sink = kernels.matmul(16, 16, 16).sink
    tools = Made(sink)
    search.search(sink, AVX2, 2, tools)
    nodes = [moves.apply(sink, opts, AVX2) for opts in tools.measured]
    bare = [node.replace(arg=KernelArg("", None)) for node in nodes if node is not None]
    assert len(set(bare)) == len(bare) == len(tools.measured)


@pytest.mark.slow
def test_a_wider_beam_is_no_worse() -> None:
    sink = kernels.matmul(17, 30, 23).sink
    times = [search.search(sink, AVX2, width, Made(sink)).seconds for width in (1, 3)]
    assert times[1] <= times[0] * 1.02


class Pessimist(Made):
    """Measures nothing but the heuristic's choice as good."""

    def measure(self, candidates: Sequence[Opts]) -> list[Outcome]:
        self.measured += candidates
        usual = heuristic.choose(self.sink, self.target)
        return [Outcome(1.0) if c == usual else Outcome(math.inf, "failed: SIGSEGV") for c in candidates]

    def compare(self, candidates: Sequence[Opts]) -> list[float]:
        self.compared += candidates
        return [1.0] * len(candidates)


def test_candidates_that_fail_are_counted_and_not_chosen() -> None:
    sink = kernels.elementwise(999).sink
    tools = Pessimist(sink)
    found = search.search(sink, AVX2, 2, tools)
    assert found.opts == found.usual
    assert found.state.counts.failed >= len(tools.measured) - 1 > 0
    assert any(outcome.problem == "failed: SIGSEGV" for outcome in found.state.measured.values())


class Noisy(Made):
    """One candidate was lucky once: measured again it is no better."""

    def measure(self, candidates: Sequence[Opts]) -> list[Outcome]:
        self.measured += candidates
        usual = heuristic.choose(self.sink, self.target)
        return [Outcome(1.0 if c == usual else 0.5) for c in candidates]

    def compare(self, candidates: Sequence[Opts]) -> list[float]:
        self.compared += candidates
        return [1.0, *[0.99] * (len(candidates) - 1)]


def test_noise_picks_no_winner() -> None:
    sink = kernels.elementwise(999).sink
    tools = Noisy(sink)
    found = search.search(sink, AVX2, 1, tools)
    assert tools.compared[0] == found.usual and len(tools.compared) > 1
    assert found.opts == found.usual and found.seconds == found.usual_seconds == 1.0


def test_bad_estimates_are_not_measured() -> None:
    sink = kernels.matmul(17, 30, 23).sink
    tools = Made(sink)
    found = search.search(sink, AVX2, 1, tools)
    counts = found.state.counts
    assert counts.pruned > 0
    assert len(tools.measured) < len(set(tools.estimated))
    assert counts.proposed == counts.refused + counts.repeated + counts.large + counts.pruned + counts.later + (
        len(tools.measured) - 1
    ) + counts.failed - _not_proposed(found)  # fmt: skip


def _not_proposed(found: search.Found) -> int:
    """Candidates that were measured at the start, or not at all, and no move proposed."""
    return 0 if found.state.measured[()].seconds == math.inf else 1


def test_a_search_goes_on_where_it_stopped() -> None:
    sink = kernels.matmul(17, 30, 23).sink
    whole = Made(sink)
    expected = search.search(sink, AVX2, 1, whole)
    state = State()
    asked: list[Opts] = []
    for _ in range(30):
        part = Made(sink, rounds=1)
        found = search.search(sink, AVX2, 1, part, state=state)
        assert part.time(found.opts) <= part.time(found.usual)  # the best so far is used
        asked += part.measured
        if state.done:
            break
    assert state.done
    assert found.opts == expected.opts
    assert sorted(asked) == sorted(whole.measured)  # nothing twice
    idle = Made(sink)
    assert search.search(sink, AVX2, 1, idle, state=state).opts == expected.opts
    assert not idle.measured and not idle.compared and not idle.estimated


class Model:
    """The cost model as the measure: no clocks."""

    def __init__(self, sink: UOp) -> None:
        self.sink = sink
        self.known: dict[Opts, float] = {}

    def estimate(self, candidates: Sequence[Opts]) -> list[float]:
        for opts in candidates:
            if opts not in self.known:
                program = pipeline.lower(self.sink.replace(arg=KernelArg("k", opts)), AVX2)
                self.known[opts] = programcost.estimate(program, AVX2).seconds
        return [self.known[c] for c in candidates]

    def measure(self, candidates: Sequence[Opts]) -> list[Outcome]:
        return [Outcome(s) for s in self.estimate(candidates)]

    compare = estimate

    def keep(self, state: State) -> None:
        pass

    def enough(self) -> bool:
        return len(self.known) > 30


MODELLED = {
    "strided": lambda: kernels.strided(37, 29), "rows": lambda: kernels.row_reduce(3, 500),
    "matmul": lambda: kernels.matmul(9, 10, 11),
}  # fmt: skip


@pytest.mark.parametrize("name", [n if n == "strided" else pytest.param(n, marks=pytest.mark.slow) for n in MODELLED])
def test_with_the_cost_model_as_measure_it_reaches_the_heuristic(name: str) -> None:
    sink = pipeline.schedulable(MODELLED[name]().sink, AVX2)
    with scope(SPEC=0):
        model = Model(sink)
        found = search.search(sink, AVX2, 1, model)
    usual = heuristic.choose(sink, AVX2)
    assert model.known[found.opts] <= model.known[usual]


def test_opts_of_a_kernel_are_those_of_its_ranges_before_the_schedule() -> None:
    """`schedulable` is what `lower` applies opts to."""
    kernel = kernels.contiguous_3d()
    sink = pipeline.schedulable(kernel.sink, AVX2)
    assert len(KernelFacts(sink).loops) == 1
    opts = (Opt(OptKind.VECTORIZE, 0, 8),)
    program = pipeline.lower(kernel.sink.replace(arg=KernelArg("k", opts)), AVX2)
    assert program.opts == opts and any(n.op is Op.LOAD and n.dtype.count == 8 for n in program.uops)
