"""A server's life: the socket, the loop of uvicorn, and the end that a signal asks for."""

from __future__ import annotations

import asyncio
import ipaddress
import signal
import socket
import threading
from collections.abc import Callable
from typing import Any

from gradlet.base.errors import ArgumentError, MissingExtraError
from gradlet.llm.language import LanguageModel
from gradlet.llm.server.engine import Engine


def is_loopback(host: str) -> bool:
    """Whether only this machine reaches a host's name."""
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return host == "localhost"


def open_socket(host: str, port: int) -> socket.socket:
    """A socket that listens.

    Raises:
        ArgumentError: the address is taken, or not one of this machine.
    """
    try:
        found = socket.getaddrinfo(host.strip("[]"), port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0]
        return socket.create_server(found[4][:2], family=found[0], backlog=1024)  # type: ignore[arg-type]
    except (OSError, OverflowError) as error:
        raise ArgumentError(f"cannot listen at {host}:{port}: {error}") from None


def serve(
    model: LanguageModel, engine: Engine, listening: socket.socket, ready: Callable[[], None],
    name: str, key: str | None = None, grace: float = 5.0, most_bytes: int = 4 << 20,
) -> None:  # fmt: skip
    """Answer requests until a signal comes, and then end what runs within `grace` seconds.

    Raises:
        MissingExtraError: a package is not installed.
    """
    try:
        import uvicorn

        from gradlet.llm.server.app import Options, Server
    except ImportError as error:
        raise MissingExtraError(f"the server needs the package {error.name}: pip install 'gradlet[llm]'") from None
    host = listening.getsockname()[0]
    hosts = frozenset({"localhost", "127.0.0.1", "[::1]", host}) if is_loopback(host) else frozenset()
    app = Server(model, engine, Options(name, key, hosts, most_bytes))

    class Running(uvicorn.Server):
        """Tells when it listens, and tells the engine when it ends."""

        async def startup(self, sockets: Any = None) -> None:
            await super().startup(sockets)
            ready()

        def handle_exit(self, sig: int, frame: Any) -> None:
            engine.close(0.0 if self.should_exit else grace)
            super().handle_exit(sig, frame)

    config = uvicorn.Config(
        app, log_level="warning", access_log=False, lifespan="off", ws="none", http="h11", loop="asyncio",
        server_header=False, timeout_keep_alive=30, timeout_graceful_shutdown=int(grace) + 5,
    )  # fmt: skip
    engine.start()
    if threading.current_thread() is threading.main_thread():
        # uvicorn sends itself the signals again when it has ended: they have done what they were for.
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, lambda *_: None)
    try:
        asyncio.run(Running(config).serve(sockets=[listening]))
    finally:
        engine.close()
        engine.join()
