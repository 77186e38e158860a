"""Movement ops to index expressions: lower one kernel, walking backwards from its outputs.

Any op may be evaluated at any index, so every partition into kernels gives the right values; the partition only decides
what it costs. A request is (node, index, gate): the node's value at the index, asked for only where the gate holds.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from math import prod
from typing import Final

from gradlet.base.dtype import dtypes
from gradlet.base.errors import CompilerError
from gradlet.graph.allocation import COUNTER_NUMBER
from gradlet.graph.bounds import bounds
from gradlet.graph.extents import Extents
from gradlet.graph.node import UOp, mk
from gradlet.graph.rewrite import rewrite
from gradlet.ops.op import (
    ELEMENTWISE,
    MOVEMENT,
    SCALAR_LEAVES,
    AccArg,
    AxisKind,
    Op,
    ParamArg,
    RangeArg,
    ReduceArg,
    VariableArg,
    batch_axes,
    identity_element,
)
from gradlet.rules.sets import INDEX_MATH
from gradlet.schedule.blocks import Frame, cut_loops
from gradlet.schedule.indexing import FALSE, INDEX, ZERO, Form, Gate, Index, IndexMath, condition, join
from gradlet.schedule.network import sorting_network
from gradlet.schedule.partition import Blocks
from gradlet.schedule.views import place_of_view, source_index

Loop = tuple[object, int]  # identity and size of a loop
Request = tuple[UOp, Index, Gate]

_RESHAPE: Final = Op.RESHAPE
_BUFFER: Final = Op.BUFFER
_LIMIT: Final = Op.LIMIT
_DETACH: Final = Op.DETACH
_INDEX: Final = Op.INDEX
_FROM_DATA: Final = 1 << Op.LOAD | 1 << Op.CARRY


class RegionError(Exception):
    """Bodies cannot run block by block; never reaches the user: they are launched one after another instead."""


class Lowering:
    """Lowers one kernel.

    Args:
        places: for every node that lives in memory, a view of its BUFFER with the node's shape.
        axis_loops: the loops an axis of a node runs as: (identity, size) pairs, outermost first.
        own: nodes this kernel computes itself although they live in memory.
        frame: the region that the kernel is a body of; it then computes one block.
    """

    def __init__(
        self,
        places: Mapping[UOp, UOp],
        axis_loops: Callable[[UOp, int], tuple[Loop, ...]],
        own: frozenset[UOp],
        frame: Frame | None = None,
    ) -> None:
        self.places = places
        self.axis_loops = axis_loops if frame is None else cut_loops(axis_loops, frame.blocks)
        self.frame = frame
        self.own = own
        self.math = IndexMath()
        self.memo: dict[Request, UOp] = {}
        self.followed: dict[Request, tuple[Request, Gate]] = {}
        self.params: dict[UOp, UOp] = {}
        self.variables: dict[UOp, UOp] = {}
        self.loops: dict[object, UOp] = {}
        self.levels: dict[UOp, int] = {}
        self.limits: dict[Loop, UOp] = {}  # sizes, known at launch, of loops over outputs
        self.ordered: set[Loop] = set()  # loops that a SCAN of this kernel goes along
        self.last: set[int] = set()  # numbers of ranges that go inside all other output loops
        self.carries: dict[object, UOp] = {}
        self.count = 0
        self.block: UOp | None = None
        self.counts = False  # whether the kernel counts by itself instead of reading numbers that count
        if frame is not None:
            self.open_block(frame.blocks)

    # ranges
    def make_range(self, size: int | UOp, kind: AxisKind) -> UOp:
        """A new RANGE with the next number."""
        count = size if isinstance(size, UOp) else UOp.const(INDEX, size)
        node = mk(Op.RANGE, INDEX, (count,), RangeArg(self.count, kind))
        self.count += 1
        return node

    def open_loops(self, loops: Sequence[Loop]) -> None:
        """Number the output loops, outermost first."""
        for loop in loops:
            if loop not in self.loops:
                self.loops[loop] = self.output_range(loop)

    def output_range(self, loop: Loop) -> UOp:
        """A new RANGE of the outputs."""
        size = self.limits.get(loop, loop[1])
        if loop not in self.ordered:
            return self.make_range(size, AxisKind.LOOP)
        self.last.add(self.count)
        return self.make_range(size, AxisKind.ORDERED)

    def limit_loops(self, sizes: Mapping[UOp, Extents]) -> None:
        """Let loops over outputs end where nobody needs more, if that is so for all outputs that have the loop."""
        found: dict[Loop, tuple[UOp, int] | None] = {}
        for node in self.own:
            far = sizes.get(node) if node.op is not Op.WRITE else None
            shown = node.src[1] if node.op is Op.WRITE else node
            for axis in range(len(shown.shape)):
                loops = [loop for loop in self.axis_loops(shown, axis) if loop[1] != 1]
                size = far[axis] if far is not None else None
                for position, loop in enumerate(loops):
                    # The loops inside run over whole blocks, so that the last one may go past the size.
                    inside = prod([count for _, count in loops[1:]])
                    own = (size, inside) if size is not None and position == 0 else None
                    found[loop] = own if found.setdefault(loop, own) == own else None
        for loop, own in found.items():
            if own is not None and loop not in self.loops:
                self.limits[loop] = self.blocks(*own)

    def blocks(self, size: UOp, block: int) -> UOp:
        """How many blocks hold a size that is known at launch."""
        count = self.value(size, ())
        return count if block == 1 else (count + (block - 1)) // block

    def reduce_index(
        self, source: UOp, axis: int, size: UOp, used: dict[Loop, int], context: object
    ) -> tuple[UOp, Gate]:
        """The index of a reduced axis of which only the first positions count, and the condition if a loop runs on."""
        loops = [loop for loop in self.axis_loops(source, axis) if loop[1] != 1]
        count = self.value(size, ())
        if not loops or bounds(count)[1] < 2:  # a loop that runs once at most is no loop
            one = self.axis_index(loops, used, AxisKind.REDUCE, context) if loops else ZERO
            return one, (mk(Op.CMPLT, dtypes.bool, (one, count), None),)
        times = used.get(loops[0], 0)
        used[loops[0]] = times + 1
        block = prod([extent for _, extent in loops[1:]])
        key = (loops[0], times, context, count)
        outer = self.loops.get(key)
        if outer is None:
            outer = self.loops[key] = self.make_range(self.blocks(size, block), AxisKind.REDUCE)
        if block == 1:
            return outer, ()
        one = self.math.combine([(outer, block), (self.axis_index(loops[1:], used, AxisKind.REDUCE, context), 1)])
        return one, (mk(Op.CMPLT, dtypes.bool, (one, count), None),)

    def open_block(self, blocks: Blocks) -> None:
        """One PARALLEL range numbers the blocks; the loops that are cut are parts of its number."""
        rest = self.block = self.make_range(blocks.count, AxisKind.PARALLEL)
        for cut in reversed(blocks.cuts):
            rest, part = self.math.divmod(rest, cut.outer) if cut is not blocks.cuts[0] else (rest, rest)
            if cut.outer > 1:
                self.loops[(cut.atom, "block"), cut.outer] = part

    def axis_index(self, loops: Sequence[Loop], used: dict[Loop, int], kind: AxisKind, context: object) -> UOp:
        """The index of an axis from its loops; a loop met twice in one node gets a RANGE of its own."""
        found: list[UOp] = []
        long = [loop for loop in loops if loop[1] != 1]
        for loop in long:  # outermost first, so that neighbouring numbers are neighbouring loops
            times = used.get(loop, 0)
            used[loop] = times + 1
            key: object = loop if context is None and times == 0 else (loop, times, context)
            one = self.loops.get(key)
            if one is None:
                plain = kind is not AxisKind.LOOP or key is not loop
                one = self.loops[key] = self.make_range(loop[1], kind) if plain else self.output_range(loop)
            found.append(one)
        if len(found) == 1:
            return found[0]
        strides = [1]
        for loop in reversed(long[1:]):
            strides.append(strides[-1] * loop[1])
        return self.math.combine(zip(found, reversed(strides)))

    # reading
    def follow(self, node: UOp, idx: Index, gate: Gate) -> tuple[Request, Gate]:
        """Walk through movement ops and memory places to where the value comes from; also the guards on the way."""
        # Whoever reads a value asks again when it is known.
        asked = (node, idx, gate)
        found = self.followed.get(asked)
        if found is None:
            found = self.followed[asked] = self._follow(node, idx, gate)
        return found

    def _follow(self, node: UOp, idx: Index, gate: Gate) -> tuple[Request, Gate]:
        inside: Gate = ()
        self.math.assume(gate)
        while True:
            if node.op is _LIMIT:
                inside = join(inside, self.before(idx[node.arg.axis], node.src[1]))
                self.math.assume(join(gate, inside))
                node = node.src[0]
            elif node.op in MOVEMENT:
                idx, more = source_index(node, idx, self.math)
                if more:
                    inside = join(inside, more)
                    self.math.assume(join(gate, inside))
                node = node.src[0]
            elif node.op is _DETACH:
                node = node.src[0]
            elif node in self.places and node not in self.own:
                place = self.places[node]
                if place is node:
                    break
                node = place
            else:
                break
        self.math.assume(())
        if node.op in SCALAR_LEAVES:
            return (node, (), ()), inside
        return (node, idx, join(gate, inside)), inside

    def before(self, one: UOp, size: UOp) -> Gate:
        """The condition under which an index lies before a size that is known at launch."""
        count = self.value(size, ())
        if one.op is Op.RANGE and one.src[0] is count:
            return ()
        return (mk(Op.CMPLT, dtypes.bool, (one, count), None),)

    def value(self, node: UOp, idx: Index, gate: Gate = ()) -> UOp:
        """The node's value at an index."""
        request, inside = self.follow(node, idx, gate)
        if FALSE in request[2]:
            return UOp.const(node.dtype, 0)
        stack = [request]
        memo = self.memo
        while stack:
            top = stack[-1]
            if top in memo:
                stack.pop()
                continue
            missing: list[Request] = []
            result = self.evaluate(top, missing)
            if missing:
                missing.reverse()
                stack.extend(missing)
                continue
            assert result is not None
            memo[top] = result
            stack.pop()
        return self.guarded(memo[request], inside)

    def read(self, node: UOp, idx: Index, gate: Gate, missing: list[Request]) -> UOp | None:
        """The value of a source if it is known already, else None and what is missing."""
        request, inside = self.follow(node, idx, gate)
        if FALSE in request[2]:
            return UOp.const(node.dtype, 0)
        found = self.memo.get(request)
        if found is None:
            missing.append(request)
            return None
        return self.guarded(found, inside)

    def guarded(self, value: UOp, inside: Gate) -> UOp:
        """Zero where the guards fail; a load that is gated by them already has that zero."""
        if not inside:
            return value
        if FALSE in inside:
            return UOp.const(value.dtype, 0)
        if is_zero_outside(value):
            return value
        return mk(Op.WHERE, value.dtype, (condition(inside), value, UOp.const(value.dtype, 0)), None)

    def evaluate(self, request: Request, missing: list[Request]) -> UOp | None:
        """The value of one request, or None after listing what has to be known first."""
        node, idx, gate = request
        op = node.op
        if op in ELEMENTWISE:
            values = [self.read(source, idx if source.op not in SCALAR_LEAVES else (), gate, missing)
                      for source in node.src]  # fmt: skip
            if missing:
                return None
            return mk(op, node.dtype, tuple(values), node.arg)  # type: ignore[arg-type]
        if op is _BUFFER:
            return self.load(node, idx[0], gate)
        if op is Op.CONST:
            return node
        if op is Op.VARIABLE or op is Op.BIND:
            return self.variable(node if op is Op.VARIABLE else node.src[0])
        if op is Op.REDUCE_AXES:
            return self.reduce(node, idx, gate, missing)
        if op is Op.GATHER:
            return self.gather(node, idx, gate, missing)
        if op is Op.SCAN:
            return self.scan(node, idx, gate, missing)
        if op is Op.CONTIGUOUS or op is Op.DETACH:
            return self.read(node.src[0], idx, gate, missing)
        raise CompilerError(f"{op.name} has no value inside a kernel; it must live in memory: {node!r}")

    def param(self, buffer: UOp) -> UOp:
        """The PARAM of a BUFFER; slots go by discovery."""
        found = self.params.get(buffer)
        if found is None:
            size = buffer.arg.size if self.frame is None else self.frame.scratch.get(buffer, buffer.arg.size)
            arg = ParamArg(len(self.params), size)
            found = self.params[buffer] = mk(Op.PARAM, buffer.dtype, (), arg)
        return found

    def in_scratch(self, element: UOp, size: int, gate: Gate) -> UOp:
        """The element of a scratch array: where the block begins is taken off.

        A gated access may form an address outside and not use it. A position that was loaded, or carried from one
        iteration to the next, is a position inside the block: nothing else was decided to be a region.

        Raises:
            RegionError: the element may lie in another block.
        """
        form = self.math.form(element)
        terms = {t: f for t, f in form.terms.items() if t is not self.block}
        known = {t: f for t, f in terms.items() if not t.mask & _FROM_DATA}
        low, high = self.math.form_bounds(Form(known, form.constant))
        inside = (gate or (0 <= low and high < size)) and not any(self.block in t.ranges for t in known)
        if not inside or form.terms.get(self.block, 0) != size:  # type: ignore[arg-type]
            raise RegionError("a block reads what another block makes")
        return self.math.build(terms, form.constant)

    def address(self, buffer: UOp, element: UOp, gate: Gate) -> UOp:
        """INDEX of one element."""
        if self.frame is not None and buffer in self.frame.scratch:
            element = self.in_scratch(element, self.frame.scratch[buffer], gate)
        src = (self.param(buffer), element)
        return mk(_INDEX, buffer.dtype, (*src, condition(gate)) if gate else src, None)

    def load(self, buffer: UOp, element: UOp, gate: Gate) -> UOp:
        """LOAD of one element, 0 where the gate fails."""
        if self.counts and buffer.arg.number == COUNTER_NUMBER and not gate:
            return mk(Op.CAST, buffer.dtype, (element,), None)
        index = self.address(buffer, element, gate)
        return mk(Op.LOAD, buffer.dtype, (index, UOp.const(buffer.dtype, 0)) if gate else (index,), None)

    def variable(self, node: UOp) -> UOp:
        """The kernel's own name of a variable."""
        found = self.variables.get(node)
        if found is None:
            arg = VariableArg(f"v{len(self.variables)}", node.arg.low, node.arg.high)
            found = self.variables[node] = mk(Op.VARIABLE, node.dtype, (), arg)
        return found

    def reduce(self, node: UOp, idx: Index, gate: Gate, missing: list[Request]) -> UOp | None:
        """REDUCE over ranges shared with other reduces of the same axes at the same place and depth.

        Reduces that depend on one another never share: one is a loop inside or after the other.
        """
        source = node.src[0]
        axes = node.arg.axes
        if any(source.shape[a] == 0 for a in axes):
            return UOp.const(node.dtype, identity_element(node.arg.op, node.dtype))
        if any(source.shape[a] > 1 for a in axes):
            gate = needed(gate, idx)
        outer = {r for one in (*idx, *gate) for r in one.ranges}
        context = (self.levels.get(node, 0), tuple(sorted(r.arg.number for r in outer)))
        used: dict[Loop, int] = {}
        full: list[UOp] = []
        kept = iter(idx)
        ranges: dict[UOp, None] = {}
        sizes = dict(zip(node.arg.limited, node.src[1:], strict=True))
        inside: Gate = ()
        for axis in range(len(source.shape)):
            if axis in sizes:
                one, more = self.reduce_index(source, axis, sizes[axis], used, context)
                inside = join(inside, more)
                ranges.update(dict.fromkeys(one.ranges))
                full.append(one)
            elif axis in axes:
                one = self.axis_index(self.axis_loops(source, axis), used, AxisKind.REDUCE, context)
                ranges.update(dict.fromkeys(one.ranges))
                full.append(one)
            else:
                full.append(next(kept))
        value = self.read(source, tuple(full), gate, missing)
        if value is not None and inside:
            neutral = UOp.const(node.dtype, identity_element(node.arg.op, node.dtype))
            value = mk(Op.WHERE, node.dtype, (condition(inside), value, neutral), None)
        if value is None or not ranges:
            return value
        return mk(Op.REDUCE, node.dtype, (value, *ranges), ReduceArg(node.arg.op))

    def gather(self, node: UOp, idx: Index, gate: Gate, missing: list[Request]) -> UOp | None:
        """A load with a computed row number, 0 outside the table."""
        table, index = node.src
        rank = len(index.shape)
        number = self.read(index, idx[:rank], gate, missing)
        if number is None:
            return None
        row, batch = row_number(number), batch_axes(node.arg)
        inside = self.math.within(row, table.shape[batch])
        value = self.read(table, (*idx[:batch], row, *idx[rank:]), join(gate, inside), missing)
        return None if value is None else self.guarded(value, inside)

    def scan(self, node: UOp, idx: Index, gate: Gate, missing: list[Request]) -> UOp | None:
        """A value carried along the axis, whose loops run in order inside all others."""
        op, axis, exclusive = node.arg
        loops = self.axis_loops(node, axis)
        if gate or any(loop not in self.ordered for loop in loops if loop[1] != 1):
            raise CompilerError(f"a running combination is computed element after element, not at any place: {node!r}")
        ranges = [self.loops[loop] for loop in loops if loop[1] != 1 and loop in self.loops]
        if idx[axis] is not self.axis_index(loops, {}, AxisKind.LOOP, None):
            raise CompilerError(f"a running combination is asked for at another place than it has reached: {node!r}")
        row = (*idx[:axis], *idx[axis + 1 :])
        source, start, *factors = node.src
        value = self.read(source, idx, gate, missing)
        first = self.read(start, row if start.op not in SCALAR_LEAVES else (), gate, missing)
        factor = (
            self.read(factors[0], idx if factors[0].op not in SCALAR_LEAVES else (), gate, missing) if factors else None
        )
        if value is None or first is None or missing:
            return None
        carry = self.carry(first, row, source.shape[:axis] + source.shape[axis + 1 :], ranges, (op, value, factor))
        if factor is not None:
            total = mk(Op.ADD, node.dtype, (mk(Op.MUL, node.dtype, (carry, factor)), value))
        else:
            total = mk(op, node.dtype, (carry, value))
        return after(carry, total, carry if exclusive else total)

    def carry(self, start: UOp, row: Index, sizes: Sequence[int], ranges: Sequence[UOp], key: object) -> UOp:
        """The CARRY that begins with `start` and goes through `ranges`; carries with equal keys are the same."""
        if not ranges:
            return start
        key = (start, row, tuple(ranges), key)
        found = self.carries.get(key)
        if found is None:
            strides = [prod(sizes[a + 1 :]) for a in range(len(sizes))]
            number = self.math.combine(list(zip(row, strides, strict=True)))
            src = (start, number, *ranges)
            found = self.carries[key] = mk(Op.CARRY, start.dtype, src, AccArg(len(self.carries)))
        return found

    # outputs
    def store(self, node: UOp) -> list[UOp]:
        """The STOREs that compute one output into its place."""
        place = self.places[node]
        if node.op is Op.SCATTER:
            return [self.scatter(node, place)]
        if node.op is Op.MERGE:
            return self.merge(node, place)
        if node.op is Op.LARGEST:
            return [self.largest(node, place)]
        value_node = shown = node
        if node.op is Op.WRITE:
            # The view, over the buffer instead of the base.
            place, shown, value_node = place_of_view(node, place), node.src[1], node.src[2]
        idx = self.output_index(shown)
        (buffer, element, gate), _ = self.follow(place, idx, ())
        value = self.value(value_node, idx if value_node.shape else (), gate)
        return [mk(Op.STORE, dtypes.void, (self.address(buffer, element[0], gate), value), None)]

    def output_index(self, node: UOp, first: int = 0, stop: int | None = None) -> Index:
        """Loops over the axes of an output, from axis `first` on."""
        used: dict[Loop, int] = {}
        axes = range(first, len(node.shape) if stop is None else stop)
        return tuple([self.axis_index(self.axis_loops(node, a), used, AxisKind.LOOP, None) for a in axes])

    def scatter(self, node: UOp, place: UOp) -> UOp:
        """Ordered over the positions of the index, free over batches and the rest of a row."""
        _, index, rows = node.src
        batch = node.arg.batch
        # Rows are long and contiguous: the free loops stay inside.
        outer = self.output_index(node, 0, batch)
        inner = [ZERO if size == 1 else self.make_range(size, AxisKind.ORDERED) for size in index.shape[batch:]]
        position = (*outer, *inner)
        free = self.output_index(node, batch + 1)
        row = row_number(self.value(index, position))
        inside = self.math.within(row, place.shape[batch])
        (buffer, element, gate), _ = self.follow(place, (*outer, row, *free), inside)
        value = self.value(rows, (*position, *free) if rows.shape else (), gate)
        address = self.address(buffer, element[0], gate)
        if node.arg.op is not None:
            simple = rewrite(mk(Op.STORE, dtypes.void, (address, value), None), INDEX_MATH)
            assert isinstance(simple, UOp)
            again = prod([r.src[0].arg for r in inner if r is not ZERO and r not in simple.ranges])
            value = repeated(node.arg.op, value, again)
            old = mk(Op.LOAD, buffer.dtype, (address, UOp.const(buffer.dtype, 0)) if gate else (address,), None)
            value = mk(node.arg.op, node.dtype, (old, value), None)
        return mk(Op.STORE, dtypes.void, (address, value), None)

    def merge(self, node: UOp, place: UOp) -> list[UOp]:
        """Pairs of rows merged from both ends at once: neither end can run past a row, so nothing is guarded."""
        source = node.src[0]
        size = source.shape[-1]
        rows = self.output_index(node, 0, len(node.shape) - 1)
        if size == 1:
            return self.put_in_order(node, place, rows)
        step = self.make_range(size, AxisKind.ORDERED)
        stores: list[UOp] = []
        for backwards in (False, True)[: 1 if node.arg.half else 2]:
            taken = self.carry(ZERO, rows, node.shape[:-1], [step], (node, backwards))  # from the first of the two rows
            others = self.math.combine([(step, 1), (taken, -1)])
            target, places = step, [taken, others]
            if backwards:
                places = [self.math.combine([(p, -1)], size - 1) for p in places]
                target = self.math.combine([(step, -1)], 2 * size - 1)
            first, second = [self.value(source, (*rows, UOp.const(INDEX, k), p)) for k, p in enumerate(places)]
            takes = first.lt(second) if backwards else second.lt(first)
            more = mk(Op.ADD, INDEX, (taken, mk(Op.CAST, INDEX, (takes,))))
            stores.append(self.store_at(place, (*rows, target), after(taken, more, takes.where(first, second))))
        return stores

    def put_in_order(self, node: UOp, place: UOp, rows: Index) -> list[UOp]:
        """A few elements, by a network of comparisons."""
        source = node.src[0]
        values = [self.value(source, (*rows, UOp.const(INDEX, k), ZERO)) for k in range(source.shape[-2])]
        for i, j in sorting_network(len(values)):
            first, second = values[i], values[j]
            swap = first.lt(second)
            values[i], values[j] = swap.where(second, first), swap.where(first, second)
        kept = values[: node.shape[-1]]
        return [self.store_at(place, (*rows, UOp.const(INDEX, k)), value) for k, value in enumerate(kept)]

    def largest(self, node: UOp, place: UOp) -> UOp:
        """Each value is the largest one below the value before."""
        source, dtype = node.src[0], node.dtype
        rows = self.output_index(node, 0, len(node.shape) - 1)
        count, size = node.shape[-1], source.shape[-1]
        step = self.make_range(count, AxisKind.ORDERED) if count != 1 else ZERO
        start = UOp.const(dtype, dtype.max)
        before = self.carry(start, rows, node.shape[:-1], [step] if count != 1 else [], node)
        along = self.make_range(size, AxisKind.REDUCE) if size != 1 else ZERO
        value = self.value(source, (*rows, along))
        found = value.lt(before).where(value, UOp.const(dtype, dtype.min))
        if size != 1:
            found = mk(Op.REDUCE, dtype, (found, along), ReduceArg(Op.MAX))
        return self.store_at(place, (*rows, step), after(before, found, found))

    def store_at(self, place: UOp, idx: Index, value: UOp) -> UOp:
        """The STORE of a value at an index of a place."""
        (buffer, element, gate), _ = self.follow(place, idx, ())
        return mk(Op.STORE, dtypes.void, (self.address(buffer, element[0], gate), value), None)


def after(carry: UOp, value: UOp, result: UOp) -> UOp:
    """The result, with the value for the next iteration; a loop that runs once has no next iteration."""
    return mk(Op.NEXT, result.dtype, (carry, value, result), None) if carry.op is Op.CARRY else result


def needed(gate: Gate, idx: Index) -> Gate:
    """The guards without which an access at this index might leave its memory.

    A guard about other loops is left to whoever reads the value: a reduction under it would be one for each of them.
    """
    ranges = {r for one in idx for r in one.ranges}
    return tuple([g for g in gate if not g.ranges or not ranges.isdisjoint(g.ranges)])


def is_zero_outside(value: UOp) -> bool:
    """Whether a value asked for under a gate is already zero where the gate fails."""
    while value.op is Op.CAST:
        value = value.src[0]
    return value.op is Op.LOAD or (value.op is Op.CONST and repr(value.arg) in ("0", "0.0", "False"))


def repeated(op: Op, value: UOp, times: int) -> UOp:
    """A value combined with itself: a store runs for the loops that it depends on, a scatter for every position."""
    if times == 1 or value.dtype.is_bool or op not in (Op.ADD, Op.MUL):
        return value
    if op is Op.ADD:
        return mk(Op.MUL, value.dtype, (value, UOp.const(value.dtype, times)), None)
    result = value
    for digit in f"{times:b}"[1:]:
        result = mk(Op.MUL, value.dtype, (result, result), None)
        if digit == "1":
            result = mk(Op.MUL, value.dtype, (result, value), None)
    return result


def row_number(value: UOp) -> UOp:
    """An index value as index arithmetic."""
    if value.op is Op.CONST:
        return UOp.const(INDEX, int(value.arg))
    return value if value.dtype is INDEX else mk(Op.CAST, INDEX, (value,), None)
