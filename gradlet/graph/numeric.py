"""Exact element-wise arithmetic on numpy arrays: the numbers behind all three reference evaluators.

A value of type bfloat16 is carried as float32 that is rounded after every op; in memory it is a uint16 bit pattern.
`index` is carried as int64. Functions of 16- and 32-bit floats are computed in float64 and rounded once.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final

import numpy as np

from gradlet.base.dtype import DType, accumulator, dtypes
from gradlet.ops.op import Op, identity_element

Array = np.ndarray[Any, np.dtype[Any]]

_CARRIED: Final[dict[str, np.dtype[Any]]] = {
    **{d.name: np.dtype(d.name) for d in dtypes.all() if d is not dtypes.bfloat16},
    "bfloat16": np.dtype(np.float32),
    "index": np.dtype(np.int64),
}


def carried_type(dtype: DType) -> np.dtype[Any]:
    """The numpy type that values of `dtype` are computed in."""
    return _CARRIED[dtype.name]


def storage_type(dtype: DType) -> np.dtype[Any]:
    """The numpy type of a buffer of `dtype`."""
    return np.dtype(np.uint16) if dtype.scalar is dtypes.bfloat16 else _CARRIED[dtype.name]


def load(array: Array, dtype: DType) -> Array:
    """Buffer contents as carried values."""
    if dtype.scalar is dtypes.bfloat16 and array.dtype.itemsize == 2:
        bits = array.view(np.uint16).astype(np.uint32)
        bits <<= np.uint32(16)
        return bits.view(np.float32)
    return array.astype(carried_type(dtype), copy=False)


def store(array: Array, dtype: DType) -> Array:
    """Carried values as buffer contents."""
    if dtype.scalar is dtypes.bfloat16:
        return (np.ascontiguousarray(array, np.float32).view(np.uint32) >> np.uint32(16)).astype(np.uint16)
    return array.astype(storage_type(dtype), copy=False)


def constant(value: Any, dtype: DType) -> Array:
    """A zero-dimensional array with the scalar."""
    return np.array(value, carried_type(dtype))


def round_to_bfloat16(array: Array) -> Array:
    """float32 values rounded to nearest even bfloat16, still as float32."""
    array = np.ascontiguousarray(array, np.float32)
    bits = array.view(np.uint32)
    rounded = (bits + (np.uint32(0x7FFF) + ((bits >> np.uint32(16)) & np.uint32(1)))) & np.uint32(0xFFFF0000)
    return np.where(np.isnan(array), array, rounded.view(np.float32))


def cast(array: Array, source: DType, dtype: DType) -> Array:
    """Convert values: floats to integers truncate and saturate with NaN giving 0, integers wrap."""
    if dtype.kind == "b":
        return np.asarray(array != 0)
    if dtype.scalar is dtypes.bfloat16:
        return round_to_bfloat16(array.astype(np.float32, copy=False))
    target = carried_type(dtype)
    if source.kind != "f" or dtype.kind == "f":
        return array.astype(target, copy=False)
    wide = np.trunc(array.astype(np.float64, copy=False))
    low, high = np.iinfo(target).min, np.iinfo(target).max
    inside = (wide > float(low)) & (wide < float(high))
    result = np.where(inside, wide, 0.0).astype(target)
    result = np.where(wide >= float(high), np.array(high, target), result)
    return np.where(wide <= float(low), np.array(low, target), result)


def bitcast(array: Array, source: DType, dtype: DType) -> Array:
    """The same bits read as another type of the same size."""
    bits = np.ascontiguousarray(store(array, source)).reshape(array.shape)
    if dtype.kind == "b":
        return np.asarray(bits.view(np.uint8) != 0)
    return load(bits.view(storage_type(dtype)), dtype)


def apply(op: Op, dtype: DType, operands: Sequence[Array], source: DType) -> Array:
    """One element-wise op with result type `dtype` over carried operands; `source` is the first operand's type."""
    if op is Op.CAST:
        return cast(operands[0], source, dtype)
    if op is Op.BITCAST:
        return bitcast(operands[0], source, dtype)
    narrow_float = dtype.kind == "f" and dtype.scalar is not dtypes.float64
    if narrow_float and op in _WIDE:
        wide = _FUNCTIONS[op](*[x.astype(np.float64) for x in operands])
        if dtype.scalar is dtypes.bfloat16:
            return round_to_bfloat16(wide.astype(np.float32))
        return np.asarray(wide.astype(carried_type(dtype)))
    result = np.asarray(_FUNCTIONS[op](*operands))
    if dtype.scalar is dtypes.bfloat16 and op in _ROUNDED:
        return round_to_bfloat16(result)
    return result


def reduce(op: Op, dtype: DType, array: Array, axes: tuple[int, ...]) -> Array:
    """Combine over `axes`, which the result lacks; sums of 16-bit floats are carried in float32 and rounded once."""
    return finish(partial(op, dtype, array, axes, False), dtype)


def partial(op: Op, dtype: DType, array: Array, axes: tuple[int, ...], keepdims: bool) -> Array:
    """Combine over `axes` without the final rounding: a part of a reduction, to be joined by `combine`."""
    wide = carried_type(accumulator(dtype.scalar))
    initial = np.array(identity_element(op, dtype), wide)
    ufunc = _reducer(op, dtype)
    return np.asarray(ufunc.reduce(array, axis=axes, dtype=wide, keepdims=keepdims, initial=initial))


def combine(op: Op, dtype: DType, first: Array, second: Array) -> Array:
    """Join two parts of a reduction."""
    return np.asarray(_reducer(op, dtype)(first, second))


def finish(array: Array, dtype: DType) -> Array:
    """Round a whole reduction to its type."""
    return cast(array, accumulator(dtype.scalar), dtype)


def _reducer(op: Op, dtype: DType) -> np.ufunc:
    # A sum of bools is "any", as adding bools saturates.
    return _REDUCERS[Op.OR if op is Op.ADD and dtype.kind == "b" else op]


def _shift_left(x: Array, y: Array) -> Array:
    return np.where((y >= 0) & (y < x.dtype.itemsize * 8), np.left_shift(x, y), np.zeros((), x.dtype))


def _shift_right(x: Array, y: Array) -> Array:
    return np.where((y >= 0) & (y < x.dtype.itemsize * 8), np.right_shift(x, y), np.zeros((), x.dtype))


def _power(x: Array, y: Array) -> Array:
    # A scalar exponent would take numpy's short cuts (a square root for 0.5), which differ for -0.0 and -inf.
    shape = np.broadcast_shapes(x.shape, y.shape)
    return np.asarray(np.power(x, np.array(np.broadcast_to(y, shape or (1,))))).reshape(shape)


_REDUCERS: Final[dict[Op, np.ufunc]] = {
    Op.ADD: np.add, Op.MUL: np.multiply, Op.MAX: np.maximum, Op.MIN: np.minimum,
    Op.AND: np.bitwise_and, Op.OR: np.bitwise_or, Op.XOR: np.bitwise_xor,
}  # fmt: skip

_FUNCTIONS: Final[dict[Op, Callable[..., Any]]] = {
    Op.SQRT: np.sqrt, Op.EXP: np.exp, Op.EXP2: np.exp2, Op.LOG: np.log, Op.LOG2: np.log2, Op.SIN: np.sin, Op.COS: np.cos,
    Op.TRUNC: np.trunc, Op.ADD: np.add, Op.MUL: np.multiply, Op.FDIV: np.true_divide, Op.IDIV: np.floor_divide,
    Op.MOD: np.remainder, Op.MAX: np.maximum, Op.MIN: np.minimum, Op.POW: _power, Op.AND: np.bitwise_and,
    Op.OR: np.bitwise_or, Op.XOR: np.bitwise_xor, Op.SHL: _shift_left, Op.SHR: _shift_right, Op.CMPLT: np.less,
    Op.CMPEQ: np.equal, Op.CMPNE: np.not_equal, Op.WHERE: np.where, Op.MULADD: lambda x, y, z: x * y + z,
}  # fmt: skip

# Computed in float64 for narrower floats: numpy's float32 versions are not correctly rounded.
_WIDE: Final = frozenset({Op.EXP, Op.EXP2, Op.LOG, Op.LOG2, Op.SIN, Op.COS, Op.POW, Op.MULADD})
# Ops whose float32 result may be no value of a narrower float.
_ROUNDED: Final = frozenset({Op.SQRT, Op.ADD, Op.MUL, Op.FDIV, Op.TRUNC})
