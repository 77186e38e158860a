"""Whether iterations of a kernel may run twice, or in parts."""

from __future__ import annotations

from gradlet.graph.node import UOp
from gradlet.ops.op import AxisKind, Op
from gradlet.optimize.analysis import Affine, KernelFacts, range_size


def may_repeat(facts: KernelFacts, loop: UOp | None = None) -> bool:
    """Whether running some iterations (of a range) twice leaves the result as it is: nothing stored is ever loaded or
    ordered. Loops that fill an array may repeat whatever the rest of the kernel does."""
    filled = [n for n in facts.order if n.op is Op.AFTER and loop in n.src]
    if filled and all(_is_filled_once(facts, after) for after in filled):
        return True
    stored = {a.param for a in facts.accesses if a.is_store}
    if any(r.arg.kind is AxisKind.ORDERED for r in facts.loops):
        return False
    return not any(a.param in stored for a in facts.accesses if not a.is_store)


def overwrites_what_it_reads(facts: KernelFacts) -> bool:
    """Whether every element that is both loaded and stored belongs to one iteration, which loads it to store it anew.

    Iterations may then run in any order, or in parts with code of their own, but not twice.
    """
    if any(n.op in (Op.CARRY, Op.NEXT) for n in facts.order) or any(
        r.arg.kind is AxisKind.ORDERED for r in facts.loops
    ):
        return False
    for store in facts.accesses:
        if store.is_store and any(a.param is store.param for a in facts.accesses if not a.is_store):
            forms = [a.form for a in facts.accesses if a.param is store.param]
            if any(form != store.form for form in forms) or not store.ranges <= store.form.terms.keys():
                return False
            if not _is_packed(store.form):
                return False
    return True


def _is_packed(form: Affine) -> bool:
    """Whether ranges are the digits of the index: each stride is a multiple of all that the shorter ones reach."""
    reach = 1
    for atom, stride in sorted(form.terms.items(), key=lambda term: term[1]):
        size = range_size(atom) if atom.op is Op.RANGE else None
        if size is None or stride < reach or stride % reach:
            return False
        reach = stride * size
    return True


def _is_filled_once(facts: KernelFacts, after: UOp) -> bool:
    """Whether what is stored in an array does not depend on what is there already."""
    if any(r.op is Op.RANGE and r.arg.kind is AxisKind.ORDERED for r in after.src):
        return False
    return not any(a.param is after.src[0] for a in facts.accesses if not a.is_store)
