"""Scalar arithmetic, conversions and memory formats as C expressions; what needs more than an expression is a function.

Functions are written in terms of a few that a language has to have (`bits_of_float`, `float_of_bits`, ...): see
`render/cuda`. Results are the same, bit for bit, as those of the CPU.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Sequence
from typing import Final

from gradlet.base.dtype import DType, dtypes
from gradlet.base.errors import RenderError
from gradlet.graph.bounds import bounds
from gradlet.graph.node import UOp
from gradlet.ops.op import COMPARE, Op

_C_TYPES: Final = {
    "bool": "bool", "uint8": "unsigned char", "int8": "signed char", "uint16": "unsigned short", "int16": "short",
    "uint32": "unsigned int", "int32": "int", "uint64": "unsigned long long", "int64": "long long", "float32": "float",
    "float64": "double", "index": "long long",
}  # fmt: skip
_UNSIGNED: Final = {1: "unsigned char", 2: "unsigned short", 4: "unsigned int", 8: "unsigned long long"}
_VECTORS: Final = {2: "unsigned short", 4: "unsigned int", 8: "uint2", 16: "uint4"}
_SYMBOLS: Final = {Op.ADD: "+", Op.MUL: "*", Op.FDIV: "/", Op.AND: "&", Op.OR: "|", Op.XOR: "^"}
_COMPARISONS: Final = {Op.CMPLT: "<", Op.CMPEQ: "==", Op.CMPNE: "!="}
_MATH: Final = {
    Op.SQRT: "sqrt", Op.TRUNC: "trunc", Op.EXP: "exp", Op.EXP2: "exp2", Op.LOG: "log", Op.LOG2: "log2", Op.SIN: "sin",
    Op.COS: "cos", Op.POW: "pow",
}  # fmt: skip


class Functions:
    """The functions that a kernel calls, in the order in which they are first called."""

    def __init__(self) -> None:
        self.used: dict[str, DType | None] = {}

    def call(self, name: str, *args: str, dtype: DType | None = None) -> str:
        """A call of a function; `dtype` is the narrow float that it is about."""
        self.used.setdefault(name, dtype)
        return f"{name}({', '.join(args)})"


def is_bits(dtype: DType) -> bool:
    """Whether values of this type are carried as their bits."""
    return dtype.scalar.is_narrow_float


def register_type(dtype: DType) -> str:
    """The type of a variable that holds one lane."""
    scalar = dtype.scalar
    return _UNSIGNED[scalar.itemsize] if is_bits(scalar) else _C_TYPES[scalar.name]


def storage_type(dtype: DType) -> str:
    """The type of an element in memory."""
    return "unsigned char" if dtype.scalar.is_bool else register_type(dtype)


def literal(value: object, dtype: DType) -> str:
    """A constant."""
    scalar = dtype.scalar
    if scalar.is_bool:
        return "true" if value else "false"
    if is_bits(scalar):
        return f"(({register_type(scalar)}){scalar.format.encode(scalar.format.round(value))}u)"  # type: ignore[arg-type]
    if scalar.is_float:
        return _float_literal(float(value), scalar)  # type: ignore[arg-type]
    number = int(value)  # type: ignore[call-overload]
    if scalar.kind == "x":
        return str(number) if abs(number) < 1 << 31 else f"{number}ll"
    if scalar.is_unsigned:
        return f"{number}u" if scalar.bits <= 32 else f"{number}ull"
    if scalar.bits == 64:
        return f"{number}ll" if number > -(1 << 63) else "(-9223372036854775807ll - 1)"
    return str(number) if number > -(1 << 31) else "(-2147483647 - 1)"


def _float_literal(value: float, dtype: DType) -> str:
    single = dtype is dtypes.float32
    if math.isnan(value) or math.isinf(value):
        if single:
            return f"float_of_bits(0x{struct.unpack('<I', struct.pack('<f', value))[0]:08x}u)"
        return f"double_of_bits(0x{struct.unpack('<Q', struct.pack('<d', value))[0]:016x}ull)"
    if single:
        value = struct.unpack("<f", struct.pack("<f", value))[0]
    text = repr(value)
    if "e" not in text and "." not in text:
        text += ".0"
    text = f"{text}f" if single else text
    return f"({text})" if text.startswith("-") else text


# memory
def from_memory(dtype: DType, text: str) -> str:
    """What was loaded as a value."""
    return f"({text} != 0)" if dtype.is_bool else text


def to_memory(dtype: DType, text: str) -> str:
    """A value as it is stored."""
    return f"({text} ? 1 : 0)" if dtype.is_bool else text


def vector_type(nbytes: int) -> str:
    """The type of an access of so many bytes."""
    return _VECTORS[nbytes]


def zero_vector(nbytes: int) -> str:
    """All bits 0."""
    return {8: "make_uint2(0u, 0u)", 16: "make_uint4(0u, 0u, 0u, 0u)"}.get(nbytes, "0")


def _words(name: str, nbytes: int) -> list[str]:
    """The 32-bit words of a loaded vector."""
    return [name] if nbytes <= 4 else [f"{name}.{part}" for part in "xyzw"[: nbytes // 4]]


def from_vector(dtype: DType, name: str, width: int, lane: int) -> str:
    """One element of a loaded vector."""
    size = dtype.itemsize
    words = _words(name, width * size)
    if size == 8:
        bits = f"(((unsigned long long){words[2 * lane + 1]} << 32) | {words[2 * lane]})"
        if dtype is dtypes.float64:
            return f"double_of_bits({bits})"
        return bits if dtype.is_unsigned else f"(long long){bits}"
    if size == 4:
        if dtype is dtypes.float32:
            return f"float_of_bits({words[lane]})"
        return words[lane] if dtype.is_unsigned else f"(int){words[lane]}"
    each = 4 // size
    shift = lane % each * 8 * size
    word = words[lane // each]
    part = f"({word} >> {shift})" if shift else word
    if dtype.is_bool:
        return f"(({part} & 0xffu) != 0)"
    return f"({register_type(dtype)}){part}"


def to_vector(dtype: DType, values: Sequence[str]) -> str:
    """Elements as a vector to store."""
    size = dtype.itemsize
    words: list[str] = []
    if size == 8:
        for value in values:
            bits = f"bits_of_double({value})" if dtype is dtypes.float64 else f"(unsigned long long){value}"
            words += [f"(unsigned int)({bits})", f"(unsigned int)(({bits}) >> 32)"]
    elif size == 4:
        words = [f"bits_of_float({v})" if dtype is dtypes.float32 else f"(unsigned int){v}" for v in values]
    else:
        each = 4 // size
        for start in range(0, len(values), each):
            parts = [f"(unsigned int)({_UNSIGNED[size]}){v}" for v in values[start : start + each]]
            words.append(" | ".join(f"({p} << {8 * size * i})" if i else p for i, p in enumerate(parts)))
    if len(words) == 1:
        return words[0] if len(values) * size == 4 else f"(unsigned short)({words[0]})"
    return f"make_uint{len(words)}({', '.join(words)})"


# arithmetic
def expression(node: UOp, args: Sequence[str], functions: Functions, index_type: str) -> str:
    """An element-wise op on one lane.

    Raises:
        RenderError: code generation should have decomposed it.
    """
    op, dtype = node.op, node.src[0].dtype.scalar
    if op is Op.CAST:
        return cast(args[0], dtype, node.dtype.scalar, functions, index_type)
    if op is Op.BITCAST:
        return _bitcast(args[0], dtype, node.dtype.scalar)
    if op is Op.WHERE:
        return f"{args[0]} ? {args[1]} : {args[2]}"
    if op in (Op.IDIV, Op.MOD):
        return _divide(node, args, functions, index_type)
    if op in (Op.SHL, Op.SHR) and not _is_inside(node.src[1], dtype):
        return _far_shift(op, dtype, *args)
    if is_bits(dtype):
        wide = [widen(a, dtype, functions) for a in args]
        result = _apply(op, dtypes.float32, wide, functions, index_type)
        return result if op in COMPARE else cast(result, dtypes.float32, dtype, functions, index_type)
    return _apply(op, dtype, args, functions, index_type)


def _apply(op: Op, dtype: DType, args: Sequence[str], functions: Functions, index_type: str) -> str:
    if op in _MATH:
        return _math(op, dtype, args)
    if op is Op.MULADD:
        if dtype.is_float:
            return f"fused_{'float' if dtype is dtypes.float32 else 'double'}({', '.join(args)})"
        product = binary(Op.MUL, dtype, args[0], args[1], functions, index_type)
        return binary(Op.ADD, dtype, f"({product})", args[2], functions, index_type)
    if op in (Op.DOT, Op.DOT16):
        return functions.call("dot_bytes" if op is Op.DOT else "dot_halves", *args)
    return binary(op, dtype, args[0], args[1], functions, index_type)


def _math(op: Op, dtype: DType, args: Sequence[str]) -> str:
    if op is Op.TRUNC and not dtype.is_float:
        return args[0]
    if dtype is dtypes.float64:
        return f"{_MATH[op]}({', '.join(args)})"
    if dtype is dtypes.float32 and op in (Op.SQRT, Op.TRUNC):
        return f"{_MATH[op]}f({args[0]})"
    if dtype is dtypes.float32 and op is Op.EXP2:
        return f"power_of_two({args[0]})"  # of targets that approximate
    if dtype is dtypes.float32 and op is Op.POW and args[1] == literal(-1.0, dtype):
        return f"near_reciprocal({args[0]})"  # of these, too
    raise RenderError(f"{op.name} of {dtype.name} reached the renderer")


def binary(
    op: Op, dtype: DType, first: str, second: str, functions: Functions, index_type: str = "long long"
) -> str:  # fmt: skip
    """An op on two values of one type.

    Raises:
        RenderError: the type has no such op.
    """
    if op in _COMPARISONS:
        return f"{first} {_COMPARISONS[op]} {second}"
    if dtype.is_bool:
        symbol = {Op.ADD: "|", Op.MUL: "&", Op.MAX: "|", Op.MIN: "&"}.get(op) or _SYMBOLS.get(op)
        if symbol is None:
            raise RenderError(f"{op.name} is not defined for bool")
        return f"({first} {symbol} {second})"
    if op in (Op.MAX, Op.MIN):
        return _extreme(op, dtype, first, second, functions)
    if dtype.is_float:
        if op not in (Op.ADD, Op.MUL, Op.FDIV):
            raise RenderError(f"{op.name} is not defined for {dtype.name}")
        return f"{first} {_SYMBOLS[op]} {second}"
    kind = index_type if dtype.kind == "x" else _C_TYPES[dtype.name]
    if op is Op.SHR:
        return f"({kind})({first} >> {second})"
    # Signed overflow wraps, which C says of unsigned types only.
    symbol = "<<" if op is Op.SHL else _SYMBOLS.get(op)
    if symbol is None:
        raise RenderError(f"{op.name} is not defined for {dtype.name}")
    if dtype.kind == "x":
        return f"{first} {symbol} {second}"
    word = _UNSIGNED[max(4, dtype.itemsize)]
    amount = second if op is Op.SHL else f"({word}){second}"
    return f"({kind})(({word}){first} {symbol} {amount})"


def _extreme(op: Op, dtype: DType, first: str, second: str, functions: Functions) -> str:
    """Of floats: NaN where one of them is."""
    if dtype is dtypes.float32:
        return functions.call("max_float" if op is Op.MAX else "min_float", first, second)
    sign = ">" if op is Op.MAX else "<"
    if dtype.is_float:
        return f"({first} {sign} {second} || {first} != {first}) ? {first} : {second}"
    return f"{first} {sign} {second} ? {first} : {second}"


def _is_inside(amount: UOp, dtype: DType) -> bool:
    low, high = bounds(amount)
    return bool(low >= 0 and high < dtype.bits)


def _far_shift(op: Op, dtype: DType, first: str, second: str) -> str:
    """Shifts by any amount: where it is negative or not below the width, only the sign is left, or nothing."""
    kind = _C_TYPES[dtype.name]
    word = _UNSIGNED[max(4, dtype.itemsize)]
    inside = f"(unsigned long long)(long long){second} < {dtype.bits}ull"
    if op is Op.SHL:
        return f"{inside} ? ({kind})(({word}){first} << {second}) : ({kind})0"
    if dtype.is_unsigned:
        return f"{inside} ? ({kind})({first} >> {second}) : ({kind})0"
    return f"({kind})({first} >> ({inside} ? (int){second} : {dtype.bits - 1}))"


def _divide(node: UOp, args: Sequence[str], functions: Functions, index_type: str) -> str:
    """IDIV and MOD: round down, and 0 for a zero divisor."""
    op, dtype = node.op, node.src[0].dtype.scalar
    kind = index_type if dtype.kind == "x" else _C_TYPES[dtype.name]
    x, y = args
    divisor = node.src[1]
    while divisor.op is Op.VECTORIZE and all(s is divisor.src[0] for s in divisor.src):
        divisor = divisor.src[0]
    known = int(divisor.arg) if divisor.op is Op.CONST else None
    symbol = "/" if op is Op.IDIV else "%"
    positive = bounds(node.src[0])[0] >= 0 and bounds(node.src[1])[0] > 0
    if positive or (dtype.is_unsigned and known is not None and known > 0):
        word = _UNSIGNED[8 if kind == "long long" else max(4, dtype.itemsize if dtype.kind != "x" else 4)]
        return f"({kind})(({word}){x} {symbol} ({word}){y})"
    if known is not None and known > 0 and known & (known - 1) == 0 and not dtype.is_unsigned:
        if op is Op.MOD:
            return f"({kind})({x} & {known - 1})"
        return f"({kind})({x} >> {known.bit_length() - 1})"
    name = "floor_div" if op is Op.IDIV else "floor_mod"
    if dtype.is_unsigned:
        return f"({kind})({y} == 0 ? 0 : {x} {symbol} ({y} == 0 ? 1 : {y}))"
    return f"({kind}){functions.call(name, f'({kind}){x}', f'({kind}){y}')}"


# conversions
def widen(text: str, source: DType, functions: Functions) -> str:
    """A narrow float, carried as bits, as float."""
    if source is dtypes.bfloat16:
        return f"float_of_bits((unsigned int){text} << 16)"
    if source is dtypes.float16:
        return f"float_of_half({text})"
    return functions.call(f"float_of_{source.name}", text, dtype=source)


def narrow(text: str, dtype: DType, functions: Functions) -> str:
    """A float rounded to a narrow one, carried as bits."""
    if dtype is dtypes.bfloat16:
        return f"bfloat16_of_float({text})"
    if dtype is dtypes.float16:
        return f"half_of_float({text})"
    return functions.call(f"{dtype.name}_of_float", text, dtype=dtype)


def cast(text: str, source: DType, dtype: DType, functions: Functions, index_type: str = "long long") -> str:
    """Convert a value; float to integer truncates and saturates, NaN gives 0; integers wrap."""
    if source is dtype:
        return text
    kind = index_type if dtype.kind == "x" else register_type(dtype)
    if is_bits(source):
        return cast(widen(text, source, functions), dtypes.float32, dtype, functions, index_type)
    if is_bits(dtype):
        return narrow(_single(text, source, dtype), dtype, functions)
    if dtype.is_bool:
        return f"({text} != 0)"
    if source.is_bool:
        return f"{text} ? {literal(1, dtype)} : {literal(0, dtype)}"
    if source.is_float and not dtype.is_float:
        return _to_integer(text, source, dtype, kind)
    return f"({kind}){text}"


def _single(text: str, source: DType, dtype: DType) -> str:
    """A value as float, from which rounding to a narrower type gives what rounding to it at once would give."""
    if source is dtypes.float64:
        return f"odd_float_of_double({text})"
    if source.kind == "x" or (source.is_int and source.bits >= 32):
        if source.is_unsigned:
            return f"odd_float_of_unsigned((unsigned long long){text})"
        return f"odd_float_of_integer((long long){text})"
    if source.is_bool:
        return f"({text} ? 1.0f : 0.0f)"
    return text if source is dtypes.float32 else f"(float){text}"


def _to_integer(text: str, source: DType, dtype: DType, kind: str) -> str:
    """A float truncated and saturated to an integer type; NaN gives 0."""
    name = "float" if source is dtypes.float32 else "double"
    if dtype.bits >= 32 or dtype.kind == "x":
        wide = dtype.bits == 64 or dtype.kind == "x"
        target = ("unsigned" if dtype.is_unsigned else "integer") + ("64" if wide else "32")
        return f"({kind}){target}_of_{name}({text})"
    low, high = dtype.min, dtype.max
    return f"({kind})clamped(integer32_of_{name}({text}), {low}, {high})"


def _bitcast(text: str, source: DType, dtype: DType) -> str:
    """The same bits as another type; bool is the byte 0 or 1."""
    if source is dtype:
        return text
    if source.is_bool:
        text = f"({text} ? 1 : 0)"
    elif source is dtypes.float32:
        text = f"bits_of_float({text})"
    elif source is dtypes.float64:
        text = f"bits_of_double({text})"
    if dtype.is_bool:
        return f"({text} != 0)"
    if dtype is dtypes.float32:
        return f"float_of_bits((unsigned int){text})"
    if dtype is dtypes.float64:
        return f"double_of_bits((unsigned long long){text})"
    return f"({register_type(dtype)}){text}"
