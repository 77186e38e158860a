"""Mistakes in making tensors: data that is no number, sizes, values that a type cannot hold."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from gradlet import Tensor, Variable, dtypes
from gradlet.base.errors import ArgumentError, DeviceError, DTypeError, ShapeError
from tests.errors.table import Row, check

A = Tensor.zeros(2, 3)


class Closed:
    """An array whose values numpy cannot have."""

    def __array__(self, *arguments: Any, **more: Any) -> Any:
        raise TypeError("it is sparse")


MISTAKES: list[Row] = [
    (lambda: Tensor("abc"), DTypeError, "cannot make a tensor of str; use numbers"),
    (lambda: Tensor(["a"]), DTypeError, "cannot make a tensor of str"),
    (lambda: Tensor([None]), DTypeError, "cannot make a tensor of NoneType"),
    (lambda: Tensor({1: 2}), DTypeError, "cannot make a tensor of dict"),
    (lambda: Tensor(1 + 2j), DTypeError, "cannot make a tensor of complex"),
    (lambda: Tensor([[1], [2, 3]]), ShapeError, "nested lists are ragged: on level 1 one has length 1"),
    (lambda: Tensor([1, [2]]), ShapeError, "numbers and lists"),
    (lambda: Tensor([Tensor([1])]), DTypeError, "Tensor.stack"),
    (lambda: Tensor(2**70), DTypeError, "do not fit any type"),
    (lambda: Tensor(-1, dtype="uint8"), DTypeError, "do not fit dtypes.uint8"),
    (lambda: Tensor(b"abc", dtype="float32"), ShapeError, "3 bytes do not divide"),
    (lambda: Tensor(np.array([object()])), DTypeError, "arrays of object cannot become a tensor"),
    (lambda: Tensor(np.array([1j])), DTypeError, "arrays of complex128"),
    (lambda: Tensor(np.array(["a"])), DTypeError, "arrays of <U1"),
    (lambda: Tensor(np.ma.array([1, 2], mask=[0, 1])), DTypeError, r"masked array.*\.filled\(value\)"),
    (lambda: Tensor([1.0], device="GPU"), DeviceError, "unknown device 'GPU'; use one of: CPU"),
    (lambda: Tensor([1.0], device="CPU:1"), DeviceError, "only one device"),
    (lambda: Tensor(Variable("n", 1, 10)), ArgumentError, r"variable 'n' has no value.*bind"),
    (lambda: Tensor.zeros(-1), ShapeError, r"zeros: a size may not be negative, got shape \(-1,\)"),
    (lambda: Tensor.zeros(2.5), ShapeError, r"zeros: expected integers"),
    (lambda: Tensor.full(None, 1), ShapeError, "full: expected integers"),
    (lambda: Tensor.full((2,), "a"), ArgumentError, "full: fill_value must be a number, got 'a'"),
    (lambda: Tensor.full((2,), Tensor([1.0])), ArgumentError, "full: fill_value must be a number, got Tensor"),
    (lambda: Tensor.full((2,), 300, dtype="uint8"), DTypeError, "full: 300 does not fit dtypes.uint8.* 0 to 255"),
    (lambda: Tensor.full((2,), 2**70), DTypeError, "does not fit dtypes.int64"),
    (lambda: Tensor([1], dtype="uint8").full_like(-1), DTypeError, "full_like: -1 does not fit"),
    (lambda: Tensor.arange("a"), ArgumentError, "arange: stop must be a number, got 'a'"),
    (lambda: Tensor.arange(float("nan")), ArgumentError, "arange: .*must be finite"),
    (lambda: Tensor.arange(0, float("inf")), ArgumentError, "arange: .*must be finite"),
    (lambda: Tensor.arange(0, 5, 0), ArgumentError, "arange: step may not be 0"),
    (lambda: Tensor.linspace(0, 1, 2.5), ArgumentError, "linspace: steps must be an integer, got 2.5"),
    (lambda: Tensor.linspace(0, 1, -1), ArgumentError, "linspace: steps must be at least 0"),
    (lambda: Tensor.linspace("a", 1, 3), ArgumentError, "linspace: start must be a number"),
    (lambda: Tensor.eye(-1), ShapeError, "eye: a size may not be negative"),
    (lambda: Tensor.zeros(2, 2).tril("a"), ArgumentError, "tril, triu: diagonal must be an integer"),
    (lambda: Tensor.rand(2, dtype="int32"), DTypeError, "rand: dtypes.int32 is not a float type; use randint"),
    (lambda: Tensor.uniform(2, low="a"), ArgumentError, "uniform: low must be a number"),
    (lambda: Tensor.randint(3, low=5, high=2), ArgumentError, r"randint: the range \[5, 2\)"),
    (lambda: Tensor.randperm(2.5), ArgumentError, "randperm: n must be an integer, got 2.5"),
    (lambda: Tensor.manual_seed("a"), ArgumentError, "manual_seed: seed must be an integer"),
    (lambda: Tensor([1.0]).multinomial(0), ArgumentError, "multinomial: num_samples must be at least 1"),
    (lambda: Tensor.zeros(0).multinomial(1), ShapeError, "multinomial: .*at least one weight"),
    (lambda: Variable(3, 1, 10), ArgumentError, "Variable: name must be text"),
    (lambda: Variable("draw0", 1, 10), ArgumentError, "Variable: the name 'draw0' is used for"),
    (lambda: Variable("n", "a", 10), ArgumentError, "Variable: min_val must be an integer"),
    (lambda: Variable("n", 3, 1), ArgumentError, r"the range \[3, 1\] is empty"),
    (lambda: Variable("n", 1, 10).bind("x"), ArgumentError, "bind: value must be an integer"),
    (lambda: Variable("n", 1, 10).bind(11), ArgumentError, r"bind: 11 is outside \[1, 10\]"),
    (lambda: Tensor([1.0], dtype="nope"), DTypeError, "unknown data type 'nope'; use one of: bool"),
    (lambda: Tensor([1.0], dtype=float), DTypeError, "unknown data type <class 'float'>"),
    (lambda: Tensor([1.0], dtype=dtypes.void), DTypeError, "a type of the compiler"),
    (lambda: Tensor([1.0]).cast(dtypes.index), DTypeError, "a type of the compiler"),
    (lambda: Tensor([1.0]).cast(dtypes.float32.vec(4)), DTypeError, "a type of the compiler"),
    (lambda: Tensor([1.0]).cast(None), DTypeError, "unknown data type None"),
    (lambda: Tensor.arange(300, dtype="uint8"), DTypeError, "arange: 299 does not fit dtypes.uint8"),
    (lambda: Tensor.arange(2**66), DTypeError, "arange: .* does not fit dtypes.int64"),
    (lambda: Tensor.normal(2, std=-1), ArgumentError, "normal: std must not be negative"),
    (lambda: Tensor.kaiming_uniform(2, 2, a="x"), ArgumentError, "kaiming_uniform: a must be a number"),
    (lambda: Tensor.zeros(2**40, 2**40), ShapeError, r"zeros: .* elements, the most is 2\*\*62"),
    (lambda: A.cast("float33"), DTypeError, "unknown data type"),
    (lambda: Tensor.zeros(2, 5).bitcast("uint8").bitcast("int64"), ShapeError, "does not divide"),
    (lambda: Tensor([np.zeros(2), 1.0]), ShapeError, "nested lists are ragged: arrays and numbers of different shapes"),
    (lambda: Tensor(Closed()), DTypeError, "Closed does not give its values: it is sparse"),
    (
        lambda: Tensor.linspace(A[0], 1, 5),
        ArgumentError,
        r"linspace: start must be a number or have no axes, got shape",
    ),
    (lambda: Tensor.ones(3).tril(), ShapeError, r"tril, triu: need at least 2 axes, got shape \(3,\)"),
    (
        lambda: Tensor.rand(2**17, 2**17),
        ShapeError,
        "random numbers are counted in 32 bits; 17179869184 elements are t",
    ),
    (lambda: Tensor.glorot_uniform(), ShapeError, "glorot_uniform: needs at least one axis"),
]


@pytest.mark.parametrize("row", MISTAKES, ids=range(len(MISTAKES)))
def test_mistake(row: Row) -> None:
    check(row)


def test_what_looks_odd_and_is_right() -> None:
    assert Tensor(np.arange(4).astype(">i4")).tolist() == [0, 1, 2, 3]
    assert Tensor(np.arange(12).reshape(3, 4)[::2, ::-1]).tolist() == [[3, 2, 1, 0], [11, 10, 9, 8]]
    assert Tensor(np.zeros((0, 3))).shape == (0, 3)
    assert Tensor.arange(np.int64(3)).tolist() == [0, 1, 2]
    assert Tensor.arange(np.int64(3)).dtype is dtypes.int32
    assert Tensor.full((1,), 2**40).tolist() == [2**40]
    assert Tensor.full((2,), np.float32(1.5)).tolist() == [1.5, 1.5]
    assert Tensor.full((), True).dtype is dtypes.bool


def test_counting_far_takes_a_wider_type() -> None:
    assert Tensor.arange(0, 2**40, 2**39).tolist() == [0, 2**39]
    assert Tensor.arange(0, -(2**40), -(2**39)).dtype is dtypes.int64
    assert Tensor.arange(2**31).dtype is dtypes.int32
    assert Tensor.arange(256, dtype="uint8").tolist()[-1] == 255
