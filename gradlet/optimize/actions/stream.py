"""STREAM: stores past the caches, for results that will not be read before newer values have pushed them out.

The memory system then writes whole lines without reading them first. It is a hint on a STORE: one that turns out not to
fill an aligned vector becomes an ordinary one.
"""

from __future__ import annotations

from gradlet.graph.node import UOp, mk
from gradlet.ops.op import AxisKind, Op, StoreArg
from gradlet.ops.opt import Opt
from gradlet.optimize.actions.refusal import refusal
from gradlet.optimize.analysis import Access, KernelFacts, divisor, range_size
from gradlet.target.target import Target

LINE_BYTES = 64
LEAST_BYTES = 16  # of a vector that can be stored so


def stream(facts: KernelFacts, loop: UOp, opt: Opt, target: Target) -> UOp:
    if target.kind != "cpu":
        raise refusal(opt, "a GPU decides for itself what its caches keep")
    stores = [a for a in facts.accesses if a.is_store and a.slot == opt.amount and loop in a.ranges]
    if not stores:
        raise refusal(opt, f"no store to slot {opt.amount} runs over it")
    if any(a.slot == opt.amount for a in facts.accesses if not a.is_store):
        raise refusal(opt, "the kernel reads what it writes, so it has to be near")
    for access in stores:
        reason = _obstacle(facts, access)
        if reason is not None:
            raise refusal(opt, reason)
    new: dict[UOp, UOp] = {a.node: mk(Op.STORE, a.node.dtype, a.node.src, StoreArg(stream=True)) for a in stores}
    return facts.sink.substitute(new)


def _obstacle(facts: KernelFacts, access: Access) -> str | None:
    """Why a store does not fill aligned vectors."""
    lanes = next((r for r in access.ranges if r.arg.kind is AxisKind.VECTOR), None)
    if lanes is None or facts.stride(access, lanes) != 1:
        return "a store has no lanes that are neighbours in memory"
    if len(access.address.src) > 2:
        return "a store is guarded"
    count = range_size(lanes) or 1
    if not LEAST_BYTES <= count * access.param.dtype.itemsize <= LINE_BYTES:
        return f"vectors of {LEAST_BYTES} to {LINE_BYTES} bytes are stored so"
    rest = access.form.constant
    if rest % count or any(f * divisor(a) % count for a, f in access.form.terms.items() if a is not lanes):
        return "a store does not begin at a multiple of its vector"
    return None
