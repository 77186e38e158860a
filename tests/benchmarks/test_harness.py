"""The guards of the benchmark harness catch what once made wrong numbers."""

from __future__ import annotations

import importlib
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

BENCHMARKS = Path(__file__).resolve().parents[2] / "benchmarks"


@pytest.fixture(scope="module")
def harness() -> Iterator[Any]:
    sys.path.insert(0, str(BENCHMARKS))
    try:
        yield importlib.import_module("harness")
    finally:
        sys.path.remove(str(BENCHMARKS))


def test_rate_above_the_ceiling_is_an_error(harness: Any) -> None:
    harness.check_rate("x", "matmul", 2 * 1024**3, 0.010, 1)
    with pytest.raises(harness.MeasurementError, match="did not wait"):
        harness.check_rate("x", "matmul", 2 * 1024**3, 0.001, 1)


def test_other_result_is_found_and_named(harness: Any) -> None:
    values = {"torch": [1.0, -2.0, 3.0], "gradlet": [1.0, -2.0, 3.0001], "tinygrad": [1.0, 2.0, 3.0]}
    assert set(harness.check_values("case", values)) == {"tinygrad"}
    assert set(harness.check_values("case", {"torch": [1.0], "gradlet": [float("nan")]})) == {"gradlet"}


def test_table_has_medians_minima_rates_and_ratios(harness: Any) -> None:
    timings = {"gradlet": harness.Timing((0.010, 0.011, 0.030)), "torch": harness.Timing((0.022, 0.022, 0.020))}
    row = harness.Row("matmul", 2, 11 * 10**9, 0, timings, {"tinygrad": "tinygrad: has died"})
    lines = harness.markdown([row], ["gradlet", "torch", "tinygrad"]).splitlines()
    assert lines[2] == "| matmul | 2 | 11.00 (10.00) | 22.00 (20.00) | failed | 1000.0 GFLOP/s | 0.50 | - |"
    assert lines[-1] == "* matmul, 2 threads: tinygrad: has died"


class FakeWorker:
    """A framework that answers as it is told."""

    def __init__(self, name: str, seconds: float, burned: float = 0.0, value: float = 1.0) -> None:
        self.name, self.threads = name, 1
        self.seconds, self.burned, self.value = seconds, burned, value

    def ask(self, **request: Any) -> dict[str, Any]:
        if request["do"] == "open":
            return {"first": 1.0, "values": [self.value]}
        if request["do"] == "time":
            return {"seconds": [self.seconds] * request["calls"], "burned": self.burned}
        return {}


def test_measuring_keeps_good_workers_and_names_why_others_failed(harness: Any) -> None:
    workers = [
        FakeWorker("torch", 0.002),
        FakeWorker("gradlet", 0.001),
        FakeWorker("busy", 0.001, burned=0.9),
        FakeWorker("wrong", 0.001, value=2.0),
        FakeWorker("instant", 1e-7),
    ]
    row = harness.measure(workers, "matmul_512", rounds=3)
    assert set(row.timings) == {"torch", "gradlet"}
    assert row.timings["gradlet"].median == 0.001
    assert "still busy" in row.failures["busy"]
    assert "another result" in row.failures["wrong"]
    assert "ceiling" in row.failures["instant"]


def test_worker_process_answers_and_reports_errors(harness: Any) -> None:
    worker = harness.Worker("gradlet", sys.executable, 1)
    try:
        assert worker.ask(do="describe")["device"] == "CPU"
        with pytest.raises(harness.MeasurementError, match="no_such_case"):
            worker.ask(do="open", case="no_such_case")
        assert len(worker.ask(do="open", case="matmul_512")["values"]) == 10
        answer = worker.ask(do="time", case="matmul_512", calls=2)
        assert len(answer["seconds"]) == 2 and min(answer["seconds"]) > 0
    finally:
        worker.stop()


def test_disturbed_rounds_are_counted_once_patience_ends(harness: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(harness.time, "sleep", lambda seconds: None)
    monkeypatch.setattr(harness, "busy_cores", lambda: 1.0)
    quiet = harness.Quiet(patience=2.0)
    quiet.wait()
    quiet.wait()
    assert (quiet.rounds, quiet.disturbed) == (2, 2)
    monkeypatch.setattr(harness, "busy_cores", lambda: 0.0)
    quiet.wait()
    assert (quiet.rounds, quiet.disturbed) == (3, 2)


def test_a_busy_process_is_seen(harness: Any) -> None:
    spinner = subprocess.Popen([sys.executable, "-c", "while True: pass"])
    try:
        assert max(harness.busy_cores(0.3) for _ in range(5)) > harness.QUIET_CORES
    finally:
        spinner.kill()
        spinner.wait()
