"""`gradlet serve` as its users meet it: a process, the `openai` package, a crowd, a browser, signals."""

from __future__ import annotations

import concurrent.futures
import http.client
import json
import os
import random
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.llm import smollm2
from tests.llm.server.browser import Browser

pytest.importorskip("uvicorn", reason="the package uvicorn is not installed")
pytest.importorskip("tokenizers", reason="the package tokenizers is not installed")

pytestmark = pytest.mark.slow
QUESTION = [{"role": "user", "content": "What is the capital of France?"}]
ROOT = Path(__file__).parents[3]


class Process:
    """A server of its own."""

    def __init__(self, *options: str) -> None:
        command = [sys.executable, "-m", "gradlet", "serve", str(smollm2.path()), "--port", "0", *options]
        self.process = subprocess.Popen(
            command, stderr=subprocess.PIPE, text=True, cwd=ROOT, env={**os.environ, "PYTHONUNBUFFERED": "1"}
        )
        assert self.process.stderr is not None
        self.said = ""
        while not (found := re.search(r"serving http://127\.0\.0\.1:(\d+)\n", self.said)):
            line = self.process.stderr.readline()
            assert line, self.said
            self.said += line
        self.port = int(found[1])

    def call(self, method: str, path: str, body: Any = None, key: str = "") -> tuple[int, Any]:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=300)
        raw = body if isinstance(body, bytes) or body is None else json.dumps(body).encode()
        try:
            connection.request(method, path, raw, {"authorization": f"Bearer {key}"} if key else {})
            answer = connection.getresponse()
            return answer.status, json.loads(answer.read())
        finally:
            connection.close()

    def health(self) -> dict[str, Any]:
        return self.call("GET", "/health")[1]

    def end(self, number: int = signal.SIGTERM) -> int:
        self.process.send_signal(number)
        return self.process.wait(60)


@pytest.fixture(scope="module")
def server() -> Iterator[Process]:
    made = Process("--slots", "6", "--context", "512", "--name", "smol", "--queue", "300")
    yield made
    assert made.end() == 0


def until_idle(server: Process) -> None:
    end = time.monotonic() + 120
    while server.health() != {"status": "ok", "slots": 6, "running": 0, "waiting": 0}:
        assert time.monotonic() < end
        time.sleep(0.05)


def test_the_client_of_openai(server: Process) -> None:
    openai = pytest.importorskip("openai", reason="the package openai is not installed")
    client = openai.OpenAI(base_url=f"http://127.0.0.1:{server.port}/v1", api_key="any", max_retries=0)
    assert [model.id for model in client.models.list()] == ["smol"]
    more = {"model": "smol", "temperature": 0, "max_tokens": 20}
    answer = client.chat.completions.create(messages=QUESTION, logprobs=True, top_logprobs=3, n=2, **more)
    assert [choice.message.content for choice in answer.choices] == ["The capital of France is Paris."] * 2
    assert answer.choices[0].finish_reason == "stop" and answer.usage.completion_tokens == 16
    entries = answer.choices[0].logprobs.content
    assert b"".join(bytes(entry.bytes) for entry in entries).decode() == "The capital of France is Paris."
    assert all(entry.top_logprobs[0].logprob >= entry.logprob for entry in entries)
    stream = client.chat.completions.create(
        messages=QUESTION, stream=True, stream_options={"include_usage": True}, stop="Paris", **more
    )
    events = list(stream)
    said = [event.choices[0].delta.content or "" for event in events if event.choices]
    assert "".join(said) == "The capital of France is " and len(said) > 5
    assert events[-2].choices[0].finish_reason == "stop" and events[-1].usage.prompt_tokens == 37
    drawn = [
        client.chat.completions.create(model="smol", messages=QUESTION, temperature=1.5, seed=seed, max_tokens=12)
        for seed in (3, 3, 4)
    ]
    texts = [answer.choices[0].message.content for answer in drawn]
    assert texts[0] == texts[1] != texts[2]
    vectors = client.embeddings.create(model="smol", input=["A cat sat.", "A kitten sat.", "Interest rates rise."])
    one, two, three = (item.embedding for item in vectors.data)
    assert len(one) == 576 and sum(x * x for x in one) == pytest.approx(1, rel=1e-5)
    assert sum(map(float.__mul__, one, two)) > sum(map(float.__mul__, one, three))
    with pytest.raises(openai.NotFoundError, match="no model 'gpt-4'"):
        client.chat.completions.create(model="gpt-4", messages=QUESTION)
    with pytest.raises(openai.BadRequestError, match="temperature must be a number from 0 to 2"):
        client.chat.completions.create(model="smol", messages=QUESTION, temperature=9)


def test_greedy_tokens_of_all_prompts_at_once(server: Process) -> None:
    """Texts that share steps are those of the model's float32 weights, each."""
    prompts = smollm2.REFERENCE["prompts"] * 3

    def ask(prompt: dict[str, Any]) -> list[str]:
        body = {"prompt": prompt["prompt_ids"], "temperature": 0, "max_tokens": 64, "logprobs": 0}
        status, answer = server.call("POST", "/v1/completions", body)
        assert status == 200, answer
        return answer["choices"][0]["logprobs"]["tokens"]

    with concurrent.futures.ThreadPoolExecutor(15) as pool:
        answers = list(pool.map(ask, prompts))
    from gradlet.io import gguf
    from gradlet.llm import tokenizer as tokenizers
    from gradlet.llm.server.text import token_text

    made = tokenizers.from_gguf(gguf.File(smollm2.path()).metadata)
    for prompt, tokens in zip(prompts, answers, strict=True):
        ids = prompt["greedy_ids"]
        count = next((n for n, token in enumerate(ids) if token in made.ends), len(ids))
        wanted = [token_text(made, token)[0] for token in ids[:count]]
        apart = next((n for n, (a, b) in enumerate(zip(tokens, wanted)) if a != b), None)
        assert apart is None or prompt["margins"][apart] < 0.01
        assert apart is not None or len(tokens) == count


def test_a_crowd(server: Process) -> None:
    """200 clients at once, of which some go, some talk nonsense, and some say far too much."""
    draws = random.Random(1)

    def visit(number: int) -> str:
        kind = number % 5
        if kind == 0:
            return str(server.call("POST", "/v1/chat/completions", b'{"messages": [' + bytes([number])))[:4]
        if kind == 1:  # a megabyte
            text = draws.choice(("word ", "a", " ", "\n", "é🙂", "<|im_start|>")) * (1 << 20)
            text = text.encode()[: 1 << 20].decode(errors="ignore")
            return str(server.call("POST", "/v1/completions", {"prompt": text}))[:4]
        body = {"messages": [{"role": "user", "content": f"Count to {number}."}], "max_tokens": 4, "temperature": 0.5}
        if kind == 2:  # goes in the middle of a stream
            with socket.create_connection(("127.0.0.1", server.port), timeout=300) as connection:
                raw = json.dumps({**body, "stream": True, "max_tokens": 400}).encode()
                head = f"POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(raw)}\r\n\r\n"
                connection.sendall(head.encode() + raw)
                connection.recv(200)
            return "gone"
        status, answer = server.call("POST", "/v1/chat/completions", body)
        assert status == 200, answer
        assert answer["choices"][0]["finish_reason"] in ("stop", "length")
        return "(200"

    with concurrent.futures.ThreadPoolExecutor(200) as pool:
        seen = list(pool.map(visit, range(200)))
    assert [seen.count(kind) for kind in ("(400", "gone", "(200")] == [80, 40, 80]
    until_idle(server)


def test_bytes_that_are_no_requests(server: Process) -> None:
    draws = random.Random(2)
    head = b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: 26\r\n\r\n"
    good = head + b'{"prompt": "a", "n": 1.0}\n'
    for number in range(150):
        raw = bytearray(good)
        for _ in range(draws.randrange(1, 8)):
            raw[draws.randrange(len(raw))] = draws.randrange(256)
        if number % 3 == 0:
            raw = bytearray(draws.randbytes(draws.randrange(1, 2000)))
        with socket.create_connection(("127.0.0.1", server.port), timeout=60) as connection:
            connection.sendall(raw[: draws.randrange(1, len(raw) + 1)])
            connection.shutdown(socket.SHUT_WR)
            try:
                while connection.recv(65536):
                    pass
            except ConnectionError:
                pass
    until_idle(server)
    body = {"messages": QUESTION, "temperature": 0}
    assert "Paris" in server.call("POST", "/v1/chat/completions", body)[1]["choices"][0]["message"]["content"]
    assert server.call("POST", "/v1/completions", b" " * (5 << 20))[0] == 413


def test_who_goes_leaves_a_slot(server: Process) -> None:
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=300)
    body = {"messages": [{"role": "user", "content": "Tell a long story."}], "stream": True, "max_tokens": 400}
    connection.request("POST", "/v1/chat/completions", json.dumps(body))
    answer = connection.getresponse()
    for _ in range(10):
        answer.readline()
    assert server.health()["running"] == 1
    answer.close()
    connection.close()
    until_idle(server)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_it_and_keys_are_asked_for(number: int, tmp_path: Path) -> None:
    (tmp_path / "key").write_text("open sesame\n")
    server = Process("--slots", "1", "--context", "256", "--api-key-file", str(tmp_path / "key"), "--grace", "0.5")
    assert server.call("GET", "/v1/models")[0] == 401 == server.call("GET", "/v1/models", key="open")[0]
    assert server.call("GET", "/v1/models", key="open sesame")[0] == 200
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=300)
    body = {"prompt": "Once upon a time", "stream": True, "max_tokens": 2000, "logit_bias": {"0": -100, "2": -100}}
    connection.request("POST", "/v1/completions", json.dumps(body), {"authorization": "Bearer open sesame"})
    answer = connection.getresponse()
    assert answer.status == 200 and answer.readline()
    assert server.end(number) == 0
    rest = answer.read().decode()  # whole, and ended as it should
    assert rest.endswith("data: [DONE]\n\n") or "shutting down" in rest.strip().split("\n")[-1]


def say(browser: Browser, text: str) -> None:
    browser.run(f"document.getElementById('text').value = {json.dumps(text)}")
    browser.run("document.getElementById('form').requestSubmit()")


def test_the_page_in_a_browser(server: Process, tmp_path: Path) -> None:
    browser = Browser(tmp_path / "profile")
    home = f"http://127.0.0.1:{server.port}/"
    idle = "document.getElementById('send').textContent === 'Send'"
    try:
        browser.call("Page.navigate", url=home)
        browser.until("document.getElementById('model')?.textContent === 'smol'")
        browser.run("document.getElementById('temperature').value = 0")
        say(browser, "What is the capital of France?")
        browser.until(f"document.querySelector('.assistant')?.textContent && {idle}")
        assert browser.run("document.querySelector('.assistant').textContent") == "The capital of France is Paris."
        assert re.fullmatch(r"8 tokens, [\d.]+ tokens/s", browser.run("document.querySelector('.speed').textContent"))
        say(browser, "Tell me a very long story about <b>Paris</b>.")
        browser.until("document.querySelectorAll('.speed')[1]?.textContent")
        browser.picture(Path(os.environ.get("PAGE_PICTURE", tmp_path / "page.png")))
        browser.run("document.getElementById('send').click()")  # which says Stop
        browser.until(idle)
        assert "(stopped)" in browser.run("document.querySelectorAll('.speed')[1].textContent")
        until_idle(server)
        # What is said is text, never markup, and nothing comes from elsewhere.
        assert browser.run("document.querySelectorAll('.user')[1].children.length") == 0
        assert browser.errors == []
        assert all(url.startswith((home, "data:")) for url in browser.requests if url != "about:blank")
        assert len(browser.requests) >= 4
    finally:
        browser.close()
