"""The loop nest that a kernel implies: merge adjacent ranges, and give every range exactly one place in the nest."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from math import prod
from typing import Final, NamedTuple

from gradlet.base.dtype import dtypes
from gradlet.base.errors import CompilerError
from gradlet.graph.node import UOp, mk, toposort
from gradlet.graph.rewrite import rewrite
from gradlet.ops.op import AxisKind, Op
from gradlet.optimize.analysis import (
    CLOSING,
    KernelFacts,
    affine,
    closed_by,
    kernel_order,
    make_range,
    nesting_depths,
    nesting_order,
    next_number,
    open_ranges,
    range_size,
    ranges_in,
)
from gradlet.rules.sets import INDEX_MATH

# Members of an enum are slow to reach through their class.
_RANGE: Final = Op.RANGE
_ADD: Final = Op.ADD
_MUL: Final = Op.MUL
_CONST: Final = Op.CONST
_INDEX: Final = Op.INDEX
_REDUCE: Final = Op.REDUCE
MAX_RENAMES = 1000
_CLOSING: Final = 1 << Op.REDUCE | 1 << Op.AFTER
FULL_LANES = 16  # lanes of float32 in the widest vector register


def merge_adjacent(sink: UOp) -> UOp:
    """Make one range of two that every access walks as one: `i * size(j) + j`. Fewer, longer loops vectorise better.

    Guards may use the two apart: they get quotient and remainder of the one. A convolution that keeps the size of its
    image then has all pixels in one range.
    """
    while True:
        facts = KernelFacts(sink)
        groups = _groups(facts)
        if not groups:
            return sink
        forms, of_guards = _affine_forms(facts)
        if _are_free_of_guards(groups, facts):
            chains = [chain for loops in groups for chain in _chains(loops, forms)]
            return _merge_chains(facts, chains) if chains else sink
        pair = _mergeable(groups, forms, of_guards)
        if pair is None:
            return sink
        sink = _merge(sink, *pair)


def _groups(facts: KernelFacts) -> list[list[UOp]]:
    """Ranges of one kind and the same users, where there are several of them; in nesting order."""
    loops = [r for r in facts.loops if r.arg.kind in (AxisKind.LOOP, AxisKind.REDUCE) and range_size(r) is not None]
    uses = _users(facts)
    found: dict[tuple[AxisKind, tuple[UOp, ...]], list[UOp]] = {}
    for loop in loops:
        found.setdefault((loop.arg.kind, uses[loop]), []).append(loop)
    return [group for group in found.values() if len(group) > 1]


def _are_free_of_guards(groups: list[list[UOp]], facts: KernelFacts) -> bool:
    """Whether no guard depends on any of these ranges: then the order of merges does not matter."""
    ranges = {r for group in groups for r in group}
    return all(
        ranges.isdisjoint(facts.ranges[n.src[2]]) for n in facts.order if n.op is _INDEX and len(n.src) > 2
    )  # fmt: skip


def _chains(loops: list[UOp], forms: list[dict[UOp, int]]) -> list[list[UOp]]:
    """Ranges that become one, outermost first, as merging one pair after the other would find them."""
    chains = [[loop] for loop in loops]
    # How far every form moves a step of the innermost range, and the iterations of all.
    steps = [[form.get(loop, 0) for form in forms] for loop in loops]
    sizes = [int(loop.src[0].arg) for loop in loops]
    outer = 0
    while outer < len(chains):
        for inner, size in enumerate(sizes):
            if inner != outer and steps[outer] == [step * size for step in steps[inner]]:
                chains[outer] += chains[inner]
                steps[outer], sizes[outer] = steps[inner], sizes[outer] * size
                del chains[inner], steps[inner], sizes[inner]
                outer -= inner < outer
                break
        else:
            outer += 1
    return [chain for chain in chains if len(chain) > 1]


def _merge_chains(facts: KernelFacts, chains: list[list[UOp]]) -> UOp:
    """The kernel with one range for each of these chains, on which no guard depends."""
    new: dict[UOp, UOp] = {}
    for chain in chains:
        total = UOp.const(dtypes.index, prod([int(loop.src[0].arg) for loop in chain]))
        new.update(dict.fromkeys(chain, UOp.const(dtypes.index, 0)))
        new[chain[-1]] = make_range(total, chain[0].arg.number, chain[0].arg.kind)
    merged = set(new)
    changed = new.keys()
    for node in facts.order:
        if node not in merged and not changed.isdisjoint(node.src):
            new[node] = mk(node.op, node.dtype, _unclosed(node, new), node.arg)
    return new[facts.sink]


def _mergeable(
    groups: list[list[UOp]], forms: list[dict[UOp, int]], of_guards: list[dict[UOp, int]]
) -> tuple[UOp, UOp] | None:
    uses = {loop: number for number, group in enumerate(groups) for loop in group}
    loops = sorted(uses, key=nesting_order)
    for outer in loops:
        for inner in loops:
            if outer is inner or uses[outer] != uses[inner]:
                continue
            size = int(inner.src[0].arg)
            if not all(form.get(outer, 0) == form.get(inner, 0) * size for form in forms):
                continue
            # Where inner ranges fill whole vectors anyway, guards are simpler with the ranges apart.
            as_one = all(form.get(outer, 0) == form.get(inner, 0) * size for form in of_guards)
            if as_one or (size % FULL_LANES and any(inner in form for form in forms)):
                return outer, inner
    return None


def _users(facts: KernelFacts) -> dict[UOp, tuple[UOp, ...]]:
    """Of every range the REDUCEs that close it and the stores that run over it."""
    users: dict[UOp, dict[UOp, None]] = {r: {} for r in facts.loops}
    for node in facts.reduces:
        for source in node.src[1:]:
            users[source][node] = None
    for store in facts.stores:
        for loop in facts.ranges[store]:
            users[loop][store] = None
    return {loop: tuple(found) for loop, found in users.items()}


def _affine_forms(facts: KernelFacts) -> tuple[list[dict[UOp, int]], list[dict[UOp, int]]]:
    """The terms of every affine expression that something else than a larger affine expression uses.

    First those that values and element numbers need, then those that only guards need.
    """
    index = dtypes.index
    parts = {
        n for n in facts.order
        if n.dtype is index and (n.op is _RANGE or n.op is _ADD or (n.op is _MUL and n.src[1].op is _CONST))
    }  # fmt: skip
    needed = {facts.sink}
    for node in reversed(facts.order):
        if node in needed:
            needed.update(node.src[:2] if node.op is _INDEX else node.src)
    roots: dict[UOp, bool] = {}
    for node in facts.order:
        if parts.isdisjoint(node.src) or (node in parts and node.op is not _RANGE):
            continue
        for position, source in enumerate(node.src[:1] if node.op is _REDUCE else node.src):
            if source in parts:
                guard = node not in needed or (node.op is _INDEX and position == 2)
                roots[source] = roots.get(source, True) and guard
    values = [affine(root).terms for root, guard in roots.items() if not guard]
    return values, [affine(root).terms for root, guard in roots.items() if guard]


def _merge(sink: UOp, outer: UOp, inner: UOp) -> UOp:
    size = int(inner.src[0].arg)
    total = UOp.const(dtypes.index, int(outer.src[0].arg) * size)
    merged = make_range(total, outer.arg.number, outer.arg.kind)
    apart = {outer: merged // size, inner: merged % size}
    new: dict[UOp, UOp] = {outer: UOp.const(dtypes.index, 0), inner: merged}
    order = kernel_order(sink)
    in_guards: dict[UOp, UOp] = dict(apart)
    for node in toposort([n.src[2] for n in order if n.op is _INDEX and len(n.src) > 2]):
        if node not in apart and not in_guards.keys().isdisjoint(node.src):
            made = mk(node.op, node.dtype, _unclosed(node, in_guards), node.arg)
            # What a guard loads is loaded elsewhere, too: at the range itself, not at the sum of its digits.
            in_guards[node] = rewrite(made, INDEX_MATH) if node.op is _INDEX else made
    changed = new.keys()
    for node in order:
        guarded = node.op is _INDEX and len(node.src) > 2
        if node in apart or (changed.isdisjoint(node.src) and not guarded):
            continue
        src = _unclosed(node, new)
        if guarded:
            src = (*src[:2], in_guards.get(node.src[2], node.src[2]))
        if src != node.src:
            made = mk(node.op, node.dtype, src, node.arg)
            new[node] = rewrite(made, INDEX_MATH) if node.op is _INDEX and node in in_guards else made
    return new[sink]


def _unclosed(node: UOp, new: dict[UOp, UOp]) -> tuple[UOp, ...]:
    """The rebuilt sources; a REDUCE closes only what is still a range."""
    src = tuple([new.get(s, s) for s in node.src])
    if node.op is not _REDUCE:
        return src
    closed = dict.fromkeys(r for s in src[1:] for r in toposort((s,)) if r.op is _RANGE)
    return (src[0], *closed)


class Place(NamedTuple):
    """Where a loop stands: inside which range, and after how many finished loops there at least."""

    parent: UOp | None
    level: int


class Nest:
    """The loop tree of a kernel in which every range has one place.

    Attributes:
        order: the kernel's nodes, sources first.
        loops: its RANGE nodes.
        ranges: open ranges of every node.
        places: every range's place.
    """

    def __init__(self, sink: UOp, like: Nest | None = None) -> None:
        self.sink = sink
        self.order = kernel_order(sink)
        self.ranges = ranges_in(sink)
        self.loops = [n for n in self.order if n.op is _RANGE]
        self._share_blocks()
        self._apart = self._stores_apart()
        self.places: dict[UOp, Place] = {}
        if like is not None and like.places.keys() == set(self.loops):
            self.places = like.places
        known = like.depths if like is not None and self.places else None
        self.depths: dict[UOp, int] = nesting_depths(self.order, self.ranges) if known is None else known
        # Only what a REDUCE or AFTER is part of can have to wait for a loop.
        self._waiting = [n for n in self.order if n.mask & _CLOSING]
        self._levels: dict[UOp | None, dict[UOp, int]] = {}
        self._innermost: dict[frozenset[UOp], UOp | None] = {}
        self._paths: dict[UOp | None, tuple[UOp, ...]] = {None: ()}

    def _share_blocks(self) -> None:
        """All stores belong to the block, also what goes to scratch memory and has the same place in every block."""
        blocks = frozenset([r for r in self.loops if r.arg.kind is AxisKind.PARALLEL])
        if blocks:
            self.ranges = dict(self.ranges)
            for store in self.sink.src:
                self.ranges[store] = self.ranges[store] | blocks

    def _stores_apart(self) -> dict[UOp, int]:
        """Of lanes over some stores only: how many do without. They are inside of those that all stores have."""
        lanes = [r for r in self.loops if r.arg.kind is AxisKind.THREAD]
        return {r: sum(r not in self.ranges[store] for store in self.sink.src) for r in lanes}

    def nesting(self, loop: UOp) -> tuple[int, int, int, int]:
        """Sort key of ranges that occur together, outermost first."""
        kind, number = nesting_order(loop)
        return (self.depths.get(loop, 0), kind, self._apart.get(loop, 0), number)

    def path(self, loop: UOp | None) -> tuple[UOp, ...]:
        """The ranges around and including `loop`, outermost first."""
        found = self._paths.get(loop)
        if found is None:
            assert loop is not None
            inside_out = [loop]
            while (parent := self.places[inside_out[-1]].parent) is not None:
                inside_out.append(parent)
            found = tuple(reversed(inside_out))
            self._paths[loop] = found
        return found

    def context(self, node: UOp) -> UOp | None:
        """The innermost range whose body has to contain the node."""
        return self.innermost(self.ranges[node])

    def contexts(self, nodes: Iterable[UOp]) -> dict[UOp, UOp | None]:
        """The context of each node."""
        ranges, innermost = self.ranges, self.innermost
        known: dict[frozenset[UOp], UOp | None] = {r: innermost(r) for r in {*ranges.values()}}
        return {node: known[ranges[node]] for node in nodes}

    def innermost(self, ranges: frozenset[UOp]) -> UOp | None:
        """The range of a set that is nested deepest."""
        try:
            return self._innermost[ranges]
        except KeyError:
            found = max(ranges, key=self.nesting, default=None)
            self._innermost[ranges] = found
            return found

    def level(self, node: UOp, parent: UOp | None) -> int:
        """How many finished loops, one after another, the node needs in the body of `parent`."""
        found = self._levels.get(parent)
        if found is None:
            found = {}
            get = found.get
            for other in self._waiting:
                level = 0
                for source in other.src:
                    below = get(source, 0)
                    if below > level:
                        level = below
                if other.op in CLOSING and self.context(other) is parent:
                    level += 1
                if level:
                    found[other] = level
            self._levels[parent] = found
        return found.get(node, 0)

    def conflict(self) -> tuple[list[UOp], UOp, Place] | None:
        """Place all loops. Where a range would need a second place: who wants it there (stores, or REDUCEs), and where.

        None of them is part of another one, which would want a later place.
        """
        stores = [s for s in self.sink.src if self.ranges[s]]
        nests = {ranges: sorted(ranges, key=self.nesting) for ranges in {self.ranges[s] for s in stores}}
        closing = [n for n in reversed(self._waiting) if n.op in CLOSING]
        # Nothing waits for a store, so all stores of a loop go to where the latest of them can.
        latest: dict[tuple[UOp | None, UOp], int] = {}
        for store in stores:
            parent: UOp | None = None
            for loop in nests[self.ranges[store]]:
                key = (parent, loop)
                latest[key] = max(latest.get(key, 0), self.level(store, parent))
                parent = loop
        for store in stores:
            parent = None
            for loop in nests[self.ranges[store]]:
                wanted = Place(parent, latest[parent, loop])
                if self.places.setdefault(loop, wanted) != wanted:
                    return [store], loop, wanted
                parent = loop
        for number, node in enumerate(closing):
            if any(r not in self.places for r in self.ranges[node]):
                raise CompilerError(f"a {node.op.name} depends on a range that nothing runs over: {node}")
            for loop, wanted in self._wanted(node):
                if self.places.setdefault(loop, wanted) != wanted:
                    alike = [n for n in closing[number + 1 :] if loop in n.src and (loop, wanted) in self._wanted(n)]
                    return [node, *alike], loop, wanted
        return None

    def _wanted(self, node: UOp) -> list[tuple[UOp, Place]]:
        """Where the ranges that a REDUCE or AFTER closes have to stand, outermost first."""
        places: list[tuple[UOp, Place]] = []
        inside = [s for s in node.src if s.op is not _RANGE]
        for chain in self._closed_chains(node, inside):
            parent = self.context(node)
            for loop in chain:
                wanted = (loop, Place(parent, max([self.level(s, parent) for s in inside])))
                if wanted not in places:
                    places.append(wanted)
                parent = loop
        return places

    def _closed_chains(self, node: UOp, inside: list[UOp]) -> list[list[UOp]]:
        """The closed ranges, outermost first; stores that fill an array in loops of their own have theirs each."""
        closed = sorted(closed_by(node), key=self.nesting)
        if len(inside) == 1:
            return [closed]
        chains = [[r for r in closed if r in self.ranges[s]] for s in inside]
        parents: dict[UOp, UOp | None] = {}
        for chain in chains:
            for parent, loop in zip([None, *chain], chain):
                if parents.setdefault(loop, parent) is not parent:
                    return [closed]
        return chains if len(parents) == len(closed) else [closed]


def separate(sink: UOp) -> UOp:
    """Rename ranges until each has one place in the loop nest."""
    return separated(sink).sink


def separated(sink: UOp) -> Nest:
    """The loop tree of the kernel with ranges renamed until each has one place in it.

    The same range may be closed by a REDUCE and used again by what needs the REDUCE (a row is read twice): that is two
    loops, one after the other, so they need two ranges.
    """
    renamed: dict[tuple[UOp, Place], UOp] = {}
    for _ in range(MAX_RENAMES):
        found = Nest(sink)
        conflict = found.conflict()
        if conflict is None:
            return found
        users, loop, place = conflict
        number = next_number(sink)
        alike: dict[tuple[UOp, ...], list[UOp]] = {}
        for user in users:
            # Numbers say which loop stands inside of which: those inside of a renamed one get later numbers, too.
            inside = (
                [r for r in closed_by(user) if found.nesting(r) > found.nesting(loop)] if user.op in CLOSING else []
            )
            loops = (loop, *sorted(inside, key=found.nesting))
            alike.setdefault(loops, []).append(user)
            for old in loops:
                if (old, place) not in renamed:
                    renamed[old, place] = make_range(old.src[0], number, old.arg.kind)
                    number += 1
        replaced: dict[UOp, UOp] = {}
        for loops, members in alike.items():
            replaced.update(zip(members, _rename(members, {old: renamed[old, place] for old in loops})))
        sink = sink.substitute(replaced)
    raise CompilerError(f"the loops of kernel {sink.arg.name} cannot be ordered")


def _rename(users: Sequence[UOp], fresh: Mapping[UOp, UOp]) -> list[UOp]:
    """The stores or REDUCEs over fresh ranges; what lies below and closes an old one itself keeps it."""
    order = toposort(users)
    ranges = open_ranges(order)
    whole = frozenset(users)
    below = [n for n in order if n.op in CLOSING and n not in whole]
    if len(fresh) > 1 and any(not fresh.keys().isdisjoint(n.src) for n in below):
        one, *others = fresh.items()  # what is between an old range and where it is closed depends on the others alone
        return _rename(_rename(users, dict((one,))), dict(others))
    old = frozenset(fresh)
    new: dict[UOp, UOp] = dict(fresh)
    for node in order:
        # Only what depends on the open ranges is renamed: a REDUCE that closes one is already finished.
        if node in old or not node.src:
            continue
        if node in whole or not old.isdisjoint(ranges[node]):
            src = tuple([s if old.isdisjoint(ranges[s]) else new.get(s, s) for s in node.src])
            new[node] = mk(node.op, node.dtype, src, node.arg)
    return [new[user] for user in users]


def nest_of(sink: UOp, like: Nest | None = None) -> Nest:
    """The loop tree of a kernel whose ranges are separate.

    Args:
        sink: the kernel.
        like: the loop tree from before passes that changed arithmetic only: the loops stand where they stood.

    Raises:
        CompilerError: they are not.
    """
    found = Nest(sink, like)
    if found.places:
        return found
    if (conflict := found.conflict()) is not None:
        raise CompilerError(f"range {conflict[1].arg.number} would need two loops at {conflict[0][0]}")
    return found
