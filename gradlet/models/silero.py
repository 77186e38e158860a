"""Silero VAD, version 5: is somebody speaking? Names as the published safetensors file for 16 kHz."""

from __future__ import annotations

from typing import Final

from gradlet import nn
from gradlet.tensor.tensor import Tensor

RATE: Final = 16000  # samples a second
FRAME: Final = 512  # new samples of a step
CONTEXT: Final = 64  # samples of the step before, which stand before them
State = tuple[Tensor, Tensor]


class SileroVAD:
    """Steps [batch, 64 + 512] and what the network remembers to how likely speech is [batch, 1], and that anew."""

    def __init__(self) -> None:
        self.stft_conv = nn.Conv1d(1, 258, 256, stride=128, bias=False)
        self.conv1 = nn.Conv1d(129, 128, 3, padding=1)
        self.conv2 = nn.Conv1d(128, 64, 3, stride=2, padding=1)
        self.conv3 = nn.Conv1d(64, 64, 3, stride=2, padding=1)
        self.conv4 = nn.Conv1d(64, 128, 3, padding=1)
        self.lstm_cell = nn.LSTMCell(128, 128)
        self.final_conv = nn.Conv1d(128, 1, 1)

    def __call__(self, x: Tensor, state: State | None = None) -> tuple[Tensor, State]:
        x = self.stft_conv(x.pad((0, 64), mode="reflect").unsqueeze(1))
        x = (x[:, :129] * x[:, :129] + x[:, 129:] * x[:, 129:]).sqrt()
        for layer in (self.conv1, self.conv2, self.conv3, self.conv4):
            x = layer(x).relu()
        hidden, cell = self.lstm_cell(x.squeeze(-1), state)
        return self.final_conv(hidden.relu().unsqueeze(-1)).sigmoid().mean(-1), (hidden, cell)
