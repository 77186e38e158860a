"""How far loops over sizes known only at launch have to run: which elements of every step somebody needs.

Reductions say how much of an axis they take, and the caller knows the sizes of his results. From there it goes down to
the sources: a step of which only the first positions are needed is computed and stored that far. What is not certain is
needed in full, so that this decides how long loops run and never what is read.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence

from gradlet.graph.bounds import bounds
from gradlet.graph.extents import Extents, SizeForm, reshaped, size_form
from gradlet.graph.node import UOp
from gradlet.ops.op import ELEMENTWISE, SCALAR_LEAVES, Op

_SAME = ELEMENTWISE | {Op.CONTIGUOUS, Op.DETACH}
_SIZED = frozenset({Op.REDUCE_AXES, Op.LIMIT})


def values_only(nodes: Sequence[UOp], wanted: Collection[UOp]) -> Sequence[UOp]:
    """The nodes of a graph, sources first, without those that only sizes are made of."""
    if not any(n.op in _SIZED and len(n.src) > 1 for n in nodes):
        return nodes
    needed = set(wanted)
    for node in reversed(nodes):
        if node in needed:
            needed.update(node.src[:1] if node.op in _SIZED else node.src)
    return [n for n in nodes if n in needed]


def needed_sizes(
    nodes: Sequence[UOp], wanted: Iterable[tuple[UOp, Extents]], whole: Collection[UOp]
) -> dict[UOp, Extents]:
    """For the nodes of which some axis is needed only so far, how far.

    Args:
        nodes: all nodes, sources first.
        wanted: the results, each with its extents (none: all of it).
        whole: nodes that are needed in full, whoever uses them.
    """
    found: dict[UOp, Extents] = {}

    def need(node: UOp, sizes: Extents) -> None:
        if node.op in SCALAR_LEAVES:
            return
        before = found.get(node)
        if before is not None:
            sizes = tuple([a if a is b else None for a, b in zip(before, sizes, strict=True)])
        found[node] = sizes

    for node, sizes in wanted:
        need(node, sizes or _full(node))
    for node in reversed(nodes):
        sizes = found.get(node, _full(node))
        if node in whole:
            sizes = found[node] = _full(node)
        for source, part in zip(node.src, _of_sources(node, sizes), strict=False):
            need(source, part)
    return {node: sizes for node, sizes in found.items() if any(size is not None for size in sizes)}


def _full(node: UOp) -> Extents:
    return (None,) * len(node.shape)


def _of_sources(node: UOp, sizes: Extents) -> list[Extents]:
    """What is needed of every source of a node of which so much is needed."""
    op = node.op
    if op is Op.WHERE and node.src[0].op is Op.LIMIT:
        # A mask: what it hides is not needed.
        mask, axis = node.src[0], node.src[0].arg.axis
        shown = tuple([_less(size, mask.src[1]) if a == axis else size for a, size in enumerate(sizes)])
        return [sizes, *[part if s.shape else () for s, part in zip(node.src[1:], (shown, sizes), strict=True)]]
    if op in _SAME:
        return [sizes if s.shape else () for s in node.src]
    if op not in (Op.RESHAPE, Op.EXPAND, Op.PERMUTE, Op.PAD, Op.SHRINK, Op.WINDOW, Op.STRIDE, Op.REDUCE_AXES):
        return [_full(s) for s in node.src]
    source = node.src[0]
    if source.op in SCALAR_LEAVES:
        return [()]
    if op is Op.RESHAPE:
        return [_reshaped(sizes, node.shape, source.shape)]
    if op is Op.EXPAND:
        return [tuple([e if have == want else None for e, have, want in zip(sizes, source.shape, node.shape)])]
    if op is Op.PERMUTE:
        back = dict(zip(node.arg.axes, sizes, strict=True))
        return [tuple([back[axis] for axis in range(len(sizes))])]
    if op is Op.PAD:
        rows = zip(sizes, node.arg.pads, source.shape, strict=True)
        return [tuple([size if pads == (0, 0) else _moved(size, 1, -pads[0], whole) for size, pads, whole in rows])]
    if op is Op.WINDOW:
        arg = node.arg
        reach = arg.dilation * (node.shape[arg.window_axis] - 1) + 1
        seen = _moved(sizes[arg.axis], arg.stride, reach - arg.stride, source.shape[arg.axis])
        places = {arg.axis: seen, arg.window_axis: None}
        return [tuple([places.get(axis, size) for axis, size in enumerate(sizes)])]
    if op is Op.STRIDE:
        rows = zip(sizes, node.arg.steps, source.shape, strict=True)
        return [tuple([size if step == 1 else _moved(size, step, 1 - step, whole) for size, step, whole in rows])]
    if op is Op.SHRINK:
        boxes = zip(sizes, node.arg.bounds, source.shape, strict=True)
        return [tuple([size if box == (0, whole) else _moved(size, 1, box[0], whole) for size, box, whole in boxes])]
    limits = dict(zip(node.arg.limited, node.src[1:], strict=True))
    kept = iter(sizes)
    return [tuple([limits.get(a) if a in node.arg.axes else next(kept) for a in range(len(source.shape))])]


def _moved(size: UOp | None, factor: int, constant: int, whole: int) -> UOp | None:
    """So many positions for `size` of them: times a factor, plus a constant; all where that may be more, or none."""
    form = None if size is None else size_form(size)
    if form is None:
        return None
    moved = form.times(factor)
    found = SizeForm(moved.terms, moved.constant + constant).node()
    low, high = bounds(found)
    return found if 0 <= low and high <= whole else None


def _less(size: UOp | None, other: UOp) -> UOp | None:
    """The smaller one of two sizes, `size` where that depends on their values."""
    if size is None or size is other:
        return other
    form, more = size_form(size), size_form(other)
    if form is None or more is None:
        return size
    terms = dict(form.terms)
    for term, factor in more.terms.items():
        terms[term] = terms.get(term, 0) - factor
    return other if bounds(SizeForm(terms, form.constant - more.constant).node())[0] >= 0 else size


def _reshaped(sizes: Extents, old: Sequence[int], new: Sequence[int]) -> Extents:
    """What is needed before a change of shape; axes that cannot say it are needed in full."""
    found = reshaped(sizes, old, new)
    if found is not None:
        return found
    result: list[UOp | None] = [None] * len(new)
    for axis, size in enumerate(sizes):
        if size is not None:
            alone = reshaped(tuple([size if a == axis else None for a in range(len(sizes))]), old, new)
            result = [a if b is None else b for a, b in zip(result, alone or result, strict=True)]
    return tuple(result)
