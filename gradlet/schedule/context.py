"""What the passes of one schedule share beside the graph."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from gradlet.base.dtype import dtypes
from gradlet.graph.extents import Extents
from gradlet.graph.node import UOp, mk
from gradlet.ops.op import KernelArg, Op
from gradlet.schedule.calls import CopyCall, KernelCall, MemoryPlan
from gradlet.schedule.hazards import Effects
from gradlet.schedule.partition import Group, Launch
from gradlet.schedule.steps import Steps
from gradlet.target.target import Target

if TYPE_CHECKING:
    from gradlet.schedule.refusals import Decisions


@dataclass
class Context:
    """State of one schedule in the making. The graph is a SINK whose sources are what `asked` became, in order.

    Attributes:
        asked: nodes of the caller's graph: the roots, then what other graphs hold, then writes.
        roots: how many of them are roots.
        live: how many after the roots are other live graphs.
        target_of: facts about a device by its name.
        default_device: where constants go when nothing says otherwise.
        devices: device of the caller's nodes; constants have none unless a copy asked for one.
        values: this launch's value of every bound variable.
        guards: how many sources at the end of the SINK only keep bases of writes whole.
        stored_on: device of constants that are stored by a kernel of their own.
        decisions: what was decided; None when nobody wants to know.
        spans: for every launch the numbers of its calls.
        sizes: extents of the asked nodes that have axes whose size is known only at launch.
        sums: sums of products that are kept in memory with their channels last.
        call_bodies: see `Emitter`.
        apart: see `Emitter`.
        settled: buffers that are expected to stay as they are.
        by_units: whether the gradient of attention may be left to matrix units, block by block.
        exchanged: whether it was.
        pairs_stored: whether what it needs for all pairs of queries and keys is in memory all the same.
    """

    asked: list[UOp]
    roots: int
    live: int
    target_of: Callable[[str], Target]
    default_device: str
    devices: dict[UOp, str] = field(default_factory=dict)
    values: dict[UOp, int] = field(default_factory=dict)
    guards: int = 0
    stored_on: dict[UOp, str] = field(default_factory=dict)
    effects: Effects | None = None
    steps: Steps | None = None
    launches: list[Launch] = field(default_factory=list)
    calls: list[KernelCall | CopyCall] = field(default_factory=list)
    results: dict[UOp, UOp] = field(default_factory=dict)
    made: set[UOp] = field(default_factory=set)
    memory: MemoryPlan = field(default_factory=MemoryPlan)
    decisions: Decisions | None = None
    sizes: dict[UOp, Extents] = field(default_factory=dict)
    spans: list[range] = field(default_factory=list)
    sums: set[UOp] = field(default_factory=set)
    call_bodies: dict[int, Group] = field(default_factory=dict)
    apart: dict[int, str] = field(default_factory=dict)
    settled: frozenset[UOp] = frozenset()
    by_units: bool = True
    exchanged: bool = False
    pairs_stored: bool = False


def sink(nodes: Sequence[UOp], name: str = "schedule") -> UOp:
    """The graph of a schedule: its roots, or its kernels."""
    return mk(Op.SINK, dtypes.void, tuple(nodes), KernelArg(name))
