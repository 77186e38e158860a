"""Changing shapes, order and number of axes; joining and repeating."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from gradlet.array_api.arguments import array, whole_shape
from gradlet.array_api.datatypes import result_type
from gradlet.base.errors import ArgumentError, DTypeError, ShapeError
from gradlet.ops.arguments import axis_number, broadcast_shapes
from gradlet.tensor.tensor import Tensor


def broadcast_arrays(*arrays: Tensor) -> list[Tensor]:
    """Arrays stretched to their common shape."""
    shape = broadcast_shapes([array(x, "broadcast_arrays", "every argument").shape for x in arrays], "broadcast_arrays")
    return [broadcast_to(x, shape) for x in arrays]


def broadcast_to(x: Tensor, /, shape: Any) -> Tensor:
    """`x` stretched to a shape."""
    return array(x, "broadcast_to").broadcast_into(whole_shape(shape), "broadcast_to")


def concat(arrays: Sequence[Tensor], /, *, axis: int | None = 0) -> Tensor:
    """Arrays joined along an axis; flattened first where that is None.

    Raises:
        ArgumentError: no arrays.
    """
    parts = _parts(arrays, "concat")
    if axis is None:
        parts, axis = [part.reshape(-1) for part in parts], 0
    return parts[0].cat(*parts[1:], dim=axis)


def expand_dims(x: Tensor, /, axis: int = 0) -> Tensor:
    """A new axis of size 1."""
    return array(x, "expand_dims").unsqueeze(axis)


def flip(x: Tensor, /, *, axis: Any = None) -> Tensor:
    """Elements in reverse order along axes, along all if None."""
    ndim = array(x, "flip").ndim
    axes = tuple(range(ndim)) if axis is None else axis if isinstance(axis, tuple) else (axis,)
    return x.flip(*axes) if axes else x


def moveaxis(x: Tensor, source: Any, destination: Any, /) -> Tensor:
    """Axes at other positions; the rest keeps its order."""
    return array(x, "moveaxis").moveaxis(source, destination)


def permute_dims(x: Tensor, /, axes: tuple[int, ...]) -> Tensor:
    """Axes in another order."""
    return array(x, "permute_dims").permute(axes)


def repeat(x: Tensor, repeats: Any, /, *, axis: int | None = None) -> Tensor:
    """Every element so many times in a row; flattened first where `axis` is None."""
    array(x, "repeat")
    if axis is None:
        x, axis = x.reshape(-1), 0
    if isinstance(repeats, Tensor) and not repeats.dtype.is_int:
        raise DTypeError(f"repeat: repeats must be integers, got {repeats.dtype}; cast with astype")
    if isinstance(repeats, Tensor) and repeats.numel() == 1:
        repeats = int(repeats.reshape(()).item())
    return x.repeat_interleave(repeats, axis)


def reshape(x: Tensor, /, shape: Any, *, copy: bool | None = None) -> Tensor:
    """The same elements in another shape, one size of which may be -1; a copy where `copy` is True."""
    result = array(x, "reshape").reshape(*whole_shape(shape))
    return result.clone() if copy else result


def roll(x: Tensor, /, shift: Any, *, axis: Any = None) -> Tensor:
    """Elements moved along axes; those that leave at one end come in at the other."""
    array(x, "roll")
    if isinstance(axis, tuple) and not isinstance(shift, tuple):
        shift = (shift,) * len(axis)
    return x.roll(shift, axis)


def squeeze(x: Tensor, /, axis: Any) -> Tensor:
    """Without axes of size 1.

    Raises:
        ShapeError: an axis of another size.
    """
    axes = axis if isinstance(axis, tuple) else (axis,)
    numbers = [axis_number(a, array(x, "squeeze").ndim, "squeeze") for a in axes]
    for number in numbers:
        if not x.ndim or x.shape[number] != 1:
            raise ShapeError(f"squeeze: axis {number} of shape {x.shape} has not size 1")
    return x.reshape(*[size for number, size in enumerate(x.shape) if number not in numbers])


def stack(arrays: Sequence[Tensor], /, *, axis: int = 0) -> Tensor:
    """Arrays of one shape joined along a new axis."""
    parts = _parts(arrays, "stack")
    return parts[0].stack(*parts[1:], dim=axis)


def tile(x: Tensor, repetitions: tuple[int, ...], /) -> Tensor:
    """The whole array so many times along each axis."""
    times = whole_shape(repetitions)
    return array(x, "tile").tile(*times) if times else array(x, "tile")


def unstack(x: Tensor, /, *, axis: int = 0) -> tuple[Tensor, ...]:
    """The parts of an array along an axis, which they lack."""
    return tuple(array(x, "unstack").unbind(axis))


def _parts(arrays: Sequence[Any], what: str) -> list[Tensor]:
    if not isinstance(arrays, (tuple, list)):
        raise DTypeError(f"{what}: expected a list or tuple of arrays, got {type(arrays).__name__}; use unstack first")
    parts = [array(x, what, "every element") for x in arrays]
    if not parts:
        raise ArgumentError(f"{what}: at least one array is needed")
    dtype = result_type(*parts)
    return [part.cast(dtype) for part in parts]
