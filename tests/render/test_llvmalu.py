"""Every element-wise op on every data type, edge values included, as machine code against the reference."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from gradlet.base.dtype import DType, dtypes
from gradlet.base.errors import RenderError
from gradlet.device.cpu.target import runnable
from gradlet.graph import numeric
from gradlet.ops.op import Op
from gradlet.render.llvmir import render
from gradlet.target.target import NVPTX, by_name
from tests.render.build import Build, assert_same_bits, run_both, storage

FLOATS = tuple(d for d in dtypes.all() if d.is_float)
INTS = tuple(d for d in dtypes.all() if d.is_int)
NUMBERS = [0.0, -0.0, 1.0, -1.0, 0.5, 2.5, -2.5, 3.0, -7.0, 1e-40, 6e-8, 1e30, -1e30, np.inf, -np.inf, np.nan]
LANES = (1, 4, 16)


def edge_values(dtype: DType) -> np.ndarray[Any, Any]:
    if dtype.is_bool:
        return np.array([False, True])
    if dtype.is_float:
        with np.errstate(over="ignore"):
            return numeric.store(numeric.cast(np.array(NUMBERS), dtypes.float64, dtype), dtype)
    low, high = int(dtype.min), int(dtype.max)
    picks = [low, low + 1, high, high - 1, 0, 1, 2, 3, 5, 7, 8, 100, -1 if low else 6, -2 if low else 9]
    picks += [-7, -8] if low else [13, 64]
    return np.array(picks, storage(dtype))


def pairs(dtype: DType) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    """All pairs of edge values, repeated to a multiple of 16 lanes."""
    edge = edge_values(dtype)
    x, y = np.repeat(edge, len(edge)), np.tile(edge, len(edge))
    repeat = 16 // np.gcd(16, len(x))
    return np.tile(x, repeat), np.tile(y, repeat)


def run_ops(
    dtype: DType, ops: list[tuple[Op, int]], lanes: int, target_name: str, y: np.ndarray[Any, Any] | None = None
) -> Any:
    """One kernel that applies every op (with its number of operands) to all pairs; yields op and both results."""
    x, second = pairs(dtype)
    y = second if y is None else y
    build = Build()
    px, py = build.param(dtype, len(x)), build.param(dtype, len(x))
    results = []
    arrays = [x, y]
    loop = build.range(len(x) // lanes)
    outputs = []
    for op, count in ops:
        out = dtypes.bool if op in (Op.CMPLT, Op.CMPEQ, Op.CMPNE) else dtype
        outputs.append((op, count, out, build.param(out, len(x))))
        arrays.append(np.zeros(len(x), storage(out)))
    build.open(loop)
    at = loop * lanes
    a, b = build.load(px, at, lanes), build.load(py, at, lanes)
    for op, count, _, param in outputs:
        build.store(param, at, a.alu(op, *(b, a)[: count - 1]))
    build.end(loop)
    machine, reference = run_both(build.program(), by_name(target_name), arrays)
    for i, (op, _, out, _) in enumerate(outputs):
        results.append((op, out, machine[i + 2], reference[i + 2]))
    return results


def check(
    dtype: DType, ops: list[tuple[Op, int]], lanes: int, target_name: str, y: np.ndarray[Any, Any] | None = None
) -> None:
    for op, out, machine, reference in run_ops(dtype, ops, lanes, target_name, y):
        try:
            if op in (Op.MAX, Op.MIN) and dtype.is_float:  # which zero wins is not defined
                machine, reference = without_zero_signs(machine, dtype), without_zero_signs(reference, dtype)
            assert_same_bits(machine, reference, out)
        except AssertionError as error:
            raise AssertionError(f"{op.name} of {dtype.name}: {error}") from None


def without_zero_signs(array: np.ndarray[Any, Any], dtype: DType) -> np.ndarray[Any, Any]:
    bits = array.view(f"u{array.dtype.itemsize}")
    sign = 1 << (8 * array.dtype.itemsize - 1)
    return np.where(bits == sign, 0, bits).astype(bits.dtype).view(array.dtype)


@pytest.mark.parametrize("target", runnable())
@pytest.mark.parametrize("lanes", LANES)
@pytest.mark.parametrize("dtype", FLOATS, ids=lambda d: d.name)
def test_float_arithmetic(dtype: DType, lanes: int, target: str) -> None:
    binary = [Op.ADD, Op.MUL, Op.FDIV, Op.MAX, Op.MIN, Op.CMPLT, Op.CMPEQ, Op.CMPNE]
    check(dtype, [(op, 2) for op in binary] + [(Op.SQRT, 1), (Op.TRUNC, 1)], lanes, target)


@pytest.mark.parametrize("target", runnable())
@pytest.mark.parametrize("lanes", LANES)
@pytest.mark.parametrize("dtype", INTS, ids=lambda d: d.name)
def test_int_arithmetic(dtype: DType, lanes: int, target: str) -> None:
    binary = [
        Op.ADD, Op.MUL, Op.IDIV, Op.MOD, Op.MAX, Op.MIN, Op.AND, Op.OR, Op.XOR, Op.CMPLT, Op.CMPEQ, Op.CMPNE,
    ]  # fmt: skip
    check(dtype, [(op, 2) for op in binary], lanes, target)


@pytest.mark.parametrize("lanes", LANES)
@pytest.mark.parametrize("dtype", INTS, ids=lambda d: d.name)
def test_shifts(dtype: DType, lanes: int) -> None:
    x, _ = pairs(dtype)
    outside = [dtype.max, dtype.bits, dtype.bits + 1, *([-1, dtype.min] if not dtype.is_unsigned else [])]
    amounts = np.resize(np.array([*range(dtype.bits), *outside], storage(dtype)), len(x))
    check(dtype, [(Op.SHL, 2), (Op.SHR, 2)], lanes, runnable()[0], amounts)


@pytest.mark.parametrize("lanes", (1, 16))
def test_bool_arithmetic(lanes: int) -> None:
    binary = [Op.ADD, Op.MUL, Op.MAX, Op.MIN, Op.AND, Op.OR, Op.XOR, Op.CMPLT, Op.CMPEQ, Op.CMPNE]
    check(dtypes.bool, [(op, 2) for op in binary], lanes, runnable()[0])


@pytest.mark.parametrize("divisor", (1, 2, 3, 7, 8, 10, -1, -2, -3, 0))
@pytest.mark.parametrize(
    "dtype", (dtypes.int8, dtypes.int32, dtypes.int64, dtypes.uint8, dtypes.uint64), ids=lambda d: d.name
)
def test_division_by_a_constant_rounds_down(dtype: DType, divisor: int) -> None:
    if divisor < 0 and dtype.is_unsigned:
        pytest.skip("unsigned types have no negative divisors")
    values = np.resize(edge_values(dtype), 16)
    for lanes in (1, 16):
        build = Build()
        source, quotient, rest = (build.param(dtype, 16) for _ in range(3))
        loop = build.loop(16 // lanes)
        x = build.load(source, loop * lanes, lanes)
        by = build.const(divisor, dtype.vec(lanes))
        build.store(quotient, loop * lanes, x // by)
        build.store(rest, loop * lanes, x % by)
        build.end(loop)
        blank = np.zeros_like(values)
        machine, _ = run_both(build.program(), by_name(runnable()[0]), [values, blank, blank])
        wrapped = [(int(v) // divisor if divisor else 0) for v in values]
        expected = np.array([int(dtypes_wrap(q, dtype)) for q in wrapped], storage(dtype))
        assert_same_bits(machine[1], expected, dtype)
        expected = np.array([(int(v) % divisor if divisor else 0) for v in values], storage(dtype))
        assert_same_bits(machine[2], expected, dtype)


def dtypes_wrap(value: int, dtype: DType) -> int:
    from gradlet.base.dtype import as_scalar

    return int(as_scalar(value, dtype))


@pytest.mark.parametrize("lanes", (1, 8))
@pytest.mark.parametrize("target", runnable())
def test_muladd_is_fused_where_the_target_has_it(target: str, lanes: int) -> None:
    rng = np.random.default_rng(0)
    x, y, z = (rng.standard_normal(64).astype(np.float32) for _ in range(3))
    build = Build()
    params = [build.param(dtypes.float32, 64) for _ in range(4)]
    loop = build.loop(64 // lanes)
    at = loop * lanes
    loaded = [build.load(p, at, lanes) for p in params[:3]]
    build.store(params[3], at, loaded[0].alu(Op.MULADD, loaded[1], loaded[2]))
    build.end(loop)
    machine, _ = run_both(build.program(), by_name(target), [x, y, z, np.zeros(64, np.float32)])
    exact = x.astype(np.float64) * y + z
    fused = exact.astype(np.float32)
    rounded_twice = x * y + z
    assert (fused != rounded_twice).any()
    np.testing.assert_array_equal(machine[3], fused if by_name(target).fma else rounded_twice)


@pytest.mark.parametrize("lanes", (1, 8))
def test_functions_of_float64_come_from_the_math_library(lanes: int) -> None:
    ops = [(op, 1) for op in (Op.EXP, Op.EXP2, Op.LOG, Op.LOG2, Op.SIN, Op.COS)] + [(Op.POW, 2)]
    for op, _, machine, reference in run_ops(dtypes.float64, ops, lanes, runnable()[0]):
        np.testing.assert_allclose(machine, reference, rtol=4e-15, err_msg=op.name)


def test_max_with_a_constant_keeps_nan() -> None:
    build = Build()
    source, out = build.param(dtypes.float32, 16), build.param(dtypes.float32, 16)
    x = build.load(source, 0, 16)
    build.store(out, 0, x.maximum(0.0))
    values = np.resize(edge_values(dtypes.float32), 16)
    machine, reference = run_both(build.program(), by_name(runnable()[0]), [values, np.zeros(16, np.float32)])
    assert np.isnan(machine[1]).sum() == 1
    assert_same_bits(
        without_zero_signs(machine[1], dtypes.float32), without_zero_signs(reference[1], dtypes.float32), dtypes.float32
    )


@pytest.mark.parametrize("lanes", (2, 3, 4, 7, 16))
@pytest.mark.parametrize("dtype", dtypes.all(), ids=lambda d: d.name)
def test_reduce_lanes(dtype: DType, lanes: int) -> None:
    rng = np.random.default_rng(lanes)
    values = numeric.store(numeric.cast(rng.integers(0, 5, lanes).astype(np.float64), dtypes.float64, dtype), dtype)
    ops = (Op.ADD, Op.MUL, Op.MAX, Op.MIN)
    build = Build()
    source, out = build.param(dtype, lanes), build.param(dtype, len(ops))
    x = build.load(source, 0, lanes)
    for i, op in enumerate(ops):
        build.store(out, i, build.reduce_lanes(op, x))
    machine, reference = run_both(build.program(), by_name(runnable()[0]), [values, np.zeros(len(ops), storage(dtype))])
    assert_same_bits(machine[1], reference[1], dtype)


@pytest.mark.parametrize("position", (0, 3, 5, 6))
def test_reduce_lanes_finds_nan_in_any_lane(position: int) -> None:
    values = np.arange(7, dtype=np.float32)
    values[position] = np.nan
    build = Build()
    source, out = build.param(dtypes.float32, 7), build.param(dtypes.float32, 2)
    x = build.load(source, 0, 7)
    build.store(out, 0, build.reduce_lanes(Op.MAX, x))
    build.store(out, 1, build.reduce_lanes(Op.MIN, x))
    machine, _ = run_both(build.program(), by_name(runnable()[0]), [values, np.zeros(2, np.float32)])
    assert np.isnan(machine[1]).all()


@pytest.mark.parametrize("lanes", (1, 16))
@pytest.mark.parametrize("dtype", dtypes.all(), ids=lambda d: d.name)
def test_where(dtype: DType, lanes: int) -> None:
    x, y = pairs(dtype)
    build = Build()
    px, py, out = (build.param(dtype, len(x)) for _ in range(3))
    loop = build.loop(len(x) // lanes)
    a, b = build.load(px, loop * lanes, lanes), build.load(py, loop * lanes, lanes)
    build.store(out, loop * lanes, a.lt(b).where(a, b))
    build.end(loop)
    machine, reference = run_both(build.program(), by_name(runnable()[0]), [x, y, np.zeros_like(x)])
    assert_same_bits(machine[2], reference[2], dtype)


def test_a_gpu_without_math_library_refuses_functions_that_were_not_decomposed() -> None:
    build = Build()
    source, out = build.param(dtypes.float64, 1), build.param(dtypes.float64, 1)
    build.store(out, 0, build.load(source, 0).sin())
    with pytest.raises(RenderError, match=r"SIN of float64 .* nvptx has no libm"):
        render(build.program(), NVPTX)
