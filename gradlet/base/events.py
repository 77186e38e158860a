"""What happened, as typed events to at most one sink: tracing, profiling and tests listen, nothing else changes.

Whoever reports asks `active()` first, so without a listener an event is not even built.

>>> with record() as events:
...     if active():
...         emit(CacheHit("kernel", "E_4"))
>>> events
[CacheHit(cache='kernel', name='E_4')]
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class PassRan:
    """One compiler pass ran on one graph. `nodes` counts them before and after."""

    pipeline: str
    name: str
    seconds: float
    nodes: tuple[int, int]


@dataclass(frozen=True, slots=True)
class ScheduleMade:
    """Tensor graphs became kernel calls; `cached` when an equal structure had been scheduled before."""

    kernels: int
    copies: int
    seconds: float
    cached: bool = False


@dataclass(frozen=True, slots=True)
class KernelCompiled:
    """A kernel became a program; `code_bytes` is the size of its machine code."""

    name: str
    device: str
    seconds: float
    code_bytes: int


@dataclass(frozen=True, slots=True)
class CacheHit:
    """`cache` (`kernel`, `disk`, `schedule`) held what was asked for."""

    cache: str
    name: str


@dataclass(frozen=True, slots=True)
class KernelRan:
    """One launch. `seconds` is None when nobody waited for it; `memory` is all that gradlet holds then."""

    name: str
    device: str
    shapes: str
    seconds: float | None
    flops: int
    bytes: int
    memory: int


@dataclass(frozen=True, slots=True)
class Copied:
    """A buffer was copied between devices."""

    source: str
    destination: str
    bytes: int
    seconds: float | None


@dataclass(frozen=True, slots=True)
class KernelSearched:
    """A kernel's schedule was searched, or found in the cache (`measured` is 0). `usual` is the heuristic's time."""

    name: str
    device: str
    seconds: float
    usual: float
    measured: int


Event = KernelSearched | PassRan | ScheduleMade | KernelCompiled | CacheHit | KernelRan | Copied
Sink = Callable[[Event], None]

_sink: Sink | None = None


def active() -> bool:
    """Whether anybody listens: build an event only then."""
    return _sink is not None


def emit(event: Event) -> None:
    """Hand an event to the sink, if there is one."""
    if _sink is not None:
        _sink(event)


@contextmanager
def listen(sink: Sink) -> Iterator[None]:
    """Make `sink` the one listener for a block; the one before it is back after, also when the block raises."""
    global _sink
    before = _sink
    _sink = sink
    try:
        yield
    finally:
        _sink = before


@contextmanager
def record() -> Iterator[list[Event]]:
    """Collect the events of a block in a list."""
    events: list[Event] = []
    with listen(events.append):
        yield events
