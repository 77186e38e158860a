"""Writing: `assign`, item assignment, and operators that change a tensor.

A write gives the tensor a new value; what was built from it before keeps the old one. Writing through a view writes
into the tensors that the view was taken from; other views of them keep what they showed.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, Self

from gradlet.base.dtype import DType, dtypes
from gradlet.base.errors import DeviceError, DTypeError, ShapeError
from gradlet.engine import execute
from gradlet.ops.movement import operand
from gradlet.ops.op import Op
from gradlet.tensor import symbolic, writes
from gradlet.tensor.core import LazyTensor, common_place, computed_on, foreign, is_operand, wrap
from gradlet.tensor.nodes import spread

_MEMORY: Final = 1 << Op.BUFFER | 1 << Op.COPY


class Writing(LazyTensor):
    """Changing a tensor."""

    __slots__ = ()

    def from_data(self, value: Any, dtype: DType | None = None) -> Any:
        """Host data as a tensor on this one's device."""
        raise NotImplementedError

    def assign(self, x: Any) -> Self:
        """Take the value of `x`, in this tensor's memory where possible, and return this.

        Values that were built from this tensor before keep what they saw. If this is a view, the tensor it was taken
        from changes with it.

        Raises:
            ShapeError, DTypeError, DeviceError: `x` does not have this one's shape, type or device.
            ArgumentError: a view whose elements share memory.

        >>> x = Tensor([1, 2])
        >>> x.assign(Tensor([3, 4])).tolist()
        [3, 4]
        """
        value = x if isinstance(x, LazyTensor) else self.from_data(x, self.dtype)
        fits = value.shape == self.shape
        if not fits and (value is x or value.numel() != 1):
            raise ShapeError(f"assign: a value of shape {value.shape} does not fit a tensor of shape {self.shape}")
        if value.dtype is not self.dtype:
            raise DTypeError(f"assign: a value of {value.dtype} does not fit a tensor of {self.dtype}; cast it first")
        if value._place is not None and self._place is not None and value._place != self._place:
            raise DeviceError(f"assign: the value is on {value._place}, the tensor on {self._place}; use .to()")
        self._write(self, value if fits else value.expand(self.shape))
        return self

    def replace(self, x: Any) -> Self:
        """Become `x`: this tensor's old memory is let go.

        Raises:
            ShapeError: the shapes differ.
            DTypeError: `x` is no tensor.

        >>> Tensor([1]).replace(Tensor([2])).tolist()
        [2]
        """
        if operand(x, "replace", "x").shape != self.shape:
            raise ShapeError(f"replace: shape {x.shape} does not replace shape {self.shape}; they must agree")
        execute.touched(self)
        self.uop, self._place, self._view = x.uop, x._place, None
        return self

    def as_value(self) -> Self:
        """The same value as a tensor of its own: writing into one of them does not change the other."""
        same: Self = wrap(self.uop, self._place)
        return same

    def with_part(self, view: Callable[[Any], Any], value: Any) -> Self:
        """A copy of this with `value` written into a view of it."""
        common_place(self, value, Op.WRITE)
        copy: Any = self.contiguous()
        copy._write(view(copy), value)
        return copy

    def _write(self, target: Any, value: Any) -> None:
        """Write where `target`, this or a view of it, shows."""
        symbolic.refuse(target.uop, "write")
        symbolic.refuse(value.uop, "write")
        if target.numel() == 0:
            return
        node = spread(value.uop, value.shape, target.shape, True)
        if target is self and self._view is None and self._place is not None:  # nearly always
            whole = writes.store(self.uop, (), node)
            if whole.mask & _MEMORY:
                execute.touched(self)
                self.uop = whole
                return
        link = target._view
        inner: list[writes.Step] = []
        if target is not self:
            # The part of the view that was taken from this tensor.
            steps_back: list[writes.Step] = []
            while link is not None and link.tensor() is not self:
                steps_back.append((link.op, link.arg))
                link = link.before
            assert link is not None
            inner = [*steps_back, (link.op, link.arg)][::-1]
        # Through a view the tensors that it was taken from are written; the deepest of them owns the value.
        holders, steps = writes.sources(self._view)
        owner = holders[0][0] if holders else self
        path = [*steps, *inner]
        writes.check_writable(path, "write")
        execute.touched(owner)
        owner.uop = writes.store(owner.uop, path, node)
        place = None if owner.uop.mask & _MEMORY else foreign(owner._place)
        if place is not None:
            owner.uop = computed_on(place, owner.uop)  # nothing of the old value is left that says where it is
        if owner._place is None:
            owner._place = value._place
        for holder, depth in [*holders[1:], (self, len(steps))] if holders else []:
            execute.touched(holder)
            holder.uop, holder._place = writes.replay(steps[:depth], owner.uop), owner._place

    def _see_writes(self) -> None:
        """Show what the tensors that this view was taken from hold now: what is not written here stays theirs."""
        holders, steps = writes.sources(self._view)
        if holders:
            owner = holders[0][0]
            execute.touched(self)
            self.uop, self._place = writes.replay(steps, owner.uop), owner._place

    def __setitem__(self, index: Any, value: Any) -> None:
        """Write into part of this tensor; the value broadcasts and takes this one's type. The last of several wins.

        Raises:
            IndexingError: as reading does.
            ShapeError: the value does not fit.
            DeviceError: the value is on another device.
        """
        new = (
            value
            if isinstance(value, LazyTensor)
            else self.coerce(value)
            if is_operand(value)
            else self.from_data(value)
        )
        common_place(self, new, Op.WRITE)
        new = (new.as_value() if new is self else new).cast(self.dtype)
        self._see_writes()
        if isinstance(index, LazyTensor) and index.dtype is dtypes.bool and not index.ndim:
            self.unsqueeze(0)[index.reshape(1)] = new
            return
        boxes = self.limited_boxes(index)
        if boxes is not None:
            # All of the largest box is written: what lies past the size with what is there.
            if not boxes[1]:
                self[boxes[0]] = new
                return
            shape = self[index].shape
            inside = self.constant_like(True, shape, dtypes.bool).whole_axes(boxes[1])
            value = new.broadcast_into(shape, "setitem").whole_axes(boxes[1])
            self[boxes[0]] = inside.where(value, self[boxes[0]])
            return
        if self._written_by_mask(index if isinstance(index, tuple) else (index,), new):
            return
        plan = self.index_plan(index)
        target: Any = plan.basic
        if plan.shape is not None:
            kept = [size for axis, size in enumerate(target.shape) if axis not in plan.tensors]
            if len(plan.tensors) == 1:
                ((axis, rows),) = plan.tensors.items()
                kept[axis:axis] = rows.shape
            new = new.broadcast_into(plan.shape, "setitem").reshape(kept)
        if plan.tensors:
            new = target.scatter_axes(plan.tensors, new)
        self._write(target, new.broadcast_into(target.shape, "setitem"))

    def _written_by_mask(self, index: Any, new: Any) -> bool:
        """Write where a bool mask is True without computing the mask: the only selection by data in the index, and a
        value whose shape has nothing to do with how many elements it selects. Whether that was so.
        """
        masks = [i for i, part in enumerate(index) if isinstance(part, LazyTensor) and part.dtype is dtypes.bool]
        others = [part for i, part in enumerate(index) if i not in masks[:1]]
        if len(masks) != 1 or any(self.is_index_tensor(part) or self._has_variable(part) for part in others):
            return False
        at, mask = masks[0], index[masks[0]]
        whole = (*index[:at], *[slice(None)] * mask.ndim, *index[at + 1 :])
        parts = self._aligned(whole)
        begin = at + (len(parts) - len(whole) if any(part is Ellipsis for part in index[:at]) else 0)
        first = sum(part is None or isinstance(part, slice) for part in parts[:begin])
        target = self.index_plan(tuple(parts)).basic
        rest = target.shape[first + mask.ndim :]
        if target.shape[first : first + mask.ndim] != mask.shape:
            return False
        shape = new.shape
        if len(shape) > len(rest):
            # The axis of selected elements becomes those of the mask: its size must be 1 then.
            place = len(shape) - len(rest) - 1
            if shape[place] != 1:
                return False
            new = new.reshape(shape[:place] + (1,) * mask.ndim + shape[place + 1 :])
        wide = mask.reshape((1,) * first + mask.shape + (1,) * len(rest))
        self._write(target, wide.where(new.broadcast_into(target.shape, "setitem"), target))
        return True

    def _in_place(self, value: Any) -> Self:
        """`x op= y`: like assign, and the value takes this one's type if it is of the same kind."""
        if value.dtype is not self.dtype and (value.dtype.kind == self.dtype.kind or self.dtype.is_float):
            value = value.cast(self.dtype)
        return self.assign(value)

    def __iadd__(self, other: Any) -> Self:
        return self._in_place(self.add(other))

    def __isub__(self, other: Any) -> Self:
        return self._in_place(self.sub(other))

    def __imul__(self, other: Any) -> Self:
        return self._in_place(self.mul(other))

    def __itruediv__(self, other: Any) -> Self:
        return self._in_place(self.fdiv(other))

    def __ifloordiv__(self, other: Any) -> Self:
        return self._in_place(self.floordiv(other))

    def __imod__(self, other: Any) -> Self:
        return self._in_place(self.mod(other))

    def __ipow__(self, other: Any) -> Self:
        return self._in_place(self.pow(other))

    def __iand__(self, other: Any) -> Self:
        return self._in_place(self.bitwise_and(other))

    def __ior__(self, other: Any) -> Self:
        return self._in_place(self.bitwise_or(other))

    def __ixor__(self, other: Any) -> Self:
        return self._in_place(self.bitwise_xor(other))

    def __ilshift__(self, other: Any) -> Self:
        return self._in_place(self.lshift(other))

    def __irshift__(self, other: Any) -> Self:
        return self._in_place(self.rshift(other))
