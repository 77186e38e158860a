"""Composed mixin: convolution and pooling, by sliding windows."""

from __future__ import annotations

from collections.abc import Sequence
from math import ceil, prod
from typing import Self, TypeVar

from gradlet.base.dtype import DType, accumulator, to_dtype
from gradlet.base.errors import ArgumentError, ShapeError
from gradlet.ops.arguments import integer, integers, pairs, per_axis
from gradlet.ops.movement import MovementMixin, operand
from gradlet.ops.op import Op
from gradlet.ops.stats import StatsMixin

Sizes = int | Sequence[int]
Padding = int | Sequence[int] | Sequence[Sequence[int]]

T = TypeVar("T", bound=MovementMixin)


class WindowMixin(StatsMixin):
    """Sliding windows over the last axes, 1 to 3 of them."""

    __slots__ = ()

    def windows(self, kernel: Sequence[int], stride: Sequence[int], dilation: Sequence[int]) -> Self:
        """All windows over the last axes: `[..., out sizes, kernel sizes]`."""
        count = len(kernel)
        lead = self.ndim - count
        if list(stride) == list(kernel) and all(d == 1 or k == 1 for d, k in zip(dilation, kernel, strict=True)):
            return self._tiles(kernel)
        result = self.reshape(self.shape + (1,) * count).expand(self.shape + tuple(kernel))
        for i in range(count):
            result = result.window(lead + i, lead + count + i, stride[i], dilation[i])
        return result

    def _tiles(self, kernel: Sequence[int]) -> Self:
        """Windows that touch but do not overlap: only a reshape, so gradients need no sum over windows."""
        count = len(kernel)
        lead = self.ndim - count
        outs = [size // k for size, k in zip(self.shape[lead:], kernel, strict=True)]
        kept = [(0, size) for size in self.shape[:lead]] + [(0, o * k) for o, k in zip(outs, kernel, strict=True)]
        split = [size for pair in zip(outs, kernel, strict=True) for size in pair]
        order = [*range(lead), *range(lead, lead + 2 * count, 2), *range(lead + 1, lead + 2 * count, 2)]
        return self.shrink(kept).reshape(self.shape[:lead] + tuple(split)).permute(order)

    # convolution
    def conv2d(
        self, weight: Self, bias: Self | None = None, groups: int = 1, stride: Sizes = 1, dilation: Sizes = 1,
        padding: Padding = 0, dtype: DType | str | None = None,
    ) -> Self:  # fmt: skip
        """Convolution over 1 to 3 spatial axes, as many as `weight` has.

        Args:
            weight: `[out channels, in channels / groups, *kernel]`; this is `[batch, in channels, *sizes]`.
            bias: one number an out channel.
            groups: channel groups that do not see each other.
            stride, dilation: an integer or one a spatial axis.
            padding: zeros around: an integer, one a spatial axis, or both sides of each axis from the last on.
            dtype: type to add in and of the result; 16-bit floats add in float32 by default.

        Returns:
            `[batch, out channels, *out sizes]`.

        Raises:
            ShapeError: shapes that do not fit each other, or a kernel larger than the padded input.
            ArgumentError: a stride, dilation or number of groups below 1.

        >>> Tensor.ones(1, 1, 3, 3).conv2d(Tensor.ones(1, 1, 2, 2)).tolist()
        [[[[4.0, 4.0], [4.0, 4.0]]]]
        """
        groups = integer(groups, "conv2d", "groups", 1)
        spatial = operand(weight, "conv2d", "weight").ndim - 2
        _check_convolution("conv2d", self.shape, weight.shape, groups, weight.shape[1] * groups if spatial > 0 else 0)
        kernel = weight.shape[2:]
        source, weight = self.same_dtype([weight])
        result_dtype = source.dtype if dtype is None else to_dtype(dtype)
        carrier = accumulator(result_dtype)
        padded = source._pad_sides(_sides(padding, spatial, "conv2d"))
        steps = _positive(stride, spatial, "conv2d", "stride")
        spread = _positive(dilation, spatial, "conv2d", "dilation")
        _check_fit("conv2d", padded.shape[2:], kernel, spread)
        view = padded.windows(kernel, steps, spread)
        batch, sizes = self.shape[0], view.shape[2 : 2 + spatial]
        inside, outside = weight.shape[1], weight.shape[0]
        # [batch, group, out, in, *kernel, *sizes]: one product, one sum over in channels and kernel. Sizes come last so
        # that rows stay contiguous in what gradients store of this form.
        view = view.permute((0, 1, *range(2 + spatial, 2 + 2 * spatial), *range(2, 2 + spatial)))
        left = view.reshape((batch, groups, 1, inside) + kernel + sizes)
        left = left.expand((batch, groups, outside // groups, inside) + kernel + sizes)
        right = weight.reshape((1, groups, outside // groups, inside) + kernel + (1,) * spatial)
        axes = (3, *range(4, 4 + spatial))
        product = left.cast(carrier).mul(right.cast(carrier))
        total = product.reduce_over(Op.ADD, axes, False, "conv2d")
        result = total.cast(result_dtype).reshape((batch, outside) + sizes)
        return result if bias is None else result.add(_channels(bias, outside, spatial, "conv2d"))

    def conv_transpose2d(
        self, weight: Self, bias: Self | None = None, groups: int = 1, stride: Sizes = 1, dilation: Sizes = 1,
        padding: Padding = 0, output_padding: Sizes = 0,
    ) -> Self:  # fmt: skip
        """Transposed convolution (the gradient of a convolution) over 1 to 3 spatial axes.

        Args:
            weight: `[in channels, out channels / groups, *kernel]`.
            padding: cut off around the result.
            output_padding: added at the end of each axis of the result; smaller than its stride or dilation.

        Raises:
            ShapeError: shapes that do not fit each other.
            ArgumentError: a stride, dilation or number of groups below 1, or an output_padding that no convolution has.

        >>> Tensor.ones(1, 1, 2).conv_transpose2d(Tensor.ones(1, 1, 2)).tolist()
        [[[1.0, 2.0, 1.0]]]
        """
        groups = integer(groups, "conv_transpose2d", "groups", 1)
        spatial = operand(weight, "conv_transpose2d", "weight").ndim - 2
        _check_convolution("conv_transpose2d", self.shape, weight.shape, groups, weight.shape[0])
        kernel = weight.shape[2:]
        source, weight = self.same_dtype([weight])
        steps = _positive(stride, spatial, "conv_transpose2d", "stride")
        spread = _positive(dilation, spatial, "conv_transpose2d", "dilation")
        extra = per_axis(output_padding, spatial, "conv_transpose2d: output_padding")
        if any(not 0 <= e < max(s, d) for e, s, d in zip(extra, steps, spread)):
            raise ArgumentError(
                f"conv_transpose2d: output_padding {extra} must be at least 0 and smaller than the stride {steps} or "
                f"the dilation {spread} on each axis"
            )
        sides = _sides(padding, spatial, "conv_transpose2d")
        batch, inside, outside = self.shape[0], self.shape[1] // groups, weight.shape[1]
        view = source.reshape((batch, groups, 1, inside) + self.shape[2:] + (1,) * spatial)
        view = view.expand((batch, groups, outside, inside) + self.shape[2:] + kernel)
        for i in range(spatial):
            size = (self.shape[2 + i] - 1) * steps[i] + spread[i] * (kernel[i] - 1) + 1 + extra[i]
            view = view.unwindow(4 + i, 4 + spatial + i, steps[i], spread[i], size)
        right = weight.reshape((1, groups, inside, outside) + (1,) * spatial + kernel).transpose(2, 3)
        carrier = accumulator(source.dtype)
        axes = (3, *range(4 + spatial, 4 + 2 * spatial))
        total = view.cast(carrier).mul(right.cast(carrier)).reduce_over(Op.ADD, axes, False, "conv_transpose2d")
        result = total.cast(source.dtype).reshape((batch, groups * outside) + total.shape[3:])
        if any(before + after > size for size, (before, after) in zip(result.shape[2:], sides)):
            raise ShapeError(f"conv_transpose2d: padding {sides} cuts off more than the result {result.shape[2:]} has")
        result = result._pad_sides([(-before, -after) for before, after in sides])
        return result if bias is None else result.add(_channels(bias, groups * outside, spatial, "conv_transpose2d"))

    def _pad_sides(self, sides: Sequence[tuple[int, int]]) -> Self:
        """Zeros around the last axes (cropping where negative)."""
        return self.pad([(0, 0)] * (self.ndim - len(sides)) + list(sides))

    # pooling
    def avg_pool2d(
        self, kernel_size: Sizes = (2, 2), stride: Sizes | None = None, dilation: Sizes = 1, padding: Padding = 0,
        ceil_mode: bool = False, count_include_pad: bool = True,
    ) -> Self:  # fmt: skip
        """Average of each window over the last axes (as many as `kernel_size` has).

        Args:
            stride: the kernel size when None.
            ceil_mode: also take windows that begin inside and reach beyond the end.
            count_include_pad: whether padding counts in the average.

        Raises:
            ShapeError: a window larger than the padded input.

        >>> Tensor([[[[1.0, 3.0], [5.0, 7.0]]]]).avg_pool2d().item()
        4.0
        """
        source = self.same_float("avg_pool2d")
        kernel, steps, spread, sides, tail = source._pooling(
            "avg_pool2d", kernel_size, stride, dilation, padding, ceil_mode
        )
        count = len(kernel)
        axes = tuple(range(self.ndim, self.ndim + count))
        carrier = accumulator(source.dtype)
        grown = [(before, after + more) for (before, after), more in zip(sides, tail)]
        total = source.cast(carrier)._pad_sides(grown).windows(kernel, steps, spread)
        total = total.reduce_over(Op.ADD, axes, False, "avg_pool2d")
        if count_include_pad and not any(tail):
            return total.mul(1 / prod(kernel)).cast(source.dtype)
        # How many elements of each window count: those of the input, or also those of the padding that was asked for.
        counted = source.const_like(1.0, source.shape[-count:], carrier)
        if count_include_pad:
            counted = counted.pad(sides, value=1.0)._pad_sides([(0, more) for more in tail])
        else:
            counted = counted._pad_sides(grown)
        number = counted.windows(kernel, steps, spread).reduce_over(
            Op.ADD, tuple(range(count, 2 * count)), False, "avg"
        )
        return total.fdiv(number).cast(source.dtype)

    def max_pool2d(
        self, kernel_size: Sizes = (2, 2), stride: Sizes | None = None, dilation: Sizes = 1, padding: Padding = 0,
        ceil_mode: bool = False,
    ) -> Self:  # fmt: skip
        """Largest element of each window over the last axes; padding never wins.

        Raises:
            ShapeError: a window larger than the padded input.

        >>> Tensor([[[[1, 3], [5, 7]]]]).max_pool2d().item()
        7
        """
        kernel, steps, spread, sides, tail = self._pooling(
            "max_pool2d", kernel_size, stride, dilation, padding, ceil_mode
        )
        grown = [(before, after + more) for (before, after), more in zip(sides, tail)]
        padded = self.pad([(0, 0)] * (self.ndim - len(kernel)) + grown, value=self.dtype.min)
        axes = tuple(range(self.ndim, self.ndim + len(kernel)))
        return padded.windows(kernel, steps, spread).reduce_over(Op.MAX, axes, False, "max_pool2d")

    def _pooling(
        self, what: str, kernel_size: Sizes, stride: Sizes | None, dilation: Sizes, padding: Padding, ceil_mode: bool
    ) -> tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...], list[tuple[int, int]], list[int]]:
        """Kernel, stride, dilation, padding of each axis, and what ceil_mode adds at its end."""
        count = len(kernel_size) if isinstance(kernel_size, (tuple, list)) else 2
        kernel = _positive(kernel_size, count, what, "kernel_size")
        if self.ndim < count:
            raise ShapeError(f"{what}: {count} window sizes for shape {self.shape}")
        steps = kernel if stride is None else _positive(stride, count, what, "stride")
        spread = _positive(dilation, count, what, "dilation")
        sides = _sides(padding, count, what)
        reaches = [d * (k - 1) + 1 for d, k in zip(spread, kernel)]
        if any(min(pair) < 0 or max(pair) > reach // 2 for pair, reach in zip(sides, reaches)):
            raise ArgumentError(
                f"{what}: padding {sides} must be at least 0 and at most half of the reach {tuple(reaches)} of the "
                "window, or some windows would see padding only"
            )
        tail = [0] * count
        sizes = self.shape[-count:]
        padded = tuple([size + before + after for size, (before, after) in zip(sizes, sides)])
        _check_fit(what, padded, kernel, spread)
        if ceil_mode:
            for i, size in enumerate(padded):
                reach = spread[i] * (kernel[i] - 1) + 1
                windows = ceil((size - reach) / steps[i]) + 1
                # The last window must begin inside the input or the padding before it.
                if (windows - 1) * steps[i] >= sizes[i] + sides[i][0]:
                    windows -= 1
                tail[i] = max(0, (windows - 1) * steps[i] + reach - size)
        return kernel, steps, spread, sides, tail


def _sides(padding: Padding, count: int, what: str) -> list[tuple[int, int]]:
    """(before, after) of each spatial axis, first axis first."""
    if not isinstance(padding, (tuple, list)):
        (both,) = integers((padding,), f"{what}: padding")
        return [(both, both)] * count
    if count and len(padding) == count and all(isinstance(p, (tuple, list)) for p in padding):
        return [p for p in pairs(padding, count, f"{what}: padding") if p is not None]
    flat = integers((padding,), f"{what}: padding")
    if len(flat) == 2 * count:
        return [(flat[i], flat[i + 1]) for i in range(0, 2 * count, 2)][::-1]
    if len(flat) == count:
        return [(p, p) for p in flat]
    raise ShapeError(f"{what}: padding {flat} must be an integer, {count} integers or {2 * count} integers")


def _positive(value: Sizes, count: int, what: str, name: str) -> tuple[int, ...]:
    """One integer an axis, none below 1."""
    values = per_axis(value, count, f"{what}: {name}")
    if min(values, default=1) < 1:
        raise ArgumentError(f"{what}: {name} must be positive, got {values}")
    return values


def _channels(bias: T, count: int, spatial: int, what: str) -> T:
    """A bias of one number a channel, shaped to meet `[batch, channels, *sizes]`."""
    if operand(bias, what, "bias").shape != (count,):
        raise ShapeError(f"{what}: bias of shape {bias.shape} must have shape {(count,)}, one number an out channel")
    return bias.reshape((1, count) + (1,) * spatial)


def _check_convolution(what: str, source: tuple[int, ...], weight: tuple[int, ...], groups: int, channels: int) -> None:
    if len(weight) < 3 or len(source) != len(weight):
        raise ShapeError(
            f"{what}: input {source} and weight {weight} need 2 axes (batch and channels) and the same number of "
            "spatial axes; unsqueeze what lacks a batch axis"
        )
    if min(weight[2:]) < 1:
        raise ShapeError(f"{what}: weight {weight} has a kernel without elements")
    if source[1] != channels or channels % groups or weight[0] % groups:
        raise ShapeError(
            f"{what}: input {source} has {source[1]} channels, weight {weight} with groups={groups} needs {channels}"
        )


def _check_fit(what: str, sizes: Sequence[int], kernel: Sequence[int], dilation: Sequence[int]) -> None:
    for size, width, spread in zip(sizes, kernel, dilation):
        if spread * (width - 1) + 1 > size:
            raise ShapeError(
                f"{what}: a kernel of {tuple(kernel)} (dilation {tuple(dilation)}) does not fit the padded input "
                f"{tuple(sizes)}; pad more or use a smaller kernel"
            )
