"""Accuracy of element-wise functions: every float16 and bfloat16, float32 and float64 of every exponent and sign.

Errors are in units in the last place of the result's type, against a reference that is exact to the next wider type
(numpy in long double, or mpmath). docs/numerics.md has the table that `table` prints.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable
from typing import Any

import mpmath
import numpy as np
import pytest

from gradlet import Tensor

Array = np.ndarray[Any, Any]
WIDE: Any = np.longdouble


def by_mpmath(function: Callable[[Any], Any]) -> Callable[[Array], Array]:
    """A reference by mpmath, value by value."""

    def compute(values: Array) -> Array:
        results = []
        with mpmath.workdps(40):
            for value in values.tolist():
                try:
                    exact = function(mpmath.mpf(float(value)))
                    real = exact if not isinstance(exact, mpmath.mpc) else mpmath.nan
                except (ValueError, ZeroDivisionError):
                    real = mpmath.nan
                results.append(WIDE(mpmath.nstr(real, 25)) if mpmath.isfinite(real) else WIDE(float(real)))
        return np.array(results, WIDE).reshape(values.shape)

    return compute


def _softplus(x: Array) -> Array:
    return np.maximum(x, 0) + np.log1p(np.exp(-np.abs(x)))


# name -> reference in long double, bound in float32, bound in float64
FUNCTIONS: dict[str, tuple[Callable[[Array], Array], float, float]] = {
    "exp": (np.exp, 1.01, 0.55),
    "exp2": (np.exp2, 1.01, 0.55),
    "log": (np.log, 1.0, 0.55),
    "log2": (np.log2, 1.5, 0.6),
    "log10": (np.log10, 2.0, 2.0),
    "log1p": (np.log1p, 2.0, 2.0),
    "expm1": (np.expm1, 2.0, 2.0),
    "sin": (np.sin, 0.65, 0.55),
    "cos": (np.cos, 0.65, 0.55),
    "tan": (np.tan, 2.0, 2.0),
    "asin": (np.arcsin, 1.5, 1.75),
    "acos": (np.arccos, 1.5, 1.5),
    "atan": (np.arctan, 1.5, 2.0),
    "sinh": (np.sinh, 2.0, 2.0),
    "cosh": (np.cosh, 2.0, 1.5),
    "tanh": (np.tanh, 1.5, 2.0),
    "asinh": (np.arcsinh, 2.0, 2.0),
    "acosh": (np.arccosh, 2.0, 2.0),
    "atanh": (np.arctanh, 2.0, 2.0),
    "sigmoid": (lambda x: 1 / (1 + np.exp(-x)), 2.0, 2.0),
    "erf": (by_mpmath(mpmath.erf), 1.5, 1.5),
    "sqrt": (np.sqrt, 0.5, 0.5),
    "rsqrt": (lambda x: 1 / np.sqrt(x), 1.5, 1.5),
    "softplus": (_softplus, 2.0, 2.0),
    "logsigmoid": (lambda x: -_softplus(-x), 2.0, 2.0),
    "silu": (lambda x: x / (1 + np.exp(-x)), 2.0, 2.0),
}


# two operands: reference in long double, bound in float32, bound in float64
PAIRS: dict[str, tuple[Callable[[Array, Array], Array], float, float]] = {
    "atan2": (np.arctan2, 2.0, 2.0),
    "hypot": (np.hypot, 2.0, 2.0),
    "pow": (np.power, 0.51, 1.0),
}


def errors(got: Array, exact: Array, spacing: Callable[[Array], Array], largest: float) -> Array:
    """Distance in units in the last place; infinity where one is special and the other is not that."""
    with np.errstate(all="ignore"):
        size = np.minimum(np.abs(exact), WIDE(largest))
        error = np.abs(got.astype(WIDE) - exact) / spacing(size)
    both_nan = np.isnan(got) & np.isnan(exact)
    same_infinity = np.isinf(got) & (got.astype(WIDE) == exact)
    # A result beyond the largest number may become infinite.
    overflow = np.isinf(got) & (np.abs(exact) >= WIDE(largest)) & (np.sign(got) == np.sign(exact))
    special = ~np.isfinite(got) | ~np.isfinite(exact)
    return np.where(both_nan | same_infinity | overflow, 0, np.where(special, np.inf, error))


def spacing_of(dtype: str) -> tuple[Callable[[Array], Array], float]:
    """The unit in the last place of a result of this size, and the largest number."""
    digits, smallest, largest = {
        "float16": (11, -14, 65504.0), "bfloat16": (8, -126, 3.3895313892515355e38),
        "float32": (24, -126, 3.4028234663852886e38), "float64": (53, -1022, 1.7976931348623157e308),
    }[dtype]  # fmt: skip

    def spacing(size: Array) -> Array:
        _, exponent = np.frexp(size)
        return np.ldexp(WIDE(1), np.maximum(exponent - 1, smallest) - (digits - 1))

    return spacing, largest


def all_codes(dtype: str) -> Array:
    """Every number of a 16-bit type, as float32."""
    codes = np.arange(65536, dtype=np.uint16)
    if dtype == "float16":
        return codes.view(np.float16).astype(np.float32)
    return (codes.astype(np.uint32) << 16).view(np.float32)


def samples(dtype: str, count: int, seed: int = 0) -> Array:
    """Numbers of every exponent and sign, more of them of usual size, and special ones."""
    rng = np.random.default_rng(seed)
    bits = rng.integers(0, 2**64, count, dtype=np.uint64)
    spread = bits.view(np.float64) if dtype == "float64" else bits.astype(np.uint32).view(np.float32)
    usual = np.concatenate([rng.uniform(-1, 1, count), rng.uniform(-10, 10, count), rng.uniform(-100, 100, count)])
    near_one = 1 + rng.uniform(-1, 1, count) * 2.0 ** rng.uniform(-20, 0, count)
    special = [0.0, -0.0, math.inf, -math.inf, math.nan, 1.0, -1.0, 0.5, -0.5, 5e-324, 1e-45, -1e-45, 1e-38, 3.4e38]
    with np.errstate(all="ignore"):
        return np.concatenate([spread, usual, near_one, special]).astype(dtype)


def measure(name: str, dtype: str, values: Array) -> tuple[Array, Array]:
    """The errors of a function in a type, and where."""
    reference = FUNCTIONS[name][0]
    if name == "silu":  # the sigmoid is subnormal beyond: documented
        values = values[~(values < (-700 if dtype == "float64" else -80))]
    got = getattr(Tensor(values).cast(dtype), name)().cast("float64" if dtype == "float64" else "float32").numpy()
    with np.errstate(all="ignore"):
        exact = reference(values.astype(WIDE))
    return errors(got, exact, *spacing_of(dtype)), values


def worst(name: str, dtype: str, values: Array) -> tuple[float, float]:
    """The largest error, and where it is."""
    found, tried = measure(name, dtype, values)
    place = int(np.argmax(found))
    return float(found[place]), float(tried[place])


def measure_pair(name: str, dtype: str, count: int) -> Array:
    """The errors of a function of two operands, of similar and of any size."""
    x, y = samples(dtype, count), np.random.default_rng(1).permutation(samples(dtype, count, 2))
    got = getattr(Tensor(x), name)(Tensor(y)).numpy()
    with np.errstate(all="ignore"):
        exact = PAIRS[name][0](x.astype(WIDE), y.astype(WIDE))
    return errors(got, exact, *spacing_of(dtype))


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("name", PAIRS)
def test_two_operands(name: str, dtype: str) -> None:
    assert measure_pair(name, dtype, 5_000).max() <= PAIRS[name][1 if dtype == "float32" else 2]


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize("name", FUNCTIONS)
def test_every_number_of_16_bits(name: str, dtype: str) -> None:
    # Rounded once from float32: half a unit, and where float32 is just beside the middle a little more.
    values = all_codes(dtype)
    error, where = worst(name, dtype, values[::16] if name == "erf" else values)
    assert error <= 0.51, where


@pytest.mark.parametrize("name", FUNCTIONS)
def test_float32(name: str) -> None:
    error, where = worst(name, "float32", samples("float32", 1000 if name == "erf" else 20_000))
    assert error <= FUNCTIONS[name][1], where


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(set(FUNCTIONS) - {"erf"}))
def test_many_of_float32(name: str) -> None:
    for seed in range(1, 3):
        error, where = worst(name, "float32", samples("float32", 400_000, seed))
        assert error <= FUNCTIONS[name][1], where


@pytest.mark.parametrize("name", FUNCTIONS)
def test_float64(name: str) -> None:
    error, where = worst(name, "float64", samples("float64", 500 if name == "erf" else 8_000))
    assert error <= FUNCTIONS[name][2], where


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("name", sorted(set(FUNCTIONS) - {"rsqrt"}))
def test_zeros_keep_their_sign(name: str, dtype: str) -> None:
    zeros = np.array([0.0, -0.0], dtype)
    with np.errstate(all="ignore"):
        expected = FUNCTIONS[name][0](zeros.astype(WIDE)).astype(dtype)
    got = getattr(Tensor(zeros), name)().numpy()
    np.testing.assert_array_equal(got, expected)
    numbers = ~np.isnan(expected)
    if name != "erf":
        np.testing.assert_array_equal(np.signbit(got[numbers]), np.signbit(expected[numbers]))


def test_sine_cosine_and_tangent_of_huge_numbers() -> None:
    values = np.array([16367173 * 2.0**72, 2.0**127, 1e5, 1e10, 3.4e38, -7.0e22, 1.2345e30], np.float32)
    for name, exact in (("sin", mpmath.sin), ("cos", mpmath.cos), ("tan", mpmath.tan)):
        with mpmath.workdps(120):
            wanted = np.array([WIDE(mpmath.nstr(exact(mpmath.mpf(float(v))), 25)) for v in values])
        got = getattr(Tensor(values), name)().numpy()
        assert errors(got, wanted, *spacing_of("float32")).max() <= 3, name


# name -> reference in float64, whose own error is nothing beside a unit of float32
DENSE: dict[str, Callable[[Array], Array]] = {
    "exp": np.exp, "exp2": np.exp2, "log": np.log, "log2": np.log2, "tanh": np.tanh, "sqrt": np.sqrt,
    "rsqrt": lambda x: 1 / np.sqrt(x), "sigmoid": lambda x: 1 / (1 + np.exp(-x)), "sin": np.sin, "cos": np.cos,
    "erf": np.vectorize(math.erf, [float]),
}  # fmt: skip


def dense_error(name: str, codes: Array) -> tuple[float, float]:
    """The largest error among these bit patterns of float32, and where."""
    values = codes.view(np.float32)
    with np.errstate(all="ignore"):
        exact = DENSE[name](values.astype(np.float64))
        got = getattr(Tensor(values), name)().numpy()
        _, exponent = np.frexp(np.minimum(np.abs(exact), 3.4028234663852886e38))
        error = np.abs(got - exact) / np.ldexp(1.0, np.maximum(exponent - 1, -126) - 23)
    same = (np.isnan(got) & np.isnan(exact)) | (got == exact)
    overflow = np.isinf(got) & (np.abs(exact) > 3.4028234663852886e38) & (np.sign(got) == np.sign(exact))
    error = np.where(same | overflow, 0, np.where(np.isnan(error), np.inf, error))
    return float(error.max()), float(values[error.argmax()])


@pytest.mark.parametrize("name", sorted(set(DENSE) - {"erf", "sin", "cos"}))
def test_two_million_of_all_exponents(name: str) -> None:
    error, where = dense_error(name, np.arange(0, 2**32, 2039, dtype=np.uint32))
    assert error <= FUNCTIONS[name][1] + 0.01, where


@pytest.mark.slow
@pytest.mark.parametrize("name", DENSE)
def test_fifty_million_of_all_exponents(name: str) -> None:
    step = 83 if name != "erf" else 1999
    for start in range(0, 2**32, 2**28):
        error, where = dense_error(name, np.arange(start, start + 2**28, step, dtype=np.uint32))
        assert error <= FUNCTIONS[name][1] + 0.01, where


def test_pitfalls_of_exponentials() -> None:
    """Caps keep NaN, the last finite and the first infinite power, subnormal powers, and nothing below them."""
    log_largest = np.float32(88.72283935546875)  # the largest float32 whose power is finite
    values = np.array([math.nan, log_largest, np.nextafter(log_largest, np.float32(89)), 89, 1000, math.inf, -87.5,
                       -103.9, -104, -150, -math.inf, 0.0, -0.0], np.float32)  # fmt: skip
    for features in (values, np.tile(values, 5)):  # lanes, and a scalar rest
        got = Tensor(features).exp().numpy()[: len(values)]
        with np.errstate(all="ignore"):
            exact = np.exp(values.astype(np.float64)).astype(np.float32)
        special = ~np.isfinite(exact) | (exact == 0) | (exact == 1)
        np.testing.assert_array_equal(got[special], exact[special])
        np.testing.assert_allclose(got[~special], exact[~special], rtol=2e-7, atol=1.5e-45)


def test_nan_is_passed_on() -> None:
    values = np.random.default_rng(0).standard_normal((3, 70)).astype(np.float32)
    values[0, 3] = values[1, 69] = math.nan
    with np.errstate(all="ignore"):
        for name in ("exp", "tanh", "erf", "sigmoid", "silu", "log", "sqrt"):
            got = getattr(Tensor(values), name)().numpy()
            assert np.isnan(got[0, 3]) and np.isnan(got[1, 69]), name
    assert Tensor(values).argmax(1).tolist()[:2] == [3, 69]
    assert Tensor(values).argmin(1).tolist()[:2] == [3, 69]
    assert np.isnan(Tensor(values).max(1).numpy()).tolist() == [True, True, False]
    assert np.isnan(Tensor(values).softmax(1).numpy()).all(1).tolist() == [True, True, False]


def table() -> None:
    """Print the largest errors found, for docs/numerics.md."""
    for name in sys.argv[1:] or FUNCTIONS:
        row = [worst(name, d, all_codes(d)) for d in ("float16", "bfloat16")]
        row += [worst(name, d, samples(d, 3000 if name == "erf" else 400_000)) for d in ("float32", "float64")]
        print(f"| `{name}` | " + " | ".join(f"{error:.3g} ({where:.6g})" for error, where in row) + " |", flush=True)
    for name in PAIRS:
        print(name, *[f"{measure_pair(name, dtype, 50_000).max():.3g}" for dtype in ("float32", "float64")])


if __name__ == "__main__":
    table()
