"""Convolutions by matrix units: a block of pixels by channels, summed over the taps of the window and the channels.

The copy engine fetches a box of an image whose channels lie side by side: 128 bytes of channels of eight pixels of a
row, of 16 rows or images. A tap moves the box by a pixel, and outside of the image there are zeros, so nothing is
copied before and nothing is guarded. The eight pixels are lanes, the rows or images are warps.
"""

from __future__ import annotations

from math import prod
from typing import Final, NamedTuple

from gradlet.graph.node import UOp
from gradlet.ops.op import AxisKind, Op, adds_in_order
from gradlet.ops.opt import Opt, OptKind, TensorizeDetail
from gradlet.optimize.analysis import KernelFacts, make_range, range_size
from gradlet.optimize.blocks import Opts, Product, columns_of, load_of
from gradlet.target.target import Target

PIXELS: Final = 8  # of a row in a box
SHORTEST: Final = 32  # channels that are worth a step of the sum


class Image(NamedTuple):
    """A convolution: the sum, its channels, the image and the weights, channels of the result, pixels, their width.

    `cuts` are for every range of `pixels` the lengths of a row, of an image, where it runs over several of these.
    """

    reduce: UOp
    channels: UOp
    image: UOp
    weights: UOp
    columns: UOp
    pixels: list[UOp]
    cuts: tuple[tuple[int, ...], ...]


def image_of(facts: KernelFacts) -> Image | None:
    """The convolution that a kernel is, None where it is something else."""
    if len(facts.reduces) != 1 or any(n.op in (Op.CARRY, Op.AFTER) for n in facts.order):
        return None
    reduce = facts.reduces[0]
    value, summed = reduce.src[0], reduce.src[1:]
    if reduce.arg.op is not Op.ADD or adds_in_order(Op.ADD, reduce.dtype) or value.op is not Op.MUL or len(summed) < 2:
        return None
    if any(r.arg.kind is not AxisKind.REDUCE or range_size(r) is None for r in summed):
        return None
    sides = [load_of(side) for side in value.src]
    loads = [side for side in sides if side is not None]
    if len(loads) != 2 or loads[0] is loads[1]:
        return None
    accesses = {a.node: a for a in facts.accesses}
    channels = [r for r in summed if all(facts.stride(accesses[load], r) == 1 for load in loads)]
    if len(channels) != 1 or (range_size(channels[0]) or 0) < SHORTEST:
        return None
    loops = [r for r in facts.loops if r.arg.kind is AxisKind.LOOP]
    if any(range_size(r) is None or any(r not in facts.ranges[s] for s in facts.stores) for r in loops):
        return None
    # Guards, and more pixels than channels, tell the image from the weights.
    image, weights = sorted(
        loads, key=lambda load: (len(load.src[0].src) > 2, _outputs(facts, load, loops)), reverse=True
    )
    pixels = [r for r in loops if r in facts.ranges[image] and r not in facts.ranges[weights]]
    columns = [r for r in loops if r in facts.ranges[weights] and r not in facts.ranges[image]]
    if len(columns) != 1 or not pixels or len(pixels) + 1 != len(loops) or len(weights.src[0].src) > 2:
        return None
    return _with_rows(facts, Image(reduce, channels[0], image, weights, columns[0], pixels, ()))


def _outputs(facts: KernelFacts, load: UOp, loops: list[UOp]) -> int:
    result = 1
    for r in loops:
        if r in facts.ranges[load]:
            result *= range_size(r) or 1
    return result


def _with_rows(facts: KernelFacts, found: Image) -> Image | None:
    """The convolution with its pixels in order, those of a row first."""
    access = next(a for a in facts.accesses if a.node is found.image)
    near: dict[UOp, int] = {}
    for r in found.pixels:
        step = facts.stride(access, r)
        if step is None or step <= 0:
            return None
        near[r] = step
    pixels = sorted(found.pixels, key=near.__getitem__)
    cuts: list[tuple[int, ...]] = []
    for r in pixels:
        lengths = [*sorted(_cuts(found.image.src[0], r)), range_size(r) or 0]
        if any(longer % cut for cut, longer in zip(lengths, lengths[1:], strict=False)):
            return None
        cuts.append(tuple(lengths[:-1]))
    if len(pixels) < 2 and not cuts[0]:
        return None
    return found._replace(pixels=pixels, cuts=tuple(cuts))


def _cuts(index: UOp, loop: UOp) -> set[int]:
    """Where guards cut a range into digits: `r // 56 % 28` is about cuts at 56 and at 56 * 28."""
    found: set[int] = set()
    below = {loop: 1}  # what is the range divided by so much
    for node in index.toposort():
        if node.op in (Op.MOD, Op.IDIV) and node.src[0] in below and node.src[1].op is Op.CONST:
            cut = below[node.src[0]] * int(node.src[1].arg)
            found.add(cut)
            if node.op is Op.IDIV:
                below[node] = cut
    return found - {range_size(loop)}


def padded_pixels(found: Image, rows: int) -> int:
    """The pixels of all blocks of so many: a block has 8 of a row, of several rows or images."""
    sizes: list[int] = []
    for r, cuts in zip(found.pixels, found.cuts, strict=True):
        ends = [1, *cuts, range_size(r) or 1]
        sizes.extend([end // begin for begin, end in zip(ends, ends[1:], strict=False)])
    high = rows // PIXELS
    row, *others = sizes
    most = max(others, key=lambda s: s / (-(-s // high) * high))
    return prod(sizes) // (row * most) * (-(-row // PIXELS) * PIXELS) * (-(-most // high) * high)


class Placed(NamedTuple):
    """The opts of a convolution so far, what they made, and the numbers of what workgroups walk."""

    opts: Opts
    found: Product
    outer: int
    inner: int
    detail: TensorizeDetail
    tiles: list[int]


def place_image(facts: KernelFacts, found: Image, target: Target, rows: int, columns: int) -> Placed:
    """Cut pixels, channels and the sum for blocks of so many pixels and channels."""
    opts = Opts(facts.next_number())
    sizes: list[tuple[int, int]] = []
    for r, cuts in zip(found.pixels, found.cuts, strict=True):
        number, size, done = int(r.arg.number), range_size(r) or 1, 1
        for cut in cuts:
            sizes.append((opts.split(OptKind.SPLIT, number, cut // done, size // done), cut // done))
            done = cut
        sizes.append((number, size // done))
    high = rows // PIXELS
    # Of what is not beside each other in a row, what fills blocks best.
    second = min(sizes[1:], key=lambda s: (-(-s[1] // high) * high / s[1], -s[1]))
    warps = opts.split(OptKind.SPLIT, second[0], high, second[1])
    halves = opts.split(OptKind.SPLIT, warps, 2, high)
    lanes = opts.split(OptKind.SPLIT, sizes[0][0], PIXELS, sizes[0][1])
    # Lanes are numbered in the order of ranges, and warps come first: so a range that lanes have all of goes last.
    numbers = sorted([*[r.arg.number for r in facts.loops], *range(facts.next_number(), opts.next)])
    order = {number: number for number in numbers}
    if lanes == sizes[0][0]:
        opts.opts.append(Opt(OptKind.REORDER, lanes, len(numbers) - 1))
        order = dict(zip([*[number for number in numbers if number != lanes], lanes], numbers, strict=True))
    for number, size in sorted(sizes, key=lambda s: s[0] != second[0]):
        if number == sizes[0][0]:
            opts.split(OptKind.THREAD, order[lanes], PIXELS, PIXELS)
        elif number == second[0]:
            opts.split(OptKind.THREAD, order[warps], high // 2, high // 2)
            opts.split(OptKind.UNROLL, order[halves], 2, 2)
        if number not in (second[0], sizes[0][0]) or size > (PIXELS if number == sizes[0][0] else high):
            opts.add(OptKind.PARALLEL, order[number])
    channels, across = (
        make_range(r.src[0], order[int(r.arg.number)], r.arg.kind) for r in (found.channels, found.columns)
    )
    groups, pair, _ = columns_of(opts, across, range_size(across) or 0, columns)
    step = 128 // found.image.dtype.itemsize
    inner = opts.split(OptKind.SPLIT, int(channels.arg.number), step, range_size(channels) or 0)
    # The copies of a step are made in the innermost loop of the sum: that of the taps where a step has all channels.
    walked = [r for r in found.reduce.src[1:] if r is not found.channels or (range_size(r) or 0) > step]
    outer = max(order[int(r.arg.number)] for r in walked)
    product = Product(found.reduce, found.channels, found.image, found.pixels[0], found.weights, found.columns)
    tiles = [o.axis for o in opts.opts if o.kind is OptKind.PARALLEL]
    return Placed(opts, product, outer, inner, TensorizeDetail(order[warps], order[halves], groups, pair, 1), tiles)
