"""What one launch of a kernel costs at least: floating point operations and unique bytes."""

from __future__ import annotations

import math
from typing import NamedTuple

from gradlet.graph.node import UOp
from gradlet.ops.op import DOTS, ELEMENTWISE, AxisKind, Op
from gradlet.optimize.analysis import KernelFacts, size_bound

_FREE = frozenset({Op.CAST, Op.BITCAST, Op.WHERE})


class Cost(NamedTuple):
    """Floating point operations and unique bytes read and written by one launch; variables at their largest."""

    flops: int
    bytes: int


def estimate(sink: UOp, near: frozenset[int] = frozenset()) -> Cost:
    """Count the work of a kernel before any schedule is applied; accesses to the slots in `near` move no bytes."""
    return estimate_facts(KernelFacts(sink), near)


def estimate_block(sink: UOp, near: frozenset[int] = frozenset()) -> Cost:
    """The same for one iteration of the PARALLEL range: what is no part of it is done again for every one."""
    facts = KernelFacts(sink)
    blocks = frozenset(r for r in facts.loops if r.arg.kind is AxisKind.PARALLEL)
    return estimate_facts(facts, near, blocks)


def estimate_facts(facts: KernelFacts, near: frozenset[int] = frozenset(), fixed: frozenset[UOp] = frozenset()) -> Cost:
    """The same for a kernel whose facts are known; the ranges in `fixed` do one iteration."""
    trips = {r: 1 if r in fixed else size_bound(r) for r in facts.loops}
    flops = 0
    for node in facts.order:
        if node.op in DOTS:
            flops += (8 if node.op is Op.DOT else 4) * math.prod(trips[r] for r in facts.ranges[node])
        if not node.dtype.is_float:
            continue
        if node.op in ELEMENTWISE and node.op not in _FREE:
            weight = 2 if node.op is Op.MULADD else 1
            flops += weight * math.prod(trips[r] for r in facts.ranges[node])
        elif node.op is Op.REDUCE:
            inside = facts.ranges[node] | frozenset(node.src[1:])
            flops += math.prod(trips[r] for r in inside)
    touched: dict[tuple[UOp, bool], int] = {}
    for access in facts.accesses:
        if access.param.op is not Op.PARAM or access.param.arg.slot in near:
            continue
        elements = math.prod(trips[r] for r in facts.ranges[access.address.src[1]])
        key = (access.param, access.is_store)
        touched[key] = min(touched.get(key, 0) + elements, max(access.param.arg.size, 1))
    total = sum(count * param.dtype.itemsize for (param, _), count in touched.items())
    return Cost(flops, total)
