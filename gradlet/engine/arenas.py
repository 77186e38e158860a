"""Memory of a captured program: what nobody sees between calls shares one arena a device, over all its schedules.

Each schedule has planned its own temporary buffers; here the values that the function handed from one schedule to the
next share memory too, by the same rules, in the lifetimes that they have in the whole program.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Protocol

from gradlet.base.dtype import dtypes
from gradlet.base.report import human_bytes
from gradlet.engine.compile import Kernel
from gradlet.graph.node import UOp
from gradlet.runtime.buffer import Buffer, bind, buffer_of
from gradlet.runtime.device import Device
from gradlet.schedule.calls import CopyCall, KernelCall, MemoryPlan
from gradlet.schedule.memory import Lifetimes, room_of, size_of


class Call(Protocol):
    """One launch over slots, or a copy: then there is no kernel."""

    @property
    def kernel(self) -> Kernel | None: ...

    @property
    def device(self) -> str: ...

    @property
    def slots(self) -> tuple[int, ...]: ...

    @property
    def written(self) -> tuple[int, ...]: ...


def plan_arenas(
    calls: Sequence[Call], nodes: Sequence[UOp], temporary: Collection[int], results: Collection[int]
) -> MemoryPlan:
    """Places of all temporary slots.

    Args:
        calls: the program in order.
        nodes: the BUFFER node of every slot.
        temporary: slots that are written before they are read in every call, and that nobody sees.
        results: slots of new memory that outlives a call.
    """
    launches = [_scheduled(call, nodes) for call in calls]
    rooms = room_of(lambda device: Device[device].target)
    lifetimes = Lifetimes(launches, [nodes[slot] for slot in sorted(temporary)], rooms)
    arenas = lifetimes.place()
    places = {block.buffer: block.offset for block in lifetimes.blocks}
    unshared = sum(block.size for block in lifetimes.blocks)
    outlive = sum(size_of(nodes[slot]) for slot in results)
    return MemoryPlan(sum(arenas.values()), lifetimes.bound, unshared, outlive, arenas, places)


def _scheduled(call: Call, nodes: Sequence[UOp]) -> KernelCall | CopyCall:
    buffers = tuple([nodes[slot] for slot in call.slots])
    if call.kernel is None:
        return CopyCall(*buffers)
    return KernelCall(call.kernel.ast, buffers, call.written, (), call.device)


def bytes_held(nodes: Sequence[UOp]) -> int:
    """Bytes of the memory in which these buffers lie now, shared memory counted once."""
    blocks = {id(block): block.nbytes for block in [buffer_of(node).whole for node in nodes]}
    return sum(blocks.values())


def parts(plan: MemoryPlan) -> dict[UOp, Buffer]:
    """A buffer for each place of the plan, in new arenas."""
    arenas = {device: Buffer(device, dtypes.uint8, nbytes) for device, nbytes in plan.arenas.items()}
    return {
        node: Buffer.part(arenas[node.arg.device], offset, node.dtype, node.arg.size)
        for node, offset in plan.places.items()
    }


def move_into(places: Mapping[UOp, Buffer]) -> None:
    """Let the nodes stand for this memory from now on; what they held is lost."""
    for node, buffer in places.items():
        bind(node, buffer)


def memory_line(plan: MemoryPlan) -> str:
    """What a plan needs, and the least that any could, in words."""
    if not plan.unshared:
        return f"no temporary memory, results {human_bytes(plan.results)}"
    return (
        f"temporary memory {human_bytes(plan.peak)} (at least {human_bytes(plan.bound)} are in use at once, "
        f"{human_bytes(plan.unshared)} without sharing), results {human_bytes(plan.results)}"
    )
