"""SPLIT and its kin: a range cut into blocks; the inner part is a loop, copies, lanes, or partial accumulators.

FAR cuts the other way, into a few long segments that are walked side by side: each has a hardware prefetcher of its
own. It is sugar: SPLIT by the length of a segment, then UNROLL of the outer part, or GROUP of it where it belongs to a
reduce, so that every segment has a partial accumulator.
"""

from __future__ import annotations

from typing import Final

from gradlet.base.dtype import dtypes
from gradlet.graph.node import UOp, mk
from gradlet.ops.op import AxisKind, Op, identity_element
from gradlet.ops.opt import Opt, OptKind, Tail
from gradlet.optimize.actions.padding import pad_operands
from gradlet.optimize.actions.pieces import cut
from gradlet.optimize.actions.refusal import refusal
from gradlet.optimize.actions.repeats import may_repeat
from gradlet.optimize.analysis import KernelFacts, make_range, range_size
from gradlet.target.target import Target

MAX_UNROLL: Final = 256
MAX_LANES: Final = 128
# Members of an enum are slow to reach through their class.
_SINK: Final = Op.SINK
_AFTER: Final = Op.AFTER
_REDUCE: Final = Op.REDUCE
_LOAD: Final = Op.LOAD
_STORE: Final = Op.STORE
_ADD: Final = Op.ADD
_CAST: Final = Op.CAST
_CONST: Final = Op.CONST
_INDEX: Final = Op.INDEX
_MUL: Final = Op.MUL
_GUARDED: Final = (Tail.MASK, Tail.PAD)
_SPLITS: Final = {
    OptKind.UNROLL: AxisKind.UNROLL,
    OptKind.VECTORIZE: AxisKind.VECTOR,
    OptKind.THREAD: AxisKind.THREAD,
    OptKind.GROUP: AxisKind.UNROLL,
    OptKind.FAR: AxisKind.UNROLL,
}


def split(facts: KernelFacts, loop: UOp, opt: Opt, target: Target) -> UOp:
    """The kernel with a range cut into blocks of `opt.amount`."""
    _check_split(facts, loop, opt, target)
    if opt.tail in (Tail.BALANCE, Tail.PEEL):
        return cut(facts, loop, opt)
    cut_up = _Split(facts, loop, opt)
    sink = cut_up.run()
    if opt.kind is OptKind.THREAD and loop.arg.kind is AxisKind.REDUCE:
        sink = _lanes_last(sink)
    if opt.tail is not Tail.PAD:
        return sink
    return pad_operands(sink, tuple([r for r in (cut_up.outer, cut_up.inner) if r is not None]), opt, target)


def _check_split(facts: KernelFacts, loop: UOp, opt: Opt, target: Target) -> None:
    """Refuse what would change results or make no sense."""
    kind, amount, size = loop.arg.kind, opt.amount, range_size(loop)
    _check_copies(facts, loop, opt)
    closing = [reduce for reduce in facts.reduces if loop in reduce.src[1:]]
    if kind is AxisKind.ORDERED:
        raise refusal(opt, "its iterations must run one after another")
    if kind not in (AxisKind.LOOP, AxisKind.REDUCE, AxisKind.PARALLEL):
        raise refusal(opt, f"it is already of kind {kind.name}")
    if amount < 2:
        raise refusal(opt, "the amount must be at least 2")
    if opt.kind in (OptKind.UNROLL, OptKind.GROUP, OptKind.FAR) and amount > MAX_UNROLL:
        raise refusal(opt, f"at most {MAX_UNROLL} copies make sense")
    if opt.kind is OptKind.FAR and (opt.tail is not Tail.EXACT or size is None or size % amount):
        raise refusal(opt, "the segments must be of one known size")
    if opt.kind is OptKind.GROUP and (not closing or any(loop in facts.ranges[s] for s in facts.stores)):
        raise refusal(opt, "partial accumulators need a reduce range")
    if kind is AxisKind.PARALLEL and size is not None and amount >= size:
        raise refusal(opt, "nothing would be left to run in parallel")
    if opt.kind is OptKind.VECTORIZE:
        if amount > MAX_LANES:
            raise refusal(opt, f"at most {MAX_LANES} lanes are supported")
        if target.kind != "cpu" and not target.access_bytes:
            raise refusal(opt, "lanes of this target are threads; use THREAD")
        lanes = {r for r in facts.loops if r.arg.kind is AxisKind.VECTOR}
        values = [n for n in facts.order if n.op is not _SINK] if lanes else []  # stores have loops apart
        if any(loop in facts.ranges[n] and not lanes.isdisjoint(facts.ranges[n]) for n in values):
            raise refusal(opt, "a value would have two ranges of lanes")
    if opt.kind is OptKind.THREAD:
        _check_thread(facts, loop, opt, target, bool(closing))
    _check_tail(facts, loop, opt, size, bool(closing))


def _check_copies(facts: KernelFacts, loop: UOp, opt: Opt) -> None:
    """A staged copy has one array, and its loops are written once."""
    in_pieces = opt.tail in (Tail.BALANCE, Tail.PEEL)
    if opt.kind is OptKind.SPLIT and not in_pieces:
        return
    for node in facts.order:
        if node.op is _AFTER and loop in facts.ranges[node]:
            raise refusal(opt, "a staged copy is made in every iteration of it; split it before STAGE")
        if node.op is _AFTER and in_pieces and loop in node.src:
            raise refusal(opt, "it is the loop of a staged copy, which is written once; use MASK or SHIFT")


def _check_thread(facts: KernelFacts, loop: UOp, opt: Opt, target: Target, closed: bool) -> None:
    if target.kind != "gpu":
        raise refusal(opt, "only a GPU has workgroups")
    lanes = opt.amount
    if closed and target.warp > 1:
        _check_combined(facts, loop, opt, target)
    elif target.warp > 1 and any(n.op is _AFTER and loop in n.src[1:] for n in facts.order):
        pass  # lanes fill an array that they share
    elif closed:
        raise refusal(opt, "every store must depend on it")
    else:
        _check_stored_by_all(facts, loop, opt, target)
    others = facts.closed() if target.warp > 1 else set()
    for r in facts.loops:
        if r.arg.kind is AxisKind.THREAD and r not in others:
            lanes *= range_size(r) or 1
    if lanes > target.max_threads:
        raise refusal(opt, f"a workgroup has at most {target.max_threads} lanes")


def _check_stored_by_all(facts: KernelFacts, loop: UOp, opt: Opt, target: Target) -> None:
    """What does not depend on the range every lane stores, all of them the same; nothing may read it meanwhile."""
    apart = [store for store in facts.stores if loop not in facts.ranges[store]]
    if apart and target.warp <= 1:
        raise refusal(opt, "every store must depend on it")
    slots = {a.slot for a in facts.accesses if a.node in apart}
    if any(not a.is_store and a.slot in slots for a in facts.accesses):
        raise refusal(opt, "all lanes would store to what they load: every store to it must depend on the range")


def _check_combined(facts: KernelFacts, loop: UOp, opt: Opt, target: Target) -> None:
    """Lanes that combine their parts of a reduction: a power of two of them, as registers are exchanged."""
    if opt.amount & (opt.amount - 1):
        raise refusal(opt, "lanes are combined by halves; choose a power of two")
    for node in facts.reduces:
        below = [n for n in node.src[0].toposort() if n.op is _REDUCE and loop in facts.ranges[n]]
        if loop in node.src[1:] and any(r.arg.kind is AxisKind.THREAD for n in below for r in n.src[1:]):
            raise refusal(opt, "lanes are combined inside of it already")
        around = [r for r in facts.ranges[node] if r.arg.kind is AxisKind.THREAD]
        if loop in node.src[1:] and not facts.closed().isdisjoint(around):
            raise refusal(opt, "its reduction lies inside of one whose lanes are combined")
    if target.max_threads < opt.amount:
        raise refusal(opt, f"a workgroup has at most {target.max_threads} lanes")


def _check_tail(facts: KernelFacts, loop: UOp, opt: Opt, size: int | None, closed: bool) -> None:
    if opt.tail is Tail.EXACT and (size is None or size % opt.amount):
        known = "unknown before launch" if size is None else str(size)
        raise refusal(opt, f"the size, {known}, is not a multiple of the amount; choose another tail")
    if opt.tail is Tail.SHIFT:
        if size is None or size < opt.amount:
            raise refusal(opt, "an overlapping last block needs a known size of at least the amount")
        if closed:
            raise refusal(opt, "a reduce would count the overlap twice")
        if not may_repeat(facts, loop):
            raise refusal(opt, "the kernel reads what it writes, so nothing may be computed twice")


def _lanes_last(sink: UOp) -> UOp:
    """What a lane has in its registers is combined before lanes are."""
    new: dict[UOp, UOp] = {}
    for node in sink.toposort():
        src = tuple([new.get(s, s) for s in node.src])
        if node.op is _REDUCE and src[0].op is _REDUCE and src[0].arg is node.arg:
            inner = src[0]
            if inner.src[1].arg.kind is AxisKind.THREAD and node.src[1].arg.kind is not AxisKind.THREAD:
                own = mk(_REDUCE, node.dtype, (inner.src[0], *src[1:]), node.arg)
                new[node] = mk(_REDUCE, node.dtype, (own, *inner.src[1:]), node.arg)
                continue
        if src != node.src:
            new[node] = mk(node.op, node.dtype, src, node.arg)
    return new.get(sink, sink)


class _Split:
    """One range cut into an outer loop and an inner part of a given kind."""

    def __init__(self, facts: KernelFacts, loop: UOp, opt: Opt) -> None:
        self.facts, self.loop = facts, loop
        size, amount = loop.src[0], opt.amount
        kind = _SPLITS.get(opt.kind, loop.arg.kind if loop.arg.kind is not AxisKind.PARALLEL else AxisKind.LOOP)
        # Side by side accumulators and lanes are combined after the loop, so they are closed by a REDUCE of their own.
        self.inner_last = opt.kind in (OptKind.GROUP, OptKind.VECTORIZE) or (
            opt.kind in (OptKind.FAR, OptKind.THREAD) and loop.arg.kind is AxisKind.REDUCE
        )
        self.mask: UOp | None = None
        self.outer: UOp | None = None
        whole = range_size(loop) == amount or (opt.tail in _GUARDED and (range_size(loop) or amount) < amount)
        number = loop.arg.number if whole else facts.next_number()
        self.inner = make_range(UOp.const(dtypes.index, amount), number, kind)
        self.value = self.inner
        if not whole:
            blocks = (size + (amount - 1)) // amount if size.op is not _CONST else None
            count = blocks if blocks is not None else UOp.const(dtypes.index, -(-int(size.arg) // amount))
            self.outer = make_range(count, loop.arg.number, loop.arg.kind)
            start = self.outer * amount
            if opt.tail is Tail.SHIFT and int(size.arg) % amount:
                start = start.minimum(int(size.arg) - amount)
            self.value = start + self.inner
            if opt.kind is OptKind.FAR:
                self.value = self.inner * count + self.outer
        if opt.tail in _GUARDED and (size.op is not _CONST or int(size.arg) % amount):
            self.mask = self.value < size

    def run(self) -> UOp:
        """The whole kernel with the range replaced."""
        loop = self.loop
        new: dict[UOp, UOp] = {loop: self.value}
        changed = new.keys()
        guarded = self.facts.ranges if self.mask is not None else None  # of every node
        for node in self.facts.order:
            if changed.isdisjoint(node.src) or node is loop:
                continue
            op = node.op
            src = tuple([new.get(s, s) for s in node.src])
            if op is _REDUCE and loop in node.src[1:]:
                new[node] = self._reduce(node, src[0])
            elif op is _AFTER and loop in node.src[1:]:
                inside = [r for r in (self.outer, self.inner) if r is not None]
                kept = [new.get(s, s) for s in node.src if s is not loop]
                new[node] = mk(op, node.dtype, (*kept, *inside))
            elif guarded is not None and (op is _LOAD or op is _STORE) and loop in guarded[node]:
                new[node] = self._guard(node, src)
            else:
                new[node] = mk(op, node.dtype, src, node.arg)
        return new.get(self.facts.sink, self.facts.sink)

    def _reduce(self, node: UOp, value: UOp) -> UOp:
        ranges = [r for r in node.src[1:] if r is not self.loop]
        if self.mask is not None and not (node.arg.op is _ADD and vanishes(node.src[0], self.loop, self.facts)):
            value = self.mask.where(value, UOp.const(value.dtype, identity_element(node.arg.op, value.dtype)))
        if self.outer is not None:
            ranges.append(self.outer)
        if not self.inner_last:
            return mk(_REDUCE, node.dtype, (value, *ranges, self.inner), node.arg)
        if ranges:
            value = mk(_REDUCE, node.dtype, (value, *ranges), node.arg)
        return mk(_REDUCE, node.dtype, (value, self.inner), node.arg)

    def _guard(self, node: UOp, src: tuple[UOp, ...]) -> UOp:
        assert self.mask is not None
        index = src[0]
        gate = index.src[2] & self.mask if len(index.src) > 2 else self.mask
        guarded = mk(_INDEX, index.dtype, (*index.src[:2], gate))
        if node.op is _STORE:
            return mk(_STORE, node.dtype, (guarded, src[1]), node.arg)
        otherwise = src[1] if len(src) > 1 else UOp.const(node.dtype, 0)
        return mk(_LOAD, node.dtype, (guarded, otherwise))


def vanishes(node: UOp, loop: UOp, facts: KernelFacts) -> bool:
    """Whether a value is 0 for certain once every load that depends on `loop` is masked: then a sum needs no select.

    A product needs both factors to be 0: 0 times what lies past the end of the range could be NaN.
    """
    stack = [node]
    while stack:
        part = stack.pop()
        if part.op is _CONST and not part.arg:
            continue
        if part.op is _LOAD and loop in facts.ranges[part.src[0]]:
            if len(part.src) > 1 and not (part.src[1].op is _CONST and part.src[1].arg == 0):
                return False
        elif part.op in (_ADD, _MUL):
            stack.extend(part.src)
        elif part.op is _CAST:
            stack.append(part.src[0])
        else:
            return False
    return True
