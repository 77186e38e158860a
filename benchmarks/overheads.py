"""What is paid around the kernels: import, first result, memory, dispatch, replay of captured calls, scheduling.

Every number comes from a fresh process; processes of different frameworks alternate.
"""

from __future__ import annotations

import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

import harness

FIRST = {
    "torch": "import torch; assert (torch.tensor([1.0, 2, 3]) + 1).tolist() == [2, 3, 4]",
    "numpy": "import numpy; assert (numpy.array([1.0, 2, 3]) + 1).tolist() == [2, 3, 4]",
    "tinygrad": "from tinygrad import Tensor; assert (Tensor([1.0, 2, 3]) + 1).tolist() == [2, 3, 4]",
    "gradlet": "from gradlet import Tensor; assert (Tensor([1.0, 2, 3]) + 1).tolist() == [2, 3, 4]",
}
# Of this process alone: getrusage would count what the parent held when it forked.
PEAK = "; print(next(line for line in open('/proc/self/status') if line.startswith('VmHWM')).split()[1])"

DISPATCH_TORCH = """
import json, timeit, torch
torch.set_num_threads(1)
a, b = torch.ones(4, 4), torch.ones(4, 4)
best = min(timeit.repeat(lambda: a + b, number=2000, repeat=5)) / 2000
print(json.dumps({"eager": best}))
"""
DISPATCH_TENSOR = """
import json, sys, timeit
from PACKAGE import Tensor, TinyJit
a, b = Tensor.ones(4, 4).contiguous().realize(), Tensor.ones(4, 4).contiguous().realize()
eager = min(timeit.repeat(lambda: (a + b).realize(), number=50, repeat=5)) / 50
jitted = TinyJit(lambda x, y: (x + y).realize())
for _ in range(4):
    jitted(a, b)
jit = min(timeit.repeat(lambda: jitted(a, b), number=500, repeat=5)) / 500
print(json.dumps({"eager": eager, "jit": jit}))
"""
# A chain of products of 8x8 matrices: too small to take time, and no compiler makes one kernel of them.
CHAINS = (1, 10, 200, 1000)
MEASURE = """
import json, sys, time, timeit
length = int(LENGTH)
def measure(call):
    for _ in range(5):
        call()
    number = max(5, 4000 // length)
    print(json.dumps({"seconds": min(timeit.repeat(call, number=number, repeat=7)) / number}))
"""
REPLAY = {
    "gradlet": """
from gradlet import Tensor, TinyJit
def function(x, w):
    for _ in range(length):
        x = (x @ w).realize()
    return x
jitted = TinyJit(function)
x, w = [Tensor.ones(8, 8).contiguous().realize() for _ in range(2)]
measure(lambda: jitted(x, w))
""",
    "torch": """
import torch
torch.set_num_threads(1)
@torch.compile
def function(x, w):
    for _ in range(length):
        x = x @ w
    return x
x, w = torch.ones(8, 8), torch.ones(8, 8)
with torch.inference_mode():
    measure(lambda: function(x, w))
""",
    "jax": """
import jax, jax.numpy as jnp
@jax.jit
def function(x, w):
    for _ in range(length):
        x = x @ w
    return x
x, w = jnp.ones((8, 8)), jnp.ones((8, 8))
measure(lambda: function(x, w).block_until_ready())
""",
}
REPLAY["tinygrad"] = REPLAY["gradlet"].replace("from gradlet", "from tinygrad")
SCHEDULE = """
import gc, json, sys, time
sys.path.insert(0, HERE)
import frameworks, cases
api = frameworks.TensorApi("PACKAGE")

class Scheduled(Exception):
    pass

def schedule(loss, *others):
    begin = time.perf_counter()
    plan = loss.schedule_linear(*others) if hasattr(loss, "schedule_linear") else loss.schedule(*others)
    seconds.append(time.perf_counter() - begin)
    kernels.append(len(plan.calls if hasattr(plan, "calls") else plan.src))
    raise Scheduled

api.TinyJit = lambda function: function
realize = api.Tensor.realize
result = {}
for name in ("mlp_step", "demo_step"):
    seconds, kernels, graph = [], [], []
    for _ in range(5):
        run = cases.STEPS[name]().build(api)  # anew: writes of a step that never runs would pile up
        gc.collect()
        api.Tensor.realize = schedule
        begin = time.perf_counter()
        try:
            run()
        except Scheduled:
            pass
        graph.append(time.perf_counter() - begin - seconds[-1])
        api.Tensor.realize = realize
    result[name] = {"schedule": min(seconds), "graph": min(graph), "kernels": kernels[-1]}
print(json.dumps(result))
"""


def environment(name: str, cache: str) -> dict[str, str]:
    """A fixed environment with its own, possibly empty, cache folder."""
    kept = {k: v for k, v in os.environ.items() if k in ("PATH", "HOME", "LANG", "CC", "LD_LIBRARY_PATH")}
    kept |= {"DEV": "CPU", "XDG_CACHE_HOME": cache, "BENCH_THREADS": "1", "OMP_NUM_THREADS": "1", "NUM_THREADS": "1"}
    kept["XLA_FLAGS"] = "--xla_cpu_multi_thread_eigen=false intra_op_parallelism_threads=1"
    kept["PYTHONPATH"] = str(harness.HERE.parent) if name == "gradlet" else ""
    return kept


def wall(python: str, code: str, env: dict[str, str]) -> tuple[float, str]:
    """Seconds of a fresh process running `code`, and what it printed.

    Raises:
        MeasurementError: it failed.
    """
    import time

    begin = time.perf_counter()
    done = subprocess.run([python, "-c", code], env=env, capture_output=True, text=True, timeout=600)
    seconds = time.perf_counter() - begin
    if done.returncode:
        raise harness.MeasurementError(done.stderr.strip().splitlines()[-1] if done.stderr else "no message")
    return seconds, done.stdout


def start_up(names: list[str], pythons: dict[str, str], rounds: int) -> list[str]:
    """Import and first result, as table rows."""
    folders = {n: tempfile.mkdtemp(prefix="bench-cache-") for n in names}
    samples: dict[str, dict[str, list[float]]] = {n: {k: [] for k in ("bare", "import", "cold", "warm")} for n in names}
    memory: dict[str, int] = {}
    failures: list[str] = []
    try:
        for _ in range(rounds):
            for name in list(samples):
                try:
                    shutil.rmtree(folders[name], ignore_errors=True)
                    Path(folders[name]).mkdir()
                    env, python = environment(name, folders[name]), pythons[name]
                    samples[name]["bare"].append(wall(python, "pass", env)[0])
                    samples[name]["import"].append(wall(python, f"import {name}", env)[0])
                    samples[name]["cold"].append(wall(python, FIRST[name], env)[0])
                    seconds, output = wall(python, FIRST[name] + PEAK, env)
                    samples[name]["warm"].append(seconds)
                    memory[name] = int(output.split()[-1])
                except harness.MeasurementError as error:
                    failures.append(f"* {name}: {error}")
                    del samples[name]
    finally:
        for folder in folders.values():
            shutil.rmtree(folder, ignore_errors=True)
    lines = [
        "| | import ms | first result, empty cache ms | first result, warm cache ms | memory MB |",
        "|---|---|---|---|---|",
    ]
    for name, kinds in samples.items():
        bare = statistics.median(kinds["bare"])
        cells = [f"{(statistics.median(kinds[k]) - bare) * 1e3:.0f}" for k in ("import", "cold", "warm")]
        lines.append(f"| {name} | {' | '.join(cells)} | {memory[name] / 1024:.0f} |")
    return [*lines, "", f"Median of {rounds} fresh processes, less the start of a bare interpreter.", *failures]


def dispatch(names: list[str], pythons: dict[str, str]) -> list[str]:
    """Microseconds of the smallest possible operation."""
    lines = ["| | add of 4x4, eager us | the same jitted us |", "|---|---|---|"]
    for name in names:
        if name == "numpy":
            continue
        code = DISPATCH_TORCH if name == "torch" else DISPATCH_TENSOR.replace("PACKAGE", name)
        with tempfile.TemporaryDirectory() as cache:
            try:
                found = json.loads(wall(pythons[name], code, environment(name, cache))[1])
            except harness.MeasurementError as error:
                lines.append(f"| {name} | failed: {error} | - |")
                continue
        jit = f"{found['jit'] * 1e6:.1f}" if "jit" in found else "-"
        lines.append(f"| {name} | {found['eager'] * 1e6:.1f} | {jit} |")
    return lines


def replay(names: list[str], pythons: dict[str, str]) -> list[str]:
    """Microseconds of a jitted call of many tiny kernels."""
    lines = [
        f"| | {' | '.join(f'{length} kernels: us' for length in CHAINS)} | us for each more |",
        "|---" * (len(CHAINS) + 2) + "|",
    ]
    for name in names:
        cells: list[str] = []
        seconds: dict[int, float] = {}
        for length in CHAINS:
            code = MEASURE.replace("LENGTH", str(length)) + REPLAY[name]
            with tempfile.TemporaryDirectory() as cache:
                try:
                    seconds[length] = json.loads(wall(pythons[name], code, environment(name, cache))[1])["seconds"]
                    cells.append(f"{seconds[length] * 1e6:.1f}")
                except (harness.MeasurementError, subprocess.TimeoutExpired) as error:
                    cells.append(f"failed: {str(error)[:40]}")
        most = max(seconds, default=1)
        more = (seconds[most] - seconds[1]) / (most - 1) if 1 in seconds and most > 1 else None
        lines.append(f"| {name} | {' | '.join(cells)} | {'-' if more is None else f'{more * 1e6:.2f}'} |")
    return [*lines, "", "Products of 8x8 matrices, one thread; for torch `torch.compile`, for jax `jax.jit`."]


def scheduling(names: list[str], pythons: dict[str, str]) -> list[str]:
    """Building the graph of a training step and scheduling it, schedule caches off."""
    lines = ["| | step | graph ms | schedule ms | kernels |", "|---|---|---|---|---|"]
    for name in names:
        if name in ("numpy", "torch"):
            continue
        code = SCHEDULE.replace("PACKAGE", name).replace("HERE", repr(str(harness.HERE)))
        with tempfile.TemporaryDirectory() as cache:
            try:
                uncached = {**environment(name, cache), "SCHEDULE_CACHE": "0", "SCACHE": "0"}
                found = json.loads(wall(pythons[name], code, uncached)[1].splitlines()[-1])
            except harness.MeasurementError as error:
                lines.append(f"| {name} | failed: {error} | - | - | - |")
                continue
        for step, row in found.items():
            times = f"{row['graph'] * 1e3:.1f} | {row['schedule'] * 1e3:.1f}"
            lines.append(f"| {name} | {step} | {times} | {row['kernels']} |")
    return lines


def report(peers: str | None, rounds: int) -> str:
    """All tables of this script as markdown."""
    names = ["gradlet", *(("torch", "tinygrad", "numpy") if peers else ())]
    jitted = ["torch", "jax", "tinygrad"] if peers else []
    pythons = {n: (peers if n != "gradlet" and peers else sys.executable) for n in [*names, *jitted]}
    parts = [
        "### Start\n\n" + "\n".join(start_up(names, pythons, rounds)),
        "### Dispatch (1 thread)\n\n" + "\n".join(dispatch(names, pythons)),
        "### Jitted calls of many tiny kernels\n\n" + "\n".join(replay([*names[:1], *jitted], pythons)),
        "### Scheduling a training step\n\n" + "\n".join(scheduling(names, pythons)),
    ]
    return "\n\n".join(parts)


def main() -> None:
    import argparse

    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--peers", help="python of the environment that has torch, tinygrad and numpy")
    parser.add_argument("--rounds", type=int, default=5)
    parsed = parser.parse_args()
    print(report(parsed.peers, parsed.rounds))


if __name__ == "__main__":
    main()
