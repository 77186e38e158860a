"""Buffer reuse: temporary buffers whose lifetimes do not overlap share memory."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import replace

from gradlet.graph.node import UOp
from gradlet.schedule.calls import CopyCall, KernelCall
from gradlet.schedule.moves import root_of

Call = KernelCall | CopyCall


def reuse(calls: Sequence[Call], made: Collection[UOp], results: Iterable[UOp]) -> list[Call]:
    """The calls with temporary buffers replaced by ones that are free by then.

    Args:
        calls: in execution order.
        made: buffers of this schedule; all others hold values that somebody else owns.
        results: what the roots became; their memory is never shared.
    """
    kept = {root_of(r) for r in results}
    first: dict[UOp, int] = {}
    last: dict[UOp, int] = {}
    for position, call in enumerate(calls):
        for buffer in buffers_of(call):
            if isinstance(call, CopyCall):
                kept.add(buffer)  # a copy moves a whole buffer: its size must be exact
            first.setdefault(buffer, position)
            last[buffer] = position
    dying: dict[int, list[UOp]] = {}
    for buffer, position in last.items():
        if buffer in made and buffer not in kept:
            dying.setdefault(position, []).append(buffer)
    free: dict[str, list[UOp]] = {}
    new: dict[UOp, UOp] = {}
    result: list[Call] = []
    for position, call in enumerate(calls):
        for buffer in buffers_of(call):
            if first[buffer] == position and buffer in made and buffer not in kept:
                new[buffer] = take(free.setdefault(buffer.arg.device, []), buffer)
        if isinstance(call, KernelCall):
            buffers = tuple([new.get(b, b) for b in call.buffers])
            call = call if buffers == call.buffers else replace(call, buffers=buffers)
        result.append(call)
        for buffer in dying.get(position, ()):
            free.setdefault(buffer.arg.device, []).append(new[buffer])
    return result


def buffers_of(call: Call) -> tuple[UOp, ...]:
    """All buffers of a call."""
    return call.buffers if isinstance(call, KernelCall) else (call.destination, call.source)


def size_of(buffer: UOp) -> int:
    """Bytes of a BUFFER node."""
    return int(buffer.arg.size * buffer.dtype.itemsize)


def take(free: list[UOp], buffer: UOp) -> UOp:
    """The smallest free buffer that holds `buffer` without wasting half of itself, or `buffer` itself."""
    need = size_of(buffer)
    fitting = [b for b in free if need <= size_of(b) <= 2 * need]
    if not fitting:
        return buffer
    best = min(fitting, key=size_of)
    free.remove(best)
    return best
