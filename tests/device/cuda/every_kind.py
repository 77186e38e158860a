"""A kernel of every kind on a GPU, small, each against numpy: what `compute-sanitizer` is to look at.

`compute-sanitizer --tool memcheck python -m tests.device.cuda.every_kind` (or racecheck, synccheck, initcheck). Sizes
are small, because every access is watched, and odd, because it is edges where accesses go wrong.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import numpy as np

from gradlet import Tensor, Variable, dtypes, jit
from gradlet.base.settings import scope

RNG = np.random.default_rng(3)
Array = np.ndarray[Any, Any]
FLOAT8 = dtypes.float8_e4m3fn
TOLERANCE = 0.01  # of the largest value: results and factors of 8 to 16 bits


def numbers(*shape: int) -> Array:
    return RNG.standard_normal(shape).astype(np.float32)


def rounded(value: Array, dtype: Any) -> Array:
    """The numbers that a narrow type has."""
    return Tensor(value, device="CPU").cast(dtype).cast(dtypes.float32).numpy()


def product(rows: int, depth: int, columns: int, dtype: Any, turned: bool = False, total: Any = None) -> float:
    a, b = numbers(rows, depth), numbers(*((columns, depth) if turned else (depth, columns)))
    if dtype.is_int:
        a, b = np.round(a * 40), np.round(b * 40)
    x, w = (Tensor(v, device="CUDA").cast(dtype).realize() for v in (a, b))
    a, b = rounded(a, dtype), rounded(b, dtype)
    found = x.matmul(w.T if turned else w, dtype=total).cast(dtypes.float32).numpy()
    return difference(found, a @ (b.T if turned else b))


def difference(found: Array, wanted: Array) -> float:
    assert found.shape == wanted.shape
    return float(np.abs(found - wanted).max() / (np.abs(wanted).max() + 1e-30))


def same(function: Callable[..., Any], *arrays: Array) -> float:
    """On the GPU as on the CPU, which other tests compare with torch."""
    found, wanted = (function(*[Tensor(a, device=d) for a in arrays]).numpy() for d in ("CUDA", "CPU"))
    return difference(found.astype(np.float64), wanted.astype(np.float64))


def attention(queries: int, keys: int, width: int, causal: bool, heads: int = 2, of_keys: int = 2) -> float:
    q, k, v = numbers(1, heads, queries, width), numbers(1, of_keys, keys, width), numbers(1, of_keys, keys, width)
    how = {"is_causal": causal, "enable_gqa": heads != of_keys}
    x = [Tensor(rounded(a, "bfloat16"), device="CPU") for a in (q, k, v)]
    y = [Tensor(a, device="CUDA").cast("bfloat16").realize() for a in (q, k, v)]
    found = y[0].scaled_dot_product_attention(*y[1:], **how).cast(dtypes.float32).numpy()
    return difference(found, x[0].scaled_dot_product_attention(*x[1:], **how).numpy())


def gradient(function: Callable[..., Any], *arrays: Array) -> float:
    def run(*tensors: Any) -> Any:
        first = tensors[0]
        return function(*tensors).square().sum().gradient(first)[0]

    return same(run, *arrays)


def convolution(side: int, channels: int, stride: int, window: int = 3) -> float:
    x, w = numbers(2, side, side, channels), numbers(64, window, window, channels)

    def run(image: Any, weights: Any) -> Any:
        narrow = [t.cast(dtypes.bfloat16).realize().permute(0, 3, 1, 2) for t in (image, weights)]
        return narrow[0].conv2d(narrow[1], padding=window // 2, stride=stride).permute(0, 2, 3, 1).cast("float32")

    return same(run, x, w)


def table_gradient() -> float:
    """Sums for the rows of a table, by parts."""
    rows = Tensor(RNG.integers(0, 50, 700), device="CPU")
    values = numbers(700, 96)

    def run(table: Any) -> Any:
        device = table.device
        taken = table[rows.to(device)]
        return (taken * Tensor(values, device=device)).sum().gradient(table)[0]

    return same(run, numbers(50, 96))


def replayed() -> float:
    """A captured function: a graph whose nodes get other words."""
    memory = Tensor.zeros(9, 33, device="CUDA").contiguous().realize()
    at = Variable("at", 0, 8)

    @jit
    def append(x: Tensor, place: Any) -> Tensor:
        memory[place : place + 1] = x
        return memory[: place + 1].sum(0)

    total, worst = np.zeros(33, np.float32), 0.0
    for step in range(5):
        x = numbers(1, 33)
        total += x[0]
        worst = max(worst, difference(append(Tensor(x, device="CUDA"), at.bind(step)).numpy(), total))
    return worst


def some_rows() -> float:
    """A product whose rows are counted only at launch: lanes copy for themselves."""
    a, b = numbers(200, 256), numbers(256, 192)
    many = Variable("many", 1, 200).bind(130)
    x, w = (Tensor(v, device="CUDA").cast(dtypes.bfloat16).realize() for v in (a, b))
    found = (x[:many] @ w).cast(dtypes.float32).numpy()
    return difference(found[:130], rounded(a, "bfloat16")[:130] @ rounded(b, "bfloat16"))


def with_tf32() -> float:
    with scope(ALLOW_TF32=1):
        return product(130, 100, 192, dtypes.float32, turned=True)


def copied_by_lanes() -> float:
    """Blocks that the copy engine does not feed."""
    schedule = (
        "SPLIT(range 0, 128, MASK), PARALLEL(range 0), SPLIT(range 3, 16), THREAD(range 3, 8), THREAD(range 4, 8), "
        "UNROLL(range 4, 2), SPLIT(range 1, 128, MASK), PARALLEL(range 1), SPLIT(range 6, 8), VECTORIZE(range 7, 2), "
        "THREAD(range 7, 4), UNROLL(range 6, 16), SPLIT(range 2, 64), STAGE(range 2, slot=1, swizzle=1, buffers=3), "
        "STAGE(range 2, slot=2, swizzle=1, buffers=3), TENSORIZE(range 9, warps=3, halves=4, groups=6, pair=8)"
    )
    with scope(OPTS=f"r_130_136_256: {schedule}"):
        return product(130, 256, 136, dtypes.bfloat16)


KINDS: dict[str, Callable[[], float]] = {
    "element-wise": lambda: same(lambda x: (x * 2 + 1).exp() - x.sin(), numbers(37, 129)),
    "transposed": lambda: same(lambda x: x.T.contiguous(), numbers(70, 130)),
    "softmax": lambda: same(lambda x: x.softmax(-1), numbers(3, 1000)),
    "layer norm": lambda: same(lambda x: x.layernorm(), numbers(5, 770)),
    "sums of columns": lambda: same(lambda x: x.sum(0), numbers(300, 70)),
    "sum": lambda: same(lambda x: x.sum(), numbers(5000)),
    "running sums": lambda: same(lambda x: x.cumsum(1), numbers(4, 300)),
    "sorted": lambda: same(lambda x: x.sort(1)[0], numbers(3, 100)),
    "picked": lambda: same(lambda x, i: x[i.cast("int32")], numbers(40, 30), RNG.integers(0, 40, 25).astype(np.int32)),
    "sums for a table": table_gradient,
    "vector times matrix": lambda: same(lambda x, a: x @ a, numbers(130), numbers(130, 70)),
    "product, float32": lambda: product(70, 90, 66, dtypes.float32),
    "product": lambda: product(130, 200, 264, dtypes.bfloat16),
    "product, turned": lambda: product(130, 136, 192, dtypes.float16, turned=True),
    "product, odd": lambda: product(77, 135, 91, dtypes.bfloat16),
    "product, few rows": lambda: product(16, 512, 256, dtypes.bfloat16),
    "product, rows counted at launch": some_rows,
    "product, lanes copy": copied_by_lanes,
    "product, float8": lambda: product(130, 272, 200, FLOAT8, turned=True, total="float32"),
    "product, integers": lambda: product(100, 272, 200, dtypes.int8, turned=True, total="int32"),
    "product, TF32": with_tf32,
    "products of a gradient": lambda: gradient(lambda a, b: (a @ b).relu(), numbers(66, 70), numbers(70, 68)),
    "convolution": lambda: convolution(12, 64, 1),
    "convolution, strided": lambda: convolution(12, 64, 2),
    "convolution, odd": lambda: convolution(13, 72, 1),
    "convolution, 1 x 1": lambda: convolution(9, 64, 1, window=1),
    "attention": lambda: attention(150, 141, 64, False),
    "attention, causal": lambda: attention(256, 256, 128, True),
    "attention, repeated heads": lambda: attention(40, 70, 64, True, heads=4, of_keys=2),
    "gradient of attention": lambda: gradient(
        lambda q, k, v: q.scaled_dot_product_attention(k, v, is_causal=True),
        numbers(1, 2, 70, 64), numbers(1, 2, 70, 64), numbers(1, 2, 70, 64),
    ),
    "random": lambda: float(not 0 <= Tensor.rand(1000, device="CUDA").numpy().min() < 1),
    "replayed": replayed,
}  # fmt: skip


def main(only: list[str]) -> int:
    """Run all kinds, or those whose names begin so; how many are wrong."""
    wrong = 0
    for name, run in KINDS.items():
        if only and not name.startswith(tuple(only)):
            continue
        error = run()
        bad = not error < TOLERANCE
        wrong += bad
        print(f"{name}: {error:.1e}{' WRONG' * bad}", flush=True)
    return wrong


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
