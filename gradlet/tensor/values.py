"""Computing values, and reading them: numpy, Python numbers, truth."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from math import prod
from sys import getrefcount
from typing import Any, Final, Self

from gradlet.base.dtype import dtypes
from gradlet.base.errors import ArgumentError, DeviceError, DTypeError, NoAxesError, ShapeError
from gradlet.engine import execute
from gradlet.graph.node import UOp
from gradlet.ops.movement import operand
from gradlet.ops.op import MOVEMENT, Op
from gradlet.runtime.buffer import buffer_of, protected
from gradlet.tensor import donation, hostdata, symbolic, writes
from gradlet.tensor.core import LazyTensor
from gradlet.tensor.nodes import place_of

_MUCH_LARGER: Final = 4
# How `struct` reads an element; it has no narrower floats.
_FORMS: Final = {
    "bool": "?", "int8": "b", "uint8": "B", "int16": "<h", "uint16": "<H", "int32": "<i", "uint32": "<I",
    "int64": "<q", "uint64": "<Q", "float16": "<e", "float32": "<f", "float64": "<d",
}  # fmt: skip
_IN_PLACE: Final = 1 << Op.WRITE | 1 << Op.SCATTER
_SEEN_BY_OTHERS: Final = _IN_PLACE | 1 << Op.LIMIT
_HAS_BUFFER: Final = 1 << Op.BUFFER


class Values(LazyTensor):
    """Computing and reading values."""

    __slots__ = ()

    def realize(self, *others: Any, schedule: Any = None) -> Self:
        """Compute this and other tensors now, together, and return this.

        Args:
            schedule: run this one, which `schedule()` of the same tensors gave, maybe with other opts in it.

        Raises:
            DTypeError: something that is no tensor.
            ArgumentError: a schedule of something else, or of tensors that changed since.

        >>> (Tensor([1]) + 1).realize().is_realized
        True
        >>> x = Tensor([1, 2]) * 3
        >>> x.realize(schedule=x.schedule()).tolist()
        [3, 6]
        """
        if schedule is not None:
            return self._realize_as(schedule, others)
        if not others and self._realize_alone():
            return self
        asked = [operand(t, "realize", "every argument").uop for t in (self, *others)]
        roots = [n for n in dict.fromkeys(asked) if writes.strip(n)[0].op is not Op.BUFFER]
        if not roots:
            return self
        alive = self.all_live()
        # Before anything here holds a root. What is given away nobody else sees: the others need not be told.
        given = donation.donate(roots, asked, alive)
        changing = 0
        for root in roots:
            changing |= root.mask
        chosen = set(roots)
        # Others matter only when memory is overwritten: they keep what they were built on.
        live = list(dict.fromkeys([t.uop for t in alive if t.uop not in chosen])) if changing & _IN_PLACE else []
        if changing & _IN_PLACE:
            live += protected()  # somebody outside reads these
        results = execute.realize([given.get(n, n) for n in roots], live)
        for old, new in given.items():
            results[old] = results[new]
        strayed: list[tuple[Any, str]] = []
        is_captured = execute.recording()
        for tensor in alive:
            result = results.get(tensor.uop)
            if result is not None:
                if is_captured:
                    execute.computed(tensor)
                before, tensor.uop, tensor._place = tensor._place, result, place_of(result)
                if before is not None and tensor._place != before:
                    strayed.append((tensor, before))
        if strayed:
            _bring_back(strayed)
        return self

    def _realize_as(self, plan: Any, others: tuple[Any, ...]) -> Self:
        """Compute with a schedule that somebody holds."""
        roots = list(dict.fromkeys([operand(t, "realize", "every argument").uop for t in (self, *others)]))
        results = execute.realize_as(plan, roots) if hasattr(plan, "calls") else None
        if results is None:
            raise ArgumentError(
                "realize: this is no schedule of these tensors as they are now (they were computed, or written to, "
                "since, or the schedule writes to memory); ask for a new one with schedule()"
            )
        for tensor in self.all_live():
            result = results.get(tensor.uop)
            if result is not None:
                if execute.recording():
                    execute.computed(tensor)
                tensor.uop, tensor._place = result, place_of(result)
        return self

    def _realize_alone(self) -> bool:
        """Compute this if nobody else holds its graph, without asking who else is alive; returns whether that worked.

        Results that may be donated to are for `realize`.
        """
        node = self.uop
        if node.op in MOVEMENT or not node.mask & _HAS_BUFFER or node.mask & _SEEN_BY_OTHERS:
            return False
        if getrefcount(node) != _ALONE or prod(node.shape) * node.dtype.itemsize >= donation.LEAST_BYTES:
            return False
        result = execute.realize_alone(node)
        if result is None:
            return False
        if execute.base_buffer(result).arg.device != self._place:
            return False  # a constant, which no device computed: `realize` brings it to its own
        self.uop = result
        return True

    def schedule(self, *others: Any) -> Any:
        """The kernel calls that would compute this and other tensors, without running them.

        It prints a line a call, `with_opts` changes how a kernel is compiled, and `realize(schedule=...)` runs it.

        Raises:
            DTypeError: something that is no tensor.

        >>> len((Tensor([1]) + 1).schedule().calls)
        1
        """
        chosen = list(dict.fromkeys(operand(t, "schedule", "every argument").uop for t in (self, *others)))
        live = [t.uop for t in self.all_live() if t.uop not in set(chosen)]
        return execute.schedule(chosen, [*live, *protected()])

    def numpy(self) -> Any:
        """The values as a new numpy array; bfloat16 and the 8-bit floats become float32.

        Raises:
            JitError: inside a jitted function.

        >>> Tensor([1, 2]).numpy()
        array([1, 2], dtype=int32)
        """
        execute.refuse_in_capture("reading values", "return the tensor and read it outside")
        return hostdata.readable(self._host_array(), self.dtype)

    def _host_array(self) -> Any:
        """The values as an array of our own; floats that numpy lacks as bit patterns."""
        import numpy as np

        if 0 in self.uop.shape:
            return symbolic.cut(np.zeros(self.uop.shape, hostdata.numpy_name(self.dtype)), self.uop)
        self.realize()
        base, steps = writes.strip(self.uop)
        if any(op is Op.LIMIT and arg.filled for op, arg in steps):
            return self.contiguous()._host_array()  # zeros past a size are nowhere in memory yet
        memory = buffer_of(base).memory()
        flat = hostdata.to_array(memory, base.dtype, base.arg.size)
        if all(op is Op.RESHAPE or op is Op.LIMIT for op, _ in steps):
            whole = flat.reshape(self.uop.shape)
            return symbolic.cut(whole, self.uop) if symbolic.is_symbolic(self.uop) else whole.copy()
        if _passes_something_large(self.uop, base) and all(op is not Op.LIMIT for op, _ in steps):
            return self.contiguous()._host_array()  # a kernel reads each element where it is
        from gradlet.graph.evaluate import evaluate  # most results are read as they lie

        try:
            return symbolic.cut(evaluate([self.uop], {base: flat})[0], self.uop)
        except MemoryError as error:
            raise DeviceError(
                f"numpy: no memory for a value of shape {self.shape}: {error}; read a part of it"
            ) from None

    def tolist(self) -> Any:
        """The values as nested lists, or one number for a tensor without axes.

        Raises:
            JitError: inside a jitted function.

        >>> Tensor([[1, 2], [3, 4]]).tolist()
        [[1, 2], [3, 4]]
        """
        return self.numpy().tolist()

    def item(self) -> Any:
        """The only element as a Python number.

        Raises:
            ShapeError: not exactly one element.
            JitError: inside a jitted function.

        >>> Tensor([[3]]).item()
        3
        """
        if self.numel() != 1:
            raise ShapeError(f"item: shape {self.shape} has {self.numel()} elements, not 1; use tolist() or index it")
        number = self._number()
        return self.numpy().item() if number is None else number

    def _number(self) -> Any:
        """The only element of a tensor that lies in memory, for types that Python reads itself; None for others."""
        form = _FORMS.get(self.dtype.name)
        if form is None:
            return None
        execute.refuse_in_capture("reading values", "return the tensor and read it outside")
        self.realize()
        base, steps = writes.strip(self.uop)
        if base.arg.size != 1 or any(op is not Op.RESHAPE for op, _ in steps):
            return None
        return struct.unpack_from(form, buffer_of(base).memory())[0]

    def __bool__(self) -> bool:
        if self.numel() != 1:
            raise ShapeError(f"bool: a tensor of shape {self.shape} has no single truth value; use any() or all()")
        return bool(self.item())

    def __float__(self) -> float:
        return float(self.item())

    def __int__(self) -> int:
        return int(self.item())

    def __index__(self) -> int:
        if not self.dtype.is_int:
            raise DTypeError(f"{self.dtype} is no integer to count or index with; use int() or cast it")
        return int(self.item())

    def __len__(self) -> int:
        if not self.shape:
            raise NoAxesError("len: a tensor without axes has no length; use numel()")
        return self.shape[0]

    def __iter__(self) -> Iterator[Self]:
        if not self.shape:
            raise NoAxesError("iteration over a tensor without axes; use item()")
        return iter([self[i] for i in range(self.shape[0])])

    def __contains__(self, value: Any) -> bool:
        return bool(self.eq(value).any().item())


def _passes_something_large(view: UOp, base: UOp) -> bool:
    """Whether a view of memory leads through something much larger than the memory and the view together."""
    limit = _MUCH_LARGER * (base.arg.size + prod(view.shape))
    node = view
    while node is not base:
        if prod(node.shape) > limit:
            return True
        node = node.src[0]
    return False


def _bring_back(strayed: list[tuple[Any, str]]) -> None:
    """Values that turned out to be constants, which need no device to compute them, back on their device."""
    moved: dict[Any, Any] = {}
    for tensor, device in strayed:
        copy = moved.setdefault((tensor.uop, device), tensor.to(device))
        tensor.uop, tensor._place = copy.realize().uop, device


def _held_by_one_tensor() -> int:
    """What `getrefcount` says of the node of a tensor, in a variable, that nothing else holds."""
    holder = Values.__new__(Values)
    holder.uop = UOp.const(dtypes.float64, 0.5772156649)
    node = holder.uop
    return getrefcount(node)


_ALONE: Final = _held_by_one_tensor()
