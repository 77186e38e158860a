"""Checkpoints of torch, zip files and the older kind: values as torch has them, and programs that are not run."""

from __future__ import annotations

import os
import pickle
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import gradlet.io
from gradlet import Tensor, dtypes
from gradlet.base.errors import FileFormatError
from gradlet.io import torch_file

torch = pytest.importorskip("torch", reason="torch, which writes the files, is not installed")


def content() -> dict[str, Any]:
    torch.manual_seed(0)
    a = torch.randn(3, 4)
    return {
        "a": a, "row of a": a[1], "turned": torch.randn(4, 6).t(), "part": torch.randn(10)[2:7],
        "repeated": torch.randn(1, 3).expand(4, 3), "parameter": torch.nn.Parameter(torch.randn(2)),
        "scalar": torch.tensor(2.5), "none": torch.zeros(0, 3), "every second": torch.arange(12)[::2],
        **{str(kind): torch.ones(3).to(kind) for kind in (
            torch.float16, torch.bfloat16, torch.float64, torch.int8, torch.int16, torch.int32, torch.int64,
            torch.uint8, torch.bool,
        )},
        "nested": {
            "list": [1, (2.5, "text"), None, True], "size": torch.Size([1, 2]), "type": torch.float16, "set": {1},
        },
    }  # fmt: skip


@pytest.mark.parametrize("zipped", [True, False], ids=["zip", "legacy"])
def test_what_torch_wrote_is_read(tmp_path: Path, zipped: bool) -> None:
    wanted = content()
    torch.save(wanted, tmp_path / "file", _use_new_zipfile_serialization=zipped)
    found = gradlet.io.load(tmp_path / "file")
    assert list(found) == list(wanted)
    nested = found.pop("nested")
    assert nested == {"list": [1, (2.5, "text"), None, True], "size": (1, 2), "type": dtypes.float16, "set": {1}}
    for name, tensor in found.items():
        want = wanted[name].detach()
        assert tensor.dtype.name == str(want.dtype).removeprefix("torch.") and tensor.shape == tuple(want.shape), name
        np.testing.assert_array_equal(tensor.cast("float64").numpy(), want.double().numpy(), err_msg=name)


def test_a_training_checkpoint_is_read(tmp_path: Path) -> None:
    model = torch.nn.Linear(3, 2)
    moment = torch.randn(2, 3)
    groups = [{"lr": 0.1, "betas": (0.9, 0.999), "amsgrad": False, "params": [0]}]
    optimizer = {"state": {0: {"step": torch.tensor(1.0), "exp_avg": moment}}, "param_groups": groups}
    torch.save({"epoch": 1, "model": model.state_dict(), "optimizer": optimizer}, tmp_path / "file")
    found = torch_file.load(tmp_path / "file")
    np.testing.assert_array_equal(found["model"]["weight"].numpy(), model.weight.detach().numpy())
    np.testing.assert_array_equal(found["optimizer"]["state"][0]["exp_avg"].numpy(), moment.numpy())
    assert found["optimizer"]["param_groups"] == groups


class Evil:
    def __reduce__(self) -> Any:
        return os.system, ("touch ran",)


@pytest.mark.parametrize("zipped", [True, False], ids=["zip", "legacy"])
@pytest.mark.parametrize(
    "value, named",
    [
        (Evil(), "(posix|nt).system"),
        (torch.nn.Linear(1, 1), "torch.nn.modules.linear.Linear"),
        (np.float32(1), "numpy.*scalar"),
        (torch.zeros(2, dtype=torch.complex64), "torch.*Complex"),
    ],
    ids=["system", "module", "numpy", "complex"],
)
def test_everything_else_is_refused_by_name(tmp_path: Path, zipped: bool, value: Any, named: str) -> None:
    torch.save({"x": value}, tmp_path / "file", _use_new_zipfile_serialization=zipped)
    before = set(os.listdir())
    with pytest.raises(FileFormatError, match=rf"names {named}|{named}"):
        torch_file.load(tmp_path / "file")
    assert set(os.listdir()) == before


def rewritten(path: Path, change: Any) -> None:
    """The same zip file with some members changed."""
    with zipfile.ZipFile(path) as archive:
        members = {name: archive.read(name) for name in archive.namelist()}
    with zipfile.ZipFile(path, "w") as archive:
        for name, data in change(members).items():
            archive.writestr(name, data)


def only(members: dict[str, bytes], end: str) -> str:
    return next(name for name in members if name.endswith(end))


@pytest.mark.parametrize(
    "change, message",
    [
        (lambda m: {**m, only(m, "data/0"): b"1234"}, "storage '0': 6 elements of float32 do not fit into 4 bytes"),
        (lambda m: {n: d for n, d in m.items() if not n.endswith("data/0")}, "there is no .*data/0"),
        (lambda m: {**m, only(m, "data.pkl"): m[only(m, "data.pkl")][:-20]}, "pickle is damaged"),
        (lambda m: {**m, only(m, "byteorder"): b"big"}, "highest bytes first"),
        (lambda m: {**m, "more/data.pkl": b""}, "has one data.pkl, this zip file has 2"),
        (lambda m: {**m, only(m, "data.pkl"): pickle.dumps(Evil(), 2)}, "system"),
    ],
)
def test_damaged_zip_files_are_refused(tmp_path: Path, change: Any, message: str) -> None:
    torch.save({"x": torch.ones(2, 3)}, tmp_path / "file")
    rewritten(tmp_path / "file", change)
    with pytest.raises(FileFormatError, match=message):
        torch_file.load(tmp_path / "file")


def test_views_that_leave_their_storage_are_refused(tmp_path: Path) -> None:
    class Far:
        def __init__(self, *arguments: Any) -> None:
            self.arguments = arguments

        def __reduce__(self) -> Any:
            return torch._utils._rebuild_tensor_v2, self.arguments

    storage = torch.ones(4).untyped_storage()
    typed = torch.storage.TypedStorage(wrap_storage=storage, dtype=torch.float32, _internal=True)
    for offset, shape, strides, message in [
        (1, (4,), (1,), "reaches element 4 of 4"),
        (0, (2**40, 2**40), (0, 0), "reaches element"),
        (0, (2,), (2**62,), "reaches element"),
        (0, (-1,), (1,), "has shape"),
        (0, (2,), (1, 1), "has shape"),
        (0, (1,) * 65, (1,) * 65, "65 axes"),
    ]:
        torch.save({"x": Far(typed, offset, shape, strides, False, {})}, tmp_path / "file")
        with pytest.raises(FileFormatError, match=message):
            torch_file.load(tmp_path / "file")


@pytest.mark.parametrize("zipped", [True, False], ids=["zip", "legacy"])
def test_truncated_and_damaged_files_raise_nothing_else(tmp_path: Path, zipped: bool) -> None:
    torch.save(
        {"x": torch.ones(20, 3), "y": [torch.zeros(3)]}, tmp_path / "whole", _use_new_zipfile_serialization=zipped
    )
    whole = (tmp_path / "whole").read_bytes()
    path = tmp_path / "file"
    for length in range(0, len(whole), 101):
        path.write_bytes(whole[:length])
        with pytest.raises(FileFormatError):
            torch_file.load(path)
    rng = np.random.default_rng(0)
    for _ in range(60):
        damaged = bytearray(whole)
        damaged[rng.integers(0, len(whole))] = rng.integers(0, 256)
        path.write_bytes(damaged)
        try:
            found = torch_file.load(path)
        except FileFormatError:
            continue
        for value in found.values() if isinstance(found, dict) else []:
            if isinstance(value, Tensor):
                value.realize()
