"""Hits and misses of schedules are counted and explained; a steady state refuses misses."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from gradlet import Context, Tensor, Variable, jit
from gradlet.base.errors import ScheduleMissError
from gradlet.engine import usage
from gradlet.schedule import create

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(autouse=True)
def forgotten() -> None:
    create.forget_schedules()
    create.statistics.reset()


def step(x: Tensor, rate: float | Tensor = 0.5) -> Tensor:
    return (x * rate).sum(0).realize()


def data(*shape: int) -> Tensor:
    return Tensor(np.ones(shape, np.float32)).realize()


def test_hits_and_misses_are_counted_with_reasons() -> None:
    x = data(3, 5)
    for _ in range(4):
        step(x)
    step(x, 0.25)
    step(data(4, 5))
    found = create.statistics
    assert found.hits == 3 and found.made + found.recalled == 3
    assert dict(found.kinds) == {"first": 1, "constant": 1, "shape": 1}
    assert [miss.difference.kind for miss in found.misses] == ["first", "constant", "shape"]
    assert all(miss.line.startswith(f"{__file__}:") for miss in found.misses)


def test_a_training_loop_is_steady_after_two_steps() -> None:
    w, x = data(4, 4), data(2, 4)
    for turn in range(6):
        with Context(SCHEDULE_MISS="raise" if turn > 1 else ""):
            loss = (x @ w).square().mean()
            (gradient,) = loss.gradient(w)
            w.assign(w - 0.1 * gradient)
            loss.realize(w)
            assert np.isfinite(loss.item())


def test_a_miss_in_a_steady_state_says_what_differs_and_where() -> None:
    x = data(3, 5)
    step(x)
    with Context(SCHEDULE_MISS="raise"):
        step(x)
        with pytest.raises(ScheduleMissError, match="constant 0.125, not 0.5") as error:
            step(x, 0.125)
        assert f"{__file__}:" in str(error.value) and "as a tensor" in str(error.value)
        with pytest.raises(ScheduleMissError, match="Variable"):
            step(data(3, 6))
        step(x)  # goes on after a refusal
    np.testing.assert_allclose(step(x, 0.125).numpy(), np.full(5, 0.375))


def test_what_the_remedies_advise_is_steady() -> None:
    n, x = Variable("n", 1, 8), data(8)
    (x[: n.bind(3)] * Tensor([0.5]).realize()).sum().item()
    with Context(SCHEDULE_MISS="raise"):
        for size, rate in ((4, 0.25), (8, 2.0)):
            assert (x[: n.bind(size)] * Tensor([rate]).realize()).sum().item() == size * rate


def test_capturing_is_a_miss_and_replaying_is_none() -> None:
    function = jit(lambda x: (x * 3 + 1).realize())
    x = data(5)
    for _ in range(3):
        function(x)
    with Context(SCHEDULE_MISS="raise"):
        np.testing.assert_allclose(function(x).numpy(), np.full(5, 4))


def test_debug_shows_hits_and_misses(capsys: pytest.CaptureFixture[str]) -> None:
    x = data(3, 7)
    with Context(DEBUG=2):
        step(x)
        step(x)
    shown = [line for line in capsys.readouterr().out.splitlines() if line.startswith("schedule ")]
    assert len(shown) == 2
    assert shown[0].startswith("schedule miss, ") and __file__ in shown[0] and shown[1].startswith("schedule hit in ")


SCRIPT = """
from gradlet import Tensor
x = Tensor([1.0, 2.0]).realize()
for rate in (1.5, 1.5, 2.5):
    (x * rate).realize()
"""


def test_processes_leave_their_counts(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(SCRIPT)
    environment = {**os.environ, "CACHEDIR": str(tmp_path), "CACHE": "1", "PYTHONPATH": str(ROOT)}

    def run(*command: str) -> str:
        return subprocess.run(
            [sys.executable, *command], cwd=ROOT, env=environment, capture_output=True, text=True, check=True
        ).stdout

    run(str(script))
    run(str(script))
    lines = [json.loads(line) for line in (tmp_path / "kernels" / "history").read_text().splitlines()]
    assert [line["schedules"] for line in lines] == [
        {"hits": 1, "recalled": 0, "made": 2},
        {"hits": 1, "recalled": 2, "made": 0},
    ]
    shown = run("-m", "gradlet", "cache", "stats")
    assert "used by  2 processes" in shown and "schedule 2 hits, 2 recalled from disk, 2 made" in shown
    assert "2 constant" in shown and f"constant 2.5, not 1.5 (float32) ({script}:5) in train.py" in shown
    run("-m", "gradlet", "cache", "clear")
    assert "used by  0 processes" in run("-m", "gradlet", "cache", "stats")


def test_a_process_that_keeps_nothing_leaves_nothing(tmp_path: Path) -> None:
    environment = {**os.environ, "CACHEDIR": str(tmp_path), "CACHE": "0"}
    subprocess.run([sys.executable, "-c", SCRIPT], cwd=ROOT, env=environment, check=True)
    assert not list(tmp_path.iterdir())


def test_the_summary_names_the_last_schedule_that_was_made() -> None:
    with Context(CACHE=0):
        step(data(2, 9))
        step(data(2, 9), 0.75)
    found = usage.summary()
    assert found["schedules"]["made"] == 2 and "constant 0.75, not 0.5" in found["last"]
