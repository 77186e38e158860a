"""In-place writes and their readers: decide which writes reuse memory, and what has to run before them.

A buffer is a chain of versions: a write turns version v into the next one. A write runs in place when nobody needs the
elements that it changes any more once it has run; their readers inside the schedule then run before it. All others
become expressions. What a view shows is a box of memory (`boxes`): boxes that share no element have nothing to do with
each other; boxes that depend on data meet everything.
"""

from __future__ import annotations

from collections.abc import Collection, Hashable, Sequence
from dataclasses import dataclass, field
from math import prod
from typing import Final

from gradlet.graph.node import UOp, mk, toposort
from gradlet.ops.op import ELEMENTWISE, MOVEMENT, SCALAR_LEAVES, Op
from gradlet.schedule.boxes import Box, box_of, disjoint, layout_of, row_box, whole
from gradlet.schedule.moves import (
    BIJECTIVE,
    chain_to,
    materialised_shape,
    replay,
    root_of,
    select,
    unmove,
    whole_root_of,
)
from gradlet.schedule.overwrites import MOST_VERSIONS, read_box, scatter_of, shorten

# Ops not all of whose sources are values.
_OTHERS: Final = frozenset({Op.WRITE, Op.SCATTER, Op.REDUCE_AXES})
_WRITE: Final = Op.WRITE
_WRITES: Final = frozenset({Op.WRITE, Op.SCATTER})
_NO_STEPS: Final = MOVEMENT | SCALAR_LEAVES | {Op.BUFFER}
_WRITING: Final = 1 << Op.WRITE | 1 << Op.SCATTER
# A write of at most this part of a version is undone for readers that come after it, rather than kept out of place.
UNDONE_PART: Final = 4
# Of more views of one buffer than this that others hold, nobody asks which parts they leave free.
MOST_BOXES: Final = 16


@dataclass
class Effects:
    """A graph whose writes are decided.

    Attributes:
        roots: the graph's roots after rewriting, one for each root that was asked for.
        extra: writes of the old graph that other graphs hold: they are computed too, new node by old node.
        versions: for every op that writes in place, the version it overwrites: a BUFFER, or an op that lives in memory.
            Versions that nobody reads are not computed, but they say which memory it is.
        memory: the same, less the versions that are not computed.
        places: for an op whose whole value goes into existing memory: a view of that version, shaped like the op.
        before: for every op that writes in place, the ops that have to read the old version first.
    """

    roots: list[UOp]
    extra: dict[UOp, UOp]
    versions: dict[UOp, UOp]
    memory: dict[UOp, UOp]
    places: dict[UOp, UOp]
    before: dict[UOp, list[UOp]]

    def overwritten(self, node: UOp) -> UOp:
        """The view, of its version, that an op goes over which writes in place."""
        if node.op is Op.WRITE:
            return node.src[1]
        return node.src[0] if node.op is Op.SCATTER else self.places[node]


def operands(node: UOp) -> tuple[UOp, ...]:
    """What an op reads as values; the base of a write is memory, not a value."""
    if node.op not in _OTHERS:
        return node.src
    if node.op is Op.WRITE:
        return (node.src[2],)
    if node.op is Op.SCATTER:
        return node.src[1:]
    return node.src[:1]  # the sizes are numbers of the kernel


@dataclass
class Held:
    """What other graphs still need after a schedule.

    Attributes:
        buffers: those that this schedule knows.
        nodes: everything they contain, down to results of this schedule.
        boxes: for every buffer the elements that they read of it directly.
    """

    buffers: Collection[UOp] = ()
    nodes: set[UOp] = field(default_factory=set)
    boxes: dict[UOp, list[Box]] = field(default_factory=dict)

    def note(self, operand: UOp) -> None:
        """Somebody reads the elements that `operand` shows, if it is a view of a buffer."""
        buffer = root_of(operand)
        if buffer not in self.buffers:
            return
        boxes = self.boxes.setdefault(buffer, [])
        box = box_of(operand, buffer) if len(boxes) < MOST_BOXES else whole(buffer)
        if box not in boxes:
            boxes.append(box)

    def meets(self, buffer: UOp, box: Box) -> bool:
        """Whether somebody may need an element of this box of a buffer."""
        return any(not disjoint(box, other) for other in self.boxes.get(buffer, ()))

    def key(self, leaf: UOp) -> Hashable:
        """All that decisions about a leaf depend on."""
        return tuple(sorted([(b.start, b.terms) for b in self.boxes.get(leaf, ())]))


def place_writes(
    roots: Sequence[UOp],
    live: Sequence[UOp] = (),
    guards: Collection[UOp] = (),
    asked: Sequence[tuple[UOp, UOp]] | None = None,
) -> Effects:
    """Decide every WRITE and SCATTER of a graph.

    Starts by writing in place wherever memory allows. Where that would need an order that does not exist (a late
    reader: one of the old version that itself depends on the write), everything is tried again: the elements that a
    small write changes are saved before it, and late readers take them from there; a large write gets memory of its
    own.

    Args:
        roots: graphs to compute.
        live: other graphs still in use.
        guards: CONTIGUOUS nodes that need no memory once their write has become an expression.
        asked: the roots, the other graphs and all writes in them as they were before they were simplified, each with
            what it became. Only by these names do others know what a schedule computes.
    """
    known = [n for n in toposort(roots) if n.op is _WRITE]
    if asked is None:
        asked = [(n, n) for n in (*roots, *live, *known)]
    graphs = list(dict.fromkeys([*roots, *live, *known]))
    shorter = dict(zip(graphs, shorten(graphs, [*roots, *live]), strict=True))
    wanted = [shorter[r] for r in roots]
    # A write that no root needs any more does not run.
    present = set(toposort(wanted))
    running = {w for w in known if shorter[w] in present}
    runs = {old: root_of(new) for old, new in asked if old.op is Op.WRITE and root_of(new) in running}
    names = [old for old, _ in asked[: len(roots) + len(live)]]
    held, reached = held_nodes(names[: len(roots)], names[len(roots) :], runs)
    extra = [w for w in dict.fromkeys([shorter[runs[w]] for w in reached if w in runs]) if w not in wanted]
    held.nodes = {*extra, *wanted, *[root_of(w) for w in wanted]}
    for node in wanted:
        held.note(node)
    given_up: set[UOp] = set()
    late: dict[UOp, list[UOp]] = {}
    while True:
        attempt = _Attempt([*wanted, *extra], held, given_up, late, guards)
        culprit = attempt.run()
        if culprit is None:
            break
        readers = [] if culprit in late else attempt.late_readers(culprit)
        if readers:
            late[culprit] = readers
        else:
            given_up.add(culprit)
    new = attempt.new
    found = set(extra)
    called = set(roots)
    return Effects(
        [new[r] for r in wanted],
        {w: new[shorter[w]] for w in known if shorter[w] in found and w not in called},
        attempt.versions, attempt.memory, attempt.places, attempt.before,
    )  # fmt: skip


def held_nodes(
    roots: Sequence[UOp],
    live: Sequence[UOp],
    runs: Collection[UOp] | None = None,
    order: Sequence[UOp] | None = None,
) -> tuple[Held, list[UOp]]:
    """What other graphs still need after this schedule, and the writes of ours among it that are not roots.

    A live graph that contains one of our roots or writes will read its result, not what lies below. `runs` are the
    writes that the schedule performs; all that the roots contain if it does not say. `order` has at least the buffers
    and the writes of the roots' graphs, for who knows them already.
    """
    held = Held()
    if not any(r.mask & _WRITING for r in roots):
        return held, []
    if order is None:
        order = toposort(roots)
    held.buffers = {n for n in order if not n.src and n.op is Op.BUFFER}
    known = set(roots)
    known.update(n for n in order if n.op is _WRITE and (runs is None or n in runs))
    found: list[UOp] = []
    for node in live:
        if node not in held.nodes:
            held.nodes.add(node)
            found.append(node)
            held.note(node)
    for node in found:
        if node in known:
            continue
        for source in node.src:
            if node.op not in MOVEMENT:
                held.note(source)
            if source not in held.nodes:
                held.nodes.add(source)
                found.append(source)
    # A result is a view: what it shows may not change either, and others may know that write under another view.
    reached = {root_of(n) for n in found if n in known}
    wanted = set(roots)
    extra = [n for n in order if n.op is _WRITE and n in reached and n not in wanted]
    held.nodes |= reached
    for root in roots:
        held.nodes.add(root)
        held.nodes.add(root_of(root))
        held.note(root)
    return held, extra


@dataclass
class _Attempt:
    """One try: rewrite the graph with the writes in `given_up` not in place, then look for cycles.

    `late` has for a write the readers of the version before it that come after it.
    """

    wanted: Sequence[UOp]
    held: Held
    given_up: set[UOp]
    late: dict[UOp, list[UOp]]
    guards: Collection[UOp]
    new: dict[UOp, UOp] = field(default_factory=dict)
    versions: dict[UOp, UOp] = field(default_factory=dict)
    places: dict[UOp, UOp] = field(default_factory=dict)
    before: dict[UOp, list[UOp]] = field(default_factory=dict)
    memory: dict[UOp, UOp] = field(default_factory=dict)
    fresh: set[UOp] = field(default_factory=set)  # memory that this graph made for its own writes
    overwritten: set[UOp] = field(default_factory=set)
    below: dict[UOp, tuple[UOp, bool]] = field(default_factory=dict)  # the memory of a version, and whether renumbered
    olds: dict[UOp, list[UOp]] = field(default_factory=dict)  # new op -> the old nodes it stands for
    held_new: set[UOp] = field(default_factory=set)  # what the held nodes became

    def run(self) -> UOp | None:
        """Rewrite; returns the old node of a write that cannot be in place, None when all is well."""
        order = toposort(self.wanted)
        self.old_nodes = set(order)
        self.chained = {whole_root_of(n.src[0]) for n in order if n.op is _WRITE}
        self.scatter_targets = _scatters_in_place(order)
        undone: dict[UOp, list[UOp]] = {}
        for writer, readers in self.late.items():
            for reader in readers:
                undone.setdefault(reader, []).append(writer)
        new, held = self.new, self.held.nodes
        changed: set[UOp] = set()
        for node in order:
            old = node.src
            src = old if changed.isdisjoint(old) else tuple([new[s] for s in old])
            for writer in undone.get(node, ()):
                src = tuple([self.undo(s, writer) for s in src])
            if node.op in _WRITES:
                made = self.write(node, src) if node.op is _WRITE else self.scatter(node, src)
            else:
                made = node if src is old else mk(node.op, node.dtype, src, node.arg)
            new[node] = made
            if made is not node:
                changed.add(node)
            if node in held:
                self.held_new.add(made)
        return self.find_cycle()

    def origins(self) -> dict[UOp, list[UOp]]:
        """The old nodes that each new step stands for."""
        found: dict[UOp, list[UOp]] = {}
        for old, new in self.new.items():
            if old.op not in MOVEMENT:
                found.setdefault(root_of(new), []).append(old)
        return found

    def undo(self, operand: UOp, writer: UOp) -> UOp:
        """An operand that shows the version before an in-place write, from the version after it and what was saved."""
        after = root_of(self.new[writer]) if writer in self.new else None
        if after is None or after.op is not Op.WRITE or root_of(operand) is not self.versions.get(after):
            return operand
        version, view, _ = after.src
        saved = mk(Op.CONTIGUOUS, view.dtype, (view,), None)
        before = select(after, chain_to(view, version), saved)
        return replay(chain_to(operand, version), before)

    def late_readers(self, culprit: UOp) -> list[UOp]:
        """The readers of what a small write changes that depend on the write themselves; none if it is large."""
        op = root_of(self.new[culprit])
        if op.op is not Op.WRITE or op not in self.before:
            return []
        if prod(op.src[1].shape) * UNDONE_PART > prod(op.shape):
            return []
        below = {op}
        for node in toposort([self.new[w] for w in self.wanted]):
            if not below.isdisjoint(node.src):
                below.add(node)
        late = [r for r in self.before[op] if r in below]
        origins = self.origins()
        found = [old for r in late for old in origins.get(r, ())]
        return found if all(r in origins for r in late) else []

    def may_overwrite(self, version: UOp, box: Box) -> bool:
        """Whether nobody outside this schedule needs a box of the version, and no other write took the version."""
        if version in self.overwritten:
            return False
        memory, renumbered = self.below.get(version, (version, False))
        if memory.op is Op.BUFFER and self.held.meets(memory, whole(memory) if renumbered else box):
            return False
        if version.op is Op.BUFFER:
            return True
        if version not in self.versions and version not in self.fresh:
            return False
        return version not in self.held_new and not any(old in self.held.nodes for old in self.olds.get(version, ()))

    def overwrite(self, op: UOp, version: UOp, *olds: UOp) -> None:
        """Note that `op` turns `version` into the next one."""
        self.versions[op] = version
        memory, renumbered = self.below.get(version, (version, False))
        # What is not a WRITE counts the elements in its own order.
        self.below[op] = (memory, renumbered or op.op is not Op.WRITE)
        self.overwritten.add(version)
        self.olds[op] = list(olds)

    def fresh_copy(self, value: UOp) -> UOp:
        """Memory of our own that holds `value` and is free to be overwritten."""
        copy = mk(Op.CONTIGUOUS, value.dtype, (value,), None)
        while copy in self.fresh or copy in self.held.nodes or (copy in self.old_nodes and copy not in self.guards):
            copy = mk(Op.CONTIGUOUS, copy.dtype, (copy,), None)
        self.fresh.add(copy)
        return copy

    # writes
    def write(self, node: UOp, src: tuple[UOp, ...]) -> UOp:
        """One WRITE: in place, as the value itself, or as a select."""
        base, view, value = src
        if 0 in view.shape:
            return base
        chain = chain_to(view, base)
        value = materialised_shape(value, view.shape)
        if layout_of(view, base) is not None and root_of(value) is root_of(base):
            shown = layout_of(value, root_of(base))
            if shown is not None and shown == layout_of(view, root_of(base)):
                return base  # what is there already
        version = whole_root_of(base)
        box = box_of(view, version)
        allowed = node not in self.given_up and self.may_overwrite(version, box)
        if all(moved.op in BIJECTIVE for moved in chain):
            everything = unmove(chain, value)
            scatter = whole_root_of(everything)
            if self.versions.get(scatter) is version:
                # A scatter that already works there.
                self.olds[scatter].append(node)
                return everything
            return self.write_all(node, base, version, everything) if allowed else everything
        if not allowed:
            if node.src[0] in self.guards and len(base.src) == 1:
                base = base.src[0]
            if node not in self.chained:
                return select(base, chain, value)
            # More writes follow: memory of its own, written piece by piece.
            base = version = self.fresh_copy(materialised_shape(base, base.shape))
            view = replay(chain, base)
            box = box_of(view, version)
        if root_of(value) is version and not disjoint(box_of(value, version), box):
            # Read everything before the first element is overwritten.
            value = mk(Op.CONTIGUOUS, value.dtype, (value,), None)
        op = mk(Op.WRITE, node.dtype, (version, view, value), None)
        if op in self.versions:  # the same write of the same version twice
            self.olds[op].append(node)
            return replay(chain_to(base, version), op)
        self.overwrite(op, version, node)
        return replay(chain_to(base, version), op)

    def write_all(self, node: UOp, base: UOp, version: UOp, everything: UOp) -> UOp:
        """A write of every element: the value is computed into the old memory."""
        op = whole_root_of(everything)
        if root_of(everything) is version:
            # A rearrangement of itself: no order of elements is safe, so it moves to new memory.
            return mk(Op.CONTIGUOUS, everything.dtype, (everything,), None)
        if not _computes(op) or self.is_taken(op):
            op = everything = mk(Op.CONTIGUOUS, everything.dtype, (everything,), None)
            if self.is_taken(op):
                return everything
        place = unmove(chain_to(everything, op), base)
        if reads_elsewhere(op, version, place):
            return everything
        self.overwrite(op, version, node)
        self.places[op] = place
        return everything

    def is_taken(self, op: UOp) -> bool:
        """Whether the op's value already has a place of its own."""
        return op in self.versions or op in self.fresh or op in self.held_new or op in self.overwritten

    def scatter(self, node: UOp, src: tuple[UOp, ...]) -> UOp:
        """One SCATTER: on the memory of the write that stores it, or on a copy of its target."""
        target = src[0]
        writer = self.scatter_targets.get(node)
        if writer is not None and node not in self.given_up:
            version = whole_root_of(target)
            if (
                self.may_overwrite(version, row_box(target, src[1], version))
                and root_of(src[2]) is not version
                and root_of(src[1]) is not version
            ):
                op = mk(Op.SCATTER, node.dtype, src, node.arg)
                if op not in self.versions:
                    self.overwrite(op, version, node)
                return op
        copy = self.fresh_copy(materialised_shape(target, target.shape))
        op = mk(Op.SCATTER, node.dtype, (copy, *src[1:]), node.arg)
        self.overwrite(op, copy, node)
        return op

    # order
    def find_cycle(self) -> UOp | None:
        """Collect the readers of every overwritten version; returns a write that cannot come after all of them."""
        if not self.versions:
            return None
        order = [n for n in toposort([self.new[w] for w in self.wanted]) if _is_step(n)]
        present = set(order)
        readers: dict[UOp, list[UOp]] = {}
        needs: dict[UOp, list[UOp]] = {}
        for node in order:
            sources = dict.fromkeys([root_of(s) for s in operands(node)])
            for source in sources:
                if source in self.overwritten:
                    readers.setdefault(source, []).append(node)
            needs[node] = [s for s in sources if _is_step(s)]
            version = self.versions.get(node)
            while version is not None and version.op is not Op.BUFFER and version not in present:
                version = self.versions.get(version)
            if version is not None:
                self.memory[node] = version
                if version in present and version not in sources:
                    needs[node].append(version)
        writer_of = {version: op for op, version in self.memory.items()}
        self.before = {op: [] for op in self.memory}
        known: dict[UOp, Box | None] = {}
        for version, nodes in readers.items():
            for node in nodes:
                boxes = [read_box(node, s, version) for s in operands(node) if root_of(s) is version]
                writer = first_to_meet(boxes, version, writer_of, known)
                if writer is not None and writer is not node:
                    self.before[writer].append(node)
        # A result is a view of memory: nothing may overwrite what it shows afterwards.
        for wanted in self.wanted:
            result = self.new[wanted]
            version = root_of(result)
            if version in writer_of:
                writer = first_to_meet([box_of(result, version)], version, writer_of, known)
                if writer is not None:
                    return self.culprit(writer)
        if not self.places and not any(self.before.values()):
            return None  # each comes after the version that it is made of, and after nothing else
        for op, first in self.before.items():
            needs[op] = [*needs[op], *first]
        rest = unordered(order, needs)
        for node in rest:
            if node in self.versions and self.olds[node][0] not in self.given_up:
                return self.culprit(node)
        return None

    def culprit(self, op: UOp) -> UOp:
        """The old node of an in-place op that is not to be in place."""
        return self.olds[op][0]


def first_to_meet(
    boxes: Sequence[Box], version: UOp, writer_of: dict[UOp, UOp], known: dict[UOp, Box | None]
) -> UOp | None:
    """The first in-place op over a version, or over one that comes from it, that may change one of these elements.

    `known` keeps what each op changes.
    """
    for step in range(MOST_VERSIONS):
        op = writer_of.get(version)
        if op is None:
            return None
        if op not in known:
            known[op] = changed_box(op)
        changed = known[op]
        if changed is None or (op.op is Op.SCATTER and (step or root_of(op.src[0]) is not version)):
            return op
        if not all(disjoint(changed, box) for box in boxes):
            return op
        if op.op is Op.SCATTER:  # its result counts the elements in another order
            return writer_of.get(op)
        version = op
    return writer_of.get(version)


def changed_box(op: UOp) -> Box | None:
    """The elements of its version that an in-place op changes; None for all of them."""
    if op.op is Op.WRITE:
        return box_of(op.src[1], op.src[0])
    if op.op is Op.SCATTER and not op.arg.batch:
        return row_box(op.src[0], op.src[1], root_of(op.src[0]))
    return None


def unordered(order: Sequence[UOp], needs: dict[UOp, list[UOp]]) -> list[UOp]:
    """The nodes that lie on cycles of `needs` or between two of them."""
    users: dict[UOp, list[UOp]] = {}
    waiting: dict[UOp, int] = {}
    for node in order:
        waiting[node] = len(needs[node])
        for source in needs[node]:
            users.setdefault(source, []).append(node)
    ready = [n for n in order if not waiting[n]]
    for node in ready:
        for user in users.get(node, ()):
            waiting[user] -= 1
            if not waiting[user]:
                ready.append(user)
    rest = dict.fromkeys(n for n in order if waiting[n])
    # Take away what merely comes after a cycle.
    open_users = {n: sum(u in rest for u in users.get(n, ())) for n in rest}
    ends = [n for n in rest if not open_users[n]]
    for node in ends:
        del rest[node]
        for source in needs[node]:
            if source in rest:
                open_users[source] -= 1
                if not open_users[source]:
                    ends.append(source)
    return list(rest)


def _is_step(node: UOp) -> bool:
    """Whether a node does work of its own: neither a leaf nor a movement."""
    return node.op not in _NO_STEPS


def _computes(node: UOp) -> bool:
    """Whether a node's value can be computed straight into any memory."""
    return node.op in ELEMENTWISE or node.op in (Op.REDUCE_AXES, Op.GATHER, Op.CONTIGUOUS)


def reads_elsewhere(op: UOp, version: UOp, place: UOp) -> bool:
    """Whether `op` itself reads `version` at other elements than the one it computes."""
    return any(root_of(s) is version and (op.op not in ELEMENTWISE or s is not place) for s in op.src)


def _scatters_in_place(order: Sequence[UOp]) -> dict[UOp, UOp]:
    """SCATTERs whose result a WRITE stores over all of their own target, with that WRITE."""
    found: dict[UOp, UOp] = {}
    for node in order:
        if node.op is _WRITE:
            scatter = scatter_of(node)
            if scatter is not None and whole_root_of(scatter.src[0]) is whole_root_of(node.src[0]):
                found[scatter] = node
    return found
