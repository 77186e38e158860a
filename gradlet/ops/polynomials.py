"""Composed mixin: orthogonal polynomials of a degree that is a number or a tensor.

Chebyshev's four kinds are their trigonometric and hyperbolic forms (Abramowitz and Stegun 22.3.15, 22.3.16), for any
degree. The others follow their recurrences (22.7): a number as degree has no limit, a tensor of degrees is served up to
`LARGEST_DEGREE` and gives NaN above. A degree that is not whole is cut to the whole number below, and where a degree is
negative the value is 0.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, Final, Self

from gradlet.base.dtype import DType, dtypes, promote
from gradlet.base.errors import ArgumentError
from gradlet.ops.arguments import broadcast_shapes
from gradlet.ops.special import SpecialMixin

LARGEST_DEGREE: Final = 32
# (x, degree) -> value or derivative
Kind = Callable[[Any, Any], Any]
# What a recurrence makes of (degree, x, value at that degree, value at the degree before): the next value.
Recurrence = Callable[[int, Any, Any, Any], Any]


class PolynomialMixin(SpecialMixin):
    """Chebyshev, Hermite, Laguerre and Legendre polynomials of this, element by element."""

    __slots__ = ()

    def chebyshev_polynomial_t(self, n: Any) -> Self:
        """Chebyshev polynomial of the first kind: cos(n acos x), cosh(n acosh x) for x > 1.

        Args:
            n: degree, a number or a tensor that broadcasts.

        >>> [round(v, 6) for v in Tensor([0.5, 2.0]).chebyshev_polynomial_t(2).tolist()]
        [-0.5, 7.0]
        """
        return self._chebyshev("chebyshev_polynomial_t", n, False, _first_kind, _first_slope)

    def chebyshev_polynomial_u(self, n: Any) -> Self:
        """Chebyshev polynomial of the second kind: sin((n + 1) t) / sin t with x = cos t.

        Args:
            n: degree, a number or a tensor that broadcasts.

        >>> [round(v, 6) for v in Tensor([0.25, 2.0]).chebyshev_polynomial_u(2).tolist()]
        [-0.75, 15.0]
        """
        return self._chebyshev("chebyshev_polynomial_u", n, False, _second_kind, _second_slope)

    def chebyshev_polynomial_v(self, n: Any) -> Self:
        """Chebyshev polynomial of the third kind: cos((n + 1/2) t) / cos(t / 2) with x = cos t.

        Args:
            n: degree, a number or a tensor that broadcasts.

        >>> [round(v, 6) for v in Tensor([0.5, 2.0]).chebyshev_polynomial_v(2).tolist()]
        [-1.0, 11.0]
        """
        return self._chebyshev("chebyshev_polynomial_v", n, False, _third_kind, _third_slope)

    def chebyshev_polynomial_w(self, n: Any) -> Self:
        """Chebyshev polynomial of the fourth kind: sin((n + 1/2) t) / sin(t / 2) with x = cos t.

        Args:
            n: degree, a number or a tensor that broadcasts.

        >>> [round(v, 6) for v in Tensor([0.5, 2.0]).chebyshev_polynomial_w(2).tolist()]
        [1.0, 19.0]
        """
        return self._chebyshev("chebyshev_polynomial_w", n, False, _fourth_kind, _fourth_slope)

    def shifted_chebyshev_polynomial_t(self, n: Any) -> Self:
        """`chebyshev_polynomial_t` of 2 x - 1.

        >>> round(Tensor([0.75]).shifted_chebyshev_polynomial_t(2).item(), 6)
        -0.5
        """
        return self._chebyshev("shifted_chebyshev_polynomial_t", n, True, _first_kind, _first_slope)

    def shifted_chebyshev_polynomial_u(self, n: Any) -> Self:
        """`chebyshev_polynomial_u` of 2 x - 1.

        >>> round(Tensor([1.5]).shifted_chebyshev_polynomial_u(2).item(), 6)
        15.0
        """
        return self._chebyshev("shifted_chebyshev_polynomial_u", n, True, _second_kind, _second_slope)

    def shifted_chebyshev_polynomial_v(self, n: Any) -> Self:
        """`chebyshev_polynomial_v` of 2 x - 1.

        >>> round(Tensor([0.75]).shifted_chebyshev_polynomial_v(2).item(), 6)
        -1.0
        """
        return self._chebyshev("shifted_chebyshev_polynomial_v", n, True, _third_kind, _third_slope)

    def shifted_chebyshev_polynomial_w(self, n: Any) -> Self:
        """`chebyshev_polynomial_w` of 2 x - 1.

        >>> round(Tensor([0.75]).shifted_chebyshev_polynomial_w(2).item(), 6)
        1.0
        """
        return self._chebyshev("shifted_chebyshev_polynomial_w", n, True, _fourth_kind, _fourth_slope)

    def hermite_polynomial_h(self, n: Any) -> Self:
        """Physicists' Hermite polynomial: H(n + 1) = 2 x H(n) - 2 n H(n - 1), H(0) = 1.

        Args:
            n: degree, a number or a tensor that broadcasts.

        >>> Tensor([2.0]).hermite_polynomial_h(2).tolist()
        [14.0]
        """
        return self._by_recurrence(
            "hermite_polynomial_h",
            n,
            lambda k, x, now, before: x.mul(now).sub(before.mul(float(k))).mul(2.0),
            lambda x, degree: x.hermite_polynomial_h(degree - 1) * (degree * 2),
        )

    def hermite_polynomial_he(self, n: Any) -> Self:
        """Probabilists' Hermite polynomial: He(n + 1) = x He(n) - n He(n - 1), He(0) = 1.

        Args:
            n: degree, a number or a tensor that broadcasts.

        >>> Tensor([2.0]).hermite_polynomial_he(2).tolist()
        [3.0]
        """
        return self._by_recurrence(
            "hermite_polynomial_he",
            n,
            lambda k, x, now, before: x.mul(now).sub(before.mul(float(k))),
            lambda x, degree: x.hermite_polynomial_he(degree - 1) * degree,
        )

    def laguerre_polynomial_l(self, n: Any) -> Self:
        """Laguerre polynomial: (n + 1) L(n + 1) = (2 n + 1 - x) L(n) - n L(n - 1), L(0) = 1.

        Args:
            n: degree, a number or a tensor that broadcasts.

        >>> Tensor([2.0]).laguerre_polynomial_l(2).tolist()
        [-1.0]
        """
        return self._laguerre(n, 0)

    def legendre_polynomial_p(self, n: Any) -> Self:
        """Legendre polynomial: (n + 1) P(n + 1) = (2 n + 1) x P(n) - n P(n - 1), P(0) = 1.

        Args:
            n: degree, a number or a tensor that broadcasts.

        >>> Tensor([2.0]).legendre_polynomial_p(2).tolist()
        [5.5]
        """
        return self._gegenbauer(n, 0.5)

    def _laguerre(self, n: Any, order: int) -> Self:
        """Generalised Laguerre polynomial (Abramowitz and Stegun 22.7.12, derivative 22.8.6)."""

        def following(k: int, x: Any, now: Any, before: Any) -> Any:
            return x.neg().add(2 * k + 1.0 + order).mul(now).sub(before.mul(float(k + order))).mul(1 / (k + 1))

        def slope(x: Any, degree: Any) -> Any:
            return x._laguerre(degree - 1, order + 1).neg()

        return self._by_recurrence("laguerre_polynomial_l", n, following, slope)

    def _gegenbauer(self, n: Any, order: float) -> Self:
        """Gegenbauer polynomial, that of Legendre for order 1/2 (Abramowitz and Stegun 22.7.3, derivative 22.8.2)."""

        def following(k: int, x: Any, now: Any, before: Any) -> Any:
            factor = 2 * (k + order) / (k + 1)
            return x.mul(now).mul(factor).sub(before.mul((k + 2 * order - 1) / (k + 1)))

        def slope(x: Any, degree: Any) -> Any:
            return x._gegenbauer(degree - 1, order + 1.0).mul(2 * order)

        return self._by_recurrence("legendre_polynomial_p", n, following, slope)

    def _degree(self, name: str, n: Any) -> tuple[Any, DType]:
        """The degree, as an integer or a float64 tensor of whole numbers, and the type of the result.

        Raises:
            ArgumentError: a degree that is no finite number.
        """
        x = self.same_float(name)
        if isinstance(n, (int, float)):
            if not math.isfinite(n):
                raise ArgumentError(f"{name}: the degree n must be finite, got {n}")
            return int(n), x.dtype
        degree = x.coerce(n)
        own = promote(x.dtype, degree.dtype) if degree.dtype.is_float else x.dtype
        return degree.cast(dtypes.float64).trunc().detach(), own

    def _chebyshev(self, name: str, n: Any, shifted: bool, kind: Kind, slope: Kind) -> Self:
        degree, own = self._degree(name, n)
        x = self.same_float(name).cast(dtypes.float64)
        x = x.mul(2.0).sub(1.0) if shifted else x
        degree = x.coerce(float(degree)) if isinstance(degree, int) else degree
        x = x.expand(broadcast_shapes((x.shape, degree.shape), name))
        value = kind(x, degree)
        value = degree.eq(0.0).where(1.0, value)
        value = degree.lt(0.0).where(0.0, value)
        result: Self = value.with_derivative(name, [x], lambda gradient: [gradient.mul(slope(x, degree))]).cast(own)
        return result

    def _by_recurrence(self, name: str, n: Any, following: Recurrence, slope: Kind) -> Self:
        degree, own = self._degree(name, n)
        x = self.same_float(name).cast(dtypes.float64)
        if not isinstance(degree, int):
            x = x.expand(broadcast_shapes((x.shape, degree.shape), name))
        before, now = x.constant_like(0.0), x.constant_like(1.0)
        if isinstance(degree, int):
            for k in range(degree):
                before, now = now, following(k, x, now, before)
            result: Self = now if degree >= 0 else before
        else:
            result = degree.lt(0.0).where(0.0, degree.eq(0.0).where(now, math.nan))
            for k in range(LARGEST_DEGREE):
                before, now = now, following(k, x, now, before)
                result = degree.eq(k + 1.0).where(now, result)
        return result.with_derivative(name, [x], lambda gradient: [gradient.mul(slope(x, degree))]).cast(own)


# Chebyshev's polynomials of |x|, by angle where |x| <= 1 and by its hyperbolic counterpart beyond.
def _angles(size: Any) -> tuple[Any, Any, Any]:
    inside = size <= 1.0
    return inside, inside.where(size, 1.0).acos(), inside.where(1.0, size).acosh()


def _even(size: Any, multiple: Any) -> Any:
    """cos of a multiple of the angle."""
    inside, angle, distance = _angles(size)
    return inside.where(angle.mul(multiple).cos(), distance.mul(multiple).cosh())


def _odd(size: Any, multiple: Any) -> Any:
    """sin of a multiple of the angle."""
    inside, angle, distance = _angles(size)
    return inside.where(angle.mul(multiple).sin(), distance.mul(multiple).sinh())


def _near_zero(size: Any, multiple: Any, turns: int) -> Any:
    """cos of a multiple of the angle plus a number of quarter turns, for small |x|: exact in x, which acos is not."""
    quarters = multiple.add(float(turns))
    quarters = quarters.sub(quarters.mul(0.25).floor().mul(4.0))
    rest = size.lt(0.5).where(size, 0.0).asin().mul(multiple)
    part = quarters.mul(0.5).eq(quarters.mul(0.5).floor()).where(rest.cos(), rest.sin())
    return quarters.gt(1.0).where(part.neg(), part)


def _signed(x: Any, degree: Any, value: Any, mirrored: Any) -> Any:
    """The value of a polynomial at x from that at |x|, and from that of its mirror image at |x|."""
    odd = degree.mul(0.5).ne(degree.mul(0.5).floor())
    return x.lt(0.0).where(odd.where(mirrored.neg(), mirrored), value)


def _first_kind(x: Any, degree: Any) -> Any:
    size = x.abs()
    value = size.lt(0.5).where(_near_zero(size, degree, 0), _even(size, degree))
    return _signed(x, degree, value, value)


def _second_kind(x: Any, degree: Any) -> Any:
    size = x.abs()
    end = size.eq(1.0)
    sine = size.lt(0.5).where(_near_zero(size, degree.add(1.0), 3), _odd(size, degree.add(1.0)))
    value = end.where(degree.add(1.0), sine.fdiv(_odd(end.where(0.0, size), 1.0)))
    value = size.eq(math.inf).where(math.inf, value)
    return _signed(x, degree, value, value)


def _half_kinds(x: Any, degree: Any) -> tuple[Any, Any]:
    """The third and the fourth kind at |x|, which are each other's mirror images."""
    size, order = x.abs(), degree.add(0.5)
    end, endless = size.eq(1.0), size.eq(math.inf)
    third = _even(size, order).fdiv(_even(size, 0.5))
    fourth = end.where(order.mul(2.0), _odd(size, order).fdiv(_odd(end.where(0.0, size), 0.5)))
    return endless.where(math.inf, third), endless.where(math.inf, fourth)


def _third_kind(x: Any, degree: Any) -> Any:
    third, fourth = _half_kinds(x, degree)
    return _signed(x, degree, third, fourth)


def _fourth_kind(x: Any, degree: Any) -> Any:
    third, fourth = _half_kinds(x, degree)
    return _signed(x, degree, fourth, third)


# Their derivatives
def _first_slope(x: Any, degree: Any) -> Any:
    return x.chebyshev_polynomial_u(degree.sub(1.0)).mul(degree)


def _second_slope(x: Any, degree: Any) -> Any:
    end = x.abs().eq(1.0)
    inner = end.where(0.0, x)
    above = inner.chebyshev_polynomial_t(degree.add(1.0)).mul(degree.add(1.0))
    slope = above.sub(inner.mul(inner.chebyshev_polynomial_u(degree))).fdiv(inner.mul(inner).sub(1.0))
    # At -1 and 1 the limit, which has the limit of the next derivative for its own.
    limit = degree.mul(degree.add(1.0)).mul(degree.add(2.0)).mul(1 / 3)
    following = limit.mul(degree.sub(1.0)).mul(degree.add(3.0)).mul(1 / 5)
    limit, following = _signed(x, degree.add(1.0), limit, limit), _signed(x, degree, following, following)
    slope = end.where(limit.add(x.sub(x.detach()).mul(following)), slope)
    return (degree <= 0.0).where(0.0, slope)


def _third_slope(x: Any, degree: Any) -> Any:
    return _second_slope(x, degree).sub(_second_slope(x, degree.sub(1.0)))


def _fourth_slope(x: Any, degree: Any) -> Any:
    return _second_slope(x, degree).add(_second_slope(x, degree.sub(1.0)))
