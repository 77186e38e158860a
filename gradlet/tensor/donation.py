"""Donation: a result goes into the memory of an input that nobody else can see, so `x = x + 1` needs memory once.

Who can see a value is decided by reference counts: a buffer is given away only if every reference to it, and to every
expression between it and the result, comes from that one result. Tensors, views, lazy values, captured functions and
nodes that somebody keeps all count; memory that belongs to an array or that was exported is never given away.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from math import prod
from typing import Any, Final

from gradlet.base.dtype import dtypes
from gradlet.engine import execute
from gradlet.graph.node import UOp, by_uid, mk
from gradlet.ops.op import ELEMENTWISE, Op
from gradlet.runtime.buffer import buffer_of
from gradlet.schedule.boxes import Layout, layout_of, row_major
from gradlet.schedule.moves import root_of
from gradlet.tensor import writes

# Smaller results are not worth the question.
LEAST_BYTES: int = 1 << 20
# A result is looked at this many expressions deep.
MOST_NODES: Final = 64


_BUFFER_BIT: Final = 1 << Op.BUFFER


def donate(roots: Sequence[UOp], asked: Sequence[UOp], alive: Sequence[Any]) -> dict[UOp, UOp]:
    """Roots that may be computed into the memory of one of their inputs, each with the write that does so.

    Args:
        roots: what is going to be computed, each once.
        asked: the same as the caller holds it, maybe several times.
        alive: all tensors.
    """
    if execute.recording():
        return {}  # a replay gets other inputs, which are the caller's
    result: dict[UOp, UOp] = {}
    for root in roots:
        if root.op not in ELEMENTWISE or not root.mask & _BUFFER_BIT:
            continue
        if prod(root.shape) * root.dtype.itemsize < LEAST_BYTES:
            continue
        view = _view_to_overwrite(root)
        if view is None:
            continue
        # Besides the list of roots: the variable of this loop, the caller's list, tensors.
        known = 1
        for node in asked:
            known += node is root
        for tensor in alive:
            known += tensor.uop is root
        del node
        if sys.getrefcount(root) == _HELD_ONCE + known:
            result[root] = writes.store(view, (), root)
    return result


def _view_to_overwrite(root: UOp) -> UOp | None:
    """A view, shaped like the root, of a buffer whose elements only the root reads, each where it computes its own."""
    cone = _element_wise_below(root)
    own = Layout(0, root.shape, row_major(root.shape))
    for number in range(len(cone)):
        buffer = cone[number]
        if buffer.op is not Op.BUFFER or buffer.dtype is not root.dtype or buffer.arg.size != prod(root.shape):
            continue
        views = _views_of(buffer, cone)
        if len(views) != 1 or layout_of(views[0], buffer) != own:
            continue
        position = cone.index(views.pop())
        if is_exported(buffer):
            continue
        del buffer  # from here on the list alone holds it
        if _is_unseen(number, cone):
            return cone[position]
    return None


def _element_wise_below(root: UOp) -> list[UOp]:
    """The root and what it reads element by element, sources first: element-wise ops, views of buffers, the buffers.

    Nothing if that is too much to look at.
    """
    found = {root}
    pending = [root]
    while pending:
        node = pending.pop()
        for source in node.src:
            inside = node.op in ELEMENTWISE and source.op in ELEMENTWISE and source.shape == root.shape
            if source not in found and (inside or root_of(source).op is Op.BUFFER):
                found.add(source)
                pending.append(source)
        if len(found) > MOST_NODES:
            return []
    return sorted(found, key=by_uid)


def _views_of(buffer: UOp, cone: Sequence[UOp]) -> list[UOp]:
    """The nodes through which element-wise ops of the cone read a buffer."""
    operands = dict.fromkeys([source for node in cone if node.op in ELEMENTWISE for source in node.src])
    return [source for source in operands if root_of(source) is buffer]


def _is_unseen(number: int, cone: list[UOp]) -> bool:
    """Whether every reference to a buffer (by its place in the cone), and to all that is made from it below the root,
    comes from the cone."""
    users = [0] * len(cone)
    depends = [False] * len(cone)
    depends[number] = True
    place = {id(node): i for i, node in enumerate(cone)}
    for i in range(len(cone)):
        for j in [place[id(source)] for source in cone[i].src if id(source) in place]:
            users[j] += 1
            depends[i] = depends[i] or depends[j]
    below = [i for i in range(len(cone) - 1) if depends[i]]
    if any(sys.getrefcount(cone[i]) != _HELD_ONCE + users[i] for i in below):
        return False
    # Somebody may also hold the sources of a node.
    return all(i == number or sys.getrefcount(cone[i].src) == _SOURCES_HELD for i in (*below, len(cone) - 1))


def is_exported(node: UOp) -> bool:
    """Whether the memory of a BUFFER node belongs to somebody else, or somebody has a view of its bytes."""
    buffer = buffer_of(node)
    return buffer.is_external or sys.getrefcount(buffer) != _HELD_BY_TABLE


def _held_once() -> int:
    """What `getrefcount` says of an object that one list holds and nothing else."""
    probe = [object()]
    return sys.getrefcount(probe[0])


def _sources_held() -> int:
    """What `getrefcount` says of the sources of a node that nobody looks at."""
    probe = mk(Op.SQRT, dtypes.float64, (UOp.const(dtypes.float64, 0.7182818284),), None)
    return sys.getrefcount(probe.src)


def _held_by_table() -> int:
    """What `getrefcount` says of an object that a dictionary and one variable hold."""
    probe = {0: object()}
    held = probe[0]
    return sys.getrefcount(held)


_HELD_ONCE: Final = _held_once()
_SOURCES_HELD: Final = _sources_held()
_HELD_BY_TABLE: Final = _held_by_table()
