"""Sums that follow from other sums are not taken again: the gradient of a mean in a norm goes over no pixels.

A norm's gradient subtracts a mean of `g * a + (x - m) * b`, where `a`, `b` and `m` are the same for all that is summed.
That is the sum of `g` times `a`, and what is left of the sum of `x` times `b`; both sums are there, the first one as
the gradient of the shift, the second one as the mean itself. And factors that are the same for all elements are
multiplied with the sum: what the gradients of scale and deviation add up is one sum then.

Sums of large numbers have large errors, and where terms nearly cancel, the sum of their differences has small ones. So
from a sum of `x` only its own mean is subtracted, whose error is as large already, and no two other sums are added.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Final, NamedTuple

from gradlet.base.dtype import dtypes
from gradlet.graph.node import UOp, mk
from gradlet.ops.op import ELEMENTWISE, MOVEMENT, SCALAR_LEAVES, Op, ShrinkArg
from gradlet.schedule.affineviews import affine_view
from gradlet.schedule.moves import reshape

MIN_TERMS: Final = 1 << 10  # that a sum adds up: fewer are added again at once
MOST_PARTS: Final = 8  # of a sum of products
MOST_NODES: Final = 64  # between what is the same for all terms and a mean


class Part(NamedTuple):
    """One term of a sum: what it is times, the same for all elements that are summed, and the rest; None for ones."""

    factors: tuple[UOp, ...]
    term: UOp | None


def use_known_sums(root: UOp, order: Sequence[UOp]) -> UOp:
    """The graph with every sum that other sums make up computed from these, and with common factors outside of sums."""
    sums: dict[tuple[UOp, tuple[int, ...]], UOp] = {}
    long: list[UOp] = []
    for node in order:
        if node.op is Op.REDUCE_AXES and node.arg.op is Op.ADD and not node.arg.limited:
            if node.dtype is dtypes.float32 and prod(node.src[0].shape) >= MIN_TERMS * prod(node.shape):
                sums.setdefault((node.src[0], node.arg.axes), node)
                long.append(node)
    made: dict[UOp, UOp] = {}
    place = {node: number for number, node in enumerate(order)} if long else {}
    for node in long:
        source, axes = node.src[0], node.arg.axes
        if source.op is Op.ADD or source.op is Op.MUL:
            parts = _parts(source, frozenset(axes))
            known = [(p, None if p.term is None else sums.get((p.term, axes))) for p in parts]
            there = all(p.term is None or (s is not None and s is not node) for p, s in known)
            if len(parts) <= MOST_PARTS and there and _is_as_exact(known):
                made[node] = _total(node, known)
            elif source.op is Op.MUL:
                fixed, rest = _factors(source, frozenset(axes))
                if fixed and rest:
                    term = _multiplied(sorted(rest, key=place.__getitem__))
                    made[node] = _total(node, [(Part(fixed, term), mk(node.op, node.dtype, (term,), node.arg))])
    return _with(root, made) if made else root


def _is_as_exact(known: Sequence[tuple[Part, UOp | None]]) -> bool:
    """Whether a sum of sums loses nothing that the sum of the terms has: see above."""
    own = {total for _, total in known if total is not None}
    means = [_sums_in(part.factors) & own for part, total in known if total is None]
    return not own or (all(means) and len(own.difference(*means)) <= 1)


def _sums_in(factors: Sequence[UOp]) -> set[UOp]:
    """The sums that some factors are computed from, element by element."""
    found: set[UOp] = set()
    pending, seen = list(factors), set(factors)
    while pending and len(seen) <= MOST_NODES:
        node = pending.pop()
        if node.op is Op.REDUCE_AXES:
            found.add(node)
        elif node.op in ELEMENTWISE or node.op in MOVEMENT:
            pending += [s for s in node.src if s not in seen]
            seen.update(node.src)
    return found


def _parts(node: UOp, axes: frozenset[int]) -> list[Part]:
    """A value as a sum of products, each with its factors that are the same along some axes."""
    found: list[Part] = []
    pending: list[tuple[UOp, tuple[UOp, ...]]] = [(node, ())]
    while pending and len(found) <= MOST_PARTS:
        value, factors = pending.pop()
        if _is_same_along(value, axes):
            found.append(Part((*factors, value), None))
        elif value.op is Op.ADD:
            pending += [(source, factors) for source in value.src]
        elif value.op is Op.MUL and any(_is_same_along(source, axes) for source in value.src):
            fixed = 0 if _is_same_along(value.src[0], axes) else 1
            pending.append((value.src[1 - fixed], (*factors, value.src[fixed])))
        else:
            found.append(Part(factors, value))
    return found


def _factors(node: UOp, axes: frozenset[int]) -> tuple[tuple[UOp, ...], list[UOp]]:
    """The factors of a product that are the same along some axes, and the others."""
    fixed: list[UOp] = []
    rest: list[UOp] = []
    pending = [node]
    while pending:
        value = pending.pop()
        if _is_same_along(value, axes):
            fixed.append(value)
        elif value.op is Op.MUL and value.shape == node.shape and len(rest) + len(pending) < MOST_PARTS:
            pending += value.src
        else:
            rest.append(value)
    return tuple(fixed), rest


def _multiplied(factors: Sequence[UOp]) -> UOp:
    product = factors[0]
    for factor in factors[1:]:
        product = mk(Op.MUL, product.dtype, (product, factor))
    return product


def _is_same_along(node: UOp, axes: frozenset[int]) -> bool:
    """Whether a value certainly does not change along some axes."""
    if node.op in SCALAR_LEAVES:
        return True
    if node.op not in MOVEMENT:
        return False
    view = affine_view(node)
    return all(place.inside is None and axes.isdisjoint([axis for axis, _ in place.terms]) for place in view.places)


def _total(node: UOp, known: Sequence[tuple[Part, UOp | None]]) -> UOp:
    """The sum from the sums of its parts."""
    shape, axes = node.src[0].shape, node.arg.axes
    count = UOp.const(node.dtype, prod(shape[axis] for axis in axes))
    total: UOp | None = None
    for part, found in known:
        value = count if found is None else found
        for factor in part.factors:
            if factor.op not in SCALAR_LEAVES:
                first = tuple([(0, 1) if axis in axes else (0, n) for axis, n in enumerate(shape)])
                one = mk(Op.SHRINK, factor.dtype, (factor,), ShrinkArg(first))
                factor = reshape(one, node.shape)
            value = mk(Op.MUL, node.dtype, (value, factor) if value.shape == node.shape else (factor, value))
        total = value if total is None else mk(Op.ADD, node.dtype, (total, value))
    assert total is not None
    return total


def _with(root: UOp, made: dict[UOp, UOp]) -> UOp:
    """The graph with nodes replaced, in what replaces them as well: that lies below them."""
    new: dict[UOp, UOp] = {}
    stack = [root]
    while stack:
        node = stack[-1]
        below = (made[node],) if node in made else node.src
        missing = [source for source in below if source not in new]
        if missing:
            stack += missing
            continue
        stack.pop()
        if node in made:
            new[node] = new[made[node]]
        else:
            src = tuple([new[source] for source in node.src])
            new[node] = node if src == node.src else mk(node.op, node.dtype, src, node.arg)
    return new[root]
