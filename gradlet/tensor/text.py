"""What a tensor looks like in print: what is known of it, without computing anything."""

from __future__ import annotations

from math import prod
from typing import Any, Final

from gradlet.engine import execute
from gradlet.ops.op import Op
from gradlet.runtime.buffer import buffer_of
from gradlet.tensor import hostdata, symbolic, writes
from gradlet.tensor.core import LazyTensor

# Larger tensors are abbreviated to so many elements at both ends of an axis.
SHOWN_ELEMENTS: Final = 1000
EDGE: Final = 3


class Text(LazyTensor):
    """The printed form."""

    __slots__ = ()

    def __repr__(self) -> str:
        """Shape, type, device, and the values if they are in memory. Never computes, never raises."""
        try:
            return _describe(self)
        except Exception as error:  # a debugger shows half-made objects too
            return f"<Tensor whose value is not known: {type(error).__name__}: {error}>"


def _describe(tensor: Any) -> str:
    kind = f"<Tensor shape {tensor.shape}, {tensor.dtype}, {tensor.device}"
    if execute.recording():
        return f"{kind}, inside a jitted function>"
    if prod(tensor.uop.shape) == 0:
        return f"{kind}\n  []>"
    if not _is_known(tensor):
        return f"{kind}, not computed>"
    text = _values(tensor).replace("\n", "\n  ")
    return f"{kind}\n  {text}>"


def _is_known(tensor: Any) -> bool:
    """Whether the values can be read without running anything."""
    base, _ = writes.strip(tensor.uop)
    return base.op is Op.BUFFER and buffer_of(base).is_allocated and not symbolic.is_symbolic(tensor.uop)


def _values(tensor: Any) -> str:
    """The values as numpy prints them; of a large tensor only the ends of its axes are read."""
    import numpy as np

    array = tensor.host_view()
    if array.size <= SHOWN_ELEMENTS:
        return str(np.array2string(hostdata.readable(array, tensor.dtype), threshold=SHOWN_ELEMENTS))
    for axis, size in enumerate(array.shape):
        if size > 2 * EDGE + 1:
            # One more than is shown, so that numpy puts its dots.
            array = array.take([*range(EDGE + 1), *range(size - EDGE, size)], axis)
    return str(np.array2string(hostdata.readable(array, tensor.dtype), threshold=0, edgeitems=EDGE))
