"""docs/scheduler.md shows what the scheduler does today."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

DOCS = Path(__file__).resolve().parents[2] / "docs"
PRINT_PAGE = "import runpy, sys; sys.stdout.write(runpy.run_path(sys.argv[1])['scheduler_markdown']())"


def test_outputs_are_those_of_today() -> None:
    environment = {k: v for k, v in os.environ.items() if k not in ("CPU_FEATURES", "NOOPT", "DEBUG", "DEV", "FUSE")}
    environment["PYTHONPATH"] = str(DOCS.parent)
    command = [sys.executable, "-c", PRINT_PAGE, str(DOCS / "scheduler.py")]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == (DOCS / "scheduler.md").read_text().splitlines(), "run: python docs/scheduler.py"


def test_every_example_has_its_output() -> None:
    page = (DOCS / "scheduler.md").read_text()
    outputs = re.findall(r"```python\n.*?```\n\n```text\n(.*?)```", page, re.DOTALL)
    assert len(outputs) == page.count("```python") == page.count("```text") >= 5
    assert all(output.strip() for output in outputs)


def test_modules_that_it_names_exist() -> None:
    page = (DOCS / "scheduler.md").read_text()
    named = re.findall(r"`schedule/(\w+)`", page)
    rows = re.findall(r"^\|.*\| ((?:`\w+`(?:, )?)+) \|$", page, re.MULTILINE)
    named += [name for row in rows for name in re.findall(r"`(\w+)`", row)]
    assert len(named) > 8
    folder = DOCS.parent / "gradlet" / "schedule"
    assert [name for name in named if not (folder / f"{name}.py").exists()] == []
