"""Schedules for other processes: a cache entry as bytes, under a name that holds all that its decisions depend on.

Kernels of one schedule share nodes; all of them are one table of nodes, each naming its sources by their place in it.
The bytes are a pickle: they lie beside machine code in the user's own cache, and are as trusted.
"""

from __future__ import annotations

import pickle
from collections.abc import Callable
from dataclasses import replace
from typing import Any, Protocol

from gradlet.base.fingerprint import fingerprint
from gradlet.graph.digest import text_of
from gradlet.graph.node import UOp, mk, toposort
from gradlet.schedule.cache import Entry, Question
from gradlet.target.target import Target


class Store(Protocol):
    """Named bytes that outlive the process: `runtime.diskcache`."""

    def key(self, *parts: str) -> str:
        """A name made of texts."""

    def get(self, name: str) -> bytes | None:
        """What was put under a name."""

    def put(self, name: str, content: bytes) -> bool:
        """Keep bytes under a name."""


def entry_name(question: Question, store: Store) -> str:
    """The name of an answer; "" where the question means something to this process only."""
    assert question.environment is not None
    targets = [f"{device} {target.text}" for device, target in question.environment.targets]
    try:
        text = text_of(question.plain)
    except TypeError:
        return ""
    return store.key("schedule", text, *targets, fingerprint())


def recall(name: str, store: Store, target_of: Callable[[str], Target]) -> Entry | None:
    """The entry that some process made, None when there is none for what the devices are here.

    The name holds the devices of a graph's buffers. Its kernels may run on others: constants have no buffer, copies go
    to a device that had none yet.
    """
    content = store.get(name)
    if content is None:
        return None
    targets, entry = pickle.loads(content)
    if any(target_of(device).text != text for device, text in targets):
        return None
    return from_bytes(entry)


def remember(name: str, entry: Entry, store: Store, target_of: Callable[[str], Target]) -> None:
    """Keep an entry for other processes."""
    devices = dict.fromkeys([call.device for call in entry.calls if call.ast is not None])
    targets = [(device, target_of(device).text) for device in devices]
    store.put(name, pickle.dumps((targets, to_bytes(entry)), pickle.HIGHEST_PROTOCOL))


def to_bytes(entry: Entry) -> bytes:
    """An entry with its kernels."""
    kernels = [call.ast for call in entry.calls if call.ast is not None]
    numbers: dict[UOp, int] = {}
    rows: list[tuple[Any, ...]] = []
    for node in toposort(kernels):
        numbers[node] = len(rows)
        rows.append((node.op, node.dtype, tuple([numbers[s] for s in node.src]), node.arg))
    calls = tuple([(None if c.ast is None else numbers[c.ast], replace(c, ast=None)) for c in entry.calls])
    return pickle.dumps((rows, calls, replace(entry, calls=(), ready=None)), pickle.HIGHEST_PROTOCOL)


def from_bytes(content: bytes) -> Entry:
    """`from_bytes(to_bytes(entry)) == entry`: equal kernels are the same node in one process."""
    rows, calls, entry = pickle.loads(content)
    nodes: list[UOp] = []
    for op, dtype, sources, arg in rows:
        nodes.append(mk(op, dtype, tuple([nodes[s] for s in sources]), arg))
    restored = tuple([call if number is None else replace(call, ast=nodes[number]) for number, call in calls])
    return replace(entry, calls=restored)  # type: ignore[no-any-return]
