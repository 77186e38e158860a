"""Support vector machines of the domain ai.onnx.ml.

Sources: the pages of these operators in the ONNX specification, "Operators" of that domain; Chang and Lin, "LIBSVM: A
library for support vector machines"; Wu, Lin and Weng, "Probability estimates for multi-class classification by
pairwise coupling" (2004), of which the second algorithm.
"""

from __future__ import annotations

from itertools import combinations
from typing import Any

import numpy as np

from gradlet.base.dtype import dtypes
from gradlet.onnx.operators.ml import ML, transformed
from gradlet.onnx.registry import operator
from gradlet.onnx.runner import Call
from gradlet.onnx.values import Array
from gradlet.tensor.tensor import Tensor

# Rounds of pairwise coupling, and how near to its end it stops, for each class.
ROUNDS, NEAR = 100, 0.005
# No pair is certain.
CERTAIN = 1e-7


@operator("SVMRegressor", ML)
def svm_regressor(
    call: Call, x: Tensor, *, coefficients: list[float], kernel_params: list[float] | None = None,
    kernel_type: str = "LINEAR", n_supports: int = 0, one_class: int = 0, post_transform: str = "NONE",
    rho: list[float], support_vectors: list[float] | None = None,
) -> Tensor:  # fmt: skip
    """Distances from the support vectors, weighed; of one class whether that is positive, as 1 or -1."""
    rows = _rows(x)
    if n_supports:
        vectors = _matrix(call, support_vectors, n_supports)
        rows = _kernel(call, rows, vectors, kernel_type, kernel_params)
    found = rows.matmul(_matrix(call, coefficients, 1).transpose()) + rho[0]
    if one_class:
        found = (found > 0).where(1.0, -1.0).cast(dtypes.float32)
    return transformed(call, found, post_transform)


@operator("SVMClassifier", ML)
def svm_classifier(
    call: Call, x: Tensor, *, classlabels_ints: list[int] | None = None, classlabels_strings: list[str] | None = None,
    coefficients: list[float], kernel_params: list[float] | None = None, kernel_type: str = "LINEAR",
    post_transform: str = "NONE", prob_a: list[float] | None = None, prob_b: list[float] | None = None,
    rho: list[float], support_vectors: list[float] | None = None, vectors_per_class: list[int] | None = None,
) -> tuple[Array, Any]:  # fmt: skip
    """The label that wins most of the classes' duels, or with the largest score, and scores or probabilities."""
    names: list[Any] = list(classlabels_strings or classlabels_ints or ())
    labels = np.array(names, object if classlabels_strings else np.int64)
    rows = _rows(x)
    votes = None
    if sum(vectors_per_class or ()):
        assert vectors_per_class is not None
        vectors = _matrix(call, support_vectors, sum(vectors_per_class))
        near = _kernel(call, rows, vectors, kernel_type, kernel_params).numpy()
        scores = _duels(near, np.array(coefficients, np.float32), vectors_per_class, np.array(rho, np.float32))
        votes = _votes(scores, len(vectors_per_class))
    else:
        weights = _matrix(call, coefficients, max(1, len(labels)))
        scores = (rows.matmul(weights.transpose()) + rho[0]).numpy()
    if prob_a and prob_b and votes is not None:
        scores = _coupled(scores, len(vectors_per_class or ()), np.array(prob_a), np.array(prob_b))
    chosen = labels[(scores if votes is None else votes).argmax(1)]
    two = scores.shape[1] == 1 and len(labels) == 2
    return chosen, _scores(call, scores, post_transform, two)


def _rows(x: Tensor) -> Tensor:
    wide = x.cast(dtypes.float32)
    return wide.reshape(1, -1) if x.ndim == 1 else wide


def _matrix(call: Call, numbers: list[float] | None, rows: int) -> Tensor:
    if not numbers or len(numbers) % rows:
        raise call.error(f"{len(numbers or ())} coefficients or support vectors' elements are no matrix of {rows} rows")
    return call.constant(np.array(numbers, np.float32).reshape(rows, -1))


def _kernel(call: Call, x: Tensor, vectors: Tensor, kind: str, numbers: list[float] | None) -> Tensor:
    """How near every row is to every vector."""
    gamma, start, degree = (*(numbers or ()), 0.0, 0.0, 0.0)[:3]
    if kind == "RBF":
        far = (x.unsqueeze(1) - vectors.unsqueeze(0)).square().sum(2)
        return (far * -gamma).exp()
    product = x.matmul(vectors.transpose())
    if kind == "LINEAR":
        return product
    if kind == "POLY":
        return (product * gamma + start) ** int(degree)
    if kind == "SIGMOID":
        return (product * gamma + start).tanh()
    raise call.error(f"kernel_type {kind!r} is not known; it is LINEAR, POLY, RBF or SIGMOID")


def _duels(near: Array, coefficients: Array, counts: list[int], rho: Array) -> Array:
    """For every pair of classes the side a row is on: positive for the first one.

    A vector has a weight against each class that is not its own, in the classes' order.
    """
    weights = coefficients.reshape(len(counts) - 1, -1)
    ends = np.cumsum([0, *counts])
    found = np.empty((len(near), len(counts) * (len(counts) - 1) // 2), np.float32)
    for number, (i, j) in enumerate(combinations(range(len(counts)), 2)):
        first, second = slice(ends[i], ends[i + 1]), slice(ends[j], ends[j + 1])
        sides = near[:, first] @ weights[j - 1, first] + near[:, second] @ weights[i, second]
        found[:, number] = sides + rho[number]
    return found


def _votes(scores: Array, classes: int) -> Array:
    votes = np.zeros((len(scores), classes), np.int64)
    for number, (i, j) in enumerate(combinations(range(classes), 2)):
        first = scores[:, number] > 0
        votes[:, i] += first
        votes[:, j] += ~first
    return votes


def _coupled(scores: Array, classes: int, a: Array, b: Array) -> Array:
    """Probabilities of the classes, of all pairs' probabilities, which are logistic in the scores."""
    share = np.zeros((len(scores), classes, classes))
    for number, (i, j) in enumerate(combinations(range(classes), 2)):
        with np.errstate(over="ignore"):
            one = 1 / (1 + np.exp(scores[:, number].astype(np.float64) * a[number] + b[number]))
        share[:, i, j] = np.clip(one, CERTAIN, 1 - CERTAIN)
        share[:, j, i] = 1 - share[:, i, j]
    return np.stack([_coupling(one) for one in share]) if len(share) else np.zeros((0, classes))


def _coupling(share: Array) -> Array:
    """The distribution p that makes all p[i] / (p[i] + p[j]) near to share[i, j]: coordinate by coordinate."""
    classes = len(share)
    q = -share.T * share
    np.fill_diagonal(q, (share**2).sum(0))
    p = np.full(classes, 1 / classes)
    for _ in range(max(ROUNDS, classes)):
        slope = q @ p
        if np.abs(slope - p @ slope).max() < NEAR / classes:
            break
        for t in range(classes):
            p[t] = (p @ q @ p - (q @ p)[t] + q[t, t] * p[t]) / q[t, t]
            p /= p.sum()
    return p


def _scores(call: Call, scores: Array, post_transform: str, two: bool) -> Tensor:
    """Scores as the model gives them; `two`: one score is that of the first of two labels."""
    made = call.constant(scores.astype(np.float32))
    if two and post_transform != "PROBIT":
        made = made.neg().cat(made, dim=1)
    return transformed(call, made, post_transform)
