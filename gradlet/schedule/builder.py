"""Puts lowered bodies together as one launch: shared buffer slots, shared variables, scratch arrays."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from gradlet.base.dtype import dtypes
from gradlet.graph.node import UOp, mk
from gradlet.ops.op import BodyUse, LaunchArg, LaunchSegment, LaunchStage, Op
from gradlet.schedule.calls import KernelCall
from gradlet.schedule.lowered import Lowered


class LaunchBuilder:
    """Collects bodies region by region and stage by stage."""

    def __init__(self) -> None:
        self.bodies: dict[UOp, int] = {}
        self.slots: dict[UOp, int] = {}
        self.variables: dict[UOp, int] = {}
        self.written: set[int] = set()
        self.stages: list[LaunchStage] = []
        self.stage: list[LaunchSegment] = []
        self.scratch: list[int] = []

    def end_stage(self) -> None:
        """What follows waits for what was added."""
        if self.stage:
            self.stages.append(tuple(self.stage))
            self.stage = []

    def add_region(self, uses: Sequence[Lowered], scratch: Mapping[UOp, int]) -> None:
        """Bodies that run one after another for each block; `scratch` has the elements a block has of each array."""
        arrays = self.place_scratch(uses, scratch)
        self.stage.append(tuple([self.use(lowered, arrays) for lowered in uses]))

    def use(self, lowered: Lowered, arrays: Mapping[UOp, int]) -> BodyUse:
        """One body over the launch's slots."""
        slots = []
        for number, buffer in enumerate(lowered.buffers):
            if buffer in arrays:
                slots.append(-1 - arrays[buffer])
                continue
            slot = self.slots.setdefault(buffer, len(self.slots))
            slots.append(slot)
            if number in lowered.written:
                self.written.add(slot)
        variables = [self.variables.setdefault(v, len(self.variables)) for v in lowered.variables]
        body = self.bodies.setdefault(lowered.ast, len(self.bodies))
        return BodyUse(body, tuple(slots), tuple(variables))

    def place_scratch(self, uses: Sequence[Lowered], scratch: Mapping[UOp, int]) -> dict[UOp, int]:
        """The scratch array of every value: arrays are used again when their value is dead."""
        last: dict[UOp, int] = {}
        for position, lowered in enumerate(uses):
            last.update(dict.fromkeys([b for b in lowered.buffers if b in scratch], position))
        found: dict[UOp, int] = {}
        free = list(range(len(self.scratch)))  # regions of one stage may share: a core runs one block at a time
        for position, lowered in enumerate(uses):
            for buffer in lowered.buffers:
                if buffer in scratch and buffer not in found:
                    found[buffer] = self.take(free, scratch[buffer] * buffer.dtype.itemsize)
            free.extend([array for buffer, array in found.items() if last[buffer] == position])
        return found

    def take(self, free: list[int], size: int) -> int:
        """A free array, the one that has to grow least."""
        if free:
            best = min(free, key=lambda a: (max(0, size - self.scratch[a]), abs(self.scratch[a] - size), a))
            free.remove(best)
            self.scratch[best] = max(size, self.scratch[best])
            return best
        self.scratch.append(size)
        return len(self.scratch) - 1

    def call(self, device: str) -> KernelCall | None:
        """The launch, or None when nothing has elements."""
        self.end_stage()
        if not self.stages:
            return None
        written = tuple(sorted(self.written))
        buffers = tuple(self.slots)
        if len(self.bodies) == 1 and len(self.stages) == 1 and len(self.stages[0]) == 1 and len(self.stages[0][0]) == 1:
            return KernelCall(next(iter(self.bodies)), buffers, written, tuple(self.variables), device)
        name = f"l{len(self.stages)}_{next(iter(self.bodies)).arg.name}"
        arg = LaunchArg(name, tuple(self.stages), tuple(self.scratch))
        ast = mk(Op.SINK, dtypes.void, tuple(self.bodies), arg)
        return KernelCall(ast, buffers, written, tuple(self.variables), device)
