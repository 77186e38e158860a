"""Formats of floats against ml_dtypes and the standard library, over all codes."""

from __future__ import annotations

import math
import pickle
import struct

import numpy as np
import pytest

from gradlet.base.dtype import accumulator, as_scalar, dtypes, promote
from gradlet.base.errors import DTypeError
from gradlet.base.floatformat import FORMATS, sticky

ml_dtypes = pytest.importorskip("ml_dtypes", reason="ml_dtypes is the reference for 8-bit floats")
FLOAT8 = tuple(d.name for d in dtypes.all() if d.is_float8)
SIXTEEN = {"float16": np.float16, "bfloat16": ml_dtypes.bfloat16}


def test_the_known_corners() -> None:
    e4m3, e5m2 = FORMATS["float8_e4m3fn"], FORMATS["float8_e5m2"]
    assert [e4m3.decode(c) for c in (0x7E, 0xFE, 0x01, 0x08, 0x80)] == [448.0, -448.0, 2**-9, 2**-6, 0.0]
    assert math.isnan(e4m3.decode(0x7F)) and math.isnan(e4m3.decode(0xFF)) and not e4m3.has_infinity
    assert [e5m2.decode(c) for c in (0x7C, 0xFC, 0x7B, 0x01)] == [math.inf, -math.inf, 57344.0, 2**-16]
    assert all(math.isnan(e5m2.decode(c)) for c in (0x7D, 0x7E, 0x7F))
    for name, largest in (("float8_e4m3fnuz", 240.0), ("float8_e5m2fnuz", 57344.0)):
        form = FORMATS[name]
        assert form.largest == largest and math.isnan(form.decode(0x80)) and form.encode(-0.0) == 0


@pytest.mark.parametrize("name", FLOAT8)
def test_every_code_of_8_bits(name: str) -> None:
    form = FORMATS[name]
    expected = np.arange(256, dtype=np.uint8).view(getattr(ml_dtypes, name)).astype(np.float64)
    values = np.array([form.decode(code) for code in range(256)])
    np.testing.assert_array_equal(values, expected)
    numbers = ~np.isnan(values)
    np.testing.assert_array_equal(np.signbit(values)[numbers], np.signbit(expected)[numbers])
    assert all(form.encode(v) == code and form.round(v) == v for code, v in enumerate(values.tolist()) if v == v)


@pytest.mark.parametrize("name", SIXTEEN)
def test_every_code_of_16_bits(name: str) -> None:
    form = FORMATS[name]
    codes = np.arange(2**16, dtype=np.uint16)
    with np.errstate(invalid="ignore"):
        values = codes.view(SIXTEEN[name]).astype(np.float64).tolist()
    assert all(form.decode(c) == v and form.encode(v) == c for c, v in enumerate(values) if v == v)
    assert all(math.isnan(form.decode(c)) for c, v in enumerate(values) if v != v)


@pytest.mark.parametrize("source", SIXTEEN)
@pytest.mark.parametrize("name", FLOAT8)
def test_rounding_every_16_bit_float(name: str, source: str) -> None:
    with np.errstate(all="ignore"):
        held = np.arange(2**16, dtype=np.uint16).view(SIXTEEN[source])
        expected = held.astype(getattr(ml_dtypes, name)).astype(np.float64)
        values = held.astype(np.float64).tolist()
    np.testing.assert_array_equal([as_scalar(v, dtypes.by_name(name)) for v in values], expected)


@pytest.mark.parametrize("name", ["float32", "float64"])
def test_wide_formats_are_those_of_the_standard_library(name: str) -> None:
    form, letter = FORMATS[name], "<f" if name == "float32" else "<d"
    for value in (0.1, -2.5, 1e-40, 3e38, 1e39, 5e-324, 1.7976931348623157e308, math.inf, -0.0):
        rounded = as_scalar(value, dtypes.by_name(name))
        assert form.round(value) == rounded
        code = int.from_bytes(struct.pack(letter, rounded), "little")
        assert form.encode(rounded) == code and form.decode(code) == rounded


def test_integers_of_any_size_are_rounded_once() -> None:
    # Just above a tie of bfloat16: float64 cannot hold the difference.
    tie = 2**62 + 2**54
    assert as_scalar(tie, dtypes.bfloat16) == 2.0**62
    assert as_scalar(tie + 1, dtypes.bfloat16) == 2.0**62 + 2.0**55
    assert as_scalar(-tie - 1, dtypes.bfloat16) == -(2.0**62 + 2.0**55)
    assert as_scalar(2**2000, dtypes.float64) == math.inf
    assert as_scalar(-(2**2000), dtypes.float8_e5m2) == -math.inf
    assert math.isnan(as_scalar(2**2000, dtypes.float8_e4m3fn))
    assert sticky(2**60 + 1) == 2**60 + 2**8 and sticky(-5) == -5


def test_types_of_8_bits() -> None:
    assert dtypes.fp8e4m3 is dtypes.float8_e4m3fn and dtypes.fp8e5m2 is dtypes.float8_e5m2
    assert dtypes.by_name("fp8e5m2fnuz") is dtypes.float8_e5m2fnuz
    for name in FLOAT8:
        dtype = dtypes.by_name(name)
        assert dtype.itemsize == 1 and dtype.bits == 8 and dtype.is_float and accumulator(dtype) is dtypes.float32
        assert pickle.loads(pickle.dumps(dtype)) is dtype
    assert (dtypes.float8_e4m3fn.min, dtypes.float8_e5m2.max) == (-448.0, math.inf)


@pytest.mark.parametrize("name", FLOAT8)
def test_promotion_of_8_bits(name: str) -> None:
    own = dtypes.by_name(name)
    for other in dtypes.all():
        if other is own or other.is_bool:
            assert promote(own, other) is promote(other, own) is own
        elif other.is_float8 or other.is_int:
            with pytest.raises(DTypeError, match=r"have no common type.*\.cast\("):
                promote(other, own)
        else:
            assert promote(own, other) is promote(other, own) is other


def test_groups_of_types() -> None:
    assert {*dtypes.floats, *dtypes.ints, dtypes.bool} == set(dtypes.all())
    assert all(dtypes.is_float(d) for d in dtypes.floats) and all(d.is_float8 for d in dtypes.fp8s)
    assert all(dtypes.is_int(d) for d in dtypes.ints) and not dtypes.is_int(dtypes.bool)
    assert all(dtypes.is_unsigned(d) for d in dtypes.uints) and not any(map(dtypes.is_unsigned, dtypes.sints))
    assert dtypes.is_bool(dtypes.bool) and dtypes.finfo(dtypes.bfloat16) == (8, 7)
    with pytest.raises(DTypeError, match="finfo: dtypes.int8 is not a float type"):
        dtypes.finfo(dtypes.int8)
