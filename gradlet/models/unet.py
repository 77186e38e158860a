"""U-Net (Ronneberger et al. 2015): an image is made small and large again, with what was seen at each size.

Names as in the widespread PyTorch version with batch norm and padded convolutions.
"""

from __future__ import annotations

from typing import Any

from gradlet import nn
from gradlet.tensor.tensor import Tensor


class DoubleConv:
    """Twice a 3x3 convolution with norm and ReLU."""

    def __init__(self, inputs: int, outputs: int) -> None:
        self.double_conv: list[Any] = [
            nn.Conv2d(inputs, outputs, 3, padding=1, bias=False), nn.BatchNorm(outputs), Tensor.relu,
            nn.Conv2d(outputs, outputs, 3, padding=1, bias=False), nn.BatchNorm(outputs), Tensor.relu,
        ]  # fmt: skip

    def __call__(self, x: Tensor) -> Tensor:
        return x.sequential(self.double_conv)


class Down:
    """Half the size."""

    def __init__(self, inputs: int, outputs: int) -> None:
        self.maxpool_conv: list[Any] = [Tensor.max_pool2d, DoubleConv(inputs, outputs)]

    def __call__(self, x: Tensor) -> Tensor:
        return x.sequential(self.maxpool_conv)


class Up:
    """Twice the size, beside what was seen at that size on the way down."""

    def __init__(self, inputs: int, outputs: int) -> None:
        self.up = nn.ConvTranspose2d(inputs, inputs // 2, 2, stride=2)
        self.conv = DoubleConv(inputs, outputs)

    def __call__(self, x: Tensor, seen: Tensor) -> Tensor:
        x = self.up(x)
        # Odd sizes lost a row on the way down.
        rows, columns = seen.shape[2] - x.shape[2], seen.shape[3] - x.shape[3]
        x = x.pad((columns // 2, columns - columns // 2, rows // 2, rows - rows // 2))
        return self.conv(seen.cat(x, dim=1))


class UNet:
    """[batch, channels, height, width] to a number a class and pixel.

    Args:
        channels: of the image.
        classes: of the result.
        width: channels at full size; they double with every halving.

    >>> UNet(1, 2, width=4)(Tensor.zeros(1, 1, 17, 20)).shape
    (1, 2, 17, 20)
    """

    def __init__(self, channels: int = 3, classes: int = 2, width: int = 64) -> None:
        self.inc = DoubleConv(channels, width)
        self.down1, self.down2 = Down(width, 2 * width), Down(2 * width, 4 * width)
        self.down3, self.down4 = Down(4 * width, 8 * width), Down(8 * width, 16 * width)
        self.up1, self.up2 = Up(16 * width, 8 * width), Up(8 * width, 4 * width)
        self.up3, self.up4 = Up(4 * width, 2 * width), Up(2 * width, width)
        self.outc = {"conv": nn.Conv2d(width, classes, 1)}

    def __call__(self, x: Tensor) -> Tensor:
        seen = [self.inc(x)]
        for down in (self.down1, self.down2, self.down3, self.down4):
            seen.append(down(seen[-1]))
        x = seen.pop()
        for up in (self.up1, self.up2, self.up3, self.up4):
            x = up(x, seen.pop())
        return self.outc["conv"](x)
