"""Launches of several kernels on the CPU, against numpy: one thread and several, alone and at once."""

from __future__ import annotations

import threading
from dataclasses import replace

import numpy as np
import pytest

from gradlet import Tensor
from gradlet.base.dtype import dtypes
from gradlet.base.errors import CompilerError
from gradlet.base.settings import scope
from gradlet.codegen.launch import lower_launch
from gradlet.device.cpu import launching
from gradlet.device.cpu.runtime import CpuBackend
from gradlet.device.cpu.target import host_target
from gradlet.engine.compile import build_kernel
from gradlet.graph.launch import is_launch
from gradlet.ops.op import BodyUse
from gradlet.runtime.buffer import Buffer
from tests.codegen import launches
from tests.codegen.launches import Launch


def memory(case: Launch) -> list[Buffer]:
    buffers = []
    for array in case.arrays:
        buffer = Buffer("CPU", dtypes.by_name(array.dtype.name), array.size)
        buffer.copyin(array)
        buffers.append(buffer)
    return buffers


def contents(case: Launch, buffers: list[Buffer]) -> list[np.ndarray]:
    return [
        np.frombuffer(b.memory(), a.dtype)[: a.size].copy().reshape(a.shape)
        for a, b in zip(case.arrays, buffers, strict=True)
    ]


@pytest.mark.parametrize("eager", [False, True], ids=["inline", "pool"])
@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("make", launches.ALL, ids=launches.names())
def test_launches(make, threads, eager, monkeypatch) -> None:
    if eager:  # every stage of more than one block goes to the pool
        monkeypatch.setattr(launching, "INLINE_SECONDS", 1e-12)
    case = make()
    with scope(NUM_THREADS=threads):
        kernel = build_kernel(case.sink, "CPU")
        buffers = memory(case)
        kernel.run(buffers, case.variables, False)
        launches.compare(case, contents(case, buffers))


def test_several_python_threads_run_one_launch_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(launching, "INLINE_SECONDS", 1e-12)
    case = launches.attention(16, 32, 48, 16)
    with scope(NUM_THREADS=2):
        kernel = build_kernel(case.sink, "CPU")
    wrong: list[BaseException] = []

    def work() -> None:
        try:
            for _ in range(20):
                buffers = memory(case)
                kernel.run(buffers, (), False)
                launches.compare(case, contents(case, buffers))
        except BaseException as error:
            wrong.append(error)

    threads = [threading.Thread(target=work) for _ in range(4)]
    with scope(NUM_THREADS=2):
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(timeout=60)
    assert wrong == []


def test_a_launch_is_one_native_call(monkeypatch: pytest.MonkeyPatch) -> None:
    case = launches.sum_with_tail(4_000_000, 512)
    with scope(NUM_THREADS=2):
        kernel = build_kernel(case.sink, "CPU")
        pool = launching.pool.pool_of(2)
        calls: list[int] = []
        run = pool.run_stages
        monkeypatch.setattr(pool, "run_stages", lambda address: (calls.append(address), run(address)))
        buffers = memory(case)
        kernel.run(buffers, (), False)
    launches.compare(case, contents(case, buffers))
    assert len(calls) == 1


def test_small_launches_stay_on_the_calling_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    case = launches.chain()
    with scope(NUM_THREADS=2):
        kernel = build_kernel(case.sink, "CPU")
        monkeypatch.setattr(launching.pool, "pool_of", lambda threads: pytest.fail("the pool was asked"))
        buffers = memory(case)
        kernel.run(buffers, (), False)
    launches.compare(case, contents(case, buffers))


def test_a_tail_stays_on_the_calling_thread() -> None:
    case = launches.sum_with_tail(4_000_000, 512)
    with scope(NUM_THREADS=2):
        program = build_kernel(case.sink, "CPU").program
        partial, tail = (stage.words(0, 2) for stage in program.stages)
    assert partial[2] > 1 and tail[1:4] == (1, 1, 0)


def test_parts_follow_the_number_of_threads() -> None:
    case = launches.wide_pack(4_000_000)
    kernel = build_kernel(case.sink, "CPU")
    buffers = memory(case)
    for threads in (2, 1, 2):
        with scope(NUM_THREADS=threads):
            kernel.run(buffers, (), False)
            launches.compare(case, contents(case, buffers))
    [stage] = kernel.program.stages
    assert stage.words(0, 2)[2] < stage.words(0, 8)[2]


def test_launches_that_differ_in_their_uses_alone_do_not_share_code() -> None:
    """The cache on disk goes by the text of a module, in which the uses stand."""
    body = launches.scale_body(4)
    for slots in ((1, 0), (0, 1)):
        sink = launches.launch("same_name", [body], [[[BodyUse(0, slots)]]])
        buffers = [Buffer("CPU", dtypes.float32, 4) for _ in range(2)]
        for buffer in buffers:
            buffer.copyin(np.ones(4, np.float32))
        build_kernel(sink, "CPU").run(buffers, (), False)
        assert np.frombuffer(buffers[slots[0]].memory(), np.float32)[0] == 2
        assert np.frombuffer(buffers[slots[1]].memory(), np.float32)[0] == 1


def test_waiting_gives_the_time() -> None:
    case = launches.mixed()
    seconds = build_kernel(case.sink, "CPU").run(memory(case), (), True)
    assert seconds is not None and 0 < seconds < 10


@pytest.mark.parametrize("make", launches.ALL, ids=launches.names())
def test_device_python_agrees(make) -> None:
    case = make()
    buffers = memory(case)
    build_kernel(case.sink, "PYTHON").run(buffers, case.variables, False)
    launches.compare(case, contents(case, buffers))


@pytest.mark.parametrize("name", ["NULL:avx512", "NULL:avx2", "NULL:neon"])
def test_device_null_compiles_launches_for_every_cpu(name: str) -> None:
    kernel = build_kernel(launches.attention().sink, name)
    assert b"attention_stage0" in kernel.program.code


def test_device_null_refuses_launches_for_gpus() -> None:
    with pytest.raises(CompilerError, match="launch mixed holds several kernels"):
        build_kernel(launches.mixed().sink, "NULL:nvptx")


def test_a_megabyte_of_scratch_fits_on_every_thread_s_stack() -> None:
    case = launches.attention(4, 256, 512, 4)
    assert sum(case.sink.arg.scratch) == 1 << 20
    done: list[bool] = []

    def work() -> None:
        buffers = memory(case)
        kernel.run(buffers, (), False)
        launches.compare(case, contents(case, buffers))
        done.append(True)

    for count in (1, 2):
        with scope(NUM_THREADS=count):
            kernel = build_kernel(case.sink, "CPU")
            thread = threading.Thread(target=work)
            thread.start()
            thread.join(timeout=60)
    assert done == [True, True]


@pytest.mark.usefixtures("two_cores")
def test_bodies_that_call_a_library_stay_in_the_module_of_their_launch() -> None:
    x = Tensor(np.linspace(0.0, 1.0, 2400).reshape(60, 40)).realize()
    asts = [call.ast for call in (x.exp().sum(0) * x).exp().sum(1).schedule().calls]
    (ast,) = [ast for ast in asts if is_launch(ast.arg)]
    program = lower_launch(ast, host_target())
    program = replace(program, shared=tuple(range(len(program.programs))))
    backend = CpuBackend("CPU")
    assert backend.load(program.name, backend.compile(program), program) is not None
