"""Folding on the host: what follows from known values (shapes, constants) is computed by numpy and launches nothing.

Each row computes what the operator of that name computes on tensors; the operators' own modules name the source.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, Final

import numpy as np

from gradlet.base.errors import SizeLimitError
from gradlet.base.symint import Size
from gradlet.onnx.elements import NARROW, STRING, numpy_type
from gradlet.onnx.graph import Node
from gradlet.onnx.values import Array, Value, has_sizes
from gradlet.ops.arguments import largest_sizes

# More elements than this are computed on the device.
MOST_FOLDED: Final = 1 << 14

# Types that numpy has not, or not exactly.
UNFOLDED: Final = frozenset((*NARROW, 14, 15, 16, 17, 18, 19, 20))

Attributes = dict[str, Any]
Fold = Callable[[Attributes, "list[Any]"], Any]


def fold(node: Node, found: Sequence[Any]) -> list[Value] | None:
    """The outputs of a node whose inputs are all known, or None where a device should compute them."""
    if not foldable(node, found, lambda v: v.known):
        return None
    arrays = [None if v is None else v.array() for v in found]
    elem = _elem_of_sizes(found, arrays)
    if elem is not None:
        return _fold_sizes(node, arrays, elem)
    result = _compute(node, arrays)
    return None if result is None else [Value.of_array(r) for r in result]


def _elem_of_sizes(found: Sequence[Any], arrays: Sequence[Any]) -> int | None:
    """The element type of numbers of which some are sizes that are known only at launch; None where there are none."""
    for value, array in zip(found, arrays):
        if array is not None and not value.is_text and has_sizes(array):
            return int(value.elem)
    return None


def puller(node: Node, found: Sequence[Any], index: int) -> Callable[[], Array | None] | None:
    """How to compute an output on the host from data of inputs, for operators that need numbers; None where not."""
    if not foldable(node, found, lambda v: v.on_host):
        return None

    def pull() -> Array | None:
        arrays = [None if v is None else v.array() for v in found]
        if _elem_of_sizes(found, arrays) is not None:
            return None  # what is known of them is folded
        result = _compute(node, arrays)
        return None if result is None else np.asarray(result[index])

    return pull


def foldable(node: Node, found: Sequence[Any], on_host: Callable[[Value], bool]) -> bool:
    """Whether numpy computes this node."""
    if node.domain or node.op not in FOLDS or not found:
        return False
    total = 0
    for value in found:
        if value is None:
            continue
        if not isinstance(value, Value) or not on_host(value) or value.elem in UNFOLDED:
            return False
        total += math.prod(largest_sizes(value.shape))
    return total <= MOST_FOLDED


def _compute(node: Node, arrays: list[Any]) -> list[Any] | None:
    with np.errstate(all="ignore"):
        result = FOLDS[node.op](node.attributes, arrays)
    if result is None:
        return None
    return [np.asarray(r) for r in (result if isinstance(result, list) else [result])]


# ---- numbers of which some are sizes that are known only at launch --------------------------------------------------


def _fold_sizes(node: Node, arrays: list[Any], elem: int) -> list[Value] | None:
    """The outputs of a node on such numbers, None where a device should compute them.

    Raises:
        SizeLimitError: what depends on the values that the sizes have at launch.
    """
    function = SIZE_FOLDS.get(node.op)
    others = [a for a in arrays[1:] if a is not None and has_sizes(a)]
    if function is None or (node.op in FIRST_ONLY and others):
        return None
    if node.op not in FIRST_ONLY:
        arrays = [a if a is None or a.dtype.kind in "bO" else _python(a) for a in arrays]
    result = function(node.attributes, arrays)
    if result is None:
        return None
    if node.op == "Cast":
        elem = int(node.attributes["to"])
    made = []
    for one in result if isinstance(result, list) else [result]:
        array = np.asarray(one)
        if array.dtype.kind == "O" and not has_sizes(array):
            array = array.astype(numpy_type(elem))
        made.append(Value.of_array(array, None if array.dtype.kind != "O" else elem))
    return made


def _each(function: Callable[[Any, Any], Any]) -> Fold:
    """A function of pairs of numbers."""

    def compute(attributes: Attributes, arrays: list[Any]) -> Any:
        return np.asarray(np.frompyfunc(function, 2, 1)(arrays[0], arrays[1]), object)

    return compute


def _compare(function: Callable[[Any, Any], Any]) -> Fold:
    return lambda attributes, arrays: _each(function)(attributes, arrays).astype(bool)


def _quotient(a: Any, b: Any) -> Any:
    if not isinstance(a, Size) and not isinstance(b, Size):
        whole = abs(a) // abs(b)
        return whole if (a < 0) == (b < 0) else -whole
    if not isinstance(a, Size) or isinstance(b, Size) or a.low < 0 or b <= 0:
        raise SizeLimitError(f"the quotient of {a} and {b} depends on the values of variables")
    return a // int(b)


def _rest(attributes: Attributes, arrays: list[Any]) -> Any:
    """The rest with the divisor's sign, which with `fmod` is that of what is divided."""
    if attributes.get("fmod") and any((n.low if isinstance(n, Size) else n) < 0 for a in arrays for n in a.flat):
        return None
    return _each(lambda a, b: a % b)(attributes, arrays)


def _is_equal(a: Any, b: Any) -> bool:
    difference = a - b
    if not isinstance(difference, Size):
        return bool(difference == 0)
    if difference.low <= 0 <= difference.high:
        raise SizeLimitError(f"whether {a} is {b} depends on the values of variables")
    return False


def _cast_sizes(attributes: Attributes, arrays: list[Any]) -> Any:
    return arrays[0] if attributes.get("to") in (6, 7) else None


def _python(array: Any) -> Any:
    """Python numbers in place of numpy's, which sizes do not meet."""
    return None if array is None else np.asarray(array.astype(object), object)


def _reduce_sizes(function: Callable[..., Any]) -> Fold:
    def reduce(attributes: Attributes, arrays: list[Any]) -> Any:
        axes = _given(attributes, arrays, "axes", 1)
        if not axes and attributes.get("noop_with_empty_axes"):
            return arrays[0]
        along = tuple(axes) if axes else None
        return np.asarray(function(arrays[0], axis=along, keepdims=bool(attributes.get("keepdims", 1))), object)

    return reduce


def _ints(value: Any) -> list[int]:
    return [int(v) for v in np.asarray(value).reshape(-1)]


def _given(attributes: Attributes, arrays: list[Any], name: str, index: int) -> list[int] | None:
    """What is an attribute in old versions and an input in new ones."""
    if len(arrays) > index and arrays[index] is not None:
        return _ints(arrays[index])
    found = attributes.get(name)
    return None if found is None else _ints(found)


def _divide(attributes: Attributes, arrays: list[Any]) -> Any:
    a, b = arrays
    if a.dtype.kind == "f":
        return a / b
    if not np.all(b):
        return None
    return (np.sign(a) * np.sign(b) * (np.abs(a) // np.abs(b))).astype(a.dtype)


def _mod(attributes: Attributes, arrays: list[Any]) -> Any:
    a, b = arrays
    if a.dtype.kind != "f" and not np.all(b):
        return None
    return np.fmod(a, b) if attributes.get("fmod") else np.mod(a, b)


def _cast(attributes: Attributes, arrays: list[Any]) -> Any:
    number, source = attributes.get("to"), arrays[0]
    if not isinstance(number, int) or number == STRING or number in UNFOLDED:
        return None
    if source.dtype.kind == "O" or (source.dtype.kind == "f" and not np.isfinite(source).all()):
        return None
    return source.astype(numpy_type(number))


def _reduction(function: Callable[..., Any]) -> Fold:
    def reduce(attributes: Attributes, arrays: list[Any]) -> Any:
        x = arrays[0]
        axes = _given(attributes, arrays, "axes", 1)
        if not axes:
            if attributes.get("noop_with_empty_axes"):
                return x
            axes = list(range(x.ndim))
        if x.size == 0:
            return None
        return function(x, axis=tuple(axes), keepdims=bool(attributes.get("keepdims", 1))).astype(x.dtype)

    return reduce


def _slice(attributes: Attributes, arrays: list[Any]) -> Any:
    x = arrays[0]
    starts, ends = _given(attributes, arrays, "starts", 1) or [], _given(attributes, arrays, "ends", 2) or []
    axes = _given(attributes, arrays, "axes", 3) or list(range(len(starts)))
    steps = _given(attributes, arrays, "steps", 4) or [1] * len(starts)
    index: list[Any] = [slice(None)] * x.ndim
    for start, end, axis, step in zip(starts, ends, axes, steps):
        index[axis] = slice_of(start, end, step, x.shape[axis])
    return x[tuple(index)]


def slice_of(start: int, end: int, step: int, size: int) -> slice:
    """A slice of ONNX as one of Python: with a negative step both ends are cut off inside, also a start before all."""
    if not size:
        return slice(0, 0)
    if step > 0:
        return slice(*slice(start, end, step).indices(size))
    first, last = (min(n + size if n < 0 else n, size - 1) for n in (start, end))
    return slice(max(first, 0), last if last >= 0 else None, step)


def _gather(attributes: Attributes, arrays: list[Any]) -> Any:
    x, index = arrays
    axis = attributes.get("axis", 0)
    size = x.shape[axis] if x.ndim else 0
    if index.size and (index.min() < -size or index.max() >= size):
        return None
    return np.take(x, index, axis=axis)


def _concat(attributes: Attributes, arrays: list[Any]) -> Any:
    return np.concatenate(arrays, axis=attributes.get("axis", 1))


def _unsqueeze(attributes: Attributes, arrays: list[Any]) -> Any:
    axes = _given(attributes, arrays, "axes", 1)
    return np.expand_dims(arrays[0], tuple(axes or ()))


def _squeeze(attributes: Attributes, arrays: list[Any]) -> Any:
    axes = _given(attributes, arrays, "axes", 1)
    return np.squeeze(arrays[0], None if axes is None else tuple(axes))


def _reshape(attributes: Attributes, arrays: list[Any]) -> Any:
    x, shape = arrays[0], _given(attributes, arrays, "shape", 1) or []
    if not attributes.get("allowzero"):
        shape = [x.shape[i] if s == 0 else s for i, s in enumerate(shape)]
    return x.reshape(shape)


def _split(attributes: Attributes, arrays: list[Any]) -> Any:
    sizes = _given(attributes, arrays, "split", 1)
    return None if sizes is None else np.split(arrays[0], np.cumsum(sizes)[:-1], axis=attributes.get("axis", 0))


def _range(attributes: Attributes, arrays: list[Any]) -> Any:
    start, limit, step = (a.reshape(-1)[0] for a in arrays)
    if step == 0:
        return None
    count = max(0, math.ceil((float(limit) - float(start)) / float(step)))
    if count > MOST_FOLDED:
        return None
    return (start + np.arange(count) * step).astype(arrays[0].dtype)


def _expand(attributes: Attributes, arrays: list[Any]) -> Any:
    shape = np.broadcast_shapes(arrays[0].shape, tuple(_ints(arrays[1])))
    return np.broadcast_to(arrays[0], shape) if math.prod(shape) <= MOST_FOLDED else None


def _tile(attributes: Attributes, arrays: list[Any]) -> Any:
    if len(arrays) != 2 or math.prod(_ints(arrays[1])) * arrays[0].size > MOST_FOLDED:
        return None
    return np.tile(arrays[0], _ints(arrays[1]))


def _constant_of_shape(attributes: Attributes, arrays: list[Any]) -> Any:
    shape = _ints(arrays[0])
    value = attributes.get("value")
    if math.prod(shape) > MOST_FOLDED or (value is not None and value.elem in UNFOLDED):
        return None
    return np.zeros(shape, np.float32) if value is None else np.full(shape, value.array().reshape(-1)[0])


def _variadic(function: Callable[..., Any]) -> Fold:
    def compute(attributes: Attributes, arrays: list[Any]) -> Any:
        result = arrays[0]
        for other in arrays[1:]:
            result = function(result, other)
        return result

    return compute


def _plain(function: Callable[..., Any]) -> Fold:
    """A numpy function of all inputs; of the old versions only what broadcasts as numpy does."""

    def compute(attributes: Attributes, arrays: list[Any]) -> Any:
        return None if attributes.get("broadcast") else function(*arrays)

    return compute


FOLDS: Final[dict[str, Fold]] = {
    "Add": _plain(np.add), "Sub": _plain(np.subtract), "Mul": _plain(np.multiply), "Div": _divide, "Mod": _mod,
    "Neg": _plain(np.negative), "Abs": _plain(np.abs), "Floor": _plain(np.floor), "Ceil": _plain(np.ceil),
    "Sqrt": _plain(np.sqrt), "Sign": _plain(np.sign), "Not": _plain(np.logical_not),
    "And": _plain(np.logical_and), "Or": _plain(np.logical_or), "Xor": _plain(np.logical_xor),
    "Equal": _plain(np.equal), "Less": _plain(np.less), "Greater": _plain(np.greater),
    "LessOrEqual": _plain(np.less_equal), "GreaterOrEqual": _plain(np.greater_equal),
    "Min": _variadic(np.minimum), "Max": _variadic(np.maximum), "Where": _plain(np.where),
    "Identity": _plain(lambda x: x), "Cast": _cast, "CastLike": _plain(lambda x, like: x.astype(like.dtype)),
    "Gather": _gather, "Slice": _slice, "Concat": _concat, "Unsqueeze": _unsqueeze, "Squeeze": _squeeze,
    "Reshape": _reshape, "Split": _split, "Range": _range, "Expand": _expand, "Tile": _tile,
    "ConstantOfShape": _constant_of_shape,
    "Transpose": lambda a, x: np.transpose(x[0], a.get("perm")),
    "ReduceProd": _reduction(np.prod), "ReduceSum": _reduction(np.sum), "ReduceMax": _reduction(np.max),
    "ReduceMin": _reduction(np.min),
    "NonZero": _plain(lambda x: np.stack(np.nonzero(x)).astype(np.int64) if x.ndim else None),
}  # fmt: skip

# The same of numbers of which some are sizes: what is not here is computed by a device, for the values at launch.
FIRST_ONLY: Final = frozenset(
    ("Gather", "Slice", "Unsqueeze", "Squeeze", "Reshape", "Split", "Transpose", "ReduceProd", "ReduceSum")
)
SIZE_FOLDS: Final[dict[str, Fold]] = {
    name: FOLDS[name]
    for name in ("Identity", "Gather", "Slice", "Concat", "Unsqueeze", "Squeeze", "Reshape", "Split", "Transpose")
} | {
    "Add": _each(lambda a, b: a + b), "Sub": _each(lambda a, b: a - b), "Mul": _each(lambda a, b: a * b),
    "Div": _each(_quotient), "Mod": _rest, "Neg": lambda attributes, arrays: arrays[0] * -1,
    "Equal": _compare(_is_equal), "Less": _compare(lambda a, b: a < b), "Greater": _compare(lambda a, b: a > b),
    "LessOrEqual": _compare(lambda a, b: a <= b), "GreaterOrEqual": _compare(lambda a, b: a >= b),
    "Where": _plain(lambda c, a, b: np.where(c, a, b)), "Cast": _cast_sizes,
    "Min": _variadic(lambda a, b: _each(lambda x, y: x if x <= y else y)({}, [a, b])),
    "Max": _variadic(lambda a, b: _each(lambda x, y: x if x >= y else y)({}, [a, b])),
    "ReduceProd": _reduce_sizes(np.prod), "ReduceSum": _reduce_sizes(np.sum),
}  # fmt: skip
