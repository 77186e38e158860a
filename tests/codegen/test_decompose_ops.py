"""Transcendental functions as polynomials: accuracy over the whole range of float32, and special values."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pytest

from gradlet.base.dtype import dtypes
from gradlet.base.settings import scope
from gradlet.codegen import decompose_ops
from gradlet.graph import numeric
from gradlet.graph.node import UOp, mk, toposort
from gradlet.ops.op import Op, ParamArg
from gradlet.target.target import AVX512, NVPTX
from tests.codegen import kernels
from tests.codegen.kernels import Array

F32 = dtypes.float32
FUNCTIONS: dict[str, tuple[Callable[[UOp], UOp], Callable[[Array], Array], float]] = {
    "exp": (decompose_ops.exp, np.exp, 1.01),
    "exp2": (decompose_ops.exp2, np.exp2, 1.01),
    "log": (decompose_ops.log, np.log, 1.01),
    "log2": (decompose_ops.log2, np.log2, 2.0),
    "sin": (decompose_ops.sin, np.sin, 0.65),
    "cos": (decompose_ops.cos, np.cos, 0.65),
}


def compute(function: Callable[[UOp], UOp], values: Array) -> Array:
    """Evaluate the expansion on an array."""
    x = mk(Op.PARAM, F32, (), ParamArg(0, 1))  # stands for any float32
    result = function(x)
    known: dict[UOp, Array] = {x: values}
    with np.errstate(all="ignore"):
        for node in toposort((result,)):
            if node.op is Op.CONST:
                known[node] = numeric.constant(node.arg, node.dtype)
            elif node is not x:
                known[node] = numeric.apply(node.op, node.dtype, [known[s] for s in node.src], node.src[0].dtype)
    return known[result]


def error_in_ulp(got: Array, exact: Array) -> Array:
    """Distance to the exact value in units of float32's last place; infinity where only one of them is finite."""
    with np.errstate(all="ignore"):
        wanted = exact.astype(np.float32)
        unit = np.spacing(np.abs(wanted)).astype(np.float64)
        error = np.abs(got.astype(np.float64) - exact) / np.where(unit > 0, unit, 2.0**-149)
    same = (got == wanted) | (np.isnan(got) & np.isnan(wanted))
    return np.where(np.isfinite(got) & np.isfinite(wanted), error, np.where(same, 0, np.inf))


@pytest.mark.parametrize("name", FUNCTIONS)
def test_all_magnitudes(name: str) -> None:
    function, exact, bound = FUNCTIONS[name]
    bits = np.random.default_rng(0).integers(0, 2**32, 100_000, dtype=np.uint64).astype(np.uint32)
    values = bits.view(np.float32)
    with np.errstate(all="ignore"):
        wanted = exact(values.astype(np.float64))
    error = error_in_ulp(compute(function, values), wanted)
    worst = int(error.argmax())
    assert error[worst] <= bound, values[worst]


@pytest.mark.parametrize("name", FUNCTIONS)
def test_usual_magnitudes(name: str) -> None:
    function, exact, bound = FUNCTIONS[name]
    values = np.linspace(-110, 110, 200_001).astype(np.float32)
    near_one = np.linspace(0.4, 2.2, 100_001).astype(np.float32)
    values = np.concatenate([values, near_one])
    with np.errstate(all="ignore"):
        wanted = exact(values.astype(np.float64))
    assert error_in_ulp(compute(function, values), wanted).max() <= bound


def test_sine_of_huge_arguments() -> None:
    """Next to a multiple of pi / 2, where reducing the argument carelessly leaves no correct digit."""
    values = np.array([16367173 * 2.0**72, 2.0**127, 1e5, 1e10, 3.4e38, -7.0e22], np.float32)
    exact = np.array([math.sin(float(v)) for v in values])
    assert error_in_ulp(compute(decompose_ops.sin, values), exact).max() <= 8


@pytest.mark.parametrize("name", FUNCTIONS)
def test_special_values(name: str) -> None:
    function, exact, _ = FUNCTIONS[name]
    values = np.array([0.0, -0.0, np.inf, -np.inf, np.nan, 1e-45, -1e-45, 3.4028235e38], np.float32)
    with np.errstate(all="ignore"):
        wanted = exact(values.astype(np.float64)).astype(np.float32)
    got = compute(function, values)
    special = ~np.isfinite(wanted) | (wanted == 0)
    np.testing.assert_array_equal(got[special], wanted[special])
    np.testing.assert_array_equal(np.signbit(got[wanted == 0]), np.signbit(wanted[wanted == 0]))


def test_only_what_the_target_lacks_is_replaced() -> None:
    b = kernels.Builder()
    out, x = b.param(0, 4, dtypes.float64), b.param(1, 4, dtypes.float64)
    i = b.range(4)
    b.store(out, i, b.load(x, i).exp() + b.load(x, i).sqrt())
    sink = b.sink("double")
    assert decompose_ops.decompose(sink, AVX512) is sink
    single = kernels.special_functions().sink
    for target in (AVX512, NVPTX):
        left = {n.op for n in decompose_ops.decompose(single, target).toposort()}
        assert not left & {Op.EXP, Op.EXP2, Op.LOG, Op.LOG2, Op.SIN, Op.COS}


def test_power_goes_through_float64() -> None:
    x, y = np.array([2.0, -2.0, 0.0, 9.0], np.float32), 0.5
    got = compute(lambda n: decompose_ops.power(n, UOp.const(F32, y)), x)
    np.testing.assert_array_equal(got, np.array([math.sqrt(2), np.nan, 0, 3], np.float32))


def sums(*, shared: bool) -> UOp:
    b = kernels.Builder()
    out, x, y = b.param(0, 8), b.param(1, 8), b.param(2, 8)
    i = b.range(8)
    product = b.load(x, i) * b.load(y, i)
    total = product + b.load(x, i)
    b.store(out, i, total * product if shared else total)
    return b.sink("sums")


def test_products_used_once_join_their_sum() -> None:
    assert any(n.op is Op.MULADD for n in decompose_ops.form_multiply_adds(sums(shared=False)).toposort())
    shared = sums(shared=True)
    assert decompose_ops.form_multiply_adds(shared) is shared
    with scope(STRICT_FLOAT=1):
        single = sums(shared=False)
        assert decompose_ops.form_multiply_adds(single) is single
