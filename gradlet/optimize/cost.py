"""What one launch of a kernel costs at least: floating point operations and unique bytes."""

from __future__ import annotations

import math
from typing import Final, NamedTuple

from gradlet.graph.node import UOp
from gradlet.ops.op import DOTS, ELEMENTWISE, AxisKind, Op
from gradlet.optimize.analysis import KernelFacts, size_bound

_FREE: Final = frozenset({Op.CAST, Op.BITCAST, Op.WHERE})
_WEIGHTS: Final = {op: 2 if op is Op.MULADD else 1 for op in ELEMENTWISE - _FREE}
_REDUCE: Final = Op.REDUCE  # members of an enum are slow to reach through their class


class Cost(NamedTuple):
    """Floating point operations and unique bytes read and written by one launch; variables at their largest."""

    flops: int
    bytes: int


def estimate(sink: UOp, near: frozenset[int] = frozenset()) -> Cost:
    """Count the work of a kernel before any schedule is applied; accesses to the slots in `near` move no bytes."""
    return estimate_facts(KernelFacts(sink), near)


def estimate_region(sink: UOp, near: frozenset[int] = frozenset()) -> Cost:
    """Operations of one iteration of the PARALLEL range, and the bytes of all: see `estimate`.

    What is no part of the range is done again for every iteration.
    """
    facts = KernelFacts(sink)
    trips = {r: size_bound(r) for r in facts.loops}
    one = {r: 1 if r.arg.kind is AxisKind.PARALLEL else size for r, size in trips.items()}
    return Cost(_flops(facts, one), _bytes(facts, trips, near))


def estimate_facts(facts: KernelFacts, near: frozenset[int] = frozenset()) -> Cost:
    """The same for a kernel whose facts are known."""
    trips = {r: size_bound(r) for r in facts.loops}
    return Cost(_flops(facts, trips), _bytes(facts, trips, near))


def _flops(facts: KernelFacts, trips: dict[UOp, int]) -> int:
    """Operations on floats, where every range does so many iterations."""
    flops = 0
    counts: dict[frozenset[UOp], int] = {}  # iterations of the same ranges are asked for again and again

    def iterations(ranges: frozenset[UOp]) -> int:
        found = counts.get(ranges)
        if found is None:
            found = counts[ranges] = math.prod([trips[r] for r in ranges])
        return found

    for node in facts.order:
        op = node.op
        if op in DOTS:
            flops += (8 if op is Op.DOT else 4) * iterations(facts.ranges[node])
        if not node.dtype.is_float:
            continue
        if op in _WEIGHTS:
            flops += _WEIGHTS[op] * iterations(facts.ranges[node])
        elif op is _REDUCE:
            flops += iterations(facts.ranges[node].union(node.src[1:]))
    return flops


def _bytes(facts: KernelFacts, trips: dict[UOp, int], near: frozenset[int]) -> int:
    """Unique bytes of memory that is not near."""
    touched: dict[tuple[UOp, bool], int] = {}
    for access in facts.accesses:
        if access.param.op is not Op.PARAM or access.param.arg.slot in near:
            continue
        elements = math.prod([trips[r] for r in facts.ranges[access.address.src[1]]])
        key = (access.param, access.is_store)
        touched[key] = min(touched.get(key, 0) + elements, max(access.param.arg.size, 1))
    return sum(count * param.dtype.itemsize for (param, _), count in touched.items())
