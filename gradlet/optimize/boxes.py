"""Parts of memory as boxes: which axes an access runs along, for engines that move a whole part by one instruction.

The ranges of an index, `r * 64 + s + 4096 * m`, are digits of the coordinates of a few axes: those whose steps continue
one another (s, then r) are one axis, and so are those that a guard compares together, or whose steps are the same (a
pixel and the tap of a window). What the ranges inside of a copy run over is the box, the others say where it begins.
Guards are the ends of axes: outside of them are zeros, which is what a guarded load has there.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Hashable
from math import gcd
from typing import Final, NamedTuple

from gradlet.base.dtype import dtypes
from gradlet.graph.node import UOp
from gradlet.graph.rewrite import rewrite
from gradlet.ops.op import Op
from gradlet.optimize.analysis import affine, range_size
from gradlet.rules.sets import INDEX_MATH

MOST_AXES: Final = 5
GRAIN: Final = 16  # bytes: what every step along an axis but the first is a multiple of
LARGEST: Final = 256  # elements of a box along an axis
FURTHEST: Final = 8  # elements from one that is moved to the next


class Axis(NamedTuple):
    """One axis: elements of a step, the steps of its ranges, where their zeros lie, how long it is."""

    stride: int
    steps: dict[UOp, int]
    first: int
    size: int

    def length(self, inside: Collection[UOp]) -> int:
        """Elements of a box along it."""
        result = 1
        for r in self.steps:
            if r in inside:
                result *= range_size(r) or 1
        return result

    def apart(self, inside: Collection[UOp]) -> int:
        """How far the elements of a box are from one another."""
        return min((step for r, step in self.steps.items() if r in inside), default=1)

    def begin(self, inside: Collection[UOp]) -> UOp:
        """The coordinate where a box begins."""
        at = UOp.const(dtypes.index, self.first)
        for r, step in self.steps.items():
            if r not in inside:
                at = at + (r * step if step != 1 else r)
        return at


class _Guard(NamedTuple):
    """What a guard says about a sum of ranges: at least `low`, below `high`."""

    terms: dict[UOp, int]
    low: int | None
    high: int | None


def axes_of(
    index: UOp, inside: Collection[UOp], group: Callable[[UOp], Hashable], elsewhere: Collection[UOp] = ()
) -> list[Axis] | str:
    """The axes of an INDEX from the fastest on, or why it has none.

    Args:
        index: of memory; perhaps with guards.
        inside: the ranges of a box.
        group: ranges of different groups are on different axes, unless guards or steps say otherwise.
        elsewhere: guards without which nothing is used: they need not hold here.
    """
    form = affine(rewrite(index.src[1], INDEX_MATH))
    for atom, step in form.terms.items():
        if atom.op is not Op.RANGE or range_size(atom) is None:
            return "its index is no sum of multiples of ranges"
        if step < 0:
            return f"it is read backwards along range {atom.arg.number}"
    known = {*elsewhere, *[rewrite(guard, INDEX_MATH) for guard in elsewhere]}
    ends = [bound for guard in elsewhere if (bound := _bound(guard) or _bound(rewrite(guard, INDEX_MATH)))]
    bounds: list[_Guard] = []
    for guard in guards(index):
        simple = rewrite(guard, INDEX_MATH)
        if guard in known or simple in known or (simple.op is Op.CONST and simple.arg):
            continue
        bound = _bound(guard) or _bound(simple) or _bound(_within(simple, elsewhere))
        if bound is None or not bound.terms.keys() <= form.terms.keys():
            return "a guard is no bound of one coordinate"
        bounds.append(bound)
    joined = _joined(form.terms, bounds, group, inside)
    axes: list[Axis] = []
    rest = form.constant
    for terms in joined:
        stride = gcd(*terms.values())
        steps = {r: step // stride for r, step in terms.items()}
        first, size = 0, 1 + _furthest(steps, ends)
        for bound in bounds:
            if bound.terms.keys().isdisjoint(steps):
                continue
            if bound.terms != steps:
                return "a guard is no bound of one coordinate"
            if bound.low is not None:
                first = -bound.low
            if bound.high is not None:
                size = min(size, bound.high)
        axes.append(Axis(stride, steps, first, size + first))
        rest -= first * stride
    axes.sort(key=lambda axis: axis.stride)
    if not axes or axes[0].stride != 1:
        return "elements do not lie side by side along any range"
    if rest < 0:
        return "it begins before its memory does"
    for number in reversed(range(len(axes))):
        more, rest = divmod(rest, axes[number].stride)
        axis = axes[number]
        axes[number] = axis._replace(first=axis.first + more, size=axis.size + more)
    return _fitting(axes, inside, index.dtype.itemsize)


def _within(node: UOp, elsewhere: Collection[UOp]) -> UOp:
    """An expression where these guards hold: a digit of what is smaller than its base is that itself."""
    below: dict[UOp, int] = {}
    for guard in elsewhere:
        if guard.op is Op.CMPLT and guard.src[1].op is Op.CONST:
            below[rewrite(guard.src[0], INDEX_MATH)] = int(guard.src[1].arg)
    new: dict[UOp, UOp] = {}
    for part in node.toposort():
        high = below.get(part.src[0]) if part.op in (Op.MOD, Op.IDIV) else None
        if high is not None and part.src[1].op is Op.CONST and int(part.src[1].arg) >= high:
            new[part] = part.src[0] if part.op is Op.MOD else UOp.const(part.dtype, 0)
    return rewrite(node.substitute(new), INDEX_MATH) if new else node


def _furthest(steps: dict[UOp, int], ends: list[_Guard]) -> int:
    """The largest coordinate that is used."""
    left, total = dict(steps), 0
    for end in ends:
        if end.high is None or not end.terms.keys() <= left.keys():
            continue
        ratios = {divmod(left[r], step) for r, step in end.terms.items()}
        if len(ratios) == 1 and not min(ratios)[1]:
            total += min(ratios)[0] * (end.high - 1)
            left = {r: step for r, step in left.items() if r not in end.terms}
    return total + sum(step * ((range_size(r) or 1) - 1) for r, step in left.items())


def _joined(
    terms: dict[UOp, int], bounds: list[_Guard], group: Callable[[UOp], Hashable], inside: Collection[UOp]
) -> list[dict[UOp, int]]:
    """The ranges of each axis with their steps in memory."""
    windows: list[set[UOp]] = []
    same: dict[int, set[UOp]] = {}
    # A guard of ranges of one group ends an axis of their own: a sum that is longer than a row is none of the next row.
    ended = {r for b in bounds if len({group(r) for r in b.terms}) == 1 and len(b.terms) > 1 for r in b.terms}
    for r, step in terms.items():
        if r not in ended:
            same.setdefault(step, set()).add(r)
    # What one guard compares, and what steps alike, is one coordinate.
    for together in [*[set(b.terms) for b in bounds if len({group(r) for r in b.terms}) > 1],
                     *[found for found in same.values() if len(found) > 1]]:  # fmt: skip
        touching = [w for w in windows if w & together]
        windows = [w for w in windows if not w & together]
        windows.append(together.union(*touching))
    axes = [{r: terms[r] for r in window} for window in windows]
    taken = {r for window in windows for r in window}
    for key in dict.fromkeys(group(r) for r in terms if r not in taken):
        run: dict[UOp, int] = {}
        end = 0
        for r in sorted((r for r in terms if r not in taken and group(r) == key), key=terms.__getitem__):
            last = next(reversed(run), None)
            if last is None or terms[r] != end or (r in inside and last not in inside):
                run = {}
                axes.append(run)
            run[r] = terms[r]
            end = terms[r] * (range_size(r) or 1)
    return axes


def _fitting(axes: list[Axis], inside: Collection[UOp], itemsize: int) -> list[Axis] | str:
    """The axes, or why an engine cannot move such boxes."""
    if len(axes) > MOST_AXES:
        return f"it has {len(axes)} axes, and a box at most {MOST_AXES}"
    for number, axis in enumerate(axes):
        if number and axis.stride * itemsize % GRAIN:
            return f"rows are {axis.stride * itemsize} bytes apart, which is no multiple of {GRAIN}"
        apart = axis.apart(inside)
        if number and axis.length(inside) * apart > LARGEST:
            return f"a box of {axis.length(inside)} elements along an axis is too long"
        if apart > (FURTHEST if number else 1):
            return f"elements are {apart} apart"
        end = apart
        for r in sorted((r for r in axis.steps if r in inside), key=axis.steps.__getitem__):
            if axis.steps[r] != end:
                return "what is inside of the copy is no part in one piece"
            end *= range_size(r) or 1
    return axes


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


def _bound(guard: UOp) -> _Guard | None:
    """A comparison of a sum of ranges with a constant."""
    if guard.op is not Op.CMPLT:
        return None
    left, right = guard.src
    if right.op is Op.CONST:
        form = affine(left)
        low, high = None, int(right.arg) - form.constant
        found = _Guard(form.terms, low, high)
    elif left.op is Op.CONST:
        form = affine(right)
        found = _Guard(form.terms, int(left.arg) + 1 - form.constant, None)
    else:
        return None
    return found if all(r.op is Op.RANGE and step > 0 for r, step in found.terms.items()) else None


def stored_guards(sink: UOp) -> list[UOp]:
    """The guards that all stores of a kernel have: where they do not hold, nothing is used."""
    found: list[UOp] | None = None
    for store in sink.src:
        own = guards(store.src[0])
        found = own if found is None else [guard for guard in found if guard in own]
    return found or []
