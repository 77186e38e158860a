"""Replay of captured programs: one native call where a device has graphs, call by call where somebody listens."""

import threading

import numpy as np
import pytest

from gradlet import GlobalCounters, Tensor, jit
from gradlet.base import events, settings
from gradlet.device.cpu import graph, launching
from gradlet.engine.replay import GraphSegment, Runner


def program_of(function):
    """The latest captured program."""
    return list(function.captures.values())[-1].program


def chain(count):
    @jit
    def function(x):
        for _ in range(count):
            x = (x * 2 + 1).realize()
        return x

    return function


def expected(x, count):
    for _ in range(count):
        x = x * 2 + 1
    return x


def ready(count, size=8):
    function = chain(count)
    for _ in range(3):
        function(Tensor(np.ones(size, np.float32)))
    return function


def test_a_program_is_one_native_call(monkeypatch):
    function = ready(7)
    runs = []
    run = graph.CpuGraph.run
    monkeypatch.setattr(graph.CpuGraph, "run", lambda self: (runs.append(self), run(self)))
    monkeypatch.setattr(launching.CpuProgram, "__call__", lambda *_: pytest.fail("a kernel by itself"))
    x = np.arange(8, dtype=np.float32)
    before = GlobalCounters.kernels, GlobalCounters.ops, GlobalCounters.bytes
    np.testing.assert_array_equal(function(Tensor(x)).numpy(), expected(x, 7))
    assert len(runs) == 1
    counted = GlobalCounters.kernels - before[0], GlobalCounters.ops - before[1], GlobalCounters.bytes - before[2]
    assert counted == (7, 7 * 2 * 8, 7 * 2 * 8 * 4)


def test_listeners_hear_of_each_kernel():
    function = ready(5)
    x = np.arange(8, dtype=np.float32)
    with events.record() as heard:
        result = function(Tensor(x))
    np.testing.assert_array_equal(result.numpy(), expected(x, 5))
    assert sum(isinstance(event, events.KernelRan) for event in heard) == 5


def test_debug_shows_each_kernel(capsys):
    function = ready(3)
    with settings.scope(DEBUG=2):
        function(Tensor(np.zeros(8, np.float32)))
    assert len([line for line in capsys.readouterr().out.splitlines() if line.startswith("CPU")]) == 3


def test_other_devices_and_copies_split_the_program():
    @jit
    def function(x):
        y = (x + 1).realize().to("PYTHON")
        z = (y * 3).realize().to("CPU")
        return (z - x).realize()

    for step in range(4):
        x = np.arange(4, dtype=np.float32) + step
        np.testing.assert_array_equal(function(Tensor(x)).numpy(), (x + 1) * 3 - x)
    program = program_of(function)
    kinds = [isinstance(segment, GraphSegment) for segment in Runner(program, {}).segments]
    assert kinds == [True, False, False, False, True]


@pytest.mark.parametrize("eager", [False, True], ids=["inline", "pool"])
def test_threads_replay_one_program_at_once(monkeypatch, eager):
    if eager:
        monkeypatch.setattr(launching, "INLINE_SECONDS", 1e-12)
    size = 1 << 13
    with settings.scope(NUM_THREADS=2):
        function = ready(6, size)
        wrong = []

        def work(seed):
            x = np.full(size, seed, np.float32)
            for _ in range(30):
                if not np.array_equal(function(Tensor(x)).numpy(), expected(x, 6)):
                    wrong.append(seed)

        threads = [threading.Thread(target=work, args=(seed,)) for seed in range(3)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(timeout=60)
    assert wrong == []


def test_the_number_of_threads_may_change_between_calls():
    size = 1 << 16
    function = ready(3, size)
    x = np.arange(size, dtype=np.float32)
    for threads in (1, 2, 1, 3):
        with settings.scope(NUM_THREADS=threads):
            np.testing.assert_array_equal(function(Tensor(x)).numpy(), expected(x, 3))
