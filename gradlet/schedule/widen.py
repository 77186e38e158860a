"""Narrow floats that a product uses many times are converted once, ahead of its loops.

A factor stored in 16 or 8 bits is converted to float32 before it is multiplied. Inside a product's loops that happens
every time an element is used: a row of a matrix product meets every column. So the conversion moves below the
repetition, and where it still would be repeated the converted factor is kept in memory.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod

from gradlet.base.dtype import dtypes
from gradlet.base.settings import ALLOW_TF32, STRICT_FLOAT
from gradlet.graph.node import UOp, mk, toposort
from gradlet.ops.op import ELEMENTWISE, MOVEMENT, AxesArg, Op
from gradlet.schedule.affineviews import affine_view
from gradlet.schedule.clean import REDUCES, find_devices, rebuild
from gradlet.schedule.fed import fed_products
from gradlet.schedule.moves import chain_to, replay, reshape, root_of
from gradlet.schedule.rowpitch import align_rows
from gradlet.schedule.unitparts import in_parts, total
from gradlet.target.matrixcore import MatrixUnits
from gradlet.target.rotation import has_register_factors
from gradlet.target.target import Target

# A converted factor is written and read once more, twice as wide: fewer uses do not pay for that.
MIN_USES = 16
# With fewer uses of each element of the other factor, reading that one is what the product waits for.
MIN_OTHER_USES = 4
# Channels from which on a matrix unit is worth a copy in their order.
MIN_CHANNELS = 32
# Multiply-adds of a product below which another kernel costs more than the conversions.
MIN_WORK = 1 << 18
_NEEDED = 1 << Op.REDUCE_AXES | 1 << Op.CAST
_PRODUCTS = frozenset({Op.MUL})


def convert_before_repeating(root: UOp) -> UOp:
    """The graph with conversions of narrow factors moved below the movement ops that repeat elements."""
    if not has_narrow_product(root):
        return root

    def change(node: UOp, src: tuple[UOp, ...]) -> UOp | None:
        if node.dtype is not dtypes.float32 or not any(map(is_conversion, src)):
            return None
        return mk(Op.MUL, node.dtype, tuple([_at_fewest(s) for s in src]))

    return rebuild(root, change, _PRODUCTS)


def convert_once(root: UOp, target_of: Callable[[str], Target], default_device: str) -> UOp:
    """The graph with narrow factors that sums of products use many times stored as float32."""
    if not root.mask & 1 << Op.REDUCE_AXES or (root.mask & _NEEDED != _NEEDED and not ALLOW_TF32.value):
        return root
    order = toposort((root,))
    if not ALLOW_TF32.value and not any(is_conversion(n) or _is_of_bytes(n) for n in order):
        return root
    devices = find_devices(order)
    fed = fed_products(order)
    only_converted = _only_converted(order) - fed.between if fed.products else frozenset[UOp]()
    taken: dict[UOp, int] = {}  # conversions, and how many products have one of their own

    def change(node: UOp, src: tuple[UOp, ...]) -> UOp | None:
        if node.arg.op is not Op.ADD or prod(src[0].shape) < MIN_WORK:
            return None
        target = target_of(devices.get(node, default_device))
        units = target.matrix_units
        if node in fed.products and has_register_factors(target):
            sides = zip(node.src[0].src, src[0].src, strict=True)
            product = mk(Op.MUL, node.dtype, tuple([_stored_narrow(*side, only_converted) for side in sides]))
            return mk(node.op, node.dtype, (product, *src[1:]), node.arg)
        if units is not None and src[0].op is Op.MUL:
            summed = frozenset(node.arg.axes)
            product = _channels_together(_converted_by_units(src[0], units), summed)
            if _multiplied_by(units, product) or _rounded_by(units, product):
                product = align_rows(product, summed, target.copy_engine)
                if target.copy_engine and not STRICT_FLOAT.value:
                    parts = in_parts(node, product, target)
                    if parts is not None:
                        return total(_with_own_conversions(parts.partial, parts.product, taken))
            return _with_own_conversions(node, product, taken)
        if target.kind != "cpu":
            return None
        return mk(node.op, node.dtype, (_stored_factors(src[0]), *src[1:]), node.arg)

    return rebuild(root, change, REDUCES, order)


def _only_converted(order: Sequence[UOp]) -> frozenset[UOp]:
    """What is computed in 16 bits for nothing but conversions to float32."""
    users: dict[UOp, list[UOp]] = {}
    for node in order:
        for source in node.src if node.op is not Op.SINK else ():  # whoever still holds a value reads it where it is
            users.setdefault(source, []).append(node)
    found: set[UOp] = set()
    for node in reversed(order):
        if not node.dtype.is_narrow_float or not (node.op in ELEMENTWISE or node.op in MOVEMENT):
            continue
        using = users.get(node, ())
        if using and all(is_conversion(user) or (user.op in MOVEMENT and user in found) for user in using):
            found.add(node)
    return frozenset([n for n in found if n.op in ELEMENTWISE])


def _stored_narrow(before: UOp, factor: UOp, only_converted: frozenset[UOp]) -> UOp:
    """A factor that a copy engine brings as it is: it is in memory before it is converted.

    `before`: the factor as it was in the graph whose nodes are only converted.
    """
    bottom = root_of(before)
    if not is_conversion(bottom) or root_of(bottom.src[0]) not in only_converted:
        return factor
    bottom = root_of(factor)
    base = root_of(bottom.src[0])
    stored = replay(chain_to(bottom.src[0], base), mk(Op.CONTIGUOUS, base.dtype, (base,)))
    return replay(chain_to(factor, bottom), mk(Op.CAST, bottom.dtype, (stored,)))


def has_narrow_product(root: UOp) -> bool:
    """Whether a graph sums anything and converts a narrow float to float32 somewhere."""
    return root.mask & _NEEDED == _NEEDED and any(map(is_conversion, toposort((root,))))


def is_conversion(node: UOp) -> bool:
    """Whether a node is a narrow float as float32."""
    return node.op is Op.CAST and node.dtype is dtypes.float32 and node.src[0].dtype.is_narrow_float


def _is_of_bytes(node: UOp) -> bool:
    """Whether a node is an integer of 8 bits as one of 32."""
    return node.op is Op.CAST and node.dtype is dtypes.int32 and node.src[0].dtype in (dtypes.int8, dtypes.uint8)


def _multiplied_by(units: MatrixUnits, value: UOp) -> bool:
    """Whether matrix units multiply what both sides of a product convert."""
    bottoms = [root_of(side) for side in value.src]
    if any(bottom.op is not Op.CAST for bottom in bottoms):
        return False
    factor = units.pair(bottoms[0].src[0].dtype, bottoms[1].src[0].dtype)
    return factor is not None and factor.converted and value.dtype is factor.total


def _rounded_by(units: MatrixUnits, value: UOp) -> bool:
    """Whether matrix units may round the factors of a product that are read as they are."""
    plain = all(side.op is not Op.CAST and side.dtype is value.dtype for side in value.src)
    return plain and value.dtype is dtypes.float32 and units.factor(value.dtype) is not None


def _at_fewest(node: UOp) -> UOp:
    """A conversion moved down to where there are fewest elements, above other movement ops of that size."""
    if not is_conversion(node):
        return node
    best = bottom = node.src[0]
    chain: list[UOp] = []
    above = 0
    while bottom.op in MOVEMENT:
        chain.append(bottom)
        bottom = bottom.src[0]
        if prod(bottom.shape) < prod(best.shape):
            best, above = bottom, len(chain)
    return replay(chain[:above], mk(Op.CAST, node.dtype, (best,)))


def _converted_by_units(value: UOp, units: MatrixUnits) -> UOp:
    """A product whose conversions are its own where a matrix unit makes them for nothing."""
    if not _multiplied_by(units, value):
        return value
    sides: list[UOp] = []
    for side in value.src:
        bottom = root_of(side)
        chain = chain_to(side, bottom)
        narrow = _with_joined_axes(chain, bottom.src[0], prod(value.shape))
        sides.append(mk(Op.CAST, bottom.dtype, (narrow,)))
    return mk(Op.MUL, value.dtype, tuple(sides))


def _with_joined_axes(chain: Sequence[UOp], bottom: UOp, work: int) -> UOp:
    """A factor under its movement ops, copied where these join axes that do not lie one after another in memory.

    Heads that are put side by side again are such axes: neither rows nor the sum would be one range.
    """
    base = root_of(bottom)
    steps = [*chain, *chain_to(bottom, base)]  # the top first
    for number in range(len(steps) - 1, -1, -1):
        step = steps[number]
        turned = any(lower.op is Op.PERMUTE for lower in steps[number + 1 :])
        if step.op is Op.RESHAPE and turned and _long_axes(step) < _long_axes(step.src[0]):
            if prod(step.shape) * MIN_USES > work:
                break
            joined = replay(steps[number:], base)
            return replay(steps[:number], mk(Op.CONTIGUOUS, joined.dtype, (joined,)))
    return replay(chain, bottom)


def _long_axes(node: UOp) -> int:
    return sum(size != 1 for size in node.shape)


def _with_own_conversions(node: UOp, product: UOp, taken: dict[UOp, int]) -> UOp:
    """The sum of a product whose conversions no other product has: what two have would be computed before both.

    Nodes that look alike are one; axes of size 1 in front of all others tell them apart.
    """
    sides = [side for side in product.src if side.op is Op.CAST]
    count = max([taken.get(side, 0) for side in sides], default=0)
    for side in sides:
        taken[side] = count + 1
    if not count:
        return mk(node.op, node.dtype, (product, *node.src[1:]), node.arg)
    ones = (1,) * count
    own = [
        mk(Op.CAST, side.dtype, (reshape(side.src[0], ones + side.shape),))
        if side.op is Op.CAST
        else reshape(side, ones + side.shape)
        for side in product.src
    ]
    axes = node.arg._replace(axes=tuple([axis + count for axis in node.arg.axes]))
    total = mk(node.op, node.dtype, (mk(Op.MUL, product.dtype, tuple(own)), *node.src[1:]), axes)
    return reshape(total, node.shape)


def _channels_together(value: UOp, reduced: frozenset[int]) -> UOp:
    """A product of images under windows and weights, both copied so that what is summed lies side by side.

    A matrix unit reads 128 bytes of channels of a pixel at once; an image that lies otherwise is copied once.
    """
    if not all(is_conversion(side) or _is_of_bytes(side) for side in value.src):
        return value
    views = [affine_view(side) for side in value.src]
    # A place under windows is a sum of an axis that is kept and one that is summed; heads side by side are none.
    sliding = [any(len({a in reduced for a, _ in place.terms}) > 1 for place in view.places) for view in views]
    if sum(sliding) != 1:
        return value
    alone = [{p.terms[0][0]: dim for dim, p in enumerate(v.places) if len(p.terms) == 1 and p.terms[0][1] == 1}
             for v in views]  # fmt: skip
    channels = [axis for axis in reduced if all(axis in dims for dims in alone)]
    channels = [axis for axis in channels if value.shape[axis] >= MIN_CHANNELS]
    if len(channels) != 1:
        return value
    sides: list[UOp] = []
    for side, view, dims in zip(value.src, views, alone, strict=True):
        last, dim = len(view.places) - 1, dims[channels[0]]
        if dim == last or view.base.op is Op.CONST or prod(view.base.shape) * MIN_USES > prod(value.shape):
            sides.append(side)
            continue
        order = (*[d for d in range(last + 1) if d != dim], dim)
        back = tuple([order.index(d) for d in range(last + 1)])
        turned = mk(Op.PERMUTE, view.base.dtype, (view.base,), AxesArg(order))
        copy = mk(Op.CONTIGUOUS, view.base.dtype, (turned,))
        sides.append(side.substitute({view.base: mk(Op.PERMUTE, view.base.dtype, (copy,), AxesArg(back))}))
    return mk(Op.MUL, value.dtype, tuple(sides))


def _stored_factors(value: UOp) -> UOp:
    """A sum of products with the conversions of often used factors stored."""
    if value.op is Op.ADD:
        return mk(Op.ADD, value.dtype, tuple([_stored_factors(s) for s in value.src]))
    if value.op is not Op.MUL:
        return value
    work = prod(value.shape)
    if any(prod(root_of(s).shape) * MIN_OTHER_USES > work for s in value.src):
        return value
    return mk(Op.MUL, value.dtype, tuple([_stored(s, work) for s in value.src]))


def _stored(factor: UOp, work: int) -> UOp:
    bottom = root_of(factor)
    if not is_conversion(bottom) or prod(bottom.shape) * MIN_USES > work:
        return factor
    return replay(chain_to(factor, bottom), mk(Op.CONTIGUOUS, bottom.dtype, (bottom,)))
