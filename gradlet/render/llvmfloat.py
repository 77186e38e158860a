"""Floats that the target cannot compute with, as LLVM instructions on their bits: from and to float32, bit-exact.

Rounding is to nearest even. Everything is integer arithmetic that vectorises, except where the hardware converts.
"""

from __future__ import annotations

import struct
from typing import Final

from gradlet.base.dtype import DType, dtypes
from gradlet.base.floatformat import FloatFormat
from gradlet.render.llvmtext import Value, Writer, float_text, integer, lanes_of, scalar_of, suffix, vector_type
from gradlet.target.target import Target

_INFINITY: Final = 0x7F800000
_NAN: Final = 0x7FC00000


def widen(writer: Writer, target: Target, bits: Value, source: DType) -> Value:
    """A narrow float carried as bits, as float32."""
    count = lanes_of(bits.type)
    words, floats = vector_type(count, "i32"), vector_type(count, "float")
    if source.scalar is dtypes.float16 and target.converts_half:
        return writer.convert("fpext", writer.convert("bitcast", bits, vector_type(count, "half")), floats)
    word = writer.convert("zext", bits, words)
    if source.scalar is dtypes.bfloat16:
        return writer.convert("bitcast", writer.binary("shl", word, integer(16, words)), floats)
    form = source.format
    magnitude = writer.binary("and", word, integer(form.sign_mask - 1, words))
    sign = writer.binary("and", word, integer(form.sign_mask, words))
    sign = writer.binary("shl", sign, integer(32 - form.bits, words))
    # Normal numbers: the fraction moves to its place and the exponent gets the bias of float32.
    moved = writer.binary("shl", magnitude, integer(23 - form.fraction, words))
    normal = writer.binary("add", moved, integer((127 - form.bias) << 23, words))
    # Subnormal numbers count the smallest of them.
    counted = writer.binary("fmul", writer.convert("sitofp", magnitude, floats), _float(form.smallest, floats))
    is_subnormal = writer.compare("icmp ult", magnitude, integer(1 << form.fraction, words))
    result = writer.select(is_subnormal, writer.convert("bitcast", counted, words), normal)
    if form.special == "ieee":
        special = writer.binary("or", moved, integer(_INFINITY, words))
        is_special = writer.compare("icmp uge", magnitude, integer(form.infinity, words))
    else:
        special = integer(_NAN, words)
        is_special = writer.compare("icmp eq", word if form.special == "fnuz" else magnitude, integer(form.nan, words))
    result = writer.select(is_special, special, result)
    return writer.convert("bitcast", writer.binary("or", result, sign), floats)


def narrow(writer: Writer, target: Target, single: Value, dtype: DType) -> Value:
    """float32 rounded to a narrow float carried as bits."""
    count = lanes_of(single.type)
    if dtype.scalar is dtypes.bfloat16:
        return _to_bfloat16(writer, single)
    if dtype.scalar is dtypes.float16 and target.converts_half:
        half = writer.convert("fptrunc", single, vector_type(count, "half"))
        return writer.convert("bitcast", half, vector_type(count, "i16"))
    return _to_format(writer, single, dtype.format)


def round_to_odd(writer: Writer, exact: Value) -> Value:
    """float64 to float32 such that rounding the result once more equals rounding the original once.

    An inexact result is moved to its neighbour with an odd last bit: that bit then says "something was cut off"
    (Boldo and Melquiond, "Emulation of FMA and correctly rounded sums", 2008).
    """
    count = lanes_of(exact.type)
    words = vector_type(count, "i32")
    nearest = writer.convert("fptrunc", exact, vector_type(count, "float"))
    back = writer.convert("fpext", nearest, exact.type)
    inexact = writer.compare("fcmp one", back, exact)
    fabs = f"llvm.fabs.{suffix(exact.type)}"
    too_large = writer.compare(
        "fcmp ogt", writer.call(exact.type, fabs, back), writer.call(exact.type, fabs, exact)
    )  # fmt: skip
    bits = writer.convert("bitcast", nearest, words)
    toward_zero = writer.select(too_large, writer.binary("sub", bits, integer(1, words)), bits)
    odd = writer.binary("or", toward_zero, integer(1, words))
    return writer.convert("bitcast", writer.select(inexact, odd, bits), nearest.type)


def sticky_integer(writer: Writer, value: Value, unsigned: bool) -> Value:
    """A 64-bit integer as float64 that rounds to narrower floats as the integer does.

    Where float64 has too few bits for it, the lowest 11 are replaced by one that says whether any of them was set.
    """
    kind = value.type
    doubles = vector_type(lanes_of(kind), "double")
    low = writer.binary("and", value, integer(0x7FF, kind))
    high = writer.binary("sub", value, low)
    dropped = writer.compare("icmp ne", low, integer(0, kind))
    odd = writer.binary("or", high, writer.select(dropped, integer(0x800, kind), integer(0, kind)))
    offset = value if unsigned else writer.binary("add", value, integer(1 << 53, kind))
    exact = writer.compare("icmp ult", offset, integer(1 << (53 if unsigned else 54), kind))
    return writer.convert("uitofp" if unsigned else "sitofp", writer.select(exact, value, odd), doubles)


def _float(value: float, type_text: str) -> Value:
    text = float_text(value)
    return Value(text if lanes_of(type_text) == 1 else f"splat ({scalar_of(type_text)} {text})", type_text)


def _bits_of(value: float) -> int:
    """The bits of a float32."""
    return int(struct.unpack("<I", struct.pack("<f", value))[0])


def _to_bfloat16(writer: Writer, single: Value) -> Value:
    count = lanes_of(single.type)
    words, shorts = vector_type(count, "i32"), vector_type(count, "i16")
    bits = writer.convert("bitcast", single, words)
    upper = writer.binary("lshr", bits, integer(16, words))
    # Half a unit, less one when the kept part is even: ties go to even.
    bias = writer.binary("add", writer.binary("and", upper, integer(1, words)), integer(0x7FFF, words))
    rounded = writer.binary("lshr", writer.binary("add", bits, bias), integer(16, words))
    quiet = writer.binary("or", upper, integer(0x40, words))
    is_nan = writer.compare("fcmp uno", single, single)
    return writer.convert("trunc", writer.select(is_nan, quiet, rounded), shorts)


def _first_overflow(form: FloatFormat) -> int:
    """The bits of the smallest float32 that rounds to something larger than the format holds."""
    step = form.largest - form.decode(form.largest_code - 1)
    tie = _bits_of(form.largest + step / 2)
    return tie if form.largest_code % 2 else tie + 1  # a tie goes to the even one


def _to_format(writer: Writer, single: Value, form: FloatFormat) -> Value:
    """float32 rounded to a format of fewer exponents and digits."""
    words = vector_type(lanes_of(single.type), "i32")
    bits = writer.convert("bitcast", single, words)
    sign = writer.binary(
        "and", writer.binary("lshr", bits, integer(32 - form.bits, words)), integer(form.sign_mask, words)
    )
    magnitude = writer.binary("and", bits, integer(0x7FFFFFFF, words))
    # Normal numbers: the bias changes and the end of the fraction is rounded off; a carry into the exponent is right.
    cut = 23 - form.fraction
    last = writer.binary("and", writer.binary("lshr", magnitude, integer(cut, words)), integer(1, words))
    change = (1 << (cut - 1)) - 1 - ((127 - form.bias) << 23)
    biased = writer.binary("add", writer.binary("add", magnitude, integer(change, words)), last)
    normal = writer.binary("lshr", biased, integer(cut, words))
    # Subnormal numbers: of a sum with this only multiples of the smallest remain, rounded by the adder.
    grid = integer(_bits_of(form.smallest * 2.0**23), words)
    moved = writer.binary(
        "fadd", writer.convert("bitcast", magnitude, single.type), writer.convert("bitcast", grid, single.type)
    )
    subnormal = writer.binary("sub", writer.convert("bitcast", moved, words), grid)
    is_normal = writer.compare("icmp uge", magnitude, integer(_bits_of(form.smallest_normal), words))
    result = writer.select(is_normal, normal, subnormal)
    is_large = writer.compare("icmp uge", magnitude, integer(_first_overflow(form), words))
    if form.special == "fnuz":
        sign = writer.select(writer.compare("icmp eq", result, integer(0, words)), integer(0, words), sign)
        result = writer.select(is_large, integer(form.nan, words), writer.binary("or", result, sign))
        return writer.convert("trunc", result, vector_type(lanes_of(single.type), f"i{form.bits}"))
    result = writer.select(is_large, integer(form.infinity if form.has_infinity else form.nan, words), result)
    is_nan = writer.compare("icmp ugt", magnitude, integer(_INFINITY, words))
    result = writer.select(is_nan, integer(form.nan, words), result)
    return writer.convert(
        "trunc", writer.binary("or", result, sign), vector_type(lanes_of(single.type), f"i{form.bits}")
    )
