"""Products whose kernel copies the wide factor near: which opts they get, and that every shape and type stays right."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from gradlet import Tensor
from gradlet.base.settings import scope
from gradlet.codegen import pipeline
from gradlet.graph.text import from_text
from gradlet.ops.op import Op
from gradlet.ops.opt import Opt, OptKind, Tail
from gradlet.optimize import heuristic
from gradlet.optimize.actions.language import apply
from gradlet.target.target import AVX2, AVX512, NEON, SSE, Target
from tests.codegen import kernels
from tests.codegen.check import check_linear
from tests.codegen.kernels import Kernel

SLOW_BATCHES = [(1, False, 2), (2, False, 1), (3, True, 1), (3, False, 2), (4, False, 3)]


def machine(target: Target, panels: int, depth: int, cores: int = 1) -> Target:
    """A machine whose cores have room for so many panels of the widest tile."""
    width = (4 if target.vector_registers >= 32 else 2) * target.vector_bits // 32
    return replace(target, scratch_bytes=panels * width * depth * 4, l2_bytes=256, cores=cores)


def opts_of(kernel: Kernel, target: Target, parallel: bool = False) -> tuple[Opt, ...]:
    return heuristic.choose(pipeline.schedulable(kernel.sink, target), target, parallel)


def of_kind(opts: tuple[Opt, ...], kind: OptKind) -> list[tuple[int, Tail]]:
    return [(o.amount, o.tail) for o in opts if o.kind is kind]


def test_blocks_are_as_wide_as_a_core_has_room_for_and_waste_little() -> None:
    """35 panels of 16 columns: 7 a block waste nothing, where 12 would fit."""
    kernel = kernels.matmul(777, 555, 333)
    opts = opts_of(kernel, replace(AVX2, l2_bytes=1 << 19, scratch_bytes=1 << 18))
    assert of_kind(opts, OptKind.SPLIT) == [(112, Tail.SHIFT), (16, Tail.EXACT)]
    assert of_kind(opts, OptKind.UNROLL)[:3] == [(2, Tail.EXACT), (6, Tail.SHIFT), (3, Tail.EXACT)]
    assert len(of_kind(opts, OptKind.STAGE)) == len(of_kind(opts, OptKind.PREFETCH)) == 1
    wide = opts_of(kernels.matmul(777, 1024, 1024), replace(AVX512, scratch_bytes=1 << 20))
    assert of_kind(wide, OptKind.SPLIT) == [(256, Tail.EXACT), (64, Tail.EXACT)]


def test_few_rows_are_cut_into_tiles_of_two_heights() -> None:
    """64 rows in tiles of 6 would compute 66."""
    assert (6, Tail.BALANCE) in of_kind(opts_of(kernels.matmul(64, 8192, 128), AVX2), OptKind.UNROLL)


def test_short_sums_get_smaller_tiles_and_few_rows_smaller_copies() -> None:
    """The end of a tile counts where sums are short; a copy that is used seldom stays in the first cache."""

    def tile_and_block(rows: int, depth: int) -> tuple[int, int]:
        opts = opts_of(kernels.matmul(rows, 8192, depth), replace(AVX2, l2_bytes=1 << 19, scratch_bytes=1 << 18))
        (block, _), (width, _) = of_kind(opts, OptKind.SPLIT)
        return of_kind(opts, OptKind.UNROLL)[1][0] * width // 8, block

    short, long = tile_and_block(64, 32)[0], tile_and_block(64, 256)[0]
    assert short < long == 12
    assert tile_and_block(64, 64)[1] < tile_and_block(1024, 64)[1]


def test_results_of_short_sums_do_not_go_past_the_caches() -> None:
    """They are written so often that the tiles would wait for memory."""
    streamed = [
        any(o.kind is OptKind.STREAM for o in opts_of(kernels.matmul(1024, 8192, depth), AVX2))
        for depth in (64, 1024)
    ]  # fmt: skip
    assert streamed == [False, True]


def test_cores_share_blocks_or_rows_whichever_leaves_none_waiting() -> None:
    """33 panels are three blocks of 11, which two cores cannot share; 1000 rows are two halves."""
    opts = opts_of(
        kernels.matmul(1000, 513, 77), replace(AVX2, cores=2, l2_bytes=1 << 19, scratch_bytes=1 << 18), parallel=True
    )
    assert opts[:3] == (Opt(OptKind.SPLIT, 0, 500), Opt(OptKind.PARALLEL, 0, 0), Opt(OptKind.REORDER, 3, 1))
    opts = opts_of(
        kernels.matmul(512, 512, 512), replace(AVX2, cores=2, l2_bytes=1 << 19, scratch_bytes=1 << 18), parallel=True
    )
    assert opts[:3] == (Opt(OptKind.SPLIT, 1, 128), Opt(OptKind.REORDER, 1, 0), Opt(OptKind.PARALLEL, 0, 0))


def batched(shape: tuple[int, int, int, int], shared: bool) -> Kernel:
    """`out[g, i, j]`, a wide factor for every `g`, and the other one as well or shared by all (a 1x1 convolution)."""
    batch, m, n, k = shape
    b = kernels.Builder()
    g, i, j, l = b.range(batch), b.range(m), b.range(n), b.reduce_range(k)
    x, y = b.param(1, m * k * (1 if shared else batch)), b.param(2, batch * k * n)
    left = b.load(x, i * k + l if shared else (g * m + i) * k + l)
    total = b.reduce(Op.ADD, left * b.load(y, (g * k + l) * n + j), l)
    b.store(b.param(0, batch * m * n), (g * m + i) * n + j, total.maximum(0.0))
    a = kernels.random(m, k, seed=1) if shared else kernels.random(batch, m, k, seed=1)
    c = kernels.random(batch, k, n, seed=2)
    return Kernel(b.sink("batched"), [kernels.empty(batch, m, n), a, c], {0: np.maximum(a @ c, 0)})


def test_cores_share_a_batch_or_blocks_of_each_of_it() -> None:
    """Four are two for each of two cores; three are not, and blocks stand outside of them."""
    target = replace(AVX2, cores=2, l2_bytes=1 << 19, scratch_bytes=1 << 18)
    opts = opts_of(batched((4, 512, 512, 512), False), target, parallel=True)
    assert opts[:3] == (Opt(OptKind.SPLIT, 2, 128), Opt(OptKind.REORDER, 2, 1), Opt(OptKind.PARALLEL, 0, 0))
    assert [o.axis for o in opts if o.kind is OptKind.STAGE] == [1]
    opts = opts_of(batched((3, 512, 512, 512), False), target, parallel=True)
    assert opts[:3] == (Opt(OptKind.SPLIT, 2, 128), Opt(OptKind.REORDER, 2, 0), Opt(OptKind.PARALLEL, 0, 0))
    assert [o.axis for o in opts if o.kind is OptKind.STAGE] == [1]


@pytest.mark.parametrize(
    ("batch", "shared", "cores"),
    [(2, True, 2), (3, True, 2)] + [pytest.param(b, s, c, marks=pytest.mark.slow) for b, s, c in SLOW_BATCHES],
)
def test_every_batch_is_right(batch: int, shared: bool, cores: int) -> None:
    program = check_linear(batched((batch, 64, 35, 16), shared), machine(SSE, 5, 16, cores))
    assert OptKind.STAGE in [o.kind for o in program.opts]


def test_few_rows_are_copied_for_only_where_lines_push_each_other_out() -> None:
    """Rows of 3136 floats spread over the second cache; of 3072 every 16th line meets the same places."""
    target = replace(AVX2, l2_bytes=1 << 19, scratch_bytes=1 << 18)
    assert not of_kind(opts_of(kernels.matmul(64, 3136, 256), target), OptKind.STAGE)
    assert of_kind(opts_of(kernels.matmul(64, 3072, 256), target), OptKind.STAGE)
    assert of_kind(opts_of(kernels.matmul(128, 3136, 256), target), OptKind.STAGE)
    assert not of_kind(opts_of(batched((2, 64, 3136, 256), True), target), OptKind.STAGE)


@pytest.mark.parametrize(
    ("columns", "copied"),
    [(784, 0), (1024, 1), (500, 1), (3136, 1)],  # in good order; every row in the same places; between lines; pages
)
def test_a_batch_is_copied_where_its_order_is_bad(columns: int, copied: int) -> None:
    target = replace(AVX2, l2_bytes=1 << 19, scratch_bytes=1 << 18)
    assert len(of_kind(opts_of(batched((2, 256, columns, 128), True), target), OptKind.STAGE)) == copied


@pytest.mark.parametrize(
    "shape",
    [
        (63, 512, 512),  # too few rows
        (64, 60, 512),  # too narrow
        (64, 8000, 15),  # over before a copy pays
        (64, 300, 100),  # near as it is
        (64, 512, 9000),  # two panels have no room
    ],
)
def test_others_are_not_copied(shape: tuple[int, int, int]) -> None:
    assert not of_kind(
        opts_of(kernels.matmul(*shape), replace(AVX2, l2_bytes=1 << 19, scratch_bytes=1 << 18)), OptKind.STAGE
    )


@pytest.mark.parametrize("target", [AVX2, AVX512, SSE, NEON], ids=lambda t: t.name)
@pytest.mark.parametrize("turned", [(False, False), (False, True), (True, False)], ids=str)
def test_every_layout_is_right(target: Target, turned: tuple[bool, bool]) -> None:
    """Rows, columns and sums that nothing divides; both ways of sharing."""
    m, k = 67, 19
    n = 8 * target.vector_bits // 32 + 3
    for panels, cores in ((3, 1), (9, 2)):
        kernel = kernels.matmul(m, n, k, *turned)
        program = check_linear(kernel, machine(target, panels, k, cores))
        assert OptKind.STAGE in [o.kind for o in program.opts]


def turned_result(m: int, n: int, k: int) -> Kernel:
    """`out[j, i]`: the result is contiguous along the rows of the left factor, which is the wide one then."""
    b = kernels.Builder()
    i, j, l = b.range(m), b.range(n), b.reduce_range(k)
    total = b.reduce(Op.ADD, b.load(b.param(1, m * k), i * k + l) * b.load(b.param(2, k * n), l * n + j), l)
    b.store(b.param(0, m * n), j * m + i, total)
    a, c = kernels.random(m, k, seed=1), kernels.random(k, n, seed=2)
    return Kernel(b.sink("turned"), [kernels.empty(n, m), a, c], {0: np.ascontiguousarray((a @ c).T)})


@pytest.mark.parametrize("shape", [(40, 150, 17), (72, 66, 20), (33, 300, 16)])
def test_a_result_that_is_turned(shape: tuple[int, int, int]) -> None:
    for cores in (1, 2, 3):
        program = check_linear(turned_result(*shape), machine(SSE, 5, shape[2], cores))
        assert OptKind.STAGE in [o.kind for o in program.opts]


def strided(m: int, n: int, k: int) -> Kernel:
    """`out[i, h, j] += ...` over two ranges of rows, with what was in `out` before: nothing may be computed twice."""
    b = kernels.Builder()
    i, h, j, l = b.range(m), b.range(3), b.range(n), b.reduce_range(k)
    out, x, y = b.param(0, m * 3 * n), b.param(1, m * 4 * k), b.param(2, k * n)
    place = (i * 3 + h) * n + j
    total = b.reduce(Op.ADD, b.load(x, (i * 4 + h) * k + l) * b.load(y, l * n + j), l)
    b.store(out, place, total + b.load(out, place))
    start, a, c = kernels.random(m, 3, n, seed=3), kernels.random(m, 4, k, seed=1), kernels.random(k, n, seed=2)
    return Kernel(b.sink("strided"), [start, a, c], {0: start + a[:, :3] @ c})


def test_a_kernel_that_reads_its_result_computes_nothing_twice() -> None:
    program = check_linear(strided(64, 32, 16), machine(SSE, 9, 16))
    assert OptKind.STAGE in [o.kind for o in program.opts]
    assert Tail.SHIFT not in [o.tail for o in program.opts]
    check_linear(strided(65, 35, 17), machine(SSE, 9, 17))


@pytest.mark.parametrize("dtype", ["float32", "float64", "float16", "bfloat16", "int32", "uint8"])
def test_types(dtype: str) -> None:
    random = np.random.default_rng(3)
    x, w = random.integers(0, 3, (70, 40)), random.integers(0, 3, (150, 40))
    result = (Tensor(x).cast(dtype) @ Tensor(w).cast(dtype).T).relu().cast("float64").numpy()
    np.testing.assert_array_equal(result, x @ w.T)


def test_a_factor_that_is_used_twice_and_batches() -> None:
    random = np.random.default_rng(5)
    x = random.standard_normal((130, 130)).astype(np.float32)
    np.testing.assert_allclose((Tensor(x) @ Tensor(x)).numpy(), x @ x, atol=1e-4)
    np.testing.assert_allclose((Tensor(x) @ Tensor(x).T).numpy(), x @ x.T, atol=1e-4)
    y = random.standard_normal((2, 70, 130)).astype(np.float32)
    np.testing.assert_allclose((Tensor(y) @ Tensor(x)).numpy(), y @ x, atol=1e-4)
    np.testing.assert_allclose((Tensor(y) @ Tensor(y).transpose(1, 2)).numpy(), y @ y.transpose(0, 2, 1), atol=1e-4)


def test_sums_keep_their_order_where_that_is_asked_for() -> None:
    with scope(STRICT_FLOAT=1):
        kernel = kernels.matmul(64, 32, 16, trans_b=True)
        opts = opts_of(kernel, SSE)
        assert of_kind(opts, OptKind.STAGE) and not of_kind(opts, OptKind.GROUP)
        check_linear(kernel, SSE)


BOTH_IN_ONE_MEMORY = """
%0 = PARAM float32 [slot=0, size=31250]
%1 = CONST index [125]
%2 = RANGE index (%1) [number=1, kind=LOOP]
%3 = CONST index [250]
%4 = MUL index (%2, %3)
%5 = RANGE index (%3) [number=2, kind=LOOP]
%6 = ADD index (%4, %5)
%7 = INDEX float32 (%0, %6)
%8 = PARAM bool [slot=1, size=62500]
%9 = CONST index [24]
%10 = RANGE index (%9) [number=0, kind=PARALLEL]
%11 = CONST index [2]
%12 = MOD index (%10, %11)
%13 = CONST index [31250]
%14 = MUL index (%12, %13)
%15 = ADD index (%14, %4)
%16 = ADD index (%15, %5)
%17 = INDEX bool (%8, %16)
%18 = LOAD bool (%17)
%19 = PARAM float32 [slot=2, size=576000]
%20 = IDIV index (%10, %11)
%21 = CONST index [64]
%22 = MUL index (%20, %21)
%26 = CONST index [2304]
%29 = RANGE index (%21) [number=3, kind=REDUCE]
%33 = MUL index (%5, %26)
%34 = ADD index (%22, %33)
%35 = ADD index (%34, %29)
%36 = CONST index [768]
%37 = ADD index (%35, %36)
%38 = INDEX float32 (%19, %37)
%39 = LOAD float32 (%38)
%23 = CONST index [288000]
%24 = MUL index (%12, %23)
%25 = ADD index (%22, %24)
%27 = MUL index (%2, %26)
%28 = ADD index (%25, %27)
%30 = ADD index (%28, %29)
%31 = INDEX float32 (%19, %30)
%32 = LOAD float32 (%31)
%40 = MUL float32 (%32, %39)
%41 = REDUCE float32 (%40, %29) [op=ADD]
%42 = CONST float32 [0.125]
%43 = MUL float32 (%41, %42)
%44 = CONST float32 [-inf]
%45 = WHERE float32 (%18, %43, %44)
%46 = STORE void (%7, %45)
%47 = SINK void (%46) [name='r_24_125_250_64', opts=None]
"""


def test_factors_may_lie_in_one_memory() -> None:
    """Queries and keys of one projection: splits exchange the order of their loads."""
    sink = from_text(BOTH_IN_ONE_MEMORY)
    opts = heuristic.choose(sink, AVX512)
    assert any(opt.kind is OptKind.STAGE for opt in opts)
    apply(sink, opts, AVX512)
