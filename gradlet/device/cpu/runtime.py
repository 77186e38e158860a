"""The CPU backend: kernels and launches as machine code in this process, on one thread or on all of them."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property, lru_cache
from typing import Any

from gradlet.base import events
from gradlet.base.errors import RenderError
from gradlet.device.common import llvm
from gradlet.device.common.hostmemory import HostAllocator
from gradlet.device.cpu.graph import CpuGraph
from gradlet.device.cpu.image import MAGIC, image_of, is_supported
from gradlet.device.cpu.jit import Loaded, load
from gradlet.device.cpu.launching import CpuProgram
from gradlet.device.cpu.plan import LaunchPlan, launch_plan, plan_from
from gradlet.device.cpu.target import host_target
from gradlet.graph.program import AnyProgram, LinearProgram
from gradlet.runtime import diskcache
from gradlet.runtime.device import GraphLaunch
from gradlet.target.target import TRANSCENDENTAL, Target


def link(code: bytes, plan: LaunchPlan) -> Loaded:
    """The functions of a kernel or a launch, in this process."""
    return load(code, plan.stages, plan.entries)


@lru_cache(maxsize=128)
def _shared_code(source: str, target: Target) -> bytes:
    """Object code of a body that several launches have."""
    return llvm.emit_object(source, target)


def _calls_library(program: AnyProgram) -> bool:
    """Whether a launch calls libm: only a real linker can load it, and that takes one module."""
    bodies = () if isinstance(program, LinearProgram) else program.programs
    return any(not TRANSCENDENTAL.isdisjoint([node.op for node in body.uops]) for body in bodies)


class CpuBackend:
    """Device CPU."""

    interprets = False
    measurable = True
    recalls = True
    graphs = True

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

    def render(self, program: AnyProgram) -> str:
        """LLVM IR of a kernel or a launch."""
        from gradlet.render.llvmlaunch import render  # programs that are recalled need no renderer

        return render(program, self.target, self._links and not _calls_library(program))

    @cached_property
    def _links(self) -> bool:
        """Whether code in several modules becomes one image here."""
        return self.target.triple.startswith("x86_64") and is_supported()

    def cache_name(self, source: str) -> str:
        """The name of this source's code in the cache on disk."""
        return diskcache.key(source, self.target.key, llvm.version(), MAGIC.hex())

    def compile(self, program: AnyProgram) -> bytes:
        """The code of a kernel or a launch: an image, or object code where that is what can be loaded."""
        return self.assemble(self.render(program), program.name)

    def assemble(self, source: str, name: str) -> bytes:
        """The code of LLVM IR, from the cache on disk where it has it; `name` is for listeners."""
        entry = self.cache_name(source)
        code = diskcache.get(entry)
        if code is None:
            code = self._emit(source)
            diskcache.put(entry, code)
        elif events.active():
            events.emit(events.CacheHit("disk", name))
        return code

    def _emit(self, source: str) -> bytes:
        from gradlet.render.llvmlaunch import modules

        first, others = modules(source)
        code = llvm.emit_object(first, self.target)
        image = image_of(code, {name: _shared_code(text, self.target) for name, text in others.items()})
        if image is None and others:
            raise RenderError("the code of a launch and its bodies does not become one image; please report this")
        return image or code

    def load(self, name: str, code: bytes, program: AnyProgram) -> CpuProgram:
        """Link the kernel or the launch into this process."""
        plan = launch_plan(program)
        return CpuProgram(link(code, plan), plan)

    def describe(self, source: str, program: AnyProgram) -> list[Any]:
        """All that `recall` needs to run this program again, as lists, texts and numbers."""
        return [self.cache_name(source), *launch_plan(program)]

    def recall(self, described: Sequence[Any]) -> CpuProgram | None:
        """A program that was described before, in this process or another; None when its code is no longer kept."""
        entry, *fields = described
        code = diskcache.get(entry)
        if code is None:
            return None
        plan = plan_from(fields)
        return CpuProgram(link(code, plan), plan)

    def graph(self, launches: Sequence[GraphLaunch], words: int) -> CpuGraph:
        """Launches that run as one native call."""
        return CpuGraph(launches, words)


def open_backend(name: str) -> CpuBackend:
    """The backend of device `name`."""
    return CpuBackend(name)
