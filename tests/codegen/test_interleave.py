"""Sums of DOTs that share words take turns, and stay what they were."""

from __future__ import annotations

import numpy as np
import pytest

from gradlet.base.dtype import dtypes
from gradlet.codegen.interleave import side_by_side
from gradlet.codegen.pipeline import lower
from gradlet.device.common.llvm import emit_assembly
from gradlet.graph.node import UOp, mk
from gradlet.ops.op import Op
from gradlet.ops.opt import Opt, OptKind
from gradlet.render.llvmir import render
from gradlet.target.target import AVX2, AVX512, NEON
from tests.codegen.check import assert_expected, check_linear
from tests.codegen.kernels import Builder, Kernel
from tests.render.build import execute

BLOCKS, WORDS, LANES = 3, 4, 8
OPTS = (Opt(OptKind.UNROLL, 3, WORDS), Opt(OptKind.VECTORIZE, 1, LANES), Opt(OptKind.UNROLL, 0, 3))


def shared_words(mask: int, times: int = 256) -> Kernel:
    """Three vectors meet the same words of codes, block by block; multiples of their sums are added up."""
    b = Builder()
    m, lane = b.range(3), b.range(LANES)
    block, word = b.reduce_range(BLOCKS), b.reduce_range(WORDS)
    at = (block * WORDS + word) * LANES + lane
    codes = b.load(b.param(1, BLOCKS * WORDS * LANES, dtypes.int32), at) & mask
    vector = b.load(b.param(2, 3 * BLOCKS * WORDS, dtypes.int32), (m * BLOCKS + block) * WORDS + word)
    total = b.reduce(Op.ADD, mk(Op.DOT, dtypes.int32, (codes, vector, UOp.const(dtypes.int32, 0))), word)
    more = b.load(b.param(3, BLOCKS * LANES, dtypes.int32), block * LANES + lane)
    b.store(b.param(0, 3 * LANES, dtypes.int32), m * LANES + lane, b.reduce(Op.ADD, total * times + more, block))
    chance = np.random.default_rng(mask & 255)
    shapes = ((BLOCKS, WORDS, LANES), (3, BLOCKS, WORDS), (BLOCKS, LANES))
    q, v, a = (chance.integers(-(2**31), 2**31, s).astype(np.int32) for s in shapes)
    one = (q & np.int32(mask)).view(np.uint8).reshape(*q.shape, 4).astype(np.int64)
    other = v.view(np.int8).reshape(*v.shape, 4).astype(np.int64)
    want = (np.einsum("bwlk,mbwk->ml", one, other) * times + a.sum(0, dtype=np.int64)).astype(np.int32)
    sink = b.sink("shared_words")
    sink = mk(sink.op, sink.dtype, sink.src, sink.arg._replace(opts=OPTS))
    return Kernel(sink, [np.zeros(want.shape, np.int32), q, v, a], {0: want})


@pytest.mark.parametrize("mask", [0x0F0F0F0F, 0x3F3F3F3F, -1])
@pytest.mark.parametrize("times", [256, 3])
def test_programs_are_right(mask: int, times: int) -> None:
    kernel = shared_words(mask, times)
    for target in (AVX2, AVX512, NEON):
        check_linear(kernel, target)
    arrays = [a.copy() for a in kernel.arrays]
    execute(lower(kernel.sink, AVX2), AVX2, arrays)
    assert_expected(kernel, arrays)


def test_a_word_of_codes_meets_all_vectors_before_the_next_is_loaded() -> None:
    program = lower(shared_words(0x0F0F0F0F).sink, AVX2)
    codes = [n for n in program.uops if n.op is Op.LOAD and n.src[0].src[0].arg.slot == 1]
    places = [program.uops.index(n) for n in codes] + [len(program.uops)]
    between = [sum(n.op is Op.DOT for n in program.uops[a:b]) for a, b in zip(places, places[1:], strict=False)]
    assert between == [3] * WORDS


def test_nothing_else_changes_its_place() -> None:
    one = [n for n in lower(shared_words(-1).sink, AVX2).uops if n.op is not Op.DOT]
    assert side_by_side(one) is one


def test_sums_stay_in_registers_and_multiples_cost_nothing() -> None:
    """Three sums wait as shorts; the factor 256 is that of the instruction which widens them."""
    text = emit_assembly(render(lower(shared_words(0x0F0F0F0F).sink, AVX2), AVX2), AVX2)
    assert text.count("vpmaddubsw") == 3 * WORDS and text.count("vpmaddwd") == 3
    assert "rsp" not in text.split("shared_words:")[1] and "vpslld" not in text
