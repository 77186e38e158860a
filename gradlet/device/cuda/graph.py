"""A captured program as one CUDA graph: its nodes get the addresses and values that changed, then one launch runs it.

The graph is made once: which kernels run in which order never changes. Launches that are on their way keep the
arguments which they began with, so that the host prepares the next run while the GPU is busy with the last one.
"""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final

from gradlet.device.cuda.driver import Gpu
from gradlet.runtime.device import GraphLaunch

if TYPE_CHECKING:
    from gradlet.device.cuda.launching import CudaProgram

_WORD: Final = 8  # bytes


class CudaGraph:
    """Launches of one GPU in order. One thread at a time may write its words and run it.

    Attributes:
        words: addresses by slot, then values; a run uses what they are when it begins.
        runs: how often all was launched.
    """

    def __init__(self, gpu: Gpu, launches: Sequence[GraphLaunch], words: int) -> None:
        self._gpu = gpu
        self._programs: list[CudaProgram] = [launch.program for launch in launches]  # their code lives as long as this
        self._takes = [launch.words for launch in launches]
        self._arguments = [program.new_arguments() for program in self._programs]
        memory = (ctypes.c_int64 * max(1, words))()
        self.words = memoryview(memory).cast("B").cast("q")[:words]
        self.runs = 0
        self._readers: list[list[int]] = [[] for _ in range(words)]  # the launches that take each word
        for number, taken in enumerate(self._takes):
            for word in dict.fromkeys(taken):
                self._readers[word].append(number)
        self._graph: Any = None
        self._ready: Any = None
        self._nodes: list[Any] = []
        self._parameters: list[Any] = []
        self._given: bytes | None = None  # the words that all nodes have

    def run(self) -> None:
        """Launch everything; returns before it has run.

        Raises:
            DeviceError: the driver refuses it.
        """
        gpu = self._gpu
        gpu.activate()
        now = self.words.tobytes()
        if now != self._given:
            self._give(now)
        gpu.call("cuGraphLaunch", self._ready, gpu.stream)
        self.runs += 1

    def _give(self, now: bytes) -> None:
        """Let the nodes have these words: those of the last run are compared with them."""
        words, before = self.words, self._given
        self._given = None  # until all of them have theirs
        if self._ready is None:
            self._make()
        elif before is None:
            for number in range(len(self._nodes)):
                self._put(number)
                self._update(number)
        else:
            old = memoryview(before).cast("q")
            changed = [word for word, (a, b) in enumerate(zip(words, old, strict=True)) if a != b]
            for number in sorted({number for word in changed for number in self._readers[word]}):
                self._put(number)
                self._update(number)
        self._given = now

    def _put(self, number: int) -> None:
        words = self.words
        self._programs[number].put(self._arguments[number], [words[word] for word in self._takes[number]])

    def _update(self, number: int) -> None:
        self._gpu.call("cuGraphExecKernelNodeSetParams", self._ready, self._nodes[number], self._parameters[number])

    def _make(self) -> None:
        gpu = self._gpu
        self._destroy()
        self._graph = gpu.call("cuGraphCreate", 0)
        for number, (program, arguments) in enumerate(zip(self._programs, self._arguments, strict=True)):
            self._put(number)
            self._parameters.append(program.node_parameters(arguments))
            before = self._nodes[-1:]
            self._nodes.append(gpu.call("cuGraphAddKernelNode", self._graph, before, len(before), self._parameters[-1]))
        self._ready = gpu.call("cuGraphInstantiate", self._graph, 0)

    def _destroy(self) -> None:
        """Give back what the driver holds; launches that are on their way run to their end."""
        if self._ready is not None:
            self._gpu.call("cuGraphExecDestroy", self._ready)
        if self._graph is not None:
            self._gpu.call("cuGraphDestroy", self._graph)
        self._graph = self._ready = None
        self._nodes, self._parameters = [], []

    def __del__(self) -> None:
        if not sys.is_finalizing():
            self._destroy()
