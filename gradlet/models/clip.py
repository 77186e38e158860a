"""CLIP (Radford et al. 2021): texts and images in one space. Names as Hugging Face's CLIPModel.

Its text part alone is what Stable Diffusion reads prompts with.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from gradlet import nn
from gradlet.models.common import as_ids, attention
from gradlet.tensor.tensor import Tensor


@dataclass(frozen=True)
class Part:
    """Sizes of a transformer."""

    width: int
    layers: int
    heads: int
    hidden: int


@dataclass(frozen=True)
class Config:
    """Sizes; those of ViT-B/32 by default."""

    text: Part = Part(512, 12, 8, 2048)
    image: Part = Part(768, 12, 12, 3072)
    shared: int = 512
    vocabulary: int = 49408
    positions: int = 77
    size: int = 224
    patch: int = 32


class Attention:
    """Self-attention."""

    def __init__(self, part: Part) -> None:
        self.k_proj, self.v_proj, self.q_proj, self.out_proj = (nn.Linear(part.width, part.width) for _ in range(4))
        self.heads = part.heads

    def __call__(self, x: Tensor, causal: bool) -> Tensor:
        return self.out_proj(attention(self.q_proj(x), self.k_proj(x), self.v_proj(x), self.heads, causal=causal))


class Layer:
    """Attention and network, each behind a norm and added to what passes by."""

    def __init__(self, part: Part) -> None:
        self.self_attn = Attention(part)
        self.layer_norm1, self.layer_norm2 = nn.LayerNorm(part.width), nn.LayerNorm(part.width)
        self.mlp = {"fc1": nn.Linear(part.width, part.hidden), "fc2": nn.Linear(part.hidden, part.width)}

    def __call__(self, x: Tensor, causal: bool) -> Tensor:
        x = x + self.self_attn(self.layer_norm1(x), causal)
        return x + self.mlp["fc2"](self.mlp["fc1"](self.layer_norm2(x)).quick_gelu())


class TextModel:
    """Token numbers [batch, tokens] to vectors [batch, tokens, width]."""

    def __init__(self, config: Config) -> None:
        part = config.text
        self.embeddings = {
            "token_embedding": nn.Embedding(config.vocabulary, part.width),
            "position_embedding": nn.Embedding(config.positions, part.width),
        }
        self.encoder = {"layers": [Layer(part) for _ in range(part.layers)]}
        self.final_layer_norm = nn.LayerNorm(part.width)

    def __call__(self, ids: Tensor) -> Tensor:
        x = self.embeddings["token_embedding"](ids) + self.embeddings["position_embedding"].weight[: ids.shape[1]]
        for layer in self.encoder["layers"]:
            x = layer(x, causal=True)
        return self.final_layer_norm(x)


class ImageModel:
    """Images [batch, 3, size, size] to a vector each."""

    def __init__(self, config: Config) -> None:
        part = config.image
        places = (config.size // config.patch) ** 2 + 1
        self.embeddings: dict[str, Any] = {
            "class_embedding": Tensor.normal(part.width, std=part.width**-0.5),
            "patch_embedding": nn.Conv2d(3, part.width, config.patch, config.patch, bias=False),
            "position_embedding": nn.Embedding(places, part.width),
        }
        self.pre_layrnorm = nn.LayerNorm(part.width)  # as the files spell it
        self.encoder = {"layers": [Layer(part) for _ in range(part.layers)]}
        self.post_layernorm = nn.LayerNorm(part.width)

    def __call__(self, x: Tensor) -> Tensor:
        patches = self.embeddings["patch_embedding"](x).flatten(2).transpose(1, 2)
        first = self.embeddings["class_embedding"].reshape(1, 1, -1).expand(x.shape[0], 1, patches.shape[2])
        x = self.pre_layrnorm(first.cat(patches, dim=1) + self.embeddings["position_embedding"].weight)
        for layer in self.encoder["layers"]:
            x = layer(x, causal=False)
        return self.post_layernorm(x[:, 0])


class Clip:
    """How well texts and images fit each other: [images, texts]."""

    IGNORE = (r"position_ids$",)

    def __init__(self, config: Config | None = None) -> None:
        config = config or Config()
        self.text_model, self.vision_model = TextModel(config), ImageModel(config)
        self.text_projection = nn.Linear(config.text.width, config.shared, bias=False)
        self.visual_projection = nn.Linear(config.image.width, config.shared, bias=False)
        self.logit_scale = nn.parameter.filled(2.6592, ())

    def text(self, ids: Any) -> Tensor:
        """Vectors of texts, of length 1: read at the token with the highest number, which ends a text."""
        ids = as_ids(ids)
        vectors = self.text_model(ids)
        ends = (Tensor.arange(ids.shape[1]) == ids.argmax(-1, keepdim=True)).cast(vectors.dtype)
        return _unit(self.text_projection((vectors * ends.unsqueeze(-1)).sum(1)))

    def image(self, x: Tensor) -> Tensor:
        """Vectors of images, of length 1."""
        return _unit(self.visual_projection(self.vision_model(x)))

    def __call__(self, ids: Any, images: Tensor) -> Tensor:
        return self.logit_scale.exp() * (self.image(images) @ self.text(ids).transpose())


def _unit(x: Tensor) -> Tensor:
    return x / (x * x).sum(-1, keepdim=True).sqrt()
