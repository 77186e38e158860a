"""Operands of large matrix products are copied into the order in which the product's loops walk them.

A register tile reads a few rows of the left factor along the contracted axis, and a strip of columns of the right one.
In a wide matrix the rows of such a strip lie far apart: power-of-two distances fall into the same few sets of the
cache, and every row is another page. A copy whose strips are contiguous costs a few percent of the product and removes
both. Where the right factor is memory, the product's own kernel copies it block by block instead.
(Goto and van de Geijn, Anatomy of High-Performance Matrix Multiplication, 2008.)
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod

from gradlet.base.dtype import dtypes
from gradlet.graph.extents import size_form
from gradlet.graph.node import UOp, mk, toposort
from gradlet.ops.op import MOVEMENT, AxesArg, Op, PadArg, ReduceAxesArg, ShapeArg, ShrinkArg
from gradlet.schedule.clean import HAS_REDUCES, REDUCES, find_devices, rebuild
from gradlet.schedule.moves import reshape
from gradlet.target.panels import MIN_DEPTH, MIN_ROWS, MIN_VECTORS, room
from gradlet.target.target import Target


def lay_out_operands(root: UOp, target_of: Callable[[str], Target], default_device: str) -> UOp:
    """The graph with the factors of large matrix products copied where their order in memory is a bad one."""
    if not root.mask & HAS_REDUCES:
        return root
    order = toposort((root,))
    if not any(n.src[0].op in (Op.MUL, Op.ADD) for n in order if n.op in REDUCES):
        return root
    devices = find_devices(order)
    chained = _chained(order)

    def change(node: UOp, src: tuple[UOp, ...]) -> UOp | None:
        if src[0].op not in (Op.MUL, Op.ADD):
            return None
        target = target_of(devices.get(node, default_device))
        if target.kind != "cpu":
            return None
        same = mk(node.op, node.dtype, src, node.arg)
        if is_product(same):
            return _lay_out(same, target, node in chained)
        turned = contracted_last(same)
        if turned is None:
            return same
        laid = _lay_out(turned, target, node in chained)
        return same if laid is turned else reshape(laid, same.shape)

    return rebuild(root, change, REDUCES, order)


def _chained(order: Sequence[UOp]) -> set[UOp]:
    """The reductions that take the value of another one, or give theirs to another.

    Such run block by block along rows where that saves memory traffic: then copies are made once, for all blocks.
    """
    found: set[UOp] = set()
    below: set[UOp] = set()  # what a reduction is computed from
    for node in reversed(order):
        if node.op in REDUCES:
            if node in below or any(source.mask & HAS_REDUCES for source in node.src):
                found.add(node)
            below.update(node.src)
        elif node in below:
            below.update(node.src)
    return found


def contracted_last(node: UOp) -> UOp | None:
    """A sum of products over other axes as one over the last axis: the gradient of a weight sums over rows."""
    product, axes = node.src[0], node.arg.axes
    if node.arg.op is not Op.ADD or product.op is not Op.MUL or node.arg.limited not in ((), axes[:1]):
        return None
    if product.src[0].op is not Op.EXPAND or product.src[1].op is not Op.EXPAND:
        return None
    shape = product.shape
    outputs = [axis for axis in range(len(shape)) if axis not in axes and shape[axis] != 1]
    if len(outputs) < 2:
        return None
    column = outputs[-1]
    one, other = product.src[0].src[0], product.src[1].src[0]
    left, right = (one, other) if one.shape[column] == 1 else (other, one)
    if left.shape[column] != 1 or any(left.shape[a] != shape[a] or right.shape[a] != shape[a] for a in axes):
        return None
    if right.shape[column] != shape[column] or any(right.shape[a] != 1 for a in outputs[:-1]):
        return None
    ones = [axis for axis in range(len(shape)) if axis not in axes and shape[axis] == 1]
    order = AxesArg((*ones, *outputs, *axes))
    depth = prod(shape[a] for a in axes)

    def turn(factor: UOp) -> UOp:
        moved = mk(Op.PERMUTE, factor.dtype, (factor,), order)
        return reshape(moved, (*[factor.shape[a] for a in outputs], depth))

    full = ShapeArg((*[shape[a] for a in outputs], depth))
    factors = tuple([mk(Op.EXPAND, f.dtype, (turn(f),), full) for f in (left, right)])
    both = mk(Op.MUL, product.dtype, factors, None)
    last = (len(outputs),)
    if not node.arg.limited:
        return mk(node.op, node.dtype, (both,), ReduceAxesArg(Op.ADD, last))
    form = size_form(node.src[1])
    if form is None:
        return None
    size = form.times(depth // shape[axes[0]]).node()
    return mk(node.op, node.dtype, (both, size), ReduceAxesArg(Op.ADD, last, last))


def _products(node: UOp) -> list[UOp]:
    """The products that a REDUCE_AXES adds up: its operand, or the terms of a sum."""
    pending, found = [node.src[0]], []
    while pending:
        value = pending.pop()
        if value.op is Op.ADD and value.shape == node.src[0].shape:
            pending.extend((value.src[1], value.src[0]))
        else:
            found.append(value)
    return found


def is_product(node: UOp) -> bool:
    """Whether it sums `left[.., m, 1, k] * right[1, n, k]`, or several such products, over the last axis, in floats."""
    rank = len(node.src[0].shape)
    if node.arg.op is not Op.ADD or node.arg.axes != (rank - 1,) or rank < 3:
        return False
    return all(_is_factored(product) for product in _products(node))


def _is_factored(product: UOp) -> bool:
    if product.op is not Op.MUL or product.dtype not in (dtypes.float32, dtypes.float64):
        return False
    left, right = product.src
    rank = len(product.shape)
    return (
        left.op is Op.EXPAND
        and right.op is Op.EXPAND
        and left.src[0].shape == (*product.shape[:-2], 1, product.shape[-1])
        and right.src[0].shape == (*[1] * (rank - 2), *product.shape[-2:])
    )


def _lay_out(node: UOp, target: Target, chained: bool) -> UOp:
    products = _products(node)
    if not is_product(node):
        return node
    alone = len(products) == 1 and not node.arg.limited and not chained
    laid = [_lay_out_factors(product, target, alone) for product in products]
    if laid == products:
        return node
    total = laid[0]
    for product in laid[1:]:
        total = mk(Op.ADD, total.dtype, (total, product), None)
    return mk(node.op, node.dtype, (total, *node.src[1:]), node.arg)


def _lay_out_factors(product: UOp, target: Target, alone: bool) -> UOp:
    left, right = (operand.src[0] for operand in product.src)
    *outer, columns, depth = product.shape
    strip, item = strip_columns(product, target), product.dtype.itemsize
    too_large = target.l2_bytes // 2
    # Where the contracted axis is the contiguous one, strips also spare gathering lanes.
    worth_it = target.l2_bytes // 8 if _is_row_major(right) else too_large
    if prod(outer) < MIN_ROWS or columns < strip or columns * depth * item <= worth_it:
        return product
    turn_left = prod(outer) * depth * item > too_large and not _is_row_major(left)
    if alone and not turn_left and _is_copied_by_the_product(right, max(outer), strip, target):
        return product
    right = in_strips(right, strip)
    if turn_left:
        left = mk(Op.CONTIGUOUS, left.dtype, (left,), None)
    shape = ShapeArg(product.shape)
    factors = tuple([mk(Op.EXPAND, f.dtype, (f,), shape) for f in (left, right)])
    return mk(Op.MUL, product.dtype, factors, None)


def strip_columns(product: UOp, target: Target) -> int:
    """Columns of a strip: as many vectors as a register tile is wide."""
    return target.lanes(product.dtype) * (4 if target.vector_registers >= 32 else 2)


def _is_copied_by_the_product(right: UOp, rows: int, strip: int, target: Target) -> bool:
    """Whether the right factor is memory that the product's own kernel copies block by block (`optimize/panels`)."""
    columns, depth = right.shape[-2:]
    if rows < MIN_ROWS or depth < MIN_DEPTH or columns < MIN_VECTORS * target.lanes(right.dtype):
        return False
    if not room(target, depth * strip * right.dtype.itemsize):
        return False
    while right.op in (Op.RESHAPE, Op.PERMUTE):
        right = right.src[0]
    return right.op is Op.BUFFER


def in_strips(right: UOp, strip: int) -> UOp:
    """`[1, n, k]` kept in memory as `[n / strip, k, strip]`, the last strip filled up with zeros."""
    shape = right.shape
    columns, depth = shape[-2:]
    missing = -columns % strip
    whole, swap = (columns + missing) // strip, AxesArg((0, 2, 1))
    if missing:
        right = mk(Op.PAD, right.dtype, (reshape(right, (columns, depth)),), PadArg(((0, missing), (0, 0))))
    cut = reshape(right, (whole, strip, depth))
    stored = mk(Op.CONTIGUOUS, cut.dtype, (mk(Op.PERMUTE, cut.dtype, (cut,), swap),), None)
    turned = mk(Op.PERMUTE, cut.dtype, (stored,), swap)
    if missing:
        flat = reshape(turned, (columns + missing, depth))
        turned = mk(Op.SHRINK, flat.dtype, (flat,), ShrinkArg(((0, columns), (0, depth))))
    return reshape(turned, shape)


def _is_row_major(node: UOp) -> bool:
    """Whether a view has its elements in the order of memory: reshapes, and axes of size 1 that move."""
    while node.op in MOVEMENT:
        if node.op is Op.PERMUTE:
            moved = [axis for axis in node.arg.axes if node.src[0].shape[axis] != 1]
            if moved != sorted(moved):
                return False
        elif node.op is not Op.RESHAPE:
            return False
        node = node.src[0]
    return True
