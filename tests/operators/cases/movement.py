"""Movement: shapes, axes, padding, splitting, joining, diagonals, triangles."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from gradlet import Tensor
from tests.operators.case import Case, In

F = torch.nn.functional
CASES: list[Case] = []


def move(name: str, ours: Callable[..., Any], theirs: Callable[..., Any] | None = None, *shapes: Any) -> None:
    layouts = ("plain", "transposed", "sliced", "strided", "flipped")
    sets = [[In(shape, layout=layout)] for shape in (shapes or ((2, 3, 4),)) for layout in layouts]
    CASES.append(Case(name, ours, theirs or ours, sets))


move("reshape", lambda x: x.reshape(4, -1))
move("view", lambda x: x.view(6, 4), lambda x: x.reshape(6, 4))
move("reshape-empty", lambda x: x.reshape(3, 0, 5), None, (0, 4))
move("permute", lambda x: x.permute(2, 0, 1))
move("permute-negative", lambda x: x.permute(-1, 0, 1))
move("transpose", lambda x: x.transpose(0, 2))
move("T", lambda x: x.T, lambda x: x.T, (3, 4))
move("expand", lambda x: x.expand(3, 2, 5), None, (2, 1), (1, 1))
move("expand-keep", lambda x: x.expand(-1, 4, -1), None, (2, 1, 3))
move("flip", lambda x: x.flip(0, 2), lambda x: x.flip(0, 2))
move("squeeze", lambda x: x.squeeze(), None, (1, 3, 1), (1, 1))
move("squeeze-dim", lambda x: x.squeeze(1), None, (2, 1, 3), (2, 2))
move("unsqueeze", lambda x: x.unsqueeze(1))
move("unsqueeze-last", lambda x: x.unsqueeze(-1))
move("flatten", lambda x: x.flatten())
move("flatten-range", lambda x: x.flatten(1, 2))
move("unflatten", lambda x: x.unflatten(1, (2, -1)), None, (2, 6, 2))
move("repeat", lambda x: x.repeat(2, 1, 3))
move("repeat-more-axes", lambda x: x.repeat(2, 3), None, (3,), (1,))
move("repeat_interleave", lambda x: x.repeat_interleave(2, 1))
move("repeat_interleave-flat", lambda x: x.repeat_interleave(3))
move("roll", lambda x: x.roll(1, 0))
move("roll-two", lambda x: x.roll((1, -2), (0, 2)))
move("roll-flat", lambda x: x.roll(5))
move("shrink", lambda x: x.shrink(((0, 1), None, (1, 3))), lambda x: x[0:1, :, 1:3])
move("unfold", lambda x: x.unfold(1, 3, 2), None, (2, 8), (1, 5))
move("diagonal", lambda x: x.diagonal(), None, (4, 4), (3, 5), (1, 1))
move("diagonal-offset", lambda x: x.diagonal(1), None, (4, 4), (3, 5))
move("diagonal-below", lambda x: x.diagonal(-1), None, (4, 4), (3, 5))
move("diagonal-axes", lambda x: x.diagonal(0, 0, 2), None, (3, 2, 4))
move("diag", lambda x: x.diag(), None, (4,), (1,))
move("tril", lambda x: x.tril(), None, (4, 4), (2, 3, 5), (1, 1), (0, 3))
move("tril-above", lambda x: x.tril(1), None, (4, 4))
move("triu", lambda x: x.triu(), None, (4, 4), (2, 3, 5), (0, 3))
move("triu-below", lambda x: x.triu(-1), None, (4, 4))
move(
    "rearrange",
    lambda x: x.rearrange("a (b c) d -> d (a c) b", c=2),
    lambda x: x.reshape(2, 2, 2, 3).permute(3, 0, 2, 1).reshape(3, 4, 2),
    (2, 4, 3),
)

# padding
move("pad-flat", lambda x: x.pad((1, 2)), lambda x: F.pad(x, (1, 2)))
move("pad-flat-two", lambda x: x.pad((1, 2, 0, 3)), lambda x: F.pad(x, (1, 2, 0, 3)))
move("pad-axes", lambda x: x.pad((None, (1, 0), (2, 2))), lambda x: F.pad(x, (2, 2, 1, 0)))
move("pad-value", lambda x: x.pad((1, 1), value=2.5), lambda x: F.pad(x, (1, 1), value=2.5))
move("pad-infinite", lambda x: x.pad((1, 1), value=float("inf")), lambda x: F.pad(x, (1, 1), value=float("inf")))
move("pad-crop", lambda x: x.pad((-1, 2)), lambda x: F.pad(x, (-1, 2)))
move("pad-reflect", lambda x: x.pad((2, 1), mode="reflect"), lambda x: F.pad(x, (2, 1), mode="reflect"), (2, 3, 4))
move(
    "pad-replicate", lambda x: x.pad((2, 1), mode="replicate"), lambda x: F.pad(x, (2, 1), mode="replicate"), (2, 3, 4)
)
move("pad-circular", lambda x: x.pad((2, 1), mode="circular"), lambda x: F.pad(x, (2, 1), mode="circular"), (2, 3, 4))
move("pad-empty", lambda x: x.pad((1, 1), value=3.0), lambda x: F.pad(x, (1, 1), value=3.0), (2, 0))
move("pad_to", lambda x: x.pad_to(None, 5, 5), lambda x: F.pad(x, (0, 1, 0, 2)))
move("shrink_to", lambda x: x.shrink_to(None, 2, 3), lambda x: x[:, :2, :3])

# splitting
move("split", lambda x: x.split(2, 1), None, (2, 5), (2, 4))
move("split-sizes", lambda x: x.split([1, 3, 1], 1), None, (2, 5))
move("chunk", lambda x: x.chunk(3, 0), None, (7, 2), (6, 2), (2, 2))

# joining
_AB = [[In((2, 3)), In((2, 3))], [In((1, 3)), In((4, 3), layout="transposed")], [In((0, 3)), In((2, 3))]]
CASES.append(
    Case(
        "cat",
        lambda x, y: x.cat(y, dim=0),
        lambda x, y: torch.cat((x, y), 0),
        _AB,
        ("float32", "float16", "int32", "bool"),
    )
)
CASES.append(
    Case(
        "cat-static",
        lambda x, y: Tensor.cat(x, y, dim=-1),
        lambda x, y: torch.cat((x, y), -1),
        [[In((2, 3)), In((2, 1))]],
    )
)
CASES.append(
    Case(
        "cat-many",
        lambda *x: Tensor.cat(*x, dim=1),
        lambda *x: torch.cat(x, 1),
        [[In((2, 1 + i % 3)) for i in range(37)]],
    )
)
CASES.append(Case("cat-self", lambda x: x.cat(x, x * 2), lambda x: torch.cat((x, x, x * 2)), [[In((2, 3))]]))
CASES.append(
    Case(
        "cat-special",
        lambda x, y: x.cat(y),
        lambda x, y: torch.cat((x, y)),
        [[In(values=[float("nan"), -0.0]), In(values=[float("inf"), -float("inf"), 0.0])]],
        grad=False,
    )
)
CASES.append(
    Case(
        "stack",
        lambda x, y: x.stack(y, dim=1),
        lambda x, y: torch.stack((x, y), 1),
        [[In((2, 3)), In((2, 3))], [In((1,)), In((1,))]],
    )
)
CASES.append(
    Case("stack-no-axes", lambda x, y: Tensor.stack(x, y), lambda x, y: torch.stack((x, y)), [[In(()), In(())]])
)
for _indexing in ("ij", "xy"):
    CASES.append(
        Case(
            f"meshgrid-{_indexing}",
            lambda x, y, i=_indexing: x.meshgrid(y, indexing=i),
            lambda x, y, i=_indexing: torch.meshgrid(x, y, indexing=i),
            [[In((3,)), In((4,))]],
        )
    )
