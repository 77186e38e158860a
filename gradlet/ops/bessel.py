"""Composed mixin: Bessel functions, modified ones, and Airy's function.

Near the origin they are polynomials, far from it Hankel's expansions (Abramowitz and Stegun 9.2.5, 9.7.1) as quotients
of polynomials; functions of the second kind are a logarithm times one of the first kind plus a polynomial (9.1.13,
9.6.13). The relative error of the oscillating ones grows next to their zeros, where it is absolute: 1e-15 in float64.
"""

from __future__ import annotations

import math
from typing import Any, Final, Self

from gradlet.base.dtype import dtypes
from gradlet.ops.coefficients import (
    AIRY_FAR,
    AIRY_MIDDLE,
    AIRY_P,
    AIRY_Q,
    AIRY_SLOPE_FAR,
    AIRY_SLOPE_MIDDLE,
    AIRY_SLOPE_P,
    AIRY_SLOPE_Q,
    I0_FAR,
    I0_NEAR,
    I1_FAR,
    I1_NEAR,
    J0_NEAR,
    J1_NEAR,
    K0_FAR,
    K0_NEAR,
    K1_FAR,
    K1_NEAR,
    P0_FAR,
    P1_FAR,
    Q0_FAR,
    Q1_FAR,
    Y0_NEAR,
    Y1_NEAR,
)
from gradlet.ops.special import SQRT_HALF, SpecialMixin, polynomial, quotient

# Up to here the polynomials hold.
NEAR: Final = 8.0
K_NEAR: Final = 2.0
TWO_OVER_PI: Final = 2 / math.pi


class BesselMixin(SpecialMixin):
    """Cylinder functions of order 0 and 1."""

    __slots__ = ()

    # modified, first kind
    def i0(self) -> Self:
        """Modified Bessel function of the first kind, order 0: the sum of (x**2 / 4)**k / k!**2.

        >>> Tensor([0.0]).i0().item()
        1.0
        """
        return self._carried("i0", lambda x: _modified(x, 0, False), lambda x: x.i1())

    def i0e(self) -> Self:
        """Exponentially scaled `i0`: e**-|x| I0(x).

        >>> Tensor([0.0]).i0e().item()
        1.0
        """
        return self._carried("i0e", lambda x: _modified(x, 0, True), lambda x: x.i1e().sub(x.sign().mul(x.i0e())))

    def i1(self) -> Self:
        """Modified Bessel function of the first kind, order 1: the derivative of `i0`.

        >>> Tensor([0.0]).i1().item()
        0.0
        """
        return self._carried("i1", lambda x: _modified(x, 1, False), lambda x: x.i0().sub(_over_x(x, x.i1())))

    def i1e(self) -> Self:
        """Exponentially scaled `i1`: e**-|x| I1(x).

        >>> Tensor([0.0]).i1e().item()
        0.0
        """

        def slope(x: Self) -> Self:
            scaled = x.i1e()
            return x.i0e().sub(_over_x(x, scaled)).sub(x.sign().mul(scaled))

        return self._carried("i1e", lambda x: _modified(x, 1, True), slope)

    def modified_bessel_i0(self) -> Self:
        """Same as `i0`.

        >>> Tensor([0.0]).modified_bessel_i0().item()
        1.0
        """
        return self.i0()

    def modified_bessel_i1(self) -> Self:
        """Same as `i1`.

        >>> Tensor([0.0]).modified_bessel_i1().item()
        0.0
        """
        return self.i1()

    # modified, second kind
    def modified_bessel_k0(self) -> Self:
        """Modified Bessel function of the second kind, order 0: infinite at 0, NaN below.

        >>> round(Tensor([1.0]).modified_bessel_k0().item(), 6)
        0.421024
        """
        return self._carried(
            "modified_bessel_k0", lambda x: _second_modified(x, 0, False), lambda x: x.modified_bessel_k1().neg()
        )

    def modified_bessel_k1(self) -> Self:
        """Modified Bessel function of the second kind, order 1: infinite at 0, NaN below.

        >>> round(Tensor([1.0]).modified_bessel_k1().item(), 6)
        0.601907
        """
        return self._carried(
            "modified_bessel_k1",
            lambda x: _second_modified(x, 1, False),
            lambda x: x.modified_bessel_k0().add(x.modified_bessel_k1().fdiv(x)).neg(),
        )

    def scaled_modified_bessel_k0(self) -> Self:
        """Exponentially scaled `modified_bessel_k0`: e**x K0(x).

        >>> round(Tensor([1.0]).scaled_modified_bessel_k0().item(), 6)
        1.144463
        """
        return self._carried(
            "scaled_modified_bessel_k0",
            lambda x: _second_modified(x, 0, True),
            lambda x: x.scaled_modified_bessel_k0().sub(x.scaled_modified_bessel_k1()),
        )

    def scaled_modified_bessel_k1(self) -> Self:
        """Exponentially scaled `modified_bessel_k1`: e**x K1(x).

        >>> round(Tensor([1.0]).scaled_modified_bessel_k1().item(), 6)
        1.636153
        """

        def slope(x: Self) -> Self:
            scaled = x.scaled_modified_bessel_k1()
            return scaled.sub(x.scaled_modified_bessel_k0()).sub(scaled.fdiv(x))

        return self._carried("scaled_modified_bessel_k1", lambda x: _second_modified(x, 1, True), slope)

    # oscillating
    def bessel_j0(self) -> Self:
        """Bessel function of the first kind, order 0: the sum of (-x**2 / 4)**k / k!**2.

        >>> Tensor([0.0]).bessel_j0().item()
        1.0
        """
        return self._carried("bessel_j0", _j0, lambda x: x.bessel_j1().neg())

    def bessel_j1(self) -> Self:
        """Bessel function of the first kind, order 1: minus the derivative of `bessel_j0`.

        >>> Tensor([0.0]).bessel_j1().item()
        0.0
        """
        return self._carried("bessel_j1", _j1, lambda x: x.bessel_j0().sub(_over_x(x, x.bessel_j1())))

    def bessel_y0(self) -> Self:
        """Bessel function of the second kind, order 0: -infinity at 0, NaN below.

        >>> round(Tensor([1.0]).bessel_y0().item(), 6)
        0.088257
        """

        def value(x: Self) -> Self:
            near = polynomial(_near_variable(x), Y0_NEAR).add(x.log().mul(_j0(x)).mul(TWO_OVER_PI))
            result: Self = _second_kind(x, near, 0)
            return result

        return self._carried("bessel_y0", value, lambda x: x.bessel_y1().neg())

    def bessel_y1(self) -> Self:
        """Bessel function of the second kind, order 1: -infinity at 0, NaN below.

        >>> round(Tensor([1.0]).bessel_y1().item(), 6)
        -0.781213
        """

        def value(x: Self) -> Self:
            regular = x.mul(polynomial(_near_variable(x), Y1_NEAR))
            near = regular.add(x.log().mul(_j1(x)).sub(x.reciprocal()).mul(TWO_OVER_PI))
            result: Self = _second_kind(x, x.eq(0.0).where(-math.inf, near), 1)
            return result

        return self._carried("bessel_y1", value, lambda x: x.bessel_y0().sub(x.bessel_y1().fdiv(x)))

    def spherical_bessel_j0(self) -> Self:
        """Spherical Bessel function of the first kind, order 0: sin(x) / x, 1 at 0.

        >>> Tensor([0.0]).spherical_bessel_j0().item()
        1.0
        """
        own = self.same_float("spherical_bessel_j0")
        x = own.cast(dtypes.float64)
        near = x.abs().lt(0.5)
        inside, outside = near.where(x, 0.0), near.where(1.0, x)
        series = [(-1.0) ** k / math.factorial(2 * k + 1) for k in range(8)]
        endless = outside.abs().eq(math.inf)
        far = endless.where(0.0, endless.where(1.0, outside).sin().fdiv(outside))
        return near.where(polynomial(inside.mul(inside), series), far).cast(own.dtype)

    def airy_ai(self) -> Self:
        """Airy's function Ai, the solution of y'' = x y that goes to 0 for large x.

        Source: a polynomial from -4 to 1, and the expansions of Abramowitz and Stegun 10.4.59 and 10.4.60 as quotients
        of polynomials.

        >>> round(Tensor([0.0]).airy_ai().item(), 6)
        0.355028
        """
        return self._carried("airy_ai", lambda x: _airy(x, False), lambda x: x._airy_slope())

    def _airy_slope(self) -> Self:
        """The derivative of `airy_ai`."""
        return self._carried("airy_ai", lambda x: _airy(x, True), lambda x: x.mul(x.airy_ai()))


def _over_x(x: Any, odd: Any) -> Any:
    """An odd function that begins with x / 2, divided by x."""
    zero = x.eq(0.0)
    return zero.where(0.5, odd.fdiv(zero.where(1.0, x)))


def _modified(x: Any, order: int, scaled: bool) -> Any:
    """I0 or I1; `scaled` by e**-|x|."""
    size = x.abs()
    near = size <= NEAR
    inside = near.where(size, 0.0)
    value = polynomial(inside.mul(inside), I1_NEAR if order else I0_NEAR)
    value = value.mul(inside) if order else value
    outside = near.where(NEAR, size)
    far = quotient(outside.reciprocal().mul(2 * NEAR).sub(1.0), I1_FAR if order else I0_FAR).fdiv(outside.sqrt())
    if scaled:
        value = value.mul(inside.neg().exp())
    else:
        # Halves of the exponent: the function is finite a little longer than e**x.
        half = outside.mul(0.5).exp()
        far = outside.eq(math.inf).where(math.inf, far.mul(half).mul(half))
    result = near.where(value, far)
    return x.lt(0.0).where(result.neg(), result) if order else result


def _second_modified(x: Any, order: int, scaled: bool) -> Any:
    """K0 or K1; `scaled` by e**x."""
    near = x <= K_NEAR
    inside = near.where(x, 1.0)
    square = inside.mul(inside)
    if order:
        regular = inside.mul(polynomial(square, K1_NEAR)).add(inside.reciprocal())
        value = regular.add(inside.log().mul(inside.mul(polynomial(square, I1_NEAR))))
        value = inside.eq(0.0).where(math.inf, value)
    else:
        value = polynomial(square, K0_NEAR).sub(inside.log().mul(polynomial(square, I0_NEAR)))
    outside = near.where(K_NEAR, x)
    far = quotient(outside.reciprocal().mul(2 * K_NEAR).sub(1.0), K1_FAR if order else K0_FAR).fdiv(outside.sqrt())
    if scaled:
        value = value.mul(inside.exp())
    else:
        far = far.mul(outside.neg().exp())
    return x.lt(0.0).where(math.nan, near.where(value, far))


def _near_variable(x: Any) -> Any:
    return x.mul(x).mul(2 / NEAR**2).sub(1.0)


def _hankel(size: Any, order: int, second: bool) -> Any:
    """J or Y of numbers that are at least 8."""
    inverse = size.reciprocal().mul(NEAR)
    u = inverse.mul(inverse)
    p = quotient(u, P1_FAR if order else P0_FAR)
    q = quotient(u, Q1_FAR if order else Q0_FAR).mul(inverse)
    sine, cosine = size.sin(), size.cos()
    # sqrt(2) times cosine and sine of size - pi / 4, or of size - 3 pi / 4
    if order:
        cosine, sine = sine.sub(cosine), sine.add(cosine).neg()
    else:
        cosine, sine = sine.add(cosine), sine.sub(cosine)
    wave = sine.mul(p).add(cosine.mul(q)) if second else cosine.mul(p).sub(sine.mul(q))
    value = wave.mul(math.sqrt(1 / math.pi)).fdiv(size.sqrt())
    return size.eq(math.inf).where(0.0, value)


def _j0(x: Any) -> Any:
    size = x.abs()
    return (size <= NEAR).where(polynomial(_near_variable(x), J0_NEAR), _hankel(size, 0, False))


def _j1(x: Any) -> Any:
    size = x.abs()
    far = _hankel(size, 1, False)
    near = x.mul(polynomial(_near_variable(x), J1_NEAR))
    return (size <= NEAR).where(near, x.lt(0.0).where(far.neg(), far))


def _second_kind(x: Any, near: Any, order: int) -> Any:
    return x.lt(0.0).where(math.nan, (x <= NEAR).where(near, _hankel(x, order, True)))


def _airy(x: Any, slope: bool) -> Any:
    """Ai, or its derivative."""
    right, left = x.gt(1.0), x.lt(-4.0)
    middle = polynomial(x.add(1.5).mul(0.4), AIRY_SLOPE_MIDDLE if slope else AIRY_MIDDLE)
    size = x.abs()
    root = size.sqrt()
    zeta, quarter = size.mul(root).mul(2 / 3), root.sqrt()
    factor = quarter if slope else quarter.reciprocal()
    decay = quotient(zeta.mul(1.5).reciprocal(), AIRY_SLOPE_FAR if slope else AIRY_FAR).mul(zeta.neg().exp())
    s = zeta.reciprocal().mul(16 / 3)
    p = quotient(s.mul(s), AIRY_SLOPE_P if slope else AIRY_P)
    q = quotient(s.mul(s), AIRY_SLOPE_Q if slope else AIRY_Q).mul(s)
    sine, cosine = zeta.sin(), zeta.cos()
    # sqrt(2) times cosine and sine of zeta - pi / 4
    cosine, sine = sine.add(cosine), sine.sub(cosine)
    waves = sine.mul(p).sub(cosine.mul(q)) if slope else cosine.mul(p).add(sine.mul(q))
    result = right.where(decay.mul(factor), left.where(waves.mul(factor).mul(SQRT_HALF / math.sqrt(math.pi)), middle))
    # Without end e**-zeta is 0, and waves have no value; those of Ai itself go to 0.
    return x.eq(math.inf).where(0.0, x.eq(-math.inf).where(math.nan if slope else 0.0, result))
