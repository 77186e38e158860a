"""What the cases are written in: the names that torch, tinygrad and gradlet do not spell alike, a class a framework.

The other peers are in peers.py. A worker process makes one of them; `function` and the steps return what is timed.
"""

from __future__ import annotations

import importlib
import os
from collections.abc import Callable
from typing import Any

import cases
import numpy as np

THREADS = int(os.environ.get("BENCH_THREADS", "1"))


class SharedNames:
    """What torch, tinygrad and gradlet tensors spell alike."""

    def softmax(self, x: Any) -> Any:
        return x.softmax(-1)

    def cumsum(self, x: Any) -> Any:
        return x.cumsum(1)

    def stored(self, x: Any) -> Any:
        return x.contiguous()

    def rows(self, table: Any, numbers: Any) -> Any:
        return table[numbers]

    def relu(self, x: Any) -> Any:
        return x.relu()

    def tanh(self, x: Any) -> Any:
        return x.tanh()

    def sort(self, x: Any) -> Any:
        return tuple(x.sort())

    def top_k(self, x: Any, count: int) -> Any:
        return tuple(x.topk(count))

    def convolution(self, x: np.ndarray, weight: np.ndarray, **settings: int) -> cases.Run:
        """One convolution, both operands given at every call."""
        run: cases.Run = self.function(lambda a, w: self.conv2d(a, w, **settings), x, weight)  # type: ignore[attr-defined]
        return run


class TorchApi(SharedNames):
    """torch, eager mode."""

    def __init__(self) -> None:
        import torch

        torch.set_num_threads(THREADS)
        self.torch = torch
        self.conv2d = torch.nn.functional.conv2d

    def describe(self) -> dict[str, Any]:
        return {"version": self.torch.__version__, "device": "cpu", "threads": self.torch.get_num_threads()}

    def rows(self, table: Any, numbers: Any) -> Any:
        return self.torch.nn.functional.embedding(numbers, table)

    def max_pool2d(self, x: Any) -> Any:
        return self.torch.nn.functional.max_pool2d(x, 2)

    def layer_norm(self, x: Any) -> Any:
        return self.torch.nn.functional.layer_norm(x, x.shape[-1:])

    def function(self, f: Callable[..., Any], *arrays: np.ndarray) -> cases.Run:
        return self.over(f, [self.torch.from_numpy(a) for a in arrays])

    def narrow_function(self, f: Callable[..., Any], *arrays: np.ndarray) -> cases.Run:
        """Like `function`, of bfloat16 tensors."""
        return self.over(f, [self.torch.from_numpy(a).bfloat16() for a in arrays])

    def over(self, f: Callable[..., Any], inputs: list[Any]) -> cases.Run:
        """What computes `f` of these tensors."""

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
        first = result[0] if isinstance(result, tuple) else result
        return np.asarray(first.float().contiguous().numpy())


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


class TensorApi(SharedNames):
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

    def conv2d(self, x: Any, weight: Any, bias: Any = None, **settings: int) -> Any:
        return x.conv2d(weight, bias, **settings)

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
        return self.over(f, [self.tensor(a) for a in arrays])

    def narrow_function(self, f: Callable[..., Any], *arrays: np.ndarray) -> cases.Run:
        """Like `function`, of bfloat16 tensors."""
        narrow = self.module.dtypes.bfloat16
        return self.over(f, [self.tensor(a).cast(narrow).contiguous().realize() for a in arrays])

    def over(self, f: Callable[..., Any], inputs: list[Any]) -> cases.Run:
        """What computes `f` of these tensors."""

        @self.TinyJit
        def jitted(*xs: Any) -> Any:
            results = f(*xs)
            if not isinstance(results, tuple):
                return results.realize()
            results[0].realize(*results[1:])
            return results

        def run() -> Any:
            results = jitted(*inputs)
            self.wait()
            result = results[0] if isinstance(results, tuple) else results
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
        return np.asarray(result.float().numpy())
