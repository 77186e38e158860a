"""ONLINE: the maximum of a row and the sum of exponentials below it, in one pass over the row.

A softmax subtracts a row's maximum before it adds up exponentials: two passes over memory. `ONLINE(range 2, 4096)` goes
by blocks of 4096: each has its own maximum and a sum relative to that, while the block is near. When all blocks have
been, their sums are brought to the row's maximum and added. Blocks, the maximum and the sum inside of one, and the two
reductions over blocks get the next free numbers, in this order.

Sums are relative to finite numbers: a block of nothing but minus infinity adds 0, and infinity stays infinite.
"""

from __future__ import annotations

import sys
from typing import Final, NamedTuple

from gradlet.base.dtype import dtypes
from gradlet.graph.node import UOp, mk
from gradlet.ops.op import AxisKind, LocalArg, Op, ReduceArg
from gradlet.ops.opt import Opt, Tail
from gradlet.optimize.actions.refusal import refusal
from gradlet.optimize.actions.stage import check_room, next_local
from gradlet.optimize.analysis import KernelFacts, make_after, make_range, range_size
from gradlet.target.target import Target

LOWEST: Final = {dtypes.float32: -float.fromhex("0x1.fffffep+127"), dtypes.float64: -sys.float_info.max}


class Pair(NamedTuple):
    """A maximum over `along`, and the sum of exponentials of the same values plus `shift`, which follows from it."""

    top: UOp
    along: UOp
    total: UOp
    shift: UOp


def online(facts: KernelFacts, loop: UOp, opt: Opt, target: Target) -> UOp:
    """The kernel with a maximum and a sum of exponentials in one pass by blocks of `opt.amount`."""
    pair = find_pair(facts, loop)
    if pair is None:
        raise refusal(opt, "it is for the range of a sum of exp(x - the maximum of x)")
    size, amount = range_size(loop), opt.amount
    if target.kind != "cpu":
        raise refusal(opt, "only a CPU's cores have arrays of their own")
    if size is None or amount < 2 or size % amount or size == amount or opt.tail is not Tail.EXACT:
        raise refusal(opt, f"the size, {size}, is not a multiple of the amount")
    dtype, count, number = pair.total.dtype, size // amount, facts.next_number()
    check_room(facts, opt, target, 2 * count * dtype.itemsize)
    block = _range(count, number, AxisKind.LOOP)
    first, second = (_range(amount, number + n, AxisKind.REDUCE) for n in (1, 2))
    values = pair.top.src[0]
    top = _reduce(Op.MAX, values.substitute({pair.along: block * amount + first}), first)
    part = (values.substitute({pair.along: block * amount + second}) - _finite(top)).exp()
    local = mk(Op.LOCAL, dtype, (), LocalArg(next_local(facts), 2 * count))
    kept = [(block, top), (block + count, _reduce(Op.ADD, part, second))]
    stores = [mk(Op.STORE, dtypes.void, (mk(Op.INDEX, dtype, (local, place)), value)) for place, value in kept]
    filled = make_after(dtype, (local, *stores, block))

    def of_block(place: UOp) -> UOp:
        return mk(Op.LOAD, dtype, (mk(Op.INDEX, dtype, (filled, place)),))

    first, second = (_range(count, number + n, AxisKind.REDUCE) for n in (3, 4))
    highest = _reduce(Op.MAX, of_block(first), first)
    shift = pair.shift.substitute({pair.top: highest})
    scaled = of_block(second + count) * (_finite(of_block(second)) + shift).exp()
    return facts.sink.substitute({pair.top: highest, pair.total: _reduce(Op.ADD, scaled, second)})


def find_pair(facts: KernelFacts, loop: UOp) -> Pair | None:
    """The sum of exponentials that a range is of, and the maximum that they are relative to."""
    total = next((n for n in facts.reduces if n.arg.op is Op.ADD and n.src[1:] == (loop,)), None)
    if total is None or total.src[0].op is not Op.EXP or total.dtype not in LOWEST:
        return None
    exponent = total.src[0].src[0]
    if exponent.op is not Op.ADD or loop.arg.kind is not AxisKind.REDUCE:
        return None
    for value, shift in (exponent.src, exponent.src[::-1]):
        below = [n for n in shift.toposort() if n.op is Op.REDUCE]
        if loop in facts.ranges[shift] or len(below) != 1 or below[0].arg.op is not Op.MAX or len(below[0].src) != 2:
            continue
        (top,) = below
        along = top.src[1]
        same = top.src[0] if along is loop else top.src[0].substitute({along: loop})
        if same is not value or along.src[0] is not loop.src[0]:
            continue
        others = [n for n in facts.reduces if n is not top and n is not total]
        if not any(r in n.src for n in others for r in (loop, along)):
            return Pair(top, along, total, shift)
    return None


def _finite(value: UOp) -> UOp:
    """The nearest finite number; NaN stays."""
    lowest = LOWEST[value.dtype]
    return value.maximum(UOp.const(value.dtype, lowest)).minimum(UOp.const(value.dtype, -lowest))


def _range(size: int, number: int, kind: AxisKind) -> UOp:
    return make_range(UOp.const(dtypes.index, size), number, kind)


def _reduce(op: Op, value: UOp, loop: UOp) -> UOp:
    return mk(Op.REDUCE, value.dtype, (value, loop), ReduceArg(op))
