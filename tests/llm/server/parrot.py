"""A model of a few lines in place of a real one: after `|` it says again what stands before it, and then ends."""

from __future__ import annotations

import asyncio
import json
import threading
import time
from collections.abc import Iterator, Sequence
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from gradlet.base.errors import GradletError
from gradlet.llm.language import LanguageModel
from gradlet.llm.server.engine import Engine
from gradlet.llm.tokenizer import Tokenizer

END, VOCABULARY, ROOM = 256, 257, 200
TEMPLATE = "{% for message in messages %}{{ message['content'] }}{% endfor %}|"


def tokenizer() -> Tokenizer:
    """A token a byte, and one that ends answers."""
    package = pytest.importorskip("tokenizers", reason="the package tokenizers is not installed")
    pytest.importorskip("jinja2", reason="the package jinja2 is not installed")
    from gradlet.llm.server.text import _BYTES

    inner = package.Tokenizer(package.models.BPE({**_BYTES, "<end>": END}, []))
    inner.pre_tokenizer = package.pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    inner.decoder = package.decoders.ByteLevel()
    inner.add_special_tokens([package.AddedToken("<end>", special=True)])
    return Tokenizer(inner, None, frozenset({END}), False)


class Parrot:
    """What `Batch` is for a real model. Answers depend on all of a slot's text, so a mistaken slot shows.

    Attributes:
        pace: seconds of each step.
        rows: how many rows each step had.
        parts: how many tokens were read at a time.
    """

    def __init__(self, slots: int, pace: float = 0.0) -> None:
        self.slots, self.pace = slots, pace
        self.texts: list[list[int]] = [[] for _ in range(slots)]
        self.rows: list[int] = []
        self.parts: list[int] = []
        self.broken = False

    def warm(self) -> Iterator[None]:
        yield from (None, None)

    def read(self, slot: int, tokens: Sequence[int], start: int) -> Any:
        self.parts.append(len(tokens))
        return self._go_on(slot, tokens, start)

    def step(self, slots: Sequence[int], tokens: Sequence[int], positions: Sequence[int]) -> list[Any]:
        if self.broken:
            raise GradletError("the parrot is ill")
        assert len(set(slots)) == len(slots)
        time.sleep(self.pace)
        self.rows.append(len(slots))
        return [self._go_on(slot, [token], start) for slot, token, start in zip(slots, tokens, positions, strict=True)]

    def embed(self, slot: int, tokens: Sequence[int], start: int) -> Any:
        self._go_on(slot, tokens, start)
        return np.bincount(tokens, minlength=8)[:8].astype(np.float32) + 1

    def _go_on(self, slot: int, tokens: Sequence[int], start: int) -> Any:
        text = self.texts[slot]
        assert start <= len(text) and start + len(tokens) <= ROOM
        text[start:] = tokens
        said = bytes(token for token in text if token < END)
        before, _, made = said.partition(b"|")
        logits = np.arange(VOCABULARY, dtype=np.float32) / VOCABULARY
        logits[before[len(made)] if len(made) < len(before) else END] = 20.0
        return logits


def engine(slots: int = 2, waiting: int = 3, pace: float = 0.0) -> Engine:
    """An engine that runs a parrot."""
    facts = SimpleNamespace(positions=ROOM, config=SimpleNamespace(vocabulary=VOCABULARY, width=8))
    model = LanguageModel(facts, tokenizer(), TEMPLATE, "parrot")  # type: ignore[arg-type]
    return Engine(model, waiting, Parrot(slots, pace))


class Client:
    """Calls an ASGI application, without sockets."""

    def __init__(self, app: Any) -> None:
        self.app = app

    async def call(
        self, method: str, path: str, body: Any = None, headers: dict[str, str] | None = None, gone_after: float = 1e9
    ) -> tuple[int, dict[str, str], bytes]:
        """Status, headers and body of an answer; the client goes after so many seconds."""
        raw = body if isinstance(body, bytes) else b"" if body is None else json.dumps(body).encode()
        names = {"host": "localhost:80", **(headers or {})}
        scope = {
            "type": "http", "asgi": {"version": "3.0"}, "http_version": "1.1", "method": method, "path": path,
            "raw_path": path.encode(), "query_string": b"", "root_path": "", "scheme": "http", "client": ("here", 1),
            "server": ("here", 80), "headers": [(k.encode(), v.encode()) for k, v in names.items()],
        }  # fmt: skip
        parts = [raw[n : n + 65536] for n in range(0, len(raw), 65536)] or [b""]
        sent: list[dict[str, Any]] = []

        async def receive() -> dict[str, Any]:
            if parts:
                return {"type": "http.request", "body": parts.pop(0), "more_body": bool(parts)}
            await asyncio.sleep(gone_after)
            return {"type": "http.disconnect"}

        async def send(message: dict[str, Any]) -> None:
            sent.append(message)

        await self.app(scope, receive, send)
        if not sent:
            return 0, {}, b""
        head = {key.decode(): value.decode() for key, value in sent[0]["headers"]}
        return sent[0]["status"], head, b"".join(message.get("body", b"") for message in sent[1:])

    async def post(self, path: str, body: Any, **more: Any) -> tuple[int, Any]:
        """Status and JSON of an answer, or its events."""
        status, headers, raw = await self.call("POST", path, body, **more)
        if headers.get("content-type", "").startswith("text/event-stream"):
            lines = [part.removeprefix(b"data: ") for part in raw.split(b"\n\n") if part]
            assert lines[-1] == b"[DONE]" or b'"error"' in lines[-1]
            return status, [json.loads(line) for line in lines if line != b"[DONE]"]
        return status, json.loads(raw) if raw else None


def running(name: str = "engine") -> list[threading.Thread]:
    """Threads of engines."""
    return [thread for thread in threading.enumerate() if thread.name == name]
