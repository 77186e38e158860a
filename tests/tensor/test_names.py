"""Every public method of tinygrad's Tensor exists under the same name, with the same parameters in the same order."""

from __future__ import annotations

import inspect
from pathlib import Path

import pytest

from gradlet import Tensor

# `method: parameters`, as tinygrad 0.14 documents them.
LINES = (Path(__file__).parent / "tinygrad_names.txt").read_text().splitlines()
PROPERTIES = ("T", "ndim", "dtype", "device", "grad", "shape")
# Parameters that only steer how tinygrad executes, and mean nothing here.
HINTS = {"full": {"buffer"}, "full_like": {"buffer"}, "rand": {"contiguous"}, "realize": {"do_update_stats"}}
# Other names for what is given by position: any number of tensors.
RENAMED = {"lst": "others"}


@pytest.mark.parametrize("line", LINES)
def test_method(line: str) -> None:
    name, _, text = line.partition(":")
    wanted = [RENAMED.get(p, p) for p in text.split() if p not in HINTS.get(name, ())]
    ours = inspect.signature(getattr(Tensor, name)).parameters
    names = [p for p in ours if p != "self"]
    keywords = {p for p in names if ours[p].kind is inspect.Parameter.KEYWORD_ONLY}
    # `shape, *args` of theirs is `*shape` of ours; what follows is given by keyword.
    wanted = [p for p in wanted if p != "args" or "args" in names]
    assert set(wanted) <= set(names)
    positional = [p for p in wanted if p not in keywords]
    assert positional == names[: len(positional)]


@pytest.mark.parametrize("name", PROPERTIES)
def test_property(name: str) -> None:
    assert hasattr(Tensor([[1.0]]), name)


def test_operators() -> None:
    binary = "add sub mul truediv floordiv mod pow matmul and or xor lshift rshift"
    for operator in binary.split():
        assert hasattr(Tensor, f"__{operator}__") and hasattr(Tensor, f"__r{operator}__")
        assert operator == "matmul" or hasattr(Tensor, f"__i{operator}__")
    for operator in ("neg", "invert", "abs", "eq", "ne", "lt", "le", "gt", "ge", "getitem", "setitem"):
        assert hasattr(Tensor, f"__{operator}__")
