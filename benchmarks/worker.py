"""The process that holds one framework: answers requests, one JSON line each, on its standard input and output.

    {"do": "open", "case": NAME}               build, run until warm      -> {"first": seconds, "values": [...]}
    {"do": "time", "case": NAME, "calls": N}   N runs                     -> {"seconds": [...], "burned": share}
    {"do": "close", "case": NAME}              forget it                  -> {}
    {"do": "describe"}                         versions, device, threads  -> {...}

Started by harness.py with the thread count and the device fixed in its environment. Knows nothing about the others.
"""

from __future__ import annotations

import importlib
import json
import os
import platform
import sys
import time
import traceback
from typing import Any

import cases
import catalog
import numpy as np
from frameworks import TensorApi, TorchApi

GAP = 0.030  # seconds of silence after timed runs: thread pools of the frameworks stop spinning


def make_api(name: str) -> Any:
    if name in ("gradlet", "tinygrad"):
        return TensorApi(name)
    return TorchApi() if name == "torch" else importlib.import_module("peers").PEERS[name]()


def sample(values: np.ndarray) -> list[float]:
    """A few numbers that tell results apart: some elements and the mean size."""
    flat = values.reshape(-1).astype(np.float64)
    picked = flat[np.linspace(0, flat.size - 1, 9).astype(int)]
    return [float(v) for v in picked] + [float(np.abs(flat).mean())]


def timed(run: cases.Run) -> float:
    begin = time.perf_counter()
    run()
    return time.perf_counter() - begin


class Session:
    """The open cases of this process."""

    def __init__(self, name: str) -> None:
        self.api = make_api(name)
        self.runs: dict[str, cases.Run] = {}

    def describe(self, request: dict[str, Any]) -> dict[str, Any]:
        return {**self.api.describe(), "python": platform.python_version(), "numpy": np.__version__}

    def open(self, request: dict[str, Any]) -> dict[str, Any]:
        run = catalog.CASES[request["case"]]().build(self.api)
        begin = time.perf_counter()
        values = sample(self.api.values(run()))
        first = time.perf_counter() - begin
        for _ in range(3):  # a TinyJit runs, captures, and replays from then on
            run()
        self.runs[request["case"]] = run
        return {"first": first, "values": values}

    def time(self, request: dict[str, Any]) -> dict[str, Any]:
        run = self.runs[request["case"]]
        if request.get("warm", True):
            run()
        seconds = [timed(run) for _ in range(request["calls"])]
        time.sleep(GAP / 2)
        before = time.process_time()
        time.sleep(GAP / 2)
        return {"seconds": seconds, "burned": (time.process_time() - before) / (GAP / 2)}

    def close(self, request: dict[str, Any]) -> dict[str, Any]:
        self.runs.pop(request["case"], None)
        return {}


def main() -> None:
    if os.environ.get("BENCH_PIN"):
        os.sched_setaffinity(0, {int(c) for c in os.environ["BENCH_PIN"].split(",")})
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what a framework prints must not mix with the answers
    session: Session | None = None
    for line in sys.stdin:
        request = json.loads(line)
        try:
            if session is None:
                session = Session(sys.argv[1])
            answer = getattr(session, request["do"])(request)
        except Exception as error:
            traceback.print_exc()
            answer = {"error": f"{type(error).__name__}: {error}"}
        answers.write(json.dumps(answer) + "\n")
        answers.flush()


if __name__ == "__main__":
    main()
