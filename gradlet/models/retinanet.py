"""RetinaNet (Lin et al. 2017): boxes by shifting anchors at five sizes of an image. Names as torchvision's."""

from __future__ import annotations

from math import log, sqrt
from typing import Any, Final

from gradlet import nn
from gradlet.models.boxes import Detection, suppressed
from gradlet.models.resnet import ResNet, resnet50
from gradlet.tensor.tensor import Tensor

ANCHORS: Final = tuple(tuple(int(size * 2 ** (third / 3)) for third in range(3)) for size in (32, 64, 128, 256, 512))
RATIOS: Final = (0.5, 1.0, 2.0)
LARGEST: Final = log(1000 / 16)  # of a shift of sizes: what comes out of a network that has not learned stays finite


class Pyramid:
    """Feature maps of one width at all sizes: what the backbone sees coarsely is added to what it sees finely."""

    def __init__(self, channels: tuple[int, ...], width: int) -> None:
        self.inner_blocks = [[nn.Conv2d(c, width, 1)] for c in channels]
        self.layer_blocks = [[nn.Conv2d(width, width, 3, padding=1)] for _ in channels]
        self.extra_blocks = {
            "p6": nn.Conv2d(width, width, 3, stride=2, padding=1),
            "p7": nn.Conv2d(width, width, 3, stride=2, padding=1),
        }

    def __call__(self, maps: list[Tensor]) -> list[Tensor]:
        coarse = self.inner_blocks[-1][0](maps[-1])
        found = [self.layer_blocks[-1][0](coarse)]
        for x, inner, outer in list(zip(maps, self.inner_blocks, self.layer_blocks))[-2::-1]:
            side = inner[0](x)
            coarse = side + coarse.interpolate(side.shape[2:], mode="nearest")
            found.insert(0, outer[0](coarse))
        found.append(self.extra_blocks["p6"](found[-1]))
        return [*found, self.extra_blocks["p7"](found[-1].relu())]


class Head:
    """Four convolutions and a last one with `numbers` an anchor, the same at all sizes."""

    def __init__(self, width: int, last: str, numbers: int) -> None:
        self.conv: list[list[Any]] = [[nn.Conv2d(width, width, 3, padding=1), Tensor.relu] for _ in range(4)]
        self.name, self.numbers = last, numbers
        setattr(self, last, nn.Conv2d(width, len(RATIOS) * len(ANCHORS[0]) * numbers, 3, padding=1))

    def __call__(self, maps: list[Tensor]) -> Tensor:
        """[batch, anchors of all sizes, numbers]."""
        found = []
        for x in maps:
            for layer in self.conv:
                x = x.sequential(layer)
            x = getattr(self, self.name)(x)
            batch, _, rows, columns = x.shape
            x = x.reshape(batch, -1, self.numbers, rows, columns).permute(0, 3, 4, 1, 2)
            found.append(x.reshape(batch, -1, self.numbers))
        return found[0].cat(*found[1:], dim=1)


class RetinaNet:
    """[batch, 3, height, width] to class logits [batch, anchors, classes] and shifts [batch, anchors, 4].

    Args:
        classes: kinds of things, 91 numbers for COCO.
        body: the backbone, ResNet-50 by default.
        width: channels of the pyramid.
    """

    def __init__(self, classes: int = 91, body: ResNet | None = None, width: int = 256) -> None:
        body = body or resnet50(classes=0)
        outputs = body.layer4[0].conv1.weight.shape[0] * body.layer4[0].expansion
        self.backbone: dict[str, Any] = {"body": body, "fpn": Pyramid((outputs // 4, outputs // 2, outputs), width)}
        self.head = {
            "classification_head": Head(width, "cls_logits", classes),
            "regression_head": Head(width, "bbox_reg", 4),
        }

    def __call__(self, x: Tensor) -> tuple[Tensor, Tensor]:
        maps = self.backbone["fpn"](self.backbone["body"].features(x)[1:])
        return self.head["classification_head"](maps), self.head["regression_head"](maps)

    def detect(self, image: Tensor, least: float = 0.05, overlap: float = 0.5, limit: int = 300) -> list[Detection]:
        """What is in one image [3, height, width], already normalised, the surest first."""
        logits, shifts = self(image.unsqueeze(0))
        scores = logits[0].sigmoid().realize()
        boxes = moved(anchors(image.shape[1], image.shape[2]), shifts[0])
        sides = Tensor([float(image.shape[2]), float(image.shape[1])] * 2)
        best = scores.max(1).realize()
        return suppressed(boxes.relu().minimum(sides).realize(), best, scores.argmax(1), overlap, least, limit)


def anchors(height: int, width: int) -> Tensor:
    """Boxes [anchors, 4] for an image, in the order of a head: by size, place, ratio and third of a size."""
    import numpy as np

    found = []
    rows, columns = height, width
    for number, sizes in enumerate(ANCHORS):
        for _ in range(3 if number == 0 else 1):  # 1/8 of the image, then half of that each
            rows, columns = (rows + 1) // 2, (columns + 1) // 2
        shapes = np.array([(size / sqrt(ratio), size * sqrt(ratio)) for ratio in RATIOS for size in sizes])
        own = np.concatenate([-shapes, shapes], 1) / 2
        y, x = np.meshgrid(np.arange(rows) * (height // rows), np.arange(columns) * (width // columns), indexing="ij")
        places = np.stack([x, y, x, y], -1).reshape(-1, 1, 4)
        found.append((places + own.round()).reshape(-1, 4))
    return Tensor(np.concatenate(found).astype(np.float32))


def moved(boxes: Tensor, shifts: Tensor) -> Tensor:
    """Boxes [n, 4] moved and stretched as a network says: in shares of their size, sizes as logarithms.

    >>> moved(Tensor([[0.0, 0.0, 2.0, 4.0]]), Tensor([[0.5, 0.0, 0.0, 0.0]])).tolist()
    [[1.0, 0.0, 3.0, 4.0]]
    """
    sizes = boxes[:, 2:] - boxes[:, :2]
    centres = boxes[:, :2] + sizes * 0.5 + shifts[:, :2] * sizes
    halves = sizes * shifts[:, 2:].minimum(LARGEST).exp() * 0.5
    return (centres - halves).cat(centres + halves, dim=1)
