"""What a call of a captured function costs: chains of 1 to 1000 tiny products, beside tinygrad, torch and jax.

    python benchmarks/replay.py --peers /path/to/python

The products (8x8) depend on each other and are kernels of their own. Each framework runs in a process of its own, on
one thread; the best of several rounds counts. The work of a product is some ten nanoseconds: what is measured is what
is paid around it.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from pathlib import Path

LENGTHS = (1, 10, 200, 1000)
TIMER = """
import json, time
import numpy as np
W, X = (np.eye(8, dtype=np.float32) * 0.5, np.ones((8, 8), np.float32))
def best(call, count):
    for _ in range(5): call()
    rounds = []
    for _ in range(7):
        start = time.perf_counter()
        for _ in range(count): call()
        rounds.append((time.perf_counter() - start) / count)
    return min(rounds) * 1e6
found = {}
"""
PROGRAMS = {
    "gradlet": """
from gradlet import Tensor, jit
w, x = Tensor(W).realize(), Tensor(X).realize()
def chain(length):
    @jit
    def function(x):
        for _ in range(length): x = (x @ w).realize()
        return x
    return lambda: function(x)
""",
    "tinygrad": """
from tinygrad import Tensor, TinyJit
w, x = Tensor(W).realize(), Tensor(X).realize()
def chain(length):
    @TinyJit
    def function(x):
        for _ in range(length): x = (x @ w).realize()
        return x
    return lambda: function(x)
""",
    "torch.compile": """
import torch
torch.set_num_threads(1)
w, x = torch.tensor(W), torch.tensor(X)
def chain(length):
    def function(x):
        for _ in range(length): x = x @ w
        return x
    compiled = torch.compile(function)
    def call():
        with torch.no_grad(): compiled(x)
    return call
""",
    "jax.jit": """
import jax
w, x = jax.numpy.asarray(W), jax.numpy.asarray(X)
def chain(length):
    def function(x):
        for _ in range(length): x = x @ w
        return x
    compiled = jax.jit(function)
    return lambda: compiled(x).block_until_ready()
""",
}
END = """
for length in LENGTHS:
    found[length] = best(chain(length), max(5, 2000 // length))
    print(json.dumps(found), flush=True)
"""


def measure(name: str, python: str, lengths: tuple[int, ...], seconds: float) -> dict[str, float]:
    """Microseconds a call, by the length of the chain; what took too long to compile is not there."""
    program = TIMER + PROGRAMS[name] + END.replace("LENGTHS", repr(lengths))
    threads = {"OMP_NUM_THREADS": "1", "NUM_THREADS": "1", "XLA_FLAGS": "--xla_cpu_multi_thread_eigen=false"}
    path = {"PYTHONPATH": str(Path(__file__).parents[1])} if name == "gradlet" else {}
    try:
        output = subprocess.run(
            [python, "-c", program], env={**os.environ, **threads, **path}, capture_output=True, text=True,
            timeout=seconds,
        ).stdout  # fmt: skip
    except subprocess.TimeoutExpired as stopped:
        given = stopped.stdout or b""
        output = given.decode() if isinstance(given, bytes) else given
    lines = output.strip().splitlines()
    return json.loads(lines[-1]) if lines else {}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--peers", default=sys.executable, help="a Python that has tinygrad, torch and jax")
    parser.add_argument("--seconds", type=float, default=120, help="the longest that one framework may take")
    options = parser.parse_args()
    print("| us a call | " + " | ".join(f"{n} kernels" for n in LENGTHS) + " |\n|---|" + "---:|" * len(LENGTHS))
    for name in PROGRAMS:
        python = sys.executable if name == "gradlet" else options.peers
        found = measure(name, python, LENGTHS, options.seconds)
        cells = [f"{found[str(n)]:.1f}" if str(n) in found else "-" for n in LENGTHS]
        print(f"| {name} | " + " | ".join(cells) + " |", flush=True)


if __name__ == "__main__":
    main()
