"""What a chain of movement ops shows, as an affine map: each axis of the base at a sum of axes of the view.

A window over a padded image is `base[n, c, 2 y + ky - 1, 2 x + kx - 1]`, whatever reshapes, permutations and expansions
led there. In this form a pass can ask which axes slide over which, and show the same elements in another way.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import NamedTuple

from gradlet.base.dtype import DType
from gradlet.graph.node import UOp
from gradlet.ops.op import MOVEMENT, Op


class Place(NamedTuple):
    """Where a view reads along one axis of its base: at `sum(step * axis) + offset`.

    Attributes:
        terms: (axis of the view, step), for axes of more than one element.
        offset: where it reads when all axes are 0.
        inside: the half-open interval of places that show the base, the others show zero; None where all do.
    """

    terms: tuple[tuple[int, int], ...]
    offset: int = 0
    inside: tuple[int, int] | None = None

    def shifted(self, by: int) -> Place:
        """The same place counted from elsewhere."""
        inside = None if self.inside is None else (self.inside[0] + by, self.inside[1] + by)
        return Place(self.terms, self.offset + by, inside)

    def times(self, step: int) -> Place:
        """The place times a number; nothing may be outside."""
        return Place(tuple([(axis, step * by) for axis, by in self.terms]), step * self.offset)

    def plus(self, other: Place) -> Place:
        """The sum of two places; nothing may be outside."""
        steps = dict(self.terms)
        for axis, by in other.terms:
            steps[axis] = steps.get(axis, 0) + by
        return Place(tuple([(a, by) for a, by in steps.items() if by]), self.offset + other.offset)


class AffineView(NamedTuple):
    """A view of `shape` onto `base`, `places[d]` for axis d of the base; values have been cast to `dtype`."""

    base: UOp
    places: tuple[Place, ...]
    shape: tuple[int, ...]
    dtype: DType


def affine_view(node: UOp, most: int = 2) -> AffineView:
    """The view onto the lowest node below it of which each axis is read at a sum of at most `most` axes of the view."""
    shape, dtype = node.shape, node.dtype
    places = tuple([Place(((axis, 1),) if size > 1 else ()) for axis, size in enumerate(shape)])
    cast = False
    while True:
        if node.op is Op.CAST and not cast and node.dtype.is_float and node.src[0].dtype.is_float:
            cast = True
        elif node.op in MOVEMENT:
            below = _below(node, places, shape)
            if below is None or any(len(place.terms) > most for place in below):
                break
            places = below
        else:
            break
        node = node.src[0]
    return AffineView(node, places, shape, dtype)


def _below(node: UOp, places: tuple[Place, ...], shape: Sequence[int]) -> tuple[Place, ...] | None:
    """Where the source of a movement op is read, given where the op is; None where that is not affine."""
    op, arg, sizes = node.op, node.arg, node.src[0].shape
    if op is Op.PERMUTE:
        found = list(places)
        for axis, place in zip(arg.axes, places, strict=True):
            found[axis] = place
        return tuple(found)
    if op is Op.SHRINK:
        return tuple([place.shifted(low) for place, (low, _) in zip(places, arg.bounds, strict=True)])
    if op is Op.PAD:
        return tuple([_unpadded(p, pads, n) for p, pads, n in zip(places, arg.pads, sizes, strict=True)])
    if op is Op.RESHAPE:
        return _reshaped(places, node.shape, sizes, shape)
    whole = [place.inside is None for place in places]
    if op is Op.EXPAND:
        repeated = [small == 1 and large > 1 for small, large in zip(sizes, node.shape, strict=True)]
        if any(r and not w for r, w in zip(repeated, whole, strict=True)):
            return None
        return tuple([Place(()) if r else p for r, p in zip(repeated, places, strict=True)])
    if op is Op.FLIP:
        if not all(whole[axis] for axis in arg.axes):
            return None
        return tuple(
            [p.times(-1).shifted(sizes[a] - 1) if a in arg.axes else p for a, p in enumerate(places)]
        )  # fmt: skip
    if op is Op.STRIDE:
        if any(step > 1 and not w for step, w in zip(arg.steps, whole, strict=True)):
            return None
        return tuple([p if step == 1 else p.times(step) for p, step in zip(places, arg.steps, strict=True)])
    if op in (Op.WINDOW, Op.UNWINDOW):
        axis, taps = arg.axis, arg.window_axis
        if not whole[axis] or not whole[taps] or (op is Op.UNWINDOW and arg.stride != 1):
            return None
        found = list(places)
        if op is Op.WINDOW:
            found[axis] = places[axis].times(arg.stride).plus(places[taps].times(arg.dilation))
        else:
            there = places[axis].plus(places[taps].times(-arg.dilation))
            found[axis] = Place(there.terms, there.offset, (0, sizes[axis]))
        return tuple(found)
    return None


def _unpadded(place: Place, pads: tuple[int, int], size: int) -> Place:
    if pads == (0, 0):
        return place
    moved = place.shifted(-pads[0])
    low, high = moved.inside or (0, size)
    return Place(moved.terms, moved.offset, (max(low, 0), min(high, size)))


def _reshaped(
    places: tuple[Place, ...], above: Sequence[int], below: Sequence[int], shape: Sequence[int]
) -> tuple[Place, ...] | None:
    """Places on the axes below a reshape: axes join, split where terms allow it, or come and go with one element."""
    found: list[Place] = []
    upper = [(p, n) for p, n in zip(places, above, strict=True) if n != 1]
    if any(p.inside is not None for p, n in zip(places, above, strict=True) if n == 1):
        return None
    lower = [n for n in below if n != 1]
    while upper or lower:
        if not upper or not lower:
            return None
        high, low = [upper.pop(0)], [lower.pop(0)]
        while (left := prod(n for _, n in high)) != (right := prod(low)):
            if left < right:
                high.append(upper.pop(0))
            else:
                low.append(lower.pop(0))
        if len(high) == len(low) == 1:
            found.append(high[0][0])
            continue
        if any(p.inside is not None for p, _ in high):
            return None
        joined = Place(())
        for place, size in high:
            joined = joined.times(size).plus(place)
        parts = _split(joined, low, shape)
        if parts is None:
            return None
        found.extend(parts)
    ordered = iter(found)
    return tuple([Place(()) if n == 1 else next(ordered) for n in below])


def _split(place: Place, sizes: Sequence[int], shape: Sequence[int]) -> list[Place] | None:
    """One place on the joined axes of `sizes` as a place on each of them."""
    parts: list[Place] = []
    for size in reversed(sizes[1:]):
        inner = Place(tuple([t for t in place.terms if t[1] % size]), place.offset % size)
        low = inner.offset + sum(min(0, by * (shape[axis] - 1)) for axis, by in inner.terms)
        high = inner.offset + sum(max(0, by * (shape[axis] - 1)) for axis, by in inner.terms)
        if low < 0 or high >= size:
            return None
        rest = tuple([(axis, by // size) for axis, by in place.terms if by % size == 0])
        parts.append(inner)
        place = Place(rest, place.offset // size)
    return [place, *reversed(parts)]
