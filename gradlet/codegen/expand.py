"""UNROLL ranges become copies of what depends on them, VECTOR ranges become vector lanes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, NamedTuple

from gradlet.base.dtype import DType, dtypes
from gradlet.base.errors import CompilerError
from gradlet.codegen.drain import Drains, FarLoad, FarStore
from gradlet.codegen.strided import common_gate, near_load, pick, strided_load
from gradlet.codegen.transpose import Gather, gathered, has_columns
from gradlet.graph.node import UOp, mk, toposort
from gradlet.graph.rewrite import rewrite
from gradlet.ops.op import ELEMENTWISE, AxisKind, Op, PrefixArg, ReduceArg, ShuffleArg, identity_element
from gradlet.optimize.actions.stream import LINE_BYTES
from gradlet.optimize.analysis import fills_vectors, kernel_order, make_after, nesting_order, ranges_in
from gradlet.rules.sets import INDEX_MATH
from gradlet.target.target import Target

# Members of an enum are slow to reach through their class.
_REDUCE_BIT: Final = 1 << Op.REDUCE
_LOADS: Final = 1 << Op.LOAD
_RANGE: Final = Op.RANGE
_ADD: Final = Op.ADD
_CONST: Final = Op.CONST
_MUL: Final = Op.MUL
_SINK: Final = Op.SINK
_REDUCE: Final = Op.REDUCE
_AFTER: Final = Op.AFTER
_STORE: Final = Op.STORE
_CARRY: Final = Op.CARRY
_NEXT: Final = Op.NEXT
_INDEX: Final = Op.INDEX
_PREFETCH: Final = Op.PREFETCH
_LOAD: Final = Op.LOAD
_LOOKUP: Final = Op.LOOKUP
_PICK: Final = Op.PICK
_PREFIX: Final = Op.PREFIX
_REDUCE_LANES: Final = Op.REDUCE_LANES
_SHUFFLE: Final = Op.SHUFFLE
_VECTORIZE: Final = Op.VECTORIZE
_WITHOUT_LANES: Final = frozenset({Op.SINK, Op.REDUCE, Op.AFTER})  # lanes below may end there


def unroll(sink: UOp) -> UOp:
    """Write out every UNROLL range. A REDUCE over one becomes a balanced tree of its op."""
    while True:
        loops = [n for n in kernel_order(sink) if n.op is _RANGE and n.arg.kind is AxisKind.UNROLL]
        if not loops:
            return sink
        # Inner ranges first, so that neighbouring copies are neighbours in memory.
        sink = _Copier(sink, max(loops, key=nesting_order)).run()


class Linear(NamedTuple):
    """An index expression as `rest + factor * loop + constant`; the rest does not depend on the loop."""

    rest: UOp | None
    factor: int
    constant: int

    def at(self, i: int) -> UOp:
        """The expression in one iteration of the loop."""
        number = self.constant + self.factor * i
        if self.rest is None:
            return UOp.const(dtypes.index, number)
        return mk(_ADD, dtypes.index, (self.rest, UOp.const(dtypes.index, number))) if number else self.rest


def independent(node: UOp) -> Linear:
    """The linear form of an index expression that does not depend on the loop."""
    if node.op is _CONST:
        return Linear(None, 0, int(node.arg))
    if node.op is _ADD and node.src[1].op is _CONST:
        return Linear(node.src[0], 0, int(node.src[1].arg))
    return Linear(node, 0, 0)


def combined(node: UOp, part: Callable[[UOp], Linear | None]) -> Linear | None:
    """The linear form of a sum, or of a product with a constant, from the forms of its sources."""
    if node.op is _ADD:
        first, second = part(node.src[0]), part(node.src[1])
        if first is None or second is None:
            return None
        rest = first.rest
        if second.rest is not None:
            rest = second.rest if rest is None else rest + second.rest
        return Linear(rest, first.factor + second.factor, first.constant + second.constant)
    if node.op is _MUL and node.src[1].op is _CONST:
        form, scale = part(node.src[0]), int(node.src[1].arg)
        if form is not None:
            rest = None if form.rest is None else form.rest * scale
            return Linear(rest, form.factor * scale, form.constant * scale)
    return None


class _Copier:
    """Rebuilds a kernel with one range written out.

    Element numbers are mostly linear in the range: their copies share one node and differ by a constant. So sums are
    kept as `linear` and written out only for what uses them as a whole.
    """

    def __init__(self, sink: UOp, loop: UOp) -> None:
        self.sink, self.loop = sink, loop
        self.size = int(loop.src[0].arg)
        self.order = kernel_order(sink)
        self.ranges = ranges_in(sink)
        self.new: dict[UOp, UOp] = {}
        self.copies: dict[UOp, tuple[UOp, ...]] = {}
        self.linear: dict[UOp, Linear] = {loop: Linear(None, 1, 0)}

    def run(self) -> UOp:
        loop, ranges, new = self.loop, self.ranges, self.new
        changed = new.keys()
        for node in self.order:
            if node is loop or not node.src:
                continue
            if node.op is _SINK:
                stores: list[UOp] = []
                for store in node.src:
                    stores.extend(self._copies(store) if loop in ranges[store] else (self._kept(store),))
                new[node] = mk(_SINK, node.dtype, tuple(dict.fromkeys(stores)), node.arg)
            elif node.op is _REDUCE and loop in node.src[1:]:
                new[node] = self._reduce(node)
            elif node.op is _AFTER and loop in node.src[1:]:
                stores = [c for s in node.src if s.op is _STORE for c in self._copies(s)]
                rest = [s for s in node.src[1:] if s.op is _RANGE and s is not loop]
                new[node] = make_after(node.dtype, (node.src[0], *stores, *rest))
            elif loop in ranges[node]:
                linear = combined(node, self._part) if node.dtype is dtypes.index else None
                if linear is not None:
                    self.linear[node] = linear
                    continue
                op, dtype, arg = node.op, node.dtype, node.arg
                sources = [self._copies(s) for s in node.src]
                self.copies[node] = tuple([mk(op, dtype, src, arg) for src in zip(*sources)])
            elif not changed.isdisjoint(node.src):
                new[node] = mk(node.op, node.dtype, tuple([new.get(s, s) for s in node.src]), node.arg)
        return new.get(self.sink, self.sink)

    def _kept(self, node: UOp) -> UOp:
        return self.new.get(node, node)

    def _copies(self, node: UOp) -> tuple[UOp, ...]:
        """The node for each iteration."""
        found = self.copies.get(node)
        if found is not None:
            return found
        linear = self.linear.get(node)
        if linear is None:
            return (self._kept(node),) * self.size
        found = tuple([linear.at(i) for i in range(self.size)])
        self.copies[node] = found
        return found

    def _part(self, node: UOp) -> Linear | None:
        if self.loop in self.ranges[node]:
            return self.linear.get(node)
        return independent(self._kept(node))

    def _reduce(self, node: UOp) -> UOp:
        """A balanced tree of the copies, under a REDUCE over the other ranges if there are any."""
        value = balanced(node.arg.op, list(self._copies(node.src[0])))
        rest = tuple([r for r in node.src[1:] if r is not self.loop])
        return mk(_REDUCE, node.dtype, (value, *rest), node.arg) if rest else value


def balanced(op: Op, values: list[UOp]) -> UOp:
    """Combine values in a balanced tree: a short chain of dependences, and small rounding errors for sums."""
    while len(values) > 1:
        pairs = [values[i].alu(op, values[i + 1]) for i in range(0, len(values) - 1, 2)]
        values = pairs + values[len(values) - len(values) % 2 :]
    return values[0]


def vectorize(sink: UOp, target: Target) -> UOp:
    """Turn every VECTOR range into lanes: contiguous accesses become vector accesses, others one a lane."""
    order = kernel_order(sink)
    if any(n.op is _RANGE and n.arg.kind is AxisKind.VECTOR for n in order):
        return _Vectorizer(sink, order, target).run()
    return sink


class _Vectorizer:
    """Rebuilds a kernel with lanes; `new` has the vector of a node that depends on a VECTOR range, else its scalar.

    Sums of element numbers are kept as `linear`: an access needs only where its lanes start.
    """

    def __init__(self, sink: UOp, order: list[UOp], target: Target) -> None:
        self.sink, self.order = sink, order
        self.ranges = {**ranges_in(sink), sink: frozenset()}  # its stores have loops apart
        self.new: dict[UOp, UOp] = {}
        self.linear: dict[UOp, Linear] = {}
        self.lane_copies: dict[tuple[UOp, int], UOp] = {}
        self.spreads: dict[tuple[UOp, int], UOp] = {}
        self.lane_ranges: dict[frozenset[UOp], UOp | None] = {}
        # What stands for vectors that are gathered until all are known: some are columns of the same rows.
        self.gathers: dict[UOp, Gather] = {}
        # Accesses whose lanes are far apart, until all are known. Arrays of a GPU are for what its lanes share.
        self.far: dict[UOp, FarStore] = {}
        self.far_loads: dict[UOp, tuple[UOp, FarLoad]] = {}  # by what stands for them: the LOAD, its parts
        self.arrays = Drains(sink)
        self.drains = frozenset(sink.src) if target.kind == "cpu" else frozenset()
        # Of what the kernel reads as well, all is stored when it is computed.
        self.read = {n.src[0].src[0] for n in order if n.op is _LOAD} if self.drains else set()
        self.written = {n.src[0].src[0] for n in order if n.op is _STORE} if self.drains else set()
        self.sums = {_body(self.ranges[n]) for n in order if n.op is _REDUCE} if self.drains else set()

    def run(self) -> UOp:
        new, ranges, known = self.new, self.ranges, self.lane_ranges
        for node in self.order:
            lane = known[ranges[node]] if ranges[node] in known else self._lane_range(node)
            if lane is None and node.op not in _WITHOUT_LANES:
                src = tuple([new[s] for s in node.src])
                new[node] = node if src == node.src else mk(node.op, node.dtype, src, node.arg)
                continue
            if lane is node:
                self.linear[node] = Linear(None, 1, 0)
            elif lane is not None and node.dtype is dtypes.index:
                linear = combined(node, self._part)
                if linear is not None:
                    self.linear[node] = linear
                    continue
            new[node] = self._visit(node, lane)
        made = self.new[self.sink]
        late = {**gathered(self.gathers), **self._loaded_far()}
        return made.substitute(late) if late else made

    def _part(self, node: UOp) -> Linear | None:
        return self.linear.get(node) if self._lane_range(node) is not None else independent(self.new[node])

    def _made(self, node: UOp) -> UOp:
        """The rebuilt node. Sums kept as `linear` are made when something needs their lanes."""
        found = self.new.get(node)
        if found is not None:
            return found
        stack = [node]
        while stack:
            top = stack[-1]
            waiting = [s for s in top.src if s not in self.new]
            if waiting:
                stack.extend(waiting)
                continue
            self.new[top] = self._visit(top, self._lane_range(top))
            stack.pop()
        return self.new[node]

    def _lane_range(self, node: UOp) -> UOp | None:
        ranges = self.ranges[node]
        try:
            return self.lane_ranges[ranges]
        except KeyError:
            found = self._find_lane_range(node)
            self.lane_ranges[ranges] = found
            return found

    def _find_lane_range(self, node: UOp) -> UOp | None:
        found = None
        for r in self.ranges[node]:
            if r.arg.kind is AxisKind.VECTOR:
                if found is not None:
                    raise CompilerError(
                        f"a value has two ranges of lanes, {found.arg.number} and {r.arg.number}: {node}"
                    )
                found = r
        return found

    def _visit(self, node: UOp, lane: UOp | None) -> UOp:
        op = node.op
        if op in ELEMENTWISE and lane is not None:
            count = int(lane.src[0].arg)
            src = tuple([self.spread(self._made(s), count) for s in node.src])
            return mk(op, node.dtype.vec(count), src, node.arg)
        if op is _SINK:
            return self._stores(node)
        if op is _REDUCE:
            return self._reduce(node)
        if op is _AFTER:
            kept = [s for s in node.src if s.op is not _RANGE or s.arg.kind is not AxisKind.VECTOR]
            return make_after(node.dtype, [self.new[s] for s in kept])
        if lane is None:
            new = self.new
            src = tuple([new[s] for s in node.src])
            return node if src == node.src else mk(op, node.dtype, src, node.arg)
        count = int(lane.src[0].arg)
        if node is lane:
            return iota(count)
        if op is _CARRY:
            start, row, *loops = node.src
            linear = self.linear.get(row)
            first = linear.at(0) if linear is not None else self._made(row)
            src = (self.spread(self._made(start), count), first, *[self.new[r] for r in loops])
            return mk(node.op, node.dtype.vec(count), src, node.arg)
        if node.op is _PREFIX:
            return prefix(self.spread(self._made(node.src[0]), count), node.arg)
        if node.op is _NEXT and lane not in self.ranges[node.src[0]]:
            register, after = self.new[node.src[0]], self.new[node.src[1]]
            result = self.spread(self._made(node.src[2]), count)
            return mk(node.op, result.dtype, (register, after, result))
        if node.op is _NEXT:
            carry, value, result = [self.spread(self._made(s), count) for s in node.src]
            return mk(node.op, result.dtype, (carry, value, result))
        if node.op is _PICK:
            return self._pick(node, count)
        if node.op is _LOOKUP:
            table, index = node.src
            return mk(node.op, node.dtype.vec(count), (self.new[table], self.spread(self._made(index), count)))
        if node.op is _INDEX:
            return node  # LOAD, STORE and PREFETCH look at it
        if node.op is _PREFETCH:
            return self._prefetch(node, count)
        if node.op is _LOAD:
            return self._load(node, lane, count)
        if node.op is _STORE:
            return self._store(node, lane, count)
        raise CompilerError(f"{node.op.name} cannot be vectorised: {node}")

    def _pick(self, node: UOp, count: int) -> UOp:
        """Lanes of a vector that are neighbours, or some apart."""
        linear = self.linear[node.src[1]]
        picks = [linear.at(i) for i in range(count)]
        if any(p.op is not _CONST for p in picks):
            raise CompilerError(f"which lane is picked is not known: {node}")
        arg = ShuffleArg(tuple([int(p.arg) for p in picks]))
        return mk(_SHUFFLE, node.dtype.vec(count), (self.new[node.src[0]],), arg)

    def spread(self, node: UOp, count: int) -> UOp:
        """The value in every lane, unless it is a vector already."""
        if node.dtype.count == count:
            return node
        found = self.spreads.get((node, count))
        if found is None:
            found = broadcast(node, count)
            self.spreads[node, count] = found
        return found

    def _reduce(self, node: UOp) -> UOp:
        value = self._made(node.src[0])
        lanes = [r for r in node.src[1:] if r.arg.kind is AxisKind.VECTOR]
        rest = tuple([self.new[r] for r in node.src[1:] if r.arg.kind is not AxisKind.VECTOR])
        if not lanes:
            return mk(_REDUCE, value.dtype, (value, *rest), node.arg)
        count = int(lanes[0].src[0].arg)
        value = self.spread(value, count)
        if rest:
            value = mk(_REDUCE, value.dtype, (value, *rest), node.arg)
        return mk(_REDUCE_LANES, node.dtype, (value,), ReduceArg(node.arg.op))

    def _contiguous_start(self, index: UOp) -> UOp | None:
        """The scalar element number of lane 0 if the lanes touch consecutive elements."""
        linear = self.linear.get(index.src[1])
        return linear.at(0) if linear is not None and linear.factor == 1 else None

    def _goes_back(self, index: UOp) -> bool:
        """Whether the lanes touch consecutive elements in reverse."""
        linear = self.linear.get(index.src[1])
        return linear is not None and linear.factor == -1

    def _gate(self, index: UOp, count: int) -> tuple[UOp, ...]:
        return (self.spread(self._made(index.src[2]), count),) if len(index.src) > 2 else ()

    def _load(self, node: UOp, lane: UOp, count: int) -> UOp:
        index = node.src[0]
        start = self._contiguous_start(index)
        if start is None and len(index.src) == 2 and self._goes_back(index):
            first = self.linear[index.src[1]].at(count - 1)
            forward = mk(_LOAD, node.dtype.vec(count), (mk(_INDEX, index.dtype, (self.new[index.src[0]], first)),))
            return mk(_SHUFFLE, forward.dtype, (forward,), ShuffleArg(tuple(range(count))[::-1]))
        if start is None:
            apart = self._apart(node, count) or self._near(node, lane, count)
            if apart is not None:
                return apart
            linear = self.linear.get(index.src[1])
            if linear is not None and len(index.src) == 2 and len(node.src) == 1 and not node.dtype.is_bool:
                return self._gather(index, linear, node.dtype.vec(count))
            far = self._far_load(node, lane, count)
            if far is not None:
                later = mk(_LOAD, node.dtype.vec(count), (index, self.spread(far.otherwise, count)))
                self.far_loads[later] = (node, far)
                return later  # what it is stands in `_loaded_far`
            return self._written_out(node, lane, count)
        address = mk(_INDEX, index.dtype, (self.new[index.src[0]], start, *self._gate(index, count)))
        otherwise = tuple([self.spread(self._made(s), count) for s in node.src[1:]])
        return mk(_LOAD, node.dtype.vec(count), (address, *otherwise))

    def _written_out(self, node: UOp, lane: UOp, count: int) -> UOp:
        """A load for each lane."""
        return mk(_VECTORIZE, node.dtype.vec(count), tuple([self.lane_copy(node, lane, i) for i in range(count)]))

    def _far_load(self, node: UOp, lane: UOp, count: int) -> FarLoad | None:
        """A load beside a finished sum, under a guard that all lanes have, whose lanes are equally far apart."""
        index, ranges = node.src[0], self.ranges[node]
        if _body(ranges) not in self.sums or index.src[0] in self.written or len(index.src) < 3 or node.dtype.is_bool:
            return None
        linear, others = self.linear.get(index.src[1]), (index.src[2], *node.src[1:])
        if linear is None or len(others) != 2 or any(lane in self.ranges[n] for n in others):
            return None
        first, (gate, otherwise) = linear.at(0), [self.new[n] for n in others]
        if any(n.mask & _LOADS for n in (first, gate, otherwise)):
            return None
        param = self.new[index.src[0]]
        return FarLoad(param, first, linear.factor, gate, otherwise, node.dtype.vec(count), ranges)

    def _loaded_far(self) -> dict[UOp, UOp]:
        """What stands for far loads: vectors in an array, or each lane loaded by itself.

        Those that are columns of rows side by side are written out: `transpose_in_registers` has something better.
        """
        rows: dict[tuple[UOp, ...], dict[int, UOp]] = {}
        for later, (_, far) in self.far_loads.items():
            rest = independent(far.first)
            key = (far.param, far.gate, far.otherwise, *([rest.rest] if rest.rest is not None else []))
            rows.setdefault(key, {})[rest.constant] = later
        columns = {
            later
            for alike in rows.values()
            if has_columns(alike, next(iter(alike.values())).dtype.scalar)
            for later in alike.values()
        }
        apart = {later: far for later, (_, far) in self.far_loads.items() if later not in columns}
        new = self.arrays.loads(apart)
        for later, (node, far) in self.far_loads.items():
            if later not in new:
                lane = self._lane_range(node)
                assert lane is not None
                new[later] = self._written_out(node, lane, far.dtype.count)
        return new

    def _gather(self, index: UOp, linear: Linear, dtype: DType) -> UOp:
        """What stands for a load whose lanes are far apart."""
        param = self.new[index.src[0]]
        step = UOp.const(dtypes.index, linear.factor)
        node = mk(_LOAD, dtype, (mk(_INDEX, index.dtype, (param, linear.at(0), step)),))
        self.gathers[node] = Gather(param, linear.rest, linear.factor, dtype, linear.constant)
        return node

    def _apart(self, node: UOp, count: int) -> UOp | None:
        """A load whose lanes are a few elements apart."""
        index = node.src[0]
        linear = self.linear.get(index.src[1])
        if linear is None or any(s.op is not _CONST or s.arg != 0 for s in node.src[1:]):
            return None
        form, gates = linear, self._gate(index, count)
        gate = gates[0] if gates else None

        def element(after: int) -> UOp:
            return Linear(form.rest, 0, form.constant + after).at(0)

        return strided_load(node.dtype, self.new[index.src[0]], element, form.factor, count, gate)

    def _near(self, node: UOp, lane: UOp, count: int) -> UOp | None:
        """A load whose lanes repeat or skip elements in a pattern that is the same for every vector."""
        index = node.src[0]
        if index.src[1] in self.linear or any(s.op is not _CONST or s.arg != 0 for s in node.src[1:]):
            return None
        if any(n.op is _LOAD and lane in self.ranges[n] for n in toposort((index.src[1],))):
            return None
        elements = self._simple_lanes(index.src[1], lane, count)
        gate: UOp | None = None
        if len(index.src) > 2:
            gate = common_gate(self._simple_lanes(index.src[2], lane, count)) or self._gate(index, count)[0]
        return near_load(node.dtype, self.new[index.src[0]], elements, gate)

    def _simple_lanes(self, node: UOp, lane: UOp, count: int) -> tuple[UOp, ...]:
        lanes = [self.lane_copy(node, lane, i) for i in range(count)]
        return rewrite(mk(_SINK, dtypes.void, tuple(lanes)), INDEX_MATH).src

    def _prefetch(self, node: UOp, count: int) -> UOp:
        """One line: that of the first lane. What is gathered from many is not brought near."""
        value, index = node.src
        vector = self.spread(self._made(value), count)
        if self._lane_range(index) is None:
            return mk(node.op, vector.dtype, (vector, self.new[index]), node.arg)
        start = self._contiguous_start(index)
        size = vector.dtype.itemsize
        if start is None or self.linear[index.src[1]].constant * index.dtype.itemsize % LINE_BYTES >= size:
            return vector  # of the vectors of a line side by side one asks for it
        return mk(node.op, vector.dtype, (vector, mk(_INDEX, index.dtype, (self.new[index.src[0]], start))), node.arg)

    def _store(self, node: UOp, lane: UOp, count: int) -> UOp:
        index, value = node.src
        start = self._contiguous_start(index)
        if start is not None:
            address = mk(_INDEX, index.dtype, (self.new[index.src[0]], start, *self._gate(index, count)))
            arg = node.arg if fills_vectors(address, count) else None
            return mk(_STORE, node.dtype, (address, self.spread(self._made(value), count)), arg)
        vector = self._made(value)
        far = self._far_store(node, lane, vector)
        if far is None:
            return self._scattered(node, lane, vector)
        self.far[node] = far
        return node  # until it is known how many there are

    def _far_store(self, node: UOp, lane: UOp, vector: UOp) -> FarStore | None:
        """The store of a finished sum whose lanes are equally far apart."""
        index = node.src[0]
        param, linear = index.src[0], self.linear.get(index.src[1])
        if linear is None or len(index.src) > 2 or node not in self.drains or param in self.read:
            return None
        if not vector.mask & _REDUCE_BIT or vector.dtype.count == 1 or vector.dtype.is_bool:
            return None
        return FarStore(self.new[param], linear.at(0), linear.factor, vector, self.ranges[node] - {lane})

    def _scattered(self, node: UOp, lane: UOp, vector: UOp) -> UOp:
        """A store for each lane."""
        scattered: list[UOp] = []
        for i in range(int(lane.src[0].arg)):
            address = self.lane_copy(node.src[0], lane, i)
            single = vector if vector.dtype.count == 1 else self._lane_of(vector, i)
            scattered.append(mk(_STORE, node.dtype, (address, single)))
        return mk(_SINK, node.dtype, tuple(scattered))

    def _stores(self, sink: UOp) -> UOp:
        """The kernel with the stores as they have become."""
        apart = self.arrays.stores(self.far)
        stores: list[UOp] = []
        for store in sink.src:
            made = self.new[store]
            if store in apart:
                made = apart[store]
            elif store in self.far:
                lane = self._lane_range(store)
                assert lane is not None
                made = self._scattered(store, lane, self.far[store].vector)
            stores.extend(made.src if made.op is _SINK else (made,))
        return mk(_SINK, sink.dtype, tuple(dict.fromkeys(stores)), sink.arg)

    def _lane_of(self, vector: UOp, i: int) -> UOp:
        gather = self.gathers.get(vector)
        return pick(vector, i) if gather is None else gather.load(i, vector.dtype.scalar)

    def lane_copy(self, node: UOp, lane: UOp, i: int) -> UOp:
        """What a node is in lane `i`: its scalar expression, or a lane of a vector where a REDUCE computes vectors."""
        found = self.lane_copies.get((node, i))
        if found is not None:
            return found
        at_lane = UOp.const(dtypes.index, i)
        stack = [node]
        while stack:
            top = stack[-1]
            key = (top, i)
            if key in self.lane_copies:
                stack.pop()
                continue
            if top is lane:
                made = at_lane
            elif lane not in self.ranges[top]:
                made = self.new[top]
            elif top in self.linear:
                made = self.linear[top].at(i)
            elif top.op is _REDUCE or top.op is _CARRY or top.op is _NEXT or top.op is _PREFIX:
                made = pick(self.new[top], i)
            else:
                waiting = [s for s in top.src if (s, i) not in self.lane_copies]
                if waiting:
                    stack.extend(waiting)
                    continue
                made = mk(top.op, top.dtype, tuple([self.lane_copies[s, i] for s in top.src]), top.arg)
            self.lane_copies[key] = made
            stack.pop()
        return self.lane_copies[node, i]


def _body(ranges: frozenset[UOp]) -> tuple[UOp | None, ...]:
    """Where a value of lanes is computed: its lanes, and the innermost loop around."""
    lanes = [r for r in ranges if r.arg.kind is AxisKind.VECTOR]
    loops = [r for r in ranges if r.arg.kind is not AxisKind.VECTOR]
    return (*lanes, max(loops, key=nesting_order, default=None))


def broadcast(node: UOp, count: int) -> UOp:
    """A scalar in every lane of a vector."""
    if node.op is _CONST:
        return UOp.const(node.dtype.vec(count), node.arg)
    return mk(_VECTORIZE, node.dtype.vec(count), (node,) * count)


def prefix(value: UOp, arg: PrefixArg) -> UOp:
    """Every lane combined with those before it, in steps twice as long each."""
    count, dtype = value.dtype.count, value.dtype
    neutral = UOp.const(dtype, identity_element(arg.op, dtype.scalar))

    def moved(node: UOp, by: int) -> UOp:
        picks = (*range(by), *range(count, 2 * count - by))
        return mk(_SHUFFLE, dtype, (neutral, node), ShuffleArg(picks))

    if arg.exclusive:
        value = moved(value, 1)
    by = 1
    while by < count:
        value = value.alu(arg.op, moved(value, by))
        by *= 2
    return value


def iota(count: int) -> UOp:
    """The index vector 0, 1, 2, ..."""
    return mk(_VECTORIZE, dtypes.index.vec(count), tuple([UOp.const(dtypes.index, i) for i in range(count)]))
