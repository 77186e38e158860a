"""RNN transducer (Graves 2012): speech to letters while it is heard. Names and sizes as MLPerf's.

One network hears, one remembers what was written, and a joint one says from both what comes next: a letter, or that it
is time to hear on.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from gradlet import nn
from gradlet.models.lstm import LSTM, State
from gradlet.tensor.tensor import Tensor


@dataclass(frozen=True)
class Config:
    """Sizes; those of MLPerf by default.

    Attributes:
        features: of a frame.
        before, after: layers of the encoder before and after `stack` frames become one.
        classes: letters and, as the last one, the blank.
    """

    features: int = 240
    width: int = 1024
    before: int = 2
    after: int = 3
    stack: int = 2
    prediction: int = 320
    prediction_layers: int = 2
    joint: int = 512
    classes: int = 29


class Encoder:
    """Frames [batch, time, features] to vectors [batch, time / stack, width]."""

    def __init__(self, config: Config) -> None:
        self.stack = config.stack
        self.pre_rnn = {"lstm": LSTM(config.features, config.width, config.before)}
        self.post_rnn = {"lstm": LSTM(config.stack * config.width, config.width, config.after)}

    def __call__(self, x: Tensor) -> Tensor:
        x, _ = self.pre_rnn["lstm"](x)
        batch, time, width = x.shape
        groups = -(-time // self.stack)
        x = x.pad(((0, 0), (0, groups * self.stack - time), (0, 0)))
        return self.post_rnn["lstm"](x.reshape(batch, groups, self.stack * width))[0]


class Prediction:
    """What was written so far, as a vector."""

    def __init__(self, config: Config) -> None:
        self.embed = nn.Embedding(config.classes - 1, config.prediction)
        self.dec_rnn = {"lstm": LSTM(config.prediction, config.prediction, config.prediction_layers)}

    def __call__(self, ids: Tensor | None, state: State | None = None) -> tuple[Tensor, State]:
        """Vectors after every letter of [batch, letters]; None is the beginning of one text."""
        width = self.embed.weight.shape[1]
        x = Tensor.zeros(1, 1, width) if ids is None else self.embed(ids)
        return self.dec_rnn["lstm"](x, state)


class RNNT:
    """What was heard and what was written to logits of what comes next: [batch, time, letters + 1, classes]."""

    def __init__(self, config: Config | None = None) -> None:
        self.config = config = config or Config()
        self.encoder, self.prediction = Encoder(config), Prediction(config)
        # Between them the published network has ReLU and dropout.
        self.joint = {
            "net": {
                "0": nn.Linear(config.prediction + config.width, config.joint),
                "3": nn.Linear(config.joint, config.classes),
            }
        }

    def join(self, heard: Tensor, written: Tensor) -> Tensor:
        """Every time [batch, time, width] with every place in the text [batch, letters, prediction]."""
        (batch, time, _), places = heard.shape, written.shape[1]
        heard = heard.unsqueeze(2).expand(batch, time, places, heard.shape[2])
        written = written.unsqueeze(1).expand(batch, time, places, written.shape[2])
        layers = self.joint["net"]
        return layers["3"](layers["0"](heard.cat(written, dim=3)).relu())

    def __call__(self, frames: Tensor, ids: Tensor) -> Tensor:
        start = Tensor.zeros(ids.shape[0], 1, self.config.prediction)
        letters = start.cat(self.prediction.embed(ids), dim=1)
        return self.join(self.encoder(frames), self.prediction.dec_rnn["lstm"](letters)[0])

    def greedy(self, frames: Tensor, most: int = 30) -> list[int]:
        """The most likely letters of one sound [1, time, features], at most `most` of them at any time."""
        heard = self.encoder(frames).realize()
        blank = self.config.classes - 1
        vector, state = self._written(None, None)
        letters: list[int] = []
        for time in range(heard.shape[1]):
            for _ in range(most):
                best = int(self.join(heard[:, time : time + 1].contiguous(), vector).argmax().item())
                if best == blank:
                    break
                letters.append(best)
                vector, state = self._written(best, state)
        return letters

    def _written(self, letter: int | None, state: Any) -> tuple[Tensor, State]:
        vector, state = self.prediction(None if letter is None else Tensor([[letter]], dtype="int32"), state)
        return vector.realize(*[part for layer in state for part in layer]), state
