"""Cutting stages into parts: all blocks once, in order, at similar cost."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gradlet.codegen.launch import lower_launch
from gradlet.device.cpu.parts import Segment, cut, kernel_segment, launch_segments
from gradlet.target.target import AVX2
from tests.codegen import launches

SEGMENTS = st.lists(st.builds(Segment, st.integers(1, 50), st.floats(0, 1e-3)), min_size=1, max_size=12)


def cost_of(segments: list[Segment], begin: int, end: int) -> float:
    total, first = 0.0, 0
    for segment in segments:
        inside = min(end, first + segment.blocks) - max(begin, first)
        total += max(0, inside) * segment.seconds
        first += segment.blocks
    return total


@given(SEGMENTS, st.integers(1, 40))
def test_parts_are_all_blocks_in_order_and_none_is_dear(segments: list[Segment], parts: int) -> None:
    found = cut(segments, parts)
    blocks = sum(s.blocks for s in segments)
    in_order = sorted(found)
    assert in_order[0][0] == 0 and in_order[-1][1] == blocks
    assert all(begin < end for begin, end in found)
    assert all(a[1] == b[0] for a, b in pairwise(in_order))
    assert len(found) <= parts
    # A part may be dearer than its share by what cannot be cut: a block at either end.
    share = cost_of(segments, 0, blocks) / parts
    largest = max(s.seconds for s in segments)
    costs = [cost_of(segments, begin, end) for begin, end in found]
    assert all(cost <= share + 2 * largest + 1e-12 for cost in costs)
    slack = cost_of(segments, 0, blocks) / 1000 + 1e-12
    assert all(a >= b - slack for a, b in pairwise(costs))  # the dearest first


def test_equal_blocks_are_cut_evenly() -> None:
    assert cut([Segment(1, 1e-6)] * 8, 4) == [(0, 2), (2, 4), (4, 6), (6, 8)]
    assert sorted(cut([Segment(100, 1e-6)], 4)) == [(0, 25), (25, 50), (50, 75), (75, 100)]


def test_a_dear_block_has_a_part_of_its_own_and_begins_first() -> None:
    assert cut([Segment(1, 1e-3), *[Segment(1, 1e-6)] * 10], 4) == [(0, 1), (1, 11)]
    assert cut([*[Segment(1, 1e-6)] * 10, Segment(1, 1e-3)], 4) == [(10, 11), (0, 10)]


def test_work_without_cost_is_one_part() -> None:
    assert sorted(cut([Segment(5, 0.0), Segment(2, 0.0)], 3)) == [(0, 5), (5, 7)]


def test_segments_of_a_launch_cost_what_their_uses_do() -> None:
    program = lower_launch(launches.wide_pack().sink, AVX2)
    [[small, large, other]] = launch_segments(program)
    assert small == other
    assert large.blocks == program.programs[0].grid > 1
    assert large.blocks * large.seconds > 100 * small.seconds
    whole = kernel_segment(program.programs[0])
    assert large.blocks * large.seconds == pytest.approx(whole.blocks * whole.seconds, rel=0.01)
