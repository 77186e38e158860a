"""From the kernel graph to a list of instructions: loops, accumulators, every node as far outside as it can be."""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Final

from gradlet.base.dtype import dtypes
from gradlet.base.errors import CompilerError
from gradlet.base.settings import STRICT_FLOAT
from gradlet.codegen.loops import Nest, nest_of
from gradlet.graph.node import UOp, mk, next_stamp, stamp_lock
from gradlet.ops.op import AccArg, AxisKind, Op, identity_element
from gradlet.optimize.analysis import Accesses, use_counts

Context = UOp | None  # the innermost loop around something, None outside of all
_MADE_ANEW: Final = 1 << Op.REDUCE | 1 << Op.CARRY | 1 << Op.NEXT | 1 << Op.AFTER
# Members of an enum are slow to reach through their class.
_RANGE: Final = Op.RANGE
_ACC: Final = Op.ACC
_ADD: Final = Op.ADD
_AFTER: Final = Op.AFTER
_CARRY: Final = Op.CARRY
_CONST: Final = Op.CONST
_END: Final = Op.END
_LOAD: Final = Op.LOAD
_MUL: Final = Op.MUL
_MULADD: Final = Op.MULADD
_NEXT: Final = Op.NEXT
_REDUCE: Final = Op.REDUCE
_SINK: Final = Op.SINK
_STORE: Final = Op.STORE
_UPDATE: Final = Op.UPDATE
_VECTORIZE: Final = Op.VECTORIZE
_WGMMA: Final = Op.WGMMA
_WHERE: Final = Op.WHERE
_REDUCES: Final = 1 << Op.REDUCE
_LOOPS: Final = frozenset({Op.RANGE, Op.REDUCE, Op.AFTER})  # their contexts follow from ranges alone


def linearize(sink: UOp, like: Nest | None = None) -> list[UOp]:
    """All nodes in execution order, `RANGE` ... `END` nested, each node in the outermost loop that can hold it.

    `like` is the kernel's loop tree before its last passes, if it is known.
    """
    nest = nest_of(sink, like)
    program = _Accumulators(sink, nest).run()
    return _Schedule(program, nest).run()


@dataclass
class _Program:
    """The kernel with REDUCEs as accumulators, and where each node belongs.

    Attributes:
        roots: the stores in order.
        contexts: the loop whose body holds a node.
        after: nodes that must come before a node although they are not its sources.
    """

    roots: list[UOp] = field(default_factory=list)
    contexts: dict[UOp, Context] = field(default_factory=dict)
    after: dict[UOp, list[UOp]] = field(default_factory=dict)


class _Accumulators:
    """Turns every REDUCE, and every CARRY with its NEXT, into ACC and UPDATE; an AFTER into the order of its users."""

    def __init__(self, sink: UOp, nest: Nest) -> None:
        self.sink, self.nest = sink, nest
        self.order = depth_first([sink], {})
        self.starts = _starts(self.order, nest)
        if self.starts:
            self.order = depth_first([sink], {reduce: [start] for reduce, (_, start) in self.starts.items()})
        self.program = _Program()
        self.new: dict[UOp, UOp] = {}
        self.updates: dict[UOp, UOp] = {}
        self.inside: set[UOp] = set()
        self.carried: dict[UOp, UOp] = {}  # ACC of a CARRY -> its UPDATE
        self.count = 0
        self.accesses = Accesses()

    @cached_property
    def uses(self) -> dict[UOp, int]:
        """How many sources each node is."""
        return use_counts(self.order)

    def run(self) -> _Program:
        nest, program, new = self.nest, self.program, self.new
        contexts = nest.contexts(self.order)
        self._pin_ordered_loads(contexts)
        inside, starts = self.inside, self.starts
        for node in self.order:
            if not node.mask & _MADE_ANEW:
                if node in inside:
                    raise CompilerError(f"a value is needed both while a loop accumulates it and after: {node}")
                new[node] = node
                program.contexts[node] = contexts[node]
                continue
            if node.op is _SINK:
                continue
            if node.op is _REDUCE:
                self._reduce(node, contexts[node])
                continue
            if node.op is _CARRY:
                self._carry(node)
                continue
            if node.op is _NEXT:
                self._next(node)
                continue
            if node.op is _AFTER:
                new[node] = node.src[0]
                continue
            if node.op is _ADD and starts and (started := self._started(node)) is not None:
                new[node] = new[started]
                continue
            made = mk(node.op, node.dtype, tuple([new.get(s, s) for s in node.src]), node.arg)
            self._wait(made, node.src)
            if made in inside:
                raise CompilerError(f"a value is needed both while a loop accumulates it and after: {made}")
            new[node] = made
            program.contexts[made] = contexts[node]
            if node.op is _LOAD and (filled := node.src[0].src[0]).op is _AFTER:
                self._follow_filling(made, filled)
            elif node.op is _WGMMA:
                for filled in node.src[:2]:
                    self._follow_filling(made, filled)
        stores = list(dict.fromkeys(self.new[s] for s in self.sink.src))
        self._order_stores(stores)
        self._order_carries()
        program.roots = [*stores, *self.carried.values()]
        return program

    def _follow_filling(self, made: UOp, filled: UOp) -> None:
        """What reads an array comes after the stores that fill it."""
        stores = [self.new[s] for s in filled.src if s.op is _STORE]
        self.program.after[made] = [*self.program.after.get(made, ()), *stores]

    def _pin_ordered_loads(self, contexts: dict[UOp, Context]) -> None:
        """A load of what an ORDERED loop stores must stay inside that loop, even if its address does not change."""
        nest = self.nest
        if not any(r.arg.kind is AxisKind.ORDERED for r in nest.places):
            return
        pinned: dict[UOp, UOp] = {}
        among: list[UOp] = []
        for store in self.sink.src:
            ordered = [r for r in nest.ranges[store] if r.arg.kind is AxisKind.ORDERED]
            if ordered:
                pinned[store.src[0].src[0]] = max(ordered, key=nest.nesting)
                among.append(store)
        for node in self.order:
            ordered = [r for r in node.src if r.op is _RANGE and r.arg.kind is AxisKind.ORDERED]
            if node.op is Op.AFTER and ordered:
                pinned[node.src[0]] = max(ordered, key=nest.nesting)
                among += [s for s in node.src if s.op is Op.STORE]
        if not pinned:
            return
        inside = set(depth_first(among, {}))
        for node in self.order:
            if node.op is _LOAD and node in inside and (loop := pinned.get(node.src[0].src[0])) is not None:
                contexts[node] = self._deeper(contexts[node], loop)
            elif node.op not in _LOOPS:
                for source in node.src:
                    if source.op not in _LOOPS:
                        contexts[node] = self._deeper(contexts[node], contexts[source])

    def _deeper(self, first: Context, second: Context) -> Context:
        return first if len(self.nest.path(first)) >= len(self.nest.path(second)) else second

    def _reduce(self, node: UOp, context: Context) -> None:
        program = self.program
        dtype, op = node.dtype, node.arg.op
        start = UOp.const(dtype, identity_element(op, dtype))
        if node in self.starts:
            start = self.new[self.starts[node][1]]
            context = self.nest.places[min(node.src[1:], key=self.nest.nesting)].parent
        loops = tuple(sorted(node.src[1:], key=self.nest.nesting))
        acc = mk(_ACC, dtype, (start, *loops), self._number())
        innermost = loops[-1]
        value = self._combine(op, acc, node.src[0], innermost)
        update = mk(_UPDATE, dtype, (acc, value))
        self.new[node] = acc
        self.updates[acc] = update
        if node not in self.starts:
            program.contexts[start] = None
        else:
            self._wait(acc, (self.starts[node][1],))
        program.contexts[acc] = context
        program.contexts[update] = innermost

    def _started(self, node: UOp) -> UOp | None:
        """The REDUCE that begins with the other term of a sum, so that it ends as the sum."""
        return next((s for s in node.src if s in self.starts and self.starts[s][0] is node), None)

    def _wait(self, made: UOp, sources: Iterable[UOp]) -> None:
        """Whatever reads an accumulator that a loop fills comes after its last update."""
        new, updates = self.new, self.updates
        waits = [updates[new[s]] for s in sources if new[s] in updates]
        if waits:
            self.program.after[made] = waits

    def _number(self) -> AccArg:
        self.count += 1
        return AccArg(self.count - 1)

    def _carry(self, node: UOp) -> None:
        """A register that begins before the outermost of the CARRY's loops."""
        start, _, *loops = node.src
        loops.sort(key=self.nest.nesting)
        acc = mk(_ACC, node.dtype, (self.new[start], *loops), self._number())
        self.new[node] = acc
        self.program.contexts[acc] = self.nest.places[loops[0]].parent
        self._wait(acc, (start,))

    def _next(self, node: UOp) -> None:
        """The register gets its next value at the end of an iteration; the NEXT is its result."""
        carry, value, result = node.src
        acc = self.new[carry]
        update = mk(_UPDATE, carry.dtype, (acc, self.new[value]))
        if self.carried.setdefault(acc, update) is not update:
            raise CompilerError(f"a CARRY has two different values in the next iteration: {carry}")
        self.program.contexts[update] = acc.src[-1]
        self._wait(update, (value,))
        self.new[node] = self.new[result]

    def _order_carries(self) -> None:
        """Whatever reads a carried register reads it before it gets its next value."""
        if not self.carried:
            return
        for node in self.program.contexts:
            for source in node.src:
                update = self.carried.get(source)
                if update is not None and update is not node:
                    self.program.after.setdefault(update, []).append(node)

    def _combine(self, op: Op, acc: UOp, value: UOp, loop: UOp) -> UOp:
        """The accumulator after one step; products join a sum by multiply-add, one after another."""
        total = acc
        if loop.arg.kind is AxisKind.THREAD:  # lanes are combined as they are
            total = acc.alu(op, self.new[value])
            self.inside.add(total)
            self.program.contexts[total] = loop
            self._wait(total, (value,))
            return total
        if value.op is _WGMMA:
            made = self.new[value]
            total = mk(_WGMMA, acc.dtype, (*made.src[:4], acc, *made.src[5:]), made.arg)
            self.inside.add(total)
            self.program.contexts[total] = loop
            self.program.after[total] = list(self.program.after.get(made, ()))
            return total
        pending = [value]
        while pending:
            part = pending.pop()
            splits = part.op is _ADD and op is _ADD and self.uses[part] == 1 and _has_product(part)
            if splits and part.dtype.is_float and not STRICT_FLOAT.value:
                pending.extend((part.src[1], part.src[0]))
                continue
            if op is _ADD and self._is_single_product(part):
                total = mk(_MULADD, part.dtype, (self.new[part.src[0]], self.new[part.src[1]], total))
                used = part.src
            else:
                total = total.alu(op, self.new[part])
                used = (part,)
            self.inside.add(total)
            self.program.contexts[total] = loop
            self._wait(total, used)
        return total

    def _is_single_product(self, node: UOp) -> bool:
        return (
            node.op is _MUL and node.dtype.is_float and self.uses[node] == 1 and not STRICT_FLOAT.value
        )  # fmt: skip

    def _order_stores(self, stores: list[UOp]) -> None:
        """Whatever else is loaded from a buffer that the kernel also writes is loaded before the store.

        Two stores to one buffer keep their order. Stores over other loops, and what only they load, may come in any
        order where they touch nothing in common; else what only a later store loads comes after an earlier one.
        """
        loads: dict[UOp, list[UOp]] = {}
        for node in self.program.contexts:
            if node.op is _LOAD:
                loads.setdefault(node.src[0].src[0], []).append(node)
        waits = {node: list(others) for node, others in self.program.after.items()}
        groups: dict[UOp, list[list[UOp]]] = {}  # of each buffer, the stores that run together
        loops = {self.new[s]: self.nest.ranges[s] for s in self.sink.src}
        for store in stores:
            found = groups.setdefault(store.src[0].src[0], [])
            group = next((g for g in found if loops[g[0]] == loops[store]), None)
            if group is None:
                found.append([store])
            else:
                self._follow(store, group[-1])
                group.append(store)
        for param, found in groups.items():
            self._order_groups(found, loads.get(param, []), waits)

    def _order_groups(self, groups: list[list[UOp]], loads: list[UOp], waits: dict[UOp, list[UOp]]) -> None:
        """Order the groups of stores to one buffer among each other, and its loads."""
        if len(groups) == 1:
            for store in groups[0]:
                for load in loads:
                    self._follow(store, load)
            return
        needs = [set(depth_first(group, waits)) if loads else set() for group in groups]
        for number, group in enumerate(groups):
            near = [earlier for earlier in groups[:number] if self.accesses.may_any_meet(group, earlier)]
            for store in group:
                for load in loads:
                    if load in needs[number]:
                        self._follow(store, load)
                    elif self.accesses.may_meet(store, load):
                        later = not any(load in earlier for earlier in needs[:number])
                        self._follow(load, store) if later else self._follow(store, load)
                for earlier in near:
                    for other in earlier:
                        if self.accesses.may_meet(store, other):
                            self._follow(store, other)

    def _follow(self, node: UOp, earlier: UOp) -> None:
        self.program.after.setdefault(node, []).append(earlier)


def _starts(order: Sequence[UOp], nest: Nest) -> dict[UOp, tuple[UOp, UOp]]:
    """REDUCEs that are added to what was stored before: the sum, and the value that they can begin with."""
    if STRICT_FLOAT.value:
        return {}
    users: dict[UOp, list[UOp]] = {}
    stored = {node.src[0].src[0] for node in order if node.op is _STORE}
    if stored.isdisjoint([node.src[0].src[0] for node in order if node.op is _LOAD]):
        return {}
    for node in order:
        for source in node.src:
            if source.op is _REDUCE:
                users.setdefault(source, []).append(node)
    found: dict[UOp, tuple[UOp, UOp]] = {}
    for reduce, using in users.items():
        if len(using) != 1 or using[0].op is not _ADD or reduce.arg.op is not _ADD:
            continue
        other = next((s for s in using[0].src if s is not reduce), None)
        if other is None or not _is_stored_value(other, stored):
            continue
        parent = nest.places[min(reduce.src[1:], key=nest.nesting)].parent
        if nest.context(other) is parent and nest.context(using[0]) is parent:
            found[reduce] = (using[0], other)
    return found


def _is_stored_value(node: UOp, stored: set[UOp]) -> bool:
    """A load of what the kernel stores itself, or a constant where nothing has been stored yet."""
    if node.op is _WHERE and node.src[2].op in (_CONST, _VECTORIZE):
        node = node.src[1]
    return node.op is _LOAD and node.src[0].src[0] in stored and not node.mask & _REDUCES


def _has_product(node: UOp) -> bool:
    """Whether a sum has a product among its direct or nested terms."""
    stack = [node]
    while stack:
        part = stack.pop()
        if part.op is _MUL:
            return True
        if part.op is _ADD:
            stack.extend(part.src)
    return False


class _Schedule:
    """Orders the nodes of every loop body and nests the bodies."""

    def __init__(self, program: _Program, nest: Nest) -> None:
        self.program, self.nest = program, nest
        self.order = depth_first(program.roots, program.after)
        self.position = {node: i for i, node in enumerate(self.order)}
        self.paths: dict[UOp, tuple[UOp, ...]] = {}
        self.waits: dict[UOp, set[UOp]] = {}

    def run(self) -> list[UOp]:
        nest = self.nest
        contexts, places, path_of = self.program.contexts, nest.places, nest.path
        self.paths = paths = {
            node: path_of(places[node].parent if node.op is _RANGE else contexts[node]) for node in self.order
        }
        # Every loop has one path object, which its nodes share.
        distinct = {id(path): path for path in paths.values()}.values()
        loops = dict.fromkeys(r for path in distinct for r in path)
        members: dict[Context, list[UOp]] = {None: []}
        first: dict[UOp, int] = {}
        for r in loops:
            members.setdefault(r, [])
        entered: set[int] = set()
        for node in self.order:
            path = paths[node]
            if node.op is not _RANGE:
                members[path[-1] if path else None].append(node)
            if id(path) not in entered:
                entered.add(id(path))
                for r in path:
                    first.setdefault(r, self.position[node])
        for r in loops:
            parent = nest.places[r].parent
            members[parent].append(r)
        self._find_waits()
        # A loop that only waits for something stands where its first node was reached.
        rank = dict(self.position)
        rank.update({r: first.get(r, self.position.get(r, 0)) for r in loops})
        bodies: dict[Context, list[UOp]] = {}
        deepest_first = sorted(loops, key=lambda r: (-len(nest.path(r)), rank[r]))
        for context in (*deepest_first, None):
            body: list[UOp] = []
            for node in self._ordered(sorted(members[context], key=rank.__getitem__), rank):
                if node.op is _RANGE:
                    body.append(node)
                    body.extend(bodies.pop(node))
                    body.append(mk(_END, dtypes.void, (node,)))
                else:
                    body.append(node)
            bodies[context] = body
        return bodies[None]

    def _find_waits(self) -> None:
        """What each member of a body has to follow, where its place in `order` does not see to that already.

        Between nodes of one body it does; an edge into or out of a loop is one of the whole loop.
        """
        paths, after, waits = self.paths, self.program.after, self.waits
        known: dict[tuple[int, int], tuple[UOp | None, UOp | None]] = {}  # where two paths part; nodes share few
        for node in self.order:
            to_path = paths[node]
            is_loop = node.op is _RANGE
            more = after.get(node)
            for source in node.src if more is None else (*node.src, *more):
                from_path = paths[source]
                if from_path is to_path:
                    if is_loop:
                        waits.setdefault(node, set()).add(source)
                    continue
                if source.op is _RANGE and not is_loop:
                    continue  # the loop's head; every user is inside, or is an ACC before it
                key = (id(from_path), id(to_path))
                parting = known.get(key)
                if parting is None:
                    parting = known[key] = _parting(from_path, to_path)
                start, stop = parting[0] or source, parting[1] or node
                if start is not stop:
                    waits.setdefault(stop, set()).add(start)
            if node.op is _ACC:
                waits.setdefault(node.src[1], set()).add(node)

    def _ordered(self, members: list[UOp], rank: dict[UOp, int]) -> list[UOp]:
        """Members of one body, given by rank: as given, but a loop, and what follows it, after what it waits for."""
        inside = set(members)
        result: list[UOp] = []
        done: set[UOp] = set()
        missing: dict[UOp, int] = {}  # of members passed over, how many others they wait for
        followers: dict[UOp, list[UOp]] = {}
        for member in members:
            if missing or member in self.waits:
                needed = (self._needed(member) & inside) - done
                if needed:
                    missing[member] = len(needed)
                    for other in needed:
                        followers.setdefault(other, []).append(member)
                    continue
            if member not in followers:
                result.append(member)
                done.add(member)
                continue
            ready = [(0, member)]  # no two members have the same rank
            while ready:
                finished = heapq.heappop(ready)[1]
                result.append(finished)
                done.add(finished)
                for follower in followers.pop(finished, ()):
                    missing[follower] -= 1
                    if not missing[follower]:
                        del missing[follower]
                        heapq.heappush(ready, (rank[follower], follower))
        if missing:
            raise CompilerError(f"the loops of this kernel wait for each other, at {next(iter(missing))}")
        return result

    def _needed(self, member: UOp) -> set[UOp]:
        """What a member must follow, among others that are not members of its body."""
        needed = set(self.waits.get(member, ()))
        if member.op is not _RANGE:
            needed.update([s for s in member.src if s.op is not _RANGE])
            needed.update(self.program.after.get(member, ()))
        return needed


def _parting(first: tuple[UOp, ...], second: tuple[UOp, ...]) -> tuple[UOp | None, UOp | None]:
    """The outermost loop of each path that the other has not."""
    common = 0
    for a, b in zip(first, second):
        if a is not b:
            break
        common += 1
    return first[common] if len(first) > common else None, second[common] if len(second) > common else None


def depth_first(roots: list[UOp], after: dict[UOp, list[UOp]]) -> list[UOp]:
    """Every node after its sources and what it waits for, in an order that follows from the structure alone."""
    order: list[UOp] = []
    keep = order.append
    waits_of = after.get
    with stamp_lock:
        stamp = next_stamp()
        stack: list[UOp | None] = [*reversed(roots)]
        push, pop, extend = stack.append, stack.pop, stack.extend
        while stack:
            node = pop()
            if node is None:  # all that the node below needs is there
                node = pop()
                assert node is not None
                keep(node)
                continue
            if node.stamp == stamp:
                continue
            node.stamp = stamp
            needed = node.src
            waits = waits_of(node)
            if waits is not None:
                needed = (*needed, *waits)
            if not needed:
                keep(node)
                continue
            push(node)
            push(None)
            extend(needed[::-1])
    return order
