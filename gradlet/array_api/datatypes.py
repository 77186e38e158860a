"""Types of the standard: their names, how they meet, their limits."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from gradlet.array_api.arguments import array, as_dtype, is_kind, scalar_type
from gradlet.base.dtype import DType, dtypes, promote
from gradlet.base.errors import ArgumentError, DTypeError
from gradlet.tensor.tensor import Tensor


@dataclass(frozen=True)
class FloatLimits:
    """What `finfo` gives."""

    bits: int
    eps: float
    max: float
    min: float
    smallest_normal: float
    dtype: DType


@dataclass(frozen=True)
class IntegerLimits:
    """What `iinfo` gives."""

    bits: int
    max: int
    min: int
    dtype: DType


def astype(x: Tensor, dtype: Any, /, *, copy: bool = True, device: str | None = None) -> Tensor:
    """`x` as another type; a new array, or `x` itself where `copy` is False and nothing changes."""
    result = array(x, "astype").cast(as_dtype(dtype)).to(x.device if device is None else device)
    return result.clone() if copy and result is x else result


def can_cast(from_: Any, to: Any, /) -> bool:
    """Whether a type (or that of an array) becomes another by promotion alone, without losing values."""
    source, target = _type_of(from_), as_dtype(to)
    if source.is_int and target.is_float:
        return source.bits - (source.kind == "i") <= target.format.digits
    try:
        return promote(source, target) is target
    except DTypeError:
        return False


def finfo(type: Any, /) -> FloatLimits:
    """Limits of a float type, or of an array's.

    Raises:
        ArgumentError: not a float type.
    """
    dtype = _type_of(type)
    if not dtype.is_float:
        raise ArgumentError(f"finfo: {dtype} is no float type; use iinfo for integers")
    limits = dtype.format
    return FloatLimits(
        dtype.bits, 2.0**-limits.fraction, limits.largest, -limits.largest, limits.smallest_normal, dtype
    )


def iinfo(type: Any, /) -> IntegerLimits:
    """Limits of an integer type, or of an array's.

    Raises:
        ArgumentError: not an integer type.
    """
    dtype = _type_of(type)
    if not dtype.is_int:
        raise ArgumentError(f"iinfo: {dtype} is no integer type; use finfo for floats")
    return IntegerLimits(dtype.bits, int(dtype.max), int(dtype.min), dtype)


def isdtype(dtype: Any, kind: Any) -> bool:
    """Whether a type is another, is of a kind (bool, signed integer, ...), or any of several.

    Raises:
        ArgumentError: no such kind.
    """
    own = as_dtype(dtype)
    if isinstance(kind, tuple):
        return any(isdtype(own, part) for part in kind)
    if isinstance(kind, str):
        return is_kind(own, kind)
    return own is as_dtype(kind)


def result_type(*arrays_and_dtypes: Any) -> DType:
    """The type in which arrays, types and Python numbers meet; numbers do not widen.

    Raises:
        ArgumentError: nothing but numbers.
        DTypeError: types that do not meet.
    """
    strong = [_type_of(value) for value in arrays_and_dtypes if not isinstance(value, (bool, int, float, complex))]
    if not strong:
        raise ArgumentError("result_type: at least one array or type is needed")
    found = strong[0]
    for dtype in strong[1:]:
        found = promote(found, dtype)
    for value in arrays_and_dtypes:
        if isinstance(value, (bool, int, float, complex)):
            scalar_type(value, found, "result_type")
    return found


def _type_of(value: Any) -> DType:
    return value.dtype if isinstance(value, Tensor) else as_dtype(value)


def integer_sum_type(dtype: DType) -> DType:
    """The type of sums and products: integers that are narrower than the default one are widened to it."""
    default = dtypes.default_int
    if not (dtype.is_int or dtype is dtypes.bool) or dtype.bits >= default.bits:
        return dtype
    if dtype.kind == "u":
        return dtypes.by_name(f"uint{default.bits}")
    return default
