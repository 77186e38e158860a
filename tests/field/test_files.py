"""Tensors over a mapped file: permuted and strided reads give what the same reads of a copy give."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from gradlet import Tensor

READS: dict[str, Callable[[Any], Any]] = {
    "permuted": lambda t: t.permute(1, 0) if isinstance(t, Tensor) else t.transpose(1, 0),
    "column": lambda t: t[:, :1],
    "column of a row": lambda t: t[:, :1][2],
    "column and rows": lambda t: t[:, :1][[3, 0, 3]],
    "strided box": lambda t: t[::2, 1:4],
    "strided and permuted": lambda t: t[::2, 1:4].T,
    "backwards": lambda t: t[::-1, ::-2],
    "flat part": lambda t: t.reshape(-1)[5:17:3],
    "diagonal": lambda t: t.diagonal(1),
    "permuted and cut": lambda t: t.T[1:5, ::3].reshape(-1),
}


@pytest.mark.parametrize("name", READS)
def test_reads_of_a_mapped_file(tmp_path: Path, name: str) -> None:
    path = tmp_path / "data.bin"
    values = np.arange(24, dtype=np.uint8).reshape(4, 6) * 7
    values.tofile(path)
    mapped = Tensor(np.memmap(path, np.uint8, "r+", shape=(4, 6)), copy=False)
    read = READS[name]
    expected = read(values)
    assert read(mapped).tolist() == expected.tolist()
    assert (read(mapped) + 1).tolist() == (expected + 1).tolist()
    assert read(mapped).contiguous().tolist() == expected.tolist()
    assert read(mapped).cast("int32").sum().item() == expected.sum()


def test_a_mapped_file_that_is_read_only(tmp_path: Path) -> None:
    path = tmp_path / "data.bin"
    np.arange(24, dtype=np.float32).tofile(path)
    mapped = Tensor(np.memmap(path, np.float32, "r", shape=(4, 6)), copy=False)
    assert mapped.permute(1, 0)[2].tolist() == [2.0, 8.0, 14.0, 20.0]
    changed = mapped * 1
    mapped[0] = 9.0  # a value of its own: the file stays
    assert mapped[:, 0].tolist() == [9.0, 6.0, 12.0, 18.0]
    assert changed[:, 0].tolist() == [0.0, 6.0, 12.0, 18.0]
    np.testing.assert_array_equal(np.fromfile(path, np.float32), np.arange(24))
