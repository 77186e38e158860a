"""Folding of Python scalars equals the evaluator on arrays, bit for bit, on the values where things go wrong."""

import math

import numpy as np
import pytest

from gradlet.base.dtype import as_scalar, dtypes
from gradlet.graph import numeric
from gradlet.graph.fold import fold
from gradlet.ops.op import BINARY, COMPARE, Op

FLOATS = [0.0, -0.0, 1.0, -1.0, 0.5, -2.5, 3.0, 1e-3, 1e30, -1e30, 65504.0, 1e-8, math.inf, -math.inf, math.nan, 7.3]
INTS = [0, 1, -1, 2, 3, -7, 5, 100, 127, -128, 2**31 - 1, -(2**31), 2**63 - 1, -(2**63), 255]
FLOAT_ONLY = {Op.FDIV, Op.POW}
INT_ONLY = {Op.IDIV, Op.MOD, Op.SHL, Op.SHR}
BITS = {Op.AND, Op.OR, Op.XOR}
ALL = list(dtypes.all())


def samples(dtype):
    values = FLOATS if dtype.is_float else INTS
    return list({repr(as_scalar(v, dtype)): as_scalar(v, dtype) for v in values}.values())


def same(folded, evaluated, zero_sign=True):
    if folded != folded:
        return evaluated != evaluated
    return folded == evaluated and (not zero_sign or math.copysign(1, folded) == math.copysign(1, evaluated))


def suits(op, dtype):
    if dtype.is_bool:
        return op in BITS | COMPARE | {Op.ADD, Op.MUL, Op.MAX, Op.MIN}
    return op not in (INT_ONLY | BITS if dtype.is_float else FLOAT_ONLY)


@pytest.mark.parametrize("dtype", ALL, ids=lambda d: d.name)
def test_binary(dtype):
    for op in sorted(BINARY):
        if not suits(op, dtype):
            continue
        result = dtypes.bool if op in COMPARE else dtype
        for x in samples(dtype):
            for y in samples(dtype):
                folded = fold(op, result, (x, y))
                with np.errstate(all="ignore"):
                    arrays = [numeric.constant(x, dtype), numeric.constant(y, dtype)]
                    evaluated = numeric.apply(op, result, arrays, dtype).item()
                if op is Op.POW and dtype is dtypes.float64:
                    assert folded == pytest.approx(evaluated, rel=1e-15, nan_ok=True), (op, x, y)
                else:
                    assert same(folded, evaluated, op not in (Op.MAX, Op.MIN)), (op, x, y, folded, evaluated)


@pytest.mark.parametrize("dtype", [d for d in ALL if d.is_float], ids=lambda d: d.name)
def test_unary(dtype):
    for op in (Op.SQRT, Op.EXP, Op.EXP2, Op.LOG, Op.LOG2, Op.SIN, Op.COS, Op.TRUNC):
        for x in samples(dtype):
            folded = fold(op, dtype, (x,))
            with np.errstate(all="ignore"):
                evaluated = numeric.apply(op, dtype, [numeric.constant(x, dtype)], dtype).item()
            if dtype is dtypes.float64:
                assert folded == pytest.approx(evaluated, rel=1e-15, abs=1e-300, nan_ok=True), (op, x)
            else:
                assert same(folded, evaluated), (op, x, folded, evaluated)


@pytest.mark.parametrize("source", ALL, ids=lambda d: d.name)
def test_cast_and_bitcast(source):
    for dtype in ALL:
        for x in samples(source):
            array = numeric.constant(x, source)
            with np.errstate(all="ignore"):
                evaluated = numeric.apply(Op.CAST, dtype, [array], source).item()
            assert same(fold(Op.CAST, dtype, (x,)), evaluated), (x, dtype)
            folded = fold(Op.BITCAST, dtype, (x,), source)
            if source.itemsize == dtype.itemsize and x == x:
                evaluated = numeric.apply(Op.BITCAST, dtype, [array], source).item()
                # An unusual NaN is not folded: its bits would be lost.
                assert same(math.nan if folded is None else folded, evaluated), (x, dtype)


def test_large_integers_round_once():
    rng = np.random.default_rng(5)
    ties = [2**60 + 2**36, 2**60 + 2**36 + 1, 2**60 + 2**36 - 1, -(2**60) - 2**36 - 1, 2**62 + 2**38 + 1, 2**63 - 1]
    for value in [*ties, *map(int, rng.integers(-(2**63), 2**63 - 1, 300))]:
        expected = np.int64(value).astype(np.float32).item()
        assert fold(Op.CAST, dtypes.float32, (value,)) == expected, value


def test_rounding_and_wrapping():
    assert fold(Op.ADD, dtypes.int8, (127, 1)) == -128
    assert fold(Op.ADD, dtypes.index, (2**62, 2**62)) == 2**63
    assert fold(Op.IDIV, dtypes.int32, (-7, 2)) == -4 and fold(Op.MOD, dtypes.int32, (-7, 2)) == 1
    assert fold(Op.IDIV, dtypes.int32, (5, 0)) == 0 and fold(Op.MOD, dtypes.int32, (5, 0)) == 0
    assert fold(Op.ADD, dtypes.float32, (1.0, 1e-9)) == 1.0
    assert fold(Op.SHL, dtypes.int32, (1, 32)) == 0 and fold(Op.SHL, dtypes.int32, (1, -1)) == 0
    assert fold(Op.SHR, dtypes.int32, (1, -1)) == 0 and fold(Op.SHR, dtypes.int32, (-8, 99)) == -1
    assert fold(Op.SHR, dtypes.uint8, (255, 8)) == 0
    assert fold(Op.BITCAST, dtypes.uint32, (1.0,), dtypes.float32) == 0x3F800000
