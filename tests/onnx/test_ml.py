"""Support vector machines, maps and regions: no case of the package onnx has them."""

from __future__ import annotations

from itertools import combinations
from typing import Any

import numpy as np
import pytest

onnx = pytest.importorskip("onnx", reason="needs the extra [onnx]")
from onnx import TensorProto, helper
from onnx.reference import ReferenceEvaluator

from gradlet.base.errors import ArgumentError
from gradlet.onnx.registry import OnnxError
from gradlet.onnx.runner import OnnxRunner

ML = "ai.onnx.ml"
FLOAT, INT64, TEXT = TensorProto.FLOAT, TensorProto.INT64, TensorProto.STRING


def one_node(op: str, inputs: dict[str, Any], outputs: list[str], domain: str = ML, **attributes: Any) -> Any:
    """A model of one node; inputs by name, as types or shapes of float32."""
    node = helper.make_node(op, list(inputs), outputs, domain=domain, **attributes)
    typed = [
        helper.make_tensor_value_info(n, FLOAT, t) if isinstance(t, list) else helper.make_value_info(n, t)
        for n, t in inputs.items()
    ]
    graph = helper.make_graph([node], "g", typed, [helper.make_tensor_value_info(n, FLOAT, None) for n in outputs])
    opsets = [helper.make_opsetid("", 21), helper.make_opsetid(ML, 3)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=9)


def map_of(key: int, value: int) -> Any:
    return helper.make_map_type_proto(key, helper.make_tensor_type_proto(value, None))


def agree(model: Any, x: Any) -> None:
    """The runner and the reference evaluator give the same for the input x."""
    expected = ReferenceEvaluator(model).run(None, {"x": x})
    got = list(OnnxRunner(model, "CPU")({"x": x}).values())
    for g, e in zip(got, expected, strict=True):
        found = g if isinstance(g, np.ndarray) else g.numpy()
        assert found.shape == np.shape(e)
        if found.dtype == object:
            assert found.tolist() == list(e)
        else:
            np.testing.assert_allclose(found, e, rtol=2e-4, atol=2e-5)


def classifier(
    classes: int, features: int, kernel: str, seed: int, probable: bool = False, text: bool = False,
    transform: str = "NONE",
) -> Any:  # fmt: skip
    r = np.random.default_rng(seed)
    counts = r.integers(1, 4, classes).tolist()
    total, pairs = sum(counts), classes * (classes - 1) // 2
    weights = r.standard_normal((classes - 1) * total).astype(np.float32)
    named = {"classlabels_strings": [f"class {i}" for i in range(classes)]} if text else {
        "classlabels_ints": [7 * i - 3 for i in range(classes)]
    }  # fmt: skip
    if probable:
        other = np.random.default_rng(seed + 1)
        named |= {"prob_a": other.uniform(-2, -0.5, pairs).tolist(), "prob_b": other.uniform(-0.2, 0.2, pairs).tolist()}
    return one_node(
        "SVMClassifier", {"x": ["n", features]}, ["label", "scores"], coefficients=weights,
        kernel_type=kernel, kernel_params=[0.3, 0.5, 2.0], rho=r.standard_normal(pairs).tolist(),
        support_vectors=r.standard_normal(total * features).tolist(), vectors_per_class=counts,
        post_transform=transform, **named,
    )  # fmt: skip


CASES = [
    (2, "LINEAR", {}), (3, "RBF", {}), (5, "LINEAR", {}),
    (2, "POLY", {"probable": True}), (2, "SIGMOID", {"probable": True}), (3, "RBF", {"text": True}),
    *[(n, "RBF", {"transform": t}) for n, t in ((2, "LOGISTIC"), (2, "SOFTMAX"), (3, "SOFTMAX"), (3, "SOFTMAX_ZERO"))],
]  # fmt: skip


@pytest.mark.parametrize(("classes", "kernel", "more"), CASES)
def test_vector_machines_classify(classes: int, kernel: str, more: dict[str, Any]) -> None:
    x = np.random.default_rng(classes).standard_normal((9, 4)).astype(np.float32)
    agree(classifier(classes, 4, kernel, 3 * classes, **more), x)


def test_probabilities_of_several_classes_are_coupled() -> None:
    """They are near the distribution that agrees best with what pairs say, the solution of linear equations."""
    classes, seed = 4, 11
    x = np.random.default_rng(seed).standard_normal((6, 3)).astype(np.float32)
    model = classifier(classes, 3, "RBF", seed, probable=True)
    sides = OnnxRunner(classifier(classes, 3, "RBF", seed), "CPU")(x=x)["scores"].numpy()
    named = {a.name: a.floats for a in model.graph.node[0].attribute}
    found = OnnxRunner(model, "CPU")(x=x)["scores"].numpy()
    np.testing.assert_allclose(found.sum(1), 1, rtol=1e-5)
    for row, side in zip(found, sides, strict=True):
        share = np.zeros((classes, classes))
        for n, (i, j) in enumerate(combinations(range(classes), 2)):
            share[i, j] = 1 / (1 + np.exp(side[n] * named["prob_a"][n] + named["prob_b"][n]))
            share[j, i] = 1 - share[i, j]
        equations = np.ones((classes + 1, classes + 1))
        equations[classes, classes] = 0
        for i in range(classes):
            for j in range(classes):
                equations[i, j] = (share[:, i] ** 2).sum() if i == j else -share[j, i] * share[i, j]
        exact = np.linalg.solve(equations, np.eye(classes + 1)[classes])[:classes]
        np.testing.assert_allclose(row, exact, atol=0.01)


def test_vector_machines_of_no_rows_and_of_one_feature() -> None:
    model = classifier(3, 1, "RBF", 5)
    agree(model, np.array([[0.25]], np.float32))
    found = OnnxRunner(model, "CPU")(x=np.zeros((0, 1), np.float32))
    assert [v.shape for v in found.values()] == [(0,), (0, 3)]


@pytest.mark.parametrize("labels", [2, 3])
def test_linear_vector_machines_classify(labels: int) -> None:
    r = np.random.default_rng(labels)
    model = one_node(
        "SVMClassifier", {"x": ["n", 4]}, ["label", "scores"], coefficients=r.standard_normal(4 * labels).tolist(),
        classlabels_ints=list(range(labels)), rho=[0.25] * labels, kernel_type="LINEAR",
    )  # fmt: skip
    agree(model, r.standard_normal((6, 4)).astype(np.float32))


@pytest.mark.parametrize("kernel", ["LINEAR", "POLY", "RBF", "SIGMOID"])
@pytest.mark.parametrize("supports", [0, 5])
def test_vector_machines_regress(kernel: str, supports: int) -> None:
    r = np.random.default_rng(supports)
    vectors = {"support_vectors": r.standard_normal(supports * 3).tolist(), "n_supports": supports} if supports else {}
    for one_class in (0, 1):
        model = one_node(
            "SVMRegressor", {"x": ["n", 3]}, ["y"], coefficients=r.standard_normal(supports or 3).tolist(), rho=[0.1],
            kernel_type=kernel if supports else "LINEAR", kernel_params=[0.4, 0.2, 3.0], one_class=one_class,
            n_supports=supports, **({} if not supports else {"support_vectors": vectors["support_vectors"]}),
        )  # fmt: skip
        agree(model, r.standard_normal((7, 3)).astype(np.float32))


def test_wrong_vector_machines_are_refused() -> None:
    model = one_node("SVMRegressor", {"x": ["n", 3]}, ["y"], coefficients=[1.0], rho=[0.0], n_supports=2)
    with pytest.raises(OnnxError, match="no matrix of 2 rows"):
        OnnxRunner(model, "CPU")(x=np.zeros((1, 3), np.float32))


def test_scores_become_maps_and_maps_tensors() -> None:
    scores = np.random.default_rng(0).standard_normal((3, 2)).astype(np.float32)
    zipped = OnnxRunner(one_node("ZipMap", {"x": ["n", 2]}, ["z"], classlabels_strings=["no", "yes"]), "CPU")
    maps = zipped(x=scores)["z"]
    assert maps == [{"no": float(a), "yes": float(b)} for a, b in scores]
    assert OnnxRunner(one_node("ZipMap", {"x": [1]}, ["z"], classlabels_int64s=[4]))(x=scores[0, :1])["z"] == [
        {4: float(scores[0, 0])}
    ]
    wide = OnnxRunner(one_node("ZipMap", {"x": ["n", "m"]}, ["z"], classlabels_strings=["no", "yes"]), "CPU")
    with pytest.raises(OnnxError, match="for 2 labels"):
        wide(x=np.zeros((1, 3), np.float32))
    assert zipped(x=np.zeros((0, 2), np.float32))["z"] == []


def test_maps_become_rows_of_a_vocabulary() -> None:
    model = one_node("DictVectorizer", {"x": map_of(TEXT, INT64)}, ["y"], string_vocabulary=["a", "c", "b", "z"])
    runner = OnnxRunner(model, "CPU")
    found = runner(x={"a": 4, "c": 8})["y"]
    assert found.tolist() == [4, 8, 0, 0] and found.dtype.name == "int64"
    np.testing.assert_array_equal(found.numpy(), ReferenceEvaluator(model).run(None, {"x": {"a": 4, "c": 8}})[0])
    assert runner(x={})["y"].tolist() == [0, 0, 0, 0]
    with pytest.raises(OnnxError, match="no 'q'"):
        runner(x={"q": 1})
    for wrong in ({"a": "b"}, {1: 1}, [1]):
        with pytest.raises(ArgumentError, match="map of string to int64"):
            runner(x=wrong)
    several = helper.make_sequence_type_proto(map_of(INT64, FLOAT))
    rows = OnnxRunner(one_node("DictVectorizer", {"x": several}, ["y"], int64_vocabulary=[10, 20]), "CPU")
    assert rows(x=[{20: 0.5}, {10: 1, 20: np.float32(2)}])["y"].tolist() == [[0, 0.5], [1, 2]]


def test_maps_are_packed() -> None:
    def packed(entries: Any, key: int = FLOAT, **attributes: Any) -> Any:
        found = OnnxRunner(one_node("CastMap", {"x": map_of(INT64, key)}, ["y"], **attributes), "CPU")(x=entries)["y"]
        return found.tolist()

    assert packed({9: 1.5, 2: -1.0}) == [[-1.0, 1.5]]
    assert packed({3: 1.5, 0: 7.0}, map_form="SPARSE", max_map=5) == [[7.0, 0, 0, 1.5, 0]]
    assert packed({1: "12", 0: "-3"}, TEXT, cast_to="TO_INT64") == [[-3, 12]]
    assert packed({1: "x", 0: "y"}, TEXT, cast_to="TO_STRING") == [["y", "x"]]
    with pytest.raises(OnnxError, match="max_map - 1 = 2"):
        packed({3: 1.0}, map_form="SPARSE", max_map=3)
    with pytest.raises(OnnxError, match="'x' is no float32"):
        packed({3: "x"}, TEXT)


def test_regions_are_pooled_by_their_largest_pixels() -> None:
    r = np.random.default_rng(2)
    x = r.standard_normal((2, 3, 9, 13)).astype(np.float32)
    rois = np.array(
        [[0, 0, 0, 25, 17], [1, 3, 3, 9, 12], [1, 5, 5, 5, 5], [0, -6, -4, 4, 40], [0, 90, 2, 99, 8], [1, 1, 1, 4, 3]],
        np.float32,
    )
    inputs = {"x": [2, 3, 9, 13], "rois": ["n", 5]}
    rows, columns, scale = 3, 4, 0.5
    model = one_node("MaxRoiPool", inputs, ["y"], "", pooled_shape=[rows, columns], spatial_scale=scale)
    expected = np.zeros((len(rois), 3, rows, columns), np.float32)
    for n, (image, *corners) in enumerate(rois):
        left, top, right, bottom = (int(np.floor(abs(c * scale) + 0.5) * np.sign(c)) for c in corners)
        high, wide = max(bottom - top + 1, 1) / rows, max(right - left + 1, 1) / columns
        for i in range(rows):
            for j in range(columns):
                ys = [y for y in range(int(np.floor(i * high)) + top, int(np.ceil((i + 1) * high)) + top) if 0 <= y < 9]
                xs = [v for v in range(int(np.floor(j * wide)) + left, int(np.ceil((j + 1) * wide)) + left)
                      if 0 <= v < 13]  # fmt: skip
                if ys and xs:
                    expected[n, :, i, j] = x[int(image)][:, ys][:, :, xs].max((1, 2))
    runner = OnnxRunner(model, "CPU")
    np.testing.assert_array_equal(runner(x=x, rois=rois)["y"].numpy(), expected)
    with pytest.raises(OnnxError, match="there are 2"):
        runner(x=x, rois=np.array([[2, 0, 0, 1, 1]], np.float32))
