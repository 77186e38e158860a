"""The single kernels of the comparison with every library: matrix products, convolutions, rows, streams, ordering.

Written in the names of `frameworks.SharedNames`, which every framework's class has or does without.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from cases import Case, Run, uniform

Compute = Callable[..., Any]
SPREAD = 1 << 24  # elements of a stream that no cache holds


def of(
    name: str, title: str, compute: Compute, arrays: Callable[[], tuple[np.ndarray, ...]], **counts: Any
) -> tuple[str, Callable[[], Case]]:
    """A case that is one function of arrays; the arrays are made when it is opened."""

    def case() -> Case:
        def build(api: Any) -> Run:
            return api.function(lambda *xs: compute(api, *xs), *arrays())  # type: ignore[no-any-return]

        return Case(name, title, build, **counts)

    return name, case


# ---- matrix products ----------------------------------------------------------------------------------------------


def product(m: int, k: int, n: int, transposed: bool = False, title: str = "") -> tuple[str, Callable[[], Case]]:
    """`x @ w`, or `x @ w.T` as a linear layer has it."""
    name = f"gemm_{m}" if m == k == n else f"gemm_{m}x{k}x{n}"
    title = title or (f"gemm {m}" if m == k == n else f"{m}x{k}x{n}")
    counts = {"flops": 2 * m * k * n, "bytes": 4 * (m * k + k * n + m * n)}
    if transposed:
        arrays = lambda: (uniform(m, k, seed=1), uniform(n, k, seed=2))  # noqa: E731
        return of(name + "_t", title + ", x@W.T", lambda api, x, w: x @ w.T, arrays, **counts)
    return of(name, title, lambda api, x, w: x @ w, lambda: (uniform(m, k, seed=1), uniform(k, n, seed=2)), **counts)


def narrow_product(size: int) -> tuple[str, Callable[[], Case]]:
    """bfloat16 in and out, sums in float32."""

    def case() -> Case:
        def build(api: Any) -> Run:
            a, b = uniform(size, size, seed=1), uniform(size, size, seed=2)
            return api.narrow_function(lambda x, w: x @ w, a, b)  # type: ignore[no-any-return]

        counts = {"flops": 2 * size**3, "bytes": 3 * 2 * size**2}
        return Case(f"gemm_bf16_{size}", f"gemm bf16 {size}", build, tolerance=2e-2, **counts)

    return f"gemm_bf16_{size}", case


MATRIX_BYTES = 4 * 4096 * 4096


def with_vector(name: str, title: str, compute: Compute) -> tuple[str, Callable[[], Case]]:
    """A 4096 x 4096 matrix and a vector."""
    arrays = lambda: (uniform(4096, 4096, seed=1), uniform(4096, seed=2))  # noqa: E731
    return of(name, title, compute, arrays, bytes=MATRIX_BYTES)


def narrow_weights(name: str, title: str, rows: int, columns: int, in_blocks: bool) -> tuple[str, Callable[[], Case]]:
    """A matrix of bytes with a scale a row, or of 4-bit codes in blocks of 32 (Q4_0), and a vector in float32."""
    size = rows * columns // 32 * 18 if in_blocks else rows * columns

    def case() -> Case:
        rng = np.random.default_rng(1)
        if in_blocks:
            raw = rng.integers(0, 256, (rows, columns // 32, 18), dtype=np.uint8)
            scales = rng.uniform(0.01, 0.02, (rows, columns // 32)).astype(np.float16)
            raw[..., :2] = scales[..., None].view(np.uint8)
        else:
            raw = rng.integers(-127, 128, (rows, columns), dtype=np.int8)

        def build(api: Any) -> Run:
            return api.narrow_weights(raw, uniform(rows, seed=3), uniform(columns, seed=2))  # type: ignore[no-any-return]

        return Case(name, title, build, bytes=size)

    return name, case


# ---- convolutions -------------------------------------------------------------------------------------------------


def convolution(
    name: str, title: str, x: tuple[int, ...], w: tuple[int, ...], stride: int = 1, padding: int = 0, groups: int = 1
) -> tuple[str, Callable[[], Case]]:
    """One convolution of images that lie channels first; a framework may keep them as it likes best (see peers)."""
    size = (x[2] + 2 * padding - w[2]) // stride + 1
    outputs = x[0] * w[0] * size * size
    counts = {
        "flops": 2 * outputs * w[1] * w[2] * w[3],
        "bytes": 4 * (int(np.prod(x)) + int(np.prod(w)) + outputs),
    }

    def case() -> Case:
        def build(api: Any) -> Run:
            images, weight = uniform(*x, seed=1), uniform(*w, seed=2)
            return api.convolution(images, weight, stride=stride, padding=padding, groups=groups)  # type: ignore[no-any-return]

        return Case(name, title, build, **counts)

    return name, case


# ---- rows, streams, order -----------------------------------------------------------------------------------------


def vocabulary_rows() -> tuple[np.ndarray, ...]:
    """An embedding table and the numbers of the rows to read."""
    return uniform(50257, 768), np.random.default_rng(3).integers(0, 50257, 4096)


def two_streams() -> tuple[np.ndarray, ...]:
    return uniform(SPREAD), uniform(SPREAD, seed=1)


def square() -> tuple[np.ndarray, ...]:
    return (uniform(4096, 4096),)


KERNELS: dict[str, Callable[[], Case]] = dict(
    (
        *(product(n, n, n, transposed) for n in (512, 1024, 2048) for transposed in (False, True)),
        product(1000, 77, 513),
        product(777, 333, 555),
        product(64, 64, 16384),
        product(8, 4096, 4096),
        product(8, 4096, 4096, True),
        with_vector("gemv", "gemv 4096, W@x", lambda api, w, x: w @ x),
        with_vector("vecmat", "vecmat 4096, x@W", lambda api, w, x: x @ w),
        narrow_product(1024),
        narrow_weights("gemv_int8", "int8 weights 16384x4096, W@x", 16384, 4096, False),
        narrow_weights("gemv_q4", "Q4_0 weights 32768x4096, W@x", 32768, 4096, True),
        convolution("conv_3x3", "conv 3x3, 8x64x56x56 -> 64", (8, 64, 56, 56), (64, 64, 3, 3), padding=1),
        convolution("conv_1x1", "conv 1x1, 8x64x56x56 -> 128", (8, 64, 56, 56), (128, 64, 1, 1)),
        convolution("conv_depthwise", "conv depthwise 3x3, 8x64x56x56", (8, 64, 56, 56), (64, 1, 3, 3), 1, 1, 64),
        convolution("conv_stride", "conv 3x3 stride 2, 8x64x56x56 -> 128", (8, 64, 56, 56), (128, 64, 3, 3), 2, 1),
        convolution("conv_first", "conv 7x7 stride 2, 8x3x224x224 -> 64", (8, 3, 224, 224), (64, 3, 7, 7), 2, 3),
        of("softmax_4096", "softmax 4096x4096", lambda api, x: api.softmax(x), square, bytes=8 << 24),
        of(
            "norm_1024", "layer norm 4096x1024", lambda api, x: api.layer_norm(x), lambda: (uniform(4096, 1024),),
            bytes=8 << 22,
        ),
        of("sum_64M", "sum of 64M", lambda api, x: x.sum(), lambda: (uniform(1 << 26),), bytes=4 << 26, tolerance=1e-2),
        of("argmax", "argmax 4096x4096", lambda api, x: x.argmax(1), square, bytes=4 << 24),
        of(
            "cumsum", "cumsum 16x1M", lambda api, x: api.cumsum(x), lambda: (uniform(16, 1 << 20),),
            bytes=8 << 24, tolerance=1e-2,
        ),
        of("transpose", "transpose 4096", lambda api, x: api.stored(x.T), square, bytes=8 << 24),
        of(
            "embedding", "4096 rows of 50257x768", lambda api, w, i: api.rows(w, i), vocabulary_rows,
            bytes=8 * 4096 * 768,
        ),
        of(
            "chain_cheap", "relu(x*y+1)*0.5+x, 16M", lambda api, x, y: api.relu(x * y + 1) * 0.5 + x, two_streams,
            bytes=12 << 24,
        ),
        of(
            "chain_tanh", "tanh(x*y+1)*0.5+x, 16M", lambda api, x, y: api.tanh(x * y + 1) * 0.5 + x, two_streams,
            bytes=12 << 24,
        ),
        of("sort_1M", "sort 1M, values and indices", lambda api, x: api.sort(x), lambda: (uniform(1 << 20),)),
        of("top_64", "top 64 of 64x50257", lambda api, x: api.top_k(x, 64), lambda: (uniform(64, 50257),)),
    )
)  # fmt: skip
