"""Whisper (Radford et al. 2022): speech to text. Names as Hugging Face's.

Half a minute of sound becomes a log-mel spectrogram, an encoder reads it whole, a decoder writes tokens one by one.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import log, pi
from typing import Any, Final

from gradlet import nn
from gradlet.base.errors import ArgumentError, ShapeError
from gradlet.llm.cache import Cache
from gradlet.models.common import as_ids, attention, split_heads
from gradlet.tensor.function import jit
from gradlet.tensor.tensor import Tensor, Variable

RATE: Final = 16000  # samples a second
WINDOW: Final = 400  # samples of a frame
HOP: Final = 160  # between frames
SECONDS: Final = 30  # that the encoder reads at once


@dataclass(frozen=True)
class Config:
    """Sizes; those of whisper-tiny by default.

    Attributes:
        frames: that the encoder makes of the spectrogram, which has twice as many.
        positions: most tokens of a text.
    """

    vocabulary: int = 51865
    mels: int = 80
    width: int = 384
    layers: int = 4
    heads: int = 6
    hidden: int = 1536
    frames: int = 1500
    positions: int = 448


SIZES: Final = {
    "tiny": Config(),
    "base": Config(width=512, layers=6, heads=8, hidden=2048),
    "small": Config(width=768, layers=12, heads=12, hidden=3072),
    "medium": Config(width=1024, layers=24, heads=16, hidden=4096),
    "large-v3": Config(51866, 128, 1280, 32, 20, 5120),
}


def mel_filters(mels: int) -> Any:
    """Triangles of area 1 on Slaney's mel scale, linear below 1000 Hz, logarithmic above: NumPy [bins, mels]."""
    import numpy as np

    step = log(6.4) / 27  # above 1000 Hz, which is 15 mels

    def hertz(mel: Any) -> Any:
        return np.where(mel < 15, mel * 200 / 3, 1000 * np.exp(step * (mel - 15)))

    highest = 15 + log(RATE / 2 / 1000) / step
    corners = hertz(np.linspace(0, highest, mels + 2))
    bins = np.linspace(0, RATE / 2, WINDOW // 2 + 1)[:, None]
    low, middle, high = corners[:-2], corners[1:-1], corners[2:]
    rise, fall = (bins - low) / (middle - low), (high - bins) / (high - middle)
    return (np.maximum(0, np.minimum(rise, fall)) * 2 / (high - low)).astype(np.float32)


def log_mel(samples: Tensor, mels: int = 80, seconds: float = SECONDS) -> Tensor:
    """The spectrogram [1, mels, frames] of sound [samples] at 16 kHz, cut or filled up to some seconds.

    >>> log_mel(Tensor.zeros(1600), seconds=0.5).shape
    (1, 80, 50)
    """
    import numpy as np

    length = int(seconds * RATE)
    sound = samples[:length].pad((0, max(0, length - samples.shape[0])))
    sound = sound.reshape(1, 1, length).pad((WINDOW // 2, WINDOW // 2), mode="reflect")
    # The Fourier transform of windowed frames is a convolution with cosines and sines.
    angles = 2 * pi * np.outer(np.arange(WINDOW // 2 + 1), np.arange(WINDOW)) / WINDOW
    hann = 0.5 - 0.5 * np.cos(2 * pi * np.arange(WINDOW) / WINDOW)
    waves = np.concatenate([np.cos(angles) * hann, np.sin(angles) * hann]).astype(np.float32)
    parts = sound.conv2d(Tensor(waves).unsqueeze(1), stride=HOP)[:, :, :-1]
    power = (parts * parts).reshape(2, WINDOW // 2 + 1, parts.shape[2]).sum(0)
    heights = (Tensor(mel_filters(mels)).transpose() @ power).maximum(1e-10).log2() * (log(2) / log(10))
    return ((heights.maximum(heights.max() - 8.0) + 4.0) * 0.25).unsqueeze(0)


class Attention:
    """Attention; keys have no bias."""

    def __init__(self, config: Config) -> None:
        width, self.heads = config.width, config.heads
        self.k_proj = nn.Linear(width, width, bias=False)
        self.v_proj, self.q_proj, self.out_proj = (nn.Linear(width, width) for _ in range(3))

    def __call__(self, x: Tensor, other: Tensor | None = None, causal: bool = False) -> Tensor:
        other = x if other is None else other
        keys, values = self.k_proj(other), self.v_proj(other)
        return self.out_proj(attention(self.q_proj(x), keys, values, self.heads, causal=causal))

    def step(self, x: Tensor, keys: Tensor, values: Tensor) -> Tensor:
        """What one token [1, 1, width] finds in keys and values [heads, positions, features]."""
        query = self.q_proj(x).reshape(self.heads, 1, x.shape[2] // self.heads)
        return self.out_proj(query.scaled_dot_product_attention(keys, values).reshape(1, 1, x.shape[2]))

    def parts(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Keys and values [heads, positions, features] of one text or sound [1, positions, width]."""
        return split_heads(self.k_proj(x), self.heads)[0], split_heads(self.v_proj(x), self.heads)[0]


class EncoderLayer:
    """Attention and network, each behind a norm and added to what passes by."""

    def __init__(self, config: Config) -> None:
        self.self_attn = Attention(config)
        self.self_attn_layer_norm = nn.LayerNorm(config.width)
        self.fc1, self.fc2 = nn.Linear(config.width, config.hidden), nn.Linear(config.hidden, config.width)
        self.final_layer_norm = nn.LayerNorm(config.width)

    def network(self, x: Tensor) -> Tensor:
        """The second half of the layer."""
        return x + self.fc2(self.fc1(self.final_layer_norm(x)).gelu("none"))

    def __call__(self, x: Tensor) -> Tensor:
        return self.network(x + self.self_attn(self.self_attn_layer_norm(x)))


class Encoder:
    """Spectrogram [batch, mels, 2 * frames] to vectors [batch, frames, width]."""

    def __init__(self, config: Config) -> None:
        self.frames = config.frames
        self.conv1 = nn.Conv1d(config.mels, config.width, 3, padding=1)
        self.conv2 = nn.Conv1d(config.width, config.width, 3, stride=2, padding=1)
        self.embed_positions = nn.Embedding(config.frames, config.width)
        self.embed_positions.weight = _waves(config.frames, config.width)
        self.layers = [EncoderLayer(config) for _ in range(config.layers)]
        self.layer_norm = nn.LayerNorm(config.width)

    def __call__(self, spectrogram: Tensor) -> Tensor:
        if spectrogram.ndim != 3 or spectrogram.shape[2] != 2 * self.frames:
            raise ShapeError(f"Encoder: [batch, mels, {2 * self.frames}] is needed, not {spectrogram.shape}")
        x = self.conv2(self.conv1(spectrogram).gelu("none")).gelu("none").transpose(1, 2)
        x = x + self.embed_positions.weight
        for layer in self.layers:
            x = layer(x)
        return self.layer_norm(x)


class DecoderLayer(EncoderLayer):
    """Between attention and network, attention to what was heard."""

    def __init__(self, config: Config) -> None:
        super().__init__(config)
        self.encoder_attn = Attention(config)
        self.encoder_attn_layer_norm = nn.LayerNorm(config.width)

    def decode(self, x: Tensor, heard: Tensor) -> Tensor:
        """All tokens of a text at once."""
        x = x + self.self_attn(self.self_attn_layer_norm(x), causal=True)
        return self.network(x + self.encoder_attn(self.encoder_attn_layer_norm(x), heard))

    def step(self, x: Tensor, cache: Cache, heard: tuple[Tensor, Tensor], start: Any) -> Tensor:
        """One token, at a position."""
        inner = self.self_attn_layer_norm(x)
        keys, values = cache.append(*self.self_attn.parts(inner), start)
        x = x + self.self_attn.step(inner, keys, values)
        return self.network(x + self.encoder_attn.step(self.encoder_attn_layer_norm(x), *heard))


class Decoder:
    """Token numbers [batch, tokens] and what was heard to vectors [batch, tokens, width]."""

    def __init__(self, config: Config) -> None:
        self.embed_tokens = nn.Embedding(config.vocabulary, config.width)
        self.embed_positions = nn.Embedding(config.positions, config.width)
        self.layers = [DecoderLayer(config) for _ in range(config.layers)]
        self.layer_norm = nn.LayerNorm(config.width)

    def __call__(self, ids: Tensor, heard: Tensor) -> Tensor:
        x = self.embed_tokens(ids) + self.embed_positions.weight[: ids.shape[1]]
        for layer in self.layers:
            x = layer.decode(x, heard)
        return self.layer_norm(x)

    def logits(self, x: Tensor) -> Tensor:
        """The head is the table of tokens."""
        return x.linear(self.embed_tokens.weight.transpose())


class Whisper:
    """Spectrograms [batch, mels, 2 * frames] and tokens [batch, tokens] to logits [batch, tokens, vocabulary]."""

    PREFIX = "model."
    IGNORE = (r"^proj_out\.weight$",)

    def __init__(self, config: Config | None = None) -> None:
        self.config = config = config or Config()
        self.encoder, self.decoder = Encoder(config), Decoder(config)

    def __call__(self, spectrogram: Tensor, ids: Any) -> Tensor:
        return self.decoder.logits(self.decoder(as_ids(ids), self.encoder(spectrogram)))


class Transcriber:
    """Writes what it hears, token by token: a step is captured once for all positions and sounds."""

    def __init__(self, model: Whisper) -> None:
        config = model.config
        self.model, width = model, config.width // config.heads
        self.caches = [Cache(config.heads, config.positions, width) for _ in range(config.layers)]
        self.heard = [Cache(config.heads, config.frames, width) for _ in range(config.layers)]
        self._step = jit(self._compute)

    def listen(self, spectrogram: Tensor) -> None:
        """Read a spectrogram [1, mels, 2 * frames]: every layer keeps its keys and values of it."""
        heard = self.model.encoder(spectrogram).realize()
        for layer, kept in zip(self.model.decoder.layers, self.heard):
            keys, values = layer.encoder_attn.parts(heard)
            kept.keys.assign(keys).realize()
            kept.values.assign(values).realize()

    def _compute(self, token: Tensor, start: Any) -> Tensor:
        decoder = self.model.decoder
        x = decoder.embed_tokens(token) + decoder.embed_positions.weight[start : start + 1]
        for layer, cache, heard in zip(decoder.layers, self.caches, self.heard):
            x = layer.step(x, cache, (heard.keys, heard.values), start).realize()
        return decoder.logits(decoder.layer_norm(x)).reshape(self.model.config.vocabulary)

    def greedy(
        self, spectrogram: Tensor, prompt: Sequence[int], end: int, limit: int | None = None,
        suppressed: Sequence[int] = (),
    ) -> list[int]:  # fmt: skip
        """The most likely text of a sound.

        Args:
            prompt: tokens that begin it: start, language, task.
            end: the token that ends it, which is not returned.
            limit: most tokens that are written.
            suppressed: tokens that are never written.

        Raises:
            ArgumentError: no prompt, or one for which there is no room.
        """
        positions = self.model.config.positions
        if not 0 < len(prompt) <= positions:
            raise ArgumentError(f"greedy: a prompt of {len(prompt)} tokens; there is room for 1 to {positions}")
        self.listen(spectrogram)
        most = min(positions, len(prompt) + (positions if limit is None else limit))
        tokens = list(prompt)
        for place in range(most - 1):
            at = Variable("whisper_start", 0, positions - 1).bind(place)
            logits = self._step(Tensor([[tokens[place]]], dtype="int32"), at)
            if place + 1 < len(tokens):
                continue
            scores = logits.numpy()
            scores[list(suppressed)] = -float("inf")
            best = int(scores.argmax())
            if best == end:
                break
            tokens.append(best)
        return tokens[len(prompt) :]


def _waves(length: int, width: int) -> Tensor:
    """Sines, then cosines, of positions at wave lengths from 2 pi to 10000 times that."""
    import numpy as np

    scale = np.exp(-log(10000) / (width // 2 - 1) * np.arange(width // 2))
    angles = np.arange(length)[:, None] * scale
    return Tensor(np.concatenate([np.sin(angles), np.cos(angles)], 1).astype(np.float32))
