"""A program in this process: its functions, how threads share them, and the words of one launch of it."""

from __future__ import annotations

import ctypes
import struct
import time
from collections.abc import Sequence
from typing import Final

from gradlet.base import settings
from gradlet.device.cpu import pool
from gradlet.device.cpu.jit import Loaded
from gradlet.device.cpu.parts import Segment, cut
from gradlet.device.cpu.plan import LaunchPlan
from gradlet.device.cpu.target import usable_cores
from gradlet.runtime.buffer import Buffer

# A stage shorter than this runs on the calling thread: handing work over costs about a microsecond, waking a sleeping
# worker about thirty.
INLINE_SECONDS: Final = 5e-6
# Parts for each thread: more even out uneven cores, fewer cost less.
PARTS_PER_THREAD: Final = 4
_FUNCTION: Final = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_int64, ctypes.c_int64)


class Stage:
    """One function of a program that threads can share: how its blocks are cut into parts."""

    def __init__(self, address: int, segments: Sequence[Segment]) -> None:
        self.address = address
        self.segments = segments
        self.blocks = sum(s.blocks for s in segments)
        self.seconds = sum(s.blocks * s.seconds for s in segments)
        self.is_small = self.blocks <= 1 or self.seconds < INLINE_SECONDS or not pool.is_supported()
        # Memory that launches read while they run; what was cut once is kept.
        self._bounds: dict[int, ctypes.Array[ctypes.c_int64]] = {}

    def words(self, table: int, threads: int) -> tuple[int, ...]:
        """What the pool has to know: see pool.HEADER_WORDS."""
        if self.is_small:
            return self.address, self.blocks, 1, 0, table
        by_work = max(2, int(self.seconds / INLINE_SECONDS))
        parts = min(self.blocks, PARTS_PER_THREAD * threads, by_work)
        if len(self.segments) == 1:
            return self.address, self.blocks, parts, 0, table
        found = self._bounds.get(parts)
        if found is None:
            places = [place for part in cut(self.segments, parts) for place in part]
            found = self._bounds.setdefault(parts, (ctypes.c_int64 * len(places))(*places))
        return self.address, self.blocks, len(found) // 2, ctypes.addressof(found), table


class _Words:
    """Memory of one launch: the pool's words, then the table of addresses and values."""

    def __init__(self, stages: Sequence[Stage], count: int) -> None:
        self.header_bytes = 8 * (1 + pool.HEADER_WORDS * len(stages))
        self.memory = ctypes.create_string_buffer(self.header_bytes + 8 * count)
        self.address = ctypes.addressof(self.memory)
        self.table = self.address + self.header_bytes
        self._stages = stages
        self._threads = 0

    def cut_for(self, threads: int) -> None:
        """Make the parts as many threads need."""
        if self._threads != threads:
            words = [len(self._stages), *[w for stage in self._stages for w in stage.words(self.table, threads)]]
            struct.pack_into(f"<{len(words)}q", self.memory, 0, *words)
            self._threads = threads


class CpuProgram:
    """A loaded kernel, or a launch of several. Calling it runs it to its end."""

    def __init__(self, loaded: Loaded, plan: LaunchPlan) -> None:
        self._loaded = loaded  # the code lives as long as this
        self.stages = [
            Stage(loaded.addresses[name], segments) for name, segments in zip(plan.stages, plan.segments, strict=True)
        ]
        self._calls = [(_FUNCTION(stage.address), stage.blocks) for stage in self.stages]
        self._is_small = all(stage.is_small for stage in self.stages)
        self.words = plan.words  # addresses and values of a launch
        self._pack = struct.Struct(f"<{self.words}q").pack_into
        # Each launch takes words nobody else uses: several Python threads may run the same kernel.
        self._idle: list[_Words] = []

    def __call__(self, buffers: Sequence[Buffer], values: Sequence[int], wait: bool = False) -> float | None:
        if wait:
            start = time.perf_counter()
            self._launch(buffers, values)
            return time.perf_counter() - start
        self._launch(buffers, values)
        return None

    def stage_words(self, table: int, threads: int) -> list[tuple[int, ...]]:
        """The pool's words for every stage of a launch with this table; one part where a single thread runs it all."""
        if threads == 1:
            return [(stage.address, stage.blocks, 1, 0, table) for stage in self.stages]
        return [stage.words(table, threads) for stage in self.stages]

    def _launch(self, buffers: Sequence[Buffer], values: Sequence[int]) -> None:
        try:
            words = self._idle.pop()
        except IndexError:
            words = _Words(self.stages, self.words)
        self._pack(words.memory, words.header_bytes, *[b._address or b.address for b in buffers], *values)
        threads = 1 if self._is_small else thread_count()
        if threads == 1:
            for function, blocks in self._calls:
                function(words.table, 0, blocks)
        else:
            words.cut_for(threads)
            pool.pool_of(threads).run_stages(words.address)
        self._idle.append(words)


_thread_count: dict[int, int] = {}


def thread_count() -> int:
    """Threads a parallel kernel runs on. The cores of the process are looked up once for each value of NUM_THREADS."""
    asked: int = settings.NUM_THREADS.value
    found = _thread_count.get(asked)
    if found is None:
        found = _thread_count[asked] = usable_cores()
    return found
