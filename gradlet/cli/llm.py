"""`gradlet llm MODEL.gguf`: a chat in the terminal, or one answer; how fast it was is shown."""

from __future__ import annotations

import argparse
import sys
import time

from gradlet.llm.language import LanguageModel, load
from gradlet.llm.sample import Sampling


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The model, what to say to it, and how answers are drawn."""
    parser.add_argument("model", help="a GGUF file, or a folder with config.json, safetensors and tokenizer.json")
    parser.add_argument("-p", "--prompt", help="answer this and end, instead of a chat")
    parser.add_argument("--raw", action="store_true", help="go on with the prompt itself, without the chat template")
    parser.add_argument("--system", help="what the model is told first")
    parser.add_argument("--context", type=int, help="positions to have room for (at most the model's own)")
    parser.add_argument("--limit", type=int, default=512, help="tokens of an answer at most (512)")
    parser.add_argument("--temperature", type=float, default=0.0, help="0, as it is, takes the best token each time")
    parser.add_argument("--top-k", type=int, default=0, help="draw from so many best tokens; 0: from all")
    parser.add_argument("--top-p", type=float, default=1.0, help="draw from the best with this share together")
    parser.add_argument("--min-p", type=float, default=0.0, help="draw from those with this share of the best one's")
    parser.add_argument("--repetition-penalty", type=float, default=1.0, help="of tokens that were there; 1: none")
    parser.add_argument("--seed", type=int, help="the same draws each time")


def run(arguments: argparse.Namespace) -> int:
    """Load the model and talk."""
    sampling = Sampling(
        arguments.temperature, arguments.top_k, arguments.top_p, arguments.min_p, arguments.repetition_penalty,
        arguments.seed,
    )  # fmt: skip
    start = time.perf_counter()
    model = load(arguments.model, arguments.context)
    config = model.transformer.config
    print(
        f"{model.name}: {config.family}, {config.layers} layers of width {config.width}, room for "
        f"{model.transformer.positions} tokens, loaded in {time.perf_counter() - start:.2f} s",
        file=sys.stderr,
    )
    messages = [{"role": "system", "content": arguments.system}] if arguments.system else []
    if arguments.prompt is not None:
        text = arguments.prompt
        if not arguments.raw:
            text = model.chat_text([*messages, {"role": "user", "content": text}])
        _answer(model, text, sampling, arguments.limit)
        return 0
    while True:
        try:
            said = input("> ").strip()
        except EOFError:
            print()
            return 0
        if said:
            messages.append({"role": "user", "content": said})
            answer = _answer(model, model.chat_text(messages), sampling, arguments.limit)
            messages.append({"role": "assistant", "content": answer})


def _answer(model: LanguageModel, text: str, sampling: Sampling, limit: int) -> str:
    """Show an answer as it comes, then how long it took."""
    start = first = time.perf_counter()
    pieces: list[str] = []
    for piece in model.stream(text, sampling, limit):
        if not pieces:
            first = time.perf_counter()
        pieces.append(piece)
        print(piece, end="", flush=True)
    took = time.perf_counter() - first
    answer = "".join(pieces)
    count = len(model.tokenizer.encode(answer, start=False))
    speed = f"{(count - 1) / took:.1f} tokens/s" if count > 1 and took > 0 else "one token"
    print(f"\n[{count} tokens, {speed}, the first after {first - start:.2f} s]", file=sys.stderr)
    return answer
