"""Manipulation functions of the standard."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import gradlet.array_api as xp
from gradlet import Tensor
from gradlet.base.errors import ArgumentError, DTypeError, IndexingError, ShapeError

DATA = np.arange(24, dtype=np.int32).reshape(2, 3, 4)
X = Tensor(DATA)


def same(ours: Tensor, theirs: np.ndarray) -> None:
    assert ours.shape == theirs.shape
    np.testing.assert_array_equal(ours.numpy(), theirs)


def test_broadcast_to() -> None:
    row = np.arange(3)
    same(xp.broadcast_to(Tensor(row), (2, 3)), np.broadcast_to(row, (2, 3)))
    same(xp.broadcast_to(Tensor(5), (2, 0)), np.broadcast_to(5, (2, 0)))
    with pytest.raises(ShapeError, match="broadcast_to"):
        xp.broadcast_to(Tensor(row), (2, 4))


def test_broadcast_arrays() -> None:
    parts = [np.zeros((3, 1)), np.ones((1, 4)), np.ones(())]
    ours = xp.broadcast_arrays(*[Tensor(p) for p in parts])
    assert isinstance(ours, list)
    for o, t in zip(ours, np.broadcast_arrays(*parts), strict=True):
        same(o, t)
    with pytest.raises(ShapeError, match="do not broadcast"):
        xp.broadcast_arrays(Tensor([1, 2]), Tensor([1, 2, 3]))


@pytest.mark.parametrize("axis", [0, 1, -1, None])
def test_concat(axis: int | None) -> None:
    same(xp.concat([X, X, X], axis=axis), np.concatenate([DATA, DATA, DATA], axis=axis))
    assert xp.concat((Tensor([1], dtype="int8"), Tensor([1], dtype="uint8"))).dtype is xp.int16
    with pytest.raises(ArgumentError, match="at least one array"):
        xp.concat([])
    with pytest.raises(DTypeError, match="expected a .* of arrays, got .*Tensor"):
        xp.concat(X)


@pytest.mark.parametrize("axis", [0, 1, 3, -1, -4])
def test_expand_dims_and_stack(axis: int) -> None:
    same(xp.expand_dims(X, axis=axis), np.expand_dims(DATA, axis))
    same(xp.stack([X, X + 1], axis=axis), np.stack([DATA, DATA + 1], axis))


def test_axes_that_do_not_exist() -> None:
    for call in (
        lambda: xp.expand_dims(X, axis=5), lambda: xp.stack([X], axis=5), lambda: xp.flip(X, axis=3),
        lambda: xp.roll(X, 1, axis=3), lambda: xp.concat([X], axis=3), lambda: xp.unstack(X, axis=3),
        lambda: xp.moveaxis(X, 3, 0), lambda: xp.squeeze(X, 3),
    ):  # fmt: skip
        with pytest.raises(IndexingError, match="out of range"):
            call()


@pytest.mark.parametrize("axis", [None, 0, -1, (0, 2), ()])
def test_flip(axis: Any) -> None:
    same(xp.flip(X, axis=axis), np.flip(DATA, axis))
    same(xp.flip(Tensor(3)), np.array(3))


@pytest.mark.parametrize(("source", "destination"), [(0, 2), (-1, 0), ((0, 1), (1, 2)), ((0, 1, 2), (2, 1, 0))])
def test_moveaxis(source: Any, destination: Any) -> None:
    same(xp.moveaxis(X, source, destination), np.moveaxis(DATA, source, destination))


@pytest.mark.parametrize("axes", [(0, 1, 2), (2, 0, 1), (1, 0, 2)])
def test_permute_dims(axes: tuple[int, ...]) -> None:
    same(xp.permute_dims(X, axes), np.transpose(DATA, axes))
    with pytest.raises((ShapeError, ArgumentError, IndexingError)):
        xp.permute_dims(X, (0, 1))


@pytest.mark.parametrize("axis", [None, 0, 1, -1])
def test_repeat(axis: int | None) -> None:
    same(xp.repeat(X, 2, axis=axis), np.repeat(DATA, 2, axis))
    same(xp.repeat(X, 0, axis=axis), np.repeat(DATA, 0, axis))
    same(xp.repeat(X, Tensor([3]), axis=axis), np.repeat(DATA, [3], axis))
    counts = [2, 0, 1]
    same(xp.repeat(X, Tensor(counts), axis=1), np.repeat(DATA, counts, 1))


def test_reshape() -> None:
    same(xp.reshape(X, (4, 6)), DATA.reshape(4, 6))
    same(xp.reshape(X, (-1, 2)), DATA.reshape(-1, 2))
    same(xp.reshape(Tensor(1), (1, 1)), np.ones((1, 1)))
    same(xp.reshape(Tensor([1]), ()), np.array(1))
    x = Tensor([1, 2, 3, 4])
    copied, view = xp.reshape(x, (2, 2), copy=True), xp.reshape(x, (2, 2), copy=False)
    view[0, 0] = 9
    assert (x.tolist(), copied.tolist()) == ([9, 2, 3, 4], [[1, 2], [3, 4]])
    with pytest.raises(ShapeError, match="reshape: shape"):
        xp.reshape(X, (5, 5))


@pytest.mark.parametrize(
    ("shift", "axis"), [(1, None), (-5, None), (2, 0), (1, -1), ((1, 2), (0, 1)), (1, (0, 2)), ((3, 1), (1, 1))]
)
def test_roll(shift: Any, axis: Any) -> None:
    same(xp.roll(X, shift, axis=axis), np.roll(DATA, shift, axis))


def test_squeeze() -> None:
    data = np.zeros((1, 3, 1, 2))
    for axis in (0, 2, -2, (0, 2), ()):
        same(xp.squeeze(Tensor(data), axis), np.squeeze(data, axis))
    with pytest.raises(ShapeError, match=r"squeeze: axis 1 of shape \(1, 3, 1, 2\) has not size 1"):
        xp.squeeze(Tensor(data), 1)


@pytest.mark.parametrize("repetitions", [(), (2,), (2, 1, 3), (2, 1, 1, 2), (0, 1, 1)])
def test_tile(repetitions: tuple[int, ...]) -> None:
    same(xp.tile(X, repetitions), np.tile(DATA, repetitions))


@pytest.mark.parametrize("axis", [0, 1, -1])
def test_unstack(axis: int) -> None:
    parts = xp.unstack(X, axis=axis)
    assert isinstance(parts, tuple)
    assert len(parts) == DATA.shape[axis]
    for number, part in enumerate(parts):
        same(part, np.take(DATA, number, axis))


@settings(max_examples=20, deadline=None)
@given(data=st.data())
def test_chains_of_movements(data: st.DataObject) -> None:
    ours, theirs = X, DATA
    for _ in range(data.draw(st.integers(1, 4))):
        kind = data.draw(st.sampled_from(["flip", "permute", "roll", "moveaxis", "reshape"]))
        axis = data.draw(st.integers(-theirs.ndim, theirs.ndim - 1))
        if kind == "flip":
            ours, theirs = xp.flip(ours, axis=axis), np.flip(theirs, axis)
        elif kind == "permute":
            order = tuple(data.draw(st.permutations(range(theirs.ndim))))
            ours, theirs = xp.permute_dims(ours, order), np.transpose(theirs, order)
        elif kind == "roll":
            shift = data.draw(st.integers(-5, 5))
            ours, theirs = xp.roll(ours, shift, axis=axis), np.roll(theirs, shift, axis)
        elif kind == "moveaxis":
            ours, theirs = xp.moveaxis(ours, axis, 0), np.moveaxis(theirs, axis, 0)
        else:
            shape = data.draw(st.sampled_from([(24,), (2, 12), (4, 3, 2), (1, 24), (2, 2, 2, 3)]))
            ours, theirs = xp.reshape(ours, shape), np.reshape(theirs, shape)
    same(ours, theirs)
