"""One jitted call at a time: who captures or replays holds the turn, and nobody waits for one that cannot end.

A jitted function that waits for another thread, which itself waits for its turn, would never go on. Who waits looks at
the thread that has the turn: where that stays at one place of the user's code and does not compute, the error of the
waiting call says so; that sets both free.
"""

from __future__ import annotations

import sys
import threading
import time
from types import FrameType
from typing import Final

from gradlet.base.errors import JitError

SECONDS: float = 5.0  # so long the other thread may stay where it is
LOOKS: Final = 20  # so often it is looked at in that time
_PACKAGE: Final = __name__.partition(".")[0]


class Turns:
    """A lock that its thread may take again, and that says who has it.

    Attributes:
        name: the function that has the turn.
    """

    def __init__(self) -> None:
        self.name = ""
        self._lock = threading.RLock()
        self._owner = 0
        self._depth = 0

    def __enter__(self) -> None:
        self.take("another jitted function")

    def __exit__(self, *error: object) -> None:
        self.give()

    def take(self, name: str) -> None:
        """Wait for the turn.

        Raises:
            JitError: the thread that has it waits for something outside of gradlet.
        """
        if not self._lock.acquire(blocking=False):
            self._wait(name)
        self._depth += 1
        if self._depth == 1:
            self.name, self._owner = name, threading.get_ident()

    def give(self) -> None:
        """Let others go on."""
        self._depth -= 1
        self._lock.release()

    def _wait(self, name: str) -> None:
        same, before = 0, None
        while not self._lock.acquire(timeout=SECONDS / LOOKS):
            place = _waits_at(self._owner)
            same = same + 1 if place is not None and place == before else 0
            before = place
            if place is not None and same >= LOOKS:
                raise JitError(
                    f"{name} waits for {self.name}, which another thread runs and which waits itself, at {place[0]}: "
                    "a jitted function must not wait for other threads that call jitted functions; wait outside of it"
                )


def _waits_at(thread: int) -> tuple[str, str, float] | None:
    """Where a thread stands: the line of the user's code, and what tells whether it moved or computed since.

    None where gradlet computes, or there is nothing to see.
    """
    frame: FrameType | None = sys._current_frames().get(thread)
    inner = ""
    while frame is not None:
        root = str(frame.f_globals.get("__name__", "")).partition(".")[0]
        inner = inner or f"{id(frame)}:{frame.f_lasti}"
        if root == _PACKAGE:
            return None
        if root not in sys.stdlib_module_names:
            return f"{frame.f_code.co_filename}:{frame.f_lineno}", inner, _seconds_computed(thread)
        frame = frame.f_back
    return None


def _seconds_computed(thread: int) -> float:
    """Processor time of a thread, where the system says."""
    if not hasattr(time, "pthread_getcpuclockid"):
        return 0.0
    try:
        return time.clock_gettime(time.pthread_getcpuclockid(thread))
    except OSError:
        return 0.0
