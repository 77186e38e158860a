"""Shared by all tests: graphs are checked between every two passes, settings are restored after each test.

`golden` compares text with a file in `tests/golden/`; `pytest --update-golden` writes the files anew.
"""

from __future__ import annotations

import difflib
import os
import re

# Before the first gradlet import, and inherited by every subprocess a test starts.
os.environ["SPEC"] = "1"
# The same schedules on every machine: typical figures, not measured ones.
os.environ["PROBE"] = "0"

from collections.abc import Callable, Iterator
from pathlib import Path

import hypothesis
import pytest

from gradlet.base.settings import SETTINGS, scope

# The same examples on every run and every machine, however slow or loaded it is.
hypothesis.settings.register_profile("steady", deadline=None, derandomize=True, database=None)
hypothesis.settings.load_profile("steady")


@pytest.fixture(autouse=True)
def restore_settings() -> Iterator[None]:
    """A test that changes a setting and fails must not change the tests after it."""
    before = [(row, row._value) for row in SETTINGS.values()]
    yield
    for row, value in before:
        row._value = value


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--update-golden", action="store_true", help="write tests/golden/ anew from what the tests produce"
    )


@pytest.fixture
def golden(request: pytest.FixtureRequest) -> Callable[..., None]:
    """`golden(text, extension)` fails unless the text equals `tests/golden/<test file>/<test>.<extension>`."""
    test = re.sub(r"[^\w.-]+", "_", request.node.name).strip("_")
    folder = Path(__file__).parent / "golden" / request.path.stem

    def compare(text: str, extension: str = "txt") -> None:
        path = folder / f"{test}.{extension}"
        if request.config.getoption("--update-golden"):
            folder.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
            return
        if not path.exists():
            pytest.fail(f"{path.relative_to(folder.parent.parent)} is missing; write it with pytest --update-golden")
        expected = path.read_text()
        if text != expected:
            lines = difflib.unified_diff(expected.splitlines(), text.splitlines(), "golden", "now", lineterm="")
            pytest.fail("\n".join(["differs from the golden file; if it should: pytest --update-golden", *lines]))

    return compare


@pytest.fixture
def two_cores() -> Iterator[None]:
    """Counts that depend on how many threads share the work: the same on every machine."""
    with scope(NUM_THREADS=2):
        yield
