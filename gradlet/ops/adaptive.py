"""Composed mixin: pooling to a given size: adaptive average and maximum pooling, fractional maximum pooling.

Bin `i` of `n` bins over an axis of size `s` is `[floor(i * s / n), ceil((i + 1) * s / n))`.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any, Self

from gradlet.base.dtype import accumulator, dtypes
from gradlet.base.errors import ArgumentError, ShapeError
from gradlet.ops.arguments import integers, number
from gradlet.ops.movement import operand
from gradlet.ops.op import Op
from gradlet.ops.pooling import PoolingMixin
from gradlet.ops.random import RandomMixin
from gradlet.ops.window import Sizes, positive

OutputSize = int | Sequence[int | None]


class AdaptiveMixin(PoolingMixin, RandomMixin):
    """Pooling to a given size."""

    __slots__ = ()

    def adaptive_avg_pool1d(self, output_size: OutputSize) -> Self:
        """Averages of `output_size` bins of the last axis.

        Raises:
            ShapeError: an axis without elements, or a size below 0.

        >>> Tensor([[1.0, 2.0, 6.0]]).adaptive_avg_pool1d(2).tolist()
        [[1.5, 4.0]]
        """
        return self.average_bins("adaptive_avg_pool1d", _bins(self.shape, output_size, 1, "adaptive_avg_pool1d"))

    def adaptive_avg_pool2d(self, output_size: OutputSize) -> Self:
        """Averages of bins of the last two axes; None keeps the size of an axis.

        Raises:
            ShapeError: an axis without elements, or a size below 0.

        >>> Tensor([[[1.0, 2.0], [3.0, 6.0]]]).adaptive_avg_pool2d(1).item()
        3.0
        """
        return self.average_bins("adaptive_avg_pool2d", _bins(self.shape, output_size, 2, "adaptive_avg_pool2d"))

    def adaptive_avg_pool3d(self, output_size: OutputSize) -> Self:
        """Averages of bins of the last three axes; None keeps the size of an axis.

        Raises:
            ShapeError: an axis without elements, or a size below 0.

        >>> Tensor.ones(1, 4, 4, 4).adaptive_avg_pool3d((2, None, 1)).shape
        (1, 2, 4, 1)
        """
        return self.average_bins("adaptive_avg_pool3d", _bins(self.shape, output_size, 3, "adaptive_avg_pool3d"))

    def average_bins(self, what: str, outs: Sequence[int]) -> Self:
        """Averages of bins of the last axes, one axis after another."""
        source = self.same_float(what)
        lead = self.ndim - len(outs)
        if 0 in outs:
            return source.constant_like(0, self.shape[:lead] + tuple(outs))
        sizes = source.shape[lead:]
        if all(size % out == 0 for size, out in zip(sizes, outs)):
            kernel = tuple([size // out for size, out in zip(sizes, outs)])
            if max(kernel) == 1:
                return source.as_value()
            wide = source.cast(accumulator(source.dtype)).windows(kernel, kernel, (1,) * len(kernel))
            total = wide.reduce_over(Op.ADD, tuple(range(self.ndim, wide.ndim)), False, what)
            return total.mul(1 / prod(kernel)).cast(source.dtype)
        result = source.cast(accumulator(source.dtype))
        for axis, out in zip(range(lead, self.ndim), outs):
            result = result._average_axis(axis, out, what)
        return result.cast(source.dtype)

    def _average_axis(self, axis: int, out: int, what: str) -> Self:
        size = self.shape[axis]
        if out == size:
            return self.as_value()
        start, stop, place = self._bin_places(size, out)
        inside = place.lt(stop).reshape(place.shape + (1,) * (self.ndim - axis - 1))
        picked = self.gather_axes({axis: place.minimum(size - 1)})
        total = inside.where(picked, 0.0).reduce_over(Op.ADD, axis + 1, False, what)
        width = stop.sub(start).cast(self.dtype)
        return total.fdiv(width.reshape((out,) + (1,) * (self.ndim - axis - 1)))

    def _bin_places(self, size: int, out: int) -> tuple[Self, Self, Self]:
        """Where bins of an axis begin and end, `[out, 1]`, and the places that each counts, `[out, largest width]`."""
        width = max([-((i + 1) * size // -out) - i * size // out for i in range(out)])
        number = self.positions(out, self.place).reshape(out, 1)
        if out * size > dtypes.int32.max:
            number = number.cast(dtypes.int64)
        start = number.mul(size).floordiv(out)
        stop = number.mul(size).add(size + out - 1).floordiv(out)
        return start, stop, start.add(self.positions(width, self.place).reshape(1, width))

    def adaptive_max_pool1d(self, output_size: OutputSize, return_indices: bool = False) -> Any:
        """Maxima of `output_size` bins of the last axis.

        Args:
            return_indices: also return where they are (the first of ties).

        Raises:
            ShapeError: an axis without elements, or a size below 0.

        >>> Tensor([[1, 7, 6]]).adaptive_max_pool1d(2).tolist()
        [[7, 7]]
        """
        outs = _bins(self.shape, output_size, 1, "adaptive_max_pool1d")
        return self._max_bins("adaptive_max_pool1d", outs, return_indices)

    def adaptive_max_pool2d(self, output_size: OutputSize, return_indices: bool = False) -> Any:
        """Maxima of bins of the last two axes; None keeps the size of an axis.

        Args:
            return_indices: also return where they are, in row-major order over the two axes (the first of ties).

        Raises:
            ShapeError: an axis without elements, or a size below 0.

        >>> [t.item() for t in Tensor([[[1, 2], [3, 6]]]).adaptive_max_pool2d(1, return_indices=True)]
        [6, 3]
        """
        outs = _bins(self.shape, output_size, 2, "adaptive_max_pool2d")
        return self._max_bins("adaptive_max_pool2d", outs, return_indices)

    def adaptive_max_pool3d(self, output_size: OutputSize, return_indices: bool = False) -> Any:
        """Maxima of bins of the last three axes; None keeps the size of an axis.

        Args:
            return_indices: also return where they are, in row-major order over the three axes (the first of ties).

        Raises:
            ShapeError: an axis without elements, or a size below 0.

        >>> Tensor.ones(1, 4, 4, 4).adaptive_max_pool3d((2, None, 1)).shape
        (1, 2, 4, 1)
        """
        outs = _bins(self.shape, output_size, 3, "adaptive_max_pool3d")
        return self._max_bins("adaptive_max_pool3d", outs, return_indices)

    def _max_bins(self, what: str, outs: Sequence[int], return_indices: bool) -> Any:
        count = len(outs)
        sizes = self.shape[self.ndim - count :]
        if 0 in outs:
            empty = self.constant_like(0, self.shape[: self.ndim - count] + tuple(outs))
            return (empty, empty.cast(dtypes.default_int)) if return_indices else empty
        if all(size % out == 0 for size, out in zip(sizes, outs)):
            kernel = tuple([size // out for size, out in zip(sizes, outs)])
            plan = (kernel, kernel, (1,) * count, [(0, 0)] * count, [0] * count)
            return self._largest_of(what, plan, return_indices)
        # A bin that is smaller than the largest repeats its last element, which changes no maximum.
        bins = []
        for size, out in zip(sizes, outs):
            _, stop, place = self._bin_places(size, out)
            bins.append(place.minimum(stop.sub(1)))
        return self._largest_at(what, bins, return_indices)

    def _largest_at(self, what: str, bins: Sequence[Self], return_indices: bool) -> Any:
        """Maxima over the places `[..., out, width]` of each of the last axes; leading axes are those of this."""
        count = len(bins)
        sizes = self.shape[self.ndim - count :]
        views = self._bin_views(bins).detach()

        def place() -> Any:
            numbers = self.positions(prod(sizes), self.place).reshape(sizes)._bin_views(bins)
            return views.first_place(what, count, numbers)

        found = self._routed(views, count, place, what)
        return (found, place()) if return_indices else found

    def _bin_views(self, bins: Sequence[Self]) -> Self:
        """`[..., *outs, *widths]`: what the places of each of the last axes select."""
        count = len(bins)
        lead = self.ndim - count
        spread = {}
        for i, place in enumerate(bins):
            shape = [1] * (2 * count)
            shape[i], shape[count + i] = place.shape
            spread[lead + i] = place.reshape(shape)
        return self.gather_axes(spread)

    # random bins
    def fractional_max_pool2d(
        self, kernel_size: Sizes, output_size: Sizes | None = None, output_ratio: float | Sequence[float] | None = None,
        return_indices: bool = False, random_samples: Self | None = None,
    ) -> Any:  # fmt: skip
        """Maxima of windows that begin at random steps of the last two axes, a sequence for each plane.

        With `a = (s - k) / (n - 1)` and u uniform in [0, 1), window `i` of `n` over an axis of size `s` begins at
        `floor((i + u) * a) - floor(u * a)`, the last at `s - k`. Source: Graham 2014, "Fractional Max-Pooling".

        Args:
            kernel_size: sizes k of the windows.
            output_size: how many windows; or
            output_ratio: their number as a part of the size, in (0, 1).
            return_indices: also return where the maxima are, in row-major order over the two axes.
            random_samples: the numbers u instead of random ones: `[N, C, 2]`, that of the last axis first.

        Raises:
            ShapeError: sizes that do not fit.
            ArgumentError: not exactly one of `output_size` and `output_ratio`.

        >>> Tensor.ones(1, 1, 4, 4).fractional_max_pool2d(2, output_size=3).shape
        (1, 1, 3, 3)
        """
        return self._fractional(
            "fractional_max_pool2d", 2, kernel_size, output_size, output_ratio, return_indices, random_samples
        )

    def fractional_max_pool3d(
        self, kernel_size: Sizes, output_size: Sizes | None = None, output_ratio: float | Sequence[float] | None = None,
        return_indices: bool = False, random_samples: Self | None = None,
    ) -> Any:  # fmt: skip
        """Maxima of windows that begin at random steps of the last three axes; see `fractional_max_pool2d`.

        Args:
            random_samples: `[N, C, 3]`, in the order of the axes.

        Raises:
            ShapeError: sizes that do not fit.
            ArgumentError: not exactly one of `output_size` and `output_ratio`.

        >>> Tensor.ones(1, 1, 4, 4, 4).fractional_max_pool3d(2, output_size=3).shape
        (1, 1, 3, 3, 3)
        """
        return self._fractional(
            "fractional_max_pool3d", 3, kernel_size, output_size, output_ratio, return_indices, random_samples
        )

    def _fractional(
        self, what: str, count: int, kernel_size: Sizes, output_size: Sizes | None,
        output_ratio: float | Sequence[float] | None, return_indices: bool, random_samples: Self | None,
    ) -> Any:  # fmt: skip
        if self.ndim not in (count + 1, count + 2) or 0 in self.shape[1:]:
            raise ShapeError(f"{what}: needs {count + 1} or {count + 2} axes with elements, got shape {self.shape}")
        if self.ndim == count + 1:
            found = self.unsqueeze(0)._fractional(
                what, count, kernel_size, output_size, output_ratio, return_indices, random_samples
            )
            return tuple([f.squeeze(0) for f in found]) if return_indices else found.squeeze(0)
        kernel = positive(kernel_size, count, what, "kernel_size")
        sizes = self.shape[2:]
        if (output_size is None) == (output_ratio is None):
            raise ArgumentError(f"{what}: give either output_size or output_ratio")
        if output_size is None:
            listed = output_ratio if isinstance(output_ratio, (tuple, list)) else (output_ratio,) * count
            ratios = [number(r, what, "output_ratio") for r in listed]
            if len(ratios) != count or not all(0 < r < 1 for r in ratios):
                raise ArgumentError(f"{what}: output_ratio {output_ratio!r} must lie in (0, 1), one an axis")
            output_size = tuple([int(size * ratio) for size, ratio in zip(sizes, ratios)])
        outs = positive(output_size, count, what, "output_size")
        if any(out + k - 1 > size for out, k, size in zip(outs, kernel, sizes)):
            raise ShapeError(f"{what}: {outs} windows of {kernel} do not fit the sizes {sizes}")
        planes = self.shape[0] * self.shape[1]
        if random_samples is None:
            samples = self.rand(planes, count, device=self.place)
        else:
            if operand(random_samples, what, "random_samples").shape != self.shape[:2] + (count,):
                raise ShapeError(
                    f"{what}: random_samples of shape {random_samples.shape} must be {self.shape[:2] + (count,)}"
                )
            samples = random_samples.reshape(planes, count)
        place: Self | None = None
        for axis, (size, out, k) in enumerate(zip(sizes, outs, kernel)):
            column = 1 - axis if count == 2 else axis
            sample = samples.shrink((None, (column, column + 1)))
            along = sample._window_starts(size, out, k).reshape(planes, out, 1)
            along = along.add(self.positions(k, self.place).reshape(1, 1, k))
            shape = [planes] + [1] * (2 * count)
            shape[1 + axis], shape[1 + count + axis] = out, k
            along = along.reshape(shape).mul(prod(sizes[axis + 1 :]))
            place = along if place is None else place.add(along)
        assert place is not None
        numbers = place
        flat = self.reshape(planes, *sizes)
        views = flat.detach().reshape(planes, prod(sizes)).gather_rows(numbers, 1)

        def first() -> Any:
            return views.first_place(what, count, numbers)

        result = flat._routed(views, count, first, what).reshape(self.shape[:2] + outs)
        return (result, first().reshape(self.shape[:2] + outs)) if return_indices else result

    def _window_starts(self, size: int, out: int, kernel: int) -> Self:
        """Where `out` windows begin, from one random number a row."""
        count = self.positions(out, self.place).reshape(1, out)
        if out == 1:
            return count.add(size - kernel).expand(self.shape[0], 1)
        step = (size - kernel) / (out - 1)
        begin = count.cast(self.dtype).add(self).mul(step).cast(dtypes.int32).sub(self.mul(step).cast(dtypes.int32))
        return count.eq(out - 1).where(size - kernel, begin)


def _bins(shape: tuple[int, ...], output_size: OutputSize, count: int, what: str) -> tuple[int, ...]:
    """The number of bins of each of the last axes."""
    listed = tuple(output_size) if isinstance(output_size, (tuple, list)) else (output_size,) * count
    sizes = shape[len(shape) - count :]
    if len(shape) <= count or len(listed) != count:
        raise ShapeError(
            f"{what}: output_size {output_size!r} for shape {shape}; give an integer or {count} sizes, for "
            "that many axes behind one of channels"
        )
    outs = integers([size if out is None else out for size, out in zip(sizes, listed)], f"{what}: output_size")
    if min(outs) < 0 or 0 in sizes:
        raise ShapeError(f"{what}: sizes {sizes} to {outs}: bins need elements, and their number is at least 0")
    return outs
