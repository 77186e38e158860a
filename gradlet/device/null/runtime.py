"""The NULL backend: compiles kernels for any LLVM target and runs nothing.

`NULL` is for the most common CPU target, `NULL:avx2`, `NULL:nvptx`, ... for the one named.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property

from gradlet.base.errors import DeviceError
from gradlet.device.common import llvm
from gradlet.graph.program import AnyProgram
from gradlet.render import cuda, llvmlaunch
from gradlet.runtime.buffer import Buffer
from gradlet.runtime.counters import GlobalCounters
from gradlet.target.target import AVX2, TARGETS, Target


class NullAllocator:
    """Counts bytes and holds none."""

    def allocate(self, nbytes: int, label: str) -> int:
        """An address that nothing lies behind."""
        GlobalCounters.mem_used += nbytes
        return 64

    def free(self, address: int, nbytes: int) -> None:
        """Forget the bytes."""
        GlobalCounters.mem_used -= nbytes

    def view(self, address: int, nbytes: int, owner: object) -> memoryview:
        """There is nothing to see.

        Raises:
            DeviceError: always.
        """
        raise DeviceError("device NULL computes nothing and holds no values; use CPU or PYTHON to see results")

    def write(self, address: int, source: memoryview) -> None:
        """Values are dropped."""

    def read(self, address: int, target: memoryview) -> None:
        """There is nothing to read.

        Raises:
            DeviceError: always.
        """
        raise DeviceError("device NULL computes nothing and holds no values; use CPU or PYTHON to see results")


class NullProgram:
    """A kernel that was compiled and does not run."""

    def __init__(self, code: bytes) -> None:
        self.code = code

    def __call__(self, buffers: Sequence[Buffer], values: Sequence[int], wait: bool = False) -> float | None:
        for buffer in buffers:
            buffer.allocate()
        return 0.0 if wait else None


class NullBackend:
    """Device NULL."""

    interprets = False
    measurable = False

    def __init__(self, name: str, target: Target) -> None:
        self.name = name
        self._target = target

    @property
    def target(self) -> Target:
        """The target after the colon of the device's name."""
        return self._target

    @cached_property
    def allocator(self) -> NullAllocator:
        """Counts only."""
        return NullAllocator()

    def render(self, program: AnyProgram) -> str:
        """LLVM IR or CUDA C of a kernel or a launch."""
        if self.target.language == "cuda":
            return cuda.render(program, self.target)
        return llvmlaunch.render(program, self.target)

    def compile(self, program: AnyProgram) -> bytes:
        """Assembly text of a kernel or a launch (PTX for `NULL:nvptx`)."""
        return self.assemble(self.render(program), program.name)

    def assemble(self, source: str, name: str) -> bytes:
        """Assembly text of LLVM IR; CUDA C as it is."""
        if self.target.language == "cuda":
            return source.encode()
        return llvm.emit_assembly(source, self.target).encode()

    def load(self, name: str, code: bytes, program: AnyProgram) -> NullProgram:
        """Keep the code to look at."""
        return NullProgram(code)


def open_backend(name: str) -> NullBackend:
    """The backend of device `name`.

    Raises:
        DeviceError: no such target after the colon.
    """
    chosen = name.partition(":")[2]
    if chosen and chosen not in TARGETS:
        raise DeviceError(f"device {name!r}: unknown target {chosen!r}; use one of: {', '.join(TARGETS)}")
    return NullBackend(name, TARGETS[chosen] if chosen else AVX2)
