"""Reductions over axes, and what is made of them: largest elements and their places, softmax.

Source: the pages of these operators in the ONNX specification, "Operators" of domain ai.onnx.
"""

from __future__ import annotations

from collections.abc import Callable
from math import prod
from typing import Any, Final

from gradlet.base.dtype import dtypes
from gradlet.onnx.registry import operator
from gradlet.onnx.runner import Call
from gradlet.onnx.values import Ints, Number
from gradlet.tensor.tensor import Tensor

Reduce = Callable[[Tensor, "tuple[int, ...]", bool], Tensor]


def _least(x: Tensor, axes: tuple[int, ...], keep: bool) -> Tensor:
    return _extreme(x, axes, keep, Tensor.min, x.dtype.max)


def _largest(x: Tensor, axes: tuple[int, ...], keep: bool) -> Tensor:
    return _extreme(x, axes, keep, Tensor.max, x.dtype.min)


def _extreme(x: Tensor, axes: tuple[int, ...], keep: bool, function: Any, nothing: Any) -> Tensor:
    """The largest or smallest of no elements is the neutral one."""
    if any(x.shape[a] == 0 for a in axes):
        sizes = [1 if a in axes else s for a, s in enumerate(x.shape) if keep or a not in axes]
        return Tensor.full(sizes, nothing, dtype=x.dtype, device=x.device)
    return function(x, axes, keep)


def _mean(x: Tensor, axes: tuple[int, ...], keep: bool) -> Tensor:
    if x.dtype.is_int:
        return x.sum(axes, keep).div(prod(x.shape[a] for a in axes), rounding_mode="trunc")
    return x.mean(axes, keep)


def _log_sum_exp(x: Tensor, axes: tuple[int, ...], keep: bool) -> Tensor:
    if any(x.shape[a] == 0 for a in axes):
        return _largest(x, axes, keep)
    source = x if x.dtype.is_float else x.cast(dtypes.float32)
    return source.logsumexp(axes, keep)


REDUCTIONS: Final[dict[str, Reduce]] = {
    "ReduceSum": lambda x, axes, keep: x.sum(axes, keep),
    "ReduceMean": _mean,
    "ReduceProd": lambda x, axes, keep: x.prod(axes, keep),
    "ReduceMax": _largest,
    "ReduceMin": _least,
    "ReduceL1": lambda x, axes, keep: x.abs().sum(axes, keep),
    "ReduceL2": lambda x, axes, keep: _wide(x).square().sum(axes, keep).sqrt(),
    "ReduceSumSquare": lambda x, axes, keep: x.square().sum(axes, keep),
    "ReduceLogSum": lambda x, axes, keep: _wide(x).sum(axes, keep).log(),
    "ReduceLogSumExp": _log_sum_exp,
}


def _wide(x: Tensor) -> Tensor:
    return x if x.dtype.is_float else x.cast(dtypes.float64)


def _reduction(name: str, function: Reduce) -> None:
    @operator(name)
    def apply(
        x: Tensor, places: Ints | None = None, *, axes: list[int] | None = None, keepdims: int = 1,
        noop_with_empty_axes: int = 0,
    ) -> Tensor:  # fmt: skip
        wanted = axes if places is None else places
        if not wanted and noop_with_empty_axes:
            if name in ("ReduceSum", "ReduceMean", "ReduceProd", "ReduceMax", "ReduceMin"):
                return x
            return function(x.unsqueeze(0), (0,), False).cast(x.dtype)
        along = tuple(sorted({a % x.ndim for a in wanted})) if wanted else tuple(range(x.ndim))
        if not along:
            return function(x.unsqueeze(0), (0,), False).cast(x.dtype)
        return function(x, along, bool(keepdims)).cast(x.dtype)


for _name, _function in REDUCTIONS.items():
    _reduction(_name, _function)


@operator("ArgMax")
def argmax(x: Tensor, *, axis: int = 0, keepdims: int = 1, select_last_index: int = 0) -> Tensor:
    """The place of the largest element, the first or the last of equal ones."""
    return _place(x, axis, keepdims, select_last_index, Tensor.argmax)


@operator("ArgMin")
def argmin(x: Tensor, *, axis: int = 0, keepdims: int = 1, select_last_index: int = 0) -> Tensor:
    """The place of the smallest element, the first or the last of equal ones."""
    return _place(x, axis, keepdims, select_last_index, Tensor.argmin)


def _place(x: Tensor, axis: int, keepdims: int, last: int, function: Any) -> Tensor:
    if not last:
        return function(x, axis, keepdim=bool(keepdims)).cast(dtypes.int64)
    found = function(x.flip(axis), axis, keepdim=bool(keepdims)).cast(dtypes.int64)
    return found * -1 + (x.shape[axis] - 1)


# softmax: over all axes from `axis` on before version 13
def _flattened(call: Call, x: Tensor, axis: int | None, function: Callable[[Tensor, int], Tensor]) -> Tensor:
    if call.version >= 13:
        return function(x, -1 if axis is None else axis)
    at = 1 if axis is None else axis % max(x.ndim, 1)
    if at == x.ndim - 1:
        return function(x, at)
    rows = prod(x.shape[:at])
    return function(x.reshape(rows, -1), 1).reshape(x.shape)


@operator("Softmax")
def softmax(call: Call, x: Tensor, *, axis: int | None = None) -> Tensor:
    """`exp(x)` in proportion to its sum."""
    return _flattened(call, x, axis, lambda y, a: y.softmax(a))


@operator("LogSoftmax")
def log_softmax(call: Call, x: Tensor, *, axis: int | None = None) -> Tensor:
    """The logarithm of softmax."""
    return _flattened(call, x, axis, lambda y, a: y.log_softmax(a))


@operator("Hardmax")
def hardmax(call: Call, x: Tensor, *, axis: int | None = None) -> Tensor:
    """1 at the first largest element, else 0."""

    def mark(y: Tensor, a: int) -> Tensor:
        hot = y.argmax(a, keepdim=True)
        sizes = [1] * y.ndim
        sizes[a] = y.shape[a]
        return (Tensor.arange(y.shape[a], device=y.device).reshape(sizes) == hot).cast(y.dtype)

    return _flattened(call, x, axis, mark)


@operator("TopK")
def topk(
    x: Tensor, count: Number | None = None, *, axis: int = -1, k: int | None = None, largest: int = 1, sorted: int = 1
) -> tuple[Tensor, Tensor]:
    """The largest (or smallest) elements along an axis, and where they are."""
    wanted = int(count if count is not None else k or 0)
    if wanted == 0:
        sizes = list(x.shape)
        sizes[axis] = 0
        none = Tensor.zeros(*sizes, dtype=x.dtype, device=x.device)
        return none, none.cast(dtypes.int64)
    values, places = x.topk(wanted, axis, bool(largest), True)
    return values, places.cast(dtypes.int64)
