"""Networks of `gradlet/models` as plain torch functions of weights by name: written from papers, not from ours."""

from __future__ import annotations

import math
from typing import Any

import torch
import torch.nn.functional as F

from gradlet import Tensor, nn


class Weights:
    """Random weights of a model, and the layers of torch that use them."""

    def __init__(self, model: Any, seed: int = 0) -> None:
        own = nn.state.get_state_dict(model)
        generator = torch.Generator().manual_seed(seed)
        self.by_name: dict[str, Any] = {}
        for name, value in own.items():
            if not value.dtype.is_float:
                self.by_name[name] = torch.tensor(value.numpy())
                continue
            drawn = torch.randn(value.shape, generator=generator)
            if name.endswith("running_var"):
                drawn = drawn.abs() + 0.5
            elif len(value.shape) > 1:
                drawn = drawn / max(1, drawn[0].numel()) ** 0.5
            elif name.endswith("weight"):
                drawn = 1 + 0.1 * drawn
            else:
                drawn = 0.1 * drawn
            self.by_name[name] = drawn
        values = {name: Tensor(value.numpy().copy()) for name, value in self.by_name.items()}
        nn.state.load_state_dict(model, values)

    def __getitem__(self, name: str) -> Any:
        return self.by_name[name]

    def has(self, name: str) -> bool:
        return any(key == name or key.startswith(f"{name}.") for key in self.by_name)

    def linear(self, x: Any, name: str) -> Any:
        return F.linear(x, self[f"{name}.weight"], self.by_name.get(f"{name}.bias"))

    def conv(self, x: Any, name: str, stride: int = 1, padding: int = 0, groups: int = 1) -> Any:
        weight, bias = self[f"{name}.weight"], self.by_name.get(f"{name}.bias")
        function = F.conv1d if weight.ndim == 3 else F.conv2d
        return function(x, weight, bias, stride, padding, 1, groups)

    def layer_norm(self, x: Any, name: str) -> Any:
        return F.layer_norm(x, x.shape[-1:], self[f"{name}.weight"], self[f"{name}.bias"])

    def rms_norm(self, x: Any, name: str) -> Any:
        return F.rms_norm(x, x.shape[-1:], self[f"{name}.weight"], 1e-5)

    def group_norm(self, x: Any, name: str, groups: int, eps: float) -> Any:
        return F.group_norm(x, groups, self[f"{name}.weight"], self[f"{name}.bias"], eps)

    def batch_norm(self, x: Any, name: str, eps: float) -> Any:
        mean, var = self[f"{name}.running_mean"], self[f"{name}.running_var"]
        return F.batch_norm(x, mean, var, self[f"{name}.weight"], self[f"{name}.bias"], False, 0.1, eps)

    def attention(self, x: Any, other: Any, names: list[str], heads: int, causal: bool = False) -> Any:
        parts = [self.linear(y, name) for y, name in zip((x, other, other), names)]
        q, k, v = (p.view(p.shape[0], p.shape[1], heads, -1).transpose(1, 2) for p in parts)
        scores = q @ k.mT / math.sqrt(q.shape[-1])
        if causal:
            scores = scores + torch.triu(torch.full(scores.shape[-2:], -torch.inf), 1)
        return self.linear((scores.softmax(-1) @ v).transpose(1, 2).flatten(2), names[3])

    def lstm(self, x: Any, name: str, layers: int) -> Any:
        inputs, width = self[f"{name}.weight_ih_l0"].shape[1], self[f"{name}.weight_hh_l0"].shape[1]
        module = torch.nn.LSTM(inputs, width, layers, batch_first=True)
        module.load_state_dict({key: self[f"{name}.{key}"] for key in module.state_dict()})
        return module(x)


def parts(name: str) -> list[str]:
    return [f"{name}.{letter}_proj" for letter in ("q", "k", "v", "out")]


def llama(w: Weights, ids: Any, heads: int, kv_heads: int, layers: int) -> Any:
    x = w["model.embed_tokens.weight"][ids]
    count, size = ids.shape[1], x.shape[-1] // heads
    angles = torch.arange(count)[:, None] * 10000.0 ** (-torch.arange(0, size, 2) / size)
    turned = torch.polar(torch.ones_like(angles), angles)

    def rotate(y: Any) -> Any:
        pairs = torch.complex(y[..., : size // 2], y[..., size // 2 :]) * turned
        return torch.cat([pairs.real, pairs.imag], -1)

    for number in range(layers):
        name = f"model.layers.{number}"
        inner = w.rms_norm(x, f"{name}.input_layernorm")
        q, k, v = (
            w.linear(inner, f"{name}.self_attn.{p}_proj").unflatten(-1, (n, size)).transpose(1, 2)
            for p, n in (("q", heads), ("k", kv_heads), ("v", kv_heads))
        )
        k, v = (y.repeat_interleave(heads // kv_heads, 1) for y in (rotate(k), v))
        mixed = F.scaled_dot_product_attention(rotate(q), k, v, is_causal=True)
        x = x + w.linear(mixed.transpose(1, 2).flatten(2), f"{name}.self_attn.o_proj")
        inner = w.rms_norm(x, f"{name}.post_attention_layernorm")
        gate = F.silu(w.linear(inner, f"{name}.mlp.gate_proj"))
        x = x + w.linear(gate * w.linear(inner, f"{name}.mlp.up_proj"), f"{name}.mlp.down_proj")
    return w.linear(w.rms_norm(x, "model.norm"), "lm_head")


def mamba(w: Weights, ids: Any, layers: int, state: int, rank: int) -> Any:
    x = w["backbone.embeddings.weight"][ids]
    for number in range(layers):
        name = f"backbone.layers.{number}.mixer"
        inner, gate = w.linear(w.rms_norm(x, f"backbone.layers.{number}.norm"), f"{name}.in_proj").chunk(2, -1)
        width = inner.shape[-1]
        inner = F.silu(w.conv(inner.mT, f"{name}.conv1d", 1, 3, width)[..., : ids.shape[1]].mT)
        low, b, c = w.linear(inner, f"{name}.x_proj").split([rank, state, state], -1)
        dt = F.softplus(w.linear(low, f"{name}.dt_proj"))
        a = -torch.exp(w[f"{name}.A_log"])
        h, rows = torch.zeros(len(ids), width, state), []
        for t in range(ids.shape[1]):
            h = torch.exp(dt[:, t, :, None] * a) * h + (dt[:, t] * inner[:, t])[..., None] * b[:, t, None]
            rows.append((h * c[:, t, None]).sum(-1))
        x = x + w.linear((torch.stack(rows, 1) + inner * w[f"{name}.D"]) * F.silu(gate), f"{name}.out_proj")
    return w.rms_norm(x, "backbone.norm_f") @ w["backbone.embeddings.weight"].T


def clip(w: Weights, ids: Any, images: Any, heads: int, patch: int, layers: int) -> Any:
    def transformer(x: Any, name: str, causal: bool) -> Any:
        for number in range(layers):
            at = f"{name}.encoder.layers.{number}"
            inner = w.layer_norm(x, f"{at}.layer_norm1")
            x = x + w.attention(inner, inner, parts(f"{at}.self_attn"), heads, causal)
            inner = w.linear(w.layer_norm(x, f"{at}.layer_norm2"), f"{at}.mlp.fc1")
            x = x + w.linear(inner * torch.sigmoid(1.702 * inner), f"{at}.mlp.fc2")
        return x

    x = w["text_model.embeddings.token_embedding.weight"][ids]
    x = x + w["text_model.embeddings.position_embedding.weight"][: ids.shape[1]]
    x = w.layer_norm(transformer(x, "text_model", True), "text_model.final_layer_norm")
    texts = F.normalize(w.linear(x[torch.arange(len(ids)), ids.argmax(1)], "text_projection"), dim=-1)
    x = w.conv(images, "vision_model.embeddings.patch_embedding", patch).flatten(2).mT
    x = torch.cat([w["vision_model.embeddings.class_embedding"].expand(len(x), 1, -1), x], 1)
    x = w.layer_norm(x + w["vision_model.embeddings.position_embedding.weight"], "vision_model.pre_layrnorm")
    x = w.layer_norm(transformer(x, "vision_model", False)[:, 0], "vision_model.post_layernorm")
    return w["logit_scale"].exp() * F.normalize(w.linear(x, "visual_projection"), dim=-1) @ texts.T


def whisper(w: Weights, spectrogram: Any, ids: Any, heads: int, layers: int) -> Any:
    x = F.gelu(w.conv(spectrogram, "encoder.conv1", 1, 1))
    x = F.gelu(w.conv(x, "encoder.conv2", 2, 1)).mT + w["encoder.embed_positions.weight"]

    def layer(x: Any, name: str, heard: Any) -> Any:
        inner = w.layer_norm(x, f"{name}.self_attn_layer_norm")
        x = x + w.attention(inner, inner, parts(f"{name}.self_attn"), heads, heard is not None)
        if heard is not None:
            inner = w.layer_norm(x, f"{name}.encoder_attn_layer_norm")
            x = x + w.attention(inner, heard, parts(f"{name}.encoder_attn"), heads)
        inner = w.linear(w.layer_norm(x, f"{name}.final_layer_norm"), f"{name}.fc1")
        return x + w.linear(F.gelu(inner), f"{name}.fc2")

    for number in range(layers):
        x = layer(x, f"encoder.layers.{number}", None)
    heard = w.layer_norm(x, "encoder.layer_norm")
    x = w["decoder.embed_tokens.weight"][ids] + w["decoder.embed_positions.weight"][: ids.shape[1]]
    for number in range(layers):
        x = layer(x, f"decoder.layers.{number}", heard)
    return w.layer_norm(x, "decoder.layer_norm") @ w["decoder.embed_tokens.weight"].T


def resnet_block(w: Weights, x: Any, name: str, groups: int, eps: float, time: Any = None) -> Any:
    inner = w.conv(F.silu(w.group_norm(x, f"{name}.norm1", groups, eps)), f"{name}.conv1", 1, 1)
    if time is not None:
        inner = inner + w.linear(F.silu(time), f"{name}.time_emb_proj")[:, :, None, None]
    inner = w.conv(F.silu(w.group_norm(inner, f"{name}.norm2", groups, eps)), f"{name}.conv2", 1, 1)
    return inner + (w.conv(x, f"{name}.conv_shortcut") if w.has(f"{name}.conv_shortcut") else x)


def diffusion_unet(w: Weights, x: Any, times: Any, text: Any, heads: int, groups: int) -> Any:
    width = w["conv_in.weight"].shape[0]
    angles = times[:, None].float() * 10000.0 ** (-torch.arange(width // 2) / (width // 2))
    time = w.linear(torch.cat([angles.cos(), angles.sin()], 1), "time_embedding.linear_1")
    time = w.linear(F.silu(time), "time_embedding.linear_2")
    names = ["to_q", "to_k", "to_v", "to_out.0"]

    def block(x: Any, level: str, number: int) -> Any:
        x = resnet_block(w, x, f"{level}.resnets.{number}", groups, 1e-5, time)
        name = f"{level}.attentions.{number}"
        if not w.has(name):
            return x
        y = w.conv(w.group_norm(x, f"{name}.norm", groups, 1e-6), f"{name}.proj_in").flatten(2).mT
        at = f"{name}.transformer_blocks.0"
        inner = w.layer_norm(y, f"{at}.norm1")
        y = y + w.attention(inner, inner, [f"{at}.attn1.{n}" for n in names], heads)
        y = y + w.attention(w.layer_norm(y, f"{at}.norm2"), text, [f"{at}.attn2.{n}" for n in names], heads)
        value, gate = w.linear(w.layer_norm(y, f"{at}.norm3"), f"{at}.ff.net.0.proj").chunk(2, -1)
        y = y + w.linear(value * F.gelu(gate), f"{at}.ff.net.2")
        return x + w.conv(y.mT.reshape(x.shape), f"{name}.proj_out")

    x = w.conv(x, "conv_in", 1, 1)
    seen = [x]
    for level in range(4):
        for number in range(2):
            x = block(x, f"down_blocks.{level}", number)
            seen.append(x)
        if w.has(f"down_blocks.{level}.downsamplers"):
            x = w.conv(x, f"down_blocks.{level}.downsamplers.0.conv", 2, 1)
            seen.append(x)
    x = resnet_block(w, block(x, "mid_block", 0), "mid_block.resnets.1", groups, 1e-5, time)
    for level in range(4):
        for number in range(3):
            x = block(torch.cat([x, seen.pop()], 1), f"up_blocks.{level}", number)
        if w.has(f"up_blocks.{level}.upsamplers"):
            x = w.conv(F.interpolate(x, seen[-1].shape[2:]), f"up_blocks.{level}.upsamplers.0.conv", 1, 1)
    return w.conv(F.silu(w.group_norm(x, "conv_norm_out", groups, 1e-5)), "conv_out", 1, 1)


def autoencoder_half(w: Weights, x: Any, name: str, levels: int, groups: int) -> Any:
    def middle(x: Any) -> Any:
        x = resnet_block(w, x, f"{name}.mid_block.resnets.0", groups, 1e-6)
        at = f"{name}.mid_block.attentions.0"
        inner = w.group_norm(x, f"{at}.group_norm", groups, 1e-6).flatten(2).mT
        mixed = w.attention(inner, inner, [f"{at}.{n}" for n in ("to_q", "to_k", "to_v", "to_out.0")], 1)
        return resnet_block(w, x + mixed.mT.reshape(x.shape), f"{name}.mid_block.resnets.1", groups, 1e-6)

    grows = name == "decoder"
    x = w.conv(x, f"{name}.conv_in", 1, 1)
    x = middle(x) if grows else x
    for level in range(levels):
        at = f"{name}.{'up' if grows else 'down'}_blocks.{level}"
        for number in range(3 if grows else 2):
            x = resnet_block(w, x, f"{at}.resnets.{number}", groups, 1e-6)
        if w.has(f"{at}.upsamplers"):
            x = w.conv(F.interpolate(x, scale_factor=2), f"{at}.upsamplers.0.conv", 1, 1)
        if w.has(f"{at}.downsamplers"):
            x = w.conv(F.pad(x, (0, 1, 0, 1)), f"{at}.downsamplers.0.conv", 2)
    x = x if grows else middle(x)
    return w.conv(F.silu(w.group_norm(x, f"{name}.conv_norm_out", groups, 1e-6)), f"{name}.conv_out", 1, 1)


# What the published description of YOLOv8 says of each layer: where it reads, and what it is.
YOLO = [
    (-1, "conv2"), (-1, "conv2"), (-1, "c2f"), (-1, "conv2"), (-1, "c2f"), (-1, "conv2"), (-1, "c2f"), (-1, "conv2"),
    (-1, "c2f"), (-1, "sppf"), (-1, "up"), (6, "cat"), (-1, "c2f"), (-1, "up"), (4, "cat"), (-1, "c2f"), (-1, "conv2"),
    (12, "cat"), (-1, "c2f"), (-1, "conv2"), (9, "cat"), (-1, "c2f"),
]  # fmt: skip


def yolov8(w: Weights, x: Any) -> Any:
    def conv(x: Any, name: str, stride: int = 1) -> Any:
        size = w[f"{name}.conv.weight"].shape[-1]
        return F.silu(w.batch_norm(w.conv(x, f"{name}.conv", stride, size // 2), f"{name}.bn", 1e-3))

    done: list[Any] = []
    for number, (source, kind) in enumerate(YOLO):
        name = f"model.{number}"
        if kind == "conv2":
            x = conv(x, name, 2)
        elif kind == "up":
            x = F.interpolate(x, scale_factor=2)
        elif kind == "cat":
            x = torch.cat([x, done[source]], 1)
        elif kind == "sppf":
            pools = [conv(x, f"{name}.cv1")]
            pools += [F.max_pool2d(pools[0], 4 * k + 1, 1, 2 * k) for k in (1, 2, 3)]
            x = conv(torch.cat(pools, 1), f"{name}.cv2")
        else:
            parts = list(conv(x, f"{name}.cv1").chunk(2, 1))
            while w.has(f"{name}.m.{len(parts) - 2}"):
                block = f"{name}.m.{len(parts) - 2}"
                inner = conv(conv(parts[-1], f"{block}.cv1"), f"{block}.cv2")
                parts.append(inner + parts[-1] if number < 10 else inner)
            x = conv(torch.cat(parts, 1), f"{name}.cv2")
        done.append(x)
    found = []
    for level, (source, stride) in enumerate(((15, 8), (18, 16), (21, 32))):
        both = []
        for part in ("cv2", "cv3"):
            name = f"model.22.{part}.{level}"
            both.append(w.conv(conv(conv(done[source], f"{name}.0"), f"{name}.1"), f"{name}.2"))
        shares = both[0].unflatten(1, (4, 16)).softmax(2)
        left, top, right, bottom = torch.einsum("nskhw,k->snhw", shares, w["model.22.dfl.conv.weight"].flatten())
        y, x = torch.meshgrid(*(torch.arange(n) + 0.5 for n in left.shape[1:]), indexing="ij")
        box = torch.stack([x + (right - left) / 2, y + (bottom - top) / 2, left + right, top + bottom], 1) * stride
        found.append(torch.cat([box, both[1].sigmoid()], 1).flatten(2))
    return torch.cat(found, 2)


def retinanet(w: Weights, features: list[Any]) -> tuple[Any, Any]:
    """From the backbone's maps at 1/8, 1/16 and 1/32."""
    fpn = "backbone.fpn"
    inner = [w.conv(x, f"{fpn}.inner_blocks.{k}.0") for k, x in enumerate(features)]
    for k in (1, 0):
        inner[k] = inner[k] + F.interpolate(inner[k + 1], inner[k].shape[2:])
    maps = [w.conv(x, f"{fpn}.layer_blocks.{k}.0", 1, 1) for k, x in enumerate(inner)]
    maps.append(w.conv(maps[-1], f"{fpn}.extra_blocks.p6", 2, 1))
    maps.append(w.conv(F.relu(maps[-1]), f"{fpn}.extra_blocks.p7", 2, 1))
    results = []
    for head, last in (("classification", "cls_logits"), ("regression", "bbox_reg")):
        rows = []
        for x in maps:
            for k in range(4):
                x = F.relu(w.conv(x, f"head.{head}_head.conv.{k}.0", 1, 1))
            x = w.conv(x, f"head.{head}_head.{last}", 1, 1)
            rows.append(x.permute(0, 2, 3, 1).reshape(len(x), -1, x.shape[1] // 9))
        results.append(torch.cat(rows, 1))
    return results[0], results[1]


def rnnt(w: Weights, frames: Any, ids: Any, stack: int) -> Any:
    x, _ = w.lstm(frames, "encoder.pre_rnn.lstm", 1)
    x = F.pad(x, (0, 0, 0, -x.shape[1] % stack))
    heard, _ = w.lstm(x.reshape(len(x), -1, stack * x.shape[2]), "encoder.post_rnn.lstm", 1)
    letters = w["prediction.embed.weight"][ids]
    letters = torch.cat([torch.zeros(len(ids), 1, letters.shape[2]), letters], 1)
    written, _ = w.lstm(letters, "prediction.dec_rnn.lstm", 2)
    table = [[w.linear(torch.cat([heard[:, t], written[:, u]], 1), "joint.net.0") for u in range(written.shape[1])]
             for t in range(heard.shape[1])]  # fmt: skip
    return torch.stack([torch.stack([w.linear(F.relu(y), "joint.net.3") for y in row], 1) for row in table], 1)
