"""The linear program of one kernel, and of a launch of several: what code generation hands to a renderer."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple, TypeAlias

from gradlet.graph.node import UOp
from gradlet.ops.op import LaunchStage
from gradlet.ops.opt import Opt


@dataclass(frozen=True)
class LinearProgram:
    """One kernel as a list of LINEAR-stage nodes in execution order.

    Attributes:
        name: function name, a C identifier.
        uops: every node once, sources before users, `RANGE` ... `END` properly nested.
        params: the PARAM nodes by slot.
        written: slots that the kernel stores to.
        variables: the VARIABLE nodes, in the order their values follow the addresses in the launch table.
        grid: trip count of the PARALLEL range, 1 when there is none. Where it is known only at launch, the largest:
            parts [begin, end) of that many share the iterations that there are.
        threads: lanes of a workgroup (product of THREAD ranges), 1 on a CPU.
        flops: floating point operations of one launch (a multiply-add counts two).
        bytes: unique bytes read and written by one launch.
        opts: the schedule that was applied.
        lanes: stride and size of the digits of a lane's number that stores depend on, where there are no THREAD
            ranges any more; lanes that differ in others only compute the same.
        kept: what a renderer made of it as a body of several launches, by target.
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
    lanes: tuple[tuple[int, int], ...] = ()
    kept: dict[object, str] = field(default_factory=dict, compare=False, repr=False)


class SegmentWork(NamedTuple):
    """What a segment of a launch is to a scheduler of threads.

    Attributes:
        blocks: into how many parts it can be cut: the grid of its kernel, the blocks of its region.
        flops: floating point operations of all blocks.
        bytes: bytes that its uses read and write, scratch arrays not counted.
    """

    blocks: int
    flops: int
    bytes: int


@dataclass(frozen=True)
class LaunchProgram:
    """Several kernels in one launch, each of them as a linear program.

    Attributes:
        name: prefix of all function names, a C identifier.
        programs: one a body.
        stages: which bodies run in which order, on which slots (docs of `LaunchArg`).
        work: for each stage what its segments are.
        scratch: bytes of each scratch array; every worker has its own.
        params: a PARAM for every slot of the launch; the largest of what its uses ask for.
        written: slots that some body stores to.
        variables: how many values follow the addresses in the launch table.
        shared: the bodies that other launches have too, which are compiled now.
    """

    name: str
    programs: tuple[LinearProgram, ...]
    stages: tuple[LaunchStage, ...]
    work: tuple[tuple[SegmentWork, ...], ...]
    scratch: tuple[int, ...]
    params: tuple[UOp, ...]
    written: tuple[int, ...]
    variables: int
    shared: tuple[int, ...] = ()

    @property
    def flops(self) -> int:
        """Floating point operations of one launch."""
        return sum(work.flops for stage in self.work for work in stage)

    @property
    def bytes(self) -> int:
        """Bytes that the uses read and write in one launch."""
        return sum(work.bytes for stage in self.work for work in stage)


# What a backend renders, compiles and loads.
AnyProgram: TypeAlias = LinearProgram | LaunchProgram
