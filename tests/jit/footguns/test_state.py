"""Tensors that a jitted function reads and writes from outside: weights, caches, optimizer state, what it makes."""

from __future__ import annotations

import gc
from typing import Any
from weakref import ref

import numpy as np
import pytest

from gradlet import GlobalCounters, Tensor, jit, nn
from gradlet.base.errors import JitError


def tensor(*values: float) -> Tensor:
    return Tensor(list(values) or [3.0]).realize()


def test_weight_replaced_assigned_or_moved_to_another_dtype() -> None:
    class Model:
        weight = tensor(2.0)

    model = Model()
    model.weight = tensor(2.0)
    function = jit(lambda x: x * model.weight)
    assert [function(tensor()).item() for _ in range(2)] == [6, 6]
    model.weight.assign(tensor(4.0))
    assert function(tensor()).item() == 12
    model.weight = tensor(5.0)
    assert function(tensor()).item() == 15
    model.weight = model.weight.half().realize()
    out = function(tensor())
    assert out.item() == 15
    model.weight = Tensor([[1.0], [2.0]]).realize()
    assert function(tensor()).tolist() == [[3], [6]]


def test_weight_deleted_and_another_at_its_place() -> None:
    """The new one may well get the old one's address."""
    weights = {"w": tensor(2.0)}
    function = jit(lambda x: x * weights["w"])
    assert [function(tensor()).item() for _ in range(2)] == [6, 6]
    for value in range(5):
        del weights["w"]
        weights["w"] = tensor(float(value))
        assert function(tensor()).item() == 3 * value


def test_two_weights_exchanged() -> None:
    pair = [tensor(1.0), tensor(10.0)]
    function = jit(lambda x: x * pair[0] + pair[1])
    assert [function(tensor()).item() for _ in range(2)] == [13, 13]
    pair.reverse()
    assert function(tensor()).item() == 31
    pair[0], pair[1] = pair[1], pair[0]
    assert function(tensor()).item() == 13


def test_weights_that_begin_to_share_memory() -> None:
    first, second = tensor(1.0), tensor(10.0)

    @jit
    def function(x: Tensor) -> Tensor:
        first.assign(first + x)
        return first * 100 + second

    assert [function(tensor(1.0)).item() for _ in range(3)] == [210, 310, 410]
    second.assign(first)  # a value: what first becomes later is not its
    assert function(tensor(1.0)).item() == 504
    assert function(tensor(1.0)).item() == 604


def test_counter_read_from_outside_between_calls() -> None:
    counter = Tensor.zeros(1).contiguous().realize()

    @jit
    def step() -> Tensor:
        counter.assign(counter + 1)
        return counter

    kept = [step() for _ in range(3)]
    lazy = counter * 100
    copy = counter.clone()
    step()
    assert [k.item() for k in kept] == [1, 2, 3]
    assert (lazy.item(), copy.item(), counter.item()) == (300, 3, 4)
    counter.assign(tensor(50.0))
    assert step().item() == 51


def test_state_written_outside_lazily_before_a_call() -> None:
    state = Tensor.zeros(4).contiguous().realize()
    function = jit(lambda: state + 1)
    for value in range(4):
        state[value] = float(value + 1)
        assert function().tolist() == [v + 2.0 if v <= value else 1.0 for v in range(4)]


def test_tensor_made_in_every_call_and_kept() -> None:
    """Kept in a list that grows: every call captures again, until the error says which list."""
    kept: list[Tensor] = []

    @jit
    def function(x: Tensor) -> Tensor:
        kept.append((x * 2).realize())
        return x + len(kept)

    right = 0
    with pytest.raises(JitError, match="kept"):
        for number in range(40):
            assert function(tensor(float(number))).item() == number + len(kept)
            right += 1
    assert right >= 2


def test_made_at_the_first_call_by_an_object() -> None:
    class Cache:
        def __init__(self) -> None:
            self.rows: Tensor | None = None

        @jit
        def push(self, x: Tensor) -> Tensor:
            if self.rows is None:
                self.rows = Tensor.zeros(4).contiguous().realize()
            self.rows.assign(self.rows.roll(1) + Tensor.eye(4)[0] * x)
            return self.rows.sum()

    one, two = Cache(), Cache()
    for n in range(1, 8):
        expected = sum(range(max(1, n - 3), n + 1)) if n <= 4 else None
        value = one.push(tensor(float(n))).item()
        assert two.push(tensor(2.0 * n)).item() == 2 * value
        if expected is not None:
            assert value == expected


def test_reading_what_a_replay_does_not_update() -> None:
    made: dict[str, Tensor] = {}

    @jit
    def function(x: Tensor) -> Tensor:
        made["half"] = (x / 2).realize()
        return x + 1

    for n in range(4):
        assert function(tensor(float(n))).item() == n + 1
        try:
            value = made["half"].item()
        except JitError as error:
            assert "return it" in str(error)
        else:
            assert value == n / 2


def test_optimizer_with_schedule_of_the_rate() -> None:
    """A learning rate in a Python attribute is a value that moves; in a tensor it is state."""

    def run(use_jit: bool) -> list[float]:
        Tensor.manual_seed(5)
        layer = nn.Linear(3, 2)
        optimizer = nn.optim.SGD(nn.state.get_parameters(layer), lr=0.1, momentum=0.9)

        def step(x: Tensor) -> Tensor:
            with Tensor.train():
                optimizer.zero_grad()
                loss = layer(x).square().mean()
                loss.backward()
                optimizer.step()
                return loss

        function: Any = jit(step) if use_jit else step
        losses = []
        for number in range(6):
            if number == 3:
                optimizer.lr.assign(optimizer.lr * 0.1)
            losses.append(function(Tensor(np.full((4, 3), 1.0 + number, np.float32))).item())
        return losses

    np.testing.assert_allclose(run(True), run(False), rtol=1e-5)


def test_batch_norm_statistics_and_evaluation_between() -> None:
    def run(use_jit: bool) -> list[list[float]]:
        norm = nn.BatchNorm(3)
        function: Any = jit(norm.__call__) if use_jit else norm.__call__
        rows = []
        for number in range(6):
            x = Tensor(np.random.default_rng(number).standard_normal((4, 3)).astype(np.float32))
            if number % 3 == 2:
                rows.append(function(x).flatten().tolist())
            else:
                with Tensor.train():
                    rows.append(function(x).flatten().tolist())
        rows.append(norm.running_mean.tolist())
        return rows

    for a, b in zip(run(True), run(False), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-5)


def test_loading_weights_between_calls() -> None:
    layer = nn.Linear(2, 2, bias=False)
    function = jit(lambda x: layer(x))
    x = tensor(1.0, 2.0)
    function(x)
    function(x)
    nn.state.load_state_dict(layer, {"weight": Tensor([[1.0, 0.0], [0.0, 10.0]])}, verbose=False)
    assert function(x).tolist() == [1, 20]


def test_gradients_accumulate_over_calls() -> None:
    def run(use_jit: bool) -> list[float]:
        weight = tensor(2.0)

        def step(x: Tensor) -> Tensor:
            (weight * x).sum().backward()
            return weight.grad * 1

        function: Any = jit(step) if use_jit else step
        return [function(tensor(float(n))).item() for n in range(1, 6)]

    assert run(True) == run(False) == [1, 3, 6, 10, 15]


def test_requires_grad_changed() -> None:
    weight = tensor(2.0)
    other = tensor(5.0)

    @jit
    def step(x: Tensor) -> Tensor:
        gradients = (weight * other * x).sum().gradient(weight)
        return gradients[0]

    assert [step(tensor(float(n))).item() for n in range(3)] == [0, 5, 10]


def test_an_instance_that_is_gone_takes_its_capture_with_it() -> None:
    class Model:
        def __init__(self, value: float) -> None:
            self.weight = Tensor.full((1 << 16,), value).contiguous().realize()

        @jit
        def __call__(self, x: Tensor) -> Tensor:
            return (self.weight * x).sum()

    def use(value: float) -> ref[Model]:
        model = Model(value)
        for _ in range(3):
            assert model(tensor(1.0)).item() == value * (1 << 16)
        return ref(model)

    use(1.0)
    gc.collect()
    before = GlobalCounters.mem_used
    for value in (2.0, 3.0, 4.0):
        gone = use(value)
        assert gone() is None
    assert GlobalCounters.mem_used == before


def test_objects_without_weak_references() -> None:
    """A jitted method of an object that nothing can watch: right, or a clear error at the first call."""

    class Model:
        __slots__ = ("weight",)

        def __init__(self, value: float) -> None:
            self.weight = tensor(value)

        @jit
        def __call__(self, x: Tensor) -> Tensor:
            return x * self.weight

    with pytest.raises(JitError, match="__weakref__"):
        Model(2.0)(tensor())


def test_instances_that_are_equal_or_unhashable() -> None:
    """Instances that compare equal are still two."""

    class Model:
        def __init__(self, value: float) -> None:
            self.weight = tensor(value)

        def __eq__(self, other: object) -> bool:
            return True

        def __hash__(self) -> int:
            return 1

        @jit
        def __call__(self, x: Tensor) -> Tensor:
            return x * self.weight

    class Unhashable(Model):
        __hash__ = None  # type: ignore[assignment]

    for kind in (Model, Unhashable):
        two, three = kind(2.0), kind(3.0)
        for _ in range(3):
            assert two(tensor()).item() == 6
            assert three(tensor()).item() == 9


def test_class_and_static_methods() -> None:
    class Model:
        weight = tensor(2.0)

        @classmethod
        @jit
        def of_class(cls, x: Tensor) -> Tensor:
            return x * cls.weight

        @staticmethod
        @jit
        def plain(x: Tensor) -> Tensor:
            return x + 1

    class Derived(Model):
        weight = tensor(5.0)

    for _ in range(3):
        assert Model.of_class(tensor()).item() == 6
        assert Derived.of_class(tensor()).item() == 15
        assert Model.plain(tensor()).item() == 4
        assert Model().plain(tensor()).item() == 4


def test_bound_method_of_two_instances_jitted_outside() -> None:
    class Model:
        def __init__(self, value: float) -> None:
            self.weight = tensor(value)

        def run(self, x: Tensor) -> Tensor:
            return x * self.weight

    two, three = Model(2.0), Model(3.0)
    first, second = jit(two.run), jit(three.run)
    unbound = jit(Model.run)
    for _ in range(3):
        assert (first(tensor()).item(), second(tensor()).item()) == (6, 9)
        assert (unbound(two, tensor()).item(), unbound(three, tensor()).item()) == (6, 9)
