"""GPT-2 (Radford et al. 2019): a decoder that is trained as well as asked for texts. Names as Hugging Face's."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

from gradlet import nn
from gradlet.base.errors import ArgumentError
from gradlet.llm.cache import Cache
from gradlet.models.common import as_ids, attention
from gradlet.tensor.function import jit
from gradlet.tensor.tensor import Tensor, Variable


@dataclass(frozen=True)
class Config:
    """Sizes; those of the smallest GPT-2 by default."""

    vocabulary: int = 50257
    positions: int = 1024
    width: int = 768
    layers: int = 12
    heads: int = 12


SIZES: Final = {
    "gpt2": Config(),
    "gpt2-medium": Config(width=1024, layers=24, heads=16),
    "gpt2-large": Config(width=1280, layers=36, heads=20),
    "gpt2-xl": Config(width=1600, layers=48, heads=25),
}


class Conv1D:
    """A linear layer whose weight is [inputs, results], as the published files have it."""

    def __init__(self, inputs: int, results: int) -> None:
        self.weight = Tensor.normal(inputs, results, std=0.02)
        self.bias = nn.parameter.filled(0.0, (results,))

    def __call__(self, x: Tensor) -> Tensor:
        return x.linear(self.weight, self.bias)


class Attention:
    """Every token looks at itself and at what came before."""

    def __init__(self, config: Config) -> None:
        self.heads = config.heads
        self.c_attn = Conv1D(config.width, 3 * config.width)
        self.c_proj = Conv1D(config.width, config.width)

    def __call__(self, x: Tensor, cache: Cache | None, start: Any) -> Tensor:
        queries, keys, values = self.c_attn(x).chunk(3, dim=-1)
        if cache is None:
            return self.c_proj(attention(queries, keys, values, self.heads, causal=True))
        # One token, which looks at everything in the cache.
        split = [part.reshape(self.heads, 1, x.shape[2] // self.heads) for part in (queries, keys, values)]
        keys, values = cache.append(split[1], split[2], start)
        mixed = split[0].scaled_dot_product_attention(keys, values)
        return self.c_proj(mixed.reshape(1, 1, x.shape[2]))


class Network:
    """Four times as wide inside."""

    def __init__(self, width: int) -> None:
        self.c_fc, self.c_proj = Conv1D(width, 4 * width), Conv1D(4 * width, width)

    def __call__(self, x: Tensor) -> Tensor:
        return self.c_proj(self.c_fc(x).gelu("tanh"))


class Block:
    """Attention and network, each behind a norm and added to what passes by."""

    def __init__(self, config: Config) -> None:
        self.ln_1, self.ln_2 = nn.LayerNorm(config.width), nn.LayerNorm(config.width)
        self.attn, self.mlp = Attention(config), Network(config.width)

    def __call__(self, x: Tensor, cache: Cache | None = None, start: Any = 0) -> Tensor:
        x = x + self.attn(self.ln_1(x), cache, start)
        return x + self.mlp(self.ln_2(x))


class GPT2:
    """Token numbers [batch, tokens] to logits of the next ones [batch, tokens, vocabulary].

    >>> GPT2(Config(vocabulary=10, positions=8, width=8, layers=1, heads=2))([[1, 2, 3]]).shape
    (1, 3, 10)
    """

    PREFIX = "transformer."
    IGNORE = (r"\.attn\.(bias|masked_bias)$", r"^lm_head\.weight$")  # masks; the head is the table of tokens

    def __init__(self, config: Config | None = None) -> None:
        self.config = config = config or Config()
        self.wte = nn.Embedding(config.vocabulary, config.width)
        self.wpe = nn.Embedding(config.positions, config.width)
        self.wte.weight = Tensor.normal(config.vocabulary, config.width, std=0.02)
        self.wpe.weight = Tensor.normal(config.positions, config.width, std=0.01)
        self.h = [Block(config) for _ in range(config.layers)]
        self.ln_f = nn.LayerNorm(config.width)

    def __call__(self, ids: Any) -> Tensor:
        ids = as_ids(ids)
        x = self.wte(ids) + self.wpe.weight[: ids.shape[1]]
        for block in self.h:
            x = block(x)
        return self.logits(x)

    def logits(self, x: Tensor) -> Tensor:
        """What a stream of vectors says of the next token."""
        return self.ln_f(x).linear(self.wte.weight.transpose())

    def loss(self, ids: Any) -> Tensor:
        """How surprising every token is after those before it: the mean cross-entropy."""
        ids = as_ids(ids)
        return self(ids[:, :-1]).flatten(0, 1).sparse_categorical_crossentropy(ids[:, 1:].flatten())


class Generator:
    """Goes on with a text token by token: keys and values are kept, a step is captured once for all positions."""

    def __init__(self, model: GPT2) -> None:
        config = model.config
        self.model = model
        shape = config.heads, config.positions, config.width // config.heads
        self.caches = [Cache(*shape) for _ in range(config.layers)]
        self._step = jit(self._compute)

    def _compute(self, token: Tensor, start: Any) -> Tensor:
        model = self.model
        x = model.wte(token) + model.wpe.weight[start : start + 1]
        for block, cache in zip(model.h, self.caches):
            x = block(x, cache, start).realize()
        return model.logits(x).reshape(model.config.vocabulary)

    def greedy(self, ids: Sequence[int], count: int) -> list[int]:
        """The `count` most likely tokens after some others.

        Raises:
            ArgumentError: no tokens, or no room for so many.
        """
        positions = self.model.config.positions
        if not ids or len(ids) + count > positions:
            raise ArgumentError(f"greedy: {len(ids)} tokens and {count} more; there is room for 1 to {positions}")
        tokens = list(ids)
        for place in range(len(ids) + count - 1):
            at = Variable("gpt2_start", 0, positions - 1).bind(place)
            logits = self._step(Tensor([[tokens[place]]], dtype="int32"), at)
            if place + 1 == len(tokens):
                tokens.append(int(logits.argmax().item()))
        return tokens[len(ids) :]
