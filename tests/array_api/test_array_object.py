"""The array object of the standard is `Tensor`: attributes, operators, conversions, indexing."""

from __future__ import annotations

import inspect
import operator
from typing import Any

import numpy as np
import pytest

import gradlet.array_api as xp
from gradlet import Tensor, Variable, dtypes
from gradlet.base.errors import DTypeError, IndexingError, NoAxesError, ShapeError

DATA = np.arange(1, 13, dtype=np.int32).reshape(3, 4)
BINARY = ("add", "sub", "mul", "truediv", "floordiv", "mod", "pow", "and_", "or_", "xor", "lshift", "rshift")
COMPARE = ("eq", "ne", "lt", "le", "gt", "ge")


def test_attributes() -> None:
    x = Tensor(DATA)
    assert (x.dtype, x.device, x.ndim, x.shape, x.size) == (dtypes.int32, "CPU", 2, (3, 4), 12)
    np.testing.assert_array_equal(x.T.numpy(), DATA.T)
    np.testing.assert_array_equal(Tensor(DATA[None]).mT.numpy(), DATA.T[None])
    assert x.to_device("PYTHON").device == "PYTHON"


def test_the_size_is_a_number_that_answers_calls() -> None:
    x = Tensor.zeros(2, 3)
    assert isinstance(x.size, int)
    assert (x.size, x.size + 1, x.size(), x.size(1), x.size(dim=-1)) == (6, 7, (2, 3), 3, 3)
    assert (Tensor(1).size, Tensor.zeros(0, 2).size) == (1, 0)
    assert list(inspect.signature(Tensor.size).parameters) == ["self", "dim"]
    n = Variable("n", 1, 6)
    assert str(Tensor.arange(6)[: n.bind(2)].size(0)) == "n"


@pytest.mark.parametrize("name", BINARY)
def test_operators(name: str) -> None:
    function = getattr(operator, name)
    data, other = (DATA.astype(np.float32), np.float32(2.0)) if name == "truediv" else (DATA, np.int32(2))
    x = Tensor(data)
    number = other.item()
    for ours, theirs in [
        (function(x, Tensor(data)), function(data, data)), (function(x, number), function(data, other)),
        (function(number, x), function(other, data)),
    ]:  # fmt: skip
        assert ours.dtype is x.dtype
        np.testing.assert_allclose(ours.numpy(), theirs)
    in_place = getattr(operator, "i" + name.rstrip("_"))
    y = in_place(Tensor(data), number)
    np.testing.assert_allclose(y.numpy(), function(data, other))


@pytest.mark.parametrize("name", COMPARE)
def test_comparisons(name: str) -> None:
    function = getattr(operator, name)
    result = function(Tensor(DATA), 5)
    assert result.dtype is dtypes.bool
    np.testing.assert_array_equal(result.numpy(), function(DATA, 5))


def test_operators_of_one_and_products() -> None:
    x = Tensor(DATA - 5)
    np.testing.assert_array_equal(abs(x).numpy(), abs(DATA - 5))
    np.testing.assert_array_equal((-x).numpy(), 5 - DATA)
    np.testing.assert_array_equal((+x).numpy(), DATA - 5)
    np.testing.assert_array_equal((~x).numpy(), ~(DATA - 5))
    np.testing.assert_array_equal((x @ x.T).numpy(), (DATA - 5) @ (DATA - 5).T)
    y = Tensor(np.eye(3, dtype=np.float32))
    y @= Tensor(np.full((3, 3), 2, np.float32))
    np.testing.assert_array_equal(y.numpy(), np.full((3, 3), 2))


def test_conversions() -> None:
    assert (bool(Tensor(2)), int(Tensor(2.7)), float(Tensor(3)), complex(Tensor(1.5))) == (True, 2, 3.0, 1.5 + 0j)
    assert operator.index(Tensor(3)) == 3
    assert isinstance(float(Tensor(3)), float)
    with pytest.raises(DTypeError):
        operator.index(Tensor(1.5))
    for call in (bool, int, float, complex):
        with pytest.raises(ShapeError):
            call(Tensor([1, 2]))  # type: ignore[operator]
    for call in (len, iter):
        with pytest.raises(TypeError):
            call(Tensor(1))  # type: ignore[arg-type]
        with pytest.raises(NoAxesError):
            call(Tensor(1))  # type: ignore[arg-type]


INDICES: list[Any] = [
    0, -1, slice(None), slice(1, None), slice(None, None, 2), slice(None, None, -1), slice(2, 0, -1), slice(0, 0), ...,
    (1, 2), (slice(None), 1), (..., 0), (0, ...), None, (None, 1), (slice(1, 3), None, slice(None, -1)), (),
]  # fmt: skip


@pytest.mark.parametrize("index", INDICES, ids=str)
def test_indexing(index: Any) -> None:
    expected = DATA[index]
    result = Tensor(DATA)[index]
    assert result.shape == expected.shape
    np.testing.assert_array_equal(result.numpy(), expected)
    x, y = Tensor(DATA), DATA.copy()
    x[index], y[index] = 7, 7
    np.testing.assert_array_equal(x.numpy(), y)


def test_masks() -> None:
    x = Tensor(DATA)
    np.testing.assert_array_equal(x[x > 5].numpy(), DATA[DATA > 5])
    rows = Tensor([True, False, True])
    np.testing.assert_array_equal(x[rows].numpy(), DATA[[True, False, True]])
    x[x > 5] = 0
    np.testing.assert_array_equal(x.numpy(), np.where(DATA > 5, 0, DATA))


def test_one_bool_selects_all_or_nothing() -> None:
    for value in (True, False):
        mask = Tensor(value)
        np.testing.assert_array_equal(Tensor(5)[mask].numpy(), np.array(5)[np.array(value)])
        np.testing.assert_array_equal(Tensor(DATA)[mask].numpy(), DATA[np.array(value)])
        x, y = Tensor(5), np.array(5)
        x[mask], y[np.array(value)] = Tensor([9] * value), [9] * value
        assert x.item() == y.item()
        x[mask], y[np.array(value)] = 3, 3
        assert x.item() == y.item()


def test_indices_by_arrays() -> None:
    index = np.array([2, 0, -1])
    np.testing.assert_array_equal(Tensor(DATA)[Tensor(index)].numpy(), DATA[index])
    np.testing.assert_array_equal(Tensor(DATA)[1, Tensor(index)].numpy(), DATA[1, index])
    with pytest.raises(IndexingError):
        Tensor(DATA)[5]


def test_numpy_takes_tensors_for_arrays() -> None:
    x = Tensor(DATA)
    assert np.sum(np.asarray(x)) == DATA.sum()
    np.testing.assert_array_equal(np.concatenate([x, x]), np.concatenate([DATA, DATA]))
    assert (np.ones((3, 4), np.int32) + x).tolist() == (DATA + 1).tolist()
    assert isinstance(np.ones((3, 4), np.int32) + x, Tensor)
    assert xp.asarray(np.asarray(x)).dtype is dtypes.int32
