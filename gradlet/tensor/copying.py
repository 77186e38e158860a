"""Copies of tensors: pickling, `copy.copy`, `copy.deepcopy`."""

from __future__ import annotations

import pickle
from math import prod
from typing import Any, Self, SupportsIndex

from gradlet.base.dtype import DType
from gradlet.engine import execute
from gradlet.runtime.buffer import new_buffer_node
from gradlet.runtime.device import Device
from gradlet.tensor import symbolic
from gradlet.tensor.core import in_memory, wrap
from gradlet.tensor.exchange import Exchange


class Copying(Exchange):
    """Copying a tensor object."""

    __slots__ = ()

    def __copy__(self) -> Self:
        """Another tensor of the same value: writing to one of them leaves the other alone."""
        result = wrap(self.uop, self._place)
        result.grad, result.is_param = self.grad, self.is_param
        return result  # type: ignore[no-any-return]

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        """A tensor of the same values in memory of its own: no gradient flows between the two, and a copied view is no
        view any more. `grad` and `is_param` are copied as well.
        """
        found = memo.get(id(self))
        if found is not None:
            return found  # type: ignore[no-any-return]
        # The memory makes it a value that equals no other: gradients tell it from this one, and from further copies.
        symbolic.refuse(self.uop, "deepcopy")
        node = new_buffer_node(self.device, self.dtype, prod(self.shape))
        result = wrap(node, self.device).reshape(self.shape)
        result._view = None
        if 0 not in self.shape:
            result.assign(self.detach())
        memo[id(self)] = result
        result.is_param = self.is_param
        result.grad = None if self.grad is None else self.grad.__deepcopy__(memo)
        return result  # type: ignore[no-any-return]

    def __reduce_ex__(self, protocol: SupportsIndex) -> Any:
        """What pickling keeps: the values, the type, the device, and whether an optimizer trains it.

        The values are computed now. From protocol 5 on they can be handed to `buffer_callback` without a copy.

        Raises:
            JitError: inside a jitted function.
        """
        execute.refuse_in_capture("pickling a tensor", "pickle it outside")
        array = self.host_view()
        if int(protocol) >= 5 and array.flags.c_contiguous:
            data: Any = pickle.PickleBuffer(array)
        else:
            data = array.tobytes()
        return rebuild, (data, self.dtype, tuple(array.shape), self._place, self.is_param)

    def __reduce__(self) -> Any:
        return self.__reduce_ex__(2)


def rebuild(data: Any, dtype: DType, shape: tuple[int, ...], device: str | None, is_param: bool = False) -> Any:
    """Undo pickling: the bytes are copied, so that whoever lent them may use them again."""
    result = in_memory(data, dtype, shape, Device.canonicalize(device), True)
    result.is_param = is_param
    return result
