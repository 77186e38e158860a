"""A language model: decode and prefill, the whole process until its first token, and memory, at 1 and 2 threads.

    python benchmarks/llm.py MODEL.gguf [--threads 1,2] [--rounds 3] [--peers PYTHON]

Every number comes from a process of its own. Beside gradlet stand, in the interpreter that `--peers` names,
llama-cpp-python where it is installed, and the products of a prompt alone in torch (float32), which no prefill in
float32 can be faster than.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from importlib import import_module
from pathlib import Path
from typing import Any

PROMPT, DECODED = 256, 64
QUESTION = "What is the capital of France?"


def gradlet(path: str) -> dict[str, float]:
    """Load, prefill, decode and memory in this process."""
    import numpy as np

    from gradlet.llm.language import load

    start = time.perf_counter()
    model = load(path, 512).transformer
    found = {"load s": time.perf_counter() - start}
    tokens = np.random.default_rng(0).integers(100, model.config.vocabulary - 100, PROMPT).tolist()
    for _ in range(2):
        model.step(tokens, 0).numpy()
    seconds = []
    for _ in range(5):
        start = time.perf_counter()
        model.step(tokens, 0).numpy()
        seconds.append(time.perf_counter() - start)
    found["prefill tokens/s"] = PROMPT / statistics.median(seconds)
    position = 5
    model.step(tokens[:position], 0).numpy()
    for _ in range(3):
        model.step(tokens[:1], position).numpy()
        position += 1
    start = time.perf_counter()
    for _ in range(DECODED):
        model.step(tokens[:1], position).numpy().argmax()
        position += 1
    found["decode tokens/s"] = DECODED / (time.perf_counter() - start)
    found["anonymous MB"] = _anonymous()
    return found


def _anonymous() -> float:
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("RssAnon"):
            return int(line.split()[1]) / 1024
    return float("nan")


def first_token(path: str) -> dict[str, float]:
    """The whole process, from its start to the first piece of an answer."""
    command = [sys.executable, "-m", "gradlet", "llm", path, "-p", QUESTION, "--limit", "4"]
    start = time.perf_counter()
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as process:
        assert process.stdout is not None
        process.stdout.read(1)
        seconds = time.perf_counter() - start
        process.stdout.read()
    return {"first token s": seconds}


def llama_cpp(path: str) -> dict[str, float]:
    """The same by llama.cpp."""
    package: Any = import_module("llama_cpp")
    start = time.perf_counter()
    model = package.Llama(path, n_ctx=512, n_threads=_threads(), n_threads_batch=_threads(), verbose=False)
    found = {"load s": time.perf_counter() - start}
    tokens = list(range(100, 100 + PROMPT))
    model.eval(tokens)
    model.reset()
    start = time.perf_counter()
    model.eval(tokens)
    found["prefill tokens/s"] = PROMPT / (time.perf_counter() - start)
    start = time.perf_counter()
    for _ in range(DECODED):
        model.eval([100])
    found["decode tokens/s"] = DECODED / (time.perf_counter() - start)
    return found


def torch_products(path: str) -> dict[str, float]:
    """The matrix products of a prompt, without anything else."""
    import torch

    from gradlet.io import gguf

    torch.set_num_threads(_threads())
    shapes = [e.shape for e in gguf.File(path).entries.values() if len(e.shape) == 2 and "token_embd" not in e.name]
    cases = [(torch.randn(PROMPT, columns), torch.randn(rows, columns)) for rows, columns in shapes]
    seconds = []
    for _ in range(4):
        start = time.perf_counter()
        for x, weight in cases:
            x @ weight.T
        seconds.append(time.perf_counter() - start)
    return {"prefill tokens/s": PROMPT / min(seconds)}


RUNS = {"gradlet": gradlet, "gradlet first": first_token, "llama.cpp": llama_cpp, "torch products": torch_products}


def _threads() -> int:
    return int(os.environ["NUM_THREADS"])


def measure(python: str, name: str, path: str, threads: int) -> dict[str, float] | None:
    """One run in a process of its own; None where the package is not installed."""
    number = str(threads)
    names = "NUM_THREADS", "OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"
    environment: dict[str, Any] = {**os.environ, **dict.fromkeys(names, number)}
    environment["PYTHONPATH"] = str(Path(__file__).parent.parent)
    command = [python, __file__, path, "--run", name]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    return json.loads(done.stdout.splitlines()[-1]) if done.returncode == 0 else None


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("--threads", default="1,2")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--peers", default=sys.executable, help="the interpreter that has llama-cpp-python and torch")
    parser.add_argument("--run", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.run:
        print(json.dumps(RUNS[arguments.run](arguments.model)))
        return
    measure(sys.executable, "gradlet first", arguments.model, 1)  # what it finds on disk is there from now on
    for threads in map(int, arguments.threads.split(",")):
        rows: dict[str, dict[str, list[float]]] = {}
        for _ in range(arguments.rounds):
            for name in RUNS:
                python = sys.executable if name.startswith("gradlet") else arguments.peers
                for what, value in (measure(python, name, arguments.model, threads) or {}).items():
                    rows.setdefault(what, {}).setdefault(name.removesuffix(" first"), []).append(value)
        for what, found in rows.items():
            best = min if what.endswith((" s", "MB")) else max
            shown = ", ".join(f"{name} {best(v):.2f} (median {statistics.median(v):.2f})" for name, v in found.items())
            print(f"{threads} threads: {what}: {shown}", flush=True)


if __name__ == "__main__":
    main()
