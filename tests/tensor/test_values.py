"""Values leave the graph: numpy, lists, items, memory, text, truth."""

from __future__ import annotations

import numpy as np
import pytest

from gradlet import Tensor, dtypes
from gradlet.base.dtype import DType
from gradlet.base.errors import DTypeError, ShapeError


def test_numpy_of_views_and_expressions() -> None:
    data = np.arange(24, dtype=np.float32).reshape(2, 3, 4)
    t = Tensor(data)
    for ours, theirs in [
        (t, data), (t.T, data.T), (t[1], data[1]), (t[:, ::-1], data[:, ::-1]), (t + 1, data + 1),
        (t.reshape(6, 4)[::2], data.reshape(6, 4)[::2]), (t[:, 1:1], data[:, 1:1]), (t[0, 0, 0], data[0, 0, 0]),
    ]:  # fmt: skip
        np.testing.assert_array_equal(ours.numpy(), theirs)
        assert ours.numpy().dtype == theirs.dtype
    np.testing.assert_array_equal(np.asarray(t), data)
    np.testing.assert_array_equal(np.asarray(t, dtype=np.int64), data)


def test_reading_realises_the_tensor_once() -> None:
    t = Tensor([1.0]) + 1
    assert not t.is_realized
    t.numpy()
    assert t.is_realized
    node = t.uop
    t.numpy()
    assert t.uop is node


def test_bfloat16_is_read_as_float32() -> None:
    t = Tensor([1.0, 3.140625], dtype="bfloat16")
    assert t.numpy().dtype == np.float32
    assert t.tolist() == [1.0, 3.140625]
    with pytest.raises(DTypeError, match="cast"):
        t.data()


def test_data_is_a_shaped_memoryview() -> None:
    view = Tensor([[1, 2], [3, 4]]).data()
    assert view.shape == (2, 2)
    assert view.tolist() == [[1, 2], [3, 4]]


@pytest.mark.parametrize("dtype", [d for d in dtypes.all() if d is not dtypes.void], ids=str)
@pytest.mark.parametrize("value", [0.0, -0.0, 1.0, 3.5, -2.0, 1000.0, float("inf"), float("nan")])
def test_item_is_what_numpy_reads(dtype: DType, value: float) -> None:
    if not dtype.is_float and (value != value or value in (float("inf"), -2.0)):
        value = 7.0
    x = Tensor([1.0, value, 2.0]).cast(dtype).realize()
    for one in (x[1], x[1:2], x[1].reshape(1, 1).contiguous(), x[1] + 0, x[:2].flip(0)[0]):
        read, wanted = one.item(), one.numpy().item()
        assert type(read) is type(wanted)
        assert repr(read) == repr(wanted)


def test_item() -> None:
    assert Tensor([[7]]).item() == 7
    assert isinstance(Tensor(True).item(), bool)
    assert isinstance(Tensor(1.5).item(), float)
    for t in (Tensor([1, 2]), Tensor([])):
        with pytest.raises(ShapeError, match="item"):
            t.item()


def test_truth_length_iteration_membership() -> None:
    assert bool(Tensor([1]))
    assert not Tensor(0.0)
    with pytest.raises(ShapeError, match="any"):
        bool(Tensor([1, 2]))
    t = Tensor([[1, 2], [3, 4]])
    assert len(t) == 2
    assert [row.tolist() for row in t] == [[1, 2], [3, 4]]
    assert 3 in t
    assert 9 not in t
    for function in (len, iter):
        with pytest.raises(ShapeError, match="without axes"):
            function(Tensor(1))


def test_text() -> None:
    assert "[1 2]" in repr(Tensor([1, 2]))
    assert "float32" in repr(Tensor([1.5]))
    big = Tensor.zeros(100, 100)
    assert "not computed" in repr(big)
    assert not big.is_realized
    assert "(0, 3)" in repr(Tensor.zeros(0, 3))


def test_facts() -> None:
    t = Tensor([[1, 2, 3]], dtype="int16")
    assert (t.shape, t.ndim, t.numel(), t.nbytes(), t.element_size()) == ((1, 3), 2, 3, 6, 2)
    assert t.size() == (1, 3)
    assert t.size(-1) == 3
    assert t.device == "CPU"
    assert not t.is_floating_point()


def test_equality_is_by_element_and_hashing_by_object() -> None:
    a, b = Tensor([1, 2]), Tensor([1, 3])
    assert (a == b).tolist() == [True, False]
    assert (a != b).tolist() == [False, True]
    assert (a == None) is False  # noqa: E711
    assert (a == "text") is False
    assert len({a, b, a}) == 2


@pytest.mark.parametrize("dtype", ["bool", "int8", "uint16", "int64", "float16", "float64"])
def test_types_survive_the_way_back(dtype: str) -> None:
    data = np.array([0, 1, 1]).astype(dtype)
    result = Tensor(data).numpy()
    assert result.dtype == data.dtype
    np.testing.assert_array_equal(result, data)


def test_realize_takes_many_and_shares_work() -> None:
    x = Tensor([1.0, 2.0])
    a, b = x + 1, x * 2
    assert a.realize(b, x) is a
    assert a.is_realized
    assert b.is_realized
    twin = x + 1
    assert twin.realize().tolist() == [2, 3]


def test_every_tensor_of_a_realised_value_is_realised() -> None:
    x = Tensor([1.0, 2.0])
    a, b = x + 1, x + 1
    a.realize()
    assert b.is_realized
    c = a * 3
    assert c.tolist() == [6, 9]


def test_dtype_names() -> None:
    t = Tensor([1.7])
    casts = (t.int(), t.long(), t.short(), t.half(), t.float(), t.double(), t.bfloat16(), t.bool())
    expected = ("int32", "int64", "int16", "float16", "float32", "float64", "bfloat16", "bool")
    assert tuple(c.dtype.name for c in casts) == expected
    assert t.cast(dtypes.float32) is t
    with pytest.raises(DTypeError, match="unknown"):
        t.cast("float31")
