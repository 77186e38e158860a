"""Composed mixin: reading and updating by index. Tensor indices cost as much as they name elements, never the table."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from operator import index as as_integer
from typing import Any, NamedTuple, Self

from gradlet.base.dtype import dtypes
from gradlet.base.errors import ArgumentError, IndexingError, ShapeError
from gradlet.base.symint import Size
from gradlet.ops.arguments import Shape, axis_number, broadcast_shapes, integer
from gradlet.ops.create import CreateMixin
from gradlet.ops.op import AxesArg, Op, ShapeArg, ShrinkArg


class IndexPlan(NamedTuple):
    """What `x[index]` means.

    Attributes:
        basic: the view by integers, slices and None; axes with a tensor index are still whole.
        tensors: the tensor index of some axes of `basic`, by axis number.
        shape: shape of the result where variables index; else None: it follows from the rest.
    """

    basic: Any
    tensors: dict[int, Any]
    shape: Shape | None = None


class IndexMixin(CreateMixin):
    """Indexing. The hooks `gather_rows`, `scatter_rows`, `as_index` and `mask_positions` come from the user of this."""

    __slots__ = ()

    def gather_rows(self, index: Self, batch: int = 0) -> Self:
        """Rows of this by number: shape of `index`, then the rest of this one's. 0 outside the table.

        The first `batch` axes are those of `index` too; rows lie along the axis behind them.
        """
        raise NotImplementedError

    def scatter_rows(self, index: Self, values: Self, op: Op | None, batch: int = 0) -> Self:
        """This with rows updated in index order; `op` combines with what is there, None replaces."""
        raise NotImplementedError

    def as_index(self, value: Any, size: int, axis: int) -> Self:
        """A list, array or tensor as an index tensor for an axis of `size`.

        Raises:
            IndexingError: not integers, or out of range and known now.
        """
        raise NotImplementedError

    def from_data(self, value: Any, dtype: Any = None) -> Any:
        """Host data, such as lists, as a tensor beside this one."""
        raise NotImplementedError

    @staticmethod
    def is_index_tensor(value: Any) -> bool:
        """Whether this part of an index selects by data: a list, an array, a tensor."""
        raise NotImplementedError

    def mask_positions(self, mask: Any) -> tuple[list[Self], Shape]:
        """For a bool mask the index tensor of each of its axes, and its shape; for other values none.

        Raises:
            IndexingError: the number of selected elements is not known without computing the mask.
        """
        raise NotImplementedError

    @staticmethod
    def is_variable(value: Any) -> bool:
        """Whether a number of an index is known only at launch."""
        raise NotImplementedError

    def variable_part(self, part: Any, size: int, axis: int) -> tuple[Self, int | None]:
        """An index by variables on an axis of `size`: its first position as a tensor without axes, and how many
        positions from there on; None for a single one whose axis goes away.

        Raises:
            IndexingError: a number of positions that is not known, or positions that may leave the axis.
        """
        raise NotImplementedError

    def limited_part(self, part: Any, size: int, axis: int) -> tuple[int, int, Any] | None:
        """For a slice whose length is known only at launch the box that it can reach, and the length; else None.

        Raises:
            IndexingError: positions that may leave the axis.
        """
        raise NotImplementedError

    def limited_boxes(self, index: Any) -> tuple[tuple[Any, ...], list[int]] | None:
        """For an index with slices whose length is known only at launch the one with the boxes that they can reach, and
        the axes of the result that they are; None for any other index."""
        parts = list(index if isinstance(index, tuple) else (index,))
        if not any(isinstance(part, slice) and self._has_variable(part) for part in parts):
            return None
        parts = self._aligned(tuple(parts))
        limited: list[int] = []
        changed = False
        axis = place = 0
        for position, part in enumerate(parts):
            box = (
                self.limited_part(part, self.shape[axis], axis)
                if part is not None and self._has_variable(part)
                else None
            )
            if box is not None:
                parts[position], changed = slice(box[0], box[1]), True
                if box[2] is not None:
                    limited.append(place)
            axis += part is not None
            place += part is None or isinstance(part, slice) or self.is_index_tensor(part)
        return (tuple(parts), limited) if changed else None

    def limit_axis(self, axis: int, size: Any) -> Self:
        """The first positions of an axis, as many as `size` says at launch."""
        raise NotImplementedError

    # reading
    def __getitem__(self, index: Any) -> Self:
        """Part of this, as numpy and torch have it.

        Args:
            index: integers, slices (any step but 0), None (new axis), `...`, lists, integer tensors, realised bool
                masks, and tuples of these. Tensor indices broadcast together; where numbers in them lie outside the
                axis the result is 0. Integers and bounds of slices may be bound variables (`x[pos]`,
                `x[pos : pos + 4]`): one kernel serves all their values. A slice whose length depends on a variable
                (`x[:n]`) gives an axis whose size is known only at launch.

        Raises:
            IndexingError: an integer out of range, too many indices, or something that is no index.
            ShapeError: index tensors that do not broadcast.

        >>> x = Tensor([[1, 2, 3], [4, 5, 6]])
        >>> x[1, ::-1].tolist(), x[:, [0, 2]].tolist()
        ([6, 5, 4], [[1, 3], [4, 6]])
        """
        if index.__class__ is int and self.shape:
            size = self.shape[0]
            if not -size <= index < size:
                raise IndexingError(f"index {index} is out of range for axis 0 of size {size}")
            row = index + size if index < 0 else index
            rest = self.shape[1:]
            box = self.move(Op.SHRINK, ShrinkArg(((row, row + 1), *[(0, s) for s in rest])))
            return box.move(Op.RESHAPE, ShapeArg(rest))
        if isinstance(index, IndexMixin) and index.dtype is dtypes.bool and not index.ndim:
            # One bool for all: a new first axis that has this once or not at all.
            return self.unsqueeze(0)[index.reshape(1)]
        plan = self.index_plan(index)
        basic: Self = plan.basic
        if not plan.tensors:
            return basic
        picked = basic.gather_axes(plan.tensors)
        return picked if plan.shape is None else picked.reshape(plan.shape)

    def index_plan(self, index: Any) -> IndexPlan:
        """Split an index into the view it takes and the tensor indices that remain."""
        parts = self._aligned(index if isinstance(index, tuple) else (index,))
        if any(self._has_variable(part) for part in parts):
            return self._variable_plan(parts)
        bounds: list[tuple[int, int] | None] = []
        steps: list[int] = []
        backwards: list[int] = []
        result_shape: list[int] = []
        tensors: dict[int, Any] = {}
        axis = 0
        for part in parts:
            if part is None:
                result_shape.append(1)
                continue
            size = self.shape[axis]
            if isinstance(size, Size) and (self.is_index_tensor(part) or _is_whole(part, size)):
                if not isinstance(part, slice):
                    tensors[len(result_shape)] = self.as_index(part, size, axis)
                bounds.append(None)
                steps.append(1)
                result_shape.append(size)
            elif isinstance(part, slice):
                low, high, step, count = _slice_of(part, size, axis)
                if step < 0:
                    backwards.append(axis)
                bounds.append((low, high))
                steps.append(abs(step))
                result_shape.append(count)
            elif self.is_index_tensor(part):
                tensors[len(result_shape)] = self.as_index(part, size, axis)
                bounds.append((0, size))
                steps.append(1)
                result_shape.append(size)
            else:
                number = _integer_of(part, size, axis)
                bounds.append((number, number + 1))
                steps.append(1)
            axis += 1
        view = self.shrink(bounds)
        if backwards:
            view = view.move(Op.FLIP, AxesArg(tuple(backwards)))
        if any(s != 1 for s in steps):
            view = view.take_every(steps)
        return IndexPlan(view.reshape(result_shape), tensors)

    def _has_variable(self, part: Any) -> bool:
        if isinstance(part, slice):
            return any(self.is_variable(v) for v in (part.start, part.stop, part.step))
        return self.is_variable(part)

    def _variable_plan(self, parts: Sequence[Any]) -> IndexPlan:
        """The plan of an index with variables: they select rows of the view that the other parts take."""
        plain: list[Any] = []
        starts: dict[int, tuple[Any, int | None]] = {}
        limits: dict[int, Any] = {}
        axis = place = 0
        for part in parts:
            if self.is_index_tensor(part):
                raise IndexingError("an index by variables and by tensors at once is not supported: index in two steps")
            variable = self._has_variable(part)
            limited = self.limited_part(part, self.shape[axis], axis) if variable else None
            if limited is not None:
                low, high, size = limited
                part = slice(low, high)
                if size is not None:
                    limits[place] = size
            elif variable:
                start, count = self.variable_part(part, self.shape[axis], axis)
                if count != 0:
                    starts[place] = start, count
                part = slice(0, 0) if count == 0 else slice(None)
            plain.append(part)
            axis += part is not None
            place += part is None or variable or isinstance(part, slice)
        basic = self.index_plan(tuple(plain)).basic
        for place, size in limits.items():
            basic = basic.limit_axis(place, size)
        if not starts:
            return IndexPlan(basic, {})
        kept = [(a, starts[a][1] if a in starts else size) for a, size in enumerate(basic.shape)]
        shape = tuple([count for _, count in kept if count is not None])
        several = [a for a, (_, count) in starts.items() if count is not None and count > 1]
        if several and len(starts) > 1:
            raise IndexingError(
                "a slice of more than one position by a variable, and another index by a variable: index in two steps"
            )
        tensors = {a: start for a, (start, _) in starts.items()}
        for a in several:
            rows = self.positions(starts[a][1] or 0, self.place)
            tensors[a] = starts[a][0].cast(rows.dtype).add(rows)
        return IndexPlan(basic, tensors, shape)

    def _aligned(self, parts: Sequence[Any]) -> list[Any]:
        """One part an axis (and the Nones): the ellipsis spelled out, masks replaced by positions."""
        spelled: list[Any] = []
        masks: list[tuple[int, Shape]] = []
        for part in parts:
            positions, mask_shape = self.mask_positions(part)
            if positions:
                masks.append((len(spelled), mask_shape))
            spelled.extend(positions or [part])
        named = sum(1 for p in spelled if p is not None and p is not Ellipsis)
        if named > self.ndim:
            raise IndexingError(f"{named} indices for a tensor of {self.ndim} axes, shape {self.shape}")
        where = [i for i, p in enumerate(spelled) if p is Ellipsis]
        if len(where) > 1:
            raise IndexingError("an index may contain one '...' only")
        position = where[0] if where else len(spelled)
        rest = [slice(None)] * (self.ndim - named)
        for begin, mask_shape in masks:
            axis = sum(1 for p in spelled[:begin] if p is not None and p is not Ellipsis)
            axis += len(rest) if begin > position else 0
            covered = self.shape[axis : axis + len(mask_shape)]
            if covered != mask_shape:
                raise IndexingError(
                    f"a bool mask of shape {mask_shape} does not fit the axes of size {covered} that it selects on; "
                    "it must have their sizes"
                )
        return spelled[:position] + rest + spelled[position + len(where) :]

    def _linear_index(self, tensors: dict[int, Self]) -> Self:
        """Row numbers in the table made of the indexed axes joined in order; -1 where any is out of range."""
        axes = sorted(tensors)
        shape = broadcast_shapes([tensors[a].shape for a in axes], "index")
        count = prod(self.shape[a] for a in axes)
        wide = dtypes.int64 if count > dtypes.int32.max else dtypes.int32
        linear: Self | None = None
        valid: Self | None = None
        for axis in axes:
            size = self.shape[axis]
            number = tensors[axis]
            if number.dtype.kind == "x":
                if len(axes) == 1:
                    return number  # a variable itself, which nothing has to compute
                number = number.cast(dtypes.uint64 if count > dtypes.int32.max else dtypes.uint32)
            if number.dtype.itemsize < 4 or wide is dtypes.int64:
                number = number.cast(wide)
            if not number.dtype.is_unsigned:
                number = number.lt(0).where(number.add(size), number)
            if len(axes) > 1:
                inside = number.lt(size) if number.dtype.is_unsigned else number.lt(size).bitwise_and(number.gt(-1))
                valid = inside if valid is None else valid.bitwise_and(inside)
            linear = number if linear is None else linear.mul(size).add(number)
        assert linear is not None
        if valid is not None:
            linear = valid.where(linear, -1)
        return linear.expand(shape)

    def _indexed_axes_first(self, axes: Sequence[int]) -> Self:
        """The indexed axes moved to the front and joined into one."""
        rest = [a for a in range(self.ndim) if a not in axes]
        moved = self.permute([*axes, *rest])
        return moved.reshape((prod(self.shape[a] for a in axes), *[self.shape[a] for a in rest]))

    def gather_axes(self, tensors: dict[int, Self]) -> Self:
        """Index some axes by tensors that broadcast together."""
        axes = sorted(tensors)
        linear = self._linear_index(tensors)
        picked = self._indexed_axes_first(axes).gather_rows(linear)
        before, front = self._axes_before(tensors), linear.ndim
        if not before:
            return picked
        order = [front + a for a in range(before)] + list(range(front)) + list(range(front + before, picked.ndim))
        return picked.permute(order)

    def _axes_before(self, tensors: dict[int, Self]) -> int:
        """How many of the axes that stay stand before those of index tensors.

        Adjacent index tensors put theirs where the indexed axes stood, others in front. An index tensor without axes
        only takes its axis away, as an integer does.
        """
        wide = [a for a in sorted(tensors) if tensors[a].ndim] or sorted(tensors)
        between = [a for a in range(wide[0], wide[-1]) if a not in tensors]
        return 0 if between else sum(a not in tensors for a in range(wide[0]))

    def scatter_axes(self, tensors: dict[int, Self], value: Self, op: Op | None = None) -> Self:
        """This with `x[tensors] = value`; the last of several values for one element stays, or `op` combines them."""
        axes = sorted(tensors)
        linear = self._linear_index(tensors)
        rest = [a for a in range(self.ndim) if a not in axes]
        kept = tuple([self.shape[a] for a in rest])
        before, front = self._axes_before(tensors), linear.ndim
        value = value.broadcast_into(kept[:before] + linear.shape + kept[before:], "setitem")
        if 0 in value.shape:
            return self.as_value()
        if axes[0] and axes[-1] - axes[0] == len(axes) - 1:
            # The axes before are shared by the table and the index: every one of their positions is a table of its own.
            lead = self.shape[: axes[0]]
            table = self.reshape(lead + (prod(self.shape[a] for a in axes),) + self.shape[axes[-1] + 1 :])
            index = linear.reshape((1,) * len(lead) + linear.shape).expand(lead + linear.shape)
            return table.scatter_rows(index, value.cast(self.dtype), op, len(lead)).reshape(self.shape)
        if before:
            value = value.permute([*range(before, before + front), *range(before), *range(before + front, value.ndim)])
        table = self._indexed_axes_first(axes)
        updated = table.scatter_rows(linear, value.cast(self.dtype), op)
        moved = updated.reshape([self.shape[a] for a in [*axes, *rest]])
        order = [*axes, *rest]
        return moved.permute([order.index(a) for a in range(self.ndim)])

    def broadcast_into(self, shape: tuple[int, ...], what: str) -> Self:
        """This stretched to exactly `shape`; leading axes of size 1 may be dropped, as numpy allows in assignment.

        Raises:
            ShapeError: it does not fit.
        """
        own = self.shape
        while len(own) > len(shape) and own[0] == 1:
            own = own[1:]
        if len(own) > len(shape) or any(have not in (1, want) for have, want in zip(own[::-1], shape[::-1])):
            raise ShapeError(f"{what}: a value of shape {self.shape} does not fit into shape {shape}")
        return self.reshape(own).expand(shape)

    def index_select(self, dim: int, index: Self) -> Self:
        """Rows along `dim` by number.

        >>> Tensor([[1, 2], [3, 4]]).index_select(1, Tensor([1])).tolist()
        [[2], [4]]
        """
        axis = axis_number(dim, self.ndim, "index_select")
        if not self.ndim:
            return self.reshape(1).index_select(0, index).reshape(())
        return self.gather_axes({axis: self.as_index(index, self.shape[axis], axis)})

    def one_hot(self, num_classes: int = -1) -> Self:
        """A new last axis of `num_classes` with 1 at the number this holds, 0 elsewhere (everywhere if out of range).

        Args:
            num_classes: -1 takes one more than the largest number there is, which is computed now.

        Raises:
            ArgumentError: this does not hold integers.

        >>> Tensor([1, 0]).one_hot(3).tolist()
        [[0, 1, 0], [1, 0, 0]]
        """
        if not self.dtype.is_int:
            raise ArgumentError(f"one_hot: needs integers, got {self.dtype}; cast it")
        if num_classes == -1 and self.numel():
            num_classes = int(self.max().item()) + 1  # type: ignore[attr-defined]
        num_classes = integer(num_classes, "one_hot", "num_classes", 1)
        return self.unsqueeze(-1).eq(self.positions(num_classes, self.place)).cast(dtypes.int64)


def _integer_of(part: Any, size: int, axis: int) -> int:
    try:
        number = None if isinstance(part, bool) else as_integer(part)
    except TypeError:
        number = None
    if number is None:
        raise IndexingError(
            f"index {part!r} on axis {axis} is no index; use integers, slices, None, ..., lists or integer tensors"
        )
    if not -size <= number < size:
        raise IndexingError(f"index {number} is out of range for axis {axis} of size {size}")
    return number + size if number < 0 else number


def _is_whole(part: Any, size: Any) -> bool:
    """Whether a part of an index takes a whole axis, whatever its size."""
    if not isinstance(part, slice):
        return False
    return part.start in (None, 0) and (part.stop is None or part.stop == size) and part.step in (None, 1)


def _slice_of(part: slice, size: int, axis: int) -> tuple[int, int, int, int]:
    """(low, high, step, count): the box that the slice walks, forwards or backwards."""
    if isinstance(size, Size):
        # Only positions that exist for every value of the variables.
        explicit = all(v.__class__ is int and 0 <= v <= size.low for v in (part.start or 0, part.stop))
        if not explicit or part.step not in (None, 1):
            raise IndexingError(
                f"slice {part} on axis {axis}: its size {size} is known only at launch, at least {size.low}; take the "
                "whole axis, or positions below that from 0 up, with step 1"
            )
        size = size.low
    try:
        start, stop, step = part.indices(size)
    except (TypeError, ValueError) as error:
        raise IndexingError(
            f"slice {part} on axis {axis}: {error}; bounds are integers or None, the step is not 0"
        ) from None
    count = len(range(start, stop, step))
    if not count:
        return 0, 0, 1, 0
    last = start + (count - 1) * step
    return min(start, last), max(start, last) + 1, step, count
