"""Orthogonal polynomials against mpmath, with numbers and with tensors as degrees."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import mpmath
import numpy as np
import pytest

from gradlet import Tensor
from gradlet.ops.polynomials import LARGEST_DEGREE

Exact = Callable[[int, Any], Any]


def u(n: int, x: Any) -> Any:
    return mpmath.chebyu(n, x) if n >= 0 else mpmath.mpf(0)


def laguerre(n: int, x: Any) -> Any:
    return sum(mpmath.binomial(n, k) * (-x) ** k / mpmath.factorial(k) for k in range(n + 1))


POLYNOMIALS: list[tuple[str, Exact]] = [
    ("chebyshev_polynomial_t", mpmath.chebyt),
    ("chebyshev_polynomial_u", u),
    ("chebyshev_polynomial_v", lambda n, x: u(n, x) - u(n - 1, x)),
    ("chebyshev_polynomial_w", lambda n, x: u(n, x) + u(n - 1, x)),
    ("shifted_chebyshev_polynomial_t", lambda n, x: mpmath.chebyt(n, 2 * x - 1)),
    ("shifted_chebyshev_polynomial_u", lambda n, x: u(n, 2 * x - 1)),
    ("shifted_chebyshev_polynomial_v", lambda n, x: u(n, 2 * x - 1) - u(n - 1, 2 * x - 1)),
    ("shifted_chebyshev_polynomial_w", lambda n, x: u(n, 2 * x - 1) + u(n - 1, 2 * x - 1)),
    ("hermite_polynomial_h", mpmath.hermite),
    ("hermite_polynomial_he", lambda n, x: mpmath.hermite(n, x / mpmath.sqrt(2)) / mpmath.sqrt(2) ** n),
    ("laguerre_polynomial_l", laguerre),
    ("legendre_polynomial_p", mpmath.legendre),
]  # fmt: skip
DEGREES = [0, 1, 2, 3, 7, 20]
POINTS = np.array([-1.3, -1.0, -0.52, -1e-12, 0.0, 0.27, 0.93, 1.0, 1.45], "float32")


@pytest.mark.parametrize(
    ("name", "exact"),
    [pytest.param(*row, id=row[0], marks=[pytest.mark.slow] if "shifted" in row[0] else []) for row in POLYNOMIALS],
)
def test_values(name: str, exact: Exact) -> None:
    with mpmath.workdps(40):
        expected = [[exact(n, mpmath.mpf(float(x))) for x in POINTS] for n in DEGREES]
    truth = np.array([[float(v) for v in row] for row in expected])
    # Negative degrees give 0, fractions count as the whole number below.
    x, degrees = Tensor(POINTS), Tensor([float(n) for n in DEGREES] + [-1.0, -0.5, 2.9]).reshape(-1, 1)
    together = getattr(x, name)(degrees).numpy()
    np.testing.assert_allclose(together[: len(DEGREES)], truth, rtol=1.3e-7, atol=2e-15)
    assert (together[-3] == 0).all()
    assert (together[-2] == 1).all()
    np.testing.assert_array_equal(together[-1], together[DEGREES.index(2)])
    one = getattr(x, name)(7).numpy()
    np.testing.assert_allclose(one, truth[DEGREES.index(7)], rtol=1.3e-7, atol=2e-15)
    assert getattr(x, name)(0).numpy().tolist() == [1] * len(POINTS)
    assert getattr(x, name)(-3).numpy().tolist() == [0] * len(POINTS)


def test_high_degrees() -> None:
    x = Tensor([0.3, -0.7])
    with mpmath.workdps(40):
        expected = [float(mpmath.legendre(80, mpmath.mpf(float(v)))) for v in x.tolist()]
        wave = [float(mpmath.chebyt(1000, mpmath.mpf(float(v)))) for v in x.tolist()]
    np.testing.assert_allclose(x.legendre_polynomial_p(80).numpy(), expected, rtol=1e-6)
    np.testing.assert_allclose(x.chebyshev_polynomial_t(Tensor([1000, 1000])).numpy(), wave, rtol=1e-6)
    # A tensor of degrees has a limit; beyond it there is no value rather than a wrong one.
    degrees = Tensor([LARGEST_DEGREE, LARGEST_DEGREE + 1])
    found = x.legendre_polynomial_p(degrees).numpy()
    assert math.isfinite(found[0])
    assert math.isnan(found[1])
