"""Mistakes raise at the call, with our error types, naming the operation, the shapes, and the remedy."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from gradlet import Tensor
from gradlet.base.errors import (
    ArgumentError,
    DeviceError,
    DTypeError,
    GradientError,
    IndexingError,
    ShapeError,
    UserError,
)

A, B, V = Tensor.zeros(2, 3), Tensor.zeros(4, 5), Tensor.zeros(3)
I32 = Tensor([1, 2, 3])

MISTAKES: list[tuple[Callable[[], Any], type[UserError], str]] = [
    (lambda: A + B, ShapeError, r"add: shapes \(2, 3\) and \(4, 5\) do not broadcast"),
    (lambda: A @ B, ShapeError, r"dot: shapes \(2, 3\) and \(4, 5\).*last axis of the first is 3"),
    (lambda: A @ Tensor(1.0), ShapeError, r"dot: .*at least one axis"),
    (lambda: A.reshape(4, 2), ShapeError, r"reshape: shape \(2, 3\) has 6 elements, \(4, 2\) has 8"),
    (lambda: A.reshape(-1, -1), ShapeError, "only one size may be -1"),
    (lambda: A.reshape(-1, 4), ShapeError, "do not divide"),
    (lambda: A.reshape("x"), ShapeError, "expected integers"),
    (lambda: A.expand(2, 4), ShapeError, r"expand: shape \(2, 3\) does not expand to \(2, 4\)"),
    (lambda: A.expand(3), ShapeError, "more axes"),
    (lambda: A.permute(0, 0), ShapeError, "each of the 2 axes once"),
    (lambda: A.permute(0, 2), IndexingError, "axis 2 is out of range"),
    (lambda: A.sum(2), IndexingError, "sum: axis 2 is out of range for a tensor of 2 axes; use -2 to 1"),
    (lambda: A.sum((0, 0)), ArgumentError, "same axis twice"),
    (lambda: A.sum("x"), IndexingError, "axis must be an integer"),
    (lambda: Tensor.zeros(0, 3).max(0), ShapeError, "no elements"),
    (lambda: Tensor.zeros(0).argmax(), ShapeError, "no elements"),
    (lambda: A.shrink(((0, 3), None)), ShapeError, r"\[0, 3\) is not inside axis 0 of size 2"),
    (lambda: A.pad((1, 2, 3)), ShapeError, "pad"),
    (lambda: A.pad((1, 2), mode="mirror"), ArgumentError, "mode 'mirror'"),
    (lambda: A.pad((4, 0), mode="reflect"), ShapeError, "reflect"),
    (lambda: A[2], IndexingError, "index 2 is out of range for axis 0 of size 2"),
    (lambda: A[0, -4], IndexingError, "index -4 is out of range for axis 1 of size 3"),
    (lambda: A[0, 0, 0], IndexingError, "3 indices for a tensor of 2 axes"),
    (lambda: A[..., ...], IndexingError, r"one '\.\.\.'"),
    (lambda: A["x"], IndexingError, "is no index"),
    (lambda: A[1.5], IndexingError, "is no index"),
    (lambda: A[::0], IndexingError, "step"),
    (lambda: A[[0, 2]], IndexingError, "index 2 is out of range for axis 0"),
    (lambda: A[[0.5]], IndexingError, "use integers"),
    (lambda: A[V], IndexingError, "cast it to an integer"),
    (lambda: A[A > 0], IndexingError, "masked_select"),
    (lambda: A[[0, 1], [0, 1, 2]], ShapeError, "index: shapes"),
    (lambda: A.cat(B), ShapeError, r"cat: shapes \(2, 3\) and \(4, 5\)"),
    (lambda: A.stack(V), ShapeError, "stack: shapes"),
    (lambda: A.cat("x"), DTypeError, "argument 1 is str"),
    (lambda: Tensor(1).cat(Tensor(2)), ShapeError, "use stack"),
    (lambda: A.split(0), ShapeError, "positive"),
    (lambda: A.split([1, 2]), ShapeError, "do not add up"),
    (lambda: A + "x", DTypeError, "type str"),
    (lambda: A + None, DTypeError, "NoneType"),
    (lambda: A & 1, DTypeError, "bits of dtypes.float32"),
    (lambda: I32**-1, DTypeError, "cast the base"),
    (lambda: A.cast("float33"), DTypeError, "unknown data type"),
    (lambda: A.to("TPU"), DeviceError, "unknown device 'TPU'; use one of"),
    (lambda: A.conv2d(Tensor.zeros(1, 1, 3, 3)), ShapeError, "conv2d: input"),
    (lambda: Tensor.zeros(1, 2, 5, 5).conv2d(Tensor.zeros(4, 3, 3, 3)), ShapeError, "2 channels, weight"),
    (lambda: Tensor.zeros(1, 1, 2, 2).conv2d(Tensor.zeros(1, 1, 3, 3)), ShapeError, "does not fit the padded input"),
    (lambda: Tensor.zeros(1, 1, 4, 4).conv2d(Tensor.zeros(1, 1, 3, 3), stride=(1, 2, 3)), ShapeError, "stride"),
    (lambda: Tensor.zeros(1, 1, 4, 4).max_pool2d(5), ShapeError, "max_pool2d"),
    (lambda: Tensor.einsum("ij,jk->ik", A), ArgumentError, "2 operands, 1 tensors"),
    (lambda: Tensor.einsum("ij->k", A), ArgumentError, "no operand has"),
    (lambda: Tensor.einsum("ijk->i", A), ShapeError, "does not fit shape"),
    (lambda: Tensor.einsum("ij,jk->ik", A, A), ShapeError, "letter 'j'"),
    (lambda: A.gather(0, V.int()), ShapeError, "as many axes"),
    (lambda: A.gather(0, A), IndexingError, "must hold integers"),
    (lambda: A.scatter(0, A.int(), A, reduce="max"), ArgumentError, "reduce 'max'"),
    (lambda: A.cross_entropy(Tensor([1, 2, 3])), ShapeError, "cross_entropy"),
    (lambda: A.cross_entropy(Tensor([1, 0]), reduction="avg"), ArgumentError, "reduction 'avg'"),
    (lambda: A.sparse_categorical_crossentropy(V), ShapeError, r"\(2,\)"),
    (lambda: A.sparse_categorical_crossentropy(Tensor([0.5, 1.0])), DTypeError, "integers"),
    (lambda: A.clamp(), ArgumentError, "min_, max_ or both"),
    (lambda: A.gelu("erf"), ArgumentError, "'tanh' or 'none'"),
    (lambda: A.div(2, rounding_mode="up"), ArgumentError, "rounding_mode"),
    (lambda: A.assign(B), ShapeError, "assign"),
    (lambda: A.assign(Tensor.zeros(2, 3, dtype="int32")), DTypeError, "cast it first"),
    (lambda: A.item(), ShapeError, "item"),
    (lambda: A.backward(), GradientError, r"\(2, 3\)"),
    (lambda: I32.sum().backward(), GradientError, "float"),
    (lambda: A.sum().gradient(Tensor.ones(3)), GradientError, "does not depend on target 0"),
    (lambda: A.rearrange("a b -> a c"), ArgumentError, "every axis once"),
    (lambda: A.one_hot(3), ArgumentError, "integers"),
    (lambda: A.topk(7), ArgumentError, "k is 7"),
    (lambda: A.tril().diag(), ShapeError, "vector"),
    (lambda: A.squeeze(5), IndexingError, "squeeze"),
    (lambda: Tensor.zeros(2, 5).bitcast("uint8").bitcast("int64"), ShapeError, "does not divide"),
]


@pytest.mark.parametrize("number", range(len(MISTAKES)))
def test_mistakes(number: int) -> None:
    call, kind, message = MISTAKES[number]
    with pytest.raises(kind, match=message):
        call()


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
