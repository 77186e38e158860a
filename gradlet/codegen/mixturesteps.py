"""Attention by blocks of keys: what the lanes that multiply do, the scores of a block ahead of the values before it.

A block is two products with a softmax between them. Its scores need nothing of the block before, so their product is
begun together with that of the weights and values before it, and the softmax is computed while the second one is under
way: matrix units rest only where the weighted values so far are scaled. What is written: the first scores; of every
block but the first its scores and the values before; the last values.

Weighted values stay in the registers that the unit adds to. Scores of hidden keys are replaced in blocks that have any.
What is kept from one block to the next is stored in registers before the loop, so that no iteration asks whether it is
the first.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from functools import reduce
from typing import Final, NamedTuple

from gradlet.base.dtype import dtypes
from gradlet.base.errors import CompilerError
from gradlet.codegen.gathering import gather, parts_of
from gradlet.codegen.writer import Writer, closure
from gradlet.graph.node import UOp, mk
from gradlet.graph.rewrite import rewrite
from gradlet.ops.op import AcrossArg, AxisKind, Op, WaitArg
from gradlet.rules.sets import INDEX_MATH

WARP: Final = 32
ALL_UNITS, ALL_UNITS_BUT_ONE = -1, -4  # as what is waited for
_ZERO: Final = UOp.const(dtypes.index, 0)


class Rings(NamedTuple):
    """The rings of buffers."""

    queries: UOp
    keys: UOp
    values: UOp


class Results(NamedTuple):
    """How results are stored as boxes.

    Attributes:
        box: the first one of a warp.
        local: where warps gather them.
        threads: lanes that compute.
    """

    box: UOp
    local: UOp
    threads: int


class Steps:
    """The program of the lanes that multiply.

    Args:
        uops: the program of lanes that does all.
        rings: where factors come in.
        writer: where it is written to.
        results: how they are stored; None: by each lane.
    """

    def __init__(self, uops: Sequence[UOp], rings: Rings, writer: Writer, results: Results | None) -> None:
        self.results = results
        self.rings, self.writer, self.waits = rings, writer, 0
        self.queries = UOp.const(dtypes.index, 0)
        self.block = next((n for n in uops if n.op is Op.RANGE and n.arg.kind is AxisKind.ORDERED), None)
        self.uops = [n for n in uops if n.op is not Op.BOX]
        self.scores, self.mixed = (n for n in uops if n.op is Op.WGMMA)
        self.weights = self.mixed.src[0]
        self.users: dict[UOp, list[UOp]] = {}
        for node in uops:
            for source in node.src:
                self.users.setdefault(source, []).append(node)
        added = closure([self.mixed], self.uops)
        self.moved, self.sum = self._moved(added)
        self.begins = self._begins()
        begin = end = len(self.uops)
        if self.block is not None:
            begin = self.uops.index(self.block)
            end = next(i for i, n in enumerate(self.uops) if n.op is Op.END and n.src[0] is self.block)
        self.before, body = self.uops[:begin], self.uops[begin + 1 : end]
        self.after = self.uops[end + 1 :]
        if self.block is None:
            states = {index.src[0] for index in self.moved}
            found = [n for n in self.uops if n.op is Op.LOAD and n.src[0].src[0] in states]
            later = closure(found, self.uops)
            body, self.before = [n for n in self.before if n not in later], []
            self.after = [n for n in self.uops if n in later]
        late = self._late(body)
        added |= {n for n in body if n.op is Op.LOAD and n.src[0].src[0] is self.sum}
        self.early = [n for n in body if n not in added and n not in late]
        self.late = [n for n in body if n in late and n not in added]
        self.scaling, self.factors = self._scaling() if self.block is not None else ([], [])

    def _moved(self, added: Collection[UOp]) -> tuple[dict[UOp, UOp], UOp]:
        """Of every place of what is kept from block to block, that in the array which the second product adds to."""
        moved: dict[UOp, UOp] = {}
        for node in self.uops:
            if node not in added or node.op is not Op.STORE:
                continue
            place, value = node.src
            parts = sorted(value.src, key=lambda s: s.op is not Op.LOAD) if value.op is Op.ADD else []
            if len(parts) != 2 or parts[0].op is not Op.LOAD or parts[1].op is not Op.SHUFFLE:
                break
            (load, picked), wanted = parts, value.dtype.count
            row, column = divmod(load.src[0].src[1].arg, self.mixed.arg.columns)
            register = column // 8 * 4 + row * 2
            if picked.src != (self.mixed,) or picked.arg.picks != tuple(range(register, register + wanted)):
                break
            moved[place] = load.src[0]
        arrays = {index.src[0] for index in moved.values()}
        if 4 * len(moved) != self.mixed.arg.columns or len(arrays) != 1:
            raise CompilerError("weighted values of a block are not added to those of the blocks before")
        return moved, arrays.pop()

    def _begins(self) -> dict[UOp, tuple[UOp, UOp]]:
        """Values that are kept from the block before, with their place, and what they are in the first one."""
        found: dict[UOp, tuple[UOp, UOp]] = {}
        for node in self.uops:
            if node.op is not Op.WHERE or self.block is None:
                continue
            condition, load, start = node.src
            later = condition.src[0] if condition.op is Op.VECTORIZE else condition
            plain = later.op is Op.CMPLT and later.src[0].op is Op.CONST and later.src[1] is self.block
            if plain and load.op is Op.LOAD and load.src[0].src[0].op is Op.LOCAL and load.src[0].src[0].arg.private:
                found[node] = load.src[0], start
        return found

    def _late(self, body: Sequence[UOp]) -> set[UOp]:
        """What reads or writes registers of the second product: after it, and before the next one."""
        own = {self.sum, self.weights}
        first = [n for n in body if n.op is Op.STORE and n.src[0].src[0] in own]
        first += [n for n in body if n.op is Op.LOAD and n.src[0] in self.moved]
        late = closure(first, body)
        for node in reversed(body):
            if node.op is Op.CAST and all(user in late for user in self.users.get(node, ())):
                late.add(node)
        return late

    def _scaling(self) -> tuple[list[UOp], list[UOp]]:
        """What scales the weighted values so far, and by what."""
        stores = [n for n in self.late if n.op is Op.STORE and n.src[0].src[0] is self.sum]
        factors: dict[UOp, None] = {}
        for store in stores:
            before, factor = store.src[1].src if store.src[1].op is Op.MUL else (store, store)
            place, _ = self.begins.get(before, (None, None))
            if place is None or self.moved.get(place) is not store.src[0] or factor.op is not Op.VECTORIZE:
                raise CompilerError("weighted values so far are not scaled where they are")
            factors[factor.src[0]] = None
        apart, inside = set(stores), set(self.late)
        for node in reversed(self.late):
            users = inside.intersection(self.users.get(node, ()))
            if users and users <= apart:
                apart.add(node)
        return [n for n in self.late if n in apart], list(factors)

    def write(self) -> None:
        """Write all of it."""
        writer, block, rings = self.writer, self.block, self.rings
        self._part(self.before, {})
        for place, start in self.begins.values():
            self._part([mk(Op.STORE, dtypes.void, (place, start))], {})
        self.queries = writer.turn(rings.queries, full=True)
        turn = writer.turn(rings.keys, full=True)
        at = {} if block is None else {block: _ZERO}
        self._softmax(self._product(self.scores, turn, 0, at), turn, None, at)
        if block is not None:
            loop = writer.open(rewrite(block.src[0] + -1, INDEX_MATH), AxisKind.LOOP)
            at = {block: writer.emit(loop + 1)}
            keys = writer.turn(rings.keys, full=True)
            scores = self._product(self.scores, keys, 2, at)
            values = writer.turn(rings.values, full=True)
            self._product(self.mixed, values, 2, {})
            self._wait(ALL_UNITS_BUT_ONE)
            self._softmax(scores, keys, values, at)
            writer.close(loop)
        writer.put(mk(Op.PASS_ON, dtypes.void, (self.queries,)))
        turn = writer.turn(rings.values, full=True)
        self._product(self.mixed, turn, 0, {})
        writer.put(mk(Op.PASS_ON, dtypes.void, (turn,)))
        self._store()

    def _store(self) -> None:
        """Store the results."""
        results, new = self.results, dict[UOp, UOp]()
        if results is None:
            self._part(self.after, new)
            return
        stores = [n for n in self.after if n.op is Op.STORE]
        self._part([n for n in self.after if n.op is not Op.STORE], new)
        stores = [mk(Op.STORE, n.dtype, tuple([new.get(s, s) for s in n.src])) for n in stores]
        for part in parts_of(stores, results.box, results.local):
            gather(part, results.threads, len(self.writer.result), self.writer.emit)

    def _product(self, unit: UOp, turn: UOp, pending: int, at: dict[UOp, UOp]) -> UOp:
        """Begin a product, with so many still under way then."""
        start = self.sum if unit is self.mixed else unit.src[4]
        for source in (*unit.src[:3], start):
            self.writer.emit(source)
        first = () if unit is self.mixed else (self.queries,)
        made = mk(Op.WGMMA, unit.dtype, (*unit.src[:3], turn, start, *first), unit.arg._replace(pending=pending))
        return self.writer.put(made)

    def _softmax(self, scores: UOp, used: UOp, later: UOp | None, at: dict[UOp, UOp]) -> None:
        """From scores to weights; buffers that have been used by then, and that are when the second product is done."""
        new = {self.scores: scores, **at}
        self.writer.put(mk(Op.PASS_ON, dtypes.void, (used,)))
        self._part([n for n in self.early if n is not self.scores], new)
        if later is not None:
            self._scale(new)
            self._wait()
            self.writer.put(mk(Op.PASS_ON, dtypes.void, (later,)))
        self._part([n for n in self.late if n not in self.scaling], new)

    def _wait(self, pending: int = ALL_UNITS) -> None:
        self.waits += 1
        self.writer.put(mk(Op.WAIT, dtypes.void, (), WaitArg(self.waits, pending)))

    def _scale(self, new: dict[UOp, UOp]) -> None:
        """Scale the weighted values so far, where a lane of the warp does so by anything but 1.

        What is computed before this condition is not moved behind it: that goes on beside the second product. Where
        several warps share units, a renderer waits before the condition, not in it: warps differ in it.
        """
        changes = [new[f].alu(Op.CMPNE, UOp.const(f.dtype, 1)) for f in self.factors]
        change = reduce(lambda a, b: mk(Op.OR, dtypes.bool, (a, b)), changes)
        some = mk(Op.ACROSS, dtypes.bool, (change,), AcrossArg(Op.OR, WARP, 1))
        self.writer.emit(some)
        once = self.writer.open(some.where(UOp.const(dtypes.index, 1), UOp.const(dtypes.index, 0)), AxisKind.LOOP)
        self._wait()
        self._part(self.scaling, new)
        self.writer.close(once)

    def _part(self, nodes: Sequence[UOp], new: dict[UOp, UOp]) -> None:
        """A part of the program; stores under a guard, and what only they need, are one part under it."""
        guarded = [n for n in nodes if n.op is Op.STORE and len(n.src[0].src) == 3 and n.src[0].src[0].op is Op.LOCAL]
        arrays = {n.src[0].src[0] for n in guarded}
        apart = set(guarded)
        for node in reversed(nodes if guarded else ()):
            users = self.users.get(node, ())
            if users and all(user in apart for user in users):
                apart.add(node)
        for node in nodes:
            if node in apart:
                continue
            if node.op is Op.LOAD and node.src[0].src[0] in arrays:
                self._guarded([n for n in nodes if n in apart], guarded[0].src[0].src[2], new)
                arrays = set()
            self._node(node, new)

    def _guarded(self, nodes: Sequence[UOp], guard: UOp, new: dict[UOp, UOp]) -> None:
        for node in guard.toposort():
            if node in nodes:
                self._node(node, new)
        here = new.get(guard, guard)
        size = rewrite(here.where(UOp.const(dtypes.index, 1), UOp.const(dtypes.index, 0)), INDEX_MATH)
        once = self.writer.open(size, AxisKind.LOOP)
        for node in nodes:
            if node.op is Op.INDEX:
                new[node] = self.writer.put(mk(Op.INDEX, node.dtype, node.src[:2]))
            else:
                self._node(node, new)
        self.writer.close(once)

    def _node(self, node: UOp, new: dict[UOp, UOp]) -> None:
        if node in self.begins:
            new[node] = new[node.src[1]]
        elif node in self.moved:
            new[node] = self.writer.emit(self.moved[node])
        else:
            src = tuple([new[s] if s in new else self.moved.get(s, s) for s in node.src])
            made = node if src == node.src else mk(node.op, node.dtype, src, node.arg)
            new[node] = self.writer.put(made)
