"""Links between the documents lead somewhere."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").glob("*.md")])


@pytest.mark.parametrize("page", PAGES, ids=lambda p: p.name)
def test_local_links_exist(page: Path) -> None:
    targets = re.findall(r"\]\(([^)#\s]+)\)", page.read_text())
    local = [t for t in targets if not t.startswith(("http://", "https://", "mailto:"))]
    assert [t for t in local if not (page.parent / t).exists()] == []
