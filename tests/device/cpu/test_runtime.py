"""The CPU backend: compile, load, launch; threads; the disk cache; the host's target."""

from __future__ import annotations

import gc
import threading
from pathlib import Path

import numpy as np
import pytest

from gradlet.base import events
from gradlet.base.dtype import dtypes
from gradlet.base.errors import DeviceError, RenderError
from gradlet.base.settings import scope
from gradlet.device.common import llvm
from gradlet.device.cpu import runtime
from gradlet.device.cpu.jit import load
from gradlet.device.cpu.target import available_cores, cache_sizes, host_target, runnable, usable_cores
from gradlet.graph.program import LinearProgram
from gradlet.ops.op import AxisKind
from gradlet.runtime import diskcache
from gradlet.runtime.buffer import Buffer
from gradlet.runtime.device import Device
from tests.render.build import Build

F32 = dtypes.float32
SIZE = 4096


def scale_by(grid: int, flops: int = 0, name: str = "scale") -> LinearProgram:
    """out[i] = x[i] * 2 + n, over `grid` parts."""
    build = Build(name)
    x, out = build.param(F32, SIZE), build.param(F32, SIZE)
    n = build.variable("n", 0, 100)
    step = SIZE // grid
    i, j = build.loop(grid, AxisKind.PARALLEL), build.loop(step)
    at = i * step + j
    build.store(out, at, build.load(x, at) * 2.0 + n.cast(F32))
    build.end(j)
    build.end(i)
    return build.program(flops=flops)


def make(program: LinearProgram) -> runtime.CpuProgram:
    backend = runtime.open_backend("CPU")
    return backend.load(program.name, backend.compile(program), program)


def buffers() -> tuple[list[Buffer], np.ndarray]:
    values = np.arange(SIZE, dtype=np.float32)
    x, out = Buffer("CPU", F32, SIZE), Buffer("CPU", F32, SIZE)
    x.copyin(values)
    return [x, out], values


@pytest.mark.parametrize("threads", [1, 2, 0])
@pytest.mark.parametrize(("grid", "flops"), [(1, 0), (16, 0), (16, 10**9), (1024, 10**9)])
def test_a_kernel_runs_inline_or_on_the_pool(threads: int, grid: int, flops: int) -> None:
    memory, values = buffers()
    with scope(NUM_THREADS=threads):
        program = make(scale_by(grid, flops))
        for n in (3, 5):
            assert program(memory, [n]) is None
            np.testing.assert_array_equal(np.frombuffer(memory[1].memory(), np.float32), values * 2 + n)


def test_waiting_gives_the_time() -> None:
    memory, _ = buffers()
    seconds = make(scale_by(1))(memory, [1], wait=True)
    assert seconds is not None
    assert 0 < seconds < 10


def test_several_threads_launch_one_program_with_different_memory() -> None:
    program = make(scale_by(64, flops=10**8))
    wrong: list[int] = []

    def work(seed: int) -> None:
        memory, values = buffers()
        for turn in range(100):
            program(memory, [(seed + turn) % 50])
            if not (np.frombuffer(memory[1].memory(), np.float32) == values * 2 + (seed + turn) % 50).all():
                wrong.append(seed)

    threads = [threading.Thread(target=work, args=(s,)) for s in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=60)
    assert wrong == []


def test_several_threads_compile_at_once() -> None:
    results: dict[int, np.ndarray] = {}

    def work(number: int) -> None:
        memory, _ = buffers()
        with_name = scale_by(2**number, name=f"scale{number}")
        make(with_name)(memory, [number])
        results[number] = np.frombuffer(memory[1].memory(), np.float32).copy()

    with scope(CACHE=0):
        threads = [threading.Thread(target=work, args=(n,)) for n in range(6)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(timeout=60)
    assert sorted(results) == list(range(6))
    for number, result in results.items():
        np.testing.assert_array_equal(result, np.arange(SIZE, dtype=np.float32) * 2 + number)


def test_programs_of_one_name_do_not_meet_and_are_unloaded() -> None:
    memory, values = buffers()
    for turn in range(10):
        program = make(scale_by(1 + turn % 2))
        program(memory, [turn])
        np.testing.assert_array_equal(np.frombuffer(memory[1].memory(), np.float32), values * 2 + turn)
        del program
        gc.collect()


def test_the_second_compilation_comes_from_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    backend, program = runtime.open_backend("CPU"), scale_by(4)
    with scope(CACHEDIR=str(tmp_path), CACHE=1):
        first = backend.compile(program)
        assert diskcache.stats().entries == 1

        def no_compiler(*_: object, **__: object) -> bytes:
            raise AssertionError("compiled although the disk has it")

        monkeypatch.setattr(llvm, "emit_object", no_compiler)
        with events.record() as seen:
            assert backend.compile(program) == first
        assert seen == [events.CacheHit("disk", "scale")]


def test_a_damaged_disk_entry_is_compiled_again(tmp_path: Path) -> None:
    backend, program = runtime.open_backend("CPU"), scale_by(4)
    with scope(CACHEDIR=str(tmp_path), CACHE=1):
        first = backend.compile(program)
        (path,) = (p for p in tmp_path.rglob("*") if p.is_file())
        path.write_bytes(path.read_bytes()[:-7])
        assert backend.compile(program) == first


def test_code_that_is_no_object_is_refused() -> None:
    with pytest.raises(RenderError, match="cannot load nothing"):
        load(b"this is not an object file", ("nothing",))


def test_bad_ir_is_refused_with_its_text() -> None:
    with pytest.raises(RenderError, match="LLVM refuses the rendered kernel"):
        llvm.emit_object("define void @f() { ret i32 1 }", host_target())


def test_the_registry_opens_this_backend() -> None:
    backend = Device["CPU"]
    assert isinstance(backend, runtime.CpuBackend)
    assert backend.target.kind == "cpu"
    assert "define void @scale(" in backend.render(scale_by(1))


# the host
def test_the_host_target_knows_this_machine() -> None:
    target = host_target()
    assert target.name == runnable()[0]
    assert target.cores == usable_cores()
    assert target.l1_bytes <= target.l2_bytes <= target.llc_bytes
    assert all(size >= 0 for size in cache_sizes())


def test_the_number_of_threads_has_a_limit() -> None:
    with scope(NUM_THREADS=1):
        assert host_target().cores == 1
    with scope(NUM_THREADS=1024):
        assert host_target().cores == available_cores()


@pytest.mark.parametrize("name", runnable())
def test_cpu_features_chooses_the_instructions(name: str) -> None:
    with scope(CPU_FEATURES=name):
        assert host_target().name == name
        memory, values = buffers()
        make(scale_by(2))(memory, [1])
        np.testing.assert_array_equal(np.frombuffer(memory[1].memory(), np.float32), values * 2 + 1)


def test_instructions_that_the_machine_lacks_are_refused() -> None:
    lacking = "neon" if runnable()[0] != "neon" else "avx2"
    with scope(CPU_FEATURES=lacking), pytest.raises(DeviceError, match=f"CPU_FEATURES={lacking}: .* use one of: "):
        host_target()
