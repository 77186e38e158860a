"""Several kernels as one module of LLVM: the images that each has alone, and one module."""

from __future__ import annotations

import ctypes
import platform
import re
from collections.abc import Iterator

import numpy as np
import pytest

from gradlet.base.errors import RenderError
from gradlet.base.settings import scope
from gradlet.codegen.launch import SharedBodies, lower_launch
from gradlet.device.common import llvm
from gradlet.device.cpu import assembly, jit
from gradlet.device.cpu.image import MAGIC, image_of, take_apart
from gradlet.device.cpu.runtime import CpuBackend
from gradlet.device.cpu.target import host_target
from gradlet.engine.compile import lower_kernel, prepare_kernels
from gradlet.runtime.buffer import Buffer
from tests.codegen import kernels, launches
from tests.device.cpu.test_launch import contents, memory

pytestmark = pytest.mark.skipif(
    platform.machine() != "x86_64" or platform.system() != "Linux", reason="only images are cut out of larger files"
)


@pytest.fixture(autouse=True)
def modules(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """What LLVM gets; it knows no body yet."""
    seen: list[str] = []
    emit = llvm.emit_object
    monkeypatch.setattr(llvm, "emit_object", lambda *rest: seen.append(rest[0]) or emit(*rest))
    assembly.shared.clear()
    with scope(CACHE=0):
        yield seen


def test_every_launch_and_kernel_runs_as_from_a_module_of_its_own(modules: list[str]) -> None:
    backend = CpuBackend("CPU")
    cases = [make() for make in launches.ALL]
    programs = [lower_kernel(case.sink, "CPU") for case in cases]
    codes = backend.assemble_together([(backend.render(program), program.name) for program in programs])
    assert 1 < len(cases) and len(modules) <= 1 + sum(not code.startswith(MAGIC) for code in codes)
    for case, program, code in zip(cases, programs, codes, strict=True):
        buffers = memory(case)
        backend.load(program.name, code, program)(buffers, case.variables, True)
        launches.compare(case, contents(case, buffers))


def test_every_hand_built_kernel_is_the_code_that_it_is_alone(modules: list[str]) -> None:
    backend = CpuBackend("CPU")
    programs = [lower_kernel(make().sink, "CPU") for make in kernels.ALL]
    sources = [(backend.render(program), program.name) for program in programs]
    together = backend.assemble_together(sources)
    several = len(modules)
    assert several < len(sources) / 2
    for (source, name), program, code in zip(sources, programs, together, strict=True):
        alone = backend.assemble(source, name)
        assert alone.startswith(MAGIC) == code.startswith(MAGIC)
        if code.startswith(MAGIC):
            first, second = take_apart(alone), take_apart(code)
            assert first.functions.keys() == second.functions.keys() == {program.name}
            # No constants of other kernels but those that stand beside its own.
            assert len(second.code) < 3 * len(first.code) + 8192


HEAD = f'target triple = "{host_target().triple}"\n'
JUMPS = (
    HEAD
    + """
define void @jumps(ptr %table, i64 %begin, i64 %end) #0 {
entry:
  %place = load ptr, ptr %table, align 8
  switch i64 %begin, label %last [ i64 0, label %a i64 1, label %b i64 2, label %c i64 3, label %d i64 4, label %e ]
a:
  store double NUMBER.5, ptr %place, align 8
  ret void
b:
  call void @llvm.memset.p0.i64(ptr %place, i8 1, i64 8, i1 false)
  ret void
c:
  %x = load double, ptr %place, align 8
  %y = fadd double %x, NUMBER.25
  store double %y, ptr %place, align 8
  ret void
d:
  store i64 %end, ptr %place, align 8
  ret void
e:
  %n = load i64, ptr %place, align 8
  %m = mul i64 %n, %n
  store i64 %m, ptr %place, align 8
  ret void
last:
  ret void
}

declare void @llvm.memset.p0.i64(ptr, i8, i64, i1)

attributes #0 = { noinline nounwind }
"""
)


def test_jumps_through_tables_stay_in_their_function() -> None:
    sources = [JUMPS.replace("NUMBER", number).replace("@jumps", f"@jumps{number}") for number in ("1", "20", "300")]
    codes = assembly.assemble_together(sources, host_target())
    for number, code in zip((1, 20, 300), codes, strict=True):
        assert code.startswith(MAGIC)
        loaded = jit.load(code, (f"jumps{number}",))
        run = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_int64, ctypes.c_int64)(*loaded.addresses.values())
        place = np.zeros(1)
        table = (ctypes.c_void_p * 1)(place.ctypes.data)
        results = []
        for case in (0, 2, 3, 4, 1, 5):
            run(ctypes.addressof(table), case, 7)
            results.append(place[0] if case in (0, 2) else int(place.view(np.int64)[0]))
        assert results == [number + 0.5, 2 * number + 0.75, 7, 49, 0x0101010101010101, 0x0101010101010101]


def test_what_calls_a_library_is_a_module_of_its_own(modules: list[str]) -> None:
    library = JUMPS.replace("NUMBER", "1").replace("@llvm.memset.p0.i64(ptr %place, i8 1, i64 8, i1 false)", "@abort()")
    library = library.replace("declare void @llvm.memset.p0.i64(ptr, i8, i64, i1)", "declare void @abort()")
    others = [JUMPS.replace("NUMBER", number) for number in ("2", "3")]
    codes = assembly.assemble_together([others[0], library, others[1]], host_target())
    assert [code.startswith(MAGIC) for code in codes] == [True, False, True]
    assert len(modules) == 2 and modules[1] == library
    assert image_of(codes[1]) is None


def test_a_text_that_llvm_refuses_is_the_error_of_its_kernel(monkeypatch: pytest.MonkeyPatch) -> None:
    backend = CpuBackend("CPU")
    cases = [launches.pack((7, 61)), launches.mixed(), launches.pack((5, 61))]
    name = cases[1].sink.arg.name
    render = CpuBackend.render

    def broken(self: CpuBackend, program: object) -> str:
        text = render(self, program)  # type: ignore[arg-type]
        return text.replace("ret void", "ret voided") if f"@{name}_" in text else text

    monkeypatch.setattr(CpuBackend, "render", broken)
    with scope(NUM_THREADS=1), pytest.raises(RenderError, match="LLVM refuses"):
        prepare_kernels([(case.sink, "CPU") for case in cases])
    monkeypatch.undo()
    good = lower_kernel(cases[0].sink, "CPU")
    buffers: list[Buffer] = memory(cases[0])
    backend.load(good.name, backend.compile(good), good)(buffers, cases[0].variables, True)
    launches.compare(cases[0], contents(cases[0], buffers))


def test_bodies_of_an_earlier_module_are_linked(modules: list[str]) -> None:
    cases = [launches.pack((7, 61)), launches.pack((7, 61, 100)), launches.pack((5, 61)), launches.pack((5, 7, 61))]
    backend = CpuBackend("CPU")
    shared = SharedBodies([case.sink for case in cases])
    programs = [lower_launch(case.sink, host_target(), (), shared) for case in cases]
    texts = [(backend.render(program), program.name) for program in programs]
    codes = [*backend.assemble_together(texts[:2]), *backend.assemble_together(texts[2:])]
    assert len(modules) == 2
    bodies = [re.findall(r"^define void @(b\d+)[.]body[(]", module, re.M) for module in modules]
    calls = [set(re.findall(r"call void @(b\d+)[.]body[(]", module)) for module in modules]
    assert [len(found) for found in bodies] == [2, 1] and len(assembly.shared) == 3  # of 5 in the second
    assert calls[0] == {*bodies[0]} and {*bodies[1]} < calls[1] <= {*bodies[0], *bodies[1]}
    for case, program, code in zip(cases, programs, codes, strict=True):
        buffers = memory(case)
        backend.load(program.name, code, program)(buffers, case.variables, True)
        launches.compare(case, contents(case, buffers))
