"""Statistics along axes, truth of all or any elements, differences, running sums and products."""

from __future__ import annotations

from typing import Any

from gradlet.array_api.arguments import Axis, array, as_dtype, needs
from gradlet.array_api.datatypes import integer_sum_type, result_type
from gradlet.base.dtype import DType, dtypes
from gradlet.base.errors import ArgumentError
from gradlet.ops.arguments import axis_number, integer
from gradlet.tensor.tensor import Tensor


def all(x: Tensor, /, *, axis: Axis = None, keepdims: bool = False) -> Tensor:
    """Whether all elements along axes are True (not zero); True where there are none."""
    return array(x, "all").all(axis, keepdims)


def any(x: Tensor, /, *, axis: Axis = None, keepdims: bool = False) -> Tensor:
    """Whether any element along axes is True (not zero); False where there are none."""
    return array(x, "any").any(axis, keepdims)


def max(x: Tensor, /, *, axis: Axis = None, keepdims: bool = False) -> Tensor:
    """The largest element along axes; NaN where there is one."""
    return needs(array(x, "max"), "max", "numeric").max(axis, keepdims)


def min(x: Tensor, /, *, axis: Axis = None, keepdims: bool = False) -> Tensor:
    """The smallest element along axes; NaN where there is one."""
    return needs(array(x, "min"), "min", "numeric").min(axis, keepdims)


def mean(x: Tensor, /, *, axis: Axis = None, keepdims: bool = False) -> Tensor:
    """The mean along axes."""
    return needs(array(x, "mean"), "mean", "real floating").mean(axis, keepdims)


def sum(x: Tensor, /, *, axis: Axis = None, dtype: Any = None, keepdims: bool = False) -> Tensor:
    """The sum along axes, in `dtype`; narrow integers are widened to the default integer."""
    kind = _sum_type(array(x, "sum"), dtype)
    return x.cast(kind).sum(axis, keepdims, dtype=kind)


def prod(x: Tensor, /, *, axis: Axis = None, dtype: Any = None, keepdims: bool = False) -> Tensor:
    """The product along axes, in `dtype`; narrow integers are widened to the default integer."""
    kind = _sum_type(array(x, "prod"), dtype)
    return x.cast(kind).prod(axis, keepdims, dtype=kind)


def std(x: Tensor, /, *, axis: Axis = None, correction: float = 0.0, keepdims: bool = False) -> Tensor:
    """The standard deviation along axes: squares are divided by their number less `correction`."""
    return needs(array(x, "std"), "std", "real floating").std(axis, keepdims, correction)


def var(x: Tensor, /, *, axis: Axis = None, correction: float = 0.0, keepdims: bool = False) -> Tensor:
    """The variance along axes: squares are divided by their number less `correction`."""
    return needs(array(x, "var"), "var", "real floating").var(axis, keepdims, correction)


def cumulative_sum(
    x: Tensor, /, *, axis: int | None = None, dtype: Any = None, include_initial: bool = False
) -> Tensor:
    """Running sums along an axis, which begin with 0 where `include_initial`."""
    return _cumulative("cumulative_sum", x, axis, dtype, 0 if include_initial else None)


def cumulative_prod(
    x: Tensor, /, *, axis: int | None = None, dtype: Any = None, include_initial: bool = False
) -> Tensor:
    """Running products along an axis, which begin with 1 where `include_initial`."""
    return _cumulative("cumulative_prod", x, axis, dtype, 1 if include_initial else None)


def _cumulative(what: str, x: Tensor, axis: int | None, dtype: Any, initial: int | None) -> Tensor:
    ndim = array(x, what).ndim
    if axis is None and ndim > 1:
        raise ArgumentError(f"{what}: axis is needed for an array of {ndim} axes")
    if not ndim:
        x, axis = x.reshape(1), 0
    kind = _sum_type(x, dtype)
    along = axis_number(0 if axis is None else axis, x.ndim, what)
    x = x.cast(kind)
    result = x.cumsum(along, dtype=kind) if what == "cumulative_sum" else x.cumprod(along, dtype=kind)
    if initial is None:
        return result
    first = x.constant_like(initial, (*x.shape[:along], 1, *x.shape[along + 1 :]))
    return first.cat(result, dim=along)


def count_nonzero(x: Tensor, /, *, axis: Axis = None, keepdims: bool = False) -> Tensor:
    """How many elements along axes are not zero."""
    kind = dtypes.default_int
    return array(x, "count_nonzero").ne(0).cast(kind).sum(axis, keepdims, dtype=kind)


def diff(
    x: Tensor, /, *, axis: int = -1, n: int = 1, prepend: Tensor | None = None, append: Tensor | None = None
) -> Tensor:
    """Differences of neighbours along an axis, `n` times; `prepend` and `append` are joined to `x` first (if n > 0).

    Raises:
        ArgumentError: n is negative, or no integer.
    """
    parts = [array(part, "diff", name) for part, name in ((prepend, "prepend"), (x, "x"), (append, "append"))
             if part is not None]  # fmt: skip
    kind = result_type(*parts)
    first, *rest = [part.cast(kind) for part in parts]
    n = integer(n, "diff", "n", 0)
    if n == 0:
        return x.cast(kind)
    return (first.cat(*rest, dim=axis) if rest else first).diff(n, axis)


def _sum_type(x: Tensor, dtype: Any) -> DType:
    return integer_sum_type(x.dtype) if dtype is None else as_dtype(dtype)
