"""Whole programs on one cache: many at once, killed ones, damaged entries, folders that take nothing."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from gradlet.base.settings import scope
from gradlet.runtime import diskcache

ROOT = Path(__file__).resolve().parents[2]

PROGRAM = """
import json
import numpy as np
from gradlet import Tensor
from gradlet.engine import usage
rng = np.random.default_rng(3)
a, w = rng.uniform(-1, 1, (6, 40)).astype(np.float32), rng.uniform(-1, 1, (40, 24)).astype(np.float32)
x, y = Tensor(a), Tensor(w)
for turn in range(3):
    hidden = (x @ y).relu()
    (gradient,) = hidden.square().mean().gradient(y)
    found = (hidden.softmax(1) * (turn + 1)).sum(1)
    np.testing.assert_allclose(found.numpy(), np.full(6, turn + 1), rtol=1e-5)
    np.testing.assert_allclose(hidden.numpy(), np.maximum(a @ w, 0), rtol=1e-4, atol=1e-5)
    y = (y - 0.5 * gradient).realize()
    w = w - 0.5 * (a.T @ (2 * np.maximum(a @ w, 0) / 144))
np.testing.assert_allclose(y.numpy(), w, rtol=1e-3, atol=1e-4)
print(json.dumps(usage.summary()))
"""


def start(folder: Path) -> subprocess.Popen[str]:
    environment = {**os.environ, "CACHEDIR": str(folder), "CACHE": "1"}
    command = [sys.executable, "-c", PROGRAM]
    return subprocess.Popen(
        command, cwd=ROOT, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )


def finish(process: subprocess.Popen[str]) -> dict[str, Any]:
    """What a process that ended well says of itself."""
    out, errors = process.communicate(timeout=300)
    assert process.returncode == 0 and errors == "", errors
    found: dict[str, Any] = json.loads(out)
    return found


def entries(folder: Path) -> list[Path]:
    return sorted(path for path in (folder / "kernels").glob("??/*") if path.is_file())


@pytest.mark.slow
def test_damaged_entries_are_made_anew(tmp_path: Path) -> None:
    made = finish(start(tmp_path))["schedules"]["made"]
    assert made > 3
    rng = random.Random(5)
    for number, path in enumerate(entries(tmp_path)):
        content = path.read_bytes()
        if number % 3 == 0:
            path.write_bytes(content[: rng.randrange(len(content))])
        elif number % 3 == 1:
            place = rng.randrange(len(content))
            path.write_bytes(content[:place] + bytes([content[place] ^ 255]) + content[place + 1 :])
        else:
            path.write_bytes(b"")
    again = finish(start(tmp_path))["schedules"]
    assert (again["made"], again["recalled"]) == (made, 0)
    warm = finish(start(tmp_path))["schedules"]
    assert (warm["made"], warm["recalled"]) == (0, made)


@pytest.mark.slow
def test_a_folder_that_is_a_file_costs_only_time(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    found = finish(start(tmp_path / "file"))
    assert found["schedules"]["made"] > 3 and found["disk"]["hits"] == 0


@pytest.mark.slow
def test_eight_programs_at_once_and_some_killed(tmp_path: Path) -> None:
    for delay in (0.3, 0.6, 0.9, 1.2, 1.6):  # in different moments of the first programs
        doomed = [start(tmp_path) for _ in range(2)]
        time.sleep(delay)
        for process in doomed:
            process.send_signal(signal.SIGKILL)
            process.communicate()
    made = [finish(process)["schedules"] for process in [start(tmp_path) for _ in range(8)]]
    assert len({one["made"] + one["recalled"] for one in made}) == 1
    warm = finish(start(tmp_path))
    assert warm["schedules"]["made"] == 0 and warm["disk"]["misses"] == 0


@pytest.mark.slow
def test_the_size_stays_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    finish(start(tmp_path))
    with scope(CACHEDIR=str(tmp_path)):
        before = diskcache.stats()
        monkeypatch.setattr(diskcache, "MAX_BYTES", before.bytes // 2)
        diskcache.prune()
        after = diskcache.stats()
    assert 0 < after.bytes <= before.bytes // 2 and diskcache.counts()[2] >= before.entries - after.entries > 0
    assert finish(start(tmp_path))["schedules"]["recalled"] > 0
