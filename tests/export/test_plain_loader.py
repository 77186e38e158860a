"""The loader of docs/export.md, which is all that it takes to run a file, does what ours does."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from gradlet import Tensor, jit, nn
from gradlet.io import program

PAGE = Path(__file__).resolve().parents[2] / "docs" / "export.md"


def loader() -> Any:
    """The class that the page shows."""
    blocks = [block.split("```")[0] for block in PAGE.read_text().split("```python\n")[1:]]
    (source,) = [block for block in blocks if "class Program" in block]
    space: dict[str, Any] = {}
    exec(compile(source, str(PAGE), "exec"), space)
    return space["Program"]


def test_it_gives_the_same_results_call_after_call(tmp_path: Path) -> None:
    layers = nn.Linear(6, 17), nn.Linear(17, 4)
    total = Tensor.zeros(4).contiguous().realize()

    @jit
    def step(x: Tensor) -> tuple[Tensor, Tensor]:
        y = layers[1](layers[0](x).relu())
        total.assign(total * 0.5 + y.sum(0))
        return y, total.exp()

    step.export(tmp_path / "a.gradlet", Tensor(np.zeros((3, 6), np.float32)))
    plain, ours = loader()(tmp_path / "a.gradlet"), program.load(tmp_path / "a.gradlet")
    for call in range(3):
        x = np.random.default_rng(call).standard_normal((3, 6)).astype(np.float32)
        found, (y, exponentials) = plain(x=x), ours(x)
        assert list(found) == ["output0", "output1"]
        assert found["output0"].tobytes() == y.numpy().tobytes()
        assert found["output1"].tobytes() == exponentials.numpy().tobytes()
