"""From a kernel's graph to something that runs: lowering, compilation, and the cache of both in this process."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from gradlet.base import settings
from gradlet.codegen import pipeline
from gradlet.codegen.launch import lower_launch
from gradlet.engine import report
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
    linear: AnyProgram
    program: Any

    def run(self, buffers: Sequence[Buffer], values: Sequence[int], wait: bool) -> float | None:
        return self.program(buffers, values, wait)  # type: ignore[no-any-return]


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
    """Lower and compile one kernel, or one launch of several, showing each step that DEBUG asks for."""
    backend = Device[device]
    if settings.BEAM:
        from gradlet.engine import beam  # only a search pays for it

        ast = beam.scheduled(ast, device)
    if getattr(backend, "interprets", False):
        return InterpretedKernel(ast.arg.name, 0, 0, ast, backend)
    lower = lower_launch if is_launch(ast.arg) else pipeline.lower
    linear: AnyProgram = lower(ast, backend.target, report.pass_observers())
    report.show_lowering(ast, linear, backend)
    code = backend.compile(linear)
    program = backend.load(linear.name, code, linear)
    return CompiledKernel(linear.name, linear.flops, linear.bytes, linear, program)
