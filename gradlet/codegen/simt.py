"""A program of loops becomes one of lanes: what runs over THREAD ranges is run by the lanes of a workgroup at once.

In a kernel a THREAD range is a loop like others. It means the same as a loop and as lanes: every store depends on the
open ones, a REDUCE over one combines what its lanes have (`ACROSS`), and the stores of an AFTER over one fill an array
that all lanes of the workgroup share, between two `BARRIER`s. A lane may do what others do as well: what no THREAD
range is about is computed by all of them.

The number of a lane is cut into digits: a range of `size` lanes that are `stride` apart is `number // stride % size`.
Closed ranges have the last digits, since what is combined has to be near.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from math import prod
from typing import Final, NamedTuple

from gradlet.base.dtype import dtypes
from gradlet.base.errors import CompilerError
from gradlet.graph.node import UOp, mk, toposort
from gradlet.graph.rewrite import rewrite
from gradlet.ops.op import AcrossArg, AxisKind, BarrierArg, CopyArg, Op, SpecialArg, WaitArg, identity_element
from gradlet.optimize.analysis import CLOSING, affine, closed_by, kernel_order, nesting_order, range_size, ranges_in
from gradlet.rules.sets import INDEX_MATH

_ROOTS: Final = frozenset({Op.STORE, Op.UPDATE, Op.RANGE, Op.END, Op.ACC})
_KEPT: Final = frozenset({Op.STORE, Op.UPDATE, Op.RANGE, Op.END, Op.BARRIER})  # never the same as one before
WARP: Final = 32


class Lanes(NamedTuple):
    """How the lanes of a workgroup are numbered.

    Attributes:
        strides: of every THREAD range, how many lanes one step of it is.
        shared: THREAD ranges over which arrays are filled.
        threads: lanes of the workgroup.
        open: stride and size of the ranges that stores depend on.
    """

    strides: dict[UOp, int]
    shared: frozenset[UOp]
    threads: int
    open: tuple[tuple[int, int], ...]


def number_lanes(sink: UOp) -> Lanes:
    """Digits for all THREAD ranges of a kernel whose schedule is applied.

    Raises:
        CompilerError: lanes that are combined depend on lanes that are combined elsewhere.
    """
    order, ranges = kernel_order(sink), ranges_in(sink)
    threads = [n for n in order if n.op is Op.RANGE and n.arg.kind is AxisKind.THREAD]
    strides: dict[UOp, int] = {}
    shared: set[UOp] = set()
    far = _far_ranges(order, ranges)
    room: dict[UOp, int] = {}  # of an open range, how many lanes its last digits have to leave
    closing: list[tuple[UOp, list[UOp]]] = []
    most = 1
    for node in order:
        if node.op not in CLOSING:
            continue
        inside = sorted((r for r in closed_by(node) if r.arg.kind is AxisKind.THREAD), key=nesting_order)
        if not inside or not far.isdisjoint(inside):
            continue
        closing.append((node, inside))
        lanes = 1
        for loop in reversed(inside):
            if strides.setdefault(loop, lanes) != lanes:
                raise CompilerError(f"range {loop.arg.number} would be two different digits of a lane's number")
            lanes *= range_size(loop) or 1
        most = max(most, lanes)
        if node.op is Op.AFTER:
            shared.update(inside)
        for loop in ranges[node]:
            if loop.arg.kind is AxisKind.THREAD:
                room[loop] = max(room.get(loop, 1), lanes)
    for node, inside in closing:
        if any(loop in strides for loop in ranges[node] if loop.arg.kind is AxisKind.THREAD):
            raise CompilerError(f"lanes {[r.arg.number for r in inside]} are combined inside of others that are")
    total = 1
    digits: list[tuple[int, int]] = []
    beside = _beside(order, ranges, far)
    opened = [r for r in threads if r not in strides and r not in far and r not in beside]
    opened = sorted(opened, key=nesting_order, reverse=True)
    for loop in sorted(opened, key=lambda r: room.get(r, 1)):
        total = max(total, room.get(loop, 1))
        strides[loop] = total
        digits.append((total, range_size(loop) or 1))
        total *= range_size(loop) or 1
    total = max(total, most)
    if far:
        if total % WARP or closing:
            raise CompilerError("lanes that are far apart are combined where whole warps lie side by side")
        strides.update(dict.fromkeys(far, total))
        # What is stored row by row beside such sums is shared by the same groups of lanes.
        several = 1
        for loop in beside:
            strides[loop] = total * several
            digits.append((total * several, range_size(loop) or 1))
            several *= range_size(loop) or 1
        total *= max(several, *[range_size(r) or 1 for r in far])
    if closing and total % WARP:
        total += WARP - total % WARP  # registers are exchanged by whole warps
    return Lanes(strides, frozenset(shared), total, tuple(digits))


def _far_ranges(order: Sequence[UOp], ranges: dict[UOp, frozenset[UOp]]) -> set[UOp]:
    """Closed ranges of lanes whose loads lie side by side along the open ones: those get the last digits then."""
    far: set[UOp] = set()
    near: set[UOp] = set()
    for node in order:
        if node.op is not Op.REDUCE or len(node.src) != 2 or node.src[1].arg.kind is not AxisKind.THREAD:
            continue
        loop = node.src[1]
        opened = [r for r in ranges[node] if r.arg.kind is AxisKind.THREAD]
        width = prod(range_size(r) or 1 for r in opened)
        forms = [affine(n.src[0].src[1]).terms for n in node.toposort() if n.op is Op.LOAD and loop in ranges[n]]
        apart = [abs(terms.get(loop, 0)) for terms in forms]
        beside = [min([abs(terms[r]) for r in opened if r in terms], default=0) for terms in forms]
        if opened and width % WARP == 0 and any(0 < b < a for a, b in zip(apart, beside, strict=True)):
            far.add(loop)
        else:
            near.add(loop)
    return far if not near else set()


def _beside(order: Sequence[UOp], ranges: dict[UOp, frozenset[UOp]], far: set[UOp]) -> list[UOp]:
    """Ranges of lanes that no sum over far lanes is inside of."""
    around = {r for n in order if n.op is Op.REDUCE and not far.isdisjoint(n.src[1:]) for r in ranges[n]}
    threads = [n for n in order if n.op is Op.RANGE and n.arg.kind is AxisKind.THREAD] if far else []
    return sorted((r for r in threads if r not in far and r not in around), key=nesting_order, reverse=True)


def to_lanes(sink: UOp, uops: Sequence[UOp]) -> tuple[tuple[UOp, ...], Lanes]:
    """The program without THREAD ranges, and the lanes that run it.

    Args:
        sink: the kernel that was linearized.
        uops: its nodes in order.
    """
    lanes = number_lanes(sink)
    ahead = _ahead(uops)
    return tuple(_Lanes(lanes, uops, _filling(sink, lanes, ahead), ahead).run()), lanes


class _Ahead(NamedTuple):
    """Arrays of several buffers that a loop fills ahead: the stores, the arrays, how many buffers, unfinished steps."""

    stores: list[UOp]
    arrays: frozenset[UOp]
    buffers: int
    pending: int

    @property
    def distance(self) -> int:
        """How many iterations copies run ahead: what units still read is not overwritten."""
        return self.buffers - 1 - self.pending


def _ahead(uops: Sequence[UOp]) -> dict[UOp, _Ahead]:
    """For every loop whose iterations use buffers in turn, what fills them."""
    units = [n for n in uops if n.op is Op.WGMMA and n.src[3].op is Op.MOD]
    found: dict[UOp, _Ahead] = {}
    for unit in units:
        loop, buffers = unit.src[3].src[0], int(unit.src[3].src[1].arg)
        arrays = frozenset(unit.src[:2])
        stores = [n for n in uops if n.op is Op.STORE and n.src[0].src[0] in arrays]
        plain = all(s.src[1].op is Op.LOAD and s.src[1].src[0].src[0].op is Op.PARAM for s in stores)
        if loop.op is Op.RANGE and plain and range_size(loop) is not None:
            found[loop] = _Ahead(stores, arrays, buffers, unit.arg.pending)
    return found


def _filling(sink: UOp, lanes: Lanes, ahead: dict[UOp, _Ahead]) -> list[frozenset[UOp]]:
    """For each array that lanes fill together, the ranges of its stores."""
    apart = {array for found in ahead.values() for array in found.arrays}
    after = [n for n in kernel_order(sink) if n.op is Op.AFTER and n.src[0] not in apart]
    after = [n for n in after if not n.src[0].arg.private]
    return [frozenset(closed_by(n)) for n in after if not lanes.shared.isdisjoint(n.src)]


@dataclass
class _Scope:
    """A loop body: the loop, where its code begins, what was computed in it."""

    loop: UOp | None
    made: dict[UOp, int] = field(default_factory=dict)


class _Lanes:
    """Rebuilds a program: lane numbers for ranges, and each value once where lanes made two the same."""

    def __init__(
        self, lanes: Lanes, uops: Sequence[UOp], filling: list[frozenset[UOp]], ahead: dict[UOp, _Ahead]
    ) -> None:
        self.lanes, self.uops, self.ahead = lanes, uops, ahead
        # What only copies that are made ahead need is not computed where they stood.
        skipped = {s for found in ahead.values() for s in found.stores}
        kept = [n for n in uops if n.op in _ROOTS and n not in skipped]
        self.live = set(toposort(kept)) if ahead else None
        self.result: list[UOp] = []
        self.new: dict[UOp, UOp] = {}
        self.scopes: list[_Scope] = [_Scope(None)]
        self.depends: dict[UOp, frozenset[UOp]] = {}  # accumulators whose value is part of a node's
        self.updated: dict[UOp, int] = {}
        self.combined = {n.src[1] for n in uops if n.op is Op.UPDATE and self._crosses(n.src[0])}
        self.first, self.last = self._regions(filling)
        self.reads = self._loops_with(_reads_shared)
        self.fills = self._loops_with(lambda n: n in self.first)
        self.barriers = 0
        self.waiting = False  # arrays were filled, and lanes have not waited for one another yet
        self.read = False  # arrays may have been read since they last did

    def _crosses(self, acc: UOp) -> bool:
        return any(r.arg.kind is AxisKind.THREAD for r in acc.src[1:])

    def _regions(self, filling: list[frozenset[UOp]]) -> tuple[set[UOp], set[UOp]]:
        """The RANGEs that begin the filling of an array, and those whose END ends it."""
        first: set[UOp] = set()
        for ranges in filling:
            begin = next((n for n in self.uops if n.op is Op.RANGE and n in ranges), None)
            if begin is not None:
                first.add(begin)
        return first, set(first)

    def _loops_with(self, wanted: Callable[[UOp], bool]) -> set[UOp]:
        """The loops in whose bodies there is such a node."""
        found: set[UOp] = set()
        stack: list[UOp] = []
        for node in self.uops:
            if wanted(node):
                found.update(stack)
            if node.op is Op.RANGE:
                stack.append(node)
            elif node.op is Op.END:
                stack.pop()
        return found

    def run(self) -> list[UOp]:
        """The new program."""
        self._numbers()
        for node in self.uops:
            if node.op is Op.RANGE:
                self._range(node)
            elif node.op is Op.END:
                self._end(node)
            elif node.op is Op.ACC and self._crosses(node):
                self.new[node] = self.new.get(node.src[0], node.src[0])
            elif node.op is Op.UPDATE and self._crosses(node.src[0]):
                self._across(node)
            elif node not in self.combined and (self.live is None or node in self.live):
                self._node(node)
        return self.result

    def _numbers(self) -> None:
        """The digit of every THREAD range."""
        threads = self.lanes.threads
        number = mk(Op.SPECIAL, dtypes.index, (), SpecialArg("thread", threads))
        for loop, stride in self.lanes.strides.items():
            size = range_size(loop) or 1
            digit = number if stride == 1 else number // stride
            if stride * size < threads:
                digit = digit % size
            for part in digit.toposort():
                self._emit(part)
            self.new[loop] = digit

    def _emit(self, node: UOp) -> None:
        """Put a node into the program unless it is there already, with the same value."""
        depends = frozenset().union(*[self.depends.get(s, frozenset()) for s in node.src])
        if node.op is Op.ACC:
            depends = depends | {node}
        self.depends[node] = depends
        if node.op not in _KEPT:
            for scope in self.scopes:
                made = scope.made.get(node)
                if made is not None and all(self.updated.get(acc, -1) < made for acc in depends):
                    return
            self.scopes[-1].made[node] = len(self.result)
        elif node.op is Op.UPDATE:
            self.updated[node.src[0]] = len(self.result)
        self.result.append(node)

    def _rebuilt(self, node: UOp) -> UOp:
        if node.op is Op.INDEX and node.src[0].op is Op.LOCAL and node.src[0].arg.private:
            return self._own_place(node)
        src = tuple([self.new.get(s, s) for s in node.src])
        return node if src == node.src else mk(node.op, node.dtype, src, node.arg)

    def _own_place(self, node: UOp) -> UOp:
        """The place in an array that every lane has for itself: what differs from lane to lane is left out."""
        local, at = node.src[0], node.src[1]
        here = rewrite(at.substitute({r: UOp.const(dtypes.index, 0) for r in self.lanes.strides}), INDEX_MATH)
        if here.op is not Op.CONST:
            raise CompilerError(f"a lane's own array is used at a place that is no constant: {here}")
        return mk(Op.INDEX, node.dtype, (local, here, *[self.new.get(s, s) for s in node.src[2:]]))

    def _node(self, node: UOp) -> None:
        if _reads_shared(node):
            self._wait()
            self.read = True
        rebuilt = self.new[node] = self._rebuilt(node)
        self._emit(rebuilt)

    def _range(self, node: UOp) -> None:
        if node in self.first:
            if self.read:
                self._barrier()
        elif self.waiting and node in self.reads:
            self._barrier()
        if node.arg.kind is AxisKind.THREAD:
            return
        found = self.ahead.get(node)
        if found is not None:
            for i in range(found.distance):
                self._copy(found, node, UOp.const(dtypes.index, i), None if i < (range_size(node) or 0) else False)
        rebuilt = self.new[node] = self._rebuilt(node)
        self.result.append(rebuilt)
        if found is not None:
            self.scopes.append(_Scope(node))
            self._keep_ahead(found, node)
            return
        if node.arg.kind is not AxisKind.PARALLEL:
            self.scopes.append(_Scope(node))
            # What the iteration before read is overwritten.
            self.read = self.read or (node in self.fills and node in self.reads)

    def _keep_ahead(self, found: _Ahead, loop: UOp) -> None:
        """What this iteration uses has arrived for all lanes, and none of them uses the buffer that is filled next."""
        self.result.append(mk(Op.WAIT, dtypes.void, (), WaitArg(self.barriers, found.distance - 1)))
        self._barrier()
        later = self.new[loop] + found.distance
        self._copy(found, loop, later, later < int(loop.src[0].arg))

    def _copy(self, found: _Ahead, loop: UOp, at: UOp, guard: UOp | bool | None) -> None:
        """Begin the copies of one iteration. A guard of False: there is no such iteration."""
        place = {**self.new, loop: at}
        for store in found.stores if guard is not False else ():
            near, far = store.src[0].substitute(place), store.src[1].src[0].substitute(place)
            count = store.src[1].dtype.count
            if isinstance(guard, UOp):
                wide = mk(Op.VECTORIZE, dtypes.bool.vec(count), (guard,) * count) if count > 1 else guard
                both = far.src[2] & wide if len(far.src) > 2 else wide
                far = mk(Op.INDEX, far.dtype, (*far.src[:2], both))
            copy = rewrite(mk(Op.COPY_ASYNC, dtypes.void, (near, far), CopyArg(count)), INDEX_MATH)
            for part in copy.toposort():
                if part.op is not Op.RANGE:
                    self._emit(part)
        self.result.append(mk(Op.COMMIT, dtypes.void, (), BarrierArg(len(self.result))))

    def _end(self, node: UOp) -> None:
        loop = node.src[0]
        if loop in self.last:
            self.waiting = True
        if loop.arg.kind is AxisKind.THREAD:
            return
        if loop not in self.last:
            self._wait()
        self.result.append(self._rebuilt(node))
        if loop in self.ahead and self.ahead[loop].pending:
            self.result.append(mk(Op.WAIT, dtypes.void, (), WaitArg(self.barriers, -1)))
        if loop.arg.kind is not AxisKind.PARALLEL:
            self.scopes.pop()

    def _wait(self) -> None:
        if self.waiting:
            self._barrier()

    def _barrier(self) -> None:
        self.result.append(mk(Op.BARRIER, dtypes.void, (), BarrierArg(self.barriers)))
        self.barriers += 1
        self.waiting = self.read = False
        for scope in self.scopes:
            for node in [n for n in scope.made if n.op is Op.LOAD and n.src[0].src[0].op is Op.LOCAL]:
                del scope.made[node]

    def _across(self, update: UOp) -> None:
        """What the lanes have becomes one value, which each of them gets."""
        acc, combined = update.src
        value = next(s for s in combined.src if s is not acc)
        value = self.new.get(value, value)
        op, lanes = combined.op, prod(range_size(r) or 1 for r in acc.src[1:])
        across = mk(Op.ACROSS, acc.dtype, (value,), AcrossArg(op, lanes, self.lanes.strides[acc.src[-1]]))
        self._emit(across)
        start = self.new[acc]
        if not (start.op is Op.CONST and _is_neutral(start, op)):
            across = start.alu(op, across)
            self._emit(across)
        self.new[acc] = self.new[update] = across


def _reads_shared(node: UOp) -> bool:
    """Whether a node reads an array that lanes share."""
    if node.op is Op.WGMMA:
        return not node.arg.alone
    return node.op is Op.LOAD and node.src[0].src[0].op is Op.LOCAL and not node.src[0].src[0].arg.private


def _is_neutral(node: UOp, op: Op) -> bool:
    return bool(node.arg == identity_element(op, node.dtype.scalar))
