"""Large models as shapes and a loss, written once over the few operations that every framework has under some name.

Nothing here is ever run: weights are shapes without values. `MODELS` says of each model how it is built.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

Shape = tuple[int, ...]


class Ops(Protocol):
    """Operations by the names used here; `x` and results are values of the framework."""

    def conv(self, x: Any, w: Any, stride: int, padding: int) -> Any: ...
    def window_max(self, x: Any) -> Any: ...
    def upsample(self, x: Any) -> Any: ...
    def mean(self, x: Any, axes: Sequence[int]) -> Any: ...
    def sum(self, x: Any, axes: Sequence[int]) -> Any: ...
    def relu(self, x: Any) -> Any: ...
    def sigmoid(self, x: Any) -> Any: ...
    def gelu(self, x: Any) -> Any: ...
    def rsqrt(self, x: Any) -> Any: ...
    def softmax(self, x: Any) -> Any: ...
    def log_softmax(self, x: Any) -> Any: ...
    def reshape(self, x: Any, shape: Shape) -> Any: ...
    def permute(self, x: Any, axes: Shape) -> Any: ...
    def concat(self, parts: Sequence[Any], axis: int) -> Any: ...
    def causal(self, scores: Any) -> Any: ...


class Weights:
    """Hands out weights in the order of use, and remembers them; `make` turns a shape into what stands for one."""

    def __init__(self, make: Callable[[Shape], Any]) -> None:
        self.values: list[Any] = []
        self._make = make

    def __call__(self, *shape: int) -> Any:
        self.values.append(self._make(shape))
        return self.values[-1]


@dataclass(frozen=True)
class Model:
    """One row.

    Attributes:
        title: how the row is called.
        inputs: shapes of the inputs.
        loss: from operations, weights and inputs to a scalar (or, forward only, to the outputs).
        backward: whether gradients of all weights are asked for.
    """

    title: str
    inputs: tuple[Shape, ...]
    loss: Callable[[Ops, Weights, Sequence[Any]], Any]
    backward: bool


def linear(ops: Ops, x: Any, weights: Weights, inputs: int, outputs: int, bias: bool = True) -> Any:
    y = x @ weights(inputs, outputs)
    return y + weights(outputs) if bias else y


# ---- ResNet-50 ----------------------------------------------------------------------------------------------------


def batch_norm(ops: Ops, x: Any, weights: Weights, channels: int) -> Any:
    """In training: by the statistics of the batch."""
    gain, shift = weights(1, channels, 1, 1), weights(1, channels, 1, 1)
    centred = x - ops.mean(x, (0, 2, 3))
    return centred * ops.rsqrt(ops.mean(centred * centred, (0, 2, 3)) + 1e-5) * gain + shift


def resnet50(ops: Ops, weights: Weights, inputs: Sequence[Any]) -> Any:
    images, classes = inputs

    def layer(y: Any, before: int, after: int, size: int, stride: int) -> Any:
        return batch_norm(ops, ops.conv(y, weights(after, before, size, size), stride, size // 2), weights, after)

    x = ops.window_max(ops.relu(layer(images, 3, 64, 7, 2)))
    before = 64
    for width, blocks, stride in ((64, 3, 1), (128, 4, 2), (256, 6, 2), (512, 3, 2)):
        for block in range(blocks):
            step = stride if block == 0 else 1
            y = ops.relu(layer(x, before, width, 1, 1))
            y = ops.relu(layer(y, width, width, 3, step))
            y = layer(y, width, width * 4, 1, 1)
            x = ops.relu(y + (layer(x, before, width * 4, 1, step) if block == 0 else x))
            before = width * 4
    pooled = ops.reshape(ops.mean(x, (2, 3)), (images.shape[0], before))
    scores = ops.log_softmax(linear(ops, pooled, weights, before, 1000))
    return -ops.sum(scores * classes, (0, 1))


# ---- transformers -------------------------------------------------------------------------------------------------


def attention(ops: Ops, q: Any, k: Any, v: Any, heads: int, groups: int, causal: bool) -> Any:
    """(batch, places, width) of queries; keys and values have `groups` heads, each for some heads of the queries."""
    batch, places, width = q.shape
    keys, size, share = k.shape[1], width // heads, heads // groups
    q = ops.permute(ops.reshape(q, (batch, places, groups, share, size)), (0, 2, 3, 1, 4))
    k = ops.permute(ops.reshape(k, (batch, keys, groups, 1, size)), (0, 2, 3, 4, 1))
    v = ops.permute(ops.reshape(v, (batch, keys, groups, 1, size)), (0, 2, 3, 1, 4))
    scores = q @ k * size**-0.5
    values = ops.softmax(ops.causal(scores) if causal else scores) @ v
    return ops.reshape(ops.permute(values, (0, 3, 1, 2, 4)), (batch, places, width))


def layer_norm(ops: Ops, x: Any, weights: Weights, width: int) -> Any:
    centred = x - ops.mean(x, (-1,))
    return centred * ops.rsqrt(ops.mean(centred * centred, (-1,)) + 1e-5) * weights(width) + weights(width)


def gpt2(ops: Ops, weights: Weights, inputs: Sequence[Any]) -> Any:
    """The 124M model on embedded tokens, to the logits."""
    x, width = inputs[0], 768
    for _ in range(12):
        y = layer_norm(ops, x, weights, width)
        q, k, v = (linear(ops, y, weights, width, width) for _ in range(3))
        x = x + linear(ops, attention(ops, q, k, v, 12, 12, True), weights, width, width)
        y = layer_norm(ops, x, weights, width)
        y = ops.gelu(linear(ops, y, weights, width, 4 * width))
        x = x + linear(ops, y, weights, 4 * width, width)
    return layer_norm(ops, x, weights, width) @ weights(width, 50257)


@dataclass(frozen=True)
class Llama:
    """Shape of a LLaMA."""

    layers: int
    width: int
    hidden: int
    heads: int
    groups: int
    vocabulary: int

    def norm(self, ops: Ops, x: Any, weights: Weights) -> Any:
        return x * ops.rsqrt(ops.mean(x * x, (-1,)) + 1e-5) * weights(self.width)

    def rotate(self, ops: Ops, x: Any, turns: Any, heads: int) -> Any:
        """Rotary places: `turns` holds cosines and sines of every place."""
        batch, places, width = x.shape
        half = width // heads // 2
        x = ops.reshape(x, (batch, places, heads, 2, half))
        a, b = x[:, :, :, 0], x[:, :, :, 1]
        cos, sin = turns[0][:, None, :half], turns[1][:, None, :half]
        return ops.reshape(ops.concat([a * cos - b * sin, a * sin + b * cos], -1), (batch, places, width))

    def __call__(self, ops: Ops, weights: Weights, inputs: Sequence[Any]) -> Any:
        x, turns, wanted = inputs
        narrow = self.width // self.heads * self.groups
        for _ in range(self.layers):
            y = self.norm(ops, x, weights)
            q = self.rotate(ops, linear(ops, y, weights, self.width, self.width, False), turns, self.heads)
            k = self.rotate(ops, linear(ops, y, weights, self.width, narrow, False), turns, self.groups)
            v = linear(ops, y, weights, self.width, narrow, False)
            y = attention(ops, q, k, v, self.heads, self.groups, True)
            x = x + linear(ops, y, weights, self.width, self.width, False)
            y = self.norm(ops, x, weights)
            gate = linear(ops, y, weights, self.width, self.hidden, False)
            y = gate * ops.sigmoid(gate) * linear(ops, y, weights, self.width, self.hidden, False)
            x = x + linear(ops, y, weights, self.hidden, self.width, False)
        scores = ops.log_softmax(self.norm(ops, x, weights) @ weights(self.width, self.vocabulary))
        return -ops.sum(scores * wanted, (0, 1, 2))

    def inputs(self, places: int) -> tuple[Shape, ...]:
        return (1, places, self.width), (2, places, self.width // self.heads // 2), (1, places, self.vocabulary)


# ---- a UNet shaped like that of Stable Diffusion XL ---------------------------------------------------------------


def group_norm(ops: Ops, x: Any, weights: Weights) -> Any:
    batch, channels, height, width = x.shape
    parts = ops.reshape(x, (batch, 32, channels // 32 * height * width))
    centred = parts - ops.mean(parts, (-1,))
    parts = centred * ops.rsqrt(ops.mean(centred * centred, (-1,)) + 1e-5)
    whole = ops.reshape(parts, (batch, channels, height, width))
    return whole * weights(1, channels, 1, 1) + weights(1, channels, 1, 1)


def unet(ops: Ops, weights: Weights, inputs: Sequence[Any]) -> Any:
    """Three levels of 320, 640 and 1280 channels, with 0, 2 and 10 transformer blocks after each residual block."""
    x, time, words = inputs

    def silu(y: Any) -> Any:
        return y * ops.sigmoid(y)

    def conv(y: Any, after: int, size: int = 3, stride: int = 1) -> Any:
        y = ops.conv(y, weights(after, y.shape[1], size, size), stride, size // 2)
        return y + weights(1, after, 1, 1)

    def residual(y: Any, after: int) -> Any:
        inner = conv(silu(group_norm(ops, y, weights)), after)
        inner = inner + ops.reshape(linear(ops, silu(time), weights, time.shape[1], after), (1, after, 1, 1))
        inner = conv(silu(group_norm(ops, inner, weights)), after)
        return inner + (y if y.shape[1] == after else conv(y, after, 1))

    def attend(y: Any, other: Any, width: int) -> Any:
        q = linear(ops, y, weights, width, width, False)
        k, v = (linear(ops, other, weights, other.shape[-1], width, False) for _ in range(2))
        return linear(ops, attention(ops, q, k, v, width // 64, width // 64, False), weights, width, width)

    def transformer(y: Any, depth: int) -> Any:
        batch, channels, height, width = y.shape
        z = ops.permute(ops.reshape(group_norm(ops, y, weights), (batch, channels, height * width)), (0, 2, 1))
        z = linear(ops, z, weights, channels, channels)
        for _ in range(depth):
            normal = layer_norm(ops, z, weights, channels)
            z = z + attend(normal, normal, channels)
            z = z + attend(layer_norm(ops, z, weights, channels), words, channels)
            inner = layer_norm(ops, z, weights, channels)
            gate = ops.gelu(linear(ops, inner, weights, channels, 4 * channels))
            inner = gate * linear(ops, inner, weights, channels, 4 * channels)
            z = z + linear(ops, inner, weights, 4 * channels, channels)
        z = linear(ops, z, weights, channels, channels)
        return y + ops.reshape(ops.permute(z, (0, 2, 1)), y.shape)

    def block(y: Any, after: int, depth: int) -> Any:
        y = residual(y, after)
        return transformer(y, depth) if depth else y

    levels = ((320, 0), (640, 2), (1280, 10))
    x = conv(x, 320)
    kept = [x]
    for number, (channels, depth) in enumerate(levels):
        for _ in range(2):
            x = block(x, channels, depth)
            kept.append(x)
        if number < 2:
            x = conv(x, channels, 3, 2)
            kept.append(x)
    x = residual(transformer(residual(x, 1280), 10), 1280)
    for number, (channels, depth) in reversed(list(enumerate(levels))):
        for _ in range(3):
            x = block(ops.concat([x, kept.pop()], 1), channels, depth)
        if number:
            x = conv(ops.upsample(x), channels)
    return conv(silu(group_norm(ops, x, weights)), 4)


# ---- rows ---------------------------------------------------------------------------------------------------------

IMAGES = ((64, 3, 224, 224), (64, 1000))
PLACES = 128


def llama(title: str, shape: Llama, backward: bool) -> Model:
    return Model(title, shape.inputs(PLACES), shape, backward)


def small(layers: int) -> Llama:
    return Llama(layers, 512, 1376, 8, 8, 32000)


MODELS: dict[str, Model] = {
    "resnet50": Model("ResNet-50, batch 64, forward", IMAGES, resnet50, False),
    "resnet50_step": Model("ResNet-50, batch 64, forward and backward", IMAGES, resnet50, True),
    "gpt2": Model("GPT-2 124M, 128 tokens, forward", ((1, PLACES, 768),), gpt2, False),
    "llama1": llama("LLaMA, 1 layer of width 512, forward and backward", small(1), True),
    "llama8": llama("LLaMA, 8 layers of width 512, forward and backward", small(8), True),
    "llama32": llama("LLaMA, 32 layers of width 512, forward and backward", small(32), True),
    "llama8b": llama("LLaMA 8B (32 layers of 4096), forward and backward", Llama(32, 4096, 14336, 32, 8, 128256), True),
    "llama405b": llama("LLaMA 405B (126 layers of 16384), forward", Llama(126, 16384, 53248, 128, 8, 128256), False),
    "unet": Model("UNet of SDXL, 128x128, forward", ((1, 4, 128, 128), (1, 1280), (1, 77, 2048)), unet, False),
}
