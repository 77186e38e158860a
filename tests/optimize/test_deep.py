"""Long sums into small results: which go by slices, in what tiles, and that they stay right."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from gradlet import Tensor
from gradlet.codegen.pipeline import lower
from gradlet.ops.opt import Opt, OptKind, Tail
from gradlet.optimize import heuristic
from gradlet.target.target import AVX2, AVX512, Target
from tests.codegen import kernels
from tests.codegen.check import assert_expected
from tests.render.build import execute

SMALL = replace(AVX2, l2_bytes=8 * 8 * 4 * 100)  # a slice of 8 columns is 100 terms


def opts_of(m: int, n: int, k: int, target: Target = SMALL) -> tuple[Opt, ...]:
    return heuristic.choose(kernels.matmul(m, n, k).sink, target, False)


def slice_of(opts: tuple[Opt, ...]) -> int:
    return next((o.amount for o in opts if o.kind is OptKind.ACCUMULATE), 0)


@pytest.mark.parametrize(("m", "n", "k"), [(32, 8, 1000), (37, 8, 1200), (40, 8, 900)])
def test_slices_are_right(m: int, n: int, k: int) -> None:
    kernel = kernels.matmul(m, n, k)
    assert slice_of(opts_of(m, n, k)) == 100
    arrays = [a.copy() for a in kernel.arrays]
    execute(lower(kernel.sink, SMALL), SMALL, arrays)
    assert_expected(kernel, arrays)


def test_rows_are_cut_evenly() -> None:
    opts = opts_of(64, 64, 16384, AVX2)
    rows = [o for o in opts if o.kind is OptKind.UNROLL and o.tail is Tail.BALANCE]
    assert slice_of(opts) in (0, 256, 512) and all(o.amount == 6 for o in rows)


def test_left_alone() -> None:
    assert not slice_of(opts_of(31, 8, 1000)), "few rows"
    assert not slice_of(opts_of(32, 9, 1000)), "columns are no whole vectors"
    assert not slice_of(opts_of(32, 8, 800)), "all is near"
    assert not slice_of(opts_of(32, 8, 1009)), "no slice divides the sum"
    assert not slice_of(opts_of(1200, 8, 1000)), "the result is not near"


@pytest.mark.parametrize(("m", "k", "n"), [(64, 16384, 64), (48, 10000, 40), (33, 9000, 16)])
def test_on_the_device(m: int, k: int, n: int) -> None:
    chance = np.random.default_rng(m)
    a, b = (chance.standard_normal(s).astype(np.float32) for s in ((m, k), (k, n)))
    got = (Tensor(a) @ Tensor(b)).numpy()
    np.testing.assert_allclose(got, a.astype(np.float64) @ b, rtol=1e-3, atol=1e-2)


def test_wide_registers_have_larger_tiles() -> None:
    target = replace(AVX512, l2_bytes=8 * 16 * 4 * 100)
    assert slice_of(opts_of(48, 16, 2000, target)) == 100
