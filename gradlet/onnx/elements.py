"""Element types of ONNX and what carries them here: a tensor type, and the numpy type of results.

Source: the enum `TensorProto.DataType` of the ONNX specification. Types that no device computes in (integers of 2 and 4
bits, floats of 4 bits, powers of two) lie in a wider type that holds all their values.
"""

from __future__ import annotations

from typing import Any, Final, NamedTuple

import numpy as np

from gradlet.base.dtype import DType, dtypes
from gradlet.base.errors import DTypeError


class Element(NamedTuple):
    """One element type: its number in files, its name, the tensor type that carries it, the numpy type of arrays."""

    number: int
    name: str
    dtype: DType | None
    numpy: str


ELEMENTS: Final[dict[int, Element]] = {
    row.number: row
    for row in (
        Element(1, "float", dtypes.float32, "float32"),
        Element(2, "uint8", dtypes.uint8, "uint8"),
        Element(3, "int8", dtypes.int8, "int8"),
        Element(4, "uint16", dtypes.uint16, "uint16"),
        Element(5, "int16", dtypes.int16, "int16"),
        Element(6, "int32", dtypes.int32, "int32"),
        Element(7, "int64", dtypes.int64, "int64"),
        Element(8, "string", None, "object"),
        Element(9, "bool", dtypes.bool, "bool"),
        Element(10, "float16", dtypes.float16, "float16"),
        Element(11, "double", dtypes.float64, "float64"),
        Element(12, "uint32", dtypes.uint32, "uint32"),
        Element(13, "uint64", dtypes.uint64, "uint64"),
        Element(14, "complex64", None, "complex64"),
        Element(15, "complex128", None, "complex128"),
        Element(16, "bfloat16", dtypes.bfloat16, "bfloat16"),
        Element(17, "float8e4m3fn", dtypes.float8_e4m3fn, "float8_e4m3fn"),
        Element(18, "float8e4m3fnuz", dtypes.float8_e4m3fnuz, "float8_e4m3fnuz"),
        Element(19, "float8e5m2", dtypes.float8_e5m2, "float8_e5m2"),
        Element(20, "float8e5m2fnuz", dtypes.float8_e5m2fnuz, "float8_e5m2fnuz"),
        Element(21, "uint4", dtypes.uint8, "uint4"),
        Element(22, "int4", dtypes.int8, "int4"),
        Element(23, "float4e2m1", dtypes.float32, "float4_e2m1fn"),
        Element(24, "float8e8m0", dtypes.float32, "float8_e8m0fnu"),
        Element(25, "uint2", dtypes.uint8, "uint2"),
        Element(26, "int2", dtypes.int8, "int2"),
    )
}
STRING: Final = 8
FLOAT4: Final = 23
FLOAT8_POWER: Final = 24
# Values of types that another type carries: smallest and largest.
NARROW_INTS: Final[dict[int, tuple[int, int]]] = {21: (0, 15), 22: (-8, 7), 25: (0, 3), 26: (-2, 1)}
NARROW: Final = frozenset((*NARROW_INTS, FLOAT4, FLOAT8_POWER))
_OF_DTYPE: Final = {e.dtype: e.number for e in reversed(ELEMENTS.values()) if e.dtype is not None}
_OF_NUMPY: Final = {e.numpy: e.number for e in ELEMENTS.values()}


def element_name(number: int) -> str:
    """The name of an element type, for messages."""
    found = ELEMENTS.get(number)
    return found.name if found else f"element type {number}"


def number_of(dtype: DType) -> int:
    """The element type that a tensor type is."""
    return _OF_DTYPE[dtype]


def number_of_array(array: np.ndarray[Any, Any]) -> int:
    """The element type of an array; text of any length is string."""
    return STRING if array.dtype.kind in "OUST" else _OF_NUMPY[array.dtype.name]


def dtype_of(number: int, what: str) -> DType:
    """The tensor type that carries an element type.

    Raises:
        DTypeError: one without numbers, such as string, or an unknown one.
    """
    found = ELEMENTS.get(number)
    if found is None or found.dtype is None:
        raise DTypeError(f"{what}: {element_name(number)} is no type of tensors")
    return found.dtype


def numpy_type(number: int) -> Any:
    """The numpy type of an element type; those that numpy lacks come from the package ml_dtypes."""
    name = ELEMENTS[number].numpy
    try:
        return np.dtype(name)
    except TypeError:
        import ml_dtypes

        return np.dtype(getattr(ml_dtypes, name))


def carried(array: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """An array in the type that carries its element type."""
    number = number_of_array(array)
    if number not in NARROW:
        return array
    if number in NARROW_INTS:
        return array.astype(np.uint8 if NARROW_INTS[number][0] == 0 else np.int8)
    return array.astype(np.float32)
