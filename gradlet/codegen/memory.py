"""Memory accesses ready for the machine: guards settled, element numbers that hoist, narrow vectors of indices."""

from __future__ import annotations

from typing import Final

from gradlet.base.dtype import DType, dtypes
from gradlet.codegen.loops import Nest, nest_of
from gradlet.graph.bounds import bounds
from gradlet.graph.node import UOp, mk
from gradlet.ops.op import COMPARE, Op
from gradlet.optimize.analysis import Affine, affine, kernel_order, make_after, use_counts

_INT32: Final = (-(2**31), 2**31 - 1)
# Members of an enum are slow to reach through their class.
_INDEX: Final = Op.INDEX
_LOAD: Final = Op.LOAD
_STORE: Final = Op.STORE
_CONST: Final = Op.CONST
_SINK: Final = Op.SINK
_AFTER: Final = Op.AFTER
_WHERE: Final = Op.WHERE
_ADD: Final = Op.ADD
_EXTRACT: Final = Op.EXTRACT


_GUARDED: Final = frozenset({Op.LOAD, Op.STORE, Op.SINK, Op.WHERE})


def settle_guards(sink: UOp) -> UOp:
    """Drop guards that are always true and accesses whose guard is always false; give guarded LOADs their other value.

    A select between a guarded load and something else, on the load's own guard, becomes the load's other value.
    """
    order = kernel_order(sink)
    if not any(n.op is _INDEX and len(n.src) > 2 for n in order):
        return sink
    uses = use_counts(order)
    new: dict[UOp, UOp] = {}
    changed = new.keys()
    for node in order:
        if node.op not in _GUARDED and changed.isdisjoint(node.src):
            continue
        src = tuple([new.get(s, s) for s in node.src])
        if node.op is _LOAD:
            made = _load(node, src)
            if made is not node:
                new[node] = made
        elif node.op is _STORE and len(src[0].src) > 2 and src[0].src[2].op is _CONST:
            index = src[0]
            kept = mk(_STORE, node.dtype, (mk(_INDEX, index.dtype, index.src[:2]), src[1]), node.arg)
            new[node] = kept if index.src[2].arg else mk(_SINK, node.dtype)
        elif node.op is _SINK:
            new[node] = mk(_SINK, node.dtype, tuple([s for s in src if s.op is _STORE]), node.arg)
        elif node.op is _AFTER:
            new[node] = make_after(node.dtype, src)
        elif node.op is _WHERE and src[1].op is _LOAD and uses[node.src[1]] == 1 and _is_guarded_by(src[1], src[0]):
            new[node] = mk(_LOAD, node.dtype, (src[1].src[0], src[2]))
        elif src != node.src:
            new[node] = mk(node.op, node.dtype, src, node.arg)
    return new.get(sink, sink)


def _load(node: UOp, src: tuple[UOp, ...]) -> UOp:
    index = src[0]
    if len(index.src) < 3:
        return mk(_LOAD, node.dtype, (index,))
    otherwise = src[1] if len(src) > 1 else UOp.const(node.dtype, 0)
    gate = index.src[2]
    if gate.op is not _CONST:
        return mk(_LOAD, node.dtype, (index, otherwise))
    return mk(_LOAD, node.dtype, (mk(_INDEX, index.dtype, index.src[:2]),)) if gate.arg else otherwise


def _is_guarded_by(load: UOp, condition: UOp) -> bool:
    return load.op is _LOAD and len(load.src[0].src) > 2 and load.src[0].src[2] is condition


def order_sums(sink: UOp, nest: Nest | None = None) -> UOp:
    """Write every element number as a sum from the outermost loop's terms to the innermost's, the constant last.

    Then each partial sum is computed in the loop it belongs to, and neighbouring accesses differ by a constant only,
    which the machine adds for free.
    """
    nest = nest if nest is not None else nest_of(sink)
    new: dict[UOp, UOp] = {}
    changed = new.keys()
    sums: dict[UOp, UOp] = {}  # what neighbouring accesses share, in order
    for node in nest.order:
        if node.op is _INDEX:
            total = _ordered_element(node.src[1], nest, new, sums)
            src = (new.get(node.src[0], node.src[0]), total, *[new.get(s, s) for s in node.src[2:]])
        elif changed.isdisjoint(node.src):
            continue
        else:
            src = tuple([new.get(s, s) for s in node.src])
        if src != node.src:
            new[node] = mk(node.op, node.dtype, src, node.arg)
    return new.get(sink, sink)


def _ordered_element(element: UOp, nest: Nest, new: dict[UOp, UOp], sums: dict[UOp, UOp]) -> UOp:
    base, constant = element, 0
    if element.op is _ADD and element.src[1].op is _CONST:
        base, constant = element.src[0], int(element.src[1].arg)
    found = sums.get(base)
    if found is None:
        found = ordered_sum(affine(base), nest, new)
        sums[base] = found
    if not constant:
        return found
    if found.op is _CONST or (found.op is _ADD and found.src[1].op is _CONST):
        return ordered_sum(affine(element), nest, new)
    return found + constant


def ordered_sum(form: Affine, nest: Nest, new: dict[UOp, UOp]) -> UOp:
    """The affine form as a chain of additions in nesting order."""

    def depth(atom: UOp) -> tuple[tuple[int, int, int, int], ...]:
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
    order = kernel_order(sink)
    if not any(d.kind == "x" and d.count > 1 for d in {n.dtype for n in order}):
        return sink
    new: dict[UOp, UOp] = {}
    changed = new.keys()
    for node in order:
        if node.dtype.kind == "x" and node.dtype.count > 1:
            new[node] = _narrowed(node, new)
        elif not changed.isdisjoint(node.src):
            new[node] = _user_of_narrowed(node, tuple([new.get(s, s) for s in node.src]))
    return new.get(sink, sink)


def _narrowed(node: UOp, new: dict[UOp, UOp]) -> UOp:
    """A vector of indices in fewer bits."""
    count = node.dtype.count
    if not node.src:
        return UOp.const(_width([node]).vec(count), node.arg)
    dtype = _width([node, *[s for s in node.src if s.dtype.kind == "x"]])
    src = tuple([_cast(new.get(s, s), dtype) if s.dtype.kind == "x" else new.get(s, s) for s in node.src])
    return mk(node.op, dtype.vec(count), src, node.arg)


def _user_of_narrowed(node: UOp, src: tuple[UOp, ...]) -> UOp:
    """What reads narrowed vectors, or something that does."""
    lanes = [s for s in node.src if s.dtype.kind == "x" and s.dtype.count > 1]
    if lanes and node.op in COMPARE:
        width = _width(lanes)
        src = tuple([_cast(s, width) for s in src])
    elif lanes and node.op is _EXTRACT:
        return mk(_EXTRACT, src[0].dtype.scalar, src, node.arg).cast(dtypes.index)
    return mk(node.op, node.dtype, src, node.arg)


def _cast(node: UOp, dtype: DType) -> UOp:
    dtype = dtype.vec(node.dtype.count)
    return UOp.const(dtype, node.arg) if node.op is _CONST else node.cast(dtype)


def _width(nodes: list[UOp]) -> DType:
    intervals = [bounds(n) for n in nodes]
    fits = all(_INT32[0] <= low and high <= _INT32[1] for low, high in intervals)
    return dtypes.int32 if fits else dtypes.int64
