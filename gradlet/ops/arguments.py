"""Reading the arguments of public methods: shapes, axes, broadcasting; every mistake becomes a `UserError`."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from math import prod
from operator import index
from typing import Any

from gradlet.base.errors import ArgumentError, IndexingError, ShapeError

Shape = tuple[int, ...]


def integers(values: Sequence[Any], what: str) -> Shape:
    """The integers of `f(2, 3)` or `f((2, 3))`.

    Raises:
        ShapeError: something else than integers.
    """
    if len(values) == 1 and isinstance(values[0], (tuple, list)):
        values = values[0]
    try:
        return tuple([v if v.__class__ is int else index(v) for v in values])
    except TypeError:
        raise ShapeError(f"{what}: expected integers, got {tuple(values)!r}") from None


def sizes(values: Sequence[Any], what: str) -> Shape:
    """Like `integers`, and none may be negative.

    Raises:
        ShapeError: a negative size, or not integers.
    """
    shape = integers(values, what)
    for size in shape:
        if size < 0:
            raise ShapeError(f"{what}: a size may not be negative, got shape {shape}")
    return shape


def axis_number(axis: Any, ndim: int, what: str) -> int:
    """One axis as a number from 0; -1 is the last. A tensor without axes accepts 0 and -1.

    Raises:
        IndexingError: no such axis.
    """
    try:
        number = index(axis)
    except TypeError:
        raise IndexingError(f"{what}: axis must be an integer, got {axis!r}") from None
    limit = max(ndim, 1)
    if not -limit <= number < limit:
        raise IndexingError(
            f"{what}: axis {number} is out of range for a tensor of {ndim} axes; use {-limit} to {limit - 1}"
        )
    return number + limit if number < 0 else number


def axis_numbers(axis: Any, ndim: int, what: str) -> Shape:
    """Several axes, sorted; None means all of them.

    Raises:
        IndexingError: no such axis.
        ArgumentError: an axis given twice.
    """
    if axis is None:
        return tuple(range(ndim))
    if not isinstance(axis, (tuple, list)):
        number = axis_number(axis, ndim, what)
        return (number,) if ndim else ()
    found = sorted(axis_number(a, ndim, what) for a in axis)
    if len(set(found)) != len(found):
        raise ArgumentError(f"{what}: axis {tuple(axis)} names the same axis twice")
    return tuple(found) if ndim else ()


def broadcast_shapes(shapes: Iterable[Shape], what: str) -> Shape:
    """The common shape: sizes are aligned at the right, and a 1 stretches to what the others have.

    Raises:
        ShapeError: two sizes differ and neither is 1.
    """
    all_shapes = list(shapes)
    rank = max((len(s) for s in all_shapes), default=0)
    result = [1] * rank
    for shape in all_shapes:
        offset = rank - len(shape)
        for position, size in enumerate(shape):
            have = result[offset + position]
            if have == 1:
                result[offset + position] = size
            elif size not in (1, have):
                listing = " and ".join(str(s) for s in all_shapes)
                raise ShapeError(
                    f"{what}: shapes {listing} do not broadcast: sizes {have} and {size} meet on axis "
                    f"{offset + position - rank}; they must be equal or one of them 1"
                )
    return tuple(result)


def resolve_shape(new: Sequence[Any], old: Shape, what: str) -> Shape:
    """The shape meant by a reshape: one -1 is computed, None keeps the old size on that axis.

    Raises:
        ShapeError: the number of elements would change.
    """
    if len(new) == 1 and isinstance(new[0], (tuple, list)):
        new = new[0]
    try:
        wanted = [old[i] if v is None else v if v.__class__ is int else index(v) for i, v in enumerate(new)]
    except (TypeError, IndexError):
        raise ShapeError(f"{what}: expected integers, got {tuple(new)!r}") from None
    count = prod(old)
    unknown = wanted.count(-1)
    if unknown > 1:
        raise ShapeError(f"{what}: only one size may be -1, got {tuple(wanted)}")
    if unknown:
        known = -prod(wanted)
        if known == 0 or count % known:
            raise ShapeError(f"{what}: {count} elements of shape {old} do not divide into {tuple(wanted)}")
        wanted[wanted.index(-1)] = count // known
    if min(wanted, default=0) < 0 or prod(wanted) != count:
        raise ShapeError(
            f"{what}: shape {old} has {count} elements, {tuple(wanted)} has {prod(wanted)}; they must agree "
            "(use -1 for a size to be computed)"
        )
    return tuple(wanted)


def per_axis(value: int | Sequence[int], count: int, what: str) -> Shape:
    """One integer for all of `count` axes, or one each.

    Raises:
        ShapeError: the wrong number of integers.
    """
    if isinstance(value, int):
        return (value,) * count
    values = integers(tuple(value), what)
    if len(values) != count:
        raise ShapeError(f"{what}: expected an integer or {count} integers, got {values}")
    return values
