"""Composed mixin: sliding windows over the last axes, the base of convolution and pooling; and what is made of them."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Self

from gradlet.base.dtype import accumulator
from gradlet.base.errors import ArgumentError, ShapeError
from gradlet.ops.arguments import has_size, integers, pairs, per_axis
from gradlet.ops.op import Op
from gradlet.ops.stats import StatsMixin

Sizes = int | Sequence[int]
Padding = int | Sequence[int] | Sequence[Sequence[int]]


class WindowMixin(StatsMixin):
    """Sliding windows over the last axes, 1 to 3 of them."""

    __slots__ = ()

    def windows(self, kernel: Sequence[int], stride: Sequence[int], dilation: Sequence[int]) -> Self:
        """All windows over the last axes: `[..., out sizes, kernel sizes]`."""
        count = len(kernel)
        lead = self.ndim - count
        tiles = not has_size(self.shape[lead:]) or all(k == 1 for k in kernel)
        if (
            tiles
            and list(stride) == list(kernel)
            and all(d == 1 or k == 1 for d, k in zip(dilation, kernel, strict=True))
        ):
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

    def pad_sides(self, sides: Sequence[tuple[int, int]]) -> Self:
        """Zeros around the last axes (cropping where negative)."""
        return self.pad([(0, 0)] * (self.ndim - len(sides)) + list(sides))

    def unfold2d(self, kernel_size: Sizes, dilation: Sizes = 1, padding: Sizes = 0, stride: Sizes = 1) -> Self:
        """All windows of images as columns (im2col): `[N, C * prod(kernel), L]`, L windows in row-major order.

        Args:
            kernel_size, dilation, padding, stride: an integer or one for each of the two axes; zeros are padded.

        Raises:
            ShapeError: not `[N, C, H, W]` or `[C, H, W]`, or a window larger than the padded image.
            ArgumentError: a size, stride or dilation below 1, or a negative padding.

        >>> Tensor([[[[1, 2], [3, 4]]]]).unfold2d((1, 2)).tolist()
        [[[1, 3], [2, 4]]]
        """
        if self.ndim not in (3, 4):
            raise ShapeError(f"unfold2d: needs the shape [N, C, H, W] or [C, H, W], got {self.shape}")
        if self.ndim == 3:
            return self.unsqueeze(0).unfold2d(kernel_size, dilation, padding, stride).squeeze(0)
        kernel = positive(kernel_size, 2, "unfold2d", "kernel_size")
        steps, spread = positive(stride, 2, "unfold2d", "stride"), positive(dilation, 2, "unfold2d", "dilation")
        padded = self.pad_sides(paddings(padding, 2, "unfold2d"))
        check_fit("unfold2d", padded.shape[2:], kernel, spread)
        view = padded.windows(kernel, steps, spread)
        view = view.permute(0, 1, 4, 5, 2, 3)
        return view.reshape(self.shape[0], self.shape[1] * prod(kernel), prod(view.shape[4:]))

    def fold(
        self, output_size: Sizes, kernel_size: Sizes, dilation: Sizes = 1, padding: Sizes = 0, stride: Sizes = 1
    ) -> Self:
        """Columns of windows added up to images (col2im): what `unfold2d` took apart, each element times its windows.

        Args:
            output_size: height and width of the images.
            kernel_size, dilation, padding, stride: those that `unfold2d` was called with.

        Raises:
            ShapeError: this is not `[N, C * prod(kernel), L]` (or without N), L the number of windows of such images.
            ArgumentError: a size, stride or dilation below 1, or a negative padding.

        >>> Tensor([[[1, 3], [2, 4]]]).fold((2, 2), (1, 2)).tolist()
        [[[[1, 2], [3, 4]]]]
        """
        if self.ndim == 2:
            return self.unsqueeze(0).fold(output_size, kernel_size, dilation, padding, stride).squeeze(0)
        kernel = positive(kernel_size, 2, "fold", "kernel_size")
        steps, spread = positive(stride, 2, "fold", "stride"), positive(dilation, 2, "fold", "dilation")
        sizes = positive(output_size, 2, "fold", "output_size")
        sides = paddings(padding, 2, "fold")
        padded = [size + before + after for size, (before, after) in zip(sizes, sides)]
        check_fit("fold", padded, kernel, spread)
        counts = [(size - d * (k - 1) - 1) // s + 1 for size, k, s, d in zip(padded, kernel, steps, spread)]
        if self.ndim != 3 or self.shape[1] % prod(kernel) or self.shape[2] != prod(counts):
            raise ShapeError(
                f"fold: shape {self.shape} must be [N, C * {prod(kernel)}, {prod(counts)}]: windows of {kernel} on "
                f"{tuple(counts)} places of images of {sizes}"
            )
        view = self.reshape((self.shape[0], self.shape[1] // prod(kernel)) + kernel + tuple(counts))
        for i in range(2):
            view = view.unwindow(4 + i, 2 + i, steps[i], spread[i], padded[i])
        total = view.cast(accumulator(self.dtype)).reduce_over(Op.ADD, (2, 3), False, "fold")
        return total.pad_sides([(-before, -after) for before, after in sides]).cast(self.dtype)


def sides_of(padding: Padding, count: int, what: str) -> list[tuple[int, int]]:
    """(before, after) of each spatial axis, first axis first."""
    if not isinstance(padding, (tuple, list)):
        (both,) = integers((padding,), f"{what}: padding")
        return [(both, both)] * count
    if count and len(padding) == count and all(isinstance(p, (tuple, list)) for p in padding):
        return [p for p in pairs(padding, count, f"{what}: padding") if p is not None]
    flat = integers((padding,), f"{what}: padding")
    if len(flat) == 1:
        return [(flat[0], flat[0])] * count
    if len(flat) == 2 * count:
        return [(flat[i], flat[i + 1]) for i in range(0, 2 * count, 2)][::-1]
    if len(flat) == count:
        return [(p, p) for p in flat]
    raise ShapeError(f"{what}: padding {flat} must be an integer, {count} integers or {2 * count} integers")


def paddings(padding: Padding, count: int, what: str) -> list[tuple[int, int]]:
    """(before, after) of each spatial axis, none negative."""
    sides = sides_of(padding, count, what)
    if any(min(pair) < 0 for pair in sides):
        raise ArgumentError(f"{what}: padding {sides} must be at least 0")
    return sides


def positive(value: Sizes, count: int, what: str, name: str) -> tuple[int, ...]:
    """One integer an axis, none below 1; one in a list counts for all axes."""
    if isinstance(value, (tuple, list)) and len(value) == 1:
        value = value[0]
    values = per_axis(value, count, f"{what}: {name}")
    if min(values, default=1) < 1:
        raise ArgumentError(f"{what}: {name} must be positive, got {values}")
    return values


def check_fit(what: str, sizes: Sequence[int], kernel: Sequence[int], dilation: Sequence[int]) -> None:
    """Raise ShapeError where a window is larger than what it slides over."""
    for size, width, spread in zip(sizes, kernel, dilation):
        if spread * (width - 1) + 1 > size:
            raise ShapeError(
                f"{what}: a kernel of {tuple(kernel)} (dilation {tuple(dilation)}) does not fit the padded input "
                f"{tuple(sizes)}; pad more or use a smaller kernel"
            )
