"""Indices that are known only at launch: bound variables as positions and as bounds of slices."""

from __future__ import annotations

from typing import Any

from gradlet.base.dtype import dtypes
from gradlet.base.errors import IndexingError
from gradlet.graph.bounds import bounds
from gradlet.graph.node import UOp
from gradlet.ops.op import Op
from gradlet.rules.linear import put_together, take_apart


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
            f"slice on axis {axis}: how many positions it has depends on a variable, and shapes are fixed; take all "
            f"positions and mask them, as in where(Tensor.arange({size}) < stop, x, 0), or give both bounds by the "
            "variable: x[pos : pos + 4]"
        )
    count = max(0, difference.constant)
    _check_range(start, count, size, axis)
    return start, count


def _node(value: Any, axis: int) -> UOp:
    """A bound as a node of dtype index."""
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
    general = start.substitute({n: n.src[0] for n in start.toposort() if n.op is Op.BIND})
    total = take_apart(general)
    low, high = bounds(general if total is None else put_together(total, dtypes.index))
    if low < 0 or high + count > size:
        names = ", ".join(sorted({repr(n.arg.name) for n in general.toposort() if n.op is Op.VARIABLE}))
        raise IndexingError(
            f"positions {low} to {high + count - 1} by variable {names} may leave axis {axis} of size {size}; give the "
            "variable smaller limits"
        )
