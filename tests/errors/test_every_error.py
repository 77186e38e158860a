"""Every error that the tensor layer raises has a row in this folder."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from tests.errors.raised import PACKAGE, TEXTS

# File and beginning of what is raised -> why no call of a user leads there.
UNREACHABLE: dict[tuple[str, str], str] = {
    ("ops/reduce.py", "DTypeError(f'{what}: {self.dtype} has no float form')"): (
        "every type that a tensor can have becomes a float; this stands there for types to come"
    ),
    ("tensor/fastcall.py", "UnfitError"): "caught by the jit, whose call takes the long way then",
    ("tensor/function.py", "UnfitError"): "caught a few lines below: later calls take the long way",
}


def excused(place: str) -> bool:
    """Whether a line of the report, `file:line: what it raises`, is on the list."""
    file, _, rest = place.partition(":")
    text = rest.partition(": ")[2]
    return any(file == where and text.startswith(start) for where, start in UNREACHABLE)


def test_every_raise_statement_is_reached(tmp_path: Path) -> None:
    report = tmp_path / "missed.txt"
    root = PACKAGE.parent
    # Not those that look at no message.
    others = (Path(__file__).name, "test_nonsense.py")
    files = sorted(str(p) for p in Path(__file__).parent.glob("test_*.py") if p.name not in others)
    command = [sys.executable, "-m", "pytest", "-q", "-p", "tests.errors.raised", f"--raised={report}", *files]
    # In one process, whatever runs this test.
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}
    environment["PYTHONPATH"] = str(root)
    run = subprocess.run(command, cwd=root, env=environment, capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stdout[-3000:] + run.stderr[-1000:]
    missed = [place for place in report.read_text().splitlines() if not excused(place)]
    assert missed == [], f"{len(missed)} errors have no test of their message in tests/errors"


def test_the_list_of_exceptions_holds_statements_that_exist() -> None:
    for file, start in UNREACHABLE:
        assert any(text.startswith(start) for text in TEXTS[str(PACKAGE / file)].values()), (file, start)
