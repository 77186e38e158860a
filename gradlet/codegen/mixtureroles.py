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
from gradlet.codegen.mixturesteps import Results, Rings, Steps
from gradlet.codegen.writer import Writer
from gradlet.graph.node import UOp, mk
from gradlet.graph.rewrite import rewrite
from gradlet.ops.op import AxisKind, LocalArg, Op, RingArg
from gradlet.ops.opt import Opt, RotateDetail
from gradlet.optimize.analysis import range_size, size_bound
from gradlet.rules.sets import INDEX_MATH

WARP: Final = 32
SECTION_BYTES: Final = 32 << 20  # of keys and values that blocks at the same time read, for the second cache
WARPGROUP: Final = 128  # two of them need registers of a third one, which copies


def is_mixture(uops: Sequence[UOp]) -> bool:
    """Whether a program of lanes is attention by matrix units."""
    return any(n.op is Op.WGMMA and n.arg.alone for n in uops)


def separate_mixture(
    uops: Sequence[UOp], threads: int, opts: Sequence[Opt]
) -> tuple[tuple[UOp, ...], int, int]:  # fmt: skip
    """The program in two parts, how many lanes a workgroup then has, and how many workgroups there are.

    Args:
        uops: the program of lanes.
        threads: how many lanes it has.
        opts: the schedule.
    """
    detail = next(o.detail for o in opts if isinstance(o.detail, RotateDetail))
    roles = _Roles(uops, threads, detail)
    more = WARPGROUP if threads > WARPGROUP else WARP
    return roles.run(), threads + more, min(detail.workgroups or roles.order.blocks, roles.order.blocks)


def _units(uops: Sequence[UOp]) -> tuple[UOp, UOp]:
    """The products of scores and of weighted values."""
    scores, mixed = (n for n in uops if n.op is Op.WGMMA)
    return scores, mixed


def ordered(uops: Sequence[UOp]) -> UOp | None:
    """The loop over blocks of keys."""
    return next((n for n in uops if n.op is Op.RANGE and n.arg.kind is AxisKind.ORDERED), None)


class Order:
    """Which block of queries is the n-th, of all workgroups together.

    Where some blocks see more than others the longest come first, of several heads in turns: what ends last is short.
    As many heads as have what goes by in the second cache.
    """

    def __init__(self, parallel: Sequence[UOp], block: UOp | None, head_bytes: int) -> None:
        self.parallel = parallel
        self.sizes = {r: range_size(r) or 1 for r in parallel}
        self.blocks = prod(self.sizes.values())
        self.rows, self.growing = self._rows(block)
        if self.rows is not None:
            heads = self.blocks // self.sizes[self.rows]
            most = max(1, SECTION_BYTES // head_bytes)
            self.heads = max(n for n in range(1, heads + 1) if heads % n == 0 and n <= most)

    def _rows(self, block: UOp | None) -> tuple[UOp | None, bool]:
        """The range whose blocks see more or less, and whether it is the later ones that see more."""
        found = [] if block is None else [r for r in block.src[0].ranges if r in self.sizes]
        if block is None or len(found) != 1:
            return None, False
        (loop,) = found
        ends = [{loop: UOp.const(dtypes.index, n)} for n in (0, self.sizes[loop] - 1)]
        first, last = (rewrite(block.src[0].substitute(end), INDEX_MATH) for end in ends)
        plain = first.op is Op.CONST and last.op is Op.CONST and first.arg != last.arg
        return (loop, bool(last.arg > first.arg)) if plain else (None, False)

    def digits(self, number: UOp) -> dict[UOp, UOp]:
        """What the ranges are."""
        found: dict[UOp, UOp] = {}
        rest, loops = number, list(self.parallel)
        if self.rows is not None:
            size = self.sizes[self.rows]
            inside = number % (self.heads * size)
            at = inside // self.heads
            found[self.rows] = at * -1 + (size - 1) if self.growing else at
            rest = number // (self.heads * size) * self.heads + inside % self.heads
            loops.remove(self.rows)
        for loop in reversed(loops):
            found[loop] = rest % self.sizes[loop] if loop is not loops[0] else rest
            rest = rest // self.sizes[loop]
        return {loop: rewrite(at, INDEX_MATH) for loop, at in found.items()}


def placed(uops: Sequence[UOp], place: dict[UOp, UOp]) -> list[UOp]:
    """The program with other nodes in place of ranges, which it then does not open."""
    new: dict[UOp, UOp] = dict(place)

    def there(node: UOp) -> UOp:
        if node not in new:
            src = tuple([there(n) for n in node.src])
            made = node if src == node.src else mk(node.op, node.dtype, src, node.arg)
            new[node] = rewrite(made, INDEX_MATH) if node.op is Op.RANGE and made is not node else made
        return new[node]

    result: list[UOp] = []
    for node in uops:
        if node in place:
            result += [n for n in place[node].toposort() if n.op is not Op.RANGE]
        elif node.op is not Op.END or node.src[0] not in place:
            result.append(there(node))
    return result


class _Roles:
    def __init__(self, given: Sequence[UOp], threads: int, detail: RotateDetail) -> None:
        queries = _units(given)[0].src[0]
        several = queries.replace(arg=queries.arg._replace(size=queries.arg.size * detail.queries))
        uops = placed(given, {queries: several})
        self.uops, self.threads = uops, threads
        scores, mixed = _units(uops)
        self.parallel = [n for n in uops if n.op is Op.RANGE and n.arg.kind is AxisKind.PARALLEL]
        if any(range_size(r) is None for r in self.parallel):
            raise CompilerError("how many blocks of queries there are is only known at launch")
        self.writer = Writer(1 + max((n.arg.number for n in uops if n.op is Op.RANGE), default=0))
        self.queries, self.keys, self.values = scores.src[0], scores.src[1], mixed.src[1]
        tile = scores.arg.columns * scores.arg.depth, mixed.arg.columns * mixed.arg.depth
        block = ordered(uops)
        most = 1 if block is None else size_bound(block)
        self.order = Order(self.parallel, block, sum(tile) * self.keys.dtype.itemsize * most)
        warps = threads // WARP
        self.rings = Rings(
            self._ring(0, self.queries, queries.arg.size, warps),
            self._ring(1, self.keys, tile[0], warps), self._ring(2, self.values, tile[1], warps),
        )  # fmt: skip

    def _ring(self, number: int, local: UOp, elements: int, warps: int) -> UOp:
        buffers = local.arg.size // elements
        return mk(Op.RING, dtypes.index, (), RingArg(buffers, elements * local.dtype.itemsize, warps, number))

    def _buffer(self, box: UOp) -> UOp:
        """Two buffers a warp for results."""
        number = 1 + max(n.arg.number for n in self.uops if n.op is Op.LOCAL)
        size = self.threads // WARP * 2 * prod(box.arg.box)
        return self.writer.emit(mk(Op.LOCAL, box.dtype, (), LocalArg(number, size)))

    def run(self) -> tuple[UOp, ...]:
        writer = self.writer
        for local in (self.queries, self.keys, self.values):
            writer.emit(local)
        for ring in self.rings:
            writer.emit(ring)
        outputs = _units(self.uops)[1].src[6:]
        gathered = self._buffer(outputs[0]) if outputs else None
        for lanes in (1, self.threads):
            role = writer.open(lanes, AxisKind.ROLE)
            walk = writer.open(self.order.blocks, AxisKind.WALK)
            uops = placed(self.uops, self.order.digits(walk))
            if lanes == 1:
                self._copies(uops)
            else:
                results = Results(_units(uops)[1].src[6], gathered, self.threads) if gathered is not None else None
                Steps(uops, self.rings, writer, results).write()
            writer.close(walk)
            writer.close(role)
        return tuple(writer.result)

    def _copies(self, uops: Sequence[UOp]) -> None:
        """The lane that begins copies."""
        writer, rings, block = self.writer, self.rings, ordered(uops)
        scores, mixed = _units(uops)
        last = zero = UOp.const(dtypes.index, 0)
        at = {} if block is None else {block: zero}
        self._bring(rings.queries, self.queries, scores.src[5].substitute(at))
        self._bring(rings.keys, self.keys, scores.src[6].substitute(at))
        if block is not None:
            last = rewrite(block.src[0] + -1, INDEX_MATH)
            loop = writer.open(last, AxisKind.LOOP)
            self._bring(rings.keys, self.keys, scores.src[6].substitute({block: loop + 1}))
            self._bring(rings.values, self.values, mixed.src[5].substitute({block: loop}))
            writer.close(loop)
            at = {block: last}
        self._bring(rings.values, self.values, mixed.src[5].substitute(at))

    def _bring(self, ring: UOp, local: UOp, box: UOp) -> None:
        """Copies into the next buffer of a ring, rows of 128 bytes at a time."""
        writer = self.writer
        box = rewrite(box, INDEX_MATH)
        turn = writer.turn(ring, full=False)
        elements, part = ring.arg.bytes // local.dtype.itemsize, prod(box.arg.box)
        for number in range(elements // part):
            near = turn * elements + number * part if number else turn * elements
            along = box.src[1] + number * box.arg.box[0] if number else box.src[1]
            one = mk(Op.BOX, box.dtype, (box.src[0], along, *box.src[2:]), box.arg)
            moved = mk(Op.COPY_BOX, dtypes.void, (mk(Op.INDEX, local.dtype, (local, near)), one, turn))
            writer.emit(rewrite(moved, INDEX_MATH))
        writer.put(mk(Op.PASS_ON, dtypes.void, (turn,)))
