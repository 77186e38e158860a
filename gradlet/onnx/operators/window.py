"""Convolution and pooling: windows that slide over the axes after batch and channel.

Source: the pages of these operators in the ONNX specification, "Operators" of domain ai.onnx.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import ceil, prod
from typing import Any

from gradlet.base.dtype import dtypes
from gradlet.onnx.registry import operator
from gradlet.onnx.runner import Call
from gradlet.onnx.values import Ints
from gradlet.tensor.tensor import Tensor

Sides = list[tuple[int, int]]


def same_sides(
    sizes: Sequence[int], kernel: Sequence[int], strides: Sequence[int], dilations: Sequence[int], upper: bool
) -> Sides:
    """Padding for which there is one window for every `stride` elements; an odd one is at the end if `upper`."""
    sides = []
    for size, k, s, d in zip(sizes, kernel, strides, dilations):
        total = max(0, (ceil(size / s) - 1) * s + (k - 1) * d + 1 - size)
        small = total // 2
        sides.append((small, total - small) if upper else (total - small, small))
    return sides


def window(
    sizes: Sequence[int], kernel: Sequence[int], auto_pad: str, pads: list[int] | None, strides: list[int] | None,
    dilations: list[int] | None,
) -> tuple[Sides, list[int], list[int]]:  # fmt: skip
    """Both sides' padding, strides and dilations of each axis."""
    rank = len(kernel)
    steps, spread = strides or [1] * rank, dilations or [1] * rank
    if auto_pad in ("SAME_UPPER", "SAME_LOWER"):
        return same_sides(sizes, kernel, steps, spread, auto_pad == "SAME_UPPER"), steps, spread
    given = pads if pads and auto_pad == "NOTSET" else [0] * (2 * rank)
    return list(zip(given[:rank], given[rank:])), steps, spread


def from_last(sides: Sides) -> tuple[int, ...]:
    """Padding as tensors take it: both sides of each axis from the last on."""
    return tuple(n for pair in reversed(sides) for n in pair)


@operator("Conv")
def conv(
    x: Tensor, weight: Tensor, bias: Tensor | None = None, *, auto_pad: str = "NOTSET",
    dilations: list[int] | None = None, group: int = 1, kernel_shape: list[int] | None = None,
    pads: list[int] | None = None, strides: list[int] | None = None,
) -> Tensor:  # fmt: skip
    """Convolution over one to three axes."""
    return convolve(x, weight, bias, auto_pad, dilations, group, pads, strides)


def convolve(
    x: Tensor, weight: Tensor, bias: Tensor | None, auto_pad: str, dilations: list[int] | None, group: int,
    pads: list[int] | None, strides: list[int] | None, dtype: Any = None,
) -> Tensor:  # fmt: skip
    """Convolution with padding as ONNX has it."""
    sides, steps, spread = window(x.shape[2:], weight.shape[2:], auto_pad, pads, strides, dilations)
    return x.conv2d(weight, bias, group, tuple(steps), tuple(spread), from_last(sides), dtype=dtype)


@operator("ConvTranspose")
def conv_transpose(
    x: Tensor, weight: Tensor, bias: Tensor | None = None, *, auto_pad: str = "NOTSET",
    dilations: list[int] | None = None, group: int = 1, kernel_shape: list[int] | None = None,
    output_padding: list[int] | None = None, output_shape: list[int] | None = None, pads: list[int] | None = None,
    strides: list[int] | None = None,
) -> Tensor:  # fmt: skip
    """Transposed convolution: the full result, of which padding is cut off."""
    kernel = weight.shape[2:]
    rank = len(kernel)
    steps, spread, more = strides or [1] * rank, dilations or [1] * rank, output_padding or [0] * rank
    full = [s * (n - 1) + (k - 1) * d + 1 + o for s, n, k, d, o in zip(steps, x.shape[2:], kernel, spread, more)]
    if output_shape or auto_pad in ("SAME_UPPER", "SAME_LOWER"):
        wanted = output_shape[-rank:] if output_shape else [n * s for n, s in zip(x.shape[2:], steps)]
        sides = []
        for f, w in zip(full, wanted):
            half = (f - w) // 2
            sides.append((half, f - w - half) if auto_pad == "SAME_UPPER" else (f - w - half, half))
    else:
        given = pads if pads and auto_pad == "NOTSET" else [0] * (2 * rank)
        sides = list(zip(given[:rank], given[rank:]))
    result = x.conv_transpose2d(weight, None, group, tuple(steps), tuple(spread), 0, 0)
    grown = [f - n for f, n in zip(full, result.shape[2:])]
    result = result.pad([(0, 0), (0, 0), *((-b, g - e) for g, (b, e) in zip(grown, sides))])
    return result if bias is None else result + bias.reshape(1, -1, *(1,) * rank)


@operator("DeformConv")
def deform_conv(
    x: Tensor, weight: Tensor, offset: Tensor, bias: Tensor | None = None, mask: Tensor | None = None, *,
    dilations: list[int] | None = None, group: int = 1, kernel_shape: list[int] | None = None, offset_group: int = 1,
    pads: list[int] | None = None, strides: list[int] | None = None,
) -> Tensor:  # fmt: skip
    """Convolution of two axes that reads at places moved by offsets (Dai et al. 2017), between pixels linearly."""
    kernel = weight.shape[2:]
    sides, steps, spread = window(x.shape[2:], kernel, "NOTSET", pads, strides, dilations)
    n, channels, height, width = x.shape
    rows, columns = offset.shape[2:]
    taps = prod(kernel)
    moved = offset.reshape(n, offset_group, taps, 2, rows, columns)
    places = []
    for axis in range(2):
        base = Tensor.arange((rows, columns)[axis], dtype="float32", device=x.device) * steps[axis] - sides[axis][0]
        base = base.reshape(*((rows, 1) if axis == 0 else (1, columns)))
        tap = Tensor.arange(kernel[axis], dtype="float32", device=x.device) * spread[axis]
        tap = tap.reshape(*((kernel[0], 1) if axis == 0 else (1, kernel[1]))).expand(*kernel).reshape(taps, 1, 1)
        places.append(moved[:, :, :, axis] + (base + tap).cast(x.dtype))
    image = x.reshape(n, offset_group, channels // offset_group, height * width)
    total: Tensor | None = None
    low = [p.floor() for p in places]
    for dy in range(2):
        for dx in range(2):
            corner = [low[0] + dy, low[1] + dx]
            share = (1 - (places[0] - corner[0]).abs()) * (1 - (places[1] - corner[1]).abs())
            inside = (corner[0] >= 0) & (corner[0] < height) & (corner[1] >= 0) & (corner[1] < width)
            index = corner[0].clamp(0, height - 1) * width + corner[1].clamp(0, width - 1)
            index = index.cast(dtypes.int32).reshape(n, offset_group, 1, taps * rows * columns)
            read = image.gather(3, index.expand(n, offset_group, channels // offset_group, index.shape[3]))
            part = read * inside.where(share, 0.0).reshape(n, offset_group, 1, -1)
            total = part if total is None else total + part
    assert total is not None
    if mask is not None:
        total = total * mask.reshape(n, offset_group, 1, taps * rows * columns)
    columns_of = total.reshape(n, group, channels // group * taps, rows * columns)
    flat = weight.reshape(group, weight.shape[0] // group, weight.shape[1] * taps)
    result = flat.matmul(columns_of).reshape(n, weight.shape[0], rows, columns)
    return result if bias is None else result + bias.reshape(1, -1, 1, 1)


@operator("Col2Im")
def col2im(
    x: Tensor, image_shape: Ints, block_shape: Ints, *, dilations: list[int] | None = None,
    pads: list[int] | None = None, strides: list[int] | None = None,
) -> Tensor:  # fmt: skip
    """Columns of windows added up to images of any rank: a transposed convolution that puts each tap in its place."""
    rank = len(image_shape)
    sides, steps, spread = window(image_shape, block_shape, "NOTSET", pads, strides, dilations)
    taps = prod(block_shape)
    n, channels = x.shape[0], x.shape[1] // taps
    counts = [
        (s + b + e - d * (k - 1) - 1) // t + 1
        for s, (b, e), d, k, t in zip(image_shape, sides, spread, block_shape, steps)
    ]
    result = None
    for tap in range(taps):
        rest, where = tap, []
        for k in reversed(block_shape):
            where.append(rest % k)
            rest //= k
        part = x.reshape(n, channels, taps, *counts)[:, :, tap]
        # Zeros between the windows' elements, then the tap's place in the window.
        for a in range(rank):
            axis = 2 + a
            if steps[a] > 1:
                sizes = list(part.shape)
                spaced = part.unsqueeze(axis + 1).pad(
                    [(0, 0)] * (axis + 1) + [(0, steps[a] - 1)] + [(0, 0)] * (rank - 1 - a)
                )
                part = spaced.reshape(*sizes[:axis], sizes[axis] * steps[a], *sizes[axis + 1 :])
            begin = where[rank - 1 - a] * spread[a] - sides[a][0]
            pads_here = [(0, 0)] * part.ndim
            pads_here[axis] = (begin, image_shape[a] - begin - part.shape[axis])
            part = part.pad(pads_here)
        result = part if result is None else result + part
    assert result is not None
    return result


# pooling
def _grown(
    x: Tensor, sides: Sides, kernel: Sequence[int], dilations: Sequence[int], value: Any
) -> tuple[Tensor, Sides]:
    """Wide padding, under which windows see nothing else, is written out, since tensors pool with at most half."""
    if all(max(b, e) * 2 <= (k - 1) * d + 1 for (b, e), k, d in zip(sides, kernel, dilations)):
        return x, sides
    return x.pad([(0, 0), (0, 0), *sides], value=value), [(0, 0)] * len(sides)


@operator("MaxPool")
def max_pool(
    call: Call, x: Tensor, *, kernel_shape: list[int], auto_pad: str = "NOTSET", ceil_mode: int = 0,
    dilations: list[int] | None = None, pads: list[int] | None = None, storage_order: int = 0,
    strides: list[int] | None = None,
) -> Any:  # fmt: skip
    """The largest element of each window, and its place in the whole input."""
    sides, steps, spread = window(x.shape[2:], kernel_shape, auto_pad, pads, strides, dilations)
    if not call.wants(1):
        x, sides = _grown(x, sides, kernel_shape, spread, x.dtype.min)
    arguments = (tuple(kernel_shape), tuple(steps), tuple(spread), from_last(sides), bool(ceil_mode))
    if not call.wants(1):
        return x.max_pool2d(*arguments)
    values, places = x.max_pool2d(*arguments, return_indices=True)
    sizes = x.shape[2:]
    places = places.cast(dtypes.int64)
    if storage_order:
        # The first axis is the one whose neighbours are next to one another.
        rest, numbers = places, []
        for size in reversed(sizes):
            numbers.append(rest.mod(size))
            rest = rest.floordiv(size)
        numbers.reverse()
        places, stride = numbers[0], sizes[0]
        for number, size in zip(numbers[1:], sizes[1:]):
            places = places + number * stride
            stride *= size
    base = Tensor.arange(x.shape[0] * x.shape[1], dtype="int64", device=x.device) * prod(sizes)
    return values, places + base.reshape(x.shape[0], x.shape[1], *(1,) * len(sizes))


@operator("AveragePool")
def average_pool(
    x: Tensor, *, kernel_shape: list[int], auto_pad: str = "NOTSET", ceil_mode: int = 0, count_include_pad: int = 0,
    dilations: list[int] | None = None, pads: list[int] | None = None, strides: list[int] | None = None,
) -> Tensor:  # fmt: skip
    """The average of each window; padding counts only if asked."""
    sides, steps, spread = window(x.shape[2:], kernel_shape, auto_pad, pads, strides, dilations)
    shape = (tuple(kernel_shape), tuple(steps), tuple(spread))
    grown, left = _grown(x, sides, kernel_shape, spread, 0.0)
    if left == sides:
        return x.avg_pool2d(*shape, from_last(sides), bool(ceil_mode), bool(count_include_pad))
    total = grown.avg_pool2d(*shape, 0, bool(ceil_mode), divisor_override=1)
    ones = x.ones_like().pad([(0, 0), (0, 0), *sides], value=1.0 if count_include_pad else 0.0)
    return total / ones.avg_pool2d(*shape, 0, bool(ceil_mode), divisor_override=1)


@operator("LpPool")
def lp_pool(
    x: Tensor, *, kernel_shape: list[int], auto_pad: str = "NOTSET", ceil_mode: int = 0,
    dilations: list[int] | None = None, p: float = 2, pads: list[int] | None = None, strides: list[int] | None = None,
) -> Tensor:  # fmt: skip
    """The p-norm of each window."""
    sides, steps, spread = window(x.shape[2:], kernel_shape, auto_pad, pads, strides, dilations)
    x, sides = _grown(x, sides, kernel_shape, spread, 0.0)
    power = _power(x, p).avg_pool2d(
        tuple(kernel_shape), tuple(steps), tuple(spread), from_last(sides), bool(ceil_mode), divisor_override=1
    )
    return _root(power, p)


def _power(x: Tensor, p: float) -> Tensor:
    return x.abs() if p == 1 else x.square() if p == 2 else x.abs().pow(p)


def _root(x: Tensor, p: float) -> Tensor:
    return x if p == 1 else x.sqrt() if p == 2 else x.pow(1 / p)


@operator("GlobalLpPool")
def global_lp_pool(x: Tensor, *, p: float = 2) -> Tensor:
    """The p-norm of each channel."""
    return _root(_power(x, p).sum(tuple(range(2, x.ndim)), True), p)


@operator("GlobalAveragePool")
def global_average_pool(x: Tensor) -> Tensor:
    """The average of each channel."""
    return x.mean(tuple(range(2, x.ndim)), True)


@operator("GlobalMaxPool")
def global_max_pool(x: Tensor) -> Tensor:
    """The largest element of each channel."""
    return x.max(tuple(range(2, x.ndim)), True)


@operator("MaxUnpool")
def max_unpool(
    x: Tensor, index: Tensor, output_shape: Ints | None = None, *, kernel_shape: list[int],
    pads: list[int] | None = None, strides: list[int] | None = None,
) -> Tensor:  # fmt: skip
    """Elements back at the places where the pooling found them, zeros elsewhere."""
    rank = len(kernel_shape)
    steps, given = strides or [1] * rank, pads or [0] * (2 * rank)
    small = [
        (n - 1) * s - given[a] - given[a + rank] + k
        for a, (n, s, k) in enumerate(zip(x.shape[2:], steps, kernel_shape))
    ]
    plain = [*x.shape[:2], *small]
    wanted = list(output_shape) if output_shape else plain
    # Places count in the shape that the pooling saw: that is the smaller one, unless the file asks for another.
    result = Tensor.zeros(prod(plain), dtype=x.dtype, device=x.device).scatter(0, index.flatten(), x.flatten())
    result = result.reshape(plain)
    return result.pad([(0, w - p) for w, p in zip(wanted, plain)])


@operator("LRN")
def lrn(x: Tensor, *, size: int, alpha: float = 0.0001, beta: float = 0.75, bias: float = 1.0) -> Tensor:
    """Each element divided by a power of the squares of its neighbours in the channels."""
    before, after = (size - 1) // 2, size // 2
    n, channels = x.shape[:2]
    squares = x.square().reshape(n, 1, channels, -1).pad([(0, 0), (0, 0), (before, after), (0, 0)])
    sums = squares.avg_pool2d((size, 1), (1, 1), divisor_override=1).reshape(x.shape)
    return x / (sums * (alpha / size) + bias).pow(beta)


@operator("CausalConvWithState")
def causal_conv_with_state(
    x: Tensor, weight: Tensor, bias: Tensor | None = None, past: Tensor | None = None, *, activation: str = "none",
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """A convolution of each channel that sees only the past, whose last elements it hands on."""
    keep = weight.shape[-1] - 1
    if past is None:
        grown = x.pad([(0, 0), (0, 0), (keep, 0)])
    else:
        grown = past.cat(x, dim=2)
    result = grown.conv2d(weight, bias, x.shape[1])
    if activation in ("silu", "swish"):
        result = result.silu()
    return result, grown[:, :, grown.shape[2] - keep :]
