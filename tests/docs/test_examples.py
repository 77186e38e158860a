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


def test_every_example_is_tested() -> None:
    assert {p.name for p in (ROOT / "examples").glob("*.py")} == set(EXPECTED)


@pytest.mark.parametrize("name", sorted(EXPECTED))
def test_example(name: str) -> None:
    command = [sys.executable, str(ROOT / "examples" / name), *ARGUMENTS.get(name, [])]
    done = subprocess.run(
        command, cwd=ROOT, env={**os.environ, "PYTHONPATH": str(ROOT)}, capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stderr
    assert re.search(EXPECTED[name], done.stdout), done.stdout[-2000:]
