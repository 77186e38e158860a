"""Schedules from the cache: values, launches and memory are those of the first time, whoever looks on."""

from __future__ import annotations

import gc

import numpy as np
import pytest

from gradlet import Tensor, Variable
from gradlet.base import events
from gradlet.base.errors import ArgumentError
from gradlet.base.settings import Context
from gradlet.engine import execute
from gradlet.runtime.buffer import buffer_of
from gradlet.runtime.counters import GlobalCounters
from gradlet.schedule import create


def launches(function) -> tuple[object, int]:
    before = GlobalCounters.kernels
    result = function()
    return result, GlobalCounters.kernels - before


def numbers(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).uniform(-1, 1, shape).astype(np.float32)


@pytest.mark.parametrize("shape", [(1,), (3, 5), (1, 7), (16,)])
@pytest.mark.parametrize("device", ["CPU", "PYTHON"])
def test_every_time_gives_the_values_of_its_own_inputs(shape: tuple[int, ...], device: str) -> None:
    for seed in range(4):
        a, b = numbers(*shape, seed=seed), numbers(*shape, seed=seed + 9)
        x, y = Tensor(a, device=device), Tensor(b, device=device)
        z = (x * 2 + y).realize()
        np.testing.assert_allclose(z.numpy(), a * 2 + b, rtol=1e-6)
        view = (z.reshape(-1)[:1] + 1).realize()
        np.testing.assert_allclose(view.numpy(), (a * 2 + b).reshape(-1)[:1] + 1, rtol=1e-6)


def test_who_holds_the_same_value_is_told() -> None:
    for _ in range(3):
        x = Tensor(numbers(4)).realize()
        first = x + 1
        second = x + 1  # the same node
        user = first * 3
        _, ran = launches(first.realize)
        assert ran == 1 and second.is_realized
        value, ran = launches(user.numpy)
        assert ran == 1
        np.testing.assert_allclose(value, (x.numpy() + 1) * 3, rtol=1e-6)


def test_a_value_that_a_graph_holds_is_not_computed_again() -> None:
    for _ in range(3):
        x = Tensor(numbers(6)).realize()
        middle = (x * 0.5).contiguous()
        user = middle + 2
        middle.realize()
        assert base_of(user) is not base_of(middle)
        _, ran = launches(user.realize)
        assert ran == 1
        np.testing.assert_allclose(user.numpy(), x.numpy() * 0.5 + 2, rtol=1e-6)


def base_of(tensor: Tensor) -> object:
    return execute.base_buffer(tensor.uop)


def test_writes_happen_once() -> None:
    x = Tensor(np.zeros(4, np.float32)).realize()
    total = np.zeros(4, np.float32)
    for turn in range(5):
        before = x * 1  # keeps the value it was built on
        x.assign(x + turn)
        old = total.copy()
        total += turn
        x.realize()
        np.testing.assert_array_equal(x.numpy(), total)
        np.testing.assert_array_equal(before.numpy(), old)
        x.realize()
        np.testing.assert_array_equal(x.numpy(), total)


def test_a_step_overwrites_and_forgets_as_the_first_time() -> None:
    weight = Tensor(np.ones((3, 3), np.float32)).realize()
    expected = np.ones((3, 3), np.float32)
    seen: list[int] = []
    for turn in range(5):
        product = weight @ weight
        kept = product.sum()
        weight.assign(weight * 0.5 + product * 0.1)
        _, ran = launches(weight.realize)
        seen.append(ran)
        np.testing.assert_allclose(kept.numpy(), (expected @ expected).sum(), rtol=1e-5)
        expected = expected * 0.5 + expected @ expected * 0.1
        np.testing.assert_allclose(weight.numpy(), expected, rtol=1e-5, err_msg=str(turn))
    assert len(set(seen[1:])) == 1


def test_variables_get_their_values() -> None:
    n = Variable("n", 1, 8)
    x = Tensor(numbers(8)).realize()
    for size in (3, 5, 8, 3):
        part = x[: n.bind(size)] * 2
        assert part.sum().item() == pytest.approx(2 * x.numpy()[:size].sum(), abs=1e-5)


def test_one_variable_with_two_values_is_refused_every_time() -> None:
    n = Variable("m", 1, 8)
    x = Tensor(numbers(8)).realize()
    for _ in range(3):
        assert (x.sum() * n.bind(2) + n.bind(2)).item() == pytest.approx(2 * x.numpy().sum() + 2, abs=1e-5)
        with pytest.raises(ArgumentError, match="bound to"):
            (x.sum() * n.bind(2) + n.bind(3)).realize()


def test_listeners_hear_of_hits_and_launches() -> None:
    x = Tensor(numbers(5)).realize()
    (x - 3).realize()
    for _ in range(2):
        with events.record() as seen:
            (x - 3).realize()
        made = [event for event in seen if isinstance(event, events.ScheduleMade)]
        assert [event.cached for event in made] == [True] and made[0].kernels == 1
        assert sum(isinstance(event, events.KernelRan) for event in seen) == 1


def test_debug_shows_each_launch_of_a_hit(capsys: pytest.CaptureFixture[str]) -> None:
    x = Tensor(numbers(5)).realize()
    (x - 4).realize()
    with Context(DEBUG=2):
        (x - 4).realize()
    assert "e_5" in capsys.readouterr().out


def test_memory_goes_when_results_go() -> None:
    x = Tensor(numbers(40, 40)).realize()

    def step() -> Tensor:
        y = (x @ x).contiguous() @ x
        return (y.contiguous() @ x).realize()

    kept = [step() for _ in range(2)]
    gc.collect()
    before = GlobalCounters.mem_used
    kept += [step() for _ in range(3)]
    assert GlobalCounters.mem_used - before == 3 * 40 * 40 * 4
    del kept
    gc.collect()
    assert GlobalCounters.mem_used == before - 2 * 40 * 40 * 4
    assert buffer_of(base_of(x)).is_allocated  # type: ignore[arg-type]


def test_hits_do_not_depend_on_how_many_tensors_live(monkeypatch: pytest.MonkeyPatch) -> None:
    x = Tensor(numbers(4)).realize()
    (x + 5).realize()
    asked: list[int] = []
    everybody = Tensor.all_live
    monkeypatch.setattr(Tensor, "all_live", staticmethod(lambda: asked.append(1) or everybody()))
    (x + 5).realize()
    assert asked == []
    y = x + 5
    z = y * 2
    y.realize()  # somebody else holds it
    assert asked == [1]
    assert z.tolist() == pytest.approx(((x.numpy() + 5) * 2).tolist())


def test_the_least_recent_schedules_go_first(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gradlet.schedule.cache.MAX_ENTRIES", 3)
    create.forget_schedules()
    x = Tensor(numbers(4)).realize()
    for number in (1, 2, 3):
        (x * number + 0.5).realize()
    (x * 1 + 0.5).realize()
    before = list(create._cache.entries)
    (x * 9 + 0.5).realize()
    after = list(create._cache.entries)
    assert len(after) == 3 and before[0] in after and before[1] not in after
