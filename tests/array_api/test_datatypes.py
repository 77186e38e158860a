"""Types of the standard: how they meet, limits, kinds, casts."""

from __future__ import annotations

import numpy as np
import pytest

import gradlet.array_api as xp
from gradlet import Tensor, dtypes
from gradlet.base.errors import ArgumentError, DTypeError

INTS = ("int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64")
KINDS = {
    "bool": {"bool"},
    "signed integer": {"int8", "int16", "int32", "int64"},
    "unsigned integer": {"uint8", "uint16", "uint32", "uint64"},
    "integral": set(INTS),
    "real floating": {"float32", "float64"},
    "complex floating": set(),
    "numeric": {*INTS, "float32", "float64"},
}


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
def test_limits_of_floats(dtype: str) -> None:
    for ours in (xp.finfo(getattr(dtypes, dtype)), xp.finfo(Tensor([1.0], dtype=dtype))):
        theirs = np.finfo(dtype)
        assert (ours.bits, ours.eps, ours.max, ours.min) == (theirs.bits, theirs.eps, theirs.max, theirs.min)
        assert ours.smallest_normal == theirs.smallest_normal
        assert ours.dtype is getattr(dtypes, dtype)
        assert type(ours.max) is float


@pytest.mark.parametrize("dtype", INTS)
def test_limits_of_integers(dtype: str) -> None:
    for ours in (xp.iinfo(getattr(dtypes, dtype)), xp.iinfo(Tensor([1], dtype=dtype))):
        theirs = np.iinfo(dtype)
        assert (ours.bits, ours.max, ours.min) == (theirs.bits, theirs.max, theirs.min)
        assert ours.dtype is getattr(dtypes, dtype)


def test_limits_of_other_types_are_refused() -> None:
    with pytest.raises(ArgumentError, match=r"finfo: dtypes.int32 is no float type; use iinfo"):
        xp.finfo(xp.int32)
    with pytest.raises(ArgumentError, match=r"iinfo: dtypes.float32 is no integer type; use finfo"):
        xp.iinfo(xp.float32)


@pytest.mark.parametrize("kind", KINDS)
def test_kinds(kind: str) -> None:
    names = {"bool", *INTS, "float32", "float64"}
    assert {name for name in names if xp.isdtype(getattr(xp, name), kind)} == KINDS[kind]


def test_kinds_together() -> None:
    assert xp.isdtype(xp.int8, ("bool", "integral"))
    assert xp.isdtype(xp.int8, (xp.float32, xp.int8))
    assert not xp.isdtype(xp.int8, xp.int16)
    assert not xp.isdtype(xp.int8, ())
    with pytest.raises(ArgumentError, match="'float' is no kind of types; use bool"):
        xp.isdtype(xp.int8, "float")


def test_result_type() -> None:
    assert xp.result_type(xp.int8, xp.uint8) is xp.int16
    assert xp.result_type(xp.float32, Tensor([1.0], dtype="float64")) is xp.float64
    assert xp.result_type(xp.int8, 5) is xp.int8
    assert xp.result_type(1.0, xp.float32, 2) is xp.float32
    assert xp.result_type(xp.bool, True) is xp.bool
    assert xp.result_type(xp.uint8, xp.int16, xp.int32) is xp.int32
    with pytest.raises(ArgumentError, match="at least one array or type"):
        xp.result_type(1, 2.0)
    with pytest.raises(DTypeError, match="the number 1.5 beside dtypes.int8"):
        xp.result_type(xp.int8, 1.5)


def test_can_cast() -> None:
    assert xp.can_cast(xp.int8, xp.int16)
    assert xp.can_cast(Tensor([1], dtype="uint8"), xp.int16)
    assert not xp.can_cast(xp.int16, xp.int8)
    assert not xp.can_cast(xp.int8, xp.uint8)
    assert xp.can_cast(xp.float32, xp.float64)
    assert not xp.can_cast(xp.float64, xp.float32)
    assert not xp.can_cast(xp.float32, xp.int64)
    assert [xp.can_cast(getattr(xp, n), xp.float32) for n in ("int8", "int16", "int32", "int64")] == [1, 1, 0, 0]
    for first in INTS:
        assert xp.can_cast(getattr(xp, first), getattr(xp, first))


def test_astype() -> None:
    x = Tensor([1.7, -2.2])
    assert xp.astype(x, xp.int32).tolist() == [1, -2]
    assert xp.astype(x, xp.float32) is not x
    assert xp.astype(x, xp.float32, copy=False) is x
    copied = xp.astype(x, xp.float32)
    x.assign(Tensor([0.0, 0.0]))
    np.testing.assert_array_equal(copied.numpy(), np.array([1.7, -2.2], np.float32))
    assert xp.astype(Tensor([0, 2]), xp.bool).tolist() == [False, True]
    assert xp.astype(x, xp.float64, device="PYTHON").device == "PYTHON"
    with pytest.raises(DTypeError, match="unknown data type"):
        xp.astype(x, "complex64")
