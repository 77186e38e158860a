"""Entry of the `gradlet` command: finds the subcommand, imports only it, and turns user errors into one line."""

from __future__ import annotations

import argparse
import gc
import importlib
import os
import sys
from collections.abc import Sequence
from typing import Any, NamedTuple

from gradlet.base.errors import UserError
from gradlet.base.settings import check_all


class Command(NamedTuple):
    """One subcommand; its module `gradlet.cli.<name>` has `add_arguments(parser)` and `run(arguments) -> int`."""

    help: str
    checks_settings: bool = True


COMMANDS: dict[str, Command] = {
    "demo": Command("train a small convolutional network on real handwritten digits"),
    "doctor": Command("what this machine offers, what is missing, and the command that installs it", False),
    "passes": Command("the compiler's pass lists, in the order they run"),
    "schedule": Command("run a script and print its schedules: launches, prices, and why neighbours are not merged"),
    "flame": Command("run a script and draw where Python's time goes, function by function"),
    "export": Command("write a jitted function of a module as a file that runs without tracing, or as C"),
    "run": Command("run a file that export wrote on arrays of numpy"),
    "cache": Command("the kernel cache on disk: statistics, clear"),
    "onnx": Command("run, describe or time an ONNX model", False),
    "llm": Command("chat with a language model in a GGUF file"),
    "serve": Command("serve a language model behind OpenAI's HTTP API, with a page to chat"),
    "bench": Command("how to measure gradlet beside torch and tinygrad"),
}

EXIT_OK = 0
EXIT_USER_ERROR = 2
EXIT_INTERRUPTED = 130


def build_parser(chosen: str | None) -> argparse.ArgumentParser:
    """The parser; only the module of the chosen subcommand is imported."""
    parser = argparse.ArgumentParser(
        prog="gradlet",
        description="A small, readable compiler from Tensor to machine code.",
        epilog="`gradlet COMMAND --help` describes one command. DEBUG=1..6 in the environment shows what runs.",
    )
    parser.add_argument("--version", action="store_true", help="print the version and exit")
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", title="commands")
    for name, command in COMMANDS.items():
        sub = commands.add_parser(name, help=command.help, description=command.help[0].upper() + command.help[1:] + ".")
        if name == chosen:
            _imported(name).add_arguments(sub)
    return parser


def _imported(command: str) -> Any:
    """The module of a subcommand. What is imported stays: the garbage collector need not look through it meanwhile."""
    collects = gc.isenabled()
    gc.disable()
    try:
        return importlib.import_module(f"gradlet.cli.{command}")
    finally:
        if collects:
            gc.enable()


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line and return its exit code: 0 done, 1 found something wrong, 2 a mistake of the caller."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    chosen = next((a for a in arguments if not a.startswith("-")), None)
    try:
        parser = build_parser(chosen)
        parsed = parser.parse_args(arguments)
        if parsed.version:
            from gradlet.cli.doctor import gradlet_version

            print(f"gradlet {gradlet_version()}")
            return EXIT_OK
        if parsed.command is None:
            parser.print_help()
            return EXIT_OK
        if COMMANDS[parsed.command].checks_settings:
            check_all()
        return int(importlib.import_module(f"gradlet.cli.{parsed.command}").run(parsed) or EXIT_OK)
    except UserError as error:
        print(f"gradlet: {error}", file=sys.stderr)
        return EXIT_USER_ERROR
    except KeyboardInterrupt:
        print("gradlet: interrupted", file=sys.stderr)
        return EXIT_INTERRUPTED
    except BrokenPipeError:
        # The reader of our output has gone (`gradlet passes | head`): end quietly, and keep the final flush quiet too.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return EXIT_OK
