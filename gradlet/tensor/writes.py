"""Writing into part of a value, at the graph: which memory a value lies in, and the value after the write."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, NamedTuple
from weakref import ref

from gradlet.base.errors import ArgumentError
from gradlet.graph.node import UOp, mk
from gradlet.ops.op import MOVEMENT, AxesArg, Op, ShapeArg

# A movement op and its argument; a view is a chain of them over what it shows.
Step = tuple[Op, Any]


class Link(NamedTuple):
    """How a view was made: the tensor it was taken from, the movement op, and how that tensor was made if a view."""

    tensor: ref[Any]
    op: Op
    arg: Any
    before: Link | None


def is_attached(link: Link | None) -> bool:
    """Whether any tensor that the view came from is alive."""
    while link is not None:
        if link.tensor() is not None:
            return True
        link = link.before
    return False


def sources(link: Link | None) -> tuple[list[tuple[Any, int]], list[Step]]:
    """The living tensors that a view came from, each with the number of steps that lead to it, and all the steps.

    The first is the one that lies deepest: the steps begin there.
    """
    links = []
    while link is not None:
        links.append(link)
        link = link.before
    links.reverse()
    found: list[tuple[Any, int]] = []
    steps: list[Step] = []
    for entry in links:
        tensor = entry.tensor()
        if tensor is not None:
            found.append((tensor, len(steps)))
        if found:
            steps.append((entry.op, entry.arg))
    return found, steps


# With these in a view some element has no memory of its own, or shares it.
_NOT_ONE_TO_ONE: Final = frozenset({Op.EXPAND, Op.PAD, Op.WINDOW, Op.UNWINDOW})
# These show every element exactly once.
_ORDER_ONLY: Final = frozenset({Op.RESHAPE, Op.PERMUTE, Op.FLIP})
_MOVEMENT_BITS: Final = sum(1 << op for op in MOVEMENT)


def strip(node: UOp) -> tuple[UOp, list[Step]]:
    """What lies below the movement ops, and those ops from the bottom up."""
    steps: list[Step] = []
    while _MOVEMENT_BITS >> node.op & 1:
        steps.append((node.op, node.arg))
        node = node.src[0]
    steps.reverse()
    return node, steps


def replay(steps: Sequence[Step], node: UOp) -> UOp:
    """The same movement over another node."""
    for op, arg in steps:
        node = mk(op, node.dtype, (node,), arg)
    return node


def in_memory(node: UOp) -> bool:
    """Whether the value is, or will be, a view of realised memory in which every element has its own place."""
    return _lies_in_memory(*strip(node))


def _lies_in_memory(base: UOp, steps: Sequence[Step]) -> bool:
    return base.op in (Op.BUFFER, Op.WRITE) and not any(op in _NOT_ONE_TO_ONE for op, _ in steps)


def store(whole: UOp, path: Sequence[Step], value: UOp) -> UOp:
    """`whole` after `value` was written into a view of it.

    Args:
        whole: the value before.
        path: the movement ops of the view, from `whole` up; none for all of it.
        value: shaped and typed like the view.
    """
    base, steps = strip(whole)
    if _lies_in_memory(base, steps):
        return replay(steps, mk(Op.WRITE, base.dtype, (base, replay(path, whole), value), None))
    if all(op in _ORDER_ONLY for op, _ in path):
        return _undo(whole, path, value)
    return mk(Op.WRITE, whole.dtype, (whole, replay(path, whole), value), None)


def _undo(whole: UOp, path: Sequence[Step], value: UOp) -> UOp:
    """The value in the order of `whole`: the view shows every element once, so nothing of the old value is left."""
    shapes = []
    for op, arg in path:
        shapes.append(whole.shape)
        whole = mk(op, whole.dtype, (whole,), arg)
    for (op, arg), shape in zip(reversed(path), reversed(shapes)):
        if op is Op.RESHAPE:
            arg = ShapeArg(shape)
        elif op is Op.PERMUTE:
            arg = AxesArg(tuple(sorted(range(len(arg.axes)), key=arg.axes.__getitem__)))
        value = mk(op, value.dtype, (value,), arg)
    return value


def check_writable(steps: Sequence[Step], what: str) -> None:
    """Refuse to write where elements share memory.

    Raises:
        ArgumentError: the view repeats elements.
    """
    if any(op is Op.EXPAND for op, _ in steps):
        raise ArgumentError(
            f"{what}: several elements of this expanded view share one place in memory; "
            "call .contiguous() on it first, then write"
        )
