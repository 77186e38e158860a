"""Python data to bytes: nested lists, numbers, arrays and buffers, with their type and shape."""

from __future__ import annotations

import struct
import sys
from array import array
from collections.abc import Sequence
from typing import Any, Final, NamedTuple

from gradlet.base.dtype import DType, as_scalar, dtypes
from gradlet.base.errors import DTypeError, ShapeError

# Codes of the standard library's `array`, by type.
CODES: Final = {
    "bool": "B", "uint8": "B", "int8": "b", "uint16": "H", "int16": "h", "uint32": "I", "int32": "i", "uint64": "Q",
    "int64": "q", "float32": "f", "float64": "d",
}  # fmt: skip


class HostData(NamedTuple):
    """Elements in row-major order as a bytes-like object."""

    memory: Any
    dtype: DType
    shape: tuple[int, ...]


def flatten(value: Any) -> tuple[list[Any], tuple[int, ...]]:
    """The elements of nested lists and tuples, and their shape.

    Raises:
        ShapeError: lists of different lengths on one level.
    """
    level: list[Any] = [value]
    shape: list[int] = []
    while level and isinstance(level[0], (list, tuple)):
        size = len(level[0])
        for item in level:
            if not isinstance(item, (list, tuple)) or len(item) != size:
                found = f"length {len(item)}" if isinstance(item, (list, tuple)) else f"{item!r}"
                raise ShapeError(
                    f"nested lists are ragged: on level {len(shape)} one has length {size}, another {found}"
                )
        shape.append(size)
        level = [element for item in level for element in item]
    for item in level:
        if isinstance(item, (list, tuple)):
            raise ShapeError(f"nested lists are ragged: on level {len(shape)} there are numbers and lists")
    return level, tuple(shape)


def type_of(flat: Sequence[Any]) -> DType:
    """The type of Python numbers together: bool, the default integer (int64 if one does not fit), or default float.

    Raises:
        DTypeError: something that is no number.
    """
    kinds = {item.__class__ for item in flat}
    for kind in kinds - {bool, int, float}:
        if not issubclass(kind, (bool, int, float)):
            raise DTypeError(
                f"cannot make a tensor of {kind.__name__}; use numbers, nested lists of numbers, arrays or bytes "
                "(for a list of tensors: Tensor.stack)"
            )
    if not kinds or any(issubclass(kind, float) for kind in kinds):
        return dtypes.default_float
    if kinds == {bool}:
        return dtypes.bool
    low, high = min(flat), max(flat)
    for dtype in (dtypes.default_int, dtypes.int64, dtypes.uint64):
        if dtype.min <= low and high <= dtype.max:
            return dtype
    raise DTypeError(f"integers from {low} to {high} do not fit any type; make them floats")


def pack(flat: Sequence[Any], dtype: DType) -> Any:
    """Python numbers as memory of this type.

    Raises:
        DTypeError: an integer does not fit.
    """
    if dtype.is_narrow_float:
        if dtype is dtypes.float16:
            return struct.pack(f"<{len(flat)}e", *[as_scalar(v, dtype) for v in flat])
        form = dtype.format
        return array(CODES[f"uint{dtype.bits}"], [form.encode(form.round(v)) for v in flat])
    if dtype.kind == "f":
        return array(CODES[dtype.name], [float(v) for v in flat])
    if dtype.is_bool:
        return bytes([1 if v else 0 for v in flat])
    try:
        return array(CODES[dtype.name], [as_scalar(v, dtype) if isinstance(v, float) else int(v) for v in flat])
    except OverflowError:
        raise DTypeError(f"integers from {min(flat)} to {max(flat)} do not fit {dtype}; choose a wider dtype") from None


def from_python(value: Any, dtype: DType | None) -> HostData:
    """Numbers and nested lists."""
    flat, shape = flatten(value)
    if any(hasattr(item, "uop") for item in flat):
        raise DTypeError("a list of tensors is no data; join them with Tensor.stack or Tensor.cat")
    if any(hasattr(item, "__array__") for item in flat):
        import numpy as np

        try:
            return from_array(np.array(value), dtype)
        except ValueError:
            raise ShapeError("nested lists are ragged: arrays and numbers of different shapes meet") from None
    natural = type_of(flat)
    chosen = natural if dtype is None else dtype
    return HostData(pack(flat, chosen), chosen, shape)


def from_array(value: Any, dtype: DType | None) -> HostData:
    """Anything numpy can read. The memory is the array's own where it is in order already.

    Raises:
        DTypeError: an element type that tensors do not have.
    """
    import numpy as np

    if value.__class__ is np.ndarray and (plain := _PLAIN.get(value.dtype)) is not None and dtype in (None, plain):
        return HostData(np.ascontiguousarray(value).reshape(-1), plain, value.shape)
    masked = sys.modules.get("numpy.ma")  # nobody has masked arrays while it is not loaded
    if masked is not None and isinstance(value, masked.MaskedArray):
        raise DTypeError("a masked array would lose its mask; choose what stands in masked places with .filled(value)")
    try:
        found = np.asarray(value)
    except (TypeError, RuntimeError) as error:  # a sparse or quantized array, or one on another device
        raise DTypeError(f"{type(value).__name__} does not give its values: {error}") from None
    names = {d.name for d in dtypes.all()}
    if found.dtype.name not in names:
        raise DTypeError(
            f"arrays of {found.dtype} cannot become a tensor; convert with astype to one of: "
            + ", ".join(sorted(d.name for d in dtypes.all() if numpy_name(d) == d.name))
        )
    own = dtypes.by_name(found.dtype.name)
    if numpy_name(own) != own.name:  # a type that another package has added to numpy
        found = found.view(numpy_name(own))
    if not found.dtype.isnative:
        found = found.astype(found.dtype.newbyteorder("="))
    if dtype is not None and dtype is not own and all(numpy_name(d) == d.name for d in (own, dtype)):
        found, own = np.asarray(found).astype(dtype.name), dtype
    elif dtype in (None, own) and numpy_name(own) == own.name:
        _PLAIN[np.dtype(own.name)] = own
    shape = found.shape
    return HostData(np.ascontiguousarray(found).reshape(-1), own, tuple(shape))


# Types of numpy whose arrays become tensors as they are, as far as they have been met.
_PLAIN: Final[dict[Any, DType]] = {}


def numpy_name(dtype: DType) -> str:
    """Name of the numpy type that holds the bytes of this type; floats that numpy lacks are held as bit patterns."""
    return f"uint{dtype.bits}" if dtype.is_narrow_float and dtype is not dtypes.float16 else dtype.name


def to_array(memory: memoryview, dtype: DType, count: int) -> Any:
    """The bytes as a flat numpy array, without a copy; floats that numpy lacks as bit patterns."""
    import numpy as np

    return np.frombuffer(memory, dtype=np.dtype(numpy_name(dtype)), count=count)


def readable(array: Any, dtype: DType) -> Any:
    """Values as numpy has them: bit patterns of floats that it lacks become float32."""
    if numpy_name(dtype) == dtype.name:
        return array
    from gradlet.graph import numeric

    return numeric.load(array, dtype)
