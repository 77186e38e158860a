"""Formats of floats: how many bits each has, what it holds, and rounding to it exactly once.

Values of every format are carried as Python floats, which hold them all. The 8-bit formats are those of the Open
Compute Project (`float8_e4m3fn`, `float8_e5m2`) and those without a negative zero (`fnuz`); see "FP8 Formats for Deep
Learning" (Micikevicius et al., 2022).
"""

from __future__ import annotations

import math
from typing import Final, Literal


class FloatFormat:
    """A binary floating point format.

    Attributes:
        exponent: bits of the exponent.
        digits: bits of the significand, the leading one included.
        fraction: stored bits of the significand, one less.
        bits: bits of a value: sign, exponent and fraction.
        bias: what is added to an exponent before it is stored.
        special: which codes are no finite numbers: `ieee`: those whose exponent bits are all set (infinities and NaN);
            `fn`: the one whose bits are all set is NaN, there is no infinity; `fnuz`: the code of -0 is NaN, there is
            neither an infinity nor a negative zero.
        has_infinity: whether there are infinities.
        sign_mask: the code of the sign bit.
        infinity: the code of infinity, where there is one.
        nan: the code of the NaN that operations make.
        overflow: what a number becomes that would round to something larger than `largest`.
        largest_code, largest: the largest finite value.
        smallest_normal: the smallest positive value with all digits.
        smallest: the smallest positive value, and the distance between subnormal ones.
    """

    __slots__ = (
        "exponent", "digits", "fraction", "bits", "bias", "special", "has_infinity", "sign_mask", "infinity", "nan",
        "overflow", "largest_code", "largest", "smallest_normal", "smallest",
    )  # fmt: skip

    def __init__(self, exponent: int, digits: int, bias: int, special: Literal["ieee", "fn", "fnuz"] = "ieee") -> None:
        self.exponent, self.digits, self.bias, self.special = exponent, digits, bias, special
        self.fraction, self.bits = digits - 1, exponent + digits
        self.has_infinity = special == "ieee"
        self.overflow = math.inf if self.has_infinity else math.nan
        self.sign_mask = 1 << (self.bits - 1)
        self.infinity = ((1 << exponent) - 1) << self.fraction
        usual = self.infinity | 1 << (self.fraction - 1)
        self.nan = {"ieee": usual, "fn": self.sign_mask - 1, "fnuz": self.sign_mask}[special]
        self.largest_code = {"ieee": self.infinity - 1, "fn": self.sign_mask - 2, "fnuz": self.sign_mask - 1}[special]
        self.largest = self.decode(self.largest_code)
        self.smallest_normal = math.ldexp(1.0, 1 - bias)
        self.smallest = math.ldexp(1.0, 1 - bias - self.fraction)

    def decode(self, code: int) -> float:
        """The value of a code."""
        magnitude = code & (self.sign_mask - 1)
        if self.special == "fnuz" and code == self.sign_mask:
            return math.nan
        if self.special == "fn" and magnitude == self.sign_mask - 1:
            return math.nan
        sign = -1.0 if code & self.sign_mask else 1.0
        if self.special == "ieee" and magnitude >= self.infinity:
            return sign * math.inf if magnitude == self.infinity else math.nan
        fraction = magnitude & ((1 << self.fraction) - 1)
        exponent = magnitude >> self.fraction
        if not exponent:
            return sign * math.ldexp(float(fraction), 1 - self.bias - self.fraction)
        return sign * math.ldexp(float(fraction + (1 << self.fraction)), exponent - self.bias - self.fraction)

    def encode(self, value: float) -> int:
        """The code of a value that this format holds."""
        if value != value:
            return self.nan
        sign = self.sign_mask if math.copysign(1.0, value) < 0 and self.special != "fnuz" else 0
        if value == 0:
            return sign
        sign = self.sign_mask if value < 0 else 0
        if math.isinf(value):
            return sign | self.infinity
        exponent = max(math.frexp(value)[1] - 1, 1 - self.bias)
        steps = int(math.ldexp(abs(value), self.fraction - exponent))
        # A significand without the leading one is subnormal: its exponent is stored as 0.
        return sign | (steps + ((exponent + self.bias - 1) << self.fraction))

    def round(self, value: float) -> float:
        """The nearest value of this format, the even one of two; what is too large becomes infinite, or NaN.

        An integer of any size is rounded as it is, not by way of a float.
        """
        if value != value:
            return value
        if isinstance(value, int):
            value = float(sticky(value)) if abs(value) < 1 << 1023 else (math.inf if value > 0 else -math.inf)
        if value == 0:
            return 0.0 if self.special == "fnuz" else value
        if math.isinf(value):
            return value if self.has_infinity else math.nan
        unit = max(math.frexp(value)[1] - self.digits, 1 - self.bias - self.fraction)
        try:
            rounded = math.ldexp(float(round(math.ldexp(abs(value), -unit))), unit)
        except OverflowError:
            rounded = math.inf
        if rounded > self.largest:
            return math.copysign(self.overflow, value)
        return 0.0 if rounded == 0 and self.special == "fnuz" else math.copysign(rounded, value)


def sticky(value: int) -> int:
    """An integer that float64 holds exactly and that rounds to narrower floats as `value` does.

    Rounding to float64 first would round twice: the dropped bits are kept as one bit that decides ties.
    """
    dropped = abs(value).bit_length() - 53
    if dropped <= 0:
        return value
    kept = abs(value) >> dropped
    if abs(value) & ((1 << dropped) - 1):
        kept |= 1
    return (kept << dropped) * (1 if value > 0 else -1)


FORMATS: Final[dict[str, FloatFormat]] = {
    "float8_e4m3fn": FloatFormat(4, 4, 7, "fn"),
    "float8_e4m3fnuz": FloatFormat(4, 4, 8, "fnuz"),
    "float8_e5m2": FloatFormat(5, 3, 15),
    "float8_e5m2fnuz": FloatFormat(5, 3, 16, "fnuz"),
    "float16": FloatFormat(5, 11, 15),
    "bfloat16": FloatFormat(8, 8, 127),
    "float32": FloatFormat(8, 24, 127),
    "float64": FloatFormat(11, 53, 1023),
}
