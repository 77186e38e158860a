"""The linear program: what code generation hands to a renderer."""

from __future__ import annotations

from dataclasses import dataclass

from gradlet.graph.node import UOp
from gradlet.ops.op import Opt


@dataclass(frozen=True)
class LinearProgram:
    """One kernel as a list of LINEAR-stage nodes in execution order.

    Attributes:
        name: function name, a C identifier.
        uops: every node once, sources before users, `RANGE` ... `END` properly nested.
        params: the PARAM nodes by slot.
        written: slots that the kernel stores to.
        variables: the VARIABLE nodes, in the order their values follow the addresses in the launch table.
        grid: trip count of the PARALLEL range, 1 when there is none.
        threads: lanes of a workgroup (product of THREAD ranges), 1 on a CPU.
        flops: floating point operations of one launch (a multiply-add counts two).
        bytes: unique bytes read and written by one launch.
        opts: the schedule that was applied.
    """

    name: str
    uops: tuple[UOp, ...]
    params: tuple[UOp, ...]
    written: tuple[int, ...]
    variables: tuple[UOp, ...]
    grid: int
    threads: int
    flops: int
    bytes: int
    opts: tuple[Opt, ...] = ()
