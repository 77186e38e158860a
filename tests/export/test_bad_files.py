"""Files of programs that are damaged, hostile or of another version: a clear error before anything is allocated."""

from __future__ import annotations

import copy
import io
import json
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from gradlet import Tensor, Variable, jit
from gradlet.base import settings
from gradlet.base.errors import ArgumentError, FileFormatError
from gradlet.io import program, safetensors

Members = dict[str, bytes]


@pytest.fixture(scope="module")
def content(tmp_path_factory: pytest.TempPathFactory) -> Members:
    """The members of a file with a bit of everything."""
    weight, total = Tensor(np.ones((3, 4), np.float32)), Tensor.zeros(4).contiguous().realize()
    n = Variable("n", 1, 5)

    @jit
    def step(x: Tensor) -> dict[str, Tensor]:
        total.assign(total + (x @ weight).sum(0))
        return {"sum": total + Tensor.rand(4), "more": (x * 2).exp()}

    path = tmp_path_factory.mktemp("program") / "a.gradlet"
    step.export(path, Tensor(np.ones((5, 3), np.float32))[: n.bind(2)])
    with zipfile.ZipFile(path) as archive:
        return {name: archive.read(name) for name in archive.namelist()}


def written(path: Path, members: Members) -> Path:
    with zipfile.ZipFile(path, "w") as archive:
        for name, data in members.items():
            archive.writestr(name, data)
    return path


def with_manifest(path: Path, content: Members, change: Callable[[Any], Any]) -> Path:
    manifest = json.loads(content["manifest.json"])
    return written(path, {**content, "manifest.json": json.dumps(change(manifest) or manifest).encode()})


def refused(path: Path, message: str) -> None:
    with pytest.raises(FileFormatError, match=message) as caught:
        program.load(path)
    assert str(path) in str(caught.value)


def test_the_file_itself_is_good(tmp_path: Path, content: Members) -> None:
    loaded = program.load(written(tmp_path / "a", content))
    assert loaded(np.ones((2, 3), np.float32))["more"].shape == (2, 3)


def test_files_that_are_no_archives(tmp_path: Path, content: Members) -> None:
    path = tmp_path / "a"
    for data in (b"", b"PK", b"x" * 1000, np.random.default_rng(0).bytes(5000)):
        path.write_bytes(data)
        refused(path, "no whole zip file")
    with pytest.raises(FileNotFoundError):
        program.load(tmp_path / "none")
    with pytest.raises(ArgumentError, match="path"):
        program.load(3)  # type: ignore[arg-type]


def test_every_truncation(tmp_path: Path, content: Members) -> None:
    whole = written(tmp_path / "whole", content).read_bytes()
    path = tmp_path / "a"
    for end in range(0, len(whole), len(whole) // 40):
        path.write_bytes(whole[:end])
        refused(path, "truncated")


def test_flipped_bytes_are_found_or_harmless(tmp_path: Path, content: Members) -> None:
    """Weights and state are used where they lie, without a checksum of their own; all else has one."""
    whole = bytearray(written(tmp_path / "whole", content).read_bytes())
    path = tmp_path / "a"
    for place in range(0, len(whole), len(whole) // 60):
        changed = bytearray(whole)
        changed[place] ^= 0x5A
        path.write_bytes(changed)
        try:
            program.load(path)
        except FileFormatError as error:
            assert str(path) in str(error)


def test_missing_members(tmp_path: Path, content: Members) -> None:
    for name in ("manifest.json", "code.bin", "weights.safetensors", "state.safetensors"):
        rest = {n: data for n, data in content.items() if n != name}
        refused(written(tmp_path / "a", rest), f"member {name} is missing")


def test_a_manifest_that_is_none(tmp_path: Path, content: Members) -> None:
    for text in (b"", b"{", b"[]", b"\xff", b"NaN", b'{"a": NaN}', b"[" * 100_000, b'{"format": "other"}'):
        refused(written(tmp_path / "a", {**content, "manifest.json": text}), "manifest")


def test_versions_and_devices(tmp_path: Path, content: Members) -> None:
    for key, value, message in (
        ("version", 3, "format version 3, this gradlet reads 2; install a newer gradlet"),
        ("version", 0, "export the program again"),
        ("version", "1", "export the program again"),
        ("device", "CUDA", "is for device 'CUDA'; programs run on the CPU"),
        ("format", "safetensors", "not that of a program"),
    ):
        refused(with_manifest(tmp_path / "a", content, lambda m, k=key, v=value: {**m, k: v}), message)


def change(path: tuple[Any, ...], value: Any) -> Callable[[Any], None]:
    """Set what lies at a path of keys."""

    def apply(manifest: Any) -> None:
        *way, last = path
        for key in way:
            manifest = manifest[key]
        manifest[last] = value

    return apply


@pytest.mark.parametrize(
    ("path", "value", "message"),
    [
        (("buffers", 0, "size"), 1 << 60, "no integer from"),
        (("buffers", 0, "size"), (1 << 47) + 1, "overflow|elements"),
        (("buffers", 0, "size"), -1, "no integer from"),
        (("buffers", 0, "size"), True, "no integer from"),
        (("buffers", 0, "dtype"), "float31", "is no data type"),
        (("buffers", 0, "role"), "other", "is none of"),
        (("arena",), 0, "lie outside of the arena of 0"),
        (("arena",), 1 << 63, "no integer from"),
        (("inputs", 0, "dtype"), "int32", "is int32, its buffer . is float32"),
        (("inputs", 0, "shape"), [5, 4], "does not have the 15 elements of buffer"),
        (("inputs", 0, "shape", 0, "max"), 6, "it says at most 6"),
        (("inputs", 0, "shape", 0, "terms"), {"m": 1}, "there is no variable m"),
        (("inputs", 0, "buffer"), 1000, "no integer from -1 to"),
        (("weights", 0, "buffer"), 0, "which is|elements|its buffer"),
        (("weights", 0, "name"), "other", "'other' is in one of them only|in one of them only"),
        (("launches", 0, 0), 99, "no integer from"),
        (("launches", 0, 1), [0], "gives 1 words, kernel 0 takes"),
        (("launches", 0, 1, 0), 10_000, "no integer from"),
        (("functions",), {}, "function .* of kernel 0 is missing"),
        (("addresses",), [[1 << 40, 0]], "no integer from"),
        (("moves",), [[0, 1 << 40]], "no integer from"),
        (("random",), None, "is missing, but variables are drawn"),
        (("result",), {"output": 7}, "no integer from 0 to 1"),
        (("result",), {"pickle": "x"}, "is no output, value, list, tuple or dict"),
        (("updated",), ["other"], "names no input"),
        (("variables", 0, "low"), 1 << 33, "from 8589934592 to"),
    ],
)  # fmt: skip
def test_fields(tmp_path: Path, content: Members, path: tuple[Any, ...], value: Any, message: str) -> None:
    refused(with_manifest(tmp_path / "a", content, change(path, value)), message)


def places(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """The paths to all parts of a manifest."""
    if path:
        yield path
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, item in items:
        yield from places(item, (*path, key))


def test_any_field_replaced_by_anything(tmp_path: Path, content: Members) -> None:
    """Nothing but FileFormatError leaves `load`, whatever stands in a manifest."""
    manifest = json.loads(content["manifest.json"])
    rng = np.random.default_rng(0)
    found = [p for p in places(manifest) if p[0] not in ("functions", "addresses", "kernels", "target")]
    junk: list[Any] = [None, -1, 1 << 62, 0.5, "x", [], {}, [[]], True]
    for path in [found[i] for i in rng.permutation(len(found))[:80]]:
        for value in (junk[i] for i in rng.permutation(len(junk))[:2]):
            changed = copy.deepcopy(manifest)
            change(path, value)(changed)
            file = with_manifest(tmp_path / "a", content, lambda _, m=changed: m)
            try:
                program.load(file)
            except FileFormatError as error:
                assert str(file) in str(error)


def test_arrays_that_are_not_those_of_the_manifest(tmp_path: Path, content: Members) -> None:
    safetensors.save({"total": Tensor.zeros(5)}, tmp_path / "state")
    state = (tmp_path / "state").read_bytes()
    refused(written(tmp_path / "a", {**content, "state.safetensors": state}), r"'total' is float32\[5\], the manifest")
    refused(written(tmp_path / "a", {**content, "state.safetensors": b"short"}), "too few for a safetensors file")
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, data in content.items():
            archive.writestr(name, data)
    (tmp_path / "a").write_bytes(packed.getvalue())
    refused(tmp_path / "a", "is compressed; it has to be stored")


def test_graphs_are_looked_at_on_another_processor(tmp_path: Path, content: Members) -> None:
    name = "kernels/0000.txt"
    with settings.scope(CPU_FEATURES="sse"):
        for text in (b"", b"%0 = NONE float32\n", b"%0 = CONST float32 [1.0]\n", b"\xff\xfe"):
            refused(written(tmp_path / "a", {**content, name: text}), f"{name} cannot be compiled for sse")
        rest = {n: data for n, data in content.items() if n != name}
        refused(written(tmp_path / "a", rest), f"member {name} is missing")


def test_state_files(tmp_path: Path, content: Members) -> None:
    loaded = program.load(written(tmp_path / "a", content))
    path = tmp_path / "state"
    safetensors.save({"total": Tensor.zeros(4)}, path)
    with pytest.raises(ArgumentError, match="'random' is in one of them only"):
        loaded.load_state(path)
    safetensors.save({"other": Tensor.zeros(4)}, path, {"random": '{"seed": 1, "draws": 2, "each": 1}'})
    with pytest.raises(ArgumentError, match="is not the state of program 'step'"):
        loaded.load_state(path)
    for text in ("{", "[]", '{"seed": -1}', '{"seed": "x"}'):
        safetensors.save({"total": Tensor.zeros(4)}, path, {"random": text})
        with pytest.raises(FileFormatError, match="random numbers is damaged"):
            loaded.load_state(path)
