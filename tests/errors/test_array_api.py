"""Mistakes in the functions of the array API namespace."""

from __future__ import annotations

import numpy as np
import pytest

import gradlet.array_api as xp
from gradlet import Tensor
from gradlet.base.errors import ArgumentError, DTypeError, ShapeError
from tests.errors.table import Row, check

X = Tensor([[1.0, 2.0], [3.0, 4.0]])
V = Tensor([1.0, 2.0])
WIDE = Tensor.zeros(2, 3)
SCALAR = Tensor(1.0)
I8 = Tensor([1, 2, 3], dtype="int8")

MISTAKES: list[Row] = [
    # numbers beside arrays
    (lambda: xp.add(I8, 300), DTypeError, "add: 300 does not fit dtypes.int8; use an array of a wider type"),
    (lambda: xp.add(V, 1j), DTypeError, "add: there are no complex numbers here; use arrays for real and imaginary"),
    (lambda: xp.add(V, "a"), DTypeError, "add: expected arrays or Python numbers, got str; use asarray"),
    (lambda: xp.where(V > 1, "a", 2), DTypeError, "where: x1 and x2 must be arrays or Python numbers, got str and int"),
    (lambda: xp.bitwise_and(V, V), DTypeError, "bitwise_and: integers and bools only, got dtypes.float32; cast with a"),
    (lambda: xp.bitwise_invert(V), DTypeError, "bitwise_invert: integers and bools only"),
    # creation
    (lambda: xp.asarray(1j), DTypeError, "asarray: there are no complex numbers here; use arrays for real and imag"),
    (lambda: xp.asarray(V, dtype=xp.int32, copy=False), ArgumentError, "asarray: another type or device needs a copy"),
    (lambda: xp.asarray([1, 2], copy=False), ArgumentError, "asarray: list data needs a copy, which copy=False f"),
    (
        lambda: xp.asarray(np.zeros(2, np.float32), dtype=xp.int32, copy=False),
        ArgumentError,
        "asarray: dtypes.float32 as dtypes.int32 needs a copy, which copy=False forbids",
    ),
    (lambda: xp.asarray([V, SCALAR]), ShapeError, r"asarray: rows of shapes \(2,\) and \(\) make no array"),
    (lambda: xp.full(2, 1j), DTypeError, "full: there are no complex numbers here"),
    (lambda: xp.meshgrid(V, V, indexing="yx"), ArgumentError, "meshgrid: indexing 'yx' must be 'xy' or 'ij'"),
    # types
    (lambda: xp.isdtype(xp.int8, "integer"), ArgumentError, "isdtype: 'integer' is no kind of types; use bool, signed"),
    (lambda: xp.finfo(xp.int8), ArgumentError, "finfo: dtypes.int8 is no float type; use iinfo for integers"),
    (lambda: xp.iinfo(V), ArgumentError, "iinfo: dtypes.float32 is no integer type; use finfo for floats"),
    (lambda: xp.result_type(1, 2.5), ArgumentError, "result_type: at least one array or type is needed"),
    # linear algebra
    (lambda: xp.linalg.cross(V, V), ShapeError, r"cross: shapes \(2,\) and \(2,\) must have 3 elements on axis -1"),
    (lambda: xp.linalg.diagonal(V), ShapeError, r"diagonal: shape \(2,\) is no matrix"),
    (lambda: xp.linalg.matrix_norm(X, ord=3), ArgumentError, "matrix_norm: ord 3 is no norm; use 'fro', 'nuc', 1, 2"),
    (lambda: xp.linalg.outer(X, V), ShapeError, r"outer: shapes \(2, 2\) and \(2,\) are no vectors"),
    (lambda: xp.linalg.qr(X, mode="raw"), ArgumentError, "qr: mode 'raw' must be 'reduced' or 'complete'"),
    (lambda: xp.matrix_transpose(V), ShapeError, r"matrix_transpose: shape \(2,\) is no matrix"),
    (lambda: xp.tensordot(X, V, axes=2), ShapeError, r"tensordot: shapes \(2, 2\) and \(2,\) do not have 2 axes to su"),
    (lambda: xp.tensordot(X, V, axes="a"), ArgumentError, "tensordot: axes must be a number or two lists of axes, g"),
    (lambda: xp.tensordot(X, V, axes=-1), ShapeError, "tensordot: .* do not have -1 axes to sum over"),
    (
        lambda: xp.tensordot(WIDE, X, axes=([1], [0])),
        ShapeError,
        r"tensordot: axes \(1,\) of shape \(2, 3\) and axes \(0,\) of shape \(2, 2\) have different sizes",
    ),
    (lambda: xp.vecdot(WIDE, X), ShapeError, r"vecdot: shapes \(2, 3\) and \(2, 2\) have different sizes on axis -1"),
    # order of elements
    (lambda: xp.repeat(V, V), DTypeError, "repeat: repeats must be integers, got dtypes.float32"),
    (lambda: xp.squeeze(WIDE, axis=0), ShapeError, r"squeeze: axis 0 of shape \(2, 3\) has not size 1"),
    (lambda: xp.squeeze(SCALAR, axis=0), ShapeError, r"squeeze: axis 0 of shape \(\) has not size 1"),
    (lambda: xp.concat(X), DTypeError, "concat: expected a list or tuple of arrays, got Tensor; use unstack"),
    (lambda: xp.stack([]), ArgumentError, "stack: at least one array is needed"),
    # reductions and searching
    (lambda: xp.cumulative_sum(X), ArgumentError, "cumulative_sum: axis is needed for an array of 2 axes"),
    (lambda: xp.diff(V, n=-1), ArgumentError, "diff: n must be at least 0, got -1"),
    (lambda: xp.nonzero(SCALAR), ShapeError, "nonzero: an array without axes has no indices"),
    (lambda: xp.searchsorted(V, V, side="both"), ArgumentError, "searchsorted: side 'both' must be 'left' or 'right'"),
    (lambda: xp.take(X, Tensor([0])), ArgumentError, "take: axis is needed for an array of 2 axes"),
    (
        lambda: xp.take_along_axis(X, Tensor([0])),
        ShapeError,
        r"take_along_axis: shapes \(2, 2\) and \(1,\) must have the same number of axes",
    ),
]  # fmt: skip


@pytest.mark.parametrize("row", MISTAKES, ids=range(len(MISTAKES)))
def test_mistake(row: Row) -> None:
    check(row)


def test_names_that_the_namespace_lacks() -> None:
    with pytest.raises(AttributeError, match=r"gradlet.array_api has no complex64: there are no complex numbers; use"):
        xp.complex64
    with pytest.raises(AttributeError, match=r"module 'gradlet.array_api' has no attribute 'sine'; it has .*sin"):
        xp.sine
