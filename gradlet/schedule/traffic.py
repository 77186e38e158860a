"""What one lowered launch moves and computes: unique bytes of operands, operations. For explanations and tables."""

from __future__ import annotations

from collections.abc import Iterable
from math import prod
from typing import NamedTuple

from gradlet.graph.bounds import bounds
from gradlet.graph.launch import body_facts, is_launch, region_blocks, uses
from gradlet.graph.node import UOp, toposort
from gradlet.ops.op import ELEMENTWISE, AxisKind, Op
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


class _Footprint(NamedTuple):
    """What one address can reach in a slot: bytes from `low` to `high`, at most `evaluated` of them."""

    low: int
    high: int
    evaluated: int


class _Work(NamedTuple):
    """What one kernel reads and writes by its PARAM slots, its operations, and those of one block of a region.

    A region does everything for every block, also what does not depend on it.
    """

    reads: dict[int, list[_Footprint]]
    writes: dict[int, list[_Footprint]]
    operations: int
    operations_a_block: int


def traffic_of(call: KernelCall) -> Traffic:
    """Count one kernel call. In a launch of several kernels a byte counts once, values in scratch arrays do not."""
    ast = call.ast
    if not is_launch(ast.arg):
        work = _work(ast)
        return Traffic(_touched(work.reads.values()), _touched(work.writes.values()), work.operations)
    bodies = [_work(body) for body in ast.src]
    reads: dict[int, list[_Footprint]] = {}
    writes: dict[int, list[_Footprint]] = {}
    operations = 0
    facts = [body_facts(body) for body in ast.src]
    for segment in (segment for stage in ast.arg.stages for segment in stage):
        if len(segment) == 1:
            operations += bodies[segment[0].body].operations
        else:
            operations += region_blocks(segment, facts) * sum(bodies[use.body].operations_a_block for use in segment)
    for use in uses(ast.arg):
        work = bodies[use.body]
        for found, total in ((work.reads, reads), (work.writes, writes)):
            for slot, footprints in found.items():
                if use.slots[slot] >= 0:
                    total.setdefault(use.slots[slot], []).extend(footprints)
    return Traffic(_touched(reads.values()), _touched(writes.values()), operations)


def _work(kernel: UOp) -> _Work:
    order = toposort((kernel,))
    trips = {n: max(0, int(bounds(n)[1]) + 1) for n in order if n.op is Op.RANGE}
    loaded = dict.fromkeys(n.src[0] for n in order if n.op is Op.LOAD)
    stored = dict.fromkeys(s.src[0] for s in kernel.src)
    one_block = {r: 1 if r.arg.kind is AxisKind.PARALLEL else size for r, size in trips.items()}
    return _Work(
        _footprints(loaded, trips), _footprints(stored, trips), _operations(order, trips), _operations(order, one_block)
    )  # fmt: skip


def _footprints(addresses: Iterable[UOp], trips: dict[UOp, int]) -> dict[int, list[_Footprint]]:
    """What some addresses can reach, by slot."""
    found: dict[int, list[_Footprint]] = {}
    for address in addresses:
        param, element = address.src[:2]
        size = param.dtype.itemsize
        low, high = bounds(element)
        found.setdefault(param.arg.slot, []).append(
            _Footprint(
                max(0, int(low)) * size,
                min(param.arg.size, int(high) + 1) * size,
                prod(trips[r] for r in element.ranges) * size,
            )
        )
    return found


def _touched(slots: Iterable[list[_Footprint]]) -> int:
    """Bytes of the union of what the footprints in each slot reach, at most one element an iteration."""
    total = 0
    for footprints in slots:
        covered = end = 0
        for low, high, _ in sorted(footprints):
            covered += max(0, high - max(low, end))
            end = max(end, high)
        total += min(covered, sum(f.evaluated for f in footprints))
    return total


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
