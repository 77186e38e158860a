"""A speaker encoder (Wan et al. 2018, "GE2E"): a voice as a vector. Names as Resemblyzer's."""

from __future__ import annotations

from gradlet import nn
from gradlet.models.lstm import LSTM
from gradlet.tensor.tensor import Tensor


class SpeakerEncoder:
    """Mel spectrograms [batch, frames, 40], 100 frames a second, to vectors [batch, 256] of length 1."""

    def __init__(self, mels: int = 40, width: int = 256, layers: int = 3) -> None:
        self.lstm, self.linear = LSTM(mels, width, layers), nn.Linear(width, width)
        # Scale and shift of similarities, which only training uses.
        self.similarity_weight = nn.parameter.filled(10.0, (1,))
        self.similarity_bias = nn.parameter.filled(-5.0, (1,))

    def __call__(self, mels: Tensor) -> Tensor:
        _, state = self.lstm(mels)
        x = self.linear(state[-1][0]).relu()
        return x / (x * x).sum(1, keepdim=True).sqrt()
