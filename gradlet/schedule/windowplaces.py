"""What is added at places in windows is a sum over windows on a GPU: the gradient of a pooling by maxima.

An output of such a pooling adds its gradient to the element that was its maximum, whose number is the smallest of the
window's numbers at which it is. One after another, outputs are few additions for a core of a CPU. Lanes of a GPU rather
ask for each element which of the few windows that it lies in have chosen it: nobody waits for anybody.
"""

from __future__ import annotations

from collections.abc import Callable
from math import prod
from typing import Final, NamedTuple

from gradlet.base.dtype import dtypes
from gradlet.base.settings import STRICT_FLOAT
from gradlet.graph.node import UOp, mk, toposort
from gradlet.ops.op import Op, ReduceAxesArg, ShrinkArg, WindowArg
from gradlet.schedule.clean import find_devices, rebuild
from gradlet.schedule.moves import expand_scalar, expand_to, reshape
from gradlet.schedule.pick import DEPTH, position_of
from gradlet.target.target import Target

MOST_TAPS: Final = 64  # of a window: each element asks so many of them
_NEEDED: Final = 1 << Op.SCATTER | 1 << Op.WINDOW
_ASKED: Final = frozenset({Op.SCATTER})


class Places(NamedTuple):
    """Numbers of elements, each the smallest of some in a window.

    Attributes:
        chosen: the REDUCE_AXES that chooses them, an axis a tap.
        numbers: what it chooses from.
        windows: the WINDOW ops, the last one first.
        pads: zeros before and after each axis that windows slide over.
    """

    chosen: UOp
    numbers: UOp
    windows: tuple[UOp, ...]
    pads: tuple[tuple[int, int], ...]


def ask_windows(root: UOp, target_of: Callable[[str], Target], default_device: str) -> UOp:
    """The graph with every such addition on a GPU as a sum over the windows of each element."""
    if root.mask & _NEEDED != _NEEDED or STRICT_FLOAT.value:
        return root
    order = toposort((root,))
    devices = find_devices(order)

    def change(node: UOp, src: tuple[UOp, ...]) -> UOp | None:
        if node.arg.op is not Op.ADD or target_of(devices.get(node, default_device)).warp <= 1:
            return None
        places = places_of(src[1])
        return None if places is None else _sum(node, src[0], src[2], places)

    return rebuild(root, change, _ASKED, order)


def places_of(index: UOp) -> Places | None:
    """The windows that places are chosen in; None where they are something else."""
    while index.op is Op.RESHAPE or (index.op is Op.CAST and index.src[0].dtype.is_int):
        index = index.src[0]
    if index.op is not Op.REDUCE_AXES or index.arg.op is not Op.MIN or index.arg.limited:
        return None
    value, axes = index.src[0], index.arg.axes
    rank = len(value.shape)
    if value.op is not Op.WHERE or value.src[2].op is not Op.CONST or axes != tuple(range(rank - len(axes), rank)):
        return None
    numbers = node = value.src[1]
    while node.op in (Op.EXPAND, Op.RESHAPE) and node.src[0].op is not Op.WINDOW:
        node = node.src[0]
    if node.op in (Op.EXPAND, Op.RESHAPE):  # ahead of the axes that windows slide over
        core = node.src[0]
        if core.shape != node.shape[-len(core.shape) :] or prod(node.shape) != prod(core.shape):
            return None
        node = core
    windows: list[UOp] = []
    while node.op is Op.WINDOW:
        windows.append(node)
        node = node.src[0]
    count = len(axes)
    if len(windows) != count or len(node.shape) != 2 * count or prod(node.shape[count:]) > MOST_TAPS:
        return None
    if {(w.arg.axis, w.arg.window_axis) for w in windows} != {(axis, axis + count) for axis in range(count)}:
        return None
    shape = node.shape[:count]
    node = node.src[0] if node.op is Op.EXPAND else node
    if prod(node.shape) != prod(shape):
        return None
    node = reshape(node.src[0] if node.op is Op.RESHAPE else node, shape)
    pads = ((0, 0),) * count
    if node.op is Op.WHERE:
        if node.src[2] is not value.src[2] or node.src[1].op is not Op.PAD or not _is_inside(node.src[0], node.src[1]):
            return None
        pads, node = node.src[1].arg.pads, node.src[1].src[0]
    line = position_of(node, DEPTH)
    steps = tuple([prod(node.shape[axis + 1 :]) if n > 1 else 0 for axis, n in enumerate(node.shape)])
    if line is None or line.constant or line.steps != steps or prod(node.shape) > int(value.src[2].arg):
        return None
    return Places(index, numbers, tuple(windows), pads)


def _is_inside(test: UOp, padded: UOp) -> bool:
    """Whether a test is what is true of the elements that a PAD shows, and false of those around them."""
    return test.op is Op.PAD and test.arg == padded.arg and test.shape == padded.shape


def _sum(node: UOp, base: UOp, added: UOp, places: Places) -> UOp | None:
    """The elements of the base, each with what the windows that chose it add."""
    terms = places.numbers.shape
    count = len(places.windows)
    kept = places.chosen.shape
    lead = len(kept) - count
    if node.arg.batch != lead or added.shape != (*kept[:lead], prod(kept[lead:])):
        return None
    ones = (1,) * count
    zero = UOp.const(node.dtype, 0)
    # A window that has chosen nothing adds nothing.
    inside = mk(Op.CMPLT, dtypes.bool, (places.chosen, UOp.const(places.chosen.dtype, node.shape[lead])))
    values = mk(Op.WHERE, node.dtype, (inside, reshape(added, kept), zero))
    values = expand_to(reshape(values, (*kept, *ones)), terms)
    chosen = expand_to(reshape(places.chosen, (*kept, *ones)), terms)
    hit = mk(Op.CMPEQ, dtypes.bool, (chosen, places.numbers))
    total = mk(Op.WHERE, node.dtype, (hit, values, zero))
    for window in places.windows:
        arg = window.arg
        size = window.src[0].shape[arg.axis]
        there = WindowArg(arg.axis + lead, arg.window_axis + lead, arg.stride, arg.dilation, size)
        total = mk(Op.UNWINDOW, node.dtype, (total,), there)
    taps = tuple(range(len(kept), len(terms)))
    total = mk(Op.REDUCE_AXES, node.dtype, (total,), ReduceAxesArg(Op.ADD, taps))
    sides = zip(total.shape[lead:], places.pads, strict=True)
    bounds = (*[(0, n) for n in kept[:lead]], *[(before, size - after) for size, (before, after) in sides])
    if any(bound != (0, n) for bound, n in zip(bounds, total.shape, strict=True)):
        total = mk(Op.SHRINK, node.dtype, (total,), ShrinkArg(bounds))
    if prod(total.shape) != prod(base.shape):
        return None
    start = expand_scalar(base, node.shape) if not base.shape else base
    return mk(Op.ADD, node.dtype, (start, reshape(total, node.shape)))
