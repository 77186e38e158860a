"""What launching a program takes beside its code: functions, parts, words. It is plain data, so it can lie on disk."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from gradlet.device.cpu.parts import Segment, kernel_segment, launch_segments
from gradlet.graph.program import AnyProgram, LinearProgram


class LaunchPlan(NamedTuple):
    """How a loaded kernel, or a launch of several, is run.

    Attributes:
        name: of the kernel or the launch.
        stages: the functions that threads share the blocks of, one a stage.
        entries: an array in the code with the addresses of all functions; "" where there is one function.
        segments: for each stage its blocks and what they cost.
        words: addresses and values in the launch table.
    """

    name: str
    stages: tuple[str, ...]
    entries: str
    segments: tuple[tuple[Segment, ...], ...]
    words: int


def launch_plan(program: AnyProgram) -> LaunchPlan:
    """The plan of a program."""
    if isinstance(program, LinearProgram):
        segments: tuple[tuple[Segment, ...], ...] = ((kernel_segment(program),),)
        words = len(program.params) + len(program.variables)
        return LaunchPlan(program.name, (program.name,), "", segments, words)
    from gradlet.render.llvmlaunch import entries_name, stage_name  # programs that are recalled need no renderer

    stages = tuple(stage_name(program, number) for number in range(len(program.stages)))
    segments = tuple(tuple(stage) for stage in launch_segments(program))
    return LaunchPlan(program.name, stages, entries_name(program), segments, len(program.params) + program.variables)


def plan_from(fields: Sequence[Any]) -> LaunchPlan:
    """A plan that was written as lists: `plan_from(as_lists(plan)) == plan`."""
    name, stages, entries, segments, words = fields
    cut = tuple(tuple(Segment(*segment) for segment in stage) for stage in segments)
    return LaunchPlan(name, tuple(stages), entries, cut, words)
