"""Networks for gpu_models.py, written once over the few names in which gradlet and PyTorch differ."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

Weights = dict[str, Any]


@dataclass(frozen=True)
class Llama:
    """Sizes of a LLaMA."""

    width: int
    layers: int
    heads: int
    kv_heads: int
    hidden: int
    vocabulary: int
    positions: int

    @property
    def features(self) -> int:
        """Numbers of a head."""
        return self.width // self.heads

    def shapes(self) -> dict[str, tuple[int, ...]]:
        """All weights; queries, keys and values are one matrix, gates and values of the network another."""
        rows = (self.heads + 2 * self.kv_heads) * self.features
        found: dict[str, tuple[int, ...]] = {"tokens": (self.vocabulary, self.width)}
        for n in range(self.layers):
            found |= {
                f"{n}.norm1": (self.width,), f"{n}.qkv": (rows, self.width), f"{n}.out": (self.width, self.width),
                f"{n}.norm2": (self.width,), f"{n}.up": (2 * self.hidden, self.width),
                f"{n}.down": (self.width, self.hidden),
            }  # fmt: skip
        return found | {"norm": (self.width,), "head": (self.vocabulary, self.width)}

    def parameters(self) -> int:
        """How many weights there are."""
        return sum(math.prod(shape) for shape in self.shapes().values())


LLAMA_8B = Llama(4096, 32, 32, 8, 14336, 128256, 2048)
LLAMA_1B = Llama(2048, 22, 32, 4, 5632, 32000, 2048)
SMALL = Llama(256, 2, 4, 2, 512, 1000, 64)


def turns(api: Any, sizes: Llama) -> tuple[Any, Any]:
    """Cosines and sines of all positions, [positions, features / 2]."""
    half = sizes.features // 2
    rates = [10000.0 ** (-i / half) for i in range(half)]
    angles = [[place * rate for rate in rates] for place in range(sizes.positions)]
    return api.array([[math.cos(a) for a in row] for row in angles]), api.array(
        [[math.sin(a) for a in row] for row in angles]
    )


def rope(api: Any, x: Any, cos: Any, sin: Any) -> Any:
    """Heads [..., places, features], turned."""
    half = x.shape[-1] // 2
    a, b = api.wide(x[..., :half]), api.wide(x[..., half:])
    return api.like(api.cat([a * cos - b * sin, a * sin + b * cos]), x)


def rms_norm(api: Any, x: Any, weight: Any) -> Any:
    """Root mean square norm, in float32."""
    y = api.wide(x)
    return api.like(y * (y.square().mean(-1, keepdim=True) + 1e-5).rsqrt(), x) * weight


def llama(api: Any, sizes: Llama, w: Weights, tokens: Any, cos: Any, sin: Any, attend: Callable[..., Any]) -> Any:
    """Logits of tokens [batch, places]; `attend(layer, q, k, v)` gets heads [batch, heads, places, features]."""
    batch, count = tokens.shape
    inner, narrow = sizes.heads * sizes.features, sizes.kv_heads * sizes.features
    x = api.rows(w["tokens"], tokens)
    for n in range(sizes.layers):
        h = api.linear(rms_norm(api, x, w[f"{n}.norm1"]), w[f"{n}.qkv"])
        q = h[..., :inner].reshape(batch, count, sizes.heads, sizes.features).transpose(1, 2)
        k = h[..., inner : inner + narrow].reshape(batch, count, sizes.kv_heads, sizes.features).transpose(1, 2)
        v = h[..., inner + narrow :].reshape(batch, count, sizes.kv_heads, sizes.features).transpose(1, 2)
        mixed = attend(n, rope(api, q, cos, sin), rope(api, k, cos, sin), v)
        x = x + api.linear(mixed.transpose(1, 2).reshape(batch, count, inner), w[f"{n}.out"])
        h = api.linear(rms_norm(api, x, w[f"{n}.norm2"]), w[f"{n}.up"])
        x = x + api.linear(api.silu(h[..., : sizes.hidden]) * h[..., sizes.hidden :], w[f"{n}.down"])
    return api.linear(rms_norm(api, x, w["norm"]), w["head"])


def llama_loss(api: Any, sizes: Llama, w: Weights, table: tuple[Any, Any], tokens: Any, targets: Any) -> Any:
    """Mean cross-entropy of the next tokens."""
    half = {name: api.half(weight) for name, weight in w.items()}
    count = tokens.shape[1]
    cos, sin = (part[:count] for part in table)
    logits = llama(api, sizes, half, tokens, cos, sin, lambda n, q, k, v: api.attention(q, k, v))
    return api.cross_entropy(logits.reshape(-1, sizes.vocabulary), targets.reshape(-1))


# ---- GPT-2 124M ----------------------------------------------------------------------------------------------------

GPT_LAYERS, GPT_HEADS, GPT_WIDTH, GPT_VOCABULARY = 12, 12, 768, 50304


def gpt2_shapes() -> dict[str, tuple[int, ...]]:
    """All weights; the last layer is the embedding again."""
    found: dict[str, tuple[int, ...]] = {"tokens": (GPT_VOCABULARY, GPT_WIDTH), "places": (1024, GPT_WIDTH)}
    for n in range(GPT_LAYERS):
        for name, rows, columns in (("qkv", 3, 1), ("out", 1, 1), ("up", 4, 1), ("down", 1, 4)):
            found[f"{n}.{name}"] = (rows * GPT_WIDTH, columns * GPT_WIDTH)
            found[f"{n}.{name}.bias"] = (rows * GPT_WIDTH,)
        found |= {f"{n}.norm{i}{part}": (GPT_WIDTH,) for i in (1, 2) for part in ("", ".bias")}
    return found | {"norm": (GPT_WIDTH,), "norm.bias": (GPT_WIDTH,)}


def gpt2_loss(api: Any, w: Weights, tokens: Any, targets: Any) -> Any:
    """Mean cross-entropy of the next tokens."""
    w = {name: api.half(weight) for name, weight in w.items()}
    batch, count = tokens.shape
    x = api.rows(w["tokens"], tokens) + w["places"][:count]
    for n in range(GPT_LAYERS):
        h = api.layer_norm(x, w[f"{n}.norm1"], w[f"{n}.norm1.bias"])
        h = api.linear(h, w[f"{n}.qkv"], w[f"{n}.qkv.bias"]).reshape(batch, count, 3, GPT_HEADS, GPT_WIDTH // GPT_HEADS)
        q, k, v = (h[:, :, i].transpose(1, 2) for i in range(3))
        mixed = api.attention(q, k, v).transpose(1, 2).reshape(batch, count, GPT_WIDTH)
        x = x + api.linear(mixed, w[f"{n}.out"], w[f"{n}.out.bias"])
        h = api.layer_norm(x, w[f"{n}.norm2"], w[f"{n}.norm2.bias"])
        h = api.gelu(api.linear(h, w[f"{n}.up"], w[f"{n}.up.bias"]))
        x = x + api.linear(h, w[f"{n}.down"], w[f"{n}.down.bias"])
    logits = api.linear(api.layer_norm(x, w["norm"], w["norm.bias"]), w["tokens"])
    return api.cross_entropy(logits.reshape(-1, GPT_VOCABULARY), targets.reshape(-1))


# ---- ResNet-50 -----------------------------------------------------------------------------------------------------

STAGES = ((64, 3, 1), (128, 4, 2), (256, 6, 2), (512, 3, 2))  # channels, blocks, stride


def resnet_shapes() -> dict[str, tuple[int, ...]]:
    """All weights; after each convolution the scale and shift of its norm."""
    found: dict[str, tuple[int, ...]] = {}

    def convolution(name: str, results: int, inputs: int, window: int) -> None:
        found[name] = (results, inputs, window, window)
        found[f"{name}.scale"] = found[f"{name}.shift"] = (results,)

    convolution("first", 64, 3, 7)
    before = 64
    for stage, (channels, blocks, _) in enumerate(STAGES):
        for block in range(blocks):
            name = f"{stage}.{block}"
            convolution(f"{name}.a", channels, before, 1)
            convolution(f"{name}.b", channels, channels, 3)
            convolution(f"{name}.c", 4 * channels, channels, 1)
            if block == 0:
                convolution(f"{name}.short", 4 * channels, before, 1)
            before = 4 * channels
    return found | {"last": (1000, before), "last.bias": (1000,)}


def resnet_loss(api: Any, w: Weights, images: Any, labels: Any) -> Any:
    """Mean cross-entropy of the classes of images, with statistics of the batch in the norms."""

    def convolve(x: Any, name: str, stride: int = 1) -> Any:
        weight = api.half(w[name])
        y = api.conv2d(x, weight, stride, weight.shape[-1] // 2)
        return api.batch_norm(y, w[f"{name}.scale"], w[f"{name}.shift"])

    x = api.window_max(api.relu(convolve(api.half(images), "first", 2)))
    for stage, (_, blocks, stride) in enumerate(STAGES):
        for block in range(blocks):
            name, step = f"{stage}.{block}", stride if block == 0 else 1
            y = api.relu(convolve(x, f"{name}.a"))
            y = convolve(api.relu(convolve(y, f"{name}.b", step)), f"{name}.c")
            x = api.relu(y + (convolve(x, f"{name}.short", step) if block == 0 else x))
    logits = api.linear(api.half(api.wide(x).mean((2, 3))), api.half(w["last"]), api.half(w["last.bias"]))
    return api.cross_entropy(logits, labels)
