"""A schedule under construction: opts in order, and the numbers and sizes that ranges will have by then."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

from gradlet.base.dtype import dtypes
from gradlet.base.settings import STRICT_FLOAT
from gradlet.graph.node import UOp, toposort
from gradlet.ops.op import Op
from gradlet.ops.opt import AccumulateDetail, Opt, OptKind, StageDetail, Tail
from gradlet.optimize.actions.pieces import Piece, pieces
from gradlet.optimize.actions.repeats import may_repeat, overwrites_what_it_reads
from gradlet.optimize.analysis import (
    Access,
    Affine,
    KernelFacts,
    is_fixed,
    make_range,
    never_meet,
    range_size,
    size_bound,
)
from gradlet.target.target import Target

# Members of an enum are slow to reach through their class.
_ADD: Final = Op.ADD
_CARRY: Final = Op.CARRY
_INDEX: Final = Op.INDEX
_MUL: Final = Op.MUL
_NEXT: Final = Op.NEXT


class Part(NamedTuple):
    """A loop of a range: level 0 is the one that further opts on the range are about, others are over blocks of it."""

    loop: UOp
    level: int = 0


BLOCKS, PANELS = 1, 2  # levels: blocks of a range, and panels inside of those


class Plan:
    """Collects opts on the ranges of one kernel.

    Attributes:
        opts: what was chosen so far.
        lanes: ranges that have vector lanes.
        widths: how many lanes these have.
        parallel_settled: whether it is decided already what threads share.
        masked: ranges whose end is guarded or done apart.
        share_first: the range whose blocks threads share where there are as many for each of them.
    """

    def __init__(self, facts: KernelFacts, target: Target, number: int) -> None:
        self.facts, self.target = facts, target
        self.opts: list[Opt] = []
        self.lanes: set[UOp] = set()
        self.parallel_settled = False
        self.share_first: UOp | None = None
        self.widths: dict[UOp, int] = {}
        self.masked: set[UOp] = set()
        self._next = number
        self._nest: list[Part] = [Part(r) for r in facts.loops]
        self._numbers: dict[Part, int] = {Part(r): int(r.arg.number) for r in facts.loops}
        self._blocks: dict[UOp, int] = {}
        self._copies: dict[UOp, int] = {}
        self._may_repeat = may_repeat(facts)
        self._adds_up = False
        self._shared: dict[UOp, int] = {}
        self._in_two: set[UOp] = set()
        self._closed = facts.closed()
        self._below: dict[UOp, set[UOp]] = {}
        # Ranges along which floats are added or multiplied in the order of the elements, whatever that costs.
        self._ordered: set[UOp] = set()
        if STRICT_FLOAT.value:
            for reduce in facts.reduces:
                if reduce.dtype.is_float and reduce.arg.op in (_ADD, _MUL):
                    self._ordered.update(reduce.src[1:])

    def size(self, loop: UOp) -> int:
        """Trip count of a range before any opt; the largest it may be where it is known only at launch."""
        return size_bound(loop)

    def is_ordered(self, loop: UOp) -> bool:
        """Whether floats are added or multiplied along the range, which has to happen in order."""
        return loop in self._ordered

    def blocks(self, loop: UOp) -> int:
        """Trip count of what is left of the range as a loop; 1 when nothing is."""
        return self._blocks.get(loop, size_bound(loop))

    def below(self, node: UOp) -> set[UOp]:
        """All nodes a node is made of."""
        found = self._below.get(node)
        if found is None:
            found = set(toposort((node,)))
            self._below[node] = found
        return found

    def clashes(self, loop: UOp) -> bool:
        """Whether some value depends on the range and on another one that has lanes already."""
        ranges = self.facts.ranges
        return any(loop in ranges[n] and not self.lanes.isdisjoint(ranges[n]) for n in self.facts.order)

    def copies(self, node: UOp) -> int:
        """How many copies of a node the unrolling so far makes."""
        result = 1
        for loop in self.facts.ranges[node]:
            result *= self._copies.get(loop, 1)
        return result

    def lanes_for(self, loop: UOp) -> int:
        """Lanes of a vector register for the widest value that depends on the range."""
        widest = 1
        for node in self.facts.order:
            if node.dtype.kind in "uif" and loop in self.facts.ranges[node] and node.op is not _INDEX:
                widest = max(widest, node.dtype.itemsize)
        return max(1, self.target.vector_bits // (8 * max(widest, 2)))

    @staticmethod
    def fitting_lanes(lanes: int, size: int) -> int:
        """Fewer lanes where the range is shorter than a register."""
        while lanes // 2 >= size:
            lanes //= 2
        return max(2, lanes)

    def tail(self, loop: UOp, amount: int, apart: Tail = Tail.MASK) -> Tail:
        """How to cut a range into blocks of `amount`: exactly, with an overlapping last block, or as the rest allows.

        `apart` is for kernels that read what they have written: nothing may be done twice there.
        """
        tail = self._tail(loop, amount, apart)
        if tail not in (Tail.EXACT, Tail.SHIFT):
            self.masked.add(loop)
        return tail

    def _tail(self, loop: UOp, amount: int, apart: Tail) -> Tail:
        size = self.blocks(loop)
        if range_size(loop) is None:
            return Tail.MASK
        if size % amount == 0:
            return Tail.EXACT
        if loop in self._closed or size <= amount:
            return Tail.MASK
        if self._adds_up:
            return apart
        if self._may_repeat:
            return Tail.SHIFT
        if self.masked or not self.facts.reduces:  # past a guarded end rows would seem to meet
            return Tail.MASK
        return apart if overwrites_what_it_reads(self.facts) else Tail.MASK

    def _split(self, kind: OptKind, number: int, size: int, amount: int, tail: Tail, fixed: bool = True) -> int:
        """Record a split; returns the number of the inner range. A size that is not fixed leaves an outer one."""
        self.opts.append(Opt(kind, number, amount, tail))
        if fixed and size <= amount:
            return number
        self._next += 1
        return self._next - 1

    def vectorize(self, loop: UOp, lanes: int) -> None:
        """Inner lanes of a range."""
        size, tail = self.blocks(loop), self.tail(loop, lanes, Tail.PEEL)
        self._split(OptKind.VECTORIZE, self.number(loop), size, lanes, tail, is_fixed(loop))
        if tail is Tail.PEEL:
            self._in_two.add(loop)
        self.lanes.add(loop)
        self.widths[loop] = lanes
        self._blocks[loop] = size // lanes if tail is Tail.PEEL else -(-size // lanes)

    def scan(self, loop: UOp, lanes: int) -> None:
        """Lanes along a range through which values are carried; `lanes` divides it."""
        size = self.blocks(loop)
        self._split(OptKind.SCAN, self.number(loop), size, lanes, Tail.EXACT)
        self.lanes.add(loop)
        self.widths[loop] = lanes
        self._blocks[loop] = size // lanes

    def deal(self, loop: UOp, parts: int) -> int:
        """Parts that run through an ordered loop, each for rows of its own; the number of their range."""
        self.opts.append(Opt(OptKind.DEAL, self.number(loop), parts))
        self._next += 1
        return self._next - 1

    def far(self, loop: UOp, amount: int) -> None:
        """Far segments side by side; `amount` divides what is left of the range."""
        size = self.blocks(loop)
        self._split(OptKind.FAR, self.number(loop), size, amount, Tail.EXACT, is_fixed(loop))
        self._copies[loop] = self._copies.get(loop, 1) * amount
        self._blocks[loop] = size // amount

    def group(self, loop: UOp, amount: int, tail: Tail) -> None:
        """Partial accumulators side by side."""
        if loop in self._ordered:
            return
        size = self.blocks(loop)
        self._split(OptKind.GROUP, self.number(loop), size, amount, tail, is_fixed(loop))
        self._copies[loop] = self._copies.get(loop, 1) * amount
        self._blocks[loop] = -(-size // amount)

    def unroll(self, loop: UOp, amount: int) -> None:
        """Copies of a range's body."""
        if amount < 2 or loop in self._ordered:
            return
        size, tail = self.blocks(loop), self.tail(loop, amount, Tail.BALANCE)
        self._split(OptKind.UNROLL, self.number(loop), size, amount, tail, is_fixed(loop))
        if tail is Tail.BALANCE:
            self._in_two.add(loop)
        self._copies[loop] = self._copies.get(loop, 1) * amount
        self._blocks[loop] = -(-size // amount)

    def divides_evenly(self, loop: UOp, amount: int) -> bool:
        """Whether an output range may be cut into blocks of two sizes, none longer than the amount."""
        size = range_size(loop)
        if size is None or self.blocks(loop) != size or loop in self._closed or not self._may_repeat:
            return False
        if any(n.op in (_CARRY, _NEXT) for n in self.facts.order):
            return False
        parts = pieces(size, amount, Tail.BALANCE)
        if len(parts) == 1:
            return True
        stores = [a for a in self.facts.accesses if a.is_store and loop in a.ranges]
        forms = [[_restricted(a, loop, part) for a in stores] for part in parts]
        return all(
            one.param is not other.param or never_meet(forms[0][i], forms[1][k])
            for i, one in enumerate(stores)
            for k, other in enumerate(stores)
        )

    def balance(self, loop: UOp, amount: int) -> None:
        """Copies of a range's body in blocks of two sizes that differ by one, where `divides_evenly` allows it."""
        if amount < 2:
            return
        size = self.blocks(loop)
        self._split(OptKind.UNROLL, self.number(loop), size, amount, Tail.BALANCE if size % amount else Tail.EXACT)
        self._copies[loop] = self._copies.get(loop, 1) * amount
        self._blocks[loop] = -(-size // amount)
        if size % amount:
            self._in_two.add(loop)

    def split_and_unroll(self, loop: UOp, block: int, amount: int) -> None:
        """Blocks of a range as a loop of their own, and `amount` copies inside, which divides the block."""
        inner = self._split(OptKind.SPLIT, self.number(loop), self.blocks(loop), block, self.tail(loop, block))
        self._split(OptKind.UNROLL, inner, block, amount, Tail.EXACT)
        self._copies[loop] = self._copies.get(loop, 1) * amount
        self._blocks[loop] = -(-self.blocks(loop) // block)

    def unroll_far(self, loop: UOp, streams: int) -> None:
        """`streams` iterations far from one another side by side: memory is walked in as many runs without gaps."""
        if loop in self._ordered:
            return
        size = self.blocks(loop)
        amount = -(-size // streams)
        self.opts.append(Opt(OptKind.SPLIT, self.number(loop), amount, self.tail(loop, amount)))
        self._cut(loop, amount)
        self.opts.append(Opt(OptKind.UNROLL, self._numbers[Part(loop, BLOCKS)], streams))
        self._copies[loop] = self._copies.get(loop, 1) * streams

    def vector_block(self, loop: UOp, lanes: int, copies: int) -> None:
        """A block of `copies` vectors side by side along a range."""
        if copies < 2:
            self.vectorize(loop, lanes)
            return
        size = self.blocks(loop)
        width = lanes * copies
        tail = self.tail(loop, width)
        inner = self._split(OptKind.SPLIT, self.number(loop), size, width, tail, is_fixed(loop))
        self._split(OptKind.VECTORIZE, inner, width, lanes, Tail.EXACT)
        self._split(OptKind.UNROLL, inner, copies, copies, Tail.EXACT)
        self.lanes.add(loop)
        self.widths[loop] = lanes
        self._blocks[loop] = -(-size // width)

    def thread(self, loop: UOp, lanes: int) -> int:
        """Lanes of a workgroup along a range; returns the number of their range."""
        size = self.blocks(loop)
        tail = Tail.EXACT if size % lanes == 0 and is_fixed(loop) else Tail.MASK
        number = self._split(OptKind.THREAD, self.number(loop), size, lanes, tail, is_fixed(loop))
        if tail is not Tail.EXACT:
            self.masked.add(loop)
        self._blocks[loop] = -(-size // lanes)
        return number

    def parallel(self, loop: UOp) -> None:
        """Threads or workgroups over what is left of a range."""
        part = Part(loop, BLOCKS if loop in self._shared else 0)
        self.opts.append(Opt(OptKind.PARALLEL, self._numbers[part], 0))

    def innermost(self, loop: UOp, outputs: list[UOp]) -> None:
        """Nest a range inside all other output ranges. Has to come before any split."""
        order = [part for part in self._nest if part.loop is not loop]
        self._move(Part(loop), 1 + max(order.index(Part(r)) for r in outputs if r is not loop))

    def outside(self, loop: UOp, others: Sequence[UOp]) -> None:
        """Nest a range outside of other ranges. Has to come before any split."""
        places = [self._nest.index(Part(r)) for r in others]
        if self._nest.index(Part(loop)) > min(places):
            self._move(Part(loop), min(places))

    def inside(self, loop: UOp, others: Sequence[UOp]) -> None:
        """Nest a range inside of other ranges. Has to come before any split."""
        places = [self._nest.index(Part(r)) for r in others]
        if self._nest.index(Part(loop)) < max(places):
            self._move(Part(loop), max(places))

    def accumulate(self, loop: UOp, amount: int, outputs: Sequence[UOp], far: bool = False) -> None:
        """Sum blocks of a reduce range one after another, outside of all these output ranges. Comes before splits."""
        if loop in self._ordered:
            return
        detail = AccumulateDetail(far=True) if far else None
        self.opts.append(Opt(OptKind.ACCUMULATE, self.number(loop), amount, detail=detail))
        self._cut(loop, amount)
        self._move(Part(loop, BLOCKS), min(self._nest.index(Part(r)) for r in outputs))
        self._adds_up = True

    def share(self, loop: UOp, width: int) -> None:
        """Threads over blocks of a range, which stay whole inside."""
        self.opts.append(Opt(OptKind.SPLIT, self.number(loop), width, self.tail(loop, width)))
        self._cut(loop, width)
        self.opts.append(Opt(OptKind.PARALLEL, self._numbers[Part(loop, BLOCKS)], 0))

    def block(self, loop: UOp, width: int, around: UOp) -> None:
        """A loop over blocks of a range outside of the loop `around`; what is left of the range lies inside of that."""
        self.opts.append(Opt(OptKind.SPLIT, self.number(loop), width, self.tail(loop, width)))
        self._shared[loop] = -(-self.blocks(loop) // width)
        self._cut(loop, width)
        if self._nest.index(Part(loop, BLOCKS)) > self._nest.index(Part(around)):
            self._move(Part(loop, BLOCKS), self._nest.index(Part(around)))

    def before(self, loop: UOp, other: UOp) -> None:
        """Nest what is left of a range just outside of what is left of another."""
        self._move(Part(loop), self._nest.index(Part(other)))

    def shared_blocks(self, loop: UOp) -> int:
        """Iterations of the outermost loop of a range; 1 where there are two, one after the other."""
        if loop in self._in_two:
            return 1
        return self._shared.get(loop, self.blocks(loop))

    def panels(self, loop: UOp, width: int, around: UOp) -> None:
        """A loop over panels of a block, outside of the loop `around`; `width` divides the block."""
        self.opts.append(Opt(OptKind.SPLIT, self.number(loop), width))
        self._cut(loop, width, PANELS)
        if self._nest.index(Part(loop, PANELS)) > self._nest.index(Part(around)):
            self._move(Part(loop, PANELS), self._nest.index(Part(around)))

    def stage(self, level: Part, detail: StageDetail, order: Sequence[Part]) -> list[int]:
        """A copy of what a load reads inside a loop, in this order; returns the numbers of the copy's loops.

        They come last in the nest: no range is moved after this.
        """
        numbers = tuple([self._numbers[part] for part in order])
        self.opts.append(Opt(OptKind.STAGE, self._numbers[level], 0, detail=detail._replace(order=numbers)))
        copies = list(range(self._next, self._next + len(order)))
        self._next += len(order)
        return copies

    def has(self, part: Part) -> bool:
        """Whether the range has such a loop by now."""
        return part in self._numbers

    @property
    def depth(self) -> int:
        """How many loops the nest has, copies not counted."""
        return len(self._nest)

    @property
    def may_repeat(self) -> bool:
        """Whether iterations may be run twice, as overlapping blocks do."""
        return self._may_repeat

    def fresh(self) -> int:
        """The number of a range that an opt added by hand makes."""
        self._next += 1
        return self._next - 1

    def _cut(self, loop: UOp, amount: int, level: int = BLOCKS) -> None:
        """A loop over blocks takes the place of the range; further opts are about the part inside."""
        outer, inner = Part(loop, level), Part(loop)
        self._nest[self._nest.index(inner)] = outer
        self._nest.append(inner)
        self._numbers[outer], self._numbers[inner] = self._numbers[inner], self._next
        self._next += 1
        self._blocks[loop] = amount

    def _move(self, part: Part, position: int) -> None:
        self.opts.append(Opt(OptKind.REORDER, self._numbers[part], position))
        numbers = sorted(self._numbers.values())
        self._nest.remove(part)
        self._nest.insert(position, part)
        self._numbers = dict(zip(self._nest, numbers, strict=True))

    def outermost(self, loop: UOp) -> int:
        """The number of the outermost loop of a range."""
        return self._numbers[Part(loop, BLOCKS if loop in self._shared else 0)]

    def number(self, loop: UOp) -> int:
        """The number the range has by now."""
        return self._numbers[Part(loop)]


def _restricted(access: Access, loop: UOp, piece: Piece) -> Affine:
    """The element numbers of an access in a piece of a range."""
    form = access.form
    step = form.terms.get(loop, 0)
    terms = {r: factor for r, factor in form.terms.items() if r is not loop}
    length = piece.blocks * piece.size
    terms[make_range(UOp.const(dtypes.index, length), loop.arg.number, loop.arg.kind)] = step
    return Affine(terms, form.constant + step * piece.start)
