"""Mistakes with types."""

from __future__ import annotations

import numpy as np
import pytest

from gradlet import Tensor, dtypes
from gradlet.base.errors import DTypeError, ShapeError
from tests.errors.table import Row, check

F8 = Tensor([[1.0]], dtype="float8_e4m3fn")
OTHER = Tensor([[1.0]], dtype="float8_e5m2")
INT = Tensor([[1]])
UINT64 = Tensor([[1]], dtype="uint64")
MEET = r"dtypes\.{} and dtypes\.{} have no common type.*say which is meant with \.cast\(\.\.\.\)"

MISTAKES: list[Row] = [
    (lambda: F8 + INT, DTypeError, "add: " + MEET.format("float8_e4m3fn", "int32")),
    (lambda: INT * F8, DTypeError, "mul: " + MEET.format("int32", "float8_e4m3fn")),
    (lambda: F8 < OTHER, DTypeError, "cmplt: " + MEET.format("float8_e4m3fn", "float8_e5m2")),
    (lambda: F8 @ OTHER, DTypeError, "dot: " + MEET.format("float8_e4m3fn", "float8_e5m2")),
    (lambda: F8.cat(INT), DTypeError, "cat: " + MEET.format("float8_e4m3fn", "int32")),
    (lambda: Tensor.einsum("ij,jk", F8, INT), DTypeError, "einsum: " + MEET.format("float8_e4m3fn", "int32")),
    (lambda: (INT > 0).where(F8, INT), DTypeError, "where: " + MEET.format("float8_e4m3fn", "int32")),
    (lambda: UINT64 + INT, DTypeError, "add: " + MEET.format("uint64", "int32") + r".*\.cast\(dtypes\.int64\)"),
    (lambda: UINT64 * -1, DTypeError, "mul: " + MEET.format("uint64", "int32")),
    (lambda: INT + 2**64, DTypeError, "integer 18446744073709551616 does not fit any type; make it a float"),
    (lambda: F8 & 1, DTypeError, "and: bits of dtypes.float8_e4m3fn are not defined; cast to an integer or bitcast"),
    (lambda: F8 << 1, DTypeError, "shl: bits of dtypes.float8_e4m3fn are not defined"),
    (lambda: F8.data(), DTypeError, "data: Python has no float8_e4m3fn; cast to float32 first"),
    (lambda: F8.bitcast("int32"), ShapeError, r"float8_e4m3fn to .*int32: last axis of shape \(1, 1\) does not divide"),
    (
        lambda: INT.cast("float8"),
        DTypeError,
        "unknown data type 'float8'; use one of: .*float8_e4m3fn.*float8_e5m2fnuz",
    ),
    (lambda: INT.cast(dtypes.index), DTypeError, "index is a type of the compiler, not of tensors"),
    (lambda: INT.cast(3), DTypeError, "unknown data type 3; use one of"),
    (lambda: INT.to(dtypes.index), DTypeError, "index is a type of the compiler, not of tensors"),
    (lambda: INT.type_as(3), DTypeError, "type_as: other must be a Tensor, got int"),
    (lambda: Tensor(np.array([1j])), DTypeError, "arrays of complex128 cannot become a tensor; .*float64"),
    (lambda: Tensor([300], dtype="uint8"), DTypeError, "do not fit dtypes.uint8; choose a wider dtype"),
]


@pytest.mark.parametrize("row", MISTAKES, ids=lambda row: row[2][:40])
def test_mistake(row: Row) -> None:
    check(row)
