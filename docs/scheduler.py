"""Refreshes the outputs in scheduler.md: `python docs/scheduler.py`.

Every `python` block of that page runs, in order, and the `text` block after it becomes what it printed. Device NULL
stands for a typical machine (AVX2, four cores), so the page is the same everywhere; a test holds it to that.
"""

from __future__ import annotations

import io
import re
from contextlib import redirect_stdout
from pathlib import Path
from typing import Any

from gradlet.base.settings import scope

PAGE = Path(__file__).with_suffix(".md")
EXAMPLE = re.compile(r"```python\n(.*?)```\n\n```text\n(.*?)```", re.DOTALL)
FIXED = {"DEV": "NULL", "FUSE": 2, "DEBUG": 0, "SCHEDULE_CACHE": 0}


def scheduler_markdown() -> str:
    """The page with the outputs of today."""
    names: dict[str, Any] = {}

    def refreshed(example: re.Match[str]) -> str:
        source = example.group(1)
        output = io.StringIO()
        with redirect_stdout(output):
            exec(source, names)
        return f"```python\n{source}```\n\n```text\n{output.getvalue().rstrip()}\n```"

    with scope(**FIXED):
        return EXAMPLE.sub(refreshed, PAGE.read_text())


if __name__ == "__main__":
    PAGE.write_text(scheduler_markdown())
