"""`gradlet flame script.py`: run a script and draw where Python's time goes, a box a function, as wide as its time."""

from __future__ import annotations

import argparse
import os
import signal
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from html import escape
from pathlib import Path
from types import FrameType
from typing import Final

from gradlet.base.errors import ArgumentError
from gradlet.base.report import human_seconds
from gradlet.cli.schedule import PACKAGE, run_script

INTERVAL: Final = 0.001  # seconds of processor time between two looks; the system may have a coarser clock
WIDTH: Final = 1400
HEIGHT: Final = 17
LETTER: Final = 6.6
LEAST: Final = 0.4  # narrower boxes are left out
DEEPEST: Final = 200
# By folder of gradlet; everything else is grey.
COLOURS: Final = {
    "tensor": "#8ecae6", "ops": "#8ecae6", "nn": "#8ecae6", "grad": "#bde0fe", "graph": "#ffd166", "rules": "#ffd166",
    "schedule": "#f4a261", "optimize": "#90be6d", "codegen": "#b5e48c", "render": "#cdb4db", "device": "#e5989b",
    "engine": "#f6bd60", "runtime": "#e5989b",
}  # fmt: skip

# A function: its name and file.
Place = tuple[str, str]


class Box:
    """A function as called from one stack of callers.

    Attributes:
        samples: how often it, or what it called, was running.
        inside: what it called.
    """

    __slots__ = ("samples", "inside")

    def __init__(self) -> None:
        self.samples = 0
        self.inside: dict[Place, Box] = {}

    def add(self, stack: list[Place]) -> None:
        """One look: the functions that were running, outermost first."""
        box = self
        box.samples += 1
        for place in stack:
            box = box.inside.setdefault(place, Box())
            box.samples += 1


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """What `flame` takes."""
    parser.add_argument("script", help="a Python file")
    parser.add_argument("arguments", nargs=argparse.REMAINDER, help="what the script finds in sys.argv")
    parser.add_argument("-o", "--output", default="flame.svg", help="file to write (flame.svg), for a browser")


def run(arguments: argparse.Namespace) -> int:
    """Run the script and write the picture; the exit code is the script's, 1 if it raised.

    Raises:
        ArgumentError: no such script, a file that cannot be written, or a system without timers.
    """
    path, output = Path(arguments.script), Path(arguments.output)
    if not path.is_file():
        raise ArgumentError(f"flame: there is no file {arguments.script!r}; give the path of a Python script")
    if not hasattr(signal, "setitimer"):
        raise ArgumentError("flame: this system has no timers of processor time")
    root = Box()
    begin = time.process_time()
    with sampled(root):
        code = run_script(path, arguments.arguments)
    seconds = time.process_time() - begin
    try:
        output.write_text(picture(root, seconds))
    except OSError as error:
        raise ArgumentError(f"flame: {output} cannot be written: {error.strerror}") from None
    print(f"{human_seconds(seconds)} of processor time in {output}", file=sys.stderr)
    return code


@contextmanager
def sampled(root: Box) -> Iterator[None]:
    """Look again and again, at equal distances of processor time, what the main thread runs."""
    runner = run_script.__code__.co_filename

    def look(number: int, frame: FrameType | None) -> None:
        stack: list[Place] = []
        while frame is not None and len(stack) < DEEPEST:
            stack.append((frame.f_code.co_qualname, frame.f_code.co_filename))
            frame = frame.f_back
        stack.reverse()
        # What started the script is of no interest.
        first = next((i for i, (_, file) in enumerate(stack) if file == runner), -1)
        root.add([place for place in stack[first + 1 :] if place[1] != __file__ and not place[1].startswith("<frozen")])

    before = signal.signal(signal.SIGPROF, look)
    signal.setitimer(signal.ITIMER_PROF, INTERVAL, INTERVAL)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0.0)
        signal.signal(signal.SIGPROF, before)


def picture(root: Box, seconds: float) -> str:
    """An SVG of so many seconds: callers above what they call. A box that is pointed at says its function and share."""
    boxes: list[str] = []
    scale = WIDTH / max(1, root.samples)
    pending = [(("all", ""), root, 0.0, 0)]
    depth = 0
    while pending:
        place, box, left, row = pending.pop()
        depth = max(depth, row)
        boxes.append(_drawn(place, box.samples, left, row, scale, seconds / max(1, root.samples), root.samples))
        for inner, part in sorted(box.inside.items(), key=lambda item: -item[1].samples):
            if part.samples * scale >= LEAST:
                pending.append((inner, part, left, row + 1))
            left += part.samples * scale
    height = (depth + 1) * HEIGHT
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" width="{WIDTH}" height="{height}" '
        'font-family="monospace" font-size="11">\n' + "\n".join(boxes) + "\n</svg>\n"
    )


def _drawn(place: Place, samples: int, left: float, row: int, scale: float, each: float, total: int) -> str:
    name, file = place
    width, top = samples * scale, row * HEIGHT
    where, folder = _where(file)
    share = 100 * samples / max(1, total)
    title = escape(f"{name} ({where}): {samples * each * 1e3:.0f} ms, {share:.1f} %")
    letters = int(width / LETTER)
    text = escape(name[:letters]) if letters > 3 else ""
    return (
        f'<g><title>{title}</title><rect x="{left:.1f}" y="{top}" width="{max(width - 0.3, 0.1):.1f}" '
        f'height="{HEIGHT - 1}" fill="{COLOURS.get(folder, "#dddddd")}"/>'
        f'<text x="{left + 2:.1f}" y="{top + 12}">{text}</text></g>'
    )


def _where(file: str) -> tuple[str, str]:
    """A file as short as it is clear, and its folder of gradlet."""
    path = Path(file)
    if PACKAGE in path.parents:
        inside = path.relative_to(PACKAGE)
        return os.path.join("gradlet", inside), inside.parts[0]
    return path.name, ""
