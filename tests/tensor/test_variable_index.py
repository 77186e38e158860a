"""Positions that are known only at launch: reading and writing, one kernel for all of them, and what is refused."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from gradlet import Tensor, Variable
from gradlet.base.errors import IndexingError, ShapeError

DEVICES = ("CPU", "PYTHON")


@pytest.fixture(params=DEVICES)
def device(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def grid(device: str) -> tuple[Tensor, Any]:
    array = np.arange(24, dtype=np.float32).reshape(4, 6)
    return Tensor(array, device=device).realize(), array.copy()


@pytest.mark.parametrize("value", [0, 2])
def test_reading(device: str, value: int) -> None:
    x, array = grid(device)
    p, q = Variable("p", 0, 2).bind(value), Variable("q", 0, 4).bind(value + 1)
    for got, want in [
        (x[p], array[value]),
        (x[p + 1], array[value + 1]),
        (x[p : p + 1], array[value : value + 1]),
        (x[:, q : q + 2], array[:, value + 1 : value + 3]),
        (x[:, q - q : q - q + 3], array[:, :3]),
        (x[p, q], array[value, value + 1]),
        (x[p : p + 1, q], array[value : value + 1, value + 1]),
        (x[p : p + 1, None, q : q + 1], array[value : value + 1, None, value + 1 : value + 2]),
        (x[1:3, q], array[1:3, value + 1]),
        (x[::2, q : q + 2], array[::2, value + 1 : value + 3]),
        (x[2, q], array[2, value + 1]),
        (x[..., q], array[..., value + 1]),
        (x[p:p], array[value:value]),
    ]:
        np.testing.assert_array_equal(got.numpy(), want)


@pytest.mark.parametrize("value", [0, 2])
def test_writing(device: str, value: int) -> None:
    x, array = grid(device)
    p, q = Variable("p", 0, 2).bind(value), Variable("q", 0, 4).bind(value + 1)
    seen = x * 1
    before = array.copy()
    x[p] = 5
    array[value] = 5
    x[:, q : q + 2] = Tensor([[1.0, 2.0]], device=device)
    array[:, value + 1 : value + 3] = [[1, 2]]
    x[p + 1 : p + 2, q] += 10
    array[value + 1 : value + 2, value + 1] += 10
    x[1:3, q] = x[0:2, q]
    array[1:3, value + 1] = array[0:2, value + 1].copy()
    x[p : p + 1, q : q + 1] = 3
    array[value, value + 1] = 3
    np.testing.assert_array_equal(x.numpy(), array)
    np.testing.assert_array_equal(seen.numpy(), before)


def test_a_value_that_does_not_fit() -> None:
    x, _ = grid("PYTHON")
    with pytest.raises(ShapeError):
        x[Variable("p", 0, 2).bind(1)] = Tensor([1.0, 2.0], device="PYTHON")


def test_gradient_of_a_row_by_variable() -> None:
    x = Tensor([[1.0, 2.0], [3.0, 4.0]])
    (dx,) = (x[Variable("p", 0, 1).bind(1)] * Tensor([5.0, 7.0])).sum().gradient(x)
    assert dx.tolist() == [[0, 0], [5, 7]]


def test_one_kernel_for_all_positions_and_no_copy() -> None:
    cache = Tensor(np.zeros((2, 64, 8), np.float32)).realize()
    position = Variable("position", 0, 63)
    new = Tensor(np.ones((2, 1, 8), np.float32)).realize()
    memory = cache.uop
    kernels = set()
    for value in (5, 63):
        p = position.bind(value)
        cache[:, p : p + 1] = new
        (call,) = cache.schedule().calls
        kernels.add(call.ast)
        assert [call.buffers[slot] for slot in call.written] == [n for n in memory.toposort() if not n.src]
        cache.realize()
    assert len(kernels) == 1
    assert np.flatnonzero(cache.numpy()[1, :, 3]).tolist() == [5, 63]


@pytest.mark.parametrize(
    ("index", "message"),
    [
        (lambda p: slice(p, None), "mask them"),
        (lambda p: slice(p, p + 2, 2), "step 1"),
        (lambda p: slice(p, 1.5), "integers"),
        (lambda p: p + 1, "smaller limits"),
        (lambda p: p - 1, "smaller limits"),
        (lambda p: p.src[0], "has no value"),
        (lambda p: (slice(p, p + 1), [0, 1]), "two steps"),
        (lambda p: (slice(p, p + 1), p, p), "axes"),
    ],
)
def test_what_is_refused(index: Any, message: str) -> None:
    x, _ = grid("PYTHON")
    with pytest.raises(IndexingError, match=message):
        x[index(Variable("p", 0, 3).bind(1))]


def test_two_slices_of_several_positions_are_refused() -> None:
    x, _ = grid("PYTHON")
    p = Variable("p", 0, 2).bind(1)
    with pytest.raises(IndexingError, match="two steps"):
        x[p : p + 2, p : p + 2]
