"""Schedules by structure: a graph that differs only in its leaves gets its schedule without deciding anything again.

An entry names memory by position: a leaf of the graph (its buffers, variables and bound values in order of discovery),
or a new buffer. It holds no BUFFER node, so it keeps no memory alive.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from gradlet.base import settings
from gradlet.base.dtype import DType
from gradlet.graph.allocation import new_buffer_node
from gradlet.graph.key import structural_key
from gradlet.graph.node import UOp, mk
from gradlet.ops.op import Op
from gradlet.schedule.calls import CopyCall, KernelCall, MemoryPlan, Schedule
from gradlet.schedule.clean import note_value
from gradlet.schedule.hazards import held_nodes
from gradlet.schedule.moves import root_of
from gradlet.target.target import Target

MAX_ENTRIES: Final = 512

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


@dataclass(frozen=True)
class Entry:
    """A schedule without its leaves."""

    calls: tuple[CachedCall, ...]
    new: tuple[tuple[str, DType, int], ...]
    results: tuple[tuple[Slot, tuple[tuple[Op, Any], ...]] | None, ...]
    memory: MemoryPlan
    places: tuple[tuple[Slot, int], ...]


class ScheduleCache:
    """The schedules made last."""

    def __init__(self) -> None:
        self.entries: OrderedDict[Hashable, Entry] = OrderedDict()

    def ask(
        self,
        roots: Sequence[UOp],
        target_of: Callable[[str], Target],
        live: Sequence[UOp],
        default_device: str,
        settled: frozenset[UOp] = frozenset(),
    ) -> Question:
        """Look a graph up."""
        held, extra = held_nodes(roots, live)
        extra.sort(key=lambda n: n.uid)
        asked = [*roots, *extra]
        structure, leaves = structural_key(asked)
        bits = tuple([held.key(leaf) for leaf in leaves])
        devices = dict.fromkeys([leaf.arg.device for leaf in leaves if leaf.op is Op.BUFFER])
        targets = tuple([(device, target_of(device)) for device in devices])
        stays = tuple([leaf in settled for leaf in leaves]) if settled else ()
        plain = (structure, len(roots), bits, stays, settings.schedule_key(), default_device)
        return Question(self, plain, targets, asked, leaves)


@dataclass
class Question:
    """One graph asked for.

    Attributes:
        cache: where answers are.
        plain: the structure, settings and everything else that decisions depend on, beside the targets.
        targets: the devices of the graph, with what they are.
        asked: the roots, then writes that other graphs hold.
        leaves: buffers, variables and bound values in order of discovery.
    """

    cache: ScheduleCache
    plain: tuple[Hashable, ...]
    targets: tuple[tuple[str, Target], ...]
    asked: list[UOp]
    leaves: tuple[UOp, ...]

    @property
    def key(self) -> Hashable:
        """Equal for questions with the same answer."""
        return self.plain, self.targets

    def answer(self) -> Schedule | None:
        """The schedule of an equal graph with this graph's leaves, if there is one."""
        entries = self.cache.entries
        entry = entries.get(self.key)
        if entry is None:
            return None
        entries.move_to_end(self.key)
        return self.bind(entry)

    def bind(self, entry: Entry) -> Schedule:
        """An entry with leaves.

        Raises:
            ArgumentError: one variable bound to two values.
        """
        leaves = self.leaves
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
        for root, result in zip(self.asked, entry.results, strict=True):
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

    def remember(self, schedule: Schedule) -> Entry | None:
        """Keep a schedule for the next equal graph; None where its variables are no leaves of the graph."""
        entry = self.generalise(schedule)
        if entry is not None:
            self.keep(entry)
        return entry

    def keep(self, entry: Entry) -> None:
        """Answer with this entry from now on."""
        entries = self.cache.entries
        entries[self.key] = entry
        if len(entries) > MAX_ENTRIES:
            entries.popitem(last=False)

    def generalise(self, schedule: Schedule) -> Entry | None:
        """A schedule with positions in place of its leaves and buffers."""
        slots: dict[UOp, Slot] = {}
        for position, leaf in enumerate(self.leaves):
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
        for root in self.asked:
            result = schedule.results.get(root)
            if result is None:
                results.append(None)
                continue
            chain: list[tuple[Op, Any]] = []
            bottom = root_of(result)
            while result is not bottom:
                chain.append((result.op, result.arg))
                result = result.src[0]
            results.append((slot(bottom), tuple(reversed(chain))))
        places = tuple([(slot(buffer), offset) for buffer, offset in schedule.memory.places.items()])
        return Entry(tuple(calls), tuple(new), tuple(results), replace(schedule.memory, places={}), places)


def variable_of(leaf: UOp) -> UOp:
    """The VARIABLE of a BIND; other leaves are themselves."""
    return leaf.src[0] if leaf.op is Op.BIND else leaf
