"""Copies of tensors are tensors of their own: pickles, shallow and deep copies."""

from __future__ import annotations

import copy
import pickle

import numpy as np
import pytest

from gradlet import Tensor, dtypes, jit, nn
from gradlet.base.errors import JitError

START = np.arange(6, dtype=np.float32).reshape(2, 3)


@pytest.mark.parametrize("protocol", range(2, pickle.HIGHEST_PROTOCOL + 1))
def test_pickles(protocol: int) -> None:
    x = Tensor(START)
    for value in (x, x.T, x[:, 1], x + 1, Tensor.zeros(0, 3), Tensor(5), Tensor.ones(2), x > 2, x.cast("bfloat16")):
        again = pickle.loads(pickle.dumps(value, protocol))
        assert (again.shape, again.dtype, again.device) == (value.shape, value.dtype, value.device)
        assert again.tolist() == value.tolist()
    assert pickle.loads(pickle.dumps(Tensor(START, device="PYTHON"), protocol)).device == "PYTHON"


def test_pickles_without_copies() -> None:
    x = Tensor(np.zeros(10_000, np.float32)).realize()
    buffers: list[pickle.PickleBuffer] = []
    data = pickle.dumps({"a": x, "b": x}, 5, buffer_callback=buffers.append)
    assert len(data) < 1000
    assert len(buffers) == 1
    where = np.asarray(x).__array_interface__["data"][0]
    assert np.asarray(buffers[0].raw()).__array_interface__["data"][0] == where
    lent = bytearray(buffers[0].raw())
    again = pickle.loads(data, buffers=[lent])
    assert again["a"] is again["b"]
    lent[:] = b"\x01" * len(lent)
    assert again["a"].sum().item() == 0


def test_what_an_optimizer_trains_stays_so() -> None:
    layer = nn.Linear(2, 3)
    again = pickle.loads(pickle.dumps(layer))
    assert [t.is_param for t in (again.weight, again.bias)] == [t.is_param for t in (layer.weight, layer.bias)]
    again(Tensor.ones(1, 2)).sum().backward()
    assert again.weight.grad is not None
    assert layer.weight.grad is None


def test_a_jitted_function_cannot_pickle() -> None:
    @jit
    def step(x: Tensor) -> Tensor:
        pickle.dumps(x)
        return x

    with pytest.raises(JitError, match="pickling a tensor inside a jitted function"):
        step(Tensor(START))


@pytest.mark.parametrize("make", [copy.copy, copy.deepcopy], ids=["copy", "deepcopy"])
def test_writing_to_one_leaves_the_other(make: object) -> None:
    for realized in (False, True):
        x = Tensor(START) + 0
        if realized:
            x.realize()
        y = make(x)  # type: ignore[operator]
        x += 1
        y *= 10
        np.testing.assert_array_equal(x.numpy(), START + 1)
        np.testing.assert_array_equal(y.numpy(), START * 10)


@pytest.mark.parametrize("make", [copy.copy, copy.deepcopy], ids=["copy", "deepcopy"])
def test_a_copied_view_is_no_view(make: object) -> None:
    x = Tensor(START)
    row = make(x[0])  # type: ignore[operator]
    row += 100
    np.testing.assert_array_equal(x.numpy(), START)
    np.testing.assert_array_equal(row.numpy(), START[0] + 100)
    x[0] = 7
    np.testing.assert_array_equal(row.numpy(), START[0] + 100)


def test_one_tensor_twice_is_one_copy_twice() -> None:
    x = Tensor(START)
    first, second, table = copy.deepcopy([x, x, {"x": x}])
    assert first is second is table["x"]
    assert first is not x


def test_deep_copies_have_gradients_of_their_own() -> None:
    x = Tensor([1.0, 2.0])
    y, z = copy.deepcopy(x), copy.deepcopy(x)
    loss = (x * 2 + y * 3 + z * 5).sum()
    assert [g.tolist() for g in loss.gradient(x, y, z)] == [[2, 2], [3, 3], [5, 5]]


def test_deep_copies_take_the_gradient_along() -> None:
    x = Tensor([1.0, 2.0])
    (x * 3).sum().backward()
    y = copy.deepcopy(x)
    assert y.grad is not x.grad
    assert y.grad.tolist() == [3, 3]


def test_copied_models_train_apart() -> None:
    model = nn.Linear(2, 1)
    model.weight.assign(Tensor([[1.0, 2.0]])).realize()
    twin = copy.deepcopy(model)
    optimizer = nn.optim.SGD([twin.weight], lr=0.5)
    with Tensor.train():
        optimizer.zero_grad()
        (twin.weight * Tensor([[1.0, 3.0]])).sum().backward()
        optimizer.step()
    assert model.weight.tolist() == [[1.0, 2.0]]
    assert twin.weight.tolist() == [[0.5, 0.5]]


def test_copies_of_little() -> None:
    for x in (Tensor.zeros(0, 3), Tensor(5), Tensor(True), Tensor.ones(2, 2)):
        for make in (copy.copy, copy.deepcopy):
            y = make(x)
            assert (y.shape, y.dtype, y.tolist()) == (x.shape, x.dtype, x.tolist())
    assert copy.deepcopy(Tensor([1], dtype="int8")).dtype is dtypes.int8
