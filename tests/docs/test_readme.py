"""The program in the README runs as it stands."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]


def test_program_trains() -> None:
    programs = re.findall(r"```python\n(from .*?)```", (ROOT / "README.md").read_text(), re.DOTALL)
    assert len(programs) == 1
    names: dict[str, Any] = {}
    exec(programs[0], names)
    x, y = names["Tensor"].rand(8, 64), names["Tensor"]([1, 2, 3, 4, 5, 6, 7, 8])
    losses = [names["step"](x, y).item() for _ in range(8)]
    assert losses[-1] < losses[0]
