"""Memory plan: temporary buffers get places in one arena a device, where those that live at the same time are apart."""

from __future__ import annotations

import heapq
from bisect import bisect_left
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Final

from gradlet.graph.node import UOp
from gradlet.ops.op import LaunchArg
from gradlet.schedule.calls import CopyCall, KernelCall, MemoryPlan
from gradlet.schedule.inplace import merged, reuse_inputs
from gradlet.schedule.moves import root_of
from gradlet.target.target import Target

Call = KernelCall | CopyCall

# Where a buffer may begin: a cache line of a CPU, a memory transaction of a GPU.
CPU_ALIGNMENT: Final = 64
GPU_ALIGNMENT: Final = 256
# An in-place output is another kernel to compile and loses some ways to cut its loops, so it has to save this share.
LEAST_SAVING: Final = 16
# Beyond so many blocks of a device only two orders are tried: best fit in any order takes time with their square.
MOST_COMPARED: Final = 400


@dataclass(eq=False)
class Block:
    """The place of one temporary buffer.

    Attributes:
        device: whose memory.
        size: bytes, a multiple of the alignment.
        first: the moment it begins to be used.
        last: the last moment it is used.
        buffer: whose memory it is.
        offset: where it lies in the arena.
    """

    device: str
    size: int
    first: int
    last: int
    buffer: UOp
    offset: int = 0


def plan_memory(
    calls: Sequence[Call],
    made: Collection[UOp],
    results: Iterable[UOp],
    target_of: Callable[[str], Target],
    apart: Collection[UOp] = (),
) -> tuple[list[Call], MemoryPlan]:
    """Places for all temporary buffers, and the calls with some outputs in place where that lowers the peak.

    Args:
        calls: in execution order.
        made: buffers of this schedule; all others hold values that somebody else owns.
        results: what the roots became; their memory is never shared.
        target_of: facts about a device by its name.
        apart: buffers that have memory of their own although they are temporary.
    """
    kept = {root_of(r) for r in results} | set(apart)
    room = room_of(target_of)
    temporary = {b for b in made if b not in kept}
    chosen = Lifetimes(calls, temporary, room)
    arenas = chosen.place()
    shared = Lifetimes(calls, temporary, room)
    shared.store_in_place()
    saved = chosen.bound - shared.bound
    if saved and saved * LEAST_SAVING >= chosen.bound:
        smaller = shared.place()
        if sum(smaller.values()) < sum(arenas.values()):
            chosen, arenas = shared, smaller
    used = {buffer for call in calls for moment in moments_of(call) for buffer in moment}
    unshared = sum(room(buffer) for buffer in temporary if buffer in used)
    outlive = sum(size_of(buffer) for buffer in made if buffer in kept)
    places = {block.buffer: block.offset for block in chosen.blocks}
    return chosen.calls, MemoryPlan(sum(arenas.values()), chosen.bound, unshared, outlive, arenas, places)


def room_of(target_of: Callable[[str], Target]) -> Callable[[UOp], int]:
    """Says for a buffer its bytes up to where the next may begin."""
    alignments: dict[str, int] = {}

    def room(buffer: UOp) -> int:
        device = buffer.arg.device
        if device not in alignments:
            alignments[device] = GPU_ALIGNMENT if target_of(device).kind == "gpu" else CPU_ALIGNMENT
        return -(-size_of(buffer) // alignments[device]) * alignments[device]

    return room


class Lifetimes:
    """When every temporary buffer is used. A moment is a call, or a stage of one: all in it is in use at once.

    Attributes:
        calls: the calls; `store_in_place` changes some.
        blocks: the temporary buffers in order of their first use.
    """

    def __init__(self, calls: Sequence[Call], temporary: Iterable[UOp], room: Callable[[UOp], int]) -> None:
        self.calls = list(calls)
        self._call_at: list[int] = []
        wanted = set(temporary)
        found: dict[UOp, Block] = {}
        for number, call in enumerate(self.calls):
            for buffers in moments_of(call):
                now = len(self._call_at)
                for buffer in buffers:
                    block = found.get(buffer)
                    if block is not None:
                        block.last = now
                    elif buffer in wanted:
                        found[buffer] = Block(buffer.arg.device, room(buffer), now, now, buffer)
                self._call_at.append(number)
        self.blocks = list(found.values())

    def live_bytes(self) -> dict[str, list[int]]:
        """Bytes in use by device and moment."""
        live: dict[str, list[int]] = {}
        for block in self.blocks:
            change = live.setdefault(block.device, [0] * (len(self._call_at) + 1))
            change[block.first] += block.size
            change[block.last + 1] -= block.size
        for change in live.values():
            total = 0
            for moment, amount in enumerate(change):
                total += amount
                change[moment] = total
        return live

    @property
    def bound(self) -> int:
        """Bytes that no places can do without: the most in use at one moment, of all devices together."""
        return sum(max(live) for live in self.live_bytes().values())

    def store_in_place(self) -> None:
        """At every device's worst moment let an output take the memory of an input that dies there, while one can."""
        for device, live in self.live_bytes().items():
            saved = 1
            while saved:
                worst = max(range(len(live)), key=lambda moment: live[moment])
                saved = self.share_at(worst, device)
                live[worst] -= saved

    def share_at(self, moment: int, device: str) -> int:
        """Bytes saved at a moment by one more output in place; 0 when there is none."""
        if moment == len(self._call_at):
            return 0
        number = self._call_at[moment]
        call = self.calls[number]
        if not isinstance(call, KernelCall):
            return 0
        dying = {block.buffer: block for block in self.blocks if block.last == moment and block.device == device}
        born = {block.buffer: block for block in self.blocks if block.first == moment and block.device == device}
        pair = reuse_inputs(call, dying, born)
        if pair is None:
            return 0
        output, source = pair
        self.calls[number] = merged(call, output, source)
        last = born[output].last
        for later in range(number + 1, self._call_at[last] + 1):
            self.calls[later] = renamed(self.calls[later], output, source)
        dying[source].last = last
        self.blocks.remove(born[output])
        return born[output].size

    def place(self) -> dict[str, int]:
        """Give every block its offset; returns the bytes of each device's arena."""
        return {
            device: place_blocks([block for block in self.blocks if block.device == device])
            for device in dict.fromkeys([block.device for block in self.blocks])
        }


def place_blocks(blocks: Sequence[Block]) -> int:
    """Best fit in a few orders of the blocks; sets the offsets of the order with the lowest top and returns that."""
    if len(blocks) > MOST_COMPARED:
        return place_in_time(blocks)
    least = max(bytes_in_use(blocks), default=0)
    orders: tuple[Callable[[Block], tuple[int, ...]], ...] = (
        lambda b: (-b.size, b.first, b.last),
        lambda b: (b.first - b.last, -b.size, b.first),
        lambda b: (b.first, -b.size, b.last),
        lambda b: (-b.size * (b.last - b.first + 1), b.first, b.last),
    )
    best: tuple[int, list[int]] | None = None
    for order in orders:
        top = best_fit(sorted(blocks, key=order))
        if best is None or top < best[0]:
            best = top, [block.offset for block in blocks]
        if best[0] == least:
            break
    assert best is not None
    for block, offset in zip(blocks, best[1], strict=True):
        block.offset = offset
    return best[0]


def bytes_in_use(blocks: Sequence[Block]) -> Iterator[int]:
    """Bytes in use after each moment that a block begins or ends."""
    change: dict[int, int] = {}
    for block in blocks:
        change[block.first] = change.get(block.first, 0) + block.size
        change[block.last + 1] = change.get(block.last + 1, 0) - block.size
    total = 0
    for moment in sorted(change):
        total += change[moment]
        yield total


def place_in_time(blocks: Sequence[Block]) -> int:
    """Best fit in the order of time, forwards or backwards: hardly more than the least for many blocks, and fast."""
    forwards = sweep([(b.first, -b.size, b.last) for b in blocks])
    backwards = sweep([(-b.last, -b.size, -b.first) for b in blocks])
    top, offsets = min(forwards, backwards)
    for block, offset in zip(blocks, offsets, strict=True):
        block.offset = offset
    return top


def sweep(times: Sequence[tuple[int, int, int]]) -> tuple[int, list[int]]:
    """Best fit of blocks (first moment, -size, last moment), the earliest first: arena size, offset of each block."""
    offsets = [0] * len(times)
    gaps: list[tuple[int, int]] = []  # below `end`, in order: where each begins and ends
    end = top = 0
    used: list[tuple[int, int, int]] = []  # a heap: last moment, offset, size
    for number in sorted(range(len(times)), key=lambda n: times[n]):
        first, negative, last = times[number]
        size = -negative
        while used and used[0][0] < first:
            _, offset, freed = heapq.heappop(used)
            place = bisect_left(gaps, (offset, 0))
            begin, stop = offset, offset + freed
            if place < len(gaps) and gaps[place][0] == stop:
                stop = gaps.pop(place)[1]
            if place and gaps[place - 1][1] == begin:
                place -= 1
                begin = gaps.pop(place)[0]
            if stop == end:
                end = begin
            else:
                gaps.insert(place, (begin, stop))
        fitting = [(stop - begin, begin) for begin, stop in gaps if stop - begin >= size]
        if fitting:
            gap, offset = min(fitting)
            place = bisect_left(gaps, (offset, 0))
            gaps[place : place + 1] = [(offset + size, offset + gap)] if gap > size else []
        else:
            offset = end
            end += size
            top = max(top, end)
        offsets[number] = offset
        heapq.heappush(used, (last, offset, size))
    return top, offsets


def best_fit(blocks: Sequence[Block]) -> int:
    """Give each block, in order, the smallest gap between those that live at its time; returns the arena's size."""
    placed: list[Block] = []
    top = 0
    for block in blocks:
        first, last, size = block.first, block.last, block.size
        around = sorted([(b.offset, b.size) for b in placed if b.first <= last and first <= b.last])
        end = 0
        best: tuple[int, int] | None = None
        for offset, taken in around:
            gap = offset - end
            if gap >= size and (best is None or gap < best[0]):
                best = gap, end
            end = max(end, offset + taken)
        block.offset = end if best is None else best[1]
        top = max(top, block.offset + size)
        placed.append(block)
    return top


def moments_of(call: Call) -> list[list[UOp]]:
    """The buffers in use at each moment of a call: a launch has a moment for every stage."""
    if isinstance(call, CopyCall):
        return [[call.destination, call.source]]
    arg = call.ast.arg
    if not isinstance(arg, LaunchArg):
        return [list(call.buffers)]
    return [
        [call.buffers[slot] for segment in stage for use in segment for slot in use.slots if slot >= 0]
        for stage in arg.stages
    ]


def renamed(call: Call, old: UOp, new: UOp) -> Call:
    """The call with another buffer in the place of `old`."""
    if isinstance(call, CopyCall):
        return CopyCall(*[new if b is old else b for b in (call.destination, call.source)])
    if old not in call.buffers:
        return call
    return replace(call, buffers=tuple([new if b is old else b for b in call.buffers]))


def size_of(buffer: UOp) -> int:
    """Bytes of a BUFFER node."""
    return int(buffer.arg.size * buffer.dtype.itemsize)
