"""Statistical and utility functions of the standard, running sums and products, differences."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import gradlet.array_api as xp
from gradlet import Tensor, dtypes
from gradlet.base.errors import ArgumentError, DTypeError, ShapeError

AXES: list[Any] = [None, 0, -1, (0, 2), (0, 1, 2), ()]
NARROW = {
    "int8": "int32", "int16": "int32", "int32": "int32", "int64": "int64", "uint8": "uint32", "uint16": "uint32",
    "uint32": "uint32", "uint64": "uint64", "float32": "float32", "float64": "float64",
}  # fmt: skip
NAN, INF = float("nan"), float("inf")


def numbers(dtype: str) -> np.ndarray:
    rng = np.random.default_rng(3)
    data = rng.integers(1, 4, (2, 3, 4)) if dtype[0] in "iu" else rng.uniform(-2, 2, (2, 3, 4))
    return data.astype(dtype)


def same(ours: Tensor, theirs: Any, dtype: str) -> None:
    theirs = np.asarray(theirs)
    assert (ours.shape, ours.dtype.name) == (theirs.shape, dtype)
    np.testing.assert_allclose(ours.numpy(), theirs, rtol=1e-5 if dtype == "float32" else 1e-12)


@pytest.mark.parametrize("dtype", NARROW)
def test_sums_and_products(dtype: str) -> None:
    x = numbers(dtype)
    for axis in (None, -1, (0, 2)):
        for keep in (False, True) if axis == -1 else (False,):
            for name in ("sum", "prod"):
                ours = getattr(xp, name)(Tensor(x), axis=axis, keepdims=keep)
                same(ours, getattr(np, name)(x, axis=axis, keepdims=keep, dtype=NARROW[dtype]), NARROW[dtype])
    assert xp.sum(Tensor(x), dtype=xp.float64).dtype is xp.float64
    assert xp.prod(Tensor(x), dtype=xp.int64).dtype is xp.int64


def test_sums_of_nothing() -> None:
    nothing = Tensor(np.zeros((0, 3), np.float32))
    assert xp.sum(nothing, axis=0).tolist() == [0.0] * 3
    assert xp.prod(nothing, axis=0).tolist() == [1.0] * 3
    assert not xp.any(nothing).item()
    assert xp.all(nothing).item()
    assert np.isnan(xp.mean(nothing).item())
    for name in ("max", "min"):
        with pytest.raises(ShapeError, match="no elements"):
            getattr(xp, name)(nothing)


def test_wide_sums_do_not_overflow() -> None:
    x = Tensor([100, 100, 100], dtype="int8")
    assert xp.sum(x).item() == 300
    assert xp.prod(Tensor([200, 2], dtype="uint8")).item() == 400


@pytest.mark.parametrize("dtype", NARROW)
def test_extremes(dtype: str) -> None:
    x = numbers(dtype)
    for axis in (None, -1, (0, 2)):
        same(xp.max(Tensor(x), axis=axis, keepdims=True), np.max(x, axis=axis, keepdims=True), dtype)
        same(xp.min(Tensor(x), axis=axis), np.min(x, axis=axis), dtype)


def test_nan_spreads() -> None:
    x = Tensor([1.0, NAN, 3.0])
    for name in ("max", "min", "sum", "prod", "mean", "std", "var"):
        assert np.isnan(getattr(xp, name)(x).item()), name


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("axis", AXES)
def test_means_and_variances(axis: Any, dtype: str) -> None:
    x = numbers(dtype)
    same(xp.mean(Tensor(x), axis=axis), np.mean(x, axis=axis), dtype)
    for keep, correction in ((False, 0.0), (True, 0.5)):
        for name in ("std", "var"):
            ours = getattr(xp, name)(Tensor(x), axis=axis, correction=correction, keepdims=keep)
            same(ours, getattr(np, name)(x, axis=axis, ddof=correction, keepdims=keep), dtype)


def test_variance_of_too_few() -> None:
    with np.errstate(all="ignore"):
        assert np.isnan(xp.var(Tensor([2.0]), correction=1.0).item())
    assert xp.var(Tensor([2.0])).item() == 0.0


@pytest.mark.parametrize("axis", AXES)
def test_truth(axis: Any) -> None:
    x = np.random.default_rng(0).integers(0, 2, (2, 3, 4)).astype(bool)
    for keep in (False, True):
        same(xp.all(Tensor(x), axis=axis, keepdims=keep), np.all(x, axis=axis, keepdims=keep), "bool")
        same(xp.any(Tensor(x), axis=axis, keepdims=keep), np.any(x, axis=axis, keepdims=keep), "bool")
        same(
            xp.count_nonzero(Tensor(x), axis=axis, keepdims=keep),
            np.count_nonzero(x, axis=axis, keepdims=keep),
            "int32",
        )
    assert xp.all(Tensor([NAN, INF, -1.0])).item()
    assert not xp.any(Tensor([0.0, -0.0])).item()
    assert xp.count_nonzero(Tensor([0.0, NAN, -0.0, 2.0])).item() == 2


@pytest.mark.parametrize("initial", [False, True])
@pytest.mark.parametrize("axis", [0, 1, -1])
def test_running(axis: int, initial: bool) -> None:
    for dtype in ("int8", "uint16", "float64"):
        x, wide = numbers(dtype), NARROW[dtype]
        for name, start in (("cumulative_sum", 0), ("cumulative_prod", 1)):
            ours = getattr(xp, name)(Tensor(x), axis=axis, include_initial=initial)
            theirs = getattr(np, name)(x, axis=axis, dtype=wide, include_initial=initial)
            same(ours, theirs, wide)
            assert not initial or (np.take(ours.numpy(), 0, axis) == start).all()


def test_running_along_the_only_axis() -> None:
    assert xp.cumulative_sum(Tensor([1, 2, 3])).tolist() == [1, 3, 6]
    assert xp.cumulative_prod(Tensor([1.0, 2.0, 3.0]), include_initial=True).tolist() == [1, 1, 2, 6]
    assert xp.cumulative_sum(Tensor([1, 2]), dtype=xp.float64).dtype is xp.float64
    with pytest.raises(ArgumentError, match="cumulative_sum: axis is needed for an array of 2 axes"):
        xp.cumulative_sum(Tensor([[1]]))


@pytest.mark.parametrize("n", [0, 1, 2, 5])
@pytest.mark.parametrize("axis", [0, -1])
def test_diff(axis: int, n: int) -> None:
    x = np.random.default_rng(1).integers(-9, 9, (3, 4)).astype(np.int32)
    same(xp.diff(Tensor(x), axis=axis, n=n), np.diff(x, n, axis), "int32")
    ends = np.take(x, [0], axis)
    ours = xp.diff(Tensor(x), axis=axis, n=n, prepend=Tensor(ends), append=Tensor(ends))
    same(ours, np.diff(x, n, axis, prepend=ends, append=ends), "int32")
    with pytest.raises(ArgumentError, match="n must .*negative|n must be at least 0"):
        xp.diff(Tensor(x), n=-1)


def test_kinds_of_types() -> None:
    for name in ("mean", "std", "var"):
        with pytest.raises(DTypeError, match=f"{name}: real floating arrays only"):
            getattr(xp, name)(Tensor([1, 2]))
    for name in ("max", "min"):
        with pytest.raises(DTypeError, match="numeric arrays only"):
            getattr(xp, name)(Tensor([True]))
    assert xp.sum(Tensor([1.0]), dtype=dtypes.float64).dtype is dtypes.float64
