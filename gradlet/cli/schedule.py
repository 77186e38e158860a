"""`gradlet schedule script.py`: run a script and print every schedule it makes, with prices and refused merges."""

from __future__ import annotations

import argparse
import json
import runpy
import sys
import traceback
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, redirect_stdout
from pathlib import Path
from types import TracebackType
from typing import Any

from gradlet.base import events, settings
from gradlet.base.errors import ArgumentError, UserError
from gradlet.base.report import human_bytes, human_seconds
from gradlet.engine import report
from gradlet.schedule.create import forget_schedules
from gradlet.schedule.explain import Explanation, counted
from gradlet.schedule.price import PICO

PACKAGE = Path(__file__).resolve().parent.parent


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """What `schedule` takes."""
    parser.add_argument("script", help="a Python file")
    parser.add_argument("arguments", nargs=argparse.REMAINDER, help="what the script finds in sys.argv")
    parser.add_argument("--json", action="store_true", help="one JSON document; what the script prints goes to stderr")
    parser.add_argument("--limit", type=int, metavar="N", help="show at most N launches of a schedule")
    parser.add_argument("--sort", choices=("bytes", "price"), default="", help="launches with the largest first")
    parser.add_argument(
        "--no-run",
        action="store_true",
        help="compute nothing (device NULL); a script that looks at values ends there",
    )


class Collector:
    """Receives explanations while the script runs, and prints them unless they are wanted as JSON.

    Attributes:
        found: the explanations, in order.
        asked: schedules that the script asked for by computing something, those from the cache included.
    """

    def __init__(self, arguments: argparse.Namespace) -> None:
        self.arguments = arguments
        self.found: list[Explanation] = []
        self.asked = 0

    def tell(self, explanation: Explanation) -> None:
        """One more schedule was made."""
        self.found.append(explanation)
        if not self.arguments.json:
            print(f"[{len(self.found)}] {explanation.text(self.arguments.limit, self.arguments.sort)}", flush=True)

    def listen(self, event: events.Event) -> None:
        """Something happened."""
        self.asked += isinstance(event, events.ScheduleMade)

    @property
    def cached(self) -> int:
        """Schedules that were made before."""
        return max(0, self.asked - len(self.found))

    def data(self) -> dict[str, Any]:
        """All of it for JSON."""
        return {"schedules": [explanation.data() for explanation in self.found], "from_cache": self.cached}

    def summary(self) -> str:
        """The last line."""
        launches = counted(sum(len(e.launches) for e in self.found), "launch")
        seconds = sum(e.price for e in self.found) / PICO
        moved = sum(e.traffic.bytes for e in self.found)
        return (
            f"{counted(len(self.found), 'schedule')} made, {self.cached} more from the cache; {launches}, "
            f"{human_seconds(seconds)} estimated, {human_bytes(moved)} moved"
        )


def run(arguments: argparse.Namespace) -> int:
    """Run the script and print its schedules; the exit code is the script's, 1 if it raised.

    Raises:
        ArgumentError: no such script, or a limit below 1.
    """
    path = Path(arguments.script)
    if not path.is_file():
        raise ArgumentError(f"schedule: there is no file {arguments.script!r}; give the path of a Python script")
    if arguments.limit is not None and arguments.limit < 1:
        raise ArgumentError(f"schedule: --limit {arguments.limit} shows nothing; give a number from 1")
    collector = Collector(arguments)
    forget_schedules()
    device = {"DEV": "NULL"} if arguments.no_run else {}
    with settings.scope(**device), events.listen(collector.listen), report.explained(collector.tell):
        if arguments.json:
            with redirect_stdout(sys.stderr):
                code = run_script(path, arguments.arguments)
        else:
            code = run_script(path, arguments.arguments)
    print(json.dumps(collector.data(), indent=1) if arguments.json else collector.summary())
    return code


def run_script(path: Path, arguments: Sequence[str]) -> int:
    """Run a file as the main program; what it raises is shown as Python would show it. Returns its exit code."""
    with program(path, arguments):
        try:
            runpy.run_path(str(path), run_name="__main__")
        except SystemExit as end:
            if end.code is None or isinstance(end.code, int):
                return end.code or 0
            print(end.code, file=sys.stderr)
            return 1
        except Exception as error:
            show_error(error, path)
            return 1
    return 0


@contextmanager
def program(path: Path, arguments: Sequence[str]) -> Iterator[None]:
    """`sys.argv` and `sys.path` as a script finds them that was started by itself."""
    argv, search = sys.argv, list(sys.path)
    sys.argv = [str(path), *arguments]
    sys.path.insert(0, str(path.resolve().parent))
    try:
        yield
    finally:
        sys.argv = argv
        sys.path[:] = search


def show_error(error: Exception, path: Path) -> None:
    """Print a script's exception, without the frames that ran the script; a user's mistake without gradlet's own."""
    frame: TracebackType | None = error.__traceback__
    while frame is not None and frame.tb_frame.f_code.co_filename != str(path):
        frame = frame.tb_next
    shown = traceback.TracebackException(type(error), error, frame)
    if isinstance(error, UserError):
        outside = [f for f in shown.stack if PACKAGE not in Path(f.filename).resolve().parents]
        shown.stack = traceback.StackSummary.from_list(outside)
    sys.stdout.flush()
    print("".join(shown.format()), end="", file=sys.stderr)
