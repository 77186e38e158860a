"""Schedules of kernels for a GPU: how many workgroups and lanes there are where that is not plain."""

from __future__ import annotations

from math import prod

import numpy as np
import pytest

from gradlet import Tensor
from gradlet.base.settings import scope
from gradlet.codegen.pipeline import lower
from gradlet.graph.program import LinearProgram
from gradlet.ops.opt import OptKind
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
