"""Mamba (Gu and Dao 2023): a language model whose memory is a state of fixed size. Names as Hugging Face's.

Along a text the state of every channel runs `h = exp(dt * A) * h + dt * B * x`, with `dt`, `B` and `C` chosen by the
text, and `C . h` is read from it. Over a whole text that is one running combination; token by token it is a step.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil
from typing import Any, Final

from gradlet import nn
from gradlet.base.errors import ArgumentError
from gradlet.models.common import as_ids
from gradlet.ops.op import Op
from gradlet.tensor.function import jit
from gradlet.tensor.tensor import Tensor


@dataclass(frozen=True)
class Config:
    """Sizes; those of mamba-130m by default.

    Attributes:
        state: numbers a channel remembers.
        kernel: tokens that the short convolution sees.
        expand: how much wider a mixer is inside.
    """

    vocabulary: int = 50280
    width: int = 768
    layers: int = 24
    state: int = 16
    kernel: int = 4
    expand: int = 2
    epsilon: float = 1e-5

    @property
    def inner(self) -> int:
        """Channels of a mixer."""
        return self.expand * self.width

    @property
    def rank(self) -> int:
        """Numbers from which the steps `dt` of all channels are made."""
        return ceil(self.width / 16)


SIZES: Final = {
    "mamba-130m": Config(),
    "mamba-370m": Config(width=1024, layers=48),
    "mamba-790m": Config(width=1536, layers=48),
    "mamba-1.4b": Config(width=2048, layers=48),
}


class State:
    """What a mixer remembers of a text: its last inputs and its state."""

    def __init__(self, config: Config) -> None:
        self.inputs = Tensor.zeros(1, config.inner, config.kernel).contiguous().realize()
        self.memory = Tensor.zeros(1, config.inner, config.state).contiguous().realize()

    def forget(self) -> None:
        """Begin another text."""
        for part in (self.inputs, self.memory):
            part.assign(Tensor.zeros(*part.shape)).realize()


def selective_scan(x: Tensor, dt: Tensor, a: Tensor, b: Tensor, c: Tensor) -> Tensor:
    """What is read from the states while they run along a text.

    Args:
        x, dt: [batch, tokens, channels].
        a: [channels, state], negative.
        b, c: [batch, tokens, state].
    """
    kept = (dt.unsqueeze(-1) * a).exp()
    new = (dt * x).unsqueeze(-1) * b.unsqueeze(2)
    states = new.running(Op.MULADD, 1, False, kept)
    return (states * c.unsqueeze(2)).sum(-1)


class Mixer:
    """A short convolution and the selective scan, gated."""

    def __init__(self, config: Config) -> None:
        self.config, inner = config, config.inner
        self.in_proj = nn.Linear(config.width, 2 * inner, bias=False)
        self.conv1d = nn.Conv1d(inner, inner, config.kernel, groups=inner)
        self.x_proj = nn.Linear(inner, config.rank + 2 * config.state, bias=False)
        self.dt_proj = nn.Linear(config.rank, inner)
        numbers = Tensor.arange(1, config.state + 1, dtype="float32").log()
        self.A_log = numbers.reshape(1, -1).expand(inner, config.state).contiguous()
        self.D = nn.parameter.filled(1.0, (inner,))
        self.out_proj = nn.Linear(inner, config.width, bias=False)

    def __call__(self, x: Tensor, state: State | None = None) -> Tensor:
        inner = self.config.inner
        both = self.in_proj(x)
        x, gate = both[..., :inner], both[..., inner:]
        if state is None:
            x = self.conv1d(x.transpose(1, 2).pad((self.config.kernel - 1, 0))).transpose(1, 2).silu()
        else:
            # One token. Its inputs are those before it, moved by one place.
            state.inputs.assign(state.inputs[:, :, 1:].cat(x.transpose(1, 2), dim=2))
            x = (state.inputs * self.conv1d.weight.squeeze(1)).sum(-1)
            x = x if self.conv1d.bias is None else x + self.conv1d.bias
            x = x.unsqueeze(1).silu()
        rank, size = self.config.rank, self.config.state
        chosen = self.x_proj(x)
        dt = self.dt_proj(chosen[..., :rank]).softplus()
        b, c = chosen[..., rank : rank + size], chosen[..., rank + size :]
        a = -self.A_log.exp()
        if state is None:
            read = selective_scan(x, dt, a, b, c)
        else:
            step = dt[:, 0].unsqueeze(-1)
            state.memory.assign((step * a).exp() * state.memory + step * x[:, 0].unsqueeze(-1) * b[:, 0].unsqueeze(1))
            read = (state.memory * c[:, 0].unsqueeze(1)).sum(-1).unsqueeze(1)
        return self.out_proj((read + x * self.D) * gate.silu())


class Block:
    """A mixer behind a norm, added to what passes by."""

    def __init__(self, config: Config) -> None:
        self.norm, self.mixer = nn.RMSNorm(config.width, config.epsilon), Mixer(config)

    def __call__(self, x: Tensor, state: State | None = None) -> Tensor:
        return x + self.mixer(self.norm(x), state)


class Mamba:
    """Token numbers [batch, tokens] to logits of the next ones [batch, tokens, vocabulary].

    >>> Mamba(Config(vocabulary=10, width=8, layers=1, state=2))([[1, 2, 3]]).shape
    (1, 3, 10)
    """

    IGNORE = (r"^lm_head\.weight$",)  # the head is the table of tokens

    def __init__(self, config: Config | None = None) -> None:
        self.config = config = config or Config()
        self.backbone: dict[str, Any] = {
            "embeddings": nn.Embedding(config.vocabulary, config.width),
            "layers": [Block(config) for _ in range(config.layers)],
            "norm_f": nn.RMSNorm(config.width, config.epsilon),
        }

    def __call__(self, ids: Any, states: Sequence[State] | None = None) -> Tensor:
        x = self.backbone["embeddings"](as_ids(ids))
        for number, block in enumerate(self.backbone["layers"]):
            # With states a step is captured; its layers are scheduled one by one, so that all but the first find
            # their schedule.
            x = block(x) if states is None else block(x, states[number]).realize()
        return self.backbone["norm_f"](x).linear(self.backbone["embeddings"].weight.transpose())

    def loss(self, ids: Any) -> Tensor:
        """How surprising every token is after those before it: the mean cross-entropy."""
        ids = as_ids(ids)
        return self(ids[:, :-1]).flatten(0, 1).sparse_categorical_crossentropy(ids[:, 1:].flatten())


class Generator:
    """Goes on with a text token by token, in memory that does not grow."""

    def __init__(self, model: Mamba) -> None:
        self.model = model
        self.states = [State(model.config) for _ in range(model.config.layers)]
        self._step = jit(self._compute)

    def _compute(self, token: Tensor) -> Tensor:
        return self.model(token, self.states).reshape(self.model.config.vocabulary)

    def greedy(self, ids: Sequence[int], count: int) -> list[int]:
        """The `count` most likely tokens after some others.

        Raises:
            ArgumentError: no tokens.
        """
        if not ids:
            raise ArgumentError("greedy: there are no tokens")
        for state in self.states:
            state.forget()
        tokens = list(ids)
        for place in range(len(ids) + count - 1):
            logits = self._step(Tensor([[tokens[place]]], dtype="int32"))
            if place + 1 == len(tokens):
                tokens.append(int(logits.argmax().item()))
        return tokens[len(ids) :]
