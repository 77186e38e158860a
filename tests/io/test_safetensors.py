"""safetensors: round trips, agreement with the reference package, and files that must be refused."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from gradlet.base.dtype import DType, dtypes
from gradlet.base.errors import ArgumentError, FileFormatError, UserError
from gradlet.engine.execute import base_buffer
from gradlet.io.safetensors import DTYPE_OF, load, load_metadata, save
from gradlet.runtime.buffer import buffer_of
from gradlet.runtime.device import Device
from gradlet.tensor.tensor import Tensor


def file_of(path: Path, header: Any, data: bytes = b"") -> Path:
    """A file with this header (an object, or raw text or bytes) and data."""
    text = header if isinstance(header, bytes) else (header if isinstance(header, str) else json.dumps(header)).encode()
    path.write_bytes(len(text).to_bytes(8, "little") + text + data)
    return path


def row(dtype: str = "F32", shape: Any = (2,), offsets: Any = (0, 8)) -> dict[str, Any]:
    return {"dtype": dtype, "shape": list(shape), "data_offsets": list(offsets)}


def bits(tensor: Tensor) -> bytes:
    dense = tensor.contiguous().realize()
    return bytes(buffer_of(base_buffer(dense.uop)).memory())


def sample(dtype: DType) -> Tensor:
    return Tensor([[0, 1, 1], [1, 0, 1]], dtype=dtype)


@pytest.mark.parametrize("dtype", DTYPE_OF.values(), ids=lambda dtype: dtype.name)
def test_round_trip(tmp_path: Path, dtype: DType) -> None:
    path = tmp_path / "a.safetensors"
    before = sample(dtype)
    save({"x": before}, path)
    after = load(path)["x"]
    assert after.shape == (2, 3) and after.dtype is dtype
    assert after.tolist() == before.tolist()


def test_many_tensors_and_metadata(tmp_path: Path) -> None:
    path = tmp_path / "a.safetensors"
    tensors = {
        "bytes": Tensor([1, 2, 3], dtype=dtypes.uint8),
        "wide": Tensor([1.5, -2.5], dtype=dtypes.float64),
        "scalar": Tensor(7.0),
        "empty": Tensor.zeros(0, 3),
        'name with \u00e9 and "quotes"': Tensor([1, 2], dtype=dtypes.int16),
        "transposed": Tensor([[1.0, 2.0], [3.0, 4.0]]).transpose(),
        "lazy": Tensor([1.0, 2.0]) + 1,
    }
    save(tensors, path, {"format": "pt"})
    after = load(path)
    assert set(after) == set(tensors)
    for name, tensor in tensors.items():
        assert after[name].shape == tensor.shape and after[name].dtype is tensor.dtype, name
        assert after[name].tolist() == tensor.tolist(), name
    assert load_metadata(path) == {"format": "pt"}


def test_no_tensors(tmp_path: Path) -> None:
    path = tmp_path / "a.safetensors"
    save({}, path)
    assert load(path) == {} and load_metadata(path) == {}


@pytest.mark.parametrize("name", [
    "F16", "BF16", "F32", "F64", "I8", "I64", "U8", "BOOL", "F8_E4M3", "F8_E4M3FNUZ", "F8_E5M2", "F8_E5M2FNUZ",
])  # fmt: skip
def test_the_reference_package_reads_ours_and_we_read_its(tmp_path: Path, name: str) -> None:
    torch = pytest.importorskip("torch")
    reference = pytest.importorskip("safetensors.torch")
    dtype = DTYPE_OF[name]
    theirs = torch.tensor([[0, 1, 1], [1, 0, 1]]).to(getattr(torch, dtype.name))
    path = tmp_path / "a.safetensors"
    reference.save_file({"x": theirs, "y": theirs[0].clone()}, path, {"k": "v"})
    ours = load(path)
    assert (
        ours["x"].dtype is dtype and ours["x"].tolist() == theirs.tolist() and ours["y"].tolist() == theirs[0].tolist()
    )
    assert load_metadata(path) == {"k": "v"}
    save({"b": ours["y"], "a": ours["x"]}, tmp_path / "b.safetensors", {"k": "v"})
    back = reference.load_file(tmp_path / "b.safetensors")
    assert back["a"].dtype is theirs.dtype
    assert torch.equal(back["a"].double(), theirs.double()) and torch.equal(back["b"].double(), theirs[0].double())


def test_special_values_keep_their_bits(tmp_path: Path) -> None:
    path = tmp_path / "a.safetensors"
    values = np.array([np.nan, np.inf, -np.inf, -0.0, 1e-45, 3.4e38], np.float32)
    file_of(path, {"x": row(shape=(6,), offsets=(0, 24))}, values.tobytes())
    tensors = load(path)
    assert bits(tensors["x"]) == values.tobytes()
    save(tensors, tmp_path / "b.safetensors")
    assert bits(load(tmp_path / "b.safetensors")["x"]) == values.tobytes()


@pytest.mark.skipif(Device.DEFAULT != "CPU", reason="other devices copy on use")
def test_saved_tensors_are_mapped_without_a_copy(tmp_path: Path) -> None:
    path = tmp_path / "a.safetensors"
    save({"x": Tensor([1.0, 2.0]), "b": Tensor([1, 2, 3], dtype=dtypes.uint8)}, path)
    for tensor in load(path).values():
        assert buffer_of(base_buffer(tensor.uop)).is_external
    assert int.from_bytes(path.read_bytes()[:8], "little") % 64 == 56  # the data starts at a multiple of 64


def test_data_that_is_not_aligned_loads(tmp_path: Path) -> None:
    path = tmp_path / "a.safetensors"
    header = {"odd": row("U8", (1,), (0, 1)), "x": row("F32", (2,), (1, 9))}
    text = json.dumps(header)
    for padding in range(8):
        file_of(path, text + " " * padding, b"\x07" + np.array([1.5, -2], np.float32).tobytes())
        found = load(path)
        assert found["odd"].tolist() == [7] and found["x"].tolist() == [1.5, -2]


def test_writing_into_a_loaded_tensor_leaves_the_file_alone(tmp_path: Path) -> None:
    path = tmp_path / "a.safetensors"
    save({"x": Tensor([1.0, 2.0])}, path)
    before = path.read_bytes()
    x = load(path)["x"]
    x.assign(x + 1).realize()
    assert x.tolist() == [2, 3] and path.read_bytes() == before and load(path)["x"].tolist() == [1, 2]


def test_saving_over_the_loaded_file(tmp_path: Path) -> None:
    path = tmp_path / "a.safetensors"
    save({"x": Tensor([1.0, 2.0])}, path)
    x = load(path)["x"]
    save({"x": x * 2}, path)
    assert x.tolist() == [1, 2] and load(path)["x"].tolist() == [2, 4]


def test_every_truncation_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "a.safetensors"
    save({"x": Tensor([1.0, 2.0]), "y": Tensor([1], dtype=dtypes.int8)}, path)
    content = path.read_bytes()
    for length in range(len(content)):
        path.write_bytes(content[:length])
        with pytest.raises(FileFormatError, match=r"a\.safetensors"):
            load(path)
    path.write_bytes(content + b"\0")
    with pytest.raises(FileFormatError, match="1 bytes after the last tensor"):
        load(path)


HOSTILE = {
    "header of 2^63 bytes": ((2**63).to_bytes(8, "little"), "header length"),
    "header over the limit": ((100_000_001).to_bytes(8, "little"), "over the limit"),
    "header past the end": ((50).to_bytes(8, "little") + b"{}", "past the end"),
    "not JSON": (b"{nonsense", "not valid JSON"),
    "not UTF-8": (b'{"\xff": 1}', "not valid JSON"),
    "a list": ([], "not a JSON object"),
    "deep nesting": ("[" * 100_000, "not valid JSON|not a JSON object"),
    "not a number": ('{"x": NaN}', "not JSON"),
    "name twice": ('{"x": 1, "x": 2}', "'x' occurs twice"),
    "field twice": ('{"x": {"dtype": "F32", "dtype": "F16"}}', "'dtype' occurs twice"),
    "entry no object": ({"x": 1}, "'x': needs dtype"),
    "entry without offsets": ({"x": {"dtype": "F32", "shape": [2]}}, "'x': needs dtype"),
    "unknown dtype": ({"x": row("Q4_K")}, "'x': unknown dtype 'Q4_K'"),
    "dtype no text": ({"x": row(dtype=5)}, "'x': unknown dtype 5"),  # type: ignore[arg-type]
    "shape no list": ({"x": {**row(), "shape": "22"}}, "not a list of sizes"),
    "negative size": ({"x": row(shape=(-2,))}, "not a list of sizes"),
    "size with a fraction": ({"x": row(shape=(2.0,))}, "not a list of sizes"),
    "size true": ({"x": row(shape=(True, 2))}, "not a list of sizes"),
    "huge size": ({"x": row(shape=(2**70, 0), offsets=(0, 0))}, "not a list of sizes"),
    "product over 2^64": ({"x": row(shape=(2**62, 2**62))}, "overflows"),
    "product that wraps to 8": ({"x": row(shape=(2**61 + 1, 8))}, "overflows"),
    "many sizes": ({"x": row(shape=(2**40,) * 10_000)}, "more than the 64"),
    "one offset": ({"x": row(offsets=(0,))}, "not two offsets"),
    "negative offset": ({"x": row(offsets=(-8, 0))}, "not two offsets"),
    "backwards": ({"x": row(offsets=(8, 0))}, "after its end"),
    "outside the file": ({"x": row(offsets=(8, 16))}, "ends at 16"),
    "too few bytes": ({"x": row(shape=(3,))}, "needs 12 bytes, has 8"),
    "too many bytes": ({"x": row(shape=(1,))}, "needs 4 bytes, has 8"),
    "overlap": ({"x": row(), "y": row(shape=(1,), offsets=(4, 8))}, "'y' at 4 overlaps"),
    "same bytes twice": ({"x": row(), "y": row()}, "overlaps"),
    "hole at the start": ({"x": row(shape=(1,), offsets=(4, 8))}, "bytes 0 to 4"),
    "hole at the end": ({"x": row(shape=(1,), offsets=(0, 4))}, "4 bytes after"),
    "metadata no object": ({"__metadata__": 3, "x": row()}, "must map text"),
    "metadata no text": ({"__metadata__": {"a": 1}, "x": row()}, "must map text"),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_files_are_refused(tmp_path: Path, name: str) -> None:
    header, message = HOSTILE[name]
    path = tmp_path / "h.safetensors"
    if isinstance(header, bytes) and not header.startswith(b"{"):
        path.write_bytes(header)
    else:
        file_of(path, header, bytes(8))
    with pytest.raises(FileFormatError, match=message) as caught:
        load(path)
    assert "h.safetensors" in str(caught.value) and len(str(caught.value)) < 600


def test_zero_sized_and_scalar_entries(tmp_path: Path) -> None:
    path = tmp_path / "a.safetensors"
    header = {
        "z": row(shape=(0, 5), offsets=(0, 0)),
        "s": row(shape=(), offsets=(0, 4)),
        "e": row(shape=(0,), offsets=(4, 4)),
    }
    file_of(path, header, np.array(2.5, np.float32).tobytes())
    found = load(path)
    assert found["s"].shape == () and found["s"].item() == 2.5
    assert found["z"].shape == (0, 5) and found["e"].tolist() == []


def test_an_empty_file_and_a_missing_one(tmp_path: Path) -> None:
    (tmp_path / "a.safetensors").touch()
    with pytest.raises(FileFormatError, match="truncated"):
        load(tmp_path / "a.safetensors")
    with pytest.raises(FileNotFoundError):
        load(tmp_path / "b.safetensors")


def test_what_the_format_cannot_hold_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "a.safetensors"
    x = Tensor([1.0])
    for call, message in [
        (lambda: save({"__metadata__": x}, path), "__metadata__"),
        (lambda: save({3: x}, path), "3"),  # type: ignore[dict-item]
        (lambda: save({"x": [1.0]}, path), "expected a Tensor, got list"),  # type: ignore[dict-item]
        (lambda: save({"x": x}, path, {"epoch": 3}), r"metadata\['epoch'\]"),  # type: ignore[dict-item]
    ]:
        with pytest.raises(ArgumentError, match=message):
            call()
    assert not path.exists()


def test_a_failed_save_leaves_the_old_file_and_nothing_else(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "a.safetensors"
    save({"x": Tensor([1.0])}, path)
    before = path.read_bytes()

    def full(number: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space"):
        save({"x": Tensor([2.0])}, path)
    assert path.read_bytes() == before and os.listdir(tmp_path) == ["a.safetensors"]


def test_random_damage_is_loud_or_harmless(tmp_path: Path) -> None:
    path = tmp_path / "a.safetensors"
    save({"x": Tensor([1.0, 2.0]), "y": Tensor([3], dtype=dtypes.int16)}, path)
    content = path.read_bytes()
    random = np.random.default_rng(0)
    refused = 0
    for _ in range(400):
        damaged = bytearray(content)
        damaged[random.integers(len(content))] = random.integers(256)
        path.write_bytes(damaged)
        try:
            tensors = load(path)
        except UserError:
            refused += 1
        else:
            assert sum(t.numel() * t.dtype.itemsize for t in tensors.values()) == 10
    assert refused > 100
