"""The CPU backend: kernels and launches as machine code in this process, on one thread or on all of them."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property, lru_cache
from typing import Any

from gradlet.base import events
from gradlet.device.common import llvm
from gradlet.device.common.hostmemory import HostAllocator
from gradlet.device.cpu.graph import CpuGraph
from gradlet.device.cpu.image import MAGIC
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


@lru_cache(maxsize=64)  # it is asked for when code is made, and when that is described
def _cache_name(source: str, target: Target) -> str:
    return diskcache.key(source, target.key, llvm.version(), MAGIC.hex())


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
        from gradlet.device.cpu.assembly import has_images  # programs that are recalled need no renderer
        from gradlet.render.llvmlaunch import render

        return render(program, self.target, has_images(self.target) and not _calls_library(program))

    def cache_name(self, source: str) -> str:
        """The name of this source's code in the cache on disk."""
        return _cache_name(source, self.target)

    def compile(self, program: AnyProgram) -> bytes:
        """The code of a kernel or a launch: an image, or object code where that is what can be loaded."""
        return self.assemble(self.render(program), program.name)

    def assemble(self, source: str, name: str) -> bytes:
        """The code of LLVM IR, from the cache on disk where it has it; `name` is for listeners."""
        (code,) = self.assemble_together([(source, name)])
        return code

    def assemble_together(self, sources: Sequence[tuple[str, str]]) -> list[bytes]:
        """What `assemble` has for each of these texts and names; LLVM gets those that are missing as one module."""
        entries = [self.cache_name(source) for source, _ in sources]
        found: dict[str, bytes] = {}
        missing: dict[str, str] = {}
        for entry, (source, name) in zip(entries, sources):
            code = diskcache.get(entry) if entry not in missing else None
            if code is None:
                missing[entry] = source
                continue
            found[entry] = code
            if events.active():
                events.emit(events.CacheHit("disk", name))
        if missing:
            from gradlet.device.cpu import assembly  # what is recalled needs neither renderer nor LLVM

            for entry, code in zip(missing, assembly.assemble_together([*missing.values()], self.target)):
                found[entry] = code
                diskcache.put(entry, code)
        return [found[entry] for entry in entries]

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
