"""GGUF files: what was written is read, and files that lie are refused before anything is allocated."""

from __future__ import annotations

import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import gradlet.io
from gradlet.base.errors import ArgumentError, FileFormatError
from gradlet.io import blocks, gguf
from gradlet.runtime.counters import GlobalCounters
from gradlet.tensor.tensor import Tensor
from tests.io import ggufwriter as w

METADATA: dict[str, Any] = {
    "general.architecture": "test", "count": 7, "large": 2**40, "share": 0.5, "yes": True, "no": False, "empty": [],
    "words": ["a", "", "größer"], "numbers": [1, -2, 3], "floats": [0.5, 1.5], "flags": [True, False],
}  # fmt: skip


def sample(path: Path) -> tuple[Path, dict[str, Any]]:
    rng = np.random.default_rng(0)
    raw = rng.integers(0, 128, (6, 2 * 20)).astype(np.uint8)
    arrays = {"a": rng.standard_normal((3, 5)).astype(np.float32), "b": rng.standard_normal(7).astype(np.float16)}
    tensors = {"a": ("F32", (3, 5), arrays["a"]), "b": ("F16", (7,), arrays["b"]), "q": ("Q4_1", (6, 64), raw)}
    w.write(path, METADATA, {**tensors, "none": ("F32", (0, 4), np.zeros(0, np.float32))})
    return path, {**arrays, "q": raw}


def test_metadata_and_tensors(tmp_path: Path) -> None:
    path, arrays = sample(tmp_path / "file")
    file = gguf.File(path)
    assert file.metadata == METADATA and file.version == 3
    assert list(file) == ["a", "b", "q", "none"] and len(file) == 4
    np.testing.assert_array_equal(file["a"].tensor().numpy(), arrays["a"])
    np.testing.assert_array_equal(file["b"].tensor().numpy(), arrays["b"])
    assert file["none"].tensor().shape == (0, 4)
    assert file["q"].quantized == "Q4_1" and file["q"].shape == (6, 64)
    np.testing.assert_array_equal(file["q"].data.numpy().reshape(6, 40), arrays["q"])
    expanded = gradlet.io.load(path)["q"]
    assert expanded.shape == (6, 64)
    want = blocks.dequantize(Tensor(arrays["q"]), "Q4_1").numpy().reshape(6, 64)
    np.testing.assert_array_equal(expanded.numpy(), want)


def test_a_product_with_an_expanded_tensor_makes_no_copy_of_it(tmp_path: Path) -> None:
    rng = np.random.default_rng(1)
    raw = rng.integers(0, 60, (512, 16 * 20)).astype(np.uint8)  # small exponents: no infinities
    weight = gguf.load(w.write(tmp_path / "file", {}, {"w": ("Q4_1", (512, 512), raw)}))["w"]
    x = Tensor(rng.standard_normal((1, 512)).astype(np.float32)).realize()
    before = GlobalCounters.mem_used
    result = (x @ weight.T).realize()
    assert GlobalCounters.mem_used - before < 512 * 512  # bytes; the weight in float32 has four times as many
    want = x.numpy() @ blocks.dequantize(Tensor(raw), "Q4_1").numpy().reshape(512, 512).T
    np.testing.assert_allclose(result.numpy(), want, rtol=1e-3, atol=1e-3)


def test_version_2_is_read(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(w.header({"a": 1}, [], version=2))
    assert gguf.File(path).metadata == {"a": 1} and gguf.load(path) == {}


def rows_file(*rows: bytes, data: int = 256, metadata: dict[str, Any] | None = None) -> bytes:
    return w.header(metadata or {}, list(rows)) + bytes(data)


HOSTILE: dict[str, tuple[bytes, str]] = {
    "empty": (b"", "0 bytes are too few"),
    "another format": (b"GGML" + bytes(60), "not a GGUF file"),
    "old version": (b"GGUF" + struct.pack("<IQQ", 1, 0, 0) + bytes(8), "version 1, and versions 2 and 3"),
    "big endian": (b"GGUF" + struct.pack(">IQQ", 3, 0, 0) + bytes(8), "big-endian"),
    "counts": (b"GGUF" + struct.pack("<IQQ", 3, 2**60, 0), "do not fit into 24 bytes"),
    "keys": (b"GGUF" + struct.pack("<IQQ", 3, 0, 2**63), "do not fit into"),
    "key length": (b"GGUF" + struct.pack("<IQQQ", 3, 0, 1, 2**63) + bytes(16), "name of key 0 has 9223372036854775808"),
    "key twice": (b"GGUF" + struct.pack("<IQQ", 3, 0, 2) + 2 * (w.text("k") + w.value(1)), "key 'k' occurs twice"),
    "value type": (b"GGUF" + struct.pack("<IQQ", 3, 0, 1) + w.text("k") + struct.pack("<II", 99, 0), "unknown type 99"),
    "array length": (
        b"GGUF" + struct.pack("<IQQ", 3, 0, 1) + w.text("k") + struct.pack("<IIQ", 9, 4, 2**61), "k takes .* truncated"
    ),
    "text array": (
        b"GGUF" + struct.pack("<IQQ", 3, 0, 1) + w.text("k") + struct.pack("<IIQ", 9, 8, 2**61), "more than the file"
    ),
    "text in array": (
        b"GGUF" + struct.pack("<IQQ", 3, 0, 1) + w.text("k") + struct.pack("<IIQQ", 9, 8, 1, 2**62), "item 0 reaches"
    ),
    "not text": (
        b"GGUF" + struct.pack("<IQQ", 3, 0, 1) + w.text("k") + struct.pack("<IQ", 8, 2) + b"\xff\xfe", "not UTF-8"
    ),
    "nesting": (
        b"GGUF" + struct.pack("<IQQ", 3, 0, 1) + w.text("k") + struct.pack("<I", 9) + 9 * struct.pack("<IQ", 9, 1),
        "nests arrays",
    ),
    "alignment": (w.header({"general.alignment": 3}, []), "general.alignment is 3"),
    "axes": (rows_file(w.row("x", (1,) * 5, 0, 0)), "tensor 'x': 5 axes"),
    "product": (rows_file(w.row("x", (2**32, 2**32), 0, 0)), "tensor 'x': sizes .* overflow"),
    "product of three": (rows_file(w.row("x", (2**22, 2**21, 2**21), 0, 0)), "tensor 'x': sizes .* overflow"),
    "zero after overflow": (rows_file(w.row("x", (2**40, 2**40, 0), 0, 0)), "tensor 'x': sizes .* overflow"),
    "type": (rows_file(w.row("x", (32,), 4, 0)), "tensor 'x': unknown type 4; known: float32"),
    "type to come": (rows_file(w.row("x", (32,), 1000, 0)), "tensor 'x': unknown type 1000"),
    "part of a block": (rows_file(w.row("x", (33,), 2, 0)), "tensor 'x': Q4_0 has blocks of 32, and rows of 33"),
    "outside": (rows_file(w.row("x", (65,), 0, 0)), "tensor 'x': ends at"),
    "far outside": (rows_file(w.row("x", (1,), 0, 2**62)), "tensor 'x': ends at"),
    "offset": (rows_file(w.row("x", (1,), 0, 3)), "tensor 'x': its offset 3"),
    "overlap": (rows_file(w.row("x", (16,), 0, 0), w.row("y", (4,), 0, 32)), "tensor 'y' overlaps tensor 'x'"),
    "twice": (rows_file(w.row("x", (4,), 0, 0), w.row("x", (4,), 0, 32)), "tensor 'x' occurs twice"),
}  # fmt: skip


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_files_are_refused(tmp_path: Path, name: str) -> None:
    content, message = HOSTILE[name]
    path = tmp_path / "hostile"
    path.write_bytes(content)
    before = GlobalCounters.mem_used
    with pytest.raises(FileFormatError, match=message) as caught:
        gguf.File(path)
    assert str(path) in str(caught.value)
    assert GlobalCounters.mem_used == before


def test_every_truncation_is_refused_or_complete(tmp_path: Path) -> None:
    path, _ = sample(tmp_path / "file")
    whole = path.read_bytes()
    end = gguf.File(path).entries["q"].end
    for length in [*range(0, 700, 7), end - 1]:
        path.write_bytes(whole[:length])
        with pytest.raises(FileFormatError):
            gguf.File(path)


def test_damaged_headers_raise_nothing_else(tmp_path: Path) -> None:
    path, _ = sample(tmp_path / "file")
    whole = path.read_bytes()
    rng = np.random.default_rng(3)
    for _ in range(100):
        damaged = bytearray(whole)
        for place in rng.integers(0, 700, 3):
            damaged[place] = rng.integers(0, 256)
        path.write_bytes(damaged)
        try:
            for raw in gguf.File(path).values():
                assert raw.tensor().shape == raw.shape
        except FileFormatError:
            pass


def test_a_number_is_no_path() -> None:
    with pytest.raises(ArgumentError, match="expected the path"):
        gguf.File(3)  # type: ignore[arg-type]
