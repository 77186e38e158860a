"""Conversions between data types as LLVM instructions, bit-exact on every target.

Narrow floats that the target cannot compute with are carried as their bits (see `llvmtext.is_carried_as_bits`);
`llvmfloat` converts them from and to float32.
"""

from __future__ import annotations

from gradlet.base.dtype import DType, dtypes
from gradlet.render import llvmfloat
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
        wide = llvmfloat.widen(writer, target, value, source)
        return cast(writer, target, wide, dtypes.float32, dtype)
    if is_carried_as_bits(dtype, target):
        return llvmfloat.narrow(writer, target, _single(writer, target, value, source, dtype), dtype)
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


def _single(writer: Writer, target: Target, value: Value, source: DType, dtype: DType) -> Value:
    """A value as float32, from which rounding to a narrower type gives what rounding to it at once would give."""
    if source is dtypes.float64:
        return llvmfloat.round_to_odd(writer, value)
    # Integers that float32 has to round are too large for the other narrow types, however they are rounded.
    if dtype is dtypes.bfloat16 and source.is_int and source.bits >= 32:
        if source.bits == 64:
            return llvmfloat.round_to_odd(writer, llvmfloat.sticky_integer(writer, value, source.is_unsigned))
        return llvmfloat.round_to_odd(writer, cast(writer, target, value, source, dtypes.float64))
    return cast(writer, target, value, source, dtypes.float32)


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


def zero(type_text: str) -> Value:
    """Floating point zero, in every lane."""
    return Value("zeroinitializer" if type_text.startswith("<") else "0.0", type_text)


def one(type_text: str) -> Value:
    """Floating point one, in every lane."""
    if not type_text.startswith("<"):
        return Value("1.0", type_text)
    return Value(f"splat ({scalar_of(type_text)} 1.0)", type_text)
