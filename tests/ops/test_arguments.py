"""Shapes, axes and broadcasting as methods read them."""

from __future__ import annotations

import pytest

from gradlet.base.errors import ArgumentError, IndexingError, ShapeError
from gradlet.ops.arguments import axis_number, axis_numbers, broadcast_shapes, integers, per_axis, resolve_shape, sizes


def test_integers_from_either_spelling() -> None:
    assert integers((2, 3), "f") == integers(((2, 3),), "f") == integers(([2, 3],), "f") == (2, 3)
    with pytest.raises(ShapeError, match="f: expected integers"):
        integers((1.5,), "f")
    with pytest.raises(ShapeError, match="negative"):
        sizes((2, -1), "f")


def test_axes() -> None:
    assert axis_number(-1, 3, "f") == 2
    assert axis_number(0, 0, "f") == 0
    assert axis_numbers(None, 3, "f") == (0, 1, 2)
    assert axis_numbers((2, -3), 3, "f") == (0, 2)
    assert axis_numbers(0, 0, "f") == ()
    for axis in (3, -4):
        with pytest.raises(IndexingError, match="use -3 to 2"):
            axis_number(axis, 3, "f")
    with pytest.raises(ArgumentError, match="twice"):
        axis_numbers((1, -2), 3, "f")


def test_broadcasting() -> None:
    assert broadcast_shapes([(3, 1), (5,)], "f") == (3, 5)
    assert broadcast_shapes([(), (2, 0), (1, 1)], "f") == (2, 0)
    assert broadcast_shapes([], "f") == ()
    with pytest.raises(ShapeError, match="sizes 3 and 4 meet on axis -1"):
        broadcast_shapes([(2, 3), (4,)], "f")


def test_reshapes() -> None:
    assert resolve_shape((2, -1), (4, 3), "f") == (2, 6)
    assert resolve_shape((None, 3), (4, 3), "f") == (4, 3)
    assert resolve_shape((), (1, 1), "f") == ()
    assert resolve_shape((0, 7), (3, 0), "f") == (0, 7)
    for shape in ((5,), (-1, 5), (-1, -1), (-1, 0), (-2, -6)):
        with pytest.raises(ShapeError):
            resolve_shape(shape, (4, 3), "f")


def test_one_number_for_all_axes_or_one_each() -> None:
    assert per_axis(2, 3, "f") == (2, 2, 2)
    assert per_axis((1, 2), 2, "f") == (1, 2)
    with pytest.raises(ShapeError, match="2 integers"):
        per_axis((1,), 2, "f")
