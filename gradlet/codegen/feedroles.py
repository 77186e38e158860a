"""Sums of weights that are made of products (`FEED`), cut in two programs: one lane copies, whole warps multiply.

The factors of the rows come first and stay; of every block then what goes by, each in a ring of its own, in the order
in which the other lanes use it. These begin all products of a block, make weights of the first while others are under
way, and begin every sum as soon as its weights are there: what is next is computed meanwhile. Sums stay in the
registers that units add to.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from math import prod
from typing import Final, NamedTuple

from gradlet.base.dtype import dtypes
from gradlet.base.errors import CompilerError
from gradlet.codegen.mixtureroles import Order, ordered, placed
from gradlet.codegen.writer import Writer, closure
from gradlet.graph.node import UOp, mk
from gradlet.graph.rewrite import rewrite
from gradlet.ops.op import AxisKind, LocalArg, Op, RingArg, WaitArg
from gradlet.ops.opt import FeedDetail, Opt
from gradlet.optimize.analysis import range_size, size_bound
from gradlet.rules.sets import INDEX_MATH

WARP: Final = 32
WARPGROUP: Final = 128  # two of them need registers of a third one, which copies
ALL_UNITS: Final = -1  # as what is waited for
MANY: Final = 99  # products under way: nothing is waited for
_ZERO: Final = UOp.const(dtypes.index, 0)


def separate_feeding(
    uops: Sequence[UOp], threads: int, opts: Sequence[Opt]
) -> tuple[tuple[UOp, ...], int, int]:  # fmt: skip
    """The program in two parts, how many lanes a workgroup then has, and how many workgroups there are.

    Args:
        uops: the program of lanes.
        threads: how many lanes it has.
        opts: the schedule.
    """
    roles = _Roles(uops, threads)
    most = next(o.detail.workgroups for o in opts if isinstance(o.detail, FeedDetail)) or roles.order.blocks
    more = WARPGROUP if threads > WARPGROUP else WARP
    return roles.run(), threads + more, min(most, roles.order.blocks)


class _Units(NamedTuple):
    """The products of a block, and the sums."""

    products: list[UOp]
    sums: list[UOp]

    @staticmethod
    def of(uops: Iterable[UOp]) -> _Units:
        units = [n for n in uops if n.op is Op.WGMMA]
        return _Units([n for n in units if not n.arg.registers], [n for n in units if n.arg.registers])

    @property
    def stay(self) -> dict[UOp, UOp]:
        """Factors of the rows: the arrays with their boxes."""
        return {n.src[0]: n.src[5] for n in self.products}

    @property
    def by(self) -> dict[UOp, UOp]:
        """Factors that go by, likewise, in the order in which they are used."""
        found = {n.src[1]: n.src[6] for n in self.products}
        return found | {n.src[1]: n.src[5] for n in self.sums if n.src[1] not in found}


class _Roles:
    def __init__(self, uops: Sequence[UOp], threads: int) -> None:
        self.uops, self.threads = uops, threads
        parallel = [n for n in uops if n.op is Op.RANGE and n.arg.kind is AxisKind.PARALLEL]
        if any(range_size(r) is None for r in parallel):
            raise CompilerError("how many blocks of rows there are is only known at launch")
        self.writer = Writer(1 + max((n.arg.number for n in uops if n.op is Op.RANGE), default=0))
        units, block, warps = _Units.of(uops), ordered(uops), threads // WARP
        elements = {n.src[1]: n.arg.columns * n.arg.depth for n in (*units.products, *units.sums)}
        nbytes = {local: count * local.dtype.itemsize for local, count in elements.items()}
        self.order = Order(parallel, block, sum(nbytes.values()) * (1 if block is None else size_bound(block)))
        own = sum(local.arg.size * local.dtype.itemsize for local in units.stay)
        self.first = mk(Op.RING, dtypes.index, (), RingArg(1, own, warps))
        self.rings = {
            local: mk(
                Op.RING, dtypes.index, (), RingArg(local.arg.size // elements[local], nbytes[local], warps, number)
            )
            for number, local in enumerate(units.by, 1)
        }
        self.locals = (*units.stay, *units.by)

    def run(self) -> tuple[UOp, ...]:
        writer = self.writer
        for local in self.locals:
            writer.emit(local)
        for ring in (self.first, *self.rings.values()):
            writer.emit(ring)
        for lanes in (1, self.threads):
            role = writer.open(lanes, AxisKind.ROLE)
            walk = writer.open(self.order.blocks, AxisKind.WALK)
            uops = placed(self.uops, self.order.digits(walk))
            if lanes == 1:
                self._copies(uops)
            else:
                _Sums(uops, self.first, self.rings, writer).write()
            writer.close(walk)
            writer.close(role)
        return tuple(writer.result)

    def _copies(self, uops: Sequence[UOp]) -> None:
        """The lane that begins copies."""
        writer, units, block = self.writer, _Units.of(uops), ordered(uops)
        turn = writer.turn(self.first, full=False)
        for local, box in units.stay.items():
            self._bring(local, box, local.arg.size, _ZERO, turn)
        writer.put(mk(Op.PASS_ON, dtypes.void, (turn,)))
        loop = None if block is None else writer.open(rewrite(block.src[0], INDEX_MATH), AxisKind.LOOP)
        for local, box in units.by.items():
            ring = self.rings[local]
            turn, elements = writer.turn(ring, full=False), ring.arg.bytes // local.dtype.itemsize
            moved = box if loop is None or block is None else box.substitute({block: loop})
            self._bring(local, moved, elements, turn * elements, turn)
            writer.put(mk(Op.PASS_ON, dtypes.void, (turn,)))
        if loop is not None:
            writer.close(loop)

    def _bring(self, local: UOp, box: UOp, elements: int, begin: UOp, turn: UOp) -> None:
        """Copies into a buffer, rows of 128 bytes at a time."""
        part = prod(box.arg.box)
        for number in range(elements // part):
            near = mk(Op.INDEX, local.dtype, (local, begin + number * part if number else begin))
            along = box.src[1] + number * box.arg.box[0] if number else box.src[1]
            one = mk(Op.BOX, box.dtype, (box.src[0], along, *box.src[2:]), box.arg)
            self.writer.emit(rewrite(mk(Op.COPY_BOX, dtypes.void, (near, one, turn)), INDEX_MATH))


class _Sums:
    """The program of the lanes that multiply.

    Args:
        given: the program of lanes that does all.
        first: the ring of what stays.
        rings: those of what goes by.
        writer: where it is written to.
    """

    def __init__(self, given: Sequence[UOp], first: UOp, rings: Mapping[UOp, UOp], writer: Writer) -> None:
        self.first, self.rings, self.writer = first, rings, writer
        self.products, self.sums = _Units.of(given)
        self.block = ordered(given)
        uops = [n for n in given if n.op is not Op.BOX]
        begin, end = 0, len(uops)
        if self.block is not None:
            begin = uops.index(self.block)
            end = next(i for i, n in enumerate(uops) if n.op is Op.END and n.src[0] is self.block)
        self.state = self._state(uops)
        self.before, body, after = uops[:begin], uops[begin:end], uops[end:]
        loads = [n for n in uops if n.op is Op.LOAD and n.src[0].src[0] is self.state]
        if self.block is None:
            later = closure(loads, body)
            body, after = [n for n in body if n not in later], [n for n in body if n in later]
        added = closure([*self.sums, *loads], body)
        self.body = [n for n in body if n not in added and n is not self.block]
        self.after = [n for n in after if n.op is not Op.END]
        self.level = self._levels()
        self.stays = first  # until there is a turn of it

    def _state(self, uops: Iterable[UOp]) -> UOp:
        """The array of all sums, from which each gets one of its own."""
        offsets: dict[UOp, int] = {}
        arrays: set[UOp] = set()
        for node in uops:
            if node.op is not Op.STORE or node.src[0].src[0].op is not Op.LOCAL:
                continue
            found = [s for s in self.sums if s in node.src[1].toposort()]
            if found and node.src[0].src[0].arg.private:
                (unit,), place = found, int(node.src[0].src[1].arg)
                offsets[unit] = min(offsets.get(unit, place), place)
                arrays.add(node.src[0].src[0])
        if len(arrays) != 1 or len(offsets) != len(self.sums):
            raise CompilerError("sums of a block are not added to those of the blocks before")
        (state,) = arrays
        number = 1 + max(n.arg.number for n in uops if n.op is Op.LOCAL)
        self.own: dict[UOp, UOp] = {}
        self.place: dict[int, tuple[UOp, int]] = {}
        for at, (unit, offset) in enumerate(offsets.items()):
            size = 2 * unit.arg.columns
            own = self.own[unit] = mk(Op.LOCAL, state.dtype, (), LocalArg(number + at, size, True))
            self.place |= {offset + i: (own, i) for i in range(size)}
        return state

    def _levels(self) -> dict[UOp, int]:
        """The last of the products that a node of a block needs; -1: none."""
        level: dict[UOp, int] = {product: number for number, product in enumerate(self.products)}
        for node in self.body:
            if node not in level:
                level[node] = max([level.get(s, -1) for s in node.src], default=-1)
        return level

    def write(self) -> None:
        """Write all of it."""
        writer, block = self.writer, self.block
        self._part(self.before, {})
        nothing = UOp.const(self.state.dtype, 0.0)
        for unit, own in self.own.items():
            for place in _places(unit):
                at = mk(Op.INDEX, own.dtype, (own, UOp.const(dtypes.index, place)))
                writer.emit(mk(Op.STORE, dtypes.void, (at, nothing)))
        stays = self.stays = writer.turn(self.first, full=True)
        new: dict[UOp, UOp] = {}
        loop = None
        if block is not None:
            loop = new[block] = writer.open(rewrite(block.src[0], INDEX_MATH), AxisKind.LOOP)
        self._block(new)
        if loop is not None:
            writer.close(loop)
        writer.put(mk(Op.PASS_ON, dtypes.void, (stays,)))
        moved: dict[UOp, UOp] = {}
        for node in self.after:
            if node.op is Op.LOAD and node.src[0].src[0] is self.state:
                own, place = self.place[int(node.src[0].src[1].arg)]
                moved[node.src[0]] = writer.emit(mk(Op.INDEX, own.dtype, (own, UOp.const(dtypes.index, place))))
            self._node(node, moved)

    def _block(self, new: dict[UOp, UOp]) -> None:
        """What is done for a block."""
        writer, turns = self.writer, dict[UOp, UOp]()
        written: set[UOp] = set()
        order = sorted(self.sums, key=self._last_of)
        needs = [self._needed(unit, written) for unit in order]
        # What comes from memory is asked for while products are under way.
        done = self._begin_products(new, turns, [n for n in needs[0] if self.level[n] < 0])
        for begun, (unit, needed) in enumerate(zip(order, needs, strict=True), 1):
            for level in sorted({self.level[n] for n in needed} - {-1}):
                if level > done:
                    writer.put(mk(Op.WAIT, dtypes.void, (), WaitArg(len(writer.result), ALL_UNITS)))
                    done = len(self.products) - 1
                self._part([n for n in needed if self.level[n] == level], new)
            # What the next sum needs from memory comes while this one is under way.
            self._part([n for need in needs[begun : begun + 1] for n in need if self.level[n] < 0], new)
            left = len(self.products) - 1 - done
            self._begin(unit, self._turn(unit.src[1], turns), MANY if not left else left - 1 + begun, new)
            done += bool(left)
        writer.put(mk(Op.WAIT, dtypes.void, (), WaitArg(len(writer.result), ALL_UNITS)))
        for turn in turns.values():
            writer.put(mk(Op.PASS_ON, dtypes.void, (turn,)))

    def _begin_products(self, new: dict[UOp, UOp], turns: dict[UOp, UOp], early: Sequence[UOp]) -> int:
        """Begin all products and wait for the first one; the number of the last that has been waited for."""
        for number, unit in enumerate(self.products):
            if number == len(self.products) - 1:
                self._part(early, new)
            turn = self._turn(unit.src[1], turns)
            last = unit is self.products[-1]
            new[unit] = self._begin(unit, turn, len(self.products) - 1 if last else MANY, new)
        return 0

    def _begin(self, unit: UOp, turn: UOp, pending: int, new: dict[UOp, UOp]) -> UOp:
        """Begin a product, with so many still under way then."""
        for source in unit.src[:3]:
            self.writer.emit(source)
        start = self.own.get(unit, unit.src[4])
        self.writer.emit(start)
        made = mk(Op.WGMMA, unit.dtype, (*unit.src[:3], turn, start, self.stays), unit.arg._replace(pending=pending))
        return self.writer.put(made)

    def _turn(self, local: UOp, turns: dict[UOp, UOp]) -> UOp:
        """The buffer of a factor that goes by."""
        if local not in turns:
            turns[local] = self.writer.turn(self.rings[local], full=True)
        return turns[local]

    def _stores(self, unit: UOp) -> list[UOp]:
        return [n for n in self.body if n.op is Op.STORE and n.src[0].src[0] is unit.src[0]]

    def _last_of(self, unit: UOp) -> int:
        return max(self.level[store] for store in self._stores(unit))

    def _needed(self, unit: UOp, written: set[UOp]) -> list[UOp]:
        """Of the block, what the weights of a sum need and nobody has written yet, in order."""
        found: set[UOp] = set()
        pending = self._stores(unit)
        while pending:
            node = pending.pop()
            if node not in found and node not in written and node in self.level and node not in self.products:
                found.add(node)
                pending += node.src
        written |= found
        return [n for n in self.body if n in found]

    def _part(self, nodes: Iterable[UOp], new: dict[UOp, UOp]) -> None:
        for node in nodes:
            self._node(node, new)

    def _node(self, node: UOp, new: dict[UOp, UOp]) -> None:
        if node is self.state or (node.op is Op.INDEX and node.src[0] is self.state):
            return
        src = tuple([new.get(s, s) for s in node.src])
        made = node if src == node.src else mk(node.op, node.dtype, src, node.arg)
        new[node] = self.writer.emit(made)


def _places(unit: UOp) -> list[int]:
    """Where a lane's array of two rows has registers of a sum."""
    columns = unit.arg.columns
    return [i // 2 % 2 * columns + i // 4 * 8 + i % 2 for i in range(columns // 2)]
