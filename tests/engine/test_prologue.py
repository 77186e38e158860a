"""Launches that only read weights run once, and again whenever a weight has changed, by whatever way it did."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

from gradlet import GlobalCounters, Tensor, jit, nn
from gradlet.base import settings
from gradlet.engine.compile import CompiledKernel
from gradlet.engine.execute import base_buffer
from gradlet.engine.prologue import find_settled
from gradlet.runtime.buffer import Buffer, buffer_of
from gradlet.schedule.calls import MOST_KEPT


@dataclass
class Launch:
    """Reads `slots` less the last, writes the last."""

    slots: tuple[int, ...]
    written: tuple[int, ...] = ()
    is_fixed: bool = True

    def __post_init__(self) -> None:
        self.written = self.written or (len(self.slots) - 1,)


def settled(*calls: Launch, fresh: set[int], moving: Collection[int] = (), sizes: list[int] | None = None) -> list[int]:
    return find_settled(calls, fresh, moving, sizes or [64] * 16)


def test_what_only_reads_weights_is_settled() -> None:
    # Slots: 0 an input, 1 and 2 weights, from 3 on made.
    calls = [Launch((1, 3)), Launch((3, 2, 4)), Launch((0, 4, 5)), Launch((1, 5, 6)), Launch((2, 7))]
    assert settled(*calls, fresh={3, 4, 5, 6, 7}, moving={0, 6}) == [0, 1, 4]


@pytest.mark.parametrize(
    "calls",
    [
        [Launch((1, 3)), Launch((0, 1))],  # the weight is written later
        [Launch((1, 3)), Launch((0, 3))],  # what was made is written again
        [Launch((1, 3), is_fixed=False)],
        [Launch((1, 2))],  # memory of somebody else
        [Launch((3,))],  # reads nothing: nothing says when it is stale
        [Launch((1, 6))],  # a result, which is new memory at every call
        [Launch((0, 3))],
        [Launch((1, 3, 4), written=(1, 2)), Launch((0, 4))],
    ],
)
def test_what_is_not_settled(calls: list[Launch]) -> None:
    assert settled(*calls, fresh={3, 4, 5, 6}, moving={0, 6}) == []


def test_much_memory_is_not_kept() -> None:
    assert settled(Launch((1, 2)), fresh={2}, sizes=[0, 96, 128]) == [0]
    assert settled(Launch((1, 2)), fresh={2}, sizes=[0, 96, 129]) == []
    assert settled(Launch((1, 2)), fresh={2}, sizes=[0, 4, 255]) == []
    assert settled(Launch((1, 2)), fresh={2}, sizes=[0, 4, 256]) == [0]
    half = MOST_KEPT // 2 + 1
    calls = [Launch((1, 2)), Launch((1, 3)), Launch((1, 4))]
    assert settled(*calls, fresh={2, 3, 4}, sizes=[0, half, half, half, 64]) == [0, 2]


def test_narrow_weights_are_not_kept_as_wide_ones() -> None:
    """They are converted at every call, in memory that others use as well; their copies in another order are kept."""
    weights = [Tensor.ones(64, 64).cast("bfloat16").realize() for _ in range(2)]
    x = Tensor.ones(48, 64).realize()

    def product(x: Tensor) -> Tensor:
        for weight in weights:
            x = (x @ weight.float().contiguous()) / 64
        return x.realize()

    function = jit(product)
    for _ in range(3):
        assert function(x).numpy().min() == 1
    assert captured(function).prologue is None


def test_memory_of_the_capture_is_not_held_twice() -> None:
    network = Network()
    function = fast(network)
    check(function, network)
    program = captured(function)
    assert not any(buffer_of(program.nodes[slot]).is_allocated for slot in program.prologue.makes)
    check(function, network)
    assert not any(buffer_of(program.nodes[slot]).is_allocated for slot in program.prologue.makes)


# ---- through jit
class Network:
    def __init__(self, seed: int = 0) -> None:
        rng = np.random.default_rng(seed)
        self.first = Tensor(rng.standard_normal((32, 16, 3, 3), dtype=np.float32) / 12)
        self.second = Tensor(rng.standard_normal((16, 32, 3, 3), dtype=np.float32) / 17)

    def __call__(self, x: Tensor) -> Tensor:
        return x.conv2d(self.first, padding=1).relu().conv2d(self.second, padding=1)


def image(seed: int = 1) -> Tensor:
    return Tensor(np.random.default_rng(seed).standard_normal((2, 16, 13, 11), dtype=np.float32))


def fast(network: Network) -> jit:
    return jit(lambda x: network(x).realize())


def captured(function: jit) -> Any:
    (capture,) = function.captures.values()
    return capture.program


def check(function: jit, network: Network) -> None:
    x = image()
    np.testing.assert_allclose(function(x).numpy(), network(x).numpy(), rtol=1e-4, atol=1e-5)


def test_weights_are_laid_out_once(monkeypatch: pytest.MonkeyPatch) -> None:
    network = Network()
    function = fast(network)
    check(function, network)
    program = captured(function)
    once, rest = program.prologue.once.calls, program.prologue.rest.calls
    assert once and rest and sorted(map(id, [*once, *rest])) == sorted(map(id, program.calls))
    ran: list[str] = []
    run = CompiledKernel.run
    monkeypatch.setattr(CompiledKernel, "run", lambda self, *a: (ran.append(self.name), run(self, *a))[1])
    with settings.scope(DEBUG=2):  # then kernels run one by one
        for _ in range(3):
            function(image())
    assert ran == [call.kernel.name for call in [*once, *rest, *rest, *rest]]
    before = GlobalCounters.kernels
    function(image())
    assert GlobalCounters.kernels - before == len(rest)


def test_one_value_that_stands_for_a_weight_is_spread_and_laid_out_once() -> None:
    one = Tensor([0.25]).realize()

    def convolve(x: Tensor) -> Tensor:
        weight = one.reshape(1, 1, 1, 1).expand(32, 16, 3, 3).contiguous()
        return x.conv2d(weight, padding=1).realize()

    function = jit(convolve)
    for seed in range(4):
        x = image(seed)
        np.testing.assert_allclose(function(x).numpy(), convolve(x).numpy(), rtol=1e-4, atol=1e-5)
    program = captured(function)
    assert {slot for call in program.prologue.rest.calls for slot in call.slots}.isdisjoint(program.prologue.reads)


def by_assign(network: Network) -> None:
    network.first.assign(network.first * 2).realize()


def by_lazy_assign(network: Network) -> None:
    network.second.assign(network.second * 2)  # runs when somebody needs it


def by_element(network: Network) -> None:
    network.first[3, 2] = 7.0


def by_new_tensor(network: Network) -> None:
    network.first.replace(Tensor(np.full((32, 16, 3, 3), 0.25, np.float32)))


def by_optimizer(network: Network) -> None:
    optimizer = nn.optim.SGD([network.first, network.second], lr=0.1)
    with Tensor.train():
        network(image(5)).square().mean().backward()
        optimizer.step()


def by_another_jit(network: Network) -> None:
    def change(amount: Tensor) -> Tensor:
        return network.first.assign(network.first + amount).realize()

    again = jit(change)
    for step in (0.5, 0.25, 0.125):
        again(Tensor([step]))


def by_copyin(network: Network) -> None:
    buffer = buffer_of(base_buffer(network.first.uop))
    buffer.copyin(np.ones(buffer.size, np.float32))


@pytest.mark.parametrize(
    "change",
    [by_assign, by_lazy_assign, by_element, by_new_tensor, by_optimizer, by_another_jit, by_copyin],
    ids=lambda f: f.__name__,
)
def test_a_changed_weight_is_laid_out_again(change: Callable[[Network], None]) -> None:
    network = Network()
    function = fast(network)
    for _ in range(3):
        check(function, network)
    change(network)
    for _ in range(2):
        check(function, network)
    change(network)
    check(function, network)


def test_memory_of_others_is_never_taken_for_settled() -> None:
    network = Network()
    memory = np.random.default_rng(3).standard_normal((32, 16, 3, 3), dtype=np.float32)
    network.first = Tensor.from_blob(memory.ctypes.data, memory.shape, owner=memory)
    function = fast(network)
    for factor in (1.0, 2.0, -1.0, 3.0):
        memory *= factor
        check(function, network)


def test_memory_that_was_shown_is_not_settled_any_more() -> None:
    network = Network()
    function = fast(network)
    for _ in range(2):
        check(function, network)
    network.first.__dlpack__()
    buffer = buffer_of(base_buffer(network.first.uop))
    assert not buffer.is_watched
    (ctypes.c_float * buffer.size).from_address(buffer.address)[5] = 9.0  # as a consumer that does not care could
    check(function, network)


def test_a_weight_that_is_written_inside_is_not_settled() -> None:
    network = Network()

    def step(x: Tensor) -> Tensor:
        result = network(x)
        network.first.assign(network.first * 0.5)
        return result.realize()

    function = jit(step)
    other = Network()
    for _ in range(4):
        expected = other(image()).numpy()
        other.first.assign(other.first * 0.5).realize()
        np.testing.assert_allclose(function(image()).numpy(), expected, rtol=1e-4, atol=1e-5)


def test_two_weights_that_swap_places() -> None:
    network = Network()
    network.second = Tensor(np.random.default_rng(9).standard_normal((32, 32, 3, 3), dtype=np.float32) / 17)
    network.first = Tensor(np.random.default_rng(8).standard_normal((32, 32, 3, 3), dtype=np.float32) / 17)
    x = Tensor(np.random.default_rng(7).standard_normal((1, 32, 9, 9), dtype=np.float32))
    function = fast(network)
    for _ in range(4):
        np.testing.assert_allclose(function(x).numpy(), network(x).numpy(), rtol=1e-4, atol=1e-5)
        first, second = network.first.uop, network.second.uop
        network.first.uop, network.second.uop = second, first


def test_results_of_weights_alone_are_new_at_every_call() -> None:
    weight = Tensor(np.arange(6, dtype=np.float32))
    function = jit(lambda: (weight * 2).contiguous().realize())
    first, second = function(), function()
    first.assign(first + 1).realize()
    assert second.tolist() == [0, 2, 4, 6, 8, 10] and function().tolist() == second.tolist()


def test_stamps_name_contents() -> None:
    from gradlet.base.dtype import dtypes

    one, other = Buffer("CPU", dtypes.float32, 4), Buffer("CPU", dtypes.float32, 4)
    seen = {one.stamp, other.stamp}
    one.copyin(bytes(16))
    seen.add(one.stamp)
    other.changed()
    seen.add(other.stamp)
    assert len(seen) == 4
