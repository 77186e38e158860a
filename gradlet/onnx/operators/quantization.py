"""Quantization: numbers as integers with a scale and a zero point, and products of those.

Source: the pages of these operators in the ONNX specification, "Operators" of domain ai.onnx.
"""

from __future__ import annotations

from typing import Any

from gradlet.base.dtype import DType, dtypes
from gradlet.onnx.elements import FLOAT4, NARROW_INTS, dtype_of
from gradlet.onnx.operators.tensor import round_to_float4, to_float8
from gradlet.onnx.operators.window import convolve
from gradlet.onnx.registry import operator
from gradlet.onnx.runner import Call
from gradlet.onnx.values import Value
from gradlet.tensor.tensor import Tensor


def _spread(scale: Tensor, x: Tensor, axis: int, block: int) -> Tensor:
    """Scales (or zero points) beside the elements they belong to: one for all, one a slice, or one a block."""
    if scale.ndim == 0 or (scale.ndim == 1 and scale.shape[0] == 1):
        return scale.reshape(())
    at = axis % x.ndim
    if scale.ndim == 1:
        return scale.reshape(*(-1 if a == at else 1 for a in range(x.ndim)))
    if block:
        grown = scale.unsqueeze(at + 1)
        sizes = list(grown.shape)
        sizes[at + 1] = block
        flat = grown.expand(tuple(sizes)).reshape(*scale.shape[:at], scale.shape[at] * block, *scale.shape[at + 1 :])
        index: list[Any] = [slice(None)] * x.ndim
        index[at] = slice(0, x.shape[at])
        return flat[tuple(index)]
    return scale


def limits(number: int) -> tuple[int, int]:
    """Smallest and largest integer of an element type."""
    if number in NARROW_INTS:
        return NARROW_INTS[number]
    dtype = dtype_of(number, "quantization")
    return int(dtype.min), int(dtype.max)


@operator("QuantizeLinear")
def quantize_linear(
    call: Call, x: Tensor, scale: Tensor, zero: Value | None = None, *, axis: int = 1, block_size: int = 0,
    output_dtype: int = 0, precision: int = 0, saturate: int = 1,
) -> Value:  # fmt: skip
    """`x / scale + zero`, rounded to even and cut to the range of the type."""
    number = zero.elem if zero is not None else output_dtype or 2
    kind = dtype_of(precision, "precision") if precision else scale.dtype
    if not kind.is_float:
        kind = dtypes.float32
    ratio = x.cast(kind) / _spread(scale, x, axis, block_size).cast(kind)
    dtype = dtype_of(number, "QuantizeLinear")
    offset = None if zero is None else _spread(call.tensor(zero), x, axis, block_size)
    if number == FLOAT4 or dtype.is_float8:
        moved = ratio if offset is None else ratio + offset.cast(kind)
        made = (
            round_to_float4(moved.cast(dtypes.float32)) if number == FLOAT4 else to_float8(moved, dtype, bool(saturate))
        )
        return Value.of_tensor(made, number)
    low, high = limits(number)
    rounded = ratio.round().cast(dtypes.float32)
    if offset is not None:
        rounded = rounded + offset.cast(dtypes.float32)
    return Value.of_tensor(rounded.clamp(low, high).cast(dtype), number)


@operator("DequantizeLinear")
def dequantize_linear(
    call: Call, x: Tensor, scale: Tensor, zero: Tensor | None = None, *, axis: int = 1, block_size: int = 0,
    output_dtype: int = 0,
) -> Tensor:  # fmt: skip
    """`(x - zero) * scale`."""
    kind = dtype_of(output_dtype, "output_dtype") if output_dtype else scale.dtype
    wide = dtypes.float32 if kind.is_narrow_float else kind
    moved = x.cast(wide)
    if zero is not None:
        offset = _spread(zero, x, axis, block_size)
        if x.dtype.is_int:
            moved = (x.cast(dtypes.int32) - offset.cast(dtypes.int32)).cast(wide)
        else:
            moved = moved - offset.cast(wide)
    return (moved * _spread(scale, x, axis, block_size).cast(wide)).cast(kind)


@operator("DynamicQuantizeLinear")
def dynamic_quantize_linear(x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """uint8 with the scale and zero point that the smallest and largest element give."""
    high, low = x.max().maximum(0.0), x.min().minimum(0.0)
    scale = (high - low) / 255.0
    safe = (scale == 0).where(1.0, scale)
    zero = (low / safe).neg().clamp(0, 255).round()
    return ((x / safe).round() + zero).clamp(0, 255).cast(dtypes.uint8), scale, zero.cast(dtypes.uint8)


# products of integers
def _centred(x: Tensor, zero: Tensor | None, axis: int | None = None) -> Tensor:
    """Integers without their zero point, in the narrowest type that holds them."""
    if zero is None:
        return x
    if zero.ndim == 1 and zero.shape[0] > 1 and axis is not None:
        zero = zero.reshape(*(-1 if a == axis % x.ndim else 1 for a in range(x.ndim)))
    elif zero.ndim <= 1:
        zero = zero.reshape(())
    return x.cast(dtypes.int16) - zero.cast(dtypes.int16)


def _pair(a: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
    """Both in one type that holds the values of both."""
    if a.dtype is b.dtype:
        return a, b
    return a.cast(dtypes.int16), b.cast(dtypes.int16)


def integer_matmul(a: Tensor, b: Tensor, a_zero: Tensor | None, b_zero: Tensor | None) -> Tensor:
    """`(a - a_zero) @ (b - b_zero)` in int32."""
    left, right = _pair(_centred(a, a_zero, a.ndim - 2), _centred(b, b_zero, b.ndim - 1))
    return left.matmul(right, dtype=dtypes.int32)


@operator("MatMulInteger")
def matmul_integer(a: Tensor, b: Tensor, a_zero: Tensor | None = None, b_zero: Tensor | None = None) -> Tensor:
    """A matrix product of integers."""
    return integer_matmul(a, b, a_zero, b_zero)


@operator("ConvInteger")
def conv_integer(
    x: Tensor, w: Tensor, x_zero: Tensor | None = None, w_zero: Tensor | None = None, *, auto_pad: str = "NOTSET",
    dilations: list[int] | None = None, group: int = 1, kernel_shape: list[int] | None = None,
    pads: list[int] | None = None, strides: list[int] | None = None,
) -> Tensor:  # fmt: skip
    """A convolution of integers; padding is zero after the zero point is taken off."""
    image, weight = _pair(_centred(x, x_zero), _centred(w, w_zero, 0))
    return convolve(image, weight, None, auto_pad, dilations, group, pads, strides, dtypes.int32)


def _requantized(total: Tensor, scale: Tensor, zero: Tensor, dtype: DType) -> Tensor:
    moved = (total.cast(dtypes.float32) * scale).round() + zero.cast(dtypes.float32)
    return moved.clamp(int(dtype.min), int(dtype.max)).cast(dtype)


@operator("QLinearMatMul")
def qlinear_matmul(
    a: Tensor, a_scale: Tensor, a_zero: Tensor, b: Tensor, b_scale: Tensor, b_zero: Tensor, y_scale: Tensor,
    y_zero: Tensor,
) -> Tensor:  # fmt: skip
    """A matrix product of quantized numbers, quantized again."""
    total = integer_matmul(a, b, a_zero, b_zero)
    left = a_scale.reshape(-1, 1) if a_scale.ndim == 1 and a_scale.shape[0] > 1 else a_scale
    scale = left.cast(dtypes.float32) * b_scale.cast(dtypes.float32) / y_scale.cast(dtypes.float32)
    return _requantized(total, scale, y_zero, y_zero.dtype)


@operator("QLinearConv")
def qlinear_conv(
    x: Tensor, x_scale: Tensor, x_zero: Tensor, w: Tensor, w_scale: Tensor, w_zero: Tensor, y_scale: Tensor,
    y_zero: Tensor, b: Tensor | None = None, *, auto_pad: str = "NOTSET", dilations: list[int] | None = None,
    group: int = 1, kernel_shape: list[int] | None = None, pads: list[int] | None = None,
    strides: list[int] | None = None,
) -> Tensor:  # fmt: skip
    """A convolution of quantized numbers, quantized again."""
    image, weight = _pair(_centred(x, x_zero), _centred(w, w_zero, 0))
    total = convolve(image, weight, None, auto_pad, dilations, group, pads, strides, dtypes.int32)
    ones = (1,) * (x.ndim - 2)
    if b is not None:
        total = total + b.reshape(1, -1, *ones)
    scale = x_scale * w_scale / y_scale
    scale = scale.reshape(1, -1, *ones) if scale.ndim and scale.shape[0] > 1 else scale.reshape(())
    return _requantized(total, scale, y_zero.reshape(()), y_zero.dtype)
