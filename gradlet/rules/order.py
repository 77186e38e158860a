"""One total order of nodes that depends on their structure alone, never on when they were made.

Sums put their terms in this order: first what the outer loops decide, so that inner loops add to a ready prefix.
"""

from __future__ import annotations

from functools import cmp_to_key
from typing import Any, Final

from gradlet.graph.node import UOp
from gradlet.ops.op import Op

# Members of an enum are slow to reach through their class.
_CONST: Final = Op.CONST
_RANGE: Final = Op.RANGE


def depth(node: UOp) -> int:
    """The number of the innermost range a node depends on, -1 when it depends on none."""
    ranges = node._ranges
    if ranges is None:
        if node.op is _RANGE and node.src[0].op is _CONST:  # a range never keeps its own
            return int(node.arg.number)
        ranges = node.ranges
    return ranges[-1].arg.number if ranges else -1


def compare(first: UOp, second: UOp) -> int:
    """Negative when `first` comes before `second`, positive when after, 0 only when they are the same node.

    Nodes are interned, so two nodes with equal op, type and arg differ in a source: the first such source decides.
    Therefore one path down is enough.
    """
    difference = depth(first) - depth(second)
    if difference:
        return difference
    while first is not second:
        if first.op is not second.op:
            return int(first.op) - int(second.op)
        if first.dtype is not second.dtype:
            return -1 if repr(first.dtype) < repr(second.dtype) else 1
        if len(first.src) != len(second.src):
            return len(first.src) - len(second.src)
        if first.arg != second.arg or first.op is _CONST:
            return _compare_args(first.arg, second.arg)
        for one, other in zip(first.src, second.src, strict=True):
            if one is not other:
                first, second = one, other
                break
    return 0


def _compare_args(first: Any, second: Any) -> int:
    if first.__class__ is second.__class__:
        try:
            if first < second:
                return -1
            if second < first:
                return 1
        except TypeError:
            pass  # a field may be None
    one, other = _arg_key(first), _arg_key(second)
    return -1 if one < other else 1 if other < one else 0


def _arg_key(arg: Any) -> tuple[Any, ...]:
    """Fields as text: comparable whatever they hold, and 0.0 is not -0.0."""
    fields = arg if isinstance(arg, tuple) else (arg,)
    return (type(arg).__name__, *map(repr, fields))


sort_key = cmp_to_key(compare)
