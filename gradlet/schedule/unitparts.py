"""Long sums of products on matrix units that give few blocks are cut in parts, so that all multiprocessors have one.

The gradient of a weight is 768 x 768 results, each a sum over all tokens: 16 blocks of 192 x 192 for a GPU with 132
multiprocessors. Parts of the sum are products of their own; the sum of their results is left to whoever reads it.
`target/unitblocks` says in how many parts, where they pay.
"""

from __future__ import annotations

from math import prod
from typing import NamedTuple

from gradlet.graph.node import UOp, mk
from gradlet.ops.op import AxesArg, Op, ReduceAxesArg
from gradlet.schedule.affineviews import affine_view
from gradlet.schedule.moves import reshape
from gradlet.schedule.rowpitch import axis_steps, narrow_of
from gradlet.target.target import Target
from gradlet.target.unitblocks import Sizes, parts


class Parts(NamedTuple):
    """A sum of products in parts: the products with the parts as first axis, and the sum in each of them."""

    product: UOp
    partial: UOp


def in_parts(node: UOp, product: UOp, target: Target) -> Parts | None:
    """The sum of a product of two factors as a sum in each part; None where parts do not pay.

    Args:
        node: the sum.
        product: what it adds up.
        target: the machine, with matrix units.
    """
    axes = node.arg.axes
    sizes = None if node.arg.limited else _sizes(product, frozenset(axes))
    if sizes is None:
        return None
    axis = axes[0]
    count = parts(target, sizes, product.shape[axis])
    return cut_along(node, product, axis, count) if count > 1 else None


def cut_along(node: UOp, product: UOp, axis: int, count: int) -> Parts:
    """The sum of a product as a sum in each of so many parts of an axis, which they divide."""
    axes, length = node.arg.axes, product.shape[axis]
    rank = len(product.shape) + 1
    shape = (*product.shape[:axis], count, length // count, *product.shape[axis + 1 :])
    order = AxesArg((axis, *[a for a in range(rank) if a != axis]))
    sides = [_cut(side, shape, order) for side in product.src]
    cut = mk(Op.MUL, product.dtype, tuple(sides))
    inner = tuple([a + 1 for a in axes])
    return Parts(cut, mk(Op.REDUCE_AXES, node.dtype, (cut,), ReduceAxesArg(Op.ADD, inner)))


def total(partial: UOp) -> UOp:
    """The sum of all parts."""
    return mk(Op.REDUCE_AXES, partial.dtype, (partial,), ReduceAxesArg(Op.ADD, (0,)))


def _cut(side: UOp, shape: tuple[int, ...], order: AxesArg) -> UOp:
    """A factor under its conversion with an axis of parts in front."""
    narrow = reshape(narrow_of(side), shape)
    turned = mk(Op.PERMUTE, narrow.dtype, (narrow,), order)
    return mk(Op.CAST, side.dtype, (turned,)) if side.op is Op.CAST else turned


def _overlap(steps: dict[int, int], shape: tuple[int, ...]) -> bool:
    """Whether an element is shown at several places, as under the taps of a window."""
    order = sorted(steps, key=steps.__getitem__)
    return any(steps[a] * shape[a] > steps[b] for a, b in zip(order, order[1:], strict=False))


def _sizes(product: UOp, summed: frozenset[int]) -> Sizes | None:
    """Rows, columns and so on of a product; None where it is none of two arrays as they lie."""
    shape = product.shape
    found = [axis_steps(affine_view(narrow_of(side))) for side in product.src]
    steps = [each for each in found if each is not None and not _overlap(each, shape)]
    if len(steps) != 2:
        return None
    first, second = (set(each) for each in steps)

    def size(axes: set[int]) -> int:
        return prod(shape[axis] for axis in axes)

    if any(shape[axis] > 1 and axis not in first & second for axis in summed):
        return None
    rows, columns = size(first - second), size(second - first)
    across = tuple([all(axis not in summed for axis, step in each.items() if step == 1) for each in steps])
    if rows < columns:  # the optimiser has the long side as rows where the other one is short
        rows, columns, across = columns, rows, across[::-1]
    return Sizes(
        rows, columns, size(set(summed)), size((first & second) - summed), narrow_of(product.src[0]).dtype.itemsize,
        (across[0], across[1]),
    )  # fmt: skip
