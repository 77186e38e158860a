"""Sizes that a file leaves open: one capture serves all of them, and no kernel is compiled for another size."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

onnx = pytest.importorskip("onnx", reason="needs the extra [onnx]")
from onnx import TensorProto, helper, numpy_helper

from gradlet import Tensor
from gradlet.base import settings
from gradlet.base.errors import ArgumentError
from gradlet.engine import compile as compilation
from gradlet.onnx import replays, sizes
from gradlet.onnx.registry import OnnxError
from gradlet.onnx.runner import OnnxRunner
from gradlet.schedule.create import statistics
from gradlet.tensor.function import jit

FLOAT, INT64 = TensorProto.FLOAT, TensorProto.INT64
node = helper.make_node


def model(
    nodes: list[Any], inputs: dict[str, Any], outputs: dict[str, int] | list[str], weights: dict[str, Any] | None = None
) -> bytes:
    """The bytes of a model of these nodes."""
    kinds = outputs if isinstance(outputs, dict) else dict.fromkeys(outputs, FLOAT)
    graph = helper.make_graph(
        nodes, "g", [helper.make_tensor_value_info(n, t, s) for n, (t, s) in inputs.items()],
        [helper.make_tensor_value_info(n, kind, None) for n, kind in kinds.items()],
        [numpy_helper.from_array(np.asarray(w), n) for n, w in (weights or {}).items()],
    )  # fmt: skip
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=10)
    return bytes(made.SerializeToString())


class Work:
    """Captures, schedules and kernels made since the last look."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self._captures = 0
        self._before = (0, 0, 0)

        def noticed(function: Any) -> Any:
            self._captures += 1
            return jit(function)

        monkeypatch.setattr(replays, "jit", noticed)
        self.look()

    def look(self) -> tuple[int, int, int]:
        now = self._captures, statistics.made, len(compilation._kernels)
        found = tuple([a - b for a, b in zip(now, self._before)])
        self._before = now
        return found  # type: ignore[return-value]


@pytest.fixture(autouse=True)
def nothing_on_disk() -> Iterator[None]:
    with settings.scope(CACHE=False):
        yield


@pytest.fixture
def work(monkeypatch: pytest.MonkeyPatch) -> Work:
    return Work(monkeypatch)


def normal(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed + sum(shape)).standard_normal(shape).astype(np.float32)


W = normal(3, 5, seed=1)


def layer(**more: Any) -> OnnxRunner:
    nodes = [node("MatMul", ["x", "w"], ["h"]), node("Tanh", ["h"], ["t"]), node("Softmax", ["t"], ["y"], axis=-1)]
    return OnnxRunner(model(nodes, {"x": (FLOAT, ["batch", 3])}, ["y"], {"w": W}), **more)


def softmax(x: np.ndarray, axis: int = -1) -> np.ndarray:
    e = np.exp(x - x.max(axis, keepdims=True))
    return e / e.sum(axis, keepdims=True)


def check_layer(runner: OnnxRunner, count: int, seed: int = 0) -> None:
    x = normal(count, 3, seed=seed)
    found = runner(x=x)["y"]
    assert found.shape == (count, 5)
    np.testing.assert_allclose(found.numpy(), softmax(np.tanh(x @ W)), rtol=1e-5, atol=1e-6)


def test_one_capture_serves_all_batches(work: Work) -> None:
    runner = layer()
    check_layer(runner, 7)
    assert work.look()[0] == 1  # of its own
    check_layer(runner, 5)
    assert work.look()[0] == 1  # for all from 1 to 8
    for count in (1, 8, 3, 2, 6, 5, 4, 7, 3):
        check_layer(runner, count, seed=count)
    assert work.look() == (0, 0, 0)
    check_layer(runner, 9)
    assert work.look()[0] == 1  # to 16
    for count in (16, 9, 12, 1, 7):
        check_layer(runner, count)
    assert work.look() == (0, 0, 0)
    check_layer(runner, 0)  # nothing is a size, and is walked
    check_layer(runner, 3)


def test_limits_of_the_user(work: Work) -> None:
    runner = layer(dims={"batch": (0, 12)})
    check_layer(runner, 3)
    assert work.look()[0] == 1
    for count in (12, 1, 0, 7, 3, 3, 3):
        check_layer(runner, count)
    assert work.look() == (0, 0, 0)
    for count in (13, 40):
        with pytest.raises(ArgumentError, match="'x': axis 0 has size .* batch 0..12"):
            runner(x=normal(count, 3))


@pytest.mark.parametrize(
    ("dims", "message"),
    [
        ({"rows": (1, 4)}, "no size 'rows' open; it has batch"),
        ({"batch": 4}, "needs"),
        ({"batch": (1, 2.5)}, "needs"),
        ({"batch": (4, 1)}, "limits"),
        ({"batch": (1, 1)}, "at least two"),
        ({"batch": (8, 20, 8)}, "multiples"),
        ({"batch": (-2, 4)}, "limits"),
        ({"batch": (1, 4, 0)}, "limits"),
    ],
)
def test_limits_that_are_none(dims: Any, message: str) -> None:
    with pytest.raises(ArgumentError, match=message):
        layer(dims=dims)


def test_on_another_device(work: Work) -> None:
    runner = layer(device="PYTHON", dims={"batch": (1, 8)})
    for count in (3, 5, 8, 1, 3):
        check_layer(runner, count)
    captures, schedules, _ = work.look()
    assert captures == 1 and schedules > 0
    for count in (2, 7):
        check_layer(runner, count)
        assert runner(x=normal(count, 3))["y"].device == "PYTHON"
    assert work.look() == (0, 0, 0)
    unlimited = layer(device="PYTHON")
    for count in (3, 5, 4):
        check_layer(unlimited, count)
    assert not unlimited._sizes._plans


def test_without_sizes_that_vary(work: Work) -> None:
    runner = layer(dims={})
    for count in (3, 4, 5, 3, 4, 5):
        check_layer(runner, count)
    assert work.look()[0] == 3 and not runner._sizes._plans


def test_a_size_that_comes_often_is_captured_for_itself(work: Work, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sizes, "OWN_AFTER", 4)
    runner = layer()
    check_layer(runner, 7)
    for _ in range(4):
        check_layer(runner, 5)
    assert work.look()[0] == 2
    check_layer(runner, 5)
    assert work.look()[0] == 1
    for _ in range(5):
        check_layer(runner, 5)
    assert work.look() == (0, 0, 0)
    limited = layer(dims={"batch": (1, 8)})
    for _ in range(9):
        check_layer(limited, 5)
    assert work.look()[0] == 1


def test_results_keep_their_values_and_inputs_may_be_anything() -> None:
    runner = layer(dims={"batch": (1, 16)})
    kept = []
    for count in (4, 9, 4, 1, 9):
        x = normal(count, 3, seed=len(kept))
        kinds = (x, x.tolist(), Tensor(x), np.asfortranarray(x), x[::-1][::-1])
        kept += [(runner(x=same)["y"], softmax(np.tanh(x @ W))) for same in kinds]
    for found, wanted in kept:
        np.testing.assert_allclose(found.numpy(), wanted, rtol=1e-5, atol=1e-6)
        np.testing.assert_allclose((found * 2).sum(0).numpy(), 2 * wanted.sum(0), rtol=1e-5, atol=1e-5)


def test_inputs_that_share_a_name_share_the_size() -> None:
    nodes = [node("Add", ["x", "y"], ["s"]), node("ReduceSum", ["s"], ["z"], keepdims=0)]
    inputs = {"x": (FLOAT, ["n", 3]), "y": (FLOAT, ["n", 3])}
    runner = OnnxRunner(model(nodes, inputs, ["s", "z"]))
    for count in (3, 5, 2, 8):
        x, y = normal(count, 3), normal(count, 3, seed=9)
        found = runner(x=x, y=y)
        np.testing.assert_allclose(found["s"].numpy(), x + y, rtol=1e-6)
        np.testing.assert_allclose(found["z"].item(), (x + y).sum(), rtol=1e-4, atol=1e-4)
    assert len(runner._sizes._plans) == 1
    with pytest.raises(ArgumentError, match="inputs 'x' and 'y' share the size 'n', and have 3 and 1"):
        runner(x=normal(3, 3), y=normal(1, 3))


def test_names_of_nothing_are_no_names() -> None:
    runner = OnnxRunner(model([node("Neg", ["x"], ["y"])], {"x": (FLOAT, ["?", "?"])}, ["y"]))
    for rows, columns in ((2, 3), (3, 2), (3, 3), (1, 2)):
        x = normal(rows, columns)
        np.testing.assert_array_equal(runner(x=x)["y"].numpy(), -x)
    (layout,) = runner._sizes._plans
    assert [dim.name for dim in layout.dims] == ["x.0", "x.1"]
    assert OnnxRunner(model([node("Neg", ["x"], ["y"])], {"x": (FLOAT, [None, 3])}, ["y"]), dims={"x.0": (1, 4)})


def test_sizes_of_two_names_that_agree_are_taken_for_one(work: Work) -> None:
    nodes = [node("Add", ["x", "y"], ["s"]), node("Exp", ["s"], ["z"])]
    made = model(nodes, {"x": (FLOAT, [None, 3]), "y": (FLOAT, [None, 3])}, ["z"])
    runner = OnnxRunner(made)
    for number, n in enumerate((3, 4, 2, 1, 4)):
        x, y = normal(n, 3), normal(n, 3, seed=4)
        np.testing.assert_allclose(runner(x=x, y=y)["z"].numpy(), np.exp(x + y), rtol=1e-5)
        assert work.look()[1:] == (0, 0) or number < 2
    assert len(runner._sizes._plans) == 1 and not runner._sizes.refused
    for n, m in ((4, 1), (1, 4), (3, 3), (1, 2), (2, 2)):  # they are two
        x, y = normal(n, 3), normal(m, 3, seed=4)
        np.testing.assert_allclose(runner(x=x, y=y)["z"].numpy(), np.exp(x + y), rtol=1e-5)


def test_sizes_of_two_names_that_meet_are_captured_one_by_one(work: Work) -> None:
    nodes = [node("Add", ["x", "y"], ["z"])]
    runner = OnnxRunner(model(nodes, {"x": (FLOAT, ["n", 3]), "y": (FLOAT, ["m", 3])}, ["z"]))
    for n, m in ((3, 3), (4, 4), (5, 1), (1, 5), (3, 3), (4, 4)):
        x, y = normal(n, 3), normal(m, 3, seed=4)
        np.testing.assert_allclose(runner(x=x, y=y)["z"].numpy(), x + y, rtol=1e-6)
    assert any("broadcast" in reason for reason in runner._sizes.refused.values())


def attention(heads: int = 2, width: int = 6) -> bytes:
    """Positions, self-attention with a mask, and the last position, with the shape arithmetic of exporters."""
    nodes = [
        node("Shape", ["ids"], ["shape"]),
        node("Gather", ["shape", "zero"], ["b"]), node("Gather", ["shape", "one"], ["s"]),
        node("Range", ["zero", "s", "one"], ["places"]),
        node("Gather", ["table", "places"], ["where"]),
        node("Gather", ["words", "ids"], ["word"]), node("Add", ["word", "where"], ["x"]),
        node("Unsqueeze", ["b", "axis"], ["b1"]), node("Unsqueeze", ["s", "axis"], ["s1"]),
        node("Concat", ["b1", "s1", "heads", "minus"], ["split"], axis=0),
        node("Reshape", ["x", "split"], ["h"]), node("Transpose", ["h"], ["q"], perm=[0, 2, 1, 3]),
        node("Transpose", ["h"], ["k"], perm=[0, 2, 3, 1]), node("MatMul", ["q", "k"], ["scores"]),
        node("Cast", ["mask"], ["m"], to=FLOAT), node("Unsqueeze", ["m", "ones"], ["mm"]),
        node("Sub", ["mm", "f1"], ["negative"]), node("Mul", ["negative", "big"], ["hide"]),
        node("Add", ["scores", "hide"], ["hidden"]), node("Softmax", ["hidden"], ["p"], axis=-1),
        node("MatMul", ["p", "q"], ["o"]), node("Transpose", ["o"], ["t"], perm=[0, 2, 1, 3]),
        node("Concat", ["b1", "s1", "minus"], ["joined"], axis=0), node("Reshape", ["t", "joined"], ["y"]),
        node("Gather", ["y", "last"], ["end"], axis=1), node("Slice", ["y", "axis1", "far", "axis1"], ["rest"]),
        node("ReduceMean", ["y", "axis1"], ["mean"], keepdims=0),
        node("ConstantOfShape", ["joined2"], ["zeros"]), node("Concat", ["b1", "s1"], ["joined2"], axis=0),
        node("Expand", ["f1", "joined2"], ["wide"]), node("Add", ["zeros", "wide"], ["filled"]),
    ]  # fmt: skip
    order = [n for n in nodes if n.output[0] != "zeros"]
    place = next(i for i, n in enumerate(order) if n.output[0] == "joined2") + 1
    order.insert(place, next(n for n in nodes if n.output[0] == "zeros"))
    weights = {
        "zero": np.int64(0), "one": np.int64(1), "axis": np.array([0]), "axis1": np.array([1]), "last": np.int64(-1),
        "heads": np.array([heads]), "minus": np.array([-1]), "ones": np.array([1, 2]), "far": np.array([2**63 - 1]),
        "f1": np.float32(1), "big": np.float32(1e9), "table": normal(64, width), "words": normal(11, width, seed=3),
    }  # fmt: skip
    inputs = {"ids": (INT64, ["batch", "sequence"]), "mask": (INT64, ["batch", "sequence"])}
    return model(order, inputs, ["y", "end", "rest", "mean", "filled"], weights)


def attention_inputs(batch: int, length: int) -> dict[str, np.ndarray]:
    random = np.random.default_rng(batch * 100 + length)
    mask = random.integers(0, 2, (batch, length))
    mask[:, 0] = 1
    return {"ids": random.integers(0, 11, (batch, length)), "mask": mask}


def attended(inputs: dict[str, np.ndarray], heads: int = 2, width: int = 6) -> dict[str, np.ndarray]:
    ids, mask = inputs["ids"], inputs["mask"]
    batch, length = ids.shape
    x = normal(11, width, seed=3)[ids] + normal(64, width)[:length]
    q = x.reshape(batch, length, heads, -1).transpose(0, 2, 1, 3)
    p = softmax(q @ q.transpose(0, 1, 3, 2) + (mask[:, None, None] - 1.0) * 1e9)
    y = (p @ q).transpose(0, 2, 1, 3).reshape(batch, length, -1)
    return {
        "y": y, "end": y[:, -1], "rest": y[:, 1:], "mean": y.mean(1), "filled": np.ones((batch, length), np.float32)
    }  # fmt: skip


@pytest.mark.parametrize("dims", [None, {"batch": (1, 6), "sequence": (1, 64)}])
def test_several_sizes_and_the_arithmetic_of_shapes(dims: Any, work: Work) -> None:
    runner = OnnxRunner(attention(), dims=dims)
    calls = [(2, 7), (4, 16), (3, 5), (1, 1), (4, 2), (1, 16), (3, 11), (2, 7), (4, 1)]
    for number, (batch, length) in enumerate(calls):
        inputs = attention_inputs(batch, length)
        found, wanted = runner(inputs), attended(inputs)
        for name, array in wanted.items():
            assert found[name].shape == array.shape
            np.testing.assert_allclose(
                found[name].numpy(), array, rtol=1e-4, atol=1e-5, err_msg=f"{name} {batch} {length}"
            )
        captures, schedules, kernels = work.look()
        if number > 1:
            assert schedules == kernels == 0
            assert captures == 0 or (dims is None and (batch, length) == calls[0])  # the first size has its own
    assert not runner._sizes.refused and len(runner._sizes._plans) == 1


def test_a_size_that_does_not_vary_stays_a_number() -> None:
    runner = OnnxRunner(attention())
    for length in (7, 9, 12, 3):
        inputs = attention_inputs(2, length)
        np.testing.assert_allclose(runner(inputs)["y"].numpy(), attended(inputs)["y"], rtol=1e-4, atol=1e-5)
    (layout,) = runner._sizes._plans
    assert [str(dim) for dim in layout.dims] == ["sequence 1..16"]


def test_what_needs_a_number_is_captured_for_each_size(work: Work) -> None:
    """One axis joined into another: the rows are no longer one after another in memory of the largest size."""
    nodes = [node("Transpose", ["x"], ["t"]), node("Reshape", ["t", "flat"], ["f"]), node("Neg", ["f"], ["y"])]
    weights = {"flat": np.array([-1])}
    runner = OnnxRunner(model(nodes, {"x": (FLOAT, ["n", 3])}, ["y"], weights))
    for count in (4, 5, 6, 4, 5, 6, 4):
        x = normal(count, 3)
        np.testing.assert_array_equal(runner(x=x)["y"].numpy(), -x.T.reshape(-1))
    ((names, reason),) = runner._sizes.refused.items()
    assert names == {"n"} and "Reshape" in reason and "known only at launch" in reason
    assert work.look()[0] == 3


def test_one_size_that_cannot_vary_leaves_the_others(work: Work) -> None:
    nodes = [node("Transpose", ["x"], ["t"], perm=[0, 2, 1]), node("Reshape", ["t", "flat"], ["f"]),
             node("Neg", ["f"], ["y"])]  # fmt: skip
    runner = OnnxRunner(model(nodes, {"x": (FLOAT, ["b", "n", 3])}, ["y"], {"flat": np.array([0, -1])}))
    for batch, count in ((2, 4), (3, 4), (4, 4), (1, 4), (2, 5), (3, 5), (4, 5)):
        x = normal(batch, count, 3)
        np.testing.assert_array_equal(runner(x=x)["y"].numpy(), -x.transpose(0, 2, 1).reshape(batch, -1))
    assert set(runner._sizes.refused) == {frozenset({"n"}), frozenset({"b", "n"})} - {frozenset({"b", "n"})}
    assert [[d.name for d in layout.dims] for layout in runner._sizes._plans] == [["b"], ["b"]]


def test_numbers_that_decide_beside_a_size_that_varies(work: Work) -> None:
    nodes = [node("Tile", ["x", "times"], ["t"]), node("Neg", ["t"], ["y"])]
    runner = OnnxRunner(model(nodes, {"x": (FLOAT, ["n", 3]), "times": (INT64, [2])}, ["y"]))
    for count in (4, 5, 6, 7, 2):
        for times in ([1, 2], [1, 1], [1, 3]):
            x = normal(count, 3)
            found = runner(x=x, times=np.array(times))["y"].numpy()
            np.testing.assert_array_equal(found, -np.tile(x, times))
    assert work.look()[0] == 4 and len(runner._sizes._plans) == 1  # of its own one, and three for all other sizes


def test_calls_that_fail_anyway_refuse_nothing() -> None:
    nodes = [node("Reshape", ["x", "two"], ["r"]), node("MatMul", ["r", "w"], ["y"])]
    runner = OnnxRunner(model(nodes, {"x": (FLOAT, ["n", "k"])}, ["y"], {"two": np.array([0, 3]), "w": W}))
    for count in (0, 2, 0, 4, 5, 6):
        if count:
            np.testing.assert_allclose(runner(x=normal(count, 3))["y"].numpy(), normal(count, 3) @ W, rtol=1e-5)
        else:
            with pytest.raises(Exception, match="reshape"):
                runner(x=normal(2, 4))
    assert not runner._sizes.refused
    assert [str(dim) for layout in runner._sizes._plans for dim in layout.dims] == ["n 1..8"]


def test_calls_without_elements_refuse_nothing(work: Work) -> None:
    """The first keys of a text follow none: joined to nothing they are an input, which is no result to be captured."""
    nodes = [
        node("Concat", ["past", "x"], ["keys"], axis=1), node("Transpose", ["keys"], ["t"], perm=[0, 2, 1]),
        node("MatMul", ["x", "t"], ["y"]),
    ]  # fmt: skip
    inputs = {"x": (FLOAT, ["batch", "new", 4]), "past": (FLOAT, ["batch", "seen", 4])}
    runner = OnnxRunner(model(nodes, inputs, ["y", "keys"]))
    calls = [(2, 5, 0), (3, 4, 0), (2, 1, 5), (2, 1, 6), (3, 1, 4), (1, 2, 8), (3, 2, 0), (3, 1, 2)]
    for number, (batch, new, seen) in enumerate(calls):
        x, past = normal(batch, new, 4), normal(batch, seen, 4)
        found, keys = runner(x=x, past=past), np.concatenate([past, x], 1)
        np.testing.assert_array_equal(found["keys"].numpy(), keys)
        np.testing.assert_allclose(found["y"].numpy(), x @ keys.transpose(0, 2, 1), rtol=1e-4, atol=1e-5)
        assert number < 3 or seen == 0 or work.look() == (0, 0, 0)
        work.look()
    assert len(runner._sizes._plans) == 1 and not runner._sizes.refused


def test_axes_of_size_one_go_where_that_is_certain(work: Work) -> None:
    """A squeeze without axes takes away an axis that happens to have size 1."""
    nodes = [node("Exp", ["x"], ["e"]), node("Squeeze", ["e"], ["y"])]
    runner = OnnxRunner(model(nodes, {"x": (FLOAT, ["n", 1, 3])}, ["y"]))
    for number, count in enumerate((4, 5, 1, 2, 6, 1, 7)):
        x = normal(count, 1, 3)
        found = runner(x=x)["y"]
        np.testing.assert_allclose(found.numpy(), np.exp(x).squeeze(), rtol=1e-5)
        assert number in (0, 1, 2) or work.look()[1:] == (0, 0)
        work.look()


def test_running_sums_without_the_element_itself() -> None:
    nodes = [node("Abs", ["x"], ["a"]), node("CumSum", ["a", "axis"], ["y"], exclusive=1)]
    runner = OnnxRunner(model(nodes, {"x": (FLOAT, ["n", 3])}, ["y"], {"axis": np.int64(0)}))
    for count in (7, 12, 1, 5, 0, 9):
        x = normal(count, 3)
        wanted = np.cumsum(np.vstack([np.zeros((1, 3), np.float32), np.abs(x)]), 0)[:-1]
        np.testing.assert_allclose(runner(x=x)["y"].numpy(), wanted, rtol=1e-5, atol=1e-6)
    assert len(runner._sizes._plans) == 1 and not runner._sizes.refused


def test_arithmetic_of_sizes_beside_numbers() -> None:
    """Halves of a shape of which one part is a number, how many elements there are, and rests of negative numbers."""
    nodes = [
        node("Shape", ["x"], ["s"]), node("Div", ["s", "two"], ["half"]), node("Expand", ["w", "half"], ["e"]),
        node("Neg", ["e"], ["wide"]),
        node("Size", ["x"], ["all"]), node("Cast", ["all"], ["count"], to=FLOAT), node("Add", ["x", "count"], ["more"]),
        node("Sub", ["s", "ten"], ["less"]), node("Mod", ["less", "two"], ["rest"], fmod=1),
        node("Cast", ["rest"], ["rests"], to=FLOAT), node("Sub", ["rests", "w"], ["left"]),
    ]  # fmt: skip
    weights = {"two": np.array([2, 2]), "w": np.float32([[1.5]]), "ten": np.array([11, 11])}
    runner = OnnxRunner(model(nodes, {"x": (FLOAT, ["n", 6])}, ["wide", "more", "left"], weights))
    for count in (8, 4, 16, 2, 6):
        x = normal(count, 6)
        found, less = runner(x=x), np.array([count - 11, 6 - 11])
        np.testing.assert_array_equal(found["wide"].numpy(), np.full((count // 2, 3), -1.5, np.float32))
        np.testing.assert_array_equal(found["more"].numpy(), x + np.float32(6 * count))
        np.testing.assert_array_equal(found["left"].numpy(), np.fmod(less, 2)[None] - np.float32(1.5))
    assert [str(dim) for layout in runner._sizes._plans for dim in layout.dims] == ["n 2..16 in steps of 2"]


def test_resized_to_a_multiple_of_a_size() -> None:
    nodes = [
        node("Shape", ["x"], ["s"]), node("Slice", ["s", "two", "four"], ["hw"]), node("Mul", ["hw", "two"], ["wide"]),
        node("Slice", ["s", "zero", "two"], ["bc"]), node("Concat", ["bc", "wide"], ["sizes"], axis=0),
        node("Resize", ["x", "", "", "sizes"], ["r"], mode="nearest", nearest_mode="floor",
             coordinate_transformation_mode="asymmetric"),
        node("Neg", ["r"], ["y"]),
    ]  # fmt: skip
    weights = {"zero": np.array([0]), "two": np.array([2]), "four": np.array([4])}
    runner = OnnxRunner(model(nodes, {"x": (FLOAT, [1, 2, "h", "w"])}, ["y"], weights))
    for h, w in ((3, 5), (5, 3), (2, 8), (7, 1), (1, 1)):
        x = normal(1, 2, h, w)
        np.testing.assert_array_equal(runner(x=x)["y"].numpy(), -x.repeat(2, 2).repeat(2, 3))
    assert len(runner._sizes._plans) == 1 and not runner._sizes.refused


def test_a_result_that_is_an_input() -> None:
    nodes = [node("Identity", ["x"], ["y"]), node("Neg", ["x"], ["z"])]
    runner = OnnxRunner(model(nodes, {"x": (FLOAT, ["n"])}, ["y", "z"]))
    kept = []
    for count in (3, 4, 5, 3, 4):
        x = normal(count, seed=len(kept))
        kept.append((runner(x=x), x.copy()))
        x[:] = 0
    for found, x in kept:
        np.testing.assert_array_equal(found["y"].numpy(), x)
        np.testing.assert_array_equal(found["z"].numpy(), -x)


def test_threads_share_a_capture() -> None:
    runner = layer(dims={"batch": (1, 32)})
    problems = []

    def calls(seed: int) -> None:
        try:
            for count in (3, 17, 8, 31, 1, 32):
                check_layer(runner, count, seed)
        except AssertionError as error:
            problems.append(error)

    threads = [threading.Thread(target=calls, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not problems


# images
def network() -> bytes:
    """Strided and grouped convolutions, pooling, enlarging, joining, a transposed convolution, as detectors have."""
    weights = {
        "a": normal(8, 3, 3, 3), "b": normal(8, 1, 3, 3), "c": normal(4, 8, 1, 1), "d": normal(12, 2, 2, 2),
        "bias": normal(4), "scales": np.array([1, 1, 2, 2], np.float32),
    }  # fmt: skip
    nodes = [
        node("Conv", ["x", "a"], ["h"], pads=[1, 1, 1, 1], strides=[2, 2]), node("Relu", ["h"], ["r"]),
        node("Conv", ["r", "b"], ["g"], pads=[1, 1, 1, 1], group=8),
        node("MaxPool", ["g"], ["m"], kernel_shape=[2, 2], strides=[2, 2]),
        node("Conv", ["m", "c", "bias"], ["n"]),
        node("GlobalAveragePool", ["n"], ["mean"]), node("Mul", ["n", "mean"], ["scaled"]),
        node("Resize", ["scaled", "", "scales"], ["wide"], mode="nearest", nearest_mode="floor",
             coordinate_transformation_mode="asymmetric"),
        node("Concat", ["wide", "g"], ["joined"], axis=1),
        node("ConvTranspose", ["joined", "d"], ["y"], strides=[2, 2]),
    ]  # fmt: skip
    return model(nodes, {"x": (FLOAT, ["b", 3, "h", "w"])}, ["y", "mean"], weights)


@pytest.mark.parametrize("dims", [None, {"h": (4, 32, 4), "w": (4, 32, 4)}])
def test_height_and_width_of_images(dims: Any, work: Work) -> None:
    made = network()
    runner, plain = OnnxRunner(made, dims=dims), OnnxRunner(made, dims={})
    for number, (h, w) in enumerate([(16, 8), (32, 20), (4, 4), (8, 32), (20, 12), (32, 32), (4, 28)]):
        x = normal(2, 3, h, w)
        wanted = plain(x=x)
        work.look()
        found = runner(x=x)
        _, schedules, kernels = work.look()
        assert number < 2 or schedules == kernels == 0
        for name, value in wanted.items():
            assert found[name].shape == value.shape
            np.testing.assert_allclose(found[name].numpy(), value.numpy(), rtol=1e-4, atol=1e-4)
    (layout,) = runner._sizes._plans
    assert [(d.name, d.step) for d in layout.dims] == [("h", 4), ("w", 4)] and not runner._sizes.refused


def test_a_size_that_is_no_multiple_is_captured_for_itself(work: Work) -> None:
    weights = {"a": normal(4, 3, 3), "b": normal(4, 4, 3)}
    nodes = [node("Conv", ["x", "a"], ["h"], pads=[1, 1], strides=[2]), node("Conv", ["h", "b"], ["y"], strides=[2])]
    made = model(nodes, {"x": (FLOAT, ["b", 3, "n"])}, ["y"], weights)
    runner, plain = OnnxRunner(made), OnnxRunner(made, dims={})
    for n in (32, 16, 17, 24, 23, 8, 12, 17, 23, 28):
        x = normal(1, 3, n)
        np.testing.assert_allclose(runner(x=x)["y"].numpy(), plain(x=x)["y"].numpy(), rtol=1e-4, atol=1e-5)
    steps = {dim.step for layout in runner._sizes._plans for dim in layout.dims}
    assert steps == {4} and not runner._sizes.refused


def test_open_sizes_are_explained() -> None:
    x = normal(2, 3, 16, 16)
    found = OnnxRunner(network()).open_sizes({"x": x})
    assert found == {
        "b": "one capture, from 1 on",
        "h": "one capture, from 4 on in steps of 4",
        "w": "one capture, from 4 on in steps of 4",
    }
    nodes = [node("Transpose", ["x"], ["t"]), node("Reshape", ["t", "flat"], ["y"])]
    runner = OnnxRunner(model(nodes, {"x": (FLOAT, ["n", 3])}, ["y"], {"flat": np.array([-1])}))
    assert "a capture for each: " in runner.open_sizes({"x": normal(2, 3)})["n"]
    nodes = [node("Tanh", ["x"], ["a"]), node("NonZero", ["a"], ["i"]), node("Neg", ["i"], ["y"])]
    runner = OnnxRunner(model(nodes, {"x": (FLOAT, ["n"])}, {"y": INT64}))
    with pytest.raises(OnnxError, match="NonZero.* numbers that a device computes"):
        runner.open_sizes({"x": normal(4)})
    nodes = [node("StringConcat", ["x", "x"], ["y"])]
    made = onnx.load_from_string(model(nodes, {"x": (TensorProto.STRING, ["n"])}, {"y": TensorProto.STRING}))
    made.opset_import[0].version = 20
    runner = OnnxRunner(made.SerializeToString())
    assert runner.open_sizes({"x": np.array(["a", "b"], object)}) == {
        "n": "walked at every call: an input is text, a sequence or a map"
    }
