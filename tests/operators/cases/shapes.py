"""Parts of tensors by index, joining and cutting, diagonals, turned axes, updates."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from gradlet import Tensor
from tests.operators.case import Case, In

CASES: list[Case] = []
BOTH = ("float32", "int32")


def rows(
    name: str,
    ours: Callable[..., Any],
    theirs: Callable[..., Any] | None,
    *sets: list[In],
    dtypes: tuple[str, ...] = ("float32",),
    grad: bool = True,
) -> None:
    CASES.append(Case(name, ours, theirs or ours, sets, dtypes, grad))


def x(*shape: int, layout: str = "plain") -> In:
    return In(shape, layout=layout)


def places(*values: Any) -> In:
    return In(values=list(values), dtype="int64")


# axes
rows("movedim", lambda a: a.movedim((0, 2), (-1, 0)), None, [x(2, 3, 4)], [x(2, 3, 4, layout="strided")])
rows("mT", lambda a: a.mT, None, [x(2, 3, 4)])
rows("rot90-1", lambda a: a.rot90(), None, [x(3, 4)], [x(2, 3, 4, layout="sliced")])
rows("rot90-3", lambda a: a.rot90(-1, (2, 0)), None, [x(2, 3, 4)])
rows("fliplr", lambda a: a.fliplr(), None, [x(3, 4)])
rows("fftshift", lambda a: a.fftshift(), lambda a: torch.fft.fftshift(a), [x(3, 4)], [x(5)])
rows("ifftshift", lambda a: a.ifftshift((1,)), lambda a: torch.fft.ifftshift(a, (1,)), [x(3, 5)])
rows("narrow", lambda a: a.narrow(1, -3, 2), None, [x(2, 5)], [x(2, 5, layout="flipped")])
rows(
    "narrow-tensor",
    lambda a, i: a.narrow(1, i, 2),
    lambda a, i: a.narrow(1, i, 2),
    [x(2, 5), In((), 2, 2, dtype="int64")],
)
rows("select", lambda a: a.select(1, -2), None, [x(2, 3, 4)])
rows("unbind", lambda a: a.unbind(1), None, [x(2, 3, 4)])
rows("tile", lambda a: a.tile(2, 1, 3), lambda a: a.tile(2, 1, 3), [x(2, 3)])
rows("sum_to_size", lambda a: a.sum_to_size(3, 1), None, [x(2, 3, 4)])
rows("atleast_3d", lambda a: a.atleast_3d(), lambda a: torch.atleast_3d(a), [x(3)], [x()], [x(2, 3)])
rows(
    "broadcast_tensors",
    lambda a, b: a.broadcast_tensors(b),
    lambda a, b: torch.broadcast_tensors(a, b),
    [x(3, 1), x(2, 1, 4)],
)
rows(
    "repeat_interleave-tensor",
    lambda a, i: a.repeat_interleave(i, 1),
    lambda a, i: a.repeat_interleave(i, 1),
    [x(2, 3), places(2, 0, 3)],
    [x(2, 3), places(2)],
)

# joining and cutting
rows("hstack", lambda a, b: a.hstack(b), lambda a, b: torch.hstack((a, b)), [x(2, 3), x(2, 1)], [x(2), x(3)])
rows("vstack", lambda a, b: a.vstack(b), lambda a, b: torch.vstack((a, b)), [x(2, 3), x(3)], [x(2), x(2)])
rows("dstack", lambda a, b: a.dstack(b), lambda a, b: torch.dstack((a, b)), [x(2, 3), x(2, 3)], [x(2), x(2)])
rows("column_stack", lambda a, b: a.column_stack(b), lambda a, b: torch.column_stack((a, b)), [x(2, 3), x(2)])
rows(
    "block_diag",
    lambda a, b: a.block_diag(b, a),
    lambda a, b: torch.block_diag(a, b, a),
    [x(2, 3), x(2)],
    [x(), x(1, 2)],
)
rows("cartesian_prod", lambda a, b: a.cartesian_prod(b, a), lambda a, b: torch.cartesian_prod(a, b, a), [x(2), x(3)])
for _r in (1, 2, 3):
    for _again in (False, True):
        rows(
            f"combinations-{_r}-{_again}",
            lambda a, r=_r, w=_again: a.combinations(r, w),
            lambda a, r=_r, w=_again: torch.combinations(a, r, w),
            [x(5)],
        )
rows("tensor_split", lambda a: a.tensor_split(3, 1), None, [x(2, 7)])
rows("tensor_split-at", lambda a: a.tensor_split((1, 3, 2, -1), 1), None, [x(2, 7)])
rows("cat-empty-vector", lambda a, b: a.cat(b, dim=-1), lambda a, b: torch.cat((a, b), -1), [x(0), x(2, 3)])

# diagonals and triangles
for _offset in (-2, 0, 1):
    rows(f"diag_embed-{_offset}", lambda a, o=_offset: a.diag_embed(o, -1, 0), None, [x(2, 3)], [x(0)])
    rows(f"diag-matrix-{_offset}", lambda a, o=_offset: a.diag(o), None, [x(3, 4)], [x(4, 2, layout="transposed")])
rows("diagflat", lambda a: a.diagflat(1), None, [x(2, 2)])
rows("diagonal_scatter", lambda a, b: a.diagonal_scatter(b, 1), None, [x(3, 4), x(3)], [x(3, 4, layout="sliced"), x(3)])

# parts
rows("as_strided", lambda a: a.as_strided((2, 3), (1, 2), 1), None, [x(3, 3)])
rows("as_strided-shared", lambda a: a.as_strided((3, 2, 2), (1, 1, 0)), None, [x(4)])
rows("take", lambda a, i: a.take(i), None, [x(2, 3), places([0, -1], [5, 0])])
rows(
    "take_along_dim",
    lambda a, i: a.take_along_dim(i, 1),
    None,
    [x(2, 3), places([2, 0, 1, 1])],
    [x(1, 3), places([2], [0])],
)
rows("select_scatter", lambda a, b: a.select_scatter(b, 1, -1), None, [x(2, 3), x(2)])
rows("slice_scatter", lambda a, b: a.slice_scatter(b, 1, 1, None, 2), None, [x(2, 5), x(2, 2)])

# updates
_index = places(2, 0, 2)
rows(
    "scatter_add",
    lambda a, i, b: a.scatter_add(0, i, b),
    None,
    [x(4), _index, x(3)],
    [x(), places(0), x(1)],
    dtypes=BOTH,
)
rows("index_add", lambda a, i, b: a.index_add(1, i, b, alpha=2), None, [x(2, 4), _index, x(2, 3)])
rows("index_copy", lambda a, i, b: a.index_copy(1, i, b), None, [x(2, 4), places(2, 0), x(2, 2)], dtypes=BOTH)
rows("index_fill", lambda a, i: a.index_fill(1, i, 3), None, [x(2, 4), _index])
for _reduce in ("prod", "mean", "amax", "amin"):
    for _own in (True, False):
        rows(
            f"index_reduce-{_reduce}-{_own}",
            lambda a, i, b, r=_reduce, own=_own: a.index_reduce(0, i, b, r, include_self=own),
            None,
            [x(4, 2), _index, x(3, 2)],
        )
rows("index_put", lambda a, i, b: a.index_put((i,), b), None, [x(4, 2), places(2, 0), x(2, 2)])
rows("index_put-add", lambda a, i, b: a.index_put((i, i), b, True), None, [x(4, 4), places(2, 0, 2), x(3)])
rows("put", lambda a, i, b: a.put(i, b), None, [x(2, 3), places(5, -6), x(2)])
rows("put-add", lambda a, i, b: a.put(i, b, True), None, [x(2, 3), places([5, 5], [0, -1]), x(2, 2)])
rows(
    "masked_scatter",
    lambda a, m, b: a.masked_scatter(m, b),
    None,
    [x(3, 4), In((3, 4), dtype="bool"), x(13)],
    [x(3, 4), In((4,), dtype="bool"), x(2, 7)],
)
rows(
    "index_add-16-bit",
    lambda a, i, b: a.index_add(0, i, b),
    lambda a, i, b: a.float().index_add(0, i, b.float()).to(a.dtype),
    [x(2), In((300,), 0, 1, dtype="int64"), In((300,), 0, 4)],
    dtypes=("float16", "bfloat16"),
)

# made from nothing
rows(
    "tril_indices",
    lambda a: Tensor.tril_indices(4, 6, 1, "int64"),
    lambda a: torch.tril_indices(4, 6, 1),
    [x(1)],
    grad=False,
)
rows(
    "triu_indices",
    lambda a: Tensor.triu_indices(6, 4, -2, "int64"),
    lambda a: torch.triu_indices(6, 4, -2),
    [x(1)],
    grad=False,
)
