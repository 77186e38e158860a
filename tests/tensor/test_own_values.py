"""A result is a tensor of its own or a view: it is never the tensor itself under another name.

`total = x.sum(); total += 1` must not change `x`, whatever the shape and type of `x`.
"""

from __future__ import annotations

import inspect
from typing import Any

import numpy as np
import pytest

from gradlet import Tensor

# Writing into these means writing into the tensor they were taken from.
VIEWS = {
    "H", "T", "adjoint", "atleast_1d", "atleast_2d", "atleast_3d", "broadcast_tensors", "broadcast_to", "chunk",
    "diag", "diagonal", "dsplit", "expand", "expand_as", "flatten", "hsplit", "mH", "mT", "meshgrid", "moveaxis",
    "movedim", "narrow", "permute", "ravel", "rearrange", "reshape", "reshape_as", "select", "shrink", "shrink_to",
    "split", "split_with_sizes", "squeeze", "swapaxes", "swapdims", "t", "take_every", "tensor_split", "transpose",
    "unbind", "unflatten", "unfold", "unsqueeze", "view", "view_as", "vsplit",
}  # fmt: skip
# These say that they may give back what they got, as torch's do.
SAME = {
    "alpha_dropout", "assign", "bfloat16", "bool", "cast", "conj", "conj_physical", "contiguous",
    "contiguous_backward", "double", "dropout", "dropout1d", "dropout2d", "dropout3d", "feature_alpha_dropout",
    "float", "half", "int", "long", "positive", "real", "realize", "replace", "resolve_conj", "resolve_neg", "short",
    "to", "to_",
}  # fmt: skip
ARGUMENTS: dict[str, list[tuple[Any, ...]]] = {
    "adaptive_avg_pool2d": [(3,)], "cat": [()], "flip": [(0,)], "interpolate": [((3, 3),)], "max": [((),)],
    "pad": [([(0, 0)],)], "pad_to": [(None,)], "pow": [(1,)],
    "repeat": [(1, 1)], "repeat_interleave": [(1,)], "roll": [(0,), (0, 0)], "rot90": [(4,)],
    "sum": [((),)], "sum_to_size": [((1,),)], "tile": [(1,)], "topk": [(1,)], "vstack": [()],
}  # fmt: skip
INPUTS = [
    np.float32(3.0), np.int32(3), np.bool_(True), np.ones(1, np.float32), np.array([[1, 2], [3, 4]]),
    np.array([True, False]), np.ones((1, 1, 3, 3), np.float32),
]  # fmt: skip


def is_connected(result: Tensor, source: Tensor) -> bool:
    """Whether writing into the result would write into the source."""
    link = result._view
    while link is not None:
        if link.tensor() is source:
            return True
        link = link.before
    return result is source


NAMES = [
    name
    for name in dir(Tensor)
    if not name.startswith("_")
    and not name.endswith("_")  # these change the tensor
    and name not in VIEWS | SAME
    and not isinstance(inspect.getattr_static(Tensor, name), (staticmethod, classmethod, type))
]


@pytest.mark.parametrize("start", range(4))
def test_results_are_tensors_of_their_own(start: int) -> None:
    found, called = [], 0
    for name in NAMES[start::4]:
        for data in INPUTS:
            for arguments in [(), *ARGUMENTS.get(name, [])]:
                source = Tensor(data)
                try:
                    result = getattr(source, name)
                    result = result(*arguments) if callable(result) else result
                except Exception:  # not for such a tensor, or more arguments are needed
                    continue
                called += 1
                parts = result if isinstance(result, (tuple, list)) else [result]
                if any(isinstance(part, Tensor) and is_connected(part, source) for part in parts):
                    found.append((name, source.shape, source.dtype.name, arguments))
    assert called > 100
    assert not found


def test_writing_into_a_sum_of_nothing_more() -> None:
    x = Tensor(3.0)
    total = x.sum()
    total += 1
    assert (x.item(), total.item()) == (3.0, 4.0)
    y = Tensor([1, 2])
    whole = y.floor()
    whole[0] = 9
    assert (y.tolist(), whole.tolist()) == ([1, 2], [9, 2])
