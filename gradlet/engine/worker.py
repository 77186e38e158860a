"""The process that lowers, compiles and times schedules for a search: whatever a candidate does, it does it here.

It reads requests from its standard input and answers on its standard output, both as frames (see `send`). When the
input ends, so does the process, also in the middle of a kernel that never returns.
"""

from __future__ import annotations

import os
import pickle
import struct
import sys
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from queue import SimpleQueue
from typing import IO, Any, Final, NamedTuple

from gradlet.base import settings
from gradlet.base.errors import ArgumentError, CompilerError, DeviceError
from gradlet.graph.node import UOp
from gradlet.graph.program import LinearProgram
from gradlet.ops.op import KernelArg, LaunchArg
from gradlet.ops.opt import Opt

Opts = tuple[Opt, ...]

RUNS: Final = (5, 200)  # fewest and most times that a candidate is run
TIMED_SECONDS: Final = 0.05  # of running one candidate
COMPARED_SECONDS: Final = 0.4  # of running one of several candidates in turns
COMPARED_RUNS: Final = (7, 60)
HOPELESS: Final = 1.4  # a candidate this much slower than the best so far is not run again
IN_A_ROW_SECONDS: Final = 2e-4  # of runs in a row: what begins and ends them is little beside it
MOST_IN_A_ROW: Final = 20
MEMORY: Final = 6 << 30  # address space that a worker may take beside its buffers
_LENGTH: Final = struct.Struct("<q")


class Work(NamedTuple):
    """One kernel that is searched.

    Attributes:
        ast: a kernel, or a launch whose bodies get the opts.
        device: where it runs.
        parallel: whether threads may share a range of it.
        settings: values of all settings by name.
    """

    ast: UOp
    device: str
    parallel: bool
    settings: dict[str, Any]


@dataclass(frozen=True)
class Built:
    """Machine code of a candidate and what is needed to load it."""

    code: bytes
    program: Any


class Reply(NamedTuple):
    """`kind` is `ok` (then `value` is the result), or `refused`, `error` (of the compiler), `failed` with a text.

    `lost`: an error after which the process is of no more use, as a GPU's where a kernel has left its memory.
    """

    kind: str
    value: Any


def send(stream: IO[bytes], message: Any) -> None:
    """Write a frame: its length and the pickled message."""
    data = pickle.dumps(message, protocol=pickle.HIGHEST_PROTOCOL)
    stream.write(_LENGTH.pack(len(data)) + data)
    stream.flush()


def receive(stream: IO[bytes]) -> Any:
    """Read a frame.

    Raises:
        EOFError: the other side has gone.
    """
    head = stream.read(_LENGTH.size)
    if len(head) < _LENGTH.size:
        raise EOFError
    data = stream.read(_LENGTH.unpack(head)[0])
    return pickle.loads(data)


class Bench:
    """Answers requests about one kernel."""

    def __init__(self, work: Work) -> None:
        from gradlet.runtime.device import Device

        self.work = work
        self.backend: Any = Device[work.device]
        self.target = self.backend.target
        self._inputs: Any = None
        self._expected: list[Any] | None = None

    @property
    def inputs(self) -> Any:
        """Memory to run on, made when something runs."""
        if self._inputs is None:
            from gradlet.engine.inputs import Inputs

            self._inputs = Inputs(self.work.ast, self.work.device)
            if self.target.kind == "cpu":  # the driver of a GPU reserves addresses as it likes
                _limit_memory(MEMORY)
        return self._inputs

    def _lower(self, opts: Any) -> Any:
        from gradlet.codegen import launch, pipeline

        ast = self.work.ast
        if isinstance(ast.arg, LaunchArg):
            bodies = [b.replace(arg=KernelArg(b.arg.name, o)) for b, o in zip(ast.src, opts, strict=True)]
            return launch.lower_launch(ast.replace(src=tuple(bodies)), self.target)
        return pipeline.lower(ast.replace(arg=KernelArg(ast.arg.name, opts)), self.target, parallel=self.work.parallel)

    def estimate(self, opts: Opts) -> float:
        """Expected seconds."""
        from gradlet.optimize import lanecost, programcost

        model = lanecost if self.target.warp > 1 else programcost
        return model.estimate(self._lower(opts), self.target).seconds

    def build(self, opts: Any) -> Built:
        """Machine code."""
        program = self._lower(opts)
        with settings.scope(CACHE=0):  # most candidates are never asked for again
            code = self.backend.compile(program)
        if self.target.kind != "cpu":  # what a launch has to know is read off the program
            return Built(code, program)
        if isinstance(program, LinearProgram):
            return Built(code, replace(program, uops=()))
        return Built(code, replace(program, programs=tuple(replace(p, uops=()) for p in program.programs)))

    def _load(self, built: Built) -> Callable[[], float]:
        program = self.backend.load(built.program.name, built.code, built.program)
        inputs = self.inputs
        if not self.work.parallel and isinstance(built.program, LinearProgram):
            return lambda: _alone(program, inputs)
        once = lambda: float(program(inputs.buffers, inputs.values, True))  # noqa: E731
        timer = getattr(self.backend, "timer", None)
        if timer is None or inputs.drifts:
            return once
        return _InARow(once, lambda count: timer(program, inputs.buffers, inputs.values, count))

    def check(self, run: Callable[[], float]) -> float:
        """Run once on cleared memory and compare with what the first candidate gave; the seconds it took.

        Raises:
            CompilerError: other results.
        """
        self.inputs.clear()
        seconds = run()
        found = self.inputs.results()
        if self._expected is None:
            self._expected = found
        problem = self.inputs.differ(self._expected, found)
        if problem:
            raise CompilerError(f"the schedule changes the result: {problem}")
        return seconds

    def measure(self, built: Built, best: float, reference: Built | None = None) -> float:
        """The least seconds of some runs; of few runs where `best` is out of reach.

        Raises:
            CompilerError: other results than those of `reference`, or of what was measured first.
        """
        if self._expected is None and reference is not None:  # a fresh process
            self.check(self._load(reference))
        run = self._load(built)
        found = total = self.check(run)
        count = 0
        while count < RUNS[1] and not (count >= RUNS[0] and total > TIMED_SECONDS):
            if (count >= 2 and found > HOPELESS * best) or found > 4 * HOPELESS * best:
                break
            self.inputs.restore()
            seconds = run()
            found = min(found, seconds)
            total += seconds
            count += 1
        return found

    def compare(self, candidates: Sequence[Built]) -> list[float]:
        """The least seconds of each, run in turns."""
        runs = [self._load(built) for built in candidates]
        best = [self.check(run) for run in runs]
        total, count = 0.0, 0
        while count < COMPARED_RUNS[1] and not (
            count >= COMPARED_RUNS[0] and total > COMPARED_SECONDS * len(candidates)
        ):
            for number, run in enumerate(runs):
                self.inputs.restore()
                run()  # what the one before left in the caches is no advantage
                self.inputs.restore()
                seconds = run()
                best[number] = min(best[number], seconds)
                total += 2 * seconds
            count += 1
        return best


class _InARow:
    """Runs of one candidate, timed: the first one alone, later ones of a short kernel several in a row."""

    def __init__(self, once: Callable[[], float], timer: Callable[[int], Callable[[], float]]) -> None:
        self._once, self._timer = once, timer
        self._many: Callable[[], float] | None = None

    def __call__(self) -> float:
        if self._many is not None:
            return self._many()
        seconds = self._once()
        count = min(MOST_IN_A_ROW, int(IN_A_ROW_SECONDS / max(seconds, 1e-9)))
        self._many = self._timer(count) if count > 1 else self._once
        return seconds


def _alone(program: Any, inputs: Any) -> float:
    """One run on the calling thread."""
    with settings.scope(NUM_THREADS=1):
        return float(program(inputs.buffers, inputs.values, True))


def _limit_memory(extra: int) -> None:
    """Let the system refuse memory beyond what is in use now and `extra` bytes, before it gets short for everybody."""
    try:
        import resource

        with open("/proc/self/statm") as file:
            pages = int(file.read().split()[0])
        limit = pages * resource.getpagesize() + extra
        _, hard = resource.getrlimit(resource.RLIMIT_AS)
        resource.setrlimit(resource.RLIMIT_AS, (limit if hard < 0 else min(limit, hard), hard))
    except (ImportError, OSError, ValueError):
        pass  # other systems have other ways


def _answer(bench: Bench, name: str, arguments: tuple[Any, ...]) -> Reply:
    try:
        return Reply("ok", getattr(bench, name)(*arguments))
    except ArgumentError as error:
        return Reply("refused", str(error))
    except CompilerError as error:
        return Reply("error", f"{type(error).__name__}: {error}")
    except MemoryError:
        return Reply("failed", "out of memory")
    except DeviceError as error:
        return Reply("failed" if "out of memory" in str(error) else "lost", f"DeviceError: {error}")
    except Exception as error:  # a fault of whatever kind concerns this candidate only
        return Reply("error", f"{type(error).__name__}: {error}")


def main() -> None:
    """Answer requests `(work or None, name, arguments)` until there are no more."""
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # whatever prints must not get between the answers
    requests: SimpleQueue[Any] = SimpleQueue()

    def read() -> None:
        try:
            while True:
                requests.put(receive(sys.stdin.buffer))
        except Exception:
            os._exit(0)

    threading.Thread(target=read, daemon=True).start()
    bench: Bench | None = None
    context: Any = None
    while True:
        work, name, arguments = requests.get()
        if work is not None:
            if context is not None:
                context.__exit__(None, None, None)
            context = settings.scope(**work.settings)
            context.__enter__()
            bench = Bench(work)
        assert bench is not None
        send(answers, _answer(bench, name, arguments))


if __name__ == "__main__":
    main()
