"""Kernels that the caller writes: `Tensor.custom_kernel`, and what such a kernel is written with.

A kernel is a Python function that runs once, when it is called, and builds a graph of the KERNEL stage: the same that
the scheduler makes of tensors. So the heuristic, a schedule given by hand, search, every renderer and every device work
on it as on others; nothing of it is text for one machine.
"""

# The constructor `wrap` makes whatever class is public: it is Any to the type checker.
# mypy: disable-error-code="no-any-return"

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from math import prod
from typing import Any, Final

from gradlet.base.dtype import DType, accumulator, dtypes, to_dtype
from gradlet.base.errors import (
    ArgumentError,
    DeviceError,
    DTypeError,
    GradientError,
    IndexingError,
    ShapeError,
    SpecError,
)
from gradlet.graph import spec
from gradlet.graph.bounds import bounds
from gradlet.graph.node import UOp, mk
from gradlet.ops.arguments import integer
from gradlet.ops.op import (
    AxisKind,
    CustomArg,
    KernelArg,
    LocalArg,
    Op,
    ParamArg,
    RangeArg,
    ReduceArg,
    Stage,
    identity_element,
)
from gradlet.ops.opt import Opt
from gradlet.optimize.opttext import parse_opts
from gradlet.rules.sets import simplify
from gradlet.runtime.device import Device
from gradlet.schedule.lowered import finish
from gradlet.tensor import symbolic
from gradlet.tensor.core import LazyTensor, wrap
from gradlet.tensor.derivative import with_rule
from gradlet.tensor.nodes import no_leaf

_NOT_IN_NAMES: Final = re.compile(r"\W+")
_LOADS: Final = 1 << Op.LOAD

Index = Any  # an int, a loop, integer arithmetic on these, or an integer that was loaded


class KernelArray:
    """A tensor inside a kernel, or an array of the core's own: `array[i, j]` loads, `array[i, j] = value` stores.

    There is an index for every axis. An index made of loops has to stay inside of the array for all their values, or
    the access says `where` it happens. One that was loaded is checked when the kernel runs: outside of the array a
    load gives `otherwise`, and a store does nothing.

    Attributes:
        name: what errors call it.
        shape: its shape.
        dtype: type of its elements.
    """

    def __init__(self, name: str, memory: UOp, shape: tuple[int, ...]) -> None:
        self.name = name
        self.shape = shape
        self.dtype = memory.dtype
        self._memory = memory
        self._stores: list[UOp] = []

    def __getitem__(self, index: Index | tuple[Index, ...]) -> UOp:
        return self.load(index)

    def __setitem__(self, index: Index | tuple[Index, ...], value: Any) -> None:
        self.store(index, value)

    def load(self, index: Index | tuple[Index, ...], where: UOp | None = None, otherwise: float = 0) -> UOp:
        """The element at `index`; `otherwise` where the condition `where` is false.

        Raises:
            IndexingError: too few or too many indices, or some that leave the array.
        """
        address = self._address(index, where)
        if len(address.src) > 2:
            return mk(Op.LOAD, self.dtype, (address, UOp.const(self.dtype, otherwise)))
        return mk(Op.LOAD, self.dtype, (address,))

    def store(self, index: Index | tuple[Index, ...], value: Any, where: UOp | None = None) -> None:
        """Store a value at `index`, for every value of the loops that the two depend on.

        Raises:
            IndexingError: as for `load`.
            DTypeError: a value of another type; `value.cast(array.dtype)` says what is meant.
        """
        if not isinstance(value, UOp):
            value = UOp.const(self.dtype, value)
        if value.dtype is not self.dtype:
            raise DTypeError(
                f"{self.name}: a value of {value.dtype.name} is stored in an array of {self.dtype.name}; "
                f"write value.cast({self.name}.dtype)"
            )
        self._stores.append(mk(Op.STORE, dtypes.void, (self._address(index, where), value)))

    def _address(self, index: Index | tuple[Index, ...], where: UOp | None) -> UOp:
        indices = index if isinstance(index, tuple) else (index,)
        if len(indices) != len(self.shape):
            raise IndexingError(f"{self.name}: {len(indices)} indices for an array of shape {self.shape}")
        element = UOp.const(dtypes.index, 0)
        guards = [] if where is None else [where]
        for axis, (position, size) in enumerate(zip(indices, self.shape, strict=True)):
            number = simplify(_index(position, self.name))
            guards += self._guard(axis, number, size, where)
            element = element * size + number
        address: tuple[UOp, ...] = (self._memory, simplify(element))
        if guards:
            guard = guards[0]
            for other in guards[1:]:
                guard = guard & other
            address = (*address, guard)
        return mk(Op.INDEX, self.dtype, address)

    def _guard(self, axis: int, number: UOp, size: int, where: UOp | None) -> list[UOp]:
        """The conditions that keep an index inside of its axis; none where it is known to stay there."""
        least, most = bounds(number)
        if (0 <= least and most < size) or any(loop.src[0].arg == 0 for loop in number.ranges):
            return []  # also in a loop that never runs
        if where is None and not number.mask & _LOADS:
            raise IndexingError(
                f"{self.name}: index {axis} goes from {least} to {most}, the axis has {size} elements; make the loop "
                f"shorter, or use load(..., where=) and store(..., where=)"
            )
        return [number >= 0, number < size]


class SharedArray(KernelArray):
    """An array that a core (on a GPU: the lanes of a workgroup) has for itself: store into it, then read `filled`."""

    def filled(self, *loops: UOp) -> KernelArray:
        """The array, to be read, once its stores have run over these loops.

        The copy is made wherever the other loops that its stores depend on are; what reads it comes after.

        Raises:
            ArgumentError: nothing was stored into it, or something that is no loop.
        """
        if not self._stores:
            raise ArgumentError(f"{self.name}: nothing was stored into it; write {self.name}[i] = value first")
        _check_loops(f"{self.name}.filled", loops)
        memory = mk(Op.AFTER, self.dtype, (self._memory, *self._stores, *loops))
        return KernelArray(self.name, memory, self.shape)


class Kernel:
    """What the function of a custom kernel gets first: it makes loops, sums over them, and arrays near the core."""

    def __init__(self) -> None:
        self._numbers = 0
        self._locals = 0
        self._closed: dict[UOp, UOp] = {}

    def loop(self, size: int) -> UOp:
        """A loop variable, 0 <= i < size. What depends on it runs for each of its values, in any order.

        Loops are numbered as they are made, from 0: a schedule names them so.
        """
        return self._range(UOp.const(dtypes.index, integer(size, "loop", "size")), AxisKind.LOOP)

    def loops(self, *sizes: int) -> tuple[UOp, ...]:
        """One loop for each size, outermost first."""
        return tuple([self.loop(size) for size in sizes])

    def sum(self, value: UOp, *loops: UOp) -> UOp:
        """The sum of a value over loops; floats of 16 bits are added up in float32 and rounded once."""
        wide = accumulator(value.dtype) if value.dtype.is_float else value.dtype
        return self._reduce(Op.ADD, value.cast(wide), loops).cast(value.dtype)

    def prod(self, value: UOp, *loops: UOp) -> UOp:
        """The product of a value over loops."""
        wide = accumulator(value.dtype) if value.dtype.is_float else value.dtype
        return self._reduce(Op.MUL, value.cast(wide), loops).cast(value.dtype)

    def max(self, value: UOp, *loops: UOp) -> UOp:
        """The largest of a value over loops; NaN if one is NaN."""
        return self._reduce(Op.MAX, value, loops)

    def min(self, value: UOp, *loops: UOp) -> UOp:
        """The least of a value over loops; NaN if one is NaN."""
        return self._reduce(Op.MIN, value, loops)

    def shared(self, shape: Sequence[int], dtype: DType | str) -> SharedArray:
        """An array near the core, at first without contents."""
        sizes = tuple([integer(size, "shared", "size") for size in shape])
        if not prod(sizes):
            raise ShapeError(f"shared: shape {sizes} has no elements")
        memory = mk(Op.LOCAL, to_dtype(dtype), (), LocalArg(self._locals, prod(sizes)))
        self._locals += 1
        return SharedArray(f"shared array {self._locals - 1}", memory, sizes)

    def _range(self, size: UOp, kind: AxisKind) -> UOp:
        self._numbers += 1
        return mk(Op.RANGE, dtypes.index, (size,), RangeArg(self._numbers - 1, kind))

    def _reduce(self, op: Op, value: UOp, loops: Sequence[UOp]) -> UOp:
        _check_loops(op.name.lower(), loops)
        if any(loop.src[0].arg == 0 for loop in loops):
            return UOp.const(value.dtype, identity_element(op, value.dtype))
        for loop in loops:
            if loop not in self._closed:
                self._closed[loop] = self._range(loop.src[0], AxisKind.REDUCE)
        closed = {loop: self._closed[loop] for loop in loops}
        return mk(Op.REDUCE, value.dtype, (value.substitute(closed), *closed.values()), ReduceArg(op))


class CustomKernels(LazyTensor):
    """Kernels of the caller's own."""

    __slots__ = ()

    @staticmethod
    def custom_kernel(
        *tensors: Any,
        fn: Callable[..., Any],
        grad: Callable[..., Any] | None = None,
        opts: str | Sequence[Opt] | None = None,
    ) -> Any:
        """Results of a kernel that is written by hand, as a Python function over arrays of these tensors.

        `fn(kernel, *arrays)` makes loops with `kernel.loop(size)`, loads with `array[i, j]`, stores with
        `array[i, j] = value`; see `KernelArray` and `Kernel`. An array that it stores to is a result: the tensor given
        for it says shape, type and device (`Tensor.empty(...)`), and keeps its own value. Elements that nothing is
        stored to are 0. The kernel is lazy like every other operation, and may be jitted; equal ones are compiled once.

        Args:
            tensors: results and operands, in the order in which `fn` takes them.
            fn: writes the kernel. It is called at once, and returns nothing.
            grad: `grad(*gradients of the results, *operands)` gives the gradient of each operand, in its shape: a
                tensor, None where there is none, or a tuple of them. Without it a gradient is refused.
            opts: the schedule, as `parse_opts` reads it: `"VECTORIZE(range 1, 8), PARALLEL(range 0)"`; the heuristic
                chooses where it is None. Loops are numbered as they are made.

        Returns:
            The tensor of the one array that is stored to; of several a tuple, in the order of `tensors`.

        Raises:
            ArgumentError: nothing is stored, an array is both read and stored to, or the schedule is not possible.
            IndexingError: an index leaves its array.
            DTypeError: a value of another type than the array's.
            DeviceError: tensors on different devices.

        >>> def add_rows(kernel, total, table):
        ...     row, column = kernel.loops(*table.shape)
        ...     total[column] = kernel.sum(table[row, column], row)
        >>> Tensor.custom_kernel(Tensor.empty(2), Tensor([[1.0, 2.0], [3.0, 4.0]]), fn=add_rows).tolist()
        [4.0, 6.0]
        """
        if not callable(fn) or isinstance(fn, LazyTensor):
            raise ArgumentError(f"custom_kernel: fn is {type(fn).__name__}; give a function fn(kernel, *arrays)")
        place: str | None = None
        for number, tensor in enumerate(tensors):
            if not isinstance(tensor, LazyTensor):
                raise ArgumentError(
                    f"custom_kernel: argument {number} is {type(tensor).__name__}, not a Tensor; "
                    f"wrap it as Tensor(...), or use it inside of fn as a Python number"
                )
            if place is not None and tensor._place is not None and tensor._place != place:
                raise DeviceError(
                    f"custom_kernel: tensors are on {place} and {tensor._place}; move one with .to({place!r})"
                )
            place = place if place is not None else tensor._place
        device = Device.canonicalize(place)
        made = make_custom([no_leaf(tensor.uop) for tensor in tensors], fn, opts, device)
        results = [wrap(symbolic.checked(node), device) for node in made.values()]
        operands = [tensor for number, tensor in enumerate(tensors) if number not in made]
        results = _with_gradient(getattr(fn, "__name__", "fn"), results, operands, grad)
        return results[0] if len(results) == 1 else tuple(results)


def _with_gradient(
    name: str, results: list[Any], operands: Sequence[Any], grad: Callable[..., Any] | None
) -> list[Any]:
    """The results with the caller's rule, or with one that refuses."""

    def rule(*gradients: Any) -> Any:
        if grad is None:
            raise GradientError(f"custom_kernel: {name} has no gradient; give one with grad=, or detach its operands")
        return grad(*gradients, *operands)

    return [with_rule(f"grad of {name}", results, position, operands, rule) for position in range(len(results))]


def make_custom(
    arrays: Sequence[UOp], function: Callable[..., Any], opts: str | Sequence[Opt] | None, device: str
) -> dict[int, UOp]:
    """The results of a custom kernel over some nodes: for the number of every array that is stored to its new node.

    Raises:
        ArgumentError: nothing is stored, an array is both read and stored to, or the graph is no kernel.
    """
    name = getattr(function, "__name__", type(function).__name__)
    inside = [
        KernelArray(f"array {number}", mk(Op.PARAM, node.dtype, (), ParamArg(number, prod(node.shape))), node.shape)
        for number, node in enumerate(arrays)
    ]
    function(Kernel(), *inside)
    stores = [store for array in inside for store in array._stores]
    if not stores:
        raise ArgumentError(f"custom_kernel: {name} stores nothing; write out[i] = value inside of it")
    sink = mk(Op.SINK, dtypes.void, tuple(stores), KernelArg(name))
    written = [number for number, array in enumerate(inside) if array._stores]
    for node in sink.toposort():
        if node.op is Op.LOAD and node.src[0].src[0].op is Op.PARAM and node.src[0].src[0].arg.slot in written:
            number = node.src[0].src[0].arg.slot
            raise ArgumentError(
                f"custom_kernel: {name} reads array {number} and stores to it, in no certain order; store to a tensor "
                f"of its own, Tensor.empty(...), and read this one"
            )
    whole = [_is_whole(inside[number], stores) for number in written]
    sources = [number for number in range(len(arrays)) if number not in written]
    order = {number: position for position, number in enumerate((*written, *sources))}
    if not all(_runs(store) for store in stores):
        sink = sink.replace(src=tuple([store for store in stores if _runs(store)]))
    lowered = finish(simplify(sink), [mk(Op.PARAM, a.dtype, (), ParamArg(n, 0)) for n, a in enumerate(arrays)], [])
    chosen = _schedule(opts)
    kernel = lowered.ast.replace(arg=KernelArg("custom_" + _NOT_IN_NAMES.sub("_", name), chosen))
    try:
        spec.check(kernel, Stage.KERNEL)
    except SpecError as error:
        raise ArgumentError(f"custom_kernel: {name} is no kernel: {error}") from error
    arg = CustomArg(
        kernel, tuple([order[param.arg.slot] for param in lowered.buffers]), 0,
        tuple([arrays[number].shape for number in written]), tuple([arrays[number].dtype for number in written]),
        tuple(whole), device,
    )  # fmt: skip
    operands = tuple([arrays[number] for number in sources])
    return {
        number: mk(Op.CUSTOM, arrays[number].dtype, operands, arg._replace(output=position))
        for position, number in enumerate(written)
    }


def _schedule(opts: str | Sequence[Opt] | None) -> tuple[Opt, ...] | None:
    """A schedule as opts."""
    if opts is None:
        return None
    if isinstance(opts, str):
        return parse_opts(opts)
    if isinstance(opts, (tuple, list)) and all(isinstance(opt, Opt) for opt in opts):
        return tuple(opts)
    raise ArgumentError(f"custom_kernel: opts is {type(opts).__name__}; give a text or a sequence of Opt")


def _runs(store: UOp) -> bool:
    """Whether a store happens at all: none of its loops is empty."""
    return all(loop.src[0].arg for loop in store.ranges)


def _index(position: Index, name: str) -> UOp:
    """An index as a node."""
    if not isinstance(position, UOp):
        return UOp.const(dtypes.index, integer(position, name, "index"))
    if not position.dtype.is_int:
        raise IndexingError(f"{name}: an index of type {position.dtype.name}; indices are integers")
    return position.cast(dtypes.index)


def _check_loops(what: str, loops: Sequence[UOp]) -> None:
    for loop in loops:
        if not isinstance(loop, UOp) or loop.op is not Op.RANGE:
            raise ArgumentError(f"{what}: {loop!r} is no loop; make one with kernel.loop(size)")
    if not loops or len(set(loops)) != len(loops):
        raise ArgumentError(f"{what}: name each loop once, and at least one")


def _is_whole(array: KernelArray, stores: Sequence[UOp]) -> bool:
    """Whether one store is known to reach all elements: its number counts through them, in whatever loops."""
    for store in stores:
        memory, element, *guard = store.src[0].src
        if memory is array._memory and not guard and _runs(store) and _counts_to(prod(array.shape), element):
            return True
    return not prod(array.shape)


def _counts_to(count: int, element: UOp) -> bool:
    """Whether a number takes all values below `count`: it is a sum of loops whose steps follow from their sizes."""
    expected = 1
    terms = _terms(element)
    for factor in sorted(terms):
        loop = terms[factor]
        if factor != expected or list(terms.values()).count(loop) > 1:
            return False
        expected *= int(loop.src[0].arg)
    return expected == count


def _terms(element: UOp) -> dict[int, UOp]:
    """Factor -> loop of a sum of loops times factors; a term that is something else has the factor 0."""
    found: dict[int, UOp] = {}
    stack = [element]
    while stack:
        node = stack.pop()
        if node.op is Op.ADD:
            stack.extend(node.src)
            continue
        if node.op is Op.CONST and node.arg == 0:
            continue
        factor, loop = 1, node
        if node.op is Op.MUL and node.src[1].op is Op.CONST:
            factor, loop = int(node.src[1].arg), node.src[0]
        if loop.op is not Op.RANGE or factor in found:
            factor = 0
        found[factor] = loop
    return found
