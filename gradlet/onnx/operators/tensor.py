"""Tensors made and read by data: constants, casts, ranges, gathering, scattering, selection, random numbers.

Source: the pages of these operators in the ONNX specification, "Operators" of domain ai.onnx.
"""

from __future__ import annotations

from math import ceil, prod
from typing import Any

import numpy as np

from gradlet.base.dtype import DType, dtypes
from gradlet.base.symint import Size
from gradlet.onnx.elements import FLOAT4, FLOAT8_POWER, NARROW_INTS, STRING, dtype_of, element_name, numpy_type
from gradlet.onnx.registry import operator
from gradlet.onnx.runner import Call
from gradlet.onnx.values import Array, Ints, Number, Value
from gradlet.ops.arguments import has_size, largest_sizes
from gradlet.tensor.tensor import Tensor

NAMES = {"FLOAT": 1, "UINT8": 2, "INT8": 3, "UINT16": 4, "INT16": 5, "INT32": 6, "INT64": 7, "BOOL": 9, "FLOAT16": 10,
         "DOUBLE": 11, "UINT32": 12, "UINT64": 13}  # fmt: skip


@operator("Constant")
def constant(
    call: Call, *, value: Value | None = None, sparse_value: Value | None = None, value_float: float | None = None,
    value_floats: list[float] | None = None, value_int: int | None = None, value_ints: list[int] | None = None,
    value_string: str | None = None, value_strings: list[str] | None = None,
) -> Any:  # fmt: skip
    """What an attribute holds."""
    if value is not None or sparse_value is not None:
        return value if value is not None else sparse_value
    if value_float is not None or value_floats is not None:
        return np.array(value_float if value_float is not None else value_floats, np.float32)
    if value_int is not None or value_ints is not None:
        return np.array(value_int if value_int is not None else value_ints, np.int64)
    if value_string is not None or value_strings is not None:
        return np.array(value_string if value_string is not None else value_strings, object)
    raise call.error("it has no value")


@operator("ConstantOfShape")
def constant_of_shape(call: Call, shape: Ints, *, value: Value | None = None) -> Any:
    """One value everywhere."""
    if value is None:
        return Tensor.zeros(*shape, device=call.run.runner.device)
    one = call.tensor(value).reshape((1,) * len(shape))
    # Large ones stand for weights, in files that are to be small: they lie in memory as weights do.
    return Value.of_tensor(one.expand(tuple(shape)).contiguous(), value.elem)


@operator("Range")
def arange(call: Call, start: Array, limit: Array, delta: Array, *, stash_type: int = 1) -> Any:
    """Numbers from `start` to `limit` in steps."""
    if any(v.dtype.kind == "O" for v in (start, limit, delta)):
        return _range_of_sizes(call, *[v.reshape(-1)[0] for v in (start, limit, delta)])
    first, last, step = (float(v.reshape(-1)[0]) for v in (start, limit, delta))
    count = max(0, ceil((last - first) / step))
    if start.dtype.kind == "f":
        return (start.reshape(-1)[0].astype(np.float64) + np.arange(count) * step).astype(start.dtype)
    return (int(start.reshape(-1)[0]) + np.arange(count) * int(step)).astype(start.dtype)


def _range_of_sizes(call: Call, start: Any, limit: Any, step: Any) -> Tensor:
    """A range whose length is known only at launch, with a step of 1."""
    if isinstance(step, Size) or int(step) != 1:
        raise call.error(f"a range to {limit}, which is known only at launch, in steps of {step}")
    count = limit - start
    if (count.low if isinstance(count, Size) else count) < 0:
        raise call.error(f"a range from {start} to {limit} may be empty, and that is known only at launch")
    places = Tensor.positions(count, call.run.runner.device).cast(dtypes.int64)
    return places + start


@operator("EyeLike")
def eye_like(x: Value, *, dtype: int | None = None, k: int = 0) -> Any:
    """1 on a diagonal, else 0, in the shape of the input."""
    return np.eye(int(x.shape[0]), int(x.shape[1]), k).astype(numpy_type(x.elem if dtype is None else dtype))


# casts
@operator("Cast", until=5)
def cast_by_name(call: Call, x: Value, *, to: str) -> Any:
    """Another type, named by text in the first versions."""
    if to not in NAMES:
        raise call.error(f"type {to!r} is not one of {', '.join(NAMES)}")
    return cast_value(call, x, NAMES[to], True)


@operator("Cast", since=6)
def cast(call: Call, x: Value, *, to: int, saturate: int = 1, round_mode: str = "up") -> Any:
    """Another type; floats of 8 bits saturate unless told otherwise."""
    return cast_value(call, x, to, bool(saturate), round_mode)


@operator("CastLike")
def cast_like(call: Call, x: Value, like: Value, *, saturate: int = 1, round_mode: str = "up") -> Any:
    """The type of another input."""
    return cast_value(call, x, like.elem, bool(saturate), round_mode)


def cast_value(call: Call, x: Value, to: int, saturate: bool, round_mode: str = "up") -> Any:
    """A value in another element type."""
    if to == STRING:
        return _as_text(x)
    if x.is_text:
        kind = dtype_of(to, "Cast")
        texts = [str(t) for t in x.array().reshape(-1)]
        numbers = [float(t) if kind.is_float else int(float(t)) for t in texts]
        return np.array(numbers, np.float64 if kind.is_float else np.int64).reshape(x.shape).astype(numpy_type(to))
    return Value.of_tensor(_cast_tensor(call, call.tensor(x), to, saturate, round_mode), to)


def _as_text(x: Value) -> Array:
    array = x.array()
    made = np.empty(array.size, object)
    for i, v in enumerate(array.reshape(-1)):
        made[i] = str(v) if array.dtype.kind != "f" or not np.isnan(v) else "NaN"
        if array.dtype.kind == "f" and np.isinf(v):
            made[i] = "INF" if v > 0 else "-INF"
    return made.reshape(array.shape)


def _cast_tensor(call: Call, x: Tensor, to: int, saturate: bool, round_mode: str = "up") -> Tensor:
    dtype = dtype_of(to, "Cast")
    if to in NARROW_INTS:
        low, high = NARROW_INTS[to]
        # Numbers out of range wrap, as integers do between types of whole bytes.
        span = high - low + 1
        wide = x.cast(dtypes.int64)
        return ((wide - low).mod(span) + low).cast(dtype)
    if to == FLOAT4:
        return round_to_float4(x.cast(dtypes.float32))
    if to == FLOAT8_POWER:
        return _power_of_two(x.cast(dtypes.float32), saturate, round_mode)
    if dtype.is_float8 and x.dtype is not dtype:
        return to_float8(x, dtype, saturate)
    if dtype is dtypes.bool:
        return x != 0
    return x.cast(dtype)


def to_float8(x: Tensor, dtype: DType, saturate: bool) -> Tensor:
    """A float of 8 bits: what is too large becomes the largest with `saturate`, else NaN or infinity."""
    if not saturate:
        return x.cast(dtype)
    most = float(dtype.format.largest)
    wide = x if x.dtype.is_float and not x.dtype.is_float8 else x.cast(dtypes.float32)
    return wide.clamp(-most, most).cast(dtype)


def round_to_float4(x: Tensor) -> Tensor:
    """The nearest of 0, 0.5, 1, 1.5, 2, 3, 4, 6 with its sign; ties go to the even code."""
    size = x.abs()
    step = (size < 2).where(0.5, (size < 4).where(1.0, 2.0))
    near = ((size / step).round() * step).minimum(6.0)
    return x.isnan().where(-0.0, near.copysign(x))


def _power_of_two(x: Tensor, saturate: bool, round_mode: str) -> Tensor:
    """The power of two at, above or nearest to a positive number: its exponent is all that is kept."""
    bits = x.bitcast(dtypes.uint32)
    exponent = bits.rshift(23).bitwise_and(0xFF).cast(dtypes.int32)
    fraction = bits.bitwise_and(0x7FFFFF)
    if round_mode == "up":
        # A subnormal number is above 2**-127 where its fraction is above one half.
        more = ((exponent == 0) & (fraction > 0x400000)) | ((exponent > 0) & (fraction > 0))
    elif round_mode == "nearest":
        more = fraction >= 0x400000
    else:
        more = fraction < 0
    scaled = exponent + more.cast(dtypes.int32)
    top = 254 if saturate else 255
    number = scaled.clamp(0, top)
    # 2**-127 is subnormal in float32: its bits are one half of the smallest normal number's.
    result = (number == 0).where(0x400000, number.lshift(23)).cast(dtypes.uint32).bitcast(dtypes.float32)
    odd = x.isnan() | (x.isinf() if not saturate else x.isnan())
    return (odd | (number == 255)).where(float("nan"), result)


@operator("BitCast")
def bit_cast(call: Call, x: Value, *, to: int) -> Any:
    """The same bits as another type."""
    if dtype_of(to, "BitCast").itemsize != dtype_of(x.elem, "BitCast").itemsize:
        raise call.error(f"{element_name(x.elem)} and {element_name(to)} have different sizes")
    source = call.tensor(x)
    wanted = dtype_of(to, "BitCast")
    if dtypes.bool in (wanted, source.dtype):
        return Value.of_tensor(source.cast(wanted) if source.dtype is dtypes.bool else source != 0, to)
    return Value.of_tensor(source.bitcast(wanted), to)


# gathering
def wrapped(index: Tensor, size: int) -> Tensor:
    """Negative numbers count from the end."""
    wide = index if index.dtype in (dtypes.int32, dtypes.int64) else index.cast(dtypes.int64)
    return (wide < 0).where(wide + size, wide)


@operator("Gather")
def gather(call: Call, x: Value, index: Value, *, axis: int = 0) -> Any:
    """The slices along an axis that the indices name."""
    if x.is_text:
        return np.take(x.array(), index.array(), axis)
    source = call.tensor(x)
    at = axis % source.ndim
    parts: list[Any] = [slice(None)] * source.ndim
    if index.known and index.array().size == 1:
        number: Any = index.array().reshape(-1)[0]
        number = number if isinstance(number, Size) else int(number)
        number += source.shape[at] if number < 0 else 0
        if isinstance(number, Size):  # from the end of an axis whose size is known only at launch
            parts[at] = number
            chosen = source.whole_axes([at])[tuple(parts)]
            return chosen.reshape(*source.shape[:at], *index.shape, *source.shape[at + 1 :])
        if not 0 <= number < source.shape[at]:
            raise call.error(f"index {number} is out of range for axis {at} of size {source.shape[at]}")
        parts[at] = slice(number, number + 1)
        return source[tuple(parts)].reshape(*source.shape[:at], *index.shape, *source.shape[at + 1 :])
    places = wrapped(call.tensor(index), source.shape[at])
    if has_size(places.shape):  # such axes stay apart
        order = [at, *[a for a in range(source.ndim) if a != at]]
        rows = source.permute(order).gather_rows(places)
        front = list(range(places.ndim, places.ndim + at))
        return rows.permute([*front, *range(places.ndim), *range(places.ndim + at, rows.ndim)])
    chosen = source.index_select(at, places.reshape(-1))
    return chosen.reshape(*source.shape[:at], *places.shape, *source.shape[at + 1 :])


@operator("GatherElements")
def gather_elements(x: Tensor, index: Tensor, *, axis: int = 0) -> Tensor:
    """Elements by their places along one axis."""
    at = axis % x.ndim
    return x.gather(at, wrapped(index, x.shape[at]))


def _places(index: Tensor, sizes: tuple[int, ...]) -> Tensor:
    """The number in row-major order that every row of `index` names."""
    total: Tensor | None = None
    for k, size in enumerate(sizes):
        part = wrapped(index[..., k], size) * prod(largest_sizes(sizes[k + 1 :]))
        total = part if total is None else total + part
    assert total is not None
    return total


@operator("GatherND")
def gather_nd(x: Tensor, index: Tensor, *, batch_dims: int = 0) -> Tensor:
    """Slices by several coordinates each."""
    deep = index.shape[-1]
    batch, along, rest = x.shape[:batch_dims], x.shape[batch_dims : batch_dims + deep], x.shape[batch_dims + deep :]
    if not batch_dims and has_size((*along, *index.shape)):
        table = x.whole_axes(range(deep)).reshape(prod(largest_sizes(along)), *rest)
        return table.gather_rows(_places(index, along))
    groups, size = prod(batch), prod(along)
    place = _places(index, along).reshape(groups, -1)
    if groups > 1:
        place = place + (Tensor.arange(groups, dtype=place.dtype, device=x.device) * size).reshape(groups, 1)
    return x.reshape(groups * size, *rest).index_select(0, place.reshape(-1)).reshape(*index.shape[:-1], *rest)


# scattering
REDUCTIONS = {"add": "sum", "mul": "prod", "max": "amax", "min": "amin"}


@operator("Scatter", until=10)
@operator("ScatterElements")
def scatter_elements(x: Tensor, index: Tensor, updates: Tensor, *, axis: int = 0, reduction: str = "none") -> Tensor:
    """Elements replaced, or combined, at their places along one axis."""
    at = axis % x.ndim
    place = wrapped(index, x.shape[at])
    if reduction == "none":
        return x.scatter(at, place, updates)
    return x.scatter_reduce(at, place, updates, REDUCTIONS[reduction]).cast(x.dtype)


@operator("ScatterND")
def scatter_nd(x: Tensor, index: Tensor, updates: Tensor, *, reduction: str = "none") -> Tensor:
    """Slices replaced, or combined, at several coordinates each."""
    deep = index.shape[-1]
    along, rest = x.shape[:deep], x.shape[deep:]
    width = prod(rest)
    rows = x.reshape(prod(along), width)
    place = _places(index, along).reshape(-1, 1)
    new = updates.reshape(place.shape[0], width)
    place = place.expand(place.shape[0], width)
    if reduction == "none":
        changed = rows.scatter(0, place, new)
    else:
        changed = rows.scatter_reduce(0, place, new, REDUCTIONS[reduction]).cast(x.dtype)
    return changed.reshape(x.shape)


@operator("TensorScatter")
def tensor_scatter(
    past: Tensor, update: Tensor, begins: Tensor | None = None, *, axis: int = -2, mode: str = "linear"
) -> Tensor:
    """A cache with new rows written from a place of each batch on, around its end in mode "circular"."""
    at = axis % past.ndim
    size, count = past.shape[at], update.shape[at]
    shape = [1] * past.ndim
    shape[at] = count
    place = Tensor.arange(count, dtype="int64", device=past.device).reshape(shape)
    if begins is not None:
        place = place + begins.reshape(-1, *(1,) * (past.ndim - 1))
    if mode == "circular":
        place = place.mod(size)
    return past.scatter(at, place.expand(update.shape), update)


# selection
@operator("NonZero")
def nonzero(call: Call, x: Value) -> Any:
    """The coordinates of elements that are not 0, an axis a row."""
    if x.ndim == 0:
        return np.zeros((0, int(bool(x.array()))), np.int64)
    if not x.on_host:
        call.look(call.tensor(x))
    return call.tensor(x).nonzero().transpose().cast(dtypes.int64)


@operator("Compress")
def compress(call: Call, x: Tensor, condition: Array, *, axis: int | None = None) -> Tensor:
    """The slices (or elements) for which a condition holds."""
    places = np.nonzero(condition.reshape(-1))[0].astype(np.int32)
    source, at = (x.flatten(), 0) if axis is None else (x, axis % x.ndim)
    return source.index_select(at, call.constant(places))


@operator("Unique")
def unique(call: Call, x: Array, *, axis: int | None = None, sorted: int = 1) -> tuple[Any, ...]:
    """Elements or slices without repetitions, where each is first, which one each was, and how often it is there."""
    values, first, inverse, counts = np.unique(x, True, True, True, axis=axis)
    inverse = inverse.reshape(-1)
    if not sorted:
        order = np.argsort(first, kind="stable")
        back = np.empty_like(order)
        back[order] = np.arange(len(order))
        values = np.take(values, order, 0 if axis is None else axis)
        first, inverse, counts = first[order], back[inverse], counts[order]
    return values, *(a.astype(np.int64) for a in (first, inverse, counts))


@operator("OneHot")
def one_hot(call: Call, indices: Tensor, depth: Number, values: Tensor, *, axis: int = -1) -> Tensor:
    """`values[1]` at the index along a new axis, else `values[0]`; negative indices count from the end."""
    count = int(depth)
    at = axis % (indices.ndim + 1)
    shape = [1] * (indices.ndim + 1)
    shape[at] = count
    wide = indices if indices.dtype.is_int else indices.cast(dtypes.int64)
    place = wrapped(wide.cast(dtypes.int64), count).unsqueeze(at)
    hot = Tensor.arange(count, dtype="int64", device=indices.device).reshape(shape) == place
    return hot.where(values[1:2].reshape(()), values[0:1].reshape(()))


@operator("ArrayFeatureExtractor", "ai.onnx.ml")
def array_feature_extractor(call: Call, x: Tensor, index: Ints) -> Tensor:
    """Columns of the last axis."""
    chosen = x.index_select(x.ndim - 1, call.constant(np.array(index, np.int32)))
    return chosen.reshape(1, -1) if x.ndim == 1 else chosen


# random numbers: gradlet's own generator, whatever the seed in the file
def _random(call: Call, shape: Any, dtype: int, make: Any) -> Tensor:
    made: Tensor = make(*[int(s) for s in shape], dtype=dtypes.float32, device=call.run.runner.device)
    return made.cast(dtype_of(dtype, call.node.op))


@operator("RandomUniform")
def random_uniform(
    call: Call, *, shape: list[int], dtype: int = 1, low: float = 0.0, high: float = 1.0, seed: float | None = None
) -> Tensor:
    """Numbers evenly between two limits."""
    return _random(call, shape, dtype, Tensor.rand) * (high - low) + low


@operator("RandomUniformLike")
def random_uniform_like(
    call: Call, x: Value, *, dtype: int | None = None, low: float = 0.0, high: float = 1.0, seed: float | None = None
) -> Tensor:
    """Numbers evenly between two limits, in the shape of the input."""
    return _random(call, x.shape, dtype or x.elem, Tensor.rand) * (high - low) + low


@operator("RandomNormal")
def random_normal(
    call: Call, *, shape: list[int], dtype: int = 1, mean: float = 0.0, scale: float = 1.0, seed: float | None = None
) -> Tensor:
    """Normally distributed numbers."""
    return _random(call, shape, dtype, Tensor.randn) * scale + mean


@operator("RandomNormalLike")
def random_normal_like(
    call: Call, x: Value, *, dtype: int | None = None, mean: float = 0.0, scale: float = 1.0, seed: float | None = None
) -> Tensor:
    """Normally distributed numbers, in the shape of the input."""
    return _random(call, x.shape, dtype or x.elem, Tensor.randn) * scale + mean


@operator("Bernoulli")
def bernoulli(x: Tensor, *, dtype: int | None = None, seed: float | None = None) -> Tensor:
    """1 with the probability that the input says, else 0."""
    drawn = Tensor.rand(*x.shape, device=x.device) < x
    return drawn.cast(x.dtype if dtype is None else dtype_of(dtype, "Bernoulli"))


@operator("Multinomial")
def multinomial(x: Tensor, *, dtype: int = 6, sample_size: int = 1, seed: float | None = None) -> Tensor:
    """Classes drawn by their log-probabilities."""
    return x.softmax(-1).multinomial(sample_size, True).cast(dtype_of(dtype, "Multinomial"))


@operator("Dropout", until=11)
def dropout_inference(
    call: Call, x: Tensor, *, ratio: float = 0.5, is_test: int = 1, seed: int | None = None
) -> tuple[Tensor, Tensor]:
    """The input itself: dropping belongs to training."""
    return x, x.full_like(True, dtype="bool" if call.version >= 10 else x.dtype)


@operator("Dropout", since=12)
def dropout(
    x: Tensor, ratio: Number = 0.5, training_mode: Number = False, *, seed: int | None = None
) -> tuple[Tensor, Tensor]:
    """In training elements are dropped at random and the others scaled up; else the input itself."""
    share = 0.5 if ratio is None else float(ratio)
    if not training_mode or share == 0.0:
        return x, x.full_like(True, dtype="bool")
    mask = Tensor.rand(*x.shape, device=x.device) >= share
    return (mask.where(x, 0.0) * (1 / (1 - share))).cast(x.dtype), mask
