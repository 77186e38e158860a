"""Copies of unrolled ranges and vector lanes: element numbers that share a node, values that need every lane."""

from __future__ import annotations

import numpy as np
import pytest

from gradlet.base.dtype import dtypes
from gradlet.base.settings import scope
from gradlet.codegen.expand import unroll, vectorize
from gradlet.graph.node import UOp
from gradlet.ops.op import AxisKind, Op
from gradlet.ops.opt import Opt, OptKind
from gradlet.optimize.analysis import affine
from gradlet.target.target import AVX512
from tests.codegen import kernels
from tests.codegen.check import check_kernel, check_linear
from tests.passes.test_codegen_passes import scheduled

SPLITS = (OptKind.UNROLL, OptKind.VECTORIZE)


def elements(sink: UOp) -> list[UOp]:
    return [n.src[1] for n in sink.toposort() if n.op is Op.INDEX]


def test_copies_of_an_element_number_differ_by_a_constant() -> None:
    b = kernels.Builder()
    out, x = b.param(0, 24), b.param(1, 24)
    i, j = b.range(3), b.range(8, AxisKind.UNROLL)
    b.store(out, i * 8 + j, b.load(x, i + j * 3) * 2)
    data = kernels.random(24)
    kernel = kernels.Kernel(b.sink("copies"), [kernels.empty(24), data], {0: data.reshape(8, 3).T.reshape(-1) * 2})
    made = unroll(kernel.sink)
    check_kernel(kernel, made)
    forms = [affine(e) for e in elements(made)]
    assert sorted(f.constant for f in forms if f.terms == {i: 8}) == list(range(8))
    assert sorted(f.constant for f in forms if f.terms == {i: 1}) == list(range(0, 24, 3))
    # One product for all copies, and at most one sum for each.
    assert sum(1 for n in made.toposort() if n.op is Op.MUL and n.dtype is dtypes.index) == 1
    assert all(e in (i, i * 8) or (e.src[0] in (i, i * 8) and e.src[1].op is Op.CONST) for e in elements(made))


@pytest.mark.parametrize("kind", SPLITS)
def test_element_numbers_that_are_not_linear(kind: OptKind) -> None:
    """Quotients, remainders and minima of the range: each copy or lane has its own."""
    b = kernels.Builder()
    out, x = b.param(0, 32), b.param(1, 32)
    i, j = b.range(2), b.range(16)
    element = (j % 5) * 2 + (j // 3).minimum(4) + i * 8
    b.store(out, i * 16 + j, b.load(x, element))
    data = kernels.random(32)
    lanes = np.arange(16)
    expected = np.concatenate([data[lanes % 5 * 2 + np.minimum(lanes // 3, 4) + 8 * row] for row in range(2)])
    kernel = kernels.Kernel(b.sink("crooked"), [kernels.empty(32), data], {0: expected})
    with scope(NOOPT=1):
        check_linear(kernel, AVX512, scheduled(kernel, Opt(kind, 1, 16)).sink)


@pytest.mark.parametrize("kind", SPLITS)
def test_a_range_that_cancels(kind: OptKind) -> None:
    """`j + j * -1 + i` depends on j by its nodes, not by its value."""
    b = kernels.Builder()
    out, x = b.param(0, 32), b.param(1, 4)
    i, j = b.range(4), b.range(8)
    b.store(out, i * 8 + j, b.load(x, (j + i) + j * -1))
    data = kernels.random(4)
    kernel = kernels.Kernel(b.sink("cancels"), [kernels.empty(32), data], {0: np.repeat(data, 8)})
    split = scheduled(kernel, Opt(kind, 1, 8)).sink
    with scope(NOOPT=1):
        check_linear(kernel, AVX512, split)


def test_lanes_of_an_element_number_that_is_also_a_value() -> None:
    b = kernels.Builder()
    out, x = b.param(0, 64), b.param(1, 64)
    i, j = b.range(4), b.range(16, AxisKind.VECTOR)
    number = i * 16 + j
    b.store(out, number, b.load(x, number) + number.cast(dtypes.float32))
    data = kernels.random(64)
    kernel = kernels.Kernel(b.sink("numbered"), [kernels.empty(64), data], {0: data + np.arange(64)})
    made = vectorize(kernel.sink)
    assert any(n.op is Op.CAST and n.dtype is dtypes.float32.vec(16) for n in made.toposort())
    assert all(e.dtype is dtypes.index for e in elements(made))
    with scope(NOOPT=1):
        check_linear(kernel, AVX512)
