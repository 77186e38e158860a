"""Runs every benchmark and writes RESULTS.md: date, machine, commands, tables side by side."""

from __future__ import annotations

import argparse
import datetime
import importlib.util
import os
import subprocess
import sys

import cases
import harness
import kernels
import overheads

INTRODUCTION = """\
# Results

Written by `python benchmarks/run_all.py --peers PEERS_PYTHON`; do not edit by hand.

* Date: {date}
* Machine: {machine}; load average at the start {load}
* Python {python}; gradlet at {commit}

Each framework runs in its own process; rounds are interleaved with a silent gap between frameworks; results are
compared before anything is timed. torch is eager, tinygrad and gradlet run their TinyJit. One thread means one pinned
core. All processes keep freed memory, so fresh outputs cost no page faults. Ratios are of medians; below 1 gradlet is
faster.
"""

KERNELS = """\
A ratio is gradlet's time by that of the fastest peer, of medians and of minima (below 1 gradlet is faster), beside the
goal of the row and its floor. Peers are torch eager (also with channels last), torch.compile, jax.jit, numpy,
onnxruntime and OpenVINO, where they have the operation; convolutions have their weights inside the graph in the last
two, so that these lay them out once.

"""

FUSION = """\
Kernels started / megabytes moved (1e6 bytes, unique reads and writes of every launch). ideal: by hand, without grid
barriers and float atomics. tinygrad 0.14, inductor (torch 2.13) and xla (jax 0.10.2) were counted once. Differences to
torch are relative to the largest value. Times (all cores, jitted, medians of 9, interleaved): as chosen; fused kernels
one a launch; an operation a kernel; the first by the faster of the other two. Typical figures of the machine (PROBE=0).

"""


def git_commit() -> str:
    """The commit of the working tree, with a mark when there are changes on top."""

    def git(*arguments: str) -> str:
        command = ["git", *arguments]
        return subprocess.run(command, cwd=harness.HERE, capture_output=True, text=True, check=True).stdout

    try:
        return git("rev-parse", "--short", "HEAD").strip() + (" with changes" if git("status", "--porcelain") else "")
    except (OSError, subprocess.CalledProcessError):
        return "an unknown commit"


def output_of(name: str, *arguments: str) -> str:
    """What another benchmark prints; with the last line of its complaint if it fails."""
    environment = {**os.environ, "PYTHONPATH": str(harness.HERE.parent), "DEV": "CPU"}
    command = [sys.executable, str(harness.HERE / name), *arguments]
    done = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=1800)
    remark = f"\n\n{done.stderr.strip().splitlines()[-1]}" if done.returncode and done.stderr.strip() else ""
    return done.stdout.strip() + remark


def graph_core(peers: str | None) -> str:
    """Output of graph_core.py."""
    return f"```\n{output_of('graph_core.py', *(['--peers', peers] if peers else []))}\n```"


def fusion() -> str:
    """Output of fusion.py: results are compared where this environment has torch."""
    has_torch = importlib.util.find_spec("torch") is not None
    return FUSION + output_of("fusion.py", "--time", *(["--check"] if has_torch else []))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--peers", help="python of the environment that has torch, tinygrad and numpy")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--only", default="", help="rows of kernels.py, all without it; the other tables are whole")
    parser.add_argument("--output", default=str(harness.HERE / "RESULTS.md"))
    parsed = parser.parse_args()
    cores = len(os.sched_getaffinity(0))
    common = {
        "peers": parsed.peers,
        "rounds": parsed.rounds,
        "frameworks": ["gradlet", "torch", "tinygrad"] if parsed.peers else ["gradlet"],
        "threads": sorted({1, cores}),
    }
    head = INTRODUCTION.format(
        date=datetime.date.today().isoformat(),
        machine=harness.machine(),
        load=f"{os.getloadavg()[0]:.2f}",
        python=sys.version.split()[0],
        commit=git_commit(),
    )
    rows = kernels.chosen(parsed.only)
    table = kernels.run_table(parsed.peers, rows, common["threads"], min(parsed.rounds, 5))
    ops = harness.run_table(argparse.Namespace(only=list(cases.OPS), **common))
    steps = harness.run_table(argparse.Namespace(only=list(cases.STEPS), **common))
    sections = [
        ("Kernels and models beside the best of every library (`benchmarks/kernels.py`)", KERNELS + table),
        (
            "What a kernel costs before it runs (`benchmarks/kernel_compile.py`)",
            f"```\n{output_of('kernel_compile.py')}\n```",
        ),
        ("Operators (`benchmarks/ops.py`)", ops),
        ("Training steps (`benchmarks/steps.py`)", steps),
        ("How programs are cut into kernels (`benchmarks/fusion.py --check --time`)", fusion()),
        (
            "From models to machine code (`benchmarks/compile_time.py`)",
            f"```\n{output_of('compile_time.py', *(['--peers', parsed.peers] if parsed.peers else []))}\n```",
        ),
        ("Scheduling time (`benchmarks/schedule_time.py`)", f"```\n{output_of('schedule_time.py')}\n```"),
        ("Overheads (`benchmarks/overheads.py`)", overheads.report(parsed.peers, max(3, parsed.rounds // 2))),
        (
            "Programs without jit (`benchmarks/unjitted.py`)",
            f"```\n{output_of('unjitted.py', *(['--peers', parsed.peers] if parsed.peers else []))}\n```",
        ),
        ("The graph core (`benchmarks/graph_core.py`)", graph_core(parsed.peers)),
        (
            "Calls of captured functions (`benchmarks/replay.py`)",
            output_of("replay.py", *(["--peers", parsed.peers] if parsed.peers else [])),
        ),
    ]
    text = head + "".join(f"\n## {title}\n\n{body}\n" for title, body in sections)
    with open(parsed.output, "w") as file:
        file.write(text)
    print(f"wrote {parsed.output}")


if __name__ == "__main__":
    main()
