"""How the blocks of a stage are cut into parts of similar cost, for threads that take one part after another."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

from gradlet.graph.program import LaunchProgram, LinearProgram
from gradlet.ops.op import LaunchSegment

# Rates of one core on data in its cache, and what calling one kernel inside a launch costs.
CORE_FLOPS_PER_SECOND: Final = 20e9
CORE_BYTES_PER_SECOND: Final = 30e9
CALL_SECONDS: Final = 10e-9


class Segment(NamedTuple):
    """Blocks of equal cost: how many, and the seconds one takes."""

    blocks: int
    seconds: float


def kernel_seconds(program: LinearProgram) -> float:
    """What a whole kernel takes on one core."""
    return max(program.flops / CORE_FLOPS_PER_SECOND, program.bytes / CORE_BYTES_PER_SECOND)


def launch_segments(program: LaunchProgram) -> list[list[Segment]]:
    """The segments of every stage of a launch."""
    times = [kernel_seconds(p) for p in program.programs]
    return [
        [_segment(segment, blocks, times) for segment, blocks in zip(stage, grids, strict=True)]
        for stage, grids in zip(program.stages, program.grids, strict=True)
    ]


def _segment(segment: LaunchSegment, blocks: int, times: Sequence[float]) -> Segment:
    whole = sum(times[use.body] for use in segment)
    # The bodies of a region are called for each block, a kernel once for all that a part has of it.
    calls = 1 if len(segment) == 1 else blocks * len(segment)
    return Segment(blocks, (whole + calls * CALL_SECONDS) / blocks)


def bounds(segments: Sequence[Segment], parts: int) -> list[int]:
    """Where parts begin and the last one ends, blocks of all segments counted one after another.

    Args:
        segments: the stage.
        parts: how many are wanted; there are fewer where single blocks cost more than a part should.
    """
    total = sum(s.blocks * s.seconds for s in segments)
    result = [0]
    wanted = 1
    first, before = 0, 0.0  # the blocks and the cost of the segments so far
    for segment in segments:
        cost = segment.blocks * segment.seconds
        while wanted < parts and total * wanted / parts <= before + cost:
            inside = round((total * wanted / parts - before) / segment.seconds) if segment.seconds else segment.blocks
            at = first + min(segment.blocks, inside)
            if at > result[-1]:
                result.append(at)
            wanted += 1
        first += segment.blocks
        before += cost
    if result[-1] < first:
        result.append(first)
    return result
