"""What docs/numerics.md promises, on the devices that compute."""

from __future__ import annotations

import math

import pytest

from gradlet import Tensor, dtypes
from gradlet.base.errors import DTypeError, IndexingError

DEVICES = ("CPU", "PYTHON")
NAN, INF = float("nan"), float("inf")


def test_python_numbers_do_not_widen() -> None:
    assert Tensor([1]).dtype is dtypes.int32
    assert Tensor([1.0]).dtype is dtypes.float32
    assert (Tensor([1], dtype="int8") + 1).dtype is dtypes.int8
    assert (Tensor([1], dtype="int8") + 1.5).dtype is dtypes.float32
    assert (Tensor([1.0], dtype="float16") * 2.5).dtype is dtypes.float16


def test_two_tensors_meet() -> None:
    half, brain = Tensor([1.0], dtype="float16"), Tensor([1.0], dtype="bfloat16")
    assert (half + brain).dtype is dtypes.float32
    with pytest.raises(DTypeError, match="uint64 and dtypes.int32 have no common type"):
        Tensor([1], dtype="uint64") + Tensor([1], dtype="int32")
    assert (Tensor([1], dtype="uint8") + Tensor([1], dtype="int8")).dtype is dtypes.int16


@pytest.mark.parametrize("name", ["bool", "uint8", "int8", "int32", "uint32", "int64"])
def test_sums_of_integers_are_int64_and_means_float32(name: str) -> None:
    x = Tensor([1], dtype=name)
    assert (x.sum().dtype, x.prod().dtype, x.mean().dtype) == (dtypes.int64, dtypes.int64, dtypes.float32)


@pytest.mark.parametrize("device", DEVICES)
def test_sums_of_half_are_carried_in_float32(device: str) -> None:
    # In float16 a running sum of ones stops at 2048.
    assert Tensor.ones(4096, dtype="float16", device=device).contiguous().sum().item() == 4096.0


@pytest.mark.parametrize("device", DEVICES)
def test_casts_truncate_saturate_and_wrap(device: str) -> None:
    x = Tensor([300.7, -300.2, NAN, 2.9, -2.9, INF], device=device)
    assert x.cast("int8").tolist() == [127, -128, 0, 2, -2, 127]
    assert x.cast("uint8").tolist() == [255, 0, 0, 2, 0, 255]
    assert Tensor([300, -300], device=device).cast("int8").tolist() == [44, -44]
    assert Tensor([0.0, -0.0, 0.5, NAN], device=device).cast("bool").tolist() == [False, False, True, True]


@pytest.mark.parametrize("device", DEVICES)
def test_integer_division_rounds_down_and_never_traps(device: str) -> None:
    x = Tensor([7, -7, 7, -7, 7, -(2**31)], device=device)
    y = Tensor([2, 2, -2, -2, 0, -1], device=device)
    assert (x // y).tolist() == [3, -4, -4, 3, 0, -(2**31)]
    assert (x % y).tolist() == [1, 1, -1, -1, 0, 0]
    assert (Tensor([2**31 - 1], device=device) + 1).tolist() == [-(2**31)]
    assert (Tensor([-8], device=device) >> 1).tolist() == [-4]


@pytest.mark.parametrize("device", DEVICES)
def test_special_floats(device: str) -> None:
    x = Tensor([1.0, NAN], device=device)
    assert all(math.isnan(v) for v in x.maximum(Tensor([NAN, 1.0], device=device)).tolist())
    assert math.isnan(x.max().item())
    assert (x < 2).tolist() == [True, False]
    assert (x != x).tolist() == [False, True]
    quotient = (Tensor([1.0, -1.0, 0.0], device=device) / Tensor([0.0, 0.0, 0.0], device=device)).tolist()
    assert quotient[:2] == [INF, -INF] and math.isnan(quotient[2])
    assert math.copysign(1, Tensor([0.0], device=device).abs().item()) == 1.0


def test_gradients_at_ties() -> None:
    x = Tensor([1.0, 3.0, 3.0])
    assert x.max().gradient(x)[0].tolist() == [0.0, 0.5, 0.5]
    zero = Tensor([0.0])
    assert zero.relu().sum().gradient(zero)[0].tolist() == [0.0]
    assert zero.abs().sum().gradient(zero)[0].tolist() == [0.0]


@pytest.mark.parametrize("device", DEVICES)
def test_indices_outside(device: str) -> None:
    x = Tensor([1, 2, 3], device=device)
    with pytest.raises(IndexingError):
        _ = x[5]
    assert x[Tensor([0, 5, -1], device=device)].tolist() == [1, 0, 3]


@pytest.mark.parametrize("device", DEVICES)
def test_last_write_wins(device: str) -> None:
    x = Tensor([0.0, 0.0, 0.0], device=device).contiguous()
    x[Tensor([1, 1, 2], device=device)] = Tensor([5.0, 6.0, 7.0], device=device)
    assert x.tolist() == [0.0, 6.0, 7.0]


def test_random_numbers_follow_from_the_seed_alone() -> None:
    Tensor.manual_seed(3)
    first, second = Tensor.rand(5).tolist(), Tensor.rand(5).tolist()
    Tensor.manual_seed(3)
    assert Tensor.rand(5, device="PYTHON").tolist() == first
    assert first != second


@pytest.mark.parametrize("device", DEVICES)
def test_places_and_counts(device: str) -> None:
    x = Tensor([2.0, NAN, 2.0, 1.0], device=device)
    assert x.argmax().dtype is x.sort()[1].dtype is x.cummax()[1].dtype is dtypes.default_int
    assert x.count_nonzero().dtype is x.unique(return_counts=True)[1].dtype is dtypes.int64
    assert x.argmax().item() == x.argmin().item() == 1 and x.sort()[1].tolist() == [3, 0, 2, 1]
    assert x.nanmedian(0)[1].item() == 0 and x[::2].mode()[1].item() == 1 and x[::2].cummin()[1].tolist() == [0, 1]
    assert math.isnan(x.median().item()) and math.isnan(x.quantile(0.5).item()) and x.nanquantile(0.5).item() == 2.0


def test_a_median_of_everything_shares_its_gradient_and_one_along_an_axis_does_not() -> None:
    x = Tensor([1.0, 2.0, 2.0, 3.0])
    assert x.median().gradient(x)[0].tolist() == [0.0, 0.5, 0.5, 0.0]
    assert x.median(0)[0].gradient(x)[0].tolist() == [0.0, 1.0, 0.0, 0.0]
    assert x[:3].max_with_indices(0)[0].gradient(x)[0].tolist() == [0.0, 1.0, 0.0, 0.0]


def test_slopes_of_distances_and_spreads_that_are_zero() -> None:
    x = Tensor([[1.0, 1.0], [1.0, 1.0]])
    for zero in (x.std(), x.dist(1.0), x.cdist(x).sum(), x.pdist().sum()):
        (slope,) = zero.gradient(x)
        assert zero.item() == 0.0 and slope.tolist() == [[0.0, 0.0], [0.0, 0.0]]


def test_nothing_but_minus_infinity() -> None:
    x = Tensor([-INF, -INF, 0.0])
    assert x.logsumexp().gradient(x)[0].tolist() == x.softmax().tolist() == [0.0, 0.0, 1.0]
    nothing = x[:2]
    assert nothing.logsumexp().item() == -INF
    assert all(math.isnan(v) for v in [*nothing.softmax().tolist(), *nothing.logsumexp().gradient(nothing)[0].tolist()])
