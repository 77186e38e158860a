"""Running combinations: how they are lowered, cut and fused, and what they cost."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from gradlet import Tensor
from gradlet.base.dtype import dtypes
from gradlet.graph.node import UOp, mk, toposort
from gradlet.ops.op import AxisKind, Op, ScanArg
from gradlet.schedule.calls import KernelCall
from gradlet.schedule.scan import BLOCKS_PER_CORE, MIN_SIZE, split
from gradlet.schedule.traffic import traffic_of
from tests.schedule.helpers import buffer, tensor

F32 = dtypes.float32

SHAPES = [(1,), (257,), (3, 1025), (5, 7, 4), (2, 1), (0, 3)]


def held(array: np.ndarray[Any, Any]) -> Tensor:
    return Tensor(array).contiguous().realize()


def kernels(*results: Tensor) -> list[KernelCall]:
    calls = results[0].schedule(*results[1:]).calls
    assert all(isinstance(call, KernelCall) for call in calls)
    return [call for call in calls if isinstance(call, KernelCall)]


def values(shape: tuple[int, ...]) -> np.ndarray[Any, Any]:
    return np.random.default_rng(3).integers(-4, 5, shape).astype(np.float32)


@pytest.mark.parametrize("shape", SHAPES)
def test_running_sums_and_maxima(shape: tuple[int, ...]) -> None:
    x = values(shape)
    for axis in range(len(shape)):
        np.testing.assert_array_equal(Tensor(x).cumsum(axis).numpy(), np.cumsum(x, axis))
        np.testing.assert_array_equal(Tensor(x).cummax(axis)[0].numpy(), np.maximum.accumulate(x, axis))
        np.testing.assert_array_equal(Tensor(x).cummin(axis)[0].numpy(), np.minimum.accumulate(x, axis))


def test_a_scan_of_a_view_and_the_view_of_a_scan() -> None:
    x = values((6, 9))
    np.testing.assert_array_equal(Tensor(x).T[::2, ::-1].cumsum(1).numpy(), np.cumsum(x.T[::2, ::-1], 1))
    np.testing.assert_array_equal(Tensor(x).cumsum(0)[1:4, ::3].numpy(), np.cumsum(x, 0)[1:4, ::3])
    np.testing.assert_array_equal(Tensor(x).cumsum(1).T.contiguous().numpy(), np.cumsum(x, 1).T)
    np.testing.assert_array_equal(Tensor(x).cumsum(0).cumsum(1).sum(0).numpy(), np.cumsum(np.cumsum(x, 0), 1).sum(0))


@pytest.mark.parametrize("scale", [None, 2.0])
def test_places_of_a_scan_that_depend_on_other_places_of_it(scale: float | None) -> None:
    x = np.random.default_rng(5).random(50).astype(np.float32)
    running = Tensor(x).cumsum() if scale is None else Tensor(x).cumsum() * scale
    sums = np.cumsum(x) * np.float32(scale or 1.0)
    place, wanted = Tensor(np.arange(50, dtype=np.int32)), np.arange(50)
    for _ in range(3):
        place = (running.gather_rows(place) < 9.0).where(place + 2, place // 2)
        wanted = np.where(np.where(wanted < 50, sums[np.minimum(wanted, 49)], 0) < 9.0, wanted + 2, wanted // 2)
    np.testing.assert_array_equal(place.numpy(), wanted)


@pytest.mark.parametrize("size", [MIN_SIZE - 1, MIN_SIZE, MIN_SIZE + 1, 3 * MIN_SIZE + 17])
def test_long_axes(size: int) -> None:
    x = np.random.default_rng(1).integers(-9, 10, size)
    np.testing.assert_array_equal(Tensor(x).cumsum().numpy(), np.cumsum(x))
    np.testing.assert_array_equal(Tensor(x).cummin()[0].numpy(), np.minimum.accumulate(x))
    y = np.random.default_rng(1).choice(np.array([-1, 1, 1], np.int64), (2, size))
    np.testing.assert_array_equal(Tensor(y).cumprod(1).numpy(), np.cumprod(y, 1))


def test_a_running_sum_with_what_is_around_it_is_one_kernel_with_an_addition_an_element() -> None:
    x = held(values((64, 1024)))
    (call,) = kernels(x.cumsum(1))
    assert traffic_of(call).operations == 64 * 1024
    (call,) = kernels((x * 2).cumsum(1) + 1)
    assert traffic_of(call).operations == 3 * 64 * 1024
    (call,) = kernels(x.softmax(1).cumsum(1))
    kinds = [n.arg.kind for n in toposort((call.ast,)) if n.op is Op.RANGE]
    assert AxisKind.ORDERED in kinds
    (call,) = kernels(x.logcumsumexp(0))
    # exp twice, a product and a sum, a logarithm, and a few for the running maximum: never a row for each element.
    assert traffic_of(call).operations < 24 * 64 * 1024


def test_two_directions_never_share_a_kernel() -> None:
    x = held(values((8, 8)))
    rows, columns = x.cumsum(1), x.cumsum(0)
    assert [len(c.written) for c in kernels(rows, columns)] in ([1, 1], [2])
    np.testing.assert_array_equal(rows.numpy(), np.cumsum(x.numpy(), 1))
    np.testing.assert_array_equal(
        (x.cumsum(1) + x.cumsum(0)).numpy(), np.cumsum(x.numpy(), 1) + np.cumsum(x.numpy(), 0)
    )


def test_a_scan_in_place() -> None:
    x = values((4, 33))
    t = held(x)
    t.assign(t.cumsum(1))
    np.testing.assert_array_equal(t.numpy(), np.cumsum(x, 1))


def test_exclusive_and_reversed() -> None:
    x = values((3, 9))
    node = Tensor(x).running(Op.ADD, 1, True)
    np.testing.assert_array_equal(node.numpy(), np.cumsum(x, 1) - x)
    both = Tensor(x).running(Op.ADD, 1, True) * Tensor(x).running(Op.ADD, 1)
    np.testing.assert_array_equal(both.numpy(), (np.cumsum(x, 1) - x) * np.cumsum(x, 1))


def test_split_makes_blocks_for_every_core() -> None:
    node = mk(Op.SCAN, F32, (buffer(MIN_SIZE), UOp.const(F32, 0.0)), ScanArg(Op.ADD, 0))
    cut = split(node, 4)
    scans = [n for n in toposort((cut,)) if n.op is Op.SCAN]
    assert [s.shape for s in scans] == [(4 * BLOCKS_PER_CORE,), (4 * BLOCKS_PER_CORE, MIN_SIZE // 4 // BLOCKS_PER_CORE)]
    assert scans[0].arg.exclusive and cut.shape == node.shape
    many = mk(Op.SCAN, F32, (tensor(64, MIN_SIZE), UOp.const(F32, 0.0)), ScanArg(Op.ADD, 1))
    assert split(many, 4) is many
