"""`gradlet.io.load` tells formats by their content; npz archives and sharded safetensors."""

from __future__ import annotations

import io
import json
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import gradlet.io
from gradlet import Tensor
from gradlet.base.errors import FileFormatError
from gradlet.io import safetensors

ARRAYS: dict[str, Any] = {
    "a": np.arange(6, dtype=np.int16).reshape(2, 3),
    "by columns": np.asfortranarray(np.random.default_rng(0).standard_normal((3, 4))),
    "swapped": np.arange(3, dtype=">f4"),
    "scalar": np.float32(2.5),
    "none": np.zeros((0, 3), np.uint8),
    "truth": np.array([True, False]),
}


def test_npz_and_npy_by_content(tmp_path: Path) -> None:
    for save in (np.savez, np.savez_compressed):
        with open(tmp_path / "no name", "wb") as file:
            save(file, **ARRAYS)
        found = gradlet.io.load(tmp_path / "no name")
        assert list(found) == list(ARRAYS)
        for name, tensor in found.items():
            np.testing.assert_array_equal(tensor.numpy(), ARRAYS[name])
            assert tensor.dtype.name == ARRAYS[name].dtype.newbyteorder("=").name
    np.save(tmp_path / "one.npy", ARRAYS["a"])
    np.testing.assert_array_equal(gradlet.io.load(tmp_path / "one.npy").numpy(), ARRAYS["a"])


def npy(header: str, data: bytes = b"") -> bytes:
    text = header.encode()
    return b"\x93NUMPY\x01\x00" + len(text).to_bytes(2, "little") + text + data


@pytest.mark.parametrize(
    "content, message",
    [
        (npy("{'descr': '<f4', 'fortran_order': False, 'shape': (4,)}", bytes(8)), "array 'x': shape .* has 8; trunc"),
        (npy("{'descr': '<f4', 'fortran_order': False, 'shape': (2**70,)}"), "array 'x' has a header"),
        (npy(f"{{'descr': '<f4', 'fortran_order': False, 'shape': ({2**40}, {2**40})}}"), "impossible shape"),
        (npy("{'descr': '|O', 'fortran_order': False, 'shape': ()}", b"\x80\x04N."), "of type object"),
        (npy("{'descr': '<c8', 'fortran_order': False, 'shape': ()}", bytes(8)), "of type complex64"),
        (b"nothing", "not an array of NumPy"),
    ],
)
def test_hostile_arrays_are_refused(tmp_path: Path, content: bytes, message: str) -> None:
    with zipfile.ZipFile(tmp_path / "file", "w") as archive:
        archive.writestr("x.npy", content)
    with pytest.raises(FileFormatError, match=message):
        gradlet.io.load(tmp_path / "file")


def test_truncated_archives_raise_nothing_else(tmp_path: Path) -> None:
    stream = io.BytesIO()
    np.savez(stream, **ARRAYS)
    for length in range(20, len(stream.getvalue()), 131):
        (tmp_path / "file").write_bytes(stream.getvalue()[:length])
        with pytest.raises(FileFormatError):
            gradlet.io.load(tmp_path / "file")


def sharded(folder: Path, places: Any) -> Path:
    safetensors.save({"a": Tensor([1.0, 2.0])}, folder / "one.safetensors")
    safetensors.save({"b": Tensor([3])}, folder / "two.safetensors")
    index = folder / "model.safetensors.index.json"
    index.write_text(json.dumps({"metadata": {}, "weight_map": places}))
    return index


def test_shards_and_folders(tmp_path: Path) -> None:
    index = sharded(tmp_path, {"b": "two.safetensors", "a": "one.safetensors"})
    for path in (index, tmp_path):
        found = gradlet.io.load(path)
        assert {name: tensor.tolist() for name, tensor in found.items()} == {"b": [3], "a": [1.0, 2.0]}
    index.unlink()
    with pytest.raises(FileFormatError, match="2 safetensors files and no index"):
        gradlet.io.load(tmp_path)
    assert gradlet.io.load(tmp_path / "two.safetensors")["b"].tolist() == [3]


@pytest.mark.parametrize(
    "places, message",
    [
        ({"a": "../one.safetensors"}, "tensor a is in ../one.safetensors|no file beside it"),
        ({"a": "/etc/passwd"}, "no file beside it"),
        ({"a": 3}, "no file beside it"),
        ({"a": "gone.safetensors"}, "'gone.safetensors' with tensor 'a' is missing"),
        ({"c": "one.safetensors"}, "tensor 'c' is not in 'one.safetensors'"),
        ([], "no weight_map"),
    ],
)
def test_hostile_indexes_are_refused(tmp_path: Path, places: Any, message: str) -> None:
    with pytest.raises(FileFormatError, match=message):
        gradlet.io.load(sharded(tmp_path, places))


def test_other_files_are_no_known_format(tmp_path: Path) -> None:
    for content in (b"", b"#!/bin/sh\necho hello\n", b"{ not json"):
        (tmp_path / "file").write_bytes(content)
        with pytest.raises(FileFormatError, match="no known format|not valid JSON"):
            gradlet.io.load(tmp_path / "file")
