"""Kernels that some process compiled before come from disk by their graph: nothing is lowered or rendered again."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from gradlet.base import events
from gradlet.base.settings import scope
from gradlet.engine import compile as compilation
from gradlet.engine.compile import build_kernel
from gradlet.runtime import diskcache
from tests.codegen import launches
from tests.device.cpu.test_launch import contents, memory

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path) -> Iterator[None]:
    with scope(CACHEDIR=str(tmp_path), CACHE=1):
        yield


def forbid_lowering(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise AssertionError("lowered although the disk has it")

    monkeypatch.setattr(compilation, "lower_kernel", refuse)


@pytest.mark.parametrize("make", launches.ALL, ids=launches.names())
def test_a_recalled_launch_computes_the_same(make, monkeypatch: pytest.MonkeyPatch) -> None:
    case = make()
    first = build_kernel(case.sink, "CPU")
    forbid_lowering(monkeypatch)
    with events.record() as seen:
        again = build_kernel(case.sink, "CPU")
    assert seen == [events.CacheHit("disk", first.name)]
    assert (again.name, again.flops, again.bytes) == (first.name, first.flops, first.bytes)
    buffers = memory(case)
    again.run(buffers, case.variables, False)
    launches.compare(case, contents(case, buffers))


@pytest.mark.parametrize("changed", [{"STRICT_FLOAT": 1}, {"NOOPT": 1}, {"CPU_FEATURES": "sse"}, {"NUM_THREADS": 1}])
def test_what_code_depends_on_belongs_to_the_name(changed, monkeypatch: pytest.MonkeyPatch) -> None:
    case = launches.mixed()
    with scope(NUM_THREADS=2, CPU_FEATURES="avx2"):
        build_kernel(case.sink, "CPU")
        forbid_lowering(monkeypatch)
        with scope(**changed), pytest.raises(AssertionError, match="lowered"):
            build_kernel(case.sink, "CPU")
        build_kernel(case.sink, "CPU")


def test_another_version_of_the_compiler_finds_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    case = launches.mixed()
    build_kernel(case.sink, "CPU")
    forbid_lowering(monkeypatch)
    monkeypatch.setattr("gradlet.engine.programs.fingerprint", lambda: "another")
    with pytest.raises(AssertionError, match="lowered"):
        build_kernel(case.sink, "CPU")


def test_a_record_whose_code_is_gone_is_made_again(tmp_path: Path) -> None:
    case = launches.mixed()
    build_kernel(case.sink, "CPU")
    entries = [p for p in tmp_path.rglob("*") if p.is_file() and p.name != diskcache.PRUNED]
    assert len(entries) == 2
    for gone in entries:
        content = gone.read_bytes()
        gone.unlink()
        build_kernel(case.sink, "CPU")
        assert gone.read_bytes() == content


def test_what_debug_shows_is_shown_again(capsys: pytest.CaptureFixture[str]) -> None:
    case = launches.mixed()
    shown = []
    for _ in range(2):
        with scope(DEBUG=4):
            build_kernel(case.sink, "CPU")
        shown.append(capsys.readouterr().out)
    assert shown[0] == shown[1] and "define" in shown[0]


def test_a_recalled_kernel_can_be_looked_at(monkeypatch: pytest.MonkeyPatch) -> None:
    case = launches.mixed()
    first, again = build_kernel(case.sink, "CPU"), build_kernel(case.sink, "CPU")
    assert again.lowered() == first.lowered()


PROGRAM = """
import numpy as np
from gradlet import Tensor
from gradlet.engine import compile as compilation
made = []
lower = compilation.lower_kernel
compilation.lower_kernel = lambda ast, device: made.append(ast.arg.name) or lower(ast, device)
x = Tensor(np.arange(48, dtype=np.float32).reshape(6, 8))
print(len(made), ((x @ x.T).softmax(-1).cumsum(0) + x.sum() * -0.0).numpy().tobytes().hex(), len(made))
"""


def test_a_second_process_lowers_nothing(tmp_path: Path) -> None:
    outputs = []
    for seed in "12":
        environment = {**os.environ, "CACHEDIR": str(tmp_path), "CACHE": "1", "PYTHONHASHSEED": seed}
        done = subprocess.run(
            [sys.executable, "-c", PROGRAM], cwd=ROOT, env=environment, capture_output=True, text=True, check=True
        )
        before, result, made = done.stdout.split()
        assert before == "0"
        outputs.append((result, int(made)))
    assert outputs[0][0] == outputs[1][0]
    assert outputs[0][1] > 0 and outputs[1][1] == 0
    assert np.isfinite(np.frombuffer(bytes.fromhex(outputs[0][0]), np.float32)).all()
