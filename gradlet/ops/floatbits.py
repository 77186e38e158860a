"""Composed mixin: the parts of a float by its bits: mantissa and exponent, scaling by powers of two, neighbours."""

from __future__ import annotations

import math
from typing import Any, NamedTuple, Self

from gradlet.base.dtype import DType, dtypes
from gradlet.base.errors import DTypeError
from gradlet.ops.rearrange import RearrangeMixin


class Layout(NamedTuple):
    """Where the parts of a float are: an integer type of its size, bits of the fraction, bits of the exponent."""

    integer: DType
    fraction: int
    exponent: int


def _layout(dtype: DType) -> Layout:
    return Layout(dtypes.int64, 52, 11) if dtype is dtypes.float64 else Layout(dtypes.int32, 23, 8)


class FloatBitsMixin(RearrangeMixin):
    """Floats taken apart."""

    __slots__ = ()

    def detach(self) -> Self:
        """The same values, through which no gradient flows."""
        raise NotImplementedError

    def frexp(self) -> tuple[Self, Self]:
        """Mantissa in [0.5, 1) and int32 exponent: `self = mantissa * 2 ** exponent`.

        Of 0, infinities and NaN the mantissa is the number itself and the exponent 0.

        Raises:
            DTypeError: not a float.

        >>> [part.tolist() for part in Tensor([8.0, -0.75]).frexp()]
        [[0.5, -0.75], [4, 0]]
        """
        if not self.dtype.is_float:
            raise DTypeError(f"frexp: floats have a mantissa, not {self.dtype}; cast to a float first")
        x, own = self.carried_float("frexp")
        integer, fraction, width = _layout(x.dtype)
        # A subnormal number is made normal first.
        grown = x.detach().mul(2.0**fraction)
        small = x.abs().lt(2.0 ** (2 - 2 ** (width - 1)))
        bits = small.where(grown, x.detach()).bitcast(integer)
        stored = bits.rshift(fraction).bitwise_and((1 << width) - 1)
        exponent = stored.sub(2 ** (width - 1) - 2).sub(small.where(x.constant_like(fraction, dtype=integer), 0))
        exponent = (x.eq(0.0) | x.isfinite().logical_not()).where(0, exponent).cast(dtypes.int32)
        return x.ldexp(exponent.neg()).cast(own), exponent

    def ldexp(self, other: Any) -> Self:
        """`self * 2 ** other`, in two steps, so that only the result may overflow.

        >>> Tensor([0.5, 3.0]).ldexp(Tensor([4, 1])).tolist()
        [8.0, 6.0]
        """
        exponent = self.coerce(other)
        own = self.same_dtype([exponent], "ldexp")[0].same_float("ldexp").dtype
        x, _ = self.cast(own).carried_float("ldexp")
        power = exponent.cast(x.dtype)
        half = power.mul(0.5).trunc()
        return x.mul(half.exp2()).mul(power.sub(half).exp2()).cast(own)

    def nextafter(self, other: Any) -> Self:
        """The next number of the type after this in the direction of `other`; this receives the gradient as it is.

        Raises:
            DTypeError: not floats.

        >>> Tensor([1.0]).nextafter(Tensor([2.0])).item()
        1.0000001192092896
        """
        x, y = self.same_dtype([other], "nextafter")
        if not x.dtype.is_float:
            raise DTypeError(f"nextafter: floats have neighbours, not {x.dtype}; cast to a float first")
        integer = dtypes.by_name(f"int{x.dtype.bits}")
        # Bits of floats of one sign are in the order of their sizes.
        away = x.lt(y).eq(x.gt(0.0))
        bits = x.bitcast(integer)
        moved = away.where(bits.add(1), bits.sub(1)).bitcast(x.dtype)
        sign_bit = x.constant_like(dtypes.by_name(f"int{x.dtype.bits}").min, dtype=integer)
        smallest = y.bitcast(integer).bitwise_and(sign_bit).bitwise_or(1).bitcast(x.dtype)
        moved = x.eq(0.0).where(smallest, moved)
        result = (x.isnan() | y.isnan()).where(math.nan, x.eq(y).where(y, moved))
        return result.with_derivative("nextafter", [x.expand(result.shape)], lambda gradient: [gradient])
