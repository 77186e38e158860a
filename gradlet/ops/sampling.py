"""Composed mixin: reading images between their pixels: grids of places, sampling on them."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Self

from gradlet.base.dtype import accumulator, dtypes
from gradlet.base.errors import ArgumentError, ShapeError
from gradlet.ops.arguments import sizes
from gradlet.ops.linalg import LinalgMixin
from gradlet.ops.movement import operand
from gradlet.ops.op import Op
from gradlet.ops.resize import ResizeMixin, cubic_filter

SAMPLING_MODES = ("bilinear", "nearest", "bicubic")
OUTSIDE_MODES = ("zeros", "border", "reflection")


class SamplingMixin(LinalgMixin, ResizeMixin):
    """Sampling on grids. Coordinates run from -1 to 1 over an image; the last axis of the image comes first."""

    __slots__ = ()

    def affine_grid(self, size: Sequence[int], align_corners: bool = False) -> Self:
        """The places that affine maps give to the pixels of images: `grid[n, ..., :] = theta[n] @ (x, y, ..., 1)`.

        Args:
            size: shape of the images, `[N, C, H, W]` or `[N, C, D, H, W]`; this holds the maps, `[N, 2, 3]` or
                `[N, 3, 4]`.
            align_corners: whether -1 and 1 are the middles of the outermost pixels, else their outer edges.

        Returns:
            `[N, *sizes, 2 or 3]`, for `grid_sample`.

        Raises:
            ShapeError: maps or sizes of other shapes.

        >>> Tensor([[[1.0, 0.0, 0.0], [0.0, 1.0, 0.0]]]).affine_grid((1, 1, 1, 2)).tolist()
        [[[[-0.5, 0.0], [0.5, 0.0]]]]
        """
        shape = sizes((size,), "affine_grid: size")
        count = len(shape) - 2
        if count not in (2, 3) or self.shape != (shape[0], count, count + 1) or min(shape) < 1:
            raise ShapeError(
                f"affine_grid: maps of shape {self.shape} for images {shape}; give [N, 2, 3] for [N, C, H, W] or "
                "[N, 3, 4] for [N, C, D, H, W]"
            )
        theta = self.same_float("affine_grid")
        parts = []
        for axis in range(count - 1, -1, -1):
            along = theta._pixel_middles(shape[2 + axis], align_corners)
            along = along.reshape([-1 if a == axis else 1 for a in range(count)]).expand(shape[2:])
            parts.append(along.reshape(prod(shape[2:])))
        ones = parts[0].constant_like(1.0)
        base = parts[0].stack(*parts[1:], ones, dim=-1)
        return base.dot(theta.transpose(1, 2)).reshape((shape[0], *shape[2:], count))

    def _pixel_middles(self, size: int, align_corners: bool) -> Self:
        """Coordinates of the middles of pixels along an axis."""
        place = self.positions(size, self.place).cast(accumulator(self.dtype))
        if align_corners:
            return place.mul(2 / (size - 1) if size > 1 else 0.0).sub(1.0 if size > 1 else 0.0).cast(self.dtype)
        return place.mul(2.0).add(1.0).mul(1 / size).sub(1.0).cast(self.dtype)

    def grid_sample(
        self, grid: Self, mode: str = "bilinear", padding_mode: str = "zeros", align_corners: bool = False
    ) -> Self:
        """Images read at the places of a grid; see Jaderberg et al. 2015, "Spatial Transformer Networks".

        Args:
            grid: `[N, *out sizes, 2]` for images `[N, C, H, W]`: x then y, from -1 to 1 over the image; or
                `[N, *out sizes, 3]` for `[N, C, D, H, W]`: x, y, z.
            mode: "bilinear" (trilinear over three axes), "nearest" or "bicubic" (two axes, a = -3/4).
            padding_mode: what is outside: "zeros", the "border", or the image in "reflection".
            align_corners: whether -1 and 1 are the middles of the outermost pixels, else their outer edges.

        Returns:
            `[N, C, *out sizes]`.

        Raises:
            ShapeError: shapes that do not fit.
            ArgumentError: another mode.

        >>> image = Tensor([[[[1.0, 3.0]]]])
        >>> image.grid_sample(Tensor([[[[0.0, 0.0]]]])).item()
        2.0
        """
        count = self.ndim - 2
        shape = operand(grid, "grid_sample", "grid").shape
        if count not in (2, 3) or grid.ndim != self.ndim or shape[0] != self.shape[0] or shape[-1] != count:
            raise ShapeError(
                f"grid_sample: images {self.shape} and grid {shape} must be [N, C, H, W] and [N, h, w, 2], or "
                "[N, C, D, H, W] and [N, d, h, w, 3]"
            )
        if mode not in SAMPLING_MODES or (mode == "bicubic" and count != 2):
            raise ArgumentError(f"grid_sample: mode {mode!r} is not bilinear, nearest, or bicubic over two axes")
        if padding_mode not in OUTSIDE_MODES:
            raise ArgumentError(f"grid_sample: padding_mode {padding_mode!r} is not one of {', '.join(OUTSIDE_MODES)}")
        if 0 in self.shape[1:]:
            raise ShapeError(f"grid_sample: images of shape {self.shape} have no pixels")
        source, places = self.same_float("grid_sample").same_dtype([grid.same_float("grid_sample")])
        wide = source.cast(accumulator(source.dtype))
        places = places.cast(wide.dtype).reshape(shape[0], prod(shape[1:-1]), count)
        coordinates = []
        for axis, size in enumerate(self.shape[2:]):
            along = places.shrink((None, None, (count - 1 - axis, count - axis))).squeeze(-1)
            # From [-1, 1] to [0, size - 1], or to [-1/2, size - 1/2].
            along = along.add(1.0).mul((size - 1) / 2) if align_corners else along.add(1.0).mul(size / 2).sub(0.5)
            coordinates.append(along)
        if mode == "bicubic":
            result = wide._sample_cubic(coordinates, padding_mode, align_corners)
        else:
            inside = [c._kept_inside(size, padding_mode, align_corners) for c, size in zip(coordinates, self.shape[2:])]
            if mode == "nearest":
                nearest = wide._pixels([c._readable().round().cast(dtypes.int32) for c in inside])
                result = nearest.transpose(1, 2)
            else:
                result = wide._sample_linear(inside)
        return result.cast(source.dtype).reshape(self.shape[:2] + shape[1:-1])

    def _kept_inside(self, size: int, padding_mode: str, align_corners: bool) -> Self:
        """Coordinates cut to the image, or reflected at its border; no gradient where they were cut."""
        x = self
        if padding_mode == "zeros":
            return x
        if padding_mode == "reflection":
            x = x._reflected(0.0, size - 1.0) if align_corners else x._reflected(-0.5, size - 0.5)
        last = float(size - 1)
        return x.gt(0.0).where(x.lt(last).where(x, last), 0.0)

    def _reflected(self, low: float, high: float) -> Self:
        """Reflected at both ends until inside."""
        span = high - low
        if span <= 0:
            return self.mul(0.0)
        distance = self.sub(low).abs()
        turns = distance.detach().mul(1 / span).floor()
        extra = distance.sub(turns.mul(span))
        return turns.mod(2.0).eq(0.0).where(extra.add(low), extra.neg().add(high))

    def _sample_linear(self, coordinates: Sequence[Self]) -> Self:
        """Between the 2 ** axes pixels around each place."""
        steps = self.positions(2, self.place)
        places, weights = [], []
        for coordinate in coordinates:
            low = coordinate._readable().floor()
            offset = coordinate.sub(low).unsqueeze(-1)
            weights.append(steps.eq(0).where(offset.neg().add(1.0), offset))
            places.append(low.cast(dtypes.int32).unsqueeze(-1).add(steps))
        return self._weighted_pixels(places, weights)

    def _sample_cubic(self, coordinates: Sequence[Self], padding_mode: str, align_corners: bool) -> Self:
        """Between the 4 x 4 pixels around each place; each pixel outside is replaced for itself."""
        steps = self.positions(4, self.place).sub(1).cast(self.dtype)
        places, weights = [], []
        for coordinate, size in zip(coordinates, self.shape[2:]):
            low = coordinate._readable().floor()
            weights.append(cubic_filter(coordinate.sub(low).unsqueeze(-1).sub(steps).abs(), -0.75))
            place = low.unsqueeze(-1).add(steps)._kept_inside(size, padding_mode, align_corners)
            places.append(place.cast(dtypes.int32))
        return self._weighted_pixels(places, weights)

    def _weighted_pixels(self, places: Sequence[Self], weights: Sequence[Self]) -> Self:
        """Sums of pixels `[N, C, P]`: of all combinations of the places `[N, P, taps]` of each axis, times weights."""
        count = len(places)
        factor: Self | None = None
        apart = []
        for axis, (place, weight) in enumerate(zip(places, weights)):
            shape = place.shape[:2] + tuple([place.shape[2] if a == axis else 1 for a in range(count)])
            apart.append(place.reshape(shape))
            part = weight.reshape(shape)
            factor = part if factor is None else factor.mul(part)
        assert factor is not None
        terms = self._pixels(apart).mul(factor.unsqueeze(-1))
        return terms.reduce_over(Op.ADD, tuple(range(2, 2 + count)), False, "grid_sample").transpose(1, 2)

    def _pixels(self, places: Sequence[Self]) -> Self:
        """Pixels `[N, ..., C]` at integer places `[N, ...]` of each axis that broadcast, 0 outside."""
        batch, channels, *inner = self.shape
        flat: Self | None = None
        valid: Self | None = None
        for place, size in zip(places, inner):
            good = place.gt(-1).bitwise_and(place.lt(size))
            valid = good if valid is None else valid.bitwise_and(good)
            flat = place if flat is None else flat.mul(size).add(place)
        assert flat is not None and valid is not None
        rows = self.reshape(batch, channels, prod(inner)).transpose(1, 2)
        return rows.gather_rows(valid.where(flat, -1), 1)

    def _readable(self) -> Self:
        """A coordinate for choosing pixels: no gradient; far outside where it is no number or too large to count."""
        plain = self.detach()
        return plain.abs().lt(2.0**30).where(plain, -(2.0**30))
