"""`GlobalCounters`: what ran and how much memory is held, counted over the whole process."""

from __future__ import annotations

from typing import Final


class Counters:
    """Counters since the last `reset`. `mem_used` is a level, not a count: reset leaves it.

    Attributes:
        kernels: kernels launched.
        ops: floating point operations of those kernels.
        bytes: bytes they read and wrote.
        seconds: time they took, where somebody waited for them (DEBUG >= 2).
        mem_used: bytes of device memory held by living buffers.

    >>> from gradlet import Tensor
    >>> GlobalCounters.reset()
    >>> (Tensor([1.0, 2.0]) * 2 + 1).tolist(), GlobalCounters.kernels
    ([3.0, 5.0], 1)
    """

    __slots__ = ("kernels", "ops", "bytes", "seconds", "mem_used")

    def __init__(self) -> None:
        self.mem_used = 0
        self.reset()

    def reset(self) -> None:
        """Start counting anew."""
        self.kernels = self.ops = self.bytes = 0
        self.seconds = 0.0


# An object, because attributes of a class take much longer to set.
GlobalCounters: Final = Counters()
