"""Sums that select one element by its number become a read of that element: one_hot @ W, where(i == j, x, 0).sum().

What is recognised is the structure, however it was spelled: a sum along an axis over a product with (or a select by) a
test that compares that axis' own position with an integer that does not depend on it. A number outside the axis gives
0, as in the sum. What a product multiplies by 0 is not read, so an infinity there is no NaN in the result: with
STRICT_FLOAT only selects and integers are rewritten.

The other way round, a sum over what the integer depends on, for every position of an axis that is kept, adds each term
to one element: the gradient of one_hot @ W, a histogram.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Final, NamedTuple

from gradlet.base.dtype import accumulator
from gradlet.base.settings import STRICT_FLOAT
from gradlet.graph.allocation import COUNTER_NUMBER
from gradlet.graph.node import UOp, mk, toposort
from gradlet.ops.op import (
    ELEMENTWISE,
    MOVEMENT,
    SCALAR_LEAVES,
    AxesArg,
    GatherArg,
    Op,
    ReduceAxesArg,
    ScatterArg,
    ShapeArg,
    ShrinkArg,
)
from gradlet.schedule.clean import REDUCES, rebuild
from gradlet.schedule.moves import replay, reshape

# How many nodes below one are looked at; deeper expressions are taken as unknown.
DEPTH: Final = 24
# The value is computed from its operands at the selected place if it is made of at most so many steps.
MOST_STEPS: Final = 16
# For fewer positions a matrix product is as fast as adding one by one.
MANY_POSITIONS: Final = 64
_TESTS: Final = 1 << Op.CMPEQ
_NEEDED: Final = 1 << Op.REDUCE_AXES | _TESTS
# Movement that a test goes through unchanged: the others make elements that the test does not have.
_PLAIN: Final = MOVEMENT - {Op.PAD, Op.WINDOW, Op.UNWINDOW}


class Selection(NamedTuple):
    """A sum that selects.

    Attributes:
        axis: the axis of the summed value along which one element is selected.
        number: which one, with the axes of the value except that one.
        factors: what is multiplied.
    """

    axis: int
    number: UOp
    factors: tuple[UOp, ...]


class Line(NamedTuple):
    """An integer that is `constant` plus the sum of `steps` times the positions on its axes."""

    steps: tuple[int, ...]
    constant: int


def pick_selected(root: UOp) -> UOp:
    """The graph with every sum that selects as a read."""
    if root.mask & _NEEDED != _NEEDED:
        return root
    order = toposort((root,))
    if not any(_is_counter(n) for n in order if not n.src):
        return root

    def change(node: UOp, src: tuple[UOp, ...]) -> UOp | None:
        if node.arg.op is not Op.ADD or node.arg.limited or not src[0].mask & _TESTS:
            return None
        same = mk(node.op, node.dtype, src, node.arg)
        found = find_selection(src[0], node.arg.axes)
        return read_selected(same, found) if found is not None else add_selected(same)

    return rebuild(root, change, REDUCES, order)


def _is_counter(node: UOp) -> bool:
    return node.op is Op.BUFFER and node.arg.number == COUNTER_NUMBER


# recognising
def find_selection(value: UOp, axes: Sequence[int], kept: bool = False) -> Selection | None:
    """How a sum of `value` over `axes` selects, if it does; `kept`: along an axis that is not among them."""
    factors = _factors(value)
    for position, factor in enumerate(factors):
        rest = (*factors[:position], *factors[position + 1 :])
        if factor.op is Op.WHERE and _is_zero(factor.src[2]):
            test, rest = factor.src[0], (*rest, factor.src[1])
        else:
            test = factor
            if STRICT_FLOAT.value and value.dtype.is_float and rest:
                continue
        compared = _compared(test, value.shape)
        if compared is None:
            continue
        for one, other in (compared, compared[::-1]):
            line = position_of(one, DEPTH)
            if line is None or len(line.steps) != len(value.shape):
                continue
            moving = [a for a, step in enumerate(line.steps) if step]
            if len(moving) != 1 or (moving[0] in axes) is kept or line.steps[moving[0]] not in (1, -1):
                continue
            axis = moving[0]
            if other.op not in SCALAR_LEAVES and depends_on(other, axis, DEPTH):
                continue
            return Selection(axis, _number(other, axis, line, value.shape), rest)
    return None


def _factors(value: UOp) -> tuple[UOp, ...]:
    """What a product is made of."""
    found: list[UOp] = []
    stack = [value]
    while stack:
        node = stack.pop()
        if node.op is Op.MUL and len(found) + len(stack) < MOST_STEPS:
            stack.extend(reversed(node.src))
        else:
            found.append(node)
    return tuple(found)


def _is_zero(node: UOp) -> bool:
    return node.op is Op.CONST and not node.arg


def _compared(test: UOp, shape: tuple[int, ...]) -> tuple[UOp, UOp] | None:
    """The two sides of an integer comparison, shaped like the value that it is a factor of."""
    chain: list[UOp] = []
    while test.op in _PLAIN or test.op is Op.CAST:
        if test.op is not Op.CAST:
            chain.append(test)
        elif not (test.src[0].dtype.is_bool or test.src[0].dtype.is_int):
            return None
        test = test.src[0]
    if (
        test.op is not Op.CMPEQ
        or not test.src[0].dtype.is_int
        or test.shape == ()
        or (not chain and test.shape != shape)
    ):
        return None
    one, other = [s if s.op in SCALAR_LEAVES else replay(chain, s) for s in test.src]
    return one, other


def position_of(node: UOp, depth: int) -> Line | None:
    """The integer as a linear function of its position, if that is known."""
    if depth == 0:
        return None
    if _is_counter(node):
        return Line((1,), 0)
    if node.op in MOVEMENT:
        below = position_of(node.src[0], depth - 1)
        return None if below is None else _moved(node, below)
    if node.op is Op.CAST and node.src[0].dtype.is_int and node.dtype.is_int:
        line = position_of(node.src[0], depth - 1)
    elif node.op in (Op.ADD, Op.MUL) and node.src[1].op is Op.CONST:
        line, number = position_of(node.src[0], depth - 1), int(node.src[1].arg)
        if line is not None and node.op is Op.ADD:
            line = Line(line.steps, line.constant + number)
        elif line is not None:
            line = Line(tuple([s * number for s in line.steps]), line.constant * number)
    elif node.op is Op.ADD:
        first, second = [position_of(s, depth - 1) for s in node.src]
        if first is None or second is None or len(first.steps) != len(second.steps):
            return None
        steps = tuple([a + b for a, b in zip(first.steps, second.steps, strict=True)])
        line = Line(steps, first.constant + second.constant)
    else:
        return None
    return line if line is not None and _fits(line, node) else None


def _fits(line: Line, node: UOp) -> bool:
    """Whether every value exists in the node's type, so that nothing wraps around."""
    ends = [step * (size - 1) for step, size in zip(line.steps, node.shape, strict=True) if size]
    low = line.constant + sum(e for e in ends if e < 0)
    high = line.constant + sum(e for e in ends if e > 0)
    return bool(node.dtype.min <= low and high <= node.dtype.max)


def _moved(node: UOp, below: Line) -> Line | None:
    """A linear function of position behind a movement op."""
    op, arg, steps, constant = node.op, node.arg, below.steps, below.constant
    old = node.src[0].shape
    if op is Op.EXPAND:
        return Line(tuple([s if a == b else 0 for s, a, b in zip(steps, old, node.shape, strict=True)]), constant)
    if op is Op.PERMUTE:
        return Line(tuple([steps[a] for a in arg.axes]), constant)
    if op is Op.SHRINK:
        return Line(steps, constant + sum(s * low for s, (low, _) in zip(steps, arg.bounds, strict=True)))
    if op is Op.FLIP:
        turned = tuple([-s if a in arg.axes else s for a, s in enumerate(steps)])
        return Line(turned, constant + sum(steps[a] * (old[a] - 1) for a in arg.axes))
    if op is Op.STRIDE:
        return Line(tuple([s * step for s, step in zip(steps, arg.steps, strict=True)]), constant)
    if op is Op.RESHAPE:
        return _reshaped(node, below)
    return None


def _reshaped(node: UOp, below: Line) -> Line | None:
    """Axes joined when their steps fit together, then cut."""
    if 0 in node.shape:
        return None
    result: list[int] = []
    axes = [(size, step) for size, step in zip(node.src[0].shape, below.steps, strict=True) if size != 1]
    for size in reversed(node.shape):
        if size == 1:
            result.append(0)
            continue
        if not axes:
            return None
        have, step = axes.pop()
        while have % size:
            # Too short, or cut elsewhere: join the next axis if the two count as one.
            if not axes or axes[-1][1] != step * have:
                return None
            more, _ = axes.pop()
            have *= more
        result.append(step)
        if have != size:
            axes.append((have // size, step * size))
    return Line(tuple(reversed(result)), below.constant)


def depends_on(node: UOp, axis: int, depth: int) -> bool:
    """Whether a value may differ along an axis."""
    if node.op in SCALAR_LEAVES or node.shape[axis] == 1:
        return False
    if depth == 0:
        return True
    op, arg = node.op, node.arg
    if op in ELEMENTWISE:
        return any(depends_on(s, axis, depth - 1) for s in node.src if s.op not in SCALAR_LEAVES)
    if op is Op.EXPAND:
        return node.src[0].shape[axis] != 1 and depends_on(node.src[0], axis, depth - 1)
    if op is Op.PERMUTE:
        return depends_on(node.src[0], arg.axes[axis], depth - 1)
    if op is Op.RESHAPE:
        old, before = node.src[0].shape, prod(node.shape[:axis])
        same = [a for a, size in enumerate(old) if size == node.shape[axis] and prod(old[:a]) == before]
        return not same or depends_on(node.src[0], same[0], depth - 1)
    if op in (Op.SHRINK, Op.FLIP, Op.STRIDE) or (op is Op.PAD and arg.pads[axis] == (0, 0)):
        return depends_on(node.src[0], axis, depth - 1)
    if op is Op.REDUCE_AXES:
        kept = [a for a in range(len(node.src[0].shape)) if a not in arg.axes]
        return depends_on(node.src[0], kept[axis], depth - 1)
    return True


def without(node: UOp, axis: int) -> UOp:
    """A value that does not depend on an axis, without that axis."""
    bounds = tuple([(0, 1) if a == axis else (0, size) for a, size in enumerate(node.shape)])
    first = mk(Op.SHRINK, node.dtype, (node,), ShrinkArg(bounds))
    return reshape(first, node.shape[:axis] + node.shape[axis + 1 :])


def _number(other: UOp, axis: int, line: Line, shape: tuple[int, ...]) -> UOp:
    """The position at which the line reaches the other side of the comparison."""
    rest = shape[:axis] + shape[axis + 1 :]
    if other.op in SCALAR_LEAVES:
        flat = reshape(other, (1,) * len(rest))
        number = mk(Op.EXPAND, other.dtype, (flat,), ShapeArg(rest)) if rest != flat.shape else flat
    else:
        number = without(other, axis)
    if line.steps[axis] == -1:
        return number * -1 + line.constant
    return number + -line.constant if line.constant else number


# reading
def read_selected(node: UOp, found: Selection) -> UOp:
    """The sum as a product of what is read at the selected position."""
    axis, number, factors = found
    size = node.src[0].shape[axis]
    whole = node.src[0].shape[:axis] + node.src[0].shape[axis + 1 :]
    parts = [at_number(f, axis, number) for f in factors]
    result = parts[0] if parts else UOp.const(node.dtype, 1)
    for part in parts[1:]:
        result = mk(Op.MUL, node.dtype, (result, part), None)
    if result.op is not Op.GATHER:
        inside = number.lt(size)
        if not number.dtype.is_unsigned:
            inside = inside & UOp.const(number.dtype, -1).lt(number)
        result = mk(Op.WHERE, node.dtype, (inside, result, UOp.const(node.dtype, 0)), None)
    assert result.shape == whole
    rest = tuple([a - (a > axis) for a in node.arg.axes if a != axis])
    return mk(Op.REDUCE_AXES, node.dtype, (result,), ReduceAxesArg(Op.ADD, rest)) if rest else result


def add_selected(node: UOp) -> UOp | None:
    """A sum whose terms go to one position of a kept axis each, as additions to these positions."""
    value, axes = node.src[0], node.arg.axes
    found = find_selection(value, axes, kept=True)
    if found is None or (STRICT_FLOAT.value and node.dtype.is_float):
        return None
    axis, number, factors = found
    size = value.shape[axis]
    others = [a for a in range(len(value.shape)) if a != axis]
    free = [a for a in others if a not in axes]
    if size < MANY_POSITIONS or any(depends_on(number, others.index(a), DEPTH) for a in free):
        return None
    if any(f.op not in SCALAR_LEAVES and depends_on(f, axis, DEPTH) for f in factors):
        return None
    wide = accumulator(node.dtype)  # many terms may meet in one
    terms = UOp.const(wide, 1)
    for factor in factors:
        part = factor if factor.op in SCALAR_LEAVES else without(factor, axis)
        terms = mk(Op.MUL, wide, (terms, part.cast(wide)), None) if terms.op is not Op.CONST else part.cast(wide)
    summed = [others.index(a) for a in others if a in axes]
    order = (*summed, *[others.index(a) for a in free])
    if terms.op not in SCALAR_LEAVES:
        terms = mk(Op.PERMUTE, wide, (terms,), AxesArg(order))
    for a in reversed([others.index(a) for a in free]):
        number = without(number, a)
    shape = (size, *[value.shape[a] for a in free])
    zeros = mk(Op.EXPAND, wide, (reshape(UOp.const(wide, 0), (1,) * len(shape)),), ShapeArg(shape))
    result = mk(Op.SCATTER, wide, (zeros, number, terms), ScatterArg(Op.ADD)).cast(node.dtype)
    behind = sum(a < axis for a in free)
    back = (*range(1, behind + 1), 0, *range(behind + 1, len(shape)))
    return mk(Op.PERMUTE, node.dtype, (result,), AxesArg(back)) if behind else result


def at_number(node: UOp, axis: int, number: UOp) -> UOp:
    """A value at one position of an axis: its operands there, or a gather of what is in memory."""
    steps = _steps(node)
    if steps is None:
        return gathered(node, axis, number)
    new: dict[UOp, UOp] = {}
    for step in steps:
        if step.op in ELEMENTWISE:
            src = tuple([new.get(s, s) for s in step.src])
            new[step] = mk(step.op, step.dtype, src, step.arg)
        elif not depends_on(step, axis, DEPTH):
            new[step] = without(step, axis)
        else:
            new[step] = gathered(step, axis, number)
    return new.get(node, node)


def _steps(node: UOp) -> list[UOp] | None:
    """The element-wise steps of an expression and what they read, sources first; None when there are many."""
    found: dict[UOp, None] = {}
    stack = [node]
    while stack:
        top = stack.pop()
        if top in found or top.op in SCALAR_LEAVES:
            continue
        found[top] = None
        if len(found) > MOST_STEPS:
            return None
        if top.op in ELEMENTWISE:
            stack.extend(top.src)
    return sorted(found, key=lambda n: n.uid)


def gathered(node: UOp, axis: int, number: UOp) -> UOp:
    """One element along an axis for every place on the others."""
    others = tuple([a for a in range(len(node.shape)) if a != axis])
    table = mk(Op.PERMUTE, node.dtype, (node,), AxesArg((*others, axis))) if axis != len(others) else node
    return mk(Op.GATHER, node.dtype, (table, number), GatherArg(len(others)) if others else None)
