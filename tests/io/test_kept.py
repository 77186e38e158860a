"""Captures of jitted functions that another process takes up: here, another object that knows nothing of the first."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from gradlet import Tensor, jit
from gradlet.base import settings
from gradlet.io.kept import Kept
from gradlet.tensor.tensor import Variable

MOST = 6


class Machine:
    """Weights, state that is written in place, and a position that is known at the call."""

    def __init__(self, seed: int = 0) -> None:
        numbers = np.random.default_rng(seed)
        self.layers = [Tensor(numbers.standard_normal((3, 3)).astype(np.float32)).realize() for _ in range(2)]
        self.seen = {"all": Tensor.zeros(MOST, 3).contiguous().realize()}
        self.traced = 0

    def step(self, x: Tensor, at: Variable, twice: bool = False) -> Tensor:
        self.seen["all"][at : at + 1] = x
        for weight in self.layers:
            x = x @ weight
        return (x * (2 if twice else 1) + self.seen["all"][: at + 1].sum(0, keepdim=True)).contiguous()


def numpy_step(machine: Machine, seen: np.ndarray, x: np.ndarray, at: int) -> np.ndarray:
    seen[at] = x[0]
    for weight in machine.layers:
        x = x @ weight.numpy()
    return x + seen[: at + 1].sum(0)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    path = tmp_path_factory.mktemp("captures")  # one for all: kernels that a process has are not written again
    with settings.scope(CACHEDIR=str(path), CACHE=True):
        yield path


def kept(machine: Machine, name: str) -> Kept:
    return Kept(jit(machine.step), machine, name)


def run(step: Kept, machine: Machine, calls: int) -> None:
    seen = machine.seen["all"].numpy().copy()
    for at in range(calls):
        x = np.random.default_rng(at + 9).standard_normal((1, 3)).astype(np.float32)
        got = step(Tensor(x), Variable("at", 0, MOST - 1).bind(at))
        np.testing.assert_allclose(got.numpy(), numpy_step(machine, seen, x, at), rtol=1e-5, atol=1e-5)
    np.testing.assert_array_equal(machine.seen["all"].numpy(), seen)


def test_another_process_traces_nothing(folder: Path) -> None:
    first, second = Machine(1), Machine(2)
    run(kept(first, "another_process_traces_nothing"), first, 3)
    step = kept(second, "another_process_traces_nothing")  # other weights, and state of its own
    run(step, second, MOST)
    assert not step.function.captures and step.function.calls == 0


def test_what_differs_is_traced(folder: Path) -> None:
    machine = Machine()
    run(kept(machine, "what_differs"), machine, 2)
    for name, args, most in (("another", (), MOST), ("what_differs", (True,), MOST), ("what_differs", (), MOST - 1)):
        step = kept(machine, name)
        step(Tensor.ones(1, 3), Variable("at", 0, most - 1).bind(0), *args)
        assert step.function.calls == 1


def test_other_tensors_in_place_of_those_found(folder: Path) -> None:
    machine = Machine()
    run(kept(machine, "other_tensors_in_place_of_those_found"), machine, 2)
    step = kept(machine, "other_tensors_in_place_of_those_found")
    run(step, machine, 1)
    assert step.function.calls == 0
    machine.layers[0] = Tensor.ones(3, 3).contiguous().realize()
    run(step, machine, 2)
    machine.layers[1] = machine.layers[1].assign(Tensor.ones(3, 3)) * 2  # an expression
    run(step, machine, 2)


def test_who_saw_the_state_before_goes_on_to_see_it(folder: Path) -> None:
    machine = Machine()
    run(kept(machine, "seen"), machine, 2)
    step = kept(machine, "seen")
    before, doubled = machine.seen["all"][0], machine.seen["all"] * 2
    values = machine.seen["all"].numpy().copy()
    for _ in range(2):
        step(Tensor.full((1, 3), 7.0), Variable("at", 0, MOST - 1).bind(0))
    np.testing.assert_array_equal(machine.seen["all"].numpy()[0], np.full(3, 7.0))
    np.testing.assert_array_equal(before.numpy(), values[0])
    np.testing.assert_array_equal(doubled.numpy(), values * 2)


def test_a_machine_that_has_another_form(folder: Path) -> None:
    machine = Machine()
    run(kept(machine, "a_machine_that_has_another_form"), machine, 2)
    other = Machine()
    other.seen = {"all": Tensor.zeros(MOST + 1, 3).contiguous().realize()}
    step = kept(other, "a_machine_that_has_another_form")
    run(step, other, 2)
    assert step.function.calls == 2


def test_draws_are_not_kept(folder: Path) -> None:
    class Dice:
        def step(self, x: Tensor) -> Tensor:
            return x + Tensor.rand(3)

    Tensor.manual_seed(3)
    results = [Kept(jit(dice.step), dice, "dice")(Tensor.zeros(3)).tolist() for dice in (Dice(), Dice(), Dice())]
    assert len({tuple(result) for result in results}) == 3


def test_a_damaged_entry_is_no_entry(folder: Path) -> None:
    machine = Machine()
    run(kept(machine, "a_damaged_entry_is_no_entry"), machine, 2)
    for path in folder.rglob("*"):
        if path.is_file():
            path.write_bytes(path.read_bytes()[:-3])
    step = kept(machine, "a_damaged_entry_is_no_entry")
    run(step, machine, 2)
    assert step.function.calls == 2
