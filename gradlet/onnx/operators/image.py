"""Images: resizing, sampling on grids, regions of interest, boxes.

Source: the pages of these operators in the ONNX specification, "Operators" of domain ai.onnx.
"""

from __future__ import annotations

from math import floor
from typing import Any

import numpy as np

from gradlet.base.errors import MissingExtraError
from gradlet.base.symint import Size
from gradlet.onnx.registry import operator
from gradlet.onnx.runner import Call
from gradlet.onnx.values import Array, Ints, Number
from gradlet.ops.arguments import largest_sizes
from gradlet.tensor.tensor import Tensor


@operator("Upsample", until=6)
def upsample_1(call: Call, x: Tensor, *, height_scale: float, width_scale: float, mode: str = "nearest") -> Tensor:
    """Images enlarged, as the first version has it."""
    return _upsampled(call, x, [1.0, 1.0, height_scale, width_scale], mode)


@operator("Upsample", since=7, until=8)
def upsample_7(call: Call, x: Tensor, *, scales: list[float], mode: str = "nearest") -> Tensor:
    """Enlarged by factors that the file holds."""
    return _upsampled(call, x, scales, mode)


@operator("Upsample", since=9, until=10)
def upsample_9(call: Call, x: Tensor, scales: Array, *, mode: str = "nearest") -> Tensor:
    """Enlarged by factors."""
    return _upsampled(call, x, [float(s) for s in scales], mode)


def _upsampled(call: Call, x: Tensor, scales: list[float], mode: str) -> Tensor:
    sizes = [_scaled(n, s) for n, s in zip(x.shape, scales)]
    plan = Resizing("asymmetric", "linear" if mode in ("bilinear", "linear") else "nearest", "floor")
    return plan.apply(call, x, list(range(x.ndim)), sizes, scales, None)


@operator("Resize", until=10)
def resize_10(call: Call, x: Tensor, scales: Array, *, mode: str = "nearest") -> Tensor:
    """Resized by factors, reading at `i / scale`."""
    return _upsampled(call, x, [float(s) for s in scales], mode)


@operator("Resize", since=11)
def resize(
    call: Call, x: Tensor, roi: Array | None = None, scales: Array | None = None, sizes: Ints | None = None, *,
    antialias: int = 0, axes: list[int] | None = None, coordinate_transformation_mode: str = "half_pixel",
    cubic_coeff_a: float = -0.75, exclude_outside: int = 0, extrapolation_value: float = 0.0,
    keep_aspect_ratio_policy: str = "stretch", mode: str = "nearest", nearest_mode: str = "round_prefer_floor",
) -> Tensor:  # fmt: skip
    """Each axis read at places between its elements: the nearest one, or weighed sums of neighbours."""
    along = [a % x.ndim for a in axes] if axes is not None else list(range(x.ndim))
    have = [x.shape[a] for a in along]
    corners = None
    if coordinate_transformation_mode == "tf_crop_and_resize" and roi is not None:
        corners = [(float(b), float(e)) for b, e in zip(roi[: len(along)], roi[len(along) :])]
    if sizes:
        wanted = list(sizes)
        if keep_aspect_ratio_policy != "stretch":
            ratios = [w / h for w, h in zip(wanted, have)]
            one = min(ratios) if keep_aspect_ratio_policy == "not_larger" else max(ratios)
            wanted = [floor(one * h + 0.5) for h in have]
            factors = [one] * len(along)
        else:
            factors = [_ratio(w, h) for w, h in zip(wanted, have)]
    elif scales is not None and scales.size:
        factors = [float(s) for s in scales]
        spans = [1.0] * len(along) if corners is None else [e - b for b, e in corners]
        wanted = [_scaled(h, span * f) for h, span, f in zip(have, spans, factors)]
    else:
        raise call.error("neither scales nor sizes are given")
    plan = Resizing(
        coordinate_transformation_mode, mode, nearest_mode, cubic_coeff_a, bool(exclude_outside), bool(antialias),
        extrapolation_value,
    )  # fmt: skip
    return plan.apply(call, x, along, wanted, factors, corners)


def _ratio(size: Any, have: Any) -> float:
    """How much larger a size is than another one."""
    return float(size // have) if isinstance(size, Size) or isinstance(have, Size) else size / have


def _scaled(size: Any, factor: float) -> Any:
    """A size times a factor, rounded down."""
    return size * int(factor) if isinstance(size, Size) and factor == int(factor) else floor(size * factor)


def _repeated(x: Tensor, axis: int, times: int) -> Tensor:
    """Every element so many times, one after another."""
    grown = x.unsqueeze(axis + 1)
    shape = list(grown.shape)
    shape[axis + 1] = times
    return grown.expand(tuple(shape)).reshape(*x.shape[:axis], x.shape[axis] * times, *x.shape[axis + 1 :])


class Resizing:
    """How axes are resized."""

    def __init__(
        self, coordinates: str, mode: str, nearest: str, cubic: float = -0.75, exclude: bool = False,
        antialias: bool = False, outside: float = 0.0,
    ) -> None:  # fmt: skip
        self.coordinates = coordinates
        self.mode = mode
        self.nearest = nearest
        self.cubic = cubic
        self.exclude = exclude
        self.antialias = antialias
        self.outside = outside

    def apply(
        self, call: Call, x: Tensor, axes: list[int], sizes: list[int], scales: list[float],
        corners: list[tuple[float, float]] | None,
    ) -> Tensor:  # fmt: skip
        """All axes, one after the other."""
        dtype = x.dtype
        for i, axis in enumerate(axes):
            have, size, scale = x.shape[axis], sizes[i], scales[i]
            corner = None if corners is None else corners[i]
            if have == size and scale == 1.0 and (corner is None or corner == (0.0, 1.0)):
                continue
            x = self.axis(call, x, axis, size, scale, corner)
        return x if x.dtype is dtype else (x.round().cast(dtype) if dtype.is_int else x.cast(dtype))

    def places(self, have: int, size: int, scale: float, corner: tuple[float, float] | None) -> Array:
        """Where each element of the result lies in the source."""
        i = np.arange(size, dtype=np.float64)
        width = have * scale
        if self.coordinates == "align_corners":
            return np.zeros(1) if size == 1 and width == 1 else i * (have - 1) / (width - 1)
        if self.coordinates == "asymmetric":
            return i / scale
        if self.coordinates == "tf_crop_and_resize":
            begin, end = corner or (0.0, 1.0)
            if size == 1:
                return np.array([(begin + end) * (have - 1) / 2])
            return begin * (have - 1) + i * (end - begin) * (have - 1) / (size - 1)
        if self.coordinates == "tf_half_pixel_for_nn":
            return (i + 0.5) / scale
        if self.coordinates == "pytorch_half_pixel" and size == 1:
            return np.array([-0.5])
        half = (i + 0.5) / scale - 0.5
        if self.coordinates == "half_pixel_symmetric":
            return have / 2 * (1 - size / width) + half
        return half

    def axis(
        self, call: Call, x: Tensor, axis: int, size: int, scale: float, corner: tuple[float, float] | None
    ) -> Tensor:
        """One axis."""
        have = x.shape[axis]
        if isinstance(have, Size):
            return self.axis_of_size(call, x, axis, size, scale)
        place = self.places(have, size, scale, corner)
        if self.mode == "nearest":
            index = np.clip(self.rounded(place), 0, have - 1).astype(np.int32)
            times = size // have if have and size % have == 0 else 0
            if times and np.array_equal(index, np.arange(size) // times):
                x = _repeated(x, axis, times)
            else:
                x = x.index_select(axis, call.constant(index))
        else:
            x = self.weighed(call, x, axis, place, scale)
        if self.coordinates == "tf_crop_and_resize":
            inside = (place >= 0) & (place <= have - 1)
            if not inside.all():
                shape = [1] * x.ndim
                shape[axis] = size
                x = call.constant(inside.reshape(shape)).where(x, self.outside)
        return x

    def axis_of_size(self, call: Call, x: Tensor, axis: int, size: Any, scale: float) -> Tensor:
        """One axis whose size is known only at launch: every element repeated, where that is all there is to do.

        Raises:
            OnnxError: it is not.
        """
        have, times = x.shape[axis], int(scale)
        most = largest_sizes((have,))[0]
        fits = self.mode == "nearest" and times == scale and size == have * times
        if fits and self.coordinates in ("asymmetric", "half_pixel", "pytorch_half_pixel"):
            # Where an element lies depends on the scale alone: what holds for the most elements does for fewer.
            index = np.clip(self.rounded(self.places(most, most * times, scale, None)), 0, most - 1)
            if np.array_equal(index, np.arange(most * times) // times):
                return _repeated(x, axis, times)
        raise call.error(f"axis {axis} of size {have}, which is known only at launch, resized by other than repeating")

    def rounded(self, place: Array) -> Array:
        """The number of the nearest element."""
        if self.nearest == "floor":
            return np.floor(place)
        if self.nearest == "ceil":
            return np.ceil(place)
        if self.nearest == "round_prefer_ceil":
            return np.floor(place + 0.5)
        return np.ceil(place - 0.5)

    def weight(self, distance: Array) -> Array:
        """The filter: a tent, or Keys' cubic (1981)."""
        d = np.abs(distance)
        if self.mode == "linear":
            return np.clip(1 - d, 0, 1)
        a = self.cubic
        near = ((a + 2) * d - (a + 3)) * d * d + 1
        far = ((a * d - 5 * a) * d + 8 * a) * d - 4 * a
        return np.where(d <= 1, near, np.where(d < 2, far, 0.0))

    def weighed(self, call: Call, x: Tensor, axis: int, place: Array, scale: float) -> Tensor:
        """Sums of neighbours, one tap after the other."""
        have = x.shape[axis]
        stretch = min(scale, 1.0) if self.antialias else 1.0
        reach = (1 if self.mode == "linear" else 2) / stretch
        first = np.floor(place - reach).astype(np.int64) + 1
        taps = int(np.ceil(2 * reach))
        numbers = first[:, None] + np.arange(taps)
        weights = self.weight((numbers - place[:, None]) * stretch)
        if self.exclude:
            weights = np.where((numbers >= 0) & (numbers < have), weights, 0.0)
        if self.exclude or self.antialias:
            weights = weights / weights.sum(1, keepdims=True)
        numbers = np.clip(numbers, 0, have - 1).astype(np.int32)
        shape = [1] * x.ndim
        shape[axis] = len(place)
        wide = x if x.dtype.is_float else x.float()
        total: Tensor | None = None
        for t in range(taps):
            if not weights[:, t].any():
                continue
            share = call.constant(weights[:, t].astype(np.float32).reshape(shape)).cast(wide.dtype)
            part = wide.index_select(axis, call.constant(numbers[:, t])) * share
            total = part if total is None else total + part
        assert total is not None
        return total


@operator("GridSample")
def grid_sample(
    x: Tensor, grid: Tensor, *, align_corners: int = 0, mode: str = "linear", padding_mode: str = "zeros"
) -> Tensor:
    """Images read at the places of a grid."""
    names = {"linear": "bilinear", "cubic": "bicubic"}
    return x.grid_sample(grid.cast(x.dtype), names.get(mode, mode), padding_mode, bool(align_corners))


@operator("AffineGrid")
def affine_grid(theta: Tensor, size: Ints, *, align_corners: int = 0) -> Tensor:
    """The places that affine maps give to pixels."""
    return theta.affine_grid(tuple(size), bool(align_corners))


@operator("RoiAlign")
def roi_align(
    call: Call, x: Tensor, rois: Array, batch: Ints, *, coordinate_transformation_mode: str | None = None,
    mode: str = "avg", output_height: int = 1, output_width: int = 1, sampling_ratio: int = 0,
    spatial_scale: float = 1.0,
) -> Tensor:  # fmt: skip
    """Regions pooled to one size (He et al. 2017): averages or maxima of samples between pixels."""
    default = "half_pixel" if call.version >= 16 else "output_half_pixel"
    half = (coordinate_transformation_mode or default) == "half_pixel"
    height, width = x.shape[2:]
    plans = [
        _samples(roi, height, width, output_height, output_width, sampling_ratio, spatial_scale, half) for roi in rois
    ]
    most = max((p[0].shape[2] for p in plans), default=1)
    count = len(plans)
    index = np.zeros((4, count, output_height, output_width, most), np.int32)
    share = np.zeros(index.shape, np.float32)
    real = np.zeros(index.shape[1:], bool)
    for r, (numbers, weights) in enumerate(plans):
        n = numbers.shape[3] if numbers.ndim == 4 else numbers.shape[2]
        index[:, r, :, :, :n] = numbers + batch[r] * height * width
        share[:, r, :, :, :n] = weights
        real[r, :, :, :n] = True
    pixels = x.permute(0, 2, 3, 1).reshape(-1, x.shape[1])
    device = x.device
    parts = [
        pixels.index_select(0, Tensor(index[c].reshape(-1), device)) * Tensor(share[c].reshape(-1, 1), device)
        for c in range(4)
    ]
    shape = (*real.shape, x.shape[1])
    mask = Tensor(real[..., None], device)
    if mode == "max":
        best = parts[0].maximum(parts[1]).maximum(parts[2]).maximum(parts[3]).reshape(shape)
        pooled = mask.where(best, float("-inf")).max(3)
    else:
        total = (parts[0] + parts[1] + parts[2] + parts[3]).reshape(shape).sum(3)
        pooled = total / Tensor(real.sum(3).astype(np.float32)[..., None], device)
    return pooled.permute(0, 3, 1, 2).cast(x.dtype)


@operator("MaxRoiPool")
def max_roi_pool(
    call: Call, x: Tensor, rois: Array, *, pooled_shape: list[int], spatial_scale: float = 1.0
) -> Tensor:  # fmt: skip
    """The largest pixels of regions' cells, of whole pixels (Girshick 2015); zero in cells outside of the image."""
    if rois.ndim != 2 or rois.shape[1] != 5:
        raise call.error(f"rois must have shape [regions, 5], got {rois.shape}")
    batch = rois[:, 0].astype(np.int64)
    if ((batch < 0) | (batch >= x.shape[0])).any():
        raise call.error(f"regions are of images {batch.tolist()}, there are {x.shape[0]}")
    scaled = rois[:, 1:].astype(np.float32) * np.float32(spatial_scale)
    corners = (np.sign(scaled) * np.floor(np.abs(scaled) + np.float32(0.5))).astype(np.int64)  # halves go outwards
    across = _cells(corners[:, 0], corners[:, 2], pooled_shape[1], x.shape[3])
    down = _cells(corners[:, 1], corners[:, 3], pooled_shape[0], x.shape[2])
    images = x.index_select(0, Tensor(batch, x.device))
    lowest = float("-inf")
    rows = Tensor(across[:, None, None], x.device).where(images.unsqueeze(3), lowest).max(4)
    pooled = Tensor(down[:, None, :, None], x.device).where(rows.transpose(2, 3).unsqueeze(2), lowest).max(4)
    some = Tensor((down.max(2)[:, :, None] & across.max(2)[:, None])[:, None], x.device)
    return some.where(pooled, 0.0).cast(x.dtype)


def _cells(first: Array, last: Array, cells: int, size: int) -> Array:
    """Which pixels each cell of every region has: [region, cell, pixel]."""
    step = (np.maximum(last - first + 1, 1) / np.float32(cells)).astype(np.float32)
    numbers = np.arange(cells, dtype=np.float32)
    begin = np.floor(numbers * step[:, None]).astype(np.int64) + first[:, None]
    end = np.ceil((numbers + 1) * step[:, None]).astype(np.int64) + first[:, None]
    pixels = np.arange(size)
    return (pixels >= begin[..., None]) & (pixels < end[..., None])


def _samples(
    roi: Array, height: int, width: int, rows: int, columns: int, ratio: int, scale: float, half: bool
) -> tuple[Array, Array]:
    """For one region the pixels around each sample, and their weights: [corner, row, column, sample]."""
    shift = 0.5 if half else 0.0
    x1, y1, x2, y2 = (float(v) * scale - shift for v in roi)
    high, wide = y2 - y1, x2 - x1
    if not half:
        high, wide = max(high, 1.0), max(wide, 1.0)
    bin_y, bin_x = high / rows, wide / columns
    per_y = ratio if ratio > 0 else int(np.ceil(high / rows))
    per_x = ratio if ratio > 0 else int(np.ceil(wide / columns))
    ys = y1 + np.arange(rows)[:, None] * bin_y + (np.arange(per_y) + 0.5) * bin_y / per_y
    xs = x1 + np.arange(columns)[:, None] * bin_x + (np.arange(per_x) + 0.5) * bin_x / per_x
    y = np.broadcast_to(ys[:, None, :, None], (rows, columns, per_y, per_x)).reshape(rows, columns, -1)
    x = np.broadcast_to(xs[None, :, None, :], (rows, columns, per_y, per_x)).reshape(rows, columns, -1)
    valid = (y >= -1) & (y <= height) & (x >= -1) & (x <= width)
    y, x = np.clip(y, 0, height - 1), np.clip(x, 0, width - 1)
    y0, x0 = np.floor(y).astype(np.int64), np.floor(x).astype(np.int64)
    y9, x9 = np.minimum(y0 + 1, height - 1), np.minimum(x0 + 1, width - 1)
    ly, lx = y - y0, x - x0
    numbers = np.stack([y0 * width + x0, y0 * width + x9, y9 * width + x0, y9 * width + x9])
    weights = np.stack([(1 - ly) * (1 - lx), (1 - ly) * lx, ly * (1 - lx), ly * lx]) * valid
    return numbers, weights


@operator("NonMaxSuppression")
def non_max_suppression(
    boxes: Array, scores: Array, most: Number = 0, iou: Number = 0.0, least: Number = None, *,
    center_point_box: int = 0,
) -> Array:  # fmt: skip
    """The best boxes of each class that overlap no better one too much: how many is known only by looking."""
    chosen: list[tuple[int, int, int]] = []
    if not most:
        return np.zeros((0, 3), np.int64)
    for batch in range(boxes.shape[0]):
        a, b, c, d = (boxes[batch, :, k].astype(np.float32) for k in range(4))
        if center_point_box:
            y1, y2, x1, x2 = b - d / 2, b + d / 2, a - c / 2, a + c / 2
        else:
            y1, y2, x1, x2 = np.minimum(a, c), np.maximum(a, c), np.minimum(b, d), np.maximum(b, d)
        area = (y2 - y1) * (x2 - x1)
        for kind in range(scores.shape[1]):
            row = scores[batch, kind]
            order = [int(i) for i in np.argsort(-row, kind="stable") if least is None or row[i] > least]
            kept: list[int] = []
            for i in order:
                if len(kept) >= int(most):
                    break
                others = np.array(kept, np.int64)
                high = np.maximum(0, np.minimum(y2[i], y2[others]) - np.maximum(y1[i], y1[others]))
                wide = np.maximum(0, np.minimum(x2[i], x2[others]) - np.maximum(x1[i], x1[others]))
                both = high * wide
                union = area[i] + area[others] - both
                if not (both > float(iou or 0.0) * union).any():
                    kept.append(i)
            chosen.extend((batch, kind, i) for i in kept)
    return np.array(chosen, np.int64).reshape(-1, 3)


@operator("ImageDecoder")
def image_decoder(call: Call, encoded: Array, *, pixel_format: str = "RGB") -> Array:
    """Pixels of a picture file, by the package Pillow where it is installed."""
    try:
        from io import BytesIO

        from PIL import Image
    except ImportError:
        raise MissingExtraError("ImageDecoder needs the package pillow: pip install pillow") from None
    picture = Image.open(BytesIO(encoded.astype(np.uint8).tobytes()))
    if pixel_format == "Grayscale":
        return np.array(picture.convert("L"))[..., None]
    array = np.array(picture.convert("RGB"))
    return array[..., ::-1].copy() if pixel_format == "BGR" else array
