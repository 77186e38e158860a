"""STAGE on a GPU: all lanes of a workgroup copy a tile into an array that they share.

The tile is walked in the order of memory, its elements dealt out to lanes, as many side by side for each as one access
takes. The copy's ranges are a loop, the lanes and those elements; as lanes copy what others use, they wait for each
other before and after (`codegen/simt`).
"""

from __future__ import annotations

import math
from typing import Final, NamedTuple

from gradlet.base.dtype import dtypes
from gradlet.graph.node import UOp, mk
from gradlet.ops.op import AxisKind, LocalArg, Op
from gradlet.ops.opt import Opt, StageDetail
from gradlet.optimize.actions.refusal import refusal
from gradlet.optimize.analysis import KernelFacts, affine, coefficient, make_after, make_range, range_size
from gradlet.optimize.boxes import axes_of, stored_guards
from gradlet.target.target import Target

WRITTEN_OUT: Final = 16  # accesses of a lane in one copy
ROW: Final = 128  # bytes
PIECE: Final = 16


def shared_by_lanes(
    facts: KernelFacts, loop: UOp, opt: Opt, target: Target, value: UOp, inside: list[UOp], detail: StageDetail
) -> UOp:  # fmt: skip
    """The kernel with a value copied by all lanes, into an array with an axis for each of these ranges, and loaded."""
    if detail.engine:
        return _fetched(facts, loop, opt, target, value, inside, detail)
    sizes = [range_size(r) or 0 for r in inside]
    elements = math.prod(sizes) if detail.swizzle else sizes[0] * (math.prod(sizes[1:]) + detail.pad)
    buffers = detail.buffers
    if buffers < 1 or (buffers > 1 and loop.arg.kind is not AxisKind.REDUCE):
        raise refusal(opt, "a loop of a sum uses several buffers in turn; choose buffers=1")
    used = sum(n.arg.size * n.dtype.itemsize for n in facts.order if n.op is Op.LOCAL)
    if used + buffers * elements * value.dtype.itemsize > target.shared_bytes:
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
    local = mk(Op.LOCAL, value.dtype, (), LocalArg(_next_local(facts), buffers * elements))
    copy = value.substitute(at)
    own = {r: r for r in inside}
    if detail.swizzle:
        rows = Rows.of(opt, walk, strides, value.dtype.itemsize)
        stored_at, used_at = rows.element(at), rows.element(own)
        if together == rows.piece_size:  # what one access takes is one piece
            stored_at = rows.piece(place // together) + ranges[-1]
    else:
        stored_at, used_at = _element(inside, at, detail.pad), _element(inside, own, detail.pad)
    if buffers > 1:
        buffer = loop % buffers * elements
        stored_at, used_at = buffer + stored_at, buffer + used_at
    stored = mk(Op.STORE, dtypes.void, (mk(Op.INDEX, value.dtype, (local, stored_at)), copy))
    filled = make_after(value.dtype, (local, stored, *ranges))
    use = mk(Op.LOAD, value.dtype, (mk(Op.INDEX, value.dtype, (filled, used_at)),))
    return facts.sink.substitute({value: use})


def _fetched(
    facts: KernelFacts, loop: UOp, opt: Opt, target: Target, value: UOp, inside: list[UOp], detail: StageDetail
) -> UOp:  # fmt: skip
    """The kernel with a value that the copy engine brings: an array in the order of a matrix unit, filled by loops."""
    if not target.copy_engine:
        raise refusal(opt, f"{target.name} has no copy engine; choose engine=0")
    if value.op is not Op.LOAD or not detail.swizzle:
        raise refusal(opt, "the engine copies elements as they are, for matrix units; choose swizzle=1, converted=0")
    elements = math.prod([range_size(r) or 0 for r in inside])
    used = sum(n.arg.size * n.dtype.itemsize for n in facts.order if n.op is Op.LOCAL)
    if used + detail.buffers * elements * value.dtype.itemsize > target.shared_bytes:
        raise refusal(opt, f"lanes share {target.shared_bytes} bytes, {used} of them are taken; choose smaller tiles")
    known = stored_guards(facts.sink)
    axes = axes_of(value.src[0], inside, lambda r: r.arg.kind is AxisKind.REDUCE, known)
    if isinstance(axes, str):
        raise refusal(opt, axes)
    strides: dict[UOp, int | None] = {
        r: step * axis.stride for axis in axes for r, step in axis.steps.items() if r in inside
    }
    if strides.keys() != set(inside):
        raise refusal(opt, "what is loaded does not change along all ranges of the tile")
    walk = sorted(inside, key=lambda r: -(strides[r] or 0))
    rows = Rows.of(opt, walk, strides, value.dtype.itemsize, apart=True)
    number = facts.next_number()
    own = {r: make_range(r.src[0], number + i, AxisKind.LOOP) for i, r in enumerate(inside)}
    local = mk(Op.LOCAL, value.dtype, (), LocalArg(_next_local(facts), detail.buffers * elements))
    stored_at, used_at = rows.element(dict(own)), rows.element({r: r for r in inside})
    if detail.buffers > 1:
        buffer = loop % detail.buffers * elements
        stored_at, used_at = buffer + stored_at, buffer + used_at
    place = mk(Op.INDEX, value.dtype, (local, stored_at))
    stored = mk(Op.STORE, dtypes.void, (place, value.substitute(own)))
    filled = make_after(value.dtype, (local, stored, *own.values()))
    use = mk(Op.LOAD, value.dtype, (mk(Op.INDEX, value.dtype, (filled, used_at)),))
    return facts.sink.substitute({value: use})


class Rows(NamedTuple):
    """How a tile lies with `swizzle`: blocks of rows of 128 bytes, whose pieces of 16 are exchanged by row.

    Attributes:
        along: the ranges along memory with their strides, `length` elements together.
        across: the ranges across it, `rows` together, with their strides in rows.
        itemsize: bytes of an element.
    """

    along: dict[UOp, int]
    across: dict[UOp, int]
    length: int
    rows: int
    itemsize: int = 2

    @property
    def piece_size(self) -> int:
        """Elements of 16 bytes."""
        return PIECE // self.itemsize

    @staticmethod
    def of(
        opt: Opt, walk: list[UOp], strides: dict[UOp, int | None], itemsize: int, apart: bool = False
    ) -> Rows:  # fmt: skip
        """The rows of a tile whose ranges are given in the order of memory; `apart`: at any distances.

        Raises:
            ArgumentError: it has no such rows.
        """
        along: dict[UOp, int] = {}
        length = 1
        for r in reversed(walk):
            # The sum and what is beside it are two axes, also where a row of memory is as long as one of the tile.
            if strides[r] != length or (r.arg.kind is AxisKind.REDUCE) != (walk[-1].arg.kind is AxisKind.REDUCE):
                break
            along[r] = length
            length *= range_size(r) or 1
        rest = [r for r in walk if r not in along]
        row = min((abs(strides[r] or 0) for r in rest), default=0)
        if length * itemsize % ROW or not row:
            raise refusal(opt, f"a row of elements along memory is no multiple of {ROW} bytes long")
        across: dict[UOp, int] = {}
        count = 1
        for r in reversed(rest):
            if strides[r] != row * count and not apart:
                raise refusal(opt, "its rows do not lie in one order in memory")
            across[r] = count
            count *= range_size(r) or 1
        return Rows(along, across, length, count, itemsize)

    def element(self, at: dict[UOp, UOp]) -> UOp:
        """The place of a point in the array."""
        zero = UOp.const(dtypes.index, 0)
        column = sum((at[r] * stride for r, stride in self.along.items()), zero)
        row = sum((at[r] * stride for r, stride in self.across.items()), zero)
        return self._at(row, column // self.piece_size) + column % self.piece_size

    def piece(self, number: UOp) -> UOp:
        """The place of a piece, counted in the order of memory."""
        pieces = self.length // self.piece_size
        return self._at(number // pieces, number % pieces)

    def _at(self, row: UOp, piece: UOp) -> UOp:
        pieces, size = ROW // PIECE, ROW // self.itemsize
        block = piece // pieces * (self.rows * size)
        return block + row * size + (piece % pieces ^ row % pieces) * self.piece_size


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
