"""A pytest plugin that notes which `raise` statements of the tensor layer a run reaches."""

from __future__ import annotations

import ast
import sys
from pathlib import Path
from types import FrameType
from typing import Any

PACKAGE = Path(__file__).parents[2] / "gradlet"
# The folders whose errors a user of Tensor meets.
FOLDERS = ("ops", "tensor", "array_api")
# What no call of a user reaches: methods that another class has, and faults of our own.
OURS = ("NotImplementedError", "CompilerError", "AssertionError")


def statements(path: Path) -> dict[int, str]:
    """The `raise` statements with an error for users: their first lines, and what they raise."""
    found = {}
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Raise) and node.exc is not None:
            text = ast.unparse(node.exc)
            if not text.startswith(OURS):
                found[node.lineno] = text
    return found


# At the start: the files may change while the tests run.
TEXTS = {str(p): statements(p) for folder in FOLDERS for p in sorted((PACKAGE / folder).rglob("*.py"))}
reached: set[tuple[str, int]] = set()


def _in_function(frame: FrameType, event: str, arg: Any) -> Any:
    if event == "line" and frame.f_lineno in TEXTS[frame.f_code.co_filename]:
        reached.add((frame.f_code.co_filename, frame.f_lineno))
    return _in_function


def _at_call(frame: FrameType, event: str, arg: Any) -> Any:
    return _in_function if TEXTS.get(frame.f_code.co_filename) else None


def pytest_sessionstart() -> None:
    sys.settrace(_at_call)


def pytest_sessionfinish(session: Any) -> None:
    """Write a line for each statement that was not reached: `file:line: what it raises`."""
    sys.settrace(None)
    report = session.config.getoption("--raised")
    missed = sorted((p, line) for p, texts in TEXTS.items() for line in texts if (p, line) not in reached)
    lines = [f"{Path(p).relative_to(PACKAGE).as_posix()}:{line}: {TEXTS[p][line]}\n" for p, line in missed]
    Path(report).write_text("".join(lines))


def pytest_addoption(parser: Any) -> None:
    parser.addoption("--raised", required=True, help="file for the statements that were not reached")
