"""Exact arithmetic on Python scalars: what an element-wise op gives for constants.

The rules that fold constants, the templates of patterns and the tests of the evaluator all use this one definition.
Floats are computed in double precision and rounded once to their type; integers wrap; `index` never overflows.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Callable, Sequence
from typing import Any, Final

from gradlet.base.dtype import DType, Scalar, as_scalar
from gradlet.ops.op import Op


def fold(op: Op, dtype: DType, values: Sequence[Scalar], source: DType | None = None) -> Scalar | None:
    """The value of `op` over constants, exact in the result type `dtype`.

    `source` is the dtype of the operands; only BITCAST needs it. Returns None where `op` is no element-wise op, and
    for a BITCAST whose result no Python number stands for.
    """
    if op in _SPECIAL:
        if op is Op.CAST:
            return as_scalar(values[0], dtype)
        if op is Op.BITCAST:
            return None if source is None else bitcast(values[0], source, dtype)
        if not 0 <= values[1] < dtype.bits:
            # Nothing is left of the bits, or only the sign.
            return -1 if op is Op.SHR and values[0] < 0 else 0
    function = _FUNCTIONS.get(op)
    return None if function is None else as_scalar(function(*values), dtype)


_SPECIAL: Final = frozenset({Op.CAST, Op.BITCAST, Op.SHL, Op.SHR})
_STORAGE: Final = {
    "bool": "<?", "uint8": "<B", "int8": "<b", "uint16": "<H", "int16": "<h", "uint32": "<I", "int32": "<i",
    "uint64": "<Q", "int64": "<q", "float16": "<e", "float32": "<f", "float64": "<d",
}  # fmt: skip


def bitcast(value: Scalar, source: DType, dtype: DType) -> Scalar | None:
    """The bits of `value` in type `source`, read as `dtype`.

    None when the sizes differ, a type has no bits, or the bits are those of a NaN other than the usual one.
    """
    if source.scalar.itemsize != dtype.scalar.itemsize or "x" in (source.kind, dtype.kind):
        return None
    size = source.scalar.itemsize
    if source.is_float and value != value:
        data = source.format.nan.to_bytes(size, "little")
    elif source.name in _STORAGE:
        data = struct.pack(_STORAGE[source.name], value)
    else:
        data = source.format.encode(value).to_bytes(size, "little")
    if dtype.kind == "b":
        return data != b"\0"
    read: Scalar
    if dtype.name in _STORAGE:
        read = struct.unpack(_STORAGE[dtype.name], data)[0]
    else:
        read = dtype.format.decode(int.from_bytes(data, "little"))
    return None if read != read and int.from_bytes(data, "little") != dtype.format.nan else read


def _divide(x: float, y: float) -> float:
    if y != 0:
        return x / y
    if x == 0 or x != x or y != y:
        return math.nan
    return math.copysign(math.inf, x) * math.copysign(1.0, y)


def _floor_divide(x: int, y: int) -> int:
    return x // y if y else 0


def _modulo(x: int, y: int) -> int:
    return x % y if y else 0


def _maximum(x: Any, y: Any) -> Any:
    return x if x >= y or x != x else y


def _minimum(x: Any, y: Any) -> Any:
    return x if x <= y or x != x else y


def _guard(function: Callable[[float], float], overflow: float) -> Callable[[float], float]:
    """`function` with NaN where it is undefined, and `overflow` where the result is too large."""

    def guarded(x: float) -> float:
        try:
            return function(x)
        except OverflowError:
            return overflow
        except ValueError:
            return math.nan

    return guarded


def _log(x: float) -> float:
    return math.log(x) if x else -math.inf


def _log2(x: float) -> float:
    return math.log2(x) if x else -math.inf


def _truncate(x: float) -> float:
    if x != x or math.isinf(x):
        return x
    return math.copysign(float(math.trunc(x)), x)


def _power(x: float, y: float) -> float:
    odd = y == math.floor(y) and y % 2 == 1 if math.isfinite(y) else False
    try:
        return math.pow(x, y)
    except OverflowError:
        return -math.inf if x < 0 and odd else math.inf
    except ValueError:
        # Zero to a negative power, or a negative number to a fraction.
        return math.copysign(math.inf, x if odd else 1.0) if x == 0 else math.nan


_FUNCTIONS: Final[dict[Op, Callable[..., Any]]] = {
    Op.SQRT: _guard(math.sqrt, math.inf),
    Op.EXP: _guard(math.exp, math.inf),
    Op.EXP2: _guard(lambda x: math.pow(2.0, x), math.inf),
    Op.LOG: _guard(_log, math.inf),
    Op.LOG2: _guard(_log2, math.inf),
    Op.SIN: _guard(math.sin, math.inf),
    Op.COS: _guard(math.cos, math.inf),
    Op.TRUNC: _truncate,
    Op.ADD: lambda x, y: x + y,
    Op.MUL: lambda x, y: x * y,
    Op.FDIV: _divide,
    Op.IDIV: _floor_divide,
    Op.MOD: _modulo,
    Op.MAX: _maximum,
    Op.MIN: _minimum,
    Op.POW: _power,
    Op.AND: lambda x, y: x & y,
    Op.OR: lambda x, y: x | y,
    Op.XOR: lambda x, y: x ^ y,
    Op.SHL: lambda x, y: x << y,
    Op.SHR: lambda x, y: x >> y,
    Op.CMPLT: lambda x, y: x < y,
    Op.CMPEQ: lambda x, y: x == y,
    Op.CMPNE: lambda x, y: x != y,
    Op.WHERE: lambda condition, x, y: x if condition else y,
}
