"""What the functions of the namespace do with their arguments: arrays, numbers beside arrays, types, axes."""

from __future__ import annotations

from typing import Any

from gradlet.base.dtype import DType, dtypes, promote, to_dtype
from gradlet.base.errors import ArgumentError, DTypeError
from gradlet.tensor.tensor import Tensor

Scalar = bool | int | float
Axis = int | tuple[int, ...] | None
Shape = int | tuple[int, ...]


def array(value: Any, what: str, name: str = "x") -> Tensor:
    """An argument that has to be an array.

    Raises:
        DTypeError: something else.
    """
    if not isinstance(value, Tensor):
        raise DTypeError(f"{what}: {name} must be a Tensor, got {type(value).__name__}; use asarray")
    return value


def scalar_type(value: Any, beside: DType, what: str) -> DType:
    """The type that a Python number takes beside an array: the array's, if that is of its kind or a wider one.

    Raises:
        DTypeError: a float beside integers, a number beside bools, an integer that does not fit, a complex number.
    """
    if isinstance(value, bool):
        return beside if beside is dtypes.bool else _mixed(value, beside, what)
    if isinstance(value, int):
        if beside.is_float:
            return beside
        if beside is dtypes.bool:
            return _mixed(value, beside, what)
        if not beside.min <= value <= beside.max:
            raise DTypeError(f"{what}: {value} does not fit {beside}; use an array of a wider type")
        return beside
    if isinstance(value, float):
        return beside if beside.is_float else _mixed(value, beside, what)
    if isinstance(value, complex):
        raise DTypeError(f"{what}: there are no complex numbers here; use arrays for real and imaginary parts")
    raise DTypeError(f"{what}: expected arrays or Python numbers, got {type(value).__name__}; use asarray")


def _mixed(value: Scalar, beside: DType, what: str) -> DType:
    kind = "a bool" if isinstance(value, bool) else f"the number {value}"
    raise DTypeError(
        f"{what}: {kind} beside {beside} has no common type in the standard; use asarray({value}) or cast with astype"
    )


def pair(x1: Any, x2: Any, what: str) -> tuple[Tensor, Tensor]:
    """Two arrays, or one and a Python number, in their common type.

    Raises:
        DTypeError: two numbers, or types that do not meet.
    """
    if not isinstance(x1, Tensor):
        second = array(x2, what, "x1 or x2")
        return _number(x1, second, what), second
    if not isinstance(x2, Tensor):
        return x1, _number(x2, x1, what)
    dtype = promote(x1.dtype, x2.dtype)
    return x1.cast(dtype), x2.cast(dtype)


def _number(value: Any, beside: Tensor, what: str) -> Tensor:
    dtype = scalar_type(value, beside.dtype, what)
    return Tensor.constant(value, (), dtype, beside.place, False)


def needs(x: Tensor, what: str, kind: str) -> Tensor:
    """An array of a kind of types: numeric, real floating, integral, bool.

    Raises:
        DTypeError: another type.
    """
    if not is_kind(x.dtype, kind):
        raise DTypeError(f"{what}: {kind} arrays only, got {x.dtype}; cast with astype")
    return x


def is_kind(dtype: DType, kind: str) -> bool:
    """Whether a type belongs to a kind that the standard names.

    Raises:
        ArgumentError: no such kind.
    """
    if kind == "bool":
        return dtype is dtypes.bool
    if kind == "signed integer":
        return dtype.kind == "i"
    if kind == "unsigned integer":
        return dtype.kind == "u"
    if kind == "integral":
        return dtype.is_int
    if kind == "real floating":
        return dtype.is_float
    if kind == "complex floating":
        return False
    if kind == "numeric":
        return dtype.is_int or dtype.is_float
    raise ArgumentError(
        f"isdtype: {kind!r} is no kind of types; use bool, signed integer, unsigned integer, integral, real floating, "
        "complex floating or numeric"
    )


def as_dtype(dtype: Any) -> DType:
    """A type, its name, or Python's `bool`, `int` or `float` for the default one of that kind.

    Raises:
        DTypeError: no such type.
    """
    if isinstance(dtype, type):
        default = {bool: dtypes.bool, int: dtypes.default_int, float: dtypes.default_float}.get(dtype)
        return to_dtype(dtype.__name__ if default is None else default)
    return to_dtype(dtype)


def chosen(dtype: Any, otherwise: DType) -> DType:
    """The type that an argument asks for.

    Raises:
        DTypeError: no such type.
    """
    return otherwise if dtype is None else as_dtype(dtype)


def whole_shape(shape: Any) -> tuple[int, ...]:
    """A shape that may be given as one size."""
    return tuple(shape) if isinstance(shape, (tuple, list)) else (shape,)
