"""Hand-built launches, each with inputs and the numpy result: packs, tails, regions, variables."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

from gradlet.base.dtype import DType, dtypes
from gradlet.graph.node import UOp, mk
from gradlet.ops.op import AxisKind, BodyUse, LaunchArg, LaunchStage, Op, VariableArg
from tests.codegen import kernels
from tests.codegen.kernels import F32, Array, Builder, empty, random


class Launch(NamedTuple):
    """A launch, its memory by slot, what the written slots must hold after, the values of its variables."""

    sink: UOp
    arrays: list[Array]
    expected: dict[int, Array]
    variables: tuple[int, ...] = ()


def launch(
    name: str, bodies: Sequence[UOp], stages: Sequence[Sequence[Sequence[BodyUse]]], scratch: Sequence[int] = ()
) -> UOp:
    """The SINK of a launch."""
    rows: tuple[LaunchStage, ...] = tuple(tuple(tuple(segment) for segment in stage) for stage in stages)
    return mk(Op.SINK, dtypes.void, tuple(bodies), LaunchArg(name, rows, tuple(scratch)))


def scale_body(size: int, factor: float = 2.0, dtype: DType = F32) -> UOp:
    """out[i] = x[i] * factor."""
    b = Builder()
    out, x = b.param(0, size, dtype), b.param(1, size, dtype)
    i = b.range(size)
    b.store(out, i, b.load(x, i) * factor)
    return b.sink(f"scale_{size}")


def momentum_body(size: int) -> UOp:
    """m = m * 0.5 + g; w = w - m."""
    b = Builder()
    w, m, g = b.param(0, size), b.param(1, size), b.param(2, size)
    i = b.range(size)
    new = b.load(m, i) * 0.5 + b.load(g, i)
    b.store(m, i, new)
    b.store(w, i, b.load(w, i) - new)
    return b.sink(f"momentum_{size}")


def pack(sizes: Sequence[int] = (1, 7, 64, 1000)) -> Launch:
    """Different bodies of different sizes side by side."""
    bodies = [scale_body(n, 2.0 + i) for i, n in enumerate(sizes)]
    uses = [[BodyUse(i, (2 * i, 2 * i + 1))] for i in range(len(sizes))]
    inputs = [random(n, seed=i) for i, n in enumerate(sizes)]
    arrays = [a for x in inputs for a in (empty(*x.shape), x)]
    expected = {2 * i: x * np.float32(2.0 + i) for i, x in enumerate(inputs)}
    return Launch(launch("pack", bodies, [uses]), arrays, expected)


def optimizer(count: int = 300, sizes: tuple[int, int] = (24, 5)) -> Launch:
    """Many segments of two bodies, as an optimizer over all parameters."""
    bodies = [momentum_body(n) for n in sizes]
    segments, arrays, expected = [], [], {}
    for number in range(count):
        size = sizes[number % 3 % 2]
        slot = 3 * number
        segments.append([BodyUse(sizes.index(size), (slot, slot + 1, slot + 2))])
        w, m, g = (random(size, seed=slot + i) for i in range(3))
        arrays += [w.copy(), m.copy(), g]
        new = m * np.float32(0.5) + g
        expected[slot], expected[slot + 1] = w - new, new
    return Launch(launch("optimizer", bodies, [segments]), arrays, expected)


def sum_with_tail(size: int = 1000, parts: int = 16) -> Launch:
    """Partial sums, then their sum: two stages."""
    b = Builder()
    part = -(-size // parts)
    out, x = b.param(0, parts), b.param(1, size)
    i, k = b.range(parts), b.reduce_range(part)
    at = i * part + k
    b.store(out, i, b.reduce(Op.ADD, b.load(x, at, at < size), k))
    first = b.sink("partial")
    b = Builder()
    total, partial = b.param(0, 1), b.param(1, parts)
    k = b.reduce_range(parts)
    b.store(total, 0, b.reduce(Op.ADD, b.load(partial, k), k))
    stages = [[[BodyUse(0, (1, 2))]], [[BodyUse(1, (0, 1))]]]
    a = random(size)
    arrays = [empty(1), empty(parts), a]
    return Launch(launch("sum_tail", [first, b.sink("tail")], stages), arrays, {0: a.sum(keepdims=True)})


def attention(heads: int = 3, rows: int = 8, keys: int = 20, width: int = 6, bias: bool = True) -> Launch:
    """A region: scores of one head into scratch, row softmax in scratch, weighted sum of values. A block a head.

    Without a bias a head, the softmax does not know its block.
    """

    def begin() -> tuple[Builder, UOp]:
        b = Builder()
        b.count = 7  # numbers of ranges are free
        return b, b.range(heads, AxisKind.PARALLEL)

    scores = rows * keys
    b, h = begin()
    s, q, k = b.param(0, scores), b.param(1, heads * rows * width), b.param(2, heads * keys * width)
    i, j, l = b.range(rows), b.range(keys), b.reduce_range(width)
    product = b.load(q, (h * rows + i) * width + l) * b.load(k, (h * keys + j) * width + l)
    b.store(s, i * keys + j, b.reduce(Op.ADD, product, l))
    first = b.sink("scores")

    b, h = begin()
    p, s = b.param(0, scores), b.param(1, scores)
    i, j, k1, k2 = b.range(rows), b.range(keys), b.reduce_range(keys), b.reduce_range(keys)
    top = b.reduce(Op.MAX, b.load(s, i * keys + k1), k1)
    total = b.reduce(Op.ADD, (b.load(s, i * keys + k2) - top).exp(), k2)
    weight = (b.load(s, i * keys + j) - top).exp().fdiv(total)
    b.store(p, i * keys + j, weight + b.load(b.param(2, heads), h) if bias else weight)
    second = b.sink("softmax")

    b, h = begin()
    out, p, v = b.param(0, heads * rows * width), b.param(1, scores), b.param(2, heads * keys * width)
    i, j, l = b.range(rows), b.range(width), b.reduce_range(keys)
    weighted = b.load(p, i * keys + l) * b.load(v, (h * keys + l) * width + j)
    b.store(out, (h * rows + i) * width + j, b.reduce(Op.ADD, weighted, l))
    third = b.sink("values")

    region = [BodyUse(0, (-1, 1, 2)), BodyUse(1, (-2, -1, 4) if bias else (-2, -1)), BodyUse(2, (0, -2, 3))]
    qs, ks, vs = random(heads, rows, width), random(heads, keys, width, seed=1), random(heads, keys, width, seed=2)
    biases = random(heads, seed=3) if bias else np.zeros(heads, np.float32)
    e = np.exp(qs @ ks.transpose(0, 2, 1) - (qs @ ks.transpose(0, 2, 1)).max(2, keepdims=True))
    weights = e / e.sum(2, keepdims=True) + biases[:, None, None]
    sink = launch("attention", [first, second, third], [[region]], [4 * scores, 4 * scores])
    arrays = [empty(heads, rows, width), qs, ks, vs, biases]
    return Launch(sink, arrays if bias else arrays[:4], {0: (weights @ vs).astype(np.float32)})


def mixed() -> Launch:
    """A region beside two kernels, then a tail that reads them all; scratch of two types."""
    blocks, width = 5, 9
    b = Builder()
    g = b.range(blocks, AxisKind.PARALLEL)
    j = b.range(width)
    t, x = b.param(0, width, dtypes.int32), b.param(1, blocks * width)
    b.store(t, j, (b.load(x, g * width + j) * 10.0).cast(dtypes.int32))
    first = b.sink("to_int")
    b = Builder()
    g = b.range(blocks, AxisKind.PARALLEL)
    k = b.reduce_range(width)
    sums, t = b.param(0, blocks), b.param(1, width, dtypes.int32)
    b.store(sums, g, b.reduce(Op.ADD, b.load(t, k), k).cast(F32))
    second = b.sink("sum_int")
    b = Builder()
    out, sums, y, z = b.param(0, 1), b.param(1, blocks), b.param(2, 40), b.param(3, 40)
    k1, k2 = b.reduce_range(blocks), b.reduce_range(40)
    total = b.reduce(Op.ADD, b.load(sums, k1), k1)
    b.store(out, 0, total + b.reduce(Op.ADD, b.load(y, k2) - b.load(z, k2), k2))
    tail = b.sink("tail")
    scale = scale_body(40, 3.0)
    stages = [
        [[BodyUse(2, (3, 4))], [BodyUse(0, (-1, 2)), BodyUse(1, (1, -1))], [BodyUse(2, (5, 6))]],
        [[BodyUse(3, (0, 1, 3, 5))]],
    ]
    x1, y1, z1 = random(blocks, width), random(40, seed=1), random(40, seed=2)
    ints = (x1 * np.float32(10)).astype(np.int32).sum(1).astype(np.float32)
    y3, z3 = y1 * np.float32(3), z1 * np.float32(3)
    arrays = [empty(1), empty(blocks), x1, empty(40), y1, empty(40), z1]
    expected = {0: np.array([ints.sum() + (y3 - z3).sum()]), 1: ints, 3: y3, 5: z3}
    return Launch(launch("mixed", [first, second, scale, tail], stages, [4 * width]), arrays, expected)


def with_variables(first: int = 13, second: int = 5, high: int = 32) -> Launch:
    """Bodies of two variables that get the launch's in another order."""
    b = Builder()
    out, x = b.param(0, high), b.param(1, high)
    n = mk(Op.VARIABLE, dtypes.index, (), VariableArg("v0", 1, high))
    m = mk(Op.VARIABLE, dtypes.index, (), VariableArg("v1", 0, 100))
    i = b.range(n)
    b.store(out, i, b.load(x, i) + m.cast(F32))
    body = b.sink("shift")
    sink = launch("variables", [body], [[[BodyUse(0, (0, 2), (0, 1))], [BodyUse(0, (1, 2), (1, 0))]]])
    a = random(high)
    expected = {0: empty(high), 1: empty(high)}
    expected[0][:first] = a[:first] + np.float32(second)
    expected[1][:second] = a[:second] + np.float32(first)
    return Launch(sink, [empty(high), empty(high), a], expected, (first, second))


def chain(stages: int = 3, size: int = 8) -> Launch:
    """Tiny stages one after another."""
    body = scale_body(size, 2.0)
    a = random(size)
    rows = [[[BodyUse(0, (i + 1, i))]] for i in range(stages)]
    arrays = [a] + [empty(size) for _ in range(stages)]
    expected = {i + 1: a * np.float32(2.0 ** (i + 1)) for i in range(stages)}
    return Launch(launch("chain", [body], rows), arrays, expected)


def wide_pack(size: int = 60_000) -> Launch:
    """One large kernel, worth several threads, beside small ones."""
    bodies = [scale_body(size, 0.5), scale_body(11, 3.0)]
    segments = [[BodyUse(1, (2, 3))], [BodyUse(0, (0, 1))], [BodyUse(1, (4, 5))]]
    a, c, d = random(size), random(11, seed=1), random(11, seed=2)
    arrays = [empty(size), a, empty(11), c, empty(11), d]
    expected = {0: a * np.float32(0.5), 2: c * np.float32(3), 4: d * np.float32(3)}
    return Launch(launch("wide_pack", bodies, [segments]), arrays, expected)


def one_block(width: int = 33) -> Launch:
    """A region of one block: its range is a constant."""
    b = Builder()
    g, j = b.range(1, AxisKind.PARALLEL), b.range(width)
    t, x = b.param(0, width), b.param(1, width)
    b.store(t, j, b.load(x, g * width + j) + 1.0)
    first = b.sink("first")
    b = Builder()
    g, j, k = b.range(1, AxisKind.PARALLEL), b.range(width), b.reduce_range(width)
    out, t = b.param(0, width), b.param(1, width)
    b.store(out, g * width + j, b.reduce(Op.MAX, b.load(t, k) - b.load(t, j), k))
    sink = launch("one_block", [first, b.sink("second")], [[[BodyUse(0, (-1, 1)), BodyUse(1, (0, -1))]]], [4 * width])
    a = random(width)
    return Launch(sink, [empty(width), a], {0: (a + 1).max() - (a + 1)})


def ping_pong(blocks: int = 6, width: int = 21) -> Launch:
    """A region that uses one body three times, and another region of the same bodies that keeps a value in memory."""
    b = Builder()
    g, j = b.range(blocks, AxisKind.PARALLEL), b.range(width)
    t, x = b.param(0, blocks * width), b.param(1, blocks * width)
    b.store(t, g * width + j, b.load(x, g * width + j) + 1.0)
    step = b.sink("step")
    scratch = [4 * blocks * width] * 2
    first = [BodyUse(0, (-1, 1)), BodyUse(0, (-2, -1)), BodyUse(0, (0, -2))]
    second = [BodyUse(0, (2, 1)), BodyUse(0, (-2, 2)), BodyUse(0, (3, -2))]
    a = random(blocks, width)
    arrays = [empty(blocks, width), a, empty(blocks, width), empty(blocks, width)]
    expected = {0: a + 1 + 1 + 1, 2: a + 1, 3: a + 1 + 1 + 1}
    return Launch(launch("ping_pong", [step], [[first, second]], scratch), arrays, expected)


def every_kernel() -> Launch:
    """All kernels of the other tests side by side: types, guards, ordered loops, variables."""
    bodies: list[UOp] = []
    segments, arrays, expected, values = [], [], {}, []
    for make in kernels.ALL:
        kernel = make()
        if kernel.sink not in bodies:
            bodies.append(kernel.sink)
        slots = tuple(range(len(arrays), len(arrays) + len(kernel.arrays)))
        numbers = tuple(range(len(values), len(values) + len(kernel.variables)))
        segments.append([BodyUse(bodies.index(kernel.sink), slots, numbers)])
        expected.update({slots[slot]: want for slot, want in kernel.expected.items()})
        arrays += kernel.arrays
        values += kernel.variables.values()
    return Launch(launch("every_kernel", bodies, [segments]), arrays, expected, tuple(values))


ALL: Sequence[Callable[[], Launch]] = (
    pack, lambda: pack((5,)), optimizer, sum_with_tail, lambda: sum_with_tail(4099, 37), attention,
    lambda: attention(16, 32, 48, 16), lambda: attention(5, 7, 13, 3), lambda: attention(bias=False),
    lambda: attention(3, 64, 256, 4, False), mixed, with_variables, chain, wide_pack, one_block,
    lambda: one_block(1024), ping_pong, every_kernel,
)  # fmt: skip


def names() -> list[str]:
    """A readable name a launch of ALL."""
    return [f"{i}-{make().sink.arg.name}" for i, make in enumerate(ALL)]


def copies(case: Launch) -> list[Array]:
    """Memory for one run."""
    return [a.copy() for a in case.arrays]


def compare(case: Launch, arrays: Sequence[Array]) -> None:
    """Written slots hold what they must, the others what they held."""
    for slot, (array, before) in enumerate(zip(arrays, case.arrays, strict=True)):
        if slot in case.expected:
            want = case.expected[slot]
            np.testing.assert_allclose(array.reshape(want.shape), want, rtol=2e-5, atol=2e-5 * math.sqrt(want.size))
        elif slot in _written(case):
            continue
        else:
            np.testing.assert_array_equal(array, before)


def _written(case: Launch) -> set[int]:
    from gradlet.graph.launch import body_facts

    facts = [body_facts(b) for b in case.sink.src]
    every = [u for stage in case.sink.arg.stages for segment in stage for u in segment]
    return {u.slots[w] for u in every for w in facts[u.body].written}
