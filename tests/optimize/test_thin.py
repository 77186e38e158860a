"""Products with few rows: which get their sums accumulated in memory, in what tiles, and that they stay right."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import pytest

from gradlet import Tensor
from gradlet.ops.op import Op
from gradlet.ops.opt import Opt, OptKind, Tail
from gradlet.optimize import heuristic
from gradlet.optimize.opttext import opts_text
from gradlet.target.target import AVX2, AVX512, NEON, Target
from tests.codegen import kernels
from tests.codegen.check import check_linear
from tests.codegen.kernels import Kernel


def product(m: int, n: int, k: int) -> Kernel:
    return kernels.matmul(m, n, k) if m > 1 else vector_times_matrix(n, k)


def vector_times_matrix(n: int, k: int) -> Kernel:
    b = kernels.Builder()
    j, along = b.range(n), b.reduce_range(k)
    value = b.reduce(Op.ADD, b.load(b.param(1, k), along) * b.load(b.param(2, k * n), along * n + j), along)
    b.store(b.param(0, n), j, value)
    x, w = kernels.random(k, seed=1), kernels.random(k, n, seed=2)
    return Kernel(b.sink("vecmat"), [kernels.empty(n), x, w], {0: x @ w})


def small_caches(target: Target, cores: int = 1) -> Target:
    """A machine on which small matrices are large already."""
    return replace(target, l2_bytes=256, cores=cores)


def of_kind(opts: tuple[Opt, ...], kind: OptKind) -> list[tuple[int, Tail]]:
    return [(o.amount, o.tail) for o in opts if o.kind is kind]


def test_few_rows_wait_in_panels_that_a_tile_adds_eight_rows_of_the_other_factor_to() -> None:
    text = opts_text(heuristic.choose(product(8, 4096, 4096).sink, AVX2, parallel=False))
    assert text.startswith("SPLIT(range 1, 16), ACCUMULATE(range 2, 8, order=(1, 0, 3)), VECTORIZE(range 7, 8)")
    assert text.endswith("PREFETCH(range 5, 4, slot=2)"), "four lines of each row ahead"
    assert "UNROLL(range 7, 2)" in text and "UNROLL(range 6, 4)" in text and "PARALLEL" not in text


def test_a_vector_meets_far_rows_unless_threads_share_them() -> None:
    one = heuristic.choose(product(1, 4096, 4096).sink, AVX2, parallel=False)
    assert opts_text(one[:1]) == "ACCUMULATE(range 1, 8, far=1)"
    assert [o.amount for o in one if o.kind is OptKind.UNROLL] == [2, 8]
    two = heuristic.choose(product(1, 4096, 4096).sink, replace(AVX2, cores=2))
    assert opts_text(two[:1]) == "ACCUMULATE(range 1, 8)"
    assert of_kind(two, OptKind.SPLIT) == [(2048, Tail.EXACT)]


def test_the_array_of_sums_stays_in_the_second_cache() -> None:
    """Wider outputs go part by part, which one thread walks outside of the rows."""
    for cores in (1, 2):
        target = replace(AVX2, cores=cores)
        opts = heuristic.choose(product(32, 32768, 1024).sink, target, parallel=cores > 1)
        part = opts[0]
        assert part.kind is OptKind.SPLIT and part.amount * 32 * 4 <= target.scratch_bytes
        assert opts[1].kind is (OptKind.PARALLEL if cores > 1 else OptKind.REORDER)
        assert -(-32768 // part.amount) % cores == 0


def test_rows_that_no_tile_divides_are_balanced_and_columns_peeled() -> None:
    opts = heuristic.choose(product(17, 4100, 4096).sink, AVX2, parallel=False)
    assert of_kind(opts, OptKind.UNROLL) == [(8, Tail.EXACT), (6, Tail.BALANCE)]
    assert of_kind(opts, OptKind.VECTORIZE) == [(8, Tail.PEEL)]


def test_threads_share_wide_parts_of_the_columns() -> None:
    opts = heuristic.choose(product(4, 8192, 4096).sink, AVX512)
    assert of_kind(opts, OptKind.SPLIT)[0] == (2048, Tail.EXACT)
    assert of_kind(opts, OptKind.PARALLEL) == [(0, Tail.EXACT)]


def strips(rows: int, columns: int, depth: int, strip: int) -> Kernel:
    b = kernels.Builder()
    i, outer, inner, k = b.range(rows), b.range(columns // strip), b.range(strip), b.reduce_range(depth)
    left = b.load(b.param(1, rows * depth), i * depth + k)
    right = b.load(b.param(2, columns * depth), outer * (strip * depth) + k * strip + inner)
    b.store(b.param(0, rows * columns), i * columns + outer * strip + inner, b.reduce(Op.ADD, left * right, k))
    a, w = kernels.random(rows, depth, seed=1), kernels.random(columns // strip, depth, strip, seed=2)
    want = a @ w.transpose(1, 0, 2).reshape(depth, columns)
    return Kernel(b.sink("strips"), [kernels.empty(rows, columns), a, w], {0: want})


def test_rows_are_walked_once_for_a_block_of_strips() -> None:
    """Four strips of 2048 rows fill the second cache; the left factor is larger than that."""
    opts = heuristic.choose(strips(2048, 2048, 2048, 16).sink, replace(AVX2, l2_bytes=1 << 19), parallel=False)
    assert opts[:2] == (Opt(OptKind.SPLIT, 1, 4), Opt(OptKind.REORDER, 1, 0))
    near = heuristic.choose(strips(64, 2048, 512, 16).sink, AVX2, parallel=False)
    assert not of_kind(near, OptKind.SPLIT)[1:] and near[0].kind is OptKind.REORDER


def test_blocks_of_strips_are_right() -> None:
    for target in (AVX2, AVX512):
        kernel = strips(67, 192, 12, 16)
        program = check_linear(kernel, replace(target, l2_bytes=16 * 12 * 4 * 4, cores=2))
        assert program.opts[0] == Opt(OptKind.SPLIT, 1, 4) or program.opts[0].kind is OptKind.SPLIT


@pytest.mark.parametrize("shape", [(64, 4096, 4096), (8, 256, 256), (8, 4096, 1021), (8, 1000, 1000)])
def test_other_products_keep_their_sums_in_registers(shape: tuple[int, int, int]) -> None:
    opts = heuristic.choose(product(*shape).sink, AVX2, parallel=False)
    assert not of_kind(opts, OptKind.ACCUMULATE)


def cases() -> Iterator[tuple[int, int, int]]:
    for m in (1, 2, 5, 8, 9, 17):
        yield m, 70 + m, 16
    yield from ((1, 64, 35), (3, 65, 40), (13, 97, 24), (8, 128, 12))


@pytest.mark.parametrize("shape", list(cases()), ids=str)
def test_every_shape_is_right(shape: tuple[int, int, int]) -> None:
    kernel = product(*shape)
    for target in (AVX2, AVX512, NEON):
        small = small_caches(target)
        program = check_linear(kernel, small)
        assert OptKind.ACCUMULATE in [o.kind for o in program.opts]


def test_what_follows_the_sum_is_computed_once() -> None:
    """Bias and activation are in loops after the sums, whose blocks only add."""
    kernel = kernels.matmul_bias_relu(5, 72, 16)
    check_linear(kernel, small_caches(AVX2))
    check_linear(kernel, small_caches(AVX512))


@pytest.mark.parametrize("dtype", ["float32", "float64", "float16", "bfloat16", "int32"])
def test_wide_layers_in_every_type(dtype: str) -> None:
    rows, depth, width = 3, 1024, 1032
    random = np.random.default_rng(3)
    x, w = random.integers(-3, 4, (rows, depth)), random.integers(-3, 4, (depth, width))
    result = (Tensor(x).cast(dtype) @ Tensor(w).cast(dtype)).cast("float64").numpy()
    wanted = (x @ w).astype(np.float64)
    tolerance = {"float16": 2e-3, "bfloat16": 1e-2}.get(dtype, 0)
    np.testing.assert_allclose(result, wanted, rtol=tolerance, atol=tolerance)
