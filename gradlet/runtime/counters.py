"""`GlobalCounters`: what ran and how much memory is held, counted over the whole process."""

from __future__ import annotations


class GlobalCounters:
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

    kernels: int = 0
    ops: int = 0
    bytes: int = 0
    seconds: float = 0.0
    mem_used: int = 0

    @staticmethod
    def reset() -> None:
        """Start counting anew."""
        GlobalCounters.kernels = 0
        GlobalCounters.ops = 0
        GlobalCounters.bytes = 0
        GlobalCounters.seconds = 0.0
