"""docs/tour.md shows what the compiler produces today, in every part of it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

DOCS = Path(__file__).resolve().parents[2] / "docs"
PRINT_PAGE = "import runpy, sys; sys.stdout.write(runpy.run_path(sys.argv[1])['tour_markdown']())"


def test_tour_is_what_the_compiler_produces() -> None:
    """In a process of its own: numbers of nodes and buffers must not depend on the tests before."""
    environment = {k: v for k, v in os.environ.items() if k not in ("CPU_FEATURES", "NOOPT", "DEBUG", "DEV")}
    environment["PYTHONPATH"] = str(DOCS.parent)
    command = [sys.executable, "-c", PRINT_PAGE, str(DOCS / "tour.py")]
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == (DOCS / "tour.md").read_text().splitlines(), "run: python docs/tour.py"


def test_tour_passes_every_station() -> None:
    page = (DOCS / "tour.md").read_text()
    stations = (
        "REDUCE_AXES",
        "RANGE",
        "VECTORIZE",
        "ACC",
        "define ",
        "vfmadd",
        "ld.param",
        "s_load",
        "```python\n>>> x",
    )
    assert [s for s in stations if s not in page] == []
