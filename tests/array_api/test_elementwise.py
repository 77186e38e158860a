"""Element-wise functions of the standard: special cases, values, types, numbers beside arrays, broadcasting."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import gradlet.array_api as xp
from gradlet import Tensor, dtypes
from gradlet.base.errors import DTypeError
from tests.array_api.special import BINARY, COMPARISONS, TESTS, UNARY

FLOATS = ("float32", "float64")
SIGNED = ("int8", "int16", "int32", "int64")
UNSIGNED = ("uint8", "uint16", "uint32", "uint64")
INTS = (*SIGNED, *UNSIGNED)
NUMERIC = (*INTS, *FLOATS)
# Where every type takes the same path, some stand for all.
SOME_INTS = ("int8", "int64", "uint16", "uint64")
SOME = (*SOME_INTS, *FLOATS)


def same(ours: np.ndarray, theirs: Any) -> None:
    """Equal numbers up to rounding, with the signs of zeros."""
    theirs = np.asarray(theirs, ours.dtype)
    np.testing.assert_allclose(ours, theirs, rtol=1e-6 if ours.dtype == np.float32 else 1e-12)
    zeros = theirs == 0
    np.testing.assert_array_equal(np.signbit(ours)[zeros], np.signbit(theirs)[zeros])


# special cases
@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("name", UNARY)
def test_special_cases_of_one(name: str, dtype: str) -> None:
    arguments, results = zip(*UNARY[name], strict=True)
    same(getattr(xp, name)(Tensor(list(arguments), dtype=dtype)).numpy(), results)


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("name", BINARY)
def test_special_cases_of_two(name: str, dtype: str) -> None:
    first, second, results = zip(*BINARY[name], strict=True)
    same(getattr(xp, name)(Tensor(list(first), dtype=dtype), Tensor(list(second), dtype=dtype)).numpy(), results)


@pytest.mark.parametrize("name", TESTS)
def test_special_cases_of_tests(name: str) -> None:
    arguments, results = zip(*TESTS[name], strict=True)
    result = getattr(xp, name)(Tensor(list(arguments)))
    assert result.dtype is dtypes.bool
    assert result.tolist() == list(results)


@pytest.mark.parametrize("name", COMPARISONS)
def test_special_cases_of_comparisons(name: str) -> None:
    first, second, results = zip(*COMPARISONS[name], strict=True)
    result = getattr(xp, name)(Tensor(list(first)), Tensor(list(second)))
    assert result.dtype is dtypes.bool
    assert result.tolist() == list(results)


# values and types
UNARY_TYPES: dict[str, tuple[str, ...]] = {
    **dict.fromkeys(("abs", "negative", "positive", "sign", "square"), SOME),
    **dict.fromkeys(("ceil", "floor", "round", "trunc"), ("int8", *FLOATS)),
    **dict.fromkeys(
        ("acos", "acosh", "asin", "asinh", "atan", "atanh", "cos", "cosh", "exp", "expm1", "log", "log1p", "log2",
         "log10", "reciprocal", "sin", "sinh", "sqrt", "tan", "tanh"), FLOATS,
    ),
    "bitwise_invert": ("bool", *SOME_INTS),
    "conj": ("int8", "float32"),
    "real": ("int8", "float32"),
    "imag": FLOATS,
}  # fmt: skip
TO_BOOL: dict[str, tuple[str, ...]] = {
    **dict.fromkeys(("isfinite", "isinf", "isnan"), ("int8", *FLOATS)), "signbit": FLOATS, "logical_not": ("bool",),
}  # fmt: skip


def some(dtype: str, seed: int = 0) -> np.ndarray:
    """Twelve values of a type, zero and negative ones among them where it has them."""
    rng = np.random.default_rng(seed)
    if dtype == "bool":
        return rng.integers(0, 2, 12).astype(bool)
    if dtype in FLOATS:
        return np.concatenate([rng.uniform(-0.99, 0.99, 8), [0.0, 1.0, 1.75, 6.5]]).astype(dtype)
    low, high = (0, 100) if dtype in UNSIGNED else (-100, 100)
    return np.concatenate([rng.integers(low, high, 10), [0, 1]]).astype(dtype)


@pytest.mark.parametrize("name", UNARY_TYPES)
def test_values_and_types_of_one(name: str) -> None:
    for dtype in UNARY_TYPES[name]:
        x = some(dtype).reshape(3, 4)
        with np.errstate(all="ignore"):
            expected = getattr(np, name)(x)
        result = getattr(xp, name)(Tensor(x))
        assert result.dtype.name == dtype
        assert result.shape == (3, 4)
        np.testing.assert_allclose(result.numpy(), expected, rtol=2e-6 if dtype == "float32" else 1e-12)


@pytest.mark.parametrize("name", TO_BOOL)
def test_values_of_tests(name: str) -> None:
    for dtype in TO_BOOL[name]:
        x = some(dtype)
        result = getattr(xp, name)(Tensor(x))
        assert result.dtype is dtypes.bool
        np.testing.assert_array_equal(result.numpy(), getattr(np, name)(x))


BINARY_TYPES: dict[str, tuple[str, ...]] = {
    **dict.fromkeys(("add", "multiply", "subtract", "maximum", "minimum", "floor_divide", "remainder"), SOME),
    **dict.fromkeys(("atan2", "copysign", "divide", "hypot", "logaddexp", "nextafter"), FLOATS),
    **dict.fromkeys(("bitwise_and", "bitwise_or", "bitwise_xor"), ("bool", *SOME_INTS)),
}
BINARY_TO_BOOL: dict[str, tuple[str, ...]] = {
    **dict.fromkeys(("equal", "not_equal"), ("bool", *SOME)),
    **dict.fromkeys(("greater", "greater_equal", "less", "less_equal"), SOME),
    **dict.fromkeys(("logical_and", "logical_or", "logical_xor"), ("bool",)),
}


@pytest.mark.parametrize("name", BINARY_TYPES)
def test_values_and_types_of_two(name: str) -> None:
    for dtype in BINARY_TYPES[name]:
        x, y = some(dtype), some(dtype, 1)
        if name in ("floor_divide", "remainder"):
            y[y == 0] = 3
        with np.errstate(all="ignore"):
            expected = getattr(np, name)(x, y)
        result = getattr(xp, name)(Tensor(x), Tensor(y))
        assert result.dtype.name == dtype
        np.testing.assert_allclose(result.numpy(), expected, rtol=2e-6 if dtype == "float32" else 1e-12)


@pytest.mark.parametrize("name", BINARY_TO_BOOL)
def test_values_of_comparisons(name: str) -> None:
    for dtype in BINARY_TO_BOOL[name]:
        x, y = some(dtype), some(dtype, 1)
        y[:4] = x[:4]
        result = getattr(xp, name)(Tensor(x), Tensor(y))
        assert result.dtype is dtypes.bool
        np.testing.assert_array_equal(result.numpy(), getattr(np, name)(x, y))


@pytest.mark.parametrize("dtype", SOME_INTS)
def test_shifts(dtype: str) -> None:
    x, y = some(dtype), np.arange(12).astype(dtype) % 8
    for name in ("bitwise_left_shift", "bitwise_right_shift"):
        result = getattr(xp, name)(Tensor(x), Tensor(y))
        assert result.dtype.name == dtype
        np.testing.assert_array_equal(result.numpy(), getattr(np, name)(x, y))


def test_powers() -> None:
    base, exponent = Tensor([2.0, 3.0, 0.5]), Tensor([3.0, 0.5, -2.0])
    np.testing.assert_allclose(xp.pow(base, exponent).numpy(), [8, 3**0.5, 4], rtol=1e-6)
    for dtype in ("int8", "uint64"):
        result = xp.pow(Tensor([2, 3, 5], dtype=dtype), Tensor([3, 4, 0], dtype=dtype))
        assert result.dtype.name == dtype
        assert result.tolist() == [8, 81, 1]


def test_results_that_need_all_digits() -> None:
    tiny = Tensor([1e-10, -1e-10], dtype="float64")
    np.testing.assert_allclose(xp.expm1(tiny).numpy(), np.expm1(tiny.numpy()), rtol=1e-15)
    np.testing.assert_allclose(xp.log1p(tiny).numpy(), np.log1p(tiny.numpy()), rtol=1e-15)
    large = Tensor([700.0], dtype="float64")
    np.testing.assert_allclose(xp.logaddexp(large, large).numpy(), np.logaddexp(700.0, 700.0), rtol=1e-15)


@pytest.mark.parametrize("dtype", FLOATS)
def test_next_values(dtype: str) -> None:
    kind = np.dtype(dtype).type
    limits = np.finfo(dtype)
    x = np.array([0, -0.0, 1, -1, limits.max, -limits.max, limits.tiny, limits.smallest_subnormal, 2, np.inf], kind)
    y = np.array([1, -1, 2, 0, np.inf, 0, 0, 0, -np.inf, 0], kind)
    result = xp.nextafter(Tensor(x), Tensor(y)).numpy()
    with np.errstate(over="ignore"):
        np.testing.assert_array_equal(result, np.nextafter(x, y))


# meeting types
GROUPS = {
    "signed": {(a, b): max(a, b, key=SIGNED.index) for a in SIGNED for b in SIGNED},
    "unsigned": {(a, b): max(a, b, key=UNSIGNED.index) for a in UNSIGNED for b in UNSIGNED},
    "mixed": {
        ("int8", "uint8"): "int16", ("int8", "uint16"): "int32", ("int8", "uint32"): "int64",
        ("int16", "uint8"): "int16", ("int16", "uint16"): "int32", ("int16", "uint32"): "int64",
        ("int32", "uint8"): "int32", ("int32", "uint16"): "int32", ("int32", "uint32"): "int64",
        ("int64", "uint8"): "int64", ("int64", "uint16"): "int64", ("int64", "uint32"): "int64",
    },
    "floats": {(a, b): max(a, b) for a in FLOATS for b in FLOATS},
}  # fmt: skip


@pytest.mark.parametrize("group", GROUPS)
def test_promotion(group: str) -> None:
    for (first, second), expected in GROUPS[group].items():
        for a, b in ((first, second), (second, first)):
            x, y = Tensor([1], dtype=a), Tensor([2], dtype=b)
            for result in (xp.add(x, y), x + y, xp.where(Tensor([True]), x, y), xp.concat([x, y])):
                assert result.dtype.name == expected, (a, b)
            assert xp.result_type(x, y).name == expected
            assert xp.equal(x, y).dtype is dtypes.bool


@pytest.mark.parametrize("dtype", NUMERIC)
def test_numbers_do_not_widen(dtype: str) -> None:
    x = Tensor([1, 2, 3], dtype=dtype)
    numbers: list[Any] = [2, 2.0] if dtype in FLOATS else [2]
    for number in numbers:
        for result in (xp.add(x, number), xp.add(number, x), x * number, number - x, xp.maximum(x, number)):
            assert result.dtype.name == dtype
        assert xp.subtract(number, x).tolist() == (number - x).tolist()
        assert xp.less(x, number).tolist() == [True, False, False]
        assert xp.where(Tensor([True, False, True]), x, number).dtype.name == dtype


MISMATCHES: list[tuple[Callable[[], Any], str]] = [
    (lambda: xp.add(Tensor([1]), 1.5), "the number 1.5 beside dtypes.int32"),
    (lambda: xp.add(Tensor([1]), True), "a bool beside dtypes.int32"),
    (lambda: xp.add(Tensor([True]), 1), "the number 1 beside dtypes.bool"),
    (lambda: xp.add(Tensor([1], dtype="int8"), 200), "200 does not fit dtypes.int8"),
    (lambda: xp.add(Tensor([1.0]), 1j), "add: there are no complex numbers"),
    (lambda: xp.add(1, 2), "add: x1 or x2 must be a Tensor"),
    (lambda: xp.add(Tensor([1]), "a"), "expected arrays or Python numbers, got str"),
    (lambda: xp.sin(1.0), "sin: x must be a Tensor, got float; use asarray"),
    (lambda: xp.abs(Tensor([True])), "abs: numeric arrays only, got dtypes.bool"),
    (lambda: xp.subtract(Tensor([True]), Tensor([True])), "subtract: numeric arrays only"),
    (lambda: xp.bitwise_and(Tensor([1.0]), Tensor([1.0])), "bitwise_and: integers and bools only"),
    (lambda: xp.bitwise_left_shift(Tensor([1.0]), Tensor([1.0])), "bitwise_left_shift: integral arrays only"),
    (lambda: xp.nextafter(Tensor([1]), Tensor([2])), "nextafter: real floating arrays only"),
]


@pytest.mark.parametrize("row", MISMATCHES, ids=range(len(MISMATCHES)))
def test_types_that_do_not_meet(row: tuple[Callable[[], Any], str]) -> None:
    with pytest.raises(DTypeError) as caught:
        row[0]()
    assert row[1] in str(caught.value)


# clip
def test_clip() -> None:
    x = np.array([-2.0, -0.5, 0.0, 0.5, np.nan, 3.0], np.float32)
    for low, high in ((None, None), (-1, None), (None, 1.0), (-1, 1.5), (0.25, 0.25)):
        result = xp.clip(Tensor(x), low, high)
        assert result.dtype is dtypes.float32
        np.testing.assert_array_equal(result.numpy(), np.clip(x, low, high))
    bounds = Tensor([[0.0], [1.0]])
    np.testing.assert_array_equal(xp.clip(Tensor(x), bounds, 2).numpy(), np.clip(x, [[0.0], [1.0]], 2))
    assert xp.clip(Tensor([1, 5, 9], dtype="int8"), min=2, max=7).tolist() == [2, 5, 7]
    assert xp.clip(Tensor([1, 5], dtype="uint8"), Tensor(2, dtype="uint8")).dtype is dtypes.uint8


SHAPES = st.lists(st.integers(0, 3), max_size=3).map(tuple)


@settings(max_examples=15, deadline=None)
@given(data=st.data())
def test_broadcasting(data: st.DataObject) -> None:
    shape = data.draw(SHAPES)
    cut = data.draw(st.integers(0, len(shape)))
    other = tuple(1 if data.draw(st.booleans()) else size for size in shape[cut:])
    x, y = np.ones(shape, np.float32), np.full(other, 2, np.float32)
    expected = x + y
    result = xp.add(Tensor(x), Tensor(y))
    assert result.shape == expected.shape
    np.testing.assert_array_equal(result.numpy(), expected)
