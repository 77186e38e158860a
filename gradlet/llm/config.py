"""What a model file says about its transformer: one description for all families, from GGUF or from a config.json."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from gradlet.base.errors import FileFormatError


@dataclass(frozen=True)
class Rope:
    """Rotary positions.

    Attributes:
        base: of the wave lengths.
        width: features of a head that are turned; 0 for models without.
        pairs: in the file, features that are turned together lie side by side; else half of `width` apart.
        scaling: "none", "linear", "llama3" or "yarn".
        factor: how much longer contexts become.
        original: context length before scaling.
        low, high: of llama3, where scaling begins and ends.
        fast, slow: of yarn, likewise, in turns.
        attention_factor: of yarn and others: cosines and sines are multiplied by it; None for what the method says.
        factors: one for every wave length, where the file has them.
    """

    base: float = 10000.0
    width: int = 0
    pairs: bool = False
    scaling: str = "none"
    factor: float = 1.0
    original: int = 0
    low: float = 1.0
    high: float = 4.0
    fast: float = 32.0
    slow: float = 1.0
    attention_factor: float | None = None
    factors: tuple[float, ...] = ()


@dataclass(frozen=True)
class Experts:
    """A layer whose rows choose among several networks.

    Attributes:
        count: how many there are.
        used: how many a row uses.
        hidden: width of one.
        softmax_first: over all experts, then the best; else over the best only.
        normalise: weights of the chosen ones add up to 1.
        shared: width of the network that every row uses, 0 for none.
    """

    count: int
    used: int
    hidden: int
    softmax_first: bool = True
    normalise: bool = True
    shared: int = 0


@dataclass(frozen=True)
class Config:
    """A decoder-only transformer.

    Attributes:
        family: its name in GGUF files.
        activation: "silu", "gelu" (tanh form), "gelu_plain" (no gate) or "clamped" (GPT-OSS).
        norm: "rms" or "layer".
        place: of the norms: "before" each part, "after" it (OLMo 2), or "both" (Gemma 2 and 3).
        parallel: attention and network read the same normed value (Phi 2).
        query_norm: "none", "head" or "all" heads as one vector.
        window: positions that a local layer sees, 0 for all.
        local_every: of so many layers the last one sees everything; 0: every layer is local. None: none is.
        skip_rope_every: of so many layers the last has no rotary positions (SmolLM 3); 0: none.
        sinks: attention has a learned entry that takes weight and gives nothing.
    """

    family: str
    layers: int
    width: int
    heads: int
    kv_heads: int
    head_width: int
    hidden: int
    vocabulary: int
    context: int
    epsilon: float
    rope: Rope
    local_rope: Rope | None = None
    activation: str = "silu"
    norm: str = "rms"
    place: str = "before"
    parallel: bool = False
    query_norm: str = "none"
    embedding_scale: float = 1.0
    attention_scale: float | None = None
    attention_cap: float = 0.0
    logit_cap: float = 0.0
    clip_qkv: float = 0.0
    window: int = 0
    local_every: int | None = None
    skip_rope_every: int = 0
    sinks: bool = False
    experts: Experts | None = None

    def is_local(self, layer: int) -> bool:
        """Whether a layer sees a window only."""
        if not self.window or self.local_every is None:
            return False
        return not self.local_every or (layer + 1) % self.local_every != 0

    def has_rope(self, layer: int) -> bool:
        """Whether a layer turns its queries and keys."""
        return not self.skip_rope_every or (layer + 1) % self.skip_rope_every != 0


# What the files do not say, by family.
_FAMILIES: Final[dict[str, dict[str, Any]]] = {
    "llama": {},
    "mistral3": {},
    "qwen2": {},
    "qwen2moe": {},
    "qwen3": {"query_norm": "head"},
    "qwen3moe": {"query_norm": "head"},
    "gemma": {"activation": "gelu"},
    "gemma2": {"activation": "gelu", "place": "both", "local_every": 2},
    "gemma3": {"activation": "gelu", "place": "both", "local_every": 6, "query_norm": "head"},
    "phi2": {"activation": "gelu_plain", "norm": "layer", "parallel": True},
    "phi3": {"local_every": 0},
    "olmo": {"norm": "layer"},
    "olmo2": {"place": "after", "query_norm": "all"},
    "olmoe": {"query_norm": "all"},
    "gpt-oss": {"activation": "clamped", "local_every": 2, "sinks": True},
    "smollm3": {"skip_rope_every": 4},
}
_PAIRS: Final = {"llama", "mistral3", "olmo", "smollm3"}  # as GGUF files of these families store queries and keys
_HF_NAMES: Final = {
    "llama": "llama", "mistral": "llama", "mixtral": "llama", "smollm3": "smollm3", "qwen2": "qwen2",
    "qwen2_moe": "qwen2moe", "qwen3": "qwen3", "qwen3_moe": "qwen3moe", "gemma": "gemma", "gemma2": "gemma2",
    "gemma3_text": "gemma3", "phi": "phi2", "phi3": "phi3", "olmo": "olmo", "olmo2": "olmo2", "olmoe": "olmoe",
    "gpt_oss": "gpt-oss",
}  # fmt: skip


def families() -> list[str]:
    """The names, as GGUF files have them, of what can be run."""
    return list(_FAMILIES)


class _Fields:
    """Typed look-ups in metadata, with errors that name the key."""

    def __init__(self, values: Mapping[str, Any], where: str, prefix: str = "") -> None:
        self.values, self.where, self.prefix = values, where, prefix

    def get(self, key: str, default: Any = None) -> Any:
        value = self.values.get(self.prefix + key)
        return default if value is None else value

    def whole(self, key: str, default: int | None = None, low: int = 1) -> int:
        value = self.get(key, default)
        if isinstance(value, list) and value and all(item == value[0] for item in value):
            value = value[0]
        if isinstance(value, bool) or not isinstance(value, int) or not low <= value < 2**31:
            raise FileFormatError(f"{self.where}: {self.prefix + key} is {value!r}, not a whole number from {low} on")
        return value

    def real(self, key: str, default: float | None = None) -> float:
        value = self.get(key, default)
        if isinstance(value, bool) or not isinstance(value, int | float) or not abs(value) < 1e30:
            raise FileFormatError(f"{self.where}: {self.prefix + key} is {value!r}, not a number")
        return float(value)


def _checked(config: Config, where: str) -> Config:
    if config.heads % config.kv_heads:
        raise FileFormatError(f"{where}: {config.heads} heads are no multiple of {config.kv_heads} heads of keys")
    if config.rope.width % 2 or config.rope.width > config.head_width:
        raise FileFormatError(f"{where}: {config.rope.width} turned features in heads of {config.head_width}")
    if config.experts is not None and config.experts.used > config.experts.count:
        raise FileFormatError(f"{where}: {config.experts.used} of {config.experts.count} experts")
    return config


def from_gguf(metadata: Mapping[str, Any], where: str = "metadata") -> Config:
    """The description in the metadata of a GGUF file.

    Raises:
        FileFormatError: a family that cannot be run, or a value that is missing or senseless.
    """
    family = metadata.get("general.architecture")
    if family not in _FAMILIES:
        raise FileFormatError(f"{where}: models of architecture {family!r} are not run; known: {', '.join(_FAMILIES)}")
    fields = _Fields(metadata, where, f"{family}.")
    width, heads = fields.whole("embedding_length"), fields.whole("attention.head_count")
    head_width = fields.whole("attention.key_length", width // heads)
    tokens = metadata.get("tokenizer.ggml.tokens")
    known = len(tokens) if isinstance(tokens, list) else None
    more: dict[str, Any] = dict(_FAMILIES[family])
    context = fields.whole("context_length")
    scaling = str(fields.get("rope.scaling.type", "none"))
    rope = Rope(
        base=fields.real("rope.freq_base", 10000.0),
        width=fields.whole("rope.dimension_count", head_width, 0),
        pairs=family in _PAIRS,
        scaling=scaling if scaling in ("linear", "yarn") else "none",
        factor=fields.real("rope.scaling.factor", 1.0),
        original=fields.whole("rope.scaling.original_context_length", context),
        attention_factor=fields.real("rope.scaling.attn_factor", 0.0) or None,
    )
    if family in ("gemma", "gemma2", "gemma3"):
        more["embedding_scale"] = width**0.5
    if family == "gemma3":
        more["local_rope"] = Rope(base=fields.real("rope.local.freq_base", 10000.0), width=rope.width)
    window = fields.whole("attention.sliding_window", 0, 0)
    epsilon = fields.get("attention.layer_norm_rms_epsilon", fields.get("attention.layer_norm_epsilon", 1e-5))
    count = fields.whole("expert_count", 0, 0)
    experts = None
    if count:
        hidden = fields.whole("expert_feed_forward_length", fields.get("feed_forward_length"))
        shared = fields.whole("expert_shared_feed_forward_length", 0, 0)
        first, normal = family != "gpt-oss", family not in ("olmoe", "qwen2moe")
        experts = Experts(count, fields.whole("expert_used_count"), hidden, first, normal, shared)
    return _checked(
        Config(
            family=family,
            layers=fields.whole("block_count"),
            width=width,
            heads=heads,
            kv_heads=fields.whole("attention.head_count_kv", heads),
            head_width=head_width,
            hidden=fields.whole("feed_forward_length", 0, 0),
            vocabulary=fields.whole("vocab_size", known),
            context=context,
            epsilon=float(epsilon),
            rope=rope,
            attention_cap=fields.real("attn_logit_softcapping", 0.0),
            logit_cap=fields.real("final_logit_softcapping", 0.0),
            clip_qkv=fields.real("attention.clamp_kqv", 0.0),
            window=window,
            experts=experts,
            **more,
        ),
        where,
    )


def _hf_rope(fields: _Fields, head_width: int, context: int) -> Rope:
    # Newer files keep all of it in one place, older ones beside the rest.
    inner = fields.get("rope_parameters") or fields.get("rope_scaling") or {}
    scaled = _Fields(inner, fields.where, "")
    kind = str(scaled.get("rope_type", scaled.get("type", "default")))
    if kind not in ("default", "linear", "llama3", "yarn", "longrope"):
        raise FileFormatError(
            f"{fields.where}: rotary positions of type {kind!r}; known: linear, llama3, yarn, longrope"
        )
    partial = scaled.real("partial_rotary_factor", fields.get("partial_rotary_factor", 1.0))
    factors = scaled.get("short_factor", []) if kind == "longrope" else []
    return Rope(
        base=scaled.real("rope_theta", fields.get("rope_theta", 10000.0)),
        width=int(head_width * partial),
        scaling=kind if kind in ("linear", "llama3", "yarn") else "none",
        factor=scaled.real("factor", 1.0),
        original=scaled.whole("original_max_position_embeddings", context),
        low=scaled.real("low_freq_factor", 1.0),
        high=scaled.real("high_freq_factor", 4.0),
        fast=scaled.real("beta_fast", 32.0),
        slow=scaled.real("beta_slow", 1.0),
        attention_factor=scaled.real("attention_factor", 0.0) or None,
        factors=tuple(float(factor) for factor in factors),
    )


def from_hf(values: Mapping[str, Any], where: str = "config.json") -> Config:
    """The description in the config.json of a folder as Hugging Face's libraries write it.

    Raises:
        FileFormatError: a family that cannot be run, or a value that is missing or senseless.
    """
    kind = values.get("model_type")
    family = _HF_NAMES.get(kind) if isinstance(kind, str) else None
    if family is None:
        raise FileFormatError(f"{where}: models of type {kind!r} are not run; known: {', '.join(_HF_NAMES)}")
    fields = _Fields(values, where)
    width, heads = fields.whole("hidden_size"), fields.whole("num_attention_heads")
    head_width = fields.whole("head_dim", width // heads)
    context = fields.whole("max_position_embeddings", 2048)
    more: dict[str, Any] = dict(_FAMILIES[family])
    if family.startswith("gemma"):
        more["embedding_scale"] = width**0.5
        scalar = fields.get("query_pre_attn_scalar")
        more["attention_scale"] = None if scalar is None else float(scalar) ** -0.5
    if family == "gemma3":
        more["local_every"] = fields.whole("sliding_window_pattern", 6)
        more["local_rope"] = Rope(base=fields.real("rope_local_base_freq", 10000.0), width=head_width)
    if family == "smollm3":
        more["skip_rope_every"] = fields.whole("no_rope_layer_interval", 4, 0)
    window = fields.whole("sliding_window", 0, 0) if fields.get("use_sliding_window", True) else 0
    if kind == "mistral" and window:
        more["local_every"] = 0
    count = fields.get("num_local_experts", fields.get("num_experts", 0))
    experts = None
    if count:
        hidden = fields.whole("moe_intermediate_size", fields.get("intermediate_size"))
        shared = fields.whole("shared_expert_intermediate_size", 0, 0)
        normal = bool(fields.get("norm_topk_prob", family not in ("olmoe", "qwen2moe")))
        used = fields.whole("num_experts_per_tok")
        experts = Experts(int(count), used, hidden, family != "gpt-oss", normal, shared)
    return _checked(
        Config(
            family=family,
            layers=fields.whole("num_hidden_layers"),
            width=width,
            heads=heads,
            kv_heads=fields.whole("num_key_value_heads", heads),
            head_width=head_width,
            hidden=fields.whole("intermediate_size", 0, 0),
            vocabulary=fields.whole("vocab_size"),
            context=context,
            epsilon=fields.real("rms_norm_eps", fields.get("layer_norm_eps", 1e-5)),
            rope=_hf_rope(fields, head_width, context),
            attention_cap=fields.real("attn_logit_softcapping", 0.0),
            logit_cap=fields.real("final_logit_softcapping", 0.0),
            clip_qkv=fields.real("clip_qkv", 0.0),
            window=window,
            experts=experts,
            **more,
        ),
        where,
    )
