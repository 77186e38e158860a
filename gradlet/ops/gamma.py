"""Composed mixin: the gamma function's family: logarithm, derivatives, incomplete integrals, Hurwitz's zeta."""

from __future__ import annotations

import math
from typing import Any, Final, Self

from gradlet.base.dtype import dtypes
from gradlet.base.errors import GradientError
from gradlet.ops.arguments import integer
from gradlet.ops.coefficients import (
    DIGAMMA_FAR,
    DIGAMMA_MIDDLE,
    DIGAMMA_ZERO,
    LEGENDRE_NODES,
    LEGENDRE_WEIGHTS,
    LGAMMA_MIDDLE,
    SIN_PI,
    STIRLING,
)
from gradlet.ops.create import CreateMixin
from gradlet.ops.special import SpecialMixin, polynomial, quotient

# Euler and Maclaurin's sum of (y + k)**-s: terms added one by one, and B(2 j) / (2 j)! of those after the integral.
SUMMED: Final = 10
EULER_MACLAURIN: Final = tuple(
    numerator / (denominator * math.factorial(2 * j))
    for j, (numerator, denominator) in enumerate(
        ((1, 6), (-1, 30), (1, 42), (-1, 30), (5, 66), (-691, 2730), (7, 6), (-3617, 510), (43867, 798),
         (-174611, 330), (854513, 138)), 1
    )
)  # fmt: skip
# From here on the terms after the first of Hurwitz's sum are nothing beside it, or all are 0 in float64.
LARGEST_POWER: Final = 200.0

# Incomplete gamma function: terms of the series, and where the integral takes over.
SERIES_TERMS: Final = 36
SERIES_A: Final = 8.0
SERIES_X: Final = 5.0
# The integrand is left out where it is below e**-38.
NEGLIGIBLE: Final = 38.0


class GammaMixin(SpecialMixin, CreateMixin):
    """The gamma function and what is made from it."""

    __slots__ = ()

    def lgamma(self) -> Self:
        """Logarithm of the absolute value of the gamma function; infinite at 0, -1, -2, ...

        The relative error in float64 is about 1e-15 for positive x; next to zeros at negative x it is absolute.
        Source: a quotient of polynomials between 1/2 and 3, beyond 3 Stirling's series as one (Abramowitz and Stegun
        6.1.40); below 1/2 one step of the recurrence, below -1/2 reflection (6.1.17).

        >>> [round(v, 6) for v in Tensor([3.0, 0.0]).lgamma().tolist()]
        [0.693147, inf]
        """
        return self._carried("lgamma", log_gamma, lambda x: x.digamma())

    def digamma(self) -> Self:
        """Derivative of `lgamma`; NaN at -1, -2, ..., infinite at 0.

        Near the zeros at negative x the error is absolute. Source: a quotient of polynomials times the distance from
        the zero 1.4616 between 1 and 3, beyond 3 the asymptotic series as one (Abramowitz and Stegun 6.3.18); below 1
        one step of the recurrence, below 0 reflection (6.3.7).

        >>> round(Tensor([1.0]).digamma().item(), 6)
        -0.577216
        """

        def value(x: Self) -> Self:
            negative = x.lt(0.0)
            step = x.lt(1.0).bitwise_and(negative.logical_not())
            y = negative.where(x.neg().add(1.0), step.where(x.add(1.0), x))
            part = _digamma_from_one(y)
            part = step.where(part.sub(x.reciprocal()), part)
            rest = _fraction(x)
            reflected = part.sub(_cotangent(rest).mul(math.pi))
            pole = negative.bitwise_and(rest.eq(0.0))
            return pole.where(math.nan, negative.where(reflected, part))

        return self._carried("digamma", value, lambda x: x.polygamma(1))

    def polygamma(self, n: int) -> Self:
        """The n-th derivative of `digamma`: (-1)**(n + 1) n! * sum of 1 / (x + k)**(n + 1) over k = 0, 1, ...

        Args:
            n: a Python integer, not negative.

        Raises:
            ArgumentError: n is negative or no integer.

        Source: Euler and Maclaurin's formula (Abramowitz and Stegun 6.4.11, 23.1.30) after ten terms; reflection
        (6.4.7) for negative x.

        >>> round(Tensor([1.0]).polygamma(1).item(), 6)
        1.644934
        """
        order = integer(n, "polygamma", "n", 0)
        if order == 0:
            return self.digamma()
        sign = 1.0 if order % 2 else -1.0
        factorial = float(math.factorial(order)) if order <= 170 else math.inf

        def value(x: Self) -> Self:
            negative = x.lt(0.0)
            y = negative.where(x.neg().add(1.0), x)
            part = _power_sum(y, order + 1).mul(sign * factorial)
            rest = _fraction(x)
            reflected = part.mul(-sign).sub(_cotangent_derivative(order, _cotangent(rest)).mul(math.pi ** (order + 1)))
            pole = (x <= 0.0).bitwise_and(rest.eq(0.0))
            return pole.where(sign * math.inf, negative.where(reflected, part))

        return self._carried("polygamma", value, lambda x: x.polygamma(order + 1))

    def mvlgamma(self, p: int) -> Self:
        """Logarithm of the multivariate gamma function: p (p - 1) / 4 log(pi) + sum of lgamma(x - j / 2), j < p.

        Args:
            p: number of dimensions, a Python integer, at least 1.

        Raises:
            ArgumentError: p is below 1 or no integer.

        >>> round(Tensor([2.0]).mvlgamma(2).item(), 6)
        0.451583
        """
        dimensions = integer(p, "mvlgamma", "p", 1)
        x = self.same_float("mvlgamma")
        total = x.cast(dtypes.float64).lgamma()
        for j in range(1, dimensions):
            total = total.add(x.cast(dtypes.float64).sub(j / 2).lgamma())
        return total.add(dimensions * (dimensions - 1) / 4 * math.log(math.pi)).cast(x.dtype)

    def zeta(self, other: Any) -> Self:
        """Hurwitz's zeta function of s (this) and q: the sum of 1 / (q + k)**s over k = 0, 1, ...

        Infinite for s = 1 and for q = 0, -1, ...; NaN for s < 1, and for negative q if s is not whole.

        Args:
            other: q, a tensor or a number; broadcasts.

        Source: Euler and Maclaurin's formula (Abramowitz and Stegun 23.1.30) after ten terms; a negative q differs
        from its fraction by terms that are a difference of two such sums.

        >>> round(Tensor([2.0]).zeta(1.0).item(), 6)
        1.644934
        """
        s, q, own = self._carried_pair("zeta", other)

        def rule(gradient: Self) -> list[Self | None]:
            return [slope_through(_zeta(s, q), s, gradient), gradient.mul(s).mul(s.add(1.0).zeta(q)).neg()]

        value: Self = _zeta(s, q)
        return value.with_derivative("zeta", [s, q], rule).cast(own)

    def igamma(self, other: Any) -> Self:
        """Regularised lower incomplete gamma function of a (this) and x: integral of t**(a - 1) e**-t over [0, x] /
        gamma(a).

        NaN for a or x below 0, and where both are 0 or both infinite.

        Args:
            other: x, a tensor or a number; broadcasts.

        The relative error in float64 is about 1e-13. It has gradients with respect to both. Source: the series
        (Abramowitz and Stegun 6.5.29) for small x and a, else Gauss and Legendre's rule with 32 nodes on the integral
        from x to where the integrand ends, with Stirling's series in the factor before it.

        >>> round(Tensor([1.0]).igamma(Tensor([1.0])).item(), 6)
        0.632121
        """
        a, x, own = self._carried_pair("igamma", other)

        def rule(gradient: Self) -> list[Self | None]:
            return [slope_through(_incomplete(a, x, False), a, gradient), gradient.mul(_integrand(a, x))]

        value: Self = _incomplete(a, x, False)
        return value.with_derivative("igamma", [a, x], rule).cast(own)

    def igammac(self, other: Any) -> Self:
        """Regularised upper incomplete gamma function of a (this) and x: 1 - igamma(a, x), also where that is tiny.

        Args:
            other: x, a tensor or a number; broadcasts.

        For a below 1e-6 and x below 5 its error is absolute, 1e-16. Source: as `igamma`.

        >>> round(Tensor([1.0]).igammac(Tensor([1.0])).item(), 6)
        0.367879
        """
        a, x, own = self._carried_pair("igammac", other)

        def rule(gradient: Self) -> list[Self | None]:
            return [slope_through(_incomplete(a, x, True), a, gradient), gradient.mul(_integrand(a, x)).neg()]

        value: Self = _incomplete(a, x, True)
        return value.with_derivative("igammac", [a, x], rule).cast(own)


def slope_through(value: Any, source: Any, gradient: Any) -> Any:
    """The gradient of `source` by the ordinary derivative of what `value` is computed with; None for a constant."""
    try:
        return value.gradient(source, gradient=gradient)[0]
    except GradientError:
        return None


def _fraction(x: Any) -> Any:
    """What is left of x after the nearest integer; 0 for large numbers, NaN for infinities."""
    return x.sub(x.add(0.5).floor())


# logarithm of the gamma function
def log_gamma(x: Any) -> Any:
    """lgamma of float64."""
    reflected, step = x.lt(-0.5), x.lt(0.5)
    y = reflected.where(x.neg().add(1.0), step.where(x.add(1.0), x))
    middle = y.lt(3.0)
    inside = y.sub(1.0).mul(y.sub(2.0)).mul(quotient(middle.where(y, 1.0), LGAMMA_MIDDLE))
    outside = y.sub(0.5).mul(y.log().sub(1.0)).add(0.5 * math.log(2 * math.pi) - 0.5).add(stirling(y))
    value = middle.where(inside, outside)
    # One logarithm serves both ways to the left: of 1 / |x|, or of pi / |sin(pi x)|.
    sine = _sine(_fraction(x)).abs()
    logarithm = reflected.where(x.constant_like(math.pi), 1.0).fdiv(reflected.where(sine, x.abs())).log()
    value = step.where(reflected.where(logarithm.sub(value), logarithm.add(value)), value)
    return x.eq(-math.inf).where(math.inf, value)


def stirling(x: Any) -> Any:
    """What Stirling's formula for lgamma lacks, for x >= 3."""
    inverse = x.reciprocal()
    return quotient(inverse.mul(inverse), STIRLING).mul(inverse)


def _digamma_from_one(y: Any) -> Any:
    """digamma of numbers that are at least 1."""
    middle = y.lt(3.0)
    inside = y.sub(DIGAMMA_ZERO[0]).sub(DIGAMMA_ZERO[1]).mul(quotient(middle.where(y, 1.0), DIGAMMA_MIDDLE))
    inverse = y.reciprocal()
    square = inverse.mul(inverse)
    outside = y.log().sub(inverse.mul(0.5)).sub(quotient(square, DIGAMMA_FAR).mul(square))
    return middle.where(inside, outside)


# sums of powers
def _whole_power(x: Any, exponent: int) -> Any:
    """The power by repeated squaring."""
    result, square = None, x
    while exponent:
        if exponent & 1:
            result = square if result is None else result.mul(square)
        exponent >>= 1
        if exponent:
            square = square.mul(square)
    return result


def _power_sum(y: Any, power: int) -> Any:
    """The sum of 1 / (y + k)**power over all k for a whole power; y >= 0."""
    total = _whole_power(y.reciprocal(), power)
    for k in range(1, SUMMED):
        total = total.add(_whole_power(y.add(k).reciprocal(), power))
    inverse = y.add(SUMMED).reciprocal()
    # B(2 j) / (2 j)! * power (power + 1) ... (power + 2 j - 2), of the powers of 1 / w**2
    factors, rising = [], float(power)
    for j, factor in enumerate(EULER_MACLAURIN):
        factors.append(factor * rising)
        rising *= (power + 2 * j + 1) * (power + 2 * j + 2)
    series = polynomial(inverse.mul(inverse), factors).mul(inverse)
    tail = series.add(0.5).mul(inverse).add(1 / (power - 1))
    return total.add(tail.mul(_whole_power(inverse, power - 1)))


def _hurwitz(power: Any, y: Any) -> Any:
    """The sum of (y + k)**-power over all k, for power > 1 and y > 0."""
    y = y.minimum(1e300)
    down = power.neg()
    total = y.pow(down)
    for k in range(1, SUMMED):
        total = total.add(y.add(k).pow(down))
    w = y.add(SUMMED)
    inverse = w.reciprocal()
    s = power.minimum(LARGEST_POWER)
    square = inverse.mul(inverse)
    series = s.mul(0.0).add(1.0)
    # Each term is the one before times (s + 2 j - 1) (s + 2 j) / w**2 and the quotient of the constants.
    for j in range(len(EULER_MACLAURIN) - 1, 0, -1):
        rising = s.add(2 * j - 1).mul(s.add(2 * j)).mul(square)
        series = rising.mul(series).mul(EULER_MACLAURIN[j] / EULER_MACLAURIN[j - 1]).add(1.0)
    series = series.mul(s).mul(inverse).mul(EULER_MACLAURIN[0])
    tail = w.fdiv(power.sub(1.0)).add(0.5).add(series)
    return total.add(tail.mul(w.pow(down)))


def _zeta(s: Any, q: Any) -> Any:
    """Hurwitz's function of float64."""
    positive = q.gt(0.0)
    part = positive.where(0.5, q.sub(q.floor()))
    pole = positive.logical_not().bitwise_and(part.eq(0.0))
    part = pole.where(0.5, part)
    power = s.gt(1.0).where(s, 2.0)
    value = _hurwitz(power, positive.where(q, part))
    # Below 0: the sum over all integers less the terms below q, which are those above 1 - q.
    missing = _hurwitz(power, part.neg().add(1.0)).sub(_hurwitz(power, positive.where(1.0, q.neg().add(1.0))))
    odd = power.mul(0.5).ne(power.mul(0.5).floor())
    below = value.add(odd.where(missing.neg(), missing))
    below = power.ne(power.floor()).where(math.nan, below)
    result = pole.where(math.inf, positive.where(value, below))
    result = s.eq(1.0).where(math.inf, s.gt(1.0).where(result, math.nan))
    return q.isnan().where(math.nan, result)


def _sine(rest: Any) -> Any:
    """sin(pi x) for |x| <= 1/2."""
    return rest.mul(polynomial(rest.mul(rest), SIN_PI))


def _cotangent(rest: Any) -> Any:
    """cot(pi x) for |x| <= 1/2; the cosine is the sine of what is missing to 1/2, which is exact."""
    return _sine(rest.abs().neg().add(0.5)).fdiv(_sine(rest))


def _cotangent_derivative(order: int, cotangent: Any) -> Any:
    """The order-th derivative of cot, a polynomial in cot."""
    coefficients = [0, 1]
    for _ in range(order):
        slope = [k * c for k, c in enumerate(coefficients)][1:]
        coefficients = [-a - b for a, b in zip(slope + [0, 0], [0, 0] + slope)]
    kept = [float(c) for c in coefficients[1 - order % 2 :: 2]]
    square = cotangent.mul(cotangent)
    value = polynomial(square, kept) if len(kept) > 1 else square.mul(0.0).add(kept[0])
    return value if order % 2 else value.mul(cotangent)


# incomplete gamma function
def _incomplete(a: Any, x: Any, wanted_upper: bool) -> Any:
    """The upper or the lower incomplete function: computed is whichever is not near 1."""
    part, upper = _incomplete_part(a, x)
    other = part.neg().add(1.0)
    if wanted_upper:
        return _incomplete_edges(a, x, upper.where(part, other), 1.0, 0.0)
    return _incomplete_edges(a, x, upper.where(other, part), 0.0, 1.0)


def _incomplete_part(a: Any, x: Any) -> tuple[Any, Any]:
    """Either of the two incomplete functions, and where it is the upper one."""
    usual = a.gt(0.0).bitwise_and(x.gt(0.0)).bitwise_and(a.lt(math.inf)).bitwise_and(x.lt(math.inf))
    a, x = usual.where(a, 1.0), usual.where(x, 1.0)
    upper = (x >= a.maximum(SERIES_X)).detach()
    by_series = upper.logical_not().bitwise_and(a <= SERIES_A)
    # Each way sees only arguments that it can do: what is not selected must be finite, for its gradient's sake.
    series = _incomplete_series(by_series.where(a, 1.0), by_series.where(x, 1.0)).fdiv(by_series.where(a, 1.0))
    integral = _incomplete_integral(by_series.where(10.0, a), by_series.where(9.0, x), upper)
    return by_series.where(series, integral).mul(_incomplete_factor(a, x)), upper


def _integrand(a: Any, x: Any) -> Any:
    """x**(a - 1) e**-x / gamma(a)."""
    return x.log().mul(a.sub(1.0)).sub(x).sub(a.lgamma()).exp()


def _incomplete_factor(a: Any, x: Any) -> Any:
    """x**a e**-x / gamma(a)."""
    large = a.gt(SERIES_A)
    big, small = large.where(a, 10.0), large.where(1.0, a)
    ratio = large.where(x, 10.0).fdiv(big)
    near = ratio.gt(0.5).bitwise_and(ratio.lt(2.0))
    gap = near.where(large.where(x, 10.0).sub(big).fdiv(big), 0.0)
    logarithm = near.where(_logarithm_rest(gap), near.where(1.0, ratio).log().sub(near.where(1.0, ratio)).add(1.0))
    by_stirling = big.mul(logarithm).sub(stirling(big)).exp().mul(big.mul(1 / (2 * math.pi)).sqrt())
    argument = large.where(1.0, x)
    plain = small.mul(argument.log()).sub(argument).sub(small.lgamma()).exp()
    return large.where(by_stirling, plain)


def _logarithm_rest(x: Any) -> Any:
    """`log(1 + x) - x`, by its series where the two cancel."""
    near = x.abs().lt(0.01)
    inside, outside = near.where(x, 0.0), near.where(0.5, x)
    series = polynomial(inside, [(-1.0) ** (k + 1) / (k + 2) for k in range(9)])
    return near.where(inside.mul(inside).mul(series), outside.log1p().sub(outside))


def _incomplete_series(a: Any, x: Any) -> Any:
    """1 + x / (a + 1) + x**2 / ((a + 1) (a + 2)) + ..., from the last term on as one fraction."""
    numerator = denominator = a.add(SERIES_TERMS)
    numerator = numerator.add(x)
    for k in range(SERIES_TERMS - 1, 0, -1):
        below = a.add(k)
        denominator, numerator = denominator.mul(below), denominator.mul(below).add(x.mul(numerator))
    return numerator.fdiv(denominator)


def _incomplete_integral(a: Any, x: Any, upper: Any) -> Any:
    """Integral of (1 + s)**(a - 1) e**(-x s) from 0 on, or for the lower function that of (1 - s)**(a - 1) e**(x s)."""
    end = _integral_end(a.detach(), x.detach(), upper)
    sign = upper.where(1.0, end.mul(0.0).sub(1.0))
    nodes, weights = _legendre_rule(end)
    step = end.mul(sign).unsqueeze(-1).mul(nodes)
    above = a.sub(1.0)
    exponent = above.unsqueeze(-1).mul(_logarithm_rest(step)).sub(x.sub(above).unsqueeze(-1).mul(step))
    return exponent.exp().mul(weights).sum(-1).mul(end)


def _legendre_rule(like: Any) -> tuple[Any, Any]:
    """Nodes and weights of the rule on [0, 1], in memory on the device of `like`.

    They are selected by position: data from the host could not be part of a jitted function.
    """
    count = 2 * len(LEGENDRE_NODES)
    position = like.positions(count, like.place)
    mirrored = position.neg().add(count - 1)
    nearer = position.minimum(mirrored)
    node, weight = (
        position.constant_like(LEGENDRE_NODES[0], dtype=dtypes.float64),
        position.constant_like(LEGENDRE_WEIGHTS[0], dtype=dtypes.float64),
    )
    for k in range(1, count // 2):
        here = nearer.eq(k)
        node, weight = here.where(LEGENDRE_NODES[k], node), here.where(LEGENDRE_WEIGHTS[k], weight)
    node = position.lt(mirrored).where(node, node.neg().add(1.0))
    return node.contiguous(), weight.contiguous()


def _integral_end(a: Any, x: Any, upper: Any) -> Any:
    """Where the integrand becomes negligible, by a quadratic bound of its logarithm."""
    large = a.gt(1.0)
    above = large.where(a.sub(1.0), 1.0)
    gap = x.sub(above)
    # log(1 + s) <= s - 3 s**2 / (6 + 4 s)
    second = gap.mul(4 / 3).add(above)
    first = gap.mul(2.0).sub(NEGLIGIBLE * 4 / 3)
    root = first.mul(first).add(second.mul(8 * NEGLIGIBLE)).sqrt()
    upper_end = large.where(root.sub(first).fdiv(second.mul(2.0)), x.reciprocal().mul(NEGLIGIBLE))
    # log(1 - s) <= -s - s**2 / 2
    root = gap.mul(gap).add(above.mul(2 * NEGLIGIBLE)).sqrt()
    lower_end = gap.add(root).fdiv(above).minimum(1.0)
    return upper.where(upper_end, lower_end)


def _incomplete_edges(a: Any, x: Any, value: Any, at_zero: float, at_infinity: float) -> Any:
    """The values where an argument is 0 or infinite, and NaN where there is none."""
    far = x.eq(math.inf).bitwise_or(a.eq(0.0))
    near = x.eq(0.0).bitwise_or(a.eq(math.inf))
    value = far.where(at_infinity, near.where(at_zero, value))
    wrong = (
        far.bitwise_and(near).bitwise_or(a.lt(0.0)).bitwise_or(x.lt(0.0)).bitwise_or(a.isnan()).bitwise_or(x.isnan())
    )
    return wrong.where(math.nan, value)
