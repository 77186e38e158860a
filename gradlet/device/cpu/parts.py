"""How the blocks of a stage are cut into parts of similar cost, for threads that take one part after another."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Final, NamedTuple

from gradlet.graph.program import LaunchProgram, LinearProgram, SegmentWork
from gradlet.ops.op import LaunchSegment

# Rates of one core on data in its cache, and what calling one kernel inside a launch costs.
CORE_FLOPS_PER_SECOND: Final = 20e9
CORE_BYTES_PER_SECOND: Final = 30e9
CALL_SECONDS: Final = 10e-9


class Segment(NamedTuple):
    """Blocks of equal cost: how many, and the seconds one takes."""

    blocks: int
    seconds: float


def kernel_segment(program: LinearProgram) -> Segment:
    """A kernel as the one segment of its stage."""
    return Segment(program.grid, _seconds(program.flops, program.bytes) / program.grid)


def launch_segments(program: LaunchProgram) -> list[list[Segment]]:
    """The segments of every stage of a launch."""
    return [
        [_segment(segment, work) for segment, work in zip(stage, works, strict=True)]
        for stage, works in zip(program.stages, program.work, strict=True)
    ]


def _segment(segment: LaunchSegment, work: SegmentWork) -> Segment:
    # The bodies of a region are called for each block, a kernel once for all that a part has of it.
    calls = 1 if len(segment) == 1 else work.blocks * len(segment)
    return Segment(work.blocks, (_seconds(work.flops, work.bytes) + calls * CALL_SECONDS) / work.blocks)


def _seconds(flops: int, nbytes: int) -> float:
    return max(flops / CORE_FLOPS_PER_SECOND, nbytes / CORE_BYTES_PER_SECOND)


def cut(segments: Sequence[Segment], parts: int) -> list[tuple[int, int]]:
    """Where each part begins and ends, blocks of all segments counted one after another; the dearest part comes first.

    Args:
        segments: the stage.
        parts: how many are wanted; there are fewer where single blocks cost more than a part should.
    """
    total = sum(s.blocks * s.seconds for s in segments)
    places = [0]
    costs = [0.0]  # of all blocks before each place
    wanted = 1
    first, before = 0, 0.0  # the blocks and the cost of the segments so far
    for segment in segments:
        cost = segment.blocks * segment.seconds
        while wanted < parts and total * wanted / parts <= before + cost:
            inside = round((total * wanted / parts - before) / segment.seconds) if segment.seconds else segment.blocks
            inside = min(segment.blocks, inside)
            if first + inside > places[-1]:
                places.append(first + inside)
                costs.append(before + inside * segment.seconds)
            wanted += 1
        first += segment.blocks
        before += cost
    if places[-1] < first:
        places.append(first)
        costs.append(before)
    found = list(pairwise(places))
    # Costs that differ by rounding only keep the order in memory.
    shares = [round(1000 * (b - a) / total) if total else 0 for a, b in pairwise(costs)]
    return [found[i] for i in sorted(range(len(found)), key=lambda i: -shares[i])]
