"""Mistakes in element-wise functions and activations."""

from __future__ import annotations

import pytest

from gradlet import Tensor
from gradlet.base.errors import ArgumentError, DeviceError, DTypeError, IndexingError, ShapeError
from tests.errors.table import Row, check

X = Tensor([[1.0, 2.0, 3.0], [3.0, 4.0, 5.0]])
I32 = Tensor([1, 2, 3])
FLAGS = Tensor([True, False, True])
WIDE = Tensor.zeros(2, 4)

MISTAKES: list[Row] = [
    (lambda: X.atan2(WIDE), ShapeError, r"atan2: shapes \(2, 3\) and \(2, 4\) do not broadcast"),
    (lambda: X.hypot(X.to("PYTHON")), DeviceError, r"hypot: operands are on CPU and PYTHON; move one with \.to"),
    (lambda: X.logaddexp("a"), DTypeError, "an operand of type str is no number or tensor"),
    (lambda: I32.addcdiv(I32, I32), DTypeError, "addcdiv: .*integers; cast one to a float"),
    (lambda: X.gcd(X), DTypeError, "gcd: .*dtypes.float32; cast to an integer"),
    (lambda: I32.lcm(1.5), DTypeError, "lcm: .*dtypes.float32; cast to an integer"),
    (lambda: FLAGS.gcd(FLAGS), DTypeError, "gcd: .*dtypes.bool"),
    (lambda: X.heaviside(I32), DTypeError, "heaviside: values are dtypes.int32, this is dtypes.float32; cast one"),
    (lambda: I32.round(decimals=2), DTypeError, "round: decimals=2 is for floats, not dtypes.int32; cast"),
    (lambda: X.round(decimals=0.5), ArgumentError, "round: decimals must be an integer, got 0.5"),
    (lambda: I32.frexp(), DTypeError, "frexp: .*not dtypes.int32; cast to a float"),
    (lambda: I32.nextafter(I32), DTypeError, "nextafter: .*not dtypes.int32; cast to a float"),
    (lambda: FLAGS.positive(), DTypeError, "positive: dtypes.bool has no sign"),
    (lambda: X.fill(I32), ArgumentError, r"fill: value must be a number .*shape \(3,\)"),
    (lambda: X.equal(3), DTypeError, "equal: other must be a Tensor, got int"),
    (lambda: X.isclose(X, rtol=-1.0), ArgumentError, "isclose: rtol must not be negative, got -1.0"),
    (lambda: X.isclose(X, atol="a"), ArgumentError, "isclose: atol must be a number, got 'a'"),
    (lambda: X.logit(eps="a"), ArgumentError, "logit: eps must be a number"),
    (lambda: X.nan_to_num(nan="a"), ArgumentError, "nan_to_num: nan must be a number"),
    (lambda: X.lshift(1), DTypeError, "shl: bits of dtypes.float32 are not defined"),
    # activations
    (lambda: X.glu(), ShapeError, r"glu: shape \(2, 3\) has an odd size, 3, on axis 1"),
    (lambda: X.glu(2), IndexingError, "glu: axis 2 is out of range"),
    (lambda: Tensor(1.0).glu(), ShapeError, "glu: a tensor without axes has no halves"),
    (lambda: WIDE.prelu(I32), ShapeError, r"prelu: 3 weights for shape \(2, 4\); give one, or one for each channel"),
    (lambda: X.softshrink(-1.0), ArgumentError, "softshrink: lambd must not be negative, got -1.0"),
    (lambda: X.hardshrink(None), ArgumentError, "hardshrink: lambd must be a number, got None"),
    (lambda: X.threshold("a", 0), ArgumentError, "threshold: threshold must be a number, got 'a'"),
    (lambda: X.rrelu(0.5, 0.25), ArgumentError, "rrelu: lower 0.5 is above upper 0.25"),
    (lambda: X.softplus(beta=0), ArgumentError, "softplus: beta must not be 0"),
    (lambda: X.celu(alpha=0), ArgumentError, "celu: alpha must not be 0"),
    (lambda: X.gelu("exact"), ArgumentError, "gelu: approximate 'exact' is not 'tanh' or 'none'"),
    (lambda: X.hardtanh(1, -1), ArgumentError, "hardtanh: min_val 1 is above max_val -1"),
]


@pytest.mark.parametrize("row", MISTAKES, ids=range(len(MISTAKES)))
def test_mistake(row: Row) -> None:
    check(row)
