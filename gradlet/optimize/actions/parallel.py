"""PARALLEL: threads or workgroups over an output range."""

from __future__ import annotations

from gradlet.graph.node import UOp
from gradlet.ops.op import AxisKind
from gradlet.ops.opt import Opt
from gradlet.optimize.actions.refusal import refusal
from gradlet.optimize.analysis import KernelFacts, make_range, range_size
from gradlet.target.target import Target


def parallel(facts: KernelFacts, loop: UOp, opt: Opt, target: Target) -> UOp:
    if loop.arg.kind is not AxisKind.LOOP or loop in facts.closed():
        raise refusal(opt, f"it is of kind {loop.arg.kind.name}; only independent output loops can run in parallel")
    if target.warp == 1 and any(r.arg.kind is AxisKind.PARALLEL for r in facts.loops):
        raise refusal(opt, "the kernel already has a parallel range")
    if any(loop not in facts.ranges[store] for store in facts.stores):
        raise refusal(opt, "some store does not depend on it, so every thread would write the same place")
    if range_size(loop) is None and target.kind != "cpu" and target.warp == 1:
        raise refusal(opt, "its size is only known at launch")
    return facts.sink.substitute({loop: make_range(loop.src[0], loop.arg.number, AxisKind.PARALLEL)})
