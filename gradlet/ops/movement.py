"""Core mixin: one method per movement op. No arithmetic happens, only a map of indices.

Whoever mixes this in (graph node, Tensor) provides `shape` and `move`.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import TYPE_CHECKING, Any, Final, Self, TypeVar

from gradlet.base.errors import DTypeError, ShapeError
from gradlet.ops import varying
from gradlet.ops.arguments import (
    axis_number,
    axis_numbers,
    countable,
    has_size,
    integers,
    largest_sizes,
    pairs,
    resolve_shape,
)
from gradlet.ops.op import AxesArg, Op, PadArg, ShapeArg, ShrinkArg, StrideArg, WindowArg

T = TypeVar("T")
_RESHAPE: Final = Op.RESHAPE
_EXPAND: Final = Op.EXPAND


def operand(value: T, what: str, name: str) -> T:
    """The argument itself, which must be a tensor.

    Raises:
        DTypeError: it is something else.
    """
    if not isinstance(value, MovementMixin):
        raise DTypeError(f"{what}: {name} must be a Tensor, got {type(value).__name__}; make it one with Tensor(...)")
    return value


class MovementMixin:
    """Movement. `move(op, arg)` applies one movement op whose argument is already checked."""

    __slots__ = ()

    if TYPE_CHECKING:

        @property
        def shape(self) -> tuple[int, ...]:
            """Sizes of the axes."""

    def move(self, op: Op, arg: Any) -> Self:
        """Apply a movement op."""
        raise NotImplementedError

    def as_value(self) -> Self:
        """The same value as a tensor of its own: writing into one of them does not change the other."""
        return self

    def reshape(self, *shape: Any) -> Self:
        """The same elements in row-major order under a new shape.

        Args:
            shape: sizes; one may be -1 (computed), None keeps the size of that axis.

        Raises:
            ShapeError: the number of elements would change.

        >>> Tensor.arange(6).reshape(2, -1).shape
        (2, 3)
        """
        old = self.shape
        new = resolve_shape(shape, old, "reshape")
        return self if new == old else self.move(_RESHAPE, ShapeArg(new))

    def expand(self, *shape: Any) -> Self:
        """Repeat axes of size 1 without copying; new axes may be added at the left.

        Args:
            shape: sizes; -1 or None keeps the size of that axis.

        Raises:
            ShapeError: an axis that is not of size 1 would change, or there would be more than 2**62 elements.

        >>> Tensor([[1], [2]]).expand(2, 3).tolist()
        [[1, 1, 1], [2, 2, 2]]
        """
        old = self.shape
        values = shape[0] if len(shape) == 1 and isinstance(shape[0], (tuple, list)) else shape
        if has_size(values):
            wanted = tuple([-1 if v is None else v for v in values])
        else:
            wanted = integers([-1 if v is None else v for v in values], "expand")
        if wanted == old:
            return self
        extra = len(wanted) - len(old)
        if extra < 0:
            raise ShapeError(f"expand: shape {old} has more axes than {wanted}; reshape it first")
        aligned = (1,) * extra + old
        new = tuple([have if want == -1 else want for have, want in zip(aligned, wanted)])
        for have, want in zip(aligned, new):
            if want != have and (have != 1 or (want.__class__ is int and want < 0)):
                raise ShapeError(f"expand: shape {old} does not expand to {wanted}; only axes of size 1 can grow")
        countable(new, "expand")
        source = self.move(_RESHAPE, ShapeArg(aligned)) if extra else self
        if new == aligned:
            return source
        return source.with_sizes(new) if has_size(new) else source.move(_EXPAND, ShapeArg(new))

    def with_sizes(self, shape: tuple[Any, ...]) -> Self:
        """Expanded to a shape with sizes that are known only at launch."""
        raise NotImplementedError

    def permute(self, *order: Any) -> Self:
        """Axes reordered: axis `i` of the result is axis `order[i]` of this.

        Raises:
            ShapeError: `order` does not name every axis once.
            IndexingError: no such axis.

        >>> Tensor.zeros(2, 3, 4).permute(2, 0, 1).shape
        (4, 2, 3)
        """
        ndim = len(self.shape)
        wanted = integers(order, "permute")
        axes = tuple([axis_number(a, ndim, "permute") for a in wanted]) if ndim else ()
        if sorted(axes) != list(range(ndim)) or len(wanted) != ndim:
            raise ShapeError(f"permute: {wanted} must name each of the {ndim} axes once")
        return self if axes == tuple(range(ndim)) else self.move(Op.PERMUTE, AxesArg(axes))

    def pad_zeros(self, pads: Sequence[tuple[int, int]]) -> Self:
        """Zeros before and after each axis; `pads` has an entry (before, after) an axis, none negative."""
        checked = tuple([(int(before), int(after)) for before, after in pads])
        if len(checked) != len(self.shape) or any(before < 0 or after < 0 for before, after in checked):
            raise ShapeError(f"pad: {checked} does not fit shape {self.shape}: one (before, after) >= 0 for every axis")
        if not any(before or after for before, after in checked):
            return self
        for size, (_, after) in zip(self.shape, checked):
            if after and has_size((size,)):
                raise ShapeError(
                    f"pad: zeros behind an axis of size {size}, which is known only at launch; use a fixed size, as "
                    "x.pad_to(...) gives"
                )
        countable(tuple([size + before + after for size, (before, after) in zip(self.shape, checked)]), "pad")
        return self.move(Op.PAD, PadArg(checked))

    def shrink(self, arg: Sequence[tuple[int, int] | None]) -> Self:
        """The box `[low, high)` of each axis; None keeps the whole axis.

        Raises:
            ShapeError: a box that does not lie inside the axis, too many entries, or no pairs of integers.

        >>> Tensor.arange(6).reshape(2, 3).shrink((None, (1, 3))).tolist()
        [[1, 2], [4, 5]]
        """
        shape = self.shape
        full = [(0, s) for s in shape]
        for axis, interval in enumerate(pairs(arg, len(shape), "shrink")):
            if interval is not None:
                low, high = interval
                if high.__class__ is not int and low == 0 and high != shape[axis]:
                    return self._shrink_to_sizes(arg)
                if not 0 <= low <= high <= shape[axis]:
                    raise ShapeError(f"shrink: [{low}, {high}) is not inside axis {axis} of size {shape[axis]}")
                full[axis] = (low, high)
        bounds = tuple(full)
        if all(low == 0 and high == size for (low, high), size in zip(bounds, shape)):
            return self
        return self.move(Op.SHRINK, ShrinkArg(bounds))

    def _shrink_to_sizes(self, arg: Sequence[tuple[int, Any] | None]) -> Self:
        """A box of which some sizes are known only at launch: first the largest box, then its first positions."""
        largest: list[tuple[int, int] | None] = []
        sizes: list[Any] = []
        for axis, have in enumerate(self.shape):
            interval = arg[axis] if axis < len(arg) else None
            low, high = (0, have) if interval is None else interval
            fixed = high.__class__ is int or high == have
            largest.append((low, high) if fixed else (0, *largest_sizes([high])))  # type: ignore[arg-type]
            sizes.append(high - low if fixed else high)
        return self.shrink(largest).with_sizes(tuple(sizes))

    def flip(self, *axis: Any) -> Self:
        """Let axes run backwards.

        Raises:
            IndexingError: no such axis.
            ArgumentError: an axis given twice.

        >>> Tensor([1, 2, 3]).flip(0).tolist()
        [3, 2, 1]
        """
        axes = axis_numbers(integers(axis, "flip"), len(self.shape), "flip")
        for unknown in [a for a in axes if has_size([self.shape[a]])]:
            return varying.flip(self.flip([a for a in axes if a != unknown]), unknown)  # type: ignore[no-any-return]
        axes = tuple([a for a in axes if self.shape[a] > 1])
        return self.move(Op.FLIP, AxesArg(axes)) if axes else self

    def take_every(self, *steps: Any) -> Self:
        """Every `steps[i]`-th element of axis `i`, from the first on; steps are positive, missing ones are 1."""
        shape = self.shape
        wanted = integers(steps, "take_every")
        if len(wanted) > len(shape) or any(s < 1 for s in wanted):
            raise ShapeError(f"take_every: steps {wanted} do not fit shape {shape}; give one positive step an axis")
        full = wanted + (1,) * (len(shape) - len(wanted))
        full = tuple([1 if size <= 1 else step for size, step in zip(shape, full)])
        return self if all(s == 1 for s in full) else self.move(Op.STRIDE, StrideArg(full))

    def window(self, axis: int, window_axis: int, stride: int = 1, dilation: int = 1) -> Self:
        """Slide along `axis`: element `o` of it becomes `o * stride + k * dilation`, `k` the index on `window_axis`.

        Raises:
            ShapeError: the window is longer than the axis.
        """
        shape = self.shape
        reach = dilation * (shape[window_axis] - 1) + 1
        if reach > shape[axis]:
            raise ShapeError(
                f"window: a window of {reach} elements does not fit axis {axis} of shape {shape}; pad it first"
            )
        size = (shape[axis] - reach) // stride + 1
        return self.move(Op.WINDOW, WindowArg(axis, window_axis, stride, dilation, size))

    def unwindow(self, axis: int, window_axis: int, stride: int, dilation: int, size: int) -> Self:
        """The adjoint of `window`: spread windows back over an axis of `size`, zeros where none reaches."""
        return self.move(Op.UNWINDOW, WindowArg(axis, window_axis, stride, dilation, size))

    def numel(self) -> int:
        """Number of elements.

        >>> Tensor.zeros(2, 3).numel()
        6
        """
        return prod(self.shape)

    @property
    def ndim(self) -> int:
        """Number of axes.

        >>> Tensor.zeros(2, 3).ndim
        2
        """
        return len(self.shape)
