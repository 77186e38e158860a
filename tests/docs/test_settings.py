"""docs/settings.md is what its generator writes, and says something about every setting."""

from __future__ import annotations

import runpy
from pathlib import Path

from gradlet.base.settings import SETTINGS

DOCS = Path(__file__).resolve().parents[2] / "docs"


def test_page_is_generated_from_the_table() -> None:
    generated = runpy.run_path(str(DOCS / "settings.py"))["settings_markdown"]()
    assert (DOCS / "settings.md").read_text() == generated, "run: python docs/settings.py"


def test_every_setting_is_on_the_page() -> None:
    page = (DOCS / "settings.md").read_text()
    assert [name for name in SETTINGS if f"| `{name}` |" not in page] == []
