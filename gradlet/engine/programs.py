"""Programs by graph, on disk: a kernel that some process compiled before is neither lowered nor rendered again."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any, NamedTuple

from gradlet.base import settings
from gradlet.base.fingerprint import fingerprint
from gradlet.graph.digest import digest, text_of
from gradlet.graph.node import UOp
from gradlet.runtime import diskcache
from gradlet.target.target import Target


class Record(NamedTuple):
    """What is kept of a compiled kernel beside its code.

    Attributes:
        name: function name.
        flops: floating point operations of one launch.
        bytes: unique bytes read and written by one launch.
        described: what the backend needs to run the code again.
    """

    name: str
    flops: int
    bytes: int
    described: Sequence[Any]


def entry_name(ast: UOp, target: Target) -> str:
    """The name of a kernel's record: everything that its code depends on, the compiler itself included."""
    return diskcache.key("program", digest(ast), target.text, text_of(settings.codegen_key()), fingerprint())


def recall(entry: str) -> Record | None:
    """The record of a kernel, None when there is none."""
    content = diskcache.get(entry)
    return None if content is None else Record(*json.loads(content))


def remember(entry: str, record: Record) -> None:
    """Keep the record of a kernel that was compiled."""
    diskcache.put(entry, json.dumps(record, separators=(",", ":")).encode())
