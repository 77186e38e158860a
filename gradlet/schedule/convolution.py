"""Images under sliding windows are copied so that a convolution's inner loops read them without guards or gathers.

A convolution is a product of an image, read at `stride * pixel + dilation * tap - padding`, and of weights. Three
things keep its loops from running like those of a matrix product, and one copy of the image, which many multiply-adds
read, cures each:

* zeros around the image: the copy has them, so that no load is guarded;
* strides: the copy has every s-th column side by side (a plane a phase), so that lanes read neighbours;
* narrow images: rows that do not fill the lanes. The copy has a plane for each tap of the last axis; then all rows
  follow each other without a gap, and lanes run over the whole image.

Where weights are used often enough to be copied as well, lanes are channels of the result: weights lie in strips of
channels, `[strip][taps][channels in][lanes]`, and the image has its channels last, so that taps of a row and channels
are one contiguous run, each element of which is broadcast. Strides, borders and narrow images then cost nothing. The
result is kept with its channels last, too (`channelslast`).

The gradients are convolutions too: that of the image with the windows the other way around, that of the weight with
sums over pixels. What is a copy worth is decided by what it costs and saves, never by which convolution it is.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from math import prod
from typing import Final

from gradlet.base.settings import STRICT_FLOAT
from gradlet.graph.node import UOp, mk, toposort
from gradlet.ops.op import ELEMENTWISE, MOVEMENT, AxesArg, Op, PadArg, ReduceAxesArg, ShrinkArg, StrideArg
from gradlet.schedule.affineviews import AffineView, Place, affine_view
from gradlet.schedule.clean import HAS_REDUCES, REDUCES, find_devices, rebuild
from gradlet.schedule.moves import expand_to
from gradlet.schedule.slidingwindows import Roles, Window, cut_apart, join_windows, reshape, slide
from gradlet.target.target import Target

# An element of a copy costs about so many cycles, its way to memory and back included.
COPY_CYCLES: Final = 1
# A guard in the inner loop costs as much as so many multiply-adds of one register.
MIN_REUSE: Final = 32
# Lanes so far apart are gathered, which a copy does once. Nearer ones are picked out of whole vectors.
FAR_APART: Final = 5
MIN_STRIDED_REUSE: Final = 2
MIN_NEAR_REUSE: Final = 16
# Weights that are used less often are read in the order in which they lie.
MIN_WEIGHT_REUSE: Final = 128
# Copying weights into strips of channels costs as much as so many uses of them.
MIN_STRIP_REUSE: Final = 128
# Nodes that are looked at to see what an image is computed from.
NEAR: Final = 60
# A part of fewer terms does not pay for its partial sum.
MIN_PART: Final = 256
_HAS_COPIES: Final = 1 << Op.CONTIGUOUS
_GOES_ON: Final = MOVEMENT | ELEMENTWISE
# Vectors of pixels that a register tile takes.
TILE_VECTORS: Final = 2


def stage_convolutions(
    root: UOp,
    target_of: Callable[[str], Target],
    default_device: str,
    sums: set[UOp] | None = None,
    settled: Collection[UOp] = (),
) -> UOp:
    """The graph with the images of convolutions copied where their order in memory is a bad one.

    Args:
        root: a SINK of roots.
        target_of: facts about a device, by its name.
        default_device: where nothing says otherwise.
        sums: gets the sums that are kept in memory with their channels last.
        settled: buffers that are expected to stay as they are: copies of them are made once.
    """
    if not root.mask & HAS_REDUCES:
        return root
    order = toposort((root,))
    if not any(n.src[0].op is Op.MUL for n in order if n.op in REDUCES):
        return root
    devices = find_devices(order)

    def change(node: UOp, src: tuple[UOp, ...]) -> UOp | None:
        if node.arg.op is not Op.ADD or src[0].op is not Op.MUL or node.arg.limited:
            return None
        target = target_of(devices.get(node, default_device))
        if target.kind != "cpu" or not node.dtype.is_float or 0 in src[0].shape:
            return None
        same = mk(node.op, node.dtype, src, node.arg)
        staged = _staged(same, target, sums or (), settled)
        if staged is not None and sums is not None:
            below = staged.src[0] if staged.op is Op.PERMUTE else staged
            if below.op is Op.CONTIGUOUS:
                sums.add(below)
        return same if staged is None else staged

    return rebuild(root, change, REDUCES, order)


def _staged(node: UOp, target: Target, sums: Collection[UOp], settled: Collection[UOp]) -> UOp | None:
    product = node.src[0]
    behind = [_is_behind(factor, sums) for factor in product.src]
    if not any(behind) and all(_plain(factor) for factor in product.src):
        return None
    reduced = frozenset(node.arg.axes)
    views = [affine_view(factor) for factor in product.src]
    axes = [frozenset([axis for place in view.places for axis, _ in place.terms]) for view in views]
    for which in (0, 1):
        roles = Roles(axes[which] & axes[1 - which], reduced)
        image = views[which]
        turned = [axis for place in image.places for axis, step in place.terms if step < 0]
        if not reduced.issuperset(turned) or (turned and STRICT_FLOAT.value):  # they would be added last to first
            continue
        image = image._replace(places=tuple([_forward(place, image.shape) for place in image.places]))
        cut = cut_apart(image, roles)
        if cut is None:
            continue
        copy = _Copy(*join_windows(*cut, roles), roles, target)
        other = _flipped(product.src[1 - which], turned)
        own = axes[1 - which] - axes[which]
        often = copy.work >= MIN_STRIP_REUSE * prod(_source(other).shape)
        if copy.wants_channels_last(behind[which]) and (often or depends_on_settled(_source(other), settled)):
            strips = _channels_last(other, own, roles, target, copy.last_axes())
            if strips is not None:
                copy.broadcast = copy.channels_last = True
                return _channels_last_product(node, [copy.factor(), strips], which, own, copy.last_axes())
        channels = _channels_last(other, own, roles, target) if copy.sums_pixels() else None
        if channels is not None:
            copy.broadcast = True
            factors = [copy.factor() if copy.pays() else product.src[which], channels]
        elif copy.pays():
            factors = [copy.factor(), _rows_first(other, roles, copy.work)]
        else:
            continue
        both = mk(Op.MUL, product.dtype, tuple(factors if which == 0 else factors[::-1]), None)
        whole = mk(node.op, node.dtype, (both,), node.arg)
        return whole if channels is None else _in_parts(whole, target)
    return None


def _in_parts(node: UOp, target: Target) -> UOp:
    """A sum over more pixels than a strip of channels has in the second cache, as partial sums and their sum."""
    if STRICT_FLOAT.value:
        return node
    product = node.src[0]
    depth = prod(product.shape[axis] for axis in node.arg.axes)
    strip = target.lanes(product.dtype) * _strip_vectors(target) * product.dtype.itemsize
    wanted = -(-depth * strip * 2 // target.l2_bytes)
    parts = [1] * len(product.shape)
    for axis in sorted(node.arg.axes):
        size, left = product.shape[axis], -(-wanted // prod(parts))
        if left > 1:
            parts[axis] = next(n for n in range(min(left, size), size + 1) if size % n == 0)
    if prod(parts) == 1 or depth // prod(parts) < MIN_PART:
        return node

    def cut(shape: Sequence[int]) -> tuple[int, ...]:
        """The parts, then what is left of each axis."""
        ahead = [n if size > 1 else 1 for n, size in zip(parts, shape, strict=True) if n > 1]
        return (*ahead, *[size if size == 1 else size // n for n, size in zip(parts, shape, strict=True)])

    def pieces(factor: UOp) -> UOp:
        source = factor.src[0] if factor.op is Op.EXPAND else factor
        split: list[int] = []
        first, rest = [], []
        for n, size in zip(parts, source.shape, strict=True):
            if n > 1:
                first.append(len(split))
                split.append(n if size > 1 else 1)
            rest.append(len(split))
            split.append(size if size == 1 else size // n)
        return expand_to(_permuted(reshape(source, tuple(split)), [*first, *rest]), cut(product.shape))

    both = mk(Op.MUL, product.dtype, tuple([pieces(factor) for factor in product.src]), None)
    ahead = sum(n > 1 for n in parts)
    inner = ReduceAxesArg(Op.ADD, tuple([axis + ahead for axis in node.arg.axes]))
    partial = mk(node.op, node.dtype, (both,), inner)
    return mk(node.op, node.dtype, (partial,), ReduceAxesArg(Op.ADD, tuple(range(ahead))))


def _channels_last_product(
    node: UOp, factors: Sequence[UOp], which: int, own: frozenset[int], last: Sequence[int]
) -> UOp:
    """The sum with its axes in the order in which the copies have them, kept in memory with its channels last."""
    product = node.src[0]
    axes = range(len(product.shape))
    kept = [axis for axis in axes if axis not in node.arg.axes]
    result = sorted(kept, key=lambda axis: axis in own)
    order = [*result, *[axis for axis in axes if axis in node.arg.axes and axis not in last], *last]
    turned = [_permuted(factor, order) for factor in factors]
    both = mk(Op.MUL, product.dtype, tuple(turned if which == 0 else turned[::-1]), None)
    total = mk(node.op, node.dtype, (both,), ReduceAxesArg(Op.ADD, tuple(range(len(kept), len(order)))))
    return _permuted(mk(Op.CONTIGUOUS, node.dtype, (total,), None), [result.index(axis) for axis in kept])


def depends_on_settled(node: UOp, settled: Collection[UOp]) -> bool:
    """Whether a value is made of settled memory alone."""
    if not settled:
        return False
    leaves = [n for n in toposort((node,)) if not n.src and n.op is not Op.CONST]
    return bool(leaves) and all(leaf in settled for leaf in leaves)


def _source(factor: UOp) -> UOp:
    """A factor before it is repeated along the axes of the other one."""
    return factor.src[0] if factor.op is Op.EXPAND else factor


def _strip_choices(target: Target) -> tuple[int, ...]:
    """Vectors of channels that suit a tile of pixels, the best first."""
    return (4, 3, 2, 1) if target.vector_registers >= 32 else (2, 3, 1)


def _strip_vectors(target: Target) -> int:
    """Vectors of channels that a register tile takes, as in strips of matrix products."""
    return 4 if target.vector_registers >= 32 else 2


def _rows_first(factor: UOp, roles: Roles, work: int) -> UOp:
    """Weights copied so that each row of them is in one piece, in the order of the sum, where they are used often."""
    source = factor.src[0] if factor.op is Op.EXPAND else factor
    if work < MIN_WEIGHT_REUSE * prod(source.shape):
        return factor
    view = affine_view(source, len(source.shape))
    terms = [term for place in view.places for term in sorted(place.terms, key=lambda term: -abs(term[1]))]
    order = [axis for axis, _ in terms]
    rows = [axis for axis in order if axis not in roles.reduced]
    if order[: len(rows)] == rows and all(step > 0 for _, step in terms):
        return factor
    axes = range(len(source.shape))
    wanted = [axis for axis in axes if axis not in roles.reduced] + [axis for axis in axes if axis in roles.reduced]
    stored = mk(Op.CONTIGUOUS, source.dtype, (_permuted(source, wanted),), None)
    return expand_to(_permuted(stored, [wanted.index(axis) for axis in axes]), factor.shape)


def _channels_last(
    factor: UOp, own: frozenset[int], roles: Roles, target: Target, last: Sequence[int] = ()
) -> UOp | None:
    """The factor that a sum over pixels multiplies an image with, copied in strips of channels, if there are enough.

    Lanes are channels then, and the image's elements are broadcast to them: it may be read at any stride.
    """
    source = factor.src[0] if factor.op is Op.EXPAND else factor
    lanes = target.lanes(factor.dtype)
    wide = [axis for axis in own if source.shape[axis] > 1]
    if len(wide) != 1 or wide[0] in roles.reduced:
        return None
    (axis,) = wide
    count = source.shape[axis]
    wanted = _strip_choices(target) if last else (_strip_vectors(target), 1)
    strip = next((n * lanes for n in wanted if count % (n * lanes) == 0), 0)
    if not strip:
        return None
    shape = source.shape
    cut = reshape(source, (*shape[:axis], count // strip, strip, *shape[axis + 1 :]))
    late = [at if at < axis else at + 1 for at in last]
    order = [axis, *[at for at in range(len(shape) + 1) if at not in (axis, axis + 1, *late)], *late, axis + 1]
    stored = mk(Op.CONTIGUOUS, cut.dtype, (_permuted(cut, order),), None)
    back = _permuted(stored, [order.index(at) for at in range(len(order))])
    return expand_to(reshape(back, shape), factor.shape)


def _is_behind(node: UOp, sums: Collection[UOp]) -> bool:
    """Whether a factor is computed from a sum with its channels last, element by element or by pooling."""
    if not sums or not node.mask & _HAS_COPIES:
        return False
    pending, seen = [node], {node}
    while pending and len(seen) < NEAR:
        part = pending.pop()
        if part in sums:
            return True
        if part.op in _GOES_ON or (part.op in REDUCES and part.arg.op is Op.MAX):
            for source in part.src:
                if source not in seen:
                    seen.add(source)
                    pending.append(source)
    return False


def _plain(node: UOp) -> bool:
    """Whether a factor certainly shows no windows: cheap to see, and true of most products."""
    while node.op in (Op.EXPAND, Op.RESHAPE, Op.CAST):
        node = node.src[0]
    return node.op not in MOVEMENT


def _forward(place: Place, shape: Sequence[int]) -> Place:
    """The same places with axes that run backwards turned around."""
    offset = place.offset + sum(by * (shape[axis] - 1) for axis, by in place.terms if by < 0)
    return Place(tuple([(axis, abs(by)) for axis, by in place.terms]), offset, place.inside)


def _flipped(factor: UOp, axes: Sequence[int]) -> UOp:
    """The other factor with the same axes turned around."""
    source = factor.src[0] if factor.op is Op.EXPAND else factor
    if not source.shape:  # a scalar that broadcasts
        return factor
    mine = tuple(sorted({axis for axis in axes if source.shape[axis] > 1}))
    if not mine:
        return factor
    return expand_to(mk(Op.FLIP, source.dtype, (source,), AxesArg(mine)), factor.shape)


class _Copy:
    """The copy of one image, and what it is worth.

    Attributes:
        apart: windows whose taps get planes of their own.
        broadcast: its elements are broadcast, lanes run along the other factor: zeros are all it needs.
        channels_last: they are, and channels are summed: these come last in memory.
    """

    def __init__(
        self, image: AffineView, windows: dict[int, Window], roles: Roles, target: Target
    ) -> None:  # fmt: skip
        self.image, self.windows, self.roles, self.target = image, windows, roles, target
        self.shape = image.shape
        self.lanes = target.lanes(image.dtype)
        self.apart = self.windows_apart()
        self.broadcast = False
        self.channels_last = False

    # decisions
    @property
    def last(self) -> int | None:
        """The last axis of the image where pixels or steps run: its pixels become lanes."""
        running = [d for d, p in enumerate(self.image.places) if d in self.windows or any(by > 1 for _, by in p.terms)]
        return running[-1] if running else None

    def windows_apart(self) -> frozenset[int]:
        """The windows whose taps get planes of their own."""
        apart = {d for d, w in self.windows.items() if w.stride >= w.dilation * self.shape[w.taps] and w.stride > 1}
        last = self.last
        if last in self.windows and last not in apart and len(self.windows) > 1 and self.gains_by_flat_rows():
            apart.add(last)
        return frozenset(apart)

    def gains_by_flat_rows(self) -> bool:
        """Whether lanes over the whole image waste so much less than lanes over rows that it pays for the copy."""
        assert self.last is not None
        window = self.windows[self.last]
        row = self.shape[window.pixel]
        rows = prod(self.shape[w.pixel] for w in self.windows.values())
        tile = TILE_VECTORS * self.lanes
        saved = _filled(row, tile) - _filled(rows, tile)
        rows_read = self.elements // self.extent(self.image.places[window.dim])
        copied = rows_read * row * self.shape[window.taps]
        return saved * self.work / (2 * self.lanes) > COPY_CYCLES * copied

    @property
    def work(self) -> int:
        """Multiply-adds of the product."""
        return prod(self.shape)

    @property
    def elements(self) -> int:
        """Elements of the image that are read, about."""
        return prod(self.extent(place) for place in self.image.places)

    def extent(self, place: Place) -> int:
        """From the first to the last element that is read along an axis."""
        return 1 + sum(by * (self.shape[axis] - 1) for axis, by in place.terms)

    def sums_pixels(self) -> bool:
        """Whether pixels are summed: the gradient of the weights."""
        pixel = self.last_axis()
        return pixel is not None and self.roles.summed(pixel)

    def pays(self) -> bool:
        """Whether the copy costs less than what it saves."""
        last = self.last
        if last is None:
            return False
        stride = max([by for axis, by in self.image.places[last].terms if self.is_lane(axis, last)], default=1)
        padded = any(p.inside is not None for p in self.image.places)
        reuse = self.work / self.elements
        if self.broadcast:
            return padded and reuse >= MIN_REUSE
        if stride > 1:
            return reuse >= (MIN_STRIDED_REUSE if stride >= FAR_APART else MIN_NEAR_REUSE)
        return bool(self.windows) and (padded or bool(self.apart)) and reuse >= MIN_REUSE

    def is_lane(self, axis: int, dim: int) -> bool:
        """Whether an axis is the one that runs over the pixels of an image's axis."""
        return dim not in self.windows or self.windows[dim].pixel == axis

    def last_axes(self) -> list[int]:
        """The axes of channels that are summed, but for windows: innermost in copies whose elements are broadcast."""
        taps = {window.taps for window in self.windows.values()}
        found = [axis for place in self.image.places for axis, _ in place.terms]
        return [axis for axis in sorted(found) if self.roles.summed(axis) and axis not in taps]

    def wants_channels_last(self, behind: bool) -> bool:
        """Whether lanes along the channels of the result suit: windows over pixels, and channels that are summed.

        Where pixels lie apart there is a copy anyway; what is computed from such a sum (`behind`) has channels last.
        """
        if self.sums_pixels() or self.work / (self.elements or 1) < MIN_REUSE:
            return False
        steps = [by for place in self.image.places for axis, by in place.terms if self.roles.own(axis)]
        if not self.windows and (len(steps) < 2 or not (behind or max(steps) > 1)):
            return False
        if STRICT_FLOAT.value:  # it would change the order of sums
            return False
        return bool(self.last_axes())

    # the copy
    def factor(self) -> UOp:
        """The factor of the product, as a view of a copy."""
        node = self.cut_out()
        node, keys = self.phases(node)
        order = sorted(range(len(keys)), key=lambda at: self.place_in_memory(keys[at], at))
        stored = mk(Op.CONTIGUOUS, node.dtype, (_permuted(node, order),), None)
        return self.shown(_permuted(stored, [order.index(at) for at in range(len(order))]), keys)

    def cut_out(self) -> UOp:
        """What is read of the image, with zeros around it."""
        node = self.image.base
        bounds: list[tuple[int, int]] = []
        pads: list[tuple[int, int]] = []
        for dim, (place, size) in enumerate(zip(self.image.places, node.shape, strict=True)):
            low, high = place.offset, place.offset + self.length(dim)
            inside = place.inside or (0, size)
            first, last = max(low, inside[0], 0), min(high, inside[1], size)
            if first >= last:
                first, last = 0, 0
                bounds.append((0, 0))
                pads.append((0, high - low))
                continue
            bounds.append((first, last))
            pads.append((first - low, high - last))
        if any(bound != (0, size) for bound, size in zip(bounds, node.shape, strict=True)):
            node = mk(Op.SHRINK, node.dtype, (node,), ShrinkArg(tuple(bounds)))
        if node.dtype is not self.image.dtype:
            node = mk(Op.CAST, self.image.dtype, (node,), None)
        if any(pad != (0, 0) for pad in pads):
            node = mk(Op.PAD, node.dtype, (node,), PadArg(tuple(pads)))
        return node

    def length(self, dim: int) -> int:
        """How much of an axis is copied: whole phases."""
        extent = self.extent(self.image.places[dim])
        window = self.windows.get(dim)
        if window is None or dim in self.apart or self.broadcast:
            return extent
        return -(-extent // window.stride) * window.stride

    def phases(self, node: UOp) -> tuple[UOp, list[tuple[int, str]]]:
        """The image with each strided axis in phases, and each window apart in taps; each of its axes by its key."""
        keys: list[tuple[int, str]] = []
        if self.broadcast and not self.channels_last:
            return node, [(dim, "whole") for dim in range(len(self.image.places))]
        steps = []
        for dim, place in enumerate(self.image.places):
            alone = place.terms[0][1] if dim not in self.windows and place.terms else 1
            steps.append(alone)
        if any(step > 1 for step in steps):
            node = mk(Op.STRIDE, node.dtype, (node,), StrideArg(tuple(steps)))
        if self.broadcast:
            return node, [(dim, "whole") for dim in range(len(self.image.places))]
        at = 0
        for dim in range(len(self.image.places)):
            window = self.windows.get(dim)
            if window is None:
                keys.append((dim, "all"))
            elif dim in self.apart:
                node = slide(node, at, window, self.shape)
                keys += [(dim, "pixel"), (dim, "tap")]
                at += 1
            else:
                whole = node.shape[at]
                node = reshape(node, (*node.shape[:at], whole // window.stride, window.stride, *node.shape[at + 1 :]))
                keys += [(dim, "pixel"), (dim, "phase")]
                at += 1
            at += 1
        return node, keys

    def place_in_memory(self, key: tuple[int, str], at: int) -> tuple[int, int]:
        """Where an axis of the copy stands: pixels of the last axis innermost, channels and phases outside of them."""
        dim, kind = key
        last = self.last
        if kind == "whole":
            if not self.channels_last or dim in self.windows:
                return (0, at)
            channels = self.last_axes()
            return (int(any(axis in channels for axis, _ in self.image.places[dim].terms)), at)
        if kind == "pixel" or dim == last:
            if dim == last and kind in ("pixel", "all"):
                return (4, at)
            if kind != "pixel":
                return (2, at)
            return (3, at) if self.flat_rows() else (0, at)
        if kind == "all":
            axis = next((axis for axis, _ in self.image.places[dim].terms), None)
            return (1 if axis is not None and self.is_channel(axis) else 0, -1 if kind == "all" else at)
        return (2, at)

    def is_channel(self, axis: int) -> bool:
        """Whether an axis is one of channels: summed where pixels are not, and of the result where they are."""
        pixel = self.last_axis()
        if pixel is None:
            return self.roles.summed(axis)
        return self.roles.own(axis) if self.roles.summed(pixel) else self.roles.summed(axis)

    def last_axis(self) -> int | None:
        """The axis of the product that runs along the rows of the image."""
        if self.last is None:
            return None
        if self.last in self.windows:
            return self.windows[self.last].pixel
        return self.image.places[self.last].terms[0][0]

    def flat_rows(self) -> bool:
        """Whether rows follow each other without a gap."""
        return self.last in self.apart or self.last not in self.windows

    def shown(self, node: UOp, keys: Sequence[tuple[int, str]]) -> UOp:
        """The copy as the product reads it."""
        at = 0
        axes: list[int | None] = []
        for dim, place in enumerate(self.image.places):
            window = self.windows.get(dim)
            if window is None:
                axes.append(place.terms[0][0] if place.terms else None)
                if self.broadcast and not self.channels_last and place.terms and place.terms[0][1] > 1:
                    steps = StrideArg(tuple([place.terms[0][1] if n == at else 1 for n in range(len(node.shape))]))
                    node = mk(Op.STRIDE, node.dtype, (node,), steps)
                at += 1
                continue
            if self.broadcast:
                node = slide(node, at, window, self.shape)
            elif dim not in self.apart:
                whole = node.shape[at] * node.shape[at + 1]
                node = reshape(node, (*node.shape[:at], whole, *node.shape[at + 2 :]))
                node = slide(node, at, window, self.shape)
            axes += [window.pixel, window.taps]
            at += 2
        kept = [at for at, axis in enumerate(axes) if axis is not None]
        assert all(node.shape[at] == 1 for at, axis in enumerate(axes) if axis is None)
        node = reshape(node, tuple([node.shape[at] for at in kept]))
        known = [axis for axis in axes if axis is not None]
        node = _permuted(node, sorted(range(len(known)), key=lambda at: known[at]))
        node = reshape(node, tuple([size if axis in known else 1 for axis, size in enumerate(self.shape)]))
        return expand_to(node, self.shape)


def _filled(size: int, tile: int) -> float:
    """How much more is computed than needed when a range is cut into tiles."""
    return -(-size // tile) * tile / size


def _permuted(node: UOp, order: Sequence[int]) -> UOp:
    return node if list(order) == sorted(order) else mk(Op.PERMUTE, node.dtype, (node,), AxesArg(tuple(order)))
