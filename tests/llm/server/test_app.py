"""Requests and answers of the API, without sockets and with a model that repeats what it hears."""

from __future__ import annotations

import asyncio
import base64
import json
import random
from collections.abc import Awaitable, Callable, Iterator
from typing import Any

import numpy as np
import pytest

from gradlet.llm.server.app import Options, Server
from tests.llm.server import parrot
from tests.llm.server.parrot import Client

CHAT, TEXT, VECTORS = "/v1/chat/completions", "/v1/completions", "/v1/embeddings"
HOSTS = frozenset({"localhost"})
Run = Callable[[Callable[[Client], Awaitable[Any]]], Any]


@pytest.fixture(scope="module")
def run() -> Iterator[Run]:
    engine = parrot.engine(slots=2, waiting=30)
    engine.start()

    def go(test: Callable[[Client], Awaitable[Any]]) -> Any:
        app = Server(engine.model, engine, Options("parrot", None, HOSTS, 50_000))
        return asyncio.run(asyncio.wait_for(test(Client(app)), 60))

    yield go
    engine.close()
    engine.join()


def user(text: Any, **more: Any) -> dict[str, Any]:
    return {"model": "parrot", "messages": [{"role": "user", "content": text}], "temperature": 0, **more}


def test_a_chat(run: Run) -> None:
    status, answer = run(lambda client: client.post(CHAT, user("Hello, é🙂!")))
    assert status == 200 and answer["object"] == "chat.completion" and answer["model"] == "parrot"
    choice = answer["choices"][0]
    assert choice["message"] == {"role": "assistant", "content": "Hello, é🙂!", "refusal": None}
    assert choice["finish_reason"] == "stop" and choice["logprobs"] is None
    count = len("Hello, é🙂!".encode())
    assert answer["usage"] == {
        "prompt_tokens": count + 1, "completion_tokens": count + 1, "total_tokens": 2 * count + 2,
    }  # fmt: skip
    parts = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]
    assert run(lambda client: client.post(CHAT, user(parts)))[1]["choices"][0]["message"]["content"] == "ab"


def test_a_chat_in_parts(run: Run) -> None:
    asked = user("say 🙂 this", stream=True, stream_options={"include_usage": True}, n=2, stop=["is", "zz"])
    status, events = run(lambda client: client.post(CHAT, asked))
    assert status == 200 and len({event["id"] for event in events}) == 1
    said, ends = {0: "", 1: ""}, {}
    for event in events[:-1]:
        (choice,) = event["choices"]
        assert event["object"] == "chat.completion.chunk" and event["usage"] is None
        said[choice["index"]] += choice["delta"].get("content", "")
        assert "is" not in choice["delta"].get("content", "")
        if choice["finish_reason"]:
            ends[choice["index"]] = choice["finish_reason"]
    assert said == {0: "say 🙂 th", 1: "say 🙂 th"} and ends == {0: "stop", 1: "stop"}
    assert events[0]["choices"][0]["delta"] == {"role": "assistant", "content": ""}
    assert events[-1]["choices"] == [] and events[-1]["usage"]["prompt_tokens"] == len("say 🙂 this|".encode())


def test_probabilities(run: Run) -> None:
    for streams in (False, True):
        asked = user("hé", logprobs=True, top_logprobs=2, stream=streams)
        _, answer = run(lambda client: client.post(CHAT, asked))
        if streams:
            entries = [e for event in answer for e in (event["choices"][0]["logprobs"] or {}).get("content", [])]
        else:
            entries = answer["choices"][0]["logprobs"]["content"]
        assert [entry["bytes"] for entry in entries] == [[104], [0xC3], [0xA9]]
        assert entries[0]["token"] == "h" and all(len(entry["top_logprobs"]) == 2 for entry in entries)
        assert all(entry["top_logprobs"][0]["logprob"] == entry["logprob"] < 0 for entry in entries)


def test_completions(run: Run) -> None:
    asked = {"prompt": ["ab|", "cde|"], "n": 2, "echo": True, "temperature": 0}
    _, answer = run(lambda client: client.post(TEXT, asked))
    assert [choice["text"] for choice in answer["choices"]] == ["ab|ab", "ab|ab", "cde|cde", "cde|cde"]
    assert [choice["index"] for choice in answer["choices"]] == [0, 1, 2, 3]
    assert answer["usage"]["completion_tokens"] == 2 * (3 + 4)
    _, answer = run(lambda client: client.post(TEXT, {"prompt": [*b"xy|"], "logprobs": 1, "temperature": 0}))
    (choice,) = answer["choices"]
    assert choice["text"] == "xy" and choice["logprobs"]["tokens"] == ["x", "y"]
    assert choice["logprobs"]["text_offset"] == [0, 1] and list(choice["logprobs"]["top_logprobs"][0]) == ["x"]
    _, events = run(lambda client: client.post(TEXT, {"prompt": "ab|", "stream": True, "echo": True, "temperature": 0}))
    assert "".join(event["choices"][0]["text"] for event in events) == "ab|ab"


def test_embeddings(run: Run) -> None:
    _, answer = run(lambda client: client.post(VECTORS, {"input": ["\x01\x01", "\x02"], "model": "parrot"}))
    one, two = (np.array(item["embedding"]) for item in answer["data"])
    np.testing.assert_allclose(one, np.array([1, 3, 1, 1, 1, 1, 1, 1]) / 4, rtol=1e-6)
    assert two[2] == two.max() and answer["usage"] == {"prompt_tokens": 3, "total_tokens": 3}
    _, coded = run(lambda c: c.post(VECTORS, {"input": "\x01\x01", "encoding_format": "base64", "dimensions": 2}))
    raw = np.frombuffer(base64.b64decode(coded["data"][0]["embedding"]), np.float32)
    np.testing.assert_allclose(raw, np.array([1, 3]) / 10**0.5, rtol=1e-6)


def test_what_the_server_says_of_itself(run: Run) -> None:
    async def test(client: Client) -> None:
        assert (await client.call("GET", "/health"))[0] == 200
        listed = json.loads((await client.call("GET", "/v1/models"))[2])
        assert [model["id"] for model in listed["data"]] == ["parrot"]
        assert json.loads((await client.call("GET", "/v1/models/parrot"))[2])["object"] == "model"
        assert (await client.call("GET", "/v1/models/other"))[0] == 404
        status, headers, page = await client.call("GET", "/")
        assert status == 200 and "default-src 'none'" in headers["content-security-policy"]
        assert b"http://" not in page and b"https://" not in page and b"src=" not in page

    run(test)


BAD: list[tuple[str, Any, int, str | None]] = [
    (CHAT, b"", 400, None),
    (CHAT, b"{", 400, None),
    (CHAT, b'{"a": NaN}', 400, None),
    (CHAT, b"[" * 100_000, 413, None),
    (CHAT, b"[" * 40_000, 400, None),
    (CHAT, b"\xff\xfe", 400, None),
    (CHAT, [], 400, None),
    (CHAT, {}, 400, "messages"),
    (CHAT, {"messages": []}, 400, "messages"),
    (CHAT, {"messages": [1]}, 400, "messages[0]"),
    (CHAT, {"messages": [{"role": "king", "content": ""}]}, 400, "messages[0].role"),
    (CHAT, user(None), 400, "messages[0].content"),
    (CHAT, user([{"type": "image_url"}]), 400, "messages[0].content[0]"),
    (CHAT, user("\ud800"), 400, "messages[0].content"),
    (CHAT, user("a" * 300), 400, "messages"),
    (CHAT, user("a", model="gpt"), 404, "model"),
    (CHAT, user("a", model=7), 400, "model"),
    (CHAT, user("a", temperature="hot"), 400, "temperature"),
    (CHAT, user("a", temperature=3), 400, "temperature"),
    (CHAT, user("a", temperature=True), 400, "temperature"),
    (CHAT, user("a", max_tokens=0), 400, "max_tokens"),
    (CHAT, user("a", max_completion_tokens=1.5), 400, "max_completion_tokens"),
    (CHAT, user("a", n=10**30), 400, "n"),
    (CHAT, user("a", seed=2**64), 400, "seed"),
    (CHAT, user("a", stop=[""]), 400, "stop"),
    (CHAT, user("a", stop=[1]), 400, "stop[0]"),
    (CHAT, user("a", stream="yes"), 400, "stream"),
    (CHAT, user("a", stream_options={}), 400, "stream_options"),
    (CHAT, user("a", top_logprobs=2), 400, "top_logprobs"),
    (CHAT, user("a", logit_bias={"-1": 1}), 400, "logit_bias"),
    (CHAT, user("a", logit_bias={"257": 1}), 400, "logit_bias"),
    (CHAT, user("a", tools=[{}]), 400, "tools"),
    (CHAT, user("a", response_format={"type": "json_object"}), 400, "response_format"),
    (CHAT, user("a", nonsense=1), 400, "nonsense"),
    (TEXT, {}, 400, "prompt"),
    (TEXT, {"prompt": ""}, 400, "prompt"),
    (TEXT, {"prompt": [1, "a"]}, 400, "prompt"),
    (TEXT, {"prompt": [-1]}, 400, "prompt"),
    (TEXT, {"prompt": [257]}, 400, "prompt"),
    (TEXT, {"prompt": ["a"] * 17}, 400, "prompt"),
    (TEXT, {"prompt": ["a"] * 4, "n": 5}, 400, "n"),
    (TEXT, {"prompt": "a", "logprobs": 21}, 400, "logprobs"),
    (TEXT, {"prompt": "a", "echo": True, "logprobs": 1}, 400, "echo"),
    (TEXT, {"prompt": "a", "suffix": "b"}, 400, "suffix"),
    (VECTORS, {"input": []}, 400, "input"),
    (VECTORS, {"input": "a", "encoding_format": "zip"}, 400, "encoding_format"),
    (VECTORS, {"input": "a", "dimensions": 9}, 400, "dimensions"),
]  # fmt: skip


def test_mistakes_are_named(run: Run) -> None:
    async def test(client: Client) -> None:
        for path, body, wanted, param in BAD:
            status, answer = await client.post(path, body)
            error = answer["error"]
            assert (status, error["param"]) == (wanted, param), (path, body, answer)
            assert set(error) == {"message", "type", "param", "code"} and error["message"]
        assert (await client.call("GET", "/nowhere"))[0] == 404
        assert (await client.call("GET", CHAT))[0] == 405

    run(test)


def test_what_means_nothing_is_let_through(run: Run) -> None:
    more = {"user": "me", "tools": [], "response_format": {"type": "text"}, "stop": None, "metadata": {"a": "b"}}
    assert run(lambda client: client.post(CHAT, user("a", **more)))[0] == 200


def test_keys_and_names() -> None:
    engine = parrot.engine()
    client = Client(Server(engine.model, engine, Options("parrot", "sécret", HOSTS)))

    async def test() -> None:
        for given in ("", "Bearer", "Bearer wrong", "Basic sécret", "Bearer sécret "):
            status, headers, raw = await client.call("GET", "/v1/models", headers={"authorization": given})
            right = given.startswith("Bearer s")
            assert status == (200 if right else 401), given
            if not right:
                assert json.loads(raw)["error"]["code"] == "invalid_api_key" and "www-authenticate" in headers
        assert (await client.post(CHAT, b"{"))[0] == 401
        assert (await client.call("GET", "/health"))[0] == 200 == (await client.call("GET", "/"))[0]
        assert (await client.call("GET", "/health", headers={"host": "evil.example"}))[0] == 403
        assert (await client.call("GET", "/health", headers={"host": "LOCALHOST:1234"}))[0] == 200

    asyncio.run(test())


def test_too_many_requests_and_clients_that_go() -> None:
    engine = parrot.engine(slots=1, waiting=1, pace=0.01)
    engine.start()
    client = Client(Server(engine.model, engine, Options("parrot")))

    async def test() -> None:
        long = user("r" * 150)
        gone = asyncio.create_task(client.call("POST", CHAT, {**long, "stream": True}, gone_after=0.2))
        await asyncio.sleep(0.1)
        waits = asyncio.create_task(client.call("POST", CHAT, long, gone_after=0.1))
        await asyncio.sleep(0.02)
        status, headers, raw = await client.call("POST", CHAT, user("s"))
        assert status == 429 and int(headers["retry-after"]) >= 1
        assert json.loads(raw)["error"]["code"] == "queue_full"
        status, _, raw = await gone
        assert status == 200 and b"[DONE]" not in raw and (await waits)[0] == 0
        for _ in range(500):
            if engine.state() == {"slots": 1, "running": 0, "waiting": 0}:
                break
            await asyncio.sleep(0.01)
        assert sum(engine.batch.rows) < 140
        assert (await client.post(CHAT, user("t")))[1]["choices"][0]["message"]["content"] == "t"
        streams = asyncio.create_task(client.post(CHAT, {**long, "stream": True}))
        await asyncio.sleep(0.1)
        engine.close()
        _, events = await streams
        assert "shutting down" in events[-1]["error"]["message"]
        assert (await client.post(CHAT, user("u")))[0] == 503

    asyncio.run(asyncio.wait_for(test(), 60))
    engine.join()


def _value(random_: random.Random, depth: int = 0) -> Any:
    kind = random_.randrange(9 if depth < 3 else 7)
    if kind < 7:
        odd = ["\ud800", "", "a", "💥" * 40, "a" * 500, "1", 1e308, -1, 2**70, 0, 1, 0.5, True, False, None, "|"]
        return random_.choice(odd)
    items = [_value(random_, depth + 1) for _ in range(random_.randrange(4))]
    return items if kind == 7 else {str(random_.choice(["role", "content", "type", "text", "1"])): i for i in items}


def test_nonsense_keeps_it_up(run: Run) -> None:
    """Requests with fields of any kind, and any bytes: an answer each time, and never a fault of the server."""
    names = [
        "model", "messages", "prompt", "input", "temperature", "top_p", "top_k", "min_p", "n", "seed", "stop", "stream",
        "stream_options", "logprobs", "top_logprobs", "logit_bias", "max_tokens", "frequency_penalty", "echo", "tools",
        "encoding_format", "dimensions", "presence_penalty", "repetition_penalty", "best_of", "user", "x\ud800",
    ]  # fmt: skip
    draws = random.Random(5)
    seen: dict[int, int] = {}

    async def test(client: Client) -> None:
        for number in range(300):
            path = draws.choice((CHAT, TEXT, VECTORS))
            body: Any = {CHAT: user("ab"), TEXT: {"prompt": "ab|"}, VECTORS: {"input": "ab"}}[path]
            for _ in range(draws.randrange(1, 4)):
                body[draws.choice(names)] = _value(draws)
            if number % 5 == 0:
                raw = bytearray(json.dumps(body).encode())
                for _ in range(draws.randrange(1, 6)):
                    raw[draws.randrange(len(raw))] = draws.randrange(256)
                body = bytes(raw)
            status, _, raw_answer = await client.call("POST", path, body)
            assert status in (200, 400, 404), (body, raw_answer)
            seen[status] = seen.get(status, 0) + 1
        assert (await client.post(CHAT, user("still here")))[0] == 200

    run(test)
    assert seen[200] > 5 and seen[400] > 100
