"""Exact element-wise arithmetic on numpy arrays: the numbers behind all three reference evaluators.

A float that numpy lacks (bfloat16 and the 8-bit ones) is carried as float32 that is rounded after every op; in memory
it is an unsigned integer, its bit pattern. `index` is carried as int64. Functions of floats narrower than float64 are
computed in float64 and rounded once.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import cache
from typing import Any, Final

import numpy as np

from gradlet.base.dtype import DType, accumulator, dtypes
from gradlet.base.floatformat import FORMATS, FloatFormat
from gradlet.ops.op import Op, adds_in_order, identity_element

Array = np.ndarray[Any, np.dtype[Any]]

# Floats that numpy has no type for, and the types that hold their bits.
PATTERNS: Final[dict[str, np.dtype[Any]]] = {
    "bfloat16": np.dtype(np.uint16),
    **{d.name: np.dtype(np.uint8) for d in dtypes.all() if d.is_float8},
}
_CARRIED: Final[dict[str, np.dtype[Any]]] = {
    **{d.name: np.dtype(np.float32 if d.name in PATTERNS else d.name) for d in dtypes.all()},
    "index": np.dtype(np.int64),
}


def carried_type(dtype: DType) -> np.dtype[Any]:
    """The numpy type that values of `dtype` are computed in."""
    return _CARRIED[dtype.name]


def storage_type(dtype: DType) -> np.dtype[Any]:
    """The numpy type of a buffer of `dtype`."""
    return PATTERNS.get(dtype.name) or _CARRIED[dtype.name]


def load(array: Array, dtype: DType) -> Array:
    """Buffer contents as carried values."""
    pattern = PATTERNS.get(dtype.name)
    if pattern is None or array.dtype.itemsize != pattern.itemsize:
        return array.astype(carried_type(dtype), copy=False)
    if dtype.scalar is dtypes.bfloat16:
        bits = array.view(np.uint16).astype(np.uint32)
        bits <<= np.uint32(16)
        return bits.view(np.float32)
    return np.asarray(_values_of_codes(dtype.name)[array.view(np.uint8)])


@cache
def _values_of_codes(name: str) -> Array:
    """The value of each code of an 8-bit float. NaNs differ in their bits, so that `store` finds the code again."""
    form = FORMATS[name]
    values = np.array([form.decode(code) for code in range(256)], np.float32)
    bits = values.view(np.uint32)
    for code in range(256):
        if np.isnan(values[code]):
            fraction = code & ((1 << form.fraction) - 1) if form.special == "ieee" else 1 << (form.fraction - 1)
            bits[code] = (code & 0x80) << 24 | 0x7F800000 | fraction << (23 - form.fraction)
    return values


def store(array: Array, dtype: DType) -> Array:
    """Carried values as buffer contents."""
    if dtype.name not in PATTERNS:
        return array.astype(storage_type(dtype), copy=False)
    single = np.ascontiguousarray(array, np.float32)
    if dtype.scalar is dtypes.bfloat16:
        return (single.view(np.uint32) >> np.uint32(16)).astype(np.uint16)
    return _codes_of_values(single, FORMATS[dtype.name]).reshape(array.shape)


def _codes_of_values(single: Array, form: FloatFormat) -> Array:
    """The codes of float32 values that an 8-bit float holds."""
    bits = single.view(np.uint32)
    sign = (bits >> np.uint32(24)) & np.uint32(0x80)
    magnitude = bits & np.uint32(0x7FFFFFFF)
    shifted = magnitude >> np.uint32(23 - form.fraction)
    with np.errstate(all="ignore"):
        steps = (np.abs(single) * np.float32(1 / form.smallest)).astype(np.uint32)
    code = np.where(
        np.abs(single) < form.smallest_normal, steps, shifted - np.uint32((127 - form.bias) << form.fraction)
    )
    code = np.where(np.isinf(single), np.uint32(form.infinity), code)
    nan = np.full(single.shape, form.nan, np.uint32)
    if form.special == "ieee":
        fraction = shifted & np.uint32((1 << form.fraction) - 1)
        nan = np.where(fraction == 0, nan, np.uint32(form.infinity) | fraction)
    if form.special == "fnuz":
        sign = np.where((magnitude == 0) | np.isnan(single), np.uint32(0), sign)
    return np.asarray(np.where(np.isnan(single), nan, code) | sign).astype(np.uint8)


def constant(value: Any, dtype: DType) -> Array:
    """A zero-dimensional array with the scalar."""
    return np.array(value, carried_type(dtype))


def round_to_bfloat16(array: Array) -> Array:
    """float32 values rounded to nearest even bfloat16, still as float32."""
    array = np.ascontiguousarray(array, np.float32)
    bits = array.view(np.uint32)
    rounded = (bits + (np.uint32(0x7FFF) + ((bits >> np.uint32(16)) & np.uint32(1)))) & np.uint32(0xFFFF0000)
    # A NaN may have all its set bits in the half that is cut off.
    quiet = (bits | np.uint32(0x400000)) & np.uint32(0xFFFF0000)
    return np.where(np.isnan(array), quiet, rounded).view(np.float32)


def round_to(array: Array, dtype: DType) -> Array:
    """Values of any type rounded once to a float that numpy lacks, as float32."""
    if dtype.scalar is dtypes.bfloat16 and (array.dtype == np.float32 or array.dtype.itemsize < 4):
        return round_to_bfloat16(array.astype(np.float32, copy=False))
    form = FORMATS[dtype.name]
    wide = _sticky(array) if array.dtype.kind in "iu" and array.dtype.itemsize == 8 else array.astype(np.float64)
    exponent = np.frexp(np.where(np.isfinite(wide), wide, 0.0))[1]
    unit = np.maximum(exponent - form.digits, 1 - form.bias - form.fraction)
    with np.errstate(all="ignore"):
        rounded = np.ldexp(np.rint(np.ldexp(wide, -unit)), unit)
        too_large = np.copysign(form.overflow, wide)
        rounded = np.where(np.abs(rounded) > form.largest, too_large, rounded)
    if form.special == "fnuz":
        rounded = np.where(rounded == 0, 0.0, rounded)
    return np.asarray(rounded, np.float32)


def _sticky(array: Array) -> Array:
    """64-bit integers as float64 that rounds to narrower floats as they do: what is cut off leaves one bit set."""
    exact = np.abs(array.astype(np.float64)) < 2.0**53
    low = array & array.dtype.type(0x7FF)
    odd = (array - low) | np.where(low != 0, array.dtype.type(0x800), array.dtype.type(0))
    return np.where(exact, array, odd).astype(np.float64)


def cast(array: Array, source: DType, dtype: DType) -> Array:
    """Convert values: floats to integers truncate and saturate with NaN giving 0, integers wrap."""
    if dtype.kind == "b":
        return np.asarray(array != 0)
    if dtype.name in PATTERNS:
        return round_to(array, dtype)
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
        return round_to(wide, dtype) if dtype.name in PATTERNS else np.asarray(wide.astype(carried_type(dtype)))
    result = np.asarray(_FUNCTIONS[op](*operands))
    if dtype.name in PATTERNS and op in _ROUNDED:
        return round_to(result, dtype)
    return result


def reduce(op: Op, dtype: DType, array: Array, axes: tuple[int, ...]) -> Array:
    """Combine over `axes`, which the result lacks; sums of narrow floats are carried in float32 and rounded once."""
    return finish(partial(op, dtype, array, axes, False), dtype)


def partial(op: Op, dtype: DType, array: Array, axes: tuple[int, ...], keepdims: bool) -> Array:
    """Combine over `axes` without the final rounding: a part of a reduction, to be joined by `combine`."""
    wide = carried_type(accumulator(dtype.scalar))
    initial = np.array(identity_element(op, dtype), wide)
    ufunc = _reducer(op, dtype)
    if adds_in_order(op, dtype):
        return _one_by_one(ufunc, array.astype(wide, copy=False), initial, axes, keepdims)
    return np.asarray(ufunc.reduce(array, axis=axes, dtype=wide, keepdims=keepdims, initial=initial))


def following(op: Op, dtype: DType, total: Array, array: Array, axes: tuple[int, ...]) -> Array:
    """`partial` of an array whose elements come after those that `total` holds; `axes` stay, with size 1."""
    if adds_in_order(op, dtype):
        return _one_by_one(_reducer(op, dtype), array.astype(total.dtype, copy=False), total, axes, True)
    return combine(op, dtype, total, partial(op, dtype, array, axes, True))


def _one_by_one(ufunc: np.ufunc, array: Array, start: Array, axes: tuple[int, ...], keepdims: bool) -> Array:
    axes = tuple(sorted(axis % array.ndim for axis in axes))
    rest = [axis for axis in range(array.ndim) if axis not in axes]
    kept = [array.shape[axis] for axis in rest]
    rows = array.transpose(*rest, *axes).reshape(*kept, math.prod(array.shape[axis] for axis in axes))
    begin = start.transpose(*rest, *axes).reshape(*kept, 1) if start.ndim else np.broadcast_to(start, (*kept, 1))
    result = ufunc.accumulate(np.concatenate([begin, rows], axis=-1), axis=-1)[..., -1]
    return result.reshape([1 if axis in axes else n for axis, n in enumerate(array.shape)]) if keepdims else result


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
    # Nothing is left of the bits when the amount is negative or not below the width.
    return np.where((y >= 0) & (y < x.dtype.itemsize * 8), np.left_shift(x, y), np.zeros((), x.dtype))


def _shift_right(x: Array, y: Array) -> Array:
    # Only the sign is left, which is what the largest shift leaves of a signed integer.
    last = x.dtype.type(x.dtype.itemsize * 8 - 1)
    outside = (y < 0) | (y > last)
    shifted = np.right_shift(x, np.where(outside, last, y))
    return shifted if x.dtype.kind == "i" else np.where(outside, np.zeros((), x.dtype), shifted)


def _power(x: Array, y: Array) -> Array:
    # A scalar exponent would take numpy's short cuts (a square root for 0.5), which differ for -0.0 and -inf.
    shape = np.broadcast_shapes(x.shape, y.shape)
    return np.asarray(np.power(x, np.array(np.broadcast_to(y, shape or (1,))))).reshape(shape)


def _dot(a: Array, b: Array, start: Array) -> Array:
    total = start
    for place in range(0, 32, 8):
        signed = np.right_shift(np.left_shift(b, b.dtype.type(24 - place)), b.dtype.type(24))
        total = total + (np.right_shift(a, a.dtype.type(place)) & a.dtype.type(255)) * signed
    return total


def _dot16(a: Array, b: Array, start: Array) -> Array:
    half = a.dtype.type(16)
    low = np.right_shift(np.left_shift(a, half), half) * np.right_shift(np.left_shift(b, half), half)
    total: Array = start + low + np.right_shift(a, half) * np.right_shift(b, half)
    return total


_REDUCERS: Final[dict[Op, np.ufunc]] = {
    Op.ADD: np.add, Op.MUL: np.multiply, Op.MAX: np.maximum, Op.MIN: np.minimum,
    Op.AND: np.bitwise_and, Op.OR: np.bitwise_or, Op.XOR: np.bitwise_xor,
}  # fmt: skip


def prefix(op: Op, dtype: DType, value: Array, axis: int, exclusive: bool) -> Array:
    """Elements along an axis combined with all before; exclusive: without their own, the first one neutral."""
    result: Array = _REDUCERS[op].accumulate(value, axis, value.dtype)
    if exclusive:
        first = np.full_like(np.take(value, [0], axis), identity_element(op, dtype))
        kept = np.take(result, range(value.shape[axis] - 1), axis)
        result = np.concatenate([first, kept], axis)
    return result


_FUNCTIONS: Final[dict[Op, Callable[..., Any]]] = {
    Op.SQRT: np.sqrt, Op.EXP: np.exp, Op.EXP2: np.exp2, Op.LOG: np.log, Op.LOG2: np.log2, Op.SIN: np.sin,
    Op.COS: np.cos, Op.TRUNC: np.trunc, Op.ADD: np.add, Op.MUL: np.multiply, Op.FDIV: np.true_divide,
    Op.IDIV: np.floor_divide, Op.MOD: np.remainder, Op.MAX: np.maximum, Op.MIN: np.minimum, Op.POW: _power,
    Op.AND: np.bitwise_and,
    Op.OR: np.bitwise_or, Op.XOR: np.bitwise_xor, Op.SHL: _shift_left, Op.SHR: _shift_right, Op.CMPLT: np.less,
    Op.CMPEQ: np.equal, Op.CMPNE: np.not_equal, Op.WHERE: np.where, Op.MULADD: lambda x, y, z: x * y + z,
    Op.DOT: _dot, Op.DOT16: _dot16,
}  # fmt: skip

# Computed in float64 for narrower floats: numpy's float32 versions are not correctly rounded.
_WIDE: Final = frozenset({Op.EXP, Op.EXP2, Op.LOG, Op.LOG2, Op.SIN, Op.COS, Op.POW, Op.MULADD})
# Ops whose float32 result may be no value of a narrower float.
_ROUNDED: Final = frozenset({Op.SQRT, Op.ADD, Op.MUL, Op.FDIV, Op.TRUNC})
