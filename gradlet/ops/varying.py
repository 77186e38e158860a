"""Joining, padding, cropping, reversing, rolling and sorting along axes whose size is known only at launch.

Each works on all positions of the largest size: positions past the size hold zeros, or what comes next there, and the
result says again how many of its positions mean something.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from gradlet.base.dtype import dtypes
from gradlet.base.errors import ShapeError
from gradlet.base.symint import Size
from gradlet.ops.arguments import largest_sizes
from gradlet.ops.op import Op, PadArg


def join(parts: Sequence[Any], axis: int) -> Any:
    """Tensors one after another: where one ends the next begins, whatever the sizes are."""
    result = parts[0]
    for part in parts[1:]:
        result = _join_two(result, part, axis)
    return result


def _join_two(first: Any, second: Any, axis: int) -> Any:
    size, more = first.shape[axis], second.shape[axis]
    left, right = _whole(first, axis), _whole(second, axis)
    if not isinstance(size, Size):
        return limited(left.cat(right, dim=axis), axis, size + more)
    count = right.shape[axis]
    positions = _positions(left, axis, left.shape[axis] + count)
    if count == 1:
        shape = list(right.shape)
        shape[axis] = left.shape[axis] + 1
        moved = right.expand(shape)
    else:
        moved = _select(right, axis, positions.sub(size).clip(0, count - 1))
    inside = _along(positions.lt(size), axis, left.ndim)
    grown = left.pad([(0, count) if a == axis else (0, 0) for a in range(left.ndim)])
    return limited(inside.where(grown, moved), axis, size + more)


def pad(x: Any, axis: int, before: int, after: Any, value: Any) -> Any:
    """`value` before and after an axis; negative numbers crop. `after` may be a size that fills up to a fixed one.

    Raises:
        ShapeError: it crops more than the axis has for some value of its variables.
    """
    size = x.shape[axis]
    total = size + before + after
    if (total.low if isinstance(total, Size) else total) < 0:
        raise ShapeError(
            f"pad: ({before}, {after}) crops more than axis {axis} of size {size} has for some value of the variable; "
            "give that a larger lower limit"
        )
    if value == 0 and before >= 0 and after.__class__ is int and after >= 0:
        # The zeros behind are those of a mask over all positions: so a kernel that stores them goes no further.
        sides = tuple([(before, after) if a == axis else (0, 0) for a in range(x.ndim)])
        return limited(x.move(Op.PAD, PadArg(sides)).whole_axes([axis]), axis, total)
    whole = _whole(x, axis)
    have, wanted = whole.shape[axis], total.high if isinstance(total, Size) else total
    ends = [(before, wanted - have - before) if a == axis else (0, 0) for a in range(x.ndim)]
    padded = whole.pad(ends)
    if value != 0:
        positions = _positions(x, axis, wanted)
        inside = positions.gt(before - 1).bitwise_and(positions.lt(size + before))
        padded = _along(inside, axis, x.ndim).where(padded, value)
    return limited(padded, axis, total)


def flip(x: Any, axis: int) -> Any:
    """The axis backwards."""
    size = x.shape[axis]
    places = _positions(x, axis, None).mul(-1).add(size - 1).clip(0, None)
    return limited(_select(_whole(x, axis), axis, places), axis, size)


def roll(x: Any, axis: int, shift: int) -> Any:
    """The axis rotated: what falls off its end comes back at its start."""
    size = x.shape[axis]
    count = x.positions(1, x.place).add(size).clip(1, None)
    places = _positions(x, axis, None).sub(shift).mod(count)
    return limited(_select(_whole(x, axis), axis, places), axis, size)


def filled(x: Any, axis: int, last: bool) -> Any:
    """All positions, those past the size with what comes last in order (`last`), or last in the order backwards."""
    whole, dtype = _whole(x, axis), x.dtype
    if dtype.is_float:
        value: Any = math.nan if last else -math.inf
    elif dtype is dtypes.bool:
        value = last
    else:
        value = dtype.max if last else dtype.min
    inside = _along(_positions(x, axis, None).lt(x.shape[axis]), axis, x.ndim)
    return inside.where(whole, whole.constant_like(value))


def limited(x: Any, axis: int, size: Any) -> Any:
    """The first positions of an axis, as many as a size says; all of them where it is a number."""
    if not isinstance(size, Size):
        return x
    return x.with_sizes([size if a == axis else have for a, have in enumerate(x.shape)])


def _whole(x: Any, axis: int) -> Any:
    return x.whole_axes([axis]) if isinstance(x.shape[axis], Size) else x


def _positions(x: Any, axis: int, count: int | None) -> Any:
    if count is None:
        count = largest_sizes(x.shape)[axis]
    return x.positions(count, x.place)


def _along(x: Any, axis: int, ndim: int) -> Any:
    return x.reshape([-1 if a == axis else 1 for a in range(ndim)])


def _select(x: Any, axis: int, places: Any) -> Any:
    return x[(*[slice(None)] * axis, places)]
