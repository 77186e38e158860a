"""Sorting and selecting: order, ties and special values of every type, against torch; how much is compared."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest

from gradlet import Tensor
from gradlet.schedule.network import sorting_network

torch = pytest.importorskip("torch")

SIZES = [1, 2, 17, 257, 1025]
TYPES = ["float64", "float16", "int64", "int32", "int16", "uint8", "uint64", "bool"]
CASES = [*[("float32", size) for size in SIZES], *[(dtype, 33) for dtype in TYPES], ("int64", 257)]


def rows(dtype: str, size: int) -> np.ndarray[Any, Any]:
    """Two rows with ties and, for floats, the values that compare unlike others."""
    x = np.random.default_rng(size).integers(0 if dtype[0] in "ub" else -9, 10, (2, size)).astype(dtype)
    if dtype.startswith("float") and size > 3:
        x[0, [1, 2]], x[0, 0], x[1, 0], x[1, 1], x[1, 2] = np.nan, -np.inf, -0.0, 0.0, np.inf
    if dtype in ("int64", "uint64", "int32") and size > 3:
        x[0, 1], x[0, 2] = np.iinfo(dtype).max, np.iinfo(dtype).min
        x[1, 1] = x[0, 1] // 2
    return x


@pytest.mark.parametrize(("dtype", "size"), CASES)
@pytest.mark.parametrize("descending", [False, True])
def test_sort_is_stable_and_puts_nan_last(dtype: str, size: int, descending: bool) -> None:
    x = rows(dtype, size)
    values, places = Tensor(x).sort(1, descending)
    wanted, at = torch.sort(torch.tensor(x), dim=1, descending=descending, stable=True)
    np.testing.assert_array_equal(places.numpy(), at.numpy())
    np.testing.assert_array_equal(values.numpy(), wanted.numpy())
    np.testing.assert_array_equal(np.signbit(values.numpy().astype(float)), np.signbit(wanted.numpy().astype(float)))


@pytest.mark.parametrize("dtype", ["float32", "int64", "uint8", "float16"])
@pytest.mark.parametrize(
    ("size", "k"),
    [
        (1, 1),
        (17, 3),
        (257, 5),
        (300, 60),
        (1025, 1),
        (1025, 8),
        (5000, 32),
        (9, 9),
        (1025, 40),
        (3001, 130),
        (4096, 700),
    ],
)
@pytest.mark.parametrize("largest", [False, True])
def test_topk_is_the_beginning_of_the_stable_order(dtype: str, size: int, k: int, largest: bool) -> None:
    x = rows(dtype, size)
    values, places = Tensor(x).topk(k, 1, largest)
    wanted, at = torch.sort(torch.tensor(x), dim=1, descending=largest, stable=True)
    np.testing.assert_array_equal(places.numpy(), at.numpy()[:, :k])
    np.testing.assert_array_equal(values.numpy(), wanted.numpy()[:, :k])


def test_other_axes_views_and_no_elements() -> None:
    x = rows("float32", 33)
    for axis, view in [(0, x.T[::2]), (1, x.T[::-1].T), (-2, x)]:
        values, places = Tensor(x.T)[::2].sort(axis) if view.shape == (17, 2) else Tensor(view).sort(axis)
        np.testing.assert_array_equal(places.numpy(), torch.sort(torch.tensor(view.copy()), dim=axis, stable=True)[1])
        assert values.shape == view.shape
    assert Tensor.zeros(0, 3).sort(0)[0].shape == (0, 3)
    assert Tensor.zeros(0, 3).sort(1)[1].tolist() == []
    assert Tensor([3.0, 1.0]).topk(0)[1].shape == (0,)
    assert Tensor(3.0).sort()[1].item() == 0


def test_bfloat16() -> None:
    x = torch.tensor(rows("float32", 257)).bfloat16()
    places = Tensor(x.float().numpy()).cast("bfloat16").argsort(1)
    np.testing.assert_array_equal(places.numpy(), torch.sort(x, dim=1, stable=True)[1].numpy())


def test_gradients_go_where_the_values_came_from() -> None:
    x = np.random.default_rng(0).standard_normal((3, 65)).astype(np.float32)
    g = np.random.default_rng(1).standard_normal((3, 65)).astype(np.float32)
    leaf = torch.tensor(x, requires_grad=True)
    leaf.sort(1)[0].backward(torch.tensor(g))
    ours = Tensor(x)
    (grad,) = ours.sort(1)[0].gradient(ours, gradient=Tensor(g))
    np.testing.assert_allclose(grad.numpy(), leaf.grad.numpy())


@pytest.mark.parametrize("size", [2, 4, 8, 16])
def test_networks_sort_everything(size: int) -> None:
    """A network that sorts all zeros and ones sorts all values."""
    pairs = sorting_network(size)
    for bits in itertools.product((0, 1), repeat=size):
        values = list(bits)
        for i, j in pairs:
            if values[i] < values[j]:
                values[i], values[j] = values[j], values[i]
        assert values == sorted(bits, reverse=True)


def test_random_permutations_hold_every_number() -> None:
    assert sorted(Tensor.randperm(2049).tolist()) == list(range(2049))
