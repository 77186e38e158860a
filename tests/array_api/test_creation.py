"""Creation functions of the standard."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import gradlet.array_api as xp
from gradlet import Tensor, dtypes
from gradlet.base.errors import ArgumentError, DTypeError, ShapeError

RANGES: list[tuple[Any, ...]] = [
    (5,), (0,), (2, 7), (7, 2), (2, 9, 3), (9, 2, -3), (2, 9, -1), (0.0, 1.0, 0.25), (-3,), (1, 1), (5, 0, -1),
]  # fmt: skip


@pytest.mark.parametrize("arguments", RANGES)
def test_arange(arguments: tuple[Any, ...]) -> None:
    result = xp.arange(*arguments)
    expected = np.arange(*arguments)
    assert result.dtype is (xp.int32 if expected.dtype.kind == "i" else xp.float32)
    np.testing.assert_array_equal(result.numpy(), expected.astype(result.dtype.name))
    assert xp.arange(*arguments, dtype=xp.float64).dtype is xp.float64


def test_asarray() -> None:
    assert xp.asarray(True).dtype is xp.bool
    assert xp.asarray([1, 2]).dtype is xp.int32
    assert xp.asarray([[1.0, 2]]).dtype is xp.float32
    assert xp.asarray(3).shape == ()
    assert xp.asarray([1, 2], dtype=xp.uint8).dtype is xp.uint8
    assert xp.asarray([]).shape == (0,)
    assert xp.asarray([1, 2], device="PYTHON").device == "PYTHON"
    assert xp.asarray([Tensor(1), Tensor(2)]).tolist() == [1, 2]
    assert xp.asarray([[Tensor(1), 2], Tensor([3, 4])]).tolist() == [[1, 2], [3, 4]]
    assert xp.asarray(np.arange(3.0)).dtype is xp.float64
    assert xp.asarray(memoryview(b"ab")).tolist() == [97, 98]
    with pytest.raises(ShapeError, match="make no array"):
        xp.asarray([Tensor([1]), Tensor([1, 2])])


def test_asarray_copies_as_asked() -> None:
    array = np.arange(3, dtype=np.float32)
    shared, copied = xp.asarray(array, copy=False), xp.asarray(array, copy=True)
    array[0] = 9
    assert (shared.tolist(), copied.tolist()) == ([9, 1, 2], [0, 1, 2])
    x = Tensor([1, 2])
    assert xp.asarray(x) is x
    assert xp.asarray(x, copy=False) is x
    other = xp.asarray(x, copy=True)
    x += 1
    assert other.tolist() == [1, 2]
    for make in (
        lambda: xp.asarray([1, 2], copy=False),
        lambda: xp.asarray(x, dtype=xp.float32, copy=False),
        lambda: xp.asarray(array, dtype=xp.float64, copy=False),
    ):
        with pytest.raises(ArgumentError, match="copy=False forbids"):
            make()


@pytest.mark.parametrize("dtype", ["bool", "int8", "uint64", "float32", "float64"])
def test_filled_arrays(dtype: str) -> None:
    kind = getattr(xp, dtype)
    for shape in ((), 3, (2, 3), (0, 2)):
        assert xp.zeros(shape, dtype=kind).numpy().tolist() == np.zeros(shape, dtype).tolist()
        assert xp.ones(shape, dtype=kind).numpy().tolist() == np.ones(shape, dtype).tolist()
        assert xp.full(shape, 1, dtype=kind).numpy().tolist() == np.full(shape, 1, dtype).tolist()
        assert xp.empty(shape, dtype=kind).shape == np.empty(shape).shape
    x = Tensor(np.zeros((2, 2), dtype))
    for like in (xp.zeros_like(x), xp.ones_like(x), xp.full_like(x, 1), xp.empty_like(x)):
        assert (like.shape, like.dtype, like.device) == (x.shape, kind, x.device)
        assert like.numpy().shape == (2, 2)
    assert xp.zeros_like(x, dtype=xp.int16).dtype is xp.int16
    assert xp.full_like(x, 0, device="PYTHON").device == "PYTHON"


def test_default_types() -> None:
    for made in (xp.zeros(2), xp.ones(2), xp.empty(2), xp.eye(2), xp.linspace(0, 1, 3), xp.full(2, 1.0)):
        assert made.dtype is dtypes.float32
    assert xp.full(2, 1).dtype is xp.int32
    assert xp.full(2, True).dtype is xp.bool


@pytest.mark.parametrize("rows", [0, 1, 3])
@pytest.mark.parametrize("columns", [None, 0, 2, 4])
@pytest.mark.parametrize("k", [-4, -1, 0, 2])
def test_eye(rows: int, columns: int | None, k: int) -> None:
    np.testing.assert_array_equal(xp.eye(rows, columns, k=k, dtype=xp.int8).numpy(), np.eye(rows, columns, k))


@pytest.mark.parametrize("endpoint", [True, False])
@pytest.mark.parametrize("arguments", [(0, 1, 5), (2, -3, 4), (1, 1, 3), (0, 5, 1), (0, 1, 0), (-1.5, 2.5, 9)])
def test_linspace(arguments: tuple[float, float, int], endpoint: bool) -> None:
    result = xp.linspace(*arguments, endpoint=endpoint, dtype=xp.float64)
    np.testing.assert_allclose(result.numpy(), np.linspace(*arguments, endpoint=endpoint), rtol=1e-14, atol=1e-15)


@pytest.mark.parametrize("indexing", ["xy", "ij"])
def test_meshgrid(indexing: Any) -> None:
    parts = [np.arange(2), np.arange(3.0), np.arange(4)]
    for count in range(4):
        ours = xp.meshgrid(*[Tensor(p) for p in parts[:count]], indexing=indexing)
        theirs = np.meshgrid(*parts[:count], indexing=indexing)
        assert isinstance(ours, list)
        assert [(o.shape, o.dtype.name) for o in ours] == [(t.shape, t.dtype.name) for t in theirs]
        for o, t in zip(ours, theirs, strict=True):
            np.testing.assert_array_equal(o.numpy(), t)
    with pytest.raises(ArgumentError, match="indexing 'ab' must be 'xy' or 'ij'"):
        xp.meshgrid(Tensor([1]), Tensor([2]), indexing="ab")


@pytest.mark.parametrize("k", [-2, 0, 1])
def test_triangles(k: int) -> None:
    x = np.arange(24).reshape(2, 3, 4)
    np.testing.assert_array_equal(xp.tril(Tensor(x), k=k).numpy(), np.tril(x, k))
    np.testing.assert_array_equal(xp.triu(Tensor(x), k=k).numpy(), np.triu(x, k))


def test_from_dlpack() -> None:
    array = np.arange(3, dtype=np.float32)
    shared, copied = xp.from_dlpack(array), xp.from_dlpack(array, copy=True)
    array[0] = 9
    assert (shared.tolist(), copied.tolist()) == ([9, 1, 2], [0, 1, 2])
    assert xp.from_dlpack(array, device="PYTHON").device == "PYTHON"


def test_arrays_only() -> None:
    for call in (lambda: xp.zeros_like([1]), lambda: xp.tril([[1]]), lambda: xp.meshgrid([1], [2])):
        with pytest.raises(DTypeError, match="must be a Tensor, got list; use asarray"):
            call()
