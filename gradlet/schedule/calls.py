"""What scheduling produces: kernel calls and copies in order, and what every root became."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

from gradlet.graph.node import UOp
from gradlet.ops.op import KernelArg
from gradlet.ops.opt import Opt

# A captured program keeps at most so many bytes of what it computes from weights alone.
MOST_KEPT: Final = 1 << 30
# No short form of weights has so few bytes for one of theirs: these say what is the same everywhere.
SPREAD: Final = 64


def is_worth_keeping(made: int, read: int) -> bool:
    """Whether so many bytes, computed from weights of so many, are kept from call to call: a copy in another order is,
    and one value that stands for all weights; weights of 8 and 16 bits as float32 are not.
    """
    return 3 * made <= 4 * read or made >= SPREAD * read > 0


@dataclass(frozen=True)
class KernelCall:
    """One launch.

    Attributes:
        ast: KERNEL-stage SINK; equal kernels are the same node, whatever buffers they run on.
        buffers: BUFFER node of every PARAM slot.
        written: the slots it stores to.
        variables: the VARIABLE nodes of the tensor graph, in the order of the kernel's own `v0`, `v1`, ...
        device: where it runs.
    """

    ast: UOp
    buffers: tuple[UOp, ...]
    written: tuple[int, ...]
    variables: tuple[UOp, ...]
    device: str

    def __str__(self) -> str:
        reads = [_memory(node) for slot, node in enumerate(self.buffers) if slot not in self.written]
        writes = [_memory(self.buffers[slot]) for slot in self.written]
        bodies = self.ast.src if not isinstance(self.ast.arg, KernelArg) else (self.ast,)
        given = sum(body.arg.opts is not None for body in bodies)
        chosen = f", opts given for {given} of {len(bodies)}" if given else ""
        return f"{self.ast.arg.name} on {self.device}: {', '.join(reads) or 'nothing'} -> {', '.join(writes)}{chosen}"


@dataclass(frozen=True)
class CopyCall:
    """A whole buffer copied between devices."""

    destination: UOp
    source: UOp

    def __str__(self) -> str:
        return f"copy {_memory(self.source)} from {self.source.arg.device} to {self.destination.arg.device}"


def _memory(node: UOp) -> str:
    """A buffer in words: its number, its size, its type."""
    return f"b{node.arg.number}[{node.arg.size} {str(node.dtype).removeprefix('dtypes.')}]"


@dataclass(frozen=True)
class MemoryPlan:
    """Where the temporary buffers of a schedule lie. What does not honour it may give each buffer memory of its own.

    Attributes:
        peak: bytes of all arenas.
        bound: bytes in use at the worst moment of this order: no places need less.
        unshared: bytes that the temporary buffers would take without sharing.
        results: bytes of new memory that outlives the schedule, outside of the arenas.
        arenas: bytes of each device's arena.
        places: offset of every temporary buffer in the arena of its device.
    """

    peak: int = 0
    bound: int = 0
    unshared: int = 0
    results: int = 0
    arenas: Mapping[str, int] = field(default_factory=dict)
    places: Mapping[UOp, int] = field(default_factory=dict)


@dataclass(frozen=True)
class Schedule:
    """Calls in execution order.

    Attributes:
        calls: what to run.
        results: every root (and every write that other graphs may hold) to what it became: a BUFFER behind movement
            ops.
        values: this launch's value of every VARIABLE.
        memory: where temporary buffers lie.
    """

    calls: tuple[KernelCall | CopyCall, ...]
    results: dict[UOp, UOp]
    values: dict[UOp, int]
    memory: MemoryPlan = field(default_factory=MemoryPlan)

    def __str__(self) -> str:
        return "\n".join([f"{number}. {call}" for number, call in enumerate(self.calls)])

    def with_opts(self, number: int, opts: Sequence[Opt] | None, body: int = 0) -> Schedule:
        """The same with a kernel that is compiled with these opts, in place of those that the heuristic chooses.

        Args:
            number: of the call.
            opts: words of the schedule language; None for the heuristic's choice.
            body: of a launch, which of its kernels.
        """
        call = self.calls[number]
        assert isinstance(call, KernelCall), f"call {number} is a copy, which no opts change"
        chosen = None if opts is None else tuple(opts)
        ast = call.ast
        if isinstance(ast.arg, KernelArg):
            ast = ast.replace(arg=KernelArg(ast.arg.name, chosen))
        else:
            bodies = list(ast.src)
            bodies[body] = bodies[body].replace(arg=KernelArg(bodies[body].arg.name, chosen))
            ast = ast.replace(src=tuple(bodies))
        calls = (*self.calls[:number], replace(call, ast=ast), *self.calls[number + 1 :])
        return replace(self, calls=calls)
