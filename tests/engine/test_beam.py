"""BEAM from the outside: results, the cache, several processes, what is said."""

from __future__ import annotations

import os
import subprocess
import sys
import warnings
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from gradlet import Context, Tensor, jit
from gradlet.base import events
from gradlet.base.errors import CompilerError
from gradlet.base.settings import scope
from gradlet.cli.main import main
from gradlet.engine import beam
from gradlet.engine.compile import build_kernel
from gradlet.engine.worker import Reply, Work
from gradlet.ops.op import KernelArg
from gradlet.ops.opt import Opt, OptKind, Tail
from gradlet.optimize.search import Outcome, State
from gradlet.runtime import diskcache
from tests.codegen import kernels, launches


class Counting:
    """In place of workers: every schedule takes a time that its opts give, and every question is counted."""

    limit = 1.0

    def __init__(self) -> None:
        self.asked: dict[str, int] = {}
        self.broken = False

    def ask(self, work: Work, name: str, requests: Sequence[tuple[Any, ...]], **more: Any) -> list[Reply]:
        self.asked[name] = self.asked.get(name, 0) + len(requests)
        if name == "estimate":
            return [self._time(r[0]) for r in requests]
        if name == "build":
            return [Reply("ok", r[0]) for r in requests]
        if name == "compare":
            return [Reply("ok", [self._time(opts).value for opts in requests[0][0]])]
        return [self._time(r[0]) for r in requests]

    def _time(self, opts: Any) -> Reply:
        if self.broken and len(opts) == 1:
            return Reply("error", "RenderError: made up")
        return Reply("ok", 1e-6 * (10 + abs(len(opts) - 2)) if opts and isinstance(opts[0], Opt) else 2e-5)


@pytest.fixture
def counting(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Counting]:
    found = Counting()
    monkeypatch.setattr(beam, "_pool", lambda: found)
    with scope(CACHEDIR=str(tmp_path), CACHE=1, BEAM=1):
        yield found


def test_what_was_found_is_not_searched_again(counting: Counting) -> None:
    sink = kernels.elementwise(999).sink
    with events.record() as log:
        first = beam.scheduled(sink, "CPU")
    (event,) = [e for e in log if isinstance(e, events.KernelSearched)]
    assert event.measured == counting.asked["measure"] > 3
    assert event.seconds <= event.usual
    counting.asked.clear()
    with events.record() as log:
        second = beam.scheduled(sink.replace(arg=KernelArg("another_name", None)), "CPU")
    assert not counting.asked
    assert second.arg.opts == first.arg.opts and second.arg.name == "another_name"
    assert [e.measured for e in log if isinstance(e, events.KernelSearched)] == [0]
    with scope(BEAM=2):
        beam.scheduled(sink, "CPU")
    assert counting.asked  # a wider search is another one


def test_opts_given_by_hand_stay(counting: Counting) -> None:
    sink = kernels.elementwise(999).sink.replace(arg=KernelArg("k", (Opt(OptKind.UNROLL, 0, 3),)))
    assert beam.scheduled(sink, "CPU") is sink
    named = kernels.elementwise(999).sink
    with scope(OPTS="elementwise: UNROLL(range 0, 3)"):
        assert beam.scheduled(named, "CPU") is named
    with scope(NOOPT=1):
        assert beam.scheduled(named, "CPU") is named
    assert not counting.asked


def test_without_beam_nothing_is_searched(counting: Counting) -> None:
    with scope(BEAM=0):
        build_kernel(kernels.elementwise(999).sink, "CPU")
    assert not counting.asked


def test_a_search_goes_on_after_its_time_is_over(counting: Counting, monkeypatch: pytest.MonkeyPatch) -> None:
    sink = kernels.matmul(17, 30, 23).sink
    with monkeypatch.context() as patch:
        patch.setattr(beam._Tools, "enough", lambda self: self.shown.round > 0)
        assert beam.scheduled(sink, "CPU").arg.opts is not None
    first = dict(counting.asked)
    counting.asked.clear()
    beam.scheduled(sink, "CPU")
    resumed = dict(counting.asked)
    counting.asked.clear()
    with scope(CACHEDIR=str(diskcache.folder() / "other")):
        beam.scheduled(sink, "CPU")
    assert counting.asked["measure"] == first["measure"] + resumed["measure"]
    assert first["measure"] > 0 and resumed["measure"] > 0


def test_an_interrupted_search_keeps_its_rounds(counting: Counting, monkeypatch: pytest.MonkeyPatch) -> None:
    sink = kernels.matmul(17, 30, 23).sink

    def interrupt(self: Any) -> bool:
        if self.shown.round == 1:
            raise KeyboardInterrupt
        return False

    with monkeypatch.context() as patch:
        patch.setattr(beam._Tools, "enough", interrupt)
        with pytest.raises(KeyboardInterrupt):
            beam.scheduled(sink, "CPU")
    interrupted = counting.asked.pop("measure")
    beam.scheduled(sink, "CPU")
    resumed = counting.asked.pop("measure")
    with scope(CACHEDIR=str(diskcache.folder() / "other")):
        beam.scheduled(sink, "CPU")
    assert counting.asked["measure"] == interrupted + resumed


def test_errors_are_reported_and_strict_raises(counting: Counting) -> None:
    counting.broken = True
    sink = kernels.elementwise(999).sink
    with pytest.warns(RuntimeWarning, match=r"legal schedules of kernel elementwise did not compile.*made up"):
        beam.scheduled(sink, "CPU")
    with scope(BEAM_STRICT=1, BEAM=2), pytest.raises(CompilerError, match="BEAM_STRICT.*RenderError: made up"):
        beam.scheduled(sink, "CPU")


def test_the_bodies_of_a_launch_are_searched_one_by_one(counting: Counting) -> None:
    launch = launches.attention().sink
    with events.record() as log:
        found = beam.scheduled(launch, "CPU")
    names = [e.name for e in log if isinstance(e, events.KernelSearched)]
    assert names == [body.arg.name for body in launch.src]
    assert [b.arg.name for b in found.src] == names and found.arg == launch.arg


@pytest.mark.parametrize("device", ["NULL", "PYTHON"])
def test_devices_without_times_say_so(device: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(beam, "_told", set())
    sink = kernels.elementwise(999).sink
    with scope(BEAM=3):
        with pytest.warns(RuntimeWarning, match=f"BEAM=3 has no effect on device {device}: it "):
            build_kernel(sink, device)
        with warnings.catch_warnings():
            warnings.simplefilter("error")  # once is enough
            beam.scheduled(sink, device)


def test_states_survive_the_cache() -> None:
    opts = (Opt(OptKind.SPLIT, 0, 8, Tail.SHIFT), Opt(OptKind.PARALLEL, 0, 0))
    state = State(
        {opts: Outcome(1e-6), (): Outcome(float("inf"), "failed: SIGSEGV")}, {()}, 2, 1, False, opts, (1.0, 2.0)
    )
    assert beam._decode(beam._encode(state, "k")) == state
    state.done = True
    found = beam._decode(beam._encode(state, "k"))
    assert found is not None and found.best == opts and not found.measured
    assert beam._decode(b"damaged") is None
    assert beam._decode(b"{}") is None


def test_a_choice_that_is_refused_now_is_searched_anew(counting: Counting) -> None:
    sink = kernels.elementwise(999).sink
    beam.scheduled(sink, "CPU")
    key = beam._Search(sink, "CPU", beam.Device["CPU"].target, True).key
    diskcache.put(key, beam._encode(State(done=True, best=(Opt(OptKind.GROUP, 7, 2),)), "k"))
    counting.asked.clear()
    assert beam.scheduled(sink, "CPU").arg.opts is not None
    assert counting.asked


def test_search_is_not_imported_without_beam() -> None:
    code = (
        "import sys, numpy as np; from gradlet import Tensor; (Tensor(np.ones(8)) + 1).numpy(); "
        "print([m for m in sys.modules if m in ('gradlet.engine.beam', 'gradlet.optimize.search', "
        "'gradlet.optimize.moves', 'gradlet.engine.measure', 'gradlet.optimize.programcost')])"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert result.stdout.strip() == "[]"


def test_the_command_line_knows_searches(counting: Counting, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["cache", "searches"]) == 0
    assert "no searches in " in capsys.readouterr().out
    beam.scheduled(kernels.elementwise(999).sink, "CPU")
    assert main(["cache", "searches"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 2 and lines[0].startswith("elementwise: ") and "x as fast as the heuristic's" in lines[0]
    assert main(["cache"]) == 0
    assert "entries  1, 0 of them captured programs, 1 results of searches" in capsys.readouterr().out
    assert main(["cache", "clear"]) == 0
    assert not diskcache.contents(diskcache.SEARCH)


PROGRAM = """
import numpy as np
from gradlet import Tensor, jit
x = np.linspace(-1, 1, 35, dtype=np.float32)
f = jit(lambda a: (a * 2 + 1).realize())
t = Tensor(x).realize()
for _ in range(3):
    np.testing.assert_allclose(f(t).numpy(), x * 2 + 1, rtol=1e-6)
"""


def test_two_processes_search_once(tmp_path: Path) -> None:
    environment = os.environ | {"CACHEDIR": str(tmp_path), "BEAM": "1", "DEBUG": "2", "SPEC": "0"}
    running = [
        subprocess.Popen([sys.executable, "-c", PROGRAM], env=environment, stdout=subprocess.PIPE, text=True)
        for _ in range(2)
    ]
    texts = [process.communicate(timeout=240)[0] for process in running]
    assert [process.returncode for process in running] == [0, 0]
    lines = [line for text in texts for line in text.splitlines() if line.startswith("search e_35: ")]
    assert len(lines) == 2
    assert sum("nothing measured now" in line for line in lines) == 1
    assert not list(tmp_path.rglob(".new-*"))


@pytest.mark.slow
def test_results_are_right_with_beam(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    a, b = rng.random((19, 23), np.float32), rng.random((23, 31), np.float32)
    with Context(BEAM=2, CACHEDIR=str(tmp_path)):
        x, y = Tensor(a).realize(), Tensor(b).realize()
        np.testing.assert_allclose((x @ y).numpy(), a @ b, rtol=1e-5)
        f = jit(lambda p: p.softmax(-1).realize())
        for _ in range(3):
            got = f(x).numpy()
        e = np.exp(a - a.max(1, keepdims=True))
        np.testing.assert_allclose(got, e / e.sum(1, keepdims=True), rtol=1e-5)
        np.testing.assert_array_equal(x.T.contiguous().numpy(), a.T)
