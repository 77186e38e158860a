"""Composed mixin: reshaping, padding, splitting and joining, spelled with the core movement ops."""

from __future__ import annotations

from collections.abc import Sequence
from math import ceil, prod
from typing import Any, Final, Self, TypeVar

from gradlet.base.dtype import dtypes
from gradlet.base.errors import ArgumentError, DTypeError, IndexingError, ShapeError
from gradlet.ops import varying
from gradlet.ops.arguments import axis_number, has_size, integer, integers, pairs, sizes
from gradlet.ops.elementcount import element_count
from gradlet.ops.math import MathMixin

PAD_MODES: Final = ("constant", "reflect", "replicate", "circular")
CAT_WIDTH: Final = 16

T = TypeVar("T", bound="RearrangeMixin")


class RearrangeMixin(MathMixin):
    """Movement without a core op of its own."""

    __slots__ = ()

    def view(self, *shape: Any) -> Self:
        """Same as `reshape`.

        >>> Tensor.arange(6).view(3, 2).shape
        (3, 2)
        """
        return self.reshape(*shape)

    @element_count
    def size(self, dim: int | None = None) -> int | tuple[int, ...]:
        """The shape, or the size of one axis.

        >>> Tensor.zeros(2, 3).size(1)
        3
        """
        return self.shape if dim is None else self.shape[axis_number(dim, self.ndim, "size")]

    def transpose(self, dim0: int = 1, dim1: int = 0) -> Self:
        """Swap two axes.

        Raises:
            IndexingError: no such axis.

        >>> Tensor.zeros(2, 3).transpose(0, 1).shape
        (3, 2)
        """
        ndim = self.ndim
        first, second = axis_number(dim0, ndim, "transpose"), axis_number(dim1, ndim, "transpose")
        order = list(range(ndim))
        if order:
            order[first], order[second] = second, first
        return self.permute(order)

    @property
    def T(self) -> Self:
        """The two axes of a matrix swapped; with other ranks all axes reversed.

        >>> Tensor.zeros(2, 3).T.shape
        (3, 2)
        """
        return self.permute(tuple(range(self.ndim))[::-1])

    def squeeze(self, dim: int | Sequence[int] | None = None) -> Self:
        """Drop axes of size 1: all of them, or only `dim` if its size is 1.

        >>> Tensor.zeros(1, 3, 1).squeeze().shape
        (3,)
        """
        shape = self.shape
        if dim is None:
            return self.reshape(tuple([s for s in shape if s != 1]))
        dims = dim if isinstance(dim, (tuple, list)) else (dim,)
        dropped = {axis_number(d, len(shape), "squeeze") for d in dims}
        return self.reshape(tuple([s for a, s in enumerate(shape) if not (a in dropped and s == 1)]))

    def unsqueeze(self, dim: int) -> Self:
        """Add an axis of size 1 at `dim`.

        >>> Tensor.zeros(2, 3).unsqueeze(-1).shape
        (2, 3, 1)
        """
        position = axis_number(dim, self.ndim + 1, "unsqueeze")
        return self.reshape(self.shape[:position] + (1,) + self.shape[position:])

    def flatten(self, start_dim: int = 0, end_dim: int = -1) -> Self:
        """Join the axes `start_dim` to `end_dim` into one.

        >>> Tensor.zeros(2, 3, 4).flatten(1).shape
        (2, 12)
        """
        start, end = axis_number(start_dim, self.ndim, "flatten"), axis_number(end_dim, self.ndim, "flatten")
        if start > end:
            raise ArgumentError(f"flatten: start_dim {start_dim} lies after end_dim {end_dim}")
        shape = self.shape
        return self.reshape(shape[:start] + (prod(shape[start : end + 1]),) + shape[end + 1 :])

    def unflatten(self, dim: int, sizes: Sequence[int]) -> Self:
        """Split one axis into several; one size may be -1.

        >>> Tensor.zeros(2, 12).unflatten(1, (3, -1)).shape
        (2, 3, 4)
        """
        axis = axis_number(dim, self.ndim, "unflatten")
        shape = self.shape
        parts = integers((sizes,), "unflatten")
        if -1 in parts:
            known = -prod(parts)
            if parts.count(-1) > 1 or known <= 0 or shape[axis] % known:
                raise ShapeError(f"unflatten: axis {axis} of size {shape[axis]} does not divide into {parts}")
            parts = tuple([shape[axis] // known if p == -1 else p for p in parts])
        if min(parts, default=0) < 0 or prod(parts) != shape[axis]:
            raise ShapeError(f"unflatten: axis {axis} of size {shape[axis]} does not split into {parts}")
        return self.reshape(shape[:axis] + parts + shape[axis + 1 :])

    # padding
    def pad(self, padding: Sequence[Any], mode: str = "constant", value: float = 0.0) -> Self:
        """Grow (or with negative numbers crop) axes.

        Args:
            padding: either flat as torch has it, (left, right) from the last axis on, or one (before, after) or None
                for every axis from the first.
            mode: "constant", "reflect", "replicate" or "circular".
            value: what to fill with in constant mode.

        Raises:
            ShapeError: padding that does not fit the shape.
            ArgumentError: unknown mode.

        >>> Tensor([1, 2]).pad((1, 2), value=9).tolist()
        [9, 1, 2, 9, 9]
        """
        pads = self._pads(padding)
        if mode not in PAD_MODES:
            raise ArgumentError(f"pad: mode {mode!r} is not one of {', '.join(PAD_MODES)}")
        unknown = [a for a, (size, both) in enumerate(zip(self.shape, pads)) if any(both) and has_size([size, both[1]])]
        if unknown and mode == "constant":
            result = self
            for axis in unknown:
                result, pads[axis] = varying.pad(result, axis, *pads[axis], value), (0, 0)
            return result.pad(pads, mode, value)
        if mode == "replicate":
            return self._replicated(pads)
        crop = [(max(0, -before), size - max(0, -after)) for size, (before, after) in zip(self.shape, pads)]
        if any(low > high for low, high in crop):
            raise ShapeError(f"pad: {pads} crops more than shape {self.shape} has")
        source = self.shrink(crop)
        grow = [(max(0, before), max(0, after)) for before, after in pads]
        if mode != "constant":
            for axis, (before, after) in enumerate(grow):
                source = source._pad_mirrored(axis, before, after, mode)
            return source.as_value()
        if not any(before or after for before, after in grow):
            return source.as_value()
        if 0 in source.shape:
            return source.constant_like(value, tuple([s + b + a for s, (b, a) in zip(source.shape, grow)]))
        padded = source.pad_zeros(grow)
        if value == 0:
            return padded
        inside = source.constant_like(True, dtype=dtypes.bool).pad_zeros(grow)
        return inside.where(padded, value)

    def _pads(self, padding: Sequence[Any]) -> list[tuple[int, int]]:
        """(before, after) of every axis, from either spelling."""
        ndim = self.ndim
        if not isinstance(padding, (tuple, list)):
            raise ShapeError(f"pad: expected a list of integers or one (before, after) for each axis, got {padding!r}")
        if len(padding) and all(isinstance(p, (tuple, list)) or p is None for p in padding):
            if len(padding) != ndim:
                raise ShapeError(f"pad: {len(padding)} entries for shape {self.shape}; give one for every axis")
            return [(0, 0) if p is None else p for p in pairs(padding, ndim, "pad")]
        flat = integers((padding,), "pad")
        if len(flat) % 2 or len(flat) > 2 * ndim:
            raise ShapeError(
                f"pad: {flat} does not fit shape {self.shape}; give (left, right) for axes from the last on"
            )
        sides = [(flat[i], flat[i + 1]) for i in range(0, len(flat), 2)][::-1]
        return [(0, 0)] * (ndim - len(sides)) + sides

    def _pad_mirrored(self, axis: int, before: int, after: int, mode: str) -> Self:
        if not (before or after):
            return self
        size = self.shape[axis]
        limit = size - 1 if mode == "reflect" else size
        if max(before, after) > limit:
            raise ShapeError(
                f"pad: {mode} padding ({before}, {after}) is more than axis {axis} of size {size} can give"
            )
        if mode == "circular":
            left, right = self._box(axis, size - before, size), self._box(axis, 0, after)
        else:
            left = self._box(axis, 1, before + 1).flip(axis)
            right = self._box(axis, size - 1 - after, size - 1).flip(axis)
        return left.cat(self, right, dim=axis)

    def _replicated(self, pads: Sequence[tuple[int, int]]) -> Self:
        """Ends repeated: the element at place i of an axis is that at i - before, or the nearest there is."""
        result = self.as_value()
        for axis, (before, after) in enumerate(pads):
            size = self.shape[axis]
            total = size + before + after
            if total < 0 or (total and not size):
                raise ShapeError(
                    f"pad: replicate padding ({before}, {after}) is not possible for axis {axis} of size {size}"
                )
            left, right = min(max(before, 0), total), min(max(after, 0), total)
            first = max(-before, 0)
            middle = (first, first + total - left - right)
            pieces = [((0, 1), left), (middle, middle[1] - middle[0]), ((size - 1, size), right)]
            parts = []
            for (low, high), count in pieces:
                if count:
                    shape = [count if a == axis else extent for a, extent in enumerate(result.shape)]
                    parts.append(result._box(axis, low, high).expand(shape))
            result = parts[0].cat(*parts[1:], dim=axis) if parts else result._box(axis, 0, 0)
        return result

    def _box(self, axis: int, low: int, high: int) -> Self:
        """`self[low:high]` along one axis."""
        bounds: list[tuple[int, int] | None] = [None] * self.ndim
        bounds[axis] = (low, high)
        return self.shrink(bounds)

    def pad_to(self, *shape: Any, value: float = 0) -> Self:
        """`value` after each axis up to these sizes; None keeps an axis.

        An axis whose size is known only at launch has a fixed size then, at least the largest it may be.

        Raises:
            ShapeError: not one size an axis, or one below what there is.

        >>> Tensor([1, 2]).pad_to(4).tolist()
        [1, 2, 0, 0]
        """
        wanted = shape[0] if len(shape) == 1 and isinstance(shape[0], (tuple, list)) else shape
        if len(wanted) != self.ndim:
            raise ShapeError(f"pad_to: {len(wanted)} sizes for shape {self.shape}; give one for every axis")
        unknown = [a for a, (s, have) in enumerate(zip(wanted, self.shape)) if s is not None and has_size([have])]
        if unknown:
            if value != 0:
                ends = [(0, 0 if s is None else integers([s], "pad_to")[0] - h) for s, h in zip(wanted, self.shape)]
                return self.pad(ends, value=value)
            return self.whole_axes(unknown).pad_to(wanted)
        if has_size(self.shape):
            grown = tuple([have if s is None else integers([s], "pad_to")[0] for s, have in zip(wanted, self.shape)])
        else:
            grown = integers([have if s is None else s for s, have in zip(wanted, self.shape)], "pad_to")
        if any(size < have for size, have in zip(grown, self.shape)):
            raise ShapeError(f"pad_to: shape {self.shape} does not grow to {grown}; use shrink_to to make it smaller")
        return self.pad([(0, size - have) for size, have in zip(grown, self.shape)], value=value)

    def whole_axes(self, axes: Sequence[int]) -> Self:
        """Axes whose size is known only at launch as ones of the largest size, with zeros past their own."""
        raise NotImplementedError

    def shrink_to(self, *shape: Any) -> Self:
        """The first elements of each axis; None keeps an axis.

        >>> Tensor([1, 2, 3]).shrink_to(2).tolist()
        [1, 2]
        """
        wanted = shape[0] if len(shape) == 1 and isinstance(shape[0], (tuple, list)) else shape
        return self.shrink([None if s is None else (0, s) for s in wanted])

    # repetition
    def repeat(self, *repeats: Any) -> Self:
        """Tile: axis `i` is repeated `repeats[i]` times; more repeats than axes add axes at the left.

        >>> Tensor([1, 2]).repeat(2).tolist()
        [1, 2, 1, 2]
        """
        times = sizes(repeats, "repeat")
        if len(times) < self.ndim:
            raise ShapeError(f"repeat: {times} has fewer entries than shape {self.shape} has axes")
        base = (1,) * (len(times) - self.ndim) + self.shape
        spread = self.reshape([s for size in base for s in (1, size)])
        spread = spread.expand([s for time, size in zip(times, base) for s in (time, size)])
        return spread.reshape([time * size for time, size in zip(times, base)]).as_value()

    def repeat_interleave(self, repeats: Any, dim: int | None = None, output_size: int | None = None) -> Self:
        """Repeat each element along `dim` (flattened when None).

        Args:
            repeats: how often, the same for all positions of the axis; or a list or integer tensor with a number each.
            output_size: the sum of a tensor's numbers. Without it they are read now.

        Raises:
            ArgumentError: a negative number, or not one a position.
            JitError: a tensor without `output_size` inside a jitted function.

        >>> Tensor([1, 2]).repeat_interleave(2).tolist()
        [1, 1, 2, 2]
        >>> Tensor([1, 2]).repeat_interleave(Tensor([3, 1])).tolist()
        [1, 1, 1, 2]
        """
        source = self.flatten() if dim is None else self
        axis = axis_number(0 if dim is None else dim, source.ndim, "repeat_interleave")
        if isinstance(repeats, (RearrangeMixin, list, tuple)) or getattr(repeats, "ndim", False):
            return source.repeated_each(repeats, axis, output_size)
        repeats = integer(repeats, "repeat_interleave", "repeats", 0)
        shape = source.shape
        if output_size not in (None, shape[axis] * repeats):
            raise ArgumentError(f"repeat_interleave: output_size is {output_size}, not {shape[axis] * repeats}")
        spread = source.reshape(shape[: axis + 1] + (1,) + shape[axis + 1 :])
        spread = spread.expand(shape[: axis + 1] + (repeats,) + shape[axis + 1 :])
        return spread.reshape(shape[:axis] + (shape[axis] * repeats,) + shape[axis + 1 :]).as_value()

    def repeated_each(self, repeats: Any, axis: int, output_size: int | None) -> Self:
        """Each position of an axis repeated as often as its number in `repeats` says."""
        raise NotImplementedError

    def roll(self, shifts: int | Sequence[int], dims: int | Sequence[int] | None = None) -> Self:
        """Shift along axes; what falls off one end comes back at the other.

        >>> Tensor([1, 2, 3]).roll(1).tolist()
        [3, 1, 2]
        """
        if dims is None:
            return self.flatten().roll(shifts, 0).reshape(self.shape)
        shift_list = integers((shifts,), "roll")
        dim_list = dims if isinstance(dims, (tuple, list)) else (dims,)
        if len(shift_list) != len(dim_list):
            raise ArgumentError(f"roll: {len(shift_list)} shifts for {len(dim_list)} dims")
        result = self.as_value()
        for shift, dim in zip(shift_list, dim_list):
            axis = axis_number(dim, self.ndim, "roll")
            if not self.ndim:
                raise IndexingError("roll: a tensor without axes has no axis to shift along; leave dims out")
            size = self.shape[axis]
            if has_size([size]):
                result = varying.roll(result, axis, shift)
                continue
            cut = size - shift % size if size else 0
            if 0 < cut < size:
                result = result._box(axis, cut, size).cat(result._box(axis, 0, cut), dim=axis)
        return result

    # splitting
    def split(self, sizes: int | Sequence[int], dim: int = 0) -> tuple[Self, ...]:
        """Cut along `dim` into pieces of this size (the last may be smaller), or of these sizes.

        Raises:
            ShapeError: the sizes do not add up.

        >>> [t.tolist() for t in Tensor([1, 2, 3]).split(2)]
        [[1, 2], [3]]
        """
        axis = axis_number(dim, self.ndim, "split")
        total = self.shape[axis]
        pieces = list(integers((sizes,), "split"))
        if not isinstance(sizes, (tuple, list)):
            size = pieces[0]
            if size < 1:
                raise ShapeError(f"split: size must be positive, got {size}")
            pieces = [min(size, total - start) for start in range(0, total, size)] or [0]
        if sum(pieces) != total or min(pieces, default=0) < 0:
            raise ShapeError(f"split: sizes {pieces} do not add up to axis {axis} of size {total}")
        result = []
        start = 0
        for piece in pieces:
            result.append(self._box(axis, start, start + piece))
            start += piece
        return tuple(result)

    def chunk(self, chunks: int, dim: int = 0) -> list[Self]:
        """Cut along `dim` into at most `chunks` equal pieces (the last may be smaller).

        >>> [t.tolist() for t in Tensor([1, 2, 3]).chunk(2)]
        [[1, 2], [3]]
        """
        chunks = integer(chunks, "chunk", "chunks", 1)
        total = self.shape[axis_number(dim, self.ndim, "chunk")]
        return list(self.split(max(1, ceil(total / chunks)), dim))

    def unfold(self, dim: int, size: int, step: int) -> Self:
        """All windows of `size` along `dim`, `step` apart, on a new last axis.

        >>> Tensor([1, 2, 3, 4]).unfold(0, 2, 1).tolist()
        [[1, 2], [2, 3], [3, 4]]
        """
        axis = axis_number(dim, self.ndim, "unfold")
        size, step = integer(size, "unfold", "size", 1), integer(step, "unfold", "step", 1)
        if size > (self.shape[axis] if self.shape else 1):
            raise ShapeError(f"unfold: windows of {size} do not fit axis {axis} of shape {self.shape}")
        if not self.ndim:
            return self.reshape(1)
        spread = self.unsqueeze(-1).expand(self.shape + (size,))
        return spread.window(axis, self.ndim, step)

    # joining
    def cat(self, *args: Any, dim: int = 0) -> Self:
        """Join along an existing axis: `Tensor.cat(a, b, dim=0)` or `a.cat(b, c)`.

        Raises:
            ShapeError: other axes differ in size.

        >>> Tensor.cat(Tensor([1]), Tensor([2, 3])).tolist()
        [1, 2, 3]
        """
        parts: list[Self] = list(members(self, args, "cat"))
        parts = list(parts[0].same_dtype(parts[1:], "cat"))
        # A vector without elements joins with anything, as the start of a list that grows.
        parts = [p for p in parts if p.shape != (0,)] or parts[:1]
        axis = axis_number(dim, parts[0].ndim, "cat")
        first = parts[0].shape
        for part in parts[1:]:
            same = part.ndim == len(first) and all(
                a == axis or x == y for a, (x, y) in enumerate(zip(part.shape, first))
            )
            if not same:
                raise ShapeError(f"cat: shapes {first} and {part.shape} may differ on axis {axis} only")
        if not first:
            raise ShapeError("cat: tensors without axes cannot be joined; use stack")
        if len(parts) > 1 and has_size([p.shape[axis] for p in parts]):
            return varying.join(parts, axis)  # type: ignore[no-any-return]
        parts = [p for p in parts if p.shape[axis]] or parts[:1]
        if len(parts) == 1:
            return parts[0].as_value()
        # Many parts are joined in groups first: a kernel looks at every part it joins for each element.
        while len(parts) > CAT_WIDTH:
            groups = [parts[i : i + CAT_WIDTH] for i in range(0, len(parts), CAT_WIDTH)]
            parts = [_join(group, axis).contiguous() if len(group) > 1 else group[0] for group in groups]
        return _join(parts, axis)

    def contiguous(self) -> Self:
        """Materialise here, in row-major order."""
        raise NotImplementedError

    def stack(self, *args: Any, dim: int = 0) -> Self:
        """Join along a new axis: `Tensor.stack(a, b, dim=0)` or `a.stack(b, c)`.

        Raises:
            ShapeError: shapes differ.

        >>> Tensor.stack(Tensor([1, 2]), Tensor([3, 4]), dim=1).tolist()
        [[1, 3], [2, 4]]
        """
        parts: list[Self] = list(members(self, args, "stack"))
        for part in parts[1:]:
            if part.shape != parts[0].shape:
                raise ShapeError(f"stack: shapes {parts[0].shape} and {part.shape} differ; all must be equal")
        axis = axis_number(dim, parts[0].ndim + 1, "stack")
        raised = [p.unsqueeze(axis) for p in parts]
        return raised[0].cat(*raised[1:], dim=axis)

    def same_dtype(self, others: Sequence[Self], what: str = "promotion") -> tuple[Self, ...]:
        """This and the others in their common type."""
        raise NotImplementedError

    def meshgrid(self, *args: Any, indexing: str = "ij") -> tuple[Self, ...]:
        """Grids of coordinates from vectors.

        >>> [g.tolist() for g in Tensor([1, 2]).meshgrid(Tensor([3, 4]))]
        [[[1, 1], [2, 2]], [[3, 4], [3, 4]]]
        """
        if indexing not in ("ij", "xy"):
            raise ArgumentError(f"meshgrid: indexing {indexing!r} is not 'ij' or 'xy'")
        parts = [part.reshape(1) if part.ndim == 0 else part for part in members(self, args, "meshgrid")]
        for part in parts:
            if part.ndim > 1:
                raise ShapeError(f"meshgrid: needs vectors, got shape {part.shape}")
        if indexing == "xy" and len(parts) > 1:
            parts[0], parts[1] = parts[1], parts[0]
        shape = tuple([p.shape[0] for p in parts])
        grids = [p.reshape([-1 if a == i else 1 for a in range(len(parts))]).expand(shape) for i, p in enumerate(parts)]
        if indexing == "xy" and len(grids) > 1:
            grids[0], grids[1] = grids[1], grids[0]
        return tuple(grids)

    def masked_fill(self, mask: Any, value: Any) -> Self:
        """`value` where the mask is True.

        >>> Tensor([1, 2]).masked_fill(Tensor([True, False]), 0).tolist()
        [0, 2]
        """
        return self.coerce(mask).where(value, self)

    def rearrange(self, formula: str, **sizes: int) -> Self:
        """Split, reorder and join axes by name, as einops has it: `x.rearrange("b (h w) -> b w h", h=2)`.

        Raises:
            ArgumentError: a name is missing on one side or occurs twice.

        >>> Tensor.arange(6).reshape(2, 3).rearrange("a b -> (b a)").tolist()
        [0, 3, 1, 4, 2, 5]
        """
        from gradlet.ops.formula import parse_rearrange

        before, order, after = parse_rearrange(formula, self.shape, sizes)
        return self.reshape(before).permute(order).reshape(after)


def members(first: Any, others: Sequence[Any], what: str) -> Sequence[Any]:
    """The tensors of `f(a, b)`, of `a.f(b)` and of `f([a, b])`.

    Raises:
        ArgumentError: there are none.
        DTypeError: something that is no tensor.
    """
    if isinstance(first, (tuple, list)):
        if not first:
            raise ArgumentError(f"{what}: give at least one tensor")
        first, *rest = first
        others = (*rest, *others)
    for position, part in enumerate((first, *others)):
        if not isinstance(part, RearrangeMixin):
            raise DTypeError(f"{what}: argument {position} is {type(part).__name__}, not a Tensor")
    return (first, *others)


def _join(parts: Sequence[T], axis: int) -> T:
    """Parts of one type along `axis`: each with zeros around, and selected by position in a tree."""
    total = sum(p.shape[axis] for p in parts)
    pieces: list[tuple[T, int, int]] = []
    start = 0
    for part in parts:
        pads = [(0, 0)] * part.ndim
        end = start + part.shape[axis]
        pads[axis] = (start, total - end)
        pieces.append((part.pad_zeros(pads), start, end))
        start = end
    while len(pieces) > 1:
        joined = []
        for (left, low, middle), (right, _, high) in zip(pieces[::2], pieces[1::2]):
            shape = [1] * left.ndim
            shape[axis] = middle - low
            pads = [(0, 0)] * left.ndim
            pads[axis] = (low, total - middle)
            inside = left.constant_like(True, tuple(shape), dtypes.bool).pad_zeros(pads)
            joined.append((inside.where(left, right), low, high))
        pieces = joined + pieces[len(joined) * 2 :]
    return pieces[0][0]
