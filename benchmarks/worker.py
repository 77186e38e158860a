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
from collections.abc import Callable
from typing import Any

import cases
import numpy as np

GAP = 0.030  # seconds of silence after timed runs: thread pools of the frameworks stop spinning
THREADS = int(os.environ["BENCH_THREADS"])


class TorchApi:
    """torch, eager mode."""

    def __init__(self) -> None:
        import torch

        torch.set_num_threads(THREADS)
        self.torch = torch
        self.conv2d = torch.nn.functional.conv2d

    def describe(self) -> dict[str, Any]:
        return {"version": self.torch.__version__, "device": "cpu", "threads": self.torch.get_num_threads()}

    def max_pool2d(self, x: Any) -> Any:
        return self.torch.nn.functional.max_pool2d(x, 2)

    def layer_norm(self, x: Any) -> Any:
        return self.torch.nn.functional.layer_norm(x, x.shape[-1:])

    def function(self, f: Callable[..., Any], *arrays: np.ndarray) -> cases.Run:
        inputs = [self.torch.from_numpy(a) for a in arrays]

        def run() -> Any:
            with self.torch.inference_mode():
                return f(*inputs)

        return run

    def training_step(
        self, forward: Callable[..., Any], parameters: list[np.ndarray], x: np.ndarray, labels: np.ndarray
    ) -> cases.Run:
        torch = self.torch
        params = [torch.nn.Parameter(torch.from_numpy(p.copy())) for p in parameters]
        optimizer = torch.optim.SGD(params, lr=0.01, momentum=0.9)
        images, targets = torch.from_numpy(x), torch.from_numpy(labels.astype(np.int64))

        def run() -> Any:
            optimizer.zero_grad()
            loss = torch.nn.functional.cross_entropy(forward(self, images, params), targets)
            loss.backward()
            optimizer.step()
            return loss.detach()

        return run

    def demo_step(
        self, convolutions: list[np.ndarray], head: np.ndarray, x: np.ndarray, labels: np.ndarray
    ) -> cases.Run:
        torch = self.torch
        layers: list[Any] = []
        for n, weight in enumerate(convolutions):
            layer = torch.nn.Conv2d(weight.shape[1], weight.shape[0], 3, padding=1, bias=False)
            layer.weight.data.copy_(torch.from_numpy(weight))
            layers += [layer, torch.nn.BatchNorm2d(weight.shape[0]), torch.nn.ReLU()]
            layers += [torch.nn.MaxPool2d(2)] if n else []
        last = torch.nn.Linear(head.shape[1], head.shape[0])
        last.weight.data.copy_(torch.from_numpy(head))
        last.bias.data.zero_()
        network = torch.nn.Sequential(*layers, torch.nn.Flatten(), last)
        optimizer = torch.optim.AdamW(network.parameters(), lr=0.005, weight_decay=0.05)
        images, targets = torch.from_numpy(x), torch.from_numpy(labels.astype(np.int64))

        def run() -> Any:
            optimizer.zero_grad()
            loss = torch.nn.functional.cross_entropy(network(images), targets)
            loss.backward()
            optimizer.step()
            return loss.detach()

        return run

    def values(self, result: Any) -> np.ndarray:
        return np.asarray(result.numpy())


class TensorNetwork:
    """The network of `gradlet demo` out of the layers of tinygrad or gradlet."""

    def __init__(self, nn: Any, convolutions: list[Any], head: Any) -> None:
        self.convolutions, self.norms = [], []
        for weight in convolutions:
            layer = nn.Conv2d(weight.shape[1], weight.shape[0], 3, padding=1, bias=False)
            layer.weight.assign(weight).realize()
            self.convolutions.append(layer)
            self.norms.append(nn.BatchNorm(weight.shape[0]))
        self.head = nn.Linear(head.shape[1], head.shape[0])
        self.head.weight.assign(head).realize()
        self.head.bias.assign(self.head.bias.zeros_like()).realize()

    def __call__(self, x: Any) -> Any:
        for n, (convolution, norm) in enumerate(zip(self.convolutions, self.norms, strict=True)):
            x = norm(convolution(x)).relu()
            if n:
                x = x.max_pool2d((2, 2))
        return self.head(x.flatten(1))


class TensorApi:
    """tinygrad or gradlet, each through its TinyJit: the same public names."""

    def __init__(self, package: str) -> None:
        self.module = importlib.import_module(package)
        self.Tensor = self.module.Tensor
        self.TinyJit = self.module.TinyJit
        self.optim = importlib.import_module(f"{package}.nn.optim")
        self.package = package
        default = self.module.Device.DEFAULT
        if default != "CPU":
            raise RuntimeError(f"{package} would run on {default}; this benchmark is about the CPU")
        self.wait = getattr(self.module.Device["CPU"], "synchronize", lambda: None)

    def describe(self) -> dict[str, Any]:
        from importlib import metadata

        try:
            version = metadata.version(self.package)
        except metadata.PackageNotFoundError:
            version = "working tree"
        return {"version": version, "device": self.module.Device.DEFAULT, "threads": THREADS}

    def conv2d(self, x: Any, weight: Any, bias: Any = None, padding: int = 0) -> Any:
        return x.conv2d(weight, bias, padding=padding)

    def max_pool2d(self, x: Any) -> Any:
        return x.max_pool2d((2, 2))

    def layer_norm(self, x: Any) -> Any:
        return x.layernorm()

    def training(self) -> Any:
        """The context in which optimizers may step."""
        return self.module.Context(TRAINING=1) if self.package == "tinygrad" else self.Tensor.train()

    def tensor(self, array: np.ndarray) -> Any:
        return self.Tensor(array).contiguous().realize()

    def function(self, f: Callable[..., Any], *arrays: np.ndarray) -> cases.Run:
        inputs = [self.tensor(a) for a in arrays]
        jitted = self.TinyJit(lambda *xs: f(*xs).realize())

        def run() -> Any:
            result = jitted(*inputs)
            self.wait()
            if result.device != "CPU":
                raise RuntimeError(f"the result is on {result.device}, not on the CPU")
            return result

        return run

    def training_step(
        self, forward: Callable[..., Any], parameters: list[np.ndarray], x: np.ndarray, labels: np.ndarray
    ) -> cases.Run:
        params = [self.tensor(p) for p in parameters]
        for p in params:
            if hasattr(p, "is_param_"):
                p.is_param_()
        optimizer = self.optim.SGD(params, lr=0.01, momentum=0.9)
        return self.jitted_step(lambda images: forward(self, images, params), optimizer, x, labels)

    def demo_step(
        self, convolutions: list[np.ndarray], head: np.ndarray, x: np.ndarray, labels: np.ndarray
    ) -> cases.Run:
        nn = importlib.import_module(f"{self.package}.nn")
        network = TensorNetwork(nn, [self.tensor(w) for w in convolutions], self.tensor(head))
        parameters = importlib.import_module(f"{self.package}.nn.state").get_parameters(network)
        optimizer = self.optim.AdamW(parameters, lr=0.005, weight_decay=0.05)
        return self.jitted_step(network, optimizer, x, labels)

    def jitted_step(
        self, network: Callable[[Any], Any], optimizer: Any, x: np.ndarray, labels: np.ndarray
    ) -> cases.Run:
        images, targets = self.tensor(x), self.tensor(labels)

        @self.TinyJit
        def step(a: Any, b: Any) -> Any:
            with self.training():
                optimizer.zero_grad()
                loss = network(a).sparse_categorical_crossentropy(b)
                loss.backward()
                # One realize for the loss and the new parameters: both packages then schedule them together.
                return loss.realize(*optimizer.schedule_step())

        def run() -> Any:
            result = step(images, targets)
            self.wait()
            return result

        return run

    def values(self, result: Any) -> np.ndarray:
        return np.asarray(result.numpy())


def make_api(name: str) -> Any:
    return TorchApi() if name == "torch" else TensorApi(name)


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
        run = cases.CASES[request["case"]]().build(self.api)
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
