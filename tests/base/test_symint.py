"""Sizes known only at launch: what holds for all values is answered, the rest raises."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gradlet.base.errors import ShapeError
from gradlet.base.symint import Size, Unknown


def unknown(name: str, low: int, high: int, value: int) -> Unknown:
    return Unknown(name, name, low, high, value)


N = unknown("n", 2, 64, 7)
M = unknown("m", 0, 64, 7)


@st.composite
def sums(draw: Any) -> tuple[Size, Any]:
    """A size, and how to compute it from values of n and m."""
    a, b, c = (draw(st.integers(-4, 4)) for _ in range(3))
    return Size({N: a, M: b}, c), lambda n, m: a * n + b * m + c


@given(sums(), sums(), st.integers(-5, 5), st.integers(2, 64), st.integers(0, 64))
def test_arithmetic_holds_for_all_values(one: Any, other: Any, k: int, n: int, m: int) -> None:
    (x, f), (y, g) = one, other

    def at(size: Any) -> int:
        if not isinstance(size, Size):
            return int(size)
        return size.constant + sum({N: n, M: m}[u] * factor for u, factor in size.terms.items())

    assert at(x + y) == f(n, m) + g(n, m)
    assert at(x - k) == f(n, m) - k and at(k - x) == k - f(n, m)
    assert at(x * k) == at(k * x) == f(n, m) * k
    assert x.low <= f(n, m) <= x.high


@given(
    sums(), sums(), st.sampled_from(["__lt__", "__le__", "__gt__", "__ge__"]), st.integers(2, 64), st.integers(0, 64)
)
def test_comparisons_hold_for_all_values_or_raise(one: Any, other: Any, name: str, n: int, m: int) -> None:
    (x, f), (y, g) = one, other
    try:
        answer = getattr(x, name)(y)
    except ShapeError as error:
        assert "known only at launch" in str(error)
        return
    assert answer == getattr(f(n, m), name)(g(n, m))


@given(sums(), st.integers(1, 6), st.integers(2, 64), st.integers(0, 64))
def test_division_leaves_no_rest_or_raises(one: Any, divisor: int, n: int, m: int) -> None:
    x, f = one
    try:
        quotient = x // divisor
    except ShapeError:
        assert any(factor % divisor for factor in [*x.terms.values(), x.constant])
        return
    assert isinstance(quotient, Size)
    assert quotient.constant + sum({N: n, M: m}[u] * k for u, k in quotient.terms.items()) == f(n, m) // divisor


def test_values_that_agree_do_not_make_sizes_equal() -> None:
    n, m = Size({N: 1}), Size({M: 1})
    assert n.value == m.value and n != m and n != 7 and n == Size({N: 1})
    assert hash(n) == hash(Size({N: 1})) and {n: 1}[Size({N: 1})] == 1
    assert n - n == 0 and n * 3 // n == 3


@pytest.mark.parametrize(
    "use",
    [
        int,
        float,
        range,
        lambda n: [1][n],
        lambda n: n * Size({M: 1}),
        lambda n: n % 3,
        lambda n: 7 // n,
        lambda n: 7 % n,
        lambda n: n / 2,
        lambda n: 1 / n,
    ],
)
def test_what_needs_a_number_raises(use: Any) -> None:
    with pytest.raises(ShapeError, match="n"):
        use(Size({N: 1}))


def test_text() -> None:
    assert str(Size({N: 2, M: 1}, -1)) == "2 * n + m + -1"
