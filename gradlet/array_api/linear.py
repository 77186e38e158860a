"""Products of matrices and vectors."""

from __future__ import annotations

from collections.abc import Sequence

from gradlet.array_api.arguments import array, pair
from gradlet.base.errors import ArgumentError, ShapeError
from gradlet.ops.arguments import axis_number, broadcast_shapes
from gradlet.tensor.tensor import Tensor


def matmul(x1: Tensor, x2: Tensor, /) -> Tensor:
    """The matrix product; leading axes broadcast, a vector counts as a row on the left and a column on the right."""
    left, right = pair(array(x1, "matmul", "x1"), array(x2, "matmul", "x2"), "matmul")
    return left.matmul(right, dtype=left.dtype)


def matrix_transpose(x: Tensor, /) -> Tensor:
    """The last two axes exchanged.

    Raises:
        ShapeError: fewer than two axes.
    """
    if array(x, "matrix_transpose").ndim < 2:
        raise ShapeError(f"matrix_transpose: shape {x.shape} is no matrix")
    return x.transpose(-1, -2)


def tensordot(x1: Tensor, x2: Tensor, /, *, axes: int | tuple[Sequence[int], Sequence[int]] = 2) -> Tensor:
    """The sum of products over axes: the last `axes` of x1 with the first of x2, or axes by number.

    Raises:
        ArgumentError: `axes` is something else.
        ShapeError: sizes of these axes that differ.
    """
    left, right = pair(array(x1, "tensordot", "x1"), array(x2, "tensordot", "x2"), "tensordot")
    if isinstance(axes, int):
        if axes > min(left.ndim, right.ndim) or axes < 0:
            raise ShapeError(f"tensordot: shapes {left.shape} and {right.shape} do not have {axes} axes to sum over")
        first, second = list(range(left.ndim - axes, left.ndim)), list(range(axes))
    else:
        if not isinstance(axes, (tuple, list)) or [isinstance(a, (tuple, list)) for a in axes] != [True, True]:
            raise ArgumentError(f"tensordot: axes must be a number or two lists of axes, got {axes!r}")
        first = [axis_number(a, left.ndim, "tensordot") for a in axes[0]]
        second = [axis_number(a, right.ndim, "tensordot") for a in axes[1]]
    sizes = [left.shape[a] for a in first]
    if sizes != [right.shape[a] for a in second]:
        raise ShapeError(
            f"tensordot: axes {tuple(first)} of shape {left.shape} and axes {tuple(second)} of shape {right.shape} "
            "have different sizes"
        )
    kept_left = [a for a in range(left.ndim) if a not in first]
    kept_right = [a for a in range(right.ndim) if a not in second]
    shape = [left.shape[a] for a in kept_left] + [right.shape[a] for a in kept_right]
    inner = 1
    for size in sizes:
        inner *= size
    outer = 1
    for a in kept_left:
        outer *= left.shape[a]
    columns = 1
    for a in kept_right:
        columns *= right.shape[a]
    rows = left.permute(*kept_left, *first).reshape(outer, inner)
    return matmul(rows, right.permute(*second, *kept_right).reshape(inner, columns)).reshape(*shape)


def vecdot(x1: Tensor, x2: Tensor, /, *, axis: int = -1) -> Tensor:
    """The sum of products along an axis, counted from the last one; the other axes broadcast.

    Raises:
        ShapeError: different sizes of that axis.
    """
    left, right = pair(array(x1, "vecdot", "x1"), array(x2, "vecdot", "x2"), "vecdot")
    first = left.moveaxis(axis_number(axis, left.ndim, "vecdot"), -1)
    second = right.moveaxis(axis_number(axis, right.ndim, "vecdot"), -1)
    if first.shape[-1:] != second.shape[-1:]:
        raise ShapeError(f"vecdot: shapes {x1.shape} and {x2.shape} have different sizes on axis {axis}")
    shape = broadcast_shapes([first.shape, second.shape], "vecdot")
    product = first.expand(shape).mul(second.expand(shape))
    return product.sum(-1, dtype=left.dtype)
