"""Composed mixin: element-wise arithmetic under torch's names: products and sums, remainders, limits, tests, logic."""

from __future__ import annotations

import math
from typing import Any, Self

from gradlet.base.dtype import dtypes, promote
from gradlet.base.errors import ArgumentError, DTypeError
from gradlet.base.floatformat import FORMATS
from gradlet.ops.arguments import number
from gradlet.ops.movement import operand
from gradlet.ops.rearrange import RearrangeMixin


class ArithmeticMixin(RearrangeMixin):
    """What torch users reach for beside the operators."""

    __slots__ = ()

    # sums and products
    def rsub(self, other: Any, alpha: float = 1) -> Self:
        """`other - alpha * self`.

        >>> Tensor([1, 2]).rsub(10, alpha=2).tolist()
        [8, 6]
        """
        return self.coerce(other).sub(self, alpha=alpha)

    def addcmul(self, tensor1: Any, tensor2: Any, value: float = 1) -> Self:
        """`self + value * tensor1 * tensor2`.

        >>> Tensor([1.0]).addcmul(Tensor([2.0]), Tensor([3.0]), value=0.5).item()
        4.0
        """
        product = self.coerce(tensor1).mul(tensor2)
        return self.add(product if value == 1 else product.mul(value))

    def addcdiv(self, tensor1: Any, tensor2: Any, value: float = 1) -> Self:
        """`self + value * tensor1 / tensor2`.

        Raises:
            DTypeError: both are integers, whose quotient is none.

        >>> Tensor([1.0]).addcdiv(Tensor([3.0]), Tensor([2.0]), value=2).item()
        4.0
        """
        numerator, denominator = self.coerce(tensor1), self.coerce(tensor2)
        if not (numerator.dtype.is_float or denominator.dtype.is_float):
            raise DTypeError(
                f"addcdiv: {numerator.dtype} and {denominator.dtype} are integers; cast one to a float, or use "
                "div(rounding_mode='trunc')"
            )
        return self.add((numerator if value == 1 else numerator.mul(value)).fdiv(denominator))

    def true_divide(self, other: Any) -> Self:
        """Same as `div`.

        >>> Tensor([1, 3]).true_divide(2).tolist()
        [0.5, 1.5]
        """
        return self.div(other)

    def floor_divide(self, other: Any) -> Self:
        """`floor(self / other)`; same as `floordiv`.

        >>> Tensor([7, -7]).floor_divide(2).tolist()
        [3, -4]
        """
        return self.floordiv(other)

    def remainder(self, other: Any) -> Self:
        """`self - other * floor(self / other)`, with the sign of the divisor; same as `mod`.

        >>> Tensor([7, -7]).remainder(3).tolist()
        [1, 2]
        """
        return self.mod(other)

    def float_power(self, exponent: Any) -> Self:
        """`self ** exponent` in float64.

        >>> Tensor([2]).float_power(0.5).dtype
        dtypes.float64
        """
        other = self.coerce(exponent)
        return self.cast(dtypes.float64).pow(other.cast(dtypes.float64))

    def positive(self) -> Self:
        """`+self`, this itself.

        Raises:
            DTypeError: a bool has no sign.

        >>> Tensor([-1]).positive().tolist()
        [-1]
        """
        if self.dtype is dtypes.bool:
            raise DTypeError("positive: dtypes.bool has no sign; cast to an integer first")
        return self

    def __pos__(self) -> Self:
        return self.positive()

    # parts of a number
    def frac(self) -> Self:
        """The part behind the point, `self - trunc(self)`, with the sign of this.

        >>> Tensor([1.5, -1.25]).frac().tolist()
        [0.5, -0.25]
        """
        return self.sub(self.trunc())

    def sgn(self) -> Self:
        """Same as `sign`: these numbers are real.

        >>> Tensor([-2.0, 0.0]).sgn().tolist()
        [-1.0, 0.0]
        """
        return self.sign()

    def angle(self) -> Self:
        """The angle of a real number in the complex plane: pi where negative, 0 elsewhere, NaN for NaN.

        >>> [round(v, 4) for v in Tensor([-1.0, 2.0]).angle().tolist()]
        [3.1416, 0.0]
        """
        x = self.same_float("angle")
        return x.lt(0.0).where(x.constant_like(math.pi), x.isnan().where(x, 0.0))

    # limits
    def clamp_min(self, min: Any) -> Self:
        """Not below `min`.

        >>> Tensor([-5, 5]).clamp_min(0).tolist()
        [0, 5]
        """
        return self.clamp(min_=min)

    def clamp_max(self, max: Any) -> Self:
        """Not above `max`.

        >>> Tensor([-5, 5]).clamp_max(0).tolist()
        [-5, 0]
        """
        return self.clamp(max_=max)

    def fmax(self, other: Any) -> Self:
        """The larger of the two; a NaN counts only beside another NaN. Of equal ones this has the gradient.

        >>> Tensor([float("nan"), 1.0]).fmax(0.5).tolist()
        [0.5, 1.0]
        """
        x, y = self.same_dtype([other], "fmax")
        return ((y <= x) | y.isnan()).where(x, y)

    def fmin(self, other: Any) -> Self:
        """The smaller of the two; a NaN counts only beside another NaN. Of equal ones this has the gradient.

        >>> Tensor([float("nan"), 1.0]).fmin(0.5).tolist()
        [0.5, 0.5]
        """
        x, y = self.same_dtype([other], "fmin")
        return ((x <= y) | y.isnan()).where(x, y)

    def nan_to_num(self, nan: float = 0.0, posinf: float | None = None, neginf: float | None = None) -> Self:
        """NaN and infinities replaced.

        Args:
            nan: in place of NaN.
            posinf, neginf: in place of the infinities; the largest and smallest finite numbers when None.

        >>> Tensor([float("nan"), 1.0]).nan_to_num(nan=7.0).tolist()
        [7.0, 1.0]
        """
        if not self.dtype.is_float:
            return self.as_value()
        largest = FORMATS[self.dtype.name].largest
        high = largest if posinf is None else number(posinf, "nan_to_num", "posinf")
        low = -largest if neginf is None else number(neginf, "nan_to_num", "neginf")
        result = self.isnan().where(number(nan, "nan_to_num", "nan"), self)
        return self.eq(math.inf).where(high, self.eq(-math.inf).where(low, result))

    def heaviside(self, values: Any) -> Self:
        """The step: 0 where negative, 1 where positive, `values` where 0.

        Raises:
            DTypeError: `values` has another type.

        >>> Tensor([-1.0, 0.0, 2.0]).heaviside(Tensor([0.5])).tolist()
        [0.0, 0.5, 1.0]
        """
        values = self.coerce(values)
        if values.dtype is not self.dtype:
            raise DTypeError(f"heaviside: values are {values.dtype}, this is {self.dtype}; cast one")
        return self.eq(0).where(values, self.gt(0).cast(self.dtype))

    # functions
    def deg2rad(self) -> Self:
        """Degrees as radians, `self * pi / 180`.

        >>> round(Tensor([180.0]).deg2rad().item(), 4)
        3.1416
        """
        x, own = self.carried_float("deg2rad")
        return x.mul(math.pi / 180).cast(own)

    def rad2deg(self) -> Self:
        """Radians as degrees, `self * 180 / pi`.

        >>> round(Tensor([3.14159265]).rad2deg().item())
        180
        """
        x, own = self.carried_float("rad2deg")
        return x.mul(180 / math.pi).cast(own)

    def xlogy(self, other: Any) -> Self:
        """`self * log(other)`, and 0 where this is 0, whatever the logarithm is; NaN stays NaN.

        >>> Tensor([0.0, 2.0]).xlogy(Tensor([0.0, 1.0])).tolist()
        [0.0, 0.0]
        """
        other = self.coerce(other)
        (x, left), (y, right) = self.carried_float("xlogy"), other.carried_float("xlogy")
        nothing = x.eq(0.0) & ((y <= 0.0) | y.eq(math.inf))
        # The input is selected: the slope of the logarithm is infinite at 0.
        return x.mul(nothing.where(1.0, y).log()).cast(promote(left, right))

    def logit(self, eps: float | None = None) -> Self:
        """`log(self / (1 - self))`, the inverse of the sigmoid; NaN outside [0, 1].

        Args:
            eps: limit this to [eps, 1 - eps] first; outside the gradient is 0.

        >>> Tensor([0.5]).logit().item()
        0.0
        """
        x, own = self.carried_float("logit")
        if eps is not None:
            low = number(eps, "logit", "eps")
            x = x.clamp(low, 1.0 - low)
        inside = (x >= 0.0) & (x <= 1.0)
        x = inside.where(x, math.nan)
        return x.fdiv(x.neg().add(1.0)).log().cast(own)

    def sinc(self) -> Self:
        """`sin(pi self) / (pi self)`, and 1 at 0.

        The argument of the sine is reduced before it is multiplied, so that large numbers lose nothing.

        >>> Tensor([0.0, 1.0]).sinc().tolist()
        [1.0, 0.0]
        """
        x, own = self.carried_float("sinc")
        zero = x.eq(0.0)
        safe = zero.where(1.0, x)
        # Whole turns leave [-1, 1]; the outer halves are mirrored, so that whole numbers give exactly 0.
        turn = safe.sub(safe.mul(0.5).round().mul(2.0))
        outer = turn.abs().gt(0.5)
        turn = outer.where(turn.lt(0.0).where(-1.0, x.constant_like(1.0)).sub(turn), turn)
        return zero.where(1.0, turn.mul(math.pi).sin().fdiv(safe.mul(math.pi))).cast(own)

    # integers
    def gcd(self, other: Any) -> Self:
        """Greatest common divisor of integers, never negative; `gcd(0, 0)` is 0. By Euclid's algorithm.

        Raises:
            DTypeError: not integers.

        >>> Tensor([12, -8, 0]).gcd(Tensor([18, 12, 5])).tolist()
        [6, 4, 5]
        """
        x, y = self.same_dtype([other], "gcd")
        if not x.dtype.is_int:
            raise DTypeError(f"gcd: integers have divisors, not {x.dtype}; cast to an integer")
        unsigned = dtypes.by_name(f"uint{x.dtype.bits}")
        a, b = x.abs().cast(unsigned), y.abs().cast(unsigned)
        # The worst case are Fibonacci numbers: log(2**bits) to the base of the golden ratio.
        for _ in range(math.ceil(x.dtype.bits * 1.4405) + 1):
            a, b = b.eq(0).where(a, b), a.mod(b)
        return a.cast(x.dtype)

    def lcm(self, other: Any) -> Self:
        """Least common multiple of integers, never negative; 0 where one is 0.

        Raises:
            DTypeError: not integers.

        >>> Tensor([4, 0]).lcm(Tensor([6, 5])).tolist()
        [12, 0]
        """
        x, y = self.same_dtype([other], "lcm")
        if not x.dtype.is_int:
            raise DTypeError(f"lcm: integers have multiples, not {x.dtype}; cast to an integer")
        return x.floordiv(x.gcd(y)).mul(y).abs()

    def bitwise_left_shift(self, other: Any) -> Self:
        """`self * 2 ** other` on the bits; same as `lshift`.

        >>> Tensor([1, 3]).bitwise_left_shift(2).tolist()
        [4, 12]
        """
        return self.lshift(other)

    def bitwise_right_shift(self, other: Any) -> Self:
        """`floor(self / 2 ** other)` on the bits; same as `rshift`.

        >>> Tensor([8, -8]).bitwise_right_shift(2).tolist()
        [2, -2]
        """
        return self.rshift(other)

    # tests and logic
    def logical_and(self, other: Any) -> Self:
        """True where both are not zero.

        >>> Tensor([0, 2]).logical_and(Tensor([1, 1])).tolist()
        [False, True]
        """
        return self.cast(dtypes.bool).bitwise_and(self.coerce(other).cast(dtypes.bool))

    def logical_or(self, other: Any) -> Self:
        """True where one is not zero.

        >>> Tensor([0, 2]).logical_or(Tensor([0, 0])).tolist()
        [False, True]
        """
        return self.cast(dtypes.bool).bitwise_or(self.coerce(other).cast(dtypes.bool))

    def logical_xor(self, other: Any) -> Self:
        """True where exactly one is not zero.

        >>> Tensor([0, 2]).logical_xor(Tensor([1, 1])).tolist()
        [True, False]
        """
        return self.cast(dtypes.bool).bitwise_xor(self.coerce(other).cast(dtypes.bool))

    def equal(self, other: Any) -> bool:
        """Whether shapes and all elements are equal; computes now.

        Raises:
            DTypeError: `other` is no tensor.

        >>> Tensor([1, 2]).equal(Tensor([1, 2])), Tensor([1, 2]).equal(Tensor([1]))
        (True, False)
        """
        other = operand(other, "equal", "other")
        return self.shape == other.shape and bool(self.eq(other).all())

    def isposinf(self) -> Self:
        """True where positive infinity.

        >>> Tensor([float("inf"), -float("inf")]).isposinf().tolist()
        [True, False]
        """
        return self.isinf(detect_negative=False)

    def isneginf(self) -> Self:
        """True where negative infinity.

        >>> Tensor([float("inf"), -float("inf")]).isneginf().tolist()
        [False, True]
        """
        return self.isinf(detect_positive=False)

    def isreal(self) -> Self:
        """True everywhere: these numbers are real.

        >>> Tensor([1.0]).isreal().tolist()
        [True]
        """
        return self.constant_like(True, dtype=dtypes.bool)

    def fill(self, value: Any) -> Self:
        """`value` everywhere, in the shape and type of this.

        Args:
            value: number or tensor of one element.

        Raises:
            ArgumentError: a tensor with more elements.

        >>> Tensor([1.0, 2.0]).fill(3).tolist()
        [3.0, 3.0]
        """
        filled = self.coerce(value)
        if filled.ndim:
            raise ArgumentError(f"fill: value must be a number or a tensor without axes, got shape {filled.shape}")
        return filled.cast(self.dtype).expand(self.shape)

    def fill_(self, value: Any) -> Self:
        """Write `value` everywhere; see `fill`.

        >>> Tensor([1.0, 2.0]).fill_(3).tolist()
        [3.0, 3.0]
        """
        return self.assign(self.fill(value))

    def zero_(self) -> Self:
        """Write 0 everywhere.

        >>> Tensor([1.0, 2.0]).zero_().tolist()
        [0.0, 0.0]
        """
        return self.fill_(0)

    def assign(self, x: Any) -> Self:
        """Write a value into this."""
        raise NotImplementedError
