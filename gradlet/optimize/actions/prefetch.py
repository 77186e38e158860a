"""PREFETCH: what a later iteration reads is on its way to a cache while this one computes.

A load of slot `slot` gets a PREFETCH of what it will read `amount` iterations of the range later. Where its address
is itself loaded (rows that an index names), that index is read ahead, of the last iteration at most.
"""

from __future__ import annotations

from gradlet.graph.node import UOp, mk, toposort
from gradlet.ops.op import AxisKind, Op, PrefetchArg
from gradlet.ops.opt import Opt, PrefetchDetail
from gradlet.optimize.actions.refusal import refusal
from gradlet.optimize.analysis import KernelFacts
from gradlet.target.target import Target

_MOVING = (AxisKind.LOOP, AxisKind.REDUCE, AxisKind.PARALLEL, AxisKind.ORDERED)


def prefetch(facts: KernelFacts, loop: UOp, opt: Opt, target: Target) -> UOp:
    detail = opt.detail
    if not isinstance(detail, PrefetchDetail) or not 1 <= detail.level <= 3:
        raise refusal(opt, "it needs a slot, and a level from 1 to 3")
    if target.kind != "cpu":
        raise refusal(opt, "a GPU has other threads to run while it waits")
    if loop.arg.kind not in _MOVING:
        raise refusal(opt, f"the range is of kind {loop.arg.kind.name}, not a loop")
    if opt.amount < 1:
        raise refusal(opt, "the distance must be at least one iteration")
    loads = [
        a for a in facts.accesses if not a.is_store and a.slot == detail.slot and loop in a.ranges
    ]  # fmt: skip
    if detail.along >= 0:
        loads = [a for a in loads if any(r.arg.number == detail.along for r in a.ranges)]
    if not loads:
        raise refusal(opt, f"no load of slot {detail.slot} depends on it")
    stored = {a.param for a in facts.accesses if a.is_store}
    new: dict[UOp, UOp] = {}
    for access in loads:
        index = access.address
        below = [n for n in toposort((index.src[1],)) if loop in facts.ranges[n] and n.op is Op.LOAD]
        if any(n.src[0].src[0] in stored for n in below):
            raise refusal(opt, "the address depends on what the kernel writes")
        later = loop + opt.amount
        if below:
            later = later.minimum(loop.src[0] + (-1))
        element = index.src[1].substitute({loop: later})
        ahead = mk(Op.INDEX, index.dtype, (index.src[0], element))
        new[access.node] = mk(Op.PREFETCH, access.node.dtype, (access.node, ahead), PrefetchArg(detail.level))
    return _replaced(facts, new)


def _replaced(facts: KernelFacts, new: dict[UOp, UOp]) -> UOp:
    """The kernel with loads replaced where their values are used, but not inside the replacements."""
    made: dict[UOp, UOp] = {}
    for node in facts.order:
        src = tuple([made.get(s, s) for s in node.src])
        if src != node.src:
            made[node] = mk(node.op, node.dtype, src, node.arg)
        found = new.get(node)
        if found is not None:
            made[node] = mk(found.op, found.dtype, (made.get(node, node), found.src[1]), found.arg)
    return made.get(facts.sink, facts.sink)
