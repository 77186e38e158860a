"""Measures frameworks side by side: each in its own process, rounds interleaved, medians, minima and ratios.

Guards, each learnt from a wrong number:
* the device is pinned (DEV=CPU) and asserted in the worker, and the worker waits on the device that runs the work;
* a rate above what the machine can do is an error, not a record;
* a worker that burns processor time after it answered has not waited for its work: an error too;
* results are compared between frameworks before anything is timed;
* after timed runs there is a silent gap, so that one framework's spinning threads do not slow the next one;
* a round waits until no other process computes, and rounds that had to run beside one are counted under the table;
* thread counts are set in every library's own variable, and one thread means one pinned core;
* memory that was freed stays with the process, else page faults of fresh outputs are measured instead of kernels.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
# Two 512-bit fused multiply-adds a cycle at a clock no processor of today holds: above it a measurement is wrong.
CEILING_FLOPS_PER_THREAD = 64 * 4.5e9
BURN_LIMIT = 0.5
QUIET_CORES = 0.25  # what the rest of the system may use while a round begins
PATIENCE = 60.0  # seconds that one table may spend waiting for that
_THREAD_VARIABLES = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "NUM_THREADS", "NUM_CPU_THREADS")
_KEEP_PAGES = {"MALLOC_MMAP_MAX_": "0", "MALLOC_TRIM_THRESHOLD_": str(1 << 40), "MALLOC_TOP_PAD_": str(256 << 20)}


class MeasurementError(Exception):
    """A measurement that cannot be right."""


@dataclass
class Worker:
    """One framework in its own process with a fixed number of threads."""

    name: str
    python: str
    threads: int
    process: subprocess.Popen[str] = field(init=False)

    def __post_init__(self) -> None:
        environment = {k: v for k, v in os.environ.items() if not k.startswith(("OPENBLAS_", "OMP_", "KMP_"))}
        for variable in ("DEBUG", "SPEC", "NOOPT", "BEAM", "JIT", "FUSE", "CPU_FEATURES"):
            environment.pop(variable, None)
        environment |= {"DEV": "CPU", "BENCH_THREADS": str(self.threads), **_KEEP_PAGES}
        environment |= dict.fromkeys(_THREAD_VARIABLES, str(self.threads))
        if self.threads == 1:
            environment["XLA_FLAGS"] = "--xla_cpu_multi_thread_eigen=false"
        environment |= {"JAX_PLATFORMS": "cpu", "TORCHINDUCTOR_COMPILE_THREADS": "1"}
        environment["PYTHONPATH"] = str(HERE.parent) if self.name == "gradlet" else ""
        if self.threads == 1:
            environment["BENCH_PIN"] = str(min(os.sched_getaffinity(0)))
        log = open(os.devnull, "w") if not os.environ.get("BENCH_VERBOSE") else None  # noqa: SIM115 - the worker's
        self.process = subprocess.Popen(
            [self.python, str(HERE / "worker.py"), self.name],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log, text=True, env=environment,
        )  # fmt: skip

    def ask(self, **request: Any) -> dict[str, Any]:
        """Send one request and wait for its answer.

        Raises:
            MeasurementError: the worker reports an error or has died.
        """
        assert self.process.stdin is not None and self.process.stdout is not None
        try:
            self.process.stdin.write(json.dumps(request) + "\n")
            self.process.stdin.flush()
        except BrokenPipeError:
            raise MeasurementError(f"{self.name}: the worker has died") from None
        line = self.process.stdout.readline()
        if not line:
            raise MeasurementError(f"{self.name}: the worker has died; BENCH_VERBOSE=1 shows what it said")
        answer: dict[str, Any] = json.loads(line)
        if "error" in answer:
            raise MeasurementError(f"{self.name}: {answer['error']}")
        return answer

    def stop(self) -> None:
        """End the process."""
        if self.process.stdin is not None:
            self.process.stdin.close()
        try:
            self.process.wait(5)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()


@dataclass(frozen=True)
class Timing:
    """All timed runs of one case in one framework."""

    seconds: tuple[float, ...]

    @property
    def median(self) -> float:
        return statistics.median(self.seconds)

    @property
    def best(self) -> float:
        return min(self.seconds)


class Quiet:
    """Waits for a machine that nobody else computes on, as long as its patience lasts."""

    def __init__(self, patience: float = PATIENCE) -> None:
        self.patience = patience
        self.rounds = 0
        self.disturbed = 0

    def wait(self) -> None:
        """Return when the machine is quiet, or count one more disturbed round."""
        self.rounds += 1
        while busy_cores() > QUIET_CORES:
            if self.patience <= 0:
                self.disturbed += 1
                return
            time.sleep(0.5)
            self.patience -= 0.6


def busy_cores(sample: float = 0.1) -> float:
    """How many cores computed during the sample, all processes together; 0 where the system does not say."""
    try:
        before = _cpu_ticks()
        time.sleep(sample)
        after = _cpu_ticks()
    except OSError:
        return 0.0
    return (after - before) / os.sysconf("SC_CLK_TCK") / sample


def _cpu_ticks() -> int:
    """Clock ticks that all cores have spent computing since the start, stolen ones included."""
    user, nice, system, _idle, _wait, interrupt, soft, steal = map(int, Path("/proc/stat").read_text().split()[1:9])
    return user + nice + system + interrupt + soft + steal


@dataclass
class Row:
    """One case: a timing a framework, or the reason there is none."""

    title: str
    threads: int
    flops: int
    bytes: int
    timings: dict[str, Timing] = field(default_factory=dict)
    failures: dict[str, str] = field(default_factory=dict)


def check_rate(name: str, case: str, flops: int, seconds: float, threads: int) -> None:
    """Refuse a rate above what `threads` cores can do.

    Raises:
        MeasurementError: so fast that it did not happen.
    """
    if flops > CEILING_FLOPS_PER_THREAD * threads * seconds:
        rate = flops / seconds / 1e9
        raise MeasurementError(f"{name} {case}: {rate:.0f} GFLOP/s is above the ceiling; it did not wait for its work")


def check_values(case: str, values: dict[str, list[float]], tolerance: float = 2e-3) -> dict[str, str]:
    """Compare results with torch's (or the first one's): framework -> what is wrong."""
    reference = values.get("torch") or next(iter(values.values()), [])
    scale = max((abs(v) for v in reference), default=0.0) + 1e-6
    wrong: dict[str, str] = {}
    for name, mine in values.items():
        worst = max((abs(a - b) for a, b in zip(mine, reference, strict=True)), default=0.0)
        if not worst <= tolerance * scale:
            wrong[name] = f"another result (off by {worst:.2g} of {scale:.2g})"
    return wrong


def measure(workers: Sequence[Worker], name: str, rounds: int, quiet: Quiet | None = None) -> Row:
    """Measure one case in all frameworks, rounds interleaved."""
    quiet = quiet or Quiet(0.0)
    import catalog

    case = catalog.CASES[name]()
    threads = workers[0].threads
    row = Row(case.title, threads, case.flops, case.bytes)
    values: dict[str, list[float]] = {}
    for worker in workers:
        try:
            values[worker.name] = worker.ask(do="open", case=name)["values"]
        except MeasurementError as error:
            row.failures[worker.name] = str(error)
    row.failures |= check_values(name, values, case.tolerance)
    running = [w for w in workers if w.name not in row.failures]
    seconds: dict[str, list[float]] = {w.name: [] for w in running}
    calls = {w.name: 1 for w in running}
    for number in range(rounds):
        for worker in running:
            if worker.name in row.failures:
                continue
            quiet.wait()
            try:
                slow = number > 0 and min(seconds[worker.name]) > 0.3
                answer = worker.ask(do="time", case=name, calls=calls[worker.name], warm=not slow)
                if answer["burned"] > BURN_LIMIT:
                    raise MeasurementError(f"{worker.name} {name}: still busy after it answered")
                check_rate(worker.name, name, case.flops, min(answer["seconds"]), threads)
                seconds[worker.name] += answer["seconds"]
                calls[worker.name] = max(1, min(20, int(0.05 / min(answer["seconds"]))))
            except MeasurementError as error:
                row.failures[worker.name] = str(error)
    for worker in workers:
        try:
            worker.ask(do="close", case=name)
        except MeasurementError as error:
            row.failures.setdefault(worker.name, str(error))
    row.timings = {n: Timing(tuple(s)) for n, s in seconds.items() if s and n not in row.failures}
    return row


def machine() -> str:
    """Processor and cores, in words."""
    model = platform.processor() or platform.machine()
    try:
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                model = line.split(":", 1)[1].strip()
                break
    except OSError:
        pass
    flags = [f for f in ("avx512f", "avx2") if f in _cpu_flags()]
    isa = f", {flags[0]}" if flags else ""
    return f"{model}{isa}, {len(os.sched_getaffinity(0))} cores, {platform.system()} {platform.release()}"


def _cpu_flags() -> set[str]:
    try:
        text = Path("/proc/cpuinfo").read_text()
    except OSError:
        return set()
    return {f for line in text.splitlines() if line.startswith("flags") for f in line.split(":", 1)[1].split()}


def milliseconds(timing: Timing) -> str:
    """Median, and the minimum in brackets."""
    digits = 3 if timing.median < 0.01 else 2 if timing.median < 0.1 else 1
    return f"{timing.median * 1e3:.{digits}f} ({timing.best * 1e3:.{digits}f})"


def markdown(rows: Sequence[Row], names: Sequence[str]) -> str:
    """The table: times in ms as median (minimum), gradlet's rate, and time relative to each peer."""
    peers = [n for n in names if n != "gradlet"]
    header = ["case", "threads", *(f"{n} ms" for n in names), "gradlet rate", *(f"gradlet / {p}" for p in peers)]
    lines = ["| " + " | ".join(header) + " |", "|" + "---|" * len(header)]
    for row in rows:
        ours = row.timings.get("gradlet")
        cells = [row.title, str(row.threads)]
        cells += [milliseconds(row.timings[n]) if n in row.timings else "failed" for n in names]
        cells.append(rate(row, ours))
        for peer in peers:
            theirs = row.timings.get(peer)
            cells.append(f"{ours.median / theirs.median:.2f}" if ours and theirs else "-")
        lines.append("| " + " | ".join(cells) + " |")
    failures = [f"* {row.title}, {row.threads} threads: {text}" for row in rows for text in row.failures.values()]
    return "\n".join(lines + ([""] + failures if failures else []))


def rate(row: Row, timing: Timing | None) -> str:
    """GFLOP/s where the case is about arithmetic, else GB/s of unique bytes."""
    if timing is None:
        return "-"
    if row.flops:
        return f"{row.flops / timing.median / 1e9:.1f} GFLOP/s"
    return f"{row.bytes / timing.median / 1e9:.1f} GB/s"


def arguments(description: str, known: Sequence[str]) -> argparse.Namespace:
    """The options that all benchmark scripts share."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--peers", help="python that has torch and tinygrad; without it gradlet alone")
    parser.add_argument("--frameworks", default="gradlet,torch,tinygrad", help="which to run (default: all)")
    parser.add_argument("--only", default=",".join(known), help=f"which of {', '.join(known)}")
    parser.add_argument("--rounds", type=int, default=7, help="interleaved rounds (default 7)")
    both = sorted({1, len(os.sched_getaffinity(0))})
    parser.add_argument("--threads", default=",".join(map(str, both)), help="thread counts (default: 1 and all cores)")
    parsed = parser.parse_args()
    parsed.only = [n for n in parsed.only.split(",") if n]
    if unknown := set(parsed.only) - set(known):
        parser.error(f"unknown case {', '.join(sorted(unknown))}; known: {', '.join(known)}")
    parsed.threads = [int(n) for n in parsed.threads.split(",")]
    parsed.frameworks = parsed.frameworks.split(",")
    if parsed.peers is None:
        parsed.frameworks = ["gradlet"]
    return parsed


def run_table(options: argparse.Namespace, say: bool = True) -> str:
    """Measure the chosen cases and return the table."""
    rows: list[Row] = []
    descriptions: dict[str, dict[str, Any]] = {}
    quiet = Quiet()
    for threads in options.threads:
        workers = [
            Worker(n, options.peers if n != "gradlet" else sys.executable, threads) for n in options.frameworks
        ]  # fmt: skip
        try:
            for worker in workers:
                descriptions[worker.name] = worker.ask(do="describe")
            for name in options.only:
                rows.append(measure(workers, name, options.rounds, quiet))
                if say:
                    print(markdown(rows[-1:], options.frameworks).splitlines()[2], file=sys.stderr, flush=True)
        finally:
            for worker in workers:
                worker.stop()
    versions = ", ".join(f"{n} {d['version']}" for n, d in descriptions.items())
    noise = (
        f" {quiet.disturbed} of {quiet.rounds} runs had another busy process beside them." if quiet.disturbed else ""
    )
    return (
        f"{markdown(rows, options.frameworks)}\n\nms: median (minimum) of {options.rounds} rounds. {versions}.{noise}"
    )
