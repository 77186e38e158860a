"""Chains of movement ops between a step and its operand: what they mean for prices, found once for equal chains."""

from __future__ import annotations

from math import prod
from typing import Final, NamedTuple

from gradlet.graph.node import UOp
from gradlet.ops.op import MOVEMENT, SCALAR_LEAVES, Op

# Work of finding out whether an element exists, and which it is, where it is more than a stride.
_GUARD_WORK: Final = {Op.PAD: 4, Op.WINDOW: 1, Op.UNWINDOW: 8}

Axes = frozenset[int]
NOTHING: Final[Axes] = frozenset()


class View(NamedTuple):
    """A chain of movement ops over a value.

    Attributes:
        name: equal for equal chains over values of one shape, type and kind.
        elements: how many distinct elements are read at most.
        guard_work: work of index arithmetic for one element.
        axes: axes of the operand that decide which element is read.
    """

    name: int
    elements: int
    guard_work: int
    axes: tuple[int, ...]


class Views:
    """The views of one graph."""

    def __init__(self) -> None:
        self._of: dict[UOp, View] = {}
        self._known: dict[object, View] = {}

    def of(self, operand: UOp, source: UOp) -> View:
        """The view that an operand is of the source below its movement ops."""
        found = self._of.get(operand)
        if found is None:
            chain: list[object] = []
            node = operand
            while node is not source:
                chain.append((node.op, node.arg, node.src[1:]))
                node = node.src[0]
            kind = source.op if source.op is Op.BUFFER or source.op in SCALAR_LEAVES else None
            key = (tuple(chain), source.shape, source.dtype, kind)
            found = self._known.get(key)
            if found is None:
                found = self._known[key] = _describe(len(self._known), operand, source)
            self._of[operand] = found
        return found


def _describe(name: int, operand: UOp, source: UOp) -> View:
    elements = prod(source.shape)
    work = 0
    node = operand
    while node is not source:
        elements = min(elements, prod(node.shape))
        if node.op in MOVEMENT:
            work += _GUARD_WORK.get(node.op, 0)
        node = node.src[0]
    return View(name, elements, work, tuple(sorted(deciding_axes(operand, source))))


def deciding_axes(operand: UOp, source: UOp) -> Axes:
    """The axes of an operand that decide which element of `source` is read."""
    needs: list[Axes] = [frozenset((axis,)) for axis in range(len(operand.shape))]
    node = operand
    while node is not source:
        below = node.src[0]
        if node.op is Op.RESHAPE:
            if below is source and below.op is Op.BUFFER:
                break
            needs = _through_reshape(needs, node.shape, below.shape)
        elif node.op is Op.EXPAND:
            needs = [NOTHING if size == 1 else n for n, size in zip(needs, below.shape, strict=True)]
        elif node.op is Op.PERMUTE:
            moved = list(needs)
            for n, axis in zip(needs, node.arg.axes, strict=True):
                moved[axis] = n
            needs = moved
        elif node.op is Op.WINDOW or node.op is Op.UNWINDOW:
            needs[node.arg.axis] = needs[node.arg.axis] | needs[node.arg.window_axis]
        node = below
    return NOTHING.union(*needs)


def _through_reshape(needs: list[Axes], new: tuple[int, ...], old: tuple[int, ...]) -> list[Axes]:
    result: list[Axes] = []
    position = axis = 0
    while axis < len(old):
        first = axis
        size_old, size_new = old[axis], 1
        axis += 1
        together: Axes = NOTHING
        while size_old != size_new and (position < len(new) or axis < len(old)):
            if size_new < size_old and position < len(new):
                size_new *= new[position]
                together |= needs[position]
                position += 1
            elif axis < len(old):
                size_old *= old[axis]
                axis += 1
            else:
                break
        result.extend([NOTHING if old[k] == 1 else together for k in range(first, axis)])
    return result
