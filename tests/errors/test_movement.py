"""Mistakes in shapes and axes: reshaping, padding, cropping, splitting, joining."""

from __future__ import annotations

import pytest

from gradlet import Tensor
from gradlet.base.errors import ArgumentError, DTypeError, IndexingError, ShapeError
from tests.errors.table import Row, check

X = Tensor([[1.0, 2.0], [3.0, 4.0]])
A = Tensor.zeros(2, 3)
B = Tensor.zeros(4, 5)
V = Tensor.zeros(3)

MISTAKES: list[Row] = [
    (lambda: X.reshape(3), ShapeError, r"reshape: shape \(2, 2\) has 4 elements, \(3,\) has 3.*use -1"),
    (lambda: X.reshape(2.0, 2), ShapeError, "reshape: expected integers"),
    (lambda: X.reshape(-2, -2), ShapeError, "reshape: "),
    (lambda: X.expand(3, 2), ShapeError, "expand: .*only axes of size 1 can grow"),
    (lambda: X.permute(0, 0), ShapeError, "permute: .*each of the 2 axes once"),
    (lambda: X.transpose(0, 7), IndexingError, "transpose: axis 7 is out of range.*use -2 to 1"),
    (lambda: X.flip("a"), ShapeError, "flip: expected integers"),
    (lambda: X.squeeze(5), IndexingError, "squeeze: axis 5"),
    (lambda: X.unsqueeze(1.5), IndexingError, "unsqueeze: axis must be an integer"),
    (lambda: X.unflatten(0, (3, 3)), ShapeError, r"unflatten: axis 0 of size 2 does not split into \(3, 3\)"),
    (lambda: X.unflatten(0, 3), ShapeError, "unflatten: axis 0 of size 2"),
    (lambda: X.unflatten(0, (-2, -1)), ShapeError, "unflatten: "),
    (lambda: X.shrink(3), ShapeError, "shrink: expected two integers or None for each axis, got 3"),
    (lambda: X.shrink(((0,), None)), ShapeError, r"shrink: expected two integers or None for each axis, got \(0,\)"),
    (lambda: X.shrink((("a", "b"), None)), ShapeError, "shrink: expected integers"),
    (lambda: X.shrink(((0.5, 1), None)), ShapeError, "shrink: expected integers"),
    (lambda: X.shrink(((0, 3), None)), ShapeError, r"shrink: \[0, 3\) is not inside axis 0 of size 2"),
    (lambda: X.shrink((None, None, None)), ShapeError, "shrink: 3 entries for 2 axes"),
    (lambda: X.pad(1), ShapeError, "pad: expected a list of integers"),
    (lambda: X.pad((1.5, 1)), ShapeError, "pad: expected integers"),
    (lambda: X.pad(((1,), (2,))), ShapeError, "pad: expected two integers or None"),
    (lambda: X.pad(((1, None), (2, 1))), ShapeError, "pad: expected integers"),
    (lambda: X.pad((-5, 1)), ShapeError, "pad: .*crops more"),
    (lambda: X.pad((1, 1), mode="mirror"), ArgumentError, "pad: mode 'mirror' is not one of constant"),
    (lambda: X.pad((5, 5), mode="reflect"), ShapeError, "pad: reflect padding"),
    (lambda: X.pad((1, 1), value="a"), DTypeError, "an operand of type str"),
    (lambda: X.pad_to(3), ShapeError, r"pad_to: 1 sizes for shape \(2, 2\)"),
    (lambda: X.pad_to(1, 3), ShapeError, "pad_to: .*use shrink_to"),
    (lambda: X.repeat_interleave(-1), ArgumentError, "repeat_interleave: repeats must be at least 0"),
    (lambda: X.repeat(2), ShapeError, "repeat: .*fewer entries"),
    (lambda: X.roll("a"), ShapeError, "roll: expected integers"),
    (lambda: X.roll((1, 2), 0), ArgumentError, "roll: 2 shifts for 1 dims"),
    (lambda: X.split(1.5), ShapeError, "split: expected integers"),
    (lambda: X.split([3, -1]), ShapeError, "split: sizes"),
    (lambda: X.chunk("a"), ArgumentError, "chunk: chunks must be an integer, got 'a'"),
    (lambda: X.unfold(0, 5, 1), ShapeError, r"unfold: windows of 5 do not fit axis 0 of shape \(2, 2\)"),
    (lambda: X.unfold(0, 1, 0), ArgumentError, "unfold: step must be at least 1"),
    (lambda: X.cat(3), DTypeError, "cat: argument 1 is int"),
    (lambda: X.cat(Tensor([1.0])), ShapeError, "cat: shapes"),
    (lambda: Tensor.cat([]), ArgumentError, "at least one tensor"),
    (lambda: Tensor.stack(X, X, dim=9), IndexingError, "stack: axis 9"),
    (lambda: X.diagonal(0, 0, 0), ArgumentError, "diagonal: dim1=0 and dim2=0 name the same axis"),
    (lambda: X.rearrange(3), ArgumentError, "rearrange: 3 needs one '->'"),
    (lambda: X.rearrange("(a c) b -> a b c", c="q"), ArgumentError, "rearrange: c must be an integer"),
    (lambda: X.expand(2**70, 2, 2), ShapeError, r"expand: .* the most is 2\*\*62"),
    (lambda: X.repeat(2**40, 2**40), ShapeError, r"the most is 2\*\*62"),
    (lambda: X.pad((2**63, 0)), ShapeError, r"pad: .* the most is 2\*\*62"),
    (lambda: X.meshgrid(3), DTypeError, "meshgrid: argument 1 must be a Tensor"),
    (lambda: A.reshape(4, 2), ShapeError, r"reshape: shape \(2, 3\) has 6 elements, \(4, 2\) has 8"),
    (lambda: A.reshape(-1, -1), ShapeError, "only one size may be -1"),
    (lambda: A.reshape(-1, 4), ShapeError, "do not divide"),
    (lambda: A.reshape("x"), ShapeError, "expected integers"),
    (lambda: A.expand(2, 4), ShapeError, r"expand: shape \(2, 3\) does not expand to \(2, 4\)"),
    (lambda: A.expand(3), ShapeError, "more axes"),
    (lambda: A.permute(0, 2), IndexingError, "axis 2 is out of range"),
    (lambda: A.shrink(((0, 3), None)), ShapeError, r"\[0, 3\) is not inside axis 0 of size 2"),
    (lambda: A.pad((1, 2, 3)), ShapeError, "pad"),
    (lambda: A.pad((1, 2), mode="mirror"), ArgumentError, "mode 'mirror'"),
    (lambda: A.pad((4, 0), mode="reflect"), ShapeError, "reflect"),
    (lambda: A.cat(B), ShapeError, r"cat: shapes \(2, 3\) and \(4, 5\)"),
    (lambda: A.stack(V), ShapeError, "stack: shapes"),
    (lambda: A.cat("x"), DTypeError, "argument 1 is str"),
    (lambda: Tensor(1).cat(Tensor(2)), ShapeError, "use stack"),
    (lambda: A.split(0), ShapeError, "positive"),
    (lambda: A.rearrange("a b -> a c"), ArgumentError, "every axis once"),
    (lambda: A.tril().diag(), ShapeError, "vector"),
]


@pytest.mark.parametrize("row", MISTAKES, ids=range(len(MISTAKES)))
def test_mistake(row: Row) -> None:
    check(row)


def test_arguments_may_be_tensors_of_one_integer() -> None:
    two = Tensor(2)
    assert Tensor.zeros(4).reshape(two, two).shape == (2, 2)
    assert Tensor.arange(3).shrink(((0, two),)).tolist() == [0, 1]
    assert Tensor.arange(3).split(two)[1].tolist() == [2]
