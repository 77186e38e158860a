"""Classical machine learning: encoders, scalers, linear models and trees of the domain ai.onnx.ml.

Source: the pages of these operators in the ONNX specification, "Operators" of that domain. Encoders and trees run on
the host: they look up text and follow branches.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from gradlet.base.dtype import dtypes
from gradlet.onnx.registry import operator
from gradlet.onnx.runner import Call
from gradlet.onnx.values import Array, Value
from gradlet.tensor.tensor import Tensor

ML = "ai.onnx.ml"


@operator("Binarizer", ML)
def binarizer(x: Tensor, *, threshold: float = 0.0) -> Tensor:
    """1 above a threshold, else 0."""
    return (x > threshold).cast(x.dtype)


@operator("Scaler", ML)
def scaler(call: Call, x: Tensor, *, offset: list[float], scale: list[float]) -> Tensor:
    """`(x - offset) * scale` for each feature."""
    moved = x.cast(dtypes.float32) - call.constant(np.array(offset, np.float32))
    return moved * call.constant(np.array(scale, np.float32))


@operator("Normalizer", ML)
def normalizer(x: Tensor, *, norm: str = "MAX") -> Tensor:
    """Rows divided by their largest element, or their 1-norm or 2-norm."""
    wide = x.cast(dtypes.float32)
    at = x.ndim - 1
    size = {"MAX": wide.abs().max(at, True), "L1": wide.abs().sum(at, True), "L2": wide.square().sum(at, True).sqrt()}
    return (size[norm] == 0).where(wide, wide / size[norm])


@operator("Imputer", ML)
def imputer(
    call: Call, x: Tensor, *, imputed_value_floats: list[float] | None = None,
    imputed_value_int64s: list[int] | None = None, replaced_value_float: float = 0.0, replaced_value_int64: int = 0,
) -> Tensor:  # fmt: skip
    """One value replaced by others, one a feature."""
    if x.dtype.is_float:
        new = call.constant(np.array(imputed_value_floats, np.float32))
        gone = x.isnan() if np.isnan(replaced_value_float) else x == replaced_value_float
    else:
        new = call.constant(np.array(imputed_value_int64s, np.int64))
        gone = x == replaced_value_int64
    return gone.where(new.cast(x.dtype), x)


@operator("FeatureVectorizer", ML)
def feature_vectorizer(*data: Tensor, inputdimensions: list[int] | None = None) -> Tensor:
    """Features side by side."""
    parts = [d.cast(dtypes.float32).reshape(d.shape[0], -1) for d in data]
    return parts[0].cat(*parts[1:], dim=1)


@operator("LinearRegressor", ML)
def linear_regressor(
    call: Call, x: Tensor, *, coefficients: list[float], intercepts: list[float] | None = None,
    post_transform: str = "NONE", targets: int = 1,
) -> Tensor:  # fmt: skip
    """`x @ coefficients.T + intercepts`."""
    weight = call.constant(np.array(coefficients, np.float32).reshape(targets, -1))
    result = x.cast(dtypes.float32).matmul(weight.transpose())
    if intercepts:
        result = result + call.constant(np.array(intercepts, np.float32))
    return transformed(call, result, post_transform)


@operator("LinearClassifier", ML)
def linear_classifier(
    call: Call, x: Tensor, *, classlabels_ints: list[int] | None = None, classlabels_strings: list[str] | None = None,
    coefficients: list[float], intercepts: list[float] | None = None, multi_class: int = 0,
    post_transform: str = "NONE",
) -> tuple[Any, Any]:  # fmt: skip
    """The label of the largest score, and all scores."""
    labels: list[Any] = list(classlabels_strings or classlabels_ints or ())
    rows = len(coefficients) // x.shape[-1]
    weight = call.constant(np.array(coefficients, np.float32).reshape(rows, -1))
    scores = x.cast(dtypes.float32).matmul(weight.transpose())
    if intercepts:
        scores = scores + call.constant(np.array(intercepts, np.float32))
    if rows == 1 and len(labels) == 2:
        scores = (1 - scores if post_transform == "NONE" else scores.neg()).cat(scores, dim=1)
    place = scores.argmax(1)
    result = transformed(call, scores, post_transform)
    if classlabels_strings:
        return np.array(labels, object)[place.numpy()], result
    return call.constant(np.array(labels, np.int64)).index_select(0, place), result


def transformed(call: Call, x: Tensor, name: str) -> Tensor:
    """Scores as a model of this domain gives them: `post_transform` says how."""
    if name == "SOFTMAX":
        return x.softmax(-1)
    if name == "LOGISTIC":
        return x.sigmoid()
    if name == "SOFTMAX_ZERO":
        exact = (x == 0).where(0.0, (x - x.max(-1, True)).exp())
        return exact / exact.sum(-1, True)
    if name == "PROBIT":
        return x.ndtri()
    if name != "NONE":
        raise call.error(f"post_transform {name!r} is not known")
    return x


# encoders
@operator("LabelEncoder", ML)
def label_encoder(
    call: Call, x: Array, *, classes_strings: list[str] | None = None, default_float: float = -0.0,
    default_int64: int = -1, default_string: str = "_Unused", default_tensor: Value | None = None,
    keys_floats: list[float] | None = None, keys_int64s: list[int] | None = None,
    keys_strings: list[str] | None = None, keys_tensor: Value | None = None, values_floats: list[float] | None = None,
    values_int64s: list[int] | None = None, values_strings: list[str] | None = None,
    values_tensor: Value | None = None,
) -> Array:  # fmt: skip
    """Each element replaced by what a table has for it, or the default."""
    if classes_strings is not None:
        text = x.dtype.kind == "O"
        keys: Any = classes_strings if text else range(len(classes_strings))
        values: Any = range(len(classes_strings)) if text else classes_strings
        kind: Any = np.int64 if text else object
    else:
        keys = keys_tensor.array().tolist() if keys_tensor is not None else keys_strings or keys_int64s or keys_floats
        if values_tensor is not None:
            values, kind = values_tensor.array().tolist(), values_tensor.array().dtype
        elif values_strings is not None:
            values, kind = values_strings, object
        elif values_int64s is not None:
            values, kind = values_int64s, np.int64
        else:
            values, kind = values_floats, np.float32
    if keys is None or values is None:
        raise call.error("it has no keys or no values")
    kind = np.dtype(kind)
    default: Any = default_string if kind.kind == "O" else default_float if kind.kind == "f" else default_int64
    if default_tensor is not None:
        default = default_tensor.array().reshape(-1)[0]
    table = dict(zip(keys, values))
    missing = [v for k, v in table.items() if isinstance(k, float) and np.isnan(k)]
    made = np.empty(x.size, kind)
    for i, key in enumerate(x.reshape(-1).tolist()):
        if isinstance(key, float) and np.isnan(key) and missing:
            made[i] = missing[-1]
        else:
            made[i] = table.get(key, default)
    return made.reshape(x.shape)


@operator("CategoryMapper", ML)
def category_mapper(
    x: Array, *, cats_int64s: list[int], cats_strings: list[str], default_int64: int = -1,
    default_string: str = "_Unused",
) -> Array:  # fmt: skip
    """Texts as numbers, or numbers as texts."""
    if x.dtype.kind == "O":
        table = dict(zip(cats_strings, cats_int64s))
        return np.array([table.get(t, default_int64) for t in x.reshape(-1)], np.int64).reshape(x.shape)
    back = dict(zip(cats_int64s, cats_strings))
    return np.array([back.get(int(n), default_string) for n in x.reshape(-1)], object).reshape(x.shape)


@operator("OneHotEncoder", ML)
def one_hot_encoder(
    call: Call, x: Array, *, cats_int64s: list[int] | None = None, cats_strings: list[str] | None = None,
    zeros: int = 1,
) -> Array:  # fmt: skip
    """1 at the place of the category along a new axis."""
    kinds: list[Any] = list(cats_strings or cats_int64s or ())
    place = {kind: i for i, kind in enumerate(kinds)}
    made = np.zeros((x.size, len(kinds)), np.float32)
    for i, key in enumerate(x.reshape(-1).tolist()):
        at = place.get(int(key) if cats_int64s else key)
        if at is not None:
            made[i, at] = 1
        elif not zeros:
            raise call.error(f"{key!r} is not one of its categories")
    return made.reshape(*x.shape, len(kinds))


# trees
MODES = ("BRANCH_LEQ", "BRANCH_LT", "BRANCH_GTE", "BRANCH_GT", "BRANCH_EQ", "BRANCH_NEQ", "BRANCH_MEMBER")
COMPARE = (np.less_equal, np.less, np.greater_equal, np.greater, np.equal, np.not_equal)
TRANSFORMS = ("NONE", "SOFTMAX", "LOGISTIC", "SOFTMAX_ZERO", "PROBIT")


@operator("TreeEnsemble", ML, since=5)
def tree_ensemble(
    call: Call, x: Array, *, aggregate_function: int = 1, leaf_targetids: list[int], leaf_weights: Value,
    membership_values: Value | None = None, n_targets: int = 1, nodes_falseleafs: list[int],
    nodes_falsenodeids: list[int], nodes_featureids: list[int], nodes_hitrates: Value | None = None,
    nodes_missing_value_tracks_true: list[int] | None = None, nodes_modes: Value, nodes_splits: Value,
    nodes_trueleafs: list[int], nodes_truenodeids: list[int], post_transform: int = 0, tree_roots: list[int],
) -> Tensor:  # fmt: skip
    """Trees whose leaves add weights to targets."""
    modes = nodes_modes.array().reshape(-1)
    members = _memberships(membership_values, modes)
    missing = nodes_missing_value_tracks_true or [0] * len(modes)
    splits, weights = nodes_splits.array().reshape(-1), leaf_weights.array().reshape(-1)
    found: list[list[list[float]]] = [[[] for _ in range(n_targets)] for _ in range(x.shape[0])]
    for row in range(x.shape[0]):
        for root in tree_roots:
            node, leaf = root, False
            while not leaf:
                value = x[row, nodes_featureids[node]]
                if np.isnan(value):
                    true = bool(missing[node])
                elif modes[node] == 6:
                    true = float(value) in members[node]
                else:
                    true = bool(COMPARE[modes[node]](value, splits[node]))
                leaf = bool((nodes_trueleafs if true else nodes_falseleafs)[node])
                node = (nodes_truenodeids if true else nodes_falsenodeids)[node]
            found[row][leaf_targetids[node]].append(float(weights[node]))
    combine = (lambda v: sum(v) / max(1, len(tree_roots)), sum, min, max)[aggregate_function]
    made = np.array([[combine(v) if v else 0.0 for v in row] for row in found], x.dtype)
    return transformed(
        call, Tensor(made.reshape(x.shape[0], n_targets), call.run.runner.device), TRANSFORMS[post_transform]
    )


def _memberships(values: Value | None, modes: Array) -> dict[int, set[float]]:
    """For each node that asks for members the set it asks for; sets end with NaN."""
    sets: dict[int, set[float]] = {}
    if values is None:
        return sets
    rest = iter(values.array().reshape(-1).tolist())
    for node, mode in enumerate(modes):
        if mode == 6:
            members: set[float] = set()
            for v in rest:
                if np.isnan(v):
                    break
                members.add(v)
            sets[node] = members
    return sets


class _Trees:
    """Trees as versions 1 to 4 store them: nodes by tree and number, with what each leaf adds."""

    def __init__(self, attributes: dict[str, Any]) -> None:
        self.modes = attributes["nodes_modes"]
        self.features = attributes["nodes_featureids"]
        self.values = _floats(attributes, "nodes_values")
        self.missing = attributes.get("nodes_missing_value_tracks_true") or [0] * len(self.modes)
        trees, numbers = attributes["nodes_treeids"], attributes["nodes_nodeids"]
        place = {key: i for i, key in enumerate(zip(trees, numbers))}
        self.true = [place.get(k, -1) for k in zip(trees, attributes["nodes_truenodeids"])]
        self.false = [place.get(k, -1) for k in zip(trees, attributes["nodes_falsenodeids"])]
        self.place = place
        self.roots = list({t: place[t, n] for t, n in reversed(list(zip(trees, numbers)))}.values())

    def leaves(self, row: Array) -> list[int]:
        """The leaf of every tree that a row of features reaches."""
        found = []
        for node in self.roots:
            while self.modes[node] != "LEAF":
                value = row[self.features[node]]
                if np.isnan(value):
                    true = bool(self.missing[node])
                else:
                    true = bool(COMPARE[MODES.index(self.modes[node])](value, np.float32(self.values[node])))
                node = self.true[node] if true else self.false[node]
            found.append(node)
        return found


def _floats(attributes: dict[str, Any], name: str) -> Any:
    found = attributes.get(f"{name}_as_tensor")
    return attributes.get(name) if found is None else found.array().reshape(-1)


def _ensemble(x: Array, attributes: dict[str, Any], prefix: str, targets: int, combine: str) -> Array:
    trees = _Trees(attributes)
    adds: dict[int, list[tuple[int, float]]] = {}
    keys = zip(attributes[f"{prefix}_treeids"], attributes[f"{prefix}_nodeids"])
    for key, target, weight in zip(keys, attributes[f"{prefix}_ids"], _floats(attributes, f"{prefix}_weights")):
        adds.setdefault(trees.place[key], []).append((target, float(weight)))
    scores = np.zeros((x.shape[0], targets), np.float32)
    for r, row in enumerate(x):
        found: list[list[float]] = [[] for _ in range(targets)]
        for leaf in trees.leaves(row):
            for target, weight in adds.get(leaf, ()):
                found[target].append(weight)
        for t, values in enumerate(found):
            if values:
                total = min(values) if combine == "MIN" else max(values) if combine == "MAX" else sum(values)
                scores[r, t] = total / len(trees.roots) if combine == "AVERAGE" else total
    base = _floats(attributes, "base_values")
    return scores if base is None or not len(base) else scores + np.asarray(base, np.float32)


@operator("TreeEnsembleRegressor", ML)
def tree_ensemble_regressor(
    call: Call, x: Array, *, aggregate_function: str = "SUM", base_values: list[float] | None = None,
    base_values_as_tensor: Value | None = None, n_targets: int = 1, nodes_falsenodeids: list[int],
    nodes_featureids: list[int], nodes_hitrates: list[float] | None = None,
    nodes_hitrates_as_tensor: Value | None = None, nodes_missing_value_tracks_true: list[int] | None = None,
    nodes_modes: list[str], nodes_nodeids: list[int], nodes_treeids: list[int], nodes_truenodeids: list[int],
    nodes_values: list[float] | None = None, nodes_values_as_tensor: Value | None = None,
    post_transform: str = "NONE", target_ids: list[int],
    target_nodeids: list[int], target_treeids: list[int], target_weights: list[float] | None = None,
    target_weights_as_tensor: Value | None = None,
) -> Tensor:  # fmt: skip
    """Trees whose leaves add weights to targets, as versions 1 to 4 store them."""
    scores = _ensemble(x, call.node.attributes, "target", n_targets, aggregate_function)
    return transformed(call, Tensor(scores, call.run.runner.device), post_transform)


@operator("TreeEnsembleClassifier", ML)
def tree_ensemble_classifier(
    call: Call, x: Array, *, base_values: list[float] | None = None, base_values_as_tensor: Value | None = None,
    class_ids: list[int], class_nodeids: list[int], class_treeids: list[int], class_weights: list[float] | None = None,
    class_weights_as_tensor: Value | None = None, classlabels_int64s: list[int] | None = None,
    classlabels_strings: list[str] | None = None, nodes_falsenodeids: list[int], nodes_featureids: list[int],
    nodes_hitrates: list[float] | None = None, nodes_hitrates_as_tensor: Value | None = None,
    nodes_missing_value_tracks_true: list[int] | None = None, nodes_modes: list[str], nodes_nodeids: list[int],
    nodes_treeids: list[int], nodes_truenodeids: list[int], nodes_values: list[float] | None = None,
    nodes_values_as_tensor: Value | None = None, post_transform: str = "NONE",
) -> tuple[Any, Any]:  # fmt: skip
    """The label with the largest sum of weights, and all sums."""
    labels = np.array(classlabels_strings, object) if classlabels_strings else np.array(classlabels_int64s, np.int64)
    scores = _ensemble(x, call.node.attributes, "class", len(labels), "SUM")
    if len(labels) == 2 and set(class_ids) == {1}:
        scores[:, 0] = 1 - scores[:, 1] if post_transform == "NONE" else -scores[:, 1]
    chosen = labels[scores.argmax(1)]
    return chosen, transformed(call, Tensor(scores, call.run.runner.device), post_transform)
