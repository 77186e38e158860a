"""LLVM IR as text: types, constants, and a writer of instructions and basic blocks."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from functools import cache, lru_cache
from typing import Any, Final, NamedTuple

from gradlet.base.dtype import DType, dtypes
from gradlet.base.errors import RenderError
from gradlet.target.target import Target

_SCALAR: Final[dict[DType, str]] = {
    dtypes.bool: "i1", dtypes.uint8: "i8", dtypes.int8: "i8", dtypes.uint16: "i16", dtypes.int16: "i16",
    dtypes.uint32: "i32", dtypes.int32: "i32", dtypes.uint64: "i64", dtypes.int64: "i64", dtypes.index: "i64",
    dtypes.float32: "float", dtypes.float64: "double",
}  # fmt: skip
_SUFFIX: Final = {"float": "f32", "double": "f64", "half": "f16"}


class Value(NamedTuple):
    """An operand: its text (a register or a constant) and its LLVM type."""

    text: str
    type: str

    def __str__(self) -> str:
        """Type and operand, as most instructions want it."""
        return f"{self.type} {self.text}"


# Called as `_new(Value, (text, type))`: what `Value(text, type)` does, in half the time.
_new: Final = tuple.__new__


# The same few types are asked for at every instruction.
@cache
def vector_type(count: int, scalar: str) -> str:
    """`scalar` itself for one lane."""
    return scalar if count == 1 else f"<{count} x {scalar}>"


@cache
def lanes_of(type_text: str) -> int:
    """Number of lanes of a type written by `vector_type`."""
    return int(type_text[1:].split(" x ")[0]) if type_text.startswith("<") else 1


@cache
def scalar_of(type_text: str) -> str:
    """The lane's type."""
    return type_text[1:-1].split(" x ")[1] if type_text.startswith("<") else type_text


@cache
def suffix(type_text: str) -> str:
    """How intrinsic names spell a type: `<16 x float>` is `v16f32`."""
    scalar = scalar_of(type_text)
    name = _SUFFIX.get(scalar, scalar)
    count = lanes_of(type_text)
    return name if count == 1 else f"v{count}{name}"


def is_carried_as_bits(dtype: DType, target: Target) -> bool:
    """Whether a narrow float lives in integer registers because the target has no arithmetic on it."""
    return dtype.is_narrow_float and dtype.scalar not in target.native_dtypes


def register_type(dtype: DType, target: Target) -> str:
    """LLVM type of a value: bool is i1, a narrow float without arithmetic is its bits."""
    scalar = dtype.scalar
    found = _SCALAR.get(scalar)
    if found is not None:
        return vector_type(dtype.count, found)
    if is_carried_as_bits(scalar, target):
        return vector_type(dtype.count, f"i{scalar.bits}")
    if scalar is dtypes.float16:
        return vector_type(dtype.count, "half")
    raise RenderError(f"no LLVM type for {dtype}")


def memory_type(dtype: DType, target: Target) -> str:
    """LLVM type of a value in memory: bool takes a byte."""
    if dtype.is_bool:
        return vector_type(dtype.count, "i8")
    return register_type(dtype, target)


def _scalar_constant(value: Any, dtype: DType, target: Target) -> str:
    if dtype.is_bool:
        return "true" if value else "false"
    if not dtype.is_float:
        return str(int(value))
    number = float(value)
    if dtype.is_narrow_float:
        bits = dtype.format.encode(number)
        return str(bits) if is_carried_as_bits(dtype, target) else f"0xH{bits:04X}"
    return float_text(number)


def float_text(number: float) -> str:
    """A float or double constant. Both are written as doubles; the value is exact in its type already."""
    if number != number:
        return "0x7FF8000000000000"
    return f"0x{struct.unpack('<Q', struct.pack('<d', number))[0]:016X}"


def constant(value: Any, dtype: DType, target: Target) -> Value:
    """A constant, in every lane of a vector type."""
    text = _scalar_constant(value, dtype.scalar, target)
    type_text = register_type(dtype, target)
    return Value(text if dtype.count == 1 else f"splat ({scalar_of(type_text)} {text})", type_text)


def lane_constants(values: list[Any], dtype: DType, target: Target) -> Value:
    """A vector constant from one value a lane."""
    type_text = register_type(dtype, target)
    scalar = scalar_of(type_text)
    return Value(
        "<" + ", ".join(f"{scalar} {_scalar_constant(v, dtype.scalar, target)}" for v in values) + ">", type_text
    )


def integer(value: int, type_text: str) -> Value:
    """An integer constant of an LLVM type, in every lane."""
    return Value(str(value) if lanes_of(type_text) == 1 else f"splat ({scalar_of(type_text)} {value})", type_text)


@lru_cache(maxsize=256)
def _mask(picks: tuple[int, ...]) -> str:
    return ", ".join([f"i32 {p}" for p in picks])


class Writer:
    """Instructions of one function in order, with fresh register names and the declarations they need."""

    def __init__(self) -> None:
        self.lines: list[str] = ["entry:"]
        self.declarations: dict[str, str] = {}
        self.label = "entry"
        self._next = 0

    def name(self, base: str) -> str:
        """A fresh name."""
        self._next += 1
        return base + str(self._next)

    def line(self, text: str) -> None:
        """An instruction without result."""
        self.lines.append("  " + text)

    def emit(self, type_text: str, text: str, base: str = "v") -> Value:
        """An instruction with a result of this type."""
        self._next = number = self._next + 1
        register = f"%{base}{number}"
        self.lines.append(f"  {register} = {text}")
        return _new(Value, (register, type_text))

    def start(self, label: str) -> None:
        """Begin a basic block."""
        self.lines.append(f"{label}:")
        self.label = label

    def hole(self) -> int:
        """Leave a line to be filled in later; returns its place."""
        self.lines.append("")
        return len(self.lines) - 1

    def fill(self, place: int, text: str) -> None:
        """Fill a line that `hole` left."""
        self.lines[place] = "  " + text

    def call(self, result: str, function: str, *args: Value, flags: str = "") -> Value:
        """Call an intrinsic or library function, declaring it."""
        self._declare(result, function, args)
        listed = ", ".join(str(a) for a in args)
        return self.emit(result, f"call {flags}{result} @{function}({listed})")

    def call_void(self, function: str, *args: Value) -> None:
        """Call a function for its effect."""
        self._declare("void", function, args)
        self.line(f"call void @{function}({', '.join(str(a) for a in args)})")

    def _declare(self, result: str, function: str, args: tuple[Value, ...]) -> None:
        if function in self.declarations:
            return
        kinds = ", ".join(a.type.partition(" align ")[0] for a in args)
        self.declarations[function] = f"declare {result} @{function}({kinds})"

    # small instructions that every part needs
    def binary(self, operation: str, first: Value, second: Value) -> Value:
        """`operation` on two operands of one type."""
        return self.emit(first.type, f"{operation} {first.type} {first.text}, {second.text}")

    def compare(self, operation: str, first: Value, second: Value) -> Value:
        """`icmp` or `fcmp` with its predicate."""
        kind = first.type
        return self.emit(vector_type(lanes_of(kind), "i1"), f"{operation} {kind} {first.text}, {second.text}")

    def select(self, condition: Value, if_true: Value, if_false: Value) -> Value:
        """One of two operands, lane by lane when the condition is a vector."""
        return self.emit(if_true.type, f"select {condition}, {if_true}, {if_false}")

    def convert(self, operation: str, value: Value, type_text: str) -> Value:
        """A conversion instruction; none when the types are equal."""
        return value if value.type == type_text else self.emit(type_text, f"{operation} {value} to {type_text}")

    def broadcast(self, value: Value, count: int) -> Value:
        """The scalar in every lane."""
        kind = vector_type(count, value.type)
        first = self.emit(kind, f"insertelement {kind} poison, {value}, i64 0")
        return self.emit(kind, f"shufflevector {first}, {kind} poison, <{count} x i32> zeroinitializer")

    def lanes(self, value: Value, picks: list[int]) -> Value:
        """A vector of some lanes of another."""
        kind = vector_type(len(picks), scalar_of(value.type))
        mask = _mask(tuple(picks))
        return self.emit(kind, f"shufflevector {value}, {value.type} poison, <{len(picks)} x i32> <{mask}>")

    def shuffle(self, first: Value, second: Value, picks: Sequence[int]) -> Value:
        """A vector of some lanes of two others of one type."""
        kind = vector_type(len(picks), scalar_of(first.type))
        return self.emit(kind, f"shufflevector {first}, {second}, <{len(picks)} x i32> <{_mask(tuple(picks))}>")

    def extract(self, value: Value, lane: int) -> Value:
        """One lane."""
        return self.emit(scalar_of(value.type), f"extractelement {value}, i64 {lane}")
