"""Convolutions and transposed convolutions."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

from gradlet.base.errors import ArgumentError, ShapeError
from gradlet.nn.parameter import fan_in_uniform
from gradlet.ops.arguments import integer, per_axis
from gradlet.ops.movement import operand
from gradlet.tensor.tensor import Tensor

Sizes = int | tuple[int, ...]


def _kernel_sizes(kernel_size: Sizes) -> tuple[int, ...]:
    """Sizes of the kernel, two for a number."""
    sizes = per_axis(kernel_size, len(kernel_size) if isinstance(kernel_size, tuple | list) else 2, "kernel_size")
    if not 1 <= len(sizes) <= 3 or min(sizes) < 1:
        raise ShapeError(f"kernel_size={kernel_size!r}: a kernel has 1 to 3 axes, none below 1")
    return sizes


def _check_groups(in_channels: int, out_channels: int, groups: int) -> None:
    for name, value in (("in_channels", in_channels), ("out_channels", out_channels)):
        integer(value, "convolution", name, 0)
    if integer(groups, "convolution", "groups") < 1 or in_channels % groups or out_channels % groups:
        raise ArgumentError(f"groups={groups} must divide in_channels={in_channels} and out_channels={out_channels}")


def _same_padding(kernel: Sequence[int], stride: Sequence[int], dilation: Sequence[int]) -> tuple[int, ...]:
    """(before, after) pairs, last axis first, that keep every size; an odd one goes after."""
    if any(step != 1 for step in stride):
        raise ArgumentError(f"padding='same' needs stride 1, got {tuple(stride)}; give the padding as numbers")
    totals = [spread * (size - 1) for spread, size in zip(dilation, kernel)]
    return tuple(part for total in reversed(totals) for part in (total // 2, total - total // 2))


class Conv2d:
    """Convolution over the trailing axes of a (batch, channels, *sizes) input; works for 1, 2 and 3 axes.

    Args:
        in_channels: channels of the input.
        out_channels: channels of the result.
        kernel_size: a number (two axes) or a tuple with an entry an axis.
        stride: step between windows.
        padding: zeros on both sides, a number, one an axis, or "same" (keeps sizes) or "valid" (none).
        dilation: distance between the elements of a window.
        groups: channels are split into this many independent convolutions.
        bias: whether a bias an output channel is added.

    >>> from gradlet import Tensor, nn
    >>> nn.Conv2d(1, 4, 3, padding=1)(Tensor.ones(2, 1, 8, 8)).shape
    (2, 4, 8, 8)
    """

    def __init__(
        self, in_channels: int, out_channels: int, kernel_size: Sizes, stride: Sizes = 1, padding: Sizes | str = 0,
        dilation: Sizes = 1, groups: int = 1, bias: bool = True,
    ) -> None:  # fmt: skip
        _check_groups(in_channels, out_channels, groups)
        self.kernel_size = _kernel_sizes(kernel_size)
        axes = len(self.kernel_size)
        self.stride = per_axis(stride, axes, "stride")
        self.dilation = per_axis(dilation, axes, "dilation")
        self.groups = groups
        self.padding: Sizes
        if isinstance(padding, str):
            if padding not in ("same", "valid"):
                raise ArgumentError(f"padding={padding!r}: use a number, a tuple of numbers, 'same' or 'valid'")
            self.padding = _same_padding(self.kernel_size, self.stride, self.dilation) if padding == "same" else 0
        else:
            self.padding = padding
        fan_in = in_channels // groups * prod(self.kernel_size)
        self.weight = fan_in_uniform(fan_in, out_channels, in_channels // groups, *self.kernel_size)
        self.bias = fan_in_uniform(fan_in, out_channels) if bias else None

    def __call__(self, x: Tensor) -> Tensor:
        return operand(x, "Conv2d", "x").conv2d(
            self.weight, self.bias, self.groups, self.stride, self.dilation, self.padding
        )


def Conv1d(  # a constructor in all but name
    in_channels: int, out_channels: int, kernel_size: int, stride: int = 1, padding: int | str = 0, dilation: int = 1,
    groups: int = 1, bias: bool = True,
) -> Conv2d:  # fmt: skip
    """Convolution over one axis: of a (batch, channels, size) input.

    >>> from gradlet import Tensor, nn
    >>> nn.Conv1d(2, 4, 3)(Tensor.ones(1, 2, 8)).shape
    (1, 4, 6)
    """
    (size,) = per_axis(kernel_size, 1, "kernel_size")
    return Conv2d(in_channels, out_channels, (size,), stride, padding, dilation, groups, bias)


class ConvTranspose2d:
    """The adjoint of a convolution: sizes grow by the stride.

    Args:
        in_channels: channels of the input.
        out_channels: channels of the result.
        kernel_size: a number (two axes) or a tuple with an entry an axis.
        stride: distance between the windows that are written.
        padding: what is cut off on both sides of the result.
        output_padding: added to the result's size after.
        dilation: distance between the elements of a window.
        groups: channels are split into this many independent ones.
        bias: whether a bias an output channel is added.

    >>> from gradlet import Tensor, nn
    >>> nn.ConvTranspose2d(1, 4, 3, stride=2)(Tensor.ones(2, 1, 4, 4)).shape
    (2, 4, 9, 9)
    """

    def __init__(
        self, in_channels: int, out_channels: int, kernel_size: Sizes, stride: Sizes = 1, padding: Sizes = 0,
        output_padding: Sizes = 0, dilation: Sizes = 1, groups: int = 1, bias: bool = True,
    ) -> None:  # fmt: skip
        _check_groups(in_channels, out_channels, groups)
        self.kernel_size = _kernel_sizes(kernel_size)
        axes = len(self.kernel_size)
        self.stride = per_axis(stride, axes, "stride")
        self.dilation = per_axis(dilation, axes, "dilation")
        self.padding = padding
        self.output_padding = per_axis(output_padding, axes, "output_padding")
        self.groups = groups
        fan_in = out_channels // groups * prod(self.kernel_size)  # as torch counts it, from the weight's second axis
        self.weight = fan_in_uniform(fan_in, in_channels, out_channels // groups, *self.kernel_size)
        self.bias = fan_in_uniform(fan_in, out_channels) if bias else None

    def __call__(self, x: Tensor) -> Tensor:
        return operand(x, "ConvTranspose2d", "x").conv_transpose2d(
            self.weight, self.bias, self.groups, self.stride, self.dilation, self.padding, self.output_padding
        )


def ConvTranspose1d(  # a constructor in all but name
    in_channels: int, out_channels: int, kernel_size: int, stride: int = 1, padding: int = 0, output_padding: int = 0,
    dilation: int = 1, groups: int = 1, bias: bool = True,
) -> ConvTranspose2d:  # fmt: skip
    """The adjoint of a convolution over one axis.

    >>> from gradlet import Tensor, nn
    >>> nn.ConvTranspose1d(2, 4, 3)(Tensor.ones(1, 2, 6)).shape
    (1, 4, 8)
    """
    (size,) = per_axis(kernel_size, 1, "kernel_size")
    return ConvTranspose2d(in_channels, out_channels, (size,), stride, padding, output_padding, dilation, groups, bias)
