"""CREPE (Kim et al. 2018): the pitch of a sound. Names as torchcrepe's."""

from __future__ import annotations

from typing import Any, Final

from gradlet import nn
from gradlet.tensor.tensor import Tensor

RATE: Final = 16000  # samples a second
WINDOW: Final = 1024  # samples of a frame
CENTS: Final = 20  # between neighbouring results
LOWEST: Final = 1997.3794084376191  # cents above 10 Hz of the first one
CHANNELS: Final = {"tiny": (128, 16, 16, 16, 32, 64), "full": (1024, 128, 128, 128, 256, 512)}


class Crepe:
    """Frames [batch, 1024], normalised by `frames`, to how likely each of 360 pitches is.

    Args:
        size: "tiny" or "full".
    """

    def __init__(self, size: str = "full") -> None:
        inputs = 1
        for number, channels in enumerate(CHANNELS[size], 1):
            kernel, stride = (512, 4) if number == 1 else (64, 1)
            setattr(self, f"conv{number}", nn.Conv2d(inputs, channels, (kernel, 1), (stride, 1)))
            setattr(self, f"conv{number}_BN", nn.BatchNorm(channels, eps=0.0010000000474974513))
            inputs = channels
        self.classifier = nn.Linear(4 * inputs, 360)

    def __call__(self, x: Tensor) -> Tensor:
        x = x.reshape(x.shape[0], 1, x.shape[1], 1)
        for number in range(1, 7):
            conv: Any = getattr(self, f"conv{number}")
            sides = (0, 0, 254, 254) if number == 1 else (0, 0, 31, 32)
            x = getattr(self, f"conv{number}_BN")(conv(x.pad(sides)).relu()).max_pool2d((2, 1))
        return self.classifier(x.permute(0, 2, 1, 3).flatten(1)).sigmoid()


def frames(sound: Tensor, hop: int = 160) -> Tensor:
    """Frames [frames, 1024] of sound [samples] at 16 kHz, each with mean 0 and deviation 1."""
    windows = sound.unfold(0, WINDOW, hop)
    centred = windows - windows.mean(1, keepdim=True)
    return centred / centred.std(1, keepdim=True).maximum(1e-10)


def hertz(shares: Tensor) -> list[float]:
    """The pitch of each frame: the mean over the nine results around the most likely one."""
    import numpy as np

    values = shares.numpy().astype(np.float64)
    found = []
    for row in values:
        centre = int(row.argmax())
        near = np.arange(max(0, centre - 4), min(len(row), centre + 5))
        cents = LOWEST + CENTS * (row[near] * near).sum() / row[near].sum()
        found.append(float(10 * 2 ** (cents / 1200)))
    return found
