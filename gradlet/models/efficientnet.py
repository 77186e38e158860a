"""EfficientNet (Tan and Le 2019) and its lite forms: inverted bottlenecks, scaled in width and depth.

Names as torchvision's. The lite forms have neither squeeze and excitation nor SiLU, and pad as TensorFlow does;
`lite_names` gives the names of their published weights.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from math import ceil
from typing import Any, Final, NamedTuple

from gradlet import nn
from gradlet.models.common import divisible
from gradlet.tensor.tensor import Tensor


class Stage(NamedTuple):
    """A row of the paper's table."""

    expand: int
    kernel: int
    stride: int
    channels: int
    depth: int


STAGES: Final = (
    Stage(1, 3, 1, 16, 1), Stage(6, 3, 2, 24, 2), Stage(6, 5, 2, 40, 2), Stage(6, 3, 2, 80, 3),
    Stage(6, 5, 1, 112, 3), Stage(6, 5, 2, 192, 4), Stage(6, 3, 1, 320, 1),
)  # fmt: skip
# Of B0 to B7: factors of width and depth.
SCALES: Final = ((1.0, 1.0), (1.0, 1.1), (1.1, 1.2), (1.2, 1.4), (1.4, 1.8), (1.6, 2.2), (1.8, 2.6), (2.0, 3.1))


class Form(NamedTuple):
    """In what the lite forms differ."""

    activation: Callable[[Tensor], Tensor] = Tensor.silu
    squeeze: bool = True
    same: bool = False
    epsilon: float = 1e-5


class Padded(nn.Conv2d):
    """A convolution without bias that pads half its kernel on both sides, or as TensorFlow does: the odd one after."""

    def __init__(self, inputs: int, outputs: int, kernel: int, stride: int, groups: int, same: bool) -> None:
        super().__init__(inputs, outputs, kernel, stride, (kernel - 1) // 2, groups=groups, bias=False)
        self.same = same

    def __call__(self, x: Tensor) -> Tensor:
        if not self.same:
            return super().__call__(x)
        sides: list[int] = []
        for size, kernel, stride in reversed(list(zip(x.shape[2:], self.kernel_size, self.stride))):
            total = max(0, (ceil(size / stride) - 1) * stride + kernel - size)
            sides += [total // 2, total - total // 2]
        return x.conv2d(self.weight, None, self.groups, self.stride, self.dilation, tuple(sides))


def _layer(inputs: int, outputs: int, kernel: int, stride: int, groups: int, form: Form, activate: bool) -> list[Any]:
    """Convolution, norm and activation."""
    layer = [Padded(inputs, outputs, kernel, stride, groups, form.same), nn.BatchNorm(outputs, eps=form.epsilon)]
    return [*layer, form.activation] if activate else layer


class SqueezeExcitation:
    """Channels weighed by what is in the whole image."""

    def __init__(self, channels: int, squeezed: int) -> None:
        self.fc1 = nn.Conv2d(channels, squeezed, 1)
        self.fc2 = nn.Conv2d(squeezed, channels, 1)

    def __call__(self, x: Tensor) -> Tensor:
        return x * self.fc2(self.fc1(x.mean((2, 3), keepdim=True)).silu()).sigmoid()


class Block:
    """Widen, mix places, squeeze, narrow; added to what passes by where shapes agree."""

    def __init__(self, inputs: int, outputs: int, expand: int, kernel: int, stride: int, form: Form) -> None:
        wide = divisible(inputs * expand)
        self.passes = stride == 1 and inputs == outputs
        self.block: list[Any] = []
        if wide != inputs:
            self.block.append(_layer(inputs, wide, 1, 1, 1, form, True))
        self.block.append(_layer(wide, wide, kernel, stride, wide, form, True))
        if form.squeeze:
            self.block.append(SqueezeExcitation(wide, max(1, inputs // 4)))
        self.block.append(_layer(wide, outputs, 1, 1, 1, form, False))

    def __call__(self, x: Tensor) -> Tensor:
        inner = x
        for part in self.block:
            inner = inner.sequential(part) if isinstance(part, list) else part(inner)
        return x + inner if self.passes else inner


class EfficientNet:
    """[batch, 3, height, width] to [batch, classes].

    Args:
        stages: rows of the table, already scaled.
        stem: channels of the first convolution.
        head: channels of the last one.
    """

    def __init__(
        self, stages: Sequence[Stage], stem: int, head: int, classes: int = 1000, form: Form | None = None
    ) -> None:
        form = form or Form()
        self.features: list[Any] = [_layer(3, stem, 3, 2, 1, form, True)]
        inputs = stem
        for expand, kernel, stride, channels, depth in stages:
            blocks = []
            for place in range(depth):
                blocks.append(Block(inputs, channels, expand, kernel, 1 if place else stride, form))
                inputs = channels
            self.features.append(blocks)
        self.features.append(_layer(inputs, head, 1, 1, 1, form, True))
        # torchvision has dropout at place 0.
        self.classifier = {"1": nn.Linear(head, classes)}

    def __call__(self, x: Tensor) -> Tensor:
        for stage in self.features:
            x = x.sequential(stage)
        return self.classifier["1"](x.mean((2, 3)))


def efficientnet(number: int, classes: int = 1000) -> EfficientNet:
    """EfficientNet-B0 to B7.

    >>> from gradlet.models.weights import parameter_count
    >>> parameter_count(efficientnet(0))
    5288548
    """
    width, depth = SCALES[number]
    stages = [s._replace(channels=divisible(s.channels * width), depth=ceil(s.depth * depth)) for s in STAGES]
    form = Form(epsilon=1e-3 if number >= 5 else 1e-5)
    return EfficientNet(stages, divisible(32 * width), 4 * stages[-1].channels, classes, form)


def efficientnet_lite0(classes: int = 1000) -> EfficientNet:
    """EfficientNet-lite0: 4.7 million parameters; images are RGB as (x - 127) / 128, 224 pixels wide."""
    return EfficientNet(STAGES, 32, 1280, classes, Form(Tensor.relu6, squeeze=False, same=True, epsilon=1e-3))


def lite_names(stages: Sequence[Stage] = STAGES) -> Callable[[str], str | None]:
    """Names of the published lite weights (`_blocks.5._bn1.bias`) as names here; for `weights.load`.

    >>> lite_names()("_blocks.2._project_conv.weight")
    'features.2.1.block.2.0.weight'
    """
    places = [(number, place) for number, stage in enumerate(stages, 1) for place in range(stage.depth)]
    last = len(stages) + 1
    outer = {
        "_conv_stem": "features.0.0", "_bn0": "features.0.1", "_conv_head": f"features.{last}.0",
        "_bn1": f"features.{last}.1", "_fc": "classifier.1",
    }  # fmt: skip
    # Step of the block, counted from the depthwise one, and layer of the step.
    inner = {
        "_expand_conv": (-1, 0), "_bn0": (-1, 1), "_depthwise_conv": (0, 0), "_bn1": (0, 1), "_project_conv": (1, 0),
        "_bn2": (1, 1),
    }  # fmt: skip

    def rename(name: str) -> str | None:
        match = re.fullmatch(r"_blocks\.(\d+)\.(\w+)\.(\w+)", name)
        if match is None:
            part, _, leaf = name.partition(".")
            return f"{outer[part]}.{leaf}" if part in outer else name
        number, place = places[int(match[1])]
        step, layer = inner[match[2]]
        begin = int(stages[number - 1].expand != 1)
        return f"features.{number}.{place}.block.{begin + step}.{layer}.{match[3]}"

    return rename
