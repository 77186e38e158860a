"""Special functions against mpmath: the last bit in float32, stated bounds in float64; edges and derivatives."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import mpmath
import numpy as np
import pytest

from gradlet import Tensor, dtypes, jit

INFINITY, NAN = math.inf, math.nan
Reference = Callable[[Any], Any]


def both(values: Sequence[float]) -> list[float]:
    return [*values, *[-v for v in values]]


def spread(low: float, high: float, count: int) -> list[float]:
    """Powers of ten between two exponents, none of them round."""
    return [10 ** (low + (high - low) * (k + 0.37) / count) for k in range(count)]


def line(low: float, high: float, count: int) -> list[float]:
    return [low + (high - low) * (k + 0.43) / count for k in range(count)]


AROUND = [*line(-9.5, 9.5, 25), *both(spread(-6, 2, 8))]
POSITIVE = [*line(0.0, 12.0, 20), *spread(-6, 1.9, 10)]
INSIDE = [*line(-1.0, 1.0, 25), *both(spread(-8, -1, 6)), *both([1 - 10.0**-k for k in range(2, 7)])]


def quantile(p: Any) -> Any:
    return mpmath.sqrt(2) * mpmath.erfinv(2 * p - 1)


# name, its exact value, where, and the relative error in float64 (None: absolute 4e-15, next to zeros).
FUNCTIONS: list[tuple[str, Reference, Sequence[float], float | None]] = [
    ("erfc", mpmath.erfc, [*AROUND, 25.0], 2e-15),
    ("erfcx", lambda x: mpmath.exp(x * x) * mpmath.erfc(x), [v for v in AROUND if v < 60] + [-26.0], 2e-15),
    ("erfinv", mpmath.erfinv, INSIDE, 2e-15),
    ("ndtr", mpmath.ncdf, [*AROUND[:35], -13.0, -37.0], 2e-15),
    ("log_ndtr", lambda x: mpmath.log(mpmath.ncdf(x)), [*AROUND[:25], -13.0, -37.0], 4e-15),
    ("ndtri", quantile, [*line(0.0, 1.0, 25), *spread(-7, -1, 6)], 4e-15),
    ("entr", lambda x: -x * mpmath.log(x), POSITIVE, 1e-14),
    ("i0", lambda x: mpmath.besseli(0, x), [v for v in AROUND if abs(v) < 85], 4e-15),
    ("i0e", lambda x: mpmath.exp(-abs(x)) * mpmath.besseli(0, x), AROUND, 4e-15),
    ("i1", lambda x: mpmath.besseli(1, x), [v for v in AROUND if abs(v) < 85], 4e-15),
    ("i1e", lambda x: mpmath.exp(-abs(x)) * mpmath.besseli(1, x), AROUND, 4e-15),
    ("modified_bessel_k0", lambda x: mpmath.besselk(0, x), POSITIVE, 6e-15),
    ("modified_bessel_k1", lambda x: mpmath.besselk(1, x), POSITIVE, 6e-15),
    ("scaled_modified_bessel_k0", lambda x: mpmath.exp(x) * mpmath.besselk(0, x), POSITIVE, 6e-15),
    ("scaled_modified_bessel_k1", lambda x: mpmath.exp(x) * mpmath.besselk(1, x), POSITIVE, 6e-15),
    ("bessel_j0", lambda x: mpmath.besselj(0, x), [*AROUND, 2.4048255576957728, 1e4], None),
    ("bessel_j1", lambda x: mpmath.besselj(1, x), [*AROUND, 3.8317059702075125, 1e4], None),
    ("bessel_y0", lambda x: mpmath.bessely(0, x), [*POSITIVE, 1e4], None),
    ("bessel_y1", lambda x: mpmath.bessely(1, x), [*line(0.5, 12.0, 20), 1e4], None),
    ("spherical_bessel_j0", lambda x: mpmath.sin(x) / x, [*AROUND, 1e4], None),
    ("airy_ai", mpmath.airyai, [*line(-20.0, 8.0, 40), 1e-5], None),
    ("lgamma", lambda x: mpmath.re(mpmath.loggamma(x)), [*AROUND, *POSITIVE, 1.0001, 1.9999, 1e-30, 3e4], None),
    ("digamma", mpmath.digamma, [*AROUND, *POSITIVE, 1.4616, 3e4], 1e-13),
]


def exact(reference: Reference, values: Sequence[float]) -> list[Any]:
    with mpmath.workdps(40):
        return [reference(mpmath.mpf(v)) for v in values]


def units_off(found: Sequence[float], expected: Sequence[Any]) -> list[float]:
    """Errors in units of the last place of float32."""
    errors = []
    for own, true in zip(found, expected, strict=True):
        with np.errstate(over="ignore"):
            nearest = np.float32(float(true))
        if np.isinf(nearest):
            assert own == nearest
            continue
        errors.append(float(abs(mpmath.mpf(float(own)) - true) / mpmath.mpf(float(np.spacing(abs(nearest))))))
    return errors


@pytest.mark.parametrize(("name", "reference", "values", "bound"), FUNCTIONS, ids=[row[0] for row in FUNCTIONS])
def test_accuracy(name: str, reference: Reference, values: Sequence[float], bound: float | None) -> None:
    narrow = np.array(values, "float32")
    found = getattr(Tensor(narrow), name)().tolist()
    assert max(units_off(found, exact(reference, narrow.tolist()))) < 0.51


@pytest.mark.slow
@pytest.mark.parametrize(("name", "reference", "values", "bound"), FUNCTIONS, ids=[row[0] for row in FUNCTIONS])
def test_accuracy_in_float64(name: str, reference: Reference, values: Sequence[float], bound: float | None) -> None:
    wide = getattr(Tensor(np.array(values, "float64")), name)().tolist()
    for own, true, x in zip(wide, exact(reference, values), values, strict=True):
        error = abs(mpmath.mpf(own) - true)
        assert error <= (bound * abs(true) if bound else 4e-15 * max(1, abs(true), abs(x) ** 0.5)), x


@pytest.mark.parametrize("order", [1, 2, 5])
def test_accuracy_of_polygamma(order: int) -> None:
    values = np.array([*AROUND[:25], *POSITIVE[:20]], "float32")
    expected = exact(lambda x: mpmath.polygamma(order, x), values.tolist())
    assert max(units_off(Tensor(values).polygamma(order).tolist(), expected)) < 0.51


def test_accuracy_of_zeta() -> None:
    s = np.array([*[1 + v for v in spread(-3, 1.5, 8)], 2, 3, 4, 2, 3], "float32")
    q = np.array([*spread(-2, 3, 8), -0.5, -3.25, -7.75, 0.01, 50.0], "float32")

    def reference(power: float, start: float) -> Any:
        # Terms below 0 one by one; mpmath's own function begins above.
        below = max(0, math.ceil(-start))
        terms = sum((mpmath.mpf(start) + k) ** -mpmath.mpf(power) for k in range(below))
        return terms + mpmath.zeta(mpmath.mpf(power), mpmath.mpf(start) + below)

    with mpmath.workdps(60):
        expected = [reference(a, b) for a, b in zip(s.tolist(), q.tolist(), strict=True)]
    assert max(units_off(Tensor(s).zeta(Tensor(q)).tolist(), expected)) < 0.51


def test_the_incomplete_gamma_function() -> None:
    """Small and large a, x on both sides of it, far tails; then the edges."""
    a = [1e-3, 0.5, 0.5, 1, 3, 7.9, 8.1, 8.1, 30, 30, 30, 500, 500, 1e4, 1e4]
    x = [0.3, 0.01, 40, 2, 4.9, 8.5, 7, 9, 3, 31, 80, 400, 560, 9900, 10100]
    edge_a = [0.0, 0.0, 1.0, -1.0, 1.0, INFINITY, INFINITY, 2.0, NAN, 1e30]
    edge_x = [0.0, 1.0, 0.0, 1.0, -1.0, 1.0, INFINITY, INFINITY, 1.0, 1e30]
    edges = [NAN, 1, 0, NAN, NAN, 0, NAN, 1, NAN, 0.5]
    all_a, all_x = np.array(a + edge_a, "float32"), np.array(x + edge_x, "float32")
    found = Tensor.stack(Tensor(all_a).igamma(Tensor(all_x)), Tensor(all_a).igammac(Tensor(all_x))).numpy()
    with mpmath.workdps(30):
        pairs = [(mpmath.mpf(float(b)), mpmath.mpf(float(c))) for b, c in zip(all_a[: len(a)], all_x, strict=False)]
        lower = [mpmath.gammainc(b, 0, c, regularized=True) for b, c in pairs]
        upper = [mpmath.gammainc(b, c, mpmath.inf, regularized=True) for b, c in pairs]
    assert max(units_off(found[0, : len(a)], lower)) < 0.51
    assert max(units_off(found[1, : len(a)], upper)) < 0.51
    np.testing.assert_array_equal(found[0, len(a) :], edges)
    np.testing.assert_array_equal(found[1, len(a) :], 1 - np.array(edges))


# what happens at the edges
EDGES: list[tuple[str, dict[float, float]]] = [
    ("erfc", {INFINITY: 0, -INFINITY: 2, 0.0: 1, NAN: NAN}),
    ("erfcx", {INFINITY: 0, -INFINITY: INFINITY, 0.0: 1, NAN: NAN}),
    ("erfinv", {1.0: INFINITY, -1.0: -INFINITY, 1.5: NAN, -2.0: NAN, 0.0: 0, NAN: NAN}),
    ("ndtr", {INFINITY: 1, -INFINITY: 0, 0.0: 0.5, NAN: NAN}),
    ("log_ndtr", {INFINITY: 0, -INFINITY: -INFINITY, -1e20: -INFINITY, NAN: NAN}),
    ("ndtri", {0.0: -INFINITY, 1.0: INFINITY, 0.5: 0, -0.1: NAN, 1.1: NAN, NAN: NAN}),
    ("entr", {0.0: 0, 1.0: 0, -1.0: -INFINITY, INFINITY: -INFINITY, NAN: NAN}),
    ("lgamma", {0.0: INFINITY, -3.0: INFINITY, INFINITY: INFINITY, -INFINITY: INFINITY, NAN: NAN}),
    ("digamma", {0.0: -INFINITY, -1.0: NAN, INFINITY: INFINITY, -INFINITY: NAN, NAN: NAN}),
    ("i0", {INFINITY: INFINITY, -INFINITY: INFINITY, 100.0: INFINITY, NAN: NAN}),
    ("i1", {INFINITY: INFINITY, -INFINITY: -INFINITY, 0.0: 0, NAN: NAN}),
    ("i0e", {INFINITY: 0, -INFINITY: 0, 0.0: 1, NAN: NAN}),
    ("i1e", {INFINITY: 0, -INFINITY: 0, 0.0: 0, NAN: NAN}),
    ("modified_bessel_k0", {0.0: INFINITY, -1.0: NAN, INFINITY: 0, 200.0: 0, NAN: NAN}),
    ("modified_bessel_k1", {0.0: INFINITY, -1.0: NAN, INFINITY: 0, 200.0: 0, NAN: NAN}),
    ("scaled_modified_bessel_k1", {0.0: INFINITY, -1.0: NAN, INFINITY: 0, NAN: NAN}),
    ("bessel_j0", {INFINITY: 0, -INFINITY: 0, 0.0: 1, NAN: NAN}),
    ("bessel_j1", {INFINITY: 0, -INFINITY: 0, 0.0: 0, NAN: NAN}),
    ("bessel_y0", {0.0: -INFINITY, -1.0: NAN, INFINITY: 0, NAN: NAN}),
    ("bessel_y1", {0.0: -INFINITY, -1.0: NAN, INFINITY: 0, NAN: NAN}),
    ("spherical_bessel_j0", {0.0: 1, INFINITY: 0, -INFINITY: 0, NAN: NAN}),
    ("airy_ai", {INFINITY: 0, -INFINITY: 0, 200.0: 0, NAN: NAN}),
]


@pytest.mark.parametrize(("name", "expected"), EDGES, ids=[row[0] for row in EDGES])
def test_edges(name: str, expected: dict[float, float]) -> None:
    found = getattr(Tensor(list(expected), dtype="float32"), name)().numpy()
    np.testing.assert_array_equal(found, np.array(list(expected.values()), "float32"))


def test_edges_of_zeta() -> None:
    s = Tensor([1.0, 0.5, 2.0, 2.0, 2.5, NAN, 2.0, 3.0])
    q = Tensor([2.0, 2.0, 0.0, -2.0, -1.5, 1.0, INFINITY, NAN])
    np.testing.assert_array_equal(s.zeta(q).numpy(), [INFINITY, NAN, INFINITY, INFINITY, NAN, NAN, 0, NAN])


def test_xlog1py_where_x_is_zero() -> None:
    x, y = Tensor([0.0, 0.0, 0.0, 0.0]), Tensor([-1.0, INFINITY, -5.0, NAN])
    np.testing.assert_array_equal(x.xlog1py(y).numpy(), [0, 0, 0, NAN])
    for gradient in x.xlog1py(y).sum().gradient(x, y):
        assert np.isfinite(gradient.numpy()[:3]).all()


# types and devices
@pytest.mark.parametrize("name", ["erfc", "lgamma", "i0", "bessel_j1"])
def test_narrow_floats_are_rounded_once(name: str) -> None:
    values = np.array([0.3, 1.7, 2.4, 9.0], "float32")
    for dtype in ("float16", "bfloat16"):
        x = Tensor(values).cast(dtype)
        found = getattr(x, name)()
        assert found.dtype.name == dtype
        wide = getattr(x.cast("float64"), name)().cast(dtype)
        assert found.tolist() == wide.tolist()


def test_integers_become_the_default_float() -> None:
    assert Tensor([1, 2, 5]).lgamma().dtype is dtypes.float32
    np.testing.assert_allclose(Tensor([1, 2, 5]).lgamma().numpy(), [0, 0, math.log(24)], rtol=1e-6)
    assert Tensor([2.0]).zeta(Tensor([1.0], dtype="float64")).dtype is dtypes.float64


@pytest.mark.parametrize("name", ["erfinv", "lgamma", "i1", "bessel_y0", "airy_ai"])
def test_devices_agree(name: str) -> None:
    values = [-2.5, 0.0, 0.3, 0.9, 4.0, 20.0, NAN]
    ours, reference = (getattr(Tensor(values, device=device), name)().numpy() for device in ("CPU", "PYTHON"))
    np.testing.assert_allclose(ours, reference, rtol=2e-7)


def test_inside_jit() -> None:
    """The incomplete gamma function has a table, which is no data from the host."""

    @jit
    def both_parts(a: Tensor, x: Tensor) -> Tensor:
        return a.igamma(x) + a.igammac(x)

    for k in range(1, 5):
        np.testing.assert_allclose(both_parts(Tensor([0.5, 20.0]) * k, Tensor([9.0, 3.0])).numpy(), [1, 1], rtol=1e-6)


# derivatives of what torch has none of: against differences in float64
def differences(function: Callable[[Tensor], Tensor], x: np.ndarray) -> np.ndarray:
    step = 1e-5
    ends = Tensor(np.stack([x + step, x - step]))
    upper, lower = function(ends).numpy()
    return (upper - lower) / (2 * step)


DIFFERENTIABLE: list[tuple[str, Callable[[Tensor], Tensor], list[float]]] = [
    *[
        (name, lambda x, name=name: getattr(x, name)(), [0.4, 1.9, 2.6, 7.7, 8.6])
        for name in (
            "modified_bessel_k0", "modified_bessel_k1", "scaled_modified_bessel_k0", "scaled_modified_bessel_k1",
            "bessel_j0", "bessel_j1", "bessel_y0", "bessel_y1",
        )
    ],
    ("spherical_bessel_j0", lambda x: x.spherical_bessel_j0(), [-2.0, -0.2, 0.0, 0.4, 3.0]),
    ("airy_ai", lambda x: x.airy_ai(), [-7.0, -3.0, 0.0, 0.9, 1.2, 4.0]),
    ("zeta of q", lambda x: x.full_like(3.0).zeta(x), [-2.4, -0.6, 0.3, 2.0, 30.0]),
    ("chebyshev_polynomial_t", lambda x: x.chebyshev_polynomial_t(5), [-1.3, -1.0, -0.3, 0.0, 0.7, 1.0, 1.2]),
    ("chebyshev_polynomial_u", lambda x: x.chebyshev_polynomial_u(4), [-1.3, -1.0, -0.3, 0.0, 0.7, 1.0, 1.2]),
    ("chebyshev_polynomial_v", lambda x: x.chebyshev_polynomial_v(3), [-1.3, -0.3, 0.0, 0.7, 1.2]),
    ("shifted chebyshev w", lambda x: x.shifted_chebyshev_polynomial_w(3), [-0.3, 0.2, 0.7, 1.2]),
    ("hermite_polynomial_h", lambda x: x.hermite_polynomial_h(4), [-1.3, 0.0, 0.7]),
    ("hermite_polynomial_he", lambda x: x.hermite_polynomial_he(4), [-1.3, 0.0, 0.7]),
    ("laguerre_polynomial_l", lambda x: x.laguerre_polynomial_l(4), [-1.3, 0.0, 0.7]),
    ("legendre_polynomial_p", lambda x: x.legendre_polynomial_p(5), [-1.3, -1.0, 0.0, 0.7]),
]  # fmt: skip


def slope_of(function: Callable[[Tensor], Tensor]) -> Callable[[Tensor], Tensor]:
    return lambda x: function(x).sum().gradient(x)[0]


@pytest.mark.parametrize(("name", "function", "values"), DIFFERENTIABLE, ids=[row[0] for row in DIFFERENTIABLE])
def test_derivatives(name: str, function: Callable[[Tensor], Tensor], values: list[float]) -> None:
    points = np.array(values, "float64")
    found = slope_of(function)(Tensor(points)).numpy()
    np.testing.assert_allclose(found, differences(function, points), rtol=1e-6, atol=1e-7)


@pytest.mark.slow
@pytest.mark.parametrize(("name", "function", "values"), DIFFERENTIABLE, ids=[row[0] for row in DIFFERENTIABLE])
def test_second_derivatives(name: str, function: Callable[[Tensor], Tensor], values: list[float]) -> None:
    points = np.array(values, "float64")
    slope = slope_of(function)
    found = slope_of(slope)(Tensor(points)).numpy()
    np.testing.assert_allclose(found, differences(slope, points), rtol=1e-5, atol=1e-6)


def test_derivative_of_erfcx_where_its_terms_cancel() -> None:
    points = np.array([-1.0, 40.0, 60.0, 1e6, 1e20])
    x = Tensor(points)
    found = x.erfcx().sum().gradient(x)[0].tolist()
    with mpmath.workdps(80):
        for own, point in zip(found, points.tolist(), strict=True):
            p = mpmath.mpf(point)
            far = (1 - 1 / (2 * p * p)) / (p * mpmath.sqrt(mpmath.pi))
            scaled = mpmath.exp(p * p) * mpmath.erfc(p) if p < 1e3 else far
            assert abs(own / float(2 * p * scaled - 2 / mpmath.sqrt(mpmath.pi)) - 1) < 1e-9


def test_derivative_of_zeta_with_respect_to_the_power() -> None:
    points = np.array([1.3, 2.5, 8.0])
    x = Tensor(points)
    found = x.zeta(1.5).sum().gradient(x)[0]
    np.testing.assert_allclose(found.numpy(), differences(lambda s: s.zeta(1.5), points), rtol=1e-6)


def test_derivatives_of_the_incomplete_gamma_function() -> None:
    """With respect to both arguments, in each of its three ways."""
    a, x = np.array([0.7, 12.0, 3.0]), np.array([2.0, 9.0, 8.0])
    ours_a, ours_x = Tensor(a), Tensor(x)
    for_a, for_x = ours_a.igamma(ours_x).sum().gradient(ours_a, ours_x)
    Tensor.realize(for_a, for_x)
    with mpmath.workdps(30):
        lower = [(mpmath.mpf(b), mpmath.mpf(c)) for b, c in zip(a.tolist(), x.tolist(), strict=True)]
        by_a = [mpmath.diff(lambda t, c=c: mpmath.gammainc(t, 0, c, regularized=True), b) for b, c in lower]
        by_x = [mpmath.exp(-c) * c ** (b - 1) / mpmath.gamma(b) for b, c in lower]
    np.testing.assert_allclose(for_a.numpy(), np.array(by_a, "float64"), rtol=1e-9)
    np.testing.assert_allclose(for_x.numpy(), np.array(by_x, "float64"), rtol=1e-9)


@pytest.mark.slow
def test_mixed_derivative_of_the_incomplete_gamma_function() -> None:
    a, x = Tensor(np.array([0.7, 12.0, 3.0])), Tensor(np.array([2.0, 9.0, 8.0]))
    one_way = a.igamma(x).sum().gradient(a)[0].sum().gradient(x)[0]
    other_way = a.igamma(x).sum().gradient(x)[0].sum().gradient(a)[0]
    np.testing.assert_allclose(one_way.numpy(), other_way.numpy(), rtol=1e-8)
