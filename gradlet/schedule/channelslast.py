"""What is computed from a sum kept with its channels last is kept so, too, and in its place.

A convolution's sum of products is stored with channels innermost (`convolution`). Adding a bias, an activation or
another such image costs nothing while the sums are in registers, so the element-wise nodes above a sum move below its
copy, up to the last one whose value is all that others need. A reduction over windows of such an image (pooling) is
kept in the order of the image. Deep networks so run in one layout; results are views of it. Where every channel is
summed over its pixels (batch norm in training) pixels are wanted innermost: the value is copied back, while it is near.
"""

from __future__ import annotations

from collections import Counter
from itertools import chain
from math import prod
from typing import NamedTuple

from gradlet.graph.node import UOp, mk, toposort
from gradlet.ops.op import ELEMENTWISE, MOVEMENT, SCALAR_LEAVES, AxesArg, Op
from gradlet.schedule.clean import REDUCES, rebuild
from gradlet.schedule.moves import reshape

# An operand that is repeated so often is small enough to be read in any order.
MIN_REPEATS = 16
_VIEWS = frozenset({Op.RESHAPE, Op.PERMUTE})
_ASKED = ELEMENTWISE | REDUCES | _VIEWS | {Op.CONTIGUOUS}


class Laid(NamedTuple):
    """A value as a view of a copy in memory.

    Attributes:
        stored: the CONTIGUOUS node.
        steps: the movement ops from the copy to the value, the value first.
    """

    stored: UOp
    steps: tuple[UOp, ...]

    def view(self, stored: UOp) -> UOp:
        """The same view of another copy."""
        node = stored
        for step in reversed(self.steps):
            node = mk(step.op, stored.dtype, (node,), step.arg)
        return node

    def back(self, node: UOp) -> UOp:
        """A node of the value's shape in the shape of the copy."""
        for step in self.steps:
            if step.op is Op.RESHAPE:
                node = reshape(node, step.src[0].shape)
            else:
                axes = step.arg.axes
                order = tuple([axes.index(axis) for axis in range(len(axes))])
                node = mk(Op.PERMUTE, node.dtype, (node,), AxesArg(order))
        return node


def keep_channels_last(root: UOp, sums: frozenset[UOp]) -> UOp:
    """The graph with element-wise nodes and poolings above stored sums in the sums' order of memory.

    Args:
        root: a SINK of roots.
        sums: the CONTIGUOUS nodes that keep sums of products.
    """
    if not sums:
        return root
    order = toposort((root,))
    moved = _Clusters(order, sums)
    laid: dict[UOp, Laid] = {}  # by old node

    def change(node: UOp, src: tuple[UOp, ...]) -> UOp | None:
        made = kept(node, src)
        if made is None:
            return None
        if node in moved.summed:
            laid.pop(node, None)
            return mk(Op.CONTIGUOUS, made.dtype, (made,), None)
        if node in laid:
            laid_by_stored.add(laid[node].stored)
        return made

    def kept(node: UOp, src: tuple[UOp, ...]) -> UOp | None:
        if node in sums:
            stored = mk(node.op, node.dtype, src, node.arg)
            laid[node] = Laid(stored, ())
            return stored
        if node.op in _VIEWS:
            if node.src[0] not in laid:
                return None
            below = laid[node.src[0]]
            made = mk(node.op, node.dtype, src, node.arg)
            laid[node] = Laid(below.stored, (made, *below.steps))
            return made
        if node in moved.exits:
            return _move(node, moved.exits[node], laid, new)
        if node.op in REDUCES:
            return _pool(node, src, laid)
        return _same_order(src[0], laid_by_stored) if node.op is Op.CONTIGUOUS else None

    new: dict[UOp, UOp] = {}
    laid_by_stored: set[UOp] = set()
    return rebuild(root, change, _ASKED, order, new)


class _Clusters:
    """Element-wise nodes above each sum that only the last of them is used of.

    Attributes:
        exits: the last node of each, with the value it begins with and its members in order.
        summed: values in the order of a sum of which every channel is summed over its pixels.
    """

    def __init__(self, order: list[UOp], sums: frozenset[UOp]) -> None:
        self.sums = sums
        self.uses = Counter(chain.from_iterable([n.src for n in order]))
        self.users: dict[UOp, list[UOp]] = {}
        for node in order:
            for source in dict.fromkeys(node.src):
                self.users.setdefault(source, []).append(node)
        self.place = {node: at for at, node in enumerate(order)}
        self.exits: dict[UOp, tuple[UOp, list[UOp]]] = {}
        self.summed: set[UOp] = set()
        taken: set[UOp] = set()
        for node in order:
            if node in sums:
                found = self.grow(node, taken)
                last = self.begin(node)
                if found is not None:
                    members = found[1]
                    last = members[-1]
                    self.exits[last] = found
                    taken.update(members)
                if last is not node and self.is_summed(last, self.channels(node)):
                    self.summed.add(last)

    def begin(self, stored: UOp) -> UOp:
        """A sum in the order of axes that others want it in."""
        begin = stored
        while self.uses[begin] == 1 and self.users[begin][0].op in (Op.RESHAPE, Op.PERMUTE):
            begin = self.users[begin][0]
        return begin

    def channels(self, stored: UOp) -> int | None:
        """The axis of `begin` that is the last one in memory."""
        steps: list[UOp] = []
        node = self.begin(stored)
        while node is not stored:
            steps.append(node)
            node = node.src[0]
        shape = self.begin(stored).shape
        order = _axis_order(Laid(stored, tuple(steps)), len(shape))
        return next((axis for axis in reversed(order or ()) if shape[axis] != 1), None)

    def is_summed(self, value: UOp, channels: int | None) -> bool:
        """Whether all pixels of each channel of a batch are summed, of a value or what has its order of axes."""
        if channels is None:
            return False
        ahead, first = value.shape[: channels + 1], tuple(range(channels + 1))
        pending, seen = [value], {value}
        while pending:
            node = pending.pop()
            for user in self.users.get(node, ()):
                if user.op is Op.REDUCE_AXES:
                    axes = user.arg.axes
                    if channels not in axes and axes[0] < channels and len(axes) > 1:
                        return True
                    continue
                moves = user.op in MOVEMENT and (user.op is not Op.PERMUTE or user.arg.axes[: channels + 1] == first)
                if (moves or user.op in ELEMENTWISE) and user.shape[: channels + 1] == ahead and user not in seen:
                    seen.add(user)
                    pending.append(user)
        return False

    def grow(self, stored: UOp, taken: set[UOp]) -> tuple[UOp, list[UOp]] | None:
        """The largest cluster above a sum; None where nothing can move."""
        begin = self.begin(stored)
        members: list[UOp] = [begin]
        closed = 0
        open_uses = self.uses[begin]
        inside = {begin}
        while True:
            waiting = {u for m in members for u in self.users.get(m, ()) if u not in inside}
            ready = [u for u in waiting if u.op in ELEMENTWISE and u.shape == begin.shape and u not in taken]
            if not ready or len(ready) != len(waiting):
                break
            node = min(ready, key=self.place.__getitem__)
            if not all(s in inside or self.fits(s, node) for s in node.src):
                break
            members.append(node)
            inside.add(node)
            open_uses += self.uses[node] - sum(s in inside for s in node.src)
            if open_uses == self.uses[node]:
                closed = len(members)
        return (begin, members[1:closed]) if closed else None

    def fits(self, operand: UOp, node: UOp) -> bool:
        """Whether an operand from elsewhere costs little in the order of the sum."""
        if operand.op in SCALAR_LEAVES:
            return True
        size = prod(operand.shape)
        while operand.op in MOVEMENT or operand.op is Op.CAST:
            operand = operand.src[0]
            if prod(operand.shape) * MIN_REPEATS <= size:
                return True
        return operand in self.exits or operand in self.sums or self.is_pooled(operand)

    def is_pooled(self, node: UOp) -> bool:
        """Whether a node is a reduction over windows of what a cluster ends with."""
        return node.op is Op.REDUCE_AXES and _image(node, self.exits.keys()) is not None


def _move(exit_: UOp, cluster: tuple[UOp, list[UOp]], laid: dict[UOp, Laid], new: dict[UOp, UOp]) -> UOp | None:
    """The last node of a cluster as a view of a copy that has been computed in the sum's own order."""
    begin, members = cluster
    found = laid.get(begin)
    if found is None:
        return None
    inner: dict[UOp, UOp] = {begin: found.stored.src[0]}
    for member in members:
        src = []
        for source in member.src:
            if source in inner:
                src.append(inner[source])
            elif source.op in SCALAR_LEAVES:
                src.append(new.get(source, source))
            elif source in laid and [s.arg for s in laid[source].steps] == [s.arg for s in found.steps]:
                src.append(laid[source].stored)
            else:
                src.append(found.back(new.get(source, source)))
        inner[member] = mk(member.op, member.dtype, tuple(src), member.arg)
    stored = mk(Op.CONTIGUOUS, exit_.dtype, (inner[exit_],), None)
    view = found.view(stored)
    laid[exit_] = _as_laid(view, stored)
    return view


def _as_laid(view: UOp, stored: UOp) -> Laid:
    steps: list[UOp] = []
    node = view
    while node is not stored:
        steps.append(node)
        node = node.src[0]
    return Laid(stored, tuple(steps))


def _pool(node: UOp, src: tuple[UOp, ...], laid: dict[UOp, Laid]) -> UOp | None:
    """A reduction over windows, kept in the order in which its image is."""
    image = _image(node, laid.keys())
    if image is None:
        return None
    found = laid[image]
    order = _axis_order(found, len(node.shape))
    if order is None:
        return None
    made = mk(node.op, node.dtype, src, node.arg)
    turned = mk(Op.PERMUTE, node.dtype, (made,), AxesArg(tuple(order)))
    stored = mk(Op.CONTIGUOUS, node.dtype, (turned,), None)
    back = tuple([order.index(axis) for axis in range(len(order))])
    view = mk(Op.PERMUTE, node.dtype, (stored,), AxesArg(back))
    laid[node] = Laid(stored, (view,))
    return view


def _axis_order(found: Laid, rank: int) -> list[int] | None:
    """The axes of a value in the order in which they lie in memory; None where they are more than turned."""
    value = found.steps[0] if found.steps else found.stored
    if len(value.shape) != rank:
        return None
    steps = _memory_steps(found)
    return None if steps is None else sorted(range(rank), key=lambda axis: (-steps[axis], axis))


def _memory_steps(found: Laid) -> list[int] | None:
    """How far neighbours along each axis of a value are apart in memory; None where axes are more than turned."""
    shape = list(found.stored.shape)
    at = [prod(shape[axis + 1 :]) for axis in range(len(shape))]
    for step in reversed(found.steps):
        if step.op is Op.PERMUTE:
            at, shape = [at[a] for a in step.arg.axes], [shape[a] for a in step.arg.axes]
        else:
            if [n for n in step.shape if n != 1] != [n for n in shape if n != 1]:
                return None
            left = iter([stride for stride, size in zip(at, shape, strict=True) if size != 1])
            at, shape = [next(left) if size != 1 else 0 for size in step.shape], list(step.shape)
    return at


def _same_order(node: UOp, stored: set[UOp]) -> UOp | None:
    """What is asked to be copied, where it lies in memory in the order of the copy already."""
    below = node
    while below.op in (Op.RESHAPE, Op.PERMUTE):
        below = below.src[0]
    if below not in stored:
        return None
    steps = _memory_steps(_as_laid(node, below))
    if steps is None:
        return None
    wide = [step for step, size in zip(steps, node.shape, strict=True) if size != 1]
    return reshape(below, node.shape) if wide == sorted(wide, reverse=True) else None


def _image(node: UOp, laid: object) -> UOp | None:
    """The one value in a channels-last order that a reduction over windows reads, if its axes are the result's."""
    found: set[UOp] = set()
    pending = [node.src[0]]
    seen: set[UOp] = set()
    windows = False
    while pending:
        part = pending.pop()
        if part in seen:
            continue
        seen.add(part)
        if part in laid:  # type: ignore[operator]
            found.add(part)
        elif part.op is Op.WINDOW:
            windows = True
            pending.append(part.src[0])
        elif part.op in MOVEMENT or part.op in ELEMENTWISE:
            pending.extend(part.src)
        elif part.op not in SCALAR_LEAVES:
            return None
    if len(found) != 1 or not windows:
        return None
    (image,) = found
    rank = len(image.shape)
    if len(node.shape) != rank or any(axis < rank for axis in node.arg.axes):
        return None
    same = sum(a == b for a, b in zip(node.shape, image.shape, strict=True))
    return image if same >= 2 or rank < 4 else None
