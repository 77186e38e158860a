"""Which tokens may be drawn, and how often; chats as templates write them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from gradlet.base.errors import ArgumentError, FileFormatError
from gradlet.llm.sample import Sampler, Sampling, candidates

LOGITS = np.log(np.array([0.1, 0.4, 0.05, 0.25, 0.2], np.float32))


@pytest.mark.parametrize(
    "how, left",
    [
        ({}, [1, 3, 4, 0, 2]),
        ({"top_k": 2}, [1, 3]),
        ({"top_k": 9}, [1, 3, 4, 0, 2]),
        ({"top_p": 0.6}, [1, 3]),
        ({"top_p": 0.0}, [1]),
        ({"min_p": 0.45}, [1, 3, 4]),
        ({"min_p": 0.45, "top_k": 2}, [1, 3]),
        ({"top_p": 0.8, "min_p": 0.6}, [1, 3]),
    ],
)
def test_what_may_be_drawn(how: dict[str, Any], left: list[int]) -> None:
    numbers, shares = candidates(LOGITS, Sampling(1.0, **how))
    assert numbers.tolist() == left
    whole = np.exp(LOGITS)[left]
    np.testing.assert_allclose(shares, whole / whole.sum(), rtol=1e-5)


def test_temperature_and_seed() -> None:
    assert Sampler(Sampling()).choose(LOGITS) == 1
    sharp = candidates(LOGITS, Sampling(0.5))[1]
    np.testing.assert_allclose(sharp[0] / sharp[1], (0.4 / 0.25) ** 2, rtol=1e-5)
    draws = [[Sampler(Sampling(1.0, seed=seed)).choose(LOGITS) for _ in range(3)] for seed in (1, 1)]
    assert draws[0] == draws[1]
    one = Sampler(Sampling(1.0, seed=0))
    counts = np.bincount([one.choose(LOGITS) for _ in range(4000)], minlength=5) / 4000
    np.testing.assert_allclose(counts, np.exp(LOGITS), atol=0.03)


def test_tokens_that_were_there_become_less_likely() -> None:
    logits = np.array([2.0, 1.5, -1.0], np.float32)
    assert Sampler(Sampling(repetition_penalty=2.0)).choose(logits, [0, 0]) == 1
    assert Sampler(Sampling(repetition_penalty=2.0)).choose(np.array([-1.0, -1.5], np.float32), [0]) == 1
    assert logits.tolist() == [2.0, 1.5, -1.0]


@pytest.mark.parametrize(
    "name, value", [("temperature", -1), ("top_p", 1.5), ("top_k", True), ("seed", -1), ("seed", 1.5)]
)
def test_senseless_settings_are_refused(name: str, value: Any) -> None:
    with pytest.raises(ArgumentError, match=f"sampling: {name}"):
        Sampling(**{name: value})


def test_chats() -> None:
    pytest.importorskip("jinja2", reason="jinja2, which templates need, is not installed")
    from gradlet.llm.chat import Template

    messages = [{"role": "user", "content": "Hi"}]
    assert Template(None).render(messages) == "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n"
    assert Template(None).render(messages, answer=False) == "<|im_start|>user\nHi<|im_end|>\n"
    own = Template("{{ bos_token }}{% for m in messages %}{% if m.role == 'tool' %}{{ raise_exception('no tools') }}"
                   "{% endif %}[{{ m.content }}]{% endfor %}")  # fmt: skip
    assert own.render(messages, bos_token="<s>") == "<s>[Hi]"
    with pytest.raises(ArgumentError, match="template refuses them: no tools"):
        own.render([{"role": "tool", "content": ""}])
    with pytest.raises(ArgumentError, match="needs content and a role"):
        own.render([{"role": "somebody", "content": ""}])
    with pytest.raises(FileFormatError, match="cannot be read"):
        Template("{% if %}")
    with pytest.raises(ArgumentError, match="refuses"):
        Template("{{ ''.__class__.__mro__[1].__subclasses__() }}").render(messages)
