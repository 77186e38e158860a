"""Real ONNX models beside onnxruntime and OpenVINO: a call, and the way from a file to the first result.

    python benchmarks/real_models.py --peers PEERS_PYTHON [--only silero,MiniLM] [--threads 1,2] [--rounds 5]

Every library has a process for each number of threads (one: pinned to a core); rounds are interleaved with a silent
gap, results are compared before anything is timed. A call takes numpy arrays and gives numpy arrays. `--warm` only
fills the caches. What it takes to import a library is not counted, for none of them.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
GAP = 0.03
_THREADS = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "NUM_THREADS", "NUM_CPU_THREADS")
_KEEP_PAGES = {"MALLOC_MMAP_MAX_": "0", "MALLOC_TRIM_THRESHOLD_": str(1 << 40), "MALLOC_TOP_PAD_": str(256 << 20)}
# Samples of a spoken sentence cannot be compared one by one between libraries.
LOOSE = ("kokoro",)

# ---- the process of one library -----------------------------------------------------------------------------------


class Gradlet:
    def __init__(self, path: str, threads: int) -> None:
        from gradlet.onnx.runner import OnnxRunner

        self.runner = OnnxRunner(path, "CPU")

    def __call__(self, inputs: dict[str, Any]) -> list[Any]:
        return [value.numpy() for value in self.runner(inputs).values()]


class OnnxRuntime:
    def __init__(self, path: str, threads: int) -> None:
        import onnxruntime

        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads, options.inter_op_num_threads = threads, 1
        self.session = onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])

    def __call__(self, inputs: dict[str, Any]) -> list[Any]:
        return self.session.run(None, inputs)  # type: ignore[no-any-return]


class OpenVino:
    """Shapes are fixed before it compiles, products are of float32, as in the other libraries."""

    def __init__(self, path: str, threads: int) -> None:
        import openvino

        self.path, self.threads, self.model = path, threads, None
        self.core = openvino.Core()

    def __call__(self, inputs: dict[str, Any]) -> list[Any]:
        if self.model is None:
            model = self.core.read_model(self.path)
            model.reshape({name: list(array.shape) for name, array in inputs.items()})
            self.model = self.core.compile_model(
                model,
                "CPU",
                {
                    "INFERENCE_NUM_THREADS": self.threads, "PERFORMANCE_HINT": "LATENCY",
                    "INFERENCE_PRECISION_HINT": "f32", "DYNAMIC_QUANTIZATION_GROUP_SIZE": "0",
                },
            )  # fmt: skip
            self.request = self.model.create_infer_request()
        results = self.request.infer(inputs)
        return [results[output] for output in self.model.outputs]


LIBRARIES: dict[str, Any] = {"gradlet": Gradlet, "onnxruntime": OnnxRuntime, "openvino": OpenVino}
MODULES = {"gradlet": "gradlet.onnx.runner", "onnxruntime": "onnxruntime", "openvino": "openvino"}


def serve(name: str, threads: int) -> None:
    """Answer requests of the other side, a line each."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    if threads == 1:
        os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
    import importlib

    import numpy as np

    importlib.import_module(MODULES[name])
    if name == "gradlet":
        from gradlet import Tensor
        from gradlet.onnx import registry
        from gradlet.onnx.package import onnx_package

        # What other libraries load when they are imported: operators, the device, the compiler.
        onnx_package()
        registry.load_all()
        x = Tensor(np.ones((256, 256), np.float32))
        (x @ x + 1).numpy()  # the compiler, and the other threads
    call: Any = None
    inputs: dict[str, Any] = {}
    for line in sys.stdin:
        request = json.loads(line)
        try:
            if request["do"] == "open":
                inputs = dict(np.load(request["inputs"]))
                begin = time.perf_counter()
                call = LIBRARIES[name](request["model"], threads)
                made = time.perf_counter()
                results = call(inputs)
                first = time.perf_counter()
                call(inputs)
                second = time.perf_counter()
                for _ in range(2):
                    call(inputs)
                flat = [np.asarray(r).reshape(-1).astype(np.float64) for r in results]
                samples = [[float(v) for v in f[np.linspace(0, f.size - 1, 9).astype(int)]] for f in flat]
                sizes = [float(np.abs(f).mean()) for f in flat]
                answer: Any = {
                    "create": made - begin, "first": first - made, "second": second - first,
                    "samples": samples, "means": sizes,
                }  # fmt: skip
            else:
                seconds = []
                end = time.perf_counter() + request["seconds"]
                while len(seconds) < 3 or time.perf_counter() < end:
                    begin = time.perf_counter()
                    call(inputs)
                    seconds.append(time.perf_counter() - begin)
                answer = {"seconds": seconds}
        except Exception as error:
            answer = {"error": f"{type(error).__name__}: {str(error)[:200]}"}
        answers.write(json.dumps(answer) + "\n")
        answers.flush()


# ---- the other side -----------------------------------------------------------------------------------------------


class Worker:
    def __init__(self, name: str, python: str, threads: int) -> None:
        environment = {k: v for k, v in os.environ.items() if not k.startswith(("OMP_", "KMP_", "OPENBLAS_"))}
        environment |= {"DEV": "CPU", **_KEEP_PAGES, **dict.fromkeys(_THREADS, str(threads))}
        environment["PYTHONPATH"] = str(HERE.parent) if name == "gradlet" else ""
        log = None if os.environ.get("BENCH_VERBOSE") else subprocess.DEVNULL
        self.process = subprocess.Popen(
            [python, str(HERE / "real_models.py"), "--serve", name, "--threads", str(threads)],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log, text=True, env=environment,
        )  # fmt: skip

    def ask(self, **request: Any) -> dict[str, Any]:
        assert self.process.stdin is not None and self.process.stdout is not None
        self.process.stdin.write(json.dumps(request) + "\n")
        self.process.stdin.flush()
        line = self.process.stdout.readline()
        return json.loads(line) if line else {"error": "the process has died"}  # type: ignore[no-any-return]

    def stop(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.close()
        self.process.wait(20)


def differences(found: dict[str, Any], expected: dict[str, Any]) -> float:
    """The largest difference of samples, by the size of the result."""
    worst = 0.0
    for ours, theirs, mean in zip(found["samples"], expected["samples"], expected["means"]):
        worst = max([worst, *(abs(a - b) / max(1.0, mean) for a, b in zip(ours, theirs))])
    return worst


def measure(row: str, model: Path, inputs: Path, threads: int, pythons: dict[str, str], rounds: int) -> dict[str, Any]:
    """Creation and calls of one row in all libraries."""
    workers, opened = {}, {}
    seconds: dict[str, list[float]] = {}
    notes = []
    for name, python in pythons.items():
        worker = Worker(name, python, threads)
        answer = worker.ask(do="open", model=str(model), inputs=str(inputs))
        if "error" in answer:
            notes.append(f"{name}: {answer['error']}")
            worker.stop()
        else:
            workers[name], opened[name], seconds[name] = worker, answer, []
    if "gradlet" in opened and not row.startswith(LOOSE):
        for name in opened.keys() - {"gradlet"}:
            far = differences(opened["gradlet"], opened[name])
            if far > 1e-3:
                notes.append(f"gradlet differs from {name} by {far:.1e}")
    for _ in range(rounds):
        for name, worker in workers.items():
            seconds[name] += worker.ask(do="time", seconds=0.15)["seconds"]
            time.sleep(GAP)
    for worker in workers.values():
        worker.stop()
    return {"opened": opened, "seconds": seconds, "notes": notes}


def milliseconds(values: list[float]) -> str:
    median, least = statistics.median(values) * 1e3, min(values) * 1e3
    return f"{median:.3g} ({least:.3g})"


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--serve", help=argparse.SUPPRESS)
    parser.add_argument("--peers", help="python of an environment with onnxruntime and openvino")
    parser.add_argument("--only", default="", help="beginnings of rows, separated by commas")
    parser.add_argument("--threads", default="1,2")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--warm", action="store_true", help="only fill the caches")
    parser.add_argument("--folder", type=Path, help="where the models lie; beside the kernel cache by default")
    arguments = parser.parse_args()
    if arguments.serve:
        serve(arguments.serve, int(arguments.threads))
        return
    from real_files import ROWS, prepare

    if arguments.folder is None:
        sys.path.insert(0, str(HERE.parent))
        from gradlet.runtime import download

        arguments.folder = download.folder() / "packages"
    pythons = {"gradlet": sys.executable}
    if arguments.peers and not arguments.warm:
        pythons |= dict.fromkeys(("onnxruntime", "openvino"), arguments.peers)
    chosen = [r for r in ROWS if not arguments.only or r.startswith(tuple(arguments.only.split(",")))]
    print("| row | threads | gradlet ms | onnxruntime | OpenVINO | ratio | goal | floor | | file to first result, ms |")
    print("|---|---|---|---|---|---|---|---|---|---|")
    notes = []
    for row in chosen:
        model, inputs = prepare(arguments.folder, row)
        *_, goal, floor = ROWS[row]
        for threads in map(int, arguments.threads.split(",")):
            found = measure(row, model, inputs, threads, pythons, 0 if arguments.warm else arguments.rounds)
            opened, seconds = found["opened"], found["seconds"]
            notes += [f"{row}, {threads} threads: {note}" for note in found["notes"]]
            creation = ", ".join(
                f"{name} {(o['create'] + o['first']) * 1e3:.0f}"
                + (f" = {o['create'] * 1e3:.0f}+{o['first'] * 1e3:.0f}, second {o['second'] * 1e3:.0f}"
                   if name == "gradlet" else "")
                for name, o in opened.items()
            )  # fmt: skip
            cells = [milliseconds(seconds[n]) if seconds.get(n) else "-" for n in LIBRARIES]
            medians = {n: statistics.median(s) for n, s in seconds.items() if s}
            ratio, verdict = "-", ""
            if "gradlet" in medians and len(medians) > 1:
                best = medians["gradlet"] / min(m for n, m in medians.items() if n != "gradlet")
                ratio = f"{best:.2f}"
                verdict = "" if best <= goal else "misses the goal" if best <= floor else "**MISSES THE FLOOR**"
            numbers = f"{' | '.join(cells)} | {ratio} | {goal} | {floor} | {verdict} | {creation}"
            print(f"| {row} | {threads} | {numbers} |", flush=True)
    for note in notes:
        print("*", note)


if __name__ == "__main__":
    main()
