"""Memory accesses ready for the machine: guards settled, element numbers that hoist, narrow vectors of indices."""

from __future__ import annotations

from typing import Final

from gradlet.base.dtype import DType, dtypes
from gradlet.codegen.loops import Nest, nest_of
from gradlet.graph.node import UOp, mk, toposort
from gradlet.ops.op import COMPARE, Op
from gradlet.optimize.analysis import Affine, affine

Interval = tuple[int, int]
_INT32: Final[Interval] = (-(2**31), 2**31 - 1)
_UNKNOWN: Final[Interval] = (-(2**62), 2**62)


def settle_guards(sink: UOp) -> UOp:
    """Drop guards that are always true and accesses whose guard is always false; give guarded LOADs their other value.

    A select between a guarded load and something else, on the load's own guard, becomes the load's other value.
    """
    order = toposort((sink,))
    uses: dict[UOp, int] = {}
    for node in order:
        for source in node.src:
            uses[source] = uses.get(source, 0) + 1
    new: dict[UOp, UOp] = {}
    for node in order:
        if not node.src:
            continue
        src = tuple([new.get(s, s) for s in node.src])
        if node.op is Op.LOAD:
            new[node] = _load(node, src)
        elif node.op is Op.STORE and len(src[0].src) > 2 and src[0].src[2].op is Op.CONST:
            index = src[0]
            kept = mk(Op.STORE, node.dtype, (mk(Op.INDEX, index.dtype, index.src[:2]), src[1]))
            new[node] = kept if index.src[2].arg else mk(Op.SINK, node.dtype)
        elif node.op is Op.SINK:
            new[node] = mk(Op.SINK, node.dtype, tuple([s for s in src if s.op is Op.STORE]), node.arg)
        elif node.op is Op.WHERE and src[1].op is Op.LOAD and uses[node.src[1]] == 1 and _is_guarded_by(src[1], src[0]):
            new[node] = mk(Op.LOAD, node.dtype, (src[1].src[0], src[2]))
        elif src != node.src:
            new[node] = mk(node.op, node.dtype, src, node.arg)
    return new.get(sink, sink)


def _load(node: UOp, src: tuple[UOp, ...]) -> UOp:
    index = src[0]
    if len(index.src) < 3:
        return mk(Op.LOAD, node.dtype, (index,))
    otherwise = src[1] if len(src) > 1 else UOp.const(node.dtype, 0)
    gate = index.src[2]
    if gate.op is not Op.CONST:
        return mk(Op.LOAD, node.dtype, (index, otherwise))
    return mk(Op.LOAD, node.dtype, (mk(Op.INDEX, index.dtype, index.src[:2]),)) if gate.arg else otherwise


def _is_guarded_by(load: UOp, condition: UOp) -> bool:
    return load.op is Op.LOAD and len(load.src[0].src) > 2 and load.src[0].src[2] is condition


def order_sums(sink: UOp) -> UOp:
    """Write every element number as a sum from the outermost loop's terms to the innermost's, the constant last.

    Then each partial sum is computed in the loop it belongs to, and neighbouring accesses differ by a constant only,
    which the machine adds for free.
    """
    nest = nest_of(sink)
    new: dict[UOp, UOp] = {}
    for node in nest.order:
        if not node.src:
            continue
        src = tuple([new.get(s, s) for s in node.src])
        if node.op is Op.INDEX:
            form = affine(node.src[1])
            total = ordered_sum(form, nest, new)
            src = (src[0], total, *src[2:])
        if src != node.src:
            new[node] = mk(node.op, node.dtype, src, node.arg)
    return new.get(sink, sink)


def ordered_sum(form: Affine, nest: Nest, new: dict[UOp, UOp]) -> UOp:
    """The affine form as a chain of additions in nesting order."""

    def depth(atom: UOp) -> tuple[tuple[int, bool, int], ...]:
        return tuple(sorted((nest.nesting(r) for r in nest.ranges[atom]), reverse=True))

    total: UOp | None = None
    for atom in sorted(form.terms, key=depth):
        factor = form.terms[atom]
        term = new.get(atom, atom)
        term = term if factor == 1 else term * factor
        total = term if total is None else total + term
    if total is None:
        return UOp.const(dtypes.index, form.constant)
    return total + form.constant if form.constant else total


def narrow_vectors(sink: UOp) -> UOp:
    """Vectors of index type become int32 where their bounds prove that it fits, else int64. Scalars stay addresses."""
    order = toposort((sink,))
    if not any(n.dtype.kind == "x" and n.dtype.count > 1 for n in order):
        return sink
    intervals: dict[UOp, Interval] = {}
    new: dict[UOp, UOp] = {}
    for node in order:
        if node.dtype.kind == "x":
            intervals[node] = _interval(node, intervals)
        if not node.src:
            if node.dtype.kind == "x" and node.dtype.count > 1:
                new[node] = UOp.const(_width([node], intervals).vec(node.dtype.count), node.arg)
            continue
        src = tuple([new.get(s, s) for s in node.src])
        dtype = node.dtype
        lanes = [s for s in node.src if s.dtype.kind == "x" and s.dtype.count > 1]
        if node.dtype.kind == "x" and node.dtype.count > 1:
            dtype = _width([node, *[s for s in node.src if s.dtype.kind == "x"]], intervals)
            src = tuple([_cast(s, dtype) if o.dtype.kind == "x" else s for s, o in zip(src, node.src, strict=True)])
            dtype = dtype.vec(node.dtype.count)
        elif node.op in COMPARE and lanes:
            width = _width(lanes, intervals)
            src = tuple([_cast(s, width) for s in src])
        elif lanes and node.op is Op.EXTRACT:
            new[node] = mk(Op.EXTRACT, src[0].dtype.scalar, src, node.arg).cast(dtypes.index)
            continue
        if src != node.src or dtype is not node.dtype:
            new[node] = mk(node.op, dtype, src, node.arg)
    return new.get(sink, sink)


def _cast(node: UOp, dtype: DType) -> UOp:
    dtype = dtype.vec(node.dtype.count)
    return UOp.const(dtype, node.arg) if node.op is Op.CONST else node.cast(dtype)


def _width(nodes: list[UOp], intervals: dict[UOp, Interval]) -> DType:
    fits = all(_INT32[0] <= intervals[n][0] and intervals[n][1] <= _INT32[1] for n in nodes)
    return dtypes.int32 if fits else dtypes.int64


def _interval(node: UOp, known: dict[UOp, Interval]) -> Interval:
    """Smallest and largest value of an index expression, conservatively."""
    op = node.op
    if op is Op.CONST:
        return int(node.arg), int(node.arg)
    if op is Op.VARIABLE:
        return int(node.arg.low), int(node.arg.high)
    if op is Op.SPECIAL:
        return 0, int(node.arg.size) - 1
    parts = [known[s] for s in node.src if s in known]
    if op is Op.RANGE:
        return 0, max(parts[0][1] - 1, 0)
    if op is Op.CAST and node.src[0].dtype.is_int and node.src[0].dtype.kind != "x":
        return int(node.src[0].dtype.min), int(node.src[0].dtype.max)
    if op in (Op.VECTORIZE, Op.EXTRACT, Op.CAST, Op.WHERE) and parts:
        return min(p[0] for p in parts), max(p[1] for p in parts)
    if len(parts) == 2:
        return _binary_interval(op, parts[0], parts[1])
    return _UNKNOWN


def _binary_interval(op: Op, x: Interval, y: Interval) -> Interval:
    if op is Op.ADD:
        return x[0] + y[0], x[1] + y[1]
    if op is Op.MUL:
        corners = [a * b for a in x for b in y]
        return min(corners), max(corners)
    if op is Op.MAX:
        return max(x[0], y[0]), max(x[1], y[1])
    if op is Op.MIN:
        return min(x[0], y[0]), min(x[1], y[1])
    if op is Op.MOD and y[0] > 0:
        return 0, y[1] - 1
    if op is Op.IDIV and y[0] > 0:
        corners = [a // b for a in x for b in y]
        return min(corners), max(corners)
    return _UNKNOWN
