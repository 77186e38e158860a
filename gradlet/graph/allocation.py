"""Numbers for BUFFER nodes: every allocation is a node that no other equals, whoever makes it."""

from __future__ import annotations

from itertools import count
from typing import Final

from gradlet.base.dtype import DType, dtypes
from gradlet.graph.node import UOp, mk
from gradlet.ops.op import BufferArg, Op

# The number of a table that every device has once: 0, 1, 2, ... Rules may know what it holds.
COUNTER_NUMBER: Final = 0
_numbers: Final = count(1)


def new_buffer_node(device: str, dtype: DType, size: int) -> UOp:
    """A BUFFER node that no other node equals."""
    return mk(Op.BUFFER, dtype, (), BufferArg(next(_numbers), size, device))


def counter_node(device: str, size: int) -> UOp:
    """The BUFFER node of a device's table of 0, 1, ... size - 1."""
    return mk(Op.BUFFER, dtypes.int32, (), BufferArg(COUNTER_NUMBER, size, device))
