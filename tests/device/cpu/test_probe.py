"""The probe: its kernels do what they say, every fact is a plausible number, nothing measures by itself."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from gradlet import Context, Tensor
from gradlet.device.common.llvm import emit_assembly
from gradlet.device.cpu import facts, probe, target
from gradlet.device.cpu.probe import SUMS, UNROLL, Machine, source_text
from gradlet.target.target import AVX2, AVX512, NEON, SSE, Target


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path) -> Iterator[None]:
    with Context(CACHEDIR=str(tmp_path)):
        yield
    target.forget_facts()


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {"LEAST_BYTES": 1 << 20, "MOST_BYTES": 1 << 20, "MULTIPLY_ADDS": 200, "MEETINGS": 3}.items():
        monkeypatch.setattr(probe, name, value)


@pytest.mark.parametrize("machine", [AVX512, AVX2, SSE, NEON], ids=lambda t: t.name)
def test_kernels_are_written_for_every_processor(machine: Target) -> None:
    text = emit_assembly(source_text(machine), machine)
    multiply = {"avx512": "vfmadd", "avx2": "vfmadd", "sse": "mulps", "neon": "fmla"}[machine.name]
    assert text.count(multiply) >= SUMS
    assert all(name in text for name in ("probe_empty", "probe_copy", "probe_sum"))


@pytest.mark.parametrize("parts", [1, 3])
def test_the_copy_copies_all_blocks(parts: int) -> None:
    machine = Machine(target.host_target())
    floats = 3 * UNROLL * machine.target.vector_bits // 32
    memory = np.zeros(2 * floats + 16, np.float32)
    start = (memory.ctypes.data + 63) // 64 * 64
    first = (start - memory.ctypes.data) // 4
    memory[first : first + floats] = np.arange(floats)
    machine.once("probe_copy", (start, start + 4 * floats, 4 * floats // 3, 2), 3, parts)()
    assert memory[first + floats : first + 2 * floats].tolist() == list(range(floats))


def test_the_sums_are_multiply_adds() -> None:
    machine = Machine(target.host_target())
    values = (ctypes.c_float * (SUMS * machine.target.vector_bits // 32))(
        *[0.5] * (SUMS * machine.target.vector_bits // 32)
    )
    machine.once("probe_sum", (ctypes.addressof(values), 3), 1, 1)()
    expected = 0.5
    for _ in range(3):
        expected = expected * 0.5 + 0.5
    assert set(values) == {expected}


@pytest.mark.parametrize("threads", [1, 2])
def test_every_fact_is_a_positive_number(quick: None, threads: int) -> None:
    with Context(NUM_THREADS=threads):
        found = probe.probe()
        assert all(type(value) is int and value > 0 for value in found)
        assert found.bytes_per_second >= found.core_bytes_per_second
        assert found.launch_ps >= found.inline_ps
        machine = target.host_target()
        assert facts.recall(machine.name, machine.cores) == found


def test_kernels_measure_nothing_by_themselves(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(probe, "probe", lambda: pytest.fail("measured"))
    monkeypatch.setattr(Machine, "measure", lambda self: pytest.fail("measured"))
    with Context(PROBE=1):
        assert (Tensor([1.0, 2.0]) + 1).tolist() == [2.0, 3.0]
        machine = target.host_target()
        assert facts.recall(machine.name, machine.cores) is None
