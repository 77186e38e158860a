"""Timing helpers of `graph_core.py`: processor time of this thread, so that other processes count little."""

from __future__ import annotations

from collections.abc import Callable
from time import thread_time
from typing import Any

Times = dict[str, float]


def timed(run: Callable[[], Any], repeats: int) -> float:
    """The fastest of several runs, in microseconds."""
    best = float("inf")
    for _ in range(repeats):
        start = thread_time()
        result = run()
        best = min(best, thread_time() - start)
        del result
    return best * 1e6


def fresh(prepare: Callable[[], Any], run: Callable[[Any], Any], repeats: int) -> float:
    """The fastest run over newly prepared input; preparing is not timed."""
    best = float("inf")
    for _ in range(repeats):
        given = prepare()
        start = thread_time()
        result = run(given)
        best = min(best, thread_time() - start)
        del result, given
    return best * 1e6


def calibrate() -> float:
    """Microseconds of a fixed piece of plain Python: tells a busy machine from a slow program."""

    def loop() -> None:
        table: dict[tuple[int, int], list[int]] = {}
        for i in range(100_000):
            table.setdefault((i & 1023, i & 7), []).append(i)

    return timed(loop, 5)
