"""Schedules from the cache, ready to run: their kernels are found, their memory is known by position.

What is left to do at a hit is the launches themselves: no node stands for temporary memory, and nothing is looked up
for each launch.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

from gradlet.base import events, settings
from gradlet.base.dtype import DType, dtypes
from gradlet.engine import report
from gradlet.engine.compile import CompiledKernel, Kernel, get_kernel, prepare_kernels
from gradlet.graph.allocation import new_buffer_node
from gradlet.graph.node import UOp, mk, toposort
from gradlet.ops.op import Op
from gradlet.runtime.buffer import Buffer, bind, buffer_of
from gradlet.runtime.counters import GlobalCounters
from gradlet.schedule.cache import Entry, Slot, variable_of
from gradlet.schedule.clean import note_value

_BUFFER = Op.BUFFER


class Launch(NamedTuple):
    """One call of a schedule.

    Attributes:
        kernel: what runs; None for a copy of the second buffer into the first.
        start: the work of one launch: buffers, values, and whether to wait.
        device: where it runs.
        slots: which memory it gets.
        variables: positions of the leaves whose values it gets.
    """

    kernel: Kernel | None
    start: Callable[[Sequence[Buffer], Sequence[int], bool], float | None] | None
    device: str
    slots: tuple[Slot, ...]
    variables: tuple[Slot, ...]


class Ready:
    """What runs at a hit.

    Attributes:
        launches: the calls in order.
        results: for every graph that was asked for where its value lies, and the movement ops over it.
        overwritten: the leaves that the schedule writes in place.
        stale: the graphs that were asked for, by number, that read one of these: they mean something else afterwards.
    """

    def __init__(self, entry: Entry, asked: Sequence[UOp], leaves: Sequence[UOp]) -> None:
        calls = entry.calls
        if len(calls) > 1:
            prepare_kernels([(call.ast, call.device) for call in calls if call.ast is not None])
        self.launches = []
        for call in calls:
            kernel = None if call.ast is None else get_kernel(call.ast, call.device)
            start = kernel.program if isinstance(kernel, CompiledKernel) else kernel.run if kernel is not None else None
            self.launches.append(Launch(kernel, start, call.device, call.buffers, call.variables))
        kernels = [launch.kernel for launch in self.launches if launch.kernel is not None]
        self.results = entry.results
        self._plain = all(launch.kernel is not None and not launch.variables for launch in self.launches)
        self._totals = (len(kernels), sum(k.flops for k in kernels), sum(k.bytes for k in kernels))
        self._binds = any(leaf.op is Op.BIND for leaf in leaves)
        self._arenas = tuple(entry.memory.arenas.items())
        places = dict(entry.places)
        # A slot of new memory is negative: it counts from the end of the list.
        self._new: list[tuple[str, DType, int, int | None]] = [
            (*new, places.get(-1 - number)) for number, new in enumerate(entry.new)
        ][::-1]
        written = {call.buffers[slot] for call in calls for slot in call.written}
        self.overwritten = tuple(sorted(slot for slot in written if slot >= 0))
        buffers = [leaves[slot] for slot in self.overwritten]
        depending = depending_on(asked, buffers) if buffers else ()
        self.stale = tuple([number for number, graph in enumerate(asked) if graph in depending])

    def run(self, leaves: Sequence[UOp]) -> list[Any]:
        """Run all calls on the memory of these leaves; returns the memory by slot.

        Raises:
            ArgumentError: one variable bound to two values.
        """
        memory = self._memory(leaves)
        if self._plain and not self._binds and not events.active() and settings.DEBUG.value < 2:
            for _, start, _, slots, _ in self.launches:
                start([memory[slot] for slot in slots], (), False)  # type: ignore[misc]
            count, flops, nbytes = self._totals
            GlobalCounters.kernels += count
            GlobalCounters.ops += flops
            GlobalCounters.bytes += nbytes
            for slot in self.overwritten:
                memory[slot].changed()
            return memory
        values: dict[UOp, int] = {}
        for leaf in leaves:
            if leaf.op is Op.BIND:
                note_value(leaf, values)
        wait = settings.DEBUG.value >= 2
        for kernel, start, device, slots, variables in self.launches:
            buffers = [memory[slot] for slot in slots]
            if kernel is None or start is None:
                copy(buffers[0], buffers[1])
                continue
            seconds = start(buffers, [values[variable_of(leaves[slot])] for slot in variables], wait)
            report.ran_kernel(device, kernel, buffers, seconds)
        for slot in self.overwritten:
            memory[slot].changed()
        return memory

    def _memory(self, leaves: Sequence[UOp]) -> list[Any]:
        """The memory of the leaves, None for variables, then new memory; temporary buffers share an arena a device."""
        memory: list[Any] = [buffer_of(leaf) if leaf.op is _BUFFER else None for leaf in leaves]
        arenas = {device: Buffer(device, dtypes.uint8, nbytes) for device, nbytes in self._arenas}
        for device, dtype, size, place in self._new:
            memory.append(
                Buffer(device, dtype, size) if place is None else Buffer.part(arenas[device], place, dtype, size)
            )
        return memory

    def nodes(self, asked: Sequence[UOp], leaves: Sequence[UOp], memory: Sequence[Any]) -> dict[UOp, UOp]:
        """What the graphs that were asked for became: BUFFER nodes behind movement ops."""
        made: dict[Slot, UOp] = {}
        found: dict[UOp, UOp] = {}
        for root, result in zip(asked, self.results):
            if result is None:
                continue
            slot, steps = result
            if slot >= 0:
                node = leaves[slot]
            elif slot in made:
                node = made[slot]
            else:
                buffer = memory[slot]
                node = made[slot] = bind(new_buffer_node(buffer.device, buffer.dtype, buffer.size), buffer)
            for op, arg in steps:
                node = mk(op, node.dtype, (node,), arg)
            found[root] = node
        return found


def copy(destination: Buffer, source: Buffer) -> None:
    """Copy between devices."""
    destination.copy_from(source)
    report.ran_copy(destination, source)


def ready_of(entry: Entry, asked: Sequence[UOp], leaves: Sequence[UOp]) -> Ready:
    """The entry ready to run; `asked` and `leaves` are of any question that it answers."""
    if entry.ready is None:
        entry.ready = Ready(entry, asked, leaves)
    return entry.ready  # type: ignore[no-any-return]


def depending_on(graphs: Iterable[UOp], leaves: Iterable[UOp]) -> set[UOp]:
    """The nodes of these graphs that read one of these leaves, and the leaves."""
    depending = set(leaves)
    for node in toposort(graphs):
        if not depending.isdisjoint(node.src):
            depending.add(node)
    return depending
