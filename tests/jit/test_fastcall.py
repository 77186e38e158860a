"""The short way through a jitted call: when it is taken, and that it never is where something else is asked for."""

import gc
import os
import random
import weakref

import numpy as np
import pytest

from gradlet import GlobalCounters, Tensor, Variable, jit, nn
from gradlet.base import settings
from gradlet.device.cpu import graph, launching
from gradlet.tensor import fastcall


def values(size=6, seed=0):
    return np.random.default_rng(seed).standard_normal(size).astype(np.float32)


@pytest.fixture
def short(monkeypatch):
    """Counts the calls that took the short way."""
    counts = []
    call = fastcall.FastCall.call

    def counting(self, args, kwargs):
        result = call(self, args, kwargs)
        counts.append(result is not fastcall.MISSED)
        return result

    monkeypatch.setattr(fastcall.FastCall, "call", counting)
    return counts


def test_calls_alike_are_short(short):
    @jit
    def function(x, y):
        return x * 2 + y

    for step in range(8):
        x, y = values(seed=step), values(seed=step + 50)
        np.testing.assert_allclose(function(Tensor(x), Tensor(y)).numpy(), x * 2 + y, rtol=1e-6)
    assert short == [True] * 6


def test_views_as_arguments_and_results(short):
    @jit
    def function(x):
        y = x.permute(1, 0) + 1
        return y.realize().reshape(2, 3, 2).permute(2, 0, 1), {"sum": x.sum(0), "count": 3}

    for step in range(6):
        x = values((4, 3), step)
        first, others = function(Tensor(np.ascontiguousarray(x.T)).realize().permute(1, 0))
        np.testing.assert_allclose(first.numpy(), (x.T + 1).reshape(2, 3, 2).transpose(2, 0, 1), rtol=1e-6)
        np.testing.assert_allclose(others["sum"].numpy(), x.sum(0), rtol=1e-5)
        assert others["count"] == 3
    assert short.count(True) >= 3


def test_a_change_of_any_kind_is_noticed():
    factor, weight = 2, Tensor(values())

    @jit
    def function(x, n=1, *, more=0.0):
        return x * factor + weight * n + more

    w = weight.numpy()
    generator = random.Random(5)
    for step in range(120):
        n, more = generator.choice([1, 1, 1, 3]), generator.choice([0.0, 0.0, 1.5])
        if generator.random() < 0.05:
            factor = generator.choice([2, 5])
        if generator.random() < 0.1:
            w = values(seed=step)
            weight.assign(Tensor(w)).realize()
        x = values(seed=step)
        given = Tensor(x) if generator.random() < 0.7 else Tensor(np.stack([x, x]))[1]
        arguments, named = (n,) if n != 1 else (), {"more": more} if more else {}
        result = function(given, *arguments, **named)
        np.testing.assert_allclose(result.numpy(), x * np.float32(factor) + w * n + more, rtol=1e-5, atol=1e-6)


def test_one_tensor_given_twice_then_two(short):
    @jit
    def function(x, y):
        return x + y * 10

    for step in range(12):
        x, y = Tensor(values(seed=step)), Tensor(values(seed=step + 30))
        if step % 3:
            y = x
        np.testing.assert_allclose(function(x, y).numpy(), x.numpy() + y.numpy() * 10, rtol=1e-6)


def test_a_weight_given_as_argument():
    weight = Tensor(values())

    @jit
    def function(x):
        return x + weight * 10

    for step in range(12):
        x = weight if step % 4 == 3 else Tensor(values(seed=step))
        np.testing.assert_allclose(function(x).numpy(), x.numpy() + weight.numpy() * 10, rtol=1e-6)


def test_results_that_somebody_holds_keep_their_values(short):
    @jit
    def function(x):
        return (x * 3).reshape(2, 3)

    generator = random.Random(1)
    held = []
    for step in range(200):
        x = values(seed=step)
        result, expected = function(Tensor(x)), (x * 3).reshape(2, 3)
        kind = generator.randrange(6)
        if kind == 0:
            held.append((lambda t=result: t.numpy(), expected))
        elif kind == 1:
            held.append((lambda t=result[1:, :2]: t.numpy(), expected[1:, :2]))
        elif kind == 2:
            held.append((lambda t=result.permute(1, 0) + 1: t.numpy(), expected.T + 1))
        elif kind == 3:
            array = result.numpy()
            held.append((lambda a=array: a, expected))
        elif kind == 4:
            array = np.from_dlpack(result)
            held.append((lambda a=array: a, expected))
        del result
        if len(held) > 4:
            read, wanted = held.pop(generator.randrange(len(held)))
            np.testing.assert_allclose(read(), wanted, rtol=1e-6)
            del read, wanted
    for read, wanted in held:
        np.testing.assert_allclose(read(), wanted, rtol=1e-6)
    assert short.count(True) >= 190


def test_memory_is_not_used_again_while_anything_holds_it(monkeypatch):
    monkeypatch.setattr(fastcall, "MOST_KEPT", 1)

    @jit
    def function(x):
        return x + 1

    x = Tensor(values())
    for _ in range(3):
        function(x)
    first = function(x)
    node = first.uop
    del first
    second = function(x)
    assert second.uop is not node
    del node, second
    seen = {function(x).uop.uid for _ in range(5)}
    assert len(seen) == 1


def test_a_step_that_writes_its_weights(short):
    class Model:
        def __init__(self):
            self.layer = nn.Linear(6, 2)
            self.count = Tensor([0.0])

        @jit
        def step(self, x):
            self.layer.weight.assign(self.layer.weight - x.mean() * 0.1)
            self.count.assign(self.count + 1)
            return self.layer(x)

    model = Model()
    weight, bias = model.layer.weight.numpy(), model.layer.bias.numpy()
    kept = None
    for step in range(20):
        if step == 10:
            kept = model.layer.weight * 1  # lazy: sees the weight as it is now
            before = weight.copy()
        x = values((3, 6), step)
        weight = weight - x.mean() * np.float32(0.1)
        np.testing.assert_allclose(model.step(Tensor(x)).numpy(), x @ weight.T + bias, rtol=1e-4, atol=1e-5)
        np.testing.assert_allclose(model.layer.weight.numpy(), weight, rtol=1e-4, atol=1e-5)
        assert model.count.item() == step + 1
    np.testing.assert_allclose(kept.numpy(), before, rtol=1e-4, atol=1e-5)


def test_random_draws_advance(short):
    @jit
    def function(x):
        return x + Tensor.rand(6)

    Tensor.manual_seed(3)
    expected = [(Tensor.rand(6)).numpy() for _ in range(9)]
    Tensor.manual_seed(3)
    for wanted in expected:
        np.testing.assert_allclose(function(Tensor.zeros(6).contiguous().realize()).numpy(), wanted, rtol=1e-6)
    assert short.count(True) >= 6


def test_bound_variables(short):
    cache = Tensor.zeros(8).contiguous().realize()
    n = Variable("n", 0, 7)

    @jit
    def function(x, at):
        cache[at : at + 1] = x
        return cache * 2

    expected = np.zeros(8, np.float32)
    for step in range(8):
        expected[step] = step + 1
        result = function(Tensor([step + 1.0]), n.bind(step))
        np.testing.assert_array_equal(result.numpy(), expected * 2)


@pytest.mark.parametrize("same", [True, False])
def test_nothing_grows(same):
    weight = Tensor(values())

    @jit
    def function(x):
        y = (x * weight).realize() + 1
        return y.realize(), x.sum()

    data = [Tensor(values(seed=s)).realize() for s in range(2)]
    for step in range(20):
        function(data[0 if same else step % 2])
    gc.collect()
    gc.disable()
    try:
        objects, memory = [], []
        for _ in range(3):
            for step in range(300):
                function(data[0 if same else step % 2])
            objects.append(len(gc.get_objects()))
            memory.append(GlobalCounters.mem_used)
    finally:
        gc.enable()
    assert len(set(objects)) == 1
    assert len(set(memory)) == 1


@pytest.mark.parametrize("kind", ["plain", "symbolic", "stateful", "replaced", "random", "many results"])
def test_nothing_grows_over_a_thousand_calls(kind):
    """Objects and device bytes, with the garbage collector off."""
    held = {"sum": Tensor(values()), "mean": Tensor(values(seed=1))}
    cache = Tensor(np.zeros((6, 6), np.float32)).realize()
    rows = Variable("rows", 1, 6)

    @jit
    def function(x, n):
        if kind == "symbolic":
            return x[:n].cat(x[:1]).sum() + cache[:n].sum()
        if kind == "stateful":
            held["sum"].assign(held["sum"] * 0.5 + x)
            cache[1:3] = x * 2
        if kind == "replaced":
            held["mean"] = held["mean"] * 0.5 + x
        if kind == "random":
            return x + Tensor.rand(6)
        return [x + 1, held["mean"] * 2] if kind == "many results" else x.sum() + held["sum"]

    data = [Tensor(values(seed=s)).realize() for s in range(3)]

    def call(times):
        for number in range(times):
            function(data[number % 3], rows.bind(number % 6 + 1))

    call(100)
    gc.collect()
    gc.disable()
    try:
        objects, memory = [], []
        for _ in range(2):
            call(1000)
            objects.append(len(gc.get_objects()))
            memory.append(GlobalCounters.mem_used)
    finally:
        gc.enable()
    assert len(set(objects)) == len(set(memory)) == 1


def test_instances_are_not_kept_alive():
    class Model:
        def __init__(self):
            self.weight = Tensor(values())

        @jit
        def forward(self, x):
            return x * self.weight

    model = Model()
    for _ in range(4):
        model.forward(Tensor(values()))
    seen = weakref.ref(model)
    del model
    assert seen() is None


@pytest.mark.parametrize("after", [True, False], ids=["just after", "just before"])
def test_an_interrupt_leaves_all_of_a_call_or_nothing(monkeypatch, after):
    weight, moving = Tensor(values()), Tensor(values(seed=1))

    @jit
    def step(x):
        weight.assign(weight * 0.5 + x)
        moving.assign((moving + weight).flip(0))  # cannot happen in place
        return Tensor.rand(3)

    x = values(seed=2)
    Tensor.manual_seed(11)
    draws = [Tensor.rand(3).numpy() for _ in range(8)]
    Tensor.manual_seed(11)
    first, second = weight.numpy(), moving.numpy()
    done = 0
    for call in range(8):
        if call == 5:
            run = graph.CpuGraph.run

            def interrupted(self):
                if after:
                    run(self)
                raise KeyboardInterrupt

            with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
                patch.setattr(graph.CpuGraph, "run", interrupted)
                step(Tensor(x))
            done += after
        else:
            np.testing.assert_allclose(step(Tensor(x)).numpy(), draws[done], rtol=1e-6)
            done += 1
        if call != 5 or after:
            first = first * np.float32(0.5) + x
            second = (second + first)[::-1]
        np.testing.assert_allclose(weight.numpy(), first, rtol=1e-5)
        np.testing.assert_allclose(moving.numpy(), second, rtol=1e-5)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_forked_process_replays_on_threads_of_its_own(monkeypatch):
    monkeypatch.setattr(launching, "INLINE_SECONDS", 1e-12)
    size = 1 << 15
    with settings.scope(NUM_THREADS=2):

        @jit
        def function(x):
            return ((x + 1).realize() * 2).realize()

        x = Tensor(np.arange(size, dtype=np.float32)).realize()
        for _ in range(4):
            function(x)
        child = os.fork()
        if child == 0:
            right = all(np.array_equal(function(x).numpy(), (np.arange(size) + 1) * 2.0) for _ in range(20))
            os._exit(0 if right else 1)
        for _ in range(20):
            function(x)
        assert os.waitpid(child, 0)[1] == 0


def test_debug_says_what_a_capture_needs(capsys):
    @jit
    def function(x):
        return ((x + 1).realize() * 2).realize().sum()

    with settings.scope(DEBUG=1):
        for _ in range(3):
            function(Tensor(values(1 << 10)))
    lines = [line for line in capsys.readouterr().out.splitlines() if line.startswith("jitted function")]
    assert len(lines) == 1
    assert "captured: 3 kernels, temporary memory" in lines[0]
