"""Schedules that another process made: bytes and back, names that hold everything, and nothing decided twice."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from gradlet.base.dtype import dtypes
from gradlet.base.settings import scope
from gradlet.graph.evaluate import evaluate
from gradlet.graph.node import UOp
from gradlet.schedule import create, kept, pipeline
from gradlet.schedule.cache import ScheduleCache
from gradlet.target.target import AVX2, AVX512, Target
from tests.schedule.helpers import (
    contents,
    contiguous,
    copy,
    expand,
    matmul,
    reshape,
    run,
    shrink,
    target_of,
    tensor,
    total,
    write,
)
from tests.schedule.test_cache import bound, scaled, update

ROOT = Path(__file__).resolve().parents[2]


class Shelf:
    """A store in memory that counts."""

    def __init__(self) -> None:
        self.entries: dict[str, bytes] = {}
        self.found = 0

    def key(self, *parts: str) -> str:
        return "|".join(parts)

    def get(self, name: str) -> bytes | None:
        self.found += name in self.entries
        return self.entries.get(name)

    def put(self, name: str, content: bytes) -> bool:
        self.entries[name] = content
        return True


def chain() -> list[UOp]:
    x = tensor(4, 6)
    return [total((x * 2.0 + -0.0), 1), contiguous(shrink(x, (1, 3), (0, 2)))]


def product() -> list[UOp]:
    return [matmul(matmul(tensor(40, 50), tensor(50, 30)), tensor(30, 7))]


def half_written() -> list[UOp]:
    t = tensor(8)
    return [write(t, shrink(t, (0, 4)), UOp.const(dtypes.float32, 1)) * 3.0]


PROGRAMS: list[Callable[[], list[UOp]]] = [
    chain,
    product,
    update(0.1),
    half_written,
    lambda: [copy(tensor(4, 4), "OTHER")],
    lambda: [scaled(bound("i", 3), bound("j", 4))],
    lambda: [tensor(3)],
    lambda: [total(tensor(4096, 512), 0, 1)],
]
NAMES = ["chain", "product", "update", "half_written", "copy", "scaled", "leaf", "parts"]


@pytest.mark.parametrize("build", PROGRAMS, ids=NAMES)
def test_a_kept_schedule_is_the_one_that_was_made(build, made: list[int]) -> None:
    shelf = Shelf()
    for turn in range(3):
        create.forget_schedules()
        roots = build()
        schedule = create.create_schedule(roots, target_of, store=shelf)
        with scope(SCHEDULE_CACHE=0):
            fresh = create.create_schedule(roots, target_of)
        assert [getattr(call, "ast", None) for call in schedule.calls] == [getattr(c, "ast", None) for c in fresh.calls]
        assert shelf.found == turn
        buffers = contents(roots)
        memory = run(schedule, buffers)
        for root, expected in zip(roots, evaluate(roots, buffers), strict=True):
            np.testing.assert_allclose(evaluate([schedule.results[root]], memory)[0], expected, rtol=2e-4, atol=2e-4)
    assert len(made) == 1 + 3


@pytest.mark.parametrize("build", PROGRAMS, ids=NAMES)
def test_bytes_and_back(build) -> None:
    roots = build()
    question = ScheduleCache().ask(roots, target_of, (), "CPU")
    entry = question.generalise(pipeline.make_schedule(roots, target_of))
    assert entry is not None and kept.from_bytes(kept.to_bytes(entry)) == entry


def test_names_hold_settings_targets_and_the_compiler(made: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    shelf = Shelf()

    def ask(target: Target = AVX2, device: str = "CPU") -> int:
        create.forget_schedules()
        before = len(made)
        create.create_schedule(product(), lambda _: target, default_device=device, store=shelf)
        return len(made) - before

    assert [ask(), ask()] == [1, 0]
    assert [ask(AVX512), ask(replace(AVX2, cores=2)), ask(AVX512)] == [1, 1, 0]
    with scope(FUSE=0):
        assert [ask(), ask()] == [1, 0]
    with scope(STRICT_FLOAT=1):
        assert [ask(), ask()] == [1, 0]
    monkeypatch.setattr(kept, "fingerprint", lambda: "another compiler")
    assert [ask(), ask()] == [1, 0]


def test_devices_that_no_buffer_names_count_too(made: list[int]) -> None:
    shelf = Shelf()

    def constants() -> list[UOp]:
        return [contiguous(expand(reshape(UOp.const(dtypes.float32, 3), 1, 1), 64, 64))]

    def copied() -> list[UOp]:
        return [copy(tensor(4, 4), "OTHER") * 2.0]

    def ask(build: Callable[[], list[UOp]], target: Target, elsewhere: Target) -> int:
        create.forget_schedules()
        before = len(made)
        create.create_schedule(build(), lambda device: elsewhere if device == "OTHER" else target, store=shelf)
        return len(made) - before

    fewer = replace(AVX2, cores=2)
    assert [ask(constants, AVX2, AVX2), ask(constants, AVX2, AVX2), ask(constants, fewer, AVX2)] == [1, 0, 1]
    assert [ask(copied, AVX2, AVX2), ask(copied, AVX2, AVX2), ask(copied, AVX2, fewer)] == [1, 0, 1]
    assert ask(copied, AVX2, fewer) == 0


def test_an_explanation_is_never_left_out(made: list[int]) -> None:
    shelf = Shelf()
    for _ in range(2):
        create.forget_schedules()
        told: list[object] = []
        create.create_schedule(product(), target_of, tell=told.append, store=shelf)
        assert len(told) == 1
    assert len(made) == 2 and not shelf.entries


PROGRAM = """
import numpy as np
from gradlet import Tensor
x = Tensor(np.arange(48, dtype=np.float32).reshape(6, 8))
y = (x @ x.T).softmax(-1) + x.sum(1, keepdim=True)
print(y.numpy().tobytes().hex())
x[2:4] = y[:2, :1] * -0.0
print(x.numpy().tobytes().hex())
import sys
print(*sorted(name for name in sys.modules if name in ("gradlet.schedule.pipeline", "gradlet.codegen.pipeline")))
"""


def test_a_second_process_does_without_the_compiler(tmp_path: Path) -> None:
    outputs = []
    for seed in "12":
        environment = {**os.environ, "CACHEDIR": str(tmp_path), "CACHE": "1", "PYTHONHASHSEED": seed}
        done = subprocess.run(
            [sys.executable, "-c", PROGRAM], cwd=ROOT, env=environment, capture_output=True, text=True, check=True
        )
        outputs.append(done.stdout.splitlines())
    first, second = outputs
    assert first[:2] == second[:2]
    assert first[2] == "gradlet.codegen.pipeline gradlet.schedule.pipeline" and second[2] == ""


def test_a_small_result_needs_neither_arrays_nor_llvm(tmp_path: Path) -> None:
    code = "import sys; from gradlet import Tensor; print(Tensor([1, 2, 3]).sum().item(), *sys.modules)"
    environment = {**os.environ, "CACHEDIR": str(tmp_path), "CACHE": "1"}
    for _ in range(2):
        done = subprocess.run(
            [sys.executable, "-c", code], cwd=ROOT, env=environment, capture_output=True, text=True, check=True
        )
        result, *modules = done.stdout.split()
        assert result == "6"
    assert not {"numpy", "llvmlite"} & set(modules)
