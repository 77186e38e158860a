"""UNROLL ranges become copies of what depends on them, VECTOR ranges become vector lanes."""

from __future__ import annotations

from gradlet.base.dtype import dtypes
from gradlet.base.errors import CompilerError
from gradlet.graph.node import UOp, mk, substitute, toposort
from gradlet.ops.op import ELEMENTWISE, AxisKind, LaneArg, Op, ReduceArg
from gradlet.optimize.analysis import affine, coefficient, nesting_order, open_ranges


def unroll(sink: UOp) -> UOp:
    """Write out every UNROLL range. A REDUCE over one becomes a balanced tree of its op."""
    while True:
        loops = [n for n in toposort((sink,)) if n.op is Op.RANGE and n.arg.kind is AxisKind.UNROLL]
        if not loops:
            return sink
        # Inner ranges first, so that neighbouring copies are neighbours in memory.
        sink = _unroll_one(sink, max(loops, key=nesting_order))


def _unroll_one(sink: UOp, loop: UOp) -> UOp:
    size = int(loop.src[0].arg)
    order = toposort((sink,))
    ranges = open_ranges(order)
    copies: dict[UOp, tuple[UOp, ...]] = {loop: tuple([UOp.const(dtypes.index, i) for i in range(size)])}
    new: dict[UOp, UOp] = {}
    for node in order:
        if node is loop:
            continue
        if node.op is Op.REDUCE and loop in node.src[1:]:
            new[node] = _unrolled_reduce(node, loop, copies.get(node.src[0]), new, size)
        elif loop in ranges[node] and node.op is not Op.SINK:
            sources = [copies[s] if s in copies else (new.get(s, s),) * size for s in node.src]
            copies[node] = tuple([_copy(node, src) for src in zip(*sources)])
        elif node.op is Op.SINK:
            stores: list[UOp] = []
            for store in node.src:
                stores.extend(copies[store] if store in copies else (new.get(store, store),))
            new[node] = mk(Op.SINK, node.dtype, tuple(dict.fromkeys(stores)), node.arg)
        elif node.src:
            new[node] = mk(node.op, node.dtype, tuple([new.get(s, s) for s in node.src]), node.arg)
    return new[sink]


def _copy(node: UOp, src: tuple[UOp, ...]) -> UOp:
    """The node with other sources. Index arithmetic with the constants that take a range's place folds at once."""
    if node.dtype is dtypes.index and node.op in (Op.ADD, Op.MUL):
        first, second = src if src[1].op is Op.CONST else (src[1], src[0])
        if second.op is Op.CONST:
            value = second.arg
            if first.op is Op.CONST:
                return UOp.const(dtypes.index, first.arg + value if node.op is Op.ADD else first.arg * value)
            if value == (0 if node.op is Op.ADD else 1):
                return first
            if first.op is node.op and first.src[1].op is Op.CONST:
                inner = first.src[1].arg
                total = UOp.const(dtypes.index, inner + value if node.op is Op.ADD else inner * value)
                return mk(node.op, node.dtype, (first.src[0], total))
            src = (first, second)
    return mk(node.op, node.dtype, src, node.arg)


def _unrolled_reduce(node: UOp, loop: UOp, copies: tuple[UOp, ...] | None, new: dict[UOp, UOp], size: int) -> UOp:
    value = node.src[0]
    values = list(copies) if copies is not None else [new.get(value, value)] * size
    combined = balanced(node.arg.op, values)
    rest = tuple([r for r in node.src[1:] if r is not loop])
    return mk(Op.REDUCE, node.dtype, (combined, *rest), node.arg) if rest else combined


def balanced(op: Op, values: list[UOp]) -> UOp:
    """Combine values in a balanced tree: a short chain of dependences, and small rounding errors for sums."""
    while len(values) > 1:
        pairs = [values[i].alu(op, values[i + 1]) for i in range(0, len(values) - 1, 2)]
        values = pairs + values[len(values) - len(values) % 2 :]
    return values[0]


def vectorize(sink: UOp) -> UOp:
    """Turn every VECTOR range into lanes: contiguous accesses become vector accesses, others one a lane."""
    order = toposort((sink,))
    if any(n.op is Op.RANGE and n.arg.kind is AxisKind.VECTOR for n in order):
        return _Vectorizer(sink, order).run()
    return sink


class _Vectorizer:
    """Rebuilds a kernel with lanes; `new` has the vector of a node that depends on a VECTOR range, else its scalar."""

    def __init__(self, sink: UOp, order: list[UOp]) -> None:
        self.sink, self.order = sink, order
        self.ranges = open_ranges(order)
        self.new: dict[UOp, UOp] = {}
        self.lane_copies: dict[tuple[UOp, int], UOp] = {}

    def run(self) -> UOp:
        for node in self.order:
            self.new[node] = self._visit(node)
        return self.new[self.sink]

    def _lane_range(self, node: UOp) -> UOp | None:
        found = None
        for r in self.ranges[node]:
            if r.arg.kind is AxisKind.VECTOR:
                if found is not None:
                    raise CompilerError(
                        f"a value has two ranges of lanes, {found.arg.number} and {r.arg.number}: {node}"
                    )
                found = r
        return found

    def _visit(self, node: UOp) -> UOp:
        if node.op is Op.SINK:
            stores: list[UOp] = []
            for store in node.src:
                made = self.new[store]
                stores.extend(made.src if made.op is Op.SINK else (made,))
            return mk(Op.SINK, node.dtype, tuple(dict.fromkeys(stores)), node.arg)
        if node.op is Op.REDUCE:
            return self._reduce(node)
        lane = self._lane_range(node)
        if lane is None:
            return mk(node.op, node.dtype, tuple([self.new[s] for s in node.src]), node.arg) if node.src else node
        count = int(lane.src[0].arg)
        if node is lane:
            return iota(count)
        if node.op in ELEMENTWISE:
            src = tuple([self.spread(self.new[s], count) for s in node.src])
            return mk(node.op, node.dtype.vec(count), src, node.arg)
        if node.op is Op.INDEX:
            return node  # LOAD and STORE look at it
        if node.op is Op.LOAD:
            return self._load(node, lane, count)
        if node.op is Op.STORE:
            return self._store(node, lane, count)
        raise CompilerError(f"{node.op.name} cannot be vectorised: {node}")

    @staticmethod
    def spread(node: UOp, count: int) -> UOp:
        """The value in every lane, unless it is a vector already."""
        return node if node.dtype.count == count else broadcast(node, count)

    def _reduce(self, node: UOp) -> UOp:
        value = self.new[node.src[0]]
        lanes = [r for r in node.src[1:] if r.arg.kind is AxisKind.VECTOR]
        rest = tuple([self.new[r] for r in node.src[1:] if r.arg.kind is not AxisKind.VECTOR])
        if not lanes:
            return mk(Op.REDUCE, value.dtype, (value, *rest), node.arg)
        count = int(lanes[0].src[0].arg)
        value = self.spread(value, count)
        if rest:
            value = mk(Op.REDUCE, value.dtype, (value, *rest), node.arg)
        return mk(Op.REDUCE_LANES, node.dtype, (value,), ReduceArg(node.arg.op))

    def _contiguous_start(self, index: UOp, lane: UOp) -> UOp | None:
        """The scalar element number of lane 0 if the lanes touch consecutive elements."""
        if coefficient(affine(index.src[1]), lane, self.ranges) != 1:
            return None
        return self.new_scalar(index.src[1].substitute({lane: UOp.const(dtypes.index, 0)}))

    def new_scalar(self, node: UOp) -> UOp:
        """An expression without lanes, in terms of rebuilt nodes."""
        known = {s: self.new[s] for s in toposort((node,)) if s in self.new and self.new[s] is not s}
        return substitute((node,), known)[0] if known else node

    def _gate(self, index: UOp, count: int) -> tuple[UOp, ...]:
        return (self.spread(self.new[index.src[2]], count),) if len(index.src) > 2 else ()

    def _load(self, node: UOp, lane: UOp, count: int) -> UOp:
        index = node.src[0]
        start = self._contiguous_start(index, lane)
        if start is None:
            return mk(Op.VECTORIZE, node.dtype.vec(count), tuple([self.lane_copy(node, lane, i) for i in range(count)]))
        address = mk(Op.INDEX, index.dtype, (self.new[index.src[0]], start, *self._gate(index, count)))
        otherwise = tuple([self.spread(self.new[s], count) for s in node.src[1:]])
        return mk(Op.LOAD, node.dtype.vec(count), (address, *otherwise))

    def _store(self, node: UOp, lane: UOp, count: int) -> UOp:
        index, value = node.src
        start = self._contiguous_start(index, lane)
        if start is not None:
            address = mk(Op.INDEX, index.dtype, (self.new[index.src[0]], start, *self._gate(index, count)))
            return mk(Op.STORE, node.dtype, (address, self.spread(self.new[value], count)))
        scattered: list[UOp] = []
        vector = self.new[value]
        for i in range(count):
            address = self.lane_copy(index, lane, i)
            single = vector if vector.dtype.count == 1 else extract(vector, i)
            scattered.append(mk(Op.STORE, node.dtype, (address, single)))
        return mk(Op.SINK, node.dtype, tuple(scattered))

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
            elif top.op is Op.REDUCE:
                made = extract(self.new[top], i)
            else:
                waiting = [s for s in top.src if (s, i) not in self.lane_copies]
                if waiting:
                    stack.extend(waiting)
                    continue
                made = mk(top.op, top.dtype, tuple([self.lane_copies[s, i] for s in top.src]), top.arg)
            self.lane_copies[key] = made
            stack.pop()
        return self.lane_copies[node, i]


def broadcast(node: UOp, count: int) -> UOp:
    """A scalar in every lane of a vector."""
    if node.op is Op.CONST:
        return UOp.const(node.dtype.vec(count), node.arg)
    return mk(Op.VECTORIZE, node.dtype.vec(count), (node,) * count)


def iota(count: int) -> UOp:
    """The index vector 0, 1, 2, ..."""
    return mk(Op.VECTORIZE, dtypes.index.vec(count), tuple([UOp.const(dtypes.index, i) for i in range(count)]))


def extract(vector: UOp, lane: int) -> UOp:
    """One lane of a vector."""
    if vector.op is Op.VECTORIZE:
        return vector.src[lane]
    if vector.op is Op.CONST:
        return UOp.const(vector.dtype.scalar, vector.arg)
    return mk(Op.EXTRACT, vector.dtype.scalar, (vector,), LaneArg(lane))
