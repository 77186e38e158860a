"""Which type two tensors, or a tensor and a number, meet in."""

from __future__ import annotations

import itertools

import pytest

from gradlet import Tensor, dtypes
from gradlet.base.dtype import DType, promote
from gradlet.base.errors import DTypeError

torch = pytest.importorskip("torch")

DEVICES = ("CPU", "PYTHON")
ALL = dtypes.all()
# Where torch has no answer: (types that hold both), or None for an error.
BEYOND_TORCH = {
    ("bool", "uint16"): "uint16", ("bool", "uint32"): "uint32", ("bool", "uint64"): "uint64",
    ("uint8", "uint16"): "uint16", ("uint8", "uint32"): "uint32", ("uint8", "uint64"): "uint64",
    ("uint16", "uint32"): "uint32", ("uint16", "uint64"): "uint64", ("uint32", "uint64"): "uint64",
    ("int8", "uint16"): "int32", ("uint16", "int16"): "int32", ("uint16", "int32"): "int32",
    ("uint16", "int64"): "int64", ("int8", "uint32"): "int64", ("int16", "uint32"): "int64",
    ("uint32", "int32"): "int64", ("uint32", "int64"): "int64",
    **{(f"int{bits}", "uint64"): None for bits in (8, 16, 32)}, ("uint64", "int64"): None,
}  # fmt: skip


def expected(first: DType, second: DType) -> str | None:
    """torch's answer, or ours where it has none."""
    pair = (first.name, second.name)
    known = BEYOND_TORCH.get(pair, BEYOND_TORCH.get(pair[::-1], "torch"))
    if known != "torch":
        return known
    if first.is_float8 or second.is_float8:
        narrow, other = (first, second) if first.is_float8 else (second, first)
        if other is narrow or other.is_bool:
            return narrow.name
        return other.name if other.is_float and not other.is_float8 else None
    return str(torch.promote_types(getattr(torch, first.name), getattr(torch, second.name))).removeprefix("torch.")


@pytest.mark.parametrize("first", ALL, ids=lambda d: d.name)
def test_two_tensors_meet_as_in_torch(first: DType) -> None:
    for second in ALL:
        x, y = Tensor([1], dtype=first), Tensor([1], dtype=second)
        wanted = expected(first, second)
        if wanted is None:
            with pytest.raises(DTypeError, match=r"add: .*have no common type.*\.cast\("):
                x + y
            with pytest.raises(DTypeError, match="no common type"):
                promote(second, first)
            continue
        assert (x + y).dtype.name == wanted, (first, second)
        assert promote(first, second) is promote(second, first)
        assert Tensor([True]).where(x, y).dtype.name == x.cat(y).dtype.name == wanted


def test_what_torch_refuses_is_listed() -> None:
    for first, second in itertools.combinations(ALL, 2):
        try:
            torch.promote_types(getattr(torch, first.name), getattr(torch, second.name))
        except RuntimeError:
            pair = (first.name, second.name)
            assert pair in BEYOND_TORCH or pair[::-1] in BEYOND_TORCH or first.is_float8 or second.is_float8
            continue
        assert (first.name, second.name) not in BEYOND_TORCH


@pytest.mark.parametrize("dtype", ALL, ids=lambda d: d.name)
def test_numbers_take_the_type_of_their_kind(dtype: DType) -> None:
    x = Tensor([1], dtype=dtype)
    whole = dtypes.default_int if dtype.is_bool else dtype
    for result in (x + 1, 1 + x, x * 2, x.maximum(1), 2 - x):
        assert result.dtype is whole
    for result in (x + True, x.mul(True), x.maximum(False)):
        assert result.dtype is dtype
    for result in (x + 0.5, 2.0 * x, x - 1.5, x / 2):
        assert result.dtype is (dtype if dtype.is_float else dtypes.default_float)
    assert (x == 1).dtype is dtypes.bool and (x < 1.5).tolist() == [True]
    if not dtype.is_bool:
        assert (x + 1).tolist() == [2] and (x * 3).tolist() == [3]


def test_numbers_that_do_not_fit() -> None:
    assert (Tensor([1], dtype="int8") + 300).dtype is dtypes.int16
    assert (Tensor([1], dtype="int8") + 100_000).tolist() == [100_001]
    assert (Tensor([1], dtype="int32") + 2**40).tolist() == [2**40 + 1]
    assert (Tensor([1], dtype="uint8") - 2).tolist() == [255]  # 2 fits, and the result wraps
    assert (Tensor([1], dtype="uint8") + -2).tolist() == [-1]  # -2 does not fit, so the type is int16
    assert (Tensor([0], dtype="uint64") + (2**64 - 1)).tolist() == [2**64 - 1]
    with pytest.raises(DTypeError, match="18446744073709551616 does not fit any type"):
        Tensor([1]) + 2**64
    with pytest.raises(DTypeError, match="uint64 and dtypes.int32 have no common type"):
        Tensor([1], dtype="uint64") + -1
    assert (Tensor([1.0]) + 2**200).tolist() == [float("inf")]
    assert (Tensor([1.0], dtype="float64") * 10**400).tolist() == [float("inf")]
    assert (Tensor([1.0], dtype="float16") * 70000).tolist() == [float("inf")]


def test_numbers_that_8_bits_would_make_nan() -> None:
    x = Tensor([1.0, -2.0], dtype="float8_e4m3fn")
    assert (x + 448).dtype is (x * -448.0).dtype is x.dtype
    assert (x * 1000).dtype is dtypes.float32 and (x * 1000).tolist() == [1000.0, -2000.0]
    assert (x < 1000.0).tolist() == [True, True] and (x < float("inf")).tolist() == [True, True]
    assert x.isfinite().tolist() == [True, True] and x.isinf().tolist() == [False, False]
    assert x.masked_fill(x < 0, -float("inf")).tolist() == [1.0, -float("inf")]
    # The other kind has an infinity to say it.
    y = Tensor([1.0], dtype="float8_e5m2") * 1e6
    assert y.dtype is dtypes.float8_e5m2 and y.tolist() == [float("inf")]


@pytest.mark.parametrize("device", DEVICES)
def test_uint64_and_signed_integers_compare_exactly(device: str) -> None:
    left, right = [0, 1, 2**63, 2**64 - 1, 2**63 - 1, 5], [-1, 1, -(2**63), -1, 2**63 - 1, 6]
    x, y = Tensor(left, dtype="uint64", device=device), Tensor(right, dtype="int64", device=device)
    pairs = list(zip(left, right, strict=True))
    assert (x < y).tolist() == [a < b for a, b in pairs] and (y < x).tolist() == [b < a for a, b in pairs]
    assert (x <= y).tolist() == [a <= b for a, b in pairs] and (x >= y).tolist() == [a >= b for a, b in pairs]
    assert (x == y).tolist() == (y == x).tolist() == [a == b for a, b in pairs]
    assert (x != y).tolist() == (y != x).tolist() == [a != b for a, b in pairs]
    assert (x > -1).tolist() == [True] * 6 and (x == -1).tolist() == [False] * 6
