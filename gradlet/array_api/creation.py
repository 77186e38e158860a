"""Creating arrays."""

from __future__ import annotations

from typing import Any

from gradlet.array_api.arguments import array, as_dtype, chosen, whole_shape
from gradlet.array_api.manipulation import broadcast_to
from gradlet.base.dtype import dtypes, promote
from gradlet.base.errors import ArgumentError, DTypeError, ShapeError
from gradlet.tensor.exchange import from_dlpack as from_dlpack
from gradlet.tensor.tensor import Tensor


def arange(
    start: float, /, stop: float | None = None, step: float = 1, *, dtype: Any = None, device: str | None = None
) -> Tensor:
    """Evenly spaced values from `start` up to, not including, `stop`."""
    begin, end = (0, start) if stop is None else (start, stop)
    if dtype is None:
        dtype = dtypes.default_float if any(isinstance(v, float) for v in (begin, end, step)) else dtypes.default_int
    return Tensor.arange(begin, end, step, dtype=dtype, device=device)


def asarray(obj: Any, /, *, dtype: Any = None, device: str | None = None, copy: bool | None = None) -> Tensor:
    """Numbers, nested sequences of numbers or arrays, a buffer, or another library's array as an array.

    Args:
        obj: the data.
        dtype: type of the elements; follows from the data when None.
        device: where it shall be.
        copy: True always copies, False never, None only where needed.

    Raises:
        ArgumentError: a copy is needed and `copy` is False.
        DTypeError: no data, complex numbers.
    """
    wanted = None if dtype is None else as_dtype(dtype)
    if isinstance(obj, complex):
        raise DTypeError("asarray: there are no complex numbers here; use arrays for real and imaginary parts")
    if isinstance(obj, Tensor):
        result = obj if wanted is None else obj.cast(wanted)
        result = result if device is None else result.to(device)
        if result is obj:
            return result.clone() if copy else result
        if copy is False:
            raise ArgumentError("asarray: another type or device needs a copy, which copy=False forbids")
        return result
    if copy is False and isinstance(obj, (bool, int, float, list, tuple)):
        raise ArgumentError(f"asarray: {type(obj).__name__} data needs a copy, which copy=False forbids")
    if isinstance(obj, (list, tuple)) and _holds_arrays(obj):
        result = _stacked(obj)
        result = result if wanted is None else result.cast(wanted)
        return result if device is None else result.to(device)
    result = Tensor(obj, device=device, copy=copy is not False)
    if wanted is None or wanted is result.dtype:
        return result
    if copy is False:
        raise ArgumentError(f"asarray: {result.dtype} as {wanted} needs a copy, which copy=False forbids")
    return Tensor(obj, device=device, dtype=wanted)


def _holds_arrays(value: Any) -> bool:
    return any(isinstance(v, Tensor) or (isinstance(v, (list, tuple)) and _holds_arrays(v)) for v in value)


def _stacked(value: Any) -> Tensor:
    """Nested sequences in which arrays stand for rows or numbers."""
    parts = [_stacked(v) if isinstance(v, (list, tuple)) else v if isinstance(v, Tensor) else Tensor(v) for v in value]
    dtype = parts[0].dtype
    for part in parts[1:]:
        if part.shape != parts[0].shape:
            raise ShapeError(f"asarray: rows of shapes {parts[0].shape} and {part.shape} make no array")
        dtype = promote(dtype, part.dtype)
    first, *rest = [part.cast(dtype) for part in parts]
    return first.stack(*rest)


def empty(shape: Any, *, dtype: Any = None, device: str | None = None) -> Tensor:
    """An array whose values are not set."""
    return Tensor.empty(*whole_shape(shape), dtype=chosen(dtype, dtypes.default_float), device=device)


def empty_like(x: Tensor, /, *, dtype: Any = None, device: str | None = None) -> Tensor:
    """An array like `x` whose values are not set."""
    return empty(array(x, "empty_like").shape, dtype=chosen(dtype, x.dtype), device=device or x.device)


def eye(
    n_rows: int, n_cols: int | None = None, /, *, k: int = 0, dtype: Any = None, device: str | None = None
) -> Tensor:
    """Ones on the diagonal `k`, which starts at column k, and zeros elsewhere."""
    columns = n_rows if n_cols is None else n_cols
    kind = chosen(dtype, dtypes.default_float)
    if n_rows == 0 or columns == 0:
        return zeros((n_rows, columns), dtype=kind, device=device)
    rows = Tensor.arange(n_rows, dtype=dtypes.int64, device=device).reshape(n_rows, 1)
    return rows.add(k).eq(Tensor.arange(columns, dtype=dtypes.int64, device=device)).cast(kind)


def full(shape: Any, fill_value: Any, *, dtype: Any = None, device: str | None = None) -> Tensor:
    """The same value (a number, or an array without axes) everywhere; its type follows from it if none is given."""
    if isinstance(fill_value, complex):
        raise DTypeError("full: there are no complex numbers here; use arrays for real and imaginary parts")
    if isinstance(fill_value, Tensor):
        value = fill_value.cast(chosen(dtype, fill_value.dtype))
        return broadcast_to(value if device is None else value.to(device), shape).contiguous()
    return Tensor.full(whole_shape(shape), fill_value, dtype=chosen(dtype, dtypes.of(fill_value)), device=device)


def full_like(x: Tensor, /, fill_value: Any, *, dtype: Any = None, device: str | None = None) -> Tensor:
    """The same value everywhere, in an array like `x`."""
    return full(array(x, "full_like").shape, fill_value, dtype=chosen(dtype, x.dtype), device=device or x.device)


def linspace(
    start: float, stop: float, /, num: int, *, dtype: Any = None, device: str | None = None, endpoint: bool = True
) -> Tensor:
    """`num` evenly spaced values from `start` to `stop`, which is the last one only with `endpoint`."""
    kind = chosen(dtype, dtypes.default_float)
    if not endpoint and num > 0:
        stop = start + (stop - start) * (num - 1) / num
    return Tensor.linspace(start, stop, num, dtype=kind, device=device)


def meshgrid(*arrays: Tensor, indexing: str = "xy") -> list[Tensor]:
    """Coordinates on a grid from one axis each; xy swaps the first two axes of the result.

    Raises:
        ArgumentError: another indexing.
    """
    if indexing not in ("xy", "ij"):
        raise ArgumentError(f"meshgrid: indexing {indexing!r} must be 'xy' or 'ij'")
    if not arrays:
        return []
    first, *rest = [array(x, "meshgrid", "every argument") for x in arrays]
    if not rest:
        return [first.reshape(-1)]
    return list(first.meshgrid(*rest, indexing=indexing))


def ones(shape: Any, *, dtype: Any = None, device: str | None = None) -> Tensor:
    """Ones everywhere."""
    return Tensor.full(whole_shape(shape), 1, dtype=chosen(dtype, dtypes.default_float), device=device)


def ones_like(x: Tensor, /, *, dtype: Any = None, device: str | None = None) -> Tensor:
    """Ones in an array like `x`."""
    return full_like(array(x, "ones_like"), 1, dtype=dtype, device=device)


def tril(x: Tensor, /, *, k: int = 0) -> Tensor:
    """The lower triangles of matrices, up to diagonal `k`; zeros elsewhere."""
    return array(x, "tril").tril(k)


def triu(x: Tensor, /, *, k: int = 0) -> Tensor:
    """The upper triangles of matrices, from diagonal `k` on; zeros elsewhere."""
    return array(x, "triu").triu(k)


def zeros(shape: Any, *, dtype: Any = None, device: str | None = None) -> Tensor:
    """Zeros everywhere."""
    return Tensor.full(whole_shape(shape), 0, dtype=chosen(dtype, dtypes.default_float), device=device)


def zeros_like(x: Tensor, /, *, dtype: Any = None, device: str | None = None) -> Tensor:
    """Zeros in an array like `x`."""
    return full_like(array(x, "zeros_like"), 0, dtype=dtype, device=device)
