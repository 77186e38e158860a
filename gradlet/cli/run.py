"""`gradlet run file.gradlet`: run an exported program on arrays of numpy."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from gradlet.base.errors import ArgumentError


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Options of `gradlet run`."""
    parser.add_argument("file", help="what `gradlet export` wrote")
    parser.add_argument(
        "--input", action="append", default=[], metavar="NAME=FILE", help="an input: a file .npy, or a number"
    )  # fmt: skip
    parser.add_argument("--output", metavar="FOLDER", help="where the outputs go, NAME.npy each (default: shown)")
    parser.add_argument("--state", metavar="FILE", help="begin with this state if the file exists, and write it back")
    parser.add_argument("--times", type=int, default=1, help="call it so often; the last outputs count (default 1)")
    parser.add_argument("--show", action="store_true", help="say what the program takes and gives, and run nothing")


def run(arguments: argparse.Namespace) -> int:
    """Load, run, write.

    Raises:
        ArgumentError: an input that cannot be read.
    """
    import numpy as np

    from gradlet.io import program

    loaded = program.load(arguments.file)
    if arguments.show:
        print(loaded.signature())
        for value in loaded.manifest.state:
            print(f"state {value}")
        return 0
    if arguments.times < 1:
        raise ArgumentError(f"--times {arguments.times}: at least one call is needed")
    inputs = dict(_input(text) for text in arguments.input)
    if arguments.state is not None and Path(arguments.state).exists():
        loaded.load_state(arguments.state)
    for _ in range(arguments.times):
        outputs = loaded.run(inputs)
    if arguments.state is not None:
        loaded.save_state(arguments.state)
    if arguments.output is not None:
        Path(arguments.output).mkdir(parents=True, exist_ok=True)
    for name, tensor in outputs.items():
        if arguments.output is None:
            print(f"{name} = {tensor.numpy()}")
        else:
            file = Path(arguments.output) / f"{name.replace('/', '_')}.npy"
            np.save(file, tensor.numpy(), allow_pickle=False)
            print(f"{name}: {file}")
    return 0


def _input(text: str) -> tuple[str, Any]:
    import numpy as np

    name, mark, value = text.partition("=")
    if not mark:
        raise ArgumentError(f"--input {text}: write NAME=FILE")
    if not value.endswith(".npy"):
        try:
            return name, int(value) if value.lstrip("-").isdecimal() else float(value)
        except ValueError:
            raise ArgumentError(f"--input {text}: {value!r} is neither a file .npy nor a number") from None
    try:
        return name, np.load(value, allow_pickle=False)
    except (OSError, ValueError) as error:
        raise ArgumentError(f"--input {text}: {error}") from None
