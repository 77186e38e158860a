"""Sums in another order: the mean that the gradient of a softmax needs is taken from the result of attention.

The gradient of a softmax subtracts `sum over keys of p * g` from each of its elements. In attention `g` is a product of
its own, `sum over columns of dO * V`, and `sum over keys of p * V` is the result `O`. So the same number is `sum over
columns of dO * O`, which asks for no element of `p` or `g`: with it, everything that is as large as all pairs of
queries and keys can be computed again where it is needed (`feeding`).

Where matrix units multiply, this is for queries, keys and values of 16 bits. What gradients round to 16 bits on the way
from `dO * V` to its use, and weights that gradients multiply by, stay in float32 then (units round their factors); sums
are rounded where they are stored, their columns side by side.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Final, NamedTuple

from gradlet.base.dtype import dtypes
from gradlet.graph.node import UOp, mk, toposort
from gradlet.ops.op import ELEMENTWISE, AxesArg, Op, ReduceAxesArg
from gradlet.schedule.clean import find_devices, rebuild
from gradlet.schedule.moves import expand_to, reshape, root_of
from gradlet.target.rotation import FED_COLUMNS, has_register_factors
from gradlet.target.target import Target

# Pairs of queries and keys are worth no memory where they are so many times as many as elements of the queries.
LARGE: Final = 4
_WHOLE: Final = frozenset({Op.RESHAPE, Op.PERMUTE, Op.EXPAND})
_ASKED: Final = frozenset({Op.REDUCE_AXES})
_ASKED_OF_UNITS: Final = frozenset({Op.REDUCE_AXES, Op.CAST})
LOG2_E: Final = 1.4426950408889634
MINUS_INFINITY: Final = float("-inf")
NARROW: Final = (dtypes.bfloat16, dtypes.float16)


class Mean(NamedTuple):
    """A sum along keys: `weights` of a softmax times a `product`, which has been `rounded` to 16 bits or not."""

    weights: UOp
    product: UOp
    keys: int
    rounded: bool


def exchange_sums(root: UOp, target_of: Callable[[str], Target], default_device: str, by_units: bool = True) -> UOp:
    """The graph with every such mean as a sum over columns, where pairs may go by blocks near a core.

    Args:
        root: the graph.
        target_of: facts about a device by its name.
        default_device: where constants go.
        by_units: whether matrix units may go over these blocks.
    """
    if not root.mask & 1 << Op.EXP:
        return root
    order = toposort((root,))
    there = set(order)
    means = [found for n in order if n.op is Op.REDUCE_AXES and (found := _mean(n)) is not None]
    means = [mean for mean in means if _has_pairs(mean)]
    devices = find_devices(order) if means else {}
    means = [m for m in means if by_units or not m.rounded]
    means = [m for m in means if _is_for(target_of(devices.get(m.weights, default_device)), m, there)]
    if not means:
        return root
    weighing = {mean.weights for mean in means}
    rounded = {mean.product for mean in means if mean.rounded}
    fed = _fed([mean.product for mean in means], order)
    shared = _fed(weighing, order)
    forward = {result for mean in means if mean.rounded and (result := _result_of(mean, there)) is not None}
    fed |= {n: c for n, c in shared.items() if (len(n.arg.axes) > 1 or rounded) and n not in forward}

    powers = {weights: power for weights in weighing if (power := _as_power(weights)) is not None} if rounded else {}

    def change(node: UOp, src: tuple[UOp, ...]) -> UOp | None:
        changed = node if src is node.src else mk(node.op, node.dtype, src, node.arg)
        if node.op is Op.CAST:
            return src[0].src[0] if _unrounded(node) in rounded else _stored_narrow(changed, fed)
        mean = _mean(changed)
        if mean is not None and mean.weights in weighing:
            return _exchanged(mean._replace(rounded=mean.product in rounded), there)
        if node not in fed:
            return None
        columns = fed[node]
        if rounded:
            changed = _with_powers(changed, powers)
        fed[changed] = columns
        return _stored(changed, columns if rounded else ())

    return rebuild(root, change, _ASKED_OF_UNITS if rounded else _ASKED, order)


def _is_for(target: Target, mean: Mean, there: Collection[UOp]) -> bool:
    """Whether a machine is better off: cores with memory near them, or matrix units where factors have 16 bits."""
    if target.kind == "cpu":
        return not mean.rounded
    if not mean.rounded or not has_register_factors(target) or _result_of(mean, there) is None:
        return False
    return mean.product.src[0].shape[mean.product.arg.axes[0]] in FED_COLUMNS


def _as_power(weights: UOp) -> UOp | None:
    """`exp(x + shift) / sum` as a power of two: one number a row, and no division for each element.

    Two numbers a row where `x` may be so large that the logarithm of the sum is lost beside it: -1e9 as a mask, say.
    """
    (power, below), exponent = weights.src, weights.src[0].src[0]
    if exponent.op is not Op.ADD or below.op is not Op.EXPAND:
        return None
    for x, shift in (exponent.src, exponent.src[::-1]):
        if shift.op is Op.EXPAND and shift.src[0].shape == below.src[0].shape and _repeated(shift) == _repeated(below):
            log = mk(Op.LOG, below.dtype, (below.src[0],))
            if _is_plain(x):
                less = mk(Op.ADD, below.dtype, (shift.src[0], log * -1.0)) * LOG2_E
            else:
                x, less = exponent, log * -LOG2_E
            total = mk(Op.ADD, power.dtype, (x * LOG2_E, expand_to(less, weights.shape)))
            return mk(Op.EXP2, power.dtype, (total,))
    return None


def _is_plain(x: UOp) -> bool:
    """Whether an exponent is a sum of products, scaled and masked by minus infinity: no number is added to it."""
    while x.op is not Op.REDUCE_AXES:
        if x.op in _WHOLE or (x.op is Op.MUL and root_of(x.src[1]).op is Op.CONST):
            x = x.src[0]
        elif x.op is Op.WHERE and any(map(_is_hidden, x.src[1:])):
            x = x.src[1 if _is_hidden(x.src[2]) else 2]
        else:
            return False
    return True


def _is_hidden(node: UOp) -> bool:
    bottom = root_of(node)
    return bottom.op is Op.CONST and bottom.arg == MINUS_INFINITY


def _with_powers(product: UOp, powers: Mapping[UOp, UOp]) -> UOp:
    """A product with weights made of one exponential, also where they were rounded to 16 bits as its factor."""
    new: dict[UOp, UOp] = {}
    stack = list(product.src)
    seen = set(stack)
    while stack:
        node = stack.pop()
        if node in powers or not (node.op in ELEMENTWISE or node.op in _WHOLE):
            continue
        more = [s for s in node.src if s not in seen]
        seen.update(more)
        stack += more
    for node in toposort(product.src):
        below = _unrounded(node)
        if node not in seen:
            continue
        if below in powers:
            new[node] = powers[below]
        elif not new.keys().isdisjoint(node.src):
            new[node] = mk(node.op, node.dtype, tuple([new.get(s, s) for s in node.src]), node.arg)
    return mk(product.op, product.dtype, tuple([new.get(s, s) for s in product.src]), product.arg)


def _unrounded(node: UOp) -> UOp:
    """What a value in float32 is that has been rounded to 16 bits and back; else the value itself."""
    if node.op is Op.CAST and node.dtype is dtypes.float32 and node.src[0].op is Op.CAST:
        below = node.src[0].src[0]
        if node.src[0].dtype in NARROW and below.dtype is dtypes.float32:
            return below
    return node


def _stored_narrow(cast: UOp, products: Collection[UOp]) -> UOp | None:
    """A conversion of a stored product, whose axes may have another order: it is stored converted."""
    order: tuple[int, ...] = tuple(range(len(cast.shape)))
    node = cast.src[0]
    while node.op is Op.PERMUTE:
        order = tuple([node.arg.axes[axis] for axis in order])
        node = node.src[0]
    product = node.src[0] if node.op is Op.CONTIGUOUS else node
    while product.op is Op.PERMUTE:
        product = product.src[0]
    if node.op is not Op.CONTIGUOUS or product not in products or cast.dtype not in NARROW:
        return None
    stored = mk(Op.CONTIGUOUS, cast.dtype, (mk(Op.CAST, cast.dtype, node.src),))
    return _in_order(stored, order)


def _in_order(node: UOp, order: Sequence[int]) -> UOp:
    return node if list(order) == sorted(order) else mk(Op.PERMUTE, node.dtype, (node,), AxesArg(tuple(order)))


def _stored(product: UOp, columns: Sequence[int]) -> UOp:
    """A product that is stored as it is: summed along its longest axis; then along others (heads that share keys).

    `columns`: axes of its terms that come last in memory.
    """
    axes, terms = product.arg.axes, product.src[0]
    along = max(axes, key=lambda axis: terms.shape[axis])
    if product.arg.limited:
        return mk(Op.CONTIGUOUS, product.dtype, (product,))
    inner = product
    if len(axes) > 1:
        inner = mk(Op.REDUCE_AXES, product.dtype, (terms,), ReduceAxesArg(Op.ADD, (along,)))
    last = [axis - (axis > along) for axis in columns if axis != along]
    order = [*[axis for axis in range(len(inner.shape)) if axis not in last], *last]
    stored = mk(Op.CONTIGUOUS, inner.dtype, (_in_order(inner, order),))
    stored = _in_order(stored, [order.index(axis) for axis in range(len(order))])
    rest = tuple([axis - (axis > along) for axis in axes if axis != along])
    return mk(Op.REDUCE_AXES, product.dtype, (stored,), ReduceAxesArg(Op.ADD, rest)) if rest else stored


def _mean(node: UOp) -> Mean | None:
    """What a sum takes the mean of; None if it is none."""
    if node.arg.op is not Op.ADD or node.src[0].op is not Op.MUL:
        return None
    if node.arg.limited or len(node.arg.axes) != 1 or node.dtype is not dtypes.float32:
        return None
    for weights, other in (node.src[0].src, node.src[0].src[::-1]):
        product = _unrounded(other)
        if weights.op is Op.FDIV and weights.src[0].op is Op.EXP and product.op is Op.REDUCE_AXES:
            return Mean(weights, product, node.arg.axes[0], product is not other)
    return None


def _has_pairs(mean: Mean) -> bool:
    """Whether a product of two factors has so many elements along the keys that they are worth no memory."""
    product, keys = mean.product, mean.keys
    arg = product.arg
    if arg.op is not Op.ADD or arg.limited or len(arg.axes) != 1 or product.src[0].op is not Op.MUL:
        return False
    terms, (columns,) = product.src[0], arg.axes
    large = 1 if mean.rounded else LARGE
    return bool(terms.shape[keys + (columns <= keys)] >= large * terms.shape[columns])


def _fed(products: Collection[UOp], order: Sequence[UOp]) -> dict[UOp, Sequence[int]]:
    """The products that have a factor which is made of one of these element by element, and their columns.

    They are stored as they are: what else is done to a result (turning the halves of each head back, say) would have
    the sum run for several elements of its own, which no blocks could share.
    """
    inside, found = set(products), dict[UOp, Sequence[int]]()
    for node in order:
        if inside.isdisjoint(node.src):
            continue
        if node.op in ELEMENTWISE or node.op in _WHOLE:
            inside.add(node)
        elif node.op is Op.REDUCE_AXES and node.src[0].op is Op.MUL and any(s.op is Op.EXPAND for s in node.src[0].src):
            found[node] = [axis for s in node.src[0].src if s in inside for axis in _repeated(s)]
    return found


def _repeated(side: UOp) -> list[int]:
    """The axes along which a factor repeats."""
    if side.op is not Op.EXPAND:
        return []
    return [a for a, size in enumerate(side.shape) if side.src[0].shape[a] != size]


def _exchanged(mean: Mean, there: Collection[UOp]) -> UOp | None:
    """The sum by that of weighted values; `there`: nodes that are computed anyway."""
    product = mean.product
    if not _has_pairs(mean):
        return None
    (columns,) = product.arg.axes
    found = _factors(mean)
    if found is None:
        return None
    gradient, spread, values, along = found
    result = _result_of(mean, there) or _weighted(spread, values, along)[0]
    terms = product.src[0]
    kept = (*terms.shape[:along], *terms.shape[along + 1 :])
    before = gradient.src[0]
    own = expand_to(reshape(before, (*before.shape[:along], *before.shape[along + 1 :])), kept)
    column = columns - (along < columns)
    narrow = [node for dtype in NARROW if (node := mk(Op.CAST, dtype, (result,))) in there]
    if not narrow:
        both = mk(Op.MUL, product.dtype, (own, result))
        return mk(Op.REDUCE_AXES, product.dtype, (both,), ReduceAxesArg(Op.ADD, (column,)))
    # The result as it is stored. Conversions of its own, told apart by an axis in front: products have others.
    own = own.substitute({n: _converted_apart(n) for n in [root_of(own)]})
    both = mk(Op.MUL, product.dtype, (own, _converted_apart(mk(Op.CAST, result.dtype, (narrow[0],)))))
    both = reshape(both, (1, *both.shape))
    total = mk(Op.REDUCE_AXES, product.dtype, (both,), ReduceAxesArg(Op.ADD, (column + 1,)))
    return reshape(total, total.shape[1:])


def _converted_apart(node: UOp) -> UOp:
    if node.op is not Op.CAST:
        return node
    return reshape(mk(Op.CAST, node.dtype, (reshape(node.src[0], (1, *node.shape)),)), node.shape)


def _factors(mean: Mean) -> tuple[UOp, UOp, UOp, int] | None:
    """The gradient of the result, the weights with an axis of columns, the values, and the axis of the keys."""
    (columns,) = mean.product.arg.axes
    weights, terms = mean.weights, mean.product.src[0]
    along = mean.keys + (columns <= mean.keys)
    for gradient, values in (terms.src, terms.src[::-1]):
        if gradient.op is Op.EXPAND and gradient.src[0].shape[along] == 1:
            spread = reshape(weights, (*weights.shape[:columns], 1, *weights.shape[columns:]))
            return gradient, expand_to(spread, terms.shape), values, along
    return None


def _result_of(mean: Mean, there: Collection[UOp]) -> UOp | None:
    """The weighted values, if the graph has them: by weights as they are, or rounded to 16 bits."""
    found = _factors(mean)
    if found is None:
        return None
    _, spread, values, along = found
    forms = [spread]
    for narrow in NARROW:
        weights = mk(Op.CAST, spread.dtype, (mk(Op.CAST, narrow, (mean.weights,)),))
        forms.append(spread.substitute({mean.weights: weights}))
    return next((node for form in forms for node in _weighted(form, values, along) if node in there), None)


def _weighted(weights: UOp, values: UOp, along: int) -> list[UOp]:
    """The weighted values, with the factors in either order."""
    return [
        mk(Op.REDUCE_AXES, values.dtype, (mk(Op.MUL, values.dtype, factors),), ReduceAxesArg(Op.ADD, (along,)))
        for factors in ((weights, values), (values, weights))
    ]
