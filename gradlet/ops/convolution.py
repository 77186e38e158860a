"""Composed mixin: convolution and transposed convolution over 1 to 3 spatial axes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Self, TypeVar

from gradlet.base.dtype import DType, accumulator, to_dtype
from gradlet.base.errors import ArgumentError, ShapeError
from gradlet.ops.arguments import integer, per_axis
from gradlet.ops.movement import MovementMixin, operand
from gradlet.ops.op import Op
from gradlet.ops.window import Padding, Sizes, WindowMixin, check_fit, positive, sides_of

T = TypeVar("T", bound=MovementMixin)


class ConvolutionMixin(WindowMixin):
    """Convolutions."""

    __slots__ = ()

    def conv2d(
        self, weight: Self, bias: Self | None = None, groups: int = 1, stride: Sizes = 1, dilation: Sizes = 1,
        padding: Padding | str = 0, dtype: DType | str | None = None,
    ) -> Self:  # fmt: skip
        """Convolution over 1 to 3 spatial axes, as many as `weight` has.

        Args:
            weight: `[out channels, in channels / groups, *kernel]`; this is `[batch, in channels, *sizes]`, or without
                the batch.
            bias: one number an out channel.
            groups: channel groups that do not see each other.
            stride, dilation: an integer or one a spatial axis.
            padding: zeros around: an integer, one a spatial axis, or both sides of each axis from the last on; "valid"
                (none), or "same" (so many that sizes stay; stride 1).
            dtype: type to add in and of the result; 16-bit floats add in float32 by default.

        Returns:
            `[batch, out channels, *out sizes]`.

        Raises:
            ShapeError: shapes that do not fit each other, or a kernel larger than the padded input.
            ArgumentError: a stride, dilation or number of groups below 1.

        >>> Tensor.ones(1, 1, 3, 3).conv2d(Tensor.ones(1, 1, 2, 2)).tolist()
        [[[[4.0, 4.0], [4.0, 4.0]]]]
        """
        return self._convolve("conv2d", weight, bias, groups, stride, dilation, padding, dtype)

    def conv1d(
        self, weight: Self, bias: Self | None = None, stride: Sizes = 1, padding: Padding | str = 0,
        dilation: Sizes = 1, groups: int = 1,
    ) -> Self:  # fmt: skip
        """Convolution over one axis; see `conv2d`. Arguments in torch's order.

        Raises:
            ShapeError: a weight that is not `[out channels, in channels / groups, width]`, or does not fit.

        >>> Tensor.ones(1, 1, 3).conv1d(Tensor.ones(1, 1, 2)).tolist()
        [[[2.0, 2.0]]]
        """
        _check_spatial("conv1d", weight, 1)
        return self._convolve("conv1d", weight, bias, groups, stride, dilation, padding, None)

    def conv3d(
        self, weight: Self, bias: Self | None = None, stride: Sizes = 1, padding: Padding | str = 0,
        dilation: Sizes = 1, groups: int = 1,
    ) -> Self:  # fmt: skip
        """Convolution over three axes; see `conv2d`. Arguments in torch's order.

        Raises:
            ShapeError: a weight that is not `[out channels, in channels / groups, *kernel]`, or does not fit.

        >>> Tensor.ones(1, 1, 2, 2, 2).conv3d(Tensor.ones(1, 1, 2, 2, 2)).item()
        8.0
        """
        _check_spatial("conv3d", weight, 3)
        return self._convolve("conv3d", weight, bias, groups, stride, dilation, padding, None)

    def _convolve(
        self, what: str, weight: Self, bias: Self | None, groups: int, stride: Sizes, dilation: Sizes,
        padding: Padding | str, dtype: DType | str | None,
    ) -> Self:  # fmt: skip
        groups = integer(groups, what, "groups", 1)
        spatial = operand(weight, what, "weight").ndim - 2
        if self.ndim == spatial + 1 > 1:
            batched = self.unsqueeze(0)
            return batched._convolve(what, weight, bias, groups, stride, dilation, padding, dtype).squeeze(0)
        _check_convolution(what, self.shape, weight.shape, groups, weight.shape[1] * groups if spatial > 0 else 0)
        kernel = weight.shape[2:]
        source, weight = self.same_dtype([weight], "conv")
        result_dtype = source.dtype if dtype is None else to_dtype(dtype)
        carrier = accumulator(result_dtype)
        steps = positive(stride, spatial, what, "stride")
        spread = positive(dilation, spatial, what, "dilation")
        # Converted before windows repeat them: gradients add up in the wide type, and are rounded once.
        padded = source.cast(carrier).pad_sides(_convolution_sides(what, padding, kernel, steps, spread))
        check_fit(what, padded.shape[2:], kernel, spread)
        view = padded.windows(kernel, steps, spread)
        batch, sizes = self.shape[0], view.shape[2 : 2 + spatial]
        inside, outside = weight.shape[1], weight.shape[0]
        # [batch, group, out, in, *kernel, *sizes]: one product, one sum over in channels and kernel. Sizes come last so
        # that rows stay contiguous in what gradients store of this form.
        view = view.permute((0, 1, *range(2 + spatial, 2 + 2 * spatial), *range(2, 2 + spatial)))
        left = view.reshape((batch, groups, 1, inside) + kernel + sizes)
        left = left.expand((batch, groups, outside // groups, inside) + kernel + sizes)
        right = weight.cast(carrier).reshape((1, groups, outside // groups, inside) + kernel + (1,) * spatial)
        axes = (3, *range(4, 4 + spatial))
        product = left.mul(right)
        total = product.reduce_over(Op.ADD, axes, False, what)
        result = total.reshape((batch, outside) + sizes)
        if bias is None:
            return result.cast(result_dtype)
        added = _channels(bias, outside, spatial, what)
        if added.dtype is not result_dtype:
            return result.cast(result_dtype).add(added)
        return result.add(added.cast(carrier)).cast(result_dtype)  # narrow floats are rounded once, after the bias

    def conv_transpose2d(
        self, weight: Self, bias: Self | None = None, groups: int = 1, stride: Sizes = 1, dilation: Sizes = 1,
        padding: Padding = 0, output_padding: Sizes = 0,
    ) -> Self:  # fmt: skip
        """Transposed convolution (the gradient of a convolution) over 1 to 3 spatial axes, as many as `weight` has.

        Args:
            weight: `[in channels, out channels / groups, *kernel]`; this is `[batch, in channels, *sizes]`, or without
                the batch.
            padding: cut off around the result.
            output_padding: added at the end of each axis of the result; smaller than its stride or dilation.

        Raises:
            ShapeError: shapes that do not fit each other.
            ArgumentError: a stride, dilation or number of groups below 1, or an output_padding that no convolution has.

        >>> Tensor.ones(1, 1, 2).conv_transpose2d(Tensor.ones(1, 1, 2)).tolist()
        [[[1.0, 2.0, 1.0]]]
        """
        return self._spread("conv_transpose2d", weight, bias, groups, stride, dilation, padding, output_padding)

    def conv_transpose1d(
        self, weight: Self, bias: Self | None = None, stride: Sizes = 1, padding: Padding = 0,
        output_padding: Sizes = 0, groups: int = 1, dilation: Sizes = 1,
    ) -> Self:  # fmt: skip
        """Transposed convolution over one axis; see `conv_transpose2d`. Arguments in torch's order.

        Raises:
            ShapeError: a weight that is not `[in channels, out channels / groups, width]`, or does not fit.

        >>> Tensor.ones(1, 1, 2).conv_transpose1d(Tensor.ones(1, 1, 2), stride=2).tolist()
        [[[1.0, 1.0, 1.0, 1.0]]]
        """
        _check_spatial("conv_transpose1d", weight, 1)
        return self._spread("conv_transpose1d", weight, bias, groups, stride, dilation, padding, output_padding)

    def conv_transpose3d(
        self, weight: Self, bias: Self | None = None, stride: Sizes = 1, padding: Padding = 0,
        output_padding: Sizes = 0, groups: int = 1, dilation: Sizes = 1,
    ) -> Self:  # fmt: skip
        """Transposed convolution over three axes; see `conv_transpose2d`. Arguments in torch's order.

        Raises:
            ShapeError: a weight that is not `[in channels, out channels / groups, *kernel]`, or does not fit.

        >>> Tensor.ones(1, 1, 1, 1, 1).conv_transpose3d(Tensor.ones(1, 1, 1, 1, 2)).tolist()
        [[[[[1.0, 1.0]]]]]
        """
        _check_spatial("conv_transpose3d", weight, 3)
        return self._spread("conv_transpose3d", weight, bias, groups, stride, dilation, padding, output_padding)

    def _spread(
        self, what: str, weight: Self, bias: Self | None, groups: int, stride: Sizes, dilation: Sizes,
        padding: Padding, output_padding: Sizes,
    ) -> Self:  # fmt: skip
        groups = integer(groups, what, "groups", 1)
        spatial = operand(weight, what, "weight").ndim - 2
        if self.ndim == spatial + 1 > 1:
            batched = self.unsqueeze(0)
            return batched._spread(what, weight, bias, groups, stride, dilation, padding, output_padding).squeeze(0)
        _check_convolution(what, self.shape, weight.shape, groups, weight.shape[0])
        kernel = weight.shape[2:]
        source, weight = self.same_dtype([weight], "conv_transpose")
        steps = positive(stride, spatial, what, "stride")
        spread = positive(dilation, spatial, what, "dilation")
        extra = per_axis(output_padding, spatial, f"{what}: output_padding")
        if any(not 0 <= e < max(s, d) for e, s, d in zip(extra, steps, spread)):
            raise ArgumentError(
                f"{what}: output_padding {extra} must be at least 0 and smaller than the stride {steps} or "
                f"the dilation {spread} on each axis"
            )
        sides = sides_of(padding, spatial, what)
        batch, inside, outside = self.shape[0], self.shape[1] // groups, weight.shape[1]
        carrier = accumulator(source.dtype)
        # Channels are summed before elements are put in their places: most of what lies between those is zeros.
        left = source.cast(carrier).reshape((batch, groups, 1, inside) + (1,) * spatial + self.shape[2:])
        left = left.expand((batch, groups, outside, inside) + kernel + self.shape[2:])
        right = weight.cast(carrier).reshape((1, groups, inside, outside) + kernel + (1,) * spatial).transpose(2, 3)
        total = left.mul(right).reduce_over(Op.ADD, (3,), False, what)
        total = total.permute((0, 1, 2, *range(3 + spatial, 3 + 2 * spatial), *range(3, 3 + spatial)))
        overlapping = []
        for i in range(spatial):
            size = (self.shape[2 + i] - 1) * steps[i] + spread[i] * (kernel[i] - 1) + 1 + extra[i]
            along, across = 3 + i, 3 + spatial + i
            if kernel[i] == steps[i] and spread[i] == 1 and not extra[i]:
                total = _interleaved(total, along, across)  # windows lie side by side
            else:
                total = total.unwindow(along, across, steps[i], spread[i], size)
                overlapping.append(across)
        if overlapping:
            total = total.reduce_over(Op.ADD, tuple(overlapping), False, what)
        result = total.cast(source.dtype).reshape((batch, groups * outside) + total.shape[3 : 3 + spatial])
        if any(before + after > size for size, (before, after) in zip(result.shape[2:], sides)):
            raise ShapeError(f"{what}: padding {sides} cuts off more than the result {result.shape[2:]} has")
        result = result.pad_sides([(-before, -after) for before, after in sides])
        return result if bias is None else result.add(_channels(bias, groups * outside, spatial, what))


def _interleaved(x: T, along: int, across: int) -> T:
    """Every element along one axis becomes as many as another axis, which comes later, has; that one gets size 1."""
    order = [axis for axis in range(x.ndim) if axis != across]
    order.insert(order.index(along) + 1, across)
    sizes = list(x.shape)
    sizes[along], sizes[across] = sizes[along] * sizes[across], 1
    return x.permute(tuple(order)).reshape(tuple(sizes))


def _convolution_sides(
    what: str, padding: Padding | str, kernel: Sequence[int], stride: Sequence[int], dilation: Sequence[int]
) -> list[tuple[int, int]]:
    """(before, after) of each spatial axis; "same" puts the odd zero at the end."""
    if padding == "valid":
        return [(0, 0)] * len(kernel)
    if padding == "same":
        if max(stride) > 1:
            raise ArgumentError(f"{what}: padding 'same' needs stride 1, got {tuple(stride)}")
        totals = [d * (k - 1) for d, k in zip(dilation, kernel)]
        return [(total // 2, total - total // 2) for total in totals]
    if isinstance(padding, str):
        raise ArgumentError(f"{what}: padding {padding!r} is not 'same', 'valid' or integers")
    return sides_of(padding, len(kernel), what)


def _channels(bias: T, count: int, spatial: int, what: str) -> T:
    """A bias of one number a channel, shaped to meet `[batch, channels, *sizes]`."""
    if operand(bias, what, "bias").shape != (count,):
        raise ShapeError(f"{what}: bias of shape {bias.shape} must have shape {(count,)}, one number an out channel")
    return bias.reshape((1, count) + (1,) * spatial)


def _check_spatial(what: str, weight: MovementMixin, spatial: int) -> None:
    if operand(weight, what, "weight").ndim != spatial + 2:
        raise ShapeError(
            f"{what}: weight {weight.shape} must have {spatial + 2} axes, two of channels and the kernel's"
        )


def _check_convolution(what: str, source: tuple[int, ...], weight: tuple[int, ...], groups: int, channels: int) -> None:
    if len(weight) < 3 or len(source) != len(weight):
        raise ShapeError(
            f"{what}: input {source} and weight {weight} need channels and the same number of spatial axes: an input "
            f"of {len(weight)} axes, or {len(weight) - 1} without a batch"
        )
    if min(weight[2:]) < 1:
        raise ShapeError(f"{what}: weight {weight} has a kernel without elements")
    if source[1] != channels or channels % groups or weight[0] % groups:
        raise ShapeError(
            f"{what}: input {source} has {source[1]} channels, weight {weight} with groups={groups} needs {channels}"
        )
