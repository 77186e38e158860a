"""A fresh process from a model's file to its first result, beside onnxruntime: what a user's second process waits for.

    python benchmarks/first_result.py --peers PEERS_PYTHON [--only silero,MiniLM] [--threads 1] [--rounds 3]

Processes take turns. Before that each model runs once in gradlet, which fills the caches on disk. Counted are making
the runner or session and its first call, and in a column of its own what importing the library takes (numpy is there).
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

HERE = Path(__file__).resolve().parent
_THREADS = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "NUM_THREADS", "NUM_CPU_THREADS")


def once(name: str, model: str, arrays: str, threads: int) -> dict[str, float]:
    """Seconds of one process."""
    if threads == 1:
        os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
    import numpy as np

    inputs = dict(np.load(arrays))
    call: Any
    begin = time.perf_counter()
    if name == "gradlet":
        from gradlet.onnx.runner import OnnxRunner

        imported = time.perf_counter()
        runner = OnnxRunner(model, "CPU")

        def call() -> list[Any]:
            return [value.numpy() for value in runner(inputs).values()]
    else:
        onnxruntime: Any = import_module("onnxruntime")
        imported = time.perf_counter()
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads, options.inter_op_num_threads = threads, 1
        session = onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])

        def call() -> list[Any]:
            return session.run(None, inputs)  # type: ignore[no-any-return]

    made = time.perf_counter()
    results = call()
    first = time.perf_counter()
    mean = float(np.abs(results[0].astype(np.float64)).mean())
    return {"import": imported - begin, "create": made - imported, "first": first - made, "mean": mean}


def fresh(name: str, python: str, model: Path, arrays: Path, threads: int) -> dict[str, float]:
    """The same in a process of its own."""
    environment = {**os.environ, **dict.fromkeys(_THREADS, str(threads)), "DEV": "CPU"}
    environment["PYTHONPATH"] = str(HERE.parent) if name == "gradlet" else ""
    environment.pop("PYTHONDONTWRITEBYTECODE", None)  # an installed package has its bytecode
    command = [python, str(HERE / "first_result.py"), "--once", name, str(model), str(arrays), str(threads)]
    answer = subprocess.run(command, env=environment, stdout=subprocess.PIPE, check=True).stdout
    return json.loads(answer)  # type: ignore[no-any-return]


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--once", nargs=4, help=argparse.SUPPRESS)
    parser.add_argument("--peers", help="python of an environment with onnxruntime")
    parser.add_argument("--only", default="", help="beginnings of rows, separated by commas")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=3)
    arguments = parser.parse_args()
    if arguments.once:
        name, model, arrays, threads = arguments.once
        print(json.dumps(once(name, model, arrays, int(threads))))
        return
    from real_files import ROWS, prepare

    sys.path.insert(0, str(HERE.parent))
    from gradlet.runtime import download

    pythons = {"gradlet": sys.executable} | ({"onnxruntime": arguments.peers} if arguments.peers else {})
    print("| row | gradlet ms: file to first result = create + first call | onnxruntime | ratio | imports |")
    print("|---|---|---|---|---|")
    for row in [r for r in ROWS if not arguments.only or r.startswith(tuple(arguments.only.split(",")))]:
        files = prepare(download.folder() / "packages", row)
        fresh("gradlet", sys.executable, *files, arguments.threads)
        found: dict[str, list[dict[str, float]]] = {name: [] for name in pythons}
        for _ in range(arguments.rounds):
            for name, python in pythons.items():
                found[name].append(fresh(name, python, *files, arguments.threads))
        middle = {n: {k: statistics.median(r[k] for r in rows) * 1e3 for k in rows[0]} for n, rows in found.items()}
        whole = {n: m["create"] + m["first"] for n, m in middle.items()}
        cells = [f"{whole[n]:.0f} = {m['create']:.0f} + {m['first']:.0f}" for n, m in middle.items()]
        ratio = f"{whole['gradlet'] / whole['onnxruntime']:.2f}" if len(whole) > 1 else "-"
        means = [m["mean"] for m in middle.values()]
        odd = "" if max(means) - min(means) <= 1e-3 * max(means) else " results differ"
        imports = " / ".join(f"{m['import']:.0f}" for m in middle.values())
        print(f"| {row} | {' | '.join(cells)} | {ratio}{odd} | {imports} |", flush=True)


if __name__ == "__main__":
    main()
