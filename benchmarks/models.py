"""Whole models as users write them: ResNet-18 for images, GPT-2 for tokens, and a training step of a digits network.

Each is one function over the names of frameworks.py; weights come from a fixed seed, so that outputs can be compared.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
from cases import Case, Run, kaiming, uniform

# ---- ResNet-18 ----------------------------------------------------------------------------------------------------

STAGES = ((64, 1), (128, 2), (256, 2), (512, 2))  # channels and stride; two blocks each


def folded(rng: np.random.Generator, shapes: list[tuple[int, ...]]) -> Iterator[np.ndarray]:
    """Weights and biases of convolutions that had batch norms behind them, folded as all runtimes do."""
    convolutions, norms = [], []
    for shape in shapes:
        scale = math.sqrt(2 / math.prod(shape[1:]))
        convolutions.append((rng.standard_normal(shape) * scale).astype(np.float32))
        norms.append([rng.uniform(*bounds, shape[0]) for bounds in ((0.5, 1), (-0.1, 0.1), (-0.1, 0.1), (0.5, 1.5))])
    for weight, (gain, shift, mean, variance) in zip(convolutions, norms, strict=True):
        factor = gain / np.sqrt(variance + 1e-5)
        yield (weight * factor[:, None, None, None]).astype(np.float32)
        yield (shift - mean * factor).astype(np.float32)


def resnet_weights() -> list[np.ndarray]:
    """Weight and bias of every convolution in the order of use, then of the last layer."""
    rng = np.random.default_rng(0)
    weights = [*folded(rng, [(64, 3, 7, 7)])]
    before = 64
    for channels, stride in STAGES:
        for block in range(2):
            shapes: list[tuple[int, ...]] = [(channels, before, 3, 3), (channels, channels, 3, 3)]
            if block == 0 and (stride != 1 or before != channels):
                shapes.append((channels, before, 1, 1))
            weights += folded(rng, shapes)
            before = channels
    weights.append((rng.standard_normal((1000, before)) / math.sqrt(before)).astype(np.float32))
    weights.append(rng.uniform(-0.1, 0.1, 1000).astype(np.float32))
    return weights


def resnet(api: Any, x: Any, weights: list[Any]) -> Any:
    """Logits of images."""
    left = iter(weights)

    def convolve(y: Any, stride: int, padding: int) -> Any:
        return api.conv2d(y, next(left), next(left), stride=stride, padding=padding)

    x = api.window_max(api.relu(convolve(x, 2, 3)))
    before = 64
    for channels, stride in STAGES:
        for block in range(2):
            step = stride if block == 0 else 1
            y = convolve(api.relu(convolve(x, step, 1)), 1, 1)
            x = api.relu(y + (convolve(x, step, 0) if step != 1 or before != channels else x))
            before = channels
    return api.linear(api.pixel_mean(x), next(left), next(left))


def resnet_case(batch: int) -> Case:
    def build(api: Any) -> Run:
        x = np.random.default_rng(1).standard_normal((batch, 3, 224, 224)).astype(np.float32)
        return api.model(lambda images, weights: resnet(api, images, weights), x, resnet_weights())  # type: ignore[no-any-return]

    work = 1_814_073_344 * 2 * batch
    return Case(f"resnet18_bs{batch}", f"ResNet-18, batch {batch}", build, work, tolerance=1e-4)


# ---- GPT-2 --------------------------------------------------------------------------------------------------------

LAYERS, HEADS, WIDTH, VOCABULARY, CONTEXT = 12, 12, 768, 50257, 1024
PLACES = 128  # keys that a decoded token sees, and tokens of a prompt


def gpt2_weights() -> dict[str, np.ndarray]:
    """Weights of the size of GPT-2 124M; the last layer is the embedding again."""
    rng = np.random.default_rng(0)

    def normal(*shape: int, scale: float = 0.02) -> np.ndarray:
        return rng.standard_normal(shape, dtype=np.float32) * np.float32(scale)

    weights = {"tokens": normal(VOCABULARY, WIDTH), "places": normal(CONTEXT, WIDTH)}
    for n in range(LAYERS):
        for name, outputs, inputs in (
            ("qkv", 3 * WIDTH, WIDTH), ("merge", WIDTH, WIDTH), ("up", 4 * WIDTH, WIDTH), ("down", WIDTH, 4 * WIDTH),
        ):  # fmt: skip
            weights[f"{n}.{name}"], weights[f"{n}.{name}.bias"] = normal(outputs, inputs), normal(outputs)
    for name in [f"{n}.{norm}" for n in range(LAYERS) for norm in ("norm1", "norm2")] + ["last"]:
        weights[name], weights[f"{name}.bias"] = 1 + normal(WIDTH), normal(WIDTH)
    return weights


def gpt2(api: Any, w: dict[str, Any], tokens: Any, attend: Callable[[int, Any, Any, Any], Any], start: Any) -> Any:
    """Logits of tokens (1, T) at places from `start`; `attend` looks after keys and values."""
    count = tokens.shape[1]
    x = api.rows(w["tokens"], tokens) + w["places"][start : start + count]
    for n in range(LAYERS):
        h = api.linear(api.norm(x, w[f"{n}.norm1"], w[f"{n}.norm1.bias"]), w[f"{n}.qkv"], w[f"{n}.qkv.bias"])
        heads = h.reshape(1, count, 3, HEADS, WIDTH // HEADS)
        q, k, v = (heads[:, :, i].transpose(1, 2) for i in range(3))
        mixed = attend(n, q, k, v).transpose(1, 2).reshape(1, count, WIDTH)
        x = x + api.linear(mixed, w[f"{n}.merge"], w[f"{n}.merge.bias"])
        h = api.linear(api.norm(x, w[f"{n}.norm2"], w[f"{n}.norm2.bias"]), w[f"{n}.up"], w[f"{n}.up.bias"])
        x = x + api.linear(api.gelu(h), w[f"{n}.down"], w[f"{n}.down.bias"])
    return api.linear(api.norm(x, w["last"], w["last.bias"]), w["tokens"])


def prefill_case() -> Case:
    """A prompt of 128 tokens, logits of all places."""

    def build(api: Any) -> Run:
        tokens = np.random.default_rng(1).integers(0, VOCABULARY, (1, PLACES))
        names, arrays = zip(*gpt2_weights().items(), strict=True)

        def forward(ids: Any, weights: list[Any]) -> Any:
            w = dict(zip(names, weights, strict=True))
            return gpt2(api, w, ids, lambda n, q, k, v: api.attention(q, k, v, is_causal=True), 0)

        return api.model(forward, tokens, list(arrays))  # type: ignore[no-any-return]

    products = LAYERS * 12 * WIDTH**2 + VOCABULARY * WIDTH
    return Case("gpt2_prefill", f"GPT-2 124M, prompt of {PLACES}", build, 2 * PLACES * products, tolerance=1e-4)


def decode_case() -> Case:
    """One token that sees itself and 127 before it, in a cache for 1024."""

    def build(api: Any) -> Run:
        tokens = np.random.default_rng(1).integers(0, VOCABULARY, (1, 1))
        rng = np.random.default_rng(2)
        shape = (2, LAYERS, 1, HEADS, CONTEXT, WIDTH // HEADS)
        caches = [rng.standard_normal(shape[2:], dtype=np.float32) for _ in range(2 * LAYERS)]
        names, arrays = zip(*gpt2_weights().items(), strict=True)

        def forward(ids: Any, state: list[Any], position: Any) -> Any:
            w = dict(zip(names, state[2 * LAYERS :], strict=True))

            def attend(n: int, q: Any, k: Any, v: Any) -> Any:
                keys, values = state[2 * n], state[2 * n + 1]
                keys[:, :, position : position + 1] = k
                values[:, :, position : position + 1] = v
                return api.attention(q, keys[:, :, : position + 1], values[:, :, : position + 1])

            return gpt2(api, w, ids, attend, position)

        return api.model_at(forward, tokens, [*caches, *arrays], PLACES - 1, CONTEXT - 1)  # type: ignore[no-any-return]

    bytes_ = 4 * (LAYERS * 12 * WIDTH**2 + VOCABULARY * WIDTH + 2 * LAYERS * PLACES * WIDTH)
    return Case("gpt2_decode", f"GPT-2 124M, a token with {PLACES} keys", build, 0, bytes_, tolerance=1e-4)


# ---- digits -------------------------------------------------------------------------------------------------------


def digits_case() -> Case:
    """Four convolutions, two batch norms, two poolings, Adam, 128 images of 28x28."""

    def build(api: Any) -> Run:
        shapes = ((32, 1, 5, 5), (32, 32, 5, 5), (64, 32, 3, 3), (64, 64, 3, 3))
        layers: list[tuple[Any, ...]] = []
        for n, shape in enumerate(shapes):
            layers += [("conv", kaiming(shape, n), uniform(shape[0], seed=10 + n) * 0.1, 0), ("relu",)]
            layers += [("norm", shape[0]), ("pool",)] if n % 2 else []
        layers.append(("linear", kaiming((10, 576), 5), np.zeros(10, np.float32)))
        x = np.abs(uniform(128, 1, 28, 28, seed=7))
        labels = np.random.default_rng(8).integers(0, 10, 128).astype(np.int32)
        return api.layers_step(layers, "Adam", {"lr": 0.001}, x, labels)  # type: ignore[no-any-return]

    pixels = 576 * 25 * 32, 400 * 25 * 32 * 32, 64 * 9 * 32 * 64, 36 * 9 * 64 * 64
    return Case("digits_step", "MNIST-CNN training step, batch 128", build, 3 * 2 * 128 * sum(pixels))


MODELS: dict[str, Callable[[], Case]] = {
    "resnet18_bs1": lambda: resnet_case(1),
    "resnet18_bs8": lambda: resnet_case(8),
    "gpt2_decode": decode_case,
    "gpt2_prefill": prefill_case,
    "digits_step": digits_case,
}
