"""CUDA graphs over a made-up driver: what a replay launches, which nodes it changes, and that results are right."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from gradlet import Tensor, Variable, jit
from gradlet.base.errors import DeviceError
from gradlet.device.cuda.graph import CudaGraph
from gradlet.device.cuda.launching import Arguments
from gradlet.runtime.device import GraphLaunch
from tests.device.cuda import emulate


class Driver:
    """A driver whose kernels are functions of words; it notes what it is asked for."""

    stream = "stream"

    def __init__(self) -> None:
        self.asked: list[str] = []
        self.graphs: list[list[Any]] = []  # a node: function, the words that it was given last
        self.fails = ""

    def activate(self) -> None: ...

    def call(self, name: str, *args: Any) -> Any:
        self.asked.append(name)
        if name == self.fails:
            raise DeviceError("the driver refuses it")
        return getattr(self, name)(*args)

    def cuGraphCreate(self, flags: int) -> list[Any]:
        self.graphs.append([])
        return self.graphs[-1]

    def cuGraphAddKernelNode(self, graph: list[Any], before: list[Any], count: int, node: Any) -> int:
        assert before == [len(graph) - 1] * min(len(graph), 1) and count == len(before)  # one after the other
        graph.append([node.func, self._words(node)])
        return len(graph) - 1

    def cuGraphInstantiate(self, graph: list[Any], flags: int) -> list[Any]:
        return [list(node) for node in graph]

    def cuGraphExecKernelNodeSetParams(self, ready: list[Any], number: int, node: Any) -> None:
        ready[number][1] = self._words(node)

    def cuGraphLaunch(self, ready: list[Any], stream: str) -> None:
        assert stream == self.stream
        for function, words in ready:
            function(words)

    def cuGraphExecDestroy(self, ready: list[Any]) -> None: ...

    def cuGraphDestroy(self, graph: list[Any]) -> None: ...

    @staticmethod
    def _words(node: Any) -> tuple[int, ...]:
        """What the driver copies out of memory when it is given a node."""
        places = (ctypes.c_void_p * node.count).from_address(node.kernelParams)
        return tuple([ctypes.c_int64.from_address(place).value for place in places])


class Program:
    """A kernel of the made-up driver."""

    def __init__(self, count: int, function: Any) -> None:
        self.count, self.function = count, function

    def new_arguments(self) -> Arguments:
        return Arguments(self.count, 0)

    def put(self, arguments: Arguments, words: Any) -> None:
        for place, word in enumerate(words):
            arguments.words[place] = word

    def node_parameters(self, arguments: Arguments) -> Any:
        return SimpleNamespace(func=self.function, kernelParams=arguments.address, count=self.count)


def make(count: int = 3) -> tuple[Driver, CudaGraph, list[tuple[int, ...]]]:
    """A graph of launches that each take a word of their own and the last one."""
    driver, ran = Driver(), []
    launches = [GraphLaunch(Program(2, ran.append), (n, count)) for n in range(count)]
    return driver, CudaGraph(driver, launches, count + 1), ran  # type: ignore[arg-type]


def fill(graph: CudaGraph, *words: int) -> None:
    for place, word in enumerate(words):
        graph.words[place] = word


def test_a_run_is_one_launch_and_the_graph_is_made_once() -> None:
    driver, graph, ran = make()
    fill(graph, 10, 20, 30, -5)
    for _ in range(4):
        graph.run()
    assert ran == [(10, -5), (20, -5), (30, -5)] * 4 and graph.runs == 4
    assert driver.asked == [
        "cuGraphCreate", *["cuGraphAddKernelNode"] * 3, "cuGraphInstantiate", *["cuGraphLaunch"] * 4
    ]  # fmt: skip


def test_only_nodes_whose_words_changed_get_new_ones() -> None:
    driver, graph, ran = make()
    fill(graph, 10, 20, 30, 1)
    graph.run()
    driver.asked.clear()
    graph.words[1] = 21
    graph.run()
    assert ran[3:] == [(10, 1), (21, 1), (30, 1)]
    assert driver.asked == ["cuGraphExecKernelNodeSetParams", "cuGraphLaunch"]
    driver.asked.clear()
    graph.words[3] = 2
    graph.run()
    assert ran[6:] == [(10, 2), (21, 2), (30, 2)]
    assert driver.asked == [*["cuGraphExecKernelNodeSetParams"] * 3, "cuGraphLaunch"]


@pytest.mark.parametrize("step", ["cuGraphInstantiate", "cuGraphExecKernelNodeSetParams", "cuGraphAddKernelNode"])
def test_after_a_failure_every_node_is_set_again(step: str) -> None:
    driver, graph, ran = make()
    fill(graph, 10, 20, 30, 1)
    if "Exec" in step:
        graph.run()
        ran.clear()
    fill(graph, 11, 21, 31, 2)
    driver.fails = step
    with pytest.raises(DeviceError):
        graph.run()
    driver.fails = ""
    assert ran == [] and graph.runs == int("Exec" in step)
    graph.run()
    assert ran == [(11, 2), (21, 2), (31, 2)]


def test_a_graph_gives_back_what_the_driver_holds() -> None:
    driver, graph, _ = make()
    graph.run()
    del graph
    assert driver.asked[-2:] == ["cuGraphExecDestroy", "cuGraphDestroy"]


class EmulatedLaunch(Program):
    """A kernel of the device EMULATED as the made-up driver launches it."""

    def __init__(self, program: Any) -> None:
        program = program.program
        pointers, values = len(program.params), len(program.variables)

        def function(words: tuple[int, ...]) -> None:
            addresses = (ctypes.c_void_p * max(1, pointers))(*words[:pointers])
            numbers = (ctypes.c_longlong * max(1, values))(*words[pointers:])
            assert not emulate._library(emulate.source(program))(addresses, numbers, program.grid, program.threads)

        super().__init__(pointers + values, function)


@pytest.fixture
def driver(monkeypatch: pytest.MonkeyPatch) -> Iterator[Driver]:
    """The device EMULATED with graphs."""
    if emulate.COMPILER is None:
        pytest.skip("no C++ compiler")
    driver = Driver()
    emulate.register()

    def graph(_: Any, launches: list[GraphLaunch], words: int) -> CudaGraph:
        return CudaGraph(driver, [GraphLaunch(EmulatedLaunch(p), w) for p, w in launches], words)  # type: ignore[arg-type]

    monkeypatch.setattr(emulate.EmulatedBackend, "graphs", True, raising=False)
    monkeypatch.setattr(emulate.EmulatedBackend, "graph", graph, raising=False)
    yield driver
    emulate.unregister()


def test_replay_of_a_captured_function_is_one_launch(driver: Driver) -> None:
    @jit
    def function(x: Tensor) -> Tensor:
        for _ in range(3):
            x = (x * 2 + 1).realize()
        return x

    results = []
    for step in range(5):
        x = np.arange(6, dtype=np.float32) + step
        before = driver.asked.count("cuGraphLaunch")
        results.append((function(Tensor(x, device="EMULATED")), x * 8 + 7))
        assert driver.asked.count("cuGraphLaunch") - before == (step > 0)
    for found, wanted in results:  # each keeps its value
        np.testing.assert_array_equal(found.numpy(), wanted)
    assert driver.asked.count("cuGraphInstantiate") == 1 == len(driver.graphs) and len(driver.graphs[0]) == 3


def test_positions_and_state_move_on_without_another_graph(driver: Driver) -> None:
    memory = Tensor.zeros(9, 2, device="EMULATED").contiguous().realize()
    at = Variable("at", 0, 8)

    @jit
    def append(x: Tensor, place: Any) -> Tensor:
        memory[place : place + 1] = x
        return memory[: place + 1].sum(0)

    total = np.zeros(2, np.float32)
    for step in range(7):
        x = np.float32([[step, 2 * step + 1]])
        total += x[0]
        found = append(Tensor(x, device="EMULATED"), at.bind(step))
        np.testing.assert_array_equal(found.numpy(), total)
    assert driver.asked.count("cuGraphInstantiate") == 1 and driver.asked.count("cuGraphLaunch") == 6
