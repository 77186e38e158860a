"""Mistakes in computing, reading, writing and differentiating values."""

from __future__ import annotations

import pytest

from gradlet import Tensor
from gradlet.base.errors import (
    ArgumentError,
    DeviceError,
    DTypeError,
    GradientError,
    NoAxesError,
    ShapeError,
    UserError,
)
from tests.errors.table import Row, check

X = Tensor([[1.0, 2.0], [3.0, 4.0]])
I32 = Tensor([1, 2, 3])
A = Tensor.zeros(2, 3)
B = Tensor.zeros(4, 5)
OTHER = Tensor([[1.0, 2.0], [3.0, 4.0]], device="PYTHON").realize()

MISTAKES: list[Row] = [
    (lambda: X.item(), ShapeError, r"item: shape \(2, 2\) has 4 elements, not 1; use tolist"),
    (lambda: bool(X), ShapeError, "no single truth value"),
    (lambda: int(X), ShapeError, "4 elements, not 1"),
    (lambda: float(X), ShapeError, "4 elements, not 1"),
    (lambda: range(Tensor(1.5)), DTypeError, "is no integer to count or index with"),
    (lambda: len(Tensor(1)), NoAxesError, "len: a tensor without axes"),
    (lambda: iter(Tensor(1)), NoAxesError, "iteration over a tensor without axes; use item"),
    (lambda: X.cast("bfloat16").data(), DTypeError, "data: Python has no bfloat16; cast"),
    (lambda: X.realize(3), DTypeError, "realize: every argument must be a Tensor, got int"),
    (lambda: (X + 1).realize(schedule=(X + 2).schedule()), ArgumentError, "realize: this is no schedule of .*schedule"),
    (lambda: X.to("foo"), DeviceError, "unknown device 'foo'; use one of"),
    (lambda: X.assign(Tensor([1.0])), ShapeError, "assign: a value of shape"),
    (lambda: X.assign(Tensor([[1, 2], [3, 4]])), DTypeError, "assign: .*cast it first"),
    (lambda: X.replace(3), DTypeError, "replace: x must be a Tensor, got int"),
    (lambda: X.expand(2, 2, 2).assign(Tensor.ones(2, 2, 2)), ArgumentError, "call .contiguous"),
    (lambda: X.backward(), GradientError, "not one element"),
    (lambda: I32.sum().backward(), GradientError, "only floats have gradients"),
    (lambda: X.sum().backward(3), DTypeError, "gradient: gradient must be a Tensor, got int"),
    (lambda: X.sum().gradient(3), DTypeError, "gradient: target 0 must be a Tensor, got int"),
    (lambda: X.sum().gradient(I32), GradientError, "only floats have gradients"),
    (lambda: X.sum().gradient(Tensor([1.0])), GradientError, "does not depend on target 0"),
    (lambda: A.assign(B), ShapeError, "assign"),
    (lambda: A.assign(Tensor.zeros(2, 3, dtype="int32")), DTypeError, "cast it first"),
    (lambda: A.sum().gradient(Tensor.ones(3)), GradientError, "does not depend on target 0"),
    (lambda: X.sum().gradient(X, unused="skip"), ArgumentError, "gradient: unused 'skip' is not one of"),
    (
        lambda: X.gradient(X, gradient=B),
        ShapeError,
        r"gradient of shape \(4, 5\) for a tensor of shape \(2, 2\); they m",
    ),
    (
        lambda: Tensor([1, 2]).sum().cast("float32").backward(),
        GradientError,
        "backward: this depends on no float tensor",
    ),
    (lambda: X.assign(OTHER), DeviceError, r"assign: the value is on PYTHON, the tensor on CPU; use .to\(\)"),
    (lambda: X.replace(B), ShapeError, r"replace: shape \(4, 5\) does not replace shape \(2, 2\); they must agree"),
    (
        lambda: Tensor(1.0).bitcast("int8"),
        ShapeError,
        "bitcast: dtypes.float32 to dtypes.int8 changes the size of the la",
    ),
    (
        lambda: Tensor([1.0]).expand(2**60).numpy(),
        DeviceError,
        r"numpy: no memory for a value of shape \(1152921504606",
    ),
]


@pytest.mark.parametrize("row", MISTAKES, ids=range(len(MISTAKES)))
def test_mistake(row: Row) -> None:
    check(row)


def test_one_element_is_a_python_number() -> None:
    assert int(Tensor([2.7])) == 2
    assert float(Tensor(3)) == 3.0
    assert list(range(Tensor(2))) == [0, 1]
    assert ["a", "b"][Tensor(1)] == "b"


def test_a_mistake_in_place_leaves_the_tensor_alone() -> None:
    x = Tensor([1, 2, 3])
    for write in (lambda: x.__setitem__(5, 1), lambda: x.__setitem__(slice(0, 2), Tensor([1, 2, 3]))):
        with pytest.raises(UserError):
            write()
    with pytest.raises(ShapeError):
        x += Tensor([[1], [2]])
    with pytest.raises(DTypeError):
        x /= 2
    assert x.tolist() == [1, 2, 3]
