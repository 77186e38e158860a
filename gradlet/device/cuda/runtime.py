"""The CUDA backend: `CUDA` is the first GPU, `CUDA:1` the second."""

from __future__ import annotations

import os
from array import array
from collections.abc import Callable, Sequence
from functools import cached_property
from typing import Any

from gradlet.base import events, settings
from gradlet.device.cuda import compiler, tensormap
from gradlet.device.cuda.driver import Gpu
from gradlet.device.cuda.graph import CudaGraph
from gradlet.device.cuda.launching import CudaProgram
from gradlet.device.cuda.memory import CudaAllocator
from gradlet.device.cuda.target import capability, gpu_target
from gradlet.graph.program import AnyProgram, LinearProgram
from gradlet.render import cuda
from gradlet.runtime import diskcache
from gradlet.runtime.buffer import Buffer
from gradlet.runtime.device import GraphLaunch
from gradlet.target.target import Target


class CudaBackend:
    """One GPU."""

    interprets = False
    measurable = True
    recalls = True
    graphs = True

    def __init__(self, name: str) -> None:
        self.name = name
        self.gpu = Gpu(int(name.partition(":")[2] or 0))
        self.allocator = CudaAllocator(name, self.gpu)

    @property
    def compilers(self) -> int:
        """NVRTC works on as many kernels at once as there are threads that ask it."""
        return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1

    @cached_property
    def target(self) -> Target:
        """The facts about this GPU."""
        return gpu_target(self.gpu)

    @cached_property
    def architecture(self) -> str:
        """What NVRTC compiles for."""
        return compiler.architecture(*capability(self.gpu))

    def render(self, program: AnyProgram) -> str:
        """CUDA C of a kernel."""
        return cuda.render(program, self.target)

    def compile(self, program: AnyProgram) -> bytes:
        """Machine code of a kernel."""
        return self.assemble(self.render(program), program.name)

    @cached_property
    def _compiler(self) -> str:
        return f"nvrtc {compiler.version()} {self.architecture}"

    def cache_name(self, source: str) -> str:
        """Where the code of this source is kept."""
        return diskcache.key("cuda", self._compiler, source)

    def assemble(self, source: str, name: str) -> bytes:
        """The code of CUDA C, from the cache on disk where it has it; `name` is the kernel's."""
        entry = self.cache_name(source)
        code = diskcache.get(entry) if settings.CACHE else None
        if code is None:
            code = compiler.compile_cuda(source, name, self.architecture)
            diskcache.put(entry, code)
        elif events.active():
            events.emit(events.CacheHit("disk", name))
        return code

    def load(self, name: str, code: bytes, program: AnyProgram) -> CudaProgram:
        """Have the kernel on the GPU."""
        return CudaProgram(self.gpu, code, *_facts(program))

    def describe(self, source: str, program: AnyProgram) -> list[Any]:
        """All that `recall` needs to run this program again."""
        return [self.cache_name(source), *_facts(program)]

    def recall(self, described: Sequence[Any]) -> CudaProgram | None:
        """A program that was described before; None when its code is no longer kept."""
        entry, *facts = described
        code = diskcache.get(entry)
        return None if code is None else CudaProgram(self.gpu, code, *facts)

    def graph(self, launches: Sequence[GraphLaunch], words: int) -> CudaGraph:
        """Launches as one CUDA graph."""
        return CudaGraph(self.gpu, launches, words)

    def timer(
        self, program: CudaProgram, buffers: Sequence[Buffer], values: Sequence[int], count: int
    ) -> Callable[[], float]:  # fmt: skip
        """A function that runs a program so many times in a row, and returns the seconds of one run.

        All are one graph between two events, so that nothing of the host's work is in the time.
        """
        words = [*[b.address for b in buffers], *values]
        graph = CudaGraph(self.gpu, [GraphLaunch(program, tuple(range(len(words))))] * count, len(words))
        graph.words[:] = memoryview(array("q", words))
        return lambda: self.gpu.seconds(graph.run) / count

    def synchronize(self) -> None:
        """Wait for all kernels and copies."""
        self.gpu.synchronize()


def _facts(program: AnyProgram) -> tuple[str, int, int, int, int, list[tensormap.Box]]:
    """What a launch has to know: name, blocks, lanes of each, shared memory, words of arguments, tensor maps."""
    assert isinstance(program, LinearProgram)  # `render` has refused others
    words = len(program.params) + len(program.variables)
    slots = [p.arg.slot for p in program.params]
    maps = [tensormap.box(slots.index(b.slot), b.dtype, b.arg) for b in cuda.boxes_of(program)]
    return program.name, program.grid, program.threads, cuda.shared_bytes(program), words, maps


def open_backend(name: str) -> CudaBackend:
    """The backend of device `name`.

    Raises:
        DeviceError: no driver, no such GPU, or a package is missing.
    """
    return CudaBackend(name)
