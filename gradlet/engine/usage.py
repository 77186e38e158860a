"""What a process took from the caches, noted when it ends: see `runtime/history`."""

from __future__ import annotations

import atexit
import os
import sys
import time
from functools import cache
from typing import Any

from gradlet.base import settings
from gradlet.runtime import diskcache, history
from gradlet.schedule.create import statistics


@cache
def note_at_exit() -> None:
    """Have the end of this process noted, once. Processes that it forks are not."""
    process = os.getpid()

    def end() -> None:
        if settings.CACHE and os.getpid() == process:
            history.append(summary())

    atexit.register(end)


def summary() -> dict[str, Any]:
    """This process until now, as `gradlet cache stats` adds it up."""
    hits, misses, evicted = diskcache.counts()
    last = next((miss for miss in reversed(statistics.misses) if not miss.recalled), None)
    return {
        "ended": round(time.time()),
        "script": os.path.basename(sys.argv[0]) if sys.argv else "",
        "schedules": {"hits": statistics.hits, "recalled": statistics.recalled, "made": statistics.made},
        "why": dict(statistics.kinds),
        "last": "" if last is None else last.text,
        "disk": {"hits": hits, "misses": misses, "evicted": evicted},
    }
