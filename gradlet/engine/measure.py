"""Workers that measure schedules for a search: long-lived processes, started again when a candidate takes one down.

Lowering and compiling run on all workers at once; timing runs on the first one while the others wait. A candidate may
crash, loop forever or eat memory: its worker is killed or dies, the candidate gets the reason as its outcome.
"""

from __future__ import annotations

import contextlib
import math
import os
import pickle
import selectors
import signal
import struct
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from typing import Any, Final

from gradlet.base.errors import CompilerError
from gradlet.engine import worker
from gradlet.engine.worker import Opts, Reply, Work
from gradlet.ops.opt import Opt
from gradlet.optimize.opttext import opts_text
from gradlet.optimize.search import Outcome

TICK: Final = 0.1
# A process that was stopped for a while (a laptop that slept) has not used the time of its candidate.
LONGEST_TICK: Final = 0.3
START_SECONDS: Final = 60.0  # for a fresh process with its first request
MOST_WORKERS: Final = 16


class _Process:
    """One worker, and the request that it works on."""

    def __init__(self) -> None:
        self.process: subprocess.Popen[bytes] | None = None
        self.work: Work | None = None
        self.number = -1  # of the request in progress
        self.used = 0.0
        self.limit = 0.0
        self._data = bytearray()

    def start(self) -> None:
        """A fresh process. It is in a group of its own: Ctrl-C is for us."""
        code = f"import sys; sys.path[:] = {sys.path!r}; from gradlet.engine.worker import main; main()"
        self.process = subprocess.Popen(
            [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
            start_new_session=True,
        )  # fmt: skip
        assert self.process.stdout is not None
        os.set_blocking(self.process.stdout.fileno(), False)
        self.work = None
        self._data.clear()

    def stop(self) -> None:
        """End the process, whatever it does."""
        process, self.process = self.process, None
        if process is not None:
            process.kill()
            process.wait()
            for stream in (process.stdin, process.stdout):
                with contextlib.suppress(OSError):  # the rest of a request that nobody reads
                    if stream is not None:
                        stream.close()

    def ask(self, work: Work, number: int, name: str, arguments: tuple[Any, ...], limit: float) -> None:
        """Send a request; the kernel too where this process does not have it yet."""
        self.number, self.used = number, 0.0
        fresh = self.process is None
        if self.process is None:
            self.start()
        known = self.work is work
        self.limit = limit + (START_SECONDS if fresh or not known else 0.0)
        self.work = work
        assert self.process is not None and self.process.stdin is not None
        with contextlib.suppress(OSError):  # where it is dead, reading will tell
            worker.send(self.process.stdin, (None if known else work, name, arguments))

    def read(self) -> Reply | None:
        """The answer if it is complete.

        Raises:
            EOFError: the process has died.
        """
        assert self.process is not None and self.process.stdout is not None
        while True:
            try:
                part = os.read(self.process.stdout.fileno(), 1 << 20)
            except BlockingIOError:
                return None
            if not part:
                raise EOFError
            self._data += part
            if len(self._data) >= 8:
                size = struct.unpack_from("<q", self._data)[0]
                if len(self._data) >= 8 + size:
                    reply: Reply = pickle.loads(bytes(self._data[8 : 8 + size]))
                    self._data.clear()
                    return reply

    def cause_of_death(self) -> str:
        """How a process ended, in words."""
        assert self.process is not None
        try:
            code = self.process.wait(5)
        except subprocess.TimeoutExpired:
            return "its process stopped answering"
        if code < 0:
            return f"its process was killed by {signal.Signals(-code).name}"
        return f"its process ended with code {code}"


class Workers:
    """A pool of worker processes for one search after another.

    Args:
        count: how many.
        limit: seconds that one candidate may take to compile, and to be timed.
    """

    def __init__(self, count: int, limit: float) -> None:
        self.limit = limit
        self._workers = [_Process() for _ in range(max(1, min(count, MOST_WORKERS)))]

    def close(self) -> None:
        """End all processes."""
        for each in self._workers:
            each.stop()

    def __enter__(self) -> Workers:
        return self

    def __exit__(self, *details: object) -> None:
        self.close()

    def ask(
        self, work: Work, name: str, requests: Sequence[tuple[Any, ...]], together: bool = True,
        limit: float | None = None, done: Callable[[], None] | None = None,
    ) -> list[Reply]:  # fmt: skip
        """The replies to requests of one kind.

        Args:
            work: what they are about.
            name: method of `worker.Bench`.
            requests: its arguments.
            together: all workers at once, else one request after another on the first one.
            limit: seconds for one request.
            done: called after each.
        """
        replies: list[Reply | None] = [None] * len(requests)
        idle = list(reversed(self._workers if together else self._workers[:1]))
        waiting = list(range(len(requests) - 1, -1, -1))
        busy: list[_Process] = []
        before = time.monotonic()
        try:
            while waiting or busy:
                while waiting and idle:
                    each, number = idle.pop(), waiting.pop()
                    each.ask(work, number, name, requests[number], self.limit if limit is None else limit)
                    busy.append(each)
                _wait(busy)
                now = time.monotonic()
                passed, before = min(now - before, LONGEST_TICK), now
                for each in list(busy):
                    each.used += passed
                    reply = _progress(each)
                    if reply is not None:
                        replies[each.number] = reply
                        busy.remove(each)
                        idle.append(each)
                        if done is not None:
                            done()
        except BaseException:
            for each in busy:  # what is in progress would answer a later question
                each.stop()
            raise
        return [r for r in replies if r is not None]


def _wait(busy: Sequence[_Process]) -> None:
    """Until some process has something to say, or for a tick."""
    with selectors.DefaultSelector() as selector:
        for each in busy:
            assert each.process is not None and each.process.stdout is not None
            selector.register(each.process.stdout.fileno(), selectors.EVENT_READ)
        selector.select(TICK)


def _progress(each: _Process) -> Reply | None:
    """The reply of a process, or why there will be none; None while it works."""
    try:
        reply = each.read()
    except (EOFError, OSError, pickle.UnpicklingError):
        cause = each.cause_of_death()
        each.stop()
        return Reply("failed", cause)
    if reply is None and each.used > each.limit:
        each.stop()
        return Reply("failed", f"it took longer than {each.limit:g} s")
    if reply is not None and reply.kind == "lost":
        each.stop()  # what the next candidate would meet is no fault of its own
        return Reply("error", reply.value)
    return reply


class Measured:
    """`estimate`, `measure` and `compare` of `optimize.search.Tools`, on worker processes.

    Attributes:
        problems: compile errors and failures of candidates, by opts.
    """

    def __init__(self, workers: Workers, work: Work, strict: bool, progress: Callable[[str, int, int], None]) -> None:
        self.workers, self.work, self.strict, self.progress = workers, work, strict, progress
        self.problems: dict[Any, str] = {}
        self.best = math.inf
        # What gives the right results: the first schedule that ran, which is the heuristic's.
        self.reference: Any = None

    def estimate(self, candidates: Sequence[Opts]) -> list[float]:
        """Expected seconds; infinite for what cannot be lowered."""
        replies = self._ask("estimate", "looking at", [(c,) for c in candidates])
        self._problems(candidates, replies)
        return [float(r.value) if r.kind == "ok" else math.inf for r in replies]

    def measure(self, candidates: Sequence[Opts]) -> list[Outcome]:
        """Seconds of each."""
        built = self._build(candidates)
        outcomes: list[Outcome] = []
        for place, (opts, reply) in enumerate(zip(candidates, built, strict=True)):
            self.progress("running", place, len(candidates))
            if reply.kind == "ok":
                code = reply.value
                request = (code, self.best, self.reference)
                reply = self.workers.ask(self.work, "measure", [request], together=False)[0]
                self._problems([opts], [reply])
                if reply.kind == "ok" and self.reference is None:
                    self.reference = code
            if reply.kind == "ok":
                self.best = min(self.best, reply.value)
                outcomes.append(Outcome(reply.value))
            else:
                outcomes.append(Outcome(math.inf, f"{reply.kind}: {reply.value}"))
        return outcomes

    def compare(self, candidates: Sequence[Any]) -> list[float]:
        """Seconds of each, run in turns; infinite where that fails."""
        built = self._build(candidates)
        good = [r.value for r in built if r.kind == "ok"]
        limit = self.workers.limit * max(1, len(good))
        self.progress("comparing", 0, len(good))
        reply = self.workers.ask(self.work, "compare", [(good,)], together=False, limit=limit)[0]
        if reply.kind != "ok":
            self._problems(candidates[:1], [reply])
            return [math.inf] * len(candidates)
        seconds = iter(reply.value)
        return [next(seconds) if r.kind == "ok" else math.inf for r in built]

    def _build(self, candidates: Sequence[Any]) -> list[Reply]:
        replies = self._ask("build", "compiling", [(c,) for c in candidates])
        self._problems(candidates, replies)
        return replies

    def _ask(self, name: str, doing: str, requests: Sequence[tuple[Any, ...]]) -> list[Reply]:
        count = 0

        def done() -> None:
            nonlocal count
            count += 1
            self.progress(doing, count, len(requests))

        return self.workers.ask(self.work, name, requests, done=done)

    def _problems(self, candidates: Sequence[Any], replies: Sequence[Reply]) -> None:
        """Note what went wrong; with `strict` the first fault of the compiler is an error at once.

        Raises:
            CompilerError: a legal schedule that does not compile or changes the result.
        """
        for opts, reply in zip(candidates, replies, strict=True):
            if reply.kind in ("ok", "refused"):
                continue
            self.problems[opts] = f"{reply.kind}: {reply.value}"
            if self.strict and reply.kind == "error":
                raise CompilerError(
                    f"BEAM_STRICT: a legal schedule of {self.work.ast.arg.name}, {shown(opts)}: {reply.value}"
                )


def shown(opts: Any) -> str:
    """Opts of a kernel, or those of each body of a launch, as text."""
    if opts and not isinstance(opts[0], Opt):
        return "; ".join(opts_text(each) for each in opts)
    return opts_text(opts) or "no opts"
