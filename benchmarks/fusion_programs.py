"""The 48 programs whose kernels are counted, written once for gradlet and torch, and what others need for them.

A program is a function `run(api, **inputs) -> list of results`. `api` hides what the two libraries spell differently;
everything else is the part of the API that they share. All floats are float32.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

Inputs = dict[str, np.ndarray]
Pair = tuple[int, float]  # kernels, megabytes


@dataclass(frozen=True)
class Anchor:
    """Kernels and megabytes (1e6 bytes) that others need, counted once and committed: see benchmarks/RESULTS.md.

    Attributes:
        ideal: derived by hand, without grid barriers and float atomics.
        tinygrad: 0.14 with its default settings.
        inductor: torch 2.13, scheduler nodes (loop nests and library calls), forward and backward added.
        xla: jax 0.10.2 on CPU, instructions of the optimised program that do work; no bytes where it gives none.
    """

    ideal: Pair
    tinygrad: Pair
    inductor: tuple[int, float | None]
    xla: tuple[int, float | None]


@dataclass(frozen=True)
class Program:
    """One row of the table.

    Attributes:
        name: how it is asked for and printed.
        anchor: what others need.
        inputs: `inputs(random generator)` makes the input arrays.
        run: `run(api, **inputs)` gives the results.
        training: whether it is one of the training blocks, where a ratio to the ideal counts.
        random: results depend on random bits, so that they cannot be compared.
    """

    name: str
    anchor: Anchor
    inputs: Callable[[np.random.Generator], Inputs]
    run: Callable[..., list[Any]]
    training: bool = False
    random: bool = False


PROGRAMS: dict[str, Program] = {}


def program(
    name: str,
    ideal: Pair,
    tinygrad: Pair,
    inductor: tuple[int, float | None],
    xla: tuple[int, float | None],
    training: bool = False,
    random: bool = False,
    **shapes: Any,
) -> Callable[[Callable[..., list[Any]]], Callable[..., list[Any]]]:
    """Register a program; `shapes` are the inputs: a shape (normal floats), or a function of the generator."""

    def inputs(generator: np.random.Generator) -> Inputs:
        return {key: _array(shape, generator) for key, shape in shapes.items()}

    def register(run: Callable[..., list[Any]]) -> Callable[..., list[Any]]:
        PROGRAMS[name] = Program(name, Anchor(ideal, tinygrad, inductor, xla), inputs, run, training, random)
        return run

    return register


def _array(shape: Any, generator: np.random.Generator) -> np.ndarray:
    if callable(shape):
        return np.asarray(shape(generator))
    return generator.standard_normal(shape, dtype=np.float32)


def integers(high: int, *shape: int) -> Callable[[np.random.Generator], np.ndarray]:
    """Integers below `high`."""
    return lambda generator: generator.integers(0, high, shape, dtype=np.int32)


def positive(*shape: int) -> Callable[[np.random.Generator], np.ndarray]:
    """Floats in [0.5, 1.5)."""
    return lambda generator: generator.random(shape, dtype=np.float32) + np.float32(0.5)


def mask(*shape: int) -> Callable[[np.random.Generator], np.ndarray]:
    """Booleans, half of them true."""
    return lambda generator: generator.random(shape) < 0.5


def weight(*shape: int) -> Callable[[np.random.Generator], np.ndarray]:
    """Normal floats scaled by the root of the number of inputs."""
    scale = np.float32(1 / math.sqrt(math.prod(shape[1:])))
    return lambda generator: generator.standard_normal(shape, dtype=np.float32) * scale


# ---- element-wise and reductions ----------------------------------------------------------------------------------


@program("chain of 10 element-wise", (1, 8.39), (1, 8.39), (1, 8.39), (1, 8.39), x=(1024, 1024))
def chain(api: Any, x: Any) -> list[Any]:
    for step in range(5):
        x = (x * 0.9 + 0.1 * step).tanh() if step == 4 else (x * 0.9 + 0.1 * step)
    return [x.sigmoid() * x]


@program("x.sum()", (1, 16.8), (2, 16.8), (1, 16.8), (1, 16.8), x=(4096, 1024))
def total(api: Any, x: Any) -> list[Any]:
    return [x.sum()]


@program("mean and variance over rows", (1, 4.20), (3, 8.41), (1, 4.20), (4, 8.42), x=(1024, 1024))
def mean_variance(api: Any, x: Any) -> list[Any]:
    return [x.mean(-1), x.var(-1)]


@program("softmax over rows", (1, 8.39), (3, 16.8), (1, 8.39), (4, 21.0), x=(1024, 1024))
def softmax(api: Any, x: Any) -> list[Any]:
    return [x.softmax(-1)]


@program("log_softmax and nll", (1, 1.03), (3, 2.06), (3, 2.05), (6, 4.10), x=(256, 1000), y=integers(1000, 256))
def class_loss(api: Any, x: Any, y: Any) -> list[Any]:
    return [api.cross_entropy(x, y)]


@program("log_softmax and nll, gradient", (1, 2.05), (5, 4.11), (4, 4.11), (15, 13.3), training=True,
         x=(256, 1000), y=integers(1000, 256))  # fmt: skip
def class_loss_gradient(api: Any, x: Any, y: Any) -> list[Any]:
    loss = api.cross_entropy(x, y)
    return [loss, *api.grad([loss], [None], [x])]


@program("layer norm", (1, 8.40), (3, 16.8), (1, 8.40), (5, 25.2), x=(1024, 1024), w=(1024,), b=(1024,))
def layer_norm(api: Any, x: Any, w: Any, b: Any) -> list[Any]:
    return [api.layer_norm(x, w, b)]


@program("layer norm, gradient", (1, 16.8), (9, 63.0), (3, 29.4), (16, 101.0), training=True,
         x=(1024, 1024), w=(1024,), b=(1024,), g=(1024, 1024))  # fmt: skip
def layer_norm_gradient(api: Any, x: Any, w: Any, b: Any, g: Any) -> list[Any]:
    y = api.layer_norm(x, w, b)
    return [y, *api.grad([y], [g], [x, w, b])]


@program("rms norm", (1, 8.39), (2, 12.6), (1, 8.39), (3, 12.6), x=(1024, 1024), w=(1024,))
def rms_norm(api: Any, x: Any, w: Any) -> list[Any]:
    return [_rms(x) * w]


def _rms(x: Any) -> Any:
    return x * ((x * x).mean(-1, True) + 1e-6).rsqrt()


@program("batch norm, training, gradient", (2, 25.2), (9, 62.9), (4, 33.6), (16, 101.0), training=True,
         x=(16, 64, 32, 32), w=(64,), b=(64,), g=(16, 64, 32, 32))  # fmt: skip
def batch_norm_gradient(api: Any, x: Any, w: Any, b: Any, g: Any) -> list[Any]:
    y = api.batch_norm(x, w, b)
    return [y, *api.grad([y], [g], [x, w, b])]


@program("masked sum and count", (1, 5.24), (4, 6.30), (1, 5.24), (5, 23.1), x=(1024, 1024), m=mask(1024, 1024))
def masked_sum(api: Any, x: Any, m: Any) -> list[Any]:
    return [api.where(m, x, 0.0).sum(), api.count(m)]


@program("row norm and its users", (1, 8.40), (4, 12.6), (1, 8.40), (4, 12.6), x=(1024, 1024))
def row_norm_users(api: Any, x: Any) -> list[Any]:
    s = (x * x).mean(-1, True)
    return [s.exp(), s.sqrt(), x * s]


@program("(x.T + y).sum(-1)", (1, 4.20), (1, 4.20), (1, 4.20), (2, 8.39), x=(512, 1024), y=(1024, 512))
def transposed_sum(api: Any, x: Any, y: Any) -> list[Any]:
    return [(x.transpose(0, 1) + y).sum(-1)]


@program("max and sum over rows", (1, 4.20), (1, 4.20), (1, 4.20), (3, 8.41), x=(1024, 1024))
def max_times_sum(api: Any, x: Any) -> list[Any]:
    return [api.amax(x, -1) * x.sum(-1)]


@program("argmax over rows", (1, 1.03), (2, 2.05), (1, 1.03), (1, 1.03), x=(256, 1000))
def argmax(api: Any, x: Any) -> list[Any]:
    return [x.argmax(-1)]


@program("group norm", (1, 8.39), (3, 16.8), (3, 12.6), (5, 25.2), x=(16, 64, 32, 32), w=(64,), b=(64,))
def group_norm(api: Any, x: Any, w: Any, b: Any) -> list[Any]:
    return [api.group_norm(x, 8, w, b)]


# ---- movement -----------------------------------------------------------------------------------------------------


@program("rotary embedding", (1, 4.26), (1, 4.26), (1, 4.26), (1, 4.26), x=(4, 256, 8, 64), c=(256, 32), s=(256, 32))
def rotary(api: Any, x: Any, c: Any, s: Any) -> list[Any]:
    return [_rotate(api, x, c, s)]


def _rotate(api: Any, x: Any, c: Any, s: Any) -> Any:
    """x is [batch, time, heads, size]; the halves of the last axis are pairs."""
    half = x.shape[-1] // 2
    first, second = x[..., :half], x[..., half:]
    cosine, sine = c.reshape(1, -1, 1, half), s.reshape(1, -1, 1, half)
    return api.cat([first * cosine - second * sine, second * cosine + first * sine], -1)


@program("cat of four", (1, 2.10), (1, 2.10), (4, 2.10), (1, 2.10),
         a=(256, 256), b=(256, 256), c=(256, 256), d=(256, 256))  # fmt: skip
def cat_four(api: Any, a: Any, b: Any, c: Any, d: Any) -> list[Any]:
    return [api.cat([a, b, c, d], 0)]


@program("box written in place", (1, 0.26), (1, 0.26), (1, 0.39), (1, 0.26), x=(1024, 256), v=(128, 256))
def set_box(api: Any, x: Any, v: Any) -> list[Any]:
    x[128:256] = v * 2
    return [x]


@program("bilinear, twice the size", (1, 1.31), (2, 2.36), (1, 1.31), (7, 5.01), x=(4, 16, 32, 32))
def bilinear(api: Any, x: Any) -> list[Any]:
    return [api.bilinear(x, (64, 64))]


@program("two independent vectors", (1, 0.01), (2, 0.01), (2, 0.01), (2, 0.01), a=(1000,), b=(777,))
def two_vectors(api: Any, a: Any, b: Any) -> list[Any]:
    return [a + 1, b * 2]


@program("dropout", (1, 8.39), (3, 10.5), (2, 8.39), (9, 67.1), random=True, x=(1024, 1024))
def dropout(api: Any, x: Any) -> list[Any]:
    return [api.dropout(x, 0.5)]


# ---- indices, order -----------------------------------------------------------------------------------------------


@program("embedding", (1, 1.05), (1, 1.05), (1, 1.05), (1, 8.91), table=(8192, 256), ids=integers(8192, 512))
def embedding(api: Any, table: Any, ids: Any) -> list[Any]:
    return [api.embedding(table, ids)]


@program("embedding, gradient", (2, 11.0), (2, 9.97), (3, 11.0), (5, 35.7), training=True,
         table=(8192, 256), ids=integers(8192, 512), g=(512, 256))  # fmt: skip
def embedding_gradient(api: Any, table: Any, ids: Any, g: Any) -> list[Any]:
    y = api.embedding(table, ids)
    return [y, *api.grad([y], [g], [table])]


@program("one_hot @ W", (1, 1.05), (1, 1.55), (5, 5.65), (2, 5.65), w=(1000, 256), ids=integers(1000, 512))
def one_hot(api: Any, w: Any, ids: Any) -> list[Any]:
    return [api.one_hot(ids, 1000) @ w]


@program("cumsum over rows", (1, 0.52), (3, 1.05), (1, 0.52), (6, 1.14), x=(64, 1024))
def cumsum_rows(api: Any, x: Any) -> list[Any]:
    return [x.cumsum(-1)]


@program("cumsum of 262144", (2, 3.15), (3, 5.25), (1, 2.10), (10, 4.54), x=(262144,))
def cumsum_long(api: Any, x: Any) -> list[Any]:
    return [x.cumsum(0)]


@program("top 8 of 1024", (1, 0.27), (67, 35.9), (1, 0.27), (1, None), x=(64, 1024))
def top_eight(api: Any, x: Any) -> list[Any]:
    values, places = x.topk(8)
    return [values, places]


@program("sort of 1024", (1, 0.01), (67, 0.56), (1, 0.02), (2, 0.02), x=(1024,))
def sort(api: Any, x: Any) -> list[Any]:
    values, places = x.sort()
    return [values, places]


@program("gather in rows", (1, 0.79), (1, 0.79), (1, 1.05), (1, 1.57), x=(1024, 256), ids=integers(256, 1024, 64))
def gather(api: Any, x: Any, ids: Any) -> list[Any]:
    return [x.gather(1, api.ids(ids))]


@program("scatter_add in rows", (1, 2.62), (1, 2.62), (2, 3.41), (4, 6.29),
         x=(1024, 256), v=(1024, 64), ids=integers(256, 1024, 64))  # fmt: skip
def scatter_add(api: Any, x: Any, v: Any, ids: Any) -> list[Any]:
    return [api.scatter_add(x, 1, ids, v)]


# ---- contractions -------------------------------------------------------------------------------------------------


@program("linear, bias, gelu, gradient", (3, 13.1), (5, 17.3), (6, 17.3), (7, 21.5), training=True,
         x=(256, 512), w=weight(1024, 512), b=(1024,), g=(256, 1024))  # fmt: skip
def linear_gelu_gradient(api: Any, x: Any, w: Any, b: Any, g: Any) -> list[Any]:
    y = _gelu(x @ w.transpose(0, 1) + b)
    return [y, *api.grad([y], [g], [x, w, b])]


def _gelu(x: Any) -> Any:
    return 0.5 * x * (1 + (math.sqrt(2 / math.pi) * (x + 0.044715 * x * x * x)).tanh())


@program("conv, batch norm, relu, gradient", (5, 33.9), (12, 75.9), (8, 42.9), (28, 128.0), training=True,
         x=(16, 32, 28, 28), k=weight(64, 32, 3, 3), w=(64,), b=(64,), g=(16, 64, 28, 28))  # fmt: skip
def conv_norm_relu_gradient(api: Any, x: Any, k: Any, w: Any, b: Any, g: Any) -> list[Any]:
    y = api.batch_norm(api.conv(x, k), w, b).relu()
    return [y, *api.grad([y], [g], [x, k, w, b])]


@program("A @ B @ C", (2, 6.29), (2, 6.29), (2, 6.29), (2, 6.29), a=(512, 512), b=weight(512, 512), c=weight(512, 512))
def two_products(api: Any, a: Any, b: Any, c: Any) -> list[Any]:
    return [a @ b @ c]


@program("attention", (1, 8.65), (4, 42.4), (1, 8.65), (1, 8.65),
         q=(4, 8, 256, 64), k=(4, 8, 256, 64), v=(4, 8, 256, 64))  # fmt: skip
def attention(api: Any, q: Any, k: Any, v: Any) -> list[Any]:
    return [_attend(q, k, v)]


def _attend(q: Any, k: Any, v: Any) -> Any:
    scores = q @ k.transpose(-2, -1) * (1 / math.sqrt(q.shape[-1]))
    return scores.softmax(-1) @ v


@program("attention, gradient", (3, 34.5), (10, 135.0), (3, 25.8), (12, 152.0), training=True,
         q=(4, 8, 256, 64), k=(4, 8, 256, 64), v=(4, 8, 256, 64), g=(4, 8, 256, 64))  # fmt: skip
def attention_gradient(api: Any, q: Any, k: Any, v: Any, g: Any) -> list[Any]:
    y = _attend(q, k, v)
    return [y, *api.grad([y], [g], [q, k, v])]


@program("pad and conv 3x3", (1, 1.59), (1, 1.59), (4, 4.91), (4, 4.91), x=(8, 16, 32, 32), k=weight(32, 16, 3, 3))
def conv(api: Any, x: Any, k: Any) -> list[Any]:
    return [api.conv(x, k)]


@program("max_pool 2x2, gradient", (1, 10.5), (3, 23.1), (3, 13.1), (10, 76.5), training=True,
         x=(16, 64, 32, 32), g=(16, 64, 16, 16))  # fmt: skip
def max_pool_gradient(api: Any, x: Any, g: Any) -> list[Any]:
    y = api.max_pool(x)
    return [y, *api.grad([y], [g], [x])]


@program("key/value append and decode attention", (1, 2.11), (6, 2.18), (4, None), (14, 6.49),
         q=(8, 1, 64), k=(8, 1024, 64), v=(8, 1024, 64), new_k=(8, 1, 64), new_v=(8, 1, 64))  # fmt: skip
def decode(api: Any, q: Any, k: Any, v: Any, new_k: Any, new_v: Any) -> list[Any]:
    k[:, 512:513] = new_k
    v[:, 512:513] = new_v
    return [_attend(q, k[:, :513], v[:, :513]), k, v]


@program("logits and cross-entropy, gradient, 32000 classes", (3, 132.0), (8, 328.0), (7, 328.0), (17, 558.0),
         training=True, h=(256, 256), w=weight(32000, 256), y=integers(32000, 256))  # fmt: skip
def vocabulary_loss(api: Any, h: Any, w: Any, y: Any) -> list[Any]:
    loss = api.cross_entropy(h @ w.transpose(0, 1), y)
    return [loss, *api.grad([loss], [None], [h, w])]


@program("GRU cell", (1, 1.78), (3, 2.63), (3, 2.63), (3, 2.63),
         x=(64, 256), h=(64, 256), wi=weight(768, 256), wh=weight(768, 256), bi=(768,), bh=(768,))  # fmt: skip
def gru(api: Any, x: Any, h: Any, wi: Any, wh: Any, bi: Any, bh: Any) -> list[Any]:
    a, b = x @ wi.transpose(0, 1) + bi, h @ wh.transpose(0, 1) + bh
    reset = (a[:, :256] + b[:, :256]).sigmoid()
    update = (a[:, 256:512] + b[:, 256:512]).sigmoid()
    new = (a[:, 512:] + reset * b[:, 512:]).tanh()
    return [(1 - update) * new + update * h]


@program("rms norm, query/key/value, rotary", (1, 11.6), (4, 22.2), (3, 26.3), (7, 43.1),
         x=(4, 256, 512), n=(512,), w=weight(1536, 512), c=(256, 32), s=(256, 32))  # fmt: skip
def norm_project_rotate(api: Any, x: Any, n: Any, w: Any, c: Any, s: Any) -> list[Any]:
    y = (_rms(x) * n) @ w.transpose(0, 1)
    q, k, v = (y[..., i * 512 : (i + 1) * 512].reshape(*y.shape[:2], 8, 64) for i in range(3))
    return [_rotate(api, q, c, s), _rotate(api, k, c, s), v]


@program("SwiGLU, gradient", (5, 58.2), (8, 77.6), (11, 85.5), (14, 108.0), training=True,
         x=(512, 512), wg=weight(1408, 512), wu=weight(1408, 512), wd=weight(512, 1408), g=(512, 512))  # fmt: skip
def swiglu_gradient(api: Any, x: Any, wg: Any, wu: Any, wd: Any, g: Any) -> list[Any]:
    a = x @ wg.transpose(0, 1)
    y = (a * a.sigmoid() * (x @ wu.transpose(0, 1))) @ wd.transpose(0, 1)
    return [y, *api.grad([y], [g], [x, wg, wu, wd])]


# ---- blocks and optimizers ----------------------------------------------------------------------------------------

_BLOCK: dict[str, Any] = {
    "n1": (512,), "c1": (512,), "wqkv": weight(1536, 512), "bqkv": (1536,), "wo": weight(512, 512), "bo": (512,),
    "n2": (512,), "c2": (512,), "w1": weight(2048, 512), "b1": (2048,), "w2": weight(512, 2048), "b2": (512,),
}  # fmt: skip


@program("GPT-2 block, gradient", (20, 211.0), (42, 379.0), (33, 293.0), (80, 632.0), training=True,
         x=(4, 256, 512), g=(4, 256, 512), **_BLOCK)  # fmt: skip
def transformer_block(api: Any, x: Any, g: Any, **p: Any) -> list[Any]:
    normed = api.layer_norm(x, p["n1"], p["c1"])
    qkv = normed @ p["wqkv"].transpose(0, 1) + p["bqkv"]
    q, k, v = (qkv[..., i * 512 : (i + 1) * 512].reshape(*x.shape[:2], 8, 64).transpose(1, 2) for i in range(3))
    scores = q @ k.transpose(-2, -1) * 0.125
    scores = api.causal(scores)
    mixed = (scores.softmax(-1) @ v).transpose(1, 2).reshape(x.shape)
    middle = x + mixed @ p["wo"].transpose(0, 1) + p["bo"]
    inner = _gelu(api.layer_norm(middle, p["n2"], p["c2"]) @ p["w1"].transpose(0, 1) + p["b1"])
    y = middle + inner @ p["w2"].transpose(0, 1) + p["b2"]
    return [y, *api.grad([y], [g], [x, *p.values()])]


@program("ResNet block, training, gradient", (9, 84.4), (23, 155.0), (17, 117.0), (54, 282.0), training=True,
         x=(16, 64, 28, 28), k1=weight(64, 64, 3, 3), w1=(64,), b1=(64,), k2=weight(64, 64, 3, 3), w2=(64,), b2=(64,),
         g=(16, 64, 28, 28))  # fmt: skip
def residual_block(api: Any, x: Any, k1: Any, w1: Any, b1: Any, k2: Any, w2: Any, b2: Any, g: Any) -> list[Any]:
    h = api.batch_norm(api.conv(x, k1), w1, b1).relu()
    y = (api.batch_norm(api.conv(h, k2), w2, b2) + x).relu()
    return [y, *api.grad([y], [g], [x, k1, w1, b1, k2, w2, b2])]


def _parameters(copies: Sequence[str]) -> dict[str, Any]:
    """Twenty parameters of 3.2 million elements in all, once for every prefix."""
    shapes = [(622, 512), (622,)] * 10
    return {f"{prefix}{i}": positive(*shape) if prefix == "v" else shape
            for prefix in copies for i, shape in enumerate(shapes)}  # fmt: skip


@program("SGD with momentum, 20 parameters", (1, 63.9), (40, 76.7), (20, 63.9), (48, 76.7), **_parameters("pgm"))
def sgd(api: Any, **t: Any) -> list[Any]:
    results = []
    for i in range(20):
        p, g, m = t[f"p{i}"], t[f"g{i}"], t[f"m{i}"]
        velocity = m * 0.9 + g
        results += [api.assign(m, velocity), api.assign(p, p - velocity * 0.01)]
    return results


@program("Adam, 20 parameters", (1, 89.4), (60, 128.0), (20, 89.4), (72, 128.0), **_parameters("pgmv"))
def adam(api: Any, **t: Any) -> list[Any]:
    results = []
    for i in range(20):
        p, g, m, v = t[f"p{i}"], t[f"g{i}"], t[f"m{i}"], t[f"v{i}"]
        mean, square = m * 0.9 + g * 0.1, v * 0.999 + g * g * 0.001
        step = (mean * 10) / ((square * 1000).sqrt() + 1e-8)
        results += [api.assign(m, mean), api.assign(v, square), api.assign(p, p - step * 0.001)]
    return results


@program("gradient norm clipped, 20 parameters", (2, 38.3), (27, 39.6), (39, 38.3), (55, 38.4), **_parameters("g"))
def clip_norm(api: Any, **t: Any) -> list[Any]:
    gradients = list(t.values())
    norm = sum((g * g).sum() for g in gradients).sqrt()
    scale = api.at_most(1.0 / (norm + 1e-6), 1.0)
    return [norm, *[api.assign(g, g * scale) for g in gradients]]
