"""ACCUMULATE: a sum is taken in blocks, and what the blocks before added up to waits in the output's memory.

The loop over the blocks can then stand outside of the output loops (`REORDER`): a block of the operands is used for all
outputs while it is near. The first block starts from the neutral element. What is computed from the sum is computed in
loops of its own, after the last block.
"""

from __future__ import annotations

from gradlet.base.dtype import dtypes
from gradlet.graph.node import UOp, mk
from gradlet.ops.op import AxisKind, Op, Opt, identity_element
from gradlet.optimize.actions.refusal import refusal
from gradlet.optimize.analysis import Access, KernelFacts, make_range, range_size
from gradlet.target.target import Target


def accumulate(facts: KernelFacts, loop: UOp, opt: Opt, target: Target) -> UOp:
    """The kernel with a reduce range cut into blocks of `opt.amount`, the outer part ORDERED."""
    size, amount = range_size(loop), opt.amount
    found = _sum_and_store(facts, loop)
    if isinstance(found, str):
        raise refusal(opt, found)
    reduce, access = found
    if size is None or amount < 1 or size % amount or size == amount:
        raise refusal(opt, f"the size, {size}, is not a multiple of the amount")
    blocks = UOp.const(dtypes.index, size // amount)
    outer = make_range(blocks, loop.arg.number, AxisKind.ORDERED)
    inner = make_range(UOp.const(dtypes.index, amount), facts.next_number(), AxisKind.REDUCE)
    body = reduce.src[0].substitute({loop: outer * amount + inner})
    ranges = tuple([inner if r is loop else r for r in reduce.src[1:]])
    partial = mk(Op.REDUCE, reduce.dtype, (body, *ranges), reduce.arg)
    store = access.node
    index = store.src[0]
    later = UOp.const(dtypes.index, 0) < outer
    guard = index.src[2] & later if len(index.src) > 2 else later
    neutral = UOp.const(reduce.dtype, identity_element(reduce.arg.op, reduce.dtype))
    before = mk(Op.LOAD, reduce.dtype, (mk(Op.INDEX, index.dtype, (*index.src[:2], guard)), neutral))
    stored = mk(Op.STORE, store.dtype, (index, before.alu(reduce.arg.op, partial)))
    stores: list[UOp] = []
    for other in facts.stores:
        stores.append(stored if other is store else other)
        if other is store and store.src[1] is not reduce:
            src = index.src[:2] if len(index.src) < 3 else index.src
            total = mk(Op.LOAD, reduce.dtype, (mk(Op.INDEX, index.dtype, src), *before.src[1:][: len(src) - 2]))
            stores.append(mk(Op.STORE, store.dtype, (index, store.src[1].substitute({reduce: total}))))
    return facts.sink.replace(src=tuple(stores))


def obstacle(facts: KernelFacts, loop: UOp) -> str | None:
    """Why the sum over a range cannot wait in the output; None where it can."""
    found = _sum_and_store(facts, loop)
    return found if isinstance(found, str) else None


def _sum_and_store(facts: KernelFacts, loop: UOp) -> tuple[UOp, Access] | str:
    """The REDUCE that closes the range and the store that keeps it, or why there are none."""
    closing = [n for n in facts.reduces if loop in n.src[1:]]
    if loop.arg.kind is not AxisKind.REDUCE or len(closing) != 1:
        return "it takes a range that one reduce closes"
    reduce = closing[0]
    if any(r.arg.kind is AxisKind.ORDERED for r in facts.loops):
        return "the kernel has loops that run in order already"
    users = [a for a in facts.accesses if a.is_store and reduce in a.node.src[1].toposort()]
    if len(users) != 1:
        return "one store has to keep the sum"
    access = users[0]
    if access.node.src[1].dtype is not reduce.dtype:
        return "what is stored has another type than the sum"
    if access.ranges != facts.ranges[reduce] or not _apart(access):
        return "every sum needs an element of its own"
    if any(a.param is access.param and a is not access for a in facts.accesses):
        return "the kernel uses what it writes for something else"
    return reduce, access


def _apart(access: Access) -> bool:
    """Whether a store writes another element for every value of its ranges."""
    if any(r not in access.ranges for r in access.form.terms) or access.form.terms.keys() != access.ranges:
        return False
    reach = 0
    for loop, stride in sorted(access.form.terms.items(), key=lambda term: abs(term[1])):
        size = range_size(loop)
        if size is None or (abs(stride) <= reach and size > 1):
            return False
        reach += abs(stride) * (size - 1)
    return True
