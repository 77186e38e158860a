"""Copies of unrolled ranges and vector lanes: element numbers that share a node, values that need every lane."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest

from gradlet.base.dtype import dtypes
from gradlet.base.settings import scope
from gradlet.codegen.expand import unroll, vectorize
from gradlet.graph.node import UOp
from gradlet.graph.program import LinearProgram
from gradlet.ops.op import AxisKind, Op
from gradlet.ops.opt import Opt, OptKind
from gradlet.optimize.actions import language as actions
from gradlet.optimize.analysis import affine
from gradlet.target.target import AVX512, SM_90, Target
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
    made = vectorize(kernel.sink, AVX512)
    assert any(n.op is Op.CAST and n.dtype is dtypes.float32.vec(16) for n in made.toposort())
    assert all(e.dtype is dtypes.index for e in elements(made))
    with scope(NOOPT=1):
        check_linear(kernel, AVX512)


def product_in_columns(rows: int, columns: int, onto: bool = False, also_last: bool = False) -> kernels.Kernel:
    """A product that is stored transposed: lanes along columns go `rows` elements apart."""
    b = kernels.Builder()
    out, x, y = b.param(0, rows * columns), b.param(1, rows * 5), b.param(2, 5 * columns)
    i, j, k = b.range(rows), b.range(columns), b.reduce_range(5)
    total = b.reduce(Op.ADD, b.load(x, i * 5 + k) * b.load(y, k * columns + j), k)
    b.store(out, j * rows + i, (total + b.load(out, j * rows + i) if onto else total).maximum(0.0))
    left, right, before = kernels.random(rows, 5), kernels.random(5, columns, seed=1), kernels.random(columns, rows)
    expected = (left @ right).T + (before if onto else 0)
    arrays, results = [before.copy(), left, right], {0: np.maximum(expected, 0)}
    if also_last:
        b.store(b.param(3, rows * columns), (columns - 1 - j) * rows + i, total * 2)
        arrays.append(kernels.empty(rows * columns))
        results[3] = 2 * (left @ right).T[::-1]
    return kernels.Kernel(b.sink("product_in_columns"), arrays, results)


def lowered_in_columns(kernel: kernels.Kernel, rows: int, lanes: int, target: Target = AVX512) -> LinearProgram:
    return check_linear(
        kernel, target, scheduled(kernel, Opt(OptKind.UNROLL, 0, rows), Opt(OptKind.VECTORIZE, 1, lanes)).sink
    )


def counts(program: LinearProgram) -> tuple[int, int, int]:
    """Extractions, stores, and arrays of the core."""
    ops = [n.op for n in program.uops]
    return ops.count(Op.EXTRACT), ops.count(Op.STORE), ops.count(Op.LOCAL)


@pytest.mark.parametrize(("rows", "columns"), [(8, 16), (12, 48), (9, 16)])
def test_sums_stored_far_apart_go_through_an_array(rows: int, columns: int) -> None:
    """Each vector is stored once into the array and has one store in the loop over lanes."""
    program = lowered_in_columns(product_in_columns(rows, columns), rows, 16)
    assert counts(program) == (0, 2 * rows, 1)
    assert len({n for n in program.uops if n.op is Op.RANGE}) == (2 if columns == 16 else 3)


def test_sums_of_two_outputs_share_an_array() -> None:
    """Also lanes that go backwards."""
    program = lowered_in_columns(product_in_columns(6, 32, also_last=True), 6, 16)
    assert counts(program) == (0, 24, 1)


def test_few_sums_stored_far_apart_are_written_out() -> None:
    assert counts(lowered_in_columns(product_in_columns(7, 16), 7, 16)) == (7 * 16, 7 * 16, 0)


def test_sums_onto_what_is_there_are_stored_when_they_are_computed() -> None:
    assert counts(lowered_in_columns(product_in_columns(8, 16, onto=True), 8, 16))[2] == 0


def test_arrays_of_a_gpu_are_not_for_one_lane() -> None:
    """What lanes share is no place for what each has for itself."""
    kernel = scheduled(product_in_columns(8, 4), Opt(OptKind.UNROLL, 0, 8), Opt(OptKind.VECTORIZE, 1, 4))
    made = vectorize(unroll(actions.apply(kernel.sink, kernel.sink.arg.opts, SM_90)), SM_90)
    assert not any(n.op is Op.LOCAL for n in made.toposort())
    check_kernel(kernel, made)


def product_and_guarded(rows: int, columns: int, apart: int, otherwise: float = 0.0) -> kernels.Kernel:
    """Two products; to the first is added what lies `rows * apart` elements from lane to lane."""
    b = kernels.Builder()
    out, x, y = b.param(0, 2 * rows * columns), b.param(1, 2 * rows * 5), b.param(2, 5 * columns)
    more = b.param(3, columns * rows * apart)
    g, i, j, k = b.range(2), b.range(rows), b.range(columns), b.reduce_range(5)
    total = b.reduce(Op.ADD, b.load(x, (g * rows + i) * 5 + k) * b.load(y, k * columns + j), k)
    added = b.load(more, j * (rows * apart) + i * apart, g < 1, otherwise)
    b.store(out, (g * rows + i) * columns + j, total + added)
    left, right = kernels.random(2, rows, 5), kernels.random(5, columns, seed=1)
    third = kernels.random(columns, rows, apart, seed=2)
    expected = left @ right + np.stack([third[:, :, 0].T, np.full((rows, columns), otherwise, np.float32)])
    return kernels.Kernel(
        b.sink("product_and_guarded"), [kernels.empty(*expected.shape), left, right, third], {0: expected}
    )


def lowered_and_guarded(kernel: kernels.Kernel, rows: int) -> LinearProgram:
    opts = (Opt(OptKind.UNROLL, 1, rows), Opt(OptKind.VECTORIZE, 2, 16))
    return check_linear(kernel, AVX512, scheduled(kernel, *opts).sink)


@pytest.mark.parametrize(("rows", "columns", "otherwise"), [(8, 16, 0.0), (11, 32, 0.0), (8, 16, 2.5)])
def test_what_is_loaded_far_apart_beside_sums_comes_through_an_array(rows: int, columns: int, otherwise: float) -> None:
    """A load of each vector in the loop over lanes, one of the vector after it."""
    program = lowered_and_guarded(product_and_guarded(rows, columns, 2, otherwise), rows)
    loads = Counter(
        n.src[0].src[0].arg.slot for n in program.uops if n.op is Op.LOAD and n.src[0].src[0].op is Op.PARAM
    )
    assert loads[3] == rows
    assert counts(program) == (0, 2 * rows, 1)


@pytest.mark.parametrize(("rows", "apart"), [(8, 1), (7, 2)])
def test_few_vectors_and_columns_of_rows_need_no_array(rows: int, apart: int) -> None:
    assert counts(lowered_and_guarded(product_and_guarded(rows, 16, apart), rows))[2] == 0
