"""YOLOv8: boxes and classes at three sizes of an image, without anchors. Names as ultralytics'.

Every place of a feature map says how far away the sides of its box are, each as a distribution over 16 distances.
"""

from __future__ import annotations

from math import ceil
from typing import Any, Final

from gradlet import nn
from gradlet.models.boxes import Detection, suppressed
from gradlet.tensor.tensor import Tensor

# Factors of depth and width, and the most channels.
SIZES: Final = {
    "n": (1 / 3, 0.25, 1024), "s": (1 / 3, 0.5, 1024), "m": (2 / 3, 0.75, 768), "l": (1.0, 1.0, 512),
    "x": (1.0, 1.25, 512),
}  # fmt: skip
DISTANCES: Final = 16
STRIDES: Final = (8, 16, 32)


class Conv:
    """Convolution, norm and SiLU."""

    def __init__(self, inputs: int, outputs: int, kernel: int = 1, stride: int = 1) -> None:
        self.conv = nn.Conv2d(inputs, outputs, kernel, stride, kernel // 2, bias=False)
        self.bn = nn.BatchNorm(outputs, eps=1e-3, momentum=0.03)

    def __call__(self, x: Tensor) -> Tensor:
        return self.bn(self.conv(x)).silu()


class Bottleneck:
    """Two convolutions, added to what passes by if `passes`."""

    def __init__(self, channels: int, passes: bool) -> None:
        self.cv1, self.cv2, self.passes = Conv(channels, channels, 3), Conv(channels, channels, 3), passes

    def __call__(self, x: Tensor) -> Tensor:
        inner = self.cv2(self.cv1(x))
        return x + inner if self.passes else inner


class C2f:
    """Half of the channels goes through bottlenecks one after another; all that comes out is joined."""

    def __init__(self, inputs: int, outputs: int, depth: int, passes: bool = False) -> None:
        half = outputs // 2
        self.cv1, self.cv2 = Conv(inputs, 2 * half), Conv((2 + depth) * half, outputs)
        self.m = [Bottleneck(half, passes) for _ in range(depth)]

    def __call__(self, x: Tensor) -> Tensor:
        parts = list(self.cv1(x).chunk(2, dim=1))
        for block in self.m:
            parts.append(block(parts[-1]))
        return self.cv2(parts[0].cat(*parts[1:], dim=1))


class SPPF:
    """What is the largest in windows of 5, 9 and 13."""

    def __init__(self, inputs: int, outputs: int) -> None:
        self.cv1, self.cv2 = Conv(inputs, inputs // 2), Conv(2 * inputs, outputs)

    def __call__(self, x: Tensor) -> Tensor:
        parts = [self.cv1(x)]
        for _ in range(3):
            parts.append(parts[-1].max_pool2d(5, stride=1, padding=2))
        return self.cv2(parts[0].cat(*parts[1:], dim=1))


class Distances:
    """The mean of a distribution over distances; a convolution with the weights 0, 1, 2, ... in the files."""

    def __init__(self) -> None:
        self.conv = nn.Conv2d(DISTANCES, 1, 1, bias=False)
        self.conv.weight = Tensor.arange(DISTANCES, dtype="float32").reshape(1, DISTANCES, 1, 1).contiguous()

    def __call__(self, x: Tensor) -> Tensor:
        """[batch, 4 * distances, places] to [batch, 4, places]."""
        batch, _, places = x.shape
        shares = x.reshape(batch, 4, DISTANCES, places).softmax(2)
        return (shares * self.conv.weight.reshape(1, 1, DISTANCES, 1)).sum(2)


class Detect:
    """Distances and classes at every place of three feature maps."""

    def __init__(self, classes: int, channels: tuple[int, ...]) -> None:
        sides = max(16, channels[0] // 4, 4 * DISTANCES)
        kinds = max(channels[0], min(classes, 100))
        self.cv2: list[list[Any]] = [
            [Conv(c, sides, 3), Conv(sides, sides, 3), nn.Conv2d(sides, 4 * DISTANCES, 1)] for c in channels
        ]
        self.cv3: list[list[Any]] = [
            [Conv(c, kinds, 3), Conv(kinds, kinds, 3), nn.Conv2d(kinds, classes, 1)] for c in channels
        ]
        self.dfl = Distances()

    def __call__(self, maps: list[Tensor]) -> Tensor:
        """[batch, 4 + classes, places]: centre and size in pixels, and a score a class."""
        found = []
        for x, sides, kinds, stride in zip(maps, self.cv2, self.cv3, STRIDES):
            rows, columns = x.shape[2:]
            distances = self.dfl(x.sequential(sides).flatten(2))
            places = Tensor.arange(rows * columns)
            centres = Tensor.stack(places % columns, places // columns).cast("float32") + 0.5
            first, last = centres - distances[:, :2], centres + distances[:, 2:]
            boxes = ((first + last) * 0.5).cat(last - first, dim=1) * stride
            found.append(boxes.cat(x.sequential(kinds).flatten(2).sigmoid(), dim=1))
        return found[0].cat(*found[1:], dim=2)


class YOLOv8:
    """[batch, 3, height, width], sizes multiples of 32, values 0 to 1, to [batch, 4 + classes, places].

    Args:
        size: "n", "s", "m", "l" or "x".
        classes: kinds of things.
    """

    def __init__(self, size: str = "n", classes: int = 80) -> None:
        deep, wide, most = SIZES[size]

        def width(channels: int) -> int:
            return ceil(min(channels, most) * wide / 8) * 8

        def depth(count: int) -> int:
            return max(1, round(count * deep))

        a, b, c, d, e = (width(channels) for channels in (64, 128, 256, 512, 1024))
        # Numbers are places in the published description; what has no weights is None here.
        self.model: list[Any] = [
            Conv(3, a, 3, 2), Conv(a, b, 3, 2), C2f(b, b, depth(3), True), Conv(b, c, 3, 2),
            C2f(c, c, depth(6), True), Conv(c, d, 3, 2), C2f(d, d, depth(6), True), Conv(d, e, 3, 2),
            C2f(e, e, depth(3), True), SPPF(e, e),
            None, None, C2f(d + e, d, depth(3)), None, None, C2f(c + d, c, depth(3)),
            Conv(c, c, 3, 2), None, C2f(c + d, d, depth(3)), Conv(d, d, 3, 2), None, C2f(d + e, e, depth(3)),
            Detect(classes, (c, d, e)),
        ]  # fmt: skip

    def __call__(self, x: Tensor) -> Tensor:
        layer = self.model
        eighth = x.sequential(layer[:5])
        sixteenth = eighth.sequential(layer[5:7])
        last = sixteenth.sequential(layer[7:10])
        middle = layer[12](_twice(last).cat(sixteenth, dim=1))
        fine = layer[15](_twice(middle).cat(eighth, dim=1))
        middle = layer[18](layer[16](fine).cat(middle, dim=1))
        coarse = layer[21](layer[19](middle).cat(last, dim=1))
        return layer[22]([fine, middle, coarse])

    def detect(self, image: Tensor, least: float = 0.25, overlap: float = 0.7, limit: int = 300) -> list[Detection]:
        """What is in one image [3, height, width], the surest first."""
        found = self(image.unsqueeze(0))[0].transpose().realize()
        centres, sizes, scores = found[:, :2], found[:, 2:4], found[:, 4:]
        boxes = (centres - sizes * 0.5).cat(centres + sizes * 0.5, dim=1)
        return suppressed(boxes, scores.max(1), scores.argmax(1), overlap, least, limit)


def _twice(x: Tensor) -> Tensor:
    """Twice the size, every pixel four times."""
    batch, channels, rows, columns = x.shape
    wide = x.reshape(batch, channels, rows, 1, columns, 1).expand(batch, channels, rows, 2, columns, 2)
    return wide.reshape(batch, channels, 2 * rows, 2 * columns)
