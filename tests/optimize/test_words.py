"""Loops of products with quantised weights: lanes are rows, a block is straight code, memory is walked in far runs."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from gradlet.base.dtype import dtypes
from gradlet.graph.node import UOp, mk
from gradlet.ops.op import Op
from gradlet.ops.opt import OptKind
from gradlet.optimize import heuristic
from gradlet.target.target import AVX2, AVX512
from tests.codegen import kernels
from tests.codegen.check import check_linear
from tests.codegen.kernels import Builder, Kernel

LANES, BLOCKS, WORDS = 8, 3, 4


def codes_times_vector(tiles: int, vectors: int = 1) -> Kernel:
    """`sum over blocks of scale * (sum over words of DOT)` for interleaved rows."""
    b = Builder()
    m, i, lane = b.range(vectors), b.range(tiles), b.range(LANES)
    block, word = b.reduce_range(BLOCKS), b.reduce_range(WORDS)
    codes = b.param(1, tiles * BLOCKS * WORDS * LANES, dtypes.int32)
    at = ((i * BLOCKS + block) * WORDS + word) * LANES + lane
    x = b.load(b.param(2, vectors * BLOCKS * WORDS, dtypes.int32), (m * BLOCKS + block) * WORDS + word)
    zero = UOp.const(dtypes.int32, 0)
    dot = mk(Op.DOT, dtypes.int32, (b.load(codes, at) & 0x0F0F0F0F, x, zero))
    scale = b.load(b.param(3, tiles * BLOCKS * LANES), (i * BLOCKS + block) * LANES + lane)
    value = b.reduce(Op.ADD, b.reduce(Op.ADD, dot, word).cast(dtypes.float32) * scale, block)
    b.store(b.param(0, vectors * tiles * LANES), (m * tiles + i) * LANES + lane, value)
    chance = np.random.default_rng(tiles)
    q = chance.integers(-(2**31), 2**31, (tiles, BLOCKS, WORDS, LANES)).astype(np.int32)
    v = chance.integers(-(2**31), 2**31, (vectors, BLOCKS, WORDS)).astype(np.int32)
    s = kernels.random(tiles, BLOCKS, LANES)
    one = (q & 0x0F0F0F0F).view(np.uint8).reshape(*q.shape, 4).astype(np.int64)
    other = v.view(np.int8).reshape(*v.shape, 4).astype(np.int64)
    want = np.einsum("tbwlk,mbwk,tbl->mtl", one, other, s.astype(np.float64)).astype(np.float32)
    return Kernel(b.sink("codes"), [np.zeros(want.shape, np.float32), q, v, s], {0: want})


@pytest.mark.parametrize("tiles", [3, 16, 18, 33])
def test_far_tiles(tiles: int) -> None:
    kernel = codes_times_vector(tiles)
    opts = heuristic.choose(kernel.sink, AVX2, False)
    kinds = [(o.kind, o.amount) for o in opts]
    assert kinds[:2] == [(OptKind.UNROLL, WORDS), (OptKind.VECTORIZE, LANES)]
    amount = -(-tiles // 4)
    assert kinds[2:-1] == ([(OptKind.SPLIT, amount), (OptKind.UNROLL, 4)] if tiles >= 16 else [])
    assert kinds[-1] == (OptKind.PREFETCH, 32), "4096 bytes of codes, 128 a block"
    check_linear(kernel, AVX2)
    check_linear(kernel, AVX512)


def test_several_vectors_share_what_was_read() -> None:
    kernel = codes_times_vector(16, 3)
    opts = heuristic.choose(kernel.sink, AVX2, False)
    assert any(o.kind is OptKind.UNROLL and o.axis == 0 and o.amount == 3 for o in opts)
    assert not any(o.kind is OptKind.SPLIT for o in opts), "three sums are enough"
    check_linear(kernel, AVX2)


def test_as_many_vectors_as_there_are_registers_for_sums() -> None:
    kernel = codes_times_vector(3, 20)
    for target in (AVX2, AVX512):
        opts = heuristic.choose(kernel.sink, target, False)
        passes = -(-20 // (target.vector_registers // 2))
        assert any(o.kind is OptKind.UNROLL and o.axis == 0 and o.amount == -(-20 // passes) for o in opts)
        check_linear(kernel, target)


def halves_times_vectors(tiles: int, vectors: int) -> Kernel:
    """`sum over blocks of scale * (sum over words of DOT16)`."""
    b = Builder()
    m, i, lane = b.range(vectors), b.range(tiles), b.range(LANES)
    block, word = b.reduce_range(BLOCKS), b.reduce_range(WORDS)
    at = ((i * BLOCKS + block) * WORDS + word) * LANES + lane
    codes = b.load(b.param(1, tiles * BLOCKS * WORDS * LANES, dtypes.int32), at)
    x = b.load(b.param(2, vectors * BLOCKS * WORDS, dtypes.int32), (m * BLOCKS + block) * WORDS + word)
    dot = mk(Op.DOT16, dtypes.int32, (codes, x, UOp.const(dtypes.int32, 0)))
    scale = b.load(b.param(3, tiles * BLOCKS * LANES), (i * BLOCKS + block) * LANES + lane)
    value = b.reduce(Op.ADD, b.reduce(Op.ADD, dot, word).cast(dtypes.float32) * scale, block)
    b.store(b.param(0, vectors * tiles * LANES), (m * tiles + i) * LANES + lane, value)
    chance = np.random.default_rng(tiles)
    q = chance.integers(0, 64, (tiles, BLOCKS, WORDS, LANES, 2)).astype(np.int16)
    v = chance.integers(-(2**15), 2**15, (vectors, BLOCKS, WORDS, 2)).astype(np.int16)
    s = kernels.random(tiles, BLOCKS, LANES)
    want = np.einsum("tbwlk,mbwk,tbl->mtl", q.astype(np.int64), v.astype(np.int64), s.astype(np.float64))
    words = [part.view(np.int32)[..., 0] for part in (q, v)]
    return Kernel(b.sink("halves"), [np.zeros(want.shape, np.float32), *words, s], {0: want.astype(np.float32)})


@pytest.mark.parametrize(("tiles", "vectors"), [(6, 9), (5, 7), (4, 4), (16, 1)])
def test_halves_meet_rows_and_vectors_in_tiles(tiles: int, vectors: int) -> None:
    kernel = halves_times_vectors(tiles, vectors)
    opts = heuristic.choose(kernel.sink, AVX2, False)
    if vectors > 1 and tiles % 2 == 0:
        assert opts[0].kind is OptKind.REORDER, "codes stay near while all vectors pass by"
        assert (OptKind.UNROLL, 2) in [(o.kind, o.amount) for o in opts], "a word meets two vectors of codes"
        assert not any(o.kind is OptKind.PREFETCH for o in opts)
    check_linear(kernel, AVX2)
    check_linear(kernel, AVX512)


def test_codes_that_fit_no_cache_are_asked_for() -> None:
    near = replace(AVX2, l2_bytes=1000)
    opts = heuristic.choose(halves_times_vectors(6, 2).sink, near, False)
    assert any(o.kind is OptKind.PREFETCH for o in opts)
