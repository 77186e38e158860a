"""Graphs and rules for `graph_core.py`, written with operators only, so that every framework builds the same ones."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

Variable = Callable[[str, int, int], Any]  # an integer node with limits
Leaf = Callable[[int], Any]  # float data number n
Constant = Callable[[float], Any]


# (a) index expressions
def strides(shape: list[int]) -> list[int]:
    """Row-major strides."""
    out = [1] * len(shape)
    for axis in reversed(range(len(shape) - 1)):
        out[axis] = out[axis + 1] * shape[axis + 1]
    return out


def flatten(indices: list[Any], shape: list[int]) -> Any:
    """One index of many."""
    total = indices[0] * strides(shape)[0]
    for index, stride in zip(indices[1:], strides(shape)[1:]):
        total = total + index * stride
    return total


def unflatten(flat: Any, shape: list[int]) -> list[Any]:
    """Many indices of one."""
    return [(flat // stride) % size for size, stride in zip(shape, strides(shape))]


def movement_chain(rng: random.Random, variable: Variable) -> Any:
    """Reshapes and permutes, one after another, as index arithmetic."""
    shape = [rng.choice([2, 3, 4, 6, 8]) for _ in range(rng.choice([2, 3, 3]))]
    indices = [variable(f"i{axis}_{size}", 0, size - 1) for axis, size in enumerate(shape)]
    for _ in range(5):
        flat = flatten(indices, shape)
        if rng.random() < 0.6 and len(shape) > 1:  # merge two axes
            at = rng.randrange(len(shape) - 1)
            shape = [*shape[:at], shape[at] * shape[at + 1], *shape[at + 2 :]]
        at = rng.randrange(len(shape))
        for factor in (4, 3, 2):  # split one
            if shape[at] % factor == 0 and shape[at] > factor:
                shape = [*shape[:at], shape[at] // factor, factor, *shape[at + 1 :]]
                break
        indices = unflatten(flat, shape)
        if rng.random() < 0.35:
            order = rng.sample(range(len(shape)), len(shape))
            shape, indices = [shape[i] for i in order], [indices[i] for i in order]
    return flatten(indices, shape)


def padded_load(rng: random.Random, variable: Variable) -> Any:
    """The address a k x k convolution with padding reads, its windows taken from flat indices."""
    size, kernel, pad = rng.choice([8, 14, 28]), rng.choice([3, 5]), rng.choice([1, 2])
    channels, out = rng.choice([3, 16, 32]), size + 2 * pad - kernel + 1
    pixel = variable(f"p{out * out}", 0, out * out - 1)
    tap = variable(f"k{channels * kernel * kernel}", 0, channels * kernel * kernel - 1)
    channel, row_tap, column_tap = unflatten(tap, [channels, kernel, kernel])
    row, column = pixel // out + row_tap + -pad, pixel % out + column_tap + -pad
    inside = (row * -1 < 1) & (row < size) & (column * -1 < 1) & (column < size)
    return inside.where(flatten([channel, row, column], [channels, size, size]), 0)


def index_expressions(variable: Variable, chains: int = 300, loads: int = 100) -> list[Any]:
    """Workload (a). Expressions share the variables of the same size, and so what they have in common."""
    rng = random.Random(7)
    out = [movement_chain(rng, variable) for _ in range(chains)]
    return out + [padded_load(rng, variable) for _ in range(loads)]


# (b) a large graph of floats
def layers(leaf: Leaf, constant: Constant, count: int = 32, blocks: int = 312) -> Any:
    """Workload (b): repeated layers of element-wise arithmetic; about one node in fifteen can be simplified."""
    rng = random.Random(11)
    hidden = leaf(0)
    number = 0
    scale, shift, half, slope = constant(2.0), constant(3.0), constant(0.5), constant(0.25)
    one, zero = constant(1.0), constant(0.0)
    for _ in range(count):
        weights = []
        for _ in range(8):
            number += 1
            weights.append(leaf(number))
        start = hidden
        for block in range(blocks):
            w, b = weights[block % 8], weights[(block + 3) % 8]
            t = hidden * w + b
            t = t.maximum(start) * half
            if rng.random() < 0.62:
                t = rng.choice([lambda t: t + zero, lambda t: t * one, lambda t: (t * scale) * shift])(t)
            u = (t * t + slope).sqrt()
            hidden = (t < u).where(u, b) + t
        hidden = hidden + start
    return hidden


# (b) rules: names of holes, left side, right side; c, d and e stand for constants
RULES: list[tuple[str, Callable[..., Any], Callable[..., Any]]] = [
    ("x", lambda x: x + 0, lambda x: x),
    ("x", lambda x: x * 1, lambda x: x),
    ("cd", lambda c, d: c + d, lambda c, d: c + d),
    ("cd", lambda c, d: c * d, lambda c, d: c * d),
    ("xcd", lambda x, c, d: (x + c) + d, lambda x, c, d: x + (c + d)),
    ("xcd", lambda x, c, d: (x * c) * d, lambda x, c, d: x * (c * d)),
    ("x", lambda x: x + x, lambda x: x * 2),
    ("xcd", lambda x, c, d: x * c + x * d, lambda x, c, d: x * (c + d)),
    ("xc", lambda x, c: x * c + x, lambda x, c: x * (c + 1)),
    ("x", lambda x: x.maximum(x), lambda x: x),
    ("xcd", lambda x, c, d: x.maximum(c).maximum(d), lambda x, c, d: x.maximum(c.maximum(d))),
    ("xy", lambda x, y: x.maximum(y).maximum(y), lambda x, y: x.maximum(y)),
    ("xy", lambda x, y: (x < y).where(x, x), lambda x, y: x),
    ("xyzw", lambda x, y, z, w: (x < y).where((x < y).where(z, w), w), lambda x, y, z, w: (x < y).where(z, w)),
    ("xyzw", lambda x, y, z, w: (x < y).where(z, (x < y).where(w, z)), lambda x, y, z, w: z),
    ("xy", lambda x, y: (x + y) + y * -1, lambda x, y: x),
    ("xy", lambda x, y: (x + y * -1) + y, lambda x, y: x),
    ("x", lambda x: x.sqrt() * x.sqrt(), lambda x: x),
    ("xy", lambda x, y: x.exp2() * y.exp2(), lambda x, y: (x + y).exp2()),
    ("xyz", lambda x, y, z: x * z + y * z, lambda x, y, z: (x + y) * z),
    ("x", lambda x: (x * x).sqrt().sqrt(), lambda x: x.sqrt()),
    ("xc", lambda x, c: (x * c).exp2() * (x * c).exp2(), lambda x, c: (x * c * 2).exp2()),
    ("xcde", lambda x, c, d, e: ((x + c) * d) + e, lambda x, c, d, e: x * d + (c * d + e)),
    ("xc", lambda x, c: x * c < 0, lambda x, c: x < 0),
    ("xcd", lambda x, c, d: (x + c) < d, lambda x, c, d: x < (d + c * -1)),
    ("xy", lambda x, y: (x + y) < y, lambda x, y: x < 0),
    ("xy", lambda x, y: x * -1 < y * -1, lambda x, y: y < x),
    ("xyz", lambda x, y, z: (x + z) < (y + z), lambda x, y, z: x < y),
    ("x", lambda x: x.exp2() < 0, lambda x: x < x),
    ("x", lambda x: x.sqrt() < 0, lambda x: x < x),
    ("xy", lambda x, y: x.exp2().maximum(y.exp2()), lambda x, y: x.maximum(y).exp2()),
    ("xy", lambda x, y: x.sqrt().maximum(y.sqrt()), lambda x, y: x.maximum(y).sqrt()),
    ("xyc", lambda x, y, c: (x + c).maximum(y + c), lambda x, y, c: x.maximum(y) + c),
    ("xycd", lambda x, y, c, d: (x < y).where(x, y) * c + d, lambda x, y, c, d: x * c + d),
    ("xy", lambda x, y: x.maximum(x.maximum(y)), lambda x, y: x.maximum(y)),
    ("xyz", lambda x, y, z: (x < y).where(z, 0) + (x < y).where(0, z), lambda x, y, z: z),
    ("xyz", lambda x, y, z: (x < y).where(z, 0) * (x < y).where(0, z), lambda x, y, z: (x < y).where(z, 0) * 0),
    ("xyz", lambda x, y, z: (x < y).where(z, 1) * (x < y).where(1, z), lambda x, y, z: z),
    ("xc", lambda x, c: (x + x * c) * 2, lambda x, c: x * (c * 2 + 2)),
    ("xy", lambda x, y: (x * y).sqrt() * (x * y).sqrt(), lambda x, y: x * y),
    ("xy", lambda x, y: x.exp2().exp2() * y.exp2().exp2(), lambda x, y: (x.exp2() + y.exp2()).exp2()),
]


def small_step(leaf: Leaf, constant: Constant, offset: int) -> Any:
    """A training step of about 320 nodes over its own leaves."""
    hidden = leaf(offset)
    half = constant(0.5)
    for block in range(45):
        w = leaf(offset + 1 + block % 9)
        hidden = (hidden * w + leaf(offset + 20 + block)).maximum(w) * half + (hidden * w).sqrt()
    return hidden
