"""Composed mixin: the error function's family, and what every special function is made with.

Special functions are carried in float64, whatever the float type, and rounded once: so float32 and the 16-bit floats
are right to the last bit or nearly so, and float64 is within 1e-15 unless a method says otherwise. Each has its
derivative, which is made of public methods and so has derivatives itself.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, Final, Self

from gradlet.base.dtype import DType, dtypes, promote
from gradlet.ops.arguments import broadcast_shapes
from gradlet.ops.coefficients import ERFCX, NORMAL_CENTER, NORMAL_TAIL, Table
from gradlet.ops.math import MathMixin

SQRT_HALF: Final = math.sqrt(0.5)
# Beyond this e**(-x**2) is 0 in float64, and e**(x**2) infinite.
SQUARE_LIMIT: Final = 30.0
# |p - 1/2| up to which the normal distribution's quantile is near its centre.
CENTER: Final = 0.425


class SpecialMixin(MathMixin):
    """Error function and normal distribution."""

    __slots__ = ()

    def detach(self) -> Self:
        """The same values without a gradient."""
        raise NotImplementedError

    def _carried(self, name: str, function: Callable[[Self], Self], slope: Callable[[Self], Self]) -> Self:
        """A function computed in float64 and rounded to this one's float type.

        Args:
            name: of the function.
            function: float64 tensor -> its value.
            slope: float64 tensor -> the derivative.
        """
        x = self.same_float(name)

        def rule(gradient: Self) -> list[Self]:
            return [gradient.cast(dtypes.float64).mul(slope(x.cast(dtypes.float64)))]

        return function(x.cast(dtypes.float64)).cast(x.dtype).with_derivative(name, [x], rule)

    def _carried_pair(self, name: str, other: Any) -> tuple[Self, Self, DType]:
        """This and another operand in float64 and in their common shape, and the float type of a result of both."""
        x = self.same_float(name)
        y = x.coerce(other).same_float(name)
        own, shape = promote(x.dtype, y.dtype), broadcast_shapes((x.shape, y.shape), name)
        return x.cast(dtypes.float64).expand(shape), y.cast(dtypes.float64).expand(shape), own

    def erfc(self) -> Self:
        """Complementary error function: 1 - erf(x) = 2 / sqrt(pi) * integral of e**(-t**2) for t from x to infinity.

        Source: e**(-x**2) erfcx(x), the scaled function as in `erfcx`. The relative error stays small as the value
        goes to 0, where 1 - erf(x) has no digit left.

        >>> Tensor([0.0, 30.0]).erfc().tolist()
        [1.0, 0.0]
        """

        def value(x: Self) -> Self:
            tail = exp_of_square(x, -1.0).mul(scaled_erfc(x.abs()))
            return x.lt(0.0).where(tail.neg().add(2.0), tail)

        return self._carried("erfc", value, lambda x: exp_of_square(x, -1.0).mul(-2 / math.sqrt(math.pi)))

    def erfcx(self) -> Self:
        """Scaled complementary error function: e**(x**2) * (1 - erf(x)); infinite below -26.6 (float64).

        Source: (1 + 2 x) erfcx(x) as a quotient of polynomials in (x - 2) / (x + 2), the variable of Shepherd and
        Laframboise 1981; erfcx(-x) = 2 e**(x**2) - erfcx(x).

        >>> Tensor([0.0]).erfcx().item()
        1.0
        """

        def value(x: Self) -> Self:
            scaled = scaled_erfc(x.abs())
            return x.lt(0.0).where(exp_of_square(x, 1.0).mul(2.0).sub(scaled), scaled)

        def slope(x: Self) -> Self:
            far = x.gt(50.0)
            inside, inverse = far.where(0.0, x), far.where(x, 1.0).reciprocal()
            near = inside.mul(inside.erfcx()).mul(2.0).sub(2 / math.sqrt(math.pi))
            # Where the two cancel, the asymptotic series (Abramowitz and Stegun 7.1.23).
            square = inverse.mul(inverse)
            series = square.mul(polynomial(square, (-1.0, 3 / 2, -15 / 4, 105 / 8))).mul(1 / math.sqrt(math.pi))
            return far.where(series, near)

        return self._carried("erfcx", value, slope)

    def erfinv(self) -> Self:
        """Inverse of the error function; infinite at -1 and 1, NaN outside.

        Source: a quotient of polynomials near 0, and one in sqrt(-2 log((1 - |x|) / 2)) in the tails, the variables of
        Wichura's algorithm AS 241 (1988).

        >>> Tensor([0.0, 1.0]).erfinv().tolist()
        [0.0, inf]
        """

        def value(x: Self) -> Self:
            tail = normal_tail(x.abs().neg().add(1.0).mul(0.5))
            signed = x.lt(0.0).where(tail, tail.neg())
            near = x.abs().lt(2 * CENTER)
            return near.where(normal_center(x.mul(0.5)), signed).mul(SQRT_HALF)

        return self._carried("erfinv", value, lambda x: exp_of_square(x.erfinv(), 1.0).mul(math.sqrt(math.pi) / 2))

    def ndtr(self) -> Self:
        """Distribution function of the standard normal distribution: (1 + erf(x / sqrt(2))) / 2.

        The relative error stays small in the left tail. Source: as `erfc`.

        >>> Tensor([0.0]).ndtr().item()
        0.5
        """

        def value(x: Self) -> Self:
            tail = exp_of_square(x, -0.5).mul(scaled_erfc(x.abs().mul(SQRT_HALF))).mul(0.5)
            return x.gt(0.0).where(tail.neg().add(1.0), tail)

        return self._carried("ndtr", value, lambda x: exp_of_square(x, -0.5).mul(1 / math.sqrt(2 * math.pi)))

    def log_ndtr(self) -> Self:
        """Logarithm of the standard normal distribution function, also where that is 0 in floats.

        Source: log(erfcx(-x / sqrt(2)) / 2) - x**2 / 2 for negative x.

        >>> Tensor([-100.0]).log_ndtr().item()
        -5005.5244140625
        """

        def value(x: Self) -> Self:
            scaled = scaled_erfc(x.abs().mul(SQRT_HALF)).mul(0.5)
            left = scaled.log().sub(x.mul(x).mul(0.5))
            right = exp_of_square(x, -0.5).mul(scaled).neg().log1p()
            return x.gt(0.0).where(right, left)

        def slope(x: Self) -> Self:
            # pdf / cdf, both divided by e**(-x**2 / 2)
            return x.mul(-SQRT_HALF).erfcx().reciprocal().mul(math.sqrt(2 / math.pi))

        return self._carried("log_ndtr", value, slope)

    def ndtri(self) -> Self:
        """The x at which the standard normal distribution function has this value; NaN outside [0, 1].

        Source: as `erfinv`.

        >>> Tensor([0.5, 0.0]).ndtri().tolist()
        [0.0, -inf]
        """

        def value(p: Self) -> Self:
            center = p.sub(0.5)
            right = center.gt(0.0)
            tail = normal_tail(right.where(p.neg().add(1.0), p))
            signed = right.where(tail.neg(), tail)
            return center.abs().lt(CENTER).where(normal_center(center), signed)

        return self._carried("ndtri", value, lambda p: exp_of_square(p.ndtri(), 0.5).mul(math.sqrt(2 * math.pi)))

    def entr(self) -> Self:
        """Entropy of an element: -x * log(x); 0 at 0, -inf below.

        >>> Tensor([0.0, -1.0]).entr().tolist()
        [0.0, -inf]
        """

        def value(x: Self) -> Self:
            inside = x.gt(0.0)
            outside = x.lt(0.0).where(-math.inf, x.eq(0.0).where(0.0, x))
            return inside.where(x.mul(inside.where(x, 1.0).log()).mul(-1.0).add(0.0), outside)

        return self._carried("entr", value, lambda x: x.log().add(1.0).neg())

    def xlog1py(self, other: Any) -> Self:
        """x * log(1 + y); 0 where x is 0 and y is not NaN.

        Args:
            other: y, a tensor or a number; broadcasts.

        >>> Tensor([0.0, 2.0]).xlog1py(Tensor([-1.0, 0.0])).tolist()
        [0.0, 0.0]
        """
        x = self.same_float("xlog1py")
        y = x.coerce(other).same_float("xlog1py")
        infinite = (y <= -1.0).bitwise_or(y.eq(math.inf))
        return x.mul(x.eq(0.0).bitwise_and(infinite).where(0.0, y).log1p())


def polynomial(x: Any, coefficients: Sequence[float]) -> Any:
    """The polynomial with these coefficients, lowest power first, by Horner's scheme."""
    result = x.mul(coefficients[-1]).add(coefficients[-2])
    for coefficient in coefficients[-3::-1]:
        result = result.mul(x).add(coefficient)
    return result


def quotient(x: Any, table: Table) -> Any:
    """The quotient of two polynomials."""
    return polynomial(x, table[0]).fdiv(polynomial(x, table[1]))


def exp_of_square(x: Any, factor: float) -> Any:
    """`e**(factor * x**2)` in float64, with the square's rounding error put right.

    The square of the float32 next to x is exact; what it lacks is below 2e-4 wherever the result is not 0 or infinite.
    """
    x = x.clamp(-SQUARE_LIMIT / abs(factor) ** 0.5, SQUARE_LIMIT / abs(factor) ** 0.5)
    coarse = x.cast(dtypes.float32).cast(dtypes.float64).detach()
    rest = x.sub(coarse).mul(x.add(coarse)).mul(factor)
    return coarse.mul(coarse).mul(factor).exp().mul(polynomial(rest, (1.0, 1.0, 1 / 2, 1 / 6)))


def scaled_erfc(size: Any) -> Any:
    """`erfcx` of numbers that are not negative."""
    t = size.add(2.0).reciprocal().mul(-4.0).add(1.0)
    return quotient(t, ERFCX).fdiv(size.mul(2.0).add(1.0))


def normal_center(distance: Any) -> Any:
    """The normal quantile of 1/2 + distance, for |distance| <= 0.425."""
    return distance.mul(quotient(distance.mul(distance).neg().add(0.1806), NORMAL_CENTER))


def normal_tail(p: Any) -> Any:
    """The normal quantile of p <= 0.075."""
    r = p.log().mul(-2.0).sqrt()
    t = r.add(6.0).reciprocal().mul(-12.0).add(1.0)
    return r.neg().mul(quotient(t, NORMAL_TAIL))
