"""Composed mixin: element-wise mathematics spelled with the core ops, as exact as they are."""

from __future__ import annotations

import math
from typing import Any, Self

from gradlet.base.dtype import DType, accumulator, dtypes, promote
from gradlet.base.errors import ArgumentError, DTypeError
from gradlet.ops.arguments import integer, number
from gradlet.ops.op import Op
from gradlet.ops.transcendental import TranscendentalMixin


class MathMixin(TranscendentalMixin):
    """Element-wise functions. Integers become the default float where the result is not an integer."""

    __slots__ = ()

    def where(self, x: Any, y: Any) -> Self:
        """`x` where this is True (not zero), else `y`; all three broadcast.

        >>> (Tensor([1, 5]) > 2).where(Tensor([10, 20]), 0).tolist()
        [0, 20]
        """
        raise NotImplementedError

    def bitcast(self, dtype: DType | str) -> Self:
        """The same bits read as another type of the same size."""
        raise NotImplementedError

    def carried_float(self, what: str) -> tuple[Self, DType]:
        """This as float32 or float64, and the float type of a result that is rounded once.

        Raises:
            DTypeError: the type has no float of its own.

        >>> Tensor([1.0], dtype="float16").carried_float("example")[0].dtype
        dtypes.float32
        """
        x = self.same_float(what)
        return x.cast(accumulator(x.dtype)), x.dtype

    # division and remainders
    def div(self, x: Any, reverse: bool = False, rounding_mode: str | None = None) -> Self:
        """True division; integers become floats.

        Args:
            x: the divisor.
            reverse: divide `x` by this.
            rounding_mode: None, "trunc" (toward zero) or "floor".

        Raises:
            ArgumentError: another rounding mode.

        >>> Tensor([7, -7]).div(2, rounding_mode="floor").tolist()
        [3, -4]
        """
        if reverse:
            return self.coerce(x).div(self, rounding_mode=rounding_mode)
        if rounding_mode is None:
            return self.fdiv(x)
        if rounding_mode == "floor":
            return self.floordiv(x)
        if rounding_mode != "trunc":
            raise ArgumentError(f"div: rounding_mode {rounding_mode!r} is not one of None, 'trunc', 'floor'")
        x = self.coerce(x)
        if self.dtype.is_float or x.dtype.is_float:
            return self.fdiv(x).trunc()
        quotient = self.floordiv(x)
        # Rounded down; one more where the exact result is negative and not whole.
        inexact = self.ne(quotient.mul(x)).bitwise_and(self.lt(0).ne(x.lt(0)))
        return inexact.where(quotient.add(1), quotient)

    def idiv(self, x: Any) -> Self:
        """Division rounded toward zero, as C has it.

        >>> Tensor([7, -7]).idiv(2).tolist()
        [3, -3]
        """
        return self.div(x, rounding_mode="trunc")

    def __truediv__(self, other: Any) -> Self:
        return self.fdiv(other)

    def __rtruediv__(self, other: Any) -> Self:
        return self.coerce(other).fdiv(self)

    def float_divmod(self, divisor: Self) -> tuple[Self, Self]:
        """Quotient rounded down and remainder with the sign of the divisor, of floats.

        They are carried in float64: while the quotient of 32-bit floats is below 2**29 both are exact.
        """
        x, y = self.same_float("mod"), divisor.same_float("mod")
        own = promote(x.dtype, y.dtype)
        x, y = x.cast(dtypes.float64), y.cast(dtypes.float64)
        # Division by infinity leaves everything or, with the other sign, takes one infinite step down.
        endless = y.isinf().bitwise_and(x.isfinite())
        other_sign = endless.bitwise_and(x.mul(y).lt(0.0))
        quotient = other_sign.where(-1.0, x.fdiv(y).floor())
        remainder = endless.where(other_sign.where(y, x), x.sub(quotient.mul(y)))
        return quotient.cast(own), remainder.cast(own)

    def reciprocal(self) -> Self:
        """`1 / self`.

        >>> Tensor([2.0, 4.0]).reciprocal().tolist()
        [0.5, 0.25]
        """
        one = self.same_float("reciprocal")
        return one.coerce(1.0).fdiv(one)

    # powers
    def pow(self, x: Any, reverse: bool = False) -> Self:
        """`self ** x`, or the reverse. Integer powers are exact.

        Args:
            x: number or tensor; broadcasts.
            reverse: compute `x ** self`.

        Raises:
            DTypeError: an integer tensor to a negative constant power, which is no integer.

        >>> Tensor([3, -3]).pow(3).tolist()
        [27, -27]
        """
        if reverse:
            return self.coerce(x).pow(self)
        if isinstance(x, bool) or not isinstance(x, (int, float)):
            return self._pow_tensor(self.coerce(x))
        if isinstance(x, int) or x.is_integer():
            whole = int(x)
            if isinstance(x, float) and not self.dtype.is_float:
                return self.same_float("pow").pow(x)
            if not self.dtype.is_float and whole < 0:
                raise DTypeError(f"pow: {self.dtype} to the power {x} is no integer; cast the base to a float first")
            if abs(whole) <= 16 or not self.dtype.is_float:
                power = self._multiplied(abs(whole))
                return power.reciprocal() if whole < 0 else power
        base = self.same_float("pow")
        if x == 0.5:
            return base.sqrt()
        if x == -0.5:
            return base.rsqrt()
        return base.alu(Op.POW, base.coerce(float(x)))

    def _multiplied(self, exponent: int) -> Self:
        """The power by repeated squaring; exponent 0 gives 1."""
        if self.dtype is dtypes.bool:
            return self.cast(dtypes.default_int)._multiplied(exponent)
        if exponent == 0:
            return self.constant_like(1)
        result: Self | None = None
        square = self
        while True:
            if exponent & 1:
                result = square if result is None else result.mul(square)
            exponent >>= 1
            if not exponent:
                return (result if result is not None else square).as_value()
            square = square.mul(square)

    def _pow_tensor(self, exponent: Self) -> Self:
        if self.dtype.is_float or exponent.dtype.is_float:
            base = self.same_float("pow")
            return base.alu(Op.POW, exponent.same_float("pow"))
        base = self.cast(dtypes.default_int) if self.dtype is dtypes.bool else self
        left = exponent.cast(dtypes.default_int) if exponent.dtype is dtypes.bool else exponent
        # Square and multiply over the bits of the exponent: exact, and wraps as integers do.
        square, negative = base, left.lt(0)
        result = base.constant_like(1)
        for bit in range(left.dtype.bits - (0 if left.dtype.is_unsigned else 1)):
            result = left.bitwise_and(1 << bit).ne(0).where(result.mul(square), result)
            square = square.mul(square)
        if left.dtype.is_unsigned:
            return result
        # 1 / base ** n is whole for the bases 1 and -1 only.
        minus_one = left.bitwise_and(1).ne(0).where(-1, 1)
        inverse = base.eq(1).where(1, base.eq(-1).where(minus_one.cast(base.dtype), 0))
        return negative.where(inverse.cast(base.dtype), result)

    def __pow__(self, other: Any) -> Self:
        return self.pow(other)

    def __rpow__(self, other: Any) -> Self:
        return self.pow(other, reverse=True)

    def square(self) -> Self:
        """`self * self`.

        >>> Tensor([3.0]).square().item()
        9.0
        """
        return self.mul(self)

    def rsqrt(self) -> Self:
        """`1 / sqrt(self)`.

        >>> Tensor([4.0]).rsqrt().item()
        0.5
        """
        x = self.same_float("rsqrt")
        return x.cast(accumulator(x.dtype)).sqrt().reciprocal().cast(x.dtype)

    # rounding
    def floor(self) -> Self:
        """Largest integer not above.

        >>> Tensor([-1.5, 1.5]).floor().tolist()
        [-2.0, 1.0]
        """
        if not self.dtype.is_float:
            return self.as_value()
        whole = self.trunc()
        return self.lt(whole).where(whole.add(-1.0), whole)

    def ceil(self) -> Self:
        """Smallest integer not below.

        >>> Tensor([-1.5, 1.5]).ceil().tolist()
        [-1.0, 2.0]
        """
        if not self.dtype.is_float:
            return self.as_value()
        whole = self.trunc()
        return whole.lt(self).where(whole.add(1.0), whole)

    def round(self, decimals: int = 0) -> Self:
        """Nearest integer, or nearest multiple of `10 ** -decimals`; halves go to the even one.

        Args:
            decimals: digits kept behind the point; negative: digits before it that become 0.

        Raises:
            ArgumentError: decimals is no integer.
            DTypeError: decimals of integers.

        >>> Tensor([0.5, 1.5, 2.5]).round().tolist()
        [0.0, 2.0, 2.0]
        """
        if integer(decimals, "round", "decimals"):
            return self._round_decimals(decimals)
        if not self.dtype.is_float:
            return self.as_value()
        whole = self.trunc()
        part = self.sub(whole).abs()
        half = whole.mul(0.5)
        odd = half.ne(half.trunc())
        away = part.gt(0.5).bitwise_or(part.eq(0.5).bitwise_and(odd))
        step = self.lt(0.0).where(self.constant_like(-1.0), 1.0)
        return away.where(whole.add(step), whole)

    def _round_decimals(self, decimals: int) -> Self:
        if not self.dtype.is_float:
            raise DTypeError(f"round: decimals={decimals} is for floats, not {self.dtype}; cast to a float first")
        x, own = self.carried_float("round")
        factor = 10.0 ** abs(decimals)
        if decimals > 0:
            return x.mul(factor).round().fdiv(factor).cast(own)
        return x.fdiv(factor).round().mul(factor).cast(own)

    # signs and limits
    def abs(self) -> Self:
        """Absolute value; the gradient at 0 is 0.

        >>> Tensor([-2, 3]).abs().tolist()
        [2, 3]
        """
        if self.dtype.is_unsigned or self.dtype is dtypes.bool:
            return self.as_value()
        size = self.neg().maximum(self)
        # Either zero may be the maximum of both; the absolute value is never -0.0.
        return self.eq(0).where(0, size) if self.dtype.is_float else size

    def __abs__(self) -> Self:
        return self.abs()

    def sign(self) -> Self:
        """-1, 0 or 1 by the sign; NaN stays NaN.

        >>> Tensor([-2.0, 0.0, 5.0]).sign().tolist()
        [-1.0, 0.0, 1.0]
        """
        if self.dtype is dtypes.bool:
            return self.as_value()
        one = self.constant_like(1)
        positive = self.gt(0).where(one, self.mul(0) if self.dtype.is_float else 0)
        return positive if self.dtype.is_unsigned else self.lt(0).where(one.neg(), positive)

    def copysign(self, other: Any) -> Self:
        """The size of this with the sign of `other` (also of -0.0).

        >>> Tensor([3.0]).copysign(-1.0).item()
        -3.0
        """
        x = self.same_float("copysign")
        sign = x.coerce(other).same_float("copysign")
        return sign.signbit().where(x.abs().neg(), x.abs())

    def signbit(self) -> Self:
        """True where the sign is minus, also of -0.0 and of NaN.

        >>> Tensor([-1.0, -0.0, 0.0]).signbit().tolist()
        [True, True, False]
        """
        if self.dtype.is_float:
            return self.bitcast(dtypes.by_name(f"int{self.dtype.bits}")).lt(0)
        return self.lt(0) if self.dtype.kind == "i" else self.constant_like(False, dtype=dtypes.bool)

    def clamp(self, min_: Any = None, max_: Any = None) -> Self:
        """Limit to `[min_, max_]`; either may be None. NaN stays NaN.

        Raises:
            ArgumentError: both are None.

        >>> Tensor([-5, 0, 5]).clamp(-1, 2).tolist()
        [-1, 0, 2]
        """
        if min_ is None and max_ is None:
            raise ArgumentError("clamp: give min_, max_ or both")
        result = self
        if min_ is not None:
            low = result.coerce(min_)
            result = result.lt(low).bitwise_or(low.ne(low)).where(low, result)
        if max_ is not None:
            high = result.coerce(max_)
            result = high.lt(result).bitwise_or(high.ne(high)).where(high, result)
        return result

    def clip(self, min_: Any = None, max_: Any = None) -> Self:
        """Same as `clamp`.

        >>> Tensor([-5, 5]).clip(0).tolist()
        [0, 5]
        """
        return self.clamp(min_, max_)

    def lerp(self, end: Any, weight: Any) -> Self:
        """`self + (end - self) * weight`.

        >>> Tensor([0.0]).lerp(Tensor([10.0]), 0.25).item()
        2.5
        """
        target = self.coerce(end)
        way = target.sub(self)
        # From the nearer side, so that a weight of 1 gives exactly the end.
        if isinstance(weight, (int, float)):
            return self.add(way.mul(weight)) if abs(weight) < 0.5 else target.sub(way.mul(1 - weight))
        part = self.coerce(weight)
        return part.abs().lt(0.5).where(self.add(way.mul(part)), target.sub(way.mul(part.neg().add(1))))

    def fmod(self, x: Any) -> Self:
        """Remainder with the sign of this, as C has it.

        >>> Tensor([-7, 7]).fmod(3).tolist()
        [-1, 1]
        """
        divisor = self.coerce(x)
        if not (self.dtype.is_float or divisor.dtype.is_float):
            return self.sub(self.div(divisor, rounding_mode="trunc").mul(divisor))
        # Of sizes both kinds of remainder are the same.
        _, size = self.abs().float_divmod(divisor.abs())
        return self.lt(0).where(size.neg(), size)

    # tests
    def gt(self, x: Any) -> Self:
        """`self > x`.

        >>> Tensor([1, 2]).gt(1).tolist()
        [False, True]
        """
        return self.coerce(x).lt(self)

    def le(self, other: Any) -> Self:
        """`self <= other`; False beside NaN.

        >>> Tensor([1, 2]).le(1).tolist()
        [True, False]
        """
        limit = self.coerce(other)
        return self.lt(limit).bitwise_or(self.eq(limit))

    def ge(self, other: Any) -> Self:
        """`self >= other`; False beside NaN.

        >>> Tensor([1, 2]).ge(2).tolist()
        [False, True]
        """
        limit = self.coerce(other)
        return limit.lt(self).bitwise_or(self.eq(limit))

    def isnan(self) -> Self:
        """True where NaN.

        >>> Tensor([0.0, float("nan")]).isnan().tolist()
        [False, True]
        """
        return self.ne(self)

    def isinf(self, detect_positive: bool = True, detect_negative: bool = True) -> Self:
        """True where infinite.

        >>> Tensor([0.0, float("inf")]).isinf().tolist()
        [False, True]
        """
        if not self.dtype.is_float or not (detect_positive or detect_negative):
            return self.constant_like(False, dtype=dtypes.bool)
        if detect_positive and detect_negative:
            return self.abs().eq(math.inf)
        return self.eq(math.inf if detect_positive else -math.inf)

    def isfinite(self) -> Self:
        """True where neither infinite nor NaN.

        >>> Tensor([0.0, float("inf")]).isfinite().tolist()
        [True, False]
        """
        return self.abs().lt(math.inf) if self.dtype.is_float else self.constant_like(True, dtype=dtypes.bool)

    def isclose(self, other: Any, rtol: float = 1e-05, atol: float = 1e-08, equal_nan: bool = False) -> Self:
        """True where `|self - other| <= atol + rtol * |other|`, or equal.

        Raises:
            ArgumentError: a tolerance is negative or no number.

        >>> Tensor([1.0]).isclose(Tensor([1.0 + 1e-7])).item()
        True
        """
        for name, value in (("rtol", rtol), ("atol", atol)):
            if number(value, "isclose", name) < 0:
                raise ArgumentError(f"isclose: {name} must not be negative, got {value}")
        other = self.coerce(other)
        if not (self.dtype.is_float or other.dtype.is_float):
            return self.cast(dtypes.float64).isclose(other.cast(dtypes.float64), rtol, atol)
        x, other = self.same_float("isclose"), other.same_float("isclose")
        gap, limit = x.sub(other).abs(), other.abs().mul(rtol).add(atol)
        close = x.eq(other).bitwise_or(other.isfinite().bitwise_and(gap <= limit))
        return close.bitwise_or(x.isnan().bitwise_and(other.isnan())) if equal_nan else close

    # bits
    def bitwise_not(self) -> Self:
        """All bits flipped; logical not for bool.

        >>> Tensor([0, 5]).bitwise_not().tolist()
        [-1, -6]
        """
        return self.bitwise_xor(True if self.dtype is dtypes.bool else -1)

    def __invert__(self) -> Self:
        return self.bitwise_not()
