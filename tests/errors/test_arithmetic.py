"""Mistakes in arithmetic, reductions and products."""

from __future__ import annotations

import math

import pytest

from gradlet import Tensor
from gradlet.base.errors import ArgumentError, DeviceError, DTypeError, IndexingError, ShapeError
from tests.errors.table import Row, check

X = Tensor([[1.0, 2.0], [3.0, 4.0]])
I32 = Tensor([1, 2, 3])
A = Tensor.zeros(2, 3)
B = Tensor.zeros(4, 5)

MISTAKES: list[Row] = [
    (lambda: X + "a", DTypeError, "an operand of type str is no number or tensor"),
    (lambda: None + X, DTypeError, "an operand of type NoneType"),
    (lambda: X + [1, 2], DTypeError, "make it a Tensor first"),
    (lambda: X + 1j, DTypeError, "an operand of type complex"),
    (lambda: X + I32, ShapeError, r"add: shapes \(2, 2\) and \(3,\) do not broadcast"),
    (lambda: X + X.to("PYTHON"), DeviceError, "add: operands are on CPU and PYTHON; move one"),
    (lambda: X & 1, DTypeError, "and: bits of dtypes.float32 are not defined"),
    (lambda: I32 + 2**70, DTypeError, "does not fit any type; make it a float"),
    (lambda: I32**-1, DTypeError, "pow: dtypes.int32 to the power -1"),
    (lambda: X.where(1, "a"), DTypeError, "an operand of type str"),
    (lambda: X.clamp(), ArgumentError, "clamp: give min_, max_ or both"),
    (lambda: X.div(2, rounding_mode="up"), ArgumentError, "div: rounding_mode 'up'"),
    (lambda: X.sum((0, 0)), ArgumentError, "sum: axis .*same axis twice"),
    (lambda: X.sum(0.5), IndexingError, "sum: axis must be an integer"),
    (lambda: X.softmax(5), IndexingError, "softmax: axis 5 is out of range"),
    (lambda: X.log_softmax("a"), IndexingError, "log_softmax: axis must be an integer"),
    (lambda: X.var(correction="a"), ArgumentError, "var: correction must be a number"),
    (lambda: X.normalize(p="a"), ArgumentError, "normalize: p must be a number"),
    (lambda: X.normalize(dim=9), IndexingError, "normalize: axis 9"),
    (lambda: Tensor.zeros(2, 0).max(1), ShapeError, "max: shape .*no elements"),
    (lambda: X @ Tensor(3.0), ShapeError, "dot: .*use \\* for scalars"),
    (lambda: X.linear(None), DTypeError, "linear: weight must be a Tensor, got NoneType"),
    (lambda: I32.outer([1]), DTypeError, "outer: other must be a Tensor"),
    (lambda: Tensor.einsum(X, X), ArgumentError, "einsum: formula must be text"),
    (lambda: Tensor.einsum("ij,jk->ik", X, 3), DTypeError, "einsum: operand 1 must be a Tensor"),
    (lambda: Tensor.einsum("ij,jk->ik", X, I32), ShapeError, "einsum: 'jk' of"),
    (lambda: A + B, ShapeError, r"add: shapes \(2, 3\) and \(4, 5\) do not broadcast"),
    (lambda: A @ B, ShapeError, r"dot: shapes \(2, 3\) and \(4, 5\).*last axis of the first is 3"),
    (lambda: A.sum(2), IndexingError, "sum: axis 2 is out of range for a tensor of 2 axes; use -2 to 1"),
    (lambda: A.sum("x"), IndexingError, "axis must be an integer"),
    (lambda: Tensor.zeros(0, 3).max(0), ShapeError, "no elements"),
    (lambda: Tensor.zeros(0).argmax(), ShapeError, "no elements"),
    (lambda: A + "x", DTypeError, "type str"),
    (lambda: I32**-1, DTypeError, "cast the base"),
    (lambda: Tensor.einsum("ij,jk->ik", A), ArgumentError, "2 operands, 1 tensors"),
    (lambda: Tensor.einsum("ij->k", A), ArgumentError, "no operand has"),
    (lambda: Tensor.einsum("ijk->i", A), ShapeError, "does not fit shape"),
    (lambda: Tensor.einsum("ij,jk->ik", A, A), ShapeError, "letter 'j'"),
]


@pytest.mark.parametrize("row", MISTAKES, ids=range(len(MISTAKES)))
def test_mistake(row: Row) -> None:
    check(row)


def test_nothing_to_normalise_is_nothing() -> None:
    assert Tensor.zeros(2, 0).softmax().tolist() == [[], []]
    assert Tensor.zeros(0, 2).log_softmax(0).shape == (0, 2)


def test_the_infinite_norm_is_the_largest_size() -> None:
    assert Tensor([[0.25, -0.5]]).normalize(p=math.inf).tolist() == [[0.5, -1.0]]
