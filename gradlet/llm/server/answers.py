"""What answers look like: the objects of OpenAI's API, whole and in parts."""

from __future__ import annotations

import base64
import secrets
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from gradlet.llm.server.engine import Piece
from gradlet.llm.server.text import token_text
from gradlet.llm.tokenizer import Tokenizer


@dataclass
class Choice:
    """One answer as it grows."""

    text: str = ""
    notes: list[Any] = field(default_factory=list)
    made: int = 0
    finish: str = ""

    def add(self, piece: Piece) -> None:
        """Take a piece."""
        self.text += piece.text
        self.notes += piece.notes
        self.made, self.finish = piece.made, piece.finish


class Format:
    """Objects of one answer.

    Args:
        model: its name.
        tokenizer: for the texts of tokens.
        is_chat: a chat completion, not a completion.
        has_notes: log-probabilities are asked for.
    """

    def __init__(self, model: str, tokenizer: Tokenizer, is_chat: bool, has_notes: bool) -> None:
        self.tokenizer, self.is_chat, self.has_notes = tokenizer, is_chat, has_notes
        prefix, kind = ("chatcmpl", "chat.completion") if is_chat else ("cmpl", "text_completion")
        self._kind = kind
        self._head = {"id": f"{prefix}-{secrets.token_hex(12)}", "created": int(time.time()), "model": model}

    def whole(self, choices: Sequence[Choice], read: int) -> dict[str, Any]:
        """The answer of a request that does not stream."""
        listed = []
        for number, choice in enumerate(choices):
            body: dict[str, Any] = {"index": number, "finish_reason": choice.finish or None}
            body["logprobs"] = self._logprobs(choice.notes, 0)
            if self.is_chat:
                body["message"] = {"role": "assistant", "content": choice.text, "refusal": None}
            else:
                body["text"] = choice.text
            listed.append(body)
        usage = self.usage(choices, read)
        return {**self._head, "object": self._kind, "choices": listed, "usage": usage}

    def part(self, number: int, piece: Piece, before: int = 0, is_first: bool = False) -> dict[str, Any]:
        """One event of a request that streams; `before` characters have come."""
        body: dict[str, Any] = {"index": number, "finish_reason": piece.finish or None}
        body["logprobs"] = self._logprobs(piece.notes, before) if piece.notes else None
        if self.is_chat:
            delta: dict[str, Any] = {"role": "assistant", "content": ""} if is_first else {}
            if piece.text or (piece.notes and not is_first):
                delta["content"] = piece.text
            body["delta"] = delta
        else:
            body["text"] = piece.text
        return {**self._head, "object": "chat.completion.chunk" if self.is_chat else self._kind, "choices": [body]}

    def count(self, choices: Sequence[Choice], read: int) -> dict[str, Any]:
        """The event that says how many tokens there were."""
        kind = "chat.completion.chunk" if self.is_chat else self._kind
        return {**self._head, "object": kind, "choices": [], "usage": self.usage(choices, read)}

    @staticmethod
    def usage(choices: Sequence[Choice], read: int) -> dict[str, int]:
        """Tokens of prompts and answers."""
        made = sum(choice.made for choice in choices)
        return {"prompt_tokens": read, "completion_tokens": made, "total_tokens": read + made}

    def _logprobs(self, notes: Sequence[Any], before: int) -> dict[str, Any] | None:
        if not self.has_notes:
            return None
        if self.is_chat:
            return {"content": [self._entry(*note) for note in notes], "refusal": None}
        texts = [token_text(self.tokenizer, token)[0] for token, *_ in notes]
        places = []
        for text in texts:
            places.append(before)
            before += len(text)
        tops = [{token_text(self.tokenizer, token)[0]: value for token, value in likely} for _, _, likely in notes]
        values = [value for _, value, _ in notes]
        return {"tokens": texts, "token_logprobs": values, "top_logprobs": tops, "text_offset": places}

    def _entry(self, token: int, value: float, likely: Sequence[tuple[int, float]]) -> dict[str, Any]:
        return {
            **self._token(token, value),
            "top_logprobs": [self._token(*other) for other in likely],
        }

    def _token(self, token: int, value: float) -> dict[str, Any]:
        text, raw = token_text(self.tokenizer, token)
        # Numbers that JSON has: what cannot be has the lowest that the API knows.
        return {"token": text, "logprob": max(value, -9999.0), "bytes": list(raw)}


def embeddings(model: str, vectors: Sequence[Any], read: int, form: str) -> dict[str, Any]:
    """The answer of a request for embeddings, from NumPy vectors in float32."""
    data = []
    for number, vector in enumerate(vectors):
        value = vector.tolist() if form == "float" else base64.b64encode(vector.astype("<f4").tobytes()).decode()
        data.append({"object": "embedding", "index": number, "embedding": value})
    usage = {"prompt_tokens": read, "total_tokens": read}
    return {"object": "list", "data": data, "model": model, "usage": usage}


def models(name: str, created: int, facts: Mapping[str, Any]) -> dict[str, Any]:
    """The list of models: one."""
    return {"object": "list", "data": [model(name, created, facts)]}


def model(name: str, created: int, facts: Mapping[str, Any]) -> dict[str, Any]:
    """One model."""
    return {"id": name, "object": "model", "created": created, "owned_by": "gradlet", **facts}
