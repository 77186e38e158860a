"""Small steps on graph nodes: casts, stretching to a shape, where a value lives, which type a number takes."""

from __future__ import annotations

from itertools import count
from math import copysign
from typing import Final

from gradlet.base.dtype import DType, dtypes
from gradlet.base.errors import DTypeError
from gradlet.graph.node import UOp, mk
from gradlet.ops.arguments import Shape
from gradlet.ops.op import Op, ShapeArg, VariableArg

_CONST: Final = Op.CONST
_BIND: Final = Op.BIND
_VARIABLE: Final = Op.VARIABLE
_RESHAPE: Final = Op.RESHAPE
_EXPAND: Final = Op.EXPAND
_CAST: Final = Op.CAST

_unique: Final = count(1).__next__


# Constants that were asked for lately: making one converts the number to its exact value in the type.
_numbers: dict[tuple[DType, type, object], UOp] = {}
_NUMBERS_KEPT: Final = 512


def number_node(value: bool | int | float, dtype: DType) -> UOp:
    """A Python number as a constant."""
    # The sign of a zero is not seen by comparing.
    key = (dtype, value.__class__, value or repr(value))
    node = _numbers.get(key)
    if node is None:
        node = UOp.const(dtype, value)
        if len(_numbers) < _NUMBERS_KEPT:
            _numbers[key] = node
    return node


def distinct(constant: UOp) -> UOp:
    """A float constant that is no other one, though it may be equal.

    Equal constants are one node, and a gradient could not tell their uses apart. A variable that is always 0 tells them
    apart, and is nothing once bounds are known.
    """
    dtype = constant.dtype
    variable = mk(_VARIABLE, dtypes.index, (), VariableArg(f"const{_unique()}", 0, 0))
    zero = mk(_CAST, dtype, (mk(_BIND, dtypes.index, (variable, UOp.const(dtypes.index, 0)), None),), None)
    if constant.arg == 0 and copysign(1.0, constant.arg) < 0:  # 0 + -0 would be 0
        one = mk(Op.ADD, dtype, (zero, UOp.const(dtype, 1)), None)
        return mk(Op.MUL, dtype, (one, constant), None)
    return mk(Op.ADD, dtype, (zero, constant), None)


def node_cast(node: UOp, dtype: DType) -> UOp:
    """A node as another type; constants are converted at once."""
    if node.dtype is dtype:
        return node
    if node.op is _CONST:
        return UOp.const(dtype, node.arg)
    return mk(_CAST, dtype, (node,), None)


def no_leaf(node: UOp) -> UOp:
    """A scalar leaf as an ordinary value without axes."""
    op = node.op
    return mk(_RESHAPE, node.dtype, (node,), ShapeArg(())) if op is _CONST or op is _BIND or op is _VARIABLE else node


def spread(node: UOp, shape: Shape, wanted: Shape, leaves: bool = False) -> UOp:
    """A node stretched to a shape it broadcasts to; scalar leaves stretch by themselves unless `leaves`."""
    if shape == wanted and not (leaves and not wanted):
        return node
    if not shape:
        op = node.op
        if op is _CONST or op is _BIND or op is _VARIABLE:
            if not leaves:
                return node
            if not wanted:
                return no_leaf(node)
    extra = len(wanted) - len(shape)
    if extra:
        shape = (1,) * extra + shape
        node = mk(_RESHAPE, node.dtype, (node,), ShapeArg(shape))
    return node if shape == wanted else mk(_EXPAND, node.dtype, (node,), ShapeArg(wanted))


def place_of(node: UOp) -> str | None:
    """Device of a graph: that of its first buffer or copy from the root; None for constants."""
    stack, seen = [node], {node}
    while stack:
        top = stack.pop()
        if top.op in (Op.BUFFER, Op.COPY, Op.CUSTOM):
            return top.arg.device  # type: ignore[no-any-return]
        for source in reversed(top.src):
            if source not in seen:
                seen.add(source)
                stack.append(source)
    return None


def type_for_number(value: int | float, dtype: DType) -> DType:
    """The type a Python integer, or a number beside an 8-bit float, takes: `dtype` where it fits, else one for both.

    Raises:
        DTypeError: no integer type holds the number.
    """
    if dtype.kind == "f":
        form = dtype.format
        # Without infinities it would be NaN.
        return dtype if form.has_infinity or not abs(value) > form.largest else dtypes.float32
    if dtype.kind == "b":
        dtype = dtypes.default_int
    if dtype.min <= value <= dtype.max:
        return dtype
    for wider in (dtypes.int16, dtypes.int32, dtypes.int64, dtypes.uint64):
        if wider.min <= value <= wider.max and (wider is not dtypes.int16 or dtype.itemsize == 1):
            return wider
    raise DTypeError(f"integer {value} does not fit any type; make it a float")
