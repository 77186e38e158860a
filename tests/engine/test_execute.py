"""Running schedules: temporary buffers lie where the plan says, also in captured programs."""

from __future__ import annotations

import gc

import numpy as np
import pytest

from gradlet import Tensor, jit
from gradlet.engine import execute
from gradlet.runtime.buffer import buffer_of
from gradlet.runtime.counters import GlobalCounters
from gradlet.schedule.calls import Schedule


def chain(x: Tensor, count: int) -> Tensor:
    for _ in range(count):
        x = (x @ x).contiguous() * 0.125
    return x


def values(seed: int) -> np.ndarray:
    return np.random.default_rng(seed).uniform(-1, 1, (40, 40)).astype(np.float32)


def expected(x: np.ndarray, count: int) -> np.ndarray:
    for _ in range(count):
        x = (x @ x) * np.float32(0.125)
    return x


def test_a_schedule_takes_the_planned_bytes() -> None:
    x = Tensor(values(0)).realize()
    plan = execute.schedule([chain(x, 6).uop])
    gc.collect()
    before = GlobalCounters.mem_used
    execute.run(plan)
    assert GlobalCounters.mem_used - before == plan.memory.peak + plan.memory.results
    assert 0 < plan.memory.peak < plan.memory.unshared
    starts = {buffer_of(node).address - offset for node, offset in plan.memory.places.items()}
    assert len(starts) == 1
    del plan
    gc.collect()
    assert GlobalCounters.mem_used == before


def test_a_captured_program_keeps_one_arena() -> None:
    @jit
    def function(x: Tensor) -> tuple[Tensor, Tensor]:
        y = chain(x, 6).realize()
        return chain(y, 2), y + 1

    inputs = [Tensor(values(seed)).realize() for seed in range(5)]
    results = [function(inputs[0])]
    gc.collect()
    before = GlobalCounters.mem_used
    results += [function(x) for x in inputs[1:]]
    gc.collect()
    assert GlobalCounters.mem_used - before == 4 * 2 * 40 * 40 * 4
    for seed, (last, middle) in enumerate(results):
        y = expected(values(seed), 6)
        np.testing.assert_allclose(middle.numpy(), y + 1, rtol=1e-4, atol=1e-5)
        np.testing.assert_allclose(last.numpy(), expected(y, 2), rtol=1e-3, atol=1e-5)


def test_schedules_of_one_capture_share_their_arena(monkeypatch: pytest.MonkeyPatch) -> None:
    plans: list[Schedule] = []
    run = execute.run

    def spy(plan: Schedule) -> None:
        if execute.recording():
            plans.append(plan)
        run(plan)

    @jit
    def function(x: Tensor) -> Tensor:
        y = chain(x, 6).realize()
        z = chain(y, 3).realize()
        return (chain(z, 4) + y).realize()

    monkeypatch.setattr(execute, "run", spy)
    for seed in range(4):
        result = function(Tensor(values(seed)).realize())
        y = expected(values(seed), 6)
        np.testing.assert_allclose(result.numpy(), expected(expected(y, 3), 4) + y, rtol=1e-3, atol=1e-5)
    assert len(plans) == 3 and len({plan.memory.peak for plan in plans}) == 1
    starts = {buffer_of(n).address - offset for plan in plans for n, offset in plan.memory.places.items()}
    assert len(starts) == 1


def test_a_result_of_one_schedule_outlives_its_arena() -> None:
    x = Tensor(values(3)).realize()
    y = chain(x, 4).realize()
    for _ in range(3):
        chain(x, 5).realize()
    np.testing.assert_allclose(y.numpy(), expected(values(3), 4), rtol=1e-3, atol=1e-5)
