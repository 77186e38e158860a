"""Reading the arguments of public methods: shapes, axes, broadcasting; every mistake becomes a `UserError`."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from math import prod
from numbers import Integral, Real
from operator import index
from typing import Any, Final

from gradlet.base.errors import ArgumentError, IndexingError, ShapeError
from gradlet.base.symint import Size

Shape = tuple[int, ...]
# Index arithmetic is done in 64 bits, with room for sums.
MAX_ELEMENTS: Final = 2**62


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


def integer(value: Any, what: str, name: str, low: int | None = None) -> int:
    """One integer, not below `low`.

    Raises:
        ArgumentError: not an integer, or too small.
    """
    try:
        found = index(value)
    except TypeError:
        raise ArgumentError(f"{what}: {name} must be an integer, got {_shown(value)}") from None
    if low is not None and found < low:
        raise ArgumentError(f"{what}: {name} must be at least {low}, got {found}")
    return found


def _shown(value: Any) -> str:
    """A wrong argument in a message: its type where printing it could be long, or compute something."""
    return repr(value) if isinstance(value, (int, float, complex, str)) or value is None else type(value).__name__


def number(value: Any, what: str, name: str) -> int | float:
    """One Python or numpy number.

    Raises:
        ArgumentError: not a number.
    """
    if isinstance(value, Integral):
        return int(value)
    if isinstance(value, Real):
        return float(value)
    raise ArgumentError(f"{what}: {name} must be a number, got {_shown(value)}")


def fraction(value: Any, what: str, name: str) -> float:
    """One number in [0, 1].

    Raises:
        ArgumentError: not such a number.
    """
    found = number(value, what, name)
    if not 0 <= found <= 1:
        raise ArgumentError(f"{what}: {name} must lie in [0, 1], got {value!r}")
    return found


def pairs(values: Any, count: int, what: str) -> list[tuple[int, int] | None]:
    """Up to `count` entries that are two integers or None each.

    Raises:
        ShapeError: something else, or too many.
    """
    if not isinstance(values, (tuple, list)):
        raise ShapeError(f"{what}: expected two integers or None for each axis, got {values!r}")
    if len(values) > count:
        raise ShapeError(f"{what}: {len(values)} entries for {count} axes")
    found: list[tuple[int, int] | None] = []
    for entry in values:
        if entry is None:
            found.append(None)
            continue
        if not isinstance(entry, (tuple, list)) or len(entry) != 2:
            raise ShapeError(f"{what}: expected two integers or None for each axis, got {entry!r}")
        low, high = entry
        if low.__class__ is not int or (high.__class__ is not int and not isinstance(high, Size)):
            low, high = integers((low, high), what)
        found.append((low, high))
    return found


def sizes(values: Sequence[Any], what: str) -> Shape:
    """Like `integers`, and none may be negative.

    Raises:
        ShapeError: a negative size, too many elements, or not integers.
    """
    listed = values[0] if len(values) == 1 and isinstance(values[0], (tuple, list)) else values
    if has_size(listed):
        mixed: list[Any] = [size if isinstance(size, Size) else sizes((size,), what)[0] for size in listed]
        return countable(tuple(mixed), what)
    shape = integers(values, what)
    for size in shape:
        if size < 0:
            raise ShapeError(f"{what}: a size may not be negative, got shape {shape}")
    return countable(shape, what)


def has_size(shape: Iterable[Any]) -> bool:
    """Whether a size of a shape is known only at launch."""
    return Size in map(type, shape)


def largest_sizes(shape: Iterable[Any]) -> Shape:
    """The shape with the largest size in place of every one that is known only at launch."""
    return tuple([size.high if isinstance(size, Size) else size for size in shape])


def countable(shape: Shape, what: str) -> Shape:
    """The shape itself, whose elements must be numbered in 64 bits.

    Raises:
        ShapeError: too many elements.
    """
    if has_size(shape):
        countable(largest_sizes(shape), what)
        return shape
    if prod(shape) > MAX_ELEMENTS:
        raise ShapeError(f"{what}: shape {shape} has {prod(shape)} elements, the most is 2**62; use smaller sizes")
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
    if len(all_shapes) == 2:  # nearly always, and nearly always they fit
        first, second = all_shapes
        if len(first) == len(second):
            pair = [b if a == 1 else a if b == 1 or a == b else -1 for a, b in zip(first, second)]
            if -1 not in pair:
                return tuple(pair)
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
    if has_size(new) or has_size(old):
        return _resolve_sizes(new, old, what)
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


def _resolve_sizes(new: Sequence[Any], old: Shape, what: str) -> Shape:
    """The same where sizes are known only at launch: the number of elements has to agree whatever they are."""
    try:
        wanted: list[Any] = [
            old[i] if v is None else v if v.__class__ is int or isinstance(v, Size) else index(v)
            for i, v in enumerate(new)
        ]
    except (TypeError, IndexError):
        raise ShapeError(f"{what}: expected integers and sizes, got {tuple(new)!r}") from None
    unknown = [i for i, v in enumerate(wanted) if v.__class__ is int and v == -1]
    if len(unknown) > 1:
        raise ShapeError(f"{what}: only one size may be -1, got {tuple(wanted)}")
    have: list[Any] = list(old)
    want = [v for i, v in enumerate(wanted) if i not in unknown]
    for size in list(want):  # what stays is nothing to multiply
        if isinstance(size, Size) and size in have:
            have.remove(size)
            want.remove(size)
    total, known = prod(have), prod(want)
    if unknown:
        quotient = total // known if isinstance(total, Size) or known else -1
        wanted[unknown[0]] = quotient if known and total % known == 0 else -1
    elif total != known:
        wanted.append(-1)
    if any(v.__class__ is int and v < 0 for v in wanted):
        shown = tuple([v for v in wanted if v.__class__ is not int or v >= 0])
        raise ShapeError(
            f"{what}: shape {old} has {total} elements beside the sizes that stay, {shown} has {known}; they agree "
            "only if that is so whatever the variables are (use the sizes of x.shape, and -1 for one to be computed)"
        )
    return tuple(wanted)


def per_axis(value: int | Sequence[int], count: int, what: str) -> Shape:
    """One integer for all of `count` axes, or one each.

    Raises:
        ShapeError: the wrong number of integers.
    """
    values = integers(tuple(value) if isinstance(value, (tuple, list)) else (value,), what)
    if not isinstance(value, (tuple, list)):
        return values * count
    if len(values) != count:
        raise ShapeError(f"{what}: expected an integer or {count} integers, got {values}")
    return values
