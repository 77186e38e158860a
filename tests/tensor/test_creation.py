"""Tensors from Python data, arrays, buffers, and from nothing."""

from __future__ import annotations

import copy
import pickle
from array import array
from typing import Any

import numpy as np
import pytest

from gradlet import Tensor, dtypes
from gradlet.base.errors import ArgumentError, DeviceError, DTypeError, ShapeError


@pytest.mark.parametrize(
    ("data", "dtype"),
    [
        (3, "int32"),
        (2.5, "float32"),
        (True, "bool"),
        ([1, 2], "int32"),
        ([1, 2.5], "float32"),
        ([True, False], "bool"),
        ([True, 2], "int32"),
        ([[1], [2]], "int32"),
        ((1.0, 2.0), "float32"),
        ([2**40, 1], "int64"),
        ([2**63], "uint64"),
        ([[[1.5]]], "float32"),
        ([-(2**31)], "int32"),
        ([2**31], "int64"),
    ],
)
def test_numbers_and_lists(data: Any, dtype: str) -> None:
    t = Tensor(data)
    assert t.dtype.name == dtype
    np.testing.assert_array_equal(t.numpy(), np.array(data, dtype))
    assert t.shape == np.array(data).shape


@pytest.mark.parametrize("data", [[], [[]], [[], []]])
def test_empty_lists(data: Any) -> None:
    t = Tensor(data)
    assert t.dtype is dtypes.float32
    assert t.tolist() == data


@pytest.mark.parametrize("data", [[[1], [2, 3]], [1, [2]], [[1], 2], [[[1]], [2]]])
def test_ragged_lists_are_refused(data: Any) -> None:
    with pytest.raises(ShapeError, match="ragged"):
        Tensor(data)


@pytest.mark.parametrize("data", ["text", {"a": 1}, object(), ["a"], [None], [1 + 2j]])
def test_data_that_is_no_number_is_refused(data: Any) -> None:
    with pytest.raises(DTypeError):
        Tensor(data)


def test_a_list_of_tensors_is_refused_with_the_remedy() -> None:
    with pytest.raises((DTypeError, ShapeError), match="stack"):
        Tensor([Tensor([1.0]), "x"])


def test_integers_that_do_not_fit_are_refused() -> None:
    with pytest.raises(DTypeError, match="300"):
        Tensor([300], dtype="uint8")
    with pytest.raises(DTypeError):
        Tensor([2**64])


@pytest.mark.parametrize("dtype", [d.name for d in dtypes.all()])
def test_every_dtype_from_a_list_and_back(dtype: str) -> None:
    t = Tensor([0, 1, 3], dtype=dtype)
    assert t.dtype.name == dtype
    assert t.tolist() == ([False, True, True] if dtype == "bool" else [0, 1, 3])


@pytest.mark.parametrize("dtype", ["bool", "int8", "uint8", "int16", "uint16", "int32", "uint32", "int64", "uint64",
                                   "float16", "float32", "float64"])  # fmt: skip
@pytest.mark.parametrize("order", ["C", "F"])
def test_arrays(dtype: str, order: Any) -> None:
    data = np.asarray(np.arange(6).reshape(2, 3).astype(dtype), order=order)
    t = Tensor(data)
    assert t.dtype.name == dtype
    np.testing.assert_array_equal(t.numpy(), data)


def test_arrays_of_the_other_byte_order_and_strided_ones() -> None:
    data = np.arange(6, dtype=">i4")
    np.testing.assert_array_equal(Tensor(data[::-2]).numpy(), data[::-2])


def test_array_with_another_dtype() -> None:
    t = Tensor(np.array([1.7, -1.2]), dtype="int32")
    assert t.dtype is dtypes.int32
    assert t.tolist() == [1, -1]
    assert Tensor(np.array([1.0, 2.5]), dtype="bfloat16").tolist() == [1.0, 2.5]


def test_arrays_that_no_tensor_can_hold() -> None:
    for data in (np.array(["a"]), np.array([1j]), np.array([object()])):
        with pytest.raises(DTypeError):
            Tensor(data)


def test_an_array_is_copied_unless_told_otherwise() -> None:
    data = np.array([1.0, 2.0], np.float32)
    copied, shared = Tensor(data), Tensor(data, copy=False)
    data[0] = 9
    assert copied.tolist() == [1, 2]
    assert shared.tolist() == [9, 2]
    result = copied.numpy()
    result[0] = 5
    assert copied.tolist() == [1, 2]


def test_bytes_and_buffers() -> None:
    assert Tensor(b"\x01\x02").tolist() == [1, 2]
    assert Tensor(b"\x01\x00\x02\x00", dtype="int16").tolist() == [1, 2]
    assert Tensor(memoryview(bytearray([7, 8]))).dtype is dtypes.uint8
    assert Tensor(memoryview(array("f", [1.5, 2.5]))).tolist() == [1.5, 2.5]
    with pytest.raises(ShapeError, match="3 bytes"):
        Tensor(b"abc", dtype="int16")


def test_from_a_tensor() -> None:
    t = Tensor([1.5])
    assert Tensor(t, dtype="int32").tolist() == [1]
    assert Tensor(t).uop is t.uop


def test_no_data() -> None:
    assert Tensor().shape == (0,)


def test_constants() -> None:
    assert Tensor.zeros(2, 3).tolist() == [[0.0] * 3] * 2
    assert Tensor.ones((2,), dtype="int32").tolist() == [1, 1]
    assert Tensor.full((2, 2), True).dtype is dtypes.bool
    assert Tensor.full((), 2.5).item() == 2.5
    assert Tensor.full(3, 7).tolist() == [7, 7, 7]
    assert Tensor.zeros(0, 3).numpy().shape == (0, 3)
    like = Tensor([1, 2], dtype="int8")
    assert like.ones_like().dtype is dtypes.int8
    assert like.full_like(2.5, dtype="float32").tolist() == [2.5, 2.5]
    assert Tensor.empty(3, 2).shape == (3, 2)
    for shape in ((-1,), (2, -3)):
        with pytest.raises(ShapeError, match="negative"):
            Tensor.zeros(*shape)
    with pytest.raises(ShapeError):
        Tensor.zeros(2.5)


@pytest.mark.parametrize(
    "arguments",
    [(5,), (2, 9), (2, 9, 3), (9, 2, -2), (0,), (5, 2), (0.5, 3), (0, 1, 0.25), (1, 0, -0.25), (5000,), (-3, 3)],
)
def test_arange(arguments: tuple[float, ...]) -> None:
    t = Tensor.arange(*arguments)
    expected = np.arange(*arguments)
    assert t.dtype is (dtypes.float32 if any(isinstance(a, float) for a in arguments) else dtypes.int32)
    np.testing.assert_allclose(t.numpy(), expected, rtol=1e-6)


def test_arange_beyond_one_table_and_wide() -> None:
    np.testing.assert_array_equal(Tensor.arange(3 * 4096 + 5).numpy(), np.arange(3 * 4096 + 5))
    assert Tensor.arange(2**40, 2**40 + 3, dtype="int64").tolist() == [2**40, 2**40 + 1, 2**40 + 2]
    with pytest.raises(ArgumentError, match="step"):
        Tensor.arange(3, step=0)


@pytest.mark.parametrize("arguments", [(0, 1, 5), (3, -3, 7), (2, 2, 4), (0, 1, 1), (0, 1, 0)])
def test_linspace(arguments: tuple[float, float, int]) -> None:
    np.testing.assert_allclose(Tensor.linspace(*arguments).numpy(), np.linspace(*arguments), rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize("shape", [(3,), (2, 4), (4, 2), (1, 1), (0,)])
def test_eye(shape: tuple[int, ...]) -> None:
    np.testing.assert_array_equal(Tensor.eye(*shape).numpy(), np.eye(*shape))
    assert Tensor.eye(2, dtype="int32").tolist() == [[1, 0], [0, 1]]


def test_on_another_device() -> None:
    for made in (Tensor.zeros(2, device="PYTHON"), Tensor.arange(2, device="PYTHON"), Tensor.rand(2, device="PYTHON"),
                 Tensor.eye(2, device="PYTHON"), Tensor([1, 2], device="PYTHON")):  # fmt: skip
        assert made.device == "PYTHON"
        assert made.realize().device == "PYTHON"
        assert (made + 1).to("CPU").realize().device == "CPU"
    with pytest.raises(DeviceError, match="unknown device"):
        Tensor([1], device="ABACUS")
    with pytest.raises(DeviceError, match=r"\.to\("):
        Tensor([1], device="PYTHON") + Tensor([1], device="CPU")
    # Values that any device can make go along with either.
    assert (Tensor([1], device="PYTHON") + Tensor.ones(1)).device == "PYTHON"


def test_pickle_and_copy() -> None:
    for t in (Tensor([[1, 2], [3, 4]]).T, Tensor([1.0, 2.0]) + 1, Tensor([1.5], dtype="bfloat16"), Tensor.zeros(0, 2)):
        for again in (pickle.loads(pickle.dumps(t)), copy.deepcopy(t)):
            assert again.dtype is t.dtype
            np.testing.assert_array_equal(again.numpy(), t.numpy())
