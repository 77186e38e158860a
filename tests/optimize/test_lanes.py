"""Schedules of kernels for a GPU: how many workgroups and lanes there are where that is not plain."""

from __future__ import annotations

from math import prod

import numpy as np
import pytest

from gradlet import Tensor
from gradlet.base.settings import scope
from gradlet.codegen.pipeline import lower, schedulable
from gradlet.graph.program import LinearProgram
from gradlet.ops.op import AxisKind, Op
from gradlet.ops.opt import OptKind
from gradlet.optimize.actions import language as actions
from gradlet.optimize.analysis import KernelFacts, nesting_order, range_size
from gradlet.schedule.calls import KernelCall
from gradlet.target.target import SM_90

D = "NULL:sm_90"


def rows_added(table: int, width: tuple[int, ...], count: int) -> LinearProgram:
    """The kernel that adds rows up for each entry of a table: what reading these entries has as its gradient."""
    weights = Tensor.empty(table, *width, device=D)
    taken = weights[Tensor.empty(count, device=D, dtype="int32")]
    (gradient,) = (taken * Tensor.empty(*taken.shape, device=D)).sum().gradient(weights)
    calls = [c for c in gradient.schedule().calls if isinstance(c, KernelCall) and c.ast.arg.name.startswith("s_")]
    return lower(calls[-1].ast, SM_90)


@pytest.mark.parametrize(
    ("table", "width", "count", "parts", "lanes"),
    [
        (50304, (768,), 16384, 256, 768),  # two parts a multiprocessor, a lane an element of a row
        (50304, (4096,), 4096, 64, 1024),  # rows of four workgroups
        (1000, (100,), 500, 256, 128),
        (40, (96,), 500, 32, 96),  # no more parts than rows
        (100000, (), 1 << 20, 65536, 256),  # single elements: lanes have parts of their own
        (100000, (3,), 4096, 65536, 256),
    ],
)
def test_rows_are_dealt_out(table: int, width: tuple[int, ...], count: int, parts: int, lanes: int) -> None:
    found = rows_added(table, width, count)
    assert [o.amount for o in found.opts if o.kind is OptKind.DEAL] == [parts]
    assert found.threads == lanes
    assert found.grid >= SM_90.cores or table < SM_90.cores


def test_few_rows_to_add_are_not_worth_parts() -> None:
    assert not any(o.kind is OptKind.DEAL for o in rows_added(1000, (64,), 32).opts)


@pytest.mark.parametrize("shape", [(256, 96), (300, 64), (1000, 40)])
def test_rows_beside_column_sums_are_stored_by_all_lanes(shape: tuple[int, int]) -> None:
    """A gradient that is stored as it is, and summed: one warp of sixteen did the first alone."""
    rng = np.random.default_rng(0)
    arrays = [rng.standard_normal(s).astype(np.float32) for s in (shape, shape, (shape[0], 1))]

    def values(device: str) -> list[Tensor]:
        g, h, scale = (Tensor(x, device=device) for x in arrays)
        return [g + h + scale, g.sum(0), (g * h).sum(0)]

    with scope(TC="emulate"):
        found = values("PYTHON")
        calls = found[0].schedule(*found[1:]).calls
        programs = [lower(c.ast, SM_90) for c in calls if isinstance(c, KernelCall)]
        lanes = {prod(size for _, size in p.lanes) for p in programs if p.params[0].arg.size == prod(shape)}
        assert lanes == {programs[0].threads}
        found[0].realize(*found[1:])
    for one, other in zip(found, values("CPU"), strict=True):
        np.testing.assert_allclose(one.numpy(), other.numpy(), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("columns", [768, 1000])
def test_lanes_share_all_sums_of_a_norms_gradient(columns: int) -> None:
    """Statistics that a row has one of each lie side by side for rows; that is no reason to leave a row to one lane."""
    x = Tensor.empty(4096, columns, device=D, dtype="bfloat16")
    weight, bias = (Tensor.empty(columns, device=D, dtype="bfloat16") for _ in range(2))
    result = (x.layernorm() * weight + bias).square().sum()
    calls = Tensor.schedule(*result.gradient(x, weight, bias)).calls
    programs = [lower(call.ast, SM_90) for call in calls if isinstance(call, KernelCall)]
    whole = [p.name for p in programs if any(n.op is Op.RANGE and range_size(n) == columns for n in p.uops)]
    assert programs and not whole


@pytest.mark.parametrize("shape", [(16384, 2048), (16384, 1000)])
def test_rows_are_not_stored_by_the_lanes_of_a_column_sum(shape: tuple[int, int]) -> None:
    """They would store them a few bytes at a time."""
    x, factor = (Tensor.empty(*shape, device=D, dtype="bfloat16") for _ in range(2))
    product = x * factor
    calls = Tensor.schedule(product, product.sum(0)).calls
    programs = [lower(call.ast, SM_90) for call in calls if isinstance(call, KernelCall)]
    sums = [p for p in programs if any(n.op is Op.ACC for n in p.uops)]
    assert sums and all(len(p.written) == 1 for p in sums)


def test_parts_of_column_sums_are_rounded_once() -> None:
    x = Tensor.empty(16, 1024, 768, device=D, dtype="bfloat16")
    calls = [c for c in x.sum((0, 1)).schedule().calls if isinstance(c, KernelCall)]
    stored = [n.src[1].dtype.scalar.name for c in calls for n in c.ast.src]
    assert stored == ["float32", "bfloat16"]


@pytest.mark.parametrize(
    "shape", [(4096, 64), (2, 30, 40, 48), (64, 9, 7, 3, 64), (37, 41, 24)], ids=lambda shape: "x".join(map(str, shape))
)
def test_neighbours_of_several_rows_in_a_workgroup_are_those_along_memory(shape: tuple[int, ...]) -> None:
    """Rows too short for a workgroup share one: its lanes run along a row before they go to the next."""
    x = Tensor.empty(*shape, dtype="bfloat16", device=D)
    y = (x.cast("float32") * Tensor.empty(shape[-1], device=D) + 1).cast("bfloat16")
    (call,) = y.schedule().calls
    program = lower(call.ast, SM_90)
    facts = KernelFacts(actions.apply(schedulable(call.ast, SM_90), program.opts, SM_90))
    lanes = sorted((r for r in facts.loops if r.arg.kind is AxisKind.THREAD), key=nesting_order)
    width = prod(o.amount for o in program.opts if o.kind is OptKind.VECTORIZE)
    steps = [facts.stride(access, lanes[-1]) for access in facts.accesses if lanes[-1] in access.ranges]
    assert len(lanes) == 2 and steps and all(step == width for step in steps)


def test_lanes_along_three_taps_would_be_idle() -> None:
    x = Tensor.empty(64, 3, 3, 64, dtype="bfloat16", device=D)
    y = (x.permute(0, 2, 1, 3) * 2).contiguous()
    program = lower(y.schedule().calls[0].ast, SM_90)
    assert all(o.amount != 2 for o in program.opts if o.kind is OptKind.THREAD)


@pytest.mark.parametrize(("rows", "columns", "width"), [(200704, 256, 4), (200704, 64, 2), (50176, 512, 4)])
def test_groups_of_lanes_that_add_columns_up_read_wide(rows: int, columns: int, width: int) -> None:
    x = Tensor.empty(rows, columns, dtype="bfloat16", device=D)
    program = lower(x.cast("float32").sum(0).schedule().calls[0].ast, SM_90)
    assert [o.amount for o in program.opts if o.kind is OptKind.VECTORIZE] == [width]
    assert program.grid >= SM_90.cores and program.threads >= 512


@pytest.mark.parametrize(
    ("images", "inputs", "results", "side", "window", "stride"),
    [(64, 64, 64, 56, 3, 1), (32, 256, 512, 14, 3, 2), (16, 48, 100, 31, 5, 1)],
)
def test_convolutions_in_float32_go_by_blocks_of_pixels_and_channels(
    images, inputs, results, side, window, stride
) -> None:
    x, w = Tensor.empty(images, inputs, side, side, device=D), Tensor.empty(results, inputs, window, window, device=D)
    calls = x.conv2d(w, padding=window // 2, stride=stride).schedule().calls
    program = max((lower(call.ast, SM_90) for call in calls), key=lambda p: p.flops)
    assert sum(o.kind is OptKind.STAGE for o in program.opts) == 2
    assert program.grid >= SM_90.cores and program.threads == 256


def test_half_empty_blocks_are_not_taken() -> None:
    a, b = Tensor.empty(8192, 256, device=D), Tensor.empty(256, 64, device=D)
    program = lower((a @ b).schedule().calls[0].ast, SM_90)
    assert program.grid == 8192 // 64 or program.grid == 8192 // 128
    assert not any(o.kind is OptKind.SPLIT and o.amount == 128 and o.axis == 1 for o in program.opts)


def test_a_sum_over_pixels_with_few_results_is_not_for_blocks() -> None:
    x, g = Tensor.empty(2, 64, 20, 20, device=D), Tensor.empty(2, 64, 20, 20, device=D)
    w = Tensor.empty(64, 64, 3, 3, device=D)
    (gradient,) = (x.conv2d(w, padding=1) * g).sum().gradient(w)
    program = max((lower(call.ast, SM_90) for call in gradient.schedule().calls), key=lambda p: p.flops)
    assert not any(o.kind is OptKind.STAGE for o in program.opts) and program.grid >= SM_90.cores
