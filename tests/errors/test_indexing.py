"""Mistakes in selecting by index, mask and coordinates."""

from __future__ import annotations

import numpy as np
import pytest

from gradlet import Tensor, jit
from gradlet.base.errors import ArgumentError, DTypeError, IndexingError, JitError, ShapeError
from tests.errors.table import Row, check

X = Tensor([[1.0, 2.0], [3.0, 4.0]])
I32 = Tensor([1, 2, 3])
A = Tensor.zeros(2, 3)
V = Tensor.zeros(3)
I64 = Tensor([0, 1, 1])

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
    (lambda: X[:, Tensor(True)], IndexingError, "a bool without axes is no index"),
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
    (lambda: A[[0, 1], [0, 1, 2]], ShapeError, "index: shapes"),
    (lambda: A.gather(0, A), IndexingError, "must hold integers"),
    (lambda: A.one_hot(3), ArgumentError, "integers"),
    (lambda: A.topk(7), ArgumentError, "k is 7"),
    (lambda: X.gather(0, Tensor(1)), ShapeError, r"gather: shape \(2, 2\) with a tensor without axes"),
    (lambda: X.scatter(0, Tensor(1), 2.0), ShapeError, r"scatter: shape \(2, 2\) with a tensor without axes"),
    (lambda: X.scatter_add(0, I64.reshape(1, 3), X), ShapeError, r"scatter_add: index of shape \(1, 3\) is larger"),
    (lambda: X.scatter_add(1, I64.reshape(1, 3), X), ShapeError, r"scatter_add: src of shape \(2, 2\) is smaller"),
    (lambda: X.scatter_reduce(0, I64.reshape(1, 3), X, "median"), ArgumentError, "reduce 'median' is not sum, prod"),
    (lambda: X.index_add(0, [0, 1], V), ShapeError, r"a source of shape \(3,\) does not fit; .* shape \(2, 2\)"),
    (lambda: X.index_add(0, [[0], [1]], X), ShapeError, r"index_add: index must be a vector, got shape \(2, 1\)"),
    (lambda: X.index_add(0, [0, 1], X, alpha="a"), ArgumentError, "index_add: alpha must be a number, got 'a'"),
    (lambda: X.index_add(0, [0, 2], X), IndexingError, "index 2 is out of range for axis 0 of size 2"),
    (lambda: X.index_add(0, [0], 3.0), DTypeError, "index_add: source must be a Tensor, got float"),
    (lambda: X.index_copy(2, [0], X), IndexingError, "index_copy: axis 2 is out of range"),
    (lambda: X.index_fill(0, [0], V), ShapeError, r"index_fill: value must be a number or have no axes, .*\(3,\)"),
    (lambda: X.index_reduce(0, [0], X, "sum"), ArgumentError, "'sum' is not one of prod, mean, amax, amin"),
    (lambda: X.index_put(I64, 0), IndexingError, "index_put: indices must be a tuple of tensors, got Tensor"),
    (lambda: X.index_put((0,), 0), IndexingError, "index_put: indices must be integer tensors, bool masks or None"),
    (lambda: X.index_put(([0, 1],), V), ShapeError, r"a value of shape \(3,\) does not fit into shape \(2, 2\)"),
    (lambda: X.put([0, 4], Tensor([1.0, 2.0])), IndexingError, "index 4 is out of range for axis 0 of size 4"),
    (
        lambda: X.put([0, 1], V),
        ShapeError,
        r"put: a source of shape \(3,\) does not have one element for each of \(2,\)",
    ),
    (lambda: X.take([4]), IndexingError, "index 4 is out of range for axis 0 of size 4"),
    (lambda: X.take(V), IndexingError, "cast it to an integer"),
    (lambda: X.take_along_dim(I64, 0), ShapeError, r"indices of shape \(3,\) must have as many axes as shape \(2, 2\)"),
    (lambda: X.take_along_dim(Tensor([[0, 0, 0]]), 0), ShapeError, "must broadcast on all axes but axis 0"),
    (lambda: X.take_along_dim([0], 0), DTypeError, "take_along_dim: indices must be a Tensor, got list"),
    (lambda: X.put_along_axis(I64, 0, 1), ShapeError, "put_along_axis: indices of shape .* must have as many axes"),
    (lambda: X.put_along_axis(Tensor([[0], [1]]), V, 1), ShapeError, "put_along_axis: a value of shape"),
    (lambda: X.masked_scatter(X, X), ArgumentError, "masked_scatter: the mask must be bool, got .*float32"),
    (lambda: X.masked_scatter(Tensor([True] * 3), X), ShapeError, r"masked_scatter: shapes \(2, 2\) and \(3,\)"),
    (lambda: X.select_scatter(V, 0, 1), ShapeError, r"select_scatter: src of shape \(3,\) does not fit .* \(2,\)"),
    (lambda: X.select_scatter(V, 0, 2), IndexingError, "index 2 is out of range for axis 0 of size 2"),
    (lambda: X.slice_scatter(V, 1, 0, 1), ShapeError, r"slice_scatter: src of shape \(3,\) .* \(2, 1\)"),
    (lambda: X.diagonal_scatter(V), ShapeError, r"diagonal_scatter: src of shape \(3,\) .* \(2,\)"),
    (lambda: X.as_strided((2, 3), (2, 1)), ShapeError, r"reaches element 4, but shape \(2, 2\) has 4"),
    (lambda: X.as_strided((2,), (1, 1)), ShapeError, r"strides \(1, 1\) for size \(2,\); give one for every axis"),
    (lambda: X.as_strided((2,), (-1,), 1), ShapeError, "none negative"),
    (lambda: X.as_strided((2,), (1,), -1), ArgumentError, "storage_offset must be at least 0, got -1"),
    (lambda: X.as_strided_scatter(V, (2,), (1,)), ShapeError, r"src of shape \(3,\) does not have size \(2,\)"),
    (lambda: X.narrow(0, 1, 2), IndexingError, "narrow: 2 elements from 1 on are not inside axis 0 of size 2"),
    (lambda: X.narrow(0, V, 1), IndexingError, "narrow: start must be an integer or an integer tensor without axes"),
    (lambda: Tensor(1.0).narrow(0, 0, 1), ShapeError, "narrow: a tensor without axes"),
    (lambda: X.select(0, -3), IndexingError, "index -3 is out of range for axis 0 of size 2"),
    (lambda: Tensor(1.0).select(0, 0), ShapeError, "select: a tensor without axes"),
    (lambda: Tensor(1.0).unbind(), ShapeError, "unbind: a tensor without axes"),
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


def test_a_mask_that_is_not_computed_yet_selects() -> None:
    assert X[X > 1].tolist() == [2.0, 3.0, 4.0]
    assert X[:, Tensor([1, 2]) > 1].tolist() == [[2.0], [4.0]]


def test_a_mask_inside_a_jitted_function() -> None:
    with pytest.raises(JitError, match=r"known only when it is computed, and a jitted .* use where\(mask, x, 0\)"):
        jit(lambda x: x[x > 1])(X.contiguous().realize())

    @jit
    def cut(x: Tensor) -> Tensor:
        x = x * 1
        x[x > 1] = 0.0  # what is written does not depend on how many elements there are
        return x.realize()

    for values in ([1.0, 2.0], [3.0, 0.5], [1.0, 1.0]):
        assert cut(Tensor(values).realize()).tolist() == [v if v <= 1 else 0.0 for v in values]


def test_writing_with_a_mask_that_does_not_fit() -> None:
    x = Tensor([1.0, 2.0])
    with pytest.raises(IndexingError, match="bool mask"):
        x[Tensor([True, False, True])] = 0
    assert x.tolist() == [1.0, 2.0]
