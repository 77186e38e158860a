"""REORDER: another order of the loops."""

from __future__ import annotations

from gradlet.graph.node import UOp
from gradlet.ops.op import AxisKind
from gradlet.ops.opt import Opt
from gradlet.optimize.actions.refusal import refusal
from gradlet.optimize.analysis import KernelFacts, make_range
from gradlet.target.target import Target


def reorder(facts: KernelFacts, loop: UOp, opt: Opt, target: Target) -> UOp:
    position = opt.amount
    if not 0 <= position < len(facts.loops):
        raise refusal(opt, f"positions go from 0 to {len(facts.loops) - 1}")
    order = [r for r in facts.loops if r is not loop]
    order.insert(position, loop)
    ordered = [r for r in facts.loops if r.arg.kind is AxisKind.ORDERED]
    if [r for r in order if r.arg.kind is AxisKind.ORDERED] != ordered:
        raise refusal(opt, "ordered ranges must keep their order")
    numbers = sorted(r.arg.number for r in facts.loops)
    renamed = {
        r: make_range(r.src[0], number, r.arg.kind)
        for r, number in zip(order, numbers, strict=True)
        if r.arg.number != number
    }
    return facts.sink.substitute(renamed)
