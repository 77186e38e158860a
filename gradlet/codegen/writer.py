"""A linear program as it is written: loops open and close; what an open one has computed is not computed again."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from gradlet.base.dtype import dtypes
from gradlet.graph.node import UOp, mk
from gradlet.ops.op import AxisKind, Op, TurnArg
from gradlet.optimize.analysis import make_range

_ACTS: Final = frozenset({Op.STORE, Op.PASS_ON, Op.WAIT, Op.COPY_BOX, Op.STORE_BOX, Op.BARRIER, Op.COMMIT})
_CHANGES: Final = frozenset({Op.TURN, Op.WGMMA, Op.ACROSS})


class Writer:
    """Nodes in order.

    Args:
        number: of the next loop.
    """

    def __init__(self, number: int) -> None:
        self.result: list[UOp] = []
        self.number = number
        self._turns = 0
        self._open: list[tuple[UOp | None, set[UOp]]] = [(None, set())]
        self._changing: set[UOp] = set()  # what may be something else when it stands in the program again

    def put(self, node: UOp) -> UOp:
        """Put a node into the program, unless an open loop has it already and it is still the same."""
        if node.op in _ACTS:
            self.result.append(node)
            return node
        if node.op in _CHANGES or _is_register(node) or not self._changing.isdisjoint(node.src):
            self._changing.add(node)
            self._open[-1][1].add(node)
            self.result.append(node)
        elif not any(node in seen for _, seen in self._open):
            self._open[-1][1].add(node)
            self.result.append(node)
        return node

    def emit(self, node: UOp) -> UOp:
        """Put a node and what it needs; loops are open."""
        for part in node.toposort():
            if part.op is not Op.RANGE and (part is node or not any(part in seen for _, seen in self._open)):
                self.put(part)
        return node

    def open(self, size: UOp | int, kind: AxisKind) -> UOp:
        """Open a loop."""
        size = size if isinstance(size, UOp) else UOp.const(dtypes.index, size)
        loop = make_range(self.emit(size), self.number, kind)
        self.number += 1
        self.result.append(loop)
        self._open.append((loop, {loop}))
        return loop

    def close(self, loop: UOp) -> None:
        """Close the loop that was opened last."""
        self._open.pop()
        self.result.append(mk(Op.END, dtypes.void, (loop,)))

    def turn(self, ring: UOp, full: bool) -> UOp:
        """The next buffer of a ring, once it may be used, or filled."""
        self._turns += 1
        return self.emit(mk(Op.TURN, dtypes.index, (ring, UOp.const(dtypes.index, self._turns)), TurnArg(full)))


def _is_register(node: UOp) -> bool:
    return node.op is Op.LOAD and node.src[0].src[0].op is Op.LOCAL and bool(node.src[0].src[0].arg.private)


def closure(first: Iterable[UOp], nodes: Iterable[UOp]) -> set[UOp]:
    """Nodes, and those of a program, in order, that need one of them."""
    found = set(first)
    for node in nodes:
        if not found.isdisjoint(node.src):
            found.add(node)
    return found
