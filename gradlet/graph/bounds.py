"""Which values an integer node can have: an interval kept in the node, and the constants that divide it."""

from __future__ import annotations

import operator
from collections.abc import Callable
from math import gcd, inf
from typing import Any, Final

from gradlet.base.dtype import DType, as_scalar, dtypes
from gradlet.graph.node import UOp
from gradlet.ops.op import MOVEMENT, Op

Interval = tuple[Any, Any]

# Members of an enum are slow to reach through their class.
_CONST: Final = Op.CONST
_ADD: Final = Op.ADD
_MUL: Final = Op.MUL
_INDEX: Final = dtypes.index


def bounds(node: UOp) -> Interval:
    """(low, high) with low <= value <= high for every value the node can have; vectors: in every lane.

    Integers that could overflow their type get the type's whole range. Floats other than constants and converted
    integers get (-inf, inf), which also stands for "maybe NaN".
    """
    found: Interval | None = node._bounds
    if found is not None:
        return found
    stack = [node]
    while stack:
        top = stack[-1]
        op = top.op
        if (op is _ADD or op is _MUL) and top.dtype is _INDEX:
            # By far the most frequent, and never too large for the type.
            first, second = top.src
            x, y = first._bounds, second._bounds
            if x is None or y is None:
                if x is None:
                    stack.append(first)
                if y is None:
                    stack.append(second)
                continue
            top._bounds = (x[0] + y[0], x[1] + y[1]) if op is _ADD else _corners(operator.mul, x, y)
            stack.pop()
            continue
        function = None
        if top.dtype.kind != "f" or op in _FLOAT_OPS:
            function = _BOUNDS.get(op)
        if function is None:
            top._bounds = _whole(top.dtype)
            stack.pop()
            continue
        waiting = [s for s in top.src if s._bounds is None]
        if waiting:
            stack.extend(waiting)
            continue
        top._bounds = _fit(function(top), top.dtype)
        stack.pop()
    return node._bounds


def _whole(dtype: DType) -> Interval:
    if dtype.kind == "f":  # also where the type has no infinities: this is what says "maybe NaN"
        return -inf, inf
    return (0, 0) if dtype.kind == "v" else (dtype.min, dtype.max)


def _fit(interval: Interval | None, dtype: DType) -> Interval:
    """The interval if every value in it exists in `dtype`, else the whole range: an overflow can give anything."""
    if interval is None:
        return _whole(dtype)
    if dtype.kind in "ui" and (interval[0] < dtype.min or interval[1] > dtype.max):
        return _whole(dtype)
    return interval


def _corners(function: Callable[[Any, Any], Any], x: Interval, y: Interval) -> Interval:
    """Interval of a function that is monotone in each argument."""
    if y[0] == y[1]:
        first, last = function(x[0], y[0]), function(x[1], y[0])
        return (first, last) if first <= last else (last, first)
    values = [function(x[0], y[0]), function(x[0], y[1]), function(x[1], y[0]), function(x[1], y[1])]
    return min(values), max(values)


def _const(node: UOp) -> Interval | None:
    return None if node.arg != node.arg else (node.arg, node.arg)


def _variable(node: UOp) -> Interval:
    return node.arg.low, node.arg.high


def _range(node: UOp) -> Interval:
    return 0, max(0, node.src[0]._bounds[1] - 1)


def _special(node: UOp) -> Interval:
    return 0, max(0, node.arg.size - 1)


def _same(node: UOp) -> Interval:
    return node.src[0]._bounds


def _bind(node: UOp) -> Interval:
    # Not the value: what is derived must hold for every value the variable can be bound to.
    return node.src[0]._bounds


def _pad(node: UOp) -> Interval:
    low, high = node.src[0]._bounds
    return (min(low, 0), max(high, 0)) if node.dtype.kind != "b" else (False, high)


def _add(node: UOp) -> Interval:
    x, y = node.src[0]._bounds, node.src[1]._bounds
    if node.dtype.kind == "b":
        return x[0] or y[0], x[1] or y[1]
    return x[0] + y[0], x[1] + y[1]


def _mul(node: UOp) -> Interval:
    x, y = node.src[0]._bounds, node.src[1]._bounds
    if node.dtype.kind == "b":
        return x[0] and y[0], x[1] and y[1]
    return _corners(operator.mul, x, y)


def _muladd(node: UOp) -> Interval:
    x, y, z = node.src[0]._bounds, node.src[1]._bounds, node.src[2]._bounds
    low, high = _fit(_corners(operator.mul, x, y), node.dtype)
    return low + z[0], high + z[1]


def _idiv(node: UOp) -> Interval | None:
    x, y = node.src[0]._bounds, node.src[1]._bounds
    if node.dtype.kind == "b":
        return None
    if y[0] > 0:
        return _corners(operator.floordiv, x, y)
    parts: list[Interval] = []
    if y[0] <= 0 <= y[1]:
        parts.append((0, 0))
    if y[0] < 0:
        parts.append(_corners(operator.floordiv, x, (y[0], min(y[1], -1))))
    if y[1] > 0:
        parts.append(_corners(operator.floordiv, x, (max(y[0], 1), y[1])))
    return min(p[0] for p in parts), max(p[1] for p in parts)


def _mod(node: UOp) -> Interval | None:
    x, y = node.src[0]._bounds, node.src[1]._bounds
    if node.dtype.kind == "b":
        return None
    if y[0] == y[1] and y[0] > 0 and x[0] // y[0] == x[1] // y[0]:
        return x[0] % y[0], x[1] % y[0]
    if x[0] >= 0 and y[0] > x[1]:
        return x
    low = min(y[0] + 1, 0)
    high = max(y[1] - 1, 0)
    if x[0] >= 0 and y[0] >= 0:
        high = min(high, x[1])
    return low, high


def _max(node: UOp) -> Interval:
    x, y = node.src[0]._bounds, node.src[1]._bounds
    return max(x[0], y[0]), max(x[1], y[1])


def _min(node: UOp) -> Interval:
    x, y = node.src[0]._bounds, node.src[1]._bounds
    return min(x[0], y[0]), min(x[1], y[1])


def _ones(*values: int) -> int:
    """The smallest number of the form 2**n - 1 that is not below the values."""
    return int((1 << max(v.bit_length() for v in values)) - 1)


def _and(node: UOp) -> Interval | None:
    x, y = node.src[0]._bounds, node.src[1]._bounds
    if node.dtype.kind == "b":
        return x[0] and y[0], x[1] and y[1]
    if x[0] >= 0 and y[0] >= 0:
        return 0, min(x[1], y[1])
    if x[0] >= 0 or y[0] >= 0:
        return 0, x[1] if x[0] >= 0 else y[1]
    return None


def _or(node: UOp) -> Interval | None:
    x, y = node.src[0]._bounds, node.src[1]._bounds
    if node.dtype.kind == "b":
        return x[0] or y[0], x[1] or y[1]
    return (max(x[0], y[0]), _ones(x[1], y[1])) if x[0] >= 0 and y[0] >= 0 else None


def _xor(node: UOp) -> Interval | None:
    x, y = node.src[0]._bounds, node.src[1]._bounds
    if node.dtype.kind == "b":
        return (x[0] != y[0], x[0] != y[0]) if x[0] == x[1] and y[0] == y[1] else None
    return (0, _ones(x[1], y[1])) if x[0] >= 0 and y[0] >= 0 else None


def _shift(function: Callable[[int, int], int]) -> Callable[[UOp], Interval | None]:
    def interval(node: UOp) -> Interval | None:
        x, y = node.src[0]._bounds, node.src[1]._bounds
        return _corners(function, x, y) if y[0] >= 0 and y[1] < 64 and node.dtype.kind != "b" else None

    return interval


def _cmplt(node: UOp) -> Interval | None:
    x, y = node.src[0]._bounds, node.src[1]._bounds
    if x[1] < y[0]:
        return True, True
    return (False, False) if x[0] >= y[1] else None


def _cmpeq(node: UOp) -> Interval | None:
    x, y = node.src[0]._bounds, node.src[1]._bounds
    if x[1] < y[0] or y[1] < x[0]:
        return False, False
    return (True, True) if x[0] == x[1] == y[0] == y[1] else None


def _cmpne(node: UOp) -> Interval | None:
    equal = _cmpeq(node)
    return None if equal is None else (not equal[0], not equal[1])


def _union(*intervals: Interval) -> Interval:
    return min(i[0] for i in intervals), max(i[1] for i in intervals)


def _where(node: UOp) -> Interval:
    condition, if_true, if_false = node.src
    if condition._bounds[0]:
        return if_true._bounds
    if not condition._bounds[1]:
        return if_false._bounds
    return _union(if_true._bounds, if_false._bounds)


def _cast(node: UOp) -> Interval | None:
    low, high = node.src[0]._bounds
    source, dtype = node.src[0].dtype, node.dtype
    if source.kind == "f":
        if low == -inf and high == inf:
            return None
        return _converted(low, high, dtype)
    if dtype.kind == "b":
        return not low <= 0 <= high, not low == high == 0
    if dtype.kind == "f":
        return _converted(low, high, dtype)
    return int(low), int(high)


def _converted(low: Any, high: Any, dtype: DType) -> Interval | None:
    """The limits in another type; None where one of them is too large for a type without infinities."""
    low, high = as_scalar(low, dtype), as_scalar(high, dtype)
    return (low, high) if low == low and high == high else None


def _vectorize(node: UOp) -> Interval:
    return _union(*[s._bounds for s in node.src])


def _reduce(node: UOp) -> Interval | None:
    low: Any = 1
    high: Any = 1
    for source in node.src[1:]:
        size = source.src[0]._bounds if source.op is Op.RANGE else (0, inf)
        low, high = low * max(0, size[0]), high * max(0, size[1])
    return _repeated(node.arg.op, node.src[0]._bounds, low, high, node.dtype)


def _reduce_lanes(node: UOp) -> Interval | None:
    count = node.src[0].dtype.count
    return _repeated(node.arg.op, node.src[0]._bounds, count, count, node.dtype)


def _repeated(op: Op, value: Interval, fewest: Any, most: Any, dtype: DType) -> Interval | None:
    """Combining between `fewest` and `most` values of an interval."""
    if op in (Op.MAX, Op.MIN):
        return value if fewest > 0 else None
    if op is not Op.ADD or dtype.kind == "b" or most == inf:
        return None
    return min(value[0] * fewest, value[0] * most), max(value[1] * fewest, value[1] * most)


def _turn(node: UOp) -> Interval | None:
    return 0, (node.src[0] if node.src else node).arg.buffers - 1


# What is not listed can have every value of its dtype.
_BOUNDS: Final[dict[Op, Callable[[UOp], Interval | None]]] = {
    Op.CONST: _const, Op.VARIABLE: _variable, Op.BIND: _bind, Op.RANGE: _range, Op.SPECIAL: _special,
    Op.RING: _turn, Op.TURN: _turn,
    Op.ADD: _add, Op.MUL: _mul, Op.MULADD: _muladd, Op.IDIV: _idiv, Op.MOD: _mod, Op.MAX: _max, Op.MIN: _min,
    Op.AND: _and, Op.OR: _or, Op.XOR: _xor,
    Op.SHL: _shift(operator.lshift), Op.SHR: _shift(operator.rshift),
    Op.CMPLT: _cmplt, Op.CMPEQ: _cmpeq, Op.CMPNE: _cmpne, Op.WHERE: _where, Op.CAST: _cast,
    Op.VECTORIZE: _vectorize, Op.EXTRACT: _same, Op.REDUCE: _reduce, Op.REDUCE_LANES: _reduce_lanes,
    Op.CONTIGUOUS: _same, Op.COPY: _same, Op.DETACH: _same, Op.DERIVATIVE: _same,
    **dict.fromkeys(MOVEMENT, _same), Op.PAD: _pad, Op.UNWINDOW: _pad,
}  # fmt: skip
_FLOAT_OPS: Final = frozenset({Op.CONST, Op.CAST})


def const_factor(node: UOp) -> int:
    """The largest constant known to divide every value of an integer node; 0 when the value is always 0.

    It is kept in the node: sums that grow term by term cost one step each.
    """
    found: int | None = getattr(node, "_factor", None)
    if found is not None:
        return found
    stack = [node]
    while stack:
        top = stack[-1]
        op = top.op
        if (op is _ADD or op is _MUL) and top.dtype is _INDEX:
            # By far the most frequent.
            first, second = top.src
            x, y = getattr(first, "_factor", None), getattr(second, "_factor", None)
            if x is None or y is None:
                if x is None:
                    stack.append(first)
                if y is None:
                    stack.append(second)
                continue
            factor = gcd(x, y) if op is _ADD else x * y
        elif op is _CONST:
            factor = abs(int(top.arg)) if top.dtype.kind in "uix" else 1
        elif op not in _FACTOR_OPS or top.dtype.kind not in "uix":
            factor = 1
        else:
            operands = top.src[1:] if op is Op.WHERE else top.src
            factors = [getattr(s, "_factor", None) for s in operands]
            if None in factors:
                stack.extend([s for s, known in zip(operands, factors) if known is None])
                continue
            factor = _factor(top, factors)
        top._factor = factor
        stack.pop()
    return node._factor


_FACTOR_OPS: Final = frozenset({Op.ADD, Op.MUL, Op.MAX, Op.MIN, Op.WHERE, Op.SHL, Op.CAST, Op.VECTORIZE, Op.EXTRACT})


def _factor(node: UOp, factors: list[Any]) -> int:
    op = node.op
    factor: int
    if op is Op.MUL:
        factor = factors[0] * factors[1]
    elif op is Op.SHL:
        amount = node.src[1]
        known = amount.op is Op.CONST and 0 <= amount.arg < node.dtype.bits
        factor = factors[0] << amount.arg if known else factors[0]
    elif op is Op.CAST and node.src[0].dtype.kind not in "uix":
        return 1
    else:
        factor = gcd(*factors)
    if node.dtype.kind != "x" and bounds(node) == _whole(node.dtype):
        # It may have wrapped, which only powers of two survive.
        return gcd(factor, 1 << node.dtype.bits)
    return factor
