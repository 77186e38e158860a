"""What all readers of files share: paths, tensors over mapped memory, and parts of hostile values for messages."""

from __future__ import annotations

import os
from typing import Any

from gradlet.base.dtype import DType
from gradlet.base.errors import ArgumentError
from gradlet.runtime.buffer import Buffer, bind, new_buffer_node
from gradlet.runtime.device import Device
from gradlet.tensor.tensor import Tensor


def path_text(path: str | os.PathLike[str]) -> str:
    """The path as text; a number would be an open file of somebody else.

    Raises:
        ArgumentError: not a path.
    """
    if not isinstance(path, str | os.PathLike):
        raise ArgumentError(f"path: expected the path of a file, got {type(path).__name__}")
    return os.fspath(path)


def host_tensor(memory: Any, dtype: DType, device: str | None = None) -> Tensor:
    """All elements in a part of host memory, on a device, else the default one; on the CPU they are that memory."""
    size = memoryview(memory).nbytes // dtype.itemsize
    node = new_buffer_node("CPU", dtype, size)
    bind(node, Buffer.over("CPU", dtype, size, memory))
    return Tensor.of_node(node).to(device or Device.DEFAULT)


def short(value: Any) -> str:
    """Part of a hostile value, for a message."""
    text = value if isinstance(value, str) else repr(value)
    return text if len(text) <= 80 else text[:77] + "..."
