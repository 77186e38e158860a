"""Composed mixin: resizing and resampling of images: interpolation, sampling on a grid, moving pixels to channels."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Self, TypeVar

from gradlet.base.dtype import accumulator, dtypes
from gradlet.base.errors import ArgumentError, ShapeError
from gradlet.ops.adaptive import AdaptiveMixin
from gradlet.ops.arguments import has_size, integer, number, per_axis
from gradlet.ops.op import Op

MODES = ("nearest", "nearest-exact", "linear", "bilinear", "trilinear", "bicubic", "area")
T = TypeVar("T", bound="ResizeMixin")
# Modes that say how many axes they resize.
AXES_OF_MODE = {"bilinear": 2, "bicubic": 2, "trilinear": 3}


class ResizeMixin(AdaptiveMixin):
    """Resizing the last axes."""

    __slots__ = ()

    def interpolate(
        self, size: int | Sequence[int] | None = None, mode: str = "linear", align_corners: bool = False,
        scale_factor: float | Sequence[float] | None = None, recompute_scale_factor: bool = False,
        antialias: bool = False,
    ) -> Self:  # fmt: skip
        """Resize the last axes: as many as `size` or `scale_factor` has; for a number all but the first two.

        Element `i` of the result is read at `(i + 1/2) * s / n - 1/2`, cut to the axis (`i * (s - 1) / (n - 1)` with
        `align_corners`), `s` elements becoming `n`; between elements the value is on the line between two ("linear",
        "bilinear", "trilinear": that along every axis), or on a cubic through four ("bicubic", a = -3/4, Keys 1981).
        "nearest" reads element `floor(i * s / n)`, "nearest-exact" the one at `floor((i + 1/2) * s / n)`, "area"
        averages bins as `adaptive_avg_pool2d` does.

        Args:
            size: new sizes.
            scale_factor: factors, which give the sizes `floor(s * factor)` where there is no `size`, and, unless
                `recompute_scale_factor`, stand for `n / s`.
            antialias: when an axis shrinks, weigh all elements that the filter, stretched as much, reaches (linear and
                bicubic).

        Raises:
            ArgumentError: another mode, or neither `size` nor `scale_factor`.
            ShapeError: sizes below 1, or more of them than axes.

        >>> Tensor([[1.0, 3.0]]).interpolate((4,)).tolist()
        [[1.0, 1.5, 2.5, 3.0]]
        """
        if mode not in MODES:
            raise ArgumentError(f"interpolate: mode {mode!r} is not one of {', '.join(MODES)}")
        smooth = mode not in ("nearest", "nearest-exact", "area")
        if align_corners and not smooth:
            raise ArgumentError(f"interpolate: align_corners goes with the linear modes and bicubic, not {mode!r}")
        if antialias and not smooth:
            raise ArgumentError(f"interpolate: antialias goes with the linear modes and bicubic, not {mode!r}")
        sizes, steps = self._resized(size, scale_factor, recompute_scale_factor)
        if AXES_OF_MODE.get(mode, len(sizes)) != len(sizes):
            raise ArgumentError(f"interpolate: mode {mode!r} resizes {AXES_OF_MODE[mode]} axes, got sizes {sizes}")
        if mode == "area":
            return self.average_bins("interpolate", sizes)
        source = self.same_float("interpolate") if smooth else self
        result = source.cast(accumulator(source.dtype)) if smooth else source
        for axis, target, step in zip(range(self.ndim - len(sizes), self.ndim), sizes, steps):
            if not smooth:
                result = result._resize_nearest(axis, target, step, mode)
            elif antialias:
                result = result._resize_smoothly(axis, target, step, mode, align_corners)
            elif mode == "bicubic":
                result = result._resize_cubic(axis, target, step, align_corners)
            else:
                result = result._resize_linear(axis, target, step, align_corners)
        return result.cast(source.dtype)

    def _resized(
        self, size: int | Sequence[int] | None, scale_factor: float | Sequence[float] | None, recompute: bool
    ) -> tuple[tuple[int, ...], list[float | None]]:
        """New sizes, and for each axis the distance of elements of the result where it is not the sizes' quotient."""
        given = scale_factor if size is None else size
        if given is None:
            raise ArgumentError("interpolate: give size or scale_factor")
        count = len(given) if isinstance(given, (tuple, list)) else max(1, self.ndim - 2)
        if not 0 < count <= self.ndim:
            raise ShapeError(f"interpolate: {count} sizes for shape {self.shape}; give one for each of its last axes")
        have = self.shape[self.ndim - count :]
        steps: list[float | None] = [None] * count
        if scale_factor is not None:
            listed = scale_factor if isinstance(scale_factor, (tuple, list)) else (scale_factor,) * count
            factors = [number(f, "interpolate", "scale_factor") for f in listed]
            if len(factors) != count or not all(math.isfinite(f) and f > 0 for f in factors):
                raise ArgumentError(f"interpolate: scale_factor {scale_factor!r} must be {count} positive numbers")
            if has_size(have):
                raise ShapeError(f"interpolate: a factor needs fixed sizes, shape {self.shape} has others; give size")
            steps = steps if recompute else [1 / f for f in factors]
            sizes = tuple([math.floor(s * f) for s, f in zip(have, factors)])
        if size is not None:
            sizes = per_axis(size, count, "interpolate: size")
        if min((*sizes, *have)) < 1:
            raise ShapeError(f"interpolate: shape {self.shape} cannot be resized to {sizes}; sizes must be positive")
        return sizes, steps

    def _resize_nearest(self, axis: int, target: int, step: float | None, mode: str) -> Self:
        source = self.shape[axis]
        exact = mode == "nearest-exact"
        if source == target and step in (None, 1.0):
            return self.as_value()
        if step is not None and step * target != source:
            # In float32 as torch does, so that ties fall on the same side.
            place = self.positions(target, self.place).cast(dtypes.float32)
            place = place.add(0.5).mul(step) if exact else place.mul(step)
            return self.gather_axes({axis: place.cast(dtypes.int32).minimum(source - 1)})
        if target % source == 0:
            return self.repeat_interleave(target // source, axis)
        number = self.positions(target, self.place)
        if 2 * source * target > dtypes.int32.max:
            number = number.cast(dtypes.int64)
        if exact:
            return self.gather_axes({axis: number.mul(2 * source).add(source).floordiv(2 * target)})
        return self.gather_axes({axis: number.mul(source).floordiv(target)})

    def _source_place(self, axis: int, target: int, step: float | None, align_corners: bool) -> Self:
        """Where each element of a resized axis lies on this one, in the type of this."""
        source = self.shape[axis]
        place = self.positions(target, self.place).cast(self.dtype)
        if align_corners:
            return place.mul((source - 1) / (target - 1) if target > 1 else 0.0)
        return place.add(0.5).mul(source / target if step is None else step).sub(0.5)

    def _resize_linear(self, axis: int, target: int, step: float | None, align_corners: bool) -> Self:
        source = self.shape[axis]
        if source == target and step in (None, 1.0):
            return self.as_value()
        place = self._source_place(axis, target, step, align_corners).clamp(0.0, source - 1.0)
        low = place.cast(dtypes.int32)
        weight = place.sub(low.cast(self.dtype))
        weight = weight.reshape([target if a == axis else 1 for a in range(self.ndim)])
        first = self.gather_axes({axis: low})
        second = self.gather_axes({axis: low.add(1).minimum(source - 1)})
        return first.mul(weight.neg().add(1.0)).add(second.mul(weight))

    def _resize_cubic(self, axis: int, target: int, step: float | None, align_corners: bool) -> Self:
        if self.shape[axis] == target and step in (None, 1.0):
            return self.as_value()
        place = self._source_place(axis, target, step, align_corners).reshape(target, 1)
        below = place.floor()
        steps = self.positions(4, self.place).sub(1)
        weight = cubic_filter(place.sub(below).sub(steps.cast(self.dtype)).abs(), -0.75)
        at = below.cast(dtypes.int32).add(steps).clamp(0, self.shape[axis] - 1)
        return self._weighted_sum(axis, at, weight)

    def _weighted_sum(self, axis: int, places: Self, weight: Self) -> Self:
        """Along an axis the sums of what some places `[target, taps]` hold, times weights."""
        product = self.gather_axes({axis: places}).mul(weight.reshape(weight.shape + (1,) * (self.ndim - axis - 1)))
        return product.reduce_over(Op.ADD, axis + 1, False, "interpolate")

    def _resize_smoothly(self, axis: int, target: int, step: float | None, mode: str, align_corners: bool) -> Self:
        """Resize by a filter that is as wide as the distance of elements of the result."""
        source = self.shape[axis]
        if align_corners:
            scale = (source - 1) / (target - 1) if target > 1 else 0.0
        else:
            scale = source / target if step is None else step
        stretch = max(scale, 1.0)
        support = (2.0 if mode == "bicubic" else 1.0) * stretch
        taps = min(math.ceil(support) * 2 + 1, source)
        centre = self.positions(target, self.place).cast(self.dtype).add(0.5).mul(scale).reshape(target, 1)
        begin = centre.sub(support - 0.5).cast(dtypes.int32).maximum(0)
        end = centre.add(support + 0.5).cast(dtypes.int32).minimum(source)
        at = begin.add(self.positions(taps, self.place).reshape(1, taps))
        distance = at.cast(self.dtype).sub(centre).add(0.5).mul(1 / stretch).abs()
        if mode == "bicubic":
            weight = cubic_filter(distance, -0.5)
        else:
            weight = distance.neg().add(1.0).maximum(0.0)
        weight = at.lt(end).where(weight, 0.0)
        weight = weight.fdiv(weight.sum(1, keepdim=True))
        return self._weighted_sum(axis, at.minimum(source - 1), weight)

    # pixels and channels
    def pixel_shuffle(self, upscale_factor: int) -> Self:
        """`[..., C * r * r, H, W]` as `[..., C, H * r, W * r]`: r * r channels become a square of pixels.

        Source: Shi et al. 2016, "Real-Time Single Image and Video Super-Resolution Using ... Sub-Pixel Convolution".

        Raises:
            ShapeError: fewer than 3 axes, or channels that r * r does not divide.

        >>> Tensor([[[1]], [[2]], [[3]], [[4]]]).pixel_shuffle(2).tolist()
        [[[1, 2], [3, 4]]]
        """
        r = integer(upscale_factor, "pixel_shuffle", "upscale_factor", 1)
        if self.ndim < 3 or self.shape[-3] % (r * r):
            raise ShapeError(f"pixel_shuffle: shape {self.shape} must be [..., C * {r * r}, H, W]")
        *lead, channels, rows, columns = self.shape
        n = len(lead)
        split = self.reshape((*lead, channels // (r * r), r, r, rows, columns))
        moved = split.permute((*range(n), n, n + 3, n + 1, n + 4, n + 2))
        return moved.reshape((*lead, channels // (r * r), rows * r, columns * r))

    def pixel_unshuffle(self, downscale_factor: int) -> Self:
        """`[..., C, H * r, W * r]` as `[..., C * r * r, H, W]`: the inverse of `pixel_shuffle`.

        Raises:
            ShapeError: fewer than 3 axes, or a height or width that r does not divide.

        >>> Tensor([[[1, 2], [3, 4]]]).pixel_unshuffle(2).tolist()
        [[[1]], [[2]], [[3]], [[4]]]
        """
        r = integer(downscale_factor, "pixel_unshuffle", "downscale_factor", 1)
        if self.ndim < 3 or self.shape[-1] % r or self.shape[-2] % r:
            raise ShapeError(f"pixel_unshuffle: shape {self.shape} must be [..., C, H * {r}, W * {r}]")
        *lead, channels, rows, columns = self.shape
        n = len(lead)
        split = self.reshape((*lead, channels, rows // r, r, columns // r, r))
        moved = split.permute((*range(n), n, n + 2, n + 4, n + 1, n + 3))
        return moved.reshape((*lead, channels * r * r, rows // r, columns // r))

    def channel_shuffle(self, groups: int) -> Self:
        """Channels (axis 1) of all groups one by one: channel `c` of group `g` moves to `c * groups + g`.

        Source: Zhang et al. 2018, "ShuffleNet".

        Raises:
            ShapeError: fewer than 3 axes, or channels that the groups do not divide.

        >>> Tensor([[[1], [2], [3], [4]]]).channel_shuffle(2).flatten().tolist()
        [1, 3, 2, 4]
        """
        groups = integer(groups, "channel_shuffle", "groups", 1)
        if self.ndim < 3 or self.shape[1] % groups:
            raise ShapeError(f"channel_shuffle: shape {self.shape} must be [N, C * {groups}, ...]")
        split = self.reshape((self.shape[0], groups, self.shape[1] // groups, *self.shape[2:]))
        return split.transpose(1, 2).reshape(self.shape)


def _near(x: T, a: float) -> T:
    """The cubic filter at distances below 1."""
    return x.mul(a + 2).sub(a + 3).mul(x).mul(x).add(1.0)


def _far(x: T, a: float) -> T:
    """The cubic filter at distances from 1 to 2."""
    return x.mul(a).sub(5 * a).mul(x).add(8 * a).mul(x).sub(4 * a)


def cubic_filter(distance: T, a: float) -> T:
    """The weight of an element at a distance (Keys 1981)."""
    return distance.lt(1.0).where(_near(distance, a), distance.lt(2.0).where(_far(distance, a), 0.0))
