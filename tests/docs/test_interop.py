"""The examples of docs/interop.md run, and what they say in comments is so."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]


def examples() -> list[str]:
    return re.findall(r"```python\n(.*?)```", (ROOT / "docs" / "interop.md").read_text(), re.DOTALL)


def test_the_examples_run() -> None:
    sharing, namespace = examples()
    names: dict[str, Any] = {}
    exec(sharing, names)
    assert names["x"].tolist() == [6, 3]
    assert names["array"].tolist() == [5, 2]
    *lines, last = namespace.strip().splitlines()
    exec("\n".join(lines), names)
    assert eval(last, names).item() == 1.75


def test_every_call_of_the_tables_exists() -> None:
    from gradlet import Tensor

    text = (ROOT / "docs" / "interop.md").read_text()
    methods = set(re.findall(r"(?:`|\()(?:x|Tensor)\.(\w+)\(", text))
    assert {"from_dlpack", "from_blob", "from_url", "numpy", "data", "contiguous", "keccak", "hash"} <= methods
    assert [name for name in sorted(methods) if not hasattr(Tensor, name)] == []
