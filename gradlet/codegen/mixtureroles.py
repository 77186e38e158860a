"""Attention by blocks of keys, cut in two programs: one lane begins the copies, whole warps multiply.

Queries come first and stay; then every block of keys and values in its turn, as soon as the buffer is free. The other
lanes take a block when it is there: the scores, their maxima, the weights, the weighted values. What is kept from one
block to the next is stored in registers before the loop, so that no iteration asks whether it is the first.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Final

from gradlet.base.dtype import dtypes
from gradlet.base.errors import CompilerError
from gradlet.graph.node import UOp, mk
from gradlet.graph.rewrite import rewrite
from gradlet.ops.op import AxisKind, Op, RingArg, TurnArg
from gradlet.optimize.analysis import make_range, range_size
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
        self.number = 1 + max((n.arg.number for n in uops if n.op is Op.RANGE), default=0)
        self.queries, keys = self.scores.src[:2]
        # Array, box, elements of one buffer.
        self.copied = [
            (keys, self.scores.src[6], self.scores.arg.columns * self.scores.arg.depth),
            (self.mixed.src[1], self.mixed.src[5], self.mixed.arg.columns * self.mixed.arg.depth),
        ]
        size = keys.dtype.itemsize
        buffers = keys.arg.size // self.copied[0][2]
        self.ring = mk(
            Op.RING, dtypes.index, (), RingArg(buffers, sum(c[2] for c in self.copied) * size, threads // WARP)
        )
        self.result: list[UOp] = []
        self.seen: set[UOp] = set()

    def run(self) -> tuple[UOp, ...]:
        if any(range_size(r) is None for r in self.parallel):
            raise CompilerError("how many blocks of queries there are is only known at launch")
        for loop in self.parallel:
            self._emit(loop.src[0])
            self._put(loop)
        for local in (self.queries, *[c[0] for c in self.copied]):
            self._emit(local)
        if self.block is not None:
            self._emit(self.block.src[0])
        self._emit(self.ring)
        before = set(self.seen)
        self._copies()
        self.seen = before  # the others do not see what that lane has computed
        self._sums()
        self.result += [mk(Op.END, dtypes.void, (loop,)) for loop in reversed(self.parallel)]
        return tuple(self.result)

    def _put(self, node: UOp) -> None:
        if node not in self.seen:
            self.seen.add(node)
            self.result.append(node)

    def _emit(self, node: UOp) -> UOp:
        """Put a node and what it needs into the program."""
        for part in node.toposort():
            if part.op is not Op.RANGE or part in self.seen:
                self._put(part)
        return node

    def _open(self, size: UOp, kind: AxisKind) -> UOp:
        loop = make_range(size, self.number, kind)
        self.number += 1
        self._emit(size)
        self._put(loop)
        return loop

    def _copies(self) -> None:
        """The lane that begins copies."""
        role = self._open(UOp.const(dtypes.index, 1), AxisKind.ROLE)
        first = UOp.const(dtypes.index, 0)
        self._bring(self.queries, self.scores.src[5], self.queries.arg.size, first, first)
        loop = first if self.block is None else self._open(rewrite(self.block.src[0], INDEX_MATH), AxisKind.LOOP)
        turn = self._emit(mk(Op.TURN, dtypes.index, (self.ring, loop), TurnArg(full=False)))
        for local, box, elements in self.copied:
            moved = box if self.block is None else box.substitute({self.block: loop})
            self._bring(local, moved, elements, turn * elements, turn)
        self._emit(mk(Op.PASS_ON, dtypes.void, (turn,)))
        self.result += [mk(Op.END, dtypes.void, (n,)) for n in (loop, role) if n is not first]

    def _bring(self, local: UOp, box: UOp, elements: int, begin: UOp, turn: UOp) -> None:
        """Copies of an array, rows of 128 bytes at a time."""
        part = prod(box.arg.box)
        for number in range(elements // part):
            near = mk(Op.INDEX, local.dtype, (local, begin + number * part if number else begin))
            along = box.src[1] + number * box.arg.box[0] if number else box.src[1]
            one = mk(Op.BOX, box.dtype, (box.src[0], along, *box.src[2:]), box.arg)
            moved = mk(Op.COPY_BOX, dtypes.void, (near, rewrite(one, INDEX_MATH), turn))
            self._emit(rewrite(moved, INDEX_MATH))

    def _sums(self) -> None:
        """The lanes that compute."""
        role = self._open(UOp.const(dtypes.index, self.threads), AxisKind.ROLE)
        new: dict[UOp, UOp] = {}
        kept = self._begins() if self.block is not None else {}
        turn: UOp | None = None
        for node in self.uops:
            if node.op is Op.BOX or node in self.parallel or (node.op is Op.END and node.src[0] in self.parallel):
                continue
            if node.op is Op.RANGE and node is self.block:
                for place, start in kept.values():
                    self._emit(mk(Op.STORE, dtypes.void, (place, start)))
            elif node.op is Op.END and node.src[0] is self.block and turn is not None:
                self._put(mk(Op.PASS_ON, dtypes.void, (turn,)))
            if node in kept:
                new[node] = new.get(node.src[1], node.src[1])
                continue
            if node.op is Op.WGMMA:
                if turn is None:
                    loop = self.block if self.block is not None else UOp.const(dtypes.index, 0)
                    turn = self._emit(mk(Op.TURN, dtypes.index, (self.ring, loop), TurnArg(full=True)))
                src = (*[new.get(s, s) for s in node.src[:3]], turn, node.src[4])
                made = mk(Op.WGMMA, node.dtype, src, node.arg)
            else:
                made = mk(node.op, node.dtype, tuple([new.get(s, s) for s in node.src]), node.arg)
            new[node] = made
            if made.op is Op.LOAD:
                self.result.append(made)  # of registers, which may have changed
            else:
                self._put(made)
        self.result.append(mk(Op.END, dtypes.void, (role,)))

    def _begins(self) -> dict[UOp, tuple[UOp, UOp]]:
        """Values that are kept from the block before, with their place, and what they are in the first one."""
        found: dict[UOp, tuple[UOp, UOp]] = {}
        for node in self.uops:
            if node.op is not Op.WHERE:
                continue
            condition, load, start = node.src
            later = condition.src[0] if condition.op is Op.VECTORIZE else condition
            plain = later.op is Op.CMPLT and later.src[0].op is Op.CONST and later.src[1] is self.block
            if plain and load.op is Op.LOAD and load.src[0].src[0].op is Op.LOCAL and load.src[0].src[0].arg.private:
                found[node] = load.src[0], start
        return found
