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


# The budgets come from a machine on which a node of four slots in a plain table took 0.38 to 0.52 microseconds.
REFERENCE = 0.45


class _Plain:
    __slots__ = ("op", "dtype", "src", "arg")


def calibrate() -> float:
    """Microseconds to create one of 100,000 plain nodes: the same work as on the machine of the budgets.

    It needs the processor, the memory allocator and the cache in about the way the measured rows do.
    """
    table: dict[Any, _Plain] = {}
    dtype = object()
    new = object.__new__

    def make(op: int, dtype: object, src: tuple[_Plain, ...], arg: Any) -> _Plain:
        key = (op, dtype, src, arg)
        found = table.get(key)
        if found is not None:
            return found
        node = new(_Plain)
        node.op = op
        node.dtype = dtype
        node.src = src
        node.arg = arg
        table[key] = node
        return node

    def chain(leaf: _Plain) -> None:
        node = leaf
        for _ in range(100_000):
            node = make(3, dtype, (node, leaf), None)

    def prepare() -> _Plain:
        table.clear()
        return make(1, dtype, (), None)

    return fresh(prepare, chain, 6) / 100_000
