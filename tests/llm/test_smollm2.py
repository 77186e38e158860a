"""A real model: the tokens that its weights in float32 choose, from weights that stay quantised."""

from __future__ import annotations

import numpy as np
import pytest

from gradlet.io import gguf
from gradlet.llm import config, weights
from gradlet.llm.model import Transformer
from gradlet.nn.quantized import QuantizedWeight
from gradlet.runtime.counters import GlobalCounters
from tests.llm import smollm2

pytestmark = pytest.mark.slow
MARGIN = 0.01  # of the two best logits: below it, rounding decides
CONTEXT = 128


@pytest.fixture(scope="module")
def model() -> Transformer:
    path = smollm2.path()
    before = GlobalCounters.mem_used
    file = gguf.File(path)
    found = config.from_gguf(file.metadata)
    made = Transformer(found, weights.from_gguf(file, found), CONTEXT)
    del file
    # Keys and values of 30 layers with 3 heads of 64 features, in float32.
    cache = 2 * 30 * 3 * CONTEXT * 64 * 4
    assert GlobalCounters.mem_used - before <= 1.3 * path.stat().st_size + cache
    return made


def test_weights_stay_quantised(model: Transformer) -> None:
    kinds = [layer.attention.all_three.matrix.type for layer in model.layers]
    assert kinds == ["Q4_1"] * 30 and isinstance(model.head, QuantizedWeight) and model.head is model.embedding


@pytest.mark.parametrize("number", range(len(smollm2.REFERENCE["prompts"])))
def test_greedy_tokens(model: Transformer, number: int) -> None:
    reference = smollm2.REFERENCE["prompts"][number]
    before = GlobalCounters.mem_used
    logits = model.step(reference["prompt_ids"], 0).numpy()
    np.testing.assert_allclose(logits[:8], reference["first_logits_0_8"], atol=0.02)
    position = len(reference["prompt_ids"])
    for step, (wanted, margin) in enumerate(zip(reference["greedy_ids"], reference["margins"], strict=True)):
        chosen = int(logits.argmax())
        if chosen != wanted:
            assert margin < MARGIN, f"token {step} is {chosen}, not {wanted}"
            break
        logits = model.step([chosen], position).numpy()
        position += 1
    # Nothing is kept from step to step but the logits.
    assert GlobalCounters.mem_used - before < 60 * 2**20
    assert len(model._step.captures) <= 3


def test_a_chat_in_the_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("tokenizers", reason="the package tokenizers is not installed")
    from gradlet.cli.main import main

    question = ["--prompt", "What is the capital of France?", "--limit", "20", "--context", str(CONTEXT)]
    assert main(["llm", str(smollm2.path()), *question]) == 0
    out, errors = capsys.readouterr()
    assert "Paris" in out and "30 layers of width 576" in errors and "tokens/s" in errors


def test_a_text_that_begins_the_same_is_not_read_again(model: Transformer) -> None:
    from gradlet.llm.language import LanguageModel
    from gradlet.llm.tokenizer import Tokenizer

    talk = LanguageModel(model, Tokenizer(None, None, frozenset(), False), None, "test")
    tokens = smollm2.REFERENCE["prompts"][0]["prompt_ids"]
    wanted = smollm2.REFERENCE["prompts"][0]["greedy_ids"][:8]
    assert list(talk.generate(tokens, limit=8)) == wanted
    steps: list[int] = []
    whole = model.step
    model.step = lambda part, start: (steps.append(len(part)), whole(part, start))[1]  # type: ignore[method-assign]
    try:
        assert list(talk.generate([*tokens, *wanted[:4]], limit=4)) == wanted[4:]
    finally:
        del model.step
    assert steps[0] == 1
