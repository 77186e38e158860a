"""What is measured: every case once for torch and once for the API that tinygrad and gradlet share.

A case makes its inputs from a fixed seed, so that all frameworks compute the same numbers and can be compared.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

Run = Callable[[], Any]


@dataclass(frozen=True)
class Case:
    """One measured computation.

    Attributes:
        name: how it is asked for.
        title: how it is printed.
        build: `build(api) -> run`; `run()` computes once, waits, and returns the framework's result.
        flops: floating point operations of one run, 0 where a rate says nothing.
        bytes: unique bytes of inputs and outputs, 0 where a rate says nothing.
        tolerance: how far results may lie apart, relative to the largest of those compared.
    """

    name: str
    title: str
    build: Callable[[Any], Run]
    flops: int = 0
    bytes: int = 0
    tolerance: float = 2e-3


def uniform(*shape: int, seed: int = 0) -> np.ndarray:
    """Values in [-1, 1), the same everywhere."""
    return np.random.default_rng(seed).random(shape, dtype=np.float32) * 2 - 1


# ---- operators ----------------------------------------------------------------------------------------------------


def matmul(size: int) -> Case:
    a, b = uniform(size, size, seed=1), uniform(size, size, seed=2)

    def build(api: Any) -> Run:
        return api.function(lambda x, y: x @ y, a, b)

    return Case(f"matmul_{size}", f"matmul {size}x{size}", build, 2 * size**3, 3 * 4 * size**2)


def conv() -> Case:
    x, w = uniform(8, 64, 56, 56, seed=1), uniform(64, 64, 3, 3, seed=2)

    def build(api: Any) -> Run:
        return api.function(lambda image, weight: api.conv2d(image, weight, padding=1), x, w)

    output = 8 * 64 * 56 * 56
    return Case("conv", "conv2d 8x64x56x56, 64 3x3", build, 2 * output * 64 * 9, 4 * (x.size + w.size + output))


def softmax() -> Case:
    x = uniform(4096, 4096)

    def build(api: Any) -> Run:
        return api.function(lambda a: a.softmax(-1), x)

    return Case("softmax", "softmax 4096x4096", build, 0, 8 * x.size)


def layer_norm() -> Case:
    x = uniform(4096, 1024)

    def build(api: Any) -> Run:
        return api.function(api.layer_norm, x)

    return Case("layer_norm", "layer norm 4096x1024", build, 0, 8 * x.size)


def chain() -> Case:
    x = uniform(1 << 24)

    def build(api: Any) -> Run:
        return api.function(lambda a: ((a * 2 + 1).relu() * a - 0.5).abs(), x)

    return Case("chain", "6 element-wise ops, 16M", build, 0, 8 * x.size)


def total() -> Case:
    x = uniform(1 << 24)

    def build(api: Any) -> Run:
        return api.function(lambda a: a.sum(), x)

    return Case("sum", "sum of 16M", build, 0, 4 * x.size)


OPS: dict[str, Callable[[], Case]] = {
    "matmul_512": lambda: matmul(512),
    "matmul_1024": lambda: matmul(1024),
    "conv": conv,
    "softmax": softmax,
    "layer_norm": layer_norm,
    "chain": chain,
    "sum": total,
}


# ---- training steps -----------------------------------------------------------------------------------------------


def kaiming(shape: tuple[int, ...], seed: int) -> np.ndarray:
    """Uniform weights of the usual scale for a layer followed by relu."""
    fan_in = math.prod(shape[1:])
    return uniform(*shape, seed=seed) * np.float32(math.sqrt(6.0 / fan_in))


def mlp_step() -> Case:
    """784-512-256-10, batch 128, cross entropy, SGD with momentum."""
    sizes = (784, 512, 256, 10)
    weights = [kaiming((o, i), seed=n) for n, (i, o) in enumerate(zip(sizes, sizes[1:]))]
    biases = [np.zeros(o, np.float32) for o in sizes[1:]]
    x = uniform(128, 784, seed=7)
    labels = np.random.default_rng(8).integers(0, 10, 128).astype(np.int32)

    def forward(api: Any, x: Any, parameters: list[Any]) -> Any:
        half = len(parameters) // 2
        for n, (w, b) in enumerate(zip(parameters[:half], parameters[half:])):
            x = x @ w.T + b
            if n + 1 < half:
                x = x.relu()
        return x

    def build(api: Any) -> Run:
        return api.training_step(forward, [*weights, *biases], x, labels)

    work = 3 * 2 * 128 * sum(i * o for i, o in zip(sizes, sizes[1:]))
    return Case("mlp_step", "MLP 784-512-256-10 training step, batch 128", build, work)


def demo_step() -> Case:
    """The network, batch and optimizer of `gradlet demo`: three convolutions with batch norm, two poolings, AdamW."""
    channels = (1, 16, 32, 64)
    convolutions = [kaiming((o, i, 3, 3), seed=n) for n, (i, o) in enumerate(zip(channels, channels[1:]))]
    head = kaiming((10, 64 * 2 * 2), seed=5)
    x = np.abs(uniform(125, 1, 8, 8, seed=7))
    labels = np.random.default_rng(8).integers(0, 10, 125).astype(np.int32)

    layers: list[tuple[Any, ...]] = []
    for n, weight in enumerate(convolutions):
        layers += [("conv", weight, None, 1), ("norm", weight.shape[0]), ("relu",)] + ([("pool",)] if n else [])
    layers.append(("linear", head, np.zeros(10, np.float32)))

    def build(api: Any) -> Run:
        return api.layers_step(layers, "AdamW", {"lr": 0.005, "weight_decay": 0.05}, x, labels)

    pixels = (64, 64, 16)
    work = sum(2 * p * 9 * i * o for p, i, o in zip(pixels, channels, channels[1:])) + 2 * 256 * 10
    return Case("demo_step", "step of `gradlet demo` (digits CNN, batch 125)", build, 3 * 125 * work)


STEPS: dict[str, Callable[[], Case]] = {"demo_step": demo_step, "mlp_step": mlp_step}
