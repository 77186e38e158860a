"""BERT (Devlin et al. 2018) and sentence embeddings by it (MiniLM). Names as Hugging Face's BertModel."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

from gradlet import nn
from gradlet.models.common import as_ids, attention
from gradlet.tensor.tensor import Tensor


@dataclass(frozen=True)
class Config:
    """Sizes of a BERT; those of bert-base by default."""

    vocabulary: int = 30522
    width: int = 768
    layers: int = 12
    heads: int = 12
    hidden: int = 3072
    positions: int = 512
    kinds: int = 2
    epsilon: float = 1e-12


MINILM_L6: Final = Config(width=384, layers=6, hidden=1536)


class Embeddings:
    """A vector for a token, its place and its kind, added and normed."""

    def __init__(self, config: Config) -> None:
        self.word_embeddings = nn.Embedding(config.vocabulary, config.width)
        self.position_embeddings = nn.Embedding(config.positions, config.width)
        self.token_type_embeddings = nn.Embedding(config.kinds, config.width)
        self.LayerNorm = nn.LayerNorm(config.width, config.epsilon)

    def __call__(self, ids: Tensor, kinds: Tensor | None) -> Tensor:
        kind = self.token_type_embeddings.weight[0] if kinds is None else self.token_type_embeddings(kinds)
        places = self.position_embeddings.weight[: ids.shape[1]]
        return self.LayerNorm(self.word_embeddings(ids) + places + kind)


class Dense:
    """A linear layer whose result is added to what passes by, then normed."""

    def __init__(self, inputs: int, config: Config) -> None:
        self.dense = nn.Linear(inputs, config.width)
        self.LayerNorm = nn.LayerNorm(config.width, config.epsilon)

    def __call__(self, x: Tensor, passing: Tensor) -> Tensor:
        return self.LayerNorm(self.dense(x) + passing)


class Projections:
    """Queries, keys and values."""

    def __init__(self, width: int) -> None:
        self.query, self.key, self.value = (nn.Linear(width, width) for _ in range(3))


class Layer:
    """Attention to both sides, then a network."""

    def __init__(self, config: Config) -> None:
        self.heads = config.heads
        self.attention: dict[str, Any] = {"self": Projections(config.width), "output": Dense(config.width, config)}
        self.intermediate = {"dense": nn.Linear(config.width, config.hidden)}
        self.output = Dense(config.hidden, config)

    def __call__(self, x: Tensor, mask: Tensor | None) -> Tensor:
        own = self.attention["self"]
        mixed = attention(own.query(x), own.key(x), own.value(x), self.heads, mask)
        x = self.attention["output"](mixed, x)
        return self.output(self.intermediate["dense"](x).gelu("none"), x)


class Bert:
    """Token numbers [batch, tokens] to vectors [batch, tokens, width].

    >>> Bert(Config(vocabulary=10, width=8, layers=1, heads=2, hidden=16))([[1, 2, 3]]).shape
    (1, 3, 8)
    """

    PREFIX = "bert."
    IGNORE = (r"position_ids$", r"^cls\.")

    def __init__(self, config: Config | None = None) -> None:
        config = config or Config()
        self.embeddings = Embeddings(config)
        self.encoder = {"layer": [Layer(config) for _ in range(config.layers)]}
        self.pooler = {"dense": nn.Linear(config.width, config.width)}

    def __call__(self, ids: Any, mask: Tensor | None = None, kinds: Tensor | None = None) -> Tensor:
        """Vectors of tokens; `mask` is 1 for tokens and 0 for filling, [batch, tokens]."""
        ids = as_ids(ids)
        seen = None if mask is None else mask.cast("bool").reshape(ids.shape[0], 1, 1, ids.shape[1])
        x = self.embeddings(ids, kinds)
        for layer in self.encoder["layer"]:
            x = layer(x, seen)
        return x

    def pooled(self, vectors: Tensor) -> Tensor:
        """What the first token says of a whole text, as BERT is trained: [batch, width]."""
        return self.pooler["dense"](vectors[:, 0]).tanh()

    def embed(self, ids: Any, mask: Tensor | None = None) -> Tensor:
        """Sentence embeddings [batch, width] as MiniLM is trained: the mean over the tokens, of length 1."""
        vectors = self(ids, mask)
        if mask is None:
            mean = vectors.mean(1)
        else:
            weight = mask.cast(vectors.dtype).unsqueeze(-1)
            mean = (vectors * weight).sum(1) / weight.sum(1).maximum(1e-9)
        return mean / (mean * mean).sum(-1, keepdim=True).sqrt().maximum(1e-12)


def bert_base() -> Bert:
    """BERT base: 109.5 million parameters."""
    return Bert()


def minilm_l6() -> Bert:
    """all-MiniLM-L6: 22.7 million parameters; `embed` compares sentences."""
    return Bert(MINILM_L6)
