"""Transformers of several families in torch, over a whole text at once: what the model here has to agree with."""

from __future__ import annotations

import math
from typing import Any

import torch
import torch.nn.functional as F

T = torch.Tensor


def angles(values: dict[str, Any], width: int, base: float, positions: int) -> tuple[T, T]:
    step = base ** (-torch.arange(0, width, 2, dtype=torch.float64) / width)
    scale, scaling = 1.0, values.get("rope_scaling") or {}
    kind = scaling.get("rope_type")
    if kind == "linear":
        step = step / scaling["factor"]
    if kind == "llama3":
        for i, one in enumerate(step.tolist()):
            wave = 2 * math.pi / one
            long = scaling["original_max_position_embeddings"] / scaling["low_freq_factor"]
            short = scaling["original_max_position_embeddings"] / scaling["high_freq_factor"]
            if wave > long:
                step[i] = one / scaling["factor"]
            elif wave > short:
                smooth = scaling["original_max_position_embeddings"] / wave - scaling["low_freq_factor"]
                smooth /= scaling["high_freq_factor"] - scaling["low_freq_factor"]
                step[i] = (1 - smooth) * one / scaling["factor"] + smooth * one
    if kind == "yarn":
        original = scaling["original_max_position_embeddings"]

        def place(turns: float) -> float:
            return width * math.log(original / (turns * 2 * math.pi)) / (2 * math.log(base))

        low, high = place(scaling.get("beta_fast", 32)), place(scaling.get("beta_slow", 1))
        ramp = ((torch.arange(width // 2, dtype=torch.float64) - low) / max(high - low, 0.001)).clamp(0, 1)
        step = step * (1 - ramp) + step / scaling["factor"] * ramp
        scale = 0.1 * math.log(scaling["factor"]) + 1
    all_angles = torch.outer(torch.arange(positions, dtype=torch.float64), step)
    return all_angles.cos() * scale, all_angles.sin() * scale


def turn(x: T, cos: T, sin: T) -> T:
    """x [heads, tokens, features]; features half of the turned width apart go together."""
    width = 2 * cos.shape[-1]
    first, second, rest = x[..., : width // 2], x[..., width // 2 : width], x[..., width:]
    return torch.cat([first * cos - second * sin, second * cos + first * sin, rest], -1)


class Reference:
    """Logits of all positions, from a config.json and tensors by Hugging Face's names."""

    def __init__(self, values: dict[str, Any], weights: dict[str, T]) -> None:
        self.values, self.kind = values, values["model_type"]
        self.weights = {name: w.double() for name, w in weights.items()}

    def linear(self, name: str, x: T) -> T:
        return F.linear(x, self.weights[f"{name}.weight"], self.weights.get(f"{name}.bias"))

    def norm(self, name: str, x: T) -> T:
        weight, width = self.weights.get(f"{name}.weight"), x.shape[-1:]
        if self.kind in ("phi", "olmo"):
            eps = self.values.get("layer_norm_eps", 1e-5)
            return F.layer_norm(x, width, weight, self.weights.get(f"{name}.bias"), eps)
        if self.kind.startswith("gemma"):
            weight = weight + 1
        return F.rms_norm(x, width, weight, self.values["rms_norm_eps"])

    def attention(self, layer: int, x: T) -> T:
        v, name = self.values, f"model.layers.{layer}.self_attn"
        heads, kv = v["num_attention_heads"], v.get("num_key_value_heads", v["num_attention_heads"])
        size, tokens = v.get("head_dim", v["hidden_size"] // heads), x.shape[0]
        if f"{name}.qkv_proj.weight" in self.weights:
            q, k, val = self.linear(f"{name}.qkv_proj", x).split([heads * size, kv * size, kv * size], -1)
        else:
            q, k, val = (self.linear(f"{name}.{part}_proj", x) for part in "qkv")
        if "clip_qkv" in v:
            q, k, val = (part.clamp(-v["clip_qkv"], v["clip_qkv"]) for part in (q, k, val))
        if self.kind in ("olmo2", "olmoe"):
            q, k = self.norm(f"{name}.q_norm", q), self.norm(f"{name}.k_norm", k)
        q, k, val = (part.reshape(tokens, -1, size) for part in (q, k, val))
        if self.kind in ("qwen3", "qwen3_moe", "gemma3_text"):
            q, k = self.norm(f"{name}.q_norm", q), self.norm(f"{name}.k_norm", k)
        q, k, val = (part.transpose(0, 1) for part in (q, k, val))
        window, base = v.get("sliding_window"), v.get("rope_theta", 10000.0)
        local = self.kind in ("mistral", "phi3")
        if self.kind == "gemma2" or self.kind == "gpt_oss":
            local = layer % 2 == 0
        if self.kind == "gemma3_text":
            local = (layer + 1) % v["sliding_window_pattern"] != 0
            base = v["rope_local_base_freq"] if local else base
        if self.kind != "smollm3" or (layer + 1) % 4:
            cos, sin = angles(v, int(size * v.get("partial_rotary_factor", 1.0)), base, tokens)
            q, k = turn(q, cos, sin), turn(k, cos, sin)
        k, val = (part.repeat_interleave(heads // kv, 0) for part in (k, val))
        scale = v["query_pre_attn_scalar"] ** -0.5 if "query_pre_attn_scalar" in v else size**-0.5
        scores = q @ k.transpose(1, 2) * scale
        if v.get("attn_logit_softcapping"):
            scores = torch.tanh(scores / v["attn_logit_softcapping"]) * v["attn_logit_softcapping"]
        place = torch.arange(tokens)
        hidden = place[None, :] > place[:, None]
        if local and window:
            hidden |= place[None, :] <= place[:, None] - window
        scores = scores.masked_fill(hidden, -math.inf)
        if self.kind == "gpt_oss":
            sinks = self.weights[f"{name}.sinks"].reshape(heads, 1, 1).expand(heads, tokens, 1)
            shares = torch.cat([scores, sinks], -1).softmax(-1)[..., :-1]
        else:
            shares = scores.softmax(-1)
        mixed = (shares @ val).transpose(0, 1).reshape(tokens, heads * size)
        return self.linear(f"{name}.dense" if self.kind == "phi" else f"{name}.o_proj", mixed)

    def network(self, layer: int, x: T) -> T:
        name = f"model.layers.{layer}.mlp"
        if self.kind == "phi":
            return self.linear(f"{name}.fc2", F.gelu(self.linear(f"{name}.fc1", x), approximate="tanh"))
        if self.kind == "phi3":
            gate, up = self.linear(f"{name}.gate_up_proj", x).chunk(2, -1)
            return self.linear(f"{name}.down_proj", F.silu(gate) * up)
        if self.kind in ("mixtral", "qwen2_moe", "qwen3_moe", "olmoe", "gpt_oss"):
            return torch.stack([self.experts(layer, row) for row in x])
        return self.gated(name, x)

    def gated(self, name: str, x: T) -> T:
        gate = self.linear(f"{name}.gate_proj", x)
        gate = F.gelu(gate, approximate="tanh") if self.kind.startswith("gemma") else F.silu(gate)
        return self.linear(f"{name}.down_proj", gate * self.linear(f"{name}.up_proj", x))

    def experts(self, layer: int, row: T) -> T:
        v, used = self.values, self.values["num_experts_per_tok"]
        name = f"model.layers.{layer}.mlp"
        if self.kind == "gpt_oss":
            best, numbers = self.linear(f"{name}.router", row).topk(used)
            result = torch.zeros_like(row)
            for share, e in zip(best.softmax(-1), numbers):
                both = row @ self.weights[f"{name}.experts.gate_up_proj"][e]
                both = both + self.weights[f"{name}.experts.gate_up_proj_bias"][e]
                gate, up = both[::2].clamp(max=7.0), both[1::2].clamp(-7.0, 7.0)
                inner = (up + 1) * gate * torch.sigmoid(1.702 * gate)
                outer = inner @ self.weights[f"{name}.experts.down_proj"][e]
                result = result + share * (outer + self.weights[f"{name}.experts.down_proj_bias"][e])
            return result
        if self.kind == "mixtral":
            name = f"model.layers.{layer}.block_sparse_moe"
        shares, numbers = self.linear(f"{name}.gate", row).softmax(-1).topk(used)
        if self.kind == "mixtral" or v.get("norm_topk_prob"):
            shares = shares / shares.sum()
        result = torch.zeros_like(row)
        for share, e in zip(shares, numbers.tolist()):
            if self.kind == "mixtral":
                w1, w2, w3 = (self.weights[f"{name}.experts.{e}.w{i}.weight"] for i in (1, 2, 3))
                result = result + share * (w2 @ (F.silu(w1 @ row) * (w3 @ row)))
            else:
                result = result + share * self.gated(f"{name}.experts.{e}", row)
        if self.kind == "qwen2_moe":
            gate = torch.sigmoid(self.linear(f"{name}.shared_expert_gate", row))
            result = result + gate * self.gated(f"{name}.shared_expert", row)
        return result

    def layer(self, layer: int, x: T) -> T:
        name = f"model.layers.{layer}"
        if self.kind == "phi":
            inner = self.norm(f"{name}.input_layernorm", x)
            return x + self.attention(layer, inner) + self.network(layer, inner)
        if self.kind == "olmo2":
            x = x + self.norm(f"{name}.post_attention_layernorm", self.attention(layer, x))
            return x + self.norm(f"{name}.post_feedforward_layernorm", self.network(layer, x))
        mixed = self.attention(layer, self.norm(f"{name}.input_layernorm", x))
        if self.kind in ("gemma2", "gemma3_text"):
            x = x + self.norm(f"{name}.post_attention_layernorm", mixed)
            inner = self.network(layer, self.norm(f"{name}.pre_feedforward_layernorm", x))
            return x + self.norm(f"{name}.post_feedforward_layernorm", inner)
        x = x + mixed
        return x + self.network(layer, self.norm(f"{name}.post_attention_layernorm", x))

    def __call__(self, tokens: list[int]) -> T:
        v = self.values
        x = self.weights["model.embed_tokens.weight"][torch.tensor(tokens)]
        if self.kind.startswith("gemma"):
            x = x * v["hidden_size"] ** 0.5
        for layer in range(v["num_hidden_layers"]):
            x = self.layer(layer, x)
        x = self.norm("model.final_layernorm" if self.kind == "phi" else "model.norm", x)
        head = "lm_head" if "lm_head.weight" in self.weights else "model.embed_tokens"
        logits = self.linear(head, x)
        cap = v.get("final_logit_softcapping")
        return torch.tanh(logits / cap) * cap if cap else logits


def random_weights(values: dict[str, Any]) -> dict[str, T]:
    """All tensors of a config, in the shapes that its family has."""
    kind, d, hidden, vocabulary = (values[k] for k in ("model_type", "hidden_size", "intermediate_size", "vocab_size"))
    heads = values["num_attention_heads"]
    kv = values.get("num_key_value_heads", heads)
    size = values.get("head_dim", d // heads)
    experts = values.get("num_local_experts", values.get("num_experts", 0))
    inner = values.get("moe_intermediate_size", hidden)
    shapes: dict[str, tuple[int, ...]] = {"model.embed_tokens.weight": (vocabulary, d)}

    def linear(name: str, results: int, inputs: int, bias: bool = False) -> None:
        shapes[f"{name}.weight"] = (results, inputs)
        if bias:
            shapes[f"{name}.bias"] = (results,)

    def norm(name: str, width: int = d) -> None:
        if kind != "olmo":
            shapes[f"{name}.weight"] = (width,)
        if kind == "phi":
            shapes[f"{name}.bias"] = (width,)

    def gated(name: str, width: int) -> None:
        linear(f"{name}.gate_proj", width, d)
        linear(f"{name}.up_proj", width, d)
        linear(f"{name}.down_proj", d, width)

    if not values.get("tie_word_embeddings"):
        linear("lm_head", vocabulary, d, kind == "phi")
    norm("model.final_layernorm" if kind == "phi" else "model.norm")
    for layer in range(values["num_hidden_layers"]):
        name = f"model.layers.{layer}"
        bias = kind in ("qwen2", "qwen2_moe", "phi", "gpt_oss")
        if kind == "phi3":
            linear(f"{name}.self_attn.qkv_proj", (heads + 2 * kv) * size, d)
        else:
            for part, count in (("q", heads), ("k", kv), ("v", kv)):
                linear(f"{name}.self_attn.{part}_proj", count * size, d, bias)
        last = "dense" if kind == "phi" else "o_proj"
        linear(f"{name}.self_attn.{last}", d, heads * size, kind in ("phi", "gpt_oss"))
        if kind in ("olmo2", "olmoe"):
            norm(f"{name}.self_attn.q_norm", heads * size)
            norm(f"{name}.self_attn.k_norm", kv * size)
        if kind in ("qwen3", "qwen3_moe", "gemma3_text"):
            norm(f"{name}.self_attn.q_norm", size)
            norm(f"{name}.self_attn.k_norm", size)
        if kind == "gpt_oss":
            shapes[f"{name}.self_attn.sinks"] = (heads,)
        if kind != "olmo2":
            norm(f"{name}.input_layernorm")
        if kind != "phi":
            norm(f"{name}.post_attention_layernorm")
        if kind in ("gemma2", "gemma3_text", "olmo2"):
            norm(f"{name}.post_feedforward_layernorm")
        if kind in ("gemma2", "gemma3_text"):
            norm(f"{name}.pre_feedforward_layernorm")
        if kind == "phi":
            linear(f"{name}.mlp.fc1", hidden, d, True)
            linear(f"{name}.mlp.fc2", d, hidden, True)
        elif kind == "phi3":
            linear(f"{name}.mlp.gate_up_proj", 2 * hidden, d)
            linear(f"{name}.mlp.down_proj", d, hidden)
        elif kind == "gpt_oss":
            linear(f"{name}.mlp.router", experts, d, True)
            shapes[f"{name}.mlp.experts.gate_up_proj"] = (experts, d, 2 * inner)
            shapes[f"{name}.mlp.experts.gate_up_proj_bias"] = (experts, 2 * inner)
            shapes[f"{name}.mlp.experts.down_proj"] = (experts, inner, d)
            shapes[f"{name}.mlp.experts.down_proj_bias"] = (experts, d)
        elif kind == "mixtral":
            linear(f"{name}.block_sparse_moe.gate", experts, d)
            for e in range(experts):
                for part, (results, inputs) in {"w1": (inner, d), "w2": (d, inner), "w3": (inner, d)}.items():
                    linear(f"{name}.block_sparse_moe.experts.{e}.{part}", results, inputs)
        elif experts:
            linear(f"{name}.mlp.gate", experts, d)
            for e in range(experts):
                gated(f"{name}.mlp.experts.{e}", inner)
            if kind == "qwen2_moe":
                linear(f"{name}.mlp.shared_expert_gate", 1, d)
                gated(f"{name}.mlp.shared_expert", values["shared_expert_intermediate_size"])
        else:
            gated(f"{name}.mlp", hidden)
    made = torch.Generator().manual_seed(1)
    return {
        name: torch.randn(*shape, generator=made) * (0.3 if "norm" in name or "bias" in name else shape[-1] ** -0.5)
        + (1.0 if "norm.weight" in name and not kind.startswith("gemma") else 0.0)
        for name, shape in shapes.items()
    }
