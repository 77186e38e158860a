"""Mistakes in selecting by index, mask and coordinates."""

from __future__ import annotations

import numpy as np
import pytest

from gradlet import Tensor
from gradlet.base.errors import ArgumentError, DTypeError, IndexingError, ShapeError
from tests.errors.table import Row, check

X = Tensor([[1.0, 2.0], [3.0, 4.0]])
I32 = Tensor([1, 2, 3])
A = Tensor.zeros(2, 3)
V = Tensor.zeros(3)

MISTAKES: list[Row] = [
    (lambda: X[5], IndexingError, "index 5 is out of range for axis 0 of size 2"),
    (lambda: X[2**70], IndexingError, "out of range"),
    (lambda: X[0, 0, 0], IndexingError, "3 indices for a tensor of 2 axes"),
    (lambda: X["a"], IndexingError, "index 'a' on axis 0 is no index; use integers"),
    (lambda: X[{}], IndexingError, "is no index"),
    (lambda: X[::0], IndexingError, "the step is not 0"),
    (lambda: X[1.5:], IndexingError, "bounds are integers"),
    (lambda: X[[0, 5]], IndexingError, "index 5 is out of range for axis 0"),
    (lambda: X[np.array([0.5])], IndexingError, "use integers"),
    (lambda: X[Tensor([0.5])], IndexingError, "cast it to an integer"),
    (lambda: X[Tensor([True, False, True])], IndexingError, r"bool mask of shape \(3,\) does not fit .* \(2,\)"),
    (lambda: X[[True]], IndexingError, r"bool mask of shape \(1,\)"),
    (lambda: X[:, np.array([True, False, True])], IndexingError, r"bool mask of shape \(3,\)"),
    (lambda: X[..., np.array([True])], IndexingError, r"bool mask of shape \(1,\)"),
    (lambda: X[np.ones((2, 3), bool)], IndexingError, r"bool mask of shape \(2, 3\) does not fit .* \(2, 2\)"),
    (lambda: X[Tensor(True)], IndexingError, "a bool without axes is no index"),
    (lambda: X[X > 1], IndexingError, "known only when it is computed: use masked_select"),
    (lambda: X.gather(0, [[0]]), DTypeError, "gather: index must be a Tensor, got list"),
    (lambda: X.gather(0, Tensor([0])), ShapeError, "gather: .*as many axes"),
    (lambda: X.gather(0, Tensor([[0.5]])), IndexingError, "gather: index must hold integers"),
    (lambda: X.scatter(0, None, X), DTypeError, "scatter: index must be a Tensor, got NoneType"),
    (lambda: X.scatter(0, Tensor([[0]]), "a"), DTypeError, "an operand of type str"),
    (lambda: X.scatter(0, Tensor([[0]]), X, reduce="max"), ArgumentError, "scatter: reduce 'max'"),
    (lambda: X.index_select(7, Tensor([0])), IndexingError, "index_select: axis 7"),
    (lambda: I32.one_hot("a"), ArgumentError, "one_hot: num_classes must be an integer"),
    (lambda: I32.one_hot(2.5), ArgumentError, "one_hot: num_classes must be an integer"),
    (lambda: X.topk(1.5), ArgumentError, "topk: k must be an integer, got 1.5"),
    (lambda: X.topk(9), ArgumentError, "topk: k is 9, but axis 1 has 2 elements"),
    (lambda: X[[[True], [True, False]]], ShapeError, "nested lists are ragged"),
    (lambda: A[2], IndexingError, "index 2 is out of range for axis 0 of size 2"),
    (lambda: A[0, -4], IndexingError, "index -4 is out of range for axis 1 of size 3"),
    (lambda: A[..., ...], IndexingError, r"one '\.\.\.'"),
    (lambda: A["x"], IndexingError, "is no index"),
    (lambda: A[::0], IndexingError, "step"),
    (lambda: A[[0, 2]], IndexingError, "index 2 is out of range for axis 0"),
    (lambda: A[[0.5]], IndexingError, "use integers"),
    (lambda: A[V], IndexingError, "cast it to an integer"),
    (lambda: A[A > 0], IndexingError, "masked_select"),
    (lambda: A[[0, 1], [0, 1, 2]], ShapeError, "index: shapes"),
    (lambda: A.gather(0, A), IndexingError, "must hold integers"),
    (lambda: A.one_hot(3), ArgumentError, "integers"),
    (lambda: A.topk(7), ArgumentError, "k is 7"),
]


@pytest.mark.parametrize("row", MISTAKES, ids=range(len(MISTAKES)))
def test_mistake(row: Row) -> None:
    check(row)


def test_masks_that_fit() -> None:
    x = np.arange(24).reshape(2, 3, 4)
    first, middle, last = np.array([True, False]), np.array([True, False, True]), np.array([True, True, False, False])
    pair = np.array([[True, False, True], [False, False, True]])
    t = Tensor(x)
    assert t[first].tolist() == x[first].tolist()
    assert t[:, middle].tolist() == x[:, middle].tolist()
    assert t[..., last].tolist() == x[..., last].tolist()
    assert t[None, :, middle].tolist() == x[None, :, middle].tolist()
    assert t[pair].tolist() == x[pair].tolist()
    assert t[pair, 1].tolist() == x[pair, 1].tolist()
    assert t[Tensor([False, False])].shape == (0, 3, 4)
    assert t[[True, 0]].tolist() == x[[1, 0]].tolist()  # a list with a number in it holds numbers
    assert Tensor([1, 2]).masked_select([True, False]).tolist() == [1]


def test_writing_with_a_mask_that_does_not_fit() -> None:
    x = Tensor([1.0, 2.0])
    with pytest.raises(IndexingError, match="bool mask"):
        x[Tensor([True, False, True])] = 0
    assert x.tolist() == [1.0, 2.0]
