"""Capture of a jitted call as a list of kernel launches over slots, and its replay with other memory.

Capture says what to run; it knows nothing of the function that was traced (`tensor/function` does).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import count

from gradlet.base.errors import JitError
from gradlet.engine.arenas import bytes_held, move_into, parts, plan_arenas
from gradlet.engine.compile import Kernel, get_kernel
from gradlet.engine.execute import Recorder
from gradlet.engine.prologue import Prologue, find_settled
from gradlet.engine.replay import Runner
from gradlet.graph.node import UOp
from gradlet.ops.op import Op
from gradlet.runtime.buffer import Buffer, buffer_of, new_buffer_node
from gradlet.schedule.calls import CopyCall, KernelCall, MemoryPlan, Schedule


@dataclass
class CapturedCall:
    """One launch: the kernel (None for a copy), its buffers as slot numbers, its variables by node, which it writes."""

    kernel: Kernel | None
    device: str
    slots: tuple[int, ...]
    variables: tuple[UOp, ...]
    written: tuple[int, ...]

    @property
    def is_fixed(self) -> bool:
        """Whether it does the same at every call: a kernel without variables."""
        return self.kernel is not None and not self.variables


@dataclass
class CapturedProgram:
    """Launches over numbered slots.

    Attributes:
        calls: the launches in order.
        nodes: the BUFFER node that each slot held during capture.
        slot_of: the reverse.
        produced: slots whose memory was allocated by the capture (intermediates and outputs).
        values: value of every variable during capture.
        temporary: slots whose values nobody sees between two calls, nor after the last.
        idle: what replayed the program before and does not now.
        prologue: launches that run once for the values of the weights, if there are any: `settle` looks.
        in_place: slots with memory of others that are written.
        memory: where temporary slots lie, and how much memory that takes: `share_memory` decides.
    """

    calls: list[CapturedCall] = field(default_factory=list)
    nodes: list[UOp] = field(default_factory=list)
    slot_of: dict[UOp, int] = field(default_factory=dict)
    produced: set[int] = field(default_factory=set)
    values: dict[UOp, int] = field(default_factory=dict)
    temporary: set[int] = field(default_factory=set)
    idle: list[Runner] = field(default_factory=list)
    prologue: Prologue | None = None
    in_place: tuple[int, ...] = ()
    memory: MemoryPlan = field(default_factory=MemoryPlan)
    _numbers: Iterator[int] = field(default_factory=count)

    def slot(self, node: UOp) -> int:
        """The slot of a BUFFER node, new if it has none yet."""
        found = self.slot_of.get(node)
        if found is None:
            found = self.slot_of[node] = len(self.nodes)
            self.nodes.append(node)
        return found

    def settle(self, moving: Collection[int]) -> None:
        """Find the launches that need not run at every call. `moving`: slots that are other memory at every call."""
        self.in_place = tuple(sorted({c.slots[w] for c in self.calls for w in c.written} - self.produced))
        sizes = [node.arg.size * node.dtype.itemsize for node in self.nodes]
        settled = find_settled(self.calls, self.produced, moving, sizes)
        if settled:
            once, rest = (
                self._part([(n in settled) is kept for n in range(len(self.calls))]) for kept in (True, False)
            )
            makes = {call.slots[w] for call in once.calls for w in call.written}
            reads = dict.fromkeys([s for call in once.calls for s in call.slots if s not in makes])
            for slot in makes:  # the memory of the capture goes back: what is made at the first replay has its own
                del self.slot_of[self.nodes[slot]]
                self.nodes[slot] = self.fresh_buffer(slot)
                self.slot_of[self.nodes[slot]] = slot
            rest.temporary, rest._numbers = self.temporary - makes, self._numbers
            self.prologue = Prologue(once, rest, tuple(reads), tuple(makes))

    def share_memory(self, results: Collection[int]) -> None:
        """Let temporary slots share arenas. `results`: slots of new memory at every call."""
        part = self if self.prologue is None else self.prologue.rest
        plan = plan_arenas(part.calls, self.nodes, part.temporary, results)
        if plan.peak < bytes_held(list(plan.places)):
            move_into(parts(plan))
        self.memory = part.memory = plan

    def _part(self, chosen: Sequence[bool]) -> CapturedProgram:
        """Some of the calls, over the same slots."""
        calls = [call for call, is_chosen in zip(self.calls, chosen, strict=True) if is_chosen]
        return CapturedProgram(calls, self.nodes, self.slot_of, self.produced, self.values)

    def replay(self, replaced: dict[int, UOp], values: dict[UOp, int]) -> tuple[CapturedProgram, Runner]:
        """Run all launches, with some slots holding other buffers and some variables other values.

        What weights alone decide is taken from an earlier replay while they are the same.

        Returns what ran at this call, and its runner: the caller puts that back among the idle ones, or drops it.
        """
        made = None if self.prologue is None else self.prologue.current(replaced)
        if self.prologue is None or made is None:
            part = self
        else:
            part, replaced = self.prologue.rest, {**replaced, **made}
        runner = part.take_runner()
        runner.run(replaced, values)
        for slot in self.in_place:
            buffer_of(replaced.get(slot) or self.nodes[slot]).changed()
        return part, runner

    def run(self, replaced: dict[int, UOp], values: dict[UOp, int]) -> None:
        """Run all launches, whatever was made before."""
        runner = self.take_runner()
        try:
            runner.run(replaced, values)
        finally:
            self.idle.append(runner)

    def take_runner(self) -> Runner:
        """What replays the program, for this thread alone until it is put back into `idle`."""
        try:
            return self.idle.pop()
        except IndexError:
            pass
        # The first one has the memory of the capture; others, for threads that replay at the same time, have their own.
        if next(self._numbers) == 0:
            return Runner(self, {})
        shared = parts(self.memory)
        nodes = {slot: self.nodes[slot] for slot in self.temporary}
        return Runner(self, {slot: shared.get(node) or _like(node) for slot, node in nodes.items()})

    def fresh_buffer(self, slot: int) -> UOp:
        """A new BUFFER node like the one this slot held."""
        node = self.nodes[slot]
        return new_buffer_node(node.arg.device, node.dtype, node.arg.size)


class CaptureRecorder(Recorder):
    """Builds a `CapturedProgram` from what runs."""

    def __init__(self, is_known: Callable[[UOp], bool], inputs: Collection[UOp] = ()) -> None:
        """Begin a program.

        Args:
            is_known: whether a buffer held a value before the capture.
            inputs: buffers that will be others at the next call.
        """
        super().__init__()
        self.program = CapturedProgram()
        self._is_known = is_known
        self._changing = set(inputs)

    def stays(self, node: UOp) -> bool:
        return self._is_known(node) and node not in self._changing and buffer_of(node).is_watched

    def is_known(self, node: UOp) -> bool:
        return self._is_known(node)

    def ran(self, call: KernelCall | CopyCall, values: Sequence[int], schedule: Schedule) -> None:
        program = self.program
        if isinstance(call, CopyCall):
            ends = (self._slot(call.destination), self._slot(call.source))
            program.calls.append(CapturedCall(None, "", ends, (), (0,)))
            return
        slots = tuple(self._slot(b) for b in call.buffers)
        for variable, value in zip(call.variables, values, strict=True):
            if program.values.setdefault(variable, value) != value:
                raise JitError(
                    f"variable {variable.arg.name!r} takes two values in one jitted call; bind it once per call"
                )
        self._changing.update([call.buffers[slot] for slot in call.written])
        kernel = get_kernel(call.ast, call.device)
        program.calls.append(CapturedCall(kernel, call.device, slots, tuple(call.variables), call.written))

    def _slot(self, node: UOp) -> int:
        if node.op is not Op.BUFFER:
            raise JitError(f"a kernel argument is not a buffer: {node}")
        new = node not in self.program.slot_of
        slot = self.program.slot(node)
        if new and not self._is_known(node):
            self.program.produced.add(slot)
        return slot


def _like(node: UOp) -> Buffer:
    """New memory like that of a BUFFER node."""
    return Buffer(node.arg.device, node.dtype, node.arg.size)
