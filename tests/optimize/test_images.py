"""Blocks of convolutions on matrix units: how many pixels they really have, and so how large they are to be."""

from __future__ import annotations

import pytest

from gradlet import Tensor
from gradlet.codegen.pipeline import schedulable
from gradlet.graph.node import UOp
from gradlet.ops.op import AxisKind
from gradlet.ops.opt import OptKind
from gradlet.optimize import heuristic
from gradlet.optimize.actions.language import apply
from gradlet.optimize.analysis import KernelFacts, range_size
from gradlet.optimize.images import image_of, padded_pixels, place_image
from gradlet.target.target import SM_90


def convolution(many: int, side: int, channels: int, stride: int) -> UOp:
    x, w = (
        Tensor.empty(*shape, device="NULL:sm_90", dtype="bfloat16").permute(0, 3, 1, 2)
        for shape in ((many, side, side, channels), (channels, 3, 3, channels))
    )
    result = x.conv2d(w, padding=1, stride=stride).permute(0, 2, 3, 1).contiguous()
    return schedulable(result.schedule().calls[-1].ast, SM_90)


CASES = [(64, 56, 256, 1), (64, 56, 256, 2), (32, 28, 512, 1), (8, 13, 128, 1)]


@pytest.mark.parametrize("rows", [64, 128])
@pytest.mark.parametrize("case", CASES)
def test_pixels_of_all_blocks_are_counted(case: tuple[int, int, int, int], rows: int) -> None:
    facts = KernelFacts(convolution(*case))
    found = image_of(facts)
    assert found is not None
    placed = place_image(facts, found, SM_90, rows, 128)
    blocks = 1
    for r in KernelFacts(apply(facts.sink, placed.opts.opts, SM_90)).loops:
        if r.arg.kind is AxisKind.PARALLEL:
            blocks *= range_size(r) or 1
    columns = -(-case[2] // 128)
    assert blocks * rows == padded_pixels(found, rows) * columns


@pytest.mark.parametrize(("case", "rows"), [(CASES[0], 128), (CASES[1], 64), (CASES[2], 64)])
def test_blocks_are_those_that_searches_found(case: tuple[int, int, int, int], rows: int) -> None:
    """docs/search.md: 448 blocks of 128 pixels take four turns, 896 of 64 take seven."""
    opts = heuristic.choose(convolution(*case), SM_90)
    (unit,) = [o for o in opts if o.kind is OptKind.TENSORIZE]
    lanes = [o.amount for o in opts if o.kind is OptKind.THREAD and o.axis == unit.detail.warps]  # type: ignore[union-attr]
    assert lanes == [rows // 16]
