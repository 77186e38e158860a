"""Tokenizers from GGUF metadata: bytes merged in pairs, SentencePiece's pieces, special tokens, damaged ones."""

from __future__ import annotations

from typing import Any

import pytest

from gradlet.base.errors import ArgumentError, FileFormatError
from gradlet.llm import tokenizer

pytest.importorskip("tokenizers", reason="the package tokenizers is not installed")


def byte_names() -> list[str]:
    from tokenizers.pre_tokenizers import ByteLevel

    return sorted(ByteLevel.alphabet())


def byte_pairs(**more: Any) -> dict[str, Any]:
    names = ["<s>", "<|im_end|>", *byte_names(), "he", "ll", "hell", "hello", "Ġhello", "12"]
    return {
        "tokenizer.ggml.model": "gpt2", "tokenizer.ggml.tokens": names,
        "tokenizer.ggml.token_type": [3, 3] + [1] * (len(names) - 2),
        "tokenizer.ggml.merges": ["h e", "l l", "he ll", "hell o", "Ġ hello", "1 2"],
        "tokenizer.ggml.bos_token_id": 0, "tokenizer.ggml.eos_token_id": 1, **more,
    }  # fmt: skip


def names(made: tokenizer.Tokenizer, text: str) -> list[str]:
    return [made.name(token) for token in made.encode(text)]


def test_byte_pairs() -> None:
    made = tokenizer.from_gguf(byte_pairs())
    assert names(made, "hello hello12") == ["hello", "Ġhello", "12"]
    assert names(made, "hello<|im_end|>") == ["hello", "<|im_end|>"]
    assert made.ends == {1} and not made.adds_bos
    for text in ("größer 🙂\n\ttab", "hello", "", " a  b "):
        assert made.decode(made.encode(text)) == text
    assert made.decode([0, 1]) == "" and made.decode([0, 1], special=True) == "<s><|im_end|>"


@pytest.mark.parametrize("cut, pieces", [("smollm", ["1", "2"]), ("llama-bpe", ["12"]), ("qwen2", ["1", "2"])])
def test_how_numbers_are_cut(cut: str, pieces: list[str]) -> None:
    made = tokenizer.from_gguf(byte_pairs(**{"tokenizer.ggml.pre": cut, "tokenizer.ggml.add_bos_token": False}))
    assert names(made, "12") == pieces


def test_the_token_in_front_is_there_once() -> None:
    made = tokenizer.from_gguf(byte_pairs(**{"tokenizer.ggml.add_bos_token": True}))
    assert names(made, "hello") == ["<s>", "hello"] == names(made, "<s>hello")
    assert made.encode("hello", start=False) == made.encode("hello")[1:]


def test_pieces_are_merged_by_score() -> None:
    words = ["<unk>", "<s>", "</s>", *[f"<0x{byte:02X}>" for byte in range(256)], "▁", "a", "b", "ab", "▁ab", "ba"]
    scores = [0.0] * 259 + [-9.0, -9.0, -9.0, -3.0, -4.0, -1.0]
    made = tokenizer.from_gguf({
        "tokenizer.ggml.model": "llama", "tokenizer.ggml.tokens": words, "tokenizer.ggml.scores": scores,
        "tokenizer.ggml.token_type": [2, 3, 3] + [6] * 256 + [1] * 6, "tokenizer.ggml.bos_token_id": 1,
        "tokenizer.ggml.eos_token_id": 2,
    })  # fmt: skip
    assert names(made, "ab") == ["<s>", "▁ab"]
    assert names(made, "aba") == ["<s>", "▁", "a", "ba"]  # the better score first
    assert names(made, "é") == ["<s>", "▁", "<0xC3>", "<0xA9>"]
    assert made.decode(made.encode("ab é ba")) == "ab é ba"


@pytest.mark.parametrize(
    "change, message",
    [
        ({"tokenizer.ggml.model": "bert"}, "kind 'bert' are not known"),
        ({"tokenizer.ggml.tokens": []}, "no vocabulary"),
        ({"tokenizer.ggml.token_type": [1]}, "no vocabulary"),
        ({"tokenizer.ggml.merges": None}, "merges are missing"),
        ({"tokenizer.ggml.merges": ["a b c"]}, "merges are missing or damaged"),
        ({"tokenizer.ggml.merges": ["h zz"]}, "merges do not fit"),
        ({"tokenizer.ggml.model": "llama"}, "scores are missing"),
    ],
)
def test_damaged_vocabularies_are_refused(change: dict[str, Any], message: str) -> None:
    with pytest.raises(FileFormatError, match=message):
        tokenizer.from_gguf(byte_pairs(**change))
    with pytest.raises(ArgumentError, match="text must be a str"):
        tokenizer.from_gguf(byte_pairs()).encode(3)  # type: ignore[arg-type]
