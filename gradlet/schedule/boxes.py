"""Which elements of memory a view shows: sets of addresses, and proofs that two of them never meet or that one covers
the other."""

from __future__ import annotations

from collections.abc import Sequence
from math import gcd, prod
from typing import Final, NamedTuple

from gradlet.graph.bounds import bounds
from gradlet.graph.node import UOp
from gradlet.ops.op import Op
from gradlet.rules.linear import take_apart
from gradlet.schedule.moves import chain_to

Shape = tuple[int, ...]
# Sizes with their distances in memory.
Terms = tuple[tuple[int, int], ...]


class Layout(NamedTuple):
    """An affine view of memory: element `i` lies at `start` + sum of `i[axis] * stride[axis]`."""

    start: int
    shape: Shape
    strides: tuple[int, ...]


class Box(NamedTuple):
    """A set of addresses: `start` + sum of factor * variable + sum of stride * (0 .. size - 1).

    Attributes:
        start: the smallest address, less what the variables add.
        terms: (stride, size) with stride > 0 and size > 1, largest stride first; a size of 0 stands for the empty set.
        variables: (VARIABLE node, factor) in order of their names.
        exact: whether every address belongs to the set; otherwise some may not.
    """

    start: int
    terms: Terms
    variables: tuple[tuple[UOp, int], ...] = ()
    exact: bool = True

    @property
    def is_empty(self) -> bool:
        """Whether there is no address in it."""
        return any(size == 0 for _, size in self.terms)


EMPTY: Final = Box(0, ((1, 0),))


def whole(node: UOp) -> Box:
    """All elements of a node's memory."""
    return make_box(0, ((1, prod(node.shape)),))


def make_box(start: int, terms: Sequence[tuple[int, int]], exact: bool = True) -> Box:
    """A box from any strides: none negative, none needless, neighbours joined."""
    kept: list[tuple[int, int]] = []
    for stride, size in terms:
        if size == 0:
            return EMPTY
        if size > 1 and stride:
            start += min(0, stride * (size - 1))
            kept.append((abs(stride), size))
    kept.sort()
    joined: list[tuple[int, int]] = []
    for stride, size in kept:
        if joined and joined[-1][0] * joined[-1][1] == stride:
            stride, size = joined[-1][0], joined[-1][1] * size
            joined.pop()
        joined.append((stride, size))
    return Box(start, tuple(reversed(joined)), (), exact)


# views
def row_major(shape: Shape) -> tuple[int, ...]:
    """Distances of neighbours on every axis of memory in order."""
    strides: list[int] = []
    step = 1
    for size in reversed(shape):
        strides.append(step)
        step *= size
    return tuple(reversed(strides))


def layout_of(view: UOp, bottom: UOp) -> Layout | None:
    """The elements of `bottom`'s memory that a chain of movement ops shows; None when they are no affine view."""
    layout, _ = _walk(view, bottom)
    return layout


def box_of(view: UOp, bottom: UOp) -> Box:
    """The elements of `bottom`'s memory that a chain of movement ops shows, or more where they are no affine view."""
    layout, below = _walk(view, bottom)
    if 0 in view.shape:
        return EMPTY
    if layout is not None:
        return make_box(layout.start, tuple(zip(layout.strides, layout.shape, strict=True)))
    return make_box(below.start, tuple(zip(below.strides, below.shape, strict=True)), exact=False)


def _walk(view: UOp, bottom: UOp) -> tuple[Layout | None, Layout]:
    """The layout if there is one, and that of the last view on the way that has one."""
    layout = Layout(0, bottom.shape, row_major(bottom.shape))
    for moved in reversed(chain_to(view, bottom)):
        above = _move(moved, layout)
        if above is None:
            return None, layout
        layout = above
    return layout, layout


def _move(moved: UOp, below: Layout) -> Layout | None:
    """The layout of one movement op over another layout."""
    op, arg = moved.op, moved.arg
    start, shape, strides = below
    if op is Op.RESHAPE:
        split = _reshape(shape, strides, arg.shape)
        return None if split is None else Layout(start, arg.shape, split)
    if op is Op.PERMUTE:
        return Layout(start, tuple([shape[a] for a in arg.axes]), tuple([strides[a] for a in arg.axes]))
    if op is Op.EXPAND:
        steps = [0 if old != new else stride for old, new, stride in zip(shape, arg.shape, strides, strict=True)]
        return Layout(start, arg.shape, tuple(steps))
    if op is Op.SHRINK:
        start += sum(low * stride for (low, _), stride in zip(arg.bounds, strides, strict=True))
        return Layout(start, moved.shape, strides)
    if op is Op.FLIP:
        start += sum(strides[a] * (shape[a] - 1) for a in arg.axes)
        return Layout(start, shape, tuple([-s if a in arg.axes else s for a, s in enumerate(strides)]))
    if op is Op.STRIDE:
        return Layout(start, moved.shape, tuple([s * step for s, step in zip(strides, arg.steps, strict=True)]))
    if op is Op.PAD and not any(before or after for before, after in arg.pads):
        return below
    if op is Op.WINDOW:
        axis, window_axis, stride, dilation, size = arg
        if (size - 1) * stride + (shape[window_axis] - 1) * dilation >= shape[axis]:
            return None
        steps = list(strides)
        steps[axis] = strides[axis] * stride
        steps[window_axis] += strides[axis] * dilation
        return Layout(start, moved.shape, tuple(steps))
    return None


def _reshape(shape: Shape, strides: Sequence[int], new: Shape) -> tuple[int, ...] | None:
    """Strides under a new shape; None when elements that become neighbours are not evenly spaced."""
    if 0 in new:
        return (0,) * len(new)
    old = [(size, stride) for size, stride in zip(shape, strides, strict=True) if size != 1]
    result: list[int] = []
    position = 0
    axis = 0
    while axis < len(new):
        if new[axis] == 1:
            result.append(0)
            axis += 1
            continue
        # The fewest old axes and new axes with the same number of elements.
        have, want = old[position][0], new[axis]
        first_old, first_new = position, axis
        while have != want:
            if have < want:
                position += 1
                have *= old[position][0]
            else:
                axis += 1
                want *= new[axis]
        for (_, outer), (size, inner) in zip(old[first_old:position], old[first_old + 1 : position + 1], strict=True):
            if outer != size * inner:
                return None
        step = old[position][1]
        parts: list[int] = []
        for size in reversed(new[first_new : axis + 1]):
            parts.append(step)
            step *= size
        result.extend(reversed(parts))
        position += 1
        axis += 1
    return tuple(result)


# rows by number
def row_box(table: UOp, index: UOp, bottom: UOp) -> Box:
    """The elements that rows `index` of a view `table` show.

    Where the row number is one sum of constants and variables that stays inside the table, it is the box of that row.
    """
    number = scalar_index(index)
    layout = layout_of(table, bottom)
    if number is None or layout is None:
        return box_of(table, bottom)._replace(exact=False)
    constant, variables = number
    low = constant + sum(min(f * v.arg.low, f * v.arg.high) for v, f in variables)
    high = constant + sum(max(f * v.arg.low, f * v.arg.high) for v, f in variables)
    if low < 0 or high >= layout.shape[0]:
        return box_of(table, bottom)._replace(exact=False)
    step = layout.strides[0]
    box = make_box(layout.start + step * constant, tuple(zip(layout.strides[1:], layout.shape[1:], strict=True)))
    return box._replace(variables=tuple([(v, f * step) for v, f in variables if f * step]))


def scalar_index(index: UOp) -> tuple[int, tuple[tuple[UOp, int], ...]] | None:
    """A single number as constant + sum of factor * VARIABLE; None when it is something else."""
    if prod(index.shape) != 1:
        return None
    constant = 0
    factors: dict[UOp, int] = {}
    pending = [(index, 1)]
    while pending:
        node, factor = pending.pop()
        if node.op is Op.CONST and node.dtype.is_int | (node.dtype.kind == "x"):
            constant += factor * int(node.arg)
        elif node.op is Op.VARIABLE:
            factors[node] = factors.get(node, 0) + factor
        elif node.op is Op.BIND:
            pending.append((node.src[0], factor))
        elif node.op in (Op.RESHAPE, Op.EXPAND, Op.CONTIGUOUS):
            pending.append((node.src[0], factor))
        elif node.op is Op.CAST and _is_exact_cast(node):
            pending.append((node.src[0], factor))
        elif node.op is Op.ADD and _stays_inside(node):
            pending += [(node.src[0], factor), (node.src[1], factor)]
        elif node.op is Op.MUL and node.src[1].op is Op.CONST and _stays_inside(node):
            pending.append((node.src[0], factor * int(node.src[1].arg)))
        else:
            return None
    named = sorted(factors.items(), key=lambda item: (item[0].arg, item[0].dtype.name))
    return constant, tuple([(v, f) for v, f in named if f])


def _is_exact_cast(node: UOp) -> bool:
    """Whether a conversion between integers changes no value that occurs."""
    source = node.src[0]
    if not (_is_integer(node) and _is_integer(source)):
        return False
    low, high = bounds(source)
    return bool(node.dtype.min <= low and high <= node.dtype.max)


def _stays_inside(node: UOp) -> bool:
    """Whether a sum or product of integers cannot wrap."""
    if not _is_integer(node):
        return False
    if node.dtype.kind == "x":
        return True
    (a, b), (c, d) = bounds(node.src[0]), bounds(node.src[1])
    ends = (a + c, b + d) if node.op is Op.ADD else (a * c, a * d, b * c, b * d)
    return bool(node.dtype.min <= min(ends) and max(ends) <= node.dtype.max)


def _is_integer(node: UOp) -> bool:
    return node.dtype.is_int or node.dtype.kind == "x"


# kernels
def box_of_address(element: UOp) -> Box:
    """All addresses that an element number can take while its ranges run (KERNEL stage), and maybe more."""
    total = take_apart(element)
    if total is None:
        low, high = bounds(element)
        return make_box(low, ((1, high - low + 1),), exact=False)
    start = total.constant
    terms: list[tuple[int, int]] = []
    variables: list[tuple[UOp, int]] = []
    for node, factor in total.terms.items():
        if node.op is Op.RANGE and node.src[0].op is Op.CONST:
            terms.append((factor, int(node.src[0].arg)))
        elif node.op is Op.VARIABLE:
            variables.append((node, factor))
        else:
            low, high = bounds(node)
            start += factor * low
            terms.append((factor, high - low + 1))
    variables.sort(key=lambda item: item[0].arg)
    return make_box(start, terms, exact=False)._replace(variables=tuple(variables))


# relations
def disjoint(a: Box, b: Box) -> bool:
    """Whether no address lies in both, whatever the values of the variables."""
    if a.is_empty or b.is_empty:
        return True
    a, b = _without_variables(a, b)
    return _apart(a.start, a.terms, b.start, b.terms)


def covers(a: Box, b: Box) -> bool:
    """Whether every address of `b` certainly lies in `a`."""
    if b.is_empty:
        return True
    if a.is_empty or not a.exact or a.variables != b.variables:
        return False
    return _contains(a.start, a.terms, b.start, b.terms)


def same(a: Box, b: Box) -> bool:
    """Whether both are certainly the same addresses."""
    return covers(a, b) and covers(b, a)


def _without_variables(a: Box, b: Box) -> tuple[Box, Box]:
    """Boxes without variables that meet wherever the two do: common ones cancel, others take all their values."""
    ours, theirs = dict(a.variables), dict(b.variables)
    for variable in list(ours):
        if theirs.get(variable) == ours[variable]:
            del ours[variable], theirs[variable]
    return _all_values(a, ours), _all_values(b, theirs)


def _all_values(box: Box, variables: dict[UOp, int]) -> Box:
    start, terms = box.start, list(box.terms)
    for variable, factor in variables.items():
        start += factor * variable.arg.low
        terms.append((factor, variable.arg.high - variable.arg.low + 1))
    return make_box(start, terms, box.exact and not variables)


def _reach(terms: Sequence[tuple[int, int]]) -> int:
    """Distance from the first to the last address."""
    return sum(stride * (size - 1) for stride, size in terms)


def _apart(start_a: int, a: Terms, start_b: int, b: Terms) -> bool:
    """Whether two sets of addresses have none in common.

    Addresses are split into digits, quotient and rest by some stride, wherever both sets are products of a set of
    quotients and a set of rests; they are apart where one of the digits is.
    """
    pending = [(start_a, a, start_b, b)]
    while pending:
        start_a, a, start_b, b = pending.pop()
        if start_a + _reach(a) < start_b or start_b + _reach(b) < start_a:
            return True
        step = gcd(*[stride for stride, _ in (*a, *b)])
        if start_a != start_b if step == 0 else (start_a - start_b) % step:
            return True
        for stride in sorted({stride for stride, _ in (*a, *b)}, reverse=True):
            parts = _digits(stride, start_a, a, start_b, b) if stride > step else None
            if parts is not None:
                pending.extend(parts)
                break
    return False


_Pair = tuple[int, Terms, int, Terms]


def _digits(stride: int, start_a: int, a: Terms, start_b: int, b: Terms) -> tuple[_Pair, _Pair] | None:
    """Two sets as quotients and as rests of division by `stride`; None where they are no products of these."""
    high_a, low_a = _divide(stride, a)
    high_b, low_b = _divide(stride, b)
    if high_a is None or high_b is None:
        return None
    reach_a, reach_b = _reach(low_a), _reach(low_b)
    if reach_a >= stride or reach_b >= stride:
        return None
    # Moving both by the same amount changes nothing: look for one that lets no set cross a multiple of the stride.
    distance = start_b - start_a
    for shift in (0, stride - 1 - reach_a, -distance % stride, (stride - 1 - reach_b - distance) % stride):
        quotient, rest = divmod(distance + shift, stride)
        if shift + reach_a < stride and rest + reach_b < stride:
            return (0, high_a, quotient, high_b), (shift, low_a, rest, low_b)
    return None


def _divide(stride: int, terms: Terms) -> tuple[Terms | None, Terms]:
    high: list[tuple[int, int]] = []
    low: list[tuple[int, int]] = []
    for step, size in terms:
        if step < stride:
            low.append((step, size))
        elif step % stride:
            return None, ()
        else:
            high.append((step // stride, size))
    return tuple(high), tuple(low)


def _contains(start_a: int, a: Terms, start_b: int, b: Terms) -> bool:
    """Whether the first set certainly has all addresses of the second."""
    pending = [(start_a, a, start_b, b)]
    while pending:
        start_a, a, start_b, b = pending.pop()
        if len(a) <= 1:
            step, size = a[0] if a else (1, 1)
            distance = start_b - start_a
            if distance % step or any(stride % step for stride, _ in b):
                return False
            if distance < 0 or distance + _reach(b) > step * (size - 1):
                return False
            continue
        for stride, _ in a:
            parts = _digits(stride, start_a, a, start_b, b) if stride > a[-1][0] else None
            if parts is not None:
                pending.extend(parts)
                break
        else:
            return False
    return True
