"""Sums that select one element: what is recognised, what only looks like it, and that values stay the same."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from gradlet import Tensor, dtypes
from gradlet.base import settings
from gradlet.graph.allocation import COUNTER_NUMBER
from gradlet.graph.node import toposort
from gradlet.ops.op import Op
from gradlet.schedule.calls import KernelCall
from gradlet.schedule.pick import pick_selected, position_of
from gradlet.schedule.traffic import traffic_of

IDS = np.array([3, 0, 6, -1, 7, 2], np.int32)
NUMBERS = np.random.default_rng(0).standard_normal((6, 7)).astype(np.float32)
TABLE = np.random.default_rng(1).standard_normal((7, 5)).astype(np.float32)
MANY = np.random.default_rng(2).integers(0, 7, (6, 7)).astype(np.int32)
HOT = (IDS[:, None] == np.arange(7)).astype(np.float32)


def held(array: np.ndarray[Any, Any]) -> Tensor:
    return Tensor(array).contiguous().realize()


def is_read(result: Tensor) -> bool:
    """Whether no sum over the selected axis is left."""
    return not any(n.op is Op.REDUCE_AXES for n in toposort((pick_selected(result.uop),)))


def ids() -> Tensor:
    return held(IDS).unsqueeze(1)


def exp_sum(x: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    return np.exp(x).sum(1, keepdims=True)


SELECTIONS: dict[str, tuple[Callable[[], Tensor], Any]] = {
    "one_hot @ W": (lambda: held(IDS).one_hot(7).float() @ held(TABLE), HOT @ TABLE),
    "where": (lambda: (ids() == Tensor.arange(7)).where(held(NUMBERS), 0).sum(1), (HOT * NUMBERS).sum(1)),
    "mask times values": (lambda: ((Tensor.arange(7) == ids()) * held(NUMBERS)).sum(1), (HOT * NUMBERS).sum(1)),
    "inside more": (
        lambda: ((ids() == Tensor.arange(7)) * held(NUMBERS)).sum(1) * 2 + 1,
        (HOT * NUMBERS).sum(1) * 2 + 1,
    ),
    "three factors": (
        lambda: (held(NUMBERS) * held(IDS).one_hot(7) * held(NUMBERS)).sum(1),
        (HOT * NUMBERS * NUMBERS).sum(1),
    ),
    "counting backwards": (
        lambda: (Tensor.arange(7).flip(0) == ids()).where(held(NUMBERS), 0).sum(1),
        (HOT[:, ::-1] * NUMBERS).sum(1),
    ),
    "counting from one": (
        lambda: (Tensor.arange(1, 8) == ids()).where(held(NUMBERS), 0).sum(1),
        ((IDS[:, None] == np.arange(1, 8)) * NUMBERS).sum(1),
    ),
    "64-bit numbers": (
        lambda: (Tensor.arange(7).cast("int64") == ids().cast("int64")).where(held(NUMBERS), 0).sum(1),
        (HOT * NUMBERS).sum(1),
    ),
    "along columns": (
        lambda: (Tensor.arange(6).unsqueeze(1) == held(MANY[0])).where(held(NUMBERS), 0).sum(0),
        ((np.arange(6)[:, None] == MANY[0]) * NUMBERS).sum(0),
    ),
    "one number": (lambda: (Tensor.arange(7) == 3).where(held(NUMBERS), 0).sum(1), NUMBERS[:, 3]),
    "how often": (lambda: (Tensor.arange(7) == ids()).cast("int32").sum(1), HOT.sum(1)),
    "a computed value": (lambda: (held(NUMBERS).exp() * held(IDS).one_hot(7)).sum(1), (np.exp(NUMBERS) * HOT).sum(1)),
}

NEAR_MISSES: dict[str, tuple[Callable[[], Tensor], Any]] = {
    "every second number": (
        lambda: (Tensor.arange(0, 14, 2) == ids()).where(held(NUMBERS), 0).sum(1),
        ((IDS[:, None] == np.arange(0, 14, 2)) * NUMBERS).sum(1),
    ),
    "floats": (
        lambda: (Tensor.arange(7).float() + 0.5 == ids() + 0.5).where(held(NUMBERS), 0).sum(1),
        (HOT * NUMBERS).sum(1),
    ),
    "another number for every position": (
        lambda: (Tensor.arange(7) == held(MANY)).where(held(NUMBERS), 0).sum(1),
        ((np.arange(7) == MANY) * NUMBERS).sum(1),
    ),
    "all but one": (
        lambda: (Tensor.arange(7) != ids()).where(held(NUMBERS), 0).sum(1),
        ((1 - HOT) * NUMBERS).sum(1),
    ),
    "another value elsewhere": (
        lambda: (Tensor.arange(7) == ids()).where(held(NUMBERS), 1).sum(1),
        np.where(HOT > 0, NUMBERS, 1).sum(1),
    ),
    "the largest": (
        lambda: (Tensor.arange(7) == ids()).where(held(NUMBERS), 0).max(1),
        (HOT * NUMBERS).max(1),
    ),
    "a table that only looks like counting": (
        lambda: (held(np.arange(7, dtype=np.int32)) == ids()).where(held(NUMBERS), 0).sum(1),
        (HOT * NUMBERS).sum(1),
    ),
    "less": (
        lambda: (Tensor.arange(7) < ids()).where(held(NUMBERS), 0).sum(1),
        ((np.arange(7) < IDS[:, None]) * NUMBERS).sum(1),
    ),
}


@pytest.mark.parametrize("name", SELECTIONS)
def test_selections_become_reads(name: str) -> None:
    build, wanted = SELECTIONS[name]
    assert is_read(build())
    got = build().numpy()
    if "computed" in name:
        np.testing.assert_allclose(got, wanted, rtol=1e-6)
    else:
        np.testing.assert_array_equal(got, wanted.astype(got.dtype))


@pytest.mark.parametrize("name", NEAR_MISSES)
def test_near_misses_stay_sums(name: str) -> None:
    build, wanted = NEAR_MISSES[name]
    assert not is_read(build())
    np.testing.assert_allclose(build().numpy(), wanted, rtol=1e-6, atol=1e-6)


def test_sums_over_more_axes_keep_the_others() -> None:
    result = (held(NUMBERS).log_softmax(1) * held(IDS).one_hot(7)).sum()
    wanted = ((NUMBERS - np.log(exp_sum(NUMBERS))) * HOT).sum()
    assert sum(n.op is Op.GATHER for n in toposort((pick_selected(result.uop),))) == 1
    np.testing.assert_allclose(result.item(), wanted, rtol=1e-5)


def test_numbers_beyond_the_counting_table() -> None:
    table = np.random.default_rng(3).standard_normal((5000, 3)).astype(np.float32)
    numbers = np.array([0, 4999, 4096, 4095, 5000, -7], np.int32)
    result = held(numbers).one_hot(5000).float() @ held(table)
    assert is_read(result)
    wanted = np.where(((numbers >= 0) & (numbers < 5000))[:, None], table[numbers % 5000], 0)
    (call,) = result.schedule().calls
    assert traffic_of(call).operations <= 16 * result.numel()
    np.testing.assert_array_equal(result.numpy(), wanted)


def test_strict_floats_keep_products_but_not_selects() -> None:
    with settings.scope(STRICT_FLOAT=1):
        assert not is_read(SELECTIONS["one_hot @ W"][0]())
        assert is_read(SELECTIONS["where"][0]())
        infinite = np.full((7, 2), np.inf, np.float32)
        assert np.isnan((held(IDS).one_hot(7).float() @ held(infinite)).numpy()).all()


def test_an_equal_graph_over_another_table_has_its_own_schedule() -> None:
    """Counting is a fact about one buffer: a cached schedule must not be used with another."""
    for table in (Tensor.arange(4096), held(np.arange(4096, dtype=np.int32)[::-1].copy())):
        got = (table[:7] == ids()).where(held(NUMBERS), 0).sum(1)
        numbers = table.numpy()[:7]
        np.testing.assert_array_equal(got.numpy(), ((numbers == IDS[:, None]) * NUMBERS).sum(1))


def test_positions_are_followed_through_movement() -> None:
    table = Tensor.arange(24)
    cases = [
        (table.reshape(4, 6), (6, 1), 0), (table.reshape(4, 6).permute(1, 0), (1, 6), 0),
        (table.reshape(2, 2, 6)[1], (6, 1), 12), (table.reshape(4, 6)[:, ::2], (6, 2), 0),
        (table.flip(0), (-1,), 23), (table.reshape(1, 24).expand(3, 24), (0, 1), 0), (table * 3 + 2, (3,), 2),
        (table.reshape(4, 6).reshape(2, 12), (12, 1), 0), (table.reshape(4, 6).permute(1, 0).reshape(24), None, 0),
        (table.cast("int8") * 20, None, 0), (table.pad([(1, 0)]), None, 0),
    ]  # fmt: skip
    for tensor, steps, constant in cases:
        line = position_of(tensor.uop, 24)
        assert (None if line is None else line.steps) == steps, tensor
        assert line is None or line.constant == constant


@pytest.mark.usefixtures("two_cores")
def test_the_gradient_of_a_selection_adds_to_the_selected() -> None:
    rng = np.random.default_rng(4)
    numbers = rng.integers(-2, 102, 33).astype(np.int32)
    g, table = [rng.integers(-9, 9, shape).astype(np.float32) for shape in ((33, 5), (100, 5))]
    hot = (numbers[:, None] == np.arange(100)).astype(np.float32)
    weights, ids_ = held(table), held(numbers)
    (grad,) = (ids_.one_hot(100).float() @ weights).gradient(weights, gradient=held(g))
    for result, wanted in [
        (grad, hot.T @ g), (held(g).T @ ids_.one_hot(100).float(), g.T @ hot), (ids_.one_hot(100).sum(0), hot.sum(0)),
        ((Tensor.arange(100).unsqueeze(1) == ids_).cast("int32").sum(1), hot.sum(0)),
    ]:  # fmt: skip
        assert any(n.op is Op.SCATTER for n in toposort((pick_selected(result.uop),)))
        assert sum(traffic_of(call).operations for call in result.schedule().calls) <= 33 * 5 * 2
        np.testing.assert_array_equal(result.numpy(), wanted)


def test_few_positions_and_rows_of_their_own_are_no_scatter() -> None:
    few = held(IDS).one_hot(8).sum(0)
    rows = (held(MANY).one_hot(100).float().unsqueeze(-1) * held(MANY.astype(np.float32)).reshape(6, 7, 1, 1)).sum(1)
    for result in (few, rows):
        assert not any(n.op is Op.SCATTER for n in toposort((pick_selected(result.uop),)))
    hot = (MANY[..., None] == np.arange(100)).astype(np.float32)
    np.testing.assert_array_equal(few.numpy(), (IDS[:, None] == np.arange(8)).sum(0))
    np.testing.assert_array_equal(rows.numpy()[..., 0], (hot * MANY[..., None]).sum(1))


def test_lanes_of_a_gpu_count_positions() -> None:
    """Which class a column is, is no table: neither stored by a kernel of its own nor read for every row."""
    logits = Tensor.empty(64, 5000, dtype="bfloat16", device="NULL:sm_90")
    targets = Tensor.empty(64, dtype="int32", device="NULL:sm_90")
    loss = logits.float().sparse_categorical_crossentropy(targets)
    calls = [c for c in Tensor.schedule(loss, *loss.gradient(logits)).calls if isinstance(c, KernelCall)]
    assert not any(buffer.arg.number == COUNTER_NUMBER for call in calls for buffer in call.buffers)
    assert not any(
        buffer.dtype is dtypes.int32 and buffer.arg.size >= 4096 for call in calls for buffer in call.buffers
    )
