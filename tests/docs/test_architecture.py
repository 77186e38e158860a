"""The table of modules in docs/architecture.md names every module there is, and none that is not."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parent.parent.parent


def named() -> list[str]:
    """Paths below the package of the modules in the table's rows."""
    table = (ROOT / "docs" / "architecture.md").read_text().split("## 7. Every module")[1]
    found = []
    for row in re.findall(r"^\| `(\w+/)` \| (.+) \|$", table, re.MULTILINE):
        folder = row[0]
        inner = ""
        for name in re.findall(r"`([\w/]+)`", row[1]):
            if name.endswith("/"):
                inner = name
            else:
                found.append(f"{folder}{inner}{name}")
    return found


def test_every_module_is_named_once() -> None:
    package = ROOT / "gradlet"
    modules = [path.relative_to(package).with_suffix("").as_posix() for path in package.rglob("*.py")]
    expected = [m for m in modules if "/" in m and not m.rsplit("/", 1)[1].startswith("__")]
    assert sorted(named()) == sorted(expected)
