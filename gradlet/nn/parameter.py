"""Tensors with memory of their own from the start: parameters and optimizer state with a fixed first value.

A lazy `Tensor.ones(3)` is an expression, and equal expressions are one node: two layers would share it, and a gradient
could not tell their uses apart. Memory is never shared.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod, sqrt

from gradlet.base.dtype import DType, as_scalar, dtypes
from gradlet.ops.arguments import sizes
from gradlet.runtime.buffer import buffer_of, new_buffer_node
from gradlet.runtime.device import Device
from gradlet.tensor.tensor import Tensor


def from_bytes(data: bytes, dtype: DType, shape: Sequence[int], device: str | None = None) -> Tensor:
    """A tensor in new memory that holds `data`."""
    node = new_buffer_node(Device.canonicalize(device), dtype, prod(shape))
    buffer_of(node).copyin(data)
    return Tensor.of_node(node).reshape(*shape)


def filled(value: float, shape: Sequence[int], dtype: DType | None = None, device: str | None = None) -> Tensor:
    """A tensor in new memory with the same value everywhere.

    Raises:
        ShapeError: a negative size, or one that is no integer.
    """
    shape = sizes((tuple(shape),), "layer")
    dtype = dtype or dtypes.default_float
    number = as_scalar(value, dtype)
    code = dtype.format.encode(number) if dtype.is_float else int(number) % (1 << 8 * dtype.itemsize)
    return from_bytes(code.to_bytes(dtype.itemsize, "little") * prod(shape), dtype, shape, device)


def uniform(bound: float, *shape: int) -> Tensor:
    """Random values, even over [-bound, bound)."""
    return Tensor.uniform(*shape, low=-bound, high=bound)


def fan_in_uniform(fan_in: int, *shape: int) -> Tensor:
    """Random values of the size that keeps the variance of a layer with `fan_in` inputs an output.

    Raises:
        ShapeError: a negative size, or one that is no integer.
    """
    shape = sizes((shape,), "layer")
    return uniform(1 / sqrt(fan_in) if fan_in > 0 else 0.0, *shape)
