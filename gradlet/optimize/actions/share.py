"""STAGE on a GPU: all lanes of a workgroup copy a tile into an array that they share.

The tile is walked in the order of memory, its elements dealt out to lanes, as many side by side for each as one access
takes. The copy's ranges are a loop, the lanes and those elements; as lanes copy what others use, they wait for each
other before and after (`codegen/simt`).
"""

from __future__ import annotations

import math
from typing import Final

from gradlet.base.dtype import dtypes
from gradlet.graph.node import UOp, mk
from gradlet.ops.op import AxisKind, LocalArg, Op, Opt
from gradlet.optimize.actions.refusal import refusal
from gradlet.optimize.analysis import KernelFacts, affine, coefficient, make_after, make_range, range_size
from gradlet.target.target import Target

WRITTEN_OUT: Final = 16  # accesses of a lane in one copy


def shared_by_lanes(
    facts: KernelFacts, opt: Opt, target: Target, value: UOp, inside: list[UOp], pad: int
) -> UOp:  # fmt: skip
    """The kernel with a value copied by all lanes, into an array with an axis for each of these ranges, and loaded."""
    sizes = [range_size(r) or 0 for r in inside]
    elements = sizes[0] * (math.prod(sizes[1:]) + pad)
    used = sum(n.arg.size * n.dtype.itemsize for n in facts.order if n.op is Op.LOCAL)
    if used + elements * value.dtype.itemsize > target.shared_bytes:
        raise refusal(opt, f"lanes share {target.shared_bytes} bytes, {used} of them are taken; choose smaller tiles")
    lanes = 1
    copying = {r for n in facts.order if n.op is Op.AFTER for r in n.src[1:]}
    for r in facts.loops:
        if r.arg.kind is AxisKind.THREAD and r not in copying:
            if r in facts.closed():
                raise refusal(opt, f"lanes share the reduction over range {r.arg.number}")
            lanes *= range_size(r) or 1
    load = value if value.op is Op.LOAD else value.src[0]
    form = affine(load.src[0].src[1])
    strides = {r: coefficient(form, r, facts.ranges) for r in inside}
    walk = sorted(inside, key=lambda r: -(abs(strides[r] or 0) or 1 << 60))
    together = _together(walk, strides, target.access_bytes // load.dtype.itemsize)
    total = math.prod(sizes)
    while together > 1 and total % (lanes * together):
        together //= 2
    if total % (lanes * together):
        raise refusal(opt, f"{lanes} lanes cannot share {total} elements evenly; choose other tiles")
    turns = total // (lanes * together)
    number = facts.next_number()
    ranges: list[UOp] = []
    place: UOp = UOp.const(dtypes.index, 0)
    for count, kind in (
        (turns, AxisKind.UNROLL if turns <= WRITTEN_OUT else AxisKind.LOOP),
        (lanes, AxisKind.THREAD),
        (together, AxisKind.VECTOR),
    ):
        if count > 1:
            ranges.append(make_range(UOp.const(dtypes.index, count), number + len(ranges), kind))
            place = place * count + ranges[-1]
    at = _coordinates(walk, place)
    local = mk(Op.LOCAL, value.dtype, (), LocalArg(_next_local(facts), elements))
    copy = value.substitute(at)
    stored = mk(Op.STORE, dtypes.void, (mk(Op.INDEX, value.dtype, (local, _element(inside, at, pad))), copy))
    filled = make_after(value.dtype, (local, stored, *ranges))
    own = {r: r for r in inside}
    use = mk(Op.LOAD, value.dtype, (mk(Op.INDEX, value.dtype, (filled, _element(inside, own, pad))),))
    return facts.sink.substitute({value: use})


def _together(walk: list[UOp], strides: dict[UOp, int | None], most: int) -> int:
    """Elements side by side in memory that one access of a lane takes."""
    run = 1
    for r in reversed(walk):
        if strides[r] != run:
            break
        run *= range_size(r) or 1
    return math.gcd(run, most)


def _coordinates(walk: list[UOp], place: UOp) -> dict[UOp, UOp]:
    """The value of every range at the place of an element in the walk, the last range fastest."""
    at: dict[UOp, UOp] = {}
    stride = 1
    for i, r in enumerate(reversed(walk)):
        size = range_size(r) or 1
        digit = place if stride == 1 else place // stride
        at[r] = digit % size if i < len(walk) - 1 else digit
        stride *= size
    return at


def _element(inside: list[UOp], at: dict[UOp, UOp], pad: int) -> UOp:
    """The place of a point in the array; one step along its slowest axis is longer by `pad`."""
    sizes = [range_size(r) or 1 for r in inside]
    total = UOp.const(dtypes.index, 0)
    for i, r in enumerate(inside):
        stride = math.prod(sizes[i + 1 :]) + (pad if i == 0 else 0)
        total = total + at[r] * stride
    return total


def _next_local(facts: KernelFacts) -> int:
    return 1 + max((n.arg.number for n in facts.order if n.op is Op.LOCAL), default=-1)
