"""`gradlet serve MODEL.gguf`: a language model behind OpenAI's HTTP API, with a page to chat."""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path

from gradlet.base.errors import ArgumentError
from gradlet.llm.language import load
from gradlet.llm.server.engine import Engine
from gradlet.llm.server.run import is_loopback, open_socket, serve

CONTEXT = 2048  # positions of a slot: every slot has memory for all of them


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The model, where to listen, and limits."""
    parser.add_argument("model", help="a GGUF file, or a folder with config.json, safetensors and tokenizer.json")
    parser.add_argument("--host", default="127.0.0.1", help="address to listen at (127.0.0.1: only this machine)")
    parser.add_argument("--port", type=int, default=8080, help="port to listen at (8080; 0: a free one)")
    parser.add_argument("--name", help="what clients call the model (the file's name)")
    parser.add_argument("--slots", type=int, default=8, help="answers at once (8); others wait")
    parser.add_argument("--context", type=int, help=f"positions of each slot ({CONTEXT}, or the model's if fewer)")
    parser.add_argument("--queue", type=int, default=256, help="answers that may wait (256); then 429 is the answer")
    parser.add_argument("--api-key-file", help="file whose first line clients have to show as their API key")
    parser.add_argument("--max-body", type=int, default=4, help="MiB of a request's body at most (4)")
    parser.add_argument(
        "--grace", type=float, default=5.0, help="seconds that running answers have when a signal comes"
    )


def run(arguments: argparse.Namespace) -> int:
    """Load the model and serve it until a signal comes."""
    for name, low, high in (("slots", 1, 256), ("queue", 0, 100_000), ("max_body", 1, 1024), ("grace", 0, 3600)):
        if not low <= getattr(arguments, name) <= high:
            option = name.replace("_", "-")
            raise ArgumentError(f"--{option} must be from {low} to {high}, got {getattr(arguments, name)}")
    key = None
    if arguments.api_key_file:
        try:
            key = Path(arguments.api_key_file).read_text(encoding="utf-8").split("\n")[0].strip()
        except (OSError, ValueError) as error:
            raise ArgumentError(f"--api-key-file: {error}") from None
        if not key:
            raise ArgumentError(f"--api-key-file: the first line of {arguments.api_key_file} is empty")
    listening = open_socket(arguments.host, arguments.port)
    start = time.perf_counter()
    with listening:
        model = load(arguments.model, arguments.context, arguments.slots + 1, CONTEXT)
        engine = Engine(model, arguments.queue)
        config = model.transformer.config
        memory = 8 * config.layers * config.kv_heads * config.head_width * engine.room * (arguments.slots + 1)
        host, port = listening.getsockname()[:2]
        shown = f"[{host}]" if ":" in host else host

        def ready() -> None:
            print(
                f"{model.name}: loaded in {time.perf_counter() - start:.2f} s, {arguments.slots} slots of "
                f"{engine.room} tokens ({memory / 1e6:.0f} MB)\nserving http://{shown}:{port}",
                file=sys.stderr,
                flush=True,
            )
            if key is None and not is_loopback(host):
                print("warning: anybody who reaches this address may use it; see --api-key-file", file=sys.stderr)

        serve(model, engine, listening, ready, _name(arguments), key, arguments.grace, arguments.max_body << 20)
    return 0


def _name(arguments: argparse.Namespace) -> str:
    path = Path(arguments.model)
    return arguments.name or (path.stem if path.suffix == ".gguf" else path.resolve().name)
