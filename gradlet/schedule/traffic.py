"""What one lowered kernel moves and computes: unique bytes of every operand, operations. For explanations and tables."""

from __future__ import annotations

from collections.abc import Iterable
from math import prod
from typing import NamedTuple

from gradlet.graph.bounds import bounds
from gradlet.graph.node import UOp, toposort
from gradlet.ops.op import ELEMENTWISE, Op
from gradlet.schedule.calls import KernelCall

_FREE = frozenset({Op.CAST, Op.BITCAST, Op.WHERE})


class Traffic(NamedTuple):
    """One launch, variables at their largest.

    Attributes:
        read: unique bytes of operands.
        written: unique bytes of results.
        operations: arithmetic operations on values (index arithmetic is not counted).
    """

    read: int
    written: int
    operations: int

    @property
    def bytes(self) -> int:
        """Bytes read and written."""
        return self.read + self.written


def traffic_of(call: KernelCall) -> Traffic:
    """Count one kernel call."""
    order = toposort((call.ast,))
    trips = {n: max(0, int(bounds(n)[1]) + 1) for n in order if n.op is Op.RANGE}
    stored = {s.src[0] for s in call.ast.src}
    reads: dict[UOp, list[UOp]] = {}
    writes: dict[UOp, list[UOp]] = {}
    for node in order:
        if node.op is Op.INDEX and node in stored:
            writes.setdefault(node.src[0], []).append(node)
        if node.op is Op.LOAD:
            reads.setdefault(node.src[0].src[0], []).append(node.src[0])
    read = sum(_touched(p, dict.fromkeys(addresses), trips) for p, addresses in reads.items())
    written = sum(_touched(p, addresses, trips) for p, addresses in writes.items())
    return Traffic(read, written, _operations(order, trips))


def _touched(param: UOp, addresses: Iterable[UOp], trips: dict[UOp, int]) -> int:
    """Bytes of the union of what these addresses can reach, at most one element an iteration."""
    intervals: list[tuple[int, int]] = []
    evaluated = 0
    for address in addresses:
        element = address.src[1]
        evaluated += prod(trips[r] for r in element.ranges)
        low, high = bounds(element)
        intervals.append((max(0, int(low)), min(param.arg.size - 1, int(high))))
    covered = end = 0
    for low, high in sorted(intervals):
        covered += max(0, high + 1 - max(low, end))
        end = max(end, high + 1)
    return min(covered, evaluated) * param.dtype.itemsize


def _operations(order: Iterable[UOp], trips: dict[UOp, int]) -> int:
    total = 0
    for node in order:
        if node.dtype.name == "index":
            continue
        if node.op in ELEMENTWISE and node.op not in _FREE:
            total += prod(trips[r] for r in node.ranges)
        elif node.op is Op.REDUCE:
            total += prod(trips[r] for r in node.src[0].ranges)
    return total
