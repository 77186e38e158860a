"""The public `Tensor`: a lazy value. Operations build a graph; `realize`, `numpy`, `item` and friends compute it.

Two tensors of different types meet in their common type; Python numbers take the tensor's type where they fit. Shapes
broadcast. A lazy value sees its inputs as they were when it was built: writing to a tensor later does not change it.
"""

# The constructor `wrap` makes whatever class is public: it is Any to the type checker.
# mypy: disable-error-code="no-any-return"

from __future__ import annotations

import re
from collections.abc import Callable
from functools import wraps
from math import prod
from typing import Any, Final

from gradlet.base.dtype import DType, bool_type, dtypes, int_type, to_dtype
from gradlet.base.errors import ArgumentError, DTypeError, IndexingError, JitError, ShapeError
from gradlet.base.symint import Size
from gradlet.engine import execute
from gradlet.graph.node import UOp
from gradlet.ops.arguments import Shape, integer, sizes
from gradlet.ops.op import Op
from gradlet.runtime.buffer import as_bytes, new_buffer_node
from gradlet.runtime.device import Device
from gradlet.tensor import hostdata, random_state, symbolic, variable_index
from gradlet.tensor.casts import Casts
from gradlet.tensor.copying import Copying
from gradlet.tensor.core import LazyTensor, adopt, from_host, wrap
from gradlet.tensor.customkernel import CustomKernels
from gradlet.tensor.elementary import Elementary
from gradlet.tensor.exchange import from_foreign, shares_memory
from gradlet.tensor.gradient import Gradients
from gradlet.tensor.marks import Marks
from gradlet.tensor.nodes import node_cast, place_of
from gradlet.tensor.recipes import Recipes
from gradlet.tensor.text import Text
from gradlet.tensor.writing import Writing

# The names of the variables that constants and random draws stand on.
RESERVED_NAMES: Final = re.compile(r"(const|draw|seed)\d+[ab]?|never")

# A list of so many integers may be an index inside a jitted function.
MOST_LISTED: Final = 32


class Tensor(Recipes, Casts, Elementary, Text, Copying, Gradients, Marks, Writing, CustomKernels, public=True):
    """A lazy multi-dimensional array.

    Args:
        data: a number, nested lists of numbers, anything numpy can read, a bytes-like object (bytes are uint8 unless
            `dtype` says otherwise), a bound Variable, a Tensor, or None for a tensor without elements.
        device: where it lives; the default device when None.
        dtype: element type; follows from the data when None. Python floats become the default float.
        copy: False lets the tensor use the memory of an array or buffer as its own, where the device can.

    Raises:
        DTypeError: data that is no number, or integers that do not fit.
        ShapeError: ragged nested lists.
        DeviceError: no such device.

    Attributes:
        uop: the graph node of the value.
        grad: the gradient that `backward` left, or None.
        is_param: True for tensors that an optimizer trains: where a loss depends on some, `backward` fills only those.
        training: whether dropout drops and batch norm uses the batch (for all tensors); see `train`.

    >>> (Tensor([[1.0, 2.0], [3.0, 4.0]]) @ Tensor([1.0, 1.0])).tolist()
    [3.0, 7.0]
    """

    __slots__ = ()

    def __init__(
        self, data: Any = None, device: str | None = None, dtype: DType | str | None = None, *, copy: bool_type = True
    ) -> None:
        chosen = None if dtype is None else to_dtype(dtype)
        adopt(self, _from_data(data, None if device is None else Device.canonicalize(device), chosen, copy))

    @staticmethod
    def of_node(node: UOp) -> Tensor:
        """The tensor of a graph node."""
        return wrap(node, place_of(node))

    @staticmethod
    def all_live() -> list[Tensor]:
        """Every tensor alive."""
        return LazyTensor.all_live()

    def from_data(self, value: Any, dtype: DType | None = None) -> Tensor:
        """Host data as a tensor on this one's device."""
        return Tensor(value, self._place, dtype)

    def invalidate(self, message: str) -> None:
        """Make every later use raise `JitError` with this message."""
        self.grad = message
        self.__class__ = _InvalidTensor

    # creation from memory
    @staticmethod
    def empty(*shape: Any, dtype: DType | str | None = None, device: str | None = None) -> Tensor:
        """Memory whose contents are not set.

        Raises:
            ShapeError: a negative size.

        >>> Tensor.empty(2, 3).shape
        (2, 3)
        """
        wanted = sizes(shape, "empty")
        chosen = dtypes.default_float if dtype is None else to_dtype(dtype)
        name = Device.canonicalize(device)
        result: Tensor = wrap(new_buffer_node(name, chosen, prod(wanted)), name).reshape(wanted)
        return result

    def empty_like(self, dtype: DType | str | None = None, device: str | None = None) -> Tensor:
        """Memory in this one's shape, type and device whose contents are not set.

        >>> Tensor([1, 2]).empty_like().shape
        (2,)
        """
        return Tensor.empty(*self.shape, dtype=dtype or self.dtype, device=device or self.device)

    def new_empty(self, *size: Any, dtype: DType | str | None = None, device: str | None = None) -> Tensor:
        """Memory in another shape, of this one's type and device unless others are given; contents are not set.

        Raises:
            ShapeError: a negative size.

        >>> Tensor([1, 2]).new_empty(3).shape
        (3,)
        """
        return Tensor.empty(*size, dtype=dtype or self.dtype, device=device or self._place)

    def new_tensor(self, data: Any, dtype: DType | str | None = None, device: str | None = None) -> Tensor:
        """Data as a tensor of its own, of this one's type and device unless others are given.

        >>> Tensor([1.5]).new_tensor([1, 2]).tolist()
        [1.0, 2.0]
        """
        made: Tensor = Tensor(data, device or self._place, dtype or self.dtype).clone()
        return made

    @staticmethod
    def from_numpy(array: Any, device: str | None = None, copy: bool_type = True) -> Tensor:
        """A numpy array as a tensor; with `copy=False` over the array's own memory where the device can.

        >>> import numpy as np
        >>> Tensor.from_numpy(np.array([1.5])).dtype
        dtypes.float64
        """
        return Tensor(array, device, copy=copy)

    # settings of all tensors
    @staticmethod
    def manual_seed(seed: int_type = 0) -> None:
        """Start the sequence of random draws that belongs to this seed; seeds count modulo 2**64.

        Raises:
            ArgumentError: not an integer.
            JitError: inside a jitted function.

        >>> Tensor.manual_seed(3)
        >>> first = Tensor.rand(2).tolist()
        >>> Tensor.manual_seed(3)
        >>> Tensor.rand(2).tolist() == first
        True
        """
        execute.refuse_in_capture("manual_seed", "call it outside")
        random_state.set_seed(seed)

    class train:
        """`with Tensor.train():` switches `Tensor.training` on for a block; also a decorator.

        >>> with Tensor.train():
        ...     Tensor.training
        True
        """

        def __init__(self, mode: bool_type = True) -> None:
            self.mode = mode
            self._before: list[bool_type] = []

        def __enter__(self) -> None:
            self._before.append(Tensor.training)
            LazyTensor.training = Tensor.training = self.mode

        def __exit__(self, *details: Any) -> None:
            LazyTensor.training = Tensor.training = self._before.pop()

        def __call__(self, function: Callable[..., Any]) -> Callable[..., Any]:
            @wraps(function)
            def wrapped(*args: Any, **kwargs: Any) -> Any:
                with Tensor.train(self.mode):
                    return function(*args, **kwargs)

            return wrapped

    # indexing by data
    @staticmethod
    def is_index_tensor(value: Any) -> bool_type:
        """Whether this part of an index selects by data."""
        return isinstance(value, (Tensor, list)) or (hasattr(value, "__array__") and getattr(value, "ndim", 0) > 0)

    def as_index(self, value: Any, size: int_type, axis: int_type) -> Tensor:
        """A list, array or tensor as an index tensor for an axis of `size`."""
        if isinstance(value, Tensor):
            if not value.dtype.is_int:
                raise IndexingError(f"index tensor on axis {axis} is {value.dtype}; cast it to an integer type")
            return value
        data = hostdata.from_python(value, None) if isinstance(value, list) else hostdata.from_array(value, None)
        if 0 in data.shape:
            return wrap(UOp.const(dtypes.int32, 0), None).expand(data.shape)
        if not data.dtype.is_int:
            raise IndexingError(f"index on axis {axis} holds {data.dtype}; use integers")
        flat = data.memory.tolist()
        for number in flat:
            if not -size <= number < size:
                raise IndexingError(f"index {number} is out of range for axis {axis} of size {size}")
        places = [n + size if n < 0 else n for n in flat]
        dtype = dtypes.int64 if size > 2**31 else dtypes.int32
        result: Tensor
        if execute.recording() and isinstance(value, list) and len(places) <= MOST_LISTED:
            # Inside a jitted function a short list is a constant of the kernels, as a number is.
            parts = [self.constant(n, (1,), dtype, self._place, False) for n in places]
            result = parts[0].cat(*parts[1:]).reshape(data.shape)
            return result
        result = from_host(hostdata.HostData(hostdata.pack(places, dtype), dtype, data.shape), self._place, True)
        return result

    @staticmethod
    def is_variable(value: Any) -> bool_type:
        """Whether a number of an index is known only at launch."""
        return isinstance(value, (UOp, Size))

    def limited_part(self, part: Any, size: int_type, axis: int_type) -> tuple[int_type, int_type, UOp | None] | None:
        """For a slice whose length is known only at launch the box that it can reach, and the length; else None."""
        return variable_index.limited_box(part, size, axis)

    def limit_axis(self, axis: int_type, size: UOp) -> Tensor:
        """The first positions of an axis, as many as `size` says at launch."""
        return wrap(symbolic.first_positions(self.uop, axis, size), self._place)

    def variable_part(self, part: Any, size: int_type, axis: int_type) -> tuple[Tensor, int_type | None]:
        """An index by variables on an axis of `size`: its first position, and how many from there on."""
        start, count = variable_index.first_and_count(part, size, axis)
        return wrap(start, None), count

    def mask_positions(self, mask: Any) -> tuple[list[Tensor], Shape]:
        """For a bool mask the index tensor of each of its axes, and its shape; for other values none."""
        if isinstance(mask, Tensor):
            if mask.dtype is not dtypes.bool:
                return [], ()
            if execute.recording():
                raise JitError(
                    "a bool mask selects a number of elements that is known only when it is computed, and a jitted "
                    "function would keep that of the first call: use where(mask, x, 0), or mask outside"
                )
            array = mask.numpy()
        elif isinstance(mask, list) and _first_element(mask).__class__ is bool:
            import numpy as np

            hostdata.flatten(mask)  # refuses ragged lists
            array = np.array(mask)
            if array.dtype.kind != "b":
                return [], ()
        elif getattr(getattr(mask, "dtype", None), "kind", "") == "b" and hasattr(mask, "__array__"):
            array = mask
        else:
            return [], ()
        if not array.ndim:
            raise IndexingError("a bool without axes is no index; use where(mask, x, 0)")
        return [Tensor(column.astype("int32"), self._place) for column in array.nonzero()], array.shape

    def computed_now(self, what: str, remedy: str, *others: Tensor) -> Tensor:
        """This, and others with it, in memory, computed now."""
        execute.refuse_in_capture(what, remedy)
        return (self if self.is_realized else self.contiguous()).realize(*others)


class _InvalidTensor(Tensor):
    """A tensor whose value is not known any more; every use raises."""

    __slots__ = ()
    has_value = False

    @property
    def uop(self) -> Any:  # type: ignore[override]
        """There is none."""
        raise JitError(str(self.grad))


def _first_element(value: Any) -> Any:
    while isinstance(value, list) and value:
        value = value[0]
    return value


def _from_data(data: Any, device: str | None, dtype: DType | None, copy: bool_type) -> Tensor:
    """A tensor of any data that the constructor takes."""
    result: Tensor
    if isinstance(data, Tensor):
        result = data if dtype is None else data.cast(dtype)
        return result if device is None else result.to(device)
    if isinstance(data, UOp):
        if data.op is Op.VARIABLE:
            raise ArgumentError(f"variable {data.arg.name!r} has no value; give it one: Tensor(variable.bind(3))")
        node = data if data.dtype.kind != "x" else node_cast(data, dtype or dtypes.default_int)
        result = wrap(node if dtype is None else node_cast(node, dtype), None)
        return result
    if data is None:
        return Tensor.empty(0, dtype=dtype, device=device)
    if isinstance(data, (bool_type, int_type, float)) and execute.recording():
        # Inside a jitted function a number is a constant of the kernels, like a number in an expression.
        return Tensor.constant(data, (), dtype or hostdata.type_of([data]), device, True)
    if isinstance(data, (list, tuple, bool_type, int_type, float)):
        host = hostdata.from_python(data, dtype)
    elif isinstance(data, (bytes, bytearray, memoryview)):
        host = _from_bytes(data, dtype)
    elif shares_memory(data) and (shared := from_foreign(data, device, copy)) is not None:
        return shared if dtype is None else shared.cast(dtype)
    elif hasattr(data, "__array__"):
        host = hostdata.from_array(data, dtype)
    else:
        raise DTypeError(f"cannot make a tensor of {type(data).__name__}; use numbers, nested lists, arrays or bytes")
    result = from_host(host, device, copy or isinstance(data, (list, tuple, bool_type, int_type, float)))
    return result if dtype is None else result.cast(dtype)


def _from_bytes(data: Any, dtype: DType | None) -> hostdata.HostData:
    view = memoryview(data)
    if dtype is None and view.format not in ("B", "b", "c"):
        return hostdata.from_array(view, None)
    flat = as_bytes(view)
    chosen = dtypes.uint8 if dtype is None else dtype
    if flat.nbytes % chosen.itemsize:
        raise ShapeError(f"{flat.nbytes} bytes do not divide into elements of {chosen} ({chosen.itemsize} bytes)")
    return hostdata.HostData(flat, chosen, (flat.nbytes // chosen.itemsize,))


def Variable(name: str, min_val: int_type, max_val: int_type) -> UOp:
    """An integer whose value is given when it is used: `Variable("n", 1, 10).bind(3)`.

    It is a number in arithmetic, a position in an index (`x[n]`, `x[n : n + 4]`), or the size of an axis (`x[:n]`):
    that is then known only at launch, memory is taken for the largest, and the same kernels serve all values.

    Raises:
        ArgumentError: an empty range, or arguments of other types.

    >>> n = Variable("n", 1, 10)
    >>> (Tensor([1, 2]) * n.bind(3)).tolist()
    [3, 6]
    >>> x = Tensor.arange(10)[: n.bind(3)]
    >>> x.shape, x.sum().item(), x.pad_to(10).shape
    ((n,), 3, (10,))
    """
    if not isinstance(name, str) or not name:
        raise ArgumentError(f"Variable: name must be text, got {name!r}")
    if RESERVED_NAMES.fullmatch(name):
        raise ArgumentError(f"Variable: the name {name!r} is used for constants and random numbers; take another")
    return UOp.variable(name, integer(min_val, "Variable", "min_val"), integer(max_val, "Variable", "max_val"))
