"""`gradlet cache` counts and empties the kernel cache."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from gradlet.base.settings import scope
from gradlet.runtime import diskcache

ROOT = Path(__file__).resolve().parents[2]


def gradlet_cache(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "gradlet", "cache", *arguments]
    environment = {**os.environ, "CACHEDIR": str(folder)}
    return subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True)


def test_statistics_and_clearing(tmp_path: Path) -> None:
    with scope(CACHEDIR=str(tmp_path), CACHE=1):
        for number in range(3):
            assert diskcache.put(diskcache.key("kernel", str(number)), b"x" * 1000)
    shown = gradlet_cache(tmp_path)
    assert shown.returncode == 0
    assert str(tmp_path) in shown.stdout and "entries  3" in shown.stdout
    cleared = gradlet_cache(tmp_path, "clear")
    assert cleared.stdout.startswith("removed 3 of 3 entries")
    assert "entries  0" in gradlet_cache(tmp_path, "stats").stdout


def test_unknown_action_is_refused(tmp_path: Path) -> None:
    done = gradlet_cache(tmp_path, "explode")
    assert done.returncode == 2
    assert "explode" in done.stderr and "clear" in done.stderr
