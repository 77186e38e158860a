"""Images that matrix units convolve lie with their channels last, and so does all that is computed from them.

A matrix unit reads 128 bytes of a row of one factor, and what lies side by side there has to be what is summed: the
channels of a pixel. So images are matrices of pixels by channels here. A convolution whose window is one pixel is a
product of such a matrix; one with a larger window takes the image as it lies, tap by tap, where a pixel has channels
enough (`optimize/images`), and a copy with the taps of each pixel side by side where it has not. The gradient of
weights sums over pixels: it is a product of two such matrices. What is computed from a convolution, element by element
or as a sum over pixels, has the order of its result, to the next convolution, whose image is kept in memory: on a
matrix unit a product costs less than computing its factors for every use.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Sequence
from math import prod
from typing import Final, NamedTuple

from gradlet.base.dtype import dtypes
from gradlet.base.settings import STRICT_FLOAT
from gradlet.graph.extents import HAS_LIMIT
from gradlet.graph.node import UOp, mk, toposort
from gradlet.ops.op import ELEMENTWISE, SCALAR_LEAVES, AxesArg, Op, PadArg, ReduceAxesArg, ShrinkArg
from gradlet.schedule.affineviews import AffineView, Place, affine_view
from gradlet.schedule.clean import REDUCES, find_devices, rebuild
from gradlet.schedule.knownsums import use_known_sums
from gradlet.schedule.moves import chain_to, expand_to, replay, reshape, root_of, whole_root_of
from gradlet.schedule.widen import is_conversion
from gradlet.target.matrixcore import MatrixUnits
from gradlet.target.target import Target
from gradlet.target.unitblocks import ROW

MIN_CHANNELS: Final = 32  # of a pixel, from which on the taps of a window are read as the image lies
MIN_WORK: Final = 1 << 22  # multiply-adds of a product that is worth another order of its factors
PIECE: Final = 16  # bytes: what rows of a copy are a multiple of
_NEEDED: Final = 1 << Op.REDUCE_AXES | 1 << Op.CAST | 1 << Op.WINDOW
_AXES_STAY: Final = frozenset({Op.EXPAND, Op.PAD, Op.SHRINK, Op.FLIP, Op.STRIDE, Op.WINDOW, Op.UNWINDOW, Op.PERMUTE})
_ASKED: Final = ELEMENTWISE | REDUCES | _AXES_STAY | {Op.RESHAPE}


def keep_pixels_as_rows(root: UOp, target_of: Callable[[str], Target], default_device: str) -> UOp:
    """The graph with convolutions as products of pixels and channels, and what is computed from them in that order."""
    if root.mask & _NEEDED != _NEEDED or root.mask & HAS_LIMIT or STRICT_FLOAT.value:
        return root
    order = toposort((root,))
    devices = find_devices(order)
    found: dict[UOp, Convolution] = {}
    for node in order:
        if node.op in REDUCES and node.arg.op is Op.ADD and node.src[0].op is Op.MUL:
            target = target_of(devices.get(node, default_device))
            if target.matrix_units is not None and target.copy_engine:
                one = convolution_of(node, target.matrix_units)
                if one is not None:
                    found[node] = one
    if not any(one.slides for one in found.values()):
        return root
    simpler = use_known_sums(root, order)
    if simpler is not root:
        return keep_pixels_as_rows(simpler, target_of, default_device)
    # What zeros are put between is computed before.
    spread = {root_of(n) for n in order if n.op in (Op.PAD, Op.UNWINDOW)} & found.keys()
    return _Order(found, spread | _narrow_values(order)).run(root, order)


def _narrow_values(order: Sequence[UOp]) -> set[UOp]:
    """Narrow floats that several users convert: stored as they are, they are read in half the time."""
    uses = Counter(source for node in order for source in node.src)
    return {node.src[0] for node in order if is_conversion(node) and uses[node] > 1}


class Convolution(NamedTuple):
    """A sum of products of an image and weights, or of an image and the gradient of a convolution's result.

    Attributes:
        image: which factor is the image: 0 or 1.
        rows: the axes of the result that the image has, channels last.
        columns: those that the other factor has, the longest last.
        summed: the axes of the sum, taps before channels.
        slides: whether the windows of pixels have taps.
        of_weights: whether pixels are summed: the result is a gradient of weights.
        views: what both factors show.
    """

    image: int
    rows: tuple[int, ...]
    columns: tuple[int, ...]
    summed: tuple[int, ...]
    slides: bool
    of_weights: bool
    views: tuple[AffineView, AffineView]

    def factors(self) -> list[UOp]:
        """What is read as it lies: weights under windows are copied tap by tap."""
        packed = self.slides and not self.of_weights
        return [view.base for which, view in enumerate(self.views) if which == self.image or not packed]


def convolution_of(node: UOp, units: MatrixUnits) -> Convolution | None:
    """What convolution a sum is, if matrix units multiply its factors; None where it is none."""
    product = node.src[0]
    shape = product.shape
    bottoms = [root_of(side) for side in product.src]
    if prod(shape) < MIN_WORK or any(b.op is not Op.CAST for b in bottoms) or node.arg.limited:
        return None
    factor = units.pair(bottoms[0].src[0].dtype, bottoms[1].src[0].dtype)
    if factor is None or not factor.turns or not factor.converted or product.dtype is not factor.total:
        return None
    views = affine_view(product.src[0]), affine_view(product.src[1])
    if any(view.base.dtype is not b.src[0].dtype for view, b in zip(views, bottoms, strict=True)):
        return None
    reduced = frozenset([axis for axis in node.arg.axes if shape[axis] > 1])
    terms = [[axis for place in view.places for axis, _ in place.terms] for view in views]
    if any(len(set(each)) < len(each) for each in terms):
        return None
    axes = [frozenset(each) for each in terms]
    own = [each - reduced for each in axes]
    if axes[0] & axes[1] != reduced or not reduced or not own[0] or not own[1]:
        return None
    sliding = [[p for p in view.places if len(p.terms) == 2] for view in views]
    if any(len({axis in reduced for axis, _ in p.terms}) < 2 for places in sliding for p in places):
        return None
    if sliding[0] and sliding[1]:
        return None
    if sliding[0] or sliding[1]:
        image = 0 if sliding[0] else 1
        taps = {min(p.terms, key=lambda term: shape[term[0]])[0] for p in sliding[image]}
        pixels = {axis for p in sliding[image] for axis, _ in p.terms} - taps
        of_weights = pixels <= reduced
        if not of_weights and pixels & reduced:
            return None
    else:
        first = [next(p.terms[0][0] for p in view.places if p.terms) for view in views]
        sizes = [prod(shape[axis] for axis in each) for each in own]
        # Weights have few axes of their own, or channels that are summed ahead of all others.
        image = max((0, 1), key=lambda which: (len(own[which]), first[which] not in reduced, sizes[which]))
        taps = set()
        of_weights = len(reduced) > 1
        if _in_order(views, own, of_weights) or max(len(own[image]), len(reduced)) < 2:
            return None

    def order(found: frozenset[int]) -> tuple[int, ...]:
        return tuple(sorted(found, key=lambda axis: (axis not in taps, axis)))

    backwards = {axis for view in views for p in view.places for axis, step in p.terms if step < 0}
    if not of_weights and (len(reduced - taps) != 1 or not backwards <= reduced):
        return None
    columns = tuple(sorted(own[1 - image], key=lambda axis: (shape[axis], axis)))
    return Convolution(image, order(own[image]), columns, order(reduced), bool(taps), of_weights, views)


def _in_order(views: Sequence[AffineView], own: Sequence[frozenset[int]], of_weights: bool) -> bool:
    """Whether channels lie side by side already: those of the sum, or those of a gradient of weights."""
    for view, kept in zip(views, own, strict=True):
        last = next((p.terms[0][0] for p in reversed(view.places) if p.terms), None)
        if (last in kept) != of_weights and len(kept) > 1 - of_weights:
            return False
    return True


class _Order:
    """A graph in the order of channels.

    Attributes:
        orders: for nodes that are computed with their axes in another order, that order.
        last: for nodes that show an image, its axis of channels.
        turned: for nodes with an order, what is computed.
    """

    def __init__(self, found: dict[UOp, Convolution], spread: set[UOp]) -> None:
        self.found = found
        self.products = {node.src[0] for node in found}
        self.stored = {base for one in found.values() for base in one.factors()} | spread
        self.orders: dict[UOp, tuple[int, ...]] = {}
        self.turned: dict[UOp, UOp] = {}
        self.last: dict[UOp, int] = {}
        self.new: dict[UOp, UOp] = {}

    def run(self, root: UOp, order: Sequence[UOp]) -> UOp:
        """The graph from its sources on."""
        return rebuild(root, self.change, _ASKED, order, self.new)

    def change(self, node: UOp, src: tuple[UOp, ...]) -> UOp | None:
        """What a node becomes; None where nothing but its sources does."""
        if node in self.found:
            one = self.found[node]
            if one.of_weights:
                return self.of_weights(node, one)
            return self.keep(node, *self.of_pixels(node, one))
        if node in self.products:
            return None
        if node.op in ELEMENTWISE:
            order = next((o for s in node.src if s.shape == node.shape and (o := self.order(s)) is not None), None)
            if order is None:
                return None
            sides = [s if s.op in SCALAR_LEAVES else permuted(s, order) for s in src]
            return self.keep(node, mk(node.op, node.dtype, tuple(sides), node.arg), order)
        if node.op in REDUCES:
            return self.reduced(node, src)
        if node.op is Op.RESHAPE:
            return self.reshaped(node, src[0])
        if node.src[0] in self.last:
            axis = self.last[node.src[0]]
            self.last[node] = node.arg.axes.index(axis) if node.op is Op.PERMUTE else axis
        return None

    def order(self, node: UOp) -> tuple[int, ...] | None:
        """The order of axes that a node is computed in, or wanted in."""
        if node in self.orders:
            return self.orders[node]
        if node not in self.last:
            return None
        last = self.last[node]
        return (*[axis for axis in range(len(node.shape)) if axis != last], last)

    def keep(self, node: UOp, value: UOp, order: tuple[int, ...]) -> UOp:
        """Note what a node is with its axes in an order; returns it as it was asked for."""
        if node in self.stored and value.op is not Op.CONTIGUOUS:
            value = mk(Op.CONTIGUOUS, value.dtype, (value,))
        self.orders[node], self.turned[node], self.last[node] = order, value, order[-1]
        return permuted(value, _inverse(order))

    def reduced(self, node: UOp, src: tuple[UOp, ...]) -> UOp | None:
        """A reduction of an image over other axes than its channels."""
        order = self.order(node.src[0])
        if order is None or order[-1] in node.arg.axes or node.arg.limited:
            return None
        axes = tuple([place for place, axis in enumerate(order) if axis in node.arg.axes])
        kept = [axis for axis in range(len(order)) if axis not in node.arg.axes]
        value = mk(node.op, node.dtype, (permuted(src[0], order),), ReduceAxesArg(node.arg.op, axes))
        return self.keep(node, value, tuple([kept.index(axis) for axis in order if axis in kept]))

    def reshaped(self, node: UOp, source: UOp) -> UOp | None:
        """A reshape that leaves the axis of channels as it is."""
        old = node.src[0]
        if old not in self.last:
            return None
        last, size = self.last[old], old.shape[self.last[old]]
        wide = [axis for axis, n in enumerate(old.shape) if n != 1]
        there = [axis for axis, n in enumerate(node.shape) if n != 1]
        if size == 1:
            return None
        if [old.shape[a] for a in wide] == [node.shape[a] for a in there]:
            order = self.order(old)
            assert order is not None
            ones = [axis for axis, n in enumerate(node.shape) if n == 1]
            new = (*ones, *[there[wide.index(axis)] for axis in order if axis in wide])
            return self.keep(node, reshape(permuted(source, order), tuple([node.shape[a] for a in new])), new)
        ahead = prod(old.shape[:last])
        for axis, n in enumerate(node.shape):
            if n == size and prod(node.shape[:axis]) == ahead:
                self.last[node] = axis
        return None

    # products
    def of_pixels(self, node: UOp, one: Convolution) -> tuple[UOp, tuple[int, ...]]:
        """A convolution, and the order of its axes: channels last."""
        product, shape = node.src[0], node.src[0].shape
        kept = [axis for axis in range(len(shape)) if axis not in node.arg.axes]
        order = (*[axis for axis in kept if axis not in one.columns], *one.columns)
        back = tuple([kept.index(axis) for axis in order])
        if one.slides and shape[one.summed[-1]] >= MIN_CHANNELS and len(one.columns) == 1:
            inner = [axis for axis in node.arg.axes if axis not in one.summed]
            turned = (*order, *inner, *one.summed)
            backwards = {axis for view in one.views for p in view.places for axis, step in p.terms if step < 0}
            sides = [_flipped(self.narrow(product.src[which], one.views[which]), backwards) for which in (0, 1)]
            if backwards or not self.lies(one, (*one.columns, *one.summed)):
                sides[1 - one.image] = _packed(sides[1 - one.image], (*one.columns, *one.summed))
            casts = [mk(Op.CAST, product.dtype, (permuted(side, turned),)) for side in sides]
            both = mk(Op.MUL, product.dtype, tuple(casts))
            axes = tuple(range(len(order), len(shape)))
            return mk(node.op, node.dtype, (both,), ReduceAxesArg(Op.ADD, axes)), back
        image = self.matrix(product, one, one.image, one.rows, one.summed)
        weights = self.matrix(product, one, 1 - one.image, one.columns, one.summed)
        return reshape(_product(image, weights), tuple([shape[axis] for axis in order])), back

    def of_weights(self, node: UOp, one: Convolution) -> UOp:
        """The gradient of weights: a product of pixels by channels with pixels by taps and channels."""
        product, shape = node.src[0], node.src[0].shape
        factors = [(one.image, one.rows), (1 - one.image, one.columns)]
        factors.sort(key=lambda pair: min(pair[1]))
        first, second = (self.matrix(product, one, which, own, one.summed) for which, own in factors)
        found = (*factors[0][1], *factors[1][1])
        kept = [axis for axis in range(len(shape)) if axis not in node.arg.axes]
        total = reshape(_product(first, second), tuple([shape[axis] for axis in found]))
        return reshape(
            permuted(total, sorted(range(len(found)), key=found.__getitem__)), tuple([shape[a] for a in kept])
        )

    def lies(self, one: Convolution, axes: Sequence[int]) -> bool:
        """Whether weights are in memory in this order of their axes."""
        view = one.views[1 - one.image]
        base = self.new.get(view.base, view.base)
        dims = {place.terms[0][0]: dim for dim, place in enumerate(view.places) if _is_whole(place, view, dim)}
        if set(dims) != set(axes) or whole_root_of(base).op not in (Op.BUFFER, Op.CONTIGUOUS):
            return False
        ones = [dim for dim, n in enumerate(base.shape) if n == 1]
        order = [*ones, *[dims[axis] for axis in axes]]
        found = permuted(base, order) if len(order) == len(base.shape) else base
        while found.op is Op.RESHAPE:
            found = found.src[0]
        return len(order) == len(base.shape) and found.op in (Op.BUFFER, Op.CONTIGUOUS)

    def narrow(self, side: UOp, view: AffineView) -> UOp:
        """A factor as its movement ops show it, below its conversion."""
        bottom = root_of(side)
        chain = [*chain_to(side, bottom), *chain_to(bottom.src[0], view.base)]
        return replay(chain, self.new.get(view.base, view.base))

    def matrix(self, product: UOp, one: Convolution, which: int, outer: Sequence[int], inner: Sequence[int]) -> UOp:
        """A factor as a matrix of what is kept by what is summed; copied where it does not lie as one."""
        view, shape = one.views[which], product.shape
        size = prod(shape[axis] for axis in outer), prod(shape[axis] for axis in inner)
        base = self.new.get(view.base, view.base)
        dims = {place.terms[0][0]: dim for dim, place in enumerate(view.places) if _is_whole(place, view, dim)}
        ones = [dim for dim, n in enumerate(base.shape) if n == 1]
        if len(dims) == len(outer) + len(inner) and len(dims) + len(ones) == len(base.shape):
            for first, second in ((outer, inner), (inner, outer)):
                order = [*ones, *[dims[axis] for axis in (*first, *second)]]
                found = permuted(base, order)
                if found.op is not Op.PERMUTE:
                    flat = reshape(found, size if first is outer else size[::-1])
                    return flat if first is outer else permuted(flat, (1, 0))
        narrow = self.narrow(product.src[which], view)
        first = inner if one.of_weights else outer
        second = outer if one.of_weights else inner
        rest = [axis for axis in range(len(shape)) if axis not in (*first, *second)]
        bounds = tuple([(0, n) if axis in (*first, *second) else (0, 1) for axis, n in enumerate(shape)])
        alone = mk(Op.SHRINK, narrow.dtype, (narrow,), ShrinkArg(bounds))
        flat = reshape(permuted(alone, (*rest, *first, *second)), size[::-1] if one.of_weights else size)
        missing = -flat.shape[1] % (PIECE // narrow.dtype.itemsize)
        if missing:
            flat = mk(Op.PAD, flat.dtype, (flat,), PadArg(((0, 0), (0, missing))))
        flat = mk(Op.CONTIGUOUS, flat.dtype, (flat,))
        if missing:
            cut = ShrinkArg(((0, flat.shape[0]), (0, flat.shape[1] - missing)))
            flat = mk(Op.SHRINK, flat.dtype, (flat,), cut)
        return permuted(flat, (1, 0)) if one.of_weights else flat


def _product(rows: UOp, columns: UOp) -> UOp:
    """The product of two matrices of 16 bits whose second axes are summed.

    A sum that a single step has all of, which no buffers turn over, has zeros as a second step: they are no memory, the
    copy engine puts them where rows have ended.
    """
    depth, step = rows.shape[1], ROW // rows.dtype.itemsize
    if step // 2 <= depth <= step:
        pads = PadArg(((0, 0), (0, 2 * step - depth)))
        rows, columns = (mk(Op.PAD, side.dtype, (side,), pads) for side in (rows, columns))
    shape = (rows.shape[0], columns.shape[0], rows.shape[1])
    sides = (
        expand_to(reshape(rows, (shape[0], 1, shape[2])), shape),
        expand_to(reshape(columns, (1, *shape[1:])), shape),
    )
    both = mk(Op.MUL, dtypes.float32, tuple([mk(Op.CAST, dtypes.float32, (side,)) for side in sides]))
    return mk(Op.REDUCE_AXES, dtypes.float32, (both,), ReduceAxesArg(Op.ADD, (2,)))


def _is_whole(place: Place, view: AffineView, dim: int) -> bool:
    """Whether an axis of the base is an axis of the view, from its beginning to its end."""
    if len(place.terms) != 1 or place.offset or place.inside is not None:
        return False
    axis, step = place.terms[0]
    return step == 1 and view.shape[axis] == view.base.shape[dim]


def _flipped(node: UOp, axes: Collection[int]) -> UOp:
    """A factor with axes that are summed the other way around: taps of a gradient, which go backwards."""
    return mk(Op.FLIP, node.dtype, (node,), AxesArg(tuple(sorted(axes)))) if axes else node


def _packed(node: UOp, axes: Sequence[int]) -> UOp:
    """A factor as a copy whose axes lie in this order."""
    shape = node.shape
    bounds = tuple([(0, n) if axis in axes else (0, 1) for axis, n in enumerate(shape)])
    alone = mk(Op.SHRINK, node.dtype, (node,), ShrinkArg(bounds))
    order = (*[axis for axis in range(len(shape)) if axis not in axes], *axes)
    copy = mk(Op.CONTIGUOUS, node.dtype, (_with_own_conversion(permuted(alone, order)),))
    return expand_to(permuted(copy, _inverse(order)), shape)


def _with_own_conversion(node: UOp) -> UOp:
    """A view of a converted value as the conversion of a view: each copy in another order converts for itself."""
    bottom = root_of(node)
    if bottom.op is not Op.CAST:
        return node
    return mk(Op.CAST, node.dtype, (replay(chain_to(node, bottom), bottom.src[0]),))


def permuted(node: UOp, order: Sequence[int]) -> UOp:
    """The axes of a node in another order, as one PERMUTE at most."""
    if node.op is Op.PERMUTE:
        node, order = node.src[0], [node.arg.axes[axis] for axis in order]
    if list(order) == sorted(order):
        return node
    return mk(Op.PERMUTE, node.dtype, (node,), AxesArg(tuple(order)))


def _inverse(order: Sequence[int]) -> tuple[int, ...]:
    return tuple([order.index(axis) for axis in range(len(order))])
