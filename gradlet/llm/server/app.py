"""The HTTP side: routes, keys and limits; texts become jobs of the engine, and pieces become answers."""

from __future__ import annotations

import asyncio
import contextlib
import hmac
import logging
import time
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from gradlet.base.errors import ArgumentError
from gradlet.llm.language import LanguageModel
from gradlet.llm.server import answers, fields
from gradlet.llm.server.answers import Choice, Format
from gradlet.llm.server.engine import BusyError, ClosedError, Engine, Job, Piece, check_tokens
from gradlet.llm.server.fields import Fields, RequestError, Wanted
from gradlet.llm.server.wire import Call, as_json

MOST_INPUTS: Final = 64  # texts of a request for embeddings
PAGE: Final = Path(__file__).with_name("page.html")
# The page is one file: nothing else may be loaded, and nobody else be talked to.
PAGE_HEADERS: Final = {
    "content-security-policy": "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; "
    "connect-src 'self'; img-src data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
}


@dataclass(frozen=True)
class Options:
    """How a server behaves.

    Attributes:
        name: of the model, as clients call it.
        key: that clients have to show; none is needed where it is None.
        hosts: names by which clients may call this server; any where it is empty.
        most_bytes: of a body.
    """

    name: str
    key: str | None = None
    hosts: frozenset[str] = frozenset()
    most_bytes: int = 4 << 20


class Server:
    """The application of one model."""

    def __init__(self, model: LanguageModel, engine: Engine, options: Options) -> None:
        self.model, self.engine, self.options = model, engine, options
        self._created = int(time.time())
        self._pages: dict[str, Callable[[Call], Coroutine[Any, Any, None]]] = {
            "/": self._page, "/health": self._health, "/v1/models": self._models,
        }  # fmt: skip
        self._works: dict[str, Callable[[Fields], Coroutine[Any, Any, _Work]]] = {
            "/v1/chat/completions": self._chat, "/v1/completions": self._completion, "/v1/embeddings": self._embeddings,
        }  # fmt: skip

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        """A call of the ASGI protocol."""
        if scope["type"] != "http":
            return
        call = Call(scope, receive, send)
        try:
            self._check_caller(call)
            await self._route(call)
        except RequestError as error:
            await call.refuse(error)
        except ConnectionError:  # the client went
            pass
        except Exception:
            logging.getLogger("gradlet").exception("an error of the server")
            if call.has_begun:
                raise  # uvicorn cuts the connection
            await call.refuse(RequestError("the server has an error", status=500))

    def _check_caller(self, call: Call) -> None:
        hosts = self.options.hosts
        # A page elsewhere could have its own name lead to this machine, and then talk to what is bound to it alone.
        if hosts and call.headers.get("host", "").rsplit(":", 1)[0].lower() not in hosts:
            raise RequestError("this server is not known by that name", status=403)
        if self.options.key is not None and call.path.startswith("/v1"):
            scheme, _, key = call.headers.get("authorization", "").partition(" ")
            same = hmac.compare_digest(key.strip().encode("latin-1"), self.options.key.encode())
            if scheme.lower() != "bearer" or not same:
                error = RequestError("the API key is missing or wrong", status=401, code="invalid_api_key")
                error.headers["www-authenticate"] = "Bearer"
                raise error

    async def _route(self, call: Call) -> None:
        work = self._works.get(call.path)
        if work is not None:
            self._check_method(call, "POST")
            body = fields.parse(await call.body(self.options.most_bytes))
            await call.until_gone(_respond(work(body), call))
            return
        page = self._pages.get(call.path)
        if page is None and not call.path.startswith("/v1/models/"):
            raise RequestError(f"there is no {call.path[:100]}", status=404)
        self._check_method(call, "GET", "HEAD")
        await (page or self._model)(call)

    def _check_method(self, call: Call, *methods: str) -> None:
        if call.method not in methods:
            error = RequestError(f"{call.path} takes {methods[0]}, not {call.method}", status=405)
            error.headers["allow"] = ", ".join(methods)
            raise error

    # what needs no model
    async def _page(self, call: Call) -> None:
        await call.begin(200, "text/html; charset=utf-8", PAGE_HEADERS)
        await call.write(PAGE.read_bytes())

    async def _health(self, call: Call) -> None:
        await call.answer({"status": "ok", **self.engine.state()})

    async def _models(self, call: Call) -> None:
        await call.answer(answers.models(self.options.name, self._created, self._facts()))

    async def _model(self, call: Call) -> None:
        self._check_model(call.path.removeprefix("/v1/models/"))
        await call.answer(answers.model(self.options.name, self._created, self._facts()))

    def _facts(self) -> dict[str, Any]:
        return {"context_length": self.engine.room}

    # what does
    async def _chat(self, body: Fields) -> _Work:
        self._check_model(body.raw("model"))
        messages = fields.messages(body.raw("messages"))
        how = fields.wanted(body, True, self._vocabulary)
        body.done()
        tokens = await self._tokens(messages, "messages")
        return await self._answer([tokens], [""], how, True)

    async def _completion(self, body: Fields) -> _Work:
        self._check_model(body.raw("model"))
        prompts = fields.prompts(body.raw("prompt"), "prompt", fields.MOST_CHOICES)
        how = fields.wanted(body, False, self._vocabulary)
        echoes = body.flag("echo")
        body.done()
        if echoes and how.likely is not None:
            raise RequestError("logprobs of the prompt are not supported: leave out echo or logprobs", "echo")
        if len(prompts) * how.choices > fields.MOST_CHOICES:
            raise RequestError(f"there may be {fields.MOST_CHOICES} choices at most, prompts times n", "n")
        lists = [await self._tokens(prompt, "prompt") for prompt in prompts]
        heads = [""] * len(lists)
        if echoes:
            heads = [p if isinstance(p, str) else self.model.tokenizer.decode(p) for p in prompts]
        return await self._answer(lists, heads, how, False)

    async def _embeddings(self, body: Fields) -> _Work:
        self._check_model(body.raw("model"))
        inputs = fields.prompts(body.raw("input"), "input", MOST_INPUTS)
        form = body.choice("encoding_format", "float", "float", "base64")
        width = self.model.transformer.config.width
        size = body.whole("dimensions", width, 1, width)
        body.done()
        lists = [await self._tokens(text, "input") for text in inputs]
        work = _Work(self.engine)
        jobs = [Job(tokens, work.taker(number), embeds=True) for number, tokens in enumerate(lists)]
        work.submit(jobs)

        async def response() -> Any:
            import numpy as np

            vectors: list[Any] = [None] * len(jobs)
            async for number, piece in work.pieces():
                vectors[number] = piece.vector[:size]
            units = [v / max(float(np.sqrt(np.square(v, dtype=np.float64).sum())), 1e-12) for v in vectors]
            return answers.embeddings(self.options.name, units, sum(map(len, lists)), form)

        work.response = response
        return work

    async def _answer(self, lists: list[list[int]], heads: list[str], how: Wanted, is_chat: bool) -> _Work:
        """Jobs for every prompt and choice, and what becomes of their pieces."""
        work = _Work(self.engine)
        jobs: list[Job] = []
        choices: list[Choice] = []
        for tokens, head in zip(lists, heads, strict=True):
            for number in range(how.choices):
                give = work.taker(len(jobs))
                sampling = how.of_choice(number)
                jobs.append(Job(tokens, give, sampling, how.penalties, how.limit, how.stops, how.likely))
                choices.append(Choice(head))
        read = sum(map(len, lists))
        form = Format(self.options.name, self.model.tokenizer, is_chat, how.likely is not None)
        work.submit(jobs)

        async def response() -> Any:
            async for number, piece in work.pieces():
                choices[number].add(piece)
            return form.whole(choices, read)

        async def events() -> AsyncIterator[Any]:
            nothing: dict[str, Any] = {"usage": None} if how.counts_tokens else {}
            for number, choice in enumerate(choices):
                if is_chat:
                    yield {**form.part(number, Piece(), is_first=True), **nothing}
                elif choice.text:
                    yield {**form.part(number, Piece(choice.text)), **nothing}
            async for number, piece in work.pieces():
                before = len(choices[number].text)
                choices[number].add(piece)
                if piece.finish and (piece.text or piece.notes):
                    # The end comes by itself, as clients expect it.
                    begin = Piece(piece.text, piece.notes, piece.made)
                    yield {**form.part(number, begin, before), **nothing}
                    piece = Piece(made=piece.made, finish=piece.finish)
                yield {**form.part(number, piece, before), **nothing}
            if how.counts_tokens:
                yield form.count(choices, read)

        work.response = response
        if how.streams:
            work.events = events
        return work

    # parts
    @property
    def _vocabulary(self) -> int:
        return self.model.transformer.config.vocabulary

    def _check_model(self, name: Any) -> None:
        if name is not None and name != self.options.name:
            fields.check_text(name, "model")
            message = f"there is no model {name[:100]!r}; there is {self.options.name!r}"
            raise RequestError(message, "model", 404, "model_not_found")

    async def _tokens(self, text: str | list[int] | list[dict[str, Any]], name: str) -> list[int]:
        """The tokens of a text, of messages, or as they are; that takes a while for a long text, so others go on."""

        def work() -> list[int]:
            if isinstance(text, str):
                tokens = self.model.tokenizer.encode(text)
            elif name == "messages":
                tokens = self.model.tokenizer.encode(self.model.chat_text(text))  # type: ignore[arg-type]
            else:
                tokens = list(text)  # type: ignore[arg-type]
            try:
                check_tokens(tokens, self.engine.room, self._vocabulary)
            except ArgumentError as error:
                raise fields.refuse_tokens(error, name, tokens, self.engine.room) from None
            return tokens

        try:
            return await asyncio.to_thread(work)
        except ArgumentError as error:  # of the model's template
            raise RequestError(str(error), name) from None


class _Work:
    """Jobs of one request; their pieces come from the engine's thread."""

    def __init__(self, engine: Engine) -> None:
        self._engine, self._loop = engine, asyncio.get_running_loop()
        self._inbox: asyncio.Queue[tuple[int, Piece]] = asyncio.Queue()
        self._jobs: Sequence[Job] = ()
        self.response: Callable[[], Coroutine[Any, Any, Any]]
        self.events: Callable[[], AsyncIterator[Any]] | None = None

    def taker(self, number: int) -> Callable[[Piece], None]:
        """What the engine calls for pieces of a job."""

        def give(piece: Piece) -> None:
            with contextlib.suppress(RuntimeError):  # the loop has ended
                self._loop.call_soon_threadsafe(self._inbox.put_nowait, (number, piece))

        return give

    def submit(self, jobs: Sequence[Job]) -> None:
        """Hand the jobs to the engine.

        Raises:
            RequestError: it takes none.
        """
        try:
            self._engine.submit(jobs)
        except BusyError as busy:
            error = RequestError("too many requests wait; try again later", status=429, code="queue_full")
            error.headers["retry-after"] = str(busy.seconds)
            raise error from None
        except ClosedError:
            raise RequestError("the server is shutting down", status=503) from None
        self._jobs = jobs

    async def pieces(self) -> AsyncIterator[tuple[int, Piece]]:
        """Pieces with the number of their job, until all have ended.

        Raises:
            RequestError: one went wrong.
        """
        left = len(self._jobs)
        while left:
            number, piece = await self._inbox.get()
            if piece.error:
                raise RequestError(piece.error, status=503 if "shutting down" in piece.error else 500)
            yield number, piece
            left -= piece.is_last

    def drop(self) -> None:
        """Nobody waits any more."""
        self._engine.cancel(self._jobs)


async def _respond(begun: Coroutine[Any, Any, _Work], call: Call) -> None:
    work = await begun
    try:
        if work.events is None:
            await call.answer(await work.response())
            return
        await call.begin(200, "text/event-stream; charset=utf-8")
        try:
            async for event in work.events():
                await call.write(_event(event), goes_on=True)
            await call.write(b"data: [DONE]\n\n")
        except RequestError as error:
            await call.write(_event(error.content()))
    finally:
        work.drop()


def _event(content: Any) -> bytes:
    return b"data: " + as_json(content) + b"\n\n"
