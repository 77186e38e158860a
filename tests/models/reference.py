"""The networks of `gradlet/models` once more, as small plain torch modules: written from papers, not from ours."""

from __future__ import annotations

import math
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn


class ResNet(nn.Module):
    """Blocks are strings of convolutions; the first of a later stage halves the size."""

    def __init__(self, bottleneck: bool, depths: list[int], classes: int, width: int) -> None:
        super().__init__()
        self.bottleneck = bottleneck
        self.conv1, self.bn1 = nn.Conv2d(3, width, 7, 2, 3, bias=False), nn.BatchNorm2d(width)
        channels = width
        for stage, depth in enumerate(depths):
            blocks = nn.Sequential()
            for place in range(depth):
                block, channels = self.block(channels, width * 2**stage, 2 if stage and place == 0 else 1)
                blocks.append(block)
            self.add_module(f"layer{stage + 1}", blocks)
        self.fc = nn.Linear(channels, classes)

    def block(self, inputs: int, inner: int, stride: int) -> tuple[Any, int]:
        outputs = inner * (4 if self.bottleneck else 1)
        rows = [(1, inputs, inner, 1), (3, inner, inner, stride), (1, inner, outputs, 1)]
        if not self.bottleneck:
            rows = [(3, inputs, inner, stride), (3, inner, inner, 1)]
        block = nn.Module()
        for number, (size, a, b, step) in enumerate(rows, 1):
            block.add_module(f"conv{number}", nn.Conv2d(a, b, size, step, size // 2, bias=False))
            block.add_module(f"bn{number}", nn.BatchNorm2d(b))
        if stride != 1 or inputs != outputs:
            block.downsample = nn.Sequential(nn.Conv2d(inputs, outputs, 1, stride, bias=False), nn.BatchNorm2d(outputs))
        return block, outputs

    def forward(self, x: Any) -> Any:
        x = F.max_pool2d(F.relu(self.bn1(self.conv1(x))), 3, 2, 1)
        for stage in (self.layer1, self.layer2, self.layer3, self.layer4):
            for block in stage:
                inner = x
                count = 3 if self.bottleneck else 2
                for number in range(1, count + 1):
                    conv, norm = getattr(block, f"conv{number}"), getattr(block, f"bn{number}")
                    inner = norm(conv(inner))
                    inner = F.relu(inner) if number < count else inner
                x = F.relu(inner + (block.downsample(x) if hasattr(block, "downsample") else x))
        return self.fc(x.mean((2, 3)))


class UNet(nn.Module):
    def __init__(self, channels: int, classes: int, width: int) -> None:
        super().__init__()

        def double(a: int, b: int) -> nn.Module:
            holder = nn.Module()
            holder.double_conv = nn.Sequential(
                nn.Conv2d(a, b, 3, padding=1, bias=False), nn.BatchNorm2d(b), nn.ReLU(),
                nn.Conv2d(b, b, 3, padding=1, bias=False), nn.BatchNorm2d(b), nn.ReLU(),
            )  # fmt: skip
            holder.forward = holder.double_conv.forward
            return holder

        self.inc = double(channels, width)
        for level in range(4):
            down = nn.Module()
            down.maxpool_conv = nn.Sequential(nn.MaxPool2d(2), double(width << level, width << level + 1))
            self.add_module(f"down{level + 1}", down)
            up, wide = nn.Module(), width << 4 - level
            up.up, up.conv = nn.ConvTranspose2d(wide, wide // 2, 2, 2), double(wide, wide // 2)
            self.add_module(f"up{level + 1}", up)
        self.outc = nn.ModuleDict({"conv": nn.Conv2d(width, classes, 1)})

    def forward(self, x: Any) -> Any:
        seen = [self.inc(x)]
        for level in range(1, 5):
            seen.append(getattr(self, f"down{level}").maxpool_conv(seen[-1]))
        x = seen[4]
        for level in range(1, 5):
            up, other = getattr(self, f"up{level}"), seen[4 - level]
            x = up.up(x)
            dy, dx = other.shape[2] - x.shape[2], other.shape[3] - x.shape[3]
            x = F.pad(x, [dx // 2, dx - dx // 2, dy // 2, dy - dy // 2])
            x = up.conv(torch.cat([other, x], 1))
        return self.outc["conv"](x)


class VisionTransformer(nn.Module):
    """By torch's own encoder layer, whose names are turned into torchvision's by `names`."""

    def __init__(self, size: int, patch: int, depth: int, heads: int, width: int, hidden: int, classes: int) -> None:
        super().__init__()
        self.conv_proj = nn.Conv2d(3, width, patch, patch)
        self.class_token = nn.Parameter(torch.zeros(1, 1, width))
        self.pos = nn.Parameter(torch.zeros(1, (size // patch) ** 2 + 1, width))
        self.blocks = nn.ModuleList(
            nn.TransformerEncoderLayer(width, heads, hidden, 0.0, "gelu", 1e-6, batch_first=True, norm_first=True)
            for _ in range(depth)
        )
        self.ln = nn.LayerNorm(width, 1e-6)
        self.head = nn.Linear(width, classes)

    @staticmethod
    def names(name: str) -> str:
        for old, new in (
            ("blocks.", "encoder.layers.encoder_layer_"), ("self_attn", "self_attention"), ("norm1", "ln_1"),
            ("norm2", "ln_2"), ("linear1", "mlp.0"), ("linear2", "mlp.3"), ("head.", "heads.head."),
        ):  # fmt: skip
            name = name.replace(old, new)
        name = name.replace("pos", "encoder.pos_embedding") if name == "pos" else name
        return f"encoder.{name}" if name.startswith("ln.") else name

    def forward(self, x: Any) -> Any:
        x = self.conv_proj(x).flatten(2).mT
        x = torch.cat([self.class_token.expand(x.shape[0], -1, -1), x], 1) + self.pos
        for block in self.blocks:
            x = block(x)
        return self.head(self.ln(x[:, 0]))


class EfficientNet(nn.Module):
    """Rows: expand, kernel, stride, channels, depth."""

    def __init__(self, rows: list[tuple[int, ...]], stem: int, head: int, classes: int, lite: bool) -> None:
        super().__init__()
        self.lite, epsilon = lite, 1e-3 if lite else 1e-5

        def layer(a: int, b: int, kernel: int, stride: int = 1, groups: int = 1) -> nn.Sequential:
            padding = 0 if lite else kernel // 2
            return nn.Sequential(
                nn.Conv2d(a, b, kernel, stride, padding, groups=groups, bias=False), nn.BatchNorm2d(b, epsilon)
            )

        self.features = nn.Sequential(layer(3, stem, 3, 2))
        inputs = stem
        for expand, kernel, stride, channels, depth in rows:
            stage = nn.Sequential()
            for place in range(depth):
                wide = inputs * expand
                parts = [layer(inputs, wide, 1)] if expand > 1 else []
                parts.append(layer(wide, wide, kernel, 1 if place else stride, wide))
                if not lite:
                    small = max(1, inputs // 4)
                    parts.append(nn.ModuleDict({"fc1": nn.Conv2d(wide, small, 1), "fc2": nn.Conv2d(small, wide, 1)}))
                parts.append(layer(wide, channels, 1))
                stage.append(nn.ModuleDict({"block": nn.ModuleList(parts)}))
                inputs = channels
            self.features.append(stage)
        self.features.append(layer(inputs, head, 1))
        self.classifier = nn.Sequential(nn.Identity(), nn.Linear(head, classes))

    def step(self, layer: Any, x: Any, activate: bool = True) -> Any:
        conv = layer[0]
        if self.lite:  # what TensorFlow calls "same"
            kernel, stride = conv.kernel_size[0], conv.stride[0]
            sides = []
            for size in (x.shape[3], x.shape[2]):
                total = max((math.ceil(size / stride) - 1) * stride + kernel - size, 0)
                sides += [total // 2, total - total // 2]
            x = F.pad(x, sides)
        x = layer[1](conv(x))
        if not activate:
            return x
        return F.relu6(x) if self.lite else F.silu(x)

    def forward(self, x: Any) -> Any:
        x = self.step(self.features[0], x)
        for stage in self.features[1:-1]:
            for holder in stage:
                inner, parts = x, holder["block"]
                for part in parts[:-1]:
                    if isinstance(part, nn.ModuleDict):
                        scale = part["fc2"](F.silu(part["fc1"](inner.mean((2, 3), keepdim=True))))
                        inner = inner * torch.sigmoid(scale)
                    else:
                        inner = self.step(part, inner)
                inner = self.step(parts[-1], inner, activate=False)
                x = x + inner if x.shape == inner.shape else inner
        return self.classifier(self.step(self.features[-1], x).mean((2, 3)))


class Bert(nn.Module):
    """By torch's encoder layer, norms after; `names` says what Hugging Face calls its parts."""

    def __init__(self, vocabulary: int, positions: int, width: int, layers: int, heads: int, hidden: int) -> None:
        super().__init__()
        self.word, self.position = nn.Embedding(vocabulary, width), nn.Embedding(positions, width)
        self.kind, self.norm = nn.Embedding(2, width), nn.LayerNorm(width, 1e-12)
        self.layers = nn.ModuleList(
            nn.TransformerEncoderLayer(width, heads, hidden, 0.0, "gelu", 1e-12, batch_first=True)
            for _ in range(layers)
        )
        self.pooler = nn.ModuleDict({"dense": nn.Linear(width, width)})

    def weights(self) -> dict[str, Any]:
        found = {}
        for name, value in self.state_dict().items():
            name = name.replace("layers.", "encoder.layer.")
            if "in_proj" in name:
                for part, kind in zip(value.chunk(3), ("query", "key", "value")):
                    found[name.replace("self_attn.in_proj_", f"attention.self.{kind}.")] = part
                continue
            for old, new in (
                ("word", "embeddings.word_embeddings"), ("position", "embeddings.position_embeddings"),
                ("kind", "embeddings.token_type_embeddings"), ("self_attn.out_proj", "attention.output.dense"),
                ("norm1", "attention.output.LayerNorm"), ("norm2", "output.LayerNorm"),
                ("linear1", "intermediate.dense"), ("linear2", "output.dense"),
            ):  # fmt: skip
                name = name.replace(old, new)
            found["embeddings.LayerNorm" + name[4:] if name.startswith("norm.") else name] = value
        return found

    def forward(self, ids: Any, mask: Any, kinds: Any) -> Any:
        x = self.word(ids) + self.position.weight[: ids.shape[1]] + self.kind(kinds)
        x = self.norm(x)
        for layer in self.layers:
            x = layer(x, src_key_padding_mask=mask == 0)
        return x


class GPT2(nn.Module):
    def __init__(self, vocabulary: int, positions: int, width: int, layers: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.wte, self.wpe = nn.Embedding(vocabulary, width), nn.Embedding(positions, width)
        self.h = nn.ModuleList()
        for _ in range(layers):
            block = nn.Module()
            block.ln_1, block.ln_2 = nn.LayerNorm(width), nn.LayerNorm(width)
            for part, sizes in (
                ("attn", (("c_attn", 1, 3), ("c_proj", 1, 1))),
                ("mlp", (("c_fc", 1, 4), ("c_proj", 4, 1))),
            ):
                holder = nn.Module()
                for name, a, b in sizes:
                    linear = nn.Module()
                    linear.weight = nn.Parameter(torch.zeros(a * width, b * width))
                    linear.bias = nn.Parameter(torch.zeros(b * width))
                    holder.add_module(name, linear)
                block.add_module(part, holder)
            self.h.append(block)
        self.ln_f = nn.LayerNorm(width)

    def forward(self, ids: Any) -> Any:
        batch, count = ids.shape
        x = self.wte(ids) + self.wpe(torch.arange(count))
        hidden = torch.triu(torch.full((count, count), -torch.inf), 1)
        for block in self.h:
            inner = block.ln_1(x) @ block.attn.c_attn.weight + block.attn.c_attn.bias
            q, k, v = (part.view(batch, count, self.heads, -1).transpose(1, 2) for part in inner.chunk(3, -1))
            shares = (q @ k.mT / q.shape[-1] ** 0.5 + hidden).softmax(-1)
            inner = (shares @ v).transpose(1, 2).reshape(batch, count, -1)
            x = x + inner @ block.attn.c_proj.weight + block.attn.c_proj.bias
            inner = block.ln_2(x) @ block.mlp.c_fc.weight + block.mlp.c_fc.bias
            inner = 0.5 * inner * (1 + torch.tanh((2 / math.pi) ** 0.5 * (inner + 0.044715 * inner**3)))
            x = x + inner @ block.mlp.c_proj.weight + block.mlp.c_proj.bias
        return self.ln_f(x) @ self.wte.weight.T
