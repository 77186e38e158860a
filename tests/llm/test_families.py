"""Every family against torch: a text in one chunk and token by token after it, small models with random weights."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from gradlet.base import settings
from gradlet.io import blocks, gguf
from gradlet.llm import config, weights
from gradlet.llm.model import Transformer
from gradlet.tensor.tensor import Tensor

pytest.importorskip("torch", reason="torch, which the models are compared with, is not installed")
from tests.io import ggufwriter
from tests.llm.reference import Reference, random_weights

SMALL = {
    "hidden_size": 16, "intermediate_size": 24, "num_attention_heads": 4, "num_key_value_heads": 2,
    "num_hidden_layers": 2, "vocab_size": 29, "max_position_embeddings": 16, "rms_norm_eps": 1e-5,
}  # fmt: skip
LLAMA = {"model_type": "llama", **SMALL, "tie_word_embeddings": True}
MIXED = {"num_experts": 5, "num_experts_per_tok": 2, "moe_intermediate_size": 12}
FAMILIES: dict[str, dict[str, Any]] = {
    "llama": {"tie_word_embeddings": True},
    "llama3": {
        "model_type": "llama",
        "rope_scaling": {
            "rope_type": "llama3", "factor": 4.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
            "original_max_position_embeddings": 32,
        },
    },
    "linear": {"model_type": "llama", "rope_scaling": {"rope_type": "linear", "factor": 2.0}},
    "mistral": {"sliding_window": 5, "head_dim": 8},
    "mixtral": {"num_local_experts": 4, "num_experts_per_tok": 2},
    "smollm3": {"num_hidden_layers": 4},
    "qwen2": {},
    "qwen3": {"head_dim": 8},
    "qwen2_moe": {**MIXED, "shared_expert_intermediate_size": 20},
    "qwen3_moe": {**MIXED, "norm_topk_prob": True},
    "gemma": {"head_dim": 8, "tie_word_embeddings": True},
    "gemma2": {
        "head_dim": 8, "sliding_window": 4, "attn_logit_softcapping": 2.0, "final_logit_softcapping": 3.0,
        "query_pre_attn_scalar": 6.0, "tie_word_embeddings": True,
    },
    "gemma3_text": {
        "head_dim": 8, "sliding_window": 4, "sliding_window_pattern": 2, "rope_local_base_freq": 100.0,
        "query_pre_attn_scalar": 8.0, "tie_word_embeddings": True,
    },
    "phi": {"num_key_value_heads": 4, "partial_rotary_factor": 0.5},
    "phi3": {"sliding_window": 6},
    "olmo": {"clip_qkv": 0.5},
    "olmo2": {},
    "olmoe": MIXED,
    "gpt_oss": {
        "num_local_experts": 4, "num_experts_per_tok": 2, "sliding_window": 4, "head_dim": 8,
        "rope_scaling": {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 8},
    },
}  # fmt: skip


def agree(name: str, prompt: int, steps: int) -> None:
    values = {"model_type": name, **SMALL, **FAMILIES[name]}
    tensors = random_weights(values)
    found = config.from_hf(values)
    made = {key: Tensor(tensor.numpy()) for key, tensor in tensors.items()}
    model = Transformer(found, weights.from_hf(made, found), 16)
    text = np.random.default_rng(0).integers(0, SMALL["vocab_size"], prompt + steps).tolist()
    want = Reference(values, tensors)(text).numpy()
    got = [model.step(text[:prompt], 0).numpy()]
    got += [model.step([text[place]], place).numpy() for place in range(prompt, prompt + steps)]
    np.testing.assert_allclose(np.stack(got), want[prompt - 1 :], rtol=2e-3, atol=2e-4)


QUICK = ("llama3", "gemma3_text", "phi", "gpt_oss")  # which have most of what the others have


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=() if name in QUICK else (pytest.mark.slow,)) for name in FAMILIES]
)
def test_logits_are_those_of_torch(name: str) -> None:
    with settings.Context(DEV="PYTHON"):
        agree(name, 7, 2)


def test_quantised_weights_in_the_order_of_gguf_files(tmp_path: Path) -> None:
    """Matrices that are joined, rows turned in pairs, a quantised embedding: as torch with what they stand for."""
    d, hidden, heads, kv, vocabulary = 32, 64, 4, 2, 21
    rng = np.random.default_rng(4)
    shapes = {
        "token_embd": (vocabulary, d), "blk.0.attn_q": (d, d), "blk.0.attn_k": (d // 2, d), "blk.0.attn_v": (d // 2, d),
        "blk.0.attn_output": (d, d), "blk.0.ffn_gate": (hidden, d), "blk.0.ffn_up": (hidden, d),
        "blk.0.ffn_down": (d, hidden),
    }  # fmt: skip
    stored: dict[str, Any] = {}
    meant: dict[str, Any] = {}
    for name, shape in shapes.items():
        raw = rng.integers(0, 256, (shape[0] * shape[1] // 32, 18)).astype(np.uint8)
        raw[:, :2] = np.frombuffer(np.float16(0.03).tobytes(), np.uint8)
        stored[f"{name}.weight"] = ("Q4_0", shape, raw)
        meant[name] = blocks.dequantize(Tensor(raw), "Q4_0").numpy().reshape(shape)
        if name.endswith(("_q", "_k")):  # these files have the two halves of a head as pairs
            meant[name] = meant[name].reshape(-1, 4, 2, d).swapaxes(1, 2).reshape(shape)
    for name in ("output_norm", "blk.0.attn_norm", "blk.0.ffn_norm"):
        meant[name] = 1 + 0.1 * rng.standard_normal(d).astype(np.float32)
        stored[f"{name}.weight"] = ("F32", (d,), meant[name])
    sizes = {
        "block_count": 1, "context_length": 16, "embedding_length": d, "feed_forward_length": hidden,
        "attention.head_count": heads, "attention.head_count_kv": kv, "attention.layer_norm_rms_epsilon": 1e-5,
        "vocab_size": vocabulary, "rope.freq_base": 100.0,
    }  # fmt: skip
    path = ggufwriter.write(
        tmp_path / "file", {"general.architecture": "llama", **{f"llama.{k}": v for k, v in sizes.items()}}, stored
    )
    file = gguf.File(path)
    found = config.from_gguf(file.metadata)
    with settings.Context(DEV="PYTHON"):
        model = Transformer(found, weights.from_gguf(file, found), 16)
        assert model.layers[0].attention.all_three is not None
        text = [3, 20, 0, 7, 7, 11]
        got = [model.step(text[:5], 0).numpy(), model.step(text[5:], 5).numpy()]
    names = {weights.gguf_name(name): name for name in random_weights({**LLAMA, "num_hidden_layers": 1})}
    names["blk.0.ffn_norm.weight"] = names["blk.0.post_attention_norm.weight"]
    import torch

    tensors = {names[f"{name}.weight"]: torch.from_numpy(np.array(value)) for name, value in meant.items()}
    values = {
        "model_type": "llama", "num_attention_heads": heads, "num_key_value_heads": kv, "hidden_size": d,
        "num_hidden_layers": 1, "rms_norm_eps": found.epsilon, "rope_theta": 100.0,
    }  # fmt: skip
    want = Reference(values, tensors)(text).numpy()[-2:]
    np.testing.assert_allclose(np.stack(got), want, rtol=2e-3, atol=2e-3)


def test_matrices_of_one_sort_are_laid_out_by_what_another_process_traced(tmp_path: Path) -> None:
    def laid_out(seed: int) -> tuple[weights.Weights, np.ndarray, np.ndarray]:
        raw = np.random.default_rng(seed).integers(0, 256, (24 * 2, 18)).astype(np.uint8)
        raw[:, :2] = np.frombuffer(np.float16(0.03).tobytes(), np.uint8)
        one = weights.Raw(Tensor(raw), (24, 64), "Q4_0")
        found = weights.Weights(lambda name: one, "here")
        meant = blocks.dequantize(Tensor(raw), "Q4_0").numpy().reshape(24, 64)
        return found, found.matrix("w", (24, 64)).rows(Tensor(np.arange(24))).numpy(), meant

    with settings.Context(CACHEDIR=str(tmp_path), CACHE=True):
        for again in range(2):
            made, got, want = laid_out(again)
            np.testing.assert_allclose(got, want, rtol=1e-6)
            (layout,) = made._layouts.values()
            assert layout.function.calls == 1 - again


@pytest.mark.slow
@pytest.mark.parametrize("name", FAMILIES)
def test_logits_are_those_of_torch_in_machine_code(name: str) -> None:
    agree(name, 11, 4)
