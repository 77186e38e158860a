"""From a kernel's graph to something that runs: lowering, compilation, and the cache of both in this process."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from gradlet.base import events, settings
from gradlet.engine import programs, report
from gradlet.graph.launch import is_launch
from gradlet.graph.node import UOp
from gradlet.graph.program import AnyProgram
from gradlet.runtime.buffer import Buffer
from gradlet.runtime.device import Device


class Kernel(Protocol):
    """A kernel ready to run on one device: its name, and the work of one launch."""

    @property
    def name(self) -> str: ...

    @property
    def flops(self) -> int: ...

    @property
    def bytes(self) -> int: ...

    def run(self, buffers: Sequence[Buffer], values: Sequence[int], wait: bool) -> float | None:
        """Launch; with `wait` return the seconds it took."""


@dataclass(frozen=True)
class CompiledKernel:
    """Machine code behind the `Kernel` protocol."""

    name: str
    flops: int
    bytes: int
    ast: UOp
    device: str
    program: Any

    def run(self, buffers: Sequence[Buffer], values: Sequence[int], wait: bool) -> float | None:
        return self.program(buffers, values, wait)  # type: ignore[no-any-return]

    def lowered(self) -> AnyProgram:
        """The instructions behind the machine code, to look at: code generation does the same again."""
        return lower_kernel(self.ast, self.device)


@dataclass(frozen=True)
class InterpretedKernel:
    """A kernel's graph run by the reference evaluator (device PYTHON)."""

    name: str
    flops: int
    bytes: int
    ast: UOp
    backend: Any

    def run(self, buffers: Sequence[Buffer], values: Sequence[int], wait: bool) -> float | None:
        start = time.perf_counter()
        self.backend.run(self.ast, buffers, values)
        return time.perf_counter() - start if wait else None


# Kernels by (graph, device, settings that change code). Equal kernels are the same node, so the look-up is by identity.
_kernels: dict[tuple[Any, ...], Kernel] = {}
KERNELS_KEPT = 8192


def get_kernel(ast: UOp, device: str) -> Kernel:
    """The kernel for this graph on this device: from the cache of this process, else compiled now."""
    key = (ast, device, settings.codegen_key())
    found = _kernels.get(key)
    if found is None:
        found = build_kernel(ast, device)
        while len(_kernels) >= KERNELS_KEPT:
            del _kernels[next(iter(_kernels))]
        _kernels[key] = found
    return found


def build_kernel(ast: UOp, device: str) -> Kernel:
    """A kernel, or a launch of several: recalled from disk, else compiled, showing what DEBUG asks for."""
    backend: Any = Device[device]
    if settings.BEAM:
        from gradlet.engine import beam  # only a search pays for it

        ast = beam.scheduled(ast, device)
    if getattr(backend, "interprets", False):
        return InterpretedKernel(ast.arg.name, 0, 0, ast, backend)
    if not (settings.CACHE and getattr(backend, "recalls", False)):
        linear = lower_kernel(ast, device)
        report.show_lowering(ast, linear, backend)
        program = backend.load(linear.name, backend.compile(linear), linear)
        return CompiledKernel(linear.name, linear.flops, linear.bytes, ast, device, program)
    entry = programs.entry_name(ast, backend.target)
    record = programs.recall(entry) if settings.DEBUG < report.SHOWS_LOWERING else None
    program = backend.recall(record.described) if record is not None else None
    if record is not None and program is not None:
        if events.active():
            events.emit(events.CacheHit("disk", record.name))
        return CompiledKernel(record.name, record.flops, record.bytes, ast, device, program)
    linear = lower_kernel(ast, device)
    report.show_lowering(ast, linear, backend)
    source = backend.render(linear)
    code = backend.assemble(source, linear.name)
    record = programs.Record(linear.name, linear.flops, linear.bytes, backend.describe(source, linear))
    programs.remember(entry, record)
    program = backend.load(linear.name, code, linear)
    return CompiledKernel(linear.name, linear.flops, linear.bytes, ast, device, program)


def lower_kernel(ast: UOp, device: str) -> AnyProgram:
    """The instructions of one kernel, or of one launch of several."""
    from gradlet.codegen import launch, pipeline  # who recalls all kernels from disk never needs them

    lower = launch.lower_launch if is_launch(ast.arg) else pipeline.lower
    return lower(ast, Device[device].target, report.pass_observers())
