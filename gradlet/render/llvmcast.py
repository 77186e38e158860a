"""Conversions between data types as LLVM instructions, bit-exact on every target.

16-bit floats that the target cannot compute with are carried as their bits (see `llvmtext.is_carried_as_bits`);
rounding to them is to nearest even, here in integer instructions where the hardware has none.
"""

from __future__ import annotations

from gradlet.base.dtype import DType, dtypes
from gradlet.render.llvmtext import (
    Value,
    Writer,
    float_text,
    integer,
    is_carried_as_bits,
    lanes_of,
    register_type,
    scalar_of,
    suffix,
    vector_type,
)
from gradlet.target.target import Target


def cast(writer: Writer, target: Target, value: Value, source: DType, dtype: DType) -> Value:
    """Convert values; float to integer truncates and saturates, NaN gives 0; integers wrap."""
    source, dtype = source.scalar, dtype.scalar
    if source is dtype:
        return value
    kind = register_type(dtype.vec(lanes_of(value.type)), target)
    if is_carried_as_bits(source, target):
        wide = widen(writer, target, value, source)
        return cast(writer, target, wide, dtypes.float32, dtype)
    if is_carried_as_bits(dtype, target):
        return narrow(writer, target, value, source, dtype)
    if dtype.is_bool:
        if source.is_float:
            return writer.compare("fcmp une", value, zero(value.type))
        return writer.compare("icmp ne", value, integer(0, value.type))
    if source.is_bool:
        if dtype.is_float:
            return writer.select(value, one(kind), zero(kind))
        return writer.convert("zext", value, kind)
    if source.is_float and dtype.is_float:
        wider = dtype.itemsize > source.itemsize
        return writer.convert("fpext" if wider else "fptrunc", value, kind)
    if source.is_float:
        return _to_integer(writer, value, dtype, kind)
    if dtype.is_float:
        return writer.convert("uitofp" if source.is_unsigned else "sitofp", value, kind)
    if dtype.bits > source.bits:
        return writer.convert("zext" if source.is_unsigned else "sext", value, kind)
    return writer.convert("trunc", value, kind)


def _to_integer(writer: Writer, value: Value, dtype: DType, kind: str) -> Value:
    """A float truncated and saturated to an integer type; NaN gives 0."""
    count = lanes_of(kind)
    operation = "fptoui" if dtype.is_unsigned else "fptosi"
    if count == 1:
        return writer.call(kind, f"llvm.{operation}.sat.{suffix(kind)}.{suffix(value.type)}", value)
    # The same in vector instructions; LLVM takes vectors of the saturating conversion apart on x86.
    if scalar_of(value.type) == "half":  # does not hold the limits
        value = writer.convert("fpext", value, vector_type(count, "float"))
    bits = 64 if dtype.kind == "x" else dtype.bits
    low, high = (0, 1 << bits) if dtype.is_unsigned else (-(1 << (bits - 1)), 1 << (bits - 1))
    above = writer.compare("fcmp oge", value, _power_of_two(high, value.type))
    outside = writer.binary("or", above, writer.compare("fcmp ult", value, _power_of_two(low, value.type)))
    inside = writer.select(outside, zero(value.type), value)
    if bits < 32:  # one conversion instruction, to 32 bits, then a cut
        word = writer.convert("fptosi", inside, vector_type(count, "i32"))
        result = writer.convert("trunc", word, kind)
    else:
        result = writer.convert(operation, inside, kind)
    result = writer.select(above, integer(high - 1, kind), result)
    if low == 0:
        return result
    below = writer.compare("fcmp olt", value, _power_of_two(low, value.type))
    return writer.select(below, integer(low, kind), result)


def _power_of_two(value: int, type_text: str) -> Value:
    """An integer that is a power of two, its negative, or zero, as a float constant in every lane."""
    scalar = scalar_of(type_text)
    return Value(f"splat ({scalar} {float_text(float(value))})", type_text)


def bitcast(writer: Writer, target: Target, value: Value, source: DType, dtype: DType) -> Value:
    """The same bits as another type; bool is the byte 0 or 1."""
    count = lanes_of(value.type)
    if source.is_bool:
        value = writer.convert("zext", value, vector_type(count, "i8"))
    if dtype.is_bool:
        return value if source.is_bool else writer.compare("icmp ne", value, integer(0, value.type))
    return writer.convert("bitcast", value, register_type(dtype.scalar.vec(count), target))


def widen(writer: Writer, target: Target, bits: Value, source: DType) -> Value:
    """A 16-bit float carried as bits, as float32."""
    count = lanes_of(bits.type)
    words, floats = vector_type(count, "i32"), vector_type(count, "float")
    if source.scalar is dtypes.bfloat16:
        word = writer.convert("zext", bits, words)
        return writer.convert("bitcast", writer.binary("shl", word, integer(16, words)), floats)
    if target.converts_half:
        return writer.convert("fpext", writer.convert("bitcast", bits, vector_type(count, "half")), floats)
    word = writer.convert("zext", bits, words)
    magnitude = writer.binary("shl", writer.binary("and", word, integer(0x7FFF, words)), integer(13, words))
    sign = writer.binary("shl", writer.binary("and", word, integer(0x8000, words)), integer(16, words))
    # Multiplying by 2**112 moves the exponent bias from 15 to 127 and normalises subnormal numbers.
    scale = writer.convert("bitcast", integer(0x77800000, words), floats)
    scaled = writer.binary("fmul", writer.convert("bitcast", magnitude, floats), scale)
    finite = writer.convert("bitcast", scaled, words)
    special = writer.binary("or", magnitude, integer(0x7F800000, words))
    is_special = writer.compare("icmp uge", magnitude, integer(0x7C00 << 13, words))
    return writer.convert("bitcast", writer.binary("or", writer.select(is_special, special, finite), sign), floats)


def narrow(writer: Writer, target: Target, value: Value, source: DType, dtype: DType) -> Value:
    """Any value rounded to a 16-bit float carried as bits."""
    count = lanes_of(value.type)
    if source.scalar is dtypes.float64:
        single = writer.convert("fptrunc", value, vector_type(count, "float"))
        if dtype.scalar is dtypes.float16:
            single = _round_to_odd(writer, value, single)
    else:
        single = cast(writer, target, value, source, dtypes.float32)
    if dtype.scalar is dtypes.bfloat16:
        return _to_bfloat16(writer, single)
    if target.converts_half:
        half = writer.convert("fptrunc", single, vector_type(count, "half"))
        return writer.convert("bitcast", half, vector_type(count, "i16"))
    return _to_float16(writer, single)


def zero(type_text: str) -> Value:
    """Floating point zero, in every lane."""
    return Value("zeroinitializer" if type_text.startswith("<") else "0.0", type_text)


def one(type_text: str) -> Value:
    """Floating point one, in every lane."""
    if not type_text.startswith("<"):
        return Value("1.0", type_text)
    return Value(f"splat ({scalar_of(type_text)} 1.0)", type_text)


def _round_to_odd(writer: Writer, exact: Value, nearest: Value) -> Value:
    """float64 to float32 such that rounding the result once more equals rounding the original once.

    An inexact result is moved to its neighbour with an odd last bit: that bit then says "something was cut off".
    """
    words = vector_type(lanes_of(nearest.type), "i32")
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


def _to_float16(writer: Writer, single: Value) -> Value:
    count = lanes_of(single.type)
    words, shorts = vector_type(count, "i32"), vector_type(count, "i16")
    bits = writer.convert("bitcast", single, words)
    sign = writer.binary("and", writer.binary("lshr", bits, integer(16, words)), integer(0x8000, words))
    magnitude = writer.binary("and", bits, integer(0x7FFFFFFF, words))
    # Normal numbers: the bias falls by 112, 13 bits are rounded off; a carry into the exponent is right.
    last = writer.binary("and", writer.binary("lshr", magnitude, integer(13, words)), integer(1, words))
    biased = writer.binary("add", writer.binary("add", magnitude, integer(0xFFF - (112 << 23), words)), last)
    normal = writer.binary("lshr", biased, integer(13, words))
    # Subnormal numbers: adding 0.5 leaves multiples of 2**-24 in the last bits, rounded by the adder.
    half = writer.convert("bitcast", integer(0x3F000000, words), single.type)
    moved = writer.binary("fadd", writer.convert("bitcast", magnitude, single.type), half)
    subnormal = writer.binary("sub", writer.convert("bitcast", moved, words), integer(0x3F000000, words))
    is_normal = writer.compare("icmp uge", magnitude, integer(0x38800000, words))
    result = writer.select(is_normal, normal, subnormal)
    overflows = writer.compare("icmp uge", magnitude, integer(0x477FF000, words))
    result = writer.select(overflows, integer(0x7C00, words), result)
    is_nan = writer.compare("icmp ugt", magnitude, integer(0x7F800000, words))
    result = writer.select(is_nan, integer(0x7E00, words), result)
    return writer.convert("trunc", writer.binary("or", result, sign), shorts)
