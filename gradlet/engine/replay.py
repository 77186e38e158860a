"""Replaying a captured program: launches in a row on a device that has graphs run as one, all others one by one.

A `Runner` holds what one replay at a time needs; a program has as many as threads have replayed it at once.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from gradlet.base import events, settings
from gradlet.engine import execute, report
from gradlet.engine.compile import CompiledKernel
from gradlet.graph.node import UOp
from gradlet.runtime.buffer import Buffer, buffer_of
from gradlet.runtime.counters import GlobalCounters
from gradlet.runtime.device import Device, GraphLaunch, LaunchGraph

if TYPE_CHECKING:
    from gradlet.engine.capture import CapturedCall, CapturedProgram

NOBODY: Final = -1  # no node has this uid


@dataclass
class GraphSegment:
    """Launches in a row that run as one.

    Attributes:
        graph: runs them.
        slots: which slot of the program each address of the graph is, in order.
        variables: which variable each value behind the addresses is.
    """

    graph: LaunchGraph
    slots: tuple[int, ...]
    variables: tuple[UOp, ...]


class Runner:
    """One replay of a program at a time.

    Attributes:
        segments: what runs, in order: a graph, or a call by itself.
        kernels, ops, bytes: what all graphs together add to the counters.
        is_one_call: whether everything is one graph.
        own: memory of temporary slots that is this runner's.
        places: where the graphs have the address of each slot.
        is_set: whether the graphs have the addresses and values of the last replay.
        version: how often `run` was used: it may have put other addresses into place.
    """

    def __init__(self, program: CapturedProgram, own: Mapping[int, Buffer]) -> None:
        self._nodes, self._calls = program.nodes, program.calls
        self.own = own
        self.segments: list[GraphSegment | CapturedCall] = segments_of(program.calls)
        self.kernels = self.ops = self.bytes = self.version = 0
        self.places: dict[int, list[tuple[memoryview, int]]] = {}
        self._value_places: dict[UOp, list[tuple[memoryview, int]]] = {}
        self.is_set = False
        in_graphs = 0
        for segment in self.segments:
            if isinstance(segment, GraphSegment):
                words = segment.graph.words
                for word, slot in enumerate(segment.slots):
                    self.places.setdefault(slot, []).append((words, word))
                for word, variable in enumerate(segment.variables, len(segment.slots)):
                    self._value_places.setdefault(variable, []).append((words, word))
        for call in program.calls:
            if call.kernel is not None and is_graphable(call):
                self.kernels += 1
                self.ops += call.kernel.flops
                self.bytes += call.kernel.bytes
                in_graphs += 1
        self.is_one_call = len(self.segments) == 1 and in_graphs == len(program.calls)
        # Whose addresses the graphs have, by uid: nodes are not kept alive for it.
        self._uids: dict[int, int] = dict.fromkeys(self.places, NOBODY)
        for slot, buffer in own.items():
            self.give(slot, NOBODY, buffer)

    def give(self, slot: int, uid: int, buffer: Buffer) -> None:
        """Let the graphs use this memory for a slot."""
        address = buffer.address
        for words, word in self.places.get(slot, ()):
            words[word] = address
        self._uids[slot] = uid

    def forget(self, slot: int) -> None:
        """Somebody else puts the address of this slot into place."""
        if slot in self._uids:
            self._uids[slot] = NOBODY

    def give_values(self, values: Mapping[UOp, int]) -> None:
        """Let the graphs use these values of variables."""
        for variable, places in self._value_places.items():
            for words, word in places:
                words[word] = values[variable]

    def run(self, replaced: Mapping[int, UOp], values: Mapping[UOp, int]) -> None:
        """Run all launches, with some slots holding other buffers, and these values of variables."""
        nodes = self._nodes
        self.version += 1
        self.is_set = not (settings.DEBUG >= 2 or events.active())
        if not self.is_set:
            self._run_each(self._calls, replaced, values)
            return
        for slot, uid in self._uids.items():
            if slot in self.own:
                continue
            node = replaced.get(slot) or nodes[slot]
            if node.uid != uid:
                self.give(slot, node.uid, buffer_of(node))
        self.give_values(values)
        for segment in self.segments:
            if isinstance(segment, GraphSegment):
                segment.graph.run()
            else:
                self._run_each((segment,), replaced, values)
        self.count()

    def count(self) -> None:
        """Count what the graphs ran."""
        GlobalCounters.kernels += self.kernels
        GlobalCounters.ops += self.ops
        GlobalCounters.bytes += self.bytes

    def _run_each(self, calls: Sequence[CapturedCall], replaced: Mapping[int, UOp], values: Mapping[UOp, int]) -> None:
        """Run calls one by one: listeners hear of each."""
        nodes, wait = self._nodes, settings.DEBUG >= 2

        def buffer(slot: int) -> Buffer:
            return self.own.get(slot) or buffer_of(replaced.get(slot) or nodes[slot])

        for call in calls:
            launch = [buffer(slot) for slot in call.slots]
            if call.kernel is None:
                execute.copy(launch[0], launch[1])
                continue
            seconds = call.kernel.run(launch, [values[v] for v in call.variables], wait)
            report.ran_kernel(call.device, call.kernel, launch, seconds)


def is_graphable(call: CapturedCall) -> bool:
    """Whether the call is a launch on a device that has graphs."""
    return isinstance(call.kernel, CompiledKernel) and getattr(Device[call.device], "graphs", False)


def segments_of(calls: Sequence[CapturedCall]) -> list[GraphSegment | CapturedCall]:
    """The calls with launches in a row on one device as a graph."""
    found: list[GraphSegment | CapturedCall] = []
    begin = 0
    while begin < len(calls):
        call = calls[begin]
        end = begin + 1
        if not is_graphable(call):
            found.append(call)
        else:
            while end < len(calls) and calls[end].device == call.device and is_graphable(calls[end]):
                end += 1
            found.append(_graph_of(calls[begin:end]))
        begin = end
    return found


def _graph_of(calls: Sequence[CapturedCall]) -> GraphSegment:
    slots = {slot: number for number, slot in enumerate(dict.fromkeys(s for call in calls for s in call.slots))}
    named = dict.fromkeys(v for call in calls for v in call.variables)
    variables = {variable: number for number, variable in enumerate(named, len(slots))}
    launches = []
    for call in calls:
        words = (*[slots[s] for s in call.slots], *[variables[v] for v in call.variables])
        kernel: Any = call.kernel
        launches.append(GraphLaunch(kernel.program, words))
    backend: Any = Device[calls[0].device]
    return GraphSegment(backend.graph(launches, len(slots) + len(variables)), tuple(slots), tuple(variables))
