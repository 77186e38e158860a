"""The CUDA backend: `CUDA` is the first GPU, `CUDA:1` the second."""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Sequence
from functools import cached_property
from typing import Any

from gradlet.base import events, settings
from gradlet.device.cuda import compiler, tensormap
from gradlet.device.cuda.driver import Gpu
from gradlet.device.cuda.memory import CudaAllocator
from gradlet.device.cuda.target import capability, gpu_target
from gradlet.graph.program import AnyProgram, LinearProgram
from gradlet.render import cuda
from gradlet.runtime import diskcache
from gradlet.runtime.buffer import Buffer
from gradlet.target.target import Target

# More shared memory than this a kernel has to ask for, less what the compiler puts there.
USUAL_SHARED = 40 * 1024


class CudaProgram:
    """A kernel on a GPU."""

    def __init__(
        self, gpu: Gpu, code: bytes, name: str, grid: int, threads: int, shared: int, words: int,
        maps: Sequence[Any] = (),
    ) -> None:  # fmt: skip
        self.gpu = gpu
        self.grid, self.threads, self.shared = grid, threads, shared
        gpu.activate()
        self._module = gpu.call("cuModuleLoadData", code)
        self.function = gpu.call("cuModuleGetFunction", self._module, name.encode())
        if shared > USUAL_SHARED:
            kind = gpu.api.CUfunction_attribute.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
            gpu.call("cuFuncSetAttribute", self.function, kind, shared)
        # The driver reads the arguments before a launch returns.
        self._words = (ctypes.c_uint64 * max(1, words))()
        base = ctypes.addressof(self._words)
        self.maps = [tensormap.Box(*map(tensormap.frozen, row)) for row in maps]
        self._encoded: dict[tuple[int, int], bytes] = {}
        self._room = ctypes.create_string_buffer(tensormap.SIZE * (len(maps) + 1))
        self._first_map = -(-ctypes.addressof(self._room) // tensormap.SIZE) * tensormap.SIZE
        places = [base + 8 * i for i in range(words)]
        places += [self._first_map + tensormap.SIZE * i for i in range(len(maps))]
        self._places = (ctypes.c_void_p * max(1, len(places)))(*places)
        self._arguments = ctypes.addressof(self._places)
        self._lock = threading.Lock()

    def __call__(self, buffers: Sequence[Buffer], values: Sequence[int], wait: bool = False) -> float | None:
        gpu = self.gpu
        gpu.activate()
        begin = end = None
        if wait:
            begin, end = gpu.call("cuEventCreate", 0), gpu.call("cuEventCreate", 0)
            gpu.call("cuEventRecord", begin, gpu.stream)
        addresses = [b.address for b in buffers]
        with self._lock:
            words = self._words
            for i, address in enumerate(addresses):
                words[i] = address
            for i, value in enumerate(values, len(addresses)):
                words[i] = value & 0xFFFFFFFFFFFFFFFF
            for i, box in enumerate(self.maps):
                self._put_map(i, box, addresses[box.argument])
            gpu.call(
                "cuLaunchKernel", self.function, self.grid, 1, 1, self.threads, 1, 1, self.shared, gpu.stream,
                self._arguments, 0,
            )  # fmt: skip
        if not wait:
            return None
        gpu.call("cuEventRecord", end, gpu.stream)
        gpu.call("cuEventSynchronize", end)
        seconds = float(gpu.call("cuEventElapsedTime", begin, end)) / 1e3
        gpu.call("cuEventDestroy", begin)
        gpu.call("cuEventDestroy", end)
        return seconds

    def _put_map(self, number: int, box: tensormap.Box, address: int) -> None:
        """The tensor map of what lies at an address, among the arguments."""
        key = (number, address)
        encoded = self._encoded.get(key)
        if encoded is None:
            if len(self._encoded) >= tensormap.KEPT:
                self._encoded.clear()
            encoded = self._encoded[key] = tensormap.encode(self.gpu, box, address)
        ctypes.memmove(self._first_map + tensormap.SIZE * number, encoded, tensormap.SIZE)


class CudaBackend:
    """One GPU."""

    interprets = False
    measurable = True
    recalls = True

    def __init__(self, name: str) -> None:
        self.name = name
        self.gpu = Gpu(int(name.partition(":")[2] or 0))
        self.allocator = CudaAllocator(name, self.gpu)

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
