"""STAGE: a copy of an operand in an array of the core, in the order in which it is used.

`STAGE(range 3, slot=2, order=(7, 2, 8))` copies, in every iteration of range 3, what the load from slot 2 reads while
the ranges nested deeper run, into an array with an axis for each of them, and loads from there instead. Where a mask
guards the load, the copy has the load's other value (0): later code needs no mask. The copy's loops get numbers of
their own, the next free ones in the order of the array's axes, so that later opts can make lanes of them; a value that
does not change with range 3 is copied further out. Split the ranges before: the axes of the copy are the ranges that
there are by then, and a range that the copy is made in every iteration of gets no lanes or copies any more. Where a
slot is loaded from several times `which` says which load is meant, among those that no copy was made of before.

With `transpose=8` the copy goes by blocks of 8 x 8: 8 vectors are loaded along what lies side by side in memory,
exchanged in registers, and stored along the rows of the array.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

from gradlet.base.dtype import dtypes
from gradlet.graph.node import UOp, mk, toposort
from gradlet.ops.op import AxisKind, LocalArg, Op
from gradlet.ops.opt import Opt, StageDetail
from gradlet.optimize.actions.refusal import refusal
from gradlet.optimize.actions.share import shared_by_lanes
from gradlet.optimize.analysis import KernelFacts, make_after, make_range, range_size
from gradlet.target.target import Target

VANISHING = (AxisKind.UNROLL, AxisKind.VECTOR)  # their iterations become one piece of code: never outside of a copy


def stage(facts: KernelFacts, loop: UOp, opt: Opt, target: Target) -> UOp:
    """The kernel with one operand copied near."""
    detail = opt.detail
    if not isinstance(detail, StageDetail):
        raise refusal(opt, "it does not say what to copy: slot=...")
    if target.kind != "cpu" and not target.shared_bytes:
        raise refusal(opt, "only a CPU's cores have arrays of their own")
    value = _value(facts, opt, detail)
    inside = _inside(facts, loop, opt, value, target.warp > 1)
    if detail.order:
        inside = in_order(opt, detail.order, inside)
    if detail.pad < 0:
        raise refusal(opt, "a row cannot be longer by less than nothing; choose pad >= 0")
    if target.warp > 1:
        if detail.transpose:
            raise refusal(opt, "lanes write a copy in any order as it is; leave transpose out")
        return shared_by_lanes(facts, loop, opt, target, value, inside, detail)
    transposed = _transposed(facts, opt, detail, value, inside) if detail.transpose else {}
    return copied(facts, opt, target, value, inside, detail.pad, transposed)


def copied(
    facts: KernelFacts, opt: Opt, target: Target, value: UOp, inside: list[UOp], pad: int = 0,
    blocks: Mapping[UOp, tuple[int, AxisKind]] = {},
) -> UOp:  # fmt: skip
    """The kernel with a value computed ahead, into an array with an axis for each of these ranges, and loaded.

    `blocks` cuts the copy's own loops: for a range, how many iterations of it become a part of which kind.
    """
    sizes = [range_size(r) or 0 for r in inside]
    width = sizes[-1] + pad
    elements = math.prod(sizes[:-1]) * width
    check_room(facts, opt, target, elements * value.dtype.itemsize)
    local = mk(Op.LOCAL, value.dtype, (), LocalArg(next_local(facts), elements))
    number = facts.next_number()
    loops = [make_range(r.src[0], number + i, AxisKind.LOOP) for i, r in enumerate(inside)]
    at = list(loops)
    for i, r in enumerate(inside):
        if r in blocks:
            amount, kind = blocks[r]
            part = make_range(UOp.const(dtypes.index, amount), number + len(loops), kind)
            if sizes[i] > amount:
                loops.append(part)
                outer = make_range(UOp.const(dtypes.index, sizes[i] // amount), number + i, AxisKind.LOOP)
                loops[i], at[i] = outer, outer * amount + part
            else:
                loops[i] = at[i] = make_range(part.src[0], number + i, kind)
    copy = value.substitute(dict(zip(inside, at, strict=True)))
    place = mk(Op.INDEX, value.dtype, (local, element(at, sizes, width)))
    filled = make_after(value.dtype, (local, mk(Op.STORE, dtypes.void, (place, copy)), *loops))
    use = mk(Op.LOAD, value.dtype, (mk(Op.INDEX, value.dtype, (filled, element(inside, sizes, width))),))
    return facts.sink.substitute({value: use})


def _value(facts: KernelFacts, opt: Opt, detail: StageDetail) -> UOp:
    """The load that is meant, or its conversion."""
    memory = [a for a in facts.accesses if a.slot == detail.slot]
    made = _loads_of_copies(facts)
    loads = [a.node for a in memory if not a.is_store and a.node not in made]
    if not 0 <= detail.which < len(loads):
        has = f"loads from it are numbered 0 to {len(loads) - 1}" if loads else "nothing is loaded from it"
        raise refusal(opt, f"of slot {detail.slot} it has no load {detail.which}: {has}")
    if any(a.is_store for a in memory):
        raise refusal(opt, "the kernel stores to it, and a copy would not see that")
    load = loads[detail.which]
    if not detail.converted:
        return load
    users = [n for n in facts.order if load in n.src]
    if len(users) != 1 or users[0].op is not Op.CAST:
        raise refusal(opt, "the load is not simply converted to another type")
    return users[0]


def _loads_of_copies(facts: KernelFacts) -> set[UOp]:
    """What copies that were made before load: no later copy means it, so that it has no number."""
    found: set[UOp] = set()
    for node in facts.order:
        if node.op is Op.AFTER and node.src[0].op is Op.LOCAL:
            for store in node.src[1:]:
                value = store.src[1] if store.op is Op.STORE else store
                value = value.src[0] if value.op is Op.CAST else value
                if value.op is Op.LOAD:
                    found.add(value)
    return found


def _inside(facts: KernelFacts, loop: UOp, opt: Opt, value: UOp, by_lanes: bool) -> list[UOp]:
    """The ranges of the value that run inside an iteration of the level, outermost first."""
    if loop.arg.kind in VANISHING:
        raise refusal(opt, f"a range of kind {loop.arg.kind.name} is no loop that a copy can be made in")
    level = facts.nesting(loop)
    kinds = (*VANISHING, AxisKind.THREAD) if by_lanes else VANISHING
    inside = [r for r in facts.ranges[value] if r.arg.kind in kinds or facts.nesting(r) > level]
    if not inside:
        raise refusal(opt, "what is loaded does not change inside it")
    sums = [n for n in facts.order if n.op is Op.REDUCE and loop in n.src[1:] and value in toposort((n,))]
    if not by_lanes and len({facts.ranges[n] for n in sums}) > 1:
        raise refusal(
            opt, f"range {loop.arg.number} stands in several loops, as those of a BALANCE, which would share the copy; "
            "choose a level around them"
        )  # fmt: skip
    check_copy(facts, opt, value, inside)
    return sorted(inside, key=facts.nesting)


def check_copy(facts: KernelFacts, opt: Opt, value: UOp, inside: list[UOp]) -> None:
    """Refuse a copy whose size is not known, or which would be made before what it reads."""
    for r in inside:
        if range_size(r) is None:
            raise refusal(opt, f"how long range {r.arg.number} is, and so the copy, is only known at launch")
        if r.arg.kind is AxisKind.ORDERED:
            raise refusal(opt, f"range {r.arg.number} inside of it runs in order; choose that as the level")
    for node in facts.order:
        if node.op is Op.AFTER and not facts.ranges[node].isdisjoint(inside) and node in value.toposort():
            raise refusal(opt, "it reads another copy that is made inside of the level")


def _transposed(
    facts: KernelFacts, opt: Opt, detail: StageDetail, value: UOp, inside: list[UOp]
) -> dict[UOp, tuple[int, AxisKind]]:  # fmt: skip
    """Blocks of the copy's loops: lanes along rows of the array, and as many of the neighbours in memory at once."""
    amount, load = detail.transpose, value if value.op is Op.LOAD else value.src[0]
    access = next(a for a in facts.accesses if a.node is load)
    near = [r for r in inside if facts.stride(access, r) == 1]
    rows = inside[-1]
    if amount < 4 or amount & (amount - 1):
        raise refusal(opt, "registers are transposed in blocks of a power of two from 4 on; choose transpose=8")
    if not near or near[0] is rows:
        raise refusal(opt, "rows of the copy are neighbours in memory already; leave transpose out or change the order")
    if len(load.src) > 1:
        raise refusal(opt, "what is loaded is guarded, and vectors are loaded whole; choose transpose=0")
    for r in (near[0], rows):
        if (range_size(r) or 0) % amount:
            raise refusal(opt, f"range {r.arg.number} is no multiple of {amount} long")
    return {near[0]: (amount, AxisKind.UNROLL), rows: (amount, AxisKind.VECTOR)}


def in_order(opt: Opt, order: tuple[int, ...], inside: list[UOp]) -> list[UOp]:
    """The ranges of an array as their numbers are given, each once."""
    by_number = {r.arg.number: r for r in inside}
    if sorted(order) != sorted(by_number):
        raise refusal(opt, f"the copy has the ranges {sorted(by_number)}; the order must name each of them once")
    return [by_number[number] for number in order]


def check_room(facts: KernelFacts, opt: Opt, target: Target, nbytes: int) -> None:
    """Refuse an array that, with those there are, is larger than what a core keeps near."""
    used = sum(n.arg.size * n.dtype.itemsize for n in facts.order if n.op is Op.LOCAL)
    if nbytes + used > target.scratch_bytes:
        raise refusal(
            opt, f"the copy takes {nbytes} bytes, others {used}, and a core has room for {target.scratch_bytes}; "
            f"split the ranges inside or choose a level further in"
        )  # fmt: skip


def next_local(facts: KernelFacts) -> int:
    """The number of the next array of the core."""
    return 1 + max((n.arg.number for n in facts.order if n.op is Op.LOCAL), default=-1)


def element(ranges: list[UOp], sizes: list[int], width: int) -> UOp:
    """The place of a point in the array: row after row, each `width` long."""
    strides = [width * math.prod(sizes[i + 1 : -1]) for i in range(len(sizes) - 1)] + [1]
    total: UOp | None = None
    for r, stride in zip(ranges, strides, strict=True):
        term = r if stride == 1 else r * stride
        total = term if total is None else total + term
    assert total is not None
    return total
