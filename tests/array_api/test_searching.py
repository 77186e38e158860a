"""Searching, indexing, sorting and set functions of the standard."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import gradlet.array_api as xp
from gradlet import Tensor, dtypes
from gradlet.base.errors import ArgumentError, DTypeError, ShapeError

NAN = float("nan")
DATA = np.random.default_rng(0).integers(-4, 5, (3, 4, 5)).astype(np.int32)
TYPES = ("int8", "float64")


def same(ours: Tensor, theirs: Any) -> None:
    theirs = np.asarray(theirs)
    assert ours.shape == theirs.shape
    np.testing.assert_array_equal(ours.numpy(), theirs)


@pytest.mark.parametrize("axis", [None, 0, 1, -1])
def test_positions_of_extremes(axis: int | None) -> None:
    for keep in (False, True):
        for name in ("argmax", "argmin"):
            ours = getattr(xp, name)(Tensor(DATA), axis=axis, keepdims=keep)
            assert ours.dtype is dtypes.int32
            same(ours, getattr(np, name)(DATA, axis=axis, keepdims=keep))
    assert xp.argmax(Tensor([1.0, NAN, 9.0, NAN])).item() == 1
    assert xp.argmin(Tensor([1.0, NAN, -9.0])).item() == 1
    assert xp.argmax(Tensor([2, 7, 7])).item() == 1


def test_nonzero() -> None:
    for data in (DATA, DATA[0] > 0, np.zeros((0, 3)), np.array([0.0, NAN, -0.0])):
        ours, theirs = xp.nonzero(Tensor(data)), np.nonzero(data)
        assert isinstance(ours, tuple)
        for o, t in zip(ours, theirs, strict=True):
            assert o.dtype is dtypes.int32
            same(o, t)
    with pytest.raises(ShapeError, match="nonzero: an array without axes"):
        xp.nonzero(Tensor(1))


@pytest.mark.parametrize("side", ["left", "right"])
def test_searchsorted(side: Any) -> None:
    ordered = np.array([-3, 0, 0, 2, 7], np.float32)
    values = np.array([[-9, -3, 0], [1, 7, 8]], np.float32)
    ours = xp.searchsorted(Tensor(ordered), Tensor(values), side=side)
    assert ours.dtype is dtypes.int32
    same(ours, np.searchsorted(ordered, values, side))
    order = np.array([3, 1, 4, 0, 2])
    mixed = ordered[np.argsort(order)]
    ours = xp.searchsorted(Tensor(mixed), Tensor(values), side=side, sorter=Tensor(order))
    same(ours, np.searchsorted(mixed, values, side, order))
    with pytest.raises(ArgumentError, match="side 'middle'"):
        xp.searchsorted(Tensor(ordered), Tensor(values), side="middle")


def test_where() -> None:
    condition = DATA > 0
    same(xp.where(Tensor(condition), Tensor(DATA), Tensor(DATA[0])), np.where(condition, DATA, DATA[0]))
    same(xp.where(Tensor(condition), Tensor(DATA), 7), np.where(condition, DATA, 7))
    assert xp.where(Tensor(True), 1.0, Tensor([2.0], dtype="float64")).dtype is dtypes.float64
    assert xp.where(Tensor([True]), 1, 2).tolist() == [1]
    with pytest.raises(DTypeError, match="where: "):
        xp.where(Tensor([True]), "a", 1)


@pytest.mark.parametrize("axis", [0, 1, -1])
def test_take(axis: int) -> None:
    for index in (np.array([2, 0, 0]), np.array([-1]), np.array([], np.int64), np.array([[0, 1], [1, 0]])):
        same(xp.take(Tensor(DATA), Tensor(index), axis=axis), np.take(DATA, index, axis))
    same(xp.take(Tensor([5, 6, 7]), Tensor([2, 1])), [7, 6])
    with pytest.raises(ArgumentError, match="take: axis is needed for an array of 3 axes"):
        xp.take(Tensor(DATA), Tensor([0]))


@pytest.mark.parametrize("axis", [0, 1, -1])
def test_take_along_axis(axis: int) -> None:
    order = np.argsort(DATA, axis)
    same(xp.take_along_axis(Tensor(DATA), Tensor(order), axis=axis), np.take_along_axis(DATA, order, axis))
    few = np.take(order, [0, -1], axis) - DATA.shape[axis]
    same(xp.take_along_axis(Tensor(DATA), Tensor(few), axis=axis), np.take_along_axis(DATA, few, axis))
    with pytest.raises(ShapeError, match="same number of axes"):
        xp.take_along_axis(Tensor(DATA), Tensor([0]))


# sorting
@pytest.mark.parametrize("descending", [False, True])
@pytest.mark.parametrize("axis", [0, 1, -1])
def test_sorting(axis: int, descending: bool) -> None:
    for dtype in TYPES:
        data = DATA.astype(dtype)
        ours = xp.sort(Tensor(data), axis=axis, descending=descending)
        assert ours.dtype.name == dtype
        theirs = np.sort(data, axis)
        same(ours, np.flip(theirs, axis) if descending else theirs)


@pytest.mark.parametrize("axis", [0, 1, -1])
def test_the_order_of_equal_elements_stays(axis: int) -> None:
    ours = xp.argsort(Tensor(DATA), axis=axis)
    assert ours.dtype is dtypes.int32
    same(ours, np.argsort(DATA, axis, kind="stable"))
    same(xp.argsort(Tensor(DATA), axis=axis, descending=True), np.argsort(-DATA, axis, kind="stable"))


def test_sorting_little() -> None:
    assert xp.sort(Tensor([[]])).shape == (1, 0)
    assert xp.argsort(Tensor([[3.0], [1.0]])).tolist() == [[0], [0]]


# sets
def test_unique_all() -> None:
    found = xp.unique_all(Tensor(DATA))
    values, indices, inverse, counts = np.unique(DATA, True, True, True)
    same(found.values, values)
    same(found.indices, indices)
    same(found.inverse_indices, inverse.reshape(DATA.shape))
    same(found.counts, counts)
    assert [part.dtype for part in found] == [dtypes.int32] * 4


def test_unique_parts() -> None:
    x = Tensor([[3, 1], [3, 2]])
    assert xp.unique_values(x).tolist() == [1, 2, 3]
    assert xp.unique_counts(x).counts.tolist() == [1, 1, 2]
    assert xp.unique_counts(x).values.tolist() == [1, 2, 3]
    assert xp.unique_inverse(x).inverse_indices.tolist() == [[2, 0], [2, 1]]
    assert xp.unique_inverse(x).values.tolist() == [1, 2, 3]


def test_every_nan_is_a_value_and_zeros_are_one() -> None:
    found = xp.unique_all(Tensor([NAN, 1.0, 0.0, NAN, -0.0]))
    np.testing.assert_array_equal(found.values.numpy(), [0, 1, NAN, NAN])
    assert found.counts.tolist() == [2, 1, 1, 1]
    assert found.indices.tolist() == [2, 1, 0, 3]
    assert found.inverse_indices.tolist() == [2, 1, 0, 3, 0]


@pytest.mark.parametrize("shape", [(0,), (1,), (2, 0), ()])
def test_unique_of_little(shape: tuple[int, ...]) -> None:
    data = np.zeros(shape, np.int16)
    found = xp.unique_all(Tensor(data))
    count = min(data.size, 1)
    assert (found.values.shape, found.values.dtype) == ((count,), dtypes.int16)
    assert found.inverse_indices.shape == shape
    assert found.counts.tolist() == [1] * count


@settings(max_examples=5, deadline=None)
@given(st.lists(st.sampled_from([-1.5, 0.0, 2.0, 7.0, NAN]), max_size=4))
def test_unique_values_rebuild_what_they_came_from(numbers: list[float]) -> None:
    data = np.array(numbers, np.float32)
    found = xp.unique_all(Tensor(data))
    np.testing.assert_array_equal(found.values.numpy()[found.inverse_indices.numpy()], data)
    np.testing.assert_array_equal(found.values.numpy(), data[found.indices.numpy()])
    assert found.counts.numpy().sum() == len(numbers)
