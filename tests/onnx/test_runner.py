"""`OnnxRunner` from the outside: what it computes, what it folds, and what it refuses before anything runs."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest

onnx = pytest.importorskip("onnx", reason="needs the extra [onnx]")
from onnx import TensorProto, helper, numpy_helper
from onnx.reference import ReferenceEvaluator

from gradlet import GlobalCounters, Tensor
from gradlet.base.errors import ArgumentError, FileFormatError
from gradlet.cli.main import main
from gradlet.onnx import replays
from gradlet.onnx.registry import OnnxError
from gradlet.onnx.runner import OnnxRunner
from gradlet.tensor.function import jit

FLOAT, INT64 = TensorProto.FLOAT, TensorProto.INT64


def model(
    nodes: list[Any], inputs: dict[str, Any], outputs: list[str], weights: dict[str, Any] | None = None,
    opset: int = 18, domains: tuple[tuple[str, int], ...] = (), kind: int = FLOAT,
) -> Any:  # fmt: skip
    """A model of these nodes."""
    graph = helper.make_graph(
        nodes, "g", [helper.make_tensor_value_info(n, t, s) for n, (t, s) in inputs.items()],
        [helper.make_tensor_value_info(n, kind, None) for n in outputs],
        [numpy_helper.from_array(np.asarray(w), n) for n, w in (weights or {}).items()],
    )  # fmt: skip
    opsets = [helper.make_opsetid("", opset), *(helper.make_opsetid(d, v) for d, v in domains)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=10)


def test_a_model_is_a_function_of_named_inputs(tmp_path: Path) -> None:
    nodes = [helper.make_node("MatMul", ["x", "w"], ["h"]), helper.make_node("Relu", ["h"], ["y"])]
    w = np.random.default_rng(0).standard_normal((3, 5)).astype(np.float32)
    made = model(nodes, {"x": (FLOAT, ["n", 3])}, ["y"], {"w": w})
    path = tmp_path / "m.onnx"
    path.write_bytes(made.SerializeToString())
    x = np.random.default_rng(1).standard_normal((7, 3)).astype(np.float32)
    for source in (made, made.SerializeToString(), path, str(path)):
        runner = OnnxRunner(source)
        assert [str(i) for i in runner.inputs] == ["float[n, 3]"]
        got = runner({"x": x})["y"].numpy()
        np.testing.assert_allclose(got, np.maximum(x @ w, 0), rtol=1e-5, atol=1e-6)
    # Another batch, a tensor as input, and nested lists.
    np.testing.assert_allclose(runner(x=Tensor(x[:2]))["y"].numpy(), np.maximum(x[:2] @ w, 0), rtol=1e-5, atol=1e-6)
    assert runner(x=[[1.0, 0.0, 0.0]])["y"].shape == (1, 5)


def places(start: int, end: int, step: int, size: int) -> list[int]:
    """What a slice takes, in the words of the specification: ends adjusted by the size, then clamped."""
    first, last = (n + size if n < 0 else n for n in (start, end))
    if step > 0:
        return list(range(min(max(first, 0), size), min(max(last, 0), size), step))
    return list(range(min(max(first, 0), size - 1), min(max(last, -1), size - 1), step)) if size else []


@pytest.mark.parametrize("known", [False, True])
def test_ends_of_slices_outside_of_an_axis(known: bool) -> None:
    """As numbers that are folded, and as what a device computes."""
    far = 2**63 - 1
    cases = [
        (s, e, step) for s in (-9, -5, -2, 0, 3, far) for e in (-far, -4, -1, 0, 2, far) for step in (-2, -1, 1, 2)
    ]
    nodes = [helper.make_node("Shape", ["x"], ["s"])] if known else []
    weights: dict[str, Any] = {}
    for n, (start, end, step) in enumerate(cases):
        weights |= {f"b{n}": np.array([start]), f"e{n}": np.array([end]), f"p{n}": np.array([step])}
        nodes.append(helper.make_node("Slice", ["s" if known else "x", f"b{n}", f"e{n}", "axis", f"p{n}"], [f"y{n}"]))
    weights["axis"] = np.array([0])
    names = [f"y{n}" for n in range(len(cases))]
    sizes = (1, 2, 3, 4, 5) if known else (4,)
    made = model(nodes, {"x": (INT64, sizes)}, names, weights, kind=INT64)
    x = np.arange(np.prod(sizes)).reshape(sizes)
    source = np.array(x.shape) if known else x
    found = OnnxRunner(made)(x=x)
    for name, (start, end, step) in zip(names, cases, strict=True):
        wanted = source[places(start, end, step, len(source))]
        np.testing.assert_array_equal(np.asarray(found[name].numpy()), wanted, err_msg=f"{start} {end} {step}")


def test_shape_arithmetic_launches_nothing() -> None:
    nodes = [
        helper.make_node("Shape", ["x"], ["s"]),
        helper.make_node("Gather", ["s", "zero"], ["n"], axis=0),
        helper.make_node("Unsqueeze", ["n", "axes"], ["n1"]),
        helper.make_node("Mul", ["n1", "two"], ["n2"]),
        helper.make_node("Concat", ["n2", "minus"], ["wanted"], axis=0),
        helper.make_node("Reshape", ["x", "wanted"], ["y"]),
    ]
    weights = {"zero": np.int64(0), "axes": np.array([0]), "two": np.array([2]), "minus": np.array([-1])}
    runner = OnnxRunner(model(nodes, {"x": (FLOAT, ["n", 6])}, ["y"], weights))
    x = Tensor(np.arange(12, dtype=np.float32).reshape(2, 6)).realize()
    before = GlobalCounters.kernels
    y = runner({"x": x})["y"]
    assert y.shape == (4, 3)
    assert GlobalCounters.kernels == before


def test_a_known_condition_folds_its_branch() -> None:
    def branch(op: str) -> Any:
        return helper.make_graph(
            [helper.make_node(op, ["x"], [f"{op}_y"])], op, [], [helper.make_tensor_value_info(f"{op}_y", FLOAT, None)]
        )

    nodes = [helper.make_node("If", ["c"], ["y"], then_branch=branch("Neg"), else_branch=branch("Abs"))]
    runner = OnnxRunner(model(nodes, {"x": (FLOAT, [3])}, ["y"], {"c": np.array(True)}))
    assert runner(x=np.array([1, -2, 3], np.float32))["y"].tolist() == [-1, 2, -3]
    asked = OnnxRunner(model(nodes, {"x": (FLOAT, [3]), "c": (TensorProto.BOOL, [])}, ["y"]))
    assert asked(x=np.array([1, -2, 3], np.float32), c=np.array(False))["y"].tolist() == [1, 2, 3]


def test_a_loop_carries_and_collects() -> None:
    body = helper.make_graph(
        [
            helper.make_node("Add", ["a", "x"], ["b"]),
            helper.make_node("Identity", ["b"], ["row"]),
            helper.make_node("Identity", ["cond"], ["cond_out"]),
        ],
        "body",
        [
            helper.make_tensor_value_info("i", INT64, []), helper.make_tensor_value_info("cond", TensorProto.BOOL, []),
            helper.make_tensor_value_info("a", FLOAT, [2]),
        ],
        [
            helper.make_tensor_value_info("cond_out", TensorProto.BOOL, []),
            helper.make_tensor_value_info("b", FLOAT, [2]), helper.make_tensor_value_info("row", FLOAT, [2]),
        ],
    )  # fmt: skip
    nodes = [helper.make_node("Loop", ["n", "", "start"], ["last", "rows"], body=body)]
    inputs = {"x": (FLOAT, [2]), "n": (INT64, []), "start": (FLOAT, [2])}
    runner = OnnxRunner(model(nodes, inputs, ["last", "rows"]))
    x = np.array([1.0, -1.0], np.float32)
    for count in (0, 1, 3, 20):
        got = runner(x=x, n=np.array(count), start=np.zeros(2, np.float32))
        np.testing.assert_array_equal(got["last"].numpy(), x * count)
        assert got["rows"].shape[0] == count


def test_scatter_nd_with_equal_places() -> None:
    nodes = [helper.make_node("ScatterND", ["x", "i", "u"], ["y"], reduction="add")]
    inputs = {"x": (FLOAT, [4, 2]), "i": (INT64, [3, 1]), "u": (FLOAT, [3, 2])}
    runner = OnnxRunner(model(nodes, inputs, ["y"]))
    x = np.ones((4, 2), np.float32)
    got = runner(x=x, i=np.array([[1], [1], [-1]]), u=np.full((3, 2), 2, np.float32))["y"].tolist()
    assert got == [[1, 1], [5, 5], [1, 1], [3, 3]]


# what is refused, before anything runs
def refused(made: Any, error: type[Exception] = OnnxError) -> str:
    with pytest.raises(error) as caught:
        OnnxRunner(made)
    return str(caught.value)


def one(op: str, inputs: list[str], opset: int = 18, domain: str = "", **attributes: Any) -> Any:
    node = helper.make_node(op, inputs, ["y"], name="the_node", domain=domain, **attributes)
    domains = ((domain, 1),) if domain else ()
    return model([node], {"x": (FLOAT, [2])}, ["y"], opset=opset, domains=domains)


def test_a_missing_operator_names_node_operator_version_and_what_there_is() -> None:
    text = refused(one("Softmaxx", ["x"]))
    assert "the_node" in text and "Softmaxx" in text and "18" in text and "Softmax" in text
    text = refused(one("Nothing", ["x"], domain="com.example"))
    assert "com.example" in text


def test_versions_are_checked() -> None:
    text = refused(one("Relu", ["x"], opset=99))
    assert "99" in text and "28" in text
    text = refused(one("Upsample", ["x"], opset=13))
    assert "Upsample" in text and "9 to 10" in text


def test_attributes_are_checked() -> None:
    text = refused(one("Elu", ["x"], beta=1.0))
    assert "'beta'" in text and "alpha" in text
    text = refused(one("Elu", ["x"], alpha="much"))
    assert "'alpha'" in text and "float" in text
    text = refused(one("LRN", ["x"]))
    assert "'size'" in text and "missing" in text


def test_inputs_are_checked() -> None:
    assert "2 inputs" in refused(one("Relu", ["x", "x"]))
    assert "'nowhere'" in refused(one("Relu", ["nowhere"]))
    runner = OnnxRunner(one("Relu", ["x"]))
    with pytest.raises(ArgumentError, match="no input 'z'"):
        runner(z=1)
    with pytest.raises(ArgumentError, match="'x'.*missing"):
        runner({})
    with pytest.raises(ArgumentError, match="float64|double"):
        runner(x=np.zeros(2))
    with pytest.raises(ArgumentError, match="shape"):
        runner(x=np.zeros((2, 2), np.float32))
    with pytest.raises(ArgumentError, match="shape"):
        runner(x=np.zeros(3, np.float32))


def test_an_error_while_running_names_the_node() -> None:
    made = model([helper.make_node("MatMul", ["x", "w"], ["y"], name="the_node")], {"x": (FLOAT, None)}, ["y"],
                 {"w": np.zeros((3, 3), np.float32)})  # fmt: skip
    with pytest.raises(OnnxError, match="the_node"):
        OnnxRunner(made)(x=np.zeros((2, 2), np.float32))


# files
def test_no_model_is_refused(tmp_path: Path) -> None:
    for data in (b"", b"nonsense", b"\xff" * 100):
        refused(data, FileFormatError)
    refused(tmp_path / "absent.onnx", FileFormatError)


def tensor(**fields: Any) -> Any:
    made = TensorProto(name="w", data_type=FLOAT, dims=[2])
    made.raw_data = b"\0" * 8
    for key, value in fields.items():
        if key == "dims":
            del made.dims[:]
            made.dims.extend(value)
        else:
            setattr(made, key, value)
    return made


@pytest.mark.parametrize("fields", [
    {"raw_data": b"\0" * 7}, {"dims": [2**62, 4]}, {"dims": [-1]}, {"data_type": 99}, {"dims": [1 << 40, 1 << 40]},
])  # fmt: skip
def test_weights_that_do_not_fit_are_refused(fields: dict[str, Any]) -> None:
    made = one("Add", ["x", "w"])
    made.graph.initializer.append(tensor(**fields))
    assert "'w'" in refused(made, FileFormatError)


@pytest.mark.parametrize(("location", "offset", "length"), [
    ("../w.bin", 0, 8), ("/etc/passwd", 0, 8), ("w.bin", 4, 8), ("w.bin", -1, 8), ("w.bin", 0, 1 << 60),
    ("absent", 0, 8), ("", 0, 8), ("link", 0, 8), ("w.bin", "x", 8),
])  # fmt: skip
def test_data_beside_the_model_stays_beside_it(tmp_path: Path, location: str, offset: Any, length: Any) -> None:
    folder = tmp_path / "model"
    folder.mkdir()
    (folder / "w.bin").write_bytes(b"\0" * 8)
    (tmp_path / "w.bin").write_bytes(b"\0" * 8)
    (folder / "link").symlink_to(tmp_path / "w.bin")
    made = one("Add", ["x", "w"])
    weight = tensor(data_location=TensorProto.EXTERNAL)
    weight.ClearField("raw_data")
    for key, value in (("location", location), ("offset", offset), ("length", length)):
        weight.external_data.add(key=key, value=str(value))
    made.graph.initializer.append(weight)
    path = folder / "m.onnx"
    path.write_bytes(made.SerializeToString())
    assert "'w'" in refused(path, FileFormatError)


def test_data_beside_the_model_is_read(tmp_path: Path) -> None:
    (tmp_path / "w.bin").write_bytes(b"pad!" + np.array([3, 4], np.float32).tobytes())
    made = one("Add", ["x", "w"])
    weight = tensor(data_location=TensorProto.EXTERNAL)
    weight.ClearField("raw_data")
    for key, value in (("location", "w.bin"), ("offset", 4), ("length", 8)):
        weight.external_data.add(key=key, value=str(value))
    made.graph.initializer.append(weight)
    (tmp_path / "m.onnx").write_bytes(made.SerializeToString())
    assert OnnxRunner(tmp_path / "m.onnx")(x=np.array([1, 2], np.float32))["y"].tolist() == [4, 6]
    refused(made, FileFormatError)


# the command
def test_the_command_describes_runs_and_times(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "m.onnx"
    path.write_bytes(
        model([helper.make_node("Relu", ["x"], ["y"])], {"x": (FLOAT, ["n", 2])}, ["y"]).SerializeToString()
    )
    assert main(["onnx", "info", str(path)]) == 0
    text = capsys.readouterr().out
    assert "x: float[n, 2]" in text and "Relu" in text and "n: one capture, from 1 on" in text
    np.save(tmp_path / "x.npy", np.array([[1, -1]], np.float32))
    out = tmp_path / "out.npz"
    assert main(["onnx", "run", str(path), "--input", f"x={tmp_path / 'x.npy'}", "--output", str(out)]) == 0
    assert np.load(out)["y"].tolist() == [[1, 0]]
    assert main(["onnx", "bench", str(path), "--size", "n=3", "--rounds", "2"]) == 0
    assert "median of 2" in capsys.readouterr().out
    assert main(["onnx", "info", str(tmp_path / "absent.onnx")]) == 2
    assert main(["onnx", "run", str(path), "--input", "z=a.npy"]) == 2


# calls that repeat
def test_repeated_calls_are_captured_and_see_new_data() -> None:
    nodes = [helper.make_node("MatMul", ["x", "w"], ["h"]), helper.make_node("Tanh", ["h"], ["y"])]
    w = np.random.default_rng(0).standard_normal((3, 4)).astype(np.float32)
    runner = OnnxRunner(model(nodes, {"x": (FLOAT, ["n", 3])}, ["y"], {"w": w}))
    for n in (2, 2, 2, 5, 5, 2, 5, 2):
        x = np.random.default_rng(n).standard_normal((n, 3)).astype(np.float32) + n
        np.testing.assert_allclose(runner(x=x)["y"].numpy(), np.tanh(x @ w), rtol=1e-5, atol=1e-6)
        np.testing.assert_allclose(runner(x=Tensor(x))["y"].numpy(), np.tanh(x @ w), rtol=1e-5, atol=1e-6)
    plans = [*runner._replays._plans.values(), *[p._plan for p in runner._sizes._plans.values()]]
    assert len(plans) == 3 and all(p.captures and not p.walked for p in plans)


def test_numbers_that_decide_belong_to_the_capture() -> None:
    nodes = [helper.make_node("Reshape", ["x", "s"], ["h"]), helper.make_node("Neg", ["h"], ["y"])]
    runner = OnnxRunner(model(nodes, {"x": (FLOAT, [6]), "s": (INT64, [2])}, ["y"]))
    x = np.arange(6, dtype=np.float32)
    for shape in ([2, 3], [3, 2], [2, 3], [3, 2], [6, 1], [2, 3], [3, 2]):
        got = runner(x=x, s=np.array(shape))["y"].numpy()
        np.testing.assert_array_equal(got, -x.reshape(shape))


def test_what_depends_on_data_is_walked_at_every_call() -> None:
    nodes = [helper.make_node("Abs", ["x"], ["a"]), helper.make_node("NonZero", ["a"], ["y"])]
    runner = OnnxRunner(model(nodes, {"x": (FLOAT, [4])}, ["y"], kind=INT64))
    for _ in range(3):
        for data in ([1, 0, 2, 0], [0, 0, 0, 0], [1, 1, 1, 1]):
            assert runner(x=np.array(data, np.float32))["y"].tolist() == [list(np.nonzero(data)[0])]


def operations(made: Any, **inputs: Any) -> int:
    """What a model's first call computes."""
    before = GlobalCounters.ops
    OnnxRunner(made)(**inputs)
    return GlobalCounters.ops - before


@pytest.mark.parametrize("direction", ["forward", "bidirectional"])
def test_what_comes_before_a_long_layer_is_computed_once(direction: str) -> None:
    """Steps are computed group by group; what all of them read, and others after them, is not made for each."""
    r, steps, wide, hidden = np.random.default_rng(0), 37, 96, 2
    count = 1 + (direction == "bidirectional")
    nodes = [
        helper.make_node("MatMul", ["x", "a"], ["h"]), helper.make_node("Tanh", ["h"], ["t"]),
        helper.make_node("Unsqueeze", ["t", "one"], ["u"]),
        helper.make_node("LSTM", ["u", "w", "r"], ["y", "last"], hidden_size=hidden, direction=direction),
        helper.make_node("ReduceSum", ["t"], ["total"]), helper.make_node("Add", ["y", "total"], ["z"]),
    ]  # fmt: skip
    weights = {
        "a": r.standard_normal((wide, wide)).astype(np.float32) / 10, "one": np.array([1]),
        "w": r.standard_normal((count, 4 * hidden, wide)).astype(np.float32) / 10,
        "r": r.standard_normal((count, 4 * hidden, hidden)).astype(np.float32),
    }  # fmt: skip
    x = r.standard_normal((steps, wide)).astype(np.float32)
    made = model(nodes, {"x": (FLOAT, ["n", wide])}, ["z", "last"], weights)
    expected = ReferenceEvaluator(made).run(None, {"x": x})
    runner = OnnxRunner(made)
    for _ in range(3):
        for got, wanted in zip(runner(x=x).values(), expected, strict=True):
            np.testing.assert_allclose(got.numpy(), wanted, rtol=1e-4, atol=1e-4)
    product = 2 * steps * wide * wide
    assert product < operations(made, x=x) < 1.6 * product


def test_what_is_computed_to_be_looked_at_is_computed_once() -> None:
    wide = 64
    nodes = [
        helper.make_node("MatMul", ["x", "x"], ["p"]), helper.make_node("NonZero", ["p"], ["i"]),
        helper.make_node("MatMul", ["p", "x"], ["q"]), helper.make_node("NonZero", ["q"], ["j"]),
        helper.make_node("Add", ["p", "q"], ["y"]),
    ]  # fmt: skip
    x = np.random.default_rng(0).standard_normal((wide, wide)).astype(np.float32)
    made = model(nodes, {"x": (FLOAT, [wide, wide])}, ["y", "i", "j"])
    np.testing.assert_allclose(OnnxRunner(made)(x=x)["y"].numpy(), x @ x + x @ x @ x, rtol=1e-4, atol=1e-3)
    assert operations(made, x=x) < 5 * wide**3  # two products are 4


def test_what_depends_on_data_is_not_captured_in_vain(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first walk tells: a capture that fails has walked, scheduled and compiled in vain."""
    nodes = [helper.make_node("NonZero", ["x"], ["i"]), helper.make_node("Add", ["i", "w"], ["y"])]
    weights = {"w": np.arange(40000)[:, None]}  # made of host data at each call, which tells nothing
    runner = OnnxRunner(model(nodes, {"x": (FLOAT, ["n"])}, ["y"], weights, kind=INT64))
    captures = []
    monkeypatch.setattr(replays, "jit", lambda function: captures.append(function) or jit(function))
    for size in (3, 3, 3, 2, 2, 2):
        x = np.ones(size, np.float32)
        np.testing.assert_array_equal(runner(x=x)["y"].numpy(), np.nonzero(x)[0] + weights["w"])
    assert captures == []


def test_arrays_like_those_of_an_earlier_call_make_no_tensor(monkeypatch: pytest.MonkeyPatch) -> None:
    nodes = [helper.make_node("MatMul", ["x", "w"], ["h"]), helper.make_node("Add", ["h", "b"], ["y"])]
    w = np.random.default_rng(0).standard_normal((3, 5)).astype(np.float32)
    runner = OnnxRunner(model(nodes, {"x": (FLOAT, ["n", 3]), "b": (FLOAT, [])}, ["y"], {"w": w}))
    random = np.random.default_rng(1)

    def fresh(rows: int) -> dict[str, Any]:
        return {"x": random.standard_normal((rows, 3)).astype(np.float32), "b": np.array(rows, np.float32)}

    for rows in (4, 4, 7, 7):  # walked and captured
        runner(fresh(rows))
    made = 0

    def noticed(self: OnnxRunner, given: Any) -> Any:
        nonlocal made
        made += 1
        return inputs(self, given)

    inputs = OnnxRunner._inputs
    monkeypatch.setattr(OnnxRunner, "_inputs", noticed)
    kept = []
    for rows in (4, 7, 4, 4, 7, 7, 4):
        given = fresh(rows)
        if rows == 7:
            given["x"] = given["x"][::-1]  # not in order in memory
        kept.append((runner(given)["y"], given["x"] @ w + rows))
    assert made == 0
    for result, expected in kept:  # each has its own values
        np.testing.assert_allclose(result.numpy(), expected, rtol=1e-5, atol=1e-5)
    # Another order of names, lists, tensors, other types: as ever.
    given = fresh(4)
    expected = given["x"] @ w + 4
    lists, tensors = {n: a.tolist() for n, a in given.items()}, {n: Tensor(a) for n, a in given.items()}
    for same in (dict(reversed(given.items())), lists, tensors):
        np.testing.assert_allclose(runner(same)["y"].numpy(), expected, rtol=1e-5, atol=1e-5)
    with pytest.raises(ArgumentError, match="float"):
        runner({"x": given["x"].astype(np.float64), "b": given["b"]})
    with pytest.raises(ArgumentError, match="missing"):
        runner({"x": given["x"]})


def test_a_result_that_is_an_input_stays_what_it_was() -> None:
    nodes = [helper.make_node("Transpose", ["x"], ["y"]), helper.make_node("Neg", ["x"], ["z"])]
    runner = OnnxRunner(model(nodes, {"x": (FLOAT, [2, 3])}, ["y", "z"]))
    kept = []
    for n in range(6):
        x = np.full((2, 3), n, np.float32)
        kept.append(runner(x=x))
        x += 100
    for n, results in enumerate(kept):
        assert results["y"].tolist() == [[n, n]] * 3 and results["z"].tolist() == [[-n] * 3] * 2


def test_threads_share_a_runner() -> None:
    nodes = [helper.make_node("Exp", ["x"], ["h"]), helper.make_node("Sub", ["h", "x"], ["y"])]
    runner = OnnxRunner(model(nodes, {"x": (FLOAT, [64])}, ["y"]))
    x = np.linspace(-1, 1, 64, dtype=np.float32)
    for _ in range(3):
        runner(x=x)
    wrong: list[int] = []

    def work(number: int) -> None:
        for n in range(50):
            own = x * np.float32(number + n / 64)
            if not np.allclose(runner(x=own)["y"].numpy(), np.exp(own) - own, rtol=1e-5, atol=1e-6):
                wrong.append(number)

    threads = [threading.Thread(target=work, args=(n,)) for n in range(1, 4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def test_the_backend_of_the_package_onnx() -> None:
    from gradlet.onnx import backend

    made = one("Relu", ["x"])
    assert backend.supports_device("CPU") and not backend.supports_device("NOWHERE")
    assert backend.GradletBackend.is_compatible(made)
    assert not backend.GradletBackend.is_compatible(one("Nothing", ["x"]))
    (y,) = backend.run_model(made, [np.array([-1, 2], np.float32)])
    assert y.tolist() == [0, 2]
