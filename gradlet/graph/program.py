"""The linear program of one kernel, and of a launch of several: what code generation hands to a renderer."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

from gradlet.graph.node import UOp
from gradlet.ops.op import LaunchStage, Opt


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


@dataclass(frozen=True)
class LaunchProgram:
    """Several kernels in one launch, each of them as a linear program.

    Attributes:
        name: prefix of all function names, a C identifier.
        programs: one a body.
        stages: which bodies run in which order, on which slots (docs of `LaunchArg`).
        grids: for each stage the number of blocks of every segment: the grid of its kernel, the blocks of its region.
        scratch: bytes of each scratch array; every worker has its own.
        params: a PARAM for every slot of the launch; the largest of what its uses ask for.
        written: slots that some body stores to.
        variables: how many values follow the addresses in the launch table.
        flops: floating point operations of one launch.
        bytes: bytes that the uses read and write, scratch arrays not counted.
    """

    name: str
    programs: tuple[LinearProgram, ...]
    stages: tuple[LaunchStage, ...]
    grids: tuple[tuple[int, ...], ...]
    scratch: tuple[int, ...]
    params: tuple[UOp, ...]
    written: tuple[int, ...]
    variables: int
    flops: int
    bytes: int


# What a backend renders, compiles and loads.
AnyProgram: TypeAlias = LinearProgram | LaunchProgram
