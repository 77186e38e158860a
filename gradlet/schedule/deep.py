"""Very deep matrix products are cut along the contracted axis, so that parts of the right factor stay in a near cache.

A product that sums over tens of thousands of terms (the gradient of the hidden states below a large vocabulary) walks
its right factor once for every few rows: megabytes for each register tile. In parts, each part's slice of the factors
is read from the second cache, and whatever makes the slice can run in the same block (`regions`). The partial products
are added up in a fixed order. On a GPU products of few results are cut so that all multiprocessors have blocks of them.
"""

from __future__ import annotations

from collections.abc import Callable
from math import prod
from typing import Final

from gradlet.graph.node import UOp, mk, toposort
from gradlet.ops.op import AxesArg, Op, ReduceAxesArg
from gradlet.schedule.affineviews import affine_view
from gradlet.schedule.clean import HAS_REDUCES, REDUCES, find_devices, rebuild
from gradlet.schedule.layout import contracted_last, is_product
from gradlet.schedule.moves import expand_to, reshape, root_of
from gradlet.schedule.unitparts import cut_along, total
from gradlet.target.target import Target

# Sums of fewer terms are one part.
MIN_DEPTH: Final = 8192
# A part of fewer terms does not pay for its partial product.
MIN_PART: Final = 128
# Rows that are worth bringing a slice of the other factor near for.
NEAR_ROWS: Final = 32
# A slice is up to one part in so many of the second cache. Sums are read and written once for at least so many terms.
SLICE_SHARE: Final = 8
LEAST_SLICE: Final = 100
# Terms that are written out.
UNROLLED: Final = 4
# Of a product that stays in the near cache, for each core: they end at about the same time.
CORE_PARTS: Final = 2
# Rows and columns of a workgroup's results on a GPU; parts for each multiprocessor, and terms of one, at least.
LANES_BLOCK: Final = 64
PARTS_PER_CORE: Final = 2
MIN_LANES_PART: Final = 256
# Columns of a strip (`layout`) on machines with the widest vectors.
STRIP: Final = 64


def cut_deep_products(root: UOp, target_of: Callable[[str], Target], default_device: str) -> UOp:
    """The graph with every deep product as partial products and their sum, on devices where regions can use it."""
    if not root.mask & HAS_REDUCES:
        return root
    order = toposort((root,))
    if not any(_is_deep(n) for n in order if n.op in REDUCES):
        return root
    devices = find_devices(order)

    def change(node: UOp, src: tuple[UOp, ...]) -> UOp | None:
        if not _is_deep(node):
            return None
        same = mk(node.op, node.dtype, src, node.arg)
        target = target_of(devices.get(node, default_device))
        if target.warp > 1:
            return _cut_for_lanes(same, target)
        turned = same if is_product(same) else contracted_last(same)
        if target.scratch_bytes == 0 or turned is None or not is_product(turned):
            return None
        made = _cut(turned, target)
        return None if made is None else reshape(made, same.shape)

    return rebuild(root, change, REDUCES, order)


def _is_deep(node: UOp) -> bool:
    if node.arg.op is not Op.ADD or node.src[0].op is not Op.MUL:
        return False
    depth: int = prod(node.src[0].shape[axis] for axis in node.arg.axes)
    return depth >= MIN_DEPTH


def _cut_for_lanes(node: UOp, target: Target) -> UOp | None:
    """A product of floats that has few blocks of results for the lanes of a GPU, in parts for all multiprocessors.

    The gradient of a convolution's weights is one: the sum goes over all pixels of all images.
    """
    product = node.src[0]
    if node.arg.limited or any(side.dtype is not node.dtype or root_of(side).op is Op.CAST for side in product.src):
        return None
    summed = frozenset(node.arg.axes)
    axes = [{axis for place in affine_view(side).places for axis, _ in place.terms} for side in product.src]
    rows, columns = (
        prod(product.shape[axis] for axis in own - axes[1 - which] - summed) for which, own in enumerate(axes)
    )
    if min(rows, columns) < LANES_BLOCK // 2 or not summed & axes[0] & axes[1]:
        return None
    others = prod(node.shape) // (rows * columns)
    wanted = PARTS_PER_CORE * target.cores // (others * -(-rows // LANES_BLOCK) * -(-columns // LANES_BLOCK))
    axis = node.arg.axes[0]
    size, depth = product.shape[axis], prod(product.shape[axis] for axis in summed)
    count = next((n for n in range(min(wanted, size, depth // MIN_LANES_PART), 1, -1) if size % n == 0), 1)
    return total(cut_along(node, product, axis, count).partial) if count > 1 else None


def _cut(node: UOp, target: Target) -> UOp | None:
    product = node.src[0]
    left, right = (factor.src[0] for factor in product.src)
    *outer, columns, depth = product.shape
    parts = _parts(prod(outer), columns, depth, target)
    if parts is None:
        return None
    rank = len(product.shape)
    order = AxesArg((rank - 1, *range(rank - 1), rank))  # the parts first

    def cut(factor: UOp) -> UOp:
        pieces = reshape(factor, (*factor.shape[:-1], parts, depth // parts))
        return mk(Op.PERMUTE, factor.dtype, (pieces,), order)

    full = (parts, *outer, columns, depth // parts)
    both = mk(Op.MUL, product.dtype, (expand_to(cut(left), full), expand_to(cut(right), full)), None)
    partial = mk(Op.REDUCE_AXES, node.dtype, (both,), ReduceAxesArg(Op.ADD, (rank,)))
    return mk(Op.REDUCE_AXES, node.dtype, (partial,), ReduceAxesArg(Op.ADD, (0,)))


def stays_near(rows: int, columns: int, item: int, target: Target) -> bool:
    """Whether the sums of a product wait in the near cache while slices of both factors go by (`optimize/deep`)."""
    size, lanes = rows * columns * item, target.vector_bits // (8 * item)
    return rows >= NEAR_ROWS and columns % lanes == 0 and size <= min(target.l1_bytes, target.l2_bytes // 3)


def slice_depth(depth: int, columns: int, item: int, target: Target) -> int:
    """Terms of such a sum in a slice: as many as are near when the next tile needs them; 0 where they do not divide."""
    most = min(target.l2_bytes // (SLICE_SHARE * columns * item), depth // 2)
    return next((n for n in range(most - most % UNROLLED, LEAST_SLICE - 1, -UNROLLED) if depth % n == 0), 0)


def _parts(rows: int, columns: int, depth: int, target: Target) -> int | None:
    """In how many parts: a part's columns fit a third of the second cache, and the partial products are few bytes.

    Parts of whole strips come first: other kernels cut the same axis in strips, and share a block only then.
    """
    most = target.l2_bytes // 3 // (4 * columns)
    operands = (rows + columns) * depth
    if stays_near(rows, columns, 4, target):
        # As many parts as keep the cores busy: each goes on in slices.
        wanted = range(CORE_PARTS * target.cores, depth // MIN_PART + 1)
        parts = next((n for n in wanted if depth % n == 0 and slice_depth(depth // n, columns, 4, target)), 0)
        if parts and 2 * parts * rows * columns <= operands:
            return parts
    for multiple in (STRIP, 1):
        for parts in range(2, depth // MIN_PART + 1):
            if depth % (parts * multiple) == 0 and depth // parts <= most:
                if 2 * parts * rows * columns <= operands:
                    return parts
                break
    return None
