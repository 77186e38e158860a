"""Movement: shapes, joining, cutting, padding and repeating. No operator here computes with elements.

Source: the pages of these operators in the ONNX specification, "Operators" of domain ai.onnx.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any

import numpy as np

from gradlet.base.errors import SizeLimitError
from gradlet.base.symint import Size
from gradlet.onnx.host import slice_of
from gradlet.onnx.registry import operator
from gradlet.onnx.runner import Call
from gradlet.onnx.values import EMPTY, Array, Ints, Number, Value
from gradlet.ops.arguments import broadcast_shapes, has_size, largest_sizes
from gradlet.tensor.tensor import Tensor


def numbers(sizes: Sequence[Any]) -> Array:
    """Sizes as an array of integers; those that are known only at launch stay what they are."""
    if has_size(sizes):
        found = np.empty(len(sizes), object)
        found[:] = list(sizes)
        return found
    return np.array([int(s) for s in sizes], np.int64)


@operator("Identity")
def identity(x: Value) -> Any:
    """The input itself."""
    return x


@operator("Shape")
def shape(call: Call, x: Value, *, start: int = 0, end: int | None = None) -> Array:
    """The sizes of the axes from `start` to `end`."""
    return numbers(x.shape)[start:end]


@operator("Size")
def size(x: Value) -> Array:
    """The number of elements."""
    return numbers([prod(x.shape)]).reshape(())


def _moved(call: Call, x: Value, function: Any, *arguments: Any) -> Any:
    """Text moves on the host, numbers on the device."""
    if x.is_text:
        return getattr(np, function)(x.array(), *arguments)
    return getattr(call.tensor(x), function)(*arguments)


@operator("Reshape")
def reshape(
    call: Call, x: Value, sizes: Ints | None = None, *, shape: list[int] | None = None, allowzero: int = 0
) -> Any:
    """The elements in another shape: 0 takes over a size (unless `allowzero`), -1 is what is left."""
    wanted = list(sizes if sizes is not None else shape or [])
    if not allowzero:
        wanted = [x.shape[i] if s == 0 else s for i, s in enumerate(wanted)]
    if has_size((*wanted, *x.shape)):
        return _moved(call, x, "reshape", tuple(wanted))
    if -1 in wanted:
        rest = prod(s for s in wanted if s != -1)
        total = prod(x.shape)
        if rest == 0 or total % rest:
            raise call.error(f"shape {tuple(x.shape)} does not reshape to {wanted}")
        wanted[wanted.index(-1)] = total // rest
    return _moved(call, x, "reshape", tuple(wanted))


@operator("Flatten")
def flatten(x: Tensor, *, axis: int = 1) -> Tensor:
    """Two axes: those before `axis`, and those from it on."""
    at = axis + x.ndim if axis < 0 else axis
    return x.reshape(prod(x.shape[:at]), prod(x.shape[at:]))


@operator("Transpose")
def transpose(x: Tensor, *, perm: list[int] | None = None) -> Tensor:
    """Axes in another order, the opposite one by default."""
    return x.permute(tuple(perm) if perm is not None else tuple(reversed(range(x.ndim))))


@operator("Squeeze")
def squeeze(call: Call, x: Value, places: Ints | None = None, *, axes: list[int] | None = None) -> Any:
    """Without axes of size 1."""
    wanted = axes if places is None else places
    if wanted is None:
        unsure = [s for s in x.shape if isinstance(s, Size) and s.low <= 1 <= s.high]
        if unsure:
            raise SizeLimitError(f"squeeze: whether an axis of size {unsure[0]} goes depends on its value")
        return _moved(call, x, "reshape", tuple(s for s in x.shape if s != 1))
    gone = {a % x.ndim for a in wanted}
    if any(x.shape[a] != 1 for a in gone):
        raise call.error(f"axes {sorted(gone)} of shape {tuple(x.shape)} are not all of size 1")
    return _moved(call, x, "reshape", tuple(s for a, s in enumerate(x.shape) if a not in gone))


@operator("Unsqueeze")
def unsqueeze(call: Call, x: Value, places: Ints | None = None, *, axes: list[int] | None = None) -> Any:
    """With new axes of size 1 at these places of the result."""
    wanted = (axes if places is None else places) or []
    total = x.ndim + len(wanted)
    new = {a % total for a in wanted}
    old = iter(x.shape)
    return _moved(call, x, "reshape", tuple(1 if a in new else next(old) for a in range(total)))


@operator("Concat")
def concat(call: Call, *data: Value, axis: int = 1) -> Any:
    """Joined along an axis."""
    if data[0].is_text:
        return np.concatenate([d.array() for d in data], axis)
    parts = [call.tensor(d) for d in data]
    return parts[0].cat(*parts[1:], dim=axis) if len(parts) > 1 else parts[0]


@operator("Split")
def split(
    call: Call, x: Tensor, sizes: Ints | None = None, *, axis: int = 0, split: list[int] | None = None,
    num_outputs: int | None = None,
) -> tuple[Tensor, ...]:  # fmt: skip
    """Cut along an axis into parts of given sizes, or equal ones, where the last may be smaller."""
    wanted = split if sizes is None else sizes
    total = x.shape[axis]
    if not wanted:
        count = num_outputs or call.outputs
        each = -(-total // count)
        wanted = [max(0, min(each, total - each * i)) for i in range(count)]
    if sum(wanted) != total:
        raise call.error(f"parts {wanted} do not add up to {total}")
    parts, begin = [], 0
    index: list[Any] = [slice(None)] * x.ndim
    for count in wanted:
        index[axis] = slice(begin, begin + count)
        parts.append(x[tuple(index)])
        begin += count
    return tuple(parts)


@operator("Slice")
def cut(
    call: Call, x: Value, begins: Ints | None = None, stops: Ints | None = None, places: Ints | None = None,
    strides: Ints | None = None, *, starts: list[int] | None = None, ends: list[int] | None = None,
    axes: list[int] | None = None,
) -> Any:  # fmt: skip
    """A box of the axes, with steps; what is out of range is cut off."""
    first = begins if begins is not None else starts or []
    last = stops if stops is not None else ends or []
    along = places if places is not None else axes if axes is not None else list(range(len(first)))
    by = strides or [1] * len(first)
    if not has_size((*first, *last, *[x.shape[axis] for axis in along])):
        index: list[Any] = [slice(None)] * x.ndim
        for start, end, axis, step in zip(first, last, along, by):
            index[axis] = slice_of(start, end, step, int(x.shape[axis]))
        return x.array()[tuple(index)] if x.is_text else call.tensor(x)[tuple(index)]
    result = call.tensor(x)
    for start, end, axis, step in zip(first, last, along, by):
        result = _cut_sizes(call, result, axis % result.ndim, start, end, step)
    return result


def _cut_sizes(call: Call, x: Tensor, axis: int, start: Any, end: Any, step: int) -> Tensor:
    """A slice of one axis, where its size or its ends may be known only at launch.

    Raises:
        OnnxError: how much there is to be cut off depends on the size.
    """
    size = x.shape[axis]
    before: list[Any] = [slice(None)] * axis
    if not isinstance(size, Size) and isinstance(start, int) and isinstance(end, int):
        return x[(*before, slice_of(start, end, step, size))]
    if step == -1 and start == -1 and isinstance(end, int) and end <= -largest_sizes((size,))[0] - 1:
        return x.flip(axis)
    if step < 1:
        raise call.error(f"a step of {step} along axis {axis} of size {size}, which is known only at launch")
    begin, stop = _end(start, size), _end(end, size)
    whole = x.whole_axes([axis]) if isinstance(size, Size) else x
    if step == 1:
        return whole[(*before, slice(begin, stop))]
    if not isinstance(begin, int):
        raise call.error(f"a step of {step} from {begin} on along axis {axis} of size {size}")
    count = (stop - begin + step - 1) // step
    strided = whole[(*before, slice(begin, None, step))]
    return strided.with_sizes(tuple([count if a == axis else s for a, s in enumerate(strided.shape)]))


def _end(place: Any, size: Any) -> Any:
    """One end of a slice as a place in the axis: negative ones count from its end, and none lies outside."""
    if place < 0:
        place = size + place
        return place if place >= 0 else 0
    return place if place <= size else size


@operator("Expand")
def expand(x: Tensor, shape: Ints) -> Tensor:
    """Repeated along axes of size 1."""
    return x.expand(broadcast_shapes([tuple(x.shape), tuple(shape)], "expand"))


@operator("Tile", until=5)
def tile_along(x: Tensor, tiles: Number, axis: Number) -> Tensor:
    """Repeated along one axis."""
    times = [1] * x.ndim
    times[int(axis)] = int(tiles)
    return x.repeat(*times)


@operator("Tile", since=6)
def tile(x: Tensor, repeats: Ints) -> Tensor:
    """Repeated so many times along every axis."""
    return x.repeat(*repeats)


@operator("Pad", until=10)
def pad_by_attributes(
    call: Call, x: Tensor, *, mode: str = "constant", pads: list[int] | None = None,
    paddings: list[int] | None = None, value: float = 0.0,
) -> Tensor:  # fmt: skip
    """Grown at both ends of axes, by numbers that the file holds."""
    wanted = (pads if pads is not None else paddings) or [0] * (2 * x.ndim)
    return padded(call, x, list(zip(wanted[: x.ndim], wanted[x.ndim :])), mode, value)


@operator("Pad", since=11)
def pad(
    call: Call, x: Tensor, pads: Ints, value: Tensor | None = None, places: Ints | None = None, *,
    mode: str = "constant",
) -> Tensor:  # fmt: skip
    """Grown at both ends of axes (cropped by negative numbers): by a value, the edge, reflected, or wrapped."""
    along = list(range(x.ndim)) if places is None else [a % x.ndim for a in places]
    sides = [(0, 0)] * x.ndim
    for i, axis in enumerate(along):
        sides[axis] = (pads[i], pads[i + len(along)])
    return padded(call, x, sides, mode, 0.0 if value is None else value)


def padded(call: Call, x: Tensor, sides: list[tuple[int, int]], mode: str, value: Any = 0.0) -> Tensor:
    """Padding of any mode."""
    if mode == "constant":
        # Cropping comes first, so that padding with a value that only the device knows can select by place.
        index = tuple(slice(max(0, -b), s + e if e < 0 else None) for s, (b, e) in zip(x.shape, sides))
        grown = [(max(0, b), max(0, e)) for b, e in sides]
        x = x if min(min(pair) for pair in sides) >= 0 else x[index]
        if not isinstance(value, Tensor):
            return x.pad(grown, value=value)
        inside = x.full_like(True, dtype="bool").pad(grown, value=False)
        return inside.where(x.pad(grown), value.cast(x.dtype).reshape(()))
    for axis, (before, after) in enumerate(sides):
        size = x.shape[axis]
        if before == after == 0:
            continue
        kept = np.arange(size)[max(0, -before) : size - max(0, -after)]
        amounts = (max(0, before), max(0, after))
        places = np.pad(kept, amounts, mode="edge" if mode == "edge" else "reflect" if mode == "reflect" else "wrap")
        x = x.index_select(axis, call.constant(places.astype(np.int32)))
    return x


@operator("CenterCropPad")
def center_crop_pad(call: Call, x: Tensor, shape: Ints, *, axes: list[int] | None = None) -> Tensor:
    """Axes cut or grown with zeros at both ends to given sizes."""
    index: list[Any] = [slice(None)] * x.ndim
    sides = [(0, 0)] * x.ndim
    for axis, wanted in zip(range(x.ndim) if axes is None else axes, shape):
        have = x.shape[axis]
        if wanted < have:
            begin = (have - wanted) // 2
            index[axis] = slice(begin, begin + wanted)
        else:
            sides[axis] = ((wanted - have) // 2, wanted - have - (wanted - have) // 2)
    return x[tuple(index)].pad(sides)


@operator("DepthToSpace")
def depth_to_space(x: Tensor, *, blocksize: int, mode: str = "DCR") -> Tensor:
    """Channels become blocks of pixels; "DCR" has the block first in the channel's number, "CRD" last."""
    n, c, *space = x.shape
    b = blocksize
    rank = len(space)
    blocks = (b,) * rank
    deep = c // b**rank
    if mode == "DCR":
        split, places, channel = x.reshape(n, *blocks, deep, *space), list(range(1, rank + 1)), rank + 1
    else:
        split, places, channel = x.reshape(n, deep, *blocks, *space), list(range(2, rank + 2)), 1
    order = [0, channel]
    for i in range(rank):
        order += [rank + 2 + i, places[i]]
    return split.permute(order).reshape(n, deep, *(s * b for s in space))


@operator("SpaceToDepth")
def space_to_depth(x: Tensor, *, blocksize: int, mode: str = "DCR") -> Tensor:
    """Blocks of pixels become channels."""
    n, c, *space = x.shape
    b = blocksize
    rank = len(space)
    split = x.reshape(n, c, *(part for s in space for part in (s // b, b)))
    outer, inner = [2 + 2 * i for i in range(rank)], [3 + 2 * i for i in range(rank)]
    order = [0, *inner, 1, *outer] if mode == "DCR" else [0, 1, *inner, *outer]
    return split.permute(order).reshape(n, c * b**rank, *(s // b for s in space))


@operator("Trilu")
def trilu(call: Call, x: Tensor, k: Number = 0, *, upper: int = 1) -> Tensor:
    """The upper or lower triangle of matrices, zeros elsewhere."""
    return x.triu(int(k or 0)) if upper else x.tril(int(k or 0))


@operator("ReverseSequence")
def reverse_sequence(call: Call, x: Tensor, lengths: Tensor, *, batch_axis: int = 1, time_axis: int = 0) -> Tensor:
    """The first elements of each row, as many as its length, in the opposite order."""
    time = [1] * x.ndim
    time[time_axis] = x.shape[time_axis]
    batch = [1] * x.ndim
    batch[batch_axis] = x.shape[batch_axis]
    place = Tensor.arange(x.shape[time_axis], dtype="int64", device=x.device).reshape(time)
    length = lengths.reshape(batch)
    index = (place < length).where(length - 1 - place, place)
    return x.gather(time_axis, index.expand(x.shape))


# sequences and optionals
@operator("SequenceEmpty")
def sequence_empty(*, dtype: int = 1) -> list[Any]:
    """A sequence of nothing."""
    return []


@operator("SequenceConstruct")
def sequence_construct(*inputs: Value) -> list[Any]:
    """A sequence of the inputs."""
    return list(inputs)


def _sequence(call: Call, value: Any) -> list[Any]:
    if not isinstance(value, list):
        raise call.error("the input must be a sequence")
    return value


def _place(call: Call, sequence: list[Any], position: Any, last: int) -> int:
    at = last if position is None else int(position)
    at += len(sequence) if at < 0 else 0
    if not 0 <= at <= last:
        raise call.error(f"position {position} of a sequence of {len(sequence)}")
    return at


@operator("SequenceInsert")
def sequence_insert(call: Call, sequence: Value, tensor: Value, position: Number = None) -> list[Any]:
    """A sequence with one element more."""
    items = _sequence(call, sequence)
    at = _place(call, items, position, len(items))
    return [*items[:at], tensor, *items[at:]]


@operator("SequenceErase")
def sequence_erase(call: Call, sequence: Value, position: Number = None) -> list[Any]:
    """A sequence with one element less."""
    items = _sequence(call, sequence)
    at = _place(call, items, position, len(items) - 1)
    return [*items[:at], *items[at + 1 :]]


@operator("SequenceAt")
def sequence_at(call: Call, sequence: Value, position: Number) -> Any:
    """One element."""
    items = _sequence(call, sequence)
    return items[_place(call, items, position, len(items) - 1)]


@operator("SequenceLength")
def sequence_length(call: Call, sequence: Value) -> Array:
    """How many elements there are."""
    return np.array(len(_sequence(call, sequence)), np.int64)


@operator("SplitToSequence")
def split_to_sequence(
    call: Call, x: Tensor, sizes: Array | None = None, *, axis: int = 0, keepdims: int = 1
) -> list[Any]:
    """A tensor cut along an axis: into single elements, parts of one size, or parts of given sizes."""
    total = x.shape[axis]
    if sizes is None:
        wanted = [1] * total
    elif sizes.ndim == 0:
        each = int(sizes)
        wanted = [min(each, total - begin) for begin in range(0, total, each)]
    else:
        wanted = [int(s) for s in sizes]
    parts, begin = [], 0
    index: list[Any] = [slice(None)] * x.ndim
    for count in wanted:
        index[axis] = slice(begin, begin + count)
        part = x[tuple(index)]
        parts.append(Value.of_tensor(part if sizes is not None or keepdims else part.squeeze(axis)))
        begin += count
    return parts


@operator("ConcatFromSequence")
def concat_from_sequence(call: Call, sequence: Value, *, axis: int, new_axis: int = 0) -> Tensor:
    """The elements joined along an axis, or a new one."""
    parts = [call.tensor(v) for v in _sequence(call, sequence)]
    return parts[0].stack(*parts[1:], dim=axis) if new_axis else parts[0].cat(*parts[1:], dim=axis)


@operator("Optional")
def optional(value: Value | None = None, *, type: object = None) -> Any:
    """A value, or nothing."""
    return EMPTY if value is None else value


@operator("OptionalHasElement")
def optional_has_element(value: Value | None = None) -> Array:
    """Whether there is something."""
    return np.array(value is not None and value is not EMPTY)


@operator("OptionalGetElement")
def optional_get_element(call: Call, value: Value) -> Any:
    """What is in an optional."""
    if value is EMPTY:
        raise call.error("the optional holds nothing")
    return value
