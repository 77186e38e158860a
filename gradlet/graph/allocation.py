"""Numbers for BUFFER nodes: every allocation is a node that no other equals, whoever makes it."""

from __future__ import annotations

from itertools import count
from typing import Final

from gradlet.base.dtype import DType
from gradlet.graph.node import UOp, mk
from gradlet.ops.op import BufferArg, Op

_numbers: Final = count(1)


def new_buffer_node(device: str, dtype: DType, size: int) -> UOp:
    """A BUFFER node that no other node equals."""
    return mk(Op.BUFFER, dtype, (), BufferArg(next(_numbers), size, device))
