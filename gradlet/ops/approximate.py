"""Elementary functions from core arithmetic, within 2 units in the last place of float32 and of float64.

The operands are graph nodes (or anything with the core methods) of type float32 or float64; every function takes and
gives that type. Their derivatives stand in `grad/functions`, so nothing here is differentiated: a branch that is not
selected may be NaN. Polynomials are minimax fits (Remez) of the relative error, lowest power first; each serves one
type.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Final

from gradlet.base.dtype import dtypes

# e**r = 1 + r + r**2 P(r) for |r| <= log(2) / 2
EXPM1_32: Final = (
    0.4999999403953552, 0.16666515171527863, 0.04166845604777336, 0.008369418792426586, 0.0013813142431899905,
)  # fmt: skip
EXPM1_64: Final = (
    0.5, 0.16666666666666677, 0.0416666666666667, 0.008333333333321532, 0.0013888888888866527, 0.00019841269886400825,
    2.480158736112496e-05, 2.755724391193154e-06, 2.7557242304568766e-07, 2.5109147305019897e-08,
    2.0924576206206044e-09,
)  # fmt: skip
# log(2) in two parts; whole numbers below 2**9 (2**20) times the first are exact.
LN2_32: Final = (0.693145751953125, 1.428606765330187e-06)
LN2_64: Final = (0.6931471803691238, 1.9082149292705877e-10)
# atan(t) = t + t**3 P(t**2) for |t| <= 1
ATAN_32: Final = (
    -0.33333298563957214, 0.19998548924922943, -0.14264243841171265, 0.10952194035053253, -0.08403473347425461,
    0.057957958430051804, -0.0311781894415617, 0.010914781130850315, -0.0017936592921614647,
)  # fmt: skip
ATAN_64: Final = (
    -0.3333333333333307, 0.19999999999951495, -0.14285714282577233, 0.1111111100709255, -0.09090907004235532,
    0.07692279854521661, -0.06666404186719244, 0.05880528605105026, -0.052535221475415866, 0.04722334605410993,
    -0.04219211742347665, 0.03664258218700281, -0.029904923900351786, 0.021986159519757378, -0.013901784415884385,
    0.00719736386250587, -0.0028853574422283684, 0.0008314751809255681, -0.00015219366188828093,
    1.3228314335537377e-05,
)  # fmt: skip
# asin(s) = s + s**3 P(s**2) for |s| <= 5 / 8
ASIN_32: Final = (
    0.1666668951511383, 0.07498561590909958, 0.04494527354836464, 0.027407454326748848, 0.037640560418367386,
    -0.023627763614058495, 0.06400520354509354,
)  # fmt: skip
ASIN_64: Final = (
    0.16666666666666663, 0.07500000000001311, 0.044642857141165, 0.0303819445556412, 0.022372154708277588,
    0.017352878004947888, 0.013962793111789572, 0.011578594825212736, 0.009501719480817107, 0.010292249808145278,
    -0.0032810844217560585, 0.051442950586032286, -0.13921173648668905, 0.3542214335777085, -0.606558071203695,
    0.744016201122543, -0.5561857780109011, 0.20955455448609348,
)  # fmt: skip
# sinh(x) = x + x**3 P(x**2) for |x| <= 1
SINH_32: Final = (0.1666666716337204, 0.008333349600434303, 0.00019836160936392844, 2.816949972839211e-06)
SINH_64: Final = (
    0.16666666666666666, 0.008333333333333333, 0.000198412698412696, 2.7557319224116297e-06, 2.5052108346507378e-08,
    1.6059050601487424e-10, 7.646482880145277e-13, 2.8482334346631e-15,
)  # fmt: skip
# tanh(x) = x + x**3 P(x**2) for |x| <= 0.625
TANH_32: Final = (
    -0.3333328068256378, 0.13331443071365356, -0.05373978987336159, 0.020639237016439438, -0.005705077201128006,
)  # fmt: skip
# asinh(x) = x + x**3 P(x**2) and atanh(x) = x + x**3 P(x**2) for |x| <= 1 / 2
ASINH_32: Final = (
    -0.1666664332151413, 0.074986532330513, -0.04438460245728493, 0.0281694196164608, -0.013237846083939075,
)  # fmt: skip
ATANH_32: Final = (
    0.33333301544189453, 0.20002515614032745, 0.1422281563282013, 0.11823324114084244, 0.05137196183204651,
    0.17667415738105774,
)  # fmt: skip
# acosh(1 + t) = sqrt(2 t) (1 + t P(t)) for 0 <= t <= 1 / 2
ACOSH_32: Final = (
    -0.08333321660757065, 0.01874663308262825, -0.005548075307160616, 0.0017605887260288, -0.0004136826901230961,
)  # fmt: skip
# erf(x) = x + x P(x**2) for |x| <= 1
ERF_NEAR_32: Final = (
    0.12837916612625122, -0.3761262595653534, 0.1128358542919159, -0.026853814721107483, 0.005188330076634884,
    -0.0008010199526324868, 7.853839633753523e-05,
)  # fmt: skip
ERF_NEAR_64: Final = (
    0.1283791670955126, -0.3761263890318375, 0.11283791670954879, -0.026866170645076792, 0.0052239776248180145,
    -0.000854832698083379, 0.0001205533111164271, -1.4925595266831182e-05, 1.6461000484121368e-06,
    -1.6350312701054695e-07, 1.4659775274047436e-08, -1.1372848856791674e-09, 5.957176147748911e-11,
)  # fmt: skip
# log(1 - erf(x)) = P(x) for 1 <= x <= 4, where erf becomes 1 in float32
ERF_FAR_32: Final = (
    0.0001884618104668334, -1.1295802593231201, -0.6332164406776428, -0.10842204838991165, 0.025210311636328697,
    -0.004205274861305952, 0.00044147076550871134, -2.169746221625246e-05,
)  # fmt: skip
# (1 - erf(x)) exp(x**2) (1 + 2 x) = P(t) with t = (x - 2) / (x + 2), for 1 <= x <= 6
ERF_FAR_64: Final = (
    1.2769783815525286, -0.09276382658574597, -0.1660303976152912, 0.16405128003343078, -0.05422000099174003,
    -0.008034015081439548, 0.008722653856750447, 0.0012713389344749736, -0.0014568133389069365, -0.00045434052737427713,
    0.00020635643377054066, 0.00015104323296688811, -1.4032896296295188e-06, -3.653802749436245e-05,
    -1.403300441966861e-05, 4.639547402434605e-06, 6.211065075417665e-06, -1.219440034389049e-06,
)  # fmt: skip
# pi / 2 as the type has it, and what is missing.
HALF_PI_32: Final = (1.5707963705062866, -4.371139000186241e-08)
HALF_PI_64: Final = (math.pi / 2, 6.123233995736766e-17)
# c and e**c / 2, which the type has almost exactly: e**|x| / 2 without overflow.
HALF_EXP_32: Final = (105 / 128, 1.135604739189148)
HALF_EXP_64: Final = (52 / 64, 1.1267673936066043)
# log10(e): half the digits of the type, and the rest.
LOG10_E_32: Final = (0.43408203125, 0.00021245065325182765)
LOG10_E_64: Final = (0.4342944771051407, 4.798111141615973e-09)


def polynomial(x: Any, coefficients: Sequence[float]) -> Any:
    """The polynomial with these coefficients, lowest power first, by Horner's scheme."""
    result = x * coefficients[-1] + coefficients[-2]
    for coefficient in coefficients[-3::-1]:
        result = result * x + coefficient
    return result


def _double(x: Any) -> bool:
    return x.dtype is dtypes.float64


def _odd(x: Any, square: Any, coefficients: Sequence[float]) -> Any:
    """`x + x**3 P(x**2)`."""
    return x * square * polynomial(square, coefficients) + x


def _bits(x: Any) -> tuple[Any, int]:
    """The bits of x as a signed integer, and the sign bit among them."""
    return (x.bitcast(dtypes.int64), -(2**63)) if _double(x) else (x.bitcast(dtypes.int32), -(2**31))


def size_of(x: Any) -> Any:
    """|x|: the sign bit cleared."""
    bits, sign = _bits(x)
    return (bits & ~sign).bitcast(x.dtype)


def with_sign(size: Any, x: Any) -> Any:
    """`size`, whose sign bit is clear, with that of `x`."""
    bits, sign = _bits(x)
    return (_bits(size)[0] | (bits & sign)).bitcast(x.dtype)


def is_negative(x: Any) -> Any:
    """Whether the sign is minus, also of -0."""
    return _bits(x)[0] < 0


# exponentials and logarithms
def expm1(x: Any) -> Any:
    """`e**x - 1`: e**r - 1 of the part r below log(2) / 2, times 2**k, plus 2**k - 1."""
    high, low = LN2_64 if _double(x) else LN2_32
    top, bottom = (709.79, -50.0) if _double(x) else (88.73, -30.0)
    limited = (x < bottom).where(bottom, (x > top).where(top, x))
    k = nearest(limited * (1 / math.log(2.0)))
    top_part, low_part = limited - k * high, k * low
    r = top_part - low_part
    lost = (top_part - r) - low_part
    part = (r * r * polynomial(r, EXPM1_64 if _double(x) else EXPM1_32) + lost) + r
    half = (k - 1.0).exp2()
    value = (half * part + (half - 0.5)) * 2.0
    return k.eq(0.0).where((part.eq(0.0)).where(x, part), value)


def nearest(x: Any) -> Any:
    """The nearest integer of a small number."""
    shift = 6755399441055744.0 if _double(x) else 12582912.0  # 1.5 * 2**52, 1.5 * 2**23
    return (x + shift) - shift


def log1p(x: Any) -> Any:
    """`log(1 + x)`: the logarithm of the rounded sum, and what rounding lost, to first order."""
    total = x + 1.0
    lost = (x - (total - 1.0)).fdiv(total)
    lost = lost.eq(lost).where(lost, 0.0)  # at -1 and infinity
    return x.eq(0.0).where(x, total.log() + lost)


def log10(x: Any) -> Any:
    """`log(x) log10(e)`, both cut in halves whose product is exact, so that powers of ten give whole numbers."""
    high, low = LOG10_E_64 if _double(x) else LOG10_E_32
    natural = x.log()
    front = (_bits(natural)[0] & (-(2**27) if _double(x) else -(2**12))).bitcast(x.dtype)
    value = front * high + ((natural - front) * high + natural * low)
    return value.eq(value).where(value, natural)  # of infinities nothing is left to add


def logaddexp(x: Any, y: Any) -> Any:
    """`log(e**x + e**y)` without overflow."""
    below = x.eq(y).where(0.0, size_of(x - y) * -1.0)
    return x.maximum(y) + log1p(below.exp())


def logaddexp2(x: Any, y: Any) -> Any:
    """`log2(2**x + 2**y)` without overflow."""
    below = x.eq(y).where(0.0, size_of(x - y) * -1.0)
    return x.maximum(y) + log1p(below.exp2()) * (1 / math.log(2.0))


def sigmoid(x: Any) -> Any:
    """`1 / (1 + e**-x)`; the exponential sees no positive number, so nothing overflows."""
    negative = x < 0.0
    tail = negative.where(x, x * -1.0).exp()
    total = tail + 1.0
    lost = tail - (total - 1.0)  # by rounding the sum; to first order the quotient is so much smaller
    quotient = negative.where(tail, 1.0).fdiv(total)
    return quotient - quotient * negative.where(1.0 - quotient, quotient) * lost


def silu(x: Any) -> Any:
    """`x / (1 + e**-x)`; where that power is infinite, or nearly, `x e**x`."""
    far = x < (-700.0 if _double(x) else -80.0)
    power = far.where(x, x * -1.0).exp()
    total = power + 1.0
    large = power > 1.0
    lost = large.where(1.0, power) - (total - large.where(power, 1.0))
    quotient = x.fdiv(total)
    better = lost.eq(0.0).where(quotient, quotient - quotient * lost.fdiv(total))  # infinite ones lose nothing
    return far.where(x * power, better)


def softplus(x: Any) -> Any:
    """`log(1 + e**x)` without overflow."""
    return x.maximum(0.0) + log1p((size_of(x) * -1.0).exp())


def tanh_softplus(x: Any) -> Any:
    """`tanh(log(1 + e**x))`: with t = e**-|x| (t**2 + 2 t) / (t**2 + 2 t + 2), or (1 + 2 t) / (1 + 2 t + 2 t**2)."""
    negative = x < 0.0
    t = (size_of(x) * -1.0).exp()
    double, square = t * 2.0, t * t
    numerator = negative.where(square, 1.0) + double
    return numerator.fdiv(numerator + negative.where(2.0, square * 2.0))


# trigonometry
def tan(x: Any) -> Any:
    """Sine over cosine, which share the reduced argument."""
    return x.sin().fdiv(x.cos())


def asin(x: Any) -> Any:
    """Inverse sine; NaN outside [-1, 1]."""
    far, p = _asin_part(size_of(x))
    high, low = HALF_PI_64 if _double(x) else HALF_PI_32
    return with_sign(far.where(high - (p * 2.0 - low), p), x)


def acos(x: Any) -> Any:
    """Inverse cosine; NaN outside [-1, 1]."""
    far, p = _asin_part(size_of(x))
    high, low = HALF_PI_64 if _double(x) else HALF_PI_32
    negative = x < 0.0
    outside = negative.where(2 * high - (p * 2.0 - 2 * low), p * 2.0)
    return far.where(outside, high - (negative.where(p * -1.0, p) - low))


def _asin_part(size: Any) -> tuple[Any, Any]:
    """The inverse sine of small sizes; far out that of sqrt((1 - x) / 2), which is half the angle that is missing."""
    far = size > 0.625
    square = far.where((1.0 - size) * 0.5, size * size)
    root = far.where(square.sqrt(), size)
    return far, _odd(root, square, ASIN_64 if _double(size) else ASIN_32)


def atan(x: Any) -> Any:
    """Inverse tangent: of x, or what that of the reciprocal leaves of pi / 2."""
    size = size_of(x)
    inverted = size > 1.0
    return with_sign(_first_quadrant(inverted.where(size.coerce(1.0).fdiv(size), size), inverted), x)


def atan2(y: Any, x: Any) -> Any:
    """The angle of the point (x, y); the signs of zeros choose the side, as IEEE 754 recommends."""
    high, low = HALF_PI_64 if _double(x) else HALF_PI_32
    across, up = size_of(x), size_of(y)
    inverted = across < up
    less, more = inverted.where(across, up), inverted.where(up, across)
    t = less.eq(more).where(less.eq(0.0).where(less, 1.0), less.fdiv(more))
    angle = _first_quadrant(t, inverted)
    angle = is_negative(x).where(2 * high - (angle - 2 * low), angle)
    return with_sign(angle, y)


def _first_quadrant(t: Any, inverted: Any) -> Any:
    """atan(t) for 0 <= t <= 1, or pi / 2 less it where `inverted`."""
    high, low = HALF_PI_64 if _double(t) else HALF_PI_32
    p = _odd(t, t * t, ATAN_64 if _double(t) else ATAN_32)
    return inverted.where(high - (p - low), p)


# hyperbolic functions
def sinh(x: Any) -> Any:
    """Hyperbolic sine."""
    size = size_of(x)
    shift, half = HALF_EXP_64 if _double(x) else HALF_EXP_32
    power = (size - shift).exp()
    far = power * half - x.coerce(0.25 / half).fdiv(power)
    near = _odd(size, size * size, SINH_64 if _double(x) else SINH_32)
    return with_sign((size < 1.0).where(near, far), x)


def cosh(x: Any) -> Any:
    """Hyperbolic cosine."""
    size = size_of(x)
    shift, half = HALF_EXP_64 if _double(x) else HALF_EXP_32
    far = size > 80.0
    power = far.where(size - shift, size).exp()
    return power * far.where(x.coerce(half), 0.5) + x.coerce(0.5).fdiv(power)


def tanh(x: Any) -> Any:
    """Hyperbolic tangent."""
    size = size_of(x)
    if _double(x):
        grown = expm1((size > 20.0).where(40.0, size * 2.0))
        total = grown + 2.0
        quotient = grown.fdiv(total)
        # Lost by rounding the sum; 1 / total is (1 - quotient) / 2.
        lost = (grown < 2.0).where(grown - (total - 2.0), 0.0)
        return with_sign(quotient - quotient * (1.0 - quotient) * (lost * 0.5), x)
    far = 1.0 - x.coerce(2.0).fdiv((size * 2.0).exp() + 1.0)
    return with_sign((size < 0.625).where(_odd(size, size * size, TANH_32), far), x)


def asinh(x: Any) -> Any:
    """Inverse hyperbolic sine; beyond 2**28 it is log(2 |x|)."""
    size = size_of(x)
    square, huge = size * size, size > 268435456.0
    root = (square + 1.0).sqrt()
    grown = log1p(huge.where(size - 1.0, size + square.fdiv(root + 1.0)))
    far = grown + huge.where(x.coerce(math.log(2.0)), 0.0)
    if _double(x):
        return with_sign(far, x)
    return with_sign((size < 0.5).where(_odd(size, square, ASINH_32), far), x)


def acosh(x: Any) -> Any:
    """Inverse hyperbolic cosine; NaN below 1; beyond 2**28 it is log(2 x)."""
    t, huge = x - 1.0, x > 268435456.0
    root = (t * t + t * 2.0).sqrt()
    double = huge.where(x.coerce(math.log(2.0)), 0.0)
    if _double(x):
        total = t + root
        lost = huge.where(0.0, (t - (total - root)).fdiv(total + 1.0))
        return (t < 0.0).where(math.nan, log1p(huge.where(t, total)) + lost + double)
    near = (t * 2.0).sqrt()
    return (t < 0.5).where(near * t * polynomial(t, ACOSH_32) + near, huge.where(x, x + root).log() + double)


def atanh(x: Any) -> Any:
    """Inverse hyperbolic tangent; NaN outside [-1, 1]."""
    size = size_of(x)
    if _double(x):
        double = size * 2.0
        ratio = double.fdiv(1.0 - size)
        return with_sign(log1p((size < 0.5).where(ratio * size + double, ratio)) * 0.5, x)
    far = (size + 1.0).fdiv(1.0 - size).log() * 0.5
    return with_sign((size < 0.5).where(_odd(size, size * size, ATANH_32), far), x)


# others
def erf(x: Any) -> Any:
    """Error function."""
    size = size_of(x)
    near = size * polynomial(size * size, ERF_NEAR_64 if _double(x) else ERF_NEAR_32) + size
    if _double(x):
        limited = (size > 6.0).where(6.0, size)
        t = (limited - 2.0).fdiv(limited + 2.0)
        rest = polynomial(t, ERF_FAR_64) * (limited * limited * -1.0).exp()
        far = 1.0 - rest.fdiv(limited * 2.0 + 1.0)
    else:
        far = 1.0 - polynomial((size > 4.0).where(4.0, size), ERF_FAR_32).exp()
    return with_sign((size < 1.0).where(near, far), x)


def hypot(x: Any, y: Any) -> Any:
    """`sqrt(x**2 + y**2)` without overflow; infinite beside an infinity, also with NaN."""
    across, up = size_of(x), size_of(y)
    more, less = across.maximum(up), across.minimum(up)
    ratio = less.eq(more).where(less.eq(0.0).where(less, 1.0), less.fdiv(more))
    length = more * (ratio * ratio + 1.0).sqrt()
    return (across.eq(math.inf) | up.eq(math.inf)).where(math.inf, length)
