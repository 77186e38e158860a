"""Mistakes with layers, optimizers, states and files."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from gradlet import Tensor, nn
from gradlet.base.errors import ArgumentError, DTypeError, FileFormatError, ShapeError
from tests.errors.table import Row, check

P = Tensor([1.0])
RAW = Tensor.zeros(18, dtype="uint8")
quantized = nn.QuantizedWeight.from_gguf_blocks

MISTAKES: list[Row] = [
    (lambda: nn.Linear("a", 3), ShapeError, "layer: expected integers"),
    (lambda: nn.Linear(-1, 3), ShapeError, "layer: a size may not be negative"),
    (lambda: nn.Linear(3, 4)([1.0]), DTypeError, "Linear: x must be a Tensor, got list"),
    (lambda: nn.Linear(3, 4)(Tensor.ones(2, 5)), ShapeError, "dot: shapes"),
    (lambda: nn.Embedding(3, 4)([1]), DTypeError, "Embedding: idx must be a Tensor"),
    (lambda: quantized([0] * 18, "Q4_0", (1, 32)), DTypeError, "raw must be a Tensor, got list"),
    (lambda: quantized(Tensor.zeros(18), "Q4_0", (1, 32)), DTypeError, r"raw must be bytes \(uint8\), not float32"),
    (lambda: quantized(RAW, "Q4_2", (1, 32)), ArgumentError, "unknown type 'Q4_2'; use one of: Q4_0, Q4_1"),
    (lambda: quantized(RAW, "Q4_0", (32,)), ShapeError, r"shape \(32,\) is not \(rows, columns\)"),
    (lambda: quantized(RAW, "Q4_0", (1, 48)), ShapeError, "Q4_0 has blocks of 32 columns, and 48 is no multiple"),
    (lambda: quantized(RAW, "Q4_K", (1, 32)), ShapeError, "Q4_K has blocks of 256 columns"),
    (
        lambda: quantized(RAW, "Q4_0", (2, 32)),
        ArgumentError,
        r"36 bytes \(2 x 1 blocks of 18\), and there are 18",
    ),
    (lambda: quantized(RAW, "Q4_0", (1, 32))(Tensor.ones(2, 31)), ShapeError, "does not fit a weight of 32 columns"),
    (lambda: quantized(RAW, "Q4_0", (1, 32))(Tensor([1] * 32)), DTypeError, "linear: x is int64, not a float|int32"),
    (lambda: nn.Conv2d(1, 2, 0), ShapeError, "kernel_size=0: .*none below 1"),
    (lambda: nn.Conv2d(1, 2, "a"), ShapeError, "kernel_size: expected integers"),
    (lambda: nn.Conv2d(4, 2, 3, groups="a"), ArgumentError, "groups must be an integer"),
    (lambda: nn.Conv2d(1, 2, 3)(None), DTypeError, "Conv2d: x must be a Tensor"),
    (lambda: nn.Conv1d(1, 2, (3, 3)), ShapeError, "kernel_size: expected an integer or 1 integers"),
    (lambda: nn.BatchNorm(-3), ShapeError, "a size may not be negative"),
    (lambda: nn.BatchNorm(3)(None), DTypeError, "BatchNorm: x must be a Tensor"),
    (lambda: nn.LayerNorm("a"), ShapeError, "LayerNorm: normalized_shape: expected integers"),
    (lambda: nn.GroupNorm(0, 4), ArgumentError, "num_groups=0 must divide"),
    (lambda: nn.RMSNorm(3)(Tensor.ones(4, 5)), ShapeError, "RMSNorm: x has shape .* must end in 3"),
    (lambda: nn.LSTMCell(3, 0), ArgumentError, "LSTMCell: hidden_size must be at least 1"),
    (lambda: nn.LSTMCell(3, 4)(Tensor.ones(2, 5)), ShapeError, "LSTMCell: x has shape .* must end in 3"),
    (lambda: nn.LSTMCell(3, 4)(Tensor.ones(2, 3), 5), ArgumentError, "LSTMCell: hc must be two tensors"),
    (lambda: nn.LSTMCell(3, 4)(Tensor.ones(2, 3), (Tensor.ones(2, 4), P)), ShapeError, r"must have shape \(2, 4\)"),
    (lambda: nn.optim.SGD(3), ArgumentError, "params: expected a list of tensors, got int"),
    (lambda: nn.optim.SGD([3]), ArgumentError, r"params\[0\]: expected a Tensor"),
    (lambda: nn.optim.SGD([P], lr="a"), ArgumentError, "lr must be a number"),
    (lambda: nn.optim.SGD([P], lr=-1), ArgumentError, "lr=-1 must be a finite number, at least 0"),
    (lambda: nn.optim.SGD([P], lr=float("nan")), ArgumentError, "lr=nan must be"),
    (lambda: nn.optim.SGD([P], momentum="a"), ArgumentError, "momentum must be a number"),
    (lambda: nn.optim.Adam([P], b1="a"), ArgumentError, "b1 must be a number"),
    (lambda: nn.optim.Adam([P], b2=1.0), ArgumentError, "b2=1.0 must be at least 0 and below 1"),
    (lambda: nn.optim.Adam([P], eps=None), ArgumentError, "eps must be a number"),
    (lambda: nn.optim.OptimizerGroup(3), ArgumentError, r"optimizers\[0\]: expected an optimizer"),
    (lambda: nn.state.load_state_dict(nn.Linear(2, 2), None), ArgumentError, "state_dict: expected tensors by name"),
    (lambda: nn.state.load_state_dict(nn.Linear(2, 2), {}), ArgumentError, "state_dict: missing 'weight', 'bias'"),
    (lambda: nn.state.safe_load(3), ArgumentError, "path: expected the path of a file, got int"),
    (lambda: nn.state.safe_save(None, "x"), ArgumentError, "tensors: expected tensors by name"),
    (lambda: nn.datasets.digits(test="a"), ArgumentError, "digits: test must be an integer"),
    (lambda: nn.Conv2d("a", 2, 3), ArgumentError, "convolution: in_channels must be an integer, got 'a'"),
    (lambda: nn.Conv2d(2, None, 3), ArgumentError, "convolution: out_channels must be an integer, got None"),
    (lambda: nn.GroupNorm(1, 1.5), ArgumentError, "GroupNorm: num_channels must be an integer, got 1.5"),
]


@pytest.mark.parametrize("row", MISTAKES, ids=range(len(MISTAKES)))
def test_mistake(row: Row) -> None:
    check(row)


def test_a_header_with_thousands_of_axes_is_refused(tmp_path: Path) -> None:
    row = {"dtype": "F32", "shape": [1] * 5000, "data_offsets": [0, 4]}
    text = json.dumps({"a": row}).encode()
    path = tmp_path / "deep"
    path.write_bytes(len(text).to_bytes(8, "little") + text + b"1234")
    with pytest.raises(FileFormatError, match="5000 axes are more than"):
        nn.state.safe_load(path)


def test_places_that_cannot_be_written_are_named(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="no such folder.*missing"):
        nn.state.safe_save({"a": P}, tmp_path / "missing" / "file")
    with pytest.raises(IsADirectoryError, match="is a folder"):
        nn.state.safe_save({"a": P}, tmp_path)
    assert list(tmp_path.iterdir()) == []
