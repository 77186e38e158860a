"""What finished processes took from the caches: a line each in the cache's folder, summed by `gradlet cache stats`.

Lines are appended whole, so many processes may end at once; a file that has grown long loses its older half. Nothing
here is worth an error: a folder that cannot be written to has no history.
"""

from __future__ import annotations

import contextlib
import json
import os
from pathlib import Path
from typing import Any, Final

from gradlet.runtime import diskcache

NAME: Final = "history"
MAX_BYTES: Final = 256 * 1024


def path() -> Path:
    """Where the lines are."""
    return diskcache.folder() / NAME


def append(line: dict[str, Any]) -> None:
    """Add a process."""
    with contextlib.suppress(OSError):
        place = path()
        place.parent.mkdir(parents=True, exist_ok=True)
        text = json.dumps(line) + "\n"
        descriptor = os.open(place, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
        try:
            os.write(descriptor, text.encode())  # one call: lines of several processes do not mix
            size = os.fstat(descriptor).st_size
        finally:
            os.close(descriptor)
        if size > MAX_BYTES:
            kept = place.read_bytes()[-MAX_BYTES // 2 :].partition(b"\n")[2]
            shorter = place.with_name(f"{NAME}.{os.getpid()}")
            shorter.write_bytes(kept)
            os.replace(shorter, place)


def lines() -> list[dict[str, Any]]:
    """All processes that are remembered, the last one at the end. What is no line of ours is passed over."""
    try:
        text = path().read_text(errors="replace")
    except OSError:
        return []
    found: list[dict[str, Any]] = []
    for line in text.splitlines():
        with contextlib.suppress(ValueError):
            value = json.loads(line)
            if isinstance(value, dict):
                found.append(value)
    return found


def clear() -> None:
    """Forget all processes."""
    with contextlib.suppress(OSError):
        path().unlink()
