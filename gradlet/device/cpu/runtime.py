"""The CPU backend: kernels as machine code in this process, on one thread or on all of them."""

from __future__ import annotations

import ctypes
import struct
import time
from collections.abc import Sequence
from functools import cached_property
from typing import Final

from gradlet.base import events, settings
from gradlet.device.common import llvm
from gradlet.device.common.hostmemory import HostAllocator
from gradlet.device.cpu import pool
from gradlet.device.cpu.jit import Loaded, load
from gradlet.device.cpu.target import host_target, usable_cores
from gradlet.graph.program import LinearProgram
from gradlet.render.llvmir import render
from gradlet.runtime import diskcache
from gradlet.runtime.buffer import Buffer
from gradlet.target.target import Target

# A kernel shorter than this runs on the calling thread: handing work over costs about a microsecond, waking a sleeping
# worker about thirty. Rates are those of one core on data in its cache.
INLINE_SECONDS: Final = 5e-6
CORE_FLOPS_PER_SECOND: Final = 20e9
CORE_BYTES_PER_SECOND: Final = 30e9
# Parts for each thread: more even out uneven cores, fewer cost less.
PARTS_PER_THREAD: Final = 4
_HEADER_BYTES: Final = 8 * pool.HEADER_WORDS


class _Words:
    """Memory of one launch: the pool's words, then the kernel's table."""

    def __init__(self, header: tuple[int, ...], count: int) -> None:
        self.memory = ctypes.create_string_buffer(_HEADER_BYTES + 8 * count)
        struct.pack_into(f"<{len(header)}q", self.memory, 0, *header)
        self.address = ctypes.addressof(self.memory)
        self.table = self.address + _HEADER_BYTES


class CpuProgram:
    """A loaded kernel. Calling it runs it to its end."""

    def __init__(self, loaded: Loaded, program: LinearProgram) -> None:
        self._loaded = loaded  # the code lives as long as this
        self._address = loaded.addresses[program.name]
        self._function = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_int64, ctypes.c_int64)(self._address)
        self._grid = program.grid
        self._count = len(program.params) + len(program.variables)
        self._pack = struct.Struct(f"<{self._count}q").pack_into
        self._seconds = max(program.flops / CORE_FLOPS_PER_SECOND, program.bytes / CORE_BYTES_PER_SECOND)
        self._is_small = program.grid <= 1 or self._seconds < INLINE_SECONDS or not pool.is_supported()
        # Each launch takes words nobody else uses: several Python threads may run the same kernel.
        self._idle: list[_Words] = []

    def __call__(self, buffers: Sequence[Buffer], values: Sequence[int], wait: bool = False) -> float | None:
        if wait:
            start = time.perf_counter()
            self._launch(buffers, values)
            return time.perf_counter() - start
        self._launch(buffers, values)
        return None

    def _launch(self, buffers: Sequence[Buffer], values: Sequence[int]) -> None:
        try:
            words = self._idle.pop()
        except IndexError:
            words = self._new_words()
        self._pack(words.memory, _HEADER_BYTES, *[b.address for b in buffers], *values)
        if self._is_small:
            self._function(words.table, 0, self._grid)
        else:
            self._launch_parallel(words)
        self._idle.append(words)

    def _launch_parallel(self, words: _Words) -> None:
        threads = thread_count()
        if threads == 1:
            self._function(words.table, 0, self._grid)
        else:
            pool.pool_of(threads).run(words.address)

    def _new_words(self) -> _Words:
        by_work = max(2, int(self._seconds / INLINE_SECONDS))
        parts = min(self._grid, PARTS_PER_THREAD * thread_count(), by_work)
        return _Words((self._address, self._grid, max(1, parts)), self._count)


_thread_count: dict[int, int] = {}


def thread_count() -> int:
    """Threads a parallel kernel runs on. The cores of the process are looked up once for each value of NUM_THREADS."""
    asked: int = settings.NUM_THREADS.value
    found = _thread_count.get(asked)
    if found is None:
        found = _thread_count[asked] = usable_cores()
    return found


class CpuBackend:
    """Device CPU."""

    interprets = False

    def __init__(self, name: str) -> None:
        self.name = name

    @property
    def target(self) -> Target:
        """This machine, with the vector instructions that CPU_FEATURES allows."""
        return host_target()

    @cached_property
    def allocator(self) -> HostAllocator:
        """Process memory."""
        return HostAllocator(self.name)

    def render(self, program: LinearProgram) -> str:
        """LLVM IR of a kernel."""
        return render(program, self.target)

    def compile(self, program: LinearProgram) -> bytes:
        """Object code of a kernel."""
        target = self.target
        source = render(program, target)
        name = diskcache.key(source, target.key, llvm.version(), f"level {llvm.CODEGEN_LEVEL}")
        code = diskcache.get(name)
        if code is None:
            code = llvm.emit_object(source, target, for_jit=True)
            diskcache.put(name, code)
        elif events.active():
            events.emit(events.CacheHit("disk", program.name))
        return code

    def load(self, name: str, code: bytes, program: LinearProgram) -> CpuProgram:
        """Link the kernel into this process."""
        return CpuProgram(load(code, (name,)), program)


def open_backend(name: str) -> CpuBackend:
    """The backend of device `name`."""
    return CpuBackend(name)
