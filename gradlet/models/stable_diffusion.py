"""Stable Diffusion 1.5 (Rombach et al. 2022): images out of noise, led by a text. Names as diffusers'.

A U-Net guesses the noise in a small latent image, a sampler takes it away step by step, an autoencoder makes the image
large. Texts are read by the text part of `clip`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import log
from typing import Any, Final

from gradlet import nn
from gradlet.base.errors import ArgumentError
from gradlet.models.common import attention
from gradlet.tensor.tensor import Tensor

LATENT_SCALE: Final = 0.18215  # latents of the autoencoder times this have a deviation of 1


@dataclass(frozen=True)
class UNetConfig:
    """Sizes of the U-Net.

    Attributes:
        widths: channels of the levels; all but the last look at the text.
        text: width of the text's vectors.
        groups: of its norms.
    """

    channels: int = 4
    widths: tuple[int, ...] = (320, 640, 1280, 1280)
    depth: int = 2
    heads: int = 8
    text: int = 768
    groups: int = 32


class Resnet:
    """Two convolutions, each behind norm and SiLU, added to what passes by; between them the time is added."""

    def __init__(self, inputs: int, outputs: int, groups: int, eps: float, time: int = 0) -> None:
        self.norm1, self.conv1 = nn.GroupNorm(groups, inputs, eps), nn.Conv2d(inputs, outputs, 3, padding=1)
        self.time_emb_proj = nn.Linear(time, outputs) if time else None
        self.norm2, self.conv2 = nn.GroupNorm(groups, outputs, eps), nn.Conv2d(outputs, outputs, 3, padding=1)
        self.conv_shortcut = nn.Conv2d(inputs, outputs, 1) if inputs != outputs else None

    def __call__(self, x: Tensor, time: Tensor | None = None) -> Tensor:
        inner = self.conv1(self.norm1(x).silu())
        if self.time_emb_proj is not None and time is not None:
            inner = inner + self.time_emb_proj(time.silu()).reshape(-1, inner.shape[1], 1, 1)
        inner = self.conv2(self.norm2(inner).silu())
        return inner + (x if self.conv_shortcut is None else self.conv_shortcut(x))


class Attention:
    """Attention of places to each other, or to a text."""

    def __init__(self, width: int, other: int, heads: int) -> None:
        self.heads = heads
        self.to_q = nn.Linear(width, width, bias=False)
        self.to_k, self.to_v = nn.Linear(other, width, bias=False), nn.Linear(other, width, bias=False)
        self.to_out = [nn.Linear(width, width)]

    def __call__(self, x: Tensor, other: Tensor) -> Tensor:
        return self.to_out[0](attention(self.to_q(x), self.to_k(other), self.to_v(other), self.heads))


class GEGLU:
    """One half of a linear layer, weighed by the other."""

    def __init__(self, width: int, hidden: int) -> None:
        self.proj = nn.Linear(width, 2 * hidden)

    def __call__(self, x: Tensor) -> Tensor:
        value, gate = self.proj(x).chunk(2, dim=-1)
        return value * gate.gelu("none")


class TransformerBlock:
    """Attention of places, attention to the text, a network."""

    def __init__(self, width: int, text: int, heads: int) -> None:
        self.norm1, self.norm2, self.norm3 = (nn.LayerNorm(width) for _ in range(3))
        self.attn1, self.attn2 = Attention(width, width, heads), Attention(width, text, heads)
        # At place 1 diffusers has dropout.
        self.ff: dict[str, Any] = {"net": {"0": GEGLU(width, 4 * width), "2": nn.Linear(4 * width, width)}}

    def __call__(self, x: Tensor, text: Tensor) -> Tensor:
        inner = self.norm1(x)
        x = x + self.attn1(inner, inner)
        x = x + self.attn2(self.norm2(x), text)
        return x + self.ff["net"]["2"](self.ff["net"]["0"](self.norm3(x)))


class Transformer:
    """The places of a feature map as a row, through one block."""

    def __init__(self, width: int, text: int, heads: int, groups: int) -> None:
        self.norm = nn.GroupNorm(groups, width, 1e-6)
        self.proj_in = nn.Conv2d(width, width, 1)
        self.transformer_blocks = [TransformerBlock(width, text, heads)]
        self.proj_out = nn.Conv2d(width, width, 1)

    def __call__(self, x: Tensor, text: Tensor) -> Tensor:
        inner = self.proj_in(self.norm(x)).flatten(2).transpose(1, 2)
        inner = self.transformer_blocks[0](inner, text)
        return x + self.proj_out(inner.transpose(1, 2).reshape(*x.shape))


class Level:
    """ResNet blocks of one width, with attention to the text or without, and a change of size."""

    def __init__(self, inputs: Sequence[int], width: int, config: UNetConfig, looks: bool, change: str) -> None:
        time = 4 * config.widths[0]
        self.resnets = [Resnet(channels, width, config.groups, 1e-5, time) for channels in inputs]
        self.attentions = (
            [Transformer(width, config.text, config.heads, config.groups) for _ in inputs] if looks else []
        )
        if change:
            stride = 2 if change == "downsamplers" else 1
            setattr(self, change, [{"conv": nn.Conv2d(width, width, 3, stride, padding=1)}])

    def block(self, number: int, x: Tensor, time: Tensor, text: Tensor) -> Tensor:
        """One ResNet block and its attention."""
        x = self.resnets[number](x, time)
        return self.attentions[number](x, text) if self.attentions else x


class UNet:
    """Noisy latents [batch, 4, height, width], times [batch] and texts [batch, tokens, width] to the noise in them."""

    def __init__(self, config: UNetConfig | None = None) -> None:
        self.config = config = config or UNetConfig()
        widths, last = config.widths, len(config.widths) - 1
        first, time = widths[0], 4 * widths[0]
        self.conv_in = nn.Conv2d(config.channels, first, 3, padding=1)
        self.time_embedding = {"linear_1": nn.Linear(first, time), "linear_2": nn.Linear(time, time)}
        self.down_blocks: list[Level] = []
        seen, before = [first], first  # channels of what is kept for the way up
        for number, width in enumerate(widths):
            inputs = [before] + [width] * (config.depth - 1)
            self.down_blocks.append(
                Level(inputs, width, config, number < last, "downsamplers" if number < last else "")
            )
            seen += [width] * (config.depth + (number < last))
            before = width
        self.mid_block = Level([before] * 2, before, config, True, "")
        self.mid_block.attentions.pop()
        self.up_blocks: list[Level] = []
        for number, width in enumerate(reversed(widths)):
            inputs = []
            for _ in range(config.depth + 1):
                inputs.append(before + seen.pop())
                before = width
            self.up_blocks.append(Level(inputs, width, config, number > 0, "upsamplers" if number < last else ""))
        self.conv_norm_out = nn.GroupNorm(config.groups, first)
        self.conv_out = nn.Conv2d(first, config.channels, 3, padding=1)

    def __call__(self, x: Tensor, times: Tensor, text: Tensor) -> Tensor:
        layers = self.time_embedding
        time = layers["linear_2"](layers["linear_1"](waves(times, self.config.widths[0])).silu())
        x = self.conv_in(x)
        seen = [x]
        for level in self.down_blocks:
            for number in range(len(level.resnets)):
                x = level.block(number, x, time, text)
                seen.append(x)
            if hasattr(level, "downsamplers"):
                x = level.downsamplers[0]["conv"](x)
                seen.append(x)
        x = self.mid_block.block(0, x, time, text)
        x = self.mid_block.resnets[1](x, time)
        for level in self.up_blocks:
            for number in range(len(level.resnets)):
                x = level.block(number, x.cat(seen.pop(), dim=1), time, text)
            if hasattr(level, "upsamplers"):
                x = level.upsamplers[0]["conv"](_larger(x, seen[-1]))
        return self.conv_out(self.conv_norm_out(x).silu())


def waves(times: Tensor, width: int) -> Tensor:
    """Cosines, then sines, of times at wave lengths from 2 pi to 10000 times that: [batch, width].

    >>> waves(Tensor([0.0]), 4).tolist()
    [[1.0, 1.0, 0.0, 0.0]]
    """
    steps = (Tensor.arange(width // 2, dtype="float32") * (-log(10000) / (width // 2))).exp()
    angles = times.cast("float32").unsqueeze(1) * steps
    return angles.cos().cat(angles.sin(), dim=1)


def _larger(x: Tensor, like: Tensor) -> Tensor:
    """The size of `like`, which is about twice as large."""
    return x.interpolate(like.shape[2:], mode="nearest")


class PlaceAttention:
    """Attention of all places of a feature map, with one head."""

    def __init__(self, width: int, groups: int) -> None:
        self.group_norm = nn.GroupNorm(groups, width, 1e-6)
        self.to_q, self.to_k, self.to_v = (nn.Linear(width, width) for _ in range(3))
        self.to_out = [nn.Linear(width, width)]

    def __call__(self, x: Tensor) -> Tensor:
        inner = self.group_norm(x).flatten(2).transpose(1, 2)
        mixed = self.to_out[0](attention(self.to_q(inner), self.to_k(inner), self.to_v(inner), 1))
        return x + mixed.transpose(1, 2).reshape(*x.shape)


class Half:
    """Encoder or decoder of the autoencoder: levels of ResNet blocks, attention where the image is smallest."""

    def __init__(self, inputs: int, outputs: int, widths: Sequence[int], depth: int, groups: int, grows: bool) -> None:
        self.conv_in = nn.Conv2d(inputs, widths[0], 3, padding=1)
        self.change = "upsamplers" if grows else "downsamplers"
        levels: list[dict[str, Any]] = []
        before = widths[0]
        for number, width in enumerate(widths):
            blocks = [Resnet(width if place else before, width, groups, 1e-6) for place in range(depth)]
            levels.append({"resnets": blocks})
            if number < len(widths) - 1:
                conv = nn.Conv2d(width, width, 3, padding=1) if grows else nn.Conv2d(width, width, 3, stride=2)
                levels[-1][self.change] = [{"conv": conv}]
            before = width
        setattr(self, "up_blocks" if grows else "down_blocks", levels)
        self.smallest = 0 if grows else len(widths)  # levels before the middle
        width = widths[0] if grows else before
        self.mid_block: dict[str, Any] = {
            "resnets": [Resnet(width, width, groups, 1e-6) for _ in range(2)],
            "attentions": [PlaceAttention(width, groups)],
        }
        self.conv_norm_out = nn.GroupNorm(groups, before, 1e-6)
        self.conv_out = nn.Conv2d(before, outputs, 3, padding=1)

    def _middle(self, x: Tensor) -> Tensor:
        first, last = self.mid_block["resnets"]
        return last(self.mid_block["attentions"][0](first(x)))

    def __call__(self, x: Tensor) -> Tensor:
        x = self.conv_in(x)
        if not self.smallest:
            x = self._middle(x)
        for level in getattr(self, "down_blocks" if self.smallest else "up_blocks"):
            x = x.sequential(level["resnets"])
            if self.change in level:
                # Smaller: zeros only after the last row and column. Larger: every pixel four times.
                rows, columns = x.shape[2:]
                wide = x.pad((0, 1, 0, 1)) if self.smallest else x.interpolate((2 * rows, 2 * columns), mode="nearest")
                x = level[self.change][0]["conv"](wide)
        if self.smallest:
            x = self._middle(x)
        return self.conv_out(self.conv_norm_out(x).silu())


class Autoencoder:
    """Images [batch, 3, height, width], values -1 to 1, to latents of an eighth of the size, and back.

    Args:
        widths: channels of the levels, from the largest image on.
        latent: channels of a latent image.
    """

    def __init__(
        self, widths: Sequence[int] = (128, 256, 512, 512), latent: int = 4, depth: int = 2, groups: int = 32
    ) -> None:
        self.encoder = Half(3, 2 * latent, widths, depth, groups, grows=False)
        self.decoder = Half(latent, 3, tuple(reversed(widths)), depth + 1, groups, grows=True)
        self.quant_conv = nn.Conv2d(2 * latent, 2 * latent, 1)
        self.post_quant_conv = nn.Conv2d(latent, latent, 1)

    def encode(self, images: Tensor) -> Tensor:
        """The mean of the latents of images."""
        return self.quant_conv(self.encoder(images)).chunk(2, dim=1)[0]

    def decode(self, latents: Tensor) -> Tensor:
        """Images of latents."""
        return self.decoder(self.post_quant_conv(latents))


def old_autoencoder_names(name: str) -> str:
    """Names of attention as older files have them; for `weights.load`, which also needs those weights flat.

    >>> old_autoencoder_names("encoder.mid_block.attentions.0.query.weight")
    'encoder.mid_block.attentions.0.to_q.weight'
    """
    for old, new in (("query", "to_q"), ("key", "to_k"), ("value", "to_v"), ("proj_attn", "to_out.0")):
        name = name.replace(f".attentions.0.{old}.", f".attentions.0.{new}.")
    return name


class DDIM:
    """The sampler of Song et al. 2020 without noise of its own: from noise to an image in `steps` steps.

    Args:
        steps: how many of the 1000 times that the network was trained for are used.
    """

    def __init__(self, steps: int = 50, times: int = 1000, start: float = 0.00085, end: float = 0.012) -> None:
        if not 0 < steps <= times:
            raise ArgumentError(f"DDIM: {steps} steps; 1 to {times} are possible")
        kept, share = [], 1.0
        for number in range(times):
            root = start**0.5 + (end**0.5 - start**0.5) * number / (times - 1)
            share *= 1 - root * root
            kept.append(share)
        self.kept = kept  # share of the image's variance at every time
        self.stride = times // steps
        self.times = [number * self.stride + 1 for number in reversed(range(steps))]

    def step(self, latents: Tensor, noise: Tensor, time: int) -> Tensor:
        """Latents at the time before, given the noise in those at `time`."""
        now = self.kept[min(time, len(self.kept) - 1)]
        before = self.kept[max(0, time - self.stride)]
        image = (latents - noise * (1 - now) ** 0.5) / now**0.5
        return image * before**0.5 + noise * (1 - before) ** 0.5


def sample(
    network: Callable[[Tensor, Tensor, Tensor], Tensor], latents: Tensor, text: Tensor, nothing: Tensor,
    steps: int = 50, guidance: float = 7.5,
) -> Tensor:  # fmt: skip
    """Latents without noise, led by a text; divided by `LATENT_SCALE` they are what the autoencoder decodes.

    Args:
        network: the U-Net, captured or not.
        latents: noise [1, 4, height, width].
        text, nothing: vectors [1, tokens, width] of the text, and of an empty one, from which it leads away.
        guidance: how strongly.
    """
    sampler = DDIM(steps)
    texts = nothing.cat(text).realize()
    for time in sampler.times:
        both = network(latents.cat(latents).realize(), Tensor([float(time)] * 2).realize(), texts)
        free, led = both.chunk(2)
        latents = sampler.step(latents, free + (led - free) * guidance, time).realize()
    return latents
