"""Functions of each element, or of each pair of elements of arrays that broadcast."""

from __future__ import annotations

from typing import Any

from gradlet.array_api.arguments import array, needs, pair
from gradlet.base.dtype import dtypes
from gradlet.base.errors import DTypeError
from gradlet.ops.arguments import broadcast_shapes
from gradlet.tensor.tensor import Tensor

_UNSIGNED = {1: dtypes.uint8, 2: dtypes.uint16, 4: dtypes.uint32, 8: dtypes.uint64}


# of one array
def abs(x: Tensor, /) -> Tensor:
    """The absolute value."""
    return needs(array(x, "abs"), "abs", "numeric").abs()


def acos(x: Tensor, /) -> Tensor:
    """The inverse cosine, in [0, pi]; NaN outside [-1, 1]."""
    return array(x, "acos").acos()


def acosh(x: Tensor, /) -> Tensor:
    """The inverse hyperbolic cosine; NaN below 1."""
    return array(x, "acosh").acosh()


def asin(x: Tensor, /) -> Tensor:
    """The inverse sine, in [-pi/2, pi/2]; NaN outside [-1, 1]."""
    return array(x, "asin").asin()


def asinh(x: Tensor, /) -> Tensor:
    """The inverse hyperbolic sine."""
    return array(x, "asinh").asinh()


def atan(x: Tensor, /) -> Tensor:
    """The inverse tangent, in [-pi/2, pi/2]."""
    return array(x, "atan").atan()


def atanh(x: Tensor, /) -> Tensor:
    """The inverse hyperbolic tangent; NaN outside [-1, 1]."""
    return array(x, "atanh").atanh()


def bitwise_invert(x: Tensor, /) -> Tensor:
    """All bits flipped; logical not for bools."""
    return _bits(array(x, "bitwise_invert"), "bitwise_invert").bitwise_not()


def ceil(x: Tensor, /) -> Tensor:
    """Rounded up; integers stay."""
    return x if array(x, "ceil").dtype.is_int else x.ceil()


def clip(x: Tensor, /, min: Any = None, max: Any = None) -> Tensor:
    """`x` with everything below `min` or above `max` (numbers or arrays) set to that; the type of `x` stays.

    Raises:
        ShapeError: bounds that do not broadcast with `x`.
    """
    result = needs(array(x, "clip"), "clip", "numeric")
    dtype = x.dtype
    for bound, smaller in ((min, False), (max, True)):
        if bound is None:
            continue
        left, right = pair(result, bound, "clip")
        result = (left.minimum(right) if smaller else left.maximum(right)).cast(dtype)
    return result


def conj(x: Tensor, /) -> Tensor:
    """The complex conjugate, which of real numbers is the number."""
    return needs(array(x, "conj"), "conj", "numeric")


def cos(x: Tensor, /) -> Tensor:
    """The cosine of radians."""
    return array(x, "cos").cos()


def cosh(x: Tensor, /) -> Tensor:
    """The hyperbolic cosine."""
    return array(x, "cosh").cosh()


def exp(x: Tensor, /) -> Tensor:
    """e to the power x."""
    return array(x, "exp").exp()


def expm1(x: Tensor, /) -> Tensor:
    """exp(x) - 1, exact for small x."""
    return array(x, "expm1").expm1()


def floor(x: Tensor, /) -> Tensor:
    """Rounded down; integers stay."""
    return x if array(x, "floor").dtype.is_int else x.floor()


def imag(x: Tensor, /) -> Tensor:
    """The imaginary part, which of real numbers is 0."""
    return needs(array(x, "imag"), "imag", "numeric").zeros_like()


def isfinite(x: Tensor, /) -> Tensor:
    """Whether it is neither infinite nor NaN."""
    return _float_test(array(x, "isfinite"), "isfinite", True)


def isinf(x: Tensor, /) -> Tensor:
    """Whether it is infinite."""
    return _float_test(array(x, "isinf"), "isinf", False)


def isnan(x: Tensor, /) -> Tensor:
    """Whether it is not a number."""
    return _float_test(array(x, "isnan"), "isnan", False)


def log(x: Tensor, /) -> Tensor:
    """The natural logarithm; -infinity at 0, NaN below."""
    return array(x, "log").log()


def log1p(x: Tensor, /) -> Tensor:
    """log(1 + x), exact for small x."""
    return array(x, "log1p").log1p()


def log2(x: Tensor, /) -> Tensor:
    """The logarithm to base 2."""
    return array(x, "log2").log2()


def log10(x: Tensor, /) -> Tensor:
    """The logarithm to base 10."""
    return array(x, "log10").log10()


def logical_not(x: Tensor, /) -> Tensor:
    """Whether it is False (zero)."""
    return array(x, "logical_not").logical_not()


def negative(x: Tensor, /) -> Tensor:
    """-x."""
    return needs(array(x, "negative"), "negative", "numeric").neg()


def positive(x: Tensor, /) -> Tensor:
    """x."""
    return needs(array(x, "positive"), "positive", "numeric")


def real(x: Tensor, /) -> Tensor:
    """The real part, which of real numbers is the number."""
    return needs(array(x, "real"), "real", "numeric")


def reciprocal(x: Tensor, /) -> Tensor:
    """1 / x."""
    return array(x, "reciprocal").reciprocal()


def round(x: Tensor, /) -> Tensor:
    """The nearest integer, the even one of two; integers stay."""
    return x if array(x, "round").dtype.is_int else x.round()


def sign(x: Tensor, /) -> Tensor:
    """-1, 0 or 1; NaN stays."""
    result = needs(array(x, "sign"), "sign", "numeric").sign()
    return x.isnan().where(x, result) if x.dtype.is_float else result


def signbit(x: Tensor, /) -> Tensor:
    """Whether the sign is set: of negative numbers, -0 and some NaN."""
    needs(array(x, "signbit"), "signbit", "real floating")
    kind = _UNSIGNED[x.dtype.itemsize]
    return x.bitcast(kind).rshift(x.dtype.bits - 1).ne(0)


def sin(x: Tensor, /) -> Tensor:
    """The sine of radians."""
    return array(x, "sin").sin()


def sinh(x: Tensor, /) -> Tensor:
    """The hyperbolic sine."""
    return array(x, "sinh").sinh()


def sqrt(x: Tensor, /) -> Tensor:
    """The square root; NaN below 0."""
    return array(x, "sqrt").sqrt()


def square(x: Tensor, /) -> Tensor:
    """x * x."""
    return needs(array(x, "square"), "square", "numeric").square()


def tan(x: Tensor, /) -> Tensor:
    """The tangent of radians."""
    return array(x, "tan").tan()


def tanh(x: Tensor, /) -> Tensor:
    """The hyperbolic tangent."""
    return array(x, "tanh").tanh()


def trunc(x: Tensor, /) -> Tensor:
    """Rounded towards 0; integers stay."""
    return array(x, "trunc").trunc()


# of two arrays, or an array and a Python number
def add(x1: Any, x2: Any, /) -> Tensor:
    """x1 + x2; integers wrap."""
    left, right = pair(x1, x2, "add")
    return left.add(right)


def atan2(x1: Any, x2: Any, /) -> Tensor:
    """The angle of the point (x2, x1), in [-pi, pi]."""
    left, right = pair(x1, x2, "atan2")
    return left.atan2(right)


def bitwise_and(x1: Any, x2: Any, /) -> Tensor:
    """Bits that both have."""
    left, right = _bit_pair(x1, x2, "bitwise_and")
    return left.bitwise_and(right)


def bitwise_left_shift(x1: Any, x2: Any, /) -> Tensor:
    """x1 with its bits x2 places higher; x2 must not be negative."""
    left, right = pair(x1, x2, "bitwise_left_shift")
    return needs(left, "bitwise_left_shift", "integral").lshift(right)


def bitwise_or(x1: Any, x2: Any, /) -> Tensor:
    """Bits that either has."""
    left, right = _bit_pair(x1, x2, "bitwise_or")
    return left.bitwise_or(right)


def bitwise_right_shift(x1: Any, x2: Any, /) -> Tensor:
    """x1 with its bits x2 places lower, the sign kept; x2 must not be negative."""
    left, right = pair(x1, x2, "bitwise_right_shift")
    return needs(left, "bitwise_right_shift", "integral").rshift(right)


def bitwise_xor(x1: Any, x2: Any, /) -> Tensor:
    """Bits that one of both has."""
    left, right = _bit_pair(x1, x2, "bitwise_xor")
    return left.bitwise_xor(right)


def copysign(x1: Any, x2: Any, /) -> Tensor:
    """x1 with the sign of x2."""
    left, right = pair(x1, x2, "copysign")
    return left.copysign(right)


def divide(x1: Any, x2: Any, /) -> Tensor:
    """x1 / x2 in floats."""
    left, right = pair(x1, x2, "divide")
    return left.div(right)


def equal(x1: Any, x2: Any, /) -> Tensor:
    """Whether x1 equals x2."""
    left, right = _compared(x1, x2, "equal")
    return left.eq(right)


def floor_divide(x1: Any, x2: Any, /) -> Tensor:
    """x1 / x2 rounded down."""
    left, right = pair(x1, x2, "floor_divide")
    return needs(left, "floor_divide", "numeric").floordiv(right)


def greater(x1: Any, x2: Any, /) -> Tensor:
    """Whether x1 > x2."""
    left, right = _compared(x1, x2, "greater")
    return right.lt(left)


def greater_equal(x1: Any, x2: Any, /) -> Tensor:
    """Whether x1 >= x2."""
    left, right = _compared(x1, x2, "greater_equal")
    return left >= right


def hypot(x1: Any, x2: Any, /) -> Tensor:
    """sqrt(x1 * x1 + x2 * x2) without overflow on the way."""
    left, right = pair(x1, x2, "hypot")
    return left.hypot(right)


def less(x1: Any, x2: Any, /) -> Tensor:
    """Whether x1 < x2."""
    left, right = _compared(x1, x2, "less")
    return left.lt(right)


def less_equal(x1: Any, x2: Any, /) -> Tensor:
    """Whether x1 <= x2."""
    left, right = _compared(x1, x2, "less_equal")
    return left <= right


def logaddexp(x1: Any, x2: Any, /) -> Tensor:
    """log(exp(x1) + exp(x2)) without overflow on the way."""
    left, right = pair(x1, x2, "logaddexp")
    return left.logaddexp(right)


def logical_and(x1: Any, x2: Any, /) -> Tensor:
    """Whether both are True."""
    left, right = pair(x1, x2, "logical_and")
    return left.cast(dtypes.bool).bitwise_and(right.cast(dtypes.bool))


def logical_or(x1: Any, x2: Any, /) -> Tensor:
    """Whether either is True."""
    left, right = pair(x1, x2, "logical_or")
    return left.cast(dtypes.bool).bitwise_or(right.cast(dtypes.bool))


def logical_xor(x1: Any, x2: Any, /) -> Tensor:
    """Whether one of both is True."""
    left, right = pair(x1, x2, "logical_xor")
    return left.cast(dtypes.bool).bitwise_xor(right.cast(dtypes.bool))


def maximum(x1: Any, x2: Any, /) -> Tensor:
    """The larger one; NaN where either is."""
    left, right = pair(x1, x2, "maximum")
    return needs(left, "maximum", "numeric").maximum(right)


def minimum(x1: Any, x2: Any, /) -> Tensor:
    """The smaller one; NaN where either is."""
    left, right = pair(x1, x2, "minimum")
    return needs(left, "minimum", "numeric").minimum(right)


def multiply(x1: Any, x2: Any, /) -> Tensor:
    """x1 * x2; integers wrap."""
    left, right = pair(x1, x2, "multiply")
    return left.mul(right)


def nextafter(x1: Any, x2: Any, /) -> Tensor:
    """The value next to x1 on the way to x2; x2 where they are equal, NaN where either is."""
    left, right = pair(x1, x2, "nextafter")
    needs(left, "nextafter", "real floating")
    kind = _UNSIGNED[left.dtype.itemsize]
    shape = broadcast_shapes([left.shape, right.shape], "nextafter")
    left, right = left.expand(shape), right.expand(shape)
    bits = left.bitcast(kind)
    # Codes of one sign are in the order of their magnitudes.
    away = left.lt(right).eq(left.gt(0))
    moved = away.where(bits.add(1), bits.sub(1)).bitcast(left.dtype)
    tiny = left.constant_like(1, shape, kind).bitcast(left.dtype)
    moved = left.eq(0).where(tiny.copysign(right), moved)
    result = left.eq(right).where(right, moved)
    return left.isnan().bitwise_or(right.isnan()).where(left.add(right), result)


def not_equal(x1: Any, x2: Any, /) -> Tensor:
    """Whether x1 differs from x2."""
    left, right = _compared(x1, x2, "not_equal")
    return left.ne(right)


def pow(x1: Any, x2: Any, /) -> Tensor:
    """x1 to the power x2."""
    left, right = pair(x1, x2, "pow")
    return needs(left, "pow", "numeric").pow(right)


def remainder(x1: Any, x2: Any, /) -> Tensor:
    """What x1 / x2 rounded down leaves: it has the sign of x2."""
    left, right = pair(x1, x2, "remainder")
    result = needs(left, "remainder", "numeric").mod(right)
    # The standard has zeros with the sign of x2 as well.
    return result.eq(0).where(result.constant_like(0).copysign(right), result) if result.dtype.is_float else result


def subtract(x1: Any, x2: Any, /) -> Tensor:
    """x1 - x2; integers wrap."""
    left, right = pair(x1, x2, "subtract")
    return needs(left, "subtract", "numeric").sub(right)


def _bits(x: Tensor, what: str) -> Tensor:
    if not (x.dtype.is_int or x.dtype is dtypes.bool):
        raise DTypeError(f"{what}: integers and bools only, got {x.dtype}; cast with astype")
    return x


def _bit_pair(x1: Any, x2: Any, what: str) -> tuple[Tensor, Tensor]:
    left, right = pair(x1, x2, what)
    return _bits(left, what), _bits(right, what)


def _compared(x1: Any, x2: Any, what: str) -> tuple[Any, Any]:
    """Two arrays as they are, whose comparison may be exact beyond their common type; numbers as arrays."""
    if isinstance(x1, Tensor) and isinstance(x2, Tensor):
        return x1, x2
    return pair(x1, x2, what)


def _float_test(x: Tensor, name: str, of_integers: bool) -> Tensor:
    if x.dtype.is_float:
        result: Tensor = getattr(x, name)()
        return result
    return x.constant_like(of_integers, x.shape, dtypes.bool)
