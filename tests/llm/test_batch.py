"""Texts of a batch, against each of them alone."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from gradlet.base import settings
from gradlet.base.errors import ArgumentError
from gradlet.llm import config, weights
from gradlet.llm.batch import Batch
from gradlet.llm.model import Transformer
from gradlet.runtime.counters import GlobalCounters
from gradlet.tensor.tensor import Tensor
from tests.llm import smollm2

SMALL = {
    "hidden_size": 16, "intermediate_size": 24, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 8,
    "num_hidden_layers": 2, "vocab_size": 29, "max_position_embeddings": 16, "rms_norm_eps": 1e-5,
}  # fmt: skip
FAMILIES: dict[str, dict[str, Any]] = {
    "llama": {"tie_word_embeddings": True},
    "gemma3_text": {
        "sliding_window": 4, "sliding_window_pattern": 2, "rope_local_base_freq": 100.0, "query_pre_attn_scalar": 8.0,
        "tie_word_embeddings": True,
    },
    "gpt_oss": {"num_local_experts": 4, "num_experts_per_tok": 2, "sliding_window": 4},
}  # fmt: skip


def made(name: str, slots: int, **more: int) -> Transformer:
    pytest.importorskip("torch", reason="torch, which makes the weights, is not installed")
    from tests.llm.reference import random_weights

    values = {"model_type": name, **SMALL, **FAMILIES[name], **more}
    found = config.from_hf(values)
    tensors = {key: Tensor(tensor.numpy()) for key, tensor in random_weights(values).items()}
    return Transformer(found, weights.from_hf(tensors, found), 16, slots)


def agree(name: str, counts: list[int], **more: int) -> None:
    """Texts that begin and end at different times, in slots in any order, some of them twice."""
    alone, batch = made(name, 1, **more), Batch(made(name, 6, **more))
    rng = np.random.default_rng(3)
    texts: dict[int, list[int]] = {}
    for count in counts:
        while len(texts) < count:
            slot = next(n for n in (4, 0, 2, 1, 3) if n not in texts)
            texts[slot] = rng.integers(0, 29, rng.integers(1, 7)).tolist()
            batch.read(slot, texts[slot], 0)
        while len(texts) > count:
            del texts[next(iter(texts))]
        tokens = rng.integers(0, 29, count).tolist()
        slots = rng.permutation(list(texts)).tolist()
        got = batch.step(slots, tokens, [len(texts[slot]) for slot in slots])
        assert len(got) == count
        for slot, token, logits in zip(slots, tokens, got, strict=True):
            texts[slot].append(token)
            want = alone.step(texts[slot], 0).numpy()
            np.testing.assert_allclose(logits, want, rtol=1e-3, atol=1e-4)


def test_texts_of_a_batch_are_as_alone() -> None:
    with settings.Context(DEV="PYTHON"):
        agree("llama", [2], num_hidden_layers=1)


@pytest.mark.slow
@pytest.mark.parametrize("name", FAMILIES)
def test_texts_of_a_batch_are_as_alone_in_machine_code(name: str) -> None:
    agree(name, [2, 5, 1, 4])


@pytest.mark.parametrize(
    "slots, tokens, positions, message",
    [
        ([0, 0], [1, 1], [0, 0], "every slot takes one token"),
        ([], [], [], "every slot takes one token"),
        ([0, 1], [1], [0, 0], "every slot takes one token"),
        ([2], [1], [0], "there is no slot 2: they have numbers from 0 to 1"),
        ([0], [29], [0], "there is no token 29"),
        ([0, 1], [1, 1], [0, 16], "no position 16"),
    ],
)
def test_steps_that_cannot_be(slots: list[int], tokens: list[int], positions: list[int], message: str) -> None:
    with settings.Context(DEV="PYTHON"):
        batch = Batch(made("llama", 3))
    with pytest.raises(ArgumentError, match=message):
        batch.step(slots, tokens, positions)


def test_a_batch_needs_slots() -> None:
    with settings.Context(DEV="PYTHON"), pytest.raises(ArgumentError, match="2 slots or more, and there are 1"):
        Batch(made("llama", 1))


@pytest.mark.slow
def test_greedy_tokens_of_five_texts_at_once() -> None:
    from gradlet.llm.language import load

    prompts = smollm2.REFERENCE["prompts"]
    batch = Batch(load(smollm2.path(), 128, 6).transformer)
    made = {slot: [int(batch.read(slot, prompt["prompt_ids"], 0).argmax())] for slot, prompt in enumerate(prompts)}
    for step in range(63):
        slots = [slot for slot in made if (step + slot) % 7]  # not always the same ones together
        positions = [len(prompts[slot]["prompt_ids"]) + len(made[slot]) - 1 for slot in slots]
        for slot, logits in zip(slots, batch.step(slots, [made[slot][-1] for slot in slots], positions), strict=True):
            made[slot].append(int(logits.argmax()))
    for slot, tokens in made.items():
        wanted, margins = prompts[slot]["greedy_ids"], prompts[slot]["margins"]
        apart = next((n for n, (a, b) in enumerate(zip(tokens, wanted)) if a != b), None)
        assert apart is None or margins[apart] < 0.01, f"token {apart} of text {slot}"
    assert len(batch._steps[4].captures) == 1


@pytest.mark.parametrize(
    ("count", "positions", "wanted"),
    [
        (12, 512, [8, 8]),
        (36, 512, [32, 8]),
        (3, 512, [1, 1, 1]),
        (128, 512, [256]),
        (16, 20, [8, 8]),
        (12, 12, [8] + [1] * 4),
    ],
)
def test_a_prompt_takes_few_steps(count: int, positions: int, wanted: list[int]) -> None:
    """Chunks that are half full at least, where there is room for them."""
    model = Transformer.__new__(Transformer)
    model.positions = positions
    done, found = 0, []
    while done < count:
        found.append(model.chunk(count - done, done))
        done += found[-1]
    assert found == wanted


def test_a_step_of_more_texts_takes_as_many_launches() -> None:
    """All keys are written before any are read: what the texts do is independent, and shares launches."""
    batch = Batch(made("llama", 9, head_dim=64, num_hidden_layers=1))
    counts = []
    for size in (2, 4, 8):
        for position in range(4):
            before = GlobalCounters.kernels
            batch.step(list(range(size)), [1] * size, [position] * size)
        counts.append(GlobalCounters.kernels - before)
    assert max(counts) - min(counts) <= 3, counts
