"""Mistakes in kernels that the caller writes."""

from __future__ import annotations

from typing import Any

import pytest

from gradlet import Tensor, dtypes
from gradlet.base.errors import ArgumentError, DeviceError, DTypeError, GradientError, IndexingError, ShapeError
from tests.errors.table import Row, check

X = Tensor([[1.0, 2.0], [3.0, 4.0]])


def mistake(body: Any, *tensors: Any, **options: Any) -> Any:
    return lambda: Tensor.custom_kernel(*(tensors or (Tensor.empty(2, 2), X)), fn=body, **options)


def outside(kernel: Any, out: Any, x: Any) -> None:
    row, column = kernel.loops(2, 3)
    out[row, 0] = x[row, column]


def in_place(kernel: Any, out: Any, x: Any) -> None:
    row, column = kernel.loops(2, 2)
    out[row, column] = out[row, column] + 1


def other_type(kernel: Any, out: Any, x: Any) -> None:
    row, column = kernel.loops(2, 2)
    out[row, column] = x[row, column].cast(dtypes.float16)


def mixed(kernel: Any, out: Any, x: Any) -> None:
    row, column = kernel.loops(2, 2)
    out[row, column] = x[row, column] + row


def few(kernel: Any, out: Any, x: Any) -> None:
    out[kernel.loop(2)] = x[0, 0]


def fraction(kernel: Any, out: Any, x: Any) -> None:
    out[0, 0] = x[x[0, 0], 0]


def nothing(kernel: Any, out: Any, x: Any) -> None:
    kernel.loop(2)


def never_filled(kernel: Any, out: Any, x: Any) -> None:
    out[0, 0] = kernel.shared((2,), "float32").filled(kernel.loop(2))[0]


def no_loop(kernel: Any, out: Any, x: Any) -> None:
    out[0, 0] = kernel.sum(x[0, 0], 3)


def no_loops(kernel: Any, out: Any, x: Any) -> None:
    out[0, 0] = kernel.sum(x[0, 0])


def empty_array(kernel: Any, out: Any, x: Any) -> None:
    kernel.shared((2, 0), "float32")


def simple(kernel: Any, out: Any, x: Any) -> None:
    row, column = kernel.loops(2, 2)
    out[row, column] = x[row, column]


MISTAKES: list[Row] = [
    (mistake(outside), IndexingError, "array 1: index 1 goes from 0 to 2, the axis has 2 elements"),
    (mistake(in_place), ArgumentError, "in_place reads array 0 and stores to it"),
    (mistake(other_type), DTypeError, r"a value of float16 is stored in an array of float32; write value.cast"),
    (mistake(mixed), ArgumentError, "mixed is no kernel"),
    (mistake(few), IndexingError, r"array 0: 1 indices for an array of shape \(2, 2\)"),
    (mistake(fraction), IndexingError, "array 1: an index of type float32; indices are integers"),
    (mistake(nothing), ArgumentError, "nothing stores nothing"),
    (mistake(never_filled), ArgumentError, "shared array 0: nothing was stored into it"),
    (mistake(no_loop), ArgumentError, "add: 3 is no loop; make one with kernel.loop"),
    (mistake(no_loops), ArgumentError, "add: name each loop once, and at least one"),
    (mistake(empty_array), ShapeError, r"shared: shape \(2, 0\) has no elements"),
    (mistake(simple, Tensor.empty(2, 2), 3.0), ArgumentError, "argument 1 is float, not a Tensor"),
    (mistake(simple, Tensor.empty(2, 2), X.to("PYTHON")), DeviceError, "tensors are on CPU and PYTHON; move one"),
    (mistake(None), ArgumentError, "fn is NoneType; give a function"),
    (mistake(simple, opts=3), ArgumentError, "opts is int; give a text or a sequence of Opt"),
    (lambda: mistake(simple)().sum().gradient(X), GradientError, "simple has no gradient; give one with grad="),
    (mistake(simple, opts="JUMP(range 0)"), ArgumentError, "JUMP"),
]


@pytest.mark.parametrize("row", MISTAKES, ids=range(len(MISTAKES)))
def test_mistakes(row: Row) -> None:
    check(row)
