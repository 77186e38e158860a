"""Schedules by structure: a graph that differs only in its leaves gets its schedule without deciding anything again.

An entry names memory by position: a leaf of the graph (its buffers, variables and bound values in order of discovery),
or a new buffer. It holds no BUFFER node, so it keeps no memory alive.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from itertools import count
from typing import Any, Final

from gradlet.base import settings
from gradlet.base.dtype import DType
from gradlet.graph.allocation import new_buffer_node
from gradlet.graph.key import Structure, structure_of
from gradlet.graph.node import UOp, by_uid, mk
from gradlet.ops.op import Op
from gradlet.schedule.calls import CopyCall, KernelCall, MemoryPlan, Schedule
from gradlet.schedule.clean import note_value
from gradlet.schedule.hazards import held_nodes
from gradlet.schedule.moves import root_of, shortest
from gradlet.target.target import Target

MAX_ENTRIES: Final = 512

_WRITING: Final = 1 << Op.WRITE | 1 << Op.SCATTER

# Position of a leaf, or -1 - position of a new buffer.
Slot = int


@dataclass(frozen=True)
class CachedCall:
    """A call with slots instead of nodes."""

    ast: UOp | None
    buffers: tuple[Slot, ...]
    written: tuple[int, ...]
    variables: tuple[Slot, ...]
    device: str


@dataclass
class Entry:
    """A schedule without its leaves.

    Attributes:
        calls: the calls in order.
        new: device, type and size of the new buffers.
        results: for every graph asked for, then for `writes`: where its value lies, and the movement ops over it.
        memory: the plan, without places.
        places: where temporary buffers lie in the arena of their device.
        ready: what `engine/ready` made of it, so that it runs at once; None until then.
        used: number of the last question that it answered.
    """

    calls: tuple[CachedCall, ...]
    new: tuple[tuple[str, DType, int], ...]
    results: tuple[tuple[Slot, tuple[tuple[Op, Any], ...]] | None, ...]
    memory: MemoryPlan
    places: tuple[tuple[Slot, int], ...]
    writes: tuple[int, ...] = ()  # numbers of others whose result is known: who holds them must not run them again
    ready: Any = field(default=None, compare=False)
    used: int = field(default=0, compare=False)


@dataclass(frozen=True, eq=False)
class Environment:
    """What decisions depend on beside the graph. Equal ones are one object.

    Attributes:
        default_device: where constants are stored when nothing says otherwise.
        settings: names and values of all settings that change schedules or kernels.
        targets: the devices of the graph's buffers, with what they are.
    """

    default_device: str
    settings: tuple[tuple[str, Any], ...]
    targets: tuple[tuple[str, Target], ...]


class ScheduleCache:
    """The schedules used last."""

    def __init__(self) -> None:
        self.entries: dict[tuple[Any, ...], Entry] = {}
        self._environments: dict[Hashable, Environment] = {}
        # The environment of the last question, with what it was made of.
        self._last: tuple[Hashable, Environment | None] = ((), None)
        self._next = count(1).__next__

    def ask(
        self,
        roots: Sequence[UOp],
        target_of: Callable[[str], Target],
        live: Sequence[UOp],
        default_device: str,
        settled: frozenset[UOp] = frozenset(),
        watched: Iterable[UOp] = (),
    ) -> Question:
        """Look a graph up. Where it contains a watched node it is not the graph that is meant: nothing is looked up."""
        structure = structure_of(roots, watched)
        if structure.met:
            return Question(self, (), structure, [], None, None)
        leaves = structure.leaves
        extra: list[UOp] = []
        bits: tuple[Hashable, ...] | None = None
        for root in roots:
            if root.mask & _WRITING:
                held, extra = held_nodes(roots, live, order=[*leaves, *[write for write, _ in structure.writes]])
                extra.sort(key=by_uid)
                if held.boxes:
                    bits = tuple([held.key(leaf) for leaf in leaves])
                break
        devices = tuple(dict.fromkeys([leaf.arg.device for leaf in leaves if leaf.op is Op.BUFFER]))
        environment = self._environment(default_device, devices, target_of)
        numbers = dict(structure.writes)
        stays = tuple([leaf in settled for leaf in leaves]) if settled else ()
        key = (environment, structure.key, len(roots), bits, stays, tuple([numbers[write] for write in extra]))
        entry = self.entries.get(key)
        if entry is not None:
            entry.used = self._next()
        return Question(self, key, structure, [*roots, *extra], environment, entry)

    def known(self) -> list[tuple[Any, ...]]:
        """The keys of all entries, that of the one used last first."""
        return sorted(self.entries, key=lambda key: -self.entries[key].used)

    def _environment(
        self, default_device: str, devices: tuple[str, ...], target_of: Callable[[str], Target]
    ) -> Environment:
        """What decisions depend on now."""
        targets = tuple([target_of(device) for device in devices])
        made_of = (settings.Setting.changes, default_device, devices, targets)
        known, found = self._last
        if found is None or known != made_of:
            key = (default_device, settings.schedule_key(), devices, targets)
            made_of = (settings.Setting.changes, *made_of[1:])  # reading settings for the first time changes it
            found = self._environments.get(key)
            if found is None:
                found = Environment(default_device, key[1], tuple(zip(devices, targets, strict=True)))
                self._environments[key] = found
            self._last = (made_of, found)
        return found

    def keep(self, key: tuple[Any, ...], entry: Entry) -> None:
        """Answer with this entry from now on; what was not asked for the longest time goes."""
        entry.used = self._next()
        self.entries[key] = entry
        while len(self.entries) > MAX_ENTRIES:
            del self.entries[min(self.entries, key=lambda key: self.entries[key].used)]


@dataclass
class Question:
    """One graph asked for.

    Attributes:
        cache: where answers are.
        key: equal for questions with the same answer.
        structure: the graph, its leaves, and whether it contains a node that was watched.
        asked: the roots, then writes that other graphs hold.
        environment: what the answer depends on beside the graph.
        entry: the answer, if an equal question was answered before.
    """

    cache: ScheduleCache
    key: tuple[Any, ...]
    structure: Structure
    asked: list[UOp]
    environment: Environment | None
    entry: Entry | None

    @property
    def plain(self) -> tuple[Hashable, ...]:
        """Everything that decisions depend on, beside the targets, as numbers, texts and types."""
        assert self.environment is not None
        return (*self.key[1:], self.environment.settings, self.environment.default_device)

    def bind(self, entry: Entry) -> Schedule:
        """An entry with leaves.

        Raises:
            ArgumentError: one variable bound to two values.
        """
        leaves = self.structure.leaves
        new = [new_buffer_node(device, dtype, size) for device, dtype, size in entry.new]

        def node(slot: Slot) -> UOp:
            return leaves[slot] if slot >= 0 else new[-1 - slot]

        values: dict[UOp, int] = {}
        for leaf in leaves:
            if leaf.op is Op.BIND:
                note_value(leaf, values)
        calls: list[KernelCall | CopyCall] = []
        used: set[UOp] = set()
        for call in entry.calls:
            buffers = tuple([node(slot) for slot in call.buffers])
            if call.ast is None:
                calls.append(CopyCall(buffers[0], buffers[1]))
                continue
            variables = tuple([variable_of(node(slot)) for slot in call.variables])
            used.update(variables)
            calls.append(KernelCall(call.ast, buffers, call.written, variables, call.device))
        results: dict[UOp, UOp] = {}
        for root, result in zip(self.named(entry), entry.results, strict=True):
            if result is None:
                continue
            view = node(result[0])
            for op, arg in result[1]:
                view = mk(op, view.dtype, (view,), arg)
            results[root] = view
        memory = entry.memory
        if entry.places:
            memory = replace(memory, places={node(slot): offset for slot, offset in entry.places})
        return Schedule(tuple(calls), results, {v: n for v, n in values.items() if v in used}, memory)

    def named(self, entry: Entry) -> list[UOp]:
        """The graphs whose results an entry has."""
        if not entry.writes:
            return self.asked
        nodes = {number: node for node, number in self.structure.writes}
        return [*self.asked, *[nodes[number] for number in entry.writes]]

    def remember(self, schedule: Schedule) -> Entry | None:
        """Keep a schedule for the next equal graph; None where its variables are no leaves of the graph."""
        entry = self.generalise(schedule)
        if entry is not None:
            self.keep(entry)
        return entry

    def keep(self, entry: Entry) -> None:
        """Answer with this entry from now on."""
        self.cache.keep(self.key, entry)

    def generalise(self, schedule: Schedule) -> Entry | None:
        """A schedule with positions in place of its leaves and buffers."""
        slots: dict[UOp, Slot] = {}
        for position, leaf in enumerate(self.structure.leaves):
            slots.setdefault(variable_of(leaf), position)
        new: list[tuple[str, DType, int]] = []

        def slot(buffer: UOp) -> Slot:
            found = slots.get(buffer)
            if found is None:
                new.append((buffer.arg.device, buffer.dtype, buffer.arg.size))
                found = slots[buffer] = -len(new)
            return found

        calls: list[CachedCall] = []
        for call in schedule.calls:
            if isinstance(call, CopyCall):
                calls.append(CachedCall(None, (slot(call.destination), slot(call.source)), (), (), ""))
                continue
            if any(v not in slots for v in call.variables):
                return None
            buffers = tuple([slot(b) for b in call.buffers])
            variables = tuple([slots[v] for v in call.variables])
            calls.append(CachedCall(call.ast, buffers, call.written, variables, call.device))
        results: list[tuple[Slot, tuple[tuple[Op, Any], ...]] | None] = []
        writes = [(node, number) for node, number in self.structure.writes if node in schedule.results]
        writes = [(node, number) for node, number in writes if node not in self.asked]
        for root in (*self.asked, *[node for node, _ in writes]):
            result = schedule.results.get(root)
            if result is None:
                results.append(None)
                continue
            chain: list[tuple[Op, Any]] = []
            result = shortest(result)
            bottom = root_of(result)
            while result is not bottom:
                chain.append((result.op, result.arg))
                result = result.src[0]
            results.append((slot(bottom), tuple(reversed(chain))))
        places = tuple([(slot(buffer), offset) for buffer, offset in schedule.memory.places.items()])
        return Entry(tuple(calls), tuple(new), tuple(results), replace(schedule.memory, places={}), places,
                     tuple([number for _, number in writes]))  # fmt: skip


def variable_of(leaf: UOp) -> UOp:
    """The VARIABLE of a BIND; other leaves are themselves."""
    return leaf.src[0] if leaf.op is Op.BIND else leaf
