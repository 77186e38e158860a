"""Llama (Touvron et al. 2023) as a network to train: names as Hugging Face's.

For talking to one, with quantised weights and a cache, there is `gradlet.llm`; this is the same mathematics in a page.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import log
from typing import Any

from gradlet import nn
from gradlet.llm import rope
from gradlet.models.common import as_ids, join_heads, split_heads
from gradlet.tensor.tensor import Tensor


@dataclass(frozen=True)
class Config:
    """Sizes; those of Llama 2 7B by default."""

    vocabulary: int = 32000
    width: int = 4096
    layers: int = 32
    heads: int = 32
    kv_heads: int = 32
    hidden: int = 11008
    base: float = 10000.0
    epsilon: float = 1e-5
    tied: bool = False


class Attention:
    """Attention with rotary positions; several heads of queries may share one of keys and values."""

    def __init__(self, config: Config) -> None:
        self.config = config
        narrow = config.width // config.heads * config.kv_heads
        self.q_proj = nn.Linear(config.width, config.width, bias=False)
        self.k_proj = nn.Linear(config.width, narrow, bias=False)
        self.v_proj = nn.Linear(config.width, narrow, bias=False)
        self.o_proj = nn.Linear(config.width, config.width, bias=False)

    def __call__(self, x: Tensor, turns: rope.Table) -> Tensor:
        queries = rope.turn(split_heads(self.q_proj(x), self.config.heads), turns)
        keys = rope.turn(split_heads(self.k_proj(x), self.config.kv_heads), turns)
        values = split_heads(self.v_proj(x), self.config.kv_heads)
        return self.o_proj(
            join_heads(queries.scaled_dot_product_attention(keys, values, is_causal=True, enable_gqa=True))
        )


class Network:
    """A gated network."""

    def __init__(self, width: int, hidden: int) -> None:
        self.gate_proj = nn.Linear(width, hidden, bias=False)
        self.up_proj = nn.Linear(width, hidden, bias=False)
        self.down_proj = nn.Linear(hidden, width, bias=False)

    def __call__(self, x: Tensor) -> Tensor:
        return self.down_proj(self.gate_proj(x).silu() * self.up_proj(x))


class Layer:
    """Attention and network, each behind a norm and added to what passes by."""

    def __init__(self, config: Config) -> None:
        self.input_layernorm = nn.RMSNorm(config.width, config.epsilon)
        self.self_attn = Attention(config)
        self.post_attention_layernorm = nn.RMSNorm(config.width, config.epsilon)
        self.mlp = Network(config.width, config.hidden)

    def __call__(self, x: Tensor, turns: rope.Table) -> Tensor:
        x = x + self.self_attn(self.input_layernorm(x), turns)
        return x + self.mlp(self.post_attention_layernorm(x))


class Llama:
    """Token numbers [batch, tokens] to logits of the next ones [batch, tokens, vocabulary].

    >>> Llama(Config(vocabulary=10, width=8, layers=1, heads=2, kv_heads=1, hidden=12))([[1, 2, 3]]).shape
    (1, 3, 10)
    """

    IGNORE = (r"rotary_emb\.inv_freq$",)

    def __init__(self, config: Config | None = None) -> None:
        self.config = config = config or Config()
        self.model: dict[str, Any] = {
            "embed_tokens": nn.Embedding(config.vocabulary, config.width),
            "layers": [Layer(config) for _ in range(config.layers)],
            "norm": nn.RMSNorm(config.width, config.epsilon),
        }
        self.lm_head = None if config.tied else nn.Linear(config.width, config.vocabulary, bias=False)

    def __call__(self, ids: Any) -> Tensor:
        ids = as_ids(ids)
        turns = _turns(self.config, ids.shape[1])
        x = self.model["embed_tokens"](ids)
        for layer in self.model["layers"]:
            x = layer(x, turns)
        x = self.model["norm"](x)
        return x.linear(self.model["embed_tokens"].weight.transpose()) if self.lm_head is None else self.lm_head(x)

    def loss(self, ids: Any) -> Tensor:
        """How surprising every token is after those before it: the mean cross-entropy."""
        ids = as_ids(ids)
        return self(ids[:, :-1]).flatten(0, 1).sparse_categorical_crossentropy(ids[:, 1:].flatten())


def _turns(config: Config, positions: int) -> rope.Table:
    """Cosines and sines of all positions; part of the graph, so that a step of training can be captured."""
    width = config.width // config.heads
    steps = (Tensor.arange(0, width, 2, dtype="float32") * (-log(config.base) / width)).exp()
    angles = Tensor.arange(positions, dtype="float32").unsqueeze(1) * steps
    return rope.Table(angles.cos(), angles.sin())
