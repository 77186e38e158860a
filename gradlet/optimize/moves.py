"""What search tries on a kernel: for each word of the schedule language the opts worth trying, and changes of opts."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Final, NamedTuple

from gradlet.base.errors import ArgumentError
from gradlet.graph.node import UOp
from gradlet.ops.op import AxisKind
from gradlet.ops.opt import Opt, OptKind, PrefetchDetail, StageDetail, Tail
from gradlet.optimize import lanemoves
from gradlet.optimize.actions import language as actions
from gradlet.optimize.actions.online import find_pair
from gradlet.optimize.analysis import KernelFacts, range_size, size_bound
from gradlet.optimize.tables import lookups
from gradlet.target.target import Target

Opts = tuple[Opt, ...]

MIN_BLOCK: Final = 8  # iterations of a loop split off
MAX_BLOCK: Final = 512
COPIES: Final = (2, 3, 4, 6, 8, 12)  # iterations written out
MAX_COPIES: Final = 16
GROUPS: Final = (2, 4, 8)
DISTANCES: Final = (2, 8)  # iterations that a prefetch is ahead
STREAM_SHARE: Final = 4  # results above this part of the last cache go past it
BLOCK_SIDES: Final = (4, 8)  # of what a copy transposes in registers
MIN_SUMMED: Final = 32  # iterations of a sum between two visits to memory


# The words that cut a range into blocks of their amount.
_CUTS: Final = frozenset({OptKind.SPLIT, OptKind.UNROLL, OptKind.VECTORIZE, OptKind.THREAD, OptKind.GROUP})
_BY_POWERS: Final = frozenset({OptKind.VECTORIZE, OptKind.THREAD})  # other lanes are taken apart one by one


class Site(NamedTuple):
    """A kernel as it is scheduled so far, and what may be done with it.

    Attributes:
        facts: of the kernel after the opts so far.
        target: the machine.
        parallel: whether threads may share a range of it; else one that they share already stays as it is.
    """

    facts: KernelFacts
    target: Target
    parallel: bool


Proposals = Callable[[Site], Iterator[Opts]]


# amounts
def _blocks(size: int, least: int, most: int) -> list[int]:
    """Sizes of blocks to cut a range into: powers of two, and what cuts it into few equal ones."""
    amounts = {1 << k for k in range(1, most.bit_length())}
    amounts |= {size // count for count in range(1, 9) if size % count == 0}
    return sorted(a for a in amounts if max(2, least) <= a <= min(most, size))


def _copies(size: int) -> list[int]:
    """How many iterations to write out."""
    return sorted({a for a in COPIES if a <= size} | ({size} if 2 <= size <= MAX_COPIES else set()))


def _tails(loop: UOp, amount: int) -> tuple[Tail, ...]:
    """The policies for what an amount leaves over; those that change results are refused when they are applied."""
    size = range_size(loop)
    if size is None:
        return (Tail.MASK,)
    if size % amount == 0:
        return (Tail.EXACT,)
    return tuple(t for t in Tail if t is not Tail.EXACT)


def _cut(kind: OptKind, loop: UOp, amounts: Iterable[int]) -> Iterator[Opts]:
    for amount in amounts:
        for tail in _tails(loop, amount):
            yield (Opt(kind, loop.arg.number, amount, tail),)


def _loops(site: Site, *kinds: AxisKind) -> list[UOp]:
    """The ranges of these kinds; the blocks of a region are not the body's own to cut."""
    found = [r for r in site.facts.loops if r.arg.kind in kinds]
    return found if site.parallel else [r for r in found if r.arg.kind is not AxisKind.PARALLEL]


# a row a word
def _split(site: Site) -> Iterator[Opts]:
    for loop in _loops(site, AxisKind.LOOP, AxisKind.REDUCE, AxisKind.PARALLEL):
        size = size_bound(loop)
        yield from _cut(OptKind.SPLIT, loop, [a for a in _blocks(size, MIN_BLOCK, MAX_BLOCK) if a < size])


def _unroll(site: Site) -> Iterator[Opts]:
    for loop in _loops(site, AxisKind.LOOP, AxisKind.REDUCE, AxisKind.PARALLEL):
        size = size_bound(loop)
        yield from _cut(OptKind.UNROLL, loop, _copies(size))


def _vectorize(site: Site) -> Iterator[Opts]:
    for loop in _loops(site, AxisKind.LOOP, AxisKind.REDUCE):
        if site.target.kind == "cpu":
            yield from _cut(OptKind.VECTORIZE, loop, _lane_counts(site, loop))
        elif lanemoves.has_lanes(site.target):
            yield from _cut(OptKind.VECTORIZE, loop, lanemoves.widths(site.facts, site.target, loop))


def _lane_counts(site: Site, loop: UOp) -> list[int]:
    """A full register of the widest value, half and twice of it, a register of the narrowest."""
    sizes = {
        n.dtype.itemsize for n in site.facts.order if n.dtype.kind in "uif" and loop in site.facts.ranges[n]
    } or {4}  # fmt: skip
    full = [max(2, site.target.vector_bits // (8 * size)) for size in (max(sizes), min(sizes))]
    amounts = {full[0] // 2, full[0], 2 * full[0], full[1]}
    size = size_bound(loop)
    return sorted(a for a in amounts if 2 <= a <= max(2, 1 << max(0, size - 1).bit_length()))


def _group(site: Site) -> Iterator[Opts]:
    for loop in _loops(site, AxisKind.REDUCE):
        size = size_bound(loop)
        yield from _cut(OptKind.GROUP, loop, [a for a in GROUPS if a <= size])


def _reorder(site: Site) -> Iterator[Opts]:
    loops = site.facts.loops
    movable = _loops(site, AxisKind.LOOP, AxisKind.REDUCE, AxisKind.PARALLEL)
    for position, loop in enumerate(loops):
        if loop not in movable:
            continue
        for place, other in enumerate(loops):
            if other in movable and place not in (position, position - 1):
                yield (Opt(OptKind.REORDER, loop.arg.number, place),)


def _parallel(site: Site) -> Iterator[Opts]:
    several = lanemoves.has_lanes(site.target)
    if not site.parallel or site.target.cores < 2 or (_loops(site, AxisKind.PARALLEL) and not several):
        return
    for loop in _loops(site, AxisKind.LOOP):
        if size_bound(loop) > 1:
            yield (Opt(OptKind.PARALLEL, loop.arg.number, 0),)


def _accumulate(site: Site) -> Iterator[Opts]:
    """Blocks of a sum, whose loop goes outside of all others: there a block of the operands serves all outputs."""
    for loop in _loops(site, AxisKind.REDUCE):
        size = range_size(loop)
        if size is not None:
            for amount in _blocks(size, MIN_SUMMED, size // 2):
                if size % amount == 0:
                    number = loop.arg.number
                    yield Opt(OptKind.ACCUMULATE, number, amount), Opt(OptKind.REORDER, number, 0)


def _prefetch(site: Site) -> Iterator[Opts]:
    """What a loop reads from a slot a few iterations later."""
    for loop in _loops(site, AxisKind.LOOP, AxisKind.REDUCE, AxisKind.PARALLEL):
        for slot in _read(site, loop):
            for distance in DISTANCES:
                yield (Opt(OptKind.PREFETCH, loop.arg.number, distance, Tail.EXACT, PrefetchDetail(slot)),)


def _read(site: Site, loop: UOp | None = None) -> list[int]:
    """The slots that are read, inside of a loop."""
    accesses = [a for a in site.facts.accesses if not a.is_store and (loop is None or loop in a.ranges)]
    return sorted({a.slot for a in accesses if a.slot is not None})


def _stream(site: Site) -> Iterator[Opts]:
    """Stores past the caches, of results too large for whoever reads them next to find them there."""
    for access in site.facts.accesses:
        if not access.is_store or access.slot is None or not access.ranges:
            continue
        if access.param.arg.size * access.param.dtype.itemsize > site.target.llc_bytes // STREAM_SHARE:
            number = min(r.arg.number for r in access.ranges)
            yield (Opt(OptKind.STREAM, number, access.slot),)


def _far(site: Site) -> Iterator[Opts]:
    for loop in _loops(site, AxisKind.LOOP, AxisKind.REDUCE):
        size = size_bound(loop)
        for amount in GROUPS:
            if size >= amount * amount:
                for tail in _tails(loop, amount):
                    yield (Opt(OptKind.FAR, loop.arg.number, amount, tail),)


def _stage(site: Site) -> Iterator[Opts]:
    """A copy of what a loop reads from a slot, made near the core inside the loop."""
    for loop in _loops(site, AxisKind.LOOP, AxisKind.REDUCE, AxisKind.PARALLEL):
        for slot in _read(site):
            yield (Opt(OptKind.STAGE, loop.arg.number, 0, Tail.EXACT, StageDetail(slot)),)
            for order in _turned(site.facts, loop, slot):
                for side in BLOCK_SIDES:
                    detail = StageDetail(slot, order=order, transpose=side)
                    yield (Opt(OptKind.STAGE, loop.arg.number, 0, Tail.EXACT, detail),)


def _turned(facts: KernelFacts, level: UOp, slot: int) -> Iterator[tuple[int, ...]]:
    """Orders of a copy whose rows lie across those in memory: the axis with neighbours last but one."""
    access = next(a for a in facts.accesses if not a.is_store and a.slot == slot)
    inside = sorted((r for r in access.ranges if facts.nesting(r) > facts.nesting(level)), key=facts.nesting)
    near = next((r for r in inside if facts.stride(access, r) == 1), None)
    for row in inside:
        if near is not None and row is not near:
            rest = [r for r in inside if r is not near and r is not row]
            yield tuple([r.arg.number for r in (*rest, near, row)])


def _lookup(site: Site) -> Iterator[Opts]:
    for opt in lookups(site.facts, site.target):
        yield (opt,)


def _online(site: Site) -> Iterator[Opts]:
    """Blocks that stay in the first cache, and lanes inside of them."""
    number = site.facts.next_number()
    for loop in _loops(site, AxisKind.REDUCE):
        pair, size = find_pair(site.facts, loop), range_size(loop)
        if pair is None or size is None:
            continue
        lanes = site.target.lanes(pair.total.dtype)
        for amount in _blocks(size, MIN_SUMMED, site.target.l1_bytes // pair.total.dtype.itemsize):
            if size % amount == 0 and amount < size:
                inside = [Opt(OptKind.VECTORIZE, number + n, lanes) for n in (1, 2) if amount % lanes == 0]
                yield (Opt(OptKind.ONLINE, loop.arg.number, amount), *inside)


def _scan(site: Site) -> Iterator[Opts]:
    for loop in _loops(site, AxisKind.ORDERED):
        size = size_bound(loop)
        for amount in _lane_counts(site, loop):
            if size % amount == 0:
                yield (Opt(OptKind.SCAN, loop.arg.number, amount),)


# The words that search tries, a row each: from a kernel to the opts of this word that are worth trying on it, alone or
# with others that they need. An opt that the kernel does not allow is no candidate, so a row need not know what is
# legal.
MOVES: Final[dict[OptKind, Proposals]] = {
    OptKind.SPLIT: _split,
    OptKind.UNROLL: _unroll,
    OptKind.VECTORIZE: _vectorize,
    OptKind.GROUP: _group,
    OptKind.REORDER: _reorder,
    OptKind.PARALLEL: _parallel,
    OptKind.ACCUMULATE: _accumulate,
    OptKind.PREFETCH: _prefetch,
    OptKind.STREAM: _stream,
    OptKind.FAR: _far,
    OptKind.STAGE: _stage,
    OptKind.LOOKUP: _lookup,
    OptKind.ONLINE: _online,
    OptKind.SCAN: _scan,
    OptKind.THREAD: lambda site: lanemoves.thread(site.facts, site.target),
    OptKind.SPECIALIZE: lambda site: lanemoves.specialize(site.facts, site.target),
    OptKind.PERSISTENT: lambda site: lanemoves.persistent(site.facts, site.target),
    OptKind.TILE_ORDER: lambda site: lanemoves.tile_order(site.facts, site.target),
    OptKind.EPILOGUE: lambda site: lanemoves.epilogue(site.facts, site.target),
}

# Words of a CPU's vectors and caches; lanes of a GPU have others.
_OF_CPUS: Final = frozenset({
    OptKind.PREFETCH, OptKind.STREAM, OptKind.FAR, OptKind.LOOKUP, OptKind.ONLINE, OptKind.SCAN, OptKind.ACCUMULATE,
})  # fmt: skip

# The words that it does not try by itself, and why; it keeps and changes them where the heuristic chose them.
NOT_TRIED: Final[dict[OptKind, str]] = {
    OptKind.FEED: "what it needs beside it (rows, tiles of every product) is chosen by formula",
    OptKind.ROTATE: "what it needs beside it (rows, tiles in five loops) is chosen by formula",
    OptKind.TENSORIZE: "lanes, tiles, copies come with it: `lanemoves.alternatives` has whole schedules",
    OptKind.DEAL: "how many parts pay is chosen by formula; other numbers are tried",
}


# What is left to say where matrix units run.
_OF_UNITS: Final = {OptKind.SPECIALIZE, OptKind.PERSISTENT, OptKind.TILE_ORDER, OptKind.EPILOGUE}


def apply(sink: UOp, opts: Sequence[Opt], target: Target) -> UOp | None:
    """The kernel after these opts; None where one of them is refused."""
    try:
        return actions.apply(sink, opts, target)
    except ArgumentError:
        return None


def additions(site: Site) -> Iterator[Opts]:
    """One more opt, of any word, with what it needs."""
    kinds = set(MOVES) if site.target.kind == "cpu" else set(MOVES) - _OF_CPUS
    if lanemoves.by_units(site.facts.sink.arg.opts or ()):
        kinds = _OF_UNITS
    for kind in MOVES:
        if kind in kinds:
            yield from MOVES[kind](site)


class _Step(NamedTuple):
    """An opt of a tuple, the kernel and the size of its range before it, the numbers of the ranges it makes."""

    opt: Opt
    before: KernelFacts
    size: int
    made: range

    @property
    def number(self) -> int:
        """The first number that it gave, or the next free one."""
        return self.made.start


def _steps(sink: UOp, opts: Opts, target: Target) -> list[_Step]:
    steps: list[_Step] = []
    facts = KernelFacts(sink)
    for opt in opts:
        before, facts = facts, KernelFacts(actions.apply_one(facts.sink, opt, target))
        loop = before.by_number(opt.axis)
        size = 0 if loop is None else size_bound(loop)
        steps.append(_Step(opt, before, size, range(before.next_number(), facts.next_number())))
    return steps


def changes(sink: UOp, opts: Opts, target: Target) -> Iterator[Opts]:
    """Tuples that differ from a legal one in one place: an opt left out, another amount or tail, two opts exchanged.

    Opts name ranges by number, and a number is given by the opts before. So the opts behind a changed one are renamed:
    they go on meaning the same range.
    """
    if lanemoves.by_units(opts):
        yield from lanemoves.changes_of_units(opts, target)
        return
    steps = _steps(sink, opts, target)
    for place, step in enumerate(steps):
        yield from _without(steps, place)
        for changed in (*_variants(step), *lanemoves.variants(step.opt, target)):
            yield from _replaced(steps, place, changed, target)
        yield from _rebalanced(steps, place)
        if place + 1 < len(steps) and not step.made and not steps[place + 1].made:
            yield (*opts[:place], opts[place + 1], opts[place], *opts[place + 2 :])


def _without(steps: Sequence[_Step], place: int) -> Iterator[Opts]:
    """Without an opt; what was done with the range that it made is done with the whole range, or left out too."""
    gone = steps[place]
    before = [s.opt for s in steps[:place]]
    after = [s.opt for s in steps[place + 1 :]]
    yield (*before, *[_renamed(o, gone, 0) for o in after])
    if any(o.axis in gone.made for o in after):
        yield (*before, *[_renamed(o, gone, 0) for o in after if o.axis not in gone.made])


def _replaced(steps: Sequence[_Step], place: int, changed: Opt, target: Target) -> Iterator[Opts]:
    step = steps[place]
    try:
        after = actions.apply_one(step.before.sink, changed, target)
    except ArgumentError:
        return
    # A range that is cut into one block has no outer loop, and the inner one keeps its number.
    made = KernelFacts(after).next_number() - step.number
    if changed.kind is OptKind.SPLIT and not made:
        return
    yield (*[s.opt for s in steps[:place]], changed, *[_renamed(s.opt, step, made) for s in steps[place + 1 :]])


def _renamed(opt: Opt, step: _Step, made: int) -> Opt:
    """An opt behind another one that makes another number of ranges now."""
    if opt.axis < step.number:
        return opt
    if opt.axis in step.made:
        return opt if opt.axis < step.number + made else opt._replace(axis=step.opt.axis)
    return opt._replace(axis=opt.axis + made - len(step.made))


def _variants(step: _Step) -> Iterator[Opt]:
    """The same word with another amount or another tail."""
    opt = step.opt
    if opt.kind not in _CUTS:
        return
    wanted = {opt.amount * 2, opt.amount // 2, opt.amount + 1, opt.amount - 1, opt.amount + 2, opt.amount - 2}
    if opt.kind in _BY_POWERS:
        wanted = {opt.amount * 2, opt.amount // 2}
    elif opt.amount > MAX_COPIES:
        wanted = {opt.amount * 2, opt.amount // 2, opt.amount * 3 // 2, opt.amount * 3 // 4}
    for amount in sorted(wanted):
        if 2 <= amount <= step.size:
            for tail in _other_tails(step.size, amount):
                yield opt._replace(amount=amount, tail=tail)
    for tail in _other_tails(step.size, opt.amount):
        if tail is not opt.tail:
            yield opt._replace(tail=tail)


def _other_tails(size: int, amount: int) -> tuple[Tail, ...]:
    return (Tail.EXACT,) if size % amount == 0 else tuple(t for t in Tail if t is not Tail.EXACT)


def _rebalanced(steps: Sequence[_Step], place: int) -> Iterator[Opts]:
    """A block of vectors side by side gets more or fewer of them: the split and what writes its blocks out change."""
    outer = steps[place]
    if outer.opt.kind is not OptKind.SPLIT or not outer.made:
        return
    for other in range(place + 1, len(steps)):
        inner = steps[other]
        if inner.opt.axis != outer.number or inner.made or inner.opt.kind is not OptKind.UNROLL:
            continue
        rest = outer.opt.amount // inner.opt.amount
        for copies in range(2, MAX_COPIES + 1):
            amount = rest * copies
            if copies == inner.opt.amount or not rest or amount > outer.size:
                continue
            for tail in _other_tails(outer.size, amount):
                opts = [s.opt for s in steps]
                opts[place] = outer.opt._replace(amount=amount, tail=tail)
                opts[other] = inner.opt._replace(amount=copies)
                yield tuple(opts)


def written_out(sink: UOp, target: Target) -> int:
    """About how many instructions the copies of a scheduled kernel's nodes become: what compiling it costs."""
    facts = KernelFacts(sink)
    sizes: dict[UOp, float] = {}
    for loop in facts.loops:
        if loop.arg.kind is AxisKind.UNROLL:
            sizes[loop] = size_bound(loop)
        elif loop.arg.kind is AxisKind.VECTOR:
            sizes[loop] = max(1.0, size_bound(loop) * 32 / target.vector_bits)
    total = 0.0
    for node in facts.order:
        total += math.prod(sizes[r] for r in facts.ranges[node] if r in sizes)
    return int(total)
