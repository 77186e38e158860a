"""Reference interpreter of programs of lanes: all lanes of a workgroup at once, matrix units and copy engine included.

A value is an array of lanes by elements. Lanes go through a program together, so that what they share is always there;
where a program has two roles (a lane that begins copies, lanes that multiply), these take turns where one waits for a
buffer of the other. A loop goes on while any lane is in it, and only lanes that are store: a condition is a loop of one
iteration or none, in which warps may differ.

What goes on beside a program (products of matrix units, copies by lanes, boxes that are stored) is done at once, or as
late as the program allows, where it waits: a program is right if both give the same.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from math import prod
from typing import Any, Final

import numpy as np

from gradlet.base.dtype import DType, dtypes
from gradlet.base.errors import CompilerError
from gradlet.graph import numeric
from gradlet.graph.bounds import bounds
from gradlet.graph.evaluate_kernel import Address, elements, empty_local, lanes
from gradlet.graph.evaluate_linear import HANDLERS, Run, match_loops
from gradlet.graph.node import UOp
from gradlet.graph.numeric import Array
from gradlet.graph.program import LinearProgram
from gradlet.ops.op import AxisKind, Op

WARP: Final = 32
ROW: Final = 128  # bytes of a row in shared memory
PIECE: Final = 16  # bytes that are exchanged by row
UNITS: Final = {-1: 0, -4: 1}  # of what is waited for: how many products may be under way then,
ROOM: Final = {-2: 1, -3: 0}  # or how many boxes
TF32_BITS: Final = 13  # of a float32's fraction that TF32 lacks
_NOTHING: Final = frozenset({Op.CONST, Op.BARRIER, Op.BOX, Op.RING})
_TOGETHER: Final = frozenset({Op.BARRIER, Op.WGMMA, Op.TURN, Op.PASS_ON, Op.COPY_BOX})  # by all lanes of a role


def run_lanes(
    program: LinearProgram, arrays: Sequence[Array], variables: Mapping[UOp, int] | None = None, late: bool = False
) -> None:
    """Run a program of lanes; arrays are changed in place. For tests at small sizes.

    Args:
        program: what code generation made for a GPU.
        arrays: memory by PARAM slot, contiguous; bfloat16 as uint16 bit patterns.
        variables: values of the VARIABLE nodes.
        late: products, copies and stores of boxes are done where the program waits for them, and a buffer that is
            free is filled before anything else.

    Raises:
        CompilerError: roles that wait for each other forever; what lanes do together where not all of them are; with
            `late`, a buffer that is filled while a matrix unit reads it, a product that nobody waits for.
    """
    # Both roles have what is the same always, whichever came first in the program.
    given = {n: numeric.constant(n.arg, n.dtype).reshape(1, 1) for n in program.uops if n.op is Op.CONST}
    given |= {n: numeric.constant(v, n.dtype).reshape(1, 1) for n, v in (variables or {}).items()}
    threads = max([n.arg.size for n in program.uops if n.op is Op.SPECIAL and n.arg.name == "thread"], default=1)
    flat = [a.reshape(-1) for a in arrays]
    with np.errstate(all="ignore"):
        for number in range(program.grid):
            values: dict[UOp, Any] = dict(given)
            for node in program.uops:
                if node.op is Op.SPECIAL:
                    own = np.arange(threads).reshape(-1, 1) if node.arg.name == "thread" else np.full((1, 1), number)
                    values[node] = own
            jumps = match_loops(program.uops)
            run = _Lanes(program, flat, values, jumps, (0, None), threads=threads, number=number, late=late)
            _take_turns([run.steps(0, len(program.uops))])


def _take_turns(waiting: list[Iterator[bool]]) -> None:
    """Go on with each in turn; one says whether it has done something since it was asked last."""
    while waiting:
        moved = False
        left: list[Iterator[bool]] = []
        for each in waiting:
            done = next(each, None)
            moved |= done is None or done
            if done is not None:
                left.append(each)
        if not moved:
            raise CompilerError("lanes of a workgroup wait for each other forever")
        waiting = left


@dataclass
class _Ring:
    """Which steps have been copied into buffers, and which have been used."""

    filled: int = 0
    freed: int = 0


@dataclass
class _Product:
    """A product that is under way: what is left to do, and for which lanes."""

    finish: Callable[[Array], None]
    left: Array


@dataclass
class _Lanes(Run):
    threads: int = 1
    number: int = 0
    rings: dict[UOp, _Ring] = field(default_factory=dict)
    turns: dict[UOp, int] = field(default_factory=dict)  # steps that this role has begun, of every ring
    held: bool = False  # whether units may still read the buffer of the step before
    inside: Array | None = None  # lanes that are in the loops around here; None: all are
    late: bool = False
    products: list[_Product] = field(default_factory=list)  # what is under way, the oldest first
    copies: list[list[Callable[[], None]]] = field(default_factory=lambda: [[]])  # in groups; the last is still open
    boxes: list[Callable[[], None]] = field(default_factory=list)

    def steps(self, begin: int, end: int) -> Iterator[bool]:
        """Run a part of the program; stops for a while where it waits for another role."""
        uops = self.program.uops
        starts = {uops[start]: start for start in self.jumps}
        limits: dict[UOp, tuple[Array, int, Array | None]] = {}
        roles: list[Iterator[bool]] = []
        position, moved = begin, True
        while position < end:
            node = uops[position]
            if self.inside is not None and node.op in _TOGETHER:
                raise CompilerError(f"{node.op.name} is for lanes together, in a loop in which they differ")
            if node.op is Op.RANGE and node.arg.kind is AxisKind.ROLE:
                role = _Lanes(
                    self.program, self.arrays, dict(self.values), self.jumps, self.part, self.locals, self.threads,
                    self.number, self.rings, late=self.late,
                )  # fmt: skip
                roles.append(role.steps(position + 1, self.jumps[position]))
                position = self.jumps[position]
            elif node.op is Op.RANGE:
                low, high, step = self._extent(node)
                limits[node] = high, step, self.inside
                self.values[node] = np.full((1, 1), low)
                if not self._enter(self.values[node] < high, self.inside):
                    position = self.jumps[position]
            elif node.op is Op.END:
                high, step, around = limits[node.src[0]]
                following = self.values[node.src[0]] + step
                if self._enter(following < high, around):
                    self.values[node.src[0]] = following
                    position = starts[node.src[0]]
            elif node.op is Op.TURN:
                while not self._is_ready(node):
                    yield moved
                    moved = False
                ring, turn = node.src[0], self.turns.get(node.src[0], 0)
                self.values[node] = np.full((1, 1), turn % ring.arg.buffers)
                self.turns[ring] = turn + 1
                moved = True
            else:
                self.execute(node)
                if self.late and node.op is Op.PASS_ON and node.src[0].arg.full:
                    yield True
            position += 1
        if self.products:
            raise CompilerError("nobody waits for a product")
        self.finish_boxes(0)
        if roles:
            _take_turns(roles)

    def _enter(self, more: Array, around: Array | None) -> bool:
        """Be in an iteration with the lanes that have one more, of those in the loops around; false where none has."""
        chosen = more if around is None else more & around
        found = bool(chosen.any())
        self.inside = around if not found or more.all() else chosen
        return found

    def _extent(self, loop: UOp) -> tuple[int, Array, int]:
        """Where a loop begins for this workgroup, where it ends for each lane, and its step."""
        high = np.asarray(self.values[loop.src[0]]).reshape(-1, 1)
        if loop.arg.kind is AxisKind.WALK:
            return self.number, high, self.program.grid
        if loop.arg.kind is not AxisKind.PARALLEL:
            return 0, high, 1
        own = self._digits()[loop]
        return own, np.minimum(high, own + 1), 1

    def _digits(self) -> dict[UOp, int]:
        """The parallel ranges are digits of the workgroup's number, the last one fastest."""
        found: dict[UOp, int] = {}
        rest = self.number
        for loop in reversed([n for n in self.program.uops if n.op is Op.RANGE and n.arg.kind is AxisKind.PARALLEL]):
            size = max(1, int(bounds(loop.src[0])[1]))
            found[loop] = rest % size
            rest //= size
        return found

    def _is_ready(self, turn: UOp) -> bool:
        ring, begun = self.ring(turn), self.turns.get(turn.src[0], 0)
        return ring.filled > begun if turn.arg.full else begun < ring.freed + int(turn.src[0].arg.buffers)

    def ring(self, turn: UOp) -> _Ring:
        """What both roles know of a ring."""
        return self.rings.setdefault(turn.src[0], _Ring())

    def private(self, local: UOp) -> Array:
        """An array of which every lane has its own."""
        if local not in self.locals:
            self.locals[local] = np.stack([empty_local(local)] * self.threads)
        return self.locals[local]

    def place(self, index: UOp, count: int) -> tuple[Array, Array | None]:
        """Element numbers of an access, and which lanes make it: those that are here, and whose own gate is true."""
        address: Address = self.values[index]
        gate = address.gate if self.inside is None else self.inside
        if self.inside is not None and address.gate is not None:
            gate = self.inside & address.gate
        return elements(address._replace(gate=gate), count)

    def finish_products(self, pending: int) -> None:
        """Finish all products but the last so many, for the lanes that are here."""
        for product in self.products[: len(self.products) - pending]:
            here = product.left if self.inside is None else product.left & self.inside
            if here.any():
                product.finish(np.nonzero(here)[0])
            product.left = product.left & ~here
        while len(self.products) > pending and not self.products[0].left.any():
            del self.products[0]

    def finish_boxes(self, pending: int) -> None:
        """Store all boxes but the last so many."""
        while len(self.boxes) > pending:
            self.boxes.pop(0)()

    def execute(self, node: UOp) -> None:
        """Run one node that is not a loop."""
        handler = _HANDLERS.get(node.op)
        if handler is not None:
            handler(self, node)
        elif node.op not in _NOTHING:
            super().execute(node)


def _pass_on(run: _Lanes, node: UOp) -> None:
    turn = node.src[0].arg
    ring = run.ring(node.src[0])
    if not turn.full:
        ring.filled += 1
    elif turn.pending:
        ring.freed += run.held
        run.held = True
    else:
        ring.freed += 1


def _wait(run: _Lanes, node: UOp) -> None:
    pending = node.arg.pending
    if pending >= 0:
        done, run.copies = run.copies[: -1 - pending], run.copies[-1 - pending :]
        for copy in itertools.chain(*done):
            copy()
    elif pending in ROOM:
        run.finish_boxes(ROOM[pending])
    else:
        run.finish_products(UNITS[pending])
    # A buffer is free when all warps are done with it: those that wait here alone free none.
    if node.arg.pending == -1 and run.held and run.inside is None:
        for ring in run.rings.values():
            ring.freed += 1
        run.held = False


def _commit(run: _Lanes, node: UOp) -> None:
    run.copies.append([])


def _load(run: _Lanes, node: UOp) -> None:
    param, gate = node.src[0].src[0], run.values[node.src[0]].gate
    place, _ = run.place(node.src[0], node.dtype.count)
    if param.op is Op.LOCAL and param.arg.private:
        found = run.private(param)[np.arange(run.threads).reshape(-1, 1), place]
    else:
        memory = run.memory(param)
        found = (memory if memory.size else np.zeros(1, memory.dtype))[place]
    loaded = numeric.load(found, node.dtype)
    run.values[node] = loaded if gate is None else np.where(gate, loaded, run.values[node.src[1]])


def _update(run: _Lanes, node: UOp) -> None:
    before = run.values[node.src[0]]
    HANDLERS[Op.UPDATE](run, node)
    if run.inside is not None:
        after = np.where(run.inside, run.values[node], before)
        run.values[node.src[0]] = run.values[node] = after


def _store(run: _Lanes, node: UOp) -> None:
    """Of lanes that computed the same, those whose other digits are 0 store to memory."""
    count = node.src[1].dtype.count
    place, gate = run.place(node.src[0], count)
    value = lanes(run.values[node.src[1]], count)
    shape = np.broadcast_shapes(place.shape, value.shape, (run.threads, 1))
    chosen = np.ones(shape, np.bool_) if gate is None else np.broadcast_to(gate, shape).copy()
    param = node.src[0].src[0]
    if param.op is Op.PARAM:
        chosen &= _storing(run.program, run.threads)
    stored = np.broadcast_to(numeric.store(value, node.src[1].dtype), shape)
    if param.op is Op.LOCAL and param.arg.private:
        if run.values[node.src[0]].gate is not None:
            raise CompilerError("a store to registers of a lane has no guard")
        own = np.broadcast_to(np.arange(run.threads).reshape(-1, 1), shape)
        run.private(param)[own[chosen], np.broadcast_to(place, shape)[chosen]] = stored[chosen]
        return
    run.memory(param)[np.broadcast_to(place, shape)[chosen]] = stored[chosen]


def _storing(program: LinearProgram, threads: int) -> Array:
    """Which lanes store what depends on some digits of their numbers only."""
    lane = np.arange(threads).reshape(-1, 1)
    chosen = np.ones((threads, 1), np.bool_)
    covered = 1
    for stride, size in [*sorted(program.lanes), (threads, 1)]:
        if stride > covered:
            chosen &= lane % stride < covered
        covered = stride * size
    return chosen


def _across(run: _Lanes, node: UOp) -> None:
    """Combined in steps of halves, as lanes exchange registers."""
    op, count, stride = node.arg
    dtype = node.dtype.scalar
    value = lanes(run.values[node.src[0]], node.dtype.count)
    value = np.broadcast_to(value, (run.threads, value.shape[-1]))
    parts = value.reshape(-1, count, stride, value.shape[-1])
    if run.inside is not None:
        together = run.inside.reshape(-1, WARP)
        if count * stride > WARP or (together != together[:, :1]).any():
            raise CompilerError("lanes exchange values in a loop in which they differ")
    while parts.shape[1] > 1:
        half = parts.shape[1] // 2
        parts = numeric.combine(op, dtype, parts[:, :half], parts[:, half:])
    run.values[node] = np.broadcast_to(parts, (parts.shape[0], count, *parts.shape[2:])).reshape(value.shape)


def _copy(run: _Lanes, node: UOp) -> None:
    near, far = node.src
    source, _ = run.place(far, node.arg.elements)
    place, chosen = run.place(near, node.arg.elements)
    taken, gate = run.memory(far.src[0])[source], run.values[far].gate
    taken = taken if gate is None else np.where(gate, taken, np.zeros((), taken.dtype))
    if chosen is not None:
        shape = np.broadcast_shapes(place.shape, taken.shape, chosen.shape)
        place, taken, chosen = (np.broadcast_to(x, shape) for x in (place, taken, chosen))
        place, taken = place[chosen], taken[chosen]

    def arrive() -> None:
        run.memory(near.src[0])[place] = taken

    if run.late:
        run.copies[-1].append(arrive)
    else:
        arrive()


# matrix units
def _wgmma(run: _Lanes, node: UOp) -> None:
    arg = node.arg
    # What is added to nothing is by factors that stay, which have a ring of their own.
    turns = [node.src[5] if arg.alone and not arg.registers else node.src[3], node.src[3]]
    buffers = [int(run.values[turn].reshape(-1)[0]) for turn in turns]
    every = np.arange(run.threads)
    if run.late and arg.alone:
        run.values[node] = np.full((run.threads, arg.columns // 2), np.nan, np.float32)  # nobody may use them yet
        finish = partial(_finish, run, node, buffers)
    else:
        product = _multiply(run, node, buffers)
        _add(run, node, product, every)
        finish = partial(_compare, run, node, buffers, product)
    if run.late:
        run.products.append(_Product(finish, np.ones((run.threads, 1), np.bool_)))
        run.finish_products(arg.pending)


def _finish(run: _Lanes, node: UOp, buffers: Sequence[int], chosen: Array) -> None:
    _add(run, node, _multiply(run, node, buffers), chosen)


def _compare(run: _Lanes, node: UOp, buffers: Sequence[int], product: Array, chosen: Array) -> None:
    again = _multiply(run, node, buffers)
    if not np.array_equal(product, again, equal_nan=product.dtype.kind == "f"):
        raise CompilerError("a buffer is filled while a matrix unit reads it")


def _multiply(run: _Lanes, node: UOp, buffers: Sequence[int]) -> Array:
    """The product of what is in two buffers, or in registers and in the other buffer."""
    (first, second), (one, other), arg = node.src[:2], buffers, node.arg
    if arg.registers:
        left = _of_registers(run, first, second.dtype, arg.depth)
    else:
        left = _tile(run.memory(first), first.dtype, one, arg.rows, arg.depth, arg.first_across)
    right = _tile(run.memory(second), second.dtype, other, arg.columns, arg.depth, arg.second_across)
    wide = np.float64 if node.dtype.is_float else np.int64
    return np.asarray((left.astype(wide) @ right.astype(wide).T).astype(numeric.carried_type(node.dtype.scalar)))


def _add(run: _Lanes, node: UOp, product: Array, chosen: Array) -> None:
    """Add it to registers of lanes: a lane has two columns of every eight, in two rows that are eight apart."""
    (warps, _, start), arg = node.src[2:5], node.arg
    lane = np.arange(run.threads).reshape(-1, 1) % WARP
    register = np.arange(arg.columns // 2)
    warp = np.arange(run.threads).reshape(-1, 1) // WARP if arg.alone else run.values[warps]
    row = 16 * warp + lane // 4 + register // 2 % 2 * 8
    column = register // 4 * 8 + 2 * (lane % 4) + register % 2
    carried = numeric.carried_type(node.dtype.scalar)
    places = register // 2 % 2 * arg.columns + register // 4 * 8 + register % 2
    array = run.private(start) if start.op is Op.LOCAL else None  # of two rows, which the unit adds to
    before = lanes(run.values[start], node.dtype.count) if array is None else array[:, places]
    own = (before + product[row, column]).astype(carried)
    if array is not None:
        array[chosen.reshape(-1, 1), places] = own[chosen]
    if len(chosen) < run.threads:
        own, made = np.array(run.values[node]), own
        own[chosen] = made[chosen]
    run.values[node] = own


def _of_registers(run: _Lanes, array: UOp, narrow: DType, depth: int) -> Array:
    """Rows of a factor that lanes have in arrays of their own, where those of a product are, rounded for the unit."""
    own = run.private(array)
    row, along = np.arange(run.threads // 2).reshape(-1, 1), np.arange(depth).reshape(1, -1)
    lane = row // 16 * WARP + row % 8 * 4 + along % 8 // 2
    half = row // 8 % 2
    return numeric.load(own[lane, half * depth + along // 8 * 8 + along % 2], narrow)


def _tile(memory: Array, dtype: DType, buffer: int, rows: int, depth: int, across: bool) -> Array:
    """Rows of a factor by elements along the sum, from an array whose pieces are exchanged by row."""
    wide, piece = ROW // dtype.itemsize, PIECE // dtype.itemsize
    own, along = np.arange(rows).reshape(-1, 1), np.arange(depth).reshape(1, -1)
    line, place = (along, own) if across else (own, along)
    lines = depth if across else rows
    at = place // wide * (lines * wide) + line * wide
    at = at + (place % wide // piece ^ line % 8) * piece + place % piece
    found = numeric.load(memory[buffer * rows * depth + at], dtype)
    return _rounded(found) if dtype is dtypes.float32 else found


def _rounded(values: Array) -> Array:
    """float32 values rounded to TF32."""
    bits = np.ascontiguousarray(values, np.float32).view(np.uint32)
    return ((bits + np.uint32(1 << (TF32_BITS - 1))) & np.uint32(0xFFFFFFFF << TF32_BITS & 0xFFFFFFFF)).view(np.float32)


# the copy engine
def _box_elements(run: _Lanes, box: UOp, lane: int) -> tuple[Array, Array]:
    """The elements of memory that a box has, in its order, and which of them are inside of the axes."""
    arg = box.arg
    number = np.arange(prod(arg.box))
    place, inside = np.zeros_like(number), np.ones(number.shape, np.bool_)
    apart = arg.apart or (1,) * len(arg.box)
    for axis, coordinate in enumerate(box.src[1:]):
        begin = run.values[coordinate].reshape(-1)
        at = int(begin[lane if begin.size > 1 else 0]) + number % arg.box[axis] * apart[axis]
        number = number // arg.box[axis]
        inside &= (at >= 0) & (at < arg.sizes[axis])
        place = place + at * arg.strides[axis]
    return place, inside


def _box_places(begin: int, count: int, dtype: DType) -> Array:
    """Where the elements of a box lie near: rows of 128 bytes, pieces exchanged by row."""
    wide, piece = ROW // dtype.itemsize, PIECE // dtype.itemsize
    row, column = np.divmod(np.arange(count), wide)
    return np.asarray(begin + row * wide + (column // piece ^ row % 8) * piece + column % piece)


def _copy_box(run: _Lanes, node: UOp) -> None:
    near, box, _ = node.src
    place, inside = _box_elements(run, box, 0)
    begin = int(run.values[near].element.reshape(-1)[0])
    memory = run.memory(box.src[0])
    taken = np.where(inside, memory[np.where(inside, place, 0)], np.zeros((), memory.dtype))
    run.memory(near.src[0])[_box_places(begin, place.size, box.dtype)] = _rounded(taken) if box.arg.rounded else taken


def _store_box(run: _Lanes, node: UOp) -> None:
    """Every warp stores what its lanes have gathered."""
    near, box = node.src
    warps: list[tuple[Array, Array]] = []
    begins = np.broadcast_to(run.values[near].element, (run.threads, 1)).reshape(-1)
    for lane in range(0, run.threads, WARP):
        if run.inside is not None and not run.inside[lane].any():
            continue
        place, inside = _box_elements(run, box, lane)
        warps.append((place[inside], _box_places(int(begins[lane]), place.size, box.dtype)[inside]))

    def leave() -> None:
        for place, gathered in warps:
            run.memory(box.src[0])[place] = run.memory(near.src[0])[gathered]

    run.boxes.append(leave)
    if not run.late:
        run.finish_boxes(0)


_HANDLERS: Final[dict[Op, Callable[[_Lanes, UOp], None]]] = {
    Op.LOAD: _load,
    Op.STORE: _store,
    Op.UPDATE: _update,
    Op.COMMIT: _commit,
    Op.PASS_ON: _pass_on,
    Op.WAIT: _wait,
    Op.ACROSS: _across,
    Op.COPY_ASYNC: _copy,
    Op.WGMMA: _wgmma,
    Op.COPY_BOX: _copy_box,
    Op.STORE_BOX: _store_box,
}
