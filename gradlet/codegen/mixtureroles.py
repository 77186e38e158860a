"""Attention by blocks of keys, cut in two programs: one lane begins the copies, whole warps multiply.

Queries come first and stay; then every block of keys, and every block of values after the keys of the next one, each in
its turn as soon as a buffer is free: in the order in which the other lanes use them (`mixturesteps`).
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Final

from gradlet.base.dtype import dtypes
from gradlet.base.errors import CompilerError
from gradlet.codegen.mixturesteps import Rings, Steps
from gradlet.codegen.writer import Writer
from gradlet.graph.node import UOp, mk
from gradlet.graph.rewrite import rewrite
from gradlet.ops.op import AxisKind, Op, RingArg
from gradlet.optimize.analysis import range_size
from gradlet.rules.sets import INDEX_MATH

WARP: Final = 32
WARPGROUP: Final = 128  # two of them need registers of a third one, which copies


def is_mixture(uops: Sequence[UOp]) -> bool:
    """Whether a program of lanes is attention by matrix units."""
    return any(n.op is Op.WGMMA and n.arg.alone for n in uops)


def separate_mixture(uops: Sequence[UOp], threads: int) -> tuple[tuple[UOp, ...], int]:
    """The program in two parts, and how many lanes a workgroup then has.

    Args:
        uops: the program of lanes.
        threads: how many lanes it has.
    """
    return _Roles(uops, threads).run(), threads + (WARPGROUP if threads > WARPGROUP else WARP)


def _longest_first(uops: Sequence[UOp]) -> list[UOp]:
    """The program with blocks of queries in turned order where later ones see more keys: what ends last is short."""
    block = next((n for n in uops if n.op is Op.RANGE and n.arg.kind is AxisKind.ORDERED), None)
    parallel = [] if block is None else [r for r in block.src[0].ranges if r.arg.kind is AxisKind.PARALLEL]
    if block is None or len(parallel) != 1:
        return list(uops)
    (loop,) = parallel
    last = (range_size(loop) or 1) - 1
    few, many = (
        rewrite(block.src[0].substitute({loop: UOp.const(dtypes.index, n)}), INDEX_MATH) for n in (0, last)
    )  # fmt: skip
    if few.op is not Op.CONST or many.op is not Op.CONST or many.arg <= few.arg:
        return list(uops)
    turned = loop * -1 + last
    new: dict[UOp, UOp] = {loop: turned}

    def there(node: UOp) -> UOp:
        return new[node] if node in new else node.substitute({n: new[n] for n in (loop, block) if n in new})

    result: list[UOp] = []
    for node in uops:
        if node is loop:
            result += turned.toposort()
        elif node.op is Op.END and node.src[0] is loop:
            result.append(node)
        else:
            made = mk(node.op, node.dtype, tuple([there(n) for n in node.src]), node.arg)
            new[node] = rewrite(made, INDEX_MATH) if node is block else made
            result.append(new[node])
    return result


class _Roles:
    def __init__(self, given: Sequence[UOp], threads: int) -> None:
        uops = _longest_first(given)
        self.uops, self.threads = uops, threads
        self.scores, self.mixed = (n for n in uops if n.op is Op.WGMMA)
        self.parallel = [n for n in uops if n.op is Op.RANGE and n.arg.kind is AxisKind.PARALLEL]
        self.block = next((n for n in uops if n.op is Op.RANGE and n.arg.kind is AxisKind.ORDERED), None)
        self.writer = Writer(1 + max((n.arg.number for n in uops if n.op is Op.RANGE), default=0))
        self.queries, self.keys, self.values = self.scores.src[0], self.scores.src[1], self.mixed.src[1]
        tile = self.scores.arg.columns * self.scores.arg.depth, self.mixed.arg.columns * self.mixed.arg.depth
        warps = threads // WARP
        self.rings = Rings(
            self._ring(0, self.queries, self.queries.arg.size, warps),
            self._ring(1, self.keys, tile[0], warps), self._ring(2, self.values, tile[1], warps),
        )  # fmt: skip

    def _ring(self, number: int, local: UOp, elements: int, warps: int) -> UOp:
        buffers = local.arg.size // elements
        return mk(Op.RING, dtypes.index, (), RingArg(buffers, elements * local.dtype.itemsize, warps, number))

    def run(self) -> tuple[UOp, ...]:
        if any(range_size(r) is None for r in self.parallel):
            raise CompilerError("how many blocks of queries there are is only known at launch")
        writer = self.writer
        for loop in self.parallel:
            writer.emit(loop.src[0])
            writer.enter(loop)
        for local in (self.queries, self.keys, self.values):
            writer.emit(local)
        if self.block is not None:
            writer.emit(self.block.src[0])
        for ring in self.rings:
            writer.emit(ring)
        self._copies()
        role = writer.open(self.threads, AxisKind.ROLE)
        Steps(self.uops, self.rings, writer).write()
        writer.close(role)
        for loop in reversed(self.parallel):
            writer.close(loop)
        return tuple(writer.result)

    def _copies(self) -> None:
        """The lane that begins copies."""
        writer, rings, zero = self.writer, self.rings, UOp.const(dtypes.index, 0)
        role = writer.open(1, AxisKind.ROLE)
        self._bring(rings.queries, self.queries, self.scores.src[5], zero)
        self._bring(rings.keys, self.keys, self.scores.src[6], zero)
        last = zero
        if self.block is not None:
            last = rewrite(self.block.src[0] + -1, INDEX_MATH)
            loop = writer.open(last, AxisKind.LOOP)
            self._bring(rings.keys, self.keys, self.scores.src[6], loop + 1)
            self._bring(rings.values, self.values, self.mixed.src[5], loop)
            writer.close(loop)
        self._bring(rings.values, self.values, self.mixed.src[5], last)
        writer.close(role)

    def _bring(self, ring: UOp, local: UOp, box: UOp, block: UOp) -> None:
        """Copies into the next buffer of a ring, rows of 128 bytes at a time."""
        writer = self.writer
        box = box if self.block is None else rewrite(box.substitute({self.block: block}), INDEX_MATH)
        turn = writer.turn(ring, full=False)
        elements, part = ring.arg.bytes // local.dtype.itemsize, prod(box.arg.box)
        for number in range(elements // part):
            near = turn * elements + number * part if number else turn * elements
            along = box.src[1] + number * box.arg.box[0] if number else box.src[1]
            one = mk(Op.BOX, box.dtype, (box.src[0], along, *box.src[2:]), box.arg)
            moved = mk(Op.COPY_BOX, dtypes.void, (mk(Op.INDEX, local.dtype, (local, near)), one, turn))
            writer.emit(rewrite(moved, INDEX_MATH))
        writer.put(mk(Op.PASS_ON, dtypes.void, (turn,)))
