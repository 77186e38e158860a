"""Whether iterations of a kernel may run twice."""

from __future__ import annotations

from gradlet.ops.op import AxisKind
from gradlet.optimize.analysis import KernelFacts


def may_repeat(facts: KernelFacts) -> bool:
    """Whether running some iterations twice leaves the result as it is: nothing stored is ever loaded or ordered."""
    stored = {a.param for a in facts.accesses if a.is_store}
    if any(r.arg.kind is AxisKind.ORDERED for r in facts.loops):
        return False
    return not any(a.param in stored for a in facts.accesses if not a.is_store)
