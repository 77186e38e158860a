"""ResNet (He et al. 2015): convolutions whose results are added to what passes by. Names as torchvision's."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from gradlet import nn
from gradlet.tensor.tensor import Tensor


class BasicBlock:
    """Two 3x3 convolutions."""

    expansion = 1

    def __init__(self, inputs: int, width: int, stride: int) -> None:
        self.conv1 = nn.Conv2d(inputs, width, 3, stride, padding=1, bias=False)
        self.bn1 = nn.BatchNorm(width)
        self.conv2 = nn.Conv2d(width, width, 3, padding=1, bias=False)
        self.bn2 = nn.BatchNorm(width)
        self.downsample = _shortcut(inputs, width, stride)

    def __call__(self, x: Tensor) -> Tensor:
        inner = self.bn1(self.conv1(x)).relu()
        return (self.bn2(self.conv2(inner)) + x.sequential(self.downsample)).relu()


class Bottleneck:
    """A 3x3 convolution between two 1x1 ones, the last of which widens; the 3x3 one has the stride."""

    expansion = 4

    def __init__(self, inputs: int, width: int, stride: int) -> None:
        self.conv1 = nn.Conv2d(inputs, width, 1, bias=False)
        self.bn1 = nn.BatchNorm(width)
        self.conv2 = nn.Conv2d(width, width, 3, stride, padding=1, bias=False)
        self.bn2 = nn.BatchNorm(width)
        self.conv3 = nn.Conv2d(width, 4 * width, 1, bias=False)
        self.bn3 = nn.BatchNorm(4 * width)
        self.downsample = _shortcut(inputs, 4 * width, stride)

    def __call__(self, x: Tensor) -> Tensor:
        inner = self.bn1(self.conv1(x)).relu()
        inner = self.bn2(self.conv2(inner)).relu()
        return (self.bn3(self.conv3(inner)) + x.sequential(self.downsample)).relu()


def _shortcut(inputs: int, outputs: int, stride: int) -> list[Any]:
    """How what passes by gets the shape of the block's result; nothing where it has it."""
    if stride == 1 and inputs == outputs:
        return []
    return [nn.Conv2d(inputs, outputs, 1, stride, bias=False), nn.BatchNorm(outputs)]


class ResNet:
    """[batch, 3, height, width] to [batch, classes]; `features` gives the four stages' results.

    Args:
        block: `BasicBlock` or `Bottleneck`.
        depths: blocks of the four stages.
        classes: of the last layer; 0 for a backbone without one.
        width: channels of the first stage.

    >>> from gradlet.models.resnet import BasicBlock, ResNet
    >>> ResNet(BasicBlock, (1, 1, 1, 1), classes=10, width=8)(Tensor.zeros(1, 3, 32, 32)).shape
    (1, 10)
    """

    def __init__(
        self, block: type[BasicBlock] | type[Bottleneck], depths: Sequence[int], classes: int = 1000, width: int = 64
    ) -> None:
        self.conv1 = nn.Conv2d(3, width, 7, stride=2, padding=3, bias=False)
        self.bn1 = nn.BatchNorm(width)
        stages: list[list[Any]] = []
        inputs = width
        for number, depth in enumerate(depths):
            inner, stage = width << number, []
            for place in range(depth):
                stage.append(block(inputs, inner, stride=2 if number and not place else 1))
                inputs = inner * block.expansion
            stages.append(stage)
        self.layer1, self.layer2, self.layer3, self.layer4 = stages
        self.fc = nn.Linear(inputs, classes) if classes else None

    def features(self, x: Tensor) -> list[Tensor]:
        """Results of the four stages: 1/4, 1/8, 1/16 and 1/32 of the image's size."""
        x = self.bn1(self.conv1(x)).relu().max_pool2d(3, stride=2, padding=1)
        found = []
        for stage in (self.layer1, self.layer2, self.layer3, self.layer4):
            x = x.sequential(stage)
            found.append(x)
        return found

    def __call__(self, x: Tensor) -> Tensor:
        pooled = self.features(x)[-1].mean((2, 3))
        return pooled if self.fc is None else self.fc(pooled)


def resnet18(classes: int = 1000) -> ResNet:
    """ResNet-18: 11.7 million parameters."""
    return ResNet(BasicBlock, (2, 2, 2, 2), classes)


def resnet34(classes: int = 1000) -> ResNet:
    """ResNet-34: 21.8 million parameters."""
    return ResNet(BasicBlock, (3, 4, 6, 3), classes)


def resnet50(classes: int = 1000) -> ResNet:
    """ResNet-50: 25.6 million parameters."""
    return ResNet(Bottleneck, (3, 4, 6, 3), classes)


def resnet101(classes: int = 1000) -> ResNet:
    """ResNet-101: 44.5 million parameters."""
    return ResNet(Bottleneck, (3, 4, 23, 3), classes)
