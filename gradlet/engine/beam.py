"""BEAM=n: the schedule of a kernel by search, from the shared cache where some process has searched it before.

A search is stored after every round, so one that is interrupted, or has spent its BEAM_TIME, is gone on with by the
next process that meets the kernel. Processes on one machine search one at a time: they would disturb each other's
times, and who waits for the same kernel finds it in the cache.
"""

from __future__ import annotations

import atexit
import contextlib
import json
import math
import os
import sys
import threading
import time
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from typing import Any, Final

from gradlet.base import events, settings
from gradlet.base.errors import CompilerError
from gradlet.base.report import human_seconds
from gradlet.codegen.pipeline import schedulable
from gradlet.engine.measure import Measured, Workers, shown
from gradlet.engine.worker import Work
from gradlet.graph import text
from gradlet.graph.launch import is_launch
from gradlet.graph.node import UOp
from gradlet.ops.op import KernelArg
from gradlet.ops.opt import OptKind
from gradlet.optimize import moves
from gradlet.optimize.opttext import opts_for, opts_text, parse_opts
from gradlet.optimize.search import VERSION, Counts, Found, Outcome, State, search
from gradlet.runtime import diskcache
from gradlet.runtime.device import Device
from gradlet.target.target import Target

Opts = moves.Opts

_lock: Final = threading.RLock()
_workers: dict[int, Workers] = {}  # by process: those of a parent are not ours
_told: set[str] = set()


def scheduled(ast: UOp, device: str) -> UOp:
    """The kernel, or the launch, with the opts that search found; as it is where there is nothing to measure.

    Raises:
        CompilerError: with BEAM_STRICT=1, a legal schedule did not compile.
    """
    backend: Any = Device[device]
    if not getattr(backend, "measurable", False):
        if device not in _told:
            _told.add(device)
            reason = "interprets kernels" if backend.interprets else "runs nothing"
            warnings.warn(
                f"BEAM={settings.BEAM.value} has no effect on device {device}: it {reason}, so there is nothing to "
                "measure; its kernels keep the schedule of the heuristic",
                RuntimeWarning, stacklevel=2,
            )  # fmt: skip
        return ast
    if settings.NOOPT:
        return ast
    with _lock:
        if is_launch(ast.arg):
            return _Launch(ast, device, backend.target).scheduled()
        if _by_hand(ast) is not None:
            return ast
        return ast.replace(arg=KernelArg(ast.arg.name, _Search(ast, device, backend.target, True).found().opts))


def _by_hand(ast: UOp) -> Opts | None:
    """The opts that somebody gave a kernel."""
    given: Opts | None = ast.arg.opts
    return opts_for(settings.OPTS.value, ast.arg.name) if given is None else given


class _Launch:
    """A launch: its bodies are searched one by one, then the whole is compared with the heuristic's.

    A body of a region is measured alone on one thread, with ordinary buffers in place of the scratch arrays: they are
    as large, so they stay in the core's caches as the scratch arrays do.
    """

    def __init__(self, ast: UOp, device: str, target: Target) -> None:
        self.ast, self.device, self.target = ast, device, target
        self.alone = {u.body for stage in ast.arg.stages for s in stage if len(s) > 1 for u in s}

    def scheduled(self) -> UOp:
        usual: tuple[Opts, ...] = ()
        best: tuple[Opts, ...] = ()
        for number, body in enumerate(self.ast.src):
            given = _by_hand(body)
            if given is None:
                found = _Search(body, self.device, self.target, number not in self.alone).found()
                usual, best = (*usual, found.usual), (*best, found.opts)
            else:
                usual, best = (*usual, given), (*best, given)
        if best == usual:
            return self.ast
        key = _key(self.ast, self.target, "launch", repr(best))
        kept = diskcache.get(key)
        if kept is None:
            tools = _tools(self.ast, self.device, True, _Progress(self.ast.arg.name))
            with _one_at_a_time(), tools.shown:
                seconds = tools.compare([usual, best])
            _tell_faults(self.ast.arg.name, tools.problems)
            kept = b"1" if seconds[1] <= seconds[0] else b"0"
            diskcache.put(key, kept)
            if settings.DEBUG >= 2:
                print(f"search {self.ast.arg.name}: {_times(seconds[1], seconds[0])} as a whole")
        chosen = best if kept == b"1" else usual
        bodies = [b.replace(arg=KernelArg(b.arg.name, o)) for b, o in zip(self.ast.src, chosen, strict=True)]
        return self.ast.replace(src=tuple(bodies))


class _Tools(Measured):
    """What a search asks of us: measured by workers, kept in the cache."""

    def __init__(self, work: Work, shown: _Progress) -> None:
        super().__init__(_pool(), work, bool(settings.BEAM_STRICT), shown)
        self.shown = shown
        self.key = ""
        self.start = time.monotonic()

    def keep(self, state: State) -> None:
        """Store a search as far as it got."""
        diskcache.put(self.key, _encode(state, self.work.ast.arg.name))
        self.shown.round = state.rounds

    def enough(self) -> bool:
        """Whether BEAM_TIME is over."""
        limit = settings.BEAM_TIME.value
        return bool(limit) and time.monotonic() - self.start > limit


class _Search:
    """The search of one kernel."""

    def __init__(self, ast: UOp, device: str, target: Target, parallel: bool) -> None:
        self.ast, self.device, self.target, self.parallel = ast, device, target, parallel
        self.kernel = schedulable(ast, target)
        self.key = _key(self.kernel, target, f"parallel {parallel}")

    def found(self) -> Found:
        """From the cache, or searched now."""
        state = self._kept()
        if state is None or not state.done:
            with _one_at_a_time():
                state = self._kept()  # another process may have been at it
                if state is None or not state.done:
                    return self._searched(state)
        return self._reported(self._result(state), 0, {})

    def _kept(self) -> State | None:
        content = diskcache.get(self.key)
        state = None if content is None else _decode(content)
        if state is None or state.best is None or moves.apply(self.kernel, state.best, self.target) is not None:
            return state
        return None  # the language has changed

    def _result(self, state: State) -> Found:
        return search(self.kernel, self.target, settings.BEAM.value, _NoTools(), self.parallel, state)

    def _searched(self, state: State | None) -> Found:
        before = 0 if state is None else len(state.measured)
        with _Progress(self.ast.arg.name) as progress:
            tools = _tools(self.ast, self.device, self.parallel, progress)
            tools.key = self.key
            if state is not None:
                tools.best = min((o.seconds for o in state.measured.values()), default=math.inf)
            found = search(self.kernel, self.target, settings.BEAM.value, tools, self.parallel, state)
        return self._reported(found, len(found.state.measured) - before, tools.problems)

    def _reported(self, found: Found, measured: int, problems: dict[Any, str]) -> Found:
        name = self.ast.arg.name
        if events.active():
            events.emit(events.KernelSearched(name, self.device, found.seconds, found.usual_seconds, measured))
        if settings.DEBUG >= 2:
            counts = found.state.counts
            print(
                f"search {name}: {_times(found.seconds, found.usual_seconds)}; {found.state.rounds} rounds, "
                f"{measured or 'nothing'} measured now; of {counts.proposed} proposed {counts.refused} refused, "
                f"{counts.repeated} repeated, {counts.large} too large, {counts.pruned} pruned by estimate, "
                f"{counts.later} not among the best of their round, {counts.measured} timed, {counts.failed} failed"
            )
            print(f"    opts: {opts_text(found.opts) or 'none'}")
        _tell_faults(name, problems)
        return found


def _tell_faults(name: str, problems: dict[Any, str]) -> None:
    """Warn of legal schedules that the compiler is not up to; one that takes too long is no fault."""
    faults = {o: p for o, p in problems.items() if p.startswith("error") or "was killed by" in p}
    if faults:
        opts, problem = next(iter(faults.items()))
        warnings.warn(
            f"BEAM: {len(faults)} legal schedules of kernel {name} did not compile, crashed or changed its result; "
            f"the first one, {shown(opts)}: {problem[:500]}. Please report it; BEAM_STRICT=1 raises it",
            RuntimeWarning, stacklevel=2,
        )  # fmt: skip


class _NoTools:
    """For a search that is done: it asks for nothing."""

    def estimate(self, candidates: Sequence[Opts]) -> list[float]:
        raise CompilerError("a finished search estimates nothing")

    def measure(self, candidates: Sequence[Opts]) -> list[Outcome]:
        if candidates:
            raise CompilerError("a finished search measures nothing")
        return []

    def compare(self, candidates: Sequence[Opts]) -> list[float]:
        raise CompilerError("a finished search compares nothing")

    def keep(self, state: State) -> None:
        """It is kept."""

    def enough(self) -> bool:
        return True


def _tools(ast: UOp, device: str, parallel: bool, progress: _Progress) -> _Tools:
    values = {name: row.value for name, row in settings.SETTINGS.items()} | {"BEAM": 0, "DEBUG": 0}
    return _Tools(Work(ast, device, parallel, values), progress)


def _pool() -> Workers:
    found = _workers.get(os.getpid())
    if found is None:
        _workers.clear()
        cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
        found = _workers[os.getpid()] = Workers(cores, settings.BEAM_LIMIT.value)
        atexit.register(_close, os.getpid())
    found.limit = settings.BEAM_LIMIT.value
    return found


def _close(process: int) -> None:
    if process == os.getpid() and process in _workers:
        _workers.pop(process).close()


def _times(seconds: float, usual: float) -> str:
    if not math.isfinite(seconds) or not math.isfinite(usual):
        return "the heuristic's schedule stays, none could be compared with it"
    return f"{human_seconds(seconds)}, {usual / seconds:.2f}x as fast as the heuristic's {human_seconds(usual)}"


# the cache
def _key(kernel: UOp, target: Target, *more: str) -> str:
    """Everything that the result of a search depends on; names of kernels are left out."""
    if is_launch(kernel.arg):
        bodies = [b.replace(arg=KernelArg("", None)) for b in kernel.src]
        nameless = kernel.replace(src=tuple(bodies), arg=kernel.arg._replace(name=""))
    else:
        nameless = kernel.replace(arg=KernelArg("", None))
    words = " ".join(f"{kind.name}={kind.value}" for kind in OptKind)
    facts = " ".join(f"{name}={value!r}" for name, value in sorted(asdict(target).items()) if name != "native_dtypes")
    knobs = repr(settings.codegen_key())  # BEAM is one of them
    name = diskcache.key("search", f"version {VERSION}", words, facts, knobs, text.to_text(nameless), *more)
    return name if is_launch(kernel.arg) else name + diskcache.SEARCH


def _encode(state: State, name: str) -> bytes:
    """A search as JSON; of one that is done only what is needed to use and to report it."""
    measured = {} if state.done else state.measured
    expanded = set() if state.done else state.expanded
    content = {
        "kernel": name,
        "measured": [[opts_text(o), _finite(r.seconds), r.problem] for o, r in measured.items()],
        "expanded": sorted(opts_text(o) for o in expanded),
        "rounds": state.rounds, "idle": state.idle, "done": state.done,
        "best": None if state.best is None else opts_text(state.best),
        "seconds": [_finite(s) for s in state.seconds], "counts": asdict(state.counts),
    }  # fmt: skip
    return json.dumps(content).encode()


def _decode(content: bytes) -> State | None:
    """The search, None where it cannot be read: words may have gone from the language."""
    try:
        found = json.loads(content)
        return State(
            measured={parse_opts(o): Outcome(_number(s), str(p)) for o, s, p in found["measured"]},
            expanded={parse_opts(o) for o in found["expanded"]},
            rounds=int(found["rounds"]), idle=int(found["idle"]), done=bool(found["done"]),
            best=None if found["best"] is None else parse_opts(found["best"]),
            seconds=(_number(found["seconds"][0]), _number(found["seconds"][1])), counts=Counts(**found["counts"]),
        )  # fmt: skip
    except (ValueError, TypeError, KeyError, IndexError):
        return None


def kept_searches(content: bytes) -> list[str]:
    """Two lines about an entry of the cache; none where it cannot be read."""
    state = _decode(content)
    if state is None:
        return []
    name = str(json.loads(content).get("kernel", "?"))
    until = "" if state.done else f" so far, {state.rounds} rounds"
    found = "begun" if state.best is None else _times(*state.seconds)
    return [f"{name}: {found}{until}", f"    {opts_text(state.best or ()) or 'no opts'}"]


def _finite(seconds: float) -> float | None:
    return seconds if math.isfinite(seconds) else None


def _number(seconds: Any) -> float:
    return math.inf if seconds is None else float(seconds)


@contextlib.contextmanager
def _one_at_a_time() -> Iterator[None]:
    """Wait until no other process on this machine searches. Where there is no such lock, go on without."""
    file: Any = None
    try:
        import fcntl

        diskcache.folder().mkdir(parents=True, exist_ok=True)
        file = open(diskcache.folder().parent / "search.lock", "w")  # noqa: SIM115 - held until the search ends
        fcntl.flock(file, fcntl.LOCK_EX)
    except (ImportError, OSError):
        pass
    try:
        yield
    finally:
        if file is not None:
            file.close()


class _Progress:
    """One line on the terminal that says what a search does; nothing elsewhere."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.round = 0
        self._status: Any = None

    def __enter__(self) -> _Progress:
        if settings.BEAM_PROGRESS and sys.stderr is not None and sys.stderr.isatty():
            from rich.console import Console

            self._status = Console(stderr=True).status(f"search {self.name}")
            self._status.start()
        return self

    def __exit__(self, *details: object) -> None:
        if self._status is not None:
            self._status.stop()
            self._status = None

    def __call__(self, doing: str, place: int, count: int) -> None:
        """Show a step."""
        if self._status is not None:
            self._status.update(f"search {self.name}: round {self.round + 1}, {doing} {place} of {count}")
