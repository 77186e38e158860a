"""Mistakes in losses."""

from __future__ import annotations

import pytest

from gradlet import Tensor
from gradlet.base.errors import ArgumentError, DTypeError, ShapeError
from tests.errors.table import Row, check

X, CLASSES = Tensor([[1.0, 2.0], [3.0, 4.0]]), Tensor([0, 1])
V = Tensor.zeros(3)
SCALAR = Tensor(1.0)
STEPS = Tensor.zeros(4, 2, 3)

MISTAKES: list[Row] = [
    # classes
    (lambda: SCALAR.cross_entropy(Tensor(0)), ShapeError, "cross_entropy: needs an axis of classes, got a tensor with"),
    (
        lambda: X.cross_entropy(X, ignore_index=0),
        ArgumentError,
        "cross_entropy: ignore_index needs class numbers, not probabilities",
    ),
    (
        lambda: X[0].linear_cross_entropy(Tensor.zeros(3, 2, 2), CLASSES),
        ShapeError,
        r"linear_cross_entropy: linear_weight of shape \(3, 2, 2\) needs an input \[N, features\], got shape \(2,\)",
    ),
    (
        lambda: X.linear_cross_entropy(X, CLASSES, V),
        ShapeError,
        r"linear_cross_entropy: linear_bias of shape \(3,\) must have shape \(2,\)",
    ),
    (lambda: X.nll_loss(Tensor([0])), ShapeError, r"nll_loss: Y of shape \(1,\) must have shape \(2,\)"),
    (
        lambda: STEPS.multi_margin_loss(CLASSES),
        ShapeError,
        r"multi_margin_loss: scores of shape \(4, 2, 3\) must be \[N, C\] or \[C\]",
    ),
    (
        lambda: X.multi_margin_loss(Tensor([0.0, 1.0])),
        DTypeError,
        "multi_margin_loss: class numbers must be integers, got dtypes.float32; cast them",
    ),
    (
        lambda: X.multilabel_margin_loss(X),
        DTypeError,
        "multilabel_margin_loss: class numbers must be integers, got dtypes.float32; cast them",
    ),
    # numbers
    (
        lambda: X.binary_cross_entropy_with_logits(V),
        ShapeError,
        r"_with_logits: target of shape \(3,\) must have the shape \(2, 2\) of the logits",
    ),
    (lambda: X.gaussian_nll_loss(X, X, eps=0), ArgumentError, "gaussian_nll_loss: eps must be positive, got 0"),
    (
        lambda: X.triplet_margin_loss(X, V),
        ShapeError,
        r"triplet_margin_loss: \(2, 2\), \(2, 2\) and \(3,\) must have the same number of axes",
    ),
    # alignments
    (
        lambda: STEPS.ctc_loss(Tensor([[1], [2]]), Tensor([4.0, 4.0]), [1, 1]),
        ShapeError,
        r"ctc_loss: input_lengths of shape \(2,\) and type dtypes.float32 must be 2 integers",
    ),
    (
        lambda: STEPS.ctc_loss(Tensor([[1]]), [4, 4], [1, 1]),
        ShapeError,
        r"ctc_loss: targets of shape \(1, 1\) must be \[2, S\], or a vector of them all",
    ),
]


@pytest.mark.parametrize("row", MISTAKES, ids=range(len(MISTAKES)))
def test_mistake(row: Row) -> None:
    check(row)
