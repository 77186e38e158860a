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

    def model(self, forward: Callable[..., Any], x: np.ndarray, weights: list[np.ndarray]) -> cases.Run:
        """What computes `forward` of one input and weights that stay."""
        held = [self.weight(a) for a in weights]
        return self.over(lambda a: forward(a, held), [self.weight(x)])

    def model_at(
        self, forward: Callable[..., Any], x: np.ndarray, weights: list[np.ndarray], position: int, largest: int
    ) -> cases.Run:
        """Like `model`, with a position that every call may choose."""
        held = [self.weight(a.copy()) for a in weights]
        return self.over(lambda a: forward(a, held, position), [self.weight(x)])

    def weight(self, array: np.ndarray) -> Any:
        return self.torch.from_numpy(array)

    def window_max(self, x: Any) -> Any:
        return self.torch.nn.functional.max_pool2d(x, 3, 2, 1)

    def pixel_mean(self, x: Any) -> Any:
        return x.mean((2, 3))

    def linear(self, x: Any, weight: Any, bias: Any = None) -> Any:
        return self.torch.nn.functional.linear(x, weight, bias)

    def norm(self, x: Any, weight: Any, bias: Any) -> Any:
        return self.torch.nn.functional.layer_norm(x, x.shape[-1:], weight, bias)

    def gelu(self, x: Any) -> Any:
        return self.torch.nn.functional.gelu(x, approximate="tanh")

    def attention(self, q: Any, k: Any, v: Any, is_causal: bool = False) -> Any:
        return self.torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=is_causal)

    def layers_step(
        self, layers: list[tuple[Any, ...]], optimizer: str, settings: dict[str, float], x: np.ndarray,
        labels: np.ndarray,
    ) -> cases.Run:  # fmt: skip
        """A training step of a network of layers: conv, linear, norm, relu, pool, with the weights they start with."""
        nn, torch = self.torch.nn, self.torch
        made: list[Any] = []
        for kind, *details in layers:
            if kind == "conv":
                weight, bias, padding = details
                size = weight.shape[2:]
                made.append(nn.Conv2d(weight.shape[1], weight.shape[0], size, padding=padding, bias=bias is not None))
            elif kind == "linear":
                weight, bias = details
                made += [nn.Flatten(), nn.Linear(weight.shape[1], weight.shape[0])]
            else:
                made.append({"norm": nn.BatchNorm2d, "relu": nn.ReLU, "pool": lambda: nn.MaxPool2d(2)}[kind](*details))
                continue
            made[-1].weight.data.copy_(torch.from_numpy(weight))
            if bias is not None:
                made[-1].bias.data.copy_(torch.from_numpy(bias))
        network = nn.Sequential(*made)
        optimizer_ = getattr(torch.optim, optimizer)(network.parameters(), **settings)
        images, targets = torch.from_numpy(x), torch.from_numpy(labels.astype(np.int64))
        loss_of = self.trained(lambda a, b: nn.functional.cross_entropy(network(a), b))

        def run() -> Any:
            optimizer_.zero_grad()
            loss = loss_of(images, targets)
            loss.backward()
            optimizer_.step()
            return loss.detach()

        return run

    def trained(self, loss_of: Callable[..., Any]) -> Callable[..., Any]:
        """How this kind of torch runs a loss that is differentiated."""
        return loss_of

    def values(self, result: Any) -> np.ndarray:
        first = result[0] if isinstance(result, tuple) else result
        return np.asarray(first.float().contiguous().numpy())


class TensorNetwork:
    """Layers of tinygrad or gradlet, one after another."""

    def __init__(self, nn: Any, tensor: Callable[[np.ndarray], Any], layers: list[tuple[Any, ...]]) -> None:
        self.layers: list[Any] = []
        for kind, *details in layers:
            if kind == "conv":
                weight, bias, padding = details
                size = weight.shape[2:]
                layer = nn.Conv2d(weight.shape[1], weight.shape[0], size, padding=padding, bias=bias is not None)
            elif kind == "linear":
                weight, bias = details
                self.layers.append(lambda x: x.flatten(1))
                layer = nn.Linear(weight.shape[1], weight.shape[0])
            else:
                plain = {"relu": lambda: lambda x: x.relu(), "pool": lambda: lambda x: x.max_pool2d((2, 2))}
                self.layers.append({"norm": nn.BatchNorm, **plain}[kind](*details))
                continue
            layer.weight.assign(tensor(weight)).realize()
            if bias is not None:
                layer.bias.assign(tensor(bias)).realize()
            self.layers.append(layer)

    def __call__(self, x: Any) -> Any:
        for layer in self.layers:
            x = layer(x)
        return x


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

    def narrow_weights(self, raw: np.ndarray, scale: np.ndarray, x: np.ndarray) -> cases.Run:
        """A matrix of int8 with a scale a row, or of the bytes of Q4_0 blocks, times a vector."""
        if raw.dtype == np.int8:
            codes, scales = self.tensor(raw), self.tensor(scale)
            return self.function(lambda v: (codes.cast("float32") @ v) * scales, x)
        quantized = importlib.import_module(f"{self.package}.nn.quantized").QuantizedWeight
        rows, blocks, _ = raw.shape
        weight = quantized.from_gguf_blocks(self.tensor(raw.reshape(-1)), "Q4_0", (rows, 32 * blocks))
        return self.function(weight, x)

    def model(self, forward: Callable[..., Any], x: np.ndarray, weights: list[np.ndarray]) -> cases.Run:
        """What computes `forward` of one input and weights that stay."""
        held = [self.tensor(a) for a in weights]
        return self.over(lambda a: forward(a, held), [self.tensor(x)])

    def model_at(
        self, forward: Callable[..., Any], x: np.ndarray, weights: list[np.ndarray], position: int, largest: int
    ) -> cases.Run:
        """Like `model`, with a position that every call may choose."""
        held = [self.tensor(a) for a in weights]
        ids, place = self.tensor(x), self.module.Variable("position", 0, largest)
        jitted = self.TinyJit(lambda a, p: forward(a, held, p).realize())

        def run() -> Any:
            result = jitted(ids, place.bind(position))
            self.wait()
            return result

        return run

    def window_max(self, x: Any) -> Any:
        return x.max_pool2d((3, 3), stride=2, padding=1)

    def pixel_mean(self, x: Any) -> Any:
        return x.mean((2, 3))

    def linear(self, x: Any, weight: Any, bias: Any = None) -> Any:
        return x.linear(weight.T, bias)

    def norm(self, x: Any, weight: Any, bias: Any) -> Any:
        return x.layernorm() * weight + bias

    def gelu(self, x: Any) -> Any:
        return x.gelu()

    def attention(self, q: Any, k: Any, v: Any, is_causal: bool = False) -> Any:
        return q.scaled_dot_product_attention(k, v, is_causal=is_causal)

    def layers_step(
        self, layers: list[tuple[Any, ...]], optimizer: str, settings: dict[str, float], x: np.ndarray,
        labels: np.ndarray,
    ) -> cases.Run:  # fmt: skip
        """A training step of a network of layers: conv, linear, norm, relu, pool, with the weights they start with."""
        network = TensorNetwork(importlib.import_module(f"{self.package}.nn"), self.tensor, layers)
        parameters = importlib.import_module(f"{self.package}.nn.state").get_parameters(network)
        return self.jitted_step(network, getattr(self.optim, optimizer)(parameters, **settings), x, labels)

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
