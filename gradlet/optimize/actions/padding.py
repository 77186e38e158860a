"""PAD: what a range reads is copied into arrays of the core that are as long as whole blocks, with zeros at the end.

A block that reaches past the end of the range then reads zeros like any other elements: loads in the loop have no mask.
Stores still have one, as under MASK. The copies are made once for all iterations of the range, ahead of it.
"""

from __future__ import annotations

from gradlet.graph.node import UOp
from gradlet.ops.op import Op
from gradlet.ops.opt import Opt
from gradlet.optimize.actions.refusal import refusal
from gradlet.optimize.actions.stage import VANISHING, check_copy, copied
from gradlet.optimize.analysis import KernelFacts
from gradlet.target.target import Target


def pad_operands(sink: UOp, ranges: tuple[UOp, ...], opt: Opt, target: Target) -> UOp:
    """The kernel after a masked split into these ranges, with copies of all that it loads over them."""
    if target.kind != "cpu":
        raise refusal(opt, "only a CPU's cores have arrays of their own; use MASK")
    facts = KernelFacts(sink)
    done = False
    while (value := _guarded(facts, ranges)) is not None:
        slot = int(value.src[0].src[0].arg.slot)
        if any(a.is_store for a in facts.accesses if a.slot == slot):
            raise refusal(opt, "the kernel stores to what it loads, and a copy would not see that; use MASK")
        level = min(facts.nesting(r) for r in ranges)
        inside = [r for r in facts.ranges[value] if r.arg.kind in VANISHING or facts.nesting(r) >= level]
        check_copy(facts, opt, value, inside)
        sink, done = copied(facts, opt, target, value, sorted(inside, key=facts.nesting)), True
        facts = KernelFacts(sink)
    if not done:
        raise refusal(opt, "nothing is loaded over it that could be padded; use MASK")
    return sink


def _guarded(facts: KernelFacts, ranges: tuple[UOp, ...]) -> UOp | None:
    """A load from memory over the ranges, which the loop guards: loads inside of copies run over others."""
    for access in facts.accesses:
        if not access.is_store and access.param.op is Op.PARAM and not access.ranges.isdisjoint(ranges):
            return access.node
    return None
