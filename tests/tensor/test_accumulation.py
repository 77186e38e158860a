"""The types that sums, products and averages are carried in and have, and how `dtype` overrides them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from gradlet import Tensor, dtypes

DEVICES = ("CPU", "PYTHON")
ALL = dtypes.all()


@pytest.fixture(params=DEVICES)
def device(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.mark.parametrize("dtype", ALL, ids=lambda d: d.name)
def test_types_of_results(dtype: Any) -> None:
    x = Tensor([[1, 0], [1, 1]], dtype=dtype)
    total = dtype if dtype.is_float or dtype is dtypes.uint64 else dtypes.int64
    average = dtype if dtype.is_float else dtypes.default_float
    for result in (x.sum(), x.prod(), x.sum(1), x.cumsum(0), x.cumprod(0)):
        assert result.dtype is total
    for result in (x.mean(), x.var(), x.std(0), x.softmax(), x.log_softmax(), x.logsumexp(0), x.logcumsumexp(0)):
        assert result.dtype is average
    for result in (x.max(), x.min(0), x.cummax(0), x.dot(x), x @ x, Tensor.einsum("ij,jk->ik", x, x)):
        found = result[0] if isinstance(result, tuple) else result
        assert found.dtype is dtype
    image = x.reshape(1, 1, 2, 2)
    assert image.conv2d(x.reshape(1, 1, 2, 2)).dtype is dtype and image.max_pool2d(2).dtype is dtype


WIDER: dict[str, Callable[[Tensor, str], Any]] = {
    "sum": lambda x, t: x.sum(dtype=t), "prod": lambda x, t: x.prod(dtype=t), "mean": lambda x, t: x.mean(dtype=t),
    "cumsum": lambda x, t: x.cumsum(0, dtype=t), "cumprod": lambda x, t: x.cumprod(0, dtype=t),
    "softmax": lambda x, t: x.softmax(dtype=t), "log_softmax": lambda x, t: x.log_softmax(dtype=t),
    "dot": lambda x, t: x.dot(x, dtype=t), "matmul": lambda x, t: x.matmul(x, dtype=t),
    "linear": lambda x, t: x.linear(x, x[0], dtype=t), "einsum": lambda x, t: Tensor.einsum("ij,jk->ik", x, x, dtype=t),
    "conv2d": lambda x, t: x.reshape(1, 1, 2, 2).conv2d(x.reshape(1, 1, 2, 2), dtype=t),
}  # fmt: skip


@pytest.mark.parametrize("name", WIDER)
def test_dtype_is_the_type_of_the_result_and_of_its_sums(name: str, device: str) -> None:
    x = Tensor([[0.5, 1.5], [2.0, -1.0]], dtype="float16", device=device)
    for wide in ("float32", "float64"):
        result = WIDER[name](x, wide)
        assert result.dtype.name == wide
        expected = WIDER[name](x.cast(wide), wide)
        np.testing.assert_allclose(result.numpy(), expected.numpy(), 1e-6)


def test_sums_in_a_type_that_was_asked_for_wrap_or_saturate_in_it(device: str) -> None:
    x = Tensor(np.full(100, 100, np.int8), device=device)
    assert x.sum().item() == 10_000 and x.sum().dtype is dtypes.int64
    assert x.sum(dtype="int8").item() == np.full(100, 100, np.int8).sum(dtype=np.int8)
    assert x.sum(dtype="uint16").item() == 10_000
    assert Tensor([True] * 300, device=device).sum(dtype="uint8").item() == 300 - 256
    # Products of integer matrices keep the type, as in torch, unless another is asked for.
    row = x.reshape(1, 100)
    assert (row @ row.T).item() == np.int64(100 * 100 * 100).astype(np.int8)
    assert row.dot(row.T, dtype="int32").item() == 1_000_000
    assert Tensor.einsum("ij,kj->ik", row, row, dtype="int64").item() == 1_000_000


# One after another in the type itself, a sum of ones stops at 2 to the number of its digits.
LONG = {"float16": 4096, "bfloat16": 1024, "float8_e4m3fn": 256, "float8_e5m2": 256}


@pytest.mark.parametrize("name", LONG)
def test_long_sums_of_narrow_floats_round_once(name: str, device: str) -> None:
    count = LONG[name]
    ones = Tensor.ones(count, dtype=name, device=device).contiguous()
    for result in (
        ones.sum(), ones.reshape(1, count) @ ones.reshape(count, 1), ones.dot(ones), ones.cumsum()[-1],
        Tensor.einsum("i,i->", ones, ones), ones.reshape(1, count, 1, 1).conv2d(ones.reshape(1, count, 1, 1)),
        ones.reshape(1, count).linear(ones.reshape(count, 1)), ones.reshape(1, count).expand(3, count).sum(1)[0],
    ):  # fmt: skip
        assert result.dtype.name == name and result.item() == count
    assert ones.mean().item() == 1.0 and ones.var().item() == 0.0
    # The sum of these is larger than the type holds, their average is not.
    large = Tensor.full((count,), 200.0, dtype=name, device=device).contiguous()
    assert large.mean().item() == large[0].item()
    assert ones.softmax().sum().item() == pytest.approx(1.0, rel=0.1)


@pytest.mark.parametrize("name", ["float16", "bfloat16"])
def test_sums_of_fractions_equal_the_rounded_exact_sum(name: str, device: str) -> None:
    rng = np.random.default_rng(0)
    x = Tensor(rng.uniform(0, 1, (8, 500)).astype(np.float32), device=device).cast(name).realize()
    exact = x.numpy().astype(np.float64).sum(1)
    rounded = Tensor(exact, device=device).cast(name)
    # float32 carries so many digits more that its own errors seldom show.
    off = (x.sum(1).bitcast("int16") - rounded.bitcast("int16")).abs().max().item()
    assert off <= 1
    np.testing.assert_allclose(x.sum(1).numpy(), exact, {"float16": 2.0**-11, "bfloat16": 2.0**-8}[name])


@pytest.mark.parametrize("name", ["float16", "bfloat16"])
def test_a_bias_is_added_before_the_one_rounding(name: str, device: str) -> None:
    rng = np.random.default_rng(1)

    def numbers(*shape: int) -> Tensor:
        return Tensor(rng.uniform(-1, 1, shape).astype(np.float32), device=device).cast(name).realize()

    x, weight, bias = numbers(20, 16), numbers(16, 20), numbers(20)
    exact = x.numpy().astype(np.float64) @ weight.numpy().astype(np.float64) + bias.numpy()
    once = Tensor(exact, device=device).cast(name).numpy()
    # float32 is so much finer that its own errors hardly ever decide a rounding.
    assert np.mean(x.linear(weight, bias).numpy() != once) < 0.01
    image, kernel = x.reshape(20, 16, 1, 1), weight.T.reshape(20, 16, 1, 1)
    assert np.mean(image.conv2d(kernel, bias).numpy().reshape(20, 20) != once) < 0.01
