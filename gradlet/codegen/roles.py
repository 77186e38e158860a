"""A product whose factors the copy engine brings: one lane begins the copies, whole warps multiply, blocks are walked.

Where the schedule says SPECIALIZE, the program of lanes is cut in two. One lane after the others walks over all steps
of all blocks of the workgroup and begins the copies of each as soon as a buffer is free (`RING`, `TURN`, `COPY_BOX`).
The others do everything else, a step when its buffer is full, and pass the buffer on when they are done with it. So
nobody waits for anybody else, and the copies of the next block are under way while this one is stored. PARALLEL ranges
become digits of a block's number, in the order that TILE_ORDER names.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import groupby
from math import prod
from typing import Final

from gradlet.base.dtype import dtypes
from gradlet.base.errors import CompilerError
from gradlet.codegen.gathering import gather, parts_of
from gradlet.graph.node import UOp, mk
from gradlet.graph.rewrite import rewrite
from gradlet.ops.op import AxisKind, LocalArg, Op, RingArg, TurnArg, WaitArg
from gradlet.ops.opt import Opt, OptKind, TileOrderDetail
from gradlet.optimize.analysis import make_range, nesting_order, range_size
from gradlet.rules.sets import INDEX_MATH

WARP: Final = 32
ROW: Final = 128  # bytes of a row in shared memory
ROOM, ALL_ROOM = -2, -3  # as what is waited for: a buffer for results, all buffers for results
_OPENING: Final = frozenset({Op.RANGE, Op.ACC, Op.UPDATE, Op.STORE, Op.END, Op.BARRIER, Op.WAIT})


def has_roles(uops: Iterable[UOp]) -> bool:
    """Whether a program of lanes is to be cut in two."""
    return any(n.op is Op.BOX for n in uops)


def workgroups(uops: Sequence[UOp], opts: Sequence[Opt]) -> int:
    """How many workgroups walk the blocks of such a program."""
    walk = next(n for n in uops if n.op is Op.RANGE and n.arg.kind is AxisKind.WALK)
    blocks = range_size(walk) or 1
    most = next((o.amount for o in opts if o.kind is OptKind.PERSISTENT), blocks)
    return min(blocks, most)


def separate_roles(uops: Sequence[UOp], threads: int, opts: Sequence[Opt]) -> tuple[tuple[UOp, ...], int]:
    """The program in two parts, and how many lanes a workgroup then has.

    Args:
        uops: the program of lanes.
        threads: how many lanes it has.
        opts: the schedule.
    """
    return _Roles(uops, threads, opts).run(), threads + WARP


class _Roles:
    def __init__(self, uops: Sequence[UOp], threads: int, opts: Sequence[Opt]) -> None:
        self.uops, self.threads, self.opts = uops, threads, opts
        self.unit = next(n for n in uops if n.op is Op.WGMMA)
        self.parallel = sorted(
            (n for n in uops if n.op is Op.RANGE and n.arg.kind is AxisKind.PARALLEL), key=nesting_order
        )
        self.blocks = prod(range_size(r) or 1 for r in self.parallel)
        self.number = 1 + max((n.arg.number for n in uops if n.op is Op.RANGE), default=0)
        self.loops = self._loops()
        self.result: list[UOp] = []
        self.seen: set[UOp] = set()
        arg = self.unit.arg
        self.locals = self.unit.src[:2]
        size = self.locals[0].dtype.itemsize
        self.elements = (arg.rows * arg.depth, arg.columns * arg.depth)
        buffers = self.locals[0].arg.size // self.elements[0]
        ring = RingArg(buffers, sum(self.elements) * size, threads // WARP)
        self.ring = mk(Op.RING, dtypes.index, (), ring)
        self.boxes = self.unit.src[5:7]
        self.outputs = {box.src[0].arg.slot: box for box in self.unit.src[7:]}

    def _loops(self) -> list[UOp]:
        """The loops of the sum, outermost first."""
        opened: list[UOp] = []
        for node in self.uops:
            if node is self.unit:
                break
            if node.op is Op.RANGE and node.arg.kind is not AxisKind.PARALLEL:
                opened.append(node)
            elif node.op is Op.END and node.src[0] in opened:
                opened.remove(node.src[0])
        if any(range_size(r) is None for r in (*opened, *self.parallel)):
            raise CompilerError("how often a copy is made is only known at launch")
        return opened

    def run(self) -> tuple[UOp, ...]:
        fixed: set[UOp] = set()
        for node in self.uops:
            if node.op not in _OPENING and all(s in fixed for s in node.src) and node.op is not Op.BOX:
                fixed.add(node)
                self._emit(node)
        self.buffers = {slot: self._buffer(slot, box) for slot, box in self.outputs.items()}
        self._emit(self.ring)
        self._copies()
        self._sums(fixed)
        return tuple(self.result)

    def _emit(self, node: UOp) -> UOp:
        """Put a node and what it needs into the program."""
        for part in node.toposort():
            if part not in self.seen and part.op is not Op.RANGE:
                self.seen.add(part)
                self.result.append(part)
        return node

    def _open(self, size: int, kind: AxisKind) -> UOp:
        loop = make_range(UOp.const(dtypes.index, size), self.number, kind)
        self.number += 1
        self._emit(loop.src[0])
        self.result.append(loop)
        self.seen.add(loop)
        return loop

    def _close(self, loop: UOp) -> None:
        self.result.append(mk(Op.END, dtypes.void, (loop,)))

    def _digits(self, block: UOp) -> dict[UOp, UOp]:
        """What the PARALLEL ranges are for a block's number."""
        found: dict[UOp, UOp] = {}
        order = next((o for o in self.opts if o.kind is OptKind.TILE_ORDER), None)
        ranges = list(self.parallel)
        if order is not None:
            assert isinstance(order.detail, TileOrderDetail)
            by_number = {r.arg.number: r for r in ranges}
            pair = [by_number.get(n) for n in (order.axis, order.detail.along)]
            if None not in pair:
                rows, columns = (r for r in pair if r is not None)
                high, wide = range_size(rows) or 1, range_size(columns) or 1
                group = min(order.amount, high)
                ranges = [r for r in ranges if r not in (rows, columns)]
                inside = block % (high * wide) if ranges else block
                first = inside // (group * wide)
                rest = inside % (group * wide)
                several: UOp = UOp.const(dtypes.index, group)
                if high % group:  # the last group has fewer
                    left = UOp.const(dtypes.index, high % group)
                    several = (first < high // group).where(several, left)
                found[rows] = first * group + rest % several
                found[columns] = rest // several
                block = block // (high * wide)
        for r in reversed(ranges):
            size = range_size(r) or 1
            found[r] = block % size if r is not ranges[0] else block
            block = block // size
        return {r: rewrite(at, INDEX_MATH) for r, at in found.items()}

    def _copies(self) -> None:
        """The lane that begins copies."""
        role = self._open(1, AxisKind.ROLE)
        walk = self._open(self.blocks, AxisKind.WALK)
        place = self._digits(walk)
        for at in place.values():
            self._emit(at)
        opened: list[UOp] = []
        for loop in self.loops:
            opened.append(self._open(range_size(loop) or 1, AxisKind.LOOP))
            place[loop] = opened[-1]
        turn = self._emit(mk(Op.TURN, dtypes.index, (self.ring, opened[-1]), TurnArg(full=False)))
        for local, box, elements in zip(self.locals, self.boxes, self.elements, strict=True):
            moved = rewrite(box.substitute(place), INDEX_MATH)
            part = prod(box.arg.box)
            for number in range(elements // part):
                at = turn * elements + number * part if number else turn * elements
                near = mk(Op.INDEX, local.dtype, (local, at))
                along = moved.src[1] + number * box.arg.box[0] if number else moved.src[1]
                one = mk(Op.BOX, box.dtype, (moved.src[0], along, *moved.src[2:]), box.arg)
                self._emit(mk(Op.COPY_BOX, dtypes.void, (near, rewrite(one, INDEX_MATH), turn)))
        self._emit(mk(Op.PASS_ON, dtypes.void, (turn,)))
        for loop in (*reversed(opened), walk, role):
            self._close(loop)

    def _sums(self, fixed: set[UOp]) -> None:
        """The lanes that compute."""
        role = self._open(self.threads, AxisKind.ROLE)
        walk = self._open(self.blocks, AxisKind.WALK)
        new: dict[UOp, UOp] = dict(self._digits(walk))
        for at in new.values():
            self._emit(at)
        for loop in self.loops:
            new[loop] = make_range(UOp.const(dtypes.index, range_size(loop) or 1), self.number, AxisKind.LOOP)
            self.number += 1
        outputs: dict[int, UOp] = {}
        tail: list[UOp] | None = None
        turn: UOp | None = None
        for node in self.uops:
            ends = node.op is Op.END and node.src[0] in self.parallel
            if node in fixed or node in self.parallel or ends or node.op is Op.BOX:
                continue
            if node.op is Op.WGMMA:
                turn = mk(Op.TURN, dtypes.index, (self.ring, new[self.loops[-1]]), TurnArg(True, node.arg.pending))
                self._emit(turn)
                start = new.get(node.src[4], node.src[4])
                made = mk(
                    Op.WGMMA, node.dtype, (*node.src[:2], new.get(node.src[2], node.src[2]), turn, start), node.arg
                )
            else:
                made = mk(node.op, node.dtype, tuple([new.get(s, s) for s in node.src]), node.arg)
            if node in self.loops:
                made = new[node]
                self._emit(made.src[0])
                self._add(made)
            elif tail is not None:
                tail.append(made)
            elif node.op is Op.END:
                if node.src[0] is self.loops[-1] and turn is not None:
                    self._emit(mk(Op.PASS_ON, dtypes.void, (turn,)))
                self._close(new[node.src[0]])
                if node.src[0] is self.loops[0]:
                    if self.unit.arg.pending:
                        self.result.append(mk(Op.WAIT, dtypes.void, (), WaitArg(0, -1)))
                    tail = []
                    outputs = {slot: box.substitute(new) for slot, box in self.outputs.items()}
            else:
                self._add(made)
            new[node] = made
        self._finish(tail or [], outputs)
        self._close(walk)
        self._close(role)

    def _add(self, node: UOp) -> None:
        if node not in self.seen:
            self.seen.add(node)
            self.result.append(node)

    # results
    def _buffer(self, slot: int, box: UOp) -> UOp:
        """Two buffers a warp for results."""
        number = 1 + max(n.arg.number for n in self.result if n.op is Op.LOCAL)
        number += list(self.outputs).index(slot)
        size = self.threads // WARP * 2 * prod(box.arg.box)
        return self._emit(mk(Op.LOCAL, box.dtype, (), LocalArg(number, size)))

    def _finish(self, tail: list[UOp], outputs: dict[int, UOp]) -> None:
        """What follows the sums: results for boxes are gathered 128 bytes of every row at a time."""
        stores = [n for n in tail if n.op is Op.STORE]
        boxed: dict[int, list[UOp]] = {}
        for store in stores:
            slot = store.src[0].src[0].arg.slot if store.src[0].src[0].op is Op.PARAM else -1
            if slot in outputs and store.src[1].dtype.count == 2:
                boxed.setdefault(slot, []).append(store)
        later = {s for found in boxed.values() for s in found}
        if not later or any(n.op is Op.RANGE for n in tail):
            for node in tail:
                self._add(node)
            return
        for node in tail:
            if node.op is Op.STORE and node not in later:
                self._emit(node)
        # What several results are made of is needed for a few columns at a time.
        parts = [part for slot, found in boxed.items() for part in parts_of(found, outputs[slot], self.buffers[slot])]
        for _, group in groupby(sorted(parts, key=lambda part: part.end), key=lambda part: part.end):
            together = list(group)
            values = [
                (part.column + column, half, store.src[1]) for part in together for half, column, store in part.stores
            ]
            for _, _, value in sorted(values, key=lambda value: value[:2]):
                self._emit(value)
            for part in together:
                gather(part, self.threads, len(self.result), self._emit)
