"""Sizes and positions that are known only at launch: how far loops run, and numbers that no memory holds."""

from __future__ import annotations

import pytest

from gradlet import Tensor, Variable
from gradlet.base.dtype import dtypes
from gradlet.base.settings import Context
from gradlet.schedule.calls import KernelCall
from tests.schedule.helpers import check


@pytest.mark.parametrize("level", [0, 1, 2])
@pytest.mark.parametrize("value", [0, 1, 2])
def test_a_value_needed_in_part_and_in_full_is_computed_in_full(level: int, value: int) -> None:
    size = Variable("size", 0, 2).bind(value)
    product = Tensor.empty(3, 3) @ Tensor.empty(3, 3)
    kept = Tensor.empty(3, 3).contiguous()
    with Context(FUSE=level, SCHEDULE_CACHE=0):
        for x in (product, kept):
            check([(x - x[: size + 1].max(0).reshape(1, 3)).uop])


@pytest.mark.parametrize("level", [0, 1, 2])
@pytest.mark.parametrize("count", [2, 12])
def test_every_kernel_computes_positions_itself(level: int, count: int) -> None:
    position = Variable("position", 0, 2).bind(1) + 1
    results: list[Tensor] = []
    for i in range(count):
        x = Tensor.empty(4, 5 + i)
        read = x[position] + x[:position].sum(0)
        x[position] = x[0] * 2
        results += [read, x]
    with Context(FUSE=level, SCHEDULE_CACHE=0):
        check([t.uop for t in results])


@pytest.mark.parametrize("level", [0, 1, 2])
def test_a_row_that_depends_on_all_rows_goes_to_a_position_known_at_launch(level: int) -> None:
    x = Tensor.empty(4, 5)
    x[Variable("position", 0, 2).bind(1)] = x.sum(0) + x.flip(0)[1]
    with Context(FUSE=level, SCHEDULE_CACHE=0):
        schedule = check([x.uop])
    calls = [call for call in schedule.calls if isinstance(call, KernelCall)]
    assert all(buffer.dtype is not dtypes.index for call in calls for buffer in call.buffers)


def test_a_value_that_was_made_along_a_size_known_at_launch_is_written_through_its_views() -> None:
    x = Tensor([[1.0, 2.0, 3.0, 4.0]] * 4)
    base = Tensor.empty(4, 4)
    base.assign(x + x[: Variable("size", 0, 3).bind(1) + 1].sum(0).reshape(1, 4))
    base[:, 3:] = Tensor.ones(4, 1)
    base.T[0].assign(Tensor.zeros(4))
    assert base.tolist() == [[0.0, 6.0, 9.0, 1.0]] * 4
