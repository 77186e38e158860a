"""Memory of captured programs: values that live at once are apart, others share; random programs stay right."""

import threading

import numpy as np
import pytest

from gradlet import GlobalCounters, Tensor, jit
from gradlet.base import settings
from gradlet.device.cpu import launching
from gradlet.engine import arenas, capture
from gradlet.engine.arenas import memory_line


def program_of(function):
    return list(function.captures.values())[-1].program


def test_values_between_schedules_share_memory():
    size = 1 << 14

    @jit
    def function(x):
        for step in range(8):
            x = (x * 2 + step).realize().reshape(128, -1).permute(1, 0).contiguous().realize()
        return x.sum()

    x = Tensor(np.ones(size, np.float32)).realize()
    for _ in range(3):
        function(x)
    plan = program_of(function).memory
    assert plan.bound <= plan.peak <= plan.bound * 1.1
    assert plan.bound == 2 * 4 * size  # what a launch reads and what it writes
    assert plan.unshared > 4 * plan.peak
    assert plan.results == 4
    assert memory_line(plan).startswith("temporary memory 131 kB (at least 131 kB")


def test_a_program_without_temporary_memory():
    @jit
    def function(x):
        return x + 1

    for _ in range(3):
        function(Tensor([1.0]))
    assert memory_line(program_of(function).memory) == "no temporary memory, results 4 B"


def test_memory_of_a_capture_goes_with_it():
    @jit
    def function(x):
        return ((x + 1).realize() * 2).realize().sum()

    x = Tensor(np.ones(1 << 16, np.float32)).realize()
    function(x)
    before = GlobalCounters.mem_used
    for _ in range(3):
        function(x)
    peak = program_of(function).memory.peak
    assert before + peak <= GlobalCounters.mem_used <= before + peak + 16
    function.reset()
    assert GlobalCounters.mem_used <= before


class Random:
    """A random program of a few arrays, for numpy and for tensors: chains, sums, products, writes, inner realizes."""

    def __init__(self, seed, largest):
        generator = np.random.default_rng(seed)
        self.rows = int(generator.integers(1, 9))
        self.columns = max(1, int(2 ** generator.uniform(0, np.log2(largest))) // self.rows)
        self.steps = []
        for _ in range(int(generator.integers(4, 14))):
            kind = generator.choice(["chain", "sum", "outer", "write", "flip", "join", "mix", "state"])
            self.steps.append((kind, *generator.integers(0, 1 << 16, 3), bool(generator.random() < 0.6)))

    def data(self, seed):
        generator = np.random.default_rng(seed)
        return generator.integers(-4, 5, (self.rows, self.columns)).astype(np.float32)

    def run(self, x, state, realize, write):
        """Small whole numbers: every order of additions is exact."""
        held = [x, x + 1]
        for kind, first, second, number, inner in self.steps:
            a, b = held[first % len(held)], held[second % len(held)]
            if kind == "chain":
                new = (a * 0.5 + b) * (number % 3)
            elif kind == "sum":
                new = a.sum(1).reshape(self.rows, 1) * 0.125 + b
            elif kind == "outer":
                new = (a[:, :1] - b[:1, :]) * 0.5
            elif kind == "flip":
                new = a[::-1, ::-1] + b
            elif kind == "join":
                new = a.reshape(-1)[: self.columns].reshape(1, self.columns) + b * 0.5
            elif kind == "mix":
                new = (a - b) * 0.25 + a.max(0).reshape(1, self.columns)
            elif kind == "write":
                new = realize(a * 1.0)
                new[: 1 + number % self.rows] = b[: 1 + number % self.rows] * 0.5
            else:
                write(state, state * 0.5 + a)
                new = state * 1.0
            new = new * 0.25
            held.append(realize(new) if inner else new)
            if len(held) > 5:
                held.pop(number % 4)
        return held[-1], held[-2] + 1


def checked(seed, largest, calls=4, seen=None):
    """Calls of one random program, jitted, against numpy; `seen` gets the bytes of all results."""
    program = Random(seed, largest)
    state = Tensor(program.data(seed + 1)).realize()
    truth = program.data(seed + 1)

    def write(target, value):
        if isinstance(target, np.ndarray):
            target[...] = value
        else:
            target.assign(value)

    @jit
    def function(x):
        return program.run(x, state, lambda t: t.contiguous().realize(), write)

    for call in range(calls):
        x = program.data(seed + 10 + call)
        expected = program.run(x, truth, np.array, write)
        for result, wanted in zip(function(Tensor(x)), expected, strict=True):
            np.testing.assert_allclose(result.numpy(), wanted, rtol=1e-4, atol=1e-5)
            if seen is not None:
                seen.append(result.numpy().tobytes())
        np.testing.assert_allclose(state.numpy(), truth, rtol=1e-4, atol=1e-5)
    plan = program_of(function).memory
    assert plan.peak <= plan.unshared
    assert plan.bound <= plan.peak <= plan.bound * 1.25 + 1024
    return plan


@pytest.mark.parametrize("seed", range(3))
def test_random_programs(seed, monkeypatch):
    monkeypatch.setattr(launching, "INLINE_SECONDS", 1e-12)  # every kernel on all threads
    with settings.scope(NUM_THREADS=2):
        checked(seed, 1 << 10)


def on_and_off(seed, largest, monkeypatch, **more):
    """The same bits with memory that is shared, and with memory of its own for every value."""
    shared, apart = [], []
    checked(seed, largest, seen=shared, **more)
    with monkeypatch.context() as patch:
        patch.setattr(capture, "move_into", lambda places: None)
        checked(seed, largest, seen=apart, **more)
    assert shared == apart


def test_the_same_bits_without_a_plan(monkeypatch):
    monkeypatch.setattr(launching, "INLINE_SECONDS", 1e-12)
    with settings.scope(NUM_THREADS=2):
        on_and_off(50, 1 << 8, monkeypatch, calls=3)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(100, 160))
def test_many_random_programs(seed, monkeypatch):
    monkeypatch.setattr(launching, "INLINE_SECONDS", 1e-12)
    with settings.scope(NUM_THREADS=2 + seed % 2):
        on_and_off(seed, 1 << (10 if seed % 4 else 20), monkeypatch, calls=5)


def test_no_two_values_that_live_at_once_lie_together(monkeypatch):
    plans = []
    made = arenas.plan_arenas

    def planning(calls, nodes, temporary, results):
        plan = made(calls, nodes, temporary, results)
        plans.append((list(calls), list(nodes), plan))
        return plan

    monkeypatch.setattr(capture, "plan_arenas", planning)
    for seed in range(200, 204):
        checked(seed, 256, calls=1)
    assert plans
    for calls, nodes, plan in plans:
        last = {slot: number for number, call in enumerate(calls) for slot in call.slots}
        first = {slot: number for number, call in reversed(list(enumerate(calls))) for slot in call.slots}
        placed = [slot for slot in last if nodes[slot] in plan.places]
        for a in placed:
            for b in placed:
                if a < b and first[a] <= last[b] and first[b] <= last[a]:
                    low, high = sorted((a, b), key=lambda s: plan.places[nodes[s]])
                    end = plan.places[nodes[low]] + nodes[low].arg.size * nodes[low].dtype.itemsize
                    assert end <= plan.places[nodes[high]]


def test_threads_have_memory_of_their_own():
    @jit
    def function(x):
        y = (x * 2).realize()
        z = (y + 1).realize()
        return (y * z).realize().sum()

    x = Tensor(np.ones(1 << 12, np.float32)).realize()
    for _ in range(3):
        function(x)
    wrong = []

    def work(number):
        given = Tensor(np.full(1 << 12, number, np.float32)).realize()
        for _ in range(40):
            if function(given).item() != (1 << 12) * 2 * number * (2 * number + 1):
                wrong.append(number)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(1, 4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=60)
    assert wrong == []
