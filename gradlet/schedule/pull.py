"""Sums of windows of sums become one sum: the gradient of a convolution is a convolution, not scattered products.

`sum over taps of UNWINDOW(sum over channels of g * w)` would store a product for every tap. Adding and placing zeros
commute, so the inner sum may be taken last: `sum over taps and channels of UNWINDOW(g) * w`, which is a convolution of
its own, with the weights the other way around. Only for stride 1: with a larger stride most of its terms are zeros. And
not where it sums so many zeros around the image, or for so few channels, that storing the products is cheaper.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Final

from gradlet.graph.node import UOp, mk, toposort
from gradlet.ops.op import AxesArg, Op, ReduceAxesArg, ShrinkArg, WindowArg
from gradlet.schedule.affineviews import affine_view
from gradlet.schedule.clean import rebuild
from gradlet.schedule.moves import expand_to, reshape

# Storing and adding up a product costs as much as so many multiply-adds of a core.
STORED_PRODUCT: Final = 32
# Fewer channels of the result do not fill a register tile.
FULL_ROWS: Final = 4

_HAS_UNWINDOW: Final = 1 << Op.UNWINDOW
_ASKED: Final = frozenset({Op.SHRINK, Op.REDUCE_AXES})
_CHAIN = (Op.RESHAPE, Op.PERMUTE, Op.UNWINDOW)


def pull_sums(root: UOp) -> UOp:
    """The graph with every such pair of sums as one."""
    if not root.mask & _HAS_UNWINDOW:
        return root
    order = toposort((root,))
    users: dict[UOp, int] = {}
    cropped: dict[UOp, UOp] = {}
    for node in order:
        for source in node.src:
            users[source] = users.get(source, 0) + 1
        if node.op is Op.SHRINK:
            cropped[node.src[0]] = node

    def change(node: UOp, src: tuple[UOp, ...]) -> UOp | None:
        if node.op is Op.SHRINK:
            return _shrunk(node, src[0]) if users[node.src[0]] == 1 else None
        if node.arg.op is not Op.ADD or src[0].op not in _CHAIN:
            return None
        kept = cropped[node].shape if users.get(node) == 1 and node in cropped else node.shape
        return None if node.arg.limited else _pulled(mk(node.op, node.dtype, src, node.arg), prod(kept))

    return rebuild(root, change, _ASKED, order)


def _shrunk(node: UOp, source: UOp) -> UOp | None:
    """Only the sums that are kept are computed."""
    if source.op is not Op.REDUCE_AXES or source.arg.limited:
        return None
    bounds = list(node.arg.bounds)
    for axis in source.arg.axes:
        bounds.insert(axis, (0, source.src[0].shape[axis]))
    terms = source.src[0]
    if terms.op is Op.MUL:
        # Product and sum keep the same loops, so that it is still seen as a convolution.
        box = mk(Op.MUL, terms.dtype, tuple([_box(factor, bounds) for factor in terms.src]), None)
    else:
        box = _box(terms, bounds)
    return mk(Op.REDUCE_AXES, node.dtype, (box,), source.arg)


def _box(node: UOp, bounds: Sequence[tuple[int, int]]) -> UOp:
    """A box of a node; of a repeated one the box of what it repeats."""
    if not node.shape:
        return node
    repeated = node.op is Op.EXPAND
    source = node.src[0] if repeated else node
    own = tuple([(0, 1) if size == 1 else bound for size, bound in zip(source.shape, bounds, strict=True)])
    if any(bound != (0, size) for bound, size in zip(own, source.shape, strict=True)):
        source = mk(Op.SHRINK, source.dtype, (source,), ShrinkArg(own))
    return expand_to(source, tuple([high - low for low, high in bounds])) if repeated else source


def _pulled(outer: UOp, kept: int) -> UOp | None:
    """One sum for both; `kept` elements of it are needed."""
    chain: list[UOp] = []
    node = outer.src[0]
    while node.op in _CHAIN:
        chain.append(node)
        node = node.src[0]
    windows = [n for n in chain if n.op is Op.UNWINDOW]
    if not windows or any(n.arg.stride != 1 for n in windows):
        return None
    if node.op is not Op.REDUCE_AXES or node.arg.op is not Op.ADD or node.src[0].op is not Op.MUL or node.arg.limited:
        return None
    if any(n.op is Op.RESHAPE and _without_ones(n.shape) != _without_ones(n.src[0].shape) for n in chain):
        return None
    product = node.src[0]
    if _cheaper_stored(outer, node, kept):
        return None
    summed = node.arg.axes
    order = (*summed, *[a for a in range(len(product.shape)) if a not in summed])
    factors = [_moved(factor, chain[::-1], order, len(summed)) for factor in product.src]
    if any(factor is None for factor in factors):
        return None
    lead = tuple([product.shape[a] for a in summed])
    full = (*lead, *outer.src[0].shape)
    both = mk(Op.MUL, product.dtype, tuple([expand_to(f, full) for f in factors if f is not None]), None)
    axes = (*range(len(lead)), *[a + len(lead) for a in outer.arg.axes])
    return mk(Op.REDUCE_AXES, outer.dtype, (both,), ReduceAxesArg(Op.ADD, axes))


def _cheaper_stored(outer: UOp, inner: UOp, kept: int) -> bool:
    """Whether the products of all taps, stored, cost less than one sum in which many terms are zeros."""
    view = affine_view(outer.src[0])
    if view.base is not inner:
        return False
    product, summed = inner.src[0], inner.arg.axes
    axes = [axis for axis in range(len(product.shape)) if axis not in summed]
    taps = [axis for axis, place in zip(axes, view.places, strict=True)
            if place.terms and all(term in outer.arg.axes for term, _ in place.terms)]  # fmt: skip
    sizes = [(f.src[0] if f.op is Op.EXPAND else f).shape for f in product.src]
    weights = next((s for s in sizes if all(s[axis] > 1 for axis in taps)), None)
    if weights is None or not taps:
        return False
    other = sizes[1 - sizes.index(weights)]
    channels = prod(weights[axis] for axis in axes if axis not in taps and other[axis] == 1)
    terms, count = prod(product.shape[axis] for axis in summed), prod(product.shape[axis] for axis in taps)
    one_sum: int = kept * count * terms * max(1, FULL_ROWS // channels)
    stored: int = prod(inner.shape) * (terms + STORED_PRODUCT)
    return stored < one_sum


def _without_ones(shape: Sequence[int]) -> tuple[int, ...]:
    return tuple([size for size in shape if size != 1])


def _moved(factor: UOp, chain: Sequence[UOp], order: Sequence[int], lead: int) -> UOp | None:
    """A factor with the summed axes in front and the chain over the rest; axes along which it repeats have size 1."""
    if not factor.shape:
        return None
    node = factor.src[0] if factor.op is Op.EXPAND else factor
    node = _permuted(node, tuple(order))
    for step in chain:
        if step.op is Op.PERMUTE:
            node = _permuted(node, (*range(lead), *[a + lead for a in step.arg.axes]))
        elif step.op is Op.RESHAPE:
            node = _reshaped(node, step, lead)
        elif node.shape[step.arg.axis + lead] != 1 or step.src[0].shape[step.arg.axis] == 1:
            axis, window_axis, stride, dilation, size = step.arg
            taps = step.src[0].shape[window_axis]
            wide = (*node.shape[: window_axis + lead], taps, *node.shape[window_axis + lead + 1 :])
            arg = WindowArg(axis + lead, window_axis + lead, stride, dilation, size)
            node = mk(Op.UNWINDOW, node.dtype, (expand_to(node, wide),), arg)
    return node


def _permuted(node: UOp, axes: tuple[int, ...]) -> UOp:
    return node if axes == tuple(range(len(axes))) else mk(Op.PERMUTE, node.dtype, (node,), AxesArg(axes))


def _reshaped(node: UOp, step: UOp, lead: int) -> UOp:
    """Axes of size 1 come and go; the others stay, those along which the factor repeats too."""
    kept = [size for size, full in zip(node.shape[lead:], step.src[0].shape, strict=True) if full != 1]
    shape = [*node.shape[:lead]]
    for full in step.shape:
        shape.append(1 if full == 1 else kept.pop(0))
    assert prod(shape) == prod(node.shape)
    return reshape(node, tuple(shape))
