"""The derivative of every op: a row holds one rule a source, from the node and its gradient to the source's gradient.

Conventions are torch's. At ties element-wise MAX and MIN give each side half; reductions share evenly among winners.
A branch that WHERE does not select receives zero. Integers, bools and reinterpreted bits carry no gradient.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Final

from gradlet.base.dtype import accumulator, dtypes
from gradlet.base.errors import GradientError
from gradlet.grad.shapes import (
    Shape,
    device_of,
    expand,
    filled,
    flip_axes,
    pad,
    permute,
    positions,
    reduce_axes,
    reshape,
    restore_axes,
    shrink,
    spread,
    window,
)
from gradlet.graph.extents import extents, fill
from gradlet.graph.node import UOp, mk
from gradlet.ops.op import (
    DerivativeArg,
    DeviceArg,
    GatherArg,
    LimitArg,
    Op,
    ReduceAxesArg,
    ScanArg,
    ScatterArg,
    batch_axes,
)

Rule = Callable[[UOp, UOp], UOp]  # (node, gradient of the node) -> gradient of one source


# element-wise
def _same(node: UOp, grad: UOp) -> UOp:
    return grad


def _zero(node: UOp, grad: UOp) -> UOp:
    return filled(0, node.dtype, node.shape)


def _mul_left(node: UOp, grad: UOp) -> UOp:
    return grad * node.src[1]


def _mul_right(node: UOp, grad: UOp) -> UOp:
    return grad * node.src[0]


def _fdiv_numerator(node: UOp, grad: UOp) -> UOp:
    return grad.fdiv(node.src[1])


def _fdiv_denominator(node: UOp, grad: UOp) -> UOp:
    return -grad * node.fdiv(node.src[1])


def _larger(node: UOp, grad: UOp, own: UOp, other: UOp) -> UOp:
    """MAX and MIN: the chosen side has everything, equal sides half each; NaN counts as chosen on both sides."""
    loses = own.lt(other) if node.op is Op.MAX else other.lt(own)
    return own.eq(other).where(grad * 0.5, loses.where(0.0, grad))


def _larger_left(node: UOp, grad: UOp) -> UOp:
    return _larger(node, grad, node.src[0], node.src[1])


def _larger_right(node: UOp, grad: UOp) -> UOp:
    return _larger(node, grad, node.src[1], node.src[0])


def _pow_base(node: UOp, grad: UOp) -> UOp:
    base, exponent = node.src
    if exponent.op is Op.CONST:
        power = float(exponent.arg)
        if power == 0.0:
            return _zero(node, grad)
        if power == 1.0:
            return grad
        lower = base if power == 2.0 else base.alu(Op.POW, exponent.coerce(power - 1.0))
        return grad * (lower * power)
    slope = exponent * base.alu(Op.POW, exponent - 1.0)
    return exponent.eq(0.0).where(0.0, grad * slope)


def _pow_exponent(node: UOp, grad: UOp) -> UOp:
    base, exponent = node.src
    if base.op is Op.CONST:
        value = float(base.arg)
        if value == 0.0:
            return (exponent >= 0.0).where(0.0, grad * node * -math.inf)
        return grad * (node * (math.log(value) if value > 0.0 else math.nan))
    flat = base.eq(0.0) & (exponent >= 0.0)  # 0**0 and 0**positive: log(0) * 0 must not become NaN
    return flat.where(0.0, grad * (node * base.log()))


def _sqrt(node: UOp, grad: UOp) -> UOp:
    return grad.fdiv(node * 2.0)


def _exp(node: UOp, grad: UOp) -> UOp:
    return grad * node


def _exp2(node: UOp, grad: UOp) -> UOp:
    return grad * (node * math.log(2.0))


def _log(node: UOp, grad: UOp) -> UOp:
    return grad.fdiv(node.src[0])


def _log2(node: UOp, grad: UOp) -> UOp:
    return grad.fdiv(node.src[0] * math.log(2.0))


def _sin(node: UOp, grad: UOp) -> UOp:
    return grad * node.src[0].cos()


def _cos(node: UOp, grad: UOp) -> UOp:
    return grad * -node.src[0].sin()


def _cast(node: UOp, grad: UOp) -> UOp:
    return grad.cast(node.src[0].dtype)


def _where_true(node: UOp, grad: UOp) -> UOp:
    return node.src[0].where(grad, 0.0)


def _where_false(node: UOp, grad: UOp) -> UOp:
    return node.src[0].where(0.0, grad)


# movement: each has its adjoint
def _reshape(node: UOp, grad: UOp) -> UOp:
    return reshape(grad, node.src[0].shape)


def _expand(node: UOp, grad: UOp) -> UOp:
    before = node.src[0].shape
    axes = [axis for axis, (old, new) in enumerate(zip(before, node.shape, strict=True)) if old != new]
    return reshape(reduce_axes(Op.ADD, grad, axes), before)


def _permute(node: UOp, grad: UOp) -> UOp:
    axes = node.arg.axes
    return permute(grad, tuple(axes.index(axis) for axis in range(len(axes))))


def _pad(node: UOp, grad: UOp) -> UOp:
    bounds = [(before, before + size) for (before, _), size in zip(node.arg.pads, node.src[0].shape, strict=True)]
    return shrink(grad, bounds)


def _shrink(node: UOp, grad: UOp) -> UOp:
    sizes = node.src[0].shape
    return pad(grad, [(low, size - high) for (low, high), size in zip(node.arg.bounds, sizes, strict=True)])


def _flip(node: UOp, grad: UOp) -> UOp:
    return flip_axes(grad, node.arg.axes)


def _stride(node: UOp, grad: UOp) -> UOp:
    """Zeros between the elements: every axis becomes (size, step) with the element first, then flat again."""
    steps, kept, sizes = node.arg.steps, node.shape, node.src[0].shape
    split = reshape(grad, tuple(part for size in kept for part in (size, 1)))
    split = pad(split, [part for step in steps for part in ((0, 0), (0, step - 1))])
    flat = reshape(split, tuple(size * step for size, step in zip(kept, steps, strict=True)))
    return shrink(flat, [(0, size) for size in sizes])


def _window(node: UOp, grad: UOp) -> UOp:
    return window(Op.UNWINDOW, grad, node.arg, node.src[0].shape[node.arg.axis])


def _unwindow(node: UOp, grad: UOp) -> UOp:
    arg, source = node.arg, node.src[0].shape
    reach = (source[arg.axis] - 1) * arg.stride + (source[arg.window_axis] - 1) * arg.dilation + 1
    missing = max(0, reach - arg.size)  # source elements that the result cropped away have zero gradient
    pads = [(0, missing if axis == arg.axis else 0) for axis in range(len(source))]
    return window(Op.WINDOW, pad(grad, pads), arg, source[arg.axis])


# reductions
def _reduce(node: UOp, grad: UOp) -> UOp:
    source, axes = node.src[0], node.arg.axes
    if node.arg.op is Op.ADD:
        return restore_axes(grad, axes, source.shape)
    if node.arg.op is Op.MUL:
        return _product(source, axes, grad)
    return _extreme(node, grad)


def _extreme(node: UOp, grad: UOp) -> UOp:
    """Maximum or minimum: shared evenly among the winners. NaN wins when there is one, as in the forward value."""
    source, axes = node.src[0], node.arg.axes
    wins = source.eq(restore_axes(node, axes, source.shape)) | source.ne(source)
    wide = accumulator(node.dtype)  # a count in 16 bits would overflow
    count = mk(Op.REDUCE_AXES, wide, (wins.cast(wide),), ReduceAxesArg(Op.ADD, axes))
    share = grad.cast(wide).fdiv(count).cast(node.dtype)
    return wins.where(restore_axes(share, axes, source.shape), 0.0)


def _product(source: UOp, axes: Shape, grad: UOp) -> UOp:
    """Each factor's gradient is the product of the others, zeros included, so nothing is divided.

    The product is a binary tree: halves are multiplied until one element is left. Walking the tree down, each half's
    gradient is the parent's times the other half. Work is linear in the elements, and all higher derivatives are right.
    """
    shape = source.shape
    if math.prod(shape) == 0:
        return filled(0, source.dtype, shape)
    rest = tuple(axis for axis in range(len(shape)) if axis not in axes)
    count = math.prod(shape[axis] for axis in axes)
    outer = tuple(shape[axis] for axis in rest)
    order = (*rest, *axes)
    level = reshape(permute(source, order), (*outer, count))
    size = 1 << (count - 1).bit_length()
    if size > count:
        tail = [*((0, 0) for _ in rest), (0, size - count)]
        inside = pad(filled(True, dtypes.bool, level.shape), tail)
        level = inside.where(pad(level, tail), 1.0)
    halves: list[tuple[UOp, UOp]] = []
    while size > 1:
        size //= 2
        box = [(0, extent) for extent in outer]
        left, right = shrink(level, [*box, (0, size)]), shrink(level, [*box, (size, 2 * size)])
        halves.append((left, right))
        level = _stored(left * right)
    result = reshape(grad, (*outer, 1))
    for left, right in reversed(halves):
        still = [(0, 0) for _ in rest]
        size = left.shape[-1]
        result = _stored(pad(result * right, [*still, (0, size)]) + pad(result * left, [*still, (size, 0)]))
    result = shrink(result, [*((0, extent) for extent in outer), (0, count)])
    result = reshape(result, tuple(shape[axis] for axis in order))
    return permute(result, tuple(order.index(axis) for axis in range(len(shape))))


def _stored(node: UOp) -> UOp:
    """Each level reads the one before twice: evaluated inside one kernel that would double the work at every level.

    Its gradient is read twice at the next level as well, and so is stored too.
    """
    memory = mk(Op.CONTIGUOUS, node.dtype, (node,), None)
    return mk(Op.DERIVATIVE, node.dtype, (memory, node), _STORED)


_STORED: Final = DerivativeArg("stored", lambda grad: (_stored(grad),))


# rows by index
def _gather(table: UOp, index: UOp, batch: int = 0) -> UOp:
    return mk(Op.GATHER, table.dtype, (table, index), GatherArg(batch) if batch else None)


def _scatter(target: UOp, index: UOp, values: UOp, op: Op | None, batch: int = 0) -> UOp:
    return mk(Op.SCATTER, target.dtype, (target, index, values), ScatterArg(op, batch))


def _over_rows(rows: UOp, like: UOp) -> UOp:
    """A value a row, repeated over the elements of the rows of `like`."""
    flat = reshape(rows, rows.shape + (1,) * (len(like.shape) - len(rows.shape)))
    return expand(flat, like.shape)


def _gather_table(node: UOp, grad: UOp) -> UOp:
    table, index = node.src
    wide = accumulator(table.dtype)  # many rows may meet in one
    zeros = filled(0, wide, table.shape)
    return _scatter(zeros, index, grad.cast(wide), Op.ADD, batch_axes(node.arg)).cast(table.dtype)


def _scatter_target(node: UOp, grad: UOp) -> UOp:
    target, index, values = node.src
    op, batch = node.arg
    if op is Op.ADD:
        return grad
    if op is Op.MUL:
        return grad * _scatter(filled(1, target.dtype, target.shape), index, values, Op.MUL, batch)
    if op is None:
        hit = filled(True, dtypes.bool, index.shape)
        overwritten = _scatter(filled(False, dtypes.bool, target.shape[: batch + 1]), index, hit, None, batch)
        return _over_rows(overwritten, target).where(0.0, grad)
    return target.eq(node).where(_scatter_share(node, grad), 0.0)


def _scatter_values(node: UOp, grad: UOp) -> UOp:
    target, index, values = node.src
    op, batch = node.arg
    if op is Op.ADD:
        return _gather(grad, index, batch)
    if op is Op.MUL:
        return _scatter_factor(node, grad)
    if op is None:
        order = reshape(positions(math.prod(index.shape)), index.shape)
        last = _scatter(filled(-1, dtypes.int32, target.shape[: batch + 1]), index, order, None, batch)
        wins = _over_rows(_gather(last, index, batch).eq(order), values)
        return wins.where(_gather(grad, index, batch), 0.0)
    wins = values.eq(_gather(node, index, batch))
    return wins.where(_gather(_scatter_share(node, grad), index, batch), 0.0)


def _scatter_share(node: UOp, grad: UOp) -> UOp:
    """SCATTER with MAX or MIN: the gradient divided by how many of the old and new values equal the result."""
    target, index, values = node.src
    wide = accumulator(node.dtype)
    batch = node.arg.batch
    new = values.eq(_gather(node, index, batch)).cast(wide)
    count = _scatter(target.eq(node).cast(wide), index, new, Op.ADD, batch)
    return grad.cast(wide).fdiv(count).cast(node.dtype)


def _scatter_factor(node: UOp, grad: UOp) -> UOp:
    """SCATTER with MUL: product of the other factors, told apart by how many of them are zero."""
    target, index, values = node.src
    batch = node.arg.batch
    zero = values.eq(0.0)
    kept = _scatter(target.eq(0.0).where(1.0, target), index, zero.where(1.0, values), Op.MUL, batch)
    counts = _scatter(target.eq(0.0).cast(dtypes.int32), index, zero.cast(dtypes.int32), Op.ADD, batch)
    others = _gather(counts, index, batch) + zero.cast(dtypes.int32) * -1
    product = _gather(grad * kept, index, batch).fdiv(zero.where(1.0, values))
    # With one other zero the product is 0, but not its derivative by that zero.
    zeros = _scatter(target.eq(0.0).where(target, 0.0), index, zero.where(values, 0.0), Op.ADD, batch)
    other_zero = _gather(zeros, index, batch) + zero.where(values * -1.0, 0.0)
    return others.eq(0).where(product, others.eq(1).where(product * other_zero, 0.0))


# running combinations
def _later(node: UOp, axis: int) -> UOp:
    """Every element's follower along an axis; 0 behind the last."""
    shape = node.shape
    moved = pad(node, [(0, 1) if a == axis else (0, 0) for a in range(len(shape))])
    return shrink(moved, [(1, size + 1) if a == axis else (0, size) for a, size in enumerate(shape)])


def _backwards(grad: UOp, axis: int, factor: UOp | None = None) -> UOp:
    """h[i] = grad[i] + factor[i + 1] * h[i + 1]; without factors the sum of the gradients from i on."""
    zero = UOp.const(grad.dtype, 0)
    if factor is None:
        run = mk(Op.SCAN, grad.dtype, (flip_axes(grad, (axis,)), zero), ScanArg(Op.ADD, axis))
    else:
        sources = (flip_axes(grad, (axis,)), zero, flip_axes(_later(factor, axis), (axis,)))
        run = mk(Op.SCAN, grad.dtype, sources, ScanArg(Op.MULADD, axis))
    return flip_axes(run, (axis,))


def _scan_source(node: UOp, grad: UOp) -> UOp:
    op, axis, exclusive = node.arg
    source, start, *factors = node.src
    if start.op is not Op.CONST:
        raise GradientError("SCAN: gradients reach the values, not what they begin with; start from a constant")
    sizes = extents(grad)
    if op is Op.ADD and sizes:  # it goes backwards from the end, where nothing is past the size
        grad = fill(grad, tuple([None if a == axis else size for a, size in enumerate(sizes)]))
    if exclusive:
        grad = _later(grad, axis)
    if op is Op.ADD:
        return _backwards(grad, axis)
    if op is Op.MULADD:
        return _backwards(grad, axis, spread(factors[0], source.shape))
    if op is Op.MUL:
        return _backwards(grad, axis, source) * _scanned(node, True)
    # The gradients of all places that hold an element's value, up to the next element that is as good or better.
    wide = accumulator(node.dtype)
    leads = source.eq(_scanned(node, False)) | source.ne(source)
    follows = leads.where(UOp.const(wide, 0), UOp.const(wide, 1))
    return leads.where(_backwards(grad.cast(wide), axis, spread(follows, source.shape)).cast(node.dtype), 0.0)


def _scan_factor(node: UOp, grad: UOp) -> UOp:
    return _scan_source(node, grad) * _scanned(node, True)


def _scanned(node: UOp, exclusive: bool) -> UOp:
    """The running combination with or without each element's own value."""
    return mk(node.op, node.dtype, node.src, node.arg._replace(exclusive=exclusive))


# placement and effects
def _copy(node: UOp, grad: UOp) -> UOp:
    device = device_of(node.src[0])
    return grad if device is None else mk(Op.COPY, grad.dtype, (grad,), DeviceArg(device))


def _view_chain(node: UOp) -> list[UOp]:
    """The movement nodes of a WRITE from the base (left out) to the written view."""
    base, current = node.src[0], node.src[1]
    chain: list[UOp] = []
    while current is not base:
        chain.append(current)
        current = current.src[0]
    return chain[::-1]


def _write_base(node: UOp, grad: UOp) -> UOp:
    """The written box is zeroed: a mask of the view is carried back to the base by the movement ops' adjoints."""
    mask = filled(True, dtypes.bool, node.src[1].shape)
    for step in reversed(_view_chain(node)):
        if step.op is Op.EXPAND or step.op is Op.WINDOW:
            raise GradientError(f"gradient of a write into a {step.op.name.lower()}ed view: copy the view first")
        rule = DERIVATIVES[step.op][0]
        assert rule is not None
        mask = rule(step, mask)
    return mask.where(0.0, grad)


def _write_value(node: UOp, grad: UOp) -> UOp:
    for step in _view_chain(node):
        grad = mk(step.op, grad.dtype, (grad,), step.arg)
    return grad


def _limit(node: UOp, grad: UOp) -> UOp:
    """What lies past the size has no influence, whatever it is.

    Where it repeats one value, the gradients of the repetitions are added up, and that ends at the size by itself.
    """
    axis, source = node.arg.axis, node.src[0]
    if node.arg.filled or (source.op is Op.EXPAND and source.src[0].shape[axis] != source.shape[axis]):
        return grad
    return mk(Op.LIMIT, grad.dtype, (grad, node.src[1]), LimitArg(axis, True))


DERIVATIVES: Final[dict[Op, tuple[Rule | None, ...]]] = {
    Op.ADD: (_same, _same),
    Op.MUL: (_mul_left, _mul_right),
    Op.FDIV: (_fdiv_numerator, _fdiv_denominator),
    Op.MAX: (_larger_left, _larger_right),
    Op.MIN: (_larger_left, _larger_right),
    Op.POW: (_pow_base, _pow_exponent),
    Op.SQRT: (_sqrt,),
    Op.EXP: (_exp,),
    Op.EXP2: (_exp2,),
    Op.LOG: (_log,),
    Op.LOG2: (_log2,),
    Op.SIN: (_sin,),
    Op.COS: (_cos,),
    Op.TRUNC: (_zero,),
    Op.CAST: (_cast,),
    Op.WHERE: (None, _where_true, _where_false),
    Op.RESHAPE: (_reshape,),
    Op.EXPAND: (_expand,),
    Op.PERMUTE: (_permute,),
    Op.PAD: (_pad,),
    Op.SHRINK: (_shrink,),
    Op.FLIP: (_flip,),
    Op.STRIDE: (_stride,),
    Op.WINDOW: (_window,),
    Op.UNWINDOW: (_unwindow,),
    Op.REDUCE_AXES: (_reduce,),
    Op.GATHER: (_gather_table, None),
    Op.SCATTER: (_scatter_target, None, _scatter_values),
    Op.SCAN: (_scan_source, None, _scan_factor),
    Op.CONTIGUOUS: (_same,),
    Op.COPY: (_copy,),
    Op.WRITE: (_write_base, None, _write_value),
    Op.LIMIT: (_limit, None),
}

# Ops of the tensor stage through which no gradient flows, and why.
NOT_DIFFERENTIABLE: Final[dict[Op, str]] = {
    Op.CONST: "a constant",
    Op.BUFFER: "a leaf",
    Op.VARIABLE: "an integer",
    Op.BIND: "an integer",
    Op.MERGE: "integers",
    Op.LARGEST: "integers",
    Op.DETACH: "stops gradients on purpose",
    Op.CUSTOM: "a kernel of the caller's, whose derivative only the caller knows: grad= of custom_kernel",
    Op.DERIVATIVE: "has a derivative of its own, see grad/custom",
    Op.BITCAST: "bits, not values",
    Op.DOT: "integers",
    Op.DOT16: "integers",
    Op.IDIV: "integers",
    Op.MOD: "integers",
    Op.AND: "bits",
    Op.OR: "bits",
    Op.XOR: "bits",
    Op.SHL: "bits",
    Op.SHR: "bits",
    Op.CMPLT: "a bool",
    Op.CMPEQ: "a bool",
    Op.CMPNE: "a bool",
    Op.SINK: "a list of roots, no value",
}
