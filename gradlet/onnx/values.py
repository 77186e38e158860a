"""Values that flow through a graph: tensors, arrays known on the host, sequences, maps, and optionals that are empty.

A value *known* on the host (a constant, a shape, and what is computed from these) never launches a kernel: operators on
known values are folded on numpy, and it becomes a tensor only where a tensor is needed. The data of graph inputs can be
read as numbers too, where an operator needs numbers (a shape, axes), but is not folded.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, TypeAlias

import numpy as np

from gradlet.base.errors import DTypeError, ShapeError
from gradlet.base.symint import Size
from gradlet.onnx.elements import STRING, carried, dtype_of, element_name, number_of, number_of_array
from gradlet.tensor.tensor import Tensor

Array: TypeAlias = "np.ndarray[Any, Any]"
# How operators have their inputs read; see registry.
Ints: TypeAlias = "list[int]"
Number: TypeAlias = Any
# Arrays of more bytes are not kept beside their tensor.
KEPT_BYTES: Final = 1 << 18
INT64: Final = 7
MOST_SIZES: Final = 64  # in a value that a kernel reads


def has_sizes(array: Array) -> bool:
    """Whether some of the numbers are sizes that are known only at launch: what shapes of such tensors are made of."""
    return array.dtype.kind == "O" and any(isinstance(number, Size) for number in array.flat)


class Value:
    """One tensor of a graph.

    Attributes:
        elem: its element type, which says more than the type of the tensor: int4 lies in int8.
        known: whether the value is known without running a kernel, whatever the inputs hold.
        was_read: whether somebody looked at its numbers.
    """

    __slots__ = ("elem", "known", "was_read", "_tensor", "_array", "_pull")

    def __init__(
        self,
        tensor: Tensor | None,
        array: Array | None,
        elem: int,
        known: bool,
        pull: Callable[[], Array | None] | None = None,
    ) -> None:
        self.elem = elem
        self.known = known
        self.was_read = False
        self._tensor = tensor
        self._array = array
        self._pull = pull

    @staticmethod
    def of_tensor(tensor: Tensor, elem: int | None = None, pull: Callable[[], Array | None] | None = None) -> Value:
        """A value that a device computes; `pull` computes it on the host from inputs, should numbers be needed."""
        return Value(tensor, None, number_of(tensor.dtype) if elem is None else elem, False, pull)

    @staticmethod
    def of_array(array: Any, elem: int | None = None, known: bool = True) -> Value:
        """A value on the host."""
        found = np.asarray(array)
        if elem is None and has_sizes(found):
            elem = INT64
        number = number_of_array(found) if elem is None else elem
        if number == STRING and found.dtype.kind != "O":
            found = found.astype(object)
        return Value(None, found, number, known)

    @property
    def is_text(self) -> bool:
        return self.elem == STRING

    @property
    def on_host(self) -> bool:
        """Whether `array` needs no kernel."""
        return self._array is not None or self._pull is not None

    @property
    def is_tensor(self) -> bool:
        """Whether it is one already."""
        return self._tensor is not None

    @property
    def shape(self) -> tuple[Any, ...]:
        return self._array.shape if self._tensor is None and self._array is not None else self.needed().shape

    @property
    def ndim(self) -> int:
        return len(self.shape)

    def needed(self) -> Tensor:
        """The tensor of a value that has one."""
        assert self._tensor is not None
        return self._tensor

    def tensor(self, constant: Callable[[Array], Tensor]) -> Tensor:
        """The value as a tensor; `constant` makes one of an array.

        Raises:
            DTypeError: text, which no device has.
        """
        if self._tensor is None:
            assert self._array is not None
            if self.elem != STRING and self._array.dtype.kind == "O":
                self._tensor = _of_sizes(self._array, self.elem, constant)
                return self._tensor
            if self._array.dtype.kind in "Oc":
                raise DTypeError(f"{element_name(self.elem)} is no type of tensors")
            self._tensor = constant(carried(self._array))
            if self._array.nbytes > KEPT_BYTES:
                self._array = None  # weights lie in memory once
        return self._tensor

    def array(self) -> Array:
        """The value as an array in the type that carries it; reading it from the device where it must be."""
        self.was_read = True
        if self._array is None:
            self._array = None if self._pull is None else self._pull()
        if self._array is None:
            self._array = self.needed().numpy()
        return self._array if self.elem == STRING or self._array.dtype.kind == "O" else carried(self._array)


def _of_sizes(array: Array, elem: int, constant: Callable[[Array], Tensor]) -> Tensor:
    """Numbers of which some are sizes that are known only at launch, as a tensor of a few elements.

    Raises:
        ShapeError: they are many.
    """
    if array.size > MOST_SIZES:
        raise ShapeError(f"{array.size} numbers with sizes that are known only at launch; the most is {MOST_SIZES}")
    dtype = dtype_of(elem, "sizes")
    fixed = np.array([0 if isinstance(n, Size) else n for n in array.flat], np.int64)
    zeros = constant(np.zeros(1, np.int64))
    parts = [zeros + n if isinstance(n, Size) else constant(fixed[i : i + 1]) for i, n in enumerate(array.flat)]
    whole = parts[0].cat(*parts[1:]) if len(parts) > 1 else parts[0]
    return whole.reshape(array.shape).cast(dtype)


class Map:
    """A map: what it has for each key, on the host.

    Attributes:
        entries: keys are Python integers or text, values Python numbers or text.
        elem: the element type of its values.
    """

    __slots__ = ("entries", "elem")

    def __init__(self, entries: dict[Any, Any], elem: int) -> None:
        self.entries = entries
        self.elem = elem


class Empty:
    """An optional that holds nothing."""

    def __repr__(self) -> str:
        return "EMPTY"


EMPTY: Final = Empty()
