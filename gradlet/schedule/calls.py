"""What scheduling produces: kernel calls and copies in order, and what every root became."""

from __future__ import annotations

from dataclasses import dataclass

from gradlet.graph.node import UOp


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


@dataclass(frozen=True)
class CopyCall:
    """A whole buffer copied between devices."""

    destination: UOp
    source: UOp


@dataclass(frozen=True)
class Schedule:
    """Calls in execution order.

    Attributes:
        calls: what to run.
        results: every root (and every write that other graphs may hold) to what it became: a BUFFER behind movement
            ops.
        values: this launch's value of every VARIABLE.
    """

    calls: tuple[KernelCall | CopyCall, ...]
    results: dict[UOp, UOp]
    values: dict[UOp, int]
