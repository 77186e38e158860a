"""Layers, optimizers, model state and small data sets: `from gradlet import nn`."""

from gradlet.nn import datasets, optim, state
from gradlet.nn.conv import Conv1d, Conv2d, ConvTranspose1d, ConvTranspose2d
from gradlet.nn.linear import Embedding, Linear
from gradlet.nn.norm import (
    BatchNorm,
    BatchNorm2d,
    BatchNorm3d,
    GroupNorm,
    InstanceNorm,
    LayerNorm,
    LayerNorm2d,
    RMSNorm,
)
from gradlet.nn.quantized import QuantizedWeight
from gradlet.nn.recurrent import LSTMCell

__all__ = [
    "BatchNorm", "BatchNorm2d", "BatchNorm3d", "Conv1d", "Conv2d", "ConvTranspose1d", "ConvTranspose2d", "Embedding",
    "GroupNorm", "InstanceNorm", "LSTMCell", "LayerNorm", "LayerNorm2d", "Linear", "QuantizedWeight", "RMSNorm",
    "datasets", "optim", "state",
]  # fmt: skip
