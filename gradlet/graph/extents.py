"""Axes whose size is known only at launch: which axes of a node have one, and graphs in which every reduction says so.

The shape of a node has the largest size of every axis, and so has its memory. Its extents say how much of an axis means
something: None for all of it, else an expression of variables. They begin at LIMIT nodes and follow from the sources.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from gradlet.base.dtype import dtypes
from gradlet.base.errors import ShapeError, SizeLimitError, SizeStepError
from gradlet.graph.bounds import bounds
from gradlet.graph.node import UOp, mk, toposort
from gradlet.ops.op import (
    ELEMENTWISE,
    SCALAR_LEAVES,
    LimitArg,
    Op,
    ReduceAxesArg,
    ShapeArg,
    batch_axes,
    identity_element,
)

Extents = tuple[UOp | None, ...]

HAS_LIMIT: Final = 1 << Op.LIMIT
REMEDY: Final = (
    "fix it with zeros behind it, as in x.pad_to(64), or take all positions and mask them, as in "
    "where(Tensor.arange(64) < n, x, 0)"
)


# sizes
class SizeForm:
    """A size as constant + sum of factor * BIND or VARIABLE."""

    __slots__ = ("constant", "terms")

    def __init__(self, terms: Mapping[UOp, int], constant: int) -> None:
        self.terms = {node: factor for node, factor in terms.items() if factor}
        self.constant = constant

    def node(self) -> UOp:
        """The size as a node; equal sizes are one node."""
        result: UOp | None = None
        for term in sorted(self.terms, key=_size_order):
            factor = self.terms[term]
            scaled = term if factor == 1 else mk(Op.MUL, dtypes.index, (term, UOp.const(dtypes.index, factor)))
            result = scaled if result is None else mk(Op.ADD, dtypes.index, (result, scaled))
        constant = UOp.const(dtypes.index, self.constant)
        if result is None:
            return constant
        return mk(Op.ADD, dtypes.index, (result, constant)) if self.constant else result

    def times(self, factor: int) -> SizeForm:
        """The size times a constant."""
        return SizeForm({node: f * factor for node, f in self.terms.items()}, self.constant * factor)

    def divided(self, divisor: int) -> SizeForm | None:
        """The size divided by a constant; None where that is not certainly whole."""
        if self.constant % divisor or any(f % divisor for f in self.terms.values()):
            return None
        return SizeForm({node: f // divisor for node, f in self.terms.items()}, self.constant // divisor)


def _size_order(node: UOp) -> tuple[str, int, int, int]:
    variable, value = (node.src[0], int(node.src[1].arg)) if node.op is Op.BIND else (node, 0)
    return (variable.arg.name, variable.arg.low, variable.arg.high, value)


def size_form(node: UOp) -> SizeForm | None:
    """A size expression taken apart; None for anything but sums of variables times constants."""
    terms: dict[UOp, int] = {}
    constant = 0
    stack = [(node, 1)]
    while stack:
        part, factor = stack.pop()
        if part.op is Op.CONST:
            constant += factor * int(part.arg)
        elif part.op is Op.ADD:
            stack.extend([(s, factor) for s in part.src])
        elif part.op is Op.MUL and part.src[1].op is Op.CONST:
            stack.append((part.src[0], factor * int(part.src[1].arg)))
        elif part.op is Op.BIND or part.op is Op.VARIABLE:
            terms[part] = terms.get(part, 0) + factor
        else:
            return None
    return SizeForm(terms, constant)


def size_text(size: UOp) -> str:
    """A size for messages: `n`, `n + 1`."""
    form = size_form(size)
    if form is None:
        return "an expression"
    parts = []
    for node in sorted(form.terms, key=_size_order):
        name = (node.src[0] if node.op is Op.BIND else node).arg.name
        parts.append(name if form.terms[node] == 1 else f"{form.terms[node]} * {name}")
    return " + ".join([*parts, str(form.constant)] if form.constant else parts)


# inference
def extents(node: UOp) -> Extents:
    """The extent of every axis of a node; empty when no axis has one.

    Raises:
        ShapeError: an op that does not go along an axis whose size is known only at launch; names the op and a remedy.
    """
    if not node.mask & HAS_LIMIT:
        return ()
    found: Extents | None = getattr(node, "_extents", None)
    if found is not None:
        return found
    stack = [node]
    while stack:
        top = stack[-1]
        waiting = [s for s in top.src if s.mask & HAS_LIMIT and not hasattr(s, "_extents")]
        if waiting:
            stack.extend(waiting)
            continue
        rule = _RULES.get(top.op, _elementwise if top.op in ELEMENTWISE else _refuse)
        result: Extents = rule(top)
        top._extents = result if any(e is not None for e in result) else ()
        stack.pop()
    return node._extents


def _of(node: UOp) -> Extents:
    """The known extents of a source, an entry an axis."""
    found: Extents = node._extents if node.mask & HAS_LIMIT else ()
    return found or (None,) * len(node.shape)


def refusal(op: Op, axis: int, size: UOp, more: str = "") -> ShapeError:
    """The error of an op that cannot go along a limited axis."""
    return ShapeError(
        f"{op.name.lower()}: axis {axis} has the size {size_text(size)}, which is known only at launch, and this "
        f"operation needs a size that is fixed{more}; {REMEDY}"
    )


def _free(node: UOp, source: Extents, axes: Sequence[int]) -> None:
    """Refuse where one of the axes is limited."""
    for axis in axes:
        size = source[axis]
        if size is not None:
            raise refusal(node.op, axis, size)


def _merge(node: UOp, parts: Sequence[Extents]) -> Extents:
    result = list(parts[0])
    for part in parts[1:]:
        for axis, size in enumerate(part):
            have = result[axis]
            if have is None:
                result[axis] = size
            elif size is not None and size is not have:
                raise ShapeError(
                    f"{node.op.name.lower()}: sizes {size_text(have)} and {size_text(size)} meet on axis {axis}; they "
                    "are different variables, or one variable with two values, and stay different even where they "
                    "happen to agree: give both tensors the same bound variable"
                )
    return tuple(result)


def _elementwise(node: UOp) -> Extents:
    parts = [_of(s) for s in node.src if s.op not in SCALAR_LEAVES and s.shape]
    return _merge(node, parts) if parts else ()


def _limit(node: UOp) -> Extents:
    axis = node.arg.axis
    result = list(_of(node.src[0]))
    if node.arg.filled:
        result[axis] = None
        return tuple(result)
    if result[axis] is not None and result[axis] is not node.src[1]:
        raise refusal(Op.LIMIT, axis, result[axis] or node.src[1], "; a part of such an axis")
    result[axis] = node.src[1]
    return tuple(result)


def _first(node: UOp) -> Extents:
    return _of(node.src[0])


def _reshape(node: UOp) -> Extents:
    source, old, new = _of(node.src[0]), node.src[0].shape, node.shape
    found = reshaped(source, old, new)
    if found is None:
        names = ", ".join([size_text(size) for size in source if size is not None])
        raise ShapeError(
            f"reshape: {old} to {new} joins or cuts an axis whose size ({names}) is known only at launch: of axes that "
            f"become one it must be the first; {REMEDY}"
        )
    return found


def reshaped(source: Extents, old: Sequence[int], new: Sequence[int]) -> Extents | None:
    """Extents after a change of shape, None where there are none.

    A limited axis stays alone, is the outermost of axes that become one, or is cut where its size divides.
    """
    result: list[UOp | None] = [None] * len(new)
    if 0 in old:
        return tuple(result) if all(size is None for size in source) else None
    before = 1
    for axis, size in enumerate(source):
        if size is not None:
            place, form = _place_of(new, before, old[axis]), size_form(size)
            found = None
            if place is not None and form is not None:
                inner = new[place]
                if inner % old[axis] == 0:
                    found = form.times(inner // old[axis])
                elif old[axis] % inner == 0:
                    found = form.divided(old[axis] // inner)
            if place is None or found is None:
                return None
            result[place] = found.node()
        before *= old[axis]
    return tuple(result)


def _place_of(shape: Sequence[int], before: int, size: int) -> int | None:
    """The axis that begins where an axis with `before` elements outside it begins."""
    outside = 1
    for axis, extent in enumerate(shape):
        if outside == before and (extent != 1 or size == 1):
            return axis
        outside *= extent
    return None


def _expand(node: UOp) -> Extents:
    source = _of(node.src[0])
    _free(node, source, [a for a, (have, want) in enumerate(zip(node.src[0].shape, node.shape)) if have != want])
    return source


def _permute(node: UOp) -> Extents:
    source = _of(node.src[0])
    return tuple([source[axis] for axis in node.arg.axes])


def _pad(node: UOp) -> Extents:
    """Zeros before what means something; those behind it lie past the largest size, and mean nothing."""
    result: list[UOp | None] = []
    for size, (before, _) in zip(_of(node.src[0]), node.arg.pads, strict=True):
        form = None if size is None or not before else size_form(size)
        result.append(size if form is None else SizeForm(form.terms, form.constant + before).node())
    return tuple(result)


def _shrink(node: UOp) -> Extents:
    source, shape = list(_of(node.src[0])), node.src[0].shape
    for axis, (low, high) in enumerate(node.arg.bounds):
        size = source[axis]
        if size is not None and (low, high) != (0, shape[axis]):
            least, most = bounds(size)
            form = size_form(size)
            if high <= least:
                source[axis] = None  # positions that exist for every value
            elif low <= least and most <= high and form is not None:
                source[axis] = SizeForm(form.terms, form.constant - low).node()  # all but the first ones
            else:
                raise refusal(node.op, axis, size)
    return tuple(source)


def _flip(node: UOp) -> Extents:
    source = _of(node.src[0])
    _free(node, source, node.arg.axes)
    return source


def _stride(node: UOp) -> Extents:
    source = _of(node.src[0])
    _free(node, source, [axis for axis, step in enumerate(node.arg.steps) if step != 1])
    return source


def _window(node: UOp) -> Extents:
    """So many windows as fit into the positions that mean something: what they see lies before the size."""
    source, arg = _of(node.src[0]), node.arg
    _free(node, source, [arg.window_axis])
    size = source[arg.axis]
    if size is None:
        return source
    reach = arg.dilation * (node.shape[arg.window_axis] - 1) + 1
    form = size_form(size)
    assert form is not None
    if bounds(size)[0] < reach:
        raise SizeLimitError(f"window: one of {reach} elements does not fit axis {arg.axis} of size {size_text(size)}")
    if any(factor % arg.stride for factor in form.terms.values()):
        raise SizeStepError(
            f"window: how many steps of {arg.stride} fit axis {arg.axis} of size {size_text(size)} is no size; of a "
            f"variable times {arg.stride} it is one"
        )
    terms = {term: factor // arg.stride for term, factor in form.terms.items()}
    count = SizeForm(terms, (form.constant - reach) // arg.stride + 1)
    return tuple([count.node() if axis == arg.axis else extent for axis, extent in enumerate(source)])


def _unwindow(node: UOp) -> Extents:
    source = _of(node.src[0])
    _free(node, source, [node.arg.axis, node.arg.window_axis])
    return source


def _reduce(node: UOp) -> Extents:
    return tuple([size for axis, size in enumerate(_of(node.src[0])) if axis not in node.arg.axes])


def _gather(node: UOp) -> Extents:
    table, index = node.src
    batch = len(index.shape) + len(table.shape) - 1 - len(node.shape)
    source, rows = _of(table), _of(index)
    shared = _merge(node, [source[:batch], rows[:batch]]) if batch else ()
    return (*shared, *rows[batch:], *source[batch + 1 :])


def _scatter(node: UOp) -> Extents:
    target, index, values = node.src
    batch = node.arg.batch
    source, rows = _of(target), _of(index)
    shared = _merge(node, [source[:batch], rows[:batch]]) if batch else ()
    result = (*shared, *source[batch:])
    if values.op not in SCALAR_LEAVES:
        parts = _of(values)
        _merge(node, [rows[batch:], parts[batch : len(rows)]])
        return _merge(node, [result, (*parts[:batch], source[batch], *parts[len(rows) :])])
    return result


def _scan(node: UOp) -> Extents:
    # What comes after the size reaches nothing before it.
    axis = node.arg.axis
    parts = [_of(node.src[0])]
    start, *factors = node.src[1:]
    if start.op not in SCALAR_LEAVES:
        row = _of(start)
        parts.append((*row[:axis], None, *row[axis:]))
    parts.extend([_of(f) for f in factors if f.op not in SCALAR_LEAVES])
    return _merge(node, parts)


def _rows(node: UOp) -> Extents:
    source = _of(node.src[0])
    kept = len(node.shape) - 1
    _free(node, source, range(kept, len(source)))
    return (*source[:kept], None)


def _write(node: UOp) -> Extents:
    for source in node.src:
        for axis, size in enumerate(_of(source)):
            if size is not None:
                raise refusal(Op.WRITE, axis, size, ", as all of a box is written")
    return ()


def _refuse(node: UOp) -> Extents:
    for source in node.src:
        for axis, size in enumerate(_of(source)):
            if size is not None:
                raise refusal(node.op, axis, size)
    return ()


_RULES: Final[dict[Op, Callable[[Any], Extents]]] = {
    Op.LIMIT: _limit, Op.RESHAPE: _reshape, Op.EXPAND: _expand, Op.PERMUTE: _permute, Op.PAD: _pad,
    Op.SHRINK: _shrink, Op.FLIP: _flip, Op.STRIDE: _stride, Op.WINDOW: _window, Op.UNWINDOW: _unwindow,
    Op.REDUCE_AXES: _reduce, Op.GATHER: _gather, Op.SCATTER: _scatter, Op.SCAN: _scan, Op.MERGE: _rows,
    Op.LARGEST: _rows, Op.WRITE: _write, Op.CONTIGUOUS: _first, Op.COPY: _first, Op.DETACH: _first,
    Op.DERIVATIVE: _first,
}  # fmt: skip


# building
def limit(node: UOp, sizes: Extents) -> UOp:
    """The node with these extents where it does not have them yet."""
    if not any(size is not None for size in sizes):
        return node
    have = extents(node)
    for axis, size in enumerate(sizes):
        if size is not None and (not have or have[axis] is None):
            node = mk(Op.LIMIT, node.dtype, (node, size), LimitArg(axis))
    extents(node)
    return node


def fill(node: UOp, keep: Extents) -> UOp:
    """The node with zeros past its sizes, except along axes that are to keep theirs."""
    for axis, size in enumerate(extents(node)):
        if size is not None and (not keep or keep[axis] is None):
            node = mk(Op.LIMIT, node.dtype, (node, size), LimitArg(axis, True))
    return node


def alike(nodes: Sequence[UOp]) -> Sequence[UOp]:
    """Terms of a sum: where their extents differ, those that end earlier have zeros from there on."""
    if not any(node.mask & HAS_LIMIT for node in nodes):
        return nodes
    found = [extents(node) or (None,) * len(node.shape) for node in nodes]
    common = tuple([sizes[0] if all(s is sizes[0] for s in sizes) else None for sizes in zip(*found, strict=True)])
    return [fill(node, common) for node in nodes]


def largest(size: UOp) -> int:
    """The largest value of a size."""
    return int(bounds(size)[1])


def _fill(node: UOp, source: UOp) -> UOp:
    """A LIMIT as what it does to values: nothing, or a select."""
    if not node.arg.filled:
        return source
    inside = _before(node.shape, node.arg.axis, node.src[1])
    return mk(Op.WHERE, node.dtype, (inside, source, UOp.const(node.dtype, 0)))


def _before(shape: tuple[int, ...], axis: int, size: UOp) -> UOp:
    """True at the positions before a size."""
    true = mk(Op.RESHAPE, dtypes.bool, (UOp.const(dtypes.bool, True),), ShapeArg((1,) * len(shape)))
    mask = mk(Op.EXPAND, dtypes.bool, (true,), ShapeArg(shape))
    return mk(Op.LIMIT, dtypes.bool, (mask, size), LimitArg(axis, True))


def masked(reduce: UOp) -> UOp:
    """A reduction of which some axes are limited as one over all positions, with neutral elements past the sizes."""
    source = reduce.src[0]
    neutral = UOp.const(reduce.dtype, identity_element(reduce.arg.op, reduce.dtype))
    for axis, size in zip(reduce.arg.limited, reduce.src[1:], strict=True):
        source = mk(Op.WHERE, source.dtype, (_before(source.shape, axis, size), source, neutral))
    return mk(Op.REDUCE_AXES, reduce.dtype, (source,), ReduceAxesArg(reduce.arg.op, reduce.arg.axes))


def _skip_past(index: UOp, axis: int, size: UOp) -> UOp:
    """Row numbers, those that lie past the size outside every table."""
    wide = index.cast(dtypes.int64)
    return mk(Op.WHERE, wide.dtype, (_before(index.shape, axis, size), wide, UOp.const(wide.dtype, -1)))


def _skip_from(index: UOp, size: UOp) -> UOp:
    """Row numbers, those of rows from the size on outside every table."""
    wide = index.cast(dtypes.int64)
    count = mk(Op.RESHAPE, dtypes.int64, (size.cast(dtypes.int64),), ShapeArg((1,) * len(index.shape)))
    count = mk(Op.EXPAND, dtypes.int64, (count,), ShapeArg(index.shape))
    inside = mk(Op.CMPLT, dtypes.bool, (wide, count))
    return mk(Op.WHERE, wide.dtype, (inside, wide, UOp.const(wide.dtype, -1)))


def write_out(roots: Sequence[UOp]) -> tuple[list[UOp], list[Extents]]:
    """Graphs in which LIMIT is left in masks only, and every reduction over a limited axis says how far it goes.

    Also the extents of the roots.

    Whatever else happens along a limited axis happens at each position for itself, so that it may run past the size.
    """
    if not any(root.mask & HAS_LIMIT for root in roots):
        return list(roots), [() for _ in roots]
    found = [extents(root) for root in roots]
    new: dict[UOp, UOp] = {}
    for node in toposort(roots):
        if not node.mask & HAS_LIMIT:
            continue
        if node.op is Op.LIMIT:
            new[node] = _fill(node, new.get(node.src[0], node.src[0]))
            continue
        src = tuple([new.get(s, s) for s in node.src])
        arg = node.arg
        if node.op is Op.REDUCE_AXES and not arg.limited:
            source = extents(node.src[0])
            limited = tuple([a for a in arg.axes if source and source[a] is not None])
            if limited:
                arg = ReduceAxesArg(arg.op, arg.axes, limited)
                src = (*src, *[size for a in limited if (size := source[a]) is not None])
        elif node.op is Op.GATHER:
            size = (extents(node.src[0]) or (None,) * len(node.src[0].shape))[batch_axes(arg)]
            src = (src[0], src[1] if size is None else _skip_from(src[1], size))
        elif node.op is Op.SCATTER:
            for axis, size in enumerate(extents(node.src[1])):
                if size is not None and axis >= arg.batch:
                    src = (src[0], _skip_past(src[1], axis, size), src[2])
        new[node] = mk(node.op, node.dtype, src, arg)
    return [new.get(r, r) for r in roots], found
