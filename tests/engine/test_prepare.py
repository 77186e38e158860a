"""Kernels of one schedule are compiled side by side: the same kernels, and errors as if each were compiled alone."""

from __future__ import annotations

import gc
import os
import platform
import re
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from gradlet import Tensor
from gradlet.base.errors import RenderError
from gradlet.base.settings import scope
from gradlet.device.common import llvm
from gradlet.device.cpu import assembly
from gradlet.engine import compile as compilation
from gradlet.engine.compile import get_kernel, prepare_kernels
from gradlet.runtime.device import Device
from tests.codegen import kernels, launches
from tests.device.cpu.test_launch import contents, memory


@pytest.fixture(autouse=True)
def two_threads(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """Nothing is known yet; where LLVM worked, by the name of the thread."""
    monkeypatch.setattr(compilation, "_kernels", {})
    monkeypatch.setattr("gradlet.device.cpu.target.available_cores", lambda: 2)
    where: list[str] = []
    emit = llvm.emit_object

    def noted(*arguments: object) -> bytes:
        where.append(threading.current_thread().name)
        return emit(*arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(llvm, "emit_object", noted)
    with scope(CACHEDIR=str(tmp_path), CACHE=1, NUM_THREADS=0):
        yield where


def some() -> list[kernels.Kernel]:
    return [kernels.elementwise(100), kernels.row_reduce(9, 40), kernels.full_sum(77), kernels.softmax(3, 20)]


@pytest.mark.parametrize("cache", [0, 1])
def test_every_kernel_is_there_and_right(cache: int, two_threads: list[str]) -> None:
    with scope(CACHE=cache):
        made = some()
        prepare_kernels([(k.sink, "CPU") for k in [*made, *made]])
        modules = len(two_threads)
        assert 1 <= modules <= len(made) and all(name.startswith("gradlet-compiler") for name in two_threads)
        for kernel in made:
            get_kernel(kernel.sink, "CPU")
        assert len(two_threads) == modules


def test_what_is_known_is_not_compiled_again(two_threads: list[str]) -> None:
    made = some()
    get_kernel(made[0].sink, "CPU")
    assert two_threads == ["MainThread"]
    prepare_kernels([(k.sink, "CPU") for k in made[:2]])
    assert two_threads == ["MainThread"]  # one was missing: it is compiled when it runs
    prepare_kernels([(k.sink, "CPU") for k in made])
    assert 2 <= len(two_threads) <= len(made)


def test_one_core_uses_no_thread(two_threads: list[str]) -> None:
    with scope(NUM_THREADS=1):
        prepare_kernels([(k.sink, "CPU") for k in some()])
        assert not two_threads


def test_an_error_is_raised_and_nothing_is_left_running(monkeypatch: pytest.MonkeyPatch) -> None:
    made = some()
    emit, interval = llvm.emit_object, sys.getswitchinterval()
    bad = made[1].sink.arg.name

    def failing(source: str, target: object) -> bytes:
        if f"{bad}(" in source:
            raise RenderError("no")
        return emit(source, target)  # type: ignore[arg-type]

    monkeypatch.setattr(llvm, "emit_object", failing)
    with pytest.raises(RenderError, match="no"):
        prepare_kernels([(k.sink, "CPU") for k in made])
    assert sys.getswitchinterval() == interval
    assert not [t for t in threading.enumerate() if t.name.startswith("gradlet-compiler")]
    get_kernel(made[0].sink, "CPU")
    with pytest.raises(RenderError, match="no"):
        get_kernel(made[1].sink, "CPU")


def test_other_devices_come_along(two_threads: list[str]) -> None:
    made = some()
    prepare_kernels([(k.sink, "PYTHON") for k in made])
    prepare_kernels([(k.sink, "NULL") for k in made])
    assert not two_threads
    assert all(get_kernel(k.sink, "NULL").name == k.sink.arg.name for k in made)


def test_compilers_work_at_the_same_time_where_the_backend_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compilation, "_kernels", {})
    made = some()
    together = threading.Barrier(len(made), timeout=20)
    backend = Device["NULL:sm_90"]

    def assemble(source: str, name: str) -> bytes:
        together.wait()  # an error where fewer are under way
        return source.encode()

    monkeypatch.setattr(backend, "compilers", len(made), raising=False)
    monkeypatch.setattr(backend, "assemble", assemble)
    prepare_kernels([(k.sink, "NULL:sm_90") for k in made])
    for kernel in made:
        assert kernel.sink.arg.name.encode() in get_kernel(kernel.sink, "NULL:sm_90").program.code


@pytest.mark.skipif(
    platform.machine() != "x86_64" or platform.system() != "Linux", reason="only images hold several object files"
)
@pytest.mark.parametrize("threads", [0, 1])
def test_bodies_of_several_launches_are_compiled_once(
    threads: int, two_threads: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    emit = llvm.emit_object
    sources: list[str] = []
    monkeypatch.setattr(llvm, "emit_object", lambda *rest: sources.append(rest[0]) or emit(*rest))
    cases = [launches.pack((7, 61)), launches.pack((7, 61, 100)), launches.mixed(), launches.pack((5, 61))]
    with scope(NUM_THREADS=threads):
        assembly.shared.clear()
        prepare_kernels([(case.sink, "CPU") for case in cases])
        # scale_7 and scale_61 with the two constants it has by its place; one module but for the thread's first
        assert len(sources) == len(set(sources)) and len(sources) <= (1 if threads == 1 else 6)
        assert sum(len(re.findall(r"define void @[\w.]*body\(", source)) for source in sources) == 2
        assert len(assembly.shared) == 2
        assert all((thread == "MainThread") == (threads == 1) for thread in two_threads)
        modules = len(sources)
        for case in cases:
            buffers = memory(case)
            get_kernel(case.sink, "CPU").run(buffers, case.variables, True)
            launches.compare(case, contents(case, buffers))
        assert len(sources) == modules


def test_nothing_is_left_to_the_collector_which_rests_meanwhile() -> None:
    cases = [launches.mixed(), launches.pack((7, 61)), launches.attention()]
    gc.collect()
    events: list[str] = []
    gc.callbacks.append(lambda phase, _: events.append(phase))
    try:
        prepare_kernels([(case.sink, "CPU") for case in cases])
        assert not events and gc.isenabled()
        gc.set_debug(gc.DEBUG_SAVEALL)
        gc.collect()
        assert not [o for o in gc.garbage if type(o).__module__.startswith("gradlet")]
    finally:
        gc.set_debug(0)
        gc.garbage.clear()
        gc.callbacks.pop()


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
def test_a_child_process_compiles_too() -> None:
    x = Tensor(np.arange(12, dtype=np.float32).reshape(3, 4)).realize()

    def work() -> float:
        parts = [(x + float(n)).sum().contiguous() for n in range(3)]
        return float((parts[0] * parts[1] + (x @ x.T).contiguous().softmax(-1).sum() - parts[2]).item())

    expected = work()
    compilation._kernels.clear()
    child = os.fork()
    if child == 0:
        os._exit(0 if work() == expected else 1)
    assert os.waitpid(child, 0)[1] == 0
