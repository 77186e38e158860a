"""Indices that are known only at launch: bound variables as positions and as bounds of slices."""

from __future__ import annotations

from typing import Any

from gradlet.base.dtype import dtypes
from gradlet.base.errors import IndexingError
from gradlet.base.symint import Size
from gradlet.graph.bounds import bounds
from gradlet.graph.extents import size_form
from gradlet.graph.node import UOp
from gradlet.ops.op import Op
from gradlet.rules.linear import put_together, take_apart
from gradlet.tensor.symbolic import size_node


def limited_box(part: Any, size: int, axis: int) -> tuple[int, int, UOp | None] | None:
    """The box that a slice from a fixed position to a variable one can reach, and its length; None for other parts.

    A variable that has one possible value makes no length.

    Raises:
        IndexingError: a variable without a value, a step, or positions that for some value of the variables lie outside
            the axis.
    """
    if not isinstance(part, slice):
        return None
    if isinstance(size, Size):
        raise IndexingError(
            f"slice on axis {axis}: its size {size} is known only at launch; take one slice of the whole"
        )
    start = _node(0 if part.start is None else part.start, axis)
    stop = _node(size if part.stop is None else part.stop, axis)
    if start.op is not Op.CONST or size_form(stop) is None or part.step not in (None, 1):
        return None
    length = take_apart(_general(stop))
    if length is None or not length.terms:
        return None
    low, first = bounds(put_together(length, dtypes.index)), int(start.arg)
    if not 0 <= first <= low[0] or low[1] > size:
        names = ", ".join(sorted({repr(n.arg.name) for n in stop.toposort() if n.op is Op.VARIABLE}))
        raise IndexingError(
            f"slice on axis {axis}: by variable {names} it ends between {low[0]} and {low[1]}, which is not between "
            f"its start {first} and the size {size} of the axis; give the variable other limits"
        )
    if low[0] == low[1]:
        return first, int(low[1]), None
    if low[1] - first < 2:
        raise IndexingError(
            f"slice on axis {axis}: a size of 0 or 1 looks like an axis to repeat; give the variable limits that allow "
            "2, or take all positions and mask them"
        )
    return first, int(low[1]), stop + -first if first else stop


def _general(node: UOp) -> UOp:
    """An expression for any value of its variables."""
    return node.substitute({n: n.src[0] for n in node.toposort() if n.op is Op.BIND})


def first_and_count(part: Any, size: int, axis: int) -> tuple[UOp, int | None]:
    """The first position of an index by variables and the number of positions, None for a position that is no slice.

    Args:
        part: a node, or a slice with nodes as bounds.
        size: of the axis.
        axis: its number, for messages.

    Raises:
        IndexingError: a variable without a value, a slice whose length depends on a variable, a step, or positions that
            for some value of the variables lie outside the axis.
    """
    if isinstance(size, Size):
        raise IndexingError(
            f"index by a variable on axis {axis}: its size {size} is known only at launch; index before you slice"
        )
    if not isinstance(part, slice):
        start = _node(part, axis)
        _check_range(start, 1, size, axis)
        return start, None
    if part.step is not None and part.step != 1:
        raise IndexingError(f"slice on axis {axis}: bounds that are variables go with step 1 only, not {part.step!r}")
    start = _node(0 if part.start is None else part.start, axis)
    stop = _node(size if part.stop is None else part.stop, axis)
    difference = take_apart(stop + start * -1)
    if difference is None or difference.terms:
        raise IndexingError(
            f"slice on axis {axis}: how many positions it has depends on a variable, and then it has to begin at a "
            f"fixed one: x[:n]; or take all positions and mask them, as in where(Tensor.arange({size}) < stop, x, 0); "
            "or give both bounds by the variable: x[pos : pos + 4]"
        )
    count = max(0, difference.constant)
    _check_range(start, count, size, axis)
    return start, count


def _node(value: Any, axis: int) -> UOp:
    """A bound as a node of dtype index."""
    if isinstance(value, Size):
        value = size_node(value)
    if not isinstance(value, UOp):
        if isinstance(value, bool) or not isinstance(value, int):
            raise IndexingError(f"slice on axis {axis}: bound {value!r} beside a variable; use integers and variables")
        return UOp.const(dtypes.index, value)
    if value.dtype is not dtypes.index:
        raise IndexingError(f"index on axis {axis} is a node of {value.dtype}; use variables and integers")
    given = {n.src[0] for n in value.toposort() if n.op is Op.BIND}
    for node in value.toposort():
        if node.op is Op.VARIABLE and node not in given:
            raise IndexingError(f"variable {node.arg.name!r} has no value; give it one: {node.arg.name}.bind(3)")
    return value


def _check_range(start: UOp, count: int, size: int, axis: int) -> None:
    """Refuse positions outside the axis, whatever the variables' values: one kernel serves all of them."""
    general = _general(start)
    total = take_apart(general)
    low, high = bounds(general if total is None else put_together(total, dtypes.index))
    if low < 0 or high + count > size:
        names = ", ".join(sorted({repr(n.arg.name) for n in general.toposort() if n.op is Op.VARIABLE}))
        raise IndexingError(
            f"positions {low} to {high + count - 1} by variable {names} may leave axis {axis} of size {size}; give the "
            "variable smaller limits"
        )
