"""Comparing uint64 with signed integers, which no type holds both: by the sign, then as uint64."""

from __future__ import annotations

from typing import Any, Final

from gradlet.base.dtype import DType, dtypes
from gradlet.ops.op import Op

_COMPARE: Final = frozenset({Op.CMPLT, Op.CMPEQ, Op.CMPNE})


def is_needed(op: Op, first: DType, second: DType) -> bool:
    """Whether this is a comparison of uint64 with a signed integer."""
    return op in _COMPARE and {first.kind, second.kind} == {"u", "i"} and dtypes.uint64 in (first, second)


def compare(op: Op, first: Any, second: Any) -> Any:
    """`first < second`, `first == second` or `first != second` for tensors of such types, exactly."""
    signed, unsigned = (first, second) if second.dtype is dtypes.uint64 else (second, first)
    negative, same = signed.lt(0), signed.cast(dtypes.uint64)
    if op is Op.CMPEQ:
        return same.eq(unsigned).bitwise_and(negative.logical_not())
    if op is Op.CMPNE:
        return same.ne(unsigned).bitwise_or(negative)
    if signed is first:
        return same.lt(unsigned).bitwise_or(negative)
    return unsigned.lt(same).bitwise_and(negative.logical_not())
