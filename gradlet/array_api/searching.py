"""Finding, taking, sorting, and the sets of values that arrays hold."""

from __future__ import annotations

from typing import Any, NamedTuple

from gradlet.array_api.arguments import array, needs, scalar_type
from gradlet.base.dtype import dtypes, promote
from gradlet.base.errors import ArgumentError, DTypeError, ShapeError
from gradlet.ops.arguments import axis_number
from gradlet.tensor.tensor import Tensor


class UniqueAll(NamedTuple):
    """What `unique_all` gives."""

    values: Tensor
    indices: Tensor
    inverse_indices: Tensor
    counts: Tensor


class UniqueCounts(NamedTuple):
    """What `unique_counts` gives."""

    values: Tensor
    counts: Tensor


class UniqueInverse(NamedTuple):
    """What `unique_inverse` gives."""

    values: Tensor
    inverse_indices: Tensor


def argmax(x: Tensor, /, *, axis: int | None = None, keepdims: bool = False) -> Tensor:
    """Where the largest element along an axis (of all if None) is; the first one."""
    return needs(array(x, "argmax"), "argmax", "numeric").argmax(axis, keepdims)


def argmin(x: Tensor, /, *, axis: int | None = None, keepdims: bool = False) -> Tensor:
    """Where the smallest element along an axis (of all if None) is; the first one."""
    return needs(array(x, "argmin"), "argmin", "numeric").argmin(axis, keepdims)


def nonzero(x: Tensor, /) -> tuple[Tensor, ...]:
    """Indices of the elements that are not zero, an array an axis. Computes `x` now.

    Raises:
        ShapeError: no axes.
    """
    if not array(x, "nonzero").ndim:
        raise ShapeError("nonzero: an array without axes has no indices; use reshape")
    rows = x.nonzero().cast(dtypes.default_int)
    return tuple([rows[:, axis] for axis in range(x.ndim)])


def searchsorted(x1: Tensor, x2: Tensor, /, *, side: str = "left", sorter: Tensor | None = None) -> Tensor:
    """Where the values of x2 belong in the sorted x1: before equal ones (left) or behind them (right).

    Raises:
        ArgumentError: another side.
    """
    if side not in ("left", "right"):
        raise ArgumentError(f"searchsorted: side {side!r} must be 'left' or 'right'")
    dtype = promote(array(x1, "searchsorted", "x1").dtype, array(x2, "searchsorted", "x2").dtype)
    ordered = x1 if sorter is None else take(x1, sorter, axis=0)
    found = ordered.cast(dtype).searchsorted(x2.cast(dtype), right=side == "right")
    return found.cast(dtypes.default_int)


def where(condition: Tensor, x1: Any, x2: Any, /) -> Tensor:
    """x1 where the condition is True, else x2 (arrays or Python numbers)."""
    choice = array(condition, "where", "condition").cast(dtypes.bool)
    if not isinstance(x1, Tensor) and not isinstance(x2, Tensor):
        kinds = [dtypes.of(v) for v in (x1, x2) if isinstance(v, (bool, int, float))]
        if len(kinds) != 2:
            names = f"{type(x1).__name__} and {type(x2).__name__}"
            raise DTypeError(f"where: x1 and x2 must be arrays or Python numbers, got {names}; use asarray")
        dtype = promote(kinds[0], kinds[1])
    elif isinstance(x1, Tensor) and isinstance(x2, Tensor):
        dtype = promote(x1.dtype, x2.dtype)
    else:
        tensor, number = (x1, x2) if isinstance(x1, Tensor) else (x2, x1)
        dtype = scalar_type(number, tensor.dtype, "where")
    first, second = [
        v.cast(dtype) if isinstance(v, Tensor) else Tensor.constant(v, (), dtype, choice.place, False) for v in (x1, x2)
    ]
    return choice.where(first, second)


# indexing
def take(x: Tensor, indices: Tensor, /, *, axis: int | None = None) -> Tensor:
    """The elements with these indices along an axis, which may be left out where there is one axis.

    Raises:
        ArgumentError: the axis is left out.
    """
    ndim = array(x, "take").ndim
    array(indices, "take", "indices")
    if axis is None and ndim != 1:
        raise ArgumentError(f"take: axis is needed for an array of {ndim} axes")
    number = axis_number(0 if axis is None else axis, ndim, "take")
    return x[(*[slice(None)] * number, indices)]


def take_along_axis(x: Tensor, indices: Tensor, /, *, axis: int = -1) -> Tensor:
    """For each place of `indices` the element of `x` with that index along the axis; the other axes broadcast.

    Raises:
        ShapeError: different numbers of axes.
    """
    array(indices, "take_along_axis", "indices")
    number = axis_number(axis, array(x, "take_along_axis").ndim, "take_along_axis")
    if x.ndim != indices.ndim:
        raise ShapeError(f"take_along_axis: shapes {x.shape} and {indices.shape} must have the same number of axes")
    size = x.shape[number]
    return x.take_along_dim(indices.lt(0).where(indices.add(size), indices), number)


# sorting
def argsort(x: Tensor, /, *, axis: int = -1, descending: bool = False, stable: bool = True) -> Tensor:
    """The order that sorts an axis; equal elements keep theirs."""
    return needs(array(x, "argsort"), "argsort", "numeric").argsort(axis, descending)


def sort(x: Tensor, /, *, axis: int = -1, descending: bool = False, stable: bool = True) -> Tensor:
    """The elements of an axis in order."""
    return needs(array(x, "sort"), "sort", "numeric").sort(axis, descending)[0]


# sets
def unique_values(x: Tensor, /) -> Tensor:
    """The distinct values, sorted; every NaN is one of its own. Computes `x` now."""
    return unique_all(x).values


def unique_counts(x: Tensor, /) -> UniqueCounts:
    """The distinct values, and how often each occurs."""
    found = unique_all(x)
    return UniqueCounts(found.values, found.counts)


def unique_inverse(x: Tensor, /) -> UniqueInverse:
    """The distinct values, and for each element of `x` which of them it is."""
    found = unique_all(x)
    return UniqueInverse(found.values, found.inverse_indices)


def unique_all(x: Tensor, /) -> UniqueAll:
    """The distinct values, where each occurs first, for each element of `x` which of them it is, and how often each
    occurs. Every NaN is a value of its own. Computes `x` now.
    """
    kind = dtypes.default_int
    flat = array(x, "unique").reshape(-1)
    size = flat.shape[0]
    if not size:
        none = Tensor.empty(0, dtype=kind, device=x.device)
        return UniqueAll(flat, none, Tensor.empty(*x.shape, dtype=kind, device=x.device), none)
    ordered, order = flat.sort()
    begins = Tensor.ones(1, dtype=dtypes.bool, device=x.device)
    if size > 1:
        begins = begins.cat(ordered[1:].ne(ordered[:-1]))
    begins = begins.realize()
    starts = begins.nonzero().reshape(-1).cast(kind)
    ends = starts[1:].cat(Tensor([size], device=x.device, dtype=kind))
    number = begins.cast(kind).cumsum(0, dtype=kind).sub(1)
    inverse = Tensor.zeros(size, dtype=kind, device=x.device).scatter(0, order.cast(kind), number)
    first = order.cast(kind)[starts]
    return UniqueAll(ordered[starts], first, inverse.reshape(*x.shape), ends.sub(starts))
