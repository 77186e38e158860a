"""How far loops over sizes known only at launch have to run: which elements of every step somebody needs.

Reductions say how much of an axis they take, and the caller knows the sizes of his results. From there it goes down to
the sources: a step of which only the first positions are needed is computed and stored that far. What is not certain is
needed in full, so that this decides how long loops run and never what is read.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence

from gradlet.graph.extents import Extents, reshaped
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
        shown = tuple([mask.src[1] if a == axis and size is None else size for a, size in enumerate(sizes)])
        return [sizes, *[part if s.shape else () for s, part in zip(node.src[1:], (shown, sizes), strict=True)]]
    if op in _SAME:
        return [sizes if s.shape else () for s in node.src]
    if op not in (Op.RESHAPE, Op.EXPAND, Op.PERMUTE, Op.PAD, Op.SHRINK, Op.REDUCE_AXES):
        return [_full(s) for s in node.src]
    source = node.src[0]
    if source.op in SCALAR_LEAVES:
        return [()]
    if op is Op.RESHAPE:
        return [reshaped(sizes, node.shape, source.shape) or _full(source)]
    if op is Op.EXPAND:
        return [tuple([e if have == want else None for e, have, want in zip(sizes, source.shape, node.shape)])]
    if op is Op.PERMUTE:
        back = dict(zip(node.arg.axes, sizes, strict=True))
        return [tuple([back[axis] for axis in range(len(sizes))])]
    if op is Op.PAD:
        return [tuple([size if pads == (0, 0) else None for size, pads in zip(sizes, node.arg.pads, strict=True)])]
    if op is Op.SHRINK:
        boxes = zip(sizes, node.arg.bounds, source.shape, strict=True)
        return [tuple([size if box == (0, whole) else None for size, box, whole in boxes])]
    limits = dict(zip(node.arg.limited, node.src[1:], strict=True))
    kept = iter(sizes)
    return [tuple([limits.get(a) if a in node.arg.axes else next(kept) for a in range(len(source.shape))])]
