"""SCAN: a running sum is taken vector by vector: lanes by steps of 1, 2, 4, ..., then what came before is added.

One element after another waits for an addition each. `SCAN(range 2, 8)` makes lanes of 8 iterations: the sums so far
inside of a vector take three additions and shuffles, and only one addition for a whole vector waits for the vector
before. It is for values that are carried by +, *, maximum or minimum; the order of the additions changes.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from gradlet.base.dtype import dtypes
from gradlet.graph.node import UOp, mk, toposort
from gradlet.ops.op import AxisKind, Op, PrefixArg, ReduceArg
from gradlet.ops.opt import Opt, Tail
from gradlet.optimize.actions.refusal import refusal
from gradlet.optimize.analysis import KernelFacts, make_range, range_size
from gradlet.target.target import Target

SCANNED: Final = (Op.ADD, Op.MUL, Op.MAX, Op.MIN)
MAX_LANES: Final = 64


class Carried(NamedTuple):
    """A CARRY, what it is in the next iteration, and the value that it is combined with for that."""

    carry: UOp
    total: UOp
    value: UOp


def scan(facts: KernelFacts, loop: UOp, opt: Opt, target: Target) -> UOp:
    """The kernel with lanes along an ordered range through which values are carried."""
    found = find_carried(facts, loop)
    if isinstance(found, str):
        raise refusal(opt, found)
    size, amount = range_size(loop), opt.amount
    if target.kind != "cpu":
        raise refusal(opt, "lanes of this target are threads")
    if not 2 <= amount <= MAX_LANES or amount & (amount - 1):
        raise refusal(opt, f"lanes are combined by steps of 1, 2, 4, ...: it takes a power of two up to {MAX_LANES}")
    if size is None or size % amount or opt.tail is not Tail.EXACT:
        raise refusal(opt, f"the size, {size}, is not a multiple of the amount")
    if size == amount:
        raise refusal(opt, "nothing would be left to carry from one vector to the next")
    if any(r.arg.kind is AxisKind.VECTOR for n in facts.order if loop in facts.ranges[n] and n is not facts.sink
           for r in facts.ranges[n]):  # fmt: skip
        raise refusal(opt, "a value would have two ranges of lanes")
    outer = make_range(UOp.const(dtypes.index, size // amount), loop.arg.number, AxisKind.ORDERED)
    lane = make_range(UOp.const(dtypes.index, amount), facts.next_number(), AxisKind.VECTOR)
    place = outer * amount + lane
    new: dict[UOp, UOp] = {loop: place}
    following: dict[UOp, tuple[UOp, UOp]] = {}
    for one in found:
        op, dtype = one.total.op, one.carry.dtype
        value = one.value.substitute({loop: place})
        start, row, *loops = one.carry.src
        register = mk(Op.CARRY, dtype, (start, row, *[outer if r is loop else r for r in loops]), one.carry.arg)
        new[one.carry] = register.alu(op, mk(Op.PREFIX, dtype, (value, lane), PrefixArg(op, True)))
        new[one.total] = register.alu(op, mk(Op.PREFIX, dtype, (value, lane), PrefixArg(op)))
        # Only this waits for the vector before.
        whole = mk(Op.REDUCE, dtype, (value, lane), ReduceArg(op))
        following[one.carry] = (register, register.alu(op, whole))
    for node in facts.order:
        if node in new or new.keys().isdisjoint(node.src):
            continue
        src = tuple([new.get(s, s) for s in node.src])
        if node.op is Op.NEXT:
            register, after = following[node.src[0]]
            src = (register, after, src[2])
        new[node] = mk(node.op, node.dtype, src, node.arg)
    return new[facts.sink]


def find_carried(facts: KernelFacts, loop: UOp) -> list[Carried] | str:
    """The values that are carried through a range, or why they cannot be scanned."""
    following = {n.src[0]: n for n in facts.order if n.op is Op.NEXT}
    found: list[Carried] = []
    if loop.arg.kind is not AxisKind.ORDERED:
        return "it is for a range through which a value is carried"
    for node in facts.order:
        if node.op is not Op.CARRY or loop not in node.src[2:]:
            continue
        total = following[node].src[1] if node in following else node
        if len(node.src) != 3 or total.op not in SCANNED or node not in total.src:
            return "what is carried is not combined with a value by +, *, maximum or minimum"
        if node.dtype.is_narrow_float:
            return f"lanes of {node.dtype.name} would be rounded in other places"
        value = total.src[1] if total.src[0] is node else total.src[0]
        if any(n.op in (Op.CARRY, Op.NEXT) for n in toposort((value,))):
            return "what is carried depends on something else that is carried"
        found.append(Carried(node, total, value))
    if not found or any(loop in facts.ranges[s] and not s.mask & _CARRY for s in facts.stores):
        return "it is for a range through which a value is carried"
    stored = {a.param for a in facts.accesses if a.is_store}
    if any(a.param in stored for a in facts.accesses if not a.is_store):
        return "the kernel reads what it writes, which lanes would do at once"
    return found


_CARRY: Final = 1 << Op.CARRY


def reorders(facts: KernelFacts, loop: UOp) -> bool:
    """Whether scanning a range takes floats in another order than their own."""
    found = find_carried(facts, loop)
    return not isinstance(found, str) and any(
        one.carry.dtype.is_float and one.total.op in (Op.ADD, Op.MUL) for one in found
    )
