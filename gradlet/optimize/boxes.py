"""Parts of memory as boxes: which axes an access runs along, for engines that move a whole part by one instruction.

The ranges of an index, `r * 64 + s + 4096 * m`, are digits of the coordinates of a few axes: those whose steps continue
one another (s, then r) are one axis. What the ranges inside of a copy run over is the box, the others say where it
begins. Guards that compare a coordinate with a constant are the length of its axis.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Hashable
from typing import Final, NamedTuple

from gradlet.base.dtype import dtypes
from gradlet.graph.node import UOp
from gradlet.ops.op import Op
from gradlet.optimize.analysis import affine, range_size

MOST_AXES: Final = 5
GRAIN: Final = 16  # bytes: what every step along an axis but the first is a multiple of
LARGEST: Final = 256  # elements of a box along an axis


class Axis(NamedTuple):
    """One axis: elements of a step, its ranges from the fastest on, where index 0 lies, how long it is."""

    stride: int
    ranges: tuple[UOp, ...]
    first: int
    size: int

    def length(self, inside: Collection[UOp]) -> int:
        """Steps of the ranges that are inside of a box."""
        result = 1
        for r in self.ranges:
            if r in inside:
                result *= range_size(r) or 1
        return result

    def begin(self, inside: Collection[UOp]) -> UOp:
        """The coordinate where a box begins."""
        at = UOp.const(dtypes.index, self.first)
        step = 1
        for r in self.ranges:
            if r not in inside:
                at = at + (r * step if step > 1 else r)
            step *= range_size(r) or 1
        return at


def axes_of(index: UOp, inside: Collection[UOp], group: Callable[[UOp], Hashable]) -> list[Axis] | str:
    """The axes of an INDEX from the fastest on, or why it has none.

    Args:
        index: of memory; perhaps with a guard.
        inside: the ranges of a box.
        group: ranges of different groups are on different axes.
    """
    form = affine(index.src[1])
    for atom, step in form.terms.items():
        if atom.op is not Op.RANGE or range_size(atom) is None:
            return "its index is no sum of multiples of ranges"
        if step < 0:
            return f"it is read backwards along range {atom.arg.number}"
    found: list[tuple[int, list[UOp]]] = []
    for key in dict.fromkeys(group(r) for r in form.terms):
        run: list[UOp] = []
        end = 0
        for r in sorted((r for r in form.terms if group(r) == key), key=lambda r: form.terms[r]):
            if not run or form.terms[r] != end:
                run = []
                found.append((form.terms[r], run))
            run.append(r)
            end = form.terms[r] * (range_size(r) or 1)
    found.sort(key=lambda axis: axis[0])
    if not found or found[0][0] != 1:
        return "elements do not lie side by side along any range"
    lengths = _lengths(index, found)
    if isinstance(lengths, str):
        return lengths
    axes: list[Axis] = []
    rest = form.constant
    for (stride, ranges), length in zip(reversed(found), reversed(lengths), strict=True):
        first, rest = divmod(rest, stride)
        axes.append(Axis(stride, tuple(ranges), first, first + length))
    if form.constant < 0 or rest:
        return "it begins before its memory does"
    axes.reverse()
    return _fitting(axes, inside, index.dtype.itemsize)


def _fitting(axes: list[Axis], inside: Collection[UOp], itemsize: int) -> list[Axis] | str:
    """The axes, or why an engine cannot move such boxes."""
    if len(axes) > MOST_AXES:
        return f"it has {len(axes)} axes, and a box at most {MOST_AXES}"
    for axis in axes[1:]:
        if axis.stride * itemsize % GRAIN:
            return f"rows are {axis.stride * itemsize} bytes apart, which is no multiple of {GRAIN}"
        if axis.length(inside) > LARGEST:
            return f"a box of {axis.length(inside)} elements along an axis is too long"
    for axis in axes:
        within = [r in inside for r in axis.ranges]
        if within != sorted(within, reverse=True):
            return "what is inside of the copy is no part in one piece"
    return axes


def _lengths(index: UOp, axes: list[tuple[int, list[UOp]]]) -> list[int] | str:
    """How long each axis is: where a guard says so, else as far as its ranges go."""
    lengths = []
    for _, ranges in axes:
        length = 1
        for r in ranges:
            length *= range_size(r) or 1
        lengths.append(length)
    for guard in guards(index):
        if guard.op is Op.CONST and guard.arg:
            continue
        number = _bounded(guard, axes)
        if number is None:
            return "a guard is no bound of one coordinate"
        lengths[number] = min(lengths[number], _bound(guard))
    return lengths


def guards(index: UOp) -> list[UOp]:
    """The conditions of an access."""
    found: list[UOp] = []
    stack = list(index.src[2:])
    while stack:
        guard = stack.pop()
        if guard.op is Op.AND:
            stack.extend(guard.src)
        else:
            found.append(guard)
    return found


def _bound(guard: UOp) -> int:
    return int(guard.src[1].arg) - affine(guard.src[0]).constant


def _bounded(guard: UOp, axes: list[tuple[int, list[UOp]]]) -> int | None:
    """The axis whose coordinate a guard compares with a constant."""
    if guard.op is not Op.CMPLT or guard.src[1].op is not Op.CONST:
        return None
    terms = affine(guard.src[0]).terms
    for number, (_, ranges) in enumerate(axes):
        step, wanted = 1, {}
        for r in ranges:
            wanted[r] = step
            step *= range_size(r) or 1
        if terms == wanted:
            return number
    return None
