"""State that is replaced, not written: `self.h = step(self.h)` inside, another tensor put in its place from outside."""

from __future__ import annotations

import gc
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from gradlet import Tensor, jit
from gradlet.base.errors import JitError
from gradlet.tensor import fastcall

X = np.random.default_rng(3).standard_normal((12, 4)).astype(np.float32)
W = np.random.default_rng(4).standard_normal((4, 4)).astype(np.float32) / 2


@pytest.fixture
def short(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Counts calls that went the short way."""
    counted = [0]
    call = fastcall.FastCall.call

    def counting(self: Any, args: Any, kwargs: Any) -> Any:
        result = call(self, args, kwargs)
        counted[0] += result is not fastcall.MISSED
        return result

    monkeypatch.setattr(fastcall.FastCall, "call", counting)
    return counted


def both(make: Callable[[], Any], call: Callable[[Any, Any, int], Any], steps: int = 12) -> Any:
    """Run the methods of one object jitted and of another plain; the jitted one is returned."""
    jitted, plain = make(), make()
    step = jit(type(jitted).step).__get__(jitted)
    for number in range(steps):
        found, wanted = call(jitted, step, number), call(plain, plain.step, number)
        np.testing.assert_allclose(found.numpy(), wanted.numpy(), rtol=1e-5, atol=1e-6)
    return step


class Recurrent:
    """A state that every step replaces, and returns."""

    def __init__(self) -> None:
        self.w, self.h = Tensor(W), Tensor.zeros(4)

    def step(self, x: Tensor) -> Tensor:
        self.h = (self.h @ self.w + x).tanh()
        return self.h


def test_state_of_a_recurrent_network(short: list[int]) -> None:
    step = both(Recurrent, lambda _, step, n: step(Tensor(X[n])))
    assert len(step.captures) <= 2 and short[0] >= 8
    assert "put into places\n    self.h" in step.explain()


def test_a_state_that_the_caller_holds_keeps_its_value() -> None:
    network = Recurrent()
    step = jit(Recurrent.step).__get__(network)
    held = []
    for n in range(6):
        result = step(Tensor(X[n]))
        assert result is network.h
        held.append((result, result.numpy()))
    for tensor, value in held:
        np.testing.assert_array_equal(tensor.numpy(), value)


def test_a_new_session_puts_a_new_state() -> None:
    def call(network: Recurrent, step: Any, number: int) -> Tensor:
        if number % 5 == 0:
            network.h = Tensor(X[11 - number] * 2)
        if number == 7:
            network.w = Tensor(W.T.copy())  # another tensor of this form: the same input
        return step(Tensor(X[number]))

    step = both(Recurrent, call)
    assert len(step.captures) <= 2


class Memory:
    """A tuple of two states, as an LSTM has."""

    def __init__(self) -> None:
        self.w, self.state = Tensor(W), (Tensor.zeros(4), Tensor.ones(4))

    def step(self, x: Tensor) -> Tensor:
        hidden, cell = self.state
        cell = (hidden @ self.w).sigmoid() * cell + x
        self.state = (cell.tanh(), cell)
        return cell.sum()


def test_a_tuple_of_states(short: list[int]) -> None:
    step = both(Memory, lambda _, step, n: step(Tensor(X[n])))
    assert len(step.captures) <= 2 and short[0] >= 8


class Ring:
    """A buffer that moves on by one row."""

    def __init__(self) -> None:
        self.rows = Tensor.zeros(3, 4)

    def step(self, x: Tensor) -> Tensor:
        self.rows = self.rows[1:].cat(x.reshape(1, 4))
        return self.rows.sum(0)


def test_a_ring_buffer(short: list[int]) -> None:
    step = both(Ring, lambda _, step, n: step(Tensor(X[n])))
    assert len(step.captures) <= 2 and short[0] >= 8


class Optimizer:
    """Adam whose moments are replaced, in lists and a dictionary; the weights are assigned."""

    def __init__(self) -> None:
        self.weights = [Tensor(W), Tensor(W[0])]
        self.first = [Tensor.zeros(4, 4), Tensor.zeros(4)]
        self.second = {"0": Tensor.zeros(4, 4), "1": Tensor.zeros(4)}

    def step(self, x: Tensor) -> Tensor:
        loss = ((x @ self.weights[0] + self.weights[1]) ** 2).sum()
        for n, (weight, gradient) in enumerate(zip(self.weights, loss.gradient(*self.weights), strict=True)):
            self.first[n] = self.first[n] * 0.9 + gradient * 0.1
            self.second[str(n)] = self.second[str(n)] * 0.99 + gradient * gradient * 0.01
            weight.assign(weight - self.first[n] * 0.01 / (self.second[str(n)].sqrt() + 1e-3))
        return loss


def test_an_optimizer_that_replaces_its_moments(short: list[int]) -> None:
    step = both(Optimizer, lambda _, step, n: step(Tensor(X[n])), 6)
    assert len(step.captures) <= 2


class Average:
    """An exponential average of weights, in a new list at every step."""

    def __init__(self) -> None:
        self.weights = [Tensor(W), Tensor(W[1])]
        self.averages = [Tensor(W), Tensor(W[1])]

    def step(self, x: Tensor) -> Tensor:
        self.weights = [weight - 0.1 * x for weight in self.weights]
        self.averages = [a * 0.9 + w * 0.1 for a, w in zip(self.averages, self.weights, strict=True)]
        return self.averages[0].sum(0) + self.averages[1]


def test_an_average_of_weights(short: list[int]) -> None:
    step = both(Average, lambda _, step, n: step(Tensor(X[n])))
    assert len(step.captures) <= 2 and short[0] >= 8


class Exchange:
    """Places that change their tensors with each other, and with an argument."""

    def __init__(self) -> None:
        self.a, self.b, self.last = Tensor(X[0]), Tensor(X[1]), Tensor(X[2])
        self.turn = 0

    def step(self, x: Tensor) -> Tensor:
        self.a, self.b = self.b, self.a
        result = self.a + self.last * (self.turn + 1)
        self.last = x
        self.turn = 1 - self.turn
        return result


def test_exchanged_places_arguments_and_python_values() -> None:
    """Also the number that a call puts into an attribute is there after a replay."""
    both(Exchange, lambda _, step, n: step(Tensor(X[n])))


def test_an_argument_that_is_state_at_the_first_call() -> None:
    """Later it is another tensor: what moves between places is the state then, not the argument."""

    class Pair:
        def __init__(self) -> None:
            self.a, self.b = Tensor(X[0]), Tensor(X[1])

        def step(self, x: Tensor) -> Tensor:
            self.a, self.b = self.b, self.a
            return x + 1

    def call(pair: Pair, step: Any, number: int) -> Tensor:
        step(pair.b if number % 3 == 0 else Tensor(X[number]))
        return pair.a - 2 * pair.b

    both(Pair, call)


def test_an_argument_that_was_the_state_before_it_was_replaced() -> None:
    """The tensor that was state at one call is an argument like others at the next."""

    class Sum:
        def __init__(self) -> None:
            self.h, self.given = Tensor(X[0]), Tensor(X[1])

        def step(self, x: Tensor, y: Tensor) -> Tensor:
            self.h = x + self.h
            return y * 2

    def call(thing: Sum, step: Any, number: int) -> Tensor:
        y = thing.h if number in (0, 1, 2, 6) else thing.given
        thing.given = y
        return step(Tensor(X[number]), y) + thing.h

    both(Sum, call)


def test_the_argument_itself_is_kept() -> None:
    thing = Exchange()
    step = jit(Exchange.step).__get__(thing)
    for n in range(6):
        x = Tensor(X[n])
        step(x)
        assert thing.last is x


def test_closed_over_and_global_names() -> None:
    state = Tensor(X[0])

    @jit
    def step(x: Tensor) -> Tensor:
        nonlocal state
        state = state * 0.5 + x
        return state.sum()

    truth = X[0]
    for n in range(8):
        truth = truth * np.float32(0.5) + X[n]
        np.testing.assert_allclose(step(Tensor(X[n])).numpy(), truth.sum(), rtol=1e-5)
        np.testing.assert_allclose(state.numpy(), truth, rtol=1e-5)
    assert len(step.captures) == 1


def test_two_names_that_become_one() -> None:
    class Pair:
        def __init__(self) -> None:
            self.a, self.b = Tensor(X[0]), Tensor(X[1])

        def step(self, x: Tensor) -> Tensor:
            self.a.assign(self.a + x)
            return self.a + self.b * 2

    def call(pair: Pair, step: Any, number: int) -> Tensor:
        if number == 4:
            pair.b = pair.a
        if number == 8:
            pair.a = Tensor(X[3])
        return step(Tensor(X[number]))

    both(Pair, call)


def test_other_shapes_and_types_capture_again() -> None:
    class Scale:
        def __init__(self) -> None:
            self.w = Tensor(X[0])

        def step(self, x: Tensor) -> Tensor:
            return (x * self.w).sum() + self.w.numel()

    def call(scale: Scale, step: Any, number: int) -> Tensor:
        scale.w = [Tensor(X[number]), Tensor(X[number].astype(np.float64)), Tensor(X[:2])][number % 3]
        return step(Tensor(X[number]))

    step = both(Scale, call)
    assert len(step.captures) == 3


def test_what_cannot_be_put_again_is_captured_again() -> None:
    class Cell:
        def __init__(self, h: Tensor) -> None:
            self.h = h

    class Holder:
        def __init__(self) -> None:
            self.cell = Cell(Tensor(X[0]))

        def step(self, x: Tensor) -> Tensor:
            self.cell = Cell(self.cell.h * 0.5 + x)
            return self.cell.h.sum()

    jitted, plain = Holder(), Holder()
    step = jit(Holder.step).__get__(jitted)
    with pytest.raises(JitError, match="self.cell"):
        for n in range(60):
            assert step(Tensor(X[n % 12])).item() == pytest.approx(plain.step(Tensor(X[n % 12])).item(), rel=1e-5)


def test_a_call_that_fails_puts_everything_back() -> None:
    network = Recurrent()
    fails = True

    @jit
    def step(x: Tensor) -> Tensor:
        network.h = network.h + x
        if fails:
            raise ZeroDivisionError
        return network.h

    before = network.h
    with pytest.raises(ZeroDivisionError):
        step(Tensor(X[0]))
    assert network.h is before and network.h.tolist() == [0] * 4
    fails = False
    np.testing.assert_allclose(step(Tensor(X[0])).numpy(), X[0])


@pytest.mark.parametrize(
    "make", [Memory, *[pytest.param(m, marks=pytest.mark.slow) for m in (Recurrent, Ring, Average)]]
)
def test_nothing_grows(make: Any) -> None:
    thing = make()
    step = jit(make.step).__get__(thing)
    x = Tensor(X[0])

    def count() -> int:
        gc.collect()
        gc.disable()
        try:
            for _ in range(200):
                step(x)
            return len(gc.get_objects())
        finally:
            gc.enable()

    count()
    first, second = count(), count()
    assert second <= first
