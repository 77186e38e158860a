"""Reading by index, gather, scatter, and assignment to parts."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from tests.operators.case import Case, In

CASES: list[Case] = []
BASIC: dict[str, Any] = {
    "integer": 1,
    "negative": -1,
    "slice": slice(1, 3),
    "open": slice(2, None),
    "step": slice(None, None, 2),
    "step-offset": slice(1, None, 3),
    "one-of-step": slice(0, 3, 5),
    "ellipsis": (..., 0),
    "new-axis": (None, slice(1, 2)),
    "middle": (slice(None), 2),
    "mixed": (1, slice(None), slice(0, 3, 2)),
    "empty": slice(2, 2),
    "new-last": (..., None),
    "all": slice(None),
    "beyond": slice(-100, 100),
    "integers": (0, 1, 2),
    "ellipsis-between": (1, ..., slice(1, 3)),
}
for _name, _index in BASIC.items():
    CASES.append(
        Case(
            f"getitem-{_name}",
            lambda x, i=_index: x[i],
            lambda x, i=_index: x[i],
            [[In((4, 5, 6))], [In((4, 5, 6), layout="transposed")], [In((4, 5, 6), layout="strided")]],
        )
    )
# torch has no negative steps; numpy does.
for _name, _index, _flips in (
    ("reverse", slice(None, None, -1), (0,)),
    ("reverse-step", slice(None, None, -2), (0,)),
    ("reverse-part", (slice(None), slice(3, 0, -1)), (1,)),
):

    def _torch_reversed(x: Any, index: Any = _index) -> Any:
        parts = index if isinstance(index, tuple) else (index,)
        for axis, part in enumerate(parts):
            x = x.index_select(axis, torch.tensor(list(range(x.shape[axis]))[part], dtype=torch.int64))
        return x

    CASES.append(Case(f"getitem-{_name}", lambda x, i=_index: x[i], _torch_reversed, [[In((4, 5))], [In((2, 4))]]))


def as_tensors(index: Any) -> Any:
    """torch reads a nested list as a tuple; as a tensor it means what it means in numpy."""
    parts = index if isinstance(index, tuple) else (index,)
    return tuple(torch.tensor(p) if isinstance(p, list) else p for p in parts)


LISTS: dict[str, Any] = {
    "list": [0, 2, -1],
    "list-twice": [1, 1],
    "nested": [[0, 1], [2, 3]],
    "second": (slice(None), [0, 2]),
    "two": ([0, 1, 2], [3, 0, -1]),
    "apart": ([0, 1], slice(None), [2, 3]),
    "with-slice": (slice(1, 3), [0, 4]),
    "with-integer": (1, [0, 2]),
    "adjacent": (slice(None), [0, 1], [2, 3]),
    "broadcast": ([[0], [1]], [2, 3]),
    "new-axis": (None, [0, 1]),
}
for _name, _index in LISTS.items():
    CASES.append(
        Case(
            f"getitem-list-{_name}",
            lambda x, i=_index: x[i],
            lambda x, i=_index: x[as_tensors(i)],
            [[In((4, 5, 6))], [In((4, 5, 6), layout="transposed")]],
        )
    )

_ROWS = In((5,), -4, 3, dtype="int64")
for _kind in ("int64", "int32", "uint8"):
    CASES.append(
        Case(
            f"getitem-tensor-{_kind}",
            lambda x, i: x[i],
            lambda x, i: x[i.long()],
            [
                [In((4, 3)), In((5,), 0, 3, dtype=_kind)],
                [In((4,)), In((2, 3), 0, 3, dtype=_kind)],
                [In((4, 3)), In((), 0, 3, dtype=_kind)],
                [In((4, 3)), In((0,), 0, 3, dtype=_kind)],
            ],
        )
    )
CASES.append(Case("getitem-tensor-negative", lambda x, i: x[i], lambda x, i: x[i], [[In((4, 3)), _ROWS]]))
CASES.append(Case("getitem-tensor-second", lambda x, i: x[:, i], lambda x, i: x[:, i], [[In((3, 4)), _ROWS]]))
CASES.append(
    Case(
        "getitem-tensors",
        lambda x, i, j: x[i, j],
        lambda x, i, j: x[i, j],
        [[In((4, 4)), _ROWS, In((5,), 0, 3, dtype="int64")]],
    )
)
CASES.append(
    Case(
        "getitem-mask",
        lambda x, m: x[m.realize()],
        lambda x, m: x[m],
        [[In((4, 3)), In((4,), dtype="bool")], [In((4, 3)), In((4, 3), dtype="bool")]],
        grad=False,
    )
)
CASES.append(
    Case(
        "masked_select",
        lambda x, m: x.masked_select(m),
        torch.masked_select,
        [[In((4, 3)), In((4, 3), dtype="bool")], [In((4, 3)), In((3,), dtype="bool")]],
        grad=False,
    )
)
CASES.append(
    Case(
        "nonzero",
        lambda x: x.nonzero(),
        lambda x: torch.nonzero(x).int(),
        [[In((4, 3), 0, 1, dtype="int32")], [In((3,), 0, 0, dtype="int32")]],
        grad=False,
    )
)
CASES.append(
    Case(
        "index_select",
        lambda x, i: x.index_select(1, i),
        lambda x, i: torch.index_select(x, 1, i),
        [[In((3, 4)), In((6,), 0, 3, dtype="int64")]],
    )
)
CASES.append(
    Case(
        "one_hot",
        lambda x: x.one_hot(5),
        lambda x: torch.nn.functional.one_hot(x, 5),
        [[In((4, 2), 0, 4)], [In((), 0, 4)]],
        ("int64",),
        grad=False,
    )
)

# gather and scatter
_SETS = [
    [In((4, 5)), In((2, 5), 0, 3, dtype="int64")],
    [In((4, 5)), In((4, 3), 0, 3, dtype="int64")],
    [In((4,)), In((9,), 0, 3, dtype="int64")],
]
CASES.append(Case("gather-0", lambda x, i: x.gather(0, i), lambda x, i: x.gather(0, i), _SETS))
CASES.append(
    Case(
        "gather-1",
        lambda x, i: x.gather(1, i),
        lambda x, i: x.gather(1, i),
        [
            [In((4, 5)), In((3, 7), 0, 4, dtype="int64")],
            [In((4, 5), layout="transposed"), In((4, 0), 0, 4, dtype="int64")],
        ],
    )
)
_UNIQUE = In(values=[[2, 0, 1], [0, 3, 2]], dtype="int64")
CASES.append(
    Case(
        "scatter",
        lambda x, i, s: x.scatter(0, i, s),
        lambda x, i, s: x.scatter(0, i, s),
        [[In((4, 5)), _UNIQUE, In((2, 3))], [In((4, 5)), _UNIQUE, In((3, 4), grad=False)]],
    )
)
CASES.append(
    Case(
        "scatter-number", lambda x, i: x.scatter(0, i, 2.5), lambda x, i: x.scatter(0, i, 2.5), [[In((4, 5)), _UNIQUE]]
    )
)
CASES.append(
    Case(
        "scatter-1",
        lambda x, i, s: x.scatter(1, i, s),
        lambda x, i, s: x.scatter(1, i, s),
        [[In((2, 5)), _UNIQUE, In((2, 3))]],
    )
)
_MANY = In(values=[[1, 1, 0], [1, 0, 3], [2, 1, 0]], dtype="int64")
CASES.append(
    Case(
        "scatter-add",
        lambda x, i, s: x.scatter(0, i, s, "add"),
        lambda x, i, s: x.scatter_add(0, i, s),
        [[In((4, 3)), _MANY, In((3, 3))]],
        ("float32", "int32"),
    )
)
for _reduce in ("sum", "prod", "mean", "amax", "amin"):
    for _include in (True, False):
        CASES.append(
            Case(
                f"scatter_reduce-{_reduce}-{_include}",
                lambda x, i, s, r=_reduce, k=_include: x.scatter_reduce(0, i, s, r, k),
                lambda x, i, s, r=_reduce, k=_include: x.scatter_reduce(0, i, s, r, include_self=k),
                [[In((4, 3), 0.5, 2), _MANY, In((3, 3), 0.5, 2)]],
                ("float32",),
                grad=_reduce == "sum" and _include,
                scale=3,
            )
        )


def assignment(index: Any) -> Callable[..., Any]:
    def run(x: Any, v: Any) -> Any:
        y = x.clone()
        y[index] = v
        return y

    return run


for _name, _index, _shape in [
    ("integer", 1, (5,)),
    ("slice", slice(1, 3), (2, 5)),
    ("step", slice(None, None, 2), (2, 5)),
    ("column", (slice(None), 2), (4,)),
    ("element", (1, 2), ()),
    ("number", slice(0, 2), ()),
    ("broadcast", slice(1, 4), (5,)),
    ("all", slice(None), (4, 5)),
    ("list", [0, 2], (2, 5)),
    ("lists", ([0, 1, 3], [2, 2, 4]), (3,)),
    ("second-list", (slice(None), [1, 3]), (4, 2)),
    ("empty", slice(2, 2), (5,)),
    ("ellipsis", (..., 1), (4,)),
    ("box", (slice(1, 3), slice(0, 4, 3)), (2, 2)),
]:
    CASES.append(
        Case(
            f"setitem-{_name}",
            assignment(_index),
            assignment(_index),
            [[In((4, 5)), In(_shape)], [In((4, 5), layout="transposed"), In(_shape)]],
            ("float32", "int32"),
        )
    )


def masked_assignment(x: Any, m: Any, v: Any) -> Any:
    y = x.clone()
    y[m] = v
    return y


CASES.append(
    Case(
        "setitem-mask",
        masked_assignment,
        masked_assignment,
        [[In((4, 5)), In((4, 5), dtype="bool"), In(())], [In((4, 5)), In((4,), dtype="bool"), In((5,))]],
    )
)
