"""Approximations where 16 bits of a value are kept: where they are, and that no result moves by more than a bit."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from gradlet import Tensor, dtypes
from gradlet.base.dtype import DType
from gradlet.base.settings import Context
from gradlet.codegen.decompose_dtypes import compute_in_float32
from gradlet.codegen.decompose_ops import decompose
from gradlet.codegen.pipeline import lower
from gradlet.codegen.rounded import quotient
from gradlet.graph import numeric
from gradlet.graph.evaluate_kernel import run_kernel
from gradlet.graph.node import UOp, toposort
from gradlet.ops.op import Op
from gradlet.render.cuda import render
from gradlet.schedule.calls import KernelCall
from gradlet.target.target import SM_90

PLAIN = replace(SM_90, approximates=False)


def kernel_of(result: Tensor) -> UOp:
    calls = [call for call in result.schedule().calls if isinstance(call, KernelCall)]
    assert len(calls) == 1
    return calls[0].ast


def decomposed(kernel: UOp, target=SM_90) -> UOp:
    return decompose(compute_in_float32(kernel, target), target)


def count(kernel: UOp, op: Op) -> int:
    return sum(n.op is op for n in toposort((kernel,)))


def empty(dtype: DType, *shape: int) -> Tensor:
    return Tensor.empty(*shape, device="NULL:sm_90", dtype=dtype)


LOOSE = {
    "exp": lambda x: x.exp(),
    "exp2": lambda x: x.exp2(),
    "softmax": lambda x: x.softmax(-1),
    "logistic": lambda x: (1 / (1 + (-x.float()).exp())).cast(x.dtype),
    "scaled": lambda x: (x * 0.5).exp() * x,
    "sum": lambda x: x.exp().sum(-1),
}
STRICT = {
    "compared": lambda x: (x.float().exp() > 1.0).cast(x.dtype),
    "stored": lambda x: x.float().exp(),
    "logarithm": lambda x: x.float().exp().sum(-1).log().cast(x.dtype),
    "integer": lambda x: x.float().exp().cast("int32"),
}


@pytest.mark.parametrize("dtype", [dtypes.bfloat16, dtypes.float16])
@pytest.mark.parametrize("name", LOOSE)
def test_results_move_by_a_bit_at_most(name, dtype):
    kernel = kernel_of(LOOSE[name](empty(dtype, 40, 50)))
    loose = decomposed(kernel)
    assert count(loose, Op.EXP2) >= 1 and not count(loose, Op.EXP)
    values = np.random.default_rng(3).standard_normal(2000).astype(np.float32) * 8
    values[:6] = [0.0, -0.0, 80.0, -80.0, 200.0, -200.0]
    size = next(n.arg.size for n in toposort((kernel,)) if n.op is Op.PARAM and n.arg.slot == 0)
    results = []
    for program in (loose, decomposed(kernel, PLAIN)):
        out = np.zeros(size, numeric.storage_type(dtype))
        with np.errstate(all="ignore"):
            run_kernel(program, [out, numeric.store(values, dtype)])
        results.append(out.view(np.int16).astype(np.int64))
    assert np.abs(results[0] - results[1]).max() <= 1
    assert (results[0] != results[1]).mean() < 0.01


@pytest.mark.parametrize("name", STRICT)
def test_what_could_be_seen_is_exact(name):
    assert not count(decomposed(kernel_of(STRICT[name](empty(dtypes.bfloat16, 40, 50)))), Op.EXP2)


def test_sums_may_cancel_on_the_way_to_eight_bits_alone():
    for dtype, powers in ((dtypes.float16, 0), (dtypes.bfloat16, 1)):
        x = empty(dtype, 40, 50)
        assert count(decomposed(kernel_of(x.float().exp().sub(1.0).cast(dtype))), Op.EXP2) == powers


LOGISTIC = {
    "sigmoid": lambda x: x.sigmoid(),
    "silu": lambda x: x.silu(),
    "gelu": lambda x: x.gelu(),
    "logistic": lambda x: (3.0 / (2 + (-x.float()).exp())).cast(x.dtype),
}
BEND = 2 * (2 / np.pi) ** 0.5


def gelu_slope(x):
    s = ((x + x * x * x * 0.044715) * BEND).sigmoid()
    return s + x * s * (1 - s) * BEND * (1 + 3 * 0.044715 * x * x)


GRADIENTS = {
    "gelu": gelu_slope,
    "sigmoid": lambda x: x.sigmoid() * (1 - x.sigmoid()),
    "silu": lambda x: x.sigmoid() * (1 + x * (1 - x.sigmoid())),
}


@pytest.mark.parametrize("name", LOGISTIC)
def test_logistic_functions_take_a_power_and_a_reciprocal(name):
    """One of each, no division; the values are those of float64, rounded, but for the last bit."""
    x = empty(dtypes.bfloat16, 4000)
    kernel = decomposed(kernel_of(LOGISTIC[name](x)))
    assert (count(kernel, Op.EXP2), count(kernel, Op.POW), count(kernel, Op.FDIV)) == (1, 1, 0)
    values = np.linspace(-30, 30, 4000, dtype=np.float32)
    values[:8] = [0.0, -0.0, 1e30, -1e30, np.inf, np.nan, 300.0, -300.0]
    values = numeric.load(numeric.store(values, dtypes.bfloat16), dtypes.bfloat16)
    with np.errstate(all="ignore"):
        out = np.zeros(4000, numeric.storage_type(dtypes.bfloat16))
        run_kernel(kernel, [out, numeric.store(values, dtypes.bfloat16)])
        exact = Tensor(values.astype(np.float64), device="PYTHON")
        expected = (LOGISTIC[name] if name != "logistic" else lambda x: 3.0 / (2 + (-x).exp()))(exact).numpy()
    found = numeric.load(out, dtypes.bfloat16)
    np.testing.assert_allclose(found, expected.astype(np.float32), rtol=2**-8, atol=1e-37)


def test_large_numerators_are_divided():
    """The instruction has 0 for reciprocals below 2**-126: of 1e6 by 1e38 nothing would be left."""
    for numerator, powers in ((1e6, 0), (-1e6, 0), (3.0, 1), (-3.0, 1)):
        kernel = decomposed(
            kernel_of((numerator / (empty(dtypes.bfloat16, 4000).float().square() + 1.0)).cast(dtypes.bfloat16))
        )
        assert (count(kernel, Op.POW), count(kernel, Op.FDIV)) == (powers, 1 - powers)


@pytest.mark.parametrize("name", GRADIENTS)
def test_gradients_of_logistic_functions_are_short(name):
    x = empty(dtypes.bfloat16, 4000)
    (slope,) = LOGISTIC[name](x).sum().gradient(x)
    kernel = decomposed(kernel_of(slope))
    assert (count(kernel, Op.EXP2), count(kernel, Op.POW), count(kernel, Op.FDIV)) == (1, 1, 0)
    values = numeric.load(numeric.store(np.linspace(-20, 20, 4000, dtype=np.float32), dtypes.bfloat16), dtypes.bfloat16)
    params = [n for n in toposort((kernel,)) if n.op is Op.PARAM]
    assert sorted(p.arg.slot for p in params) == [0, 1]
    out = np.zeros(4000, numeric.storage_type(dtypes.bfloat16))
    with np.errstate(all="ignore"):
        run_kernel(kernel, [out, numeric.store(values, dtypes.bfloat16)])
    expected = GRADIENTS[name](Tensor(values.astype(np.float64), device="PYTHON")).numpy()
    np.testing.assert_allclose(numeric.load(out, dtypes.bfloat16), expected, rtol=2**-7, atol=2**-16)


def test_targets_without_the_instruction_and_strict_floats_are_exact():
    kernel = kernel_of(empty(dtypes.bfloat16, 40, 50).softmax(-1))
    assert not count(decomposed(kernel, PLAIN), Op.EXP2)
    with Context(STRICT_FLOAT=1):
        assert not count(decomposed(kernel), Op.EXP2)


def test_a_row_is_divided_by_one_reciprocal():
    code = render(lower(kernel_of(empty(dtypes.bfloat16, 4096, 8192).softmax(-1)), SM_90), SM_90).split("__global__")[
        -1
    ]
    assert code.count("1.0f / ") == 1 and code.count(" / v") == 1 and code.count("power_of_two(") > 1


def test_quotients_of_extreme_divisors():
    tiny, huge = np.float32(1e-44), np.float32(3e38)
    x = np.array([0.0, 1.0, -3.0, 1e-40, 1e38, tiny, huge, np.inf, np.nan], np.float32)
    for divisor in np.array([1.0, -2.0, tiny, -tiny, 1e-39, 1e-20, huge, np.inf, 0.0, np.nan], np.float32):
        a, b = (UOp.variable(name, 0, 1).cast(dtypes.float32) for name in "ab")
        formula = quotient(a, b)
        with np.errstate(all="ignore"):
            found = evaluate_formula(formula, {a: x, b: np.full_like(x, divisor)})
            expected = x / divisor
        close = np.isclose(found, expected, rtol=1e-6, atol=2e-45) | (np.isnan(found) & np.isnan(expected))
        assert close.all(), (divisor, x[~close], found[~close], expected[~close])


def evaluate_formula(root: UOp, values: dict[UOp, np.ndarray]) -> np.ndarray:
    known = dict(values)
    for node in toposort((root,)):
        if node in known or node.op is Op.VARIABLE:
            continue
        if node.op is Op.CONST:
            known[node] = numeric.constant(node.arg, node.dtype)
        else:
            known[node] = numeric.apply(node.op, node.dtype, [known[s] for s in node.src], node.src[0].dtype)
    return known[root]


def test_powers_are_whole_where_somebody_sees_small_ones():
    """2**-140 beside 1 is nothing; alone it is a number."""
    for function, name in ((lambda x: x.sigmoid(), "power_of_two_or_zero("), (lambda x: x.exp2(), "power_of_two(")):
        code = render(lower(kernel_of(function(empty(dtypes.bfloat16, 4096))), SM_90), SM_90).split("__global__")[-1]
        assert name in code and code.count("power_of_two") == code.count(name)
