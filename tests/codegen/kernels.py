"""Hand-built kernels, each with inputs and the numpy result, for the tests of optimising and code generation."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from gradlet.base.dtype import DType, dtypes
from gradlet.graph.node import UOp, mk
from gradlet.ops.op import AccArg, AxisKind, KernelArg, Op, ParamArg, RangeArg, ReduceArg, VariableArg

Array = np.ndarray[Any, Any]
F32 = dtypes.float32


class Kernel(NamedTuple):
    """A kernel, its memory by slot, and what the written slots must hold after."""

    sink: UOp
    arrays: list[Array]
    expected: dict[int, Array]
    variables: dict[UOp, int] = {}


class Builder:
    """Makes the nodes of one kernel."""

    def __init__(self) -> None:
        self.count = 0
        self.stores: list[UOp] = []

    def range(self, size: int | UOp, kind: AxisKind = AxisKind.LOOP) -> UOp:
        bound = size if isinstance(size, UOp) else UOp.const(dtypes.index, size)
        self.count += 1
        return mk(Op.RANGE, dtypes.index, (bound,), RangeArg(self.count - 1, kind))

    def reduce_range(self, size: int) -> UOp:
        return self.range(size, AxisKind.REDUCE)

    @staticmethod
    def param(slot: int, size: int, dtype: DType = F32) -> UOp:
        return mk(Op.PARAM, dtype, (), ParamArg(slot, size))

    @staticmethod
    def load(param: UOp, element: UOp | int, gate: UOp | None = None, otherwise: Any = 0) -> UOp:
        if isinstance(element, int):
            element = UOp.const(dtypes.index, element)
        if gate is None:
            return mk(Op.LOAD, param.dtype, (mk(Op.INDEX, param.dtype, (param, element)),))
        index = mk(Op.INDEX, param.dtype, (param, element, gate))
        return mk(Op.LOAD, param.dtype, (index, UOp.const(param.dtype, otherwise)))

    def store(self, param: UOp, element: UOp | int, value: UOp, gate: UOp | None = None) -> None:
        if isinstance(element, int):
            element = UOp.const(dtypes.index, element)
        src = (param, element) if gate is None else (param, element, gate)
        self.stores.append(mk(Op.STORE, dtypes.void, (mk(Op.INDEX, param.dtype, src), value)))

    @staticmethod
    def reduce(op: Op, value: UOp, *ranges: UOp) -> UOp:
        return mk(Op.REDUCE, value.dtype, (value, *ranges), ReduceArg(op))

    def sink(self, name: str) -> UOp:
        return mk(Op.SINK, dtypes.void, tuple(self.stores), KernelArg(name, None))


def random(*shape: int, seed: int = 0, dtype: str = "float32") -> Array:
    return np.random.default_rng(seed + math.prod(shape)).standard_normal(shape).astype(dtype)


def empty(*shape: int, dtype: str = "float32") -> Array:
    return np.full(shape, 99, dtype)


def byte_dots(size: int = 24, mask: int = 0x0F0F0F0F) -> Kernel:
    """A sum of products of the bytes in two words each, and something else."""
    b = Builder()
    i = b.range(size)
    words = [b.load(b.param(slot, size, dtypes.int32), i) for slot in (1, 2, 3)]
    zero = UOp.const(dtypes.int32, 0)
    dots = [mk(Op.DOT, dtypes.int32, (words[0] >> n & mask, words[1 + n // 4], zero)) for n in (0, 4)]
    b.store(b.param(0, size, dtypes.int32), i, dots[0] + dots[1] + words[2])
    arrays = [np.random.default_rng(n).integers(-(2**31), 2**31, size).astype(np.int32) for n in range(3)]
    arrays[1][:2] = np.array([0x80808080, 0x7F7F7F7F], np.uint32).view(np.int32)  # the least and the largest bytes
    arrays[0][:2] = -1

    def dot(unsigned: Array, signed: Array) -> Array:
        products = unsigned.view(np.uint8).astype(np.int64) * signed.view(np.int8).astype(np.int64)
        return products.reshape(size, 4).sum(1)

    total = sum(dot(arrays[0] >> np.int32(n) & np.int32(mask), arrays[1 + n // 4]) for n in (0, 4)) + arrays[2]
    expected = np.asarray(total).astype(np.int64).astype(np.int32)
    return Kernel(b.sink("byte_dots"), [empty(size, dtype="int32"), *arrays], {0: expected})


def half_dots(size: int = 24) -> Kernel:
    """A sum of the products of the halves in two words each, and something else; the least and largest are there."""
    b = Builder()
    i = b.range(size)
    words = [b.load(b.param(slot, size, dtypes.int32), i) for slot in (1, 2, 3)]
    dots = [mk(Op.DOT16, dtypes.int32, (words[n], words[n + 1], UOp.const(dtypes.int32, 0))) for n in (0, 1)]
    b.store(b.param(0, size, dtypes.int32), i, dots[0] + dots[1] + words[2])
    arrays = [np.random.default_rng(n).integers(-(2**31), 2**31, size).astype(np.int32) for n in range(3)]
    for a in arrays:
        a[:3] = np.array([0x80008000, 0x7FFF7FFF, 0x80007FFF], np.uint32).view(np.int32)
    halves = [a.view(np.int16).astype(np.int64).reshape(size, 2) for a in arrays]
    total = (halves[0] * halves[1]).sum(1) + (halves[1] * halves[2]).sum(1) + arrays[2]
    return Kernel(b.sink("half_dots"), [empty(size, dtype="int32"), *arrays], {0: total.astype(np.int32)})


def elementwise(size: int = 1000) -> Kernel:
    b = Builder()
    out, x, y = b.param(0, size), b.param(1, size), b.param(2, size)
    i = b.range(size)
    b.store(out, i, b.load(x, i) * b.load(y, i) + 1.0)
    a, c = random(size), random(size, seed=1)
    return Kernel(b.sink("elementwise"), [empty(size), a, c], {0: a * c + 1})


def in_place(size: int = 1000) -> Kernel:
    b = Builder()
    w, g = b.param(0, size), b.param(1, size)
    i = b.range(size)
    b.store(w, i, b.load(w, i) - b.load(g, i) * 0.5)
    a, c = random(size), random(size, seed=1)
    return Kernel(b.sink("in_place"), [a.copy(), c], {0: a - c * np.float32(0.5)})


def strided(rows: int = 37, columns: int = 29) -> Kernel:
    """A transposition with arithmetic."""
    b = Builder()
    out, x = b.param(0, rows * columns), b.param(1, rows * columns)
    i, j = b.range(columns), b.range(rows)
    b.store(out, i * rows + j, b.load(x, j * columns + i) + 2.0)
    a = random(rows, columns)
    return Kernel(b.sink("strided"), [empty(columns, rows), a], {0: a.T + 2})


def two_dimensional(rows: int = 13, columns: int = 40) -> Kernel:
    """A bias a row: the ranges of the output must not merge."""
    b = Builder()
    out, x, bias = b.param(0, rows * columns), b.param(1, rows * columns), b.param(2, rows)
    i, j = b.range(rows), b.range(columns)
    b.store(out, i * columns + j, b.load(x, i * columns + j) + b.load(bias, i))
    a, c = random(rows, columns), random(rows, seed=3)
    return Kernel(b.sink("two_dimensional"), [empty(rows, columns), a, c], {0: a + c[:, None]})


def contiguous_3d(shape: tuple[int, int, int] = (3, 5, 16)) -> Kernel:
    """Three ranges that every access walks as one."""
    b = Builder()
    size = math.prod(shape)
    out, x = b.param(0, size), b.param(1, size)
    i, j, k = (b.range(s) for s in shape)
    at = (i * shape[1] + j) * shape[2] + k
    b.store(out, at, b.load(x, at) * 3.0)
    a = random(*shape)
    return Kernel(b.sink("contiguous_3d"), [empty(*shape), a], {0: a * 3})


def padded(size: int = 50, before: int = 3, after: int = 5) -> Kernel:
    b = Builder()
    total = size + before + after
    out, x = b.param(0, total), b.param(1, size)
    i = b.range(total)
    inside = (i < before).logical_not() & (i < before + size)
    b.store(out, i, b.load(x, i - before, inside, -1.0))
    a = random(size)
    return Kernel(b.sink("padded"), [empty(total), a], {0: np.pad(a, (before, after), constant_values=-1)})


def row_reduce(rows: int = 9, columns: int = 100, op: Op = Op.ADD) -> Kernel:
    b = Builder()
    out, x = b.param(0, rows), b.param(1, rows * columns)
    i, k = b.range(rows), b.reduce_range(columns)
    b.store(out, i, b.reduce(op, b.load(x, i * columns + k), k))
    a = random(rows, columns)
    if op is Op.MUL:
        a = 1 + a / 50
    function = {Op.ADD: np.sum, Op.MUL: np.prod, Op.MAX: np.max, Op.MIN: np.min}[op]
    return Kernel(b.sink(f"row_{op.name.lower()}"), [empty(rows), a], {0: function(a, axis=1)})


def column_sum(rows: int = 33, columns: int = 70) -> Kernel:
    b = Builder()
    out, x = b.param(0, columns), b.param(1, rows * columns)
    j, k = b.range(columns), b.reduce_range(rows)
    b.store(out, j, b.reduce(Op.ADD, b.load(x, k * columns + j), k))
    a = random(rows, columns)
    return Kernel(b.sink("column_sum"), [empty(columns), a], {0: a.sum(0)})


def full_sum(size: int = 1003) -> Kernel:
    b = Builder()
    out, x = b.param(0, 1), b.param(1, size)
    k = b.reduce_range(size)
    b.store(out, 0, b.reduce(Op.ADD, b.load(x, k), k))
    a = random(size)
    return Kernel(b.sink("full_sum"), [empty(1), a], {0: a.sum(keepdims=True)})


def softmax(rows: int = 7, columns: int = 50, same_range: bool = False) -> Kernel:
    """Three loops a row; with `same_range` both reduces use one range."""
    b = Builder()
    size = rows * columns
    out, x = b.param(0, size), b.param(1, size)
    i, j = b.range(rows), b.range(columns)
    k1 = b.reduce_range(columns)
    k2 = k1 if same_range else b.reduce_range(columns)
    top = b.reduce(Op.MAX, b.load(x, i * columns + k1), k1)
    total = b.reduce(Op.ADD, (b.load(x, i * columns + k2) - top).exp(), k2)
    b.store(out, i * columns + j, (b.load(x, i * columns + j) - top).exp().fdiv(total))
    a = random(rows, columns)
    e = np.exp(a - a.max(1, keepdims=True))
    return Kernel(b.sink("softmax"), [empty(rows, columns), a], {0: e / e.sum(1, keepdims=True)})


def attention(
    heads: int = 2, rows: int = 12, keys: int = 10, depth: int = 4, columns: int = 6, causal: bool = False,
    window: int = 0,
) -> Kernel:  # fmt: skip
    """Values weighted by a softmax of products of queries and keys, perhaps of those before a row, or near it."""
    b = Builder()
    out, q, k, v = (b.param(slot, heads * a * c) for slot, (a, c) in enumerate(
        ((rows, columns), (rows, depth), (keys, depth), (keys, columns))))  # fmt: skip
    h, i, d = b.range(heads), b.range(rows), b.range(columns)

    def scores(j: UOp, e: UOp) -> UOp:
        products = b.load(q, (h * rows + i) * depth + e) * b.load(k, (h * keys + j) * depth + e)
        score = b.reduce(Op.ADD, products, e) * 0.5
        row, key = i.cast(dtypes.int32), j.cast(dtypes.int32)
        hidden = UOp.const(F32, -math.inf)
        score = (key < row + 1).where(score, hidden) if causal else score
        return (row < key + window).where(score, hidden) if window else score

    j, e, j1, e1, j2, e2 = (b.reduce_range(n) for n in (keys, depth) * 3)
    top = b.reduce(Op.MAX, scores(j1, e1), j1)
    total = b.reduce(Op.ADD, (scores(j2, e2) + top * -1.0).exp(), j2)
    weight = (scores(j, e) + top * -1.0).exp().fdiv(total)
    b.store(out, (h * rows + i) * columns + d, b.reduce(Op.ADD, weight * b.load(v, (h * keys + j) * columns + d), j))
    a, c, w = random(heads, rows, depth), random(heads, keys, depth, seed=1), random(heads, keys, columns, seed=2)
    wide = (a.astype(np.float64) @ c.transpose(0, 2, 1)) * 0.5
    row, key = np.arange(rows)[:, None], np.arange(keys)
    seen = (key <= row if causal else key >= 0) & (row < key + window if window else key >= 0)
    wide = np.where(seen, wide, -np.inf)
    with np.errstate(invalid="ignore"):
        e_ = np.exp(wide - wide.max(-1, keepdims=True))
        expected = (e_ / e_.sum(-1, keepdims=True)) @ w
    return Kernel(b.sink("attention"), [empty(heads, rows, columns), a, c, w], {0: expected.astype(np.float32)})


def fed(
    heads: int = 2, rows: int = 12, length: int = 10, depth: int = 4, columns: tuple[int, ...] = (6, 3),
    causal: bool = False,
) -> Kernel:  # fmt: skip
    """Sums along a loop whose weights are made of products: `p` for the first, `p * s` for the others.

    `s[i, j]` is the product of row `i` and `j` of two factors, `t[i, j]` that of two more, `p = exp(s / 8)`
    for rows up to `j` only if causal; the second weight is `p * (t + a[j])`.
    """
    b = Builder()
    outs = [b.param(n, heads * rows * c) for n, c in enumerate(columns)]
    slot = len(outs)
    own, beside, own2, beside2 = (
        b.param(slot + n, heads * size * depth) for n, size in enumerate((rows, length, rows, length))
    )
    added = b.param(slot + 4, heads * length)
    values = [b.param(slot + 5 + n, heads * length * c) for n, c in enumerate(columns)]
    h, i = b.range(heads), b.range(rows)

    def product(one: UOp, other: UOp, j: UOp) -> UOp:
        e = b.reduce_range(depth)
        terms = b.load(one, (h * rows + i) * depth + e) * b.load(other, (h * length + j) * depth + e)
        return b.reduce(Op.ADD, terms, e)

    for n, width in enumerate(columns):
        d, j = b.range(width), b.reduce_range(length)
        score = product(own, beside, j) * 0.125
        if causal:
            score = (j.cast(dtypes.int32) < i.cast(dtypes.int32)).where(UOp.const(F32, -math.inf), score)
        weight = score.exp()
        if n:
            weight = weight * (product(own2, beside2, j) + b.load(added, h * length + j))
        terms = b.load(values[n], (h * length + j) * width + d)
        b.store(outs[n], (h * rows + i) * width + d, b.reduce(Op.ADD, terms * weight if n else weight * terms, j))
    a, c, a2, c2 = (random(heads, size, depth, seed=n) for n, size in enumerate((rows, length, rows, length)))
    more = random(heads, length, seed=4)
    v = [random(heads, length, width, seed=5 + n) for n, width in enumerate(columns)]
    p = np.exp((a.astype(np.float64) @ c.transpose(0, 2, 1)) * 0.125)
    p = np.where(np.arange(length) < np.arange(rows)[:, None], 0, p) if causal else p
    t = p * (a2.astype(np.float64) @ c2.transpose(0, 2, 1) + more[:, None])
    expected = {n: ((t if n else p) @ one).astype(np.float32) for n, one in enumerate(v)}
    arrays = [*[empty(heads, rows, c) for c in columns], a, c, a2, c2, more, *v]
    return Kernel(b.sink("fed"), arrays, expected)


def layer_norm(rows: int = 5, columns: int = 72) -> Kernel:
    """Also stores the mean: two outputs with different ranges."""
    b = Builder()
    size = rows * columns
    out, mean_out, x, weight = b.param(0, size), b.param(1, rows), b.param(2, size), b.param(3, columns)
    i, j, k1, k2 = b.range(rows), b.range(columns), b.reduce_range(columns), b.reduce_range(columns)
    mean = b.reduce(Op.ADD, b.load(x, i * columns + k1), k1) * (1 / columns)
    difference = b.load(x, i * columns + k2) - mean
    variance = b.reduce(Op.ADD, difference * difference, k2) * (1 / columns)
    scale = UOp.const(F32, 1.0).fdiv((variance + 1e-5).sqrt())
    b.store(out, i * columns + j, (b.load(x, i * columns + j) - mean) * scale * b.load(weight, j))
    b.store(mean_out, i, mean)
    a, w = random(rows, columns), random(columns, seed=1)
    m = a.mean(1, keepdims=True)
    r = (a - m) / np.sqrt(a.var(1, keepdims=True) + 1e-5) * w
    return Kernel(b.sink("layer_norm"), [empty(rows, columns), empty(rows), a, w], {0: r, 1: m[:, 0]})


def matmul(m: int = 11, n: int = 35, k: int = 9, trans_a: bool = False, trans_b: bool = False) -> Kernel:
    b = Builder()
    out, x, y = b.param(0, m * n), b.param(1, m * k), b.param(2, k * n)
    i, j, l = b.range(m), b.range(n), b.reduce_range(k)
    left = b.load(x, l * m + i if trans_a else i * k + l)
    right = b.load(y, j * k + l if trans_b else l * n + j)
    b.store(out, i * n + j, b.reduce(Op.ADD, left * right, l))
    a, c = random(m, k), random(k, n, seed=1)
    arrays = [empty(m, n), np.ascontiguousarray(a.T) if trans_a else a, np.ascontiguousarray(c.T) if trans_b else c]
    return Kernel(b.sink(f"matmul_{'t' if trans_a else 'n'}{'t' if trans_b else 'n'}"), arrays, {0: a @ c})


def matmul_bias_relu(m: int = 12, n: int = 64, k: int = 7) -> Kernel:
    b = Builder()
    out, x, y, bias = b.param(0, m * n), b.param(1, m * k), b.param(2, k * n), b.param(3, n)
    i, j, l = b.range(m), b.range(n), b.reduce_range(k)
    total = b.reduce(Op.ADD, b.load(x, i * k + l) * b.load(y, l * n + j), l)
    b.store(out, i * n + j, (total + b.load(bias, j)).maximum(0.0))
    a, c, d = random(m, k), random(k, n, seed=1), random(n, seed=2)
    return Kernel(b.sink("matmul_bias_relu"), [empty(m, n), a, c, d], {0: np.maximum(a @ c + d, 0)})


def matmul_onto(m: int = 11, n: int = 32, k: int = 7) -> Kernel:
    """A product added in place."""
    b = Builder()
    out, x, y = b.param(0, m * n), b.param(1, m * k), b.param(2, k * n)
    i, j, l = b.range(m), b.range(n), b.reduce_range(k)
    total = b.reduce(Op.ADD, b.load(x, i * k + l) * b.load(y, l * n + j), l)
    b.store(out, i * n + j, total + b.load(out, i * n + j))
    a, c, d = random(m, k), random(k, n, seed=1), random(m, n, seed=2)
    return Kernel(b.sink("matmul_onto"), [d.copy(), a, c], {0: a @ c + d})


def batched_matmul(batch: int = 3, m: int = 10, n: int = 20, k: int = 9) -> Kernel:
    b = Builder()
    out, x, y = b.param(0, batch * m * n), b.param(1, batch * m * k), b.param(2, batch * k * n)
    g, i, j, l = b.range(batch), b.range(m), b.range(n), b.reduce_range(k)
    product = b.load(x, (g * m + i) * k + l) * b.load(y, (g * k + l) * n + j)
    b.store(out, (g * m + i) * n + j, b.reduce(Op.ADD, product, l))
    a, c = random(batch, m, k), random(batch, k, n, seed=1)
    return Kernel(b.sink("batched_matmul"), [empty(batch, m, n), a, c], {0: a @ c})


def conv2d(
    batch: int = 2, ci: int = 3, co: int = 4, size: int = 7, taps: int = 3, pad: int = 1, stride: int = 1
) -> Kernel:  # fmt: skip
    b = Builder()
    result = (size + 2 * pad - taps) // stride + 1
    out = b.param(0, batch * co * result * result)
    x, w = b.param(1, batch * ci * size * size), b.param(2, co * ci * taps * taps)
    n, o, h, v = b.range(batch), b.range(co), b.range(result), b.range(result)
    c, kh, kw = b.reduce_range(ci), b.reduce_range(taps), b.reduce_range(taps)
    row, column = h * stride + kh - pad, v * stride + kw - pad
    gate = None
    if pad:
        gate = (row < 0).logical_not() & (row < size) & (column < 0).logical_not() & (column < size)
    pixel = b.load(x, ((n * ci + c) * size + row) * size + column, gate)
    weight = b.load(w, ((o * ci + c) * taps + kh) * taps + kw)
    b.store(out, ((n * co + o) * result + h) * result + v, b.reduce(Op.ADD, pixel * weight, c, kh, kw))
    a, f = random(batch, ci, size, size), random(co, ci, taps, taps, seed=1)
    p = np.pad(a, ((0, 0), (0, 0), (pad, pad), (pad, pad)))
    expected = np.zeros((batch, co, result, result), np.float32)
    for y in range(taps):
        for z in range(taps):
            part = p[:, :, y : y + stride * result : stride, z : z + stride * result : stride]
            expected += np.einsum("nchw,oc->nohw", part[:, :, :result, :result], f[:, :, y, z])
    return Kernel(b.sink("conv2d"), [empty(*expected.shape), a, f], {0: expected})


def gather(table: int = 11, width: int = 24, count: int = 9) -> Kernel:
    """Rows of a table by loaded indices, 0 where the index is out of range."""
    b = Builder()
    out, rows, index = b.param(0, count * width), b.param(1, table * width), b.param(2, count, dtypes.int64)
    i, j = b.range(count), b.range(width)
    chosen = b.load(index, i).cast(dtypes.index)
    inside = (chosen < 0).logical_not() & (chosen < table)
    b.store(out, i * width + j, b.load(rows, chosen * width + j, inside))
    a = random(table, width)
    ids = np.array([3, 0, 10, 11, -1, 5, 5, 2, 9][:count], np.int64)
    good = (ids >= 0) & (ids < table)
    return Kernel(b.sink("gather"), [empty(count, width), a, ids], {0: np.where(good[:, None], a[ids * good], 0)})


def table_of_few(size: int = 37, entries: int = 16, dtype: str = "float32", codes: str = "uint8") -> Kernel:
    """Elements of a small table by number, scaled, 0 where a number is too large."""
    b = Builder()
    kind = dtypes.by_name(dtype)
    out, table, index = b.param(0, size, kind), b.param(1, entries, kind), b.param(2, size, dtypes.by_name(codes))
    i = b.range(size)
    number = b.load(index, i).cast(dtypes.index)
    b.store(out, i, b.load(table, number, number < entries) * UOp.const(kind, 3))
    chance = np.random.default_rng(size + entries)
    elements = chance.integers(-40, 40, entries).astype(dtype) if dtype != "uint8" else np.arange(entries, dtype=dtype)
    numbers = chance.integers(0, entries + 2, size).astype(codes)
    expected = np.where(numbers < entries, elements[numbers % entries] * np.asarray(3, dtype), np.asarray(0, dtype))
    return Kernel(b.sink("table"), [empty(size, dtype=dtype), elements, numbers], {0: expected.astype(dtype)})


def scatter_add(table: int = 6, width: int = 20, count: int = 15) -> Kernel:
    b = Builder()
    target, values, index = b.param(0, table * width), b.param(1, count * width), b.param(2, count, dtypes.int32)
    i, j = b.range(count, AxisKind.ORDERED), b.range(width)
    at = b.load(index, i).cast(dtypes.index) * width + j
    b.store(target, at, b.load(target, at) + b.load(values, i * width + j))
    start, a = random(table, width), random(count, width, seed=1)
    ids = np.array([0, 5, 5, 1, 0, 0, 3, 2, 4, 4, 4, 1, 5, 0, 3][:count], np.int32)
    expected = start.copy()
    np.add.at(expected, ids, a)
    return Kernel(b.sink("scatter_add"), [start, a, ids], {0: expected})


def ordered_total(size: int = 12) -> Kernel:
    """The address does not depend on the ordered range, but the load must stay inside it."""
    b = Builder()
    total, x = b.param(0, 1), b.param(1, size)
    i = b.range(size, AxisKind.ORDERED)
    b.store(total, 0, b.load(total, 0) * 0.5 + b.load(x, i))
    a = random(size)
    value = np.float32(1.0)
    for item in a:
        value = value * np.float32(0.5) + item
    return Kernel(b.sink("ordered_total"), [np.ones(1, np.float32), a], {0: np.array([value])})


def argmax(rows: int = 6, columns: int = 40) -> Kernel:
    """Largest value, then the smallest position that holds it."""
    b = Builder()
    out, x = b.param(0, rows, dtypes.int32), b.param(1, rows * columns)
    i, k1, k2 = b.range(rows), b.reduce_range(columns), b.reduce_range(columns)
    top = b.reduce(Op.MAX, b.load(x, i * columns + k1), k1)
    place = b.load(x, i * columns + k2).eq(top).where(k2.cast(dtypes.int32), UOp.const(dtypes.int32, columns))
    b.store(out, i, b.reduce(Op.MIN, place, k2))
    a = random(rows, columns)
    return Kernel(b.sink("argmax"), [empty(rows, dtype="int32"), a], {0: a.argmax(1).astype(np.int32)})


def two_outputs(size: int = 100) -> Kernel:
    """A map and the sum of its input."""
    b = Builder()
    out, total, x = b.param(0, size), b.param(1, 1), b.param(2, size)
    i, k = b.range(size), b.reduce_range(size)
    b.store(out, i, b.load(x, i) * 2.0)
    b.store(total, 0, b.reduce(Op.ADD, b.load(x, k), k))
    a = random(size)
    return Kernel(b.sink("two_outputs"), [empty(size), empty(1), a], {0: a * 2, 1: a.sum(keepdims=True)})


def half_sum(rows: int = 4, columns: int = 64, dtype: DType = dtypes.float16) -> Kernel:
    """16-bit floats: accumulated in float32."""
    b = Builder()
    out, x = b.param(0, rows, dtype), b.param(1, rows * columns, dtype)
    i, k = b.range(rows), b.reduce_range(columns)
    value = b.load(x, i * columns + k)
    b.store(out, i, b.reduce(Op.ADD, value * value, k))
    a = (random(rows, columns) * 2).astype(np.float16)
    expected = (a * a).astype(np.float32).sum(1).astype(np.float16)
    return Kernel(b.sink("half_sum"), [empty(rows, dtype="float16"), a], {0: expected})


def bools(size: int = 40) -> Kernel:
    b = Builder()
    out, anything, x = b.param(0, size, dtypes.bool), b.param(1, 1, dtypes.bool), b.param(2, size)
    i, k = b.range(size), b.reduce_range(size)
    b.store(out, i, (b.load(x, i) < 0.5) & (b.load(x, i) < -0.5).logical_not())
    b.store(anything, 0, b.reduce(Op.MAX, b.load(x, k) < -2.0, k))
    a = random(size)
    return Kernel(
        b.sink("bools"), [empty(size, dtype="bool"), empty(1, dtype="bool"), a],
        {0: (a < 0.5) & (a >= -0.5), 1: np.array([(a < -2).any()])},
    )  # fmt: skip


def symbolic(value: int = 37, high: int = 64) -> Kernel:
    """The size is only known at launch."""
    b = Builder()
    out, x = b.param(0, high), b.param(1, high)
    n = mk(Op.VARIABLE, dtypes.index, (), VariableArg("v0", 1, high))
    i = b.range(n)
    b.store(out, i, b.load(x, i) * 2.0)
    a = random(high)
    expected = np.full(high, 99, np.float32)
    expected[:value] = a[:value] * 2
    return Kernel(b.sink("symbolic"), [empty(high), a], {0: expected}, {n: value})


def prefix_sums(size: int = 24) -> Kernel:
    """cumsum by masked sums: a REDUCE whose value compares two ranges."""
    b = Builder()
    out, x = b.param(0, size), b.param(1, size)
    i, k = b.range(size), b.reduce_range(size)
    b.store(out, i, b.reduce(Op.ADD, (i < k).where(UOp.const(F32, 0.0), b.load(x, k)), k))
    a = random(size)
    return Kernel(b.sink("prefix_sums"), [empty(size), a], {0: a.cumsum()})


def iota_float(size: int = 50) -> Kernel:
    """The range itself is data."""
    b = Builder()
    out = b.param(0, size)
    i = b.range(size)
    b.store(out, i, i.cast(F32) * 0.5)
    return Kernel(b.sink("iota_float"), [empty(size)], {0: np.arange(size, dtype=np.float32) * 0.5})


def nested_guarded_sum(rows: int = 6, columns: int = 10) -> Kernel:
    """A guarded inner sum, summed again."""
    b = Builder()
    out, x = b.param(0, 1), b.param(1, rows * columns)
    j, k = b.reduce_range(rows), b.reduce_range(columns)
    inner = b.reduce(Op.ADD, b.load(x, j * columns + k), k)
    b.store(out, 0, b.reduce(Op.ADD, (j < 4).where(inner, UOp.const(F32, 0.0)), j))
    a = random(rows, columns)
    return Kernel(b.sink("nested_guarded_sum"), [empty(1), a], {0: a[:4].sum(keepdims=True)[0]})


def special_functions(size: int = 64) -> Kernel:
    b = Builder()
    out, x = b.param(0, 5 * size), b.param(1, size)
    i = b.range(size)
    value = b.load(x, i)
    for place, result in enumerate((value.exp(), value.exp2(), value.log(), value.log2(), value.sin())):
        b.store(out, i + place * size, result)
    a = np.abs(random(size)) * 5
    parts = [f(a.astype(np.float64)) for f in (np.exp, np.exp2, np.log, np.log2, np.sin)]
    return Kernel(b.sink("special_functions"), [empty(5 * size), a], {0: np.concatenate(parts).astype(np.float32)})


def carried(start: UOp, row: UOp, loop: UOp, number: int = 0) -> UOp:
    return mk(Op.CARRY, start.dtype, (start, row, loop), AccArg(number))


def following(carry: UOp, value: UOp, result: UOp) -> UOp:
    return mk(Op.NEXT, result.dtype, (carry, value, result))


def running_sum(rows: int = 6, columns: int = 40, along_columns: bool = False) -> Kernel:
    """Sums so far, with and without the element itself, along rows or down columns."""
    b = Builder()
    size = rows * columns
    out, before, x = b.param(0, size), b.param(1, size), b.param(2, size)
    i = b.range(columns if along_columns else rows)
    k = b.range(rows if along_columns else columns, AxisKind.ORDERED)
    at = k * columns + i if along_columns else i * columns + k
    carry = carried(UOp.const(F32, 0.0), i, k)
    total = carry + b.load(x, at)
    b.store(out, at, following(carry, total, total))
    b.store(before, at, following(carry, total, carry))
    a = np.random.default_rng(3).integers(-9, 9, (rows, columns)).astype(np.float32)
    sums = np.cumsum(a, 0 if along_columns else 1)
    return Kernel(b.sink("running_sum"), [empty(size), empty(size), a], {0: sums, 1: sums - a})


def running(op: Op, rows: int = 3, columns: int = 16, exclusive: bool = False) -> Kernel:
    """Elements so far combined along rows, starting from a value."""
    b = Builder()
    size = rows * columns
    out, x = b.param(0, size), b.param(1, size)
    i, k = b.range(rows), b.range(columns, AxisKind.ORDERED)
    carry = carried(UOp.const(F32, 2.0), i, k)
    total = b.load(x, i * columns + k).alu(op, carry)
    b.store(out, i * columns + k, following(carry, total, carry if exclusive else total))
    a = np.random.default_rng(7).choice([-2, -1, 0.5, 1, 2, 3], (rows, columns)).astype(np.float32)
    function = {Op.ADD: np.add, Op.MUL: np.multiply, Op.MAX: np.maximum, Op.MIN: np.minimum}[op]
    whole = function.accumulate(np.concatenate([np.full((rows, 1), 2, np.float32), a], 1), 1)
    return Kernel(b.sink("running"), [empty(size), a], {0: whole[:, :-1] if exclusive else whole[:, 1:]})


def recurrence(rows: int = 5, columns: int = 21) -> Kernel:
    """Two carried values, one of which starts from memory and needs the other; a sum of the row in each step."""
    b = Builder()
    size = rows * columns
    out, x, first = b.param(0, size), b.param(1, size), b.param(2, rows)
    i, k, j = b.range(rows), b.range(columns, AxisKind.ORDERED), b.reduce_range(columns)
    value = b.load(x, i * columns + k)
    top, state = carried(UOp.const(F32, 0.0), i, k), carried(b.load(first, i), i, k, 1)
    largest = top.maximum(value)
    row = b.reduce(Op.MAX, b.load(x, i * columns + j), j)
    changed = state * 0.5 + following(top, largest, largest) + row
    b.store(out, i * columns + k, following(state, changed, changed))
    a, start = random(rows, columns), random(rows, seed=2)
    expected, total = np.empty_like(a), start.copy()
    for step in range(columns):
        so_far = np.maximum(a[:, : step + 1].max(1), 0)
        total = (total * np.float32(0.5) + so_far + a.max(1)).astype(np.float32)
        expected[:, step] = total
    return Kernel(b.sink("recurrence"), [empty(size), a, start], {0: expected})


def in_descending_order(rows: int = 4, columns: int = 13, count: int = 5) -> Kernel:
    """Each iteration carries the result of a loop over the whole row, and the place read next depends on it."""
    b = Builder()
    out, x = b.param(0, rows * count, dtypes.int32), b.param(1, rows * columns, dtypes.int32)
    i, k, j = b.range(rows), b.range(count, AxisKind.ORDERED), b.reduce_range(columns)
    before = carried(UOp.const(dtypes.int32, 1000), i, k)
    value = b.load(x, i * columns + j)
    found = b.reduce(Op.MAX, (value < before).where(value, UOp.const(dtypes.int32, -1000)), j)
    b.store(out, i * count + k, following(before, found, found))
    a = np.random.default_rng(5).permutation(rows * columns).reshape(rows, columns).astype(np.int32)
    return Kernel(b.sink("in_descending_order"), [empty(rows * count, dtype="int32"), a],
                  {0: -np.sort(-a, 1)[:, :count]})  # fmt: skip


ALL: Sequence[Callable[[], Kernel]] = (
    elementwise, in_place, strided, two_dimensional, contiguous_3d, padded, row_reduce,
    lambda: row_reduce(op=Op.MAX), lambda: row_reduce(op=Op.MIN), lambda: row_reduce(op=Op.MUL),
    lambda: row_reduce(5, 7), lambda: row_reduce(3, 256), column_sum, lambda: column_sum(100, 3), full_sum,
    lambda: full_sum(1024), softmax, lambda: softmax(same_range=True), lambda: softmax(3, 10), layer_norm, attention,
    matmul, lambda: matmul(trans_a=True), lambda: matmul(trans_b=True), lambda: matmul(trans_a=True, trans_b=True),
    lambda: matmul(30, 64, 8), lambda: matmul(12, 9, 48, False, True), lambda: matmul(1, 77, 40),
    lambda: matmul(33, 1, 50), lambda: matmul(13, 7, 3), lambda: matmul(6, 77, 10), matmul_bias_relu,
    matmul_onto, batched_matmul, conv2d, lambda: conv2d(pad=0, stride=2), lambda: conv2d(1, 2, 4, 18, 3, 1),
    lambda: conv2d(1, 9, 8, 5, 1, 0), gather, scatter_add, ordered_total, argmax, two_outputs, half_sum, bools,
    symbolic, prefix_sums, iota_float, nested_guarded_sum, special_functions, running_sum,
    lambda: running_sum(9, 70, True), lambda: running_sum(1, 33), recurrence, in_descending_order, table_of_few,
)  # fmt: skip


def names() -> list[str]:
    """A readable name a kernel of ALL."""
    return [f"{i}-{make().sink.arg.name}" for i, make in enumerate(ALL)]
