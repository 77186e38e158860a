"""Types, integers and casts that other frameworks got wrong."""

from __future__ import annotations

import math

import numpy as np
import pytest

from gradlet import Tensor

DEVICES = ("CPU", "PYTHON")


@pytest.fixture(params=DEVICES)
def device(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def test_one_answer_for_a_cast_out_of_range(device: str) -> None:
    # Documented choice: truncate and saturate; NaN is 0. The same in a constant, a scalar and a vector.
    big = 2147483646.0
    stored = Tensor(np.array([big] * 40, np.float32), device=device).cast("int32").numpy()
    assert set(stored.tolist()) == {2147483647}
    constant = Tensor.full((3,), big, device=device).cast("int32")
    assert constant.tolist() == [2147483647] * 3
    values = [-1.5, -1.0, 255.0, 256.0, 300.7, math.nan, math.inf, -math.inf]
    assert Tensor(values, device=device).cast("uint8").tolist() == [0, 0, 255, 255, 255, 0, 255, 0]
    assert [Tensor.full((1,), v, device=device).cast("uint8").item() for v in values] == [
        0,
        0,
        255,
        255,
        255,
        0,
        255,
        0,
    ]
    assert Tensor(values, device=device).cast("int64").tolist()[-3:] == [0, 2**63 - 1, -(2**63)]


def test_floor_division_and_remainder(device: str) -> None:
    a, b = Tensor([-7, 7, -7, 7, -1], device=device), Tensor([2, -2, 3, -3, 8], device=device)
    assert (a // b).tolist() == [-4, -4, -3, -3, -1]
    assert (a % b).tolist() == [1, -1, 2, -2, 7]
    assert (a // 0).tolist() == [0] * 5


def test_smallest_of_unsigned_integers(device: str) -> None:
    x = Tensor([0, 3, 250], dtype="uint8", device=device)
    assert x.min().item() == 0
    assert x.max().item() == 250


def test_integer_pooling_keeps_its_type_and_ignores_padding(device: str) -> None:
    x = Tensor.full((1, 1, 4, 4), -5, dtype="int8", device=device)
    pooled = x.max_pool2d(3, stride=1, padding=1)
    assert pooled.dtype.name == "int8"
    assert set(pooled.flatten().tolist()) == {-5}


def test_integer_powers_are_exact(device: str) -> None:
    base, exponent = Tensor([13, 3, -3, 2, 7], device=device), Tensor([7, 19, 19, 30, 0], device=device)
    assert (base**exponent).tolist() == [62748517, 1162261467, -1162261467, 2**30, 1]
    assert (Tensor([13], device=device) ** 7).item() == 62748517
    assert (Tensor([1, -1, 2], device=device) ** Tensor([-3, -3, -3], device=device)).tolist() == [1, -1, 0]


@pytest.mark.parametrize("realized", [True, False])
@pytest.mark.parametrize(
    ("dtype", "value", "expected"), [("uint8", 200, 224), ("uint16", 50000, 62144), ("int8", -128, -512)]
)
def test_narrow_integers_wrap_inside_a_fused_kernel(
    device: str, dtype: str, value: int, expected: int, realized: bool
) -> None:
    x = Tensor([value, value], dtype=dtype, device=device)
    y = -(x.abs())
    if realized:
        y.realize()
    assert y.cat(y).sum().item() == expected


def test_comparison_with_a_number_outside_the_type(device: str) -> None:
    x = Tensor([1, 44, 255], dtype="uint8", device=device)
    assert (x == 300).tolist() == [False] * 3
    assert (x > -1).tolist() == [True] * 3
    assert (x + 300).tolist() == [301, 344, 555]


def test_argmax_takes_the_first_tie_and_nan_wins(device: str) -> None:
    assert Tensor([1, 3, 3], device=device).argmax().item() == 1
    assert Tensor([1.0, math.nan, 9.0], device=device).argmax().item() == 1
    assert Tensor([math.nan, 1.0, math.nan], device=device).argmin().item() == 0


def test_half_products_stay_half(device: str) -> None:
    x = Tensor.ones(2, 3, dtype="float16", device=device)
    assert (x @ x.T).dtype.name == "float16"


def test_einsum_without_an_output_and_with_an_ellipsis(device: str) -> None:
    a = Tensor(np.arange(6).reshape(2, 3), device=device)
    assert Tensor.einsum("ba", a).tolist() == a.T.tolist()
    assert Tensor.einsum("...i->i...", a).tolist() == a.T.tolist()


def test_interpolating_to_one_element(device: str) -> None:
    x = Tensor([[3.0, 4.0, 5.0]], device=device)
    assert x.interpolate((1,), align_corners=True).tolist() == [[3.0]]


def test_reducing_no_axes_and_a_missing_axis(device: str) -> None:
    zero = Tensor(2.0, device=device)
    assert zero.sum(()).item() == 2.0
    with pytest.raises(IndexError):
        zero.sum(axis=1)


def test_selecting_from_nothing(device: str) -> None:
    empty = Tensor([], device=device)
    assert empty.masked_select(empty > 0).tolist() == []
    assert empty.nonzero().shape == (0, 1)
