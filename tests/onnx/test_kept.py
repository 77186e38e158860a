"""Models that some process captured: another runner of the file replays, and never meets what other files mean."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

onnx = pytest.importorskip("onnx", reason="needs the extra [onnx]")
from onnx import TensorProto, helper, numpy_helper

from gradlet import Tensor
from gradlet.base import settings
from gradlet.base.errors import ArgumentError, FileFormatError
from gradlet.engine import compile as compilation
from gradlet.onnx import runner as runners
from gradlet.onnx import sizes
from gradlet.onnx.outline import LARGE, outline
from gradlet.onnx.runner import OnnxRunner
from gradlet.runtime import diskcache

FLOAT, INT64 = TensorProto.FLOAT, TensorProto.INT64
WIDTH = 130  # a square of so many floats is a large weight
ROOT = Path(__file__).parents[2]


@pytest.fixture(autouse=True)
def folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    if "one" not in _folders:
        _folders["one"] = tmp_path_factory.mktemp("captures")  # kernels are not written twice
        compilation._kernels.clear()  # nor those that other tests had compiled before
    path = _folders["one"]
    with settings.scope(CACHEDIR=str(path), CACHE=True):
        yield path


_folders: dict[str, Path] = {}


@pytest.fixture
def loads(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Grows when a model is parsed."""
    found: list[int] = []
    load = runners.load

    def noticed(*args: Any) -> Any:
        found.append(1)
        return load(*args)

    monkeypatch.setattr(runners, "load", noticed)
    return found


def weights(seed: int) -> dict[str, np.ndarray]:
    numbers = np.random.default_rng(seed)
    return {
        "w": numbers.standard_normal((WIDTH, WIDTH)).astype(np.float32),
        "b": numbers.standard_normal(WIDTH).astype(np.float32),
    }


def write(path: Path, nodes: list[Any], inputs: dict[str, Any], outputs: dict[str, int], constants: Any) -> Path:
    graph = helper.make_graph(
        nodes, "g", [helper.make_tensor_value_info(n, t, s) for n, (t, s) in inputs.items()],
        [helper.make_tensor_value_info(n, t, None) for n, t in outputs.items()],
        [numpy_helper.from_array(np.asarray(w), n) for n, w in constants.items()],
    )  # fmt: skip
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=10)
    path.write_bytes(made.SerializeToString())
    return path


def layer(path: Path, constants: dict[str, np.ndarray], activation: str = "Tanh") -> Path:
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["h"]), helper.make_node("Add", ["h", "b"], ["s"]),
        helper.make_node(activation, ["s"], ["y"]),
    ]  # fmt: skip
    return write(path, nodes, {"x": (FLOAT, ["n", WIDTH])}, {"y": FLOAT}, constants)


def rows(count: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal((count, WIDTH)).astype(np.float32)


def check(runner: OnnxRunner, constants: dict[str, np.ndarray], count: int, seed: int = 0) -> None:
    x = rows(count, seed)
    for given in (x, np.asfortranarray(x)):
        expected = np.tanh(x @ constants["w"] + constants["b"])
        np.testing.assert_allclose(runner(x=given)["y"].numpy(), expected, rtol=1e-4, atol=1e-4)


def test_another_runner_parses_and_captures_nothing(tmp_path: Path, loads: list[int]) -> None:
    path, constants = tmp_path / "m.onnx", weights(1)
    first = OnnxRunner(layer(path, constants))
    check(first, constants, 3)
    loads.clear()
    for source in (path, str(path), path.read_bytes()):
        second = OnnxRunner(source)
        assert [str(i) for i in second.inputs] == ["float[n, 130]"] and [o.name for o in second.outputs] == ["y"]
        results = [second(x=rows(3, seed))["y"] for seed in range(3)]
        for seed, result in enumerate(results):  # each has memory of its own
            expected = np.tanh(rows(3, seed) @ constants["w"] + constants["b"])
            np.testing.assert_allclose(result.numpy(), expected, rtol=1e-4, atol=1e-4)
        check(second, constants, 3, seed=5)
    assert not loads and not second._replays._plans
    with pytest.raises(ArgumentError, match="float"):
        second(x=rows(3).astype(np.float64))
    with pytest.raises(ArgumentError, match="missing"):
        second({})
    np.testing.assert_allclose(second(x=Tensor(rows(3)))["y"].numpy(), first(x=rows(3))["y"].numpy(), rtol=1e-5)


def test_other_sizes_are_captured_anew(tmp_path: Path, loads: list[int]) -> None:
    path, constants = tmp_path / "m.onnx", weights(1)
    check(OnnxRunner(layer(path, constants)), constants, 3)
    loads.clear()
    runner = OnnxRunner(path)
    check(runner, constants, 4)
    check(runner, constants, 3)
    assert len(loads) == 1
    loads.clear()
    check(OnnxRunner(path), constants, 4)
    check(OnnxRunner(path), constants, 0)
    assert len(loads) == 1


@pytest.mark.parametrize("dims", [None, {"n": (1, 8)}])
def test_sizes_that_vary_are_found_again(tmp_path: Path, loads: list[int], dims: Any) -> None:
    path, constants = tmp_path / "m.onnx", weights(1 if dims is None else 2)
    first = OnnxRunner(layer(path, constants), dims=dims)
    for count in (4, 7, 5):
        check(first, constants, count)
    assert len(first._sizes._plans) == 1
    loads.clear()
    second = OnnxRunner(path, dims=dims)
    kept = []
    for count in (7, 3, 8, 1, 5, 6, 2, 3):
        check(second, constants, count)
        kept.append((count, second(x=rows(count))["y"]))
    for count, found in kept:
        expected = np.tanh(rows(count) @ constants["w"] + constants["b"])
        assert found.shape == expected.shape
        np.testing.assert_allclose(found.numpy(), expected, rtol=1e-4, atol=1e-4)
    assert not loads and not second._sizes._plans and not second._replays._plans
    if dims is None:
        check(second, constants, 9)  # beyond: captured here
    else:
        with pytest.raises(ArgumentError, match="axis 0 has size 9"):
            second(x=rows(9))
    assert len(loads) == 1
    loads.clear()
    check(OnnxRunner(path, dims={"n": (2, 10)}), constants, 3)  # other limits
    assert len(loads) == 1


def test_sizes_that_vary_and_come_often(tmp_path: Path, loads: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    path, constants = tmp_path / "m.onnx", weights(3)
    first = OnnxRunner(layer(path, constants))
    for count in (4, 7):
        check(first, constants, count)
    monkeypatch.setattr(sizes, "OWN_AFTER", 6)
    loads.clear()
    second = OnnxRunner(path)
    for _ in range(5):
        check(second, constants, 3)
    assert len(loads) == 1 and len(second._replays._plans) == 1
    loads.clear()
    third = OnnxRunner(path)
    for _ in range(5):
        check(third, constants, 3)
    assert not loads


def test_numbers_that_decide_beside_a_size_that_varies(tmp_path: Path, loads: list[int]) -> None:
    nodes = [helper.make_node("Tile", ["x", "times"], ["t"]), helper.make_node("Exp", ["t"], ["y"])]
    inputs = {"x": (FLOAT, ["n", "k"]), "times": (INT64, [2])}
    path = write(tmp_path / "m.onnx", nodes, inputs, {"y": FLOAT}, {})
    for again in range(2):
        runner = OnnxRunner(path)
        for count, wide in ((3, 5), (4, 5), (2, 6), (4, 8), (3, 7)):
            for times in ([1, 2], [1, 3]):
                x = rows(count)[:, :wide]
                found = runner(x=x, times=np.array(times))["y"].numpy()
                np.testing.assert_allclose(found, np.exp(np.tile(x, times)), rtol=1e-5)
        assert again == 0 or not loads
        loads.clear()


def test_other_data_of_a_large_weight_is_read_from_its_file(tmp_path: Path, loads: list[int]) -> None:
    path = layer(tmp_path / "m.onnx", weights(1))
    check(OnnxRunner(path), weights(1), 3)
    loads.clear()
    other = weights(2) | {"b": weights(1)["b"]}
    check(OnnxRunner(layer(path, other)), other, 3)
    assert not loads


@pytest.mark.parametrize("what", ["bias", "node", "setting", "default type"])
def test_what_differs_is_captured_anew(tmp_path: Path, loads: list[int], what: str) -> None:
    path, constants = tmp_path / "m.onnx", weights(1)
    check(OnnxRunner(layer(path, constants)), constants, 3)
    loads.clear()
    if what == "bias":
        constants["b"] = constants["b"] + 1
        check(OnnxRunner(layer(path, constants)), constants, 3)
    elif what == "node":
        got = OnnxRunner(layer(path, constants, "Relu"))(x=rows(3))["y"].numpy()
        np.testing.assert_allclose(got, np.maximum(rows(3) @ constants["w"] + constants["b"], 0), rtol=1e-4, atol=1e-4)
    elif what == "setting":
        with settings.scope(NOOPT=True):
            check(OnnxRunner(path), constants, 3)
    else:
        from gradlet import dtypes

        before, dtypes.default_float = dtypes.default_float, dtypes.float64
        try:
            check(OnnxRunner(path), constants, 3)
        finally:
            dtypes.default_float = before
    assert len(loads) == 1


def test_data_that_decided_something(tmp_path: Path) -> None:
    table = np.full(LARGE // 8, 6, np.int64)
    nodes = [
        helper.make_node("Gather", ["table", "zero"], ["n"]), helper.make_node("Concat", ["n", "rest"], ["s"], axis=0),
        helper.make_node("Reshape", ["x", "s"], ["r"]), helper.make_node("Neg", ["r"], ["y"]),
    ]  # fmt: skip
    path, x = tmp_path / "m.onnx", np.arange(12, dtype=np.float32)
    for first in (6, 3, 6, 4, 3):
        table[0] = first
        write(path, nodes, {"x": (FLOAT, [12])}, {"y": FLOAT},
              {"table": table, "zero": np.array([0]), "rest": np.array([-1])})  # fmt: skip
        for _ in range(2):
            np.testing.assert_array_equal(OnnxRunner(path)(x=x)["y"].numpy(), -x.reshape(first, -1))


def test_numbers_of_inputs_that_decide(tmp_path: Path, loads: list[int]) -> None:
    # A kernel that no other test has: code that this process has already is not written to this folder.
    nodes = [
        helper.make_node("Reshape", ["x", "s"], ["h"]),
        helper.make_node("Mul", ["h", "h"], ["squared"]),
        helper.make_node("Sub", ["squared", "h"], ["y"]),
    ]
    path = write(tmp_path / "m.onnx", nodes, {"x": (FLOAT, [78]), "s": (INT64, [2])}, {"y": FLOAT}, {})
    x = np.arange(78, dtype=np.float32)
    expected = x * x - x
    for again in range(2):
        runner = OnnxRunner(path)
        for shape in ([2, 39], [39, 2], [2, 39], [39, 2], [78, 1], [78, 1]):
            np.testing.assert_array_equal(runner(x=x, s=np.array(shape))["y"].numpy(), expected.reshape(shape))
        assert again == 0 or len(loads) == 1
        backwards = runner(s=np.array([39, 2]), x=-x)["y"].numpy()
        np.testing.assert_array_equal(backwards, (x * x + x).reshape(39, 2))


def test_results_that_are_inputs_weights_or_one_tensor(tmp_path: Path) -> None:
    nodes = [
        helper.make_node("Neg", ["x"], ["y"]), helper.make_node("Identity", ["y"], ["z"]),
        helper.make_node("Identity", ["x"], ["same"]), helper.make_node("Identity", ["w"], ["weight"]),
    ]  # fmt: skip
    w = weights(3)["w"]
    for number, names in enumerate((["y", "z"], ["y", "same"], ["y", "weight"], ["same"], ["weight"])):
        path = write(tmp_path / f"{number}.onnx", nodes, {"x": (FLOAT, [2, 3])}, dict.fromkeys(names, FLOAT), {"w": w})
        for seed in range(3):
            x = np.random.default_rng(seed).standard_normal((2, 3)).astype(np.float32)
            expected = {"y": -x, "z": -x, "same": x, "weight": w}
            got = OnnxRunner(path)(x=x)
            x = x * 1  # results have memory of their own
            for name in names:
                np.testing.assert_array_equal(got[name].numpy(), expected[name])


def test_a_file_that_is_written_to_meanwhile(tmp_path: Path) -> None:
    path, constants = tmp_path / "m.onnx", weights(1)
    check(OnnxRunner(layer(path, constants)), constants, 3)
    runner = OnnxRunner(path)
    layer(path, weights(2))
    os.utime(path, ns=(1, 1))
    with pytest.raises(FileFormatError, match="written to"):
        runner(x=rows(3))
    layer(path, constants)
    runner = OnnxRunner(path)
    path.rename(tmp_path / "n.onnx")  # the file is as it was
    layer(path, weights(2))
    check(runner, constants, 3)


def test_files_that_are_no_models(tmp_path: Path) -> None:
    path = layer(tmp_path / "m.onnx", weights(1))
    OnnxRunner(path)
    whole = path.read_bytes()
    for cut in (0, 1, 7, len(whole) // 2, len(whole) - 1):
        path.write_bytes(whole[:cut])
        assert outline(whole[:cut]) is None
        with pytest.raises(FileFormatError):
            OnnxRunner(path)
    numbers = np.random.default_rng(0)
    for _ in range(200):
        outline(numbers.integers(0, 256, 60, np.uint8).tobytes())
        changed = bytearray(whole[:400])
        changed[int(numbers.integers(400))] ^= int(numbers.integers(1, 256))
        outline(bytes(changed))


def test_damaged_entries_are_none(tmp_path: Path, folder: Path) -> None:
    path, constants = layer(tmp_path / "m.onnx", weights(7)), weights(7)
    check(OnnxRunner(path), constants, 3)
    assert diskcache.stats().captures > 0
    for entry in folder.rglob("*.capture"):
        entry.write_bytes(entry.read_bytes()[:-3])
    check(OnnxRunner(path), constants, 3)


SCRIPT = """
import json, sys
import numpy as np
from gradlet.onnx.runner import OnnxRunner
from gradlet.schedule.create import statistics
runner = OnnxRunner(sys.argv[1])
for _ in range(2):
    found = runner(x=np.ones((3, 130), np.float32))["y"].numpy()
print(json.dumps([float(found.sum()), statistics.made, "onnx" in sys.modules, "llvmlite.binding" in sys.modules]))
"""


def test_a_second_process_makes_no_schedule_and_compiles_nothing(tmp_path: Path) -> None:
    path = layer(tmp_path / "m.onnx", weights(4))
    environment = os.environ | {"CACHEDIR": str(tmp_path / "cache"), "PYTHONPATH": str(ROOT)}
    found = []
    for _ in range(2):
        command = [sys.executable, "-c", SCRIPT, str(path)]
        found.append(json.loads(subprocess.run(command, env=environment, capture_output=True, check=True).stdout))
    assert found[0][1] > 0 and found[0][2:] == [True, True]
    assert found[1] == [found[0][0], 0, False, False]
