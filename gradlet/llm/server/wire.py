"""One call of the ASGI protocol: what the client sent, and how it is answered. HTTP itself is uvicorn's."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from typing import Any, Final

from gradlet.llm.server.fields import RequestError

SECONDS_TO_SEND: Final = 60.0  # that a client has for its body
DISCARDED: Final = 64 << 20  # bytes of a body that is too long are read, so that the client hears why


class Call:
    """A request, and the way back to who sent it.

    Attributes:
        method: GET, POST and so on.
        path: without what stands before the application.
        headers: by name in lower case; text as the protocol has it, in Latin-1.
        has_begun: an answer is on its way.
    """

    def __init__(
        self, scope: Mapping[str, Any], receive: Callable[[], Awaitable[Any]], send: Callable[[Any], Awaitable[None]]
    ) -> None:
        self.method: str = scope["method"]
        self.path: str = scope["path"]
        self.headers = {key.decode("latin-1").lower(): value.decode("latin-1") for key, value in scope["headers"]}
        self.has_begun = False
        self._receive, self._send = receive, send

    async def body(self, limit: int) -> bytes:
        """The body, if it is not too long and comes in time.

        Raises:
            RequestError: it does not.
            ConnectionError: the client went.
        """
        parts: list[bytes] = []
        size, goes_on = 0, True
        try:
            async with asyncio.timeout(SECONDS_TO_SEND):
                while goes_on and size <= limit + DISCARDED:
                    message = await self._receive()
                    if message["type"] == "http.disconnect":
                        raise ConnectionError
                    part = message.get("body", b"")
                    size += len(part)
                    if size <= limit:
                        parts.append(part)
                    else:
                        parts.clear()
                    goes_on = message.get("more_body", False)
        except TimeoutError:
            raise RequestError(f"the body did not come within {SECONDS_TO_SEND:.0f} s", status=408) from None
        if size > limit:
            raise RequestError(f"the body is longer than {limit} bytes", status=413, code="body_too_long")
        return b"".join(parts)

    async def begin(self, status: int, kind: str, headers: Mapping[str, str] | None = None) -> None:
        """Send the status and headers of an answer."""
        self.has_begun = True
        listed = {"content-type": kind, "cache-control": "no-store", **(headers or {})}
        raw = [(key.encode("latin-1"), value.encode("latin-1")) for key, value in listed.items()]
        await self._send({"type": "http.response.start", "status": status, "headers": raw})

    async def write(self, body: bytes, goes_on: bool = False) -> None:
        """Send a part of its body."""
        await self._send({"type": "http.response.body", "body": body, "more_body": goes_on})

    async def answer(self, content: Any, status: int = 200, headers: Mapping[str, str] | None = None) -> None:
        """Send a whole answer in JSON."""
        raw = as_json(content)
        await self.begin(status, "application/json", {"content-length": str(len(raw)), **(headers or {})})
        await self.write(raw)

    async def refuse(self, error: RequestError) -> None:
        """Send an error."""
        await self.answer(error.content(), error.status, error.headers)

    async def until_gone(self, work: Coroutine[Any, Any, None]) -> None:
        """Do some work, but only as long as the client is there; the body has been read."""

        async def gone() -> None:
            while (await self._receive())["type"] != "http.disconnect":
                pass

        working, watching = asyncio.ensure_future(work), asyncio.ensure_future(gone())
        try:
            await asyncio.wait((working, watching), return_when=asyncio.FIRST_COMPLETED)
            if not working.done():
                working.cancel()
                await asyncio.wait((working,))
            if not working.cancelled():
                working.result()
        finally:
            for task in (working, watching):
                task.cancel()


def as_json(content: Any) -> bytes:
    """JSON in ASCII, without spaces."""
    return json.dumps(content, separators=(",", ":")).encode()
