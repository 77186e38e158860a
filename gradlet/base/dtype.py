"""Data types: interned objects compared by identity, the promotion lattice, and conversions to Python and numpy.

A `DType` is created once per (name, vector width), so hashing and comparing it never leaves C.
"""

from __future__ import annotations

import math
import struct
from typing import Any, Final, TypeAlias

from gradlet.base.errors import DTypeError
from gradlet.base.floatformat import FORMATS, FloatFormat, sticky

Scalar = bool | int | float


class DType:
    """A scalar or vector data type. Instances are interned: compare with `is`.

    Attributes:
        name: public name, e.g. `float32`.
        itemsize: bytes of one value (all lanes together).
        kind: `b` bool, `u` unsigned, `i` signed, `f` float, `x` index (an integer of unbounded range), `v` void.
        priority: position in the promotion order.
        count: lanes, 1 for scalars.
        scalar: the one-lane type of the same name.
    """

    __slots__ = ("name", "itemsize", "kind", "priority", "count", "scalar", "_vectors")

    def __init__(self, name: str, itemsize: int, kind: str, priority: int, count: int = 1) -> None:
        self.name: str = name
        self.itemsize: int = itemsize
        self.kind: str = kind
        self.priority: int = priority
        self.count: int = count
        self.scalar: DType = self
        self._vectors: dict[int, DType] = {}

    def vec(self, count: int) -> DType:
        """The vector type of `count` lanes of this scalar type; `vec(1)` is the scalar itself."""
        scalar = self.scalar
        if count == 1:
            return scalar
        found = scalar._vectors.get(count)
        if found is None:
            found = DType(scalar.name, scalar.itemsize * count, scalar.kind, scalar.priority, count)
            found.scalar = scalar
            scalar._vectors[count] = found
        return found

    @property
    def bits(self) -> int:
        """Bits of one lane."""
        return 1 if self.kind == "b" else self.scalar.itemsize * 8

    @property
    def is_float(self) -> bool:
        return self.kind == "f"

    @property
    def format(self) -> FloatFormat:
        """How the values of a float type are made of bits."""
        return FORMATS[self.name]

    @property
    def is_narrow_float(self) -> bool:
        """A float of 8 or 16 bits: its arithmetic is done in float32."""
        return self.kind == "f" and self.scalar.itemsize < 4

    @property
    def is_float8(self) -> bool:
        """A float of 8 bits."""
        return self.kind == "f" and self.scalar.itemsize == 1

    @property
    def is_int(self) -> bool:
        """Signed, unsigned or index integer; bool is not an integer."""
        return self.kind in "uix"

    @property
    def is_unsigned(self) -> bool:
        return self.kind == "u"

    @property
    def is_bool(self) -> bool:
        return self.kind == "b"

    @property
    def min(self) -> Scalar:
        """Smallest value: -inf for floats that have infinities."""
        if self.kind == "f":
            return -math.inf if self.format.has_infinity else -self.format.largest
        if self.kind == "b":
            return False
        if self.kind == "x":
            return -(2**62)
        return 0 if self.kind == "u" else -(1 << (self.bits - 1))

    @property
    def max(self) -> Scalar:
        """Largest value: inf for floats that have infinities."""
        if self.kind == "f":
            return math.inf if self.format.has_infinity else self.format.largest
        if self.kind == "b":
            return True
        if self.kind == "x":
            return 2**62
        return (1 << self.bits) - 1 if self.kind == "u" else (1 << (self.bits - 1)) - 1

    def __repr__(self) -> str:
        return f"dtypes.{self.name}" if self.count == 1 else f"dtypes.{self.name}.vec({self.count})"

    def __reduce__(self) -> tuple[Any, ...]:
        return (_restore, (self.name, self.count))


def _restore(name: str, count: int) -> DType:
    return dtypes.by_name(name).vec(count)


class dtypes:
    """Namespace of all data types, e.g. `dtypes.float32`.

    >>> dtypes.uint8.max, dtypes.float16.itemsize
    (255, 2)
    """

    void: Final = DType("void", 0, "v", -1)
    bool: Final = DType("bool", 1, "b", 0)
    uint8: Final = DType("uint8", 1, "u", 1)
    int8: Final = DType("int8", 1, "i", 2)
    uint16: Final = DType("uint16", 2, "u", 3)
    int16: Final = DType("int16", 2, "i", 4)
    uint32: Final = DType("uint32", 4, "u", 5)
    int32: Final = DType("int32", 4, "i", 6)
    uint64: Final = DType("uint64", 8, "u", 7)
    int64: Final = DType("int64", 8, "i", 8)
    # Index arithmetic: an integer that never overflows; code generation picks int32 or int64 from its bounds.
    index: Final = DType("index", 8, "x", 9)
    float8_e4m3fn: Final = DType("float8_e4m3fn", 1, "f", 10)
    float8_e4m3fnuz: Final = DType("float8_e4m3fnuz", 1, "f", 11)
    float8_e5m2: Final = DType("float8_e5m2", 1, "f", 12)
    float8_e5m2fnuz: Final = DType("float8_e5m2fnuz", 1, "f", 13)
    float16: Final = DType("float16", 2, "f", 14)
    bfloat16: Final = DType("bfloat16", 2, "f", 15)
    float32: Final = DType("float32", 4, "f", 16)
    float64: Final = DType("float64", 8, "f", 17)
    fp8e4m3: Final = float8_e4m3fn
    fp8e4m3fnuz: Final = float8_e4m3fnuz
    fp8e5m2: Final = float8_e5m2
    fp8e5m2fnuz: Final = float8_e5m2fnuz
    half: Final = float16
    float: Final = float32
    double: Final = float64
    uchar: Final = uint8
    char: Final = int8
    short: Final = int16
    int: Final = int32
    long: Final = int64
    fp8s: Final = (float8_e4m3fn, float8_e4m3fnuz, float8_e5m2, float8_e5m2fnuz)
    floats: Final = (*fp8s, float16, bfloat16, float32, float64)
    uints: Final = (uint8, uint16, uint32, uint64)
    sints: Final = (int8, int16, int32, int64)
    ints: Final = (*uints, *sints)
    default_float: DType = float32
    default_int: DType = int32

    @staticmethod
    def all() -> tuple[DType, ...]:
        """Every type a Tensor may have."""
        return (
            dtypes.bool, dtypes.uint8, dtypes.int8, dtypes.uint16, dtypes.int16, dtypes.uint32, dtypes.int32,
            dtypes.uint64, dtypes.int64, dtypes.float8_e4m3fn, dtypes.float8_e4m3fnuz, dtypes.float8_e5m2,
            dtypes.float8_e5m2fnuz, dtypes.float16, dtypes.bfloat16, dtypes.float32, dtypes.float64,
        )  # fmt: skip

    @staticmethod
    def is_float(dtype: DType) -> bool_type:
        """Whether the values are floats.

        >>> dtypes.is_float(dtypes.bfloat16)
        True
        """
        return dtype.is_float

    @staticmethod
    def is_int(dtype: DType) -> bool_type:
        """Whether the values are integers; bool is not.

        >>> dtypes.is_int(dtypes.bool)
        False
        """
        return dtype.is_int

    @staticmethod
    def is_unsigned(dtype: DType) -> bool_type:
        """Whether the values are integers without a sign.

        >>> dtypes.is_unsigned(dtypes.uint8)
        True
        """
        return dtype.is_unsigned

    @staticmethod
    def is_bool(dtype: DType) -> bool_type:
        """Whether the values are True and False.

        >>> dtypes.is_bool(dtypes.bool)
        True
        """
        return dtype.is_bool

    @staticmethod
    def finfo(dtype: DType) -> tuple[int_type, int_type]:
        """Bits of the exponent and of the stored fraction of a float type.

        >>> dtypes.finfo(dtypes.float16), dtypes.finfo(dtypes.fp8e4m3)
        ((5, 10), (4, 3))
        """
        if not dtype.is_float:
            raise DTypeError(f"finfo: {dtype} is not a float type")
        return dtype.format.exponent, dtype.format.fraction

    @staticmethod
    def by_name(name: str) -> DType:
        """The type called `name`.

        Raises:
            DTypeError: no such type.
        """
        found = getattr(dtypes, name, None) if isinstance(name, str) else None
        if not isinstance(found, DType):
            known = ", ".join(d.name for d in dtypes.all())
            raise DTypeError(f"unknown data type {name!r}; use one of: {known}")
        return found

    @staticmethod
    def of(value: Scalar) -> DType:
        """The type a Python scalar takes when nothing else decides."""
        if isinstance(value, bool_type):
            return dtypes.bool
        return dtypes.default_int if isinstance(value, int_type) else dtypes.default_float


# The built-in types, where a class has members of the same names.
bool_type: TypeAlias = bool
int_type: TypeAlias = int


def to_dtype(value: DType | str) -> DType:
    """Accept a `DType` that a tensor may have, or its name.

    Raises:
        DTypeError: no such type, or one that only the compiler uses (void, index, vectors).
    """
    found = value if isinstance(value, DType) else dtypes.by_name(value)
    if found.kind in "vx" or found.count != 1:
        known = ", ".join(d.name for d in dtypes.all())
        raise DTypeError(f"{found} is a type of the compiler, not of tensors; use one of: {known}")
    return found


def promote(first: DType, second: DType, what: str = "promotion") -> DType:
    """The type two tensors meet in, as torch has it: the smallest that holds both kinds.

    float16 with bfloat16 gives float32; an unsigned with a signed of the same width gives the next wider signed type.
    An 8-bit float gives way to a wider float and takes in bools. `what` is the operation that messages name.

    Raises:
        DTypeError: uint64 with a signed integer; an 8-bit float with an integer or with another 8-bit float.
    """
    if first is second:
        return first
    low, high = (first, second) if first.priority < second.priority else (second, first)
    if low.kind == "x" or high.kind == "x":
        return high if high.kind == "f" else dtypes.index
    if high.kind == "f":
        if high.is_float8 and low.kind != "b":
            raise _no_common_type(first, second, what, "float32")
        if high is dtypes.bfloat16 and low is dtypes.float16:
            return dtypes.float32
        return high
    if low.kind == "b" or low.kind == high.kind:
        return high
    unsigned, signed = (low, high) if low.kind == "u" else (high, low)
    if signed.bits > unsigned.bits:
        return signed
    wider = {8: dtypes.int16, 16: dtypes.int32, 32: dtypes.int64}.get(unsigned.bits)
    if wider is None:
        raise _no_common_type(first, second, what, "int64")
    return wider


def _no_common_type(first: DType, second: DType, what: str, example: str) -> DTypeError:
    return DTypeError(
        f"{what}: {first} and {second} have no common type, as none holds the values of both; say which is meant with "
        f".cast(...), for example .cast(dtypes.{example})"
    )


def accumulator(dtype: DType) -> DType:
    """The type sums of `dtype` are carried in: float32 for 8- and 16-bit floats, otherwise the type itself."""
    return dtypes.float32 if dtype.kind == "f" and dtype.itemsize < 4 else dtype


_STRUCT: Final = {"float16": "<e", "float32": "<f", "float64": "<d"}


def as_scalar(value: Scalar, dtype: DType) -> Scalar:
    """Convert a Python scalar to the exact value it has in `dtype`: floats are rounded once, integers wrap.

    Casting a float to an integer truncates; NaN gives 0 and out-of-range values saturate.
    """
    kind = dtype.kind
    if kind == "b":
        return bool(value)
    if kind == "f":
        return _as_float(value, dtype.name)
    if isinstance(value, float):
        if value != value:
            return 0
        if math.isinf(value):
            return dtype.max if value > 0 else dtype.min
        return int(max(int(dtype.min), min(int(dtype.max), int(value))))
    number_int = int(value)
    if kind == "x":
        return number_int
    bits = dtype.bits
    number_int &= (1 << bits) - 1
    if kind == "i" and number_int >> (bits - 1):
        number_int -= 1 << bits
    return number_int


def _as_float(value: Scalar, name: str) -> float:
    """A number rounded to a float type."""
    code = _STRUCT.get(name)
    if code is None:
        return FORMATS[name].round(value)
    try:
        if isinstance(value, int_type) and name != "float64":
            value = sticky(value)
        number = float(value)
        if number != number or math.isinf(number):
            return number
        return float(struct.unpack(code, struct.pack(code, number))[0])
    except OverflowError:
        return math.inf if value > 0 else -math.inf
