"""ACCUMULATE: a sum is taken in blocks, and what the blocks before added up to waits in the output's memory.

The loop over the blocks can then stand outside of the output loops (`REORDER`): a block of the operands is used for all
outputs while it is near. The first block starts from the neutral element. What is computed from the sum is computed in
loops of its own, after the last block.

With `far=1` a block takes one element of each of `amount` long segments: in a matrix these are rows that follow one
another without a gap.

`ACCUMULATE(range 2, 8, order=(3, 0, 4))` lets the sums of ranges 3, 0 and 4 wait in an array of the core, in that
order, whose loops lie inside those of the blocks: outputs that are used together are near one another there, wherever
their places in memory are. The blocks, the array's ranges and what is summed inside get the next free numbers, in this
order; the old numbers are those of the loops that store the finished sums.
"""

from __future__ import annotations

import math

from gradlet.base.dtype import dtypes
from gradlet.graph.node import UOp, mk
from gradlet.ops.op import AxisKind, LocalArg, Op, identity_element
from gradlet.ops.opt import AccumulateDetail, Opt
from gradlet.optimize.actions.refusal import refusal
from gradlet.optimize.actions.stage import check_room, element, in_order, next_local
from gradlet.optimize.analysis import Access, KernelFacts, make_after, make_range, range_size
from gradlet.target.target import Target


def accumulate(facts: KernelFacts, loop: UOp, opt: Opt, target: Target) -> UOp:
    """The kernel with a reduce range cut into blocks of `opt.amount`, the outer part ORDERED."""
    if isinstance(opt.detail, AccumulateDetail) and opt.detail.order:
        return _in_array(facts, loop, opt, opt.detail.order, target)
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
    body = reduce.src[0].substitute({loop: _element(opt, outer, inner)})
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


def _in_array(facts: KernelFacts, loop: UOp, opt: Opt, order: tuple[int, ...], target: Target) -> UOp:
    """The kernel whose sums wait in an array of the core."""
    if target.kind != "cpu":
        raise refusal(opt, "only a CPU's cores have arrays of their own")
    reduce = _closing(facts, loop)
    if isinstance(reduce, str):
        raise refusal(opt, reduce)
    size, amount = range_size(loop), opt.amount
    if size is None or amount < 1 or size % amount or size == amount:
        raise refusal(opt, f"the size, {size}, is not a multiple of the amount")
    named = [r for r in facts.ranges[reduce] if r.arg.number in order]
    around = [r for r in facts.ranges[reduce] if r not in named]
    for r in named:
        if r.arg.kind is not AxisKind.LOOP or range_size(r) is None:
            raise refusal(opt, f"range {r.arg.number} is no loop of one known size")
    inside = in_order(opt, order, named)
    outermost = min(facts.nesting(r) for r in inside)
    if any(facts.nesting(r) > outermost for r in around):
        raise refusal(opt, "a loop of the sum that the array has no place for lies inside of one that it has")
    sizes = [range_size(r) or 0 for r in inside]
    elements = math.prod(sizes)
    check_room(facts, opt, target, elements * reduce.dtype.itemsize)
    number = facts.next_number()
    blocks = make_range(UOp.const(dtypes.index, size // amount), number, AxisKind.ORDERED)
    fresh = [make_range(r.src[0], number + 1 + i, AxisKind.LOOP) for i, r in enumerate(inside)]
    rest = make_range(UOp.const(dtypes.index, amount), number + 1 + len(fresh), AxisKind.REDUCE)
    body = reduce.src[0].substitute({loop: _element(opt, blocks, rest), **dict(zip(inside, fresh, strict=True))})
    partial = mk(Op.REDUCE, reduce.dtype, (body, *[rest if r is loop else r for r in reduce.src[1:]]), reduce.arg)
    local = mk(Op.LOCAL, reduce.dtype, (), LocalArg(next_local(facts), elements))
    place = element(fresh, sizes, sizes[-1])
    neutral = UOp.const(reduce.dtype, identity_element(reduce.arg.op, reduce.dtype))
    later = UOp.const(dtypes.index, 0) < blocks
    before = later.where(mk(Op.LOAD, reduce.dtype, (mk(Op.INDEX, reduce.dtype, (local, place)),)), neutral)
    total = before.alu(reduce.arg.op, partial)
    store = mk(Op.STORE, dtypes.void, (mk(Op.INDEX, reduce.dtype, (local, place)), total))
    filled = make_after(reduce.dtype, (local, store, blocks, *fresh))
    use = mk(Op.LOAD, reduce.dtype, (mk(Op.INDEX, reduce.dtype, (filled, element(inside, sizes, sizes[-1]))),))
    return facts.sink.substitute({reduce: use})


def _element(opt: Opt, outer: UOp, inner: UOp) -> UOp:
    """Which element of the range an iteration takes."""
    far = isinstance(opt.detail, AccumulateDetail) and opt.detail.far
    return inner * int(outer.src[0].arg) + outer if far else outer * opt.amount + inner


def obstacle(facts: KernelFacts, loop: UOp) -> str | None:
    """Why the sum over a range cannot wait in the output; None where it can."""
    found = _sum_and_store(facts, loop)
    return found if isinstance(found, str) else None


def _sum_and_store(facts: KernelFacts, loop: UOp) -> tuple[UOp, Access] | str:
    """The REDUCE that closes the range and the store that keeps it, or why there are none."""
    reduce = _closing(facts, loop)
    if isinstance(reduce, str):
        return reduce
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


def _closing(facts: KernelFacts, loop: UOp) -> UOp | str:
    """The one REDUCE that closes the range, or why its sum cannot be taken in blocks."""
    closing = [n for n in facts.reduces if loop in n.src[1:]]
    if loop.arg.kind is not AxisKind.REDUCE or len(closing) != 1:
        return "it takes a range that one reduce closes"
    if any(r.arg.kind is AxisKind.ORDERED for r in facts.loops):
        return "the kernel has loops that run in order already"
    return closing[0]


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
