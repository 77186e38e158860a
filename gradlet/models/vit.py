"""Vision transformer (Dosovitskiy et al. 2020): an image as a row of patches. Names as torchvision's."""

from __future__ import annotations

from typing import Any

from gradlet import nn
from gradlet.models.common import attention
from gradlet.tensor.tensor import Tensor


class SelfAttention:
    """Queries, keys and values by one matrix, as torch's MultiheadAttention has it."""

    def __init__(self, width: int, heads: int) -> None:
        projection = nn.Linear(width, 3 * width)
        self.in_proj_weight, self.in_proj_bias = projection.weight, projection.bias
        self.out_proj = nn.Linear(width, width)
        self.heads = heads

    def __call__(self, x: Tensor, causal: bool = False) -> Tensor:
        parts = x.linear(self.in_proj_weight.transpose(), self.in_proj_bias).chunk(3, dim=-1)
        return self.out_proj(attention(parts[0], parts[1], parts[2], self.heads, causal=causal))


class Block:
    """Attention and a network, each behind a norm and added to what passes by."""

    def __init__(self, width: int, heads: int, hidden: int) -> None:
        self.ln_1 = nn.LayerNorm(width, eps=1e-6)
        self.self_attention = SelfAttention(width, heads)
        self.ln_2 = nn.LayerNorm(width, eps=1e-6)
        # Between them torchvision has activation and dropout.
        self.mlp = {"0": nn.Linear(width, hidden), "3": nn.Linear(hidden, width)}

    def __call__(self, x: Tensor) -> Tensor:
        x = x + self.self_attention(self.ln_1(x))
        return x + self.mlp["3"](self.mlp["0"](self.ln_2(x)).gelu("none"))


class VisionTransformer:
    """[batch, 3, size, size] to [batch, classes].

    Args:
        size: pixels of a side of the image.
        patch: pixels of a side of a patch, which divide `size`.
        depth: blocks.
        width: of a token.
        hidden: width inside of a block's network.

    >>> VisionTransformer(32, 16, depth=1, heads=2, width=8, hidden=16, classes=5)(Tensor.zeros(2, 3, 32, 32)).shape
    (2, 5)
    """

    def __init__(
        self, size: int = 224, patch: int = 16, depth: int = 12, heads: int = 12, width: int = 768, hidden: int = 3072,
        classes: int = 1000,
    ) -> None:  # fmt: skip
        self.conv_proj = nn.Conv2d(3, width, patch, stride=patch)
        self.class_token = nn.parameter.filled(0.0, (1, 1, width))
        self.encoder: dict[str, Any] = {
            "pos_embedding": Tensor.normal(1, (size // patch) ** 2 + 1, width, std=0.02),
            "layers": {f"encoder_layer_{number}": Block(width, heads, hidden) for number in range(depth)},
            "ln": nn.LayerNorm(width, eps=1e-6),
        }
        self.heads = {"head": nn.Linear(width, classes)}

    def __call__(self, x: Tensor) -> Tensor:
        patches = self.conv_proj(x).flatten(2).transpose(1, 2)
        first = self.class_token.expand(x.shape[0], 1, patches.shape[2])
        tokens = first.cat(patches, dim=1) + self.encoder["pos_embedding"]
        for block in self.encoder["layers"].values():
            tokens = block(tokens)
        return self.heads["head"](self.encoder["ln"](tokens)[:, 0])


def vit_b_16(classes: int = 1000) -> VisionTransformer:
    """ViT-B/16: 86.6 million parameters."""
    return VisionTransformer(classes=classes)


def vit_l_16(classes: int = 1000) -> VisionTransformer:
    """ViT-L/16: 304.3 million parameters."""
    return VisionTransformer(depth=24, heads=16, width=1024, hidden=4096, classes=classes)
